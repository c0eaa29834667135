"""DataFrames of Spark as tables of Ibis, and what Spark answers, without pandas in between.

Ibis brings answers of Spark through pandas, which has no whole numbers beside missing ones: large ones would change.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Any

import pyarrow as pa

from engine.records.batches import Batch, guarded, needed, tried
from engine.records.encoding import is_scalar

WHAT = "the Spark session"
SETTINGS = ("spark.sql.session.timeZone", "spark.sql.mapKeyDedupPolicy")  # that Ibis changes, and that matter not here
MOST_CAUSES = 20  # of an error, each the cause of the one before
ENDED = ("SparkContext was shut down", "stopped SparkContext")  # what is running then fails before Python knows of it
NOT_FOUND = ("not_found", "not_exist", "unresolved", "type_mismatch")  # in conditions of errors, which Spark documents


def is_spark_frame(data: Any) -> bool:
    """Whether data are a DataFrame of Spark."""
    return type(data).__module__.startswith("pyspark.sql") and hasattr(data, "sparkSession")


def is_spark_table(data: Any) -> bool:
    """Whether data are a table of Ibis that Spark holds."""
    return hasattr(data, "get_backend") and bool(data.get_backend().name == "pyspark")


@contextmanager
def spark_table(frame: Any, explain: Callable[[Exception], str]) -> Iterator[Any]:
    """A DataFrame of Spark as a table of Ibis while it is counted; the session is left as it was."""
    ibis, session = needed("ibis", WHAT), frame.sparkSession
    name = ibis.util.gen_name("records")
    before = tried(lambda: {key: session.conf.get(key, None) for key in SETTINGS}, WHAT, explain)
    try:
        yield tried(lambda: _viewed(ibis, frame, name), WHAT, explain)
    finally:
        with suppress(Exception):  # nothing is left of a session that has ended
            session.catalog.dropTempView(name)
            for key, value in before.items():
                session.conf.set(key, value) if value is not None else session.conf.unset(key)


def _viewed(ibis: Any, frame: Any, name: str) -> Any:
    connection = ibis.pyspark.connect(frame.sparkSession)
    frame.createTempView(name)
    return connection.table(name)


def spark_answer(expression: Any) -> pa.Table:
    """What Spark answers to a question, as an Arrow table."""
    backend = expression.get_backend()
    return backend.raw_sql(backend.compile(expression)).toArrow()


def spark_kinds(error: Exception) -> str:
    """What Spark says of an error in names of its own, which hold no values."""
    if type(error).__module__.split(".")[0] not in ("pyspark", "py4j") and not isinstance(error, AttributeError):
        return ""
    if needed("pyspark.sql", WHAT).SparkSession.getActiveSession() is None:
        return "closed"
    found: list[str] = []
    cause: Any = getattr(error, "java_exception", error)
    while cause is not None and len(found) < MOST_CAUSES:
        name = ""
        with suppress(Exception):  # what is not of Spark's own has no condition
            name = cause.getCondition() or ""
        with suppress(Exception):
            if "AccessControl" in cause.getClass().getName():  # of the file system below
                name = "permission"
        with suppress(Exception):
            if any(words in cause.getMessage() for words in ENDED):
                name = "closed"
        found.append(name.lower())
        cause = cause.getCause() if hasattr(cause, "getCause") else None
    return " ".join(found)


def spark_batches(table: Any, names: Sequence[str], rows: int) -> Iterator[Batch]:
    """The rows of a table that Spark holds, a partition at a time."""
    backend, kinds = table.get_backend(), table.schema().to_pyarrow()
    some = table.select(list(names) or table.columns[:1])
    frame = tried(lambda: backend.raw_sql(backend.compile(some)), WHAT)
    # Ibis has one type for times with a zone and without; Spark gives the first in the zone of this machine
    zoned = {field.name for field in frame.schema.fields if field.dataType.typeName() == "timestamp"}
    source = guarded(tried(frame.toLocalIterator, WHAT), WHAT)
    while part := list(islice(source, rows)):
        columns = dict(zip(some.columns, zip(*part, strict=True), strict=True))
        columns |= {name: tuple(map(_in_utc, columns[name])) for name in zoned & columns.keys()}
        arrays = (_array(columns[name], kinds.field(name).type) for name in names)
        yield Batch(columns=tuple(arrays), rows=len(part), fraction=None)


def _in_utc(moment: datetime.datetime | None) -> datetime.datetime | None:
    return None if moment is None else moment.astimezone(datetime.UTC)


def _array(values: tuple[Any, ...], kind: pa.DataType) -> pa.Array | list[Any]:
    return pa.array(values, kind) if is_scalar(kind) else list(values)
