"""Minimax plans for product workloads by multiplicative weights on single queries.

Variances
---------
The variance of a product query is a sum over the residual spaces inside its group.  Each term is
the squared noise of the space, times a factor, times one number per attribute: (q . pi)^2 for
attributes outside the space, and the variance under the strategy of the attribute for those
inside.  An attribute whose queries and cells are all equivalent has one best strategy for any
weights; its contribution is part of the factor.  Every other attribute of a space has a *line*: a
strategy on one attribute for query weights that change at every iteration.

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
In every iteration the query weights determine the weights of the lines, and those determine the
strategies, which take one step.  At the end the budget is divided optimally among the strategies.

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

# Queries on lines, summed over the classes of groups.
MAX_LINE_QUERIES = 8_000_000
# Matrix entries in the rows of all lines.
MAX_ROW_ENTRIES = 8_000_000
# Up to this many lines, every class of spaces has separate lines. With more, spaces on more than
# `MAX_SEPARATE_AXES` attributes share a line with spaces on the same number of attributes.
MAX_SEPARATE_LINES = 40
MAX_SEPARATE_AXES = 2


def line_queries(workload: Workload, goal: Objective, split: Split) -> int:
    """Count the queries on lines over all distinct groups; 0 if the minimax search does not apply.

    The search applies to queries that are products over attributes.  For groups with at most one
    line the factored weights of `engine.mechanisms.reweighting` are already fully general.
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

    The centers ``pi`` have shape (n,).
    """
    if pi is not None or part.count > part.cells or not has_equal_weights(part):
        return False
    rows = part.family.rows(part.sizes)
    return not np.ptp(rows.sum(axis=1)) and not np.ptp((rows**2).sum(axis=1))


def parts_of(workload: Workload) -> dict[str, tuple[Part, ...]]:
    """Return the distinct parts of the weighted groups for every attribute, sorted by key."""
    out: dict[str, dict[str, Part]] = {}
    for group in {g.attributes: g for g in workload.groups}.values():
        for name in group.attributes:
            out.setdefault(name, {})
    for group in workload.groups:
        for part in group.parts if group.weight > 0 else ():
            out[group.attributes[part.axes[0]]].setdefault(repr(part.key), part)
    return {name: tuple(parts[key] for key in sorted(parts)) for name, parts in out.items()}


class Arranged:
    """A workload with the parts of its groups in canonical order.

    Equivalent groups are recognised independently of the order of attributes in the schema.

    Attributes
    ----------
    workload : the same groups with sorted parts.
    orders : original positions of the parts of every group.
    same : equivalence classes of groups and spaces.
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
        # The second pass breaks ties between equal parts by the class of their attribute.
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
        names = [group.attributes[part.axes[0]] for part in group.parts]
        keys = [
            (repr(part.key), labels_of[name], space_classes.get((name,), -1))
            for part, name in zip(group.parts, names, strict=True)
        ]
        return tuple(sorted(range(len(keys)), key=keys.__getitem__))

    def emphasis(self, emphasis: Emphasis) -> Emphasis:
        """Translate weights of the sorted workload to the original workload."""
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
    names = tuple(group.attributes[group.parts[p].axes[0]] for p in order)
    parts = tuple(replace(group.parts[p], axes=(axis,)) for axis, p in enumerate(order))
    return replace(group, attributes=names, parts=parts)


@dataclass(frozen=True, kw_only=True, eq=False)
class Kind:
    """One equivalence class of groups.

    Attributes
    ----------
    number : index of the class.
    groups : number of groups in the class.
    target : target variance of the queries.
    multiplicity : number of equivalent queries per group on the attributes without a line.
    parts : positions of the parts that have a line.
    spaces : class of every residual space inside the group.
    factors : factor of the product over lines, shape (spaces,).
    lines : index of the line of every part in every space, -1 if the space does not contain its
        attribute.
    outside : (q . pi)^2 of the queries of every part, shape (queries,) each.
    windows : slice of the queries of every part within the queries of its line.
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
    """Equivalence classes of the groups of a workload, and the lines of their spaces.

    Attributes
    ----------
    kinds : classes of groups.
    rows : rows of every line on cells, shape (queries, cells).
    numbers : (space, attribute) -> index of the line, for all spaces with a line.
    """

    def __init__(self, workload: Workload, same: Symmetry, goal: Objective, split: Split) -> None:
        self.workload, self.same, self.goal, self.split = workload, same, goal, split
        self.parts = parts_of(workload)
        self._flat: dict[Hashable, bool] = {}
        self._rows: dict[Hashable, Array] = {}
        spaces = list(same.spaces)
        self.curved = {
            name: any(not self._is_flat(p, name) for p in parts) or len(parts) > 1
            for name, parts in self.parts.items()
        }
        separate = {self._key(s, name, True): 0 for s in spaces for name in s if self.curved[name]}
        self.apart = len(separate) <= MAX_SEPARATE_LINES
        numbers: dict[Hashable, int] = {}
        self.numbers: dict[tuple[Space, str], int] = {}
        self.rows: list[Array] = []
        for s in spaces:
            for name in s:
                if self.curved[name]:
                    number = numbers.setdefault(self._key(s, name, self.apart), len(numbers))
                    self.numbers[s, name] = number
                    if number == len(self.rows):
                        self.rows.append(self._residual_rows(name))
        self.kinds = [self._kind(k, workload.groups[i]) for k, i in enumerate(same.examples)]

    def _is_flat(self, part: Part, name: str) -> bool:
        key = (part.key, digest(self.split.centers.get(name)))
        if key not in self._flat:
            self._flat[key] = is_symmetric_part(part, self.split.centers.get(name))
        return self._flat[key]

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
        # Other attributes without a line enter through their number only: their cells are
        # equivalent.
        return axis_key, tuple(sorted(str(classes[n]) for n in space if self.curved[n])), len(space)

    def _residual_rows(self, name: str) -> Array:
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
            outside.append(
                part.family.dot(part.sizes, center(part.sizes[0], self.split.centers.get(name)))
                ** 2
            )
            # The identity is optimal for equivalent cells; at uniform centers its cost is 1 - 1/n.
            rows = (
                part.family.rows(part.sizes)
                if not self.curved[name]
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


# Added to all query weights, as a share of the largest, so that light queries have a finite
# variance.
QUERY_WEIGHT_FLOOR = 1e-4
# Smallest cell weight as a share of the mean. A weight of 0 could never grow again.
MIN_CELL_WEIGHT = 1e-8
# A cell weight is multiplied by this power of the cost of the cell over the mean cost.
CELL_WEIGHT_EXPONENT = 1.5
# Iterations at fixed query weights after the search, and the gap at which they stop.
POLISH_ITERATIONS, POLISH_GAP = 20, 1e-6


class Line:
    """Strategy on one attribute for weights of its queries.

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
        """Take one step with new query weights, shape (queries,).

        Sets ``variances``, shape (queries,): the query variances at privacy cost 1 of the current
        strategy.
        """
        self.weights = weights / weights.max() + QUERY_WEIGHT_FLOOR
        self.step()

    def step(self) -> float:
        """Take one step with the current weights and return the gap before it."""
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


# As `CELL_WEIGHT_EXPONENT`, for the lower bound.
PROOF_WEIGHT_EXPONENT = 1.5
# Iterations of the cell weights for the lower bound.
PROOF_ITERATIONS = 6
Recorded = list[tuple[Array, str]]


@dataclass(frozen=True, kw_only=True, eq=False)
class MeasuredSpaces:
    """Strategies of all residual spaces, with the cell weights (``duals``) that define them."""

    parts: Decomposition
    solutions: list[SpaceSolution]
    duals: tuple[Array, ...]
    lines: Lines


@dataclass(frozen=True, kw_only=True, eq=False)
class Proof:
    """Query weights, the lower bound they prove, and the cell weights (``duals``) of the proof."""

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
    """Return the strategies defined by query weights, attribute by attribute.

    Parameters
    ----------
    weights : query weights of the lines, shape (queries,) each.
    numbers : (space, attribute) -> index into ``weights``; other attributes weigh all their queries
        equally.
    masses : cell weights of the lines, shape (cells,) each.
    recorded : cell weights of a plan file, shape (orbits,) each, in the order of the solves.
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
    """Compute the lower bound of query weights on all plans at privacy cost 1, in counts^2.

    Parameters
    ----------
    strategy_of : initial cell weights of an attribute of a space, shape (cells,).
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
                            raise ValueError("recorded weights do not fit")
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

    Raises
    ------
    ValueError
        If the recorded weights do not fit the workload.
    """
    lines = tradeoff.lines
    if lines is None or not is_applicable(workload, goal, split):
        raise ValueError("lines of a workload that has none")
    spaces = list(decompose(workload, split, labels).spaces)
    if len(lines.uses) != len(spaces) or any(
        len(s) != len(u) for s, u in zip(spaces, lines.uses, strict=True)
    ):
        raise ValueError("recorded lines do not fit")
    numbers = {
        (space, name): number
        for space, uses in zip(spaces, lines.uses, strict=True)
        for name, number in zip(space, uses, strict=True)
        if number >= 0
    }
    rows = {name: sum(p.count for p in parts) for name, parts in parts_of(workload).items()}
    if any(len(lines.weights[number]) != rows[name] for (_, name), number in numbers.items()):
        raise ValueError("recorded lines are on other queries")
    measured = strategies_of_weights(
        workload, split, spaces, lines.weights, numbers, None, recorded
    )
    tradeoff.emphasis.check(workload)
    lower_bound = proof(workload, goal, split, labels, tradeoff.emphasis, lambda *_: None, recorded)
    return measured.parts, measured.solutions, lower_bound.bound


def _gram(parts: Sequence[Any], weights: Array | None) -> Factor:
    """Return the residual Gram matrix of an attribute for query weights (None: all 1)."""
    (n,) = parts[0].sizes
    gram, start = np.zeros((n, n)), 0
    for part in parts:
        part_weights = None if weights is None else weights[start : start + part.count]
        gram, start = gram + part.family.gram(part.sizes, part_weights), start + part.count
    N = basis(n)
    return Factor(sizes=(n,), matrix=N.T @ gram @ N)


def _search(factor: Factor, pi: Array | None) -> Search:
    return Search(factor=factor, centers=(pi,))


def _initial_mass(
    problem: DualProblem, near: Array | None, steps: int = 0, deadline: float = math.inf
) -> Array:
    """Return orbit weights, shape (orbits,), after at most ``steps`` iterations.

    The iteration starts from cell weights, or from uniform weights if there are none.
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
    if not recorded:
        raise ValueError("fewer recorded weights than solves")
    return recorded.pop(0)[0]


# Iterations before the first plan, between plans, and in total.
FIRST_ITERATIONS, SEARCH_ITERATIONS, MAX_ITERATIONS = 60, 20, 160
# Iterations if only one plan is computed.
SINGLE_PLAN_ITERATIONS = 96
# Iterations before the time limit is checked.
MIN_ITERATIONS = 10
# Up to this many queries on lines, several plans are computed and the best one is returned.
MAX_COMPARED_QUERIES = 500_000
# Weights below this share of the mean of their group rise faster.
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
# Relative gap of the standard error above which product weights do not suit the workload.
POOR_FIT_GAP = 1e-3
# The search stops after `MAX_STALLED_PLANS` consecutive plans whose gap exceeds `STALLED_GAP_RATIO`
# times the gap before them.
STALLED_GAP_RATIO, MAX_STALLED_PLANS = 0.9, 2
# Relative gap of the variance in the budget allocation.
ALLOCATION_GAP = 4e-6


@dataclass(frozen=True, kw_only=True)
class _Pace:
    """Step sizes of the multiplicative weights.

    Attributes
    ----------
    power : exponent of the variance over the mean variance in the update of a weight.
    rise : addition to the exponent for light weights that rise.
    momentum : share of the previous step that is added to the next one.
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
    shares : squared noise of every space, in the order of the strategies.
    value : largest variance over its target, in counts^2.
    proof : query weights and the lower bound that they prove.
    """

    plan: MeasuredSpaces
    shares: Array
    value: float
    proof: Proof

    @property
    def duals(self) -> tuple[Array, ...]:
        """Cell weights of all strategies and of the lower bound, shape (orbits,) each."""
        return (*self.plan.duals, *self.proof.duals)

    @property
    def far(self) -> bool:
        """Whether the gap is large enough to justify another kind of search."""
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
    """State of the search: query weights, lines and noise.

    The weights of a class have the shape of its ``counts``.  Each entry is the total over all
    groups of the class and all equivalent queries; all entries sum to 1.
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
        """Tabulate query variances in every space by part, shape (spaces, queries) each."""
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
        """Return the optimal squared noise at privacy cost 1, shape (space classes,)."""
        weighted_variances = np.zeros(len(self.counts))
        for kind, weights, tables in zip(self.kinds, self.weights, self.tables, strict=True):
            sums = _weighted_sums(weights, tables) * kind.factors
            weighted_variances += np.bincount(
                kind.spaces, sums / kind.target, minlength=len(weighted_variances)
            )
        best = np.sqrt(self.counts / np.maximum(weighted_variances, 1e-300))
        return np.asarray(best * float(np.sum(self.counts / best)), dtype=float)

    def line_weights(self) -> list[Array]:
        """Return the query weights of the lines, shape (queries,) each."""
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
        """Return the weights as products over attributes, separately for every class."""
        vectors: list[Array] = []
        uses, by_kind = [], []
        uniform: dict[int, int] = {}
        for kind, query_weights in zip(self.kinds, self.weights, strict=True):
            # Remove the floor, which only prevents weights from vanishing and weakens the bound.
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
    """Return the largest number of plans of a search, 0 if it does not apply; for forecasts."""
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
    """Search until the deadline for the best plan at privacy cost 1 and the best lower bound.

    The first `MIN_ITERATIONS` iterations run regardless of the deadline, because a plan requires
    them.
    """
    spaces = list(decompose(workload, split, labels).spaces)
    arranged = Arranged(workload, spaces, goal, labels, split)
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
    arranged: Arranged,
    balance: _Balance,
    deadline: float,
) -> MinimaxResult:
    """Return the plan and the lower bound for the current weights; the lines are unchanged."""
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
    number = numbers.get((space, name))
    return None if number is None else masses[number]


def _best_of(a: MinimaxResult, b: MinimaxResult) -> MinimaxResult:
    """Combine the better plan with the better lower bound."""
    plan, proven = (a if a.value <= b.value else b), (a if a.proof.bound >= b.proof.bound else b)
    return MinimaxResult(plan=plan.plan, shares=plan.shares, value=plan.value, proof=proven.proof)


def _log_step(pace: _Pace, weights: Array, ratio: Array, previous: Array) -> Array:
    """Return the change of the logarithm of the weights.

    It is a multiple of the logarithm of variance over mean variance, larger for light weights, plus
    momentum.  All arrays have the same shape.
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
    """Sum weights times one table per axis over all axes, except the axis ``but``.

    The result has shape (spaces,), or (spaces, queries) if an axis remains.
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
    # SIMD units raise the flag on unused lanes of a register; the result is checked below.
    with np.errstate(invalid="ignore"):
        out = weights @ others[-1].T
    if not np.isfinite(out).all():
        raise FloatingPointError("the sums of weights times tables are not finite")
    for table in others[-2::-1]:
        out = np.einsum("...as,sa->...s", out, table)
    return np.asarray(out.T)


def _products(scale: Array, tables: Sequence[Array]) -> Array:
    """Sum scale times the product of tables over spaces; one axis per part in the result."""
    if not tables:
        return np.asarray(scale.sum())
    out = scale[:, None] if not tables else scale[:, None].astype(tables[0].dtype)
    for table in tables[:-1]:
        out = (out[:, :, None] * table[:, None, :]).reshape(len(scale), -1)
    return np.asarray((out.T @ tables[-1]).reshape([t.shape[1] for t in tables]))
