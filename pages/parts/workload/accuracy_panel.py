"""Accuracy panel of the Workload page: budget, errors, and the effect of adding tables."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from engine import analysis, figures
from engine._format import format_number
from engine.plans import Plan
from engine.workload import Group
from pages.parts.glossary import meaning
from pages.parts.jobs import plans
from pages.parts.shell import figure_view, history
from pages.parts.workload import budget_form, forecast_form

MAX_NAME_CHARS = 22  # longer names of tables are shortened in the list


def draw(proposed: Sequence[Group]) -> Plan | None:
    """Draw the panel; return the plan of the current request, or None if it is not computed yet.

    ``proposed`` are the groups that the open form would add to the workload.
    """
    request_state = history.current()
    plan = None
    with st.container(border=True):
        st.subheader("Accuracy at this budget", anchor=False)
        budget_form.slider(request_state.budget)
        if request_state.required_workload.groups:
            plan = plans.live_plan(request_state)
        if plan is not None:
            _errors(plan)
        if proposed:
            forecast_form.effect(proposed)
    return plan


def _errors(plan: Plan) -> None:
    """Draw the typical and the largest error, and the five least accurate tables."""
    figure_view.numbers(
        (
            "Typical error",
            format_number(plan.rmse),
            meaning("Typical error"),
        ),
        (
            "Largest error",
            format_number(analysis.worst_error(plan)),
            meaning("Largest error"),
        ),
    )
    table = analysis.worst_tables(plan)
    groups = len(plan.workload.groups)
    part = f": {len(table)} of {groups:,}" if len(table) < groups else ""
    st.markdown(f"**Tables by typical error{part}**")
    names = figures.short_table_names(table["attributes"].tolist(), MAX_NAME_CHARS)
    st.dataframe(
        table.assign(attributes=names),
        hide_index=True,
        alt="The five tables with the largest typical errors",
        column_config={
            "attributes": st.column_config.TextColumn("Table", width=160),
            "typical error": st.column_config.NumberColumn(
                "Typical error",
                format="%,.2f",
                width=110,
                help="Root mean square (RMSE) of the standard errors in the table, in counts.",
            ),
        },
    )
