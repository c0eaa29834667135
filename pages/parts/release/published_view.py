"""Tables that can be published: made in a worker, shown beside the unbiased answers, handed out as
files.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import streamlit as st

from engine import figures
from engine.errors import EngineError
from engine.postprocess.published_tables import FITS, publish_forecast
from engine.publish.report import read_published
from engine.release import Measurement
from pages.parts.jobs import job_queue, job_widget, private_tempdir, publishing
from pages.parts.release import download_view
from pages.parts.shell import buttons, figure_view
from pages.parts.shell.error_text import (
    deferred_errors,
    error_text,
    escape_markdown,
    in_labels,
    show_deferred_error,
)
from pages.parts.workload import group_choice, record_count_form

PAGE = 100  # answers a page
BOTH, UNBIASED, PUBLISHED = SHOWN = ("Both", "Unbiased", "Published")
LEFT_OUT = {
    UNBIASED: ["published", "error", "published_low", "published_high", "flag", "reason"],
    PUBLISHED: ["answer", "std", "low", "high"],
}
FITTED = {
    "shrunk": "drawn towards what smaller tables say, as far as noise may have moved them",
    "nonnegative": "changed only as far as cells are below zero",
}
FILES = {"parquet": ".parquet", "csv": ".csv", "zip": ".zip", "xlsx": ".xlsx", "records": ".csv"}
ABOUT = (
    "Unbiased answers have exact errors and are the ones to add up and to test, but some are below"
    " zero and tables disagree with each other. Published tables have no negative counts and all"
    " agree. They are biased, which is why they stand beside the unbiased answers, with intervals"
    " of their own. They are made from the released numbers alone: nothing is spent."
)


def draw(measurement: Measurement, source: Mapping[str, str], *, key: str) -> None:
    """What to publish, the work, and what came of it."""
    st.caption(ABOUT)
    try:
        ahead = publish_forecast(measurement.plan)
    except EngineError as error:
        st.info(
            escape_markdown(f"From this plan no tables can be published: {error_text(error)}"),
            icon="📋",
        )
        return
    job, arguments = _form(measurement, source, key=key)
    buttons.button("Make tables to publish", _start, key, job, arguments, key=f"{key}_publish")
    st.caption(escape_markdown(ahead.text))
    show_deferred_error("publish")
    done = job_widget.job(job, label="Tables to publish")
    if done is None:
        if job_queue.find(job) is None:
            st.info("Nothing published yet with these choices. It costs nothing.", icon="📋")
        return
    _side_by_side(measurement, done.result, key=key)
    _records(done.result, key=key)
    _downloads(measurement, done.result, key=key)
    st.code(_script(arguments), language=None, wrap_lines=True)


def _form(
    measurement: Measurement, source: Mapping[str, str], *, key: str
) -> tuple[str, tuple[Any, ...]]:
    """The choices; returns the name of the job and what it is given."""
    left, middle, right = st.columns(3, vertical_alignment="bottom")
    fit = left.selectbox(
        "Tables are",
        [f for f in FITS if f in FITTED],
        format_func=lambda f: f"{f}: {FITTED[f]}",
        key=f"{key}_fit",
    )
    integer = middle.checkbox(
        "Whole people",
        key=f"{key}_whole",
        help="All cells are whole numbers, and tables agree exactly.",
    )
    least = right.number_input(
        "Suppress counts below",
        0.0,
        1e6,
        0.0,
        step=1.0,
        key=f"{key}_least",
        help="For readers of single numbers; it protects nobody: that is what the noise does.",
    )
    left, right = st.columns([1, 2], vertical_alignment="bottom")
    simulate = left.checkbox("Also simulated records", key=f"{key}_simulate")
    size = right.number_input(
        "How many",
        1,
        10_000_000,
        None,
        placeholder="as many as the tables sum to",
        key=f"{key}_size",
        disabled=not simulate,
    )
    scale = record_count_form.other_page_scale()
    rule = {"least_count": least}
    if scale is not None:
        rule |= {"doubtful_cv": scale.publishable, "suppressed_cv": scale.doubtful}
    records = None if size is None else int(size)
    job = f"publish|{sorted(source.items())}|{fit}|{integer}|{simulate}|{records}|{sorted(rule.items())}"
    return job, (dict(source), fit, integer, (simulate, records), rule)


def _start(key: str, job: str, arguments: tuple[Any, ...]) -> None:
    """Start the work and drop what was made with other choices."""
    if (old := st.session_state.get(f"{key}_published", job)) != job:
        job_widget.release_job(old)
    st.session_state[f"{key}_published"] = job
    with deferred_errors("publish"):
        files = {
            kind: private_tempdir.new_file("published", ending) for kind, ending in FILES.items()
        }
        places = {kind: str(place) for kind, place in files.items()}
        job_widget.start(
            job,
            publishing.publish_tables,
            *arguments,
            places,
            str(private_tempdir.checkpoint_folder(job)),
            files=files.values(),
        )


def _side_by_side(measurement: Measurement, result: Mapping[str, Any], *, key: str) -> None:
    """Answers of one group, unbiased and published, and what publishing did to small cells."""
    st.caption(f"All tables sum to {result['total']:,.1f} records.")
    number = group_choice.choose_group(measurement.plan, key=f"{key}_published_group")
    which = (
        st.segmented_control(
            "Show", SHOWN, default=BOTH, key=f"{key}_shown", persist_state="session"
        )
        or BOTH
    )
    total = measurement.plan.workload.groups[number].count
    pages = -(-total // PAGE)
    page = st.pagination(pages, key=f"{key}_published_page_{number}") if pages > 1 else 1
    answers = read_published(
        measurement.plan, result["files"]["parquet"], number, (page - 1) * PAGE, page * PAGE
    )
    drawn = figures.published_picture(
        answers,
        rehearsal=measurement.rehearsal,
        unbiased=which != PUBLISHED,
        published=which != UNBIASED,
    )
    figure_view.chart(drawn, key=f"{key}_published")()
    st.caption(escape_markdown(drawn.alt))
    table = drawn.table.drop(columns=LEFT_OUT.get(which, []))
    mark = download_view.mark(measurement)
    figure_view.table(
        table,
        name=f"{mark}{key}_published_answers",
        alt="Unbiased and published answers with flags",
    )
    with st.expander("What publishing did to small cells"):
        st.caption(
            "By how many records there are in a cell: how many cells, by how much too large their"
            " published counts are to be expected, and how far off, in counts. From rehearsals on"
            " tables that might be the true ones."
        )
        figure_view.table(
            result["bias"][number],
            name=f"{mark}{key}_bias",
            alt="Bias and error by size of the cells",
        )
    with st.expander("All groups"):
        st.caption(
            "How many unbiased answers are below zero, what is published there on average, and"
            " which shares of the published ones are publishable, doubtful or suppressed."
        )
        figure_view.table(
            result["summary"], name=f"{mark}{key}_summary", alt="What publishing did to every group"
        )


def _records(result: Mapping[str, Any], *, key: str) -> None:
    if "acceptance" not in result:
        return
    acceptance = result["acceptance"]
    st.markdown("**Simulated records**")
    st.caption(
        "No row stands for a person, and what larger tables than those published would say of them"
        " is a guess. The criteria read released numbers only, so that they cost no budget."
    )
    if acceptance["met"].all():
        st.success("The records meet every criterion.", icon="✅")
    else:
        st.warning(
            "The records miss a criterion: hand them out with care, or not at all.", icon="⚠️"
        )
    figure_view.table(
        acceptance, name=f"{key}_acceptance", alt="Criteria that simulated records should meet"
    )


def _downloads(measurement: Measurement, result: Mapping[str, Any], *, key: str) -> None:
    """The files, as the worker wrote them."""
    mark, large = download_view.mark(measurement), result["too large"]
    words = {
        "zip": ("Tables (zip)", "published_tables.zip", large.get("zip", "")),
        "xlsx": ("Workbook (xlsx)", "published_tables.xlsx", large.get("xlsx", "")),
        "csv": ("Published as CSV", "published.csv", ""),
        "parquet": ("Published as Parquet", "published.parquet", ""),
        "records": (
            "Simulated records",
            "simulated_records.csv",
            "" if "acceptance" in result else "None were drawn.",
        ),
    }
    row = st.container(horizontal=True)
    for kind, (label, name, reason) in words.items():
        row.download_button(
            label,
            data=Path(result["files"][kind]).read_bytes if not reason else b"",
            file_name=f"{mark}{name}",
            key=f"{key}_published_{kind}",
            on_click="ignore",
            disabled=bool(reason),
            help=reason or None,
        )
    for reason in large.values():
        st.caption(escape_markdown(in_labels(reason)))


def _script(arguments: tuple[Any, ...]) -> str:
    """The same in Python."""
    _, fit, integer, (simulate, records), rule = arguments
    lines = [
        "from engine.postprocess import QualityRule, acceptance",
        "from engine.publish import write_published, write_records, write_tables, write_workbook",
        "",
        f"published = measurement.publish({fit!r}, integer={integer})",
        "errors = published.uncertainty()",
        f"rule = QualityRule(**{rule})",
        'write_published(errors, "published.csv", format="csv", rule=rule)',
        'write_tables(errors, "published_tables.zip", rule=rule)',
        'write_workbook(errors, "published_tables.xlsx", rule=rule)',
    ]
    if simulate:
        lines += [
            f"records = published.records({records or ''})",
            'write_records(measurement, records, "simulated_records.csv")',
            "print(acceptance(errors, records))",
        ]
    return "\n".join(lines)
