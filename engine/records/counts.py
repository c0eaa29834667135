"""Exact counts: addition, files and fingerprints.

Exact counts as a value: tables that add up over parts of the records, wherever each part was counted.

Parts that were saved, loaded or named have an id, so that none is added twice.  An id is a keyed digest of the part's
name, or of all its numbers: two parts that agree in every number are taken for one, unless each has a name of its own.

The file of exact counts, in which parts of the records that were counted on other machines come together.

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

import hashlib
import hmac
import io
import json
import math
import os
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from engine._atomic_io import fresh_file
from engine._format import shown
from engine._untrusted import array_header, open_zip, parse_json, read_array, read_member
from engine._validation import instance
from engine.errors import DataError, EngineError, LimitExceeded
from engine.records.marginal_lattice import Names, asked_sets, listed
from engine.workload import Schema

LARGE_COUNT = 20  # the least sampling weight of a survey that asks at most one person in 20
MOST_RECORDS = 2**62  # so that sums of two stay within 64 bits


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Counts(Mapping[Names, np.ndarray]):
    """Exact marginal tables: attributes, in the order asked for -> read-only int64 array, shape schema.sizes(them).

    These are private numbers in units of records.  Neither `repr` nor any error shows one of them.

    Fields: `schema`; `tables`; `records`, rows that were counted, the sum of every table; `rows_refused`, rows that
    were left out; `refused`, column -> reason -> rows, where a row with several bad values appears several times.

    `doubts` says in words what the curator must know of the columns; `shards` are the ids of the parts that were added.

    With a person column `people` is the number of persons, `cap` the most rows of one that count, `rows_over_cap` the
    rows beyond it, and `people_over_cap` the persons who have such rows.

    Guarantee: rows_in = records + rows_refused + rows_over_cap.  What `save` writes holds private numbers as exact as
    the records: keep it where they are kept.

    >>> import pandas as pd
    >>> from engine.workload import Attribute, Schema
    >>> from engine.records import count_marginals
    >>> schema = Schema([Attribute.categorical("sex", ["F", "M"]), Attribute.numeric("age", [0, 20, 65, 120])])
    >>> rows = pd.DataFrame({"sex": ["F", "M", "F"], "age": [19, 20, 70]})
    >>> counts = count_marginals(rows, schema, [("sex", "age"), ("age",)])
    >>> counts["sex", "age"].tolist(), counts["age",].tolist()
    ([[1, 0, 1], [0, 1, 0]], [1, 1, 1])
    >>> counts
    <Counts: 2 tables on 2 attributes>
    """

    schema: Schema
    tables: Mapping[Names, np.ndarray]
    records: int
    rows_refused: int = 0
    refused: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    people: int | None = None
    cap: int | None = None
    rows_over_cap: int = 0
    people_over_cap: int = 0
    doubts: tuple[str, ...] = ()
    shards: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for table in self.tables.values():
            table.flags.writeable = False
        object.__setattr__(self, "tables", dict(self.tables))

    @classmethod
    def from_tables(cls, schema: Schema, tables: Mapping[Sequence[str], Any]) -> Counts:
        """Counts made elsewhere, for example by a database: attributes -> whole numbers, shape schema.sizes(them).

        Guarantee: all tables have the sum `records`, and no count is negative, or lies in an impossible cell.

        Raises: DataError, SchemaError.
        """
        asked = asked_sets(schema, tables)
        found = {}
        for names, table in zip(asked, tables.values(), strict=True):
            array = np.asarray(table)
            if array.dtype.kind not in "iu" or array.shape != schema.sizes(names):
                raise DataError(f"the table on {listed(names)} needs whole numbers of shape {schema.sizes(names)}")
            if array.size and (array.min() < 0 or array.max() > np.iinfo(np.int64).max // array.size):
                raise DataError(f"the table on {listed(names)} has a count below 0 or beyond 64 bits; correct it")
            if schema.impossible and array[schema.possible_share(names) == 0.0].any():
                raise DataError(f"the table on {listed(names)} counts cells that the schema's rules make impossible")
            found[names] = array.astype(np.int64)
        totals = {int(table.sum()) for table in found.values()}
        if len(totals) != 1:
            raise DataError(f"{len(found)} tables have {len(totals)} different sums; count the same records in each")
        return cls(schema=schema, tables=found, records=totals.pop())

    @property
    def rows_in(self) -> int:
        """Rows read: counted ones, refused ones, and those beyond the cap of their person."""
        return self.records + self.rows_refused + self.rows_over_cap

    def __getitem__(self, names: Names) -> np.ndarray:
        return self.tables[names]

    def __iter__(self) -> Iterator[Names]:
        return iter(self.tables)

    def __len__(self) -> int:
        return len(self.tables)

    # The comparison of mappings would ask arrays for one truth value.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"<Counts: {len(self)} tables on {len(self.schema)} attributes>"

    def __add__(self, other: Counts) -> Counts:
        """Counts of two disjoint parts of the records; see `sum`."""
        return Counts.sum([self, other]) if isinstance(other, Counts) else NotImplemented

    @classmethod
    def sum(cls, parts: Iterable[Counts], *, split_by_person: bool = False) -> Counts:
        """Counts of disjoint parts of the records, each counted in the same way.

        Args:
            parts: one or more; they are taken one by one, so a generator holds two of them in memory.
            split_by_person: declares that no person has rows in two parts.  Without that nothing would keep to the cap
                of rows per person, and capped parts are refused.

        Raises: DataError when schemas, tables or caps differ, or a part is there twice.
        """
        found: Counts | None = None
        for part in parts:
            instance("part", part, Counts, give="Counts, as count_marginals returns them", error=DataError)
            found = part if found is None else found._plus(part, split_by_person=split_by_person)
        if found is None:
            raise DataError("no counts were given to add; give the counts of at least one part")
        return found

    def _plus(self, other: Counts, *, split_by_person: bool) -> Counts:
        if self.schema != other.schema or self.tables.keys() != other.tables.keys():
            raise DataError("these counts have different schemas or tables; count both parts in the same way")
        if self.cap != other.cap:
            raise DataError("these counts have different caps of rows per person; count both parts in the same way")
        if self.cap is not None and not split_by_person:
            raise DataError(
                "a cap of rows per person holds for the parts alone; count all rows of a person together, or declare "
                "that no person has rows in two parts (split_by_person=True)"
            )
        if self.records + other.records > MOST_RECORDS:
            raise DataError("these counts add up to more records than 64 bits can hold; correct them")
        one, two = self, other
        if self.shards or other.shards:
            one, two = self.as_shard(), other.as_shard()
            if again := set(one.shards) & set(two.shards):
                raise DataError(
                    f"{len(again)} of these parts is there twice, by name or by all its numbers. Give each once; "
                    "if two parts really have the same numbers, give each a name when it is counted"
                )
        refused: dict[str, dict[str, int]] = {}
        for part in (self, other):
            for column, reasons in part.refused.items():
                for reason, rows in reasons.items():
                    note(refused, column, reason, rows)
        return replace(
            self,
            tables={names: np.asarray(table + other[names]) for names, table in self.tables.items()},
            records=self.records + other.records,
            rows_refused=self.rows_refused + other.rows_refused,
            refused=refused,
            people=None if self.people is None or other.people is None else self.people + other.people,
            rows_over_cap=self.rows_over_cap + other.rows_over_cap,
            people_over_cap=self.people_over_cap + other.people_over_cap,
            doubts=tuple(dict.fromkeys(self.doubts + other.doubts)),
            shards=one.shards + two.shards,
        )

    def as_shard(self, name: str = "") -> Counts:
        """The same counts with an id, of the name or, without one, of all numbers; those with ids keep them.

        Parts without any row have none: to add them twice changes nothing.
        """
        if not name and (self.shards or not self.rows_in):
            return self
        if self.shards:
            raise DataError(f"these counts have an id already, and cannot be named {shown(name)}; name what is counted")
        numbers = [self.records, self.rows_refused, self.rows_over_cap]
        found = hmac.new(schema_digest(self.schema).encode(), digestmod=hashlib.sha256)
        found.update(json.dumps(name or numbers).encode())
        for names in [] if name else sorted(self.tables):
            found.update(json.dumps(names).encode() + np.ascontiguousarray(self.tables[names], "<i8").tobytes())
        return replace(self, shards=(found.hexdigest(),))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the counts to a new file that only its owner may read; see `records.counts_file` for its form.

        The file holds the exact private numbers.  Raises: DataError when it is there already or cannot be written.
        """

        save_counts(self, path)

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Counts:
        """Return the counts in a file that `save` wrote.  Raises: DataError when it is none, or is damaged."""

        return load_counts(path)


def schema_digest(schema: Schema) -> str:
    """Digest of a public schema, in hexadecimal: the same for equal schemas."""
    text = json.dumps(schema.to_dict(), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def note(refused: dict[str, dict[str, int]], column: str, reason: str, rows: int) -> None:
    """Add rows to the refused ones of a column and a reason."""
    reasons = refused.setdefault(column, {})
    reasons[reason] = reasons.get(reason, 0) + rows


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
