"""Minimax plans for product workloads by multiplicative weights on single queries.

Variances
---------
The variance of a product query is a sum over the residual spaces on attributes of its group.  Each
term is the squared noise of the space, times a factor, times one number per attribute: (q . pi)^2
for attributes outside the space, and the variance under the strategy of the attribute for those
inside.  An attribute whose queries and cells are all equivalent has one best strategy for any
weights; its contribution is part of the factor.  Every other attribute of a space has a *line*: a
strategy on one attribute whose query weights change at every iteration.

Lines
-----
With rows W on cells, query weights w and cell weights mu, let
K = diag(sqrt w) W diag(sqrt mu) = U S V^T.  Then

    T = tr S,   diagonal of X over the cells  d = diag(V S V^T) / mu,   variance of query q  (W mu V S^-1 V^T mu W^T)_qq

at privacy cost T.  Each iteration raises the weights of cells that cost more than T, as in
`engine.residuals.dual_solver`.

Search
------
Multiplicative weights: queries above the mean variance gain weight, queries below it lose weight.
In every iteration the query weights determine the weights of the lines, and every line takes one
step towards the optimal strategy for these.  At the end the budget is divided optimally among the
strategies.

Lower bound
-----------
The optimal weighted sum for any query weights, divided by their dual norm, bounds every plan.  The
weights are replaced by products within each group, so the Gram matrix of a space is a sum of
products, and the minimum of a sum is at least the sum of the minima of its terms.  Plans are
assembled and bounded by the same code after a search and from a plan file.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from engine._arrays import Array
from engine._clock import planning_time
from engine._threads import threads_for
from engine.errors import Unanswered
from engine.mechanisms.reweighting import LOST, dual_norm, has_equal_weights, unit_blocks
from engine.plans.objectives import Emphasis, Objective, Symmetry, best_shares, footprints, symmetry
from engine.plans.solver_state import Lines, Tradeoff
from engine.plans.variance import VarianceBuilder
from engine.residuals import DualProblem, Factor, Space, Split, basis, center, digest
from engine.residuals.decomposition import Decomposition, decompose, merge_terms
from engine.residuals.dual_solver import Solution
from engine.residuals.strategy_search import Search
from engine.residuals.subworkload_solver import SpaceSolution
from engine.workload import Group, Part, Workload

# Limits of the search: queries with separate weights, over one group per class, and matrix entries
# in the query rows of all lines (strategies on one attribute).
MAX_LINE_QUERIES = 8_000_000
MAX_ROW_ENTRIES = 8_000_000
# If every class of residual spaces would need more lines than this, spaces on more than
# `MAX_SEPARATE_AXES` attributes share lines with spaces on equally many attributes.
MAX_SEPARATE_LINES = 40
MAX_SEPARATE_AXES = 2


def line_queries(workload: Workload, goal: Objective, split: Split) -> int:
    """Count the queries with separate weights in the minimax search; 0 if it does not apply.

    The search applies to the objective "max" and queries that are products over attributes.  It is
    needed only if some group has two or more lines: otherwise the factored weights of
    `engine.mechanisms.reweighting` are as general as separate weights.
    """
    if not math.isinf(goal.power) or split.complements or split.unions:
        return 0
    groups = {group.key: group for group in workload.groups if group.weight > 0}.values()
    if any(g.query_weights is not None or any(len(p.axes) > 1 for p in g.parts) for g in groups):
        return 0
    uneven = [
        [p for p in g.parts if not is_symmetric_part(p, split.centers.get(g.attributes[p.axes[0]]))]
        for g in groups
    ]
    rows = {p.key: p.count * p.cells for lines in uneven for p in lines}
    n_points = sum(math.prod(p.count for p in lines) for lines in uneven)
    is_suitable = (
        any(len(lines) > 1 for lines in uneven)
        and sum(rows.values()) <= MAX_ROW_ENTRIES
        and n_points <= MAX_LINE_QUERIES
    )
    return n_points if is_suitable else 0


def is_applicable(workload: Workload, goal: Objective, split: Split) -> bool:
    """Return whether the minimax search applies to the workload."""
    return line_queries(workload, goal, split) > 0


def is_symmetric_part(part: Part, pi: Array | None) -> bool:
    """Return whether all queries and all cells of a part on one attribute are equivalent.

    ``pi`` is the center of the attribute, shape (n,); None for the uniform center.  With another
    center, cells are not equivalent.
    """
    if pi is not None or part.count > part.cells or not has_equal_weights(part):
        return False
    rows = part.family.rows(part.sizes)
    return not np.ptp(rows.sum(axis=1)) and not np.ptp((rows**2).sum(axis=1))


def parts_of(workload: Workload) -> dict[str, tuple[Part, ...]]:
    """Return a mapping from attribute to its distinct parts (query families) of weighted groups.

    The parts are sorted by key; attributes without a weighted group have none.
    """
    out: dict[str, dict[str, Part]] = {}
    for group in {g.attributes: g for g in workload.groups}.values():
        for name in group.attributes:
            out.setdefault(name, {})
    for group in workload.groups:
        for part in group.parts if group.weight > 0 else ():
            out[group.attributes[part.axes[0]]].setdefault(repr(part.key), part)
    return {name: tuple(parts[key] for key in sorted(parts)) for name, parts in out.items()}


class SortedWorkload:
    """A workload with the parts of every group in an order that the schema does not affect.

    Groups that differ only in the order of their attributes are then equal.

    Attributes
    ----------
    workload : the same groups with sorted parts.
    orders : for every group, the original positions of its sorted parts.
    same : equivalence classes of groups and residual spaces.
    """

    def __init__(
        self,
        workload: Workload,
        spaces: Sequence[Space],
        goal: Objective,
        labels: Mapping[str, Hashable],
        split: Split,
    ) -> None:
        labels_of = {
            n: (str(labels.get(n)), str(digest(split.centers.get(n))))
            for n in workload.schema.names
        }
        space_classes: Mapping[Space, int] = {}
        # the first pass computes classes of attributes, which order equal parts in the second pass
        for _ in range(2):
            self.orders = [
                self._order(group, labels_of, space_classes) for group in workload.groups
            ]
            arranged = [
                _reorder(g, order) for g, order in zip(workload.groups, self.orders, strict=True)
            ]
            self.workload = Workload(workload.schema, tuple(arranged))
            self.same: Symmetry = symmetry(
                self.workload, spaces, goal, labels, split, ordered=False
            )
            space_classes = self.same.spaces

    @staticmethod
    def _order(
        group: Group, labels_of: Mapping[str, Hashable], space_classes: Mapping[Space, int]
    ) -> tuple[int, ...]:
        """Return the positions of a group's parts in sorted order."""
        names = [group.attributes[part.axes[0]] for part in group.parts]
        keys = [
            (repr(part.key), labels_of[name], space_classes.get((name,), -1))
            for part, name in zip(group.parts, names, strict=True)
        ]
        return tuple(sorted(range(len(keys)), key=keys.__getitem__))

    def emphasis(self, emphasis: Emphasis) -> Emphasis:
        """Return query weights of the sorted workload as weights of the original workload."""
        numbers: dict[tuple[int, tuple[int, ...]], int] = {}
        kinds = tuple(
            numbers.setdefault((kind, order), len(numbers)) if kind >= 0 else -1
            for kind, order in zip(emphasis.kinds, self.orders, strict=True)
        )
        return Emphasis(
            kinds=kinds,
            weights=np.array([emphasis.weights[kind] for kind, _ in numbers]),
            uses=tuple(
                tuple(emphasis.uses[kind][order.index(p)] for p in range(len(order)))
                for kind, order in numbers
            ),
            single_vector=tuple(emphasis.single_vector[kind] for kind, _ in numbers),
            vectors=emphasis.vectors,
        )


def _reorder(group: Group, order: tuple[int, ...]) -> Group:
    """Return a group with its parts, each on one attribute, in the given order."""
    names = tuple(group.attributes[group.parts[p].axes[0]] for p in order)
    parts = tuple(replace(group.parts[p], axes=(axis,)) for axis, p in enumerate(order))
    return replace(group, attributes=names, parts=parts)


@dataclass(frozen=True, kw_only=True, eq=False)
class Kind:
    """One equivalence class of groups; a *line* is a strategy on one attribute.

    Attributes
    ----------
    number : index of the class.
    groups : number of groups in the class.
    target : target variance of the queries, in counts^2.
    multiplicity : number of queries of a group that differ only on attributes without a line, and
        are therefore equivalent.
    parts : positions of the parts of the group whose attribute has a line.
    spaces : class of every residual space on attributes of the group.
    factors : for every space, the contribution of attributes without a line, shape (spaces,).
    lines : for every space and part, the index of the line; -1 if the attribute of the part is not
        in the space.
    outside : for every part, (q . pi)^2 of its queries, shape (queries,) each.
    windows : for every part, the slice of its queries within the queries of its line.
    """

    number: int
    groups: float
    target: float
    multiplicity: int
    parts: tuple[int, ...]
    spaces: tuple[int, ...]
    factors: Array
    lines: tuple[tuple[int, ...], ...]
    outside: tuple[Array, ...]
    windows: tuple[slice, ...]

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of queries of every part that has a line."""
        return tuple(map(len, self.outside))


class Layout:
    """Which residual space and attribute uses which line (strategy on one attribute).

    Attributes
    ----------
    kinds : equivalence classes of groups.
    rows : for every line, the residual rows of its queries, shape (queries, cells).
    numbers : mapping from (space, attribute) to the index of its line, for attributes with a line.
    """

    def __init__(self, workload: Workload, same: Symmetry, goal: Objective, split: Split) -> None:
        self.workload, self.same, self.goal, self.split = workload, same, goal, split
        self.parts = parts_of(workload)
        self._symmetric: dict[Hashable, bool] = {}
        self._rows: dict[Hashable, Array] = {}
        spaces = list(same.spaces)
        self.has_line = {
            name: any(not self._is_symmetric(p, name) for p in parts) or len(parts) > 1
            for name, parts in self.parts.items()
        }
        separate = {
            self._key(s, name, True): 0 for s in spaces for name in s if self.has_line[name]
        }
        self.has_separate_lines = len(separate) <= MAX_SEPARATE_LINES
        numbers: dict[Hashable, int] = {}
        self.numbers: dict[tuple[Space, str], int] = {}
        self.rows: list[Array] = []
        for s in spaces:
            for name in s:
                if self.has_line[name]:
                    number = numbers.setdefault(
                        self._key(s, name, self.has_separate_lines), len(numbers)
                    )
                    self.numbers[s, name] = number
                    if number == len(self.rows):
                        self.rows.append(self._residual_rows(name))
        self.kinds = [self._kind(k, workload.groups[i]) for k, i in enumerate(same.examples)]

    def _is_symmetric(self, part: Part, name: str) -> bool:
        """Return the cached result of `is_symmetric_part` for a part on an attribute."""
        key = (part.key, digest(self.split.centers.get(name)))
        if key not in self._symmetric:
            self._symmetric[key] = is_symmetric_part(part, self.split.centers.get(name))
        return self._symmetric[key]

    def _key(self, space: Space, name: str, separate: bool) -> Hashable:
        """Return a key that is equal for spaces sharing the line of an attribute."""
        classes = {n: self.same.spaces.get((n,), n) for n in space}
        axis_key = (
            classes[name],
            tuple(p.key for p in self.parts[name]),
            digest(self.split.centers.get(name)),
        )
        if separate or len(space) <= MAX_SEPARATE_AXES:
            return axis_key, self.same.spaces[space]
        # attributes without a line have equivalent cells, so only their number matters
        return (
            axis_key,
            tuple(sorted(str(classes[n]) for n in space if self.has_line[n])),
            len(space),
        )

    def _residual_rows(self, name: str) -> Array:
        """Return q (I - pi 1^T) for all queries q on an attribute, shape (queries, cells)."""
        pi, parts = self.split.centers.get(name), self.parts[name]
        key = (tuple(p.key for p in parts), digest(pi))
        if key not in self._rows:
            rows = np.concatenate([p.family.rows(p.sizes) for p in parts])
            self._rows[key] = rows - (rows @ center(rows.shape[1], pi))[:, None]
        return self._rows[key]

    def _kind(self, number: int, group: Group) -> Kind:
        """Return the class with a number, given one of its groups."""
        schema, same = self.workload.schema, self.same
        names = [group.attributes[p.axes[0]] for p in group.parts]
        lines = tuple(k for k, name in enumerate(names) if self.has_line[name])
        outside, inside = [], []
        for part, name in zip(group.parts, names, strict=True):
            outside.append(
                part.family.dot(part.sizes, center(part.sizes[0], self.split.centers.get(name)))
                ** 2
            )
            # the identity is optimal for equivalent cells; its column norm^2 is 1 - 1/n in the
            # residual space of a uniform center
            rows = (
                part.family.rows(part.sizes)
                if not self.has_line[name]
                else np.zeros((1, part.sizes[0]))
            )
            centered = (rows - rows.mean(axis=1, keepdims=True))[0]
            inside.append(float(centered @ centered) * (1.0 - 1.0 / part.sizes[0]))
        spaces, factors, line_indices = [], [], []
        for axes in group.spaces(schema):
            space = group.named(axes)
            if space not in same.spaces:
                continue
            spaces.append(same.spaces[space])
            others = [k for k in range(len(names)) if k not in lines]
            factors.append(
                math.prod(inside[k] if names[k] in space else float(outside[k][0]) for k in others)
            )
            line_indices.append(
                tuple(self.numbers[space, names[k]] if names[k] in space else -1 for k in lines)
            )
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
            multiplicity=math.prod(p.count for k, p in enumerate(group.parts) if k not in lines),
            parts=lines,
            spaces=tuple(spaces),
            factors=np.array(factors),
            lines=tuple(line_indices),
            outside=tuple(outside[k] for k in lines),
            windows=tuple(starts),
        )


# This share of the largest query weight is added to all weights, because a query of weight 0 could
# have an infinite variance.
QUERY_WEIGHT_FLOOR = 1e-4
# Smallest cell weight as a share of the mean, because a weight of 0 would never increase.
MIN_CELL_WEIGHT = 1e-8
# In an iteration, a cell weight is multiplied by (cost of the cell / mean cost) to this power.
CELL_WEIGHT_EXPONENT = 1.5
# After the search, lines iterate at fixed query weights, at most this often or until this gap.
POLISH_ITERATIONS, POLISH_GAP = 20, 1e-6


class Line:
    """Strategy on one attribute that follows changing weights of its queries.

    Parameters
    ----------
    rows : residual row q (I - pi 1^T) of every query q, shape (queries, cells).

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
        """Take one step with new query weights, shape (queries,).

        Sets ``variances``, shape (queries,): the variances of the queries at privacy cost 1.
        """
        self.weights = weights / weights.max() + QUERY_WEIGHT_FLOOR
        self.step()

    def step(self) -> float:
        """Improve the cell weights once for the current query weights.

        Returns the gap before the step: largest cost of a cell over the mean cost, minus 1.
        """
        projected = self.rows * np.sqrt(self.mass)
        squares, V = np.linalg.eigh((projected.T * self.weights) @ projected)
        squares, V = squares[len(squares) - self.rank :], V[:, len(squares) - self.rank :]
        sizes = np.sqrt(np.maximum(squares, squares[-1] * 1e-18))
        total = float(sizes.sum())
        costs = ((V * V) @ sizes) / self.mass
        self.variances = ((projected @ V) ** 2) @ (total / sizes)
        mass = np.maximum(
            self.mass * (costs / total) ** CELL_WEIGHT_EXPONENT, MIN_CELL_WEIGHT / len(self.mass)
        )
        self.mass = mass / mass.sum()
        return float(costs.max()) / total - 1.0

    def polish(self) -> None:
        """Iterate with fixed weights until the strategy is optimal for them."""
        for _ in range(POLISH_ITERATIONS):
            if self.step() <= POLISH_GAP:
                return


# `CELL_WEIGHT_EXPONENT` and number of iterations of the cell weights that prove the lower bound.
PROOF_WEIGHT_EXPONENT = 1.5
PROOF_ITERATIONS = 6
# stored (dual weights, termination message) pairs, in the order of the searches
Recorded = list[tuple[Array, str]]


@dataclass(frozen=True, kw_only=True, eq=False)
class MeasuredSpaces:
    """Strategies of all residual spaces.

    Attributes
    ----------
    parts, solutions : assignment of residual spaces to solutions, and the solutions.
    duals : cell weights from which the strategies are computed, in the order of first use.
    lines : query weights for which the strategies are optimal.
    """

    parts: Decomposition
    solutions: list[SpaceSolution]
    duals: tuple[Array, ...]
    lines: Lines


@dataclass(frozen=True, kw_only=True, eq=False)
class Proof:
    """Lower bound on the objective, with what proves it.

    Attributes
    ----------
    emphasis : query weights.
    bound : lower bound at privacy cost 1, in counts^2 or relative to the targets.
    duals : cell weights that prove a bound for each factor of the Gram matrices.
    """

    emphasis: Emphasis
    bound: float
    duals: tuple[Array, ...]


def strategies_of_weights(
    workload: Workload,
    split: Split,
    spaces: Sequence[Space],
    weights: Sequence[Array],
    numbers: Mapping[tuple[Space, str], int],
    masses: Sequence[Array] | None,
    recorded: Recorded | None = None,
) -> MeasuredSpaces:
    """Return one strategy per attribute of every residual space, for weights of its queries.

    Parameters
    ----------
    weights : query weight vectors, shape (queries,) each.
    numbers : mapping from (space, attribute) to the index of its vector in ``weights``; all queries
        on other attributes have equal weights.
    masses : for every vector, the cell weights from which the strategy is computed, shape (cells,);
        None for uniform cell weights.
    recorded : cell weights of a plan file, one per class of equivalent cells, that replace
        ``masses``; emptied as they are used.
    """
    parts, solved = parts_of(workload), dict[Any, tuple[Solution, Array]]()
    duals: list[Array] = []
    solutions: list[SpaceSolution] = []
    tuples: dict[tuple[Any, ...], int] = {}
    assignment: dict[Space, tuple[int, float]] = {}
    for space in spaces:
        keys = []
        for name in space:
            number, pi = numbers.get((space, name), -1), split.centers.get(name)
            key = (number, tuple(p.key for p in parts[name]), digest(pi))
            if key not in solved:
                search = _search(_gram(parts[name], None if number < 0 else weights[number]), pi)
                near = None if masses is None or number < 0 else masses[number]
                with threads_for(1):
                    mass = (
                        _initial_mass(search.problem(), near)
                        if recorded is None
                        else _next_recorded(recorded)
                    )
                solved[key] = search.replay(mass, "optimal"), mass
                duals.append(mass)
            keys.append(key)
        if tuple(keys) not in tuples:
            tuples[tuple(keys)] = len(solutions)
            factors = [((a,), solved[key][0]) for a, key in enumerate(keys)]
            solutions.append(
                SpaceSolution(
                    factors=tuple(factors),
                    value=math.prod(s.value for _, s in factors),
                    bound=math.prod(s.bound for _, s in factors),
                    status="optimal",
                )
            )
        assignment[space] = tuples[tuple(keys)], 1.0
    used = tuple(tuple(numbers.get((space, name), -1) for name in space) for space in spaces)
    return MeasuredSpaces(
        parts=Decomposition(factors=(), subworkloads=(), spaces=assignment),
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
    strategy_of: Callable[[Space, str], Array | None],
    recorded: Recorded | None = None,
    deadline: float = math.inf,
) -> Proof:
    """Compute the lower bound on the objective of all plans that query weights prove.

    Parameters
    ----------
    emphasis : query weights, as products over attributes.
    strategy_of : returns initial cell weights for a space and one of its attributes, shape
        (cells,), or None for uniform weights.
    recorded : cell weights of a plan file that replace the search; emptied as they are used.
    deadline : time after which the cell weights are not improved further.
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
        for coefficient, factors in merge_terms(sub, parts.factors):
            value = coefficient
            for (axis,), factor in factors:
                if factor not in bounds:
                    near = strategy_of(examples[k], examples[k][axis])
                    with threads_for(1):
                        problem = _search(factor, sub.centers[axis]).problem()
                        mass = (
                            _initial_mass(problem, near, PROOF_ITERATIONS, deadline)
                            if recorded is None
                            else _next_recorded(recorded)
                        )
                        if len(mass) != problem.variables:
                            raise ValueError("the stored cell weights do not fit the workload")
                        bounds[factor] = problem.bound(mass)
                    duals.append(mass)
                value *= bounds[factor]
            total += value
        totals.append(total)
    total_root = math.fsum(math.sqrt(scale * totals[k]) for k, scale in parts.spaces.values()) ** 2
    return Proof(
        emphasis=emphasis,
        bound=total_root / dual_norm(workload, goal, emphasis)[0],
        duals=tuple(duals),
    )


def rebuild_proof(
    workload: Workload,
    goal: Objective,
    split: Split,
    labels: Mapping[str, Hashable],
    tradeoff: Tradeoff,
    recorded: Recorded,
) -> tuple[Decomposition, list[SpaceSolution], float]:
    """Rebuild the strategies and the lower bound of a plan file.

    Returns
    -------
    The assignment of residual spaces to solutions, the solutions, and the lower bound.

    Raises
    ------
    ValueError
        If the recorded weights do not fit the workload.
    """
    lines = tradeoff.lines
    if lines is None or not is_applicable(workload, goal, split):
        raise ValueError("attribute weights are stored for a workload that does not use them")
    spaces = list(decompose(workload, split, labels).spaces)
    if len(lines.uses) != len(spaces) or any(
        len(s) != len(u) for s, u in zip(spaces, lines.uses, strict=True)
    ):
        raise ValueError("the stored attribute weights do not fit the residual spaces")
    numbers = {
        (space, name): number
        for space, uses in zip(spaces, lines.uses, strict=True)
        for name, number in zip(space, uses, strict=True)
        if number >= 0
    }
    rows = {name: sum(p.count for p in parts) for name, parts in parts_of(workload).items()}
    if any(len(lines.weights[number]) != rows[name] for (_, name), number in numbers.items()):
        raise ValueError("the stored attribute weights do not fit the numbers of queries")
    measured = strategies_of_weights(
        workload, split, spaces, lines.weights, numbers, None, recorded
    )
    tradeoff.emphasis.check(workload)
    lower_bound = proof(workload, goal, split, labels, tradeoff.emphasis, lambda *_: None, recorded)
    return measured.parts, measured.solutions, lower_bound.bound


def _gram(parts: Sequence[Any], weights: Array | None) -> Factor:
    """Return the residual Gram of all queries on an attribute; weights None are all 1."""
    (n,) = parts[0].sizes
    gram, start = np.zeros((n, n)), 0
    for part in parts:
        part_weights = None if weights is None else weights[start : start + part.count]
        gram, start = gram + part.family.gram(part.sizes, part_weights), start + part.count
    N = basis(n)
    return Factor(sizes=(n,), matrix=N.T @ gram @ N)


def _search(factor: Factor, pi: Array | None) -> Search:
    """Return the strategy search for one residual Gram on one attribute with center ``pi``."""
    return Search(factor=factor, centers=(pi,))


def _initial_mass(
    problem: DualProblem, near: Array | None, steps: int = 0, deadline: float = math.inf
) -> Array:
    """Return one weight per orbit (class of equivalent cells), shape (orbits,).

    The weights start at the cell weights ``near`` (uniform if None) and are improved by at most
    ``steps`` iterations; the result is the one with the largest lower bound.
    """
    cells = np.ones(len(problem.orbit)) if near is None else near
    mass: Array = np.bincount(problem.orbit, cells, minlength=problem.variables) / cells.sum()
    best, bound = mass, 0.0
    for _ in range(steps):
        if planning_time() > deadline:
            break
        total, costs = problem.evaluate(mass)
        if total > bound:
            best, bound = mass, total
        mass = mass * (costs / total) ** PROOF_WEIGHT_EXPONENT
        mass /= mass.sum()
    return best


def _next_recorded(recorded: Recorded) -> Array:
    """Remove and return the next stored weights."""
    if not recorded:
        raise ValueError("fewer dual weights are stored than searches need")
    return recorded.pop(0)[0]


# Iterations before the first plan, between plans, and in total.
FIRST_ITERATIONS, SEARCH_ITERATIONS, MAX_ITERATIONS = 60, 20, 160
# Iterations if only one plan is computed.
SINGLE_PLAN_ITERATIONS = 96
# Iterations before the time limit is checked.
MIN_ITERATIONS = 10
# With at most this many queries with separate weights, several plans are computed and the best one
# is returned.
MAX_COMPARED_QUERIES = 500_000
# Weights below this share of the mean of their group increase faster.
LIGHT_WEIGHT = 1e-2
# Largest change of the logarithm of a weight in one iteration.
MAX_LOG_STEP = 3.0
# Smallest mean weight of the queries of a group, as a share of the mean of all queries.
MIN_GROUP_WEIGHT = 1e-9
# Smallest weight of a query in the lower bound, as a share of the smallest weight in the search.
PROOF_WEIGHT_FLOOR = 1e-2
# Single precision suffices for the search over millions of queries; certificates use double
# precision.
SEARCH_DTYPE: Any = np.float32
# Relative gap of the standard error at which the search stops.
STOP_GAP = 1e-5
# If the relative gap of the standard error is larger, another kind of query weights is tried.
POOR_FIT_GAP = 1e-3
# The search stops after `MAX_STALLED_PLANS` consecutive plans whose gap exceeds `STALLED_GAP_RATIO`
# times the gap before them.
STALLED_GAP_RATIO, MAX_STALLED_PLANS = 0.9, 2
# Target gap of the budget allocation, relative to the largest variance.
ALLOCATION_GAP = 4e-6


@dataclass(frozen=True, kw_only=True)
class _Pace:
    """Parameters of the update of query weights.

    Attributes
    ----------
    power : a weight is multiplied by (variance / mean variance) to this power.
    rise : addition to the power for small weights that increase.
    momentum : share of the previous step of the logarithms that is added to the next one.
    least : smallest weight of a query, as a share of the mean of its group.
    """

    power: float
    rise: float
    momentum: float
    least: float


# Without momentum, until the first plan of a workload with few queries.
FIRST_PACE = _Pace(power=2.0, rise=20.0, momentum=0.0, least=1e-8)
MOMENTUM_PACE = _Pace(power=1.5, rise=10.0, momentum=0.7, least=1e-4)


@dataclass(frozen=True, kw_only=True, eq=False)
class MinimaxResult:
    """A plan at privacy cost 1 with its lower bound.

    Attributes
    ----------
    plan : strategies of all residual spaces.
    shares : squared noise of every residual space, in the order of ``plan.parts.spaces``.
    value : largest ratio of a variance to its target; in counts^2 without targets.
    proof : query weights and the lower bound that they prove.
    """

    plan: MeasuredSpaces
    shares: Array
    value: float
    proof: Proof

    @property
    def duals(self) -> tuple[Array, ...]:
        """Cell weights of all strategies and of the lower bound.

        One weight per orbit (class of equivalent cells) in each array.
        """
        return (*self.plan.duals, *self.proof.duals)

    @property
    def fits_poorly(self) -> bool:
        """Whether the gap is so large that another kind of query weights should be tried."""
        return self.value > self.proof.bound * (1.0 + POOR_FIT_GAP) ** 2

    @property
    def endings(self) -> tuple[str, ...]:
        """Status of every solve in ``duals``."""
        return ("optimal",) * len(self.duals)

    @property
    def parts(self) -> Decomposition:
        """Decomposition that assigns a strategy to every space."""
        return self.plan.parts

    @property
    def solutions(self) -> list[SpaceSolution]:
        """Strategies of the residual spaces."""
        return self.plan.solutions

    @property
    def tradeoff(self) -> Tradeoff:
        """Solver state for a plan file."""
        return Tradeoff(shares=self.shares, emphasis=self.proof.emphasis, lines=self.plan.lines)


class _Balance:
    """State of the search: query weights, lines (strategies on one attribute) and noise.

    ``weights`` has one array per class of groups, with one axis per part that has a line.  An entry
    is the total weight of equivalent queries over all groups of the class; all entries sum to 1.
    """

    def __init__(self, layout: Layout, counts: Array) -> None:
        self.layout, self.kinds, self.counts = layout, layout.kinds, counts
        self.lines = [Line(rows) for rows in layout.rows]
        n_queries = math.fsum(math.prod(k.counts) for k in self.kinds)
        self.weights = [np.full(k.counts, 1.0 / n_queries, dtype=SEARCH_DTYPE) for k in self.kinds]
        self.pace, self.least = MOMENTUM_PACE, MIN_GROUP_WEIGHT / n_queries
        self.log_steps = [np.zeros_like(w) for w in self.weights]
        self.outside = [[out.astype(SEARCH_DTYPE) for out in k.outside] for k in self.kinds]
        self.follow([np.ones(len(line.rows)) for line in self.lines])
        self.noises = self.best_noises()

    def follow(self, weights: Sequence[Array]) -> None:
        """Take one step of every line with new query weights, shape (queries,) each."""
        for line, line_weights in zip(self.lines, weights, strict=True):
            line.follow(line_weights)
        self.tabulate_variances()

    def tabulate_variances(self) -> None:
        """Set ``tables``: for every class and part, the factors of the variances of its queries.

        A table has shape (spaces, queries): the variance under the line of the part, or
        (q . pi)^2 in spaces without its attribute.
        """
        variances = [line.variances.astype(SEARCH_DTYPE) for line in self.lines]
        self.tables = [
            [
                np.stack(
                    [
                        out if indices[p] < 0 else variances[indices[p]][window]
                        for indices in kind.lines
                    ]
                )
                for p, (out, window) in enumerate(zip(outside, kind.windows, strict=True))
            ]
            for kind, outside in zip(self.kinds, self.outside, strict=True)
        ]

    def best_noises(self) -> Array:
        """Return the optimal squared noises at privacy cost 1, one per class of spaces.

        They minimize the weighted sum of the variances.
        """
        weighted_variances = np.zeros(len(self.counts))
        for kind, weights, tables in zip(self.kinds, self.weights, self.tables, strict=True):
            sums = _weighted_sums(weights, tables) * kind.factors
            weighted_variances += np.bincount(
                kind.spaces, sums / kind.target, minlength=len(weighted_variances)
            )
        best = np.sqrt(self.counts / np.maximum(weighted_variances, 1e-300))
        return np.asarray(best * float(np.sum(self.counts / best)), dtype=float)

    def line_weights(self) -> list[Array]:
        """Return for every line the weights of its queries, shape (queries,) each.

        A weight is the sum, over all queries that use it, of query weight times the rest of the
        product in the variance.
        """
        sums = [np.zeros(len(line.rows)) for line in self.lines]
        for kind, weights, tables in zip(self.kinds, self.weights, self.tables, strict=True):
            scale = kind.factors * self.noises[list(kind.spaces)] / kind.target
            for p, window in enumerate(kind.windows):
                contributions = _weighted_sums(weights, tables, p) * scale[:, None]
                for j, indices in enumerate(kind.lines):
                    if indices[p] >= 0:
                        sums[indices[p]][window] += contributions[j]
        return sums

    def step(self, pace: _Pace) -> None:
        """Update the lines and the noise, then the query weights."""
        self.follow(self.line_weights())
        self.noises = self.best_noises()
        variances = [
            _products(kind.factors * self.noises[list(kind.spaces)] / kind.target, tables)
            for kind, tables in zip(self.kinds, self.tables, strict=True)
        ]
        mean = math.fsum(float(np.vdot(w, v)) for w, v in zip(self.weights, variances, strict=True))
        self.pace = pace
        self.log_steps = [
            _log_step(pace, w, v / mean, m)
            for w, v, m in zip(self.weights, variances, self.log_steps, strict=True)
        ]
        self.weights = [w * np.exp(m) for w, m in zip(self.weights, self.log_steps, strict=True)]
        total = math.fsum(float(w.sum()) for w in self.weights)
        means = [max(float(w.mean()) / total, self.least) for w in self.weights]
        self.weights = [
            np.maximum(w / total, pace.least * mean)
            for w, mean in zip(self.weights, means, strict=True)
        ]

    def emphasis(self, same: Symmetry) -> Emphasis:
        """Return product weights for the lower bound: the margins of the weights of every class."""
        vectors: list[Array] = []
        uses, by_kind = [], []
        uniform: dict[int, int] = {}
        for kind, query_weights in zip(self.kinds, self.weights, strict=True):
            # The smallest weight during the search serves only to keep weights positive; it would
            # weaken the bound.
            floor = self.pace.least * float(query_weights.mean())
            weights = np.maximum(query_weights - floor, PROOF_WEIGHT_FLOOR * floor)
            group, group_uses = self.layout.workload.groups[same.examples[kind.number]], []
            for k, part in enumerate(group.parts):
                if k in kind.parts:
                    axis = kind.parts.index(k)
                    vector = weights.sum(
                        axis=tuple(a for a in range(weights.ndim) if a != axis), dtype=float
                    )
                    group_uses.append(len(vectors))
                    vectors.append(vector / vector.sum())
                else:
                    if part.count not in uniform:
                        uniform[part.count] = len(vectors)
                        vectors.append(np.ones(part.count))
                    group_uses.append(uniform[part.count])
            uses.append(tuple(group_uses))
            by_kind.append(float(weights.sum()) / (kind.groups * kind.multiplicity * kind.target))
        return Emphasis(
            kinds=same.kinds,
            weights=np.array(by_kind),
            uses=tuple(uses),
            single_vector=(False,) * len(uses),
            vectors=tuple(vectors),
        )


def max_rounds(workload: Workload, goal: Objective, split: Split) -> int:
    """Return how many plans `minimax_search` computes at most; 0 if it does not apply."""
    n_points = line_queries(workload, goal, split)
    return min(
        n_points,
        1
        if n_points > MAX_COMPARED_QUERIES
        else 1 + (MAX_ITERATIONS - FIRST_ITERATIONS) // SEARCH_ITERATIONS,
    )


def minimax_search(
    workload: Workload,
    goal: Objective,
    split: Split,
    labels: Mapping[str, Hashable],
    tell: Callable[[float, str], None],
    deadline: float,
) -> MinimaxResult:
    """Search for the plan with the smallest largest variance, and for the best lower bound.

    The search ends when it has converged or at the deadline, but not before `MIN_ITERATIONS`
    iterations, without which there is no plan.
    """
    spaces = list(decompose(workload, split, labels).spaces)
    arranged = SortedWorkload(workload, spaces, goal, labels, split)
    layout = Layout(arranged.workload, arranged.same, goal, split)
    balance = _Balance(layout, arranged.same.counts)
    best: MinimaxResult | None = None
    done, gap, stalled = 0, math.inf, 0
    many = line_queries(workload, goal, split) > MAX_COMPARED_QUERIES
    first, most = (
        (SINGLE_PLAN_ITERATIONS, SINGLE_PLAN_ITERATIONS)
        if many
        else (FIRST_ITERATIONS, MAX_ITERATIONS)
    )
    while True:
        for _ in range(first if best is None else SEARCH_ITERATIONS):
            message = "Weighing the queries" + ("" if best is None else f", gap {gap:.1e}")
            tell(0.9 * done / most, message)
            # Many small products are slower with several BLAS threads.
            with threads_for(1):
                balance.step(MOMENTUM_PACE if best is not None or many else FIRST_PACE)
            done += 1
            if planning_time() > deadline and done >= MIN_ITERATIONS:
                break
        plan, previous_gap = (
            _plan_and_bound(workload, goal, split, labels, arranged, balance, deadline),
            gap,
        )
        best = plan if best is None else _best_of(best, plan)
        gap = math.sqrt(best.value / best.proof.bound) - 1.0
        stalled = stalled + 1 if gap > STALLED_GAP_RATIO * previous_gap else 0
        if (
            done >= most
            or gap <= STOP_GAP
            or stalled == MAX_STALLED_PLANS
            or planning_time() > deadline
        ):
            return best


def _plan_and_bound(
    workload: Workload,
    goal: Objective,
    split: Split,
    labels: Mapping[str, Hashable],
    arranged: SortedWorkload,
    balance: _Balance,
    deadline: float,
) -> MinimaxResult:
    """Return the plan and the lower bound for the current query weights.

    The lines of ``balance`` are polished for the plan and then restored, so that the search
    continues from the same state.
    """
    line_states = [(line.mass, line.variances) for line in balance.lines]
    numbers, same = balance.layout.numbers, arranged.same
    masses = [line.mass for line in balance.lines]
    emphasis = arranged.emphasis(balance.emphasis(same))
    near = functools.partial(_line_mass, masses, numbers)
    lower_bound = proof(workload, goal, split, labels, emphasis, near, deadline=deadline)
    with threads_for(1):
        for line in balance.lines:
            line.polish()
    measured = strategies_of_weights(
        workload,
        split,
        list(same.spaces),
        [line.weights for line in balance.lines],
        numbers,
        [line.mass for line in balance.lines],
    )
    balance.tabulate_variances()
    noises = balance.best_noises()
    for line, (mass, variances) in zip(balance.lines, line_states, strict=True):
        line.mass, line.variances = mass, variances
    balance.tabulate_variances()
    blocks = unit_blocks(measured.parts, measured.solutions)
    builder = VarianceBuilder(blocks=blocks, split=split, schema=workload.schema)
    queries = footprints(arranged.workload, builder, same, goal)
    if queries is None:
        raise Unanswered(LOST)
    allocation = best_shares(queries, same.counts, goal, noises, ALLOCATION_GAP)
    shares = np.array([allocation.noises[same.spaces[s]] for s in measured.parts.spaces])
    return MinimaxResult(plan=measured, shares=shares, value=allocation.value, proof=lower_bound)


def _line_mass(
    masses: list[Array], numbers: Mapping[tuple[Space, str], int], space: Space, name: str
) -> Array | None:
    """Return the cell weights of the line of an attribute in a space; None without a line."""
    number = numbers.get((space, name))
    return None if number is None else masses[number]


def _best_of(a: MinimaxResult, b: MinimaxResult) -> MinimaxResult:
    """Return the better plan of two results together with the larger lower bound."""
    plan, proven = (a if a.value <= b.value else b), (a if a.proof.bound >= b.proof.bound else b)
    return MinimaxResult(plan=plan.plan, shares=plan.shares, value=plan.value, proof=proven.proof)


def _log_step(pace: _Pace, weights: Array, ratio: Array, previous: Array) -> Array:
    """Return the change of the logarithms of query weights.

    It is a multiple of ``log(ratio)``, larger for small weights that increase, plus momentum.

    Parameters
    ----------
    weights, ratio, previous : query weights, variance over mean variance, and the previous change;
        all of the same shape.
    """
    light_weight = LIGHT_WEIGHT * float(weights.mean())
    power = pace.power + np.where(
        ratio > 1.0, pace.rise * light_weight / (light_weight + weights), 0.0
    ).astype(weights.dtype)
    return np.asarray(
        np.clip(
            power * np.log(np.maximum(ratio, 1e-30)) + pace.momentum * previous,
            -MAX_LOG_STEP,
            MAX_LOG_STEP,
        )
    )


def _weighted_sums(weights: Array, tables: Sequence[Array], but: int = -1) -> Array:
    """Return for every space the sum over queries of weight times the product of the tables.

    Parameters
    ----------
    weights : one axis per table.
    tables : shape (spaces, queries of the axis) each.
    but : axis that is not summed, whose table is left out; -1 for none.

    Returns
    -------
    Shape (spaces,), or (spaces, queries of axis ``but``).
    """
    if but >= 0:
        weights = np.moveaxis(weights, but, 0)
    others = [t for k, t in enumerate(tables) if k != but]
    if not others:
        return (
            np.broadcast_to(weights, (len(tables[but]), *weights.shape))
            if but >= 0
            else weights.reshape(1)
        )
    # vector instructions may raise this flag for unused entries; the result is checked below
    with np.errstate(invalid="ignore"):
        out = weights @ others[-1].T
    if not np.isfinite(out).all():
        raise FloatingPointError("the sums of weights times tables are not finite")
    for table in others[-2::-1]:
        out = np.einsum("...as,sa->...s", out, table)
    return np.asarray(out.T)


def _products(scale: Array, tables: Sequence[Array]) -> Array:
    """Return the sum over spaces of ``scale`` times the product of one column of every table.

    The result has one axis per table, over its columns; ``scale`` has shape (spaces,).
    """
    if not tables:
        return np.asarray(scale.sum())
    out = scale[:, None] if not tables else scale[:, None].astype(tables[0].dtype)
    for table in tables[:-1]:
        out = (out[:, :, None] * table[:, None, :]).reshape(len(scale), -1)
    return np.asarray((out.T @ tables[-1]).reshape([t.shape[1] for t in tables]))
