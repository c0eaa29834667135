"""Minimax plans for product workloads by multiplicative weights on single queries.

Variances
---------
The variance of a product query q is a sum over residual spaces on attributes of its group.  The
term of a space is the squared noise of the space times one factor per attribute of the group:

    attribute in the space       variance of q under the strategy on this attribute
    attribute not in the space   (q . pi)^2 for the center pi of the attribute

If all queries and all cells of an attribute are equivalent, one strategy on it is optimal for all
query weights.  Every other attribute of a space has an *adapted strategy*, which changes with the
query weights at every iteration.

Adapted strategies
------------------
An adapted strategy has query rows W, query weights w and cell weights mu with sum 1.  With D =
diag(mu) and the singular value decomposition diag(sqrt w) W D^1/2 = U S V^T, it has

    precision matrix     X = D^-1/2 V S V^T D^-1/2
    cost of cell c       X_cc, with the weighted mean sum_c mu_c X_cc = T = tr S
    variance of query q  (W X^-1 W^T)_qq

At the optimal mu no cell has a cost above T.  Each iteration raises the weights of cells with a
cost above T, as in `engine.residuals.dual_solver`.

Search
------
Multiplicative weights: queries above the mean variance gain weight, queries below it lose weight.
In every iteration, the weights of product queries determine query weights on every attribute, and
every adapted strategy takes one step towards the optimal strategy for its query weights.  At the
end the budget is divided optimally among the strategies.

Lower bound
-----------
For any query weights, the smallest weighted sum of variances, divided by the dual norm of the
weights, is a lower bound on the largest variance of every plan.  The bound uses other query weights
than the plan: products of the entries of one vector per query family.  With such weights, the Gram
matrix of a space is a sum of Kronecker products.  A sum of lower bounds, one per Kronecker product,
bounds the error on the space.  The same code computes plan and bound after a search and from a plan
file.
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
from engine.plans.plan import LineWeights, Tradeoff
from engine.residuals import DualProblem, Factor, Space, Split, basis, center, digest
from engine.residuals.basis import UNIFORM
from engine.residuals.decomposition import Decomposition, decompose, merge_terms
from engine.residuals.dual_solver import Solution
from engine.residuals.search_cache import Search
from engine.residuals.search_costs import PRODUCT_FLOPS, eigen_seconds
from engine.residuals.subworkload_solver import SpaceSolution
from engine.workload import Group, Part, Workload
from engine.workload.families import Intervals

# The minimax search applies to workloads with at most this number of queries of separate weights.
# Equal groups are counted once.
MAX_WEIGHTED_QUERIES = 8_000_000
# The minimax search applies if the query rows on single attributes have at most this number of
# entries in total.
MAX_ROW_ENTRIES = 8_000_000
# Residual spaces that are not equivalent have separate adapted strategies if there are at most
# MAX_SEPARATE_STRATEGIES such strategies.  Otherwise only spaces on at most MAX_SEPARATE_AXES
# attributes have separate strategies; see `StrategyLayout._key`.
MAX_SEPARATE_STRATEGIES = 40
MAX_SEPARATE_AXES = 2


def count_weighted_queries(workload: Workload, goal: Objective, split: Split) -> int:
    """Return the number of separate query weights of the minimax search.

    The result is 0 if the search does not apply.  It applies if

    - the objective is "max", and the split has no complements (tuned splits of pairs) and no unions
      (joint strategies);
    - all queries are products over attributes;
    - all queries of a group have equal weights in the workload;
    - there are at most `MAX_WEIGHTED_QUERIES` separate weights;
    - the query rows on single attributes have at most `MAX_ROW_ENTRIES` entries;
    - some group has at least two attributes on which its queries need different weights.  Otherwise
      `engine.mechanisms.reweighting` is as general.
    """
    if not math.isinf(goal.power) or split.complements or split.unions:
        return 0
    groups = {group.key: group for group in workload.groups if group.weight > 0}.values()
    if any(g.query_weights is not None or any(len(p.axes) > 1 for p in g.parts) for g in groups):
        return 0
    row_entries: dict[Hashable, int] = {}
    queries, is_needed = 0, False
    for group in groups:
        # query families whose queries need different weights
        weighted_parts = [
            part
            for part in group.parts
            if not is_symmetric_part(part, split.centers.get(group.attributes[part.axes[0]]))
        ]
        row_entries |= {part.key: part.count * part.cells for part in weighted_parts}
        queries += math.prod(part.count for part in weighted_parts)
        is_needed = is_needed or len(weighted_parts) > 1
    is_small = sum(row_entries.values()) <= MAX_ROW_ENTRIES and queries <= MAX_WEIGHTED_QUERIES
    return queries if is_needed and is_small else 0


def is_applicable(workload: Workload, goal: Objective, split: Split) -> bool:
    """Return whether the minimax search applies to the workload."""
    return count_weighted_queries(workload, goal, split) > 0


def is_symmetric_part(part: Part, pi: Array | None) -> bool:
    """Return whether all queries and all cells of a family on one attribute are equivalent.

    ``pi`` is the center of the attribute, shape (n,), or None for the uniform center.  The result
    is False if ``pi`` is given, or if there are more queries than cells.
    """
    if pi is not None or part.count > part.cells or not has_equal_weights(part):
        return False
    # Intervals with at most one query per cell and the Gram matrix a I + b 11^T are the single
    # cells or the total.
    if isinstance(part.family, Intervals):
        return True
    rows = part.family.rows(part.sizes)
    return not np.ptp(rows.sum(axis=1)) and not np.ptp((rows**2).sum(axis=1))


def parts_of(workload: Workload) -> dict[str, tuple[Part, ...]]:
    """Return the distinct query families of positive weight on every attribute, sorted by key.

    The result has all attributes of the workload's groups.
    """
    parts_by_name: dict[str, dict[str, Part]] = {}
    for group in {g.attributes: g for g in workload.groups}.values():
        for name in group.attributes:
            parts_by_name.setdefault(name, {})
    for group in workload.groups:
        for part in group.parts if group.weight > 0 else ():
            parts_by_name[group.attributes[part.axes[0]]].setdefault(repr(part.key), part)
    return {
        name: tuple(parts[key] for key in sorted(parts)) for name, parts in parts_by_name.items()
    }


class SortedWorkload:
    """A workload in which the parts (query families) of every group are sorted.

    The sort keys are the query family, then the label, the center and the equivalence class of the
    part's attribute.  After sorting, groups that differ only in the order of their parts (query
    families) are equivalent.

    Attributes
    ----------
    workload : the same groups with sorted parts.
    orders : original indices of the sorted parts, one tuple per group.
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
        # Each pass sorts the query families of the groups, and computes equivalence classes of the
        # sorted groups and of the residual spaces.  The second pass sorts by the classes of the
        # spaces on single attributes, too.
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
        """Return the indices of a group's parts (product factors) in sorted order."""
        names = [group.attributes[part.axes[0]] for part in group.parts]
        keys = [
            (repr(part.key), labels_of[name], space_classes.get((name,), -1))
            for part, name in zip(group.parts, names, strict=True)
        ]
        return tuple(sorted(range(len(keys)), key=keys.__getitem__))

    def emphasis(self, sorted_emphasis: Emphasis) -> Emphasis:
        """Convert query weights for the sorted workload to weights for the original workload."""
        # The result has one class per pair (class of the sorted workload, order of the families).
        class_numbers: dict[tuple[int, tuple[int, ...]], int] = {}
        class_of_group = tuple(
            class_numbers.setdefault((sorted_class, order), len(class_numbers))
            if sorted_class >= 0
            else -1
            for sorted_class, order in zip(sorted_emphasis.class_of_group, self.orders, strict=True)
        )
        # The query family with index p in the original group has the index order.index(p) after
        # sorting.
        vector_indices = []
        for sorted_class, order in class_numbers:
            indices = sorted_emphasis.vector_indices[sorted_class]
            vector_indices.append(tuple(indices[order.index(p)] for p in range(len(order))))
        return Emphasis(
            class_of_group=class_of_group,
            weights=np.array([sorted_emphasis.weights[c] for c, _ in class_numbers]),
            vector_indices=tuple(vector_indices),
            single_vector=tuple(sorted_emphasis.single_vector[c] for c, _ in class_numbers),
            vectors=sorted_emphasis.vectors,
        )


def _reorder(group: Group, order: tuple[int, ...]) -> Group:
    """Return a group with its query families, each on one attribute, in the given order."""
    names = tuple(group.attributes[group.parts[p].axes[0]] for p in order)
    parts = tuple(replace(group.parts[p], axes=(axis,)) for axis, p in enumerate(order))
    return replace(group, attributes=names, parts=parts)


@dataclass(frozen=True, kw_only=True, eq=False)
class ClassLayout:
    """How the variances of the queries of equivalent groups depend on adapted strategies.

    An adapted strategy is a strategy on one attribute that changes with the query weights.  Arrays
    of shape (spaces,) have one entry per residual space on attributes of a group.

    Attributes
    ----------
    number : index of the class of groups.
    group_count : number of groups in the class.
    target : target variance of the queries, in counts^2.
    multiplicity : number of queries that are equivalent to a query of a group.  Equivalent queries
        differ only on attributes without an adapted strategy.
    adapted_parts : indices of the parts (query families) of a group whose attributes have an
        adapted strategy.
    space_classes : index of the equivalence class of every residual space.
    factors : factor of the variance of a query from all attributes without an adapted strategy,
        shape (spaces,).
    strategy_indices : index of the adapted strategy, for every residual space and every adapted
        part.  The index is -1 if the attribute of the part is not in the space.
    outside_factors : (q . pi)^2 of every query q of an adapted part, one array per adapted part.
    query_slices : position of the queries of an adapted part among all queries on its attribute,
        one slice per adapted part.
    """

    number: int
    group_count: float
    target: float
    multiplicity: int
    adapted_parts: tuple[int, ...]
    space_classes: tuple[int, ...]
    factors: Array
    strategy_indices: tuple[tuple[int, ...], ...]
    outside_factors: tuple[Array, ...]
    query_slices: tuple[slice, ...]

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of queries of every product factor whose strategy depends on query weights."""
        return tuple(map(len, self.outside_factors))


class StrategyLayout:
    """Assignment of adapted strategies (for given query weights) to attributes of residual spaces.

    Attributes
    ----------
    is_adapted : mapping from attributes to whether they have adapted strategies.
    strategy_of : mapping from (residual space, adapted attribute) to the index of the strategy.
    rows : residual rows of the queries of every adapted strategy, shape (queries, cells).
    group_classes : one `ClassLayout` per class of equivalent groups.
    """

    def __init__(
        self, workload: Workload, classes: Symmetry, goal: Objective, split: Split
    ) -> None:
        self.workload, self.classes, self.goal, self.split = workload, classes, goal, split
        self.parts = parts_of(workload)
        self._symmetric: dict[Hashable, bool] = {}
        self._rows: dict[Hashable, Array] = {}
        # An attribute needs a strategy that adapts to the query weights, unless its only query
        # family has equivalent queries and cells.
        self.is_adapted = {
            name: any(not self._is_symmetric(p, name) for p in parts) or len(parts) > 1
            for name, parts in self.parts.items()
        }
        adapted_axes = [
            (space, name) for space in classes.spaces for name in space if self.is_adapted[name]
        ]
        # Residual spaces that are not equivalent get separate strategies, unless this would be more
        # than MAX_SEPARATE_STRATEGIES.
        separate_keys = {self._key(space, name, separate=True) for space, name in adapted_axes}
        is_separate = len(separate_keys) <= MAX_SEPARATE_STRATEGIES
        index_of_key: dict[Hashable, int] = {}
        self.strategy_of: dict[tuple[Space, str], int] = {}
        self.rows: list[Array] = []
        for space, name in adapted_axes:
            key = self._key(space, name, separate=is_separate)
            if key not in index_of_key:
                index_of_key[key] = len(self.rows)
                self.rows.append(self._residual_rows(name))
            self.strategy_of[space, name] = index_of_key[key]
        self.group_classes = [
            self._group_class(number, workload.groups[example])
            for number, example in enumerate(classes.examples)
        ]

    def _is_symmetric(self, part: Part, name: str) -> bool:
        """Return the cached result of `is_symmetric_part` for a query family on an attribute."""
        key = (part.key, digest(self.split.centers.get(name)))
        if key not in self._symmetric:
            self._symmetric[key] = is_symmetric_part(part, self.split.centers.get(name))
        return self._symmetric[key]

    def _key(self, space: Space, name: str, separate: bool) -> Hashable:
        """Return the key of an attribute in a residual space.

        An adapted strategy is a strategy on one attribute that changes with the query weights.
        Attributes with equal keys share one adapted strategy.  Equal keys imply that

        - the attributes are equivalent;
        - the spaces are equivalent, if ``separate`` is true or they have at most
          `MAX_SEPARATE_AXES` attributes;
        - otherwise, the spaces have equally many attributes, and their attributes with adapted
          strategies are equivalent.
        """
        attribute_classes = {n: self.classes.spaces.get((n,), n) for n in space}
        axis_key = (
            attribute_classes[name],
            tuple(p.key for p in self.parts[name]),
            digest(self.split.centers.get(name)),
        )
        if separate or len(space) <= MAX_SEPARATE_AXES:
            return axis_key, self.classes.spaces[space]
        # The key has the classes of the attributes with adapted strategies, and the number of all
        # attributes.
        return (
            axis_key,
            tuple(sorted(str(attribute_classes[n]) for n in space if self.is_adapted[n])),
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

    def _group_class(self, number: int, group: Group) -> ClassLayout:
        """Return the `ClassLayout` with index ``number``; ``group`` is any group of the class."""
        classes = self.classes
        names = [group.attributes[p.axes[0]] for p in group.parts]
        adapted_parts = tuple(k for k, name in enumerate(names) if self.is_adapted[name])
        fixed_parts = [k for k in range(len(names)) if k not in adapted_parts]
        # (q . pi)^2 of every query q, one array per query family.  The variance has this factor in
        # residual spaces that do not contain the attribute of the family.
        outside = [
            part.family.dot(part.sizes, center(part.sizes[0], self.split.centers.get(name))) ** 2
            for part, name in zip(group.parts, names, strict=True)
        ]
        # In residual spaces that contain the attribute of a fixed family (without adapted
        # strategy), the variance of every query has this factor.
        inside = {k: self._fixed_variance(group.parts[k]) for k in fixed_parts}
        spaces = [group.named(axes) for axes in group.spaces(self.workload.schema)]
        spaces = [space for space in spaces if space in classes.spaces]
        factors, strategy_indices = [], []
        for space in spaces:
            # All queries of a fixed family have equal factors, so the factor of query 0 is taken.
            factors.append(
                math.prod(
                    inside[k] if names[k] in space else float(outside[k][0]) for k in fixed_parts
                )
            )
            strategy_indices.append(
                tuple(self.strategy_of.get((space, names[k]), -1) for k in adapted_parts)
            )
        return ClassLayout(
            number=number,
            group_count=float(classes.sizes[number]),
            target=self.goal.target(classes.examples[number]),
            multiplicity=math.prod(group.parts[k].count for k in fixed_parts),
            adapted_parts=adapted_parts,
            space_classes=tuple(classes.spaces[space] for space in spaces),
            factors=np.array(factors),
            strategy_indices=tuple(strategy_indices),
            outside_factors=tuple(outside[k] for k in adapted_parts),
            query_slices=tuple(self._query_slice(names[k], group.parts[k]) for k in adapted_parts),
        )

    @staticmethod
    def _fixed_variance(part: Part) -> float:
        """Return the variance at privacy cost 1 of each query of a symmetric family on n cells.

        The optimal strategy measures all cells.  Its projection to the residual space of the
        uniform center has columns of the squared norm 1 - 1/n.
        """
        row = part.family.rows(part.sizes)[0]
        residual = row - row.mean()
        return float(residual @ residual) * (1.0 - 1.0 / part.sizes[0])

    def _query_slice(self, name: str, part: Part) -> slice:
        """Return the slice of the queries of a family among all queries on its attribute."""
        start = 0
        for other in self.parts[name]:
            if other.key == part.key:
                break
            start += other.count
        return slice(start, start + part.count)


# This share of the largest query weight on an attribute is added to all of its query weights.  A
# query of weight 0 could have an infinite variance.
QUERY_WEIGHT_FLOOR = 1e-4
# Smallest cell weight, as a share of the mean cell weight.  A weight of 0 would never increase.
MIN_CELL_WEIGHT = 1e-8
# In an iteration, a cell weight is multiplied by (cost of the cell / mean cost) to this power.
CELL_WEIGHT_EXPONENT = 1.5
# Before a plan is computed, every adapted strategy is improved at fixed query weights, in at most
# POLISH_ITERATIONS steps, until the gap is at most POLISH_GAP.
POLISH_ITERATIONS, POLISH_GAP = 20, 1e-6


class AdaptedStrategy:
    """Strategy on one attribute that is adapted step by step to changing weights of its queries.

    Parameters
    ----------
    rows : residual row q (I - pi 1^T) of every query q, shape (queries, cells).

    Attributes
    ----------
    weights : query weights divided by the largest, plus `QUERY_WEIGHT_FLOOR`, shape (queries,).
    cell_weights : weights of the cells, which determine the strategy, shape (cells,), with sum 1.
    variances : variances of the queries at privacy cost 1, shape (queries,).

    >>> strategy = AdaptedStrategy(np.array([[0.5, -0.5]]))
    >>> strategy.update(np.ones(1))
    >>> strategy.cell_weights, strategy.variances.round(6)
    (array([0.5, 0.5]), array([0.25]))
    """

    def __init__(self, rows: Array) -> None:
        self.rows = rows
        self.rank = int(np.linalg.matrix_rank(rows))
        self.weights = np.ones(len(rows))
        self.cell_weights = np.full(rows.shape[1], 1.0 / rows.shape[1])
        self.variances = np.zeros(len(rows))

    def update(self, weights: Array) -> None:
        """Set the query weights, shape (queries,), and improve the strategy by one step."""
        self.weights = weights / weights.max() + QUERY_WEIGHT_FLOOR
        self.step()

    def step(self) -> float:
        """Improve the cell weights by one step, and return the gap before the step.

        The gap is (largest cost of a cell / mean cost) - 1.  The attribute ``variances`` is set to
        the variances before the step.
        """
        # W are the query rows, w the query weights, and D is the diagonal of the cell weights.  The
        # Gram matrix of diag(sqrt w) W D^1/2 has the eigenvectors V, and its eigenvalues are the
        # squares of the singular values.
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


# The search for the lower bound has at most PROOF_ITERATIONS iterations.  Each one multiplies a
# cell weight by (cost of the cell / mean cost) to the power PROOF_WEIGHT_EXPONENT.
PROOF_WEIGHT_EXPONENT = 1.5
PROOF_ITERATIONS = 6
# Results of the searches in a plan file, in the order of the searches.  Each result is a pair (cell
# weights, termination message).
Recorded = list[tuple[Array, str]]


@dataclass(frozen=True, kw_only=True, eq=False)
class MeasuredSpaces:
    """Strategies of all residual spaces.

    Attributes
    ----------
    decomposition : its ``spaces`` map every residual space to a pair whose first entry is the index
        in ``solutions``.
    solutions : distinct strategies of residual spaces.
    duals : cell weights that determine the strategies on single attributes, one array per distinct
        strategy, in the order of first use.
    attribute_weights : query weights on single attributes for which the strategies are optimal.
    """

    decomposition: Decomposition
    solutions: list[SpaceSolution]
    duals: tuple[Array, ...]
    attribute_weights: LineWeights


@dataclass(frozen=True, kw_only=True, eq=False)
class Proof:
    """Lower bound on the objective, with the weights that prove it.

    Attributes
    ----------
    emphasis : query weights.
    bound : lower bound on the largest variance at privacy cost 1, in counts^2.  With targets, lower
        bound on the largest ratio of a variance to its target.
    duals : cell weights from which ``bound`` is computed, one array per factor of a Gram matrix.
    """

    emphasis: Emphasis
    bound: float
    duals: tuple[Array, ...]


def strategies_of_weights(
    workload: Workload,
    split: Split,
    spaces: Sequence[Space],
    weights: Sequence[Array],
    strategy_of: Mapping[tuple[Space, str], int],
    cell_weights: Sequence[Array] | None,
    recorded: Recorded | None = None,
) -> MeasuredSpaces:
    """Return the strategies of all residual spaces for given query weights on single attributes.

    Parameters
    ----------
    weights : query weights of every adapted strategy, shape (queries,).
    strategy_of : mapping from (space, attribute) to the index of its adapted strategy.  Queries on
        an attribute that is not in the mapping have equal weights.
    cell_weights : cell weights of every adapted strategy, shape (cells,); None for uniform weights.
    recorded : cell weights from a plan file that replace ``cell_weights``, one weight per class of
        equivalent cells; None without a plan file.  The function removes the entries that it uses
        from the front of the list.

    Raises
    ------
    ValueError
        If the recorded weights do not fit the workload.
    """
    parts, solved = parts_of(workload), dict[Any, Solution]()
    duals: list[Array] = []
    solutions: list[SpaceSolution] = []
    # Residual spaces with equal keys have the same solution.
    solution_index: dict[tuple[Any, ...], int] = {}
    assignment: dict[Space, tuple[int, float]] = {}
    for space in spaces:
        keys = []
        for name in space:
            index, pi = strategy_of.get((space, name), -1), split.centers.get(name)
            key = (index, tuple(p.key for p in parts[name]), digest(pi))
            if key not in solved:
                search = _strategy_search(
                    _residual_gram(parts[name], None if index < 0 else weights[index]), pi
                )
                if recorded is not None:
                    dual_weights = _next_recorded(recorded)
                else:
                    initial = None if cell_weights is None or index < 0 else cell_weights[index]
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
    indices = tuple(tuple(strategy_of.get((space, name), -1) for name in space) for space in spaces)
    return MeasuredSpaces(
        decomposition=Decomposition(factors=(), subworkloads=(), spaces=assignment),
        solutions=solutions,
        duals=tuple(duals),
        attribute_weights=LineWeights(weights=tuple(weights), indices=indices),
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
    """Compute the lower bound on the objective that follows from given query weights.

    Parameters
    ----------
    emphasis : query weights, as products over attributes.
    initial_weights : function of a space and one of its attributes that returns the cell weights at
        which a search starts, shape (cells,), or None for uniform weights.
    recorded : cell weights from a plan file that replace the searches.  The function removes the
        entries that it uses from the front of the list.
    deadline : time after which no search takes a further step.

    Raises
    ------
    ValueError
        If the recorded weights do not fit the workload.
    """
    decomposition = decompose(emphasis.apply(workload), split, labels)
    examples: dict[int, Space] = {}
    for space, (k, _) in decomposition.spaces.items():
        examples.setdefault(k, space)
    bounds: dict[Factor, float] = {}
    duals: list[Array] = []
    totals = []
    for k, sub in enumerate(decomposition.subworkloads):
        total = 0.0
        for coefficient, factors in merge_terms(sub, decomposition.factors):
            value = coefficient
            for (axis,), factor in factors:
                if factor not in bounds:
                    initial = initial_weights(examples[k], examples[k][axis])
                    with threads_for(1):
                        problem = _strategy_search(factor, sub.centers[axis]).problem()
                        dual_weights = (
                            _dual_weights(problem, initial, PROOF_ITERATIONS, deadline)
                            if recorded is None
                            else _next_recorded(recorded)
                        )
                        if len(dual_weights) != problem.variables:
                            raise ValueError("the stored cell weights are not one per cell")
                        bounds[factor] = problem.bound(dual_weights)
                    duals.append(dual_weights)
                value *= bounds[factor]
            total += value
        totals.append(total)
    sum_bound = (
        math.fsum(math.sqrt(scale * totals[k]) for k, scale in decomposition.spaces.values()) ** 2
    )
    return Proof(
        emphasis=emphasis,
        bound=sum_bound / dual_norm(workload, goal, emphasis)[0],
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
    recorded : cell weights of these strategies, then cell weights of the lower bound.  The function
        removes the entries that it uses from the front of the list.

    Returns
    -------
    decomposition : assigns every residual space to a solution.
    solutions : strategies of residual spaces.
    bound : lower bound on the objective.

    Raises
    ------
    ValueError
        If the query weights or the dual weights do not fit the workload.
    """
    attribute_weights = tradeoff.lines
    if attribute_weights is None or not is_applicable(workload, goal, split):
        raise ValueError(
            "the stored query weights by attribute are missing, or the workload does not use them"
        )
    spaces = list(decompose(workload, split, labels).spaces)
    if len(attribute_weights.indices) != len(spaces) or any(
        len(s) != len(i) for s, i in zip(spaces, attribute_weights.indices, strict=True)
    ):
        raise ValueError(
            "the stored indices of query weights are not one per attribute of each residual space"
        )
    strategy_of = {
        (space, name): index
        for space, indices in zip(spaces, attribute_weights.indices, strict=True)
        for name, index in zip(space, indices, strict=True)
        if index >= 0
    }
    rows = {name: sum(p.count for p in parts) for name, parts in parts_of(workload).items()}
    if any(
        len(attribute_weights.weights[index]) != rows[name]
        for (_, name), index in strategy_of.items()
    ):
        raise ValueError("the stored query weights are not one per query of their attribute")
    measured = strategies_of_weights(
        workload, split, spaces, attribute_weights.weights, strategy_of, None, recorded
    )
    tradeoff.emphasis.check(workload)
    lower_bound = proof(workload, goal, split, labels, tradeoff.emphasis, lambda *_: None, recorded)
    return measured.decomposition, measured.solutions, lower_bound.bound


def _residual_gram(parts: Sequence[Any], weights: Array | None) -> Factor:
    """Return the residual Gram matrix of all queries on an attribute.

    ``parts`` are the query families on the attribute.  ``weights`` has one weight per query.  With
    None, all weights are 1.
    """
    (n,) = parts[0].sizes
    gram, start = np.zeros((n, n)), 0
    for part in parts:
        part_weights = None if weights is None else weights[start : start + part.count]
        gram, start = gram + part.family.gram(part.sizes, part_weights), start + part.count
    N = basis(n)
    return Factor(sizes=(n,), matrix=N.T @ gram @ N)


def _strategy_search(factor: Factor, pi: Array | None) -> Search:
    """Return the strategy search for one residual Gram on one attribute with center ``pi``."""
    return Search(factor=factor, centers=(pi,))


def _dual_weights(
    problem: DualProblem, initial: Array | None, steps: int = 0, deadline: float = math.inf
) -> Array:
    """Search for cell weights that prove a large lower bound.

    Parameters
    ----------
    initial : cell weights at which the search starts, shape (cells,); None for uniform weights.
    steps : largest number of steps.  Without a step the initial weights are returned.

    Returns
    -------
    One weight per orbit (class of equivalent cells), shape (orbits,), with sum 1.
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
    """Remove the first entry of ``recorded``, and return its cell weights."""
    if not recorded:
        raise ValueError("fewer dual weights are stored than searches need")
    return recorded.pop(0)[0]


# `minimax_search` changes the query weights this many times before the first plan, between two
# plans, and in total.
FIRST_ITERATIONS, SEARCH_ITERATIONS, MAX_ITERATIONS = 60, 20, 160
# Number of iterations of `minimax_search` if it computes only one plan.
SINGLE_PLAN_ITERATIONS = 96
# Smallest number of iterations of `minimax_search`, also after the deadline.
MIN_ITERATIONS = 10
# With at most this number of query weights, `minimax_search` computes several plans and returns the
# best one.  With more weights it computes one plan.
MAX_COMPARED_QUERIES = 500_000
# Query weights below about this share of the mean in their class of groups increase faster.
LIGHT_WEIGHT = 1e-2
# largest change of the logarithm of a query weight in one iteration
MAX_LOG_STEP = 3.0
# The smallest weight of a query is a share of the mean weight in its class of groups.  For this
# purpose the mean is raised to at least MIN_GROUP_WEIGHT times the mean weight of all queries.
MIN_GROUP_WEIGHT = 1e-9
# Smallest query weight of the lower bound, as a share of the smallest weight of the query in the
# search.
PROOF_WEIGHT_FLOOR = 1e-2
# The search uses single precision, because it may have millions of query weights.  Plans and lower
# bounds use double precision.
SEARCH_DTYPE: Any = np.float32
# The search stops if the largest standard error exceeds its lower bound by at most this share.
STOP_GAP = 1e-5
# `TradeoffSearch` follows the minimax search if the largest standard error exceeds its lower bound
# by more than this share.
POOR_FIT_GAP = 1e-3
# A plan counts as stalled if its gap is more than STALLED_GAP_RATIO times the gap of the previous
# plan.  The search stops after MAX_STALLED_PLANS consecutive stalled plans.
STALLED_GAP_RATIO, MAX_STALLED_PLANS = 0.9, 2
# The search for the best budget shares of residual spaces stops when the largest variance exceeds
# its lower bound by at most this share.
ALLOCATION_GAP = 4e-6


@dataclass(frozen=True, kw_only=True)
class _UpdateRule:
    """Parameters of one iteration of the query weights.

    Attributes
    ----------
    power : a weight is multiplied by (variance / mean variance) to this power.
    light_power : largest number that is added to ``power`` for a weight that increases.  Weights
        near 0 get this number, larger weights a smaller one.
    momentum : factor of the previous change of log(weight), which is added to the next change.
    min_share : smallest weight of a query, divided by the mean weight in its class of groups.
    """

    power: float
    light_power: float
    momentum: float
    min_share: float


# If several plans are computed, FIRST_RULE applies to the iterations before the first one, and
# MOMENTUM_RULE to later iterations.  If one plan is computed, MOMENTUM_RULE applies to all.
FIRST_RULE = _UpdateRule(power=2.0, light_power=20.0, momentum=0.0, min_share=1e-8)
MOMENTUM_RULE = _UpdateRule(power=1.5, light_power=10.0, momentum=0.7, min_share=1e-4)


@dataclass(frozen=True, kw_only=True, eq=False)
class MinimaxResult:
    """A plan at privacy cost 1 with its lower bound.

    Attributes
    ----------
    plan : strategies of all residual spaces.
    shares : squared noise of every residual space, in the order of ``plan.decomposition.spaces``.
    value : largest variance, in counts^2.  With targets, the largest ratio of a variance to its
        target.
    proof : query weights and the lower bound on ``value`` that they prove.
    """

    plan: MeasuredSpaces
    shares: Array
    value: float
    proof: Proof

    @property
    def duals(self) -> tuple[Array, ...]:
        """Cell weights of all strategies, then cell weights of the lower bound.

        There is one array per search, with one weight per class of equivalent cells.
        """
        return (*self.plan.duals, *self.proof.duals)

    @property
    def fits_poorly(self) -> bool:
        """Whether the gap between ``value`` and its bound is so large that `TradeoffSearch` follows."""
        return self.value > self.proof.bound * (1.0 + POOR_FIT_GAP) ** 2

    @property
    def endings(self) -> tuple[str, ...]:
        """Termination messages of the searches, one per array of ``duals``."""
        return ("optimal",) * len(self.duals)

    @property
    def decomposition(self) -> Decomposition:
        """Decomposition that maps every residual space to the index of its solution."""
        return self.plan.decomposition

    @property
    def solutions(self) -> list[SpaceSolution]:
        """Strategies of the residual spaces."""
        return self.plan.solutions

    @property
    def tradeoff(self) -> Tradeoff:
        """Noise and query weights, from which the plan can be rebuilt."""
        return Tradeoff(
            shares=self.shares, emphasis=self.proof.emphasis, lines=self.plan.attribute_weights
        )


class _SearchState:
    """State of the search: query weights, adapted strategies and noise.

    Parameters
    ----------
    layout : assignment of adapted strategies to attributes of residual spaces.
    counts : number of residual spaces in each class of equivalent spaces, shape (classes,).

    Attributes
    ----------
    weights : query weights, one array per class of groups, with one axis per product factor whose
        strategy adapts to the weights.  An entry is the sum of the weights of equivalent queries in
        all groups of the class.  The sum of all entries is 1, or slightly more if some entries were
        raised to the smallest weight.
    strategies : the adapted strategies.
    noises : squared noise at privacy cost 1, one per class of residual spaces, shape (classes,).
    tables : factors of the variances of queries, see `tabulate_variances`.
    """

    def __init__(self, layout: StrategyLayout, counts: Array) -> None:
        self.layout, self.group_classes, self.counts = layout, layout.group_classes, counts
        self.strategies = [AdaptedStrategy(rows) for rows in layout.rows]
        n_queries = math.fsum(math.prod(k.counts) for k in self.group_classes)
        self.weights = [
            np.full(k.counts, 1.0 / n_queries, dtype=SEARCH_DTYPE) for k in self.group_classes
        ]
        self.rule, self.min_group_mean = MOMENTUM_RULE, MIN_GROUP_WEIGHT / n_queries
        self.log_steps = [np.zeros_like(w) for w in self.weights]
        self.outside = [
            [out.astype(SEARCH_DTYPE) for out in k.outside_factors] for k in self.group_classes
        ]
        self.update([np.ones(len(strategy.rows)) for strategy in self.strategies])
        self.noises = self.best_noises()

    def update(self, weights: Sequence[Array]) -> None:
        """Set the query weights of all adapted strategies, and improve each by one step.

        ``weights`` has one array per strategy, shape (queries,).  The attribute ``tables`` is
        computed again.
        """
        for strategy, query_weights in zip(self.strategies, weights, strict=True):
            strategy.update(query_weights)
        self.tabulate_variances()

    def tabulate_variances(self) -> None:
        """Set ``tables``: an array, shape (spaces, queries), per class of groups and adapted family.

        A query family is adapted if its strategy depends on the query weights.  If the space
        contains the attribute of the family, the entry of query q is its variance under the adapted
        strategy on this attribute.  Otherwise it is (q . pi)^2.  The variance of a product query in
        a space is the product of its entries for all families, times the squared noise of the
        space, times `ClassLayout.factors` for the space.
        """
        variances = [strategy.variances.astype(SEARCH_DTYPE) for strategy in self.strategies]
        self.tables: list[list[Array]] = []
        for group_class, outside in zip(self.group_classes, self.outside, strict=True):
            tables_of_class = []
            for p, query_slice in enumerate(group_class.query_slices):
                rows = []  # one row per residual space
                for indices_of_space in group_class.strategy_indices:
                    index = indices_of_space[p]  # -1 if the space lacks the attribute
                    rows.append(outside[p] if index < 0 else variances[index][query_slice])
                tables_of_class.append(np.stack(rows))
            self.tables.append(tables_of_class)

    def best_noises(self) -> Array:
        """Return the optimal squared noises at privacy cost 1, one per class of residual spaces.

        They minimize the weighted sum of the ratios of variances to targets.
        """
        weighted_variances = np.zeros(len(self.counts))
        for group_class, weights, tables in zip(
            self.group_classes, self.weights, self.tables, strict=True
        ):
            sums = _weighted_sums(weights, tables) * group_class.factors
            weighted_variances += np.bincount(
                group_class.space_classes,
                sums / group_class.target,
                minlength=len(weighted_variances),
            )
        best = np.sqrt(self.counts / np.maximum(weighted_variances, 1e-300))
        return np.asarray(best * float(np.sum(self.counts / best)), dtype=float)

    def strategy_weights(self) -> list[Array]:
        """Return the weights of the queries on one attribute, for every adapted strategy.

        The array of a strategy has shape (queries,).  A weight is the derivative of the objective
        of `best_noises` with respect to the variance of the query under the strategy.
        """
        sums = [np.zeros(len(strategy.rows)) for strategy in self.strategies]
        for group_class, weights, tables in zip(
            self.group_classes, self.weights, self.tables, strict=True
        ):
            scale = (
                group_class.factors
                * self.noises[list(group_class.space_classes)]
                / group_class.target
            )
            for p, query_slice in enumerate(group_class.query_slices):
                contributions = _weighted_sums(weights, tables, p) * scale[:, None]
                for indices, contribution in zip(
                    group_class.strategy_indices, contributions, strict=True
                ):
                    index = indices[p]  # -1 if the space lacks the attribute
                    if index >= 0:
                        sums[index][query_slice] += contribution
        return sums

    def step(self, rule: _UpdateRule) -> None:
        """Update the adapted strategies, then the noise, and then the query weights by ``rule``."""
        self.update(self.strategy_weights())
        self.noises = self.best_noises()
        variances = [
            _products(
                group_class.factors
                * self.noises[list(group_class.space_classes)]
                / group_class.target,
                tables,
            )
            for group_class, tables in zip(self.group_classes, self.tables, strict=True)
        ]
        mean_variance = math.fsum(
            float(np.vdot(weights, values))
            for weights, values in zip(self.weights, variances, strict=True)
        )
        self.rule = rule
        self.log_steps = [
            _log_step(rule, weights, values / mean_variance, log_step)
            for weights, values, log_step in zip(
                self.weights, variances, self.log_steps, strict=True
            )
        ]
        updated = [
            weights * np.exp(log_step)
            for weights, log_step in zip(self.weights, self.log_steps, strict=True)
        ]
        total = math.fsum(float(weights.sum()) for weights in updated)
        self.weights = []
        for weights in updated:
            mean_weight = max(float(weights.mean()) / total, self.min_group_mean)
            self.weights.append(np.maximum(weights / total, rule.min_share * mean_weight))

    def emphasis(self, classes: Symmetry) -> Emphasis:
        """Return query weights for the lower bound, as products of one vector per query family.

        For a family with an adapted strategy, the entry of a query is proportional to the sum of
        ``weights`` over all product queries that contain this query.  For all other families, the
        entries are 1.
        """
        vectors: list[Array] = []
        vector_indices, class_weights = [], []
        # ``uniform[count]`` is the index of the vector of ones for a family with ``count`` queries.
        uniform: dict[int, int] = {}
        for group_class, query_weights in zip(self.group_classes, self.weights, strict=True):
            # The search raises all weights to at least ``floor``. Here ``floor`` is subtracted
            # again, because the lower bound is larger without it.
            floor = self.rule.min_share * float(query_weights.mean())
            weights = np.maximum(query_weights - floor, PROOF_WEIGHT_FLOOR * floor)
            group = self.layout.workload.groups[classes.examples[group_class.number]]
            indices = []
            for p, part in enumerate(group.parts):
                if p in group_class.adapted_parts:
                    axis = group_class.adapted_parts.index(p)
                    other_axes = tuple(a for a in range(weights.ndim) if a != axis)
                    vector = weights.sum(axis=other_axes, dtype=float)
                    indices.append(len(vectors))
                    vectors.append(vector / vector.sum())
                    continue
                if part.count not in uniform:
                    uniform[part.count] = len(vectors)
                    vectors.append(np.ones(part.count))
                indices.append(uniform[part.count])
            vector_indices.append(tuple(indices))
            class_weights.append(
                float(weights.sum())
                / (group_class.group_count * group_class.multiplicity * group_class.target)
            )
        return Emphasis(
            class_of_group=classes.class_of_group,
            weights=np.array(class_weights),
            vector_indices=tuple(vector_indices),
            single_vector=(False,) * len(vector_indices),
            vectors=tuple(vectors),
        )


# For forecasts: number of iterations and of plans of a search that computes several plans.
TYPICAL_ITERATIONS, TYPICAL_PLANS = 100, 3
# For forecasts: seconds of an iteration per weighted query, and seconds of one step of an adapted
# strategy in addition to its eigenvalue problem.
QUERY_SECONDS, ADAPTED_STEP_SECONDS = 8e-9, 2e-5
# For forecasts: a plan takes as long as STEPS_PER_PLAN steps of all adapted strategies, and in
# addition PLAN_SECONDS_PER_SPACE for each residual space.
STEPS_PER_PLAN, PLAN_SECONDS_PER_SPACE = 30, 5e-4


def forecast_minimax(workload: Workload, goal: Objective, spaces: Sequence[Space]) -> float:
    """Return the expected time of `minimax_search` with uniform centers, in seconds.

    The result is 0 if the search does not apply.

    Parameters
    ----------
    spaces : one residual space per class of equivalent spaces.
    """
    queries = count_weighted_queries(workload, goal, UNIFORM)
    if not queries:
        return 0.0
    # for every attribute with adapted strategies, the time of one step of the search for a
    # strategy, in seconds
    seconds_of: dict[str, float] = {}
    for name, parts in parts_of(workload).items():
        if len(parts) > 1 or not is_symmetric_part(parts[0], pi=None):
            rows, cells = sum(part.count for part in parts), parts[0].cells
            product_seconds = 4.0 * rows * cells**2 / PRODUCT_FLOPS
            seconds_of[name] = ADAPTED_STEP_SECONDS + eigen_seconds(cells) + product_seconds
    strategy_seconds = math.fsum(seconds_of.get(name, 0.0) for space in spaces for name in space)
    if queries > MAX_COMPARED_QUERIES:
        iterations, plans = SINGLE_PLAN_ITERATIONS, 1
    else:
        iterations, plans = TYPICAL_ITERATIONS, TYPICAL_PLANS
    plan_seconds = STEPS_PER_PLAN * strategy_seconds + PLAN_SECONDS_PER_SPACE * len(spaces)
    return iterations * (strategy_seconds + QUERY_SECONDS * queries) + plans * plan_seconds


def minimax_search(
    workload: Workload,
    goal: Objective,
    split: Split,
    labels: Mapping[str, Hashable],
    tell: Callable[[float, str], None],
    deadline: float,
) -> MinimaxResult:
    """Search for the plan that minimises the largest variance, and for the best lower bound.

    The search ends

    - if the gap is at most `STOP_GAP`;
    - if `MAX_STALLED_PLANS` consecutive plans hardly lowered the gap;
    - after the largest number of iterations;
    - after the deadline, but not before `MIN_ITERATIONS` iterations.

    Raises
    ------
    Unanswered
        If weights differ so much that rounding makes some of them 0.
    """
    spaces = list(decompose(workload, split, labels).spaces)
    arranged = SortedWorkload(workload, spaces, goal, labels, split)
    layout = StrategyLayout(arranged.workload, arranged.classes, goal, split)
    state = _SearchState(layout, arranged.classes.counts)
    best: MinimaxResult | None = None
    done, gap, stalled = 0, math.inf, 0
    single_plan = count_weighted_queries(workload, goal, split) > MAX_COMPARED_QUERIES
    if single_plan:
        iterations = max_iterations = SINGLE_PLAN_ITERATIONS
    else:
        iterations, max_iterations = FIRST_ITERATIONS, MAX_ITERATIONS
    rule = MOMENTUM_RULE if single_plan else FIRST_RULE
    while True:
        for _ in range(iterations):
            message = "Weighing the queries" + ("" if best is None else f", gap {gap:.1e}")
            tell(0.9 * done / max_iterations, message)
            # Several threads would slow down matrix products of this size.
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

    The adapted strategies are first improved at fixed query weights.  At the end the function
    restores the strategies, so that the search continues as if it had not been called.

    Raises
    ------
    Unanswered
        If the strategies do not measure a query because its weight is rounded to 0.
    """
    saved_states = [(strategy.cell_weights, strategy.variances) for strategy in state.strategies]
    strategy_of, classes = state.layout.strategy_of, arranged.classes

    def initial_weights(space: Space, name: str) -> Array | None:
        """Return the cell weights of the adapted strategy on an attribute of a space.

        The result is None if the attribute has no adapted strategy in this space.
        """
        index = strategy_of.get((space, name))
        return None if index is None else saved_states[index][0]

    emphasis = arranged.emphasis(state.emphasis(classes))
    lower_bound = proof(workload, goal, split, labels, emphasis, initial_weights, deadline=deadline)
    with threads_for(1):
        for strategy in state.strategies:
            strategy.polish()
    measured = strategies_of_weights(
        workload,
        split,
        list(classes.spaces),
        [strategy.weights for strategy in state.strategies],
        strategy_of,
        [strategy.cell_weights for strategy in state.strategies],
    )
    state.tabulate_variances()
    noises = state.best_noises()
    for strategy, (cell_weights, variances) in zip(state.strategies, saved_states, strict=True):
        strategy.cell_weights, strategy.variances = cell_weights, variances
    state.tabulate_variances()
    builder = unit_builder(measured.decomposition, measured.solutions, split, workload.schema)
    queries = queries_by_class(arranged.workload, builder, classes, goal)
    if queries is None:
        raise Unanswered(DROPPED_QUERIES)
    allocation = best_shares(queries, classes.counts, goal, noises, ALLOCATION_GAP)
    shares = np.array([allocation.noises[classes.spaces[s]] for s in measured.decomposition.spaces])
    return MinimaxResult(plan=measured, shares=shares, value=allocation.value, proof=lower_bound)


def _best_of(first: MinimaxResult, second: MinimaxResult) -> MinimaxResult:
    """Return a result with the better plan and the larger lower bound of two results."""
    better = first if first.value <= second.value else second
    return replace(better, proof=max(first.proof, second.proof, key=lambda p: p.bound))


def _log_step(rule: _UpdateRule, weights: Array, ratio: Array, previous: Array) -> Array:
    """Return the change of the logarithms of query weights in one iteration; see `_UpdateRule`.

    Parameters
    ----------
    weights : query weights.
    ratio : variances divided by the mean variance, same shape.
    previous : changes in the previous iteration, same shape.
    """
    # ``power`` is larger for light weights that increase, so that they need fewer iterations
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
    """Return weighted sums of variances of product queries, for every residual space.

    For space s the terms are weights[i, j, ...] tables[0][s, i] tables[1][s, j] ..., one term per
    query (i, j, ...).

    Parameters
    ----------
    weights : query weights, with one axis per table.
    tables : one table per axis of ``weights``, shape (spaces, length of the axis).
    free_axis : axis of ``weights`` that is not summed; -1 to sum over all axes.  The terms do not
        contain the table of this axis.

    Returns
    -------
    The sums, shape (spaces,).  With a ``free_axis`` the shape is (spaces, length of this axis).
    Without tables, the result is the single weight, shape (1,).
    """
    if free_axis >= 0:
        weights = np.moveaxis(weights, free_axis, 0)
    other_tables = [table for axis, table in enumerate(tables) if axis != free_axis]
    if not other_tables and free_axis >= 0:
        return np.broadcast_to(weights, (len(tables[free_axis]), *weights.shape))
    if not other_tables:
        return weights.reshape(1)
    # Vector instructions may signal invalid values in unused entries of a register.  Therefore
    # warnings are ignored, and the result is checked below.
    with np.errstate(invalid="ignore"):
        sums = weights @ other_tables[-1].T
    if not np.isfinite(sums).all():
        raise FloatingPointError("the weighted sums of variances are not finite")
    # The last axis is summed.  The other axes are summed one by one, from the last to the first.
    for table in other_tables[-2::-1]:
        sums = np.einsum("...as,sa->...s", sums, table)
    return np.asarray(sums.T)


def _products(scale: Array, tables: Sequence[Array]) -> Array:
    """Return sum_s scale[s] tables[0][s, i] tables[1][s, j] ... as an array with axes i, j, ...

    ``scale`` has shape (spaces,), and every table has one row per space s.
    """
    if not tables:
        return np.asarray(scale.sum())
    out = scale[:, None].astype(tables[0].dtype)
    for table in tables[:-1]:
        out = (out[:, :, None] * table[:, None, :]).reshape(len(scale), -1)
    return np.asarray((out.T @ tables[-1]).reshape([t.shape[1] for t in tables]))
