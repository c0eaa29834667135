"""Durable spends on one ledger, by its number of rows: disk wait and CPU time.

    python -m benchmarks.ledger [--rows 1000 10000 100000]

A commit waits for the disk five times (the journal twice, the ledger, the folder twice), so the
disk limits the spends per second; the last column is the speed of the disk.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from benchmarks import options, table
from engine.ledger import Ledger
from engine.ledger.sqlite_file import append, read_rows, transaction
from engine.privacy import Budget

SPENDS = 100


def fill_ledger(path: Path, rows: int) -> None:
    """Create a ledger with this number of spends in one transaction."""
    Ledger.create(path).add_dataset("census", total=Budget(pcost=1e6))
    with transaction(path, write=True, wait=5.0) as connection:
        head = read_rows(connection)[-1]
        for number in range(rows):
            digest = f"{number:064x}"
            head = append(
                connection,
                head,
                kind="spend",
                dataset="census",
                key=f"{number}",
                pcost="0.1",
                sha256=digest,
            )


def sync_time(folder: Path) -> float:
    """Seconds that this disk takes to sync a page."""
    with open(folder / "page", "wb") as file:
        start = time.perf_counter()
        for _ in range(20):
            file.write(bytes(4096))
            file.flush()
            os.fsync(file.fileno())
        return (time.perf_counter() - start) / 20


def main() -> None:
    """Print one row per size."""
    parser = options(__file__, __doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1000, 10_000, 100_000])
    args = parser.parse_args()
    with table(__file__, write=args.write) as show:
        show(
            f"{'rows':>8} {'open s':>8} {'spends a second':>16} {'CPU ms a spend':>15}"
            f" {'disk sync ms':>13}"
        )
        for rows in args.rows:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "census.ledger"
                fill_ledger(path, rows)
                start = time.perf_counter()
                ledger = Ledger(path)
                opened = time.perf_counter() - start
                computed = time.process_time()
                start = time.perf_counter()
                for number in range(SPENDS):
                    ledger.spend(dataset="census", key=f"new {number}", pcost=0.1, plan_hash="plan")
                waited, computed = time.perf_counter() - start, time.process_time() - computed
                show(
                    f"{rows:>8,} {opened:>8.2f} {SPENDS / waited:>16.0f}"
                    f" {1000 * computed / SPENDS:>15.2f} {1000 * sync_time(Path(folder)):>13.2f}"
                )


if __name__ == "__main__":
    main()
