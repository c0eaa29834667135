"""What new groups would bring, told before they are added: the time to plan them, what is too dear,
and the errors.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence, Set
from dataclasses import replace
from math import prod

import streamlit as st

from engine import analysis
from engine._format import pluralize
from engine._values import cached_on_value
from engine.errors import EngineError
from engine.mechanisms.base import Forecast
from engine.workload import Custom, Group, Workload
from pages.parts.jobs import cost_warnings, plans
from pages.parts.shell import budgets, history
from pages.parts.shell.error_text import error_text, escape_markdown
from pages.parts.shell.history import RequestState

LIVE = 3_000  # groups up to which new ones are forecast while a form is filled in
WIDE = 1_000  # cells of queries without structure, from which on a forecast alone takes seconds


def new_groups(workload: Workload, groups: Sequence[Group]) -> tuple[Group, ...]:
    """The groups that are new to a workload."""
    existing = _families_by_set(workload)
    return tuple(group for group in groups if group.key not in existing.get(group.attributes, ()))


@cached_on_value
def _families_by_set(workload: Workload) -> Mapping[tuple[str, ...], Set[Hashable]]:
    """What is asked of each set of attributes; sets that are asked the same share it, or it would
    be most of a plan.
    """
    existing: dict[tuple[str, ...], frozenset[Hashable]] = {}
    shared: dict[frozenset[Hashable], frozenset[Hashable]] = {}
    for group in workload.groups:
        keys = existing.get(group.attributes, frozenset()) | {group.key}
        existing[group.attributes] = shared.setdefault(keys, keys)
    return existing


def before_adding(groups: Sequence[Group]) -> None:
    """Say what planning will take with new groups and how exact all would be, or what could be
    added instead.
    """
    studio = history.current()
    workload, new = studio.required_workload, new_groups(studio.required_workload, groups)
    if len(new) < len(groups):
        st.caption(
            f"{pluralize(len(groups) - len(new), 'group')} of these {len(groups):,} asked already;"
            " none twice."
        )
    if not new:
        return
    if len(new) + len(workload.groups) > LIVE or any(map(_wide, new)):
        st.caption(
            "It is too large to be forecast while you choose. The Preview page says what planning"
            " it takes."
        )
        return
    extended = replace(studio, workload=Workload(workload.schema, (*workload.groups, *new)))
    try:
        expected = _expected(extended.request_key, len(new), extended, studio)
    except EngineError as error:
        st.caption(escape_markdown(f"Planning could not start with it: {error_text(error)}"))
        return
    if cost_warnings.is_too_costly(expected):
        st.warning(
            escape_markdown(
                f"With what is asked already, planning takes {cost_warnings.words(expected)}."
            ),
            icon="⏳",
        )
        cost_warnings.show_costly_groups(extended, new=len(new))
        return
    st.caption(
        escape_markdown(f"Planning it takes about {cost_warnings.duration(expected.seconds)}.")
    )
    after = plans.plan_of_form(extended)
    if after is not None:
        before = plans.quick_plan(studio) if workload.groups else None
        st.markdown(
            f"**At {escape_markdown(budgets.in_words(studio.budget))}:**"
            f" {escape_markdown(analysis.added_text(after, len(new), before))}"
        )


@st.cache_resource(max_entries=64, show_spinner=False)
def _expected(question: str, new: int, _whole: RequestState, _studio: RequestState) -> Forecast:
    """What planning takes with the last groups of a question, worked out once, however often the
    page is drawn.
    """
    added = _whole.required_workload.groups[-new:]
    return analysis.forecast_added(
        replace(_studio.request, options=_whole.options_without_defaults), added
    )


def _wide(group: Group) -> bool:
    return any(isinstance(part.family, Custom) and prod(part.sizes) > WIDE for part in group.parts)
