"""Strategy search for one Gram matrix: its inputs, its identity for caches, and its cost."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from engine._arrays import Array
from engine._threads import threads_for
from engine.residuals.basis import Axes, Complement, Lift, SplitLift, digest
from engine.residuals.decomposition import Factor
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

# part of every key: raise the number when a search may end with other weights than before
FORMAT = "search/2"
# floating point operations per second of matrix products and of eigenvalue problems, on one core
PRODUCT_FLOPS, EIGEN_FLOPS = 2e10, 8e9
# floating point operations per second of products of matrices with hundreds of rows
DENSE_PRODUCT_FLOPS = 4.5e10
# largest number of residual coordinates for which a forecast counts symmetries
MAX_SYMMETRY_COORDINATES = 5_000
DEFAULT_OPTIONS = Options()
# share of uniform weights that is mixed into initial weights
UNIFORM_SHARE = 1e-4
# expected sweeps of an alternating search, for forecasts
ALTERNATING_SWEEPS = 10
# directions that the pinching bound of an alternating search treats jointly
MAX_COUPLED_DIRECTIONS = 600
# ratio of the final to the required gap above which a search is repeated from uniform weights
MAX_GAP_RATIO = 100.0
PROBLEMS: Mapping[str, type[DualProblem]] = {
    "optimal": DualProblem,
    "eigenbasis": FixedBasisProblem,
    "fourier": FourierProblem,
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Search:
    """One strategy search: a residual Gram, its lift, the kind of problem, and the stopping rule.

    Attributes
    ----------
    factor : the residual Gram.
    centers : one center vector per attribute, None for uniform.
    complements : mapping from the positions of a pair's attributes to its tuned complement.
    spaces : for several residual spaces that one strategy measures, the positions of the attributes
        of each; empty for the residual space on all attributes.
    method : a name in ``PROBLEMS``.
    options : stopping rule.  The deadline is not part of the identity, because a search that it
        ended is never stored.
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
        """Hash of the inputs except the entries of the Gram; searches of one shape have equally many
        weights.
        """
        kind = (
            FORMAT,
            self.method,
            self.factor.sizes,
            self.factor.low_rank,
            self.factor.matrix.shape,
        )
        passed = tuple((pair, self.complements[pair].key) for pair in sorted(self.complements))
        split = tuple(map(digest, self.centers)), passed, self.spaces
        return hashlib.sha256(repr((kind, split)).encode()).hexdigest()

    @cached_property
    def key(self) -> str:
        """Hash of all inputs that determine the result; equal keys have equal results."""
        head = repr((self.shape, self.options.gap, self.options.evaluations)).encode()
        return hashlib.sha256(head + np.ascontiguousarray(self.factor.matrix).tobytes()).hexdigest()

    @cached_property
    def fingerprint(self) -> Array:
        """Diagonal of the residual Gram divided by its trace, shape (residual coordinates,).

        It measures how similar two searches of the same shape are.
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
        # copies have a fixed memory order and alignment, so that sums have the same last digit in
        # every process
        factor = replace(self.factor, matrix=np.array(self.factor.matrix, order="C"))
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
        self, warm_start: Array | None = None, near: Array | None = None, watch: Watch | None = None
    ) -> Solution:
        """Search for the optimal strategy.

        Parameters
        ----------
        warm_start : dual weights of an equal search, shape (orbits,).  If they prove the required
            gap, they determine the result without a search; otherwise they are initial weights.
        near : dual weights of a similar search, shape (orbits,), as initial weights if there are no
            ``warm_start``.
        watch : called with the current gap after every evaluation; may raise to cancel.
        """
        with threads_for(self.factor.rank):
            problem = self.problem()
        # a problem with symmetries evaluates blocks that are much smaller than its rank
        with threads_for(problem.largest_block):
            if (
                warm_start is not None
                and is_usable(problem, warm_start)
                and self._proves(problem, warm_start)
            ):
                return problem.solution(warm_start, "optimal")
            first = start(problem, near if warm_start is None else warm_start)
            mass, status = problem.maximise(self.options, first, watch=watch)
            best = problem.solution(mass, status)
            # the initial weights may have misled the search: repeat it from uniform ones
            if (
                first is not None
                and status.startswith("stopped where")
                and best.gap > MAX_GAP_RATIO * self.options.gap
            ):
                second = problem.solution(*problem.maximise(self.options, watch=watch))
                best = min(best, second, key=lambda s: s.gap)
            return best

    def _proves(self, problem: DualProblem, mass: Array) -> bool:
        # the earlier search stopped at the first gap within the limit; the same weights may now give
        # a gap that differs in the last digit
        T, d = problem.evaluate(mass)
        gap = math.sqrt(float(d.max()) * float(mass.sum()) / T) - 1.0
        return gap <= self.options.gap * (1.0 + 1e-6) + 1e-15

    def replay(self, mass: Array, status: str) -> Solution:
        """Return the strategy that recorded dual weights determine, whatever gap they prove.

        ``mass`` has shape (orbits,); ``status`` is that of the recorded search.

        Raises
        ------
        ValueError : the number of weights is not that of the problem.
        """
        with threads_for(self.factor.rank):
            problem = self.problem()
        if len(mass) != problem.variables:
            raise ValueError(
                f"The search has {problem.variables} dual weights, but the record has {len(mass)}."
                " Use the record of an equal search."
            )
        with threads_for(problem.largest_block):
            return problem.solution(mass, status)


def is_usable(problem: DualProblem, mass: Array | None) -> bool:
    """Return whether an array is a valid vector of dual weights for a problem.

    Valid are numbers of at least 0 with sum 1, one per orbit of cells.
    """
    return (
        mass is not None
        and mass.shape == (problem.variables,)
        and bool(np.isfinite(mass).all() and (mass >= 0.0).all())
        and abs(float(mass.sum()) - 1.0) < 1e-9
    )


def start(problem: DualProblem, near: Array | None) -> Array | None:
    """Return initial weights from those of a similar search, shape (orbits,), or None.

    A small share of uniform weights is added, because weights of zero would remain zero.
    """
    if near is None or not is_usable(problem, near):
        return None
    mixed: Array = (
        1.0 - UNIFORM_SHARE
    ) * near + UNIFORM_SHARE * problem.multiplicity / problem.multiplicity.sum()
    return mixed


def dense_bytes(rank: int, dimension: int, cells: int) -> int:
    """Return the memory of one dense solve in bytes: projected rows, Gram, roots and work space."""
    gram = dimension * dimension if rank == dimension else 0
    return 8 * (5 * rank * cells + 4 * rank * dimension + 2 * gram + 4 * rank * rank + 64 * cells)


def step_seconds(rank: int, cells: int) -> float:
    """Return the expected time of one evaluation without symmetries, in seconds on one idle core."""
    return 4.0 * rank**2 * cells / PRODUCT_FLOPS + 12.0 * rank**3 / EIGEN_FLOPS


def eigen_seconds(rank: int) -> float:
    """Return the expected time of one symmetric eigenvalue problem, in seconds on one idle core.

    Large problems run at a higher rate.  `step_seconds` uses one constant rate instead, because
    decisions that depend on it must be the same on all machines.
    """
    return 1.5e-6 * rank + 3e-8 * rank**2 + 1.4e-10 * rank**3


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Expected cost of a search.

    Attributes
    ----------
    seconds : time on one idle core.
    peak : largest memory while it runs, in bytes.
    saved : memory of the resulting strategy, in bytes.
    alternates : whether it is an alternating search, which leaves a gap between error and bound.
    """

    seconds: float
    peak: float
    saved: float
    alternates: bool = False


def low_rank_cost(
    sizes: tuple[int, ...],
    rank: int,
    factor: Factor | None,
    gap: float,
    dimension: int | None = None,
) -> Cost:
    """Return the expected cost of a search on a Gram that is stored as ``rank`` rows.

    If the ``factor`` with the rows is given, its symmetries are counted, which make a search
    cheaper. ``dimension`` is the number of residual coordinates if one strategy measures several
    residual spaces; None for one space on all attributes.
    """
    dimension, cells = (
        math.prod(n - 1 for n in sizes) if dimension is None else dimension,
        math.prod(sizes),
    )
    reversals, swaps = (
        count_symmetries(factor, Lift(sizes))
        if factor is not None and dimension >= SYMMETRY_FROM
        else (0, 0)
    )
    blocks, part, orbits = (
        2**reversals,
        math.ceil(rank / 2**reversals),
        cells / 2 ** (reversals + swaps),
    )
    steps = 20.0 * max(1.0, -2.0 - math.log10(gap))
    step_cost = (
        blocks
        * ((4.0 * part**2 + 24.0 * part) * orbits / PRODUCT_FLOPS + 12.0 * part**3 / EIGEN_FLOPS)
        + 3e-5
    )
    seconds = steps * step_cost + (6.0 * rank * rank + 40.0 * rank) * cells / PRODUCT_FLOPS
    strategy_bytes = 8.0 * rank * (cells + 2.0 * dimension)
    return Cost(seconds=seconds, peak=dense_bytes(rank, dimension, cells), saved=strategy_bytes)


def full_rank_cost(
    sizes: tuple[int, ...],
    joint: Sequence[Factor],
    gap: float,
    dimension: int | None = None,
    centers: Sequence[Array | None] = (),
) -> Cost:
    """Return the expected cost of a search on a Gram of full rank.

    ``joint`` holds the summands of the Gram that are not products over the attributes.
    ``dimension`` is the number of residual coordinates if one strategy measures several residual
    spaces; None for one space on all attributes.  Such strategies have no symmetries, and neither
    have attributes with a tuned center, shape (n_i,).
    """
    is_joint, cells = dimension is not None, math.prod(sizes)
    dimension = math.prod(n - 1 for n in sizes) if dimension is None else dimension
    checked = not is_joint and SYMMETRY_FROM <= dimension <= MAX_SYMMETRY_COORDINATES
    symmetry_counts = [sum(count_symmetries(f, Lift(sizes))) for f in joint] if checked else [0]
    uniform_axes = len(sizes) - sum(pi is not None for pi in centers)
    halvings = min(
        symmetry_counts, default=uniform_axes
    )  # products of common families are invariant under reversal of each axis
    steps = 2.0 + 2.0 * max(0.5, -2.0 - math.log10(gap))
    blocks, part, orbits = 2**halvings, math.ceil(dimension / 2**halvings), cells / 2**halvings
    step_cost = blocks * (4.0 * part**2 * orbits / DENSE_PRODUCT_FLOPS + eigen_seconds(part))
    # roots and the strategy: matrix products over all coordinates, block by block, and memory
    # traffic
    setup_seconds = (
        blocks * (6.0 * part**2 * dimension / DENSE_PRODUCT_FLOPS + 2.0 * eigen_seconds(part))
        + 2.2e-7 * dimension**2
    )
    seconds = steps * step_cost + setup_seconds + 1e-3
    strategy_bytes = 8.0 * dimension * (cells + 2.0 * dimension)
    return Cost(
        seconds=seconds, peak=dense_bytes(dimension, dimension, cells), saved=strategy_bytes
    )


def alternating_cost(
    sizes: tuple[int, ...], ranks: Sequence[int], gap: float, centers: Sequence[Array | None]
) -> Cost:
    """Return the expected cost of an alternating search over single attributes.

    ``ranks`` holds the number of rows of every factor that couples attributes; ``centers`` holds
    one center per attribute, shape (n_i,), None for uniform.
    """
    axis_costs = [
        full_rank_cost((n,), [], gap, None, [pi]) for n, pi in zip(sizes, centers, strict=True)
    ]
    entries = sum(ranks) * math.prod(n - 1 for n in sizes)
    seconds = (
        ALTERNATING_SWEEPS * math.fsum(c.seconds for c in axis_costs)
        + ALTERNATING_SWEEPS * 4.0 * entries * sum(sizes) / PRODUCT_FLOPS
    )
    seconds += (
        12.0 * (MAX_COUPLED_DIRECTIONS + sum(ranks)) * MAX_COUPLED_DIRECTIONS**2 / EIGEN_FLOPS
        if ranks
        else 0.0
    )
    peak = max(c.peak for c in axis_costs) + 8.0 * (
        8.0 * entries
        + (3.0 * (MAX_COUPLED_DIRECTIONS + sum(ranks)) * MAX_COUPLED_DIRECTIONS if ranks else 0.0)
    )
    return Cost(
        seconds=seconds, peak=peak, saved=math.fsum(c.saved for c in axis_costs), alternates=True
    )
