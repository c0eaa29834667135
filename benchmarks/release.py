"""Releases on real data sizes: seconds and peak memory of every step.

    python -m benchmarks.release                          CPS and Adult, simulated; [20]^40, 1,000,000 records
    python -m benchmarks.release --adult adult.csv        the real Adult table, coded 0 .. size - 1, instead
    python -m benchmarks.release --quick                  CPS, and 20,000 records of [20]^10

Each row runs in a new process: plan, ledger, count, spend, draw, save, write. Seconds of the steps
are wall-clock times; "cpu s" are CPU seconds of all steps on all cores.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from pathlib import Path

import demo_data
from benchmarks import options, peak_megabytes, run_in_new_process, table
from benchmarks.counting import write_records
from benchmarks.tuned import joint
from demo_data.make_synthetic import synthetic
from engine.ledger import Ledger
from engine.mechanisms import plan
from engine.privacy import Budget
from engine.publish import write_answers
from engine.release import measure
from engine.workload import Attribute, Schema, Workload

# name, workload, records, limits of seconds and megabytes
Job = tuple[str, Workload, Path, float | None, float | None]


def _release(workload: Workload, data: Path) -> tuple[int, float, list[float], float, float, float]:
    started = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger.create(Path(folder) / "bench.ledger")
        ledger.add_dataset("bench", total=Budget(pcost=1.0))
        marks = [time.perf_counter()]
        result = plan(workload, Budget(pcost=1.0))
        rmse = result.rmse
        marks.append(time.perf_counter())
        measured = measure(result, data, dataset="bench", ledger=ledger)
        marks.append(time.perf_counter())
        file = write_answers(measured, Path(folder) / "answers.parquet")
        marks.append(time.perf_counter())
        used = time.process_time() - started
        return (
            result.workload.queries,
            rmse,
            marks,
            used,
            file.stat().st_size / 1e6,
            peak_megabytes(),
        )


def _jobs(folder: Path, adult: Path | None, quick: bool) -> list[Job]:
    cps = Schema.from_json(demo_data.schemas()["cps"].read_bytes())
    synthetic(cps, 50_000, seed=1).to_csv(folder / "cps.csv", index=False)
    jobs: list[Job] = [
        (
            "CPS <=3-way, 50,000",
            Workload.all_ways(cps, ways=(1, 2, 3)),
            folder / "cps.csv",
            None,
            None,
        )
    ]
    named = Schema.from_json(demo_data.schemas()["adult"].read_bytes())
    codes = Schema([Attribute.of_size(a.name, a.size, kind=a.kind) for a in named.attributes])
    if adult is None and not quick:
        adult = folder / "adult.csv"
        synthetic(codes, 48_842, seed=1).to_csv(adult, index=False)
    if adult is not None:
        jobs.append(
            ("Adult <=3-way, 48,842", Workload.all_ways(codes, ways=(1, 2, 3)), adult, 15.0, 800.0)
        )
    attributes, rows = (10, 20_000) if quick else (40, 1_000_000)
    pairs = joint("affine", 20, attributes, ones=False)
    data = write_records(folder / "records.parquet", rows, attributes)
    jobs.append((f"[20]^{attributes} affine, {rows:,}", pairs, data, None if quick else 60.0, None))
    return jobs


def main() -> None:
    """Print one row per release."""
    parser = options(__file__, __doc__)
    parser.add_argument("--adult", type=Path, help="the Adult table as CSV, coded 0 .. size - 1")
    parser.add_argument("--quick", action="store_true", help="fewer records and attributes")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, table(__file__, write=args.write) as show:
        show(
            f"{'release':26} {'answers':>12} {'rmse':>8} {'plan s':>7} {'measure s':>9}"
            f" {'write s':>8} {'total s':>8} {'asked':>6} {'cpu s':>6} {'file MB':>8}"
            f" {'peak MB':>8} {'asked':>6}"
        )
        for name, workload, data, seconds, megabytes in _jobs(Path(folder), args.adult, args.quick):
            queries, rmse, marks, used, size, peak = run_in_new_process(_release, workload, data)
            spans = [b - a for a, b in itertools.pairwise(marks)]
            show(
                f"{name:26} {queries:>12,} {rmse:>8.4f} {spans[0]:>7.2f} {spans[1]:>9.2f}"
                f" {spans[2]:>8.2f} {sum(spans):>8.2f} {_limit_text(seconds):>6} {used:>6.1f}"
                f" {size:>8.1f} {peak:>8.0f} {_limit_text(megabytes):>6}"
            )


def _limit_text(most: float | None) -> str:
    return "" if most is None else f"{most:g}"


if __name__ == "__main__":
    main()
