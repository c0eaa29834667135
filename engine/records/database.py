"""Exact counts computed inside a database or by the workers of Dask.

Encoding. `code_of` returns an Ibis expression of the cell codes of one column. These codes equal
the codes of `Encoder.encode`. Numbers are compared with constants that no SQL parser rounds:
integers, fractions as quotients of two integers, and decimals as integers in units of their last
digit. Texts are compared by their bytes, because a collation may treat "f" and "F" as equal. SQL
has no exact comparison for some columns, for example for numbers that are stored as texts. If such
a column has few distinct values, these are fetched and encoded in this process. Otherwise `code_of`
raises `NotComputableError`, and all rows are fetched and counted in this process.

Counting. All queries of one count must read the same rows. Otherwise a row that changes between two
queries could be counted in contradictory cells of two tables. Therefore all queries read a
temporary table of cell codes, or on Spark a cached table. If the database cannot create a temporary
table, a single statement computes all counts. If this statement would have more than `MAX_SELECTS`
SELECTs, all rows are fetched.

Contribution bounding. The rows of persons with more rows than the cap are fetched as cell codes,
and `contribution_bounding` selects the rows that are counted. The rows of all other persons are
counted in the database. This requires several queries, so without a temporary table all rows are
fetched.

Cancellation. While a query runs, a thread reports progress to the listener. If the listener raises
an exception, the query is cancelled and the exception is raised in the calling thread.

Named sources. The environment variable DP_WORKBENCH_SOURCES contains the path of a TOML file with
one section per table. Users select a table by the name of its section and never type a secret:

    [census]
    address = "postgres://reader:${CENSUS_PASSWORD}@db.example.org/census"
    table = "people"
    database = "public"

``address`` is an address for `ibis.connect`. In the address, ``${NAME}`` is replaced by the value
of the environment variable NAME, so the file itself needs no secrets. The value is inserted
unchanged, so a password with / or # must be percent-encoded in the variable. ``database`` is the
schema or catalogue of the table; it is only needed if this is not the default.

Spark. Ibis converts results of Spark through pandas. This turns integer columns with missing values
into floats and so changes large integers. Therefore this module reads the results as Arrow tables.

SQLite. A column may contain values of another type than the declared type: a column of dates or
integers may contain any text. Ibis converts complete columns and fails at the first such value.
This module converts each value separately. A value that cannot be converted to the declared type is
passed unchanged to the encoder.

Dask. The workers count each partition of a Dask DataFrame, and the counts are added.
"""

from __future__ import annotations

import datetime
import itertools
import math
import os
import re
import sys
import threading
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import date, timedelta
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from functools import cache, partial
from itertools import islice
from operator import add
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from engine._format import near_matches, quote_public
from engine.errors import DataError, EngineError
from engine.progress import Listener, Progress, check_callback
from engine.records.batches import (
    Batch,
    check_columns,
    guard_batches,
    import_optional,
    without_values,
)
from engine.records.contribution_bounding import NO_PERSON
from engine.records.counts import LARGE_COUNT, Counts, Names, note
from engine.records.encoding import (
    FRACTION,
    MISSING,
    OUTSIDE,
    REASONS,
    UNSUPPORTED,
    Encoder,
    is_scalar,
    reason_of,
)
from engine.workload import Schema
from engine.workload.calendar import MAX_YEAR, read_period

# backends whose columns may contain values of another type than the declared type
UNTYPED_BACKENDS = ("sqlite",)
_FLOAT_DIGITS = 15  # significant digits of a float as text in SQLite


def untyped_batches(table: Any, names: Sequence[str], rows: int) -> Iterator[Batch]:
    """Yield the named columns of an Ibis table in SQLite in batches of at most ``rows`` rows."""
    backend = table.get_backend()
    kinds = [table[name].type() for name in names]
    connection = backend.con
    positions = [table.columns.index(name) for name in names]
    # a table in memory that the expression uses must be copied to the database first
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
    """Return the next ``rows`` rows of a cursor; texts that are not UTF-8 are returned as bytes."""
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
    """Convert the values of a column of SQLite to its declared type.

    The result is an Arrow array, or a list if a value cannot be converted.
    """
    converted = [_as_declared_type(value, kind) for value in values]
    is_dated = kind.is_date() or kind.is_timestamp()
    # Arrow would interpret integers as numbers of days
    if is_dated and any(isinstance(value, (int, float)) for value in converted):
        return converted
    try:
        return pa.array(converted, pa.date32() if is_dated else kind.to_pyarrow())
    except (pa.ArrowException, TypeError, ValueError, OverflowError, NotImplementedError):
        return converted


def _as_declared_type(value: Any, kind: Any) -> Any:
    """Convert a value of SQLite as its column declares; return any other value unchanged.

    In columns of dates and times, a text with a day becomes a date. In columns of booleans,
    integers and decimals, numbers are converted and texts are not. A number with more decimal
    places than its decimal column declares is not rounded.
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
# settings of the session that Ibis changes; they are restored after counting
CHANGED_SETTINGS = ("spark.sql.session.timeZone", "spark.sql.mapKeyDedupPolicy")
MAX_CHAINED_ERRORS = 20  # largest number of causes of an error that are examined
# if a message of Spark contains one of these texts, the session has ended
SHUTDOWN_MESSAGES = ("SparkContext was shut down", "stopped SparkContext")
# if the name of an error condition of Spark contains one of these words, a table is missing or was
# changed
NOT_FOUND_CONDITIONS = ("not_found", "not_exist", "unresolved", "type_mismatch")


def is_spark_frame(data: Any) -> bool:
    """Return whether data is a Spark DataFrame."""
    return type(data).__module__.startswith("pyspark.sql") and hasattr(data, "sparkSession")


def is_spark_table(data: Any) -> bool:
    """Return whether data is an Ibis table with a Spark backend."""
    return hasattr(data, "get_backend") and bool(data.get_backend().name == "pyspark")


@contextmanager
def spark_table(frame: Any, explain: Callable[[Exception], str]) -> Iterator[Any]:
    """Yield a Spark DataFrame as an Ibis table; restore the settings of the session at the end.

    ``explain`` returns the message for an exception; see `without_values`.
    """
    ibis = import_optional("ibis", SPARK_SESSION)
    session = frame.sparkSession
    name = ibis.util.gen_name("records")
    before = without_values(
        lambda: {key: session.conf.get(key, None) for key in CHANGED_SETTINGS},
        SPARK_SESSION,
        explain,
    )
    try:
        yield without_values(lambda: _temporary_view(ibis, frame, name), SPARK_SESSION, explain)
    finally:
        # the session may have ended
        with suppress(Exception):
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
    """Return Spark's names for the errors that caused an exception, in lower case.

    The names are separated by blanks. Unlike messages, they contain no values of records. A session
    that has ended has the name "closed", and a denied access to a file the name "permission". The
    result is "" for exceptions that are not from Spark. While PySpark is loaded and no session is
    active, every AttributeError counts as that of an ended session, because methods of an ended
    session raise it.
    """
    is_from_spark = type(error).__module__.split(".")[0] in ("pyspark", "py4j")
    if not is_from_spark and not (isinstance(error, AttributeError) and "pyspark" in sys.modules):
        return ""
    if import_optional("pyspark.sql", SPARK_SESSION).SparkSession.getActiveSession() is None:
        return "closed"
    conditions: list[str] = []
    cause: Any = getattr(error, "java_exception", error)
    while cause is not None and len(conditions) < MAX_CHAINED_ERRORS:
        name = ""
        # exceptions that are not from Spark have no method getCondition
        with suppress(Exception):
            name = cause.getCondition() or ""
        # an exception of the file system has no error condition of Spark, but the name of its class
        # shows that access to a file was denied
        with suppress(Exception):
            if "AccessControl" in cause.getClass().getName():
                name = "permission"
        with suppress(Exception):
            if any(words in cause.getMessage() for words in SHUTDOWN_MESSAGES):
                name = "closed"
        conditions.append(name.lower())
        cause = cause.getCause() if hasattr(cause, "getCause") else None
    return " ".join(conditions)


def spark_batches(table: Any, names: Sequence[str], rows: int) -> Iterator[Batch]:
    """Yield the named columns of an Ibis table on Spark; one partition at a time is fetched.

    A batch has at most ``rows`` rows.
    """
    backend, types = table.get_backend(), table.schema().to_pyarrow()
    selection = table.select(list(names) or table.columns[:1])
    frame = without_values(lambda: backend.raw_sql(backend.compile(selection)), SPARK_SESSION)
    # Spark returns times with a time zone in local time. Only the schema of Spark shows which
    # columns have a time zone; the schema of Ibis does not.
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


# largest number of branches of a CASE expression, and of distinct values that are fetched
MAX_CASE_BRANCHES = 1_000
# decimals with at most this number of digits, in units of their last digit, fit in 64 bits
MAX_DECIMAL_DIGITS = 18
# backends in which hex(text) returns the bytes of a text in hexadecimal
HEX_BACKENDS = ("duckdb", "pyspark")
# backends in which columns of dates contain only dates
DATE_BACKENDS = ("duckdb", "postgres", "pyspark")
# backends in which timezone('UTC', moment) returns a time in UTC
TIMEZONE_BACKENDS = ("duckdb", "postgres")
# code of a value that appeared in the table after the distinct values of its column were fetched
NEW_VALUE_CODE = -1 - len(REASONS)
_INT64_LIMIT = 2**63


class NotComputableError(Exception):
    """The database cannot compute the cell codes, so the rows must be fetched."""


def code_of(column: Any, encoder: Encoder, distinct: Callable[[Any, int], list[str | None]]) -> Any:
    """Return an Ibis expression of the cell codes of a column.

    Parameters
    ----------
    column : column of an Ibis table.
    encoder : encoder of its attribute.
    distinct : function of a column and a number `limit` that fetches distinct values of the column:
        all of them, or `limit` + 1 if there are more than `limit`. `code_of` calls it if values
        must be encoded in this process.

    Raises
    ------
    NotComputableError
        The backend cannot compute the codes, or the CASE expression would have too many branches.
    """
    import ibis

    if column.get_backend().name in UNTYPED_BACKENDS:
        raise NotComputableError
    code_type = np.dtype(encoder.dtype).name
    if column.type().is_null():
        return _int_literal(encoder.missing).cast(code_type)
    # as decimals, unsigned integers can be compared with negative numbers
    values = column.cast("decimal(20, 0)") if column.type().is_uint64() else column
    value_cases, default_code = _value_cases(values, column.type(), encoder, distinct)
    cases = [(column.isnull(), encoder.missing), *value_cases]
    # 4 branches more than the cells, for example for null, NaN and numbers outside the domain
    if len(cases) > MAX_CASE_BRANCHES + 4:
        raise NotComputableError
    codes = ibis.cases(
        *((condition, _int_literal(code)) for condition, code in cases),
        else_=_int_literal(default_code),
    )
    return codes.cast(code_type)


def _value_cases(
    column: Any, kind: Any, encoder: Encoder, distinct: Callable[[Any, int], list[Any]]
) -> tuple[list[tuple[Any, Any]], Any]:
    """Return the cell codes of the values of a column, as cases of a CASE expression.

    Parameters
    ----------
    column, encoder, distinct : see `code_of`.
    kind : type of the column in the database. ``column`` itself may be cast to another type.

    Returns
    -------
    cases : pairs (condition, code).
    default_code : code if no condition is true.

    Raises
    ------
    NotComputableError
        The backend cannot compute the codes.
    """
    attribute = encoder.attribute
    if attribute.is_dated:
        return _date_cases(column, encoder, distinct)
    if (
        kind.is_temporal()
        or kind.is_interval()
        or kind.is_array()
        or kind.is_struct()
        or kind.is_map()
    ):
        return [], UNSUPPORTED
    outside = OUTSIDE if attribute.other is None else encoder.encode(attribute.other)
    if kind.is_string() and attribute.labels is not None:
        codes_by_text = {"": encoder.missing} | encoder.texts
        codes_by_hex = {text.encode().hex().upper(): code for text, code in codes_by_text.items()}
        return [], _cases_by_text(as_hex(column), codes_by_hex, outside)
    if kind.is_boolean():
        return [(column, encoder.encode(True))], encoder.encode(False)
    if kind.is_integer() and attribute.labels is not None:
        integers = {label: int(label) for label in encoder.texts if _is_integer_label(label)}
        return [(column == number, encoder.encode(number)) for number in integers.values()], outside
    if kind.is_integer():
        return _integer_cases(column, encoder), _default_code(column, encoder)
    if kind.is_floating() and attribute.labels is not None:
        numbers = column.cast("float64")
        label_cases = [
            (numbers == _exact_literal(number), code) for number, code in _numeric_labels(encoder)
        ]
        return [(numbers.isnan(), encoder.missing), *label_cases], outside
    if kind.is_floating():
        numbers = column.cast("float64")
        return _float_cases(numbers, encoder), _default_code(numbers, encoder)
    if kind.is_decimal() and attribute.labels is None and _has_exact_comparison(column):
        return _decimal_cases(column, encoder), _default_code(column, encoder)
    if kind.is_decimal():
        texts = column.cast("string")
        codes = _by_distinct(texts, lambda text: encoder.encode(Decimal(text)), distinct)
        return [], _cases_by_text(texts, codes, NEW_VALUE_CODE)
    if kind.is_string():
        texts = as_hex(column)
        codes = _by_distinct(texts, lambda text: encoder.encode(bytes.fromhex(text)), distinct)
        return [], _cases_by_text(texts, codes, NEW_VALUE_CODE)
    raise NotComputableError


def _integer_cases(column: Any, encoder: Encoder) -> list[tuple[Any, Any]]:
    """Return (condition, code) pairs for a column of integers and an attribute without labels.

    For integers that meet no condition, `_default_code` returns the code.
    """
    missing = [
        int(number)
        for number in encoder.missing_decimals
        if number == number.to_integral_value() and abs(number) < _INT64_LIMIT
    ]
    edges = [Fraction(edge) for edge in encoder.attribute.edges or ()]
    return [
        *((column == number, encoder.missing) for number in missing),
        *_cell_conditions(column, encoder, *_integer_edges(edges)),
    ]


def _float_cases(column: Any, encoder: Encoder) -> list[tuple[Any, Any]]:
    """Return (condition, code) pairs for a column of float64 and an attribute without labels.

    For numbers that meet no condition, `_default_code` returns the code.
    """
    cases = [(column.isnan(), encoder.missing)]
    cases += [
        (column == _exact_literal(number), encoder.missing) for number in encoder.missing_floats
    ]
    if encoder.needs_integers:
        # infinities must get the code of values outside the domain, not that of fractions
        finite = (column > -_exact_literal(2.0**62)) & (column < _exact_literal(2.0**62))
        cases.append((finite & (column.floor() != column), FRACTION))
    edges = [_exact_literal(edge) for edge in encoder.attribute.edges or ()]
    # the largest number in the last bin is the last edge, if there are edges
    return cases + _cell_conditions(column, encoder, edges, edges[-1] if edges else None)


def _date_cases(
    column: Any, encoder: Encoder, distinct: Callable[[Any, int], list[Any]]
) -> tuple[list[tuple[Any, Any]], Any]:
    """Return the cell codes of a column for an attribute of dates, as cases of a CASE expression.

    Returns
    -------
    cases : pairs (condition, code).
    default_code : code if no condition is true.

    Raises
    ------
    NotComputableError
        The backend cannot compute the codes.
    """
    import ibis

    attribute = encoder.attribute
    kind = column.type()
    backend_name = column.get_backend().name
    if kind.is_string():
        texts = as_hex(column)
        codes = _by_distinct(texts, lambda text: encoder.encode(bytes.fromhex(text)), distinct)
        return [], _cases_by_text(texts, codes, NEW_VALUE_CODE)
    if kind.is_integer():
        values = [value for value in _all_distinct(column, distinct) if value is not None]
        return [(column == value, encoder.encode(value)) for value in values], NEW_VALUE_CODE
    if kind.is_boolean():
        return [(column, encoder.encode(True))], encoder.encode(False)
    if not (kind.is_date() or kind.is_timestamp()):
        if kind.is_numeric() or kind.is_binary():
            raise NotComputableError
        return [], UNSUPPORTED
    if backend_name not in DATE_BACKENDS:
        raise NotComputableError
    if kind.is_timestamp() and kind.timezone is not None:
        if backend_name not in TIMEZONE_BACKENDS:
            raise NotComputableError
        # the time in UTC, without a time zone
        column = _functions()["timezone"]("UTC", column)
    # The `cases` compare the date with declared missing days and with the first and last day of the
    # cells. The `cases` come before the computation from year, month and day, because special
    # dates such as infinity have no year.
    literal = ibis.date if kind.is_date() else lambda day: ibis.timestamp(f"{day}T00:00:00")
    first, last = attribute.days(0)[0], attribute.days(attribute.date_cells - 1)[1]
    step = timedelta(days=1)
    cases = [
        ((column >= literal(day)) & (column < literal(day + step)), encoder.missing)
        for day in encoder.missing_days
        if day.year <= MAX_YEAR
    ]
    # missing days after MAX_YEAR are left out of ``cases``
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
    """Fetch all distinct values of a column with the function `distinct` of `code_of`.

    Raises
    ------
    NotComputableError
        The column has more than `MAX_CASE_BRANCHES` distinct values.
    """
    values = distinct(column, MAX_CASE_BRANCHES)
    if len(values) > MAX_CASE_BRANCHES:
        raise NotComputableError
    return values


def _int_literal(code: Any) -> Any:
    import ibis

    return ibis.literal(code, "int64") if isinstance(code, int) else code


def as_hex(column: Any) -> Any:
    """Return an expression of the bytes of each text of a column, in hexadecimal.

    A collation of the database may treat different texts as equal, but never their bytes.

    Raises
    ------
    NotComputableError
        The backend has no function for this that is known to return exact bytes.
    """
    name = column.get_backend().name
    call = _functions()
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
    """Return name -> function that calls the SQL function of this name on Ibis expressions."""
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
    """Return a CASE expression: the code of a text in `codes`, `default_code` for other texts.

    Raises NotComputableError if `codes` has too many texts.
    """
    if len(codes) > MAX_CASE_BRANCHES + 1:
        raise NotComputableError
    return column.cases(
        *((text, _int_literal(code)) for text, code in codes.items()),
        else_=_int_literal(default_code),
    )


def _cell_conditions(
    column: Any, encoder: Encoder, edges: list[Any], largest_inside: Any = None
) -> list[tuple[Any, Any]]:
    """Return (condition, code) pairs for a column of numbers; the first true condition decides.

    The first condition is true for numbers outside the domain. It is left out if the attribute
    counts them in its first or last bin (`clip`). For an attribute with bins, one condition per bin
    except the last follows: whether the number is below the upper edge of the bin. If no condition
    is true, the code is that of `_default_code`.

    Parameters
    ----------
    edges : edges of the bins, in the unit of the column; not used for an attribute without bins.
    largest_inside : largest number in the last bin.
    """
    attribute = encoder.attribute
    if attribute.edges is None:
        return [((column < 0) | (column >= attribute.size), OUTSIDE)]
    outside_cases = (
        [] if attribute.clip else [((column < edges[0]) | (column > largest_inside), OUTSIDE)]
    )
    return [*outside_cases, *((column < edge, cell) for cell, edge in enumerate(edges[1:-1]))]


def _default_code(column: Any, encoder: Encoder) -> Any:
    """Return the code of numbers that meet no condition of `_cell_conditions`.

    This is the code of the last bin. For an attribute without bins, whose values are the codes 0 to
    size - 1, it is the number itself.
    """
    return column.cast("int64") if encoder.attribute.edges is None else encoder.attribute.size - 1


def _integer_edges(edges: Sequence[Fraction]) -> tuple[list[int], int | None]:
    """Replace the edges of bins by integers, so that every integer remains in its bin.

    Returns
    -------
    edges : every edge rounded up, because for integers n < edge is equivalent to n < ceil(edge).
    largest_inside : last edge rounded down; None if there are no edges.

    Raises
    ------
    NotComputableError
        An edge does not fit in 64 bits.
    """
    if any(abs(edge) >= _INT64_LIMIT for edge in edges):
        raise NotComputableError
    return [math.ceil(edge) for edge in edges], math.floor(edges[-1]) if edges else None


def _has_exact_comparison(column: Any) -> bool:
    """Return whether numbers can be compared with a decimal column exactly.

    This is always true for PostgreSQL, whose decimals have arbitrary precision. In other databases
    decimals are compared as 64-bit integers in units of the last digit. This is possible if the
    decimals have at most `MAX_DECIMAL_DIGITS` digits.
    """
    precision = column.type().precision
    return column.get_backend().name == "postgres" or (
        precision is not None and precision <= MAX_DECIMAL_DIGITS
    )


def _decimal_cases(column: Any, encoder: Encoder) -> list[tuple[Any, Any]]:
    """Return (condition, code) pairs for a column of decimals.

    For numbers that meet no condition, `_default_code` returns the code.
    """
    import ibis

    edges, cases = encoder.attribute.edges, []
    # decimals of PostgreSQL can be NaN
    if column.get_backend().name == "postgres":
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
    # The decimals, in units of their last digit, are integers of absolute value below this bound,
    # which fits in 64 bits. Edges beyond the bound can therefore be replaced by the bound.
    bound = Fraction(10**MAX_DECIMAL_DIGITS)
    integer_edges, largest_inside = _integer_edges(
        [max(-bound, min(bound, Fraction(edge) * scale_factor)) for edge in edges]
    )
    return cases + _cell_conditions(
        (column * scale_factor).cast("int64"), encoder, integer_edges, largest_inside
    )


def _missing_decimals(column: Any, encoder: Encoder) -> list[Any]:
    """Return conditions on a column of decimals that are true for declared missing values."""
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
    """Return an expression that equals a float exactly: a quotient of two integers.

    Raises NotComputableError if one of the integers does not fit in 64 bits.
    """
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
    """Return whether a label is the decimal text of a 64-bit integer."""
    # a 64-bit integer has at most 20 characters: a sign and 19 digits
    if not label.removeprefix("-").isdecimal() or not label.isascii() or len(label) > 20:
        return False
    return str(int(label)) == label and -_INT64_LIMIT <= int(label) < _INT64_LIMIT


def _numeric_labels(encoder: Encoder) -> list[tuple[float, int]]:
    """Return pairs (number, code) for an attribute with labels.

    Each label or text for missing values that is a number gives one pair. A text such as "07" is
    left out, because the text of the number 7 is "7".

    Raises
    ------
    NotComputableError
        A text is an infinite number.
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
    """Fetch the distinct texts of a column; return a mapping from each text to ``encode`` of it."""
    return {value: encode(value) for value in _all_distinct(texts, distinct) if value is not None}


# seconds between two progress reports, and between two attempts to cancel
POLL_INTERVAL_S = 0.2
COUNTING_TEXT = "counting in the database"


@contextmanager
def cancel_on_stop(backend: Any, listener: Listener | None) -> Iterator[ProgressMonitor | None]:
    """Report progress during the block; cancel the queries of a database if the listener raises.

    Until the block ends, the listener is called from a separate thread. After a block without an
    exception it is called once more, from the calling thread. An exception of the listener is
    raised in the calling thread, at the next call of the monitor or at the end of the block.

    Yields
    ------
    `ProgressMonitor` to which the block reports its progress; None without a listener.
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
            # after an error of the listener the block fails with the error of a cancelled query,
            # and the error of the listener is raised below in its place
            if monitor.listener_error is None:
                raise
        finally:
            monitor.ended.set()
            thread.join()
    if monitor.listener_error is not None:
        raise monitor.listener_error
    listener(*monitor.latest)


class ProgressMonitor:
    """Reporter that calls a progress listener at regular intervals from a separate thread.

    Calling the monitor with a fraction and a text replaces the content of the following reports. If
    the listener has raised an exception, this call raises the same exception.

    Attributes
    ----------
    latest : fraction and text of the next report.
    n_reports : number of reports so far.
    listener_error : exception that the listener raised; None if it raised none.
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
                # `stop` cancels only a query that is running, so it is called again after every
                # interval
                with suppress(Exception):
                    stop()


@contextmanager
def _cancellation(backend: Any) -> Iterator[Callable[[], object]]:
    """Yield a function that cancels the running queries of the connection.

    On Spark, the function cancels only the queries of this thread. It does nothing if the backend
    does not support cancellation.
    """
    if backend.name == "pyspark":
        context = backend._session.sparkContext
        tag = f"counted-{threading.get_ident()}"
        # if the session is closed, the next query reports it
        with suppress(Exception):
            context.addJobTag(tag)
        try:
            yield lambda: context.cancelJobsWithTag(tag)
        finally:
            with suppress(Exception):
                context.removeJobTag(tag)
    elif backend.name == "postgres":
        yield backend.con.cancel_safe
    else:
        # connections of DuckDB and SQLite have a method `interrupt`
        yield getattr(getattr(backend, "con", None), "interrupt", lambda: None)


SQL_TYPES = {"int32": "INTEGER", "int64": "BIGINT"}
MAX_TABLES_PER_QUERY = 32
MAX_TABLES_OF_FIRST_QUERY = 8
# if progress was reported more often than this during a query, the next query counts fewer tables
MAX_REPORTS_PER_QUERY = 4
MAX_RESULT_COLUMNS = 1_000  # largest number of columns of a result; PostgreSQL allows 1,664
# backends that have temporary tables or, for Spark, cached tables
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
MAX_SELECTS = 400  # largest number of SELECTs in one UNION; SQLite allows 500
# pattern of texts such as "7.0" and "1.2E+11", whose bytes are given in hexadecimal;
# `contribution_bounding` rewrites or refuses such identifiers
HEX_NUMBER_PATTERN = "^(2B|2D)?(3[0-9])+(2E(30)+|((2C|2E)(3[0-9])*)?(45|65)2B(3[0-9])+)$"
_REFUSED_CODES = range(MISSING, MISSING - len(REASONS), -1)
# Names of columns in queries: identifier of the person; key of the person for GROUP BY; number of
# rows or records; whether the row has no refused value.
_PERSON, _KEY, _ROWS, _GOOD = "person", "key", "counted", "good"
# attribute set, and the columns with the cell codes of its attributes
_TableRequest = tuple[Names, list[str]]
# attribute set, indices of cells in the flat table, and the counts of these cells
_CellCounts = tuple[Names, np.ndarray, np.ndarray]


def is_table(data: Any) -> bool:
    """Return whether data is an Ibis table."""
    return type(data).__module__.startswith("ibis.") and hasattr(data, "get_backend")


def count_in_database(tally: Any, data: Any, progress: Progress | None) -> bool:
    """Count an Ibis table in its database.

    Parameters
    ----------
    tally : `_Tally` of `marginals`, to whose tables and numbers of rows the counts are added.

    Returns
    -------
    bool
        True if the rows were counted. False if the database cannot count them; in this case nothing
        was added, and the caller must fetch the rows.
    """
    with cancel_on_stop(data.get_backend(), check_callback(progress)) as monitor:
        return _count_in_database(tally, data, monitor)


def fit_in_database(
    data: Any, encoders: Sequence[Encoder], most: int, progress: Progress | None
) -> list[tuple[dict[int, int], dict[Any, int]]] | None:
    """Count, in the database of a table, how many values of each column fit its encoder.

    Parameters
    ----------
    data : Ibis table.
    encoders : one encoder per column; the name of its attribute is the name of the column.
    most : largest number of refused values that are returned per column.

    Returns
    -------
    None if the database cannot compute the codes, so that the rows must be fetched. Otherwise a
    list of one pair per encoder:

    rows_by_code : code of a reason -> number of refused rows; 0 -> number of rows that fit.
    rows_by_value : refused value -> number of rows, for the most frequent refused values that are
        not missing.
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
                frequent = _run_query(refused_values.order_by(ibis.desc(_ROWS)).limit(most))
                rows_by_value = dict(
                    zip(frequent["value"].to_pylist(), frequent[_ROWS].to_pylist(), strict=True)
                )
            fits.append((rows_by_code, rows_by_value))
            if monitor is not None:
                monitor((i + 1) / len(names), "checking columns and values in the database")
    return fits


def _count_in_database(tally: Any, data: Any, monitor: ProgressMonitor | None) -> bool:
    """Count an Ibis table in its database and report progress to a monitor.

    ``tally`` and the result are those of `count_in_database`.
    """
    import ibis

    encoders = tally.encoders
    if tally.cap is not None:
        # the selection of rows per person depends on all attributes of the schema
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
    # a SELECT needs at least one column
    if not codes:
        codes = {"c": ibis.literal(0, "int64")}
    columns = [f"c{names.index(name)}" for name in tally.names]
    code_table = data.select(**codes, **person_columns)
    is_good = ibis.literal(True)
    if columns:
        is_good = ibis.and_(*(code_table[column] >= 0 for column in columns))
    code_table = code_table.mutate(**{_GOOD: is_good})
    with _snapshot(code_table) as (table, count_sets):
        if count_sets is None:
            # one SELECT for the number of refused records, one per column for the reasons, and one
            # per table for its cells
            n_selects = 1 + len(columns) + len(tally.tables)
            if tally.cap is not None or n_selects > MAX_SELECTS:
                return False
            _count_in_one_statement(tally, table, columns)
            if monitor is not None:
                monitor(1.0, COUNTING_TEXT)
            return True
        if tally.cap is not None:
            if _has_numbers_as_text(table):
                return False
            table = _apply_person_cap(tally, table, names)
        _count_tables(tally, table, columns, monitor, count_sets)
    return True


def _count_in_one_statement(tally: Any, table: Any, columns: Sequence[str]) -> None:
    """Count all requested tables with one SQL statement and add the counts to ``tally``.

    This function is used if there is no temporary table. One statement reads the same rows for all
    tables, even if the database table changes while they are counted.
    """
    import ibis

    weight = columns[-1] if tally.count_column is not None else None
    unit = ibis.literal(1, "int64")
    rows = (
        unit
        if weight is None
        else ibis.ifelse(table[weight] < 0, unit, table[weight]).cast("int64")
    )
    table = table.mutate(**{_ROWS: rows})
    good, parts = table.filter(table[_GOOD]), list[Any]()

    def add_part(subset: Any, cell: Any) -> None:
        """Add a SELECT that sums the column `_ROWS` of ``subset``, grouped by ``cell``.

        In the result of the statement, the column "part" contains the index of the SELECT.
        """
        cells = subset.group_by(cell=cell.cast("int64")).aggregate(**{_ROWS: _total(subset[_ROWS])})
        parts.append(
            cells.select(
                part=ibis.literal(len(parts), "int32"), cell=cells["cell"], **{_ROWS: cells[_ROWS]}
            )
        )

    # SELECT 0: number of counted records (cell 1) and of refused records (cell 0)
    add_part(table, table[_GOOD].ifelse(1, 0))
    # one SELECT per column: number of refused records for each code of a reason
    for column in columns:
        refused_rows = table.filter(table[column] < 0)
        add_part(refused_rows, refused_rows[column])
    sets = [names for names in tally.tables if names]
    column_of = dict(zip(tally.names, columns, strict=True))
    # one SELECT per requested table: number of records in each cell
    for names in sets:
        cell = good[column_of[names[0]]].cast("int64")
        for name in names[1:]:
            cell = cell * tally.schema[name].size + good[column_of[name]]
        add_part(good, cell)
    # last SELECT: number of rows whose count is less than LARGE_COUNT (cell 0), and of other rows
    if weight is not None:
        add_part(good.mutate(**{_ROWS: unit}), (good[weight] >= LARGE_COUNT).ifelse(1, 0))
    answer = _run_query(ibis.union(*parts))
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
                note(tally.refused, name, reason_of(code), refused[code])
    if tally.rows_refused and not tally.drop:
        return
    for number, names in enumerate(sets, 1 + len(columns)):
        tally.tables[names].reshape(-1)[cell[part == number]] += row_sums[part == number]


def _has_numbers_as_text(table: Any) -> bool:
    """Return whether some person identifier is a text such as "7.0" or "1.2E+11".

    `contribution_bounding` rewrites or refuses such identifiers, so the rows must be fetched.
    """
    if not table[_KEY].type().is_string():
        return False
    answer = _run_query(
        table.aggregate(rows=_total(table[_KEY].re_search(HEX_NUMBER_PATTERN).ifelse(1, 0)))
    )
    return bool(answer["rows"][0].as_py())


def _count_tables(
    tally: Any,
    table: Any,
    columns: Sequence[str],
    monitor: ProgressMonitor | None,
    count_sets: Callable[..., Iterator[_CellCounts]],
) -> None:
    """Count the requested tables from a snapshot of the cell codes and add the counts to a tally.

    Parameters
    ----------
    tally : `_Tally` of `marginals`.
    table : snapshot of the cell codes, which does not change.
    columns : columns of the snapshot, one per name of the tally.
    count_sets : function that counts several tables with one query: `_union_all` if the snapshot
        is a temporary table, `_grouping_sets` if it is a cached table of Spark.
    """
    # a temporary table contains the cell codes, so its queries are quick; each query of a cached
    # Spark table may compute the cell codes again
    is_quick = count_sets is _union_all
    weight = columns[-1] if tally.count_column is not None else None
    n_records = _add_refused(tally, table, columns, weight)
    if tally.rows_refused and not tally.drop:
        return
    accepted = table.filter(table[_GOOD]) if tally.rows_refused else table
    column_of = dict(zip(tally.names, columns, strict=True))
    sets = [names for names in tally.tables if names]
    sums_before = {names: int(tally.tables[names].sum()) for names in sets}
    n_counted = 0
    batch_size = MAX_TABLES_PER_QUERY
    if is_quick and monitor is not None:
        # The first query counts few tables.  Progress is reported at regular intervals, so the number
        # of reports during a query measures its time and determines the next batch size.
        batch_size = min(MAX_TABLES_OF_FIRST_QUERY, MAX_TABLES_PER_QUERY)
    while batch := sets[n_counted : n_counted + batch_size]:
        reports_before = monitor.n_reports if monitor is not None else 0
        requests = [(names, [column_of[name] for name in names]) for names in batch]
        for names, cells, counts in count_sets(tally.schema, accepted, requests, weight, n_records):
            tally.tables[names].reshape(-1)[cells] += counts
        for names in batch:
            if int(tally.tables[names].sum()) - sums_before[names] != n_records:
                raise DataError(TABLE_CHANGED)
        n_counted += len(batch)
        if monitor is not None:
            monitor(n_counted / len(sets), COUNTING_TEXT)
            # on Spark the batch size is always the largest, because each query may scan all rows
            if is_quick:
                batch_size = _next_batch_size(batch_size, monitor.n_reports - reports_before)


def _next_batch_size(batch_size: int, n_reports: int) -> int:
    """Return how many tables the next query counts.

    The number is chosen such that a few progress reports are made during each query.

    Parameters
    ----------
    batch_size : number of tables that the last query counted.
    n_reports : number of progress reports, at regular intervals, during the last query.
    """
    if n_reports > MAX_REPORTS_PER_QUERY:
        return max(1, batch_size // 2)
    # a query that counts twice as many tables makes about twice as many reports
    if 2 * n_reports < MAX_REPORTS_PER_QUERY:
        return min(MAX_TABLES_PER_QUERY, 2 * batch_size)
    return batch_size


def _add_refused(tally: Any, table: Any, columns: Sequence[str], weight: str | None) -> int:
    """Add the numbers of counted and of refused records to ``tally``, a `_Tally` of `marginals`.

    A row with an invalid value in the count column is one refused record.

    Parameters
    ----------
    weight : name of the count column of ``table``; None without a count column.

    Returns
    -------
    Number of counted records.
    """
    import ibis

    # Without a count column a row is one record; otherwise the count column has the number of
    # records. A negative number in the count column is the code of an invalid count.
    one_record = ibis.literal(1, "int64")
    records = (
        one_record if weight is None else ibis.ifelse(table[weight] < 0, one_record, table[weight])
    )
    good = table[_GOOD]
    totals = {
        "good": _total(ibis.ifelse(good, records, 0)),
        "bad": _total(ibis.ifelse(good, 0, records)),
    }
    if weight is not None:
        totals["small"] = _total((good & (table[weight] < LARGE_COUNT)).ifelse(1, 0))
        totals["large"] = _total((good & (table[weight] >= LARGE_COUNT)).ifelse(1, 0))
    # -1 - i is the code of a value that is refused for the reason REASONS[i]
    for column, reason in itertools.product(columns, range(len(REASONS))):
        totals[f"{column}_{reason}"] = _total(ibis.ifelse(table[column] == -1 - reason, records, 0))
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
    """Return an expression of the number of rows with `NEW_VALUE_CODE` in at least one column.

    Such a row contains a value that appeared after the distinct values of the column were fetched.
    The value has no valid code, so the caller must raise an error.
    """
    import ibis

    return (
        _total(ibis.or_(*(table[column] == NEW_VALUE_CODE for column in columns)).ifelse(1, 0))
        if columns
        else ibis.literal(0)
    )


def _fetch_totals(table: Any, totals: Mapping[str, Any]) -> dict[str, int]:
    """Fetch the values of named aggregates of a table, such as sums."""
    values_by_name: dict[str, int] = {}
    for start in range(0, len(totals), MAX_RESULT_COLUMNS):
        row = _run_query(
            table.aggregate(**dict(list(totals.items())[start : start + MAX_RESULT_COLUMNS]))
        )
        values_by_name |= {name: int(cells[0]) for name, cells in row.to_pydict().items()}
    return values_by_name


def _total(values: Any) -> Any:
    return values.cast("int64").sum().fill_null(0).cast("int64")


def _union_all(
    schema: Schema,
    table: Any,
    requests: Sequence[_TableRequest],
    weight: str | None,
    n_records: int,
) -> Iterator[_CellCounts]:
    """Count several tables with one statement, and yield the non-empty cells of each table.

    The statement has one GROUP BY per table. To transfer little data, a row of its result has only
    two integers: the index of a cell and the count of this cell. The index runs through the cells
    of the first table, then through those of the second table, and so on.

    Parameters
    ----------
    requests : attribute set and columns of each table.
    weight : name of the count column of ``table``; None without a count column.
    n_records : number of counted records, which is at least every count.
    """
    backend = table.get_backend()
    inner = without_values(lambda: backend.compile(table), DATABASE_SUBJECT)
    n_records_sql = "COUNT(*)" if weight is None else f"SUM({weight})"
    statements = []
    # index of the first cell of each table; the last entry is the number of cells of all tables
    starts = list(itertools.accumulate((schema.cells(names) for names, _ in requests), initial=0))
    types = {"cell": _integer_type(starts[-1]), "counted": _integer_type(n_records)}
    for i, (names, columns) in enumerate(requests):
        # SQL expression of the index of the cell in row-major order
        cell = f"CAST({columns[0]} AS BIGINT)"
        for name, column in zip(names[1:], columns[1:], strict=True):
            cell = f"({cell} * {schema[name].size} + {column})"
        listed = ", ".join(columns)
        statements.append(
            f"SELECT CAST({cell} + {starts[i]} AS {SQL_TYPES[types['cell']]}) AS cell, counted FROM"
            f" (SELECT {listed}, CAST({n_records_sql} AS {SQL_TYPES[types['counted']]}) AS counted "
            f"FROM ({inner}) AS good{i} GROUP BY {listed}) AS g{i}"
        )
    answer = _run_statement(backend, " UNION ALL ".join(statements), types)
    cells, counts = np.asarray(answer["cell"]).astype(np.int64), np.asarray(answer["counted"])
    for (names, _), (low, high) in zip(requests, itertools.pairwise(starts), strict=True):
        in_table = (low <= cells) & (cells < high)
        yield names, cells[in_table] - low, counts[in_table]


def _integer_type(largest: int) -> str:
    """Return "int32" if it can represent the numbers from 0 to `largest`, otherwise "int64"."""
    return "int32" if largest < 2**31 else "int64"


def _grouping_sets(
    schema: Schema,
    table: Any,
    requests: Sequence[_TableRequest],
    weight: str | None,
    _n_records: int,
) -> Iterator[_CellCounts]:
    """Count several tables in few scans, and yield the non-empty cells of each table.

    Each scan may compute the cell codes again. If the backend supports GROUPING SETS, one query
    therefore counts all tables in one scan. Otherwise there is one query per table.

    Parameters
    ----------
    requests : attribute set and columns of each table.
    weight : name of the count column of ``table``; None without a count column.
    _n_records : not used; `_union_all` has the same parameters.
    """
    backend = table.get_backend()
    if backend.name not in GROUPING_SETS_BACKENDS or len(requests) == 1:
        for names, columns in requests:
            total = table.count() if weight is None else table[weight].sum()
            answer = _run_query(table.group_by(columns).aggregate(**{_ROWS: total.cast("int64")}))
            yield names, _flat_cells(schema, answer, names, columns), np.asarray(answer[_ROWS])
        return
    used = sorted({column for _, columns in requests for column in columns})
    inner = without_values(
        lambda: backend.compile(table.select(*{*used, *([weight] if weight else [])})),
        DATABASE_SUBJECT,
    )
    groups = ", ".join(f"({', '.join(columns)})" for _, columns in requests)
    n_records_sql = "COUNT(*)" if weight is None else f"SUM({weight})"
    answer = _run_statement(
        backend,
        f"SELECT {', '.join(used)}, CAST({n_records_sql} AS BIGINT) AS counted "
        f"FROM ({inner}) AS good "
        f"GROUP BY GROUPING SETS ({groups})",
        {**{column: table[column].type() for column in used}, "counted": "int64"},
    )
    # A row of the result belongs to one table. It has codes in the columns of this table, and nulls
    # in all other columns.
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
    """Count k rows of each person with more than k rows; leave other persons to the caller.

    The rows of persons with more than k rows are fetched, and ``tally.cap`` selects k rows of each
    person, which are added to the tables of ``tally`` (a `_Tally` of `marginals`). The number of
    rows without a person is added to the refused rows of ``tally``.

    Returns
    -------
    Table of the rows of persons with at most k rows, which the caller counts in the database.
    """
    import ibis

    cap = tally.cap
    with_person = table.filter(table[_PERSON].notnull())
    # add a column with the number of rows of the person
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
        name: values[0]
        for name, values in _run_query(table.aggregate(**totals)).to_pydict().items()
    }
    if answers["changed"]:
        raise DataError(TABLE_CHANGED)
    is_spark = is_spark_table(over_cap)
    for batch in _run_query(over_cap).to_batches() if is_spark else _batches(over_cap):
        cap.take(
            batch.column(_PERSON), [np.asarray(batch.column(f"c{i}")) for i in range(len(names))]
        )
    if answers["without_person"]:
        note(tally.refused, cap.column, NO_PERSON, answers["without_person"])
        tally.rows_refused += answers["without_person"]
    tally.take_retained(names)
    # up to here `cap.people` counts only the persons whose rows the cap limits
    cap.people_in_database = answers["people"] - cap.people
    return within_cap


def _person_columns(column: Any, name: str) -> dict[str, Any]:
    """Return two Ibis expressions by name: the person identifier, and its key for GROUP BY.

    The key of a text consists of its bytes, because a collation may treat different texts as equal.

    Raises
    ------
    NotComputableError
        The identifiers are floats or decimals, or the backend cannot return the bytes of a text.
    DataError
        The column contains neither numbers nor texts.
    """
    kind = column.type()
    if kind.is_string():
        column = column.nullif("")
        return {_PERSON: column, _KEY: as_hex(column)}
    # floats and decimals may have fractions, for which `contribution_bounding` raises an error
    if kind.is_floating() or kind.is_decimal():
        raise NotComputableError
    if not kind.is_integer() and not kind.is_null():
        raise DataError(
            f"the person column {quote_public(name)} has the type {kind}, but must contain"
            " integers or texts. Cast it to text in a view"
        )
    return {_PERSON: column, _KEY: column}


@contextmanager
def _snapshot(table: Any) -> Iterator[tuple[Any, Callable[..., Iterator[_CellCounts]] | None]]:
    """Yield a snapshot of a table of cell codes, which does not change while tables are counted.

    Yields
    ------
    snapshot : temporary table, or on Spark a cached table; the table itself if the database cannot
        create a snapshot.
    count_sets : function that counts tables from the snapshot; None if there is no snapshot.
    """
    import ibis

    backend = table.get_backend()
    name = ibis.util.gen_name("counted")
    if is_spark_table(table) and backend.name in TEMPORARY_TABLE_BACKENDS:
        cached = without_values(table.cache, DATABASE_SUBJECT, describe_error)
        try:
            yield cached, _grouping_sets
        finally:
            # if this fails, the table is removed at the end of the session
            with suppress(Exception):
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
        yield snapshot, _union_all
    finally:
        # if this fails, the table is removed at the end of the connection
        with suppress(Exception):
            backend.raw_sql(f'DROP TABLE "{name}"')


def _create_temporary_table(backend: Any, name: str, table: Any) -> bool:
    """Create a temporary table from a query; return False if the database cannot create it.

    If the database does not work at all, the next query raises the error.
    """
    if backend.name not in TEMPORARY_TABLE_BACKENDS:
        return False
    try:
        backend.raw_sql(f'CREATE TEMPORARY TABLE "{name}" AS {backend.compile(table)}')
    except Exception:
        return False
    return True


def some_values(data: Any, names: Sequence[str], most: int) -> Iterator[tuple[str, list[Any]]]:
    """Yield (name, distinct values) for each named column of texts or integers.

    If a column has more than `most` distinct values, only `most` + 1 of them are fetched. Names of
    other columns, and names that the table does not have, are skipped.
    """
    for name in names:
        kind = data[name].type() if name in data.columns else None
        if kind is not None and (kind.is_string() or kind.is_integer()):
            yield name, _distinct(data[name], most)


def _distinct(column: Any, limit: int) -> list[Any]:
    values = column.name("value").as_table().distinct().limit(limit + 1)
    if column.get_backend().name in UNTYPED_BACKENDS:
        batches = guard_batches(untyped_batches(values, ["value"], limit + 1), DATABASE_SUBJECT)
        return [value for batch in batches for value in _pylist(batch.columns[0])]
    return list(_run_query(values)["value"].to_pylist())


def _pylist(column: pa.Array | list[Any]) -> list[Any]:
    return column if isinstance(column, list) else list(column.to_pylist())


def _run_statement(backend: Any, statement: str, types: Mapping[str, Any]) -> pa.Table:
    """Run an SQL statement and return its result.

    ``types`` maps the columns of the result to their types. Without it, Ibis would create a view in
    the database to infer them.
    """
    return _run_query(
        without_values(
            lambda: backend.sql(statement, schema=dict(types)), DATABASE_SUBJECT, describe_error
        )
    )


def _run_query(expression: Any) -> pa.Table:
    """Run a query and return its result as an Arrow table."""
    execute = (
        partial(spark_answer, expression) if is_spark_table(expression) else expression.to_pyarrow
    )
    answer: pa.Table = without_values(execute, DATABASE_SUBJECT, describe_error)
    return answer


def _batches(expression: Any) -> Iterator[pa.RecordBatch]:
    yield from without_values(expression.to_pyarrow_batches, DATABASE_SUBJECT, describe_error)


def describe_error(error: Exception) -> str:
    """Return a message for an exception of a database; "" if its type is not known.

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
SECTION_KEYS = {"address": True, "table": True, "database": False}  # key -> whether it is required
_ENVIRONMENT_REFERENCE = re.compile(r"\$\{(\w+)\}")


@dataclass(frozen=True, kw_only=True)
class _Source:
    """Named table of the settings file.

    The address may contain a secret, so it is never shown.
    """

    name: str
    address: str = field(repr=False)
    table: str
    database: str | None = None

    @property
    def what(self) -> str:
        return f"the source {quote_public(self.name)}"

    def connected(self) -> Any:
        """Return a new Ibis connection to the database; errors do not show the address."""
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
    """Return the names of the sources in the settings file, in the order of the file.

    The result is empty if `SOURCES_VARIABLE` is not set. Raises DataError if the file is malformed
    or cannot be read.
    """
    return tuple(_settings())


def named_table(name: str) -> Any:
    """Return the table of a named source, as an Ibis table with a new connection.

    Raises
    ------
    DataError
        The settings file cannot be read, is malformed or does not contain the name; an environment
        variable of the address is not set; or the database or the table cannot be reached.
    """
    sources = _settings()
    if name not in sources:
        if sources:
            listed = ", ".join(map(quote_public, sources))
            suggestion = near_matches(name, sources) or f"; choose one of {listed}"
        elif os.environ.get(SOURCES_VARIABLE, "").strip():
            suggestion = f"; add a section for it to the file that {SOURCES_VARIABLE} names"
        else:
            suggestion = f"; set the environment variable {SOURCES_VARIABLE} to the path of a file of sources"
        raise DataError(
            f"the settings of this machine contain no source {quote_public(name)}{suggestion}"
        )
    source = sources[name]
    connection = source.connected()
    return without_values(
        lambda: connection.table(source.table, database=source.database),
        source.what,
        describe_error,
    )


def _settings() -> dict[str, _Source]:
    """Read the settings file; return a mapping from name to source.

    The mapping is empty if `SOURCES_VARIABLE` is not set.
    """
    path = os.environ.get(SOURCES_VARIABLE, "").strip()
    if not path:
        return {}
    what = f"the file that {SOURCES_VARIABLE} names"
    sections = without_values(
        lambda: tomllib.loads(Path(path).expanduser().read_text(encoding="utf-8")), what
    )
    sources = {}
    for name, section in sections.items():
        is_well_formed = (
            isinstance(section, dict)
            and all(isinstance(value, str) for value in section.values())
            and section.keys() <= SECTION_KEYS.keys()
            and all(section.get(key) for key, is_required in SECTION_KEYS.items() if is_required)
        )
        if not is_well_formed:
            raise DataError(
                f"the section {quote_public(name)} of {what} is malformed; give texts for the keys"
                " address, table and, if needed, database, and no other keys"
            )
        sources[name] = _Source(name=name, **section)
    return sources


DASK_FRAME, DASK_COUNTING_TEXT = "the Dask frame", "Counting on the workers"
# Largest number of partitions that are counted at the same time, because memory may hold the tables
# of all of them.
MAX_CONCURRENT_PARTITIONS = 64
# If the name of the type of an exception contains one of these words, the cluster lost its workers.
_LOST_WORKER_ERRORS = ("killed", "cancelled", "commclosed", "timeout", "connection")


def is_dask_frame(data: Any) -> bool:
    """Return whether data is a Dask DataFrame."""
    return (
        hasattr(data, "npartitions") and hasattr(data, "get_partition") and hasattr(data, "dtypes")
    )


def count_partitions(
    data: Any, names: Sequence[str], count: Callable[[Any], Counts], progress: Progress | None
) -> Counts:
    """Count all partitions of a Dask DataFrame and return the sum of their counts.

    The workers send only counts, and no records, to this process.

    Parameters
    ----------
    names : columns that `count` needs.
    count : function that counts one partition, given as a pandas DataFrame.
    progress : function that receives a fraction and a text. Without a cluster, it is called after
        each task; on a cluster, whenever tasks finish and at regular intervals.

    Raises
    ------
    DataError
        A column is missing, a partition cannot be read, the workers were lost, or this library is
        not installed on the workers.
    """
    dask = import_optional("dask", DASK_FRAME)
    check_columns(list(data.columns), names)
    listener = check_callback(progress)
    parts = without_values(lambda: data[list(names)].to_delayed(), DASK_FRAME)
    counts: Counts | None = None
    for start in range(0, len(parts), MAX_CONCURRENT_PARTITIONS):
        stop = min(start + MAX_CONCURRENT_PARTITIONS, len(parts))
        tasks = [dask.delayed(count)(part) for part in parts[start:stop]]
        # counts are added in pairs, so that a worker needs memory for few tables at a time
        sums = tasks
        while len(sums) > 1:
            sums = [
                dask.delayed(add)(*sums[i : i + 2]) if i + 1 < len(sums) else sums[i]
                for i in range(0, len(sums), 2)
            ]
        (total,) = sums
        if listener is None:
            batch_counts = _compute(dask, total, None)
        else:
            report_share = partial(_report_share, listener, start / len(parts), stop / len(parts))
            if (cluster := _cluster_client(dask)) is None:
                batch_counts = _compute(dask, total, partial(_report_task, report_share))
            else:
                batch_counts = _compute_on_cluster(cluster, tasks, total, report_share)
            listener(stop / len(parts), DASK_COUNTING_TEXT)
        counts = batch_counts if counts is None else counts + batch_counts
    # every Dask frame has at least one partition
    assert counts is not None
    return counts


def _compute(dask: Any, task_graph: Any, report_task: Callable[..., None] | None) -> Counts:
    """Compute a task graph with the default scheduler of Dask.

    Without a cluster, ``report_task`` is called after each task. If it raises an exception, the
    computation stops and this exception is raised.
    """
    report_errors: list[Exception] = []

    def after_task(*args: Any) -> None:
        try:
            if report_task is not None:
                report_task(*args)
        except Exception as error:
            report_errors.append(error)
            raise

    try:
        with dask.callbacks.Callback(posttask=after_task):
            counts: Counts = without_values(task_graph.compute, DASK_FRAME, _explain_error)
    except EngineError:
        # `without_values` replaces every exception by an EngineError; an exception that
        # `report_task` raised is passed on unchanged
        if report_errors:
            raise report_errors[0] from None
        raise
    return counts


def _cluster_client(dask: Any) -> Any:
    """Return the client of the cluster that Dask uses by default.

    The result is None if there is no cluster, or if the client is for asynchronous code.
    """
    client = getattr(dask.base.get_scheduler(), "__self__", None)
    return (
        client if hasattr(client, "gather") and not getattr(client, "asynchronous", True) else None
    )


def _compute_on_cluster(
    client: Any, tasks: Sequence[Any], total: Any, report_share: Callable[[float], object]
) -> Counts:
    """Compute on a cluster the task `total`, which adds the results of `tasks`.

    ``report_share`` is called with the fraction of `tasks` that is finished. If it raises an
    exception, all tasks are cancelled and this exception is raised.
    """
    wait: Any = import_optional("distributed", DASK_FRAME).wait

    # The future of each task shows whether the task is finished. Futures of finished tasks are
    # removed from `futures`, so that the cluster can free results that were added to the total.
    *futures, result = without_values(
        lambda: client.compute([*tasks, total]), DASK_FRAME, _explain_error
    )

    def wait_briefly() -> None:
        # cancelled tasks are reported by `result.result` below
        with suppress(TimeoutError, CancelledError):
            wait([*futures, result], timeout=POLL_INTERVAL_S, return_when="FIRST_COMPLETED")

    try:
        while not result.done():
            without_values(wait_briefly, DASK_FRAME, _explain_error)
            futures = [future for future in futures if not future.done()]
            # futures of failed and lost tasks are done too; after a failure `result` is done, and
            # no progress is reported
            if not result.done():
                report_share(1.0 - len(futures) / len(tasks))
        counts: Counts = without_values(result.result, DASK_FRAME, _explain_error)
    except BaseException:
        # the cluster may have ended
        with suppress(Exception):
            client.cancel([*futures, result])
        raise
    return counts


def _report_share(listener: Listener, low: float, high: float, share: float) -> None:
    """Call a progress listener while a batch of tasks is computed.

    Parameters
    ----------
    low, high : fractions of all tasks that are finished when this batch starts and when it ends.
    share : fraction of this batch that is finished.
    """
    listener(low + (high - low) * min(1.0, share), DASK_COUNTING_TEXT)


def _report_task(
    report_share: Callable[[float], object],
    _key: Any,
    _result: Any,
    tasks: Any,
    state: Any,
    _by: Any,
) -> None:
    report_share(len(state["finished"]) / len(tasks))


def _explain_error(error: Exception) -> str:
    """Return a message for an error of a known type; "" for other types.

    The text of the error is not used, because it may contain values of records.
    """
    if isinstance(error, ImportError):
        return (
            "this library, or a library that it needs, is not installed on the Dask workers;"
            " install the same versions on every worker"
        )
    kinds = " ".join(kind.__name__.lower() for kind in type(error).__mro__)
    if any(word in kinds for word in _LOST_WORKER_ERRORS):
        return "the Dask workers were lost before all partitions were counted; count again"
    return ""
