"""The unit of privacy: what a budget promises to a person with many rows, and what a cap on rows costs.

The number of visits per patient is invented.  A cap of c rows a person keeps c of the rows of those who have more: the
total loses the others, which no noise brings back, and the noise must hide c rows instead of all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import pandas as pd

from engine.checks import whole
from engine.errors import PlanError
from engine.privacy import Budget

VISITS: Mapping[int, int] = {1: 620, 2: 240, 3: 90, 5: 35, 8: 12, 20: 3}  # rows of one person -> persons
CAPS = tuple(range(1, max(VISITS) + 1))
CAP_COLUMNS = ["cap", "rows lost", "standard error", "error"]


def rows_in_all() -> int:
    """Number of rows of all persons together."""
    return sum(rows * persons for rows, persons in VISITS.items())


def of_a_person(budget: Budget, rows: int) -> Budget:
    """Return what a budget that is meant for one row promises to a person with several, when noise stays as it is.

    >>> of_a_person(Budget(pcost=1.0), 3).pcost
    9.0
    """
    rows = whole("rows", rows, 1, max(VISITS), error=PlanError)
    return Budget(pcost=budget.row_pcost * rows**2)


def caps_table(budget: Budget) -> pd.DataFrame:
    """Return one row a cap: rows lost, standard error of the total, and the root of both squared, all in counts.

    Columns: cap, rows lost, standard error, error.  Every cap costs the budget, as a promise to a whole person.

    >>> caps_table(Budget(pcost=1.0)).iloc[0].tolist()[:3]
    [1.0, 701.0, 1.0]
    """
    rows = []
    for cap in CAPS:
        lost = sum((many - cap) * persons for many, persons in VISITS.items() if many > cap)
        noise = cap / math.sqrt(budget.row_pcost)
        rows.append((cap, lost, noise, math.hypot(lost, noise)))
    return pd.DataFrame(rows, columns=CAP_COLUMNS)


def best_cap(budget: Budget) -> int:
    """Return the cap with the smallest error of the total."""
    table = caps_table(budget)
    return CAPS[int(table["error"].argmin())]
