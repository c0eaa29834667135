"""Options of mechanisms: as keyword arguments, and as NAME=VALUE on the command line."""

from __future__ import annotations

import inspect
import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Unpack, get_type_hints

import pytest

from engine.cli.main import main
from engine.mechanisms import forecast, load_plan, plan
from engine.mechanisms.base import Limits, PlanOptions
from engine.mechanisms.registry import MECHANISMS
from engine.workload import Schema, Workload

Capture = pytest.CaptureFixture[str]


def test_plan_options_match_fields_of_mechanisms() -> None:
    """`plan` and `forecast` declare exactly the fields of the mechanisms and limits."""
    declared: dict[str, set[object]] = {}
    for kind in (Limits, *MECHANISMS):
        types = get_type_hints(kind)
        for field in fields(kind):
            if field.metadata.get("is_option", True):
                declared.setdefault(field.name, set()).add(types[field.name])
    # True requests a progress bar
    declared["progress"] = {kind | bool for kind in declared["progress"]}
    assert {name: {kind} for name, kind in get_type_hints(PlanOptions).items()} == declared
    for function in (plan, forecast):
        assert get_type_hints(function)["options"] == Unpack[PlanOptions]
        assert (
            inspect.signature(function).parameters["options"].kind is inspect.Parameter.VAR_KEYWORD
        )


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "schema.json").write_text('{"age": 5, "hours": 4}')
    return tmp_path


REQUEST = ["--schema", "schema.json", "--ways", "1", "2"]


@pytest.mark.parametrize(
    ("mechanism", "options", "expected"),
    [
        ("querysmasher", ["centers=tuned", "cache=False", "time_limit=60"], {"centers": "tuned"}),
        (
            "querysmasher",
            ["objective=max", "targets=[3, 4, 5.5]", "gap=1e-5"],
            {"targets": [3.0, 4.0, 5.5]},
        ),
        ("hierarchical", ["branching=4"], {"branching": 4}),
        ("hierarchical", ["branching=best"], {"branching": "best"}),
        ("residualplanner+", ['base={"age": "range"}'], {"base": {"age": "range"}}),
    ],
)
def test_plan_options_are_parsed_by_type(
    folder: Path, mechanism: str, options: list[str], expected: dict[str, object]
) -> None:
    command = ["plan", *REQUEST, "--mechanism", mechanism, "--pcost", "1", "--out", "p.json"]
    assert main([*command, "--options", *options]) == 0
    result = load_plan((folder / "p.json").read_bytes())
    assert {name: result.options[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("center=tuned", "center; close names: 'centers'"),
        ("centers=tuend", "'tuend'; close names: 'tuned'"),
        ("objective=maximum", "'maximum'; close names: 'max'"),
        ("timelimit=3", "'time_limit'"),
        ("time_limit=3s", "'3s', but must be a number above 0"),
        ("gap=small", "'small'. Give a number"),
        ("workers=2.5", "2.5, but must be an integer"),
        ("cache=no", "'no'. Give True or False"),
        ("centers", "NAME=VALUE"),
        ("progress=1", "progress"),
        ("branching=4", "has no option branching"),
    ],
)
def test_invalid_option_is_refused_before_reading_files(
    option: str, words: str, capsys: Capture
) -> None:
    for command in (["plan", "--pcost", "1", "--out", "p.json"], ["forecast"]):
        assert main([*command, "--workload", "nowhere.json", "--options", option]) == 1
        output = capsys.readouterr()
        assert words in output.err
        assert (output.err.count("\n"), output.out) == (1, "")


def test_compare_accepts_shared_and_mechanism_options(folder: Path, capsys: Capture) -> None:
    command = ["compare", *REQUEST, "--pcost", "1", "--json", "--mechanisms", "wff", "querysmasher"]
    options = ["objective=max", "querysmasher.centers=tuned", "time_limit=60"]
    assert main([*command, "--options", *options]) == 0
    rows = {row["mechanism"]: row for row in json.loads(capsys.readouterr().out)["mechanisms"]}
    assert sorted(rows) == ["querysmasher (objective=max, centers=tuned)", "wff (objective=max)"]
    assert all(row["status"] == "ok" for row in rows.values())


def test_compare_wrong_options_are_refused(folder: Path, capsys: Capture) -> None:
    command = ["compare", *REQUEST, "--pcost", "1", "--mechanisms", "wff", "querysmasher"]
    command += ["--json", "--options"]
    for option, words in (
        ("centers=tuned", "MECHANISM.centers="),
        ("objectiv=max", "'objective'"),
        ("querysmashr.centers=tuned", "'querysmasher'"),
        ("wff.centers=tuned", "'wff' has no option centers"),
        ("time_limit=0", "above 0"),
    ):
        assert main([*command, option]) == 1
        assert words in capsys.readouterr().err


def test_compare_without_plans_prints_limit_that_would_do(folder: Path, capsys: Capture) -> None:
    (folder / "schema.json").write_text('{"day": 365, "age": 101}')
    schema = Schema.from_json((folder / "schema.json").read_bytes())
    workload = Workload(schema).add(("day", "age"), "affine")
    (folder / "workload.json").write_text(workload.to_json())
    command = ["compare", "--workload", "workload.json", "--pcost", "1"]
    assert main([*command, "--mechanisms", "querysmasher", "--options", "time_limit=2"]) == 0
    output = capsys.readouterr().out
    assert output.startswith("No mechanism could plan this workload.\nquerysmasher: ")
    assert re.search(r"Set --options time_limit=\d+ or more", output)
