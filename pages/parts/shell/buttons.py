"""Buttons that use the latest values of all fields.

Streamlit calls the action of a button with the arguments from the time the page was drawn. If the
user types a number and clicks the button at once, both arrive before the page is redrawn, and the
action would silently use the old number.
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
PRESSED = "pressed"  # page state: key of a button that was clicked with outdated values
DUE = "due"  # page state: action and new arguments, called first at the next draw of the page
PAGE_STATE = "only_here"  # session state key of the page state
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
    """Draw a button that calls an action with arguments from the latest field values.

    If a value has changed since the page was drawn, the page is redrawn first, and the action is
    called with the new arguments, unless the button is then disabled.

    Parameters
    ----------
    args : arguments of the action.
    place : container in which the button is drawn.
    spends : whether the action spends budget. After a changed value it then needs a second click.
    looks : further arguments of `st.button`.
    """
    page_values, cache = _DRAWN.get(), history.page_state()
    values = _field_values() if page_values is None else page_values
    if cache.get(PRESSED) == key:  # clicked with outdated values; all fields are drawn again now
        del cache[PRESSED]
        if spends:
            st.toast(VALUES_CHANGED, icon="✋")
        elif not disabled:
            cache[DUE] = action, args
            st.rerun()

    def call() -> None:
        latest = _field_values(key)
        if any(latest.get(name, value) != value for name, value in values.items()):
            history.page_state()[PRESSED] = key
        else:
            history.page_state().pop(PRESSED, None)
            action(*args)

    draw = st.button if place is None else place.button
    draw(label, key=key, on_click=call, disabled=disabled, **looks)


@contextmanager
def run_pending() -> Iterator[None]:
    """Call the postponed action of a button, if any, before the page in the `with` block is drawn.

    At the end of the block, the values of all fields are stored for comparison at the next click.
    """
    if pending := history.page_state().pop(DUE, None):
        action, args = pending
        action(*args)
    values: dict[str, Any] = {}
    token, is_complete = _DRAWN.set(values), True
    try:
        yield
    except RerunException:  # the page ends early, possibly before the clicked button
        is_complete = False
        raise
    finally:
        _DRAWN.reset(token)
        # the buttons of the page have a reference to this dictionary; only now are all fields drawn
        values |= _field_values()
        if is_complete:
            history.page_state().pop(PRESSED, None)


def _field_values(except_key: str = PAGE_STATE) -> dict[str, Any]:
    """Return a mapping from the key of each field to its value in comparable form.

    Fields without a comparable value, and the field `except_key`, are left out.
    """
    values = {
        key: _comparable(value)
        for key, value in field_values().items()
        if key not in (except_key, PAGE_STATE)
    }
    return {key: value for key, value in values.items() if value is not None}


def _comparable(value: Any) -> Any:
    """Return a value by which two values of a field can be compared; None for other types.

    A list becomes a tuple, an edited grid a text, and an uploaded file its id.
    """
    if isinstance(value, COMPARABLE):
        return value
    if isinstance(value, (list, tuple)):
        return tuple(map(_comparable, value))
    if isinstance(value, dict) and "edited_rows" in value:  # data editor
        return repr(value)
    return getattr(value, "file_id", None)
