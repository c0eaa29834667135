"""Views of a whole plan: what it promises, where the budget goes, and its file."""

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
    """What the plan promises, in a few numbers with unit and meaning."""
    best = error_targets_view.best(plan)
    with st.container(horizontal=True, gap="medium"):
        _number(
            "Typical error (counts)",
            texts.format_number(plan.rmse),
            "RMSE: root of the mean squared error over all queries. About two thirds of the answers"
            " will be off by less than this, 95% by less than twice this.",
        )
        _number(
            "Largest error (counts)",
            texts.format_number(analysis.worst_error(plan)),
            "Standard error of the query that comes out least exact",
        )
        if best is None:
            _number(
                "Over its bound",
                analysis.gap_text(plan).replace("less than", "<"),
                "How much larger the weighted RMSE is than what any plan of this class must have;"
                " 0% is the best.",
            )
        else:
            _number(
                "Over the best possible",
                f"≤ {best}" if best else "searching…",
                "How much larger the weighted RMSE is at most than what any matrix mechanism can"
                " reach, whatever it measures; proven for this workload.",
            )
        if (scale := record_count_form.entered_scale()) is not None:
            share = analysis.quality_shares(plan, scale)[0]
            _number(
                "Publishable",
                f"{share:.0%}",
                "Share of the answers with a coefficient of variation up to"
                f" {scale.publishable:.0%}, if the expected records are spread evenly",
            )


def _number(label: str, value: str, meaning: str) -> None:
    st.metric(label, value, help=meaning, width="content")


def budget(plan: Plan) -> None:
    """Where the budget goes."""
    figure_view.picture(figures.budget_picture(plan), key="budget", config=figure_view.EXPORT)


def use_plan_file() -> None:
    """Take workload, budget and mechanism from the uploaded plan."""
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
    """Keep the plan, or take another one."""
    st.subheader("Keep it")
    left, right = st.columns(2)
    if plan is not None:
        left.download_button(
            "Download plan.json", plan.to_json, "plan.json", "application/json", on_click="ignore"
        )
    else:
        left.caption("A plan can be downloaded once there is one.")
    with right:
        st.file_uploader(
            "Open a plan file",
            type=["json"],
            key="plan_file",
            on_change=use_plan_file,
            max_upload_size=100,
        )
        show_deferred_error("plan_file")
