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
        _, _, digest = counting.count_here(records, COLUMNS, ways)
        assert digest == digest_of_tables(frame, ways)
    for name in ("duckdb", "pandas"):
        _, _, digest = counting.count_with_rival(name, records, COLUMNS)
        assert digest == digest_of_tables(frame, 2)
    _, transferred_bytes, digest = counting.count_in_database(records, COLUMNS)
    assert digest == digest_of_tables(frame, 2)
    pairs = itertools.combinations(frame, 2)
    nonzero_cells = sum(len(frame[list(pair)].drop_duplicates()) for pair in pairs)
    assert transferred_bytes >= 3 * nonzero_cells  # two codes and a count per cell


def test_check_equal_with_other_tables_raises(
    records: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, digest = counting.count_here(records, COLUMNS, 2)
    pairs = list(itertools.combinations(["x0", "x1", "x2"], 2))
    # One record less in every cell that has several.
    wrong_counts = [
        (first, second, counts - (counts > 1))
        for first, second, counts in counting.count_with_pandas(records, pairs)
    ]
    monkeypatch.setitem(counting.RIVALS, "pandas", lambda path, pairs: wrong_counts)
    _, _, wrong_digest = counting.count_with_rival("pandas", records, COLUMNS)
    with pytest.raises(RuntimeError, match="pandas"):
        counting.check_equal("pandas", wrong_digest, digest)


@pytest.mark.parametrize(
    ("measured", "at_most_1", "at_least_1"),
    [(1.0, "yes", "yes"), (0.9, "yes", "no"), (1.1, "no", "yes")],
)
def test_figure_states_whether_its_bound_holds(
    measured: float, at_most_1: str, at_least_1: str
) -> None:
    assert str(counting.Figure(name="s", measured=measured, at_most=1.0)).endswith(at_most_1)
    assert str(counting.Figure(name="s", measured=measured, at_least=1.0)).endswith(at_least_1)


def test_write_records_csv_equals_parquet(records: Path, tmp_path: Path) -> None:
    csv_records = counting.write_records(tmp_path / "records.csv", ROWS, COLUMNS)
    _, _, csv_digest = counting.count_here(csv_records, COLUMNS, 2)
    _, _, parquet_digest = counting.count_here(records, COLUMNS, 2)
    assert csv_digest == parquet_digest


def test_extrapolation_is_proportional_to_rows() -> None:
    spark = {"again, s": 5.0}
    parts = {"all parts, s": 2.0, "their counts, which travel, MB": 0.8, "merging, s": 0.4}
    figures = cluster.extrapolate(1_000_000, spark, parts)
    assert list(figures.values()) == [
        1e5,  # Spark: rows per second and core
        1e3,  # Spark: seconds of all cores
        5e5,  # files: rows per second and machine
        400.0,  # files: seconds of all machines
        10.0,  # files: MB of counts that travel
        5.0,  # files: seconds of merging
        80.0,  # GB per column of the rows themselves
    ]
