"""What is known of a job, as one value."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Status:
    """What is known of a job at one moment.

    `state` is "waiting", "running", "done", "failed", "cancelled" or "died"; `result` is there
    exactly when it is done, `error` says in words how it ended otherwise.
    """

    state: str
    spends: bool
    started: float
    fraction: float = 0.0
    text: str = "Starting"
    result: Any = None
    error: str = ""

    @property
    def running(self) -> bool:
        """Whether the work goes on, or waits for its turn."""
        return self.state in ("waiting", "running")

    @property
    def done(self) -> bool:
        """Whether the result is there."""
        return self.state == "done"

    @property
    def seconds(self) -> float:
        """Seconds since it was asked for."""
        return time.monotonic() - self.started
