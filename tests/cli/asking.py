"""What the command line is asked, and what it tells programs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from engine.cli.main import main
from engine.mechanisms import plan
from engine.privacy import Budget
from engine.workload import Attribute, Schema, Workload

Said = pytest.CaptureFixture[str]
SCHEMA = Schema([Attribute.of_size("age", 5), Attribute.categorical("sex", ["F", "M"]), Attribute.of_size("hours", 4)])
SQL = "SELECT sex, COUNT(*) FROM t WHERE age <= 2 GROUP BY sex; SELECT COUNT(*) FROM t"


def refuse(text: str) -> None:
    """JSON has no such number."""
    raise AssertionError(f"{text} is no JSON")


def asked(said: Said, *arguments: object, code: int = 0) -> dict[str, Any]:
    """The data of a reply, once its keys are those that the help names."""
    said.readouterr()
    given = [str(one) for one in arguments]
    assert main([*given, "--json"]) == code
    out = said.readouterr().out
    assert out.count("\n") == 1
    found = json.loads(out, parse_constant=refuse)
    words = given[:2] if given[0] == "budget" else given[:1]
    with pytest.raises(SystemExit):
        main([*words, "--help"])
    told = re.search(r"with the keys (.*?)\. Errors", " ".join(said.readouterr().out.split()))
    assert told is not None
    assert sorted(told[1].split(", ")) == sorted(found)
    return found


def released(folder: Path, *attempts: int) -> None:
    """A release, or several, of all pairs."""
    made = plan(Workload.all_ways(SCHEMA, (2,)), Budget(pcost=0.25))
    (folder / "plan.json").write_text(made.to_json())
    assert main(["budget", "create", "--ledger", "office"]) == 0
    assert main(["budget", "add", "--ledger", "office", "--dataset", "people", "--pcost", "1"]) == 0
    given = ["release", "--plan", "plan.json", "--data", "people.csv", "--dataset", "people", "--ledger", "office"]
    for attempt in attempts:
        assert main([*given, "--attempt", str(attempt), "--out", f"{attempt}.csv"]) == 0
