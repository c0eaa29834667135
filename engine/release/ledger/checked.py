"""What a program has checked of a ledger, so that a spend checks what is new and not the whole chain again.

A program decides by rows that it checked itself and remembers: whatever happens to them in the file grants nothing.  In
every transaction the rows after those are read, and checked from the last known hash on.  An edit of the rows before is
told, too: the times of the file then differ from those after the last transaction, and all rows are compared with what
is remembered (about 2 ms per 1,000 rows; so it is when another program has spent).  Opening and `verify` check all.

The rows that this program wrote itself are remembered as well: the next transaction must read exactly those rows after
the checked ones, so a copy of the file from before the own write is refused.  Rows of other programs may follow them.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from engine.release.ledger.balance import Balance, balance
from engine.release.ledger.chain import Row, RowCells, chain_problems, file_problems, read_cells, rows_of

_OLDER = "it was replaced by another or an older copy while it was in use"
_EDITED = "rows that were sound before were edited while it was in use"


@dataclass(frozen=True, kw_only=True)
class Checked:
    """Rows that were checked: their cells, the last of them, what they add up to, and how the file looked then.

    `written` are the cells of the rows that this program added after them and has not read back yet.
    """

    cells: list[RowCells]
    head: Row
    book: Balance
    times: tuple[int, ...]
    rules: int
    written: tuple[RowCells, ...] = ()

    @property
    def length(self) -> int:
        """Number of rows that the file must contain at least."""
        return len(self.cells) + len(self.written)

    @property
    def last(self) -> tuple[int, str]:
        """Number and hash of the last row that the file must contain."""
        return (self.written[-1][0], self.written[-1][-1]) if self.written else (self.head.seq, self.head.hash)

    def committed(self, path: Path, written: Iterable[RowCells]) -> Checked:
        """Return the state after this program's own commit, which has changed the times of the file."""
        return replace(self, times=_times(path), written=tuple(written))


def check(connection: sqlite3.Connection, path: Path, known: Checked | None) -> tuple[Checked | None, list[str]]:
    """What stands in the ledger now, checked inside a transaction, or None and all problems in words.

    `known` is what this program checked before; without it everything is checked, the pages of the file, too.
    """
    times, (rules,) = _times(path), connection.execute("PRAGMA schema_version").fetchone()
    problems = [] if known else file_problems(connection)
    if known and times and (times, rules) == (known.times, known.rules):
        # others may have spent between a commit and the look at the times: the end is read whatever these say
        cells = known.cells[:-1] + read_cells(connection, known.head.seq - 1)
    else:
        cells = read_cells(connection)
    # an older copy put back under a ledger that is open would grant spent budget again
    if known and cells[: len(known.cells)] != known.cells:
        cut = len(cells) < len(known.cells) or cells[len(known.cells) - 1] != known.cells[-1]
        problems, known = [_OLDER if cut else _EDITED], None
    elif known and tuple(cells[len(known.cells) : known.length]) != known.written:
        problems, known = [_OLDER], None
    rows = rows_of(cells[len(known.cells) :] if known else cells)
    book, broken = balance(rows, known.book if known else None)
    problems += chain_problems(connection, rows, known.head if known else None) + broken
    head = rows[-1] if rows else known.head if known else None
    if problems or head is None:
        return None, problems
    return Checked(cells=cells, head=head, book=book, times=times, rules=rules), []


def _times(path: Path) -> tuple[int, ...]:
    """Which file lies at a path, how long it is and when it was written; nothing if it is gone."""
    try:
        status = os.stat(path)
    except OSError:
        return ()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
