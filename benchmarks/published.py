"""The published numbers of QuerySmasher, tables 2 and 4, beside what this engine certifies.

    python -m benchmarks.published            print the table
    python -m benchmarks.published --write    print it and write benchmarks/published.txt

Every row is planned in a fresh process, so that seconds and peak memory are its own.  RMSE is at privacy cost
1, in counts.  The printed numbers are those of solvers stopped early; the certified bound shows where the optimum lies.
"""

import argparse
import json
import subprocess
import sys
import time

from benchmarks import options, peak_megabytes, table
from engine.analysis import ROWS
from engine.analysis.paper_results import SCHEMAS, PublishedRow
from engine.mechanisms import plan
from engine.privacy import Budget

__all__ = ["ROWS", "SCHEMAS", "line", "measure"]

HEAD = f"{'workload':<22}{'queries':>15}{'paper':>9}{'bound':>10}{'ours':>10}{'ratio':>8}{'gap':>10}{'s':>7}{'MB':>7}"


def measure(row: PublishedRow) -> dict[str, float]:
    """Plan one row here and now; seconds include building the workload, peak memory the whole process."""
    start = time.perf_counter()
    workload = row.workload()
    made = plan(workload, Budget(pcost=1.0))
    ours, certificate = made.rmse, made.certificate
    return {
        "queries": workload.queries,
        "bound": certificate.lower_bound,
        "ours": ours,
        "gap": certificate.gap,
        "seconds": time.perf_counter() - start,
        "megabytes": peak_megabytes(),
    }


def line(row: PublishedRow, found: dict[str, float]) -> str:
    """Return one row of the table."""
    return (
        f"{row!s:<22}{found['queries']:>15,}{row.printed:>9.3f}{found['bound']:>10.4f}{found['ours']:>10.4f}"
        f"{found['ours'] / row.printed:>8.4f}{found['gap']:>10.1e}{found['seconds']:>7.2f}{found['megabytes']:>7.0f}"
    )


def main(arguments: list[str] | None = None) -> int:
    """Print the table; return 1 when a number is not the certified optimum."""
    parser = options(__file__, __doc__)
    parser.add_argument("--row", type=int, help=argparse.SUPPRESS)  # one row as JSON, in the child process
    given = parser.parse_args(arguments)
    if given.row is not None:
        print(json.dumps(measure(ROWS[given.row])))
        return 0
    wrong = 0
    with table(__file__, write=given.write) as show:
        show(HEAD)
        for number, row in enumerate(ROWS):
            command = [sys.executable, "-m", "benchmarks.published", "--row", str(number)]
            found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            wrong += abs(found["ours"] / row.optimum - 1) > 5e-4
            show(line(row, found))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
