"""Records that are more than a path: tables that the settings of the server name, and text in another encoding."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from engine.release import TextFile, named_table

NAMED = "source:"  # before a name; full paths, which is what files are given by, begin otherwise
TEXT = "text:"  # before an encoding, a colon, and the path of a file in it


@contextmanager
def opened(data: str) -> Iterator[Any]:
    """The path of a file as it is or with its encoding, and the named table while it is counted.

    Whoever ends this process ends what the database does for it, too, as Ctrl-C does: by itself it would go on.
    """
    if data.startswith(TEXT):
        encoding, _, path = data.removeprefix(TEXT).partition(":")
        yield TextFile(path=path, encoding=encoding)
        return
    if not data.startswith(NAMED):
        yield data
        return
    table = named_table(data.removeprefix(NAMED))
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield table
    finally:
        signal.signal(signal.SIGTERM, before)
        with suppress(Exception):  # nothing is left to close of a connection that broke
            table.get_backend().disconnect()
