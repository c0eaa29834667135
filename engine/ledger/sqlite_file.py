"""The ledger as one SQLite file: transactions, locks and hash-chained rows.

This module stores rows; `ledger` and `balance` define their meaning.

SQLite uses its rollback journal. It does not use a write-ahead log, because a user who copies the
ledger could forget the second file of the log. With ``synchronous=EXTRA`` a row is on the disk when
its commit returns. Every transaction opens and closes its own connection: threads and processes
share no connection, and a file that was deleted or replaced between transactions is detected. A
program that uses a ledger must not `open()` the file itself: on POSIX, closing the file would
release the locks of SQLite.
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
# values of one row in the order of `_COLUMNS`; a damaged file may contain values of any type
RowCells = tuple[Any, ...]
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
# SQL statements that create the table and make its rows append-only. INSERT OR REPLACE deletes rows
# without firing delete triggers, so the trigger never_replace refuses it.
_SCHEMA = (
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

    Attributes
    ----------
    seq : number of the row, from 1.
    utc : time in ISO 8601.
    kind : "ledger" (first row), "dataset", "total", "spend", "saved", "clock" or "note:" + a word.
    dataset : name of the dataset.
    key : key of a release; in rows of kind "dataset" the name of the dataset.
    pcost : cost of a spend, or amount of a total, as decimal text; the text has the prefix
        "epsilon " if its unit is pure epsilon.
    plan_hash : hash of the plan in rows of kind "spend"; definition of the total in rows of kind
        "dataset" and "total".
    sha256 : SHA-256 of the result in rows of kind "saved"; fingerprint of the records in rows of
        kind "spend".
    size : bytes of the result in rows of kind "saved".
    note : one line of text.
    hash : hash of this row and of all rows before it.
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
        """Return the hash of this row: SHA-256 of the previous row's hash and this row as JSON."""
        content = {name: value for name, value in vars(self).items() if name != "hash"}
        text = json.dumps(content, sort_keys=True, separators=(",", ":"), default=repr)
        return hashlib.sha256((previous + text).encode()).hexdigest()


def utc_now() -> str:
    """Return the time of this machine in UTC, in ISO 8601 with microseconds."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def create_file(path: Path) -> None:
    """Create a ledger file with its table, its triggers and the first row.

    Raises LedgerError if the file exists or cannot be created.
    """
    try:
        # with O_EXCL only one of two concurrent creations succeeds, and no existing file is emptied
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        raise LedgerError(
            f"The file {path} exists already. If it is a ledger, use it; otherwise give another"
            " name."
        ) from None
    except OSError as error:
        raise LedgerError(
            f"The ledger {path} could not be created: {error.strerror}. Give a path in an existing"
            " folder with free space in which you may write."
        ) from error
    with transaction(path, write=True, wait=5.0, new=True) as connection:
        for statement in _SCHEMA:
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version={FORMAT}")
        # a unique id of this ledger, so that two ledgers never share a hash
        append(connection, head=None, kind="ledger", note=uuid4().hex)
    sync_folder(path.parent)


# what is known about the ledger after an error of SQLite, before and during COMMIT
UNCHANGED = "The ledger was not changed."
UNKNOWN = (
    "The ledger may or may not have the new row. Make the same call again: it never charges a spend"
    " twice."
)


@contextmanager
def transaction(
    path: Path, *, write: bool, wait: float, new: bool = False
) -> Iterator[sqlite3.Connection]:
    """Yield a connection inside one transaction, committed at the end or rolled back on exceptions.

    Parameters
    ----------
    write : whether the transaction takes the write lock before it reads.
    wait : seconds to wait for the lock.
    new : whether the file is still empty; the format of an empty file is not checked.

    Raises
    ------
    LedgerError
        There is no file, the file is not a ledger, SQLite reports an error, or the file was
        replaced during a writing transaction.
    """
    before = _file_identity(path)
    if before is None:
        raise LedgerError(
            f"There is no ledger at {path}. If it was moved or deleted, restore it: a new ledger"
            " would grant the spent budget again. Create a new ledger only for records that were"
            " never released."
        )
    state = UNCHANGED
    try:
        # mode=rw never creates a file: a missing ledger must not reappear empty
        uri = f"{path.as_uri()}?mode=rw"
        with closing(
            sqlite3.connect(uri, uri=True, timeout=wait, isolation_level=None)
        ) as connection:
            # a text of a damaged or forged file takes at most 1 MiB of memory
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
                    f"The ledger {path} has another journal mode than DELETE, and the mode cannot be"
                    " changed now. Close all programs that use the file, then try again."
                )
            # BEGIN IMMEDIATE takes the write lock before reading, so that two programs cannot both
            # read the same remaining budget and spend it
            connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
            if not new:
                _check_format(connection, path)
            yield connection
            state = UNKNOWN if write else UNCHANGED
            connection.execute("COMMIT")
    except sqlite3.Error as error:
        raise LedgerError(f"{_error_text(path, error)} {state}") from error
    # if the file was replaced during the transaction, the new row was written to the old file,
    # which no program can open any more
    if write and _file_identity(path) != before:
        raise LedgerError(
            f"The ledger {path} was deleted or replaced while a row was written, so the row is"
            " lost. Restore the ledger, then make the same call again. Draw no noise before the"
            " spend is in the ledger."
        )


def append(connection: sqlite3.Connection, head: Row | None, **content: Any) -> Row:
    """Append one row to the table and return it.

    If the clock of this machine is before the time of the last row, a row of kind "clock" with a
    note about this is appended first.

    Parameters
    ----------
    head : last row of the table; None if the table is empty.
    content : fields of the new row, except ``seq``, ``utc`` and ``hash``.
    """
    now = utc_now()
    previous, seq = (head.hash, head.seq + 1) if head else (_NO_HASH, 1)
    # a clock that was set back is only recorded: an error here would stop all releases
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
    """Return the rows in order as tuples, without verification.

    With ``after``, only rows whose number is larger than ``after`` are returned.
    """
    where = "" if after is None else f"WHERE seq > {after:d}"
    return connection.execute(
        f"SELECT {', '.join(_COLUMNS)} FROM rows {where} ORDER BY seq"
    ).fetchall()


def rows_of(cells: Iterable[RowCells]) -> list[Row]:
    """Convert tuples from `read_cells` to `Row` objects."""
    return [Row(**dict(zip(_COLUMNS, row, strict=True))) for row in cells]


def file_problems(connection: sqlite3.Connection) -> list[str]:
    """Return the problems that SQLite's integrity check reports for the file."""
    return [
        f"SQLite: {text}"
        for (text,) in connection.execute("PRAGMA integrity_check")
        if text != "ok"
    ]


def chain_problems(
    connection: sqlite3.Connection, rows: list[Row], after: Row | None = None
) -> list[str]:
    """Return messages about edited, inserted, reordered or missing rows of the hash chain.

    The check of the rows ends at the first row whose number is not the expected one.

    Parameters
    ----------
    rows : rows to check, up to the last row of the ledger.
    after : verified row directly before ``rows``; None if ``rows`` starts with the first row.

    Notes
    -----
    An edited row is detected unless all later hashes were recomputed too. Rows removed at the end
    are detected unless SQLite's row counter was set back too. A complete old copy of the ledger
    passes this check: only a row hash stored elsewhere (`Receipt.hash`), or a saved result without
    a row, reveals that later rows are missing.
    """
    problems = []
    first, previous = (after.seq + 1, after.hash) if after else (1, _NO_HASH)
    for position, row in enumerate(rows, start=first):
        if row.seq != position:
            problems.append(
                f"row {position} is missing or out of order (the row there has number {row.seq})"
            )
            break
        if row.hash != row.sealed(previous):
            problems.append(f"row {position} was edited, or rows before it were removed")
        # compare the next row with the stored hash, so that one edit is reported only once
        previous = str(row.hash)
    # SQLite's AUTOINCREMENT counts appended rows in a separate table, and deleting rows does not
    # change this counter
    counter = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'rows'").fetchone()
    n_rows = first - 1 + len(rows)
    if not after and (not rows or rows[0].kind != "ledger"):
        problems.append("the first row, which names the ledger, is missing")
    elif counter != (n_rows,):
        problems.append(
            f"the file has {n_rows} rows, but its counter of appended rows is"
            f" {counter and counter[0]}: rows were removed or inserted, or the counter was changed"
        )
    return problems


def sync_folder(folder: Path) -> None:
    """Sync a folder, so that new and renamed files survive a power cut; does nothing on Windows."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _file_identity(path: Path) -> tuple[int, int] | None:
    """Return device and inode of the file at ``path``, or None if there is no file.

    Raises LedgerError if the path is a folder, a device or another special file.
    """
    try:
        status = os.stat(path)
    except OSError:
        return None
    if not stat.S_ISREG(status.st_mode):
        raise LedgerError(f"{path} is not a regular file. Give the path of a ledger.")
    return status.st_dev, status.st_ino


def _check_format(connection: sqlite3.Connection, path: Path) -> None:
    """Raise LedgerError for a file of another program or format, or with an altered table or trigger."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION_ID:
        raise LedgerError(
            f"{path} is not a ledger: it is empty, or a file of another program. Give the path of a"
            " ledger."
        )
    if version > FORMAT:
        raise LedgerError(
            f"The ledger {path} has format {version}, and this version of the program supports at"
            f" most {FORMAT}. Update the program."
        )
    statements = connection.execute(
        "SELECT sql FROM sqlite_master WHERE name <> 'sqlite_sequence'"
    ).fetchall()
    if version != FORMAT or {sql for (sql,) in statements} != set(_SCHEMA):
        raise LedgerError(
            f"The ledger {path} is damaged: its table, or the triggers that make rows append-only,"
            " were changed. Restore it from a copy."
        )


def _error_text(path: Path, error: sqlite3.Error) -> str:
    """Return a message for an error of SQLite: what is wrong, and what to do."""
    extended = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)
    code = extended & 0xFF
    if extended == sqlite3.SQLITE_READONLY_DBMOVED or not path.exists():
        return f"The ledger {path} was deleted or moved while it was in use. Restore it."
    writable = os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return (
            f"Another program was writing to the ledger {path} for the whole waiting time. Try"
            " again."
        )
    if code == sqlite3.SQLITE_FULL:
        return f"The disk of the ledger {path} is full. Free disk space, then try again."
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM) or (
        code == sqlite3.SQLITE_CANTOPEN and not writable
    ):
        return f"The ledger {path} or its folder is read-only. Make both writable."
    if code == sqlite3.SQLITE_CONSTRAINT:
        return f"The ledger {path} is append-only and refused a change of its rows. Append a row."
    if code == sqlite3.SQLITE_NOTADB:
        return (
            f"{path} is not a ledger, or its beginning is damaged. Give the path of a ledger, or"
            " restore it from a copy."
        )
    if code == sqlite3.SQLITE_CORRUPT:
        return f"The ledger {path} is damaged. Restore it from a copy."
    return (
        f"The ledger {path} could not be read or written: {error}. Check the disk and the"
        " permissions of the file, then try again."
    )
