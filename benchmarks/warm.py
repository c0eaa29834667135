"""Planning time after one edit of the workload or budget, with and without cache.

    python -m benchmarks.warm [--edits 30] [--write]

Every edit changes one thing of a planned workload: the weight of a group, an added or removed
group, the family of a group, or the budget. Numeric attributes change their family only in groups
of one attribute: two families on a pair give a subworkload without product structure, whose search
takes minutes. Seconds include the `plan` call and the RMSE, on one core; "cold" does not use the
cache. The RMSE of both must agree up to the gap.
"""

from __future__ import annotations

import os
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from typing import Any

from benchmarks import options, table

CASES = [(name, centers) for centers in ("uniform", "tuned") for name in ("CPS", "Adult")]
HEAD = (
    f"{'workload':16} {'centers':8} | {'cold s':>7} {'p95':>7} | {'warm s':>7} {'p95':>7} |"
    f" {'ratio':>6} {'p95':>6} | {'largest RMSE change':>19}"
)


def edits(workload: Any, budget: Any, count: int, seed: int = 1) -> Iterator[tuple[str, Any, Any]]:
    """Yield (kind of edit, workload, budget), each one edit after the previous."""
    from engine.privacy import Budget
    from engine.workload import Workload

    rng = random.Random(seed)
    families = {
        "numeric": ("prefix", "range", "marginal", "circular"),
        "categorical": ("marginal", "total"),
    }
    for _ in range(count):
        what = rng.choice(("weight", "add", "remove", "family", "budget"))
        groups = list(workload.groups)
        at = rng.randrange(len(groups))
        group = groups[at]
        chosen = {
            name: (
                rng.choice(families[kind])
                if len(group.attributes) == 1 or kind == "categorical"
                else "prefix"
            )
            for name in group.attributes
            for kind in (workload.schema[name].kind,)
        }
        if what == "weight":
            changed = Workload(workload.schema).add(
                group.attributes, group.family, rng.choice((0.5, 2.0, 3.0, 10.0))
            )
            groups[at] = changed.groups[0]
        elif what == "remove":
            del groups[at]
        elif what == "budget":
            budget = Budget(pcost=rng.choice((0.1, 0.5, 1.0, 2.0)))
        else:
            new_group = Workload(workload.schema).add(group.attributes, chosen).groups[0]
            groups = (
                [*groups, new_group]
                if what == "add"
                else [*groups[:at], new_group, *groups[at + 1 :]]
            )
        workload = Workload(workload.schema, tuple(groups))
        yield what, workload, budget


def measure(name: str, centers: str, count: int) -> str:
    """Return one line of the table."""
    from benchmarks.published import ROWS
    from engine.mechanisms import plan
    from engine.privacy import Budget

    workload = next(row for row in ROWS if str(row) == f"{name} <=3-way").workload()
    budget = Budget(pcost=1.0)

    def time_plan(edited: Any, spent: Any, cache: bool) -> tuple[float, float]:
        start = time.perf_counter()
        rmse = plan(edited, spent, centers=centers, workers=1, cache=cache).rmse
        return time.perf_counter() - start, rmse

    time_plan(workload, budget, cache=True)
    cold, warm, changes = [], [], []
    for _, edited, spent in edits(workload, budget, count):
        seconds, rmse = time_plan(edited, spent, cache=False)
        again, other = time_plan(edited, spent, cache=True)
        cold.append(seconds)
        warm.append(again)
        changes.append(other / rmse - 1.0)
    ratios = [a / b for a, b in zip(cold, warm, strict=True)]
    return (
        f"{f'{name} <=3-way':16} {centers:8} | {statistics.median(cold):>7.3f} {_p95(cold):>7.3f} |"
        f" {statistics.median(warm):>7.3f} {_p95(warm):>7.3f} | {statistics.median(ratios):>6.2f}"
        f" {_p95(ratios):>6.2f} | {max(changes, key=abs):>19.1e}"
    )


def _p95(values: list[float]) -> float:
    return sorted(values)[min(len(values) - 1, int(0.95 * len(values)))]


def main() -> None:
    """Print one row per workload and kind of center."""
    parser = options(__file__, __doc__)
    parser.add_argument("--edits", type=int, default=30, help="edits a row")
    parser.add_argument(
        "--centers", nargs="+", choices=("uniform", "tuned"), help="some of the rows"
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, table(__file__, write=args.write) as show:
        # an empty cache, independent of earlier runs
        os.environ["DP_WORKBENCH_CACHE"] = folder
        show(HEAD)
        for name, centers in CASES:
            if args.centers and centers not in args.centers:
                continue
            show(measure(name, centers, args.edits))


if __name__ == "__main__":
    main()
