"""Exact tables from data of every kind, within the memory limit."""

import functools
import itertools
import random
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import engine.records.csv_reader
import engine.records.marginals
import engine.records.readers
from engine.errors import Cancelled, DataError, LimitExceeded, SchemaError
from engine.records import count_marginals
from engine.workload import Attribute, Schema
from tests.records.fitting import ALL_SETS, KINDS, SCHEMA, csv_file, sample


def is_in_cell(column: pd.Series, attribute: Attribute, cell: int) -> np.ndarray:
    """Return whether each value is in a cell of the attribute, as pandas compares values."""
    if attribute.edges is not None:
        last = cell == attribute.size - 1
        upper = column <= attribute.edges[-1] if last else column < attribute.edges[cell + 1]
        selected = (column >= attribute.edges[cell]) & upper
    elif attribute.labels is None:
        selected = column == cell
    else:
        label = attribute.labels[cell]
        selected = column.eq(label) & column.notna()
        if label == attribute.missing:
            selected |= column.isna()
        if label == attribute.other:
            selected |= column.notna() & ~column.isin(attribute.labels)
    return selected.to_numpy(dtype=bool)


@functools.cache
def expected_tables(rows: int) -> dict[tuple[str, ...], np.ndarray]:
    frame = sample(rows)
    in_cell = {  # shape (cells, rows)
        name: np.array([is_in_cell(frame[name], attribute, i) for i in range(attribute.size)])
        for name, attribute in zip(SCHEMA.names, SCHEMA.attributes, strict=True)
    }
    tables = {}
    for names in ALL_SETS:
        in_cells = np.ones(rows, bool)  # shape (n_1, ..., n_k, rows)
        for name in names:
            in_cells = in_cells[..., None, :] & in_cell[name]
        tables[names] = in_cells.sum(axis=-1)
    return tables


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_data_gives_exact_tables(kind: str, tmp_path: Path) -> None:
    frame = sample(200)
    counts = count_marginals(KINDS[kind](frame, tmp_path), SCHEMA, ALL_SETS)
    assert list(counts) == ALL_SETS
    assert counts.records == counts.rows_in == len(frame)
    assert counts.refused == {}
    for names, table in counts.items():
        assert table.dtype == np.int64
        assert table.flags.c_contiguous
        np.testing.assert_array_equal(table, expected_tables(len(frame))[names])


def test_chunk_size_does_not_change_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = sample(5_000)
    expected = count_marginals(frame, SCHEMA, ALL_SETS)
    monkeypatch.setattr(engine.records.marginals, "CHUNK_ROWS", 1)
    monkeypatch.setattr(engine.records.readers, "BATCH_BYTES", 1)
    counts = count_marginals(frame, SCHEMA, ALL_SETS)
    for names in ALL_SETS:
        np.testing.assert_array_equal(counts[names], expected[names])


@pytest.mark.parametrize(
    "sizes",
    [(1, 128), (128, 1), (127,), (128,), (1, 32_768), (181, 182), (2, 7, 3_000), (99_999,)],
    ids=str,
)
def test_tables_at_integer_type_limits_are_exact(sizes: tuple[int, ...]) -> None:
    schema = Schema([Attribute.of_size(f"a{i}", size) for i, size in enumerate(sizes)])
    rng = np.random.default_rng(1)
    for rows in (50, 40_000):
        columns = {name: rng.integers(0, schema[name].size, rows) for name in schema}
        for name, codes in columns.items():
            codes[:2] = 0, schema[name].size - 1
        counts = count_marginals(pd.DataFrame(columns), schema, [schema.names])
        expected = np.zeros(sizes, np.int64)
        np.add.at(expected, tuple(columns.values()), 1)
        np.testing.assert_array_equal(counts[schema.names], expected)


def test_csv_block_size_does_not_change_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = csv_file(sample(200), tmp_path / "x.csv")
    for block in (60, 61, 500):
        monkeypatch.setattr(engine.records.csv_reader, "CSV_BLOCK", block)
        counts = count_marginals(path, SCHEMA, ALL_SETS)
        for names in ALL_SETS:
            np.testing.assert_array_equal(counts[names], expected_tables(200)[names])


def test_empty_attribute_set_counts_records(tmp_path: Path) -> None:
    frame = sample(70)
    for kind in set(KINDS) - {"counts"}:
        path = tmp_path / kind
        path.mkdir()
        counts = count_marginals(KINDS[kind](frame, path), SCHEMA, [()])
        assert counts[()].shape == ()
        assert int(counts[()]) == counts.records == 70
    assert len(count_marginals(frame, SCHEMA, [])) == 0


def test_empty_records_give_zero_tables(tmp_path: Path) -> None:
    frame = sample(3).iloc[:0]
    for kind in (
        "DataFrame",
        "csv",
        "csv.gz",
        "parquet",
        "table",
        "reader",
        "lazy",
        "dataset in memory",
    ):
        path = tmp_path / kind
        path.mkdir()
        counts = count_marginals(KINDS[kind](frame, path), SCHEMA, ALL_SETS)
        assert counts.rows_in == 0
        assert all(table.sum() == 0 for table in counts.values())


def test_invalid_requests_are_refused() -> None:
    frame = sample(3)
    for sets in (
        ["age"],
        "age",
        [3],
        [("age", "age")],
        [("height",)],
        [(3,)],
        [{"age", "sex"}],
        [frozenset(["age"])],
    ):
        with pytest.raises(SchemaError):
            count_marginals(frame, SCHEMA, sets)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="'skip'"):
        count_marginals(frame, SCHEMA, ALL_SETS, on_refused="skip")
    for data in (
        None,
        3,
        b"x.csv",
        {"age": [1]},
        [[1]],
        np.zeros(3),
        "x.xlsx",
        "x.csv",
        Path("/"),
        "https://x/y.csv",
    ):
        with pytest.raises(DataError):
            count_marginals(data, SCHEMA, [("age",)])


def test_too_large_tables_are_refused_before_allocation() -> None:
    schema = Schema([Attribute.of_size(f"a{i}", 1_000) for i in range(40)])
    frame = pd.DataFrame({name: [0] for name in schema})
    with pytest.raises(LimitExceeded, match=r"7\.9 × 10\^13 bytes"):
        count_marginals(frame, schema, itertools.combinations(schema.names, 3))
    with pytest.raises(LimitExceeded):
        count_marginals(frame, schema, [schema.names])
    pair_bytes = 8 * 1_000**2
    assert count_marginals(frame, schema, [("a0", "a1")], memory_limit=pair_bytes).records == 1
    with pytest.raises(LimitExceeded):
        count_marginals(frame, schema, [("a0", "a1")], memory_limit=pair_bytes - 1)
    many = Schema([Attribute.of_size(f"a{i}", 1 if i < 100 else 10**7) for i in range(10_000)])
    for names in (many.names, many.names[:65]):
        with pytest.raises(LimitExceeded):
            count_marginals(frame, many, [names])


@pytest.mark.parametrize("kind", ["DataFrame", "csv", "csv.gz", "parquet", "reader"])
def test_progress_rises_and_can_stop(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.records.readers, "BATCH_BYTES", 1)
    fractions: list[float] = []
    data = KINDS[kind](sample(4_000), tmp_path)
    count_marginals(
        data, SCHEMA, ALL_SETS, progress=lambda fraction, text: fractions.append(fraction)
    )
    assert fractions == sorted(fractions)
    assert len(fractions) >= 4
    assert 0 < fractions[-1] <= 1

    def stop(fraction: float, text: str) -> None:
        raise Cancelled("stopped")

    with pytest.raises(Cancelled):
        count_marginals(KINDS[kind](sample(4_000), tmp_path), SCHEMA, ALL_SETS, progress=stop)


def test_many_tables_of_wide_records_are_exact() -> None:
    rng = np.random.default_rng(2)
    sizes = (85, 9, 100, 16, 7, 15, 6, 5, 2, 2, 100, 100, 99, 42)
    schema = Schema([Attribute.of_size(f"a{i}", size) for i, size in enumerate(sizes)])
    frame = pd.DataFrame({name: rng.integers(0, schema[name].size, 48_842) for name in schema})
    sets = [names for k in (1, 2, 3) for names in itertools.combinations(schema.names, k)]
    counts = count_marginals(frame, schema, sets)
    for names in random.Random(3).sample(sets, 20):
        expected = np.zeros(schema.sizes(names), np.int64)
        np.add.at(expected, tuple(frame[name].to_numpy() for name in names), 1)
        np.testing.assert_array_equal(counts[names], expected)
