"""Releases on real data sizes, from the click to the file: seconds and peak memory.

    python -m benchmarks.release                          CPS, 50,000 simulated records
    python -m benchmarks.release --adult adult.csv        also the real Adult table, coded 0 .. size - 1

Each row runs in a process of its own, as a person's release does: plan, ledger, count, spend, draw, save, write.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from pathlib import Path

import demo_data
from benchmarks import options, own_process, peak_megabytes, table
from demo_data.make_synthetic import synthetic
from engine import Attribute, Budget, Schema, Workload, measure, plan
from engine.publish import write_answers
from engine.release import Ledger


def _release(schema_path: Path, data: Path) -> tuple[int, float, list[float], float, float]:
    schema = Schema.from_json(schema_path.read_bytes())
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger.create(Path(folder) / "bench.ledger")
        ledger.add_dataset("bench", total=Budget(pcost=1.0))
        marks = [time.perf_counter()]
        made = plan(Workload.all_ways(schema, ways=(1, 2, 3)), Budget(pcost=1.0))
        rmse = made.rmse
        marks.append(time.perf_counter())
        measured = measure(made, data, dataset="bench", ledger=ledger)
        marks.append(time.perf_counter())
        file = write_answers(measured, Path(folder) / "answers.parquet")
        marks.append(time.perf_counter())
        return made.workload.queries, rmse, marks, file.stat().st_size / 1e6, peak_megabytes()


def main() -> None:
    """Print one row a release."""
    parser = options(__file__, __doc__)
    parser.add_argument("--adult", type=Path, help="the Adult table as CSV, coded 0 .. size - 1")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, table(__file__, write=given.write) as show:
        show(
            f"{'release':22} {'answers':>12} {'rmse':>8} {'plan s':>7} {'measure s':>9} {'write s':>8} {'total s':>8} "
            f"{'file MB':>8} {'peak MB':>8}"
        )
        cps = Path(folder) / "cps.csv"
        schema = Schema.from_json(demo_data.schemas()["cps"].read_bytes())
        synthetic(schema, 50_000, seed=1).to_csv(cps, index=False)
        jobs = [("CPS <=3-way, 50,000", demo_data.schemas()["cps"], cps)]
        if given.adult is not None:
            named = Schema.from_json(demo_data.schemas()["adult"].read_bytes())
            coded = Path(folder) / "adult.json"
            codes = Schema([Attribute.of_size(a.name, a.size, kind=a.kind) for a in named.attributes])
            coded.write_text(codes.to_json(), encoding="utf-8")
            jobs.append(("Adult <=3-way, 48,842", coded, given.adult))
        for name, schema_path, data in jobs:
            queries, rmse, marks, size, peak = own_process(_release, schema_path, data)
            spans = [b - a for a, b in itertools.pairwise(marks)]
            show(
                f"{name:22} {queries:>12,} {rmse:>8.4f} {spans[0]:>7.2f} {spans[1]:>9.2f} {spans[2]:>8.2f} "
                f"{sum(spans):>8.2f} {size:>8.1f} {peak:>8.0f}"
            )


if __name__ == "__main__":
    main()
