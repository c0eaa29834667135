"""Planning time without cache on one thread, compared with its targets.

    python -m benchmarks.speed [--write] [--only WORDS]

Seconds are CPU seconds of the `plan` call. Every row is a new process that has imported its
libraries and planned a small workload before, so that imports do not count. Plans of hours are not
computed; the row has their forecast. Existing rows of the file are not computed again; move it away
to start again.
"""

from __future__ import annotations

import importlib
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import demo_data
from benchmarks import one_thread, options, peak_megabytes, run_in_new_process
from benchmarks.row_file import RowFile
from benchmarks.scale import mixed
from benchmarks.tuned import cube, joint
from engine._workers import PRELOADED
from engine.mechanisms import forecast, load_plan, plan
from engine.privacy import Budget
from engine.workload import Attribute, Schema, Workload

HEAD = f"{'figure':50} {'asked':>7} {'measured':>10} {'met':>4} {'MB':>6}  remark"
MAX_FORECAST_S = 600.0  # plans with longer forecasts are not computed


def _adult() -> Workload:
    return Workload.all_ways(Schema.from_json(demo_data.schemas()["adult"].read_bytes()), (1, 2, 3))


def _one() -> Workload:
    return Workload(cube(256, 1)).add("x0", "prefix")


def _like() -> Workload:
    return joint("affine", 30, 40)


def _three() -> Workload:
    schema = Schema([Attribute.of_size("a", 30), Attribute.of_size("b", 25)])
    return (
        Workload(schema)
        .add(("a", "b"), "prefix")
        .add(("a", "b"), "range")
        .add(("a", "b"), "affine")
    )


def _distinct() -> Workload:
    return Workload.all_ways(
        Schema([Attribute.of_size(f"x{i}", 30 + i) for i in range(20)]), (2,), "affine"
    )


def _many() -> Workload:
    return Workload.all_ways(cube(10, 80), (1, 2, 3))


def _large_pairs() -> Workload:
    workload = _adult()
    for pair in itertools.combinations(
        [a.name for a in workload.schema.attributes if a.size >= 85], 2
    ):
        workload = workload.add(pair, "affine").add(pair, "abs")
    return workload


@dataclass(frozen=True, kw_only=True)
class Row:
    """Workload and options of a figure, its kind, and its limit."""

    limit: float
    workload: Callable[[], Workload]
    options: dict[str, Any]
    kind: str = "seconds"


def _tuned(limit: float, workload: Callable[[], Workload]) -> Row:
    return Row(limit=limit, workload=workload, options={"centers": "tuned"})


ROWS: dict[str, Row] = {
    "Adult <=3-way, tuned": _tuned(0.4, _adult),
    "[256] prefix, tuned": _tuned(0.3, _one),
    "[30]^40 affine, tuned": _tuned(5.0, _like),
    "[30]x[25] prefix, range, affine, tuned": _tuned(5.0, _three),
    "[30] to [49], all affine pairs": Row(limit=8.0, workload=_distinct, options={}),
    "[10]^80 <=3-way, 85,400 groups, tuned": _tuned(1.0, _many),
    "[50]^40 affine, tuned": _tuned(60.0, lambda: joint("affine", 50, 40)),
    "[50]^40 abs, tuned": _tuned(60.0, lambda: joint("abs", 50, 40)),
    "10,700 groups, loading over making": Row(
        limit=1.0, workload=lambda: mixed(40, 40), options={}, kind="loading"
    ),
    "Adult <=3-way, largest error, gap in 15 s": Row(
        limit=1e-4, workload=_adult, options={"objective": "max", "time_limit": 15.0}, kind="gap"
    ),
    "Adult <=3-way with large pairs": Row(
        limit=20.0, workload=_large_pairs, options={"memory_limit": 2e9}, kind="long"
    ),
    "Adult <=3-way with large pairs, tuned": Row(
        limit=60.0,
        workload=_large_pairs,
        options={"centers": "tuned", "memory_limit": 2e9},
        kind="long",
    ),
}


def _measure(name: str) -> tuple[float, float, str]:
    # the processes of the app import these modules, too
    for module in PRELOADED:
        importlib.import_module(module)
    plan(Workload(cube(3, 1)).add("x0"), Budget(pcost=1.0), cache=False, workers=1)
    row = ROWS[name]
    workload = row.workload()
    expected = forecast(workload, **row.options)
    if expected.seconds > MAX_FORECAST_S and row.kind == "long":
        return expected.seconds, expected.memory / 1e6, "forecast, not run"
    started = time.process_time()
    result = plan(workload, Budget(pcost=1.0), cache=False, workers=1, **row.options)
    measured = time.process_time() - started
    remark = f"RMSE {result.weighted_rmse:.4f}, forecast {expected.seconds:.2g} s"
    if row.kind == "gap":
        measured, remark = (
            result.certificate.gap,
            f"largest standard error {result.achieved:.4f}, CPU s {measured:.1f}",
        )
    elif row.kind == "loading":
        text = result.to_json()
        started = time.process_time()
        load_plan(text)
        again = time.process_time() - started
        measured, remark = again / measured, f"{again:.2f} s against {measured:.2f} s"
    return measured, peak_megabytes(), remark


def main() -> None:
    """Print one row per figure."""
    parser = options(__file__, __doc__)
    parser.add_argument("--only", help="rows whose name holds these words")
    args = parser.parse_args()
    one_thread()
    output = RowFile(HEAD, Path(__file__).with_suffix(".txt") if args.write else None)
    for name, row in ROWS.items():
        begin = f"{name:50} {row.limit:>7.4g}"
        if (args.only is None or args.only in name) and not output.has(begin):
            measured, megabytes, remark = run_in_new_process(_measure, name)
            met = "yes" if measured <= row.limit else "no"
            output.add(f"{begin} {measured:>10.4g} {met:>4} {megabytes:>6.0f}  {remark}")


if __name__ == "__main__":
    main()
