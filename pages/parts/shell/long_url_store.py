"""Files on the server for requests that are too long for an address.

A stored request contains the public schema, workload, budget and mechanism, as a short address
does; never data, datasets or ledgers. The address contains the name of the file, a random text.
"""

from __future__ import annotations

import os
import re
import secrets
import zlib
from contextlib import suppress
from pathlib import Path

from engine._atomic_io import atomic_file
from engine.errors import PlanError
from pages.parts.shell import session_restore

MAX_REQUESTS = 200  # the least recently used ones are deleted first
MAX_TEXT = 64_000_000  # characters
SUFFIX = ".design"
_NAME = re.compile(r"[A-Za-z0-9_-]{16}")


def keep(text: str) -> str:
    """Store the text of a request and return its name; empty if it cannot be stored."""
    name = secrets.token_urlsafe(12)
    if len(text) > MAX_TEXT:
        return ""
    with suppress(OSError):
        folder = _folder()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with atomic_file(folder / f"{name}{SUFFIX}", overwrite=True) as file:
            file.write(zlib.compress(text.encode(), 1))
        files = sorted(folder.glob(f"*{SUFFIX}"), key=lambda path: path.stat().st_mtime)
        for old in files[:-MAX_REQUESTS]:
            old.unlink(missing_ok=True)
        return name
    return ""


def find(name: str) -> bytes:
    """Return the text of the request with this name; raises PlanError if it does not exist."""
    path = _folder() / f"{name}{SUFFIX}"
    with suppress(OSError, zlib.error):
        if _NAME.fullmatch(name):
            text = zlib.decompressobj().decompress(path.read_bytes(), MAX_TEXT)
            os.utime(path)
            return text
    raise PlanError(
        "This server does not have the plan to which this address refers. Open a saved project on"
        " Start instead."
    )


def _folder() -> Path:
    return session_restore.folder() / "designs"
