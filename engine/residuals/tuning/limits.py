"""Time limits of split tuning."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

MEMORY, TIME, WORK = "memory", "time", "work"
# expected seconds of one step at most, without a time limit
SLOWEST = 0.25
# steps that must fit into the remaining time for a search to start
MIN_STEPS = 10


@dataclass(kw_only=True)
class Allowance:
    """Limits of memory and time of a search.

    Attributes
    ----------
    memory : bytes at most.
    deadline : time limit on the monotonic clock.
    stopped : the limits that were exceeded.
    """

    memory: float = math.inf
    deadline: float = math.inf
    stopped: set[str] = field(default_factory=set)

    def fits(self, needed: int) -> bool:
        """Return whether so many bytes are within the limit; record the limit if exceeded."""
        if needed > self.memory:
            self.stopped.add(MEMORY)
        return needed <= self.memory

    def worth(self, seconds: float) -> bool:
        """Return whether enough steps of this duration fit into the remaining time.

        Record the limit if not.
        """
        return self.lasts(MIN_STEPS * seconds)

    def bearable(self, seconds: float) -> bool:
        """Return whether steps of this duration are acceptable without a time limit.

        Record the limit if not.
        """
        if math.isinf(self.deadline) and seconds > SLOWEST:
            self.stopped.add(WORK)
            return False
        return True

    def lasts(self, seconds: float) -> bool:
        """Return whether so much time remains; record the limit if not."""
        if math.isinf(self.deadline) or seconds <= self.deadline - time.monotonic():
            return True
        self.stopped.add(TIME)
        return False

    def check(self) -> None:
        """Raise TimeoutError after the deadline."""
        if time.monotonic() > self.deadline:
            self.stopped.add(TIME)
            raise TimeoutError
