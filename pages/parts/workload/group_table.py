"""Editable grid of the tables of the workload, with their weights and errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from engine import analysis, figures
from engine._format import pluralize
from engine.plans import Plan
from engine.workload import Workload
from pages.parts.shell import buttons, history
from pages.parts.shell.error_text import deferred_errors, show_deferred_error

PAGE_SIZE = 100  # groups per page
SEARCHED_GROUPS = 10  # lists of at most this many groups have no search field
REMOVE, WEIGHT = "remove", "weight"  # columns that can be edited
GRID_HEIGHT_PX = 430
NAME_WIDTH_PX, MAX_NAME_CHARS = 160, 20  # of the column with the names of tables
SHORT_GRID = 10  # a grid with at most this many rows has no fixed height


def apply_edits(
    workload: Workload, numbers: Sequence[int], edits: Mapping[int | str, Mapping[str, Any]]
) -> Workload:
    """Return the workload after edits in the grid; raise WorkloadError for an invalid weight.

    Parameters
    ----------
    numbers : for each row of the grid, the index of its group in the workload.
    edits : mapping from row numbers to {column: new value} for the columns `WEIGHT` and `REMOVE`.
    """
    changes = {numbers[int(row)]: values for row, values in edits.items()}
    removed = {i for i, values in changes.items() if values.get(REMOVE)}
    new_workload = workload.with_weights(
        {i: values[WEIGHT] for i, values in changes.items() if WEIGHT in values}
    )
    groups = tuple(group for i, group in enumerate(new_workload.groups) if i not in removed)
    return Workload(workload.schema, groups) if removed else new_workload


def groups(workload: Workload, plan: Plan | None) -> Sequence[int]:
    """Draw the search and the grid; return the indices of the groups that match the search.

    The grid shows the errors of ``plan``; without a plan that column is empty.
    """
    matches, page_numbers = _matches(workload)
    if not matches:
        st.info("No table matches. Use fewer words, such as one attribute.", icon="🔎")
        return ()
    key = f"grid_{history.version()}_{page_numbers[0]}_{len(page_numbers)}"
    table = analysis.workload_errors(workload, page_numbers, plan)
    short_names = figures.short_table_names(table["attributes"].tolist(), MAX_NAME_CHARS)
    names = [
        analysis.condition_name(workload, number) or short_name
        for number, short_name in zip(page_numbers, short_names, strict=True)
    ]
    st.data_editor(
        table.assign(attributes=names, **{REMOVE: False}),
        key=key,
        hide_index=True,
        height=GRID_HEIGHT_PX if len(page_numbers) > SHORT_GRID else "auto",
        column_order=["attributes", "family", "queries", WEIGHT, "typical error", REMOVE],
        column_config={
            "attributes": st.column_config.TextColumn("Table", disabled=True, width=NAME_WIDTH_PX),
            "family": st.column_config.TextColumn("Type", disabled=True, width=125),
            "queries": st.column_config.NumberColumn(
                "Queries", disabled=True, format="localized", width=70
            ),
            WEIGHT: st.column_config.NumberColumn(
                "Weight",
                min_value=0.0,
                width=80,
                help="Importance when sharing the budget; 0 adds no cost.",
            ),
            "typical error": st.column_config.NumberColumn(
                "Error",
                disabled=True,
                format="%,.2f",
                width=65,
                help="Typical error (RMSE) of the table, in counts.",
            ),
            REMOVE: st.column_config.CheckboxColumn("Remove", width=85),
        },
        placeholder="",
        on_change=_use_edits,
        args=(tuple(page_numbers), key),
        alt="Tables of the workload, with editable weights",
    )
    show_deferred_error("grid")
    return matches


def _use_edits(numbers: Sequence[int], key: str) -> None:
    """Apply the edits of the grid to the workload.

    After a removal the grid is drawn anew, because its rows have moved.
    """
    workload, edits = history.current().required_workload, st.session_state[key]["edited_rows"]
    with deferred_errors("grid"):
        new_workload = apply_edits(workload, numbers, edits)
        history.change(
            workload=new_workload, redraw=len(new_workload.groups) < len(workload.groups)
        )


def change_all(numbers: Sequence[int]) -> None:
    """Draw a popover that sets the weight of these groups or removes them."""
    with st.popover(f"Change {pluralize(len(numbers), 'table')}", disabled=not numbers):
        st.number_input("New weight", min_value=0.0, value=1.0, step=0.5, key="new_weight")
        with st.container(horizontal=True):
            buttons.button("Set weight", _set_weight, numbers, key="weigh")
            buttons.button("Remove tables", _remove, numbers, key="remove")


def _remove(numbers: Sequence[int]) -> None:
    """Remove the groups with these indices from the workload."""
    workload, removed = history.current().required_workload, set(numbers)
    remaining = tuple(g for i, g in enumerate(workload.groups) if i not in removed)
    history.change(workload=Workload(workload.schema, remaining), redraw=True)


def _set_weight(numbers: Sequence[int]) -> None:
    """Give the groups with these indices the weight in the field."""
    with deferred_errors("grid"):
        weights = dict.fromkeys(numbers, st.session_state.new_weight)
        workload = history.current().required_workload.with_weights(weights)
        history.change(workload=workload, redraw=True)


def _matches(workload: Workload) -> tuple[Sequence[int], Sequence[int]]:
    """Draw the search and the choice of a page, if there are many groups.

    Returns
    -------
    The indices of all groups that match the search, and of those on the chosen page.
    """
    numbers: Sequence[int] = range(len(workload.groups))
    if len(numbers) <= SEARCHED_GROUPS:
        return numbers, numbers
    left, right = st.columns([3, 1])
    search = left.text_input(
        "Find tables",
        key="find",
        placeholder="age range",
        help="Attributes, types, numbers of tables, or labels of values.",
    )
    matches = analysis.find_groups(workload, search) if search.strip() else numbers
    pages = analysis.page_of(matches, 1, PAGE_SIZE)[1]
    if pages == 1:
        return matches, matches
    page = right.number_input(f"Page of {pages:,}", 1, pages, 1, key=f"page_{pages}")
    page_numbers = analysis.page_of(matches, int(page), PAGE_SIZE)[0]
    st.caption(f"{len(matches):,} tables found, {len(page_numbers):,} on this page.")
    return matches, page_numbers
