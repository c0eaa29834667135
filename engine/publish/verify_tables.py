"""Checking a zip of published tables without the records: it is made again from its integers, file by file."""

from __future__ import annotations

import csv
import json
import math
import tempfile
from pathlib import Path
from typing import Any

from engine.errors import PlanError
from engine.mechanisms import load_plan
from engine.publish.measurements import NAMES, read_measurements
from engine.publish.tables import QualityRule, publish, uncertainty
from engine.publish.tables_package import HOW, PLAN, TABLES_FORMAT, tables_files
from engine.release import Ledger, Measurement

CLOSE = 1e-6  # what numbers of other machines may differ by


def table_problems(folder: Path, public_key: str | None, ledger: str | Path | None) -> list[str]:
    """Return every problem of the files of `write_tables` in words, none if all is sound.

    Estimates, errors, published counts and flags are computed again from the released integers.  With a ledger, it must
    hold the spend of this very plan.
    """
    how = json.loads((folder / HOW).read_bytes())
    if how.get("format") != TABLES_FORMAT:
        raise PlanError(
            f"The tables are of the form {str(how.get('format'))[:40]!r}. This version reads {TABLES_FORMAT}."
        )
    plan = load_plan((folder / PLAN).read_bytes())
    words = {name: str(how[name]) for name in ("dataset", "key", "utc")}
    found = read_measurements(plan, folder, rehearsal=bool(how["rehearsal"]), **words)
    tables = publish(found, how["fit"], integer=bool(how["integer"]))
    errors = uncertainty(tables, draws=how["draws"])
    rule = QualityRule(**how["rule"])
    problems = ["tables carry no signature; that of their release has one"] if public_key else []
    with tempfile.TemporaryDirectory() as place:
        made = {file.name: file for file in tables_files(errors, Path(place), rule=rule, confidence=how["confidence"])}
        told = {file.name: file for file in folder.iterdir()}
        problems += [f"{name} is not there" for name in sorted(made.keys() - told.keys())]
        problems += [f"{name} is no part of the tables" for name in sorted(told.keys() - made.keys())]
        problems += [
            f"{name} is not what plan and integers give"
            for name in sorted((made.keys() & told.keys()) - {NAMES[1]})  # which was read above, whatever its bytes
            if not _same(made[name], told[name])
        ]
    return problems + ([] if ledger is None else _spend_problems(found, ledger))


def _spend_problems(found: Measurement, ledger: str | Path) -> list[str]:
    receipt = None if found.rehearsal else Ledger(ledger).find(found.key)
    if receipt is None or receipt.plan_hash != found.plan.hash or receipt.dataset != found.dataset:
        return ["the ledger holds no spend of this plan under this key"]
    return []


def _same(one: Path, other: Path) -> bool:
    """Equal, but for the last digits of the numbers in a table, or of a cost."""
    if one.suffix == ".json":
        return _same_values(json.loads(one.read_bytes()), json.loads(other.read_bytes()))
    if one.suffix != ".csv":
        return one.read_bytes() == other.read_bytes()
    with open(one, newline="", encoding="utf-8") as first, open(other, newline="", encoding="utf-8") as second:
        ours, theirs = list(csv.reader(first)), list(csv.reader(second))
    return len(ours) == len(theirs) and all(
        len(a) == len(b) and all(x == y or _near(x, y) for x, y in zip(a, b, strict=True))
        for a, b in zip(ours, theirs, strict=True)
    )


def _same_values(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=CLOSE, abs_tol=CLOSE**2)
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(_same_values(value, other[name]) for name, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same_values, one, other))
    return type(one) is type(other) and bool(one == other)


def _near(one: str, other: str) -> bool:
    if one.lstrip("-").isdigit() and other.lstrip("-").isdigit():
        return False  # whole numbers are the same on every machine
    try:
        return math.isclose(float(one), float(other), rel_tol=CLOSE, abs_tol=CLOSE)
    except ValueError:
        return False
