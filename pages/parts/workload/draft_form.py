"""A schema drafted from a data dictionary, a labelled file or a public table, line by line to
confirm.

And the way out for a file of records.
"""

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
TEXT_TABLES = (
    "csv",
    "tsv",
    "txt",
    "dat",
)  # endings of texts that may be a schema, a dictionary or records
SHEETS, SHEET_NAME = "draft_sheets", "draft_sheet_name"
SOURCE = "draft_source"  # key of the uploader whose file was read last
DRAFT, LINE = "drafted_schema", "draft_"
MISSING = "draft_missing_values"
SHOWN = 12  # values of an attribute
LARGEST = 200  # megabytes of a file that is read here


def take(name: str, content: bytes, *, sheet: str | None = None) -> None:
    """Take an uploaded schema; keep a dictionary to be confirmed, and of records nothing but their
    column names.
    """
    cache = clear("schema_file")
    if name.lower().endswith(SHEET_ENDINGS):
        with _on_disk(name, content) as place:
            sheets = visible_sheets(place)
        cache[SHEETS] = "schema_file", sheets
        if sheet is None and len(sheets) > 1:
            raise DataError(f"{name[:60]!r} has {len(sheets):,} sheets; choose one by SheetFile.")
    name, content = as_text(
        name, content, sheet, empty_rows=True
    )  # so that errors name the row of the sheet
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
    """Name and content of a public file, as CSV where it was a workbook."""
    if not name.lower().endswith(SHEET_ENDINGS):
        return name, content
    with _on_disk(name, content) as place:
        return f"{name}.csv", sheet_text(place, sheet, empty_rows=empty_rows).encode()


def sheet_choice() -> None:
    """Draw the choice of a sheet, where a workbook was given that has several."""
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
    """Read the sheet that was chosen of the workbook that was given."""
    file, sheet = st.session_state.get(key), st.session_state.get(SHEET_NAME)
    if file is None or sheet is None:
        return
    if key == "public_file":
        _take(key, lambda place: _draft_public(place, sheet))
    else:
        with deferred_errors("start"):
            take(file.name, file.getvalue(), sheet=sheet)
    st.session_state[SHEET_NAME] = sheet


def _draft_public(place: Path, sheet: str | None = None) -> DraftSchema:
    """Draft from a public table; the sheets of a workbook are kept, so that one of them can be
    chosen.
    """
    if place.name.lower().endswith(SHEET_ENDINGS):
        history.page_state()[SHEETS] = "public_file", visible_sheets(place)
    return draft_of_public(place if sheet is None else SheetFile(path=place, sheet=sheet))


@contextmanager
def _on_disk(name: str, content: bytes | memoryview) -> Iterator[Path]:
    """An uploaded file where readers find it, and its name; it goes at once."""
    with tempfile.TemporaryDirectory(prefix="draft_", dir=private_tempdir.folder()) as folder:
        place = Path(folder) / Path(name).name[-100:]  # file systems limit names
        place.write_bytes(content)
        yield place


def clear(source: str = "") -> dict[str, object]:
    """Remove the draft and note the uploader of the next one; return what this session stores for
    the page.
    """
    cache: dict[str, object] = history.page_state()
    for key in (DICTIONARY, RECORDS, DRAFT, SHEETS):
        cache.pop(key, None)
    cache[SOURCE] = source
    st.session_state.pop(SHEET_NAME, None)
    for key in [
        k for k in st.session_state if str(k) == AGREED or str(k).removeprefix(LINE).isdecimal()
    ]:
        del st.session_state[key]  # what was ticked for one file is not agreed for the next
    st.session_state.pop(MISSING, None)
    return cache


def remove(key: str) -> None:
    """Remove the draft and the error of a file that was removed from its uploader."""
    if history.page_state().get(SOURCE) == key:
        with deferred_errors("start"):
            clear()


def other_files() -> None:
    """Draw where to give a file whose labels make a schema, or a table that anybody may have."""
    with st.expander(
        "Or draft one from a labelled file of Stata, SPSS or SAS, or from a public table"
    ):
        st.file_uploader(
            "Labelled file: its labels are read, and none of its records",
            type=LABELLED_ENDINGS,
            key="labelled_file",
            on_change=_take,
            args=("labelled_file", draft_schema),
            max_upload_size=LARGEST,
        )
        public = st.checkbox(
            "Anybody may have the table that I give below: it is published",
            key="draft_is_public",
            on_change=remove,
            args=("public_file",),
        )
        st.file_uploader(
            "Public table: its values are read",
            type=sorted(RECORD_ENDINGS),
            # the other key removes a file that was given before the box was unticked
            key="public_file" if public else "public_file_disabled",
            on_change=_take,
            args=("public_file", _draft_public),
            max_upload_size=LARGEST,
            disabled=not public,
            help=(
                None
                if public
                else "The values of records that are not public must not make a schema."
            ),
        )


def _take(key: str, read: Callable[[Path], DraftSchema]) -> None:
    """Keep the draft that an uploaded file makes."""
    file = st.session_state.get(key)
    if file is None:
        remove(key)
        return
    cache = clear(key)  # first, so that a file that cannot be read leaves no draft of another one
    with _on_disk(file.name, file.getbuffer()) as place, deferred_errors("start"):
        cache[DRAFT] = read(place)


def draw() -> None:
    """Draw what a file that is no schema needs, if one was given."""
    sheet_choice()
    if (draft := history.page_state().get(DRAFT)) is not None:
        _other_draft(draft)
    if columns := history.page_state().get(RECORDS):
        _way_out(columns)
    if history.page_state().get(DICTIONARY) is not None:
        _draft(history.page_state()[DICTIONARY])


def _way_out(columns: tuple[str, ...]) -> None:
    with st.container(border=True):
        st.warning(
            f"This looks like a file of records: it names {pluralize(len(columns), 'column')}."
            " Records are never read for a schema, because a value that is there once would give"
            " somebody away. Nothing of it was kept but these names. Fill the template in from a"
            " questionnaire or a code book and upload it; the records come in on the page"
            " Release.",
            icon="🛑",
        )
        names = schema_template(columns)
        st.download_button(
            "Template with these columns", names, "schema.csv", "text/csv", on_click="ignore"
        )


def _draft(content: bytes) -> None:
    with st.container(border=True):
        st.subheader("Drafted from your data dictionary")
        hold = st.radio(
            "Where a value has a code and a label, your records hold the",
            HOLD,
            horizontal=True,
            key="draft_hold",
        )
        with deferred_errors("start"):
            draft = draft_from_dictionary(content, hold=hold)
            _left_to_the_person(draft)
            _confirm(draft.schema)


def _other_draft(draft: DraftSchema) -> None:
    with st.container(border=True):
        st.subheader("Drafted from your file")
        _left_to_the_person(draft)
        _confirm(draft.schema)


def _left_to_the_person(draft: DraftSchema) -> None:
    """Draw which columns have no attribute, why, and what the draft leaves out of the others."""
    if draft.reasons:
        names = [name or "(no name)" for name in draft.reasons]
        listed = ", ".join(names[:SHOWN]) + (", …" if len(names) > SHOWN else "")
        st.info(
            escape_markdown(
                f"No attribute was drafted for {listed}. Add by hand below those that you need."
            )
        )
        reasons = {"Column": names, "Reason": list(draft.reasons.values())}
        st.dataframe(
            reasons, hide_index=True, key="draft_reasons", alt="Why columns have no attribute"
        )
    for note in draft.notes[:SHOWN]:
        st.caption(escape_markdown(note))
    if len(draft.notes) > SHOWN:
        st.caption(f"{pluralize(len(draft.notes) - SHOWN, 'more note')}.")


def _confirm(schema: Schema) -> None:
    st.caption(
        "Look at every line: are these all values that there can be, and is none of them there by"
        " chance?"
    )
    agreed = []
    confirmed = st.checkbox("I have looked at all of them", key=AGREED)
    for number, attribute in enumerate(schema.attributes):
        values = ", ".join(attribute.label(i) for i in range(min(attribute.size, SHOWN)))
        more = f", … {attribute.label(attribute.size - 1)}" if attribute.size > SHOWN else ""
        integer_note = ", whole numbers only" if attribute.integer else ""
        missing = (
            f", missing: {', '.join(attribute.missing_values)}" if attribute.missing_values else ""
        )
        words = escape_markdown(
            f"{attribute.name}: {pluralize(attribute.size, 'cell')}"
            f" ({values}{more}){integer_note}{missing}"
        )
        if st.checkbox(words, key=f"{LINE}{number}", disabled=confirmed) or confirmed:
            agreed.append(attribute)
    st.multiselect(
        "Texts in the records that mean missing (empty: none)",
        DEFAULT_MISSING_TEXTS,
        key=MISSING,
        accept_new_options=True,
        help=(
            "They count as missing values in all confirmed attributes that do not have them as"
            " labels. You can change them for each attribute in the table of the schema."
        ),
    )
    buttons.button(
        f"Use {pluralize(len(agreed), 'confirmed attribute')}",
        _use,
        tuple(agreed),
        key="use_draft",
        disabled=not agreed,
        help=None if agreed else "Tick the lines that are right.",
        type="primary",
    )


def _use(agreed: tuple[Attribute, ...]) -> None:
    with deferred_errors("start"):
        history.choose_schema(Schema(agreed).with_missing_values(st.session_state.get(MISSING, ())))
    clear()
