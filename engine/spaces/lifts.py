"""Lifts: how class coordinates of a residual space are read from the cells of its table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from engine.arrays import Array
from engine.spaces.decomposition import basis
from engine.spaces.pieces import part_of, positions
from engine.spaces.split import Axes, Complement


class Lift:
    """L = L_1 (x) ... (x) L_k with L_i = N_i^T (I - pi_i 1^T), applied attribute by attribute.

    ``centers`` gives pi_i, None for uniform, where L_i is N_i^T itself.

    >>> Lift((2, 3)).rows(np.eye(2)).shape
    (2, 6)
    """

    one_space = True  # whether the class coordinates are one table, so that reversals and swaps permute them

    def __init__(self, sizes: tuple[int, ...], centers: Sequence[Array | None] | None = None) -> None:
        self.sizes, self.cells = sizes, math.prod(sizes)
        self.dimension = math.prod(n - 1 for n in sizes)
        given = centers if centers is not None else [None] * len(sizes)
        self.matrices = [
            basis(n).T if pi is None else basis(n).T - (basis(n).T @ pi)[:, None]
            for n, pi in zip(sizes, given, strict=True)
        ]

    @property
    def coordinates(self) -> tuple[int, ...]:
        """Number of class coordinates along every attribute."""
        return tuple(len(m) for m in self.matrices)

    def degrees(self, axis: int) -> npt.NDArray[np.int64]:
        """Return which cosine every class coordinate of an attribute is; odd ones change their sign on reversal.

        Shape (n - 1,).
        """
        return np.arange(1, self.sizes[axis])

    def rows(self, class_rows: Array) -> Array:
        """Return class_rows @ L, shape (k, cells)."""
        return self._along(class_rows, self.coordinates, self.matrices)

    def classes(self, cell_rows: Array) -> Array:
        """Return cell_rows @ L^T, shape (k, class coordinates): class coordinates of tables."""
        return self._along(cell_rows, self.sizes, [m.T for m in self.matrices])

    def traced(self, by_lift: Array, axis: int) -> Array:
        """Contract a derivative by L, shape (class sizes..., sizes...), to one by L_axis, summed over its cells."""
        count, out = len(self.sizes), by_lift
        for other in reversed(range(count)):
            if other != axis:
                own = (other, out.ndim // 2 + other)
                out = np.tensordot(out, self.matrices[other], axes=(own, (0, 1)))
        return np.asarray(out.sum(axis=1))

    @staticmethod
    def _along(rows: Array, shape: Sequence[int], matrices: Sequence[Array]) -> Array:
        out = rows.reshape(len(rows), *shape)
        for axis, matrix in enumerate(matrices):
            out = np.moveaxis(np.tensordot(out, matrix, axes=(axis + 1, 0)), -1, axis + 1)
        return out.reshape(len(rows), -1)


class SplitLift(Lift):
    """The lift of residual spaces that are measured together, on the table of all their attributes.

    ``spaces`` names the positions of the attributes of every space, ``complements`` the tuned complements by positions
    of their pair.  One space that holds all attributes is the ordinary case with complements.

    >>> SplitLift((2, 3), None, ((), (0,), (0, 1))).rows(np.eye(4)).shape
    (4, 6)
    """

    def __init__(
        self,
        sizes: tuple[int, ...],
        centers: Sequence[Array | None] | None,
        spaces: Sequence[Axes],
        complements: Mapping[Axes, Complement] | None = None,
    ) -> None:
        super().__init__(sizes, centers)
        self.kept = positions(sizes, spaces)
        self.dimension, self.complements = len(self.kept), complements or {}
        self.one_space = len(spaces) == 1 and len(spaces[0]) == len(sizes)
        # one more coordinate along every axis: the sum over its cells
        self.matrices = [np.concatenate([np.ones((1, m.shape[1])), m]) for m in self.matrices]

    @property
    def coordinates(self) -> tuple[int, ...]:
        return tuple(n - 1 for n in self.sizes)  # of the space on all attributes

    def rows(self, class_rows: Array) -> Array:
        flat = np.zeros((len(class_rows), self.cells))
        flat[:, self.kept] = class_rows
        tensor = flat.reshape(len(flat), *self.sizes)
        for pair, complement in self.complements.items():
            passing = tensor[part_of(len(self.sizes), pair)].reshape(len(flat), -1)
            for axis, D in zip(pair, complement.by_axis, strict=True):
                tensor[part_of(len(self.sizes), (axis,))] -= passing @ D
            tensor[part_of(len(self.sizes), ())] -= passing @ complement.by_total
        return self._along(flat, self.sizes, self.matrices)

    def classes(self, cell_rows: Array) -> Array:
        tensor = self._along(cell_rows, self.sizes, [m.T for m in self.matrices]).reshape(-1, *self.sizes)
        for pair, complement in self.complements.items():
            at = part_of(len(self.sizes), pair)
            passed = np.outer(tensor[part_of(len(self.sizes), ())], complement.by_total)
            for axis, D in zip(pair, complement.by_axis, strict=True):
                passed += tensor[part_of(len(self.sizes), (axis,))] @ D.T
            tensor[at] -= passed.reshape(tensor[at].shape)
        return tensor.reshape(len(tensor), -1)[:, self.kept]


class WholeTable(Lift):
    """The lift of a problem on the cells of a table in the whole cosine basis, constants included.

    An orthogonal change of coordinates, in which reversals and swaps are signed permutations.

    >>> WholeTable((2, 3)).rows(np.eye(6)).shape
    (6, 6)
    """

    def __init__(self, sizes: tuple[int, ...]) -> None:
        self.sizes, self.cells, self.dimension = sizes, math.prod(sizes), math.prod(sizes)
        self.matrices = [np.concatenate([np.full((1, n), n**-0.5), basis(n).T]) for n in sizes]

    def degrees(self, axis: int) -> npt.NDArray[np.int64]:
        return np.arange(self.sizes[axis])


class WholeDomain(Lift):
    """The lift of a problem on the cells themselves, where nothing is split off: the identity."""

    one_space = False

    def __init__(self, cells: int) -> None:
        self.sizes, self.cells, self.dimension = (cells,), cells, cells
        self.matrices = [np.eye(cells)]

    def rows(self, class_rows: Array) -> Array:
        return class_rows

    def classes(self, cell_rows: Array) -> Array:
        return cell_rows
