"""Workbooks -> batches of the needed columns, from the rows that the process of `child` sends."""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from engine.errors import DataError, LimitExceeded
from engine.release.records.batches import Batch, check_columns, needed
from engine.release.records.formats import batched
from engine.release.records.sheets.child import TOO_LARGE
from engine.texts import shown

CHILD = Path(__file__).with_name("child.py")
ENDED = {TOO_LARGE, -signal.SIGABRT, -signal.SIGSEGV, -9}  # where memory ended, by itself or by the system


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
    return batched(filled, len(names), rows)


def _rows(path: Path) -> Iterator[list[Any]]:
    what = f"the file {shown(path.name)}"
    needed("python_calamine", what)
    command = [sys.executable, "-I", str(CHILD), str(path)]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as child:
        assert child.stdout is not None  # it is a pipe
        try:
            if (sheets := _said(child, child.stdout, what)) != 1:
                raise DataError(f"{what} has {sheets:,} sheets; save the one with the records alone")
            if merged := _said(child, child.stdout, what):  # all but the first of merged cells look empty
                raise DataError(
                    f"{what} has merged cells in its {merged}; unmerge them and write every name and value out"
                )
            while rows := _said(child, child.stdout, what):
                yield from rows
        finally:
            child.kill()


def _said(child: subprocess.Popen[bytes], out: IO[bytes], what: str) -> Any:
    """What the process says next.  Raises: DataError or LimitExceeded where it ended instead."""
    try:
        return pickle.load(out)
    except (EOFError, pickle.UnpicklingError):
        code = child.wait()
    if code in ENDED:
        raise LimitExceeded(
            f"{what} needs more memory than there is: a forgotten cell far from the others makes a sheet as large as "
            "all between them. Delete the empty rows below and columns beside the table, or save it as CSV."
        )
    raise DataError(f"{what} cannot be read; check that it is complete and of the kind its name says")
