"""Published numbers of QuerySmasher, tables 2 to 4, compared with certified optima.

    python -m benchmarks.published            print the table
    python -m benchmarks.published --write    print it and write benchmarks/published.txt

Every row is planned in a new process on one thread, so that CPU seconds ("s", without imports) and
peak memory are separate. RMSE is at privacy cost 1, in counts. The printed numbers are those of
solvers stopped early; the certified bound shows where the optimum lies.
"""

import argparse
import json
import subprocess
import sys
import time

from benchmarks import one_thread, options, peak_megabytes, table
from engine.analysis import ROWS
from engine.analysis.certificates import SCHEMAS, PublishedRow, standard_workload
from engine.mechanisms import plan
from engine.privacy import Budget

__all__ = ["ROWS", "SCHEMAS", "line", "measure"]

HEAD = f"{'workload':<22}{'queries':>15}{'paper':>9}{'bound':>10}{'ours':>10}{'ratio':>8}{'gap':>10}{'s':>7}{'MB':>7}"


def measure(row: PublishedRow) -> dict[str, float]:
    """Plan one row in this process; CPU seconds include building the workload, not imports."""
    plan(standard_workload("CPS", "2-way"), Budget(pcost=1.0))  # imports the modules of planning
    start = time.process_time()
    workload = row.workload()
    # worker processes would hide CPU time from the clock of this process
    result = plan(workload, Budget(pcost=1.0), workers=1)
    ours, certificate = result.rmse, result.certificate
    return {
        "queries": workload.queries,
        "bound": certificate.lower_bound,
        "ours": ours,
        "gap": certificate.gap,
        "seconds": time.process_time() - start,
        "megabytes": peak_megabytes(),
    }


def line(row: PublishedRow, figures: dict[str, float]) -> str:
    """Return one row of the table."""
    return (
        f"{row!s:<22}{figures['queries']:>15,}{row.printed:>9.3f}"
        f"{figures['bound']:>10.4f}{figures['ours']:>10.4f}"
        f"{figures['ours'] / row.printed:>8.4f}{figures['gap']:>10.1e}"
        f"{figures['seconds']:>7.2f}{figures['megabytes']:>7.0f}"
    )


def main(arguments: list[str] | None = None) -> int:
    """Print the table; return 1 when a number is not the certified optimum."""
    parser = options(__file__, __doc__)
    # the child process prints one row as JSON
    parser.add_argument("--row", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.row is not None:
        print(json.dumps(measure(ROWS[args.row])))
        return 0
    one_thread()
    wrong = 0
    with table(__file__, write=args.write) as show:
        show(HEAD)
        for number, row in enumerate(ROWS):
            command = [sys.executable, "-m", "benchmarks.published", "--row", str(number)]
            figures = json.loads(
                subprocess.run(command, check=True, capture_output=True, text=True).stdout
            )
            wrong += abs(figures["ours"] / row.optimum - 1) > 5e-4
            show(line(row, figures))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
