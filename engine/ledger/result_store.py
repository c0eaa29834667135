"""Durable store of release results.

The folder `<ledger>.results` holds one file per key.  Its space is taken under a temporary name before anything is
spent; it is written, synced, and renamed, and its sha256 and size are then kept in the ledger.  What a killed run
leaves is removed when the ledger is opened next.
"""

from __future__ import annotations

import hashlib
import io
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from engine.errors import LedgerError
from engine.ledger.hash_chain import Row, sync_folder

try:
    import fcntl
except ImportError:  # a system without POSIX locks
    fcntl = None  # type: ignore[assignment]

LOCKS = fcntl is not None
Content = bytes | Callable[[BinaryIO], object]
_PART, _CHUNK = ".part", 1 << 20


@dataclass(kw_only=True)
class Draft:
    """A file that has its space on the disk and not yet its name; its owner holds a lock on it while it works."""

    path: Path
    file: _File
    sha256: str = ""
    size: int = 0

    def write(self, content: Content) -> None:
        """Write the whole content, down to the disk."""
        self.file.seek(0)
        self.file.end = 0
        if callable(content):
            content(self.file)
        else:
            self.file.write(content)
        self.file.truncate(self.file.end)
        # on the disk before it gets its name: after a power cut a result is whole or not there
        self.file.flush()
        os.fsync(self.file.fileno())
        self.sha256, self.size = _digest(self.path), os.path.getsize(self.path)

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
def reserved(ledger: Path, size: int) -> Iterator[Draft]:
    """Make a file of `size` bytes on the disk, to be written and published; it is removed again if it was not.

    Raises: LedgerError if there is no room, or the folder cannot be written.
    """
    folder = results_folder(ledger)
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder.stat().st_mode & 0o077:  # made by an earlier version, for everybody to read
            folder.chmod(0o700)
        # the folder is an entry of its parent, and a power cut loses entries that were not synced
        sync_folder(folder.parent)
        place, file = _owned(folder)
        with file:
            try:
                _allocate(file, size)
                yield Draft(path=place, file=file)
            finally:
                with suppress(OSError):
                    os.unlink(place)
    except OSError as error:
        raise LedgerError(
            f"A result could not be saved in {folder}: {error.strerror or error}. Make room, or make the folder "
            "writable, and try again."
        ) from error


def remove_stale(ledger: Path) -> None:
    """Remove what killed runs left behind; files of runs that are still at work are locked, and stay."""
    for place in results_folder(ledger).glob(f"*{_PART}"):
        with suppress(OSError), open(place, "r+b") as file:
            if locked(file):
                os.unlink(place)


class _File(io.BufferedRandom):
    """A file that knows where its content ends, though its space goes on and the writer may have gone back."""

    end = 0

    def write(self, data: Any, /) -> int:
        written = super().write(data)
        self.end = max(self.end, self.tell())
        return written


class _Measure(io.RawIOBase):
    """A file that keeps nothing but how long it would be; what is read of it is zeros."""

    end = place = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        memoryview(buffer)[:] = bytes(len(buffer))
        self.place += len(buffer)
        return len(buffer)

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.place

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        self.place = offset + (0, self.place, self.end)[whence]
        return self.place

    def write(self, data: Any, /) -> int:
        size = memoryview(data).nbytes
        self.place += size
        self.end = max(self.end, self.place)
        return size


def size_of(content: Content) -> int:
    """Return the bytes that a content takes, without keeping them."""
    if not callable(content):
        return len(content)
    measured = _Measure()
    content(measured)  # type: ignore[arg-type]
    return measured.end


def _owned(folder: Path) -> tuple[Path, _File]:
    """A new locked file under a name that nobody uses."""
    while True:
        # in the same folder, because only within one file system is a new name given at once
        handle, name = tempfile.mkstemp(dir=folder, suffix=_PART)
        file = _File(io.FileIO(handle, "r+"))
        locked(file)
        # somebody who swept up between making and locking has removed the name
        if os.path.exists(name) and os.fstat(handle).st_ino == os.stat(name).st_ino:
            return Path(name), file
        file.close()


def locked(file: BinaryIO) -> bool:
    """Lock a file for this run if nobody holds it; where the system has no such locks, nobody is taken for stale."""
    if fcntl is None:
        return False
    try:
        # the system drops the lock of a killed run, so that a lock tells the living from the dead
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _allocate(file: BinaryIO, size: int) -> None:
    """Take the space on the disk now, so that a full disk is met before anything is spent."""
    if hasattr(os, "posix_fallocate"):
        # not truncate, which promises a length and takes no space
        os.posix_fallocate(file.fileno(), 0, max(size, 1))
    else:
        for start in range(0, size, _CHUNK):
            file.write(os.urandom(min(_CHUNK, size - start)))
    file.flush()
    os.fsync(file.fileno())


def result_problem(ledger: Path, saved: Row) -> str:
    """What is wrong with a saved result, or nothing; reads the whole file."""
    file = result_file(ledger, saved.key)
    try:
        # the size first: a cut file is found without reading it
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
