"""Preview page: what a plan promises at a budget, before any record is read."""

import streamlit as st

from engine import load_plan
from engine.mechanisms import mechanism_class
from pages.parts.jobs import plans
from pages.parts.preview import budget_form, plan_views, target_views, why_view
from pages.parts.shell import code, frame, show, state
from pages.parts.shell.words import kept_for, show_kept, shown_here

frame.require()

TUTORIAL = (
    "A **plan** fixes what will be measured and with how much noise. It is made from the schema, the workload and the "
    "budget alone, so looking at it costs nothing. The **standard error** of a query is the typical size of its noise, "
    "in counts; the published answer lies within twice the standard error of the true count 95% of the time. Half the "
    "error costs four times the budget. If the numbers are too noisy for their purpose, ask fewer queries, use coarser "
    "bins, or spend more: *Why bad?* tries each of these and shows what it would bring."
)
VIEWS = {
    "Groups": plan_views.groups,
    "What can be published": target_views.usable,
    "Every query": plan_views.every_query,
    "How many are good enough": target_views.spread,
    "Where the budget goes": plan_views.budget,
    "Why bad?": why_view.why,
    "One query of your own": target_views.one_query,
    "The limit": target_views.distance,
}


def use_plan_file() -> None:
    """Take workload, budget and mechanism from the uploaded plan."""
    file = st.session_state.get("plan_file")
    if file is None:
        return
    with kept_for("plan_file"):
        found = load_plan(file.getvalue())
        options = dict(found.options) | {"max_records": found.max_records}
        studio = state.Studio(workload=found.workload, budget=found.budget, mechanism=found.mechanism, options=options)
        state.commit(studio, redraw=True)


studio = frame.header(
    frame.page("Preview"), "See how exact every answer will be, and what it costs, before data is touched.", TUTORIAL
)
made = plans.plan_of(studio)  # first what comes out, so that it is seen while the budget is chosen
if made is not None:
    frame.previewed(studio)
    with shown_here():
        plan_views.headline(made)
st.header("Budget")
budget_form.budget(studio.budget)
with st.expander(f"Mechanism: {mechanism_class(studio.mechanism).title}"):
    budget_form.mechanism(studio)
if made is not None:
    st.header("Groups and queries")
    with shown_here():
        show.tabs(VIEWS, key="view", arguments=(made,))
st.header("Keep it")
left, right = st.columns(2)
if made is not None:
    left.download_button("Download plan.json", made.to_json, "plan.json", "application/json", on_click="ignore")
else:
    left.caption("A plan can be downloaded once there is one.")
with right:
    st.file_uploader("Open a plan file", type=["json"], key="plan_file", on_change=use_plan_file, max_upload_size=100)
    show_kept("plan_file")
frame.footer(
    code=code.plan_code(studio),
    target=frame.page("Compare"),
    reason="" if made is not None else "there is no plan yet; see above.",
)
