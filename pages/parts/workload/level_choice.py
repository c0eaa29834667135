"""Widgets that choose a level of a code list, its areas by search, and a page of a long list."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import streamlit as st

from engine.analysis import levels
from engine.plans import Plan
from engine.workload.level_queries import LevelQueries, level_groups, levels_of_group
from pages.parts.shell.error_text import escape_markdown

SEARCHED_AREAS = 20  # levels with fewer areas have no search
ALL = "All levels"
MAX_DOWNLOAD = 200_000  # queries of a level in one download
Read = Callable[[int, int], Any]


@dataclass(frozen=True, kw_only=True)
class Queries:
    """Queries of a group on one page: all of the group, or those on some areas of a level.

    Attributes
    ----------
    total : number of queries on all pages.
    first, end : the queries on this page.
    level : the level, or None for all queries of the group.
    areas : the areas of the level that are listed.
    sums : title of a level that is not in the group, whose queries are sums of published cells; or
        empty.
    """

    total: int
    first: int
    end: int
    level: LevelQueries | None = None
    areas: Sequence[int] = ()
    sums: str = ""

    def page(self, read: Read) -> Any:
        """Return the rows of the page; ``read`` returns those of consecutive queries of the group."""
        if self.level is None:
            return read(self.first, self.end)
        return levels.level_page(read, self.level, self.areas, self.first, self.end)

    def full_table(self, read: Read) -> Callable[[], Any] | None:
        """Return a function that returns the rows of all pages of a level; None without a level."""
        level = self.level
        if level is None or self.total > MAX_DOWNLOAD:
            return None
        return lambda: levels.level_page(read, level, self.areas)


def choose_level(titles: Sequence[str], *, key: str) -> str:
    """Draw the choice of a level by its title; return it."""
    if st.session_state.get(key) not in titles:
        st.session_state[key] = titles[0]
    choice: str = st.radio(
        "Level",
        titles,
        format_func=escape_markdown,
        key=key,
        horizontal=True,
        persist_state="session",
    )
    return choice


def search(level: LevelQueries, *, key: str) -> str:
    """Draw the search for areas of a level, if there are many; return its text."""
    if len(level.labels) < SEARCHED_AREAS:
        return ""
    return st.text_input(
        f"Find an area of {escape_markdown(level.title)}",
        key=key,
        placeholder=f"Part of a name, such as {level.labels[0]}",
    )


def choose_queries(
    plan: Plan, number: int, length: int, *, key: str, with_sums: bool = False
) -> Queries | None:
    """Draw the choice of a level of a group, of its areas and of a page, if there are several.

    Parameters
    ----------
    length : number of queries per page.
    with_sums : whether levels that are not in the group are offered, too.

    Returns
    -------
    None if no area has the text of the search.
    """
    group = plan.workload.groups[number]
    by_title = {level.title: level for level in levels_of_group(plan.schema, group)}
    sums = level_groups(plan.schema, group) if with_sums else {}
    titles = [*([] if len(by_title) == 1 else [ALL]), *by_title, *sums]
    title = titles[0]
    if len(titles) > 1:
        title = choose_level(titles, key=f"{key}_level_{number}")
    if title in by_title:
        level = by_title[title]
        text = search(level, key=f"{key}_find_{number}_{title}")
        areas = level.find(text)
        total = len(areas) * level.per_area
        if not total:
            st.info("No area has this text. Enter fewer letters.", icon="🔎")
            return None
        first, end = choose_page(total, length, key=f"{key}_page_{number}_{title}_{text}")
        return Queries(total=total, first=first, end=end, level=level, areas=areas)
    total = sums[title].count if title in sums else group.count
    first, end = choose_page(total, length, key=f"{key}_page_{number}_{title}")
    return Queries(total=total, first=first, end=end, sums=title if title in sums else "")


def choose_page(rows: int, length: int, *, key: str) -> tuple[int, int]:
    """Draw the choice of a page of a list, if there are several; return its first row and end."""
    pages = -(-rows // length)
    page = st.pagination(pages, key=key) if pages > 1 else 1
    return (page - 1) * length, min(page * length, rows)
