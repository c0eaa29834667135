"""Uploads of schema files, data dictionaries, records (names only) and public tables."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import streamlit as st

from engine._format import pluralize
from engine.errors import DataError
from engine.records import SheetFile, column_names
from engine.records.subprocess_readers import (
    LABELLED_ENDINGS,
    SHEET_ENDINGS,
    draft_schema,
    sheet_text,
    visible_sheets,
)
from engine.release.public_draft import draft_of_public
from engine.workload import DEFAULT_MISSING_TEXTS, Attribute, DraftSchema, Schema
from engine.workload.schema_tables import (
    HOLD,
    columns_of_json_records,
    columns_of_records,
    draft_from_dictionary,
    is_dictionary,
)
from pages.parts.jobs import private_tempdir
from pages.parts.schema import grid
from pages.parts.shell import buttons, history
from pages.parts.shell.error_text import deferred_errors, escape_markdown

# Keys of the page state for the content of a dictionary, and for the column names of records.
DICTIONARY, RECORDS = "dictionary", "columns_of_records"
AGREED = "draft_agreed"  # key of the checkbox that confirms all lines of a draft
JSON_ENDINGS = ("json", "jsonl", "ndjson")
# Extensions of text files, which may contain a schema, a dictionary or records.
TEXT_TABLES = ("csv", "tsv", "txt", "dat")
SHEETS = "draft_sheets"  # key of the page state: key of the uploader, sheets of its workbook
SHEET_NAME = "draft_sheet_name"  # key of the choice of a sheet
SOURCE = "draft_source"  # key of the page state: key of the uploader of the last file
DRAFT = "drafted_schema"  # key of the page state: schema to be confirmed
LINE = "draft_"  # prefix of the keys of the checkboxes that confirm one line of a draft
MISSING = "draft_missing_values"  # key of the field for missing codes
MAX_SHOWN = 12  # values of an attribute, notes or names
MAX_UPLOAD_MB = 200
MAX_HEAD = 2**20  # bytes of a table that are read to find its header
TAKEN = "draft_taken"  # key of the page state: True after a file was read without error
KEYS = (DICTIONARY, RECORDS, DRAFT)  # keys of the page state that Start passes on to Schema


def take(key: str, name: str, content: bytes, *, sheet: str | None = None) -> None:
    """Use an uploaded file according to its content.

    - A schema becomes the schema of the session.
    - A data dictionary, or a file with value labels, is stored as a draft for confirmation.
    - Of records, only the column names are read; each becomes a row of the grid.

    DataError is raised for a file without column names.

    Parameters
    ----------
    key : key of the uploader.
    sheet : sheet of a workbook with several sheets.
    """
    cache = clear(key)
    ending = name.lower()
    if ending.endswith(LABELLED_ENDINGS):
        with _temporary_file(name, content) as path:
            cache[DRAFT] = draft_schema(path)
    elif ending.endswith((*JSON_ENDINGS, *TEXT_TABLES, *SHEET_ENDINGS)):
        _take_table(cache, key, name, content, sheet)
    else:
        with _temporary_file(name, content) as path:
            cache[RECORDS] = tuple(column_names(path))
        if not cache[RECORDS]:
            raise DataError(
                f"The file {name[:60]!r} has no column names that can be read. Open a schema, a"
                " data dictionary, or records as CSV, Excel or Parquet."
            )
    if names := cache.get(RECORDS):
        grid.set_names(names)
    cache[TAKEN] = True


def _take_table(
    cache: dict[str, Any], key: str, name: str, content: bytes, sheet: str | None
) -> None:
    """Use a JSON file, text table or sheet: a data dictionary, records or a schema.

    A dictionary, the column names of records, or the sheet names of a workbook are stored in
    ``cache``, the page state. A schema becomes the schema of the session.
    """
    if name.lower().endswith(SHEET_ENDINGS):
        with _temporary_file(name, content) as path:
            sheets = visible_sheets(path)
        cache[SHEETS] = key, sheets
        if sheet is None and len(sheets) > 1:
            raise DataError(
                f"{name[:60]!r} has {len(sheets):,} sheets. Choose one in “Sheet of the workbook”."
            )
    # Empty rows are retained, so that row numbers in error messages are those of the sheet.
    name, content = as_text(name, content, sheet, empty_rows=True)
    is_table = name.lower().endswith(TEXT_TABLES)
    head = content if len(content) <= MAX_HEAD else content[:MAX_HEAD].rpartition(b"\n")[0]
    if is_table and is_dictionary(head):
        cache[DICTIONARY] = content
        return
    columns = columns_of_records(head) if is_table else columns_of_json_records(content)
    if columns:
        cache[RECORDS] = columns
        return
    schema = Schema.from_csv(content) if is_table else Schema.from_json(content)
    grid.clear()
    history.choose_schema(schema)


def upload() -> None:
    """Draw the uploader for schema files, data dictionaries and records."""
    st.file_uploader(
        "Fill the grid from a file: records (column names only), schema or data dictionary",
        key="schema_file",
        on_change=use_upload,
        args=("schema_file", "start"),
        max_upload_size=MAX_UPLOAD_MB,
        help=(
            "Of records, only the column names are read. Schema as CSV or sheet: one row per"
            " attribute, columns name, kind, size, labels, edges, other, missing, clip (optional:"
            " integer, missing_values, decimal, thousands, start, stop, unit, date_format). A row"
            " of kind person: name is the person ID column, size the maximum rows per person. Data"
            " dictionary: columns name, value, label (one row per value), or name, values."
        ),
    )


def use_upload(key: str, place: str) -> None:
    """Use the file of an uploader; if the user removed the file, remove what was read from it.

    ``place`` is the key under which an error is stored, see `deferred_errors`.
    """
    file = st.session_state.get(key)
    if file is None:
        remove(key, place)
        return
    with deferred_errors(place):
        take(key, file.name, file.getvalue())


def as_text(
    name: str, content: bytes, sheet: str | None = None, *, empty_rows: bool = False
) -> tuple[str, bytes]:
    """Return name and content of a public file; a workbook is converted to CSV.

    ``sheet`` and ``empty_rows`` are parameters of `sheet_text`.
    """
    if not name.lower().endswith(SHEET_ENDINGS):
        return name, content
    with _temporary_file(name, content) as path:
        return f"{name}.csv", sheet_text(path, sheet, empty_rows=empty_rows).encode()


def sheet_choice(place: str, after: Callable[[], None] | None = None) -> None:
    """Draw the choice of a sheet, if the uploaded workbook has several.

    Parameters
    ----------
    place : key under which an error is stored, see `deferred_errors`.
    after : called after a sheet was read, if given.
    """
    key, sheets = history.page_state().get(SHEETS, ("", ()))
    if len(sheets) > 1:
        st.selectbox(
            "Sheet of the workbook",
            sheets,
            index=None,
            key=SHEET_NAME,
            on_change=_take_sheet,
            args=(key, place, after),
        )


def _take_sheet(key: str, place: str, after: Callable[[], None] | None) -> None:
    """Read the chosen sheet of the uploaded workbook; then call ``after``, if it is given."""
    file, sheet = st.session_state.get(key), st.session_state.get(SHEET_NAME)
    if file is None or sheet is None:
        return
    if key == "public_file":
        _take_public(sheet)
    else:
        with deferred_errors(place):
            take(key, file.name, file.getvalue(), sheet=sheet)
            if after is not None:
                after()
    st.session_state[SHEET_NAME] = sheet


def _draft_public(path: Path, sheet: str | None = None) -> DraftSchema:
    """Return the schema drafted from a public table, or from a sheet of a workbook.

    The names of the sheets of a workbook are stored, so that `sheet_choice` can offer them.
    """
    if path.name.lower().endswith(SHEET_ENDINGS):
        history.page_state()[SHEETS] = "public_file", visible_sheets(path)
    return draft_of_public(path if sheet is None else SheetFile(path=path, sheet=sheet))


@contextmanager
def _temporary_file(name: str, content: bytes | memoryview) -> Iterator[Path]:
    """Write uploaded content to a temporary file of this name; delete it when the block ends."""
    with tempfile.TemporaryDirectory(prefix="draft_", dir=private_tempdir.folder()) as folder:
        path = Path(folder) / Path(name).name[-100:]  # file systems limit the length of names
        path.write_bytes(content)
        yield path


def clear(source: str = "") -> dict[str, Any]:
    """Remove everything that was read from the last uploaded file; return the page state.

    ``source`` is the key of the uploader whose file is read next. It is stored: if the user removes
    the file of another uploader, `remove` does nothing.
    """
    cache: dict[str, Any] = history.page_state()
    for key in (*KEYS, SHEETS, TAKEN):
        cache.pop(key, None)
    cache[SOURCE] = source
    st.session_state.pop(SHEET_NAME, None)
    for key in [
        k for k in st.session_state if str(k) == AGREED or str(k).removeprefix(LINE).isdecimal()
    ]:
        del st.session_state[key]  # a confirmation applies to one file
    st.session_state.pop(MISSING, None)
    return cache


def remove(key: str, place: str) -> None:
    """Remove the draft and the error of an uploaded file, after the user removed that file.

    ``key`` is the key of the uploader, ``place`` the key of the error. Nothing happens if the last
    file came from another uploader.
    """
    if history.page_state().get(SOURCE) == key:
        with deferred_errors(place):
            clear()


def public_table() -> None:
    """Draw a checkbox that confirms that a table is public; if checked, also the uploader for it.

    Unlike for records, the values of the table are read.
    """
    public = st.checkbox(
        "This table is published; it contains no private data",
        key="draft_is_public",
        on_change=remove,
        args=("public_file", "start"),
    )
    if public:
        st.file_uploader(
            "Public table (values are read)",
            key="public_file",
            on_change=_take_public,
            max_upload_size=MAX_UPLOAD_MB,
        )


def _take_public(sheet: str | None = None) -> None:
    """Store the draft from the uploaded public table; without a table, remove the last draft."""
    file = st.session_state.get("public_file")
    if file is None:
        remove("public_file", "start")
        return
    # The last draft is removed first, so that it is also gone if the file cannot be read.
    cache = clear("public_file")
    with _temporary_file(file.name, file.getbuffer()) as path, deferred_errors("start"):
        cache[DRAFT] = _draft_public(path, sheet)


def draw() -> None:
    """Draw what the user has to do next after uploading a file that is not a schema.

    For a workbook: choose the sheet. For a data dictionary or a file with value labels: confirm the
    drafted attributes. For records: enter the possible values.
    """
    sheet_choice("start")
    cache = history.page_state()
    if (draft := cache.get(DRAFT)) is not None:
        with st.container(border=True):
            st.subheader("Draft from your file")
            _show_gaps(draft)
            _confirm(draft)
    if columns := cache.get(RECORDS):
        st.info(
            f"Of the records, only the {pluralize(len(columns), 'column name')} were read: a schema"
            " must not depend on records, because a rare value would reveal a person. Enter the"
            " possible values from a questionnaire or code book.",
            icon="ℹ️",
        )
    if cache.get(DICTIONARY) is not None:
        _confirm_dictionary(cache[DICTIONARY])


def _confirm_dictionary(content: bytes) -> None:
    """Draw the attributes drafted from a dictionary for confirmation.

    A dictionary has codes and labels; the user chooses which of them the records contain.
    """
    with st.container(border=True):
        st.subheader("Draft from your data dictionary")
        hold = st.radio(
            "Values in your records",
            HOLD,
            horizontal=True,
            key="draft_hold",
        )
        with deferred_errors("start"):
            draft = draft_from_dictionary(content, hold=hold)
            _show_gaps(draft)
            _confirm(draft)


def _show_gaps(draft: DraftSchema) -> None:
    """Draw the columns for which no attribute was drafted, with reasons, and notes on the draft."""
    if draft.reasons:
        names = [name or "(no name)" for name in draft.reasons]
        names_text = ", ".join(names[:MAX_SHOWN]) + (", and more" if len(names) > MAX_SHOWN else "")
        st.info(
            escape_markdown(
                f"No attribute was drafted for {names_text}. Enter their values in the grid."
            )
        )
        reasons = {"Column": names, "Reason": list(draft.reasons.values())}
        st.dataframe(
            reasons, hide_index=True, key="draft_reasons", alt="Why columns have no attribute"
        )
    for note in draft.notes[:MAX_SHOWN]:
        st.caption(escape_markdown(note))
    if len(draft.notes) > MAX_SHOWN:
        st.caption(f"{pluralize(len(draft.notes) - MAX_SHOWN, 'more note')}.")


def _confirm(draft: DraftSchema) -> None:
    """Draw a checkbox per drafted attribute, and the button that uses the checked attributes."""
    st.caption("Check every line: all possible values, and none that only one person has.")
    attributes = []
    confirmed = st.checkbox("I checked all lines", key=AGREED)
    for number, attribute in enumerate(draft.schema.attributes):
        values = ", ".join(attribute.label(i) for i in range(min(attribute.size, MAX_SHOWN)))
        more = f", … {attribute.label(attribute.size - 1)}" if attribute.size > MAX_SHOWN else ""
        integer_note = ", integers" if attribute.integer else ""
        missing = (
            f", missing: {', '.join(attribute.missing_values)}" if attribute.missing_values else ""
        )
        line = escape_markdown(
            f"{attribute.name}: {pluralize(attribute.size, 'cell')}"
            f" ({values}{more}){integer_note}{missing}"
        )
        if st.checkbox(line, key=f"{LINE}{number}", disabled=confirmed) or confirmed:
            attributes.append(attribute)
    st.multiselect(
        "Missing codes in the records (optional)",
        DEFAULT_MISSING_TEXTS,
        key=MISSING,
        accept_new_options=True,
        help="Applied to all confirmed attributes without such a label.",
    )
    with st.container(horizontal=True):
        buttons.button(
            f"Use {pluralize(len(attributes), 'confirmed attribute')}",
            _use,
            tuple(attributes),
            tuple(draft.reasons),
            key="use_draft",
            disabled=not attributes,
            help=None if attributes else "Select at least one line.",
            type="primary",
        )
        buttons.button("Discard draft", _discard, key="discard_draft")


def _discard() -> None:
    """Remove the draft without using it."""
    clear()


def _use(attributes: tuple[Attribute, ...], names: tuple[str, ...]) -> None:
    """Make a schema of the confirmed attributes.

    ``names`` are the columns for which no attribute was drafted. Each becomes a row of the grid, in
    which the user can enter values.
    """
    with deferred_errors("start"):
        schema = Schema(attributes).with_missing_values(st.session_state.get(MISSING, ()))
        grid.clear()
        history.choose_schema(schema)
        grid.set_names(names)
    clear()
