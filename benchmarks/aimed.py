"""Published tables of plans that aim at them, beside those of plans with equal weights: their L1 errors.

    python -m benchmarks.aimed                        the public survey of the demos
    python -m benchmarks.aimed --adult adult.csv --domain adult-domain.json
    python -m benchmarks.aimed --statsmodels          also tables that ship with statsmodels, if installed

L1 is the mean over tables of two attributes of the sum of absolute errors over the number of records; all tables of one
and two attributes are asked.  The reference of `aimed` is what a release at a hundredth of the budget has published;
that of `half` are half of the records, taken for public.  `cpu s` is what one such plan takes.  One rho for all:
0.000198, 0.01656 and 1.1825 for epsilon 0.1, 1 and 10 at delta 1e-9.
"""

from __future__ import annotations

import argparse
import itertools
import time
from pathlib import Path

import numpy as np

from benchmarks.kept import Kept
from benchmarks.published_tables import RHO, Table, table_options, tables
from engine.mechanisms import plan
from engine.postprocess.uncertainty import simulate_measurement
from engine.privacy import Budget
from engine.records import count_marginals
from engine.workload import Workload


def figures(table: Table, epsilon: float, seeds: int) -> tuple[float, float, float, float]:
    """Return L1 with equal weights, aimed by a small release, aimed by half of the records, and CPU seconds."""
    _, records, schema, ways = table
    asked, budget = Workload.all_ways(schema, ways, family="marginal"), Budget.zcdp(RHO[epsilon])
    exact = count_marginals(records, schema, [(), *(group.attributes for group in asked.groups)])

    def made(spent: Budget = budget, **aim):
        return plan(asked, spent, mechanism="residualplanner", **aim)

    def published(found, seed: int):
        return simulate_measurement(
            found, lambda names: exact[tuple(names)].astype(float), np.random.default_rng(seed)
        ).publish()

    def off(found) -> float:
        pairs = list(itertools.combinations(schema.names, 2))
        told = [published(found, seed) for seed in range(100, 100 + seeds)]
        return float(np.mean([np.abs(t.table(p) - exact[p]).sum() / len(records) for t in told for p in pairs]))

    begun = time.process_time()
    aimed = made(aim="published", reference=published(made(Budget.zcdp(RHO[epsilon] / 100.0)), 1))
    seconds = time.process_time() - begun
    half = made(aim="published", reference=records.sample(frac=0.5, random_state=1))
    return off(made()), off(aimed), off(half), seconds


def main() -> None:
    """Print one row a table and budget."""
    parser = table_options(__file__, __doc__)
    parser.add_argument("--seeds", type=int, default=10, help="releases a row")
    given = parser.parse_args(namespace=argparse.Namespace(full=False))
    head = f"{'tables':12} {'epsilon':>8} {'equal':>9} {'aimed':>9} {'half':>9} {'aimed / equal':>14} {'cpu s':>8}"
    kept = Kept(head, Path(__file__).with_suffix(".txt") if given.write else None)
    for table in tables(given):
        if max(table[3]) > 2 or (given.only and table[0] not in given.only):
            continue
        for epsilon in RHO:
            row = f"{table[0]:12} {epsilon:8g}"
            if not kept.has(row):
                equal, aimed, half, seconds = figures(table, epsilon, given.seeds)
                kept.add(f"{row} {equal:9.4f} {aimed:9.4f} {half:9.4f} {aimed / equal:14.3f} {seconds:8.1f}")


if __name__ == "__main__":
    main()
