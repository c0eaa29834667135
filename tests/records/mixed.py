"""Records with invalid values of every kind, and their expected counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather

from engine.records import count_marginals
from engine.workload import Attribute, Schema

SCHEMA = Schema(
    [
        Attribute.categorical("sex", ["F", "M", "ü"], missing="M"),
        Attribute.numeric("age", [0, 20, 65, 120]),
        Attribute.of_size("code", 5),
    ]
)
SETS = [("sex", "age"), ("code", "sex"), ()]


def records(rows: int = 250) -> pd.DataFrame:
    """Return records with invalid values of every kind that all formats can store."""
    rng = np.random.default_rng(3)
    return pd.DataFrame(
        {
            "sex": rng.choice(["F", "M", "ü", "f", None], rows).astype(object),
            "age": rng.uniform(-5, 130, rows).round(2),
            "code": rng.integers(-1, 6, rows),
            "note": ["a, b; c"] * rows,
        }
    )


FRAME = records()
EXPECTED = count_marginals(FRAME, SCHEMA, SETS, on_refused="drop")


def check(data: Any, **options: Any) -> None:
    """Check that ``data``, which has the records `FRAME`, gives the counts `EXPECTED`."""
    counts = count_marginals(data, SCHEMA, SETS, on_refused="drop", **options)
    assert all((counts[names] == table).all() for names, table in EXPECTED.items())
    assert counts.refused == EXPECTED.refused
    assert (counts.records, counts.rows_in) == (EXPECTED.records, len(FRAME))


def feather(path: Path, frame: pd.DataFrame = FRAME) -> Path:
    pa.feather.write_feather(pa.Table.from_pandas(frame), path, chunksize=70)
    return path
