"""Reweighting of queries for other objectives and for accuracy constraints.

Other objectives
----------------
Objectives other than the weighted sum of variances are norms of the variances.  For query weights u
the solver of the mechanism returns the strategies and budget shares that minimise the sum of
variances weighted by u, and a lower bound on this sum.  The lower bound, divided by the dual norm
of u, is a lower bound on the objective.

`TradeoffSearch` maximises this quotient over factored weights.  The factored weight of a query is a
product of entries of vectors, one vector per query family of its group.  Each step multiplies every
weight by gain / cost.  The gain is the share of the weight in the weighted variance, and the cost
is its share in the dual norm.  Anderson acceleration combines successive steps.  In some steps, the
search computes the budget shares that are optimal for the objective itself.  The search stores the
best plan and the best bound.  Its first step uses the weights of the workload, so the result is
never worse than the strategies for the weighted sum with optimal shares.

For the largest variance, factored weights may not attain the optimum.  Therefore `SeparateWeights`
tries to improve the best plan.  It has a separate weight for every query, which rises for queries
above the mean variance and falls for queries below it.  Solvers require factored weights.
Therefore each step changes the factored weights: for every vector entry, the sum of weight times
variance over the queries with this entry approaches the same sum for separate weights.

Source: Weighted Fourier Factorizations, lemma 3.10, for marginals; factored weights are an
extension of this project.

Accuracy constraints
--------------------
Tuning lowers the weighted sum of variances, but may raise the variances of single groups.  An
accuracy constraint limits the variance of a group relative to its variance with uniform centers.
Let V_g be the sum of variances of group g, w_g its weight and T_g the largest allowed V_g.  The
search raises weights w_g to u_g until the optimal plan for the weights u satisfies the constraints.
This plan is optimal for the weights w under the constraints if every group has V_g = T_g or u_g =
w_g.  For such a plan, the differences u_g - w_g are the Lagrange multipliers.  For any weights u of
at least w, every plan that satisfies the constraints has

    sum of w V >= sum of u V - sum of (u - w) T
"""

from __future__ import annotations

import contextlib
import itertools
import math
import operator
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import numpy as np

from engine._arrays import Array
from engine._clock import planning_time
from engine.errors import PlanError
from engine.mechanisms.base import is_number
from engine.plans import Block
from engine.plans.group_variance import linear_variances
from engine.plans.objectives import (
    ClassQueries,
    Emphasis,
    Objective,
    Symmetry,
    best_shares,
    queries_by_class,
    symmetry,
)
from engine.plans.plan import Tradeoff
from engine.plans.variance_builder import VarianceBuilder
from engine.residuals import Space, Split, contract
from engine.residuals.decomposition import Decomposition, decompose
from engine.residuals.subworkload_solver import SpaceSolution
from engine.workload import Circular, Group, Part, Schema, Workload
from engine.workload.families import Intervals

# Largest number of updates of the group weights under accuracy constraints.
MAX_WEIGHT_UPDATES = 20
# The search for group weights lowers the limit on the variance of every group by this share.  The
# search ends when the variances of all groups are at most the lowered limits.  In addition, every
# group with a raised weight must be less than twice this share below its lowered limit.
ACTIVE_TOLERANCE = 1e-3
# Accuracy constraints may be exceeded by this share, because noise is rounded to a grid.
GRID_TOLERANCE = 1e-6
# The search for group weights u_g is a secant method, which estimates the slope of log V_g as a
# function of log u_g.  INITIAL_SLOPE is the first estimate; later ones are from -1 to MAX_SLOPE.
# A step changes log u_g by at most MAX_LOG_STEP.
INITIAL_SLOPE = -0.5
MAX_SLOPE, MAX_LOG_STEP = -0.03, 2.0


def checked_keep(keep: Any) -> float | dict[int, float]:
    """Check the option ``keep``, and return it in a standard form.

    The option is the share by which the RMSE of a group may increase.  It is one number for all
    groups, or a mapping from group index to number.  An index may be a string, as in JSON.  In the
    result, a mapping has integer keys in ascending order.

    Raises
    ------
    PlanError
        If a number or a group index is invalid.

    >>> checked_keep({"0": 0.05})
    {0: 0.05}
    """
    is_mapping = isinstance(keep, Mapping)
    try:
        # `int` would round fractions; `operator.index` rejects them.
        keys = list(keep) if is_mapping else []
        numbers = [int(key) if isinstance(key, str) else operator.index(key) for key in keys]
    except (TypeError, ValueError):
        numbers = [-1]
    shares = list(keep.values()) if is_mapping else [keep]
    are_valid = all(is_number(share) and 0.0 <= share < math.inf for share in shares)
    if not are_valid or min(numbers, default=0) < 0:
        raise PlanError(
            f"keep is {str(keep)[:60]}. Give the share by which the error of a group may increase,"
            " 0 or more: one number for all groups, or a mapping from group numbers to numbers,"
            " such as {0: 0.05}."
        )
    if not is_mapping:
        return float(keep)
    return dict(sorted(zip(numbers, map(float, shares), strict=True)))


def variance_limits(
    keep: float | Mapping[int, float], workload: Workload, uniform: Sequence[float]
) -> Array:
    """Return the largest allowed sum of variances of every group under the option ``keep``.

    Parameters
    ----------
    keep : allowed relative increase of the RMSE, for all groups or by group index.
    uniform : sum of variances of every group with uniform centers, shape (groups,).

    Returns
    -------
    Limits in the unit of ``uniform``, shape (groups,); infinite for groups without a constraint.

    Raises
    ------
    PlanError
        If ``keep`` names a group that does not exist.
    """
    count = len(workload.groups)
    shares = keep if isinstance(keep, Mapping) else dict.fromkeys(range(count), keep)
    if max(shares, default=0) >= count:
        raise PlanError(
            f"keep has group {max(shares)}, but the workload has groups 0 to {count - 1}. Give"
            " numbers of these groups."
        )
    limits = np.full(count, math.inf)
    for number, share in shares.items():
        # If the answers of a group follow from public tables, its error is 0 and needs no limit.
        if workload.groups[number].weight > 0.0 and uniform[number] > 0.0:
            limits[number] = uniform[number] * (1.0 + share) ** 2
    return limits


class WeightedPlan(Protocol):
    """A plan for raised group weights."""

    @property
    def error(self) -> float:
        """Square root of the sum of variances with the original weights, at privacy cost 1."""

    def sums(self) -> Array:
        """Return the sum of variances of every group at privacy cost 1, shape (groups,)."""


PlanT = TypeVar("PlanT", bound=WeightedPlan)


def constrained_search(
    build_plan: Callable[[Array], PlanT], sum_limits: Array, may_continue: Callable[[float], bool]
) -> PlanT | None:
    """Search for group weights whose plan satisfies the accuracy constraints.

    Parameters
    ----------
    build_plan : function that takes one factor of at least 1 per group, shape (groups,), and
        returns the plan for the group weights multiplied by these factors.
    sum_limits : largest allowed sum of variances of every group, shape (groups,); infinite for no
        limit.
    may_continue : function that takes the completed share of the work and returns whether to
        continue.  It is called before each step.

    Returns
    -------
    The plan with the smallest error among those that satisfy the constraints, or None.

    Notes
    -----
    The search is a secant method.  Let V_g be the sum of variances of group g and f_g its factor.
    The slope of log V_g as a function of log f_g is estimated from the last two steps, as if V_g
    did not depend on the factors of other groups.
    """
    best, previous = None, None
    logs = np.zeros(len(sum_limits))  # logarithms of the factors
    slopes = np.full(len(sum_limits), INITIAL_SLOPE)
    is_limited = np.isfinite(sum_limits)
    for step in range(MAX_WEIGHT_UPDATES):
        if not may_continue(step / MAX_WEIGHT_UPDATES):
            break
        plan = build_plan(np.exp(logs))
        ratio = np.divide(plan.sums(), sum_limits, out=np.zeros(len(sum_limits)), where=is_limited)
        if (ratio <= 1.0).all() and (best is None or plan.error < best.error):
            best = plan
        # The limits are lowered by ACTIVE_TOLERANCE.  ``excess`` is log(sum / lowered limit).  The
        # search has converged if no excess is positive, and if all groups with a factor above 1
        # have an excess near 0.
        excess = np.log(np.maximum(ratio, 1e-300) / (1.0 - ACTIVE_TOLERANCE))
        if (excess <= 0.0).all() and (excess[logs > 0.0] > -2.0 * ACTIVE_TOLERANCE).all():
            break
        if previous is not None:
            log_changes, excess_changes = logs - previous[0], excess - previous[1]
            # the slope over a smaller change would be inaccurate
            has_changed = np.abs(log_changes) > 1e-6
            slopes[has_changed] = (excess_changes[has_changed] / log_changes[has_changed]).clip(
                -1.0, MAX_SLOPE
            )
        previous = logs, excess
        logs = np.maximum(0.0, logs + (-excess / slopes).clip(-MAX_LOG_STEP, MAX_LOG_STEP))
    return best


def noise_shares(values: Mapping[Space, float]) -> dict[Space, float]:
    """Return the optimal squared noise of every residual space at a total privacy cost of 1.

    The error of a plan is sum_B L_B / c_B.  L_B is the weighted squared error of residual space B
    at privacy cost 1, which ``values`` contains, in counts^2.  c_B is the privacy cost of B.  For a
    fixed sum of c_B, the error is smallest if c_B is proportional to sqrt(L_B).
    """
    total = math.fsum(map(math.sqrt, values.values()))
    return {space: total / math.sqrt(value) for space, value in values.items()}


def separate_bound(decomposition: Decomposition, solutions: Sequence[SpaceSolution]) -> float:
    """Return the lower bound on the weighted sum of variances at privacy cost 1, in counts^2.

    The bound follows from the bounds of the residual spaces.  It holds for plans whose privacy cost
    is the sum of the costs of their blocks.
    """
    return (
        math.fsum(
            math.sqrt(scale * solutions[k].bound) for k, scale in decomposition.spaces.values()
        )
        ** 2
    )


def constrained_bound(
    workload: Workload,
    weights: Array,
    sum_limits: Array,
    total: float,
) -> float:
    """Return the lower bound on the weighted sum of variances under the accuracy constraints.

    Parameters
    ----------
    weights : raised group weights, shape (groups,).
    sum_limits : largest allowed sum of variances of every group, shape (groups,).
    total : lower bound on the sum of variances weighted by ``weights``, in counts^2.
    """
    group_weights = np.array([group.weight for group in workload.groups])
    raised = weights > group_weights
    return max(total - math.fsum((weights - group_weights)[raised] * sum_limits[raised]), 0.0)


# `SeparateWeights.update` multiplies the weight of a query by (variance of the query / mean
# variance) to this power.
UPDATE_EXPONENT = 3.0
# `has_equal_weights` tests a few entries of a Gram matrix of at least this order before it forms
# the whole matrix.
MIN_TESTED_CELLS = 100
# Letters that denote axes in calls of numpy.einsum.
AXES = "abcdefgh"
DROPPED_QUERIES = (
    "Some queries have so little weight compared with others that rounding makes it 0. Choose"
    " weights that differ less, or give these queries the weight 0."
)
# Largest number of query weights in `SeparateWeights`.
MAX_SEPARATE_WEIGHTS = 8_000_000


def has_equal_weights(part: Part) -> bool:
    """Return whether the Gram matrix of queries on one attribute is a I + b 11^T.

    For such a matrix all cells are equivalent by symmetry, and equal query weights are optimal. The
    result is False for a family on several attributes.
    """
    if len(part.sizes) > 1:
        return False
    # These families need no Gram matrix.  On a wide attribute it would be too large.
    if part.family.key in [("marginal",), ("total",)]:
        return True
    if part.sizes[0] >= MIN_TESTED_CELLS:
        has_equal_entries = _has_equal_entries(part)
        if not has_equal_entries or isinstance(part.family, Intervals):
            return has_equal_entries
    gram = part.family.gram(part.sizes)
    off_diagonal = gram[~np.eye(len(gram), dtype=bool)]
    return not np.ptp(np.diag(gram)) and not (len(off_diagonal) and np.ptp(off_diagonal))


def _has_equal_entries(part: Part) -> bool:
    """Return whether a few entries of a Gram matrix agree with the form a I + b 11^T.

    The entries are those of three cells.  The three diagonal entries must be equal, and the three
    off-diagonal entries must be equal.  An interval family passes this test only if its whole Gram
    matrix has the form.
    """
    (n,) = part.sizes
    if isinstance(part.family, Circular):
        return False  # neighbouring cells are in more circular intervals than distant ones
    indicators = np.zeros((n, 3))
    indicators[[0, 1, n // 2], [0, 1, 2]] = 1.0
    counts = part.family.dot(part.sizes, indicators)
    gram = counts.T @ counts
    return bool(gram[0, 0] == gram[1, 1] == gram[2, 2] and gram[0, 1] == gram[0, 2] == gram[1, 2])


def unit_builder(
    decomposition: Decomposition, solutions: list[SpaceSolution], split: Split, schema: Schema
) -> VarianceBuilder:
    """Return the builder of variances for blocks with noise of standard deviation 1.

    There is one block per residual space, with its strategy in ``solutions``.
    """
    blocks = {
        space: Block(
            attributes=space,
            factors=tuple((a, f.strategy) for a, f in solutions[k].factors),
            noise=1.0,
            grid=1.0,
        )
        for space, (k, _) in decomposition.spaces.items()
    }
    return VarianceBuilder(blocks=blocks, split=split, schema=schema)


def dual_norm(
    workload: Workload, goal: Objective, emphasis: Emphasis
) -> tuple[float, Array, list[Array]]:
    """Return the norm of query weights that is dual to the objective, and its gradient.

    Returns
    -------
    norm : the dual norm of the weights ``emphasis``.
    by_class : derivatives of the norm with respect to log(weight), for `Emphasis.weights`, shape
        (classes,).
    by_vector : derivatives of the norm with respect to log(entry), for the entries of
        `Emphasis.vectors`, one array per vector.

    Notes
    -----
    For an objective (sum of w Var^p)^(1/p), the dual norm of query weights u is
    (sum of u^q w^(1-q))^(1/q), with 1/p + 1/q = 1.  For the largest ratio Var / t to a target t,
    the dual norm is the sum of u t.
    """
    q = goal.conjugate
    # index of the first group of every class (set of groups with equal query weights)
    examples = {c: i for i, c in reversed(list(enumerate(emphasis.class_of_group)))}
    sizes = np.bincount(
        [k for k in emphasis.class_of_group if k >= 0], minlength=len(emphasis.weights)
    )
    # sums of u^q w^(1-q) over the queries of each class, and over the queries that contain each
    # entry of each vector
    class_sums = np.zeros(len(emphasis.weights))
    vector_sums = [np.zeros(len(vector)) for vector in emphasis.vectors]
    for number, indices in enumerate(emphasis.vector_indices):
        group, query_factors = workload.groups[examples[number]], np.ones(1)
        scale = sizes[number] * emphasis.weights[number] ** q
        if math.isinf(goal.power):
            scale *= goal.target(examples[number])
        else:
            scale *= group.weight ** (1.0 - q)
            if group.query_weights is not None:
                is_weighted = group.query_weights > 0
                query_factors = np.power(
                    group.query_weights, 1.0 - q, where=is_weighted, out=np.zeros(group.count)
                )
        powers = [query_factors * emphasis.vectors[index] ** q for index in indices]
        power_sums = [float(power.sum()) for power in powers]
        class_sums[number] = scale * math.prod(power_sums)
        for index, power, power_sum in zip(indices, powers, power_sums, strict=True):
            # The sum is 0 if all queries of the group have weight 0.
            if power_sum > 0.0:
                vector_sums[index] += class_sums[number] * power / power_sum
    total = float(class_sums.sum())
    norm = total ** (1.0 / q)
    # The derivative of the norm with respect to log(weight) is the norm times the weight's share of
    # the total.
    return norm, class_sums * norm / total, [sums * norm / total for sums in vector_sums]


def norm_bound(
    workload: Workload,
    goal: Objective,
    emphasis: Emphasis,
    decomposition: Decomposition,
    solutions: list[SpaceSolution],
) -> float:
    """Return the lower bound on the objective (norm of the variances) at privacy cost 1.

    The result is the lower bound on the weighted sum of variances, divided by the dual norm of the
    weights.  ``emphasis`` has the weights.
    """
    return separate_bound(decomposition, solutions) / dual_norm(workload, goal, emphasis)[0]


class SeparateWeights:
    """A separate weight for every query of a workload.

    Parameters
    ----------
    class_queries : queries of every class of equivalent groups.
    emphasis : initial weights.

    Attributes
    ----------
    weights : one array per class of groups, with one axis per table of its `LinearVariances`.  An
        entry is proportional to (query weight * target * number of groups in the class).
    """

    def __init__(self, class_queries: Sequence[ClassQueries], emphasis: Emphasis) -> None:
        self.weights: list[Array] = []
        for queries, class_weight, indices in zip(
            class_queries, emphasis.weights, emphasis.vector_indices, strict=True
        ):
            # An outer product of the vectors has one axis per part (query family).  It is reshaped
            # to one axis per table.
            weights = np.array(queries.groups * class_weight * queries.target)
            for table_families in queries.variances.family_sets:
                for p in table_families:
                    weights = np.multiply.outer(weights, emphasis.vectors[indices[p]])
            self.weights.append(weights.reshape([t.shape[1] for t in queries.variances.tables]))

    @staticmethod
    def fits(class_queries: Sequence[ClassQueries]) -> bool:
        """Return whether the queries are few enough for separate weights."""
        tables_of_classes = [queries.variances.tables for queries in class_queries]
        if any(len(tables) > len(AXES) for tables in tables_of_classes):
            return False
        counts = [math.prod(table.shape[1] for table in tables) for tables in tables_of_classes]
        return sum(int(count) for count in counts) <= MAX_SEPARATE_WEIGHTS

    def update(self, class_queries: Sequence[ClassQueries], noises: Array) -> None:
        """Multiply weights by a power of (variance / mean variance), and scale them to sum 1.

        Variances are relative to their targets.  ``noises`` has the squared noise of every class of
        residual spaces, shape (space classes,).
        """
        variances = []
        for queries in class_queries:
            tables = queries.variances.tables
            axes = AXES[: len(tables)]
            # A variance is a sum over residual spaces s.  The term of s is the noise of s times one
            # entry of each table.
            terms = ",".join(["s", *("s" + a for a in axes)])
            relative_noises = noises[list(queries.spaces)] / queries.target
            variances.append(np.einsum(f"{terms}->{axes}", relative_noises, *tables, optimize=True))
        weighted_sum = math.fsum(
            float(np.vdot(weights, values))
            for weights, values in zip(self.weights, variances, strict=True)
        )
        mean = weighted_sum / math.fsum(float(weights.sum()) for weights in self.weights)
        updated = [
            weights * (values / mean) ** UPDATE_EXPONENT
            for weights, values in zip(self.weights, variances, strict=True)
        ]
        total = math.fsum(float(weights.sum()) for weights in updated)
        self.weights = [weights / total for weights in updated]

    def weighted_variances(
        self,
        class_queries: Sequence[ClassQueries],
        counts: Array,
        noises: Array,
        emphasis: Emphasis,
    ) -> tuple[list[Array], Array]:
        """Return sums of weighted variances over queries, and the best noises for the weights.

        Parameters
        ----------
        counts : number of residual spaces in every class of spaces, shape (space classes,).
        noises : squared noise of every class of spaces at privacy cost 1, shape (space classes,).
        emphasis : factored weights.  The factored weight of a query is a product of entries of
            vectors, one entry per query family of its group.

        Returns
        -------
        sums : one array per vector of ``emphasis``, with the shape of the vector.  An entry is the
            sum of weight times variance over all queries whose factored weight has this entry.
        best_noises : squared noises at privacy cost 1 with the smallest weighted sum of variances,
            shape (space classes,).
        """
        sums = [np.zeros(len(v)) for v in emphasis.vectors]
        # derivative of the weighted sum of variances with respect to the squared noises
        slopes = np.zeros(len(counts))
        for queries, weights, indices in zip(
            class_queries, self.weights, emphasis.vector_indices, strict=True
        ):
            tables = queries.variances.tables
            axes = AXES[: len(tables)]
            for k, (table_families, table) in enumerate(
                zip(queries.variances.family_sets, tables, strict=True)
            ):
                # For every space and every query of table k, sum the weights times the entries of
                # all other tables.
                others = [i for i in range(len(tables)) if i != k]
                inputs = ",".join([axes, *("s" + axes[i] for i in others)])
                output = ("s" if others else "") + axes[k]
                weighted = np.einsum(
                    f"{inputs}->{output}", weights, *(tables[i] for i in others), optimize=True
                )
                by_query = weighted * table / queries.target
                if k == 0:
                    slopes += np.bincount(
                        queries.spaces, by_query.sum(axis=1), minlength=len(counts)
                    )
                tensor = (noises[list(queries.spaces)] @ by_query).reshape(
                    [len(sums[indices[p]]) for p in table_families]
                )
                for i, p in enumerate(table_families):
                    sums[indices[p]] += tensor.sum(
                        axis=tuple(a for a in range(len(table_families)) if a != i)
                    )
        best_noises = np.sqrt(counts / np.maximum(slopes, 1e-300))
        return sums, best_noises * float(np.sum(counts / best_noises))


def log_gains(target: Array, current: Array) -> Array:
    """Return changes of the logarithms of weights that move ``current`` towards ``target``.

    Both arguments are sums of weighted variances, one per query of a family, shape (queries,).  The
    result is log(target / current) minus its weighted mean with the weights ``target``, clipped to
    [-1, 1].  If all entries of ``target`` are 0, all changes are 0.
    """
    if not target.any():
        return np.zeros(len(target))
    ratio = np.log(np.maximum(target, 1e-300) / np.maximum(current, 1e-300))
    return np.clip(ratio - float(target @ ratio) / float(target.sum()), -1.0, 1.0)


# Largest number of steps of a search for query weights.  Each step solves the weighted sum of
# variances once.
MAX_SOLVES = 40
# The search stops when the standard error exceeds its lower bound by at most this share.
STOP_GAP = 1e-5
# Relative gaps of the objective at which the optimization of budget shares ends: in the first
# steps, and at the end of the search.
FIRST_SHARE_GAP = 1e-4
FINAL_SHARE_GAP = 1e-7
# After the first plan, the gap of strategy searches is STRATEGY_GAP_FACTOR times the squared length
# of the last step of the query weights.  The gap is at most MAX_STRATEGY_GAP.
MAX_STRATEGY_GAP, STRATEGY_GAP_FACTOR = 1e-3, 0.1
# Budget shares are optimized again when the next step of the query weights is short.  A step is
# short if its length is at most SMALL_STEP, or at most RESHARE_STEP_RATIO times the length at the
# last optimization.
RESHARE_STEP_RATIO = 0.6
SMALL_STEP = 0.02
# A step gains little if it lowers the gap by less than this share of the gap. After such a step,
# `SeparateWeights` can be tried.  They end after two steps with little gain.
SMALL_GAIN_SHARE = 0.05
# Largest decrease of the logarithm of a factored weight while `SeparateWeights` are tried.
MAX_LOG_DROP = 0.3
# Number of steps that the Anderson acceleration combines.
ANDERSON_MEMORY = 8
# The Anderson acceleration ignores singular values below this share of the largest one.
ANDERSON_CUTOFF = 1e-3
# A step is rejected if it lowers the logarithm of the lower bound by more than this.
MAX_LOG_SETBACK = 1e-3
# The search stops after more than MAX_STALE_STEPS consecutive steps in which neither the plan nor
# the bound improves by more than the share MIN_PROGRESS.
MIN_PROGRESS = 1e-4
MAX_STALE_STEPS = 6
# Each weight is divided by its initial weight.  In a vector, the largest of these ratios is at most
# exp(MAX_LOG_RANGE) times the smallest.  A much smaller weight would remove its query from the Gram
# matrix by rounding.
MAX_LOG_RANGE = 12.0
# A group of several query families has one weight per query, instead of factored weights, on two
# conditions. The workload has at most MAX_FULL_DOMAIN_QUERIES queries, and the table of the group
# has at most MAX_FULL_DOMAIN_CELLS cells.
MAX_FULL_DOMAIN_QUERIES = 20_000
MAX_FULL_DOMAIN_CELLS = 400
# Optimal strategies for the weighted sum of variances: (decomposition, solutions, dual weights,
# termination messages).
SolveResult = tuple[Decomposition, list[SpaceSolution], tuple[Array, ...], tuple[str, ...]]
# Function of (workload, initial dual weights, target gap) that minimises the weighted sum.
Solve = Callable[[Workload, tuple[Array, ...], float], SolveResult]


@dataclass(frozen=True, kw_only=True, eq=False)
class Candidate:
    """Query weights of one step of the search, with their plan and their lower bound.

    Attributes
    ----------
    emphasis : the query weights.
    point : log(weight / initial weight), shape (variables,); see `TradeoffSearch.emphasis`.
    decomposition, solutions, duals, endings : strategies for these weights; see `SolveResult`.
    noises : squared noise of every class of residual spaces at privacy cost 1.
    bound : lower bound on the objective that the weights prove.
    class_queries : variances of the queries of every class of groups.
    step_length : weighted root mean square of log(gain / cost), see `TradeoffSearch.evaluate`.  It
        is 0 at the optimum.
    value : objective of the plan.  It is infinite until the budget shares are optimized.
    """

    emphasis: Emphasis
    point: Array
    decomposition: Decomposition
    solutions: list[SpaceSolution]
    duals: tuple[Array, ...]
    endings: tuple[str, ...]
    noises: Array
    bound: float
    class_queries: list[ClassQueries]
    step_length: float
    value: float = math.inf


def has_weight_per_query(group: Group, n_queries: int) -> bool:
    """Return whether a group has one weight per query in place of factored weights.

    ``n_queries`` is the number of queries of all groups of the workload.
    """
    return group.query_weights is not None or (
        len(group.parts) > 1
        and n_queries <= MAX_FULL_DOMAIN_QUERIES
        and math.prod(group.sizes) <= MAX_FULL_DOMAIN_CELLS
    )


class TradeoffSearch:
    """Search for the query weights that prove the largest lower bound on the objective.

    Parameters
    ----------
    workload : queries with their weights.
    goal : objective.
    split : decomposition of queries into residual spaces.
    labels : mapping from attribute to label.  Attributes with different labels get different
        strategies; see `ResidualMechanism.axis_labels`.
    solve : function that minimises the weighted sum of variances; see `Solve`.
    tell : progress callback with a fraction and a text.
    deadline : time after which no further plan is computed, on the clock of `planning_time`.  A
        first plan is always computed.
    best_error : objective of another plan.  The search stops when its lower bound reaches this
        value.
    """

    def __init__(
        self,
        workload: Workload,
        goal: Objective,
        split: Split,
        labels: Mapping[str, Hashable],
        solve: Solve,
        tell: Callable[[float, str], None],
        deadline: float,
        best_error: float = math.inf,
    ) -> None:
        self.workload, self.goal, self.split, self.labels = workload, goal, split, labels
        self.best_error = best_error
        self.solve, self.tell, self.deadline, self.started = solve, tell, deadline, planning_time()
        spaces = list(decompose(workload, split, labels).spaces)
        self.classes: Symmetry = symmetry(workload, spaces, goal, labels, split)
        self.best: Candidate | None = None  # the candidate with the smallest objective
        self.witness: Candidate | None = None  # the candidate with the largest lower bound
        # A candidate with a small `Candidate.step_length` whose budget shares were not optimized
        # yet. `run` optimizes them at the end.
        self.pending: Candidate | None = None
        self.reshare_step = math.inf  # step length when budget shares were last optimized
        self.step_length = math.inf  # step length of the last candidate
        self.evaluations = self.stale_steps = 0
        self.last_duals: tuple[Array, ...] = ()
        self.last_candidate: Candidate | None = None
        self._define_variables()

    def _define_variables(self) -> None:
        """Define the variables of the search: class weights, and the vectors of factored weights.

        A point of the search is an array of the logarithms of (variable / initial value), first
        for the class weights, then for the entries of all vectors.
        """
        groups = [self.workload.groups[i] for i in self.classes.examples]
        # With few queries, a group has one vector with one weight per query.  Such weights are more
        # general than factored weights.
        n_queries = sum(g.count for g in self.workload.groups)
        index_of_key: dict[Any, int] = {}
        self.initial_vectors: list[Array] = []
        vector_indices, self.single_vector = [], []
        for c, group in enumerate(groups):
            per_query = has_weight_per_query(group, n_queries)
            self.single_vector.append(per_query)
            if per_query:
                keys: list[Any] = [("group", c)]
                initial = [
                    np.ones(group.count) if group.query_weights is None else group.query_weights
                ]
            else:
                keys, initial = [], []
                # In groups with several parts (product factors), equal parts on equivalent
                # attributes share one vector. So the query weights on every residual space are a
                # product over attributes. Groups in which several parts have inequivalent queries
                # need other weights, so they share vectors only with each other.
                inequivalent = sum(not has_equal_weights(part) for part in group.parts)
                for part in group.parts:
                    classes_of_axes = tuple(
                        self.classes.spaces.get((group.attributes[a],), -1) for a in part.axes
                    )
                    names = tuple(self.workload.schema[group.attributes[a]].name for a in part.axes)
                    if len(group.parts) == 1:
                        keys.append(("group", c))
                    else:
                        # The class of an attribute is -1 if there is no residual space on it alone.
                        attribute_key = classes_of_axes if min(classes_of_axes) >= 0 else names
                        keys.append((inequivalent > 1, part.key, attribute_key))
                    initial.append(np.ones(part.count))
            for key, vector in zip(keys, initial, strict=True):
                if key not in index_of_key:
                    index_of_key[key] = len(self.initial_vectors)
                    self.initial_vectors.append(vector)
            vector_indices.append(tuple(index_of_key[key] for key in keys))
        self.vector_indices = tuple(vector_indices)
        self.targets = np.array([self.goal.target(i) for i in self.classes.examples])
        self.weights = np.array([g.weight for g in groups])
        # ``vector_slices[i]`` is the slice of the search variables that contains vector i.
        ends = np.cumsum([len(groups), *(len(v) for v in self.initial_vectors)])
        self.vector_slices = [slice(a, b) for a, b in itertools.pairwise(ends)]
        self.variables = int(ends[-1])
        # `SeparateWeights` are tried at most once, and only for the objective "max" with factored
        # weights for all groups.
        self.tried_separate_weights = not math.isinf(self.goal.power) or any(self.single_vector)

    def emphasis(self, x: Array) -> Emphasis:
        """Return the query weights at a point of the search.

        The point ``x`` has one entry log(weight / initial weight) per variable, shape (variables,).
        Class weights come first, then the entries of all vectors.
        """
        vectors = []
        for initial, vector_slice in zip(self.initial_vectors, self.vector_slices, strict=True):
            # The scale of all weights of a class is in its class weight. So every vector is scaled
            # such that its largest log ratio is 0.
            logs = x[vector_slice] - x[vector_slice].max()
            is_unchanged = np.abs(logs).max(initial=0.0) < 1e-9
            vectors.append(initial if is_unchanged else initial * np.exp(logs))
        return Emphasis(
            class_of_group=self.classes.class_of_group,
            weights=self.weights * np.exp(x[: len(self.weights)]),
            vector_indices=self.vector_indices,
            single_vector=tuple(self.single_vector),
            vectors=tuple(vectors),
        )

    def evaluate(self, x: Array) -> tuple[float, Array, Array, Array]:
        """Compute plan and lower bound at a point of the search, and update the best of both.

        Two derivatives with respect to log(weight) are used.  The gain of a weight is the
        derivative of log(weighted sum of variances), and the cost is the derivative of log(dual
        norm).

        Returns
        -------
        value : log(weighted sum of variances / dual norm), or minus infinity if rounding made some
            weights 0, so that there is no plan.
        ratio : log(gain / cost) of every weight, shape (variables,).
        costs : cost of every weight, shape (variables,).
        multipliers : multiplier of every class of groups in the optimal budget shares, shape
            (classes,).  If shares were not optimized, the number of groups in every class.

        Raises
        ------
        StopIteration
            If the search is over, see `_update_best`.
        TimeoutError
            If the deadline has passed and there is a plan.
        """
        if planning_time() > self.deadline and self.best is not None:
            raise TimeoutError
        emphasis = self.emphasis(x)
        self.evaluations += 1
        decomposition, solutions, duals, endings = self.solve(
            emphasis.apply(self.workload), self.last_duals, self._strategy_gap()
        )
        self.last_duals = duals
        # A residual space is missing if rounding made the weights of all queries on it 0.
        if set(decomposition.spaces) != set(self.classes.spaces):
            return -math.inf, np.zeros(len(x)), np.ones(len(x)), self.classes.sizes
        values = {s: scale * solutions[k].value for s, (k, scale) in decomposition.spaces.items()}
        norm, by_class, by_vector = dual_norm(self.workload, self.goal, emphasis)
        costs = np.concatenate([by_class, *by_vector]) / norm
        total = math.fsum(math.sqrt(v) for v in values.values())
        noises = np.zeros(len(self.classes.counts))
        for space, space_class in self.classes.spaces.items():
            # The noise is optimal for the weighted sum.  `_optimise_shares` may replace it by noise
            # that is optimal for the objective.
            noises[space_class] = total / math.sqrt(values[space])
        builder = unit_builder(decomposition, solutions, self.split, self.workload.schema)
        queries = queries_by_class(self.workload, builder, self.classes, self.goal)
        if queries is None:
            return -math.inf, np.zeros(len(x)), np.ones(len(x)), self.classes.sizes
        gains = self._variance_gradient(emphasis, builder, queries, noises) / total**2
        # At the largest bound, the gain of every weight equals its cost.  So a fixed-point
        # iteration adds log(gain / cost) to the logarithms of the weights.
        ratio = np.log(np.maximum(gains, 1e-300) / np.maximum(costs, 1e-300))
        candidate = Candidate(
            emphasis=emphasis,
            point=x,
            decomposition=decomposition,
            solutions=solutions,
            duals=duals,
            endings=endings,
            noises=noises,
            bound=norm_bound(self.workload, self.goal, emphasis, decomposition, solutions),
            class_queries=queries,
            step_length=math.sqrt(
                float(costs @ self._free_ratio(x, ratio) ** 2) / float(costs.sum())
            ),
        )
        self.step_length, self.last_candidate = candidate.step_length, candidate
        multipliers = self._update_best(candidate)
        return 2.0 * math.log(total) - math.log(norm), ratio, costs, multipliers

    def _strategy_gap(self) -> float:
        """Return the gap at which the next strategy search may stop.

        The result is 0 before the first plan.  Later it is proportional to the squared step length
        and at most `MAX_STRATEGY_GAP`.  The mechanism raises it to its option ``gap``.
        """
        if self.best is None:
            return 0.0
        return min(MAX_STRATEGY_GAP, STRATEGY_GAP_FACTOR * self.step_length**2)

    def _share_gap(self) -> float:
        """Return the gap at which the next optimization of budget shares may stop."""
        if self.best is None or self.witness is None:
            return FIRST_SHARE_GAP
        # Gaps below a tenth of STOP_GAP would not change the result of the search.
        target = max(0.1 * STOP_GAP, 0.02 * (self.best.value / self.witness.bound - 1.0))
        return min(FIRST_SHARE_GAP, target)

    def _optimise_shares(self, candidate: Candidate, gap: float) -> Array:
        """Optimize the budget shares of a candidate, and update the best plan.

        Returns the multipliers of all classes of groups (`Shares.class_multipliers`), shape
        (classes,).
        """
        allocation = best_shares(
            candidate.class_queries, self.classes.counts, self.goal, candidate.noises, gap
        )
        # the candidate no longer waits for the optimization of its shares
        self.pending = None if self.pending is candidate else self.pending
        if allocation.value < candidate.value:
            improved = replace(candidate, noises=allocation.noises, value=allocation.value)
            # The witness (the candidate with the best bound) is replaced by the same object, so
            # that a plan file stores the weights of the best plan and of the best bound only once.
            if self.witness is candidate:
                self.witness = improved
            if self.best is None or improved.value < self.best.value:
                self.best = improved
        return allocation.class_multipliers

    def _update_best(self, candidate: Candidate) -> Array:
        """Update the best plan and the best bound.

        Returns one number per class of groups, shape (classes,): its multiplier
        (`Shares.class_multipliers`) if the budget shares were optimized, otherwise its number of
        groups.

        Raises
        ------
        StopIteration : the search is over, or the first weights have no plan.
        """
        has_progress = False
        if self.witness is None or candidate.bound > self.witness.bound:
            has_progress = self.witness is None or candidate.bound > self.witness.bound * (
                1.0 + MIN_PROGRESS
            )
            self.witness = candidate
        if self.pending is None or candidate.step_length < self.pending.step_length:
            self.pending = candidate
        multipliers = self.classes.sizes
        # The optimization of budget shares takes as long as a step of the weights.  It is of little
        # use while the weights change much.
        if candidate.step_length <= max(RESHARE_STEP_RATIO * self.reshare_step, SMALL_STEP):
            self.reshare_step = candidate.step_length
            best_value = math.inf if self.best is None else self.best.value
            multipliers = self._optimise_shares(candidate, self._share_gap())
            has_progress = (
                has_progress
                or self.best is None
                or self.best.value < best_value * (1.0 - MIN_PROGRESS)
            )
        self.stale_steps = 0 if has_progress else self.stale_steps + 1
        # There is no plan for the first weights if some query has an infinite error. `run` raises
        # the error.
        if self.best is None:
            raise StopIteration
        gap = math.sqrt(self.best.value / self.witness.bound) - 1.0
        self.tell(self.evaluations / MAX_SOLVES, f"Reweighting the queries, gap {gap:.1e}")
        if (
            gap <= STOP_GAP
            or self.stale_steps > MAX_STALE_STEPS
            or self.evaluations >= MAX_SOLVES
            or self._cannot_improve()
        ):
            raise StopIteration
        return multipliers

    def _cannot_improve(self) -> bool:
        """Return whether the lower bound shows that no plan has an error below ``best_error``."""
        return self.witness is not None and self.witness.bound >= self.best_error

    def _variance_gradient(
        self,
        emphasis: Emphasis,
        builder: VarianceBuilder,
        queries: list[ClassQueries],
        noises: Array,
    ) -> Array:
        """Return the gradient of the weighted sum of variances, for fixed strategies and noises.

        The variables are the logarithms of all weights, in the order of a point of the search;
        shape (variables,).
        """
        gradient = np.zeros(self.variables)
        for number, indices in enumerate(emphasis.vector_indices):
            group = self.workload.groups[self.classes.examples[number]]
            class_queries = queries[number]
            # A group with one vector of weights for all its queries is treated like a group with
            # one part (product factor).
            if self.single_vector[number]:
                tables = linear_variances(builder.group(group), np.ones(group.count)).tables
                sets: Sequence[tuple[int, ...]] = [(0,)]
                shapes: list[tuple[int, ...]] = [(group.count,)]
            else:
                tables, sets = class_queries.variances.tables, class_queries.variances.family_sets
                shapes = [tuple(group.parts[p].count for p in parts) for parts in sets]
            scales = (
                noises[list(class_queries.spaces)]
                * self.classes.sizes[number]
                * emphasis.weights[number]
            )
            if not indices:
                gradient[number] += float(scales @ tables[0][:, 0])
                continue
            vectors = [emphasis.vectors[index] for index in indices]
            part_sums, table_sums = _sums_of_tables(tables, sets, shapes, vectors)
            gradient[number] += float(scales @ np.prod(table_sums, axis=0))
            for table, table_parts in enumerate(sets):
                other_sums = [sums for i, sums in enumerate(table_sums) if i != table]
                factors = scales * np.prod(other_sums, axis=0)
                for p in table_parts:
                    gradient[self.vector_slices[indices[p]]] += factors @ part_sums[p]
        return gradient

    def run(self) -> Candidate:
        """Run the search, and return the candidate with the best plan.

        Afterwards ``witness`` is the candidate whose weights prove the best lower bound.

        Raises
        ------
        PlanError
            If rounding makes the weights of some queries 0, so that there is no plan.
        """
        with contextlib.suppress(StopIteration, TimeoutError):
            *_, multipliers = self.evaluate(np.zeros(self.variables))
            group_counts = np.array([self.workload.groups[i].count for i in self.classes.examples])
            by_query = multipliers / (group_counts * self.classes.sizes)
            # The multipliers are good initial class weights.  Small multipliers are raised, because
            # weights must be positive.
            logs = np.log(np.maximum(by_query, 1e-5 * by_query.max()) / self.weights / self.targets)
            vector_logs = np.zeros(self.variables - len(logs))
            self._climb(np.concatenate([logs - logs.max(), vector_logs]))
        if self.best is None or self.witness is None:
            raise PlanError(DROPPED_QUERIES)
        if (
            not self.tried_separate_weights
            and self.best.value > self.witness.bound * (1.0 + STOP_GAP) ** 2
            and not self._cannot_improve()
        ):
            with contextlib.suppress(StopIteration, TimeoutError):
                self._try_separate_weights(self.best)
        for candidate in filter(None, (self.pending, self.best)):
            self._optimise_shares(candidate, FINAL_SHARE_GAP)
        return self.best

    def _climb(self, x: Array) -> None:
        """Iterate fixed-point steps from the point ``x``, with Anderson acceleration.

        The iteration ends when `evaluate` raises StopIteration or TimeoutError, or if there is no
        plan for the point ``x``.
        """
        # The fixed-point step changes the logarithm of a weight by log(gain / cost) times this
        # factor.
        step_size = 1.0 / self.goal.conjugate
        # the last accepted points, and the fixed-point step at each point
        points: list[Array] = []
        steps: list[Array] = []
        accepted_value, step_factor = -math.inf, 1.0
        accepted_point, accepted_step = x, np.zeros(len(x))
        while True:
            previous_bound = 0.0 if self.witness is None else self.witness.bound
            value, ratio, costs, _ = self.evaluate(x)
            # There is no plan for the initial weights.  `run` raises the error.
            if self.best is None or self.witness is None:
                return
            if self._should_try_separate_weights(self.witness.bound - previous_bound):
                self._try_separate_weights(self.best)
            if not math.isfinite(value) or value < accepted_value - MAX_LOG_SETBACK:
                # The point is rejected.  Half, then a quarter, ... of the last accepted step is
                # tried.
                step_factor *= 0.5
                x = self._clip_range(accepted_point + step_factor * accepted_step)
                points, steps = [], []
                continue
            step_factor, step = 1.0, step_size * ratio
            accepted_value, accepted_point, accepted_step = value, x, step
            points = [*points[1 - ANDERSON_MEMORY :], x]
            steps = [*steps[1 - ANDERSON_MEMORY :], step]
            x = x + step
            if len(points) > 1:
                dx, df = np.diff(points, axis=0).T, np.diff(steps, axis=0).T
                # The logarithm of a weight that tends to 0 does not converge.  The cost of such a
                # weight is small, so scaling by costs removes it from the least squares problem.
                scale = np.sqrt(costs)
                gamma = np.linalg.lstsq(scale[:, None] * df, scale * step, rcond=ANDERSON_CUTOFF)[0]
                x = x - (dx + df) @ gamma
            x = self._clip_range(x)

    def _should_try_separate_weights(self, bound_gain: float) -> bool:
        """Return whether the search with factored weights has almost ended.

        The result is always False in the first half of the available time, and after separate
        weights were tried.  ``bound_gain`` is the increase of the lower bound by the last step.
        """
        if self.best is None or self.witness is None or self.tried_separate_weights:
            return False
        return (
            planning_time() > 0.5 * (self.started + self.deadline)
            and self.step_length <= SMALL_STEP
            and bound_gain < SMALL_GAIN_SHARE * (self.best.value - self.witness.bound)
        )

    def _try_separate_weights(self, first: Candidate) -> None:
        """Improve the plan by `SeparateWeights`, until two consecutive steps gain little.

        Separate weights are one weight per query.  They are more general than factored weights,
        where the weight of a query is a product of vector entries.  Each step first updates the
        separate weights by the variances of the last candidate.  Then it changes every vector entry
        such that its queries have nearly the same sum of weight times variance under both kinds of
        weights.  Nothing is done if there are too many queries for separate weights.  ``first`` is
        the first candidate.
        """
        self.tried_separate_weights, stalled_steps = True, 0
        if not SeparateWeights.fits(first.class_queries):
            return
        separate_weights = SeparateWeights(first.class_queries, first.emphasis)
        candidate, noises = first, first.noises
        while stalled_steps < 2 and self.best is not None:
            previous_value, self.stale_steps = self.best.value, 0
            # This value makes `_update_best` optimize the budget shares.
            self.reshare_step = math.inf
            separate_weights.update(candidate.class_queries, noises)
            target_sums, best_noises = separate_weights.weighted_variances(
                candidate.class_queries, self.classes.counts, noises, candidate.emphasis
            )
            builder = unit_builder(
                candidate.decomposition, candidate.solutions, self.split, self.workload.schema
            )
            current_sums = self._variance_gradient(
                candidate.emphasis, builder, candidate.class_queries, noises
            )
            x = candidate.point.copy()
            for vector_slice, target in zip(self.vector_slices, target_sums, strict=True):
                x[vector_slice] += log_gains(target, current_sums[vector_slice])
            # With a weight near 0, the variance of a query could become infinite.
            x, noises = np.maximum(x, first.point - MAX_LOG_DROP), best_noises
            if not math.isfinite(self.evaluate(x)[0]) or self.last_candidate is None:
                return
            candidate = self.last_candidate
            largest_gain = previous_value - (self.witness.bound if self.witness else 0.0)
            has_gained = previous_value - self.best.value > SMALL_GAIN_SHARE * largest_gain
            stalled_steps = 0 if has_gained else stalled_steps + 1

    def _free_ratio(self, x: Array, ratio: Array) -> Array:
        """Set negative entries of ``ratio`` to 0 if `_clip_range` undoes a decrease of the weight.

        It undoes a decrease of a weight at its lower limit, and of the largest weight of a vector.
        """
        return np.where((self._clip_range(x - 1e-9 * (ratio < 0)) >= x) & (ratio < 0), 0.0, ratio)

    def _clip_range(self, x: Array) -> Array:
        """Limit the range of logarithms in each vector of the point ``x``, and return the result.

        A constant is added to each vector, so that its maximum is 0.  Then entries below
        -`MAX_LOG_RANGE` are raised to this value.  The class weights count as one vector.
        """
        clipped = x.copy()
        for vector_slice in [slice(0, len(self.weights)), *self.vector_slices]:
            logs = clipped[vector_slice]
            clipped[vector_slice] = np.maximum(logs - logs.max(), -MAX_LOG_RANGE)
        return clipped

    def tradeoff(self) -> Tradeoff:
        """Return noises and query weights of the best plan and bound, for a plan file."""
        assert self.best is not None
        assert self.witness is not None
        witness = None if self.witness is self.best else self.witness.emphasis
        shares = np.array(
            [self.best.noises[self.classes.spaces[s]] for s in self.best.decomposition.spaces]
        )
        return Tradeoff(shares=shares, emphasis=self.best.emphasis, witness=witness)


def _sums_of_tables(
    tables: Sequence[Array],
    sets: Sequence[tuple[int, ...]],
    shapes: Sequence[tuple[int, ...]],
    vectors: Sequence[Array],
) -> tuple[dict[int, Array], list[Array]]:
    """Return weighted sums of the entries of each table.

    A query of a table combines one query of each of several parts (query families).  The weight of
    an entry is the product of the weights of these queries.

    Parameters
    ----------
    tables : tables of `LinearVariances`, shape (spaces, queries of the table).
    sets : indices of the parts that each table combines.
    shapes : number of queries of each of these parts.
    vectors : weights of the queries of every part, shape (queries,).

    Returns
    -------
    part_sums : mapping from part index to an array, shape (spaces, queries of the part).  An entry
        is the sum over all queries of the table that contain this query of the part.
    table_sums : sums over all queries of each table, one array of shape (spaces,) per table.
    """
    part_sums: dict[int, Array] = {}
    table_sums = []
    for table_parts, shape, table in zip(sets, shapes, tables, strict=True):
        tensor = table.reshape(len(table), *shape)
        for p in table_parts:
            others = [None if q == p else vectors[q] for q in table_parts]
            part_sums[p] = contract(tensor, others, 1) * vectors[p]
        table_sums.append(part_sums[table_parts[0]].sum(axis=1))
    return part_sums, table_sums
