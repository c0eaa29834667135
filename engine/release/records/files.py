"""Files and folders of records: which reader takes which, and many files as one source."""

from __future__ import annotations

import glob
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa

from engine.errors import DataError
from engine.release.records.apart import (
    LABELLED_ENDINGS,
    SHEET_ENDINGS,
    labelled_batches,
    labelled_columns,
    sheet_batches,
    sheet_names,
)
from engine.release.records.batches import Batch
from engine.release.records.counts_file import COUNTS_ENDING
from engine.release.records.csv import TextFile, csv_batches, csv_names
from engine.release.records.formats import arrow_batches, arrow_schema, json_batches, json_names
from engine.release.records.packed import PACKED
from engine.release.records.parquet import parquet_batches, parquet_schema
from engine.texts import shown

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
