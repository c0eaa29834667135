"""Which records are measured: a path, an upload or a named table, and what their rows and columns
stand for.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import streamlit as st

from engine.errors import DataError, LimitExceeded
from engine.records import RECORD_ENDINGS, TEXT_ENDINGS
from engine.records.counts import COUNTS_ENDING
from engine.records.database import named_sources
from engine.records.subprocess_readers import SHEET_ENDINGS, visible_sheets
from engine.workload import Schema
from pages.parts.jobs import private_tempdir, record_sources
from pages.parts.release import file_access
from pages.parts.shell import history, python_script
from pages.parts.shell.error_text import escape_markdown, show_errors

if TYPE_CHECKING:
    from streamlit.runtime.uploaded_file_manager import UploadedFile

ENDINGS = (*RECORD_ENDINGS, COUNTS_ENDING)
FILE, UPLOAD, TABLE = "File on this machine", "Upload", "Database"
SHEETS = "records_sheets"  # in the session: the workbook that was read last, and its sheets
RECORDS, COUNTED, IGNORED = "record", "counted", "ignored"
UTF_8 = "utf-8"
ENCODINGS = {
    UTF_8: "UTF-8",
    "cp1252": "Windows-1252 (Western Europe)",
    "cp1250": "Windows-1250 (Central Europe)",
    "cp1251": "Windows-1251 (Cyrillic)",
    "utf-16": "UTF-16",
    "shift_jis": "Shift JIS",
    "gb18030": "GB 18030",
}
ROWS_ARE = {
    RECORDS: "Each row is one record",
    COUNTED: "A column holds the number of records in each row",
    IGNORED: "Leave it out",
}


@dataclass(frozen=True, kw_only=True)
class Source:
    """The records: a path on this machine, an upload that becomes a file when the work starts, or a
    named table.
    """

    path: str = ""
    upload: UploadedFile | None = None
    name: str = ""
    by_column: bool = False
    column: str = ""
    rows_are: str = RECORDS
    number: str = ""
    encoding: str = UTF_8
    sheet: str = ""
    sheets: tuple[str, ...] = ()  # of which one has to be chosen

    @property
    def missing(self) -> str:
        """What is not chosen yet, as the end of a sentence; empty when all is."""
        if not self.path.strip() and self.upload is None and not self.name:
            return "choose the records first."
        if self.sheets and not self.sheet:
            return "choose the sheet of the workbook first."
        if self.by_column and self.person is None:
            return "name the column that tells the person, or declare the bound."
        if self.rows_are != RECORDS and not self.number.strip():
            return "name the column of counts, or the one to leave out."
        if self.rows_are == COUNTED and self.by_column:
            return "rows that are counted already tell no persons; declare the bound."
        return ""

    def problem(self, schema: Schema) -> str:
        """Return what is missing or contradicts the schema, as the end of a sentence; empty if
        nothing does.
        """
        if self.missing:
            return self.missing
        if self.rows_are == COUNTED and self.number.strip() in schema:
            return (
                "the column of counts is also an attribute of the schema; name another one, or"
                " remove the attribute."
            )
        if attributes := [name for name in self.columns["ignore"] if name in schema]:
            return (
                f"the column to leave out, {attributes[0]}, is also an attribute of the schema;"
                " name another one."
            )
        if self.person is not None and self.person in schema:
            return (
                "the column that tells the person is also an attribute of the schema; name another"
                " one."
            )
        return ""

    @property
    def identity(self) -> tuple[str, ...]:
        """What tells these records from others that were chosen in this session."""
        upload = self.upload.file_id if self.upload is not None else ""
        return self.path.strip(), upload, self.name, self.encoding, self.sheet

    @property
    def changed(self) -> int:
        """When the file was written last, in ns; 0 for other sources."""
        with suppress(OSError):
            return Path(self.path.strip()).stat().st_mtime_ns if self.path.strip() else 0
        return 0

    @property
    def script(self) -> python_script.Script:
        """The same records in Python, as `records`."""
        return python_script.records_script(
            self.path, self.name, "" if self.encoding == UTF_8 else self.encoding, self.sheet
        )

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
            "ignore": (
                [name.strip() for name in number.split(",")] if self.rows_are == IGNORED else []
            ),
        }

    def to_file(self) -> tuple[str, tuple[Path, ...]]:
        """What a worker reads, by its path or name, and the copies that have to go when it was
        read.
        """
        if self.name:
            return f"{record_sources.NAMED}{self.name}", ()
        if self.upload is None:
            return self._as_read(file_access.readable(self.path, ENDINGS)), ()
        file = _copied(self.upload)
        return self._as_read(file), (file,)

    def _as_read(self, file: Path) -> str:
        if self.sheet:
            return record_sources.sheet_of(file, self.sheet)
        return (
            str(file) if self.encoding == UTF_8 else f"{record_sources.TEXT}{self.encoding}:{file}"
        )


def source(rows: int = 1, person: str | None = None) -> Source:
    """Draw the choice of the records, and of how the rows of a person are kept to what the budget
    protects.

    ``person`` is the column that the schema declares; then there is nothing to choose.
    """
    named: tuple[str, ...] = ()
    with show_errors():
        named = named_sources()
    ways = [FILE, UPLOAD, *([TABLE] if named else [])]
    how = st.radio("Records", ways, horizontal=True, key="records_how")
    path, upload, name = "", None, ""
    if how == TABLE:
        name = st.selectbox(
            "Table",
            named,
            key="records_table",
            persist_state="session",
            help=(
                "A table that this server's settings name. It is counted where it is; only counts"
                " travel."
            ),
        )
    elif how == UPLOAD:
        upload = st.file_uploader(
            "A file with the columns of the schema",
            type=sorted({ending.rpartition(".")[2] for ending in ENDINGS}),
            key="records_file",
        )
    else:
        path = st.text_input(
            "Path of a file of records", key="records_path", persist_state="session"
        )
    encoding = _encoding(upload.name if upload is not None else path)
    sheets = _sheets(path, upload)
    sheet = _sheet(sheets)
    st.caption(
        "Rows with values outside the schema are left out, each by its own values alone; how many"
        " there are is told to you only. A release never refuses a table because of them, for that"
        " would tell of single records."
    )
    if person is not None:
        st.caption(
            escape_markdown(
                f"No more than {rows:,} of each person's rows will count; the column {person} tells"
                " whose it is."
            )
        )
        rows_are, number = _rows_are()
        return Source(
            path=path,
            upload=upload,
            name=name,
            rows_are=rows_are,
            number=number,
            encoding=encoding,
            sheet=sheet,
            sheets=sheets,
        )
    by_column, column = rows > 1 and _by_column(rows), ""
    if by_column:
        column = st.text_input(
            "Column that tells the person",
            key="person_column",
            persist_state="session",
            help=(
                "Its values only tell whose row it is; they are in no table. Whole numbers, or"
                " texts, as which long numbers keep all digits. Which rows of a person count"
                " depends on that person's rows alone. How many rows and persons the cap costs is"
                " told to you only."
            ),
        )
    rows_are, number = _rows_are()
    return Source(
        path=path,
        upload=upload,
        name=name,
        by_column=by_column,
        column=column,
        rows_are=rows_are,
        number=number,
        encoding=encoding,
        sheet=sheet,
        sheets=sheets,
    )


def _copied(upload: UploadedFile) -> Path:
    """Write an upload to a private file with its ending."""
    name = upload.name.lower()
    fitting = [ending for ending in ENDINGS if name.endswith(ending)]
    file = private_tempdir.new_file("records", max(fitting, key=len, default=Path(name).suffix))
    file.write_bytes(upload.getbuffer())
    return file


def _sheets(path: str, upload: UploadedFile | None) -> tuple[str, ...]:
    """Return the sheets of a workbook of which one has to be chosen; empty for other files.

    The names are read once per file and stored, because a page is drawn many times.
    """
    name = upload.name if upload is not None else path.strip()
    if not name.lower().endswith(SHEET_ENDINGS):
        return ()
    key: tuple[object, ...] = ("upload", upload.file_id) if upload is not None else ()
    names: tuple[str, ...] = ()
    with suppress(
        DataError, LimitExceeded, OSError
    ):  # the check of the records reports what is wrong with the file
        file = None if upload is not None else file_access.readable(path, ENDINGS)
        key = key or (str(file), file.stat().st_mtime_ns if file is not None else 0)
        stored = history.page_state().get(SHEETS)
        if stored is not None and stored[0] == key:
            return tuple(stored[1])
        copy = _copied(upload) if upload is not None else None
        try:
            names = tuple(visible_sheets(copy or file or Path(path)))
        finally:
            if copy is not None:
                copy.unlink(missing_ok=True)
    names = names if len(names) > 1 else ()
    history.page_state()[SHEETS] = key, names
    return names


def _sheet(sheets: tuple[str, ...]) -> str:
    """Draw the choice of a sheet of a workbook that has several."""
    if not sheets:
        return ""
    if st.session_state.get("records_sheet") not in sheets:
        st.session_state.pop("records_sheet", None)  # the choice was for another workbook
    sheet = st.selectbox(
        "Sheet of the workbook", sheets, index=None, key="records_sheet", persist_state="session"
    )
    return sheet or ""


def _encoding(name: str) -> str:
    """Draw how a text file writes its letters; other files say so themselves."""
    if not name.strip().lower().endswith(TEXT_ENDINGS):
        return UTF_8
    return st.selectbox(
        "Encoding of the text file",
        list(ENCODINGS),
        format_func=ENCODINGS.__getitem__,
        key="records_encoding",
        persist_state="session",
        help=(
            "Most files are UTF-8. Older spreadsheets write the encoding of their country; one that"
            " is chosen wrongly makes of Köln what fits no label. The check below shows how the"
            " values fit."
        ),
    )


def _rows_are() -> tuple[str, str]:
    """Draw what a row stands for, and the column that this is about."""
    how = st.radio(
        "A column of numbers that the schema does not know, such as n or count",
        list(ROWS_ARE),
        format_func=ROWS_ARE.__getitem__,
        key="rows_are",
        persist_state="session",
        help=(
            "A table may hold each combination of values once, with the number of its records in a"
            " column. A sampling weight is no number of records: with it one person would count"
            " many times. A parquet file with columns of numbers that the schema does not know is"
            " refused until you say what they hold; a text file, which tells no types, when one is"
            " named n, count, counts, freq or frequency."
        ),
    )
    if how == RECORDS:
        return how, ""
    if how == COUNTED:
        st.caption(
            "Only for numbers of records. With sampling weights, choose that each row is one"
            " record."
        )
    name = (
        "Name of that column"
        if how == COUNTED
        else "Name of that column, or names with commas between"
    )
    return how, st.text_input(name, key="number_column", persist_state="session")


def _by_column(rows: int) -> bool:
    ways = {
        True: f"Keep at most {rows:,} rows of each",
        False: f"I declare that nobody has more than {rows:,}",
    }
    return bool(
        st.radio("Rows of a person", list(ways), format_func=ways.__getitem__, key="person_how")
    )
