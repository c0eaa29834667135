"""Answers to the questions of the lessons, kept for each browser in the settings folder."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from engine._atomic_io import atomic_file
from pages.parts.shell import session_restore

MAX_BROWSERS, MAX_ANSWERS = 50, 100
_LOCK = threading.Lock()


def load() -> dict[str, int]:
    """Return the answers of this browser: key of a question -> number of the chosen answer."""
    return _read().get(session_restore.browser(), {})


def save(answers: Mapping[str, int]) -> None:
    """Store the answers of this browser; an empty mapping deletes them.

    Only the first `MAX_ANSWERS` answers, and the `MAX_BROWSERS` browsers that answered last, are
    kept. Without a cookie that identifies the browser, nothing is stored.
    """
    name = session_restore.browser()
    if not name:
        return
    with _LOCK:
        stored = _read()
        stored.pop(name, None)
        if answers:
            stored[name] = dict(list(answers.items())[:MAX_ANSWERS])
        entries = dict(list(stored.items())[-MAX_BROWSERS:])
        with suppress(OSError):  # the settings folder may be read-only
            _file().parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with atomic_file(_file(), overwrite=True) as file:
                file.write(json.dumps(entries).encode())


def _file() -> Path:
    return session_restore.folder() / "answers.json"


def _read() -> dict[str, dict[str, int]]:
    """Return the stored answers by browser; empty if the file is missing or damaged."""
    with suppress(OSError, ValueError, RecursionError):
        entries = json.loads(_file().read_text(encoding="utf-8"))
        if isinstance(entries, dict):
            return {
                name: {key: n for key, n in answers.items() if isinstance(n, int)}
                for name, answers in entries.items()
                if isinstance(answers, dict)
            }
    return {}
