"""Audit of releases with and without planted bugs."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pandas as pd

from engine.ledger import Ledger
from engine.privacy import Budget
from engine.release import Measurement, measure
from engine.workload import Workload
from tests.audit.auditing import BUGS, SCHEMA, audit, audited_plan


def main(arguments: list[str] | None = None) -> int:
    """Audit releases without and with each bug, and print the bounds on rho.

    Returns 0 if the bound exceeds the stated rho for every bug and not for the correct release,
    otherwise 1.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.audit", description=__doc__)
    parser.add_argument("--runs", type=int, default=2000, help="releases of each of the two tables")
    args = parser.parse_args(arguments)
    small_plan = audited_plan(Workload.all_ways(SCHEMA, ways=(1, 2)))
    wrong = 0
    print(f"{'releases':30} {'stated rho':>10} {'shown at least':>15}")
    for name, bug in BUGS.items():
        with tempfile.TemporaryDirectory() as folder, bug():
            ledger = Ledger.create(Path(folder) / "audit.ledger")
            numbers = iter(range(1, sys.maxsize))
            ledger.add_dataset("audited", total=Budget(pcost=1e9))

            def release(
                table: pd.DataFrame, book: Ledger = ledger, attempts: Iterator[int] = numbers
            ) -> Measurement:
                return measure(
                    small_plan, table, dataset="audited", ledger=book, attempt=next(attempts)
                )

            result = audit(small_plan, release, runs=args.runs)
        # The bound must exceed the stated rho if a bug is planted, and only then.
        wrong += result.exceeded == (bug is nullcontext)
        word = "more than stated" if result.exceeded else ""
        print(f"{name:30} {result.stated:>10.4f} {result.shown:>15.4f}  {word}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
