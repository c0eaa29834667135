"""Optimal strategies of windows, alone or with prefixes and the marginal, as operators.

`engine.residuals.window_solver` computes dual weights, costs and variances without a matrix of
shape (cells, cells).  Matrices are needed only to draw noise and to estimate queries.

Let W be the windows as rows, minus their answers to the center, and let mu be the dual weights.
The covariance of the optimal estimates of the windows is proportional to R = (W diag(mu)
W^T)^(1/2).  With the Cholesky factor L of R, the strategy rows are L^-1 W, and L times their
answers are the estimated windows.  If mu and the center are symmetric, then R commutes with the
reversal of the windows.  It is then divided into a block on symmetric vectors and a block on
antisymmetric vectors.

The estimated windows determine a table of smallest norm in O(n) time.  The difference of two
neighbouring windows is x_(k+w) - x_k.  So running sums over cells with equal remainders of the
division by w determine the table up to one constant per remainder.

**Windows with prefixes and the marginal.**  Let H be the residual Gram on cells, let M = diag(mu),
and let U diag(e) U^T be the eigendecomposition of M^1/2 H M^1/2 without its eigenvector of
eigenvalue 0, which is M^-1/2 pi for the center pi.  Then the strategy rows are diag(e)^1/4 U^T
M^-1/2, and the answers y determine the table M^1/2 U diag(e)^-1/4 y, minus a multiple of pi that
makes its sum 0.  If the weights and the center are symmetric, then the matrix has one block on
symmetric vectors and one on antisymmetric vectors.

Source: the optimal strategy for dual weights is that of `engine.residuals.dual_solver`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from engine._arrays import Array, Index
from engine._threads import threads_for
from engine.residuals.decomposition import interval_gram, wide_window_gram
from engine.residuals.dual_solver import Options, Solution
from engine.residuals.interval_solver import IntervalGram
from engine.residuals.marginals import DeferredStrategy, StrategyMatrices, deferred_solution
from engine.residuals.operators import Chain, CosineMatrix, Operator
from engine.residuals.strategy import MAX_UNMEASURED_SHARE
from engine.residuals.window_solver import (
    WindowGram,
    WindowSolution,
    WindowSpace,
    evaluate,
    solve,
)
from engine.workload import Part

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


@dataclass(frozen=True, kw_only=True)
class _WindowHalves(Halves):
    """Orthonormal basis of the vectors with one entry per window.

    Attributes
    ----------
    gram : the windows.
    """

    gram: WindowGram

    @classmethod
    def of(cls, gram: WindowGram, *, is_divided: bool) -> _WindowHalves:
        """Return the basis for these windows."""
        return cls(count=gram.count, is_divided=is_divided, gram=gram)

    @cached_property
    def relation(self) -> Array | None:
        """Coordinates of the vector v with v^T W = 0 in the first part; None if there is none.

        There is such a vector if the width divides the number of cells.  In this case the windows
        that begin at multiples of the width add up to the total, which is 0 on the residual space.
        """
        if self.gram.residual_rank == self.gram.count:
            return None
        is_in_sum = np.arange(self.gram.count) % self.gram.width == 0
        return np.asarray(self.split(is_in_sum[None].astype(float))[0][0])


def _cholesky_factors(solution: WindowSolution, halves: _WindowHalves) -> list[Array]:
    """Return the Cholesky factors of the blocks of R, one per part of the basis.

    R is the root of W diag(mu) W^T, with the windows W and the dual weights mu.  If W has dependent
    rows, the first vector of the first part is left out of its block.
    """
    import scipy.linalg

    factors = []
    for part in range(halves.parts):
        squares, U = scipy.linalg.eigh(
            halves.block(partial(_squares, solution), part), overwrite_a=True, check_finite=False
        )
        has_relation = part == 0 and halves.relation is not None
        if has_relation:
            # the smallest eigenvalue is 0, but it was computed with rounding errors
            squares[0] = 0.0
        # the block of R is U diag(squares)^(1/2) U^T
        U *= np.maximum(squares, 0.0) ** 0.25
        U = U[1:] if has_relation else U
        block = U @ U.T
        factors.append(scipy.linalg.cholesky(block, lower=True, overwrite_a=True))
    return factors


def _squares(solution: WindowSolution, rows: Index, columns: Index) -> Array:
    """Return entries of W diag(mu) W^T for windows with these indices, shape (rows, columns)."""
    gram, pi = solution.space.gram, solution.space.pi
    prefixes = np.concatenate([[0.0], np.cumsum(solution.dual)])
    # summed weights of the cells that two windows have in common
    squares = np.minimum.outer(prefixes[rows + gram.width], prefixes[columns + gram.width])
    squares -= np.maximum.outer(prefixes[rows], prefixes[columns])
    np.maximum(squares, 0.0, out=squares)
    masses, shares = gram.sums(solution.dual), gram.sums(pi)
    squares -= np.outer(masses[rows], masses[columns])
    squares += np.outer((shares - masses)[rows], (shares - masses)[columns])
    return np.asarray(squares)


@dataclass(frozen=True, kw_only=True, eq=False)
class WindowTables(Operator):
    """Matrix from strategy answers to tables of smallest norm with the estimated windows.

    Shape (cells, answers), or its transpose if ``transposed``.  The strategy rows are not scaled.

    Attributes
    ----------
    halves : basis in which the covariance of the windows has blocks.
    factors : Cholesky factors of these blocks.
    """

    halves: _WindowHalves
    factors: Sequence[Array]
    transposed: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        shape = self.halves.gram.cells, self.halves.gram.residual_rank
        return shape[::-1] if self.transposed else shape

    def transpose(self) -> WindowTables:
        return replace(self, transposed=not self.transposed)

    def _apply(self, tensor: Array) -> Array:
        vectors = tensor.reshape(-1, tensor.shape[-1])
        product = self._tables(vectors) if self.transposed else self._answers(vectors)
        return product.reshape(*tensor.shape[:-1], self.shape[1])

    def _tables(self, answers: Array) -> Array:
        """Return k tables, shape (k, cells), from k vectors of answers, shape (k, answers)."""
        relation, coordinates, start = self.halves.relation, [], 0
        for part, factor in enumerate(self.factors):
            values = answers[:, start : start + len(factor)] @ factor.T
            if part == 0 and relation is not None:
                first = -(values @ relation[1:]) / relation[0]
                values = np.concatenate([first[:, None], values], axis=1)
            coordinates.append(values)
            start += len(factor)
        sums, width = self.halves.join(coordinates), self.halves.gram.width
        steps = np.zeros((len(sums), self.halves.gram.cells))
        steps[:, width:] = np.diff(sums)
        tables = self._centered(self._joined(np.cumsum(self._by_remainder(steps), axis=1)))
        tables += (sums[:, 0] - tables[:, :width].sum(axis=1))[:, None] * self._constants
        return np.asarray(tables)

    def _answers(self, tables: Array) -> Array:
        """Return the products of k tables, shape (k, cells), with the matrix, (k, answers)."""
        relation, width = self.halves.relation, self.halves.gram.width
        # the steps of `_tables` in reverse order, each one transposed
        in_first = tables @ self._constants
        values = tables.copy()
        values[:, :width] -= in_first[:, None]
        reverse = self._by_remainder(self._centered(values))[:, ::-1]
        steps = self._joined(np.cumsum(reverse, axis=1)[:, ::-1])[:, width:]
        sums = -np.diff(steps, prepend=0.0, append=0.0)
        sums[:, 0] += in_first
        products = []
        for part, (coordinates, factor) in enumerate(
            zip(self.halves.split(sums), self.factors, strict=True)
        ):
            # the first coordinate is determined by the others and not measured
            if part == 0 and relation is not None:
                first, others = coordinates[:, :1], coordinates[:, 1:]
                coordinates = others - first * (relation[1:] / relation[0])
            products.append(coordinates @ factor)
        return np.concatenate(products, axis=1)

    def _by_remainder(self, tables: Array) -> Array:
        """Return tables with one axis for the quotient of a cell by the width, one for the rest.

        The shape is (k, quotients, width); cells that do not exist are 0.
        """
        gram = self.halves.gram
        quotients = -(-gram.cells // gram.width)
        missing = quotients * gram.width - gram.cells
        padded = np.pad(tables, [(0, 0), (0, missing)])
        return padded.reshape(len(tables), quotients, gram.width)

    def _joined(self, by_remainder: Array) -> Array:
        """Return the tables, shape (k, cells), from their form in `_by_remainder`."""
        entries = math.prod(by_remainder.shape[1:])
        return by_remainder.reshape(-1, entries)[:, : self.halves.gram.cells]

    def _centered(self, tables: Array) -> Array:
        """Subtract from every entry the mean over the cells with the same remainder."""
        gram = self.halves.gram
        means = self._by_remainder(tables).sum(axis=1) / remainder_counts(gram)
        return np.asarray(tables - means[:, np.arange(gram.cells) % gram.width])

    @cached_property
    def _constants(self) -> Array:
        """Table with the sum 0 that is constant per remainder, shape (cells,).

        Its sum over a window is 1; the table is 0 if there is no such table.
        """
        gram = self.halves.gram
        counts = remainder_counts(gram)
        long = gram.cells % gram.width
        if long == 0:
            return np.zeros(gram.cells)
        by_remainder = np.where(
            np.arange(gram.width) < long,
            -counts[-1] / long,
            counts[0] / (gram.width - long),
        )
        return np.asarray(by_remainder[np.arange(gram.cells) % gram.width])


def remainder_counts(gram: WindowGram) -> Array:
    """Return for every remainder of the division by the width its number of cells, (width,)."""
    return np.bincount(np.arange(gram.cells) % gram.width).astype(float)


@dataclass(frozen=True, kw_only=True, eq=False)
class WindowMatrices(StrategyMatrices):
    """Matrices of the strategy of windows."""

    solution: WindowSolution

    @property
    def gram(self) -> WindowGram:
        """The windows."""
        return self.solution.space.gram

    @property
    def rank(self) -> int:
        return self.gram.residual_rank

    @cached_property
    def unmeasured(self) -> Array:
        """Orthonormal residual coordinates of the tables whose windows are all 0, as columns.

        Shape (cells - 1, cells - 1 - rank).  These tables have the sum 0, are constant per
        remainder of the division by the width, and have the sum 0 over a window.
        """
        import scipy.linalg

        n, width, roots = self.cells, self.gram.width, np.sqrt(remainder_counts(self.gram))
        sums = np.stack([1.0 / roots, roots], axis=1)
        if n % width == 0:
            sums = sums[:, :1]
        Q, _ = scipy.linalg.qr(sums)
        by_remainder = Q[:, sums.shape[1] :] / roots[:, None]
        tables = by_remainder[np.arange(n) % width]
        return np.asarray((tables.T @ CosineMatrix(cells=n)).T)

    def _computed(self) -> tuple[Array, Chain]:
        solution, n = self.solution, self.cells
        halves = _WindowHalves.of(
            self.gram, is_divided=are_symmetric(solution.space.pi, solution.dual)
        )
        scale = math.sqrt(float(solution.norms.max()))
        with threads_for(n):
            factors = _cholesky_factors(solution, halves)
            rows = self._rows(halves, factors)
        rows /= scale
        tables = WindowTables(halves=halves, factors=factors)
        return rows, Chain(first=CosineMatrix(cells=n).T, second=tables, scale=scale)

    def _rows(self, halves: _WindowHalves, factors: Sequence[Array]) -> Array:
        """Return the strategy rows L^-1 W for the Cholesky factors of all blocks."""
        from scipy.linalg.lapack import dtrtri

        rows, start = np.empty((self.rank, self.cells)), 0
        shares = self.gram.sums(self.solution.space.pi)
        step = max(1, SLAB_ENTRIES // self.cells)
        for part, factor in enumerate(factors):
            inverse, _ = dtrtri(factor, lower=1)
            for first in range(0, len(inverse), step):
                slab = inverse[first : first + step]
                coordinates = halves.in_part(slab, part, list(map(len, factors)))
                if halves.relation is not None:
                    # One vector is left out of the first block. The coordinate of the rows for this
                    # vector is 0.
                    coordinates[0] = np.pad(coordinates[0], [(0, 0), (1, 0)])
                windows = halves.join(coordinates)
                # the windows on cells, minus their answers to the center
                target = rows[start + first : start + first + len(slab)]
                np.subtract(self.gram.spread(windows), (windows @ shares)[:, None], out=target)
            start += len(inverse)
        return rows


@dataclass(frozen=True, kw_only=True, eq=False)
class WindowStrategy(DeferredStrategy):
    """Strategy of all windows of one width on a residual space of one wide attribute."""

    matrices: WindowMatrices

    @property
    def rank(self) -> int:
        return self.matrices.rank

    @property
    def is_finite(self) -> bool:
        # The reconstruction is finite if its factor L is finite.  The rows contain L^-1.
        return bool(np.isfinite(self.rows).all())

    @cached_property
    def span(self) -> Array:
        import scipy.linalg

        unmeasured = self.matrices.unmeasured
        Q, _ = scipy.linalg.qr(unmeasured)
        return np.asarray(Q[:, unmeasured.shape[1] :])

    @cached_property
    def unmeasured(self) -> Array:
        return self.matrices.unmeasured @ self.matrices.unmeasured.T

    def leaves_span(self, residual_rows: Array) -> npt.NDArray[np.bool_]:
        components = np.linalg.norm(residual_rows @ self.matrices.unmeasured, axis=1)
        norms = np.linalg.norm(residual_rows, axis=1)
        return np.asarray(components > MAX_UNMEASURED_SHARE * np.maximum(norms, 1e-300))

    def covers(self, part: Part) -> bool:
        return self._is_own(part)

    def query_variances(self, part: Part) -> Array:
        if self._is_own(part):
            return self.matrices.solution.window_variances
        return super().query_variances(part)

    def _is_own(self, part: Part) -> bool:
        """Return whether a query family consists of the windows of this strategy."""
        gram = wide_window_gram(part)
        return gram is not None and gram == self.matrices.solution.space.gram


# last dual weights of searches for windows, shape (n,), by `WindowSpace.key`
WindowWeights: TypeAlias = dict[Hashable, Array]


def window_solution(
    gram: WindowGram,
    options: Options,
    dual: Array | None = None,
    center: Array | None = None,
    start: Array | None = None,
) -> Solution:
    """Return a strategy of windows and other queries on a residual space, with its gap.

    Parameters
    ----------
    gram : weights of the queries, without a weight of the total.
    options : stopping rule of the search.
    dual : dual weights of an earlier search, shape (n,); if given, they determine the strategy and
        there is no search.
    center : center of the residual space, shape (n,); None for a uniform one.
    start : initial weights of the search, shape (n,); None for equal weights.
    """
    space = WindowSpace(gram=gram, center=center)
    if dual is None:
        solution = solve(
            space,
            gap=options.gap,
            evaluations=options.evaluations,
            deadline=options.deadline,
            start=start,
        )
    else:
        solution = evaluate(space, dual)
    is_proved = dual is not None or solution.gap <= options.gap
    if gram.others is None:
        return deferred_solution(
            WindowStrategy, WindowMatrices(solution=solution), is_proved=is_proved
        )
    return deferred_solution(WindowMixStrategy, MixMatrices(solution=solution), is_proved=is_proved)
