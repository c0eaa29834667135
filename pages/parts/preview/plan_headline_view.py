"""Headline numbers of a plan, and where its budget goes."""

from __future__ import annotations

import streamlit as st

from engine import _format as texts
from engine import analysis, figures
from engine.mechanisms import mechanism_class
from engine.plans import Plan
from pages.parts.glossary import meaning
from pages.parts.preview import error_targets_view
from pages.parts.shell import figure_view, history
from pages.parts.shell.error_text import escape_markdown
from pages.parts.workload import budget_form, record_count_form


def headline(plan: Plan | None) -> None:
    """Draw the slider of the budget, and left of it the main numbers of the plan, if there is one."""
    left, right = st.columns([9, 5])
    with right:
        budget_form.slider(history.current().budget)
    if plan is None:
        return
    with left, st.container(horizontal=True):
        _numbers(plan)


def _numbers(plan: Plan) -> None:
    """Draw the typical error, the largest error and the gap to a lower bound.

    With an expected record count, the share of publishable answers is drawn as well; the text below
    the field of this count says what publishable means.
    """
    best = error_targets_view.best(plan)
    _number(
        "Typical error (counts)",
        texts.format_number(plan.rmse),
        meaning("Typical error"),
    )
    _number(
        "Largest error (counts)",
        texts.format_number(analysis.worst_error(plan)),
        meaning("Largest error"),
    )
    if best is None:
        _number(
            "Gap to its bound",
            analysis.gap_text(plan).replace("less than", "<"),
            "Excess of the minimized error over its lower bound for plans of this kind.",
        )
    else:
        _number(
            "Gap to the best possible",
            f"≤ {best}" if best else "searching…",  # "" while a worker searches for the bound
            meaning("Gap"),
        )
    if (scale := record_count_form.entered_scale()) is not None:
        share = analysis.quality_shares(plan, scale)[0]
        _number("Publishable", texts.percent(share, 0))


def _number(label: str, value: str, tooltip: str | None = None) -> None:
    st.metric(label, value, help=tooltip, width="content")


def optimality(plan: Plan) -> None:
    """Draw the gaps of a plan to its lower bounds, and the share of the budget per measurement."""
    error_targets_view.distance(plan)
    title = mechanism_class(history.current().mechanism).title
    st.caption(escape_markdown(f"Mechanism: {title}. Compare offers others and their options."))
    with st.popover("Budget by measurement"):
        picture = figures.budget_picture(plan)
        figure_view.chart(picture, key="budget", config=figure_view.EXPORT)()
        figure_view.downloads(lambda: picture.table, name="budget")
