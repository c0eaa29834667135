"""URL state of the lessons, for sharing and the browser's back button.

`?lesson=3&cells=32` is lesson 3 with 32 cells; default values are omitted.  The page reads the URL
when it is opened and after back or forward, and writes it otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import streamlit as st

from pages.parts.shell import history, permalink
from pages.parts.shell.streamlit_internals import is_history_navigation

LESSON, TAB = "lesson", "lesson"  # URL parameter, and session key of the open tab
CHOSEN = "learn_chosen"  # session key: lesson -> URL parameter -> choice


def follow(tabs: Sequence[str], names: Sequence[str]) -> None:
    """Read lesson and choices from a new URL; other choices stay."""
    cache, back = history.page_state(), is_history_navigation()
    cache["url_choices"] = None
    if "entered" in cache and not back:
        return
    choices = {name: text for name, text in st.query_params.items() if name not in permalink.OURS}
    cache["entered"] = True
    if not choices and not back:
        return
    number = choices.pop(LESSON, "1")
    place = int(number) - 1 if number.isdecimal() and 1 <= int(number) <= len(tabs) else 0
    st.session_state[TAB] = tabs[place]
    cache["url_choices"] = (names[place], choices)


def keep(number: int, lesson: str) -> None:
    """Write the lesson and its choices other than defaults into the URL."""
    parameters = {LESSON: str(number)} | {
        name: text for name, (_, text) in _chosen(lesson).items() if text
    }
    now = dict(st.query_params)
    if {name: text for name, text in now.items() if name not in permalink.OURS} != parameters:
        st.query_params.from_dict(
            {name: now[name] for name in permalink.OURS if name in now} | parameters
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
    """Draw a widget whose choice is in the URL and survives other pages; return the choice.

    Parameters
    ----------
    of : name of the lesson.
    name : URL parameter.
    always : include the default value in the URL.
    """
    key, chosen, many = f"{of}_{name}", _chosen(of), isinstance(default, list)
    url_choices = history.page_state().get("url_choices")
    if url_choices is not None and url_choices[0] == of:
        st.session_state[key] = _read(url_choices[1].get(name), options, default)
    elif key not in st.session_state or (not many and st.session_state[key] not in options):
        before = chosen[name][0] if name in chosen else default
        st.session_state[key] = before if many or before in options else default
    value = draw(label, options, key=key, **more)
    chosen[name] = (value, "" if value == default and not always else _text(value))
    return value


def set_dial(of: str, name: str, value: Any) -> None:
    """Set the choice of a widget from a button."""
    st.session_state[f"{of}_{name}"] = value


def _chosen(lesson: str) -> dict[str, tuple[Any, str]]:
    choices: dict[str, dict[str, tuple[Any, str]]] = st.session_state.setdefault(CHOSEN, {})
    return choices.setdefault(lesson, {})


def _text(value: Any) -> str:
    return ".".join(map(str, value)) or "none" if isinstance(value, list) else str(value)


def _read(text: str | None, options: Sequence[Any], default: Any) -> Any:
    """Choice of a text in the URL; the default if the text is invalid."""
    by_text: Mapping[str, Any] = {str(option): option for option in options}
    if text is not None and isinstance(default, list):
        return [by_text[part] for part in text.split(".") if part in by_text]
    return by_text.get(text or "", default)
