"""L1 errors of published tables: plans weighted for publishing or with equal weights.

    python -m benchmarks.aimed                        the public survey of the demos
    python -m benchmarks.aimed --adult adult.csv --domain adult-domain.json
    python -m benchmarks.aimed --statsmodels          also tables that ship with statsmodels, if installed

L1 is the mean, over tables of two attributes, of the sum of absolute errors divided by the number
of records; the workload has all tables of one and two attributes. The reference of `aimed` is a
release at a hundredth of the budget; that of `half` is half of the records, treated as public. `cpu
s` is the time of one such plan. All rows of an epsilon have the same rho: 0.000198, 0.01656 and
1.1825 for epsilon 0.1, 1 and 10 at delta 1e-9.
"""

from __future__ import annotations

import argparse
import itertools
import time
from pathlib import Path

import numpy as np

from benchmarks.published_tables import RHO, Table, table_options, tables
from benchmarks.row_file import RowFile
from engine.mechanisms import plan
from engine.postprocess.uncertainty import simulate_measurement
from engine.privacy import Budget
from engine.records import count_marginals
from engine.workload import Workload


def figures(table: Table, epsilon: float, seeds: int) -> tuple[float, float, float, float]:
    """Return L1 with equal weights, with both references, and CPU seconds of the plan."""
    _, records, schema, ways = table
    workload, budget = Workload.all_ways(schema, ways, family="marginal"), Budget.zcdp(RHO[epsilon])
    exact = count_marginals(records, schema, [(), *(group.attributes for group in workload.groups)])

    def make_plan(spent: Budget = budget, **aim):
        return plan(workload, spent, mechanism="residualplanner", **aim)

    def simulate_publication(result, seed: int):
        return simulate_measurement(
            result, lambda names: exact[tuple(names)].astype(float), np.random.default_rng(seed)
        ).publish()

    def mean_error(result) -> float:
        pairs = list(itertools.combinations(schema.names, 2))
        releases = [simulate_publication(result, seed) for seed in range(100, 100 + seeds)]
        return float(
            np.mean(
                [
                    np.abs(t.table(p) - exact[p]).sum() / len(records)
                    for t in releases
                    for p in pairs
                ]
            )
        )

    start = time.process_time()
    aimed = make_plan(
        aim="published",
        reference=simulate_publication(make_plan(Budget.zcdp(RHO[epsilon] / 100.0)), 1),
    )
    seconds = time.process_time() - start
    half = make_plan(aim="published", reference=records.sample(frac=0.5, random_state=1))
    return mean_error(make_plan()), mean_error(aimed), mean_error(half), seconds


def main() -> None:
    """Print one row per table and budget."""
    parser = table_options(__file__, __doc__)
    parser.add_argument("--seeds", type=int, default=10, help="releases a row")
    args = parser.parse_args(namespace=argparse.Namespace(full=False))
    head = (
        f"{'tables':12} {'epsilon':>8} {'equal':>9} {'aimed':>9} {'half':>9} {'aimed / equal':>14}"
        f" {'cpu s':>8}"
    )
    output = RowFile(head, Path(__file__).with_suffix(".txt") if args.write else None)
    for table in tables(args):
        if max(table[3]) > 2 or (args.only and table[0] not in args.only):
            continue
        for epsilon in RHO:
            row = f"{table[0]:12} {epsilon:8g}"
            if not output.has(row):
                equal, aimed, half, seconds = figures(table, epsilon, args.seeds)
                output.add(
                    f"{row} {equal:9.4f} {aimed:9.4f} {half:9.4f} {aimed / equal:14.3f}"
                    f" {seconds:8.1f}"
                )


if __name__ == "__main__":
    main()
