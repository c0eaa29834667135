"""Why a query is bad: where its variance comes from, and what a change of the request would bring."""

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

MEAN, WORST, CHOSEN = "All its queries, on average", "Its least exact query", "One query by number"
TALL = 240  # pixels
# the change that is tried: its name, the group, the attribute, and the state it was tried on
TRIED = "what_if"


def why(plan: Plan, number: int) -> None:
    """Breakdown of a group's variance by residual space, and the changes that could help."""
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
                height=min(TALL, picture.figure.layout.height),
            )
    st.markdown("**What would help?** Each button plans a changed request; nothing is kept yet.")
    _buttons(plan, number)
    show_deferred_error(TRIED)
    _tried(plan)


def _query(plan: Plan, group: int) -> int | None:
    """The query to explain; None for the mean of the group."""
    least = worst_query(plan, group)
    ways = [MEAN, *([WORST] if least is not None else []), CHOSEN]
    how = st.radio("What to explain", ways, horizontal=True, key="why_what")
    if how == MEAN:
        return None
    query = least
    if how == CHOSEN or query is None:
        last = plan.workload.groups[group].count - 1
        query = int(
            st.number_input(
                f"Query, 0 to {texts.number(last)}", 0, last, 0, key=f"why_query_{group}"
            )
        )
    error = float(plan.variances(group, query, query + 1)[0]) ** 0.5
    text = escape_markdown(plan.workload.describe_in_group(group, query))
    st.caption(
        f"Query {texts.number(query)}: {text}. Standard error {texts.format_number(error)} counts."
    )
    return query


def _buttons(plan: Plan, group: int) -> None:
    """One button a change; merging bins asks for the attribute."""
    request = history.current().request
    obstacles = {
        name: analysis.merge_obstacle(plan.schema[name])
        for name in plan.workload.groups[group].attributes
    }
    names = [name for name, obstacle in obstacles.items() if not obstacle]
    attribute = ""
    if names:
        attribute = st.selectbox(
            "Attribute whose bins to merge",
            names,
            key=f"why_attribute_{group}",
            help="Pairs of neighbouring cells become one cell. Labels have no neighbours.",
        )
    done = {"tuned"} if request.options.get("centers") == "tuned" else set()
    with st.container(horizontal=True):
        for change in (change for change in CHANGES if change.name not in done):
            buttons.button(
                escape_markdown(change.label(request)),
                _try,
                change,
                group,
                attribute,
                key=f"what_if_{change.name}",
                disabled=change.name == "coarser" and not names,
            )
    if not names:
        st.caption("No attribute of this group has bins to merge.")
    for obstacle in filter(None, obstacles.values()):
        st.caption(escape_markdown(obstacle))


def _try(change: Change, group: int, attribute: str) -> None:
    """Remember the change, and start its plan when that takes long."""
    st.session_state.pop(TRIED, None)
    with deferred_errors(TRIED):
        before = history.current()
        changed = change.apply(before.request, group, attribute)
        plans.begin(before.with_request(changed.request))
        st.session_state[TRIED] = (before.to_json(), group, changed)


def _tried(plan: Plan) -> None:
    """The effect of the change that is tried, when the request is still the one it was tried on."""
    before, group, changed = st.session_state.get(TRIED, ("", 0, None))
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
                    "Keep this change", _keep, changed, key="what_if_keep", type="primary"
                )
            st.button("Forget it", on_click=_forget, key="what_if_forget")


def _keep(changed: ChangedRequest) -> None:
    history.commit(history.current().with_request(changed.request), redraw=True)
    _forget()


def _forget() -> None:
    st.session_state.pop(TRIED, None)
