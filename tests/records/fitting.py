"""Records that fit their schema, as data of all supported kinds."""

import itertools
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet

from engine.records import count_marginals
from engine.workload import Attribute, Schema
from tests.records.silent import CANARY

SCHEMA = Schema(
    [
        Attribute.categorical("sex", ["F", "M"], missing="unknown"),
        Attribute.numeric("age", [0, 20, 65, 120]),
        Attribute.of_size("code", 5),
        Attribute.of_size("one", 1, "categorical"),
        Attribute.categorical("zip", ["01", "1"], other="elsewhere"),
    ]
)
ALL_SETS = [sets for k in range(6) for sets in itertools.combinations(SCHEMA.names, k)]
ALL_SETS += [("age", "sex"), ("zip", "code", "sex")]


def sample(rows: int, seed: int = 0) -> pd.DataFrame:
    """Return records in which each row has a canary text."""
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "note": [CANARY] * rows,
            "sex": rng.choice(["F", "M", None], rows).astype(object),
            "age": rng.uniform(0, 120, rows).round(1),
            "code": rng.integers(0, 5, rows),
            "one": np.zeros(rows, int),
            "zip": rng.choice(["01", "1", "99", "x,\ny"], rows),
        }
    )


class Lazy:
    """Table with the methods of a query engine: `select` and `to_pyarrow_batches`."""

    def __init__(self, table: pa.Table) -> None:
        self.table, self.columns = table, tuple(table.column_names)

    def select(self, names: list[str]) -> "Lazy":
        return Lazy(self.table.select(names))

    def to_pyarrow_batches(self, *, chunk_size: int = 10**6) -> pa.RecordBatchReader:
        return self.table.to_reader(max_chunksize=chunk_size)


class Capsule:
    """Table that offers only the Arrow stream interface, as data frames of other libraries do."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.table.__arrow_c_stream__(requested_schema)


def csv_file(frame: pd.DataFrame, path: Path) -> Path:
    frame.to_csv(path, index=False)
    return path


def parquet_file(frame: pd.DataFrame, path: Path) -> Path:
    pa.parquet.write_table(pa.Table.from_pandas(frame), path, row_group_size=60)
    return path


def partitioned(frame: pd.DataFrame, path: Path) -> pa.dataset.Dataset:
    pa.dataset.write_dataset(pa.Table.from_pandas(frame), path, format="parquet", partitioning=["code"],
                             partitioning_flavor="hive")  # fmt: skip
    return pa.dataset.dataset(path, partitioning="hive")


KINDS = {
    "DataFrame": lambda frame, path: frame,
    "DataFrame of extension types": lambda frame, path: frame.convert_dtypes(),
    "DataFrame of Arrow types": lambda frame, path: frame.convert_dtypes(dtype_backend="pyarrow"),
    "DataFrame of objects": lambda frame, path: frame.astype(object),
    "DataFrame of categories": lambda frame, path: frame.astype("category"),
    "DataFrame with odd index": lambda frame, path: frame.set_index(pd.Index([7] * len(frame))),
    "csv": lambda frame, path: csv_file(frame, path / "x.csv"),
    "csv as text": lambda frame, path: str(csv_file(frame, path / "x.CSV")),
    "csv.gz": lambda frame, path: csv_file(frame, path / "x.csv.gz"),
    "parquet": lambda frame, path: parquet_file(frame, path / "x.parquet"),
    "parquet of categories": lambda frame, path: parquet_file(
        frame.astype("category"), path / "x.parquet"
    ),
    "table": lambda frame, path: pa.Table.from_pandas(frame),
    "batch": lambda frame, path: pa.RecordBatch.from_pandas(frame),
    "reader": lambda frame, path: pa.Table.from_pandas(frame).to_reader(max_chunksize=33),
    "dataset in memory": lambda frame, path: pa.dataset.dataset(pa.Table.from_pandas(frame)),
    "dataset of files": lambda frame, path: partitioned(frame, path / "set"),
    "lazy": lambda frame, path: Lazy(pa.Table.from_pandas(frame)),
    "capsule": lambda frame, path: Capsule(pa.Table.from_pandas(frame)),
    "counts": lambda frame, path: count_marginals(frame, SCHEMA, [SCHEMA.names[::-1]]),
}
