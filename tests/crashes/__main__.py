"""Kill a large release at ten places and print what differs from one that went on."""

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
    """Print every difference; return 1 if there is one."""
    parser = argparse.ArgumentParser(prog="python -m tests.crashes", description=__doc__)
    parser.add_argument("--attributes", type=int, default=40, help="of 20 values, with sums on all pairs")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--kills", type=int, default=10)
    given = parser.parse_args(arguments)
    made = plan(joint("affine", 20, given.attributes), Budget(pcost=1.0))
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as place:
        data = write_records(Path(place) / "records.parquet", given.rows, given.attributes)
        found = list(campaign(made, data, Path(place), kills=given.kills))
    what = f"{len(made.blocks)} blocks from {given.rows:,} records, {given.kills} kills"
    print(*found, f"{what}, {time.perf_counter() - begun:.0f} s: {len(found)} differences", sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
