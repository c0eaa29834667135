"""Programs compared in the counting benchmark count equal tables."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks import cluster, counting

ROWS, COLUMNS = 900, 3


@pytest.fixture
def records(tmp_path: Path) -> Path:
    return counting.write_records(tmp_path / "records.parquet", ROWS, COLUMNS)


def digest_of_tables(frame: pd.DataFrame, ways: int) -> str:
    """Return the digest of all tables of a frame of codes."""
    tables = []
    for names in itertools.combinations(frame.columns, ways):
        table = np.zeros((counting.CELLS,) * ways, np.int64)
        np.add.at(table, tuple(frame[name].to_numpy() for name in names), 1)
        tables.append(table)
    return counting.digest(tables)


def test_engine_and_other_programs_count_equal_tables(records: Path) -> None:
    frame = pd.read_parquet(records)
    assert len(frame) == ROWS
    for ways in (2, 3):
        assert counting.count_here(records, COLUMNS, ways)[2] == digest_of_tables(frame, ways)
    for name in ("duckdb", "pandas"):
        assert counting.count_with_rival(name, records, COLUMNS)[2] == digest_of_tables(frame, 2)
    _, moved, digest = counting.count_in_database(records, COLUMNS)
    assert digest == digest_of_tables(frame, 2)
    assert moved >= 3 * sum(
        len(frame[list(pair)].drop_duplicates()) for pair in itertools.combinations(frame, 2)
    )


def test_check_equal_with_other_tables_raises(
    records: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest, count = counting.count_here(records, COLUMNS, 2)[2], counting.count_with_pandas
    pairs = list(itertools.combinations(["x0", "x1", "x2"], 2))
    # One record less in every cell that has several.
    wrong_counts = [(a, b, counts - (counts > 1)) for a, b, counts in count(records, pairs)]
    monkeypatch.setitem(counting.RIVALS, "pandas", lambda path, pairs: wrong_counts)
    wrong_digest = counting.count_with_rival("pandas", records, COLUMNS)[2]
    with pytest.raises(RuntimeError, match="pandas"):
        counting.check_equal("pandas", wrong_digest, digest)


@pytest.mark.parametrize(
    ("measured", "met"), [(1.0, ("yes", "yes")), (0.9, ("yes", "no")), (1.1, ("no", "yes"))]
)
def test_figure_states_whether_its_bound_holds(measured: float, met: tuple[str, str]) -> None:
    most, least = (
        counting.Figure(name="s", measured=measured, **{bar: 1.0})
        for bar in ("at_most", "at_least")
    )
    assert (str(most).split()[-1], str(least).split()[-1]) == met


def test_write_records_csv_equals_parquet(records: Path, tmp_path: Path) -> None:
    other = counting.write_records(tmp_path / "records.csv", ROWS, COLUMNS)
    assert counting.count_here(other, COLUMNS, 2)[2] == counting.count_here(records, COLUMNS, 2)[2]


def test_extrapolation_is_proportional_to_rows() -> None:
    spark = {"again, s": 5.0}
    parts = {"all parts, s": 2.0, "their counts, which travel, MB": 0.8, "merging, s": 0.4}
    expected = [
        1e5,  # Spark: rows per second and core
        1e3,  # Spark: seconds of all cores
        5e5,  # files: rows per second and machine
        400.0,  # files: seconds of all machines
        10.0,  # files: MB of counts that travel
        5.0,  # files: seconds of merging
        80.0,  # GB per column of the rows themselves
    ]
    assert list(cluster.extrapolate(1_000_000, spark, parts).values()) == expected
