"""Designs that are too long for an address: kept on the server, each under a short name that the
address holds.

A design is the public schema, the workload, the budget and the mechanism, as in a short address;
never data, datasets or ledgers.  Its name is drawn by chance, so that nobody finds a design whose
address was not handed on.
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

MAX_DESIGNS = 200  # designs; those that were looked at longest ago go first
MAX_TEXT = 64_000_000  # characters
SUFFIX = ".design"
_NAME = re.compile(r"[A-Za-z0-9_-]{16}")


def keep(text: str) -> str:
    """Keep a design and return its name; an empty one where it is too long, or the folder cannot be
    written.
    """
    name = secrets.token_urlsafe(12)
    if len(text) > MAX_TEXT:
        return ""
    with suppress(OSError):
        folder = _folder()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with atomic_file(folder / f"{name}{SUFFIX}", overwrite=True) as file:
            file.write(zlib.compress(text.encode(), 1))
        files = sorted(folder.glob(f"*{SUFFIX}"), key=lambda path: path.stat().st_mtime)
        for old in files[:-MAX_DESIGNS]:
            old.unlink(missing_ok=True)
        return name
    return ""


def find(name: str) -> bytes:
    """The design of this name; raises PlanError when there is none."""
    path = _folder() / f"{name}{SUFFIX}"
    with suppress(OSError, zlib.error):
        if _NAME.fullmatch(name):
            text = zlib.decompressobj().decompress(path.read_bytes(), MAX_TEXT)
            os.utime(path)
            return text
    raise PlanError(
        "The plan that this address names is not on this server, or no longer. Open a plan or"
        " workload file instead."
    )


def _folder() -> Path:
    return session_restore.folder() / "designs"
