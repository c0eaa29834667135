"""Checking a zip of published tables without the records: it is made again from its integers, file by file."""

from __future__ import annotations

import csv
import itertools
import json
import math
import tempfile
from dataclasses import fields
from pathlib import Path
from typing import Any

from engine.checks import positive, whole
from engine.errors import PlanError
from engine.mechanisms import load_plan
from engine.publish.measurements import NAMES, read_measurements
from engine.publish.package_files import MAX_PLAN, MAX_SMALL, PackageFiles, max_bytes_of
from engine.publish.tables import QualityRule, publish, uncertainty
from engine.publish.tables_package import HOW, MOST_ROWS, PLAN, TABLES_FORMAT, tables_files, unescaped_texts
from engine.release import Ledger, Measurement
from engine.untrusted import MAX_JSON_MEMORY, parse_json

CLOSE = 1e-6  # what numbers of other machines may differ by
MAX_RULE = 1e100  # of the numbers of a quality rule, so that products with counts stay finite
MAX_DRAWS = 10_000  # each of them fits all tables


def table_problems(files: PackageFiles, public_key: str | None, ledger: str | Path | None) -> list[str]:
    """Return every problem of the files of `write_tables` in words, none if all is sound.

    Estimates, errors, published counts and flags are computed again from the released integers.  With a ledger, it must
    hold the spend of this very plan.
    """
    how = _options(files.read(HOW, MAX_SMALL))
    if missing := sorted({PLAN, *NAMES} - set(files.names)):
        return [f"{name} is not there" for name in missing]
    plan = load_plan(files.read(PLAN, MAX_PLAN), untrusted=True)
    if plan.workload.queries > MOST_ROWS:
        raise PlanError(f"The plan has {plan.workload.queries:,} queries, more than tables have.")
    words = {name: how[name] for name in ("dataset", "key", "utc")}
    limits = max_bytes_of(plan)
    for name in (PLAN, *NAMES):
        files.digest(name, limits[name])
    found = read_measurements(
        plan,
        files.path(NAMES[0]),
        files.path(NAMES[1]),
        rehearsal=how["rehearsal"],
        **words,
    )
    tables = publish(found, how["fit"], integer=how["integer"])
    errors = uncertainty(tables, draws=how["draws"])
    rule = QualityRule(**how["rule"])
    problems = ["tables carry no signature; that of their release has one"] if public_key else []
    with tempfile.TemporaryDirectory() as place:
        expected = {
            file.name: file for file in tables_files(errors, Path(place), rule=rule, confidence=how["confidence"])
        }
        told = set(files.names)
        problems += [f"{name} is not there" for name in sorted(expected.keys() - told)]
        problems += [f"{name} is no part of the tables" for name in sorted(told - expected.keys())]
        earlier = unescaped_texts(found, how["confidence"])
        for name in sorted((expected.keys() & told) - {NAMES[1]}):  # which was read above, whatever its bytes
            files.digest(name, 2 * expected[name].stat().st_size + MAX_SMALL)
            try:
                same = _same(expected[name], files.path(name))
            except (ValueError, csv.Error):  # text of another encoding, or no table
                same = False
            if not same and name in earlier:
                same = files.path(name).read_bytes() == earlier[name].encode()
            if not same:
                problems.append(f"{name} is not what plan and integers give")
    return problems + ([] if ledger is None else _spend_problems(found, ledger))


def _options(text: bytes) -> dict[str, Any]:
    """Return how the tables were made; raise PlanError unless every option is there, with a value of its type."""
    how = parse_json(text)
    if not isinstance(how, dict) or how.get("format") != TABLES_FORMAT:
        given = how.get("format") if isinstance(how, dict) else None
        raise PlanError(f"The tables are of the form {str(given)[:40]!r}. This version reads {TABLES_FORMAT}.")
    types = {"dataset": str, "key": str, "utc": str, "fit": str, "rehearsal": bool, "integer": bool, "rule": dict}
    for name, kind in types.items():
        if type(how.get(name)) is not kind:
            raise PlanError(f"The option {name} in {HOW} is damaged.")
    rule, names = how["rule"], {field.name for field in fields(QualityRule)}
    if rule.keys() != names or not all(type(v) in (int, float) and abs(v) < MAX_RULE for v in rule.values()):
        raise PlanError(f"The option rule in {HOW} is damaged.")
    whole(f"number of draws in {HOW}", how.get("draws"), 2, MAX_DRAWS, error=PlanError)
    positive(f"confidence in {HOW}", how.get("confidence"), below=1, error=PlanError)
    return how


def _spend_problems(found: Measurement, ledger: str | Path) -> list[str]:
    receipt = None if found.rehearsal else Ledger(ledger).find(found.key)
    if receipt is None or receipt.plan_hash != found.plan.hash or receipt.dataset != found.dataset:
        return ["the ledger holds no spend of this plan under this key"]
    return []


def _same(one: Path, other: Path) -> bool:
    """Equal, but for the last digits of the numbers in a table, or of a cost."""
    if one.suffix == ".json":
        return _same_values(json.loads(one.read_bytes()), parse_json(other.read_bytes(), max_memory=MAX_JSON_MEMORY))
    if one.suffix != ".csv":
        return one.read_bytes() == other.read_bytes()
    with open(one, newline="", encoding="utf-8") as first, open(other, newline="", encoding="utf-8") as second:
        rows = itertools.zip_longest(csv.reader(first), csv.reader(second))
        return all(
            a is not None
            and b is not None
            and len(a) == len(b)
            and all(x == y or _near(x, y) for x, y in zip(a, b, strict=True))
            for a, b in rows
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
