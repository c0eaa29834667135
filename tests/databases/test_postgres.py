"""Tables in PostgreSQL: equal counts, failures and cancellation."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import engine.records.database as database_module
from engine.errors import Cancelled, DataError
from engine.ledger import Ledger
from engine.records import Encoder, count_marginals, read_batches
from engine.records.database import code_of
from engine.release import measure
from engine.release.public_draft import draft_of_public
from engine.workload import Attribute, Schema
from pages.parts.jobs.record_sources import NAMED
from tests.databases.postgres import Server, server
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
from tests.records.equal_counts import have_equal_counts
from tests.waiting import until

COLUMN_TYPES = {
    "text": "text",
    "spelled": "varchar",
    "integer": "bigint",
    "large": "numeric",
    "small": "smallint",
    "float": "double precision",
    "more": "double precision",
    "narrow": "real",
    "yes": "boolean",
    "money": "numeric(9, 2)",
    "day": "date",
    "list": "bigint[]",
}
NAN = Decimal("NaN")
FAR = [Decimal("Infinity"), Decimal("-Infinity"), Decimal("0." + "3" * 60), Decimal(10) ** 60]
SPECIAL: dict[str, tuple[str, list[Any]]] = {  # type and values of each column
    "folded": ("text COLLATE nocase", ["F", "f", "U", "1", "", None, "\\x46", "'"]),
    "fixed": ("char(3)", ["F  ", "f  ", "1  ", "   ", "Fa ", None, "rest"[:3], "01 "]),
    "mood": ("mood", ["F", "f", "", "ü", "1", None, "F", "F"]),
    "free": ("numeric", [NAN, *FAR, Decimal("0.1"), Decimal(1), None]),
    "price": (
        "numeric(12, 3)",
        [NAN, *(Decimal(n).scaleb(-3) for n in (0, 100, 333, 334, 2500, -1500)), None],
    ),
    "number": ("varchar COLLATE nocase", ["NaN", "nan", "1E0", "1e0", "x", "", None, " 2"]),
}


@pytest.fixture(scope="module")
def postgres() -> Iterator[Server]:
    with server() as running:
        yield running


@pytest.fixture(scope="module")
def owner(postgres: Server) -> Any:
    connection = postgres.connect()
    for text in (
        (
            "CREATE COLLATION nocase (provider = icu, locale = 'und-u-ks-level2', deterministic ="
            " false)"
        ),
        "CREATE TYPE mood AS ENUM ('F', 'f', '', 'ü', '1')",
        "REVOKE TEMPORARY ON DATABASE postgres FROM public",
        "CREATE ROLE reader LOGIN",
        "CREATE ROLE stranger LOGIN",
    ):
        connection.raw_sql(text)
    return connection


def create_table(connection: Any, kinds: dict[str, str], rows: list[tuple[Any, ...]]) -> Any:
    """Create the table of records anew, and grant the database role `reader` access to it."""
    with connection.con.cursor() as cursor:
        cursor.execute("DROP TABLE IF EXISTS records")
        cursor.execute(
            f"CREATE TABLE records ({', '.join(f'{name} {kind}' for name, kind in kinds.items())})"
        )
        cursor.executemany(f"INSERT INTO records VALUES ({', '.join(['%s'] * len(kinds))})", rows)
        cursor.execute("GRANT SELECT ON records TO reader")
    return connection.table("records")


def create_records(connection: Any, frame: pd.DataFrame) -> Any:
    """Create a table of records with PostgreSQL types for its columns."""
    kinds = {
        "sex": "text",
        "age": "float8",
        "code": "int",
        "zip": "text",
        "n": "int",
        "pid": "text",
    }
    kinds = {name: kinds[name] for name in frame}
    if "pid" in frame and frame["pid"].dtype != "string":
        kinds["pid"] = "bigint"
    return create_table(
        connection,
        kinds,
        [tuple(row) for row in frame.astype(object).where(frame.notna(), None).to_numpy()],
    )


@pytest.mark.parametrize("kind", ATTRIBUTES)
@pytest.mark.parametrize("has_special_types", [False, True])
def test_code_of_each_value_equals_local_code(
    owner: Any, kind: str, has_special_types: bool
) -> None:
    if has_special_types:
        types = {name: sql_type for name, (sql_type, _) in SPECIAL.items()}
        columns = {name: values for name, (_, values) in SPECIAL.items()}
    else:
        types, columns = COLUMN_TYPES, {name: ROWS[name].to_pylist() for name in COLUMN_TYPES}
    rows = zip(itertools.count(), *columns.values(), strict=False)
    remote = create_table(owner, {"row": "int", **types}, list(rows))
    encoders = {name: Encoder(attribute=ATTRIBUTES[kind](name)) for name in types}
    codes = {
        name: code_of(remote[name], encoder, database_module._distinct)
        for name, encoder in encoders.items()
    }
    cells = remote.select(row=remote["row"], **codes).order_by("row").to_pyarrow()
    if "fixed" in columns:  # char(n) is padded with blanks, which are not significant
        columns["fixed"] = [value and value.rstrip(" ") for value in columns["fixed"]]
    for name, encoder in encoders.items():
        assert cells[name].to_pylist() == encoder.encode_values(columns[name]).tolist(), name


@pytest.mark.parametrize("user", ["owner", "reader"])  # the reader may not create tables
def test_counts_of_table_equal_local_counts(
    postgres: Server, owner: Any, user: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = survey().assign(n=np.arange(3_000) % 7 - 1)
    option_sets: list[dict[str, Any]] = [{"ignore": ["n"]}, {"count_column": "n"}]
    expected_counts = [
        count_marginals(frame, SCHEMA, SETS, on_refused="drop", **options)
        for options in option_sets
    ]
    create_records(owner, frame)
    connection = postgres.connect(user)
    remote, traffic = connection.table("records"), Traffic(monkeypatch)
    monkeypatch.setattr(database_module, "MAX_TABLES_PER_QUERY", 3)
    monkeypatch.setattr(database_module, "MAX_RESULT_COLUMNS", 3)
    for options, expected in zip(option_sets, expected_counts, strict=True):
        assert expected.rows_refused > 100
        assert have_equal_counts(
            count_marginals(remote, SCHEMA, SETS, on_refused="drop", **options), expected
        )
    assert 0 < traffic.bytes < 30_000
    assert not [name for name in connection.list_tables() if name != "records"]
    connection.disconnect()


@pytest.mark.parametrize("kind", ["string", "Int64"])
def test_contribution_bounding_in_database_equals_local_bounding(
    owner: Any, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = survey(1_000)
    people = (np.random.default_rng(1).pareto(1.0, 1_000) * 100).astype(int)
    frame["pid"] = pd.array(people, "Int64").astype(kind)
    frame.loc[::50, "pid"] = pd.NA
    remote = create_records(owner, frame)
    for cap in (1, 3):
        options: dict[str, Any] = {"on_refused": "drop", "person": "pid", "rows_per_person": cap}
        expected = count_marginals(frame, SCHEMA, SETS[:2], **options)
        assert expected.rows_over_cap > 30
        with monkeypatch.context() as patch:
            forbid_reading_rows(patch)
            assert have_equal_counts(count_marginals(remote, SCHEMA, SETS[:2], **options), expected)


def drop_table(owner: Any, _: Any) -> None:
    owner.raw_sql("DROP TABLE records")


def rename_column(owner: Any, _: Any) -> None:
    owner.raw_sql("ALTER TABLE records RENAME COLUMN age TO years")


def change_type(owner: Any, _: Any) -> None:
    owner.raw_sql(f"ALTER TABLE records ALTER COLUMN age TYPE text USING '{SECRET_VALUE}'")


def revoke_select(owner: Any, _: Any) -> None:
    owner.raw_sql("REVOKE SELECT ON records FROM reader")


def terminate_connection(owner: Any, reader: Any) -> None:
    owner.raw_sql(f"SELECT pg_terminate_backend({reader.con.info.backend_pid}, 10000)")


def block_rows(owner: Any, reader: Any | None, limit: str = "20") -> None:
    """Add a row-level security policy that sleeps 600 s, so that reading the records times out.

    The statement timeout of the connection ``reader`` becomes ``limit`` milliseconds, unless the
    connection is None.
    """
    owner.raw_sql("ALTER TABLE records ENABLE ROW LEVEL SECURITY")
    owner.raw_sql("CREATE POLICY slow ON records USING (pg_sleep(600) IS NOT NULL)")
    if reader is not None:
        reader.raw_sql(f"SET statement_timeout = {limit}")


def prepare_release(postgres: Server, owner: Any, folder: Path) -> tuple[Ledger, Any]:
    """Create records and a ledger; return the ledger and a connection of the role `reader`."""
    create_records(owner, survey(50))
    return create_ledger(folder, "d"), postgres.connect("reader")


FAILURES: list[tuple[Callable[[Any, Any], None], str]] = [
    (drop_table, "no longer has this table"),
    (rename_column, "no longer has this table"),
    (change_type, "no longer has this table"),
    (revoke_select, "denies access"),
    (terminate_connection, "cannot be reached"),
    (block_rows, "stopped before all"),
]


@pytest.mark.parametrize(
    ("damage", "words", "when"),
    # A change of type is not tested "midway", because the column is a text in this test. Every type
    # can be cast to a text, so counting would not fail.
    [
        (*failure, when)
        for when in ("before", "midway")
        for failure in FAILURES
        if (failure[0], when) != (change_type, "midway")
    ],
)
def test_database_failure_is_reported_and_spends_nothing(
    postgres: Server,
    owner: Any,
    tmp_path: Path,
    damage: Callable[[Any, Any], None],
    words: str,
    when: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    book, reader = prepare_release(postgres, owner, tmp_path)
    if when == "midway":
        # If age is a text, a first query fetches its distinct values, and a second query counts.
        # The damage happens between the two queries.
        owner.raw_sql("ALTER TABLE records ALTER COLUMN age TYPE text")
    remote, fetch = reader.table("records"), database_module._run_query

    def midway(expression: Any) -> Any:
        answer = fetch(expression)
        reader.con.commit()  # otherwise the change waits for the end of this transaction
        damage(owner, reader)
        monkeypatch.setattr(database_module, "_run_query", fetch)
        return answer

    if when == "midway":
        monkeypatch.setattr(database_module, "_run_query", midway)
    else:
        damage(owner, reader)
    with pytest.raises(DataError, match=words) as caught:
        measure(PLAN, remote, dataset="d", ledger=book)
    assert SECRET_VALUE not in str(caught.value)
    assert caught.value.__context__ is None
    assert book.status("d").spent == 0
    reader.con.close()


def test_cancelled_query_is_stopped_and_spends_nothing(
    postgres: Server, owner: Any, tmp_path: Path
) -> None:
    book, reader = prepare_release(postgres, owner, tmp_path)
    remote = reader.table("records")
    block_rows(owner, reader, limit="0")
    busy = (
        f"SELECT 1 FROM pg_stat_activity WHERE pid = {reader.con.info.backend_pid} AND state ="
        " 'active'"
    )
    with pytest.raises(Cancelled, match="This run has spent nothing"):
        measure(
            PLAN, remote, dataset="d", ledger=book, progress=lambda *_: not fetch_rows(owner, busy)
        )
    assert not fetch_rows(owner, busy)
    assert book.status("d").spent == 0
    reader.con.close()


COUNT_SLOW = f"""
from engine.records import count_marginals
from pages.parts.jobs.record_sources import open_source
from tests.databases.samples import SCHEMA, SETS
with open_source("{NAMED}slow") as table:
    count_marginals(table, SCHEMA, SETS, on_refused="drop")
"""


def test_query_of_terminated_worker_is_stopped(
    postgres: Server, owner: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_records(owner, survey(50))
    block_rows(owner, None)
    settings = tmp_path / "sources.toml"
    settings.write_text(
        "[slow]\naddress ="
        f' "postgres://reader@127.0.0.1:{postgres.port}/postgres?application_name=worker"\ntable ='
        ' "records"\n'
    )
    monkeypatch.setenv("DP_WORKBENCH_SOURCES", str(settings))

    busy = "SELECT 1 FROM pg_stat_activity WHERE application_name = 'worker' AND state = 'active'"
    # not a fork, because the database libraries run threads in this process
    with subprocess.Popen(
        [sys.executable, "-c", COUNT_SLOW], cwd=Path(__file__).parents[2]
    ) as worker:
        until(
            lambda: (
                worker.poll() is not None or fetch_rows(owner, f"{busy} AND wait_event = 'PgSleep'")
            )
        )
        assert worker.poll() is None
        worker.terminate()
    until(lambda: not fetch_rows(owner, busy))


def fetch_rows(connection: Any, query: str) -> list[Any]:
    with connection.con.cursor() as cursor:
        rows: list[Any] = cursor.execute(query).fetchall()
        connection.con.commit()
    return rows


def test_release_of_table_has_digest_of_records(owner: Any, tmp_path: Path) -> None:
    frame, book = survey(300), create_ledger(tmp_path, "local", "remote")
    for name, data in (("local", frame), ("remote", create_records(owner, frame))):
        measure(PLAN, data, dataset=name, ledger=book)
    local, remote = (row.sha256 for row in book.rows() if row.kind == "spend")
    assert local == remote != ""


def test_char_columns_count_and_draft_without_padding(postgres: Server) -> None:
    connection = postgres.connect()
    connection.raw_sql("CREATE TEMPORARY TABLE padded (a char(3), b varchar(3), u uuid)")
    connection.raw_sql(
        "INSERT INTO padded VALUES ('F', 'F ', gen_random_uuid()), ('M', 'M ', gen_random_uuid()),"
        " (NULL, NULL, NULL)"
    )
    table = connection.table("padded")
    draft = draft_of_public(table)
    assert [a.labels for a in draft.schema.attributes] == [("F", "M"), ("F ", "M ")]
    assert "uuid" in draft.reasons["u"]
    assert next(read_batches(table, ["a"])).columns[0].to_pylist() == ["F", "M", None]
    counts = count_marginals(table, draft.schema, [("a",), ("b",)], on_refused="drop")
    assert counts["a",].tolist() == [1, 1]
    assert counts["b",].tolist() == [1, 1]
    with pytest.raises(DataError, match="'u' has the type uuid"):
        count_marginals(table, Schema([Attribute.categorical("u", ["x"])]), [("u",)])
