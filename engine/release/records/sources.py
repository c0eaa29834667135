"""Records of any kind -> small batches of the needed columns, with memory bounded by bytes, not by rows."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from engine.errors import DataError
from engine.release.records.apart import SheetFile, sheet_batches, sheet_names
from engine.release.records.batches import Batch, batches, check_columns, guarded, tried
from engine.release.records.csv import TextFile, csv_batches, csv_names
from engine.release.records.database import as_text, is_dask_frame, is_spark_table, is_table, spark_batches
from engine.release.records.encoding import is_scalar
from engine.release.records.files import ENDINGS, ColumnKinds, file_batches, file_columns, is_number, typed
from engine.release.records.packed import check_arrow
from engine.release.records.parquet import check_group_size
from engine.texts import shown

if TYPE_CHECKING:
    import pandas as pd
    from pyarrow.dataset import Dataset, FileFragment

BATCH_BYTES = 64_000_000
KINDS = (
    "a DataFrame of pandas, Polars, Dask or Spark, a relation of DuckDB, a table of Ibis, an Arrow table, dataset, "
    "stream or generator of batches, or the path of a file, a folder or a pattern, with names that end in one of "
    f"{ENDINGS}"
)
READ_BY_PANDAS = ("sqlite", "mysql", "singlestoredb", "impala")  # backends of Ibis that fetch rows through pandas

_VALUE_BYTES = 16  # a text of usual length, or two whole numbers; long texts come as dictionaries


def as_source(data: Any) -> Any:
    """Data as `read_batches` and `column_names` take them, one after the other.

    What gives its rows once only, or through Arrow's own door between libraries, becomes a stream of Arrow's.
    """
    if hasattr(data, "collect") and hasattr(data, "collect_schema"):  # a Polars plan
        data = tried(lambda: data.collect(engine="streaming"), f"the {type(data).__name__}")
    if isinstance(data, Iterator) and not isinstance(data, pa.RecordBatchReader):
        return _generated(data)
    own = isinstance(data, (pa.Table, pa.RecordBatch, pa.RecordBatchReader, _dataset_type())) or _is_pandas(data)
    if hasattr(data, "__arrow_c_stream__") and not own and not hasattr(data, "to_pyarrow_batches"):
        return tried(lambda: pa.RecordBatchReader.from_stream(data), "the Arrow stream")
    return data


def read_batches(data: Any, names: Sequence[str], only: Path | None = None) -> Iterator[Batch]:
    """The named columns of `data`, or of one of its files, batch by batch; other columns are ignored.

    Raises: DataError when the data cannot be read, or a name is not exactly one of its columns; LimitExceeded when a
    file would unfold to too many bytes at once.
    """
    rows = max(1_000, min(2**18, BATCH_BYTES // (_VALUE_BYTES * max(1, len(names)))))
    if _is_pandas(data):
        return _frame(data, names, rows)
    if isinstance(data, (str, Path)):
        return file_batches(Path(data), names, rows, only)
    if isinstance(data, TextFile):
        return csv_batches(data, names, rows)
    if isinstance(data, SheetFile):
        return sheet_batches(Path(data.path), names, rows, data.sheet)
    if isinstance(data, _dataset_type()):
        return _dataset(data, names, rows)
    if isinstance(data, pa.RecordBatch):
        data = pa.Table.from_batches([data])
    if isinstance(data, pa.Table):
        return _table(data, names, rows)
    if is_dask_frame(data):
        return _partitions(data, names, rows)
    if is_spark_table(data):
        check_columns(list(data.columns), names)
        return spark_batches(data, names, rows)
    if hasattr(data, "to_pyarrow_batches"):
        return _lazy(data, names, rows)
    data = as_source(data)
    if isinstance(data, pa.RecordBatchReader):
        return _stream(data, names, rows)
    raise DataError(f"the records are given as {type(data).__name__}; give {KINDS}")


def column_names(data: Any) -> ColumnKinds:
    """Names of the columns of data or the first of its files, and whether each holds numbers; see `column_kinds`."""
    return next((columns for _, columns in column_kinds(data)), {})


def column_kinds(data: Any) -> Iterator[tuple[Path | None, ColumnKinds]]:
    """The columns of each file of data, or of data without files: whether they hold numbers, None if nothing tells.

    Names and types are public; no record is read.  Empty for what does not tell its columns.
    """
    if isinstance(data, (str, Path)):
        yield from file_columns(Path(data))
    else:
        yield None, _columns(data)


def _columns(data: Any) -> ColumnKinds:
    if _is_pandas(data) or is_dask_frame(data):
        return {name: _is_number(kind) for name, kind in data.dtypes.items() if isinstance(name, str)}
    if isinstance(data, TextFile):
        return dict.fromkeys(csv_names(data)) if Path(data.path).is_file() else {}
    if isinstance(data, SheetFile):
        return dict.fromkeys(sheet_names(Path(data.path), data.sheet))
    found = getattr(data, "schema", None)
    if callable(found) and hasattr(data, "to_pyarrow_batches"):  # a table of Ibis
        found = tried(lambda: data.schema().to_pyarrow(), f"the {type(data).__name__}")
    return typed(found) if isinstance(found, pa.Schema) else {}


def _is_number(kind: Any) -> bool:
    """Whether a type of pandas is one of numbers."""
    arrow = getattr(kind, "pyarrow_dtype", None)
    return kind.kind in "iuf" if arrow is None else is_number(arrow)


def _is_pandas(data: Any) -> bool:
    import pandas as pd

    return isinstance(data, pd.DataFrame)


def _dataset_type() -> Any:
    from pyarrow.dataset import Dataset  # imports pandas, too

    return Dataset


def _generated(parts: Iterator[Any]) -> pa.RecordBatchReader:
    """Arrow batches or tables that a program makes one by one; all like the first."""

    def batches_of(part: Any) -> Iterator[pa.RecordBatch]:
        if not isinstance(part, (pa.RecordBatch, pa.Table)) or part.schema.names != schema.names:
            raise DataError("the generator gives something else than Arrow batches with the same columns; give those")
        yield from part.cast(schema).to_batches() if isinstance(part, pa.Table) else [part.cast(schema)]

    first = tried(lambda: next(parts, None), "the generator")
    if not isinstance(first, (pa.RecordBatch, pa.Table)):
        raise DataError(f"the records are given as {type(parts).__name__}; give {KINDS}")
    schema = first.schema
    found = (batch for part in chain([first], parts) for batch in batches_of(part))
    return pa.RecordBatchReader.from_batches(schema, guarded(found, "the generator"))


def _partitions(data: Any, names: Sequence[str], rows: int) -> Iterator[Batch]:
    """The rows of a Dask frame, a partition at a time."""
    check_columns(list(data.columns), names)
    some, what = data[list(names) or list(data.columns)[:1]], "the Dask frame"
    for i in range(some.npartitions):
        frame = tried(lambda i=i: some.get_partition(i).compute(), what)  # type: ignore[misc]
        for batch in _frame(frame, names, rows):
            yield replace(batch, fraction=(i + (batch.fraction or 0.0)) / some.npartitions)


def _frame(data: pd.DataFrame, names: Sequence[str], rows: int) -> Iterator[Batch]:
    check_columns(list(data.columns), names)
    for start in range(0, len(data), rows):
        count = min(rows, len(data) - start)
        columns = tuple(array_of(data[name].iloc[start : start + count]) for name in names)
        yield Batch(columns=columns, rows=count, fraction=(start + count) / len(data))


def array_of(values: pd.Series) -> pa.Array | list[Any]:
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
    data = _readable_columns(data, names)
    exact = tried(lambda: _inexact_columns(data, names), what)
    data = data.mutate(**{name: data[name].cast("string") for name in exact}) if exact else data
    bounded = "chunk_size" in tried(lambda: inspect.signature(data.to_pyarrow_batches).parameters, what)
    reader = tried(lambda: data.to_pyarrow_batches(**({"chunk_size": rows} if bounded else {})), what)
    for batch in _stream(reader, names, rows):
        numbers = {name: partial(_parsed, batch.columns[names.index(name)], kind) for name, kind in exact.items()}
        columns = (
            tried(numbers[name], what) if name in exact else column
            for name, column in zip(names, batch.columns, strict=True)
        )
        yield replace(batch, columns=tuple(columns))


def _readable_columns(data: Any, names: Sequence[str]) -> Any:
    """Return a table of Ibis with the texts of PostgreSQL as text, where char(n) has no blanks that fill it up.

    Raises: DataError for a column of a type that does not travel, such as uuid; it names the column and the type.
    """
    if not is_table(data):
        return data
    kinds = {name: data[name].type() for name in names or list(data.columns)}
    foreign = {name: kind for name, kind in kinds.items() if kind.is_uuid() or kind.is_inet() or kind.is_macaddr()}
    if not names:
        return data.select([name for name in kinds if name not in foreign][:1] or list(kinds)[:1])
    for name, kind in foreign.items():
        raise DataError(
            f"the column {shown(name)} is of type {kind}, which is neither text nor number; cast it to text in a view"
        )
    if data.get_backend().name != "postgres":
        return data
    texts = {name: as_text(data[name]) for name, kind in kinds.items() if kind.is_string()}
    return data.mutate(**texts) if texts else data


def _inexact_columns(data: Any, names: Sequence[str]) -> dict[str, pa.DataType]:
    """Return the columns of whole numbers and decimals that Ibis would fetch as floats, with their types.

    Some backends are read through pandas, where a missing value turns a column of whole numbers into floats.
    """
    if not hasattr(data, "get_backend") or data.get_backend().name not in READ_BY_PANDAS:
        return {}
    kinds = {name: data[name].type() for name in names}
    return {name: kind.to_pyarrow() for name, kind in kinds.items() if kind.is_integer() or kind.is_decimal()}


def _parsed(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return numbers from their texts; a database without types of columns may hold 7.0 among whole numbers."""
    import pyarrow.compute as pc

    return pc.replace_substring_regex(texts, r"\.0+$", "").cast(kind)


def _dataset(data: Dataset, names: Sequence[str], rows: int) -> Iterator[Batch]:
    from pyarrow.dataset import FileFragment, IpcFileFormat, ParquetFileFragment

    check_columns(data.schema.names, names)
    # A scanner unfolds whole row groups, so their size has to be known before it starts.
    width = sum(_width(data.schema.field(name).type) for name in names)
    for fragment in guarded(data.get_fragments(), "the dataset"):
        if isinstance(fragment, ParquetFileFragment):
            groups = tried(lambda fragment=fragment: fragment.row_groups, "the dataset")  # type: ignore[misc]
            check_group_size(max((group.num_rows for group in groups), default=0) * width)
        elif isinstance(fragment, FileFragment) and isinstance(fragment.format, IpcFileFormat):
            tried(lambda fragment=fragment: _check_arrow(fragment), "the dataset")  # type: ignore[misc]
    scanner = data.scanner(columns=list(names), batch_size=rows, batch_readahead=2, fragment_readahead=1)
    return batches(scanner.to_batches(), names, rows, None, "the dataset")


def _check_arrow(fragment: FileFragment) -> None:
    with fragment.open() as file:
        check_arrow(file, Path(fragment.path).name)


def _width(kind: pa.DataType) -> int:
    """Bytes that a value takes in memory, about."""
    try:
        return max(1, int(kind.bit_width) // 8)
    except ValueError:
        return _VALUE_BYTES
