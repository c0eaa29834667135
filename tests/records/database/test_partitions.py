"""Dask partitions: counted by workers, cancellation, and failures of workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.dataframe
import numpy as np
import pandas as pd
import pytest

from engine.errors import Cancelled, DataError
from engine.records import count_marginals
from engine.records.database import count_partitions
from tests.records.mixed import FRAME, SCHEMA, SETS, check


def partitions(frame: pd.DataFrame = FRAME) -> Any:
    return dask.dataframe.from_pandas(frame, npartitions=5)


def test_partitions_are_counted_by_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "engine.records.readers._partitions", lambda *_: pytest.fail("rows were read")
    )
    fractions: list[float] = []

    def record(fraction: float, _: str) -> bool:
        fractions.append(fraction)
        return True

    # five partitions in groups of two
    monkeypatch.setattr("engine.records.database.MAX_CONCURRENT_PARTITIONS", 2)
    check(partitions(), progress=record)
    assert fractions == sorted(fractions)
    assert {0.4, 0.8, 1.0} < set(fractions)
    assert fractions[-1] == 1.0
    with pytest.raises(DataError) as frame_error:
        count_marginals(FRAME, SCHEMA, SETS)
    with pytest.raises(DataError) as partitions_error:
        count_marginals(partitions(), SCHEMA, SETS)
    assert str(partitions_error.value) == str(frame_error.value)
    weighted = FRAME.assign(n=np.arange(len(FRAME)))
    options = {"count_column": "n", "on_refused": "drop"}
    expected = count_marginals(weighted, SCHEMA, SETS, **options)
    counts = count_marginals(partitions(weighted), SCHEMA, SETS, **options)
    assert counts.refused == expected.refused
    assert all((counts[names] == expected[names]).all() for names in expected)
    assert count_marginals(partitions(FRAME.iloc[:0]), SCHEMA, SETS).records == 0


@pytest.mark.parametrize("error", [Cancelled, OSError])
def test_exception_in_progress_stops_waiting_partitions(
    error: type[Exception], tmp_path: Path
) -> None:
    def count_partition(part: pd.DataFrame) -> Any:
        (tmp_path / f"{len(list(tmp_path.iterdir()))}").touch()
        return count_marginals(part, SCHEMA, SETS, on_refused="drop")

    def stop(fraction: float, text: str) -> None:
        raise error("stopped")

    frame = dask.dataframe.from_pandas(FRAME, npartitions=40)
    with dask.config.set(scheduler="sync"), pytest.raises(error, match="stopped"):
        count_partitions(frame, list(FRAME.columns), count_partition, stop)
    # each counted partition creates one file
    assert len(list(tmp_path.iterdir())) <= 1


def test_rows_of_a_person_are_capped_across_partitions() -> None:
    panel = FRAME.assign(pid=np.arange(len(FRAME)) % 40)
    options = {"person": "pid", "rows_per_person": 2, "on_refused": "drop"}
    expected = count_marginals(panel, SCHEMA, SETS, **options)
    counts = count_marginals(partitions(panel), SCHEMA, SETS, **options)
    assert counts.people == expected.people
    assert counts.rows_over_cap == expected.rows_over_cap
    assert all((counts[names] == expected[names]).all() for names in expected)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (type("KilledWorker", (Exception,), {}), "were lost before all"),
        (ModuleNotFoundError, "not installed on the Dask workers"),
        (ValueError, r"the Dask frame cannot be read \(ValueError\)"),
    ],
)
def test_worker_failure_error_hides_values(error: type[Exception], words: str) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error("a secret value")

    with dask.config.set(scheduler=fail), pytest.raises(DataError, match=words) as caught:
        count_marginals(partitions(), SCHEMA, SETS)
    assert "secret" not in str(caught.value)
    assert caught.value.__context__ is None
