"""Optimal strategies of windows on a residual space, as `Strategy`; matrices are formed when read.

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
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from engine._arrays import Array, Index
from engine._threads import threads_for
from engine.residuals.decomposition import wide_window_gram
from engine.residuals.dual_solver import Options, Solution
from engine.residuals.halves import SLAB_ENTRIES, Halves, are_symmetric
from engine.residuals.marginals import DeferredStrategy, StrategyMatrices, deferred_solution
from engine.residuals.operators import Chain, CosineMatrix, Operator
from engine.residuals.strategy import MAX_UNMEASURED_SHARE
from engine.residuals.window_mix_strategy import MixMatrices, WindowMixStrategy
from engine.residuals.window_solver import (
    WindowGram,
    WindowSolution,
    WindowSpace,
    evaluate,
    solve,
)
from engine.workload import Part


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
