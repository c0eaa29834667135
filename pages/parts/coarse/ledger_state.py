"""What the ledger knows of a look: its steps, read once, and what happened in words."""

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

WAITS = ("waits for a decision", "waits for the rest")


def look_job(book: Ledger, key: str) -> str:
    """Name of the worker's job for a look: the same in every session."""
    return f"look|{book.path}|{key}"


def finish_job(book: Ledger, key: str, attempt: int) -> str:
    """Name of the worker's job for the rest of a look."""
    return f"finish|{book.path}|{key}|{attempt}"


def attempts(book: Ledger, common: CommonPlan, dataset: str) -> list[str]:
    """Keys of the looks with these options that were spent for the dataset, in order."""
    keys: list[str] = []
    while (
        book.find(key := stepwise.look_key(common, dataset=dataset, attempt=len(keys) + 1))
        is not None
    ):
        keys.append(key)
    return keys


def read(book: Ledger, key: str) -> Steps:
    """The steps of a look, read again when the ledger has grown, or while what is lost may be at
    work elsewhere.
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
    """The steps of a look, or the message when it was lost."""
    try:
        return read(book, key)
    except EngineError as error:
        show_error(error_text(error))
        return None


def unit(book: Ledger, status: DatasetStatus) -> tuple[int, str | None]:
    """How many rows of a person the looks at a dataset may have counted, and the column that all of
    them declare.
    """
    rows, columns = [1], set()
    for key in stepwise.looks(book, status.dataset):
        with suppress(EngineError):  # a lost look is told in the list of looks
            look = read(book, key).common.look
            rows.append(look.budget.rows_per_person)
            columns.add(look.schema.person)
    return max(rows), columns.pop() if len(columns) == 1 else None


def state_text(book: Ledger, key: str) -> str:
    """A look in one line for the list, by where its last step stands."""
    utc = dataset_form.spent(book, key).utc
    try:
        steps = read(book, key)
        names = " or ".join(name for name, _ in steps.common.analyses)
        while steps.finished is not None and has_next_choice(steps):
            steps = read(book, steps.finished.key)
    except EngineError:
        return f"{utc}: lost, or still at work"
    if steps.choice is None:
        return f"{utc}: {names}; {WAITS[0]}"
    if steps.choice.option == STOP:
        return f"{utc}: {names}; stopped"
    done = WAITS[1] if steps.finished is None else "finished"
    return f"{utc}: {names}; {steps.choice.option} was decided, {done}"


def waiting(path: str, dataset: str) -> list[str]:
    """Looks at a dataset that wait for a decision or for their rest, as `state_text` tells them."""
    with suppress(EngineError, OSError):  # the form of the ledger says what is wrong with it
        if (place := file_access.readable(path)).exists():
            book = Ledger(place)
            states = [state_text(book, key) for key in stepwise.looks(book, dataset)]
            return [text for text in states if text.endswith(WAITS)]
    return []


def has_next_choice(steps: Steps) -> bool:
    """Whether the option taken is the look of the next choice of a chain."""
    taken = steps.choice.option if steps.choice is not None else None
    return steps.common.following is not None and taken == steps.common.names[-1]


def choices(steps: Steps) -> None:
    """The decisions so far, in words."""
    for choice in steps.choices:
        words = "To stop" if choice.option == STOP else f"'{choice.option}'"
        who = (
            f" by {choice.by}, against the rule ({choice.reason})"
            if choice.by
            else ", as the rule says,"
        )
        st.success(
            escape_markdown(f"{words} was decided{who} at {choice.utc}, ledger row {choice.seq}."),
            icon="🗳️",
        )
    if steps.choice is not None and steps.choice.option == STOP:
        st.info(
            "The look above is the release. You may still take an option, which then spends its"
            " rest.",
            icon="✋",
        )


def look_summary(book: Ledger, key: str) -> None:
    """What the ledger holds about a look, and what happened to the rows, for the curator only."""
    receipt = dataset_form.spent(book, key)
    st.success(
        escape_markdown(
            f"Looked at {receipt.dataset} at {receipt.utc}: {texts.cost(receipt.pcost)} pcost,"
            f" ledger row {receipt.seq}. Reloading this page, or pressing the button again, shows"
            " this same look and spends nothing."
        ),
        icon="🔭",
    )
    job_widget.rows_read(look_job(book, key))


def recorded_rule(book: Ledger, key: str, settings: Settings) -> Settings:
    """The rule that was noted with the look, else the one on the page."""
    noted = book.notes(kind="rule", key=key)
    if not noted:
        st.caption("No rule was noted with this look; the one on this page is applied.")
        return settings
    text = json.loads(noted[0].note)
    primary = text["primary"] if isinstance(text["primary"], str) else ""
    st.caption(
        escape_markdown(
            f"The rule noted with the look, in ledger row {noted[0].seq}: share {text['share']:g},"
            f" ratio {text['snr']:g}, safety margin {text['sigmas']:g}."
        )
    )
    return Settings(share=text["share"], snr=text["snr"], sigmas=text["sigmas"], primary=primary)


def receipt(
    book: Ledger, steps: Steps, last: Measurement, option: str, paid: Sequence[str]
) -> None:
    """What all steps spent, to the last digit: `paid` are the keys before that of the last
    measurement.
    """
    keys = [*paid, *([last.key] if last.key not in paid else [])]
    spent = [dataset_form.spent(book, key).pcost for key in keys]
    st.success(
        escape_markdown(
            f"Finished with '{option}' for {steps.look.dataset} at {last.utc}. "
            f"{figures.receipt_text(spent, steps.common, option)}"
        ),
        icon="✅",
    )
    job_widget.rows_read(finish_job(book, paid[-1], len(steps.lost) + 1))
