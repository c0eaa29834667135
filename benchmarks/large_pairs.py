"""Sums and differences on every pair of numeric attributes, and several products on one large
space.

    python -m benchmarks.large_pairs [--write]

Adult: all tables on at most three attributes, plus affine and abs on every numeric pair, of 8,415
to 10,000 cells. Space: prefixes and ranges of one space with 60 x 40 x 30 cells. Every row is
planned in a new process; the class gap is that of the certificate. "asked" is the upper limit of a
figure.
"""

from __future__ import annotations

import itertools
import math
import sys
import time
from typing import Any

from benchmarks import options, peak_megabytes, run_in_new_process, table
from engine.analysis.certificates import standard_workload
from engine.mechanisms import forecast, load_plan, plan
from engine.privacy import Budget
from engine.workload import Attribute, Schema, Workload

MEGABYTES, GAP = 2_000.0, 0.01
SECONDS = {
    ("Adult", "uniform"): 20.0,
    ("Adult", "tuned"): 60.0,
    ("Space", "uniform"): 20.0,
    ("Space", "tuned"): 60.0,
}
QUICK = 20.0  # seconds of the approximate solvers


def adult() -> Workload:
    """All tables on at most three attributes of Adult, affine and abs on every numeric pair."""
    workload = standard_workload("Adult", "<=3-way")
    numeric = [a.name for a in workload.schema.attributes if a.kind == "numeric"]
    for pair in itertools.combinations(numeric, 2):
        workload = workload.add(pair, "affine").add(pair, "abs")
    return workload


def space() -> Workload:
    """Prefixes and ranges on three attributes."""
    schema = Schema([Attribute.of_size(name, n) for name, n in (("a", 60), ("b", 40), ("c", 30))])
    return Workload(schema).add(("a", "b", "c"), "prefix").add(("a", "b", "c"), "range")


WORKLOADS = {"Adult": adult, "Space": space}


def _measure(name: str, chosen: dict[str, Any]) -> dict[str, float]:
    workload = WORKLOADS[name]()
    expected = forecast(workload, **chosen)
    start, spent = time.perf_counter(), time.process_time()
    result = plan(workload, Budget(pcost=1.0), cache=False, **chosen)
    rmse, gap = result.rmse, math.sqrt(result.achieved**2 / (result.bound / workload.queries)) - 1.0
    seconds, spent = time.perf_counter() - start, time.process_time() - spent
    peak = peak_megabytes()
    start = time.perf_counter()
    same = load_plan(result.to_json()).rmse == rmse
    return {
        "rmse": rmse,
        "class gap": gap,
        "seconds": seconds,
        "CPU seconds": spent,
        "megabytes": peak,
        "forecast seconds": expected.seconds,
        "forecast megabytes": expected.memory / 1e6,
        "load seconds": time.perf_counter() - start if same else math.inf,
    }


def main(arguments: list[str] | None = None) -> int:
    """Print every figure with its limit; return 1 if a limit is exceeded."""
    args = options(__file__, __doc__).parse_args(arguments)
    missed = 0
    with table(__file__, write=args.write) as show:
        show(f"{'workload':8}{'option':12}{'figure':22}{'asked':>10}{'measured':>12}  met")
        kinds: list[tuple[str, str, dict[str, Any]]] = [
            (name, centers, {"centers": centers})
            for name in WORKLOADS
            for centers in ("uniform", "tuned")
        ]
        kinds += [
            (name, solver, {"solver": solver})
            for name in WORKLOADS
            for solver in ("fourier", "eigenbasis")
        ]
        for name, option, chosen in kinds:
            figures = run_in_new_process(_measure, name, chosen)
            limits = {"seconds": SECONDS.get((name, option), QUICK), "megabytes": MEGABYTES}
            if (name, option) in SECONDS:
                limits["class gap"] = GAP
            for figure, value in figures.items():
                met = limit = ""
                if (most := limits.get(figure)) is not None:
                    met, limit = "yes" if value <= most else "NO", f"{most:g}"
                    missed += value > most
                show(f"{name:8}{option:12}{figure:22}{limit:>10}{value:>12.5g}  {met}".rstrip())
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
