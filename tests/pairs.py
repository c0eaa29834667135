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
    # A row maps the index of a factor to the index of its value.
    numbers = itertools.product(*(range(len(factors[f])) for f in first))
    rows = [dict(zip(first, chosen, strict=True)) for chosen in numbers]
    for done, new in enumerate(more, 2):
        earlier = order[:done]
        values = range(len(factors[new]))
        # pairs that no row contains: (earlier factor, its value, value of the new factor)
        missing = {(f, u, v) for f in earlier for u in range(len(factors[f])) for v in values}
        for row in rows:
            row[new] = max(
                values, key=lambda v, row=row: sum((f, row[f], v) in missing for f in earlier)
            )
            missing -= {(f, row[f], row[new]) for f in earlier}
        for f, u, v in sorted(missing):
            rows.append({**dict.fromkeys(earlier, 0), f: u, new: v})
    return [tuple(values[row[f]] for f, values in enumerate(factors)) for row in rows]
