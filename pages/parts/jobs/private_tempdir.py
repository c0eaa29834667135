"""One folder of this server for what nobody else may read and nothing may leave behind: copies of
records, results.

It is readable by its owner only, holds a lock as long as the server lives, and goes with it.
Folders of servers that were killed are swept by the next one that starts.
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
except (
    ImportError
):  # there is no such lock on Windows, where a file that is open cannot be removed anyway
    fcntl = None  # type: ignore[assignment]

PREFIX, LOCK = "dp-workbench-", "lock"
_HELD: list[IO[str]] = []  # the lock, open until the process ends, however it ends
LATEST = 4  # jobs whose state is kept
YOUNG = 60.0  # seconds in which a folder may still be on its way to its lock


@cache
def folder() -> Path:
    """The folder of this server, made when it is first needed."""
    place = Path(tempfile.mkdtemp(prefix=PREFIX))  # which makes it for its owner alone
    _HELD.append(open(place / LOCK, "w"))  # noqa: SIM115
    if fcntl is not None:
        fcntl.flock(_HELD[-1], fcntl.LOCK_EX)
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    return place


def new_file(kind: str, suffix: str = "") -> Path:
    """An empty file with a name of its own."""
    handle, path = tempfile.mkstemp(prefix=f"{kind}_", suffix=suffix, dir=folder())
    os.close(handle)
    return Path(path)


def checkpoint_folder(job: str) -> Path:
    """The folder of what a job has reached, which stays when the job is stopped; those of the
    latest few are there.
    """
    places = folder() / "reached"
    places.mkdir(exist_ok=True)
    job_folder = places / sha256(job.encode()).hexdigest()[:16]
    job_folder.mkdir(exist_ok=True)
    os.utime(job_folder)
    for old in sorted(places.iterdir(), key=lambda place: place.stat().st_mtime)[:-LATEST]:
        shutil.rmtree(
            old, ignore_errors=True
        )  # one that is in use is made anew when the next step is kept
    return job_folder


def sweep() -> None:
    """Remove what servers that are gone have left behind."""
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
        return time.time() - place.stat().st_mtime < YOUNG
    with open(place / LOCK) as lock:
        if fcntl is not None:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return True
    return False
