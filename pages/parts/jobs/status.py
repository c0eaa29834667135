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
    state : "waiting", "running", "done", "failed" (the function raised an error of the
        engine, of a file or of memory), "cancelled" or "died" (the worker did not start, or ended
        without a message).
    spends : whether the job spends budget.
    started : time of the request, in seconds of `time.monotonic`.
    fraction : progress of the job, from 0 to 1.
    text : what the job does at present.
    result : return value of the function in the state "done", else None.
    error : message for the user if the job ended without a result.
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

    def time_text(self, expected: float | None = None) -> str:
        """Text with the seconds so far and, with the expected total, the seconds that are left.

        Once a tenth of the work is done, the time left follows from the progress of the job.
        """
        seconds = self.seconds
        if expected is None or self.state == "waiting":
            return f"{seconds:.0f} s"
        if self.fraction >= 0.1:
            left = seconds * (1.0 / min(self.fraction, 1.0) - 1.0)
        elif seconds <= expected:
            left = expected - seconds
        else:
            return f"{seconds:.0f} s, longer than expected"
        return f"{seconds:.0f} s, about {max(left, 1.0):.0f} s left"
