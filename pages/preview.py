"""Preview page: what a plan promises at a budget, before any record is read."""

import streamlit as st

from pages.parts.jobs import plans
from pages.parts.preview import aim_form, budget_form, group_view, lock_form, plan_views, split_view, target_views
from pages.parts.shell import code, frame, show
from pages.parts.shell.words import show_errors

frame.require()

TUTORIAL = (
    "A **plan** fixes what will be measured and with how much noise. It is made from the schema, the workload and the "
    "budget alone, so looking at it costs nothing. The **standard error** of a query is the typical size of its noise, "
    "in counts; the published answer lies within twice the standard error of the true count 95% of the time. Half the "
    "error costs four times the pcost, or twice the mu. Groups are listed with the least exact on top; choose one to "
    "see its queries, where its error comes from, and what would help."
)
QUESTIONS = {
    "share": ("How many queries are good enough, and the budget for it", target_views.spread),
    "targets": ("A target for each size of table, with locks, and what it costs", lock_form.draw),
    "aim": ("Weights for tables that will be published", aim_form.draw),
    "usable": ("What can be published", target_views.usable),
    "shares": ("Where the budget goes", plan_views.budget),
    "probe": ("One query of your own", target_views.one_query),
    "limit": ("How far it is from the best possible", target_views.distance),
}

studio = frame.header(
    frame.page(frame.BUDGETS),
    "See how exact every answer will be, and what it costs, before data is touched.",
    TUTORIAL,
    folded=True,
)
with frame.budget_place():  # it stays in view beside what it buys
    budget_form.budget(studio.budget)
made = plans.plan_of(studio)
if made is not None:
    frame.previewed(studio)
    with show_errors():
        plan_views.headline(made)
        left, right = st.columns(2, gap="medium")
        with left:
            group_view.groups(made)
        with right:
            group_view.chosen(made)
        target_views.search(made)
        split_view.draw(made)
    lock_form.drop_targets()
    st.subheader("More about this plan")
    show.folds(QUESTIONS, arguments=(made,))
show.folds(
    {
        "promise": ("What the budget promises, and whom it protects", budget_form.promise),
        "mechanism": ("Another mechanism, and how it is tuned", budget_form.mechanism),
    }
)
plan_views.files(made)
frame.footer(
    code=code.plan_code(studio),
    target=frame.page("Compare"),
    reason="" if made is not None else "there is no plan yet; see above.",
)
