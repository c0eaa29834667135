"""Exact counts computed inside a database: cell codes, GROUP BY and cancellation.

Encoding. `code_of` returns an Ibis expression of the cell codes of one column, with the same codes
as `Encoder.encode`. Numbers are compared with constants that no SQL parser rounds: integers, fractions
as quotients of two integers, and decimals as integers in units of their last digit. Texts are
compared by their bytes, because a collation may treat "f" and "F" as equal. Texts that are numbers,
and other columns for which SQL has no exact comparison, are encoded by listing their distinct
values, if there are few. Otherwise `code_of` raises `NotComputableError`, and the rows are fetched
and counted locally.

Counting. All queries of one count must read the same rows; otherwise a row that changes between two
queries would be in contradictory cells of two tables. They therefore read a temporary table of cell
codes, or a cached one on Spark. If the database cannot create one, a single statement computes all
counts; the rows are fetched if that would have more than `MAX_SELECTS` SELECTs.

Contribution bounding. Rows of persons with more rows than the cap are fetched as codes, and
`contribution_bounding` selects the rows that are counted. All other rows are aggregated in the
database. This takes several queries, so without a temporary table all rows are fetched.

Cancellation. While a query runs, a thread reports progress to the listener. If the listener raises
an exception, the query is cancelled and the exception is raised in the calling thread.

Named sources. The environment variable DP_WORKBENCH_SOURCES holds the path of a TOML file with one
section per table, so that users select a table by name and never type a secret:

    [census]
    address = "postgres://reader:${CENSUS_PASSWORD}@db.example.org/census"
    table = "people"
    database = "public"

``address`` is an address for `ibis.connect`. ``${NAME}`` is replaced by an environment variable, so
the file itself needs no secrets. The value is inserted unchanged: a password with / or # must be
percent-encoded in the variable. ``database`` is the schema or catalogue of the table, if it is not
the default one.

Spark. Ibis converts results of Spark through pandas, which turns integer columns with missing
values into floats and so changes large integers. This module reads the results as Arrow tables
instead.

SQLite. A column may contain values of another type than the declared one: a column of dates or
integers may contain any text. Ibis converts complete columns and fails at the first such value.
This module converts each value separately; a value that does not have the declared type stays
unchanged, and the encoder gives it a code or refuses it.
"""

from __future__ import annotations

import datetime
import itertools
import math
import os
import re
import threading
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import date, timedelta
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from engine._format import near_matches, quote_public
from engine.errors import DataError
from engine.progress import Listener, Progress, check_callback
from engine.records.batches import (
    Batch,
    check_columns,
    guard_batches,
    import_optional,
    without_values,
)
from engine.records.contribution_bounding import NO_PERSON
from engine.records.counts import LARGE_COUNT, Names, note
from engine.records.encoding import (
    FRACTION,
    MISSING,
    OUTSIDE,
    REASONS,
    UNSUPPORTED,
    Encoder,
    is_scalar,
)
from engine.workload import Schema
from engine.workload.calendar import MAX_YEAR, read_period

# backends whose columns may contain values of another type than the declared type
UNTYPED_BACKENDS = ("sqlite",)
_FLOAT_DIGITS = 15  # significant digits of a float as text in SQLite


def untyped_batches(table: Any, names: Sequence[str], rows: int) -> Iterator[Batch]:
    """Yield the named columns of an Ibis table in SQLite in batches of at most ``rows`` rows."""
    backend, kinds = table.get_backend(), [table[name].type() for name in names]
    connection, positions = backend.con, [table.columns.index(name) for name in names]
    # Ibis first copies tables in memory that the expression uses into the database
    backend._run_pre_execute_hooks(table)
    cursor = backend.raw_sql(backend.compile(table))
    try:
        while chunk := _fetched_rows(connection, cursor, rows):
            columns = (
                _column([row[i] for row in chunk], kind)
                for i, kind in zip(positions, kinds, strict=True)
            )
            yield Batch(columns=tuple(columns), rows=len(chunk), fraction=None)
    finally:
        cursor.close()


def _fetched_rows(connection: Any, cursor: Any, rows: int) -> list[tuple[Any, ...]]:
    """Return the next rows of a cursor, with texts that are not UTF-8 as bytes."""
    factory = connection.text_factory
    connection.text_factory = _decoded
    try:
        fetched: list[tuple[Any, ...]] = cursor.fetchmany(rows)
    finally:
        connection.text_factory = factory
    return fetched


def _decoded(content: bytes) -> str | bytes:
    try:
        return content.decode()
    except UnicodeDecodeError:
        return content


def _column(values: list[Any], kind: Any) -> pa.Array | list[Any]:
    """Return the values of a column as an Arrow array if all have its type, otherwise as a list."""
    converted = [_typed(value, kind) for value in values]
    is_dated = kind.is_date() or kind.is_timestamp()
    # Arrow would take integers for numbers of days
    if is_dated and any(isinstance(value, (int, float)) for value in converted):
        return converted
    try:
        return pa.array(converted, pa.date32() if is_dated else kind.to_pyarrow())
    except (pa.ArrowException, TypeError, ValueError, OverflowError, NotImplementedError):
        return converted


def _typed(value: Any, kind: Any) -> Any:
    """Convert a value of SQLite to the declared type, or return it unchanged if that fails.

    A number of a decimal column with more decimal places than declared is not rounded to them.
    """
    if kind.is_date() or kind.is_timestamp():
        period = read_period(value) if isinstance(value, str) else None
        return value if period is None or period.unit != "day" else period.day
    if not isinstance(value, (int, float)):
        return value
    if kind.is_boolean():
        return bool(value) if value in (0, 1) else value
    if (
        kind.is_integer()
        and isinstance(value, float)
        and math.isfinite(value)
        and value.is_integer()
    ):
        return int(value)
    if kind.is_decimal():
        number = Decimal(format(value, f".{_FLOAT_DIGITS}g") if isinstance(value, float) else value)
        try:
            rounded = number.quantize(Decimal(1).scaleb(-(kind.scale or 0)))
        except InvalidOperation:
            return number
        return rounded if rounded == number else number
    return value


SPARK_SESSION = "the Spark session"
# session settings that Ibis changes; they are restored after counting
CHANGED_SETTINGS = ("spark.sql.session.timeZone", "spark.sql.mapKeyDedupPolicy")
MAX_CHAINED_ERRORS = 20  # number of causes of an error that are examined
# parts of messages by which Spark reports that its session has ended
SHUTDOWN_MESSAGES = ("SparkContext was shut down", "stopped SparkContext")
# parts of the names of Spark's error conditions for a missing or changed table
NOT_FOUND_CONDITIONS = ("not_found", "not_exist", "unresolved", "type_mismatch")


def is_spark_frame(data: Any) -> bool:
    """Whether data is a Spark DataFrame."""
    return type(data).__module__.startswith("pyspark.sql") and hasattr(data, "sparkSession")


def is_spark_table(data: Any) -> bool:
    """Whether data is an Ibis table with a Spark backend."""
    return hasattr(data, "get_backend") and bool(data.get_backend().name == "pyspark")


@contextmanager
def spark_table(frame: Any, explain: Callable[[Exception], str]) -> Iterator[Any]:
    """Yield a Spark DataFrame as an Ibis table; afterwards restore the settings of the session."""
    ibis, session = import_optional("ibis", SPARK_SESSION), frame.sparkSession
    name = ibis.util.gen_name("records")
    before = without_values(
        lambda: {key: session.conf.get(key, None) for key in CHANGED_SETTINGS},
        SPARK_SESSION,
        explain,
    )
    try:
        yield without_values(lambda: _temporary_view(ibis, frame, name), SPARK_SESSION, explain)
    finally:
        with suppress(Exception):  # the session may have ended
            session.catalog.dropTempView(name)
            for key, value in before.items():
                session.conf.set(key, value) if value is not None else session.conf.unset(key)


def _temporary_view(ibis: Any, frame: Any, name: str) -> Any:
    connection = ibis.pyspark.connect(frame.sparkSession)
    frame.createTempView(name)
    return connection.table(name)


def spark_answer(expression: Any) -> pa.Table:
    """Return the result of a query on a Spark backend as an Arrow table."""
    backend = expression.get_backend()
    return backend.raw_sql(backend.compile(expression)).toArrow()


def spark_conditions(error: Exception) -> str:
    """Return the Spark error conditions of an exception and its causes, in lower case.

    Conditions are used because, unlike messages, they contain no values. "closed" means that the
    session has ended, "permission" that access was denied; empty for other exceptions.
    """
    if type(error).__module__.split(".")[0] not in ("pyspark", "py4j") and not isinstance(
        error, AttributeError
    ):
        return ""
    if import_optional("pyspark.sql", SPARK_SESSION).SparkSession.getActiveSession() is None:
        return "closed"
    conditions: list[str] = []
    cause: Any = getattr(error, "java_exception", error)
    while cause is not None and len(conditions) < MAX_CHAINED_ERRORS:
        name = ""
        with suppress(Exception):  # only Spark's exceptions have a condition
            name = cause.getCondition() or ""
        with suppress(Exception):
            if "AccessControl" in cause.getClass().getName():  # an error of the file system
                name = "permission"
        with suppress(Exception):
            if any(words in cause.getMessage() for words in SHUTDOWN_MESSAGES):
                name = "closed"
        conditions.append(name.lower())
        cause = cause.getCause() if hasattr(cause, "getCause") else None
    return " ".join(conditions)


def spark_batches(table: Any, names: Sequence[str], rows: int) -> Iterator[Batch]:
    """Yield the rows of an Ibis table on Spark, one partition at a time."""
    backend, types = table.get_backend(), table.schema().to_pyarrow()
    selection = table.select(list(names) or table.columns[:1])
    frame = without_values(lambda: backend.raw_sql(backend.compile(selection)), SPARK_SESSION)
    # Spark returns times with a zone in local time, and Ibis does not show which columns have one
    zoned = {
        field.name for field in frame.schema.fields if field.dataType.typeName() == "timestamp"
    }
    source = guard_batches(without_values(frame.toLocalIterator, SPARK_SESSION), SPARK_SESSION)
    while rows_of_batch := list(islice(source, rows)):
        columns = dict(zip(selection.columns, zip(*rows_of_batch, strict=True), strict=True))
        columns |= {name: tuple(map(_in_utc, columns[name])) for name in zoned & columns.keys()}
        arrays = (_array(columns[name], types.field(name).type) for name in names)
        yield Batch(columns=tuple(arrays), rows=len(rows_of_batch), fraction=None)


def _in_utc(moment: datetime.datetime | None) -> datetime.datetime | None:
    return None if moment is None else moment.astimezone(datetime.UTC)


def _array(values: tuple[Any, ...], kind: pa.DataType) -> pa.Array | list[Any]:
    return pa.array(values, kind) if is_scalar(kind) else list(values)


# maximum number of branches of a CASE expression, and of distinct values that are listed
MAX_CASE_BRANCHES = 1_000
MAX_DECIMAL_DIGITS = 18  # decimals in units of their last digit then fit in 64 bits
HEX_BACKENDS = ("duckdb", "pyspark")  # hex(text) returns the bytes of a text
DATE_BACKENDS = ("duckdb", "postgres", "pyspark")  # date columns contain only dates
TIMEZONE_BACKENDS = ("duckdb", "postgres")  # timezone('UTC', moment) returns the time in UTC
# code of a value that appeared after the distinct values of its column were read
NEW_VALUE_CODE = -1 - len(REASONS)
_INT64_LIMIT = 2**63


class NotComputableError(Exception):
    """The database cannot compute the cell codes; the rows must be fetched."""


def code_of(column: Any, encoder: Encoder, distinct: Callable[[Any, int], list[str | None]]) -> Any:
    """Return an Ibis expression of the cell codes of a column.

    Parameters
    ----------
    column : column of an Ibis table.
    encoder : encoder of its attribute.
    distinct : function (column, limit) that returns up to `limit` + 1 distinct values of a column.
        It is called for columns whose values are encoded in this process; more than `limit` values
        are too many for a CASE expression.

    Raises
    ------
    NotComputableError
        The backend cannot compute the codes.
    """
    import ibis

    attribute, kind = encoder.attribute, column.type()
    if column.get_backend().name in UNTYPED_BACKENDS:
        raise NotComputableError
    cases: list[tuple[Any, int]] = [(column.isnull(), encoder.missing)]
    default_code = OUTSIDE if attribute.other is None else encoder.encode(attribute.other)
    if kind.is_uint64():
        column = column.cast("decimal(20, 0)")  # allows comparison with negative numbers
    if kind.is_null():
        return _int_literal(encoder.missing).cast(np.dtype(encoder.dtype).name)
    if attribute.is_dated:
        date_cases, default_code = _date_cases(column, encoder, distinct)
        cases += date_cases
    elif (
        kind.is_temporal()
        or kind.is_interval()
        or kind.is_array()
        or kind.is_struct()
        or kind.is_map()
    ):
        default_code = UNSUPPORTED
    elif kind.is_string() and attribute.labels is not None:
        codes_by_text = {"": encoder.missing} | encoder.texts
        default_code = _cases_by_text(
            as_hex(column),
            {text.encode().hex().upper(): code for text, code in codes_by_text.items()},
            default_code,
        )
    elif kind.is_boolean():
        cases.append((column, encoder.encode(True)))
        default_code = encoder.encode(False)
    elif kind.is_integer() and attribute.labels is not None:
        integers = {label: int(label) for label in encoder.texts if _is_integer_label(label)}
        cases += [(column == number, encoder.encode(number)) for number in integers.values()]
    elif kind.is_integer():
        missing = [
            int(number)
            for number in encoder.missing_decimals
            if number == number.to_integral_value()
        ]
        cases += [
            (column == number, encoder.missing) for number in missing if abs(number) < _INT64_LIMIT
        ]
        cases += _cell_conditions(
            column, encoder, *_integer_edges([Fraction(edge) for edge in attribute.edges or ()])
        )
        default_code = _default_code(column, encoder)
    elif kind.is_floating() and attribute.labels is not None:
        column = column.cast("float64")
        cases.append((column.isnan(), encoder.missing))
        cases += [
            (column == _exact_literal(number), code) for number, code in _numeric_labels(encoder)
        ]
    elif kind.is_floating():
        column = column.cast("float64")
        cases.append((column.isnan(), encoder.missing))
        cases += [
            (column == _exact_literal(number), encoder.missing) for number in encoder.missing_floats
        ]
        if encoder.needs_integers:
            # infinities are outside the domain; only finite numbers can be fractions
            finite = (column > -_exact_literal(2.0**62)) & (column < _exact_literal(2.0**62))
            cases.append((finite & (column.floor() != column), FRACTION))
        edges = [_exact_literal(edge) for edge in attribute.edges or ()]
        cases += _cell_conditions(column, encoder, edges, *edges[-1:])
        default_code = _default_code(column, encoder)
    elif kind.is_decimal() and attribute.labels is None and _has_exact_comparison(column):
        cases += _decimal_cases(column, encoder)
        default_code = _default_code(column, encoder)
    elif kind.is_decimal():
        texts = column.cast("string")
        default_code = _cases_by_text(
            texts,
            _by_distinct(texts, lambda text: encoder.encode(Decimal(text)), distinct),
            NEW_VALUE_CODE,
        )
    elif kind.is_string():
        texts = as_hex(column)
        default_code = _cases_by_text(
            texts,
            _by_distinct(texts, lambda text: encoder.encode(bytes.fromhex(text)), distinct),
            NEW_VALUE_CODE,
        )
    else:
        raise NotComputableError
    if len(cases) > MAX_CASE_BRANCHES + 4:
        raise NotComputableError
    codes = ibis.cases(
        *((condition, _int_literal(code)) for condition, code in cases),
        else_=_int_literal(default_code),
    )
    return codes.cast(np.dtype(encoder.dtype).name)


def _date_cases(
    column: Any, encoder: Encoder, distinct: Callable[[Any, int], list[Any]]
) -> tuple[list[tuple[Any, Any]], Any]:
    """Return (condition, code) pairs for a column of dates, and the code if no condition is true.

    Raises
    ------
    NotComputableError
        The backend cannot compute the codes.
    """
    import ibis

    attribute, kind, backend_name = encoder.attribute, column.type(), column.get_backend().name
    if kind.is_string():
        texts = as_hex(column)
        codes = _by_distinct(texts, lambda text: encoder.encode(bytes.fromhex(text)), distinct)
        return [], _cases_by_text(texts, codes, NEW_VALUE_CODE)
    if kind.is_integer():
        values = [value for value in _all_distinct(column, distinct) if value is not None]
        return [(column == value, encoder.encode(value)) for value in values], NEW_VALUE_CODE
    if kind.is_boolean():
        return [], encoder.encode(True)
    if not (kind.is_date() or kind.is_timestamp()):
        if kind.is_numeric() or kind.is_binary():
            raise NotComputableError
        return [], UNSUPPORTED
    if backend_name not in DATE_BACKENDS:
        raise NotComputableError
    if kind.is_timestamp() and kind.timezone is not None:
        if backend_name not in TIMEZONE_BACKENDS:
            raise NotComputableError
        column = _functions()["timezone"]("UTC", column)  # time in UTC, without a zone
    # comparisons come first, because special dates such as infinity have no year
    literal = ibis.date if kind.is_date() else lambda day: ibis.timestamp(f"{day}T00:00:00")
    first, last = attribute.days(0)[0], attribute.days(attribute.date_cells - 1)[1]
    step = timedelta(days=1)
    cases = [
        ((column >= literal(day)) & (column < literal(day + step)), encoder.missing)
        for day in encoder.missing_days
        if day.year <= MAX_YEAR
    ]
    if len(cases) < len(encoder.missing_days):
        raise NotComputableError
    cases.append(
        (column < literal(first), encoder.encode(first - step) if first > date.min else OUTSIDE)
    )
    cases.append((column >= literal(last + step), encoder.encode(last + step)))
    day = column if kind.is_date() else column.date()
    if attribute.unit == "day":
        return cases, day.delta(ibis.date(first), unit="day").cast("int64")
    year, month = day.year().cast("int64"), day.month().cast("int64")
    period_number = {
        "year": year,
        "quarter": year * 4 + ibis.cases((month < 4, 0), (month < 7, 1), (month < 10, 2), else_=3),
        "month": year * 12 + month - 1,
    }[attribute.unit or ""]
    return cases, period_number - attribute.first_cell


def _all_distinct(column: Any, distinct: Callable[[Any, int], list[Any]]) -> list[Any]:
    """Return all distinct values of a column, by the function `distinct` of `code_of`.

    Raises
    ------
    NotComputableError
        There are more than `MAX_CASE_BRANCHES` values.
    """
    values = distinct(column, MAX_CASE_BRANCHES)
    if len(values) > MAX_CASE_BRANCHES:
        raise NotComputableError
    return values


def _int_literal(code: Any) -> Any:
    import ibis

    return ibis.literal(code, "int64") if isinstance(code, int) else code


def as_hex(column: Any) -> Any:
    """Return the hexadecimal digits of the bytes of each text of a column.

    A collation of the database may treat different texts as equal, but not their digits.

    Raises
    ------
    NotComputableError
        The backend has no function for this.
    """
    name, call = column.get_backend().name, _functions()
    if name in HEX_BACKENDS:
        return call["hex"](column)
    if name != "postgres":
        raise NotComputableError
    return call["encode"](call["convert_to"](as_text(column), "UTF8"), "hex").upper()


def as_text(column: Any) -> Any:
    """Cast a PostgreSQL column to type text, which removes the padding of char(n)."""
    return _functions()["text"](column)


@cache
def _functions() -> dict[str, Callable[..., Any]]:
    """Return database functions for which Ibis has no operation."""
    import ibis

    def hex(text: str) -> str: ...  # type: ignore[empty-body]
    def text(value: str) -> str: ...  # type: ignore[empty-body]
    def convert_to(text: str, encoding: str) -> bytes: ...  # type: ignore[empty-body]
    def encode(content: bytes, form: str) -> str: ...  # type: ignore[empty-body]
    def timezone(zone: str, moment): ...  # type: ignore[no-untyped-def]

    functions = {
        function.__name__: ibis.udf.scalar.builtin(function)
        for function in (hex, text, convert_to, encode)
    }
    functions["timezone"] = ibis.udf.scalar.builtin(timezone, signature=((str, None), "timestamp"))
    return functions


def _cases_by_text(column: Any, codes: dict[str, int], default_code: Any) -> Any:
    """Return a CASE expression: the code of each text in `codes`, otherwise `default_code`."""
    if len(codes) > MAX_CASE_BRANCHES + 1:
        raise NotComputableError
    return column.cases(
        *((text, _int_literal(code)) for text, code in codes.items()),
        else_=_int_literal(default_code),
    )


def _cell_conditions(
    column: Any, encoder: Encoder, edges: list[Any], largest_inside: Any = None
) -> list[tuple[Any, Any]]:
    """Return (condition, code) pairs for numbers outside the domain and in each bin but the last.

    The conditions are evaluated in order, so the condition of a bin compares with its upper edge
    only. Numbers that match no condition have the code of `_default_code`.

    Parameters
    ----------
    edges : edges of the bins, in the unit of the column.
    largest_inside : largest number in the last bin.
    """
    attribute = encoder.attribute
    if attribute.edges is None:
        return [((column < 0) | (column >= attribute.size), OUTSIDE)]
    outside = [] if attribute.clip else [((column < edges[0]) | (column > largest_inside), OUTSIDE)]
    return [*outside, *((column < edge, cell) for cell, edge in enumerate(edges[1:-1]))]


def _default_code(column: Any, encoder: Encoder) -> Any:
    """Return the code of numbers that match no condition of `_cell_conditions`.

    It is the last bin, or the number itself for an attribute of the codes 0 .. size - 1.
    """
    return column.cast("int64") if encoder.attribute.edges is None else encoder.attribute.size - 1


def _integer_edges(edges: Sequence[Fraction]) -> tuple[list[int], int | None]:
    """Return the ceiling of every edge and the floor of the last one, None without edges.

    For integers n, n < edge is equivalent to n < ceil(edge).

    Raises
    ------
    NotComputableError
        An edge does not fit in 64 bits.
    """
    if any(abs(edge) >= _INT64_LIMIT for edge in edges):
        raise NotComputableError
    return [math.ceil(edge) for edge in edges], math.floor(edges[-1]) if edges else None


def _has_exact_comparison(column: Any) -> bool:
    """Whether the database compares numbers with a decimal column exactly.

    PostgreSQL has decimals of arbitrary precision. Other databases compare decimals as 64-bit
    integers, in units of the last digit, if these have at most `MAX_DECIMAL_DIGITS` digits.
    """
    return (
        column.get_backend().name == "postgres"
        or (column.type().precision or 99) <= MAX_DECIMAL_DIGITS
    )


def _decimal_cases(column: Any, encoder: Encoder) -> list[tuple[Any, Any]]:
    """Return (condition, code) pairs for a column of decimals.

    Numbers that match no condition are in the last bin, see `_default_code`.
    """
    import ibis

    edges, cases = encoder.attribute.edges, []
    if column.get_backend().name == "postgres":  # its decimals include NaN
        cases.append((column == ibis.literal("NaN").cast("decimal"), encoder.missing))
    cases += [(condition, encoder.missing) for condition in _missing_decimals(column, encoder)]
    if encoder.needs_integers:
        cases.append((column.floor() != column, FRACTION))
    if edges is None:
        return cases + _cell_conditions(column, encoder, [])
    if column.get_backend().name == "postgres":
        edge_literals = [ibis.literal(format(Decimal(edge), "f")).cast("decimal") for edge in edges]
        return cases + _cell_conditions(column, encoder, edge_literals, edge_literals[-1])
    scale_factor = 10 ** column.type().scale
    # decimals have at most MAX_DECIMAL_DIGITS digits: an edge beyond all of them is replaced by a
    # bound that fits in 64 bits
    bound = Fraction(10**MAX_DECIMAL_DIGITS)
    integer_edges, largest_inside = _integer_edges(
        [max(-bound, min(bound, Fraction(edge) * scale_factor)) for edge in edges]
    )
    return cases + _cell_conditions(
        (column * scale_factor).cast("int64"), encoder, integer_edges, largest_inside
    )


def _missing_decimals(column: Any, encoder: Encoder) -> list[Any]:
    """Return conditions that are true for decimals declared as missing values."""
    import ibis

    numbers = encoder.missing_decimals
    if column.get_backend().name == "postgres":
        return [column == ibis.literal(format(number, "f")).cast("decimal") for number in numbers]
    scale_factor = 10 ** column.type().scale
    scaled_numbers = [number * scale_factor for number in numbers]
    return [
        (column * scale_factor).cast("int64") == int(number)
        for number in scaled_numbers
        if number == number.to_integral_value() and abs(number) < _INT64_LIMIT
    ]


def _exact_literal(number: float) -> Any:
    """Return a number as a quotient of two integers, which no SQL parser rounds."""
    import ibis

    numerator, denominator = float(number).as_integer_ratio()
    if max(abs(numerator), denominator) >= _INT64_LIMIT:
        raise NotComputableError
    literal = ibis.literal(numerator, "int64").cast("float64")
    return (
        literal
        if denominator == 1
        else literal / ibis.literal(denominator, "int64").cast("float64")
    )


def _is_integer_label(label: str) -> bool:
    """Whether a label is the text of a 64-bit integer."""
    if not label.removeprefix("-").isdecimal() or not label.isascii() or len(label) > 20:
        return False
    return str(int(label)) == label and -_INT64_LIMIT <= int(label) < _INT64_LIMIT


def _numeric_labels(encoder: Encoder) -> list[tuple[float, int]]:
    """Return (number, code) pairs for the labels, and texts that mean missing, that are numbers.

    Raises
    ------
    NotComputableError
        A label is an infinite number.
    """
    pairs = []
    for label, code in encoder.texts.items():
        try:
            number = float(label)
        except ValueError:
            continue
        if math.isinf(number):
            raise NotComputableError
        if not math.isnan(number) and encoder.encode(number) == code:
            pairs.append((number, code))
    return pairs


def _by_distinct(
    texts: Any, encode: Callable[[str], int], distinct: Callable[[Any, int], list[str | None]]
) -> dict[str, int]:
    """Return a mapping from each distinct text of a column to its code by `encode`."""
    return {value: encode(value) for value in _all_distinct(texts, distinct) if value is not None}


POLL_INTERVAL_S = 0.2  # between two progress reports, and between two attempts to cancel
COUNTING_TEXT = "counting in the database"


@contextmanager
def cancel_on_stop(backend: Any, listener: Listener | None) -> Iterator[ProgressMonitor | None]:
    """Report progress while a database computes; cancel its queries if the listener raises.

    Yields the `ProgressMonitor` to which the block reports its progress, or None without a
    listener. The monitor calls the listener from a separate thread until the block ends and, if the
    block raised no exception, then once from the calling thread. An exception of the listener is
    raised when the monitor is called next, and at the end of the block.
    """
    if listener is None:
        yield None
        return
    monitor = ProgressMonitor(listener)
    with _cancellation(backend) as stop:
        thread = threading.Thread(target=monitor.run, args=(stop,), daemon=True)
        thread.start()
        try:
            yield monitor
        except Exception:
            if monitor.listener_error is None:
                raise
        finally:
            monitor.ended.set()
            thread.join()
    if monitor.listener_error is not None:
        raise monitor.listener_error
    listener(*monitor.latest)


class ProgressMonitor:
    """Repeat the last progress report to a listener from a separate thread.

    Calling the monitor sets the fraction and text of the next reports. The call raises the
    exception of the listener, if there was one.

    Attributes
    ----------
    latest : fraction and text of the next report.
    n_reports : number of reports since the start.
    listener_error : exception that the listener raised, or None.
    """

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.latest, self.n_reports = (0.0, COUNTING_TEXT), 0
        self.listener_error: BaseException | None = None
        self.ended = threading.Event()

    def __call__(self, fraction: float, text: str) -> None:
        self.latest = (fraction, text)
        if self.listener_error is not None:
            raise self.listener_error

    def run(self, stop: Callable[[], object]) -> None:
        """Report at intervals until `ended` is set; after an error of the listener, call `stop`."""
        while not self.ended.wait(POLL_INTERVAL_S):
            self.n_reports += 1
            if self.listener_error is None:
                try:
                    self.listener(*self.latest)
                except BaseException as error:
                    self.listener_error = error
            if self.listener_error is not None:
                # called at every interval, because a call between two queries cancels neither
                with suppress(Exception):
                    stop()


@contextmanager
def _cancellation(backend: Any) -> Iterator[Callable[[], object]]:
    """Yield a function that cancels the running queries of the connection.

    On Spark, it cancels only those of this thread. It has no effect if the backend does not support
    cancellation.
    """
    if backend.name == "pyspark":
        context, tag = backend._session.sparkContext, f"counted-{threading.get_ident()}"
        with suppress(Exception):  # the next query reports a closed session
            context.addJobTag(tag)
        try:
            yield lambda: context.cancelJobsWithTag(tag)
        finally:
            with suppress(Exception):
                context.removeJobTag(tag)
    elif backend.name == "postgres":
        yield backend.con.cancel_safe
    else:
        yield getattr(getattr(backend, "con", None), "interrupt", lambda: None)


SQL_TYPES = {"int32": "INTEGER", "int64": "BIGINT"}
MAX_TABLES_PER_QUERY = 32
MAX_TABLES_OF_FIRST_QUERY = 8
# if more progress reports are made during one query, the next query counts fewer tables
MAX_REPORTS_PER_QUERY = 4
MAX_RESULT_COLUMNS = 1_000  # columns per result row; PostgreSQL allows 1,664
# backends with temporary tables, created by a statement or by Ibis
TEMPORARY_TABLE_BACKENDS = ("duckdb", "postgres", "pyspark")
GROUPING_SETS_BACKENDS = ("duckdb", "postgres", "pyspark", "snowflake", "trino")
DATABASE_SUBJECT = "the database"
TABLE_CHANGED = "the table changed while it was counted; count a copy"
_ERROR_TEXTS = {
    (
        "permission",
        "privilege",
        "denied",
        "forbidden",
    ): "denies access to this table; ask its owner for permission",
    ("interrupt", "cancel", "timeout"): "stopped before all tables were counted; count again",
    (
        "connection",
        "operational",
        "interface",
        "ioexception",
        "closed",
    ): "cannot be reached; check the connection",
    (
        "catalog",
        "undefined",
        "binder",
        "notfound",
        *NOT_FOUND_CONDITIONS,
    ): "no longer has this table or some of its columns; check the table and count again",
}
MAX_SELECTS = 400  # SELECTs in one UNION; SQLite allows 500
# matches the bytes, in hexadecimal, of texts such as "7.0" and "1.2E+11", which
# `contribution_bounding` rewrites or refuses as identifiers
HEX_NUMBER_PATTERN = "^(2B|2D)?(3[0-9])+(2E(30)+|((2C|2E)(3[0-9])*)?(45|65)2B(3[0-9])+)$"
_REFUSED_CODES = range(MISSING, MISSING - len(REASONS), -1)
# columns of queries: identifier of the person and its key for GROUP BY, number of rows or records,
# whether the row has no refused value
_PERSON, _KEY, _ROWS, _GOOD = "person", "key", "counted", "good"
_TableRequest = tuple[Names, list[str]]  # attribute set, columns of its codes
_CellCounts = tuple[Names, np.ndarray, np.ndarray]  # attribute set, flat cell indices, counts


def is_table(data: Any) -> bool:
    """Whether data is an Ibis table."""
    return type(data).__module__.startswith("ibis.") and hasattr(data, "get_backend")


def count_in_database(tally: Any, data: Any, progress: Progress | None) -> bool:
    """Count an Ibis table in its database and add the counts to a tally.

    Returns
    -------
    Whether the rows were counted; if False, nothing was added and the caller must fetch the rows.
    """
    with cancel_on_stop(data.get_backend(), check_callback(progress)) as monitor:
        return _count_in_database(tally, data, monitor)


def fit_in_database(
    data: Any, encoders: Sequence[Encoder], most: int, progress: Progress | None
) -> list[tuple[dict[int, int], dict[Any, int]]] | None:
    """Count the rows of an Ibis table that fit each encoder, and its most frequent refused values.

    Returns
    -------
    For each encoder a pair. First a mapping from the code of each reason to its number of refused
    rows, and from 0 to the number of rows in any cell; then a mapping from at most `most` refused
    values that are not missing to their numbers of rows. None if the database cannot compute the
    codes, so that the rows must be fetched.
    """
    import ibis

    names = [encoder.attribute.name for encoder in encoders]
    check_columns(list(data.columns), names)
    with cancel_on_stop(data.get_backend(), check_callback(progress)) as monitor:
        try:
            codes = [
                code_of(data[name], encoder, _distinct)
                for name, encoder in zip(names, encoders, strict=True)
            ]
            codes = [ibis.ifelse(code == NEW_VALUE_CODE, OUTSIDE, code) for code in codes]
        except NotComputableError:
            return None
        totals = {
            f"r{i}_{refused_code}": _total((code == refused_code).ifelse(1, 0))
            for i, code in enumerate(codes)
            for refused_code in _REFUSED_CODES
        }
        answers = _fetch_totals(data, {"rows": data.count()} | totals)
        fits = []
        for i, (name, code) in enumerate(zip(names, codes, strict=True)):
            rows_by_code = {
                refused_code: answers[f"r{i}_{refused_code}"]
                for refused_code in _REFUSED_CODES
                if answers[f"r{i}_{refused_code}"]
            }
            rows_by_code[0] = answers["rows"] - sum(rows_by_code.values())
            rows_by_value: dict[Any, int] = {}
            kind = data[name].type()
            is_nested = kind.is_array() or kind.is_struct() or kind.is_map()
            if any(c < MISSING for c in rows_by_code) and not is_nested:
                refused_values = (
                    data.filter(code < MISSING)
                    .group_by(value=data[name])
                    .aggregate(**{_ROWS: ibis._.count()})
                )
                frequent = _fetched(refused_values.order_by(ibis.desc(_ROWS)).limit(most))
                rows_by_value = dict(
                    zip(frequent["value"].to_pylist(), frequent[_ROWS].to_pylist(), strict=True)
                )
            fits.append((rows_by_code, rows_by_value))
            if monitor is not None:
                monitor((i + 1) / len(names), "checking columns and values in the database")
    return fits


def _count_in_database(tally: Any, data: Any, monitor: ProgressMonitor | None) -> bool:
    """Count an Ibis table with a monitor of its progress; see `count_in_database`."""
    import ibis

    encoders = tally.encoders
    if tally.cap is not None:
        # which rows of a person are selected depends on all attributes of the schema
        encoders = [Encoder(attribute=attribute) for attribute in tally.schema.attributes]
    names = [encoder.attribute.name for encoder in encoders]
    check_columns(list(data.columns), names if tally.cap is None else [*names, tally.cap.column])
    person_columns: dict[str, Any] = {}
    try:
        codes = {
            f"c{i}": code_of(data[name], encoder, _distinct)
            for i, (name, encoder) in enumerate(zip(names, encoders, strict=True))
        }
        if tally.cap is not None:
            person_columns = _person_columns(data[tally.cap.column], tally.cap.column)
    except NotComputableError:
        return False
    if not codes:  # a SELECT needs at least one column
        codes = {"c": ibis.literal(0, "int64")}
    columns = [f"c{names.index(name)}" for name in tally.names]
    code_table = data.select(**codes, **person_columns)
    is_good = ibis.literal(True)
    if columns:
        is_good = ibis.and_(*(code_table[column] >= 0 for column in columns))
    code_table = code_table.mutate(**{_GOOD: is_good})
    with _snapshot(code_table) as (table, answer_sets):
        if answer_sets is None:
            if tally.cap is not None or 1 + len(columns) + len(tally.tables) > MAX_SELECTS:
                return False
            _count_in_one_statement(tally, table, columns)
            if monitor is not None:
                monitor(1.0, COUNTING_TEXT)
            return True
        if tally.cap is not None:
            if _has_numbers_as_text(table):
                return False
            table = _apply_person_cap(tally, table, names)
        _count_tables(tally, table, columns, monitor, answer_sets)
    return True


def _count_in_one_statement(tally: Any, table: Any, columns: Sequence[str]) -> None:
    """Count all requested tables with one SQL statement and add the counts to a tally.

    Used without a temporary table: one statement reads the same rows for all tables, even if the
    database table changes meanwhile.
    """
    import ibis

    weight = columns[-1] if tally.weighted else None
    unit = ibis.literal(1, "int64")
    rows = (
        unit
        if weight is None
        else ibis.ifelse(table[weight] < 0, unit, table[weight]).cast("int64")
    )
    table = table.mutate(**{_ROWS: rows})
    good, parts = table.filter(table[_GOOD]), list[Any]()

    def add_part(subset: Any, cell: Any) -> None:
        """Add a SELECT to the statement: the sum of `_ROWS` over `subset` for each value of `cell`.

        Its result rows have the position of the SELECT in the column "part".
        """
        cells = subset.group_by(cell=cell.cast("int64")).aggregate(**{_ROWS: _total(subset[_ROWS])})
        parts.append(
            cells.select(
                part=ibis.literal(len(parts), "int32"), cell=cells["cell"], **{_ROWS: cells[_ROWS]}
            )
        )

    add_part(table, table[_GOOD].ifelse(1, 0))
    for column in columns:
        refused_rows = table.filter(table[column] < 0)
        add_part(refused_rows, refused_rows[column])
    sets = [names for names in tally.tables if names]
    column_of = dict(zip(tally.names, columns, strict=True))
    for names in sets:
        cell = good[column_of[names[0]]].cast("int64")
        for name in names[1:]:
            cell = cell * tally.schema[name].size + good[column_of[name]]
        add_part(good, cell)
    if weight is not None:
        add_part(good.mutate(**{_ROWS: unit}), (good[weight] >= LARGE_COUNT).ifelse(1, 0))
    answer = _fetched(ibis.union(*parts))
    part, cell, row_sums = (
        np.asarray(answer[name]).astype(np.int64) for name in ("part", "cell", _ROWS)
    )
    tally.records += int(row_sums[(part == 0) & (cell == 1)].sum())
    tally.rows_refused += int(row_sums[(part == 0) & (cell == 0)].sum())
    if weight is not None:
        tally.small_counts += int(row_sums[(part == len(parts) - 1) & (cell == 0)].sum())
        tally.large_counts += int(row_sums[(part == len(parts) - 1) & (cell == 1)].sum())
    for number, name in enumerate(tally.names, 1):
        refused = dict(
            zip(cell[part == number].tolist(), row_sums[part == number].tolist(), strict=True)
        )
        if NEW_VALUE_CODE in refused:
            raise DataError(TABLE_CHANGED)
        for code in sorted(refused, reverse=True):
            if refused[code]:
                note(tally.refused, name, REASONS[-1 - code], refused[code])
    if tally.rows_refused and not tally.drop:
        return
    for number, names in enumerate(sets, 1 + len(columns)):
        tally.tables[names].reshape(-1)[cell[part == number]] += row_sums[part == number]


def _has_numbers_as_text(table: Any) -> bool:
    """Return whether an identifier is a text such as "7.0" or "1.2E+11".

    `contribution_bounding` rewrites or refuses such identifiers, so the rows must be fetched.
    """
    if not table[_KEY].type().is_string():
        return False
    answer = _fetched(
        table.aggregate(rows=_total(table[_KEY].re_search(HEX_NUMBER_PATTERN).ifelse(1, 0)))
    )
    return bool(answer["rows"][0].as_py())


def _count_tables(
    tally: Any,
    table: Any,
    columns: Sequence[str],
    monitor: ProgressMonitor | None,
    answer_sets: Callable[..., Iterator[_CellCounts]],
) -> None:
    """Count the requested tables from a snapshot of the cell codes and add them to a tally.

    Parameters
    ----------
    table : table of cell codes that does not change.
    columns : columns of the table, one per name of the tally.
    answer_sets : function that runs one query for several tables: `_one_by_one` for a temporary
        table, `_grouping_sets` for a cached one.
    """
    # a query to a temporary table is quick, because the table contains the computed cell codes
    is_quick = answer_sets is _one_by_one
    weight = columns[-1] if tally.weighted else None
    counted = _add_refused(tally, table, columns, weight)
    good = table.filter(table[_GOOD]) if tally.rows_refused else table
    if tally.rows_refused and not tally.drop:
        return
    column_of = dict(zip(tally.names, columns, strict=True))
    sets = [names for names in tally.tables if names]
    before = {names: int(tally.tables[names].sum()) for names in sets}
    n_counted = 0
    batch_size = MAX_TABLES_PER_QUERY
    if is_quick and monitor is not None:
        # the time of the first query determines the size of the next one
        batch_size = min(MAX_TABLES_OF_FIRST_QUERY, MAX_TABLES_PER_QUERY)
    while batch := sets[n_counted : n_counted + batch_size]:
        reports_before = monitor.n_reports if monitor is not None else 0
        requests = [(names, [column_of[name] for name in names]) for names in batch]
        for names, cells, counts in answer_sets(tally.schema, good, requests, weight, counted):
            tally.tables[names].reshape(-1)[cells] += counts
        for names in batch:
            if int(tally.tables[names].sum()) - before[names] != counted:
                raise DataError(TABLE_CHANGED)
        n_counted += len(batch)
        if monitor is not None:
            monitor(n_counted / len(sets), COUNTING_TEXT)
            if is_quick:  # for other backends smaller batches mean more scans
                batch_size = _next_batch_size(batch_size, monitor.n_reports - reports_before)


def _next_batch_size(batch_size: int, n_reports: int) -> int:
    """Return how many tables the next query counts, so that each takes a few progress reports.

    Parameters
    ----------
    batch_size : number of tables of the last query.
    n_reports : how often progress was reported, at regular intervals, during the last query.
    """
    if n_reports > MAX_REPORTS_PER_QUERY:
        return max(1, batch_size // 2)
    if 2 * n_reports < MAX_REPORTS_PER_QUERY:
        return min(MAX_TABLES_PER_QUERY, 2 * batch_size)
    return batch_size


def _add_refused(tally: Any, table: Any, columns: Sequence[str], weight: str | None) -> int:
    """Add the numbers of counted and of refused records to the tally; return the first number.

    A row with an invalid value in the count column is one refused record.
    """
    import ibis

    unit = ibis.literal(1, "int64")
    rows = unit if weight is None else ibis.ifelse(table[weight] < 0, unit, table[weight])
    good = table[_GOOD]
    totals = {"good": _total(ibis.ifelse(good, rows, 0)), "bad": _total(ibis.ifelse(good, 0, rows))}
    if weight is not None:
        totals["small"] = _total((good & (table[weight] < LARGE_COUNT)).ifelse(1, 0))
        totals["large"] = _total((good & (table[weight] >= LARGE_COUNT)).ifelse(1, 0))
    for column, reason in itertools.product(columns, range(len(REASONS))):
        totals[f"{column}_{reason}"] = _total(ibis.ifelse(table[column] == -1 - reason, rows, 0))
    totals["changed"] = _changed_rows(table, columns)
    answers = _fetch_totals(table, totals)
    if answers["changed"]:
        raise DataError(TABLE_CHANGED)
    tally.records += answers["good"]
    tally.rows_refused += answers["bad"]
    tally.small_counts += answers.get("small", 0)
    tally.large_counts += answers.get("large", 0)
    for name, column in zip(tally.names, columns, strict=True):
        for reason, text in enumerate(REASONS):
            if number := answers[f"{column}_{reason}"]:
                note(tally.refused, name, text, number)
    return answers["good"]


def _changed_rows(table: Any, columns: Sequence[str]) -> Any:
    """Return an expression for the number of rows with the code `NEW_VALUE_CODE` in a column.

    A value of such a row appeared after the distinct values of its column were read. The row has
    no valid code, so the caller refuses to count.
    """
    import ibis

    return (
        _total(ibis.or_(*(table[column] == NEW_VALUE_CODE for column in columns)).ifelse(1, 0))
        if columns
        else ibis.literal(0)
    )


def _fetch_totals(table: Any, totals: Mapping[str, Any]) -> dict[str, int]:
    """Return the values of aggregates of a table, such as sums; keys are names of the aggregates."""
    values_by_name: dict[str, int] = {}
    for start in range(0, len(totals), MAX_RESULT_COLUMNS):
        row = _fetched(
            table.aggregate(**dict(list(totals.items())[start : start + MAX_RESULT_COLUMNS]))
        )
        values_by_name |= {name: int(cells[0]) for name, cells in row.to_pydict().items()}
    return values_by_name


def _total(values: Any) -> Any:
    return values.cast("int64").sum().fill_null(0).cast("int64")


def _one_by_one(
    schema: Schema,
    table: Any,
    requests: Sequence[_TableRequest],
    weight: str | None,
    n_records: int,
) -> Iterator[_CellCounts]:
    """Yield the non-empty cells of several tables, from one statement with a GROUP BY per table.

    A result row has two integers only, so that little is transferred: the number of a non-empty
    cell, where cells are numbered consecutively over all tables, and its count.
    """
    backend = table.get_backend()
    inner = without_values(lambda: backend.compile(table), DATABASE_SUBJECT)
    rows, statements = "COUNT(*)" if weight is None else f"SUM({weight})", []
    starts = list(itertools.accumulate((schema.cells(names) for names, _ in requests), initial=0))
    types = {"cell": _integer_type(starts[-1]), "counted": _integer_type(n_records)}
    for i, (names, columns) in enumerate(requests):
        cell = f"CAST({columns[0]} AS BIGINT)"
        for name, column in zip(names[1:], columns[1:], strict=True):
            cell = f"({cell} * {schema[name].size} + {column})"
        listed = ", ".join(columns)
        statements.append(
            f"SELECT CAST({cell} + {starts[i]} AS {SQL_TYPES[types['cell']]}) AS cell, counted FROM"
            f" (SELECT {listed}, CAST({rows} AS {SQL_TYPES[types['counted']]}) AS counted FROM"
            f" ({inner}) AS good{i} GROUP BY {listed}) AS g{i}"
        )
    answer = _run_statement(backend, " UNION ALL ".join(statements), types)
    cells, counts = np.asarray(answer["cell"]).astype(np.int64), np.asarray(answer["counted"])
    for (names, _), (low, high) in zip(requests, itertools.pairwise(starts), strict=True):
        in_table = (low <= cells) & (cells < high)
        yield names, cells[in_table] - low, counts[in_table]


def _integer_type(largest: int) -> str:
    """Return an integer type for numbers from 0 to `largest`."""
    return "int32" if largest < 2**31 else "int64"


def _grouping_sets(
    schema: Schema, table: Any, requests: Sequence[_TableRequest], weight: str | None, _counted: int
) -> Iterator[_CellCounts]:
    """Yield the non-empty cells of several tables, from one scan by GROUPING SETS if supported.

    One scan is used because, without a temporary table, each scan computes the cell codes again.
    """
    backend = table.get_backend()
    if backend.name not in GROUPING_SETS_BACKENDS or len(requests) == 1:
        for names, columns in requests:
            rows = table.count() if weight is None else table[weight].sum()
            answer = _fetched(table.group_by(columns).aggregate(**{_ROWS: rows.cast("int64")}))
            yield names, _flat_cells(schema, answer, names, columns), np.asarray(answer[_ROWS])
        return
    used = sorted({column for _, columns in requests for column in columns})
    inner = without_values(
        lambda: backend.compile(table.select(*{*used, *([weight] if weight else [])})),
        DATABASE_SUBJECT,
    )
    groups = ", ".join(f"({', '.join(columns)})" for _, columns in requests)
    rows = "COUNT(*)" if weight is None else f"SUM({weight})"
    answer = _run_statement(
        backend,
        f"SELECT {', '.join(used)}, CAST({rows} AS BIGINT) AS counted FROM ({inner}) AS good "
        f"GROUP BY GROUPING SETS ({groups})",
        {**{column: table[column].type() for column in used}, "counted": "int64"},
    )
    # a result row has codes in exactly the columns of its grouping set
    has_code = np.stack([np.asarray(answer[column].is_valid()) for column in used], axis=1)
    for names, columns in requests:
        rows_of_set = answer.filter(
            pa.array((has_code == np.array([column in columns for column in used])).all(axis=1))
        )
        yield (
            names,
            _flat_cells(schema, rows_of_set, names, columns),
            np.asarray(rows_of_set["counted"]),
        )


def _flat_cells(
    schema: Schema, answer: pa.Table, names: Names, columns: Sequence[str]
) -> np.ndarray:
    codes = tuple(np.asarray(answer[column]).astype(np.int64) for column in columns)
    return np.asarray(np.ravel_multi_index(codes, schema.sizes(names)))


def _apply_person_cap(tally: Any, table: Any, names: Sequence[str]) -> Any:
    """Return the rows of persons with at most k rows; fetch the rows of all other persons.

    The fetched rows are added to the `PersonCap` of the tally, which selects k rows per person, and
    the selected rows to its tables. Rows without a person are added to its refused rows.
    """
    import ibis

    cap, with_person = tally.cap, table.filter(table[_PERSON].notnull())
    # each row with the number of rows of its person
    sized = with_person.mutate(**{_ROWS: ibis._.count().over(ibis.window(group_by=_KEY))})
    within_cap = sized.filter(sized[_ROWS] <= cap.rows)
    over_cap = sized.filter(sized[_ROWS] > cap.rows).drop(_ROWS, _KEY)
    without_person = table[_PERSON].isnull()
    totals = {
        "without_person": _total(ibis.ifelse(without_person, 1, 0)),
        "people": table[_KEY].nunique(where=~without_person),
    }
    totals["changed"] = _changed_rows(table, [f"c{i}" for i in range(len(names))])
    answers = {
        name: values[0] for name, values in _fetched(table.aggregate(**totals)).to_pydict().items()
    }
    if answers["changed"]:
        raise DataError(TABLE_CHANGED)
    is_spark = is_spark_table(over_cap)
    for batch in _fetched(over_cap).to_batches() if is_spark else _batches(over_cap):
        cap.take(
            batch.column(_PERSON), [np.asarray(batch.column(f"c{i}")) for i in range(len(names))]
        )
    if answers["without_person"]:
        note(tally.refused, cap.column, NO_PERSON, answers["without_person"])
        tally.rows_refused += answers["without_person"]
    tally.take_retained(names)
    cap.people_in_database = answers["people"] - cap.people
    return within_cap


def _person_columns(column: Any, name: str) -> dict[str, Any]:
    """Return two columns as Ibis expressions: the person identifier, and its key for GROUP BY.

    The key of a text is its bytes, because a collation may treat different texts as equal.

    Raises
    ------
    NotComputableError
        The identifiers are floats or decimals, or the backend cannot return the bytes of a text.
    DataError
        The column has another type than integer or text.
    """
    kind = column.type()
    if kind.is_string():
        column = column.nullif("")
        return {_PERSON: column, _KEY: as_hex(column)}
    if kind.is_floating() or kind.is_decimal():  # `contribution_bounding` checks for fractions
        raise NotComputableError
    if not kind.is_integer() and not kind.is_null():
        raise DataError(
            f"the person column {name!r} has the type {kind}; it must contain integers or texts."
            " Cast it to text in a view"
        )
    return {_PERSON: column, _KEY: column}


@contextmanager
def _snapshot(table: Any) -> Iterator[tuple[Any, Callable[..., Iterator[_CellCounts]] | None]]:
    """Yield a snapshot of a table of cell codes, and the function that counts tables in it.

    The snapshot is a temporary table, or a cached table on Spark. If the database allows neither,
    yield the table itself and None.
    """
    import ibis

    backend, name = table.get_backend(), ibis.util.gen_name("counted")
    if is_spark_table(table) and backend.name in TEMPORARY_TABLE_BACKENDS:
        cached = without_values(table.cache, DATABASE_SUBJECT, describe_error)
        try:
            yield cached, _grouping_sets
        finally:
            with suppress(Exception):  # the end of the session drops it, too
                cached.release()
        return
    if not _create_temporary_table(backend, name, table):
        yield table, None
        return
    try:
        snapshot = without_values(
            lambda: backend.sql(f'SELECT * FROM "{name}"', schema=table.schema()),
            DATABASE_SUBJECT,
            describe_error,
        )
        yield snapshot, _one_by_one
    finally:
        with suppress(Exception):  # the end of the connection drops it, too
            backend.raw_sql(f'DROP TABLE "{name}"')


def _create_temporary_table(backend: Any, name: str, table: Any) -> bool:
    """Create a temporary table of cell codes; return whether that succeeded.

    If the database itself fails, the following queries report its error.
    """
    if backend.name not in TEMPORARY_TABLE_BACKENDS:
        return False
    try:
        backend.raw_sql(f'CREATE TEMPORARY TABLE "{name}" AS {backend.compile(table)}')
    except Exception:
        return False
    return True


def some_values(data: Any, names: Sequence[str], most: int) -> Iterator[tuple[str, list[Any]]]:
    """Yield (name, up to `most` + 1 distinct values) of each text or integer column of a table."""
    for name in names:
        kind = data[name].type() if name in data.columns else None
        if kind is not None and (kind.is_string() or kind.is_integer()):
            yield name, _distinct(data[name], most)


def _distinct(column: Any, limit: int) -> list[Any]:
    values = column.name("value").as_table().distinct().limit(limit + 1)
    if column.get_backend().name in UNTYPED_BACKENDS:
        batches = guard_batches(untyped_batches(values, ["value"], limit + 1), DATABASE_SUBJECT)
        return [value for batch in batches for value in _pylist(batch.columns[0])]
    return list(_fetched(values)["value"].to_pylist())


def _pylist(column: pa.Array | list[Any]) -> list[Any]:
    return column if isinstance(column, list) else list(column.to_pylist())


def _run_statement(backend: Any, statement: str, types: Mapping[str, Any]) -> pa.Table:
    """Run an SQL statement and return its result; `types` are the types of its columns.

    Without `types`, Ibis would create a view to infer them.
    """
    return _fetched(
        without_values(
            lambda: backend.sql(statement, schema=dict(types)), DATABASE_SUBJECT, describe_error
        )
    )


def _fetched(expression: Any) -> pa.Table:
    """Run a query and return its result as an Arrow table."""
    execute = (
        partial(spark_answer, expression) if is_spark_table(expression) else expression.to_pyarrow
    )
    answer: pa.Table = without_values(execute, DATABASE_SUBJECT, describe_error)
    return answer


def _batches(expression: Any) -> Iterator[pa.RecordBatch]:
    yield from without_values(expression.to_pyarrow_batches, DATABASE_SUBJECT, describe_error)


def describe_error(error: Exception) -> str:
    """Return a message for a database error by its exception types, or an empty text.

    The text of the exception is not used, because it may contain values of records.
    """
    kinds = " ".join(
        [*(kind.__name__.lower() for kind in type(error).__mro__), spark_conditions(error)]
    )
    for words, text in _ERROR_TEXTS.items():
        if any(word in kinds for word in words):
            return f"{DATABASE_SUBJECT} {text}"
    return ""


SOURCES_VARIABLE = "DP_WORKBENCH_SOURCES"
SECTION_KEYS = {"address": True, "table": True, "database": False}  # key -> is required
_ENVIRONMENT_REFERENCE = re.compile(r"\$\{(\w+)\}")


@dataclass(frozen=True, kw_only=True)
class _Source:
    """Named table of the settings file; its address may contain a secret and is never shown."""

    name: str
    address: str = field(repr=False)
    table: str
    database: str | None = None

    @property
    def what(self) -> str:
        return f"the source {quote_public(self.name)}"

    def connected(self) -> Any:
        """Return an Ibis connection; errors do not show the address."""
        unset = [
            name for name in _ENVIRONMENT_REFERENCE.findall(self.address) if name not in os.environ
        ]
        if unset:
            raise DataError(
                f"{self.what} needs the environment variable {quote_public(unset[0])}, which is"
                " not set; set it and start this program again"
            )
        address = _ENVIRONMENT_REFERENCE.sub(lambda match: os.environ[match[1]], self.address)
        ibis = import_optional("ibis", self.what)
        return without_values(lambda: ibis.connect(address), self.what, describe_error)


def named_sources() -> tuple[str, ...]:
    """Return the names of the sources in the settings file, in its order.

    Empty without a settings file. Raises DataError if the file is malformed.
    """
    return tuple(_settings())


def named_table(name: str) -> Any:
    """Return a named source as an Ibis table with a new connection.

    Raises
    ------
    DataError
        The settings are malformed or do not contain the name, an environment variable of the
        address is not set, or the database or table is not reachable.
    """
    sources = _settings()
    if name not in sources:
        suggestion = (
            near_matches(name, sources)
            if sources
            else f"; set the environment variable {SOURCES_VARIABLE} to the path of a file of"
            " sources"
        )
        raise DataError(
            f"the settings of this machine name no source {quote_public(name)}{suggestion}"
        )
    source = sources[name]
    connection = source.connected()
    return without_values(
        lambda: connection.table(source.table, database=source.database),
        source.what,
        describe_error,
    )


def _settings() -> dict[str, _Source]:
    """Return a mapping from names to sources, read from the settings file; empty without a file."""
    path = os.environ.get(SOURCES_VARIABLE, "").strip()
    if not path:
        return {}
    what = f"the file that {SOURCES_VARIABLE} names"
    sections = without_values(
        lambda: tomllib.loads(Path(path).expanduser().read_text(encoding="utf-8")), what
    )
    sources = {}
    for name, section in sections.items():
        is_malformed = not isinstance(section, dict) or not all(
            isinstance(value, str) for value in section.values()
        )
        if (
            is_malformed
            or section.keys() - SECTION_KEYS
            or any(
                is_required and not section.get(key) for key, is_required in SECTION_KEYS.items()
            )
        ):
            raise DataError(
                f"the section {quote_public(name)} of {what} must hold texts: address, table and,"
                " if needed, database"
            )
        sources[name] = _Source(name=name, **section)
    return sources
