"""Tuned plans of random large workloads beside everything else that the engine has: weighted RMSE at privacy cost 1.

    python -m benchmarks.random_large [--write] [--count 200] [--seed 0]

Half of the workloads are on domains of 600 to 4,096 cells, where the optimum of all mechanisms often fits; the others
are on 8 to 14 attributes, where it does not.  A row tells the best other plan and how far tuned is above it; those
above by more than the gap that searches stop at are counted in the end, and the command then returns 1.  A run that was
broken off goes on where it stood.
"""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import options
from benchmarks.kept import Kept
from benchmarks.random_small import ONE_WAY, described
from engine.errors import EngineError
from engine.mechanisms import forecast, plan
from engine.mechanisms.registry import MECHANISMS
from engine.privacy import Budget
from engine.workload import Attribute, Schema, Workload

SECONDS, BYTES = 10.0, 2e9  # what one plan may be expected to take
SAME = 1e-5  # relative: searches stop at a gap of 1e-6 in every space
BUDGET = Budget(pcost=1.0)
HEAD = f"{'seed/row':<8}{'tuned':>10} {'best other':>11} {'above':>9} {'CPU s':>6}  mechanism, workload"


def draw(rng: np.random.Generator, small: bool) -> Workload:
    """Return three to eight groups of products, sums and differences, weights from 1/4 to 4."""
    while True:
        count = int(rng.integers(2, 6)) if small else int(rng.integers(8, 15))
        sizes = rng.integers(2, 13 if not small else 40, size=count)
        if not small or 600 <= math.prod(sizes.tolist()) <= 4_096:
            break
    schema = Schema([Attribute.of_size(f"x{i}", int(n)) for i, n in enumerate(sizes)])
    asked = Workload(schema)
    for _ in range(int(rng.integers(3, 9))):
        names = [str(n) for n in rng.permutation(schema.names)[: int(rng.integers(1, 4))]]
        weight = float(rng.choice([0.25, 0.5, 1.0, 2.0, 4.0]))
        if len(names) == 2 and rng.random() < 0.5:
            asked = asked.add(tuple(names), str(rng.choice(["affine", "abs"])), weight)
        else:
            asked = asked.add(tuple(names), {name: str(rng.choice(ONE_WAY)) for name in names}, weight)
    return asked


def others(asked: Workload) -> dict[str, float]:
    """Return the weighted RMSE of every other plan that can be made within the limits."""
    out: dict[str, float] = {}
    for mechanism in MECHANISMS:
        for variant in mechanism.variants if "gaussian" in mechanism.laws else ():
            chosen: Any = dict(variant)
            if chosen.get("centers") == "tuned":
                continue
            try:
                if forecast(asked, mechanism.name, memory_limit=BYTES, **chosen).seconds <= SECONDS:
                    found = plan(asked, BUDGET, mechanism.name, memory_limit=BYTES, time_limit=SECONDS, **chosen)
                    name = " ".join([mechanism.name, *map(str, chosen.values())])
                    out[name] = found.weighted_rmse
            except EngineError:
                continue
    return out


def row_of(number: int, seed: int) -> str:
    """Return one row: the workload of this number is the same whatever was drawn before."""
    asked = draw(np.random.default_rng([seed, number]), small=number % 2 == 0)
    started = time.process_time()
    tuned = plan(asked, BUDGET, centers="tuned", memory_limit=BYTES).weighted_rmse
    took = time.process_time() - started
    name, best = min(others(asked).items(), key=lambda item: item[1])
    own = f"{tuned:>10.4f} {best:>11.4f} {tuned / best - 1.0:>9.2e} {took:>6.2f}  {name}, {described(asked)}"
    return f"{_begin(number, seed)} {own}"


def _begin(number: int, seed: int) -> str:
    return f"{seed}/{number:<5}"


def main(arguments: list[str] | None = None) -> int:
    """Print one row a workload; return 1 when tuned is above another plan anywhere."""
    parser = options(__file__, __doc__)
    parser.add_argument("--count", type=int, default=200, help="how many workloads")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    kept = Kept(HEAD, Path(__file__).with_suffix(".txt") if given.write else None)
    for number in range(given.count):
        if not kept.has(_begin(number, given.seed)):
            kept.add(row_of(number, given.seed))
    above = [float(row.split()[3]) for row in kept.rows[1:]]
    worse = sum(share > SAME for share in above)
    print(f"{len(above)} workloads: tuned above another plan on {worse}, at most by {max(above):.2e}")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
