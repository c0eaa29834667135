"""Tasks for worker processes in tests; workers import this module, so it imports little."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path


def endless(*, progress: Callable) -> None:
    while progress(0.5, "working"):
        time.sleep(0.05)


def deaf(*, progress: Callable) -> None:
    progress(0.1, "started")
    time.sleep(60)


def quick(number: int, *, progress: Callable) -> int:
    return number


def broken(*, progress: Callable) -> None:
    raise RuntimeError("a value of a record")


class Unreadable:
    """A value that can be pickled but not unpickled."""

    def __reduce__(self) -> tuple[type, tuple[str]]:
        return int, ("a value of a record",)


def unreadable(*, progress: Callable) -> Unreadable:
    return Unreadable()


def unwritable(*, progress: Callable) -> None:
    raise PermissionError(13, "Permission denied", "/a/secret/path")


def killed(*, progress: Callable) -> None:
    os.kill(os.getpid(), 9)


def loaded(*names: str, progress: Callable) -> list[str]:
    return [name for name in names if name in sys.modules]


def reads(file: str, *, progress: Callable) -> int:
    return len(Path(file).read_text())


def doubled(workload: str, *request: object, progress: Callable) -> tuple[str, float, float]:
    text = json.loads(workload)
    for group in text["groups"]:
        group["weight"] = 2.0
    return json.dumps(text), 0.2, 0.1
