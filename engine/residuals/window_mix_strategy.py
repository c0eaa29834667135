"""Optimal strategies of windows, prefixes and the marginal on a residual space, as `Strategy`.

`engine.residuals.window_solver` computes dual weights, costs and variances without a matrix of
shape (cells, cells).  Matrices are needed only to draw noise and to estimate other queries.

Let H be the residual Gram on cells, let M = diag(mu) hold the dual weights, and let U diag(e) U^T
be the eigendecomposition of M^1/2 H M^1/2 without its eigenvector of eigenvalue 0, which is
M^-1/2 pi for the center pi.  Then the strategy rows are diag(e)^1/4 U^T M^-1/2, and the answers y
determine the table M^1/2 U diag(e)^-1/4 y, minus a multiple of pi that makes its sum 0.  If the
weights and the center are symmetric, then the matrix has one block on symmetric vectors and one on
antisymmetric vectors.

Source: the optimal strategy for dual weights is that of `engine.residuals.dual_solver`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from engine._arrays import Array, Index
from engine._threads import threads_for
from engine.residuals.decomposition import interval_gram, wide_window_gram
from engine.residuals.halves import SLAB_ENTRIES, Halves, are_symmetric
from engine.residuals.interval_solver import IntervalGram
from engine.residuals.marginals import DeferredStrategy, StrategyMatrices
from engine.residuals.operators import Chain, CosineMatrix, Operator
from engine.residuals.window_solver import WindowGram, WindowSolution
from engine.workload import Part

# computed eigenvalues below this share of the largest one are raised to it
MIN_EIGENVALUE_SHARE = 1e-15


def _weighted_gram(solution: WindowSolution, rows: Index, columns: Index) -> Array:
    """Return entries of M^1/2 H M^1/2 for cells with these indices, shape (rows, columns)."""
    gram, pi = solution.space.gram, solution.space.pi
    low, high = np.minimum.outer(rows, columns), np.maximum.outer(rows, columns)
    # A window contains the cells ``low`` and ``high`` if its first cell is at least ``high - width
    # + 1`` and at most ``low``.
    entries = np.minimum(low, gram.count - 1) - np.maximum(high - gram.width, -1.0)
    np.maximum(entries, 0.0, out=entries)
    entries *= gram.weight
    entries += gram.prefix * (gram.cells - high)
    entries += gram.marginal * np.equal.outer(rows, columns)
    product = gram.product(pi)
    entries += float(pi @ product) - product[rows, None] - product[columns]
    roots = np.sqrt(solution.dual)
    entries *= roots[rows, None] * roots[columns]
    return np.asarray(entries)


def _reflected(matrix: Array, vector: Array) -> Array:
    """Return ``matrix`` times the Householder reflection that maps a unit vector to +-e_1.

    The product is stored in ``matrix``.
    """
    v = vector.copy()
    v[0] += math.copysign(1.0, v[0])
    v /= np.linalg.norm(v)
    matrix -= np.outer(2.0 * (matrix @ v), v)
    return matrix


def _eigenvectors(solution: WindowSolution, halves: Halves) -> list[tuple[Array, Array]]:
    """Return pairs (roots of the eigenvalues, eigenvectors), one pair per part of the basis.

    The eigenvalues are those of M^1/2 H M^1/2 except for the eigenvalue 0, and the roots are fourth
    roots, shape (k,).  The eigenvectors are coordinates in the part of the basis, shape (order, k).
    """
    import scipy.linalg

    null = solution.space.pi / np.sqrt(solution.dual)
    null = halves.split(null[None] / np.linalg.norm(null))[0][0]
    pairs = []
    for part in range(halves.parts):
        block = halves.block(lambda rows, columns: _weighted_gram(solution, rows, columns), part)
        if part == 0:
            # a reflection makes the eigenvector of eigenvalue 0 the first unit vector
            block = _reflected(np.ascontiguousarray(_reflected(block, null).T), null)[1:, 1:]
        squares, U = scipy.linalg.eigh(block, overwrite_a=True, check_finite=False)
        if part == 0:
            U = _reflected(np.pad(U.T, [(0, 0), (1, 0)]), null).T
        pairs.append((np.maximum(squares, MIN_EIGENVALUE_SHARE * squares[-1]) ** 0.25, U))
    return pairs


@dataclass(frozen=True, kw_only=True, eq=False)
class MixTables(Operator):
    """Matrix from strategy answers to tables of sum 0, or its transpose if ``transposed``.

    Shape (cells, answers).  The strategy rows are not scaled.

    Attributes
    ----------
    halves : basis in which the weighted residual Gram has blocks.
    pairs : result of `_eigenvectors`.
    mass, pi : dual weights and center, shape (cells,).
    """

    halves: Halves
    pairs: Sequence[tuple[Array, Array]]
    mass: Array
    pi: Array
    transposed: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        shape = len(self.pi), len(self.pi) - 1
        return shape[::-1] if self.transposed else shape

    def transpose(self) -> MixTables:
        return replace(self, transposed=not self.transposed)

    def _apply(self, tensor: Array) -> Array:
        vectors = tensor.reshape(-1, tensor.shape[-1])
        product = self._tables(vectors) if self.transposed else self._answers(vectors)
        return product.reshape(*tensor.shape[:-1], self.shape[1])

    def _tables(self, answers: Array) -> Array:
        """Return k tables, shape (k, cells), from k vectors of answers, shape (k, answers)."""
        coordinates, start = [], 0
        for roots, U in self.pairs:
            coordinates.append((answers[:, start : start + len(roots)] / roots) @ U.T)
            start += len(roots)
        tables = self.halves.join(coordinates) * np.sqrt(self.mass)
        return np.asarray(tables - tables.sum(axis=1, keepdims=True) * self.pi)

    def _answers(self, tables: Array) -> Array:
        """Return the products of k tables, shape (k, cells), with the matrix, (k, answers)."""
        # the steps of `_tables` in reverse order, each one transposed
        scaled = (tables - (tables @ self.pi)[:, None]) * np.sqrt(self.mass)
        coordinates = self.halves.split(scaled)
        return np.concatenate(
            [c @ U / roots for c, (roots, U) in zip(coordinates, self.pairs, strict=True)], axis=1
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class MixMatrices(StrategyMatrices):
    """Matrices of the strategy of windows, prefixes and the marginal."""

    solution: WindowSolution

    def _computed(self) -> tuple[Array, Chain]:
        solution, n = self.solution, self.cells
        halves = Halves(count=n, is_divided=are_symmetric(solution.space.pi, solution.dual))
        scale = math.sqrt(float(solution.norms.max()))
        with threads_for(n):
            pairs = _eigenvectors(solution, halves)
            rows = self._rows(halves, pairs)
        rows /= scale
        tables = MixTables(halves=halves, pairs=pairs, mass=solution.dual, pi=solution.space.pi)
        return rows, Chain(first=CosineMatrix(cells=n).T, second=tables, scale=scale)

    def _rows(self, halves: Halves, pairs: Sequence[tuple[Array, Array]]) -> Array:
        """Return the strategy rows diag(e)^1/4 U^T M^-1/2, shape (rank, cells)."""
        rows, start = np.empty((self.rank, self.cells)), 0
        step = max(1, SLAB_ENTRIES // self.cells)
        for part, (roots, U) in enumerate(pairs):
            for first in range(0, len(roots), step):
                slab = roots[first : first + step, None] * U[:, first : first + step].T
                coordinates = halves.in_part(slab, part, [len(V) for _, V in pairs])
                target = rows[start + first : start + first + len(slab)]
                np.divide(halves.join(coordinates), np.sqrt(self.solution.dual), out=target)
            start += len(roots)
        return rows


@dataclass(frozen=True, kw_only=True, eq=False)
class WindowMixStrategy(DeferredStrategy):
    """Strategy of windows, prefixes and the marginal on a residual space of a wide attribute."""

    matrices: MixMatrices

    @property
    def solution(self) -> WindowSolution:
        """Dual weights that determine the strategy."""
        return self.matrices.solution

    @property
    def is_finite(self) -> bool:
        # the reconstruction has the inverses of the entries of the rows
        return bool(np.isfinite(self.rows).all())

    @cached_property
    def _by_kind(self) -> dict[str, Array]:
        """Variances of all windows, prefixes, suffixes and cells, by the name of their family."""
        windows, prefixes, cells = self.solution.variances
        # On a residual space, a suffix is minus the prefix before it; that of all cells is 0.
        suffixes = np.concatenate([[0.0], prefixes[:-1]])
        return {"width": windows, "prefix": prefixes, "suffix": suffixes, "marginal": cells}

    def query_variances(self, part: Part) -> Array:
        gram = wide_window_gram(part) or interval_gram(part)
        if gram is not None and self.solves(gram):
            return self._by_kind[part.family.name]
        return super().query_variances(part)

    def solves(self, gram: WindowGram | IntervalGram) -> bool:
        """Return whether the solver returns the variances of all queries of a Gram.

        It does for windows of the strategy's width, prefixes, suffixes and the marginal.
        """
        if isinstance(gram, WindowGram):
            return gram.width == self.solution.space.gram.width
        return gram.ranges == 0.0
