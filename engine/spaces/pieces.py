"""Pieces: what a query asks of every residual space inside its attributes, all at once.

The piece of a query q in a space X takes q N_i along the attributes of X and q . pi_i along the others.  With
[pi_i, N_i] along every axis all pieces together are a table of the same shape as the query: index 0 along an axis says
that the attribute is not in the space, index k > 0 is class coordinate k of it.  Tuned complements then pass part of a
pair's piece to its attributes and to the total.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.arrays import Array
from engine.spaces.decomposition import basis, center
from engine.spaces.split import Axes, Complement


def part_of(count: int, space: Axes) -> tuple[Any, ...]:
    """Return the index of a space within tables of pieces, shape (k, n_1, ..., n_count)."""
    return (slice(None), *(slice(1, None) if axis in space else 0 for axis in range(count)))


def positions(sizes: Sequence[int], spaces: Sequence[Axes]) -> npt.NDArray[np.int64]:
    """Return where the class coordinates of spaces, one space after the other, stand in a flat table of pieces.

    Shape (coordinates of all spaces,).

    >>> positions((2, 3), [(0,), (0, 1)])
    array([3, 4, 5])
    """
    index = np.arange(math.prod(sizes)).reshape(1, *sizes)
    return np.concatenate([index[part_of(len(sizes), space)].ravel() for space in spaces])


def pieces(
    rows: Array, sizes: Sequence[int], centers: Sequence[Array | None], complements: Mapping[Axes, Complement]
) -> Array:
    """Return all pieces of query rows, shape (k, cells) to (k, cells).

    >>> pieces(np.array([[1.0, 0.0]]), [2], [None], {}).round(3)
    array([[0.5  , 0.707]])
    """
    tensor = rows.reshape(len(rows), *sizes)
    for axis, (n, pi) in enumerate(zip(sizes, centers, strict=True)):
        matrix = np.column_stack([center(n, pi), basis(n)])
        tensor = np.moveaxis(np.tensordot(tensor, matrix, axes=(axis + 1, 0)), -1, axis + 1)
    for pair, complement in complements.items():
        passing = tensor[part_of(len(sizes), pair)].reshape(len(rows), -1)
        for axis, D in zip(pair, complement.by_axis, strict=True):
            tensor[part_of(len(sizes), (axis,))] += passing @ D
        tensor[part_of(len(sizes), ())] += passing @ complement.by_total
    return tensor.reshape(len(rows), -1)
