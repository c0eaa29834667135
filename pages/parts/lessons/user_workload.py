"""Choice between the example of a lesson and the user's workload and budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import streamlit as st

from engine._format import cost
from engine.mechanisms import forecast
from engine.workload import Workload
from pages.parts.lessons.url_state import dial
from pages.parts.shell import history

EXAMPLE, MINE = "Example", "My workload"
MAX_TUNING_S, MAX_ATTRIBUTES = 4.0, 10  # limits for a lesson


def user_workload(lesson: str) -> Workload | None:
    """Draw the choice between the example of a lesson and the user's workload.

    Returns None if the user chose the example, has no workload, or has one that is too large.
    ``lesson`` is the name of the lesson.
    """
    workload = history.current().workload
    if workload is None or not workload.groups:
        st.caption("To use your own queries here, add them on Workload.")
        return None
    is_large = len(workload.schema) > MAX_ATTRIBUTES
    if is_large or forecast(workload, centers="tuned").seconds > MAX_TUNING_S:
        st.caption("Your workload is too large for this lesson; see Preview.")
        return None
    choice = dial(
        st.radio,
        "Queries",
        (EXAMPLE, MINE),
        of=lesson,
        name="whose",
        default=EXAMPLE,
        horizontal=True,
    )
    return workload if choice == MINE else None


def user_workload_cost(
    draw: Callable[..., Any],
    costs: Sequence[float],
    *,
    of: str,
    default: float,
    label: str = "Privacy cost (pcost)",
) -> float:
    """Draw the choice of a privacy cost (pcost) of a lesson, and return it.

    Parameters
    ----------
    draw : function that draws the widget, such as ``st.select_slider``.
    costs : costs to choose from; the privacy cost of the user's budget is added to them if the user
        has a project.
    of : name of the lesson.
    default : cost at which the figure shows what the lesson teaches.
    """
    request = history.current()
    has_project = request.workload is not None
    project_cost = request.budget.pcost if has_project else default
    choice: float = dial(
        draw,
        label,
        tuple(sorted({*costs, project_cost})),
        of=of,
        name="pcost",
        default=default,
        format_func=lambda pcost: (
            f"{cost(pcost)} (your budget)" if has_project and pcost == project_cost else cost(pcost)
        ),
    )
    return choice
