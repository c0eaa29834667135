"""Cross table of two attributes: one in the rows, the other in the columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import streamlit as st

from engine.publish.tables_package import crosstab, is_cells
from engine.workload import Group, Schema
from engine.workload.attribute import ON_SCREEN
from pages.parts.shell import figure_view
from pages.parts.shell.error_text import escape_markdown

MAX_ROWS, MAX_COLUMNS = 5_000, 200  # larger tables are only in the downloads
OPEN_CELLS = 500  # cross tables with at most this many cells are open at first


def draw(
    schema: Schema, group: Group, values: Callable[[], Any], *, name: str, key: str, meaning: str
) -> None:
    """Draw the cross table of a group whose queries are the cells of two attributes.

    For other groups, and for tables that are too large for the screen, nothing is drawn.

    Parameters
    ----------
    values : returns one number per cell, in the order of the queries; NaN for a suppressed number.
    name : name of the downloaded files.
    key : start of the widget keys.
    meaning : what the numbers are, as a noun phrase such as "unbiased answers".
    """
    sizes = sorted(schema.sizes(group.attributes))
    if len(sizes) != 2 or not is_cells(group) or sizes[1] > MAX_ROWS or sizes[0] > MAX_COLUMNS:
        return
    with st.expander(
        "Cross table",
        key=f"{key}_crosstab_{'_'.join(group.attributes)}",
        expanded=group.count <= OPEN_CELLS,
        on_change="rerun",
    ) as fold:
        if not fold.open:
            return
        numbers = values()
        frame = crosstab(schema, group, numbers, between=ON_SCREEN, is_tall=True)
        rows, _, columns = str(frame.columns[0]).partition(" \\ ")
        text = f"Rows: {rows}; columns: {columns}. Numbers: {meaning}."
        st.caption(escape_markdown(text))
        decimals = 0 if (frame.iloc[:, 1:].stack().dropna() % 1 == 0).all() else 1
        st.dataframe(
            frame,
            hide_index=True,
            alt=f"Cross table of {rows} by {columns}: {meaning}",
            column_config={
                column: st.column_config.NumberColumn(format=f"%,.{decimals}f")
                for column in frame.columns[1:]
            },
            placeholder="–",
            key=f"{key}_crosstab_data",
        )
        figure_view.downloads(
            lambda: crosstab(schema, group, numbers, is_tall=True), name=f"{name}_crosstab"
        )
