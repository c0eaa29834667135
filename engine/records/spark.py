"""Spark DataFrames as Ibis tables, with results read without pandas.

Ibis converts results of Spark through pandas, which turns integer columns with missing values into
floats and so changes large integers. This module reads results as Arrow tables instead.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Any

import pyarrow as pa

from engine.records.batches import Batch, guard_batches, import_optional, without_values
from engine.records.encoding import is_scalar

SPARK_SESSION = "the Spark session"
# session settings that Ibis changes; they are restored after counting
CHANGED_SETTINGS = ("spark.sql.session.timeZone", "spark.sql.mapKeyDedupPolicy")
MAX_CAUSES = 20  # length of the chain of causes of an error
SHUTDOWN_MESSAGES = (
    "SparkContext was shut down",
    "stopped SparkContext",
)  # the JVM context ends before Python is notified
# parts of Spark's documented error conditions
NOT_FOUND = ("not_found", "not_exist", "unresolved", "type_mismatch")


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
        lambda: {key: session.conf.get(key, None) for key in CHANGED_SETTINGS}, SPARK_SESSION, explain
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


def spark_kinds(error: Exception) -> str:
    """Return the Spark error conditions of an exception; unlike messages, they contain no values."""
    if type(error).__module__.split(".")[0] not in ("pyspark", "py4j") and not isinstance(error, AttributeError):
        return ""
    if import_optional("pyspark.sql", SPARK_SESSION).SparkSession.getActiveSession() is None:
        return "closed"
    conditions: list[str] = []
    cause: Any = getattr(error, "java_exception", error)
    while cause is not None and len(conditions) < MAX_CAUSES:
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
    # Ibis maps times with and without a zone to one type; Spark returns zoned times in local time
    zoned = {field.name for field in frame.schema.fields if field.dataType.typeName() == "timestamp"}
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
