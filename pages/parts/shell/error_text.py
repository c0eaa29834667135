"""Messages of the engine on screen: with the labels of the app, and escaped for Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import streamlit as st

from engine._format import translate_arguments
from engine.errors import EngineError

_ADDRESS = re.compile(r"://|www\.|\w@")
_MARKUP = re.compile(r"([\\`*_{}\[\]()<>#+!|~$:&-])")

# Python argument, argument=value or class in engine messages -> label of its field in the app, or
# a description. {} in a label is replaced by the value.
LABELS = {
    "SheetFile": "“Sheet of the workbook”",
    "centers=uniform": "“Split of totals: standard (uniform), as in the paper”",
    "centers=tuned": "“Split of totals: tuned to the workload”",
    "centers": "“Split of totals: {}”",
    "clip": "“clip”",
    "count_column": "“Yes, counts of records: {}”",
    "doubtful_cv": "“Maximum CV to publish (%)”",
    "fit=scale": "the same plan at another budget",
    "fit": "“Smoothing: {}”",
    "ignore": "“Yes, ignore it: {}”",
    "integer=True": "“Integer counts”",
    "max_records": "“Maximum number of records (public)”",
    "memory_limit": "the memory limit of the server",
    "missing": "“missing”",
    "neighbours=add_remove": "“Protect: a person's presence”",
    "neighbours=replace_one": "“Protect: a person's values”",
    "neighbours": "“Protect: {}”",
    "objective": "the objective {}",
    "on_changed": "“The records have changed since the first measurement: charge this step separately”",
    "on_refused=drop": "a smaller file",
    "on_refused": "the treatment of refused rows",
    "other": "“other”",
    "overwrite=True": "the field that confirms the replacement",
    "rehearsal=False": "the step “4. Confirm”",
    "rehearsal=True": "the step “1. Rehearse”",
    "rows_per_person": "“Maximum rows per person: {}”",
    "split_by_person=True": "the command counts merge",
    "split_by_person": "the command counts merge",
    "suppressed_cv": "“Maximum CV with a warning (%)”",
    "time_limit": "“Time limit per mechanism (s): {}”",
}


def in_labels(message: object) -> str:
    """Replace Python arguments in a message by the labels of their fields in the app.

    >>> in_labels("Plan for rows_per_person=3, or correct rows_per_person.")
    'Plan for “Maximum rows per person: 3”, or correct “Maximum rows per person”.'
    """
    return translate_arguments(str(message), LABELS, ", ".join)


def escape_markdown(text: str) -> str:
    r"""Escape text for Markdown, so that a name cannot draw a picture or a link.

    An invisible word joiner stops bare addresses from becoming links.

    >>> escape_markdown("a*b ![x](y)")
    'a\\*b \\!\\[x\\]\\(y\\)'
    """
    text = _ADDRESS.sub(
        lambda match: f"{match[0][:-1]}\u2060{match[0][-1]}", " ".join(text.split())
    )
    return _MARKUP.sub(r"\\\1", text)


def show_error(message: str) -> None:
    """Show an error message of the engine."""
    st.error(escape_markdown(in_labels(message)), icon="⚠️")


def error_text(error: Exception) -> str:
    """Return the message of an engine error with the labels of the app, or advice for MemoryError."""
    if isinstance(error, EngineError):
        return in_labels(error)
    return (
        "This needs more memory than the server has. Use attributes with fewer cells, or fewer"
        " queries."
    )


@contextmanager
def show_errors() -> Iterator[None]:
    """Show an engine error or MemoryError that occurs while the page is drawn."""
    try:
        yield
    except (EngineError, MemoryError) as error:
        show_error(error_text(error))


@contextmanager
def deferred_errors(place: str) -> Iterator[None]:
    """Store the message of an engine error or MemoryError that a callback raises.

    The page shows the message by `show_deferred_error`. `place` is the key of the message. If no
    error occurs, the last message of the key is removed.
    """
    messages = st.session_state.setdefault("trouble", {})
    messages.pop(place, None)
    try:
        yield
    except (EngineError, MemoryError) as error:
        messages[place] = error_text(error)


def deferred_error(place: str) -> str:
    """Return the error that `deferred_errors` stored under this key; empty if there is none."""
    message: str = st.session_state.get("trouble", {}).get(place, "")
    return message


def clear_deferred_error(place: str) -> None:
    """Remove the error that `deferred_errors` stored under this key, if any."""
    st.session_state.get("trouble", {}).pop(place, None)


def show_deferred_error(place: str) -> None:
    """Show the error that `deferred_errors` stored under this key, if any."""
    if message := deferred_error(place):
        show_error(message)
