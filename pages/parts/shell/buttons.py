"""Buttons that act on the latest values of all fields.

Streamlit calls a button with the arguments of its last draw.  If a number is typed just before the
click, both arrive before the page is redrawn, and the button would silently use the old number.
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
# keys of the page state: button clicked with outdated values; action for the next draw
PRESSED, DUE = "pressed", "due"
PAGE_STATE = "only_here"  # key of the page state itself
VALUES_CHANGED = (
    "A value changed just before your click. Nothing was spent. Check it and try again."
)
COMPARABLE = (str, int, float, bool, type(None))
# field values at the last draw, shared by all buttons of a page
_DRAWN: ContextVar[dict[str, Any] | None] = ContextVar("drawn_values", default=None)


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
    """Draw a button that calls the action with arguments from the latest field values.

    If a value has changed since the last draw, the page is redrawn first, and the action gets the
    new arguments. A button that is ``disabled`` after the redraw does nothing; one that ``spends``
    budget needs a second click.
    """
    drawn, cache = _DRAWN.get(), history.page_state()
    values = _field_values() if drawn is None else drawn
    if cache.get(PRESSED) == key:
        del cache[PRESSED]
        if spends:
            st.toast(VALUES_CHANGED, icon="✋")
        elif not disabled:
            cache[DUE] = action, args
            st.rerun()

    def call() -> None:
        now = _field_values(key)
        if any(now.get(name, value) != value for name, value in values.items()):
            history.page_state()[PRESSED] = key
        else:
            history.page_state().pop(PRESSED, None)
            action(*args)

    draw = st.button if place is None else place.button
    draw(label, key=key, on_click=call, disabled=disabled, **looks)


@contextmanager
def run_pending() -> Iterator[None]:
    """Call the postponed action of a button, then draw a page in the `with` statement.

    A postponed action is dropped if its button is not redrawn.
    """
    if pending := history.page_state().pop(DUE, None):
        action, args = pending
        action(*args)
    values: dict[str, Any] = {}
    token, is_complete = _DRAWN.set(values), True
    try:
        yield
    except RerunException:  # the page is redrawn, and the button may follow
        is_complete = False
        raise
    finally:
        _DRAWN.reset(token)
        # once for all buttons; later changes count as new for each of them
        values |= _field_values()
        if is_complete:
            history.page_state().pop(PRESSED, None)


def _field_values(except_key: str = PAGE_STATE) -> dict[str, Any]:
    """Return the values of all fields by key, read in one step so that no click interrupts."""
    values = {
        key: _comparable(value)
        for key, value in field_values().items()
        if key not in (except_key, PAGE_STATE)
    }
    return {key: value for key, value in values.items() if value is not None}


def _comparable(value: Any) -> Any:
    """Return a value that can be compared; None if it is not the value of a field."""
    if isinstance(value, COMPARABLE):
        return value
    if isinstance(value, (list, tuple)):
        return tuple(map(_comparable, value))
    if isinstance(value, dict) and "edited_rows" in value:  # data editor
        return repr(value)
    return getattr(value, "file_id", None)
