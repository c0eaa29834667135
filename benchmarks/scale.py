"""Large workloads of QuerySmasher, tables 5 to 7: mixed queries and prefixes on [n]^d.

    python -m benchmarks.scale [--write] [--only KIND]

"mixed" are 1-way range, 2-way affine and 3-way prefix queries (tables 5 and 7), "2-way" 1-way and
2-way prefix queries (table 6).

Every row is planned in a new process on one thread; "cpu s" includes imports, the workload, the
plan, per-group RMSE and the maximum. "forecast" is the forecast before planning. "paper" is the
total time and memory of tables 6 and 7 (128 cores, 1 TB) and the RMSE of table 5, and of table 4
for prefixes with 40 attributes; a dash where the paper has no such number.
"""

from __future__ import annotations

import time
from typing import Any

from benchmarks import one_thread, options, peak_megabytes, run_in_new_process, table
from engine.mechanisms import forecast, plan
from engine.privacy import Budget
from engine.workload import Attribute, Schema, Workload

# (cells, attributes) -> printed RMSE, printed total seconds, printed GB
MIXED: dict[tuple[int, int], tuple[float | None, float | None, float | None]] = {
    (10, 10): (20.41, 4.6, 0.7),
    (10, 20): (51.63, 29.4, 1.0),
    (10, 30): (93.50, 29.4, 2.1),
    (10, 40): (138.38, 51.3, 4.2),
    (10, 50): (187.24, 104.2, 7.7),
    (20, 10): (34.60, 20.9, 1.0),
    (20, 20): (95.63, 51.3, 3.8),
    (20, 30): (167.16, 167.1, 12.1),
    (20, 40): (249.29, 411.4, 28.4),
    (20, 50): (340.55, 837.5, 55.8),
    (30, 10): (44.46, 25.4, 1.8),
    (30, 20): (126.19, 169.3, 11.5),
    (30, 30): (221.80, 592.5, 39.1),
    (30, 40): (331.86, 1383.9, 93.9),
    (30, 50): (454.37, 2974.1, 186.0),
    (40, 10): (None, 68.6, 3.4),
    (40, 20): (None, 491.3, 26.2),
    (40, 30): (None, 1647.7, 91.5),
    (40, 40): (None, 3694.7, 227.4),
    (50, 50): (None, None, None),
}
# memory is printed where it is not "< 1 GB"
PAIRS: dict[tuple[int, int], tuple[float | None, float | None, float | None]] = {
    (10, 20): (None, 4.4, None),
    (10, 30): (None, 2.6, None),
    (10, 40): (33.70, 7.2, None),
    (20, 20): (None, 4.3, None),
    (20, 30): (None, 6.4, None),
    (20, 40): (49.51, 8.2, None),
    (30, 20): (None, 7.1, 1.0),
    (30, 30): (None, 10.0, 1.0),
    (30, 40): (60.81, 12.8, 1.0),
    (40, 20): (None, 9.3, 1.0),
    (40, 30): (None, 14.8, 1.0),
    (40, 40): (68.78, 20.6, 1.0),
    (10, 200): (None, None, None),
}


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


BUILDERS = {"mixed": mixed, "2-way": pairs}


def _measure(kind: str, n: int, d: int) -> tuple[Any, ...]:
    start = time.process_time()
    workload = BUILDERS[kind](n, d)
    expected = forecast(workload)
    # worker processes would hide CPU time from the clock of this process
    result = plan(workload, Budget(pcost=1.0), cache=False, workers=1)
    groups = result.by_group()
    seconds = time.process_time() - start
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
    parser.add_argument("--only", choices=tuple(BUILDERS), help="the rows of this kind only")
    args = parser.parse_args()
    one_thread()
    with table(__file__, write=args.write) as show:
        show(
            f"{'table workload':21} {'groups':>7} {'queries':>13} | {'paper':>7} {'rmse':>9}"
            f" {'ratio':>6} {'gap':>8} | {'cpu s':>6} {'paper s':>8} {'speed-up':>8} | {'MB':>6}"
            f" {'paper MB':>8} | {'forecast s':>10} {'MB':>6}",
        )
        rows = [("5, 7", "mixed", *row) for row in MIXED.items()] + [
            ("6", "2-way", *row) for row in PAIRS.items()
        ]
        for number, kind, (n, d), (rmse, seconds, gigabytes) in rows:
            if args.only not in (None, kind):
                continue
            groups, queries, ours, gap, took, megabytes, expected = run_in_new_process(
                _measure, kind, n, d
            )
            show(
                f"{number:5} {f'{kind} [{n}]^{d}':15} {groups:>7,} {queries:>13,} |"
                f" {_or_dash(rmse):>7} {ours:>9.3f} {_or_dash(rmse and ours / rmse, 3):>6}"
                f" {gap:>8.1e} | {took:>6.1f} {_or_dash(seconds, 1):>8}"
                f" {_or_dash(seconds and seconds / took, 0):>8} | {megabytes:>6.0f}"
                f" {_or_dash(gigabytes and gigabytes * 1e3, 0):>8} | {expected.seconds:>10.1f}"
                f" {expected.memory / 1e6:>6.0f}"
            )


def _or_dash(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


if __name__ == "__main__":
    main()
