"""Tables in DuckDB: equal counts, failures, cancellation, few bytes fetched."""

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

import engine.records.database as database_module
from engine.errors import Cancelled, DataError
from engine.ledger import release_key
from engine.records import Encoder, count_marginals
from engine.records.database import code_of
from engine.release import measure
from engine.release.measure import is_unfinished
from engine.workload import Attribute, Schema
from tests.databases.samples import (
    ATTRIBUTES,
    PLAN,
    ROWS,
    SCHEMA,
    SECRET_VALUE,
    SETS,
    VALUES,
    Traffic,
    create_duckdb_table,
    create_ledger,
    forbid_reading_rows,
    survey,
)
from tests.records.equal_counts import have_equal_counts


@pytest.fixture(scope="module")
def rows() -> Any:
    return create_duckdb_table(ROWS.append_column("row", pa.array(range(len(ROWS)))))


@pytest.mark.parametrize("kind", ATTRIBUTES)
def test_code_of_each_value_equals_local_code(rows: Any, kind: str) -> None:
    encoders = {name: Encoder(attribute=ATTRIBUTES[kind](name)) for name in VALUES}
    codes = {
        name: code_of(rows[name], encoder, database_module._distinct)
        for name, encoder in encoders.items()
    }
    cells = database_module._run_query(rows.select("row", **codes).order_by("row"))
    for name, encoder in encoders.items():
        assert (
            cells[name].to_pylist() == encoder.encode_values(VALUES[name].to_pylist()).tolist()
        ), name


def test_boolean_for_missing_date_has_local_code() -> None:
    attribute = Attribute.dates(
        "day", "2023-01", "2023-12", "month", missing="unknown", missing_values=["True"]
    )
    encoder, values = Encoder(attribute=attribute), pa.array([True, False, None])
    table = create_duckdb_table(pa.table({"day": values, "row": pa.array(range(3))}))
    code = code_of(table["day"], encoder, database_module._distinct)
    cells = database_module._run_query(table.select("row", day=code).order_by("row"))
    assert cells["day"].to_pylist() == encoder.encode_values(values.to_pylist()).tolist()


# A normal run tests every column once, with the kinds of attributes in turn, so that every kind
# occurs.  A full run tests all pairs.
DIAGONAL = [(name, list(ATTRIBUTES)[i % len(ATTRIBUTES)]) for i, name in enumerate(VALUES)]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        pytest.param(*pair, marks=() if pair in DIAGONAL else pytest.mark.full)
        for pair in itertools.product(VALUES, ATTRIBUTES)
    ],
)
def test_count_of_each_value_equals_local_count(
    rows: Any, name: str, kind: str, monkeypatch: Any
) -> None:
    schema = Schema([ATTRIBUTES[kind](name)])
    expected = count_marginals(ROWS.select([name]), schema, [(name,)], on_refused="drop")
    forbid_reading_rows(monkeypatch)
    counts = count_marginals(rows.select(name), schema, [(name,)], on_refused="drop")
    assert have_equal_counts(counts, expected)
    if expected.rows_refused:
        with pytest.raises(
            DataError, match=f"{expected.rows_refused} of {len(ROWS)} rows do not fit"
        ):
            count_marginals(rows.select(name), schema, [(name,)])


@pytest.mark.parametrize("tables_per_query", [1, 2, 32])
@pytest.mark.parametrize("has_snapshot", [True, False])
def test_counts_of_table_equal_local_counts(
    tables_per_query: int, has_snapshot: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "MAX_TABLES_PER_QUERY", tables_per_query)
    frame, traffic = survey(), Traffic(monkeypatch)
    remote = create_duckdb_table(frame)
    if not has_snapshot:  # like a database that has no temporary tables
        monkeypatch.setattr(database_module, "TEMPORARY_TABLE_BACKENDS", ())
    fractions: list[float] = []
    counts = count_marginals(
        remote, SCHEMA, SETS, on_refused="drop", progress=lambda f, _: fractions.append(f)
    )
    monkeypatch.undo()
    assert have_equal_counts(counts, count_marginals(frame, SCHEMA, SETS, on_refused="drop"))
    assert fractions[-1] == 1.0
    assert 0 < traffic.bytes < 30_000


# With at most -1 reports, every statement is too slow, and with 10**9, none is.
@pytest.mark.parametrize(
    ("max_reports", "first", "expected"),
    [(-1, 3, [3, 1, 1, 1]), (10**9, 1, [1, 2, 3]), (-1, 1, [1] * 6)],
    ids=["slow after three tables", "fast", "slow"],
)
def test_tables_per_statement_depend_on_speed_of_database(
    max_reports: int, first: int, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    set_counts, fractions, real = list[int](), list[float](), database_module._union_all

    def counted_union(schema: Schema, rows: Any, sets: Any, *rest: Any) -> Any:
        set_counts.append(len(sets))
        return real(schema, rows, sets, *rest)

    monkeypatch.setattr(database_module, "_union_all", counted_union)
    monkeypatch.setattr(database_module, "MAX_REPORTS_PER_QUERY", max_reports)
    monkeypatch.setattr(database_module, "MAX_TABLES_OF_FIRST_QUERY", first)
    sets, frame = list(itertools.combinations(SCHEMA.names, 2)), survey(50)
    counts = count_marginals(
        create_duckdb_table(frame),
        SCHEMA,
        sets,
        on_refused="drop",
        progress=lambda f, _: fractions.append(f),
    )
    assert have_equal_counts(counts, count_marginals(frame, SCHEMA, sets, on_refused="drop"))
    assert set_counts == expected
    assert fractions[-1] == 1.0


def test_count_column_in_database_is_summed(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = survey(500).assign(n=np.arange(500) % 7 - 1)
    expected = count_marginals(frame, SCHEMA, SETS, on_refused="drop", count_column="n")
    assert expected.refused["n"]["outside the schema"] > 50
    forbid_reading_rows(monkeypatch)
    assert have_equal_counts(
        count_marginals(
            create_duckdb_table(frame), SCHEMA, SETS, on_refused="drop", count_column="n"
        ),
        expected,
    )
    with pytest.raises(DataError, match="count_column='n'"):
        count_marginals(create_duckdb_table(frame), SCHEMA, SETS, on_refused="drop")


@pytest.mark.parametrize("kind", [str, int])
def test_contribution_bounding_in_database_equals_local_bounding(
    kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = survey(2_000)
    people = (np.random.default_rng(1).pareto(1.0, 2_000) * 100).astype(int).astype(kind)
    frame["pid"] = pd.array(people, "string" if kind is str else "Int64")
    frame.loc[::50, "pid"] = pd.NA
    for cap in (1, 3):
        options: dict[str, Any] = {"on_refused": "drop", "person": "pid", "rows_per_person": cap}
        expected = count_marginals(frame, SCHEMA, SETS[:2], **options)
        assert expected.rows_over_cap > 100
        with monkeypatch.context() as patch:
            forbid_reading_rows(patch)
            assert have_equal_counts(
                count_marginals(create_duckdb_table(frame), SCHEMA, SETS[:2], **options), expected
            )
    with pytest.raises(DataError, match="pid"):
        count_marginals(
            create_duckdb_table(frame.assign(pid=0.5)),
            SCHEMA,
            SETS[:2],
            person="pid",
            on_refused="drop",
        )


def test_text_with_many_numbers_is_counted_locally(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows with more distinct numeric texts than a database statement encodes are fetched."""
    frame = pd.DataFrame({"age": np.random.default_rng(0).uniform(-5, 125, 3_000).astype(str)})
    ages = Schema([SCHEMA["age"]])
    expected = count_marginals(frame, ages, [("age",)], on_refused="drop")
    remote = create_duckdb_table(frame)
    assert have_equal_counts(count_marginals(remote, ages, [("age",)], on_refused="drop"), expected)
    forbid_reading_rows(monkeypatch)
    with pytest.raises(TypeError):
        count_marginals(remote, ages, [("age",)], on_refused="drop")


def test_counting_transfers_only_table_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(2)
    schema = Schema([Attribute.of_size(f"a{i}", 6) for i in range(8)])
    frame = pd.DataFrame({name: rng.integers(0, 6, 60_000) for name in schema})
    sets = [(a, b) for i, a in enumerate(schema) for b in list(schema)[i + 1 :]]
    traffic = Traffic(monkeypatch)
    counts = count_marginals(create_duckdb_table(frame), schema, sets)
    monkeypatch.undo()
    assert have_equal_counts(counts, count_marginals(frame, schema, sets))
    # bytes of the counts of rows: two totals, and five reasons of refusal per attribute
    row_counts = 8 * (2 + 5 * len(schema))
    # 9 bytes per cell of a table: two 32-bit integers and their validity bits
    assert traffic.bytes < 9 * len(sets) * 6**2 + row_counts
    assert traffic.bytes < 0.01 * frame.memory_usage(index=False).sum()


@pytest.mark.parametrize("counts", [(2**31 - 2, 1), (2**31 - 1, 1), (2**31, 2**33)])
def test_counts_above_32_bits_are_exact(counts: tuple[int, int]) -> None:
    frame = pd.DataFrame({"code": [0, 4], "sex": ["F", "M"], "n": counts})
    remote = count_marginals(
        create_duckdb_table(frame), SCHEMA, [("code", "sex"), ("code",), ("sex",)], count_column="n"
    )
    assert remote["code", "sex"][0, 0] == counts[0]  # code 0, sex F
    assert remote["code", "sex"][4, 1] == counts[1]  # code 4, sex M


def test_release_of_table_has_digest_of_records(tmp_path: Path) -> None:
    frame, book = survey(), create_ledger(tmp_path, "local", "remote")
    measure(PLAN, frame, dataset="local", ledger=book)
    measure(PLAN, create_duckdb_table(frame), dataset="remote", ledger=book)
    local, remote = (row.sha256 for row in book.rows() if row.kind == "spend")
    assert local == remote != ""


def test_database_failure_is_reported_and_spends_nothing(tmp_path: Path) -> None:
    book = create_ledger(tmp_path, "d")
    connection = ibis.duckdb.connect()
    for damage, words in (
        (lambda: connection.raw_sql("DROP TABLE records"), "no longer has this table"),
        (
            lambda: connection.raw_sql("ALTER TABLE records DROP COLUMN age"),
            "no longer has this table",
        ),
        (lambda: connection.disconnect(), "cannot be reached"),
    ):
        remote = create_duckdb_table(survey(50), connection)
        damage()
        with pytest.raises(DataError, match=words) as caught:
            measure(PLAN, remote, dataset="d", ledger=book)
        assert caught.value.__context__ is None
    assert book.status("d").spent == 0
    with pytest.raises(DataError, match="no column 'age'"):
        count_marginals(create_duckdb_table(survey(9).drop(columns="age")), SCHEMA, SETS)


ENDLESS = (
    "SELECT 'F' AS sex, abs(sin(range)) AS age, 1 AS code, '1' AS zip FROM range(1000000000000)"
)


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("paid", "has_snapshot"),
    [
        (True, True),
        (False, False),
        *(pytest.param(paid, not paid, marks=pytest.mark.full) for paid in (True, False)),
    ],
)
def test_cancelled_query_is_stopped_and_spends_nothing(
    paid: bool, has_snapshot: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    book, frame = create_ledger(tmp_path, "d"), survey(50)
    release_args: dict[str, Any] = {"dataset": "d", "ledger": book}
    if paid:  # a release interrupted after its spend
        with monkeypatch.context() as patch:
            patch.setattr(sys.modules["engine.release.measure"], "draw", interrupt)
            with pytest.raises(KeyboardInterrupt):
                measure(PLAN, frame, **release_args)
    if not has_snapshot:
        monkeypatch.setattr(database_module, "TEMPORARY_TABLE_BACKENDS", ())
    connection, spent, messages = ibis.duckdb.connect(), book.status("d").spent, []

    def cancel(*status: Any) -> bool:
        messages.append(status)
        return False

    threads_before = threading.active_count()
    with pytest.raises(Cancelled, match="This run has spent nothing"):
        measure(PLAN, connection.sql(ENDLESS), progress=cancel, **release_args)
    assert len(messages) == 1
    assert threading.active_count() == threads_before
    assert book.status("d").spent == spent == (PLAN.pcost if paid else 0.0)
    assert is_unfinished(book, release_key(dataset="d", plan_hash=PLAN.hash, attempt=1)) is paid
    assert not connection.list_tables()
    measure(PLAN, create_duckdb_table(frame, connection), **release_args)
    assert book.status("d").spent == PLAN.pcost


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("InsufficientPrivilege", "denies access"),
        ("QueryCanceled", "stopped before"),
        ("InterfaceError", "cannot be reached"),
    ],
)
def test_database_error_message_hides_values(
    kind: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise type(kind, (Exception,), {})(f"age = {SECRET_VALUE}")

    remote = create_duckdb_table(survey(9))
    monkeypatch.setattr(type(remote), "to_pyarrow", fail)
    with pytest.raises(DataError, match=words) as caught:
        count_marginals(remote, SCHEMA, SETS, on_refused="drop")
    assert SECRET_VALUE not in str(caught.value)
    assert caught.value.__context__ is None


def test_count_without_snapshot_is_one_statement(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = survey(90)
    remote, fetch, statements = create_duckdb_table(frame), database_module._run_query, []
    monkeypatch.setattr(database_module, "TEMPORARY_TABLE_BACKENDS", ())

    def fetch_and_update(expression: Any) -> pa.Table:
        statements.append(expression)
        answer = fetch(expression)
        remote.get_backend().raw_sql("UPDATE records SET sex = 'F', code = 1, zip = '1'")
        return answer

    monkeypatch.setattr(database_module, "_run_query", fetch_and_update)
    sets = [("sex", "code"), ("age", "sex"), ("code", "age")]
    counts = count_marginals(remote, SCHEMA, sets, on_refused="drop")
    assert have_equal_counts(counts, count_marginals(frame, SCHEMA, sets, on_refused="drop"))
    assert len(statements) == 1
    # too many sets for one statement are counted locally, from rows that are read once
    monkeypatch.setattr(database_module, "MAX_SELECTS", 6)
    monkeypatch.setattr(database_module, "_run_query", None)
    assert count_marginals(remote, SCHEMA, sets, on_refused="drop").rows_in == len(frame)


def test_texts_in_database_are_compared_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts that differ only in case are different values, as in local records.

    The columns have a collation that ignores case, or are enumerations that DuckDB stores as
    numbers.
    """
    connection = ibis.duckdb.connect()
    texts = ["F", "f", "é", "É", "", None, "1", "NaN", "nan", "NAN"]
    connection.raw_sql(
        "CREATE TABLE records (text VARCHAR COLLATE nocase, pid VARCHAR COLLATE nocase, mood ENUM"
        " ('F', 'f', '1'))"
    )
    moods = ["F", "f", "1", None] * 2 + ["F", "f"]
    connection.con.executemany(
        "INSERT INTO records VALUES (?, ?, ?)", list(zip(texts, texts, moods, strict=True))
    )
    remote = connection.table("records")
    rows = pa.table({"text": texts, "pid": texts, "mood": moods})
    for make_attribute in ATTRIBUTES.values():
        schema = Schema([make_attribute("text"), make_attribute("mood")])
        for options in ({}, {"person": "pid"}):
            expected = count_marginals(
                rows, schema, [("text",), ("mood",)], on_refused="drop", **options
            )
            with monkeypatch.context() as patch:
                forbid_reading_rows(patch)
                counts = count_marginals(
                    remote, schema, [("text",), ("mood",)], on_refused="drop", **options
                )
            assert have_equal_counts(counts, expected)


def test_decimals_are_counted_in_database(monkeypatch: pytest.MonkeyPatch) -> None:
    cents = np.random.default_rng(4).integers(-200, 13_000, 4_000)
    rows = pa.table(
        {"age": pa.array([Decimal(int(c)).scaleb(-2) for c in cents], pa.decimal128(18, 2))}
    )
    for attribute in (
        Attribute.numeric("age", [0, 0.1, 1 / 3, 50.25, 120]),
        Attribute.of_size("age", 90),
    ):
        expected = count_marginals(rows, Schema([attribute]), [("age",)], on_refused="drop")
        assert 20 < expected.records < 4_000
        with monkeypatch.context() as patch:
            forbid_reading_rows(patch)
            assert have_equal_counts(
                count_marginals(
                    create_duckdb_table(rows), Schema([attribute]), [("age",)], on_refused="drop"
                ),
                expected,
            )
