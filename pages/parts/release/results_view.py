"""Looking at a measurement: answers page by page, questions asked afterwards, downloads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import streamlit as st

from demo_data.make_synthetic import synthetic
from engine import _format as texts
from engine import figures
from engine.analysis.ad_hoc_queries import add_truth
from engine.analysis.relative_error import quality_counts_text, with_quality
from engine.plans import Plan
from engine.release import Measurement
from engine.workload import Schema
from pages.parts.jobs import job_widget, tasks
from pages.parts.release import download_view, published_view
from pages.parts.release.download_view import mark
from pages.parts.shell import buttons, figure_view
from pages.parts.shell.error_text import escape_markdown, show_errors
from pages.parts.workload import group_choice, query_form, record_count_form

PAGE = 100  # answers a page
TOGETHER = {"minus": -1.0, "plus": 1.0}  # how a second query joins the first


@st.cache_resource(max_entries=1, scope="session", show_spinner=False)
def simulated(schema: str, rows: int, seed: int) -> Any:
    """Simulated records, made again from their seed; nothing in them comes from a person."""
    return synthetic(Schema.from_json(schema), rows, seed)


def views(
    measurement: Measurement,
    *,
    key: str,
    records: Any = None,
    ledger: str = "",
    file: str = "",
    more: Mapping[str, Callable[[], object]] | None = None,
) -> None:
    """Everything that can be done with a measurement that is stored in a ledger, or as a rehearsal
    in a file.
    """
    source = (
        {"ledger": ledger, "key": measurement.key}
        if ledger
        else {"plan": measurement.plan.to_json(), "file": file}
    )
    tabs = {
        "Answers": lambda: browse(measurement, key=key, records=records),
        "Tables to publish": lambda: published_view.draw(measurement, source, key=key),
        "Ask something else": lambda: ask(measurement, key=key),
        "Download": lambda: download_view.downloads(measurement, key=key, ledger=ledger),
    }
    figure_view.tabs(tabs | dict(more or {}), key=f"{key}_view")


def browse(
    measurement: Measurement, *, key: str, records: Any = None, name: str = "answers_page"
) -> None:
    """Answers of one group, page by page, with intervals; `records` are the simulated ones of a
    rehearsal.

    `name` is that of the file, different for every measurement on a page.
    """
    left, right = st.columns([3, 1])
    with left:
        number = group_choice.choose_group(measurement.plan, key=f"{key}_group")
    confidence = right.number_input(
        "Confidence",
        0.5,
        0.999,
        0.95,
        step=0.01,
        key=f"{key}_confidence",
        help="How often the interval holds the truth",
    )
    total = measurement.plan.workload.groups[number].count
    pages = -(-total // PAGE)
    page = st.pagination(pages, key=f"{key}_page_{number}") if pages > 1 else 1
    start = (page - 1) * PAGE
    answers = measurement.answers(number, start, start + PAGE, confidence)
    if records is not None:
        answers = add_truth(answers, measurement.plan, number, start, records)
    st.caption(
        f"Answers {start + 1:,} to {min(start + PAGE, total):,} of {total:,}, in records (counts)."
    )
    drawn = figures.answers_picture(answers, rehearsal=measurement.rehearsal)
    scale = record_count_form.other_page_scale()
    figure_view.chart(drawn, key=key)()
    st.caption(
        escape_markdown(drawn.alt)
        + " Answers below zero are left as they are: cutting them off would bias every sum."
    )
    table = drawn.table
    if scale is not None:
        hide = st.checkbox(
            "Hide answers that are noise", key=f"{key}_hide", persist_state="session"
        )
        table = with_quality(table, scale, hide=hide)
        st.caption(
            f"{quality_counts_text(table)} Publishable: a standard error of at most"
            f" {scale.publishable:.0%} of the answer; doubtful: at most {scale.doubtful:.0%};"
            " noise: more. The thresholds are set on the Preview page."
        )
    figure_view.table(
        table,
        name=f"{mark(measurement)}{name}",
        alt="Answers with standard errors, intervals and their quality",
    )


def ask(measurement: Measurement, *, key: str) -> None:
    """A question asked afterwards, at no further privacy cost."""
    with show_errors():
        query = query_form.choose(measurement.plan.schema, key=f"{key}_ask")
        how = st.segmented_control(
            "Together with another query", list(TOGETHER), key=f"{key}_together"
        )
        other = query_form.choose(measurement.plan.schema, key=f"{key}_other") if how else None
        if query is None or (how and other is None):
            return
        queries, signs, text = [(query.attributes, query.tensor)], [1.0], query.text
        if how and other is not None:
            queries.append((other.attributes, other.tensor))
            signs.append(TOGETHER[how])
            text = f"({query.text}) {how} ({other.text})"
        answer = measurement.combination(queries, signs)
        st.markdown(f"**{escape_markdown(text)}**{' (rehearsal)' if measurement.rehearsal else ''}")
        if how:
            st.caption(
                "The error is exact: it counts in that both answers are made of the same noisy"
                " numbers."
            )
        one, two, three = st.columns(3)
        one.metric("Answer (counts)", f"{answer.answer:,.1f}", help="Unbiased; may be below zero")
        two.metric(
            "Standard error",
            texts.format_number(answer.std),
            help="Typical size of the noise in it, in counts",
        )
        half = answer.high - answer.answer
        three.metric(
            "95% interval", f"± {texts.format_number(half)}", help="Holds the truth 95% of the time"
        )
        st.caption(
            f"The true count lies between **{answer.low:,.1f}** and **{answer.high:,.1f}**, 95% of"
            " the time."
        )


def coverage(plan: Plan, *, rows: int, seed: int) -> None:
    """How often the intervals of many rehearsals hold the truth."""
    st.caption(
        "One rehearsal shows one draw of the noise. Many of them show whether the intervals hold"
        " what they promise: the release path runs again and again on the same simulated records,"
        " for at most two minutes."
    )
    left, right = st.columns([1, 3], vertical_alignment="bottom")
    rehearsals = int(left.number_input("Rehearsals", 2, 10_000, 1000, key="coverage_rehearsals"))
    job = f"coverage|{plan.hash}|{rows}|{seed}|{rehearsals}"
    buttons.button(
        "Check the intervals",
        job_widget.start,
        job,
        tasks.coverage,
        plan.to_json(),
        rows,
        seed,
        rehearsals,
        key="coverage_start",
        place=right,
    )
    done = job_widget.job(job, label="Coverage check")
    if done is not None:
        st.markdown(f"**{escape_markdown(done.result.sentence)}**")
        figure_view.picture(figures.coverage_picture(done.result), key="coverage")
