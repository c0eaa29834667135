"""Warnings about plans that take long to compute, with buttons for cheaper requests."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from engine._format import format_number
from engine.analysis import condition_name
from engine.analysis.what_if import REMEDIES, ChangedRequest, costly_groups
from engine.errors import NotApplicable
from engine.mechanisms import forecast
from engine.mechanisms.base import Forecast
from engine.workload import Group
from pages.parts.shell import buttons, history
from pages.parts.shell.error_text import deferred_errors, escape_markdown, show_deferred_error
from pages.parts.shell.history import RequestState

MEMORY_LIMIT = 4e9  # bytes
LONG_PLANNING_S = 300.0  # above this forecast the page lists the tables that take longest
PLACE = "remedy"  # key of the error of a remedy, see `deferred_errors`


def is_too_costly(expected: Forecast) -> bool:
    """Return whether planning would take longer than `LONG_PLANNING_S` or more than
    `MEMORY_LIMIT`."""
    return expected.seconds > LONG_PLANNING_S or expected.memory > MEMORY_LIMIT


def cost_text(expected: Forecast) -> str:
    """Return the forecast planning time and memory as text.

    >>> cost_text(Forecast(seconds=9720.0, memory=5.76e9, text=""))
    'about 2.7 hours and up to 5.76 GB of memory'
    """
    return (
        f"about {duration(expected.seconds)} and up to {format_number(expected.memory / 1e9)} GB of"
        " memory"
    )


def duration(seconds: float) -> str:
    """Return a time in seconds as text, in seconds, minutes or hours.

    >>> duration(0.2), duration(600), duration(7200)
    ('1 second', '10 minutes', '2.0 hours')
    """
    if seconds < 90:
        return f"{max(seconds, 1):.0f} second{'s' if seconds >= 1.5 else ''}"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"


def show_costly_groups(request_state: RequestState, *, new: int = 0) -> None:
    """Draw the tables that make planning expensive, with buttons for cheaper variants.

    Parameters
    ----------
    new : number of tables at the end of the workload that a form proposes, and that the user has
        not added yet. A button then applies its remedy and adds these tables.
    """
    groups = request_state.required_workload.groups
    costly = _costly_groups(request_state.request_key, request_state)
    for number in costly:
        is_new = number >= len(groups) - new
        condition = condition_name(request_state.required_workload, number)
        name = escape_markdown(condition or _name(groups[number]))
        table_name = name if is_new else f"table {number + 1}: {name}"
        st.markdown(f"**Most of the planning time comes from {table_name}.**")
        st.caption(
            "Its queries and the other queries on its attributes must be planned together. Each"
            " button shows the planning time after the change."
            if any(len(part.axes) > 1 for part in groups[number].parts)
            else "Its attributes have too many cells. Each button shows the planning time after the"
            " change."
        )
        # If the form proposes only this table, there is no button "Add: leave out this table",
        # because it would add nothing. A change that leaves out the table has no group.
        is_only_new = new == 1 and is_new
        prefix = "Add: " if new else ""
        _buttons(
            [
                (f"{prefix}{label}", request_state.with_request(change.request))
                for label, change in _remedies(request_state, number)
                if not is_only_new or change.group is not None
            ],
            f"group_{number}",
        )
    if costly:
        show_deferred_error(PLACE)


def _buttons(choices: Sequence[tuple[str, RequestState]], name: str) -> None:
    with st.container(horizontal=True):
        for number, (label, new_state) in enumerate(choices):
            buttons.button(label, _apply, new_state, key=f"remedy_{name}_{number}")


def _apply(new_state: RequestState) -> None:
    with deferred_errors(PLACE):
        history.commit(new_state, redraw=True)


@st.cache_resource(max_entries=8, show_spinner="Finding the tables that take longest")
def _costly_groups(key: str, _request_state: RequestState) -> tuple[int, ...]:
    return costly_groups(_request_state.request, seconds=LONG_PLANNING_S, memory=MEMORY_LIMIT)


def _remedies(request_state: RequestState, group: int) -> list[tuple[str, ChangedRequest]]:
    """Return the changes of the request that make one table cheaper to plan.

    Each is a pair of a button label, which has the predicted planning time, and the changed
    request. ``group`` is the index of the table.
    """
    return _cached_remedies(f"{group}|{request_state.request_key}", request_state, group)


@st.cache_resource(max_entries=16, show_spinner=False)
def _cached_remedies(
    key: str, _request_state: RequestState, _group: int
) -> list[tuple[str, ChangedRequest]]:
    changes = []
    for remedy in REMEDIES:
        try:
            change = remedy.apply(_request_state.request, _group, "")
            expected = forecast(
                change.request.workload, _request_state.mechanism, **change.request.options
            )
        except NotApplicable:
            continue
        changes.append(
            (f"{remedy.label(_request_state.request)} ({duration(expected.seconds)})", change)
        )
    return changes


def _name(group: Group) -> str:
    return f"{' × '.join(group.attributes)}, {group.family_text}"
