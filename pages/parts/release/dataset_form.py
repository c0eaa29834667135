"""Whose budget pays: the ledger and the dataset."""

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
    """Make a new ledger file."""
    with deferred_errors("ledger"):
        Ledger.create(file_access.is_inside(path))


def declare(ledger: Ledger) -> None:
    """Declare the dataset of the form."""
    form = st.session_state
    with deferred_errors("dataset"):
        language = form.dataset_unit
        total = _declared(language)
        note, kind = form.dataset_note.strip(), kind_of_total(language)
        ledger.add_dataset(form.dataset_name.strip(), total=total, note=note, kind=kind)
        form.dataset = form.dataset_name.strip()
        form.dataset_name = form.dataset_note = ""
        form.pop("dataset_start", None)  # the next total begins with what the plan needs


def change(book: Ledger, status: DatasetStatus, key: str) -> None:
    """Change the total of a dataset to the number of the form."""
    form, counted = st.session_state, status.definition
    with deferred_errors("total"):
        maker = MAKERS[PURE if counted.counts == "epsilon" else PCOST]
        total = maker(
            form[key], rows_per_person=counted.rows_per_person, neighbours=counted.neighbours
        )
        book.change_total(
            status.dataset, total=total, by=form.total_by.strip(), reason=form.total_reason.strip()
        )
        form.total_by = form.total_reason = ""


def ledger() -> Ledger | None:
    """Draw the choice of the ledger and open it."""
    st.session_state.setdefault("ledger_path", DEFAULT_LEDGER)
    path = st.text_input(
        "Ledger file on this machine",
        key="ledger_path",
        persist_state="session",
        help=(
            "The ledger remembers every release of every dataset. It is one file, with the results"
            " beside it; keep it with the data, back both up, and never use an old copy."
        ),
    )
    if not path.strip():
        st.info("Give the path of the ledger file.")
        return None
    try:
        place = file_access.readable(path)
    except EngineError as error:
        show_error(error_text(error))
        _others("")
        return None
    if str(place) != path.strip():
        st.caption(escape_markdown(str(place)))
    if not place.exists():
        st.warning(
            "There is no ledger here. If you released anything before, find that ledger: a new one"
            " does not know what was spent. Create one only for the first release of these records."
        )
        buttons.button("Create a new ledger here", create_ledger, str(place), key="create_ledger")
        show_deferred_error("ledger")
        _others("")
        return None
    with show_errors():
        book = Ledger(place)
        session_restore.remember_ledger(str(place))
        _others(str(place))
        return book
    return None


def _others(here: str) -> None:
    """Ledgers that this browser opened before."""
    paths = [path for path in session_restore.ledgers() if path != here]
    if not paths:
        return
    with st.expander("Ledgers opened before", expanded=not here):
        for number, path in enumerate(paths):
            buttons.button(escape_markdown(path), _open, path, key=f"open_ledger_{number}")


def _open(path: str) -> None:
    st.session_state["ledger_path"] = path


def spent(book: Ledger, key: str) -> Receipt:
    """What the ledger holds about a spend that was made; raises LedgerError when it holds none."""
    receipt = book.find(key)
    if receipt is None:
        raise LedgerError(
            "The ledger holds no spend of this release. Open the ledger that paid for it."
        )
    return receipt


def dataset(book: Ledger) -> DatasetStatus | None:
    """Draw the choice of the dataset, and the form that declares one."""
    found = book.datasets()
    names = [status.dataset for status in found]
    chosen = None
    if names:
        if st.session_state.get("dataset") not in names:
            st.session_state.pop("dataset", None)
        chosen = st.selectbox("Dataset that pays", names, key="dataset", persist_state="session")
    with st.expander("Declare a dataset", expanded=not names):
        st.caption(
            "The budget belongs to the records, under this name, whatever file holds them. It is"
            " all that releases of these records may ever cost together. A later change stays on"
            " the ledger with a name and a reason."
        )
        name = st.text_input("Name of the dataset", key="dataset_name").strip()
        for other in book.confusable_names(name):
            st.warning(escape_markdown(confusable_text(name, other)))
        language = st.radio(
            "Say the total as",
            [word for word in UNITS if word != RISK],
            horizontal=True,
            key="dataset_unit",
        )
        st.caption(UNITS[language])
        _total(language, history.current().budget)
        st.text_input("Note (optional)", key="dataset_note")
        buttons.button("Declare", declare, book, key="declare")
        show_deferred_error("dataset")
    status = next((status for status in found if status.dataset == chosen), None)
    if status is not None:
        with suppress(
            LedgerError
        ):  # a total that cannot count the plan says so where the release is confirmed
            planned = history.current().budget
            fit = pluralize(status.pays_for(planned.pcost, planned.pure_epsilon), "release")
            left = (
                f"{remaining_text(status.left)} of {cost(status.total)} {status.definition.counts}"
                " left"
            )
            st.caption(
                escape_markdown(f"{left}: enough for {fit} at the budget of the present plan.")
            )
        st.caption(escape_markdown(f"Its total counts {status.describe()}."))
        _change(book, status)
    return status


def _change(book: Ledger, status: DatasetStatus) -> None:
    """Draw the form that raises or lowers the total, and who did it before."""
    with st.expander("Change its total"):
        st.caption(
            "A total can be raised, and lowered to what is spent. What was declared and spent stays"
            " on the ledger, and the change beside it, with your name and your reason, for all who"
            " read the ledger. Raising it gives the people in the records less protection than was"
            " declared."
        )
        key = f"{status.dataset}_{status.total!r}"  # a change begins with the total that there is
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
        left.text_input("Who changes it", key="total_by")
        right.text_input("Why", key="total_reason")
        buttons.button("Change the total", change, book, status, f"new_{key}", key="change_total")
        show_deferred_error("total")
        for made in total_history(book.rows(), status.dataset):
            who = f"changed by {made.by}: {made.reason}" if made.by else "declared"
            st.caption(escape_markdown(f"{made.utc[:10]}: {cost(made.total)} {counts}, {who}"))


def _total(language: str, planned: Budget) -> None:
    """The numbers of the total, which begin with what the present plan needs, and what they pay
    for.
    """
    left, right = st.columns(2)
    start = language, analysis.round_up(numbers_of(planned, language)[0]), planned.report_delta
    if st.session_state.get("dataset_start") != start or "dataset_total" not in st.session_state:
        st.session_state["dataset_start"] = start
        _, st.session_state["dataset_total"], st.session_state["dataset_delta"] = start
    name = "epsilon" if language == APPROX else language
    left.number_input(f"Total budget ({name})", step=0.5, format="%.6g", key="dataset_total")
    if language == APPROX:
        right.number_input("delta", step=1e-6, format="%.1e", key="dataset_delta")
    left, right = st.columns(2)
    rows, neighbours = planned.rows_per_person, list(AGAINST).index(planned.neighbours)
    left.number_input(
        ROWS_LABEL,
        1,
        1_000_000,
        rows,
        key="dataset_rows",
        help="All of them are protected together.",
    )
    right.selectbox(
        AGAINST_LABEL, list(AGAINST), neighbours, AGAINST.__getitem__, key="dataset_neighbours"
    )
    with suppress(EngineError):  # numbers that make no budget are told when they are declared
        fit = analysis.releases_within(_declared(language), planned)
        each = f"of the present plan, which spends {in_words(planned)}"
        if fit is None:
            st.caption(
                escape_markdown(
                    f"It counts something else than the budget {each}, so that it cannot pay"
                    " for it."
                )
            )
        else:
            st.caption(
                escape_markdown(
                    f"It pays for {pluralize(fit, 'release')} {each}. Keep some for later"
                    " questions."
                )
            )


def _declared(language: str) -> Budget:
    """The total of the form; raises BudgetError."""
    form = st.session_state
    numbers = [form.dataset_total] + ([form.dataset_delta] if language == APPROX else [])
    whom = {"rows_per_person": int(form.dataset_rows), "neighbours": form.dataset_neighbours}
    return MAKERS[language](*numbers, **whom)


def remember(status: DatasetStatus | None) -> None:
    """Keep the dataset's budget for the gauge in the sidebar."""
    if st.session_state.get("dataset_status") != status:
        st.session_state["dataset_status"] = status
        st.rerun()
