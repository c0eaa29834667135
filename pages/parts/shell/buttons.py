"""Clicks take what was chosen last: a value that is typed just before a button is pressed is in
what the button does.

Streamlit calls what a button was handed when it was drawn.  Who types a number and presses at once
has both on the way before the page was drawn with the number, and the old one would be taken,
without a word.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from pages.parts.shell import history
from pages.parts.shell.streamlit_internals import RerunException, field_values

Action = Callable[..., None]
PRESSED, DUE, OURS = (
    "pressed",
    "due",
    "only_here",
)  # a button whose values were old; what waits for the next drawing
AGAIN = (
    "Something was changed just before you pressed, so nothing was spent. Look at what is chosen,"
    " and press again."
)
PLAIN = (str, int, float, bool, type(None))
_DRAWN: ContextVar[dict[str, Any] | None] = ContextVar(
    "chosen_when_drawn", default=None
)  # one for a whole page


def button(
    label: str,
    action: Action,
    *args: Any,
    key: str,
    place: DeltaGenerator | None = None,
    disabled: bool = False,
    spends: bool = False,
    **looks: Any,
) -> None:
    """Draw a button that does the action with what it is given when all that was chosen is drawn.

    Where a value has changed since, the page is drawn first, and then the action takes what the
    button was given anew. A button that is ``disabled`` by then does nothing, and one that
    ``spends`` waits for another press.
    """
    drawn, cache = _DRAWN.get(), history.page_state()
    held = _chosen() if drawn is None else drawn
    if cache.get(PRESSED) == key:
        del cache[PRESSED]
        if spends:
            st.toast(AGAIN, icon="✋")
        elif not disabled:
            cache[DUE] = action, args
            st.rerun()

    def call() -> None:
        now = _chosen(key)
        if any(now.get(name, value) != value for name, value in held.items()):
            history.page_state()[PRESSED] = key
        else:
            history.page_state().pop(PRESSED, None)
            action(*args)

    draw = st.button if place is None else place.button
    draw(label, key=key, on_click=call, disabled=disabled, **looks)


@contextmanager
def run_pending() -> Iterator[None]:
    """Within, a page is drawn, and first of all done what a button is due to do, as Streamlit does.

    A button that is not drawn again has nothing to do any more, whenever it may come back.
    """
    if pending := history.page_state().pop(DUE, None):
        action, args = pending
        action(*args)
    held: dict[str, Any] = {}
    token, drawn = _DRAWN.set(held), True
    try:
        yield
    except RerunException:  # the page is drawn anew at once, and its button may stand further down
        drawn = False
        raise
    finally:
        _DRAWN.reset(token)
        held |= (
            _chosen()
        )  # once for all buttons; what a person changes from here on is new to each of them
        if drawn:
            history.page_state().pop(PRESSED, None)


def _chosen(but: str = OURS) -> dict[str, Any]:
    """What is chosen in all fields of the page, by their keys; read at once, which no other click
    interrupts.
    """
    values = {key: _plain(value) for key, value in field_values().items() if key not in (but, OURS)}
    return {key: value for key, value in values.items() if value is not None}


def _plain(value: Any) -> Any:
    """A value that can be compared; None for what no field holds."""
    if isinstance(value, PLAIN):
        return value
    if isinstance(value, (list, tuple)):
        return tuple(map(_plain, value))
    if isinstance(value, dict) and "edited_rows" in value:  # of a table that is edited
        return repr(value)
    return getattr(value, "file_id", None)
