"""Widgets that choose a level of a code list, its areas by search, and a page of a long list."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from engine.workload.level_queries import LevelQueries
from pages.parts.shell.error_text import escape_markdown

SEARCHED_AREAS = 20  # levels with fewer areas have no search


def choose_level(titles: Sequence[str], *, key: str) -> str:
    """Draw the choice of a level by its title; return it."""
    if st.session_state.get(key) not in titles:
        st.session_state[key] = titles[0]
    choice = st.pills(
        "Level", titles, format_func=escape_markdown, key=key, persist_state="session"
    )
    return choice or titles[0]


def search(level: LevelQueries, *, key: str) -> str:
    """Draw the search for areas of a level, if there are many; return its text."""
    if len(level.labels) < SEARCHED_AREAS:
        return ""
    return st.text_input(
        f"Find an area of {escape_markdown(level.title)}",
        key=key,
        placeholder=f"Part of a name, such as {level.labels[0]}",
    )


def choose_page(rows: int, length: int, *, key: str) -> tuple[int, int]:
    """Draw the choice of a page of a list, if there are several; return its first row and end."""
    pages = -(-rows // length)
    page = st.pagination(pages, key=key) if pages > 1 else 1
    return (page - 1) * length, min(page * length, rows)
