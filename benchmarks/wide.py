"""Optimal strategies on one wide attribute: width x family -> seconds, memory, gap.

    python -m benchmarks.wide [--write]

Every row is a new process on one thread; "s" are CPU seconds of the search, without imports. "f" is
the root of the total variance at privacy cost 1 of the residual space with the uniform center, or
of the complete attribute in rows named "whole". "exponent" is the slope of log seconds by log width
from 1,000 cells on.  "width 7" are all windows of 7 cells; they are measured on at least 4 times as
many cells.

Below them are complete plans, of all marginals up to 3-way of an attribute of 30,000 cells with two
of 2 and 18 cells, and of prefixes with these marginals. "MB" is the memory that a plan adds, and
"release" the memory of a rehearsal and all its answers, divided by that of the answers.  The last
rows are plans of windows on 3,650 and 10,000 cells with uniform and tuned centers, and plans of
sums of queries on one or two wide attributes.  "dense" are plans that need matrices of order n - 1.
"noise" are the CPU seconds of a rehearsal of the first group.
"""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from benchmarks import one_thread, options, peak_megabytes, run_in_new_process, table
from engine.mechanisms import plan
from engine.plans import Plan
from engine.privacy import Budget
from engine.release import measure
from engine.residuals import interval_solver as intervals
from engine.residuals import window_solver as windows
from engine.residuals.interval_solver import DualSolution
from engine.workload import Attribute, Schema, Width, Workload

BUDGET = Budget(pcost=1.0)

WIDTHS = (250, 500, 1_000, 2_000, 3_650, 10_000, 30_000)
FAMILIES = {
    "marginal": {"marginal": 1.0},
    "prefix": {"prefix": 1.0},
    "range": {"ranges": 1.0},
    "marginal + .05 prefix": {"marginal": 1.0, "prefix": 0.05},
    "all, .001 range": {"marginal": 1.0, "prefix": 1.0, "ranges": 0.001},
    "prefix, whole": {"prefix": 1.0},
    "range, whole": {"ranges": 1.0},
}
# names of families of windows, and the number of cells of a window
WINDOWS = {
    "width 7": 7,
    "width 30": 30,
    "width 365": 365,
    "width 7, whole": 7,
    "width 30, whole": 30,
    "width 365, whole": 365,
}
MAX_WINDOW_CELLS = 10_000  # evaluations of wide windows on more cells take seconds


def _solve(family: str, cells: int) -> DualSolution:
    full_attribute = family.endswith("whole")
    if family in WINDOWS:
        gram = windows.WindowGram(cells=cells, width=WINDOWS[family])
        return windows.solve(windows.WindowSpace(gram=gram, whole=full_attribute))
    mix = intervals.IntervalGram(cells=cells, **FAMILIES[family])
    return intervals.solve(intervals.IntervalSpace(gram=mix, whole=full_attribute))


def _measure(family: str, cells: int) -> tuple[float, float, float, int, float]:
    # load SciPy before the measurement
    _solve("marginal", 20)
    started = time.process_time()
    solution = _solve(family, cells)
    seconds = time.process_time() - started
    return seconds, peak_megabytes(), solution.gap, solution.evaluations, solution.trace


PLANS = (
    ("querysmasher", None, {}),
    ("residualplanner", None, {}),
    ("residualplanner+", None, {}),
    ("wff", None, {}),
    ("identity", None, {}),
    ("gaussian", None, {}),
    ("hdmm", None, {"operator": "OPT_marginals"}),
    ("querysmasher", "prefix", {}),
    ("residualplanner", "prefix", {}),
)


def _measure_plan(
    mechanism: str, family: str | None, options: dict[str, Any]
) -> tuple[float, float, float, float | None]:
    """Return (CPU seconds, megabytes, weighted RMSE, `_release_memory`) of a plan.

    Seconds and megabytes include the preview.  `_release_memory` is None for strategies that are
    too large for a release.
    """
    attributes = [Attribute.of_size(name, n) for name, n in (("a", 30_000), ("b", 2), ("c", 18))]
    plan(Workload(Schema(attributes[1:])).add("b").add("c", "prefix"), BUDGET, cache=False)
    workload = Workload.all_ways(Schema(attributes), (1, 2, 3), "marginal")
    if family is not None:
        workload = workload.add("a", family).add(("a", "b"), {"a": family, "b": "marginal"})
    before, started = peak_megabytes(), time.process_time()
    result = plan(workload, BUDGET, mechanism, cache=False, **options)
    result.by_group()
    seconds, megabytes = time.process_time() - started, peak_megabytes() - before
    release = None if family else _release_memory(result)
    return seconds, megabytes, result.weighted_rmse, release


# cells, width of the windows, and whether noise is drawn for the plan with uniform centers
WINDOW_PLANS = (
    (3_650, 7, True),
    (3_650, 30, True),
    (3_650, 85, True),
    (3_650, 365, True),
    (10_000, 30, True),
    (10_000, 365, False),
)
PRODUCTS = ({"a": "prefix", "b": "range"}, {"a": "range", "b": "prefix"})
WINDOW_PRODUCTS = ({"a": Width(30), "b": "marginal"}, {"a": "prefix", "b": "prefix"})
Sizes = tuple[int, ...]  # numbers of cells of the attributes
ONE_ATTRIBUTE: tuple[Sizes, ...] = ((1_000,), (3_650,), (10_000,))
TWO_ATTRIBUTES: tuple[Sizes, ...] = ((1_000, 12), (3_650, 12), (10_000, 12))
# name, sizes for which a plan is measured, and queries of every group
SUM_PLANS: tuple[tuple[str, tuple[Sizes, ...], tuple[Any, ...]], ...] = (
    ("width 30 + prefix", ONE_ATTRIBUTE, (Width(30), "prefix")),
    ("width 30 + marginal", ONE_ATTRIBUTE, (Width(30), "marginal")),
    ("width 365 + prefix", ((3_650,), (10_000,)), (Width(365), "prefix")),
    ("width 400, dense", ((1_000,),), (Width(400),)),
    ("width 30 + range, dense", ((1_000,),), (Width(30), "range")),
    ("width 7 + width 30, dense", ((1_000,),), (Width(7), Width(30))),
    ("affine", ((365, 101),), ("affine",)),
    ("abs", ((365, 101),), ("abs",)),
    ("prefix x range + range x prefix", ((365, 101), (3_650, 12)), PRODUCTS),
    ("width 30 x all + prefix x prefix", TWO_ATTRIBUTES, WINDOW_PRODUCTS),
)
# largest number of cells for which a rehearsal of a plan in `SUM_PLANS` is measured
MAX_NOISE_CELLS = 3_650


def _measure_sum_plan(
    sizes: tuple[int, ...], groups: tuple[Any, ...], centers: str, has_noise: bool
) -> tuple[float, float, float, float, float | None]:
    """Return (CPU seconds, megabytes, weighted RMSE, gap, CPU seconds of a rehearsal) of a plan.

    Seconds and megabytes include the preview, and no rehearsal.  The last value is None if
    ``has_noise`` is False.
    """
    # the first plan and the first rehearsal load modules
    small = Workload(Schema([Attribute.of_size("a", 20)])).add("a", "prefix")
    measure(
        plan(small, BUDGET, cache=False), pd.DataFrame({"a": ["0"]}), rehearsal=True, seed=1
    ).values(0)
    names = ("a", "b")[: len(sizes)]
    attributes = [Attribute.of_size(name, n) for name, n in zip(names, sizes, strict=True)]
    workload = Workload(Schema(attributes))
    for queries in groups:
        workload = workload.add(names, queries)
    before, started = peak_megabytes(), time.process_time()
    result = plan(workload, BUDGET, "querysmasher", centers=centers, cache=False)
    result.by_group()
    seconds, megabytes = time.process_time() - started, peak_megabytes() - before
    noise_seconds = None
    if has_noise:
        records = pd.DataFrame({a.name: [a.label(0), a.label(1)] for a in attributes})
        started = time.process_time()
        measure(result, records, rehearsal=True, seed=1).values(0)
        noise_seconds = time.process_time() - started
    return seconds, megabytes, result.weighted_rmse, result.certificate.gap, noise_seconds


def _release_memory(result: Plan) -> float:
    """Return the peak memory of a rehearsal and its answers, divided by that of the answers."""
    workload = result.workload
    records = pd.DataFrame({a.name: [a.label(0), a.label(1)] for a in workload.schema.attributes})
    # the first release loads modules and fills caches
    measure(result, records.iloc[:0], rehearsal=True, seed=1)
    tracemalloc.start()
    release = measure(result, records, rehearsal=True, seed=1)
    for number in range(len(workload.groups)):
        release.values(number)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / (8 * sum(group.count for group in workload.groups))


def main() -> None:
    """Print one row per family and width, the exponent of every family, and one row per plan."""
    parser = options(__file__, __doc__)
    args = parser.parse_args()
    one_thread()
    with table(__file__, write=args.write) as show:
        show(
            f"{'family':22} {'cells':>7} | {'s':>7} {'MB':>5} {'gap':>8} {'evaluations':>11}"
            f" {'f':>12}"
        )
        for family in [*FAMILIES, *WINDOWS]:
            widths, times = WIDTHS, []
            if family in WINDOWS:
                limits = 4 * WINDOWS[family], MAX_WINDOW_CELLS
                widths = tuple(n for n in WIDTHS if limits[0] <= n <= limits[1])
            for cells in widths:
                seconds, megabytes, gap, evaluations, trace = run_in_new_process(
                    _measure, family, cells
                )
                times.append(seconds)
                show(
                    f"{family:22} {cells:>7,} | {seconds:>7.3f} {megabytes:>5.0f} {gap:>8.1e}"
                    f" {evaluations:>11} {trace:>12.4f}"
                )
            wide = np.array(widths) >= 1_000
            slope = np.polyfit(np.log(widths)[wide], np.log(times)[wide], 1)[0]
            show(f"{family:22} exponent {slope:.2f}")
        show(f"{'plan of 30,000 cells':35} | {'s':>7} {'MB':>5} {'rmse':>9} {'release':>7}")
        for mechanism, kind, extra in PLANS:
            seconds, megabytes, rmse, release = run_in_new_process(
                _measure_plan, mechanism, kind, extra
            )
            ratio = "" if release is None else f"{release:.2f}"
            name = f"{mechanism}, {'marginals' if kind is None else f'marginals and {kind}'}"
            show(f"{name:35} | {seconds:>7.3f} {megabytes:>5.0f} {rmse:>9.4f} {ratio:>7}")
        show(
            f"{'plan, querysmasher':33} {'cells':>11} {'centers':7} | {'s':>7} {'MB':>5}"
            f" {'rmse':>9} {'gap':>7} {'noise':>6}"
        )
        for n, width, has_noise in WINDOW_PLANS:
            for centers in ("uniform", "tuned"):
                draws = has_noise and centers == "uniform"
                _show_plan(show, f"width {width}", (n,), (Width(width),), centers, draws)
        for name, all_sizes, groups in SUM_PLANS:
            draws = name.startswith("width 30 + ") and "dense" not in name
            times = [
                _show_plan(
                    show, name, sizes, groups, "uniform", draws and sizes[0] <= MAX_NOISE_CELLS
                )
                for sizes in all_sizes
            ]
            if len(all_sizes) >= 3:
                widths = [sizes[0] for sizes in all_sizes]
                slope = np.polyfit(np.log(widths), np.log(times), 1)[0]
                show(f"{name:33} exponent {slope:.2f}")


def _show_plan(
    show: Callable[[str], object],
    name: str,
    sizes: Sizes,
    groups: tuple[Any, ...],
    centers: str,
    has_noise: bool,
) -> float:
    """Measure a plan in a new process, show its row, and return its CPU seconds."""
    seconds, megabytes, rmse, gap, noise = run_in_new_process(
        _measure_sum_plan, sizes, groups, centers, has_noise
    )
    cells = " x ".join(f"{n:,}" for n in sizes)
    drawn = "" if noise is None else f"{noise:.2f}"
    show(
        f"{name:33} {cells:>11} {centers:7} | {seconds:>7.3f} {megabytes:>5.0f}"
        f" {rmse:>9.4f} {gap:>7.1e} {drawn:>6}".rstrip()
    )
    return float(seconds)


if __name__ == "__main__":
    main()
