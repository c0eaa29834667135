"""Clock of time limits: counts the wall time in which this process computes.

Time in which other programs occupy the processors is not counted, so that a busy machine does not
change which computations fit in a time limit.  If several threads compute at once, wall time is
counted, not the sum of their processor times.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

# length of an interval in seconds of wall time; longer than the resolution of processor clocks
INTERVAL_S = 0.5


class PlanningClock:
    """Clock that counts, in each interval, the smaller of wall time and processor time in seconds.

    Inside `counting_waits` it counts the wall time.

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

    def _read(self, min_interval: float) -> float:
        """Return the seconds counted so far.

        If the current interval has lasted at least ``min_interval`` seconds, start a new one.
        """
        wall = time.monotonic() - self._wall
        # a forked process starts with a processor time of 0, which is below the value that its
        # parent stored
        processor = max(time.process_time() - self._processor, 0.0)
        total = self._total + (wall if self._waiting else min(wall, processor))
        if wall >= min_interval:
            self._total = total
            self._start()
        return total

    @contextmanager
    def counting_waits(self) -> Iterator[None]:
        """Count all wall time inside the ``with`` block.

        Use this context while worker processes compute: their processor time is not part of the
        processor time of this process.
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
