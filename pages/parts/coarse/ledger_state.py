"""State of two-stage releases in the ledger, cached and as text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress

import streamlit as st

from engine import _format as texts
from engine import figures
from engine.common_mechanism import CommonPlan, stepwise
from engine.common_mechanism.two_stage_io import Steps
from engine.errors import EngineError
from engine.ledger import Ledger
from engine.ledger.balance import DatasetStatus
from engine.release import Measurement
from pages.parts.coarse.candidates_form import Settings
from pages.parts.coarse.views import STOP
from pages.parts.jobs import job_widget
from pages.parts.release import dataset_form, file_access
from pages.parts.shell.error_text import error_text, escape_markdown, show_error

WAITING = ("waits for a decision", "waits for the remainder")


def look_job(book: Ledger, key: str) -> str:
    """Return the job key of a look; the same in every session."""
    return f"look|{book.path}|{key}"


def finish_job(book: Ledger, key: str, attempt: int) -> str:
    """Return the job key of the remainder of a look."""
    return f"finish|{book.path}|{key}|{attempt}"


def attempts(book: Ledger, common: CommonPlan, dataset: str) -> list[str]:
    """Return the keys of the paid looks with these options at the dataset, in order."""
    keys: list[str] = []
    while (
        book.find(key := stepwise.look_key(common, dataset=dataset, attempt=len(keys) + 1))
        is not None
    ):
        keys.append(key)
    return keys


def read(book: Ledger, key: str) -> Steps:
    """Return the steps of a look; read again if the ledger has grown or a step is lost.

    A lost step may still be running in another process.
    """
    cached_steps: dict[tuple[str, str], tuple[int, Steps]] = st.session_state.setdefault(
        "coarse_steps", {}
    )
    rows = len(book.rows())
    place = (str(book.path), key)
    if place not in cached_steps or cached_steps[place][0] != rows or cached_steps[place][1].lost:
        cached_steps[place] = (rows, stepwise.resume(book, key))
    return cached_steps[place][1]


def stored(book: Ledger, key: str) -> Steps | None:
    """Return the steps of a look; None, with an error on the page, if it was lost."""
    try:
        return read(book, key)
    except EngineError as error:
        show_error(error_text(error))
        return None


def unit(book: Ledger, status: DatasetStatus) -> tuple[int, str | None]:
    """Return the maximum rows per person of all looks, and their common person ID column."""
    rows, columns = [1], set()
    for key in stepwise.looks(book, status.dataset):
        with suppress(EngineError):  # the list of looks shows lost looks
            look = read(book, key).common.look
            rows.append(look.budget.rows_per_person)
            columns.add(look.schema.person)
    return max(rows), columns.pop() if len(columns) == 1 else None


def state_text(book: Ledger, key: str) -> str:
    """Return one line with the state of a look, for the list."""
    time = dataset_form.time_text(dataset_form.spent(book, key).utc)
    try:
        steps = read(book, key)
        names = " or ".join(name for name, _ in steps.common.analyses)
        while steps.finished is not None and has_next_choice(steps):
            steps = read(book, steps.finished.key)
    except EngineError:
        return f"{time}: lost or still running"
    if steps.choice is None:
        return f"{time}: {names}; {WAITING[0]}"
    if steps.choice.option == STOP:
        return f"{time}: {names}; stopped"
    state = WAITING[1] if steps.finished is None else "finished"
    return f"{time}: {names}; {steps.choice.option} chosen, {state}"


def waiting(path: str, dataset: str) -> list[str]:
    """Return the states of the looks that wait for a decision or for the remainder."""
    with suppress(EngineError, OSError):  # the ledger form shows the error
        if (place := file_access.readable(path)).exists():
            book = Ledger(place)
            states = [state_text(book, key) for key in stepwise.looks(book, dataset)]
            return [text for text in states if text.endswith(WAITING)]
    return []


def has_next_choice(steps: Steps) -> bool:
    """Return whether the chosen option is the look of the next choice of a chain."""
    option = steps.choice.option if steps.choice is not None else None
    return steps.common.following is not None and option == steps.common.names[-1]


def draw_choices(steps: Steps) -> None:
    """Draw the decisions so far."""
    for choice in steps.choices:
        option = "Stop" if choice.option == STOP else f"'{choice.option}'"
        author = (
            f" by {choice.by}, against the rule ({choice.reason})" if choice.by else " by the rule"
        )
        st.success(
            escape_markdown(
                f"{option} was chosen{author} on {dataset_form.time_text(choice.utc)}, ledger row"
                f" {choice.seq}."
            ),
            icon="🗳️",
        )
    if steps.choice is not None and steps.choice.option == STOP:
        st.info(
            "Only the look is released. You can still choose an option and pay its remainder.",
            icon="✋",
        )


def draw_look_receipt(book: Ledger, key: str) -> None:
    """Draw the ledger entry of a look and, for the curator only, the report on the rows."""
    spend = dataset_form.spent(book, key)
    job_widget.receipt(
        look_job(book, key),
        f"Looked at {spend.dataset} on {dataset_form.time_text(spend.utc)}, for"
        f" {texts.cost(spend.pcost)} pcost, ledger row {spend.seq}. Viewing it again spends"
        " nothing.",
        icon="🔭",
    )


def recorded_rule(book: Ledger, key: str, settings: Settings) -> Settings:
    """Return the rule recorded with the look, or else the one on the page."""
    notes = book.notes(kind="rule", key=key)
    if not notes:
        st.caption("No rule was recorded with this look; the rule on this page applies.")
        return settings
    text = json.loads(notes[0].note)
    primary = text["primary"] if isinstance(text["primary"], str) else ""
    st.caption(
        escape_markdown(
            f"Rule recorded with the look (ledger row {notes[0].seq}): share {text['share']:g},"
            f" ratio {text['snr']:g}, safety margin {text['sigmas']:g}."
        )
    )
    return Settings(share=text["share"], snr=text["snr"], sigmas=text["sigmas"], primary=primary)


def draw_receipt(
    book: Ledger, steps: Steps, last: Measurement, option: str, paid: Sequence[str]
) -> None:
    """Draw the spend of all steps; `paid` are the keys before the last measurement."""
    keys = [*paid, *([last.key] if last.key not in paid else [])]
    spent = [dataset_form.spent(book, key).pcost for key in keys]
    job_widget.receipt(
        finish_job(book, paid[-1], len(steps.lost) + 1),
        f"Finished with '{option}' for {steps.look.dataset} on"
        f" {dataset_form.time_text(last.utc)}."
        f" {figures.receipt_text(spent, steps.common, option)}",
        icon="✅",
    )
