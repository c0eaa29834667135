"""Functions that workers call to compute published tables."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from engine.errors import LimitExceeded
from engine.ledger import Ledger
from engine.mechanisms import load_plan, plan
from engine.postprocess import QualityRule, acceptance, publish, uncertainty
from engine.postprocess.publication_weights import publication_weights
from engine.postprocess.published_tables import Published, publish_forecast
from engine.postprocess.uncertainty import Uncertainty
from engine.privacy import Budget
from engine.publish import (
    write_level_sums,
    write_package,
    write_published,
    write_records,
    write_tables,
    write_workbook,
)
from engine.publish.tables_package import is_cells, sums_of_counts, sums_text
from engine.release import Measurement, load_measurement
from engine.release.measure import load_rehearsal
from engine.workload import Workload

Progress = Callable[[float, str], bool]


def publish_tables(
    source: Mapping[str, str],
    fit: str,
    integer: bool,
    records: tuple[bool, int | None],
    rule: Mapping[str, float],
    files: Mapping[str, str],
    checkpoint: str | None = None,
    *,
    progress: Progress,
) -> dict[str, Any]:
    """Compute published tables with their errors, write them to files, and return a summary.

    Parameters
    ----------
    source : "ledger" and "key" of a release, or "plan" and "file" of a rehearsal.
    fit : method of `engine.postprocess.publish`.
    records : whether to create synthetic records, and their number (None: the total of the tables).
    rule : parameters of the `QualityRule` that marks unreliable cells.
    files : kind of file, such as "csv" -> path; "levels" is the file of sums along code lists.
    checkpoint : folder in which an interrupted call leaves its results for the next call; removed
        at the end.

    Returns
    -------
    A mapping with the keys

    - "total": number of records in the published tables, the same in every table;
    - "summary": table of errors with one row per group;
    - "bias": list with one table per group, the bias by cell size;
    - "predicted": numbers of the groups that smaller tables predict completely;
    - "draws": number of simulations from which the errors are estimated;
    - "determined": sentence on attributes that determine others; may be empty;
    - "files": the argument ``files``;
    - "sums": list with one sentence per group: how many counts are suppressed, and what they add to
      the sum; empty for a group without suppressed counts, or whose queries are not cells;
    - "too large": mapping from the kinds of files that were not written to the reason;
    - "acceptance": quality criteria of the synthetic records, only if they were drawn.
    """
    measurement, quality_rule = _measurement(source), QualityRule(**rule)
    places = {kind: Path(place) for kind, place in files.items()}
    for place in places.values():
        place.unlink(missing_ok=True)  # the empty file that `private_tempdir.new_file` created
    fitted, computed, written = _steps(measurement, records)
    file_step = (written - computed) / 5  # five files: Parquet, CSV, ZIP, workbook and package
    tables = publish(
        measurement, fit, integer=integer, progress=_part(progress, 0.0, fitted), resume=checkpoint
    )
    errors = uncertainty(tables, progress=_part(progress, fitted, computed), resume=checkpoint)
    for number, kind in enumerate(("parquet", "csv")):
        first = computed + number * file_step
        write_published(
            errors,
            places[kind],
            format=kind,
            rule=quality_rule,
            progress=_part(progress, first, first + file_step),
        )
    if "levels" in places:
        write_level_sums(errors, places["levels"], rule=quality_rule)
    out: dict[str, Any] = {
        "total": tables.total,
        "summary": errors.summary(quality_rule),
        "predicted": errors.predicted_groups,
        "draws": len(errors.errors),
        "determined": errors.determined_text,
        "files": dict(files),
    }
    out["sums"] = _sums(tables, places["parquet"])
    out["too large"] = {}
    out["bias"] = [errors.bias(group.attributes) for group in measurement.plan.workload.groups]
    for kind, write, number in (
        ("zip", write_tables, 2),
        ("xlsx", write_workbook, 3),
        ("package", partial(_write_package, ledger=source.get("ledger")), 4),
    ):
        if kind not in places:
            continue
        first = computed + number * file_step
        try:
            write(
                errors,
                places[kind],
                rule=quality_rule,
                progress=_part(progress, first, first + file_step),
            )
        except LimitExceeded as error:
            out["too large"][kind] = str(error)
    simulate, people = records
    if simulate:
        synthetic_records = tables.records(
            people, progress=_part(progress, written, 1.0), resume=checkpoint
        )
        progress(1.0, "Comparing synthetic records with the tables")
        write_records(measurement, synthetic_records, places["records"])
        out["acceptance"] = acceptance(errors, synthetic_records)
    for place in places.values():
        if place.exists():
            place.chmod(0o600)  # the writers create files with default permissions
    if checkpoint is not None:
        shutil.rmtree(checkpoint, ignore_errors=True)
    return out


def _steps(
    measurement: Measurement, records: tuple[bool, int | None]
) -> tuple[float, float, float]:
    """Return the expected progress after the fit, after the errors and after the files.

    The values are fractions of the forecast time, so that the progress grows evenly.  ``records``
    is that argument of `publish_tables`.
    """
    simulate, people = records
    total = float(measurement.marginal([])) if people is None else float(people)
    forecast = publish_forecast(measurement.plan, total if simulate else 0.0)
    written = 1.0 - forecast.records_seconds / forecast.seconds
    computed = written - forecast.file_seconds / forecast.seconds
    return forecast.fit_seconds / forecast.seconds, computed, written


def _sums(tables: Published, file: Path) -> list[str]:
    """Return the sentences "sums" of `publish_tables`.

    `write_published` wrote the published answers to ``file``.
    """
    import pyarrow.parquet as pq

    shown = pq.read_table(file, columns=["published"])["published"].to_numpy()
    sentences, first = [], 0
    for number, group in enumerate(tables.measurement.plan.workload.groups):
        last = first + group.count
        sums = sums_of_counts(tables, number, shown[first:last]) if is_cells(group) else None
        sentences.append("" if sums is None else sums_text(sums))
        first = last
    return sentences


def weigh(
    workload: str,
    budget: Mapping[str, Any],
    mechanism: str,
    options: Mapping[str, Any],
    expected_records: float,
    *,
    progress: Progress,
) -> tuple[str, list[tuple[int, float, float]]]:
    """Choose group weights that lower the errors of published tables.

    Also return the errors of the unbiased answers with the original and with the new weights.

    Parameters
    ----------
    expected_records : expected number of records, which is public.

    Returns
    -------
    weighted : the workload with the new weights, as JSON.
    errors : one tuple (k, before, after) per number k of attributes of a group.  It contains the
        root mean squared errors of the unbiased answers of all groups on k attributes, in counts,
        with the original and with the new weights.
    """
    original = Workload.from_json(workload)
    plan_budget = Budget.from_dict(budget)
    weighted = publication_weights(original, plan_budget, expected_records=expected_records)
    rmse_by_order = []  # for each workload: number of attributes -> RMSE
    for number, candidate in enumerate((original, weighted)):
        half = _part(progress, 0.5 * number, 0.5 * (number + 1))
        result = plan(candidate, plan_budget, mechanism, progress=half, **dict(options))
        groups = result.by_group()
        groups = groups.assign(order=groups["attributes"].map(len))
        groups["variance"] = groups["rmse"] ** 2 * groups["queries"]
        sums = groups.groupby("order")[["variance", "queries"]].sum()
        rmse_by_order.append((sums["variance"] / sums["queries"]) ** 0.5)
    before, after = rmse_by_order
    rows = [(int(order), float(before[order]), float(after[order])) for order in before.index]
    return weighted.to_json(), rows


def _write_package(errors: Uncertainty, path: Path, *, ledger: str | None, **options: Any) -> Path:
    """Write the release package with these published tables; signed if ``ledger`` is a path.

    ``options`` are further arguments of `write_package`.
    """
    measurement = errors.published.measurement
    book = None if ledger is None else Ledger(ledger)
    receipt = None if book is None else book.find(measurement.key)
    return write_package(
        measurement, path, receipt=receipt, ledger=book, published=errors, **options
    )


def _measurement(source: Mapping[str, str]) -> Measurement:
    """Load the measurement of a release or a rehearsal; for ``source`` see `publish_tables`."""
    if "ledger" in source:
        return load_measurement(Ledger(source["ledger"]), source["key"])
    return load_rehearsal(load_plan(source["plan"]), source["file"])


def _part(progress: Progress, low: float, high: float) -> Progress:
    """Return a progress callback that maps the fractions 0 to 1 to the range low to high."""
    return lambda fraction, text: progress(low + fraction * (high - low), text)
