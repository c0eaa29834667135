"""Form for a range query: drag a box over a chart of the cells, or move sliders."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from engine import _format as texts
from engine import figures
from engine._format import pluralize
from engine.workload import Attribute, Group, Schema
from engine.workload.attribute import cell_text, query_texts
from engine.workload.conditions import box_workload
from pages.parts.shell import figure_view
from pages.parts.shell.error_text import escape_markdown, show_errors
from pages.parts.workload import group_form

MAX_LABELS = 2_000  # cells that a slider can have
CHART = "range_cells"
# Session state key of a pair: a mapping from attributes to the ends of the box last selected on
# the chart, and the number of selections.  With this number in their keys, the sliders show the new box.
DRAWN = "range_drawn"


def take_box(schema: Schema, names: tuple[str, ...]) -> None:
    """Set the endpoints of the ranges to those of the box that the user drew on the chart."""
    boxes = st.session_state[f"chart_{CHART}"].selection.box
    if boxes:
        drawn_ends, n_drawn = st.session_state.get(DRAWN, ({}, 0))
        cells = figures.cells_in_box(schema, names, boxes[-1])
        st.session_state[DRAWN] = (
            drawn_ends | {_key(schema[name]): ends for name, ends in cells.items()},
            n_drawn + 1,
        )


def choose(schema: Schema) -> dict[str, tuple[int, int]]:
    """Draw the choice of one or two attributes and of a range on each.

    Return a mapping from attributes to the first and the last cell of their range.
    """
    columns, ranges = st.columns(2), {}
    for column, name in zip(columns, _attributes(schema, columns), strict=False):
        with column:
            ranges[name] = _ends(schema[name])
    names = tuple(ranges)
    st.caption("Drag over the chart, or move the sliders.")
    figure_view.picture(
        figures.range_picture(schema, ranges),
        key=CHART,
        config={
            "modeBarButtonsToRemove": ["lasso2d", "zoom2d", "pan2d", "autoScale2d"],
            "doubleClick": False,
        },
        on_select=lambda: take_box(schema, names),
    )
    return ranges


def _attributes(schema: Schema, columns: Sequence[DeltaGenerator]) -> list[str]:
    """Draw the choice of one or two attributes, one per column, and return their names.

    The height of a list with several choices depends on the chosen names, so the button below would
    move while a user presses it. Therefore there are two lists with one choice each.
    """
    numeric = [i for i, a in enumerate(schema.attributes) if a.kind == "numeric" and a.size > 1]
    first = columns[0].selectbox(
        "Attribute",
        schema.names,
        index=numeric[0] if numeric else 0,
        key=f"range_first_{len(schema)}",
    )
    others = [name for name in schema.names if name != first]
    second = columns[1].selectbox(
        "Second attribute (optional)",
        others,
        index=None,
        key=f"range_second_{len(schema)}",
        placeholder="None: a range of one attribute",
    )
    return [first] if second is None else [first, second]


def drag_range(schema: Schema) -> tuple[Group, ...]:
    """Draw the form for a range, its description, and the button that adds it.

    Return the group of the range if the workload does not have it; otherwise an empty tuple.
    """
    ranges = choose(schema)
    with show_errors():
        addition = box_workload(schema, ranges)
        chosen = prod(last - first + 1 for first, last in ranges.values())
        cells = f"{texts.number(chosen)} of {pluralize(schema.cells(ranges), 'cell')}"
        (text,) = query_texts(schema.attributes, [addition.describe(0)])
        st.markdown(f"**Range: {escape_markdown(text)}** (1 query, {cells})")
        return group_form.add_button(addition.groups, lambda _: "Add this range", key="add_range")
    return ()


def _key(attribute: Attribute) -> str:
    return f"range_{attribute.name}_{attribute.size}"


def _ends(attribute: Attribute) -> tuple[int, int]:
    """Draw the fields for the range of one attribute; return its first and its last cell."""
    drawn_ends, n_drawn = st.session_state.get(DRAWN, ({}, 0))
    first, last = drawn_ends.get(_key(attribute), (attribute.size // 4, attribute.size // 2))
    # A new key makes the fields show the range that the user last selected on the chart.
    key = f"{_key(attribute)}_{n_drawn}"
    if attribute.size == 1:
        st.caption(
            f"{escape_markdown(attribute.name)} has one cell,"
            f" {escape_markdown(cell_text(attribute, 0))}."
        )
        return 0, 0
    if attribute.size <= MAX_LABELS:
        cells = range(attribute.size)
        label = f"Range of {escape_markdown(attribute.name)}"
        # Streamlit renders the labels of sliders as Markdown.
        ends: tuple[int, int] = st.select_slider(
            label,
            cells,
            value=(first, last),
            format_func=lambda i: escape_markdown(cell_text(attribute, i)),
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
