"""Optimal strategies of marginals and interval queries on one wide attribute.

`engine.residuals.interval_solver` computes the strategy of interval queries (prefixes, suffixes,
ranges).  Marginals have a closed form.  With the uniform center, the Gram of a marginal on a
residual space is a multiple of the identity in residual coordinates, and every cell has the same
cost.  So the optimal strategy consists of orthogonal rows of equal norm that span the space, stored
as `ReflectedRows`: a product with a table takes O(n) time and is exact if the entries are integers.
The cosine transform from answers to residual coordinates takes O(n log n) time.

Source: QuerySmasher, section 6.3.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import cast

import numpy as np

from engine._arrays import Array, Index
from engine.residuals.dual_solver import Options, Solution
from engine.residuals.interval_solver import (
    DualSolution,
    IntervalGram,
    IntervalMatrix,
    IntervalSolution,
    IntervalSpace,
    evaluate,
    solve,
)
from engine.residuals.operators import (
    CenteredIdentity,
    Chain,
    CosineMatrix,
    Operator,
    ReflectedRows,
    ScaledIdentity,
    is_wide,
)
from engine.residuals.strategy import Strategy
from engine.workload import Part


@dataclass(frozen=True, kw_only=True, eq=False)
class MarginalStrategy(Strategy):
    """Optimal strategy of a marginal on the residual space of one wide attribute.

    Rows and reconstruction are operators, so no matrix is stored.
    """

    rows: ReflectedRows  # type: ignore[assignment]
    pinv: Chain  # type: ignore[assignment]

    @property
    def coordinate_variance(self) -> float:
        """Variance of every residual coordinate at noise scale 1."""
        return 1.0 - 1.0 / self.cells

    @property
    def rounding_terms(self) -> int:
        # Answer k is ``one`` x_k (at most 4 roundings) plus ``others`` times a sum (at most n + 4
        # roundings).  The rounding errors that the count of one cell causes in all answers have a
        # Euclidean norm of at most 4 + 1.1 sqrt(n) units of roundoff.  The returned value is
        # larger.
        return math.ceil(2.0 * math.sqrt(self.cells)) + 9

    @property
    def answer_rows(self) -> ReflectedRows:  # type: ignore[override]
        return self.rows

    @property
    def is_finite(self) -> bool:
        return bool(np.isfinite(self.rows.entries).all() and np.isfinite(self.pinv.scale))

    def column_costs(self, law: str) -> Array:
        return self.rows.column_costs(1 if law == "laplace" else 2)

    def column_gram(self) -> Array:
        within, across = self.rows.products()
        gram = np.full((self.cells, self.cells), within)
        gram[-1], gram[:, -1] = across, across
        gram[np.diag_indices(self.cells)] = self.rows.column_costs(2)
        return gram

    def column_products(self, cells: Index, other: int) -> tuple[Array, float, Array]:
        squares, (within, across) = self.rows.column_costs(2), self.rows.products()
        is_across = (cells == self.cells - 1) | (other == self.cells - 1)
        products = np.where(cells == other, squares[other], np.where(is_across, across, within))
        return squares[cells], float(squares[other]), products

    @property
    def column_norm(self) -> float:
        return float(np.sqrt(self.rows.column_costs(2).max()))

    @property
    def column_sum(self) -> float:
        return float(self.rows.column_costs(1).max())

    @property
    def covariance(self) -> ScaledIdentity:  # type: ignore[override]
        return ScaledIdentity(order=self.cells - 1, scale=self.coordinate_variance)

    @property
    def coordinate_trace(self) -> float:
        return self.rank * self.coordinate_variance

    @property
    def has_equal_variances(self) -> bool:
        return True

    @property
    def precision(self) -> CenteredIdentity:
        return CenteredIdentity(cells=self.cells, scale=1.0 / self.coordinate_variance)

    @property
    def rank(self) -> int:
        return self.cells - 1

    def total_variance(self, gram: IntervalGram) -> float:
        """Return the sum of weight times variance of all queries at noise scale 1, in counts^2."""
        return IntervalMatrix(gram=gram).trace * self.coordinate_variance

    def query_variances(self, part: Part) -> Array:
        # coordinate variance times q (I - 1 1^T / n) q^T
        sums = part.family.dot(part.sizes, np.ones(self.cells))
        squares = part.family.squared_norms(part.sizes)
        return np.asarray(
            self.coordinate_variance * np.maximum(squares - sums**2 / self.cells, 0.0)
        )


@lru_cache(maxsize=64)
def marginal_strategy(cells: int) -> MarginalStrategy:
    """Return the optimal strategy of the marginal on an attribute, with columns of norm 1."""
    rows, N = ReflectedRows.unit(cells), CosineMatrix(cells=cells)
    # The rows B are orthogonal and have the squared norm 1 / (1 - 1/n).  So (1 - 1/n) N^T B^T maps
    # answers to residual coordinates.
    pinv = Chain(first=N.T, second=rows.T, scale=1.0 - 1.0 / cells)
    return MarginalStrategy(sizes=(cells,), rows=rows, pinv=pinv, complete=True)


@dataclass(frozen=True, kw_only=True, eq=False)
class IdentityStrategy(Strategy):
    """Strategy that measures every cell of one wide attribute, with operators as matrices."""

    rows: ScaledIdentity  # type: ignore[assignment]
    pinv: ScaledIdentity  # type: ignore[assignment]

    @property
    def rounding_terms(self) -> int:
        # every answer is a single product
        return 1

    @property
    def answer_rows(self) -> ScaledIdentity:  # type: ignore[override]
        return self.rows

    @property
    def is_finite(self) -> bool:
        return True

    def column_costs(self, law: str) -> Array:
        return np.ones(self.cells)

    def column_products(self, cells: Index, other: int) -> tuple[Array, float, Array]:
        return np.ones(len(cells)), 1.0, (cells == other).astype(float)

    @property
    def column_norm(self) -> float:
        return 1.0

    @property
    def column_sum(self) -> float:
        return 1.0

    @property
    def covariance(self) -> ScaledIdentity:  # type: ignore[override]
        return self.pinv

    @property
    def rank(self) -> int:
        return self.cells

    def query_variances(self, part: Part) -> Array:
        return part.family.squared_norms(part.sizes)


def identity_strategy(cells: int) -> Strategy:
    """Return the strategy that measures every cell of an attribute with this number of cells.

    Its matrices are operators if the attribute is wide, otherwise arrays.
    """
    return _identity_strategy(cells, is_wide(cells))


@lru_cache(maxsize=256)
def _identity_strategy(cells: int, as_operator: bool) -> Strategy:
    if as_operator:
        identity = ScaledIdentity(order=cells)
        return IdentityStrategy(sizes=(cells,), rows=identity, pinv=identity, complete=True)
    return Strategy(sizes=(cells,), rows=np.eye(cells), pinv=np.eye(cells), complete=True)


def marginal_solution(cells: int, weight: float = 1.0) -> Solution:
    """Return the optimal strategy of a marginal whose queries have this weight; its gap is 0."""
    value = weight * (cells - 1) * (1.0 - 1.0 / cells)
    strategy = marginal_strategy(cells)
    return Solution(strategy=strategy, value=value, bound=value, dual=np.ones(1), status="optimal")


@dataclass(frozen=True, kw_only=True, eq=False)
class StrategyMatrices(ABC):
    """Matrices of the strategy that dual weights determine on a residual space of one attribute.

    The matrices are computed when they are first read.

    Attributes
    ----------
    solution : dual weights of the cells, with the privacy cost of every cell.
    """

    solution: DualSolution

    @property
    def cells(self) -> int:
        """Number of cells."""
        return len(self.solution.dual)

    @property
    def rank(self) -> int:
        """Number of strategy rows."""
        return self.cells - 1

    @property
    def column_costs(self) -> Array:
        """Upper bound on the squared norm of every column of the strategy rows, shape (n,)."""
        norms = self.solution.norms
        return np.asarray(norms / norms.max())

    @cached_property
    def formed(self) -> tuple[Array, Array | Operator]:
        """Strategy rows and the matrix that estimates residual coordinates from their answers.

        Shapes (rank, n) and (n - 1, rank).
        """
        rows, pinv = self._computed()
        # Rounding errors can make the squared norm of a column larger than its stated privacy cost
        # in ``column_costs``.  The rows are scaled to prevent this.
        squares = np.einsum("rc,rc->c", rows, rows)
        scale = min(1.0, math.sqrt(float((self.column_costs / squares).min())))
        rows *= scale
        if isinstance(pinv, Chain):
            return rows, replace(pinv, scale=pinv.scale / scale)
        return rows, pinv / scale

    @abstractmethod
    def _computed(self) -> tuple[Array, Array | Chain]:
        """Return the two matrices of `formed` before they are scaled, the first as a new array."""


@dataclass(frozen=True, kw_only=True, eq=False)
class IntervalMatrices(StrategyMatrices):
    """Matrices of the strategy of interval queries."""

    solution: IntervalSolution

    def _computed(self) -> tuple[Array, Array]:
        rows, reconstruction = self.solution.strategy()
        pinv = (_table_differences(reconstruction).T @ CosineMatrix(cells=rows.shape[1])).T
        return rows, np.asarray(pinv)


@dataclass(frozen=True, kw_only=True, eq=False)
class DeferredMatrix(Operator):
    """One of the two matrices of `StrategyMatrices`, computed at the first operation on it.

    If ``reconstruction`` is False, this is the matrix of the strategy rows.  If it is True, this is
    the matrix that maps strategy answers to residual coordinates.
    """

    matrices: StrategyMatrices
    reconstruction: bool = False
    transposed: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        n, rank = self.matrices.cells, self.matrices.rank
        shape = (n - 1, rank) if self.reconstruction else (rank, n)
        return shape[::-1] if self.transposed else shape

    def transpose(self) -> DeferredMatrix:
        return replace(self, transposed=not self.transposed)

    @property
    def formed(self) -> Array | Operator:
        """The matrix as an array, or as an operator with a formula for its products."""
        matrix = self.matrices.formed[1 if self.reconstruction else 0]
        return matrix.T if self.transposed else matrix

    def dense(self) -> Array:
        return np.asarray(self.formed)

    def _apply(self, tensor: Array) -> Array:
        return np.asarray(tensor @ self.formed)


@dataclass(frozen=True, kw_only=True, eq=False)
class DeferredStrategy(Strategy):
    """Strategy on a residual space of one wide attribute whose matrices are computed when read."""

    matrices: StrategyMatrices

    def column_costs(self, law: str) -> Array:
        # `by_rows` may have replaced ``rows``, but ``matrices`` still has the costs of the original
        # rows.
        if isinstance(self.rows, DeferredMatrix) and law != "laplace":
            return self.matrices.column_costs
        return super().column_costs(law)

    @cached_property
    def column_norm(self) -> float:
        return math.sqrt(float(self.column_costs("gaussian").max()))


@dataclass(frozen=True, kw_only=True, eq=False)
class IntervalStrategy(DeferredStrategy):
    """Strategy of interval queries on a residual space of one wide attribute."""

    matrices: IntervalMatrices

    @property
    def solution(self) -> IntervalSolution:
        """Dual weights that determine the strategy."""
        return self.matrices.solution

    @cached_property
    def cell_covariance(self) -> Array:
        covariance = self.solution.covariance()
        return _table_differences(_table_differences(covariance).T)

    @cached_property
    def _variance_sums(self) -> tuple[float, float, float]:
        """Summed variance of all cells, of all prefixes, and of all ranges, at noise scale 1.

        The sum over ranges is NaN if the strategy was optimised for queries without ranges.
        """
        gram = self.solution.space.gram
        cells = float(self.solution.cell_variances().sum())
        prefixes = float(self.solution.prefix_variances().sum())
        if gram.ranges == 0.0:
            return cells, prefixes, math.nan
        weighted_ranges = self.solution.value - gram.marginal * cells
        weighted_ranges -= (gram.prefix + gram.suffix) * prefixes
        return cells, prefixes, weighted_ranges / gram.ranges

    def total_variance(self, gram: IntervalGram) -> float:
        """Return the sum of weight times variance of all queries at noise scale 1, in counts^2.

        ``gram`` may have ranges only if the strategy was optimised for queries with ranges.
        """
        cells, prefixes, ranges = self._variance_sums
        total = gram.marginal * cells + (gram.prefix + gram.suffix) * prefixes
        return total + (gram.ranges * ranges if gram.ranges > 0.0 else 0.0)

    def query_variances(self, part: Part) -> Array:
        if part.family.key not in (("marginal",), ("prefix",), ("suffix",), ("range",)):
            return super().query_variances(part)
        first, end = part.family.bounds(self.cells)  # type: ignore[attr-defined]
        if part.count <= 2 * self.cells:
            return self.solution.range_variances(first, end - 1)
        covariance = self.solution.covariance()
        # The prefix of all cells is the total, which has no component in the residual space.  So
        # its variance is 0.
        squares = np.pad(np.diagonal(covariance), 1)
        # Ranges are listed by their first cell: ``rows[i]`` is for the ranges that begin at cell i.
        # A range is the difference of two prefixes: Var(a - b) = Var a + Var b - 2 Cov(a, b).
        rows = [squares[i] + squares[i + 1 :] for i in range(self.cells)]
        for i in range(1, self.cells):
            rows[i][:-1] -= 2.0 * covariance[i - 1, i:]
        variances = np.concatenate(rows)
        return np.asarray(np.maximum(variances, 0.0, out=variances))


def _table_differences(potentials: Array) -> Array:
    """Return z_i - z_(i-1) for i = 1..n and every column z, shape (n, k).

    ``potentials`` has shape (n - 1, k); z_0 and z_n are 0.
    """
    zero = np.zeros((1, potentials.shape[1]))
    return np.diff(potentials, axis=0, prepend=zero, append=zero)


def interval_solution(
    gram: IntervalGram,
    options: Options,
    dual: Array | None = None,
    center: Array | None = None,
) -> Solution:
    """Return a strategy of interval queries on a residual space, with its gap.

    Parameters
    ----------
    gram : weights of the marginal, prefix, suffix and range queries.
    options : stopping rule of the search.
    dual : dual weights of an earlier search, shape (n,); if given, they determine the strategy and
        there is no search.
    center : center of the residual space, shape (n,); None for a uniform one.
    """
    if gram.is_marginal and center is None:
        return marginal_solution(gram.cells, gram.marginal)
    space = IntervalSpace(gram=gram, center=center)
    if dual is None:
        solution = solve(
            space, gap=options.gap, evaluations=options.evaluations, deadline=options.deadline
        )
    else:
        solution = evaluate(space, dual)
    return deferred_solution(
        IntervalStrategy,
        IntervalMatrices(solution=solution),
        is_proved=dual is not None or solution.gap <= options.gap,
    )


def deferred_solution(
    strategy: type[DeferredStrategy], matrices: StrategyMatrices, *, is_proved: bool
) -> Solution:
    """Return a strategy of the class ``strategy`` with its value and its bound.

    ``matrices`` computes the matrices of the strategy on demand.  ``is_proved`` is False if a limit
    ended the search for the dual weights.
    """
    solution = matrices.solution
    return Solution(
        strategy=strategy(
            sizes=(matrices.cells,),
            rows=cast(Array, DeferredMatrix(matrices=matrices)),
            pinv=cast(Array, DeferredMatrix(matrices=matrices, reconstruction=True)),
            complete=matrices.rank == matrices.cells - 1,
            matrices=matrices,
        ),
        value=solution.value,
        bound=solution.bound,
        dual=solution.dual,
        status="optimal" if is_proved else "stopped at the limits of the search",
    )
