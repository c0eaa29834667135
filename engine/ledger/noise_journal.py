"""Noise journal: the seed of the random bits of an unfinished release.

After a crash, the journal and the same records reproduce the same noise, so an interrupted release
can be finished without drawing noise a second time.

Anyone with both the seed and the result can subtract the noise. The journal is therefore stored in
the folder of results next to the ledger, readable only by its owner, and deleted when the result is
saved. If a crash prevents this deletion, the next opening of the ledger deletes the journal. A copy
of the folder made before the deletion contains the seed and must not be published.

A run locks the journal before it spends budget and until its result is saved, and only the run that
holds the lock uses the seed. A journal without a spend in the ledger has produced no noise and is
deleted. On a system without file locks no journal is stored, and an interrupted release cannot be
finished.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from engine._untrusted import parse_json
from engine.errors import DataError, LedgerError
from engine.ledger.result_store import (
    HAS_FILE_LOCKS,
    locked,
    reserve_file,
    result_file,
    results_folder,
)
from engine.ledger.sqlite_file import sync_folder

FORMAT, _ENDING, _SEED_BYTES = "journal/1", ".journal", 32
# states of the journal of a release that was spent and has no saved result
ACTIVE, INTERRUPTED, LOST = "active", "interrupted", "lost"


@dataclass(frozen=True, kw_only=True)
class Journal:
    """Seed of the noise of one release, and a digest of the exact counts of that release.

    Attributes
    ----------
    seed : 32 random bytes.
    digest : digest of the exact counts, keyed with the seed.
    path : file of the journal.
    """

    seed: bytes = field(repr=False)
    digest: str = field(repr=False)
    path: Path

    def check(self, digest: str) -> None:
        """Raise DataError if ``digest`` differs from the digest with which the release started."""
        if not hmac.compare_digest(self.digest, digest):
            raise DataError(
                "An interrupted run of this release has spent its budget and counted other records."
                " This run drew and spent nothing. Give the records of the interrupted run, which"
                " finishes the release at no further cost, or use a new attempt, which spends"
                " again."
            )

    def bits(self, row_hash: str) -> Callable[[int], bytes]:
        """Return a function of a number n that returns the next n random bytes of this release.

        Call number i of this function (from 1) returns SHAKE-256 of the seed, a digest, and i. The
        digest identifies the release: it is computed from the name of the journal file, the digest
        of the counts, and ``row_hash``.

        Parameters
        ----------
        row_hash : hash of the ledger row that records the spend of this release.

        >>> journal = Journal(seed=bytes(32), digest="d", path=Path("j"))
        >>> one, again, other = journal.bits("row 1"), journal.bits("row 1"), journal.bits("row 2")
        >>> first = one(8)
        >>> first == again(8), first == one(8), first == other(8)
        (True, False, False)
        """
        purpose = hashlib.sha256(
            json.dumps([FORMAT, self.path.name, self.digest, row_hash]).encode()
        ).digest()
        requests = 0

        def stream(size: int) -> bytes:
            nonlocal requests
            requests += 1
            return hashlib.shake_256(self.seed + purpose + requests.to_bytes(8, "big")).digest(size)

        return stream

    def remove(self) -> None:
        """Delete the journal file durably."""
        self.path.unlink(missing_ok=True)
        sync_folder(self.path.parent)


@contextmanager
def journal(
    ledger: Path,
    key: str,
    *,
    seed: bytes,
    digest: Callable[[bytes], str],
    spent: Callable[[], object],
) -> Iterator[tuple[Journal | None, bool]]:
    """Lock the journal of a release whose budget is spent, or create one before the spend.

    A new journal replaces an earlier one without a spend. It is stored in a file only if the system
    has file locks.

    Parameters
    ----------
    key : key of the release.
    seed : 32 fresh random bytes for a new journal.
    digest : function that returns the digest of the exact counts, keyed with a seed.
    spent : function that returns a true value if the ledger has a spend of this release.

    Yields
    ------
    journal : Journal or None
        None if the ledger has a spend of this release but no readable journal: its noise cannot be
        reproduced.
    is_spent : bool
        Whether the ledger has a spend of this release.

    Raises
    ------
    LedgerError
        Another run has locked the journal, or the file cannot be opened or created.
    """
    path = _journal_path(ledger, key)
    with ExitStack() as locks:
        file = _open_locked(path, locks)
        if spent():
            # a new journal would draw other noise for the same spend, so None is yielded if the
            # journal is missing or damaged
            yield _read(file, path) if file else None, True
            return
        # an earlier journal without a spend has produced no noise, so it is replaced
        path.unlink(missing_ok=True)
        new = Journal(seed=seed, digest=digest(seed), path=path)
        # Without file locks, the journal of a killed run could not be distinguished from the
        # journal of an active run. On such a system no journal is stored.
        if HAS_FILE_LOCKS:
            content = json.dumps(
                {"format": FORMAT, "seed": seed.hex(), "digest": new.digest}
            ).encode()
            draft = locks.enter_context(reserve_file(ledger, len(content)))
            draft.write(content)
            try:
                # `link` fails if the name exists, so only one of two concurrent runs succeeds.
                # `rename` would replace the journal of the other run.
                os.link(draft.path, path)
            except FileExistsError:
                raise _locked_error(path) from None
            draft.path.unlink()
            sync_folder(path.parent)
        yield new, False


def journal_state(ledger: Path, key: str) -> str:
    """Return the state of the journal of a release.

    `ACTIVE` means that a run has locked the journal, `INTERRUPTED` that the journal is readable and
    no run has locked it, and `LOST` that it is missing or damaged. On a system without file locks
    no journal is stored, so the state is always `LOST`.

    Raises
    ------
    LedgerError
        The journal exists, but cannot be opened.
    """
    path = _journal_path(ledger, key)
    with ExitStack() as locks:
        try:
            file = _open_locked(path, locks)
        except _LockedError:
            return ACTIVE
        return LOST if file is None or _read(file, path) is None else INTERRUPTED


def remove_ended(ledger: Path, unfinished: Callable[[], Collection[str]]) -> None:
    """Delete the journals that no active run has locked and that no release needs any more.

    Parameters
    ----------
    unfinished : function that returns the keys of the releases with a spend and without a saved
        result. The journals of these releases are kept.
    """
    for path in results_folder(ledger).glob(f"*{_ENDING}"):
        with ExitStack() as locks, suppress(OSError, LedgerError):
            # `unfinished` is called under the lock: no run can spend under this key meanwhile,
            # because a run spends only while it holds the lock
            if _open_locked(path, locks) and path not in {
                _journal_path(ledger, key) for key in unfinished()
            }:
                path.unlink()
                sync_folder(path.parent)


def _journal_path(ledger: Path, key: str) -> Path:
    return result_file(ledger, key).with_suffix(_ENDING)


def _open_locked(path: Path, locks: ExitStack) -> BinaryIO | None:
    """Open a journal file and lock it until ``locks`` is closed; return None if it does not exist.

    Raises LedgerError if the file cannot be opened or another run holds the lock.
    """
    while True:
        try:
            handle = os.open(path, os.O_RDWR)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise LedgerError(
                f"The noise journal {path.name} of this release cannot be opened: {error.strerror}."
                " This call spent nothing. Make the file readable and writable."
            ) from None
        file = locks.enter_context(os.fdopen(handle, "r+b"))
        if not locked(file):
            raise _locked_error(path)
        # The run that held the lock before may have deleted the file after `os.open` above. In that
        # case the name belongs to no file or to a new one, and the loop opens it again.
        with suppress(FileNotFoundError):
            if os.fstat(file.fileno()).st_ino == os.stat(path).st_ino:
                return file


def _read(file: BinaryIO, path: Path) -> Journal | None:
    """Return the journal in an open file, or None if its content is damaged."""
    try:
        data = parse_json(file.read())
        if data["format"] != FORMAT or len(seed := bytes.fromhex(data["seed"])) != _SEED_BYTES:
            return None
        return Journal(seed=seed, digest=str(data["digest"]), path=path)
    except (ValueError, KeyError, TypeError):
        return None


class _LockedError(LedgerError):
    """Another run has locked the journal."""


def _locked_error(path: Path) -> LedgerError:
    return _LockedError(
        f"Another run of this release is active and has locked {path.name}. This run spent"
        " nothing. Wait until the other run ends, then repeat the same attempt: it returns the"
        " result of that run."
    )
