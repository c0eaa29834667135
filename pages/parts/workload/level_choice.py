"""Widgets that choose the queries of a group that a table lists: by level, search and page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import streamlit as st

from engine.analysis.variance_breakdown import level_page, read_runs
from engine.plans import Plan
from engine.workload import Group
from engine.workload.attribute import query_texts
from engine.workload.level_queries import LevelQueries, PartQueries, level_groups, levels_of_group
from pages.parts.shell.error_text import escape_markdown

SEARCHED_AREAS = 20  # levels with fewer areas, and parts with fewer queries, have no search field
ALL = "All levels"
MAX_DOWNLOAD = 200_000  # queries of a level in one download
# Function read(first, end) that returns the table rows of the queries first, ..., end - 1.
Read = Callable[[int, int], Any]


@dataclass(frozen=True, kw_only=True)
class Queries:
    """The queries of a group that a table lists, and which of them are on the open page.

    The table lists all queries of the group, those of one level of a code list, or those that a
    search has found.

    Attributes
    ----------
    total : number of listed queries on all pages.
    first, end : the open page has the listed queries from index ``first`` to ``end`` (exclusive).
    level : the level; None if no level is chosen.
    areas : the areas of the level whose queries are listed.
    found : the queries that a search has found; None if there is no search.
    sums : title of the chosen level if the group has no queries on its areas, so that the answers
        are sums of published cells. Empty if the listed queries are queries of the group.
    """

    total: int
    first: int
    end: int
    level: LevelQueries | None = None
    areas: Sequence[int] = ()
    found: PartQueries | None = None
    sums: str = ""

    def page(self, read: Read) -> Any:
        """Return the rows of the open page; ``read`` returns the rows of queries of the group."""
        if self.found is not None:
            return read_runs(read, self.found.runs(self.first, self.end))
        if self.level is None:
            return read(self.first, self.end)
        return level_page(read, self.level, self.areas, self.first, self.end)

    def full_table(self, read: Read) -> Callable[[], Any] | None:
        """Return a function that returns the rows of all pages, for a download.

        None if no level is chosen, or if there are more than `MAX_DOWNLOAD` queries.
        """
        level = self.level
        if level is None or self.total > MAX_DOWNLOAD:
            return None
        return lambda: level_page(read, level, self.areas)


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
    """Draw the search for areas, if the level has many; return its text, or "" without a search."""
    if len(level.labels) < SEARCHED_AREAS:
        return ""
    return st.text_input(
        f"Find an area of {escape_markdown(level.title)}",
        key=key,
        placeholder=f"Part of a name, such as {level.labels[0]}",
    )


def choose_queries(
    plan: Plan, number: int, page_length: int, *, key: str, with_sums: bool = False
) -> Queries | None:
    """Draw fields for choosing which queries of a group a table shows; return these queries.

    If there are several levels, the user chooses one or all.  A chosen level with at least
    `SEARCHED_AREAS` areas has a search field.  Without a chosen level, and if the queries fill
    several pages, each query family with at least `SEARCHED_AREAS` queries has a search field.  If
    the queries to show fill several pages, the user chooses a page.

    Parameters
    ----------
    number : index of the group.
    page_length : number of queries per page.
    with_sums : whether the user can also choose levels whose queries are sums of queries of the
        group.

    Returns
    -------
    The chosen queries; None if no area or no query matches the search.
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
        first, end = choose_page(total, page_length, key=f"{key}_page_{number}_{title}_{text}")
        return Queries(total=total, first=first, end=end, level=level, areas=areas)
    if title not in sums and group.count > page_length:
        texts = _search_parts(plan, group, key=f"{key}_find_{number}")
        if any(texts):
            return _found_queries(
                plan, group, texts, page_length, key=f"{key}_page_{number}_{texts}"
            )
    total = sums[title].count if title in sums else group.count
    first, end = choose_page(total, page_length, key=f"{key}_page_{number}_{title}")
    return Queries(total=total, first=first, end=end, sums=title if title in sums else "")


def _search_parts(plan: Plan, group: Group, *, key: str) -> list[str]:
    """Draw a search field per query family with many queries; return a text per family.

    The text of a family without a search field is empty.
    """
    texts = [""] * len(group.parts)
    searched = [p for p, part in enumerate(group.parts) if part.count >= SEARCHED_AREAS]
    # `st.columns` refuses the number 0
    for column, p in zip(st.columns(max(len(searched), 1)), searched, strict=False):
        name = " × ".join(group.attributes[axis] for axis in group.parts[p].axes)
        middle = group.parts[p].count // 2
        texts[p] = column.text_input(
            f"Find a value of {escape_markdown(name)}",
            key=f"{key}_{p}",
            placeholder=f"Part of a query, such as {_part_texts(plan, group, p, [middle])[0]}",
        ).strip()
    return texts


def _part_texts(plan: Plan, group: Group, number: int, indices: Sequence[int]) -> list[str]:
    """Return the texts of some queries of query family ``number`` of a group."""
    part = group.parts[number]
    attributes = [plan.schema[group.attributes[axis]] for axis in part.axes]
    return query_texts(attributes, (part.family.text(attributes, i) for i in indices))


def _found_queries(
    plan: Plan, group: Group, texts: Sequence[str], page_length: int, *, key: str
) -> Queries | None:
    """Draw the choice of a page of the queries that contain the searched texts.

    ``texts`` has one text per query family of the group; case is ignored.  The result has the
    queries on the page; it is None if no query matches.
    """
    chosen: list[Sequence[int]] = []
    for number, part in enumerate(group.parts):
        searched_text = texts[number].casefold()
        indices: Sequence[int] = range(part.count)
        if searched_text:
            part_texts = _part_texts(plan, group, number, indices)
            indices = [i for i in indices if searched_text in part_texts[i].casefold()]
        chosen.append(indices)
    matches = PartQueries(chosen=tuple(chosen), counts=tuple(part.count for part in group.parts))
    if not matches.total:
        st.info("No query has this text. Enter fewer letters.", icon="🔎")
        return None
    first, end = choose_page(matches.total, page_length, key=key)
    return Queries(total=matches.total, first=first, end=end, found=matches)


def choose_page(rows: int, page_length: int, *, key: str) -> tuple[int, int]:
    """Draw the choice of a page of a list, if it has several.

    Return the index of the first row of the page, and of the row after its last one.
    """
    pages = -(-rows // page_length)
    page = st.pagination(pages, key=key) if pages > 1 else 1
    return (page - 1) * page_length, min(page * page_length, rows)
