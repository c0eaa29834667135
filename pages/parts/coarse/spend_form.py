"""Forms that confirm and start the two measurements of a two-stage release."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import streamlit as st

from engine import figures
from engine.common_mechanism import CommonPlan, stepwise
from engine.common_mechanism.stepwise import Steps
from engine.errors import EngineError
from engine.ledger import Ledger
from engine.ledger.balance import DatasetStatus
from pages.parts.coarse import candidates_form, ledger_state
from pages.parts.coarse.candidates_form import Settings
from pages.parts.jobs import job_queue, job_widget, tasks
from pages.parts.release import dataset_form, release_form, wizard
from pages.parts.release.records_form import Source
from pages.parts.shell import budgets, figure_view
from pages.parts.shell.error_text import deferred_errors, error_text, escape_markdown, show_error


def start_look(
    book: Ledger, common: CommonPlan, dataset: str, source: Source, attempt: int, settings: Settings
) -> None:
    """Start the look (first measurement) in a worker; repeated calls start one job only."""
    key = stepwise.look_key(common, dataset=dataset, attempt=attempt)
    job = ledger_state.look_job(book, key)
    wizard.note_start("coarse", key)
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
    """Start the second measurement in a worker; repeated calls start one job only.

    If the records have changed since the first measurement, ``on_changed`` "refuse" stops with an
    error, and "charge" charges the second measurement like a separate release.
    """
    job = ledger_state.finish_job(book, key, attempt)
    if job_queue.is_there(job):
        return
    with deferred_errors("coarse_finish"):
        path, copies = source.to_file()
        arguments = (str(book.path), key, path, attempt, source.columns, on_changed)
        job_widget.start(job, tasks.finish, *arguments, spends=True, copies=copies)
        job_widget.claim(job)
        # RELEASED identifies the records of the last release or look (first stage) of this session.
        # With "charge" the second measurement may be on other records.
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
    """Draw the costs of the first measurement and of every analysis, and a typed confirmation."""
    look_pcost = common.look.budget.pcost
    text = figures.to_finish_text(common, status.left, candidates_form.short_budget)
    rule = candidates_form.rule(common, settings)
    if rule is not None:
        st.markdown(f"**Rule:** {escape_markdown(figures.rule_summary(rule))}")
    st.markdown(
        escape_markdown(f"From {source.title or 'no file yet'}, for {status.dataset}. {text}")
    )
    figure_view.picture(
        _spending_picture(status, look_pcost),
        key="coarse_spending",
        config=figure_view.EXPORT,
        show_title=False,
    )
    with st.expander("Costs to the last digit (pcost)"):
        figure_view.table(
            figures.spend_table(common),
            name="coarse_spends",
            alt="Spend of both measurements, by option",
        )
    if attempt > 1:
        st.warning(
            f"This measurement was already taken. Attempt {attempt} draws new noise and costs the same"
            " again."
        )
    total = common.options[-1].budget
    promises = [f"Promise to the people in the records: “{total.promise}”"]
    is_chargeable = (
        status.definition.unit == "pcost" and status.definition.with_guarantee(total) == total
    )
    if status.releases and is_chargeable:
        promises.append(status.joint_charge(total.pcost, count=2).text)
    st.info("\n\n".join(map(escape_markdown, promises)), icon="🙋")
    release_form.confirmation(
        f"Measure: spend {budgets.amount(look_pcost, status.definition)}",
        start_look,
        book,
        common,
        status.dataset,
        source,
        attempt,
        settings,
        dataset=status.dataset,
        key="coarse_look",
        field="coarse_confirmation",
        reason=_reason(status, source, common, needed=figures.least_total(common)),
    )
    st.caption("The ledger records the rule with the first measurement.")


def confirm_remainder(
    book: Ledger,
    key: str,
    steps: Steps,
    option: str,
    status: DatasetStatus,
    source: Source,
    paid_steps: Sequence[str],
) -> None:
    """Draw the cost and typed confirmation of the second measurement for the chosen analysis.

    If an earlier attempt was paid for without a stored result, only its error and a checkbox are
    drawn, until the checkbox allows another attempt. ``paid_steps`` are the ledger keys of the
    spends so far; the button shows the cost of all steps together.
    """
    attempt = len(steps.lost) + 1
    remainder = steps.common.residuals[steps.common.position(option)]
    if steps.lost:
        show_error(
            "The next measurement was paid for, but its result was not saved (attempts"
            f" {', '.join(map(str, steps.lost))}). Another program may still be running it;"
            " otherwise it is lost, and repeating it spends again."
        )
        if not st.checkbox(
            "Repeat the next measurement with new noise (spends again)",
            key=f"coarse_redraw_{attempt}",
        ):
            return
    show_job(ledger_state.finish_job(book, key, attempt), "Next measurement")
    if steps.is_interrupted:
        st.warning(
            "This paid step was interrupted. Finish it with the same records; this spends nothing"
            " more."
        )
    separate_spend = max(remainder.pcost, remainder.spend)
    charge = bool(remainder.blocks and not steps.is_interrupted) and st.checkbox(
        f"{tasks.CHARGE_LABEL}, {budgets.amount(separate_spend, status.definition)}",
        key=f"coarse_charge_{attempt}",
        help=("Without this, changed records are refused."),
    )
    if steps.is_interrupted:
        spend = 0.0
    elif charge:
        spend = separate_spend
    else:
        spend = remainder.spend
    figure_view.picture(
        _spending_picture(status, spend),
        key="coarse_rest",
        config=figure_view.EXPORT,
        show_title=False,
    )
    paid = [dataset_form.spent(book, step).pcost for step in paid_steps]
    in_all = budgets.amount(math.fsum([*paid, spend]), status.definition)
    label = f"Next measurement: {'at most ' if charge else ''}{in_all} in all"
    release_form.confirmation(
        "Finish the measurement: spend nothing more" if steps.is_interrupted else label,
        start_finish,
        book,
        key,
        source,
        attempt,
        "charge" if charge else "refuse",
        dataset=status.dataset,
        key="coarse_finish",
        field="coarse_confirm_finish",
        reason=_reason(status, source, steps.common, needed=spend),
    )


def _reason(status: DatasetStatus, source: Source, common: CommonPlan, *, needed: float) -> str:
    """Return what is missing for a paid step, as the end of a sentence; empty if nothing is.

    ``needed`` is the pcost that the dataset must have left.
    """
    try:
        status.definition.check_guarantee(common.look.budget)
    except EngineError as error:
        return f"choose a dataset whose total has the guarantee of the plan. {error_text(error)}"
    if needed > status.left:
        return (
            f"{dataset_form.remedy(status)}: {dataset_form.left_text(status)}, but"
            f" {budgets.amount(needed, status.definition)} is needed."
        )
    return source.problem(common.look.schema)


def _spending_picture(status: DatasetStatus, pcost: float) -> figures.Picture:
    """Return the chart of what a dataset has spent before and after a step of this pcost."""
    to_text = partial(budgets.amount, definition=status.definition)
    return figures.spending_picture(status.total, status.spent, pcost, format_amount=to_text)


def running(job: str) -> bool:
    """Return whether a job is running."""
    job_state = job_queue.find(job)
    return job_state is not None and job_state.running


def show_job(job: str, label: str) -> None:
    """Draw a job; rerun the page once when it is done, so that the page reads the ledger again."""
    if job_widget.job(job, label=label) is not None and st.session_state.get("coarse_ended") != job:
        st.session_state["coarse_ended"] = job
        st.rerun()
