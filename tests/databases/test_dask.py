"""Frames of Dask on a cluster of processes: a worker that dies has a name and costs nothing."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import dask.dataframe
import pandas as pd
import pytest

from engine import Budget, Ledger, Workload, measure, plan
from engine.errors import DataError
from tests.databases.samples import SCHEMA, survey


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
        measure(made, frame, dataset="d", ledger=book, ignore=["code"])
    assert caught.value.__context__ is None
    assert book.status("d").spent == 0.0
    assert [row.kind for row in book.rows()] == ["ledger", "dataset"]
