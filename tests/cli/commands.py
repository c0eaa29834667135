"""Helpers that run commands and read their JSON replies."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from engine.cli.main import main
from engine.mechanisms import plan
from engine.privacy import Budget
from engine.workload import Attribute, Schema, Workload

Capture = pytest.CaptureFixture[str]
SCHEMA = Schema(
    [
        Attribute.of_size("age", 5),
        Attribute.categorical("sex", ["F", "M"]),
        Attribute.of_size("hours", 4),
    ]
)
RELEASE = "release --plan plan.json --data people.csv --dataset people --ledger office"
SQL = "SELECT sex, COUNT(*) FROM t WHERE age <= 2 GROUP BY sex; SELECT COUNT(*) FROM t"


def refuse(text: str) -> None:
    """Reject NaN and infinities, which JSON does not allow."""
    raise AssertionError(f"{text} is not JSON")


def run(command: str) -> int:
    """Run a command that is written as in a shell; return its exit code."""
    return main(shlex.split(command))


def run_json(capsys: Capture, *arguments: object, code: int = 0) -> dict[str, Any]:
    """Run a command with --json; check that the help lists the keys of its reply."""
    capsys.readouterr()
    args = [str(one) for one in arguments]
    assert main([*args, "--json"]) == code
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    reply = json.loads(out, parse_constant=refuse)
    words = args[:2] if args[0] == "budget" else args[:1]
    with pytest.raises(SystemExit):
        main([*words, "--help"])
    keys = re.search(r"with the keys (.*?) --", " ".join(capsys.readouterr().out.split()))
    assert keys is not None
    assert sorted(keys[1].split(", ")) == sorted(reply)
    return reply


def release(folder: Path, *attempts: int) -> None:
    """Create a plan and a ledger, and release the two-way marginals once per attempt number."""
    result = plan(Workload.all_ways(SCHEMA, (2,)), Budget(pcost=0.25))
    (folder / "plan.json").write_text(result.to_json())
    assert run("budget create --ledger office") == 0
    assert run("budget add --ledger office --dataset people --pcost 1") == 0
    for attempt in attempts:
        assert run(f"{RELEASE} --attempt {attempt} --out {attempt}.csv") == 0
