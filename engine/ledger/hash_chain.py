"""Hash-chained rows in one SQLite file.

This module stores rows; `ledger` and `balance` define their meaning.

The ledger is a single file. It uses the rollback journal, never WAL, whose side file can be lost or
left behind in a copy, and ``synchronous=EXTRA``, so that a commit that returned is on the disk. A
connection lives for one transaction: threads and processes share nothing, and a deleted or replaced
file is detected. (A program that uses a ledger must not `open()` the file itself: on POSIX, closing
it would release the locks of SQLite.) Decisions use verified rows only: the state verified so far
is kept in memory, and every transaction verifies new rows.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import stat
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

from engine.errors import LedgerError

APPLICATION_ID, FORMAT = 0x44504C47, 1  # "DPLG", in the file header
RowCells = tuple[
    Any, ...
]  # one row in the order of its columns; a damaged file may hold any values
_NO_HASH = "0" * 64
_COLUMNS = (
    "seq",
    "utc",
    "kind",
    "dataset",
    "key",
    "pcost",
    "plan_hash",
    "sha256",
    "size",
    "note",
    "hash",
)
# REPLACE deletes rows without firing delete triggers, so a third trigger refuses replacements
_TRIGGERS = (
    """CREATE TABLE rows(
        seq INTEGER PRIMARY KEY AUTOINCREMENT, utc TEXT NOT NULL, kind TEXT NOT NULL, dataset TEXT NOT NULL,
        key TEXT NOT NULL, pcost TEXT NOT NULL, plan_hash TEXT NOT NULL, sha256 TEXT NOT NULL, size INTEGER NOT NULL,
        note TEXT NOT NULL, hash TEXT NOT NULL)""",
    (
        "CREATE UNIQUE INDEX one_row_per_key ON rows(kind, key) WHERE kind IN ('dataset', 'spend',"
        " 'saved')"
    ),
    """CREATE TRIGGER never_update BEFORE UPDATE ON rows BEGIN SELECT RAISE(ABORT, 'rows are append-only'); END""",
    """CREATE TRIGGER never_delete BEFORE DELETE ON rows BEGIN SELECT RAISE(ABORT, 'rows are append-only'); END""",
    """CREATE TRIGGER never_replace BEFORE INSERT ON rows
        WHEN NEW.seq IS NOT (SELECT coalesce(max(seq), 0) + 1 FROM rows)
        OR EXISTS (SELECT 1 FROM rows WHERE kind = NEW.kind AND key = NEW.key AND kind IN ('dataset', 'spend', 'saved'))
        BEGIN SELECT RAISE(ABORT, 'rows are append-only'); END""",
)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row of the ledger; fields that its kind does not use are empty.

    `pcost` is a decimal number as text, `utc` a time in ISO 8601.
    """

    seq: int
    utc: str
    kind: str
    dataset: str = ""
    key: str = ""
    pcost: str = ""
    plan_hash: str = ""
    sha256: str = ""
    size: int = 0
    note: str = ""
    hash: str = ""

    def sealed(self, previous: str) -> str:
        """Return the hash of this row: SHA-256 of the previous hash and of the row as canonical
        JSON.
        """
        content = {name: value for name, value in vars(self).items() if name != "hash"}
        text = json.dumps(content, sort_keys=True, separators=(",", ":"), default=repr)
        return hashlib.sha256((previous + text).encode()).hexdigest()


def utc_now() -> str:
    """Return the local time in UTC; for information only, rows are ordered by `seq`."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def create_file(path: Path) -> None:
    """Create a file with its triggers and first row; raise LedgerError if the file exists."""
    try:
        # O_EXCL: only one of two concurrent creations succeeds, and no file is ever truncated
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        raise LedgerError(
            f"{path} is there already; open it with Ledger(path), or choose another name."
        ) from None
    except OSError as error:
        raise LedgerError(f"The ledger {path} could not be created: {error.strerror}.") from error
    with transaction(path, write=True, wait=5.0, new=True) as connection:
        for rule in _TRIGGERS:
            connection.execute(rule)
        connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version={FORMAT}")
        # a unique id of this ledger, so that two ledgers never share a hash
        append(connection, None, kind="ledger", note=uuid4().hex)
    sync_folder(path.parent)


@contextmanager
def transaction(
    path: Path, *, write: bool, wait: float, new: bool = False
) -> Iterator[sqlite3.Connection]:
    """Yield a connection inside one transaction, committed at the end or rolled back on exceptions.

    Raises
    ------
    LedgerError
        Any failure of SQLite or of the file, with a plain description.
    """
    before = _file_identity(path)
    if before is None:
        raise LedgerError(
            f"There is no ledger at {path}. A missing ledger never means a fresh budget: put it"
            " back from where it was moved or backed up. Only for records never released before,"
            " make one with Ledger.create(path)."
        )
    try:
        # mode=rw never creates a file: a missing ledger must not reappear empty
        uri = f"{path.as_uri()}?mode=rw"
        with closing(
            sqlite3.connect(uri, uri=True, timeout=wait, isolation_level=None)
        ) as connection:
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 1 << 20)
            # EXTRA also syncs the folder, so that a committed row survives a power cut
            for setting in (
                "trusted_schema=OFF",
                "cell_size_check=ON",
                "synchronous=EXTRA",
                "fullfsync=ON",
            ):
                connection.execute(f"PRAGMA {setting}")
            if connection.execute("PRAGMA journal_mode=DELETE").fetchone() != ("delete",):
                raise LedgerError(
                    f"The ledger {path} cannot keep a rollback journal; was its journal mode"
                    " changed?"
                )
            # the write lock precedes reading, so that two programs cannot both spend the same
            # budget
            connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
            if not new:
                _check_format(connection, path)
            yield connection
            connection.execute("COMMIT")
    except sqlite3.Error as error:
        raise LedgerError(
            f"{_error_text(path, error)} Nothing was granted by this call."
        ) from error
    # an open file can be replaced under its name; the row is then in a file that is never read
    # again
    if write and _file_identity(path) != before:
        raise LedgerError(
            f"The ledger {path} was deleted or replaced during a write; draw nothing, and"
            " restore it."
        )


def append(connection: sqlite3.Connection, head: Row | None, **content: Any) -> Row:
    """Append one row after `head` and return it; if the clock went back, append a clock row first."""
    previous, seq, now = (head.hash, head.seq + 1, utc_now()) if head else (_NO_HASH, 1, utc_now())
    # a clock set back is recorded, not refused: refusing would stop all releases
    if head and now < head.utc and content["kind"] != "clock":
        note = (
            f"the clock reads earlier than in row {head.seq}; rows are ordered by number, not by"
            " time"
        )
        return append(connection, append(connection, head, kind="clock", note=note), **content)
    row = Row(seq=seq, utc=now, **content)
    row = replace(row, hash=row.sealed(previous))
    marks = ", ".join(f":{name}" for name in _COLUMNS)
    connection.execute(f"INSERT INTO rows({', '.join(_COLUMNS)}) VALUES ({marks})", vars(row))
    return row


def read_rows(connection: sqlite3.Connection) -> list[Row]:
    """Return all rows in order, without verification."""
    return rows_of(read_cells(connection))


def read_cells(connection: sqlite3.Connection, after: int | None = None) -> list[RowCells]:
    """Return the cells of all rows, or of the rows after a number, in order, without verification."""
    where = "" if after is None else f"WHERE seq > {after:d}"
    return connection.execute(
        f"SELECT {', '.join(_COLUMNS)} FROM rows {where} ORDER BY seq"
    ).fetchall()


def rows_of(cells: Iterable[RowCells]) -> list[Row]:
    """Convert cells to rows."""
    return [Row(**dict(zip(_COLUMNS, row, strict=True))) for row in cells]


def file_problems(connection: sqlite3.Connection) -> list[str]:
    """Return the problems that SQLite reports for the pages and the index of the file."""
    return [
        f"SQLite: {text}"
        for (text,) in connection.execute("PRAGMA integrity_check")
        if text != "ok"
    ]


def chain_problems(
    connection: sqlite3.Connection, rows: list[Row], after: Row | None = None
) -> list[str]:
    """Return the problems of the hash chain: edited, inserted, reordered or missing rows.

    Parameters
    ----------
    rows : rows to check.
    after : last verified row before these.

    Notes
    -----
    An edit is detected unless all later hashes were recomputed, and a truncated end unless SQLite's
    counter was also set back. A complete old copy is consistent in itself: only a row hash stored
    elsewhere (`Receipt.hash`) or a saved result without a row reveals it.
    """
    problems, first, previous = [], after.seq + 1 if after else 1, after.hash if after else _NO_HASH
    for position, row in enumerate(rows, start=first):
        if row.seq != position:
            problems.append(
                f"row {position} is missing or out of order (the row there has number {row.seq})"
            )
            break
        if row.hash != row.sealed(previous):
            problems.append(f"row {position} was edited, or rows before it were removed")
        # continue from the stored hash, so that one edit is reported once and not for every later
        # row
        previous = str(row.hash)
    # AUTOINCREMENT has a separate counter, which truncation of the rows leaves unchanged
    counter, held = (
        connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'rows'").fetchone(),
        len(rows),
    )
    if not after and (not rows or rows[0].kind != "ledger"):
        problems.append("the first row, which names the ledger, is missing")
    elif counter != (held := first - 1 + held,):
        problems.append(
            f"the file has counted {counter and counter[0]} rows but holds {held}: the end was"
            " cut off"
        )
    return problems


def sync_folder(folder: Path) -> None:
    """Make new or renamed entries of a folder survive a power cut, if the system supports it."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _file_identity(path: Path) -> tuple[int, int] | None:
    """Return device and inode of the file at `path`, or None."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    if not stat.S_ISREG(status.st_mode):
        raise LedgerError(f"{path} is not a file; give the path of a ledger.")
    return status.st_dev, status.st_ino


def _check_format(connection: sqlite3.Connection, path: Path) -> None:
    """Raise LedgerError for a file of another program or later format, or with altered triggers."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION_ID:
        raise LedgerError(
            f"{path} is not a ledger (it is empty, or another program's file); give the ledger's"
            " path."
        )
    if version > FORMAT:
        raise LedgerError(
            f"{path} has format {version}, this program knows {FORMAT}; update the program."
        )
    statements = connection.execute(
        "SELECT sql FROM sqlite_master WHERE name <> 'sqlite_sequence'"
    ).fetchall()
    if version != FORMAT or {sql for (sql,) in statements} != set(_TRIGGERS):
        raise LedgerError(
            f"The ledger {path} is damaged: its append-only rules were altered. Restore it from a"
            " copy."
        )


def _error_text(path: Path, error: sqlite3.Error) -> str:
    """Describe a failure of SQLite in plain words."""
    extended = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)
    code = extended & 0xFF
    if extended == sqlite3.SQLITE_READONLY_DBMOVED or not path.exists():
        return f"The ledger {path} was deleted or moved while it was in use; put it back."
    writable = os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return (
            f"Another program is writing to the ledger {path} and did not finish in time; try"
            " again."
        )
    if code == sqlite3.SQLITE_FULL:
        return f"The disk that holds the ledger {path} is full; free some space and try again."
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM) or (
        code == sqlite3.SQLITE_CANTOPEN and not writable
    ):
        return f"The ledger {path} or its folder is read-only; make both writable."
    if code == sqlite3.SQLITE_CONSTRAINT:
        return f"The ledger {path} refused a change: its rows are append-only."
    if code == sqlite3.SQLITE_NOTADB:
        return (
            f"{path} is not a ledger, or its beginning is damaged; give the right path, or restore"
            " it from a copy."
        )
    if code == sqlite3.SQLITE_CORRUPT:
        return f"The ledger {path} is damaged; restore it from a copy."
    return (
        f"The ledger {path} could not be read or written ({error}); look at the disk, then try"
        " again."
    )
