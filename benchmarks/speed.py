"""What tuned plans take, cold and on one thread, beside the aims: CPU seconds of the whole `plan` call.

    python -m benchmarks.speed [--only WORDS]

Every row is planned in a process of its own that has planned something small before, so that imports do not count.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable

import demo_data
from benchmarks import own_process, peak_megabytes
from benchmarks.tuned import cube, joint
from engine import Attribute, Budget, Schema, Workload, plan

HEAD = f"{'workload':34} {'aim s':>6} {'CPU s':>7} {'MB':>6} {'weighted RMSE':>14}"


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


ROWS: dict[str, tuple[Callable[[], Workload], float]] = {
    "Adult <=3-way": (_adult, 0.4),
    "[256] prefix": (_one, 0.3),
    "[30]^40 affine": (_like, 5.0),
    "[30]x[25] prefix, range, affine": (_three, 5.0),
    "[30] to [49], all affine pairs": (_distinct, 8.0),
    "[10]^80 <=3-way, 85,400 groups": (_many, 1.0),
}


def _measure(name: str) -> tuple[float, float, float]:
    plan(Workload(cube(3, 1)).add("x0"), Budget(pcost=1.0), cache=False, workers=1)
    workload = ROWS[name][0]()
    started = time.process_time()
    made = plan(workload, Budget(pcost=1.0), centers="tuned", cache=False, workers=1)
    took = time.process_time() - started
    return took, peak_megabytes(), made.weighted_rmse


def main() -> None:
    """Print one row a workload."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed", description=__doc__.splitlines()[0])
    parser.add_argument("--only", help="rows whose name holds these words")
    given = parser.parse_args()
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    print(HEAD, flush=True)
    for name, (_, aim) in ROWS.items():
        if given.only is None or given.only in name:
            took, megabytes, rmse = own_process(_measure, name)
            print(f"{name:34} {aim:>6.1f} {took:>7.2f} {megabytes:>6.0f} {rmse:>14.4f}", flush=True)


if __name__ == "__main__":
    main()
