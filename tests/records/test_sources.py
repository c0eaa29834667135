"""Equal counts from files, folders, generators and frames of other libraries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import dask.dataframe
import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest

from engine.errors import DataError
from engine.records import count_marginals
from engine.workload import Schema
from tests.records.mixed import FRAME, SCHEMA, SETS, check, feather


def stream(path: Path) -> Path:
    table = pa.Table.from_pandas(FRAME)
    with pa.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=70)
    return path


def parts(path: Path) -> Path:
    """Write `FRAME` as a folder of Parquet files with the two other files that Spark adds."""
    path.mkdir()
    for i in range(4):
        (path / f"year={i}").mkdir()
        FRAME.iloc[i::4].to_parquet(path / f"year={i}" / "part.parquet")
    (path / "_SUCCESS").write_text("")
    (path / ".part.crc").write_text("")
    return path


def by_sex(path: Path) -> Path:
    pa.parquet.write_to_dataset(
        pa.Table.from_pandas(FRAME.fillna({"sex": pd.NA})), path, partition_cols=["sex"]
    )
    return path


def generated() -> Iterator[pa.RecordBatch]:
    yield from pa.Table.from_pandas(FRAME).to_batches(max_chunksize=60)


class Polars:
    """Substitute for a Polars LazyFrame: the records `FRAME`, available only by `collect`."""

    def collect_schema(self) -> None:
        raise AssertionError("not needed")

    def collect(self, *, engine: str) -> pa.RecordBatchReader:
        assert engine == "streaming"
        return pa.Table.from_pandas(FRAME).to_reader()


def polars_file(path: Path) -> Path:
    import_module("polars").from_pandas(FRAME).write_ipc(path, compression="zstd")
    return path


SOURCES: dict[str, Callable[[Path], Any]] = {
    "feather": lambda path: feather(path / "x.feather", FRAME),
    "arrow file": lambda path: feather(path / "x.arrow", FRAME),
    "arrow stream": lambda path: stream(path / "x.arrow"),
    "folder": lambda path: parts(path / "set"),
    "pattern": lambda path: str(parts(path / "set") / "*" / "*.parquet"),
    "folder by sex": lambda path: by_sex(path / "set"),
    "generator": lambda path: generated(),
    "generator of tables": lambda path: iter(
        [pa.Table.from_pandas(FRAME[:99]), pa.Table.from_pandas(FRAME[99:])]
    ),
    "plan": lambda path: Polars(),
    "dask": lambda path: dask.dataframe.from_pandas(FRAME, npartitions=3),
    "relation": lambda path: duckdb.connect().from_arrow(pa.Table.from_pandas(FRAME)),
}
if find_spec("polars"):  # optional, because it is too large to install only for tests
    SOURCES |= {
        "polars": lambda path: import_module("polars").from_pandas(FRAME),
        "polars plan": lambda path: import_module("polars").from_pandas(FRAME).lazy(),
        "polars file": lambda path: polars_file(path / "x.arrow"),
    }


@pytest.mark.parametrize("kind", SOURCES)
def test_each_source_gives_equal_counts(kind: str, tmp_path: Path) -> None:
    check(SOURCES[kind](tmp_path))


@pytest.mark.parametrize("kind", SOURCES)
def test_unused_number_column_of_each_source_is_refused(kind: str, tmp_path: Path) -> None:
    without_code = Schema([SCHEMA["sex"], SCHEMA["age"]])
    refused, ignored = tmp_path / "refused", tmp_path / "ignored"
    refused.mkdir()
    ignored.mkdir()
    with pytest.raises(DataError, match="numeric column 'code'"):
        count_marginals(SOURCES[kind](refused), without_code, [("sex",)], on_refused="drop")
    counts = count_marginals(
        SOURCES[kind](ignored), without_code, [("sex",)], on_refused="drop", ignore=["code"]
    )
    assert counts.records == (FRAME["sex"] != "f").sum()


@pytest.mark.parametrize("kind", SOURCES)
def test_count_column_of_each_source_gives_equal_counts(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = np.random.default_rng(1).choice([-1, 0, 1, 2, 2.5, 7, 1e15, np.nan], len(FRAME))
    monkeypatch.setitem(globals(), "FRAME", FRAME.assign(n=numbers))
    options: dict[str, Any] = {"count_column": "n", "on_refused": "drop"}
    expected = count_marginals(FRAME, SCHEMA, SETS, **options)
    assert len(expected.refused["n"]) == 3
    counts = count_marginals(SOURCES[kind](tmp_path), SCHEMA, SETS, **options)
    assert all((counts[names] == expected[names]).all() for names in expected)
    assert (counts.records, counts.rows_in, counts.refused) == (
        expected.records,
        expected.rows_in,
        expected.refused,
    )


def test_folder_with_unsuitable_files_is_refused(tmp_path: Path) -> None:
    def check_refusal(data: Path, words: str) -> None:
        with pytest.raises(DataError, match=words):
            count_marginals(data, SCHEMA, SETS, on_refused="drop")

    folder = parts(tmp_path / "set")
    other_file = folder / "year=2" / "more.parquet"
    FRAME.drop(columns="age").to_parquet(other_file)
    check_refusal(folder, "no column 'age'")
    other_file.write_bytes(b"")
    (folder / "readme.md").write_text("nothing")
    check_refusal(folder, r"readme\.md")
    counted = tmp_path / "counted"
    counted.mkdir()
    (counted / "a.counts").write_text("nothing")
    check_refusal(counted, r"'a\.counts' contains counts and no records.*'counts merge'")
    column_in_path_and_file = by_sex(tmp_path / "both")
    FRAME.to_parquet(column_in_path_and_file / "sex=F" / "more.parquet")
    check_refusal(column_in_path_and_file, r"'sex' is in the file 'more\.parquet' and in")
    empty = tmp_path / "empty"
    for without_files in (empty, tmp_path / "*.parquet"):
        check_refusal(without_files, "no file")
    empty.mkdir()
    check_refusal(empty, "folder is empty")


def test_generator_of_other_values_is_refused() -> None:
    for values in (
        iter([]),
        iter([1, 2]),
        iter([pa.Table.from_pandas(FRAME), 3]),
        (row for row in ({"sex": "F"},)),
    ):
        with pytest.raises(DataError):
            count_marginals(values, SCHEMA, SETS, on_refused="drop")

    def failing_batches() -> Iterator[pa.RecordBatch]:
        yield from generated()
        raise RuntimeError("CANARY7391")

    with pytest.raises(DataError) as caught:
        count_marginals(failing_batches(), SCHEMA, SETS, on_refused="drop")
    assert "7391" not in str(caught.value)
    assert caught.value.__context__ is None
