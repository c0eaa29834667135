"""Public facts about the records: combinations that nobody can have, and totals that are exact."""

from __future__ import annotations

import streamlit as st

from engine.records.subprocess_readers import SHEET_ENDINGS
from engine.release.public_draft import public_tables, public_text
from engine.workload import Schema
from engine.workload.schema_io import decoded_text
from pages.parts.shell import history
from pages.parts.shell.error_text import deferred_errors, escape_markdown, show_deferred_error
from pages.parts.workload import draft_form
from pages.parts.workload.schema_table import text_lines

MAX_UPLOAD = 10  # megabytes


def use_rules(key: str) -> None:
    """Take the rules for impossible cells."""
    with deferred_errors("rules"):
        rules = text_lines(st.session_state[key])
        history.choose_schema(
            history.current().required_workload.schema.with_facts(impossible=rules)
        )


def rules(schema: Schema) -> None:
    """Combinations that nobody can have."""
    st.text_area(
        "Combinations that nobody can have, one rule a line (empty: all are possible)",
        "\n".join(schema.impossible),
        key=(key := f"rules_{history.version()}"),
        on_change=use_rules,
        args=(key,),
        placeholder="age < 15 and married == 'yes'",
        help=(
            "Published tables are exactly 0 there, and rows that break a rule are left out of every"
            " count. Take rules from laws and questionnaires, never from the records."
        ),
    )
    show_deferred_error("rules")


def use_text(key: str) -> None:
    """Take exact totals as they were written."""
    _use(st.session_state[key])


def use_file(key: str) -> None:
    """Add exact totals from a file to those that are there."""
    file = st.session_state.get(key)
    if file is not None:
        with deferred_errors("exact"):
            text = decoded_text(draft_form.as_text(file.name, file.getvalue())[1])
            totals = public_text(history.current().required_workload.schema)
            _use(f"{totals}\n{text}" if totals else text)


def _use(text: str) -> None:
    with deferred_errors("exact"):
        schema = history.current().required_workload.schema
        history.choose_schema(schema.with_facts(invariants=public_tables(text, schema)))


def exact(schema: Schema) -> None:
    """Totals that are public and exact already."""
    st.text_area(
        "Totals that are published already, as CSV with a header, an empty line between tables"
        " (empty: none)",
        public_text(schema),
        key=(key := f"exact_{history.version()}"),
        on_change=use_text,
        args=(key,),
        placeholder="region,people\nnorth,310\nsouth,242",
        help=(
            "Every release keeps them to the digit and spends nothing on them. The records must"
            " agree with them. Take them from what is published, never from the records."
        ),
    )
    st.file_uploader(
        "Or add a table from a CSV file or a sheet",
        type=["csv", *SHEET_ENDINGS],
        key=(upload := f"exact_file_{history.version()}"),
        on_change=use_file,
        args=(upload,),
        max_upload_size=MAX_UPLOAD,
    )
    show_deferred_error("exact")
    if schema.invariants:
        st.warning(
            escape_markdown(
                f"Nothing protects what {schema.exact_text} say. Releases are then subspace"
                " differential privacy, which is weaker than the plain one, and say so."
            ),
            icon="⚖️",
        )
