"""Looking at a measurement: answers page by page, questions asked afterwards, downloads."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import streamlit as st

from demo_data.make_synthetic import synthetic
from engine import Measurement, Plan, Schema, figures, texts
from engine.insight import with_truth
from engine.publish import write_answers, write_package
from engine.release import Ledger
from pages.parts.jobs import tasks, watch, work
from pages.parts.shell import show
from pages.parts.shell.words import count, kept_for, plain, show_kept, shown_here
from pages.parts.workload import group_choice, query_form

PAGE = 100  # answers a page
IN_BROWSER = 2_000_000  # answers that a browser is handed as one file
TOGETHER = {"minus": -1.0, "plus": 1.0}  # how a second query joins the first
KINDS = {"CSV": "csv", "Parquet": "parquet"}


@st.cache_resource(max_entries=2, show_spinner=False)
def simulated(schema: str, rows: int, seed: int) -> Any:
    """Simulated records, made again from their seed; nothing in them comes from a person."""
    return synthetic(Schema.from_json(schema), rows, seed)


def browse(found: Measurement, *, key: str, records: Any = None, name: str = "answers_page") -> None:
    """Answers of one group, page by page, with intervals; `records` are the simulated ones of a rehearsal.

    `name` is that of the file, different for every measurement on a page.
    """
    left, right = st.columns([3, 1])
    with left:
        number = group_choice.choose_group(found.plan, key=f"{key}_group")
    confidence = right.number_input(
        "Confidence",
        0.5,
        0.999,
        0.95,
        step=0.01,
        key=f"{key}_confidence",
        help="How often the interval holds the truth",
    )
    total = found.plan.workload.groups[number].count
    pages = -(-total // PAGE)
    page = st.pagination(pages, key=f"{key}_page_{number}") if pages > 1 else 1
    start = (page - 1) * PAGE
    answers = found.answers(number, start, start + PAGE, confidence)
    if records is not None:
        answers = with_truth(answers, found.plan, number, start, records)
    st.caption(f"Answers {start + 1:,} to {min(start + PAGE, total):,} of {total:,}, in records (counts).")
    drawn = figures.answers_picture(answers, rehearsal=found.rehearsal)
    st.plotly_chart(drawn.figure, key=f"chart_{key}", alt=drawn.alt, config={"displaylogo": False})
    st.caption(plain(drawn.alt) + " Answers below zero are left as they are: cutting them off would bias every sum.")
    show.table(drawn.table, name=f"{_mark(found)}{name}", alt="Answers with standard errors and intervals")


def ask(found: Measurement, *, key: str) -> None:
    """A question asked afterwards, at no further privacy cost."""
    with shown_here():
        query = query_form.choose(found.plan.schema, key=f"{key}_ask")
        how = st.segmented_control("Together with another query", list(TOGETHER), key=f"{key}_together")
        other = query_form.choose(found.plan.schema, key=f"{key}_other") if how else None
        if query is None or (how and other is None):
            return
        asked, signs, text = [(query.attributes, query.tensor)], [1.0], query.text
        if how and other is not None:
            asked.append((other.attributes, other.tensor))
            signs.append(TOGETHER[how])
            text = f"({query.text}) {how} ({other.text})"
        answer = found.combination(asked, signs)
        st.markdown(f"**{plain(text)}**{' (rehearsal)' if found.rehearsal else ''}")
        if how:
            st.caption("The error is exact: it counts in that both answers are made of the same noisy numbers.")
        one, two, three = st.columns(3)
        one.metric("Answer", f"{answer.answer:,.1f} counts", help="Unbiased; may be below zero")
        two.metric("Standard error", f"{texts.amount(answer.std)} counts", help="Typical size of the noise in it")
        three.metric("95% interval", f"{answer.low:,.1f} to {answer.high:,.1f}", help="Holds the truth 95% of the time")


def downloads(found: Measurement, *, key: str, ledger: str = "") -> None:
    """All answers as one file, and the plan."""
    queries = found.plan.workload.queries
    st.caption(
        f"{count(queries, 'answer')}, each with its standard error and 95% interval: attributes, family, query in "
        "words, answer, std, low, high."
    )
    columns = st.columns(4)
    for column, (word, kind) in zip(columns, KINDS.items(), strict=False):
        column.download_button(
            f"All answers as {word}",
            data=partial(_content, found, kind),
            file_name=f"{_mark(found)}answers.{kind}",
            key=f"{key}_{kind}",
            on_click="ignore",
            disabled=queries > IN_BROWSER,
            help=f"More than {IN_BROWSER:,} answers are written to a file instead." if queries > IN_BROWSER else None,
            width="stretch",
        )
    columns[2].download_button(
        "Plan as JSON",
        found.plan.to_json,
        f"{_mark(found)}plan.json",
        "application/json",
        key=f"{key}_plan",
        on_click="ignore",
        width="stretch",
    )
    columns[3].download_button(
        "Package (zip)",
        data=lambda: _package(found, ledger),
        file_name=f"{_mark(found)}release.zip",
        mime="application/zip",
        key=f"{key}_package",
        on_click="ignore",
        disabled=queries > IN_BROWSER,
        help="Answers, plan, certificate, a readable report, and a script that checks them without the records",
        width="stretch",
    )
    if ledger:
        _to_file(found, key=key, ledger=ledger)


def _to_file(found: Measurement, *, key: str, ledger: str) -> None:
    """Write all answers to a file on this machine, in a worker."""
    left, right = st.columns([4, 1], vertical_alignment="bottom")
    path = left.text_input(
        "Or write them to a file on this machine (.parquet, .csv, or .zip for the whole package)",
        "answers.parquet",
        key=f"{key}_path",
        persist_state="session",
    )
    job = f"export|{ledger}|{found.key}|{path}"
    right.button(
        "Write file",
        key=f"{key}_write",
        on_click=_start_export,
        args=(job, ledger, found.key, path),
        disabled=not path.strip(),
        width="stretch",
    )
    show_kept("export")
    done = watch.job(job, label="Writing answers")
    if done is not None:
        st.success(plain(f"Written: {done.result}"))


def _start_export(job: str, ledger: str, release: str, path: str) -> None:
    place = Path(path.strip()).expanduser().resolve()
    with kept_for("export"):
        work.forget(job)
        kind = {".csv": "csv", ".zip": "zip"}.get(place.suffix, "parquet")
        work.start(job, tasks.export, ledger, release, str(place), kind, 0.95)


def _content(found: Measurement, kind: str) -> bytes:
    """All answers as the bytes of a file; called when the button is pressed."""
    with tempfile.TemporaryDirectory() as folder:
        return write_answers(found, Path(folder) / f"answers.{kind}", format=kind).read_bytes()


def _package(found: Measurement, ledger: str) -> bytes:
    """The release package as bytes; called when the button is pressed."""
    book = Ledger(ledger) if ledger else None
    receipt = book.find(found.key) if book else None
    with tempfile.TemporaryDirectory() as folder:
        return write_package(found, Path(folder) / "release.zip", receipt=receipt, ledger=book).read_bytes()


def coverage(plan: Plan, *, rows: int, seed: int) -> None:
    """How often the intervals of many rehearsals hold the truth."""
    st.caption(
        "One rehearsal shows one draw of the noise. Many of them show whether the intervals hold what they promise: "
        "the release path runs again and again on the same simulated records, for at most two minutes."
    )
    left, right = st.columns([1, 3], vertical_alignment="bottom")
    rehearsals = int(left.number_input("Rehearsals", 2, 10_000, 1000, key="coverage_rehearsals"))
    job = f"coverage|{plan.hash}|{rows}|{seed}|{rehearsals}"
    right.button(
        "Check the intervals",
        key="coverage_start",
        on_click=watch.begin,
        args=(job, tasks.coverage, plan.to_json(), rows, seed, rehearsals),
    )
    done = watch.job(job, label="Coverage check")
    if done is not None:
        st.markdown(f"**{plain(done.result.sentence)}**")
        show.picture(figures.coverage_picture(done.result), key="coverage")


def _mark(found: Measurement) -> str:
    return "REHEARSAL_" if found.rehearsal else ""
