"""Tuned plans compared with the lower bound for all matrix mechanisms.

    python -m benchmarks.bounds [--write] [--quick] [--seconds 60]

"plan" is the RMSE of a tuned plan at privacy cost 1, "bound" a lower bound for every matrix
mechanism. The bound is searched in a new process without cache; seconds are CPU seconds. "asked" is
the target for the gap. Existing rows of the file are not computed again; move it away to start
again.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import subprocess
import sys
import time
from pathlib import Path

from benchmarks import options
from benchmarks.row_file import RowFile
from benchmarks.tuned import cube
from benchmarks.tuned import rows as tuned_rows
from engine.analysis import ROWS
from engine.analysis.certificates import standard_workload
from engine.bounds.lower_bounds import exact_bound, global_bound, small_domain
from engine.mechanisms import plan
from engine.privacy import Budget
from engine.workload import Workload

# targets for the gap of tuned plans, by the first pattern that matches the name of a workload
TARGETS = {
    r"\[10\]\^40 affine": 0.025,
    r"\[20\]\^40 affine": 0.03,
    r"\[[12]0\]\^40 abs": 0.055,
    r"\[\d+\]\^40 (prefix|range)": 0.003,
    r"\[[45]0\]\^40 (affine|abs)|n=30": 0.06,
    r"CPS <=3-way": 0.003,
    r"(Adult|Loans) <=3-way": 0.02,
}
# workloads whose joint families need minutes for a tuned plan
SLOW = ("[30]^40 a", "[40]^40", "[50]^40", "n=30")


def workloads() -> dict[str, Workload]:
    """Return the published workloads of tables 2 and 4, and those of `benchmarks.tuned`, by name."""
    out = {str(row): row.workload() for row in ROWS if row.table != 3}
    out |= {name: workload for name, workload, paper in tuned_rows(quick=False) if paper is None}
    for family in ("affine", "abs"):
        both = Workload.all_ways(cube(40, 40), (2,), "prefix")
        joint = standard_workload("[40]^40", family)
        out[f"[40]^40 {family} + 2-way prefix"] = Workload(joint.schema, joint.groups + both.groups)
    many = cube(30, 50)
    families = (("range", 1), ("affine", 2), ("prefix", 3))
    groups = tuple(
        g for family, k in families for g in Workload.all_ways(many, (k,), family).groups
    )
    out["n=30 d=50 mixed"] = Workload(many, groups)
    return out


def measure(name: str, seconds: float, centers: str) -> dict[str, float]:
    """Search the lower bound and the plan of a workload; return their figures and times."""
    workload = workloads()[name]
    start = time.process_time()
    square = (
        exact_bound(workload) if small_domain(workload) else global_bound(workload, seconds=seconds)
    )
    searched = time.process_time()
    result = plan(workload, Budget(pcost=1.0), centers=centers)
    rmse = result.weighted_rmse
    return {
        "bound": math.sqrt(square / workload.queries),
        "plan": rmse,
        "bound_seconds": searched - start,
        "plan_seconds": time.process_time() - searched,
    }


def main(arguments: list[str] | None = None) -> int:
    """Print one row per workload."""
    parser = options(__file__, __doc__)
    parser.add_argument(
        "--quick", action="store_true", help="uniform plans where a tuned one takes minutes"
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="time limit of a search")
    parser.add_argument("--only", help="rows whose name has this text")
    parser.add_argument("--row", help=argparse.SUPPRESS)  # one row as JSON, in the child process
    args = parser.parse_args(arguments)
    if args.row is not None:
        name, centers = args.row.rsplit("|", 1)
        print(json.dumps(measure(name, args.seconds, centers)))
        return 0
    head = (
        f"{'workload':<34}{'split':>9}{'plan':>11}{'bound':>11}{'gap':>9}{'asked':>8}{'met':>5}"
        f"{'bound s':>9}{'plan s':>9}"
    )
    output = RowFile(head, Path(__file__).with_suffix(".txt") if args.write else None)
    for name, workload in workloads().items():
        joint = any(len(p.axes) > 1 for g in workload.groups for p in g.parts)
        slow = args.quick and name.startswith(SLOW) and joint
        centers = "uniform" if slow else "tuned"
        begin = f"{name:<34}{centers:>9}"
        if (args.only and args.only not in name) or output.has(begin):
            continue
        command = [sys.executable, "-m", "benchmarks.bounds", "--row", f"{name}|{centers}"]
        command += ["--seconds", str(args.seconds)]
        figures = json.loads(
            subprocess.run(command, check=True, capture_output=True, text=True).stdout
        )
        gap = figures["plan"] / figures["bound"] - 1.0
        most = next(
            (share for pattern, share in TARGETS.items() if re.match(pattern, name)), math.inf
        )
        limit, met = (
            ("", "") if math.isinf(most) else (f"{most:.1%}", "yes" if gap <= most else "no")
        )
        output.add(
            f"{begin}{figures['plan']:>11.4f}{figures['bound']:>11.4f}{gap:>9.3%}{limit:>8}{met:>5}"
            f"{figures['bound_seconds']:>9.2f}{figures['plan_seconds']:>9.2f}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
