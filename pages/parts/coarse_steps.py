"""A choice for real: look, decide, finish, each once, found again from the ledger in any session."""

from __future__ import annotations

import json
from collections.abc import Sequence

import streamlit as st

from engine import CommonPlan, charts, coarse_figures, figures, stepwise
from engine.balance import DatasetStatus
from engine.decide import Decision
from engine.errors import EngineError
from engine.ledger import Ledger
from engine.stepwise import Steps
from pages.parts import coarse_code, coarse_form, coarse_views, dataset_form, show, tasks, watch, work
from pages.parts.coarse_form import Settings
from pages.parts.coarse_views import STOP
from pages.parts.code import Script
from pages.parts.dataset_form import Source
from pages.parts.words import kept_for, plain, show_kept, trouble

NOT_SHOWN = "These exact numbers are private: they are for you and in no release."


def payer() -> tuple[Ledger, DatasetStatus, Source] | None:
    """Draw ledger, dataset and records; None while ledger or dataset are missing."""
    left, right = st.columns(2, gap="large")
    with left:
        book = dataset_form.ledger()
        status = dataset_form.dataset(book) if book is not None else None
    if book is None:
        return None
    with right:
        source = dataset_form.source()
    if st.session_state.get("dataset_status") != status:  # for the gauge in the sidebar
        st.session_state["dataset_status"] = status
        st.rerun()
    if status is None:
        st.info("Declare the dataset whose budget pays.", icon="🗂️")
        return None
    return book, status, source


def draw(common: CommonPlan, settings: Settings) -> Script | None:
    """The whole way for real with the chosen analyses; returns its Python."""
    rule = coarse_form.rule(common, settings)
    paying = payer()
    if rule is None or paying is None:
        return None
    book, status, source = paying
    keys = _attempts(book, common, status.dataset)
    again = bool(keys) and st.checkbox("Look once more with new noise (spends again)", key=f"coarse_again_{len(keys)}")
    attempt = len(keys) + 1 if again or not keys else len(keys)
    if not keys or again:
        job = look_job(book, stepwise.look_key(common, dataset=status.dataset, attempt=attempt))
        _watch(job, "Look")
        if not _running(job):
            _confirm_look(book, common, status, source, attempt, settings)
    else:
        steps(book, keys[-1], status, source, settings)
    data = source.path or "records.csv"
    return coarse_code.steps(dataset=status.dataset, ledger=book.path.name, data=data, attempt=attempt)


def earlier(settings: Settings) -> None:
    """All looks at a dataset, so that any of them can be decided and finished later, in any session."""
    paying = payer()
    if paying is None:
        return
    book, status, source = paying
    keys = stepwise.looks(book, status.dataset)
    if not keys:
        st.info(plain(f"Nothing was looked at yet for {status.dataset}."), icon="🔭")
        return
    states = [_state(book, key) for key in keys]
    open_ones = [i for i, text in enumerate(states) if "finished" not in text]
    number = st.selectbox(
        "Look",
        range(len(keys)),
        index=open_ones[-1] if open_ones else len(keys) - 1,
        format_func=lambda i: f"{i + 1}: {states[i]}",
        key=f"coarse_open_{len(keys)}",
    )
    steps(book, keys[number], status, source, settings)


def look_job(book: Ledger, key: str) -> str:
    """Name of the worker's job for a look: the same in every session."""
    return f"look|{book.path}|{key}"


def finish_job(book: Ledger, key: str, attempt: int) -> str:
    """Name of the worker's job for the rest of a look."""
    return f"finish|{book.path}|{key}|{attempt}"


def start_look(
    book: Ledger, common: CommonPlan, dataset: str, source: Source, attempt: int, settings: Settings
) -> None:
    """Start the look in a worker; pressed twice, or in two tabs, it is still one."""
    job = look_job(book, stepwise.look_key(common, dataset=dataset, attempt=attempt))
    if work.is_there(job):
        return
    with kept_for("coarse_look"):
        path, copied = source.to_file()
        arguments = (common.to_json(), path, dataset, str(book.path), attempt, source.on_refused, copied)
        work.start(job, tasks.look, *arguments, settings.arguments(common), spends=True)
    st.session_state.pop("coarse_confirmation", None)


def start_finish(book: Ledger, key: str, source: Source, attempt: int) -> None:
    """Start the last step in a worker; pressed twice, or in two tabs, it is still one."""
    job = finish_job(book, key, attempt)
    if work.is_there(job):
        return
    with kept_for("coarse_finish"):
        path, copied = source.to_file()
        work.start(job, tasks.finish, str(book.path), key, path, attempt, source.on_refused, copied, spends=True)
    st.session_state.pop("coarse_confirm_finish", None)


def record(
    book: Ledger, key: str, option: str, verdict: Decision, rule: dict[str, object], by: str, reason: str
) -> None:
    """Keep the decision on the ledger; the same one pressed twice is one."""
    with kept_for(f"coarse_decide_{key}"):
        known = stepwise.resume(book, key).choice
        if known is None or known.option != option:
            stepwise.decide(book, key, option=option, verdict=verdict, rule=rule, by=by, reason=reason)


def steps(
    book: Ledger,
    key: str,
    status: DatasetStatus,
    source: Source,
    settings: Settings,
    before: Sequence[str] = (),
) -> None:
    """Everything about one look: what it says, the decision, the rest, the answers; `before` are the keys before it."""
    job = look_job(book, key)
    if _running(job):
        _watch(job, "Look")
        return
    found = _stored(book, key)
    if found is None:
        return
    number, common = len(before), found.common
    st.subheader("What the look says" if not before else f"A closer look, number {number + 1}")
    if not before:
        _looked(book, key, work.find(job))
        settings = _settled(book, key, settings)
    rule = coarse_form.rule(common, settings)
    if rule is None:
        return
    decision = coarse_views.look(rule, found.look, key=f"coarse_real_{number}")
    st.subheader("The decision")
    _choices(found)
    if found.choice is None or found.choice.option == STOP:
        _decide(book, key, found, decision, dict(rule.rule))
        return
    if found.finished is None:
        _rest(book, key, found, status, source)
        return
    paid = [*before, key]
    if _leads_on(found):
        steps(book, found.finished.key, status, source, settings, paid)
        return
    _receipt(book, found, paid)
    coarse_views.answers(found.finished, key=f"coarse_released_{number}")


def _confirm_look(
    book: Ledger, common: CommonPlan, status: DatasetStatus, source: Source, attempt: int, settings: Settings
) -> None:
    now = common.look.budget.pcost
    show.picture(
        figures.spending_picture(status.total, status.spent, now),
        key="coarse_spending",
        config={"displayModeBar": False},
    )
    st.markdown("**What it spends now, and in all with each option (pcost, to the last digit)**")
    show.table(
        coarse_figures.spend_table(common), name="coarse_spends", alt="Spends of the look and of the rest by option"
    )
    st.caption(
        "The rule above is noted on the ledger together with the look, so that nobody can fit it to what the look says."
    )
    if attempt > 1:
        st.warning(
            f"These analyses were looked at for this dataset already. Attempt {attempt} draws new noise and spends "
            "its full cost once more."
        )
    typed = _typed(status, "coarse_confirmation")
    reason = _reason(status, source, typed, needed=coarse_figures.least_total(common))
    left, right = st.columns([1, 2], vertical_alignment="center")
    left.button(
        f"Look: spend {charts.cost(now)} pcost",
        type="primary",
        disabled=bool(reason),
        on_click=start_look,
        args=(book, common, status.dataset, source, attempt, settings),
        key="coarse_look",
        width="stretch",
    )
    if reason:
        right.caption(plain(f"The look has to wait: {reason}"))
    show_kept("coarse_look")


def _decide(book: Ledger, key: str, found: Steps, decision: Decision, rule: dict[str, object]) -> None:
    """The form of the decision: accept the verdict, take another option, or stop."""
    common, verdict = found.common, coarse_views.said(decision, found.common)
    stopped = found.choice is not None
    options = [*common.names] if stopped else [*common.names, STOP]
    words = {name: f"Take {name}" for name in common.names} | {STOP: "Stop here; the look is all there is"}
    words[verdict] += " (the rule's verdict)"
    option = st.radio(
        "Decide",
        options,
        index=options.index(verdict) if verdict in options else 0,
        format_func=words.get,
        key=f"coarse_decision_{found.look.utc}_{stopped}",
    )
    by, reason = "", ""
    if option != verdict:
        left, right = st.columns([1, 2])
        by = left.text_input("Who decides against the rule", key=f"coarse_by_{found.look.utc}", live=True)
        reason = right.text_input("Why", key=f"coarse_reason_{found.look.utc}", live=True)
    missing = option != verdict and not (by.strip() and reason.strip())
    left, right = st.columns([1, 2], vertical_alignment="center")
    left.button(
        "Record this decision",
        type="primary",
        disabled=missing,
        on_click=record,
        args=(book, key, option, decision, rule, by, reason),
        key=f"coarse_record_{found.look.utc}_{stopped}",
        width="stretch",
    )
    if missing:
        right.caption("The decision has to wait: give a name and a reason, which the ledger keeps.")
    else:
        right.caption("It is kept on the ledger, spends nothing, and only a stop can be followed by another.")
    show_kept(f"coarse_decide_{key}")


def _choices(found: Steps) -> None:
    """The decisions so far, in words."""
    for choice in found.choices:
        words = "To stop" if choice.option == STOP else f"'{choice.option}'"
        who = f" by {choice.by}, against the rule ({choice.reason})" if choice.by else ", as the rule says,"
        st.success(plain(f"{words} was decided{who} at {choice.utc}, ledger row {choice.seq}."), icon="🗳️")
    if found.choice is not None and found.choice.option == STOP:
        st.info("The look above is the release. You may still take an option, which then spends its rest.", icon="✋")


def _rest(book: Ledger, key: str, found: Steps, status: DatasetStatus, source: Source) -> None:
    """Confirm and run the last step."""
    attempt, option = len(found.lost) + 1, found.choice.option
    for number in range(1, attempt + 1):
        if _running(finish_job(book, key, number)):
            _watch(finish_job(book, key, number), "The rest")
            return
    left_over = found.common.residuals[found.common.position(option)]
    if found.lost:
        trouble(
            f"The rest was spent for but its result was never saved (attempts {', '.join(map(str, found.lost))}). It "
            "may still be at work in another program; if not, it is lost, and drawing it again spends once more."
        )
        if not st.checkbox("Draw the rest again with new noise (spends again)", key=f"coarse_redraw_{attempt}"):
            return
    _watch(finish_job(book, key, attempt), "The rest")
    st.subheader("The rest")
    show.picture(
        figures.spending_picture(status.total, status.spent, left_over.spend),
        key="coarse_rest",
        config={"displayModeBar": False},
    )
    typed = _typed(status, "coarse_confirm_finish")
    reason = _reason(status, source, typed, needed=left_over.spend)
    left, right = st.columns([1, 2], vertical_alignment="center")
    left.button(
        f"Measure the rest: spend {charts.cost(left_over.spend)} pcost",
        type="primary",
        disabled=bool(reason),
        on_click=start_finish,
        args=(book, key, source, attempt),
        key="coarse_finish",
        width="stretch",
    )
    if reason:
        right.caption(plain(f"The rest has to wait: {reason}"))
    show_kept("coarse_finish")


def _typed(status: DatasetStatus, key: str) -> str:
    return st.text_input(
        f"Type the name of the dataset, {plain(status.dataset)}, to confirm. This cannot be undone.",
        key=key,
        live=True,
        autocomplete="off",
    )


def _reason(status: DatasetStatus, source: Source, typed: str, *, needed: float) -> str:
    """Why a step cannot start yet; empty when it can."""
    if needed > status.left:
        return (
            f"the dataset has {charts.cost(status.left)} pcost left and at least {charts.cost(needed)} is needed to "
            "finish. Plan with a smaller budget on the Preview page."
        )
    if not source.given:
        return "choose the records first."
    return "" if typed.strip() == status.dataset else "type the dataset's name exactly."


def _running(job: str) -> bool:
    found = work.find(job)
    return found is not None and found.running


def _watch(job: str, label: str) -> None:
    """Draw a job; when it ended after the ledger was read for this page, the page is drawn once more."""
    if watch.job(job, label=label) is not None and st.session_state.get("coarse_ended") != job:
        st.session_state["coarse_ended"] = job
        st.rerun()


def _attempts(book: Ledger, common: CommonPlan, dataset: str) -> list[str]:
    keys: list[str] = []
    while book.find(key := stepwise.look_key(common, dataset=dataset, attempt=len(keys) + 1)) is not None:
        keys.append(key)
    return keys


def _steps(book: Ledger, key: str) -> Steps:
    """The steps of a look, read again only when the ledger has grown."""
    known, rows = st.session_state.setdefault("coarse_steps", {}), len(book.rows())
    place = (str(book.path), key)
    if place not in known or known[place][0] != rows:
        known[place] = (rows, stepwise.resume(book, key))
    return known[place][1]


def _stored(book: Ledger, key: str) -> Steps | None:
    """The steps of a look, or the message when it was lost."""
    try:
        return _steps(book, key)
    except EngineError as error:
        trouble(str(error))
        return None


def _state(book: Ledger, key: str) -> str:
    """A look in one line for the list, by where its last step stands."""
    receipt = book.find(key)
    try:
        found = _steps(book, key)
        names = " or ".join(name for name, _ in found.common.analyses)
        while found.finished is not None and _leads_on(found):
            found = _steps(book, found.finished.key)
    except EngineError:
        return f"{receipt.utc}: lost, or still at work"
    if found.choice is None:
        return f"{receipt.utc}: {names}; waits for a decision"
    if found.choice.option == STOP:
        return f"{receipt.utc}: {names}; stopped"
    done = "waits for the rest" if found.finished is None else "finished"
    return f"{receipt.utc}: {names}; {found.choice.option} was decided, {done}"


def _leads_on(found: Steps) -> bool:
    return found.common.following is not None and found.choice.option == found.common.names[-1]


def _looked(book: Ledger, key: str, job: work.Job | None) -> None:
    receipt = book.find(key)
    st.success(
        plain(
            f"Looked at {receipt.dataset} at {receipt.utc}: {charts.cost(receipt.pcost)} pcost, ledger row "
            f"{receipt.seq}. Reloading this page, or pressing the button again, shows this same look and spends "
            "nothing."
        ),
        icon="🔭",
    )
    _rows_read(job)


def _rows_read(job: work.Job | None) -> None:
    rows = job.result["rows"] if job is not None and job.state == "done" else None
    if rows is not None:
        st.caption(
            f"Rows read {rows['read']:,} = counted {rows['counted']:,} + left out {rows['refused']:,}. {NOT_SHOWN}"
        )


def _settled(book: Ledger, key: str, settings: Settings) -> Settings:
    """The rule that was noted with the look, else the one on the page."""
    noted = book.notes(kind="rule", key=key)
    if not noted:
        st.caption("No rule was noted with this look; the one on this page is applied.")
        return settings
    text = json.loads(noted[0].note)
    primary = text["primary"] if isinstance(text["primary"], str) else ""
    st.caption(
        plain(
            f"The rule noted with the look, in ledger row {noted[0].seq}: share {text['share']:g}, ratio "
            f"{text['snr']:g}, safety margin {text['sigmas']:g}."
        )
    )
    return Settings(share=text["share"], snr=text["snr"], sigmas=text["sigmas"], primary=primary)


def _receipt(book: Ledger, found: Steps, paid: Sequence[str]) -> None:
    """What all steps spent, to the last digit."""
    last = found.finished.key
    keys = [*paid, *([last] if last not in paid else [])]
    spent = [book.find(key).pcost for key in keys]
    option = found.choice.option
    st.success(
        plain(
            f"Finished with '{option}' for {found.look.dataset} at {found.finished.utc}. "
            f"{coarse_figures.receipt_text(spent, found.common, option)}"
        ),
        icon="✅",
    )
    _rows_read(work.find(finish_job(book, paid[-1], len(found.lost) + 1)))
