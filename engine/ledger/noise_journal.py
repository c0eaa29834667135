"""Noise journal: the random bits of an unfinished release.

Once the spend is recorded, the same records and the journal reproduce the same noise, so finishing
an interrupted release is not a second draw. Anyone with both the journal key and the result can
subtract the noise. The key is therefore readable only by its owner, is stored in the folder of
ledger and records, where the exact counts are accessible anyway, and is deleted when the result is
saved. After a crash in between, it is deleted when the ledger is next opened. A copy of the folder
made in the meantime contains the key: do not publish one.

Only a run that holds the lock of a journal can use it, and every spend is made by a run that holds
the lock. A journal without a spend has produced no noise: it is discarded together with its key.
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

FORMAT, _ENDING, _SEED = "journal/1", ".journal", 32  # bytes


@dataclass(frozen=True, kw_only=True)
class Journal:
    """Key of one release, and the digest of its counts under that key."""

    seed: bytes = field(repr=False)
    digest: str = field(repr=False)
    place: Path

    def check(self, digest: str) -> None:
        """Raise DataError unless these are the counts with which the release started."""
        if not hmac.compare_digest(self.digest, digest):
            raise DataError(
                "This release was started and paid for with other records; nothing was drawn or"
                " spent now. Give the earlier records, which finishes it at no further cost, or use"
                " a new attempt, which spends again."
            )

    def bits(self, row_hash: str) -> Callable[[int], bytes]:
        """Return the bit source of the spend in a row, determined by seed, counts and row.

        The bits are SHAKE-256 of the seed, a digest of the purpose and the number of the request,
        so no two requests have the same input.

        >>> journal = Journal(seed=bytes(32), digest="d", place=Path("j"))
        >>> one, again, other = journal.bits("row 1"), journal.bits("row 1"), journal.bits("row 2")
        >>> first = one(8)
        >>> first == again(8), first == one(8), first == other(8)
        (True, False, False)
        """
        purpose = hashlib.sha256(
            json.dumps([FORMAT, self.place.name, self.digest, row_hash]).encode()
        ).digest()
        requests = 0

        def stream(size: int) -> bytes:
            nonlocal requests
            requests += 1
            return hashlib.shake_256(self.seed + purpose + requests.to_bytes(8, "big")).digest(size)

        return stream

    def remove(self) -> None:
        """Delete the key durably."""
        self.place.unlink(missing_ok=True)
        sync_folder(self.place.parent)


@contextmanager
def journal(
    ledger: Path,
    key: str,
    *,
    seed: bytes,
    digest: Callable[[bytes], str],
    spent: Callable[[], object],
) -> Iterator[tuple[Journal | None, bool]]:
    """Lock the journal of a release; yield it and whether the release was already spent for.

    Parameters
    ----------
    seed : fresh random bytes for a new journal.
    digest : function that returns the digest of the counts under a seed.
    spent : function that returns a true value if the release was spent for.

    Yields
    ------
    The journal, or None if the release was spent for and has none.

    Raises
    ------
    LedgerError
        Another run holds the journal, or it cannot be read or created.
    """
    place = _place(ledger, key)
    with ExitStack() as locks:
        file = _open_locked(place, locks)
        if spent():
            # never a new journal: it would be a second draw for the same spend
            yield _read(file, place) if file else None, True
            return
        # an old journal without a spend has produced no noise
        place.unlink(missing_ok=True)
        new = Journal(seed=seed, digest=digest(seed), place=place)
        # without file locks a stale journal cannot be recognised, so none is stored
        if HAS_FILE_LOCKS:
            content = json.dumps(
                {"format": FORMAT, "seed": seed.hex(), "digest": new.digest}
            ).encode()
            draft = locks.enter_context(reserve_file(ledger, len(content)))
            draft.write(content)
            try:
                # link fails if the name exists, where rename would replace: only one of two
                # concurrent runs gets the name
                os.link(draft.path, place)
            except FileExistsError:
                raise _busy(place) from None
            draft.path.unlink()
            sync_folder(place.parent)
        yield new, False


def is_interrupted(ledger: Path, key: str) -> bool:
    """Whether a release left a journal that no run has locked."""
    with ExitStack() as locks, suppress(LedgerError):
        return _open_locked(_place(ledger, key), locks) is not None
    return False


def remove_ended(ledger: Path, unfinished: Callable[[], Collection[str]]) -> None:
    """Remove the journals without an unfinished spend; locked journals of active runs remain."""
    for place in results_folder(ledger).glob(f"*{_ENDING}"):
        with ExitStack() as locks, suppress(OSError, LedgerError):
            # evaluated under the lock, because a run spends only while it holds the lock
            if _open_locked(place, locks) and place not in {
                _place(ledger, key) for key in unfinished()
            }:
                place.unlink()
                sync_folder(place.parent)


def _place(ledger: Path, key: str) -> Path:
    return result_file(ledger, key).with_suffix(_ENDING)


def _open_locked(place: Path, locks: ExitStack) -> BinaryIO | None:
    """Open a file, locked until `locks` is closed; return None if it does not exist.

    Raises LedgerError if another run holds the lock.
    """
    while True:
        try:
            handle = os.open(place, os.O_RDWR)
        except FileNotFoundError:
            return None
        file = locks.enter_context(os.fdopen(handle, "r+b"))
        if not locked(file):
            raise _busy(place)
        # the previous holder may have removed the name between opening and locking
        with suppress(FileNotFoundError):
            if os.fstat(file.fileno()).st_ino == os.stat(place).st_ino:
                return file


def _read(file: BinaryIO, place: Path) -> Journal | None:
    """Read a journal; return None if it is damaged."""
    try:
        data = parse_json(file.read())
        if data["format"] != FORMAT or len(seed := bytes.fromhex(data["seed"])) != _SEED:
            return None
        return Journal(seed=seed, digest=str(data["digest"]), place=place)
    except (ValueError, KeyError, TypeError):
        return None


def _busy(place: Path) -> LedgerError:
    return LedgerError(
        f"Another run is at work on this release and holds {place.name}. This one spent nothing."
        " Wait for it and ask again: the same attempt returns its result."
    )
