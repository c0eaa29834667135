"""Expected time and memory of strategy searches, before anything is computed."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias
from weakref import WeakKeyDictionary

from engine._arrays import Array
from engine.residuals.basis import Lift
from engine.residuals.decomposition import Factor
from engine.residuals.dual_solver import SYMMETRY_FROM, Options, count_symmetries
from engine.residuals.interval_solver import IntervalGram
from engine.residuals.level_solver import LevelGram
from engine.residuals.window_solver import WindowGram, window_bytes, window_evaluation_seconds

# assumed floating-point operations per second on one core, for matrix products and for eigenvalue
# problems
PRODUCT_FLOPS, EIGEN_FLOPS = 2e10, 8e9
# assumed operations per second for products of matrices with hundreds of rows
DENSE_PRODUCT_FLOPS = 4.5e10
# forecasts assume no symmetries for Grams of full rank with more residual coordinates than this,
# because counting symmetries would take too long
MAX_SYMMETRY_COORDINATES = 5_000
# expected number of sweeps of an alternating search, for forecasts
ALTERNATING_SWEEPS = 10
# Largest number of singular directions that the pinching bound of `alternating_search` puts into
# one block with the rows that couple axes.
MAX_COUPLED_DIRECTIONS = 600
# largest expected time of the lower bound of `alternating_search` for sums of products, in seconds
MAX_PRODUCT_BOUND_S = 2.0
# measured time of a plan that is stopped before the first step of its search, relative to the
# expected time to set up the search, for a Gram of low rank and for a Gram of full rank
LOW_RANK_START_RATIO, FULL_RANK_START_RATIO = 3.5, 1.4
# measured least time of a dense search, which small searches need for calls of functions
MIN_SEARCH_S = 1e-3
# measured least time of an evaluation of the dual and a step of L-BFGS
MIN_STEP_S = 1.5e-4
# measured number of evaluations of the dual at a gap of 1e-6 if Newton steps end the search
NEWTON_EVALUATIONS = 25
# Gram of queries on one wide attribute that is solved without a matrix of order n - 1
MatrixFreeGram: TypeAlias = IntervalGram | LevelGram | WindowGram
# expected number of steps of the search for the precisions of areas
LEVEL_STEPS = 200
# Expected times per area in seconds: of one step of the search for the precisions of areas, and of
# the search for equal areas.
SECONDS_PER_AREA, CLASS_SECONDS = 3e-7, 3e-6
# expected number of evaluations of the dual of windows
WINDOW_EVALUATIONS = 16


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
    factors: Sequence[Factor],
    gap: float,
    dimension: int | None = None,
) -> Cost:
    """Return the expected cost of a search for a Gram that is stored as ``rank`` rows.

    Parameters
    ----------
    sizes : domain sizes of the attributes.
    rank : number of rows.
    factors : the Grams whose sum is the Gram.  Their common symmetries are counted, because
        symmetries save time; an empty sequence to assume that the Gram has no symmetries.
    gap : required relative RMSE gap.
    dimension : number of residual coordinates if one strategy measures several residual spaces;
        None for one space on all attributes.
    """
    cells = math.prod(sizes)
    dimension = math.prod(n - 1 for n in sizes) if dimension is None else dimension
    reversals, swaps = 0, 0
    if factors and dimension >= SYMMETRY_FROM:
        counts = [_example_symmetries(factor) for factor in factors]
        reversals, swaps = min(r for r, _ in counts), min(s for _, s in counts)
    # Every reversal divides the order of the blocks by 2.  Every reversal and every swap divides
    # the number of orbits of cells by 2.
    blocks, orbits = 2**reversals, cells / 2 ** (reversals + swaps)
    block_rank = math.ceil(rank / blocks)
    # approximate operation counts
    product_seconds = 4.0 * block_rank**2 * orbits / DENSE_PRODUCT_FLOPS
    product_seconds += 24.0 * block_rank * orbits / PRODUCT_FLOPS
    step_cost = blocks * (product_seconds + eigen_seconds(block_rank)) + MIN_STEP_S
    steps = _low_rank_steps(factors, block_rank, orbits, gap)
    setup_seconds = (6.0 * rank * rank + 40.0 * rank) * cells / PRODUCT_FLOPS
    strategy_bytes = 8.0 * rank * (cells + 2.0 * dimension)
    return Cost(
        seconds=steps * step_cost + setup_seconds,
        peak=dense_bytes(rank, dimension, cells),
        saved=strategy_bytes,
        least_seconds=LOW_RANK_START_RATIO * setup_seconds + MIN_SEARCH_S,
    )


def _low_rank_steps(factors: Sequence[Factor], rank: int, orbits: float, gap: float) -> float:
    """Return the expected number of evaluations of the dual for a Gram of low rank.

    Newton steps end a search after about `NEWTON_EVALUATIONS` evaluations if few weights are
    positive.  This is expected for one set of nested queries, and for so few rows that the strategy
    has at most half as many degrees of freedom as there are orbits of cells.  The number of
    evaluations grows with the digits of the gap.
    """
    is_nested = len(factors) == 1 and factors[0].nested
    if is_nested or rank * (rank + 1) <= orbits:
        evaluations = NEWTON_EVALUATIONS
    else:
        evaluations = min(8.0 * orbits**0.47, Options().evaluations)
    return evaluations * max(1.0, -2.0 - math.log10(gap)) / 4.0


# results of `_example_symmetries`; planning forecasts the cost of a Gram several times
_SYMMETRIES: WeakKeyDictionary[Factor, tuple[int, int]] = WeakKeyDictionary()


def _example_symmetries(factor: Factor) -> tuple[int, int]:
    """Return how many of the symmetries of a Gram are reversals, and how many are swaps."""
    if factor not in _SYMMETRIES:
        example = factor.example
        _SYMMETRIES[factor] = (
            (0, 0) if example is None else count_symmetries(example, Lift(example.sizes))
        )
    return _SYMMETRIES[factor]


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
    joint : the summands of the Gram that consist of one factor on all attributes.
    gap : required relative RMSE gap.
    dimension : None for one residual space on all attributes.  If one strategy measures several
        residual spaces, their number of residual coordinates; in this case no symmetries are
        assumed.
    centers : center of every attribute, shape (n_i,), None for uniform.  If ``joint`` is empty, an
        attribute with a tuned center is assumed to have no symmetry; otherwise centers are ignored.
    """
    several_spaces, cells = dimension is not None, math.prod(sizes)
    dimension = math.prod(n - 1 for n in sizes) if dimension is None else dimension
    if several_spaces or not SYMMETRY_FROM <= dimension <= MAX_SYMMETRY_COORDINATES:
        symmetry_counts = [0]
    else:
        symmetry_counts = [sum(_example_symmetries(f)) for f in joint]
    # Without summands in ``joint``, the Gram is assumed to be invariant under the reversal of every
    # attribute with a uniform center.
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
    seconds = steps * step_cost + setup_seconds + MIN_SEARCH_S
    strategy_bytes = 8.0 * dimension * (cells + 2.0 * dimension)
    return Cost(
        seconds=seconds,
        peak=dense_bytes(dimension, dimension, cells),
        saved=strategy_bytes,
        least_seconds=FULL_RANK_START_RATIO * setup_seconds + MIN_SEARCH_S,
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
        full_rank_cost((n,), [], gap, centers=[pi]) for n, pi in zip(sizes, centers, strict=True)
    ]
    entries = sum(ranks) * math.prod(n - 1 for n in sizes)
    coupled_seconds = 4.0 * entries * sum(sizes) / PRODUCT_FLOPS  # per sweep
    seconds = ALTERNATING_SWEEPS * (math.fsum(c.seconds for c in axis_costs) + coupled_seconds)
    # the lower bound needs the singular values of a matrix with one column per direction
    directions = min(MAX_COUPLED_DIRECTIONS, math.prod(n - 1 for n in sizes))
    bound_entries = (directions + sum(ranks)) * directions if ranks else 0
    bound_seconds = 1.2 * bound_entries * directions / EIGEN_FLOPS
    # a number takes 8 bytes; the search needs several arrays of each size
    peak = max(c.peak for c in axis_costs) + 8.0 * (8.0 * entries + 3.0 * bound_entries)
    return Cost(
        seconds=seconds + bound_seconds,
        peak=peak,
        saved=math.fsum(c.saved for c in axis_costs),
        alternates=True,
        # one search per axis for the lower bound, and one sweep
        least_seconds=2.0 * math.fsum(c.least_seconds for c in axis_costs)
        + coupled_seconds
        + bound_seconds,
    )


def leading_directions(dimensions: Sequence[int]) -> list[int]:
    """Return how many directions of every set form one block of the lower bound for products.

    ``dimensions`` has the number of residual coordinates of every set of axes.

    >>> leading_directions([364, 100]), leading_directions([20, 20, 3])
    ([24, 24], [8, 8, 3])
    """
    # The small term keeps the root of a power, such as 8 ** 3, above the integer.
    largest = int(MAX_COUPLED_DIRECTIONS ** (1.0 / max(len(dimensions), 1)) + 1e-9)
    return [min(largest, dimension) for dimension in dimensions]


def product_bound_seconds(dimensions: Sequence[int], terms: int) -> float:
    """Return the expected time of the lower bound of an alternating search for products, in seconds.

    Parameters
    ----------
    dimensions : number of residual coordinates of every set of axes.
    terms : number of products in the sum.
    """
    leading = leading_directions(dimensions)
    seconds = math.fsum((terms + 3) * 2.0 * eigen_seconds(n) for n in dimensions)
    for is_leading in itertools.product((True, False), repeat=len(dimensions)):
        pairs = list(zip(dimensions, leading, is_leading, strict=True))
        directions = math.prod(k for _, k, takes_leading in pairs if takes_leading)
        blocks = math.prod(n - k for n, k, takes_leading in pairs if not takes_leading)
        seconds += blocks * (eigen_seconds(directions) + 1e-9 * terms * directions**2)
    return seconds


def matrix_free_cost(gram: MatrixFreeGram) -> Cost:
    """Return the expected cost of the search for a Gram on one wide attribute without a matrix."""
    n = gram.cells
    # Seconds per area, level or cell are measured.  Memory is 8 bytes times a number of doubles.
    if isinstance(gram, WindowGram):
        # the n x n matrices for variances of queries that are not in the Gram are not counted
        return Cost(
            seconds=WINDOW_EVALUATIONS * window_evaluation_seconds(gram),
            peak=window_bytes(gram),
            saved=8.0 * 2.0 * n,
        )
    if isinstance(gram, LevelGram):
        areas = sum(gram.tree.counts)
        classes = sum(gram.problem.quotient.tree.counts)
        seconds = LEVEL_STEPS * (SECONDS_PER_AREA * classes + 1e-4 * gram.tree.depth)
        seconds += CLASS_SECONDS * areas
        return Cost(seconds=seconds, peak=8.0 * 60.0 * areas, saved=8.0 * 2.0 * areas)
    if gram.is_marginal:
        return Cost(seconds=1e-4, peak=0.0, saved=0.0)
    # the search needs memory in proportion to n; the variances of all ranges need an n x n matrix
    peak_entries = 4.5 * n * n if gram.ranges else 100.0 * n
    return Cost(seconds=7e-5 * n, peak=8.0 * peak_entries, saved=8.0 * 2.0 * n)
