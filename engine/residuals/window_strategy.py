"""Optimal strategies of windows on a residual space, as `Strategy`; matrices are formed when read.

`engine.residuals.windows` computes dual weights, costs and variances without a matrix of shape
(cells, cells).  Such matrices are needed only to draw noise and to estimate queries.  They are then
computed from the dual weights by `engine.residuals.dual_solver`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import numpy as np

from engine._arrays import Array
from engine._threads import threads_for
from engine.residuals.basis import Lift, basis
from engine.residuals.decomposition import Factor, wide_window_gram
from engine.residuals.dual_solver import DualProblem, Options, Solution
from engine.residuals.marginals import DeferredMatrix
from engine.residuals.strategy import Strategy
from engine.residuals.windows import (
    WindowGram,
    WindowSolution,
    WindowSpace,
    evaluate,
    solve,
)
from engine.workload import Part, Width


@dataclass(frozen=True, kw_only=True, eq=False)
class WindowMatrices:
    """Matrices of the strategy of windows, computed when they are first read."""

    solution: WindowSolution

    @property
    def cells(self) -> int:
        """Number of cells."""
        return self.solution.space.cells

    @property
    def rank(self) -> int:
        """Number of strategy rows."""
        return self.solution.space.gram.residual_rank

    @property
    def column_costs(self) -> Array:
        """Upper bound on the squared norm of every column of the strategy rows, shape (n,)."""
        norms = self.solution.norms
        return np.asarray(norms / norms.max())

    @cached_property
    def strategy(self) -> Strategy:
        """Strategy with the formed matrices."""
        n, width, space = self.cells, self.solution.space.gram.width, self.solution.space
        with threads_for(n):
            N = basis(n)
            factor = Factor(sizes=(n,), matrix=N.T @ Width(width).gram((n,)) @ N)
            problem = DualProblem(lift=Lift((n,), [space.center]), factor=factor)
            weights = np.bincount(problem.orbit, self.solution.dual, problem.variables)
            return problem.solution(weights.astype(float), "optimal").strategy

    @cached_property
    def formed(self) -> tuple[Array, Array]:
        """Strategy rows and the matrix that estimates residual coordinates from their answers.

        Shapes (rank, n) and (n - 1, rank).
        """
        rows = self.strategy.rows
        # Rounding errors can make the squared norm of a column larger than its stated privacy cost
        # in ``column_costs``.  The rows are scaled to prevent this.
        squares = np.einsum("rc,rc->c", rows, rows)
        scale = min(1.0, math.sqrt(float((self.column_costs / squares).min())))
        return rows * scale, self.strategy.pinv / scale


@dataclass(frozen=True, kw_only=True, eq=False)
class WindowStrategy(Strategy):
    """Strategy of all windows of one width on a residual space of one wide attribute."""

    matrices: WindowMatrices

    def column_costs(self, law: str) -> Array:
        # The costs of ``matrices`` hold for its own rows.  `by_rows` may have replaced these rows.
        if isinstance(self.rows, DeferredMatrix) and law != "laplace":
            return self.matrices.column_costs
        return super().column_costs(law)

    @cached_property
    def column_norm(self) -> float:
        return math.sqrt(float(self.column_costs("gaussian").max()))

    @property
    def rank(self) -> int:
        return self.matrices.rank

    @cached_property
    def span(self) -> Array:
        return self.matrices.strategy.span

    def covers(self, part: Part) -> bool:
        return self._is_own(part)

    def query_variances(self, part: Part) -> Array:
        if self._is_own(part):
            return self.matrices.solution.window_variances
        return super().query_variances(part)

    def _is_own(self, part: Part) -> bool:
        """Return whether the queries of a part are the windows of this strategy."""
        gram = wide_window_gram(part)
        return gram is not None and gram == self.matrices.solution.space.gram


def window_solution(
    gram: WindowGram,
    options: Options,
    dual: Array | None = None,
    center: Array | None = None,
) -> Solution:
    """Return a strategy of windows on a residual space, with its gap.

    Parameters
    ----------
    gram : the windows, without a weight of the total.
    options : stopping rule of the search.
    dual : dual weights of an earlier search, shape (n,); if given, they determine the strategy and
        there is no search.
    center : center of the residual space, shape (n,); None for a uniform one.
    """
    space = WindowSpace(gram=gram, center=center)
    if dual is None:
        solution = solve(
            space, gap=options.gap, evaluations=options.evaluations, deadline=options.deadline
        )
    else:
        solution = evaluate(space, dual)
    matrices = WindowMatrices(solution=solution)
    strategy = WindowStrategy(
        sizes=(gram.cells,),
        rows=cast(Array, DeferredMatrix(matrices=matrices)),
        pinv=cast(Array, DeferredMatrix(matrices=matrices, reconstruction=True)),
        complete=matrices.rank == gram.cells - 1,
        matrices=matrices,
    )
    return Solution(
        strategy=strategy,
        value=solution.value,
        bound=solution.bound,
        dual=solution.dual,
        status=(
            "optimal"
            if dual is not None or solution.gap <= options.gap
            else "stopped at the limits of the search"
        ),
    )
