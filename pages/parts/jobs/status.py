"""Status of a job."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Status:
    """Status of a job at one moment.

    Attributes
    ----------
    state : "waiting", "running", "done", "failed", "cancelled" or "died".
    result : of a job in the state "done".
    error : message of a job that ended without a result.
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
        """Whether the job is running or waiting."""
        return self.state in ("waiting", "running")

    @property
    def done(self) -> bool:
        """Whether the job has a result."""
        return self.state == "done"

    @property
    def seconds(self) -> float:
        """Seconds since the start was requested."""
        return time.monotonic() - self.started
