"""The address of a lesson: which one, and what is chosen in it, so that it can be handed on and the
back button works.

`?lesson=3&cells=32` is lesson 3 with 32 cells; what is as it was at first is not said.  The address
is followed when the page is entered and when the browser goes back or forth; at all other times it
follows the page.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import streamlit as st

from pages.parts.shell import history, permalink
from pages.parts.shell.streamlit_internals import is_history_navigation

LESSON, TAB = "lesson", "lesson"  # the name in the address, and the state that holds the open tab
CHOSEN = "learn_chosen"  # name of the lesson -> name in the address -> what is chosen


def follow(tabs: Sequence[str], names: Sequence[str]) -> None:
    """Take lesson and choices from the address when it is new to the page; what it does not say
    stays.
    """
    cache, back = history.page_state(), is_history_navigation()
    cache["said"] = None
    if "entered" in cache and not back:
        return
    said = {name: text for name, text in st.query_params.items() if name not in permalink.OURS}
    cache["entered"] = True
    if not said and not back:
        return
    number = said.pop(LESSON, "1")
    place = int(number) - 1 if number.isdecimal() and 1 <= int(number) <= len(tabs) else 0
    st.session_state[TAB] = tabs[place]
    cache["said"] = (names[place], said)


def keep(number: int, lesson: str) -> None:
    """Write the lesson and what differs from its first choices into the address."""
    wanted = {LESSON: str(number)} | {
        name: text for name, (_, text) in _chosen(lesson).items() if text
    }
    now = dict(st.query_params)
    if {name: text for name, text in now.items() if name not in permalink.OURS} != wanted:
        st.query_params.from_dict(
            {name: now[name] for name in permalink.OURS if name in now} | wanted
        )


def dial(
    draw: Callable[..., Any],
    label: str,
    options: Sequence[Any],
    *,
    of: str,
    name: str,
    default: Any,
    always: bool = False,
    **more: Any,
) -> Any:
    """Draw a widget that chooses from options, or several of them, and that the address names;
    return the choice.

    ``of`` is the name of the lesson, ``name`` that in the address, which holds the choice where it
    is not the default, or ``always``.  What was chosen is there again after another lesson or page
    was looked at.
    """
    key, chosen, many = f"{of}_{name}", _chosen(of), isinstance(default, list)
    said = history.page_state().get("said")
    if said is not None and said[0] == of:
        st.session_state[key] = _read(said[1].get(name), options, default)
    elif key not in st.session_state or (not many and st.session_state[key] not in options):
        before = chosen[name][0] if name in chosen else default
        st.session_state[key] = before if many or before in options else default
    value = draw(label, options, key=key, **more)
    chosen[name] = (value, "" if value == default and not always else _text(value))
    return value


def set_dial(of: str, name: str, value: Any) -> None:
    """Choose for a person who pressed a button."""
    st.session_state[f"{of}_{name}"] = value


def _chosen(lesson: str) -> dict[str, tuple[Any, str]]:
    choices: dict[str, dict[str, tuple[Any, str]]] = st.session_state.setdefault(CHOSEN, {})
    return choices.setdefault(lesson, {})


def _text(value: Any) -> str:
    return ".".join(map(str, value)) or "none" if isinstance(value, list) else str(value)


def _read(text: str | None, options: Sequence[Any], default: Any) -> Any:
    """What a text of the address chooses; the first choice where it chooses nothing that there is."""
    by_text: Mapping[str, Any] = {str(option): option for option in options}
    if text is not None and isinstance(default, list):
        return [by_text[part] for part in text.split(".") if part in by_text]
    return by_text.get(text or "", default)
