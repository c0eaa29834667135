"""Tables that are counted already: read by their column of counts, never in silence as one record a row."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from engine import Attribute, Budget, Ledger, Schema, Workload, count_marginals, measure, plan
from engine.errors import DataError
from engine.release import Intake, check_records

SCHEMA = Schema([Attribute.categorical("sex", ["F", "M"]), Attribute.of_size("age", 6)])
CELLS = pd.DataFrame(itertools.product(["F", "M"], range(6)), columns=["sex", "age"])
N = np.array([3, 0, 7, 7, 1, 2, 5, 5, 0, 9, 4, 6])
PLAN = plan(Workload.all_ways(SCHEMA, (1, 2)), Budget(pcost=1.0))


def counted(name: str = "n") -> pd.DataFrame:
    return CELLS.assign(**{name: N})


def kinds(frame: pd.DataFrame, folder: Path) -> list[Any]:
    frame.to_csv(folder / "a.csv", index=False)
    frame.to_parquet(folder / "a.parquet")
    return [frame, pa.Table.from_pandas(frame), str(folder / "a.csv"), folder / "a.parquet", frame.astype({"n": float})]


def test_a_row_counts_as_often_as_it_says(tmp_path: Path) -> None:
    asked = [("sex", "age"), ("age",), ()]
    single = count_marginals(CELLS.loc[CELLS.index.repeat(N)], SCHEMA, asked)
    for data in kinds(counted(), tmp_path):
        found = count_marginals(data, SCHEMA, asked, count_column="n")
        assert found.records == found.rows_in == N.sum()
        assert all((found[names] == single[names]).all() for names in single)
    assert count_marginals(counted(), SCHEMA, [()], count_column="n").records == N.sum()


def test_counts_that_are_none_are_refused_and_sums_still_hold() -> None:
    wrong = counted().astype({"n": object})
    wrong.loc[0, "n"], wrong.loc[2, "n"], wrong.loc[3, "sex"] = -1, 2.5, "X"
    with pytest.raises(DataError, match="column 'n': 1 outside the public domain, 1 not a whole number"):
        count_marginals(wrong, SCHEMA, [("age",)], count_column="n")
    found = count_marginals(wrong, SCHEMA, [("sex", "age")], count_column="n", on_refused="drop")
    assert found.refused == {
        "sex": {"outside the public domain": 7},
        "n": {"outside the public domain": 1, "not a whole number": 1},
    }
    assert (found.records, found.rows_refused) == (N.sum() - 3 - 7 - 7, 9)


def test_a_counted_table_is_never_taken_for_records_without_a_word(tmp_path: Path) -> None:
    for data in kinds(counted(), tmp_path):
        with pytest.raises(DataError, match=r"column 'n', .* count_column='n', or .* ignore=\['n'\]"):
            count_marginals(data, SCHEMA, [("age",)], on_refused="drop")
    with pytest.raises(DataError, match=r"no two rows are alike.*'inhabitants', .* count_column='inhabitants', or"):
        count_marginals(counted("inhabitants"), SCHEMA, [("age",)])
    assert count_marginals(counted(), SCHEMA, [("age",)], ignore=["n"]).records == 12
    assert count_marginals(counted("inhabitants"), SCHEMA, [("age",)], ignore=["inhabitants"]).records == 12


def test_records_with_identifiers_are_records() -> None:
    many = CELLS.loc[CELLS.index.repeat(N)].reset_index(drop=True)
    for extra in ({"id": range(len(many))}, {"income": 7}, {"share": 0.5}, {"name": "n"}):
        assert count_marginals(many.assign(**extra), SCHEMA, [("age",)]).records == N.sum()
    few = CELLS.iloc[[0, 3, 8]].assign(id=[4, 8, 9])  # three of twelve differ by chance
    assert count_marginals(few, SCHEMA, [("age",)]).records == 3


def test_a_release_counts_so_too_and_what_it_refuses_depends_on_names_alone(tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "ledger")
    ledger.add_dataset("d", total=Budget(pcost=10.0))
    given = {"dataset": "d", "ledger": ledger}
    with pytest.raises(DataError, match="count_column='n'"):
        measure(PLAN, counted(), **given)
    assert ledger.status("d").spent == 0
    rows: list[Intake] = []
    measure(PLAN, counted(), **given, count_column="n", intake=rows.append)
    assert rows[0].counted == N.sum()
    # a table that looks counted by its values is released all the same: a refusal would tell of them
    measure(PLAN, counted("inhabitants"), **given, attempt=2, intake=rows.append)
    assert rows[1].counted == 12
    (warning,) = check_records(PLAN, counted("inhabitants")).warnings
    assert "count_column='inhabitants'" in warning
    assert not check_records(PLAN, counted("inhabitants"), count_column="inhabitants").warnings
