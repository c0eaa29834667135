"""Looking at a measurement: answers page by page, questions asked afterwards, downloads."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import streamlit as st

from engine import Measurement, Schema, charts, figures
from engine.ask import with_truth
from engine.report import write_answers
from pages.parts import plan_views, query_form, show, tasks, watch, work
from pages.parts.words import count, kept_for, plain, show_kept, shown_here

PAGE = 100  # answers a page
IN_BROWSER = 2_000_000  # answers that a browser is handed as one file
KINDS = {"CSV": "csv", "Parquet": "parquet"}


@st.cache_resource(max_entries=2, show_spinner=False)
def simulated(schema: str, rows: int, seed: int) -> Any:
    """Simulated records, made again from their seed; nothing in them comes from a person."""
    return tasks.synthetic(Schema.from_json(schema), rows, seed)


def browse(found: Measurement, *, key: str, records: Any = None) -> None:
    """Answers of one group, page by page, with intervals; `records` are the simulated ones of a rehearsal."""
    left, right = st.columns([3, 1])
    with left:
        number = plan_views.choose_group(found.plan, key=f"{key}_group")
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
    show.table(drawn.table, name=f"{_mark(found)}answers_page", alt="Answers with standard errors and intervals")


def ask(found: Measurement, *, key: str) -> None:
    """A question asked afterwards, at no further privacy cost."""
    with shown_here():
        query = query_form.choose(found.plan.schema, key=f"{key}_ask")
        if query is None:
            return
        answer = found.answer(query.attributes, query.tensor)
        st.markdown(f"**{plain(query.text)}**{' (rehearsal)' if found.rehearsal else ''}")
        one, two, three = st.columns(3)
        one.metric("Answer", f"{answer.answer:,.1f} counts", help="Unbiased; may be below zero")
        two.metric("Standard error", f"{charts.amount(answer.std)} counts", help="Typical size of the noise in it")
        three.metric("95% interval", f"{answer.low:,.1f} to {answer.high:,.1f}", help="Holds the truth 95% of the time")


def downloads(found: Measurement, *, key: str, ledger: str = "") -> None:
    """All answers as one file, and the plan."""
    queries = found.plan.workload.queries
    st.caption(
        f"{count(queries, 'answer')}, each with its standard error and 95% interval: attributes, family, query in "
        "words, answer, std, low, high."
    )
    columns = st.columns(3)
    for column, (word, kind) in zip(columns, KINDS.items(), strict=False):
        column.download_button(
            f"All answers as {word}",
            data=lambda kind=kind: _content(found, kind),
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
    if ledger:
        _to_file(found, key=key, ledger=ledger)


def _to_file(found: Measurement, *, key: str, ledger: str) -> None:
    """Write all answers to a file on this machine, in a worker."""
    left, right = st.columns([4, 1], vertical_alignment="bottom")
    path = left.text_input(
        "Or write them to a file on this machine", "answers.parquet", key=f"{key}_path", persist_state="session"
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
        kind = "csv" if place.suffix == ".csv" else "parquet"
        work.start(job, tasks.export, ledger, release, str(place), kind, 0.95)


def _content(found: Measurement, kind: str) -> bytes:
    """All answers as the bytes of a file; called when the button is pressed."""
    with tempfile.TemporaryDirectory() as folder:
        return write_answers(found, Path(folder) / f"answers.{kind}", format=kind).read_bytes()


def _mark(found: Measurement) -> str:
    return "REHEARSAL_" if found.rehearsal else ""
