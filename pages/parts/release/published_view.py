"""Published tables (consistent, without negative counts): form, comparison with answers, files."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import streamlit as st

from engine import figures
from engine._format import format_number, pluralize, set_name
from engine.errors import EngineError
from engine.postprocess import QualityRule
from engine.postprocess.published_tables import FITS, publish_forecast
from engine.postprocess.uncertainty import FLAGS, REASONS
from engine.publish.report import read_level_sums, read_published
from engine.release import Measurement
from engine.workload.attribute import IN_FILES, ON_SCREEN, query_texts
from pages.parts.jobs import job_queue, job_widget, private_tempdir, publishing
from pages.parts.release import crosstab_view, download_view
from pages.parts.shell import buttons, figure_view
from pages.parts.shell.error_text import (
    deferred_errors,
    error_text,
    escape_markdown,
    in_labels,
    show_deferred_error,
)
from pages.parts.workload import group_choice, level_choice, record_count_form

PAGE = 100  # answers per page
MAX_NAMES = 6  # tables that a sentence names
QUICK_S = 10.0  # seconds; the first tables of a release start without a click up to this forecast
SHOWN = ("Both", "Unbiased", "Published")
_, UNBIASED, PUBLISHED = SHOWN
# If the user wants to see only unbiased or only published answers, these columns of the table are
# left out.
LEFT_OUT = {
    UNBIASED: [
        "published",
        "error",
        "published_low",
        "published_high",
        "flag",
        "reason",
        "measured",
    ],
    PUBLISHED: ["answer", "std", "low", "high"],
}
SHARES = ("measured", *FLAGS)  # columns that are shares
# Columns of counts, which have as many decimals as their errors allow.
COUNT_COLUMNS = (
    *("published", "error", "published_low", "published_high"),
    *("answer", "std", "low", "high", "bias"),
)
MAX_DECIMALS = 4  # of counts on screen
# Maps a method of `Measurement.publish` to its text in the list "Smoothing".
SMOOTHING = {
    "shrunk": "toward smaller tables",
    "nonnegative": "only to remove negative counts",
}
# Maps the kinds of files that the worker writes to their endings.
FILES = {
    "package": ".zip",
    "parquet": ".parquet",
    "csv": ".csv",
    "zip": ".zip",
    "xlsx": ".xlsx",
    "records": ".csv",
}
LEVELS_FILE = {"levels": ".parquet"}  # sums along code lists, if there are any
ABOUT = "No negative counts, and all tables agree. Slightly biased; costs no budget."
# If a single cell of a published sum is suppressed, readers can compute its count: it is the sum
# minus the other cells.
NO_PROTECTION = (
    "Suppression marks unreliable counts. It does not protect people; the noise does. Sums can"
    " reveal a suppressed count."
)
PACKAGE = ("Package with tables (zip)", "release_with_tables.zip")  # label and file name
FORMER = "These tables have the former options. To apply the chosen ones, create the tables again."
BUSY = "Longer on a busy machine."
ABOUT_TOTALS = (
    "Removing negative counts, or rounding to integers, changes a sum slightly."
    " Both sums differ by noise from the number of rows counted, which is private."
)
ADVICE = "For sums and tests, use the unbiased answers. Published tables use released numbers only."


def draw(measurement: Measurement, source: Mapping[str, str], *, key: str) -> None:
    """Draw the form, the progress and the published tables.

    ``source`` is where a worker finds the measurement: ledger and key, or plan and file.
    """
    st.caption(ABOUT)
    try:
        publish_forecast(measurement.plan)
        total = float(measurement.marginal([]))
    except EngineError as error:
        st.info(
            escape_markdown(f"This plan allows no published tables: {error_text(error)}"),
            icon="📋",
        )
        return
    left, middle, right, place = st.columns([4, 4, 3, 4], vertical_alignment="bottom")
    record_count_form.limits(left, middle)
    integer = right.checkbox(
        "Integer counts",
        key=f"{key}_whole",
        persist_state="session",
        help="All cells are integers, and all tables have the same sums.",
    )
    form = _form(source, integer, key=key)
    if form is None:
        return
    job, arguments = form
    forecast = publish_forecast(measurement.plan, _records_drawn(arguments, total))
    has_levels = any(attribute.hierarchies for attribute in measurement.plan.schema.attributes)
    kinds = FILES | LEVELS_FILE if has_levels else FILES
    buttons.button(
        "Create published tables",
        _start,
        key,
        job,
        arguments,
        kinds,
        key=f"{key}_publish",
        place=place,
        help=ADVICE,
        type="primary",
        width="stretch",
    )
    # The first tables of a release need no click if they have the default options and are quick.
    is_first = f"{key}_published" not in st.session_state and not measurement.rehearsal
    if is_first and forecast.seconds <= QUICK_S:
        _start(key, job, arguments, kinds)
    show_deferred_error("publish")
    finished_job = job_widget.job(job, label="Published tables", expected_s=forecast.seconds)
    if finished_job is None:
        # The bar of a running job shows the time that is left.
        if not job_queue.is_there(job):
            st.caption(escape_markdown(f"{forecast.text} {BUSY}"))
        former = _shown_tables(source, key)
        if former is None:
            return
        st.info(FORMER, icon="📋")
        result, arguments = former
    else:
        result = finished_job.result
        _show(job, arguments, key)
    rule = QualityRule(**arguments[-1])
    st.markdown(f"**{escape_markdown(_suppressed_text(result['summary'], rule))}**")
    if text := _predicted_text(measurement, result):
        st.warning(escape_markdown(text), icon="⚠️")
    if (result["summary"]["suppressed"] > 0.0).any():
        st.caption(NO_PROTECTION)
    _comparison(measurement, result, key=key)
    _records(result, key=key)
    _downloads(measurement, result, key=key)
    with st.expander("These tables as Python"):
        st.code(_script(arguments), language=None, wrap_lines=True)


def _show(job: str, arguments: tuple[Any, ...], key: str) -> None:
    """Store that the page shows the tables of this job; release the job of the tables before."""
    shown = f"{key}_shown_tables"
    former, _ = st.session_state.get(shown, (job, ()))
    if former != job:
        job_widget.release_job(former)
    st.session_state[shown] = (job, arguments)


def _shown_tables(
    source: Mapping[str, str], key: str
) -> tuple[Mapping[str, Any], tuple[Any, ...]] | None:
    """Return the tables of this measurement that the page showed last, with their arguments.

    The tables are the result of `publish_tables`, and the arguments are those of `_form`. The result
    is None if there are no such tables.
    """
    job, arguments = st.session_state.get(f"{key}_shown_tables", ("", ()))
    job_state = job_queue.find(job)
    if job_state is None or not job_state.done or arguments[0] != dict(source):
        return None
    return job_state.result, arguments


def package_button(measurement: Measurement, source: Mapping[str, str], *, key: str) -> bool:
    """Draw the download of the package with the tables that the page showed last.

    Returns False, without drawing, if there are no such tables or if they are too large.
    """
    tables = _shown_tables(source, key)
    if tables is None or "package" in tables[0]["too large"]:
        return False
    label, name = PACKAGE
    st.download_button(
        label,
        data=Path(tables[0]["files"]["package"]).read_bytes,
        file_name=f"{download_view.mark(measurement)}{name}",
        key=f"{key}_package_with_tables",
        on_click="ignore",
        help=f"Answers, tables, {download_view.PACKAGE_MEANING}",
        type="primary",
    )
    return True


def _predicted_text(measurement: Measurement, result: Mapping[str, Any]) -> str:
    """Return which tables are only predicted from smaller tables; empty if there are none."""
    groups = [measurement.plan.workload.groups[number] for number in result["predicted"]]
    if not groups:
        return ""
    names = list(dict.fromkeys(set_name(group.attributes) for group in groups))
    more = f" and {len(names) - MAX_NAMES:,} more tables" if len(names) > MAX_NAMES else ""
    whose = "this table" if len(names) == 1 else "these tables"
    return (
        f"No signal above the noise in {', '.join(names[:MAX_NAMES])}{more}: the published counts of"
        f" {whose} are predicted from smaller tables."
    )


def _form(
    source: Mapping[str, str], integer: bool, *, key: str
) -> tuple[str, tuple[Any, ...]] | None:
    """Draw the options; return the key of the job, and the first arguments of `publish_tables`.

    The result is None if the limits of the CV are invalid; the page then shows the error.
    """
    options = st.expander("Options", key=f"{key}_options")
    left, right = options.columns(2, vertical_alignment="bottom")
    fit = left.selectbox(
        "Smoothing",
        [f for f in FITS if f in SMOOTHING],
        format_func=SMOOTHING.__getitem__,
        key=f"{key}_fit",
        persist_state="session",
    )
    least = right.number_input(
        "Also suppress counts below",
        0.0,
        1e6,
        0.0,
        step=1.0,
        key=f"{key}_least",
        persist_state="session",
        help="For readability. Privacy comes from the noise, not from suppression.",
    )
    left, right = options.columns([1, 2], vertical_alignment="bottom")
    simulate = left.checkbox(
        "Add simulated records", key=f"{key}_simulate", persist_state="session"
    )
    size = right.number_input(
        "Number of simulated records",
        1,
        10_000_000,
        None,
        placeholder="total of the tables",
        key=f"{key}_size",
        persist_state="session",
        disabled=not simulate,
    )
    rule = _rule_arguments(least)
    if rule is None:
        return None
    records = None if size is None else int(size)
    options.caption(f"{QualityRule(**rule).describe()} CV: standard error / count.")
    choices = f"{fit}|{integer}|{simulate}|{records}|{sorted(rule.items())}"
    job = f"publish|{sorted(source.items())}|{choices}"
    return job, (dict(source), fit, integer, (simulate, records), rule)


def _records_drawn(arguments: tuple[Any, ...], total: float) -> float:
    """Return the number of synthetic records that publishing draws, for the forecast of its time.

    Integer tables draw ``total`` records, the released number of records. A file of synthetic
    records draws the number in the form. ``arguments`` are those of `_form`.
    """
    _, _, integer, (simulate, people), _ = arguments
    simulated = (total if people is None else float(people)) if simulate else 0.0
    return simulated + (total if integer else 0.0)


def _rule_arguments(least_count: float) -> dict[str, float] | None:
    """Return the arguments of `QualityRule`; None, with the error on the page, if they are invalid.

    A count is doubtful if its CV is above the limit `NoiseScale.publishable`, and suppressed if it
    is above the limit `NoiseScale.doubtful`.
    """
    scale = record_count_form.entered_limits()
    if scale is None:
        return None
    return {
        "least_count": least_count,
        "doubtful_cv": scale.publishable,
        "suppressed_cv": scale.doubtful,
    }


def _suppressed_text(summary: Any, rule: QualityRule) -> str:
    """Return how many published answers are suppressed or doubtful, and by which limits."""
    answers = summary["answers"]
    suppressed, doubtful = (
        round(float((summary[flag] * answers).sum())) for flag in ("suppressed", "doubtful")
    )
    small = f" or they are below {rule.least_count:g}" if rule.least_count else ""
    return (
        f"Of {pluralize(int(answers.sum()), 'answer')}, {suppressed:,} are suppressed (CV above"
        f" {rule.suppressed_cv:.0%}{small}) and {doubtful:,} doubtful (CV above"
        f" {rule.doubtful_cv:.0%})."
    )


def _with_reasons(table: Any) -> Any:
    """Return published answers for the screen: the codes in the column reason as texts."""
    if "reason" not in table:
        return table
    texts = {code: text if code else "" for code, text in REASONS.items()}
    return table.assign(reason=table["reason"].fillna("").map(texts))


def _start(key: str, job: str, arguments: tuple[Any, ...], kinds: Mapping[str, str]) -> None:
    """Start the job that writes these kinds of files.

    The tables on the page remain until the job is done; other results are discarded.
    """
    shown, _ = st.session_state.get(f"{key}_shown_tables", ("", ()))
    job_widget.replace_job(f"{key}_published", job, needed=shown)
    with deferred_errors("publish"):
        files = {
            kind: private_tempdir.new_file("published", ending) for kind, ending in kinds.items()
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


def _comparison(measurement: Measurement, result: Mapping[str, Any], *, key: str) -> None:
    """Draw unbiased and published answers of one table, the bias of its published small cells, and
    a summary of all tables."""
    st.caption(
        escape_markdown(
            f"{_total_text(measurement, result['total'])} {result['determined']}"
        ).rstrip(),
        help=ABOUT_TOTALS,
    )
    number = group_choice.choose_group(measurement.plan, key=f"{key}_published_group")
    if text := result["sums"][number]:
        st.caption(f"In this table, {text} Files leave suppressed counts empty.")
    shown = st.radio("Show", SHOWN, horizontal=True, key=f"{key}_shown", persist_state="session")
    plan, files = measurement.plan, result["files"]
    queries = level_choice.choose_queries(
        plan, number, PAGE, key=f"{key}_published", with_sums="levels" in files
    )
    if queries is None:
        return

    def read(first: int, end: int) -> Any:
        if queries.sums:
            return read_level_sums(files["levels"], number, queries.sums, first, end)
        return read_published(plan, files["parquet"], number, first, end)

    def with_integers(answers: Any, between: str = ON_SCREEN) -> Any:
        return answers.assign(query=query_texts(plan.schema.attributes, answers["query"], between))

    if queries.total > PAGE:
        st.caption(f"Answers {queries.first + 1:,} to {queries.end:,} of {queries.total:,}.")
    if queries.sums:
        st.caption("Sums of published cells. The workload has no unbiased answers on this level.")
    answers = queries.page(read)
    picture = figures.published_picture(
        with_integers(answers),
        rehearsal=measurement.rehearsal,
        unbiased=shown != PUBLISHED and not queries.sums,
        published=shown != UNBIASED or bool(queries.sums),
    )
    figure_view.chart(picture, key=f"{key}_published")()
    simulations = f" Published intervals come from {result['draws']} simulations."
    st.caption(escape_markdown(picture.alt + (simulations if shown != UNBIASED else "")))
    left_out = [] if queries.sums else LEFT_OUT.get(shown, [])
    table = _with_reasons(picture.table.drop(columns=left_out))
    # These columns say nothing if no number has a reason, or if all of each number was measured.
    if "reason" in table and not table["reason"].any():
        table = table.drop(columns="reason")
    if "measured" in table and (table["measured"] == 1.0).all():
        table = table.drop(columns="measured")
    mark, full_table = download_view.mark(measurement), queries.full_table(read)
    figure_view.table(
        _rounded_shares(table),
        name=f"{mark}{key}_published_answers",
        alt="Unbiased and published answers with flags",
        shares=SHARES,
        decimals=_decimals(table),
        # In the downloaded table, reasons are codes. On screen, they are replaced by texts.
        full_table=lambda: with_integers(
            (full_table or (lambda: answers.drop(columns=left_out)))(), IN_FILES
        ),
    )
    group = plan.workload.groups[number]
    crosstab_view.draw(
        plan.schema,
        group,
        lambda: read_published(plan, files["parquet"], number)["published"],
        name=f"{mark}{key}_published",
        key=f"{key}_published",
        meaning="published counts; – is a suppressed count",
    )
    with st.expander("Bias of small cells"):
        bias = result["bias"][number]
        empty = bias["true"][bias["bias"].isna()].tolist()
        note = f" No cells of {', '.join(empty)} counts." if empty else ""
        st.caption(
            "Expected bias and error (root mean square) by cell size, in counts, from"
            f" {result['draws']} simulations. Cells: mean number in a simulation.{note}"
        )
        full_bias = bias
        bias = bias.dropna(subset=["bias"])
        figure_view.table(
            bias,
            name=f"{mark}{key}_bias",
            alt="Bias and error by size of the cells",
            full_table=lambda: full_bias,
            decimals={"cells": 0 if (bias["cells"] % 1 == 0).all() else 1} | _decimals(bias),
        )
    with st.expander("All tables"):
        st.caption(
            "Negative unbiased answers, their published mean, and the shares of publishable,"
            " doubtful and suppressed answers."
        )
        summary = result["summary"]
        figure_view.table(
            _rounded_shares(summary).rename(columns={"attributes": "table", "family": "type"}),
            name=f"{mark}{key}_summary",
            alt="Effect of publishing by table",
            shares=SHARES,
            full_table=lambda: summary,
        )


def _rounded_shares(table: Any) -> Any:
    """Return a table with its shares rounded to whole percents."""
    names = [name for name in (*SHARES, *FLAGS) if name in table]
    return table.assign(**{name: table[name].round(2) for name in names})


def _decimals(table: Any) -> dict[str, int]:
    """Return the number of decimals of each column of counts on screen; empty without an error > 0.

    The errors of published counts come from few simulations, so that two digits of them are
    reliable. All counts get the decimals with which the smallest error has two digits, but at most
    `MAX_DECIMALS`; integer published counts get none.
    """
    if "error" not in table or not (table["error"] > 0.0).any():
        return {}
    errors = table["error"][table["error"] > 0.0]
    places = min(max(0, 1 - math.floor(math.log10(float(errors.min())))), MAX_DECIMALS)
    decimals = {name: places for name in COUNT_COLUMNS if name in table}
    if "published" in table and (table["published"].dropna() % 1 == 0).all():
        decimals["published"] = 0
    return decimals


def _total_text(measurement: Measurement, total: float) -> str:
    """Return the total of the published tables, and that of the unbiased answers with its error.

    If the number of records is public, only the total of the published tables is returned.
    """
    text = f"{total:,.0f}" if total == round(total) else f"{total:,.1f}"
    unbiased = measurement.combination([((), 1.0)], [1.0])
    if not unbiased.std:
        return f"All tables sum to {text} records, the public number of records."
    return (
        f"All tables sum to {text} records, the unbiased answers to {unbiased.answer:,.1f} ±"
        f" {format_number(unbiased.high - unbiased.answer)} (95%)."
    )


def _records(result: Mapping[str, Any], *, key: str) -> None:
    """Draw which quality criteria the simulated records meet; nothing without such records."""
    if "acceptance" not in result:
        return
    acceptance = result["acceptance"]
    st.markdown("**Simulated records**")
    st.caption(
        "The rows are artificial; only the published tables are reproduced. The criteria cost no"
        " budget."
    )
    if acceptance["met"].all():
        st.success("The records meet all criteria.", icon="✅")
    else:
        st.warning("The records miss a criterion: share them with care.", icon="⚠️")
    figure_view.table(
        acceptance, name=f"{key}_acceptance", alt="Quality criteria of simulated records"
    )


def _downloads(measurement: Measurement, result: Mapping[str, Any], *, key: str) -> None:
    """Draw the downloads of the files that the worker wrote."""
    mark = download_view.mark(measurement)
    too_large = result["too large"]
    # Maps a kind of file to a label, a file name, and why the file is missing (empty if it exists).
    files = {
        "package": (*PACKAGE, too_large.get("package", "")),
        "zip": ("Tables (zip)", "published_tables.zip", too_large.get("zip", "")),
        "xlsx": ("Workbook (xlsx)", "published_tables.xlsx", too_large.get("xlsx", "")),
        "csv": ("Published (CSV)", "published.csv", ""),
        "parquet": ("Published (Parquet)", "published.parquet", ""),
        "records": (
            "Simulated records",
            "simulated_records.csv",
            "" if "acceptance" in result else "To continue, tick “Add simulated records”.",
        ),
    }
    row = st.container(horizontal=True)
    for kind, (label, name, reason) in files.items():
        row.download_button(
            label,
            data=b"" if reason else Path(result["files"][kind]).read_bytes,
            file_name=f"{mark}{name}",
            key=f"{key}_published_{kind}",
            on_click="ignore",
            disabled=bool(reason),
            help=reason
            or (f"Answers, tables, {download_view.PACKAGE_MEANING}" if kind == "package" else None),
            type="primary" if kind == "package" else "secondary",
        )
    for reason in too_large.values():
        st.caption(escape_markdown(in_labels(reason)))


def _script(arguments: tuple[Any, ...]) -> str:
    """Return Python code that creates the published tables; ``arguments`` as from `_form`."""
    _, fit, integer, (simulate, records), rule = arguments
    lines = [
        "from engine.postprocess import QualityRule, acceptance",
        "from engine.publish import write_package, write_published, write_records, write_tables",
        "from engine.publish import write_workbook",
        "",
        f"published = measurement.publish({fit!r}, integer={integer})",
        "errors = published.uncertainty()",
        f"rule = QualityRule(**{rule})",
        'write_published(errors, "published.csv", format="csv", rule=rule)',
        'write_tables(errors, "published_tables.zip", rule=rule)',
        'write_workbook(errors, "published_tables.xlsx", rule=rule)',
        'write_package(measurement, "release_with_tables.zip", published=errors, rule=rule)',
    ]
    if simulate:
        lines += [
            f"records = published.records({records or ''})",
            'write_records(measurement, records, "simulated_records.csv")',
            "print(acceptance(errors, records))",
        ]
    return "\n".join(lines)
