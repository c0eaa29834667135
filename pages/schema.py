"""Schema page: what is publicly known about the columns of the records, before anyone looks at
them.
"""

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
    "A **schema** lists the columns of your records and every value they may take. It is **public"
    " knowledge**: fix it from questionnaires, code books and laws, never from the records. A label"
    " that is in the list only because one person has it gives that person away before any noise is"
    " added, so this page never reads records. Values outside the schema are refused or counted as"
    " *other* later, as you decide here."
)

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
SIGNS = {
    "": "none",
    ".": "point (1.200)",
    ",": "comma (1,200)",
    " ": "blank (1 200)",
    "'": "apostrophe (1'200)",
}


def use_demo() -> None:
    """Take the chosen demo schema."""
    with deferred_errors("start"):
        draft_form.clear()
        history.choose_schema(
            Schema.from_json(demo_data.schemas()[st.session_state.demo].read_bytes())
        )


def use_upload() -> None:
    """Take the uploaded schema."""
    file = st.session_state.get("schema_file")
    if file is None:
        draft_form.remove("schema_file")
        return
    with deferred_errors("start"):
        draft_form.take(file.name, file.getvalue())


def use_edits(base: Schema, key: str) -> None:
    """Take the edits of the table; they apply to the schema that the table started from."""
    with deferred_errors("table"):
        history.choose_schema(apply_edits(base, st.session_state[key]), redraw=False)


def add_attribute() -> None:
    """Add the attribute of the form."""
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
        form.update(NEW_ATTRIBUTE)  # nothing of this attribute may describe the next one


def use_unit(person: str, rows: str) -> None:
    """Take whose rows they are."""
    form, schema = st.session_state, history.current().required_workload.schema
    with deferred_errors("unit"):
        history.choose_schema(
            replace(schema, person=form[person].strip() or None, rows_per_person=form[rows])
        )


def starting_points() -> None:
    """Demo schemas and files."""
    left, right = st.columns(2)
    with left:
        st.selectbox(
            "Start from a demo schema",
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
            "Or upload a schema or a data dictionary (JSON, CSV or a sheet)",
            type=[*draft_form.JSON_ENDINGS, *draft_form.TEXT_TABLES, *SHEET_ENDINGS],
            key="schema_file",
            on_change=use_upload,
            max_upload_size=10,
            help=(
                "CSV, or a sheet of a workbook: one row per attribute under"
                " name,kind,size,labels,edges,other,missing,clip and, where needed,"
                " integer,missing_values,decimal,thousands,start,stop,unit,date_format. JSON: as"
                " downloaded below, or simply {'age': 85, 'sex': 2} for codes from 0. A row of the"
                " kind person has as its name the column that tells the person, and as its size the"
                " most rows of one. A data dictionary: name,value,label with a row a value, or"
                " name,values. Never upload records here."
            ),
        )
        draft_form.other_files()
    draft_form.draw()
    show_deferred_error("start")


def table_editor(schema: Schema) -> None:
    """The attributes as an editable table: a fixed base under a key that changes when the base
    does.
    """
    key = f"schema_table_{history.version()}_{st.session_state.get('table_serial', 0)}"
    if key not in st.session_state or st.session_state.get("table_base") is None:
        st.session_state.table_serial = st.session_state.get("table_serial", 0) + 1
        key = f"schema_table_{history.version()}_{st.session_state.table_serial}"
        st.session_state.table_base = schema
    base = st.session_state.table_base
    words = {
        "name": st.column_config.TextColumn(
            "name", help="The column's name in the records", required=True
        ),
        "kind": st.column_config.SelectboxColumn(
            "kind",
            options=["categorical", "numeric", "dates"],
            required=True,
            default="categorical",
            help="Numeric cells and dates are ordered, so that ranges make sense",
        ),
        "size": st.column_config.TextColumn(
            "codes", help="Number of codes, when records hold 0, 1, 2, ..."
        ),
        "labels": st.column_config.TextColumn("labels", help="Texts joined by |", width="medium"),
        "edges": st.column_config.TextColumn(
            "bin edges", help="Numbers joined by |", width="medium"
        ),
        "other": st.column_config.TextColumn(
            "other", help="Label that collects texts outside the list"
        ),
        "missing": st.column_config.TextColumn(
            "missing", help="Label, or number, for missing values"
        ),
        "clip": st.column_config.SelectboxColumn(
            "clip", options=["true", "false"], help="Numbers outside go to the first or last bin"
        ),
        "integer": st.column_config.SelectboxColumn(
            "whole numbers",
            options=["true", "false"],
            help=(
                "With bin edges: all values are whole numbers. Fractions are refused, and SQL reads"
                " age <= 39 as age < 40"
            ),
        ),
        "missing_values": st.column_config.TextColumn(
            "texts that mean missing", help="Texts joined by |, such as NA|.|9999"
        ),
        "decimal": st.column_config.SelectboxColumn(
            "decimal sign",
            options=[".", ","],
            help="With bin edges: the decimal sign of numbers in text files",
        ),
        "thousands": st.column_config.SelectboxColumn(
            "thousands sign",
            options=list(SIGNS)[1:],
            format_func=lambda sign: SIGNS[str(sign)],
            help="With bin edges: the sign between groups of three digits in text files",
        ),
        "start": st.column_config.TextColumn("start", help="Dates: the first one, such as 2024-01"),
        "stop": st.column_config.TextColumn("end", help="Dates: the last one, such as 2024-12"),
        "unit": st.column_config.SelectboxColumn(
            "unit", options=list(UNITS), help="Dates: one cell per unit"
        ),
        "date_format": st.column_config.TextColumn(
            "date format",
            help="Dates: how text files write them, such as %d.%m.%Y; empty for 2024-03-15",
        ),
    }
    st.data_editor(
        rows(base),
        num_rows="dynamic",
        hide_index=True,
        column_config=words,
        key=key,
        on_change=use_edits,
        args=(base, key),
        alt="Attributes of the schema, editable",
    )
    show_deferred_error("table")
    st.caption(
        "Fill exactly one of codes, labels and bin edges, or start, end and unit for dates. The"
        " last valid table is the one that counts."
    )


def attribute_form() -> None:
    """A form that adds one attribute."""
    with st.expander("Add an attribute", expanded=history.current().schema is None):
        st.text_input("Name of the column", key="new_name")
        kind = st.radio(
            "Its values", ["Labels", "Bins", "Dates", "Codes"], horizontal=True, key="domain"
        )
        if kind == "Labels":
            st.text_area("Labels, one a line", key="new_labels", placeholder="F\nM")
            left, right = st.columns(2)
            left.text_input("Label that collects other texts (empty: refuse them)", key="new_other")
            right.text_input(
                "Label that collects missing values (empty: refuse them)", key="new_missing"
            )
        elif kind == "Bins":
            st.text_input("Bin edges", key="new_edges", placeholder="0, 18, 65, 120   or   0:100:5")
            st.checkbox(
                "Put numbers outside into the first or last bin (otherwise refuse them)",
                key="new_clip",
            )
            st.checkbox(
                "The values are whole numbers (fractions are refused)",
                key="new_integer",
                help=(
                    "Then SQL may ask age <= 39, which is age < 40. Leave it empty for amounts with"
                    " cents."
                ),
            )
            left, right = st.columns(2)
            left.selectbox("Decimal sign in text files", [".", ","], key="new_decimal")
            right.selectbox(
                "Thousands sign in text files",
                list(SIGNS),
                format_func=SIGNS.__getitem__,
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
            "Texts that mean missing, joined by | (empty: none)",
            key="new_missing_values",
            placeholder="NA|.|-",
            help=(
                "Such texts count as a missing value of this column does. A number, such as 9999,"
                " is meant in every spelling."
            ),
        )
        st.button("Add attribute", on_click=add_attribute)
        show_deferred_error("form")


def _date_fields() -> None:
    """Draw the fields of an attribute of dates."""
    first, last, unit = st.columns(3)
    first.text_input("Start", key="new_start", placeholder="2024-01-01")
    last.text_input("End (included)", key="new_stop", placeholder="2024-12-31")
    st.session_state.setdefault("new_unit", NEW_ATTRIBUTE["new_unit"])
    unit.selectbox("Unit of a cell", list(UNITS), key="new_unit")
    st.checkbox(
        "Put dates outside into the first or last cell (otherwise refuse them)", key="new_clip"
    )
    left, right = st.columns(2)
    left.text_input("Label of a cell for missing values (empty: refuse them)", key="new_missing")
    right.text_input(
        "Date format in text files (empty: 2024-03-15)",
        key="new_date_format",
        placeholder="%d.%m.%Y",
        help=(
            "%Y year, %m month, %d day, %H hour, %M minute, %S second. Times with a zone count on"
            " their day in UTC."
        ),
    )


def unit_form(schema: Schema) -> None:
    """Whose rows they are, for records with several rows of a person."""
    keys = f"unit_person_{history.version()}", f"unit_rows_{history.version()}"
    left, right = st.columns(2)
    left.text_input(
        "Column that tells the person (empty: none does)",
        schema.person or "",
        key=keys[0],
        on_change=use_unit,
        args=keys,
        help=(
            "Its values are in no table; they only tell whose row it is, so that no more than so"
            " many of each count."
        ),
    )
    right.number_input(
        f"{ROWS_LABEL} (empty: not declared)",
        1,
        value=schema.rows_per_person,
        key=keys[1],
        on_change=use_unit,
        args=keys,
        help=(
            "The budget on the Preview page protects that many rows together, unless you change it"
            " there."
        ),
    )
    show_deferred_error("unit")
    if schema.rows_per_person is not None and schema.person is None:
        st.caption("Without a column nothing keeps a person to that many rows: it is your word.")


def at_a_glance(schema: Schema) -> None:
    """Sizes as numbers and as a picture."""
    picture = figures.domain_picture(schema)
    largest = max(schema.attributes, key=lambda a: a.size)
    figure_view.numbers(
        ("Attributes", f"{len(schema):,}", "Columns of the records that may be counted"),
        ("Cells of the full table", texts.number(schema.size), "Product of the numbers of cells"),
        ("Largest attribute", texts.pluralize(largest.size, "cell"), largest.name),
    )
    figure_view.picture(picture, key="domain", config=figure_view.EXPORT)


studio = page_layout.header(
    page_layout.page("Schema"),
    "Say what is publicly known about the records: columns and their values.",
    TUTORIAL,
)
starting_points()
if studio.schema is not None:
    st.header("Attributes")
    table_editor(studio.schema)
attribute_form()
if studio.schema is not None:
    st.header("Whose rows")
    unit_form(studio.schema)
    st.header("Impossible cells")
    constraints_form.rules(studio.schema)
    st.header("Exact totals")
    constraints_form.exact(studio.schema)
if studio.schema is None:
    st.info(
        "No schema yet. Use a demo schema, upload a file, or add the first attribute.", icon="📋"
    )
else:
    st.header("At a glance")
    at_a_glance(studio.schema)
    st.header("Keep it")
    left, right, _ = st.columns([1, 1, 2])
    left.download_button(
        "Schema as JSON",
        studio.schema.to_json,
        "schema.json",
        "application/json",
        on_click="ignore",
        width="stretch",
    )
    right.download_button(
        "Schema as CSV",
        studio.schema.to_csv,
        "schema.csv",
        "text/csv",
        on_click="ignore",
        width="stretch",
    )
    columns = [*([studio.schema.person] if studio.schema.person else []), *studio.schema.names]
    names = ", ".join(columns[:12]) + (" …" if len(columns) > 12 else "")
    st.caption(escape_markdown(f"Columns that will be looked for in the records: {names}"))
page_layout.footer(
    code=python_script.schema_script(studio.schema).text(),
    target=page_layout.page("Workload"),
    reason="" if studio.schema is not None else "choose or build a schema first.",
)
