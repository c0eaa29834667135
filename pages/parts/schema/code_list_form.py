"""Form for a code list with levels, such as the regions and states of counties."""

from __future__ import annotations

from pathlib import PurePath

import streamlit as st

from engine._format import pluralize
from engine.errors import EngineError
from engine.records.subprocess_readers import SHEET_ENDINGS
from engine.workload import Attribute, CodeList, Schema
from pages.parts.schema import draft_form, grid
from pages.parts.shell import buttons, history
from pages.parts.shell.error_text import (
    deferred_errors,
    error_text,
    escape_markdown,
    show_deferred_error,
    show_error,
)

PLACE = "code_list"  # key of the errors of the buttons
# Session key of the number of code lists that were added. The number is part of the keys of the
# fields, so that the fields are empty after an addition.
SERIAL = "code_list_serial"
MESSAGE = "code_list_message"  # key of the page state: text about the code list added last
MAX_UPLOAD_MB = 50
MAX_SHOWN = 3  # example codes in a sentence
NEW = "New column"
PASTED = "areas"  # name of the levels of a pasted list
EXAMPLE = "code,label,parent,level\nN,North,,region\n01,Ayle,N,\n02,Borne,N,"


def draw(schema: Schema | None) -> None:
    """Draw the fields for a new code list, its summary, and the code lists of the schema."""
    st.markdown("**Code list with levels**")
    serial = st.session_state.get(SERIAL, 0)
    names = [] if schema is None else [a.name for a in schema.attributes if a.labels is not None]
    names += [name for name in grid.incomplete_names() if name not in names]
    places = iter(st.columns(3))
    choice = NEW
    if names:
        choice = next(places).selectbox(
            "Column with the codes",
            [NEW, *names],
            key=f"code_list_column_{serial}",
            persist_state="session",
        )
    column = choice
    if choice == NEW:
        column = (
            next(places)
            .text_input(
                "Name of the new column",
                key=f"code_list_new_{serial}",
                placeholder="county",
                persist_state="session",
            )
            .strip()
        )
    levels = next(places).text_input(
        "Level names, coarse to fine (optional)",
        key=f"code_list_levels_{serial}",
        placeholder="region, state",
        persist_state="session",
        help="Without the total and the codes. Blank: the names in the list, or level 1, level 2.",
    )
    left, right = st.columns(2)
    file = left.file_uploader(
        "Code list (CSV, Excel or .hrc)",
        type=["csv", "tsv", "txt", "hrc", *SHEET_ENDINGS],
        key=f"code_list_file_{serial}",
        max_upload_size=MAX_UPLOAD_MB,
        help=(
            "Columns code, label, parent and optionally level, one row per code; the parent is a"
            " code, or blank at the top. Or an .hrc file of tau-Argus or sdcTable. Codes are texts:"
            " leading zeros count. Areas are shown by their labels, the finest codes by the code."
        ),
    )
    text = right.text_area(
        "Or paste the list",
        key=f"code_list_text_{serial}",
        placeholder=EXAMPLE,
        persist_state="session",
    )
    name = PASTED if file is None else PurePath(file.name).stem
    attribute = schema[column] if schema is not None and column in schema else None
    if attribute is not None and attribute.hierarchies:
        name = st.text_input(
            "Name of these levels",
            name,
            key=f"code_list_name_{serial}_{name}",
            help=f"Must differ from: {', '.join(h.name for h in attribute.hierarchies)}.",
        )
    code_list = None
    if file is not None or text.strip():
        try:
            content = text if file is None else draft_form.as_text(file.name, file.getvalue())[1]
            names_of_levels = tuple(one.strip() for one in levels.split(",") if one.strip())
            code_list = _code_list(content, name, names_of_levels)
        except (EngineError, MemoryError) as error:
            show_error(error_text(error))
    if code_list is not None:
        st.info(escape_markdown(_read_text(code_list)), icon="📋")
        buttons.button(
            "Add the code list",
            _add,
            column,
            code_list,
            key="code_list_add",
            type="primary",
            disabled=not column,
            help=None if column else "Name the column with the codes.",
        )
    show_deferred_error(PLACE)
    if message := history.page_state().get(MESSAGE):
        st.success(escape_markdown(message), icon="✅")
    for attribute in () if schema is None else schema.attributes:
        _levels(attribute)


@st.cache_resource(max_entries=1, scope="session", show_spinner="Reading the code list")
def _code_list(content: str | bytes, name: str, levels: tuple[str, ...]) -> CodeList:
    return CodeList.from_text(content, name=name, levels=levels)


def _read_text(code_list: CodeList) -> str:
    """Return a summary of a code list: its levels, its number of cells and its first codes."""
    codes = code_list.codes
    examples = ", ".join(codes[:MAX_SHOWN]) + (", …" if len(codes) > MAX_SHOWN else "")
    return (
        f"Levels: {code_list.hierarchy.levels_text}. {pluralize(len(codes), 'cell')}: {examples}."
    )


def _add(column: str, code_list: CodeList) -> None:
    """Add the code list to the schema, and empty the fields."""
    schema = history.current().schema
    with deferred_errors(PLACE):
        if schema is None:
            new_schema = Schema([Attribute.hierarchy(column, code_list)])
        else:
            new_schema = schema.with_code_list(column, code_list)
        history.choose_schema(new_schema)
        grid.set_names(grid.incomplete_names())
        st.session_state[SERIAL] = st.session_state.get(SERIAL, 0) + 1
        history.page_state()[MESSAGE] = f"{column}: {_read_text(code_list)}"


def _levels(attribute: Attribute) -> None:
    """Draw one line per code list of an attribute, with a button that removes the levels."""
    for hierarchy in attribute.hierarchies:
        left, right = st.columns([4, 1], vertical_alignment="center")
        left.caption(
            escape_markdown(
                f"{attribute.name}, {hierarchy.name}: {hierarchy.levels_text},"
                f" {pluralize(hierarchy.cells, 'cell')}."
            )
        )
        buttons.button(
            "Remove levels",
            _remove,
            attribute.name,
            hierarchy.name,
            key=f"code_list_remove_{attribute.name}_{hierarchy.name}",
            place=right,
            width="stretch",
        )


def _remove(attribute: str, hierarchy: str) -> None:
    """Remove the levels of a code list; the codes remain the values of the attribute."""
    history.page_state().pop(MESSAGE, None)
    with deferred_errors(PLACE):
        schema = history.current().required_workload.schema
        history.choose_schema(schema.without_hierarchy(attribute, hierarchy))
