"""Temporary Spark session in one local Java process for a test run."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# start fast: no optimizing compiler and no verification of classes
JAVA = (
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-XX:+UnlockDiagnosticVMOptions",
    "-XX:-BytecodeVerificationRemote",
)
# one core and no user interface
SETTINGS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": " ".join(JAVA),
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


@contextmanager
def session(master: str = "local[1]", **settings: str) -> Iterator[Any]:
    """Yield a Spark session whose files are in a temporary folder."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    assert shutil.which("java"), (
        "java is missing; install it, on Debian with apt-get install default-jre-headless"
    )
    folder = Path(tempfile.mkdtemp(prefix="spark-"))
    builder = SparkSession.builder.master(master)
    places = {"spark.local.dir": str(folder), "spark.sql.warehouse.dir": str(folder / "tables")}
    for name, value in (SETTINGS | places | settings).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    try:
        yield spark
    finally:
        spark.stop()
        # otherwise the Java process and its unfinished tasks run as long as this process
        gateway = SparkContext._gateway
        SparkContext._gateway = SparkContext._jvm = None
        gateway.shutdown()
        gateway.proc.kill()
        gateway.proc.wait()
        shutil.rmtree(folder, ignore_errors=True)
