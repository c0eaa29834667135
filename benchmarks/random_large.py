"""Tuned plans of random large workloads, compared with all other mechanisms.

    python -m benchmarks.random_large [--write] [--count 200] [--seed 0] [--time-limit 40] [--rows 3 4]

Numbers are the weighted RMSE at privacy cost 1. Half of the workloads are on domains of 600 to
4,096 cells, where the optimum of all mechanisms is often feasible; the others are on 8 to 14
attributes. A row has the best other plan and the excess of the tuned plan over it. If an excess is
larger than the gap of the searches, the command returns 1. Interrupted runs resume.
"""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import options as parser_of
from benchmarks.random_small import ONE_WAY, describe
from benchmarks.row_file import RowFile
from engine.errors import EngineError
from engine.mechanisms import forecast, plan
from engine.mechanisms.registry import MECHANISMS
from engine.privacy import Budget
from engine.workload import Attribute, Schema, Workload

SECONDS, BYTES = 10.0, 2e9  # limits of the forecast of one plan
SAME = 1e-5  # relative: searches stop at a gap of 1e-6 in every space
BUDGET = Budget(pcost=1.0)
HEAD = (
    f"{'seed/row':<8}{'tuned':>10} {'best other':>11} {'above':>9} {'CPU s':>6}  mechanism,"
    " workload"
)


def draw(rng: np.random.Generator, small: bool) -> Workload:
    """Return three to eight groups of products, sums and differences, weights from 1/4 to 4."""
    while True:
        count = int(rng.integers(2, 6)) if small else int(rng.integers(8, 15))
        sizes = rng.integers(2, 13 if not small else 40, size=count)
        if not small or 600 <= math.prod(sizes.tolist()) <= 4_096:
            break
    schema = Schema([Attribute.of_size(f"x{i}", int(n)) for i, n in enumerate(sizes)])
    workload = Workload(schema)
    for _ in range(int(rng.integers(3, 9))):
        names = [str(n) for n in rng.permutation(schema.names)[: int(rng.integers(1, 4))]]
        weight = float(rng.choice([0.25, 0.5, 1.0, 2.0, 4.0]))
        if len(names) == 2 and rng.random() < 0.5:
            workload = workload.add(tuple(names), str(rng.choice(["affine", "abs"])), weight)
        else:
            workload = workload.add(
                tuple(names), {name: str(rng.choice(ONE_WAY)) for name in names}, weight
            )
    return workload


def others(workload: Workload) -> dict[str, float]:
    """Return the weighted RMSE of every other mechanism that can plan within the limits."""
    out: dict[str, float] = {}
    for mechanism in MECHANISMS:
        for variant in mechanism.variants if "gaussian" in mechanism.laws else ():
            chosen: Any = dict(variant)
            if chosen.get("centers") == "tuned":
                continue
            try:
                if (
                    forecast(workload, mechanism.name, memory_limit=BYTES, **chosen).seconds
                    <= SECONDS
                ):
                    other = plan(
                        workload,
                        BUDGET,
                        mechanism.name,
                        memory_limit=BYTES,
                        time_limit=SECONDS,
                        **chosen,
                    )
                    name = " ".join([mechanism.name, *map(str, chosen.values())])
                    out[name] = other.weighted_rmse
            except EngineError:
                continue
    return out


def row_of(number: int, seed: int, time_limit: float) -> str:
    """Return one row; the workload depends only on its number and the seed.

    ``time_limit`` is that of the tuned plan, in seconds.
    """
    workload = draw(np.random.default_rng([seed, number]), small=number % 2 == 0)
    started = time.process_time()
    options: Any = {"memory_limit": BYTES, "time_limit": time_limit}
    tuned = plan(workload, BUDGET, centers="tuned", **options).weighted_rmse
    took = time.process_time() - started
    name, best = min(others(workload).items(), key=lambda item: item[1])
    columns = (
        f"{tuned:>10.4f} {best:>11.4f} {tuned / best - 1.0:>9.2e} {took:>6.2f}  {name},"
        f" {describe(workload)}"
    )
    return f"{_begin(number, seed)} {columns}"


def _begin(number: int, seed: int) -> str:
    return f"{seed}/{number:<5}"


def main(arguments: list[str] | None = None) -> int:
    """Print one row per workload; return 1 if a tuned plan is worse than another plan."""
    parser = parser_of(__file__, __doc__)
    parser.add_argument("--count", type=int, default=200, help="number of workloads")
    parser.add_argument("--rows", type=int, nargs="+", help="numbers of single workloads")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--time-limit", type=float, default=40.0, help="of tuned plans, in seconds")
    args = parser.parse_args(arguments)
    output = RowFile(HEAD, Path(__file__).with_suffix(".txt") if args.write else None)
    for number in args.rows or range(args.count):
        if not output.has(_begin(number, args.seed)):
            output.add(row_of(number, args.seed, args.time_limit))
    above = [float(row.split()[3]) for row in output.rows[1:]]
    worse = sum(share > SAME for share in above)
    print(
        f"{len(above)} workloads: tuned above another plan on {worse}, at most by {max(above):.2e}"
    )
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
