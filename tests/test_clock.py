"""Clock of time limits."""

import time

import pytest

from engine._clock import INTERVAL_S, PlanningClock


@pytest.fixture
def clocks(monkeypatch):
    """Return the wall time and processor time in seconds, which the test sets."""
    now = {"wall": 100.0, "processor": 5.0}
    monkeypatch.setattr(time, "monotonic", lambda: now["wall"])
    monkeypatch.setattr(time, "process_time", lambda: now["processor"])
    return now


def advance(clocks: dict[str, float], wall: float, processor: float) -> None:
    clocks["wall"] += wall
    clocks["processor"] += processor


@pytest.mark.parametrize(
    ("wall", "processor", "counted"), [(3.0, 1.0, 1.0), (3.0, 6.0, 3.0), (0.1, 0.02, 0.02)]
)
def test_clock_counts_smaller_of_both_times(clocks, wall, processor, counted):
    clock = PlanningClock()
    start = clock()
    advance(clocks, wall, processor)
    assert clock() - start == pytest.approx(counted)


def test_clock_coarse_processor_time_is_counted(clocks):
    clock = PlanningClock()
    start = clock()
    # the processor clock has a resolution of 16 ms
    for tick in range(1000):
        advance(clocks, 0.001, 0.016 if tick % 16 == 15 else 0.0)
        clock()
    assert clock() - start >= 0.9


def test_clock_waiting_for_workers_counts_wall(clocks):
    clock = PlanningClock()
    start = clock()
    with clock.counting_waits():
        advance(clocks, 3.0, 0.0)
    advance(clocks, 3.0, 0.5)
    # 3 seconds of waiting, and then the smaller of 3 seconds and half a second
    assert clock() - start == pytest.approx(3.5)


def test_clock_in_forked_process_never_decreases(clocks):
    clock = PlanningClock()
    advance(clocks, 2.0 * INTERVAL_S, 2.0 * INTERVAL_S)
    time_of_parent = clock()
    # a forked process starts with a processor time of 0
    clocks["processor"] = 0.0
    assert clock() >= time_of_parent
