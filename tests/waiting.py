"""Wait for a condition that another process or thread fulfils."""

from __future__ import annotations

import time
from collections.abc import Callable

# seconds; long enough for a busy machine
CEILING = 60.0


def until(
    ready: Callable[[], object],
    *,
    step: Callable[[], object] | None = None,
    words: object = "",
    pause: float = 0.02,
) -> None:
    """Wait until ``ready()`` is true; fail after `CEILING` seconds.

    Parameters
    ----------
    step : function that is called before each check.
    words : message of the failure, or a function that returns it.
    pause : seconds between two checks.
    """
    end = time.monotonic() + CEILING
    while True:
        if step is not None:
            step()
        if ready():
            return
        assert time.monotonic() < end, f"timed out: {words() if callable(words) else words}"
        time.sleep(pause)
