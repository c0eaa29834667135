"""Queries of a group that combine chosen queries of its parts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from engine._arrays import Index


@dataclass(frozen=True, kw_only=True)
class PartQueries:
    """Queries of a group that are combinations of chosen queries of its parts.

    A part is a factor of the query matrix of the group. The group has one query per combination of
    queries of its parts, in row-major order.

    Attributes
    ----------
    chosen : for each part, indices of its chosen queries.
    counts : number of queries of each part.

    >>> queries = PartQueries(chosen=([1], range(3)), counts=(2, 3))
    >>> queries.total, queries.runs(0, 2)
    (3, [(3, 5)])
    """

    chosen: tuple[Sequence[int], ...]
    counts: tuple[int, ...]

    @property
    def total(self) -> int:
        return math.prod(map(len, self.chosen))

    def runs(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Return the indices in the group of the combinations ``start:stop``, as ranges.

        The combinations of chosen queries are numbered in row-major order. Consecutive indices are
        returned as one range (first, exclusive end).
        """
        positions = np.unravel_index(
            np.arange(start, min(stop, self.total)), tuple(map(len, self.chosen))
        )
        indices = tuple(
            np.asarray(chosen, dtype=np.int64)[position]
            for chosen, position in zip(self.chosen, positions, strict=True)
        )
        return consecutive_runs(np.asarray(np.ravel_multi_index(indices, self.counts)))


def consecutive_runs(numbers: Index) -> list[tuple[int, int]]:
    """Divide an array of integers into ranges (first, exclusive end) of consecutive integers.

    >>> consecutive_runs(np.array([3, 4, 5, 9]))
    [(3, 6), (9, 10)]
    """
    if not len(numbers):
        return []
    runs = np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1)
    return [(int(run[0]), int(run[-1]) + 1) for run in runs]
