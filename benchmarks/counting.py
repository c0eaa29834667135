"""Counting of records, compared with other programs: seconds, memory and transfer.

    python -m benchmarks.counting            1e6 records of 40 attributes, in about two minutes
    python -m benchmarks.counting --full     also 1e7 records of 20 attributes, and 1e8 of 10

Records are drawn from a seed; all attributes have 20 cells, all columns are 64-bit integers. All
programs read the same file and must return the same integers. Each figure is measured in a new
process.
"""

from __future__ import annotations

import hashlib
import importlib.util
import itertools
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from benchmarks import options, peak_megabytes, run_in_new_process, table
from engine.cli.main import main as command_line
from engine.mechanisms import plan
from engine.privacy import Budget
from engine.records import Counts, count_marginals
from engine.workload import Attribute, Schema, Workload

CELLS = 20
BLOCK = 1_000_000
SHARDS = 8
QUICK = 20_000
Pair = tuple[str, str]
CountResult = tuple[float, float, str]  # seconds, peak megabytes, digest of the tables


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One measured figure with its lower or upper target."""

    name: str
    measured: float
    at_most: float | None = None
    at_least: float | None = None

    def __str__(self) -> str:
        limit, met = "", ""
        if self.at_most is not None:
            limit, met = f"<= {self.at_most:g}", "yes" if self.measured <= self.at_most else "no"
        elif self.at_least is not None:
            limit, met = f">= {self.at_least:g}", "yes" if self.measured >= self.at_least else "no"
        return f"{self.name:<64}{limit:>9}{self.measured:>11.4g} {met:>4}"


def schema_of(columns: int) -> Schema:
    """The public schema of the records."""
    return Schema([Attribute.of_size(f"x{i}", CELLS) for i in range(columns)])


def write_records(path: Path, rows: int, columns: int, *, seed: int = 0) -> Path:
    """A file of records, parquet or CSV by its name, written block by block."""
    names = list(schema_of(columns))
    shape = pa.schema([(name, pa.int64()) for name in names])
    kind = pa.parquet.ParquetWriter if path.suffix == ".parquet" else pa.csv.CSVWriter
    with kind(path, shape) as file:
        for start in range(0, rows, BLOCK):
            rng = np.random.default_rng([seed, start])
            drawn = rng.integers(0, CELLS, (columns, min(BLOCK, rows - start)))
            file.write_table(pa.table(dict(zip(names, drawn, strict=True))))
    return path


def digest(tables: Iterable[np.ndarray]) -> str:
    """Hash of the integers of tables in order."""
    sha = hashlib.sha256()
    for one in tables:
        sha.update(np.ascontiguousarray(one, "<i8").tobytes())
    return sha.hexdigest()


def count_here(path: Path, columns: int, ways: int) -> CountResult:
    """Count all k-way tables with this engine."""
    schema = schema_of(columns)
    start = time.perf_counter()
    counts = count_marginals(path, schema, itertools.combinations(schema, ways))
    seconds = time.perf_counter() - start
    return seconds, peak_megabytes(), digest(counts.values())


def count_with_duckdb(path: Path, pairs: list[Pair]) -> Iterator[Any]:
    """Yield each pair as a grouped query on a table in memory."""
    import duckdb

    with duckdb.connect() as held:
        held.execute(f"CREATE TABLE records AS SELECT * FROM read_parquet('{path}')")
        for a, b in pairs:
            yield tuple(
                held.execute(f"SELECT {a}, {b}, count(*) AS n FROM records GROUP BY ALL")
                .fetchnumpy()
                .values()
            )


def count_with_pandas(path: Path, pairs: list[Pair]) -> Iterator[Any]:
    """Each pair grouped on a frame in memory."""
    import pandas as pd

    frame = pd.read_parquet(path)
    for a, b in pairs:
        counts = frame.groupby([a, b], sort=False).size()
        yield *(counts.index.get_level_values(i).to_numpy() for i in range(2)), counts.to_numpy()


def count_with_polars(path: Path, pairs: list[Pair]) -> Iterator[Any]:
    """Each pair grouped on a frame in memory."""
    import polars as pl

    frame = pl.read_parquet(path)
    for a, b in pairs:
        yield tuple(column.to_numpy() for column in frame.group_by(a, b).len().get_columns())


RIVALS: dict[str, Callable[[Path, list[Pair]], Iterator[Any]]] = {
    "duckdb": count_with_duckdb,
    "pandas": count_with_pandas,
    "polars": count_with_polars,
}


def count_with_rival(name: str, path: Path, columns: int) -> CountResult:
    """Count all two-way tables with another program, without the time of conversion."""
    pairs = list(itertools.combinations(schema_of(columns), 2))
    start = time.perf_counter()
    answers = list(RIVALS[name](path, pairs))
    seconds = time.perf_counter() - start
    tables = np.zeros((len(pairs), CELLS, CELLS), np.int64)
    for one, (first, second, counts) in zip(tables, answers, strict=True):
        one[first, second] = counts
    return seconds, peak_megabytes(), digest(tables)


def count_in_database(path: Path, columns: int) -> tuple[float, int, str]:
    """Count all two-way tables in DuckDB through Ibis: seconds, transferred bytes, digest."""
    import ibis
    from ibis.expr.types import Table

    moved, fetch = [0], Table.to_pyarrow

    def record_transfer(self: Any, **options: Any) -> Any:
        arrow_table = fetch(self, **options)
        moved[0] += arrow_table.nbytes
        return arrow_table

    schema, backend = schema_of(columns), ibis.duckdb.connect()
    records = backend.create_table("records", backend.read_parquet(path))
    with (
        mock.patch.object(Table, "to_pyarrow", record_transfer),
        mock.patch.object(Table, "to_pyarrow_batches", None),
    ):
        start = time.perf_counter()
        counts = count_marginals(records, schema, itertools.combinations(schema, 2))
        seconds = time.perf_counter() - start
    return seconds, moved[0], digest(counts.values())


def command_seconds(*words: object) -> float:
    """Run one command and return its seconds."""
    start = time.perf_counter()
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        if command_line([str(word) for word in words]):
            raise RuntimeError(f"the command {words[0]} failed")
    return time.perf_counter() - start


def count_in_shards(folder: Path, path: Path, columns: int) -> tuple[dict[str, float], str]:
    """Count shards with one command each and merge them: seconds and bytes; digest."""
    records, schema = pa.parquet.read_table(path), schema_of(columns)
    plan_file, together = folder / "plan.json", folder / "all.counts"
    plan_file.write_text(
        plan(Workload.all_ways(schema, (2,)), Budget(pcost=1.0)).to_json(), encoding="utf-8"
    )
    parts, seconds = [folder / f"{i}.counts" for i in range(SHARDS)], []
    cuts = [records.num_rows * i // SHARDS for i in range(SHARDS + 1)]
    for (low, high), part in zip(itertools.pairwise(cuts), parts, strict=True):
        shard = part.with_suffix(".parquet")
        pa.parquet.write_table(records.slice(low, high - low), shard)
        seconds.append(
            run_in_new_process(
                command_seconds, "count", "--plan", plan_file, "--data", shard, "--out", part
            )
        )
    merging = run_in_new_process(command_seconds, "counts", "merge", *parts, "--out", together)
    merged = Counts.load(together)
    return {
        "the slowest part, s": max(seconds),
        "all parts, s": sum(seconds),
        "their counts, which travel, MB": sum(part.stat().st_size for part in parts) / 1e6,
        "merging, s": merging,
    }, digest(merged[pair] for pair in itertools.combinations(schema, 2))


def check_equal(what: str, one: str, other: str) -> None:
    """Raise RuntimeError unless two programs returned the same integers."""
    if one != other:
        raise RuntimeError(
            f"{what} returned other tables than the engine, so times are not comparable"
        )


def pairs_and_triples(folder: Path, rows: int, columns: int) -> Iterator[Figure]:
    """Time all two-way tables with all programs, and all three-way tables with the engine."""
    path = write_records(folder / "records.parquet", rows, columns)
    pairs = columns * (columns - 1) // 2
    data = f"{rows:.0e} x {columns}".replace("e+0", "e")
    ours, megabytes, true = run_in_new_process(count_here, path, columns, 2)
    yield Figure(name=f"{data}: {pairs:,} two-way tables, s", measured=ours)
    yield Figure(name="  peak MB", measured=megabytes)
    for name in RIVALS:
        if importlib.util.find_spec(name) is None:
            continue
        seconds, megabytes, tables_digest = run_in_new_process(
            count_with_rival, name, path, columns
        )
        check_equal(name, tables_digest, true)
        yield Figure(name=f"  {name}, s over the engine's", measured=seconds / ours, at_least=1)
        yield Figure(name=f"  {name}, peak MB", measured=megabytes)
    seconds, moved, tables_digest = run_in_new_process(count_in_database, path, columns)
    check_equal("DuckDB through Ibis", tables_digest, true)
    yield Figure(name="  pushed down to DuckDB through Ibis, s", measured=seconds)
    yield Figure(
        name="  % of the bytes of the rows that travel",
        measured=100 * moved / (8 * rows * columns),
        at_most=1 if rows >= BLOCK else None,  # of fewer rows it is a larger part
    )
    figures, tables_digest = count_in_shards(folder, path, columns)
    check_equal("the sum of the parts", tables_digest, true)
    for name, figure in figures.items():
        yield Figure(name=f"  in {SHARDS} parts: {name}", measured=figure)
    seconds, megabytes, _ = run_in_new_process(count_here, path, columns, 3)
    triples = pairs * (columns - 2) // 3
    yield Figure(name=f"{data}: {triples:,} three-way tables, s", measured=seconds, at_most=60)
    yield Figure(name="  peak MB", measured=megabytes, at_most=1500)


def larger_files(folder: Path) -> Iterator[Figure]:
    """Time files that are larger than the memory limit."""
    for ending, limit in ((".parquet", 10), (".csv", 20)):
        path = write_records(folder / f"larger{ending}", 10 * BLOCK, 20)
        seconds, megabytes, _ = run_in_new_process(count_here, path, 20, 2)
        path.unlink()
        yield Figure(
            name=f"1e7 x 20 {ending[1:]}: 190 two-way tables, s", measured=seconds, at_most=limit
        )
        yield Figure(name="  peak MB", measured=megabytes)
    path = write_records(folder / "largest.parquet", 100 * BLOCK, 10)
    seconds, megabytes, _ = run_in_new_process(count_here, path, 10, 2)
    yield Figure(name="1e8 x 10 parquet: 45 two-way tables, s", measured=seconds)
    yield Figure(name="  peak MB", measured=megabytes, at_most=600)


def main() -> None:
    """Print one row per figure."""
    parser = options(__file__, __doc__)
    parser.add_argument("--full", action="store_true", help="also the two larger data sets")
    parser.add_argument("--rows", type=int, default=BLOCK, help="of the first data set")
    parser.add_argument(
        "--quick", action="store_true", help="20,000 records in all, to see that everything works"
    )
    args = parser.parse_args()
    if args.quick:
        args.rows, args.full = QUICK, False
    with table(__file__, write=args.write) as show, tempfile.TemporaryDirectory() as name:
        show(f"{os.cpu_count()} cores, load of the machine {os.getloadavg()[0]:.1f}", "")
        show(f"{'figure':<64}{'asked':>9}{'measured':>11}  met")
        for figure in pairs_and_triples(Path(name), args.rows, 40):
            show(str(figure))
        for rival in RIVALS:
            if importlib.util.find_spec(rival) is None:
                show(f"{rival} is not installed")
        for figure in larger_files(Path(name)) if args.full else ():
            show(str(figure))


if __name__ == "__main__":
    main()
