"""Minimax plans for product workloads by multiplicative weights on single queries.

Variances
---------
The variance of a product query q is a sum over residual spaces on attributes of its group.  The
term of a space is the squared noise of the space times one number per attribute: (q . pi)^2 for an
attribute outside the space, and the variance of q under the strategy of the attribute for one in
the space.  If all queries and all cells of an attribute are equivalent, one strategy of the
attribute is best whatever the weights are.  Every other attribute of a space has a *line*: a
strategy on one attribute whose query weights change at every iteration.

Lines
-----
A line has query rows W, query weights w and cell weights mu with sum 1.  With D = diag(mu) and the
singular value decomposition diag(sqrt w) W D^1/2 = U S V^T, its strategy has

    precision matrix     X = D^-1/2 V S V^T D^-1/2
    cost of cell c       X_cc, with the weighted mean sum_c mu_c X_cc = T = tr S
    variance of query q  (W X^-1 W^T)_qq

At the optimal mu no cell has a cost above T.  Each iteration raises the weights of cells with a
cost above T, as in `engine.residuals.dual_solver`.

Search
------
Multiplicative weights: queries above the mean variance gain weight, queries below it lose weight.
In every iteration, weights of the workload's queries determine weights of the queries on each line,
and every line takes one step towards the optimal strategy for these.  At the end the budget is
divided optimally among the strategies.

Lower bound
-----------
For any query weights, the smallest weighted sum of variances, divided by the dual norm of the
weights, is a lower bound on the largest variance of every plan.  For the bound, the weights of each
group are replaced by a product of one vector per part.  The Gram matrix of a space is then a sum of
products, and the sum of the minima of the terms is a lower bound on the minimum of the sum.  The
same code computes plan and bound after a search and from a plan file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from engine._arrays import Array
from engine._clock import planning_time
from engine._threads import threads_for
from engine.errors import Unanswered
from engine.mechanisms.reweighting import (
    DROPPED_QUERIES,
    dual_norm,
    has_equal_weights,
    unit_builder,
)
from engine.plans.objectives import (
    Emphasis,
    Objective,
    Symmetry,
    best_shares,
    queries_by_class,
    symmetry,
)
from engine.plans.solver_state import LineWeights, Tradeoff
from engine.residuals import DualProblem, Factor, Space, Split, basis, center, digest
from engine.residuals.decomposition import Decomposition, decompose, merge_terms
from engine.residuals.dual_solver import Solution
from engine.residuals.strategy_search import Search
from engine.residuals.subworkload_solver import SpaceSolution
from engine.workload import Group, Part, Workload
from engine.workload.families import Intervals

# Largest number of queries with separate weights; equal groups are counted once.
MAX_LINE_QUERIES = 8_000_000
# Largest number of matrix entries in the query rows of all lines (strategies on one attribute).
MAX_ROW_ENTRIES = 8_000_000
# Every class of residual spaces has separate lines if these are at most MAX_SEPARATE_LINES lines in
# total. Otherwise different classes of spaces share lines, unless the spaces have at most
# MAX_SEPARATE_AXES attributes; see `Layout._key`.
MAX_SEPARATE_LINES = 40
MAX_SEPARATE_AXES = 2


def line_queries(workload: Workload, goal: Objective, split: Split) -> int:
    """Count the queries with separate weights in the minimax search; 0 if it does not apply.

    The search applies if

    - the objective is "max", and the split has no complements and no unions;
    - all queries are products over attributes without separate query weights;
    - there are at most `MAX_LINE_QUERIES` queries, with at most `MAX_ROW_ENTRIES` entries of rows;
    - some group has two or more attributes with a line (strategy with separate query weights).
      Otherwise the factored weights of `engine.mechanisms.reweighting` are as general.
    """
    if not math.isinf(goal.power) or split.complements or split.unions:
        return 0
    groups = {group.key: group for group in workload.groups if group.weight > 0}.values()
    if any(g.query_weights is not None or any(len(p.axes) > 1 for p in g.parts) for g in groups):
        return 0
    # for every group, the parts whose queries need different weights
    line_parts = [
        [p for p in g.parts if not is_symmetric_part(p, split.centers.get(g.attributes[p.axes[0]]))]
        for g in groups
    ]
    row_entries = {p.key: p.count * p.cells for parts in line_parts for p in parts}
    queries = sum(math.prod(p.count for p in parts) for parts in line_parts)
    is_suitable = (
        any(len(parts) > 1 for parts in line_parts)
        and sum(row_entries.values()) <= MAX_ROW_ENTRIES
        and queries <= MAX_LINE_QUERIES
    )
    return queries if is_suitable else 0


def is_applicable(workload: Workload, goal: Objective, split: Split) -> bool:
    """Return whether the minimax search applies to the workload."""
    return line_queries(workload, goal, split) > 0


def is_symmetric_part(part: Part, pi: Array | None) -> bool:
    """Return whether all queries and all cells of a part on one attribute are equivalent.

    ``pi`` is the center of the attribute, shape (n,), or None for the uniform center.  The result
    is False if ``pi`` is given, or if there are more queries than cells.
    """
    if pi is not None or part.count > part.cells or not has_equal_weights(part):
        return False
    # `has_equal_weights` above accepts no interval families but the marginal and the total
    if isinstance(part.family, Intervals):
        return True
    rows = part.family.rows(part.sizes)
    return not np.ptp(rows.sum(axis=1)) and not np.ptp((rows**2).sum(axis=1))


def parts_of(workload: Workload) -> dict[str, tuple[Part, ...]]:
    """Return the distinct parts (query families) of every attribute, sorted by key.

    Only groups of positive weight are considered.
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
    """A workload with the parts of every group sorted by query family, center and symmetry class.

    Groups that differ only in the order of their attributes in the schema are then equal.

    Attributes
    ----------
    workload : the same groups with sorted parts.
    orders : for every group, the original positions of its sorted parts.
    classes : equivalence classes of groups and residual spaces.
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
        # the first pass computes symmetry classes of attributes, by which the second pass orders
        # parts with equal families and centers
        for _ in range(2):
            self.orders = [
                self._order(group, labels_of, space_classes) for group in workload.groups
            ]
            arranged = [
                _reorder(g, order) for g, order in zip(workload.groups, self.orders, strict=True)
            ]
            self.workload = Workload(workload.schema, tuple(arranged))
            self.classes: Symmetry = symmetry(
                self.workload, spaces, goal, labels, split, ordered=False
            )
            space_classes = self.classes.spaces

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

    def emphasis(self, sorted_emphasis: Emphasis) -> Emphasis:
        """Convert query weights for the sorted workload to weights for the original workload."""
        # groups of one class of the sorted workload may have parts in different orders
        numbers: dict[tuple[int, tuple[int, ...]], int] = {}
        class_of_group = tuple(
            numbers.setdefault((c, order), len(numbers)) if c >= 0 else -1
            for c, order in zip(sorted_emphasis.class_of_group, self.orders, strict=True)
        )
        return Emphasis(
            class_of_group=class_of_group,
            weights=np.array([sorted_emphasis.weights[c] for c, _ in numbers]),
            vector_indices=tuple(
                tuple(sorted_emphasis.vector_indices[c][order.index(p)] for p in range(len(order)))
                for c, order in numbers
            ),
            single_vector=tuple(sorted_emphasis.single_vector[c] for c, _ in numbers),
            vectors=sorted_emphasis.vectors,
        )


def _reorder(group: Group, order: tuple[int, ...]) -> Group:
    """Return a group with its parts, each on one attribute, in the given order."""
    names = tuple(group.attributes[group.parts[p].axes[0]] for p in order)
    parts = tuple(replace(group.parts[p], axes=(axis,)) for axis, p in enumerate(order))
    return replace(group, attributes=names, parts=parts)


@dataclass(frozen=True, kw_only=True, eq=False)
class GroupClass:
    """One equivalence class of groups; a *line* is a strategy on one attribute.

    Attributes
    ----------
    number : index of the class.
    groups : number of groups in the class.
    target : target variance of the queries, in counts^2.
    multiplicity : number of queries of a group that are equivalent, because they differ only on
        attributes without a line.
    parts : positions of the parts of the group whose attribute has a line.
    spaces : index of the equivalence class of every residual space on attributes of the group.
    factors : for every space, the factor that attributes without a line contribute to the variance
        of a query, shape (spaces,).
    lines : for every space, the index of the line of each part; -1 if the attribute of the part is
        not in the space.
    outside : for every part, (q . pi)^2 of its queries q, shape (queries,) each.
    windows : for every part, the slice that selects its queries from all queries on the attribute.
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
    """Assignment of a line (strategy on one attribute) to each attribute of each residual space.

    Attributes
    ----------
    group_classes : one `GroupClass` per class of groups that are equivalent under the symmetry of
        the workload.
    rows : for every line, the residual rows of its queries, shape (queries, cells).
    line_of : mapping from (space, attribute) to the index of its line, for attributes with a line.
    """

    def __init__(
        self, workload: Workload, classes: Symmetry, goal: Objective, split: Split
    ) -> None:
        self.workload, self.classes, self.goal, self.split = workload, classes, goal, split
        self.parts = parts_of(workload)
        self._symmetric: dict[Hashable, bool] = {}
        self._rows: dict[Hashable, Array] = {}
        spaces = list(classes.spaces)
        self.needs_line = {
            name: any(not self._is_symmetric(p, name) for p in parts) or len(parts) > 1
            for name, parts in self.parts.items()
        }
        separate_keys = {
            self._key(s, name, True) for s in spaces for name in s if self.needs_line[name]
        }
        self.has_separate_lines = len(separate_keys) <= MAX_SEPARATE_LINES
        numbers: dict[Hashable, int] = {}
        self.line_of: dict[tuple[Space, str], int] = {}
        self.rows: list[Array] = []
        for s in spaces:
            for name in s:
                if self.needs_line[name]:
                    number = numbers.setdefault(
                        self._key(s, name, self.has_separate_lines), len(numbers)
                    )
                    self.line_of[s, name] = number
                    if number == len(self.rows):
                        self.rows.append(self._residual_rows(name))
        self.group_classes = [
            self._group_class(k, workload.groups[i]) for k, i in enumerate(classes.examples)
        ]

    def _is_symmetric(self, part: Part, name: str) -> bool:
        """Return the cached result of `is_symmetric_part` for a part on an attribute."""
        key = (part.key, digest(self.split.centers.get(name)))
        if key not in self._symmetric:
            self._symmetric[key] = is_symmetric_part(part, self.split.centers.get(name))
        return self._symmetric[key]

    def _key(self, space: Space, name: str, separate: bool) -> Hashable:
        """Return the key of the line of an attribute in a space; equal keys mean the same line.

        A line is a strategy on one attribute.  Equivalent attributes of two spaces share a line if
        the spaces are in the same equivalence class.  Unless ``separate`` is set or the space has
        at most `MAX_SEPARATE_AXES` attributes, the classes may differ: two spaces must then have
        equally many attributes, and their attributes that need a line must be equivalent.
        """
        attribute_classes = {n: self.classes.spaces.get((n,), n) for n in space}
        axis_key = (
            attribute_classes[name],
            tuple(p.key for p in self.parts[name]),
            digest(self.split.centers.get(name)),
        )
        if separate or len(space) <= MAX_SEPARATE_AXES:
            return axis_key, self.classes.spaces[space]
        # The cells of attributes without a line are equivalent, so only the number of these
        # attributes matters.
        return (
            axis_key,
            tuple(sorted(str(attribute_classes[n]) for n in space if self.needs_line[n])),
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

    def _group_class(self, number: int, group: Group) -> GroupClass:
        """Return the `GroupClass` with index ``number``; ``group`` is any group of the class."""
        schema, classes = self.workload.schema, self.classes
        names = [group.attributes[p.axes[0]] for p in group.parts]
        line_parts = tuple(k for k, name in enumerate(names) if self.needs_line[name])
        # for every part, the factor of the variance in spaces without and with its attribute
        outside, inside = [], []
        for part, name in zip(group.parts, names, strict=True):
            outside.append(
                part.family.dot(part.sizes, center(part.sizes[0], self.split.centers.get(name)))
                ** 2
            )
            # for equivalent cells the identity is optimal; projected to the residual space of a
            # uniform center, its columns have the squared norm 1 - 1/n
            if self.needs_line[name]:
                inside.append(math.nan)
            else:
                row = part.family.rows(part.sizes)[0]
                residual = row - row.mean()
                inside.append(float(residual @ residual) * (1.0 - 1.0 / part.sizes[0]))
        spaces, factors, line_indices = [], [], []
        for axes in group.spaces(schema):
            space = group.named(axes)
            if space not in classes.spaces:
                continue
            spaces.append(classes.spaces[space])
            others = [k for k in range(len(names)) if k not in line_parts]
            factors.append(
                math.prod(inside[k] if names[k] in space else float(outside[k][0]) for k in others)
            )
            line_indices.append(
                tuple(
                    self.line_of[space, names[k]] if names[k] in space else -1 for k in line_parts
                )
            )
        windows = []
        for k in line_parts:
            start = 0
            for part in self.parts[names[k]]:
                if part.key == group.parts[k].key:
                    break
                start += part.count
            windows.append(slice(start, start + group.parts[k].count))
        return GroupClass(
            number=number,
            groups=float(classes.sizes[number]),
            target=self.goal.target(classes.examples[number]),
            multiplicity=math.prod(
                p.count for k, p in enumerate(group.parts) if k not in line_parts
            ),
            parts=line_parts,
            spaces=tuple(spaces),
            factors=np.array(factors),
            lines=tuple(line_indices),
            outside=tuple(outside[k] for k in line_parts),
            windows=tuple(windows),
        )


# This share of the largest query weight of a line (strategy on one attribute) is added to all its
# query weights, because a query of weight 0 could have an infinite variance.
QUERY_WEIGHT_FLOOR = 1e-4
# Smallest cell weight as a share of the mean, because a weight of 0 would never increase.
MIN_CELL_WEIGHT = 1e-8
# In an iteration, a cell weight is multiplied by (cost of the cell / mean cost) to this power.
CELL_WEIGHT_EXPONENT = 1.5
# Before a plan is computed, lines are iterated at fixed query weights: at most POLISH_ITERATIONS
# times, or until their gap is at most POLISH_GAP.
POLISH_ITERATIONS, POLISH_GAP = 20, 1e-6


class Line:
    """Strategy on one attribute that is adapted step by step to changing weights of its queries.

    Parameters
    ----------
    rows : residual row q (I - pi 1^T) of every query q, shape (queries, cells).

    >>> line = Line(np.array([[0.5, -0.5]]))
    >>> line.update(np.ones(1))
    >>> line.cell_weights, line.variances.round(6)
    (array([0.5, 0.5]), array([0.25]))
    """

    def __init__(self, rows: Array) -> None:
        self.rows = rows
        self.rank = int(np.linalg.matrix_rank(rows))
        self.weights = np.ones(len(rows))
        self.cell_weights = np.full(rows.shape[1], 1.0 / rows.shape[1])
        self.variances = np.zeros(len(rows))

    def update(self, weights: Array) -> None:
        """Take one step with new query weights, shape (queries,); see `step`."""
        self.weights = weights / weights.max() + QUERY_WEIGHT_FLOOR
        self.step()

    def step(self) -> float:
        """Improve the cell weights once for the current query weights.

        ``variances`` are then the variances of the queries at privacy cost 1, shape (queries,),
        with the cell weights before the step.  Return the gap of these cell weights: the largest
        cost of a cell divided by the mean cost, minus 1.
        """
        # The symbols are those of the module docstring.  The eigenvectors of the Gram matrix of
        # diag(sqrt w) W D^1/2 are V, and its eigenvalues are the squares of the singular values S.
        projected = self.rows * np.sqrt(self.cell_weights)
        squares, V = np.linalg.eigh((projected.T * self.weights) @ projected)
        squares, V = squares[len(squares) - self.rank :], V[:, len(squares) - self.rank :]
        singular_values = np.sqrt(np.maximum(squares, squares[-1] * 1e-18))
        total = float(singular_values.sum())
        costs = ((V * V) @ singular_values) / self.cell_weights
        self.variances = ((projected @ V) ** 2) @ (total / singular_values)
        cell_weights = np.maximum(
            self.cell_weights * (costs / total) ** CELL_WEIGHT_EXPONENT,
            MIN_CELL_WEIGHT / len(self.cell_weights),
        )
        self.cell_weights = cell_weights / cell_weights.sum()
        return float(costs.max()) / total - 1.0

    def polish(self) -> None:
        """Repeat `step` up to `POLISH_ITERATIONS` times, until the gap is at most `POLISH_GAP`."""
        for _ in range(POLISH_ITERATIONS):
            if self.step() <= POLISH_GAP:
                return


# In an iteration for the lower bound, a cell weight is multiplied by (cost of the cell / mean cost)
# to the power PROOF_WEIGHT_EXPONENT. There are at most PROOF_ITERATIONS iterations.
PROOF_WEIGHT_EXPONENT = 1.5
PROOF_ITERATIONS = 6
# Pairs of dual weights and termination message from a plan file, in the order of the searches.
Recorded = list[tuple[Array, str]]


@dataclass(frozen=True, kw_only=True, eq=False)
class MeasuredSpaces:
    """Strategies of all residual spaces.

    Attributes
    ----------
    parts : decomposition; ``parts.spaces`` maps every residual space to a pair whose first entry is
        the index in ``solutions``.
    solutions : distinct strategies of residual spaces.
    duals : cell weights that determine the strategies, in the order of first use; one array per
        strategy on one attribute.
    lines : query weights for which the strategies are optimal.
    """

    parts: Decomposition
    solutions: list[SpaceSolution]
    duals: tuple[Array, ...]
    lines: LineWeights


@dataclass(frozen=True, kw_only=True, eq=False)
class Proof:
    """Lower bound on the objective, with the weights that prove it.

    Attributes
    ----------
    emphasis : query weights.
    bound : lower bound at privacy cost 1 on the largest variance, in counts^2; with targets, on the
        largest ratio of a variance to its target.
    duals : cell weights from which ``bound`` is computed; one array per factor of a Gram matrix.
    """

    emphasis: Emphasis
    bound: float
    duals: tuple[Array, ...]


def strategies_of_weights(
    workload: Workload,
    split: Split,
    spaces: Sequence[Space],
    weights: Sequence[Array],
    line_of: Mapping[tuple[Space, str], int],
    cell_weights: Sequence[Array] | None,
    recorded: Recorded | None = None,
) -> MeasuredSpaces:
    """Return one strategy per attribute of every residual space, for given query weights.

    Parameters
    ----------
    weights : one vector of query weights per line, shape (queries,) each.
    line_of : mapping from (space, attribute) to the index of its vector in ``weights``.  Queries on
        an attribute that is not in the mapping have equal weights.
    cell_weights : for every vector, the weights of the cells that define the strategy, shape
        (cells,); None for uniform weights.
    recorded : stored cell weights of a plan file that replace ``cell_weights``, with one weight per
        class of equivalent cells.  Used entries are removed from ``recorded``.

    Raises
    ------
    ValueError
        If the recorded weights do not fit the workload.
    """
    parts, solved = parts_of(workload), dict[Any, Solution]()
    duals: list[Array] = []
    solutions: list[SpaceSolution] = []
    # index of the solution of a space, by the keys of its attributes
    solution_index: dict[tuple[Any, ...], int] = {}
    assignment: dict[Space, tuple[int, float]] = {}
    for space in spaces:
        keys = []
        for name in space:
            line, pi = line_of.get((space, name), -1), split.centers.get(name)
            key = (line, tuple(p.key for p in parts[name]), digest(pi))
            if key not in solved:
                search = _search(_gram(parts[name], None if line < 0 else weights[line]), pi)
                if recorded is not None:
                    dual_weights = _next_recorded(recorded)
                else:
                    initial = None if cell_weights is None or line < 0 else cell_weights[line]
                    with threads_for(1):
                        dual_weights = _dual_weights(search.problem(), initial)
                solved[key] = search.replay(dual_weights, "optimal")
                duals.append(dual_weights)
            keys.append(key)
        if tuple(keys) not in solution_index:
            solution_index[tuple(keys)] = len(solutions)
            factors = [((a,), solved[key]) for a, key in enumerate(keys)]
            solutions.append(
                SpaceSolution(
                    factors=tuple(factors),
                    value=math.prod(s.value for _, s in factors),
                    bound=math.prod(s.bound for _, s in factors),
                    status="optimal",
                )
            )
        assignment[space] = solution_index[tuple(keys)], 1.0
    indices = tuple(tuple(line_of.get((space, name), -1) for name in space) for space in spaces)
    return MeasuredSpaces(
        parts=Decomposition(factors=(), subworkloads=(), spaces=assignment),
        solutions=solutions,
        duals=tuple(duals),
        lines=LineWeights(weights=tuple(weights), indices=indices),
    )


def proof(
    workload: Workload,
    goal: Objective,
    split: Split,
    labels: Mapping[str, Hashable],
    emphasis: Emphasis,
    initial_weights: Callable[[Space, str], Array | None],
    recorded: Recorded | None = None,
    deadline: float = math.inf,
) -> Proof:
    """Compute the lower bound on the objective of all plans that given query weights prove.

    Parameters
    ----------
    emphasis : query weights, as products over attributes.
    initial_weights : function of a space and one of its attributes that returns initial cell
        weights, shape (cells,), or None for uniform weights.
    recorded : stored cell weights of a plan file that replace the search.  Used entries are removed
        from ``recorded``.
    deadline : time after which the cell weights are not improved further.

    Raises
    ------
    ValueError
        If the recorded weights do not fit the workload.
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
                    initial = initial_weights(examples[k], examples[k][axis])
                    with threads_for(1):
                        problem = _search(factor, sub.centers[axis]).problem()
                        dual_weights = (
                            _dual_weights(problem, initial, PROOF_ITERATIONS, deadline)
                            if recorded is None
                            else _next_recorded(recorded)
                        )
                        if len(dual_weights) != problem.variables:
                            raise ValueError("the stored cell weights do not fit the workload")
                        bounds[factor] = problem.bound(dual_weights)
                    duals.append(dual_weights)
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
    """Rebuild the strategies and the lower bound of a plan from the query weights in its file.

    Parameters
    ----------
    tradeoff : result of the search, from the plan file.  ``tradeoff.lines`` has the query weights
        of the strategies on single attributes.
    recorded : cell weights of these strategies and of the bound.  Used entries are removed.

    Returns
    -------
    The assignment of residual spaces to solutions, the solutions, and the lower bound.

    Raises
    ------
    ValueError
        If the query weights or the dual weights do not fit the workload.
    """
    line_weights = tradeoff.lines
    if line_weights is None or not is_applicable(workload, goal, split):
        raise ValueError(
            "query weights by attribute are stored for a workload that does not use them"
        )
    spaces = list(decompose(workload, split, labels).spaces)
    if len(line_weights.indices) != len(spaces) or any(
        len(s) != len(i) for s, i in zip(spaces, line_weights.indices, strict=True)
    ):
        raise ValueError("the stored query weights do not fit the residual spaces")
    line_of = {
        (space, name): index
        for space, indices in zip(spaces, line_weights.indices, strict=True)
        for name, index in zip(space, indices, strict=True)
        if index >= 0
    }
    rows = {name: sum(p.count for p in parts) for name, parts in parts_of(workload).items()}
    if any(len(line_weights.weights[index]) != rows[name] for (_, name), index in line_of.items()):
        raise ValueError("the stored query weights do not fit the numbers of queries")
    measured = strategies_of_weights(
        workload, split, spaces, line_weights.weights, line_of, None, recorded
    )
    tradeoff.emphasis.check(workload)
    lower_bound = proof(workload, goal, split, labels, tradeoff.emphasis, lambda *_: None, recorded)
    return measured.parts, measured.solutions, lower_bound.bound


def _gram(parts: Sequence[Any], weights: Array | None) -> Factor:
    """Return the residual Gram of all queries on an attribute; without weights, all are 1."""
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


def _dual_weights(
    problem: DualProblem, initial: Array | None, steps: int = 0, deadline: float = math.inf
) -> Array:
    """Return dual weights with a large lower bound: one per orbit (class of equivalent cells).

    The search starts from the cell weights ``initial`` (uniform if None), which are summed over
    each orbit and scaled to sum 1.  It takes at most ``steps`` steps, and none after the deadline.
    The result, of shape (orbits,), has the largest bound of all evaluated weights.  If no step is
    taken, it is the start.
    """
    cell_weights = np.ones(len(problem.orbit)) if initial is None else initial
    weights: Array = (
        np.bincount(problem.orbit, cell_weights, minlength=problem.variables) / cell_weights.sum()
    )
    best, best_bound = weights, 0.0
    for _ in range(steps):
        if planning_time() > deadline:
            break
        bound, costs = problem.evaluate(weights)
        if bound > best_bound:
            best, best_bound = weights, bound
        weights = weights * (costs / bound) ** PROOF_WEIGHT_EXPONENT
        weights /= weights.sum()
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
# Weights below about this share of the mean weight of their class increase faster.
LIGHT_WEIGHT = 1e-2
# Largest change of the logarithm of a weight in one iteration.
MAX_LOG_STEP = 3.0
# Smallest mean weight of the queries of a group, as a share of the mean of all queries.
MIN_GROUP_WEIGHT = 1e-9
# Smallest weight of a query in the lower bound, relative to the smallest weight that the search
# allows for this query.
PROOF_WEIGHT_FLOOR = 1e-2
# The search over millions of queries computes in single precision; plans and lower bounds are
# computed in double precision.
SEARCH_DTYPE: Any = np.float32
# Relative gap of the standard error at which the search stops.
STOP_GAP = 1e-5
# If the relative gap of the standard error is larger at the end, `TradeoffSearch` is tried, too.
POOR_FIT_GAP = 1e-3
# The search stops after `MAX_STALLED_PLANS` consecutive plans whose gap exceeds `STALLED_GAP_RATIO`
# times the gap before them.
STALLED_GAP_RATIO, MAX_STALLED_PLANS = 0.9, 2
# Target gap of the budget allocation, relative to the largest variance.
ALLOCATION_GAP = 4e-6


@dataclass(frozen=True, kw_only=True)
class _UpdateRule:
    """Parameters of the update of query weights.

    Attributes
    ----------
    power : a weight is multiplied by (variance / mean variance) to this power.
    light_power : amount that is added to ``power`` for weights near 0 that increase.
    momentum : share of the previous step of the logarithms that is added to the next one.
    min_share : smallest weight of a query, as a share of the mean of its group.
    """

    power: float
    light_power: float
    momentum: float
    min_share: float


# For workloads with few queries, FIRST_RULE applies until the first plan. In all other cases
# MOMENTUM_RULE applies.
FIRST_RULE = _UpdateRule(power=2.0, light_power=20.0, momentum=0.0, min_share=1e-8)
MOMENTUM_RULE = _UpdateRule(power=1.5, light_power=10.0, momentum=0.7, min_share=1e-4)


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
        """Cell weights of all strategies, then those of the lower bound: one array per search.

        Each array has one weight per orbit (class of equivalent cells).
        """
        return (*self.plan.duals, *self.proof.duals)

    @property
    def fits_poorly(self) -> bool:
        """Whether ``value`` is so far above the bound that `TradeoffSearch` should be tried."""
        return self.value > self.proof.bound * (1.0 + POOR_FIT_GAP) ** 2

    @property
    def endings(self) -> tuple[str, ...]:
        """Termination message of the search for each array of ``duals``."""
        return ("optimal",) * len(self.duals)

    @property
    def parts(self) -> Decomposition:
        """Decomposition that maps every residual space to the index of its solution."""
        return self.plan.parts

    @property
    def solutions(self) -> list[SpaceSolution]:
        """Strategies of the residual spaces."""
        return self.plan.solutions

    @property
    def tradeoff(self) -> Tradeoff:
        """Solver state for a plan file."""
        return Tradeoff(shares=self.shares, emphasis=self.proof.emphasis, lines=self.plan.lines)


class _SearchState:
    """State of the search: query weights, lines (strategies on one attribute) and noise.

    Parameters
    ----------
    counts : number of residual spaces in each equivalence class of spaces, shape (classes,).

    Notes
    -----
    ``weights`` has one array per class of groups, with one axis per part that has a line.  An entry
    is the total weight of equivalent queries over all groups of the class.  The entries of all
    arrays sum to 1, or to slightly more if some were raised to the smallest allowed weight.
    """

    def __init__(self, layout: Layout, counts: Array) -> None:
        self.layout, self.group_classes, self.counts = layout, layout.group_classes, counts
        self.lines = [Line(rows) for rows in layout.rows]
        n_queries = math.fsum(math.prod(k.counts) for k in self.group_classes)
        self.weights = [
            np.full(k.counts, 1.0 / n_queries, dtype=SEARCH_DTYPE) for k in self.group_classes
        ]
        self.rule, self.min_group_mean = MOMENTUM_RULE, MIN_GROUP_WEIGHT / n_queries
        self.log_steps = [np.zeros_like(w) for w in self.weights]
        self.outside = [[out.astype(SEARCH_DTYPE) for out in k.outside] for k in self.group_classes]
        self.update([np.ones(len(line.rows)) for line in self.lines])
        self.noises = self.best_noises()

    def update(self, weights: Sequence[Array]) -> None:
        """Set the query weights of every line, improve its strategy by one step, update ``tables``.

        ``weights`` has one array per line (strategy on one attribute), shape (queries,) each.
        """
        for line, line_weights in zip(self.lines, weights, strict=True):
            line.update(line_weights)
        self.tabulate_variances()

    def tabulate_variances(self) -> None:
        """Set ``tables``, one array of shape (spaces, queries) per class and part with a line.

        If the space contains the attribute of the part, the entry of query q is its variance under
        the line (strategy on this attribute) for the space.  Otherwise it is (q . pi)^2.  The
        variance of a product query in a space is the product of these entries over the parts, times
        the squared noise of the space, times its entry in `GroupClass.factors`.
        """
        variances = [line.variances.astype(SEARCH_DTYPE) for line in self.lines]
        self.tables: list[list[Array]] = []
        for group_class, outside in zip(self.group_classes, self.outside, strict=True):
            tables_of_class = []
            for p, window in enumerate(group_class.windows):
                # one row per residual space; the index of a line is -1 in a space without the part
                rows = [
                    outside[p] if lines_of_space[p] < 0 else variances[lines_of_space[p]][window]
                    for lines_of_space in group_class.lines
                ]
                tables_of_class.append(np.stack(rows))
            self.tables.append(tables_of_class)

    def best_noises(self) -> Array:
        """Return the optimal squared noises at privacy cost 1, one per class of spaces.

        They minimize the weighted sum of the variances relative to their targets.
        """
        weighted_variances = np.zeros(len(self.counts))
        for group_class, weights, tables in zip(
            self.group_classes, self.weights, self.tables, strict=True
        ):
            sums = _weighted_sums(weights, tables) * group_class.factors
            weighted_variances += np.bincount(
                group_class.spaces, sums / group_class.target, minlength=len(weighted_variances)
            )
        best = np.sqrt(self.counts / np.maximum(weighted_variances, 1e-300))
        return np.asarray(best * float(np.sum(self.counts / best)), dtype=float)

    def line_weights(self) -> list[Array]:
        """Return for every line (strategy on one attribute) the weights of its queries.

        Every array has shape (queries,).  Let E be the weighted sum of (variance / target) that
        `best_noises` minimizes.  The weight of a query is the derivative of E with respect to the
        variance of this query under the line.
        """
        sums = [np.zeros(len(line.rows)) for line in self.lines]
        for group_class, weights, tables in zip(
            self.group_classes, self.weights, self.tables, strict=True
        ):
            scale = group_class.factors * self.noises[list(group_class.spaces)] / group_class.target
            for p, window in enumerate(group_class.windows):
                contributions = _weighted_sums(weights, tables, p) * scale[:, None]
                for j, indices in enumerate(group_class.lines):
                    if indices[p] >= 0:
                        sums[indices[p]][window] += contributions[j]
        return sums

    def step(self, rule: _UpdateRule) -> None:
        """Update the strategies of the lines, the noise and then the query weights by ``rule``."""
        self.update(self.line_weights())
        self.noises = self.best_noises()
        variances = [
            _products(
                group_class.factors * self.noises[list(group_class.spaces)] / group_class.target,
                tables,
            )
            for group_class, tables in zip(self.group_classes, self.tables, strict=True)
        ]
        mean = math.fsum(float(np.vdot(w, v)) for w, v in zip(self.weights, variances, strict=True))
        self.rule = rule
        self.log_steps = [
            _log_step(rule, w, v / mean, m)
            for w, v, m in zip(self.weights, variances, self.log_steps, strict=True)
        ]
        self.weights = [w * np.exp(m) for w, m in zip(self.weights, self.log_steps, strict=True)]
        total = math.fsum(float(w.sum()) for w in self.weights)
        means = [max(float(w.mean()) / total, self.min_group_mean) for w in self.weights]
        self.weights = [
            np.maximum(w / total, rule.min_share * mean)
            for w, mean in zip(self.weights, means, strict=True)
        ]

    def emphasis(self, classes: Symmetry) -> Emphasis:
        """Return query weights for the lower bound, as products of one vector per part.

        The entry of a query in the vector of its part is the sum of ``weights`` over the queries of
        all other parts.  All entries are equal for a part without a line (strategy with separate
        query weights).
        """
        vectors: list[Array] = []
        vector_indices, class_weights = [], []
        # mapping from number of queries to the index of a vector of ones
        uniform: dict[int, int] = {}
        for group_class, query_weights in zip(self.group_classes, self.weights, strict=True):
            # the search raises all weights to a smallest weight, to keep them positive; the bound
            # is better without this addition
            floor = self.rule.min_share * float(query_weights.mean())
            weights = np.maximum(query_weights - floor, PROOF_WEIGHT_FLOOR * floor)
            group, indices = self.layout.workload.groups[classes.examples[group_class.number]], []
            for k, part in enumerate(group.parts):
                if k in group_class.parts:
                    axis = group_class.parts.index(k)
                    vector = weights.sum(
                        axis=tuple(a for a in range(weights.ndim) if a != axis), dtype=float
                    )
                    indices.append(len(vectors))
                    vectors.append(vector / vector.sum())
                else:
                    if part.count not in uniform:
                        uniform[part.count] = len(vectors)
                        vectors.append(np.ones(part.count))
                    indices.append(uniform[part.count])
            vector_indices.append(tuple(indices))
            class_weights.append(
                float(weights.sum())
                / (group_class.groups * group_class.multiplicity * group_class.target)
            )
        return Emphasis(
            class_of_group=classes.class_of_group,
            weights=np.array(class_weights),
            vector_indices=tuple(vector_indices),
            single_vector=(False,) * len(vector_indices),
            vectors=tuple(vectors),
        )


def max_rounds(workload: Workload, goal: Objective, split: Split) -> int:
    """Return how many plans `minimax_search` computes at most; 0 if it does not apply."""
    queries = line_queries(workload, goal, split)
    if queries > MAX_COMPARED_QUERIES:
        return 1
    return 1 + (MAX_ITERATIONS - FIRST_ITERATIONS) // SEARCH_ITERATIONS if queries else 0


def minimax_search(
    workload: Workload,
    goal: Objective,
    split: Split,
    labels: Mapping[str, Hashable],
    tell: Callable[[float, str], None],
    deadline: float,
) -> MinimaxResult:
    """Search for the plan that minimises the largest variance, and for the best lower bound.

    The search ends at the gap `STOP_GAP`, when the gap no longer falls, after the largest number of
    iterations, or after the deadline; but not before `MIN_ITERATIONS` iterations.

    Raises
    ------
    Unanswered
        If weights differ so much that rounding makes some of them 0.
    """
    spaces = list(decompose(workload, split, labels).spaces)
    arranged = SortedWorkload(workload, spaces, goal, labels, split)
    layout = Layout(arranged.workload, arranged.classes, goal, split)
    state = _SearchState(layout, arranged.classes.counts)
    best: MinimaxResult | None = None
    done, gap, stalled = 0, math.inf, 0
    single_plan = line_queries(workload, goal, split) > MAX_COMPARED_QUERIES
    if single_plan:
        iterations = max_iterations = SINGLE_PLAN_ITERATIONS
    else:
        iterations, max_iterations = FIRST_ITERATIONS, MAX_ITERATIONS
    rule = MOMENTUM_RULE if single_plan else FIRST_RULE
    while True:
        for _ in range(iterations):
            message = "Weighing the queries" + ("" if best is None else f", gap {gap:.1e}")
            tell(0.9 * done / max_iterations, message)
            # BLAS is slower with several threads, because the matrix products are small
            with threads_for(1):
                state.step(rule)
            done += 1
            if planning_time() > deadline and done >= MIN_ITERATIONS:
                break
        plan = _plan_and_bound(workload, goal, split, labels, arranged, state, deadline)
        best = plan if best is None else _best_of(best, plan)
        iterations, rule, previous_gap = SEARCH_ITERATIONS, MOMENTUM_RULE, gap
        gap = math.sqrt(best.value / best.proof.bound) - 1.0
        stalled = stalled + 1 if gap > STALLED_GAP_RATIO * previous_gap else 0
        if (
            done >= max_iterations
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
    state: _SearchState,
    deadline: float,
) -> MinimaxResult:
    """Return the plan and the lower bound for the current query weights.

    For the plan, the lines (strategies on one attribute) are iterated to convergence at fixed query
    weights.  Their state is restored afterwards, so the search continues as if without this call.

    Raises
    ------
    Unanswered
        If the strategies do not measure a query because its weight is rounded to 0.
    """
    line_states = [(line.cell_weights, line.variances) for line in state.lines]
    line_of, classes = state.layout.line_of, arranged.classes

    def initial_weights(space: Space, name: str) -> Array | None:
        """Return the cell weights of the line (strategy) of an attribute in a space, or None."""
        line = line_of.get((space, name))
        return None if line is None else line_states[line][0]

    emphasis = arranged.emphasis(state.emphasis(classes))
    lower_bound = proof(workload, goal, split, labels, emphasis, initial_weights, deadline=deadline)
    with threads_for(1):
        for line in state.lines:
            line.polish()
    measured = strategies_of_weights(
        workload,
        split,
        list(classes.spaces),
        [line.weights for line in state.lines],
        line_of,
        [line.cell_weights for line in state.lines],
    )
    state.tabulate_variances()
    noises = state.best_noises()
    for line, (cell_weights, variances) in zip(state.lines, line_states, strict=True):
        line.cell_weights, line.variances = cell_weights, variances
    state.tabulate_variances()
    builder = unit_builder(measured.parts, measured.solutions, split, workload.schema)
    queries = queries_by_class(arranged.workload, builder, classes, goal)
    if queries is None:
        raise Unanswered(DROPPED_QUERIES)
    allocation = best_shares(queries, classes.counts, goal, noises, ALLOCATION_GAP)
    shares = np.array([allocation.noises[classes.spaces[s]] for s in measured.parts.spaces])
    return MinimaxResult(plan=measured, shares=shares, value=allocation.value, proof=lower_bound)


def _best_of(a: MinimaxResult, b: MinimaxResult) -> MinimaxResult:
    """Return the better plan of two results together with the larger lower bound."""
    better = a if a.value <= b.value else b
    return replace(better, proof=max(a.proof, b.proof, key=lambda p: p.bound))


def _log_step(rule: _UpdateRule, weights: Array, ratio: Array, previous: Array) -> Array:
    """Return the change of the logarithms of query weights in one iteration; see `_UpdateRule`.

    Parameters
    ----------
    weights, ratio, previous : query weights, variance over mean variance, and the previous change;
        all of the same shape.
    """
    light_weight = LIGHT_WEIGHT * float(weights.mean())
    power = rule.power + np.where(
        ratio > 1.0, rule.light_power * light_weight / (light_weight + weights), 0.0
    ).astype(weights.dtype)
    return np.asarray(
        np.clip(
            power * np.log(np.maximum(ratio, 1e-30)) + rule.momentum * previous,
            -MAX_LOG_STEP,
            MAX_LOG_STEP,
        )
    )


def _weighted_sums(weights: Array, tables: Sequence[Array], free_axis: int = -1) -> Array:
    """Return for every space the sum over queries of weight times the product of table entries.

    Parameters
    ----------
    weights : weights of queries, with one axis per table.
    tables : one table per axis of ``weights``, shape (spaces, length of the axis) each.
    free_axis : axis of ``weights`` that is not summed and whose table is not multiplied; -1 for
        none.

    Returns
    -------
    Shape (spaces,), or (spaces, queries of axis ``free_axis``).
    """
    if free_axis >= 0:
        weights = np.moveaxis(weights, free_axis, 0)
    others = [t for k, t in enumerate(tables) if k != free_axis]
    if not others and free_axis >= 0:
        return np.broadcast_to(weights, (len(tables[free_axis]), *weights.shape))
    if not others:
        return weights.reshape(1)
    # vector instructions may raise this flag for unused entries; the result is checked below
    with np.errstate(invalid="ignore"):
        out = weights @ others[-1].T
    if not np.isfinite(out).all():
        raise FloatingPointError("the weighted sums of variances are not finite")
    for table in others[-2::-1]:
        out = np.einsum("...as,sa->...s", out, table)
    return np.asarray(out.T)


def _products(scale: Array, tables: Sequence[Array]) -> Array:
    """Return sum_s scale[s] tables[0][s, i] tables[1][s, j] ... as an array with axes i, j, ...

    ``scale`` has shape (spaces,), and every table has one row per space.
    """
    if not tables:
        return np.asarray(scale.sum())
    out = scale[:, None].astype(tables[0].dtype)
    for table in tables[:-1]:
        out = (out[:, :, None] * table[:, None, :]).reshape(len(scale), -1)
    return np.asarray((out.T @ tables[-1]).reshape([t.shape[1] for t in tables]))
