"""Strategy search of one residual space, as a hashable value."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from engine._arrays import Array
from engine._threads import threads_for
from engine.residuals.basis import Lift, SplitLift
from engine.residuals.decomposition import Factor
from engine.residuals.dual_solver import (
    SYMMETRY_FROM,
    DualProblem,
    FixedBasisProblem,
    FourierProblem,
    Options,
    Solution,
    Watch,
)
from engine.residuals.split import Axes, Complement, digest
from engine.residuals.symmetry import count_symmetries

FORMAT = "search/2"  # part of every key: raise it when equal searches may have other weights
PRODUCTS, EIGEN = 2e10, 8e9  # floating point operations a second of products and eigenvalue problems, one core
DENSE = 4.5e10  # the same of products of matrices with hundreds of rows
MAX_CHECKED = 5_000  # class coordinates up to which a forecast looks for symmetries
DEFAULT = Options()
MIX = 1e-4  # share of uniform weights in a start
TURNS = 10  # sweeps that a search in turns takes, for forecasts
MET = 600  # directions in which rows that couple attributes and a product are bounded together; see `turns`
FAR = 100.0  # a search that ends this many gaps away from the one asked is tried again from the uniform start
PROBLEMS: Mapping[str, type[DualProblem]] = {
    "optimal": DualProblem,
    "eigenbasis": FixedBasisProblem,
    "fourier": FourierProblem,
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Search:
    """A class Gram, its lift, the kind of problem, and when to stop.

    Attributes
    ----------
    factor : the class Gram.
    centers : one center vector an attribute, None for uniform.
    complements : how pairs pass their class coordinates down, by the positions of their attributes.
    spaces : positions of the attributes of spaces that are measured together; empty for the one space on all of them.
    method : a name in ``PROBLEMS``.
    options : when to stop; the deadline is no part of the identity, because a search that it stopped is never kept.
    """

    factor: Factor
    centers: tuple[Array | None, ...]
    complements: Mapping[Axes, Complement] = field(default_factory=dict)
    spaces: tuple[Axes, ...] = ()
    method: str = "optimal"
    options: Options = DEFAULT

    @property
    def cells(self) -> int:
        """Number of cells of the table that the search is about."""
        return math.prod(self.factor.sizes)

    @cached_property
    def shape(self) -> str:
        """Identity of all but the numbers in the Gram: searches of one shape have weights of one length."""
        kind = (FORMAT, self.method, self.factor.sizes, self.factor.low_rank, self.factor.matrix.shape)
        passed = tuple((pair, self.complements[pair].key) for pair in sorted(self.complements))
        given = tuple(map(digest, self.centers)), passed, self.spaces
        return hashlib.sha256(repr((kind, given)).encode()).hexdigest()

    @cached_property
    def key(self) -> str:
        """Identity of the search: equal keys have equal results."""
        head = repr((self.shape, self.options.gap, self.options.evaluations)).encode()
        return hashlib.sha256(head + np.ascontiguousarray(self.factor.matrix).tobytes()).hexdigest()

    @cached_property
    def fingerprint(self) -> Array:
        """Diagonal of the class Gram in shares of its trace, shape (class coordinates,): tells near searches apart."""
        matrix = self.factor.matrix
        diagonal = np.einsum("rc,rc->c", matrix, matrix) if self.factor.low_rank else np.diagonal(matrix)
        shares: Array = diagonal / diagonal.sum()
        return shares

    def problem(self) -> DualProblem:
        """Return the problem, ready to be evaluated."""
        sizes = self.factor.sizes
        # a copy has one order and one alignment, so that sums have the same last digit after a journey
        factor = replace(self.factor, matrix=np.array(self.factor.matrix, order="C"))
        centers = [None if pi is None else np.array(pi) for pi in self.centers]
        lift = Lift(sizes, centers)
        if self.spaces or self.complements:
            copies = {}
            for pair in sorted(self.complements):
                first, second = (np.array(D, order="C") for D in self.complements[pair].by_axis)
                copies[pair] = Complement(by_axis=(first, second), by_total=np.array(self.complements[pair].by_total))
            lift = SplitLift(sizes, centers, self.spaces or (tuple(range(len(sizes))),), copies)
        return PROBLEMS[self.method](lift=lift, factor=factor)

    def cell_weights(self, mass: Array) -> Array:
        """Return the weight of every cell, with sum 1, from that of every orbit. Shapes (orbits,) and (cells,)."""
        problem = self.problem()
        weights: Array = (mass / problem.multiplicity)[problem.orbit] / mass.sum()
        return weights

    def run(self, known: Array | None = None, near: Array | None = None, watch: Watch | None = None) -> Solution:
        """Return the strategy. Weights have shape (orbits,).

        ``known`` holds weights that someone found for this very search: they are taken when they prove the gap that is
        asked, and are started from otherwise.  ``near`` holds weights of a similar search to start from.
        """
        with threads_for(self.factor.rank):
            problem = self.problem()
            if known is not None and usable(problem, known) and self._proves(problem, known):
                return problem.solution(known, "optimal")
            first = start(problem, near if known is None else known)
            mass, status = problem.maximise(self.options, first, watch=watch)
            found = problem.solution(mass, status)
            if first is not None and status.startswith("stopped where") and found.gap > FAR * self.options.gap:
                again = problem.solution(*problem.maximise(self.options, watch=watch))  # the start led nowhere
                found = min(found, again, key=lambda s: s.gap)
            return found

    def _proves(self, problem: DualProblem, mass: Array) -> bool:
        # the search stopped when value over bound reached the gap; the last digit may differ when computed again
        T, d = problem.evaluate(mass)
        gap = math.sqrt(float(d.max()) * float(mass.sum()) / T) - 1.0
        return gap <= self.options.gap * (1.0 + 1e-6) + 1e-15

    def replay(self, mass: Array, status: str) -> Solution:
        """Return the strategy of recorded weights, however good they are; raise ValueError when they do not fit.

        Weights have shape (orbits,).
        """
        with threads_for(self.factor.rank):
            problem = self.problem()
            if len(mass) != problem.variables:
                raise ValueError("recorded weights do not fit")
            return problem.solution(mass, status)


def usable(problem: DualProblem, mass: Array | None) -> bool:
    """Return whether an array may stand for the weights of a problem. Its shape must be (orbits,)."""
    return (
        mass is not None
        and mass.shape == (problem.variables,)
        and bool(np.isfinite(mass).all() and (mass >= 0.0).all())
        and abs(float(mass.sum()) - 1.0) < 1e-9
    )


def start(problem: DualProblem, near: Array | None) -> Array | None:
    """Return near weights mixed with a little of the uniform ones, because a weight of zero would stay zero.

    Shape (orbits,).
    """
    if near is None or not usable(problem, near):
        return None
    mixed: Array = (1.0 - MIX) * near + MIX * problem.multiplicity / problem.multiplicity.sum()
    return mixed


def dense_bytes(rank: int, dimension: int, cells: int) -> int:
    """Return the memory of one dense solve in bytes: projected rows, Gram, roots and work space."""
    gram = dimension * dimension if rank == dimension else 0
    return 8 * (5 * rank * cells + 4 * rank * dimension + 2 * gram + 4 * rank * rank + 64 * cells)


def step_seconds(rank: int, cells: int) -> float:
    """Return what one evaluation of a search without symmetries takes, in seconds on one idle core."""
    return 4.0 * rank**2 * cells / PRODUCTS + 12.0 * rank**3 / EIGEN


def eigen_seconds(rank: int) -> float:
    """Return what one symmetric eigenvalue problem takes, in seconds on one idle core: large ones run at a higher rate.

    `step_seconds` knows one rate for all: what it says decides what is searched, and may not move with machines.
    """
    return 1.5e-6 * rank + 3e-8 * rank**2 + 1.4e-10 * rank**3


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a search takes: seconds on one idle core, bytes while it runs, and bytes of the strategy that it leaves.

    ``turns`` says that attributes take turns, which ends near the optimum with a bound that stays below it.
    """

    seconds: float
    peak: float
    kept: float
    turns: bool = False


def low_rank_cost(
    sizes: tuple[int, ...], rank: int, factor: Factor | None, gap: float, dimension: int | None = None
) -> Cost:
    """Return the cost of a search on few query rows; ``factor`` tells its symmetries when it is there already.

    ``dimension`` is the number of class coordinates when they are those of several spaces.
    """
    dimension, cells = math.prod(n - 1 for n in sizes) if dimension is None else dimension, math.prod(sizes)
    reversals, swaps = (
        count_symmetries(factor, Lift(sizes)) if factor is not None and dimension >= SYMMETRY_FROM else (0, 0)
    )
    blocks, part, orbits = 2**reversals, math.ceil(rank / 2**reversals), cells / 2 ** (reversals + swaps)
    steps = 20.0 * max(1.0, -2.0 - math.log10(gap))
    each = blocks * ((4.0 * part**2 + 24.0 * part) * orbits / PRODUCTS + 12.0 * part**3 / EIGEN) + 3e-5
    seconds = steps * each + (6.0 * rank * rank + 40.0 * rank) * cells / PRODUCTS
    kept = 8.0 * rank * (cells + 2.0 * dimension)
    return Cost(seconds=seconds, peak=dense_bytes(rank, dimension, cells), kept=kept)


def full_rank_cost(
    sizes: tuple[int, ...],
    joint: Sequence[Factor],
    gap: float,
    dimension: int | None = None,
    centers: Sequence[Array | None] = (),
) -> Cost:
    """Return the cost of a search on a Gram of full rank; ``joint`` holds its summands that are no products.

    ``dimension`` is the number of class coordinates when they are those of several spaces, which have no symmetries.
    Neither has an attribute with a center of its own, shape (n_i,): tuned ones lean to one side.
    """
    several, cells = dimension is not None, math.prod(sizes)
    dimension = math.prod(n - 1 for n in sizes) if dimension is None else dimension
    checked = not several and SYMMETRY_FROM <= dimension <= MAX_CHECKED
    found = [sum(count_symmetries(f, Lift(sizes))) for f in joint] if checked else [0]
    free = len(sizes) - sum(pi is not None for pi in centers)
    halvings = min(found, default=free)  # products of the usual families may be reversed axis by axis
    steps = 2.0 + 2.0 * max(0.5, -2.0 - math.log10(gap))
    blocks, part, orbits = 2**halvings, math.ceil(dimension / 2**halvings), cells / 2**halvings
    each = blocks * (4.0 * part**2 * orbits / DENSE + eigen_seconds(part))
    # roots and the strategy: products over all coordinates block by block, and reading and writing what they hold
    ends = blocks * (6.0 * part**2 * dimension / DENSE + 2.0 * eigen_seconds(part)) + 2.2e-7 * dimension**2
    seconds = steps * each + ends + 1e-3
    kept = 8.0 * dimension * (cells + 2.0 * dimension)
    return Cost(seconds=seconds, peak=dense_bytes(dimension, dimension, cells), kept=kept)


def turns_cost(sizes: tuple[int, ...], ranks: Sequence[int], gap: float, centers: Sequence[Array | None]) -> Cost:
    """Return the cost of a search in turns, one attribute after the other.

    ``ranks`` has the number of rows of every factor that couples attributes, centers have shape (n_i,).
    """
    alone = [full_rank_cost((n,), [], gap, None, [pi]) for n, pi in zip(sizes, centers, strict=True)]
    entries = sum(ranks) * math.prod(n - 1 for n in sizes)
    seconds = TURNS * math.fsum(c.seconds for c in alone) + TURNS * 4.0 * entries * sum(sizes) / PRODUCTS
    seconds += 12.0 * (MET + sum(ranks)) * MET**2 / EIGEN if ranks else 0.0
    peak = max(c.peak for c in alone) + 8.0 * (8.0 * entries + (3.0 * (MET + sum(ranks)) * MET if ranks else 0.0))
    return Cost(seconds=seconds, peak=peak, kept=math.fsum(c.kept for c in alone), turns=True)
