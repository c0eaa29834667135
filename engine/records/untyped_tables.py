"""Rows of SQLite tables, whose columns may hold values of any type.

The declared type of a SQLite column is a preference only: a column of dates or integers may hold any
text. Ibis converts complete columns and fails at the first such value. Here every value is converted
by itself, and one that does not have the declared type stays as it is, so that the encoder refuses it
like any other unreadable value.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa

from engine.records.batches import Batch
from engine.workload.calendar import read_period

# backends whose columns may contain values of another type than the declared one
UNTYPED_BACKENDS = ("sqlite",)
_DIGITS = 15  # of a float as text in SQLite


def untyped_batches(table: Any, names: Sequence[str], rows: int) -> Iterator[Batch]:
    """Yield the named columns of an Ibis table of SQLite in batches of at most ``rows`` rows."""
    backend, kinds = table.get_backend(), [table[name].type() for name in names]
    connection, positions = backend.con, [table.columns.index(name) for name in names]
    # tables in memory that the expression uses must be in the database first
    backend._run_pre_execute_hooks(table)
    cursor = backend.raw_sql(backend.compile(table))
    try:
        while chunk := _fetched(connection, cursor, rows):
            columns = (_column([row[i] for row in chunk], kind) for i, kind in zip(positions, kinds, strict=True))
            yield Batch(columns=tuple(columns), rows=len(chunk), fraction=None)
    finally:
        cursor.close()


def _fetched(connection: Any, cursor: Any, rows: int) -> list[tuple[Any, ...]]:
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
    """Return a value in the declared type, or unchanged if it does not have this type."""
    if kind.is_date() or kind.is_timestamp():
        period = read_period(value) if isinstance(value, str) else None
        return value if period is None or period.unit != "day" else period.day
    if not isinstance(value, (int, float)):
        return value
    if kind.is_boolean():
        return bool(value) if value in (0, 1) else value
    if kind.is_integer() and isinstance(value, float) and math.isfinite(value) and value.is_integer():
        return int(value)
    if kind.is_decimal():
        number = Decimal(format(value, f".{_DIGITS}g") if isinstance(value, float) else value)
        try:
            rounded = number.quantize(Decimal(1).scaleb(-(kind.scale or 0)))
        except InvalidOperation:
            return number
        return rounded if rounded == number else number
    return value
