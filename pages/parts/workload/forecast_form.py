"""Forecast of planning time, cost and errors of new groups before they are added."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence, Set
from dataclasses import replace
from math import prod

import streamlit as st

from engine import analysis
from engine._values import cached_on_value
from engine.errors import EngineError
from engine.mechanisms.base import Forecast
from engine.workload import Custom, Group, Workload
from pages.parts.jobs import cost_warnings, plans
from pages.parts.shell import budgets, history
from pages.parts.shell.error_text import error_text, escape_markdown
from pages.parts.shell.history import RequestState

MAX_FORECAST_GROUPS = 3_000  # larger workloads are not forecast while a form is filled in
MAX_CUSTOM_CELLS = 1_000  # custom families with more cells take seconds to forecast


def new_groups(workload: Workload, groups: Sequence[Group]) -> tuple[Group, ...]:
    """Return the groups that the workload does not contain."""
    existing = _families_by_set(workload)
    return tuple(group for group in groups if group.key not in existing.get(group.attributes, ()))


@cached_on_value
def _families_by_set(workload: Workload) -> Mapping[tuple[str, ...], Set[Hashable]]:
    """Return the family keys per set of attributes; equal sets share one object to save memory."""
    existing: dict[tuple[str, ...], frozenset[Hashable]] = {}
    shared: dict[frozenset[Hashable], frozenset[Hashable]] = {}
    for group in workload.groups:
        keys = existing.get(group.attributes, frozenset()) | {group.key}
        existing[group.attributes] = shared.setdefault(keys, keys)
    return existing


def before_adding(groups: Sequence[Group]) -> bool:
    """Draw planning time and errors with the groups added; return whether any group is new."""
    studio = history.current()
    new = new_groups(studio.required_workload, groups)
    if groups and not new:
        st.caption("Already in the workload. Raise its weight to make it more accurate.")
    elif len(new) < len(groups):
        st.caption(f"{len(groups) - len(new):,} of {len(groups):,} tables are already included.")
    if new:
        _show_forecast(studio, new)
    return bool(new)


def _show_forecast(studio: RequestState, new: Sequence[Group]) -> None:
    """Draw planning time and errors with new groups, or cheaper alternatives."""
    workload = studio.required_workload
    if len(new) + len(workload.groups) > MAX_FORECAST_GROUPS or any(
        map(_has_large_custom_family, new)
    ):
        st.caption("Too large for a live forecast. The Preview page estimates the planning time.")
        return
    extended = replace(studio, workload=Workload(workload.schema, (*workload.groups, *new)))
    try:
        expected = _expected(extended.request_key, len(new), extended, studio)
    except EngineError as error:
        st.caption(escape_markdown(f"Cannot be planned: {error_text(error)}"))
        return
    if cost_warnings.is_too_costly(expected):
        st.warning(
            escape_markdown(f"Planning would take {cost_warnings.words(expected)}."),
            icon="⏳",
        )
        cost_warnings.show_costly_groups(extended, new=len(new))
        return
    st.caption(escape_markdown(f"Planning takes about {cost_warnings.duration(expected.seconds)}."))
    after = plans.plan_of_form(extended)
    if after is not None:
        before = plans.quick_plan(studio) if workload.groups else None
        st.markdown(
            f"**At {escape_markdown(budgets.in_words(studio.budget))}:**"
            f" {escape_markdown(analysis.added_text(after, len(new), before))}"
        )


@st.cache_resource(max_entries=64, show_spinner=False)
def _expected(key: str, new: int, _extended: RequestState, _studio: RequestState) -> Forecast:
    """Return the forecast for a request with its last `new` groups; cached across reruns."""
    added = _extended.required_workload.groups[-new:]
    return analysis.forecast_added(
        replace(_studio.request, options=_extended.options_without_defaults), added
    )


def _has_large_custom_family(group: Group) -> bool:
    return any(
        isinstance(part.family, Custom) and prod(part.sizes) > MAX_CUSTOM_CELLS
        for part in group.parts
    )
