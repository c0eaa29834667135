"""Tasks of the workers for published tables."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from demo_data.make_synthetic import synthetic
from engine.errors import LimitExceeded
from engine.ledger import Ledger
from engine.mechanisms import load_plan, plan
from engine.postprocess import QualityRule, acceptance, publish, uncertainty
from engine.postprocess.publication_weights import published_errors, weighed_for_publishing
from engine.privacy import Budget
from engine.publish import write_published, write_records, write_tables, write_workbook
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
    reached: str | None = None,
    *,
    progress: Progress,
) -> dict[str, Any]:
    """Publish tables with their errors, write them to files, and return a summary for the page.

    Parameters
    ----------
    source : "ledger" and "key" of a release, or "plan" and "file" of a rehearsal.
    fit : method of `engine.postprocess.publish`.
    records : whether to draw synthetic records, and their number (None: the total of the tables).
    rule : parameters of the `QualityRule` that marks unreliable cells.
    files : kind of file, such as "csv" -> path.
    reached : folder for the checkpoint of an interrupted call; removed at the end.
    """
    measurement, quality_rule = _measurement(source), QualityRule(**rule)
    places = {kind: Path(place) for kind, place in files.items()}
    for place in places.values():
        place.unlink(missing_ok=True)  # an empty placeholder
    tables = publish(
        measurement, fit, integer=integer, progress=_part(progress, 0.0, 0.3), resume=reached
    )
    errors = uncertainty(tables, progress=_part(progress, 0.3, 0.7), resume=reached)
    write_published(
        errors, places["parquet"], rule=quality_rule, progress=_part(progress, 0.7, 0.75)
    )
    write_published(
        errors, places["csv"], format="csv", rule=quality_rule, progress=_part(progress, 0.75, 0.8)
    )
    out: dict[str, Any] = {
        "total": tables.total,
        "summary": errors.summary(quality_rule),
        "files": dict(files),
    }
    out["too large"] = {}
    out["bias"] = [errors.bias(group.attributes) for group in measurement.plan.workload.groups]
    for kind, write, done in (("zip", write_tables, 0.8), ("xlsx", write_workbook, 0.83)):
        try:
            write(
                errors, places[kind], rule=quality_rule, progress=_part(progress, done, done + 0.02)
            )
        except LimitExceeded as error:
            out["too large"][kind] = str(error)
    simulate, people = records
    if simulate:
        drawn = tables.records(people, progress=_part(progress, 0.85, 1.0), resume=reached)
        write_records(measurement, drawn, places["records"])
        out["acceptance"] = acceptance(errors, drawn)
    for place in places.values():
        if place.exists():
            place.chmod(0o600)  # the writers create files with default permissions
    if reached is not None:
        shutil.rmtree(reached, ignore_errors=True)
    return out


def weigh(
    workload: str,
    budget: Mapping[str, Any],
    mechanism: str,
    options: Mapping[str, Any],
    reference: bytes | tuple[int, int],
    *,
    progress: Progress,
) -> tuple[str, float, float]:
    """Choose weights of tables that reduce the errors of the published tables.

    Parameters
    ----------
    reference : content of a public CSV file, or the number of simulated records and a seed.

    Returns
    -------
    JSON of the workload with the new weights, and the mean errors of the published tables before
    and after, in counts.
    """
    workload_value, spent = Workload.from_json(workload), Budget.from_dict(budget)
    with _records(workload_value, reference) as records:
        weighted = weighed_for_publishing(
            workload_value,
            spent,
            records,
            mechanism,
            progress=_part(progress, 0.0, 0.9),
            **dict(options),
        )
        weights = [group.weight for group in workload_value.groups]
        before, after = (
            published_errors(
                plan(w, spent, mechanism, **dict(options)), records, weights=weights
            ).mean()
            for w in (workload_value, weighted)
        )
    return weighted.to_json(), float(before), float(after)


@contextmanager
def _records(workload: Workload, reference: bytes | tuple[int, int]) -> Iterator[Any]:
    """Yield reference records for `weigh`: the path of a CSV file, or a data frame."""
    if not isinstance(reference, bytes):
        yield synthetic(workload.schema, *reference)
        return
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "reference.csv"
        file.write_bytes(reference)
        yield file


def _measurement(source: Mapping[str, str]) -> Measurement:
    """Load the measurement of a release or a rehearsal; for ``source`` see `publish_tables`."""
    if "ledger" in source:
        return load_measurement(Ledger(source["ledger"]), source["key"])
    return load_rehearsal(load_plan(source["plan"]), source["file"])


def _part(progress: Progress, low: float, high: float) -> Progress:
    """Return a progress callback that maps the fractions 0 to 1 to the range low to high."""
    return lambda fraction, text: progress(low + fraction * (high - low), text)
