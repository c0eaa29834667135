"""Readers of records: data frames, files of all formats and partitions.

Arrow files, JSON lines and JSON arrays -> batches of the needed columns.

Parquet files -> batches of the needed columns, in bounded memory whatever the file unfolds to.

Files and folders of records: which reader takes which, and many files as one source.

Records of any kind -> small batches of the needed columns, with memory bounded by bytes, not by rows.
"""

from __future__ import annotations

import codecs
import glob
import inspect
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa

from engine._format import shown
from engine.errors import DataError, LimitExceeded
from engine.records.batches import LINES, Batch, array_of, batched, batches, check_columns, guarded, tried
from engine.records.compression import BLOCK, MAGIC, PACKED, arrow_start, check_arrow, is_arrow_file, lines, unpacked
from engine.records.counts import COUNTS_ENDING
from engine.records.csv_reader import TextFile, csv_batches, csv_names
from engine.records.dask import is_dask_frame
from engine.records.database import as_text, is_table
from engine.records.spark import is_spark_table, spark_batches
from engine.records.subprocess_readers import (
    LABELLED_ENDINGS,
    SHEET_ENDINGS,
    SheetFile,
    labelled_batches,
    labelled_columns,
    sheet_batches,
    sheet_names,
)

if TYPE_CHECKING:
    import pandas as pd
    from pyarrow.dataset import Dataset, FileFragment


MOST_LINE = 4_000_000
MAX_INDENT = 1_024  # bytes in which the first character of a JSON file comes
BLANKS = re.compile(r"[ \t\r\n]*")


def arrow_schema(path: Path) -> pa.Schema:
    """The columns of an Arrow or Feather file."""
    return tried(lambda: _arrow(path), f"the file {shown(path.name)}").schema


def arrow_batches(path: Path, names: Sequence[str], rows: int) -> Iterator[Batch]:
    """The named columns of an Arrow or Feather file.  Raises: LimitExceeded for batches that unfold to too much."""
    what = f"the file {shown(path.name)}"
    tried(lambda: _check(path), what)
    file = tried(lambda: _arrow(path), what)
    check_columns(file.schema.names, names)
    listed = getattr(file, "num_record_batches", None)
    parts = file if listed is None else map(file.get_batch, range(listed))
    return batches(parts, names, rows, None, what)


def _check(path: Path) -> None:
    if path.stat().st_size:  # an empty file cannot be mapped, and has no batches
        with pa.memory_map(str(path)) as file:
            check_arrow(file, path.name)


def _arrow(path: Path) -> Any:
    """A reader of an Arrow file, which goes by the list at its end, as others do, or of a stream."""
    source = pa.memory_map(str(path))
    listed = is_arrow_file(source)
    source.seek(0 if listed else arrow_start(source.read(len(MAGIC))))
    file = pa.ipc.open_file(source) if listed else pa.ipc.open_stream(source)
    _ = file.schema.names  # which are read now, and may be no text
    return file


def json_names(path: Path) -> list[str]:
    """The keys of the first objects: one leaves out what it has no value for."""
    return list(dict.fromkeys(key for _, row in islice(_objects(path), LINES) for key in row))


def json_batches(path: Path, names: Sequence[str], rows: int) -> Iterator[Batch]:
    """The values under some keys of objects; a key that an object does not have is a missing value."""
    seen: set[str] = set()

    def values() -> Iterator[list[Any]]:
        for place, row in _objects(path):
            if isinstance(row, _Twice) and (lost := row.keys_twice & set(names)):
                where = f"{place} of the file {shown(path.name)}"
                raise DataError(f"{where} has the key {shown(min(lost))} twice; write each once")
            seen.update(row.keys() & names)
            yield [row.get(name) for name in names]

    done = 0
    for batch in batched(values(), len(names), rows):
        done += batch.rows
        yield batch
    if done:
        check_columns(sorted(seen), names)


class _Twice(dict[str, Any]):
    """An object that says some keys more than once."""

    keys_twice: set[str]


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    twice, keys = _Twice(found), [key for key, _ in pairs]
    twice.keys_twice = {key for key in found if keys.count(key) > 1}
    return twice


def _objects(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a file, one per line or in one array, and the place of each in words."""
    what = f"the file {shown(path.name)}"
    raw, file = tried(lambda: unpacked(path), what)
    with raw:
        is_array = tried(lambda: file.read(MAX_INDENT), what).removeprefix(codecs.BOM_UTF8).lstrip()[:1] == b"["
    raw, file = tried(lambda: unpacked(path), what)
    with raw:
        elements = _array(file, what) if is_array else _lines(file, what)
        for place, value in guarded(elements, what):
            if not isinstance(value, dict):
                advice = "write an array of objects alone" if is_array else "write one per line, or one array of them"
                raise DataError(f"{place} of {what} is not a JSON object; {advice}")
            yield place, value


def _lines(file: Any, what: str) -> Iterator[tuple[str, Any]]:
    """The value in each line that is not blank; None for a line that is not JSON."""
    for number, line in enumerate(lines(file, MOST_LINE, what), start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line, object_pairs_hook=_object)
        except (ValueError, RecursionError):
            value = None
        yield f"line {number:,}", value


def _array(file: Any, what: str) -> Iterator[tuple[str, Any]]:
    """The elements of an array, decoded one after the other; None for one that is not an object."""
    decoder, text_of = json.JSONDecoder(object_pairs_hook=_object), codecs.getincrementaldecoder("utf-8-sig")()
    text, at, number, is_complete = "", 0, 0, False

    def more() -> bool:
        """Read another block behind the rest of the text; False at the end of the file."""
        nonlocal text, at
        block = file.read(BLOCK)
        text, at = text[at:] + text_of.decode(block, final=not block), 0
        return bool(block)

    def next_sign() -> str:
        """The next character that is not blank; empty at the end of the file."""
        nonlocal at
        while True:
            at = BLANKS.match(text, at).end()  # type: ignore[union-attr]  # it matches no blanks, too
            if at < len(text):
                return text[at]
            if not more():
                return ""

    next_sign()
    while not is_complete:
        at += 1  # the bracket or comma before
        number += 1
        place = f"object {number:,}"
        if (sign := next_sign()) == "]" and number == 1:
            break
        while sign == "{":
            try:
                value, at = decoder.raw_decode(text, at)
                yield place, value
                break
            except RecursionError:
                sign = ""
            except ValueError:
                # it may go on behind this block
                if len(text) - at > MOST_LINE or not more():
                    sign = ""
        if sign != "{":
            yield place, None
        separator = next_sign()
        if separator not in (",", "]"):
            raise DataError(f"{what} breaks off or is not valid JSON behind {place}; write it again")
        is_complete = separator == "]"
    at += 1
    if next_sign():
        raise DataError(f"{what} goes on behind its array; write one array of objects")


PARQUET_BATCH_BYTES = 64_000_000
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
    buffer = max(2**12, min(2**20, PARQUET_BATCH_BYTES // max(1, len(names))))
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


ColumnKinds = dict[str, bool | None]
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True, kw_only=True)
class FileKind:
    """How files of some endings are read: what their columns are called and whether they hold numbers; their rows."""

    columns: Callable[[Path], ColumnKinds]
    batches: Callable[[Path, Sequence[str], int], Iterator[Batch]]


def is_number(kind: pa.DataType) -> bool:
    """Whether a type of Arrow is one of numbers."""
    types = pa.types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind))


def typed(schema: pa.Schema) -> ColumnKinds:
    """The columns of an Arrow schema, and whether they hold numbers."""
    return {field.name: is_number(field.type) for field in schema}


CSV = FileKind(
    columns=lambda path: dict.fromkeys(csv_names(TextFile(path=path))),
    batches=lambda path, names, rows: csv_batches(TextFile(path=path), names, rows),
)
JSON = FileKind(columns=lambda path: dict.fromkeys(json_names(path)), batches=json_batches)
ARROW = FileKind(columns=lambda path: typed(arrow_schema(path)), batches=arrow_batches)
SHEET = FileKind(columns=lambda path: dict.fromkeys(sheet_names(path)), batches=sheet_batches)
LABELLED = FileKind(columns=labelled_columns, batches=labelled_batches)
PARQUET = FileKind(columns=lambda path: typed(parquet_schema(path)), batches=parquet_batches)
FILE_KINDS = (
    {
        ".parquet": PARQUET,
        ".feather": ARROW,
        ".arrow": ARROW,
        ".ipc": ARROW,
    }
    | dict.fromkeys(SHEET_ENDINGS, SHEET)
    | dict.fromkeys(LABELLED_ENDINGS, LABELLED)
    | {f"{one}{pack}": CSV for one in (".csv", ".tsv", ".txt", ".dat") for pack in ("", *PACKED)}
    | {f"{one}{pack}": JSON for one in (".jsonl", ".ndjson", ".json") for pack in ("", *PACKED)}
)

TEXT_ENDINGS = tuple(ending for ending, kind in FILE_KINDS.items() if kind is CSV)


def file_columns(path: Path) -> Iterator[tuple[Path, ColumnKinds]]:
    """Every file that a path names, and its columns with those of its folders."""
    for file in _found(path):
        if (kind := _kind(file)) is not None:
            yield file, dict.fromkeys(_folders(path, file)) | kind.columns(file)


def file_batches(path: Path, names: Sequence[str], rows: int, only: Path | None = None) -> Iterator[Batch]:
    """The named columns of a file, of all files in a folder and those below, or of all that a pattern fits.

    Of these files it may be a single one that is read.
    """
    if (found := [only] if only else _found(path)) == [path]:
        return _of(path).batches(path, names, rows)
    if not found:
        raise DataError(f"there is no file {shown(path.name)} at the path given, or none in it; check it, {NAMED}")
    return _all(path, found, names, rows)


def _all(path: Path, found: Sequence[Path], names: Sequence[str], rows: int) -> Iterator[Batch]:
    """The rows of many files, each of which must have every column; folders such as sex=F hold a column of theirs."""
    readers = [_of(file) for file in found]
    for done, (file, reader) in enumerate(zip(found, readers, strict=True)):
        constant = _folders(path, file)
        inside = [name for name in names if name not in constant]
        if lost := constant.keys() & reader.columns(file).keys() & set(names):
            raise DataError(f"the column {shown(min(lost))} is in {shown(file.name)} and in its folder; keep one")
        for batch in reader.batches(file, inside, rows):
            columns = dict(zip(inside, batch.columns, strict=True))
            columns |= {name: pa.repeat(value, batch.rows) for name, value in constant.items() if name in names}
            share = (done + (batch.fraction or 0.0)) / len(found)
            yield replace(batch, columns=tuple(columns[name] for name in names), fraction=share)


def _folders(path: Path, file: Path) -> dict[str, pa.Scalar]:
    """ColumnKinds that the names of folders hold, below the folder that was given."""
    if not path.is_dir():
        return {}
    pairs = [part.split("=", 1) for part in file.relative_to(path).parent.parts if "=" in part]
    return {
        unquote(name): pa.scalar(None if value == NO_VALUE else unquote(value), pa.string()) for name, value in pairs
    }


def _found(path: Path) -> list[Path]:
    """The files that a path names, in the order of their names."""
    if path.is_file():
        return [path]
    if path.is_dir():
        # what writers leave beside the records starts so
        inside = (f for f in path.rglob("*") if not any(p.startswith((".", "_")) for p in f.relative_to(path).parts))
        return _readable(inside)
    return _readable(map(Path, glob.iglob(str(path), recursive=True)))


def _readable(paths: Iterable[Path]) -> list[Path]:
    """Those that are files.  Raises: DataError at the first of another kind, before all others are looked for."""
    found = []
    for path in paths:
        if path.is_file():
            _of(path)
            found.append(path)
    return sorted(found)


def _kind(path: Path) -> FileKind | None:
    suffixes = [suffix.lower() for suffix in path.suffixes[-2:]]
    return FILE_KINDS.get("".join(suffixes)) or FILE_KINDS.get(suffixes[-1] if suffixes else "")


def _of(path: Path) -> FileKind:
    if (kind := _kind(path)) is None:
        if path.suffix.lower() == COUNTS_ENDING:
            raise DataError(f"the file {shown(path.name)} holds counts of a part; add such files with 'counts merge'")
        raise DataError(f"the file {shown(path.name)} is of no known kind; check it, {NAMED}")
    return kind


RECORD_ENDINGS = tuple(FILE_KINDS)
ENDINGS = ", ".join([*(one for one in FILE_KINDS if one.count(".") == 1), *(f".csv{pack}" for pack in PACKED)])
NAMED = f"and that names end in one of {ENDINGS}"


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
