"""Wait for a condition that another process or thread fulfils."""

from __future__ import annotations

import time
from collections.abc import Callable

# seconds; long enough for a busy machine
CEILING = 300.0


def until(
    ready: Callable[[], object],
    *,
    step: Callable[[], object] | None = None,
    words: object = "",
    pause: float = 0.02,
) -> None:
    """Return as soon as `ready()` is true; call `step` before each check; fail with `words`.

    ``pause`` is the time between two checks in seconds; longer if a check is slow.
    """
    end = time.monotonic() + CEILING
    while True:
        if step is not None:
            step()
        if ready():
            return
        assert time.monotonic() < end, f"timed out: {words() if callable(words) else words}"
        time.sleep(pause)
