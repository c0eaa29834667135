"""The lesson and its choices in the URL, so that users can share them and go back.

`?lesson=strategies&cells=32` is the lesson on strategies with 32 cells; default values are omitted.
The page reads the URL when it is opened, and after the browser's back or forward button. Whenever
it is drawn, it writes its choices to the URL.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import streamlit as st

from pages.parts.lessons.lesson import COURSE
from pages.parts.shell import history, permalink
from pages.parts.shell.streamlit_internals import is_history_navigation

# URL parameters, and session state keys of the same choices
LESSON, TAB = "lesson", "lesson"  # name of the lesson
MINUTES, MINUTES_KEY = "minutes", "learn_minutes"  # duration of the path
CHOSEN = "learn_chosen"  # session state key of the mapping that `_chosen` describes
SEED = "seed"  # URL parameter
DEFAULT_SEED, MAX_SEED = 0, 999_999


def follow(
    names: Sequence[str], *, numbered: Sequence[str], paths: Mapping[int, Sequence[str]]
) -> list[str]:
    """Read the lesson and its choices from the URL when the page opens, or after the back button.

    Returns sentences that state whether lesson, path or seed in the URL was not valid, and what
    is shown instead. The forward button has the same effect as the back button.

    Parameters
    ----------
    names : names of all lessons; the first is the default.
    numbered : names of the lessons that older URLs call 1, 2, ..., in this order.
    paths : maps the duration of a path in minutes to the names of its lessons; the first path is
        the default.
    """
    cache, is_back = history.page_state(), is_history_navigation()
    cache["url_choices"] = None
    # The URL is read when the page opens. Later the page itself writes it.
    if "entered" in cache and not is_back:
        return []
    choices = {name: text for name, text in st.query_params.items() if name not in permalink.OURS}
    cache["entered"] = True
    if not choices and not is_back:
        return []
    changes = []
    name = choices.pop(LESSON, names[0])
    if name.isdecimal() and 1 <= int(name) <= len(numbered):
        name = numbered[int(name) - 1]
    if name not in names:
        name = names[0]
        changes.append("The address names a lesson that does not exist; the first one opened.")
    default_minutes = next(iter(paths))
    minutes_text = choices.pop(MINUTES, str(default_minutes))
    minutes = {str(duration): duration for duration in paths}.get(minutes_text)
    if minutes is None:
        minutes = default_minutes
        changes.append(
            f"There is no path of that many minutes; the path of {minutes} minutes opened."
        )
    elif name not in paths[minutes]:
        minutes = default_minutes
        changes.append(
            f"The path in the address does not have this lesson; the path of {minutes} minutes"
            " opened."
        )
    if SEED in choices and _seed_number(choices[SEED]) is None:
        changes.append("The seed in the address is not valid; the default noise is shown.")
    st.session_state[TAB] = name
    st.session_state[MINUTES_KEY] = minutes
    st.session_state[COURSE] = choices.pop(COURSE, "") == "1"
    cache["url_choices"] = (name, choices)
    return changes


def keep(lesson: str, *, default_minutes: int) -> None:
    """Write the lesson, and all its choices and settings that are not defaults, into the URL."""
    parameters = shared_parameters(lesson, default_minutes=default_minutes)
    if st.session_state.get(COURSE, False):
        parameters[COURSE] = "1"
    now = dict(st.query_params)
    if {name: text for name, text in now.items() if name not in permalink.OURS} != parameters:
        st.query_params.from_dict(
            {name: now[name] for name in permalink.OURS if name in now} | parameters
        )


def shared_parameters(lesson: str, *, default_minutes: int) -> dict[str, str]:
    """Return the URL parameters of the lesson, its choices and the path; not course mode and plan."""
    parameters = {LESSON: lesson} | {
        name: text for name, (_, text) in _chosen(lesson).items() if text
    }
    if (minutes := st.session_state.get(MINUTES_KEY, default_minutes)) != default_minutes:
        parameters[MINUTES] = str(minutes)
    return parameters


def dial(
    draw: Callable[..., Any],
    label: str,
    options: Sequence[Any],
    *,
    of: str,
    name: str,
    default: Any,
    **more: Any,
) -> Any:
    """Draw a widget of a lesson; return its choice, which is also stored in session and URL.

    Parameters
    ----------
    draw : function that draws the widget from label and options, such as ``st.radio``.
    of : name of the lesson.
    name : URL parameter.
    default : choice if neither the URL nor the session has a valid one; a list if the user can
        choose several options.
    more : further arguments of the widget.
    """
    key = f"{of}_{name}"
    choices = _chosen(of)
    is_list = isinstance(default, list)
    url_choices = history.page_state().get("url_choices")
    # A URL that was just opened sets the choice. Otherwise the widget keeps its choice, unless the
    # widget is shown for the first time, or its choice is no longer among the options.
    if url_choices is not None and url_choices[0] == of:
        st.session_state[key] = _read(url_choices[1].get(name), options, default)
    elif key not in st.session_state or (not is_list and st.session_state[key] not in options):
        previous = choices[name][0] if name in choices else default
        st.session_state[key] = previous if is_list or previous in options else default
    value = draw(label, options, key=key, **more)
    choices[name] = (value, "" if value == default else _text(value))
    return value


def present_number(of: str, name: str) -> float | None:
    """Return the number in the URL if a URL was just opened; otherwise the user's last choice.

    Returns None if this value is missing or not a number.
    """
    url_choices = history.page_state().get("url_choices")
    if url_choices is not None and url_choices[0] == of:
        try:
            return float(url_choices[1].get(name, ""))
        except ValueError:
            return None
    choice = st.session_state.get(f"{of}_{name}", _chosen(of).get(name, (None, ""))[0])
    return float(choice) if isinstance(choice, (int, float)) else None


def seed(of: str) -> int:
    """Return the seed of the noise of a lesson, which is stored in the session and the URL.

    It is `DEFAULT_SEED` until the user draws new noise or opens a URL with a seed, so that all
    students of a course see the same numbers.
    """
    choices = _chosen(of)
    url_choices = history.page_state().get("url_choices")
    if url_choices is not None and url_choices[0] == of:
        number = _seed_number(url_choices[1].get(SEED, ""))
        choices[SEED] = _seed_choice(DEFAULT_SEED if number is None else number)
    value: int = choices.setdefault(SEED, _seed_choice(DEFAULT_SEED))[0]
    return value


def renew_seed(of: str) -> None:
    """Choose a new seed for the noise of a lesson."""
    _chosen(of)[SEED] = _seed_choice(1 + secrets.randbelow(MAX_SEED))


def _seed_number(text: str) -> int | None:
    """Return the seed in a text of the URL; None if it is not valid."""
    is_valid = text.isascii() and text.isdecimal() and len(text) <= len(str(MAX_SEED))
    return int(text) if is_valid else None


def _seed_choice(value: int) -> tuple[int, str]:
    """Return a seed and its text in the URL, which is empty for the default."""
    return value, "" if value == DEFAULT_SEED else str(value)


def set_dial(of: str, name: str, value: Any) -> None:
    """Set the choice of a widget from a button."""
    st.session_state[f"{of}_{name}"] = value


def all_choices() -> dict[str, dict[str, Any]]:
    """Return the present choices of the user: by lesson, a mapping from URL parameters to values.

    The seed of the noise is one of them.
    """
    choices: dict[str, dict[str, tuple[Any, str]]] = st.session_state.get(CHOSEN, {})
    return {
        lesson: {name: value for name, (value, _) in by_name.items()}
        for lesson, by_name in choices.items()
    }


def _chosen(lesson: str) -> dict[str, tuple[Any, str]]:
    """Return a mapping from URL parameters of a lesson to pairs (choice, its text in the URL).

    The text is empty if the choice is the default, because the URL then omits it.
    """
    choices: dict[str, dict[str, tuple[Any, str]]] = st.session_state.setdefault(CHOSEN, {})
    return choices.setdefault(lesson, {})


def _text(value: Any) -> str:
    """Return a choice as text for the URL; a list of choices is joined by dots, or "none" if empty."""
    return ".".join(map(str, value)) or "none" if isinstance(value, list) else str(value)


def _read(text: str | None, options: Sequence[Any], default: Any) -> Any:
    """Return the choice for a text in the URL; the default if the text is missing or invalid.

    If several options can be chosen, invalid parts of the text are left out instead.
    """
    by_text: Mapping[str, Any] = {str(option): option for option in options}
    if text is not None and isinstance(default, list):
        return [by_text[part] for part in text.split(".") if part in by_text]
    return by_text.get(text or "", default)
