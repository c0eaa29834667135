"""Durable store of release results.

The folder `<ledger>.results` contains one file per release key. Before budget is spent, a temporary
file reserves disk space. After the spend, the result is written to the temporary file and synced,
the file is renamed, and its SHA-256 and size are recorded in the ledger. On a system with file
locks, temporary files of killed runs are removed when the ledger is opened the next time.
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
from engine.ledger.sqlite_file import Row, sync_folder

try:
    import fcntl
except ImportError:  # a system without POSIX locks
    fcntl = None  # type: ignore[assignment]

HAS_FILE_LOCKS = fcntl is not None
Content = bytes | Callable[[BinaryIO], object]
_PART, _CHUNK = ".part", 1 << 20


@dataclass(kw_only=True)
class Draft:
    """Temporary file with reserved disk space for a result, locked by the run that writes it.

    Attributes
    ----------
    sha256, size : digest and number of bytes of the content; set by `write`.
    """

    path: Path
    file: _File
    sha256: str = ""
    size: int = 0

    def write(self, content: Content) -> None:
        """Write the complete content, sync it to the disk, and compute its SHA-256 and size."""
        self.file.seek(0)
        self.file.end = 0
        if callable(content):
            content(self.file)
        else:
            self.file.write(content)
        self.file.truncate(self.file.end)
        # the file is synced before it is renamed, so that after a power cut the result is either
        # complete or absent
        self.file.flush()
        os.fsync(self.file.fileno())
        self.sha256, self.size = _digest(self.path), os.path.getsize(self.path)

    def rename_to(self, target: Path) -> None:
        """Rename the file durably to its final name."""
        os.replace(self.path, target)
        sync_folder(target.parent)


def results_folder(ledger: Path) -> Path:
    """Return the folder of the results of a ledger.

    >>> results_folder(Path("budget.ledger")).name
    'budget.ledger.results'
    """
    return ledger.with_name(ledger.name + ".results")


def result_file(ledger: Path, key: str) -> Path:
    """Return the path of the result of a release key.

    The file name is a hash of the key, because keys may contain slashes and dots.
    """
    return results_folder(ledger) / f"{hashlib.sha256(key.encode()).hexdigest()}.result"


@contextmanager
def reserve_file(ledger: Path, size: int) -> Iterator[Draft]:
    """Yield a temporary file with ``size`` reserved bytes; remove it unless it was renamed.

    Raises
    ------
    LedgerError
        The disk has too little space, the folder is not writable, or the block of the ``with``
        statement raises OSError.
    """
    folder = results_folder(ledger)
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        # a folder that was restored from a backup may be readable by other users
        if folder.stat().st_mode & 0o077:
            folder.chmod(0o700)
        # sync the parent folder, because otherwise a power cut could lose the new folder
        sync_folder(folder.parent)
        path, file = _locked_temporary_file(folder)
        with file:
            try:
                _allocate(file, size)
                yield Draft(path=path, file=file)
            finally:
                with suppress(OSError):
                    os.unlink(path)
    except OSError as error:
        raise LedgerError(
            f"A result cannot be saved in {folder}: {error.strerror or error}. Free disk space, or"
            " make the folder writable, then try again."
        ) from error


def remove_stale(ledger: Path) -> None:
    """Remove temporary files of killed runs; locked files of active runs remain.

    On a system without file locks nothing is removed.
    """
    for path in results_folder(ledger).glob(f"*{_PART}"):
        with suppress(OSError), open(path, "r+b") as file:
            if locked(file):
                os.unlink(path)


class _File(io.BufferedRandom):
    """File that records the end of the written content in ``end``.

    The size of the file may be larger, because disk space is reserved in advance.
    """

    end = 0

    def write(self, data: Any, /) -> int:
        written = super().write(data)
        self.end = max(self.end, self.tell())
        return written


class _SizeCounter(io.RawIOBase):
    """Writable file object that only counts the bytes written to it; reading returns zeros."""

    end = position = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        memoryview(buffer)[:] = bytes(len(buffer))
        self.position += len(buffer)
        return len(buffer)

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.position

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        self.position = offset + (0, self.position, self.end)[whence]
        return self.position

    def write(self, data: Any, /) -> int:
        size = memoryview(data).nbytes
        self.position += size
        self.end = max(self.end, self.position)
        return size


def size_of(content: Content) -> int:
    """Return the number of bytes of a content; if it is a function, the number that it writes."""
    if not callable(content):
        return len(content)
    counter = _SizeCounter()
    content(counter)  # type: ignore[arg-type]
    return counter.end


def _locked_temporary_file(folder: Path) -> tuple[Path, _File]:
    """Create and lock a temporary file with a unique name; return its path and the open file."""
    while True:
        # the folder of the final file, because renaming is atomic only within one file system
        handle, name = tempfile.mkstemp(dir=folder, suffix=_PART)
        file = _File(io.FileIO(handle, "r+"))
        locked(file)
        # `remove_stale` of another run may have deleted the file before it was locked; in this case
        # another file is created
        if os.path.exists(name) and os.fstat(handle).st_ino == os.stat(name).st_ino:
            return Path(name), file
        file.close()


def locked(file: BinaryIO) -> bool:
    """Try to lock a file without waiting; return whether this process now holds the lock.

    The result is False if another process holds the lock, or if the system has no file locks.
    """
    if fcntl is None:
        return False
    try:
        # the system releases the lock when the process ends or is killed, so a locked file belongs
        # to an active run
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _allocate(file: BinaryIO, size: int) -> None:
    """Reserve disk space for a file, so that a full disk is detected before budget is spent."""
    if hasattr(os, "posix_fallocate"):
        # truncate would set the length without reserving space
        os.posix_fallocate(file.fileno(), 0, max(size, 1))
    else:
        # random bytes cannot be compressed, so they take space in a compressing file system too
        for start in range(0, size, _CHUNK):
            file.write(os.urandom(min(_CHUNK, size - start)))
    file.flush()
    os.fsync(file.fileno())


def result_problem(ledger: Path, saved: Row) -> str:
    """Compare the file of a saved result with the size and SHA-256 in its ledger row.

    Returns
    -------
    str
        The problem if the file cannot be read or differs from the row; "" if the file is intact.
    """
    file = result_file(ledger, saved.key)
    try:
        # the size is compared first, which saves reading a truncated file
        if file.stat().st_size == saved.size and _digest(file) == saved.sha256:
            return ""
    except OSError:
        return f"the saved result of key {saved.key!r} cannot be read: {file}"
    return f"the saved result of key {saved.key!r} was changed: {file}"


def stray_results(ledger: Path, keys: Iterable[str]) -> list[str]:
    """Return one message per result file whose key was not spent in the ledger.

    A result without a spend shows that ledger rows were lost, or that the folder of results belongs
    to another ledger.

    Parameters
    ----------
    keys : keys of all spends in the ledger.
    """
    expected = {result_file(ledger, key).name for key in keys}
    names = sorted(file.name for file in results_folder(ledger).glob("*.result"))
    return [
        f"result {name} has no spend in the ledger: rows were lost"
        for name in names
        if name not in expected
    ]


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
