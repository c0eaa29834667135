"""Child process of the subprocess readers.

It is given a path, "sheet" or the name of a reader of pyreadstat, and what that is asked, as JSON.  It answers in lines
of JSON, some with bytes behind them, which can do nothing to the one that asks, whatever became of this process.  Of a
workbook: the names of the sheets that may be meant and of all visible ones, where cells are merged ("header", "rows"
or ""), and lists of rows.  Of a labelled
file: what it says of its columns, and where rows are asked for, the values of every column.  The last is null.  The
exit code is `TOO_LARGE` where memory ends.
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from itertools import islice
from typing import Any

MOST_BYTES = 8_000_000_000  # of addresses; a sheet may need that is as large as a sheet can be
ROWS = 1_000  # of a sheet, in a list
TOO_LARGE = 3
SHEET = "sheet"
META = (
    "column_names",
    "number_rows",
    "readstat_variable_types",
    "original_variable_types",
    "variable_storage_width",
    "missing_user_values",
    "missing_ranges",
)
JSON = "json"  # how values are sent that have no type of NumPy


def _say(value: Any, *behind: bytes) -> None:
    """Send a value, moments in it as texts, and bytes to the process that asked."""
    out = sys.stdout.buffer
    out.write(json.dumps([value, [len(one) for one in behind]], default=str).encode() + b"\n")
    for one in behind:
        out.write(one)
    out.flush()


def _sheet(path: str, sheet: str | None) -> None:
    """Send which sheets of a workbook may be meant, and of a single one what it holds.

    Without a name these are the visible sheets with a cell, and the first sheet where there is none.
    """
    import python_calamine

    book = python_calamine.CalamineWorkbook.from_path(path)
    names = [one.name for one in book.sheets_metadata if one.visible == python_calamine.SheetVisibleEnum.Visible]
    if sheet is not None:
        chosen = [name for name in book.sheet_names if name == sheet]
    elif len(book.sheet_names) == 1:
        chosen = book.sheet_names
    else:
        chosen = [name for name in names if book.get_sheet_by_name(name).start is not None] or book.sheet_names[:1]
    _say([chosen, names])
    if len(chosen) != 1:
        return
    page = book.get_sheet_by_name(chosen[0])
    first = (page.start or (0, 0))[0]
    tops = [top for (top, _), _ in page.merged_cell_ranges or ()]
    _say("" if not tops else "header" if min(tops) <= first else "rows")
    rows = iter(page.iter_rows())
    while held := list(islice(rows, ROWS)):
        _say(held)


def _labelled(path: str, reader: str, kept: dict[str, bool], names: list[str] | None, rows: int) -> None:
    """Send what a labelled file says of its columns, and the named ones, the first where there is no name."""
    import pyreadstat

    library: Any = pyreadstat
    read = getattr(library, reader)
    _, meta = read(path, metadataonly=True, output_format="dict", **kept)
    labels = {name: list(own.items()) for name, own in meta.variable_value_labels.items()}
    _say({field: getattr(meta, field) for field in META} | {"labels": labels})
    if names is None:
        return
    used = names or meta.column_names[:1]
    chunks = library.read_file_in_chunks(
        read, path, chunksize=rows, usecols=used, disable_datetime_conversion=True, **kept
    )
    for frame, _ in chunks:
        values = [frame[name].to_numpy() for name in used]
        plain = [column.dtype.kind in "iuf" for column in values]
        kinds = [column.dtype.str if own else JSON for column, own in zip(values, plain, strict=True)]
        told = [
            column.tobytes() if own else json.dumps(column.tolist()).encode()
            for column, own in zip(values, plain, strict=True)
        ]
        _say([len(frame), kinds], *told)


if __name__ == "__main__":
    with suppress(ImportError, ValueError, OSError):  # not every system has limits, or lets them be set
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a dump of memory would hold records
        resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    try:
        place, kind, asked = sys.argv[1:]
        if kind == SHEET:
            _sheet(place, **json.loads(asked))
        else:
            _labelled(place, kind, **json.loads(asked))
        _say(None)
    except MemoryError:
        sys.exit(TOO_LARGE)
    except Exception:  # its text may hold what records hold
        sys.exit(1)
