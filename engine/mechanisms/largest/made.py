"""What a search found, made into strategies and a proven bound, the same way after a search and from a file.

The proof: the best weighted sum for the weights over their dual norm.  Weights are products in every group, so a space
has the Gram of a sum of products, and the minimum of a sum is at least the sum of the minima of its terms.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.arrays import Array
from engine.mechanisms.largest.asked import fits, parts_of
from engine.mechanisms.query_weights import dual_norm
from engine.plans import Emphasis, Lines, Objective, Tradeoff
from engine.spaces import (
    Decomposition,
    DualProblem,
    Factor,
    Search,
    Solution,
    Space,
    SpaceSolution,
    Split,
    basis,
    decompose,
    digest,
    merge,
)
from engine.threads import threads_for
from engine.workload import Workload

SPEED = 1.5  # power of its cost over the mean, that the weight of a cell is multiplied by
STEPS = 6  # that the weights of cells go for a proof
Recorded = list[tuple[Array, str]]


@dataclass(frozen=True, kw_only=True, eq=False)
class Measured:
    """Strategies of all residual spaces: which space has which, and the weights of cells that they stand for."""

    parts: Decomposition
    solutions: list[SpaceSolution]
    duals: tuple[Array, ...]
    lines: Lines


@dataclass(frozen=True, kw_only=True, eq=False)
class Proof:
    """Weights of the queries, what they prove, and the weights of cells by which they do."""

    emphasis: Emphasis
    bound: float
    duals: tuple[Array, ...]


def measured_lines(
    workload: Workload,
    split: Split,
    spaces: Sequence[Space],
    weights: Sequence[Array],
    numbers: Mapping[tuple[Space, str], int],
    masses: Sequence[Array] | None,
    recorded: Recorded | None = None,
) -> Measured:
    """Return the strategies that weights of queries stand for, attribute by attribute.

    ``numbers`` tells which weights, shape (queries,), the attribute of a space has; others ask for all cells alike.
    Weights of cells are in ``masses``, shape (cells,), or recorded, shape (orbits,).
    """
    asked, known = parts_of(workload), dict[Any, tuple[Solution, Array]]()
    duals: list[Array] = []
    solutions: list[SpaceSolution] = []
    tuples: dict[tuple[Any, ...], int] = {}
    found: dict[Space, tuple[int, float]] = {}
    for space in spaces:
        keys = []
        for name in space:
            number, pi = numbers.get((space, name), -1), split.centers.get(name)
            key = (number, tuple(p.key for p in asked[name]), digest(pi))
            if key not in known:
                search = _search(_gram(asked[name], None if number < 0 else weights[number]), pi)
                near = None if masses is None or number < 0 else masses[number]
                with threads_for(1):
                    mass = _start(search.problem(), near) if recorded is None else _next(recorded)
                known[key] = search.replay(mass, "optimal"), mass
                duals.append(mass)
            keys.append(key)
        if tuple(keys) not in tuples:
            tuples[tuple(keys)] = len(solutions)
            own = [((a,), known[key][0]) for a, key in enumerate(keys)]
            solutions.append(
                SpaceSolution(
                    factors=tuple(own),
                    value=math.prod(s.value for _, s in own),
                    bound=math.prod(s.bound for _, s in own),
                    status="optimal",
                )
            )
        found[space] = tuples[tuple(keys)], 1.0
    used = tuple(tuple(numbers.get((space, name), -1) for name in space) for space in spaces)
    return Measured(
        parts=Decomposition(factors=(), subworkloads=(), spaces=found),
        solutions=solutions,
        duals=tuple(duals),
        lines=Lines(weights=tuple(weights), uses=used),
    )


def proof(
    workload: Workload,
    goal: Objective,
    split: Split,
    labels: Mapping[str, Hashable],
    emphasis: Emphasis,
    known: Callable[[Space, str], Array | None],
    recorded: Recorded | None = None,
    deadline: float = math.inf,
) -> Proof:
    """Return what weights of the queries prove of every plan at privacy cost 1, in counts^2.

    ``known`` gives the weights of cells, shape (cells,), to begin with; past the deadline they are taken as they are.
    """
    parts = decompose(emphasis.apply(workload), split, labels)
    examples: dict[int, Space] = {}
    for space, (k, _) in parts.spaces.items():
        examples.setdefault(k, space)
    bounds: dict[Factor, float] = {}
    duals: list[Array] = []
    totals = []
    for k, sub in enumerate(parts.subworkloads):
        total = 0.0
        for coefficient, factors in merge(sub, parts.factors):
            value = coefficient
            for (axis,), factor in factors:
                if factor not in bounds:
                    near = known(examples[k], examples[k][axis])
                    with threads_for(1):
                        problem = _search(factor, sub.centers[axis]).problem()
                        mass = _start(problem, near, STEPS, deadline) if recorded is None else _next(recorded)
                        if len(mass) != problem.variables:
                            raise ValueError("recorded weights do not fit")
                        bounds[factor] = problem.bound(mass)
                    duals.append(mass)
                value *= bounds[factor]
            total += value
        totals.append(total)
    whole = math.fsum(math.sqrt(scale * totals[k]) for k, scale in parts.spaces.values()) ** 2
    return Proof(emphasis=emphasis, bound=whole / dual_norm(workload, goal, emphasis)[0], duals=tuple(duals))


def rebuilt(
    workload: Workload,
    goal: Objective,
    split: Split,
    labels: Mapping[str, Hashable],
    tradeoff: Tradeoff,
    recorded: Recorded,
) -> tuple[Decomposition, list[SpaceSolution], float]:
    """Return the strategies of a plan file and the bound; raise ValueError when they are none of this workload."""
    lines = tradeoff.lines
    if lines is None or not fits(workload, goal, split):
        raise ValueError("lines of a workload that has none")
    spaces = list(decompose(workload, split, labels).spaces)
    if len(lines.uses) != len(spaces) or any(len(s) != len(u) for s, u in zip(spaces, lines.uses, strict=True)):
        raise ValueError("recorded lines do not fit")
    numbers = {
        (space, name): number
        for space, own in zip(spaces, lines.uses, strict=True)
        for name, number in zip(space, own, strict=True)
        if number >= 0
    }
    rows = {name: sum(p.count for p in parts) for name, parts in parts_of(workload).items()}
    if any(len(lines.weights[number]) != rows[name] for (_, name), number in numbers.items()):
        raise ValueError("recorded lines are on other queries")
    made = measured_lines(workload, split, spaces, lines.weights, numbers, None, recorded)
    tradeoff.emphasis.check(workload)
    shown = proof(workload, goal, split, labels, tradeoff.emphasis, lambda *_: None, recorded)
    return made.parts, made.solutions, shown.bound


def _gram(parts: Sequence[Any], weights: Array | None) -> Factor:
    """Return the class Gram of an attribute for the weights of all its queries, None for one each."""
    (n,) = parts[0].sizes
    gram, start = np.zeros((n, n)), 0
    for part in parts:
        own = None if weights is None else weights[start : start + part.count]
        gram, start = gram + part.family.gram(part.sizes, own), start + part.count
    N = basis(n)
    return Factor(sizes=(n,), matrix=N.T @ gram @ N)


def _search(factor: Factor, pi: Array | None) -> Search:
    return Search(factor=factor, centers=(pi,))


def _start(problem: DualProblem, near: Array | None, steps: int = 0, deadline: float = math.inf) -> Array:
    """Return weights of orbits from those of cells, or uniform ones, after at most so many steps. Shape (orbits,)."""
    cells = np.ones(len(problem.orbit)) if near is None else near
    mass: Array = np.bincount(problem.orbit, cells, minlength=problem.variables) / cells.sum()
    best, bound = mass, 0.0
    for _ in range(steps):
        if time.monotonic() > deadline:
            break
        total, costs = problem.evaluate(mass)
        if total > bound:
            best, bound = mass, total
        mass = mass * (costs / total) ** SPEED
        mass /= mass.sum()
    return best


def _next(recorded: Recorded) -> Array:
    if not recorded:
        raise ValueError("fewer recorded weights than solves")
    return recorded.pop(0)[0]
