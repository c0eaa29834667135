"""Other objectives than the weighted sum, and weighted queries of QuerySmasher.

    python -m benchmarks.objectives            print the tables
    python -m benchmarks.objectives --write    print them and write benchmarks/objectives.txt
    python -m benchmarks.objectives --quick    without the largest rows

RMSE is at privacy cost 1, in counts. First table: each objective decreases the criterion that it
minimises, others may increase. Targets are 1, 2 and 4 counts for groups of one, two and three
attributes; value and bound are then the largest standard error over its target. Seconds are CPU
seconds of one process, cold. Second table: weights are integers from 1 to 5, one a group, drawn
here from a fixed seed, so its numbers are another draw of the same distribution. (The paper speaks
of one weight a query, but its numbers are those without weights times the mean of the root of a
weight, 1.677, as weights of groups give; weights of single queries would give the root of the mean,
1.732.)
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

import demo_data
from benchmarks import options, table
from benchmarks.tuned import cube
from engine.mechanisms import plan
from engine.privacy import Budget
from engine.workload import Schema, Workload
from engine.workload.families import Random

SEED = 8
WORDS = ("sum", "l_4", "max", "targets")
HEAD = f"{'workload':<20}{'objective':>10}{'rmse':>10}{'max std':>10}{'value':>10}{'bound':>10}{'gap':>10}{'cpu s':>8}"
WEIGHTED = f"{'table 8':<20}{'queries':>12}{'paper':>10}{'bound':>10}{'ours':>10}{'ratio':>8}{'gap':>10}{'cpu s':>8}"
PRINTED = {
    (10, "marginal"): 39.22,
    (10, "prefix"): 56.59,
    (10, "range"): 68.82,
    (10, "circular"): 66.70,
    (10, "affine"): 47.33,
    (10, "abs"): 51.94,
    (10, "random"): 174.49,
    (20, "marginal"): 42.90,
    (20, "prefix"): 84.18,
    (20, "range"): 105.93,
    (20, "circular"): 105.53,
    (20, "affine"): 61.68,
    (20, "abs"): 66.89,
    (20, "random"): 386.32,
}


def workloads(quick: bool) -> Iterator[tuple[str, Workload]]:
    """Yield the workloads of the first table."""
    yield "[10]^4 prefix", Workload.all_ways(cube(10, 4), (1, 2))
    yield "[8]^3 range", Workload.all_ways(cube(8, 3), (1, 2), "range")
    yield "[10]^40 marginal", Workload.all_ways(cube(10, 40), (1, 2), "marginal")
    for name in ("cps",) if quick else ("cps", "adult"):
        schema = Schema.from_json(demo_data.schemas()[name].read_bytes())
        yield f"{name} <=3-way", Workload.all_ways(schema, (1, 2, 3))


def goal(word: str, workload: Workload) -> dict[str, Any]:
    """Return the options of an objective of the first table."""
    targets = [2.0 ** (len(group.attributes) - 1) for group in workload.groups]
    return {
        "sum": {},
        "l_4": {"objective": "lp", "power": 4.0},
        "max": {"objective": "max"},
        "targets": {"objective": "max", "targets": targets},
    }[word]


def weighted(n: int, family: str) -> Workload:
    """Return a workload of table 8: 1-way and 2-way groups on [n]^40, each with an integer weight
    from 1 to 5.
    """
    rng, schema = np.random.default_rng(SEED), cube(n, 40)
    one: str | Random = "prefix" if family in ("affine", "abs") else family
    two: str | Random = family
    if family == "random":
        one = two = Random()
    out = Workload(schema)
    for names in [
        *itertools.combinations(schema.names, 1),
        *itertools.combinations(schema.names, 2),
    ]:
        out = out.add(names, one if len(names) == 1 else two, weight=float(rng.integers(1, 6)))
    return out


def main(arguments: list[str] | None = None) -> int:
    """Print the tables."""
    parser = options(__file__, __doc__)
    parser.add_argument("--quick", action="store_true", help="leave out the largest rows")
    parser.add_argument("--table-8", action="store_true", help="the second table only")
    args = parser.parse_args(arguments)
    with table(__file__, write=args.write) as show:
        show(HEAD)
        for name, workload in () if args.table_8 else workloads(args.quick):
            for word in WORDS:
                start = time.process_time()
                result = plan(workload, Budget(pcost=1.0), **goal(word, workload))
                seconds, certificate = time.process_time() - start, result.certificate
                show(
                    f"{name:<20}{word:>10}{result.rmse:>10.4f}{math.sqrt(result.max_variance):>10.4f}{result.achieved:>10.4f}"
                    f"{certificate.lower_bound:>10.4f}{certificate.gap:>10.1e}{seconds:>8.1f}"
                )
        show("")
        show(WEIGHTED)
        for (n, family), paper in PRINTED.items():
            if args.quick and n > 10:
                continue
            start = time.process_time()
            workload = weighted(n, family)
            result = plan(workload, Budget(pcost=1.0))
            seconds, certificate = time.process_time() - start, result.certificate
            show(
                f"{f'[{n}]^40 {family}':<20}{workload.queries:>12,}{paper:>10.2f}{certificate.lower_bound:>10.3f}"
                f"{result.weighted_rmse:>10.3f}{result.weighted_rmse / paper:>8.4f}"
                f"{certificate.gap:>10.1e}{seconds:>8.1f}"
            )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
