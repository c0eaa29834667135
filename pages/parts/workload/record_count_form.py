"""Form for the expected record count and the CV thresholds of publication."""

from __future__ import annotations

from typing import Any

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from engine.analysis import NoiseScale
from engine.workload import Schema
from pages.parts.shell import demo_records
from pages.parts.shell.error_text import show_errors

RECORDS, PUBLISHABLE, DOUBTFUL = "scale_records", "scale_publishable", "scale_doubtful"
FILLED_IN = "scale_demo"  # session key: file of the demo whose record count was filled in
# Label, default in percent and session key of the largest CV of a publishable and of a doubtful
# answer.
LIMITS = (
    ("Maximum CV to publish (%)", 15.0, PUBLISHABLE),
    ("Maximum CV with a warning (%)", 30.0, DOUBTFUL),
)
# Arguments of `st.number_input` for the two limits of the CV.
PERCENT: dict[str, Any] = {
    "min_value": 0.1,
    "max_value": 1000.0,
    "step": 5.0,
    "format": "%g",
    "help": "Coefficient of variation: standard error / answer, in percent.",
}


def fill_in_demo_count(schema: Schema) -> None:
    """Enter the record count of the demo with this schema, once per project.

    Nothing is entered for other schemas, or if the field has a value.
    """
    file = demo_records.file_of(schema)
    if file is None or st.session_state.get(FILLED_IN) == file.name:
        return
    st.session_state[FILLED_IN] = file.name
    if st.session_state.get(RECORDS) is None:
        st.session_state[RECORDS] = demo_records.row_count(file)


def count_field() -> None:
    """Draw the field for the expected record count, and a sentence on what the page does with it."""
    st.number_input(
        "Expected record count (public)",
        min_value=1,
        value=None,
        key=RECORDS,
        placeholder="such as 48,842",
        persist_state="session",
    )
    if not st.session_state.get(RECORDS):
        st.caption("Shows which share of the answers is accurate enough to publish.")
        return
    percent = st.session_state.get(PUBLISHABLE, LIMITS[0][1])
    st.caption(
        f"Publishable: a coefficient of variation up to {percent:g}%, for evenly spread records."
    )


def limits(left: DeltaGenerator, right: DeltaGenerator) -> tuple[float, float]:
    """Draw fields for the largest CV of a publishable and of a doubtful answer; return the values.

    The coefficients of variation (CV) are in percent.
    """
    publishable, doubtful = (
        place.number_input(label, value=default, key=name, persist_state="session", **PERCENT)
        for place, (label, default, name) in zip((left, right), LIMITS, strict=True)
    )
    return publishable, doubtful


def linked_limits(key: str) -> None:
    """Draw the fields of `limits` for a view that a page can contain several times.

    ``key`` is the start of the widget keys. Every change applies to all such fields.
    """
    for label, default, name in LIMITS:
        copy = f"{key}_{name}"
        st.session_state[copy] = st.session_state.get(name, default)
        st.number_input(label, **PERCENT, key=copy, on_change=_copy, args=(copy, name))


def _copy(source: str, target: str) -> None:
    st.session_state[target] = st.session_state[source]


def entered_scale() -> NoiseScale | None:
    """Return the expected record count and the CV limits that were entered on any page.

    The result is None if no record count was entered, or if the limits are not valid; the page then
    shows the error.
    """
    return entered_limits() if st.session_state.get(RECORDS) else None


def entered_limits() -> NoiseScale | None:
    """Return the CV limits that were entered on any page, to rate released answers.

    The result also has a record count: the entered one, or 1. Ratings of released answers do not
    use it. Returns None if the limits are not valid; the page then shows the error.
    """
    form = st.session_state
    with show_errors():
        return NoiseScale(
            records=form.get(RECORDS) or 1,
            publishable=form.get(PUBLISHABLE, LIMITS[0][1]) / 100,
            doubtful=form.get(DOUBTFUL, LIMITS[1][1]) / 100,
        )
    return None
