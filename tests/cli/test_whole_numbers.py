"""Whole numbers in SQL on the command line: declared, shown, and enforced by the plan."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.cli.main import main
from engine.mechanisms import load_plan
from engine.workload import Attribute, Schema

BUDGET = ["--pcost", "1", "--out", "plan.json"]
SQL = ["--workload", "asked.sql", "--schema", "schema.json"]


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    schema = Schema([Attribute.numeric("income", [0, 30_000, 60_000]), Attribute.categorical("sex", ["F", "M"])])
    Path("schema.json").write_text(schema.to_json())
    Path("asked.sql").write_text("SELECT sex, COUNT(*) FROM t WHERE income <= 29999 GROUP BY sex")
    Path("records.csv").write_text("income,sex\n29999,F\n29999.5,F\n30000,M\n")
    return tmp_path


def test_sql_on_whole_edges_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *SQL, *BUDGET]) == 1
    assert "30000" in capsys.readouterr().err


def test_reading_of_sql_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *SQL, *BUDGET, "--whole-numbers", "income"]) == 0
    assert "income <= 29999 is read as income < 30000" in capsys.readouterr().err


def test_plan_of_whole_numbers_refuses_cents(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *SQL, *BUDGET, "--whole-numbers", "income"]) == 0
    assert load_plan(Path("plan.json").read_text()).schema["income"].integer
    assert main(["count", "--plan", "plan.json", "--data", "records.csv", "--out", "all.counts"]) == 0
    assert "2" in capsys.readouterr().out


@pytest.mark.parametrize("asked", [["--ways", "1", "--schema", "schema.json"], ["--workload", "asked.json"]])
def test_whole_numbers_without_sql_are_refused(asked: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    Path("asked.json").write_text("{}")
    assert main(["plan", *asked, *BUDGET, "--whole-numbers", "income"]) == 1
    assert "SQL" in capsys.readouterr().err
