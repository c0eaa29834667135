"""Frames of Dask on a cluster of processes: a worker that dies has a name and costs nothing."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import dask.dataframe
import pandas as pd
import pytest

from engine.errors import Cancelled, DataError
from engine.ledger import Ledger
from engine.mechanisms import plan
from engine.privacy import Budget
from engine.records import Counts, count_marginals
from engine.records.dask import count_partitions
from engine.release import measure
from engine.workload import Workload
from tests.databases.samples import SCHEMA, survey
from tests.waiting import CEILING

PARTS = 12
HEARD, COUNTED = threading.Semaphore(0), list[int]()  # one for every partition that somebody was told of


def part(number: int, keeper: int) -> pd.DataFrame:
    """A partition; the second one kills the worker that reads it."""
    if number == 1 and os.getpid() != keeper:
        os.kill(os.getpid(), signal.SIGKILL)
    return survey(600).iloc[number::3]


def test_a_worker_that_is_killed_is_named_and_nothing_is_spent(tmp_path: Path) -> None:
    from distributed import Client, LocalCluster

    book = Ledger.create(tmp_path / "book")
    book.add_dataset("d", total=Budget(pcost=1e7))
    made = plan(Workload(SCHEMA).add(("sex", "age"), "marginal"), Budget(pcost=1e6))
    frame = dask.dataframe.from_map(part, range(3), keeper=os.getpid(), meta=survey(1).iloc[:0])
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        LocalCluster(processes=True, n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster),
        pytest.raises(DataError, match="were lost before the counts were complete") as caught,
    ):
        measure(made, frame, dataset="d", ledger=book)
    assert caught.value.__context__ is None
    assert book.status("d").spent == 0.0
    assert [row.kind for row in book.rows()] == ["ledger", "dataset"]


def counted(frame: pd.DataFrame) -> Counts:
    """The counts of a partition, once all that ended before have been told of."""
    if COUNTED and not HEARD.acquire(timeout=CEILING):
        raise AssertionError("nobody was told of the partition before")
    COUNTED.append(len(frame))
    return count_marginals(frame, SCHEMA, [("sex", "age")], on_refused="drop")


@pytest.fixture
def one_thread() -> Iterator[None]:
    """A cluster of one worker in this process, which counts one partition after the other."""
    from distributed import Client, LocalCluster

    COUNTED.clear()
    while HEARD.acquire(blocking=False):
        pass
    with LocalCluster(processes=False, n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster:
        with Client(cluster):
            yield
        for _ in range(PARTS):
            HEARD.release()


@pytest.mark.usefixtures("one_thread")
def test_a_cluster_tells_of_each_partition() -> None:
    told = [0.0]

    def heard(fraction: float, text: str) -> None:
        if fraction > told[-1]:
            HEARD.release()
            told.append(fraction)

    frame = dask.dataframe.from_pandas(survey(600), npartitions=PARTS)
    found = count_partitions(frame, ["sex", "age"], counted, heard)
    assert len(COUNTED) == PARTS
    assert told == pytest.approx([i / PARTS for i in range(PARTS + 1)])
    assert (
        found["sex", "age"] == count_marginals(survey(600), SCHEMA, [("sex", "age")], on_refused="drop")["sex", "age"]
    ).all()


@pytest.mark.usefixtures("one_thread")
def test_whoever_stops_a_cluster_stops_what_waits_there() -> None:
    def heard(fraction: float, text: str) -> None:
        if fraction:
            raise Cancelled("stopped")

    frame = dask.dataframe.from_pandas(survey(600), npartitions=PARTS)
    with pytest.raises(Cancelled, match="stopped"):
        count_partitions(frame, ["sex", "age"], counted, heard)
    HEARD.release()
    assert len(COUNTED) <= 2
