"""Tables that are counted in a database: the same integers as here, value for value, and hardly a byte that travels."""

from __future__ import annotations

import itertools
import sys
import threading
from decimal import Decimal
from pathlib import Path
from typing import Any

import ibis
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import engine.records.database as grouped
from engine.errors import Cancelled, DataError
from engine.ledger import Ledger, release_key
from engine.mechanisms import plan
from engine.privacy import Budget
from engine.records import Encoder, count_marginals
from engine.records.database import code_of
from engine.release import measure
from engine.release.measure import is_unfinished
from engine.workload import Attribute, Schema, Workload
from tests.databases.samples import ATTRIBUTES, ROWS, SCHEMA, SETS, VALUES, Traffic, same, survey


def table(frame: pd.DataFrame | pa.Table) -> Any:
    return stored(ibis.duckdb.connect(), frame)


def stored(connection: Any, frame: pd.DataFrame | pa.Table) -> Any:
    """A table in the database itself, not a view of ours."""
    connection.con.register("given", frame)
    connection.raw_sql("CREATE OR REPLACE TABLE records AS SELECT * FROM given")
    connection.con.unregister("given")
    return connection.table("records")


@pytest.fixture(scope="module")
def rows() -> Any:
    return table(ROWS.append_column("row", pa.array(range(len(ROWS)))))


@pytest.mark.parametrize("kind", ATTRIBUTES)
def test_every_value_lies_in_the_cell_that_it_lies_in_here(rows: Any, kind: str) -> None:
    encoders = {name: Encoder(attribute=ATTRIBUTES[kind](name)) for name in VALUES}
    codes = {name: code_of(rows[name], encoder, grouped._distinct) for name, encoder in encoders.items()}
    found = grouped._fetched(rows.select("row", **codes).order_by("row"))
    for name, encoder in encoders.items():
        assert found[name].to_pylist() == encoder.objects(VALUES[name].to_pylist()).tolist(), name


# every column and every kind of attribute in every run, each column as one of them
DIAGONAL = [(name, list(ATTRIBUTES)[i % len(ATTRIBUTES)]) for i, name in enumerate(VALUES)]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        pytest.param(*pair, marks=() if pair in DIAGONAL else pytest.mark.full)
        for pair in itertools.product(VALUES, ATTRIBUTES)
    ],
)
def test_every_value_is_counted_or_refused_as_it_is_here(rows: Any, name: str, kind: str, monkeypatch: Any) -> None:
    schema = Schema([ATTRIBUTES[kind](name)])
    here = count_marginals(ROWS.select([name]), schema, [(name,)], on_refused="drop")
    Traffic(monkeypatch)
    there = count_marginals(rows.select(name), schema, [(name,)], on_refused="drop")
    assert same(there, here)
    if here.rows_refused:
        with pytest.raises(DataError, match=f"{here.rows_refused} of 13 rows do not fit"):
            count_marginals(rows.select(name), schema, [(name,)])


@pytest.mark.parametrize("together", [1, 2, 32])
@pytest.mark.parametrize("kept", [True, False])
def test_all_tables_are_those_that_are_counted_here(together: int, kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouped, "TOGETHER", together)
    frame, traffic = survey(), Traffic(monkeypatch)
    there = table(frame)
    if not kept:  # where no table may be made
        monkeypatch.setattr(grouped, "KEEPING", ())
    seen: list[float] = []
    found = count_marginals(there, SCHEMA, SETS, on_refused="drop", progress=lambda f, _: seen.append(f))
    monkeypatch.undo()
    assert same(found, count_marginals(frame, SCHEMA, SETS, on_refused="drop"))
    assert seen[-1] == 1.0
    assert 0 < traffic.bytes < 30_000


@pytest.mark.parametrize(
    ("news", "first", "expected"), [(-1, 3, [3, 1, 1, 1]), (10**9, 1, [1, 2, 3]), (-1, 1, [1] * 6)]
)
def test_a_database_that_takes_long_is_asked_for_fewer_tables_at_once(
    news: int, first: int, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, seen, real = list[int](), list[float](), grouped._one_by_one

    def one_by_one(schema: Schema, rows: Any, sets: Any, *rest: Any) -> Any:
        asked.append(len(sets))
        return real(schema, rows, sets, *rest)

    monkeypatch.setattr(grouped, "_one_by_one", one_by_one)
    monkeypatch.setattr(grouped, "NEWS", news)
    monkeypatch.setattr(grouped, "FIRST", first)
    sets, frame = list(itertools.combinations(SCHEMA.names, 2)), survey(50)
    found = count_marginals(table(frame), SCHEMA, sets, on_refused="drop", progress=lambda f, _: seen.append(f))
    assert same(found, count_marginals(frame, SCHEMA, sets, on_refused="drop"))
    assert (asked, seen[-1]) == (expected, 1.0)


def test_counts_in_a_column_add_up_there_too(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = survey(500).assign(n=np.arange(500) % 7 - 1)
    here = count_marginals(frame, SCHEMA, SETS, on_refused="drop", count_column="n")
    assert here.refused["n"]["outside the public domain"] > 50
    Traffic(monkeypatch)
    assert same(count_marginals(table(frame), SCHEMA, SETS, on_refused="drop", count_column="n"), here)
    with pytest.raises(DataError, match="count_column='n'"):
        count_marginals(table(frame), SCHEMA, SETS, on_refused="drop")


@pytest.mark.parametrize("kind", [str, int])
def test_the_cap_of_rows_per_person_keeps_the_same_rows(kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = survey(2_000)
    people = (np.random.default_rng(1).pareto(1.0, 2_000) * 100).astype(int).astype(kind)
    frame["pid"] = pd.array(people, "string" if kind is str else "Int64")
    frame.loc[::50, "pid"] = pd.NA
    for cap in (1, 3):
        given: dict[str, Any] = {"on_refused": "drop", "person": "pid", "rows_per_person": cap}
        here = count_marginals(frame, SCHEMA, SETS[:2], **given)
        assert here.rows_over_cap > 100
        with monkeypatch.context() as patch:
            Traffic(patch)
            assert same(count_marginals(table(frame), SCHEMA, SETS[:2], **given), here)
    with pytest.raises(DataError, match="not whole"):
        count_marginals(table(frame.assign(pid=0.5)), SCHEMA, SETS[:2], person="pid", on_refused="drop")


def test_values_that_no_rule_there_fits_travel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts that spell more numbers than are looked at one by one."""
    frame = pd.DataFrame({"age": np.random.default_rng(0).uniform(-5, 125, 3_000).astype(str)})
    ages = Schema([SCHEMA["age"]])
    assert same(
        count_marginals(table(frame), ages, [("age",)], on_refused="drop"),
        count_marginals(frame, ages, [("age",)], on_refused="drop"),
    )


def test_hardly_a_byte_travels(monkeypatch: pytest.MonkeyPatch) -> None:
    rng, schema = np.random.default_rng(2), Schema([Attribute.of_size(f"a{i}", 6) for i in range(8)])
    frame = pd.DataFrame({name: rng.integers(0, 6, 60_000) for name in schema})
    sets = [(a, b) for i, a in enumerate(schema) for b in list(schema)[i + 1 :]]
    traffic = Traffic(monkeypatch)
    found = count_marginals(table(frame), schema, sets)
    monkeypatch.undo()
    assert same(found, count_marginals(frame, schema, sets))
    reasons = 8 * (2 + 5 * len(schema))
    assert traffic.bytes < 9 * len(sets) * 6**2 + reasons  # two numbers of 32 bits a cell
    assert traffic.bytes < 0.01 * frame.memory_usage(index=False).sum()


@pytest.mark.parametrize("counts", [(2**31 - 2, 1), (2**31 - 1, 1), (2**31, 2**33)])
def test_counts_beyond_32_bits_travel_whole(counts: tuple[int, int]) -> None:
    frame = pd.DataFrame({"code": [0, 4], "sex": ["F", "M"], "n": counts})
    there = count_marginals(table(frame), SCHEMA, [("code", "sex"), ("code",), ("sex",)], count_column="n")
    assert there["code", "sex"][[0, 4], [0, 1]].tolist() == list(counts)


def test_a_release_of_a_table_is_one_of_its_records(tmp_path: Path) -> None:
    frame, book = survey(), Ledger.create(tmp_path / "book")
    made = plan(Workload(SCHEMA).add(("sex", "age"), "marginal"), Budget(pcost=1e6))
    for name in ("here", "there"):
        book.add_dataset(name, total=Budget(pcost=1e7))
    measure(made, frame, dataset="here", ledger=book)
    measure(made, table(frame), dataset="there", ledger=book)
    one, two = (row for row in book.rows() if row.kind == "spend")
    assert one.sha256 == two.sha256 != ""


def test_what_fails_there_is_named_and_spends_nothing(tmp_path: Path) -> None:
    book = Ledger.create(tmp_path / "book")
    book.add_dataset("d", total=Budget(pcost=1e7))
    made = plan(Workload(SCHEMA).add(("sex", "age"), "marginal"), Budget(pcost=1e6))
    connection = ibis.duckdb.connect()
    for spoil, words in (
        (lambda: connection.raw_sql("DROP TABLE records"), "has another table, or other columns"),
        (
            lambda: connection.raw_sql("ALTER TABLE records DROP COLUMN age"),
            "has another table, or other columns",
        ),
        (lambda: connection.disconnect(), "cannot be reached"),
    ):
        there = stored(connection, survey(50))
        spoil()
        with pytest.raises(DataError, match=words) as caught:
            measure(made, there, dataset="d", ledger=book)
        assert caught.value.__context__ is None
    assert book.status("d").spent == 0
    with pytest.raises(DataError, match="no column 'age'"):
        count_marginals(table(survey(9).drop(columns="age")), SCHEMA, SETS)


ENDLESS = "SELECT 'F' AS sex, abs(sin(range)) AS age, 1 AS code, '1' AS zip FROM range(1000000000000)"


def broken_off(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("paid", "kept"),
    [(True, True), (False, False), *(pytest.param(paid, not paid, marks=pytest.mark.full) for paid in (True, False))],
)
def test_a_question_that_takes_too_long_is_stopped_and_costs_nothing(
    paid: bool, kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    book, frame = Ledger.create(tmp_path / "book"), survey(50)
    book.add_dataset("d", total=Budget(pcost=1e7))
    made = plan(Workload(SCHEMA).add(("sex", "age"), "marginal"), Budget(pcost=1e6))
    asked: dict[str, Any] = {"dataset": "d", "ledger": book}
    if paid:  # a release that broke off after its spend
        with monkeypatch.context() as patch:
            patch.setattr(sys.modules["engine.release.measure"], "draw", broken_off)
            with pytest.raises(KeyboardInterrupt):
                measure(made, frame, **asked)
    if not kept:
        monkeypatch.setattr(grouped, "KEEPING", ())
    connection, spent, told = ibis.duckdb.connect(), book.status("d").spent, []
    before = threading.active_count()
    with pytest.raises(Cancelled, match="This run has spent nothing"):
        measure(made, connection.sql(ENDLESS), progress=lambda *said: told.append(said) is not None, **asked)
    assert len(told) == 1
    assert threading.active_count() == before
    assert book.status("d").spent == spent == (made.pcost if paid else 0.0)
    assert is_unfinished(book, release_key(dataset="d", plan_hash=made.hash, attempt=1)) is paid
    assert not connection.list_tables()
    measure(made, stored(connection, frame), **asked)
    assert book.status("d").spent == made.pcost


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("InsufficientPrivilege", "let you read"),
        ("QueryCanceled", "stopped before"),
        ("InterfaceError", "cannot be reached"),
    ],
)
def test_errors_are_told_by_their_kind_alone(kind: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise type(kind, (Exception,), {})("CANARY7391")

    there = table(survey(9))
    monkeypatch.setattr(type(there), "to_pyarrow", fail)
    with pytest.raises(DataError, match=words) as caught:
        count_marginals(there, SCHEMA, SETS, on_refused="drop")
    assert "7391" not in str(caught.value)
    assert caught.value.__context__ is None


def test_count_without_snapshot_is_one_statement(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = survey(90)
    there, fetched, statements = table(frame), grouped._fetched, []
    monkeypatch.setattr(grouped, "KEEPING", ())

    def change(expression: Any) -> pa.Table:
        statements.append(expression)
        found = fetched(expression)
        there.get_backend().raw_sql("UPDATE records SET sex = 'F', code = 1, zip = '1'")
        return found

    monkeypatch.setattr(grouped, "_fetched", change)
    sets = [("sex", "code"), ("age", "sex"), ("code", "age")]
    found = count_marginals(there, SCHEMA, sets, on_refused="drop")
    assert same(found, count_marginals(frame, SCHEMA, sets, on_refused="drop"))
    assert len(statements) == 1
    # the tables of too many sets for one statement are counted here, from rows that are read once
    monkeypatch.setattr(grouped, "MAX_STATEMENT_PARTS", 6)
    monkeypatch.setattr(grouped, "_fetched", None)
    assert count_marginals(there, SCHEMA, sets, on_refused="drop").rows_in == 90


def test_texts_are_the_same_there_only_when_their_bytes_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the database takes small letters for large ones, and a value of an enumeration for a number."""
    connection, texts = ibis.duckdb.connect(), ["F", "f", "é", "É", "", None, "1", "NaN", "nan", "NAN"]
    connection.raw_sql(
        "CREATE TABLE records (text VARCHAR COLLATE nocase, pid VARCHAR COLLATE nocase, mood ENUM ('F', 'f', '1'))"
    )
    moods = ["F", "f", "1", None] * 2 + ["F", "f"]
    connection.con.executemany("INSERT INTO records VALUES (?, ?, ?)", list(zip(texts, texts, moods, strict=True)))
    there, rows = connection.table("records"), pa.table({"text": texts, "pid": texts, "mood": moods})
    for make in ATTRIBUTES.values():
        schema = Schema([make("text"), make("mood")])
        for given in ({}, {"person": "pid"}):
            here = count_marginals(rows, schema, [("text",), ("mood",)], on_refused="drop", **given)
            with monkeypatch.context() as patch:
                Traffic(patch)
                found = count_marginals(there, schema, [("text",), ("mood",)], on_refused="drop", **given)
            assert same(found, here)


def test_decimals_of_any_number_of_values_stay_there(monkeypatch: pytest.MonkeyPatch) -> None:
    cents = np.random.default_rng(4).integers(-200, 13_000, 4_000)
    rows = pa.table({"age": pa.array([Decimal(int(c)).scaleb(-2) for c in cents], pa.decimal128(18, 2))})
    for attribute in (Attribute.numeric("age", [0, 0.1, 1 / 3, 50.25, 120]), Attribute.of_size("age", 90)):
        here = count_marginals(rows, Schema([attribute]), [("age",)], on_refused="drop")
        assert 20 < here.records < 4_000
        with monkeypatch.context() as patch:
            Traffic(patch)
            assert same(count_marginals(table(rows), Schema([attribute]), [("age",)], on_refused="drop"), here)
