"""Arrow and parquet files: footers, batches and bounded decompressed size."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet
import pytest

from engine.errors import DataError, LimitExceeded
from engine.records import count_marginals, read_batches
from engine.workload import Attribute, Schema
from tests.records.mixed import check, feather


def test_row_group_memory_is_freed_before_next(tmp_path: Path) -> None:
    """Memory of a row group is freed before the next one is read, for any number of row groups."""
    rows, groups, path = 20_000, 48, tmp_path / "x.parquet"
    a, b = np.random.default_rng(0).integers(0, 2**40, (2, rows * groups))
    table = pa.table({"a": a, "b": b})
    pa.parquet.write_table(table, path, row_group_size=rows, use_dictionary=False)
    before, peak = pa.total_allocated_bytes(), 0
    for _ in read_batches(path, ["a", "b"]):
        peak = max(peak, pa.total_allocated_bytes() - before)
    group_bytes = rows * 2 * 8  # a row has two numbers of 8 bytes
    # 8 of the 48 row groups may be in memory at the same time
    assert 0 < peak < 8 * group_bytes


def test_dictionaries_of_arrow_files_are_bounded_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, long = tmp_path / "x.arrow", 100_000
    labels = pa.DictionaryArray.from_arrays(pa.array([0]), [" " * long])
    table = pa.table({"code": pa.array([0]), **{f"other{i}": labels for i in range(3)}})
    with pa.ipc.new_file(
        path, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")
    ) as writer:
        writer.write_table(table)
    schema = Schema([Attribute.of_size("code", 5)])
    monkeypatch.setattr("engine.records.csv_reader.MAX_DECOMPRESSED_BYTES", 4 * long)
    assert count_marginals(path, schema, [("code",)]).records == 1
    monkeypatch.setattr("engine.records.csv_reader.MAX_DECOMPRESSED_BYTES", 2 * long)
    with pytest.raises(LimitExceeded, match="its dictionaries"):
        count_marginals(path, schema, [("code",)])


@pytest.mark.parametrize("compression", ["lz4", "zstd", None])
@pytest.mark.parametrize("form", ["file", "stream", "labels"])
def test_arrow_file_that_decompresses_too_large_is_refused(
    tmp_path: Path, form: str, compression: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, rows = tmp_path / "x.arrow", 100_000
    column_bytes = 8 * rows
    column: Any = pa.array(np.zeros(rows, np.int64))
    if form == "labels":
        column = pa.DictionaryArray.from_arrays(pa.array([0]), [" " * column_bytes])
    table = pa.table({"code": column})
    new = pa.ipc.new_stream if form == "stream" else pa.ipc.new_file
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with new(path, table.schema, options=options) as writer:
        writer.write_table(table)
    schema = Schema([Attribute.of_size("code", 5)])
    assert count_marginals(path, schema, [("code",)], on_refused="drop").rows_in == len(column)
    monkeypatch.setattr("engine.records.csv_reader.MAX_DECOMPRESSED_BYTES", column_bytes - 1)
    if compression is None:
        assert count_marginals(path, schema, [("code",)], on_refused="drop").rows_in == len(column)
        return
    assert path.stat().st_size < rows
    with pytest.raises(LimitExceeded, match="decompress to 8"):
        next(read_batches(path, ["code"]))
    if form != "stream":  # PyArrow datasets cannot read streams
        with pytest.raises(LimitExceeded, match="decompress to 8"):
            next(read_batches(pa.dataset.dataset(tmp_path, format="arrow"), ["code"]))
    damaged = path.read_bytes()[:-30].replace(b"code", b"cod\xff")
    path.write_bytes(damaged)
    with pytest.raises(DataError):
        count_marginals(path, schema, [("code",)], on_refused="drop")


def test_arrow_footer_with_unknown_batches_is_refused(tmp_path: Path) -> None:
    path, table = tmp_path / "x.arrow", pa.table({"code": [0, 1, 1]})
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table)
    dataset = pa.dataset.dataset(tmp_path, format="arrow")
    assert sum(batch.rows for batch in read_batches(dataset, ["code"])) == 3
    content = path.read_bytes()
    # every message starts with this marker; the first message is the schema
    batch = content.index(b"\xff\xff\xff\xff", 16)
    offset = content.index(struct.pack("<q", batch), batch)
    path.write_bytes(content[:offset] + struct.pack("<q", batch + 8) + content[offset + 8 :])
    for data in (dataset, path):
        with pytest.raises(DataError, match="lists batches"):
            next(read_batches(data, ["code"]))


def test_arrow_file_is_read_by_its_footer(tmp_path: Path) -> None:
    """Only messages that the footer lists are read; the schema at the start may be missing."""
    path = feather(tmp_path / "x.arrow")
    content = path.read_bytes()
    length = struct.unpack_from("<i", content, 12)[0]
    assert content[8:12] == b"\xff\xff\xff\xff"
    # remove the schema at the start of the file; the footer contains it again
    path.write_bytes(content[:8] + bytes(8 + length) + content[16 + length :])
    check(path)
    check(pa.dataset.dataset(path, format="arrow"))
