"""Schema page: columns and their possible values."""

from dataclasses import replace

import streamlit as st

import demo_data
from engine import _format as texts
from engine import figures
from engine.records.subprocess_readers import SHEET_ENDINGS
from engine.workload import Attribute, Schema
from engine.workload.calendar import UNITS
from pages.parts.shell import figure_view, history, page_layout, python_script
from pages.parts.shell.budgets import ROWS_LABEL
from pages.parts.shell.error_text import deferred_errors, escape_markdown, show_deferred_error
from pages.parts.workload import constraints_form, draft_form
from pages.parts.workload.schema_table import (
    append_attribute,
    apply_edits,
    edge_numbers,
    rows,
    split_texts,
    text_lines,
)

page_layout.require()

TUTORIAL = (
    "A **schema** is **public knowledge**: take it from questionnaires, code books and laws, never"
    " from the records. A label listed only because one person has it would reveal that person."
)

OTHER_LABEL = "Label for unlisted values (leave blank to drop those rows)"
MISSING_LABEL = "Label for missing values (leave blank to drop those rows)"
NEW_ATTRIBUTE = {
    "new_name": "",
    "new_labels": "",
    "new_other": "",
    "new_missing": "",
    "new_edges": "",
    "new_clip": False,
    "new_integer": False,
    "new_size": 10,
    "new_kind": "numeric",
    "new_missing_values": "",
    "new_decimal": ".",
    "new_thousands": "",
    "new_start": "",
    "new_stop": "",
    "new_unit": "month",
    "new_date_format": "",
}
THOUSANDS_SIGNS = {
    "": "none",
    ".": "point (1.200)",
    ",": "comma (1,200)",
    " ": "space (1 200)",
    "'": "apostrophe (1'200)",
}


def use_demo() -> None:
    """Use the chosen demo schema."""
    with deferred_errors("start"):
        draft_form.clear()
        history.choose_schema(
            Schema.from_json(demo_data.schemas()[st.session_state.demo].read_bytes())
        )


def use_upload() -> None:
    """Use the uploaded schema."""
    file = st.session_state.get("schema_file")
    if file is None:
        draft_form.remove("schema_file")
        return
    with deferred_errors("start"):
        draft_form.take(file.name, file.getvalue())


def use_edits(base: Schema, key: str) -> None:
    """Apply the edits of the grid to its base schema."""
    with deferred_errors("table"):
        history.choose_schema(apply_edits(base, st.session_state[key]), redraw=False)


def add_attribute() -> None:
    """Add the attribute described by the form."""
    form = st.session_state
    with deferred_errors("form"):
        if form.domain == "Labels":
            attribute = Attribute.categorical(
                form.new_name,
                text_lines(form.new_labels),
                other=form.new_other or None,
                missing=form.new_missing or None,
                missing_values=split_texts(form.new_missing_values),
            )
        elif form.domain == "Bins":
            attribute = Attribute.numeric(
                form.new_name,
                edge_numbers(form.new_edges),
                clip=form.new_clip,
                integer=form.new_integer,
                missing_values=split_texts(form.new_missing_values),
                decimal=(
                    None if form.new_decimal == "." and not form.new_thousands else form.new_decimal
                ),
                thousands=form.new_thousands or None,
            )
        elif form.domain == "Dates":
            attribute = Attribute.dates(
                form.new_name,
                form.new_start,
                form.new_stop,
                form.new_unit,
                clip=form.new_clip,
                missing=form.new_missing or None,
                missing_values=split_texts(form.new_missing_values),
                date_format=form.new_date_format or None,
            )
        else:
            attribute = Attribute.of_size(
                form.new_name,
                form.new_size,
                kind=form.new_kind,
                missing_values=split_texts(form.new_missing_values),
            )
        history.choose_schema(append_attribute(history.current().schema, attribute))
        form.update(NEW_ATTRIBUTE)  # reset the form for the next attribute


def use_person(person: str, rows: str) -> None:
    """Use the person ID column and the maximum rows per person."""
    form, schema = st.session_state, history.current().required_workload.schema
    with deferred_errors("unit"):
        history.choose_schema(
            replace(schema, person=form[person].strip() or None, rows_per_person=form[rows])
        )


def starting_points() -> None:
    """Draw the choice of a demo schema and the file uploaders."""
    left, right = st.columns(2)
    with left:
        st.selectbox(
            "Demo schema",
            list(demo_data.TITLES),
            format_func=demo_data.TITLES.__getitem__,
            key="demo",
        )
        st.caption(demo_data.WORDS[st.session_state.demo])
        st.button(
            "Use this schema",
            on_click=use_demo,
            type="primary" if history.current().schema is None else "secondary",
        )
    with right:
        st.file_uploader(
            "Schema or data dictionary (JSON, CSV or Excel)",
            type=[*draft_form.JSON_ENDINGS, *draft_form.TEXT_TABLES, *SHEET_ENDINGS],
            key="schema_file",
            on_change=use_upload,
            max_upload_size=10,
            help=(
                "CSV or sheet: one row per attribute, columns name, kind, size, labels, edges,"
                " other, missing, clip (optional: integer, missing_values, decimal, thousands,"
                " start, stop, unit, date_format). A row of kind person: name is the person ID"
                " column, size the maximum rows per person. JSON: as downloaded below, or numbers"
                " of codes such as {'age': 85, 'sex': 2}. Data dictionary: columns name, value,"
                " label (one row per value), or name, values. Never upload records here."
            ),
        )
        draft_form.other_files()
    draft_form.draw()
    show_deferred_error("start")


def table_editor(schema: Schema) -> None:
    """Draw the attributes as an editable grid; a new base schema gets a new key."""
    key = f"schema_table_{history.version()}_{st.session_state.get('table_serial', 0)}"
    if key not in st.session_state or st.session_state.get("table_base") is None:
        st.session_state.table_serial = st.session_state.get("table_serial", 0) + 1
        key = f"schema_table_{history.version()}_{st.session_state.table_serial}"
        st.session_state.table_base = schema
    base = st.session_state.table_base
    columns = {
        "name": st.column_config.TextColumn(
            "name", help="Column name in the records", required=True
        ),
        "kind": st.column_config.SelectboxColumn(
            "kind",
            options=["categorical", "numeric", "dates"],
            required=True,
            default="categorical",
            help="Numeric attributes and dates are ordered, as ranges require",
        ),
        "size": st.column_config.TextColumn("codes", help="Number of codes 0, 1, 2, ..."),
        "labels": st.column_config.TextColumn(
            "labels", help="Labels separated by |", width="medium"
        ),
        "edges": st.column_config.TextColumn(
            "bin edges", help="Numbers separated by |", width="medium"
        ),
        "other": st.column_config.TextColumn("other", help="Label for unlisted values"),
        "missing": st.column_config.TextColumn(
            "missing", help="Label or number for missing values"
        ),
        "clip": st.column_config.SelectboxColumn(
            "clip",
            options=["true", "false"],
            help="Count out-of-range numbers in the first or last bin",
        ),
        "integer": st.column_config.SelectboxColumn(
            "integers",
            options=["true", "false"],
            help="Bins: all values are integers, so that age <= 39 means age < 40",
        ),
        "missing_values": st.column_config.TextColumn(
            "missing codes", help="Values separated by |, such as NA|.|9999"
        ),
        "decimal": st.column_config.SelectboxColumn(
            "decimal sign",
            options=[".", ","],
            help="Bins: decimal sign in text files",
        ),
        "thousands": st.column_config.SelectboxColumn(
            "thousands sign",
            options=list(THOUSANDS_SIGNS)[1:],
            format_func=lambda sign: THOUSANDS_SIGNS[str(sign)],
            help="Bins: thousands sign in text files",
        ),
        "start": st.column_config.TextColumn("start", help="Dates: first date, such as 2024-01"),
        "stop": st.column_config.TextColumn("end", help="Dates: last date, such as 2024-12"),
        "unit": st.column_config.SelectboxColumn(
            "unit", options=list(UNITS), help="Dates: one cell per unit"
        ),
        "date_format": st.column_config.TextColumn(
            "date format",
            help="Dates: format in text files, such as %d.%m.%Y (blank for 2024-03-15)",
        ),
    }
    st.data_editor(
        rows(base),
        num_rows="dynamic",
        hide_index=True,
        column_config=columns,
        key=key,
        on_change=use_edits,
        args=(base, key),
        alt="Editable attributes of the schema",
    )
    show_deferred_error("table")
    st.caption(
        "Give codes, labels or bin edges for each attribute; start, end and unit for dates. Invalid"
        " edits are ignored until fixed."
    )


def attribute_form() -> None:
    """Draw the form that adds one attribute."""
    with st.expander("Add an attribute", expanded=history.current().schema is None):
        st.text_input("Column name", key="new_name")
        kind = st.radio(
            "Values", ["Labels", "Bins", "Dates", "Codes"], horizontal=True, key="domain"
        )
        if kind == "Labels":
            st.text_area("Labels, one per line", key="new_labels", placeholder="F\nM")
            left, right = st.columns(2)
            left.text_input(OTHER_LABEL, key="new_other")
            right.text_input(MISSING_LABEL, key="new_missing")
        elif kind == "Bins":
            st.text_input("Bin edges", key="new_edges", placeholder="0, 18, 65, 120   or   0:100:5")
            st.checkbox(
                "Count out-of-range numbers in the first or last bin (otherwise drop the row)",
                key="new_clip",
            )
            st.checkbox(
                "Integer values (rows with fractions are dropped)",
                key="new_integer",
                help="Lets SQL read age <= 39 as age < 40.",
            )
            left, right = st.columns(2)
            left.selectbox("Decimal sign in text files", [".", ","], key="new_decimal")
            right.selectbox(
                "Thousands sign in text files",
                list(THOUSANDS_SIGNS),
                format_func=THOUSANDS_SIGNS.__getitem__,
                key="new_thousands",
            )
        elif kind == "Dates":
            _date_fields()
        else:
            left, right = st.columns(2)
            st.session_state.setdefault("new_size", NEW_ATTRIBUTE["new_size"])
            left.number_input("Number of codes (0, 1, 2, ...)", min_value=1, key="new_size")
            right.selectbox("Kind", ["numeric", "categorical"], key="new_kind")
        st.text_input(
            "Missing codes, separated by | (optional)",
            key="new_missing_values",
            placeholder="NA|.|-",
            help="These values count as missing. 9999 also covers 9999.0.",
        )
        st.button("Add attribute", on_click=add_attribute)
        show_deferred_error("form")


def _date_fields() -> None:
    """Draw the fields of a date attribute."""
    first, last, unit = st.columns(3)
    first.text_input("Start", key="new_start", placeholder="2024-01-01")
    last.text_input("End (inclusive)", key="new_stop", placeholder="2024-12-31")
    st.session_state.setdefault("new_unit", NEW_ATTRIBUTE["new_unit"])
    unit.selectbox("Cell unit", list(UNITS), key="new_unit")
    st.checkbox(
        "Count out-of-range dates in the first or last cell (otherwise drop the row)",
        key="new_clip",
    )
    left, right = st.columns(2)
    left.text_input(MISSING_LABEL, key="new_missing")
    right.text_input(
        "Date format in text files (optional)",
        key="new_date_format",
        placeholder="%d.%m.%Y",
        help=(
            "%Y year, %m month, %d day, %H hour, %M minute, %S second; blank for 2024-03-15. Times"
            " with a zone are converted to UTC."
        ),
    )


def person_form(schema: Schema) -> None:
    """Draw the fields for records with several rows per person."""
    keys = f"unit_person_{history.version()}", f"unit_rows_{history.version()}"
    left, right = st.columns(2)
    left.text_input(
        "Person ID column (optional)",
        schema.person or "",
        key=keys[0],
        on_change=use_person,
        args=keys,
        help="Used only to limit rows per person; never published.",
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


def at_a_glance(schema: Schema) -> None:
    """Draw the sizes of the attributes as numbers and as a chart."""
    drawing = figures.domain_picture(schema)
    largest = max(schema.attributes, key=lambda a: a.size)
    figure_view.numbers(
        ("Attributes", f"{len(schema):,}", "Columns to count"),
        ("Cells of the full table", texts.number(schema.size), "Product of all attribute sizes"),
        ("Largest attribute", texts.pluralize(largest.size, "cell"), largest.name),
    )
    figure_view.picture(drawing, key="domain", config=figure_view.EXPORT)


studio = page_layout.header(
    page_layout.page("Schema"),
    "Describe your columns and their possible values.",
    TUTORIAL,
)
starting_points()
if studio.schema is not None:
    st.header("Attributes")
    table_editor(studio.schema)
attribute_form()
if studio.schema is not None:
    st.header("People with several rows")
    person_form(studio.schema)
    st.header("Public constraints")
    constraints_form.rules(studio.schema)
    constraints_form.exact(studio.schema)
if studio.schema is None:
    st.info("No schema yet. Use a demo schema, upload a file or add an attribute.", icon="📋")
else:
    st.header("At a glance")
    at_a_glance(studio.schema)
    st.header("Save")
    left, right, _ = st.columns([1, 1, 2])
    left.download_button(
        "Download JSON",
        studio.schema.to_json,
        "schema.json",
        "application/json",
        on_click="ignore",
        width="stretch",
    )
    right.download_button(
        "Download CSV",
        studio.schema.to_csv,
        "schema.csv",
        "text/csv",
        on_click="ignore",
        width="stretch",
    )
    columns = [*([studio.schema.person] if studio.schema.person else []), *studio.schema.names]
    names = ", ".join(columns[:12]) + (" …" if len(columns) > 12 else "")
    st.caption(escape_markdown(f"Your records file must contain: {names}"))
page_layout.footer(
    code=python_script.schema_script(studio.schema).text(),
    target=page_layout.page("Workload"),
    reason="" if studio.schema is not None else "Choose or build a schema to continue.",
)
