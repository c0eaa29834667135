"""Counting in parts: Spark cluster, counted files, extrapolation to ten billion rows.

    python -m benchmarks.cluster              2e6 records of 10 attributes in 8 files, in about two minutes

Spark runs on this machine as a cluster of a master and two worker processes with one core each.
Figures for ten billion rows are extrapolated from measurements. pyspark and Java must be installed.
"""

from __future__ import annotations

import itertools
import os
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks import options, run_in_new_process, table
from benchmarks.counting import (
    QUICK,
    SHARDS,
    check_equal,
    count_here,
    count_in_shards,
    digest,
    schema_of,
    write_records,
)
from engine.records import count_marginals

WORKERS, WORKER_MEGABYTES = 2, 1024
SETTINGS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.executor.memory": "900m",  # of the 1024 MB of a worker
    "spark.sql.shuffle.partitions": str(2 * WORKERS),
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
MANY_ROWS, SHARD_ROWS, CORES, MACHINES = 10**10, 10**8, 100, 50


def count_on_spark(folder: Path, columns: int) -> tuple[dict[str, float], str]:
    """Count all two-way tables of the parquet files on Spark; return figures and digest."""
    import pyspark
    from pyspark.sql import SparkSession

    from engine.records import database as grouped

    # Spark starts the workers from this folder
    os.environ["SPARK_HOME"] = str(Path(pyspark.__file__).parent)
    moved, ask = [0], grouped.spark_answer

    def record_transfer(expression: Any) -> Any:
        table = ask(expression)
        moved[0] += table.nbytes
        return table

    schema = schema_of(columns)
    builder = SparkSession.builder.master(f"local-cluster[{WORKERS},1,{WORKER_MEGABYTES}]")
    with tempfile.TemporaryDirectory() as scratch:
        for name, value in (SETTINGS | {"spark.local.dir": scratch}).items():
            builder = builder.config(name, value)
        session = builder.getOrCreate()
        session.sparkContext.setLogLevel("OFF")
        try:
            frame, seconds = session.read.parquet(str(folder / "*.parquet")), []
            with mock.patch.object(grouped, "spark_answer", record_transfer):
                for _ in range(2):  # the first time, workers load their programs
                    moved[0], start = 0, time.perf_counter()
                    counts = count_marginals(frame, schema, itertools.combinations(schema, 2))
                    seconds.append(time.perf_counter() - start)
            # the driver is in the list, too
            workers = session.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1
        finally:
            session.stop()
    figures = {
        "workers": workers,
        "the first time, s": seconds[0],
        "again, s": seconds[1],
        "what travels from the workers, MB": moved[0] / 1e6,
    }
    return figures, digest(counts.values())


def extrapolate(rows: int, spark: dict[str, float], parts: dict[str, float]) -> dict[str, float]:
    """Extrapolate to ten billion rows: time by rows, bytes and merging by shards.

    The times include start-up, which does not grow with the rows, so they are upper estimates.
    """
    shards = MANY_ROWS // SHARD_ROWS
    there, files = rows / spark["again, s"] / WORKERS, rows / parts["all parts, s"]
    return {
        "Spark: rows a second a core": there,
        f"Spark: {CORES} cores, s": MANY_ROWS / there / CORES,
        "files: rows a second of one machine like this": files,
        f"files: {MACHINES} machines like this, s": MANY_ROWS / files / MACHINES,
        f"files: counts of {shards} shards, MB": (
            shards * parts["their counts, which travel, MB"] / SHARDS
        ),
        f"files: merging {shards} shards, s": shards * parts["merging, s"] / SHARDS,
        "the rows themselves, GB a column of 64 bits": 8 * MANY_ROWS / 1e9,
    }


def main() -> None:
    """Print one row per figure."""
    parser = options(__file__, __doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--columns", type=int, default=10)
    parser.add_argument(
        "--quick", action="store_true", help="20,000 records, to see that everything works"
    )
    args = parser.parse_args()
    rows, columns = QUICK if args.quick else args.rows, args.columns
    with table(__file__, write=args.write) as show, tempfile.TemporaryDirectory() as name:
        parts, all_records = Path(name) / "parts", Path(name) / "records.parquet"
        parts.mkdir()
        show(f"{os.cpu_count()} cores, load of the machine {os.getloadavg()[0]:.1f}", "")
        write_records(all_records, rows, columns)
        seconds, _, true = run_in_new_process(count_here, all_records, columns, 2)
        by_files, counts_digest = count_in_shards(parts, all_records, columns)
        check_equal("the sum of the parts", counts_digest, true)
        by_spark, counts_digest = run_in_new_process(count_on_spark, parts, columns)
        check_equal("Spark", counts_digest, true)
        if by_spark["workers"] != WORKERS:
            raise RuntimeError(
                f"Spark has {by_spark['workers']} workers and not {WORKERS}; start the command"
                " again"
            )
        show(
            f"{rows:,} x {columns}, {columns * (columns - 1) // 2} two-way tables,"
            f" {rows * columns * 8 / 1e6:,.0f} MB"
        )
        sections = {
            "one file, one process": {"seconds": seconds},
            f"Spark, {SHARDS} files": by_spark,
            f"count and counts merge, {SHARDS} files": by_files,
            f"on paper, {MANY_ROWS:,} rows": extrapolate(rows, by_spark, by_files),
        }
        for title, figures in sections.items():
            show("", title)
            for what, figure in figures.items():
                show(f"  {what:<58}{figure:>14,.5g}")


if __name__ == "__main__":
    main()
