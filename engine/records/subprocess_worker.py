"""Worker process of the subprocess readers.

The arguments are a path, "sheet" or the name of a reader of pyreadstat, and the options as JSON.

The worker writes messages. Each message is a line of JSON; bytes follow some messages. The parent
only parses JSON and reads bytes, so the output of a failing worker cannot harm it.

The messages about a workbook are

1. the names of the candidates (sheets that the user may mean), and of all visible sheets,
2. if there is exactly one candidate: where it has merged cells, "header", "rows" or "",
3. lists of the rows of this sheet.

The messages about a labelled file (of Stata, SPSS or SAS) are

1. its metadata,
2. if rows are requested: the values of the named columns, one message per chunk of rows.

The last message is null. The exit code is `TOO_LARGE` if the memory is exhausted, and 1 after
another error.
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from itertools import islice
from typing import Any

MAX_ADDRESS_SPACE_BYTES = 8_000_000_000  # sufficient for the largest sheet that Excel allows
ROWS_PER_MESSAGE = 1_000  # number of rows of a sheet in one message
TOO_LARGE = 3  # exit code if the memory is exhausted
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
JSON = "json"  # name of the encoding of columns that are not numeric NumPy arrays


def _send(value: Any, *payloads: bytes) -> None:
    """Send a message to the parent process: a value as JSON, followed by the bytes of `payloads`.

    Dates and times in the value are sent as texts.
    """
    out = sys.stdout.buffer
    out.write(
        json.dumps([value, [len(payload) for payload in payloads]], default=str).encode() + b"\n"
    )
    for payload in payloads:
        out.write(payload)
    out.flush()


def _sheet(path: str, sheet: str | None) -> None:
    """Send the messages about a workbook; see the docstring of this module.

    The only candidate for the name ``sheet`` is the sheet of this name; an unknown name has no
    candidate. Without a name, the candidates are all visible sheets that are not empty. If the
    workbook has no such sheet, or only one sheet, its first sheet is the candidate.

    The message about merged cells is "header" if a merged range starts in or above the first row of
    the table, "rows" if all merged ranges start below, and "" if there are none.
    """
    import python_calamine

    book = python_calamine.CalamineWorkbook.from_path(path)
    visible_names = [
        metadata.name
        for metadata in book.sheets_metadata
        if metadata.visible == python_calamine.SheetVisibleEnum.Visible
    ]
    if sheet is not None:
        chosen = [name for name in book.sheet_names if name == sheet]
    elif len(book.sheet_names) == 1:
        chosen = book.sheet_names
    else:
        filled = [name for name in visible_names if book.get_sheet_by_name(name).start is not None]
        chosen = filled or book.sheet_names[:1]
    _send([chosen, visible_names])
    if len(chosen) != 1:
        return
    table = book.get_sheet_by_name(chosen[0])
    first_row = (table.start or (0, 0))[0]
    # first row of each merged range
    merged_rows = [top for (top, _left), _end in table.merged_cell_ranges or ()]
    if not merged_rows:
        _send("")
    else:
        _send("header" if min(merged_rows) <= first_row else "rows")
    rows = iter(table.iter_rows())
    while chunk := list(islice(rows, ROWS_PER_MESSAGE)):
        _send(chunk)


def _labelled(
    path: str, reader: str, options: dict[str, bool], names: list[str] | None, rows: int
) -> None:
    """Send the messages about a labelled file; see the docstring of this module.

    Parameters
    ----------
    reader : name of the reader in pyreadstat.
    options : keyword arguments of this reader.
    names : columns whose values are sent; with None no values are sent. If it is empty, the first
        column is sent, so that the parent can count the rows.
    rows : largest number of rows in a message.
    """
    import pyreadstat

    library: Any = pyreadstat
    read = getattr(library, reader)
    _, meta = read(path, metadataonly=True, output_format="dict", **options)
    labels = {name: list(pairs.items()) for name, pairs in meta.variable_value_labels.items()}
    _send({field: getattr(meta, field) for field in META} | {"labels": labels})
    if names is None:
        return
    used = names or meta.column_names[:1]
    chunks = library.read_file_in_chunks(
        read, path, chunksize=rows, usecols=used, disable_datetime_conversion=True, **options
    )
    for frame, _ in chunks:
        values = [frame[name].to_numpy() for name in used]
        # columns of numbers are sent as bytes, all other columns as JSON
        kinds = [column.dtype.str if column.dtype.kind in "iuf" else JSON for column in values]
        payloads = [
            json.dumps(column.tolist()).encode() if kind == JSON else column.tobytes()
            for column, kind in zip(values, kinds, strict=True)
        ]
        _send([len(frame), kinds], *payloads)


if __name__ == "__main__":
    # some operating systems have no resource limits or do not allow setting them
    with suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core dump would contain records
        resource.setrlimit(resource.RLIMIT_AS, (MAX_ADDRESS_SPACE_BYTES, MAX_ADDRESS_SPACE_BYTES))
    try:
        place, kind, options = sys.argv[1:]
        if kind == SHEET:
            _sheet(place, **json.loads(options))
        else:
            _labelled(place, kind, **json.loads(options))
        _send(None)
    except MemoryError:
        sys.exit(TOO_LARGE)
    # the exception is not printed, because its text may contain values of records
    except Exception:
        sys.exit(1)
