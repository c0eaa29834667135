"""The groups of the workload: found by words, shown a page at a time, removed and weighed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import streamlit as st

from engine import analysis
from engine._format import pluralize
from engine.workload import Workload
from pages.parts.shell import buttons, figure_view, history
from pages.parts.workload import group_form

LENGTH = 100  # groups on a page
PICKED = "The groups picked above"


def remove(chosen: Sequence[int]) -> None:
    """Remove the chosen groups."""
    workload, gone = history.current().required_workload, set(chosen)
    retained = tuple(g for i, g in enumerate(workload.groups) if i not in gone)
    history.change(workload=Workload(workload.schema, retained), redraw=True)


def weigh(chosen: Sequence[int]) -> None:
    """Give the chosen groups the weight of the form."""
    workload, some = history.current().required_workload, set(chosen)
    weight = st.session_state.new_weight
    groups = tuple(
        replace(g, weight=weight) if i in some else g for i, g in enumerate(workload.groups)
    )
    history.change(workload=Workload(workload.schema, groups), redraw=True)


def groups(workload: Workload) -> None:
    """Draw the table and what can be done with some of its groups."""
    matches, shown = _matches(workload)
    if not matches:
        st.info(
            "No group has all these words. Use fewer, such as the name of one attribute.", icon="🔎"
        )
        return
    figure_view.table(
        analysis.workload_table(workload, shown),
        name="groups",
        alt="Groups of the workload",
        full_table=lambda: analysis.workload_table(workload, matches),
    )
    chosen: Sequence[int] = st.multiselect(
        "Groups to change",
        shown,
        format_func=lambda i: (
            f"{i}: {' × '.join(workload.groups[i].attributes) or 'total'},"
            f" {workload.groups[i].family_text}"
        ),
        key=f"chosen_{history.version()}",
        placeholder="Pick groups by name",
    )
    everything = f"All {pluralize(len(matches), 'group')} found"
    if (
        st.radio("What to change", [PICKED, everything], horizontal=True, key="change_which")
        == everything
    ):
        chosen = matches
    left, middle, right = st.columns([1, 1, 1], vertical_alignment="bottom")
    label = f"Remove {pluralize(len(chosen), 'group')}" if chosen else "Remove groups"
    buttons.button(label, remove, chosen, key="remove", place=left, disabled=not chosen)
    middle.number_input("New weight", min_value=0.0, value=1.0, step=0.5, key="new_weight")
    buttons.button("Set this weight", weigh, chosen, key="weigh", place=right, disabled=not chosen)
    if len(chosen) == 1:
        group_form.picture(workload.schema, workload.groups[chosen[0]], key="group_picture")


def _matches(workload: Workload) -> tuple[Sequence[int], Sequence[int]]:
    """The groups that the words find, and those of them on the page."""
    if len(workload.groups) <= LENGTH:
        everything = range(len(workload.groups))
        return everything, everything
    left, right = st.columns([3, 1])
    words = left.text_input(
        "Find groups", key="find", placeholder="age range", help="Names, families, numbers."
    )
    matches = analysis.find_groups(workload, words)
    pages = analysis.page_of(matches, 1, LENGTH)[1]
    page = right.number_input(
        f"Page of {pages:,}", 1, pages, 1, key=f"page_{pages}", disabled=pages == 1
    )
    shown = analysis.page_of(matches, int(page), LENGTH)[0]
    st.caption(
        f"{pluralize(len(matches), 'group')} found of {len(workload.groups):,}; {len(shown):,} on"
        " this page."
    )
    return matches, shown
