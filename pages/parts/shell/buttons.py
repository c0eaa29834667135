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
from pages.parts.shell.streamlit_internals import RerunException, as_callback, field_values

Action = Callable[..., None]
PRESSED = "pressed"  # page state: key of the button that was clicked with outdated values
DUE = "due"  # page state: postponed action with its new arguments, called by `run_pending`
PAGE_STATE = "only_here"  # session state key of the page state
VALUES_CHANGED = (
    "A value changed just before your click. Nothing was spent. Check it and try again."
)
COMPARABLE = (str, int, float, bool, type(None))
# Values of all fields when the page was displayed. All buttons of the page refer to this
# dictionary.
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
    """Draw a button that calls an action with arguments computed from the latest field values.

    If the user changed a field after the page was drawn, a click first redraws the page. After this
    redraw, the action is called with the new arguments, unless the button is now disabled.

    Parameters
    ----------
    args : arguments of the action.
    place : container in which the button is drawn.
    spends : whether the action spends budget. Such an action is not called if a field was changed,
        so the user has to click again.
    looks : further arguments of `st.button`.
    """
    page_values, cache = _DRAWN.get(), history.page_state()
    values = _field_values() if page_values is None else page_values
    # The user clicked this button after changing a field. This run has shown the fields with the
    # new values, so ``args`` were computed from the new values.
    if cache.get(PRESSED) == key:
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
        with as_callback():
            action(*args)
    values: dict[str, Any] = {}
    token, is_complete = _DRAWN.set(values), True
    try:
        yield
    except RerunException:  # the page ended early, possibly before it drew the clicked button
        is_complete = False
        raise
    finally:
        _DRAWN.reset(token)
        # The buttons of the page refer to this dictionary. It is filled here, because the page may
        # create fields after the button that refers to them.
        values |= _field_values()
        if is_complete:
            history.page_state().pop(PRESSED, None)


def _field_values(except_key: str = PAGE_STATE) -> dict[str, Any]:
    """Return a mapping from the key of each field to its value, see `_comparable`.

    The field ``except_key`` and fields without a comparable value are omitted.
    """
    values = {
        key: _comparable(value)
        for key, value in field_values().items()
        if key not in (except_key, PAGE_STATE)
    }
    return {key: value for key, value in values.items() if value is not None}


def _comparable(value: Any) -> Any:
    """Return a value that differs if the user changed the field; None for an unknown type.

    Texts, numbers and flags are returned as they are, a list as a tuple, the edits of a grid as
    text, and an uploaded file as its id.
    """
    if isinstance(value, COMPARABLE):
        return value
    if isinstance(value, (list, tuple)):
        return tuple(map(_comparable, value))
    if isinstance(value, dict) and "edited_rows" in value:  # data editor
        return repr(value)
    return getattr(value, "file_id", None)
