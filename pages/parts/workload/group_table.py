"""List of the tables of the workload: search, pages, removal, weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import streamlit as st

from engine import analysis
from engine._format import pluralize
from engine.workload import Workload
from pages.parts.shell import buttons, figure_view, history
from pages.parts.workload import group_form

PAGE_SIZE = 100  # groups per page
SELECTED = "Selected tables"


def remove(chosen: Sequence[int]) -> None:
    """Remove the selected groups."""
    workload, removed = history.current().required_workload, set(chosen)
    groups = tuple(g for i, g in enumerate(workload.groups) if i not in removed)
    history.change(workload=Workload(workload.schema, groups), redraw=True)


def set_weight(chosen: Sequence[int]) -> None:
    """Set the weight of the selected groups."""
    workload, selected = history.current().required_workload, set(chosen)
    weight = st.session_state.new_weight
    groups = tuple(
        replace(g, weight=weight) if i in selected else g for i, g in enumerate(workload.groups)
    )
    history.change(workload=Workload(workload.schema, groups), redraw=True)


def groups(workload: Workload) -> None:
    """Draw the list of groups and the widgets that change selected groups."""
    matches, shown = _matches(workload)
    if not matches:
        st.info("No table matches. Use fewer words, such as one attribute.", icon="🔎")
        return
    figure_view.table(
        analysis.workload_table(workload, shown),
        name="groups",
        alt="Tables of the workload",
        full_table=lambda: analysis.workload_table(workload, matches),
    )
    chosen: Sequence[int] = st.multiselect(
        "Tables to change",
        shown,
        format_func=lambda i: (
            f"{i}: {' × '.join(workload.groups[i].attributes) or 'total'},"
            f" {workload.groups[i].family_text}"
        ),
        key=f"chosen_{history.version()}",
        placeholder="Select tables",
    )
    all_matches = f"All {pluralize(len(matches), 'table')} found"
    if (
        st.radio("Apply to", [SELECTED, all_matches], horizontal=True, key="change_which")
        == all_matches
    ):
        chosen = matches
    left, middle, right = st.columns([1, 1, 1], vertical_alignment="bottom")
    label = f"Remove {pluralize(len(chosen), 'table')}" if chosen else "Remove tables"
    buttons.button(label, remove, chosen, key="remove", place=left, disabled=not chosen)
    middle.number_input("New weight", min_value=0.0, value=1.0, step=0.5, key="new_weight")
    buttons.button("Set weight", set_weight, chosen, key="weigh", place=right, disabled=not chosen)
    if len(chosen) == 1:
        group_form.picture(workload.schema, workload.groups[chosen[0]], key="group_picture")


def _matches(workload: Workload) -> tuple[Sequence[int], Sequence[int]]:
    """Draw the search and return the matching groups and those on the current page."""
    if len(workload.groups) <= PAGE_SIZE:
        all_groups = range(len(workload.groups))
        return all_groups, all_groups
    left, right = st.columns([3, 1])
    search = left.text_input(
        "Find tables", key="find", placeholder="age range", help="Attributes, types, numbers."
    )
    matches = analysis.find_groups(workload, search)
    pages = analysis.page_of(matches, 1, PAGE_SIZE)[1]
    page = right.number_input(
        f"Page of {pages:,}", 1, pages, 1, key=f"page_{pages}", disabled=pages == 1
    )
    shown = analysis.page_of(matches, int(page), PAGE_SIZE)[0]
    st.caption(
        f"{len(matches):,} of {pluralize(len(workload.groups), 'table')} found, {len(shown):,} on"
        " this page."
    )
    return matches, shown
