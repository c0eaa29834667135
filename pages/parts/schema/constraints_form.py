"""Forms for structural zeros and published totals."""

from __future__ import annotations

import streamlit as st

from engine._format import nonblank_lines
from engine.records.subprocess_readers import SHEET_ENDINGS
from engine.release.public_draft import public_tables, public_text
from engine.workload import Schema
from engine.workload.schema_io import decoded_text
from pages.parts.schema import draft_form
from pages.parts.shell import history
from pages.parts.shell.error_text import deferred_errors, escape_markdown, show_deferred_error

MAX_UPLOAD_MB = 10


def use_rules(key: str) -> None:
    """Replace the impossible combinations of the schema by the rules in the text field."""
    with deferred_errors("rules"):
        rules = nonblank_lines(st.session_state[key])
        history.choose_schema(
            history.current().required_workload.schema.with_facts(impossible=rules)
        )


def rules(schema: Schema) -> None:
    """Draw the field for impossible combinations."""
    st.text_area(
        "Impossible combinations, one rule per line (optional)",
        "\n".join(schema.impossible),
        key=(key := f"rules_{history.version()}"),
        on_change=use_rules,
        args=(key,),
        placeholder="age < 15 and married == 'yes'",
        help=(
            "These cells are published as 0, and rows that break a rule are dropped. Take rules"
            " from laws and questionnaires, never from the records."
        ),
    )
    show_deferred_error("rules")


def use_text(key: str) -> None:
    """Replace the published totals of the schema by those in the text field."""
    _use(st.session_state[key])


def use_file(key: str) -> None:
    """Add the published totals in an uploaded file to those of the schema."""
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
    """Draw the fields for published totals."""
    key, upload = f"exact_{history.version()}", f"exact_file_{history.version()}"
    st.text_area(
        "Totals already published (CSV; blank line between tables)",
        public_text(schema),
        key=key,
        on_change=use_text,
        args=(key,),
        placeholder="region,people\nnorth,310\nsouth,242",
        help=(
            "Every release repeats these totals without noise and spends no budget on them. They"
            " must equal the totals of the records. Take them from publications, never from the"
            " records."
        ),
    )
    st.file_uploader(
        "Published totals from a file (CSV or Excel)",
        type=["csv", *SHEET_ENDINGS],
        key=upload,
        on_change=use_file,
        args=(upload,),
        max_upload_size=MAX_UPLOAD_MB,
    )
    show_deferred_error("exact")
    if schema.invariants:
        st.warning(
            escape_markdown(
                f"{schema.exact_text[:1].upper()}{schema.exact_text[1:]} are published without"
                " protection. Releases satisfy subspace differential privacy, a weaker guarantee."
            ),
            icon="⚖️",
        )
