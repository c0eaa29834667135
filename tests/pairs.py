"""Pairwise designs: few rows in which every pair of choices still meets."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any


def pairwise(*factors: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Rows with one value of every factor, so that any two values of two factors stand together in a row.

    All pairs of the two longest factors make the rows, so none is missing between them; every further factor is laid
    over these rows, each row taking the value that meets most values it has not met, the first where it meets none.
    Rows are added only for pairs that found no place.  The same factors give the same rows in the same order.
    """
    order = sorted(range(len(factors)), key=lambda f: -len(factors[f]))  # stable: equal lengths stay in order
    first, more = order[:2], order[2:]
    numbers = itertools.product(*(range(len(factors[f])) for f in first))
    rows = [dict(zip(first, chosen, strict=True)) for chosen in numbers]
    for done, f in enumerate(more, 2):
        before, values = order[:done], range(len(factors[f]))
        unmet = {(g, u, v) for g in before for u in range(len(factors[g])) for v in values}
        for row in rows:
            row[f] = max(values, key=lambda v, row=row: sum((g, row[g], v) in unmet for g in before))
            unmet -= {(g, row[g], row[f]) for g in before}
        for g, u, v in sorted(unmet):
            rows.append({**dict.fromkeys(before, 0), g: u, f: v})
    return [tuple(values[row[f]] for f, values in enumerate(factors)) for row in rows]
