"""Records that are more than a path: tables that the settings of the server name, text in an
encoding, sheets.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import quote, unquote

from engine.records import SheetFile, TextFile, named_table

NAMED = "source:"  # before a name; full paths, which is what files are given by, begin otherwise
TEXT = "text:"  # before an encoding, a colon, and the path of a file in it
SHEET = "sheet:"  # before the quoted name of a sheet, a colon, and the path of the workbook


def sheet_of(path: object, sheet: str) -> str:
    """Return the text by which `remember_ledger` reads one sheet of a workbook."""
    return f"{SHEET}{quote(sheet, safe='')}:{path}"


@contextmanager
def open_source(data: str) -> Iterator[Any]:
    """The path of a file, alone or with its encoding or sheet, and the named table while it is
    counted.

    Whoever ends this process ends what the database does for it, too, as Ctrl-C does: by itself it
    would go on.
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
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield table
    finally:
        signal.signal(signal.SIGTERM, before)
        with suppress(Exception):  # nothing is left to close of a connection that broke
            table.get_backend().disconnect()
