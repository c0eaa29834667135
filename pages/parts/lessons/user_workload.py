"""The student's own workload in a lesson, where it is small enough to be worked out at once, and
the own budget.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import streamlit as st

from engine.mechanisms import forecast
from engine.workload import Workload
from pages.parts.lessons.url_state import dial
from pages.parts.shell import history

EXAMPLE, MINE = "The example", "My own workload"
AT_ONCE, ATTRIBUTES = (
    4.0,
    10,
)  # seconds that tuning may take by forecast, and a schema for short bounds


def user_workload(lesson: str) -> Workload | None:
    """Let the reader choose between the example and the own workload; the workload, None for the
    example.
    """
    workload = history.current().workload
    if workload is None or not workload.groups:
        st.caption("Once you have a workload of your own, this lesson can show it, too.")
        return None
    if len(workload.schema) > ATTRIBUTES or forecast(workload, centers="tuned").seconds > AT_ONCE:
        st.caption("Your own workload takes too long for a lesson; the Preview page shows it.")
        return None
    chosen = dial(
        st.radio,
        "Whose queries",
        (EXAMPLE, MINE),
        of=lesson,
        name="whose",
        default=EXAMPLE,
        horizontal=True,
    )
    return workload if chosen == MINE else None


def user_workload_cost(
    draw: Callable[..., Any],
    costs: Sequence[float],
    *,
    of: str,
    label: str = "Privacy cost (pcost)",
) -> float:
    """Let the reader choose among privacy costs, the one of the own plan among them and first;
    return it.
    """
    mine = history.current().budget.pcost
    chosen: float = dial(
        draw,
        label,
        tuple(sorted({*costs, mine})),
        of=of,
        name="pcost",
        default=mine,
        always=True,
        format_func=lambda cost: f"{cost:g} (your plan)" if cost == mine else f"{cost:g}",
    )
    return chosen
