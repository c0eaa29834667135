"""Clock of time limits: wall time in which this process computes.

Time in which other programs occupy the processors does not count: otherwise a planner on a busy
machine would reach its time limit before it has tuned the plan.  If several threads compute at
once, their processor time exceeds the wall time, and the wall time counts.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

# wall time after which a new interval starts; longer than the resolution of processor clocks
INTERVAL_S = 0.5


class PlanningClock:
    """Clock that adds, per interval, the wall time or the processor time, whichever is smaller.

    >>> clock = PlanningClock()
    >>> clock() <= clock()
    True
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._total, self._waiting = 0.0, 0
        self._start()

    def __call__(self) -> float:
        """Return the seconds counted so far."""
        with self._lock:
            return self._read(INTERVAL_S)

    def _start(self) -> None:
        self._wall, self._processor = time.monotonic(), time.process_time()

    def _read(self, interval: float) -> float:
        """Return the seconds counted so far.

        Parameters
        ----------
        interval : if the current interval has at least this length in seconds, it ends and a new
            one starts.
        """
        wall = time.monotonic() - self._wall
        # in a forked process the processor time is below the one that was stored before the fork
        processor = max(time.process_time() - self._processor, 0.0)
        total = self._total + (wall if self._waiting else min(wall, processor))
        if wall >= interval:
            self._total = total
            self._start()
        return total

    @contextmanager
    def counting_waits(self) -> Iterator[None]:
        """Count wall time inside the ``with`` block, in which worker processes compute.

        The processor time of this process does not contain theirs.
        """
        with self._lock:
            self._read(0.0)
            self._waiting += 1
        try:
            yield
        finally:
            with self._lock:
                self._read(0.0)
                self._waiting -= 1


planning_time = PlanningClock()
