"""Schema page: columns and their possible values."""

from dataclasses import replace

import streamlit as st

from engine.workload import Schema
from pages.parts.schema import code_list_form, constraints_form, draft_form, grid
from pages.parts.shell import history, page_layout, python_script
from pages.parts.shell.budgets import ROWS_LABEL
from pages.parts.shell.error_text import (
    deferred_error,
    deferred_errors,
    show_deferred_error,
)

page_layout.require()

TUTORIAL = (
    "A **schema** is **public knowledge**: take it from questionnaires, code books and laws, never"
    " from the records. A label listed only because one person has it would reveal that person."
)


def use_person(person: str, rows: str) -> None:
    """Apply the two fields of `person_form` to the schema; the arguments are the fields' keys."""
    form, schema = st.session_state, history.current().required_workload.schema
    with deferred_errors("unit"):
        history.choose_schema(
            replace(schema, person=form[person].strip() or None, rows_per_person=form[rows])
        )


def person_form(schema: Schema) -> None:
    """Draw the fields for records with several rows per person."""
    keys = f"unit_person_{history.version()}", f"unit_rows_{history.version()}"
    left, right, _ = st.columns([1, 1, 1])
    left.text_input(
        "Person ID column (optional)",
        schema.person or "",
        key=keys[0],
        on_change=use_person,
        args=keys,
        help="For people with several rows. Used only to limit them; never published.",
    )
    right.number_input(
        f"{ROWS_LABEL} (optional)",
        1,
        value=schema.rows_per_person,
        key=keys[1],
        on_change=use_person,
        args=keys,
        help="The budget protects this many rows together. You can change this on Preview.",
    )
    show_deferred_error("unit")
    if schema.rows_per_person is not None and schema.person is None:
        st.caption(
            "Without a person ID column, this limit is your assumption; the app cannot enforce it."
        )


def advanced_form(schema: Schema | None) -> None:
    """Draw the settings that few schemas need.

    They are code lists, impossible combinations, published totals, a data dictionary, a public
    table, and number and date formats of text files.
    """
    code_list_form.draw(schema)
    if schema is not None:
        left, right = st.columns(2)
        with left:
            constraints_form.rules(schema)
            draft_form.upload()
        with right:
            constraints_form.exact(schema)
    draft_form.public_table()
    st.toggle("Show columns for number and date formats in the grid", key=grid.SHOW_FORMATS)


request = page_layout.header(
    page_layout.page("Schema"),
    "Describe each column. Take its values from a code book, never from the records.",
    TUTORIAL,
)
draft_form.draw()
grid.draw(request.schema)
if request.schema is None:
    draft_form.upload()
else:
    person_form(request.schema)
show_deferred_error("start")
with st.expander(
    "Advanced: code list, impossible combinations, published totals, dictionary",
    key="schema_advanced",
    on_change="rerun",  # so that the expander stays open when elements above it appear or go
):
    advanced_form(request.schema)
reason = ""
if request.schema is None:
    reason = "Enter the values of at least one column to continue, or open a demo on Start."
elif error := deferred_error(grid.PLACE):
    row = error.partition(":")[0].partition(" (")[0]
    place = row.lower() if row.startswith("Row ") else "the grid"
    reason = f"Correct {place} to continue."
page_layout.footer(
    code=python_script.schema_script(request.schema).text(),
    target=page_layout.page("Workload"),
    reason=reason,
)
