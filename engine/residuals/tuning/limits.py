"""Time limits of split tuning."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

MEMORY, TIME, WORK = "memory", "time", "work"
LIMITS = (MEMORY, TIME, WORK)
SLOWEST = 0.25  # seconds of a step, by forecast, that nobody who gave no limit of time has to wait for again and again
PATIENCE = 10  # times that the time left must hold one step, or the search is not worth beginning


@dataclass(kw_only=True)
class Allowance:
    """Bytes and a moment on the monotonic clock that a search keeps; ``stopped`` collects the limits that it met."""

    memory: float = math.inf
    deadline: float = math.inf
    stopped: set[str] = field(default_factory=set)

    def fits(self, needed: int) -> bool:
        """Return whether so many bytes may be taken; remember it when they may not."""
        if needed > self.memory:
            self.stopped.add(MEMORY)
        return needed <= self.memory

    def worth(self, seconds: float) -> bool:
        """Return whether a step that takes so long may be taken again and again; remember it when it may not."""
        return self.lasts(PATIENCE * seconds)

    def bearable(self, seconds: float) -> bool:
        """Return whether hundreds of steps that take so long are to be waited for; remember it when they are not."""
        if math.isinf(self.deadline) and seconds > SLOWEST:
            self.stopped.add(WORK)
            return False
        return True

    def lasts(self, seconds: float) -> bool:
        """Return whether so much time is left; remember it when it is not."""
        if math.isinf(self.deadline) or seconds <= self.deadline - time.monotonic():
            return True
        self.stopped.add(TIME)
        return False

    def check(self) -> None:
        """Raise TimeoutError when the time is over."""
        if time.monotonic() > self.deadline:
            self.stopped.add(TIME)
            raise TimeoutError
