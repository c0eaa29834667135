"""Tables of PostgreSQL: the same integers as here, and what goes wrong there has a name and costs nothing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import engine.records.database as grouped
from engine.errors import Cancelled, DataError
from engine.ledger import Ledger
from engine.mechanisms import plan
from engine.plans import Plan
from engine.privacy import Budget
from engine.records import Encoder, count_marginals, read_batches
from engine.records.database import code_of
from engine.release import measure
from engine.release.public_draft import draft_of_public
from engine.workload import Attribute, Schema, Workload
from pages.parts.jobs.sources import NAMED
from tests.databases.postgres import Server, server
from tests.databases.samples import ATTRIBUTES, ROWS, SCHEMA, SETS, Traffic, same, survey
from tests.waiting import until

KINDS = {
    "text": "text",
    "spelled": "varchar",
    "whole": "bigint",
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
ODD: dict[str, tuple[str, list[Any]]] = {  # a type of its own, and values
    "folded": ("text COLLATE nocase", ["F", "f", "U", "1", "", None, "\\x46", "'"]),
    "fixed": ("char(3)", ["F  ", "f  ", "1  ", "   ", "Fa ", None, "rest"[:3], "01 "]),
    "mood": ("mood", ["F", "f", "", "ü", "1", None, "F", "F"]),
    "free": ("numeric", [NAN, *FAR, Decimal("0.1"), Decimal(1), None]),
    "price": ("numeric(12, 3)", [NAN, *(Decimal(n).scaleb(-3) for n in (0, 100, 333, 334, 2500, -1500)), None]),
    "number": ("varchar COLLATE nocase", ["NaN", "nan", "1E0", "1e0", "x", "", None, " 2"]),
}


@pytest.fixture(scope="module")
def postgres() -> Iterator[Server]:
    with server() as found:
        yield found


@pytest.fixture(scope="module")
def keeper(postgres: Server) -> Any:
    connection = postgres.connect()
    for text in (
        "CREATE COLLATION nocase (provider = icu, locale = 'und-u-ks-level2', deterministic = false)",
        "CREATE TYPE mood AS ENUM ('F', 'f', '', 'ü', '1')",
        "REVOKE TEMPORARY ON DATABASE postgres FROM public",
        "CREATE ROLE reader LOGIN",
        "CREATE ROLE stranger LOGIN",
    ):
        connection.raw_sql(text)
    return connection


def stored(connection: Any, kinds: dict[str, str], rows: list[tuple[Any, ...]]) -> Any:
    """A table of records, made anew, which a reader may read."""
    with connection.con.cursor() as cursor:
        cursor.execute("DROP TABLE IF EXISTS records")
        cursor.execute(f"CREATE TABLE records ({', '.join(f'{name} {kind}' for name, kind in kinds.items())})")
        cursor.executemany(f"INSERT INTO records VALUES ({', '.join(['%s'] * len(kinds))})", rows)
        cursor.execute("GRANT SELECT ON records TO reader")
    return connection.table("records")


def people(connection: Any, frame: pd.DataFrame) -> Any:
    kinds = {"sex": "text", "age": "float8", "code": "int", "zip": "text", "n": "int", "pid": "text"}
    kinds = {name: kinds[name] for name in frame}
    if "pid" in frame and frame["pid"].dtype != "string":
        kinds["pid"] = "bigint"
    return stored(connection, kinds, [tuple(row) for row in frame.astype(object).where(frame.notna(), None).to_numpy()])


@pytest.mark.parametrize("kind", ATTRIBUTES)
@pytest.mark.parametrize("which", ["common", "odd"])
def test_every_value_lies_in_the_cell_that_it_lies_in_here(keeper: Any, kind: str, which: str) -> None:
    if which == "common":
        kinds, columns = KINDS, {name: ROWS[name].to_pylist() for name in KINDS}
    else:
        kinds, columns = (
            {name: kind for name, (kind, _) in ODD.items()},
            {name: found for name, (_, found) in ODD.items()},
        )
    there = stored(keeper, {"row": "int", **kinds}, list(zip(range(99), *columns.values(), strict=False)))
    encoders = {name: Encoder(attribute=ATTRIBUTES[kind](name)) for name in kinds}
    codes = {name: code_of(there[name], encoder, grouped._distinct) for name, encoder in encoders.items()}
    found = there.select(row=there["row"], **codes).order_by("row").to_pyarrow()
    if "fixed" in columns:  # char(n) is filled up with blanks, which mean nothing
        columns["fixed"] = [value and value.rstrip(" ") for value in columns["fixed"]]
    for name, encoder in encoders.items():
        assert found[name].to_pylist() == encoder.objects(columns[name]).tolist(), name


@pytest.mark.parametrize("user", ["keeper", "reader"])  # a reader may make no table there
def test_all_tables_are_those_that_are_counted_here(
    postgres: Server, keeper: Any, user: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = survey().assign(n=np.arange(3_000) % 7 - 1)
    ways: list[dict[str, Any]] = [{"ignore": ["n"]}, {"count_column": "n"}]
    here = [count_marginals(frame, SCHEMA, SETS, on_refused="drop", **options) for options in ways]
    people(keeper, frame)
    connection = postgres.connect(user)
    there, traffic = connection.table("records"), Traffic(monkeypatch)
    monkeypatch.setattr(grouped, "TOGETHER", 3)
    monkeypatch.setattr(grouped, "MOST_ANSWERS", 3)
    for options, wanted in zip(ways, here, strict=True):
        assert wanted.rows_refused > 100
        assert same(count_marginals(there, SCHEMA, SETS, on_refused="drop", **options), wanted)
    assert 0 < traffic.bytes < 30_000
    assert not [name for name in connection.list_tables() if name != "records"]
    connection.disconnect()


@pytest.mark.parametrize("kind", ["string", "Int64"])
def test_the_cap_of_rows_per_person_keeps_the_same_rows(
    keeper: Any, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = survey(1_000)
    frame["pid"] = pd.array((np.random.default_rng(1).pareto(1.0, 1_000) * 100).astype(int).astype(str), "string")
    frame["pid"] = frame["pid"].astype(kind)
    frame.loc[::50, "pid"] = pd.NA
    there = people(keeper, frame)
    for cap in (1, 3):
        given: dict[str, Any] = {"on_refused": "drop", "person": "pid", "rows_per_person": cap}
        here = count_marginals(frame, SCHEMA, SETS[:2], **given)
        assert here.rows_over_cap > 30
        with monkeypatch.context() as patch:
            Traffic(patch)
            assert same(count_marginals(there, SCHEMA, SETS[:2], **given), here)


def dropped(keeper: Any, _: Any) -> None:
    keeper.raw_sql("DROP TABLE records")


def changed(keeper: Any, _: Any) -> None:
    keeper.raw_sql("ALTER TABLE records RENAME COLUMN age TO years")


def retyped(keeper: Any, _: Any) -> None:
    keeper.raw_sql("ALTER TABLE records ALTER COLUMN age TYPE text USING '7391'")


def forbidden(keeper: Any, _: Any) -> None:
    keeper.raw_sql("REVOKE SELECT ON records FROM reader")


def ended(keeper: Any, reader: Any) -> None:
    keeper.raw_sql(f"SELECT pg_terminate_backend({reader.con.info.backend_pid}, 10000)")


def slow(keeper: Any, reader: Any | None, limit: str = "20") -> None:
    """Whether the reader may see a row is found out in more time than the reader has."""
    keeper.raw_sql("ALTER TABLE records ENABLE ROW LEVEL SECURITY")
    keeper.raw_sql("CREATE POLICY slow ON records USING (pg_sleep(600) IS NOT NULL)")
    if reader is not None:
        reader.raw_sql(f"SET statement_timeout = {limit}")


def ready(postgres: Server, keeper: Any, place: Path) -> tuple[Ledger, Plan, Any]:
    """A ledger, what is asked of some people, and a connection that may read them."""
    book = Ledger.create(place / "book")
    book.add_dataset("d", total=Budget(pcost=1e7))
    people(keeper, survey(50))
    asked = Workload(SCHEMA).add(("sex", "age"), "marginal")
    return book, plan(asked, Budget(pcost=1e6)), postgres.connect("reader")


FAILURES: list[tuple[Callable[[Any, Any], None], str]] = [
    (dropped, "has another table, or other columns"),
    (changed, "has another table, or other columns"),
    (retyped, "has another table, or other columns"),
    (forbidden, "does not let you read"),
    (ended, "cannot be reached"),
    (slow, "stopped before the counts were complete"),
]


@pytest.mark.parametrize(
    ("spoil", "words", "when"),
    # midway the column is a text, which can be read from any other type
    [
        (*failure, when)
        for when in ("before", "midway")
        for failure in FAILURES
        if (failure[0], when) != (retyped, "midway")
    ],
)
def test_what_fails_there_is_named_and_spends_nothing(
    postgres: Server,
    keeper: Any,
    tmp_path: Path,
    spoil: Callable[[Any, Any], None],
    words: str,
    when: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    book, made, reader = ready(postgres, keeper, tmp_path)
    if when == "midway":
        # numbers spelled as texts are looked up by a question of their own, before the one that counts
        keeper.raw_sql("ALTER TABLE records ALTER COLUMN age TYPE text")
    there, fetched = reader.table("records"), grouped._fetched

    def midway(expression: Any) -> Any:
        found = fetched(expression)
        reader.con.commit()  # or who spoils would wait until all is read
        spoil(keeper, reader)
        monkeypatch.setattr(grouped, "_fetched", fetched)
        return found

    if when == "midway":
        monkeypatch.setattr(grouped, "_fetched", midway)
    else:
        spoil(keeper, reader)
    with pytest.raises(DataError, match=words) as caught:
        measure(made, there, dataset="d", ledger=book)
    assert "7391" not in str(caught.value)
    assert caught.value.__context__ is None
    assert book.status("d").spent == 0
    reader.con.close()


def test_a_question_that_takes_too_long_is_stopped_there_and_costs_nothing(
    postgres: Server, keeper: Any, tmp_path: Path
) -> None:
    book, made, reader = ready(postgres, keeper, tmp_path)
    there = reader.table("records")
    slow(keeper, reader, limit="0")
    busy = f"SELECT 1 FROM pg_stat_activity WHERE pid = {reader.con.info.backend_pid} AND state = 'active'"
    with pytest.raises(Cancelled, match="This run has spent nothing"):
        measure(made, there, dataset="d", ledger=book, progress=lambda *_: not asked(keeper, busy))
    assert not asked(keeper, busy)
    assert book.status("d").spent == 0
    reader.con.close()


COUNT_SLOW = f"""
from engine.records import count_marginals
from pages.parts.jobs.sources import opened
from tests.databases.samples import SCHEMA, SETS
with opened("{NAMED}slow") as table:
    count_marginals(table, SCHEMA, SETS, on_refused="drop")
"""


def test_a_question_of_a_worker_that_is_ended_is_stopped_there(
    postgres: Server, keeper: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    people(keeper, survey(50))
    slow(keeper, None)
    settings = tmp_path / "sources.toml"
    settings.write_text(
        f'[slow]\naddress = "postgres://reader@127.0.0.1:{postgres.port}/postgres?application_name=ended"\n'
        'table = "records"\n'
    )
    monkeypatch.setenv("DP_WORKBENCH_SOURCES", str(settings))

    busy = "SELECT 1 FROM pg_stat_activity WHERE application_name = 'ended' AND state = 'active'"
    # not a fork: the database libraries run threads here
    with subprocess.Popen([sys.executable, "-c", COUNT_SLOW], cwd=Path(__file__).parents[2]) as worker:
        until(lambda: worker.poll() is not None or asked(keeper, f"{busy} AND wait_event = 'PgSleep'"))
        assert worker.poll() is None
        worker.terminate()
    until(lambda: not asked(keeper, busy))


def asked(connection: Any, question: str) -> list[Any]:
    with connection.con.cursor() as cursor:
        found: list[Any] = cursor.execute(question).fetchall()
        connection.con.commit()
    return found


def test_a_release_of_a_table_is_one_of_its_records(keeper: Any, tmp_path: Path) -> None:
    frame, book = survey(300), Ledger.create(tmp_path / "book")
    made = plan(Workload(SCHEMA).add(("sex", "age"), "marginal"), Budget(pcost=1e6))
    for name, data in (("here", frame), ("there", people(keeper, frame))):
        book.add_dataset(name, total=Budget(pcost=1e7))
        measure(made, data, dataset=name, ledger=book)
    one, two = (row for row in book.rows() if row.kind == "spend")
    assert one.sha256 == two.sha256 != ""


def test_char_columns_count_and_draft_without_padding(postgres: Server) -> None:
    connection = postgres.connect()
    connection.raw_sql("CREATE TEMPORARY TABLE padded (a char(3), b varchar(3), u uuid)")
    connection.raw_sql(
        "INSERT INTO padded VALUES ('F', 'F ', gen_random_uuid()), ('M', 'M ', gen_random_uuid()), (NULL, NULL, NULL)"
    )
    table = connection.table("padded")
    draft = draft_of_public(table)
    assert [a.labels for a in draft.schema.attributes] == [("F", "M"), ("F ", "M ")]
    assert "uuid" in draft.reasons["u"]
    assert next(read_batches(table, ["a"])).columns[0].to_pylist() == ["F", "M", None]
    counts = count_marginals(table, draft.schema, [("a",), ("b",)], on_refused="drop")
    assert (counts["a",].tolist(), counts["b",].tolist()) == ([1, 1], [1, 1])
    with pytest.raises(DataError, match="'u' is of type uuid"):
        count_marginals(table, Schema([Attribute.categorical("u", ["x"])]), [("u",)])
