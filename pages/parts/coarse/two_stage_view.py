"""Two-stage release of private records: two measurements and the decision between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import streamlit as st

from engine import figures
from engine._format import pluralize
from engine.common_mechanism import CommonPlan, stepwise
from engine.common_mechanism.selection_rule import Decision
from engine.common_mechanism.stepwise import Steps
from engine.ledger import Ledger
from pages.parts.coarse import candidates_form, ledger_state, script, spend_form, views
from pages.parts.coarse.candidates_form import Settings
from pages.parts.coarse.views import STOP
from pages.parts.jobs import tasks
from pages.parts.release import dataset_form, records_form, release_form, wizard
from pages.parts.release.records_form import Source
from pages.parts.shell import buttons
from pages.parts.shell.error_text import (
    deferred_errors,
    escape_markdown,
    show_deferred_error,
    show_errors,
)
from pages.parts.shell.python_script import Script

STEP = "coarse_step"
NAME = "coarse"  # name of this wizard in `wizard`
FIELDS = ("coarse_",)  # start of the session keys of analyses, rule, rehearsal and open tabs


def open_look(key: str) -> None:
    """Open the result page of a two-stage release; for use as a callback."""
    wizard.open_result(NAME, key)


def records(common: CommonPlan) -> Source:
    """Return the records that were chosen in the step "File"."""
    return records_form.source_of_form(
        common.look.budget.rows_per_person, common.look.schema.person
    )


def draw_waiting(list_step: str) -> None:
    """Draw a note on unfinished two-stage releases of the dataset, and a button that opens them.

    ``list_step`` is the title of the step that lists these releases; nothing is drawn in this step.
    """
    book = dataset_form.ledger_of_form()
    dataset = str(st.session_state.get("dataset") or "")
    if book is None or not dataset or st.session_state.get(STEP) == list_step:
        return
    states: Mapping[str, str] = {}
    with show_errors():
        states = ledger_state.waiting(book, dataset)
    if not states:
        return
    heading = f"**{pluralize(len(states), 'unfinished release')} of {escape_markdown(dataset)}:** "
    with st.container(border=True, horizontal=True, vertical_alignment="center"):
        st.markdown(heading + "; ".join(map(escape_markdown, states.values())), width="content")
        if len(states) == 1:
            buttons.button(
                "Show the measurement", open_look, next(iter(states)), key="coarse_waiting"
            )
        else:
            buttons.button(
                "Show the measurements", wizard.open_step, STEP, list_step, key="coarse_waiting"
            )


def take_look(
    common: CommonPlan, settings: Settings, payer_step: str, file_step: str
) -> Script | None:
    """Draw the confirmation or progress of the first measurement (look); return the release script.

    The result is None if the rule is invalid or no dataset is chosen.

    ``payer_step`` and ``file_step`` are the titles of the steps in which the dataset and the
    records are chosen.
    """
    rule = candidates_form.rule(common, settings)
    book = dataset_form.ledger_of_form()
    status = dataset_form.dataset_of_form(book, common.look.schema)
    dataset_form.remember(status)
    if rule is None:
        return None
    if book is None or status is None:
        wizard.missing("choose the dataset to charge.", payer_step, key=STEP)
        return None
    source = records(common)
    keys = ledger_state.attempts(book, common, status.dataset)
    repeat = bool(keys) and st.checkbox(tasks.REPEAT_LABEL, key=f"coarse_again_{len(keys)}")
    is_new = repeat or not keys
    attempt = len(keys) + 1 if is_new else len(keys)
    if is_new:
        job = ledger_state.look_job(
            book, stepwise.look_key(common, dataset=status.dataset, attempt=attempt)
        )
        spend_form.show_job(job, "First measurement")
        if not spend_form.running(job):
            records_form.draw_missing_upload(file_step, key=STEP)
            dataset_form.registered_note(book, status)
            spend_form.confirm_look(book, common, status, source, attempt, settings)
    else:
        _offer_look(book, keys[-1], source)
    return source.script + script.steps(
        dataset=status.dataset, ledger=book.path.name, attempt=attempt, columns=source.columns
    )


def _offer_look(book: Ledger, key: str, source: Source) -> None:
    """Show that the first measurement was started: its progress, or access to its result.

    If this session started the measurement, its result opens at once. Otherwise a button opens the
    result, unless other records were measured than the chosen ones. In this case, an error message
    is shown.
    """
    job = ledger_state.look_job(book, key)
    if spend_form.running(job):
        spend_form.show_job(job, "First measurement")
        return
    if ledger_state.stored_steps(book, key) is None:
        return
    if wizard.was_started(NAME, key):
        open_look(key)
        st.rerun()
    if release_form.same_records(
        book, key, source, compare=tasks.same_look, advice=tasks.OTHER_LOOK
    ):
        st.info(
            escape_markdown(f"This measurement was taken on {ledger_state.state_text(book, key)}."),
            icon="🔭",
        )
        buttons.button("Show the measurement", open_look, key, key="coarse_show", type="primary")


def past_looks() -> None:
    """Draw the list of two-stage releases of a dataset, and a button that opens the selected one.

    The list includes the releases that other sessions started.
    """
    book_and_dataset = dataset_form.browse()
    if book_and_dataset is None:
        return
    book, status = book_and_dataset
    dataset_form.remember(status)
    keys = stepwise.looks(book, status.dataset)
    if not keys:
        st.info(escape_markdown(f"No first measurements of {status.dataset} yet."), icon="🔭")
        return
    states = [ledger_state.state_text(book, key) for key in keys]
    unfinished = [i for i, text in enumerate(states) if "finished" not in text]
    number = st.selectbox(
        "First measurement",
        range(len(keys)),
        index=unfinished[-1] if unfinished else len(keys) - 1,
        format_func=lambda i: f"{i + 1}: {states[i]}",
        key=f"coarse_list_{len(keys)}",
    )
    buttons.button(
        "Show the measurement", open_look, keys[number], key="coarse_show", type="primary"
    )


def draw_look(key: str, leave: Mapping[str, str]) -> None:
    """Draw the page of a two-stage release: both measurements, the decision and the answers.

    ``leave`` maps labels of buttons to the titles of the steps of the wizard that they open.
    """
    book = dataset_form.ledger_of_form()
    if book is None:
        wizard.result_header("First measurement", leave, name=NAME, step_key=STEP, anew=FIELDS)
        st.info(
            "To continue, open the ledger of this measurement under Past measurements.", icon="🗂️"
        )
        return
    with show_errors():
        dataset = dataset_form.spent(book, key).dataset
        dataset_form.remember(book.status(dataset))
        wizard.result_header(
            f"Coarse or fine for {dataset}", leave, name=NAME, step_key=STEP, anew=FIELDS
        )
        if spend_form.running(ledger_state.look_job(book, key)):
            spend_form.show_job(ledger_state.look_job(book, key), "First measurement")
            return
        _draw_stages(book, _stages(book, key))


def _stages(book: Ledger, key: str) -> list[tuple[str, Steps]]:
    """Return one pair (ledger key, state) for the look with this key, and for each later look.

    A look is a measurement that is followed by a decision. In a chain of choices, a decision can
    lead to a later look. The list ends before a look without a stored result; an error is then
    drawn.
    """
    stages: list[tuple[str, Steps]] = []
    while (state := ledger_state.stored_steps(book, key)) is not None:
        stages.append((key, state))
        if state.finished is None or not ledger_state.has_next_choice(state):
            break
        key = state.finished.key
    return stages


def _draw_stages(book: Ledger, stages: Sequence[tuple[str, Steps]]) -> None:
    """Draw a two-stage release: its summary and answers, or the step that the user must take next.

    ``stages`` contains one pair (ledger key, state) per look (first measurement of a choice), as
    from `_stages`. The ledger records the rule with the first look.
    """
    if not stages:
        return
    first_key, (key, state) = stages[0][0], stages[-1]
    if state.finished is not None:
        ledger_state.draw_summary(book, stages)
        name = f"coarse_released_{len(stages) - 1}"
        views.answers(state.finished, key=name, ledger=str(book.path))
        with st.expander(
            "First measurement, rule and decision", key="coarse_past", on_change="rerun"
        ) as fold:
            if fold.open:
                ledger_state.draw_look_receipt(book, first_key)
                ledger_state.recorded_rule(book, first_key, stages[0][1].common)
                for number, (_, decided) in enumerate(stages):
                    _draw_decided_look(book, first_key, decided, number)
                option = state.choice.option if state.choice is not None else ""
                exact_costs = ledger_state.costs(book, ledger_state.paid_keys(stages))
                text = figures.receipt_text(exact_costs, state.common, option)
                st.caption(escape_markdown(text))
        return
    if state.choice is not None and state.choice.option == STOP:
        _draw_stop(book, stages)
        return
    ledger_state.draw_look_receipt(book, first_key)
    settings = ledger_state.recorded_rule(book, first_key, stages[0][1].common) or Settings()
    _draw_decided_looks(book, first_key, stages if state.choice is not None else stages[:-1])
    # An analysis was chosen after the last measurement, so the user starts the second measurement
    # of this analysis next.
    if state.choice is not None:
        ledger_state.draw_choices(state)
        _finish(book, key, state, ledger_state.paid_keys(stages))
        return
    # The decision after the last look (measurement of the common part) is still open.
    rule = candidates_form.rule(state.common, settings)
    if rule is not None:
        number = len(stages) - 1
        st.subheader(_title(number), anchor=False)
        decision = views.look(rule, state.look, key=f"coarse_real_{number}")
        _decide(book, key, state, decision, dict(rule.rule))


def _draw_stop(book: Ledger, stages: Sequence[tuple[str, Steps]]) -> None:
    """Draw a release that ended with the decision to stop: a summary and the last answers.

    An expander contains the form that chooses an analysis after all. ``stages`` contains one pair
    (ledger key, state) per look (first measurement of a choice), as from `_stages`.
    """
    first_key, (key, state) = stages[0][0], stages[-1]
    ledger_state.draw_summary(book, stages)
    name = f"coarse_stopped_{len(stages) - 1}"
    views.answers(state.look, key=name, ledger=str(book.path), is_look=True)
    _draw_decided_looks(book, first_key, stages)
    with st.expander(
        "Choose an analysis after all", key="coarse_change", on_change="rerun"
    ) as fold:
        if not fold.open:
            return
        settings = ledger_state.recorded_rule(book, first_key) or Settings()
        rule = candidates_form.rule(state.common, settings)
        if rule is not None:
            _decide(book, key, state, rule.decide(state.look), dict(rule.rule))


def _draw_decided_looks(book: Ledger, first_key: str, stages: Sequence[tuple[str, Steps]]) -> None:
    """Draw one closed expander per first measurement, with the result and the decision after it."""
    for number, (_, decided) in enumerate(stages):
        title = _title(number)
        with st.expander(title, key=f"coarse_seen_{number}", on_change="rerun") as fold:
            if fold.open:
                _draw_decided_look(book, first_key, decided, number)


def _title(number: int) -> str:
    return "Result of the first measurement" if number == 0 else f"Measurement {number + 1}"


def _draw_decided_look(book: Ledger, first_key: str, state: Steps, number: int) -> None:
    """Draw first measurement ``number`` of a chain and the decision after it.

    The rule is the one that the ledger records with the earliest of these measurements, which has
    the key ``first_key``.
    """
    settings = ledger_state.recorded_rule(book, first_key) or Settings()
    rule = candidates_form.rule(state.common, settings)
    if rule is not None:
        views.look(rule, state.look, key=f"coarse_real_{number}")
    ledger_state.draw_choices(state)


def _finish(book: Ledger, key: str, state: Steps, paid_steps: Sequence[str]) -> None:
    """Draw the choice of records and the confirmation of the second measurement, or its progress.

    ``paid_steps`` are the ledger keys of the spends so far.
    """
    attempt = len(state.lost) + 1
    for number in range(1, attempt + 1):
        job = ledger_state.finish_job(book, key, number)
        if spend_form.running(job):
            spend_form.show_job(job, "Next measurement")
            return
    st.subheader("Next measurement", anchor=False)
    look = state.common.look
    previous_source = records(state.common)
    title = previous_source.title
    with st.expander(
        f"Records: {escape_markdown(title)}" if title else "Records of the first measurement",
        expanded=bool(previous_source.missing),
    ):
        source = records_form.source(look.budget.rows_per_person, look.schema.person)
    status = book.status(state.look.dataset)
    option = state.choice.option if state.choice is not None else ""
    spend_form.confirm_remainder(book, key, state, option, status, source, paid_steps)


def record(
    book: Ledger,
    key: str,
    option: str,
    verdict: Decision,
    rule: dict[str, object],
    by: str,
    reason: str,
) -> None:
    """Record the decision in the ledger; the same decision is recorded only once.

    ``by`` and ``reason`` are the name and the reason of a person who decides against the rule.
    """
    with deferred_errors(f"coarse_decide_{key}"):
        choice = stepwise.resume(book, key).choice
        if choice is None or choice.option != option:
            stepwise.decide(
                book, key, option=option, verdict=verdict, rule=rule, by=by, reason=reason
            )


def _decide(
    book: Ledger, key: str, stored_steps: Steps, decision: Decision, rule: dict[str, object]
) -> None:
    """Draw the form to accept the decision of the rule, choose another analysis, or stop."""
    common, verdict = stored_steps.common, views.verdict_option(decision, stored_steps.common)
    has_stopped = stored_steps.choice is not None
    options = [*common.names] if has_stopped else [*common.names, STOP]
    proposed = options.index(verdict) if verdict in options else 0
    labels = {name: f"Choose {figures.in_screen_words(name)}" for name in common.names} | {
        STOP: "Stop; release only the first measurement"
    }
    labels[verdict] += " (by the rule)"
    option = st.radio(
        "Decision",
        options,
        # After the decision to stop no option is preselected, so that the user changes the decision
        # deliberately.
        index=None if has_stopped else proposed,
        format_func=labels.__getitem__,
        key=f"coarse_decision_{stored_steps.look.utc}_{has_stopped}",
    )
    by, reason = "", ""
    if option is not None and option != verdict:
        left, right = st.columns([1, 2])
        by = left.text_input(
            "Name (required against the rule)", key=f"coarse_by_{stored_steps.look.utc}", live=True
        )
        reason = right.text_input("Reason", key=f"coarse_reason_{stored_steps.look.utc}", live=True)
    missing = option is None or (option != verdict and not (by.strip() and reason.strip()))
    left, right = st.columns([1, 2], vertical_alignment="center")
    buttons.button(
        "Record this decision",
        record,
        book,
        key,
        option,
        decision,
        rule,
        by,
        reason,
        key=f"coarse_record_{stored_steps.look.utc}_{has_stopped}",
        place=left,
        type="secondary" if has_stopped else "primary",
        disabled=missing,
        width="stretch",
    )
    if option is None:
        right.caption("To continue, choose an analysis.")
    elif missing:
        right.caption("Enter a name and a reason, which the ledger records, to continue.")
    else:
        right.caption("Spends nothing. Only a decision to stop can be changed later.")
    show_deferred_error(f"coarse_decide_{key}")
