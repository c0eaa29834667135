"""Which records are measured and whose budget pays: ledger, dataset, data file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import streamlit as st

from engine.errors import EngineError, LedgerError
from engine.release import DatasetStatus, Ledger, Receipt
from pages.parts.jobs import private
from pages.parts.release import folders
from pages.parts.shell import places
from pages.parts.shell.budgets import (
    AGAINST,
    AGAINST_LABEL,
    APPROX,
    DELTA,
    MAKERS,
    ROWS_LABEL,
    UNITS,
    kind_of_total,
)
from pages.parts.shell.words import kept_for, plain, show_kept, shown_here, trouble

if TYPE_CHECKING:
    from streamlit.runtime.uploaded_file_manager import UploadedFile

DEFAULT_LEDGER = "budget.ledger"
RECORDS, COUNTED, IGNORED = "record", "counted", "ignored"
ROWS_ARE = {
    RECORDS: "Each row is one record",
    COUNTED: "This column holds counts (count_column)",
    IGNORED: "Leave it out (ignore)",
}


@dataclass(frozen=True, kw_only=True)
class Source:
    """The records: a path on this machine, or an upload that is written to a file of its own when the work starts."""

    path: str = ""
    upload: UploadedFile | None = None
    by_column: bool = False
    column: str = ""
    rows_are: str = RECORDS
    number: str = ""

    @property
    def missing(self) -> str:
        """What is not chosen yet, as the end of a sentence; empty when all is."""
        if not self.path.strip() and self.upload is None:
            return "choose the records first."
        if self.by_column and self.person is None:
            return "name the column that tells the person, or declare the bound."
        if self.rows_are != RECORDS and not self.number.strip():
            return "name the column of counts, or the one to leave out."
        if self.rows_are == COUNTED and self.by_column:
            return "rows that are counted already tell no persons; declare the bound."
        return ""

    @property
    def person(self) -> str | None:
        """The column that tells whose row it is; None where nothing is capped."""
        return self.column.strip() or None if self.by_column else None

    @property
    def columns(self) -> dict[str, Any]:
        """What columns are that the schema does not know, as arguments of the engine."""
        number = self.number.strip()
        return {
            "person": self.person,
            "count_column": number if self.rows_are == COUNTED else None,
            "ignore": [name.strip() for name in number.split(",")] if self.rows_are == IGNORED else [],
        }

    def to_file(self) -> tuple[str, tuple[Path, ...]]:
        """The path to read, and the copies that have to go when it was read."""
        if self.upload is None:
            return str(folders.readable(self.path, folders.RECORDS)), ()
        suffix = "".join(Path(self.upload.name).suffixes[-2:]) if self.upload.name.endswith(".gz") else ""
        file = private.new_file("records", suffix or Path(self.upload.name).suffix)
        file.write_bytes(self.upload.getbuffer())
        return str(file), (file,)


def create_ledger(path: str) -> None:
    """Make a new ledger file."""
    with kept_for("ledger"):
        Ledger.create(folders.inside(path))


def declare(ledger: Ledger) -> None:
    """Declare the dataset of the form."""
    form = st.session_state
    with kept_for("dataset"):
        language, numbers = form.dataset_unit, [form.dataset_total]
        numbers += [form.dataset_delta] if language == APPROX else []
        whom = {"rows_per_person": int(form.dataset_rows), "neighbours": form.dataset_neighbours}
        total = MAKERS[language](*numbers, **whom)
        note, kind = form.dataset_note.strip(), kind_of_total(language)
        ledger.add_dataset(form.dataset_name.strip(), total=total, note=note, kind=kind)
        form.dataset = form.dataset_name.strip()


def ledger() -> Ledger | None:
    """Draw the choice of the ledger and open it."""
    st.session_state.setdefault("ledger_path", DEFAULT_LEDGER)
    path = st.text_input(
        "Ledger file on this machine",
        key="ledger_path",
        persist_state="session",
        help="The ledger remembers every release of every dataset. It is one file, with the results beside it; keep it "
        "with the data, back both up, and never use an old copy.",
    )
    if not path.strip():
        st.info("Give the path of the ledger file.")
        return None
    try:
        place = folders.readable(path)
    except EngineError as error:
        trouble(str(error))
        _others("")
        return None
    if str(place) != path.strip():
        st.caption(plain(str(place)))
    if not place.exists():
        st.warning(
            "There is no ledger here. If you released anything before, find that ledger: a new one does not know what "
            "was spent. Create one only for the first release of these records."
        )
        st.button("Create a new ledger here", on_click=create_ledger, args=(str(place),), key="create_ledger")
        show_kept("ledger")
        _others("")
        return None
    with shown_here():
        book = Ledger(place)
        places.opened(str(place))
        _others(str(place))
        return book
    return None


def _others(here: str) -> None:
    """Ledgers that this browser opened before."""
    known = [path for path in places.ledgers() if path != here]
    if not known:
        return
    with st.expander("Ledgers opened before", expanded=not here):
        for number, path in enumerate(known):
            st.button(plain(path), on_click=_open, args=(path,), key=f"open_ledger_{number}")


def _open(path: str) -> None:
    st.session_state["ledger_path"] = path


def spent(book: Ledger, key: str) -> Receipt:
    """What the ledger holds about a spend that was made; raises LedgerError when it holds none."""
    found = book.find(key)
    if found is None:
        raise LedgerError("The ledger holds no spend of this release. Open the ledger that paid for it.")
    return found


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
            "The budget belongs to the records, under this name, whatever file holds them. It is all that releases of "
            "these records may ever cost together, and cannot be changed later."
        )
        st.text_input("Name of the dataset", key="dataset_name")
        language = st.radio("Say the total as", list(MAKERS), horizontal=True, key="dataset_unit")
        st.caption(UNITS[language])
        left, right = st.columns(2)
        name = "epsilon" if language == APPROX else language
        left.number_input(f"Total budget ({name})", value=1.0, step=0.5, format="%.6g", key="dataset_total")
        if language == APPROX:
            right.number_input("delta", value=DELTA, step=DELTA, format="%.1e", key="dataset_delta")
        left, right = st.columns(2)
        left.number_input(ROWS_LABEL, 1, 1_000_000, 1, key="dataset_rows", help="All of them are protected together.")
        right.selectbox(AGAINST_LABEL, list(AGAINST), format_func=AGAINST.__getitem__, key="dataset_neighbours")
        st.text_input("Note (optional)", key="dataset_note")
        st.button("Declare", on_click=declare, args=(book,), key="declare")
        show_kept("dataset")
    status = next((status for status in found if status.dataset == chosen), None)
    if status is not None:
        st.caption(plain(f"Its total counts {status.definition.describe()}."))
    return status


def remember(status: DatasetStatus | None) -> None:
    """Keep the dataset's budget for the gauge in the sidebar."""
    if st.session_state.get("dataset_status") != status:
        st.session_state["dataset_status"] = status
        st.rerun()


def source(rows: int = 1, person: str | None = None) -> Source:
    """Draw the choice of the records, and of how the rows of a person are kept to what the budget protects.

    ``person`` is the column that the schema declares; then there is nothing to choose.
    """
    how = st.radio("Records", ["File on this machine", "Upload"], horizontal=True, key="records_how")
    path, upload = "", None
    if how == "Upload":
        upload = st.file_uploader(
            "CSV or parquet with the columns of the schema", type=["csv", "gz", "parquet"], key="records_file"
        )
    else:
        path = st.text_input("Path of a CSV or parquet file", key="records_path", persist_state="session")
    st.caption(
        "Rows with values outside the schema are left out, each by its own values alone; how many there are is told to "
        "you only. A release never refuses a table because of them, for that would tell of single records."
    )
    if person is not None:
        st.caption(
            plain(f"No more than {rows:,} of each person's rows will count; the column {person} tells whose it is.")
        )
        return Source(path=path, upload=upload)
    by_column, column = rows > 1 and _by_column(rows), ""
    if by_column:
        column = st.text_input(
            "Column that tells the person",
            key="person_column",
            persist_state="session",
            help="Its values only tell whose row it is; they are in no table. Which rows of a person count depends on "
            "that person's rows alone. How many rows and persons the cap costs is told to you only.",
        )
    rows_are, number = _rows_are()
    return Source(path=path, upload=upload, by_column=by_column, column=column, rows_are=rows_are, number=number)


def _rows_are() -> tuple[str, str]:
    """Draw what a row stands for, and the column that this is about."""
    how = st.radio(
        "A column of numbers that the schema does not know, such as n or count",
        list(ROWS_ARE),
        format_func=ROWS_ARE.__getitem__,
        key="rows_are",
        persist_state="session",
        help="A table may hold each combination of values once, with the number of its records in a column. A file "
        "with a column named n, count, counts, freq or frequency is refused until you say what it holds.",
    )
    if how == RECORDS:
        return how, ""
    name = "Name of that column" if how == COUNTED else "Name of that column, or names with commas between"
    return how, st.text_input(name, key="number_column", persist_state="session")


def _by_column(rows: int) -> bool:
    ways = {True: f"Keep at most {rows:,} rows of each", False: f"I declare that nobody has more than {rows:,}"}
    return bool(st.radio("Rows of a person", list(ways), format_func=ways.__getitem__, key="person_how"))
