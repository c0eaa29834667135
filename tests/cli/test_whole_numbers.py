"""The option --whole-numbers for SQL conditions on integer attributes."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.cli.main import main
from engine.mechanisms import load_plan
from engine.workload import Attribute, Schema
from tests.cli.commands import run_json

BUDGET = ["--pcost", "1", "--out", "plan.json"]
SQL = ["--workload", "queries.sql", "--schema", "schema.json"]


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    schema = Schema(
        [Attribute.numeric("income", [0, 30_000, 60_000]), Attribute.categorical("sex", ["F", "M"])]
    )
    Path("schema.json").write_text(schema.to_json())
    Path("queries.sql").write_text("SELECT sex, COUNT(*) FROM t WHERE income <= 29999 GROUP BY sex")
    Path("records.csv").write_text("income,sex\n29999,F\n29999.5,F\n30000,M\n")
    return tmp_path


def test_sql_between_cell_edges_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *SQL, *BUDGET]) == 1
    assert "30000" in capsys.readouterr().err


def test_plan_prints_interpretation_of_sql(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *SQL, *BUDGET, "--whole-numbers", "income"]) == 0
    assert "income <= 29999 is read as income < 30000" in capsys.readouterr().err


def test_count_of_integer_attribute_leaves_out_fractions(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["plan", *SQL, *BUDGET, "--whole-numbers", "income"]) == 0
    assert load_plan(Path("plan.json").read_text()).schema["income"].integer
    count = ["count", "--plan", "plan.json", "--data", "records.csv", "--out", "all.counts"]
    reply = run_json(capsys, *count)
    assert (reply["rows_in"], reply["counted"]) == (3, 2)


@pytest.mark.parametrize(
    "args",
    [["--ways", "1", "--schema", "schema.json"], ["--workload", "queries.json"]],
    ids=["ways", "JSON file"],
)
def test_whole_numbers_option_without_sql_is_refused(
    args: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("queries.json").write_text("{}")
    assert main(["plan", *args, *BUDGET, "--whole-numbers", "income"]) == 1
    assert "SQL" in capsys.readouterr().err
