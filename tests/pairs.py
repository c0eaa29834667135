"""Pairwise designs: few rows that contain every pair of values."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any


def pairwise(*factors: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Return rows with one value per factor; every pair of values of two factors is in some row.

    The rows start with all pairs of the two longest factors. Each further factor takes, in every
    row, the value with which most pairs are still missing; then rows are added for the pairs that
    no row contains. The same factors give the same rows in the same order.
    """
    # sorting is stable, so factors of equal length stay in order
    order = sorted(range(len(factors)), key=lambda f: -len(factors[f]))
    first, more = order[:2], order[2:]
    numbers = itertools.product(*(range(len(factors[f])) for f in first))
    rows = [dict(zip(first, chosen, strict=True)) for chosen in numbers]
    for done, f in enumerate(more, 2):
        before, values = order[:done], range(len(factors[f]))
        unmet = {(g, u, v) for g in before for u in range(len(factors[g])) for v in values}
        for row in rows:
            row[f] = max(
                values, key=lambda v, row=row: sum((g, row[g], v) in unmet for g in before)
            )
            unmet -= {(g, row[g], row[f]) for g in before}
        for g, u, v in sorted(unmet):
            rows.append({**dict.fromkeys(before, 0), g: u, f: v})
    return [tuple(values[row[f]] for f, values in enumerate(factors)) for row in rows]
