"""Number of simulated records of a rehearsal, and its random seed."""

from __future__ import annotations

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from engine.workload import Schema
from pages.parts.shell import demo_records
from pages.parts.workload import record_count_form

DEFAULT_RECORDS = 10_000
MAX_RECORDS = 2_000_000  # simulated records that fit in memory
MAX_SEED, DEFAULT_SEED = 2**31 - 1, 1


def seed(place: DeltaGenerator, key: str) -> int:
    """Draw a popover with the random seed of a rehearsal, and return the seed."""
    with place.popover(f"Seed {st.session_state.get(key, DEFAULT_SEED)}"):
        number = st.number_input(
            "Random seed", 0, MAX_SEED, DEFAULT_SEED, key=key, persist_state="session"
        )
        st.caption(
            "Determines the simulated records and the noise: the same plan, number of records and"
            " seed give the same numbers again. A release has no seed."
        )
    return int(number)


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
    file = demo_records.file_of(schema)
    demo_rows = 0 if file is None else demo_records.row_count(file)
    records = demo_rows if scale is None else round(scale.records)
    default, form = max(1, min(records or DEFAULT_RECORDS, limit)), st.session_state
    if key not in form or form[key] == form.get(f"{key}_default"):
        form[key] = default
    form[f"{key}_default"] = default
    return limit
