"""Functions that workers call, with arguments and results that can be pickled."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from demo_data.make_synthetic import synthetic
from engine.analysis import (
    ROWS,
    WeightProposal,
    change_effects,
    comparison,
    mechanism_bound,
    quality,
)
from engine.analysis.certificates import MechanismBound
from engine.analysis.compare import Comparison
from engine.analysis.error_distribution import Coverage, coverage_check
from engine.analysis.error_targets import fit_targets
from engine.analysis.what_if import Request
from engine.common_mechanism import CommonPlan, stepwise
from engine.errors import OtherRecords
from engine.ledger import Ledger
from engine.mechanisms import label_of, load_plan, plan
from engine.privacy import Budget
from engine.publish import write_answers, write_package
from engine.publish.output_path import new_file
from engine.release import Intake, Measurement, load_measurement, measure
from engine.release.ingest import ColumnFit, check_records, records_fit
from engine.release.measure import (
    compare_records,
    is_unfinished,
    load_rehearsal,
    save_rehearsal,
)
from engine.workload import Schema, Workload
from pages.parts.jobs.record_sources import open_source
from pages.parts.jobs.row_advice import keep_rows_advice

Progress = Callable[[float, str], bool]
AGAIN = "Release again with new noise (spends again)"
OTHER_RECORDS = (
    f"To release these records, tick “{AGAIN}”. Register another dataset only for other people."
)

REPEAT_LABEL = "Measure again with new noise (spends again)"
OTHER_LOOK = (
    f"To measure these records, tick “{REPEAT_LABEL}”. Register another dataset only for other"
    " people. The stored first measurement is under 'Past measurements'."
)
CHARGE_LABEL = "The records have changed since the first measurement: charge this step separately"
CHARGE = f"“{CHARGE_LABEL}”, which shows the cost."


def make_plan(
    workload: str,
    budget: Mapping[str, float],
    mechanism: str,
    options: Mapping[str, Any],
    *,
    progress: Progress,
) -> str:
    """Plan a workload; return the plan as JSON."""
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
    """Compare mechanisms on a workload.

    Parameters
    ----------
    choices : pairs of the name and the options of a mechanism.
    time_limit : time limit per mechanism, in seconds.

    Returns
    -------
    The comparison, and a mapping from the label of each mechanism to its name and its options.
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


def recomputed_rmse(number: int, *, progress: Progress) -> float:
    """Return the RMSE, in counts, of a plan for the workload `ROWS[number]` at privacy cost 1."""
    return plan(ROWS[number].workload(), Budget(pcost=1.0), progress=progress).rmse


def find_bound(workload: str, law: str, *, progress: Progress) -> MechanismBound:
    """Return a lower bound on the error of every matrix mechanism at privacy cost 1.

    The error is the weighted sum of squared errors. ``law`` is the distribution of the noise.
    """
    progress(0.1, "Computing the limit for every matrix mechanism")
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
    """Find a budget and options for error targets of the tables.

    Without ``locked``, the result is the smallest budget at which all targets are met.  With
    ``locked``, the budget remains, the locked targets are met, and all other targets are multiplied
    by a common factor.

    Parameters
    ----------
    targets : for every table, the largest allowed standard error, in counts.
    locked : for every table, whether its target is locked; None for no locks.

    Returns
    -------
    The budget and the options as mappings, and the plan as JSON.
    """
    request = _request(workload, budget, mechanism, options)
    result = fit_targets(request, targets, locked, progress)
    return result.request.budget.to_dict(), dict(result.request.options), result.plan.to_json()


def propose_weights(
    workload: str,
    budget: Mapping[str, float],
    mechanism: str,
    options: Mapping[str, Any],
    groups: Sequence[int],
    *,
    progress: Progress,
) -> WeightProposal | None:
    """Propose larger weights for groups whose errors are far above the typical error.

    ``groups`` are the indices of these groups. Returns None if larger weights do not help.
    """
    request = _request(workload, budget, mechanism, options)
    return quality.propose_weights(request, groups, progress)


def helpful_changes(
    workload: str,
    budget: Mapping[str, float],
    mechanism: str,
    options: Mapping[str, Any],
    group: int,
    *,
    progress: Progress,
) -> tuple[change_effects.Effect, ...]:
    """Return the changes of a request that lower the error of the group with this index."""
    request = _request(workload, budget, mechanism, options)
    return change_effects.helpful_changes(request, group, progress)


def _request(
    workload: str, budget: Mapping[str, float], mechanism: str, options: Mapping[str, Any]
) -> Request:
    """Return the arguments of `plan` as one object.

    ``workload`` is JSON, and ``budget`` is the mapping of `Budget.to_dict`.
    """
    return Request(
        workload=Workload.from_json(workload),
        budget=Budget.from_dict(budget),
        mechanism=mechanism,
        options=options,
    )


def rehearse(plan_text: str, rows: int, seed: int, file: str, *, progress: Progress) -> str:
    """Measure a plan on ``rows`` simulated records and save the measurement; return the path.

    ``seed`` determines the records and the noise.
    """
    loaded_plan = load_plan(plan_text)
    save_rehearsal(
        measure(
            loaded_plan,
            synthetic(loaded_plan.schema, rows, seed),
            rehearsal=True,
            seed=seed,
            progress=progress,
        ),
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
    """Release a plan on records, and spend its budget unless the ledger already has this release.

    Returns
    -------
    A mapping with "key", the key of the release in the ledger, and "rows", the private report on
    the rows read, which is None if the ledger already had the release.
    """
    intakes: list[Intake] = []
    options = {"dataset": dataset, "ledger": ledger, "attempt": attempt, **columns}
    try:
        with open_source(data) as records:
            measurement = measure(
                load_plan(plan_text), records, progress=progress, intake=intakes.append, **options
            )
    except OtherRecords as error:
        raise OtherRecords(error.fact, OTHER_RECORDS) from None
    return {
        "key": measurement.key,
        "rows": _rows(intakes[0], measurement.plan.schema) if intakes else None,
    }


def check(
    plan_text: str,
    data: str,
    dataset: str,
    ledger: str,
    columns: Mapping[str, Any],
    *,
    progress: Progress,
) -> dict[str, Any]:
    """Return the private report on how records fit the schema of a plan, without spending budget.

    If ``ledger`` is the empty text, the report does not mention earlier releases of the same records.
    """
    book = Ledger(ledger) if ledger else None
    loaded_plan = load_plan(plan_text)
    with open_source(data) as records:
        fits = records_fit(
            loaded_plan.schema, records, progress=lambda done, text: progress(0.4 * done, text)
        )
        intake = check_records(
            loaded_plan,
            records,
            dataset=dataset,
            ledger=book,
            **columns,
            progress=lambda done, text: progress(0.4 + 0.6 * done, text),
        )
    rows = _rows(intake, loaded_plan.schema) | {
        "dropped": intake.describe_dropped(before_release=True)
    }
    return rows | {"columns": [_fit(column_fit) for column_fit in fits]}


def same_records(
    ledger: str, key: str, data: str, columns: Mapping[str, Any], *, progress: Progress
) -> str:
    """Return a text on how records differ from those of a stored release; empty if they are equal."""
    return _difference(data, partial(compare_records, ledger, key, **columns, progress=progress))


def same_look(
    ledger: str, key: str, data: str, columns: Mapping[str, Any], *, progress: Progress
) -> str:
    """Return a text on how records differ from those of a first measurement; empty if equal."""
    return _difference(
        data, partial(stepwise.compare_records, ledger, key, **columns, progress=progress)
    )


def _difference(data: str, compare: Callable[[Any], object]) -> str:
    """Return the difference that ``compare`` raises as OtherRecords; empty if it raises nothing."""
    try:
        with open_source(data) as records:
            compare(records)
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
    """Write the package (.zip) or all answers (.csv, .parquet) of a release to a file.

    ``keep`` lists files that must not be overwritten. Return the path.
    """
    book = Ledger(ledger)
    measurement = load_measurement(book, key)
    with new_file(path, keep=[ledger, *keep], overwrite=overwrite) as partial:
        if path.lower().endswith(".zip"):
            write_signed_package(
                measurement, partial, ledger=book, confidence=confidence, progress=progress
            )
        else:
            kind = "csv" if path.lower().endswith(".csv") else "parquet"
            write_answers(
                measurement, partial, format=kind, confidence=confidence, progress=progress
            )
    return path


def write_signed_package(
    measurement: Measurement, path: str | os.PathLike[str], *, ledger: Ledger, **options: Any
) -> Path:
    """Write a release package with the receipt and the signature of the ledger; return its path.

    ``options`` are further arguments of `write_package`.
    """
    receipt = ledger.find(measurement.key)
    return write_package(measurement, path, receipt=receipt, ledger=ledger, **options)


def coverage(
    plan_text: str, rows: int, seed: int, rehearsals: int, *, progress: Progress
) -> Coverage:
    """Return the share of intervals that contain the true count in repeated simulated releases.

    There are ``rehearsals`` releases, or fewer if two minutes have passed.
    """
    loaded_plan = load_plan(plan_text)
    records = synthetic(loaded_plan.schema, rows, seed)
    return coverage_check(
        loaded_plan, records, rehearsals=rehearsals, seconds=120.0, progress=progress
    )


def rehearse_look(common: str, rows: int, seed: int, file: str, *, progress: Progress) -> str:
    """Make the first measurement (the look) on simulated records, save it, and return the path.

    ``seed`` determines the records and the noise.
    """
    common_plan = CommonPlan.from_json(common)
    records = synthetic(common_plan.look.schema, rows, seed)
    save_rehearsal(
        stepwise.look(common_plan, records, rehearsal=True, seed=seed, progress=progress), file
    )
    return file


def rehearse_rest(
    common: str, look_file: str, rows: int, seed: int, option: str, file: str, *, progress: Progress
) -> str:
    """Make the second measurement for an option on simulated records, after a saved first one.

    Save both measurements as one in ``file``; return the path of the file.
    """
    common_plan = CommonPlan.from_json(common)
    records = synthetic(common_plan.look.schema, rows, seed)
    progress(0.2, "Measuring what the analysis still needs")
    measurement = stepwise.rehearse_finish(
        common_plan,
        load_rehearsal(common_plan.look, look_file),
        records,
        option=option,
        seed=seed,
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
    """Release the look, the first measurement of a two-stage release.

    If the look (first measurement) has no answers yet, the decision rule is written to the ledger
    before the user sees them.

    Returns
    -------
    A mapping with "key", the key of the look in the ledger, and "rows", the private report on the
    rows read, which is None if the ledger already had the look.
    """
    intakes: list[Intake] = []
    common_plan = CommonPlan.from_json(common)
    book = Ledger(ledger)
    key = stepwise.look_key(common_plan, dataset=dataset, attempt=attempt)
    # The rule must be recorded before anybody sees answers of the look (first stage). If a look was
    # paid for but interrupted, it has no answers yet, so the rule can still be recorded.
    has_result = book.find(key) is not None and not is_unfinished(book, key)
    options = {"dataset": dataset, "ledger": book, "attempt": attempt, **columns}
    with open_source(data) as records:
        measurement = stepwise.look(
            common_plan, records, progress=progress, intake=intakes.append, **options
        )
    if not has_result and not book.notes(kind="rule", key=key):
        book.note(
            dataset=dataset,
            kind="rule",
            text=json.dumps(dict(rule), sort_keys=True),
            key=measurement.key,
        )
    return {
        "key": measurement.key,
        "rows": _rows(intakes[0], measurement.plan.schema) if intakes else None,
    }


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
    """Release the second measurement for the option that was chosen after the first.

    Parameters
    ----------
    key : key of the first measurement (look) in the ledger.
    on_changed : what happens if the records have changed since then, see `stepwise.finish`.

    Returns
    -------
    A mapping with "key", the key of the release in the ledger, and "rows", the private report on
    the rows read, which is None if the ledger already had the release.
    """
    intakes: list[Intake] = []
    options = {"attempt": attempt, "on_changed": on_changed, **columns}
    try:
        with open_source(data) as records:
            measurement = stepwise.finish(
                ledger, key, records, progress=progress, intake=intakes.append, **options
            )
    except OtherRecords as error:
        if "on_changed" not in error.remedy:
            raise
        # The remedy is replaced, because it states costs in pcost and names a Python argument.
        remedy = f"Tick {CHARGE}"
        if "Give the records" in error.remedy:
            remedy = f"Choose the records of the first measurement, or tick {CHARGE}"
        raise OtherRecords(error.fact, f"Nothing was spent. {remedy}") from None
    return {
        "key": measurement.key,
        "rows": _rows(intakes[0], measurement.plan.schema) if intakes else None,
    }


def _fit(fit: ColumnFit) -> dict[str, Any]:
    """Return how one column of the records fits the schema, as a row of a table on screen."""
    if not fit.is_present:
        return {"Column": fit.column, "Frequent unlisted values": "the file has no such column"}
    return {
        "Column": fit.column,
        "Listed": fit.in_domain,
        "Missing": fit.missing,
        "Unlisted": fit.unknown,
        "Recoded": fit.missing + fit.unknown - fit.refused,
        "Dropped": fit.refused,
        "Frequent unlisted values": ", ".join(
            f"{value} ({rows:,})" for value, rows in fit.values.items()
        ),
    }


def _rows(intake: Intake, schema: Schema) -> dict[str, Any]:
    """Return the private report on the rows that a release read and dropped, for the page."""
    return {
        "text": intake.describe(),
        "dropped": intake.describe_dropped(),
        "refused": intake.refused,
        "reasons": {name: dict(rows_by_reason) for name, rows_by_reason in intake.reasons.items()},
        "advice": keep_rows_advice(schema, intake.reasons),
        "warnings": intake.warnings,
        "many_dropped": intake.many_dropped,
    }
