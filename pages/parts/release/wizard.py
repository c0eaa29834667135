"""Wizard: one tab per step, buttons between the steps, and a result page in place of the tabs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import streamlit as st

from pages.parts.shell import buttons, figure_view, history, session_restore
from pages.parts.shell.error_text import escape_markdown

REHEARSE = "1. Rehearse"  # title of the first step of the page Release


def draw(steps: Mapping[str, Callable[[], Any]], *, key: str) -> Any:
    """Draw one tab per step; return the result of the open step.

    ``steps`` maps the title of each step to the function that draws it. ``key`` is the session key
    of the title of the open step.
    """
    return figure_view.tabs(steps, key=key)


def current(steps: Mapping[str, Any], *, key: str) -> str:
    """Return the title of the step that `draw` opens."""
    form = st.session_state
    title = form.get(key) or form.get(figure_view.OPEN, {}).get(key)
    return title if title in steps else next(iter(steps))


def open_step(key: str, title: str) -> None:
    """Open a step of the wizard; for use as a callback."""
    st.session_state[key] = title


def next_button(
    title: str,
    *,
    key: str,
    reason: str = "",
    is_primary: bool = True,
    start: Callable[[], object] = lambda: None,
) -> None:
    """Draw the button that opens the step ``title``.

    Parameters
    ----------
    reason : what is missing before that step, as the end of a sentence; the button is then
        disabled. Empty if nothing is missing.
    is_primary : whether it is the main button.
    start : called after the step was opened.
    """

    def open_and_start() -> None:
        open_step(key, title)
        start()

    with st.container(horizontal=True, vertical_alignment="center"):
        buttons.button(
            f"Next: {title.partition('. ')[2]}",
            open_and_start,
            key=f"{key}_next",
            type="primary" if is_primary else "secondary",
            disabled=bool(reason),
        )
        if reason:
            st.caption(escape_markdown(f"To continue, {reason}"), width="content")


def missing(reason: str, title: str, *, key: str) -> None:
    """Draw what is missing for the open step, and a button to the step ``title`` that provides it.

    ``reason`` is what is missing, as the end of a sentence.
    """
    st.info(escape_markdown(f"To continue, {reason}"), icon="↩️")
    back_button(title, key=key)


def back_button(title: str, *, key: str) -> None:
    """Draw the button that goes back to the step ``title``."""
    buttons.button(f"Back to {title.partition('. ')[2]}", open_step, key, title, key=f"{key}_back")


def note_start(name: str, key: str) -> None:
    """Store that this session started the release with this key, for `was_started`.

    ``name`` is the name of the wizard: "release", or "coarse" for two-stage releases.
    """
    st.session_state[f"{name}_started"] = key


def was_started(name: str, key: str) -> bool:
    """Return whether this session started the release and has not yet shown its result."""
    return bool(st.session_state.get(f"{name}_started") == key)


def open_result(name: str, key: str) -> None:
    """Open the result page of a release; for use as a callback."""
    form = st.session_state
    form[f"{name}_open"], form[f"{name}_request"] = key, _request_digest()
    form[f"{name}_started"] = ""


def open_release_key(name: str) -> str:
    """Return the key of the release whose result page is open; empty if none is.

    A change of the request (schema, workload, budget or mechanism) closes the result page.
    """
    form = st.session_state
    key: str = form.get(f"{name}_open", "")
    if key and form.get(f"{name}_request") != _request_digest():
        key = form[f"{name}_open"] = ""
    return key


def close_result(name: str, step_key: str, title: str, starts: tuple[str, ...] = ()) -> None:
    """Close the result page and open a step of the wizard; for use as a callback.

    Parameters
    ----------
    name : the session state ``{name}_open`` contains the key of the result that is open.
    step_key : key of the session state with the title of the open step.
    title : title of the step to open.
    starts : starts of keys; the values of the session with such keys are removed first.
    """
    if starts:
        session_restore.clear(starts)
    st.session_state[f"{name}_open"], st.session_state[step_key] = "", title


def result_header(
    title: str,
    steps: Mapping[str, str],
    *,
    name: str,
    step_key: str,
    anew: tuple[str, ...] = (),
) -> None:
    """Draw the title of a result page, and buttons that lead back to steps of the wizard.

    Parameters
    ----------
    steps : labels of the buttons, each with the title of the step that it opens.
    name, step_key : see `close_result`.
    anew : starts of keys; the first button removes the values of the session with such keys.
    """
    with st.container(horizontal=True, vertical_alignment="center"):
        st.header(escape_markdown(title), anchor=False, width="content")
        for number, (label, step) in enumerate(steps.items()):
            starts = anew if number == 0 else ()
            key = f"{name}_leave_{number}"
            buttons.button(label, close_result, name, step_key, step, starts, key=key)


def _request_digest() -> str:
    return hashlib.sha256(history.current().to_json().encode()).hexdigest()[:16]
