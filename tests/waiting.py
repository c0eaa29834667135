"""Waiting for what another process or thread does: often, and as long as a busy machine may need."""

from __future__ import annotations

import time
from collections.abc import Callable

CEILING = 300.0  # seconds; only what hangs takes so long


def until(
    ready: Callable[[], object],
    *,
    step: Callable[[], object] | None = None,
    words: object = "",
    pause: float = 0.02,
) -> None:
    """Return as soon as `ready`, calling `step` before every look; fail with `words` when it never is.

    ``pause`` is the time between two looks, in seconds: longer where a look itself is work.
    """
    end = time.monotonic() + CEILING
    while True:
        if step is not None:
            step()
        if ready():
            return
        assert time.monotonic() < end, f"it never came: {words() if callable(words) else words}"
        time.sleep(pause)
