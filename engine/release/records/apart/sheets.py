"""Workbooks -> batches of the needed columns, or text, from the rows that the process of `child` sends."""

from __future__ import annotations

import csv
import io
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engine.errors import DataError, LimitExceeded
from engine.release.records.apart.asking import heard
from engine.release.records.apart.child import SHEET
from engine.release.records.batches import Batch, check_columns
from engine.release.records.encoding import text_of
from engine.release.records.formats import batched
from engine.texts import header_name, near_matches, shown

SHEET_ENDINGS = (".xlsx", ".xls", ".ods")
MAX_LISTED = 8  # sheets in an error
MAX_WORKBOOK_INTEGER = 10**15  # spreadsheets store 15 digits of a number; others become 0
MOST_TEXT = 10_000_000  # characters of a public table
FORGOTTEN = (
    ": a forgotten cell far from the others makes a sheet as large as all between them. Delete the empty rows below "
    "and columns beside the table, or save it as CSV."
)


@dataclass(frozen=True, kw_only=True)
class SheetFile:
    """One sheet of a workbook with several.

    Fields: `path`; `sheet`, the name of the sheet.

    >>> SheetFile(path="survey.xlsx", sheet="2024").sheet
    '2024'
    """

    path: str | Path
    sheet: str

    def __post_init__(self) -> None:
        """Raise DataError for a file that is no workbook."""
        if not str(self.path).lower().endswith(SHEET_ENDINGS):
            raise DataError(
                f"the file {shown(Path(self.path).name)} has no sheets. Leave the name of the sheet out, or give a "
                f"workbook, whose name ends in one of {', '.join(SHEET_ENDINGS)}"
            )


def sheet_names(path: Path, sheet: str | None = None) -> list[str]:
    """The first row of a sheet."""
    return list(map(_name, next(_rows(path, sheet), [])))


def sheet_batches(path: Path, names: Sequence[str], rows: int, sheet: str | None = None) -> Iterator[Batch]:
    """The named columns of a sheet; without its name, of the only visible one with a cell."""
    all_rows = _rows(path, sheet)
    head = list(map(_name, next(all_rows, [])))
    check_columns(head, names, quote=False)
    places = [head.index(name) for name in names]
    # sheets end in rows that were emptied
    filled = ([row[i] for i in places] for row in all_rows if any(value != "" for value in row))
    limits = dict.fromkeys(names, MAX_WORKBOOK_INTEGER)
    return (replace(batch, float_limits=limits) for batch in batched(filled, len(names), rows))


def visible_sheets(path: Path) -> list[str]:
    """Return the names of the visible sheets with a cell, of which one has to be chosen when there are several."""
    with closing(_heard(path, None)) as found:
        chosen: list[str] = next(found)[0]
    return chosen


def sheet_text(path: Path, sheet: str | None = None, *, empty_rows: bool = False) -> str:
    """Return a sheet of a workbook as CSV: a public table, such as a data dictionary, as people keep it.

    Empty rows, and empty columns to the right, are left out; numbers are written as short as they are exact.  With
    ``empty_rows`` an empty row becomes an empty line, so that the lines have the numbers of the rows.
    Raises: DataError for a workbook of several sheets without the name of one, LimitExceeded for a sheet that is too
    large.
    """
    held, characters, width = list[list[str]](), 0, 0
    for row in _rows(path, sheet):
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
    """A cell as the text that counting compares with labels."""
    return value.strip() if isinstance(value, str) else text_of(value)


def _name(value: Any) -> str:
    """A cell of the header as a name: a year that is a number is "2019", not "2019.0"."""
    return header_name(value) if isinstance(value, str) else _written(value)


def _heard(path: Path, sheet: str | None) -> Generator[Any]:
    return heard(path, "python_calamine", SHEET, FORGOTTEN, sheet=sheet)


def _rows(path: Path, sheet: str | None) -> Iterator[list[Any]]:
    what, found = f"the file {shown(path.name)}", _heard(path, sheet)
    with closing(found):
        chosen, names = next(found)
        if sheet is not None and len(chosen) != 1:
            raise DataError(f"{what} has no sheet {shown(sheet)}{near_matches(sheet, names)}; give the name of one")
        if len(chosen) != 1:
            listed = ", ".join(map(shown, chosen[:MAX_LISTED])) + (", ..." if len(chosen) > MAX_LISTED else "")
            raise DataError(f"{what} has {len(chosen):,} sheets, {listed}; give the name of one, or save it alone")
        if merged := next(found):  # all but the first of merged cells look empty
            raise DataError(f"{what} has merged cells in its {merged}; unmerge them and write every name and value out")
        for rows in found:
            yield from rows
