"""Differences between two plans, and reproduction of the published numbers.

A function that draws a view returns Python code that computes the numbers of the view.
"""

from __future__ import annotations

from hashlib import sha256

import streamlit as st

from engine import analysis
from engine._format import format_number
from engine.mechanisms import load_plan, title_of
from engine.plans import Plan
from pages.parts.compare import script
from pages.parts.compare.run import Compared, current_plan, running
from pages.parts.jobs import job_queue, job_widget, plan_cache, tasks
from pages.parts.shell import buttons, figure_view
from pages.parts.shell.error_text import escape_markdown, show_errors
from pages.parts.shell.history import RequestState

CURRENT, FILE = "current plan", "uploaded file"


def plans_view(request_state: RequestState, comparison: Compared | None) -> str:
    """Draw the differences between two plans, or the published results of the papers."""
    view = figure_view.choose_view(PLAN_VIEWS, key="plans_shown")
    return PLAN_VIEWS[view](request_state, comparison)


def difference(request_state: RequestState, comparison: Compared | None) -> str:
    """Draw the choice of two plans and their differences; return Python code that prints them.

    The code is empty without two plans.
    """
    file = st.file_uploader(
        "Upload a plan file", type=["json"], key="diff_file", max_upload_size=100
    )
    content = file.getvalue() if file is not None else None
    compared = comparison.best if comparison is not None else []
    sources = [CURRENT, *([FILE] if content is not None else []), *compared]
    if len(sources) < 2:
        action = "wait for the comparison" if running() else "press Compare above"
        st.info(f"To continue, upload a plan file or {action}.", icon="⚖️")
        return ""
    left, right = st.columns(2)
    first_source = left.selectbox("First plan", sources, format_func=title_of, key="diff_first")
    others = [source for source in sources if source != first_source]
    second_source = right.selectbox(
        "Second plan", others, format_func=title_of, key=f"diff_second_{FILE in sources}"
    )
    with show_errors():
        first, second = (
            _plan(request_state, comparison, content, source)
            for source in (first_source, second_source)
        )
        if first is None or second is None:
            return ""
        _draw_differences(first, second)
        return script.difference(
            request_state, comparison, first_source, second_source, current=CURRENT, file=FILE
        )
    return ""


def _plan(
    request_state: RequestState, comparison: Compared | None, content: bytes | None, source: str
) -> Plan | None:
    if source == FILE and content is not None:
        return plan_cache.plan_of_key(sha256(content).hexdigest(), lambda: load_plan(content))
    if comparison is not None and source != CURRENT:
        return comparison.plan(source)
    return current_plan(request_state)


def _draw_differences(first: Plan, second: Plan) -> None:
    """Draw the different settings of two plans, and their errors per table."""
    difference = analysis.plan_diff(first, second)
    st.markdown(f"**{escape_markdown(analysis.summary(first, second))}**")
    if not difference.words:
        st.success(
            "The two plans have identical settings.",
            icon="🟰",
        )
    for sentence in difference.words:
        st.markdown(f"- {escape_markdown(sentence)}")
    if len(difference.request):
        st.subheader("Different settings")
        figure_view.table(
            difference.request,
            name="plan_differences",
            alt="Settings that differ between the plans",
        )
    st.subheader("Error per table (counts)")
    figure_view.table(
        difference.groups,
        name="plans_by_group",
        alt="RMSE per table under both plans",
        height=380,
    )


def paper_numbers(request_state: RequestState, comparison: Compared | None) -> str:
    """Draw errors printed in the papers next to errors computed here; return Python code.

    The arguments are unused; they are those of the other view of this tab.
    """
    st.caption(
        escape_markdown(
            "RMSE in counts at pcost 1. The papers stopped their solvers early, so the results here"
            " can be slightly smaller."
        )
    )
    left, right = st.columns([3, 1], vertical_alignment="bottom")
    rows = analysis.ROWS
    number = left.selectbox(
        "Table row",
        range(len(rows)),
        format_func=lambda i: f"table {rows[i].table}: {rows[i]} (paper: {rows[i].printed:g})",
        key="book_row",
    )
    key = f"published|{number}"
    buttons.button(
        "Compute row",
        job_widget.start,
        key,
        tasks.recomputed_rmse,
        number,
        key="book_start",
        place=right,
        disabled=job_queue.is_there(key),
        width="stretch",
    )
    finished_job = job_widget.job(key, label=f"Planning {rows[number]}")
    if finished_job is not None:
        one, two, three = st.columns(3)
        one.metric("Paper", format_number(rows[number].printed), help="Printed RMSE (counts).")
        two.metric("Ours", format_number(finished_job.result), help="RMSE computed here (counts).")
        three.metric(
            "Ours / paper",
            f"{finished_job.result / rows[number].printed:.4f}",
            help="Below 1: more accurate than printed.",
        )
    elif job_queue.find(key) is None:
        st.info("Not computed yet. Most rows take seconds, the largest minutes.")
    jobs = {str(row): job_queue.find(f"published|{i}") for i, row in enumerate(rows)}
    ours = {text: job.result for text, job in jobs.items() if job is not None and job.done}
    st.subheader("All rows")
    figure_view.table(
        analysis.results_table(ours),
        name="published",
        alt="Printed and computed RMSE of all rows",
        height=420,
    )
    return script.paper_numbers(number)


PLAN_VIEWS = {"Two plans": difference, "Published results": paper_numbers}
