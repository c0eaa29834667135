"""Exact marginal tables of records.

    read_batches       data of any kind -> batches of the needed columns, with bounded memory
    Encoder            column -> cell codes; refused values have negative codes, one per reason
    count_marginals    cell codes -> tables; a row is counted in no table if one of its values in a
                       needed column is refused

If a requested table is a margin of another requested table, it is computed by summing the larger
table; only the other tables are counted from the records. Parts of the records can be counted
separately and added with +. Ibis tables and DataFrames of Spark and Dask are counted where they are
stored, if possible (modules `database` and `dask`).

Aggregated data have a count column with the number of records that a row stands for. If each row of
aggregated data were counted once, the counts would be wrong, and no error would reveal it.
Therefore, if no count column is given, every numeric column must have a role: it is an attribute of
the schema, the person column, or ignored. If a numeric column has no role, an error is raised.
Names and types of columns are public, so this error reveals nothing about records.

The columns of a text file have names but no types. A text column without a role causes the same
error if its name is usual for counts, such as "n" or "freq". If it has another name, the values at
the start of the file are examined. If these are numbers, an error is raised when `on_refused` is
"error", and the curator gets a warning when it is "drop".
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

from engine._format import number, quote_public
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
from engine.records.database import (
    count_in_database,
    count_partitions,
    describe_error,
    is_dask_frame,
    is_spark_frame,
    is_table,
    spark_table,
)
from engine.records.encoding import FRACTION, MISSING, Encoder, Hints, code_type, reason_of
from engine.records.readers import ColumnKinds, as_source, column_kinds, read_batches
from engine.workload import Attribute, Schema

# Smallest number of records of one row that is refused. With smaller numbers, the sum of millions
# of rows fits in 64 bits.
MAX_RECORDS_PER_ROW = 2**40
# names that dplyr, SQL, pandas and R give to columns of counts, in lower case
COUNT_COLUMN_NAMES = ("n", "count", "counts", "freq", "frequency")
NOT_WEIGHTS = (
    "A count column must contain numbers of records. If these are sampling weights, one person"
    " would be counted many times, and the privacy budget would not cover that: count each row"
    " once, without a count column."
)
MAX_LISTED_COLUMNS = 8  # largest number of columns that an error message names
PANDAS_INDEX_PREFIX = "__index_level_"  # start of the names under which pandas stores row indexes


class _Count(Attribute):
    """Attribute whose cells are the numbers of records 0, 1, 2, ... of a count column."""

    def __post_init__(self) -> None:
        """Skip the checks of `Attribute`, which limit the number of cells.

        No table has an axis for this attribute, so its number of cells needs no limit.
        """


_ANY_NUMBER = Encoder(attribute=Attribute.numeric("any", [-1.0, 0.0, 1.0], clip=True))


def count_encoder(column: str) -> Encoder:
    """Return an encoder for a count column.

    The code of a number of records from 0 to 2^40 - 1 is the number itself. Other values are
    refused: their code is negative and names the reason.
    """
    return Encoder(attribute=_Count(name=column, kind="numeric", size=MAX_RECORDS_PER_ROW))


def check_count_column(schema: Schema, count_column: str | None, person: str | None) -> None:
    """Raise DataError if the count column is an attribute, or if there is also a person column.

    No record is read. The count column must not be any attribute of the schema, even if no
    requested table contains that attribute, because another plan on the same schema may use it.
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
    """Return warnings that a count column may contain sampling weights; for the curator only.

    Parameters
    ----------
    refused : column -> reason -> number of refused rows.
    small : number of counted rows whose count is less than `LARGE_COUNT`.
    large : number of counted rows whose count is `LARGE_COUNT` or more.
    """
    if count_column is None:
        return ()
    texts = []
    if reason_of(FRACTION) in refused.get(count_column, {}):
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
    """Raise DataError if a numeric column is neither in the schema nor ignored.

    The check uses only the names and types of columns. A column of unknown type is treated as
    numeric if its name is in `COUNT_COLUMN_NAMES`.
    """
    unknown = [
        name
        for _, columns in _unknown_columns(data, schema, ignore)
        for name, is_numeric in columns.items()
        if is_numeric or (is_numeric is None and name.lower() in COUNT_COLUMN_NAMES)
    ]
    if unknown:
        raise DataError(_question_text(list(dict.fromkeys(unknown))))


def numbers_text(data: Any, schema: Schema, ignore: Collection[str]) -> str:
    """Return a question for the curator: which columns of text files are count columns?

    The question lists the columns that are neither in the schema nor ignored, and that contain only
    numbers and missing values in the first batch of the first file with the column. At least one
    value must be a number. If no column is listed, the result is "". The question depends on
    records, so only the curator may see it.
    """
    checked_names: set[str] = set()
    numeric_columns = []
    for file, columns in _unknown_columns(data, schema, ignore):
        # only in text files the type of a column is None (unknown)
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


def _unknown_columns(
    data: Any, schema: Schema, ignore: Collection[str]
) -> Iterator[tuple[Path | None, ColumnKinds]]:
    """Yield the columns of each file that are neither in the schema nor ignored.

    Columns without a name, row indexes that pandas stored, and files without any attribute of the
    schema are left out.

    Yields
    ------
    file : path of the file; None for data that are not files.
    columns : name -> whether the column is numeric; None if its type is unknown.
    """
    for file, columns in column_kinds(data):
        # if no name is an attribute, the first line may be a record, which no message may quote
        if any(name in schema for name in columns):
            excluded = {*schema, *ignore, ""}
            yield (
                file,
                {
                    name: is_numeric
                    for name, is_numeric in columns.items()
                    if name not in excluded and not name.startswith(PANDAS_INDEX_PREFIX)
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


MEMORY_LIMIT = 4_000_000_000  # default limit of the bytes of all tables
# largest number of rows, and of bytes of their cell codes, that are added to the tables at once
CHUNK_ROWS = 2**20
CHUNK_BYTES = 128_000_000
# reason for refusing a row whose combination of values is a structural zero
IMPOSSIBLE = "impossible together"


@dataclass(frozen=True, kw_only=True)
class RecordOptions:
    """Options for reading and counting rows: the keyword arguments of `count_marginals`."""

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
    data : anything that `read_batches` accepts; or `Counts`, or the path of a .counts file. Counts
        must contain every requested table, or a larger table of which it is a margin. For
        counts, `on_refused` and `rows_per_person` have no effect.
    schema : public schema of the records.
    attribute_sets : one sequence of attribute names per table; the empty sequence requests the
        number of records.
    on_refused : what happens to a row with a value outside the domain in a needed column: "error"
        raises DataError, "drop" leaves the row out of every table and reports the number of such
        rows.
    person : column that identifies the person of a row by an integer or a text; see
        `engine.records.contribution_bounding`. Rows without a person are refused. With None, the
        person column of the schema is used, if there is one.
    rows_per_person : largest number of counted rows per person, if there is a person column. Which
        rows are counted depends only on the rows of that person. With None, the number in the
        schema is used, or 1 if the schema has none.
    count_column : for aggregated data, column with the number of records that a row stands for. The
        numbers of rows in the result are then numbers of records, and a row with an invalid number
        counts as one refused record. The column must not be an attribute of the schema. It must not
        contain sampling weights either: a person would be counted weight times.
    ignore : numeric columns that are neither attributes of the schema nor the count column.
    progress : function that receives a fraction up to 1 and a text. It may raise an exception to
        stop the count.
    memory_limit : largest number of bytes of all tables; the reader needs up to 500 MB more.

    Returns
    -------
    The tables, and the numbers of counted and refused rows.

    Raises
    ------
    DataError
        The data cannot be read; or a row is refused and `on_refused` is "error"; or no count column
        is given, and a numeric column is neither an attribute, nor the person column, nor in
        `ignore`; or an option is not allowed.
    SchemaError
        An attribute is not in the schema.
    LimitExceeded
        The tables, or the selection of rows per person, need more than `memory_limit` bytes; or a
        batch of a file is too large.

    Notes
    -----
    A row is also refused if the schema declares its combination of values impossible.

    Guarantee without a person column: each row is counted in one cell of every table or in no
    table, and this depends only on the values of that row. Adding or removing one record therefore
    changes at most one cell of each table, by one.
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
    """Count the records in the cells of marginal tables, as `count_marginals` does.

    ``options`` contains the keyword arguments of `count_marginals`.
    """
    requested, person = _checked_request(schema, attribute_sets, options)
    if is_spark_frame(data):
        with spark_table(data, describe_error) as table:
            return count_tables(table, schema, requested, options)
    data = as_source(read_counts(data))
    if isinstance(data, Counts):
        _check_options_for_counts(options)
        return _from_larger_tables(data, schema, requested)
    doubts = _column_doubts(data, schema, person, options)
    sources = larger_tables(schema, requested)
    counted = [names for names in requested if names and sources[names] is None]
    # with a person column the partitions of Dask cannot be counted separately, because one person
    # may have rows in several partitions
    if is_dask_frame(data) and counted and person is None:
        partition_counts = _count_dask(data, schema, counted, options)
        if partition_counts.rows_refused and options.on_refused == "error":
            raise DataError(_refused_rows_text(partition_counts, options.count_column))
        return replace(
            _from_larger_tables(partition_counts, schema, requested),
            doubts=(*doubts, *partition_counts.doubts),
        )
    drop = options.on_refused == "drop"
    tally = _Tally(schema, counted, drop=drop, count_column=options.count_column)
    if person is not None:
        rows = options.rows_per_person
        rows = (schema.rows_per_person or 1) if rows is None else rows
        tally.cap = PersonCap(person, rows, options.memory_limit)
    tally.read(data, options.progress)
    if tally.rows_refused and not drop:
        raise DataError(_refused_rows_text(tally, options.count_column))
    return tally.counts(complete_tables(tally.tables, requested, sources, tally.records), doubts)


def _checked_request(
    schema: Schema, attribute_sets: Iterable[Sequence[str]], options: RecordOptions
) -> tuple[list[Names], str | None]:
    """Return the distinct attribute sets and the name of the person column, if there is one.

    Raises
    ------
    DataError, SchemaError
        An option or an attribute set is not allowed.
    LimitExceeded
        The tables need more memory than ``options.memory_limit``.
    """
    ignore, memory_limit = options.ignore, options.memory_limit
    check_choice("on_refused", options.on_refused, ("error", "drop"), error=DataError)
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
            f"ignore has type {type(ignore).__name__}. Give a list of column names, such as ['n']."
        )
    if attributes := [name for name in ignore if name in schema]:
        raise DataError(
            f"{quote_public(attributes[0])} is an attribute of the schema, so"
            f" ignore={[str(name) for name in ignore]!r} is not possible. Give only other columns,"
            " or remove the attribute from the schema."
        )
    check_positive("memory limit", memory_limit, error=DataError)
    person = schema.person_column(options.person)
    check_count_column(schema, options.count_column, person)
    requested = checked_sets(schema, attribute_sets)
    size = 8 * sum(schema.cells(names) for names in requested)
    if size > memory_limit:
        raise LimitExceeded(
            f"the requested tables need {number(size)} bytes of memory, but memory_limit is"
            f" {memory_limit:,.0f} bytes; request fewer or smaller tables, or raise"
            " memory_limit"
        )
    return requested, person


def _check_options_for_counts(options: RecordOptions) -> None:
    """Raise `DataError` if an option requires records, because the data are counts."""
    if options.person is not None:
        raise DataError(
            "The data are counts already, so a person column has no effect. Count the records with"
            " the person column, or give no person column here."
        )
    if options.count_column is not None:
        raise DataError(
            "The data are counts already, so a count column has no effect. Count the records with"
            " the count column, or give no count column here."
        )


def _column_doubts(
    data: Any, schema: Schema, person: str | None, options: RecordOptions
) -> tuple[str, ...]:
    """Return the warnings to the curator about columns without a role that may contain counts.

    If the options name a count column, there is no warning and no column is checked.

    Raises
    ------
    DataError
        `check_columns_named` refuses a column, or there is a warning and ``options.on_refused`` is
        "error".
    """
    if options.count_column is not None:
        return ()
    other_columns = [*options.ignore, *([person] if person is not None else [])]
    check_columns_named(data, schema, other_columns)
    warning = numbers_text(data, schema, other_columns)
    if not warning:
        return ()
    # Whether there is a warning depends on values of records. With on_refused="drop" only the
    # curator gets the warning, because an error would reveal something about the records.
    if options.on_refused == "error":
        raise DataError(warning)
    return (f"{warning[0].upper()}{warning[1:]}.",)


def _count_dask(
    data: Any, schema: Schema, counted: Sequence[Names], options: RecordOptions
) -> Counts:
    """Count each partition of a Dask frame and add the counts; leave out refused rows."""
    columns = [name for name in schema if any(name in names for names in counted)]
    per_part = RecordOptions(
        on_refused="drop",
        count_column=options.count_column,
        memory_limit=options.memory_limit,
    )
    count = partial(count_tables, schema=schema, attribute_sets=counted, options=per_part)
    needed = [*columns, *filter(None, [options.count_column])]
    return count_partitions(data, needed, count, options.progress)


class _Tally:
    """Marginal tables and numbers of refused rows, updated batch by batch.

    The cell codes of many batches are collected in a chunk before they are added to the tables,
    because the time of each call of `bincount` grows with the number of cells of the table.
    """

    def __init__(
        self, schema: Schema, counted: Sequence[Names], *, drop: bool, count_column: str | None
    ) -> None:
        needed = {name for names in counted for name in names}
        self.schema = schema
        self.cap: PersonCap | None = None
        self.names = [name for name in schema if name in needed]
        self.encoders = [Encoder(attribute=schema[name]) for name in self.names]
        self.count_column = count_column
        # if there is a count column, it is the last column
        if count_column is not None:
            self.names.append(count_column)
            self.encoders.append(count_encoder(count_column))
        # position of each column in a batch of cell codes
        self.column_index = {name: i for i, name in enumerate(self.names)}
        self.rules = _possible_cells(schema, self.column_index)
        self.tables = {names: np.zeros(schema.sizes(names), np.int64) for names in counted}
        self.drop = drop
        self.records = 0
        self.rows_refused = 0
        # number of counted rows whose value in the count column is less than LARGE_COUNT, and
        # number of all other counted rows
        self.small_counts = 0
        self.large_counts = 0
        self.refused: dict[str, dict[str, int]] = {}
        self.hints = Hints()
        bytes_per_row = sum(np.dtype(encoder.dtype).itemsize for encoder in self.encoders)
        self.chunk_rows = max(1_000, min(CHUNK_ROWS, CHUNK_BYTES // max(1, bytes_per_row)))
        self.filled_rows = 0
        self.chunk = [np.empty(self.chunk_rows, encoder.dtype) for encoder in self.encoders]

    def read(self, data: Any, progress: Progress | None) -> None:
        """Count all rows of `data`; a table of a database is counted there if possible."""
        # the rules for impossible cells are arrays, which a database cannot use
        if is_table(data) and not self.rules and count_in_database(self, data, progress):
            return
        n_rows_read = 0
        report_progress = check_callback(progress)
        encoders = self.encoders
        if self.cap is not None:
            # The selection of rows per person depends on all attributes of the schema, so that
            # releases of different tables count the same rows.
            encoders = [Encoder(attribute=attribute) for attribute in self.schema.attributes]
        names = [encoder.attribute.name for encoder in encoders]
        person_columns = [] if self.cap is None or self.cap.column in names else [self.cap.column]
        with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
            for batch in read_batches(data, [*names, *person_columns]):
                clocks = map(batch.clocks.get, names)
                columns = list(pool.map(Encoder.encode_column, encoders, batch.columns, clocks))
                n_rows_read += batch.rows
                # ``batch.columns`` may end with the column of persons, which has no encoder
                for encoder, values, codes in zip(encoders, batch.columns, columns, strict=False):
                    name = encoder.attribute.name
                    # hints are searched for in counted attributes, not in the count column
                    if name in self.column_index and name in self.schema:
                        # an error in the search for hints must not make the count fail
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
                if report_progress is not None:
                    fraction = batch.fraction
                    if fraction is None:
                        # if the number of rows is unknown, the fraction grows slowly towards 1
                        fraction = n_rows_read / (n_rows_read + 1e6)
                    report_progress(min(1.0, fraction), "Counting records")
            if self.cap is not None:
                self._count_within_cap(self.cap, names, pool)
            self._flush(pool)

    def counts(self, tables: dict[Names, np.ndarray], doubts: tuple[str, ...]) -> Counts:
        """Return ``tables`` with the numbers of records and the warnings of this count.

        In the result, the warnings ``doubts`` precede the warnings of this count.
        """
        cap = self.cap
        return Counts(
            schema=self.schema,
            tables=tables,
            records=self.records,
            rows_refused=self.rows_refused,
            refused=self.refused,
            people=None if cap is None else cap.people,
            cap=None if cap is None else cap.rows,
            rows_over_cap=0 if cap is None else cap.rows_over,
            people_over_cap=0 if cap is None else cap.people_over,
            doubts=(
                *doubts,
                *count_column_doubts(
                    self.count_column, self.refused, self.small_counts, self.large_counts
                ),
                *self.hints.texts,
            ),
        )

    def take_retained(self, names: Sequence[str]) -> None:
        """Count the rows that ``self.cap`` selects: at most k rows of each person.

        Parameters
        ----------
        names : names of the attributes whose cell codes `cap` contains, in this order.
        """
        with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
            if self.cap is not None:
                self._count_within_cap(self.cap, names, pool)
            self._flush(pool)

    def _count_within_cap(self, cap: PersonCap, names: Sequence[str], pool: Executor) -> None:
        """Count the rows that ``cap`` selects, and add rows without a person to the refused rows.

        ``names`` are the attributes whose cell codes ``cap`` contains, in this order.
        """
        retained = cap.retained_codes()
        if cap.n_without_person:
            note(self.refused, cap.column, NO_PERSON, cap.n_without_person)
            self.rows_refused += cap.n_without_person
        if retained:
            columns = [retained[names.index(name)] for name in self.names]
            self._take(self._accepted(columns, len(retained[0])), pool)

    def _accepted(self, columns: list[np.ndarray], rows: int) -> list[np.ndarray]:
        """Return a batch of cell codes without the refused rows; record how many were refused, and why.

        If a row was refused in this batch or before and `drop` is False, the result has no rows,
        because the count will raise an error.

        Parameters
        ----------
        columns : cell codes of each attribute, shape (rows,) each.
        rows : number of rows; needed if ``columns`` is empty.
        """
        refused_columns = [i for i, codes in enumerate(columns) if rows and codes.min() < 0]
        if refused_columns:
            for i in refused_columns:
                for code in np.unique(columns[i][columns[i] < 0])[::-1]:
                    note(
                        self.refused,
                        self.names[i],
                        reason_of(code),
                        self._n_records(columns, columns[i] == code),
                    )
            columns = self._drop_refused(
                columns, np.logical_or.reduce([columns[i] < 0 for i in refused_columns])
            )
        for names, possible in self.rules:
            is_impossible = ~possible[tuple(columns[self.column_index[name]] for name in names)]
            if is_impossible.any():
                note(
                    self.refused,
                    ", ".join(names),
                    IMPOSSIBLE,
                    self._n_records(columns, is_impossible),
                )
                columns = self._drop_refused(columns, is_impossible)
        accepted_rows = len(columns[0]) if columns else rows
        self.records += self._n_records(columns, np.ones(accepted_rows, bool))
        if self.count_column is not None:
            # the last column has the counts
            large = int((columns[-1] >= LARGE_COUNT).sum())
            self.small_counts += accepted_rows - large
            self.large_counts += large
        return columns if self.drop or not self.rows_refused else [codes[:0] for codes in columns]

    def _drop_refused(self, columns: list[np.ndarray], refused: np.ndarray) -> list[np.ndarray]:
        self.rows_refused += self._n_records(columns, refused)
        return [codes[~refused] for codes in columns]

    def _n_records(self, columns: list[np.ndarray], selected: np.ndarray) -> int:
        """Return the number of records in the rows for which ``selected`` is True.

        With a count column, a row contains as many records as its count, and a row with an invalid
        count contains one record.
        """
        if self.count_column is None:
            return int(selected.sum())
        counts = columns[-1][selected]
        return int(np.where(counts < 0, 1, counts).sum())

    def _take(self, columns: list[np.ndarray], pool: Executor) -> None:
        """Copy a batch of cell codes to the chunk, and empty the chunk whenever it is full."""
        rows = len(columns[0]) if columns else 0
        start = 0
        while start < rows:
            count = min(rows - start, self.chunk_rows - self.filled_rows)
            for chunk, codes in zip(self.chunk, columns, strict=True):
                chunk[self.filled_rows : self.filled_rows + count] = codes[start : start + count]
            self.filled_rows, start = self.filled_rows + count, start + count
            if self.filled_rows == self.chunk_rows:
                self._flush(pool)

    def _flush(self, pool: Executor) -> None:
        """Add the rows of the chunk to all tables, and empty the chunk."""
        if self.filled_rows:
            list(pool.map(self._add, self.tables))
        self.filled_rows = 0

    def _add(self, names: Names) -> None:
        """Add the rows of the chunk to the table on ``names``."""
        table = self.tables[names]
        first_codes, *other_codes = (
            self.chunk[self.column_index[name]][: self.filled_rows] for name in names
        )
        # index of the cell of each row in row-major order
        index = first_codes.astype(code_type(table.size))
        for codes, size in zip(other_codes, table.shape[1:], strict=True):
            index *= size
            index += codes
        flat = table.reshape(-1)
        if self.count_column is not None:
            np.add.at(flat, index, self.chunk[-1][: self.filled_rows])
        # `bincount` is faster unless the table has many more cells than there are rows
        elif flat.size <= 4 * self.filled_rows:
            flat += np.bincount(index, minlength=flat.size)
        else:
            np.add.at(flat, index, 1)


def _possible_cells(schema: Schema, counted: Collection[str]) -> list[tuple[Names, np.ndarray]]:
    """Return masks of the possible cells of the counted attributes.

    Returns
    -------
    list
        One pair (names, possible) per constraint of the schema that excludes a cell of the counted
        attributes. ``names`` are the counted attributes of the constraint. ``possible`` is the mask
        of their possible cells.
    """
    tables = []
    for rule in schema.structural_zeros:
        names = tuple(name for name in rule.names if name in counted)
        possible = rule.possible(names) > 0.0
        if not possible.all():
            tables.append((names, possible))
    return tables


def _from_larger_tables(counts: Counts, schema: Schema, requested: Sequence[Names]) -> Counts:
    """Return the requested tables, computed from the tables of existing counts.

    Raises
    ------
    DataError
        The counts do not have the requested attributes and the rules of the schema; or a requested
        table is not a margin of any table of the counts.
    """
    for name in {name for names in requested for name in names}:
        if name not in counts.schema or counts.schema[name] != schema[name]:
            raise DataError(
                f"the counts do not have the attribute {quote_public(name)} with the values that"
                " the schema declares; count the records again"
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
                " records again, with this table"
            )
    return replace(
        counts,
        schema=schema,
        tables=complete_tables(counts.tables, requested, sources, counts.records),
    )


def _refused_rows_text(tally: _Tally | Counts, count_column: str | None) -> str:
    """Return the message about refused rows: their numbers by column and reason, but no values."""
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
