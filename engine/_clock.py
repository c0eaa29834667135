"""Clock of time limits: wall time in which this process computes.

Time in which other programs occupy the processors does not count, so that a busy machine does not
turn a tuned plan into one with uniform centers.  With several threads the wall time counts.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

# wall time after which a new interval starts; longer than the resolution of processor clocks
INTERVAL_S = 0.5


class PlanningClock:
    """Sum of the smaller of wall time and processor time over intervals.

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
        """Return the seconds counted; start a new interval if this one is longer than a limit."""
        wall = time.monotonic() - self._wall
        # a forked process starts with a processor time of 0
        processor = max(time.process_time() - self._processor, 0.0)
        total = self._total + (wall if self._waiting else min(wall, processor))
        if wall >= interval:
            self._total = total
            self._start()
        return total

    @contextmanager
    def counting_waits(self) -> Iterator[None]:
        """Count the wall time of the block, in which other processes compute for this one."""
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
