"""Optimal strategies on one wide attribute: width x family -> seconds, memory, gap.

    python -m benchmarks.wide [--write]

Every row is a new process on one thread; "s" are CPU seconds of the search, without imports. "f" is
the root of the total variance at privacy cost 1 of the residual space with the uniform center, or
of the complete attribute in rows named "whole". "exponent" is the slope of log seconds by log width
from 1,000 cells on.
"""

from __future__ import annotations

import time

import numpy as np

from benchmarks import one_thread, options, peak_megabytes, run_in_new_process, table
from engine.residuals.intervals import IntervalGram, IntervalSpace, solve

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


def _measure(family: str, cells: int) -> tuple[float, float, float, int, float]:
    full_attribute = family.endswith("whole")
    solve(
        IntervalSpace(gram=IntervalGram(cells=20, **FAMILIES[family]), whole=full_attribute)
    )  # loads SciPy
    space = IntervalSpace(gram=IntervalGram(cells=cells, **FAMILIES[family]), whole=full_attribute)
    started = time.process_time()
    solution = solve(space)
    seconds = time.process_time() - started
    return seconds, peak_megabytes(), solution.gap, solution.evaluations, solution.trace


def main() -> None:
    """Print one row per family and width, and the exponent of every family."""
    parser = options(__file__, __doc__)
    args = parser.parse_args()
    one_thread()
    with table(__file__, write=args.write) as show:
        show(
            f"{'family':22} {'cells':>7} | {'s':>7} {'MB':>5} {'gap':>8} {'evaluations':>11}"
            f" {'f':>12}"
        )
        for family in FAMILIES:
            times = []
            for cells in WIDTHS:
                seconds, megabytes, gap, evaluations, trace = run_in_new_process(
                    _measure, family, cells
                )
                times.append(seconds)
                show(
                    f"{family:22} {cells:>7,} | {seconds:>7.3f} {megabytes:>5.0f} {gap:>8.1e}"
                    f" {evaluations:>11} {trace:>12.4f}"
                )
            wide = np.array(WIDTHS) >= 1_000
            slope = np.polyfit(np.log(WIDTHS)[wide], np.log(times)[wide], 1)[0]
            show(f"{family:22} exponent {slope:.2f}")


if __name__ == "__main__":
    main()
