"""Base class of mechanisms with independent noise on residual spaces.

Let L_B be the weighted sum of the variances on residual space B for a plan that spends the privacy
cost 1 on B alone.  The best allocation of a budget beta to all spaces has

    noise_B^2 = (sum over B' of sqrt(L_B')) / (beta sqrt(L_B))
    objective = (sum over B of sqrt(L_B))^2 / beta

A subclass provides the solver that returns a strategy for the queries on one residual space (a
subworkload).  Source: QuerySmasher, section 6.4 and theorem 5; ResidualPlanner+.
"""

from __future__ import annotations

import contextlib
import math
from abc import abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Protocol, Self

import numpy as np

from engine._arrays import Array
from engine._clock import planning_time
from engine.bounds.lower_bounds import independent_bound
from engine.errors import PlanError, Unanswered
from engine.mechanisms.base import (
    MIN_REFUSED_SECONDS,
    Forecast,
    Limits,
    Mechanism,
    check_no_alternation,
    check_request,
    check_size,
    start_error,
)
from engine.mechanisms.minimax import (
    MinimaxResult,
    forecast_minimax,
    is_applicable,
    is_symmetric_part,
    minimax_search,
    rebuild_proof,
)
from engine.mechanisms.reweighting import (
    GRID_TOLERANCE,
    MAX_FULL_DOMAIN_QUERIES,
    Candidate,
    SolveResult,
    TradeoffSearch,
    constrained_bound,
    dual_norm,
    has_weight_per_query,
    noise_shares,
    norm_bound,
    separate_bound,
)
from engine.plans import Block, Plan
from engine.plans.blocks import MAX_JOINT, MIN_JOINT_SAVING, calibrate, joint_share, strategies_of
from engine.plans.group_variance import connected_components
from engine.plans.objectives import Emphasis
from engine.plans.plan import SolverState, Tradeoff
from engine.plans.replace_one import row_pcosts
from engine.privacy import Budget
from engine.progress import monotone
from engine.residuals import Axes, Space, Split, Strategy
from engine.residuals.basis import UNIFORM
from engine.residuals.decomposition import Decomposition, Subworkload, decompose
from engine.residuals.dual_solver import Watch
from engine.residuals.search_costs import Cost
from engine.residuals.subworkload_solver import SpaceSolution
from engine.residuals.tuning.unions import unite
from engine.workload import Workload

STOPPED = {
    "memory": (
        " The memory limit left some queries or residual spaces out of the search for centers."
    ),
    "time": " The time limit ended the search for centers.",
    "work": (
        " Pairs of attributes that would take long were left out of the search for centers; a "
        "longer time limit includes them."
    ),
}


@dataclass(frozen=True, kw_only=True, eq=False)
class CandidatePlan:
    """A plan that is compared with other plans before it is built.

    Reading the attribute ``plan`` builds the plan.  This raises `Unanswered` if rounding drops
    queries of small positive weight.

    Attributes
    ----------
    split : decomposition of the queries into residual spaces.
    error : square root of the weighted sum of variances at privacy cost 1.  For other objectives,
        the value of the objective at privacy cost 1.
    values : weighted squared errors of the blocks, in counts^2, as a mapping from the attributes of
        a block.  The error of a block is for a plan that spends the privacy cost 1 on this block
        alone.  The mapping is empty in three cases: another objective than the weighted sum,
        accuracy constraints, and a product strategy on the full table.
    assemble : function that builds the plan.
    joint : joint privacy cost of all blocks divided by the sum of their separate costs.  The
        attribute ``error`` is computed from the joint cost.
    duals : dual weights at which the strategy searches ended, from which later searches can start;
        empty for objectives other than the weighted sum.
    """

    split: Split
    error: float
    values: Mapping[Space, float]
    assemble: Callable[[], Plan]
    joint: float = 1.0
    duals: tuple[Array, ...] = ()

    @cached_property
    def plan(self) -> Plan:
        """The assembled plan."""
        return self.assemble()

    def sums(self) -> Array:
        """Return the sum of the variances of every group at privacy cost 1, shape (groups,)."""
        return np.array(self.plan.totals) * self.plan.budget.row_pcost


def with_stop_reasons(plan: Plan, limits: frozenset[str]) -> Plan:
    """Return the plan with one more sentence in its statement for every limit in ``limits``.

    ``limits`` are keys of `STOPPED`: the limits that stopped the search.
    """
    note = "".join(text for limit, text in STOPPED.items() if limit in limits)
    return plan.with_statement(plan.statement + note, limits) if limits else plan


# For forecasts: memory of the process before planning.
BASE_BYTES = 120e6
# For forecasts: planning time in addition to the strategy searches, in seconds per plan and per
# group of the workload.
BASE_SECONDS, GROUP_SECONDS = 0.003, 1e-5
# For forecasts: time of a step of the search for query weights, in seconds per distinct residual
# space, in addition to strategy searches.
STEP_SECONDS_PER_SPACE = 5e-4
# For forecasts: time of a step in seconds per entry of the tables of variances.
SECONDS_PER_TABLE_ENTRY = 1e-6
# For forecasts: time of a strategy search in a later step, relative to its time in the first step.
# With query weights, a Gram of full rank has fewer symmetries. A search for a Gram of low rank
# starts from the last weights and needs few steps.
FULL_RANK_STEP_RATIO, LOW_RANK_STEP_RATIO = 3.0, 0.2
# For forecasts: seconds of a step per residual space if queries of groups on several attributes
# have one weight each, so that every space has a Gram of its own.
SEPARATE_SPACE_SECONDS = 7e-3
# For forecasts: time of the joint privacy cost, in seconds per residual space, plus a multiple of
# the squared number of cells of the largest attribute.
JOINT_SECONDS, JOINT_SECONDS_PER_SQUARE = 1e-4, 2e-7
# For forecasts: typical number of steps of `TradeoffSearch` for the objective "max", for the
# objective "lp", and for any objective if all queries of every group are equivalent.
TYPICAL_STEPS, POWER_STEPS, SYMMETRIC_STEPS = 28, 10, 4
# For forecasts: typical number of steps for the objective "max" if the tables of variances have
# more than `MANY_ENTRIES` entries. With such tables, later steps gain little.
STEPS_OF_MANY_ENTRIES, MANY_ENTRIES = 14, 2e5
# If later strategies need all the time that is left, a search may still take this share of the time
# left, or twice its expected time if that is less.
MIN_SEARCH_SHARE = 0.02
# The searches end before the time limit, so that time remains for noise and bounds: this time in
# seconds per subworkload, and at most this share of the time left.
ASSEMBLY_SECONDS, MAX_ASSEMBLY_SHARE = 5e-4, 0.1
# For a plan that is charged the joint privacy cost, computing the lower bound may take longer than
# the time limit allows, by at most this share of the limit.
JOINT_BOUND_SHARE = 0.05
# Factors of the Kronecker product that measures a residual space: pairs of some axes of the space
# and the strategy on these axes.
Factored = tuple[tuple[Axes, Strategy], ...]
TUNED_TEXT = (
    " Tuned centers lower the total error; single groups may be less accurate than with uniform"
    " centers."
)
JOINT_TEXT = " The privacy cost is the largest cost of a cell, summed over all residual spaces."
CONSTRAINTS_TEXT = (
    " The bound holds among plans that satisfy the accuracy constraints of single groups."
)


class SpaceSolver(Protocol):
    """Interface of solvers that return the strategy of a residual space (subworkload).

    Attributes
    ----------
    watch : function that is called with the gap of the running search; it may raise an exception to
        cancel the search.
    duals, endings : dual weights and termination message of every search so far.
    dense_limit : largest memory of one dense strategy, in bytes.  A subworkload that needs more
        gets a product strategy, whose search alternates between the factors.
    recorded : results of earlier searches from a plan file, as pairs (dual weights, termination
        message).  `solve` uses them in place of a search.  None means that `solve` searches.
    warm : dual weights from which the searches start; empty for uniform weights.
    """

    watch: Watch | None
    duals: list[Array]
    endings: list[str]
    dense_limit: float
    recorded: list[tuple[Array, str]] | None
    warm: tuple[Array, ...]

    def forecast(self, subs: Sequence[Subworkload]) -> list[Cost]:
        """Return the expected time and memory of `solve` for each subworkload."""

    def reserve(self, seconds: float) -> None:
        """Let all further searches end ``seconds`` before the deadline of the solver."""

    def in_time(self, subs: Sequence[Subworkload], costs: Sequence[Cost], seconds: float) -> None:
        """Lower ``dense_limit`` until all searches are expected to take at most ``seconds``.

        A search for a product strategy takes less time than a dense search.
        """

    def ahead(
        self,
        subs: Sequence[Subworkload],
        costs: Sequence[Cost],
        workers: int | None,
        tell: Callable[[float], object],
    ) -> None:
        """Solve expensive subworkloads in worker processes, so that `solve` finds their results."""

    def solve(self, sub: Subworkload) -> SpaceSolution:
        """Return the strategy for one subworkload (queries on a residual space)."""


@dataclass(frozen=True, kw_only=True)
class ResidualMechanism(Mechanism):
    """Base class of mechanisms that measure residual spaces with independent noise.

    A subclass implements `space_solver`.
    """

    keeps_invariants: ClassVar[bool] = True
    bound_text: ClassVar[str] = (
        "No strategy that measures the residual spaces of uniform centers independently can have a"
        " smaller weighted RMSE than the bound."
    )

    # If True, the objective "max" may use the search of `engine.mechanisms.minimax`.  The mechanism
    # must then measure optimal strategies for any query weights.
    uses_minimax_search: ClassVar[bool] = False

    @abstractmethod
    def space_solver(
        self, workload: Workload, decomposition: Decomposition, limits: Limits, deadline: float
    ) -> SpaceSolver:
        """Return the solver for the subworkloads (residual spaces) of a decomposition."""

    def with_gap(self, gap: float) -> Self:
        """Return the mechanism with its option ``gap`` raised to at least the argument.

        This implementation is for mechanisms without this option.
        """
        return self

    def axis_labels(self, workload: Workload) -> dict[str, Hashable]:
        """Return a mapping from attributes to labels.

        Two attributes with equal queries share a strategy only if their labels are equal, or if
        neither has a label.
        """
        return {}

    def note(self, workload: Workload) -> str:
        """Return a sentence for the certificate: what the mechanism cannot do for a workload."""
        return ""

    def overhead(self, workload: Workload) -> float:
        """Return the expected planning time in seconds, without the strategy searches."""
        return BASE_SECONDS + GROUP_SECONDS * len(workload.groups)

    def forecast(self, workload: Workload, limits: Limits) -> Forecast:
        self.check_memory(workload, limits.memory_limit)
        decomposition = decompose(workload, labels=self.axis_labels(workload), forecast=True)
        forecast = self.forecast_split(workload, decomposition, limits)
        return replace(
            forecast, seconds=forecast.seconds + self.joint_seconds(workload, decomposition)
        )

    @property
    def has_wide_intervals(self) -> bool:
        """Whether intervals on wide attributes need fewer matrices, see `check_size`."""
        return False

    def check_memory(self, workload: Workload, memory_limit: float) -> None:
        """Raise LimitExceeded if a group is too large for the mechanism; see `check_size`."""
        is_sum = self.goal(workload).linear
        intervals = is_sum and self.has_wide_intervals
        check_size(workload, memory_limit, closed_form=is_sum, intervals=intervals)

    def joint_seconds(self, workload: Workload, decomposition: Decomposition) -> float:
        """Return the expected time of computing the joint privacy cost and its bound, in seconds.

        The result is 0 if the joint cost is not computed.  It is computed if there are at most
        `MAX_JOINT` residual spaces, and if the costs of cells may differ.  Costs may differ if the
        Gram matrix of some queries has low rank, or if the objective is not the weighted sum.
        """
        has_unequal_costs = (
            any(f.low_rank for f in decomposition.factors) or not self.goal(workload).linear
        )
        if has_unequal_costs and len(decomposition.spaces) <= MAX_JOINT:
            cells = max((n for sub in decomposition.subworkloads for n in sub.sizes), default=1)
            return (JOINT_SECONDS + JOINT_SECONDS_PER_SQUARE * cells**2) * len(decomposition.spaces)
        return 0.0

    def forecast_split(
        self, workload: Workload, decomposition: Decomposition, limits: Limits
    ) -> Forecast:
        """Return the forecast of planning for one decomposition of the workload.

        Raises
        ------
        NotApplicable
            If a subworkload is too large for an objective other than the weighted sum.
        LimitExceeded
            If the strategies take longer than the time limit even without search steps.
        """
        solver = self.space_solver(workload, decomposition, limits, math.inf)
        costs = solver.forecast(decomposition.subworkloads)
        # the solver limits the memory of a search
        peak = min(max((c.peak for c in costs), default=0.0), limits.memory_limit)
        memory = BASE_BYTES + math.fsum(c.saved for c in costs) + peak
        seconds = math.fsum(c.seconds for c in costs)
        _check_start(solver, decomposition.subworkloads, costs, limits)
        if not self.goal(workload).linear:
            check_no_alternation(decomposition.subworkloads, costs)
            seconds = self._reweighting_seconds(workload, decomposition, solver)
        n_spaces, n_different = len(decomposition.spaces), len(decomposition.subworkloads)
        text = f"{n_spaces:,} residual spaces, {n_different:,} different ones"
        return Forecast(seconds=self.overhead(workload) + seconds, memory=memory, text=text)

    def _reweighting_seconds(
        self, workload: Workload, decomposition: Decomposition, solver: SpaceSolver
    ) -> float:
        """Return the expected time of the search for an objective other than the sum, in seconds.

        With many queries, either the minimax search or `TradeoffSearch` runs.  With few queries,
        `TradeoffSearch` may follow the minimax search.  Whether it does is unknown before planning,
        so half of its time is added.
        """
        goal, parts_of_groups = self.goal(workload), [p for g in workload.groups for p in g.parts]
        n_queries = sum(group.count for group in workload.groups)
        minimax_seconds = 0.0
        base_seconds = 0.05  # time that does not depend on the workload
        if self.uses_minimax_search:
            # one residual space per class of equal spaces
            space_of = {number: space for space, (number, _) in decomposition.spaces.items()}
            minimax_seconds = forecast_minimax(workload, goal, list(space_of.values()))
            if minimax_seconds and n_queries > MAX_FULL_DOMAIN_QUERIES:
                return base_seconds + minimax_seconds
        subs = decomposition.subworkloads
        examples = [workload.groups[c.numbers[0]] for c in workload.group_classes]
        has_query_weights = any(has_weight_per_query(g, n_queries) for g in examples)
        if all(is_symmetric_part(part, pi=None) for part in parts_of_groups):
            # The search changes only the weights of groups, and no strategy depends on these
            # weights.
            steps, first_costs, step_seconds = SYMMETRIC_STEPS, solver.forecast(subs), 0.0
        else:
            steps = TYPICAL_STEPS if math.isinf(goal.power) else POWER_STEPS
            # The search gives equal residual spaces different query weights and solves each of
            # them.
            first_costs = [solver.forecast([sub])[0] for sub in subs]
            # Later steps start from the last solution.  Only two kinds of spaces take time again:
            # mixed subworkloads and, for the objective "max", single attributes.
            step_seconds = math.fsum(
                _step_ratio(sub, decomposition) * cost.seconds
                for sub, cost in zip(subs, first_costs, strict=True)
                if sub.mixed or (math.isinf(goal.power) and len(sub.sizes) == 1)
            )
            entries = table_entries(workload, decomposition)
            step_seconds += SECONDS_PER_TABLE_ENTRY * entries
            if math.isinf(goal.power) and entries > MANY_ENTRIES:
                steps = STEPS_OF_MANY_ENTRIES
        step_seconds += STEP_SECONDS_PER_SPACE * len(subs)
        if steps > SYMMETRIC_STEPS and has_query_weights and not minimax_seconds:
            # Weights per query make the Grams of equivalent attributes different at first, and
            # later the Grams of all other equivalent spaces.  The search may end in between, so
            # the number of subworkloads is estimated by the geometric mean of both numbers.
            singles = sum(len(space) == 1 for space in decomposition.spaces)
            distinct = singles + sum(len(sub.sizes) > 1 for sub in subs)
            separate = math.sqrt(distinct * len(decomposition.spaces)) - len(subs)
            step_seconds += SEPARATE_SPACE_SECONDS * max(separate, 0.0)
        first_seconds = math.fsum(cost.seconds for cost in first_costs)
        search_seconds = first_seconds + steps * step_seconds
        return base_seconds + minimax_seconds + (0.5 if minimax_seconds else 1.0) * search_seconds

    def plan(self, workload: Workload, budget: Budget, limits: Limits) -> Plan:
        deadline = limits.deadline()
        check_request(workload, budget)
        self.check_memory(workload, limits.memory_limit)
        limits = replace(limits, progress=monotone(limits.progress), window_weights={})
        limits.tell(0.0, "Decomposing the workload")
        if limits.time_limit is not None:
            self._check_least_time(workload, limits)
        candidate = self.best(workload, budget, limits, deadline)
        limits.tell(1.0, "Planned")
        return candidate.plan

    def _check_least_time(self, workload: Workload, limits: Limits) -> None:
        """Raise LimitExceeded if the time limit is too short for a plan with uniform centers.

        The forecast takes milliseconds; the Grams of the decomposition can take seconds.
        """
        decomposition = decompose(workload, labels=self.axis_labels(workload), forecast=True)
        solver = self.space_solver(workload, decomposition, limits, math.inf)
        _check_start(
            solver, decomposition.subworkloads, solver.forecast(decomposition.subworkloads), limits
        )

    def best(
        self, workload: Workload, budget: Budget, limits: Limits, deadline: float
    ) -> CandidatePlan:
        """Return the candidate plan with the smallest error.

        This implementation has one candidate, the plan with uniform centers.
        """
        return self.candidate_plan(workload, budget, limits, deadline, UNIFORM)

    def candidate_plan(
        self,
        workload: Workload,
        budget: Budget,
        limits: Limits,
        deadline: float,
        split: Split,
        best_error: float = math.inf,
        search_share: float = 1.0,
        warm: tuple[Array, ...] = (),
    ) -> CandidatePlan:
        """Return the plan for one split of queries into residual spaces.

        Parameters
        ----------
        best_error : error of another plan, for objectives other than the sum.  The search stops
            when its lower bound shows that the plan cannot have a smaller error.
        search_share : share of the remaining time that strategy searches may take, for the weighted
            sum.  If the forecast is longer, product strategies replace the largest dense
            strategies.
        warm : dual weights from which the strategy searches start, for the weighted sum.
        """
        if self.goal(workload).linear:
            return self._solve_sum(workload, budget, limits, deadline, split, search_share, warm)
        return self._solve_objective(workload, budget, limits, deadline, split, best_error)

    def _solve_sum(
        self,
        workload: Workload,
        budget: Budget,
        limits: Limits,
        deadline: float,
        split: Split,
        search_share: float,
        warm: tuple[Array, ...],
    ) -> CandidatePlan:
        """Return the plan for the weighted sum of variances; see `candidate_plan`."""
        labels = self.axis_labels(workload)
        decomposition, solutions, solver = self._solve(
            workload, split, labels, limits, deadline, warm=warm, search_share=search_share
        )
        state = SolverState(
            split=split,
            memory_limit=min(solver.dense_limit, limits.memory_limit),
            duals=tuple(solver.duals),
            endings=tuple(solver.endings),
        )
        # smallest weighted squared error of every residual space at privacy cost 1
        values = {s: scale * solutions[k].value for s, (k, scale) in decomposition.spaces.items()}
        joint = _joint_share(
            decomposition, solutions, np.array(list(noise_shares(values).values()))
        )
        bound_deadline = deadline + JOINT_BOUND_SHARE * (limits.time_limit or 0.0)
        return CandidatePlan(
            split=split,
            # With the optimal budget shares, the RMSE at joint privacy cost 1 is this sum of roots.
            error=math.sqrt(joint) * math.fsum(map(math.sqrt, values.values())),
            values=values,
            assemble=lambda: self._assemble(
                workload,
                budget,
                decomposition,
                solutions,
                state,
                joint_share=joint,
                bound_deadline=bound_deadline,
            ),
            joint=joint,
            duals=state.duals,
        )

    def weighted_plan(
        self,
        workload: Workload,
        budget: Budget,
        limits: Limits,
        deadline: float,
        split: Split,
        weights: Array,
        sum_limits: Array,
    ) -> CandidatePlan:
        """Return the optimal plan for raised group weights, which enforce accuracy constraints.

        The attribute ``error`` of the result is for the original weights of the workload.

        Parameters
        ----------
        weights : raised weight of every group, shape (groups,).
        sum_limits : largest allowed sum of variances of every group at privacy cost 1, in counts^2,
            shape (groups,); infinite without a constraint.
        """
        emphasis = Emphasis.of_groups(workload, weights.tolist())
        labels = self.axis_labels(workload)
        decomposition, solutions, solver = self._solve(
            emphasis.apply(workload), split, labels, limits, deadline, initial_progress=0.9
        )
        shares = noise_shares(
            {s: scale * solutions[k].value for s, (k, scale) in decomposition.spaces.items()}
        )
        state = SolverState(
            split=split,
            memory_limit=min(solver.dense_limit, limits.memory_limit),
            duals=tuple(solver.duals),
            endings=tuple(solver.endings),
            tradeoff=Tradeoff(
                shares=np.array(list(shares.values())), emphasis=emphasis, limits=sum_limits
            ),
        )
        bound = constrained_bound(
            workload, weights, sum_limits, separate_bound(decomposition, solutions)
        )
        plan = self._assemble(workload, budget, decomposition, solutions, state, bound)
        group_weights = np.array([g.weight for g in workload.groups])
        error = math.sqrt(float(group_weights @ plan.totals) * budget.row_pcost)
        return CandidatePlan(split=split, error=error, values={}, assemble=lambda: plan)

    def _solve_objective(
        self,
        workload: Workload,
        budget: Budget,
        limits: Limits,
        deadline: float,
        split: Split,
        best_error: float,
    ) -> CandidatePlan:
        """Return the plan for an objective other than the weighted sum."""
        labels = self.axis_labels(workload)
        decomposition = decompose(workload, split, labels)
        _check_spaces(workload, decomposition)
        # The call raises an error if a strategy exceeds the limits even without search steps.
        self.forecast_split(workload, decomposition, limits)

        def solve(weighted: Workload, warm: tuple[Array, ...], gap: float) -> SolveResult:
            """Solve the weighted sum for a workload with modified weights."""
            decomposition, solutions, solver = self.with_gap(gap)._solve(
                weighted, split, labels, quiet, deadline, warm=warm
            )
            return decomposition, solutions, tuple(solver.duals), tuple(solver.endings)

        tell = lambda done, text: limits.tell(min(done, 1.0), text)  # noqa: E731
        # `solve` reports no progress of its own: it calls the callback with 0, so that the callback
        # can cancel.  It caches no solutions, because each one is used once.
        quiet = replace(
            limits,
            progress=limits.progress and (lambda _, text: limits.tell(0.0, text)),
            workers=1,
            cache=False,
        )
        results: Sequence[Candidate | MinimaxResult] = []
        if self.uses_minimax_search and is_applicable(workload, self.goal(workload), split):
            # `Unanswered` is raised if rounding makes some query weights 0. In this case
            # `TradeoffSearch` replaces the minimax search.
            with contextlib.suppress(Unanswered):
                results = [
                    minimax := minimax_search(
                        workload, self.goal(workload), split, labels, tell, deadline
                    )
                ]
                bound, tradeoff = minimax.proof.bound, minimax.tradeoff
        # The bound of the minimax search is for query weights that are products over attributes.
        # For few queries, `TradeoffSearch` has one weight per query and may find a better bound.
        has_few_queries = sum(g.count for g in workload.groups) <= MAX_FULL_DOMAIN_QUERIES
        if not results or (minimax.fits_poorly and has_few_queries and planning_time() < deadline):
            search = TradeoffSearch(
                workload, self.goal(workload), split, labels, solve, tell, deadline, best_error
            )
            candidate = search.run()
            if not results or candidate.value < results[0].value:
                witness = candidate if search.witness is None else search.witness
                results = [candidate] if witness is candidate else [candidate, witness]
                bound, tradeoff = witness.bound, search.tradeoff()
        best = results[0]
        state = SolverState(
            split=split,
            memory_limit=limits.memory_limit,
            duals=tuple(dual for result in results for dual in result.duals),
            endings=tuple(ending for result in results for ending in result.endings),
            tradeoff=tradeoff,
        )
        joint = _joint_share(best.decomposition, best.solutions, tradeoff.shares)
        return CandidatePlan(
            split=split,
            error=joint * best.value,
            values={},
            assemble=lambda: self._assemble(
                workload, budget, best.decomposition, best.solutions, state, bound, joint
            ),
            joint=joint,
        )

    def _solve(
        self,
        workload: Workload,
        split: Split,
        labels: Mapping[str, Hashable],
        limits: Limits,
        deadline: float,
        initial_progress: float = 0.0,
        recorded: list[tuple[Array, str]] | None = None,
        warm: tuple[Array, ...] = (),
        search_share: float = math.inf,
    ) -> tuple[Decomposition, list[SpaceSolution], SpaceSolver]:
        """Decompose a workload and solve every residual space.

        Parameters
        ----------
        labels : labels that distinguish attributes, see `axis_labels`.
        initial_progress : progress that is reported at the start, from 0 to 1.
        recorded : results from a plan file that replace the searches, as pairs (dual weights,
            termination message).  The function removes the entries that it uses from the front.
        warm : dual weights from which the searches start.
        search_share : share of the remaining time that strategy searches may take, see
            `candidate_plan`.  With infinity, all dense strategies are searched.

        Returns
        -------
        decomposition : decomposition of the workload, with the jointly measured spaces of the
            split.
        solutions : one solution per subworkload.
        solver : solver with the dual weights of its searches.
        """
        # When a plan is rebuilt, ``limits`` has the memory limit that the plan file records.
        # `SpaceSolver.in_time` may have lowered this limit after the unions (joint strategies) were
        # chosen. So at least the default limit applies to the choice of unions.
        memory = limits.memory_limit
        if recorded is not None:
            memory = max(memory, Limits().memory_limit)
        decomposition = unite(decompose(workload, split, labels), workload, split, memory)
        _check_spaces(workload, decomposition)
        if deadline < math.inf:
            assembly_seconds = ASSEMBLY_SECONDS * len(decomposition.subworkloads)
            deadline -= min(
                assembly_seconds, MAX_ASSEMBLY_SHARE * max(deadline - planning_time(), 0.0)
            )
        solver = self.space_solver(workload, decomposition, limits, deadline)
        solver.recorded, solver.warm = recorded, warm
        costs = solver.forecast(decomposition.subworkloads)
        if search_share < math.inf:
            seconds = search_share * (deadline - planning_time())
            solver.in_time(decomposition.subworkloads, costs, seconds)
        is_uniform = not (split.centers or split.complements or split.unions)
        if recorded is None and is_uniform:
            _check_start(solver, decomposition.subworkloads, costs, limits)
        # Expected time until each solve begins.  Progress is divided by the total, so 1e-9 s are
        # added to every forecast to keep the total above 0.
        seconds_before = np.cumsum([0.0] + [c.seconds + 1e-9 for c in costs])
        if recorded is None and not warm:
            parallel_share = (1.0 - initial_progress) * 0.9
            message = "Searching strategies in parallel"

            def watch(ended: float) -> None:
                limits.tell(
                    initial_progress + parallel_share * ended, f"{message}, {ended:.0%} done"
                )

            solver.ahead(decomposition.subworkloads, costs, limits.workers, watch)
        # A strategy takes time even without search steps, so every search leaves this time to the
        # strategies after it.  Short searches are completed nevertheless.
        least_seconds = np.array([c.least_seconds for c in costs])
        later_seconds = np.cumsum(least_seconds[::-1])[::-1] - least_seconds
        solutions = []
        for i, sub in enumerate(decomposition.subworkloads):
            if deadline < math.inf:
                left = deadline - planning_time()
                share = min(2.0 * costs[i].seconds, MIN_SEARCH_SHARE * left)
                solver.reserve(min(float(later_seconds[i]), left - share))
            done = initial_progress + (1.0 - initial_progress) * float(
                seconds_before[i] / seconds_before[-1]
            )
            cells = f"{' x '.join(map(str, sub.sizes))} cells" if sub.sizes else "the total"
            text = f"Searching a strategy for {cells}"
            solver.watch = lambda gap, done=done, text=text: limits.tell(
                done, f"{text}, gap {gap:.1e}"
            )
            limits.tell(done, text)
            solutions.append(solver.solve(sub))
        return decomposition, solutions, solver

    def rebuild(self, workload: Workload, budget: Budget, solved: SolverState) -> Plan:
        """Rebuild a plan from the dual weights and query weights of an earlier search.

        Raises
        ------
        ValueError
            If the stored weights do not fit the workload or the objective.
        """
        check_request(workload, budget)
        self.check_memory(workload, Limits().memory_limit)
        goal, labels, tradeoff = self.goal(workload), self.axis_labels(workload), solved.tradeoff
        limits = Limits(memory_limit=solved.memory_limit)
        recorded = list(zip(solved.duals, solved.endings, strict=True))
        constraints = None if tradeoff is None else tradeoff.limits
        if goal.linear != (tradeoff is None or constraints is not None):
            raise ValueError("the objective differs from that of the stored search")
        if solved.split.unions and not goal.linear:
            raise ValueError(
                "a joint measurement of several residual spaces requires the objective 'sum'"
            )
        if tradeoff is None:
            decomposition, solutions, _ = self._solve(
                workload, solved.split, labels, limits, math.inf, recorded=recorded
            )
            bound = None
        elif tradeoff.lines is not None and self.uses_minimax_search:
            decomposition, solutions, bound = rebuild_proof(
                workload, goal, solved.split, labels, tradeoff, recorded
            )
        else:
            # The plan has the optimal strategies for the stored query weights.
            weighted = tradeoff.emphasis.apply(tradeoff.emphasis.check(workload))
            decomposition, solutions, _ = self._solve(
                weighted, solved.split, labels, limits, math.inf, recorded=recorded
            )
            if constraints is None:
                bound = norm_bound(workload, goal, tradeoff.emphasis, decomposition, solutions)
            else:
                bound = constrained_bound(
                    workload,
                    tradeoff.emphasis.group_weights,
                    constraints,
                    separate_bound(decomposition, solutions),
                )
            # The query weights ``witness`` may prove a better bound than those of the plan.
            if tradeoff.witness is not None:
                weighted = tradeoff.witness.apply(tradeoff.witness.check(workload))
                witness_parts, witness_solutions, _ = self._solve(
                    weighted, solved.split, labels, limits, math.inf, recorded=recorded
                )
                bound = norm_bound(
                    workload, goal, tradeoff.witness, witness_parts, witness_solutions
                )
        if tradeoff is not None and len(tradeoff.shares) != len(decomposition.spaces):
            raise ValueError("the stored noise shares are not one per residual space")
        # The functions that use ``recorded`` removed the entries that they used.
        if recorded:
            raise ValueError("the file has dual weights of more searches than the plan needs")
        plan = self._assemble(workload, budget, decomposition, solutions, solved, bound)
        if (
            constraints is not None
            and (
                np.array(plan.totals) * budget.row_pcost > constraints * (1.0 + GRID_TOLERANCE)
            ).any()
        ):
            raise ValueError("the plan violates the accuracy constraints of its groups")
        return with_stop_reasons(plan, solved.split.stopped)

    def _assemble(
        self,
        workload: Workload,
        budget: Budget,
        decomposition: Decomposition,
        solutions: Sequence[SpaceSolution],
        solved: SolverState,
        bound: float | None = None,
        joint_share: float | None = None,
        bound_deadline: float = math.inf,
    ) -> Plan:
        """Divide the budget among residual spaces, round the noise to grids, and return the plan.

        Parameters
        ----------
        bound : lower bound on the objective.  With None, the function computes the lower bound on
            the weighted sum.  If the plan is charged the joint privacy cost, `_joint_bound`
            replaces the bound.
        joint_share : result of `_joint_share`.  With None, the function computes it.
        bound_deadline : deadline of `independent_bound`, on the clock of `planning_time`.
        """
        tradeoff = solved.tradeoff
        if tradeoff is None or bound is None:
            values = {
                s: scale * solutions[k].value for s, (k, scale) in decomposition.spaces.items()
            }
            ideal = np.array(list(noise_shares(values).values()))
            bound = separate_bound(decomposition, solutions)
        else:
            ideal = tradeoff.shares
        if solved.joint is False:
            joint_share = 1.0
        elif joint_share is None:
            joint_share = _joint_share(decomposition, solutions, ideal, always=solved.joint is True)
        joint = joint_share < 1.0
        if joint:
            ideal = joint_share * ideal
            if tradeoff is None:
                bound = independent_bound(decomposition, bound_deadline)
            else:
                bound = self._joint_bound(workload, solved, tradeoff)
        factors = [tuple((a, f.strategy) for a, f in solution.factors) for solution in solutions]
        strategies = {s: factors[k] for s, (k, _) in decomposition.spaces.items()}
        stopped = sorted({s.status for s in solutions if s.status != "optimal"})
        covers_all = len(strategies) == 1 and not workload.schema.invariants
        statement = self._statement(solved.split, covers_all, stopped) + self.note(workload)
        if joint:
            statement += JOINT_TEXT
        if tradeoff is not None and tradeoff.limits is not None:
            statement += CONSTRAINTS_TEXT
        return Plan(
            workload=workload,
            budget=budget,
            mechanism=self.name,
            options=self.options(),
            blocks=self._calibrate(strategies, ideal, budget, solved.split, joint),
            bound=bound,
            statement=statement,
            duals=solved.duals,
            endings=solved.endings,
            memory_limit=solved.memory_limit,
            max_records=self.max_records,
            split=solved.split,
            tradeoff=tradeoff,
            joint=joint,
            ideal=ideal,
        )

    def _joint_bound(self, workload: Workload, solved: SolverState, tradeoff: Tradeoff) -> float:
        """Return a lower bound on the objective at joint privacy cost 1, in counts^2."""
        emphasis = tradeoff.emphasis if tradeoff.witness is None else tradeoff.witness
        weighted = emphasis.apply(workload)
        decomposition = decompose(weighted, solved.split, self.axis_labels(workload))
        total = independent_bound(unite(decomposition, weighted, solved.split))
        if tradeoff.limits is None:
            return total / dual_norm(workload, self.goal(workload), emphasis)[0]
        return constrained_bound(workload, emphasis.group_weights, tradeoff.limits, total)

    def _calibrate(
        self,
        strategies: Mapping[Space, Factored],
        ideal: Array,
        budget: Budget,
        split: Split,
        joint: bool,
    ) -> Mapping[Space, Block]:
        """Return blocks with noise on a grid that spend the budget.

        Parameters
        ----------
        ideal : squared noise of the blocks at privacy cost 1 before it is rounded to a grid, shape
            (blocks,).
        joint : if True, the privacy cost is the maximum over cells of the sum over blocks.  If
            False, it is the sum over blocks of the maximum over cells.
        """
        row_budget = budget.row_pcost
        noises = {
            s: math.sqrt(v / row_budget) for s, v in zip(strategies, ideal.tolist(), strict=True)
        }
        return calibrate(
            strategies,
            noises,
            row_budget,
            self.max_records,
            unions=split.unions,
            cost_of=row_pcosts(budget, joint),
        )

    def at_budget(self, plan: Plan, budget: Budget) -> Plan:
        if plan.ideal is None or (plan.tradeoff is not None and plan.tradeoff.limits is not None):
            # Rebuilding the plan checks its accuracy constraints with the noise for the new budget.
            return super().at_budget(plan, budget)
        check_request(plan.workload, budget)
        noisy = self._calibrate(
            strategies_of(plan.blocks), plan.ideal, budget, plan.split, plan.joint
        )
        return plan.with_noise(budget, noisy)

    def _statement(self, split: Split, covers_all: bool, stopped: Sequence[str]) -> str:
        """Return the statement of the certificate.

        It states which error the bound is for, which plans the bound holds for, and why searches
        ended early.

        Parameters
        ----------
        covers_all : whether one strategy measures everything and there are no public tables.  In
            this case, a bound for one joint strategy (union) holds for all matrix mechanisms.
        stopped : termination messages of searches that did not reach the optimum.
        """
        measure = {
            "sum": "weighted RMSE",
            "max": "largest standard error",
            "lp": f"power mean of variances (power {self.power:g})",
        }[self.objective]
        if self.targets is not None:
            measure = "largest ratio of standard error to target"
        # ``bound_text`` is about the weighted RMSE of plans with uniform centers
        text = self.bound_text
        if split.unions and covers_all:
            text = "No matrix mechanism whatsoever can have a smaller weighted RMSE than the bound."
        elif split.centers or split.unions:
            text = text.replace("uniform centers", "these tuned splits") + TUNED_TEXT
        text = text.replace("weighted RMSE", measure)
        return text + (f" Searches ended: {'; '.join(stopped)}." if stopped else "")


def _step_ratio(sub: Subworkload, decomposition: Decomposition) -> float:
    """Return the expected time of a later search for a subworkload, relative to the first search."""
    if not sub.mixed:
        return 1.0
    rank = sum(
        math.prod(decomposition.factors[k].rank for _, k in term.factors) for term in sub.terms
    )
    return FULL_RANK_STEP_RATIO if rank >= sub.dimension else LOW_RANK_STEP_RATIO


def table_entries(workload: Workload, decomposition: Decomposition) -> float:
    """Return the expected number of entries of the tables of variances in a step of the search.

    There is one entry per residual space of a group and per query of a table.  The queries of a
    table combine the query families whose attributes are coupled by a strategy on several
    attributes, or all families if the group has one weight per query.  Equal groups are counted
    once.
    """
    entries = 0.0
    for group_class in workload.group_classes:
        group = workload.groups[group_class.numbers[0]]
        part_of_axis = {axis: p for p, part in enumerate(group.parts) for axis in part.axes}
        coupled = [
            tuple(sorted({part_of_axis[axis] for axis in axes}))
            for axes in group.spaces(workload.schema)
            if (space := group.named(axes)) in decomposition.spaces
            and decomposition.of(space).mixed
        ]
        counts = [part.count for part in group.parts]
        sets = [tuple(range(len(counts)))]
        if group.query_weights is None:
            sets = connected_components(len(counts), coupled)
        queries = math.fsum(float(math.prod(counts[p] for p in indices)) for indices in sets)
        entries += 2.0 ** len(group.attributes) * queries
    return entries


def _check_spaces(workload: Workload, decomposition: Decomposition) -> None:
    """Raise PlanError if the weighted queries need no measurement."""
    if decomposition.spaces:
        return
    if exact := workload.schema.exact_text:
        raise PlanError(
            f"Every weighted query follows from {exact}, so there is nothing to measure. Add other"
            " queries."
        )
    raise PlanError(
        "All coefficients of the queries with positive weight are 0, so they count no records. Add"
        " a query with a coefficient other than 0."
    )


def _check_start(
    solver: SpaceSolver, subs: Sequence[Subworkload], costs: Sequence[Cost], limits: Limits
) -> None:
    """Raise LimitExceeded if the strategies exceed the time limit even without search steps.

    The limit is at least `MIN_REFUSED_SECONDS`.  If the strategies exceed the limit, the function
    first lets ``solver`` replace dense strategies by product strategies.  ``costs`` has the
    forecast of each subworkload in ``subs``.
    """
    limit = max(limits.time_limit or math.inf, MIN_REFUSED_SECONDS)
    if math.fsum(cost.least_seconds for cost in costs) <= limit:
        return
    solver.in_time(subs, costs, limit)
    costs = solver.forecast(subs)
    seconds = math.fsum(cost.least_seconds for cost in costs)
    if seconds > limit:
        longest = max(range(len(subs)), key=lambda k: costs[k].least_seconds)
        cells = " x ".join(map(str, subs[longest].sizes))
        raise start_error(f"A strategy for the queries on {cells} cells", seconds, limits)


def _joint_share(
    decomposition: Decomposition,
    solutions: Sequence[SpaceSolution],
    ideal: Array,
    *,
    always: bool = False,
) -> float:
    """Return the joint privacy cost of all blocks divided by the sum of their separate costs.

    Parameters
    ----------
    ideal : squared noise of the blocks before it is rounded to a grid, shape (blocks,).
    always : if False, a result above 1 - `MIN_JOINT_SAVING` is replaced by 1.
    """
    factors = [tuple((a, f.strategy) for a, f in solution.factors) for solution in solutions]
    factors_by_space = [(space, factors[k]) for space, (k, _) in decomposition.spaces.items()]
    noises = np.sqrt(ideal).tolist()
    share = joint_share(
        [
            (space, strategy, 1.0 / noise**2)
            for (space, strategy), noise in zip(factors_by_space, noises, strict=True)
        ]
    )
    return share if always or share < 1.0 - MIN_JOINT_SAVING else 1.0
