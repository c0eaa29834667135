"""A schema drafted from a data dictionary, line by line to confirm; and the way out for a file of records."""

from __future__ import annotations

import streamlit as st

from engine import Attribute, Schema
from engine.texts import how_many
from engine.workload import HOLD, columns_of_records, is_dictionary, schema_from_dictionary, schema_template
from pages.parts.shell import state
from pages.parts.shell.words import kept_for, plain
from pages.parts.workload.schema_table import read_schema

DICTIONARY, RECORDS, AGREED = "dictionary", "columns_of_records", "draft_agreed"
SHOWN = 12  # values of an attribute


def take(name: str, content: bytes) -> None:
    """Take an uploaded schema; keep a dictionary to be confirmed, and of records nothing but their column names."""
    kept = state.only_here()
    kept.pop(DICTIONARY, None)
    kept.pop(RECORDS, None)
    table = name.lower().endswith(".csv")
    if table and is_dictionary(content):
        kept[DICTIONARY] = content
    elif table and (columns := columns_of_records(content)):
        kept[RECORDS] = columns
    else:
        state.choose_schema(read_schema(name, content))


def draw() -> None:
    """Draw what a file that is no schema needs, if one was given."""
    if columns := state.only_here().get(RECORDS):
        _way_out(columns)
    if state.only_here().get(DICTIONARY) is not None:
        _draft(state.only_here()[DICTIONARY])


def _way_out(columns: tuple[str, ...]) -> None:
    with st.container(border=True):
        st.warning(
            f"This looks like a file of records: its first line names {how_many(len(columns), 'column')}. Records are "
            "never read for a schema, because a value that is there once would give somebody away. Nothing of it was "
            "kept but these names. Fill the template in from a questionnaire or a code book and upload it; the records "
            "come in on the page Release.",
            icon="🛑",
        )
        names = schema_template(columns)
        st.download_button("Template with these columns", names, "schema.csv", "text/csv", on_click="ignore")


def _draft(content: bytes) -> None:
    with st.container(border=True):
        st.subheader("Drafted from your data dictionary")
        hold = st.radio(
            "Where a value has a code and a label, your records hold the", HOLD, horizontal=True, key="draft_hold"
        )
        with kept_for("start"):
            found = schema_from_dictionary(content, hold=hold)
            _confirm(found)


def _confirm(found: Schema) -> None:
    st.caption("Look at every line: are these all values that there can be, and is none of them there by chance?")
    agreed = []
    whole = st.checkbox("I have looked at all of them", key=AGREED)
    for number, attribute in enumerate(found.attributes):
        values = ", ".join(attribute.label(i) for i in range(min(attribute.size, SHOWN)))
        more = f", … {attribute.label(attribute.size - 1)}" if attribute.size > SHOWN else ""
        words = plain(f"{attribute.name}: {how_many(attribute.size, 'cell')} ({values}{more})")
        if st.checkbox(words, key=f"draft_{number}", disabled=whole) or whole:
            agreed.append(attribute)
    st.button(
        f"Use {how_many(len(agreed), 'confirmed attribute')}",
        on_click=_use,
        args=(tuple(agreed),),
        disabled=not agreed,
        help=None if agreed else "Tick the lines that are right.",
        key="use_draft",
        type="primary",
    )


def _use(agreed: tuple[Attribute, ...]) -> None:
    with kept_for("start"):
        state.choose_schema(Schema(agreed))
    state.only_here().pop(DICTIONARY, None)
