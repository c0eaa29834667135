"""Exact marginal tables of records.

    read_batches   any kind of data -> bounded batches of the needed columns       (records, csv_records, batches)
    Encoder        a column -> cell codes, refused values marked with a reason     (encoding)
    here           codes -> tables; rows with a refused value in a needed column count in no table at all

Only sets that no other set contains are counted from records; the others are summed from those, which is exact.
Tables are additive integers: parts of the records may be counted anywhere and the results added with +.  Tables of
Ibis, and frames of Spark and Dask, are counted where they are (database).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from engine._format import shown
from engine._validation import instance, one_of, positive
from engine.errors import DataError, LimitExceeded, SchemaError
from engine.progress import Progress, listener
from engine.records.contribution_bounding import NOBODY, PersonCap
from engine.records.counts import LARGE_COUNT, Counts, note, read_counts
from engine.records.dask import count_partitions, is_dask_frame
from engine.records.database import count_there, explained, is_table
from engine.records.encoding import REASONS, Encoder, code_type
from engine.records.identifiers import EXACT
from engine.records.marginal_lattice import Names, asked_sets, completed, larger_tables, listed
from engine.records.readers import as_source, read_batches
from engine.records.spark import is_spark_frame, spark_table
from engine.records.value_hints import Hints
from engine.records.weighted_rows import (
    NOT_WEIGHTS,
    check_columns_named,
    check_count_column,
    count_column_doubts,
    count_encoder,
    numbers_text,
)
from engine.workload import Schema

MEMORY_LIMIT = 4_000_000_000
CHUNK_ROWS = 2**20
CHUNK_BYTES = 128_000_000
IMPOSSIBLE = "impossible together"


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
        data: anything `read_batches` takes; or Counts, or the path of a file of them that ends in .counts, which hold
            the tables asked for, or larger ones.
        attribute_sets: one sequence of attribute names per table; the empty one asks for the number of records.
        on_refused: "error" raises when a row has a value in a needed column that the domain does not take; "drop"
            leaves such rows out of every table and reports how many.
        person: column that tells whose row it is; at most `rows_per_person` rows of each person are counted, chosen by
            a rule on that person's rows alone; rows without a person are refused.  Both default to what the schema
            declares.  Identifiers are whole numbers of any type, or texts; see `records.identifiers`.
        count_column: column with the number of records in each row, for tables that are counted already; all numbers
            of rows are then numbers of records, and a row whose count is refused is one.  It is no attribute of the
            schema, and no sampling weight: a person would count as often as the weight says.
        ignore: columns that the schema does not know and that are no counts, although they hold numbers.
        progress: called with a fraction of 1 and a text; it may raise to stop.
        memory_limit: bytes that the tables may take; the reader adds less than 500 MB.

    A row whose values in the needed columns are impossible together, by the rules of the schema, is refused, too.

    Guarantee: each row counts once in every table or in none, by its own values only.  So one record more or less
    changes one cell of each table by one.

    Raises: DataError when the data cannot be read, or has refused rows and on_refused is "error", or has columns of
    numbers that the schema does not know and neither count_column nor ignore says what they are; SchemaError for
    unknown attributes; LimitExceeded before anything is allocated.
    """
    one_of("on_refused", on_refused, ("error", "drop"), error=DataError)
    instance("schema", schema, Schema, give="the public Schema of the records", error=SchemaError)
    instance("attribute sets", attribute_sets, Iterable, give="tuples of names, like [('age',)]", error=SchemaError)
    if isinstance(ignore, str) or not isinstance(ignore, Collection):
        raise DataError(f"ignore was given as {type(ignore).__name__}. Give the names of the columns, like ['n'].")
    positive("memory limit", memory_limit, error=DataError)
    check_count_column(schema, count_column, schema.person_column(person))
    asked = asked_sets(schema, attribute_sets)
    size = 8 * sum(schema.cells(names) for names in asked)
    if size > memory_limit:
        raise LimitExceeded(
            f"{len(asked):,} tables take {min(size, 10**300):.3g} bytes, more than the limit of {memory_limit:.3g}; "
            "ask for fewer or smaller tables, or raise memory_limit"
        )
    if is_spark_frame(data):
        with spark_table(data, explained) as table:
            return count_marginals(
                table,
                schema,
                asked,
                on_refused=on_refused,
                person=person,
                rows_per_person=rows_per_person,
                count_column=count_column,
                ignore=ignore,
                progress=progress,
                memory_limit=memory_limit,
            )
    data = as_source(read_counts(data))
    if isinstance(data, Counts):
        if person is not None:
            raise DataError("Counts hold no persons. Count the records with the person column, or leave it out here.")
        if count_column is not None:
            raise DataError(
                "Counts have no columns. Count the records with the column of counts, or leave it out here."
            )
        return _derived(data, schema, asked)
    person = schema.person_column(person)
    doubts: tuple[str, ...] = ()
    if count_column is None:
        named = [*ignore, *([person] if person is not None else [])]
        check_columns_named(data, schema, named)
        if text := numbers_text(data, schema, named):
            if on_refused == "error":  # which may depend on what the records are; leaving rows out must not
                raise DataError(text)
            doubts = (f"{text[0].upper()}{text[1:]}.",)
    sources = larger_tables(schema, asked)
    counted = [names for names in asked if names and sources[names] is None]
    if is_dask_frame(data) and counted and person is None:  # a person's rows may lie in many partitions
        columns = [name for name in schema if any(name in names for names in counted)]
        alike: dict[str, Any] = {"attribute_sets": counted, "on_refused": "drop", "memory_limit": memory_limit}
        count = partial(count_marginals, schema=schema, count_column=count_column, **alike)
        found = count_partitions(data, [*columns, *filter(None, [count_column])], count, progress)
        if found.rows_refused and on_refused == "error":
            raise DataError(_complaint(found, count_column))
        return replace(_derived(found, schema, asked), doubts=(*doubts, *found.doubts))
    tally = _Tally(schema, counted, drop=on_refused == "drop", count_column=count_column)
    if person is not None:
        rows = (schema.rows_per_person or 1) if rows_per_person is None else rows_per_person
        tally.cap = PersonCap(person, rows, memory_limit)
    tally.read(data, progress)
    if tally.rows_refused and on_refused == "error":
        raise DataError(_complaint(tally, count_column))
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
        doubts=(
            *doubts,
            *count_column_doubts(count_column, tally.refused, tally.small_counts, tally.large_counts),
            *tally.hints.texts,
        ),
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
        self.rules = _rules(schema, self.place)
        self.tables = {names: np.zeros(schema.sizes(names), np.int64) for names in counted}
        self.drop, self.records, self.rows_refused = drop, 0, 0
        self.small_counts, self.large_counts = 0, 0  # counted rows by the size of their number of records
        self.refused: dict[str, dict[str, int]] = {}
        self.hints = Hints()
        # Bincount pays for every cell at each call, so batches are collected to chunks of many rows first.
        width = sum(np.dtype(encoder.dtype).itemsize for encoder in self.encoders)
        self.room, self.filled = max(1_000, min(CHUNK_ROWS, CHUNK_BYTES // max(1, width))), 0
        self.chunk = [np.empty(self.room, encoder.dtype) for encoder in self.encoders]

    def read(self, data: Any, progress: Progress | None) -> None:
        # rows travel where rules tell which count: a rule is a table of cells, which a database does not have
        if is_table(data) and not self.rules and count_there(self, data, progress):
            return
        rows_in, heard = 0, listener(progress)
        # a person's rows are told apart by all their columns, whichever are counted
        encoders = self.encoders if self.cap is None else [Encoder(attribute=a) for a in self.schema.attributes]
        names = [e.attribute.name for e in encoders]
        more = [] if self.cap is None or self.cap.column in names else [self.cap.column]
        with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
            for batch in read_batches(data, [*names, *more]):
                clocks = map(batch.clocks.get, names)
                columns = list(pool.map(Encoder.column, encoders, batch.columns, clocks))
                rows_in += batch.rows
                for encoder, values, codes in zip(encoders, batch.columns, columns, strict=False):
                    name = encoder.attribute.name
                    if name in self.place and name in self.schema:
                        # no value may stop a release that counts without hints
                        with suppress(Exception):
                            self.hints.see(encoder, values, codes)
                if self.cap is None:
                    self._take(self._accepted(columns, batch.rows), pool)
                else:
                    limit = batch.float_limits.get(self.cap.column, EXACT)
                    self.cap.take(batch.columns[[*names, *more].index(self.cap.column)], columns, limit)
                if heard is not None:
                    # Streams do not tell their length: the fraction then approaches 1 without reaching it.
                    fraction = rows_in / (rows_in + 1e6) if batch.fraction is None else batch.fraction
                    heard(min(1.0, fraction), "counting records")
            if self.cap is not None:
                self._capped(self.cap, names, pool)
            self._flush(pool)

    def take_kept(self, names: Sequence[str]) -> None:
        """Count the rows that the cap kept of those it was given, whose codes are those of `names`."""
        with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
            if self.cap is not None:
                self._capped(self.cap, names, pool)
            self._flush(pool)

    def _capped(self, cap: PersonCap, names: Sequence[str], pool: Executor) -> None:
        """Count the rows that the cap kept; rows without a person are refused."""
        kept = cap.kept()
        if cap.nobody:
            note(self.refused, cap.column, NOBODY, cap.nobody)
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
                    note(self.refused, self.names[i], REASONS[-1 - code], self._records(columns, columns[i] == code))
            columns = self._without(columns, np.logical_or.reduce([columns[i] < 0 for i in bad]))
        for names, possible in self.rules:
            broken = ~possible[tuple(columns[self.place[name]] for name in names)]
            if broken.any():
                note(self.refused, ", ".join(names), IMPOSSIBLE, self._records(columns, broken))
                columns = self._without(columns, broken)
        rows = len(columns[0]) if columns else rows
        self.records += self._records(columns, np.ones(rows, bool))
        if self.weighted:
            large = int((columns[-1] >= LARGE_COUNT).sum())
            self.small_counts, self.large_counts = self.small_counts + rows - large, self.large_counts + large
        return columns if self.drop or not self.rows_refused else [codes[:0] for codes in columns]

    def _without(self, columns: list[np.ndarray], refused: np.ndarray) -> list[np.ndarray]:
        self.rows_refused += self._records(columns, refused)
        return [codes[~refused] for codes in columns]

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


def _rules(schema: Schema, counted: Collection[str]) -> list[tuple[Names, np.ndarray]]:
    """What the rules for impossible cells say of counted attributes: which of their joint cells are possible."""
    out = []
    for found in schema.structural_zeros:
        names = tuple(name for name in found.names if name in counted)
        possible = found.possible(names) > 0.0
        if not possible.all():
            out.append((names, possible))
    return out


def _derived(held: Counts, schema: Schema, asked: Sequence[Names]) -> Counts:
    for name in {name for names in asked for name in names}:
        if name not in held.schema or held.schema[name] != schema[name]:
            raise DataError(f"the counts were made with another domain of {shown(name)}; count the records again")
    if held.schema.impossible != schema.impossible:
        raise DataError("the counts were made with other rules for impossible cells; count the records again")
    sources = larger_tables(held.schema, asked, held.tables)
    for names, source in sources.items():
        if names and source is None:
            raise DataError(f"the counts hold no table that contains {listed(names)}; count the records again")
    return replace(held, schema=schema, tables=completed(held.tables, asked, sources, held.records))


def _complaint(tally: _Tally | Counts, count_column: str | None) -> str:
    """What is wrong with the refused rows, in numbers of rows only."""
    parts = [
        f"column {shown(column)}: {', '.join(f'{rows:,} {reason}' for reason, rows in reasons.items())}"
        for column, reasons in tally.refused.items()
    ]
    more = f"; and {len(parts) - 5:,} more columns" if len(parts) > 5 else ""
    return (
        f"{tally.rows_refused:,} of {tally.records + tally.rows_refused:,} rows do not fit the schema: "
        f"{'; '.join(parts[:5])}{more}. Correct the records, collect such values in the schema with "
        "other=, missing= or clip=, or leave these rows out with on_refused='drop'"
    ) + (f". {NOT_WEIGHTS}" if count_column in tally.refused else "")
