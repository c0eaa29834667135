"""A Spark of its own for a test run: one local session in one Java process, both gone when it ends."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# no compiler that small tables never pay for, and no second look at the classes of others
JAVA = (
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-XX:+UnlockDiagnosticVMOptions",
    "-XX:-BytecodeVerificationRemote",
)
# one core, nothing to look at, and nothing that outlives the tests
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
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    assert shutil.which("java"), "java is not there; install it, on Debian with apt-get install default-jre-headless"
    folder = Path(tempfile.mkdtemp(prefix="spark-"))
    builder = SparkSession.builder.master(master)
    places = {"spark.local.dir": str(folder), "spark.sql.warehouse.dir": str(folder / "tables")}
    for name, value in (SETTINGS | places | settings).items():
        builder = builder.config(name, value)
    found = builder.getOrCreate()
    found.sparkContext.setLogLevel("OFF")
    try:
        yield found
    finally:
        found.stop()
        # the Java process would live as long as this one, and with it a task that nobody waits for any more
        gateway = SparkContext._gateway
        SparkContext._gateway = SparkContext._jvm = None
        gateway.shutdown()
        gateway.proc.kill()
        gateway.proc.wait()
        shutil.rmtree(folder, ignore_errors=True)
