"""Solve one subworkload: as a Kronecker product where it is one, densely where it fits, by alternation beyond.

A Kronecker Gram has a Kronecker optimum, exactly: if V_i is optimal for G_i, the product of the V_i satisfies the
optimality conditions for the product of the G_i, and value and bound multiply.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.decomposition import Axes, Factor, Subworkload, digest
from engine.errors import LimitExceeded
from engine.family import Array
from engine.lifts import Lift, SplitLift
from engine.solvers import DualProblem, FixedBasisProblem, FourierProblem, Options, Solution, Watch
from engine.threads import threads_for

PROBLEMS: Mapping[str, type[DualProblem]] = {
    "optimal": DualProblem,
    "eigenbasis": FixedBasisProblem,
    "fourier": FourierProblem,
}
SWEEPS = 25


@dataclass(frozen=True, kw_only=True, eq=False)
class SpaceSolution:
    """Strategy of a residual space as a product over sets of axes, with the certificate of the whole.

    ``factors`` holds (axes, solution); an empty product is the total.  ``value`` and ``bound`` are weighted squared
    errors at privacy cost 1 for the subworkload at scale 1, in counts^2.
    """

    factors: tuple[tuple[Axes, Solution], ...]
    value: float
    bound: float
    status: str


Merged = list[tuple[float, tuple[tuple[Axes, Factor], ...]]]


def merge(sub: Subworkload, factors: Sequence[Factor]) -> Merged:
    """Return the terms of a subworkload with terms that differ on one set of axes only added up."""
    terms: Merged = [(t.coefficient, tuple((axes, factors[number]) for axes, number in t.factors)) for t in sub.terms]
    changed = True
    while changed:
        changed = False
        for i in range(len(terms)):
            for j in range(i + 1, len(terms)):
                if (together := _add_terms(terms[i], terms[j])) is not None:
                    terms[i] = together
                    del terms[j]
                    changed = True
                    break
            if changed:
                break
    return terms


def _add_terms(
    a: tuple[float, tuple[tuple[Axes, Factor], ...]], b: tuple[float, tuple[tuple[Axes, Factor], ...]]
) -> tuple[float, tuple[tuple[Axes, Factor], ...]] | None:
    if [axes for axes, _ in a[1]] != [axes for axes, _ in b[1]]:
        return None
    differing = [k for k, ((_, f), (_, g)) in enumerate(zip(a[1], b[1], strict=True)) if f is not g]
    if len(differing) != 1:
        return None
    (k,) = differing
    axes, f, g = a[1][k][0], a[1][k][1], b[1][k][1]
    both = add_factors([(a[0], f), (b[0], g)], f.sizes)
    return 1.0, (*a[1][:k], (axes, both), *a[1][k + 1 :])


def units(terms: Merged, count: int) -> list[Axes]:
    """Return the finest partition of the axes 0..count-1 that no factor of any term crosses."""
    label = list(range(count))
    for _, factors in terms:
        for axes, _ in factors:
            lowest = min(label[a] for a in axes)
            joined = {label[a] for a in axes}
            label = [lowest if x in joined else x for x in label]
    return [tuple(a for a in range(count) if label[a] == k) for k in sorted(set(label))]


def assemble(terms: Merged, axes: Axes, sizes: tuple[int, ...]) -> Factor:
    """Return one Gram on ``axes`` from the factors of the terms that lie inside them."""
    own = tuple(sizes[a] for a in axes)
    inside = [(c, [(a, f) for a, f in factors if set(a) <= set(axes)]) for c, factors in terms]
    whole = [(c, f[0][1]) for c, f in inside if len(f) == 1 and f[0][0] == axes]
    if len(whole) == len(inside):
        return add_factors(whole, own)
    dimension = math.prod(n - 1 for n in own)
    gram = np.zeros((dimension, dimension))
    for c, factors in inside:
        gram += c * _kronecker(factors, axes)
    return Factor(sizes=own, matrix=gram)


def add_factors(parts: Sequence[tuple[float, Factor]], sizes: tuple[int, ...]) -> Factor:
    """Return the weighted sum of factors on the same axes, of low rank when all are and it pays."""
    if all(f.low_rank for _, f in parts) and sum(len(f.matrix) for _, f in parts) < parts[0][1].dimension:
        rows = np.concatenate([math.sqrt(c) * f.matrix for c, f in parts])
        return Factor(sizes=sizes, matrix=rows, low_rank=True)
    gram = np.zeros((parts[0][1].dimension,) * 2)
    for c, f in parts:
        gram += c * f.dense()
    return Factor(sizes=sizes, matrix=gram)


def _kronecker(factors: Sequence[tuple[Axes, Factor]], axes: Axes) -> Array:
    """Return the Kronecker product of factors with its class coordinates in the order of ``axes``."""
    out: Array = np.ones((1, 1))
    order: list[int] = []
    shape: list[int] = []
    for own, factor in factors:
        out = np.asarray(np.kron(out, factor.dense()), dtype=float)
        order += [axes.index(a) for a in own]
        shape += [n - 1 for n in factor.sizes]
    position = [order.index(k) for k in range(len(order))]
    moved = out.reshape(*shape, *shape).transpose(*position, *(len(shape) + p for p in position))
    return moved.reshape(out.shape)


class SubworkloadSolver:
    """Solves subworkloads of one decomposition; equal factors are solved once.

    Parameters
    ----------
    factors : the factors of the decomposition.
    method : "optimal", "eigenbasis" or "fourier".
    options : when to stop.
    memory_limit : most bytes that one dense solve may take.

    Set ``watch`` to be called with the present gap after every evaluation; it may raise to cancel.  Set ``recorded`` to
    the dual weights of an earlier run, in the order of solving, to rebuild the same plan without searching.
    """

    def __init__(
        self,
        *,
        factors: Sequence[Factor],
        method: str,
        options: Options,
        memory_limit: float,
    ) -> None:
        self.factors, self.options, self.memory_limit = factors, options, memory_limit
        self.problem = PROBLEMS[method]
        self.duals: list[Array] = []
        self.endings: list[str] = []
        self.watch: Watch | None = None
        self.recorded: list[tuple[Array, str]] | None = None
        self._solved: dict[Any, tuple[Factor, Solution]] = {}

    def forecast(self, subs: Sequence[Subworkload]) -> list[tuple[float, float]]:
        """Return (floating point operations, bytes) for each subworkload, before anything is built.

        A factor that was counted once is free afterwards, because it is solved once.
        """
        known: set[int] = set()
        return [self._forecast(sub, known) for sub in subs]

    def _forecast(self, sub: Subworkload, known: set[int]) -> tuple[float, float]:
        terms, work, memory = merge_shape(sub), 1.0, 0.0
        if len(terms) == 1:
            pieces = [(axes, [number]) for axes, number in terms[0] if number not in known]
            known.update(number for _, number in terms[0])
        else:
            pieces = [(tuple(range(len(sub.sizes))), [number for t in terms for _, number in t])]
        for axes, numbers in pieces:
            cells, dimension = math.prod(sub.sizes[a] for a in axes), math.prod(sub.sizes[a] - 1 for a in axes)
            if sub.spaces:
                dimension = self.factors[numbers[0]].dimension
            low = all(self.factors[k].low_rank for k in numbers)
            rank = min(dimension, sum(self.factors[k].rank for k in numbers)) if low else dimension
            # symmetries usually halve a full-rank problem twice; low-rank ones need more steps
            steps, share = (150, 1.0) if low else (40, 0.1 if dimension > 200 else 0.5)
            work += steps * share * (2.0 * rank * rank * cells + 12.0 * rank**3) + 10.0 * dimension**2 * rank
            memory = max(memory, dense_bytes(rank, dimension, cells))
        return work, memory

    def solve(self, sub: Subworkload) -> SpaceSolution:
        """Return the strategy of one subworkload, exact where it fits into memory."""
        terms = merge(sub, self.factors)
        axes = tuple(range(len(sub.sizes)))
        if sub.spaces or sub.complements:
            lift = SplitLift(sub.sizes, sub.centers, sub.spaces or (axes,), sub.complements)
            solution = self._solution(assemble(terms, axes, sub.sizes), lift)
            return SpaceSolution(
                factors=((axes, solution),), value=solution.value, bound=solution.bound, status=solution.status
            )
        if len(terms) == 1:
            coefficient, factors = terms[0]
            solved = [(axes, self._factor(factor, [sub.centers[a] for a in axes])) for axes, factor in factors]
            value = coefficient * math.prod(s.value for _, s in solved)
            bound = coefficient * math.prod(s.bound for _, s in solved)
            return SpaceSolution(factors=tuple(solved), value=value, bound=bound, status=_joined(solved))
        cells = math.prod(sub.sizes)
        if dense_bytes(sub.dimension, sub.dimension, cells) <= self.memory_limit:
            solution = self._solution(assemble(terms, axes, sub.sizes), Lift(sub.sizes, sub.centers))
            return SpaceSolution(
                factors=((axes, solution),), value=solution.value, bound=solution.bound, status=solution.status
            )
        return self._alternate(terms, sub)

    def _factor(self, factor: Factor, centers: Sequence[Array | None]) -> Solution:
        key = (id(factor), *map(digest, centers))
        if key not in self._solved:
            self._solved[key] = (
                factor,
                self._solution(factor, Lift(factor.sizes, centers)),
            )  # holding the factor keeps its id its own
        return self._solved[key][1]

    def _solution(self, factor: Factor, lift: Lift) -> Solution:
        needed = dense_bytes(factor.rank, factor.dimension, math.prod(factor.sizes))
        if needed > self.memory_limit:
            raise LimitExceeded(
                f"A subworkload on {' x '.join(map(str, factor.sizes))} cells needs about {needed / 1e9:.1f} GB, more "
                f"than the limit of {self.memory_limit / 1e9:.1f} GB. Raise memory_limit, or ask fewer cells of these "
                "attributes."
            )
        with threads_for(factor.rank):
            problem = self.problem(lift=lift, factor=factor)
            if self.recorded is not None:
                mass, status = self.recorded.pop(0)
                if len(mass) != problem.variables:
                    raise ValueError("recorded weights do not fit")
            else:
                mass, status = problem.maximise(self.options, watch=self.watch)
            self.duals.append(mass)
            self.endings.append(status)
            return problem.solution(mass, status)

    def _alternate(self, terms: Merged, sub: Subworkload) -> SpaceSolution:
        """Improve one set of axes at a time; feasible for any sum of products, with an honest bound.

        The bound adds up the optima of the single terms: the minimum of a sum is at least the sum of the minima.
        """
        sizes, sets = sub.sizes, units(terms, len(sub.sizes))
        own = [Lift(tuple(sizes[a] for a in axes), [sub.centers[a] for a in axes]) for axes in sets]
        if len(sets) == 1:
            raise LimitExceeded(
                f"A subworkload on {' x '.join(map(str, sizes))} cells couples all its attributes and does not fit "
                f"into {self.memory_limit / 1e9:.1f} GB. Raise memory_limit, or ask fewer cells of these attributes."
            )
        parts = [[assemble([(1.0, f)], axes, sizes) for _, f in terms] for axes in sets]
        bound = 0.0
        for t, (c, _) in enumerate(terms):
            bound += c * math.prod(self._solution(parts[u][t], own[u]).bound for u in range(len(sets)))
        costs = np.ones((len(sets), len(terms)))
        coefficients = np.array([c for c, _ in terms])
        grams = [[p.dense() for p in own] for own in parts]
        value, solved = math.inf, list[tuple[Axes, Solution]]()
        for _ in range(SWEEPS):
            solved = []
            for u, axes in enumerate(sets):
                weights = coefficients * np.prod(np.delete(costs, u, axis=0), axis=0)
                total = add_factors(list(zip(weights, parts[u], strict=True)), parts[u][0].sizes)
                solution = self._solution(total, own[u])
                costs[u] = [float(np.sum(g * solution.strategy.covariance)) for g in grams[u]]
                solved.append((axes, solution))
            previous, value = value, float(coefficients @ np.prod(costs, axis=0))
            if value > previous * (1.0 - 1e-7):
                break
        status = "alternating over attributes: a local optimum among products"
        return SpaceSolution(factors=tuple(solved), value=value, bound=bound, status=status)


def merge_shape(sub: Subworkload) -> list[tuple[tuple[Axes, int], ...]]:
    """Return the terms by factor numbers, terms that differ on one set of axes only counted once."""
    kept: list[tuple[tuple[Axes, int], ...]] = []
    for term in sub.terms:
        same = [
            k
            for k in kept
            if [a for a, _ in k] == [a for a, _ in term.factors]
            and sum(x != y for x, y in zip(k, term.factors, strict=True)) <= 1
        ]
        if not same:
            kept.append(term.factors)
    return kept


def dense_bytes(rank: int, dimension: int, cells: int) -> float:
    """Return the memory of one dense solve in bytes: projected rows, Gram, roots and work space."""
    gram = dimension * dimension if rank == dimension else 0
    return 8.0 * (5.0 * rank * cells + 4.0 * rank * dimension + 2.0 * gram + 4.0 * rank * rank + 64.0 * cells)


def _joined(solved: Sequence[tuple[Axes, Solution]]) -> str:
    return next((s.status for _, s in solved if s.status != "optimal"), "optimal")
