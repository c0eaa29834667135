"""Reweighting of queries for other objectives and for accuracy constraints.

Other objectives
----------------
Objectives other than the weighted sum of variances are norms of the variances.  For query weights u
the solver of the mechanism returns the strategies and budget shares that minimise the sum of
variances weighted by u, and a lower bound on this sum.  The lower bound, divided by the dual norm
of u, is a lower bound on the objective.  `TradeoffSearch` maximises this quotient over factored
weights (products of one vector per part of a group).  Each step multiplies every weight by the
ratio of its gain (share of the weighted variance) to its cost (share of the dual norm); by the
envelope theorem the gradient of the weighted sum has the query variances as entries.  Anderson
acceleration combines successive steps.  From time to time, and at every step near the end, budget
shares that are optimal for the objective itself are computed for the current strategies.  The
search stores the best plan and the best bound.  Its first step uses the weights of the workload, so
the result is never worse than the strategies for the weighted sum with optimal shares.

If no factored weights attain the optimum, `PointWeights` improves the best plan.  It stores a
separate weight for every query, which rises for queries above the mean variance and falls for
queries below it.  Solvers require factored weights, so these are then changed until their margins
approach the margins of the separate weights.

Source: Weighted Fourier Factorizations, lemma 3.10, for marginals; factored weights are an
extension of this project.

Accuracy constraints
--------------------
Tuning lowers the weighted sum of variances, but may raise the variances of single groups.  An
accuracy constraint limits the variance of a group relative to its variance with uniform centers.
Let V_g be the sum of variances of group g, w_g its weight and T_g the largest allowed V_g.  The
search raises weights w_g to u_g until the optimal plan for the weights u satisfies the constraints.
This plan is optimal for the weights w under the constraints if every group has V_g = T_g or
u_g = w_g; the differences u_g - w_g are the Lagrange multipliers.  Whether the search has converged
or not, every plan that satisfies the constraints has

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
from engine.plans.linear_variances import linear_variances
from engine.plans.objectives import (
    ClassQueries,
    Emphasis,
    Objective,
    Symmetry,
    best_shares,
    queries_by_class,
    symmetry,
)
from engine.plans.solver_state import Tradeoff
from engine.plans.variance_builder import VarianceBuilder
from engine.residuals import Space, Split, contract
from engine.residuals.decomposition import Decomposition, decompose
from engine.residuals.subworkload_solver import SpaceSolution
from engine.workload import Circular, Part, Schema, Workload
from engine.workload.families import Intervals

# Largest number of updates of the group weights under accuracy constraints.
MAX_WEIGHT_UPDATES = 20
# An accuracy constraint V_g <= T_g counts as an equality if V_g is within this share of T_g.
ACTIVE_TOLERANCE = 1e-3
# Accuracy constraints may be exceeded by this share, because noise is rounded to a grid.
GRID_TOLERANCE = 1e-6
# Secant method for log u_g: initial estimate of the slope of log V_g with respect to log u_g.
INITIAL_SLOPE = -0.5
# Estimates of the slope are at most MAX_SLOPE, and a step changes log u_g by at most MAX_LOG_STEP.
MAX_SLOPE, MAX_LOG_STEP = -0.03, 2.0


def checked_keep(keep: Any) -> float | dict[int, float]:
    """Check the option ``keep`` and return it as one number, or as a mapping sorted by group
    number.

    The option has the allowed relative increase of the RMSE: one number for all groups, or a
    mapping from group number to number.  Group numbers may be strings, as in JSON.

    Raises
    ------
    PlanError
        If a share or a group number is invalid.

    >>> checked_keep({"0": 0.05})
    {0: 0.05}
    """
    several = isinstance(keep, Mapping)
    try:
        # `operator.index` refuses fractions, which `int` would round
        keys = list(keep) if several else []
        numbers = [int(key) if isinstance(key, str) else operator.index(key) for key in keys]
    except (TypeError, ValueError):
        numbers = [-1]
    shares = list(keep.values()) if several else [keep]
    are_valid = all(is_number(share) and 0.0 <= share < math.inf for share in shares)
    if not are_valid or min(numbers, default=0) < 0:
        raise PlanError(
            f"keep is {str(keep)[:60]}. Give the share by which the error of a group may increase,"
            " 0 or more: one number for all groups, or a mapping from group numbers to numbers,"
            " such as {0: 0.05}."
        )
    return dict(sorted(zip(numbers, map(float, shares), strict=True))) if several else float(keep)


def variance_limits(
    keep: float | Mapping[int, float], workload: Workload, uniform: Sequence[float]
) -> Array:
    """Return the largest allowed sum of variances of every group under the option ``keep``.

    Parameters
    ----------
    keep : relative increase of the RMSE, for all groups or by group number.
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
        # groups of error 0, whose answers follow from exact totals, need no constraint
        if workload.groups[number].weight > 0.0 and uniform[number] > 0.0:
            limits[number] = uniform[number] * (1.0 + share) ** 2
    return limits


class WeightedPlan(Protocol):
    """A plan for modified group weights, with its error for the original weights."""

    @property
    def error(self) -> float:
        """Root of the weighted sum of variances at privacy cost 1."""

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
    may_continue : function that is called with the completed share of the work before each step,
        and returns whether to continue.

    Returns
    -------
    Of the plans that satisfy the constraints, the one with the smallest error; None if no plan of
    the search satisfies them.
    """
    best, previous = None, None
    # logarithms of the factors, and estimated slopes of log V_g with respect to these logarithms
    logs = np.zeros(len(sum_limits))
    slopes = np.full(len(sum_limits), INITIAL_SLOPE)
    is_limited = np.isfinite(sum_limits)
    for step in range(MAX_WEIGHT_UPDATES):
        if not may_continue(step / MAX_WEIGHT_UPDATES):
            break
        plan = build_plan(np.exp(logs))
        ratio = np.divide(plan.sums(), sum_limits, out=np.zeros(len(sum_limits)), where=is_limited)
        if (ratio <= 1.0).all() and (best is None or plan.error < best.error):
            best = plan
        # ``excess`` compares with limits that are lowered by ACTIVE_TOLERANCE.  The search has
        # converged if no group exceeds its lowered limit, and every group with a raised weight is
        # at most twice the tolerance below it.
        excess = np.log(np.maximum(ratio, 1e-300) / (1.0 - ACTIVE_TOLERANCE))
        if (excess <= 0.0).all() and (excess[logs > 0.0] > -2.0 * ACTIVE_TOLERANCE).all():
            break
        # the slope of a group depends on the weights of all groups, so it is estimated from the
        # last two steps (secant method)
        if previous is not None:
            log_changes, excess_changes = logs - previous[0], excess - previous[1]
            has_changed = np.abs(log_changes) > 1e-6
            slopes[has_changed] = (excess_changes[has_changed] / log_changes[has_changed]).clip(
                -1.0, MAX_SLOPE
            )
        previous = logs, excess
        logs = np.maximum(0.0, logs + (-excess / slopes).clip(-MAX_LOG_STEP, MAX_LOG_STEP))
    return best


def noise_shares(values: Mapping[Space, float]) -> dict[Space, float]:
    """Return the optimal squared noise of every residual space at a total privacy cost of 1.

    ``values`` has for each space B the weighted squared error L_B at privacy cost 1, in counts^2.
    The error is the sum of L_B / pcost_B.  By the Cauchy-Schwarz inequality it is smallest, for a
    fixed sum of the pcost_B, if pcost_B is proportional to sqrt(L_B).
    """
    total = math.fsum(map(math.sqrt, values.values()))
    return {space: total / math.sqrt(value) for space, value in values.items()}


def separate_bound(parts: Decomposition, solutions: Sequence[SpaceSolution]) -> float:
    """Return the lower bound on the weighted sum of variances at privacy cost 1, in counts^2.

    The bound follows from the bounds of the residual spaces.  It holds for plans whose privacy cost
    is the sum of the costs of their blocks.
    """
    return (
        math.fsum(math.sqrt(scale * solutions[k].bound) for k, scale in parts.spaces.values()) ** 2
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
    weights : modified group weights, at least those of the workload, shape (groups,).
    sum_limits : largest allowed sum of variances of every group, shape (groups,).
    total : lower bound on the sum of variances weighted by ``weights``, in counts^2.
    """
    group_weights = np.array([group.weight for group in workload.groups])
    raised = weights > group_weights
    return max(total - math.fsum((weights - group_weights)[raised] * sum_limits[raised]), 0.0)


# In an update of `PointWeights`, the weight of a query is multiplied by
# (variance of the query / mean variance) to this power.
UPDATE_EXPONENT = 3.0
# With at least this many cells, a few entries of a Gram matrix are tested before all of them.
MIN_TESTED_CELLS = 100
# Letters for the axes of tables in calls of einsum.
AXES = "abcdefgh"
DROPPED_QUERIES = (
    "Some queries have so little weight compared with others that rounding makes it 0. Choose"
    " weights that differ less, or give these queries the weight 0."
)
# Largest number of weights in `PointWeights`.
MAX_POINT_WEIGHTS = 8_000_000


def has_equal_weights(part: Part) -> bool:
    """Return whether the Gram matrix of queries on one attribute is a I + b 11^T.

    All cells are then equivalent by symmetry, and equal weights of the queries are optimal.  The
    result is False for a part on several attributes.
    """
    if len(part.sizes) > 1:
        return False
    # forecasts must not compute the Gram matrix of a wide attribute
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
    """Return whether the Gram matrix of interval queries is a I + b 11^T, by a few of its entries.

    The diagonal entries of three cells must be equal, and so must the entries of their pairs.  This
    decides the question for interval families, of which only the marginal and the total, also as
    windows of width 1 or of all cells, pass the test.
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
    parts: Decomposition, solutions: list[SpaceSolution], split: Split, schema: Schema
) -> VarianceBuilder:
    """Return the builder of variances for one block per residual space, each with noise of standard
    deviation 1."""
    blocks = {
        space: Block(
            attributes=space,
            factors=tuple((a, f.strategy) for a, f in solutions[k].factors),
            noise=1.0,
            grid=1.0,
        )
        for space, (k, _) in parts.spaces.items()
    }
    return VarianceBuilder(blocks=blocks, split=split, schema=schema)


def dual_norm(
    workload: Workload, goal: Objective, emphasis: Emphasis
) -> tuple[float, Array, list[Array]]:
    """Return the norm of query weights that is dual to the objective, and its gradient.

    Returns
    -------
    norm : the dual norm of the weights ``emphasis``.
    by_class : derivative by the logarithms of `Emphasis.weights`, shape (classes,).
    by_vector : derivative by the logarithms of the entries of `Emphasis.vectors`, one array per
        vector.

    Notes
    -----
    For an objective (sum of w Var^p)^(1/p), the dual norm of query weights u is
    (sum of u^q w^(1-q))^(1/q), with 1/p + 1/q = 1.  For the largest ratio Var / t to a target t,
    the dual norm is the sum of u t.
    """
    q = goal.conjugate
    # the first group of every class, and the number of groups in it
    examples = {c: i for i, c in reversed(list(enumerate(emphasis.class_of_group)))}
    sizes = np.bincount(
        [k for k in emphasis.class_of_group if k >= 0], minlength=len(emphasis.weights)
    )
    by_class = np.zeros(len(emphasis.weights))
    by_vector = [np.zeros(len(v)) for v in emphasis.vectors]
    for c, indices in enumerate(emphasis.vector_indices):
        group, query_factors = workload.groups[examples[c]], np.ones(1)
        scale = sizes[c] * emphasis.weights[c] ** q
        if math.isinf(goal.power):
            scale *= goal.target(examples[c])
        else:
            scale *= group.weight ** (1.0 - q)
            if group.query_weights is not None:
                used = group.query_weights > 0
                query_factors = np.power(
                    group.query_weights, 1.0 - q, where=used, out=np.zeros(group.count)
                )
        powers = [query_factors * emphasis.vectors[k] ** q for k in indices]
        sums = [float(p.sum()) for p in powers]
        by_class[c] = scale * math.prod(sums)
        for k, power, power_sum in zip(indices, powers, sums, strict=True):
            # if all queries of a group have weight 0, avoid the division 0 / 0
            if power_sum > 0.0:
                by_vector[k] += by_class[c] * power / power_sum
    total = float(by_class.sum())
    norm = total ** (1.0 / q)
    return norm, by_class * norm / total, [v * norm / total for v in by_vector]


def norm_bound(
    workload: Workload,
    goal: Objective,
    emphasis: Emphasis,
    parts: Decomposition,
    solutions: list[SpaceSolution],
) -> float:
    """Return the lower bound on the objective (norm of the variances) at privacy cost 1.

    It is the lower bound on the weighted sum of the variances for the weights ``emphasis``, divided
    by the dual norm of these weights.
    """
    return separate_bound(parts, solutions) / dual_norm(workload, goal, emphasis)[0]


class PointWeights:
    """A separate weight for every query, instead of products of one vector per part of a group.

    Equivalent groups form a class and have equal weights, so weights are stored for one group per
    class.

    Parameters
    ----------
    class_queries : queries of every class of groups.
    emphasis : initial weights, as products of one vector per part of a group.
    """

    def __init__(self, class_queries: Sequence[ClassQueries], emphasis: Emphasis) -> None:
        # For every class of groups, an array of (query weight * target), with one axis per table of
        # its `LinearVariances`.
        self.weights: list[Array] = []
        for queries, class_weight, indices in zip(
            class_queries, emphasis.weights, emphasis.vector_indices, strict=True
        ):
            weights = np.array(queries.groups * class_weight * queries.target)
            for table_families in queries.variances.family_sets:
                for p in table_families:
                    weights = np.multiply.outer(weights, emphasis.vectors[indices[p]])
            self.weights.append(weights.reshape([t.shape[1] for t in queries.variances.tables]))

    @staticmethod
    def fits(class_queries: Sequence[ClassQueries]) -> bool:
        """Return whether the queries are few enough for separate weights."""
        return all(len(one.variances.tables) <= len(AXES) for one in class_queries) and (
            sum(math.prod(len(t.T) for t in one.variances.tables) for one in class_queries)
            <= MAX_POINT_WEIGHTS
        )

    def update(self, class_queries: Sequence[ClassQueries], noises: Array) -> None:
        """Raise the weights of queries above the mean variance, and lower those of all others.

        ``noises`` has the squared noise of every class of residual spaces, shape (space classes,).
        """
        # variances relative to their targets
        variances = []
        for queries in class_queries:
            tables = queries.variances.tables
            axes = AXES[: len(tables)]
            # s is the index of the residual space, over which the products of tables are summed
            terms = ",".join(["s", *("s" + a for a in axes)])
            relative_noises = noises[list(queries.spaces)] / queries.target
            variances.append(np.einsum(f"{terms}->{axes}", relative_noises, *tables, optimize=True))
        total = math.fsum(float(w.sum()) for w in self.weights)
        weighted_sum = math.fsum(
            float(np.vdot(w, v)) for w, v in zip(self.weights, variances, strict=True)
        )
        mean = weighted_sum / total
        updated = [
            w * (v / mean) ** UPDATE_EXPONENT for w, v in zip(self.weights, variances, strict=True)
        ]
        total = math.fsum(float(w.sum()) for w in updated)
        self.weights = [w / total for w in updated]

    def weighted_variances(
        self,
        class_queries: Sequence[ClassQueries],
        counts: Array,
        noises: Array,
        emphasis: Emphasis,
    ) -> tuple[list[Array], Array]:
        """Return sums of weighted variances over queries, and the best noises for these weights.

        Parameters
        ----------
        counts : number of residual spaces in every class of spaces, shape (space classes,).
        noises : squared noise of every class of spaces at privacy cost 1, shape (space classes,).
        emphasis : factored weights, which determine the shapes of the result.

        Returns
        -------
        sums : for every vector of ``emphasis`` and each of its entries, the sum of weight times
            variance over the queries that use the entry.
        best_noises : squared noises at privacy cost 1 with the smallest weighted sum of variances,
            shape (space classes,).
        """
        sums = [np.zeros(len(v)) for v in emphasis.vectors]
        # derivative of the weighted sum of variances by the squared noises
        slopes = np.zeros(len(counts))
        for queries, weights, indices in zip(
            class_queries, self.weights, emphasis.vector_indices, strict=True
        ):
            tables = queries.variances.tables
            axes = AXES[: len(tables)]
            for k, (table_families, table) in enumerate(
                zip(queries.variances.family_sets, tables, strict=True)
            ):
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
    """Return log(target / current) minus its mean weighted by ``target``, clipped to [-1, 1].

    Both arguments are weighted variances of the queries of a part, shape (queries,).  If all
    entries of ``target`` are 0, the result has only zeros.
    """
    if not target.any():
        return np.zeros(len(target))
    ratio = np.log(np.maximum(target, 1e-300) / np.maximum(current, 1e-300))
    return np.clip(ratio - float(target @ ratio) / float(target.sum()), -1.0, 1.0)


# Largest number of steps of a search for query weights; each step solves the weighted sum once.
MAX_SOLVES = 40
# For forecasts: factor by which a solve takes longer if spaces have different query weights.
SEPARATE_SOLVE_FACTOR = 2.0
# The search stops when the standard error exceeds its lower bound by at most this share.
STOP_GAP = 1e-5
# Target gap of the budget shares in the first steps, and of the final plan.
FIRST_SHARE_GAP = 1e-4
FINAL_SHARE_GAP = 1e-7
# Target gap of the strategies in intermediate steps: MAX_STRATEGY_GAP, or STRATEGY_GAP_FACTOR times
# the squared length of the last step of the weights if that is less.
MAX_STRATEGY_GAP, STRATEGY_GAP_FACTOR = 1e-3, 0.1
# Budget shares are optimized again when the step length is at most this share of the step length at
# their last optimization, or at most SMALL_STEP.
RESHARE_STEP_RATIO = 0.6
SMALL_STEP = 0.02
# If a step lowers the gap by less than this share, separate query weights are tried.
SMALL_GAIN_SHARE = 0.05
# While separate query weights are tried, the logarithm of an entry of a vector falls by at most
# this much in total.
MAX_LOG_DROP = 0.3
# Number of previous steps that the Anderson acceleration combines.
ANDERSON_MEMORY = 8
# Cutoff of small singular values in the Anderson acceleration, relative to the largest.
ANDERSON_CUTOFF = 1e-3
# A step that lowers the logarithm of the lower bound by more than this is rejected.
MAX_LOG_SETBACK = 1e-3
# The search stops after more than MAX_STALE_STEPS steps that improve neither plan nor bound by at
# least the share MIN_PROGRESS.
MIN_PROGRESS = 1e-4
MAX_STALE_STEPS = 6
# Weights within a vector differ by at most exp(MAX_LOG_RANGE), so that no query vanishes from the
# Gram matrix.
MAX_LOG_RANGE = 12.0
# A group has a separate weight for every query if the workload has at most MAX_FULL_DOMAIN_QUERIES
# queries and the table of the group has at most MAX_FULL_DOMAIN_CELLS cells. The residual spaces of
# the group are then solved densely.
MAX_FULL_DOMAIN_QUERIES = 20_000
MAX_FULL_DOMAIN_CELLS = 400
# Result of one solve: decomposition, solutions, dual weights and termination messages.
SolveResult = tuple[Decomposition, list[SpaceSolution], tuple[Array, ...], tuple[str, ...]]
# Function of workload, initial dual weights and target gap.
Solve = Callable[[Workload, tuple[Array, ...], float], SolveResult]


@dataclass(frozen=True, kw_only=True, eq=False)
class Candidate:
    """Query weights of one step of the search, with the plan and the lower bound they define.

    Attributes
    ----------
    emphasis : the query weights.
    point : the logarithms that define them; see `TradeoffSearch.emphasis`.
    parts, solutions, duals, endings : result of the solve for these weights; see `SolveResult`.
    noises : squared noise of every class of residual spaces at privacy cost 1.
    bound : lower bound on the objective that the weights prove.
    class_queries : variances of the queries of every class of groups.
    step_length : weighted root mean square of the next step of the logarithms; 0 at the optimum.
    value : objective of the plan; infinite until the budget shares are optimized.
    """

    emphasis: Emphasis
    point: Array
    parts: Decomposition
    solutions: list[SpaceSolution]
    duals: tuple[Array, ...]
    endings: tuple[str, ...]
    noises: Array
    bound: float
    class_queries: list[ClassQueries]
    step_length: float
    value: float = math.inf


class TradeoffSearch:
    """Search for the query weights that prove the largest lower bound on the objective.

    Parameters
    ----------
    goal : objective.
    split : decomposition of queries into residual spaces.
    labels : attributes with different labels get different strategies; see
        `ResidualMechanism.axis_labels`.
    solve : function that minimises the weighted sum of variances for a workload, initial dual
        weights and a target gap of the standard error; see `SolveResult`.
    tell : progress callback with a fraction and a text.
    deadline : time at which the search stops, on the clock of `planning_time`.
    best_error : objective of another plan; the search stops when its bound reaches this value.
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
        # candidate with the smallest objective, and candidate with the largest lower bound
        self.best: Candidate | None = None
        self.witness: Candidate | None = None
        # candidate with the smallest step length since the last optimization of budget shares
        self.pending: Candidate | None = None
        # step length at the last optimization of budget shares, and of the last candidate
        self.reshare_step = math.inf
        self.step_length = math.inf
        self.evaluations = self.stale_steps = 0
        self.last_duals: tuple[Array, ...] = ()
        self.last_candidate: Candidate | None = None
        self._define_variables()

    def _define_variables(self) -> None:
        """Define the variables of the search: class weights and vectors of factored weights.

        A point of the search is an array of their logarithms, first those of the class weights.
        """
        groups = [self.workload.groups[i] for i in self.classes.examples]
        # a separate weight per query is more general than factored weights, but possible only if
        # there are few queries
        has_few_queries = sum(g.count for g in self.workload.groups) <= MAX_FULL_DOMAIN_QUERIES
        index_of_key: dict[Any, int] = {}
        self.initial_vectors: list[Array] = []
        vector_indices, self.single_vector = [], []
        for c, group in enumerate(groups):
            cells = math.prod(group.sizes)
            per_query = group.query_weights is not None or (
                len(group.parts) > 1 and has_few_queries and cells <= MAX_FULL_DOMAIN_CELLS
            )
            self.single_vector.append(per_query)
            if per_query:
                keys: list[Any] = [("group", c)]
                initial = [
                    np.ones(group.count) if group.query_weights is None else group.query_weights
                ]
            else:
                keys, initial = [], []
                # Equal parts on equivalent attributes share one vector, even if their groups
                # differ, so that the query weights on every residual space are a product over
                # attributes. Groups with several parts of inequivalent queries need other weights
                # than groups with at most one such part, so the two kinds of groups do not share
                # vectors.
                inequivalent = sum(not has_equal_weights(part) for part in group.parts)
                for part in group.parts:
                    classes_of_axes = tuple(
                        self.classes.spaces.get((group.attributes[a],), -1) for a in part.axes
                    )
                    names = tuple(self.workload.schema[group.attributes[a]].name for a in part.axes)
                    if len(group.parts) == 1:
                        keys.append(("group", c))
                    else:
                        # an attribute without a residual space on it alone is in no class
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
        # positions of every vector in a point of the search
        ends = np.cumsum([len(groups), *(len(v) for v in self.initial_vectors)])
        self.windows = [slice(a, b) for a, b in itertools.pairwise(ends)]
        self.variables = int(ends[-1])
        # `PointWeights` are tried at most once, and only for the objective "max" if all weights are
        # factored.
        self.tried_query_weights = not math.isinf(self.goal.power) or any(self.single_vector)

    def emphasis(self, x: Array) -> Emphasis:
        """Return the query weights at a point of the search.

        The point ``x`` has the logarithms of (weight / initial weight), first for the classes, then
        for the entries of all vectors.
        """
        vectors = []
        for initial, window in zip(self.initial_vectors, self.windows, strict=True):
            # scale to largest entry 1, because a common factor belongs to the class weight
            logs = x[window] - x[window].max()
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
        """Evaluate the lower bound for the weights at a point; update the best plan and bound.

        Returns
        -------
        value : log(weighted sum of variances / dual norm).  It exceeds the logarithm of the lower
            bound if the strategies are not exactly optimal.  Minus infinity if rounding of the
            weights drops residual spaces, so that there is no plan.
        ratio : log(gain / cost) of every weight, shape of ``x``; gain and cost are the derivatives
            of the logarithms of the weighted sum and of the dual norm by the logarithm of the
            weight.
        costs : these costs, shape of ``x``.
        multipliers : multiplier of every class of groups in the budget allocation, shape
            (classes,); the sizes of the classes if the allocation was not computed.

        Raises
        ------
        StopIteration, TimeoutError
            The search has converged (StopIteration), or its deadline has passed (TimeoutError).
        """
        if planning_time() > self.deadline and self.best is not None:
            raise TimeoutError
        emphasis = self.emphasis(x)
        self.evaluations += 1
        parts, solutions, duals, endings = self.solve(
            emphasis.apply(self.workload), self.last_duals, self._strategy_gap()
        )
        self.last_duals = duals
        # if weights differ very much, rounding can drop residual spaces, and then there is no plan
        if set(parts.spaces) != set(self.classes.spaces):
            return -math.inf, np.zeros(len(x)), np.ones(len(x)), self.classes.sizes
        values = {s: scale * solutions[k].value for s, (k, scale) in parts.spaces.items()}
        norm, by_class, by_vector = dual_norm(self.workload, self.goal, emphasis)
        # derivatives of the logarithm of the dual norm
        costs = np.concatenate([by_class, *by_vector]) / norm
        total = math.fsum(math.sqrt(v) for v in values.values())
        noises = np.zeros(len(self.classes.counts))
        for space, space_class in self.classes.spaces.items():
            # These noises are optimal for the weighted sum.  For the objective itself they are the
            # start of a later optimization.
            noises[space_class] = total / math.sqrt(values[space])
        builder = unit_builder(parts, solutions, self.split, self.workload.schema)
        queries = queries_by_class(self.workload, builder, self.classes, self.goal)
        if queries is None:
            return -math.inf, np.zeros(len(x)), np.ones(len(x)), self.classes.sizes
        # derivatives of the logarithm of the weighted sum of variances
        gains = self._variance_gradient(emphasis, builder, queries, noises) / total**2
        # The bound is the weighted sum divided by the dual norm, so gains equal costs at the
        # optimum, and a step of the logarithms by log(gain / cost) is a fixed-point iteration.
        ratio = np.log(np.maximum(gains, 1e-300) / np.maximum(costs, 1e-300))
        candidate = Candidate(
            emphasis=emphasis,
            point=x,
            parts=parts,
            solutions=solutions,
            duals=duals,
            endings=endings,
            noises=noises,
            bound=norm_bound(self.workload, self.goal, emphasis, parts, solutions),
            class_queries=queries,
            step_length=math.sqrt(
                float(costs @ self._free_ratio(x, ratio) ** 2) / float(costs.sum())
            ),
        )
        self.step_length, self.last_candidate = candidate.step_length, candidate
        multipliers = self._update_best(candidate)
        return 2.0 * math.log(total) - math.log(norm), ratio, costs, multipliers

    def _strategy_gap(self) -> float:
        """Return the target gap of the next strategy searches, 0 for that of the mechanism.

        It is 0 before the first plan, and then proportional to the squared length of the last step,
        but at most `MAX_STRATEGY_GAP`.
        """
        if self.best is None:
            return 0.0
        return min(MAX_STRATEGY_GAP, STRATEGY_GAP_FACTOR * self.step_length**2)

    def _share_gap(self) -> float:
        """Return the target gap of the next optimization of budget shares."""
        if self.best is None or self.witness is None:
            return FIRST_SHARE_GAP
        # a target below a tenth of STOP_GAP would not change the result
        target = max(0.1 * STOP_GAP, 0.02 * (self.best.value / self.witness.bound - 1.0))
        return min(FIRST_SHARE_GAP, target)

    def _optimise_shares(self, candidate: Candidate, gap: float) -> Array:
        """Optimize the budget shares of a candidate and update the best plan.

        Returns `Shares.class_multipliers` of the optimal budget shares, shape (classes of groups,).
        """
        allocation = best_shares(
            candidate.class_queries, self.classes.counts, self.goal, candidate.noises, gap
        )
        self.pending = None if self.pending is candidate else self.pending
        if allocation.value < candidate.value:
            improved = replace(candidate, noises=allocation.noises, value=allocation.value)
            # if one candidate has both the best plan and the best bound, it must remain one object,
            # so that a plan file stores its weights once
            if self.witness is candidate:
                self.witness = improved
            if self.best is None or improved.value < self.best.value:
                self.best = improved
        return allocation.class_multipliers

    def _update_best(self, candidate: Candidate) -> Array:
        """Update the best plan and bound; raise StopIteration if the search is over.

        Returns the multipliers of the classes of groups in the budget allocation, or the sizes of
        the classes if it was not computed.
        """
        progress = False
        if self.witness is None or candidate.bound > self.witness.bound:
            progress = self.witness is None or candidate.bound > self.witness.bound * (
                1.0 + MIN_PROGRESS
            )
            self.witness = candidate
        if self.pending is None or candidate.step_length < self.pending.step_length:
            self.pending = candidate
        multipliers = self.classes.sizes
        # optimizing budget shares takes as long as a step, and is of little use while the weights
        # still change much
        if candidate.step_length <= max(RESHARE_STEP_RATIO * self.reshare_step, SMALL_STEP):
            self.reshare_step = candidate.step_length
            before = math.inf if self.best is None else self.best.value
            multipliers = self._optimise_shares(candidate, self._share_gap())
            progress = (
                progress or self.best is None or self.best.value < before * (1.0 - MIN_PROGRESS)
            )
        self.stale_steps = 0 if progress else self.stale_steps + 1
        # there is no plan if some query has an infinite error, and `run` raises an error
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
        """Return whether the lower bound shows that no plan is better than ``best_error``."""
        return self.witness is not None and self.witness.bound >= self.best_error

    def _variance_gradient(
        self,
        emphasis: Emphasis,
        builder: VarianceBuilder,
        queries: list[ClassQueries],
        noises: Array,
    ) -> Array:
        """Return the gradient of the weighted sum of variances by the logarithms of all weights.

        Strategies and noises are fixed.  The gradient has shape (variables,), in the order of a
        point of the search.
        """
        gradient = np.zeros(self.variables)
        for c, indices in enumerate(emphasis.vector_indices):
            group = self.workload.groups[self.classes.examples[c]]
            # a group with a single vector is treated as one part with all its queries
            if self.single_vector[c]:
                tables = linear_variances(builder.group(group), np.ones(group.count)).tables
                sets: Sequence[tuple[int, ...]] = [(0,)]
                shapes: list[tuple[int, ...]] = [(group.count,)]
            else:
                tables, sets = queries[c].variances.tables, queries[c].variances.family_sets
                shapes = [tuple(group.parts[p].count for p in t) for t in sets]
            scales = noises[list(queries[c].spaces)] * self.classes.sizes[c] * emphasis.weights[c]
            if not indices:
                gradient[c] += float(scales @ tables[0][:, 0])
                continue
            # part_sums: for each part, the weighted table summed over the queries of all other
            # parts of this table, shape (spaces, queries).  table_sums: for each table, the sum
            # over all queries, shape (spaces,).
            part_sums: dict[int, Array] = {}
            table_sums = []
            for table_families, shape, table in zip(sets, shapes, tables, strict=True):
                tensor = table.reshape(len(scales), *shape)
                for p in table_families:
                    others = [
                        None if q == p else emphasis.vectors[indices[q]] for q in table_families
                    ]
                    part_sums[p] = contract(tensor, others, 1) * emphasis.vectors[indices[p]]
                table_sums.append(part_sums[table_families[0]].sum(axis=1))
            gradient[c] += float(scales @ np.prod(table_sums, axis=0))
            for k, table_families in enumerate(sets):
                other_sums = [t for i, t in enumerate(table_sums) if i != k]
                factors = scales * np.prod(other_sums, axis=0)
                for p in table_families:
                    gradient[self.windows[indices[p]]] += factors @ part_sums[p]
        return gradient

    def run(self) -> Candidate:
        """Run the search and return the candidate with the best plan.

        The attribute ``witness`` is then the candidate whose weights prove the best lower bound.

        Raises
        ------
        PlanError
            If rounding makes the weights of some queries 0, so that there is no plan.
        """
        with contextlib.suppress(StopIteration, TimeoutError):
            *_, multipliers = self.evaluate(np.zeros(self.variables))
            group_counts = np.array([self.workload.groups[i].count for i in self.classes.examples])
            by_query = multipliers / (group_counts * self.classes.sizes)
            # the multipliers are good initial class weights, but weights must be positive
            logs = np.log(np.maximum(by_query, 1e-5 * by_query.max()) / self.weights / self.targets)
            vector_logs = np.zeros(self.variables - len(logs))
            self._climb(np.concatenate([logs - logs.max(), vector_logs]))
        if self.best is None or self.witness is None:
            raise PlanError(DROPPED_QUERIES)
        if (
            not self.tried_query_weights
            and self.best.value > self.witness.bound * (1.0 + STOP_GAP) ** 2
            and not self._cannot_improve()
        ):
            with contextlib.suppress(StopIteration, TimeoutError):
                self._try_query_weights(self.best)
        for candidate in filter(None, (self.pending, self.best)):
            self._optimise_shares(candidate, FINAL_SHARE_GAP)
        return self.best

    def _climb(self, x: Array) -> None:
        """Iterate fixed-point steps from ``x`` with Anderson acceleration.

        The iteration ends when `evaluate` raises StopIteration or TimeoutError.
        """
        step_size = 1.0 / self.goal.conjugate
        # the last points, and the fixed-point step at each of them
        points: list[Array] = []
        steps: list[Array] = []
        # the last accepted point, with its log bound and its step; after a rejected point the step
        # is repeated at half the length
        accepted_value, accepted_point, accepted_step = -math.inf, x, np.zeros(len(x))
        step_factor = 1.0
        while True:
            before = 0.0 if self.witness is None else self.witness.bound
            value, ratio, costs, _ = self.evaluate(x)
            # without a plan for the initial weights, `run` raises an error
            if self.best is None or self.witness is None:
                return
            gained, gap = self.witness.bound - before, self.best.value - self.witness.bound
            if (
                self._should_try_query_weights()
                and self.step_length <= SMALL_STEP
                and gained < SMALL_GAIN_SHARE * gap
            ):
                self._try_query_weights(self.best)
            if not math.isfinite(value) or value < accepted_value - MAX_LOG_SETBACK:
                # backtrack: a shorter step from the last accepted point, without acceleration
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
                # weights that tend to 0 never converge; scaling by their cost lets the least
                # squares fit ignore them
                scale = np.sqrt(costs)
                gamma = np.linalg.lstsq(scale[:, None] * df, scale * step, rcond=ANDERSON_CUTOFF)[0]
                x = x - (dx + df) @ gamma
            x = self._clip_range(x)

    def _should_try_query_weights(self) -> bool:
        """Return whether separate query weights are untried and half of the time has passed."""
        return not self.tried_query_weights and planning_time() > 0.5 * (
            self.started + self.deadline
        )

    def _try_query_weights(self, first: Candidate) -> None:
        """Improve the plan by separate query weights, as long as that helps; see `PointWeights`.

        ``first`` is the candidate to start from.  Each step changes the factored weights so that
        the weighted variances per vector entry approach those for the separate weights.
        """
        self.tried_query_weights, stalled_steps = True, 0
        if not PointWeights.fits(first.class_queries):
            return
        point_weights = PointWeights(first.class_queries, first.emphasis)
        candidate, noises = first, first.noises
        while stalled_steps < 2 and self.best is not None:
            # an infinite `reshare_step` makes `_update_best` optimize the shares at every step
            before, self.stale_steps, self.reshare_step = self.best.value, 0, math.inf
            point_weights.update(candidate.class_queries, noises)
            target_sums, best_noises = point_weights.weighted_variances(
                candidate.class_queries, self.classes.counts, noises, candidate.emphasis
            )
            builder = unit_builder(
                candidate.parts, candidate.solutions, self.split, self.workload.schema
            )
            current_sums = self._variance_gradient(
                candidate.emphasis, builder, candidate.class_queries, noises
            )
            x = candidate.point.copy()
            for window, target in zip(self.windows, target_sums, strict=True):
                x[window] += log_gains(target, current_sums[window])
            # the limit on decreases keeps weights from approaching 0, where variances are infinite
            x, noises = np.maximum(x, first.point - MAX_LOG_DROP), best_noises
            if not math.isfinite(self.evaluate(x)[0]) or self.last_candidate is None:
                return
            candidate = self.last_candidate
            gap = before - (self.witness.bound if self.witness else 0.0)
            has_gained = before - self.best.value > SMALL_GAIN_SHARE * gap
            stalled_steps = 0 if has_gained else stalled_steps + 1

    def _free_ratio(self, x: Array, ratio: Array) -> Array:
        """Return ``ratio`` with 0 for weights that would decrease but are at their lower limit."""
        return np.where((self._clip_range(x - 1e-9 * (ratio < 0)) >= x) & (ratio < 0), 0.0, ratio)

    def _clip_range(self, x: Array) -> Array:
        """Shift and clip the logarithms of each vector to the range from -`MAX_LOG_RANGE` to 0.

        The class weights are treated as one vector.
        """
        out = x.copy()
        for window in [slice(0, len(self.weights)), *self.windows]:
            logs = out[window]
            out[window] = np.maximum(logs - logs.max(), -MAX_LOG_RANGE)
        return out

    def tradeoff(self) -> Tradeoff:
        """Return noises and query weights of the best plan and bound, for a plan file."""
        assert self.best is not None
        assert self.witness is not None
        witness = None if self.witness is self.best else self.witness.emphasis
        shares = np.array(
            [self.best.noises[self.classes.spaces[s]] for s in self.best.parts.spaces]
        )
        return Tradeoff(shares=shares, emphasis=self.best.emphasis, witness=witness)
