"""Work that would take too long or too much memory: which groups make it so, and buttons that mend
it.
"""

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

MEMORY_LIMIT = 4e9  # bytes that planning may take
PATIENCE = 300.0  # seconds of planning from which on the page says what makes it so dear
PLACE = "remedy"


def is_too_costly(expected: Forecast) -> bool:
    """Whether a forecast is beyond what a person would wait for."""
    return expected.seconds > PATIENCE or expected.memory > MEMORY_LIMIT


def words(expected: Forecast) -> str:
    """Time and memory of a forecast.

    >>> words(Forecast(seconds=9720.0, memory=5.76e9, text=""))
    'about 2.7 hours and up to 5.76 GB of memory'
    """
    return (
        f"about {duration(expected.seconds)} and up to {format_number(expected.memory / 1e9)} GB of"
        " memory"
    )


def duration(seconds: float) -> str:
    """Time in words.

    >>> duration(0.2), duration(600), duration(7200)
    ('1 second', '10 minutes', '2.0 hours')
    """
    if seconds < 90:
        return f"{max(seconds, 1):.0f} second{'s' if seconds >= 1.5 else ''}"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"


def show_costly_groups(studio: RequestState, *, new: int = 0) -> None:
    """Name the groups that make a plan too dear, each with what can be done about it; the last
    `new` are not added yet.

    A press takes the whole state with the group mended, so that new groups are added at once.
    """
    costly = _costly_groups(studio.request_key, studio)
    for group in costly:
        costly_group = studio.required_workload.groups[group]
        first_new = len(studio.required_workload.groups) - new
        who = (
            escape_markdown(_name(costly_group))
            if group >= first_new
            else f"group {group}: {escape_markdown(_name(costly_group))}"
        )
        st.markdown(f"**What makes it so dear is {who}.**")
        st.caption(
            "A joint family is quick alone; together with other queries on its attributes all their"
            " cells have to be planned at once. Each button says what planning would take then."
            if any(len(part.axes) > 1 for part in costly_group.parts)
            else (
                "Its attributes have too many cells to be planned at once. Each button says what"
                " planning would take."
            )
        )
        alone = new == 1 and group >= first_new  # to leave out what is not there yet is no remedy
        mended = [
            (label, change)
            for label, change in _mended(studio, group)
            if not alone or change.group is not None
        ]
        word = "Add: " if new else ""
        _buttons(
            [(f"{word}{label}", studio.with_request(change.request)) for label, change in mended],
            f"group_{group}",
        )
    if costly:
        show_deferred_error(PLACE)


def _buttons(choices: Sequence[tuple[str, RequestState]], name: str) -> None:
    with st.container(horizontal=True):
        for number, (label, changed) in enumerate(choices):
            buttons.button(label, _take, changed, key=f"remedy_{name}_{number}")


def _take(changed: RequestState) -> None:
    with deferred_errors(PLACE):
        history.commit(changed, redraw=True)


@st.cache_resource(max_entries=8, show_spinner="Looking for what makes it so dear")
def _costly_groups(key: str, _studio: RequestState) -> tuple[int, ...]:
    return costly_groups(_studio.request, seconds=PATIENCE, memory=MEMORY_LIMIT)


def _mended(studio: RequestState, group: int) -> list[tuple[str, ChangedRequest]]:
    """The remedies that apply to a group and make it cheaper, each with what planning takes then."""
    return _mendings(f"{group}|{studio.request_key}", studio, group)


@st.cache_resource(max_entries=16, show_spinner=False)
def _mendings(key: str, _studio: RequestState, _group: int) -> list[tuple[str, ChangedRequest]]:
    changes = []
    for remedy in REMEDIES:
        try:
            change = remedy.apply(_studio.request, _group, "")
            takes = forecast(change.request.workload, _studio.mechanism, **change.request.options)
        except NotApplicable:
            continue
        changes.append((f"{remedy.label(_studio.request)} ({duration(takes.seconds)})", change))
    return changes


def _name(group: Group) -> str:
    return f"{' × '.join(group.attributes)}, {group.family_text}"
