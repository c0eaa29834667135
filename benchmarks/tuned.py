"""Tuned centers and complements, compared with the published split.

    python -m benchmarks.tuned [--write] [--quick]

Numbers are the RMSE at privacy cost 1. "paper" is the printed QuerySmasher value, "uniform" the
certified optimum of the published split, "tuned" that of the tuned split. Every row is planned in a
new process; seconds are CPU seconds.
"""

from __future__ import annotations

import time

import demo_data
from benchmarks import options, peak_megabytes, run_in_new_process, table
from engine.analysis.certificates import SIZES, WAYS, published_rmse
from engine.mechanisms import plan
from engine.privacy import Budget
from engine.workload import Attribute, Schema, Workload

DEMOS = {"cps": "CPS", "adult": "Adult", "loans": "Loans"}
JOINT = [(family, n) for n in (10, 20, 30, 50) for family in ("affine", "abs")]


def cube(n: int, d: int) -> Schema:
    """Schema of d numeric attributes of n cells."""
    return Schema([Attribute.of_size(f"x{i}", n) for i in range(d)])


def joint(family: str, n: int, d: int, *, ones: bool = True) -> Workload:
    """All 2-way queries of a joint family, with 1-way prefixes."""
    schema = cube(n, d)
    single = Workload.all_ways(schema, (1,), "prefix").groups if ones else ()
    return Workload(schema, single + Workload.all_ways(schema, (2,), family).groups)


def rows(quick: bool) -> list[tuple[str, Workload, float | None]]:
    """Return (name, workload, printed RMSE) of every row."""
    out: list[tuple[str, Workload, float | None]] = []
    for key, name in DEMOS.items():
        schema = Schema.from_json(demo_data.schemas()[key].read_bytes())
        for words, ways in WAYS.items():
            out.append(
                (f"{name} {words}", Workload.all_ways(schema, ways), published_rmse(name, words))
            )
    for n in SIZES:
        paper = published_rmse(f"[{n}]^40", "prefix")
        out.append((f"[{n}]^40 prefix", Workload.all_ways(cube(n, 40), (1, 2)), paper))
    out.append(("[10]^2 prefix", Workload.all_ways(cube(10, 2), (1, 2)), None))
    out.append(("[8]^3 prefix", Workload.all_ways(cube(8, 3), (1, 2, 3)), None))
    for family, n in JOINT:
        if n < 30 or not quick:
            paper = published_rmse(f"[{n}]^40", family)
            out.append((f"[{n}]^40 {family} + prefix", joint(family, n, 40), paper))
    out.append(("[10]^10 abs alone", joint("abs", 10, 10, ones=False), None))
    out.append(("[10]^10 affine + prefix", joint("affine", 10, 10), None))
    out.append(("[5]^2 abs alone", joint("abs", 5, 2, ones=False), None))
    out.append(("[10]^2 affine alone", joint("affine", 10, 2, ones=False), None))
    out.append(("[10]^4 abs alone", joint("abs", 10, 4, ones=False), None))
    return out


def _measure(workload: str, centers: str) -> tuple[float, float, float, float]:
    parsed_workload = Workload.from_json(workload)
    start = time.process_time()
    result = plan(parsed_workload, Budget(pcost=1.0), centers=centers)
    rmse = result.rmse
    seconds = time.process_time() - start
    return rmse, result.certificate.gap, seconds, peak_megabytes()


def main() -> None:
    """Print one row per workload."""
    parser = options(__file__, __doc__)
    parser.add_argument("--quick", action="store_true", help="leave out the rows that take minutes")
    args = parser.parse_args()
    with table(__file__, write=args.write) as show:
        show(
            f"{'workload':26} {'paper':>7} {'uniform':>9} {'tuned':>9} {'tuned/uniform':>13}"
            f" {'tuned/paper':>11} {'gap':>8} {'uniform s':>9} {'tuned s':>8} {'MB':>6}"
        )
        for name, workload, paper in rows(args.quick):
            workload_json = workload.to_json()
            uniform, _, quick, _ = run_in_new_process(_measure, workload_json, "uniform")
            tuned, gap, slow, megabytes = run_in_new_process(_measure, workload_json, "tuned")
            shown = "-" if paper is None else f"{paper:.3f}"
            ratio = "-" if paper is None else f"{tuned / paper:.4f}"
            show(
                f"{name:26} {shown:>7} {uniform:>9.4f} {tuned:>9.4f} {tuned / uniform:>13.4f}"
                f" {ratio:>11} {gap:>8.1e} {quick:>9.2f} {slow:>8.2f} {megabytes:>6.0f}"
            )


if __name__ == "__main__":
    main()
