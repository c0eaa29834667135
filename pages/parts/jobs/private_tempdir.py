"""Private temporary folder of the server, for copies of records and for results.

Only the user who runs the server can read it.  It contains a file that is locked while the server
runs, and it is removed when the server ends.  If a server is killed, the next one removes its
folder.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import time
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import IO

try:
    import fcntl
except ImportError:  # Windows needs no lock: it refuses to remove the open files of a server
    fcntl = None  # type: ignore[assignment]

PREFIX, LOCK = "dp-workbench-", "lock"
_LOCKS: list[IO[str]] = []  # the lock file, open until the process ends
MAX_CHECKPOINTS = 4
LOCK_DELAY_S = 60.0  # a folder without a lock file counts as used until it has this age


@cache
def folder() -> Path:
    """Return the private temporary folder of this server; the first call creates and locks it."""
    place = Path(tempfile.mkdtemp(prefix=PREFIX))
    _LOCKS.append(open(place / LOCK, "w"))  # noqa: SIM115
    if fcntl is not None:
        fcntl.flock(_LOCKS[-1], fcntl.LOCK_EX)
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    return place


def new_file(kind: str, suffix: str = "") -> Path:
    """Create an empty file in the folder of this server, named ``kind`` plus random characters."""
    handle, path = tempfile.mkstemp(prefix=f"{kind}_", suffix=suffix, dir=folder())
    os.close(handle)
    return Path(path)


def checkpoint_folder(job: str) -> Path:
    """Return the folder for the checkpoint of a job, created if absent.

    It remains when the job is stopped, so that the job can continue later. Of all such folders,
    only the `MAX_CHECKPOINTS` used most recently are kept.
    """
    places = folder() / "reached"
    places.mkdir(exist_ok=True)
    job_folder = places / sha256(job.encode()).hexdigest()[:16]
    job_folder.mkdir(exist_ok=True)
    os.utime(job_folder)
    by_age = sorted(places.iterdir(), key=lambda place: place.stat().st_mtime)
    for old_folder in by_age[:-MAX_CHECKPOINTS]:
        # If a job that still runs loses its folder, it creates the folder again.
        shutil.rmtree(old_folder, ignore_errors=True)
    return job_folder


def sweep() -> None:
    """Remove the temporary folders of this user's servers that no longer run."""
    for place in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):
            if _is_mine(place) and not _is_used(place):
                shutil.rmtree(place, ignore_errors=True)


def _is_mine(place: Path) -> bool:
    owner = place.lstat().st_uid if hasattr(os, "getuid") else 0
    return (
        place.is_dir()
        and not place.is_symlink()
        and (not hasattr(os, "getuid") or owner == os.getuid())
    )


def _is_used(place: Path) -> bool:
    if not (place / LOCK).exists():
        return time.time() - place.stat().st_mtime < LOCK_DELAY_S
    with open(place / LOCK) as lock:
        if fcntl is not None:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return True
    return False
