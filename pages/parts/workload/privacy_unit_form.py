"""Form for the protected unit: rows per person and neighbouring datasets."""

from __future__ import annotations

from dataclasses import replace

import streamlit as st

from engine.privacy import Budget
from pages.parts.shell import history
from pages.parts.shell.budgets import AGAINST, AGAINST_LABEL, ROWS_LABEL
from pages.parts.shell.error_text import deferred_errors, escape_markdown


def use_person(rows: str, neighbours: str) -> None:
    """Apply rows per person and neighbouring datasets to the budget; the arguments are field
    keys."""
    with deferred_errors("budget"):
        unit = {
            "rows_per_person": int(st.session_state[rows]),
            "neighbours": st.session_state[neighbours],
        }
        history.change(budget=replace(history.current().budget, **unit), redraw=True)


def person(budget: Budget) -> None:
    """Draw the inputs for rows per person and neighbouring datasets."""
    version = history.version()
    schema = history.current().schema
    rows, neighbours = f"budget_rows_{version}", f"budget_neighbours_{version}"
    left, right = st.columns(2)
    left.number_input(
        ROWS_LABEL,
        1,
        value=budget.rows_per_person,
        key=rows,
        on_change=use_person,
        args=(rows, neighbours),
        help="Protects all rows of a person. With 3 rows, errors are 3 times as large.",
    )
    right.selectbox(
        AGAINST_LABEL,
        list(AGAINST),
        list(AGAINST).index(budget.neighbours),
        AGAINST.__getitem__,
        key=neighbours,
        on_change=use_person,
        args=(rows, neighbours),
        help="Protecting the values instead of the presence gives 1.4 times the error.",
    )
    if schema is not None and (note := schema.rows_per_person_conflict(budget.rows_per_person)):
        st.warning(escape_markdown(note))
