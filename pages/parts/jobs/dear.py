"""Work that would take too long or too much memory: which groups make it so, and buttons that mend it."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from engine.errors import EngineError, NotApplicable
from engine.insight import REMEDIES, Changed, Request, dear_groups, forecast_added
from engine.mechanisms import Forecast, forecast
from engine.texts import amount
from engine.workload import Group, Workload
from pages.parts.shell import state
from pages.parts.shell.state import Studio
from pages.parts.shell.words import kept_for, plain, show_kept

MEMORY_LIMIT = 4e9  # bytes that planning may take
PATIENCE = 300.0  # seconds of planning from which on the page says what makes it so dear
LIVE = 3_000  # groups up to which new ones are forecast while a form is filled in
PLACE = "remedy"


def too_dear(expected: Forecast) -> bool:
    """Whether a forecast is beyond what a person would wait for."""
    return expected.seconds > PATIENCE or expected.memory > MEMORY_LIMIT


def words(expected: Forecast) -> str:
    """Time and memory of a forecast.

    >>> words(Forecast(seconds=9720.0, memory=5.76e9, text=""))
    'about 2.7 hours and up to 5.76 GB of memory'
    """
    return f"about {duration(expected.seconds)} and up to {amount(expected.memory / 1e9)} GB of memory"


def duration(seconds: float) -> str:
    """Time in words.

    >>> duration(0.2), duration(600), duration(7200)
    ('1 second', '10 minutes', '2.0 hours')
    """
    if seconds < 90:
        return f"{max(seconds, 1):.0f} second{'s' if seconds >= 1.5 else ''}"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"


def culprits(studio: Studio) -> None:
    """Name the groups that make a plan too dear, each with what can be done about it."""
    dear = _dear(studio.question, studio)
    for group in dear:
        asked = studio.asked.groups[group]
        st.markdown(f"**What makes it so dear is group {group}: {plain(_name(asked))}.**")
        st.caption(
            "A joint family is quick alone; together with other queries on its attributes all their cells have to be "
            "planned at once. Each button says what planning would take then."
            if any(len(part.axes) > 1 for part in asked.parts)
            else "Its attributes have too many cells to be planned at once. Each button says what planning would take."
        )
        _buttons([(label, studio.asking(made.request)) for label, made in _mended(studio, group)], f"group_{group}")
    if dear:
        show_kept(PLACE)


def before_adding(groups: Sequence[Group]) -> bool:
    """Say what planning will take with new groups, and what could be added instead; True when it is too much."""
    studio = state.current()
    if len(groups) + len(studio.asked.groups) > LIVE:
        return False
    try:
        expected = forecast_added(studio.request, groups)
    except EngineError as error:
        st.caption(plain(f"Planning could not start with it: {error}"))
        return True
    if not too_dear(expected):
        st.caption(plain(f"Planning it takes about {duration(expected.seconds)}."))
        return False
    if len(groups) > 1:
        st.warning(plain(f"Planning these together with the groups that are there takes {words(expected)}."), icon="⏳")
        return True
    st.warning(
        plain(
            f"With {_name(groups[0])} planning takes {words(expected)}: all its cells would have to be planned at "
            "once with what is asked of the same attributes already."
        ),
        icon="⏳",
    )
    asked = studio.asked
    whole = studio.asking(
        Request(
            workload=Workload(asked.schema, (*asked.groups, *groups)),
            budget=studio.budget,
            mechanism=studio.mechanism,
            options=studio.options,
        )
    )
    mended = [(label, made) for label, made in _mended(whole, len(asked.groups)) if made.group is not None]
    _buttons([(f"Add: {label}", studio.asking(made.request)) for label, made in mended], "new")
    show_kept(PLACE)
    return True


def _buttons(choices: Sequence[tuple[str, Studio]], name: str) -> None:
    with st.container(horizontal=True):
        for number, (label, changed) in enumerate(choices):
            st.button(label, on_click=_take, args=(changed,), key=f"remedy_{name}_{number}")


def _take(changed: Studio) -> None:
    with kept_for(PLACE):
        state.commit(changed, redraw=True)


@st.cache_resource(max_entries=8, show_spinner="Looking for what makes it so dear")
def _dear(question: str, _studio: Studio) -> tuple[int, ...]:
    return dear_groups(_studio.request, seconds=PATIENCE, memory=MEMORY_LIMIT)


def _mended(studio: Studio, group: int) -> list[tuple[str, Changed]]:
    """The remedies that apply to a group and make it cheaper, each with what planning takes then."""
    return _mendings(f"{group}|{studio.question}", studio, group)


@st.cache_resource(max_entries=16, show_spinner=False)
def _mendings(key: str, _studio: Studio, _group: int) -> list[tuple[str, Changed]]:
    found = []
    for remedy in REMEDIES:
        try:
            made = remedy.apply(_studio.request, _group, "")
            takes = forecast(made.request.workload, _studio.mechanism, **_studio.options)
        except NotApplicable:
            continue
        found.append((f"{remedy.label(_studio.request)} ({duration(takes.seconds)})", made))
    return found


def _name(group: Group) -> str:
    return f"{' × '.join(group.attributes)}, {group.family_text}"
