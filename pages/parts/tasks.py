"""What the workers do: one engine call each, with plain values in and out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from demo_data.make_synthetic import synthetic
from engine import Budget, Workload, load_plan, measure, plan
from engine.coverage import Coverage, coverage_check
from engine.fitness import MechanismBound, mechanism_bound
from engine.ledger import Ledger
from engine.measure import Intake, load_measurement
from engine.package import write_package
from engine.report import write_answers

Progress = Callable[[float, str], bool]


def make_plan(workload: str, pcost: float, mechanism: str, options: Mapping[str, Any], *, progress: Progress) -> str:
    """Plan, and return the plan as text."""
    asked = Workload.from_json(workload)
    return plan(asked, Budget(pcost=pcost), mechanism, **options, progress=progress).to_json()


def find_bound(workload: str, law: str, *, progress: Progress) -> MechanismBound:
    """Search what no matrix mechanism can go below on a workload."""
    progress(0.1, "Searching a bound that holds for every matrix mechanism")
    return mechanism_bound(Workload.from_json(workload), law)


def rehearse(made: str, rows: int, seed: int, *, progress: Progress) -> dict[str, Any]:
    """Measure a plan on simulated records; return the two mappings of a Measurement."""
    loaded = load_plan(made)
    found = measure(loaded, synthetic(loaded.schema, rows, seed), rehearsal=True, progress=progress)
    return {"answers_on_grid": dict(found.answers_on_grid), "estimates": dict(found.estimates)}


def release(
    made: str,
    data: str,
    dataset: str,
    ledger: str,
    attempt: int,
    on_refused: str,
    delete: bool,
    *,
    progress: Progress,
) -> dict[str, Any]:
    """Measure a plan on records: count, spend, draw, save in one call; return the key and what happened to the rows.

    `delete` says that `data` is a copy made for this call, which is removed afterwards.
    """
    seen: list[Intake] = []
    try:
        found = measure(
            load_plan(made),
            data,
            dataset=dataset,
            ledger=ledger,
            attempt=attempt,
            on_refused=on_refused,
            progress=progress,
            intake=seen.append,
        )
    finally:
        if delete:
            Path(data).unlink(missing_ok=True)
    return {"key": found.key, "rows": _rows(seen[0]) if seen else None}


def export(ledger: str, key: str, path: str, kind: str, confidence: float, *, progress: Progress) -> str:
    """Write all answers of a stored release, or its package, to a file and return its path."""
    book = Ledger(ledger)
    found = load_measurement(book, key)
    if kind == "zip":
        return str(write_package(found, path, receipt=book.find(key), confidence=confidence, progress=progress))
    return str(write_answers(found, path, format=kind, confidence=confidence, progress=progress))


def coverage(made: str, rows: int, seed: int, rehearsals: int, *, progress: Progress) -> Coverage:
    """Rehearse a plan many times on simulated records, for at most two minutes."""
    loaded = load_plan(made)
    records = synthetic(loaded.schema, rows, seed)
    return coverage_check(loaded, records, rehearsals=rehearsals, seconds=120.0, progress=progress)


def _rows(intake: Intake) -> dict[str, int]:
    return {"read": intake.rows_in, "counted": intake.counted, "refused": intake.refused}
