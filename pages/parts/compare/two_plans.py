"""Two plans side by side, and the published numbers beside the app's own."""

from __future__ import annotations

from hashlib import sha256

import streamlit as st

from engine import analysis
from engine._format import format_number
from engine.mechanisms import load_plan, title_of
from engine.plans import Plan
from pages.parts.compare import script
from pages.parts.compare.run import Compared, running
from pages.parts.jobs import job_queue, job_widget, plan_cache, plans, tasks
from pages.parts.shell import buttons, figure_view
from pages.parts.shell.error_text import escape_markdown, show_errors
from pages.parts.shell.history import RequestState

PRESENT, FILE = "the present plan", "the uploaded file"


def difference(studio: RequestState, comparison: Compared | None) -> str:
    """What differs between two plans, and what that does to every group."""
    file = st.file_uploader(
        "Open another plan file", type=["json"], key="diff_file", max_upload_size=100
    )
    content = file.getvalue() if file is not None else None
    compared = comparison.best if comparison is not None else []
    sources = [PRESENT, *([FILE] if content is not None else []), *compared]
    if len(sources) < 2:
        todo = "wait for the comparison" if running() else "press Compare above"
        st.info(
            f"Open a plan file, or {todo}, to have a second plan beside the present one.", icon="⚖️"
        )
        return ""
    left, right = st.columns(2)
    one = left.selectbox("First plan", sources, format_func=title_of, key="diff_first")
    rest = [source for source in sources if source != one]
    other = right.selectbox(
        "Second plan", rest, format_func=title_of, key=f"diff_second_{FILE in sources}"
    )
    with show_errors():
        first, second = (_plan(studio, comparison, content, source) for source in (one, other))
        if first is None or second is None:
            return ""
        _shown(first, second)
        return script.difference(studio, comparison, one, other, present=PRESENT, file=FILE)
    return ""


def _plan(
    studio: RequestState, comparison: Compared | None, content: bytes | None, source: str
) -> Plan | None:
    if source == FILE and content is not None:
        return plan_cache.plan_of_key(sha256(content).hexdigest(), lambda: load_plan(content))
    return (
        comparison.plan(source)
        if comparison is not None and source != PRESENT
        else plans.plan_of(studio)
    )


def _shown(first: Plan, second: Plan) -> None:
    different = analysis.plan_diff(first, second)
    st.markdown(f"**{escape_markdown(analysis.summary(first, second))}**")
    if not different.words:
        st.success(
            "Both plans were asked the same: schema, workload, budget, mechanism and options"
            " agree.",
            icon="🟰",
        )
    for sentence in different.words:
        st.markdown(f"- {escape_markdown(sentence)}")
    if len(different.request):
        st.subheader("What differs in what was asked")
        figure_view.table(
            different.request, name="plan_differences", alt="Differences of the two requests"
        )
    st.subheader("Error of every group, in counts")
    figure_view.table(
        different.groups,
        name="plans_by_group",
        alt="RMSE of every group under both plans",
        height=380,
    )


def book(studio: RequestState, comparison: Compared | None) -> str:
    """The numbers that the paper prints, beside those that this machine computes."""
    st.caption(
        escape_markdown(
            "RMSE in counts at privacy cost 1. The paper's solvers were stopped early; here every"
            " row is solved to a certified gap, so that ours may be below the printed number and is"
            " never above it by more than rounding."
        )
    )
    left, right = st.columns([3, 1], vertical_alignment="bottom")
    rows = analysis.ROWS
    number = left.selectbox(
        "Row of the tables",
        range(len(rows)),
        format_func=lambda i: f"table {rows[i].table}: {rows[i]} (paper: {rows[i].printed:g})",
        key="book_row",
    )
    key = f"published|{number}"
    buttons.button(
        "Compute",
        job_widget.start,
        key,
        tasks.published,
        number,
        key="book_start",
        place=right,
        disabled=job_queue.is_there(key),
        width="stretch",
    )
    done = job_widget.job(key, label=f"Planning {rows[number]}")
    if done is not None:
        one, two, three = st.columns(3)
        one.metric("Paper", format_number(rows[number].printed), help="RMSE as printed, in counts")
        two.metric("Ours", format_number(done.result), help="RMSE as computed here, in counts")
        three.metric(
            "Ours / paper",
            f"{done.result / rows[number].printed:.4f}",
            help="Below 1 is more exact",
        )
    elif job_queue.find(key) is None:
        st.info(
            "This row has not been computed yet. Press Compute; most rows take seconds, the largest"
            " minutes."
        )
    jobs = {str(row): job_queue.find(f"published|{i}") for i, row in enumerate(rows)}
    ours = {text: job.result for text, job in jobs.items() if job is not None and job.done}
    st.subheader("All rows")
    figure_view.table(
        analysis.results_table(ours),
        name="published",
        alt="Printed and computed RMSE of every row",
        height=420,
    )
    return script.book(number)
