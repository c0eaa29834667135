"""Dask frames on a cluster: killed workers, progress and cancellation."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import dask.dataframe
import numpy as np
import pandas as pd
import pytest

from engine.errors import Cancelled, DataError
from engine.records import Counts, count_marginals
from engine.records.database import count_partitions
from engine.release import measure
from tests.databases.samples import PLAN, SCHEMA, create_ledger, survey
from tests.waiting import CEILING

PARTS = 12
REPORTED = threading.Semaphore(0)  # released once per reported partition
COUNTED: list[int] = []  # rows of each counted partition


def part(number: int, main_process: int) -> pd.DataFrame:
    """Return a partition; the second one kills the worker that reads it."""
    if number == 1 and os.getpid() != main_process:
        os.kill(os.getpid(), signal.SIGKILL)
    return survey(600).iloc[number::3]


def test_killed_worker_is_reported_and_spends_nothing(tmp_path: Path) -> None:
    from distributed import Client, LocalCluster

    book = create_ledger(tmp_path, "d")
    frame = dask.dataframe.from_map(
        part, range(3), main_process=os.getpid(), meta=survey(1).iloc[:0]
    )
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        LocalCluster(
            processes=True, n_workers=1, threads_per_worker=1, dashboard_address=None
        ) as cluster,
        Client(cluster),
        pytest.raises(DataError, match="were lost before all") as caught,
    ):
        measure(PLAN, frame, dataset="d", ledger=book)
    assert caught.value.__context__ is None
    assert book.status("d").spent == 0.0
    assert [row.kind for row in book.rows()] == ["ledger", "dataset"]


def count_partition(frame: pd.DataFrame) -> Counts:
    """Count a partition; wait first until the progress of the previous one has been reported."""
    if COUNTED and not REPORTED.acquire(timeout=CEILING):
        raise AssertionError("the previous partition was not reported")
    COUNTED.append(len(frame))
    return count_marginals(frame, SCHEMA, [("sex", "age")], on_refused="drop")


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Cluster of one worker in this process, which counts the partitions one by one."""
    from distributed import Client, LocalCluster

    COUNTED.clear()
    while REPORTED.acquire(blocking=False):
        pass
    with LocalCluster(
        processes=False, n_workers=1, threads_per_worker=1, dashboard_address=None
    ) as cluster:
        with Client(cluster):
            yield
        for _ in range(PARTS):
            REPORTED.release()


@pytest.mark.usefixtures("one_thread")
def test_count_partitions_reports_each_partition() -> None:
    fractions = [0.0]

    def report(fraction: float, text: str) -> None:
        if fraction > fractions[-1]:
            REPORTED.release()
            fractions.append(fraction)

    frame = dask.dataframe.from_pandas(survey(600), npartitions=PARTS)
    counts = count_partitions(frame, ["sex", "age"], count_partition, report)
    assert len(COUNTED) == PARTS
    assert fractions == pytest.approx([i / PARTS for i in range(PARTS + 1)])
    expected = count_marginals(survey(600), SCHEMA, [("sex", "age")], on_refused="drop")
    np.testing.assert_array_equal(counts["sex", "age"], expected["sex", "age"])


@pytest.mark.usefixtures("one_thread")
def test_cancelled_count_partitions_skips_waiting_partitions() -> None:
    def cancel(fraction: float, text: str) -> None:
        if fraction:
            raise Cancelled("stopped")

    frame = dask.dataframe.from_pandas(survey(600), npartitions=PARTS)
    with pytest.raises(Cancelled, match="stopped"):
        count_partitions(frame, ["sex", "age"], count_partition, cancel)
    REPORTED.release()
    # the first partition, and the second one if it has already begun
    assert len(COUNTED) <= 2
