"""Widgets that choose a table of a plan, and the queries of the table that a chart shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from engine._format import pluralize
from engine.analysis import condition_name, find_cells, find_groups, worst_first
from engine.analysis.variance_breakdown import least_accurate_queries
from engine.plans import Plan
from engine.workload import Attribute, Circular, Group, Level, Levels, Marginal, Range, Workload
from engine.workload.attribute import cell_text, query_texts
from engine.workload.level_queries import levels_of_group
from pages.parts.shell.error_text import escape_markdown

MAX_OPTIONS = 2_000  # longer lists have a search field
MAX_MATCHES = 100  # options that a search lists at most


def choose_group(plan: Plan, *, key: str, on_change: Callable[[], None] | None = None) -> int:
    """Draw the choice of a group, with a search if there are many; return the index of the group.

    The default is `first_group`. ``on_change`` is called when the user chooses another group.
    """
    all_groups = plan.workload.groups
    st.session_state.setdefault(key, first_group(plan))
    options: Sequence[int] = range(len(all_groups))
    if len(all_groups) > MAX_OPTIONS:
        search_text = st.text_input("Find a table", key=f"{key}_find", placeholder="age income")
        # Without a search text, only the chosen table is listed.
        matches = (
            find_groups(plan.workload, search_text)[:MAX_MATCHES] if search_text.strip() else []
        )
        options = [*dict.fromkeys([st.session_state[key], *matches])]
    return st.selectbox(
        "Table",
        options,
        format_func=lambda i: _group_text(plan.workload, i),
        key=key,
        on_change=on_change,
    )


def first_group(plan: Plan) -> int:
    """Return the index of the group that a page shows first.

    It is the least accurate of the groups with the fewest attributes, because their charts are easy
    to read. The total has no chart and is first only in a workload without other groups.
    """
    sizes = [len(group.attributes) for group in plan.workload.groups]
    fewest = min((size for size in sizes if size > 0), default=0)
    return int(worst_first(plan, ways=fewest)["group"].iloc[0])


def choose_cell(place: DeltaGenerator, attribute: Attribute, *, key: str, default: int = 0) -> int:
    """Draw the choice of a cell of an attribute, with a search if there are many.

    Return the index of the chosen cell.  ``default`` is the index of the cell that is chosen at
    first in a list without a search; a list with a search begins with its first match.
    """
    name = escape_markdown(attribute.name)
    cells: Sequence[int] = range(attribute.size)
    if attribute.size > MAX_OPTIONS:
        text = place.text_input(f"Find a value of {name}", key=f"{key}_find")
        cells = find_cells(attribute, text, limit=MAX_MATCHES)
        if not cells:
            place.caption("No value has this text. The first value is used.")
            return 0
        default = 0
    return int(
        place.selectbox(
            f"Value of {name}",
            cells,
            index=default,
            format_func=partial(cell_text, attribute),
            key=key,
        )
    )


def choose_slice(
    plan: Plan, number: int, prefix: str = ""
) -> tuple[tuple[int, ...] | None, list[int]] | None:
    """Draw the choice of the queries of a group that a chart shows.

    A query of a group combines one query of each part (query family) of the group. The user chooses
    one or two parts as axes. The chart shows all queries of these parts. The user fixes one query
    of every other part. At first, the fixed queries are those of the least accurate query of the
    group.

    Parameters
    ----------
    number : index of the group.
    prefix : beginning of the keys of the widgets.

    Returns
    -------
    None if the user chose no axis. Otherwise the pair

    - axes: the indices of the parts that are axes; None for a group without parts.
    - fixed: for each part the index of its fixed query; 0 for an axis.
    """
    group = plan.workload.groups[number]
    axes, fixed = list(range(len(group.parts))), [0] * len(group.parts)
    if len(group.parts) > 1:
        range_parts = [
            p for p, part in enumerate(group.parts) if isinstance(part.family, (Range, Circular))
        ]
        names = {
            p: " × ".join(group.attributes[a] for a in part.axes)
            for p, part in enumerate(group.parts)
        }
        axes = st.multiselect(
            "Axes",
            list(names),
            # The default is one query family with ranges, or else two families without code lists.
            # Code lists have many areas, which another view shows.
            default=range_parts[:1]
            or [p for p in names if not _has_areas(group, p)][:2]
            or list(names)[:2],
            format_func=names.__getitem__,
            max_selections=2,
            key=f"{prefix}across_{number}",
            help="One attribute: a line or a triangle of ranges. Two: a heat map.",
        )
        others = [p for p in names if p not in axes]
        defaults = least_accurate_queries(plan, number)
        # `st.columns` refuses the number 0
        for column, p in zip(st.columns(max(len(others), 1)), others, strict=False):
            key = f"{prefix}fixed_{number}_{p}"
            fixed[p] = _fixed(column, plan, group, p, key=key, default=defaults[p])
    if not group.parts:
        return None, fixed
    if not axes:
        st.info("Choose one or two axes.")
        return None
    return tuple(sorted(axes)), fixed


def _group_text(workload: Workload, number: int) -> str:
    group = workload.groups[number]
    names = " × ".join(group.attributes) or "total"
    text = condition_name(workload, number) or f"{names}, {group.family_text}"
    # The tables are numbered from 1, as in the names of the files of published tables.
    return f"{number + 1}: {text} ({pluralize(group.count, 'query', 'queries')})"


def _fixed(
    column: DeltaGenerator, plan: Plan, group: Group, number: int, *, key: str, default: int
) -> int:
    """Draw the choice of one query of a query family; return the index of the query.

    ``number`` is the index of the family in the group.  ``default`` is the index of the query that
    is chosen at first.  It is ignored if the page has a search field instead of a list of all
    queries.
    """
    part = group.parts[number]
    attributes = [plan.schema[group.attributes[a]] for a in part.axes]
    name = " × ".join(a.name for a in attributes)
    if isinstance(part.family, Marginal):
        return choose_cell(column, attributes[0], key=key, default=default)
    if part.count > MAX_OPTIONS and _has_areas(group, number):
        return _choose_area(column, plan, group, number, key=key)
    if part.count > MAX_OPTIONS:
        return int(
            column.number_input(
                f"Query on {escape_markdown(name)}", 0, part.count - 1, default, key=key
            )
        )
    return int(
        column.selectbox(
            f"Value of {escape_markdown(name)}",
            range(part.count),
            index=default,
            format_func=lambda i: (
                query_texts(attributes, [part.family.text(attributes, i)])[0] or "all records"
            ),
            key=key,
        )
    )


def _has_areas(group: Group, part: int) -> bool:
    return isinstance(group.parts[part].family, (Level, Levels))


def _choose_area(column: DeltaGenerator, plan: Plan, group: Group, number: int, *, key: str) -> int:
    """Draw the choice of an area of a code list by search; return the index of its query."""
    levels = [level for level in levels_of_group(plan.schema, group) if level.part == number]
    name = escape_markdown(group.attributes[group.parts[number].axes[0]])
    text = column.text_input(f"Find an area of {name}", key=f"{key}_find")
    options = {
        level.start + area: f"{level.title} = {level.labels[area]}"
        for level in levels
        for area in level.find(text)[:MAX_MATCHES]
    }
    if not options:
        column.caption("No area has this text. The first area is used.")
        return 0
    return int(
        column.selectbox(f"Area of {name}", list(options), format_func=options.__getitem__, key=key)
    )
