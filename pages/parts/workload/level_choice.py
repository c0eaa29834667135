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

SEARCHED_AREAS = 20  # levels with fewer areas have no search field
ALL = "All levels"
MAX_DOWNLOAD = 200_000  # queries of a level in one download
# Function read(first, end) that returns the table rows of the queries first, ..., end - 1.
Read = Callable[[int, int], Any]


@dataclass(frozen=True, kw_only=True)
class Queries:
    """The queries of a group that a table lists, and which of them are on the open page.

    The table lists all queries of the group, or those of one level of a code list.

    Attributes
    ----------
    total : number of listed queries on all pages.
    first, end : the open page has the listed queries from index ``first`` to ``end`` (exclusive).
    level : the level; None if all queries of the group are listed.
    areas : the areas of the level whose queries are listed.
    sums : empty if the group has the listed queries. Otherwise the listed queries are those of a
        level that the group does not have; their answers are sums of published cells, and ``sums``
        is the title of the level.
    """

    total: int
    first: int
    end: int
    level: LevelQueries | None = None
    areas: Sequence[int] = ()
    sums: str = ""

    def page(self, read: Read) -> Any:
        """Return the rows of the open page; ``read`` returns the rows of queries of the group."""
        if self.level is None:
            return read(self.first, self.end)
        return levels.level_page(read, self.level, self.areas, self.first, self.end)

    def full_table(self, read: Read) -> Callable[[], Any] | None:
        """Return a function that returns the rows of all pages, for a download.

        None if no level is chosen, or if there are more than `MAX_DOWNLOAD` queries.
        """
        level = self.level
        if level is None or self.total > MAX_DOWNLOAD:
            return None
        return lambda: levels.level_page(read, level, self.areas)


def choose_level(titles: Sequence[str], *, key: str) -> str:
    """Draw the choice of a level; return the title of the chosen level."""
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
    """Draw the search for areas of a level, if it has many; return the text of the search."""
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
    """Draw the choice of the queries of a group that a table lists.

    The user chooses a level, areas of the level and a page, as far as there are several.

    Parameters
    ----------
    number : index of the group.
    length : number of queries per page.
    with_sums : whether the user can also choose levels that the group does not have.

    Returns
    -------
    The chosen queries; None if no area matches the search.
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
    """Draw the choice of a page of a list, if it has several.

    Return the index of the first row of the page, and of the row after its last one.
    """
    pages = -(-rows // length)
    page = st.pagination(pages, key=key) if pages > 1 else 1
    return (page - 1) * length, min(page * length, rows)
