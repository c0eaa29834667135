"""Forecast of the planning time and the errors of proposed tables, before they are added."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import streamlit as st

from engine import analysis
from engine._format import pluralize
from engine.errors import EngineError
from engine.mechanisms.base import Forecast
from engine.workload import Custom, Group, Workload, new_groups
from pages.parts.jobs import cost_warnings, plans
from pages.parts.shell import history
from pages.parts.shell.error_text import error_text, escape_markdown
from pages.parts.shell.history import RequestState

# Larger workloads, and custom families with more cells, would take seconds to forecast at each
# edit.
MAX_FORECAST_GROUPS = 3_000
MAX_CUSTOM_CELLS = 1_000


def groups_to_add(groups: Sequence[Group]) -> tuple[Group, ...]:
    """Return those groups that the workload does not have, and draw how many it already has."""
    workload = history.current().required_workload
    new = new_groups(workload, groups)
    if groups and not new:
        st.caption("Already in the workload. A larger weight makes a table more accurate.")
    elif len(new) < len(groups):
        n_included = len(groups) - len(new)
        verb = "is" if n_included == 1 else "are"
        text = f"{n_included:,} of {len(groups):,} tables {verb} already included."
        attribute_sets = {group.attributes for group in workload.groups}
        if all(group.attributes in attribute_sets for group in new):
            text += (
                f" {pluralize(len(new), 'table')} would be added because the workload has another"
                f" query type for the same attributes, such as"
                f" {' × '.join(new[0].attributes) or 'the total'}."
            )
        st.caption(escape_markdown(text))
    return new


def effect(new: Sequence[Group]) -> None:
    """Draw a forecast: the errors of the new groups, and how the other errors would change.

    If there is no forecast, because the plan is too large or refused, draw the reason.
    """
    request_state = history.current()
    workload = request_state.required_workload
    st.markdown(f"**If you add {pluralize(len(new), 'table')}**")
    if len(new) + len(workload.groups) > MAX_FORECAST_GROUPS or any(
        map(_has_large_custom_family, new)
    ):
        st.caption("Too large for a live forecast. Preview estimates the planning time.")
        return
    extended_state = replace(
        request_state, workload=Workload(workload.schema, (*workload.groups, *new))
    )
    try:
        expected = _expected(extended_state.request_key, len(new), extended_state, request_state)
    except EngineError as error:
        st.caption(escape_markdown(f"Cannot be planned: {error_text(error)}"))
        return
    if cost_warnings.is_too_costly(expected):
        st.warning(
            escape_markdown(f"Planning would take {cost_warnings.cost_text(expected)}."),
            icon="⏳",
        )
        cost_warnings.show_costly_groups(extended_state, new=len(new))
        return
    after = plans.plan_of_form(extended_state)
    if after is not None:
        before = plans.quick_plan(request_state, plans.LIVE_S) if workload.groups else None
        st.markdown(escape_markdown(analysis.added_text(after, len(new), before)))
    time_text = (
        f"With the addition, planning takes about {cost_warnings.duration(expected.seconds)}."
    )
    st.caption(escape_markdown(time_text))


@st.cache_resource(max_entries=64, show_spinner=False)
def _expected(
    key: str, new: int, _extended: RequestState, _request_state: RequestState
) -> Forecast:
    """Return the forecast of planning after the addition of groups.

    Parameters
    ----------
    key : cache key.
    new : number of added groups.
    _extended : request with the added groups at the end of its workload.
    _request_state : request without them.
    """
    added = _extended.required_workload.groups[-new:]
    return analysis.forecast_added(
        replace(_request_state.request, options=_extended.options_without_defaults), added
    )


def _has_large_custom_family(group: Group) -> bool:
    return any(
        isinstance(part.family, Custom) and prod(part.sizes) > MAX_CUSTOM_CELLS
        for part in group.parts
    )
