"""Records with invalid values of every kind, and comparison of counts."""

from __future__ import annotations

import datetime
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import ibis
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import engine.records.database as database_module
from engine.ledger import Ledger
from engine.mechanisms import plan
from engine.privacy import Budget
from engine.workload import Attribute, Schema, Workload

NEAR = [
    0.1,
    np.nextafter(0.1, 1),
    np.nextafter(0.1, 0),
    1 / 3,
    np.nextafter(1 / 3, 1),
    2.5,
    -0.0,
    0.0,
    1e-300,
    1e300,
]
VALUES: dict[str, pa.Array] = {
    "text": pa.array(["F", "M", "", None, "f", "F ", "ü", "1", "01", "1.0", "True", "nan", "é́"]),
    "spelled": pa.array(["1", " 2 ", "2.5", "nan", "", None, "1_0", "x", "inf", "-1", "1e0", "٣", "3"]),
    "integer": pa.array([0, 1, 2, 3, -1, None, 5, 2**53, 2**53 + 1, 2**63 - 1, -(2**63), 10, 4], pa.int64()),
    "large": pa.array([0, 1, 2, 3, 2**64 - 1, None, 5, 2**53, 2**53 + 1, 2**63, 9, 10, 4], pa.uint64()),
    "small": pa.array([0, 1, 2, 3, -1, None, 5, 127, -128, 4, 9, 10, 2], pa.int8()),
    "float": pa.array([*NEAR, math.nan, math.inf, None]),
    "more": pa.array([1.0, 2.0, 3.0, 0.5, -1.0, 2.0**53, 2.0**62, -math.inf, 1.5, 4.0, 1e17, None, 0.25]),
    "narrow": pa.array([0.1, 1 / 3, 2.5, 1, 2, -1, 0, 3, 0.5, 4, math.nan, math.inf, None], pa.float32()),
    "yes": pa.array([True, False, None] * 4 + [True]),
    "money": pa.array([*(Decimal(n) / 4 for n in [0, 1, 2, 4, 8, -4, 40, 3, 10, 6, 9, 9]), None], pa.decimal128(9, 2)),
    "day": pa.array([datetime.date(2020, 1, 1), None] * 6 + [None], pa.date32()),
    "list": pa.array([[1], None] * 6 + [None], pa.list_(pa.int64())),
}  # fmt: skip
ATTRIBUTES = {
    "labels": lambda name: Attribute.categorical(
        name, ["F", "1", "0.5", "True", "0", "ü", "-1", "01", "1.0", "0.1"]
    ),
    "sorted": lambda name: Attribute.categorical(
        name, ["F", "1", "rest", "gone"], other="rest", missing="gone"
    ),
    "bins": lambda name: Attribute.numeric(name, [-1.5, 0.1, 1 / 3, 2.5, 10]),
    "clipped": lambda name: Attribute.numeric(
        name, [0.1, 0.25, 1, 2**53, 2**60], clip=True, missing=0.5
    ),
    "codes": lambda name: Attribute.of_size(name, 5),
    "integer bins": lambda name: Attribute.numeric(name, [-1, 0, 2, 10], integer=True),
    "clipped integer bins": lambda name: Attribute.numeric(
        name, [0, 1, 9, 2**53], clip=True, missing=2, integer=True
    ),
}
ROWS = pa.table(VALUES)


SECRET_VALUE = "7391"  # a value of a record that no message may contain


def forbid_reading_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a count raise an error if it reads rows, as opposed to results of queries."""
    monkeypatch.setattr("engine.records.marginals.read_batches", None)


class Traffic:
    """Counter of the bytes that queries fetch from a database; reading rows raises an error."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bytes, fetch = 0, database_module._run_query

        def fetch_and_count_bytes(expression: Any) -> pa.Table:
            answer = fetch(expression)
            self.bytes += answer.nbytes
            return answer

        monkeypatch.setattr(database_module, "_run_query", fetch_and_count_bytes)
        forbid_reading_rows(monkeypatch)


def survey(size: int = 3_000) -> pd.DataFrame:
    """Return random records, some with values outside the schema."""
    rng = np.random.default_rng(5)
    return pd.DataFrame(
        {
            "sex": rng.choice(["F", "M", "", "x"], size, p=[0.5, 0.4, 0.05, 0.05]),
            "age": rng.uniform(-2, 122, size),
            "code": rng.integers(-1, 6, size),
            "zip": rng.integers(0, 50, size).astype(str),
        }
    )


SCHEMA = Schema(
    [
        Attribute.categorical("sex", ["F", "M"], missing="M"),
        Attribute.numeric("age", [0, 20, 65, 120]),
        Attribute.of_size("code", 5),
        Attribute.categorical("zip", [str(i) for i in range(40)] + ["other"], other="other"),
    ]
)
SETS = [("sex", "age"), ("zip", "code"), ("code", "sex", "age"), ("age",), ()]
PLAN = plan(Workload(SCHEMA).add(("sex", "age"), "marginal"), Budget(pcost=1e6))


def create_ledger(folder: Path, *datasets: str) -> Ledger:
    book = Ledger.create(folder / "book")
    for name in datasets:
        book.add_dataset(name, total=Budget(pcost=1e7))
    return book


def create_duckdb_table(rows: pd.DataFrame | pa.Table, connection: Any = None) -> Any:
    """Create a table in DuckDB itself, not a view of local memory."""
    connection = connection or ibis.duckdb.connect()
    connection.con.register("source", rows)
    connection.raw_sql("CREATE OR REPLACE TABLE records AS SELECT * FROM source")
    connection.con.unregister("source")
    return connection.table("records")
