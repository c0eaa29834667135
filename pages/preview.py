"""Preview page: accuracy of a plan before any record is read."""

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
    "A **plan** fixes what is measured and how much noise is added. It depends only on schema,"
    " workload and budget, so viewing it spends nothing. The **standard error** of a query is the"
    " typical size of its noise, in counts; 95% of the answers lie within two standard errors of"
    " the true count. Halving the error takes four times the pcost."
)
QUESTIONS = {
    "share": ("Queries within a tolerance", error_targets_view.spread),
    "targets": (group_targets_form.TITLE, group_targets_form.draw),
    "published": ("Weights for published tables", publication_weights_form.draw),
    "usable": ("Publishable answers", error_targets_view.usable),
    "shares": ("Budget by measurement", plan_views.budget),
    "probe": ("Check one query", error_targets_view.one_query),
    "limit": ("How close to optimal", error_targets_view.distance),
}

studio = page_layout.header(
    page_layout.page(page_layout.BUDGETS),
    "See how accurate each number will be. No records are read.",
    TUTORIAL,
)
with page_layout.budget_place():  # stays in view next to the errors
    budget_form.budget(studio.budget)
plan = plans.plan_of(studio)
if plan is not None:
    page_layout.previewed(studio)
    with show_errors():
        plan_views.headline(plan)
        left, right = st.columns(2, gap="medium")
        with left:
            group_view.groups(plan)
        with right:
            group_view.chosen(plan)
        error_targets_view.search(plan)
        centers_view.draw(plan)
    group_targets_form.drop_targets()
    st.subheader("More about this plan")
    figure_view.folds(QUESTIONS, arguments=(plan,))
figure_view.folds(
    {
        "promise": ("Privacy guarantee", budget_form.promise),
        "mechanism": ("Mechanism and options", budget_form.mechanism),
    }
)
plan_views.files(plan)
page_layout.footer(
    code=python_script.plan_code(studio),
    target=page_layout.page("Compare"),
    reason="" if plan is not None else "there is no plan yet; see above.",
)
