"""Variance breakdown of a table, and the effect of changes to the request."""

from __future__ import annotations

import streamlit as st

from engine import _format as texts
from engine import analysis, figures
from engine.analysis.variance_breakdown import breakdown_text, worst_query
from engine.analysis.what_if import CHANGES, Change, ChangedRequest
from engine.plans import Plan
from pages.parts.jobs import plans
from pages.parts.shell import buttons, figure_view, history
from pages.parts.shell.error_text import (
    deferred_errors,
    escape_markdown,
    show_deferred_error,
    show_errors,
)

MEAN, WORST, CHOSEN = "Average of all queries", "Least accurate query", "Query by number"
MAX_CHART_HEIGHT_PX = 240
TRIAL = "what_if"  # session key: state before the trial, its group, and the changed request


def why(plan: Plan, number: int) -> None:
    """Draw the variance breakdown of a group, and the changes that reduce its error."""
    with show_errors():
        place = st.container()
        query = _query(plan, number)
        with place:
            st.markdown(f"**Why:** {escape_markdown(breakdown_text(plan, number, query))}")
            picture = figures.breakdown_picture(plan, number, query)
            figure_view.picture(
                picture,
                key="why",
                config=figure_view.EXPORT,
                height=min(MAX_CHART_HEIGHT_PX, picture.figure.layout.height),
            )
    st.markdown("**Ways to reduce this error** (nothing changes until you apply one)")
    _buttons(plan, number)
    show_deferred_error(TRIAL)
    _draw_trial(plan)


def _query(plan: Plan, group: int) -> int | None:
    """Draw the choice of the query to explain; return None for the average of the group."""
    worst = worst_query(plan, group)
    choices = [MEAN, *([WORST] if worst is not None else []), CHOSEN]
    choice = st.radio("Error of", choices, horizontal=True, key="why_what")
    if choice == MEAN:
        return None
    query = worst
    if choice == CHOSEN or query is None:
        last = plan.workload.groups[group].count - 1
        query = int(
            st.number_input(
                f"Query number (0 to {texts.number(last)})", 0, last, 0, key=f"why_query_{group}"
            )
        )
    error = float(plan.variances(group, query, query + 1)[0]) ** 0.5
    text = escape_markdown(plan.workload.describe_in_group(group, query))
    st.caption(
        f"Query {texts.number(query)}: {text}. Standard error {texts.format_number(error)} counts."
    )
    return query


def _buttons(plan: Plan, group: int) -> None:
    """Draw one button per change, and the attribute whose bins can be merged."""
    request = history.current().request
    obstacles = {
        name: analysis.merge_obstacle(plan.schema[name])
        for name in plan.workload.groups[group].attributes
    }
    names = [name for name, obstacle in obstacles.items() if not obstacle]
    attribute = ""
    if names:
        attribute = st.selectbox(
            "Attribute to merge bins of",
            names,
            key=f"why_attribute_{group}",
            help="Merges pairs of adjacent bins.",
        )
    applied = {"tuned"} if request.options.get("centers") == "tuned" else set()
    with st.container(horizontal=True):
        for change in (change for change in CHANGES if change.name not in applied):
            buttons.button(
                escape_markdown(change.label(request)),
                _start_trial,
                change,
                group,
                attribute,
                key=f"what_if_{change.name}",
                disabled=change.name == "coarser" and not names,
            )
    if not names:
        st.caption("No attribute of this table has bins to merge.")
    for obstacle in filter(None, obstacles.values()):
        st.caption(escape_markdown(obstacle))


def _start_trial(change: Change, group: int, attribute: str) -> None:
    """Store the changed request, and start a job for its plan if planning takes long."""
    st.session_state.pop(TRIAL, None)
    with deferred_errors(TRIAL):
        before = history.current()
        changed = change.apply(before.request, group, attribute)
        plans.begin(before.with_request(changed.request))
        st.session_state[TRIAL] = (before.to_json(), group, changed)


def _draw_trial(plan: Plan) -> None:
    """Draw the effect of the trial, unless the request has changed since."""
    before, group, changed = st.session_state.get(TRIAL, ("", 0, None))
    studio = history.current()
    if changed is None or before != studio.to_json():
        return
    with st.container(border=True), show_errors():
        st.markdown(f"**What if: {escape_markdown(changed.text)}**")
        after = plans.plan_of(studio.with_request(changed.request))
        if after is not None:
            table = analysis.error_table(plan, after, group, changed.group)
            figure_view.table(table, name="what_if", alt="Errors before and after the change")
            st.caption(analysis.query_count_text(plan, after))
        with st.container(horizontal=True):
            if after is not None:
                buttons.button(
                    "Apply this change", _apply, changed, key="what_if_keep", type="primary"
                )
            st.button("Discard this change", on_click=_discard, key="what_if_forget")


def _apply(changed: ChangedRequest) -> None:
    history.commit(history.current().with_request(changed.request), redraw=True)
    _discard()


def _discard() -> None:
    st.session_state.pop(TRIAL, None)
