"""What adaptive methods of mbi would publish, beside ours and unbiased answers: their errors, simulated.

    python -m benchmarks.adaptive                       the public survey of the demos
    python -m benchmarks.adaptive --adult adult.csv --domain adult-domain.json
    python -m benchmarks.adaptive --statsmodels         also tables that ship with statsmodels, if installed

AIM and MST run where the extra `adaptive` is installed; a row without a result says why.  L1 is the mean over all
of one and two attributes of the sum of absolute errors over the number of records, `spread` the standard error of its
mean.  One rho for all: 0.000198, 0.01656 and 1.1825 for epsilon 0.1, 1 and 10 at delta 1e-9.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from benchmarks.kept import Kept
from benchmarks.published_tables import RHO, table_options, tables
from engine.privacy import Budget
from engine.publish.aim_mst import ADAPTIVE
from engine.publish.publication_comparison import published_comparison
from engine.workload import Workload


def main() -> None:
    """Print one row a table, budget and way."""
    parser = table_options(__file__, __doc__)
    parser.add_argument("--seeds", type=int, default=3, help="releases a row")
    parser.add_argument("--seconds", type=float, default=900.0, help="a row")
    given = parser.parse_args(namespace=argparse.Namespace(full=False))
    head = f"{'tables':12} {'epsilon':>8} {'way':28} {'L1':>8} {'spread':>8} {'s a row':>8}"
    kept = Kept(head, Path(__file__).with_suffix(".txt") if given.write else None)
    for name, records, schema, ways in tables(given):
        if max(ways) > 2 or (given.only and name not in given.only):
            continue
        asked = Workload.all_ways(schema, ways, family="marginal")
        for epsilon, rho in RHO.items():
            for choices, adaptive in (([("residualplanner", {})], ()), ([], ADAPTIVE[:1]), ([], ADAPTIVE[1:])):
                start = f"{name:12} {epsilon:8g}"
                if kept.has(f"{start} {adaptive[0] if adaptive else 'ResidualPlanner':}"):
                    continue
                begun = time.monotonic()
                found = published_comparison(
                    asked,
                    Budget.zcdp(rho),
                    records,
                    choices,
                    adaptive,
                    factors=(1.0,),
                    rehearsals=given.seeds,
                    seconds=given.seconds,
                )
                seconds = (time.monotonic() - begun) / len(found.frame)
                for _, row in found.frame.iterrows():
                    figures = f"{row['error']:8.4f} {row['spread']:8.4f}" if row["status"] == "ok" else row["status"]
                    kept.add(f"{start} {row['way']:28} {figures} {seconds:8.1f}")


if __name__ == "__main__":
    main()
