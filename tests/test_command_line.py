"""The command line: comparisons, pure epsilon, and the package of a release."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

import demo_data
from demo_data.make_synthetic import synthetic
from engine import Schema
from engine.__main__ import main

SCHEMA = str(demo_data.schemas()["cps"])


def test_compare_ranks_and_gives_reasons(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = tmp_path / "schema.json"
    small.write_text('{"age": 5, "hours": 4}')
    assert main(["compare", "--schema", str(small), "--ways", "1", "2", "--pcost", "1"]) == 0
    said = capsys.readouterr().out
    ranked = said[: said.index("laplace:")]
    assert ranked.index("querysmasher") < ranked.index("identity")
    assert "pure epsilon" in said
    assert "No matrix mechanism, whatever it measures, can go below the bound" in said
    assert "Methods that allow bias" in said


def test_a_pure_plan_is_released_as_a_package(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan, data, ledger, out = (str(tmp_path / name) for name in ("plan.json", "cps.csv", "office.ledger", "out.zip"))
    schema = Schema.from_json(Path(SCHEMA).read_bytes())
    synthetic(schema, 200, seed=1).to_csv(data, index=False)
    asked = ["--schema", SCHEMA, "--ways", "1", "--pure-epsilon", "0.5"]
    assert main(["plan", *asked, "--mechanism", "querysmasher", "--out", plan]) == 1
    assert "pure epsilon" in capsys.readouterr().err
    assert main(["plan", *asked, "--mechanism", "laplace", "--out", plan]) == 0
    said = capsys.readouterr().out
    assert "Pure epsilon 0.5" in said
    assert "above what any matrix mechanism can reach, whatever it measures" in said
    assert main(["budget", "create", "--ledger", ledger]) == 0
    assert main(["budget", "add", "--ledger", ledger, "--dataset", "cps", "--pcost", "0.3"]) == 0
    release = ["release", "--plan", plan, "--data", data, "--dataset", "cps", "--ledger", ledger, "--out", out]
    assert main(release) == 0
    assert main(release) == 0  # the same key: nothing is spent again
    with zipfile.ZipFile(out) as archive:
        seal = json.loads(archive.read("certificate.json"))
    assert seal["pure_epsilon"] == 0.5
    assert seal["pcost"] <= 0.25
    assert seal["ledger"]["pcost"] == pytest.approx(seal["pcost"])
    assert main(["verify", "--ledger", ledger]) == 0
