"""What planning takes, cold and on one thread, beside what was aimed at: figure, asked, measured, met.

    python -m benchmarks.speed [--write] [--only WORDS]

Seconds are of the processor, for the whole `plan` call.  Every row is a process of its own that has loaded its
libraries and planned something small before, so that imports do not count.  What would take hours is not run: its
forecast stands in its place.
Rows that were written stay as they are: move the file away to begin anew.
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
from benchmarks import one_thread, options, own_process, peak_megabytes
from benchmarks.kept import Kept
from benchmarks.scale import mixed
from benchmarks.tuned import cube, joint
from engine._workers import PRELOADED
from engine.mechanisms import forecast, load_plan, plan
from engine.privacy import Budget
from engine.workload import Attribute, Schema, Workload

HEAD = f"{'figure':50} {'asked':>7} {'measured':>10} {'met':>4} {'MB':>6}  remark"
PATIENCE = 600.0  # forecasts above so many seconds are not tried


def _adult() -> Workload:
    return Workload.all_ways(Schema.from_json(demo_data.schemas()["adult"].read_bytes()), (1, 2, 3))


def _one() -> Workload:
    return Workload(cube(256, 1)).add("x0", "prefix")


def _like() -> Workload:
    return joint("affine", 30, 40)


def _three() -> Workload:
    schema = Schema([Attribute.of_size("a", 30), Attribute.of_size("b", 25)])
    return Workload(schema).add(("a", "b"), "prefix").add(("a", "b"), "range").add(("a", "b"), "affine")


def _distinct() -> Workload:
    return Workload.all_ways(Schema([Attribute.of_size(f"x{i}", 30 + i) for i in range(20)]), (2,), "affine")


def _many() -> Workload:
    return Workload.all_ways(cube(10, 80), (1, 2, 3))


def _large_pairs() -> Workload:
    asked = _adult()
    for pair in itertools.combinations([a.name for a in asked.schema.attributes if a.size >= 85], 2):
        asked = asked.add(pair, "affine").add(pair, "abs")
    return asked


@dataclass(frozen=True, kw_only=True)
class Row:
    """What is planned with which options, what is measured, and the most that it may be."""

    asked: float
    workload: Callable[[], Workload]
    options: dict[str, Any]
    kind: str = "seconds"


def _tuned(asked: float, workload: Callable[[], Workload]) -> Row:
    return Row(asked=asked, workload=workload, options={"centers": "tuned"})


ROWS: dict[str, Row] = {
    "Adult <=3-way, tuned": _tuned(0.4, _adult),
    "[256] prefix, tuned": _tuned(0.3, _one),
    "[30]^40 affine, tuned": _tuned(5.0, _like),
    "[30]x[25] prefix, range, affine, tuned": _tuned(5.0, _three),
    "[30] to [49], all affine pairs": Row(asked=8.0, workload=_distinct, options={}),
    "[10]^80 <=3-way, 85,400 groups, tuned": _tuned(1.0, _many),
    "[50]^40 affine, tuned": _tuned(60.0, lambda: joint("affine", 50, 40)),
    "[50]^40 abs, tuned": _tuned(60.0, lambda: joint("abs", 50, 40)),
    "10,700 groups, loading over making": Row(asked=1.0, workload=lambda: mixed(40, 40), options={}, kind="loading"),
    "Adult <=3-way, largest error, gap in 15 s": Row(
        asked=1e-4, workload=_adult, options={"objective": "max", "time_limit": 15.0}, kind="gap"
    ),
    "Adult <=3-way with large pairs": Row(
        asked=20.0, workload=_large_pairs, options={"memory_limit": 2e9}, kind="long"
    ),
    "Adult <=3-way with large pairs, tuned": Row(
        asked=60.0, workload=_large_pairs, options={"centers": "tuned", "memory_limit": 2e9}, kind="long"
    ),
}


def _measure(name: str) -> tuple[float, float, str]:
    for module in PRELOADED:  # what the app's processes have loaded, too
        importlib.import_module(module)
    plan(Workload(cube(3, 1)).add("x0"), Budget(pcost=1.0), cache=False, workers=1)
    row = ROWS[name]
    workload = row.workload()
    expected = forecast(workload, **row.options)
    if expected.seconds > PATIENCE and row.kind == "long":
        return expected.seconds, expected.memory / 1e6, "forecast, not run"
    started = time.process_time()
    made = plan(workload, Budget(pcost=1.0), cache=False, workers=1, **row.options)
    found, remark = time.process_time() - started, f"RMSE {made.weighted_rmse:.4f}, forecast {expected.seconds:.2g} s"
    if row.kind == "gap":
        found, remark = made.certificate.gap, f"largest standard error {made.achieved:.4f}, CPU s {found:.1f}"
    elif row.kind == "loading":
        text = made.to_json()
        started = time.process_time()
        load_plan(text)
        again = time.process_time() - started
        found, remark = again / found, f"{again:.2f} s against {found:.2f} s"
    return found, peak_megabytes(), remark


def main() -> None:
    """Print one row a figure."""
    parser = options(__file__, __doc__)
    parser.add_argument("--only", help="rows whose name holds these words")
    given = parser.parse_args()
    one_thread()
    kept = Kept(HEAD, Path(__file__).with_suffix(".txt") if given.write else None)
    for name, row in ROWS.items():
        begin = f"{name:50} {row.asked:>7.4g}"
        if (given.only is None or given.only in name) and not kept.has(begin):
            found, megabytes, remark = own_process(_measure, name)
            met = "yes" if found <= row.asked else "no"
            kept.add(f"{begin} {found:>10.4g} {met:>4} {megabytes:>6.0f}  {remark}")


if __name__ == "__main__":
    main()
