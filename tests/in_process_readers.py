"""Reader of Excel, Stata, SPSS and SAS files that runs in the process of the test.

The engine reads these files in a subprocess, which costs 0.25 CPU seconds per file. Tests of the
values in a file use this reader instead; `tests/records/subprocess_readers` tests the subprocess.
"""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from engine.errors import DataError
from engine.records import subprocess_worker


def messages(
    path: Path, library: str, kind: str, too_large: str, **arguments: Any
) -> Generator[Any]:
    """Yield the messages that the subprocess would send while it reads a file."""
    sent: list[Any] = []

    def send(value: Any, *payloads: bytes) -> None:
        decoded = json.loads(json.dumps(value, default=str))
        sent.append((decoded, list(payloads)) if payloads else decoded)

    is_readable = True
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess_worker, "_send", send)
        try:
            if kind == subprocess_worker.SHEET:
                subprocess_worker._sheet(str(path), **arguments)
            else:
                subprocess_worker._labelled(str(path), kind, **arguments)
        except Exception:
            is_readable = False
    yield from sent
    # Raised outside the handler, so that it is not chained to the error of the parser, which may
    # contain values.
    if not is_readable:
        raise DataError(f"the file {path.name!r} cannot be read")
