"""Forms for the ledger file, and for the dataset whose budget pays for a release."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import streamlit as st

from engine import analysis
from engine._format import deltas_as_powers, pluralize
from engine.errors import EngineError, LedgerError
from engine.ledger import Ledger, Receipt
from engine.ledger.balance import DatasetStatus
from engine.ledger.ledger import confusable_text, total_history
from engine.ledger.signing import key_file, key_fingerprint
from engine.privacy import Budget
from engine.workload import Schema
from pages.parts.release import file_access
from pages.parts.shell import budgets, buttons, session_restore
from pages.parts.shell.budgets import (
    AGAINST,
    AGAINST_LABEL,
    APPROX,
    MAKERS,
    MU,
    PCOST,
    PURE,
    RHO,
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
# Session key of the path of the ledger, the name and the message of the dataset registered last.
REGISTERED = "dataset_registered"
# Session key of the digest of the schema of the plan for which the dataset was chosen.
FOR_SCHEMA = "dataset_schema"
CHANGE_TOTAL = "Change the total"  # title of the fold with the form for a new total
# A remaining budget of at most this share of the total is written as "nothing".
MIN_LEFT_SHARE = 1e-6


def schema_digest(schema: Schema | None) -> str:
    """Return a digest of a schema; empty without a schema."""
    text = "" if schema is None else schema.to_json()
    return hashlib.sha256(text.encode()).hexdigest()[:16] if text else ""


def ledger_of_form() -> Ledger | None:
    """Return the ledger at the path of the form, without drawing; None if it cannot be opened."""
    path = st.session_state.get("ledger_path") or ""
    with suppress(EngineError, OSError):
        if path.strip() and (place := file_access.readable(path)).is_file():
            return Ledger(place)
    return None


def dataset_of_form(book: Ledger | None, schema: Schema) -> DatasetStatus | None:
    """Return the status of the dataset that was chosen for this schema; None if none was chosen."""
    form = st.session_state
    if book is None or form.get(FOR_SCHEMA) != schema_digest(schema):
        return None
    return next((s for s in book.datasets() if s.dataset == form.get("dataset")), None)


def is_forgotten(schema: Schema) -> bool:
    """Return whether a dataset was chosen for another schema, and not yet for this one."""
    chosen_for = st.session_state.get(FOR_SCHEMA, "")
    return bool(chosen_for) and chosen_for != schema_digest(schema)


def register(path: str, schema: Schema | None, next_step: tuple[str, str] | None = None) -> None:
    """Register the dataset of the form in the ledger; create the ledger if the file is missing.

    ``next_step`` is a pair (session key of the open step of the wizard, title of the step to open
    afterwards). If it is None, the open step remains.
    """
    form = st.session_state
    with deferred_errors("dataset"):
        unit = form.dataset_unit
        total = _form_total(unit)
        place = file_access.allowed_path(path)
        is_new_ledger = not place.exists()
        book = Ledger.create(place) if is_new_ledger else Ledger(place)
        session_restore.remember_ledger(str(place))
        note = form.dataset_note.strip()
        kind = kind_of_total(unit)
        book.add_dataset(form.dataset_name.strip(), total=total, note=note, kind=kind)
        form.dataset, form[FOR_SCHEMA] = form.dataset_name.strip(), schema_digest(schema)
        form.dataset_name = form.dataset_note = ""
        form[REGISTERED] = (str(book.path), form.dataset, _registered_text(book, is_new_ledger))
        # Without this key, `_total_fields` resets its fields, so that the total of the next dataset
        # is the cost of the plan by default.
        form.pop("dataset_start", None)
        if next_step is not None:
            step_key, title = next_step
            form[step_key] = title


def _registered_text(book: Ledger, is_new_ledger: bool) -> str:
    """Return what `register` created: the ledger, if it is new, and the dataset with its total."""
    status = book.status(st.session_state.dataset)
    total = budgets.amount(status.total, status.definition)
    if not is_new_ledger:
        return f"Registered the dataset {status.dataset} with a total of {total}."
    fingerprint = key_fingerprint(book.public_key())
    return (
        f"Created the ledger {book.path} with the dataset {status.dataset}, whose total is"
        f" {total}. The ledger signs packages with the key of the fingerprint {fingerprint}; keep"
        f" its key file {key_file(book.path)}."
    )


def draw_files(book: Ledger) -> None:
    """Draw the full paths of the ledger and of its key file; no published file contains them."""
    st.caption(
        escape_markdown(f"Ledger: {book.path}. Key that signs packages: {key_file(book.path)}.")
    )


def registered_note(book: Ledger, status: DatasetStatus) -> None:
    """Draw what `register` created last, if it is this dataset and nothing was spent yet."""
    path, dataset, text = st.session_state.get(REGISTERED, ("", "", ""))
    if (path, dataset) == (str(book.path), status.dataset) and not status.spent:
        st.success(escape_markdown(text), icon="🗂️")


def change(book: Ledger, status: DatasetStatus, key: str) -> None:
    """Change the total budget of a dataset to the number in the field ``key``."""
    form, definition = st.session_state, status.definition
    with deferred_errors("total"):
        unit = _unit_of_total(status)
        numbers = [form[key], definition.delta] if unit == APPROX else [form[key]]
        total = MAKERS[unit](
            *numbers,
            rows_per_person=definition.rows_per_person,
            neighbours=definition.neighbours,
        )
        book.change_total(
            status.dataset, total=total, by=form.total_by.strip(), reason=form.total_reason.strip()
        )
        form.total_by = form.total_reason = ""


def choose(
    schema: Schema,
    budget: Budget,
    describe: Callable[[DatasetStatus], str],
    next_step: tuple[str, str],
) -> None:
    """Draw the choice of the ledger and of the dataset that pays, and the form to create them.

    Parameters
    ----------
    schema : schema of the plan; a dataset that was chosen for another schema is not preselected.
    budget : budget of the plan, the default of a new total.
    describe : function that returns as text what a dataset can pay for.
    next_step : pair (session key of the open step of the wizard, title of the step that opens once
        a ledger with its first dataset was created).
    """
    place = ledger_path()
    if place is None:
        return
    if not place.exists():
        st.warning(
            escape_markdown(
                f"There is no ledger {place}. Create one only for the first release of these"
                " records: a new ledger does not contain earlier spending."
            )
        )
        _new_dataset(None, str(place), schema, budget, next_step)
        return
    book = open_ledger(place)
    if book is None:
        return
    statuses, form = book.datasets(), st.session_state
    names = [status.dataset for status in statuses]
    if form.get("dataset") not in names or form.get(FOR_SCHEMA) != schema_digest(schema):
        # If the key were removed, the field on screen would still show the previous dataset.
        form["dataset"] = None
    if names:
        st.selectbox(
            "Charge budget to",
            names,
            index=None,
            placeholder="Choose the dataset of these records",
            key="dataset",
            persist_state="session",
            on_change=_store_schema,
            args=(schema_digest(schema),),
        )
    status = next((s for s in statuses if s.dataset == form.get("dataset")), None)
    if status is not None:
        registered_note(book, status)
        st.markdown(escape_markdown(describe(status)))
        st.caption(escape_markdown(f"Total: {deltas_as_powers(_definition_text(status))}."))
    with st.expander("New dataset", expanded=not names):
        _new_dataset(book, str(place), schema, budget)
    if status is not None:
        _total_form(book, status)


def browse() -> tuple[Ledger, DatasetStatus] | None:
    """Draw the choice of a ledger and of a dataset; return both, or None without a dataset."""
    place = ledger_path()
    if place is None or not place.exists():
        if place is not None:
            st.info("There is no ledger at this path.", icon="🗂️")
        return None
    book = open_ledger(place)
    if book is None:
        return None
    statuses, form = book.datasets(), st.session_state
    if not statuses:
        st.info("This ledger has no dataset yet.", icon="🗂️")
        return None
    names = [status.dataset for status in statuses]
    if form.get("dataset") not in names:
        form["dataset"], form[FOR_SCHEMA] = names[0], ""
    name = st.selectbox(
        "Dataset",
        names,
        key="dataset",
        persist_state="session",
        on_change=_store_schema,
        args=("",),
    )
    return book, next(status for status in statuses if status.dataset == name)


def _store_schema(digest: str) -> None:
    """Store the digest of the schema for which the dataset was chosen."""
    st.session_state[FOR_SCHEMA] = digest


def ledger_path() -> Path | None:
    """Draw the field for the path of the ledger, and return the path.

    The result is None if the field is empty or the path is not allowed; the page then shows the
    reason.
    """
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
    if not place.exists():
        _recent_ledgers("")
    return place


def open_ledger(place: Path) -> Ledger | None:
    """Return the ledger at a path, and draw the list of other recent ledgers.

    The result is None if the file is not a valid ledger; the page then shows the error.
    """
    with show_errors():
        book = Ledger(place)
        session_restore.remember_ledger(str(place))
        _recent_ledgers(str(place))
        return book
    return None


def _recent_ledgers(open_path: str) -> None:
    """Draw a button for each ledger that this browser opened earlier, except ``open_path``."""
    paths = [path for path in session_restore.ledgers() if path != open_path]
    if not paths:
        return
    with st.expander("Recent ledgers", expanded=not open_path):
        for number, path in enumerate(paths):
            buttons.button(escape_markdown(path), _open, path, key=f"open_ledger_{number}")


def _open(path: str) -> None:
    st.session_state["ledger_path"] = path


def spent(book: Ledger, key: str) -> Receipt:
    """Return the receipt of a spend; raises LedgerError if the ledger has none."""
    receipt = book.find(key)
    if receipt is None:
        raise LedgerError(
            "The open ledger does not contain this release. Open the ledger that contains it."
        )
    return receipt


def charged_keys(book: Ledger, key_of_attempt: Callable[[int], str]) -> list[str]:
    """Return the keys of attempts 1, 2, ..., up to the first attempt that is not in the ledger."""
    keys: list[str] = []
    while book.find(key := key_of_attempt(len(keys) + 1)) is not None:
        keys.append(key)
    return keys


def time_text(utc: str) -> str:
    """Return a time of the ledger as text.

    >>> time_text("2026-03-01T09:30:12Z")
    '2026-03-01 at 09:30 UTC'
    """
    return f"{utc[:10]} at {utc[11:16]} UTC"


def balance(status: DatasetStatus) -> str:
    """Return the spent budget and the total of a dataset as text, in the chosen unit.

    Both are rounded up.
    """
    spent = budgets.amount(status.spent, status.definition)
    return f"{spent} of {budgets.amount(status.total, status.definition)} spent"


def left_text(status: DatasetStatus) -> str:
    """Return what is left of the total of a dataset, as a clause in the chosen unit.

    At most `MIN_LEFT_SHARE` of the total counts as nothing: a total that was rounded when it was
    entered leaves such an amount after its last release.
    """
    if status.left <= MIN_LEFT_SHARE * status.total:
        return "nothing is left of the total"
    left = budgets.amount(status.left, status.definition, is_left=True)
    return f"{left} is left of the total"


def _definition_text(status: DatasetStatus) -> str:
    """Return the guarantee of a total; the unit pcost is named only if it is the chosen unit."""
    text = status.describe()
    return text if budgets.chosen_unit() == PCOST else text.replace(" (pcost)", "")


def remedy(status: DatasetStatus) -> str:
    """Return what to do if what is left of a total is too little, as a clause.

    A plan with a smaller budget helps only if anything is left, see `left_text`.
    """
    if status.left <= MIN_LEFT_SHARE * status.total:
        return f"use “{CHANGE_TOTAL}” on the step Who pays"
    return f"choose a smaller budget on Preview, or use “{CHANGE_TOTAL}” on the step Who pays"


def charge(book: Ledger, receipt: Receipt) -> str:
    """Return what a release was charged, as text in the chosen unit."""
    definition = book.status(receipt.dataset).definition
    # For a charge of pure epsilon, the pcost of the receipt is epsilon^2.
    value = receipt.pcost**0.5 if definition.unit == "epsilon" else receipt.pcost
    return budgets.amount(value, definition)


def payment(status: DatasetStatus, budget: Budget) -> str:
    """Return as text how many releases of a plan with this budget the dataset can pay for.

    If it cannot pay for one, the text is the reason.
    """
    if status.definition.with_guarantee(budget) != budget:
        return (
            f"{balance(status)}. It cannot be charged for this plan, because its total is for"
            f" {status.definition.neighbours_text}."
        )
    try:
        price = status.takes(budget.pcost, budget.pure_epsilon)
    except EngineError:
        return (
            f"{balance(status)}. It cannot be charged for this plan: choose “pure epsilon” as the"
            " budget unit on Preview."
        )
    releases = status.pays_for(budget.pcost, budget.pure_epsilon)
    if releases:
        more = "more " if status.spent else ""
        noun = "release" if releases == 1 else "releases"
        return f"{balance(status)}: enough for {releases:,} {more}{noun} of this plan."
    clause = remedy(status).replace("on the step Who pays", "below")
    return (
        f"{balance(status)}: {left_text(status)}, too little for this plan, which costs"
        f" {budgets.amount(price, status.definition)}. {clause[0].upper()}{clause[1:]}."
    )


def can_pay(status: DatasetStatus, budget: Budget) -> bool:
    """Return whether the dataset can pay for a release of a plan with this budget."""
    with suppress(EngineError):
        status.definition.check_guarantee(budget)
        return status.pays_for(budget.pcost, budget.pure_epsilon) > 0
    return False


def _new_dataset(
    book: Ledger | None,
    path: str,
    schema: Schema | None,
    budget: Budget,
    next_step: tuple[str, str] | None = None,
) -> None:
    """Draw the form that registers a dataset with its total.

    If ``book`` is None, the button creates the ledger at ``path`` as well. ``next_step`` is that of
    `register`.
    """
    form = st.session_state
    name = st.text_input(
        "Dataset name", key="dataset_name", placeholder="such as household survey 2026", live=True
    ).strip()
    for other in book.confusable_names(name) if book is not None else ():
        st.warning(escape_markdown(confusable_text(name, other)))
    language = budgets.chosen_unit()
    form.setdefault("dataset_unit", APPROX if language == RISK else language)
    unit = form["dataset_unit"]
    _total_fields(unit, budget)
    with st.popover("More options"):
        # The browser creates the radio buttons only when the popover is opened. Without
        # `persist_state` the new buttons would start at the first unit and replace the total.
        st.radio(
            "Budget unit",
            [name for name in UNITS if name != RISK],
            key="dataset_unit",
            persist_state="session",
        )
        st.caption(UNITS[unit])
        rows, neighbours = budget.rows_per_person, list(AGAINST).index(budget.neighbours)
        st.number_input(
            ROWS_LABEL,
            1,
            1_000_000,
            rows,
            key="dataset_rows",
            help="Rows of one person are protected together.",
        )
        st.selectbox(
            AGAINST_LABEL, list(AGAINST), neighbours, AGAINST.__getitem__, key="dataset_neighbours"
        )
        st.text_input("Note (optional)", key="dataset_note")
    with suppress(EngineError):  # an invalid total is reported by the button
        st.caption(escape_markdown(_total_text(_form_total(unit), budget)))
        budgets.sum_note(is_pure=budget.pure_epsilon is not None, has_bar=False)
    with st.container(horizontal=True, vertical_alignment="center"):
        buttons.button(
            "Create ledger and dataset" if book is None else "Register dataset",
            register,
            path,
            schema,
            next_step,
            key="declare",
            type="primary" if book is None else "secondary",
            disabled=not name,
        )
        if not name:
            st.caption("To continue, enter the dataset name.", width="content")
    show_deferred_error("dataset")


def _total_text(total: Budget, plan_budget: Budget) -> str:
    """Return as text how many releases of the plan a new total pays for."""
    releases = analysis.releases_within(total, plan_budget)
    if releases is None:
        return "A total in this unit cannot be charged for this plan."
    each = "" if releases == 1 else " each"
    return (
        f"Enough for {pluralize(releases, 'release')} of this plan ({in_words(plan_budget)}{each})."
        " The total limits all releases of these records together; later changes are recorded."
    )


def _total_form(book: Ledger, status: DatasetStatus) -> None:
    """Draw the form that changes the total of a dataset, and the list of all its totals."""
    with st.expander(CHANGE_TOTAL):
        st.caption(
            "The ledger shows the change, your name and your reason. A larger total weakens the"
            " protection of the people in the records."
        )
        # The key of the field contains the current total, so that the field shows a changed total.
        key = f"{status.dataset}_{status.total!r}"
        unit = _unit_of_total(status)
        st.number_input(
            f"New total ({'epsilon' if unit in (APPROX, PURE) else unit})",
            _in_unit(status.spent, status, unit),
            None,
            _in_unit(status.total, status, unit),
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
            origin = f"changed by {entry.by}: {entry.reason}" if entry.by else "registered"
            total_text = budgets.amount(entry.total, status.definition)
            st.caption(escape_markdown(f"{entry.utc[:10]}: {total_text}, {origin}"))


def _in_unit(value: float, status: DatasetStatus, unit: str) -> float:
    """Return an amount in the ledger as a number in a budget unit."""
    if value == 0.0 or unit == PURE:
        return value
    return numbers_of(Budget(pcost=value, report_delta=status.definition.delta), unit)[0]


def _unit_of_total(status: DatasetStatus) -> str:
    """Return the unit in which the form changes a total.

    It is pure epsilon for a total in pure epsilon. For any other total, it is the chosen unit if
    that is epsilon with delta, rho or mu, otherwise pcost.
    """
    if status.definition.unit == "epsilon":
        return PURE
    return budgets.chosen_unit() if budgets.chosen_unit() in (APPROX, RHO, MU) else PCOST


def _total_fields(unit: str, plan_budget: Budget) -> None:
    """Draw the fields of a new total; the default is the cost of the plan."""
    start = unit, analysis.round_up(numbers_of(plan_budget, unit)[0]), plan_budget.report_delta
    if st.session_state.get("dataset_start") != start or "dataset_total" not in st.session_state:
        st.session_state["dataset_start"] = start
        _, st.session_state["dataset_total"], st.session_state["dataset_delta"] = start
    name = "epsilon" if unit == APPROX else unit
    left, right = st.columns(2)
    left.number_input(f"Total budget ({name})", step=0.5, format="%.6g", key="dataset_total")
    if unit == APPROX:
        right.number_input("delta", step=1e-6, format="%g", key="dataset_delta")


def _form_total(unit: str) -> Budget:
    """Return the total in the form as a budget; raises BudgetError if it is invalid."""
    form = st.session_state
    numbers = [form.dataset_total] + ([form.dataset_delta] if unit == APPROX else [])
    protected = {"rows_per_person": int(form.dataset_rows), "neighbours": form.dataset_neighbours}
    return MAKERS[unit](*numbers, **protected)


def remember(status: DatasetStatus | None) -> None:
    """Store the status of the dataset, which the sidebar draws; rerun the page if it changed."""
    if st.session_state.get("dataset_status") != status:
        st.session_state["dataset_status"] = status
        st.rerun()
