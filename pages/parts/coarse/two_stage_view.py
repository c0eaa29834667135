"""Two-stage release on records: look, decision and remainder, restored from the ledger."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from engine._format import pluralize
from engine.common_mechanism import CommonPlan, stepwise
from engine.common_mechanism.selection_rule import Decision
from engine.common_mechanism.two_stage_io import Steps
from engine.ledger import Ledger
from engine.ledger.balance import DatasetStatus
from pages.parts.coarse import candidates_form, ledger_state, script, spend_form, views
from pages.parts.coarse.candidates_form import Settings
from pages.parts.coarse.views import STOP
from pages.parts.jobs import tasks
from pages.parts.release import release_form
from pages.parts.release.records_form import Source
from pages.parts.shell import buttons
from pages.parts.shell.error_text import deferred_errors, escape_markdown, show_deferred_error
from pages.parts.shell.python_script import Script

LOOK, EARLIER = "Look for real", "Earlier looks"  # tabs
STEP = "coarse_step"


def draw_waiting() -> bool:
    """Draw a note about unfinished looks at the dataset; return whether steps 1-3 are done."""
    form = st.session_state
    path, dataset = form.get("ledger_path"), str(form.get("dataset") or "")
    states = ledger_state.waiting(path, dataset) if path and dataset else []
    if states and form.get(STEP) != EARLIER:
        heading = f"**{pluralize(len(states), 'unfinished look')} at {escape_markdown(dataset)}:** "
        with st.container(border=True):
            st.markdown(heading + "; ".join(map(escape_markdown, states)))
            st.button(
                "Show the look" if len(states) == 1 else "Show the looks",
                on_click=_show_earlier_looks,
                key="coarse_waiting",
                type="primary",
            )
    return form.get(STEP) == EARLIER or (bool(states) and form.get(STEP) == LOOK)


def _show_earlier_looks() -> None:
    st.session_state[STEP] = EARLIER


def draw(common: CommonPlan, settings: Settings) -> Script | None:
    """Draw all steps with the chosen analyses; return their Python code."""
    rule = candidates_form.rule(common, settings)
    unit = common.look.budget.rows_per_person, common.look.schema.person
    payer = spend_form.payer(lambda _book, _status: unit)
    if rule is None or payer is None:
        return None
    book, status, source = payer
    keys = ledger_state.attempts(book, common, status.dataset)
    repeat = bool(keys) and st.checkbox(tasks.REPEAT_LABEL, key=f"coarse_again_{len(keys)}")
    attempt = len(keys) + 1 if repeat or not keys else len(keys)
    if not keys or repeat:
        job = ledger_state.look_job(
            book, stepwise.look_key(common, dataset=status.dataset, attempt=attempt)
        )
        spend_form.show_job(job, "Look")
        if not spend_form.running(job):
            spend_form.confirm_look(book, common, status, source, attempt, settings)
    elif spend_form.running(ledger_state.look_job(book, keys[-1])) or same_look(
        book, keys[-1], source
    ):
        steps(book, keys[-1], status, source, settings)
    return source.script + script.steps(
        dataset=status.dataset, ledger=book.path.name, attempt=attempt, columns=source.columns
    )


def same_look(book: Ledger, key: str, source: Source) -> bool:
    """Return whether a stored look and its later steps used the chosen records."""
    return ledger_state.stored(book, key) is not None and release_form.same_records(
        book, key, source, compare=tasks.same_look, advice=tasks.OTHER_LOOK
    )


def earlier(settings: Settings) -> None:
    """Draw all looks at a dataset; each can be decided and finished in any session."""
    payer = spend_form.payer(ledger_state.unit)
    if payer is None:
        return
    book, status, source = payer
    keys = stepwise.looks(book, status.dataset)
    if not keys:
        st.info(escape_markdown(f"No looks at {status.dataset} yet."), icon="🔭")
        return
    states = [ledger_state.state_text(book, key) for key in keys]
    open_ones = [i for i, text in enumerate(states) if "finished" not in text]
    number = st.selectbox(
        "Look",
        range(len(keys)),
        index=open_ones[-1] if open_ones else len(keys) - 1,
        format_func=lambda i: f"{i + 1}: {states[i]}",
        key=f"coarse_open_{len(keys)}",
    )
    steps(book, keys[number], status, source, settings)


def record(
    book: Ledger,
    key: str,
    option: str,
    verdict: Decision,
    rule: dict[str, object],
    by: str,
    reason: str,
) -> None:
    """Record the decision in the ledger; repeating the same decision has no effect."""
    with deferred_errors(f"coarse_decide_{key}"):
        choice = stepwise.resume(book, key).choice
        if choice is None or choice.option != option:
            stepwise.decide(
                book, key, option=option, verdict=verdict, rule=rule, by=by, reason=reason
            )


def steps(
    book: Ledger,
    key: str,
    status: DatasetStatus,
    source: Source,
    settings: Settings,
    before: Sequence[str] = (),
) -> None:
    """Draw one look: result, decision, remainder and answers; `before` are earlier keys."""
    job = ledger_state.look_job(book, key)
    if spend_form.running(job):
        spend_form.show_job(job, "Look")
        return
    state = ledger_state.stored(book, key)
    if state is None:
        return
    number, common = len(before), state.common
    st.subheader("Result of the look" if not before else f"Look {number + 1}")
    if not before:
        ledger_state.draw_look_receipt(book, key)
        settings = ledger_state.recorded_rule(book, key, settings)
    rule = candidates_form.rule(common, settings)
    if rule is None:
        return
    decision = views.look(rule, state.look, key=f"coarse_real_{number}")
    st.subheader("Decision")
    ledger_state.draw_choices(state)
    if state.choice is None or state.choice.option == STOP:
        _decide(book, key, state, decision, dict(rule.rule))
        return
    if state.finished is None:
        spend_form.confirm_remainder(book, key, state, state.choice.option, status, source)
        return
    paid_keys = [*before, key]
    if ledger_state.has_next_choice(state):
        steps(book, state.finished.key, status, source, settings, paid_keys)
        return
    ledger_state.draw_receipt(book, state, state.finished, state.choice.option, paid_keys)
    views.answers(state.finished, key=f"coarse_released_{number}")


def _decide(
    book: Ledger, key: str, stored_steps: Steps, decision: Decision, rule: dict[str, object]
) -> None:
    """Draw the decision form: accept the verdict, choose another option, or stop."""
    common, verdict = stored_steps.common, views.verdict_option(decision, stored_steps.common)
    has_stopped = stored_steps.choice is not None
    options = [*common.names] if has_stopped else [*common.names, STOP]
    labels = {name: f"Choose {name}" for name in common.names} | {
        STOP: "Stop; release only the first look"
    }
    labels[verdict] += " (by the rule)"
    option = st.radio(
        "Option",
        options,
        index=options.index(verdict) if verdict in options else 0,
        format_func=labels.__getitem__,
        key=f"coarse_decision_{stored_steps.look.utc}_{has_stopped}",
    )
    by, reason = "", ""
    if option != verdict:
        left, right = st.columns([1, 2])
        by = left.text_input(
            "Name (required against the rule)", key=f"coarse_by_{stored_steps.look.utc}", live=True
        )
        reason = right.text_input("Reason", key=f"coarse_reason_{stored_steps.look.utc}", live=True)
    missing = option != verdict and not (by.strip() and reason.strip())
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
        type="primary",
        disabled=missing,
        width="stretch",
    )
    if missing:
        right.caption("Enter a name and a reason, which the ledger records, to continue.")
    else:
        right.caption("Spends nothing. Only a decision to stop can be changed later.")
    show_deferred_error(f"coarse_decide_{key}")
