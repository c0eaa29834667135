"""The two steps that spend: who pays, what is spent, a typed confirmation, one job each."""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st

from engine import _format as texts
from engine import figures
from engine.common_mechanism import CommonPlan, stepwise
from engine.common_mechanism.two_stage_io import Steps
from engine.errors import EngineError
from engine.ledger import Ledger
from engine.ledger.balance import DatasetStatus
from pages.parts.coarse import ledger_state
from pages.parts.coarse.candidates_form import Settings
from pages.parts.jobs import job_queue, job_widget, tasks
from pages.parts.release import dataset_form, records_form, release_form
from pages.parts.release.records_form import Source
from pages.parts.shell import buttons, figure_view
from pages.parts.shell.error_text import (
    deferred_errors,
    error_text,
    escape_markdown,
    show_deferred_error,
    show_error,
)


def payer(
    unit: Callable[[Ledger, DatasetStatus], tuple[int, str | None]],
) -> tuple[Ledger, DatasetStatus, Source] | None:
    """Draw ledger, dataset and records; None while ledger or dataset are missing.

    ``unit`` tells how many rows of a person the steps may count, and the column that their schema
    declares.
    """
    left, right = st.columns(2, gap="large")
    with left:
        book = dataset_form.ledger()
        status = dataset_form.dataset(book) if book is not None else None
    if book is None:
        return None
    with right:
        source = records_form.source(*((1, None) if status is None else unit(book, status)))
    dataset_form.remember(status)
    if status is None:
        st.info("Declare the dataset whose budget pays.", icon="🗂️")
        return None
    return book, status, source


def start_look(
    book: Ledger, common: CommonPlan, dataset: str, source: Source, attempt: int, settings: Settings
) -> None:
    """Start the look in a worker; pressed twice, or in two tabs, it is still one."""
    key = stepwise.look_key(common, dataset=dataset, attempt=attempt)
    job = ledger_state.look_job(book, key)
    if job_queue.is_there(job):
        return
    with deferred_errors("coarse_look"):
        path, copies = source.to_file()
        arguments = (common.to_json(), path, dataset, str(book.path), attempt, source.columns)
        job_widget.start(
            job, tasks.look, *arguments, settings.arguments(common), spends=True, copies=copies
        )
        job_widget.claim(job)
        st.session_state[release_form.RELEASED] = release_form.chosen_records(key, source)
    st.session_state.pop("coarse_confirmation", None)


def start_finish(book: Ledger, key: str, source: Source, attempt: int, on_changed: str) -> None:
    """Start the last step in a worker; pressed twice, or in two tabs, it is still one."""
    job = ledger_state.finish_job(book, key, attempt)
    if job_queue.is_there(job):
        return
    with deferred_errors("coarse_finish"):
        path, copies = source.to_file()
        arguments = (str(book.path), key, path, attempt, source.columns, on_changed)
        job_widget.start(job, tasks.finish, *arguments, spends=True, copies=copies)
        job_widget.claim(job)
        # a step that may be charged alone can have other records than its look
        if on_changed == "charge":
            st.session_state.pop(release_form.RELEASED, None)
    st.session_state.pop("coarse_confirm_finish", None)


def confirm_look(
    book: Ledger,
    common: CommonPlan,
    status: DatasetStatus,
    source: Source,
    attempt: int,
    settings: Settings,
) -> None:
    """What the look spends now and in all, and the typed confirmation."""
    now = common.look.budget.pcost
    figure_view.picture(
        figures.spending_picture(status.total, status.spent, now),
        key="coarse_spending",
        config=figure_view.EXPORT,
    )
    st.markdown("**What it spends now, and in all with each option (pcost, to the last digit)**")
    figure_view.table(
        figures.spend_table(common),
        name="coarse_spends",
        alt="Spends of the look and of the rest by option",
    )
    st.caption(
        "The rule above is noted on the ledger together with the look, so that nobody can fit it to"
        " what the look says."
    )
    if attempt > 1:
        st.warning(
            f"These analyses were looked at for this dataset already. Attempt {attempt} draws new"
            " noise and spends its full cost once more."
        )
    st.info(
        escape_markdown(
            f"You can tell the people in these records: {common.options[-1].budget.promise}"
        ),
        icon="🙋",
    )
    typed = _typed(status, "coarse_confirmation")
    reason = _reason(status, source, typed, common, needed=figures.least_total(common))
    left, right = st.columns([1, 2], vertical_alignment="center")
    buttons.button(
        f"Look: spend {texts.cost(now)} pcost",
        start_look,
        book,
        common,
        status.dataset,
        source,
        attempt,
        settings,
        key="coarse_look",
        place=left,
        spends=True,
        type="primary",
        disabled=bool(reason),
        width="stretch",
    )
    if reason:
        right.caption(escape_markdown(f"The look has to wait: {reason}"))
    show_deferred_error("coarse_look")


def confirm_rest(
    book: Ledger, key: str, steps: Steps, option: str, status: DatasetStatus, source: Source
) -> None:
    """Confirm and run the last step, what is left of the option that was taken."""
    attempt = len(steps.lost) + 1
    for number in range(1, attempt + 1):
        if running(ledger_state.finish_job(book, key, number)):
            show_job(ledger_state.finish_job(book, key, number), "The rest")
            return
    left_over = steps.common.residuals[steps.common.position(option)]
    if steps.lost:
        show_error(
            "The rest was spent for but its result was never saved (attempts"
            f" {', '.join(map(str, steps.lost))}). It may still be at work in another program; if"
            " not, it is lost, and drawing it again spends once more."
        )
        if not st.checkbox(
            "Draw the rest again with new noise (spends again)", key=f"coarse_redraw_{attempt}"
        ):
            return
    show_job(ledger_state.finish_job(book, key, attempt), "The rest")
    st.subheader("The rest")
    if steps.is_interrupted:
        st.warning(
            "This step was paid for and broke off before its result was saved. Measuring it with"
            " the same records ends it and spends nothing more."
        )
    charge = bool(left_over.blocks and not steps.is_interrupted) and st.checkbox(
        "If these are other records than those looked at, charge this step alone: "
        f"{texts.cost(max(left_over.pcost, left_over.spend))} pcost",
        key=f"coarse_charge_{attempt}",
        help=(
            "Both steps together cost no more than the analysis only where they are of the same"
            " records. Otherwise the rest is refused, unless you charge it as a release of its own."
        ),
    )
    takes = (
        0.0
        if steps.is_interrupted
        else max(left_over.pcost, left_over.spend)
        if charge
        else left_over.spend
    )
    figure_view.picture(
        figures.spending_picture(status.total, status.spent, takes),
        key="coarse_rest",
        config=figure_view.EXPORT,
    )
    typed = _typed(status, "coarse_confirm_finish")
    reason = _reason(status, source, typed, steps.common, needed=takes)
    left, right = st.columns([1, 2], vertical_alignment="center")
    buttons.button(
        f"Measure the rest: spend {'at most ' if charge else ''}{texts.cost(takes)} pcost",
        start_finish,
        book,
        key,
        source,
        attempt,
        "charge" if charge else "refuse",
        key="coarse_finish",
        place=left,
        spends=True,
        type="primary",
        disabled=bool(reason),
        width="stretch",
    )
    if reason:
        right.caption(escape_markdown(f"The rest has to wait: {reason}"))
    show_deferred_error("coarse_finish")


def _typed(status: DatasetStatus, key: str) -> str:
    return st.text_input(
        f"Type the name of the dataset, {escape_markdown(status.dataset)}, to confirm. This cannot"
        " be undone.",
        key=key,
        live=True,
        autocomplete="off",
    )


def _reason(
    status: DatasetStatus, source: Source, typed: str, common: CommonPlan, *, needed: float
) -> str:
    """Why a step cannot start yet; empty when it can."""
    try:
        status.definition.check_unit(common.look.budget)
    except EngineError as error:
        return error_text(error)
    if needed > status.left:
        return (
            f"the dataset has {texts.remaining_text(status.left)} pcost left and at least"
            f" {texts.cost(needed)} is needed to finish. Plan with a smaller budget on the Preview"
            " page."
        )
    if problem := source.problem(common.look.schema):
        return problem
    return "" if typed.strip() == status.dataset else "type the dataset's name exactly."


def running(job: str) -> bool:
    """Whether a job goes on."""
    job_state = job_queue.find(job)
    return job_state is not None and job_state.running


def show_job(job: str, label: str) -> None:
    """Draw a job; when it ended after the ledger was read for this page, the page is drawn once
    more.
    """
    if job_widget.job(job, label=label) is not None and st.session_state.get("coarse_ended") != job:
        st.session_state["coarse_ended"] = job
        st.rerun()
