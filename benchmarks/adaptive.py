"""Published tables of AIM and MST compared with ResidualPlanner: simulated errors.

    python -m benchmarks.adaptive                       the public survey of the demos
    python -m benchmarks.adaptive --adult adult.csv --domain adult-domain.json
    python -m benchmarks.adaptive --statsmodels         also tables that ship with statsmodels

AIM and MST need the package mbi (version 2 or later); a row without a result contains the reason.
L1 is the mean, over all marginals of one and two attributes, of the sum of absolute errors divided
by the number of records; `spread` is the standard error of that mean over the seeds.  All methods
have the same rho: 0.000198, 0.01656 and 1.1825 for epsilon 0.1, 1 and 10 at delta 1e-9.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.aim_mst import ADAPTIVE, SLOW, adaptive_tables
from benchmarks.published_tables import RHO, table_options, tables
from benchmarks.row_file import RowFile
from engine.errors import EngineError
from engine.mechanisms import plan
from engine.postprocess.uncertainty import simulate_measurement
from engine.privacy import Budget
from engine.records import count_marginals
from engine.release import apply_group
from engine.workload import Workload

UNBIASED, PUBLISHED = "ResidualPlanner, unbiased", "ResidualPlanner, published"
METHODS = (UNBIASED, PUBLISHED, *ADAPTIVE)


def relative_error(
    answers: Callable[[int], np.ndarray], table: Callable, workload: Workload
) -> float:
    """Return the mean error of groups: sum of absolute errors over the sum of exact answers.

    ``answers`` returns the answers of a group by its number, ``table`` the exact table on some
    attributes.
    """
    errors = []
    for number, group in enumerate(workload.groups):
        exact = apply_group(group, table(group.attributes), 0, group.count)
        errors.append(float(np.abs(answers(number) - exact).sum() / max(np.abs(exact).sum(), 1.0)))
    return float(np.mean(errors))


def error_function(
    method: str, workload: Workload, budget: Budget, table: Callable, seconds: float
) -> Callable[[int], float]:
    """Return a function from a seed to the error of one simulated publication."""
    if method in ADAPTIVE:

        def adaptive_error(seed: int) -> float:
            published = adaptive_tables(method, workload, budget, table, seed, seconds=seconds)

            def answers(number: int) -> np.ndarray:
                group = workload.groups[number]
                return apply_group(group, published(group.attributes), 0, group.count)

            return relative_error(answers, table, workload)

        return adaptive_error
    planner = plan(workload, budget, "residualplanner")

    def planner_error(seed: int) -> float:
        measurement = simulate_measurement(planner, table, np.random.default_rng(seed))
        source = measurement.publish() if method == PUBLISHED else measurement
        return relative_error(source.values, table, workload)

    return planner_error


def row(
    method: str, workload: Workload, budget: Budget, table: Callable, seeds: int, limit: float
) -> str:
    """Return the mean error over the seeds and its standard error as text, or why it is missing."""
    start = time.monotonic()
    errors = []
    try:
        error = error_function(method, workload, budget, table, limit)
        for seed in range(seeds):
            if time.monotonic() - start > limit:
                return SLOW
            errors.append(error(seed))
    except EngineError as reason:
        return str(reason)
    return f"{np.mean(errors):8.4f} {np.std(errors, ddof=1) / math.sqrt(seeds):8.4f}"


def main() -> None:
    """Print one row per table, budget and method."""
    parser = table_options(__file__, __doc__)
    parser.add_argument("--seeds", type=int, default=3, help="simulations per row, at least 2")
    parser.add_argument("--seconds", type=float, default=900.0, help="time limit per row")
    args = parser.parse_args(namespace=argparse.Namespace(full=False))
    if args.seeds < 2:
        parser.error(f"--seeds is {args.seeds}; a standard error needs at least 2.")
    head = f"{'tables':12} {'epsilon':>8} {'method':28} {'L1':>8} {'spread':>8} {'s a row':>8}"
    output = RowFile(head, Path(__file__).with_suffix(".txt") if args.write else None)
    for name, records, schema, ways in tables(args):
        if max(ways) > 2 or (args.only and name not in args.only):
            continue
        workload = Workload.all_ways(schema, ways, family="marginal")
        exact = count_marginals(records, schema, [(), *(g.attributes for g in workload.groups)])

        def table(names, exact=exact):
            return exact[tuple(names)].astype(float)

        for epsilon, rho in RHO.items():
            for method in METHODS:
                label = f"{name:12} {epsilon:8g} {method:28}"
                if output.has(label):
                    continue
                start = time.monotonic()
                figures = row(method, workload, Budget.zcdp(rho), table, args.seeds, args.seconds)
                output.add(f"{label} {figures} {time.monotonic() - start:8.1f}")


if __name__ == "__main__":
    main()
