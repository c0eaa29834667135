"""The release itself: what it spends, a typed confirmation, one run per key, and the stored result."""

from __future__ import annotations

import secrets
from collections.abc import Callable

import streamlit as st

from engine import _format as texts
from engine import figures
from engine.errors import EngineError
from engine.ledger import Ledger, release_key
from engine.ledger.balance import DatasetStatus
from engine.plans import Plan
from engine.release import Measurement, load_measurement
from pages.parts.jobs import job_queue, job_widget, tasks
from pages.parts.jobs.status import Status
from pages.parts.release import dataset_form
from pages.parts.release.records_form import Source
from pages.parts.shell import buttons, figure_view, history
from pages.parts.shell.error_text import (
    deferred_errors,
    error_text,
    escape_markdown,
    show_deferred_error,
    show_error,
    show_errors,
)

RELEASED = "released_source"  # what this session released last, and from which records


def job_key(book: Ledger, key: str) -> str:
    """Name of the worker's job for a release: the same in every session."""
    return f"release|{book.path}|{key}"


def attempts(book: Ledger, dataset: str, plan: Plan) -> list[str]:
    """Keys of the releases of this plan that were spent for the dataset, in order."""
    keys: list[str] = []
    while (
        book.find(key := release_key(dataset=dataset, plan_hash=plan.hash, attempt=len(keys) + 1))
        is not None
    ):
        keys.append(key)
    return keys


def start(book: Ledger, plan: Plan, dataset: str, source: Source, attempt: int) -> None:
    """Start the release in a worker; pressed twice, or in two tabs, it is still one."""
    key = release_key(dataset=dataset, plan_hash=plan.hash, attempt=attempt)
    job = job_key(book, key)
    if job_queue.is_there(job):
        return
    with deferred_errors("release"):
        path, copies = source.to_file()
        arguments = (plan.to_json(), path, dataset, str(book.path), attempt, source.columns)
        job_widget.start(job, tasks.release, *arguments, spends=True, copies=copies)
        job_widget.claim(job)
        st.session_state[RELEASED] = chosen_records(key, source)
    st.session_state.pop("confirmation", None)


def chosen_records(key: str, source: Source) -> tuple[object, ...]:
    """Return what identifies the chosen records, for the release or look under a key."""
    return (key, *source.identity, source.changed, str(source.columns))


def same_records(
    book: Ledger,
    key: str,
    source: Source,
    *,
    compare: Callable[..., str] = tasks.same_records,
    advice: str = f"{tasks.OTHER_RECORDS} The stored answers are under 'Paid releases'.",
) -> bool:
    """Whether a stored release or look may be shown for the chosen records: not if it was measured
    on other records.
    """
    chosen = chosen_records(key, source)
    if source.missing or st.session_state.get(RELEASED) == chosen:
        return True
    # what differs is told to the session that asked, and to no other
    token = st.session_state.setdefault("check_token", secrets.token_hex(16))
    job = f"same|{token}|{book.path}|{chosen}"
    if job_queue.find(job) is None:
        with deferred_errors("same"):
            path, copies = source.to_file()
            job_widget.start(job, compare, str(book.path), key, path, source.columns, copies=copies)
    show_deferred_error("same")
    done = job_widget.job(job, label="Comparing the chosen records with those that were measured")
    job_state = job_queue.find(job)
    if done is not None and done.result:
        show_error(f"{done.result} {advice}")
    return job_state is None or not (job_state.running or job_state.result)


def start_check(job: str, book: Ledger, plan: Plan, dataset: str, source: Source) -> None:
    """Start the strict check of the records in a worker, anew at every press; it spends nothing."""
    job_queue.forget(job)  # the same file may hold other records by now
    with deferred_errors("check"):
        path, copies = source.to_file()
        job_widget.start(
            job,
            tasks.check,
            plan.to_json(),
            path,
            dataset,
            str(book.path),
            source.columns,
            copies=copies,
        )


def check(book: Ledger, plan: Plan, dataset: str, source: Source) -> None:
    """The strict check, a step of its own: what it shows is for the curator's eyes only."""
    # exact numbers are told to the session that asked, and to no other
    token = st.session_state.setdefault("check_token", secrets.token_hex(16))
    job = f"check|{token}|{book.path}|{dataset}|{plan.hash}|{source.identity}|{source.columns}"
    buttons.button(
        "Check the records first (for your eyes only)",
        start_check,
        job,
        book,
        plan,
        dataset,
        source,
        key="check_records",
        disabled=bool(source.problem(plan.schema)),
        help=(
            "Shows how each column and its values fit the schema, counts rows that do not, and"
            " looks for the same records under other names. Exact, and so not to be published;"
            " spends nothing."
        ),
    )
    show_deferred_error("check")
    done = job_widget.job(job, label="Check")
    if done is not None:
        job_widget.show_rows(done.result)
        st.caption(
            "Each column by itself: what is missing or not known is collected in a cell of its own"
            " where the schema has one, in the nearest or named bin where it says so, and left out"
            " elsewhere. The values are the most frequent ones that the schema does not know, each"
            " with its rows."
        )
        st.dataframe(
            done.result["columns"],
            hide_index=True,
            key="fit",
            alt="How each column fits the schema",
        )


def _use_unit(status: DatasetStatus) -> None:
    """Plan for the people that the total of the dataset protects."""
    with deferred_errors("release"):
        history.change(budget=status.definition.unit(history.current().budget), redraw=True)


def confirm(
    book: Ledger,
    plan: Plan,
    status: DatasetStatus,
    source: Source,
    attempt: int,
    *,
    interrupted: bool = False,
) -> None:
    """What the release spends, and the typed confirmation; nothing where it was paid for and broke
    off.
    """
    counts, takes = status.definition.counts, plan.pcost
    with show_errors():
        status.definition.check_unit(plan.budget)
        takes = status.takes(plan.pcost, plan.budget.pure_epsilon)
    if status.definition.unit(plan.budget) != plan.budget:
        buttons.button(f"Plan for {status.definition.whom}", _use_unit, status, key="use_unit")
    figure_view.picture(
        figures.spending_picture(status.total, status.spent, takes, counts),
        key="spending",
        config=figure_view.EXPORT,
    )
    st.info(
        escape_markdown(
            f"You can tell the people in these records: {plan.schema.promise(plan.budget)}"
        ),
        icon="🙋",
    )
    if interrupted:
        takes = 0.0
        st.warning(
            "This release was paid for and broke off before its result was saved. Releasing it with"
            " the same records ends it and spends nothing more."
        )
    elif attempt > 1:
        st.warning(
            f"This plan was released for this dataset already. Attempt {attempt} draws new noise"
            " and spends its full cost once more. The earlier answers stay valid; looking at them"
            " again costs nothing."
        )
    check(book, plan, status.dataset, source)
    typed = st.text_input(
        f"Type the name of the dataset, {escape_markdown(status.dataset)}, to confirm. This cannot"
        " be undone.",
        key="confirmation",
        live=True,
        autocomplete="off",
    )
    reason = reason_to_wait(plan, status, source, typed, interrupted=interrupted)
    left, right = st.columns([1, 2], vertical_alignment="center")
    buttons.button(
        f"Release: spend {texts.cost(takes)} {counts}",
        start,
        book,
        plan,
        status.dataset,
        source,
        attempt,
        key="release",
        place=left,
        spends=True,
        type="primary",
        disabled=bool(reason),
        width="stretch",
    )
    if reason:
        right.caption(f"Release has to wait: {reason}")
    show_deferred_error("release")


def reason_to_wait(
    plan: Plan, status: DatasetStatus, source: Source, typed: str, *, interrupted: bool
) -> str:
    """Why the release cannot start yet; empty when it can."""
    try:
        status.definition.check_unit(plan.budget)
        takes = status.takes(plan.pcost, plan.budget.pure_epsilon)
    except EngineError as error:
        return error_text(error)
    if takes > status.left and not interrupted:
        left, cost_text = texts.remaining_text(status.left), texts.cost(takes)
        return (
            f"the dataset has {left} {status.definition.counts} left and this plan costs"
            f" {cost_text}. Plan with a smaller budget on the Preview page."
        )
    if problem := source.problem(plan.schema):
        return problem
    if typed.strip() != status.dataset:
        return "type the dataset's name exactly."
    return ""


def running(book: Ledger, key: str) -> Status | None:
    """Draw the progress of a release, or what went wrong; return the job once it is done."""
    return job_widget.job(job_key(book, key), label="Release")


def stored(book: Ledger, key: str) -> Measurement | None:
    """The stored result of a release, read once a session; its message when it was lost."""
    cached: tuple[tuple[str, str], Measurement] | None = st.session_state.get("released")
    if cached is not None and cached[0] == (str(book.path), key):
        return cached[1]
    try:
        measurement = load_measurement(book, key)
    except EngineError as error:
        show_error(error_text(error))
        return None
    st.session_state["released"] = ((str(book.path), key), measurement)
    return measurement


def receipt(book: Ledger, key: str) -> None:
    """What the ledger holds about a release, and what happened to the rows, for the curator only."""
    with show_errors():
        receipt_row = dataset_form.spent(book, key)
        st.success(
            escape_markdown(
                f"Released for {receipt_row.dataset} at {receipt_row.utc}:"
                f" {texts.cost(receipt_row.pcost)} pcost, ledger row {receipt_row.seq}. Reloading"
                " this page, or pressing the button again, shows this same result and spends"
                " nothing."
            ),
            icon="✅",
        )
        job_widget.rows_read(job_key(book, key))
