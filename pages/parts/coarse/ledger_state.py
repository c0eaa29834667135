"""State of two-stage releases in the ledger, cached and as text."""

from __future__ import annotations

import json
from collections.abc import Sequence

import streamlit as st

from engine import _format as texts
from engine import figures
from engine.common_mechanism import CommonPlan, stepwise
from engine.common_mechanism.two_stage_io import Steps
from engine.errors import EngineError
from engine.ledger import Ledger
from pages.parts.coarse import candidates_form
from pages.parts.coarse.candidates_form import Settings
from pages.parts.coarse.views import STOP
from pages.parts.jobs import job_widget
from pages.parts.release import dataset_form
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
    return dataset_form.charged_keys(
        book, lambda attempt: stepwise.look_key(common, dataset=dataset, attempt=attempt)
    )


def read(book: Ledger, key: str) -> Steps:
    """Return the state of a two-stage release: its look, decisions and remainder.

    The state is cached in the session until the ledger grows. If the result of a step is missing,
    the state is read in every run, because another process may still be running this step.
    """
    cached_steps: dict[tuple[str, str], tuple[int, Steps]] = st.session_state.setdefault(
        "coarse_steps", {}
    )
    rows = len(book.rows())
    release = (str(book.path), key)
    cached_rows, steps = cached_steps.get(release, (0, None))
    if steps is None or cached_rows != rows or steps.lost:
        steps = stepwise.resume(book, key)
        cached_steps[release] = (rows, steps)
    return steps


def stored_steps(book: Ledger, key: str) -> Steps | None:
    """Return the result of `read`; None, with an error on the page, if the look is not stored."""
    try:
        return read(book, key)
    except EngineError as error:
        show_error(error_text(error))
        return None


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


def waiting(book: Ledger, dataset: str) -> dict[str, str]:
    """Return the looks that need a decision or the remainder: key of the look -> state as text."""
    states = {key: state_text(book, key) for key in stepwise.looks(book, dataset)}
    return {key: text for key, text in states.items() if text.endswith(WAITING)}


def has_next_choice(steps: Steps) -> bool:
    """Return whether the chosen option is followed by another choice of a chain.

    The measurement of this option is then the look of the next choice.
    """
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


def recorded_rule(book: Ledger, key: str, *, quiet: bool = False) -> Settings | None:
    """Return the rule recorded with the look, and draw it unless ``quiet``; None without one."""
    notes = book.notes(kind="rule", key=key)
    if not notes:
        if not quiet:
            st.caption("No rule was recorded with this look; the default rule is shown.")
        return None
    text = json.loads(notes[0].note)
    primary = text["primary"] if isinstance(text["primary"], str) else ""
    if not quiet:
        st.caption(
            escape_markdown(
                f"Rule recorded with the look (ledger row {notes[0].seq}): share"
                f" {text['share']:g}, ratio {text['snr']:g}, safety margin {text['sigmas']:g}."
            )
        )
    return Settings(share=text["share"], snr=text["snr"], sigmas=text["sigmas"], primary=primary)


def costs(book: Ledger, stages: Sequence[tuple[str, Steps]]) -> list[float]:
    """Return the pcost charged in each step of a release; ``stages`` are as for `draw_summary`."""
    last = stages[-1][1].finished
    keys = dict.fromkeys([key for key, _ in stages] + ([last.key] if last is not None else []))
    return [dataset_form.spent(book, key).pcost for key in keys]


def draw_summary(book: Ledger, stages: Sequence[tuple[str, Steps]]) -> None:
    """Draw one paragraph on a finished release: what was decided, by which rule, at what cost.

    ``stages`` are the looks with their keys; the last one is finished.
    """
    key, last = stages[-1]
    if last.finished is None:
        return
    spent = costs(book, stages)
    choices = [state.choice for _, state in stages if state.choice is not None]
    settings = recorded_rule(book, stages[0][0], quiet=True)
    rule = None if settings is None else candidates_form.rule(stages[0][1].common, settings)
    text = figures.summary_text(
        last.look.dataset, choices, rule, spent, last.common, candidates_form.short_budget
    )
    job_widget.receipt(finish_job(book, key, len(last.lost) + 1), text, icon="✅")
