"""Choice between the example of a lesson and the user's workload and budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import streamlit as st

from engine._format import cost
from engine.mechanisms import forecast
from engine.workload import Workload
from pages.parts.lessons import url_state
from pages.parts.lessons.url_state import dial, present_number
from pages.parts.shell import history

# A shared address can contain the privacy cost (pcost) of another user's plan. A cost outside this
# interval is ignored.
MIN_SHARED_COST, MAX_SHARED_COST = 1e-6, 1e6
# Help text of every choice of a privacy cost
COST_HELP = (
    "1 divided by the noise variance of a single count. More pcost: less noise, less protection."
    " Success rates and privacy losses on this page are rounded up, so that the protection is at"
    " least as good as stated."
)
EXAMPLE, MINE = "Example", "My workload"
MAX_TUNING_S, MAX_ATTRIBUTES = 4.0, 10  # limits for a lesson


def is_used(lesson: str) -> bool:
    """Return whether the user chose their own workload in a lesson."""
    return url_state.all_choices().get(lesson, {}).get("whose") == MINE


def user_workload(lesson: str) -> Workload | None:
    """Draw the choice between the example of a lesson and the user's workload.

    Returns None if the user chose the example, has no queries, or has a workload that is too large.
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


def choose_pcost(
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
    costs : costs to choose from.  Two costs are added: the privacy cost of the budget if the user
        has a workload, and the cost in the URL, or chosen before, if it is in the allowed interval.
    of : name of the lesson.
    default : cost at which the figure shows what the lesson teaches.
    """
    request = history.current()
    has_project = request.workload is not None
    project_cost = request.budget.pcost if has_project else default
    options = {*costs, project_cost}
    shared_cost = present_number(of, "pcost")
    if shared_cost is not None and MIN_SHARED_COST <= shared_cost <= MAX_SHARED_COST:
        options.add(shared_cost)
    choice: float = dial(
        draw,
        label,
        tuple(sorted(options)),
        of=of,
        name="pcost",
        default=default,
        help=COST_HELP,
        format_func=lambda pcost: (
            f"{cost(pcost)} (your budget)" if has_project and pcost == project_cost else cost(pcost)
        ),
    )
    return choice
