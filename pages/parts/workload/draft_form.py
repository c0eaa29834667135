"""Forms that draft a schema from a data dictionary, labelled file or public table."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import streamlit as st

from engine._format import pluralize
from engine.errors import DataError
from engine.records import RECORD_ENDINGS, SheetFile
from engine.records.subprocess_readers import (
    LABELLED_ENDINGS,
    SHEET_ENDINGS,
    draft_schema,
    sheet_text,
    visible_sheets,
)
from engine.release.public_draft import draft_of_public
from engine.workload import DEFAULT_MISSING_TEXTS, Attribute, DraftSchema, Schema
from engine.workload.schema_draft import (
    HOLD,
    columns_of_json_records,
    columns_of_records,
    draft_from_dictionary,
    is_dictionary,
    schema_template,
)
from pages.parts.jobs import private_tempdir
from pages.parts.shell import buttons, history
from pages.parts.shell.error_text import deferred_errors, escape_markdown
from pages.parts.workload.schema_table import read_schema

DICTIONARY, RECORDS, AGREED = "dictionary", "columns_of_records", "draft_agreed"
JSON_ENDINGS = ("json", "jsonl", "ndjson")
# extensions of text files that may contain a schema, a dictionary or records
TEXT_TABLES = ("csv", "tsv", "txt", "dat")
SHEETS, SHEET_NAME = "draft_sheets", "draft_sheet_name"
SOURCE = "draft_source"  # key of the uploader of the last file
DRAFT, LINE = "drafted_schema", "draft_"
MISSING = "draft_missing_values"
MAX_SHOWN = 12  # values of an attribute, notes or names
MAX_UPLOAD_MB = 200


def take(name: str, content: bytes, *, sheet: str | None = None) -> None:
    """Use an uploaded schema, or store a dictionary for confirmation.

    Of a records file only the column names are stored.
    """
    cache = clear("schema_file")
    if name.lower().endswith(SHEET_ENDINGS):
        with _temporary_file(name, content) as path:
            sheets = visible_sheets(path)
        cache[SHEETS] = "schema_file", sheets
        if sheet is None and len(sheets) > 1:
            raise DataError(f"{name[:60]!r} has {len(sheets):,} sheets. Choose one in SheetFile.")
    # with empty rows, so that errors name the row of the sheet
    name, content = as_text(name, content, sheet, empty_rows=True)
    is_table = name.lower().endswith(TEXT_TABLES)
    if is_table and is_dictionary(content):
        cache[DICTIONARY] = content
    elif columns := columns_of_records(content) if is_table else columns_of_json_records(content):
        cache[RECORDS] = columns
    else:
        history.choose_schema(read_schema(f"{name}.csv" if is_table else name, content))


def as_text(
    name: str, content: bytes, sheet: str | None = None, *, empty_rows: bool = False
) -> tuple[str, bytes]:
    """Return name and content of a public file; a workbook is converted to CSV."""
    if not name.lower().endswith(SHEET_ENDINGS):
        return name, content
    with _temporary_file(name, content) as path:
        return f"{name}.csv", sheet_text(path, sheet, empty_rows=empty_rows).encode()


def sheet_choice() -> None:
    """Draw the choice of a sheet, if the workbook has several."""
    key, sheets = history.page_state().get(SHEETS, ("", ()))
    if len(sheets) > 1:
        st.selectbox(
            "Sheet of the workbook",
            sheets,
            index=None,
            key=SHEET_NAME,
            on_change=_take_sheet,
            args=(key,),
        )


def _take_sheet(key: str) -> None:
    """Read the chosen sheet of the uploaded workbook."""
    file, sheet = st.session_state.get(key), st.session_state.get(SHEET_NAME)
    if file is None or sheet is None:
        return
    if key == "public_file":
        _take(key, lambda path: _draft_public(path, sheet))
    else:
        with deferred_errors("start"):
            take(file.name, file.getvalue(), sheet=sheet)
    st.session_state[SHEET_NAME] = sheet


def _draft_public(path: Path, sheet: str | None = None) -> DraftSchema:
    """Draft from a public table; store the sheets of a workbook for `sheet_choice`."""
    if path.name.lower().endswith(SHEET_ENDINGS):
        history.page_state()[SHEETS] = "public_file", visible_sheets(path)
    return draft_of_public(path if sheet is None else SheetFile(path=path, sheet=sheet))


@contextmanager
def _temporary_file(name: str, content: bytes | memoryview) -> Iterator[Path]:
    """Write an uploaded file to a temporary folder with its name; delete it at the end."""
    with tempfile.TemporaryDirectory(prefix="draft_", dir=private_tempdir.folder()) as folder:
        path = Path(folder) / Path(name).name[-100:]  # file systems limit names
        path.write_bytes(content)
        yield path


def clear(source: str = "") -> dict[str, object]:
    """Remove the draft, store the uploader of the next one, and return the state of the page."""
    cache: dict[str, object] = history.page_state()
    for key in (DICTIONARY, RECORDS, DRAFT, SHEETS):
        cache.pop(key, None)
    cache[SOURCE] = source
    st.session_state.pop(SHEET_NAME, None)
    for key in [
        k for k in st.session_state if str(k) == AGREED or str(k).removeprefix(LINE).isdecimal()
    ]:
        del st.session_state[key]  # a confirmation applies to one file
    st.session_state.pop(MISSING, None)
    return cache


def remove(key: str) -> None:
    """Remove the draft and the error of a file after its removal from the uploader."""
    if history.page_state().get(SOURCE) == key:
        with deferred_errors("start"):
            clear()


def other_files() -> None:
    """Draw the uploaders for a labelled file and for a public table."""
    with st.expander("Draft from a labelled file (Stata, SPSS, SAS) or a public table"):
        st.file_uploader(
            "Labelled file (labels are read, records are not)",
            type=LABELLED_ENDINGS,
            key="labelled_file",
            on_change=_take,
            args=("labelled_file", draft_schema),
            max_upload_size=MAX_UPLOAD_MB,
        )
        public = st.checkbox(
            "This table is published; it contains no private data",
            key="draft_is_public",
            on_change=remove,
            args=("public_file",),
        )
        st.file_uploader(
            "Public table (values are read)",
            type=sorted(RECORD_ENDINGS),
            # the key for the disabled state removes an uploaded file
            key="public_file" if public else "public_file_disabled",
            on_change=_take,
            args=("public_file", _draft_public),
            max_upload_size=MAX_UPLOAD_MB,
            disabled=not public,
            help=None if public else "Confirm first that this table is published.",
        )


def _take(key: str, read: Callable[[Path], DraftSchema]) -> None:
    """Store the draft from an uploaded file."""
    file = st.session_state.get(key)
    if file is None:
        remove(key)
        return
    cache = clear(key)  # first: an unreadable file also removes the last draft
    with _temporary_file(file.name, file.getbuffer()) as path, deferred_errors("start"):
        cache[DRAFT] = read(path)


def draw() -> None:
    """Draw the next step for an uploaded file that is not a schema."""
    sheet_choice()
    if (draft := history.page_state().get(DRAFT)) is not None:
        _confirm_file(draft)
    if columns := history.page_state().get(RECORDS):
        _offer_template(columns)
    if history.page_state().get(DICTIONARY) is not None:
        _confirm_dictionary(history.page_state()[DICTIONARY])


def _offer_template(columns: tuple[str, ...]) -> None:
    with st.container(border=True):
        st.warning(
            f"This looks like a records file with {pluralize(len(columns), 'column')}. A schema"
            " must not depend on records: a rare value would reveal a person. Only the column names"
            " were kept. Fill in the template from a questionnaire or code book, then upload it."
            " Upload records on the Release page.",
            icon="🛑",
        )
        template = schema_template(columns)
        st.download_button(
            "Download template", template, "schema.csv", "text/csv", on_click="ignore"
        )


def _confirm_dictionary(content: bytes) -> None:
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
            _confirm(draft.schema)


def _confirm_file(draft: DraftSchema) -> None:
    with st.container(border=True):
        st.subheader("Draft from your file")
        _show_gaps(draft)
        _confirm(draft.schema)


def _show_gaps(draft: DraftSchema) -> None:
    """Draw the columns without an attribute, with reasons, and the notes of the draft."""
    if draft.reasons:
        names = [name or "(no name)" for name in draft.reasons]
        listed = ", ".join(names[:MAX_SHOWN]) + (", …" if len(names) > MAX_SHOWN else "")
        st.info(
            escape_markdown(
                f"No attribute was drafted for {listed}. Add the attributes you need below."
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


def _confirm(schema: Schema) -> None:
    st.caption("Check every line: all possible values, and none that only one person has.")
    agreed = []
    confirmed = st.checkbox("I checked all lines", key=AGREED)
    for number, attribute in enumerate(schema.attributes):
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
            agreed.append(attribute)
    st.multiselect(
        "Missing codes in the records (optional)",
        DEFAULT_MISSING_TEXTS,
        key=MISSING,
        accept_new_options=True,
        help="Applied to all confirmed attributes without such a label.",
    )
    buttons.button(
        f"Use {pluralize(len(agreed), 'confirmed attribute')}",
        _use,
        tuple(agreed),
        key="use_draft",
        disabled=not agreed,
        help=None if agreed else "Select at least one line.",
        type="primary",
    )


def _use(agreed: tuple[Attribute, ...]) -> None:
    with deferred_errors("start"):
        history.choose_schema(Schema(agreed).with_missing_values(st.session_state.get(MISSING, ())))
    clear()
