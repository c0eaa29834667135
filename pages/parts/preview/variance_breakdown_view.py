"""Sources of the error of a table, and trials of changes that could reduce it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from engine import _format as texts
from engine import analysis, figures
from engine.analysis.variance_breakdown import breakdown_text, worst_query
from engine.analysis.what_if import CHANGES, Change, ChangedRequest
from engine.plans import Plan
from engine.privacy import Budget
from pages.parts.jobs import plans
from pages.parts.shell import budgets, buttons, figure_view, history
from pages.parts.shell.error_text import (
    deferred_errors,
    escape_markdown,
    show_deferred_error,
    show_errors,
)

MEAN, WORST, CHOSEN = "Average of all queries", "Least accurate query", "Query by number"
MAX_MERGE_BUTTONS = 3
# Session key of the trial, which is a tuple: the request before the trial as JSON, the index of the
# group, and the changed request.
TRIAL = "what_if"


def why(plan: Plan, number: int, detail: DeltaGenerator, trial: DeltaGenerator) -> None:
    """Draw a sentence with the main source of the error of a group, and buttons for changes.

    Parameters
    ----------
    number : index of the group.
    detail : container for the button that opens the chart of all sources of error.
    trial : container for the errors before and after a change that the user tries.
    """
    with show_errors():
        place = st.container()
        with detail, st.popover("Sources of error"):
            query = _query(plan, number)
            picture = figures.breakdown_picture(plan, number, query)
            figure_view.chart(picture, key="why", config=figure_view.EXPORT)()
            figure_view.downloads(lambda: picture.table, name="why")
        place.markdown(f"**Why:** {escape_markdown(breakdown_text(plan, number, query))}")
    st.markdown("**Ways to reduce this error**: try one, then apply it.")
    _buttons(plan, number)
    with trial:
        show_deferred_error(TRIAL)
        _draw_trial(plan)


def _query(plan: Plan, group: int) -> int | None:
    """Draw the choice of the query to explain; return its index in the group.

    None stands for the average of all queries of the group.
    """
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
    """Draw one button per kind of change that applies, and the buttons that merge bins."""
    request = history.current().request
    obstacles = {
        name: analysis.merge_obstacle(plan.schema[name])
        for name in plan.workload.groups[group].attributes
    }
    mergeable = [name for name, obstacle in obstacles.items() if not obstacle]
    is_tuned = request.options.get("centers") == "tuned"
    with st.container(horizontal=True):
        for change in CHANGES:
            if change.name == "coarser":
                _merge_buttons(change, group, mergeable, obstacles)
            elif change.name != "tuned" or not is_tuned:
                buttons.button(
                    escape_markdown(change.label(request)),
                    _start_trial,
                    change,
                    group,
                    "",
                    key=f"what_if_{change.name}",
                )


def _merge_buttons(
    change: Change, group: int, mergeable: Sequence[str], obstacles: Mapping[str, str]
) -> None:
    """Draw a button for each of the first `MAX_MERGE_BUTTONS` attributes whose bins can be merged.

    Several buttons are in a popover. If no bins can be merged, a disabled button is drawn.
    ``obstacles`` maps each attribute to the reason why its bins cannot be merged; the tooltip of
    the disabled button lists these reasons.
    """
    with st.popover("Merge bins") if len(mergeable) > 1 else nullcontext():
        for name in mergeable[:MAX_MERGE_BUTTONS]:
            buttons.button(
                f"Merge bins of {escape_markdown(name)}",
                _start_trial,
                change,
                group,
                name,
                key=f"what_if_coarser_{name}",
            )
    if not mergeable:
        reasons = " ".join(obstacles.values()) or "This table has no attribute."
        st.button("Merge bins", disabled=True, key="what_if_coarser", help=escape_markdown(reasons))


def _start_trial(change: Change, group: int, attribute: str) -> None:
    """Store a changed request as the trial; if planning takes long, start it in a worker."""
    st.session_state.pop(TRIAL, None)
    with deferred_errors(TRIAL):
        before = history.current()
        changed_request = change.apply(before.request, group, attribute)
        plans.begin(before.with_request(changed_request.request))
        st.session_state[TRIAL] = (before.to_json(), group, changed_request)


def _draw_trial(plan: Plan) -> None:
    """Draw the errors before and after the stored trial, with buttons to apply or discard it.

    Nothing is drawn if the request has changed since the trial started.
    """
    before, group, changed_request = st.session_state.get(TRIAL, ("", 0, None))
    request_state = history.current()
    if changed_request is None or before != request_state.to_json():
        return
    with st.container(border=True), show_errors():
        text = _change_text(changed_request, request_state.budget)
        st.markdown(f"**What if: {escape_markdown(text)}**")
        after = plans.plan_of(request_state.with_request(changed_request.request))
        if after is not None:
            table = analysis.error_table(plan, after, group, changed_request.group)
            figure_view.table(table, name="what_if", alt="Errors before and after the change")
            st.caption(analysis.query_count_text(plan, after))
        with st.container(horizontal=True):
            if after is not None:
                buttons.button(
                    "Apply this change", _apply, changed_request, key="what_if_keep", type="primary"
                )
            st.button("Discard this change", on_click=_discard, key="what_if_forget")


def _change_text(changed_request: ChangedRequest, budget: Budget) -> str:
    """Return the sentence that describes a change; budgets are in the chosen unit.

    ``budget`` is the budget before the change.
    """
    changed_budget = changed_request.request.budget
    if changed_budget == budget:
        return changed_request.text
    texts = [budgets.headline(b, budgets.chosen_unit()) for b in (changed_budget, budget)]
    return f"Budget of {texts[0]} instead of {texts[1]}."


def _apply(changed_request: ChangedRequest) -> None:
    history.commit(history.current().with_request(changed_request.request), redraw=True)
    _discard()


def _discard() -> None:
    st.session_state.pop(TRIAL, None)
