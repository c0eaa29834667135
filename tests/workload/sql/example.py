"""Schema with binned, categorical and coded attributes, its records, and query rows of groups."""

from __future__ import annotations

import numpy as np
import pandas as pd

from engine.workload import Attribute, Group, Schema

EDGES = [0, 18, 20, 40, 65, 90]
SCHEMA = Schema(
    [
        Attribute.numeric("age", EDGES),
        Attribute.categorical("sex", ["F", "M", 'it\'s or "not"']),
        Attribute.of_size("code", 5),
        Attribute.of_size("hours-per-week", 4),
        Attribute.numeric("income", [-10.5, 0, 10.25, 50], clip=True),
        Attribute.categorical("class", ["é", "b and c"]),
    ]
)


def records(rows: int = 400, seed: int = 5) -> pd.DataFrame:
    """Return random records; some incomes lie outside the bins of the schema."""
    draw = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "age": draw.integers(0, 91, rows),
            "sex": draw.choice(SCHEMA["sex"].labels, rows),
            "code": draw.integers(0, 5, rows),
            "hours-per-week": draw.integers(0, 4, rows),
            "income": draw.choice([-99.0, -10.5, -1.0, 0.0, 3.5, 10.25, 20.0, 50.0, 70.0], rows),
            "class": draw.choice(SCHEMA["class"].labels, rows),
        }
    )


RECORDS = records()


def group_rows(group: Group) -> np.ndarray:
    """Return the query rows of a group on the cells of its attributes, shape (queries, cells)."""
    rows = np.ones((1, 1))
    for part in group.parts:
        rows = np.kron(rows, part.family.rows(part.sizes))
    return rows
