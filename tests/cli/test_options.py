"""Options of mechanisms: as keyword arguments, and as NAME=VALUE on the command line."""

from __future__ import annotations

import inspect
import json
from dataclasses import fields
from pathlib import Path
from typing import Unpack, get_type_hints

import pytest

from engine.cli.main import main
from engine.mechanisms import forecast, load_plan, plan
from engine.mechanisms.base import Limits, PlanOptions
from engine.mechanisms.registry import MECHANISMS

Said = pytest.CaptureFixture[str]


def test_editors_know_all_options_and_their_types() -> None:
    """What the two functions declare is what mechanisms and limits take, no more, no less."""
    taken: dict[str, set[object]] = {}
    for kind in (Limits, *MECHANISMS):
        types = get_type_hints(kind)
        for field in fields(kind):
            taken.setdefault(field.name, set()).add(types[field.name])
    taken["progress"] = {one | bool for one in taken["progress"]}  # True stands for a bar
    assert {name: {kind} for name, kind in get_type_hints(PlanOptions).items()} == taken
    for function in (plan, forecast):
        assert get_type_hints(function)["options"] == Unpack[PlanOptions]
        assert inspect.signature(function).parameters["options"].kind is inspect.Parameter.VAR_KEYWORD


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "schema.json").write_text('{"age": 5, "hours": 4}')
    return tmp_path


WHAT = ["--schema", "schema.json", "--ways", "1", "2"]


@pytest.mark.parametrize(
    ("mechanism", "options", "kept"),
    [
        ("querysmasher", ["centers=tuned", "cache=False", "time_limit=60"], {"centers": "tuned"}),
        ("querysmasher", ["objective=max", "targets=[3, 4, 5.5]", "gap=1e-5"], {"targets": [3.0, 4.0, 5.5]}),
        ("hierarchical", ["branching=4"], {"branching": 4}),
        ("hierarchical", ["branching=best"], {"branching": "best"}),
        ("residualplanner+", ['base={"age": "range"}'], {"base": {"age": "range"}}),
    ],
)
def test_options_have_the_types_of_their_mechanism(
    folder: Path, mechanism: str, options: list[str], kept: dict[str, object]
) -> None:
    given = ["plan", *WHAT, "--pcost", "1", "--mechanism", mechanism, "--options", *options, "--out", "p.json"]
    assert main(given) == 0
    made = load_plan((folder / "p.json").read_bytes())
    assert {name: made.options[name] for name in kept} == kept


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("center=tuned", "center; close names: 'centers'"),
        ("centers=tuend", "'tuend'; close names: 'tuned'"),
        ("objective=maximum", "'maximum'; close names: 'max'"),
        ("timelimit=3", "'time_limit'"),
        ("time_limit=3s", "'3s'. Give a number above 0"),
        ("gap=small", "'small'. Give a number"),
        ("workers=2.5", "2.5. Give an integer"),
        ("cache=no", "'no'. Give True or False"),
        ("centers", "NAME=VALUE"),
        ("progress=1", "progress is always told"),
        ("branching=4", "has no option branching"),
    ],
)
def test_a_mistyped_option_is_answered_before_any_file_is_read(option: str, words: str, capsys: Said) -> None:
    for command in (["plan", "--pcost", "1", "--out", "p.json"], ["forecast"]):
        assert main([*command, "--workload", "nowhere.json", "--options", option]) == 1
        said = capsys.readouterr()
        assert words in said.err
        assert (said.err.count("\n"), said.out) == (1, "")


def test_a_comparison_takes_options_for_all_and_for_one(folder: Path, capsys: Said) -> None:
    given = ["compare", *WHAT, "--pcost", "1", "--mechanisms", "wff", "querysmasher", "--json", "--options"]
    assert main([*given, "objective=max", "querysmasher.centers=tuned", "time_limit=60"]) == 0
    rows = {row["mechanism"]: row for row in json.loads(capsys.readouterr().out)["mechanisms"]}
    assert sorted(rows) == ["querysmasher (objective=max, centers=tuned)", "wff (objective=max)"]
    assert all(row["status"] == "ok" for row in rows.values())
    for option, words in (
        ("centers=tuned", "Say whose it is, such as wff.centers=..."),
        ("objectiv=max", "'objective'"),
        ("querysmashr.centers=tuned", "'querysmasher'"),
        ("wff.centers=tuned", "'wff' has no option centers"),
        ("time_limit=0", "above 0"),
    ):
        assert main([*given, option]) == 1
        assert words in capsys.readouterr().err
