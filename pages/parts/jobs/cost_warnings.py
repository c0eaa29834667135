"""Warnings about expensive plans: the costly tables and remedies."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from engine._format import format_number
from engine.analysis.what_if import REMEDIES, ChangedRequest, costly_groups
from engine.errors import NotApplicable
from engine.mechanisms import forecast
from engine.mechanisms.base import Forecast
from engine.workload import Group
from pages.parts.shell import buttons, history
from pages.parts.shell.error_text import deferred_errors, escape_markdown, show_deferred_error
from pages.parts.shell.history import RequestState

MEMORY_LIMIT = 4e9  # bytes
LONG_PLANNING_S = 300.0  # longer planning shows the costly tables
PLACE = "remedy"


def is_too_costly(expected: Forecast) -> bool:
    """Whether a forecast exceeds the limits for planning."""
    return expected.seconds > LONG_PLANNING_S or expected.memory > MEMORY_LIMIT


def words(expected: Forecast) -> str:
    """Time and memory of a forecast as text.

    >>> words(Forecast(seconds=9720.0, memory=5.76e9, text=""))
    'about 2.7 hours and up to 5.76 GB of memory'
    """
    return (
        f"about {duration(expected.seconds)} and up to {format_number(expected.memory / 1e9)} GB of"
        " memory"
    )


def duration(seconds: float) -> str:
    """Time as text.

    >>> duration(0.2), duration(600), duration(7200)
    ('1 second', '10 minutes', '2.0 hours')
    """
    if seconds < 90:
        return f"{max(seconds, 1):.0f} second{'s' if seconds >= 1.5 else ''}"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"


def show_costly_groups(studio: RequestState, *, new: int = 0) -> None:
    """Draw the tables that make planning expensive, with remedies.

    The last `new` tables of the workload are proposed and not yet added; each button applies one
    remedy and adds them.
    """
    costly = _costly_groups(studio.request_key, studio)
    for group in costly:
        costly_group = studio.required_workload.groups[group]
        first_new = len(studio.required_workload.groups) - new
        who = (
            escape_markdown(_name(costly_group))
            if group >= first_new
            else f"table {group}: {escape_markdown(_name(costly_group))}"
        )
        st.markdown(f"**Most of the planning time comes from {who}.**")
        st.caption(
            "Its queries and the other queries on its attributes must be planned together. Each"
            " button shows its planning time."
            if any(len(part.axes) > 1 for part in costly_group.parts)
            else "Its attributes have too many cells. Each button shows its planning time."
        )
        # removing the only new table is not a remedy
        is_only_new = new == 1 and group >= first_new
        remedies = [
            (label, change)
            for label, change in _remedies(studio, group)
            if not is_only_new or change.group is not None
        ]
        prefix = "Add: " if new else ""
        _buttons(
            [
                (f"{prefix}{label}", studio.with_request(change.request))
                for label, change in remedies
            ],
            f"group_{group}",
        )
    if costly:
        show_deferred_error(PLACE)


def _buttons(choices: Sequence[tuple[str, RequestState]], name: str) -> None:
    with st.container(horizontal=True):
        for number, (label, changed) in enumerate(choices):
            buttons.button(label, _apply, changed, key=f"remedy_{name}_{number}")


def _apply(changed: RequestState) -> None:
    with deferred_errors(PLACE):
        history.commit(changed, redraw=True)


@st.cache_resource(max_entries=8, show_spinner="Finding the tables that take longest")
def _costly_groups(key: str, _studio: RequestState) -> tuple[int, ...]:
    return costly_groups(_studio.request, seconds=LONG_PLANNING_S, memory=MEMORY_LIMIT)


def _remedies(studio: RequestState, group: int) -> list[tuple[str, ChangedRequest]]:
    """Remedies that apply to a group, labelled with their planning time."""
    return _cached_remedies(f"{group}|{studio.request_key}", studio, group)


@st.cache_resource(max_entries=16, show_spinner=False)
def _cached_remedies(
    key: str, _studio: RequestState, _group: int
) -> list[tuple[str, ChangedRequest]]:
    changes = []
    for remedy in REMEDIES:
        try:
            change = remedy.apply(_studio.request, _group, "")
            expected = forecast(
                change.request.workload, _studio.mechanism, **change.request.options
            )
        except NotApplicable:
            continue
        changes.append((f"{remedy.label(_studio.request)} ({duration(expected.seconds)})", change))
    return changes


def _name(group: Group) -> str:
    return f"{' × '.join(group.attributes)}, {group.family_text}"
