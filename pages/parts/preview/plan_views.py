"""Headline numbers, budget shares and file of a plan."""

from __future__ import annotations

import streamlit as st

from engine import _format as texts
from engine import analysis, figures
from engine.mechanisms import load_plan
from engine.plans import Plan
from pages.parts.preview import error_targets_view
from pages.parts.shell import figure_view, history
from pages.parts.shell.error_text import deferred_errors, show_deferred_error
from pages.parts.workload import record_count_form


def headline(plan: Plan) -> None:
    """Draw the main numbers of the plan."""
    best = error_targets_view.best(plan)
    with st.container(horizontal=True, gap="medium"):
        _number(
            "Typical error (counts)",
            texts.format_number(plan.rmse),
            "Root mean squared error (RMSE) over all queries.",
        )
        _number(
            "Largest error (counts)",
            texts.format_number(analysis.worst_error(plan)),
            "Standard error of the least accurate query.",
        )
        if best is None:
            _number(
                "Gap to its bound",
                analysis.gap_text(plan).replace("less than", "<"),
                "Weighted RMSE above the lower bound for plans of this kind.",
            )
        else:
            _number(
                "Gap to the best possible",
                f"≤ {best}" if best else "searching…",
                "Weighted RMSE above the theoretical limit for any matrix mechanism.",
            )
        if (scale := record_count_form.entered_scale()) is not None:
            share = analysis.quality_shares(plan, scale)[0]
            _number(
                "Publishable",
                f"{share:.0%}",
                f"Answers with a coefficient of variation up to {scale.publishable:.0%},"
                " for evenly spread records.",
            )


def _number(label: str, value: str, meaning: str) -> None:
    st.metric(label, value, help=meaning, width="content")


def budget(plan: Plan) -> None:
    """Draw the share of the budget of each measurement."""
    figure_view.picture(figures.budget_picture(plan), key="budget", config=figure_view.EXPORT)


def use_plan_file() -> None:
    """Replace workload, budget and mechanism by those of the uploaded plan."""
    file = st.session_state.get("plan_file")
    if file is None:
        return
    with deferred_errors("plan_file"):
        plan = load_plan(file.getvalue())
        options = dict(plan.options) | {"max_records": plan.max_records}
        studio = history.RequestState(
            workload=plan.workload, budget=plan.budget, mechanism=plan.mechanism
        )
        history.commit(studio.with_options(options), redraw=True)


def files(plan: Plan | None) -> None:
    """Draw the download and the upload of a plan file."""
    st.subheader("Save or load")
    left, right = st.columns(2)
    if plan is not None:
        left.download_button(
            "Download plan.json", plan.to_json, "plan.json", "application/json", on_click="ignore"
        )
    else:
        left.caption("There is no plan to download yet.")
    with right:
        st.file_uploader(
            "Open a plan file",
            type=["json"],
            key="plan_file",
            on_change=use_plan_file,
            max_upload_size=100,
        )
        show_deferred_error("plan_file")
