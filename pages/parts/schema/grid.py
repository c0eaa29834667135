"""Editable grid of attributes, in which rows may still lack values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import streamlit as st

from engine._format import pluralize
from engine.errors import SchemaError
from engine.workload import Attribute, Schema
from engine.workload.attribute import cell_text, could_be_integer, domain_text
from engine.workload.schema_io import HIERARCHIES_KEY
from engine.workload.schema_tables import (
    FLAGS,
    ROW_KEYS,
    ROW_TYPES,
    attribute_of_row,
    attribute_row,
    edges_text,
    is_incomplete,
)
from pages.parts.shell import history, page_layout
from pages.parts.shell.error_text import (
    clear_deferred_error,
    deferred_error,
    deferred_errors,
    escape_markdown,
    show_deferred_error,
)

Row = dict[str, str]
# Keys of the session state:
INCOMPLETE = "schema_incomplete"  # rows that have a name but no values
NAMES = "schema_names"  # names of all rows of the grid, in their order
ONCE_INCOMPLETE = "schema_once_incomplete"  # names of rows that have lacked values at some time
BASE = "schema_base"  # rows of the grid before its edits
SERIAL = "schema_serial"  # counter in the widget key of the grid; a new value discards all edits
REJECTED = page_layout.REJECTED_EDIT
PLACE = "table"  # key of the error of the last edit
LEVELS = "levels"  # column with the levels of an attribute, which is not edited
MAX_HEIGHT = 420  # pixels; more rows scroll inside the grid
ROW_HEIGHT = 36  # pixels
EMPTY_ROWS = 5  # rows of a new grid
VALUES_HELP = (
    "Values: labels `F | M` · edges of bins `0, 18, 65, 120`; by 5: `0:100:5`"
    " · dates `2024-01:2024-12:month` · number of codes `10`"
)
MAX_NAMES = 8  # names in a sentence
MAX_DOMAINS = 12  # attributes whose cells are listed below the grid
FORMAT_COLUMNS = ("decimal", "thousands", "date_format")
SHOW_FORMATS = "schema_formats"  # key of the switch for `FORMAT_COLUMNS`
THOUSANDS_SIGNS = {
    ".": "point (1.200)",
    ",": "comma (1,200)",
    " ": "space (1 200)",
    "'": "apostrophe (1'200)",
}


def edited_rows(base: Sequence[Row], edits: Mapping[str, Any]) -> list[Row]:
    """Return the rows of a grid after the edits of a data editor.

    Parameters
    ----------
    base : rows before the edits.
    edits : state of the data editor: "edited_rows" maps row numbers to {column: value},
        "added_rows" is a list of {column: value}, and "deleted_rows" is a list of row numbers.
    """
    rows = [dict(row) for row in base]
    for number, changes in edits.get("edited_rows", {}).items():
        rows[int(number)] |= {key: _text(value) for key, value in changes.items()}
    deleted = {int(number) for number in edits.get("deleted_rows", [])}
    rows = [row for number, row in enumerate(rows) if number not in deleted]
    rows += [{key: _text(row.get(key)) for key in ROW_KEYS} for row in edits.get("added_rows", [])]
    return rows


def names_before(base: Sequence[Row], edits: Mapping[str, Any]) -> list[str]:
    """Return for each row of `edited_rows` the name that it had before; empty for an added row."""
    deleted = {int(number) for number in edits.get("deleted_rows", [])}
    names = [row.get("name", "") for number, row in enumerate(base) if number not in deleted]
    return [*names, *("" for _ in edits.get("added_rows", []))]


def schema_of_rows(
    schema: Schema | None, rows: Sequence[Row], before: Sequence[str] = ()
) -> tuple[Schema | None, list[Row], SchemaError | None]:
    """Return the schema that the rows of the grid describe.

    For an invalid row, the new schema has the attribute that the row described before, if there was
    one. Other properties than attributes, such as the person ID column, are those of ``schema``.

    Parameters
    ----------
    before : name of each row before the edits, as from `names_before`; empty if unknown.

    Returns
    -------
    new_schema : schema of the rows; None if no row yields an attribute.
    incomplete : rows that have a name but no values.
    error : error of the first invalid row, which also lists the other invalid rows; None if all
        rows are valid.

    Raises
    ------
    SchemaError
        The attributes together are not valid, for example because two have the same name.
    """
    attributes, incomplete, errors = [], [], []
    old_names = before or [""] * len(rows)
    for number, (row, old_name) in enumerate(zip(rows, old_names, strict=True), 1):
        if is_incomplete(row):
            incomplete.append(row)
        if not row.get("values", "").strip():
            continue
        try:
            attributes.append(_attribute(row, number))
        except SchemaError as error:
            errors.append(error)
            if schema is not None and old_name in schema:
                attributes.append(schema[old_name])
    combined_error = _combined(errors) if errors else None
    if not attributes:
        return None, incomplete, combined_error
    if schema is None:
        return Schema(tuple(attributes)), incomplete, combined_error
    return replace(schema, attributes=tuple(attributes)), incomplete, combined_error


def _combined(errors: Sequence[SchemaError]) -> SchemaError:
    """Return the first error, with a list of the rows of the other errors."""
    others = [str(error).partition(":")[0] for error in errors[1:]]
    if not others:
        return errors[0]
    more = ", …" if len(others) > MAX_NAMES else ""
    return SchemaError(f"{errors[0]}. Also not valid: {', '.join(others[:MAX_NAMES])}{more}.")


def _attribute(row: Row, number: int) -> Attribute:
    """Return the attribute that row ``number`` describes; raise SchemaError if it is not valid."""
    name = row.get("name", "").strip()
    if not name:
        raise SchemaError(f"Row {number}: the column name is missing. Enter it, or clear the row")
    try:
        return attribute_of_row(row)
    except SchemaError as error:
        raise SchemaError(f"Row {number} ({name[:60]}): {error}") from None


def _text(value: Any) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def set_names(names: Sequence[str]) -> None:
    """Replace the rows without values by one row for each of ``names`` that no attribute has."""
    schema = history.current().schema
    present = () if schema is None else schema.names
    st.session_state[INCOMPLETE] = [_empty_row(name) for name in names if name not in present]
    st.session_state[NAMES] = [*(name for name in present if name not in names), *names]
    st.session_state[ONCE_INCOMPLETE] = set(names) - set(present)
    redraw()


def incomplete_names() -> list[str]:
    """Return the names of the rows without values."""
    return [row["name"] for row in st.session_state.get(INCOMPLETE, [])]


def redraw() -> None:
    """Discard the edits: the next `draw` builds the grid from the schema and incomplete rows."""
    st.session_state[BASE] = None
    st.session_state.pop(REJECTED, None)


def clear() -> None:
    """Discard the edits and the incomplete rows; called before another schema is opened."""
    st.session_state[INCOMPLETE] = []
    st.session_state[NAMES], st.session_state[ONCE_INCOMPLETE] = [], set()
    redraw()


def _empty_row(name: str = "") -> Row:
    return dict.fromkeys(ROW_KEYS, "") | {"name": name}


def _use_edits(key: str) -> None:
    """Apply the edits of the grid to the schema.

    The grid keeps an invalid row for correction; the valid rows are applied.
    """
    schema = history.current().schema
    base, edits = st.session_state[BASE], st.session_state[key]
    rows = edited_rows(base, edits)
    # These rows are stored, so that the grid can show them again for correction if the edit is
    # invalid. Otherwise they are deleted below.
    st.session_state[REJECTED] = history.version(), rows
    with deferred_errors(PLACE):
        new_schema, incomplete, error = schema_of_rows(schema, rows, names_before(base, edits))
        st.session_state[INCOMPLETE] = incomplete
        st.session_state[NAMES] = [name for row in rows if (name := row.get("name", "").strip())]
        once_incomplete = st.session_state.setdefault(ONCE_INCOMPLETE, set())
        once_incomplete |= {row["name"].strip() for row in incomplete}
        if new_schema is not None:
            history.choose_schema(new_schema, redraw=False)
        elif schema is not None and error is None:
            history.remove_schema()
        if error is not None:
            raise error
        del st.session_state[REJECTED]


def draw(schema: Schema | None) -> None:
    """Draw the grid, and below it the error of the last edit, or notes on the columns."""
    state = st.session_state
    key = f"schema_grid_{history.version()}_{state.get(SERIAL, 0)}"
    # With a new key, Streamlit draws a new grid from these rows, without the edits of the old one.
    if key not in state or state.get(BASE) is None:
        state[SERIAL] = state.get(SERIAL, 0) + 1
        key = f"schema_grid_{history.version()}_{state[SERIAL]}"
        state[BASE] = _rejected_rows() or _base_rows(schema)
    history.page_state()[history.INVALID_EDIT] = REJECTED in state
    shown = _shown_columns(state[BASE])
    base = [
        {name: row[name] == "true" if name in FLAGS else row.get(name, "") for name in shown}
        for row in state[BASE]
    ]
    st.data_editor(
        base,
        num_rows="dynamic",
        hide_index=True,
        # Besides the rows, there is space for the header, the row for additions and one more row.
        height=min(MAX_HEIGHT, ROW_HEIGHT * (len(base) + 3)),
        column_order=shown,
        column_config=_columns(with_levels=LEVELS in shown),
        key=key,
        on_change=_use_edits,
        args=(key,),
        placeholder="",
        alt="Editable attributes of the schema",
    )
    st.caption(VALUES_HELP)
    show_deferred_error(PLACE)
    if schema is not None and not deferred_error(PLACE):
        rows = edited_rows(state[BASE], state.get(key, {}))
        note_domains(schema, rows)
        note_incomplete(schema)


def note_domains(schema: Schema, rows: Sequence[Row]) -> None:
    """Draw the interpretation of the ``rows`` of the grid (bins, dates, values) and warnings.

    Of attributes whose labels are listed in the grid, separated by |, only the number of values is
    drawn.
    """
    listed = {row.get("name", "").strip() for row in rows if "|" in row.get("values", "")}
    lines = []
    for attribute in schema.attributes[:MAX_DOMAINS]:
        is_listed = attribute.name in listed
        size = pluralize(attribute.size, "value")
        domain = size if is_listed else domain_text(attribute)
        lines.append(f"**{escape_markdown(attribute.name)}**: {escape_markdown(domain)}")
    if (omitted := len(schema) - len(lines)) > 0:
        lines.append(f"and {pluralize(omitted, 'attribute')} more")
    size_text = f"{pluralize(len(schema), 'attribute')}, {pluralize(schema.size, 'cell')}"
    notes = [f"Read as: {' · '.join(lines)}. {size_text} in the full table."]
    if names := _names(schema, could_be_integer):
        first = next(filter(could_be_integer, schema.attributes))
        before, after = (
            escape_markdown(cell_text(attribute, 0))
            for attribute in (first, replace(first, integer=True))
        )
        notes.append(f"Whole numbers only? Tick **integers** for {names}: “{before}” → “{after}”.")
    last_bins = filter(None, map(_last_bin_text, schema.attributes))
    notes += map(escape_markdown, [*last_bins][:1])
    if any(map(_drops_rows, schema.attributes)):
        notes.append(
            "Rows with other values are dropped, unless **others as**, **missing as** or **clip**"
            " applies."
        )
    if notes:
        st.caption("  \n".join(notes))
    if names := _names(schema, lambda attribute: attribute.size == 1):
        st.warning(
            f"Only one possible value: {names}. Enter all values, or delete the row: an attribute"
            " with one value splits no table."
        )


def _last_bin_text(attribute: Attribute) -> str:
    """Return how to write equally wide bins if the last one has one integer too many.

    The last bin includes its upper edge, which the list of the bins shows.

    The note is empty for all other attributes.

    >>> _last_bin_text(Attribute.numeric("age", range(0, 101, 5), integer=True))
    'If age cannot be 100, write 0:95:5, 99.'
    """
    edges = attribute.edges
    if not attribute.integer or edges is None or attribute.size < 2:
        return ""
    if len({upper - lower for lower, upper in pairwise(edges)}) > 1:
        return ""
    last = f"{edges[-1]:.0f}"
    shorter = edges_text([*edges[:-1], edges[-1] - 1])
    return f"If {attribute.name} cannot be {last}, write {shorter}."


def _names(schema: Schema, condition: Callable[[Attribute], bool]) -> str:
    """Return the names of the attributes that meet a condition, at most `MAX_NAMES`, as Markdown."""
    names = [attribute.name for attribute in schema.attributes if condition(attribute)]
    more = ", …" if len(names) > MAX_NAMES else ""
    return escape_markdown(", ".join(names[:MAX_NAMES]) + more)


def _drops_rows(attribute: Attribute) -> bool:
    """Return whether rows with an unlisted or a missing value of an attribute are dropped."""
    counts_others = attribute.other is not None or attribute.clip
    return not counts_others or attribute.missing is None


def note_incomplete(schema: Schema) -> None:
    """Draw the names of the columns that lack values, and so are not in the schema."""
    # The person ID column needs no values: it never becomes an attribute.
    names = [name for name in incomplete_names() if name != schema.person]
    if names:
        names_text = ", ".join(names[:MAX_NAMES]) + (", and more" if len(names) > MAX_NAMES else "")
        st.info(
            escape_markdown(
                f"{pluralize(len(names), 'column')} without values, not used: {names_text}. Nothing"
                " is to be done, unless a table needs it."
            )
        )


def _rejected_rows() -> list[Row]:
    """Return the rows of the grid with the last invalid edit; empty if the last edit was valid.

    If the request has changed since the invalid edit, for example by undo, the edit and its error
    message are discarded, and the result is also empty.
    """
    version, rows = st.session_state.get(REJECTED, (None, []))
    if version == history.version():
        return list(rows)
    st.session_state.pop(REJECTED, None)
    clear_deferred_error(PLACE)
    return []


def _base_rows(schema: Schema | None) -> list[Row]:
    """Return the rows of a new grid: the attributes and the incomplete rows, or empty rows.

    An incomplete row follows the row that was before it in the last grid.
    """
    rows = [
        attribute_row(attribute) | {LEVELS: _levels_text(attribute)}
        for attribute in (schema.attributes if schema else ())
    ]
    st.session_state[INCOMPLETE] = incomplete = _incomplete_rows({row["name"] for row in rows})
    order = st.session_state.get(NAMES, [])
    for row in incomplete:
        names = [other["name"] for other in rows]
        before = order[: order.index(row["name"])] if row["name"] in order else names
        position = max((names.index(name) + 1 for name in before if name in names), default=0)
        rows.insert(position, row)
    return rows or [_empty_row() for _ in range(EMPTY_ROWS)]


def _incomplete_rows(attributes: set[str]) -> list[Row]:
    """Return the rows without values, in the order of the last grid.

    These are the stored incomplete rows. Rows whose values were entered later and then removed by
    undo are among them, but without their other entries. Rows with a name in ``attributes`` (the
    attributes of the schema) are left out.
    """
    stored_rows = {row["name"]: row for row in st.session_state.get(INCOMPLETE, [])}
    once_incomplete = st.session_state.get(ONCE_INCOMPLETE, set())
    order = [name for name in st.session_state.get(NAMES, []) if name in once_incomplete]
    rows = {name: _empty_row(name) for name in order} | stored_rows
    return [row for name, row in rows.items() if name not in attributes]


def _levels_text(attribute: Attribute) -> str:
    """Return the levels of an attribute, each with its number of areas: "region (4), state
    (51)"."""
    levels = [level for hierarchy in attribute.hierarchies for level in hierarchy.levels]
    return ", ".join(f"{level.name} ({level.areas:,})" for level in levels)


def _shown_columns(rows: Sequence[Row]) -> list[str]:
    """Return the columns of the grid that are drawn, in their order.

    `FORMAT_COLUMNS` are drawn if the user switched them on, or if a row has a format. `LEVELS` is
    drawn if a row has levels.
    """
    has_formats = any(row[name] for row in rows for name in FORMAT_COLUMNS)
    shows_formats = st.session_state.get(SHOW_FORMATS) or has_formats
    hidden = {HIERARCHIES_KEY, *(() if shows_formats else FORMAT_COLUMNS)}
    columns = [name for name in ROW_KEYS if name not in hidden]
    if any(row.get(LEVELS) for row in rows):
        columns.insert(columns.index("values") + 1, LEVELS)
    return columns


def _columns(*, with_levels: bool) -> dict[str, Any]:
    """Return the settings of the grid columns; ``with_levels`` makes room for the levels column."""
    text, choice, flag = (
        st.column_config.TextColumn,
        st.column_config.SelectboxColumn,
        st.column_config.CheckboxColumn,
    )
    return {
        "name": text(
            "column", help="Name of the column in the records", width=130 if with_levels else 160
        ),
        "type": choice(
            "type",
            options=list(ROW_TYPES),
            width=110,
            help="Blank: by the form of the values. Bins, dates and ordered codes allow ranges.",
        ),
        "values": text(
            "possible values",
            width=155 if with_levels else 275,
            help=(
                "Labels: F | M. Bins: their edges, 0, 18, 65, 120, or first edge:last edge:step,"
                " 0:100:5. Dates: 2024-01:2024-12:month or 2024-01-01:2024-12-31:day. Codes: how"
                " many, 10."
            ),
        ),
        "other": text(
            "others as",
            width=110,
            help="Labels: the label that counts unlisted values. Blank: such rows are dropped.",
        ),
        "missing": text(
            "missing as",
            width=115,
            help=(
                "Labels and dates: the label that counts missing values. Bins: a number whose bin"
                " counts them. Blank: such rows are dropped."
            ),
        ),
        "missing_values": text(
            "missing codes", width=135, help="Values that mean missing, such as NA | . | 9999"
        ),
        "clip": flag(
            "clip", width=70, help="Count numbers and dates outside in the first or last cell"
        ),
        "integer": flag(
            "integers", width=100, help="Bins: all values are integers, so age <= 39 is age < 40"
        ),
        "decimal": choice("decimal sign", options=[".", ","], help="Bins, in text files"),
        "thousands": choice(
            "thousands sign",
            options=list(THOUSANDS_SIGNS),
            format_func=lambda sign: THOUSANDS_SIGNS.get(str(sign), ""),
            help="Bins, in text files",
        ),
        "date_format": text(
            "date format", help="Dates, in text files, such as %d.%m.%Y; blank for 2024-03-15"
        ),
        LEVELS: text(
            "levels", width=150, disabled=True, help="Levels of a code list, see Advanced."
        ),
    }
