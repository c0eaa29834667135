"""State of two-stage releases: read from the ledger, cached, and described as text."""

from __future__ import annotations

import json
from collections.abc import Sequence

import streamlit as st

from engine import figures
from engine.common_mechanism import CommonPlan, stepwise
from engine.common_mechanism.stepwise import Steps
from engine.errors import EngineError
from engine.ledger import Ledger
from pages.parts.coarse import candidates_form
from pages.parts.coarse.candidates_form import Settings
from pages.parts.coarse.views import STOP
from pages.parts.jobs import job_widget
from pages.parts.release import dataset_form
from pages.parts.shell.error_text import error_text, escape_markdown, show_error

# `state_text` ends with one of these texts if the user must still choose an analysis, or must still
# start the second measurement for the chosen analysis.
WAITING = ("waits for a decision", "waits for the next measurement")


def look_job(book: Ledger, key: str) -> str:
    """Return the key of the job of a look (first measurement), the same in every session."""
    return f"look|{book.path}|{key}"


def finish_job(book: Ledger, key: str, attempt: int) -> str:
    """Return the key of the job of a second measurement, the same in every session."""
    return f"finish|{book.path}|{key}|{attempt}"


def attempts(book: Ledger, common: CommonPlan, dataset: str) -> list[str]:
    """Return the ledger keys of the first measurements for these analyses, oldest first.

    Only those that are charged to the dataset are returned.
    """
    return dataset_form.charged_keys(
        book, lambda attempt: stepwise.look_key(common, dataset=dataset, attempt=attempt)
    )


def read(book: Ledger, key: str) -> Steps:
    """Return the state of a two-stage release: both measurements, and the decisions between them.

    The state is cached in the session until the ledger has new rows. If a paid step has no stored
    result, the state is read again in every run, because another process may be running this step.
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
    """Return the result of `read`.

    The result is None if the first measurement is not stored; the page then shows the error.
    """
    try:
        return read(book, key)
    except EngineError as error:
        show_error(error_text(error))
        return None


def state_text(book: Ledger, key: str) -> str:
    """Return one line on a two-stage release: its time, its analyses and its state."""
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
    return f"{time}: {names}; {figures.in_screen_words(steps.choice.option)} chosen, {state}"


def waiting(book: Ledger, dataset: str) -> dict[str, str]:
    """Return the two-stage releases that wait for the user, as a mapping from key to state text.

    The user must choose an analysis, or measure the rest of the chosen one.
    """
    states = {key: state_text(book, key) for key in stepwise.looks(book, dataset)}
    return {key: text for key, text in states.items() if text.endswith(WAITING)}


def has_next_choice(steps: Steps) -> bool:
    """Return whether the decision leads to another choice in a chain of choices.

    This is so if the finer option was chosen and an even finer one exists. In this case the
    measurement of the chosen option is the look (first stage) of the next choice.
    """
    option = steps.choice.option if steps.choice is not None else None
    return steps.common.following is not None and option == steps.common.names[-1]


def draw_choices(steps: Steps) -> None:
    """Draw one line per recorded decision, and a note if the last one is to stop."""
    for choice in steps.choices:
        chosen = figures.in_screen_words(choice.option)
        option = "Stop" if choice.option == STOP else f"'{chosen}'"
        st.success(
            escape_markdown(
                f"{option} was chosen by {choice.author} on {dataset_form.time_text(choice.utc)}, ledger row"
                f" {choice.seq}."
            ),
            icon="🗳️",
        )
    if steps.choice is not None and steps.choice.option == STOP:
        st.info(
            "Only the first measurement is released. You can still choose an option and complete it.",
            icon="✋",
        )


def draw_look_receipt(book: Ledger, key: str) -> None:
    """Draw the receipt of a look (first measurement).

    The session that started the first measurement also sees the report on the rows.
    """
    spend = dataset_form.spent(book, key)
    job_widget.receipt(
        look_job(book, key),
        f"{spend.dataset} was measured on {dataset_form.time_text(spend.utc)}, for"
        f" {dataset_form.charge(book, spend)}, ledger row {spend.seq}. Viewing it again spends"
        " nothing.",
        icon="🔭",
    )
    dataset_form.draw_files(book)


def recorded_rule(book: Ledger, key: str, common: CommonPlan | None = None) -> Settings | None:
    """Return the settings of the rule of a first measurement from the ledger; None without a rule.

    If ``common``, the analyses of the first measurement, is given, the rule is drawn as well, or a
    note that there is none.
    """
    notes = book.notes(kind="rule", key=key)
    if not notes:
        if common is not None:
            st.caption("No rule was recorded with this measurement; the default rule is shown.")
        return None
    fields = json.loads(notes[0].note)
    primary = fields["primary"] if isinstance(fields["primary"], str) else ""
    settings = Settings(
        share=fields["share"], snr=fields["snr"], sigmas=fields["sigmas"], primary=primary
    )
    rule = candidates_form.rule(common, settings) if common is not None else None
    if rule is not None:
        st.caption(
            escape_markdown(
                f"Rule recorded with the first measurement (ledger row {notes[0].seq}):"
                f" {figures.rule_summary(rule)}"
            )
        )
    return settings


def paid_keys(stages: Sequence[tuple[str, Steps]]) -> list[str]:
    """Return the ledger keys of all spends of a release, also of attempts without a stored result.

    ``stages`` contains pairs of the key and the state of each look (first measurement of a choice),
    in order.
    """
    return list(dict.fromkeys(key for _, steps in stages for key in stepwise.paid_keys(steps)))


def _lost_looks(book: Ledger, key: str, common: CommonPlan, dataset: str) -> list[str]:
    """Return the keys of paid first measurements before ``key`` that have no stored result."""
    earlier_keys = attempts(book, common, dataset)
    lost_keys = []
    for earlier_key in earlier_keys[: earlier_keys.index(key) if key in earlier_keys else 0]:
        try:
            read(book, earlier_key)
        except EngineError:
            lost_keys.append(earlier_key)
    return lost_keys


def costs(book: Ledger, keys: Sequence[str]) -> list[float]:
    """Return the pcost that the ledger charged for each key."""
    return [dataset_form.spent(book, key).pcost for key in keys]


def draw_summary(book: Ledger, stages: Sequence[tuple[str, Steps]]) -> None:
    """Draw a paragraph for a manager: what was decided, by which rule, at what cost.

    A button downloads the paragraph. ``stages`` are pairs of the key and the state of each look
    (first measurement of a choice), in order; the last look is finished, or the decision after it
    is to stop.
    """
    first_key, first = stages[0]
    key, last = stages[-1]
    choices = [state.choice for _, state in stages if state.choice is not None]
    settings = recorded_rule(book, first_key)
    rules = [
        None if settings is None else candidates_form.rule(state.common, settings)
        for _, state in stages
    ]
    lost_looks = _lost_looks(book, first_key, first.common, last.look.dataset)
    text = figures.summary_text(
        last.look.dataset,
        choices,
        rules,
        costs(book, [*lost_looks, *paid_keys(stages)]),
        last.common,
        candidates_form.short_budget,
        lost=len(lost_looks) + sum(len(state.lost) for _, state in stages),
        verdicts=[
            rule.decide(state.look)
            for rule, (_, state) in zip(rules, stages, strict=True)
            if rule is not None
        ],
    )
    is_stop = last.finished is None
    job = look_job(book, key) if is_stop else finish_job(book, key, len(last.lost) + 1)
    job_widget.receipt(job, text, icon="✋" if is_stop else "✅")
    st.download_button(
        "Download this paragraph",
        text.encode,
        "decision.txt",
        "text/plain",
        key="coarse_paragraph",
        on_click="ignore",
    )
