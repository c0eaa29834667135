"""Workbooks -> batches of the needed columns, or text, from the rows that the process of `child` sends."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from engine.errors import DataError, LimitExceeded
from engine.release.records.apart.asking import heard
from engine.release.records.apart.child import SHEET
from engine.release.records.batches import Batch, check_columns
from engine.release.records.formats import batched
from engine.texts import plain, shown

SHEET_ENDINGS = (".xlsx", ".xls", ".ods")
MAX_WORKBOOK_INTEGER = 10**15  # spreadsheets store 15 digits of a number; others become 0
MOST_TEXT = 10_000_000  # characters of a public table
FORGOTTEN = (
    ": a forgotten cell far from the others makes a sheet as large as all between them. Delete the empty rows below "
    "and columns beside the table, or save it as CSV."
)


def sheet_names(path: Path) -> list[str]:
    """The first row of a sheet."""
    return [str(name) for name in next(_rows(path), [])]


def sheet_batches(path: Path, names: Sequence[str], rows: int) -> Iterator[Batch]:
    """The named columns of the only sheet of a workbook."""
    all_rows = _rows(path)
    head = [str(name) for name in next(all_rows, [])]
    check_columns(head, names, quote=False)
    places = [head.index(name) for name in names]
    # sheets end in rows that were emptied
    filled = ([row[i] for i in places] for row in all_rows if any(value != "" for value in row))
    limits = dict.fromkeys(names, MAX_WORKBOOK_INTEGER)
    return (replace(batch, float_limits=limits) for batch in batched(filled, len(names), rows))


def sheet_text(path: Path, *, empty_rows: bool = False) -> str:
    """Return the only sheet of a workbook as CSV: a public table, such as a data dictionary, as people keep it.

    Empty rows, and empty columns to the right, are left out; numbers are written as short as they are exact.  With
    ``empty_rows`` an empty row becomes an empty line, so that the lines have the numbers of the rows.
    Raises: DataError for what is no workbook of one sheet, LimitExceeded for one that is too large.
    """
    held, characters, width = list[list[str]](), 0, 0
    for row in _rows(path):
        cells = list(map(_written, row))
        filled = max((place for place, cell in enumerate(cells, 1) if cell), default=0)
        characters += sum(map(len, cells[:filled]))
        if characters > MOST_TEXT:
            raise LimitExceeded(
                f"the file {shown(path.name)} has over {MOST_TEXT:,} characters. Leave out what is not needed."
            )
        if filled or empty_rows:
            width = max(width, filled)
            held.append(cells[:filled])
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(
        [*cells, *[""] * (width - len(cells))] if cells else [] for cells in held
    )
    return out.getvalue()


def _written(value: Any) -> str:
    """A cell as somebody would have typed it into a text."""
    if isinstance(value, float):  # a code of many digits is no power of ten
        return f"{value:.0f}" if value.is_integer() else plain(value)
    return str(value).lower() if isinstance(value, bool) else str(value).strip()


def _rows(path: Path) -> Iterator[list[Any]]:
    what, found = f"the file {shown(path.name)}", heard(path, "python_calamine", SHEET, FORGOTTEN)
    with closing(found):
        if (sheets := next(found)) != 1:
            raise DataError(f"{what} has {sheets:,} sheets; save the one that is meant alone")
        if merged := next(found):  # all but the first of merged cells look empty
            raise DataError(f"{what} has merged cells in its {merged}; unmerge them and write every name and value out")
        for rows in found:
            yield from rows
