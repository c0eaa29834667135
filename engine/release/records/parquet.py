"""Parquet files -> batches of the needed columns, in bounded memory whatever the file unfolds to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa

from engine.errors import DataError, LimitExceeded
from engine.release.records.batches import Batch, batches, check_columns, tried
from engine.texts import shown

BATCH_BYTES = 64_000_000
CHUNK_BYTES = 400_000_000


def parquet_schema(path: Path) -> pa.Schema:
    """The columns of a parquet file, as Arrow reads them."""
    return tried(lambda: _parquet_file(path).schema_arrow, f"the file {shown(path.name)}")


def _parquet_file(place: Path, **options: Any) -> Any:
    import pyarrow.parquet as pq

    return pq.ParquetFile(place, **options)


def parquet_batches(path: Path, names: Sequence[str], rows: int) -> Iterator[Batch]:
    """The named columns of a parquet file.  Raises: LimitExceeded for row groups that are too large."""
    what = f"the file {shown(path.name)}"
    with tried(lambda: _parquet_file(path), what) as file:
        fields = tried(lambda: file.schema_arrow, what)
        check_columns(fields.names, names)
        for name in names:
            if pa.types.is_nested(fields.field(name).type):
                raise DataError(f"the column {shown(name)} of {what} is nested; give one value per row")
        texts = [name for name in names if _is_text(fields.field(name).type)]
        metadata, needed = file.metadata, set(names)
        wanted = [i for i in range(metadata.num_columns) if metadata.schema.column(i).path in needed]
        for group in range(metadata.num_row_groups):
            row_group = metadata.row_group(group)
            check_group_size(max((row_group.column(i).total_uncompressed_size for i in wanted), default=0))
    # Texts stay dictionaries, so that a long text repeated a million times takes its place in memory once; a buffer
    # makes the reader go page by page, where it would otherwise load a whole column of a row group.
    buffer = max(2**12, min(2**20, BATCH_BYTES // max(1, len(names))))
    with tried(lambda: _parquet_file(path, read_dictionary=texts, buffer_size=buffer), what) as file:
        # One row group after the other, because a reader of many keeps the buffers of all that it went through.
        groups = (
            file.iter_batches(batch_size=rows, row_groups=[group], columns=list(names))
            for group in range(metadata.num_row_groups)
        )
        yield from batches(chain.from_iterable(groups), names, rows, metadata.num_rows, what)


def _is_text(kind: pa.DataType) -> bool:
    types = pa.types
    whole = types.is_string(kind) or types.is_large_string(kind)
    return bool(whole or types.is_binary(kind) or types.is_large_binary(kind))


def check_group_size(size: int) -> None:
    """Raise LimitExceeded for a row group that unfolds to too many bytes."""
    if size > CHUNK_BYTES:
        raise LimitExceeded(
            f"a row group of the file unfolds to {size:,} bytes, more than the {CHUNK_BYTES:,} allowed; write the file "
            "again with at most a million rows per row group"
        )
