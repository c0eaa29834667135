"""Exact marginal tables of records.

    read_batches       data of any kind -> batches of the needed columns, with bounded memory
    Encoder            column -> cell codes; refused values have negative codes, one per reason
    count_marginals    codes -> tables; a row with a refused value in a needed column counts nowhere

Only tables that are no margin of another requested table are counted from the records; their
margins are sums, which is exact. Parts of the records can be counted separately and added with +.
Ibis tables and DataFrames of Spark and Dask are counted where they are stored, if possible (modules
`database` and `dask`).

Aggregated data has a count column, the number of records of each row. Counting each of its rows
once would be wrong without any error, so the user must declare the role of every numeric column: it
is in the schema, the count column, or ignored. Names and types of columns are public, so an error
about them reveals nothing about records. The columns of a text file have names but no types. Such a
column is refused if its name is usual for counts, such as "n" or "freq". For other columns, the
values at the start of the file are checked: if they are numbers, the curator gets a warning, or an
error is raised if `on_refused` is "error".
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from engine._format import quote_public
from engine._validation import check_choice, check_positive, check_type
from engine.errors import DataError, LimitExceeded, SchemaError
from engine.progress import Progress, check_callback
from engine.records.contribution_bounding import FLOAT64_INTEGER_LIMIT, NO_PERSON, PersonCap
from engine.records.counts import (
    LARGE_COUNT,
    Counts,
    Names,
    checked_sets,
    complete_tables,
    larger_tables,
    note,
    read_counts,
    set_text,
)
from engine.records.dask import count_partitions, is_dask_frame
from engine.records.database import (
    count_in_database,
    describe_error,
    is_spark_frame,
    is_table,
    spark_table,
)
from engine.records.encoding import FRACTION, MISSING, REASONS, Encoder, Hints, code_type
from engine.records.readers import ColumnKinds, as_source, column_kinds, read_batches
from engine.workload import Attribute, Schema

MAX_RECORDS_PER_ROW = 2**40  # sums of millions of rows then fit in 64 bits
# names that dplyr, SQL, pandas and R give to columns of counts
COUNT_COLUMN_NAMES = ("n", "count", "counts", "freq", "frequency")
NOT_WEIGHTS = (
    "A count column must contain numbers of records. If these are sampling weights, one person"
    " would be counted many times, and the privacy budget would not cover that: count each row"
    " once, without a count column."
)
MAX_LISTED_COLUMNS = 8  # maximum number of columns that an error message names
PANDAS_INDEX_PREFIX = "__index_level_"  # column in which pandas stores the row index


class _Count(Attribute):
    """Attribute whose cells are the numbers 0, 1, 2, ... in a count column."""

    def __post_init__(self) -> None:
        """Skip the checks of `Attribute`, which allows fewer cells because tables hold them all."""


_ANY_NUMBER = Encoder(attribute=Attribute.numeric("any", [-1.0, 0.0, 1.0], clip=True))


def count_encoder(column: str) -> Encoder:
    """Return an encoder for a count column: each number of records below 2^40 is its own code.

    All other values have the negative code of a reason for their refusal.
    """
    return Encoder(attribute=_Count(name=column, kind="numeric", size=MAX_RECORDS_PER_ROW))


def check_count_column(schema: Schema, count_column: str | None, person: str | None) -> None:
    """Raise DataError if the count column is an attribute, or if there is also a person column.

    All attributes of the schema are compared, not only those of the requested tables, because
    another plan on the same schema could request the others. Reads no record.
    """
    if count_column is None:
        return
    if count_column in schema:
        raise DataError(
            f"the count column {quote_public(count_column)} is also an attribute of the schema; a"
            " column can be only one of them. Remove the attribute from the schema and plan again,"
            " or give no count column"
        )
    if person is not None:
        raise DataError(
            f"there is a count column, {quote_public(count_column)}, and a person column,"
            f" {quote_public(person)}; a row that stands for several records has no person. Give no"
            " count column, or remove the person column from options and schema"
        )


def count_column_doubts(
    count_column: str | None, refused: Mapping[str, Mapping[str, int]], small: int, large: int
) -> tuple[str, ...]:
    """Return warnings, for the curator only, that a count column may contain sampling weights.

    Parameters
    ----------
    refused : mapping from a column to a mapping from a reason to the number of refused rows.
    small : number of counted rows whose count is less than `LARGE_COUNT`.
    large : number of counted rows whose count is `LARGE_COUNT` or more.
    """
    if count_column is None:
        return ()
    texts = []
    if REASONS[-1 - FRACTION] in refused.get(count_column, {}):
        texts.append(
            f"The count column {quote_public(count_column)} has numbers with a fraction; their rows"
            " are left out."
        )
    if large and not small:
        texts.append(
            f"Every number in the count column {quote_public(count_column)} is {LARGE_COUNT} or"
            " more."
        )
    return tuple(f"{text} {NOT_WEIGHTS}" for text in texts)


def check_columns_named(data: Any, schema: Schema, ignore: Collection[str]) -> None:
    """Raise DataError if numeric columns are neither in the schema nor ignored.

    Depends on the names and types of columns only.
    """
    unknown = [
        name
        for _, columns in _unnamed_columns(data, schema, ignore)
        for name, is_numeric in columns.items()
        if is_numeric or (is_numeric is None and name.lower() in COUNT_COLUMN_NAMES)
    ]
    if unknown:
        raise DataError(_question_text(list(dict.fromkeys(unknown))))


def numbers_text(data: Any, schema: Schema, ignore: Collection[str]) -> str:
    """Return a question to the curator about numeric columns of text files without a declared role.

    A column is numeric if all values at the start of the first file that contains it are numbers or
    missing, and not all are missing. The text depends on records, so only the curator may see it.
    It is empty if there are no such columns.
    """
    checked_names: set[str] = set()
    numeric_columns = []
    for file, columns in _unnamed_columns(data, schema, ignore):
        names = [
            name
            for name, is_numeric in columns.items()
            if is_numeric is None and name not in checked_names
        ]
        checked_names.update(names)
        if names and (batch := next(read_batches(data, names, file), None)) is not None:
            numeric_columns += [
                name
                for name, column in zip(names, batch.columns, strict=True)
                if _is_of_numbers(column)
            ]
    return _question_text(numeric_columns) if numeric_columns else ""


def _is_of_numbers(column: Any) -> bool:
    codes = (
        _ANY_NUMBER.encode_values(column)
        if isinstance(column, list)
        else _ANY_NUMBER.encode_array(column)
    )
    return bool((codes >= 0).any() and (codes >= MISSING).all())


def _unnamed_columns(
    data: Any, schema: Schema, ignore: Collection[str]
) -> Iterator[tuple[Path | None, ColumnKinds]]:
    """Yield each file, or None for data in memory, with its columns without a declared role.

    A column has a role if it is in the schema or ignored. The columns are a mapping from the name
    to whether the column is numeric, or None if its type is unknown. A file without any attribute
    of the schema is left out.
    """
    for file, columns in column_kinds(data):
        # if no name is an attribute, the first line may be a record, which no message may quote
        if any(name in schema for name in columns):
            with_role = {*schema, *ignore, ""}
            yield (
                file,
                {
                    name: is_numeric
                    for name, is_numeric in columns.items()
                    if name not in with_role and not name.startswith(PANDAS_INDEX_PREFIX)
                },
            )


def _question_text(names: list[str]) -> str:
    listed = ", ".join(map(quote_public, names[:MAX_LISTED_COLUMNS]))
    if (n_more := len(names) - MAX_LISTED_COLUMNS) > 0:
        return (
            f"the schema does not contain {len(names):,} numeric columns of the records, {listed}"
            f" and {n_more:,} more; remove these columns, or name all of them in ignore=[...]"
        )
    is_single = len(names) == 1
    return (
        f"the schema does not contain the numeric column{'' if is_single else 's'} {listed} of the"
        f" records: if {'it is' if is_single else 'one of them is'} the number of records of each"
        f" row, give count_column={quote_public(names[0])}; otherwise leave the"
        f" column{'' if is_single else 's'} out with ignore=[{listed}]"
    )


MEMORY_LIMIT = 4_000_000_000  # bytes of all tables
# rows are added to the tables in chunks of at most so many rows and bytes
CHUNK_ROWS = 2**20
CHUNK_BYTES = 128_000_000
IMPOSSIBLE = "impossible together"


@dataclass(frozen=True, kw_only=True)
class RecordOptions:
    """How rows are read and counted: the keyword arguments of `count_marginals`."""

    on_refused: str = "error"
    person: str | None = None
    rows_per_person: int | None = None
    count_column: str | None = None
    ignore: Collection[str] = ()
    progress: Progress | None = None
    memory_limit: int = MEMORY_LIMIT


class RecordKeywords(TypedDict, total=False):
    """Keyword arguments of functions that count the records of a plan; see `RecordOptions`."""

    person: str | None
    count_column: str | None
    ignore: Collection[str]
    progress: Progress | None
    memory_limit: int


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

    Parameters
    ----------
    data : anything that `read_batches` accepts; or `Counts`, or the path of a .counts file, that
        contains each requested table or one of which it is a margin. `on_refused` and
        `rows_per_person` have no effect on `Counts`, which were counted before.
    attribute_sets : one sequence of attribute names per table; the empty sequence requests the
        number of records.
    on_refused : "error" raises if a row has a value outside the domain in a needed column; "drop"
        leaves such rows out of every table and reports their number.
    person : column with the identifier of the person, integers of any type or texts; see
        `engine.records.contribution_bounding`. Rows without a person are refused. Default: the
        person column of the schema, if it declares one.
    rows_per_person : with a person column, the maximum number of counted rows per person. Which
        rows are counted depends only on the rows of that person. Default: as the schema declares,
        otherwise 1.
    count_column : column with the number of records of each row, for aggregated data. The numbers
        of rows in the result are then numbers of records; a row with an invalid number is one
        refused record. The column must not be an attribute of the schema, and must not contain
        sampling weights: a person would be counted as often as the weight says.
    ignore : numeric columns that are neither attributes of the schema nor the count column.
    progress : called with a fraction up to 1 and a text; may raise to stop the count.
    memory_limit : maximum bytes of all tables; the reader needs up to 500 MB more.

    Returns
    -------
    The counts, with the numbers of counted and refused rows.

    Raises
    ------
    DataError
        The data cannot be read; or it has refused rows and `on_refused` is "error"; or it has
        a numeric column that is not in the schema, `count_column` or `ignore`; or an option is not
        allowed.
    SchemaError
        An attribute is not in the schema.
    LimitExceeded
        The tables need more than `memory_limit`, which is raised before they are allocated; or the
        selection of rows per person does; or a batch of a file is too large.

    Notes
    -----
    A row with a combination of values that the rules of the schema make impossible is refused.

    Guarantee without a person column: each row is counted once in every table or in none, depending
    only on its own values. Adding or removing one record therefore changes one cell of each table
    by one.
    """
    options = RecordOptions(
        on_refused=on_refused,
        person=person,
        rows_per_person=rows_per_person,
        count_column=count_column,
        ignore=ignore,
        progress=progress,
        memory_limit=memory_limit,
    )
    return count_tables(data, schema, attribute_sets, options)


def count_tables(
    data: Any, schema: Schema, attribute_sets: Iterable[Sequence[str]], options: RecordOptions
) -> Counts:
    """Count the records in the cells of marginal tables.

    Equal to `count_marginals`, but with its keyword arguments as one object.
    """
    on_refused, ignore, count_column = options.on_refused, options.ignore, options.count_column
    memory_limit = options.memory_limit
    check_choice("on_refused", on_refused, ("error", "drop"), error=DataError)
    check_type("schema", schema, Schema, give="the public Schema of the records", error=SchemaError)
    check_type(
        "attribute sets",
        attribute_sets,
        Iterable,
        give="tuples of names, like [('age',)]",
        error=SchemaError,
    )
    if isinstance(ignore, str) or not isinstance(ignore, Collection):
        raise DataError(
            f"ignore was given as {type(ignore).__name__}. Give the names of the columns, like"
            " ['n']."
        )
    if attributes := [name for name in ignore if name in schema]:
        raise DataError(
            f"{quote_public(attributes[0])} is an attribute of the schema, so"
            f" ignore={[str(name) for name in ignore]!r} cannot leave it out. Name only other"
            " columns, or remove the attribute from the schema."
        )
    check_positive("memory limit", memory_limit, error=DataError)
    person = schema.person_column(options.person)
    check_count_column(schema, count_column, person)
    requested = checked_sets(schema, attribute_sets)
    size = 8 * sum(schema.cells(names) for names in requested)
    if size > memory_limit:
        raise LimitExceeded(
            f"{len(requested):,} tables take {min(size, 10**300):.3g} bytes, more than the limit of"
            f" {memory_limit:.3g}; request fewer or smaller tables, or raise memory_limit"
        )
    if is_spark_frame(data):
        with spark_table(data, describe_error) as table:
            return count_tables(table, schema, requested, options)
    data = as_source(read_counts(data))
    if isinstance(data, Counts):
        if options.person is not None:
            raise DataError(
                "The data are counts, which have no person column. Count the records with the"
                " person column, or give no person column here."
            )
        if count_column is not None:
            raise DataError(
                "The data are counts, which have no count column. Count the records with the count"
                " column, or give no count column here."
            )
        return _from_larger_tables(data, schema, requested)
    doubts: tuple[str, ...] = ()
    if count_column is None:
        other_columns = [*ignore, *([person] if person is not None else [])]
        check_columns_named(data, schema, other_columns)
        if question := numbers_text(data, schema, other_columns):
            # with "drop", whether an error is raised must not depend on the records
            if on_refused == "error":
                raise DataError(question)
            doubts = (f"{question[0].upper()}{question[1:]}.",)
    sources = larger_tables(schema, requested)
    counted = [names for names in requested if names and sources[names] is None]
    if (
        is_dask_frame(data) and counted and person is None
    ):  # one person may have rows in many partitions
        columns = [name for name in schema if any(name in names for names in counted)]
        per_part = RecordOptions(
            on_refused="drop", count_column=count_column, memory_limit=memory_limit
        )
        count = partial(count_tables, schema=schema, attribute_sets=counted, options=per_part)
        needed = [*columns, *filter(None, [count_column])]
        partition_counts = count_partitions(data, needed, count, options.progress)
        if partition_counts.rows_refused and on_refused == "error":
            raise DataError(_refused_rows_text(partition_counts, count_column))
        return replace(
            _from_larger_tables(partition_counts, schema, requested),
            doubts=(*doubts, *partition_counts.doubts),
        )
    tally = _Tally(schema, counted, drop=on_refused == "drop", count_column=count_column)
    if person is not None:
        rows = options.rows_per_person
        rows = (schema.rows_per_person or 1) if rows is None else rows
        tally.cap = PersonCap(person, rows, memory_limit)
    tally.read(data, options.progress)
    if tally.rows_refused and on_refused == "error":
        raise DataError(_refused_rows_text(tally, count_column))
    return Counts(
        schema=schema,
        tables=complete_tables(tally.tables, requested, sources, tally.records),
        records=tally.records,
        rows_refused=tally.rows_refused,
        refused=tally.refused,
        people=None if tally.cap is None else tally.cap.people,
        cap=None if tally.cap is None else tally.cap.rows,
        rows_over_cap=0 if tally.cap is None else tally.cap.rows_over,
        people_over_cap=0 if tally.cap is None else tally.cap.people_over,
        doubts=(
            *doubts,
            *count_column_doubts(
                count_column, tally.refused, tally.small_counts, tally.large_counts
            ),
            *tally.hints.texts,
        ),
    )


class _Tally:
    """Marginal tables, and numbers of refused rows, that are updated batch by batch.

    Cell codes of many batches are collected in a chunk before they are added to the tables, because
    each call of `bincount` takes time proportional to the cells of the table.
    """

    def __init__(
        self, schema: Schema, counted: Sequence[Names], *, drop: bool, count_column: str | None
    ) -> None:
        needed = {name for names in counted for name in names}
        self.schema = schema
        self.cap: PersonCap | None = None
        self.names = [name for name in schema if name in needed]
        self.encoders = [Encoder(attribute=schema[name]) for name in self.names]
        self.weighted = count_column is not None
        if count_column is not None:  # the last column is then the number of records of a row
            self.names.append(count_column)
            self.encoders.append(count_encoder(count_column))
        self.place = {name: i for i, name in enumerate(self.names)}
        self.rules = _possible_cells(schema, self.place)
        self.tables = {names: np.zeros(schema.sizes(names), np.int64) for names in counted}
        self.drop = drop
        self.records = 0
        self.rows_refused = 0
        # rows whose value in the count column is less than LARGE_COUNT, and all other rows
        self.small_counts = 0
        self.large_counts = 0
        self.refused: dict[str, dict[str, int]] = {}
        self.hints = Hints()
        bytes_per_row = sum(np.dtype(encoder.dtype).itemsize for encoder in self.encoders)
        self.chunk_rows = max(1_000, min(CHUNK_ROWS, CHUNK_BYTES // max(1, bytes_per_row)))
        self.filled_rows = 0
        self.chunk = [np.empty(self.chunk_rows, encoder.dtype) for encoder in self.encoders]

    def read(self, data: Any, progress: Progress | None) -> None:
        """Count all rows of `data`, in its database if possible."""
        # rules for impossible cells are arrays, which are not available in a database
        if is_table(data) and not self.rules and count_in_database(self, data, progress):
            return
        n_rows_read, listen = 0, check_callback(progress)
        encoders = self.encoders
        if self.cap is not None:
            # which rows of a person are selected depends on all attributes, not only on those of
            # the requested tables
            encoders = [Encoder(attribute=attribute) for attribute in self.schema.attributes]
        names = [encoder.attribute.name for encoder in encoders]
        person_columns = [] if self.cap is None or self.cap.column in names else [self.cap.column]
        with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
            for batch in read_batches(data, [*names, *person_columns]):
                clocks = map(batch.clocks.get, names)
                columns = list(pool.map(Encoder.encode_column, encoders, batch.columns, clocks))
                n_rows_read += batch.rows
                for encoder, values, codes in zip(encoders, batch.columns, columns, strict=False):
                    name = encoder.attribute.name
                    if name in self.place and name in self.schema:
                        # hints are optional: no value may make a count fail because of them
                        with suppress(Exception):
                            self.hints.add(encoder, values, codes)
                if self.cap is None:
                    self._take(self._accepted(columns, batch.rows), pool)
                else:
                    limit = batch.float_limits.get(self.cap.column, FLOAT64_INTEGER_LIMIT)
                    self.cap.take(
                        batch.columns[[*names, *person_columns].index(self.cap.column)],
                        columns,
                        limit,
                    )
                if listen is not None:
                    fraction = batch.fraction
                    if fraction is None:
                        # for a stream of unknown length, a fraction that approaches 1
                        fraction = n_rows_read / (n_rows_read + 1e6)
                    listen(min(1.0, fraction), "Counting records")
            if self.cap is not None:
                self._count_within_cap(self.cap, names, pool)
            self._flush(pool)

    def take_retained(self, names: Sequence[str]) -> None:
        """Count the rows in `cap` that the limit on the rows per person retains.

        Parameters
        ----------
        names : attribute of each array of cell codes in `cap`.
        """
        with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
            if self.cap is not None:
                self._count_within_cap(self.cap, names, pool)
            self._flush(pool)

    def _count_within_cap(self, cap: PersonCap, names: Sequence[str], pool: Executor) -> None:
        """Count the first k rows of each person; add rows without a person to the refused rows."""
        retained = cap.retained_codes()
        if cap.n_without_person:
            note(self.refused, cap.column, NO_PERSON, cap.n_without_person)
            self.rows_refused += cap.n_without_person
        if retained:
            columns = [retained[names.index(name)] for name in self.names]
            self._take(self._accepted(columns, len(retained[0])), pool)

    def _accepted(self, columns: list[np.ndarray], rows: int) -> list[np.ndarray]:
        """Remove refused rows from a batch of cell codes and add their numbers to the tally.

        Also removes all other rows if a row was refused and the count will therefore raise.

        Parameters
        ----------
        columns : cell codes per attribute, shape (rows,) each.
        rows : number of rows, for a batch without columns.
        """
        refused_columns = [i for i, codes in enumerate(columns) if rows and codes.min() < 0]
        if refused_columns:
            for i in refused_columns:
                for code in np.unique(columns[i][columns[i] < 0])[::-1]:
                    note(
                        self.refused,
                        self.names[i],
                        REASONS[-1 - code],
                        self._n_records(columns, columns[i] == code),
                    )
            columns = self._drop_refused(
                columns, np.logical_or.reduce([columns[i] < 0 for i in refused_columns])
            )
        for names, possible in self.rules:
            is_impossible = ~possible[tuple(columns[self.place[name]] for name in names)]
            if is_impossible.any():
                note(
                    self.refused,
                    ", ".join(names),
                    IMPOSSIBLE,
                    self._n_records(columns, is_impossible),
                )
                columns = self._drop_refused(columns, is_impossible)
        rows = len(columns[0]) if columns else rows
        self.records += self._n_records(columns, np.ones(rows, bool))
        if self.weighted:
            large = int((columns[-1] >= LARGE_COUNT).sum())
            self.small_counts += rows - large
            self.large_counts += large
        return columns if self.drop or not self.rows_refused else [codes[:0] for codes in columns]

    def _drop_refused(self, columns: list[np.ndarray], refused: np.ndarray) -> list[np.ndarray]:
        self.rows_refused += self._n_records(columns, refused)
        return [codes[~refused] for codes in columns]

    def _n_records(self, columns: list[np.ndarray], selected: np.ndarray) -> int:
        """Return the number of records of the selected rows.

        With a count column, a row with an invalid count is one record.
        """
        if not self.weighted:
            return int(selected.sum())
        counts = columns[-1][selected]
        return int(np.where(counts < 0, 1, counts).sum())

    def _take(self, columns: list[np.ndarray], pool: Executor) -> None:
        """Copy a batch of cell codes to the chunk; add the chunk to the tables when it is full."""
        rows, start = len(columns[0]) if columns else 0, 0
        while start < rows:
            count = min(rows - start, self.chunk_rows - self.filled_rows)
            for chunk, codes in zip(self.chunk, columns, strict=True):
                chunk[self.filled_rows : self.filled_rows + count] = codes[start : start + count]
            self.filled_rows, start = self.filled_rows + count, start + count
            if self.filled_rows == self.chunk_rows:
                self._flush(pool)

    def _flush(self, pool: Executor) -> None:
        """Add the collected chunk of cell codes to all tables."""
        if self.filled_rows:
            list(pool.map(self._add, self.tables))
        self.filled_rows = 0

    def _add(self, names: Names) -> None:
        """Add the collected chunk of cell codes to one table."""
        table = self.tables[names]
        first_codes, *other_codes = (
            self.chunk[self.place[name]][: self.filled_rows] for name in names
        )
        index = first_codes.astype(code_type(table.size))
        for codes, size in zip(other_codes, table.shape[1:], strict=True):
            index *= size
            index += codes
        flat = table.reshape(-1)
        if self.weighted:
            np.add.at(flat, index, self.chunk[-1][: self.filled_rows])
        elif flat.size <= 4 * self.filled_rows:
            flat += np.bincount(index, minlength=flat.size)
        else:
            np.add.at(flat, index, 1)


def _possible_cells(schema: Schema, counted: Collection[str]) -> list[tuple[Names, np.ndarray]]:
    """Return (names, boolean table of possible cells) for each rule on counted attributes.

    The rules are the structural zeros of the schema. Rules that allow all cells of the counted
    attributes are left out.
    """
    tables = []
    for rule in schema.structural_zeros:
        names = tuple(name for name in rule.names if name in counted)
        possible = rule.possible(names) > 0.0
        if not possible.all():
            tables.append((names, possible))
    return tables


def _from_larger_tables(counts: Counts, schema: Schema, requested: Sequence[Names]) -> Counts:
    """Return counts with the requested tables, summed from the tables of existing counts.

    Raises
    ------
    DataError
        The counts have other attributes or rules than the schema, or lack a table.
    """
    for name in {name for names in requested for name in names}:
        if name not in counts.schema or counts.schema[name] != schema[name]:
            raise DataError(
                f"the counts and the schema declare different values of {quote_public(name)}; count"
                " the records again"
            )
    if counts.schema.impossible != schema.impossible:
        raise DataError(
            "the counts and the schema have different rules for impossible combinations; count the"
            " records again"
        )
    sources = larger_tables(counts.schema, requested, counts.tables)
    for names, source in sources.items():
        if names and source is None:
            raise DataError(
                f"the counts contain no table on the attributes {set_text(names)}; count the"
                " records again"
            )
    return replace(
        counts,
        schema=schema,
        tables=complete_tables(counts.tables, requested, sources, counts.records),
    )


def _refused_rows_text(tally: _Tally | Counts, count_column: str | None) -> str:
    """Return the message for refused rows: their numbers by column and reason, without values."""
    parts = [
        f"column {quote_public(column)}:"
        f" {', '.join(f'{rows:,} {reason}' for reason, rows in reasons.items())}"
        for column, reasons in tally.refused.items()
    ]
    more = f"; and {len(parts) - 5:,} more columns" if len(parts) > 5 else ""
    return (
        f"{tally.rows_refused:,} of {tally.records + tally.rows_refused:,} rows do not fit the"
        f" schema: {'; '.join(parts[:5])}{more}. Correct the records, collect such values in the"
        " schema with other=, missing= or clip=, or leave these rows out with on_refused='drop'"
        + (f". {NOT_WEIGHTS}" if count_column in tally.refused else "")
    )
