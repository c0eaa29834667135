"""Readers of records: data frames, files of all formats, folders and database tables.

`read_batches` yields small batches of the needed columns from any supported data. Memory is
limited: batches have fewer rows if there are more columns, and Arrow and Parquet files that would
decompress to too many bytes are refused. A folder, or a pattern such as "data/*.csv", is read as
one source; the reader of each file depends on its ending (`FILE_KINDS`).
"""

from __future__ import annotations

import codecs
import glob
import inspect
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa

from engine._format import quote_public
from engine.errors import DataError, LimitExceeded
from engine.records.batches import (
    LINES,
    Batch,
    array_of,
    batches,
    check_columns,
    guard_batches,
    rows_to_batches,
    without_values,
)
from engine.records.counts import COUNTS_ENDING
from engine.records.csv_reader import (
    BLOCK,
    COMPRESSED_ENDINGS,
    MAGIC,
    TextFile,
    arrow_start,
    check_arrow,
    csv_batches,
    csv_names,
    is_arrow_file,
    open_decompressed,
    read_lines,
)
from engine.records.dask import is_dask_frame
from engine.records.database import (
    UNTYPED_BACKENDS,
    as_text,
    is_spark_table,
    is_table,
    spark_batches,
    untyped_batches,
)
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


MAX_LINE_CHARS = 4_000_000
MAX_INDENT_BYTES = 1_024  # the first character of a JSON file comes within this many bytes
JSON_BLANKS = re.compile(r"[ \t\r\n]*")


def arrow_schema(path: Path) -> pa.Schema:
    """Return the schema of an Arrow or Feather file."""
    return without_values(lambda: _arrow_reader(path), f"the file {quote_public(path.name)}").schema


def arrow_batches(path: Path, names: Sequence[str], rows: int) -> Iterator[Batch]:
    """Yield the named columns of an Arrow or Feather file.

    Raises
    ------
    LimitExceeded
        A batch decompresses to too many bytes.
    """
    what = f"the file {quote_public(path.name)}"
    without_values(lambda: _check_arrow_file(path), what)
    file = without_values(lambda: _arrow_reader(path), what)
    check_columns(file.schema.names, names)
    n_batches = getattr(file, "num_record_batches", None)
    batch_source = file if n_batches is None else map(file.get_batch, range(n_batches))
    return batches(batch_source, names, rows, None, what)


def _check_arrow_file(path: Path) -> None:
    if path.stat().st_size:  # an empty file cannot be mapped, and has no batches
        with pa.memory_map(str(path)) as file:
            check_arrow(file, path.name)


def _arrow_reader(path: Path) -> Any:
    """Return an Arrow reader for a file with a footer that lists its batches, or for a stream."""
    source = pa.memory_map(str(path))
    is_file = is_arrow_file(source)
    source.seek(0 if is_file else arrow_start(source.read(len(MAGIC))))
    file = pa.ipc.open_file(source) if is_file else pa.ipc.open_stream(source)
    _ = file.schema.names  # decoded now, so that invalid names raise here
    return file


def json_names(path: Path) -> list[str]:
    """Return the keys of the first `LINES` objects of a JSON file, in order of occurrence."""
    return list(dict.fromkeys(key for _, row in islice(_json_objects(path), LINES) for key in row))


def json_batches(path: Path, names: Sequence[str], rows: int) -> Iterator[Batch]:
    """Yield the values of the named keys of all objects of a JSON file.

    An object without a key has a missing value.

    Raises
    ------
    DataError
        The file is not valid, an object has a named key twice, or no object has a named key in a
        file that is not empty.
    """
    seen_keys: set[str] = set()

    def values() -> Iterator[list[Any]]:
        for place, row in _json_objects(path):
            if isinstance(row, _DuplicateKeys) and (repeated := row.duplicate_keys & set(names)):
                where = f"{place} of the file {quote_public(path.name)}"
                raise DataError(
                    f"{where} has the key {quote_public(min(repeated))} twice; write each once"
                )
            seen_keys.update(row.keys() & names)
            yield [row.get(name) for name in names]

    n_rows = 0
    for batch in rows_to_batches(values(), len(names), rows):
        n_rows += batch.rows
        yield batch
    if n_rows:
        check_columns(sorted(seen_keys), names)


class _DuplicateKeys(dict[str, Any]):
    """JSON object with duplicate keys."""

    duplicate_keys: set[str]


def _json_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the (key, value) pairs of a JSON object as a dictionary.

    If a key occurs twice, the dictionary is a `_DuplicateKeys`, which names such keys.
    """
    value = dict(pairs)
    if len(value) == len(pairs):
        return value
    key_counts = Counter(key for key, _ in pairs)
    value_with_duplicates = _DuplicateKeys(value)
    value_with_duplicates.duplicate_keys = {key for key in value if key_counts[key] > 1}
    return value_with_duplicates


def _json_objects(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (place, object) for each object of a JSON file, one per line or all in one array.

    The place, such as "line 3" or "object 3", is for messages.
    """
    what = f"the file {quote_public(path.name)}"
    raw, file = without_values(lambda: open_decompressed(path), what)
    with raw:
        start = without_values(lambda: file.read(MAX_INDENT_BYTES), what)
    is_array = start.removeprefix(codecs.BOM_UTF8).lstrip()[:1] == b"["
    raw, file = without_values(lambda: open_decompressed(path), what)
    with raw:
        elements = _json_array(file, what) if is_array else _json_lines(file, what)
        for place, value in guard_batches(elements, what):
            if not isinstance(value, dict):
                advice = (
                    "write an array of objects only"
                    if is_array
                    else "write one per line, or one array of them"
                )
                raise DataError(f"{place} of {what} is not a JSON object; {advice}")
            yield place, value


def _json_lines(file: Any, what: str) -> Iterator[tuple[str, Any]]:
    """Yield (place, value) for each line that is not blank; the value is None if it is not JSON."""
    for number, line in enumerate(read_lines(file, MAX_LINE_CHARS, what), start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line, object_pairs_hook=_json_object)
        except (ValueError, RecursionError):
            value = None
        yield f"line {number:,}", value


def _json_array(file: Any, what: str) -> Iterator[tuple[str, Any]]:
    """Yield (place, object) for each element of a JSON array, which is read block by block.

    For an element that is not a valid object, yields (place, None); the caller then stops.
    """
    json_decoder = json.JSONDecoder(object_pairs_hook=_json_object)
    utf8_decoder = codecs.getincrementaldecoder("utf-8-sig")()
    text, at = "", 0  # text of the blocks that were read, and the position up to which it is parsed
    number, is_complete = 0, False

    def read_block() -> bool:
        """Append a block to the text that is not parsed yet; return False at the end of the file."""
        nonlocal text, at
        block = file.read(BLOCK)
        text, at = text[at:] + utf8_decoder.decode(block, final=not block), 0
        return bool(block)

    def next_character() -> str:
        """Return the next character that is not blank; empty at the end of the file."""
        nonlocal at
        while True:
            at = JSON_BLANKS.match(text, at).end()  # type: ignore[union-attr]  # the pattern also matches the empty text
            if at < len(text):
                return text[at]
            if not read_block():
                return ""

    next_character()
    while not is_complete:
        at += 1  # skip the bracket or comma
        number += 1
        place = f"object {number:,}"
        if (character := next_character()) == "]" and number == 1:  # an empty array
            break
        is_object = character == "{"
        while is_object:
            try:
                value, at = json_decoder.raw_decode(text, at)
                yield place, value
                break
            except RecursionError:
                is_object = False
            except ValueError:
                # the object may continue in the next block
                is_object = len(text) - at <= MAX_LINE_CHARS and read_block()
        if not is_object:
            yield place, None
        separator = next_character()
        if separator not in (",", "]"):
            raise DataError(f"{what} ends early or is not valid JSON after {place}; write it again")
        is_complete = separator == "]"
    at += 1
    if next_character():
        raise DataError(f"{what} continues after its array; write one array of objects")


PARQUET_BATCH_BYTES = 64_000_000
CHUNK_BYTES = 400_000_000


def parquet_schema(path: Path) -> pa.Schema:
    """Return the Arrow schema of a Parquet file."""
    return without_values(
        lambda: _parquet_file(path).schema_arrow, f"the file {quote_public(path.name)}"
    )


def _parquet_file(place: Path, **options: Any) -> Any:
    import pyarrow.parquet as pq

    return pq.ParquetFile(place, **options)


def parquet_batches(path: Path, names: Sequence[str], rows: int) -> Iterator[Batch]:
    """Yield the named columns of a Parquet file.

    Raises
    ------
    LimitExceeded
        A column of a row group decompresses to too many bytes.
    """
    what = f"the file {quote_public(path.name)}"
    with without_values(lambda: _parquet_file(path), what) as file:
        fields = without_values(lambda: file.schema_arrow, what)
        check_columns(fields.names, names)
        for name in names:
            if pa.types.is_nested(fields.field(name).type):
                raise DataError(
                    f"the column {quote_public(name)} of {what} contains lists or structures; it"
                    " must have one value per row. Save it as a plain column, or leave it out of"
                    " the schema"
                )
        texts = [name for name in names if _is_text(fields.field(name).type)]
        metadata, needed = file.metadata, set(names)
        positions = [
            i for i in range(metadata.num_columns) if metadata.schema.column(i).path in needed
        ]
        for group in range(metadata.num_row_groups):
            row_group = metadata.row_group(group)
            check_group_size(
                max((row_group.column(i).total_uncompressed_size for i in positions), default=0)
            )
    # Texts remain dictionary-encoded, so that a text that occurs in many rows is in memory once.
    # A small buffer makes the reader load one page at a time instead of a complete column chunk.
    buffer = max(2**12, min(2**20, PARQUET_BATCH_BYTES // max(1, len(names))))
    with without_values(
        lambda: _parquet_file(path, read_dictionary=texts, buffer_size=buffer), what
    ) as file:
        # one row group at a time, because a reader of several retains the buffers of all of them
        groups = (
            file.iter_batches(batch_size=rows, row_groups=[group], columns=list(names))
            for group in range(metadata.num_row_groups)
        )
        yield from batches(chain.from_iterable(groups), names, rows, metadata.num_rows, what)


def _is_text(kind: pa.DataType) -> bool:
    types = pa.types
    is_text = types.is_string(kind) or types.is_large_string(kind)
    return bool(is_text or types.is_binary(kind) or types.is_large_binary(kind))


def check_group_size(size: int) -> None:
    """Raise LimitExceeded if a row group of a Parquet file takes too many bytes in memory."""
    if size > CHUNK_BYTES:
        raise LimitExceeded(
            f"a row group of the file decompresses to {size:,} bytes; at most {CHUNK_BYTES:,} are"
            " allowed. Write the file again with at most a million rows per row group"
        )


# column name -> whether the column is numeric, or None if its type is unknown
ColumnKinds = dict[str, bool | None]
HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True, kw_only=True)
class FileKind:
    """Reader of one file format.

    Attributes
    ----------
    columns : function from a path to its columns and whether each is numeric.
    batches : function (path, column names, maximum rows per batch) that yields the rows.
    """

    columns: Callable[[Path], ColumnKinds]
    batches: Callable[[Path, Sequence[str], int], Iterator[Batch]]


def is_number(kind: pa.DataType) -> bool:
    """Whether an Arrow type is numeric."""
    types = pa.types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind))


def column_types(schema: pa.Schema) -> ColumnKinds:
    """Return a mapping from each column of an Arrow schema to whether it is numeric."""
    return {field.name: is_number(field.type) for field in schema}


CSV = FileKind(
    columns=lambda path: dict.fromkeys(csv_names(TextFile(path=path))),
    batches=lambda path, names, rows: csv_batches(TextFile(path=path), names, rows),
)
JSON = FileKind(columns=lambda path: dict.fromkeys(json_names(path)), batches=json_batches)
ARROW = FileKind(columns=lambda path: column_types(arrow_schema(path)), batches=arrow_batches)
SHEET = FileKind(columns=lambda path: dict.fromkeys(sheet_names(path)), batches=sheet_batches)
LABELLED = FileKind(columns=labelled_columns, batches=labelled_batches)
PARQUET = FileKind(columns=lambda path: column_types(parquet_schema(path)), batches=parquet_batches)
FILE_KINDS = (
    {
        ".parquet": PARQUET,
        ".feather": ARROW,
        ".arrow": ARROW,
        ".ipc": ARROW,
    }
    | dict.fromkeys(SHEET_ENDINGS, SHEET)
    | dict.fromkeys(LABELLED_ENDINGS, LABELLED)
    | {
        f"{ending}{compression}": CSV
        for ending in (".csv", ".tsv", ".txt", ".dat")
        for compression in ("", *COMPRESSED_ENDINGS)
    }
    | {
        f"{ending}{compression}": JSON
        for ending in (".jsonl", ".ndjson", ".json")
        for compression in ("", *COMPRESSED_ENDINGS)
    }
)

TEXT_ENDINGS = tuple(ending for ending, kind in FILE_KINDS.items() if kind is CSV)


def file_columns(path: Path) -> Iterator[tuple[Path, ColumnKinds]]:
    """Yield every file of a path, folder or pattern with its columns.

    A folder name such as sex=F adds the column "sex". If `path` is a single file with an ending
    that is not in `FILE_KINDS`, nothing is yielded.

    Raises
    ------
    DataError
        A file in a folder, or of a pattern, has such an ending; or a file cannot be read.
    """
    for file in _matching_files(path):
        if (kind := _file_kind(file)) is not None:
            yield file, dict.fromkeys(_folder_columns(path, file)) | kind.columns(file)


def file_batches(
    path: Path, names: Sequence[str], rows: int, only: Path | None = None
) -> Iterator[Batch]:
    """Yield the named columns of a file, all files in a folder, or all files of a pattern.

    Parameters
    ----------
    rows : maximum number of rows per batch.
    only : one of these files, if only that file is to be read.

    Raises
    ------
    DataError
        There is no file, or a file has an ending that is not in `FILE_KINDS`.
    """
    if (files := [only] if only else _matching_files(path)) == [path]:
        return _supported_file_kind(path).batches(path, names, rows)
    if not files:
        raise DataError(
            f"there is no file or folder {quote_public(path.name)} at this path, or the folder is"
            f" empty; check the path, {ENDINGS_ADVICE}"
        )
    return _batches_of_files(path, files, names, rows)


def _batches_of_files(
    path: Path, files: Sequence[Path], names: Sequence[str], rows: int
) -> Iterator[Batch]:
    """Yield the rows of several files, one after the other; every file must have all columns.

    A folder name between `path` and a file, such as sex=F, is a constant column of that file.
    """
    readers = [_supported_file_kind(file) for file in files]
    for done, (file, reader) in enumerate(zip(files, readers, strict=True)):
        constant = _folder_columns(path, file)
        columns_in_file = [name for name in names if name not in constant]
        if duplicated := constant.keys() & reader.columns(file).keys() & set(names):
            raise DataError(
                f"the column {quote_public(min(duplicated))} is in the file"
                f" {quote_public(file.name)} and in the name of its folder; remove one of them"
            )
        for batch in reader.batches(file, columns_in_file, rows):
            columns = dict(zip(columns_in_file, batch.columns, strict=True))
            columns |= {
                name: pa.repeat(value, batch.rows)
                for name, value in constant.items()
                if name in names
            }
            share = (done + (batch.fraction or 0.0)) / len(files)
            yield replace(batch, columns=tuple(columns[name] for name in names), fraction=share)


def _folder_columns(path: Path, file: Path) -> dict[str, pa.Scalar]:
    """Return a mapping from column to value, from folder names such as sex=F above a file."""
    if not path.is_dir():
        return {}
    pairs = [part.split("=", 1) for part in file.relative_to(path).parent.parts if "=" in part]
    return {
        unquote(name): pa.scalar(None if value == HIVE_NULL else unquote(value), pa.string())
        for name, value in pairs
    }


def _matching_files(path: Path) -> list[Path]:
    """Return the files of a path, folder or pattern, sorted by name."""
    if path.is_file():
        return [path]
    if path.is_dir():
        # writers store metadata in files and folders whose names start with . or _
        visible = (
            file
            for file in path.rglob("*")
            if not any(part.startswith((".", "_")) for part in file.relative_to(path).parts)
        )
        return _supported_files(visible)
    return _supported_files(map(Path, glob.iglob(str(path), recursive=True)))


def _supported_files(paths: Iterable[Path]) -> list[Path]:
    """Return the paths that are files, sorted; raise DataError at the first unsupported ending."""
    files = []
    for path in paths:
        if path.is_file():
            _supported_file_kind(path)
            files.append(path)
    return sorted(files)


def _file_kind(path: Path) -> FileKind | None:
    suffixes = [suffix.lower() for suffix in path.suffixes[-2:]]
    return FILE_KINDS.get("".join(suffixes)) or FILE_KINDS.get(suffixes[-1] if suffixes else "")


def _supported_file_kind(path: Path) -> FileKind:
    if (kind := _file_kind(path)) is None:
        if path.suffix.lower() == COUNTS_ENDING:
            raise DataError(
                f"the file {quote_public(path.name)} contains counts and no records; add such files"
                " with 'counts merge'"
            )
        raise DataError(
            f"the format of the file {quote_public(path.name)} is not supported; check the file,"
            f" {ENDINGS_ADVICE}"
        )
    return kind


RECORD_ENDINGS = tuple(FILE_KINDS)
ENDINGS = ", ".join(
    [
        *(ending for ending in FILE_KINDS if ending.count(".") == 1),
        *(f".csv{compression}" for compression in COMPRESSED_ENDINGS),
    ]
)
ENDINGS_ADVICE = f"and that file names end in one of {ENDINGS}"


BATCH_BYTES = 64_000_000
SOURCE_KINDS = (
    "a DataFrame of pandas, Polars, Dask or Spark, a relation of DuckDB, a table of Ibis, an Arrow"
    " table, dataset, stream or generator of batches, or the path of a file, a folder or a"
    f" pattern, with names that end in one of {ENDINGS}"
)
READ_BY_PANDAS = (
    "mysql",
    "singlestoredb",
    "impala",
)  # backends of Ibis that fetch rows through pandas

_BYTES_PER_VALUE = 16  # a short text or two integers; long texts are dictionary-encoded


def as_source(data: Any) -> Any:
    """Convert data that can be read only once, or not directly, to an Arrow stream or a frame.

    Generators and objects with the Arrow stream interface are converted to a `RecordBatchReader`,
    and a Polars LazyFrame is collected. Other data is returned unchanged.
    """
    if hasattr(data, "collect") and hasattr(data, "collect_schema"):  # a Polars LazyFrame
        data = without_values(
            lambda: data.collect(engine="streaming"), f"the {type(data).__name__}"
        )
    if isinstance(data, Iterator) and not isinstance(data, pa.RecordBatchReader):
        return _generated(data)
    is_readable = isinstance(
        data, (pa.Table, pa.RecordBatch, pa.RecordBatchReader, _dataset_type())
    ) or _is_pandas(data)
    if (
        hasattr(data, "__arrow_c_stream__")
        and not is_readable
        and not hasattr(data, "to_pyarrow_batches")
    ):
        return without_values(lambda: pa.RecordBatchReader.from_stream(data), "the Arrow stream")
    return data


def read_batches(data: Any, names: Sequence[str], only: Path | None = None) -> Iterator[Batch]:
    """Yield the named columns of `data` in batches; other columns are ignored.

    Parameters
    ----------
    only : a single file of `data` to read.

    Raises
    ------
    DataError
        The data cannot be read, or a name does not match exactly one column.
    LimitExceeded
        A batch of a file would decompress to too many bytes.
    """
    rows = max(1_000, min(2**18, BATCH_BYTES // (_BYTES_PER_VALUE * max(1, len(names)))))
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
    raise DataError(f"the records are given as {type(data).__name__}; give {SOURCE_KINDS}")


def column_names(data: Any) -> ColumnKinds:
    """Return a mapping from each column to whether it is numeric, None if its type is unknown.

    Of several files, the first one is used. See `column_kinds`.
    """
    return next((columns for _, columns in column_kinds(data)), {})


def column_kinds(data: Any) -> Iterator[tuple[Path | None, ColumnKinds]]:
    """Yield each file of data, or None for data in memory, with its columns.

    The columns are a mapping from the name to whether the column is numeric, or None if its type is
    unknown. The mapping is empty for data that does not list its columns. It depends on no value of
    a record; for JSON files, it has the keys of the first `LINES` objects.
    """
    if isinstance(data, (str, Path)):
        yield from file_columns(Path(data))
    else:
        yield None, _columns(data)


def _columns(data: Any) -> ColumnKinds:
    if _is_pandas(data) or is_dask_frame(data):
        return {
            name: _is_number(kind) for name, kind in data.dtypes.items() if isinstance(name, str)
        }
    if isinstance(data, TextFile):
        return dict.fromkeys(csv_names(data)) if Path(data.path).is_file() else {}
    if isinstance(data, SheetFile):
        return dict.fromkeys(sheet_names(Path(data.path), data.sheet))
    schema = getattr(data, "schema", None)
    if callable(schema) and hasattr(data, "to_pyarrow_batches"):  # a table of Ibis
        schema = without_values(lambda: data.schema().to_pyarrow(), f"the {type(data).__name__}")
    return column_types(schema) if isinstance(schema, pa.Schema) else {}


def _is_number(kind: Any) -> bool:
    """Whether a pandas type is numeric."""
    arrow = getattr(kind, "pyarrow_dtype", None)
    return kind.kind in "iuf" if arrow is None else is_number(arrow)


def _is_pandas(data: Any) -> bool:
    import pandas as pd

    return isinstance(data, pd.DataFrame)


def _dataset_type() -> Any:
    from pyarrow.dataset import Dataset  # imports pandas, too

    return Dataset


def _generated(parts: Iterator[Any]) -> pa.RecordBatchReader:
    """Return an Arrow stream of the batches or tables of a generator; all need the same columns."""

    def batches_of(part: Any) -> Iterator[pa.RecordBatch]:
        if not isinstance(part, (pa.RecordBatch, pa.Table)) or part.schema.names != schema.names:
            raise DataError("the generator must yield Arrow batches, all with the same columns")
        yield from (
            part.cast(schema).to_batches() if isinstance(part, pa.Table) else [part.cast(schema)]
        )

    first = without_values(lambda: next(parts, None), "the generator")
    if not isinstance(first, (pa.RecordBatch, pa.Table)):
        raise DataError(f"the records are given as {type(parts).__name__}; give {SOURCE_KINDS}")
    schema = first.schema
    record_batches = (batch for part in chain([first], parts) for batch in batches_of(part))
    return pa.RecordBatchReader.from_batches(schema, guard_batches(record_batches, "the generator"))


def _partitions(data: Any, names: Sequence[str], rows: int) -> Iterator[Batch]:
    """Yield the rows of a Dask frame, one partition at a time."""
    check_columns(list(data.columns), names)
    selection, what = data[list(names) or list(data.columns)[:1]], "the Dask frame"
    for i in range(selection.npartitions):
        partition = without_values(lambda i=i: selection.get_partition(i).compute(), what)  # type: ignore[misc]
        for batch in _frame(partition, names, rows):
            yield replace(batch, fraction=(i + (batch.fraction or 0.0)) / selection.npartitions)


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
    """Yield batches of an Ibis table, or of another table with `to_pyarrow_batches`.

    Integer and decimal columns that Ibis would read as floats are read as texts and parsed. Errors
    of the table are replaced, so that no message contains a value of the records.
    """
    what = f"the {type(data).__name__}"
    if hasattr(data, "columns") and hasattr(data, "select") and names:
        check_columns(list(data.columns), names)
        data = without_values(lambda: data.select(list(names)), what)
    data = _readable_columns(data, names)
    if is_table(data) and data.get_backend().name in UNTYPED_BACKENDS:
        yield from guard_batches(untyped_batches(data, names, rows), what)
        return
    inexact = without_values(lambda: _inexact_columns(data, names), what)
    data = data.mutate(**{name: data[name].cast("string") for name in inexact}) if inexact else data
    has_chunk_size = "chunk_size" in without_values(
        lambda: inspect.signature(data.to_pyarrow_batches).parameters, what
    )
    reader = without_values(
        lambda: data.to_pyarrow_batches(**({"chunk_size": rows} if has_chunk_size else {})), what
    )
    for batch in _stream(reader, names, rows):
        parsers = {
            name: partial(_parsed, batch.columns[names.index(name)], kind)
            for name, kind in inexact.items()
        }
        columns = (
            without_values(parsers[name], what) if name in inexact else column
            for name, column in zip(names, batch.columns, strict=True)
        )
        yield replace(batch, columns=tuple(columns))


def _readable_columns(data: Any, names: Sequence[str]) -> Any:
    """Return the named columns of an Ibis table; return any other data unchanged.

    Without names, return one column, so that rows can be counted. Columns of texts on PostgreSQL
    are cast to type text, which removes the padding of char(n).

    Raises
    ------
    DataError
        A column has a type that cannot be fetched, such as uuid.
    """
    if not is_table(data):
        return data
    kinds = {name: data[name].type() for name in names or list(data.columns)}
    unsupported = {
        name: kind
        for name, kind in kinds.items()
        if kind.is_uuid() or kind.is_inet() or kind.is_macaddr()
    }
    if not names:
        return data.select(
            [name for name in kinds if name not in unsupported][:1] or list(kinds)[:1]
        )
    if unsupported:
        name, kind = next(iter(unsupported.items()))
        raise DataError(
            f"the column {quote_public(name)} has the type {kind}; records must be texts, numbers"
            " or dates. Cast the column to text in a view"
        )
    if data.get_backend().name != "postgres":
        return data
    texts = {name: as_text(data[name]) for name, kind in kinds.items() if kind.is_string()}
    return data.mutate(**texts) if texts else data


def _inexact_columns(data: Any, names: Sequence[str]) -> dict[str, pa.DataType]:
    """Return the integer and decimal columns that Ibis would fetch as floats, with their types.

    Ibis reads some backends through pandas, where a missing value turns integers into floats.
    """
    if not hasattr(data, "get_backend") or data.get_backend().name not in READ_BY_PANDAS:
        return {}
    kinds = {name: data[name].type() for name in names}
    return {
        name: kind.to_pyarrow()
        for name, kind in kinds.items()
        if kind.is_integer() or kind.is_decimal()
    }


def _parsed(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Parse texts to numbers of an Arrow type, without ".0" at their ends: "7.0" as "7"."""
    import pyarrow.compute as pc

    return pc.replace_substring_regex(texts, r"\.0+$", "").cast(kind)


def _dataset(data: Dataset, names: Sequence[str], rows: int) -> Iterator[Batch]:
    """Return batches of an Arrow dataset.

    Raises
    ------
    LimitExceeded
        A row group or batch of a file decompresses to too many bytes.
    """
    from pyarrow.dataset import FileFragment, IpcFileFormat, ParquetFileFragment

    check_columns(data.schema.names, names)
    # a scanner expands complete row groups, so their size is checked before it starts
    width = sum(_width(data.schema.field(name).type) for name in names)
    for fragment in guard_batches(data.get_fragments(), "the dataset"):
        if isinstance(fragment, ParquetFileFragment):
            groups = without_values(lambda fragment=fragment: fragment.row_groups, "the dataset")  # type: ignore[misc]
            check_group_size(max((group.num_rows for group in groups), default=0) * width)
        elif isinstance(fragment, FileFragment) and isinstance(fragment.format, IpcFileFormat):
            without_values(lambda fragment=fragment: _check_arrow(fragment), "the dataset")  # type: ignore[misc]
    scanner = data.scanner(
        columns=list(names), batch_size=rows, batch_readahead=2, fragment_readahead=1
    )
    return batches(scanner.to_batches(), names, rows, None, "the dataset")


def _check_arrow(fragment: FileFragment) -> None:
    with fragment.open() as file:
        check_arrow(file, Path(fragment.path).name)


def _width(kind: pa.DataType) -> int:
    """Return the approximate number of bytes of a value in memory."""
    try:
        return max(1, int(kind.bit_width) // 8)
    except ValueError:
        return _BYTES_PER_VALUE
