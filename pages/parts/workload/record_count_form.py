"""The scale that noise is read on: an expected number of records, asked once, and the thresholds of
the office.
"""

from __future__ import annotations

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from engine.analysis import NoiseScale
from pages.parts.shell.error_text import show_errors

RECORDS, PUBLISHABLE, DOUBTFUL = "scale_records", "scale_publishable", "scale_doubtful"


def scale() -> NoiseScale | None:
    """Draw what noise is set against; None until a number of records is given."""
    left, middle, right = st.columns([2, 1, 1], vertical_alignment="bottom")
    records = left.number_input(
        "Expected number of records (public)",
        min_value=1,
        value=None,
        key=RECORDS,
        placeholder="such as 48,842",
        persist_state="session",
        help=(
            "A number that may be known, such as the size of the population. It is asked once, and"
            " never read from the records."
        ),
    )
    publishable = _percent(middle, "Publishable up to (CV %)", 15.0, PUBLISHABLE)
    doubtful = _percent(right, "Doubtful up to (CV %)", 30.0, DOUBTFUL)
    if records is None:
        st.caption(
            "Give it to see which answers are publishable, which are doubtful and which are mere"
            " noise."
        )
        return None
    with show_errors():
        return NoiseScale(records=records, publishable=publishable / 100, doubtful=doubtful / 100)
    return None


def entered_scale() -> NoiseScale | None:
    """The scale, where a number of records was given on any page."""
    return other_page_scale() if st.session_state.get(RECORDS) else None


def other_page_scale() -> NoiseScale | None:
    """The scale that was given on another page; for answers only its thresholds matter."""
    form = st.session_state
    with show_errors():
        return NoiseScale(
            records=form.get(RECORDS) or 1,
            publishable=form.get(PUBLISHABLE, 15.0) / 100,
            doubtful=form.get(DOUBTFUL, 30.0) / 100,
        )
    return None


def _percent(place: DeltaGenerator, label: str, start: float, key: str) -> float:
    return place.number_input(
        label,
        0.1,
        1000.0,
        start,
        step=5.0,
        format="%g",
        key=key,
        persist_state="session",
        help="Coefficient of variation: the standard error over the answer, in percent.",
    )
