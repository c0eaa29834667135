"""Exact counts: a value type with addition, and its file format.

`Counts` contains exact marginal tables. The counts of disjoint parts of the records can be added,
even if each part was counted on another machine. To detect a part that is added twice, counts get
an id when they are named, saved, or added to counts with an id. Unnamed counts of no rows get no
id. The id is a keyed digest of the name of the part, or of its tables and numbers of rows if the
part has no name. Two unnamed parts with equal numbers therefore count as the same part.

A .counts file transfers the counts of a part to another machine. It is a zip archive of
`counts.json` and one array per table. `counts.json` is an object with the keys

    format           "counts/1"
    schema           the public schema, as in a schema file
    schema_digest    SHA-256 of the schema
    sets             attributes of each table, in the order of its axes: table i is tables/i.npy
    records          number of counted rows
    rows_refused     number of rows that do not fit the schema
    rows_over_cap    number of rows beyond the maximum per person; without a count column, the sum
                     of these three numbers is the number of rows that were read
    refused          object: column -> object: reason -> number of refused rows
    people           number of persons; null without a person column
    cap              maximum number of rows per person; null without a person column
    people_over_cap  number of persons with more rows; 0 without a person column
    doubts           warnings for the curator about columns
    shards           ids of the parts that were added

and each table is an array in version 1.0 of the NumPy format: little-endian int64, in C order, with
cells in the order of the schema.

All contents, including the ids, are exact and private. A new file is readable only by its owner,
and an existing file is never replaced.

`larger_tables` selects the tables that can be computed as margins of larger tables, and
`complete_tables` computes them.
"""

from __future__ import annotations

import hashlib
import hmac
import io
import json
import math
import os
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from engine._atomic_io import fresh_file
from engine._format import number, pluralize, quote_public
from engine._untrusted import array_header, open_zip, parse_json, read_array, read_member
from engine._validation import check_type
from engine.errors import DataError, EngineError, LimitExceeded, SchemaError
from engine.workload import Schema

MAX_AXES = 64  # attributes of one table
Names = tuple[str, ...]


def set_text(names: Sequence[str]) -> str:
    """Return an attribute set as text for messages, such as "('age', 'sex')"."""
    return f"({', '.join(map(quote_public, names))})"


def checked_sets(schema: Schema, attribute_sets: Iterable[Sequence[str]]) -> list[Names]:
    """Return the attribute sets as distinct tuples, checked against the schema.

    Raises
    ------
    SchemaError
        A set is not an ordered sequence, contains a name twice, or contains a name that is not in
        the schema.
    LimitExceeded
        A set has more than `MAX_AXES` attributes.
    """
    requested: dict[Names, None] = {}
    for attribute_set in attribute_sets:
        # the order of the names is the order of the axes, so Python sets are refused
        if isinstance(attribute_set, (str, bytes, Set)) or not isinstance(attribute_set, Iterable):
            raise SchemaError(
                f"an attribute set is {quote_public(attribute_set)}, but must be an ordered"
                " sequence; give a tuple of names, like ('age',)"
            )
        names = tuple(attribute_set)
        if len(names) > MAX_AXES:
            raise LimitExceeded(
                f"a table has {len(names):,} attributes, but at most {MAX_AXES} are allowed;"
                " request tables on fewer attributes"
            )
        # raises SchemaError if a name is not in the schema
        schema.sizes(names)
        if len(set(names)) < len(names):
            raise SchemaError(
                f"the attribute set {set_text(names)} has the same name twice; remove one of them"
            )
        requested[names] = None
    return list(requested)


def larger_tables(
    schema: Schema, requested: Iterable[Names], held: Iterable[Names] = ()
) -> dict[Names, Names | None]:
    """Find for each requested table the smallest table from which it can be computed.

    Parameters
    ----------
    requested : attribute sets of the requested tables.
    held : attribute sets of tables that exist already.

    Returns
    -------
    dict
        Requested set -> attribute set of the smallest existing or requested table from which it
        can be computed. The value is the requested set itself if its table exists. The value is
        None if the table must be counted from the records, and for the empty set. Sets with more
        attributes come first, so that a table is computed before its margins.
    """
    # attribute -> attribute sets of the registered tables that contain this attribute
    sets_with: dict[str, set[Names]] = {name: set() for name in schema}
    sources: dict[Names, Names | None] = {}

    def register(names: Names) -> None:
        for name in names:
            sets_with[name].add(names)

    for names in held:
        register(names)
    for names in sorted(requested, key=len, reverse=True):
        candidates = set.intersection(*(sets_with[name] for name in names)) if names else set()
        sources[names] = min(candidates, key=schema.cells, default=None)
        register(names)
    return sources


def _sum_to(table: np.ndarray, source: Names, names: Names) -> np.ndarray:
    """Return the margin on `names` of a table on the attributes `source`."""
    summed_axes = tuple(axis for axis, name in enumerate(source) if name not in names)
    remaining = [name for name in source if name in names]
    return np.array(
        table.sum(axis=summed_axes).transpose([remaining.index(name) for name in names]),
        np.int64,
        order="C",
    )


def complete_tables(
    tables: Mapping[Names, np.ndarray],
    requested: Sequence[Names],
    sources: Mapping[Names, Names | None],
    records: int,
) -> dict[Names, np.ndarray]:
    """Return all requested tables; compute those that are margins of other tables.

    Parameters
    ----------
    tables : attribute set -> table, for the tables that were counted or exist already.
    requested : attribute sets of the requested tables; the result has this order.
    sources : result of `larger_tables`: requested set -> attribute set of the table from which the
        requested table is computed.
    records : number of records, which is the table on the empty set.
    """
    all_tables = dict(tables)
    for names, source in sources.items():
        if source is not None and source != names:
            all_tables[names] = _sum_to(all_tables[source], source, names)
    all_tables[()] = np.array(records, np.int64)
    return {names: all_tables[names] for names in requested}


# If every number of a count column is at least this, the column may contain sampling weights.
LARGE_COUNT = 20
# Largest number of records, also of a sum of counts, so that all counts fit in 64 bits.
MAX_RECORDS = 2**62


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Counts(Mapping[Names, np.ndarray]):
    """Exact marginal tables of records: a mapping from attribute names to int64 arrays.

    The table on ``names`` is read-only and has shape ``schema.sizes(names)``. The counts are
    private; neither `repr` nor any error contains one of them. A file that `save` writes is as
    private as the records.

    Attributes
    ----------
    schema : public schema of the records.
    tables : attribute names -> table, in the requested order.
    records : number of counted rows, which is the sum of every table.
    rows_refused : number of rows that were left out because they do not fit the schema.
    refused : column -> reason -> number of refused rows. A row with several refused values is
        included in several of these numbers.
    people : number of persons; None without a person column.
    cap : largest number of counted rows per person; None without a person column.
    rows_over_cap : number of rows that were left out because their person has more than `cap` rows.
    people_over_cap : number of persons with more than `cap` rows.
    doubts : warnings for the curator about columns.
    shards : ids of the parts of the records whose counts were added.

    Notes
    -----
    Guarantee: rows_in = records + rows_refused + rows_over_cap.

    Examples
    --------
    >>> import pandas as pd
    >>> from engine import Attribute, count_marginals, Schema
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
        """Create counts from tables that were counted elsewhere, for example by a database.

        Parameters
        ----------
        tables : attribute names -> integers, shape schema.sizes(names).

        Raises
        ------
        DataError
            There are no tables, or the tables have different sums. Or a table has another shape or
            type, a negative count, a count so large that its sum may exceed 64 bits, or a positive
            count in an impossible cell.
        SchemaError, LimitExceeded
            An attribute set is not allowed; see `checked_sets`.
        """
        attribute_sets = checked_sets(schema, tables)
        arrays = {}
        for names, table in zip(attribute_sets, tables.values(), strict=True):
            array = np.asarray(table)
            if array.dtype.kind not in "iu" or array.shape != schema.sizes(names):
                raise DataError(
                    f"the table on {set_text(names)} has shape {array.shape} and type"
                    f" {array.dtype}; give an array of integers of shape {schema.sizes(names)}"
                )
            if array.size and (
                array.min() < 0 or array.max() > np.iinfo(np.int64).max // array.size
            ):
                fault = (
                    "negative" if array.min() < 0 else "so large that the sum may exceed 64 bits"
                )
                raise DataError(
                    f"the table on {set_text(names)} has a count that is {fault}; correct the count"
                )
            if schema.impossible and array[schema.possible_share(names) == 0.0].any():
                raise DataError(
                    f"the table on {set_text(names)} has positive counts in cells that the schema"
                    " declares impossible; correct the table or the schema"
                )
            arrays[names] = array.astype(np.int64)
        totals = {int(table.sum()) for table in arrays.values()}
        if not totals:
            raise DataError("there are no tables; give at least one")
        if len(totals) != 1:
            raise DataError(
                f"{len(arrays)} tables have {len(totals)} different sums; count the same records in"
                " every table"
            )
        return cls(schema=schema, tables=arrays, records=totals.pop())

    @property
    def rows_in(self) -> int:
        """Sum of `records`, `rows_refused` and `rows_over_cap`.

        Without a count column, it is the number of rows that were read.
        """
        return self.records + self.rows_refused + self.rows_over_cap

    def __getitem__(self, names: Names) -> np.ndarray:
        return self.tables[names]

    def __iter__(self) -> Iterator[Names]:
        return iter(self.tables)

    def __len__(self) -> int:
        return len(self.tables)

    # `Mapping.__eq__` would compare arrays by ==, which has no single truth value; therefore counts
    # are equal only if they are the same object
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"<Counts: {len(self)} tables on {len(self.schema)} attributes>"

    def __add__(self, other: Counts) -> Counts:
        """Add the counts of two disjoint parts of the records; see `sum`."""
        return Counts.sum([self, other]) if isinstance(other, Counts) else NotImplemented

    @classmethod
    def sum(cls, parts: Iterable[Counts], *, split_by_person: bool = False) -> Counts:
        """Add the counts of disjoint parts of the records.

        Parameters
        ----------
        parts : counts with the same schema, attribute sets and maximum rows per person. A generator
            saves memory, because only the sum and one part are in memory at a time.
        split_by_person : whether the caller declares that no person has rows in two parts. This is
            necessary if the rows per person were limited.

        Raises
        ------
        DataError
            There is no part, or a part is not `Counts`; the schemas, attribute sets or maximum rows
            per person of two parts differ; the rows per person are limited and `split_by_person` is
            False; two parts have the same id; or the sum has more than 2^62 records.
        """
        total: Counts | None = None
        for part in parts:
            check_type(
                "part",
                part,
                Counts,
                give="Counts, as count_marginals returns them",
                error=DataError,
            )
            total = (
                part if total is None else total._add_part(part, split_by_person=split_by_person)
            )
        if total is None:
            raise DataError("there are no counts to add; give the counts of at least one part")
        return total

    def _add_part(self, other: Counts, *, split_by_person: bool) -> Counts:
        """Return the sum of these counts and those of one more part; errors as for `sum`."""
        if self.schema != other.schema or self.tables.keys() != other.tables.keys():
            raise DataError(
                "these counts have different schemas or tables; count both parts in the same way"
            )
        if self.cap != other.cap:
            raise DataError(
                "these counts have different limits on the rows per person; count both parts with"
                " the same rows_per_person"
            )
        if self.cap is not None and not split_by_person:
            raise DataError(
                "the limit on the rows per person was applied to each part separately; count all"
                " rows of a person together, or declare that no person has rows in two parts"
                " (split_by_person=True)"
            )
        if self.records + other.records > MAX_RECORDS:
            raise DataError(
                f"the sum of these counts has more than {MAX_RECORDS:,} records, the largest number"
                " allowed; correct the counts"
            )
        left, right = self, other
        if self.shards or other.shards:
            left, right = self.as_shard(), other.as_shard()
            if repeated := set(left.shards) & set(right.shards):
                raise DataError(
                    f"{pluralize(len(repeated), 'part')} of the records occurred twice: two Counts"
                    " have the same name, or no name and equal counts. Add each part once. If two"
                    " different parts have equal counts, give each a name when it is counted"
                )
        refused: dict[str, dict[str, int]] = {}
        for part in (self, other):
            for column, reasons in part.refused.items():
                for reason, rows in reasons.items():
                    note(refused, column, reason, rows)
        return replace(
            self,
            tables={
                names: np.asarray(table + other[names]) for names, table in self.tables.items()
            },
            records=self.records + other.records,
            rows_refused=self.rows_refused + other.rows_refused,
            refused=refused,
            people=(
                None if self.people is None or other.people is None else self.people + other.people
            ),
            rows_over_cap=self.rows_over_cap + other.rows_over_cap,
            people_over_cap=self.people_over_cap + other.people_over_cap,
            doubts=tuple(dict.fromkeys(self.doubts + other.doubts)),
            shards=left.shards + right.shards,
        )

    def as_shard(self, name: str = "") -> Counts:
        """Return these counts with an id, by which `sum` detects a part that is added twice.

        With a name, the id is a digest of the name. Without a name, the id is a digest of the
        tables and numbers of rows. Two kinds of counts are returned unchanged if no name is given:
        counts that have an id already, and counts of no rows, because adding them twice does no
        harm.

        Raises
        ------
        DataError
            A name is given, but the counts have an id already.
        """
        if not name and (self.shards or not self.rows_in):
            return self
        if self.shards:
            raise DataError(
                f"these counts have an id already, so they cannot get the name {quote_public(name)};"
                " count the records again and name the new counts"
            )
        numbers = [self.records, self.rows_refused, self.rows_over_cap]
        digest = hmac.new(schema_digest(self.schema).encode(), digestmod=hashlib.sha256)
        digest.update(json.dumps(name or numbers).encode())
        if not name:
            for names in sorted(self.tables):
                digest.update(
                    json.dumps(names).encode()
                    + np.ascontiguousarray(self.tables[names], "<i8").tobytes()
                )
        return replace(self, shards=(digest.hexdigest(),))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the counts to a new file that only its owner may read.

        The file contains the exact private counts. The docstring of this module describes its
        format.

        Raises
        ------
        DataError
            The file exists already or cannot be written.
        """
        save_counts(self, path)

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Counts:
        """Return the counts in a file that `save` wrote.

        Raises
        ------
        DataError
            The file cannot be read, is damaged, or has the format of another version.
        LimitExceeded
            All tables in the file together have more than `MAX_TABLE_BYTES` bytes, or a table has
            too many attributes.
        """
        return load_counts(path)


def schema_digest(schema: Schema) -> str:
    """Return the SHA-256 of a schema as hexadecimal text; equal schemas have equal digests."""
    text = json.dumps(schema.to_dict(), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def note(refused: dict[str, dict[str, int]], column: str, reason: str, rows: int) -> None:
    """Add ``rows`` to the number of refused rows of a column and reason in ``refused``."""
    reasons = refused.setdefault(column, {})
    reasons[reason] = reasons.get(reason, 0) + rows


FILE_FORMAT, COUNTS_ENDING = "counts/1", ".counts"
MAX_TABLE_BYTES = 64_000_000_000  # limit for all tables of a file together
MAX_HEADER_BYTES = 100_000_000
ROW_COUNT_FIELDS = ("records", "rows_refused", "rows_over_cap", "people_over_cap")


def save_counts(counts: Counts, path: str | os.PathLike[str]) -> None:
    """Write counts to a new file; see `Counts.save`."""
    check_type("file", path, (str, os.PathLike), give="its path", error=DataError)
    counts = counts.as_shard()
    head = {
        "format": FILE_FORMAT,
        "schema": counts.schema.to_dict(),
        "schema_digest": schema_digest(counts.schema),
        "sets": list(counts),
        "refused": counts.refused,
        "people": counts.people,
        "cap": counts.cap,
        "doubts": counts.doubts,
        "shards": counts.shards,
    } | {name: getattr(counts, name) for name in ROW_COUNT_FIELDS}
    with (
        fresh_file(path, "counts", error=DataError, mode=0o600) as file,
        # the file is compressed, because it is sent to another machine and most cells of large
        # tables are 0
        zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
    ):
        archive.writestr("counts.json", json.dumps(head, ensure_ascii=False))
        for i, table in enumerate(counts.values()):
            with archive.open(f"tables/{i}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(
                    member, np.asarray(table, "<i8", order="C"), (1, 0), allow_pickle=False
                )


def load_counts(path: str | os.PathLike[str]) -> Counts:
    """Return the counts in a file; see `Counts.load`."""
    check_type("file", path, (str, os.PathLike), give="its path", error=DataError)
    what = f"the file of counts {quote_public(Path(path).name)}"
    try:
        with open_zip(
            path, what, error=DataError, plain_names=False, max_members=math.inf
        ) as archive:
            return _read_counts(archive, what)
    except EngineError:
        raise
    except FileNotFoundError:
        problem = f"there is no file {quote_public(Path(path).name)} at this path; check the path"
    except PermissionError:
        problem = f"you do not have permission to read {what}; ask its owner for access"
    except MemoryError:
        problem = f"{what} needs more memory than is available; merge smaller files"
    except Exception:  # a damaged file can raise any exception in the reader
        problem = f"{what} is damaged or not a file of counts; write it again with 'count'"
    raise DataError(problem)


def read_counts(data: Any) -> Any:
    """Load ``data`` if it is the path of a .counts file; return other data unchanged."""
    if isinstance(data, (str, Path)) and Path(data).suffix.lower() == COUNTS_ENDING:
        return load_counts(data)
    return data


def _read_counts(archive: zipfile.ZipFile, what: str) -> Counts:
    """Return the counts in an open .counts file.

    Raises
    ------
    DataError
        The format is of another version, the schema does not match its digest, or the tables
        contradict each other or the number of records.
    LimitExceeded
        The tables need more than `MAX_TABLE_BYTES` bytes, or a table has too many attributes.
    SchemaError
        The schema or an attribute set is not valid.
    MemoryError
        The tables do not fit in memory.
    Exception
        Any other exception shows that the file is damaged.
    """
    head = parse_json(read_member(archive, "counts.json", MAX_HEADER_BYTES))
    if head["format"] != FILE_FORMAT:
        raise DataError(
            f"{what} has a format that this version does not support; update the program, or count"
            " again"
        )
    schema = Schema.from_dict(head["schema"])
    if head["schema_digest"] != schema_digest(schema):
        raise DataError(
            f"{what} was changed: its schema is not the schema with which the records were counted;"
            " write the file again with the command 'count'"
        )
    sets = checked_sets(schema, head["sets"])
    if (size := 8 * sum(schema.cells(names) for names in sets)) > MAX_TABLE_BYTES:
        raise LimitExceeded(
            f"the tables in {what} need {number(size)} bytes, but at most {MAX_TABLE_BYTES:,} are"
            " allowed; count fewer or smaller tables"
        )
    fields = {name: _checked_row_count(head[name]) for name in ROW_COUNT_FIELDS}
    people, cap = (
        None if head[name] is None else _checked_row_count(head[name]) for name in ("people", "cap")
    )
    if (people is None) != (cap is None) or (
        cap is None and (fields["rows_over_cap"] or fields["people_over_cap"])
    ):
        raise ValueError("The file has only some of the fields that a person column requires.")
    tables = dict(_read_tables(archive, schema, sets, fields["records"], what))
    return Counts(
        schema=schema,
        tables=tables,
        refused={
            str(column): {str(reason): _checked_row_count(n) for reason, n in reasons.items()}
            for column, reasons in head["refused"].items()
        },
        people=people,
        cap=cap,
        doubts=tuple(map(str, head["doubts"])),
        shards=tuple(map(str, head["shards"])),
        **fields,
    )


def _read_tables(
    archive: zipfile.ZipFile, schema: Schema, sets: list[Names], records: int, what: str
) -> Iterator[tuple[Names, np.ndarray]]:
    """Yield pairs of attribute names and table.

    Raises DataError unless all tables have the sum ``records`` and equal one-way margins.
    """
    # attribute -> its one-way margin in the first table that contains the attribute
    first_margins: dict[str, np.ndarray] = {}
    for i, names in enumerate(sets):
        table = _read_table(archive, f"tables/{i}.npy", schema.sizes(names))
        margins = {
            name: table.sum(axis=tuple(other for other in range(table.ndim) if other != axis))
            for axis, name in enumerate(names)
        }
        # the margins of earlier tables replace the margins of this table
        first_margins = margins | first_margins
        agree = all((first_margins[name] == margin).all() for name, margin in margins.items())
        if table.min() < 0 or table.max() > records or int(table.sum()) != records or not agree:
            raise DataError(
                f"the table on {set_text(names)} in {what} contradicts the other tables or the"
                " number of records; count again"
            )
        yield names, table


def _read_table(archive: zipfile.ZipFile, name: str, shape: tuple[int, ...]) -> np.ndarray:
    content = read_member(archive, name, 8 * math.prod(shape) + 1024)
    header = array_header(io.BytesIO(content))
    if header != (shape, header[1], np.dtype("<i8")) or (header[1] and len(shape) > 1):
        raise ValueError("An array has another type or shape than expected.")
    return read_array(content, kinds="i", shape=shape)


def _checked_row_count(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= MAX_RECORDS:
        raise ValueError("A number of rows is not an integer from 0 to 2^62.")
    return value
