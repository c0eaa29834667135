"""DataFrames and tables of Spark: the same integers as here, and what goes wrong there has a name and costs nothing."""

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

import engine.records.database as grouped
from engine.errors import Cancelled, DataError
from engine.ledger import Ledger
from engine.mechanisms import plan
from engine.privacy import Budget
from engine.records import Encoder, count_marginals
from engine.records.database import code_of
from engine.release import measure
from engine.workload import Attribute, Schema, Workload
from tests.databases.samples import ATTRIBUTES, ROWS, SCHEMA, SETS, Traffic, same, survey
from tests.databases.spark import session
from tests.waiting import until

# Spark has no whole numbers without sign
SHAPE = pa.schema([field if field.name != "large" else field.with_type(pa.decimal128(20, 0)) for field in ROWS.schema])


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    with session() as found:
        yield found


@pytest.fixture(scope="module")
def rows(spark: Any) -> Any:
    spark.createDataFrame(ROWS.cast(SHAPE).append_column("row", pa.array(range(13)))).createTempView("rows")
    return ibis.pyspark.connect(spark).table("rows")


ENCODERS = {
    f"{name} as {kind}": (name, Encoder(attribute=make(name)))
    for kind, make in ATTRIBUTES.items()
    for name in ROWS.column_names
}


@pytest.fixture(scope="module")
def coded(rows: Any) -> pa.Table:
    """The cell of every value under every kind of attribute, asked for at once: a question costs more than a column."""
    codes = {told: code_of(rows[name], encoder, grouped._distinct) for told, (name, encoder) in ENCODERS.items()}
    return grouped._fetched(rows.select("row", **codes).order_by("row"))


def test_times_with_a_zone_count_in_utc(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = spark.sql(
        "SELECT TIMESTAMP '2024-01-31 23:30:00 UTC' AS zoned, TIMESTAMP_NTZ '2024-01-31 23:30:00' AS local"
    )
    schema = Schema([Attribute.dates(name, "2024-01", "2024-03") for name in ("zoned", "local")])
    ruled = schema.with_facts(impossible=["zoned == '2024-03' and local == '2024-03'"])  # the rows travel
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        for one in (schema, ruled):
            counts = count_marginals(rows, one, [("zoned", "local")])
            assert counts["zoned", "local"][0, 0] == 1
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize("kind", ATTRIBUTES)
def test_every_value_lies_in_the_cell_that_it_lies_in_here(coded: pa.Table, kind: str) -> None:
    for name in ROWS.column_names:
        _, encoder = ENCODERS[told := f"{name} as {kind}"]
        assert coded[told].to_pylist() == encoder.objects(ROWS[name].to_pylist()).tolist(), name


def frame_of(spark: Any, rows: pd.DataFrame | pa.Table) -> Any:
    return spark.createDataFrame(rows if isinstance(rows, pa.Table) else pa.Table.from_pandas(rows))


@pytest.mark.parametrize("kept", [True, False])
def test_all_tables_are_those_that_are_counted_here(spark: Any, kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = survey(500).assign(n=np.arange(500) % 7 - 1)
    ways: list[dict[str, Any]] = [{"ignore": ["n"]}, {"count_column": "n"}]
    here = [count_marginals(frame, SCHEMA, SETS, on_refused="drop", **options) for options in ways]
    there, traffic = frame_of(spark, frame), Traffic(monkeypatch)
    spark.conf.set("spark.sql.session.timeZone", "America/Lima")
    if not kept:
        monkeypatch.setattr(grouped, "KEEPING", ())
    for options, wanted in zip(ways[kept:], here[kept:], strict=True):
        assert wanted.rows_refused > 50
        assert same(count_marginals(there, SCHEMA, SETS, on_refused="drop", **options), wanted)
    assert 0 < traffic.bytes < 30_000
    assert not [table for table in spark.catalog.listTables() if table.name != "rows"]
    assert spark.conf.get("spark.sql.session.timeZone") == "America/Lima"  # which Ibis changes


@pytest.mark.parametrize("kind", ["string", "Int64"])
def test_the_cap_of_rows_per_person_keeps_the_same_rows(spark: Any, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = survey(400)
    frame["pid"] = pd.array((np.random.default_rng(1).pareto(1.0, 400) * 50).astype(int).astype(str), "string")
    frame["pid"] = frame["pid"].astype(kind)
    frame.loc[::50, "pid"] = pd.NA
    given: dict[str, Any] = {"on_refused": "drop", "person": "pid", "rows_per_person": 2}
    here, there = count_marginals(frame, SCHEMA, SETS[:2], **given), frame_of(spark, frame)
    assert here.rows_over_cap > 30
    Traffic(monkeypatch)
    assert same(count_marginals(there, SCHEMA, SETS[:2], **given), here)


def test_rows_that_no_rule_there_fits_travel_as_they_are(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts that spell more numbers than are looked at one by one, beside whole numbers that no float holds."""
    monkeypatch.setattr("engine.records.database.MOST_CASES", 20)
    whole = ["9007199254740993", "9007199254740992", "-1"]
    schema = Schema([SCHEMA["age"], Attribute.categorical("id", whole, missing="-1")])
    ages = [str(age) for age in np.random.default_rng(0).uniform(-5, 125, 200)]
    rows = pa.table({"age": ages, "id": pa.array([2**53, 2**53 + 1, None, 7] * 50)})
    here = count_marginals(rows, schema, [("age", "id")], on_refused="drop")
    assert 100 < here.records < 150
    assert same(count_marginals(frame_of(spark, rows), schema, [("age", "id")], on_refused="drop"), here)


def test_texts_are_the_same_there_only_when_their_bytes_are(spark: Any) -> None:
    texts = ["F", "f", "é", "É", "", None, "1", "NaN", "nan", "NAN"]
    folded = frame_of(spark, pa.table({"text": texts})).selectExpr("text COLLATE UTF8_LCASE AS text")
    schema = Schema([ATTRIBUTES["labels"]("text")])
    here = count_marginals(pa.table({"text": texts}), schema, [("text",)], on_refused="drop")
    assert same(count_marginals(folded, schema, [("text",)], on_refused="drop"), here)


def test_a_release_of_a_frame_is_one_of_its_records(spark: Any, tmp_path: Path) -> None:
    frame, book = survey(100), Ledger.create(tmp_path / "book")
    made = plan(Workload(SCHEMA).add(("sex", "age"), "marginal"), Budget(pcost=1e6))
    for name, data in (("here", frame), ("there", frame_of(spark, frame))):
        book.add_dataset(name, total=Budget(pcost=1e7))
        measure(made, data, dataset=name, ledger=book)
    one, two = (row for row in book.rows() if row.kind == "spend")
    assert one.sha256 == two.sha256 != ""


def failing(spark: Any) -> Any:
    """Records whose reading fails with one of their values in the message."""
    return frame_of(spark, survey(5)).selectExpr("sex", "raise_error('CANARY7391') AS age", "code", "zip")


def dropped(spark: Any) -> Any:
    frame_of(spark, survey(5)).createTempView("gone")
    there = ibis.pyspark.connect(spark).table("gone")
    spark.catalog.dropTempView("gone")
    return there


def deleted(spark: Any, folder: Path) -> Any:
    frame_of(spark, survey(5)).write.parquet(str(folder / "records"))
    there = spark.read.parquet(str(folder / "records"))
    for part in (folder / "records").glob("*.parquet"):
        part.unlink()
    return there


def retyped(spark: Any, folder: Path) -> Any:
    """Records that were written again, in the same place, when they had been looked at."""
    place = folder / "records.parquet"
    pq.write_table(pa.Table.from_pandas(survey(5), preserve_index=False), place)
    there = spark.read.parquet(str(place))
    pq.write_table(pa.Table.from_pandas(survey(5).assign(age="7391"), preserve_index=False), place)
    return there


def forbidden(spark: Any) -> Any:
    """Records whose reading the file system refuses: whoever runs these tests may read everything."""

    def refuse(*_: Any, **__: Any) -> Any:
        java = spark.sparkContext._jvm
        denied = java.org.apache.hadoop.security.AccessControlException("7391")
        raise Py4JJavaError("7391", java.java.lang.RuntimeException("7391", denied))

    found = frame_of(spark, survey(5))
    found.createTempView = refuse
    return found


ENDLESS = "SELECT 'F' AS sex, sin(id) AS age, 1 AS code, '1' AS zip FROM range(1000000000000)"


def test_a_question_that_takes_too_long_is_stopped_there_and_costs_nothing(spark: Any, tmp_path: Path) -> None:
    book = Ledger.create(tmp_path / "book")
    book.add_dataset("d", total=Budget(pcost=1e7))
    made = plan(Workload(SCHEMA).add(("sex", "age"), "marginal"), Budget(pcost=1e6))
    tracker = spark.sparkContext.statusTracker()
    with pytest.raises(Cancelled, match="This run has spent nothing"):
        measure(
            made,
            spark.sql(ENDLESS),
            dataset="d",
            ledger=book,
            progress=lambda *_: not tracker.getActiveJobsIds(),
        )
    until(lambda: not tracker.getActiveJobsIds())
    assert book.status("d").spent == 0


WATCH = "who ends what is read"


def endless(spark: Any, end: Callable[[], None]) -> Any:
    """Records whose reading is ended by somebody else as soon as it goes on."""

    def watch() -> None:
        until(lambda: spark.sparkContext.statusTracker().getActiveJobsIds())
        end()

    threading.Thread(target=watch, name=WATCH, daemon=True).start()
    return spark.sql(ENDLESS)


def cancelled(spark: Any) -> Any:
    return endless(spark, spark.sparkContext.cancelAllJobs)


def stopped(spark: Any) -> Any:
    return endless(spark, spark.stop)  # the last of all tests


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (dropped, "has another table, or other columns"),
        (failing, "cannot be read"),
        (retyped, "has another table, or other columns"),
        (forbidden, "does not let you read"),
        (deleted, "has another table, or other columns"),
        (cancelled, "stopped before the counts were complete"),
        (stopped, "cannot be reached"),
    ],
)
def test_what_fails_there_is_named_and_spends_nothing(
    spark: Any, tmp_path: Path, spoil: Callable[..., Any], words: str
) -> None:
    book = Ledger.create(tmp_path / "book")
    book.add_dataset("d", total=Budget(pcost=1e7))
    made = plan(Workload(SCHEMA).add(("sex", "age"), "marginal"), Budget(pcost=1e6))
    there = spoil(spark, tmp_path) if spoil in (deleted, retyped) else spoil(spark)
    for _ in range(2 if spoil is stopped else 1):  # a session that has ended is not there afterwards, either
        with pytest.raises(DataError, match=words) as caught:
            measure(made, there, dataset="d", ledger=book)
        assert "7391" not in str(caught.value)
        assert caught.value.__context__ is None
        if spoil is stopped:
            until(lambda: spark.getActiveSession() is None)
    for thread in threading.enumerate():
        if thread.name == WATCH:
            thread.join()
    assert book.status("d").spent == 0
