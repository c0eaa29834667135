"""Text for the screen: engine messages and public names shown as they are, never as markup."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import streamlit as st

from engine._format import translate_arguments
from engine.errors import EngineError

_ADDRESS = re.compile(r"://|www\.|\w@")
_MARKUP = re.compile(r"([\\`*_{}\[\]()<>#+!|~$:&-])")

# Python argument -> the field of the app; an argument that has no field is described
LABELS = {
    "SheetFile": "“Sheet of the workbook”",
    "centers=uniform": "“How totals are passed down: evenly, as in the paper”",
    "centers=tuned": "“How totals are passed down: tuned to the workload”",
    "centers": "“How totals are passed down: {}”",
    "clip": "“clip”",
    "count_column": "“A column holds the number of records in each row: {}”",
    "doubtful_cv": "“Publishable up to (CV %)”",
    "fit=scale": "the same plan at another budget",
    "fit": "“Tables are: {}”",
    "ignore": "“Leave it out: {}”",
    "integer=True": "“Whole people”",
    "max_records": "the largest number of records of the plan",
    "memory_limit": "the memory limit of the server",
    "missing": "“missing”",
    "neighbours=add_remove": "“Nobody can tell whether a person is in the data or not”",
    "neighbours=replace_one": "“Nobody can tell whether a person has these values or any others”",
    "neighbours": "“Nobody can tell whether a person: {}”",
    "on_changed": "“If these are other records than those looked at, charge this step alone”",
    "on_refused=drop": "a smaller file",
    "on_refused": "the treatment of refused rows",
    "other": "“other”",
    "rehearsal=False": "the step “2. Release”",
    "rehearsal=True": "the step “1. Rehearse”",
    "rows_per_person": "“Most rows of one person: {}”",
    "split_by_person=True": "the command counts merge",
    "split_by_person": "the command counts merge",
    "suppressed_cv": "“Doubtful up to (CV %)”",
    "time_limit": "the time limit of the search",
}


def in_labels(message: object) -> str:
    """Return the text of a message or an error with the labels of the app instead of Python
    arguments.

    >>> in_labels("Plan for rows_per_person=3, or correct rows_per_person.")
    'Plan for “Most rows of one person: 3”, or correct “Most rows of one person”.'
    """
    return translate_arguments(str(message), LABELS, ", ".join)


def escape_markdown(text: str) -> str:
    r"""Text for a place that reads Markdown, with every mark escaped: a name can then draw no
    picture and no link.

    A word joiner, which is not seen, stops bare addresses from becoming links.

    >>> escape_markdown("a*b ![x](y)")
    'a\\*b \\!\\[x\\]\\(y\\)'
    """
    text = _ADDRESS.sub(
        lambda found: f"{found[0][:-1]}\u2060{found[0][-1]}", " ".join(text.split())
    )
    return _MARKUP.sub(r"\\\1", text)


def show_error(message: str) -> None:
    """Show a message of the engine."""
    st.error(escape_markdown(in_labels(message)), icon="⚠️")


def error_text(error: Exception) -> str:
    """The message of an engine error, or what to do when memory ran out unforeseen."""
    if isinstance(error, EngineError):
        return in_labels(error)
    return (
        "This needs more memory than there is. Use attributes with fewer cells, or ask fewer"
        " queries at once."
    )


@contextmanager
def show_errors() -> Iterator[None]:
    """Show an engine error at the place where it happens while the page is drawn."""
    try:
        yield
    except (EngineError, MemoryError) as error:
        show_error(error_text(error))


@contextmanager
def deferred_errors(place: str) -> Iterator[None]:
    """Keep an engine error of a callback for `show_deferred_error` at the same place; success
    clears it.
    """
    messages = st.session_state.setdefault("trouble", {})
    messages.pop(place, None)
    try:
        yield
    except (EngineError, MemoryError) as error:
        messages[place] = error_text(error)


def show_deferred_error(place: str) -> None:
    """Show the error that the last callback of this place left, if any."""
    if message := st.session_state.get("trouble", {}).get(place):
        show_error(message)
