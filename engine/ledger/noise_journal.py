"""Noise journal: the seed of the random bits of an unfinished release.

After a crash, the journal and the same records reproduce the same noise, so finishing an interrupted
release is not a second draw. Anyone with both the seed and the result can subtract the noise. The
journal is therefore readable only by its owner, is stored in the folder of results next to the
ledger, where the exact counts are accessible anyway, and is deleted when the result is saved. If a
crash prevents this deletion, the next opening of the ledger deletes it. A copy of the folder made
in the meantime contains the seed and must not be published.

A run locks the journal before it spends and until its result is saved, and only the holder of the
lock uses the seed. A journal without a spend has produced no noise and is deleted. On a system
without file locks no journal is stored, and an interrupted release cannot be finished.
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
from engine.ledger.hash_chain import sync_folder
from engine.ledger.result_store import (
    HAS_FILE_LOCKS,
    locked,
    reserve_file,
    result_file,
    results_folder,
)

FORMAT, _ENDING, _SEED_BYTES = "journal/1", ".journal", 32


@dataclass(frozen=True, kw_only=True)
class Journal:
    """Seed of the noise of one release, and the digest of the counts for which it was created.

    The digest is keyed with the seed; ``path`` is the file of the journal.
    """

    seed: bytes = field(repr=False)
    digest: str = field(repr=False)
    path: Path

    def check(self, digest: str) -> None:
        """Raise DataError unless ``digest`` belongs to the counts with which the release started."""
        if not hmac.compare_digest(self.digest, digest):
            raise DataError(
                "This release was started with other records, and its budget is spent. Nothing was"
                " drawn or spent now. Give those records, which finishes the release at no further"
                " cost, or use a new attempt, which spends again."
            )

    def bits(self, row_hash: str) -> Callable[[int], bytes]:
        """Return a function that returns the next random bytes of a release, given their number.

        ``row_hash`` is the hash of the ledger row of the spend. The bytes are SHAKE-256 of the
        seed, a digest of journal, counts and row, and the number of the call, so no two calls hash
        the same input.

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
    """Lock the journal of a release, or create it; yield (journal, whether budget is spent already).

    Parameters
    ----------
    seed : fresh random bytes for a new journal.
    digest : function that returns the digest of the counts, keyed with a seed.
    spent : function that returns a true value if the ledger has a spend of this release.

    Yields
    ------
    The journal and whether the ledger has a spend. The journal is None if there is a spend and no
    readable journal; the noise of that release cannot be reproduced.

    Raises
    ------
    LedgerError
        Another run has locked the journal, or it cannot be opened or created.
    """
    path = _journal_path(ledger, key)
    with ExitStack() as locks:
        file = _open_locked(path, locks)
        if spent():
            # a new journal would be a second draw for the same spend
            yield _read(file, path) if file else None, True
            return
        # a journal without a spend has produced no noise
        path.unlink(missing_ok=True)
        new = Journal(seed=seed, digest=digest(seed), path=path)
        # without file locks, the journal of a killed run looks like that of an active run, so none
        # is stored
        if HAS_FILE_LOCKS:
            content = json.dumps(
                {"format": FORMAT, "seed": seed.hex(), "digest": new.digest}
            ).encode()
            draft = locks.enter_context(reserve_file(ledger, len(content)))
            draft.write(content)
            try:
                # link fails if the name exists, so only one of two concurrent runs succeeds; rename
                # would replace the file of the other
                os.link(draft.path, path)
            except FileExistsError:
                raise _locked_error(path) from None
            draft.path.unlink()
            sync_folder(path.parent)
        yield new, False


def is_interrupted(ledger: Path, key: str) -> bool:
    """Return whether a release has a journal that no active run has locked."""
    with ExitStack() as locks, suppress(LedgerError):
        return _open_locked(_journal_path(ledger, key), locks) is not None
    return False


def remove_ended(ledger: Path, unfinished: Callable[[], Collection[str]]) -> None:
    """Delete the journals of releases that have a result or no spend, unless a run has locked them.

    ``unfinished`` returns the keys of all other releases: those with a spend and no result.
    """
    for path in results_folder(ledger).glob(f"*{_ENDING}"):
        with ExitStack() as locks, suppress(OSError, LedgerError):
            # evaluated under the lock, because a run spends only while it holds the lock
            if _open_locked(path, locks) and path not in {
                _journal_path(ledger, key) for key in unfinished()
            }:
                path.unlink()
                sync_folder(path.parent)


def _journal_path(ledger: Path, key: str) -> Path:
    return result_file(ledger, key).with_suffix(_ENDING)


def _open_locked(path: Path, locks: ExitStack) -> BinaryIO | None:
    """Open a file and lock it until ``locks`` is closed; return None if it does not exist.

    Raises LedgerError if the file cannot be opened or another run holds the lock.
    """
    while True:
        try:
            handle = os.open(path, os.O_RDWR)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise LedgerError(
                f"The file {path.name} of this release cannot be opened: {error.strerror}. Nothing"
                " was spent now. Make the file readable and writable."
            ) from None
        file = locks.enter_context(os.fdopen(handle, "r+b"))
        if not locked(file):
            raise _locked_error(path)
        # the run that had the lock before may have deleted the file after it was opened here
        with suppress(FileNotFoundError):
            if os.fstat(file.fileno()).st_ino == os.stat(path).st_ino:
                return file


def _read(file: BinaryIO, path: Path) -> Journal | None:
    """Read a journal; return None if it is damaged."""
    try:
        data = parse_json(file.read())
        if data["format"] != FORMAT or len(seed := bytes.fromhex(data["seed"])) != _SEED_BYTES:
            return None
        return Journal(seed=seed, digest=str(data["digest"]), path=path)
    except (ValueError, KeyError, TypeError):
        return None


def _locked_error(path: Path) -> LedgerError:
    return LedgerError(
        f"Another run of this release is active and has locked {path.name}. This run spent"
        " nothing. Wait until the other run ends, then repeat the same attempt: it returns the"
        " result of that run."
    )
