"""Plans that minimise the largest variance of product workloads.

What every kind of group asks, as sums over residual spaces of products over attributes.

The variance of a query is the sum over the spaces inside its group of noise times a factor times one number an
attribute: (q . pi)^2 outside of the space, what its strategy leaves inside.  Attributes whose cells are asked alike
have one best strategy, whatever the weights, and are in the factor.  All others are lines.

Lines: strategies on one attribute, for weights of its queries that change from step to step.

With rows W on cells, weights w and weights mu of cells, K = diag(sqrt w) W diag(sqrt mu) = U S V^T tells everything:

    T = tr S,   diagonal of X over the cells  d = diag(V S V^T) / mu,   variance of query q  (W mu V S^-1 V^T mu W^T)_qq

at privacy cost T.  Cells that cost more than T gain weight, a step at a time, as in `engine.residuals.dual_solver`.

What a search found, made into strategies and a proven bound, the same way after a search and from a file.

The proof: the best weighted sum for the weights over their dual norm.  Weights are products in every group, so a space
has the Gram of a sum of products, and the minimum of a sum is at least the sum of the minima of its terms.

The search: every query has a weight, every line follows the weights of its queries, and the shares follow both.

Queries above the mean variance gain weight, those below lose it.  What the queries weigh in a space gives its lines
their weights, and those their strategies, one step at a time.  In the end the strategies get the best shares, and the
weights, made products group by group, prove the bound.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from engine._arrays import Array
from engine._threads import threads_for
from engine.errors import Unanswered
from engine.mechanisms.reweighting import LOST, dual_norm, even, unit_blocks
from engine.plans.budget_allocation import best_shares
from engine.plans.objectives import Emphasis, Objective, Symmetry, footprints, symmetry
from engine.plans.solver_state import Lines, Tradeoff
from engine.plans.variance import VarianceBuilder
from engine.residuals import DualProblem, Factor, Space, Split, basis, center, digest
from engine.residuals.decomposition import Decomposition, decompose
from engine.residuals.dual_solver import Solution
from engine.residuals.kronecker_sums import merge
from engine.residuals.strategy_search import Search
from engine.residuals.subworkload_solver import SpaceSolution
from engine.workload import Group, Part, Workload

MOST_POINTS = 8_000_000  # queries of all kinds of groups, on lines alone
MOST_ROWS = 8_000_000  # numbers in the rows of all lines
APART = 40  # lines up to which every kind of space has its own: beyond, ...
PAIR = 2  # ... those on more attributes than this share with others on as many


def points(workload: Workload, goal: Objective, split: Split) -> int:
    """Return the queries on lines alone of all groups that differ, 0 where the search of this folder is not for them.

    It is for queries that are products over attributes.  Of groups with one line at most the factored weights of
    `reweighted` say all that there is to say.
    """
    if not math.isinf(goal.power) or split.complements or split.unions:
        return 0
    groups = {group.key: group for group in workload.groups if group.weight > 0}.values()
    if any(g.query_weights is not None or any(len(p.axes) > 1 for p in g.parts) for g in groups):
        return 0
    uneven = [[p for p in g.parts if not flat(p, split.centers.get(g.attributes[p.axes[0]]))] for g in groups]
    rows = {p.key: p.count * p.cells for own in uneven for p in own}
    found = sum(math.prod(p.count for p in own) for own in uneven)
    few = any(len(own) > 1 for own in uneven) and sum(rows.values()) <= MOST_ROWS and found <= MOST_POINTS
    return found if few else 0


def fits(workload: Workload, goal: Objective, split: Split) -> bool:
    """Return whether the search of this folder is for such a workload."""
    return points(workload, goal, split) > 0


def flat(part: Part, pi: Array | None) -> bool:
    """Return whether all queries of a part on one attribute are asked alike, and all its cells; pi has shape (n,)."""
    if pi is not None or part.count > part.cells or not even(part):
        return False
    rows = part.family.rows(part.sizes)
    return not np.ptp(rows.sum(axis=1)) and not np.ptp((rows**2).sum(axis=1))


def parts_of(workload: Workload) -> dict[str, tuple[Part, ...]]:
    """Return the different parts that weighted groups ask of every attribute, in an order of their own."""
    out: dict[str, dict[str, Part]] = {}
    for group in {g.attributes: g for g in workload.groups}.values():
        for name in group.attributes:
            out.setdefault(name, {})
    for group in workload.groups:
        for part in group.parts if group.weight > 0 else ():
            out[group.attributes[part.axes[0]]].setdefault(repr(part.key), part)
    return {name: tuple(parts[key] for key in sorted(parts)) for name, parts in out.items()}


class Arranged:
    """A workload whose groups have their parts in one order, so that those alike are told whatever the schema's order.

    Attributes
    ----------
    workload : the same groups, their parts arranged.
    orders : for every group where its parts stood before.
    same : kinds of groups and spaces.
    """

    def __init__(
        self, workload: Workload, spaces: Sequence[Space], goal: Objective, labels: Mapping[str, Hashable], split: Split
    ) -> None:
        looks = {n: (str(labels.get(n)), str(digest(split.centers.get(n)))) for n in workload.schema.names}
        kinds: Mapping[Space, int] = {}
        for _ in range(2):  # the second time, parts that are alike stand as what their attributes are asked elsewhere
            self.orders = [self._order(group, looks, kinds) for group in workload.groups]
            arranged = [_arranged(g, order) for g, order in zip(workload.groups, self.orders, strict=True)]
            self.workload = Workload(workload.schema, tuple(arranged))
            self.same: Symmetry = symmetry(self.workload, spaces, goal, labels, split, ordered=False)
            kinds = self.same.spaces

    @staticmethod
    def _order(group: Group, looks: Mapping[str, Hashable], kinds: Mapping[Space, int]) -> tuple[int, ...]:
        names = [group.attributes[part.axes[0]] for part in group.parts]
        keys = [
            (repr(part.key), looks[name], kinds.get((name,), -1)) for part, name in zip(group.parts, names, strict=True)
        ]
        return tuple(sorted(range(len(keys)), key=keys.__getitem__))

    def emphasis(self, found: Emphasis) -> Emphasis:
        """Return weights of the arranged workload as those of the one that was given."""
        numbers: dict[tuple[int, tuple[int, ...]], int] = {}
        kinds = tuple(
            numbers.setdefault((kind, order), len(numbers)) if kind >= 0 else -1
            for kind, order in zip(found.kinds, self.orders, strict=True)
        )
        return Emphasis(
            kinds=kinds,
            weights=np.array([found.weights[kind] for kind, _ in numbers]),
            uses=tuple(tuple(found.uses[kind][order.index(p)] for p in range(len(order))) for kind, order in numbers),
            whole=tuple(found.whole[kind] for kind, _ in numbers),
            vectors=found.vectors,
        )


def _arranged(group: Group, order: tuple[int, ...]) -> Group:
    names = tuple(group.attributes[group.parts[p].axes[0]] for p in order)
    parts = tuple(replace(group.parts[p], axes=(axis,)) for axis, p in enumerate(order))
    return replace(group, attributes=names, parts=parts)


@dataclass(frozen=True, kw_only=True, eq=False)
class Kind:
    """One kind of groups.

    Attributes
    ----------
    number : the kind.
    groups : how many there are.
    target : target variance of the queries.
    alike : queries of a group on its other attributes, which are asked alike.
    parts : positions of the parts that are lines.
    spaces : kind of every residual space inside.
    factors : what stands before the product over lines, shape (spaces,).
    lines : number of the line of every part in every space, -1 where the space has not its attribute.
    outside : (q . pi)^2 of the queries of every part, shape (queries,) each.
    windows : where the queries of every part stand among those of its line.
    """

    number: int
    groups: float
    target: float
    alike: int
    parts: tuple[int, ...]
    spaces: tuple[int, ...]
    factors: Array
    lines: tuple[tuple[int, ...], ...]
    outside: tuple[Array, ...]
    windows: tuple[slice, ...]

    @property
    def counts(self) -> tuple[int, ...]:
        """Queries of every part that is a line."""
        return tuple(map(len, self.outside))


class Layout:
    """All kinds of groups of a workload, and the lines of their spaces.

    Attributes
    ----------
    kinds : kinds of groups.
    rows : for every line its rows on cells, shape (queries, cells).
    numbers : (space, attribute) -> number of its line, for all spaces with a line.
    """

    def __init__(self, workload: Workload, same: Symmetry, goal: Objective, split: Split) -> None:
        self.workload, self.same, self.goal, self.split = workload, same, goal, split
        self.parts = parts_of(workload)
        self._flat: dict[Hashable, bool] = {}
        self._rows: dict[Hashable, Array] = {}
        spaces = list(same.spaces)
        self.curved = {
            name: any(not self._is_flat(p, name) for p in parts) or len(parts) > 1 for name, parts in self.parts.items()
        }
        apart = {self._key(s, name, True): 0 for s in spaces for name in s if self.curved[name]}
        self.apart = len(apart) <= APART
        numbers: dict[Hashable, int] = {}
        self.numbers: dict[tuple[Space, str], int] = {}
        self.rows: list[Array] = []
        for s in spaces:
            for name in s:
                if self.curved[name]:
                    number = numbers.setdefault(self._key(s, name, self.apart), len(numbers))
                    self.numbers[s, name] = number
                    if number == len(self.rows):
                        self.rows.append(self._class_rows(name))
        self.kinds = [self._kind(k, workload.groups[i]) for k, i in enumerate(same.examples)]

    def _is_flat(self, part: Part, name: str) -> bool:
        key = (part.key, digest(self.split.centers.get(name)))
        if key not in self._flat:
            self._flat[key] = flat(part, self.split.centers.get(name))
        return self._flat[key]

    def _key(self, space: Space, name: str, apart: bool) -> Hashable:
        """Return what spaces share whose strategies on an attribute are one line."""
        roles = {n: self.same.spaces.get((n,), n) for n in space}
        own = (roles[name], tuple(p.key for p in self.parts[name]), digest(self.split.centers.get(name)))
        if apart or len(space) <= PAIR:
            return own, self.same.spaces[space]
        # the other attributes matter by their number alone: whatever the size, their cells are asked alike
        return own, tuple(sorted(str(roles[n]) for n in space if self.curved[n])), len(space)

    def _class_rows(self, name: str) -> Array:
        pi, parts = self.split.centers.get(name), self.parts[name]
        key = (tuple(p.key for p in parts), digest(pi))
        if key not in self._rows:
            rows = np.concatenate([p.family.rows(p.sizes) for p in parts])
            self._rows[key] = rows - (rows @ center(rows.shape[1], pi))[:, None]
        return self._rows[key]

    def _kind(self, number: int, group: Group) -> Kind:
        schema, same = self.workload.schema, self.same
        names = [group.attributes[p.axes[0]] for p in group.parts]
        lines = tuple(k for k, name in enumerate(names) if self.curved[name])
        outside, inside = [], []
        for part, name in zip(group.parts, names, strict=True):
            outside.append(part.family.dot(part.sizes, center(part.sizes[0], self.split.centers.get(name))) ** 2)
            # the identity is best for cells that are asked alike; at uniform centers it costs 1 - 1/n
            rows = part.family.rows(part.sizes) if not self.curved[name] else np.zeros((1, part.sizes[0]))
            classes = (rows - rows.mean(axis=1, keepdims=True))[0]
            inside.append(float(classes @ classes) * (1.0 - 1.0 / part.sizes[0]))
        spaces, factors, used = [], [], []
        for axes in group.spaces(schema):
            space = group.named(axes)
            if space not in same.spaces:
                continue
            spaces.append(same.spaces[space])
            others = [k for k in range(len(names)) if k not in lines]
            factors.append(math.prod(inside[k] if names[k] in space else float(outside[k][0]) for k in others))
            used.append(tuple(self.numbers[space, names[k]] if names[k] in space else -1 for k in lines))
        starts = []
        for k in lines:
            before = 0
            for part in self.parts[names[k]]:
                if part.key == group.parts[k].key:
                    break
                before += part.count
            starts.append(slice(before, before + group.parts[k].count))
        return Kind(
            number=number,
            groups=float(same.sizes[number]),
            target=self.goal.target(same.examples[number]),
            alike=math.prod(p.count for k, p in enumerate(group.parts) if k not in lines),
            parts=lines,
            spaces=tuple(spaces),
            factors=np.array(factors),
            lines=tuple(used),
            outside=tuple(outside[k] for k in lines),
            windows=tuple(starts),
        )


FLOOR = 1e-4  # of the largest weight, added to all: light queries keep a variance
LEAST = 1e-8  # weight of a cell, in shares of the mean: lost ones would not come back
CELL_WEIGHT_EXPONENT = 1.5  # power of its cost over the mean, that the weight of a cell is multiplied by
POLISH, POLISHED = 20, 1e-6  # last steps at fixed weights, and the gap that is close enough


class Line:
    """The strategy of one attribute for weights of its queries.

    Parameters
    ----------
    rows : the class part q (I - pi 1^T) of every query on cells, shape (queries, cells).

    >>> line = Line(np.array([[0.5, -0.5]]))
    >>> line.follow(np.ones(1))
    >>> line.mass, line.variances.round(6)
    (array([0.5, 0.5]), array([0.25]))
    """

    def __init__(self, rows: Array) -> None:
        self.rows = rows
        self.rank = int(np.linalg.matrix_rank(rows))
        self.weights = np.ones(len(rows))
        self.mass = np.full(rows.shape[1], 1.0 / rows.shape[1])
        self.variances = np.zeros(len(rows))

    def follow(self, weights: Array) -> None:
        """Go one step with these weights, shape (queries,).

        ``variances``, shape (queries,), are those at privacy cost 1 of a strategy that is best for them.
        """
        self.weights = weights / weights.max() + FLOOR
        self.step()

    def step(self) -> float:
        """Go one step with the same weights; return the gap of the strategy before it."""
        projected = self.rows * np.sqrt(self.mass)
        squares, V = np.linalg.eigh((projected.T * self.weights) @ projected)
        squares, V = squares[len(squares) - self.rank :], V[:, len(squares) - self.rank :]
        sizes = np.sqrt(np.maximum(squares, squares[-1] * 1e-18))
        total = float(sizes.sum())
        costs = ((V * V) @ sizes) / self.mass
        self.variances = ((projected @ V) ** 2) @ (total / sizes)
        mass = np.maximum(self.mass * (costs / total) ** CELL_WEIGHT_EXPONENT, LEAST / len(self.mass))
        self.mass = mass / mass.sum()
        return float(costs.max()) / total - 1.0

    def polish(self) -> None:
        """Go on with the same weights until the strategy is best for them."""
        for _ in range(POLISH):
            if self.step() <= POLISHED:
                return


PROOF_WEIGHT_EXPONENT = 1.5  # power of its cost over the mean, that the weight of a cell is multiplied by
PROOF_ITERATIONS = 6  # that the weights of cells go for a proof
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
                        mass = (
                            _start(problem, near, PROOF_ITERATIONS, deadline) if recorded is None else _next(recorded)
                        )
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
        mass = mass * (costs / total) ** PROOF_WEIGHT_EXPONENT
        mass /= mass.sum()
    return best


def _next(recorded: Recorded) -> Array:
    if not recorded:
        raise ValueError("fewer recorded weights than solves")
    return recorded.pop(0)[0]


FIRST, SEARCH_ITERATIONS, MOST = 60, 20, 160  # steps to the first plan, from each to the next, and in all
ONCE = 96  # steps to the only plan
LEAST_STEPS = 10  # whatever the time
FEW = 500_000  # queries on lines up to which there is more than one plan
LIGHT = 1e-2  # of the mean of their group: weights below it rise fast
FARTHEST = 3.0  # that the logarithm of a weight goes in a step
LIGHTEST = 1e-9  # mean weight of a group's queries, in shares of the mean of all
LEFT = 1e-2  # of the least weight, that a query has at least in a proof
SINGLE: Any = np.float32  # of millions of queries: the search needs no more digits, and certificates are none of it
GAP = 1e-5  # of the standard error: closer is not worth another round
FAR = 1e-3  # of the standard error: products of weights leave this much where they are not for the workload
WORTH, PATIENCE = 0.9, 2  # of the gap: so many rounds in a row that leave more are the last
FINE = 4e-6  # of the variance: gap of the shares


@dataclass(frozen=True, kw_only=True)
class _Pace:
    """How weights move.

    Attributes
    ----------
    power : of its variance over the mean, that a query's weight is multiplied by.
    rise : what more it is where a light weight rises.
    kept : of the last move that the next one goes on with.
    least : weight of a query, in shares of the mean of its group: lighter ones are long in coming back.
    """

    power: float
    rise: float
    kept: float
    least: float


PLAIN = _Pace(power=2.0, rise=20.0, kept=0.0, least=1e-8)  # few queries come near their first plan without haste
KEEN = _Pace(power=1.5, rise=10.0, kept=0.7, least=1e-4)


@dataclass(frozen=True, kw_only=True, eq=False)
class Balanced:
    """A plan for privacy cost 1 and its proof.

    Attributes
    ----------
    plan : strategies of all residual spaces.
    shares : squared noise of every space, in the order of the strategies.
    value : largest variance over its target, in counts^2.
    proof : weights, and the bound that they prove.
    """

    plan: Measured
    shares: Array
    value: float
    proof: Proof

    @property
    def duals(self) -> tuple[Array, ...]:
        """The weights of cells of all strategies, and of the proof, shape (orbits,) each."""
        return (*self.plan.duals, *self.proof.duals)

    @property
    def far(self) -> bool:
        """Whether the proof is so far from the plan that another search is worth its time."""
        return self.value > self.proof.bound * (1.0 + FAR) ** 2

    @property
    def endings(self) -> tuple[str, ...]:
        """How their searches ended."""
        return ("optimal",) * len(self.duals)

    @property
    def parts(self) -> Decomposition:
        """Which space has which strategy."""
        return self.plan.parts

    @property
    def solutions(self) -> list[SpaceSolution]:
        """The strategies."""
        return self.plan.solutions

    @property
    def tradeoff(self) -> Tradeoff:
        """What a plan file keeps."""
        return Tradeoff(shares=self.shares, emphasis=self.proof.emphasis, lines=self.plan.lines)


class _Balance:
    """The weights of all queries, and what follows from them.

    Weights of a kind have the shape of its counts and stand for all its groups and all queries alike; all together
    weigh 1.
    """

    def __init__(self, layout: Layout, counts: Array) -> None:
        self.layout, self.kinds, self.counts = layout, layout.kinds, counts
        self.lines = [Line(rows) for rows in layout.rows]
        whole = math.fsum(math.prod(k.counts) for k in self.kinds)
        self.weights = [np.full(k.counts, 1.0 / whole, dtype=SINGLE) for k in self.kinds]
        self.pace, self.least = KEEN, LIGHTEST / whole
        self.moves = [np.zeros_like(w) for w in self.weights]
        self.outside = [[out.astype(SINGLE) for out in k.outside] for k in self.kinds]
        self.follow([np.ones(len(line.rows)) for line in self.lines])
        self.noises = self.best_noises()

    def follow(self, weights: Sequence[Array]) -> None:
        """Let every line go a step with its weights, shape (queries,) each."""
        for line, own in zip(self.lines, weights, strict=True):
            line.follow(own)
        self.look()

    def look(self) -> None:
        """Take what the lines leave of the queries in every space, shape (spaces, queries), part by part."""
        known = [line.variances.astype(SINGLE) for line in self.lines]
        self.tables = [
            [
                np.stack([out if own[p] < 0 else known[own[p]][window] for own in kind.lines])
                for p, (out, window) in enumerate(zip(outside, kind.windows, strict=True))
            ]
            for kind, outside in zip(self.kinds, self.outside, strict=True)
        ]

    def best_noises(self) -> Array:
        """Return the squared noises that are best for the weights at privacy cost 1, shape (space kinds,)."""
        pulled = np.zeros(len(self.counts))
        for kind, weights, tables in zip(self.kinds, self.weights, self.tables, strict=True):
            sums = _contracted(weights, tables) * kind.factors
            pulled += np.bincount(kind.spaces, sums / kind.target, minlength=len(pulled))
        best = np.sqrt(self.counts / np.maximum(pulled, 1e-300))
        return np.asarray(best * float(np.sum(self.counts / best)), dtype=float)

    def asked(self) -> list[Array]:
        """Return what the queries weigh on the lines, shape (queries,) each."""
        sums = [np.zeros(len(line.rows)) for line in self.lines]
        for kind, weights, tables in zip(self.kinds, self.weights, self.tables, strict=True):
            scale = kind.factors * self.noises[list(kind.spaces)] / kind.target
            for p, window in enumerate(kind.windows):
                rest = _contracted(weights, tables, p) * scale[:, None]
                for j, own in enumerate(kind.lines):
                    if own[p] >= 0:
                        sums[own[p]][window] += rest[j]
        return sums

    def step(self, pace: _Pace) -> None:
        """Let the lines follow the weights, and the weights the variances."""
        self.follow(self.asked())
        self.noises = self.best_noises()
        found = [
            _products(kind.factors * self.noises[list(kind.spaces)] / kind.target, tables)
            for kind, tables in zip(self.kinds, self.tables, strict=True)
        ]
        mean = math.fsum(float(np.vdot(w, v)) for w, v in zip(self.weights, found, strict=True))
        self.pace = pace
        self.moves = [_move(pace, w, v / mean, m) for w, v, m in zip(self.weights, found, self.moves, strict=True)]
        self.weights = [w * np.exp(m) for w, m in zip(self.weights, self.moves, strict=True)]
        total = math.fsum(float(w.sum()) for w in self.weights)
        means = [max(float(w.mean()) / total, self.least) for w in self.weights]
        self.weights = [np.maximum(w / total, pace.least * mean) for w, mean in zip(self.weights, means, strict=True)]

    def emphasis(self, same: Symmetry) -> Emphasis:
        """Return the weights as products over single attributes, every kind of groups with vectors of its own."""
        vectors: list[Array] = []
        uses, by_kind = [], []
        even: dict[int, int] = {}
        for kind, heavy in zip(self.kinds, self.weights, strict=True):
            # what only keeps light queries from being forgotten proves nothing
            floor = self.pace.least * float(heavy.mean())
            weights = np.maximum(heavy - floor, LEFT * floor)
            group, own = self.layout.workload.groups[same.examples[kind.number]], []
            for k, part in enumerate(group.parts):
                if k in kind.parts:
                    axis = kind.parts.index(k)
                    vector = weights.sum(axis=tuple(a for a in range(weights.ndim) if a != axis), dtype=float)
                    own.append(len(vectors))
                    vectors.append(vector / vector.sum())
                else:
                    if part.count not in even:
                        even[part.count] = len(vectors)
                        vectors.append(np.ones(part.count))
                    own.append(even[part.count])
            uses.append(tuple(own))
            by_kind.append(float(weights.sum()) / (kind.groups * kind.alike * kind.target))
        return Emphasis(
            kinds=same.kinds,
            weights=np.array(by_kind),
            uses=tuple(uses),
            whole=(False,) * len(uses),
            vectors=tuple(vectors),
        )


def rounds(workload: Workload, goal: Objective, split: Split) -> int:
    """Return how many plans a search makes at most, 0 where it is not for such a workload; for forecasts."""
    found = points(workload, goal, split)
    return min(found, 1 if found > FEW else 1 + (MOST - FIRST) // SEARCH_ITERATIONS)


def balanced(
    workload: Workload,
    goal: Objective,
    split: Split,
    labels: Mapping[str, Hashable],
    tell: Callable[[float, str], None],
    deadline: float,
) -> Balanced:
    """Return the best plan found until the deadline, for privacy cost 1, and the best proof.

    The first steps are taken whatever the time: without them there is no plan.
    """
    spaces = list(decompose(workload, split, labels).spaces)
    arranged = Arranged(workload, spaces, goal, labels, split)
    layout = Layout(arranged.workload, arranged.same, goal, split)
    balance = _Balance(layout, arranged.same.counts)
    best: Balanced | None = None
    done, left, lost = 0, math.inf, 0
    many = points(workload, goal, split) > FEW
    first, most = (ONCE, ONCE) if many else (FIRST, MOST)
    while True:
        for _ in range(first if best is None else SEARCH_ITERATIONS):
            words = "Weighing the queries" + ("" if best is None else f", gap {left:.1e}")
            tell(0.9 * done / most, words)
            with threads_for(1):  # many small products
                balance.step(KEEN if best is not None or many else PLAIN)
            done += 1
            if time.monotonic() > deadline and done >= LEAST_STEPS:
                break
        found, last = _finished(workload, goal, split, labels, arranged, balance, deadline), left
        best = found if best is None else _both(best, found)
        left = math.sqrt(best.value / best.proof.bound) - 1.0
        lost = lost + 1 if left > WORTH * last else 0
        if done >= most or left <= GAP or lost == PATIENCE or time.monotonic() > deadline:
            return best


def _finished(
    workload: Workload,
    goal: Objective,
    split: Split,
    labels: Mapping[str, Hashable],
    arranged: Arranged,
    now: _Balance,
    deadline: float,
) -> Balanced:
    """Return the plan and the proof that the weights of now lead to; their lines take no harm."""
    kept = [(line.mass, line.variances) for line in now.lines]
    numbers, same = now.layout.numbers, arranged.same
    masses = [line.mass for line in now.lines]
    emphasis = arranged.emphasis(now.emphasis(same))
    near = functools.partial(_known, masses, numbers)
    shown = proof(workload, goal, split, labels, emphasis, near, deadline=deadline)
    with threads_for(1):
        for line in now.lines:
            line.polish()
    made = measured_lines(
        workload,
        split,
        list(same.spaces),
        [line.weights for line in now.lines],
        numbers,
        [line.mass for line in now.lines],
    )
    now.look()
    noises = now.best_noises()
    for line, (mass, variances) in zip(now.lines, kept, strict=True):
        line.mass, line.variances = mass, variances
    now.look()
    blocks = unit_blocks(made.parts, made.solutions)
    builder = VarianceBuilder(blocks=blocks, split=split, schema=workload.schema)
    asked = footprints(arranged.workload, blocks, builder, same, goal)
    if asked is None:
        raise Unanswered(LOST)
    found = best_shares(asked, same.counts, goal, noises, FINE)
    shares = np.array([found.noises[same.spaces[s]] for s in made.parts.spaces])
    return Balanced(plan=made, shares=shares, value=found.value, proof=shown)


def _known(masses: list[Array], numbers: Mapping[tuple[Space, str], int], space: Space, name: str) -> Array | None:
    number = numbers.get((space, name))
    return None if number is None else masses[number]


def _both(a: Balanced, b: Balanced) -> Balanced:
    """Return the better plan with the better proof."""
    plan, shown = (a if a.value <= b.value else b), (a if a.proof.bound >= b.proof.bound else b)
    return Balanced(plan=plan.plan, shares=plan.shares, value=plan.value, proof=shown.proof)


def _move(pace: _Pace, weights: Array, ratio: Array, last: Array) -> Array:
    """Return by what the logarithms of weights rise: a power of variances over the mean, and part of the last move.

    Light ones rise fast.  All have one shape.
    """
    light = LIGHT * float(weights.mean())
    power = pace.power + np.where(ratio > 1.0, pace.rise * light / (light + weights), 0.0).astype(weights.dtype)
    return np.asarray(np.clip(power * np.log(np.maximum(ratio, 1e-30)) + pace.kept * last, -FARTHEST, FARTHEST))


def _contracted(weights: Array, tables: Sequence[Array], but: int = -1) -> Array:
    """Return the sums of weights times one table an axis, shape (spaces,), or (spaces, queries) with one axis left."""
    if but >= 0:
        weights = np.moveaxis(weights, but, 0)
    others = [t for k, t in enumerate(tables) if k != but]
    if not others:
        return np.broadcast_to(weights, (len(tables[but]), *weights.shape)) if but >= 0 else weights.reshape(1)
    with np.errstate(invalid="ignore"):  # vector units raise the flag on registers that hold no data; see below
        out = weights @ others[-1].T
    if not np.isfinite(out).all():
        raise FloatingPointError("the sums of weights times tables are not finite")
    for table in others[-2::-1]:
        out = np.einsum("...as,sa->...s", out, table)
    return np.asarray(out.T)


def _products(scale: Array, tables: Sequence[Array]) -> Array:
    """Return the sum over spaces of scale times a product of tables, in the shape of the queries of all parts."""
    if not tables:
        return np.asarray(scale.sum())
    out = scale[:, None] if not tables else scale[:, None].astype(tables[0].dtype)
    for table in tables[:-1]:
        out = (out[:, :, None] * table[:, None, :]).reshape(len(scale), -1)
    return np.asarray((out.T @ tables[-1]).reshape([t.shape[1] for t in tables]))
