"""The side that asks: what the process of `child` says of a file, one value after the other."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

from engine.errors import DataError, LimitExceeded
from engine.release.records.apart.child import TOO_LARGE
from engine.release.records.batches import needed
from engine.texts import shown

CHILD = Path(__file__).with_name("child.py")
ENDED = {TOO_LARGE, -signal.SIGABRT, -9}  # where memory ended, by itself or by the system


def heard(path: Path, library: str, kind: str, too_large: str, **asked: Any) -> Generator[Any]:
    """What the process says, up to its last word: values, or pairs of one and bytes.  Whoever stops listening ends it.

    ``too_large`` says what to do when memory ends.  Raises: DataError when the library is missing or the file cannot be
    read, LimitExceeded when memory ends.
    """
    what = f"the file {shown(path.name)}"
    needed(library, what)
    command = [sys.executable, "-I", str(CHILD), str(path), kind, json.dumps(asked)]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as child:
        assert child.stdout is not None  # it is a pipe
        try:
            while line := child.stdout.readline():
                value, lengths = json.loads(line)
                if value is None:
                    return
                behind = [child.stdout.read(length) for length in lengths]
                if [len(one) for one in behind] != lengths:
                    break
                yield (value, behind) if behind else value
            code = child.wait()
        except ValueError:  # it ended within a line
            code = child.wait()
        finally:
            child.kill()
    if code in ENDED:
        raise LimitExceeded(f"{what} needs more memory than there is{too_large}")
    raise DataError(f"{what} cannot be read; check that it is complete and of the kind its name says")
