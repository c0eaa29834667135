"""Optimal strategies of windows on a residual space, as `Strategy`; matrices are formed when read.

`engine.residuals.window_solver` computes dual weights, costs and variances without a matrix of shape
(cells, cells).  Such matrices are needed only to draw noise and to estimate queries.  They are then
computed from the dual weights by `engine.residuals.dual_solver`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from engine._arrays import Array
from engine._threads import threads_for
from engine.residuals.basis import Lift, basis
from engine.residuals.decomposition import Factor, wide_window_gram
from engine.residuals.dual_solver import DualProblem, Options, Solution
from engine.residuals.marginals import DeferredStrategy, StrategyMatrices, deferred_solution
from engine.residuals.strategy import Strategy
from engine.residuals.window_solver import (
    WindowGram,
    WindowSolution,
    WindowSpace,
    evaluate,
    solve,
)
from engine.workload import Part, Width


@dataclass(frozen=True, kw_only=True, eq=False)
class WindowMatrices(StrategyMatrices):
    """Matrices of the strategy of windows."""

    solution: WindowSolution

    @property
    def rank(self) -> int:
        return self.solution.space.gram.residual_rank

    @cached_property
    def strategy(self) -> Strategy:
        """Strategy with the formed matrices, before its rows are scaled."""
        n, width, space = self.cells, self.solution.space.gram.width, self.solution.space
        with threads_for(n):
            N = basis(n)
            factor = Factor(sizes=(n,), matrix=N.T @ Width(width).gram((n,)) @ N)
            problem = DualProblem(lift=Lift((n,), [space.center]), factor=factor)
            weights = np.bincount(problem.orbit, self.solution.dual, problem.variables)
            return problem.solution(weights.astype(float), "optimal").strategy

    def _computed(self) -> tuple[Array, Array]:
        return self.strategy.rows.copy(), self.strategy.pinv


@dataclass(frozen=True, kw_only=True, eq=False)
class WindowStrategy(DeferredStrategy):
    """Strategy of all windows of one width on a residual space of one wide attribute."""

    matrices: WindowMatrices

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
    return deferred_solution(
        WindowStrategy,
        WindowMatrices(solution=solution),
        is_proved=dual is not None or solution.gap <= options.gap,
    )
