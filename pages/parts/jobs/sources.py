"""Records that are no file: tables that the settings of the server name."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from engine.release import named_table

NAMED = "source:"  # before a name; full paths, which is what files are given by, begin otherwise


@contextmanager
def opened(data: str) -> Iterator[Any]:
    """The path of a file as it is, and the named table while it is counted.

    Whoever ends this process ends what the database does for it, too, as Ctrl-C does: by itself it would go on.
    """
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
