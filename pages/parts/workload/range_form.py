"""Form for a range, by dragging a box over the cells or with sliders."""

from __future__ import annotations

import streamlit as st

from engine import _format as texts
from engine import figures
from engine._format import pluralize
from engine.workload import Attribute, Group, Schema
from engine.workload.conditions import box_workload
from pages.parts.shell import figure_view
from pages.parts.shell.error_text import escape_markdown, show_errors
from pages.parts.workload import group_form

MAX_LABELS = 2_000  # cells of a slider
CHART = "range_cells"
# endpoints of the last box, and the number of boxes, which is part of the key of the sliders
DRAWN = "range_drawn"


def take_box(schema: Schema, names: tuple[str, ...]) -> None:
    """Move the endpoints to the box drawn on the chart."""
    boxes = st.session_state[f"chart_{CHART}"].selection.box
    if boxes:
        drawn_ends, moves = st.session_state.get(DRAWN, ({}, 0))
        cells = figures.cells_in_box(schema, names, boxes[-1])
        st.session_state[DRAWN] = (
            drawn_ends | {_key(schema[name]): ends for name, ends in cells.items()},
            moves + 1,
        )


def choose(schema: Schema) -> dict[str, tuple[int, int]]:
    """Draw the cells of one or two attributes and return the chosen range of each."""
    default_names = [a.name for a in schema.attributes if a.kind == "numeric" and a.size > 1][
        :1
    ] or [schema.names[0]]
    names = st.multiselect(
        "Attributes",
        schema.names,
        default=default_names,
        max_selections=2,
        key=f"range_names_{len(schema)}",
    )
    if not names:
        st.caption("Choose one attribute for a range, two for a rectangle.")
        return {}
    ranges = {}
    for column, name in zip(st.columns(len(names)), names, strict=True):
        with column:
            ranges[name] = _ends(schema[name])
    st.caption("Drag over the chart, or move the sliders.")
    figure_view.picture(
        figures.range_picture(schema, ranges),
        key=CHART,
        config={
            "modeBarButtonsToRemove": ["lasso2d", "zoom2d", "pan2d", "autoScale2d"],
            "doubleClick": False,
        },
        on_select=lambda: take_box(schema, tuple(names)),
    )
    return ranges


def drag_range(schema: Schema) -> tuple[Group, ...]:
    """Draw the form for a range, its description, and the button that adds it."""
    ranges = choose(schema)
    if not ranges:
        return ()
    with show_errors():
        addition = box_workload(schema, ranges)
        cells = pluralize(schema.cells(ranges), "cell")
        st.markdown(f"**Range: {escape_markdown(addition.describe(0))}** (1 query, {cells})")
        return group_form.add_button(addition.groups, lambda _: "Add this range", key="add_range")
    return ()


def _key(attribute: Attribute) -> str:
    return f"range_{attribute.name}_{attribute.size}"


def _ends(attribute: Attribute) -> tuple[int, int]:
    """Draw the endpoints of the range of one attribute and return them."""
    drawn_ends, moves = st.session_state.get(DRAWN, ({}, 0))
    first, last = drawn_ends.get(_key(attribute), (attribute.size // 4, attribute.size // 2))
    key = f"{_key(attribute)}_{moves}"
    if attribute.size == 1:
        st.caption(
            f"{escape_markdown(attribute.name)} has one cell,"
            f" {escape_markdown(attribute.label(0))}."
        )
        return 0, 0
    if attribute.size <= MAX_LABELS:
        cells, label = range(attribute.size), f"Range of {escape_markdown(attribute.name)}"
        # sliders render labels as Markdown
        ends: tuple[int, int] = st.select_slider(
            label,
            cells,
            value=(first, last),
            format_func=lambda i: escape_markdown(attribute.label(i)),
            key=key,
        )
        return ends
    last_cell = attribute.size - 1
    low = st.number_input(
        f"First cell of {escape_markdown(attribute.name)}", 0, last_cell, first, key=f"{key}_first"
    )
    high = st.number_input(
        f"Last cell of {escape_markdown(attribute.name)}", 0, last_cell, last, key=f"{key}_last"
    )
    st.caption(f"Cells are numbered 0 to {texts.number(last_cell)}.")
    return min(low, high), max(low, high)
