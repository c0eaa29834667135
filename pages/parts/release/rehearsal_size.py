"""Number of simulated records of a rehearsal: the expected number, or that of a demo."""

from __future__ import annotations

import streamlit as st

import demo_data
from engine.workload import Schema
from pages.parts.workload import record_count_form

DEFAULT_RECORDS = 10_000
MAX_RECORDS = 2_000_000  # simulated records that fit in memory


def set_default(key: str, schema: Schema, max_records: int) -> int:
    """Give a field for the number of records its default, unless the user changed the field.

    The default is the expected number of records if one was entered on a page, or else the number
    of records of the demo with this schema, or else `DEFAULT_RECORDS`.

    Returns
    -------
    The largest number of records that the field allows.
    """
    limit = min(max_records, MAX_RECORDS)
    scale = record_count_form.entered_scale()
    records = demo_records(schema.to_json()) if scale is None else round(scale.records)
    default, form = max(1, min(records or DEFAULT_RECORDS, limit)), st.session_state
    if key not in form or form[key] == form.get(f"{key}_default"):
        form[key] = default
    form[f"{key}_default"] = default
    return limit


@st.cache_resource(max_entries=64, show_spinner=False)
def demo_records(schema: str) -> int:
    """Return the number of records of the demo whose schema this is; 0 for other schemas."""
    for name, table in demo_data.tables().items():
        demo_schema = Schema.from_json(demo_data.schemas()[name].read_bytes())
        if demo_schema.to_json() == schema:
            with table.open(encoding="utf-8") as lines:
                return sum(1 for _ in lines) - 1
    return 0
