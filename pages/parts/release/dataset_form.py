"""Forms for the ledger file and the dataset that a release is charged to."""

from __future__ import annotations

from contextlib import suppress

import streamlit as st

from engine import analysis
from engine._format import cost, pluralize, remaining_text
from engine.errors import EngineError, LedgerError
from engine.ledger import Ledger, Receipt
from engine.ledger.balance import DatasetStatus
from engine.ledger.ledger import confusable_text, total_history
from engine.privacy import Budget
from pages.parts.release import file_access
from pages.parts.shell import buttons, history, session_restore
from pages.parts.shell.budgets import (
    AGAINST,
    AGAINST_LABEL,
    APPROX,
    MAKERS,
    PCOST,
    PURE,
    RISK,
    ROWS_LABEL,
    UNITS,
    in_words,
    kind_of_total,
    numbers_of,
)
from pages.parts.shell.error_text import (
    deferred_errors,
    error_text,
    escape_markdown,
    show_deferred_error,
    show_error,
    show_errors,
)

DEFAULT_LEDGER = "budget.ledger"


def create_ledger(path: str) -> None:
    """Create a ledger file."""
    with deferred_errors("ledger"):
        Ledger.create(file_access.is_inside(path))


def register(ledger: Ledger) -> None:
    """Register the dataset of the form."""
    form = st.session_state
    with deferred_errors("dataset"):
        unit = form.dataset_unit
        total = _form_total(unit)
        note, kind = form.dataset_note.strip(), kind_of_total(unit)
        ledger.add_dataset(form.dataset_name.strip(), total=total, note=note, kind=kind)
        form.dataset = form.dataset_name.strip()
        form.dataset_name = form.dataset_note = ""
        form.pop("dataset_start", None)  # the default of the next total is the cost of the plan


def change(book: Ledger, status: DatasetStatus, key: str) -> None:
    """Change the total of a dataset to the number of the form."""
    form, definition = st.session_state, status.definition
    with deferred_errors("total"):
        maker = MAKERS[PURE if definition.counts == "epsilon" else PCOST]
        total = maker(
            form[key],
            rows_per_person=definition.rows_per_person,
            neighbours=definition.neighbours,
        )
        book.change_total(
            status.dataset, total=total, by=form.total_by.strip(), reason=form.total_reason.strip()
        )
        form.total_by = form.total_reason = ""


def ledger() -> Ledger | None:
    """Draw the choice of the ledger and open it."""
    st.session_state.setdefault("ledger_path", DEFAULT_LEDGER)
    path = st.text_input(
        "Ledger file",
        key="ledger_path",
        persist_state="session",
        help=(
            "Records all releases of all datasets. Keep it next to the data and back it up with"
            " its results folder; never go back to an old copy."
        ),
    )
    if not path.strip():
        st.info("Enter the path of the ledger file.")
        return None
    try:
        place = file_access.readable(path)
    except EngineError as error:
        show_error(error_text(error))
        _recent_ledgers("")
        return None
    if str(place) != path.strip():
        st.caption(escape_markdown(str(place)))
    if not place.exists():
        st.warning(
            "There is no ledger here. Create one only for the first release of these records: a"
            " new ledger does not contain earlier spending."
        )
        buttons.button("Create ledger", create_ledger, str(place), key="create_ledger")
        show_deferred_error("ledger")
        _recent_ledgers("")
        return None
    with show_errors():
        book = Ledger(place)
        session_restore.remember_ledger(str(place))
        _recent_ledgers(str(place))
        return book
    return None


def _recent_ledgers(open_path: str) -> None:
    """Draw the list of ledgers that this browser opened earlier."""
    paths = [path for path in session_restore.ledgers() if path != open_path]
    if not paths:
        return
    with st.expander("Recent ledgers", expanded=not open_path):
        for number, path in enumerate(paths):
            buttons.button(escape_markdown(path), _open, path, key=f"open_ledger_{number}")


def _open(path: str) -> None:
    st.session_state["ledger_path"] = path


def spent(book: Ledger, key: str) -> Receipt:
    """Receipt of a spend; raises LedgerError if the ledger has none."""
    receipt = book.find(key)
    if receipt is None:
        raise LedgerError("This release is not in the open ledger. Open the ledger it is in.")
    return receipt


def time_text(utc: str) -> str:
    """Return a time of the ledger as text.

    >>> time_text("2026-03-01T09:30:12Z")
    '2026-03-01 at 09:30 UTC'
    """
    return f"{utc[:10]} at {utc[11:16]} UTC"


def dataset(book: Ledger) -> DatasetStatus | None:
    """Draw the choice of the dataset and the form to register one."""
    statuses = book.datasets()
    names = [status.dataset for status in statuses]
    chosen = None
    if names:
        if st.session_state.get("dataset") not in names:
            st.session_state.pop("dataset", None)
        chosen = st.selectbox("Charge budget to", names, key="dataset", persist_state="session")
    with st.expander("Register a dataset", expanded=not names):
        st.caption(
            "The total budget limits all releases of these records together, whatever file they"
            " are in. The ledger shows later changes."
        )
        name = st.text_input("Dataset name", key="dataset_name").strip()
        for other in book.confusable_names(name):
            st.warning(escape_markdown(confusable_text(name, other)))
        unit = st.radio(
            "Budget unit",
            [name for name in UNITS if name != RISK],
            horizontal=True,
            key="dataset_unit",
        )
        st.caption(UNITS[unit])
        _total_fields(unit, history.current().budget)
        st.text_input("Note (optional)", key="dataset_note")
        buttons.button("Register dataset", register, book, key="declare")
        show_deferred_error("dataset")
    status = next((status for status in statuses if status.dataset == chosen), None)
    if status is not None:
        st.caption(escape_markdown(f"{_remaining(status)} Total: {status.describe()}."))
        _total_form(book, status)
    return status


def _remaining(status: DatasetStatus) -> str:
    """Remaining budget of a dataset, and the number of releases of the plan that it pays for."""
    planned, left = history.current().budget, remaining_text(status.left)
    remaining = f"{left} of {cost(status.total)} {status.definition.counts} left"
    # the confirmation explains why such a dataset cannot be charged
    with suppress(EngineError):
        status.definition.check_unit(planned)
        fit = status.pays_for(planned.pcost, planned.pure_epsilon)
        return f"{remaining}: enough for {pluralize(fit, 'release')} of this plan."
    return f"{remaining}: cannot be charged for this plan."


def _total_form(book: Ledger, status: DatasetStatus) -> None:
    """Draw the form to change the total, and earlier changes."""
    with st.expander("Change the total"):
        st.caption(
            "The ledger shows the change, your name and your reason. A larger total weakens the"
            " protection of the people in the records."
        )
        key = f"{status.dataset}_{status.total!r}"  # the default is the current total
        counts = status.definition.counts
        st.number_input(
            f"New total ({counts})",
            float(status.spent),
            None,
            status.total,
            step=0.5,
            format="%.6g",
            key=f"new_{key}",
        )
        left, right = st.columns(2)
        left.text_input("Your name", key="total_by")
        right.text_input("Reason", key="total_reason")
        buttons.button("Change total", change, book, status, f"new_{key}", key="change_total")
        show_deferred_error("total")
        for entry in total_history(book.rows(), status.dataset):
            who = f"changed by {entry.by}: {entry.reason}" if entry.by else "registered"
            st.caption(escape_markdown(f"{entry.utc[:10]}: {cost(entry.total)} {counts}, {who}"))


def _total_fields(unit: str, planned: Budget) -> None:
    """Draw the fields of a total, with the cost of the plan as default."""
    left, right = st.columns(2)
    start = unit, analysis.round_up(numbers_of(planned, unit)[0]), planned.report_delta
    if st.session_state.get("dataset_start") != start or "dataset_total" not in st.session_state:
        st.session_state["dataset_start"] = start
        _, st.session_state["dataset_total"], st.session_state["dataset_delta"] = start
    name = "epsilon" if unit == APPROX else unit
    left.number_input(f"Total budget ({name})", step=0.5, format="%.6g", key="dataset_total")
    if unit == APPROX:
        right.number_input("delta", step=1e-6, format="%.1e", key="dataset_delta")
    left, right = st.columns(2)
    rows, neighbours = planned.rows_per_person, list(AGAINST).index(planned.neighbours)
    left.number_input(
        ROWS_LABEL,
        1,
        1_000_000,
        rows,
        key="dataset_rows",
        help="Rows of one person are protected together.",
    )
    right.selectbox(
        AGAINST_LABEL, list(AGAINST), neighbours, AGAINST.__getitem__, key="dataset_neighbours"
    )
    with suppress(EngineError):  # an invalid total is reported by the button
        total = _form_total(unit)
        fit = analysis.releases_within(total, planned)
        text = (
            "A total in this unit cannot be charged for this plan."
            if fit is None
            else f"Enough for {pluralize(fit, 'release')} of this plan ({in_words(planned)} each)."
        )
        st.caption(escape_markdown(text))


def _form_total(unit: str) -> Budget:
    """Total of the form; raises BudgetError."""
    form = st.session_state
    numbers = [form.dataset_total] + ([form.dataset_delta] if unit == APPROX else [])
    protected = {"rows_per_person": int(form.dataset_rows), "neighbours": form.dataset_neighbours}
    return MAKERS[unit](*numbers, **protected)


def remember(status: DatasetStatus | None) -> None:
    """Store the dataset's status for the sidebar."""
    if st.session_state.get("dataset_status") != status:
        st.session_state["dataset_status"] = status
        st.rerun()
