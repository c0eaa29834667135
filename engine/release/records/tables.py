"""Records -> exact marginal tables, streamed: the exact counts that noise is added to, and nothing else.

    read_batches   any kind of data -> bounded batches of the needed columns       (records, csv_records, batches)
    Encoder        a column -> cell codes, refused values marked with a reason     (encoding)
    here           codes -> tables; rows with a refused value in a needed column count in no table at all

Only sets that no other set contains are counted from records; the others are summed from those, which is exact.
Tables are additive integers: parts of the records may be counted anywhere and the results added with +.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from engine.checks import instance, one_of, positive
from engine.errors import DataError, LimitExceeded, SchemaError
from engine.progress import Progress, listener
from engine.release.records.counted import check_named, check_values, count_encoder
from engine.release.records.encoding import REASONS, Encoder, code_type
from engine.release.records.nested import Names, completed, larger_tables
from engine.release.records.people import NOBODY, PersonCap
from engine.release.records.sources import read_batches
from engine.texts import shown
from engine.workload import Schema

MEMORY_LIMIT = 4_000_000_000
MAX_AXES = 64
CHUNK_ROWS = 2**20
CHUNK_BYTES = 128_000_000


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Counts(Mapping[Names, np.ndarray]):
    """Exact marginal tables: attributes, in the order asked for -> read-only int64 array, shape schema.sizes(them).

    These are private numbers in units of records.  Neither `repr` nor any error shows one of them.

    Fields: `schema`; `tables`; `records`, rows that were counted, the sum of every table; `rows_refused`, rows that
    were left out; `refused`, column -> reason -> rows, where a row with several bad values appears several times.

    With a person column `people` is the number of persons, `cap` the most rows of one that count, `rows_over_cap` the
    rows beyond it, and `people_over_cap` the persons who have such rows.

    Guarantee: rows_in = records + rows_refused + rows_over_cap.

    >>> import pandas as pd
    >>> from engine import Attribute
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

    def __post_init__(self) -> None:
        for table in self.tables.values():
            table.flags.writeable = False
        object.__setattr__(self, "tables", dict(self.tables))

    @classmethod
    def from_tables(cls, schema: Schema, tables: Mapping[Sequence[str], Any]) -> Counts:
        """Counts made elsewhere, for example by a database: attributes -> whole numbers, shape schema.sizes(them).

        Guarantee: all tables have the sum `records`, and no count is negative.  Raises: DataError, SchemaError.
        """
        asked = _asked(schema, tables)
        found = {}
        for names, table in zip(asked, tables.values(), strict=True):
            array = np.asarray(table)
            if array.dtype.kind not in "iu" or array.shape != schema.sizes(names):
                raise DataError(f"the table on {_listed(names)} needs whole numbers of shape {schema.sizes(names)}")
            if array.size and (array.min() < 0 or array.max() > np.iinfo(np.int64).max // array.size):
                raise DataError(f"the table on {_listed(names)} has a count below 0 or beyond 64 bits; correct it")
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
        """Counts of two disjoint parts of the records.  Raises: DataError when schema or tables differ."""
        if not isinstance(other, Counts):
            return NotImplemented
        if self.people is not None or other.people is not None:
            raise DataError("a cap of rows per person holds for the parts alone; count all rows of a person together")
        if self.schema != other.schema or self.tables.keys() != other.tables.keys():
            raise DataError("these counts have different schemas or tables; count both parts in the same way")
        refused: dict[str, dict[str, int]] = {}
        for part in (self, other):
            for column, reasons in part.refused.items():
                for reason, rows in reasons.items():
                    _note(refused, column, reason, rows)
        return Counts(
            schema=self.schema,
            tables={names: np.asarray(table + other[names]) for names, table in self.tables.items()},
            records=self.records + other.records,
            rows_refused=self.rows_refused + other.rows_refused,
            refused=refused,
            rows_over_cap=self.rows_over_cap + other.rows_over_cap,
        )


def count_marginals(
    data: Any,
    schema: Schema,
    attribute_sets: Iterable[Sequence[str]],
    *,
    on_refused: str = "error",
    person: str | None = None,
    rows_per_person: int | None = None,
    count_column: str | None = None,
    ignore: Collection[str] = (),
    progress: Progress | None = None,
    memory_limit: int = MEMORY_LIMIT,
) -> Counts:
    """Count the records in the cells of marginal tables.

    Args:
        data: anything `read_batches` takes, or Counts that hold the tables asked for, or larger ones.
        attribute_sets: one sequence of attribute names per table; the empty one asks for the number of records.
        on_refused: "error" raises when a row has a value in a needed column that the domain does not take; "drop"
            leaves such rows out of every table and reports how many.
        person: column that tells whose row it is; at most `rows_per_person` rows of each person are counted, chosen by
            a rule on that person's rows alone; rows without a person are refused.  Both default to what the schema
            declares.
        count_column: column that tells how many records each row stands for, for tables that are counted already; all
            numbers of rows are then numbers of records, and a row whose count is refused is one.
        ignore: columns that the schema does not know and that are no counts, although they look so.
        progress: called with a fraction of 1 and a text; it may raise to stop.
        memory_limit: bytes that the tables may take; the reader adds less than 500 MB.

    Guarantee: each row counts once in every table or in none, by its own values only.  So one record more or less
    changes one cell of each table by one.

    Raises: DataError when the data cannot be read, or has refused rows and on_refused is "error", or looks counted
    already and neither count_column nor ignore says what that column is; SchemaError for
    unknown attributes; LimitExceeded before anything is allocated.
    """
    one_of("on_refused", on_refused, ("error", "drop"), error=DataError)
    instance("schema", schema, Schema, give="the public Schema of the records", error=SchemaError)
    instance("attribute sets", attribute_sets, Iterable, give="tuples of names, like [('age',)]", error=SchemaError)
    if isinstance(ignore, str) or not isinstance(ignore, Collection):
        raise DataError(f"ignore was given as {type(ignore).__name__}. Give the names of the columns, like ['n'].")
    positive("memory limit", memory_limit, error=DataError)
    asked = _asked(schema, attribute_sets)
    size = 8 * sum(schema.cells(names) for names in asked)
    if size > memory_limit:
        raise LimitExceeded(
            f"{len(asked):,} tables take {min(size, 10**300):.3g} bytes, more than the limit of {memory_limit:.3g}; "
            "ask for fewer or smaller tables, or raise memory_limit"
        )
    if isinstance(data, Counts):
        return _derived(data, schema, asked)
    person = schema.person_column(person)
    if person is not None and count_column is not None:
        raise DataError(
            "rows that are counted already tell no persons; give no count_column, or take the person column "
            f"{shown(person)} out of arguments and schema"
        )
    if count_column is None:
        named = [*ignore, *([person] if person is not None else [])]
        check_named(data, schema, named)
        if on_refused == "error":  # which may depend on what the records are; leaving rows out must not
            check_values(data, schema, named)
    sources = larger_tables(schema, asked)
    counted = [names for names in asked if names and sources[names] is None]
    tally = _Tally(schema, counted, drop=on_refused == "drop", count_column=count_column)
    if person is not None:
        rows = (schema.rows_per_person or 1) if rows_per_person is None else rows_per_person
        tally.cap = PersonCap(person, rows, memory_limit)
    tally.read(data, progress)
    if tally.rows_refused and on_refused == "error":
        raise DataError(_complaint(tally))
    return Counts(
        schema=schema,
        tables=completed(tally.tables, asked, sources, tally.records),
        records=tally.records,
        rows_refused=tally.rows_refused,
        refused=tally.refused,
        people=None if tally.cap is None else tally.cap.people,
        cap=None if tally.cap is None else tally.cap.rows,
        rows_over_cap=0 if tally.cap is None else tally.cap.over,
        people_over_cap=0 if tally.cap is None else tally.cap.people_over,
    )


class _Tally:
    """Tables that grow as batches come in."""

    def __init__(self, schema: Schema, counted: Sequence[Names], *, drop: bool, count_column: str | None) -> None:
        needed = {name for names in counted for name in names}
        self.schema = schema
        self.cap: PersonCap | None = None
        self.names = [name for name in schema if name in needed]
        self.encoders = [Encoder(attribute=schema[name]) for name in self.names]
        self.weighted = count_column is not None
        if count_column is not None:  # the last column of all then tells how many records a row is
            self.names, self.encoders = [*self.names, count_column], [*self.encoders, count_encoder(count_column)]
        self.place = {name: i for i, name in enumerate(self.names)}
        self.tables = {names: np.zeros(schema.sizes(names), np.int64) for names in counted}
        self.drop, self.records, self.rows_refused = drop, 0, 0
        self.refused: dict[str, dict[str, int]] = {}
        # Bincount pays for every cell at each call, so batches are collected to chunks of many rows first.
        width = sum(np.dtype(encoder.dtype).itemsize for encoder in self.encoders)
        self.room, self.filled = max(1_000, min(CHUNK_ROWS, CHUNK_BYTES // max(1, width))), 0
        self.chunk = [np.empty(self.room, encoder.dtype) for encoder in self.encoders]

    def read(self, data: Any, progress: Progress | None) -> None:
        rows_in, heard = 0, listener(progress)
        # a person's rows are told apart by all their columns, whichever are counted
        encoders = self.encoders if self.cap is None else [Encoder(attribute=a) for a in self.schema.attributes]
        names = [e.attribute.name for e in encoders]
        more = [] if self.cap is None or self.cap.column in names else [self.cap.column]
        with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
            for batch in read_batches(data, [*names, *more]):
                columns = list(pool.map(_encoded, encoders, batch.columns))
                rows_in += batch.rows
                if self.cap is None:
                    self._take(self._accepted(columns, batch.rows), pool)
                else:
                    self.cap.take(batch.columns[[*names, *more].index(self.cap.column)], columns)
                if heard is not None:
                    # Streams do not tell their length: the fraction then approaches 1 without reaching it.
                    fraction = rows_in / (rows_in + 1e6) if batch.fraction is None else batch.fraction
                    heard(min(1.0, fraction), "counting records")
            if self.cap is not None:
                self._capped(self.cap, names, pool)
            self._flush(pool)

    def _capped(self, cap: PersonCap, names: Sequence[str], pool: Executor) -> None:
        """Count the rows that the cap kept; rows without a person are refused."""
        kept = cap.kept()
        if cap.nobody:
            _note(self.refused, cap.column, NOBODY, cap.nobody)
            self.rows_refused += cap.nobody
        if kept:
            columns = [kept[names.index(name)] for name in self.names]
            self._take(self._accepted(columns, len(kept[0])), pool)

    def _accepted(self, columns: list[np.ndarray], rows: int) -> list[np.ndarray]:
        """The columns without refused rows; no row at all once an error is certain."""
        bad = [i for i, codes in enumerate(columns) if rows and codes.min() < 0]
        if bad:
            for i in bad:
                for code in np.unique(columns[i][columns[i] < 0])[::-1]:
                    _note(self.refused, self.names[i], REASONS[-1 - code], self._records(columns, columns[i] == code))
            kept = np.logical_and.reduce([columns[i] >= 0 for i in bad])
            self.rows_refused += self._records(columns, ~kept)
            columns = [codes[kept] for codes in columns]
            rows = int(kept.sum())
        self.records += self._records(columns, np.ones(rows, bool))
        return columns if self.drop or not self.rows_refused else [codes[:0] for codes in columns]

    def _records(self, columns: list[np.ndarray], among: np.ndarray) -> int:
        """How many records some rows are; a row whose count was refused is one."""
        if not self.weighted:
            return int(among.sum())
        counts = columns[-1][among]
        return int(np.where(counts < 0, 1, counts).sum())

    def _take(self, columns: list[np.ndarray], pool: Executor) -> None:
        rows, start = len(columns[0]) if columns else 0, 0
        while start < rows:
            count = min(rows - start, self.room - self.filled)
            for chunk, codes in zip(self.chunk, columns, strict=True):
                chunk[self.filled : self.filled + count] = codes[start : start + count]
            self.filled, start = self.filled + count, start + count
            if self.filled == self.room:
                self._flush(pool)

    def _flush(self, pool: Executor) -> None:
        if self.filled:
            list(pool.map(self._add, self.tables))
        self.filled = 0

    def _add(self, names: Names) -> None:
        table = self.tables[names]
        first, *rest = (self.chunk[self.place[name]][: self.filled] for name in names)
        index = first.astype(code_type(table.size))
        for codes, size in zip(rest, table.shape[1:], strict=True):
            index *= size
            index += codes
        flat = table.reshape(-1)
        if self.weighted:
            np.add.at(flat, index, self.chunk[-1][: self.filled])
        elif flat.size <= 4 * self.filled:
            flat += np.bincount(index, minlength=flat.size)
        else:
            np.add.at(flat, index, 1)


def _encoded(encoder: Encoder, column: Any) -> np.ndarray:
    return encoder.objects(column) if isinstance(column, list) else encoder.array(column)


def _asked(schema: Schema, attribute_sets: Iterable[Sequence[str]]) -> list[Names]:
    """The attribute sets as distinct tuples of known names."""
    asked: dict[Names, None] = {}
    for given in attribute_sets:
        # The order of the names is the order of the axes, so an unordered set will not do.
        if isinstance(given, (str, bytes, Set)) or not isinstance(given, Iterable):
            raise SchemaError(f"an attribute set is given as {shown(given)}; give a tuple of names, like ('age',)")
        names = tuple(given)
        if len(names) > MAX_AXES:
            raise LimitExceeded(f"a table on {len(names):,} attributes; at most {MAX_AXES} are possible")
        schema.sizes(names)
        if len(set(names)) < len(names):
            raise SchemaError(f"the attribute set {_listed(names)} has a name twice; keep one of them")
        asked[names] = None
    return list(asked)


def _derived(held: Counts, schema: Schema, asked: Sequence[Names]) -> Counts:
    for name in {name for names in asked for name in names}:
        if name not in held.schema or held.schema[name] != schema[name]:
            raise DataError(f"the counts were made with another domain of {shown(name)}; count the records again")
    sources = larger_tables(held.schema, asked, held.tables)
    for names, source in sources.items():
        if names and source is None:
            raise DataError(f"the counts hold no table that contains {_listed(names)}; count the records again")
    return Counts(
        schema=schema,
        tables=completed(held.tables, asked, sources, held.records),
        records=held.records,
        rows_refused=held.rows_refused,
        refused=held.refused,
        people=held.people,
        cap=held.cap,
        rows_over_cap=held.rows_over_cap,
        people_over_cap=held.people_over_cap,
    )


def _note(refused: dict[str, dict[str, int]], column: str, reason: str, rows: int) -> None:
    reasons = refused.setdefault(column, {})
    reasons[reason] = reasons.get(reason, 0) + rows


def _listed(names: Sequence[str]) -> str:
    return f"({', '.join(map(shown, names))})"


def _complaint(tally: _Tally) -> str:
    """What is wrong with the refused rows, in numbers of rows only."""
    parts = [
        f"column {shown(column)}: {', '.join(f'{rows:,} {reason}' for reason, rows in reasons.items())}"
        for column, reasons in tally.refused.items()
    ]
    more = f"; and {len(parts) - 5:,} more columns" if len(parts) > 5 else ""
    return (
        f"{tally.rows_refused:,} of {tally.records + tally.rows_refused:,} rows do not fit the schema: "
        f"{'; '.join(parts[:5])}{more}. Correct the records, give the attribute other=, missing= or clip=, "
        "or leave these rows out with on_refused='drop'"
    )
