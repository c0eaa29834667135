"""Symmetric and antisymmetric vectors, and matrices that are invariant under reversal."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from engine._arrays import Array, Index

# vectors count as symmetric if their reversal differs by at most this share
SYMMETRY_TOLERANCE = 1e-9
# largest number of entries of strategy rows that are computed at once
SLAB_ENTRIES = 1 << 22


def are_symmetric(*vectors: Array) -> bool:
    """Return whether all vectors are equal to their reversals, up to rounding errors."""
    return all(np.abs(v - v[::-1]).max() <= SYMMETRY_TOLERANCE * np.abs(v).max() for v in vectors)


@dataclass(frozen=True, kw_only=True)
class Halves:
    """Orthonormal basis of the vectors with ``count`` entries, in one or two parts.

    Attributes
    ----------
    count : number of entries of a vector.
    is_divided : True for a basis of the symmetric vectors and one of the antisymmetric vectors.
        False for the unit vectors as a single part of the basis.

    >>> halves = Halves(count=3, is_divided=True)
    >>> symmetric, antisymmetric = halves.split(np.array([[1.0, 5.0, 1.0]]))
    >>> float(symmetric[0, 1]), float(antisymmetric[0, 0])
    (5.0, 0.0)
    """

    count: int
    is_divided: bool

    @property
    def half(self) -> int:
        """Number of antisymmetric basis vectors."""
        return self.count // 2

    @property
    def parts(self) -> int:
        """Number of parts of the basis."""
        return 2 if self.is_divided else 1

    def split(self, vectors: Array) -> list[Array]:
        """Return the coordinates of k vectors, shape (k, count), for every part of the basis."""
        if not self.is_divided:
            return [vectors]
        half, count = self.half, self.count
        first, mirrored = vectors[:, :half], vectors[:, ::-1][:, :half]
        middle = vectors[:, half : count - half]
        symmetric = np.concatenate([math.sqrt(0.5) * (first + mirrored), middle], axis=1)
        return [symmetric, math.sqrt(0.5) * (first - mirrored)]

    def join(self, coordinates: Sequence[Array]) -> Array:
        """Return k vectors, shape (k, count), from the coordinates that `split` returns."""
        if not self.is_divided:
            return coordinates[0]
        half = self.half
        symmetric, antisymmetric = coordinates
        first = math.sqrt(0.5) * (symmetric[:, :half] + antisymmetric)
        last = math.sqrt(0.5) * (symmetric[:, :half] - antisymmetric)
        return np.concatenate([first, symmetric[:, half:], last[:, ::-1]], axis=1)

    @staticmethod
    def in_part(coordinates: Array, part: int, orders: Sequence[int]) -> list[Array]:
        """Return the argument of `join` for k vectors that are in one part of the basis.

        Parameters
        ----------
        coordinates : coordinates in this part, shape (k, order of the part).
        part : index of the part.
        orders : number of coordinates of every part.
        """
        return [
            coordinates if i == part else np.zeros((len(coordinates), order))
            for i, order in enumerate(orders)
        ]

    def block(self, entries: Callable[[Index, Index], Array], part: int) -> Array:
        """Return the block of a matrix on one part of the basis.

        Parameters
        ----------
        entries : function of row indices and column indices that returns the entries of the matrix,
            shape (rows, columns).  If the basis is divided, the matrix must be symmetric and
            invariant under reversal of its rows and columns.
        part : index of the part.
        """
        count, half = self.count, self.half
        if not self.is_divided:
            every = np.arange(count)
            return entries(every, every)
        first, sign = np.arange(half), (1.0, -1.0)[part]
        pairs = entries(first, first)
        pairs += sign * entries(first, count - 1 - first)
        if part == 1 or count == 2 * half:
            return pairs
        # the symmetric vectors include the unit vector of the entry in the middle
        middle = np.array([half])
        across = math.sqrt(2.0) * entries(first, middle)
        return np.block([[pairs, across], [across.T, entries(middle, middle)]])
