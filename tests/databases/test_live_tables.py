"""Tables that change while they are counted: contribution bounding still holds."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ibis
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import engine.records.database as database_module
from engine.errors import DataError
from engine.mechanisms import plan
from engine.privacy import Budget
from engine.records import count_marginals, readers
from engine.release.ingest import counts_for
from engine.workload import Attribute, Schema, Workload
from tests.databases.samples import create_duckdb_table
from tests.replay.campaign import cost, no_noise, released

SCHEMA = Schema([Attribute.of_size("a", 4), Attribute.of_size("b", 3)])
PLAN = plan(Workload.all_ways(SCHEMA, (1, 2)), Budget(pcost=1.0))
# the only row of a person moves to another cell under another identifier
MOVE_PERSON_1 = (
    "UPDATE records SET a = (a + 1) % 4, b = (b + 1) % 3, pid = pid + 1000 WHERE pid = 1"
)


def frame() -> pd.DataFrame:
    """Return random records of persons 2 to 29, and one record of person 1."""
    rng = np.random.default_rng(4)
    rows = pd.DataFrame(
        {"a": rng.integers(0, 4, 80), "b": rng.integers(0, 3, 80), "pid": rng.integers(2, 30, 80)}
    )
    return pd.concat([rows, pd.DataFrame({"a": [0], "b": [0], "pid": [1]})], ignore_index=True)


def sqlite(folder: Path, rows: pd.DataFrame) -> tuple[Any, Callable[[str], object]]:
    path = folder / "records.db"
    path.unlink(missing_ok=True)
    writer = sqlite3.connect(path)
    rows.to_sql("records", writer, index=False)
    return ibis.sqlite.connect(path).table("records"), lambda text: (
        writer.execute(text),
        writer.commit(),
    )


def duckdb(_: Path, rows: pd.DataFrame) -> tuple[Any, Callable[[str], object]]:
    remote = create_duckdb_table(rows)
    return remote, remote.get_backend().raw_sql


def after_every_query(monkeypatch: pytest.MonkeyPatch, change: Callable[[], object]) -> list[Any]:
    """Change the table after every query; return the list of queries."""
    queries = list[Any]()
    fetch = database_module._run_query
    batches = ibis.Table.to_pyarrow_batches
    untyped = readers.untyped_batches

    def fetch_and_change(expression: Any) -> pa.Table:
        queries.append(expression)
        answer = fetch(expression)
        change()
        return answer

    def read(self: Any, **keywords: Any) -> Any:
        queries.append(self)
        answer = batches(self, **keywords).read_all().to_reader()
        change()
        return answer

    def read_untyped(table: Any, names: Any, rows: int) -> list[Any]:
        queries.append(table)
        answer = list(untyped(table, names, rows))
        change()
        return answer

    monkeypatch.setattr(readers, "untyped_batches", read_untyped)
    monkeypatch.setattr(database_module, "_run_query", fetch_and_change)
    monkeypatch.setattr(ibis.Table, "to_pyarrow_batches", read)
    return queries


@pytest.mark.parametrize("database", [sqlite, duckdb])
@pytest.mark.parametrize("person", ["pid", None])
def test_live_table_without_snapshot_is_queried_once(
    database: Any, person: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "TEMPORARY_TABLE_BACKENDS", ())
    rows = frame()
    options: dict[str, Any] = {"person": person, "ignore": () if person else ["pid"]}
    remote, run_sql = database(tmp_path, rows)
    with monkeypatch.context() as patch:
        queries = after_every_query(patch, lambda: run_sql(MOVE_PERSON_1))
        counts = counts_for(PLAN, remote, **options)
    assert len(queries) == 1
    expected = counts_for(PLAN, rows, **options)
    assert all((counts[names] == expected[names]).all() for names in counts)
    without_person_1 = counts_for(PLAN, rows[rows["pid"] != 1], **options)
    with no_noise():
        answers, neighbour_answers = (
            released([PLAN], table) for table in (counts, without_person_1)
        )
    assert cost([PLAN], answers, neighbour_answers) <= PLAN.pcost


def test_live_table_with_snapshot_counts_one_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = frame()
    remote, run_sql = duckdb(tmp_path, rows)
    expected = counts_for(PLAN, rows, person="pid")
    with monkeypatch.context() as patch:
        queries = after_every_query(patch, lambda: run_sql(MOVE_PERSON_1))
        counts = counts_for(PLAN, remote, person="pid")
    assert len(queries) > 1
    assert all((counts[names] == expected[names]).all() for names in counts)


@pytest.mark.parametrize(
    ("person", "snapshot_backends"),
    [
        ("pid", database_module.TEMPORARY_TABLE_BACKENDS),
        (None, database_module.TEMPORARY_TABLE_BACKENDS),
        (None, ()),
    ],
    ids=["persons and snapshot", "snapshot", "no snapshot"],
)
def test_value_added_between_queries_is_refused(
    person: str | None, snapshot_backends: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A first query reads the distinct texts to convert them to numbers, a second one counts.
    remote = create_duckdb_table(frame().assign(a=lambda rows: rows["a"].astype(str)))
    monkeypatch.setattr(database_module, "TEMPORARY_TABLE_BACKENDS", snapshot_backends)
    options: dict[str, Any] = {"person": person, "ignore": () if person else ["pid"]}
    after_every_query(
        monkeypatch,
        lambda: remote.get_backend().raw_sql("UPDATE records SET a = '1.0' WHERE pid = 3"),
    )
    with pytest.raises(DataError, match="changed while it was counted"):
        counts_for(PLAN, remote, **options)


def count(data: Any) -> tuple[int | None, int]:
    counts = count_marginals(data, SCHEMA, [("a",)], person="pid", on_refused="drop")
    return counts.people, counts.records


def test_sqlite_long_identifiers_with_missing_ones_differ(tmp_path: Path) -> None:
    rows = pd.DataFrame({"a": 0, "b": 0, "pid": pd.array([2**53, 2**53 + 1, None], "Int64")})
    for kind in ("INTEGER", "DECIMAL(20, 0)", "NUMERIC"):
        path = tmp_path / f"{kind}.db"
        with sqlite3.connect(path) as writer:
            writer.execute(f"CREATE TABLE records (a INTEGER, b INTEGER, pid {kind})")
            values = rows.astype(object).where(rows.notna(), None).to_numpy().tolist()
            writer.executemany("INSERT INTO records VALUES (?, ?, ?)", values)
        # (persons, records); the row without an identifier is not counted
        assert count(ibis.sqlite.connect(path).table("records")) == (2, 2)


@pytest.mark.parametrize(
    "kind", ["UTINYINT", "BIGINT", "UBIGINT", "HUGEINT", "DECIMAL(30, 4)", "FLOAT", "DOUBLE"]
)
def test_number_type_of_a_database_keeps_identities(kind: str) -> None:
    connection = create_duckdb_table(frame()).get_backend()
    connection.raw_sql(
        f"CREATE TABLE typed AS SELECT a, b, CAST(pid AS {kind}) AS pid FROM records"
    )
    sets = [("a", "b")]
    remote, local = (
        count_marginals(data, SCHEMA, sets, person="pid", rows_per_person=2)
        for data in (connection.table("typed"), frame())
    )
    assert (remote["a", "b"] == local["a", "b"]).all()
    assert (remote.people, remote.rows_over_cap) == (local.people, local.rows_over_cap)


@pytest.mark.parametrize(
    "number", ["9007199254740992.0::DOUBLE", "16777216::FLOAT", "1.5::DOUBLE", "1.5::DECIMAL(4,1)"]
)
def test_inexact_number_of_a_database_is_refused(number: str) -> None:
    connection = ibis.duckdb.connect()
    connection.raw_sql(f"CREATE TABLE records AS SELECT 0 AS a, 0 AS b, {number} AS pid")
    with pytest.raises(DataError, match="give identifiers as text"):
        count(connection.table("records"))


def test_database_text_of_float_identifies_the_number() -> None:
    rows = pd.DataFrame({"a": [0, 1, 2, 3], "b": 0, "pid": ["7", "7.0", "07", "7.5"]})
    connection = create_duckdb_table(rows).get_backend()
    assert count(connection.table("records")) == count(rows) == (3, 3)
    connection.raw_sql("UPDATE records SET pid = '1.2E+11' WHERE pid = '7'")
    with pytest.raises(DataError, match="exponent"):
        count(connection.table("records"))


@pytest.mark.parametrize("text", ["7.0", "-12.00", "1.2E+11", "1,2e+05", "1e+05", "+3E+4"])
def test_number_in_bytes_pattern_matches_normalized_texts(text: str) -> None:
    assert re.search(database_module.HEX_NUMBER_PATTERN, text.encode().hex().upper())
    for other_text in (f"x{text}", f"{text}x", "7", "12", "7.5", "1e5", "abc", "70", "2E30"):
        assert not re.search(database_module.HEX_NUMBER_PATTERN, other_text.encode().hex().upper())
