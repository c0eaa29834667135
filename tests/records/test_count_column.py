"""Tables with a count column: the column is used, or must be ignored explicitly."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import engine.records.database as grouped
from engine.common_mechanism import stepwise
from engine.common_mechanism.common_plan import coarse_or_fine
from engine.common_mechanism.stepwise import counts_for_steps
from engine.errors import DataError, SchemaError
from engine.ledger import Ledger
from engine.mechanisms import plan
from engine.privacy import Budget
from engine.records import count_marginals
from engine.release import Intake, measure
from engine.release.ingest import check_records, counts_for, declare_public
from engine.workload import Attribute, Schema, Workload
from tests.replay.campaign import cost, no_noise, released

SCHEMA = Schema([Attribute.categorical("sex", ["F", "M"]), Attribute.of_size("age", 6)])
CELLS = pd.DataFrame(itertools.product(["F", "M"], range(6)), columns=["sex", "age"])
N = np.array([3, 0, 7, 7, 1, 2, 5, 5, 0, 9, 4, 6])
PLAN = plan(Workload.all_ways(SCHEMA, (1, 2)), Budget(pcost=1.0))


def counted_table(name: str = "n") -> pd.DataFrame:
    return CELLS.assign(**{name: N})


def data_kinds(frame: pd.DataFrame, folder: Path) -> list[Any]:
    """Return a table as a frame, Arrow table, CSV and Parquet file, and frame with float counts."""
    frame.to_csv(folder / "a.csv", index=False)
    frame.to_parquet(folder / "a.parquet")
    return [
        frame,
        pa.Table.from_pandas(frame),
        str(folder / "a.csv"),
        folder / "a.parquet",
        frame.astype({"n": float}),
    ]


def test_count_column_weights_rows(tmp_path: Path) -> None:
    sets = [("sex", "age"), ("age",), ()]
    one_row_per_record = CELLS.loc[CELLS.index.repeat(N)]
    expected = count_marginals(one_row_per_record, SCHEMA, sets)
    for data in data_kinds(counted_table(), tmp_path):
        counts = count_marginals(data, SCHEMA, sets, count_column="n")
        assert counts.records == counts.rows_in == N.sum()
        assert all((counts[names] == expected[names]).all() for names in expected)
    assert count_marginals(counted_table(), SCHEMA, [()], count_column="n").records == N.sum()


def test_invalid_row_counts_are_refused() -> None:
    table = counted_table().astype({"n": object})
    table.loc[0, "n"] = -1
    table.loc[2, "n"] = 2.5
    table.loc[3, "sex"] = "X"
    with pytest.raises(DataError, match="column 'n': 1 outside the schema, 1 not a whole number"):
        count_marginals(table, SCHEMA, [("age",)], count_column="n")
    counts = count_marginals(table, SCHEMA, [("sex", "age")], count_column="n", on_refused="drop")
    assert counts.refused == {
        "sex": {"outside the schema": N[3]},
        "n": {"outside the schema": 1, "not a whole number": 1},
    }
    assert counts.records == N.sum() - N[0] - N[2] - N[3]
    # a row with an invalid count is one refused row
    assert counts.rows_refused == 1 + 1 + N[3]


def test_unused_count_column_is_refused(tmp_path: Path) -> None:
    for data in data_kinds(counted_table(), tmp_path):
        with pytest.raises(DataError, match=r"column 'n' .* count_column='n'.* ignore=\['n'\]"):
            count_marginals(data, SCHEMA, [("age",)], on_refused="drop")
    # a name that does not suggest a count
    table, path = counted_table("inhabitants"), tmp_path / "b.csv"
    table.to_csv(path, index=False)
    for data in (table, path, pa.Table.from_pandas(table)):
        with pytest.raises(
            DataError, match=r"numeric column 'inhabitants'.* count_column='inhabitants'"
        ):
            count_marginals(data, SCHEMA, [("age",)])
        ignored = count_marginals(data, SCHEMA, [("age",)], ignore=["inhabitants"])
        assert ignored.records == len(CELLS)
        used = count_marginals(data, SCHEMA, [("age",)], count_column="inhabitants")
        assert used.records == N.sum()
    assert count_marginals(counted_table(), SCHEMA, [("age",)], ignore=["n"]).records == len(CELLS)


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_count_column_in_one_file_is_refused(ending: str, tmp_path: Path) -> None:
    # There is one folder per year.  Only the file of the last year has a count column.
    for year, frame in enumerate([CELLS, CELLS, counted_table("inhabitants")]):
        path = tmp_path / f"part=p{year}" / f"a.{ending}"
        path.parent.mkdir()
        frame.to_parquet(path) if ending == "parquet" else frame.to_csv(path, index=False)
    for data in (tmp_path, str(tmp_path / "*" / "*")):
        with pytest.raises(
            DataError, match=r"numeric column 'inhabitants'.* ignore=\['inhabitants'\]"
        ):
            count_marginals(data, SCHEMA, [("age",)])
        rows = count_marginals(data, SCHEMA, [("age",)], ignore=["inhabitants"]).records
        assert rows == 3 * len(CELLS)


@pytest.mark.parametrize(
    "kind", ["int8", "float32", "Int64", "int64[pyarrow]", "decimal", "Float64"]
)
def test_unused_number_column_of_any_type_is_refused(kind: str) -> None:
    if kind == "decimal":
        totals = pa.array(N.tolist(), pa.decimal128(38, 0))
        arrow = pa.Table.from_pandas(CELLS).append_column("total", totals)
        frame = arrow.to_pandas(types_mapper=pd.ArrowDtype)
    else:
        frame = CELLS.assign(total=pd.Series(N).astype(kind))
        arrow = pa.Table.from_pandas(frame)
    for data in (arrow, frame):
        with pytest.raises(DataError, match="numeric column 'total'"):
            count_marginals(data, SCHEMA, [("age",)], on_refused="drop")
        assert count_marginals(data, SCHEMA, [("age",)], count_column="total").records == N.sum()


def test_all_unused_number_columns_are_reported_together(tmp_path: Path) -> None:
    rows, sets = len(CELLS), [("age",)]
    frame = CELLS.assign(id=range(rows), share=0.5, pid=range(rows))
    with pytest.raises(DataError, match=r"columns 'id', 'share' .*ignore=\['id', 'share'\]$"):
        count_marginals(frame, SCHEMA, sets, person="pid")
    counts = count_marginals(frame, SCHEMA, sets, person="pid", ignore=["id", "share"])
    assert counts.records == rows
    ten_columns = CELLS.assign(**{f"x{i}": 1 for i in range(10)})
    with pytest.raises(DataError, match=r"2 more; remove these columns") as caught:
        count_marginals(ten_columns, SCHEMA, sets)
    assert len(str(caught.value)) < 400
    # A column that no table needs is refused only if it contains numbers.
    other_types = CELLS.assign(
        name="n", done=True, day=pd.Timestamp("2020-01-01"), kind=pd.Categorical(["a"] * rows)
    )
    assert count_marginals(other_types, SCHEMA, sets).records == rows
    texts, without_rows = tmp_path / "texts.csv", tmp_path / "without rows.csv"
    CELLS.assign(code="A1", gap="", half=["1", "x"] * 6).to_csv(texts, index=False)
    assert count_marginals(texts, SCHEMA, sets).records == rows
    counted_table("m").iloc[:0].to_csv(without_rows, index=False)
    assert count_marginals(without_rows, SCHEMA, sets).records == 0


def test_release_with_unused_count_column_refuses_or_warns(tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "ledger")
    ledger.add_dataset("d", total=Budget(pcost=10.0))
    release_args = {"dataset": "d", "ledger": ledger}
    for name in ("n", "inhabitants"):
        with pytest.raises(DataError, match=f"count_column='{name}'"):
            measure(PLAN, counted_table(name), **release_args)
        with pytest.raises(DataError, match=f"count_column='{name}'"):
            check_records(PLAN, counted_table(name))
    assert ledger.status("d").spent == 0
    intakes: list[Intake] = []
    measure(PLAN, counted_table(), **release_args, count_column="n", intake=intakes.append)
    # a refusal would depend on the values of a text file, so only the curator is warned
    path = tmp_path / "a.csv"
    counted_table("inhabitants").to_csv(path, index=False)
    measure(PLAN, path, **release_args, attempt=2, intake=intakes.append)
    of_frame, of_file = intakes
    assert of_frame.counted == N.sum()
    assert of_file.counted == len(CELLS)
    for warnings in (of_file.warnings, check_records(PLAN, path).warnings):
        assert "count_column='inhabitants'" in warnings[0]
    assert not check_records(PLAN, path, count_column="inhabitants").warnings


COUNTED = Schema([Attribute.categorical("sex", ["F", "M"]), Attribute.of_size("n", 400)])
ABSENT_FILE = Path("absent.parquet")  # the refusal precedes any access to the file


@pytest.mark.parametrize("attributes", [("sex",), ("n",), ("sex", "n")], ids=str)
def test_count_column_that_is_attribute_is_refused(
    attributes: tuple[str, ...], tmp_path: Path
) -> None:
    ledger = Ledger.create(tmp_path / "ledger")
    ledger.add_dataset("d", total=Budget(pcost=10.0))
    marginal_plan = plan(Workload(COUNTED).add(attributes, "marginal"), Budget(pcost=1.0))
    common = coarse_or_fine(
        marginal_plan, plan(Workload(COUNTED).add(("sex", "n"), "marginal"), Budget(pcost=1.0))
    )
    options: dict[str, Any] = {"count_column": "n"}
    where: dict[str, Any] = {"dataset": "d", "ledger": ledger}
    for data in (ABSENT_FILE, pd.DataFrame({"sex": ["F", "M"], "n": [100, 200]})):
        for count in (
            lambda data=data: count_marginals(data, COUNTED, [attributes], **options),
            lambda data=data: count_marginals(
                data, COUNTED, [attributes], on_refused="drop", **options
            ),
            lambda data=data: counts_for(marginal_plan, data, **options),
            lambda data=data: check_records(marginal_plan, data, **options),
            lambda data=data: measure(marginal_plan, data, rehearsal=True, **options),
            lambda data=data: measure(marginal_plan, data, **where, **options),
            lambda data=data: declare_public(marginal_plan, data, why="print", **where, **options),
            lambda data=data: counts_for_steps(common, data, **options),
            lambda data=data: stepwise.look(common, data, **where, **options),
        ):
            with pytest.raises(DataError, match="count column 'n' is also an attribute"):
                count()
    assert ledger.status("d").spent == 0


@pytest.mark.parametrize("kind", ["duckdb", "sqlite", "dask"])
def test_count_column_of_table_being_attribute_is_refused(kind: str, tmp_path: Path) -> None:
    frame = pd.DataFrame({"sex": ["F", "M", "F"], "n": [1, 2, 1]})
    if kind == "dask":
        data = pytest.importorskip("dask.dataframe").from_pandas(frame, npartitions=2)
    else:
        ibis = pytest.importorskip("ibis")
        with sqlite3.connect(tmp_path / "a.db") as connection:
            frame.to_sql("records", connection, index=False)
        data = (
            ibis.memtable(frame)
            if kind == "duckdb"
            else ibis.sqlite.connect(tmp_path / "a.db").table("records")
        )
    with pytest.raises(DataError, match="also an attribute"):
        count_marginals(data, COUNTED, [("sex", "n")], count_column="n")


def test_person_column_with_other_role_is_refused() -> None:
    for person in ("sex", "n"):
        with pytest.raises(SchemaError, match="also an attribute"):
            count_marginals(ABSENT_FILE, COUNTED, [("sex",)], person=person)
    for schema, person in (
        (SCHEMA, "n"),
        (SCHEMA, "pid"),
        (Schema(SCHEMA.attributes, person="n"), None),
    ):
        with pytest.raises(DataError, match="has no person"):
            count_marginals(ABSENT_FILE, schema, [("sex",)], person=person, count_column="n")


def test_counts_with_column_options_are_refused() -> None:
    counts = count_marginals(CELLS, SCHEMA, [("sex",)])
    for options in ({"person": "pid"}, {"count_column": "n"}):
        with pytest.raises(DataError, match="Count the records"):
            count_marginals(counts, SCHEMA, [("sex",)], **options)


def all_sources(frame: pd.DataFrame, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Yield a table as a frame, as a Dask frame, and in a database.

    The database comes twice, the second time without temporary tables.
    """
    yield frame
    ibis, dask = pytest.importorskip("ibis"), pytest.importorskip("dask.dataframe")
    yield dask.from_pandas(frame, npartitions=1)
    yield ibis.memtable(frame)
    monkeypatch.setattr(grouped, "TEMPORARY_TABLE_BACKENDS", ())
    yield ibis.memtable(frame)


@pytest.mark.parametrize(
    ("numbers", "expected_words"),
    [
        ([3, 20, 500], []),
        ([20, 30, 500], ["20 or more"]),
        ([0, 30, 500], []),
        ([1.5, 2, 3], ["with a fraction"]),
        ([100.5, 200, 300.25], ["with a fraction", "20 or more"]),
    ],
    ids=str,
)
def test_count_column_like_sampling_weights_gives_warning(
    numbers: list[float], expected_words: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    frame = pd.DataFrame({"sex": ["F", "M", "F"], "age": [1, 2, 3], "w": numbers})
    for data in all_sources(frame, monkeypatch):
        warnings = check_records(PLAN, data, count_column="w").warnings
        for words, warning in zip(expected_words, warnings, strict=True):
            assert words in warning
            assert "sampling weights" in warning
    ledger, intakes = Ledger.create(tmp_path / "ledger"), list[Intake]()
    ledger.add_dataset("d", total=Budget(pcost=10.0))
    measure(PLAN, frame, dataset="d", ledger=ledger, count_column="w", intake=intakes.append)
    (intake,) = intakes
    assert intake.warnings == warnings
    if "with a fraction" in expected_words:
        with pytest.raises(DataError, match="sampling weights"):
            measure(PLAN, frame, rehearsal=True, count_column="w")


def test_record_in_counted_table_costs_at_most_charge() -> None:
    table = counted_table()
    with no_noise():
        answers = released([PLAN], counts_for(PLAN, table, count_column="n"))
        costs = []
        for row in table.index:
            one_more = table.assign(n=table["n"] + (table.index == row))
            other_answers = released([PLAN], counts_for(PLAN, one_more, count_column="n"))
            costs.append(cost([PLAN], answers, other_answers))
    assert 0.99 * PLAN.pcost < max(costs) <= PLAN.pcost


def test_ignored_attribute_of_schema_is_refused() -> None:
    for sets in ([("age",)], [()]):
        with pytest.raises(DataError, match=r"'age' is an attribute .*ignore=\['n', 'age'\]"):
            count_marginals(counted_table(), SCHEMA, sets, ignore=["n", "age"], on_refused="drop")
    counts = count_marginals(CELLS, SCHEMA, [("age",)])
    with pytest.raises(DataError, match="'age'"):
        count_marginals(counts, SCHEMA, [("age",)], ignore=["age"])
