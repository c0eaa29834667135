"""Readers of records: data frames, files of all formats, folders and database tables.

`read_batches` yields small batches of the requested columns of any supported data. It needs a
limited amount of memory: the more columns are requested, the fewer rows a batch has, and Arrow and
Parquet files that would decompress to too many bytes are refused. A folder, or a pattern such as
"data/*.csv", is read as one source; the ending of each file determines its reader (`FILE_KINDS`).
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
from engine.records.database import (
    UNTYPED_BACKENDS,
    as_text,
    is_dask_frame,
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


MAX_LINE_CHARS = 4_000_000  # characters of a line, or of one object of a JSON array
# Number of bytes at the start of a JSON file that are read to find its first character.
MAX_INDENT_BYTES = 1_024
JSON_BLANKS = re.compile(r"[ \t\r\n]*")


def arrow_schema(path: Path) -> pa.Schema:
    """Return the schema of an Arrow or Feather file."""
    return without_values(lambda: _arrow_reader(path), f"the file {quote_public(path.name)}").schema


def arrow_batches(path: Path, names: Sequence[str], rows: int) -> Iterator[Batch]:
    """Return the named columns of an Arrow or Feather file in batches of at most ``rows`` rows.

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
    return batches(batch_source, names, rows, total=None, what=what)


def _check_arrow_file(path: Path) -> None:
    # an empty file has no batches to check; `_arrow_reader` raises its error
    if path.stat().st_size:
        with pa.memory_map(str(path)) as file:
            check_arrow(file, path.name)


def _arrow_reader(path: Path) -> Any:
    """Return an Arrow reader of a file in the file format or the stream format of Arrow."""
    source = pa.memory_map(str(path))
    is_file = is_arrow_file(source)
    source.seek(0 if is_file else arrow_start(source.read(len(MAGIC))))
    file = pa.ipc.open_file(source) if is_file else pa.ipc.open_stream(source)
    # decode the names now, so that an invalid name raises its error here
    _ = file.schema.names
    return file


def json_names(path: Path) -> list[str]:
    """Return the keys of the first `LINES` objects of a JSON file, in the order of occurrence."""
    return list(dict.fromkeys(key for _, row in islice(_json_objects(path), LINES) for key in row))


def json_batches(path: Path, names: Sequence[str], rows: int) -> Iterator[Batch]:
    """Yield the values of the named keys of all objects of a JSON file.

    If an object lacks a key, its value is missing. A batch has at most ``rows`` objects.

    Raises
    ------
    DataError
        The file is not valid JSON; or an object contains a named key twice; or the file has
        objects, and a named key is in none of them.
    """
    seen_keys: set[str] = set()

    def values() -> Iterator[list[Any]]:
        for position, row in _json_objects(path):
            if isinstance(row, _DuplicateKeys) and (repeated := row.duplicate_keys & set(names)):
                location = f"{position} of the file {quote_public(path.name)}"
                raise DataError(
                    f"{location} has the key {quote_public(min(repeated))} twice; write each key once"
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
    """JSON object that contains a key more than once; `duplicate_keys` has these keys."""

    duplicate_keys: set[str]


def _json_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Convert the (key, value) pairs of a JSON object to a dictionary.

    The result is a `_DuplicateKeys` if a key occurs more than once.
    """
    value = dict(pairs)
    if len(value) == len(pairs):
        return value
    key_counts = Counter(key for key, _ in pairs)
    value_with_duplicates = _DuplicateKeys(value)
    value_with_duplicates.duplicate_keys = {key for key in value if key_counts[key] > 1}
    return value_with_duplicates


def _json_objects(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (position, object) for each object of a JSON file.

    The file has one object per line, or one array of objects. The position is text for messages,
    such as "line 3" or "object 3".
    """
    what = f"the file {quote_public(path.name)}"
    raw, file = without_values(lambda: open_decompressed(path), what)
    with raw:
        start = without_values(lambda: file.read(MAX_INDENT_BYTES), what)
    is_array = start.removeprefix(codecs.BOM_UTF8).lstrip()[:1] == b"["
    raw, file = without_values(lambda: open_decompressed(path), what)
    with raw:
        elements = _json_array(file, what) if is_array else _json_lines(file, what)
        for position, value in guard_batches(elements, what):
            if not isinstance(value, dict):
                advice = (
                    "write an array that contains only objects"
                    if is_array
                    else "write one object per line, or one array of objects"
                )
                raise DataError(f"{position} of {what} is not a JSON object; {advice}")
            yield position, value


def _json_lines(file: Any, what: str) -> Iterator[tuple[str, Any]]:
    """Yield (position, value) for each line that is not blank; value is None if it is not JSON."""
    for number, line in enumerate(read_lines(file, MAX_LINE_CHARS, what), start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line, object_pairs_hook=_json_object)
        except (ValueError, RecursionError):
            value = None
        yield f"line {number:,}", value


def _json_array(file: Any, what: str) -> Iterator[tuple[str, Any]]:
    """Yield (position, object) for each element of a JSON array, which is read block by block.

    For an element that is not a valid object, (position, None) is yielded, and the caller must stop
    the iteration.
    """
    json_decoder = json.JSONDecoder(object_pairs_hook=_json_object)
    utf8_decoder = codecs.getincrementaldecoder("utf-8-sig")()
    # text of the blocks that were read, and index of its first character that is not parsed yet
    text, at = "", 0
    number, is_complete = 0, False

    def read_block() -> bool:
        """Append a block to the text that is not parsed yet; return False at the file's end."""
        nonlocal text, at
        block = file.read(BLOCK)
        text = text[at:] + utf8_decoder.decode(block, final=not block)
        at = 0
        return bool(block)

    def next_character() -> str:
        """Move to the next character that is not blank and return it; "" at the end of the file."""
        nonlocal at
        while True:
            at = JSON_BLANKS.match(text, at).end()  # type: ignore[union-attr]  # the pattern also matches the empty text
            if at < len(text):
                return text[at]
            if not read_block():
                return ""

    next_character()
    while not is_complete:
        # skip the bracket or comma before the element
        at += 1
        number += 1
        position = f"object {number:,}"
        # an empty array
        if (character := next_character()) == "]" and number == 1:
            break
        is_object = character == "{"
        while is_object:
            try:
                value, at = json_decoder.raw_decode(text, at)
                yield position, value
                break
            except RecursionError:
                is_object = False
            except ValueError:
                # the object may continue in the next block
                is_object = len(text) - at <= MAX_LINE_CHARS and read_block()
        if not is_object:
            yield position, None
        separator = next_character()
        if separator not in (",", "]"):
            raise DataError(
                f"{what} ends early or is not valid JSON after {position}; write it again"
            )
        is_complete = separator == "]"
    at += 1
    if next_character():
        raise DataError(f"{what} has content after its array; write only one array of objects")


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
    """Yield the named columns of a Parquet file in batches of at most ``rows`` rows.

    Raises
    ------
    DataError
        The file cannot be read, a name is the name of no column or of several columns, or a named
        column contains lists or structures.
    LimitExceeded
        A column of a row group decompresses to more than `CHUNK_BYTES` bytes.
    """
    what = f"the file {quote_public(path.name)}"
    with without_values(lambda: _parquet_file(path), what) as file:
        fields = without_values(lambda: file.schema_arrow, what)
        check_columns(fields.names, names)
        for name in names:
            if pa.types.is_nested(fields.field(name).type):
                raise DataError(
                    f"the column {quote_public(name)} of {what} contains lists or structures, but"
                    " must have one value per row. Save the column with one value per row, or leave"
                    " it out of the schema"
                )
        texts = [name for name in names if _is_text(fields.field(name).type)]
        metadata = file.metadata
        needed = set(names)
        positions = [
            i for i in range(metadata.num_columns) if metadata.schema.column(i).path in needed
        ]
        for group in range(metadata.num_row_groups):
            row_group = metadata.row_group(group)
            check_decompressed_size(
                "a column of a row group",
                max((row_group.column(i).total_uncompressed_size for i in positions), default=0),
            )
    # Texts remain dictionary-encoded, so that memory holds a text once even if many rows have it. A
    # small buffer makes the reader load one page at a time instead of a complete column chunk.
    buffer = max(2**12, min(2**20, PARQUET_BATCH_BYTES // max(1, len(names))))
    with without_values(
        lambda: _parquet_file(path, read_dictionary=texts, buffer_size=buffer), what
    ) as file:
        # each row group has its own iterator, because an iterator over several row groups retains
        # the buffers of all of them
        groups = (
            file.iter_batches(batch_size=rows, row_groups=[group], columns=list(names))
            for group in range(metadata.num_row_groups)
        )
        yield from batches(chain.from_iterable(groups), names, rows, metadata.num_rows, what)


def _is_text(kind: pa.DataType) -> bool:
    types = pa.types
    is_text = types.is_string(kind) or types.is_large_string(kind)
    return bool(is_text or types.is_binary(kind) or types.is_large_binary(kind))


def check_decompressed_size(what: str, size: int) -> None:
    """Raise LimitExceeded if ``size``, in bytes, is above the limit for a row group or its column.

    ``what`` names the row group or the column.
    """
    if size > CHUNK_BYTES:
        raise LimitExceeded(
            f"{what} of the file decompresses to {size:,} bytes; at most {CHUNK_BYTES:,} are"
            " allowed. Write the file again with at most a million rows per row group"
        )


# mapping from column name to whether the column is numeric; None if its type is unknown
ColumnKinds = dict[str, bool | None]
# value in a folder name that means a missing value
HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True, kw_only=True)
class FileKind:
    """Reader of one file format.

    Attributes
    ----------
    columns : function that returns the columns of a file and whether each is numeric.
    batches : function of path, column names and largest number of rows per batch that yields the
        rows of a file in batches.
    """

    columns: Callable[[Path], ColumnKinds]
    batches: Callable[[Path, Sequence[str], int], Iterator[Batch]]


def is_number(kind: pa.DataType) -> bool:
    """Return whether an Arrow type is numeric."""
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
    """Yield (file, columns) for one file, each file in a folder, or each file that fits a pattern.

    A folder name such as sex=F adds the column "sex". If `path` is a single file whose ending is
    not in `FILE_KINDS`, nothing is yielded.

    Raises
    ------
    DataError
        A file cannot be read; or one of several files has an ending that is not in `FILE_KINDS`.
    """
    for file in _matching_files(path):
        if (kind := _file_kind(file)) is not None:
            yield file, dict.fromkeys(_folder_columns(path, file)) | kind.columns(file)


def file_batches(
    path: Path, names: Sequence[str], rows: int, only: Path | None = None
) -> Iterator[Batch]:
    """Return the named columns of one file, all files in a folder, or all files that fit a pattern.

    Parameters
    ----------
    path : path of the file or folder, or a pattern.
    rows : largest number of rows per batch.
    only : file to read; None reads all files.

    Raises
    ------
    DataError
        There is no file, or a file has an ending that is not in `FILE_KINDS`.
    """
    files = [only] if only else _matching_files(path)
    if files == [path]:
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
    """Yield the rows of several files, one file after the other.

    Every file must have all named columns. The name of a folder between `path` and a file, such as
    sex=F, gives that file the column "sex", which has the value "F" in all rows.
    """
    readers = [_supported_file_kind(file) for file in files]
    for done, (file, reader) in enumerate(zip(files, readers, strict=True)):
        folder_values = _folder_columns(path, file)
        columns_in_file = [name for name in names if name not in folder_values]
        if duplicated := folder_values.keys() & reader.columns(file).keys() & set(names):
            raise DataError(
                f"the column {quote_public(min(duplicated))} is in the file"
                f" {quote_public(file.name)} and in the name of its folder; remove one of them"
            )
        for batch in reader.batches(file, columns_in_file, rows):
            columns = dict(zip(columns_in_file, batch.columns, strict=True))
            columns |= {
                name: pa.repeat(value, batch.rows)
                for name, value in folder_values.items()
                if name in names
            }
            share = (done + (batch.fraction or 0.0)) / len(files)
            yield replace(batch, columns=tuple(columns[name] for name in names), fraction=share)


def _folder_columns(path: Path, file: Path) -> dict[str, pa.Scalar]:
    """Return a mapping from column to value for the folders above a file with names like sex=F."""
    if not path.is_dir():
        return {}
    pairs = [part.split("=", 1) for part in file.relative_to(path).parent.parts if "=" in part]
    return {
        unquote(name): pa.scalar(None if value == HIVE_NULL else unquote(value), pa.string())
        for name, value in pairs
    }


def _matching_files(path: Path) -> list[Path]:
    """Return the file at a path, the files in a folder, or the files that fit a pattern, sorted."""
    if path.is_file():
        return [path]
    if path.is_dir():
        # programs that write folders of records store metadata under names that start with . or _
        visible = (
            file
            for file in path.rglob("*")
            if not any(part.startswith((".", "_")) for part in file.relative_to(path).parts)
        )
        return _supported_files(visible)
    return _supported_files(map(Path, glob.iglob(str(path), recursive=True)))


def _supported_files(paths: Iterable[Path]) -> list[Path]:
    """Return the paths that are files, sorted; raise DataError if the ending of one is unknown."""
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
                f"the file {quote_public(path.name)} contains counts and no records; add files of"
                " counts with the command 'counts merge'"
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
# backends for which Ibis fetches rows through pandas
READ_BY_PANDAS = (
    "mysql",
    "singlestoredb",
    "impala",
)

# Estimated bytes of a value in memory: a short text or two integers. Long texts are
# dictionary-encoded.
_BYTES_PER_VALUE = 16


def as_source(data: Any) -> Any:
    """Return an Arrow stream of data that `read_batches` cannot read without conversion.

    Generators, a Polars LazyFrame and other objects with the Arrow stream interface are converted;
    other data are returned unchanged.
    """
    # a Polars LazyFrame
    if hasattr(data, "collect") and hasattr(data, "collect_schema"):
        data = without_values(
            lambda: data.collect(engine="streaming"), f"the {type(data).__name__}"
        )
    if isinstance(data, Iterator) and not isinstance(data, pa.RecordBatchReader):
        return _generated(data)
    # types with an Arrow stream that `read_batches` reads directly; a table of Ibis has the method
    # to_pyarrow_batches
    is_readable = (
        isinstance(data, (pa.Table, pa.RecordBatch, pa.RecordBatchReader, _dataset_type()))
        or _is_pandas(data)
        or hasattr(data, "to_pyarrow_batches")
    )
    if hasattr(data, "__arrow_c_stream__") and not is_readable:
        return without_values(lambda: pa.RecordBatchReader.from_stream(data), "the Arrow stream")
    return data


def read_batches(data: Any, names: Sequence[str], only: Path | None = None) -> Iterator[Batch]:
    """Return an iterator over the named columns of `data` in batches; other columns are not read.

    Parameters
    ----------
    only : if `data` is the path of a folder or a pattern, the only file to read; None reads all
        files.

    Raises
    ------
    DataError
        The data cannot be read, or a name is the name of no column or of several columns.
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
    raise DataError(f"the records have the type {type(data).__name__}; give {SOURCE_KINDS}")


def column_names(data: Any) -> ColumnKinds:
    """Return a mapping from each column of data to whether it is numeric; see `column_kinds`.

    If the data consist of several files, these are the columns of the first file.
    """
    return next((columns for _, columns in column_kinds(data)), {})


def column_kinds(data: Any) -> Iterator[tuple[Path | None, ColumnKinds]]:
    """Yield the columns of each file of data, or of data that are not files.

    Yields
    ------
    file : path of the file; None for data that are not files.
    columns : name -> whether the column is numeric; None if its type is unknown. The mapping is
        empty for data that do not list their columns. For a JSON file it contains the keys of the
        first `LINES` objects. It does not depend on values of records.
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
    # a table of Ibis
    if callable(schema) and hasattr(data, "to_pyarrow_batches"):
        schema = without_values(lambda: data.schema().to_pyarrow(), f"the {type(data).__name__}")
    return column_types(schema) if isinstance(schema, pa.Schema) else {}


def _is_number(kind: Any) -> bool:
    """Return whether a pandas type is numeric."""
    arrow = getattr(kind, "pyarrow_dtype", None)
    return kind.kind in "iuf" if arrow is None else is_number(arrow)


def _is_pandas(data: Any) -> bool:
    import pandas as pd

    return isinstance(data, pd.DataFrame)


def _dataset_type() -> Any:
    # imported here because `pyarrow.dataset` also imports pandas
    from pyarrow.dataset import Dataset

    return Dataset


def _generated(parts: Iterator[Any]) -> pa.RecordBatchReader:
    """Return an Arrow stream of the batches or tables that a generator yields.

    All of them must have the same columns.
    """

    def batches_of(part: Any) -> Iterator[pa.RecordBatch]:
        if not isinstance(part, (pa.RecordBatch, pa.Table)) or part.schema.names != schema.names:
            raise DataError(
                "the generator yields a part that is not an Arrow batch or table, or has other"
                " columns than the first part; yield Arrow batches or tables with the same columns"
            )
        yield from (
            part.cast(schema).to_batches() if isinstance(part, pa.Table) else [part.cast(schema)]
        )

    first = without_values(lambda: next(parts, None), "the generator")
    if not isinstance(first, (pa.RecordBatch, pa.Table)):
        raise DataError(
            f"the records are an iterator of the type {type(parts).__name__}, which does not yield"
            f" Arrow batches; give {SOURCE_KINDS}"
        )
    schema = first.schema
    record_batches = (batch for part in chain([first], parts) for batch in batches_of(part))
    return pa.RecordBatchReader.from_batches(schema, guard_batches(record_batches, "the generator"))


def _partitions(data: Any, names: Sequence[str], rows: int) -> Iterator[Batch]:
    """Yield the rows of a Dask frame, one partition at a time."""
    check_columns(list(data.columns), names)
    selection = data[list(names) or list(data.columns)[:1]]
    what = "the Dask frame"
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
    return batches(reader, names, rows, total=None, what="the Arrow stream")


def _lazy(data: Any, names: Sequence[str], rows: int) -> Iterator[Batch]:
    """Yield batches of an Ibis table, or of another object with the method `to_pyarrow_batches`.

    Integer and decimal columns that Ibis would read as floats are read as texts and parsed. Errors
    of the table are replaced by errors that contain no values of records.
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
            name: partial(_parse_numbers, batch.columns[names.index(name)], kind)
            for name, kind in inexact.items()
        }
        columns = (
            without_values(parsers[name], what) if name in inexact else column
            for name, column in zip(names, batch.columns, strict=True)
        )
        yield replace(batch, columns=tuple(columns))


def _readable_columns(data: Any, names: Sequence[str]) -> Any:
    """Select the named columns of an Ibis table; return any other data unchanged.

    If there are no names, one column is selected, so that rows can be counted. On PostgreSQL,
    columns of texts are cast to the type text, which removes the padding of char(n).

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
        # select the first column that can be fetched; if there is none, the first column
        fetchable = [name for name in kinds if name not in unsupported]
        return data.select((fetchable or list(kinds))[:1])
    if unsupported:
        name, kind = next(iter(unsupported.items()))
        raise DataError(
            f"the column {quote_public(name)} has the type {kind}; values must be texts, numbers,"
            " booleans or dates. Cast the column to text in a view"
        )
    if data.get_backend().name != "postgres":
        return data
    texts = {name: as_text(data[name]) for name, kind in kinds.items() if kind.is_string()}
    return data.mutate(**texts) if texts else data


def _inexact_columns(data: Any, names: Sequence[str]) -> dict[str, pa.DataType]:
    """Return name -> Arrow type of the integer and decimal columns that Ibis would fetch as floats.

    For some backends Ibis fetches rows through pandas, in which a missing value turns the integers
    of a column into floats.
    """
    if not hasattr(data, "get_backend") or data.get_backend().name not in READ_BY_PANDAS:
        return {}
    kinds = {name: data[name].type() for name in names}
    return {
        name: kind.to_pyarrow()
        for name, kind in kinds.items()
        if kind.is_integer() or kind.is_decimal()
    }


def _parse_numbers(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Parse texts as numbers of an Arrow type; ".0" at the end of a text is ignored."""
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
    # the scanner decompresses complete row groups, so their sizes are checked before it starts
    width = sum(_bytes_per_value(data.schema.field(name).type) for name in names)
    for fragment in guard_batches(data.get_fragments(), "the dataset"):
        if isinstance(fragment, ParquetFileFragment):
            groups = without_values(lambda fragment=fragment: fragment.row_groups, "the dataset")  # type: ignore[misc]
            largest_size = max((group.num_rows for group in groups), default=0) * width
            check_decompressed_size("a row group", largest_size)
        elif isinstance(fragment, FileFragment) and isinstance(fragment.format, IpcFileFormat):
            without_values(lambda fragment=fragment: _check_arrow(fragment), "the dataset")  # type: ignore[misc]
    scanner = data.scanner(
        columns=list(names), batch_size=rows, batch_readahead=2, fragment_readahead=1
    )
    return batches(scanner.to_batches(), names, rows, total=None, what="the dataset")


def _check_arrow(fragment: FileFragment) -> None:
    with fragment.open() as file:
        check_arrow(file, Path(fragment.path).name)


def _bytes_per_value(kind: pa.DataType) -> int:
    """Return the approximate number of bytes of a value of an Arrow type in memory."""
    try:
        return max(1, int(kind.bit_width) // 8)
    except ValueError:
        return _BYTES_PER_VALUE
