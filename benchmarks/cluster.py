"""Records in parts on many machines: a cluster of Spark beside counted files, and what ten billion rows would take.

    python -m benchmarks.cluster              2e6 records of 10 attributes in 8 files, in about two minutes

Spark runs on this machine as a cluster: a master and two workers with one core each, in processes of their own.  What
is said of ten billion rows is computed from what was measured, and not measured.  pyspark and Java must be there.
"""

from __future__ import annotations

import itertools
import os
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks import options, own_process, table
from benchmarks.counting import QUICK, SHARDS, agree, digest, here, in_shards, schema_of, write_records
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


def on_spark(folder: Path, columns: int) -> tuple[dict[str, float], str]:
    """All tables of two attributes of the parquet files in a folder, counted by a cluster of Spark: figures; digest."""
    import pyspark
    from pyspark.sql import SparkSession

    from engine.records import database as grouped

    os.environ["SPARK_HOME"] = str(Path(pyspark.__file__).parent)  # the workers are started from there
    moved, ask = [0], grouped.spark_answer

    def noted(expression: Any) -> Any:
        found = ask(expression)
        moved[0] += found.nbytes
        return found

    schema = schema_of(columns)
    builder = SparkSession.builder.master(f"local-cluster[{WORKERS},1,{WORKER_MEGABYTES}]")
    with tempfile.TemporaryDirectory() as scratch:
        for name, value in (SETTINGS | {"spark.local.dir": scratch}).items():
            builder = builder.config(name, value)
        session = builder.getOrCreate()
        session.sparkContext.setLogLevel("OFF")
        try:
            frame, seconds = session.read.parquet(str(folder / "*.parquet")), []
            with mock.patch.object(grouped, "spark_answer", noted):
                for _ in range(2):  # the first time, workers load their programs
                    moved[0], begun = 0, time.perf_counter()
                    found = count_marginals(frame, schema, itertools.combinations(schema, 2))
                    seconds.append(time.perf_counter() - begun)
            workers = session.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1  # without the driver
        finally:
            session.stop()
    figures = {
        "workers": workers,
        "the first time, s": seconds[0],
        "again, s": seconds[1],
        "what travels from the workers, MB": moved[0] / 1e6,
    }
    return figures, digest(found.values())


def on_paper(rows: int, spark: dict[str, float], parts: dict[str, float]) -> dict[str, float]:
    """What ten billion rows would take, from the figures of so many: time by rows, bytes and merging by shards.

    Times hold what it takes to begin, too, which more rows would share: they are rather too long than too short.
    """
    shards = MANY_ROWS // SHARD_ROWS
    there, files = rows / spark["again, s"] / WORKERS, rows / parts["all parts, s"]
    return {
        "Spark: rows a second a core": there,
        f"Spark: {CORES} cores, s": MANY_ROWS / there / CORES,
        "files: rows a second of one machine like this": files,
        f"files: {MACHINES} machines like this, s": MANY_ROWS / files / MACHINES,
        f"files: counts of {shards} shards, MB": shards * parts["their counts, which travel, MB"] / SHARDS,
        f"files: merging {shards} shards, s": shards * parts["merging, s"] / SHARDS,
        "the rows themselves, GB a column of 64 bits": 8 * MANY_ROWS / 1e9,
    }


def main() -> None:
    """Print one row a figure."""
    parser = options(__file__, __doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--columns", type=int, default=10)
    parser.add_argument("--quick", action="store_true", help="20,000 records, to see that everything works")
    given = parser.parse_args()
    rows, columns = QUICK if given.quick else given.rows, given.columns
    with table(__file__, write=given.write) as show, tempfile.TemporaryDirectory() as name:
        parts, whole = Path(name) / "parts", Path(name) / "records.parquet"
        parts.mkdir()
        show(f"{os.cpu_count()} cores, load of the machine {os.getloadavg()[0]:.1f}", "")
        write_records(whole, rows, columns)
        seconds, _, true = own_process(here, whole, columns, 2)
        by_files, found = in_shards(parts, whole, columns)
        agree("the sum of the parts", found, true)
        by_spark, found = own_process(on_spark, parts, columns)
        agree("Spark", found, true)
        if by_spark["workers"] != WORKERS:
            raise RuntimeError(f"Spark has {by_spark['workers']} workers and not {WORKERS}; start the command again")
        show(f"{rows:,} x {columns}, {columns * (columns - 1) // 2} two-way tables, {rows * columns * 8 / 1e6:,.0f} MB")
        sections = {
            "one file, one process": {"seconds": seconds},
            f"Spark, {SHARDS} files": by_spark,
            f"count and counts merge, {SHARDS} files": by_files,
            f"on paper, {MANY_ROWS:,} rows": on_paper(rows, by_spark, by_files),
        }
        for title, figures in sections.items():
            show("", title)
            for what, figure in figures.items():
                show(f"  {what:<58}{figure:>14,.5g}")


if __name__ == "__main__":
    main()
