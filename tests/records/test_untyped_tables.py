"""Values in SQLite columns that do not have the declared type."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import ibis
import numpy as np
import pytest

from engine.errors import DataError
from engine.mechanisms import plan
from engine.privacy import Budget
from engine.records import count_marginals, readers
from engine.records.database import untyped_batches
from engine.release import measure
from engine.release.ingest import check_records, records_fit
from engine.release.public_draft import draft_of_public
from engine.workload import Attribute, Schema, Workload

SECRET = "private-value"
MONTHS = Attribute.dates("x", "2024-01-01", "2024-03-31", "month")
TIMES = ["2024-01-02 10:00:00", "2024-02-29 23:59:59.5", "2024-03-31T23:00:00-02:00"]

# declared type -> (attribute, good values with their cells, code counts of the bad values)
CASES: dict[str, tuple[Attribute, list[tuple[Any, int]], list[Any], dict[str, int]]] = {
    "DATE": (
        MONTHS,
        [("2024-01-31", 0), ("2024-02-29", 1)],
        [SECRET, 31, b"\xff", None],
        {"not a date": 2, "of a type that is neither text nor number": 1, "missing": 1},
    ),
    "TIMESTAMP": (
        MONTHS,
        [(TIMES[0], 0), (TIMES[1], 1)],
        [TIMES[2], SECRET, ""],
        {"not a date": 1, "outside the schema": 1, "missing": 1},
    ),
    "INTEGER": (
        Attribute.of_size("x", 3),
        [(0, 0), (2, 2), (1.0, 1)],
        [SECRET, 1.5, 2**62, b"\xff", None],
        {
            "not a number": 1,
            "not a whole number": 1,
            "outside the schema": 1,
            "of a type that is neither text nor number": 1,
            "missing": 1,
        },
    ),
    "REAL": (
        Attribute.numeric("x", [0, 1, 2]),
        [(0.5, 0), (1, 1)],
        [SECRET, 1e400],
        {"not a number": 1, "outside the schema": 1},
    ),
    "DECIMAL(10, 2)": (
        Attribute.categorical("x", ["1.50", "2.5"]),
        [(1.5, 0), (2.5, 1)],
        [SECRET, 3],
        {"outside the schema": 2},
    ),
    "BOOLEAN": (
        Attribute.categorical("x", ["False", "True"]),
        [(0, 0), (1, 1)],
        [SECRET, 7],
        {"outside the schema": 2},
    ),
}


def table(path: Path, declared: str, values: list[Any]) -> Any:
    with sqlite3.connect(path) as connection:
        connection.execute(f"CREATE TABLE t (x {declared})")
        connection.executemany("INSERT INTO t VALUES (?)", [(value,) for value in values])
    return ibis.sqlite.connect(path).table("t")


@pytest.mark.parametrize("declared_type", CASES)
def test_sqlite_value_of_other_type_is_refused_alone(declared_type: str, tmp_path: Path) -> None:
    attribute, accepted, refused, reasons = CASES[declared_type]
    schema, sets = Schema([attribute]), [("x",)]
    accepted_values = [value for value, _ in accepted]
    accepted_cells = [cell for _, cell in accepted]
    expected = np.bincount(accepted_cells, minlength=attribute.size).tolist()
    mixed = table(tmp_path / "mixed.db", declared_type, [*refused, *accepted_values])
    counts = count_marginals(mixed, schema, sets, on_refused="drop")
    assert counts["x",].tolist() == expected
    assert counts.refused == {"x": reasons}
    with pytest.raises(DataError, match="do not fit") as caught:
        count_marginals(mixed, schema, sets)
    assert SECRET not in str(caught.value)
    (fit,) = records_fit(schema, mixed)
    assert fit.refused == len(refused)
    clean = table(tmp_path / "clean.db", declared_type, accepted_values)
    assert count_marginals(clean, schema, sets)["x",].tolist() == expected


def test_check_and_release_leave_out_unreadable_integer(tmp_path: Path) -> None:
    schema = Schema([Attribute.of_size("x", 3)])
    data = table(tmp_path / "a.db", "INTEGER", [0, 1, SECRET])
    nearly_exact_plan = plan(Workload(schema).add("x"), Budget(pcost=1e6))
    report = check_records(nearly_exact_plan, data)
    assert (report.counted, report.refused) == (2, 1)
    assert SECRET not in str(report)
    measurement = measure(nearly_exact_plan, data, rehearsal=True, on_refused="drop")
    assert measurement.values(0).round().tolist() == [1, 1, 0]


def test_draft_reads_dates_of_sqlite(tmp_path: Path) -> None:
    data = table(tmp_path / "a.db", "DATE", ["2024-01-31", "2024-02-01"])
    assert draft_of_public(data).schema["x"].is_dated


def test_untyped_batches_keep_order_and_text_factory(tmp_path: Path) -> None:
    data = table(tmp_path / "a.db", "INTEGER", [0, SECRET, *range(2, 10)])
    connection = data.get_backend().con
    factory = connection.text_factory
    columns = [batch.columns[0] for batch in untyped_batches(data, ["x"], 3)]
    assert [len(column) for column in columns] == [3, 3, 3, 1]
    assert columns[0] == [0, SECRET, 2]
    assert columns[1].to_pylist() == [3, 4, 5]
    assert connection.text_factory is factory
    assert sum(batch.rows for batch in readers.read_batches(data, [])) == 10
