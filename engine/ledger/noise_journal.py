"""Noise journal: the random bits of an unfinished release.

Once the spend is recorded, the same records and the journal give the same noise, so that going on is no second draw.
Who holds both the key and the result can take the noise away.  So the key is for its owner alone, beside ledger and
records, where the exact counts could be taken anyway, and goes when the result is saved; what a crash in between
leaves goes when the ledger is opened next.  A copy of the folder that was made in the meantime keeps it: do not
publish one.

A journal is found under the name of its release only by a run that holds its lock, and every spend is made by a run
that holds it.  A journal without a spend has made no noise: it is thrown away, and its key with it.
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
from engine.ledger.result_store import LOCKS, locked, reserved, result_file, results_folder

FORMAT, _ENDING, _SEED = "journal/1", ".journal", 32  # bytes


@dataclass(frozen=True, kw_only=True)
class Journal:
    """The key of one release, and a digest of its counts by that key."""

    seed: bytes = field(repr=False)
    digest: str = field(repr=False)
    place: Path

    def check(self, digest: str) -> None:
        """Raises: DataError if these are not the counts that the release was begun with."""
        if not hmac.compare_digest(self.digest, digest):
            raise DataError(
                "This release was begun with other records and paid for; nothing was drawn or spent now. Give the "
                "records of before, which ends it at no further cost, or use a new attempt, which spends again."
            )

    def bits(self, row_hash: str) -> Callable[[int], bytes]:
        """Return the source of bits for the spend in a row: the same for the same seed, counts and row, and no other.

        SHAKE-256 of the seed, what it is for, and the number of the request; no two requests share their input.

        >>> journal = Journal(seed=bytes(32), digest="d", place=Path("j"))
        >>> one, again, other = journal.bits("row 1"), journal.bits("row 1"), journal.bits("row 2")
        >>> first = one(8)
        >>> first == again(8), first == one(8), first == other(8)
        (True, False, False)
        """
        purpose = hashlib.sha256(json.dumps([FORMAT, self.place.name, self.digest, row_hash]).encode()).digest()
        requests = 0

        def stream(size: int) -> bytes:
            nonlocal requests
            requests += 1
            return hashlib.shake_256(self.seed + purpose + requests.to_bytes(8, "big")).digest(size)

        return stream

    def remove(self) -> None:
        """Forget the key, down to the disk."""
        self.place.unlink(missing_ok=True)
        sync_folder(self.place.parent)


@contextmanager
def journal(
    ledger: Path, key: str, *, seed: bytes, digest: Callable[[bytes], str], spent: Callable[[], object]
) -> Iterator[tuple[Journal | None, bool]]:
    """Hold the journal of a release, on the disk, and whether it was spent for before; then None if it has none.

    `seed` is fresh, for a new one; `digest` is of the counts, by a seed.
    Raises: LedgerError if another run holds it, or it cannot be read or made.
    """
    place = _place(ledger, key)
    with ExitStack() as held:
        file = _taken(place, held)
        if spent():
            # never a new one: it would be another draw for the same spend
            yield _read(file, place) if file else None, True
            return
        # nothing was spent for an old one, so that nothing was drawn with it
        place.unlink(missing_ok=True)
        new = Journal(seed=seed, digest=digest(seed), place=place)
        # where no lock tells the living from the dead nobody could take it up, so that it is not kept
        if LOCKS:
            content = json.dumps({"format": FORMAT, "seed": seed.hex(), "digest": new.digest}).encode()
            draft = held.enter_context(reserved(ledger, len(content)))
            draft.write(content)
            try:
                # link refuses where rename would replace: of two runs that begin at once one has the name
                os.link(draft.path, place)
            except FileExistsError:
                raise _busy(place) from None
            draft.path.unlink()
            sync_folder(place.parent)
        yield new, False


def broken_off(ledger: Path, key: str) -> bool:
    """Return whether a release left a journal, and no run is at work on it."""
    with ExitStack() as held, suppress(LedgerError):
        return _taken(_place(ledger, key), held) is not None
    return False


def remove_ended(ledger: Path, unfinished: Callable[[], Collection[str]]) -> None:
    """Remove the journals that no spend waits for; those of runs at work are locked, and stay."""
    for place in results_folder(ledger).glob(f"*{_ENDING}"):
        with ExitStack() as held, suppress(OSError, LedgerError):
            # asked under the lock: a run spends only while it holds it
            if _taken(place, held) and place not in {_place(ledger, key) for key in unfinished()}:
                place.unlink()
                sync_folder(place.parent)


def _place(ledger: Path, key: str) -> Path:
    return result_file(ledger, key).with_suffix(_ENDING)


def _taken(place: Path, held: ExitStack) -> BinaryIO | None:
    """The file under a name, locked for this run until `held` ends; None if nothing is there.

    Raises: LedgerError if another run holds it.
    """
    while True:
        try:
            handle = os.open(place, os.O_RDWR)
        except FileNotFoundError:
            return None
        file = held.enter_context(os.fdopen(handle, "r+b"))
        if not locked(file):
            raise _busy(place)
        # the run that held it may have ended in between and removed the name
        with suppress(FileNotFoundError):
            if os.fstat(file.fileno()).st_ino == os.stat(place).st_ino:
                return file


def _read(file: BinaryIO, place: Path) -> Journal | None:
    """The journal in a file; None if it is damaged, and what it was for is lost."""
    try:
        data = parse_json(file.read())
        if data["format"] != FORMAT or len(seed := bytes.fromhex(data["seed"])) != _SEED:
            return None
        return Journal(seed=seed, digest=str(data["digest"]), place=place)
    except (ValueError, KeyError, TypeError):
        return None


def _busy(place: Path) -> LedgerError:
    return LedgerError(
        f"Another run is at work on this release and holds {place.name}. This one spent nothing. Wait for it and ask "
        "again: the same attempt returns its result."
    )
