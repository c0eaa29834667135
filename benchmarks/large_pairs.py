"""Sums and differences on every pair of numeric attributes, and several products on one large space.

    python -m benchmarks.large_pairs [--write]

Adult: all tables on at most three attributes, beside affine and abs on every numeric pair, of 8,415 to 10,000 cells.
Space: prefixes and ranges of one space with 60 x 40 x 30 cells.  Every row is planned in a process of its own; the
class gap is that of the certificate.  "asked" is what a figure may be at most.
"""

from __future__ import annotations

import itertools
import math
import sys
import time
from typing import Any

from benchmarks import options, own_process, peak_megabytes, table
from engine.analysis.paper_results import standard_workload
from engine.mechanisms import forecast, load_plan, plan
from engine.privacy import Budget
from engine.workload import Attribute, Schema, Workload

MEGABYTES, GAP = 2_000.0, 0.01
SECONDS = {("Adult", "uniform"): 20.0, ("Adult", "tuned"): 60.0, ("Space", "uniform"): 20.0, ("Space", "tuned"): 60.0}
QUICK = 20.0  # seconds of the approximate solvers


def adult() -> Workload:
    """All tables on at most three attributes of Adult, affine and abs on every numeric pair."""
    asked = standard_workload("Adult", "<=3-way")
    numeric = [a.name for a in asked.schema.attributes if a.kind == "numeric"]
    for pair in itertools.combinations(numeric, 2):
        asked = asked.add(pair, "affine").add(pair, "abs")
    return asked


def space() -> Workload:
    """Prefixes and ranges on three attributes."""
    schema = Schema([Attribute.of_size(name, n) for name, n in (("a", 60), ("b", 40), ("c", 30))])
    return Workload(schema).add(("a", "b", "c"), "prefix").add(("a", "b", "c"), "range")


WORKLOADS = {"Adult": adult, "Space": space}


def _measure(name: str, chosen: dict[str, Any]) -> dict[str, float]:
    workload = WORKLOADS[name]()
    expected = forecast(workload, **chosen)
    start, spent = time.perf_counter(), time.process_time()
    made = plan(workload, Budget(pcost=1.0), cache=False, **chosen)
    rmse, gap = made.rmse, math.sqrt(made.achieved**2 / (made.bound / workload.queries)) - 1.0
    seconds, spent = time.perf_counter() - start, time.process_time() - spent
    peak = peak_megabytes()
    start = time.perf_counter()
    same = load_plan(made.to_json()).rmse == rmse
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
    """Print every figure with what is asked; return 1 when one is not met."""
    given = options(__file__, __doc__).parse_args(arguments)
    missed = 0
    with table(__file__, write=given.write) as show:
        show(f"{'workload':8}{'option':12}{'figure':22}{'asked':>10}{'measured':>12}  met")
        kinds: list[tuple[str, str, dict[str, Any]]] = [
            (name, centers, {"centers": centers}) for name in WORKLOADS for centers in ("uniform", "tuned")
        ]
        kinds += [(name, solver, {"solver": solver}) for name in WORKLOADS for solver in ("fourier", "eigenbasis")]
        for name, option, chosen in kinds:
            found = own_process(_measure, name, chosen)
            asked = {"seconds": SECONDS.get((name, option), QUICK), "megabytes": MEGABYTES}
            if (name, option) in SECONDS:
                asked["class gap"] = GAP
            for figure, value in found.items():
                most = asked.get(figure)
                met = "" if most is None else "yes" if value <= most else "NO"
                missed += met == "NO"
                told = "" if most is None else f"{most:g}"
                show(f"{name:8}{option:12}{figure:22}{told:>10}{value:>12.5g}  {met}".rstrip())
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
