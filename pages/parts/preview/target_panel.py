"""Panel that finds the smallest budget at which the errors of a plan meet a target."""

from __future__ import annotations

import streamlit as st

from engine.plans import Plan
from pages.parts.preview import error_targets_view, group_targets_form

GOAL = "target_goal"  # key of the choice
GOALS = {
    "A share of all queries": error_targets_view.spread,
    group_targets_form.TITLE: group_targets_form.draw,
    "One query": error_targets_view.one_query,
    "Publishable answers": error_targets_view.usable,
}


def draw(plan: Plan) -> None:
    """Draw the choice of what the target applies to, its fields, and the budget that meets it."""
    goal = st.radio("Target for", list(GOALS), horizontal=True, key=GOAL, persist_state="session")
    GOALS[goal](plan)
