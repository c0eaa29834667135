"""Codes of dates, missing texts and number formats in a database."""

from __future__ import annotations

import datetime
import sqlite3
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import ibis
import pyarrow as pa
import pytest

import engine.records.database as database_module
from engine.records import Encoder, count_marginals
from engine.records.database import NotComputableError, code_of
from engine.workload import Attribute, Schema
from tests.databases import postgres

UTC = datetime.UTC
DAY, TIME = datetime.date, datetime.datetime
DAYS = [
    DAY(2023, 12, 31),
    DAY(2024, 1, 1),
    DAY(2024, 2, 29),
    DAY(2024, 3, 31),
    DAY(2024, 4, 1),
    DAY(2025, 1, 1),
    DAY(1900, 1, 1),
    None,
]
TIMES = [TIME(d.year, d.month, d.day, 23, 59, 59, 999_999) if d else None for d in DAYS]
VALUES: dict[str, pa.Array] = {
    "date": pa.array(DAYS, pa.date32()),
    "time": pa.array(TIMES, pa.timestamp("us")),
    "instant": pa.array(TIMES, pa.timestamp("us", "UTC")),
    "text": pa.array(
        ["2024-01-01", "2024-02", "2024-Q1", "2024-03-31T23:30-02:00", "NA", "1.2.2024", "?", None]
    ),
    "year": pa.array([2024, 2023, 2025, 1, -1, 20240101, 9, None], pa.int32()),
    "number": pa.array([0.0, 1.5, -9.0, 9.9, 3.0, float("nan"), -1.0, None]),
    "integer": pa.array([0, 1, -9, 9, 3, 10, -1, None], pa.int64()),
    "money": pa.array(
        [*map(Decimal, ["0", "1.5", "-9", "9.9", "3", "10", "-1"]), None], pa.decimal128(9, 2)
    ),
    "spelled": pa.array(["1.200,5", "1.20", "NA", "-9,0", "7", "1,2,3", " NA ", None]),
    "label": pa.array(["F", "NA", "-9", "n/a", "9", "", "x", None]),
}
MISSING = ("NA", "-9", "9.9", "1900-01-01")
ATTRIBUTES = {
    **{
        unit: lambda name, unit=unit: Attribute.dates(
            name, "2024-01-01", "2024-12-31", unit, missing_values=MISSING
        )
        for unit in ("year", "quarter", "month", "day")
    },
    "clipped": lambda name: Attribute.dates(
        name, "2024-01-01", "2024-03-31", clip=True, missing="unknown", missing_values=MISSING
    ),
    "bins": lambda name: Attribute.numeric(
        name, [0, 5, 2000], missing_values=MISSING, decimal=",", thousands="."
    ),
    "integers": lambda name: Attribute.numeric(
        name, [-9, 0, 9], missing=-9, missing_values=("-9", "1.5", "9.9"), integer=True
    ),
    "codes": lambda name: Attribute.of_size(name, 5, missing_values=MISSING),
    "labels": lambda name: Attribute.categorical(
        name,
        ["F", "9", "other", "none"],
        other="other",
        missing="none",
        missing_values=("NA", "-9", "1.5"),
    ),
}
ROWS = pa.table(VALUES).append_column("row", pa.array(range(8)))


def _duckdb() -> Iterator[Any]:
    connection = ibis.duckdb.connect()
    connection.raw_sql("SET TimeZone = 'Asia/Tokyo'")
    connection.con.register("source", ROWS)
    connection.raw_sql("CREATE TABLE records AS SELECT * FROM source")
    yield connection.table("records")


def _postgres() -> Iterator[Any]:
    with postgres.server() as server:
        connection = server.connect()
        connection.raw_sql("SET TimeZone = 'Asia/Tokyo'")
        connection.create_table("records", ROWS, temp=True)
        yield connection.table("records")


@pytest.fixture(
    scope="module", params=[_duckdb, pytest.param(_postgres, marks=pytest.mark.needs("PostgreSQL"))]
)
def rows(request: pytest.FixtureRequest) -> Iterator[Any]:
    yield from request.param()


def test_sqlite_declared_values_have_expected_counts(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "a.db")
    connection.execute(
        "CREATE TABLE records (sex TEXT, day DATE, time TIMESTAMP, pay TEXT, x REAL, n INTEGER)"
    )
    connection.executemany(
        "INSERT INTO records VALUES (?, ?, ?, ?, ?, ?)",
        [
            ("F", "2024-01-05", "2024-01-05 23:59:59", "1.200", 1.5, 3),
            ("NA", "2024-03-01", "2024-03-01 00:00:00", "NA", -9.0, -9),
            (None, None, None, "3,5", None, None),
        ],
    )
    connection.commit()
    connection.close()
    table = ibis.sqlite.connect(tmp_path / "a.db").table("records")
    months = {"start": "2024-01", "stop": "2024-03", "missing": "none"}
    expected = {
        Attribute.categorical("sex", ["F", "none"], missing="none", missing_values=["NA"]): [1, 2],
        Attribute.dates("day", **months): [1, 0, 1, 1],
        Attribute.dates("time", **months): [1, 0, 1, 1],
        Attribute.numeric(
            "pay", [0, 10, 5000], decimal=",", thousands=".", missing_values=["NA"]
        ): [1, 1],
        Attribute.numeric("x", [0, 1, 10], missing=0, missing_values=["-9"]): [2, 1],
        Attribute.of_size("n", 4, missing_values=["-9"]): [0, 0, 0, 1],
    }
    for attribute, cells in expected.items():
        counts = count_marginals(
            table.select(attribute.name),
            Schema([attribute]),
            [(attribute.name,)],
            on_refused="drop",
        )
        assert counts[attribute.name,].tolist() == cells, attribute.name


@pytest.mark.parametrize("kind", ATTRIBUTES)
def test_declared_values_in_database_have_equal_codes(rows: Any, kind: str) -> None:
    codes, expected = {}, {}
    for name in VALUES:
        encoder = Encoder(attribute=ATTRIBUTES[kind](name))
        expected[name] = encoder.encode_values(VALUES[name].to_pylist()).tolist()
        assert encoder.encode_array(VALUES[name]).tolist() == expected[name], name
        try:
            codes[name] = code_of(rows[name], encoder, database_module._distinct)
        except NotComputableError:
            assert name in ("number", "money")  # these types have no dates
            assert encoder.attribute.is_dated
    cells = database_module._run_query(rows.select("row", **codes).order_by("row"))
    for name in codes:
        assert cells[name].to_pylist() == expected[name], name
