"""Results of a measurement: answers, further queries and downloads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import streamlit as st

from demo_data.make_synthetic import synthetic
from engine import _format as texts
from engine import figures
from engine.analysis.ad_hoc_queries import add_truth
from engine.analysis.quality import quality_counts_text, with_quality
from engine.plans import Plan
from engine.release import Measurement
from engine.workload import Schema
from engine.workload.attribute import IN_FILES, ON_SCREEN, query_texts
from pages.parts.jobs import job_queue, job_widget, tasks
from pages.parts.release import crosstab_view, download_view, published_view, wizard
from pages.parts.release.download_view import mark
from pages.parts.shell import buttons, figure_view
from pages.parts.shell.error_text import escape_markdown, show_errors
from pages.parts.workload import (
    group_choice,
    level_choice,
    query_form,
    record_count_form,
)

PAGE = 100  # answers per page
PUBLISHED = "Published tables"  # label of the tab with tables without negative counts
SETTINGS = "Confidence and limits"  # label of the popover with the settings of the answers
CORRELATED = "These answers can share noise, so the share on one page can differ from {:g}%."
# Session key of the hash of the plan and the key of the job of the coverage check shown last.
COVERAGE_CHECK = "rehearsal_coverage"
SIGNS = {"minus": -1.0, "plus": 1.0}  # factor of the second query in a sum or difference


@st.cache_resource(max_entries=1, scope="session", show_spinner=False)
def simulated_records(schema: str, rows: int, seed: int) -> Any:
    """Return simulated records; they depend only on the schema, their number and the seed."""
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
    """Draw the tabs of a release or a rehearsal: answers, published tables, questions, downloads.

    Parameters
    ----------
    key : start of the widget keys.
    records : simulated records of a rehearsal, for true counts; None for a release.
    ledger : path of the ledger of a release; empty for a rehearsal.
    file : path of the saved rehearsal; empty for a release.
    more : further tabs, label -> function that draws the tab; None for no further tabs.
    """
    source = (
        {"ledger": ledger, "key": measurement.key}
        if ledger
        else {"plan": measurement.plan.to_json(), "file": file}
    )
    tabs = {
        "Answers": lambda: browse(measurement, key=key, records=records),
        PUBLISHED: lambda: published_view.draw(measurement, source, key=key),
        "Ask a question": lambda: ask(measurement, key=key),
        "Download": lambda: _download(measurement, source, key=key, ledger=ledger),
    }
    figure_view.tabs(tabs | dict(more or {}), key=f"{key}_view")


def _download(
    measurement: Measurement, source: Mapping[str, str], *, key: str, ledger: str
) -> None:
    """Draw the package with published tables, or where to create it, and all other downloads."""
    with st.container(horizontal=True, vertical_alignment="center"):
        if not published_view.package_button(measurement, source, key=key):
            buttons.button(
                "Create package with tables",
                wizard.open_step,
                f"{key}_view",
                PUBLISHED,
                key=f"{key}_to_tables",
                type="primary",
            )
        st.caption("Tables without negative counts, with the answers below.", width="content")
    download_view.downloads(measurement, key=key, ledger=ledger)


def browse(
    measurement: Measurement, *, key: str, records: Any = None, name: str = "answers_page"
) -> None:
    """Draw the choice of a table, and its answers with confidence intervals.

    Parameters
    ----------
    key : start of the widget keys.
    records : simulated records of a rehearsal; if given, true counts are drawn too.
    name : start of the names of downloaded files, and part of widget keys: unique on the page.
    """
    left, right = st.columns([3, 1], vertical_alignment="bottom")
    with left:
        number = group_choice.choose_group(measurement.plan, key=f"{key}_group")
    with right.popover(SETTINGS, width="stretch"):
        confidence = st.number_input(
            "Confidence",
            0.5,
            0.999,
            0.95,
            step=0.01,
            key=f"{key}_confidence",
            help="How often the interval contains the true count",
        )
        record_count_form.linked_limits(f"{key}_limits")
    plan = measurement.plan

    def read(first: int, end: int) -> Any:
        answers = measurement.answers(number, first, end, confidence)
        return answers if records is None else add_truth(answers, plan, number, first, records)

    def with_integers(answers: Any, between: str = ON_SCREEN) -> Any:
        return answers.assign(query=query_texts(plan.schema.attributes, answers["query"], between))

    queries = level_choice.choose_queries(plan, number, PAGE, key=key)
    if queries is None:
        return
    answers = queries.page(read)
    if queries.total > PAGE:
        st.caption(f"Answers {queries.first + 1:,} to {queries.end:,} of {queries.total:,}.")
    picture = figures.answers_picture(with_integers(answers), rehearsal=measurement.rehearsal)
    scale = record_count_form.entered_limits()
    figure_view.chart(picture, key=key)()
    # For simulated records, `picture.alt` states how many intervals contain the true count. The
    # sentence CORRELATED explains why that share can differ from the confidence level.
    correlated = (
        "" if records is None or len(answers) < 2 else f" {CORRELATED.format(100 * confidence)}"
    )
    st.caption(
        f"{escape_markdown(picture.alt)}{correlated} Negative answers stay negative, so that sums"
        " are unbiased."
    )
    if scale is not None:
        hide = st.checkbox("Hide unreliable answers", key=f"{key}_hide", persist_state="session")
        answers = with_quality(answers, scale, hide=hide)
        st.caption(
            f"{quality_counts_text(answers)} Publishable: CV at most {scale.publishable:.0%};"
            f" doubtful: CV at most {scale.doubtful:.0%}. CV: standard error / answer. Change these"
            f" limits in {SETTINGS}."
        )
    full_table = queries.full_table(read)
    figure_view.table(
        with_integers(answers),
        name=f"{mark(measurement)}{name}",
        alt="Answers with standard errors, intervals and their quality",
        full_table=lambda: with_integers((full_table or (lambda: answers))(), IN_FILES),
    )
    group = plan.workload.groups[number]
    crosstab_view.draw(
        plan.schema,
        group,
        lambda: measurement.answers(number, 0, group.count)["answer"],
        name=f"{mark(measurement)}{name}",
        key=key,
        meaning="unbiased answers, in counts",
    )


def ask(measurement: Measurement, *, key: str) -> None:
    """Draw the form for one query, or for a sum or difference of two, and the answer.

    The answer is computed from released numbers and costs no budget.
    """
    with show_errors():
        query = query_form.choose(measurement.plan.schema, key=f"{key}_ask")
        sign = st.segmented_control(
            "Combine with another query", list(SIGNS), key=f"{key}_together"
        )
        other = query_form.choose(measurement.plan.schema, key=f"{key}_other") if sign else None
        if query is None or (sign and other is None):
            return
        queries = [(query.attributes, query.tensor)]
        signs = [1.0]
        text = query.text
        if sign and other is not None:
            queries.append((other.attributes, other.tensor))
            signs.append(SIGNS[sign])
            text = f"({query.text}) {sign} ({other.text})"
        answer = measurement.combination(queries, signs)
        (text,) = query_texts(measurement.plan.schema.attributes, [text])
        st.markdown(f"**{escape_markdown(text)}**{' (rehearsal)' if measurement.rehearsal else ''}")
        if sign:
            st.caption("The error includes the covariance of the two answers.")
        answer_column, error_column, interval_column = st.columns(3)
        answer_column.metric(
            "Answer (counts)", f"{answer.answer:,.1f}", help="Unbiased; may be negative"
        )
        error_column.metric(
            "Standard error",
            texts.format_number(answer.std),
            help="Typical size of the noise, in counts",
        )
        half_width = answer.high - answer.answer
        interval_column.metric(
            "95% interval",
            f"± {texts.format_number(half_width)}",
            help="Contains the true count 95% of the time",
        )
        st.caption(f"95% interval: **{answer.low:,.1f}** to **{answer.high:,.1f}**")


def coverage(plan: Plan, *, rows: int, seed: int) -> None:
    """Draw the check of how often the intervals of many rehearsals contain the true counts."""
    st.caption(
        "Repeats the rehearsal for at most two minutes and counts how often the intervals contain"
        " the true count."
    )
    left, right = st.columns([1, 3], vertical_alignment="bottom")
    rehearsals = int(left.number_input("Rehearsals", 2, 10_000, 1000, key="coverage_rehearsals"))
    job = f"coverage|{plan.hash}|{rows}|{seed}|{rehearsals}"
    buttons.button(
        "Check intervals",
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
    former = st.session_state.get(COVERAGE_CHECK, ("", ""))
    if job_queue.find(job) is None and former[0] == plan.hash:
        job = former[1]  # the result of the former check, which states its number of rehearsals
    finished_job = job_widget.job(job, label="Coverage check")
    if finished_job is not None:
        st.session_state[COVERAGE_CHECK] = plan.hash, job
        st.markdown(f"**{escape_markdown(finished_job.result.sentence)}**")
        figure_view.picture(figures.coverage_picture(finished_job.result), key="coverage")
