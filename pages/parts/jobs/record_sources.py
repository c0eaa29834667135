"""Sources of records (database tables, text files, sheets) as texts that workers can receive."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import quote, unquote

from engine.records import SheetFile, TextFile, named_table

NAMED = "source:"  # "source:NAME"
TEXT = "text:"  # "text:ENCODING:PATH"
SHEET = "sheet:"  # "sheet:QUOTED NAME:PATH"


def sheet_of(path: object, sheet: str) -> str:
    """Return the text by which `open_source` recognizes a sheet of a workbook."""
    return f"{SHEET}{quote(sheet, safe='')}:{path}"


@contextmanager
def open_source(data: str) -> Iterator[Any]:
    """Yield the source of records that a text denotes; the path of a file is yielded unchanged.

    While a database table is open, SIGTERM raises KeyboardInterrupt instead of ending the process,
    because the database then also stops the running query.
    """
    if data.startswith(TEXT):
        encoding, _, path = data.removeprefix(TEXT).partition(":")
        yield TextFile(path=path, encoding=encoding)
        return
    if data.startswith(SHEET):
        sheet, _, path = data.removeprefix(SHEET).partition(":")
        yield SheetFile(path=path, sheet=unquote(sheet))
        return
    if not data.startswith(NAMED):
        yield data
        return
    table = named_table(data.removeprefix(NAMED))
    previous_handler = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield table
    finally:
        signal.signal(signal.SIGTERM, previous_handler)
        with suppress(Exception):  # a broken connection cannot be closed
            table.get_backend().disconnect()
