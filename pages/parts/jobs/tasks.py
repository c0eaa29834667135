"""What the workers do: one engine call each, with plain values in and out."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from demo_data.make_synthetic import synthetic
from engine.analysis import ROWS, comparison, mechanism_bound
from engine.analysis.compare import Comparison
from engine.analysis.error_distribution import Coverage, coverage_check
from engine.analysis.error_targets import MechanismBound, fit_targets
from engine.analysis.what_if import Request
from engine.common_mechanism import CommonPlan, stepwise
from engine.errors import OtherRecords
from engine.ledger import Ledger
from engine.mechanisms import label_of, load_plan, plan
from engine.privacy import Budget
from engine.publish import write_answers, write_package
from engine.publish.output_path import new_file
from engine.release import Intake, load_measurement, measure
from engine.release.ingest import ColumnFit, check_records, records_fit
from engine.release.measure import compare_records, load_rehearsal, save_rehearsal
from engine.workload import Workload
from pages.parts.jobs.record_sources import open_source

Progress = Callable[[float, str], bool]
AGAIN = "Release once more with new noise (spends again)"
OTHER_RECORDS = (
    f"To release these records, tick '{AGAIN}', or declare another dataset, with a budget of its"
    " own, and choose it."
)

LOOK_AGAIN = "Look once more with new noise (spends again)"
OTHER_LOOK = (
    f"To look at these records, tick '{LOOK_AGAIN}', or declare another dataset, with a budget of"
    " its own, and choose it. The stored look is under 'Earlier looks'."
)


def make_plan(
    workload: str,
    budget: Mapping[str, float],
    mechanism: str,
    options: Mapping[str, Any],
    *,
    progress: Progress,
) -> str:
    """Plan, and return the plan as text."""
    request_workload = Workload.from_json(workload)
    return plan(
        request_workload, Budget.from_dict(budget), mechanism, **options, progress=progress
    ).to_json()


def compare_all(
    workload: str,
    budget: Mapping[str, float],
    choices: Sequence[tuple[str, Mapping[str, Any]]],
    time_limit: float,
    *,
    progress: Progress,
) -> tuple[Comparison, dict[str, tuple[str, Mapping[str, Any]]]]:
    """Compare mechanisms; return what was found and the choices by their labels.

    What came of each mechanism is kept, so that one more mechanism costs one more plan.
    """
    request_workload = Workload.from_json(workload)
    result = comparison(
        request_workload,
        Budget.from_dict(budget),
        choices,
        time_limit=time_limit,
        progress=progress,
    )
    return result, {label_of(name, options): (name, options) for name, options in choices}


def published(number: int, *, progress: Progress) -> float:
    """Plan a row of the published tables and return its RMSE at privacy cost 1."""
    return plan(ROWS[number].workload(), Budget(pcost=1.0), progress=progress).rmse


def find_bound(workload: str, law: str, *, progress: Progress) -> MechanismBound:
    """Search what no matrix mechanism can go below on a workload."""
    progress(0.1, "Searching a bound that holds for every matrix mechanism")
    return mechanism_bound(Workload.from_json(workload), law)


def solve_targets(
    workload: str,
    budget: Mapping[str, float],
    mechanism: str,
    options: Mapping[str, Any],
    targets: Sequence[float],
    locked: Sequence[bool] | None,
    *,
    progress: Progress,
) -> tuple[dict[str, Any], dict[str, Any], str]:
    """Solve targets of single groups; return the budget, the options, and the plan as text."""
    request = Request(
        workload=Workload.from_json(workload),
        budget=Budget.from_dict(budget),
        mechanism=mechanism,
        options=options,
    )
    targets_result = fit_targets(request, targets, locked, progress)
    return (
        targets_result.request.budget.to_dict(),
        dict(targets_result.request.options),
        targets_result.plan.to_json(),
    )


def rehearse(plan_text: str, rows: int, seed: int, file: str, *, progress: Progress) -> str:
    """Measure a plan on simulated records, keep the numbers in a file, and return that."""
    loaded = load_plan(plan_text)
    save_rehearsal(
        measure(loaded, synthetic(loaded.schema, rows, seed), rehearsal=True, progress=progress),
        file,
    )
    return file


def release(
    plan_text: str,
    data: str,
    dataset: str,
    ledger: str,
    attempt: int,
    columns: Mapping[str, Any],
    *,
    progress: Progress,
) -> dict[str, Any]:
    """Measure a plan on records: count, spend, draw, save in one call; return the key and what
    happened to the rows.
    """
    seen: list[Intake] = []
    options = {"dataset": dataset, "ledger": ledger, "attempt": attempt, **columns}
    try:
        with open_source(data) as records:
            measurement = measure(
                load_plan(plan_text), records, progress=progress, intake=seen.append, **options
            )
    except OtherRecords as error:
        raise OtherRecords(error.fact, OTHER_RECORDS) from None
    return {"key": measurement.key, "rows": _rows(seen[0]) if seen else None}


def check(
    plan_text: str,
    data: str,
    dataset: str,
    ledger: str,
    columns: Mapping[str, Any],
    *,
    progress: Progress,
) -> dict[str, Any]:
    """Return how records fit a plan and its schema, for the curator's eyes only; spends nothing."""
    book, loaded = Ledger(ledger), load_plan(plan_text)
    first, then = (
        (lambda f, text: progress(0.4 * f, text)),
        (lambda f, text: progress(0.4 + 0.6 * f, text)),
    )
    with open_source(data) as records:
        fits = records_fit(loaded.schema, records, progress=first)
        has_same_records = check_records(
            loaded, records, dataset=dataset, ledger=book, **columns, progress=then
        )
    return _rows(has_same_records) | {"columns": [_fit(one) for one in fits]}


def same_records(
    ledger: str, key: str, data: str, columns: Mapping[str, Any], *, progress: Progress
) -> str:
    """Return why a stored release was not measured on these records; empty if it was.  Spends
    nothing.
    """
    try:
        with open_source(data) as records:
            compare_records(ledger, key, records, **columns, progress=progress)
    except OtherRecords as error:
        return error.fact
    return ""


def same_look(
    ledger: str, key: str, data: str, columns: Mapping[str, Any], *, progress: Progress
) -> str:
    """Return why a stored look has other records than these; empty if it has the same.  Spends
    nothing.
    """
    try:
        with open_source(data) as records:
            stepwise.compare_records(ledger, key, records, **columns, progress=progress)
    except OtherRecords as error:
        return error.fact
    return ""


def export(
    ledger: str,
    key: str,
    path: str,
    keep: Sequence[str],
    overwrite: bool,
    confidence: float,
    *,
    progress: Progress,
) -> str:
    """Write all answers of a stored release, or its package, to a file of a new name and return its
    path.
    """
    book = Ledger(ledger)
    measurement = load_measurement(book, key)
    with new_file(path, keep=[ledger, *keep], overwrite=overwrite) as partial:
        if path.lower().endswith(".zip"):
            receipt = book.find(key)
            write_package(
                measurement,
                partial,
                receipt=receipt,
                ledger=book,
                confidence=confidence,
                progress=progress,
            )
        else:
            kind = "csv" if path.lower().endswith(".csv") else "parquet"
            write_answers(
                measurement, partial, format=kind, confidence=confidence, progress=progress
            )
    return path


def coverage(
    plan_text: str, rows: int, seed: int, rehearsals: int, *, progress: Progress
) -> Coverage:
    """Rehearse a plan many times on simulated records, for at most two minutes."""
    loaded = load_plan(plan_text)
    records = synthetic(loaded.schema, rows, seed)
    return coverage_check(loaded, records, rehearsals=rehearsals, seconds=120.0, progress=progress)


def rehearse_look(common: str, rows: int, seed: int, file: str, *, progress: Progress) -> str:
    """Look at simulated records, keep the numbers in a file, and return that."""
    shared = CommonPlan.from_json(common)
    records = synthetic(shared.look.schema, rows, seed)
    save_rehearsal(stepwise.look(shared, records, rehearsal=True, progress=progress), file)
    return file


def rehearse_rest(
    common: str, looked: str, rows: int, seed: int, option: str, file: str, *, progress: Progress
) -> str:
    """Measure what is left of an option on simulated records, after the look in a file; return a
    file like it.
    """
    shared = CommonPlan.from_json(common)
    records = synthetic(shared.look.schema, rows, seed)
    progress(0.2, "Measuring the rest")
    measurement = stepwise.rehearse_finish(
        shared, load_rehearsal(shared.look, looked), records, option=option
    )
    save_rehearsal(measurement, file)
    return file


def look(
    common: str,
    data: str,
    dataset: str,
    ledger: str,
    attempt: int,
    columns: Mapping[str, Any],
    rule: Mapping[str, Any],
    *,
    progress: Progress,
) -> dict[str, Any]:
    """Measure what options share: count, spend, draw, save in one call; return the key and what
    happened to the rows.

    The rule that was fixed before is noted on the ledger before anyone sees the look.
    """
    seen: list[Intake] = []
    shared, book = CommonPlan.from_json(common), Ledger(ledger)
    is_paid = book.find(stepwise.look_key(shared, dataset=dataset, attempt=attempt)) is not None
    options = {"dataset": dataset, "ledger": book, "attempt": attempt, **columns}
    with open_source(data) as records:
        measurement = stepwise.look(
            shared, records, progress=progress, intake=seen.append, **options
        )
    if not is_paid:
        book.note(
            dataset=dataset,
            kind="rule",
            text=json.dumps(dict(rule), sort_keys=True),
            key=measurement.key,
        )
    return {"key": measurement.key, "rows": _rows(seen[0]) if seen else None}


def finish(
    ledger: str,
    key: str,
    data: str,
    attempt: int,
    columns: Mapping[str, Any],
    on_changed: str,
    *,
    progress: Progress,
) -> dict[str, Any]:
    """Measure what is left of the option that was chosen for a look; return the key and what
    happened to the rows.
    """
    seen: list[Intake] = []
    options = {"attempt": attempt, "on_changed": on_changed, **columns}
    with open_source(data) as records:
        measurement = stepwise.finish(
            ledger, key, records, progress=progress, intake=seen.append, **options
        )
    return {"key": measurement.key, "rows": _rows(seen[0]) if seen else None}


def _fit(one: ColumnFit) -> dict[str, Any]:
    """How one column fits, under headings for people."""
    if not one.there:
        return {
            "Column": one.column,
            "Values that the schema does not know": "the records have no such column",
        }
    return {
        "Column": one.column,
        "Known": one.in_domain,
        "Missing": one.missing,
        "Not known": one.unknown,
        "Collected": one.missing + one.unknown - one.refused,
        "Left out": one.refused,
        "Values that the schema does not know": ", ".join(
            f"{value} ({rows:,})" for value, rows in one.values.items()
        ),
    }


def _rows(intake: Intake) -> dict[str, Any]:
    return {
        "text": intake.describe(),
        "reasons": {name: dict(rows_by_reason) for name, rows_by_reason in intake.reasons.items()},
        "warnings": intake.warnings,
    }
