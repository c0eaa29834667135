"""Form for the records: file, upload or database table, rows and columns."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import streamlit as st

from engine._format import pluralize
from engine.errors import DataError, EngineError, LimitExceeded
from engine.records import RECORD_ENDINGS, TEXT_ENDINGS
from engine.records.counts import COUNTS_ENDING
from engine.records.database import named_sources
from engine.records.subprocess_readers import SHEET_ENDINGS, visible_sheets
from engine.workload import Schema
from pages.parts.jobs import private_tempdir, record_sources
from pages.parts.release import file_access, wizard
from pages.parts.shell import buttons, demo_records, history, python_script
from pages.parts.shell.error_text import error_text, escape_markdown, show_errors

if TYPE_CHECKING:
    from streamlit.runtime.uploaded_file_manager import UploadedFile

ENDINGS = (*RECORD_ENDINGS, COUNTS_ENDING)
UPLOAD, FILE, TABLE = "Upload", "File on the server", "Database"
# Keys of the page state for the last workbook with the names of its sheets, and the uploaded file.
SHEETS, UPLOADED = "records_sheets", "records_upload"
# Kinds of rows of the file: one record, several records whose number is in a column, or one record
# with columns to ignore.
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
# Maps RECORDS, COUNTED and IGNORED to answers to the question: is there a column of counts or
# weights?
ROWS_ARE = {
    RECORDS: "No",
    COUNTED: "Yes, counts of records",
    IGNORED: "Yes, ignore it",
}


@dataclass(frozen=True, kw_only=True)
class Source:
    """Records: a file on the server, an uploaded file or a database table.

    Attributes
    ----------
    path : path of the file on the server; empty for another kind of source.
    upload : uploaded file; None for another kind of source.
    name : name of the database table; empty for another kind of source.
    by_column : whether ``column`` limits the rows per person. False if the schema names the person
        ID column itself, if the limit is one row, or if the user states that no person has more
        rows than the limit.
    column : person ID column that was entered in the form.
    rows_are : what a row of the file is, a key of `ROWS_ARE`.
    number : for `COUNTED` the column with the number of records of a row; for `IGNORED` the columns
        to ignore, separated by commas.
    encoding : encoding of a text file.
    sheet, sheets : chosen sheet, and all sheets of a workbook that has several.
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
    sheets: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """Name of the file or table."""
        return self.name or (self.upload.name if self.upload else Path(self.path.strip()).name)

    @property
    def missing(self) -> str:
        """What is missing, as the end of a sentence; empty if nothing is."""
        if not self.path.strip() and self.upload is None and not self.name:
            return "choose the records."
        if self.sheets and not self.sheet:
            return "choose the sheet of the workbook."
        if self.by_column and self.person is None:
            return "enter the person ID column, or state that no person has more rows."
        if self.rows_are != RECORDS and not self.number.strip():
            return "enter the column of counts, or the columns to ignore."
        if self.rows_are == COUNTED and self.by_column:
            return (
                "state that no person has more rows; a file of counts has no rows of single"
                " persons."
            )
        return ""

    @property
    def unreadable(self) -> str:
        """Why the file on the server cannot be read, as the end of a sentence.

        The text is empty if the file can be read, and for other kinds of sources.
        """
        if not self.path.strip():
            return ""
        try:
            if file_access.readable(self.path, ENDINGS).exists():
                return ""
        except EngineError as error:
            return f"choose another file. {error_text(error)}"
        return "choose another file; there is none at this path."

    def problem(self, schema: Schema) -> str:
        """Return what is missing or contradicts the schema, as the end of a sentence.

        The text is empty if nothing is missing and no column of the form is an attribute.
        """
        if self.missing:
            return self.missing
        if self.rows_are == COUNTED and self.number.strip() in schema:
            return "choose another column of counts; this one is also an attribute of the schema."
        if attributes := [name for name in self.columns["ignore"] if name in schema]:
            return (
                f"choose other columns to ignore; {attributes[0]} is also an attribute of the"
                " schema."
            )
        if self.person is not None and self.person in schema:
            return "choose another person ID column; this one is also an attribute of the schema."
        return ""

    @property
    def identity(self) -> tuple[str, ...]:
        """Texts that identify the source of the records in this session: path, upload, table etc.

        They do not depend on the content of the records.
        """
        upload = self.upload.file_id if self.upload is not None else ""
        return self.path.strip(), upload, self.name, self.encoding, self.sheet

    @property
    def changed(self) -> int:
        """Modification time of the file on the server in ns; 0 for other kinds of sources."""
        with suppress(OSError, ValueError):  # ValueError for a path with a null byte
            return Path(self.path.strip()).stat().st_mtime_ns if self.path.strip() else 0
        return 0

    @property
    def script(self) -> python_script.Script:
        """Python code that defines `records`."""
        return python_script.records_script(
            self.path, self.name, "" if self.encoding == UTF_8 else self.encoding, self.sheet
        )

    @property
    def person(self) -> str | None:
        """Person ID column of the form; None if no such column limits the rows per person."""
        return self.column.strip() or None if self.by_column else None

    @property
    def columns(self) -> dict[str, Any]:
        """Arguments of `measure` that name columns: person, count_column and ignore."""
        number = self.number.strip()
        return {
            "person": self.person,
            "count_column": number if self.rows_are == COUNTED else None,
            "ignore": (
                [name.strip() for name in number.split(",")] if self.rows_are == IGNORED else []
            ),
        }

    def to_file(self) -> tuple[str, tuple[Path, ...]]:
        """Return the text for `record_sources.open_source`, and the files to delete afterwards.

        An upload is copied to a private file; only this copy is deleted.
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
    """Draw the form for the records, and return the records that were chosen.

    Parameters
    ----------
    rows : maximum rows per person.
    person : person ID column of the schema; if None and ``rows`` > 1, the form asks for a column.
    """
    _demo_file()
    tables: tuple[str, ...] = ()
    with show_errors():
        tables = named_sources()
    kinds = [UPLOAD, FILE, *([TABLE] if tables else [])]
    st.session_state["records_how"] = _kind_of_form(kinds)
    kind = st.radio(
        "Records",
        kinds,
        horizontal=True,
        key="records_how",
        persist_state="session",
        label_visibility="collapsed",
    )
    if kind == TABLE:
        st.selectbox(
            "Table",
            tables,
            key="records_table",
            persist_state="session",
            help="Counted inside the database; only counts are transferred.",
        )
    elif kind == UPLOAD:
        st.file_uploader(
            "Records file",
            type=sorted({ending.rpartition(".")[2] for ending in ENDINGS}),
            key="records_file",
            on_change=_hold_upload,
        )
    else:
        st.text_input("Records file", key="records_path", persist_state="session")
    file = source_of_form(rows, person)
    if file.upload is not None:
        st.caption(escape_markdown(f"Uploaded: {file.title}"))
    if not file.name:
        _encoding(file.title)
        _sheet(file.sheets)
    if person is not None:
        st.caption(
            escape_markdown(
                f"At most {pluralize(rows, 'row')} per person will count, by the column {person}."
            )
        )
    elif rows > 1 and _by_column(rows):
        st.text_input(
            "Person ID column",
            key="person_column",
            persist_state="session",
            help="Used only to limit rows per person; never published. Integers or text.",
        )
    _rows_are()
    return source_of_form(rows, person)


def _demo_file() -> None:
    """Propose the records of a demo, if the schema of the session is that of the demo."""
    schema = history.current().schema
    file = None if schema is None else demo_records.file_of(schema)
    if file is None or st.session_state.get("records_path") == str(file):
        return
    buttons.button(
        f"Use the demo's {pluralize(demo_records.row_count(file), 'record')} ({file.name})",
        _use_demo_file,
        file,
        key="use_demo_records",
        help="Public or simulated records, to try a release with a new ledger.",
    )


def _use_demo_file(file: Path) -> None:
    st.session_state.update(records_how=FILE, records_path=str(file))


def source_of_form(rows: int = 1, person: str | None = None) -> Source:
    """Return the records that were chosen in the form, without drawing it.

    The arguments are those of `source`.
    """
    form = st.session_state
    kind = _kind_of_form([UPLOAD, FILE, TABLE])
    name = (form.get("records_table") or "") if kind == TABLE else ""
    upload = history.page_state().get(UPLOADED) if kind == UPLOAD else None
    path = (form.get("records_path") or "") if kind == FILE else ""
    is_text = (upload.name if upload else path).strip().lower().endswith(TEXT_ENDINGS)
    sheets = () if name else _sheets(path, upload)
    by_column = person is None and rows > 1 and bool(form.get("person_how", True))
    rows_are = form.get("rows_are", RECORDS)
    return Source(
        path=path,
        upload=upload,
        name=name,
        by_column=by_column,
        column=(form.get("person_column") or "") if by_column else "",
        rows_are=rows_are,
        number=(form.get("number_column") or "") if rows_are != RECORDS else "",
        encoding=form.get("records_encoding", UTF_8) if is_text else UTF_8,
        sheet=(form.get("records_sheet") or "") if sheets else "",
        sheets=sheets,
    )


def draw_missing_upload(file_step: str, *, key: str) -> None:
    """Draw a note and a button to the step ``file_step`` if an upload is chosen but has no file.

    A reload, or opening another page, removes an uploaded file. ``key`` is the session key of the
    open step.
    """
    if _kind_of_form([UPLOAD, FILE, TABLE]) != UPLOAD or history.page_state().get(UPLOADED):
        return
    st.info("A reload or change of page removes uploaded files; choose the file again.", icon="↩️")
    wizard.back_button(file_step, key=key)


def _kind_of_form(kinds: Sequence[str]) -> str:
    """Return the chosen kind of source.

    By default it is a file on the server if the session has the path of one, for example after a
    reload; otherwise an upload.
    """
    kind = str(st.session_state.get("records_how"))
    if kind in kinds:
        return kind
    return FILE if st.session_state.get("records_path") else UPLOAD


def _hold_upload() -> None:
    """Store the uploaded file, because Streamlit drops it when the field is not drawn."""
    history.page_state()[UPLOADED] = st.session_state["records_file"]


def _copied(upload: UploadedFile) -> Path:
    """Write an upload to a private temporary file with the same ending; return its path."""
    name = upload.name.lower()
    fitting = [ending for ending in ENDINGS if name.endswith(ending)]
    file = private_tempdir.new_file("records", max(fitting, key=len, default=Path(name).suffix))
    file.write_bytes(upload.getbuffer())
    return file


def _sheets(path: str, upload: UploadedFile | None) -> tuple[str, ...]:
    """Return the names of the visible sheets of a workbook that are not empty, if there are several.

    The result is empty for a workbook with one such sheet, for any other kind of file, and for a
    file that cannot be read. The names of the last workbook are cached.
    """
    name = upload.name if upload is not None else path.strip()
    if not name.lower().endswith(SHEET_ENDINGS):
        return ()
    key: tuple[object, ...] = ()  # identifies the content of the file
    names: tuple[str, ...] = ()
    cached_key, cached_names = history.page_state().get(SHEETS, (None, ()))
    # Errors of invalid files are ignored here; the check and the release report them.
    with suppress(DataError, LimitExceeded, OSError):
        if upload is not None:
            key = "upload", upload.file_id
            if key == cached_key:
                return tuple(cached_names)
            copy = _copied(upload)
            try:
                names = tuple(visible_sheets(copy))
            finally:
                copy.unlink(missing_ok=True)
        else:
            file = file_access.readable(path, ENDINGS)
            key = str(file), file.stat().st_mtime_ns
            if key == cached_key:
                return tuple(cached_names)
            names = tuple(visible_sheets(file))
    names = names if len(names) > 1 else ()
    history.page_state()[SHEETS] = key, names
    return names


def _sheet(sheets: tuple[str, ...]) -> None:
    """Draw the choice of a sheet, if the workbook has several."""
    if not sheets:
        return
    if st.session_state.get("records_sheet") not in sheets:
        st.session_state.pop("records_sheet", None)  # the choice was for another workbook
    st.selectbox(
        "Sheet of the workbook", sheets, index=None, key="records_sheet", persist_state="session"
    )


def _encoding(name: str) -> None:
    """Draw the choice of the encoding, if ``name`` is the name of a text file."""
    if name.strip().lower().endswith(TEXT_ENDINGS):
        st.selectbox(
            "Encoding",
            list(ENCODINGS),
            format_func=ENCODINGS.__getitem__,
            key="records_encoding",
            persist_state="session",
            help="Most files are UTF-8. A wrong encoding changes letters such as ö.",
        )


def _rows_are() -> None:
    """Draw the choice of what a row is, and if necessary the field for the columns."""
    rows_are = st.radio(
        "Is there a column of counts or weights?",
        list(ROWS_ARE),
        format_func=ROWS_ARE.__getitem__,
        horizontal=True,
        key="rows_are",
        persist_state="session",
        help=(
            f"Choose “{ROWS_ARE[COUNTED]}” if each row stands for as many records as the column"
            f" states. Sampling weights are not counts: choose “{ROWS_ARE[IGNORED]}”."
        ),
    )
    if rows_are != RECORDS:
        label = "Column of counts" if rows_are == COUNTED else "Columns to ignore (comma-separated)"
        st.text_input(label, key="number_column", persist_state="session")


def _by_column(rows: int) -> bool:
    """Draw the choice of how the rows per person are limited.

    Return True if a person ID column limits them, False if no person has more than ``rows`` rows.
    """
    caps = {
        True: f"Count at most {rows:,} rows per person",
        False: f"No person has more than {rows:,} rows",
    }
    return bool(
        st.radio(
            "Rows per person",
            list(caps),
            format_func=caps.__getitem__,
            key="person_how",
            persist_state="session",
        )
    )
