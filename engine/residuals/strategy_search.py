"""Strategy search for one Gram matrix: its inputs, its cache key, and its expected cost."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from engine._arrays import Array
from engine._clock import planning_time
from engine._threads import threads_for
from engine.residuals.basis import Axes, Complement, Lift, SplitLift, digest
from engine.residuals.decomposition import DeferredFactor, Factor
from engine.residuals.dual_solver import (
    SYMMETRY_FROM,
    DualProblem,
    FixedBasisProblem,
    FourierProblem,
    Options,
    Solution,
    Watch,
    count_symmetries,
)
from engine.residuals.intervals import IntervalSpace
from engine.residuals.intervals import solve as solve_intervals

# part of every cache key; raise the number if a code change may change the weights of a search
FORMAT = "search/3"
# assumed floating-point operations per second on one core, for matrix products and for eigenvalue
# problems
PRODUCT_FLOPS, EIGEN_FLOPS = 2e10, 8e9
# assumed operations per second for products of matrices with hundreds of rows
DENSE_PRODUCT_FLOPS = 4.5e10
# forecasts assume no symmetries for Grams of full rank with more residual coordinates, because
# counting symmetries would take too long
MAX_SYMMETRY_COORDINATES = 5_000
DEFAULT_OPTIONS = Options()
# share of uniform weights that is mixed into initial weights from another search
UNIFORM_SHARE = 1e-4
# expected number of sweeps of an alternating search, for forecasts
ALTERNATING_SWEEPS = 10
# largest number of singular directions that the pinching bound combines with coupling rows, see
# `subworkload_solver`
MAX_COUPLED_DIRECTIONS = 600
# a search is repeated from uniform weights if its gap is more than this factor times the required
# gap
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
# measured time of a plan that is stopped before the first step of its search, relative to the
# expected time to set up the search, for a Gram of low rank and for a Gram of full rank
LOW_RANK_START_RATIO, FULL_RANK_START_RATIO = 3.5, 1.4
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
    complements : mapping from the positions of a pair's attributes to its tuned complement.
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
            # bad initial weights may be the cause of a large gap, so the search is repeated without
            # them
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

        This requires a search for the optimal strategy, and the Gram of interval queries of one kind
        on at least `MIN_LINEAR_CELLS` cells.  Otherwise the result is None.
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
                f"The record has {len(mass)} dual weights, but this search needs"
                f" {problem.variables}. Use the record of a search with the same inputs."
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


def dense_bytes(rank: int, dimension: int, cells: int) -> int:
    """Return the memory of one dense search, in bytes.

    ``rank`` is the rank of the Gram, ``dimension`` the number of residual coordinates, and
    ``cells`` the number of cells of the table.
    """
    gram = dimension * dimension if rank == dimension else 0
    return 8 * (5 * rank * cells + 4 * rank * dimension + 2 * gram + 4 * rank * rank + 64 * cells)


def step_seconds(rank: int, cells: int) -> float:
    """Return the expected time of one evaluation of a dual, in seconds on one idle core.

    ``rank`` is the rank of the Gram.  Symmetries, which would save time, are ignored.
    """
    return 4.0 * rank**2 * cells / PRODUCT_FLOPS + 12.0 * rank**3 / EIGEN_FLOPS


def eigen_seconds(rank: int) -> float:
    """Return the expected time of one symmetric eigenvalue problem, in seconds on one idle core.

    ``rank`` is the order of the matrix.  The formula was fitted to measured times; large matrices
    take less time per operation than small ones.
    """
    return 1.5e-6 * rank + 3e-8 * rank**2 + 1.4e-10 * rank**3


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Expected time and memory of a search.

    Attributes
    ----------
    seconds : time on one idle core, in seconds.
    peak : largest memory during the search, in bytes.
    saved : memory of the resulting strategy, in bytes.
    alternates : whether it is an alternating search, whose bound may stay below the error.
    least_seconds : time in seconds until there is a strategy, if a time limit ends the search at
        once; 0 if this time is short.
    """

    seconds: float
    peak: float
    saved: float
    alternates: bool = False
    least_seconds: float = 0.0


def low_rank_cost(
    sizes: tuple[int, ...],
    rank: int,
    factor: Factor | None,
    gap: float,
    dimension: int | None = None,
) -> Cost:
    """Return the expected cost of a search for a Gram that is stored as ``rank`` rows.

    Parameters
    ----------
    sizes : domain sizes of the attributes.
    rank : number of rows.
    factor : the Gram, whose symmetries are counted because they save time; None to assume that
        there are none.
    gap : required relative RMSE gap.
    dimension : number of residual coordinates if one strategy measures several residual spaces;
        None for one space on all attributes.
    """
    cells = math.prod(sizes)
    dimension = math.prod(n - 1 for n in sizes) if dimension is None else dimension
    reversals, swaps = 0, 0
    if factor is not None and dimension >= SYMMETRY_FROM:
        reversals, swaps = _example_symmetries(factor)
    # Every reversal divides the order of the blocks by 2.  Every reversal and every swap divides
    # the number of orbits of cells by 2.
    blocks, orbits = 2**reversals, cells / 2 ** (reversals + swaps)
    block_rank = math.ceil(rank / blocks)
    # Approximate operation counts; the number of steps grows with the digits of the gap.
    product_flops = (4.0 * block_rank**2 + 24.0 * block_rank) * orbits
    steps = 20.0 * max(1.0, -2.0 - math.log10(gap))
    step_cost = blocks * (product_flops / PRODUCT_FLOPS + 12.0 * block_rank**3 / EIGEN_FLOPS) + 3e-5
    setup_seconds = (6.0 * rank * rank + 40.0 * rank) * cells / PRODUCT_FLOPS
    strategy_bytes = 8.0 * rank * (cells + 2.0 * dimension)
    return Cost(
        seconds=steps * step_cost + setup_seconds,
        peak=dense_bytes(rank, dimension, cells),
        saved=strategy_bytes,
        least_seconds=LOW_RANK_START_RATIO * setup_seconds,
    )


def _example_symmetries(factor: Factor) -> tuple[int, int]:
    """Return how many of the symmetries of a Gram are reversals, and how many are swaps."""
    example = factor.example
    return (0, 0) if example is None else count_symmetries(example, Lift(example.sizes))


def full_rank_cost(
    sizes: tuple[int, ...],
    joint: Sequence[Factor],
    gap: float,
    dimension: int | None = None,
    centers: Sequence[Array | None] = (),
) -> Cost:
    """Return the expected cost of a search for a Gram of full rank.

    Parameters
    ----------
    sizes : domain sizes of the attributes.
    joint : summands of the Gram that are not products over the attributes.
    gap : required relative RMSE gap.
    dimension : None for one residual space on all attributes.  If one strategy measures several
        residual spaces, their number of residual coordinates; no symmetries are then assumed.
    centers : center of every attribute, shape (n_i,), None for uniform.  If ``joint`` is empty, an
        attribute with a tuned center is assumed to have no symmetry; otherwise centers are ignored.
    """
    several_spaces, cells = dimension is not None, math.prod(sizes)
    dimension = math.prod(n - 1 for n in sizes) if dimension is None else dimension
    if several_spaces or not SYMMETRY_FROM <= dimension <= MAX_SYMMETRY_COORDINATES:
        symmetry_counts = [0]
    else:
        symmetry_counts = [sum(_example_symmetries(f)) for f in joint]
    # a Gram of products only is assumed to be invariant under the reversal of every attribute with
    # a uniform center
    uniform_axes = len(sizes) - sum(pi is not None for pi in centers)
    blocks = 2 ** min(symmetry_counts, default=uniform_axes)
    order, orbits = math.ceil(dimension / blocks), cells / blocks
    # approximate operation counts; the number of steps grows with the digits of the gap
    steps = 2.0 + 2.0 * max(0.5, -2.0 - math.log10(gap))
    step_cost = blocks * (4.0 * order**2 * orbits / DENSE_PRODUCT_FLOPS + eigen_seconds(order))
    # time for the roots of the Gram before the steps, and for the strategy after them; the last
    # term is the time of memory access
    setup_seconds = (
        blocks * (6.0 * order**2 * dimension / DENSE_PRODUCT_FLOPS + 2.0 * eigen_seconds(order))
        + 2.2e-7 * dimension**2
    )
    seconds = steps * step_cost + setup_seconds + 1e-3
    strategy_bytes = 8.0 * dimension * (cells + 2.0 * dimension)
    return Cost(
        seconds=seconds,
        peak=dense_bytes(dimension, dimension, cells),
        saved=strategy_bytes,
        least_seconds=FULL_RANK_START_RATIO * setup_seconds,
    )


def fourier_cost(sizes: tuple[int, ...], rank: int | None = None) -> Cost:
    """Return the expected time and memory to compute a strategy in the Fourier basis.

    The strategy is computed by a formula, without a search.  ``rank`` is the number of rows of a
    Gram of low rank; None for a Gram of full rank.
    """
    cells, dimension = math.prod(sizes), math.prod(n - 1 for n in sizes)
    rank = dimension if rank is None else min(rank, dimension)
    seconds = 2e-4 + 1.5e-7 * dimension**2 + 2.0 * eigen_seconds(rank)
    strategy_bytes = 8.0 * dimension * (cells + 2.0 * dimension)
    peak = dense_bytes(rank, dimension, cells) + 8.0 * float(cells) ** 2
    return Cost(seconds=seconds, peak=peak, saved=strategy_bytes)


def alternating_cost(
    sizes: tuple[int, ...], ranks: Sequence[int], gap: float, centers: Sequence[Array | None]
) -> Cost:
    """Return the expected cost of an alternating search over single attributes.

    Parameters
    ----------
    sizes : domain sizes of the attributes.
    ranks : number of rows of every factor that is on several attributes.
    gap : required relative RMSE gap.
    centers : center of every attribute, shape (n_i,), None for uniform.
    """
    axis_costs = [
        full_rank_cost((n,), [], gap, None, [pi]) for n, pi in zip(sizes, centers, strict=True)
    ]
    entries = sum(ranks) * math.prod(n - 1 for n in sizes)
    seconds = (
        ALTERNATING_SWEEPS * math.fsum(c.seconds for c in axis_costs)
        + ALTERNATING_SWEEPS * 4.0 * entries * sum(sizes) / PRODUCT_FLOPS
    )
    # number of entries of the matrix whose singular values give the lower bound
    bound_entries = (MAX_COUPLED_DIRECTIONS + sum(ranks)) * MAX_COUPLED_DIRECTIONS if ranks else 0
    seconds += 12.0 * bound_entries * MAX_COUPLED_DIRECTIONS / EIGEN_FLOPS
    peak = max(c.peak for c in axis_costs) + 8.0 * (8.0 * entries + 3.0 * bound_entries)
    return Cost(
        seconds=seconds, peak=peak, saved=math.fsum(c.saved for c in axis_costs), alternates=True
    )
