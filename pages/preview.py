"""Preview page: what a plan promises at a budget, before any record is read."""

import streamlit as st

from pages.parts.jobs import plans
from pages.parts.preview import (
    budget_form,
    centers_view,
    error_targets_view,
    group_targets_form,
    group_view,
    plan_views,
    publication_weights_form,
)
from pages.parts.shell import figure_view, page_layout, python_script
from pages.parts.shell.error_text import show_errors

page_layout.require()

TUTORIAL = (
    "A **plan** fixes what will be measured and with how much noise. It is made from the schema,"
    " the workload and the budget alone, so looking at it costs nothing. The **standard error** of"
    " a query is the typical size of its noise, in counts; the published answer lies within twice"
    " the standard error of the true count 95% of the time. Half the error costs four times the"
    " pcost, or twice the mu. Groups are listed with the least exact on top; choose one to see its"
    " queries, where its error comes from, and what would help."
)
QUESTIONS = {
    "share": ("How many queries are good enough, and the budget for it", error_targets_view.spread),
    "targets": (
        "A target for each size of table, with locks, and what it costs",
        group_targets_form.draw,
    ),
    "aim": ("Weights for tables that will be published", publication_weights_form.draw),
    "usable": ("What can be published", error_targets_view.usable),
    "shares": ("Where the budget goes", plan_views.budget),
    "probe": ("One query of your own", error_targets_view.one_query),
    "limit": ("How far it is from the best possible", error_targets_view.distance),
}

studio = page_layout.header(
    page_layout.page(page_layout.BUDGETS),
    "See how exact every answer will be, and what it costs, before data is touched.",
    TUTORIAL,
    folded=True,
)
with page_layout.budget_place():  # it stays in view beside what it buys
    budget_form.budget(studio.budget)
made = plans.plan_of(studio)
if made is not None:
    page_layout.previewed(studio)
    with show_errors():
        plan_views.headline(made)
        left, right = st.columns(2, gap="medium")
        with left:
            group_view.groups(made)
        with right:
            group_view.chosen(made)
        error_targets_view.search(made)
        centers_view.draw(made)
    group_targets_form.drop_targets()
    st.subheader("More about this plan")
    figure_view.folds(QUESTIONS, arguments=(made,))
figure_view.folds(
    {
        "promise": ("What the budget promises, and whom it protects", budget_form.promise),
        "mechanism": ("Another mechanism, and how it is tuned", budget_form.mechanism),
    }
)
plan_views.files(made)
page_layout.footer(
    code=python_script.plan_code(studio),
    target=page_layout.page("Compare"),
    reason="" if made is not None else "there is no plan yet; see above.",
)
