"""Iterative reweighting of queries for objectives other than the weighted sum.

For query weights u the solver of the mechanism returns strategies and budget shares that are
optimal for the weighted sum, together with a certificate.  The lower bound on the weighted sum,
divided by the dual norm of u, bounds the objective of every plan of the class.
`TradeoffSearch` maximises this bound over factored weights (products of one vector per part of a
group).  Each step multiplies every weight by the ratio of its gain to its cost; by the envelope
theorem the query variances are the gradient.  Anderson acceleration combines successive steps.
From time to time, and at every step near the end, the strategies get the optimal budget shares for
the objective itself.  The search stores the best plan and the best bound.  Its first step uses the
weights of the workload, so the result is never worse than the strategies for the weighted sum with
optimal shares.

If no product of vectors attains the optimum, `PointWeights` improves the best plan.  It stores a
separate weight for every query, which rises for queries above the mean variance and falls for
queries below it.  The factored weights, for which solvers are available, then follow the gains of
the separate weights.

Source: Weighted Fourier Factorizations, lemma 3.10, for marginals; factored weights are an
extension of this project.

Accuracy constraints of groups relative to uniform centers, enforced by reweighting.

Tuning lowers the weighted sum of variances and may raise the variances of single groups.  Let V_g
be the sum of variances of group g, w_g its weight and T_g the largest allowed V_g.  Modified
weights u_g >= w_g act as Lagrange multipliers, with u_g = w_g for inactive constraints: the optimal
plan for u is optimal for w among plans that satisfy the constraints if, for every group,
V_g = T_g or u_g = w_g.  Before convergence the bound remains valid:

    sum of w V >= sum of u V - sum of (u - w) T
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import numpy as np

from engine._arrays import Array
from engine._clock import planning_time
from engine.errors import PlanError
from engine.plans import Block
from engine.plans.objectives import (
    ClassQueries,
    Emphasis,
    Objective,
    Symmetry,
    best_shares,
    footprints,
    symmetry,
)
from engine.plans.solver_state import Tradeoff
from engine.plans.variance import Footprint, VarianceBuilder, footprint
from engine.residuals import Space, Split, contract
from engine.residuals.decomposition import Decomposition, decompose
from engine.residuals.subworkload_solver import SpaceSolution
from engine.workload import Part, Workload

# Largest number of updates of the weights.
MAX_WEIGHT_UPDATES = 20
# Relative distance of V_g to T_g at which an active constraint counts as satisfied with equality.
ACTIVE_TOLERANCE = 1e-3
# Relative tolerance for rounding the noise to its grid.
GRID_TOLERANCE = 1e-6
# Slope of log V_g in log u_g for a workload of one group, the initial value of the secant method.
INITIAL_SLOPE = -0.5
# Largest (flattest) slope that is used, and largest change of the logarithm of a weight.
MAX_SLOPE, MAX_LOG_STEP = -0.03, 2.0


def checked_keep(keep: Any) -> float | dict[int, float]:
    """Validate the option ``keep``: one share for all groups, or shares by group number.

    Keys may be strings, as in JSON.

    Raises
    ------
    PlanError
        If a share or a group number is invalid.

    >>> checked_keep({"0": 0.05})
    {0: 0.05}
    """
    several = isinstance(keep, Mapping)
    try:
        numbers = [int(number) for number in keep] if several else []
    except (TypeError, ValueError):
        numbers = [-1]
    shares = list(keep.values()) if several else [keep]
    real = all(
        isinstance(v, (int, float)) and not isinstance(v, bool) and 0.0 <= v < math.inf
        for v in shares
    )
    if not real or min(numbers, default=0) < 0:
        raise PlanError(
            f"keep was {str(keep)[:60]}. Give the share by which the error of a group may rise,"
            " from 0: one number for all groups, or a mapping from group numbers to shares, such"
            " as {0: 0.05}."
        )
    return dict(sorted(zip(numbers, map(float, shares), strict=True))) if several else float(keep)


def most_allowed(
    keep: float | Mapping[int, float], workload: Workload, uniform: Sequence[float]
) -> Array:
    """Return the largest allowed sum of variances of every group, infinity without constraint.

    Parameters
    ----------
    keep : relative increase of the RMSE, for all groups or by group number.
    uniform : sum of variances of every group with uniform centers, shape (groups,).

    Returns
    -------
    Limits in the units of ``uniform``, shape (groups,).

    Raises
    ------
    PlanError
        If ``keep`` names a group that does not exist.
    """
    count = len(workload.groups)
    shares = keep if isinstance(keep, Mapping) else dict.fromkeys(range(count), keep)
    if max(shares, default=0) >= count:
        raise PlanError(
            f"keep names group {max(shares)}, but the workload has groups 0 to {count - 1}."
        )
    most = np.full(count, math.inf)
    for number, share in shares.items():
        # Groups answered by exact totals have no error.
        if workload.groups[number].weight > 0.0 and uniform[number] > 0.0:
            most[number] = uniform[number] * (1.0 + share) ** 2
    return most


class WeightedPlan(Protocol):
    """A plan for modified group weights, with its error for the original weights."""

    @property
    def error(self) -> float:
        """Root of the weighted sum of variances at privacy cost 1."""

    def sums(self) -> Array:
        """Return the sum of variances of every group at privacy cost 1, shape (groups,)."""


M = TypeVar("M", bound=WeightedPlan)


def constrained_search(
    make: Callable[[Array], M], most: Array, go_on: Callable[[float], bool]
) -> M | None:
    """Search for the best plan that satisfies the constraints; None if there is no such plan.

    Parameters
    ----------
    make : returns the plan for factors of the group weights, shape (groups,), at least 1.
    most : largest allowed sum of variances of every group, shape (groups,).
    go_on : called with the completed share of the work; returns whether to continue.
    """
    best, previous = None, None
    logs, slopes = np.zeros(len(most)), np.full(len(most), INITIAL_SLOPE)
    for step in range(MAX_WEIGHT_UPDATES):
        if not go_on(step / MAX_WEIGHT_UPDATES):
            break
        plan = make(np.exp(logs))
        excess = np.divide(plan.sums(), most, out=np.zeros(len(most)), where=np.isfinite(most))
        if (excess <= 1.0).all() and (best is None or plan.error < best.error):
            best = plan
        excess = np.log(np.maximum(excess, 1e-300) / (1.0 - ACTIVE_TOLERANCE))
        if (excess <= 0.0).all() and (excess[logs > 0.0] > -2.0 * ACTIVE_TOLERANCE).all():
            break
        # One group among many responds weakly to its weight: update the slopes by the secant
        # method.
        if previous is not None:
            moved = np.abs(logs - previous[0]) > 1e-6
            slopes[moved] = ((excess - previous[1])[moved] / (logs - previous[0])[moved]).clip(
                -1.0, MAX_SLOPE
            )
        previous = logs, excess
        logs = np.maximum(0.0, logs + (-excess / slopes).clip(-MAX_LOG_STEP, MAX_LOG_STEP))
    return best


def noise_shares(values: Mapping[Space, float]) -> dict[Space, float]:
    """Return the optimal squared noise of every space at privacy cost 1, in counts^2.

    By Cauchy and Schwarz, the sum of L_B / pcost_B over spaces with errors L_B and a fixed sum of
    pcost_B is smallest for pcost_B proportional to sqrt(L_B).
    """
    total = math.fsum(map(math.sqrt, values.values()))
    return {space: total / math.sqrt(value) for space, value in values.items()}


def separate_bound(parts: Decomposition, solutions: Sequence[SpaceSolution]) -> float:
    """Return the lower bound on the weighted sum of variances with separate sensitivities.

    The privacy cost is the sum of the costs of the blocks.
    """
    return (
        math.fsum(math.sqrt(scale * solutions[k].bound) for k, scale in parts.spaces.values()) ** 2
    )


def constrained_bound(
    workload: Workload,
    weights: Array,
    most: Array,
    total: float,
) -> float:
    """Return the lower bound on the weighted sum of variances under the accuracy constraints.

    Parameters
    ----------
    weights : modified group weights, shape (groups,).
    most : largest allowed sum of variances of every group, shape (groups,).
    total : lower bound on the sum of variances weighted by ``weights``.
    """
    group_weights = np.array([group.weight for group in workload.groups])
    raised = weights > group_weights
    return max(total - math.fsum((weights - group_weights)[raised] * most[raised]), 0.0)


# Exponent of variance over mean variance in the update of the weight of a query.
UPDATE_EXPONENT = 3.0
# Index letters of the tables in Einstein sums.
AXES = "abcdefgh"
LOST = (
    "Some queries weigh so little compared with others that they are lost in rounding. Bring the"
    " weights closer together, or give those queries the weight 0."
)
# Largest number of separate query weights.
MAX_POINT_WEIGHTS = 8_000_000


def has_equal_weights(part: Part) -> bool:
    """Return whether equal query weights are optimal for a part, by symmetry of its cells."""
    if len(part.sizes) > 1:
        return False
    gram = part.family.gram(part.sizes)
    off_diagonal = gram[~np.eye(len(gram), dtype=bool)]
    return not np.ptp(np.diag(gram)) and not (len(off_diagonal) and np.ptp(off_diagonal))


def unit_blocks(parts: Decomposition, solutions: list[SpaceSolution]) -> dict[Space, Block]:
    """Return the strategies as blocks with noise scale 1."""
    return {
        space: Block(
            attributes=space,
            factors=tuple((a, f.strategy) for a, f in solutions[k].factors),
            noise=1.0,
            grid=1.0,
        )
        for space, (k, _) in parts.spaces.items()
    }


def dual_norm(
    workload: Workload, goal: Objective, emphasis: Emphasis
) -> tuple[float, Array, list[Array]]:
    """Return the dual norm of the weights and its gradient.

    The gradient is with respect to the logarithms of the class weights, shape (class weights,), and
    of the vectors, each with the shape of the vector.
    """
    q = goal.conjugate
    first = {kind: i for i, kind in reversed(list(enumerate(emphasis.kinds)))}
    sizes = np.bincount([k for k in emphasis.kinds if k >= 0], minlength=len(emphasis.weights))
    by_kind, by_vector = (
        np.zeros(len(emphasis.weights)),
        [np.zeros(len(v)) for v in emphasis.vectors],
    )
    for kind, numbers in enumerate(emphasis.uses):
        group, query_factors = workload.groups[first[kind]], np.ones(1)
        scale = sizes[kind] * emphasis.weights[kind] ** q
        if math.isinf(goal.power):
            scale *= goal.target(first[kind])
        else:
            scale *= group.weight ** (1.0 - q)
            if group.query_weights is not None:
                used = group.query_weights > 0
                query_factors = np.power(
                    group.query_weights, 1.0 - q, where=used, out=np.zeros(group.count)
                )
        masses = [query_factors * emphasis.vectors[n] ** q for n in numbers]
        sums = [float(m.sum()) for m in masses]
        by_kind[kind] = scale * math.prod(sums)
        for n, mass, total in zip(numbers, masses, sums, strict=True):
            # A group whose queries all have weight 0 contributes nothing.
            by_vector[n] += by_kind[kind] * mass / total if total > 0.0 else 0.0
    total = float(by_kind.sum())
    value = total ** (1.0 / q)
    return value, by_kind * value / total, [v * value / total for v in by_vector]


def norm_bound(
    workload: Workload,
    goal: Objective,
    emphasis: Emphasis,
    parts: Decomposition,
    solutions: list[SpaceSolution],
) -> float:
    """Return the lower bound on the norm of the variances at privacy cost 1.

    It follows from the query weights and the certificates of their solutions.
    """
    return separate_bound(parts, solutions) / dual_norm(workload, goal, emphasis)[0]


class PointWeights:
    """Separate weights for all queries of every class of groups.

    Parameters
    ----------
    asked : queries by class; no class may have one vector over all queries of a group.
    emphasis : initial factored weights.
    """

    def __init__(self, class_queries: Sequence[ClassQueries], emphasis: Emphasis) -> None:
        self.masses: list[Array] = []
        for kind, (queries, numbers) in enumerate(zip(class_queries, emphasis.uses, strict=True)):
            mass = np.array(queries.groups * emphasis.weights[kind] * queries.target)
            for together in queries.queries.sets:
                for p in together:
                    mass = np.multiply.outer(mass, emphasis.vectors[numbers[p]])
            self.masses.append(mass.reshape([table.shape[1] for table in queries.queries.tables]))

    @staticmethod
    def fits(class_queries: Sequence[ClassQueries]) -> bool:
        """Return whether the number of queries is within the limit."""
        return all(len(one.queries.tables) <= len(AXES) for one in class_queries) and (
            sum(math.prod(len(t.T) for t in one.queries.tables) for one in class_queries)
            <= MAX_POINT_WEIGHTS
        )

    def follow(self, class_queries: Sequence[ClassQueries], noises: Array) -> None:
        """Raise the weights of queries above the mean variance and lower the others.

        ``noises`` are squared noise scales, shape (space classes,).
        """
        variances = []
        for queries in class_queries:
            tables = queries.queries.tables
            axes = AXES[: len(tables)]
            terms = ",".join(["s", *("s" + a for a in axes)])
            s = noises[list(queries.spaces)] / queries.target
            variances.append(np.einsum(f"{terms}->{axes}", s, *tables, optimize=True))
        total = math.fsum(float(m.sum()) for m in self.masses)
        mean = (
            math.fsum(float(np.vdot(m, v)) for m, v in zip(self.masses, variances, strict=True))
            / total
        )
        self.masses = [
            m * (v / mean) ** UPDATE_EXPONENT for m, v in zip(self.masses, variances, strict=True)
        ]
        total = math.fsum(float(m.sum()) for m in self.masses)
        self.masses = [m / total for m in self.masses]

    def weighted_variances(
        self,
        class_queries: Sequence[ClassQueries],
        counts: Array,
        noises: Array,
        emphasis: Emphasis,
    ) -> tuple[list[Array], Array]:
        """Return the weighted variances by vector of the emphasis, and the optimal squared noise.

        ``counts``, ``noises`` (squared, at privacy cost 1) and the returned noise have shape
        (space classes,).
        """
        sums, out = np.zeros(len(counts)), [np.zeros(len(v)) for v in emphasis.vectors]
        for queries, mass, numbers in zip(class_queries, self.masses, emphasis.uses, strict=True):
            tables = queries.queries.tables
            axes = AXES[: len(tables)]
            for c, (together, table) in enumerate(zip(queries.queries.sets, tables, strict=True)):
                others = [i for i in range(len(tables)) if i != c]
                terms, ends = (
                    ",".join([axes, *("s" + axes[i] for i in others)]),
                    "s" * bool(others) + axes[c],
                )
                weighted = np.einsum(
                    f"{terms}->{ends}", mass, *(tables[i] for i in others), optimize=True
                )
                by_query = weighted * table / queries.target
                if c == 0:
                    sums += np.bincount(queries.spaces, by_query.sum(axis=1), minlength=len(counts))
                tensor = (noises[list(queries.spaces)] @ by_query).reshape(
                    [len(out[numbers[p]]) for p in together]
                )
                for i, p in enumerate(together):
                    out[numbers[p]] += tensor.sum(
                        axis=tuple(a for a in range(len(together)) if a != i)
                    )
        best = np.sqrt(counts / np.maximum(sums, 1e-300))
        return out, best * float(np.sum(counts / best))


def log_gains(earned: Array, now: Array) -> Array:
    """Return the centered logarithm of ``earned`` over ``now``, shape (queries of a part,)."""
    if not earned.any():
        return np.zeros(len(earned))
    ratio = np.log(np.maximum(earned, 1e-300) / np.maximum(now, 1e-300))
    return np.clip(ratio - float(earned @ ratio) / float(earned.sum()), -1.0, 1.0)


# Largest number of solves of the weighted sum in a search.
MAX_SOLVES = 40
# Forecast: time of a solve with separate weights over one with symmetries and shared solutions.
SEPARATE_SOLVE_FACTOR = 2.0
# Relative gap of the standard error at which the search stops.
STOP_GAP = 1e-5
# Relative gap of the budget shares in the first steps, and of the final plan.
FIRST_SHARE_GAP = 1e-4
FINAL_SHARE_GAP = 1e-7
# Gap of the strategies in intermediate steps: at most the first, and the second times the squared
# last step.
MAX_STRATEGY_GAP, STRATEGY_GAP_FACTOR = 1e-3, 0.1
# Budget shares are optimised again if the step is this much shorter than at the last optimisation,
# or shorter than SMALL_STEP, where every step may be the best one.
RESHARE_STEP_RATIO = 0.6
SMALL_STEP = 0.02
# If a step closes less than this share of the gap, the plan is improved by separate query weights.
SMALL_GAIN_SHARE = 0.05
# There, no entry of a vector falls below exp(-MAX_LOG_DROP) times its previous value.
MAX_LOG_DROP = 0.3
# Number of previous points in the Anderson acceleration.
ANDERSON_MEMORY = 8
# Cutoff of small singular values in the Anderson acceleration, relative to the largest.
ANDERSON_CUTOFF = 1e-3
# Largest accepted decrease of the logarithm of the bound in one step.
MAX_LOG_SETBACK = 1e-3
# Smallest relative gain of the variance that counts as progress, and allowed steps without
# progress.
MIN_PROGRESS = 1e-4
MAX_STALE_STEPS = 6
# Weights within a vector differ by at most exp(MAX_LOG_RANGE), so that no query vanishes from the
# Gram matrix.
MAX_LOG_RANGE = 12.0
# A group has a separate weight for every query if the workload has at most so many queries and the
# table of the group at most so many cells; its residual spaces are then solved densely.
MAX_FULL_DOMAIN_QUERIES = 20_000
MAX_FULL_DOMAIN_CELLS = 400
Step = tuple[Decomposition, list[SpaceSolution], tuple[Array, ...], tuple[str, ...]]
Solve = Callable[[Workload, tuple[Array, ...], float], Step]


@dataclass(frozen=True, kw_only=True, eq=False)
class Candidate:
    """Weights of one step with their strategies, budget shares and lower bound."""

    emphasis: Emphasis
    point: Array
    parts: Decomposition
    solutions: list[SpaceSolution]
    duals: tuple[Array, ...]
    endings: tuple[str, ...]
    noises: Array
    bound: float
    class_queries: list[ClassQueries]
    unrest: float
    value: float = math.inf


class TradeoffSearch:
    """Search for query weights; see the module docstring.

    Parameters
    ----------
    goal : objective.
    split : split of queries into residual spaces.
    labels : labels that distinguish attributes of equal size for the mechanism.
    solve : solver of the weighted sum: workload, initial duals and target gap of the standard error
        -> decomposition, solutions, duals, endings.
    tell : progress callback with a fraction and a text.
    deadline : time at which the search stops, on the clock of `planning_time`.
    known : objective value of another plan; the search stops when its bound reaches this value.
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
        self.workload, self.goal, self.split, self.labels, self.known = (
            workload,
            goal,
            split,
            labels,
            best_error,
        )
        self.solve, self.tell, self.deadline, self.started = solve, tell, deadline, planning_time()
        spaces = list(decompose(workload, split, labels).spaces)
        self.same: Symmetry = symmetry(workload, spaces, goal, labels, split)
        self.best: Candidate | None = None
        self.witness: Candidate | None = None
        # The candidate with the smallest step whose shares are not yet optimised.
        self.pending: Candidate | None = None
        # Length of the step at the last optimisation of shares, and of the last step.
        self.shared = math.inf
        self.moved = math.inf
        self.evaluations = self.stale = 0
        self.last: tuple[Array, ...] = ()
        # Candidate of the last step.
        self.now: Candidate | None = None
        self._define_variables()

    def _define_variables(self) -> None:
        """Define the variables: logarithms of class weights, then logarithms of the vectors."""
        groups = [self.workload.groups[i] for i in self.same.examples]
        # A weight for every query is more general than products, but feasible for small groups
        # only.
        small = sum(g.count for g in self.workload.groups) <= MAX_FULL_DOMAIN_QUERIES
        numbers: dict[Any, int] = {}
        self.starts: list[Array] = []
        uses, self.whole = [], []
        for kind, group in enumerate(groups):
            cells = math.prod(group.sizes)
            per_query = group.query_weights is not None or (
                len(group.parts) > 1 and small and cells <= MAX_FULL_DOMAIN_CELLS
            )
            self.whole.append(per_query)
            if per_query:
                keys: list[Any] = [("group", kind)]
                initial = [
                    np.ones(group.count) if group.query_weights is None else group.query_weights
                ]
            else:
                keys, initial = [], []
                # One vector shared by all groups keeps the weights of every space a product.
                # Groups with at most one uneven part need other weights, for which a second vector
                # does the same.
                uneven = sum(not has_equal_weights(part) for part in group.parts)
                for part in group.parts:
                    roles = tuple(
                        self.same.spaces.get((group.attributes[a],), -1) for a in part.axes
                    )
                    names = tuple(self.workload.schema[group.attributes[a]].name for a in part.axes)
                    shared = (uneven > 1, part.key, roles if min(roles) >= 0 else names)
                    keys.append(("group", kind) if len(group.parts) == 1 else shared)
                    initial.append(np.ones(part.count))
            for key, start in zip(keys, initial, strict=True):
                if key not in numbers:
                    numbers[key] = len(self.starts)
                    self.starts.append(start)
            uses.append(tuple(numbers[key] for key in keys))
        self.uses = tuple(uses)
        targets = [self.goal.target(i) for i in self.same.examples]
        self.targets = np.array(targets)
        self.weights = np.array([g.weight for g in groups])
        ends = np.cumsum([len(groups), *(len(v) for v in self.starts)])
        self.windows = [slice(a, b) for a, b in itertools.pairwise(ends)]
        self.variables = int(ends[-1])
        # Whether separate query weights are done or not applicable.
        self.sharp = not math.isinf(self.goal.power) or any(self.whole)

    def emphasis(self, x: Array) -> Emphasis:
        """Return the weights at a point of shape (class weights + entries of all vectors,)."""
        vectors = []
        for start, window in zip(self.starts, self.windows, strict=True):
            # Only ratios within a vector matter: its scale is part of the class weight.
            logs = x[window] - x[window].max()
            vectors.append(start if np.abs(logs).max(initial=0.0) < 1e-9 else start * np.exp(logs))
        return Emphasis(
            kinds=self.same.kinds,
            weights=self.weights * np.exp(x[: len(self.weights)]),
            uses=self.uses,
            single_vector=tuple(self.whole),
            vectors=tuple(vectors),
        )

    def evaluate(self, x: Array) -> tuple[float, Array, Array, Array]:
        """Evaluate the dual objective at a point.

        Returns
        -------
        value : logarithm of the dual value.
        ratio : logarithm of gain over cost of every variable, shape of ``x``.
        costs : cost of every variable as a share of the dual norm, shape of ``x``.
        mass : multiplier of every class of groups in the budget allocation, shape (classes,).
        """
        if planning_time() > self.deadline and self.best is not None:
            raise TimeoutError
        emphasis = self.emphasis(x)
        self.evaluations += 1
        parts, solutions, duals, endings = self.solve(
            emphasis.apply(self.workload), self.last, self._strategy_gap()
        )
        self.last = duals
        # Very different weights lose spaces in rounding: the point has no plan, the search
        # backtracks.
        if set(parts.spaces) != set(self.same.spaces):
            return -math.inf, np.zeros(len(x)), np.ones(len(x)), self.same.sizes
        values = {s: scale * solutions[k].value for s, (k, scale) in parts.spaces.items()}
        size, by_kind, by_vector = dual_norm(self.workload, self.goal, emphasis)
        costs = np.concatenate([by_kind, *by_vector]) / size
        total = math.fsum(math.sqrt(v) for v in values.values())
        noises = np.zeros(len(self.same.counts))
        for space, kind in self.same.spaces.items():
            # Optimal shares for the weighted sum, the initial value for the objective itself.
            noises[kind] = total / math.sqrt(values[space])
        blocks = unit_blocks(parts, solutions)
        builder = VarianceBuilder(blocks=blocks, split=self.split, schema=self.workload.schema)
        queries = footprints(self.workload, builder, self.same, self.goal)
        if queries is None:
            return -math.inf, np.zeros(len(x)), np.ones(len(x)), self.same.sizes
        slope = self._variance_gradient(emphasis, builder, queries, noises) / total**2
        # At the optimum the gain of every weight in variance equals its cost in the dual norm, so
        # the logarithm of the ratio is the step.
        ratio = np.log(np.maximum(slope, 1e-300) / np.maximum(costs, 1e-300))
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
            unrest=math.sqrt(float(costs @ self._free_ratio(x, ratio) ** 2) / float(costs.sum())),
        )
        self.moved, self.now = candidate.unrest, candidate
        mass = self._update_best(candidate)
        return 2.0 * math.log(total) - math.log(size), ratio, costs, mass

    def _strategy_gap(self) -> float:
        """Return the target gap of the next strategies, in proportion to that of the weights."""
        return (
            0.0 if self.best is None else min(MAX_STRATEGY_GAP, STRATEGY_GAP_FACTOR * self.moved**2)
        )

    def _share_gap(self) -> float:
        """Return the target gap of the shares of this step, coarse in the first steps."""
        if self.best is None or self.witness is None:
            return FIRST_SHARE_GAP
        # A tenth of the target gap is not visible in the result.
        return min(
            FIRST_SHARE_GAP,
            max(0.1 * STOP_GAP, 0.02 * (self.best.value / self.witness.bound - 1.0)),
        )

    def _optimise_shares(self, candidate: Candidate, gap: float) -> Array:
        """Optimise the shares of a candidate and update the best plan; return the class masses."""
        allocation = best_shares(
            candidate.class_queries, self.same.counts, self.goal, candidate.noises, gap
        )
        self.pending = None if self.pending is candidate else self.pending
        if allocation.value < candidate.value:
            shared = replace(candidate, noises=allocation.noises, value=allocation.value)
            # Keep best and witness identical if they were, so that a plan file stores the weights
            # once.
            self.witness = shared if self.witness is candidate else self.witness
            self.best = shared if self.best is None or shared.value < self.best.value else self.best
        return allocation.mass

    def _update_best(self, candidate: Candidate) -> Array:
        """Update the best plan and bound; return the class masses, or sizes without new shares."""
        progress = False
        if self.witness is None or candidate.bound > self.witness.bound:
            progress = self.witness is None or candidate.bound > self.witness.bound * (
                1.0 + MIN_PROGRESS
            )
            self.witness = candidate
        if self.pending is None or candidate.unrest < self.pending.unrest:
            self.pending = candidate
        mass = self.same.sizes
        # Optimising shares takes as long as a step and gains little while weights still change
        # much.
        if candidate.unrest <= max(RESHARE_STEP_RATIO * self.shared, SMALL_STEP):
            self.shared, before = (
                candidate.unrest,
                math.inf if self.best is None else self.best.value,
            )
            mass = self._optimise_shares(candidate, self._share_gap())
            progress = (
                progress or self.best is None or self.best.value < before * (1.0 - MIN_PROGRESS)
            )
        self.stale = 0 if progress else self.stale + 1
        # No shares of the budget give all queries a finite error: `run` raises.
        if self.best is None:
            raise StopIteration
        gap = math.sqrt(self.best.value / self.witness.bound) - 1.0
        self.tell(self.evaluations / MAX_SOLVES, f"Weighing the queries, gap {gap:.1e}")
        if (
            gap <= STOP_GAP
            or self.stale > MAX_STALE_STEPS
            or self.evaluations >= MAX_SOLVES
            or self._cannot_improve()
        ):
            raise StopIteration
        return mass

    def _cannot_improve(self) -> bool:
        """Return whether the bound excludes a plan better than that of another search."""
        return self.witness is not None and self.witness.bound >= self.known

    def _variance_gradient(
        self,
        emphasis: Emphasis,
        builder: VarianceBuilder,
        queries: list[ClassQueries],
        noises: Array,
    ) -> Array:
        """Return the gradient of the weighted sum of variances at fixed strategies and shares."""
        out = np.zeros(self.variables)
        for kind, numbers in enumerate(emphasis.uses):
            group = self.workload.groups[self.same.examples[kind]]
            group_variances = builder.group(group)
            flat: Footprint = (
                footprint(group_variances, np.ones(group.count))
                if self.whole[kind]
                else queries[kind].queries
            )
            s = noises[list(queries[kind].spaces)] * self.same.sizes[kind] * emphasis.weights[kind]
            sets = [tuple(range(1))] if self.whole[kind] else flat.sets
            shapes = (
                [(group.count,)]
                if self.whole[kind]
                else [tuple(group.parts[p].count for p in t) for t in sets]
            )
            if not numbers:
                out[kind] += float(s @ flat.tables[0][:, 0])
                continue
            # Weighted sums over each part of a table that couples several parts.
            along: dict[int, Array] = {}
            totals = []
            for together, shape, table in zip(sets, shapes, flat.tables, strict=True):
                tensor = table.reshape(len(s), *shape)
                for p in together:
                    others = [None if q == p else emphasis.vectors[numbers[q]] for q in together]
                    along[p] = contract(tensor, others, 1) * emphasis.vectors[numbers[p]]
                totals.append(along[together[0]].sum(axis=1))
            products = np.prod(totals, axis=0)
            out[kind] += float(s @ products)
            for k, together in enumerate(sets):
                rest = s * np.prod([t for i, t in enumerate(totals) if i != k], axis=0)
                for p in together:
                    out[self.windows[numbers[p]]] += rest @ along[p]
        return out

    def run(self) -> Candidate:
        """Return the best candidate; the attribute ``witness`` proves the best bound."""
        with contextlib.suppress(StopIteration, TimeoutError):
            *_, mass = self.evaluate(np.zeros(self.variables))
            counts = (
                np.array([self.workload.groups[i].count for i in self.same.examples])
                * self.same.sizes
            )
            level = np.log(
                np.maximum(mass / counts, 1e-5 * (mass / counts).max())
                / self.weights
                / self.targets
            )
            self._climb(
                np.concatenate([level - level.max(), np.zeros(self.variables - len(level))])
            )
        if self.best is None or self.witness is None:
            raise PlanError(LOST)
        if (
            not self.sharp
            and self.best.value > self.witness.bound * (1.0 + STOP_GAP) ** 2
            and not self._cannot_improve()
        ):
            with contextlib.suppress(StopIteration, TimeoutError):
                self._sharpen(self.best)
        for candidate in filter(None, (self.pending, self.best)):
            self._optimise_shares(candidate, FINAL_SHARE_GAP)
        return self.best

    def _climb(self, x: Array) -> None:
        """Iterate fixed-point steps with Anderson acceleration until `StopIteration`."""
        step = 1.0 / self.goal.conjugate
        points: list[Array] = []
        moves: list[Array] = []
        good: tuple[float, Array, Array] = (-math.inf, x, np.zeros(len(x)))
        shorter = 1.0
        while True:
            before = 0.0 if self.witness is None else self.witness.bound
            value, ratio, costs, _ = self.evaluate(x)
            # There is no point to backtrack to: `run` raises.
            if self.best is None or self.witness is None:
                return
            gained, gap = self.witness.bound - before, self.best.value - self.witness.bound
            if (
                self._should_sharpen()
                and self.moved <= SMALL_STEP
                and gained < SMALL_GAIN_SHARE * gap
            ):
                self._sharpen(self.best)
            if not math.isfinite(value) or value < good[0] - MAX_LOG_SETBACK:
                # Backtrack from the last good point without acceleration, with half the step each
                # time.
                shorter *= 0.5
                x, points, moves = self._clip_range(good[1] + shorter * good[2]), [], []
                continue
            shorter, good = 1.0, (value, x, step * ratio)
            points, moves = (
                [*points[1 - ANDERSON_MEMORY :], x],
                [*moves[1 - ANDERSON_MEMORY :], step * ratio],
            )
            x = points[-1] + moves[-1]
            if len(points) > 1:
                dx, df = np.diff(points, axis=0).T, np.diff(moves, axis=0).T
                # Weights that tend to zero never converge; scaling by cost ignores them.
                heavy = np.sqrt(costs)
                gamma = np.linalg.lstsq(
                    heavy[:, None] * df, heavy * moves[-1], rcond=ANDERSON_CUTOFF
                )[0]
                x = x - (dx + df) @ gamma
            x = self._clip_range(x)

    def _should_sharpen(self) -> bool:
        """Return whether half of the time is over and separate query weights were not tried."""
        return not self.sharp and planning_time() > 0.5 * (self.started + self.deadline)

    def _sharpen(self, first: Candidate) -> None:
        """Follow separate query weights while the plan improves."""
        self.sharp, stalled = True, 0
        if not PointWeights.fits(first.class_queries):
            return
        single, now, noises = PointWeights(first.class_queries, first.emphasis), first, first.noises
        while stalled < 2 and self.best is not None:
            # An infinite last step makes every step optimise its shares.
            before, self.stale, self.shared = self.best.value, 0, math.inf
            single.follow(now.class_queries, noises)
            earned, best = single.weighted_variances(
                now.class_queries, self.same.counts, noises, now.emphasis
            )
            current = self._variance_gradient(
                now.emphasis, self._builder(now), now.class_queries, noises
            )
            x = now.point.copy()
            for window, vector in zip(self.windows, earned, strict=True):
                x[window] += log_gains(vector, current[window])
            # Otherwise weights of light queries would tend to 0 and their variances to infinity.
            x, noises = np.maximum(x, first.point - MAX_LOG_DROP), best
            if not math.isfinite(self.evaluate(x)[0]) or self.now is None:
                return
            now, gap = self.now, before - (self.witness.bound if self.witness else 0.0)
            stalled = 0 if before - self.best.value > SMALL_GAIN_SHARE * gap else stalled + 1

    def _builder(self, candidate: Candidate) -> VarianceBuilder:
        blocks = unit_blocks(candidate.parts, candidate.solutions)
        return VarianceBuilder(blocks=blocks, split=self.split, schema=self.workload.schema)

    def _free_ratio(self, x: Array, ratio: Array) -> Array:
        """Return the ratio, with 0 for weights at their lower limit that would fall."""
        return np.where((self._clip_range(x - 1e-9 * (ratio < 0)) >= x) & (ratio < 0), 0.0, ratio)

    def _clip_range(self, x: Array) -> Array:
        out = x.copy()
        for window in [slice(0, len(self.weights)), *self.windows]:
            logs = out[window]
            out[window] = np.maximum(logs - logs.max(), -MAX_LOG_RANGE)
        return out

    def tradeoff(self) -> Tradeoff:
        """Return the solver state for a plan file."""
        assert self.best is not None
        assert self.witness is not None
        witness = None if self.witness is self.best else self.witness.emphasis
        shares = np.array([self.best.noises[self.same.spaces[s]] for s in self.best.parts.spaces])
        return Tradeoff(shares=shares, emphasis=self.best.emphasis, witness=witness)
