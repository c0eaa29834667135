"""The largest published workloads on this machine: 1-way range, 2-way affine and 3-way prefix queries on [n]^d.

    python -m benchmarks.scale [--write]

Every row is planned in a process of its own, per-group RMSE and maximum included.  "paper" is the total time and memory
of table 7 (128 cores, 1 TB) and the RMSE of table 5, where printed; a dash where the paper has no such row.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import time
from pathlib import Path

from engine import Attribute, Budget, Schema, Workload, plan

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
    groups = [Workload.all_ways(schema, (k,), f).groups for k, f in ((1, "range"), (2, "affine"), (3, "prefix"))]
    return Workload(schema, sum(groups, ()))


def pairs(n: int, d: int) -> Workload:
    """All 1-way and 2-way prefix queries on d attributes of n cells."""
    return Workload.all_ways(Schema([Attribute.of_size(f"x{i}", n) for i in range(d)]), (1, 2))


def _measure(kind: str, n: int, d: int, results: multiprocessing.Queue) -> None:
    start = time.perf_counter()
    workload = mixed(n, d) if kind == "mixed" else pairs(n, d)
    made = plan(workload, Budget(pcost=1.0))
    groups = made.by_group()
    seconds = time.perf_counter() - start
    megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    results.put((len(groups), workload.queries, made.rmse, made.certificate.gap, seconds, megabytes))


def main() -> None:
    """Print one row a workload."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="also write benchmarks/scale.txt")
    given = parser.parse_args()
    lines = [
        f"cores {os.cpu_count()}; seconds include workload, plan, per-group RMSE and maximum",
        f"{'workload':16} {'groups':>7} {'queries':>13} | {'rmse':>9} {'paper':>7} {'ratio':>6} {'gap':>8} | "
        f"{'s':>6} {'paper s':>8} {'speed-up':>8} | {'MB':>6} {'paper MB':>8}",
    ]
    print(*lines, sep="\n", flush=True)
    context = multiprocessing.get_context("spawn")
    for kind, n, d, rmse, seconds, gigabytes in [("mixed", *row) for row in ROWS] + [
        ("2-way", 10, 200, None, None, None)
    ]:
        results = context.Queue()
        process = context.Process(target=_measure, args=(kind, n, d, results))
        process.start()
        groups, queries, ours, gap, took, megabytes = results.get()
        process.join()
        lines.append(
            f"{f'{kind} [{n}]^{d}':16} {groups:>7,} {queries:>13,} | {ours:>9.3f} {_or_dash(rmse):>7} "
            f"{_or_dash(rmse and ours / rmse, 3):>6} {gap:>8.1e} | {took:>6.1f} {_or_dash(seconds, 1):>8} "
            f"{_or_dash(seconds and seconds / took, 0):>8} | {megabytes:>6.0f} "
            f"{_or_dash(gigabytes and gigabytes * 1e3, 0):>8}"
        )
        print(lines[-1], flush=True)
    if given.write:
        Path(__file__).with_suffix(".txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _or_dash(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


if __name__ == "__main__":
    main()
