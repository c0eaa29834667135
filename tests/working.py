"""Tasks that tests run in worker processes; the workers import this module, so it imports little.

Like the tasks of the app, each receives a callback ``progress``, which returns False to stop it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path


def endless(*, progress: Callable) -> None:
    """Work until the callback stops it."""
    while progress(0.5, "working"):
        time.sleep(0.05)


def deaf(*, progress: Callable) -> None:
    """Work for a minute and ignore what the callback returns."""
    progress(0.1, "started")
    time.sleep(60)


def quick(number: int, *, progress: Callable) -> int:
    """Return the number at once."""
    return number


def broken(*, progress: Callable) -> None:
    """Fail with a message that contains a private value."""
    raise RuntimeError("a value of a record")


class Unreadable:
    """A value that can be pickled but not unpickled."""

    def __reduce__(self) -> tuple[type, tuple[str]]:
        return int, ("a value of a record",)


def unreadable(*, progress: Callable) -> Unreadable:
    """Return a result that the caller cannot unpickle."""
    return Unreadable()


def unwritable(*, progress: Callable) -> None:
    """Fail as if a file could not be written."""
    raise PermissionError(13, "Permission denied", "/a/secret/path")


def killed(*, progress: Callable) -> None:
    """Kill the worker process."""
    os.kill(os.getpid(), 9)


def loaded(*names: str, progress: Callable) -> list[str]:
    """Return the names of the modules among ``names`` that the worker has imported."""
    return [name for name in names if name in sys.modules]


def reads(file: str, *, progress: Callable) -> int:
    """Return the number of characters of a file."""
    return len(Path(file).read_text())


def doubled(workload: str, *request: object, progress: Callable) -> tuple[str, list]:
    """Return the JSON of the workload with all group weights 2, and two fixed rows of errors."""
    document = json.loads(workload)
    for group in document["groups"]:
        group["weight"] = 2.0
    return json.dumps(document), [(1, 2.0, 1.0), (2, 2.0, 4.0)]
