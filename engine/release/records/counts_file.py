"""The file of exact counts, in which parts of the records that were counted on other machines come together.

A zip of `counts.json` and one array a table.  `counts.json` is an object with the keys

    format           "counts/1"
    schema           the public schema, as in a schema file; schema_digest, SHA-256 of it
    sets             attributes of each table, in the order of its axes: table i is tables/i.npy
    records, rows_refused, rows_over_cap        numbers of rows; those read are their sum
    refused          column -> reason -> rows
    people, cap, people_over_cap                null, null, 0 without a person column
    doubts           what the curator must know of the columns
    shards           ids of the parts that were added

and each table an array of NumPy's format 1.0: little-endian int64, axes as in the schema, the last one running fastest.

All of this is private and exact, the ids included.  The file is made for its owner alone and replaces no other.
"""

from __future__ import annotations

import io
import json
import math
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from engine.checks import instance
from engine.errors import DataError, EngineError, LimitExceeded
from engine.release.fresh_file import fresh_file
from engine.release.records.counts import MOST_RECORDS, Counts, schema_digest
from engine.release.records.nested import Names, asked_sets, listed
from engine.texts import shown
from engine.untrusted import array_header, open_zip, parse_json, read_array, read_member
from engine.workload import Schema

FORMAT, COUNTS_ENDING = "counts/1", ".counts"
MOST_BYTES = 64_000_000_000  # of all tables in a file
MOST_HEAD = 100_000_000
NUMBERS = ("records", "rows_refused", "rows_over_cap", "people_over_cap")


def save_counts(counts: Counts, path: str | os.PathLike[str]) -> None:
    """Write counts to a new file; see `Counts.save`."""
    instance("file", path, (str, os.PathLike), give="its path", error=DataError)
    counts = counts.as_shard()
    head = {
        "format": FORMAT,
        "schema": counts.schema.to_dict(),
        "schema_digest": schema_digest(counts.schema),
        "sets": list(counts),
        "refused": counts.refused,
        "people": counts.people,
        "cap": counts.cap,
        "doubts": counts.doubts,
        "shards": counts.shards,
    } | {name: getattr(counts, name) for name in NUMBERS}
    with (
        fresh_file(path, "counts", error=DataError, mode=0o600) as file,
        # most cells of many tables are empty, and the bytes have to travel
        zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
    ):
        archive.writestr("counts.json", json.dumps(head, ensure_ascii=False))
        for i, table in enumerate(counts.values()):
            with archive.open(f"tables/{i}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asarray(table, "<i8", order="C"), (1, 0), allow_pickle=False)


def load_counts(path: str | os.PathLike[str]) -> Counts:
    """Return the counts in a file; see `Counts.load`."""
    instance("file", path, (str, os.PathLike), give="its path", error=DataError)
    what = f"the file of counts {shown(Path(path).name)}"
    try:
        with open_zip(path, what, error=DataError, plain_names=False, max_members=math.inf) as archive:
            return _read(archive, what)
    except EngineError:
        raise
    except FileNotFoundError:
        problem = f"there is no file {shown(Path(path).name)} at the path given; check the path"
    except PermissionError:
        problem = f"{what} belongs to somebody else, and you may not read it; ask its owner"
    except MemoryError:
        problem = f"{what} needs more memory than there is; merge smaller files"
    except Exception:  # whatever a damaged file makes a reader stumble over
        problem = f"{what} is damaged, or is none; write it again with 'count'"
    raise DataError(problem)


def read_counts(data: Any) -> Any:
    """Return the counts in a file whose name ends as those of counts do; any other data as they are."""
    if isinstance(data, (str, Path)) and Path(data).suffix.lower() == COUNTS_ENDING:
        return load_counts(data)
    return data


def _read(archive: zipfile.ZipFile, what: str) -> Counts:
    head = parse_json(read_member(archive, "counts.json", MOST_HEAD))
    if head["format"] != FORMAT:
        raise DataError(f"{what} has a format that this program does not know; update it, or count again")
    schema = Schema.from_dict(head["schema"])
    if head["schema_digest"] != schema_digest(schema):
        raise DataError(f"{what} has another schema than it was counted with; write it again with 'count'")
    sets = asked_sets(schema, head["sets"])
    if (size := 8 * sum(schema.cells(names) for names in sets)) > MOST_BYTES:
        raise LimitExceeded(f"{what} holds {size:.3g} bytes, more than {MOST_BYTES:.3g}; count fewer or smaller tables")
    fields = {name: _whole(head[name]) for name in NUMBERS}
    people, cap = (None if head[name] is None else _whole(head[name]) for name in ("people", "cap"))
    if (people is None) != (cap is None) or (cap is None and (fields["rows_over_cap"] or fields["people_over_cap"])):
        raise ValueError("persons without a cap, or the other way round")
    tables = dict(_tables(archive, schema, sets, fields["records"], what))
    return Counts(
        schema=schema,
        tables=tables,
        refused={str(c): {str(r): _whole(n) for r, n in found.items()} for c, found in head["refused"].items()},
        people=people,
        cap=cap,
        doubts=tuple(map(str, head["doubts"])),
        shards=tuple(map(str, head["shards"])),
        **fields,
    )


def _tables(
    archive: zipfile.ZipFile, schema: Schema, sets: list[Names], records: int, what: str
) -> Iterator[tuple[Names, np.ndarray]]:
    """The tables, all of the same records: sums and the tables on single attributes agree."""
    single: dict[str, np.ndarray] = {}
    for i, names in enumerate(sets):
        table = _array(archive, f"tables/{i}.npy", schema.sizes(names))
        margins = {name: table.sum(axis=tuple(a for a in range(table.ndim) if a != k)) for k, name in enumerate(names)}
        agree = all((single.setdefault(name, found) == found).all() for name, found in margins.items())
        if table.min() < 0 or table.max() > records or int(table.sum()) != records or not agree:
            raise DataError(
                f"the table on {listed(names)} in {what} is not of the same records as the others; count again"
            )
        yield names, table


def _array(archive: zipfile.ZipFile, name: str, shape: tuple[int, ...]) -> np.ndarray:
    content = read_member(archive, name, 8 * math.prod(shape) + 1024)
    found = array_header(io.BytesIO(content))
    if found != (shape, found[1], np.dtype("<i8")) or (found[1] and len(shape) > 1):
        raise ValueError("an array of another type or shape")
    return read_array(content, kinds="i", shape=shape)


def _whole(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= MOST_RECORDS:
        raise ValueError("no number of rows")
    return value
