"""Preview page: accuracy of a plan before any record is read."""

from functools import partial

import streamlit as st

from engine.plans import Plan
from pages.parts.jobs import plans
from pages.parts.preview import (
    error_targets_view,
    group_targets_form,
    hidden_table_view,
    plan_headline_view,
    table_errors_view,
    target_panel,
)
from pages.parts.release import rehearsal_size, wizard
from pages.parts.shell import figure_view, history, page_layout, python_script
from pages.parts.shell.error_text import show_errors
from pages.parts.workload import record_count_form

page_layout.require()

TUTORIAL = (
    "A **plan** fixes what is measured and how much noise is added. It depends only on schema,"
    " workload and budget, so viewing it spends nothing. The **standard error** of a query is the"
    " typical size of its noise, in counts; 95% of the answers lie within two standard errors of"
    " the true count. Halving the error takes four times the pcost."
)
QUESTIONS = {
    "target": ("Find the budget for a target error", target_panel.draw),
    "limit": ("How close to optimal", plan_headline_view.optimality),
}


def rehearse_button(plan: Plan) -> None:
    """Draw the button that opens the page Release; a quick rehearsal starts at once."""
    if st.button("Rehearse the release", key="to_rehearsal"):
        rehearsal_size.start_if_quick(plan)
        wizard.close_result("release", "step", wizard.REHEARSE)
        st.switch_page(page_layout.page("Release").file)


request_state = page_layout.header(
    page_layout.page("Preview"),
    "See how accurate each number will be. No records are read.",
    TUTORIAL,
)
if lesson := history.page_state().get("lesson_opened"):
    st.info(
        f"This is the plan of the lesson “{lesson}”; Undo restores your plan. Here the noise is"
        " optimized for the queries, so errors can be smaller than in the lesson.",
        icon="🎓",
    )
place = st.container()
if request_state.schema is not None:
    record_count_form.fill_in_demo_count(request_state.schema)
plan = plans.plan_of(request_state)
with place:
    plan_headline_view.headline(plan)
if plan is not None:
    page_layout.mark_previewed(request_state)
    with show_errors():
        hidden_table_view.draw(plan)
        table_errors_view.draw(plan)
        error_targets_view.search(plan)
    group_targets_form.note_removed_targets()
    figure_view.folds(QUESTIONS, arguments=(plan,))
page_layout.footer(
    code=python_script.plan_code(request_state),
    target=page_layout.page("Compare"),
    reason="" if plan is not None else "there is no plan yet; see above.",
    more=None if plan is None else partial(rehearse_button, plan),
)
