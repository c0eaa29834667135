"""Form for a single query, by cells or by a condition."""

from __future__ import annotations

from functools import partial

import streamlit as st

from engine import _format as texts
from engine import analysis
from engine.analysis.ad_hoc_queries import Query
from engine.workload import Attribute, Schema, predicates
from engine.workload.attribute import cell_text
from pages.parts.shell.error_text import escape_markdown
from pages.parts.workload import group_choice, range_form
from pages.parts.workload.family_form import CONDITION

MAX_CELLS = 4_000_000  # cells of the table of a query
MAX_LABELS = 2_000
MAX_STOPS = 50  # largest number of cells on a slider; longer ranges have two lists with search
DRAW = "Draw a range"


def choose(schema: Schema, *, key: str, with_drawing: bool = False) -> Query | None:
    """Draw the form for one query; return the query.

    The result is None if the form is incomplete, or if the attributes have too many cells.

    The user chooses cells or writes a condition; with ``with_drawing`` the user can also draw a
    range on a chart.
    """
    methods = ["Choose cells", *([DRAW] if with_drawing else []), "Write a condition"]
    method = st.radio(
        "Input method", methods, horizontal=True, key=f"{key}_how", persist_state="session"
    )
    if method == DRAW:
        ranges = range_form.choose(schema)
        if schema.cells(ranges) > MAX_CELLS:
            st.info(
                f"These attributes have {texts.number(schema.cells(ranges))} cells. Choose one."
            )
            return None
        return analysis.run_query(schema, ranges)
    # The choice outlives the page, so it can contain attributes that were removed meanwhile.
    chosen = st.session_state.get(f"{key}_names", [])
    if not set(chosen) <= set(schema.names):
        st.session_state[f"{key}_names"] = [name for name in chosen if name in schema.names]
    names = st.multiselect(
        "Attributes",
        schema.names,
        key=f"{key}_names",
        help="Without attributes: the total count.",
        persist_state="session",
    )
    if schema.cells(names) > MAX_CELLS:
        st.info(f"These attributes have {texts.number(schema.cells(names))} cells. Choose fewer.")
        return None
    if method == "Choose cells":
        columns = st.columns(max(1, min(3, len(names))))
        cells = {}
        for place, name in enumerate(names):
            with columns[place % len(columns)]:
                cells[name] = _cells(schema[name], f"{key}_{name}")
        return analysis.box_query(schema, cells)
    text = st.text_input(
        "Condition",
        key=f"{key}_text",
        placeholder=predicates.example([schema[name] for name in names or schema.names]),
        help=CONDITION,
        persist_state="session",
    )
    if not text.strip():
        st.caption("Write a condition on the selected attributes, or on any if none is selected.")
        return None
    return (
        analysis.parse_query(schema, names, text)
        if names
        else analysis.condition_query(schema, text)
    )


def _cells(attribute: Attribute, key: str) -> list[int]:
    """Draw the choice of cells of an attribute; return their indices.

    For a categorical attribute the user selects single cells, or one cell by a search if there are
    many. For any other attribute the user selects a range.
    """
    name = escape_markdown(attribute.name)
    if attribute.kind == "categorical" and attribute.size > MAX_LABELS:
        return [group_choice.choose_cell(st.container(), attribute, key=key)]
    if attribute.kind == "categorical":
        return st.multiselect(
            name, range(attribute.size), default=[0], format_func=attribute.label, key=key
        )
    if attribute.size == 1:
        return [0]
    if attribute.size <= MAX_STOPS:
        first, last = st.select_slider(
            name,
            range(attribute.size),
            value=(0, attribute.size - 1),
            format_func=lambda i: escape_markdown(cell_text(attribute, i)),
            key=key,
        )
    elif attribute.size <= MAX_LABELS:
        cells = range(attribute.size)
        text = partial(cell_text, attribute)
        start = st.selectbox(f"{name}: from", cells, format_func=text, key=f"{key}_first")
        end = st.selectbox(
            f"{name}: to", cells, index=attribute.size - 1, format_func=text, key=f"{key}_last"
        )
        first, last = sorted((start, end))
    else:
        first = int(
            st.number_input(f"{name}: first cell", 0, attribute.size - 1, 0, key=f"{key}_first")
        )
        last = int(
            st.number_input(f"{name}: last cell", first, attribute.size - 1, key=f"{key}_last")
        )
    return list(range(first, last + 1))
