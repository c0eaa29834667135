"""Records of any kind -> small batches of the needed columns, with memory bounded by bytes, not by rows."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from engine.errors import DataError, LimitExceeded
from engine.release.records.batches import Batch, batches, check_columns, guarded, tried
from engine.release.records.csv import csv_batches, csv_names
from engine.release.records.encoding import is_scalar
from engine.texts import shown

if TYPE_CHECKING:
    import pandas as pd
    from pyarrow.dataset import Dataset

BATCH_BYTES = 64_000_000
CHUNK_BYTES = 400_000_000
KINDS = "a pandas DataFrame, an Arrow table, dataset or stream, or the path of a .csv, .csv.gz or .parquet file"

_VALUE_BYTES = 16  # a text of usual length, or two whole numbers; long texts come as dictionaries


def read_batches(data: Any, names: Sequence[str]) -> Iterator[Batch]:
    """The named columns of `data`, batch by batch; other columns are ignored.

    Raises: DataError when the data cannot be read, or a name is not exactly one of its columns; LimitExceeded when a
    file would unfold to more than CHUNK_BYTES at once.
    """
    import pandas as pd
    from pyarrow.dataset import Dataset  # imports pandas, too

    rows = max(1_000, min(2**18, BATCH_BYTES // (_VALUE_BYTES * max(1, len(names)))))
    if isinstance(data, pd.DataFrame):
        return _frame(data, names, rows)
    if isinstance(data, (str, Path)):
        return _file(Path(data), names, rows)
    if isinstance(data, Dataset):
        return _dataset(data, names, rows)
    if isinstance(data, pa.RecordBatch):
        data = pa.Table.from_batches([data])
    if isinstance(data, pa.Table):
        return _table(data, names, rows)
    if hasattr(data, "to_pyarrow_batches"):
        return _lazy(data, names, rows)
    if hasattr(data, "__arrow_c_stream__"):
        return _stream(tried(lambda: pa.RecordBatchReader.from_stream(data), "the Arrow stream"), names, rows)
    raise DataError(f"the records are given as {type(data).__name__}; give {KINDS}")


def column_names(data: Any) -> dict[str, bool | None]:
    """Names of the columns of data, and whether each holds numbers; None where only reading would tell.

    Names and types are public; no record is read.  Empty for what does not tell its columns.
    """
    import pandas as pd

    if isinstance(data, pd.DataFrame):
        return {name: _is_number(kind) for name, kind in data.dtypes.items() if isinstance(name, str)}
    if isinstance(data, (str, Path)):
        path = Path(data)
        if not path.is_file():
            return {}
        if not path.name.lower().endswith(".parquet"):
            return dict.fromkeys(csv_names(path)) if path.name.lower().endswith((".csv", ".csv.gz")) else {}
        data = tried(lambda: _parquet_file(path).schema_arrow, f"the file {shown(path.name)}")
    found = data if isinstance(data, pa.Schema) else getattr(data, "schema", None)
    if not isinstance(found, pa.Schema):
        return {}
    return {field.name: _is_number(field.type) for field in found}


def _is_number(kind: Any) -> bool:
    """Whether a type, of pandas or Arrow, is one of numbers."""
    if not isinstance(kind, pa.DataType):
        arrow = getattr(kind, "pyarrow_dtype", None)
        if arrow is None:
            return kind.kind in "iuf"
        kind = arrow
    types = pa.types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind))


def _frame(data: pd.DataFrame, names: Sequence[str], rows: int) -> Iterator[Batch]:
    check_columns(list(data.columns), names)
    for start in range(0, len(data), rows):
        count = min(rows, len(data) - start)
        columns = tuple(_series(data[name].iloc[start : start + count]) for name in names)
        yield Batch(columns=columns, rows=count, fraction=(start + count) / len(data))


def _series(values: pd.Series) -> pa.Array | list[Any]:
    """A pandas column as Arrow array, or as Python values when they have no common type."""
    # Arrow would find one type for mixed objects, and change some: whole numbers to dates, booleans to numbers.
    kinds = set(map(type, values)) - {type(None)} if values.dtype == object else set()
    mixed = len(kinds) > 1 and kinds != {str, float}
    try:
        found = None if mixed else pa.array(values, from_pandas=True)
    except Exception:
        found = None
    if found is None or (values.dtype == object and not is_scalar(found.type)):
        return list(values)
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found


def _table(data: pa.Table, names: Sequence[str], rows: int) -> Iterator[Batch]:
    check_columns(data.column_names, names)
    return batches(data.to_batches(), names, rows, data.num_rows, "the Arrow table")


def _stream(reader: pa.RecordBatchReader, names: Sequence[str], rows: int) -> Iterator[Batch]:
    check_columns(reader.schema.names, names)
    return batches(reader, names, rows, None, "the Arrow stream")


def _lazy(data: Any, names: Sequence[str], rows: int) -> Iterator[Batch]:
    what = f"the {type(data).__name__}"
    if hasattr(data, "columns") and hasattr(data, "select") and names:
        check_columns(list(data.columns), names)
        data = tried(lambda: data.select(list(names)), what)
    bounded = "chunk_size" in tried(lambda: inspect.signature(data.to_pyarrow_batches).parameters, what)
    reader = tried(lambda: data.to_pyarrow_batches(**({"chunk_size": rows} if bounded else {})), what)
    return _stream(reader, names, rows)


def _dataset(data: Dataset, names: Sequence[str], rows: int) -> Iterator[Batch]:
    from pyarrow.dataset import ParquetFileFragment

    check_columns(data.schema.names, names)
    # A scanner unfolds whole row groups, so their size has to be known before it starts.
    width = sum(_width(data.schema.field(name).type) for name in names)
    for fragment in guarded(data.get_fragments(), "the dataset"):
        if isinstance(fragment, ParquetFileFragment):
            groups = tried(lambda fragment=fragment: fragment.row_groups, "the dataset")  # type: ignore[misc]
            _check_size(max((group.num_rows for group in groups), default=0) * width)
    scanner = data.scanner(columns=list(names), batch_size=rows, batch_readahead=2, fragment_readahead=1)
    return batches(scanner.to_batches(), names, rows, None, "the dataset")


def _file(path: Path, names: Sequence[str], rows: int) -> Iterator[Batch]:
    name = path.name.lower()
    if not name.endswith((".csv", ".csv.gz", ".parquet")):
        raise DataError(f"the file {shown(path.name)} is of no known kind; give {KINDS}")
    if not path.is_file():
        raise DataError(f"there is no file {shown(path.name)} at the path given; check the path")
    return _parquet(path, names, rows) if name.endswith(".parquet") else csv_batches(path, names, rows)


def _parquet_file(place: Path, **options: Any) -> Any:
    import pyarrow.parquet as pq

    return pq.ParquetFile(place, **options)


def _parquet(path: Path, names: Sequence[str], rows: int) -> Iterator[Batch]:
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
            _check_size(max((row_group.column(i).total_uncompressed_size for i in wanted), default=0))
    # Texts stay dictionaries, so that a long text repeated a million times takes its place in memory once; a buffer
    # makes the reader go page by page, where it would otherwise load a whole column of a row group.
    buffer = max(2**12, min(2**20, BATCH_BYTES // max(1, len(names))))
    with tried(lambda: _parquet_file(path, read_dictionary=texts, buffer_size=buffer), what) as file:
        source = tried(lambda: file.iter_batches(batch_size=rows, columns=list(names)), what)
        yield from batches(source, names, rows, metadata.num_rows, what)


def _width(kind: pa.DataType) -> int:
    """Bytes that a value takes in memory, about."""
    try:
        return max(1, int(kind.bit_width) // 8)
    except ValueError:
        return _VALUE_BYTES


def _is_text(kind: pa.DataType) -> bool:
    types = pa.types
    whole = types.is_string(kind) or types.is_large_string(kind)
    return bool(whole or types.is_binary(kind) or types.is_large_binary(kind))


def _check_size(size: int) -> None:
    if size > CHUNK_BYTES:
        raise LimitExceeded(
            f"a row group of the file unfolds to {size:,} bytes, more than the {CHUNK_BYTES:,} allowed; write the file "
            "again with at most a million rows per row group"
        )
