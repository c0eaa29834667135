"""Kill a large release at many steps and compare it with a copy that is killed only once."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.counting import write_records
from benchmarks.tuned import joint
from engine.mechanisms import plan
from engine.privacy import Budget
from tests.crashes.campaign import campaign


def main(arguments: list[str] | None = None) -> int:
    """Print the differences; return 1 if there are any."""
    parser = argparse.ArgumentParser(prog="python -m tests.crashes", description=__doc__)
    parser.add_argument(
        "--attributes", type=int, default=40, help="20 values each; all pairs are measured"
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--kills", type=int, default=10)
    args = parser.parse_args(arguments)
    pairs_plan = plan(joint("affine", 20, args.attributes), Budget(pcost=1.0))
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        data = write_records(Path(folder) / "records.parquet", args.rows, args.attributes)
        differences = list(campaign(pairs_plan, data, Path(folder), kills=args.kills))
    summary = f"{len(pairs_plan.blocks)} blocks from {args.rows:,} records, {args.kills} kills"
    print(
        *differences,
        f"{summary}, {time.perf_counter() - start:.0f} s: {len(differences)} differences",
        sep="\n",
    )
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
