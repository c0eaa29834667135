"""Hash-chained rows in one SQLite file.

This module knows how rows are kept and nothing of what they mean; `ledger` gives them their meaning.

One file and nothing else: the rollback journal (never WAL, whose side file can be lost or left behind in a copy), with
`synchronous=EXTRA`, so that a commit that returned is on the disk.  A connection lives for one transaction: there is
nothing to share between threads or processes, and a file that was deleted or replaced is noticed.  (A program that
uses a ledger must not `open()` the file itself: on POSIX, closing it would drop SQLite's locks.)  No decision rests on
an unchecked row: what was checked before is remembered in `checked`, and what is new is checked in every transaction.
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

APPLICATION_ID, FORMAT = 0x44504C47, 1  # "DPLG", written into the header of the file
RowCells = tuple[Any, ...]  # of one row, in the order of its columns, whatever a damaged file holds
_NO_HASH = "0" * 64
_COLUMNS = ("seq", "utc", "kind", "dataset", "key", "pcost", "plan_hash", "sha256", "size", "note", "hash")
# REPLACE deletes rows without firing delete triggers, so a third trigger has to refuse what would be replaced
_RULES = (
    """CREATE TABLE rows(
        seq INTEGER PRIMARY KEY AUTOINCREMENT, utc TEXT NOT NULL, kind TEXT NOT NULL, dataset TEXT NOT NULL,
        key TEXT NOT NULL, pcost TEXT NOT NULL, plan_hash TEXT NOT NULL, sha256 TEXT NOT NULL, size INTEGER NOT NULL,
        note TEXT NOT NULL, hash TEXT NOT NULL)""",
    "CREATE UNIQUE INDEX one_row_per_key ON rows(kind, key) WHERE kind IN ('dataset', 'spend', 'saved')",
    """CREATE TRIGGER never_update BEFORE UPDATE ON rows BEGIN SELECT RAISE(ABORT, 'rows are append-only'); END""",
    """CREATE TRIGGER never_delete BEFORE DELETE ON rows BEGIN SELECT RAISE(ABORT, 'rows are append-only'); END""",
    """CREATE TRIGGER never_replace BEFORE INSERT ON rows
        WHEN NEW.seq IS NOT (SELECT coalesce(max(seq), 0) + 1 FROM rows)
        OR EXISTS (SELECT 1 FROM rows WHERE kind = NEW.kind AND key = NEW.key AND kind IN ('dataset', 'spend', 'saved'))
        BEGIN SELECT RAISE(ABORT, 'rows are append-only'); END""",
)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row; fields that a kind does not use are empty.  `pcost` is a decimal number as text, `utc` ISO 8601."""

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
        """The hash of this row after a row with hash `previous`: sha256 of it and of the row as canonical JSON."""
        content = {name: value for name, value in vars(self).items() if name != "hash"}
        text = json.dumps(content, sort_keys=True, separators=(",", ":"), default=repr)
        return hashlib.sha256((previous + text).encode()).hexdigest()


def utc_now() -> str:
    """The clock of this machine in UTC; information only, the order of rows is `seq`."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def create_file(path: Path) -> None:
    """Make a new file with its rules and first row, refusing to touch any file that is there."""
    try:
        # O_EXCL: of two programs that create at once one is refused, and no file is ever emptied
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        raise LedgerError(f"{path} is there already; open it with Ledger(path), or choose another name.") from None
    except OSError as error:
        raise LedgerError(f"The ledger {path} could not be created: {error.strerror}.") from error
    with transaction(path, write=True, wait=5.0, new=True) as connection:
        for rule in _RULES:
            connection.execute(rule)
        connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version={FORMAT}")
        # the name of this ledger, so that two ledgers never share a hash
        append(connection, None, kind="ledger", note=uuid4().hex)
    sync_folder(path.parent)


@contextmanager
def transaction(path: Path, *, write: bool, wait: float, new: bool = False) -> Iterator[sqlite3.Connection]:
    """A connection inside one transaction that commits at the end, and rolls back on any exception.

    Raises: LedgerError in plain words for every failure of SQLite or of the file below it.
    """
    before = _place(path)
    if before is None:
        raise LedgerError(
            f"There is no ledger at {path}. A missing ledger never means a fresh budget: put it back from where it "
            "was moved or backed up. Only for records never released before, make one with Ledger.create(path)."
        )
    try:
        # mode=rw never creates: a ledger that is missing must not come back empty
        uri = f"{path.as_uri()}?mode=rw"
        with closing(sqlite3.connect(uri, uri=True, timeout=wait, isolation_level=None)) as connection:
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 1 << 20)
            # EXTRA syncs the folder too, so that a row granted before a power cut is there after it
            for setting in ("trusted_schema=OFF", "cell_size_check=ON", "synchronous=EXTRA", "fullfsync=ON"):
                connection.execute(f"PRAGMA {setting}")
            if connection.execute("PRAGMA journal_mode=DELETE").fetchone() != ("delete",):
                raise LedgerError(f"The ledger {path} cannot keep a rollback journal; was its journal mode changed?")
            # the write lock comes before the reading: no two programs may see the same budget left and both spend it
            connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
            if not new:
                _check_form(connection, path)
            yield connection
            connection.execute("COMMIT")
    except sqlite3.Error as error:
        raise LedgerError(f"{_reason(path, error)} Nothing was granted by this call.") from error
    # an open file can be replaced under its name: the row then went to a file that nobody will read again
    if write and _place(path) != before:
        raise LedgerError(f"The ledger {path} was deleted or replaced during a write; draw nothing, and restore it.")


def append(connection: sqlite3.Connection, head: Row | None, **content: Any) -> Row:
    """Add one row after `head` and return it; a clock that went back gets a row of its own before it."""
    previous, seq, now = (head.hash, head.seq + 1, utc_now()) if head else (_NO_HASH, 1, utc_now())
    # a clock set back is told in a row, not refused: refusing would stop releases, hiding it would blur the order
    if head and now < head.utc and content["kind"] != "clock":
        note = f"the clock reads earlier than in row {head.seq}; rows are ordered by number, not by time"
        return append(connection, append(connection, head, kind="clock", note=note), **content)
    row = Row(seq=seq, utc=now, **content)
    row = replace(row, hash=row.sealed(previous))
    marks = ", ".join(f":{name}" for name in _COLUMNS)
    connection.execute(f"INSERT INTO rows({', '.join(_COLUMNS)}) VALUES ({marks})", vars(row))
    return row


def read_rows(connection: sqlite3.Connection) -> list[Row]:
    """Every row in order, unchecked."""
    return rows_of(read_cells(connection))


def read_cells(connection: sqlite3.Connection, after: int | None = None) -> list[RowCells]:
    """The cells of every row in order, or of those past a number, unchecked."""
    where = "" if after is None else f"WHERE seq > {after:d}"
    return connection.execute(f"SELECT {', '.join(_COLUMNS)} FROM rows {where} ORDER BY seq").fetchall()


def rows_of(cells: Iterable[RowCells]) -> list[Row]:
    """Rows from their cells."""
    return [Row(**dict(zip(_COLUMNS, row, strict=True))) for row in cells]


def file_problems(connection: sqlite3.Connection) -> list[str]:
    """What SQLite itself finds wrong with the pages and the index of the file."""
    return [f"SQLite: {text}" for (text,) in connection.execute("PRAGMA integrity_check") if text != "ok"]


def chain_problems(connection: sqlite3.Connection, rows: list[Row], after: Row | None = None) -> list[str]:
    """What is wrong with the chain: edited, inserted, reordered or missing rows.

    `after` is the last of the rows before these, which were checked earlier.
    An edit is seen unless every later hash was computed anew, and so is a cut tail unless SQLite's own counter
    was set back, too.  A whole file put back from an old copy looks right from inside: only a row hash kept
    elsewhere (`Receipt.hash`) or a saved result without a row shows it.
    """
    problems, first, previous = [], after.seq + 1 if after else 1, after.hash if after else _NO_HASH
    for position, row in enumerate(rows, start=first):
        if row.seq != position:
            problems.append(f"row {position} is missing or out of order (found number {row.seq})")
            break
        if row.hash != row.sealed(previous):
            problems.append(f"row {position} was edited, or rows before it were removed")
        # go on from the hash as it stands, so that one edit is one problem and not one for every later row
        previous = str(row.hash)
    # AUTOINCREMENT keeps its own count, which a cut tail leaves behind
    counter, held = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'rows'").fetchone(), len(rows)
    if not after and (not rows or rows[0].kind != "ledger"):
        problems.append("the first row, which names the ledger, is missing")
    elif counter != (held := first - 1 + held,):
        problems.append(f"the file has counted {counter and counter[0]} rows but holds {held}: the end was cut off")
    return problems


def sync_folder(folder: Path) -> None:
    """Make a new or renamed entry of `folder` survive a power cut (where the system can)."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _place(path: Path) -> tuple[int, int] | None:
    """Which file lies at `path`, if any."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    if not stat.S_ISREG(status.st_mode):
        raise LedgerError(f"{path} is not a file; give the path of a ledger.")
    return status.st_dev, status.st_ino


def _check_form(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse a file that is no ledger, is of a later format, or whose rules were altered, before reading its rows."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION_ID:
        raise LedgerError(f"{path} is not a ledger (it is empty, or another program's file); give the ledger's path.")
    if version > FORMAT:
        raise LedgerError(f"{path} has format {version}, this program knows {FORMAT}; update the program.")
    found = connection.execute("SELECT sql FROM sqlite_master WHERE name <> 'sqlite_sequence'").fetchall()
    if version != FORMAT or {sql for (sql,) in found} != set(_RULES):
        raise LedgerError(f"The ledger {path} is damaged: its append-only rules were altered. Restore it from a copy.")


def _reason(path: Path, error: sqlite3.Error) -> str:
    """A failure of SQLite in plain words."""
    extended = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)
    code = extended & 0xFF
    if extended == sqlite3.SQLITE_READONLY_DBMOVED or not path.exists():
        return f"The ledger {path} was deleted or moved while it was in use; put it back."
    writable = os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return f"Another program is writing to the ledger {path} and did not finish in time; try again."
    if code == sqlite3.SQLITE_FULL:
        return f"The disk that holds the ledger {path} is full; free some space and try again."
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM) or (code == sqlite3.SQLITE_CANTOPEN and not writable):
        return f"The ledger {path} or its folder is read-only; make both writable."
    if code == sqlite3.SQLITE_CONSTRAINT:
        return f"The ledger {path} refused a change: its rows are append-only."
    if code == sqlite3.SQLITE_NOTADB:
        return f"{path} is not a ledger, or its beginning is damaged; give the right path, or restore it from a copy."
    if code == sqlite3.SQLITE_CORRUPT:
        return f"The ledger {path} is damaged; restore it from a copy."
    return f"The ledger {path} could not be read or written ({error}); look at the disk, then try again."
