"""Saved results beside a ledger: each one whole and checked, or not there at all.

The folder `<ledger>.results` holds one file per key.  A file is written under a temporary name, synced, and renamed;
its sha256 and size are then kept in the ledger.  A run that was killed may leave a `.part` file, which nobody reads.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from engine.errors import LedgerError
from engine.release.ledger.chain import Row, sync_folder

Content = bytes | Callable[[BinaryIO], object]


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A complete synced file that has not got its name yet."""

    path: Path
    sha256: str
    size: int

    def publish(self, target: Path) -> None:
        """Give the file its name; afterwards it is there even after a power cut."""
        os.replace(self.path, target)
        sync_folder(target.parent)


def results_folder(ledger: Path) -> Path:
    """Where the results of a ledger are kept.

    >>> results_folder(Path("budget.ledger")).name
    'budget.ledger.results'
    """
    return ledger.with_name(ledger.name + ".results")


def result_file(ledger: Path, key: str) -> Path:
    """The file of one key, named by the key's hash because a key may hold slashes and dots."""
    return results_folder(ledger) / f"{hashlib.sha256(key.encode()).hexdigest()}.result"


@contextmanager
def draft(ledger: Path, key: str, content: Content) -> Iterator[Draft]:
    """Write a result under a temporary name, which is removed again unless it was published.

    `content` is the bytes, or a function that writes them to the binary file it is given.
    Raises: LedgerError if the folder or the file cannot be written.
    """
    folder, partial = results_folder(ledger), ""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder.stat().st_mode & 0o077:  # made by an earlier version, for everybody to read
            folder.chmod(0o700)
        sync_folder(folder.parent)
        # in the same folder, because only within one file system is a new name given at once
        handle, partial = tempfile.mkstemp(dir=folder, suffix=".part")
        with open(handle, "wb") as file:
            if callable(content):
                content(file)
            else:
                file.write(content)
            # on the disk before it gets its name: after a power cut a result is whole or not there
            file.flush()
            os.fsync(file.fileno())
        yield Draft(path=Path(partial), sha256=_digest(Path(partial)), size=os.path.getsize(partial))
    except OSError as error:
        raise LedgerError(
            f"The result of key {key!r} could not be saved in {folder}: {error.strerror or error}. "
            "Its budget is spent: keep it, make room, and save it again with the same receipt."
        ) from error
    finally:
        with suppress(OSError):
            os.unlink(partial)


def result_problem(ledger: Path, saved: Row) -> str:
    """What is wrong with a saved result, or nothing; reads the whole file."""
    file = result_file(ledger, saved.key)
    try:
        if file.stat().st_size == saved.size and _digest(file) == saved.sha256:
            return ""
    except OSError:
        return f"the saved result of key {saved.key!r} cannot be read: {file}"
    return f"the saved result of key {saved.key!r} was changed: {file}"


def stray_results(ledger: Path, keys: Iterable[str]) -> list[str]:
    """Results whose key the ledger does not know: rows were lost, or the folder is another ledger's."""
    expected = {result_file(ledger, key).name for key in keys}
    found = sorted(file.name for file in results_folder(ledger).glob("*.result"))
    return [f"result {name} has no spend in the ledger: rows were lost" for name in found if name not in expected]


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
