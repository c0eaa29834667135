"""Strategy search for one Gram matrix: its inputs and its cache key."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from engine._arrays import Array
from engine._clock import planning_time
from engine._threads import threads_for
from engine.residuals.basis import Axes, Complement, Lift, SplitLift, digest
from engine.residuals.decomposition import DeferredFactor, Factor
from engine.residuals.dual_solver import (
    DualProblem,
    FixedBasisProblem,
    FourierProblem,
    Options,
    Solution,
    Watch,
)
from engine.residuals.interval_solver import IntervalSpace
from engine.residuals.interval_solver import solve as solve_intervals
from engine.residuals.search_costs import DENSE_PRODUCT_FLOPS, eigen_seconds

# part of every cache key; raise the number if a code change may change the weights of a search
FORMAT = "search/3"
DEFAULT_OPTIONS = Options()
# share of uniform weights that is mixed into initial weights from another search
UNIFORM_SHARE = 1e-4
# A search from given initial weights that makes no more progress is repeated from uniform weights
# if its gap is more than this factor times the required gap.
MAX_GAP_RATIO = 100.0
# On at least this number of cells, dual weights of interval queries are searched without matrices,
# and one evaluation with matrices follows.  Both together are faster than a search with matrices.
MIN_LINEAR_CELLS = 200
# The search without matrices ends at this share of the required gap.  So its weights prove the
# required gap in the evaluation with matrices, despite rounding errors.
LINEAR_GAP_SHARE = 0.9
# measured time from the last step of a search to the complete plan, relative to the time to set up
# the dual problem: typical value, value for a Gram of low rank, and value for a Gram of full rank
STRATEGY_TIME_RATIO, LOW_RANK_TIME_RATIO, FULL_RANK_TIME_RATIO = 2.5, 1.4, 3.2
# If the dual problem is set up before the deadline, the search may take at least this share of the
# time of the setup.  Sums of 365 x 101 cells had twice the RMSE without a step, and were 2% above
# the optimum after 6 steps in this time.
MIN_SEARCH_RATIO = 0.3
PROBLEMS: Mapping[str, type[DualProblem]] = {
    "optimal": DualProblem,
    "eigenbasis": FixedBasisProblem,
    "fourier": FourierProblem,
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Search:
    """Inputs of one strategy search.

    Attributes
    ----------
    factor : the residual Gram.
    centers : one center per attribute, shape (n_i,), None for a uniform one.
    complements : mapping from the positions of a pair's attributes to its complement (tuned split).
    spaces : if one strategy measures several residual spaces, the positions of the attributes of
        each space; empty if it measures the residual space of all attributes only.
    method : "optimal", or an approximate construction: "eigenbasis" or "fourier".
    options : stopping rule.  Its deadline is not part of the cache key, because searches that are
        ended by the deadline are not stored.
    """

    factor: Factor
    centers: tuple[Array | None, ...]
    complements: Mapping[Axes, Complement] = field(default_factory=dict)
    spaces: tuple[Axes, ...] = ()
    method: str = "optimal"
    options: Options = DEFAULT_OPTIONS

    @property
    def cells(self) -> int:
        """Number of cells of the table."""
        return math.prod(self.factor.sizes)

    @cached_property
    def shape(self) -> str:
        """Hash of all inputs except the entries of the Gram and the stopping rule."""
        kind = (
            FORMAT,
            self.method,
            self.factor.sizes,
            self.factor.low_rank,
            self.factor.matrix.shape,
        )
        complements = tuple((pair, self.complements[pair].key) for pair in sorted(self.complements))
        split = tuple(map(digest, self.centers)), complements, self.spaces
        return hashlib.sha256(repr((kind, split)).encode()).hexdigest()

    @cached_property
    def key(self) -> str:
        """Hash of all inputs except the deadline; a result serves all searches with its key."""
        head = repr((self.shape, self.options.gap, self.options.evaluations)).encode()
        return hashlib.sha256(head + np.ascontiguousarray(self.factor.matrix).tobytes()).hexdigest()

    @cached_property
    def fingerprint(self) -> Array:
        """Diagonal of the residual Gram divided by its trace, shape (residual coordinates,).

        Two searches of equal ``shape`` are similar if their fingerprints are close.
        """
        matrix = self.factor.matrix
        diagonal = (
            np.einsum("rc,rc->c", matrix, matrix) if self.factor.low_rank else np.diagonal(matrix)
        )
        shares: Array = diagonal / diagonal.sum()
        return shares

    def problem(self) -> DualProblem:
        """Return the dual problem of this search, with copies of all arrays."""
        sizes = self.factor.sizes
        # The last digit of a sum depends on memory order and alignment.  Copies fix both, so that
        # every process computes the same digits.
        matrix, low_rank = np.array(self.factor.matrix, order="C"), self.factor.low_rank
        factor = Factor(sizes=sizes, matrix=matrix, low_rank=low_rank)
        centers = [None if pi is None else np.array(pi) for pi in self.centers]
        lift = Lift(sizes, centers)
        if self.spaces or self.complements:
            copies = {}
            for pair in sorted(self.complements):
                first, second = (np.array(D, order="C") for D in self.complements[pair].by_axis)
                copies[pair] = Complement(
                    by_axis=(first, second), by_total=np.array(self.complements[pair].by_total)
                )
            lift = SplitLift(sizes, centers, self.spaces or (tuple(range(len(sizes))),), copies)
        return PROBLEMS[self.method](lift=lift, factor=factor)

    def cell_weights(self, mass: Array) -> Array:
        """Return the dual weight of every cell, shape (cells,), scaled to sum 1.

        ``mass`` holds the summed weight of every orbit of cells, shape (orbits,).
        """
        problem = self.problem()
        weights: Array = (mass / problem.multiplicity)[problem.orbit] / mass.sum()
        return weights

    def run(
        self,
        warm_start: Array | None = None,
        similar_weights: Array | None = None,
        watch: Watch | None = None,
    ) -> Solution:
        """Search for the optimal strategy.

        Parameters
        ----------
        warm_start : dual weights of a search with the same key, shape (orbits,).  If they prove the
            required gap, they determine the result; otherwise the search starts near them.
        similar_weights : dual weights of a similar search, shape (orbits,).  The search starts near
            them if there is no ``warm_start`` and no faster search finds initial weights.
        watch : called with the relative RMSE gap after every evaluation; may raise to cancel.

        All parameters may be None.
        """
        began = planning_time()
        with threads_for(self.factor.rank):
            problem = self.problem()
        # Time for the strategy, which is computed after the search, is subtracted from the time
        # limit.
        now = planning_time()
        ratio = LOW_RANK_TIME_RATIO if self.factor.low_rank else FULL_RANK_TIME_RATIO
        setup_seconds = now - began
        deadline = self.options.deadline - ratio * setup_seconds
        if self.options.deadline > now:
            deadline = max(deadline, now + MIN_SEARCH_RATIO * setup_seconds)
        if now + _evaluation_seconds(problem) > deadline:
            deadline = -math.inf  # not even one step fits
        options = replace(self.options, deadline=deadline)
        # Symmetries divide the matrices of an evaluation into blocks, so the number of threads
        # follows from the order of the largest block, not from the rank.
        with threads_for(problem.largest_block):
            if warm_start is None and (weights := self._interval_weights(options)) is not None:
                warm_start = np.bincount(problem.orbit, weights, problem.variables).astype(float)
            if (
                warm_start is not None
                and is_usable(problem, warm_start)
                and self._proves(problem, warm_start)
            ):
                return problem.solution(warm_start, "optimal")
            initial = initial_weights(
                problem, similar_weights if warm_start is None else warm_start
            )
            mass, status = problem.maximise(options, initial, watch=watch)
            best = problem.solution(mass, status)
            # bad initial weights may be the cause of a large gap, so the search is repeated from
            # uniform weights
            if (
                initial is not None
                and status.startswith("stopped where")
                and best.gap > MAX_GAP_RATIO * self.options.gap
            ):
                repeated = problem.solution(*problem.maximise(options, watch=watch))
                best = min(best, repeated, key=lambda s: s.gap)
            return best

    def _interval_weights(self, options: Options) -> Array | None:
        """Return dual weights of the cells from a search in linear time, shape (cells,), sum 1.

        This requires a search for the optimal strategy, and the Gram of interval queries of one
        kind on at least `MIN_LINEAR_CELLS` cells.  Otherwise the result is None.
        """
        gram = self.factor.interval_gram if isinstance(self.factor, DeferredFactor) else None
        if gram is None or gram.cells < MIN_LINEAR_CELLS or self.method != "optimal":
            return None
        solution = solve_intervals(
            IntervalSpace(gram=gram, center=self.centers[0]),
            gap=LINEAR_GAP_SHARE * options.gap,
            evaluations=options.evaluations,
            deadline=options.deadline,
        )
        return solution.dual

    def _proves(self, problem: DualProblem, mass: Array) -> bool:
        """Return whether dual weights prove the required gap, up to rounding errors.

        A search stops as soon as its weights prove the gap.  When such weights are read again, they
        may miss the gap by rounding errors, so a small tolerance is added.
        """
        T, d = problem.evaluate(mass)
        gap = math.sqrt(float(d.max()) * float(mass.sum()) / T) - 1.0
        return gap <= self.options.gap * (1.0 + 1e-6) + 1e-15

    def replay(self, mass: Array, status: str) -> Solution:
        """Return the strategy of recorded dual weights without a search; their gap is not checked.

        ``mass`` has shape (orbits,); ``status`` is that of the recorded search.

        Raises
        ------
        ValueError : the number of weights is not that of the problem.
        """
        with threads_for(self.factor.rank):
            problem = self.problem()
        if len(mass) != problem.variables:
            raise ValueError(
                f"There are {len(mass)} stored dual weights, but this search needs"
                f" {problem.variables}. Use the dual weights of a search with the same inputs."
            )
        with threads_for(problem.largest_block):
            return problem.solution(mass, status)


def _evaluation_seconds(problem: DualProblem) -> float:
    """Return the expected time of one evaluation of a dual, in seconds on one idle core."""
    return math.fsum(
        4.0 * len(W) * W.size / DENSE_PRODUCT_FLOPS + eigen_seconds(len(W))
        for W in problem.projected
    )


def is_usable(problem: DualProblem, mass: Array | None) -> bool:
    """Return whether ``mass`` is a valid vector of dual weights for a problem.

    Valid weights have shape (orbits,), are at least 0 and have sum 1.
    """
    return (
        mass is not None
        and mass.shape == (problem.variables,)
        and bool(np.isfinite(mass).all() and (mass >= 0.0).all())
        and abs(float(mass.sum()) - 1.0) < 1e-9
    )


def initial_weights(problem: DualProblem, similar_weights: Array | None) -> Array | None:
    """Return initial weights, shape (orbits,), made from the weights of a similar search.

    A small share of uniform weights is mixed in, because a weight of zero would remain zero during
    the search.  The result is None if ``similar_weights`` is None or not valid for the problem.
    """
    if similar_weights is None or not is_usable(problem, similar_weights):
        return None
    uniform = UNIFORM_SHARE * problem.multiplicity / problem.multiplicity.sum()
    mixed: Array = (1.0 - UNIFORM_SHARE) * similar_weights + uniform
    return mixed
