"""The published numbers of QuerySmasher, tables 2 and 4, beside what this engine certifies.

    python -m benchmarks.published            print the table
    python -m benchmarks.published --write    print it and write benchmarks/published.txt

Every row is planned in a fresh process, so that seconds and peak memory are its own.  RMSE is at privacy cost
1, in counts.  The printed numbers are those of solvers stopped early; the certified bound shows where the optimum lies.
"""

import argparse
import itertools
import json
import platform
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from engine import Attribute, Budget, Schema, Workload, plan

SCHEMAS = {  # sizes of the categorical attributes, sizes of the numeric ones
    "Adult": ((42, 16, 15, 9, 7, 6, 5, 2, 2), (100, 100, 100, 99, 85)),
    "CPS": ((7, 4, 2), (50, 100)),
    "Loans": ((51, 36, 15, 8, 6, 5, 4, 3), (101, 101, 101, 101)),
}
WAYS = {"1-way": (1,), "2-way": (2,), "3-way": (3,), "<=3-way": (1, 2, 3)}
TARGET = Path(__file__).with_suffix(".txt")
HEAD = f"{'workload':<22}{'queries':>15}{'paper':>9}{'bound':>10}{'ours':>10}{'ratio':>8}{'gap':>10}{'s':>7}{'MB':>7}"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One published number.

    Attributes
    ----------
    schema, asked : which workload; see `workload`.
    printed : the QuerySmasher column of the paper.
    optimum : the optimum of the class, certified.
    """

    schema: str
    asked: str
    printed: float
    optimum: float

    def __str__(self) -> str:
        return f"{self.schema} {self.asked}"

    def workload(self) -> Workload:
        """Return the workload of this row."""
        if self.schema in SCHEMAS:
            kinds = zip(("categorical", "numeric"), SCHEMAS[self.schema], strict=True)
            sizes = [(kind, n) for kind, group in kinds for n in group]
            schema = Schema([Attribute.of_size(f"x{i}", n, kind) for i, (kind, n) in enumerate(sizes)])
            return Workload.all_ways(schema, WAYS[self.asked])
        n = int(self.schema.removeprefix("[").removesuffix("]^40"))
        schema = Schema([Attribute.of_size(f"x{i}", n) for i in range(40)])
        if self.asked not in ("affine", "abs"):
            return Workload.all_ways(schema, (1, 2), self.asked)
        groups = Workload.all_ways(schema, 1, "prefix").groups + Workload.all_ways(schema, 2, self.asked).groups
        return Workload(schema, groups)


def _table_2() -> list[Row]:
    printed = {
        "Adult": (5.047, 17.632, 47.055, 47.853),
        "CPS": (3.135, 6.194, 7.903, 8.140),
        "Loans": (4.670, 14.822, 36.095, 36.410),
    }
    optimum = {
        "Adult": (5.0468, 17.190, 45.552, 45.465),
        "CPS": (3.1350, 6.1918, 7.8860, 8.1400),
        "Loans": (4.6698, 14.575, 34.991, 34.927),
    }
    return [
        Row(schema=schema, asked=asked, printed=printed[schema][i], optimum=optimum[schema][i])
        for schema, (i, asked) in itertools.product(SCHEMAS, enumerate(WAYS))
    ]


def _table_4() -> list[Row]:
    printed = {
        "marginal": (23.48, 25.70, 26.46, 26.84, 27.07),
        "prefix": (33.70, 49.51, 60.81, 68.78, 75.26),
        "range": (41.08, 63.32, 78.79, 90.91, 100.97),
        "circular": (39.77, 63.01, 79.14, 91.72, 102.13),
        "affine": (28.25, 35.71, 44.36, 69.62, 79.33),
        "abs": (35.85, 39.49, 48.14, 49.83, 52.80),
    }
    optimum = {
        "marginal": (23.4766, 25.6986, 26.4601, 26.8437, 27.0742),
        "prefix": (33.693, 49.382, 59.662, 67.460, 73.801),
        "range": (41.076, 63.307, 78.784, 90.903, 100.962),
        "circular": (39.772, 63.010, 79.141, 91.723, 102.131),
        "affine": (28.010, 35.164, 39.169, 41.946, 44.071),
        "abs": (30.103, 37.170, 41.110, 43.843, 45.940),
    }
    return [
        Row(schema=f"[{n}]^40", asked=asked, printed=printed[asked][i], optimum=optimum[asked][i])
        for asked, (i, n) in itertools.product(printed, enumerate((10, 20, 30, 40, 50)))
    ]


ROWS = (*_table_2(), *_table_4())


def measure(row: Row) -> dict[str, float]:
    """Plan one row here and now; seconds include building the workload, peak memory the whole process."""
    import resource

    start = time.perf_counter()
    workload = row.workload()
    made = plan(workload, Budget(pcost=1.0))
    ours, certificate = made.rmse, made.certificate
    unit = 1 if platform.system() == "Darwin" else 1024
    return {
        "queries": workload.queries,
        "bound": certificate.lower_bound,
        "ours": ours,
        "gap": certificate.gap,
        "seconds": time.perf_counter() - start,
        "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6,
    }


def line(row: Row, found: dict[str, float]) -> str:
    """Return one row of the table."""
    return (
        f"{row!s:<22}{found['queries']:>15,}{row.printed:>9.3f}{found['bound']:>10.4f}{found['ours']:>10.4f}"
        f"{found['ours'] / row.printed:>8.4f}{found['gap']:>10.1e}{found['seconds']:>7.2f}{found['megabytes']:>7.0f}"
    )


def main(arguments: list[str] | None = None) -> int:
    """Print the table; return 1 when a number is not the certified optimum."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.published", description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="also write the table to benchmarks/published.txt")
    parser.add_argument("--row", type=int, help=argparse.SUPPRESS)  # one row as JSON, in the child process
    options = parser.parse_args(arguments)
    if options.row is not None:
        print(json.dumps(measure(ROWS[options.row])))
        return 0
    lines, wrong = [HEAD], 0
    print(HEAD, flush=True)
    for number, row in enumerate(ROWS):
        command = [sys.executable, "-m", "benchmarks.published", "--row", str(number)]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        wrong += abs(found["ours"] / row.optimum - 1) > 5e-4
        lines.append(line(row, found))
        print(lines[-1], flush=True)
    if options.write:
        TARGET.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
