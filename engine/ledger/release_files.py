"""Files of releases beside the ledger: the noise journal and stored results.

**Results.**  The folder `<ledger>.results` contains one file per release key. Before budget is spent, a temporary
file reserves disk space. After the spend, the result is written to the temporary file and synced,
the file is renamed, and its SHA-256 and size are recorded in the ledger. On a system with file
locks, temporary files of killed runs are removed when the ledger is opened the next time.

**Noise journal.**  The journal stores the seed of the random bits of an unfinished release. After a
crash, the journal
and the same records reproduce the same noise, so an interrupted release can be finished without
drawing noise a second time.

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
import io
import json
import os
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from engine._untrusted import parse_json
from engine.errors import DataError, LedgerError
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
