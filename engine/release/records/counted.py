"""Tables that are counted already, (sex, age, n): how their column of counts is read, and how they are recognised.

Most files have identifiers and other numbers that the schema does not know, so a column alone tells nothing.  One with
a name that programs give to counts is asked about whatever it holds, because names are public.  Values are looked at
only where an error may depend on records: a table is taken for counted when one column holds whole numbers and no two
rows are alike in the attributes, although so many rows could not be without a repeat if they were records.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from engine.errors import DataError
from engine.release.records.encoding import Encoder
from engine.release.records.sources import column_names, read_batches
from engine.texts import shown
from engine.workload import Attribute, Schema

LARGEST = 2**40  # records that one row may stand for, so that sums of millions of rows stay exact
NAMES = ("n", "count", "counts", "freq", "frequency")  # of dplyr and SQL, pandas, R's tables
SURE = math.log(0.01)  # the chance that records have no repeat, from which on they are none


class _Count(Attribute):
    """Whole numbers from 0, more than any domain may have cells; no table is made of them."""

    def __post_init__(self) -> None:
        """Check nothing: the name is one of the records, and the size is ours."""


def count_encoder(column: str) -> Encoder:
    """Return what reads how many records each row stands for; other values are refused."""
    return Encoder(attribute=_Count(name=column, kind="numeric", size=LARGEST))


def check_named(data: Any, schema: Schema, ignore: Collection[str]) -> None:
    """Raise DataError when a column that nobody knows has the name of a column of counts; reads no record."""
    for name in _unknown(data, schema, ignore):
        if name.lower() in NAMES:
            raise DataError(f"the schema does not know the column {shown(name)}, {_ways(name)}")


def check_values(data: Any, schema: Schema, ignore: Collection[str]) -> None:
    """Raise DataError with `counted_text`, if there is any."""
    if text := counted_text(data, schema, ignore):
        raise DataError(text)


def counted_text(data: Any, schema: Schema, ignore: Collection[str]) -> str:
    """Say that data look counted already, when they do; this depends on records, and is for the curator alone."""
    import pandas as pd
    from pyarrow.dataset import Dataset

    known, more = [name for name in schema if name in column_names(data)], _unknown(data, schema, ignore)
    again = isinstance(data, (pd.DataFrame, pa.Table, pa.RecordBatch, Dataset, str, Path))
    if not known or not more or not again:  # a stream can be read once only
        return ""
    encoders = [*(Encoder(attribute=schema[name]) for name in known), *(count_encoder(name) for name in more)]
    seen: np.ndarray = np.empty(0, np.uint64)
    for batch in read_batches(data, [*known, *more]):
        codes = [
            e.objects(c) if isinstance(c, list) else e.array(c) for e, c in zip(encoders, batch.columns, strict=True)
        ]
        whole = [i for i in range(len(known), len(codes)) if batch.rows and codes[i].min() >= 0]
        if len(whole) != 1:
            return ""
        more, encoders = [more[whole[0] - len(known)]], [*encoders[: len(known)], encoders[whole[0]]]
        rows = pd.util.hash_pandas_object(pd.DataFrame(dict(enumerate(codes[: len(known)]))), index=False).to_numpy()
        seen = np.concatenate([seen, rows])
        if len(np.unique(seen)) < len(seen):
            return ""
    if _chance(len(seen), schema.cells(known)) >= SURE:
        return ""
    return f"no two rows are alike, and the schema does not know the column {shown(more[0])}, {_ways(more[0])}"


def _unknown(data: Any, schema: Schema, ignore: Collection[str]) -> list[str]:
    """Columns that may hold numbers and that neither the schema nor the caller names."""
    return [name for name, number in column_names(data).items() if number and name not in schema and name not in ignore]


def _chance(rows: int, cells: int) -> float:
    """Logarithm of the chance that no two of some records are alike when all cells are equally likely.

    That is the most it can be; cells of different chances repeat sooner.
    """
    if rows > cells:
        return 0.0  # values outside the domain made them differ
    if cells > 10**12:
        return -rows * (rows - 1) / (2.0 * cells)
    return math.lgamma(cells + 1) - math.lgamma(cells - rows + 1) - rows * math.log(cells)


def _ways(name: str) -> str:
    return (
        "which looks as if each row stood for several records; "
        f"count them with count_column={shown(name)}, or leave the column out with ignore=[{shown(name)}]"
    )
