"""The largest published workloads on this machine: 1-way range, 2-way affine and 3-way prefix
queries on [n]^d.

    python -m benchmarks.scale [--write] [--only KIND]

The last rows are Adult of table 3: its 14 attributes all treated as numeric, 2-way affine and 1-way
prefix queries, to a certified gap of 1e-3. The paper counts 99,830 queries there, one per cell of
the ten pairs of numeric attributes; "Adult cells" has products of prefixes on these pairs, which is
that number.

Every row is planned in a new process, per-group RMSE and maximum included. "forecast" is the
forecast before planning, with seconds on one core. "paper" is the total time and memory of table 7
(128 cores, 1 TB) and the RMSE of tables 3 and 5, where printed; a dash where the paper has no such
row.
"""

from __future__ import annotations

import itertools
import os
import time
from typing import Any

from benchmarks import options, peak_megabytes, run_in_new_process, table
from engine.mechanisms import forecast, plan
from engine.privacy import Budget
from engine.workload import Attribute, Schema, Workload

ROWS = [  # n, d, printed RMSE, printed total seconds, printed GB
    (10, 10, 20.41, 4.6, 0.7),
    (10, 50, 187.24, 104.2, 7.7),
    (20, 10, 34.60, 20.9, 1.0),
    (20, 50, 340.55, 837.5, 55.8),
    (30, 10, 44.46, 25.4, 1.8),
    (30, 50, 454.37, 2974.1, 186.0),
    (40, 10, None, 68.6, 3.4),
    (40, 40, None, 3694.7, 227.4),
    (50, 50, None, None, None),
]


def mixed(n: int, d: int) -> Workload:
    """1-way range, 2-way affine and 3-way prefix queries on d attributes of n cells."""
    schema = Schema([Attribute.of_size(f"x{i}", n) for i in range(d)])
    groups = [
        Workload.all_ways(schema, (k,), f).groups
        for k, f in ((1, "range"), (2, "affine"), (3, "prefix"))
    ]
    return Workload(schema, sum(groups, ()))


def pairs(n: int, d: int) -> Workload:
    """All 1-way and 2-way prefix queries on d attributes of n cells."""
    return Workload.all_ways(Schema([Attribute.of_size(f"x{i}", n) for i in range(d)]), (1, 2))


def adult(cells: bool) -> Workload:
    """1-way prefix and 2-way affine queries on Adult; with ``cells``, prefix products on its
    numeric pairs.
    """
    sizes = {f"c{i}": n for i, n in enumerate((42, 16, 15, 9, 7, 6, 5, 2, 2))}
    sizes |= {f"n{i}": n for i, n in enumerate((100, 100, 100, 99, 85))}
    schema = Schema([Attribute.of_size(name, n) for name, n in sizes.items()])
    workload = Workload.all_ways(schema, (1,), "prefix")
    for a, b in itertools.combinations(schema.names, 2):
        workload = workload.add((a, b), "prefix" if cells and a[0] == b[0] == "n" else "affine")
    return workload


def _measure(kind: str, n: int, d: int) -> tuple[Any, ...]:
    start = time.perf_counter()
    builders = {"mixed": mixed, "2-way": pairs}
    workload = builders[kind](n, d) if kind in builders else adult(kind == "Adult cells")
    options = {} if kind in builders else {"gap": 1e-3}
    expected = forecast(workload, **options)
    result = plan(workload, Budget(pcost=1.0), cache=False, **options)
    groups = result.by_group()
    seconds = time.perf_counter() - start
    return (
        len(groups),
        workload.queries,
        result.rmse,
        result.certificate.gap,
        seconds,
        peak_megabytes(),
        expected,
    )


def main() -> None:
    """Print one row per workload."""
    parser = options(__file__, __doc__)
    parser.add_argument(
        "--only", help="print the rows of this kind only: mixed, 2-way, Adult or 'Adult cells'"
    )
    args = parser.parse_args()
    with table(__file__, write=args.write) as show:
        show(
            f"cores {os.cpu_count()}; seconds include workload, plan, per-group RMSE and maximum",
            f"{'workload':16} {'groups':>7} {'queries':>13} | {'rmse':>9} {'paper':>7} {'ratio':>6}"
            f" {'gap':>8} | {'s':>6} {'paper s':>8} {'speed-up':>8} | {'MB':>6} {'paper MB':>8} |"
            f" {'forecast s':>10} {'MB':>6}",
        )
        rows = [("mixed", *row) for row in ROWS] + [
            ("2-way", 10, 200, None, None, None),
            ("Adult", None, None, 16.435, None, None),
            ("Adult cells", None, None, 16.435, None, None),
        ]
        for kind, n, d, rmse, seconds, gigabytes in rows:
            if args.only not in (None, kind):
                continue
            groups, queries, ours, gap, took, megabytes, expected = run_in_new_process(
                _measure, kind, n, d
            )
            show(
                f"{f'{kind} [{n}]^{d}' if n else kind:16} {groups:>7,} {queries:>13,} |"
                f" {ours:>9.3f} {_or_dash(rmse):>7} {_or_dash(rmse and ours / rmse, 3):>6}"
                f" {gap:>8.1e} | {took:>6.1f} {_or_dash(seconds, 1):>8}"
                f" {_or_dash(seconds and seconds / took, 0):>8} | {megabytes:>6.0f}"
                f" {_or_dash(gigabytes and gigabytes * 1e3, 0):>8} | {expected.seconds:>10.1f}"
                f" {expected.memory / 1e6:>6.0f}"
            )


def _or_dash(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


if __name__ == "__main__":
    main()
