"""Text for the screen: engine messages and public names shown as they are, never as markup."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import streamlit as st

from engine.errors import EngineError

_ADDRESS = re.compile(r"://|www\.|\w@")
_MARKUP = re.compile(r"([\\`*_{}\[\]()<>#+!|~$:&-])")


def plain(text: str) -> str:
    r"""Text for a place that reads Markdown, with every mark escaped: a name can then draw no picture and no link.

    A word joiner, which is not seen, stops bare addresses from becoming links.

    >>> plain("a*b ![x](y)")
    'a\\*b \\!\\[x\\]\\(y\\)'
    """
    text = _ADDRESS.sub(lambda found: f"{found[0][:-1]}\u2060{found[0][-1]}", " ".join(text.split()))
    return _MARKUP.sub(r"\\\1", text)


def trouble(message: str) -> None:
    """Show a message of the engine."""
    st.error(plain(message), icon="⚠️")


def words_of(error: Exception) -> str:
    """The message of an engine error, or what to do when memory ran out unforeseen."""
    if isinstance(error, EngineError):
        return str(error)
    return "This needs more memory than there is. Use attributes with fewer cells, or ask fewer queries at once."


@contextmanager
def shown_here() -> Iterator[None]:
    """Show an engine error at the place where it happens while the page is drawn."""
    try:
        yield
    except (EngineError, MemoryError) as error:
        trouble(words_of(error))


@contextmanager
def kept_for(place: str) -> Iterator[None]:
    """Keep an engine error of a callback for `show_kept` at the same place; success clears it."""
    kept = st.session_state.setdefault("trouble", {})
    kept.pop(place, None)
    try:
        yield
    except (EngineError, MemoryError) as error:
        kept[place] = words_of(error)


def show_kept(place: str) -> None:
    """Show the error that the last callback of this place left, if any."""
    if message := st.session_state.get("trouble", {}).get(place):
        trouble(message)
