"""Release form: check of the records, cost, typed confirmation, progress and stored result."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

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
from pages.parts.release import dataset_form, wizard
from pages.parts.release.records_form import Source
from pages.parts.shell import budgets, buttons, figure_view, history
from pages.parts.shell.error_text import (
    deferred_errors,
    error_text,
    escape_markdown,
    show_deferred_error,
    show_error,
    show_errors,
)

WEAK_GUESS_PERCENT = 99.0  # attacker's success rate above which the form warns
# Session key: value of `chosen_records` for the last release, or for the last first stage of a
# two-stage release, in this session.
RELEASED = "released_source"
MAX_QUICK_BYTES = 5_000_000  # uploads of at most this size are checked without a click
CHECKED = "checked_records"  # key of the page state for the result of the last check
RESULT_FORM = "release_result"  # start of the keys of all fields on the result page
# Fields of the form for published tables.
PUBLISHED_KEYS = [f"{RESULT_FORM}_{name}" for name in ("fit", "whole", "least", "simulate", "size")]
# Session keys of the ledger key of the release whose result page was open last, and of a mapping
# from ledger keys to the values of `PUBLISHED_KEYS`.
SHOWN_RESULT, PUBLISHED_OPTIONS = "release_shown", "published_options"


def job_key(book: Ledger, key: str) -> str:
    """Return the key of the job of a release, which is the same in every session."""
    return f"release|{book.path}|{key}"


def attempts(book: Ledger, dataset: str, plan: Plan) -> list[str]:
    """Return the ledger keys of the releases of this plan for the dataset, oldest first."""
    return dataset_form.charged_keys(
        book,
        lambda attempt: release_key(dataset=dataset, plan_hash=plan.hash, attempt=attempt),
    )


def start(book: Ledger, plan: Plan, dataset: str, source: Source, attempt: int) -> None:
    """Start the release in a worker; repeated calls, also from other tabs, start one job only."""
    key = release_key(dataset=dataset, plan_hash=plan.hash, attempt=attempt)
    job = job_key(book, key)
    wizard.note_start("release", key)
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
    """Return a tuple that identifies a release or a first measurement, and the chosen records.

    A look is the first measurement of a two-stage release.
    """
    return (key, *source.identity, source.changed, str(source.columns))


def same_records(
    book: Ledger,
    key: str,
    source: Source,
    *,
    compare: Callable[..., str] = tasks.same_records,
    advice: str = f"{tasks.OTHER_RECORDS} The stored answers are under 'Past releases'.",
) -> bool:
    """Return whether a stored release or first measurement is of the chosen records.

    A worker compares them, and a difference is drawn as an error. The result is False while the
    worker runs. It is True if no records are chosen, or if the comparison fails.

    Parameters
    ----------
    compare : worker function that returns the difference as text, empty if there is none.
    advice : what to do about a difference.
    """
    records_id = chosen_records(key, source)
    if source.missing or st.session_state.get(RELEASED) == records_id:
        return True
    # The random token keeps the job private to this session, because its result depends on records.
    token = st.session_state.setdefault("check_token", secrets.token_hex(16))
    job = f"same|{token}|{book.path}|{records_id}"
    if job_queue.find(job) is None:
        with deferred_errors("same"):
            path, copies = source.to_file()
            job_widget.start(job, compare, str(book.path), key, path, source.columns, copies=copies)
    show_deferred_error("same")
    finished_job = job_widget.job(job, label="Comparing the chosen records with the released ones")
    job_state = job_queue.find(job)
    if finished_job is not None and finished_job.result:
        show_error(f"{finished_job.result} {advice}")
    # If the comparison could not be started, or failed, the user may still open the result.
    return job_state is None or not (job_state.running or job_state.result)


def start_check(job: str, ledger: str, plan: Plan, dataset: str, source: Source) -> None:
    """Start the check of the records in a worker; it spends nothing."""
    job_queue.forget(job)  # the file may have changed
    with deferred_errors("check"):
        path, copies = source.to_file()
        arguments = (plan.to_json(), path, dataset, ledger, source.columns)
        job_widget.start(job, tasks.check, *arguments, copies=copies)


def is_small_upload(source: Source) -> bool:
    """Return whether the records are an uploaded file that a check reads in about a second."""
    return source.upload is not None and source.upload.size <= MAX_QUICK_BYTES


def _check_job(book: Ledger | None, plan: Plan, dataset: str, source: Source) -> str:
    """Return the key of the job that checks the records."""
    # The random token keeps the job private to this session, because its numbers have no noise.
    token = st.session_state.setdefault("check_token", secrets.token_hex(16))
    ledger = "" if book is None else str(book.path)
    return f"check|{token}|{ledger}|{dataset}|{plan.hash}|{source.identity}|{source.columns}"


def check(
    book: Ledger | None,
    plan: Plan,
    dataset: str,
    source: Source,
    *,
    checks_now: bool = False,
) -> None:
    """Draw the button that checks the records, and the result, which only the curator may see.

    If there is a ledger ``book``, the check also reports releases of the same records that were
    charged to other datasets. With ``checks_now``, the check starts without a click.
    """
    ledger = "" if book is None else str(book.path)
    job = _check_job(book, plan, dataset, source)
    buttons.button(
        "Check the file (private result)",
        start_check,
        job,
        ledger,
        plan,
        dataset,
        source,
        key="check_records",
        disabled=bool(source.problem(plan.schema)),
    )
    if checks_now and not source.problem(plan.schema) and job_queue.find(job) is None:
        start_check(job, ledger, plan, dataset, source)
    show_deferred_error("check")
    finished_job = job_widget.job(job, label="Check")
    if finished_job is not None:
        job_widget.show_checked_rows(finished_job.result)
        _remember_check(plan, source, finished_job.result)
        st.dataframe(
            finished_job.result["columns"],
            hide_index=True,
            column_config={
                name: st.column_config.NumberColumn(format="localized")
                for name in ("Listed", "Missing", "Unlisted", "Recoded", "Dropped")
            },
            key="fit",
            alt="How each column fits the schema, with the most frequent unlisted values",
        )


def _check_subject(plan: Plan, source: Source) -> tuple[object, ...]:
    """Return a tuple that identifies the plan and the present state of the checked records."""
    return (plan.hash, *source.identity, source.changed, str(source.columns))


def _remember_check(plan: Plan, source: Source, rows: Mapping[str, Any]) -> None:
    """Store the dropped rows of a check in the page state, for `_dropped_rows`."""
    history.page_state()[CHECKED] = _check_subject(plan, source), rows


def _dropped_rows(plan: Plan, source: Source) -> None:
    """Draw how many rows the release will drop according to the last check of these records.

    If these records have not been checked, draw a note.
    """
    subject, rows = history.page_state().get(CHECKED, ((), {}))
    if subject != _check_subject(plan, source):
        if not source.missing:
            st.caption("These records have not been checked: see the button below.")
        return
    text = (
        f"{escape_markdown(rows['dropped'])} Private; the check on the step File has the reasons."
    )
    if rows["many_dropped"]:
        st.warning(text, icon="⚠️")
    else:
        st.caption(text)


def _use_unit(status: DatasetStatus) -> None:
    """Give the budget of the request the privacy unit (rows per person, neighbours) of a
    dataset."""
    with deferred_errors("release"):
        history.change(
            budget=status.definition.with_guarantee(history.current().budget), redraw=True
        )


def confirm(
    book: Ledger,
    plan: Plan,
    status: DatasetStatus,
    source: Source,
    attempt: int,
    *,
    interrupted: bool = False,
) -> None:
    """Draw the cost of a release, warnings, and the typed confirmation.

    ``interrupted`` is whether this attempt was charged but has no stored result; finishing it costs
    nothing more.
    """
    dataset_form.registered_note(book, status)
    definition, price = status.definition, plan.pcost
    answers = texts.pluralize(plan.workload.queries, "answer")
    st.markdown(
        escape_markdown(f"{answers} from {source.title or 'no file yet'}, for {status.dataset}.")
    )
    is_checked_here = job_queue.find(_check_job(book, plan, status.dataset, source)) is not None
    if not interrupted and not is_checked_here:
        _dropped_rows(plan, source)
    joint_text = ""
    with show_errors():
        price = status.takes(plan.pcost, plan.budget.pure_epsilon)
        # An interrupted release was charged before, so the sum of the ledger contains its charge.
        if (
            status.releases
            and not interrupted
            and definition.with_guarantee(plan.budget) == plan.budget
        ):
            joint_text = status.joint_charge(price, plan.schema.exact_text).text
    figure_view.picture(
        figures.spending_picture(
            status.total,
            status.spent,
            0.0 if interrupted else price,
            definition.unit,
            partial(budgets.amount, definition=definition),
        ),
        key="spending",
        config=figure_view.EXPORT,
        show_title=False,
    )
    promise = f"Promise to the people in the records: “{plan.schema.promise(plan.budget)}”"
    promises = [promise, joint_text]
    st.info("\n\n".join(escape_markdown(text) for text in promises if text), icon="🙋")
    if plan.budget.guess >= WEAK_GUESS_PERCENT:
        st.warning(
            "This budget gives almost no protection: an attacker guesses right up to"
            f" {plan.budget.guess:g}% of the time. Choose a smaller budget on Preview."
        )
    if interrupted:
        st.warning(
            "This release was charged, but interrupted before its result was saved. Release again"
            " with the same records to finish it; this spends nothing more."
        )
    elif attempt > 1:
        st.warning(f"Attempt {attempt} draws new noise and spends the full cost again.")
    if status.definition.with_guarantee(plan.budget) != plan.budget:
        st.warning(
            escape_markdown(
                "This plan cannot be charged to this dataset, whose total is for"
                f" {status.definition.neighbours_text}."
            )
        )
        buttons.button(_unit_label(status), _use_unit, status, key="use_unit")
    reason = missing_step(plan, status, source, interrupted=interrupted)
    confirmation(
        "Finish the release: spend nothing more"
        if interrupted
        else f"Release: spend {budgets.amount(price, definition)}",
        start,
        book,
        plan,
        status.dataset,
        source,
        attempt,
        dataset=status.dataset,
        key="release",
        field="confirmation",
        reason=reason,
    )
    check(book, plan, status.dataset, source)


def confirmation(
    label: str,
    action: Callable[..., None],
    *arguments: object,
    dataset: str,
    key: str,
    field: str,
    reason: str,
) -> None:
    """Draw the typed confirmation and the button of a spend.

    Parameters
    ----------
    label, action, arguments : label of the button, and the function that it calls.
    dataset : name that must be typed.
    key, field : keys of the button and of the text field.
    reason : what else is missing, as the end of a sentence; empty if nothing is.
    """
    typed_name = st.text_input(
        f"Type {escape_markdown(dataset)} to confirm (cannot be undone)",
        key=field,
        live=True,
        autocomplete="off",
    )
    if not reason and typed_name.strip() != dataset:
        reason = "type the dataset name."
    with st.container(horizontal=True, vertical_alignment="center"):
        buttons.button(
            label,
            action,
            *arguments,
            key=key,
            spends=True,
            type="primary",
            disabled=bool(reason),
        )
        if reason:
            st.caption(escape_markdown(f"To continue, {reason}"), width="content")
    show_deferred_error(key)


def missing_step(plan: Plan, status: DatasetStatus, source: Source, *, interrupted: bool) -> str:
    """Return what is missing for the release, as the end of a sentence; empty if nothing is.

    An ``interrupted`` release was charged already, so that the remaining budget does not matter.
    """
    try:
        status.definition.check_guarantee(plan.budget)
    except EngineError:
        return f"press “{_unit_label(status)}” above."
    try:
        price = status.takes(plan.pcost, plan.budget.pure_epsilon)
    except EngineError:
        return "choose “pure epsilon” as the budget unit on Preview."
    if price > status.left and not interrupted:
        return (
            f"{dataset_form.remedy(status)}: {dataset_form.left_text(status)}, and the plan costs"
            f" {budgets.amount(price, status.definition)}."
        )
    return source.problem(plan.schema)


def _unit_label(status: DatasetStatus) -> str:
    """Return the label of the button that changes the budget to the dataset's privacy unit."""
    return f"Plan for {status.definition.neighbours_text}"


def running(book: Ledger, key: str) -> Status | None:
    """Draw the progress or the error of a release; return the status of its job once it is done.

    Until then, and if the job failed, return None.
    """
    return job_widget.job(job_key(book, key), label="Release")


def stored_measurement(book: Ledger, key: str) -> Measurement | None:
    """Return the stored result of a release; None, with the error on the page, if it is lost.

    The result that was read last is cached in the session.
    """
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


def receipt(book: Ledger, measurement: Measurement) -> None:
    """Draw the receipt of a release. The session that started it also sees the report on the
    rows."""
    key, plan = measurement.key, measurement.plan
    with show_errors():
        spend = dataset_form.spent(book, key)
        job_widget.receipt(
            job_key(book, key),
            f"Released for {spend.dataset} on {dataset_form.time_text(spend.utc)}:"
            f" {texts.pluralize(plan.workload.queries, 'answer')} for"
            f" {dataset_form.charge(book, spend)}. Opening this page again spends nothing.",
            icon="✅",
        )
        joint = book.joint_charge(key)
        if joint.releases > 1:
            st.caption(escape_markdown(joint.text))
        dataset_form.draw_files(book)


def restore_choices(key: str) -> None:
    """Set the choices on the result page to those of a release; called before the page is drawn.

    If the page shows another release than before, all choices get their defaults, except those for
    published tables: these get the values that the release had when its page was last open.
    """
    form = st.session_state
    shown = form.get(SHOWN_RESULT, "")
    if key == shown:
        return
    by_release = form.setdefault(PUBLISHED_OPTIONS, {})
    by_release[shown] = {name: form[name] for name in PUBLISHED_KEYS if name in form}
    for name in [name for name in form if str(name).startswith(f"{RESULT_FORM}_")]:
        del form[name]
    form.update(by_release.get(key, {}))
    form[SHOWN_RESULT] = key
