"""Spark frames and tables: equal counts, failures and cancellation."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ibis
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JJavaError

import engine.records.database as database_module
from engine.errors import Cancelled, DataError
from engine.records import Encoder, count_marginals
from engine.records.database import code_of
from engine.release import measure
from engine.workload import Attribute, Schema
from tests.databases.samples import (
    ATTRIBUTES,
    PLAN,
    ROWS,
    SCHEMA,
    SECRET_VALUE,
    SETS,
    Traffic,
    create_ledger,
    forbid_reading_rows,
    survey,
)
from tests.databases.spark import session
from tests.records.equal_counts import have_equal_counts
from tests.waiting import until

# Spark has no unsigned integers
SPARK_SCHEMA = pa.schema(
    [
        field if field.name != "large" else field.with_type(pa.decimal128(20, 0))
        for field in ROWS.schema
    ]
)


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    with session() as running:
        yield running


@pytest.fixture(scope="module")
def rows(spark: Any) -> Any:
    spark.createDataFrame(
        ROWS.cast(SPARK_SCHEMA).append_column("row", pa.array(range(13)))
    ).createTempView("rows")
    return ibis.pyspark.connect(spark).table("rows")


ENCODERS = {
    f"{name} as {kind}": (name, Encoder(attribute=make(name)))
    for kind, make in ATTRIBUTES.items()
    for name in ROWS.column_names
}


@pytest.fixture(scope="module")
def coded(rows: Any) -> pa.Table:
    """Return one column of codes per entry of `ENCODERS`, computed by one query.

    A query per encoder would be slow.
    """
    codes = {
        key: code_of(rows[name], encoder, database_module._distinct)
        for key, (name, encoder) in ENCODERS.items()
    }
    return database_module._run_query(rows.select("row", **codes).order_by("row"))


def test_times_with_a_zone_count_in_utc(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = spark.sql(
        "SELECT TIMESTAMP '2024-01-31 23:30:00 UTC' AS zoned, TIMESTAMP_NTZ '2024-01-31 23:30:00'"
        " AS local"
    )
    schema = Schema([Attribute.dates(name, "2024-01", "2024-03") for name in ("zoned", "local")])
    # with a rule on impossible cells, Spark sends rows in place of counts
    with_rule = schema.with_facts(impossible=["zoned == '2024-03' and local == '2024-03'"])
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        for applied in (schema, with_rule):
            counts = count_marginals(rows, applied, [("zoned", "local")])
            assert counts["zoned", "local"][0, 0] == 1  # both in January
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize("kind", ATTRIBUTES)
def test_code_of_each_value_equals_local_code(coded: pa.Table, kind: str) -> None:
    for name in ROWS.column_names:
        _, encoder = ENCODERS[key := f"{name} as {kind}"]
        assert coded[key].to_pylist() == encoder.encode_values(ROWS[name].to_pylist()).tolist(), (
            name
        )


def frame_of(spark: Any, rows: pd.DataFrame | pa.Table) -> Any:
    return spark.createDataFrame(rows if isinstance(rows, pa.Table) else pa.Table.from_pandas(rows))


@pytest.mark.parametrize("has_snapshot", [True, False])
def test_counts_of_frame_equal_local_counts(
    spark: Any, has_snapshot: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = survey(500).assign(n=np.arange(500) % 7 - 1)
    # to save time, counting with a snapshot is tested with the count column only
    option_sets: list[dict[str, Any]] = [{"count_column": "n"}]
    if not has_snapshot:
        option_sets.append({"ignore": ["n"]})
    expected_counts = [
        count_marginals(frame, SCHEMA, SETS, on_refused="drop", **options)
        for options in option_sets
    ]
    remote, traffic = frame_of(spark, frame), Traffic(monkeypatch)
    spark.conf.set("spark.sql.session.timeZone", "America/Lima")
    if not has_snapshot:
        monkeypatch.setattr(database_module, "TEMPORARY_TABLE_BACKENDS", ())
    for options, expected in zip(option_sets, expected_counts, strict=True):
        assert expected.rows_refused > 50
        assert have_equal_counts(
            count_marginals(remote, SCHEMA, SETS, on_refused="drop", **options), expected
        )
    assert 0 < traffic.bytes < 30_000
    assert not [table for table in spark.catalog.listTables() if table.name != "rows"]
    # Ibis changes the setting during a query
    assert spark.conf.get("spark.sql.session.timeZone") == "America/Lima"


@pytest.mark.parametrize("kind", ["string", "Int64"])
def test_contribution_bounding_in_spark_equals_local_bounding(
    spark: Any, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = survey(400)
    people = (np.random.default_rng(1).pareto(1.0, 400) * 50).astype(int)
    frame["pid"] = pd.array(people, "Int64").astype(kind)
    frame.loc[::50, "pid"] = pd.NA
    options: dict[str, Any] = {"on_refused": "drop", "person": "pid", "rows_per_person": 2}
    expected, remote = count_marginals(frame, SCHEMA, SETS[:2], **options), frame_of(spark, frame)
    assert expected.rows_over_cap > 30
    forbid_reading_rows(monkeypatch)
    assert have_equal_counts(count_marginals(remote, SCHEMA, SETS[:2], **options), expected)


def test_rows_transferred_from_spark_are_unchanged(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows have more distinct ages than one statement encodes, and integers above 2^53."""
    monkeypatch.setattr("engine.records.database.MAX_CASE_BRANCHES", 20)
    labels = ["9007199254740993", "9007199254740992", "-1"]
    schema = Schema([SCHEMA["age"], Attribute.categorical("id", labels, missing="-1")])
    ages = [str(age) for age in np.random.default_rng(0).uniform(-5, 125, 200)]
    rows = pa.table({"age": ages, "id": pa.array([2**53, 2**53 + 1, None, 7] * 50)})
    expected = count_marginals(rows, schema, [("age", "id")], on_refused="drop")
    assert 100 < expected.records < 150
    assert have_equal_counts(
        count_marginals(frame_of(spark, rows), schema, [("age", "id")], on_refused="drop"), expected
    )


def test_texts_in_spark_are_compared_by_bytes(spark: Any) -> None:
    texts = ["F", "f", "é", "É", "", None, "1", "NaN", "nan", "NAN"]
    folded = frame_of(spark, pa.table({"text": texts})).selectExpr(
        "text COLLATE UTF8_LCASE AS text"
    )
    schema = Schema([ATTRIBUTES["labels"]("text")])
    expected = count_marginals(pa.table({"text": texts}), schema, [("text",)], on_refused="drop")
    assert have_equal_counts(
        count_marginals(folded, schema, [("text",)], on_refused="drop"), expected
    )


def test_release_of_frame_has_digest_of_records(spark: Any, tmp_path: Path) -> None:
    frame, book = survey(100), create_ledger(tmp_path, "local", "remote")
    for name, data in (("local", frame), ("remote", frame_of(spark, frame))):
        measure(PLAN, data, dataset=name, ledger=book)
    local, remote = (row.sha256 for row in book.rows() if row.kind == "spend")
    assert local == remote != ""


def failing_frame(spark: Any) -> Any:
    """Return records whose reading fails with a private value in the message."""
    return frame_of(spark, survey(5)).selectExpr(
        "sex", f"raise_error('{SECRET_VALUE}') AS age", "code", "zip"
    )


def dropped_view(spark: Any) -> Any:
    frame_of(spark, survey(5)).createTempView("gone")
    remote = ibis.pyspark.connect(spark).table("gone")
    spark.catalog.dropTempView("gone")
    return remote


def deleted_files(spark: Any, folder: Path) -> Any:
    frame_of(spark, survey(5)).write.parquet(str(folder / "records"))
    remote = spark.read.parquet(str(folder / "records"))
    for part in (folder / "records").glob("*.parquet"):
        part.unlink()
    return remote


def rewritten_file(spark: Any, folder: Path) -> Any:
    """Return records whose file is replaced after its schema was read."""
    path = folder / "records.parquet"
    pq.write_table(pa.Table.from_pandas(survey(5), preserve_index=False), path)
    remote = spark.read.parquet(str(path))
    rows = pa.Table.from_pandas(survey(5).assign(age=SECRET_VALUE), preserve_index=False)
    pq.write_table(rows, path)
    return remote


def forbidden_frame(spark: Any) -> Any:
    """Return a frame on which any read raises an access error of the Hadoop file system."""

    def refuse(*_: Any, **__: Any) -> Any:
        java = spark.sparkContext._jvm
        denied = java.org.apache.hadoop.security.AccessControlException(SECRET_VALUE)
        raise Py4JJavaError(SECRET_VALUE, java.java.lang.RuntimeException(SECRET_VALUE, denied))

    frame = frame_of(spark, survey(5))
    frame.createTempView = refuse
    return frame


ENDLESS = "SELECT 'F' AS sex, sin(id) AS age, 1 AS code, '1' AS zip FROM range(1000000000000)"


def test_cancelled_query_is_stopped_and_spends_nothing(spark: Any, tmp_path: Path) -> None:
    book = create_ledger(tmp_path, "d")
    tracker = spark.sparkContext.statusTracker()
    with pytest.raises(Cancelled, match="This run has spent nothing"):
        measure(
            PLAN,
            spark.sql(ENDLESS),
            dataset="d",
            ledger=book,
            progress=lambda *_: not tracker.getActiveJobsIds(),
        )
    until(lambda: not tracker.getActiveJobsIds())
    assert book.status("d").spent == 0


WATCH = "cancelling thread"


def endless(spark: Any, end: Callable[[], None]) -> Any:
    """Return an endless frame; a thread calls ``end()`` as soon as Spark starts to read it."""

    def watch() -> None:
        until(lambda: spark.sparkContext.statusTracker().getActiveJobsIds())
        end()

    threading.Thread(target=watch, name=WATCH, daemon=True).start()
    return spark.sql(ENDLESS)


def cancelled_frame(spark: Any) -> Any:
    return endless(spark, spark.sparkContext.cancelAllJobs)


def frame_of_stopped_session(spark: Any) -> Any:
    # stops the session, so this test must be the last one
    return endless(spark, spark.stop)


@pytest.mark.parametrize(
    ("make_records", "words"),
    [
        (dropped_view, "no longer has this table"),
        (failing_frame, "cannot be read"),
        (rewritten_file, "no longer has this table"),
        (forbidden_frame, "denies access"),
        (deleted_files, "no longer has this table"),
        (cancelled_frame, "stopped before all"),
        (frame_of_stopped_session, "cannot be reached"),
    ],
)
def test_spark_failure_is_reported_and_spends_nothing(
    spark: Any, tmp_path: Path, make_records: Callable[..., Any], words: str
) -> None:
    book = create_ledger(tmp_path, "d")
    remote = (
        make_records(spark, tmp_path)
        if make_records in (deleted_files, rewritten_file)
        else make_records(spark)
    )
    # the second call meets a session that has already stopped
    for _ in range(2 if make_records is frame_of_stopped_session else 1):
        with pytest.raises(DataError, match=words) as caught:
            measure(PLAN, remote, dataset="d", ledger=book)
        assert SECRET_VALUE not in str(caught.value)
        assert caught.value.__context__ is None
        if make_records is frame_of_stopped_session:
            until(lambda: spark.getActiveSession() is None)
    for thread in threading.enumerate():
        if thread.name == WATCH:
            thread.join()
    assert book.status("d").spent == 0
