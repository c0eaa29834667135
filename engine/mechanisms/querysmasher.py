"""QuerySmasher: optimal strategies on residual spaces, with optional tuned centers.

The mechanism splits every query into residual spaces and solves each space optimally.

Source: QuerySmasher, algorithm 1; tuned centers are an extension of this project.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from engine._arrays import Array
from engine._clock import planning_time
from engine._validation import check_choice
from engine.errors import LimitExceeded, NotApplicable, PlanError, Unanswered
from engine.mechanisms.base import Design, Forecast, Limits, check_request, explicit_plan, is_number
from engine.mechanisms.kronecker import table_design, table_seconds, unit_seconds
from engine.mechanisms.residual_base import (
    BASE_BYTES,
    CandidatePlan,
    ResidualMechanism,
    SpaceSolver,
    with_stop_reasons,
)
from engine.mechanisms.reweighting import checked_keep, constrained_search, variance_limits
from engine.plans import Plan
from engine.plans.plan import SolverState
from engine.privacy import Budget
from engine.residuals import Options, Space, Split
from engine.residuals.basis import UNIFORM
from engine.residuals.decomposition import Decomposition, decompose
from engine.residuals.search_cache import PROBLEMS
from engine.residuals.subworkload_solver import MAX_TUNED_SEARCH_S, SubworkloadSolver
from engine.residuals.tuning.center_objective import Allowance
from engine.residuals.tuning.complements import can_tune
from engine.residuals.tuning.tune import SplitMemory, split_seconds, ways_to_split
from engine.residuals.tuning.unions import (
    choose_unions,
    strategy_seconds,
    union_bytes,
    variance_seconds,
)
from engine.workload import Workload

# For forecasts: tuning of centers takes this many times as long as one search for the strategies of
# all residual spaces.  The search for one joint strategy of all residual spaces may take as long.
TUNING_SOLVES = 40.0
# For forecasts: smallest time of tuning, in seconds per subworkload.
MIN_TUNING_SECONDS = 1e-3
CENTERS = ("uniform", "tuned")
# With tuned centers, the plan with uniform centers is computed first.  Its dense searches may take
# this share of the time limit, so that time remains for tuning.
UNIFORM_SEARCH_SHARE = 0.25
# A product strategy on the full table is searched if this is expected to take at most
# MAX_PRODUCT_SEARCH_S seconds, or at most the share PRODUCT_SEARCH_SHARE of the time limit.
MAX_PRODUCT_SEARCH_S = 1.0
PRODUCT_SEARCH_SHARE = 0.1
# A product strategy on the full table is used only if it lowers the RMSE by more than this share.
# A plan with a product strategy has a disadvantage: it cannot publish tables.
MIN_PRODUCT_SAVING = 1e-5
TABLE_STATEMENT = (
    "A product of strategies on the full table is more accurate here than residual spaces."
)
# For forecasts: number of plans that a search with accuracy constraints computes.
CONSTRAINED_PLANS = 10
# A search with accuracy constraints tries these weighted means of tuned and uniform centers, in
# this order.  Each number is the weight of the tuned centers.
TUNED_SHARES = (1.0, 0.5, 0.25)


@dataclass(frozen=True, kw_only=True)
class QuerySmasher(ResidualMechanism):
    """Optimal strategies on all residual spaces, with a certificate.

    Options
    -------
    centers : "uniform" is the decomposition into residual spaces of the paper.  "tuned" optimises
        the decomposition.  For the objective "sum" it may also measure several residual spaces by
        one strategy, or all of them by a product strategy on the full table.  Up to ``gap``, the
        plan is at least as accurate as with "uniform".  See `engine.residuals.tuning`.
    keep : accuracy constraint for tuned centers: share by which the RMSE of a group may exceed its
        RMSE with uniform centers.  The value is one share for all groups, or a mapping from group
        index to share, such as {0: 0.0, 3: 0.05}.  Without the option, tuning lowers the total
        error but may raise the error of single groups.
    solver : "optimal", or the approximations "fourier" (closed form) and "eigenbasis" (fixed
        basis).
    gap : relative RMSE gap at which a search stops.
    """

    name: ClassVar[str] = "querysmasher"
    title: ClassVar[str] = "QuerySmasher"
    meaning: ClassVar[str] = (
        "Optimal noise for every group of attributes, whatever the queries look like."
    )
    variants: ClassVar[tuple[Mapping[str, Any], ...]] = ({}, {"centers": "tuned"})
    choices: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "centers": CENTERS,
        "solver": tuple(PROBLEMS),
    }

    unsaid: ClassVar[Mapping[str, Any]] = {"keep": None}

    centers: str = "uniform"
    keep: float | Mapping[int, float] | None = None
    solver: str = "optimal"
    gap: float = 1e-6

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("option centers", self.centers, CENTERS, error=PlanError, public=True)
        if self.keep is not None:
            object.__setattr__(self, "keep", checked_keep(self.keep))
            if self.centers != "tuned" or self.objective != "sum":
                raise PlanError(
                    'keep is possible only with centers="tuned" and objective="sum", but centers is'
                    f' "{self.centers}" and objective is "{self.objective}". Give both of these'
                    " values, or leave keep out."
                )
        check_choice("option solver", self.solver, PROBLEMS, error=PlanError, public=True)
        if not is_number(self.gap) or not 1e-9 <= self.gap <= 1:
            raise PlanError(f"gap is {self.gap!r}. Give a number from 1e-9 to 1, such as 1e-6.")

    @property
    def uses_minimax_search(self) -> bool:  # type: ignore[override]
        return self.solver == "optimal"

    @property
    def has_wide_intervals(self) -> bool:
        return self.solver == "optimal"

    def with_gap(self, gap: float) -> QuerySmasher:
        return replace(self, gap=max(self.gap, gap))

    def forecast(self, workload: Workload, limits: Limits) -> Forecast:
        """Predict the time and memory of planning; tuned centers take additional time and memory."""
        self.check_memory(workload, limits.memory_limit)
        parts = decompose(workload, forecast=True)
        base = self.forecast_split(workload, parts, limits)
        base = replace(base, seconds=base.seconds + self.joint_seconds(workload, parts))
        if self.centers != "tuned":
            return base
        unions = self._choose_unions(workload, parts.spaces, limits)
        peak_bytes = max(
            (union_bytes(workload, a, spaces) for a, spaces in unions.items()), default=0.0
        )
        covers_all = _covers_all(unions, parts.spaces)
        tuning_seconds = MIN_TUNING_SECONDS * len(parts.subworkloads)
        # A union is a set of residual spaces that one strategy measures.  All residual spaces are
        # solved once without unions, once with unions, and again if some unions are rejected.
        solves = 3.0 if unions and not covers_all else 1.0
        seconds = base.seconds * solves + tuning_seconds
        constrained_seconds = tuning_seconds + base.seconds  # per plan with accuracy constraints
        for attributes, spaces in unions.items():
            search_seconds = strategy_seconds(workload, attributes, spaces) + variance_seconds(
                workload, attributes, spaces
            )
            seconds += search_seconds
            constrained_seconds += search_seconds
        if self.keep is not None:
            seconds += CONSTRAINED_PLANS * constrained_seconds
        if not covers_all:
            allowance = Allowance(memory=limits.memory_limit, deadline=limits.deadline())
            seconds += split_seconds(workload, parts.subworkloads, parts.factors, allowance)
            table_seconds = self._table_seconds(workload, limits)
            if math.isfinite(table_seconds):
                seconds += table_seconds
            # For objectives other than the weighted sum there are two searches: with tuned centers
            # and with uniform centers.
            if not self.goal(workload).linear:
                seconds += base.seconds
        return replace(
            base, seconds=seconds, memory=base.memory + min(peak_bytes, limits.memory_limit)
        )

    def best(
        self, workload: Workload, budget: Budget, limits: Limits, deadline: float
    ) -> CandidatePlan:
        if self.centers != "tuned":
            return super().best(workload, budget, limits, deadline)
        if not self.goal(workload).linear:
            return self._best_for_objective(workload, budget, limits, deadline)
        started = planning_time()
        first_deadline, share = deadline, UNIFORM_SEARCH_SHARE
        if self._ends_uniform_search_early(workload, limits):
            first_deadline, share = started + share * (deadline - started), 1.0
        uniform = self.candidate_plan(
            workload, budget, limits, first_deadline, UNIFORM, search_share=share
        )
        elapsed = planning_time() - started
        limits.tell(0.1, "Choosing spaces to measure together")
        unions = self._choose_unions(workload, uniform.values, limits)
        # After tuning, one plan is computed with tuned centers, one with tuned splits of pairs
        # (complements) if some pair can have them, and one with joint strategies for several spaces
        # (unions) if there are any. The dense searches of each may take MAX_TUNED_SEARCH_S, so this
        # time is reserved for two of these plans at most.
        plans = min(1 + bool(unions) + can_tune(workload), 2)
        reserve = plans * min(elapsed, MAX_TUNED_SEARCH_S)
        allowance = Allowance(memory=limits.memory_limit, deadline=deadline - reserve)
        # Plans may use the reserved time.  Both allowances share one record of exceeded limits.
        plan_allowance = Allowance(deadline=deadline, stopped=allowance.stopped)

        def report(done: float, text: str) -> None:
            """Report progress; raise TimeoutError after the deadline."""
            plan_allowance.check()
            limits.tell(0.8 + 0.2 * done, text)

        def plans_of_split(split: Split) -> list[CandidatePlan]:
            """Return a list with the plan for a split; the list is empty if planning fails."""
            return self._try_split(
                workload, budget, replace(limits, progress=report), deadline, split, allowance
            )

        product_allowance = replace(plan_allowance, memory=allowance.memory)
        product: Plan | None = None
        searches_product_first = self._searches_product_first(workload, limits, unions, uniform)
        if searches_product_first:
            product = self._product_plan(workload, budget, limits, product_allowance, done=0.1)
        candidates = sorted(
            self._candidates(workload, uniform, unions, plans_of_split, limits, allowance),
            key=lambda plan: plan.error,
        )
        # A plan is not answerable if rounding drops the measurements of queries with a small
        # weight.  The loop skips such a plan if it is tuned.  The plan with uniform centers raises
        # `Unanswered`, which tells the user the reason.
        best = next((c for c in candidates if c is uniform or self._is_answerable(c)), uniform)
        if not searches_product_first and (
            not _covers_all(best.split.unions, uniform.values)
            or best.plan.certificate.gap > MIN_PRODUCT_SAVING
        ):
            # The search for a product strategy may use the time that is left after tuning.
            product = self._product_plan(workload, budget, limits, product_allowance, done=0.95)
        if product is not None:
            best = self._better_with_product(product, best)
        # The search with uniform centers was ended at its own deadline.  If it gave the best plan,
        # it continues in the time that is left.
        if best is uniform and started + elapsed >= first_deadline and planning_time() < deadline:
            best = self.candidate_plan(
                workload, budget, limits, deadline, UNIFORM, warm=uniform.duals
            )
        if self.keep is not None and best is not uniform:
            best = self._constrained_plan(workload, budget, limits, deadline, uniform, best)
        return replace(
            best, assemble=lambda: with_stop_reasons(best.plan, frozenset(allowance.stopped))
        )

    def _ends_uniform_search_early(self, workload: Workload, limits: Limits) -> bool:
        """Return whether the search with uniform centers must end before the time limit.

        The result is True if two conditions hold:

        - the search is expected to take more than `UNIFORM_SEARCH_SHARE` of the time limit;
        - one strategy for all residual spaces, which is at least as accurate, can be searched.

        With the option ``keep`` the result is False, because the accuracy constraints refer to the
        plan with uniform centers.
        """
        if limits.time_limit is None or self.keep is not None:
            return False
        parts = decompose(workload, forecast=True)
        uniform_seconds = self.forecast_split(workload, parts, limits).seconds
        if uniform_seconds <= UNIFORM_SEARCH_SHARE * limits.time_limit:
            return False
        return _covers_all(self._choose_unions(workload, parts.spaces, limits), parts.spaces)

    def _try_split(
        self,
        workload: Workload,
        budget: Budget,
        limits: Limits,
        deadline: float,
        split: Split,
        allowance: Allowance,
        best_error: float = math.inf,
    ) -> list[CandidatePlan]:
        """Return a list with the plan for a split of queries into residual spaces.

        The list is empty if planning fails.  For objectives other than the weighted sum, the search
        stops when its lower bound shows that the error is at least ``best_error``.
        """
        try:
            plan = self.candidate_plan(workload, budget, limits, deadline, split, best_error)
            if split.unions:
                # Building the plan raises `Unanswered` if joint strategies for several spaces
                # (unions) leave queries without an answer.
                _ = plan.plan
            return [plan]
        # NotApplicable is raised if the plan does not answer all queries, or if a residual space is
        # too large for the objective.
        except (TimeoutError, NotApplicable):
            return []
        except LimitExceeded:
            allowance.stopped.add("memory")
            return []

    def _best_for_objective(
        self, workload: Workload, budget: Budget, limits: Limits, deadline: float
    ) -> CandidatePlan:
        """Return the better plan of tuned and uniform centers, for an objective other than the sum.

        The search with uniform centers is the last one.  It usually stops after a few steps, when
        its lower bound shows that the plan with tuned centers is better.
        """
        # The call raises an error if a strategy exceeds the limits even without search steps.
        self.forecast_split(workload, decompose(workload, forecast=True), limits)
        started = planning_time()
        # One third of the time is for tuning, one third for plans with tuned centers, and one third
        # for the plan with uniform centers.
        third = (deadline - started) / 3.0

        def between(low: float, high: float) -> Limits:
            """Return limits whose progress callback maps 0 to 1 onto ``low`` to ``high``."""
            return replace(
                limits, progress=lambda done, text: limits.tell(low + (high - low) * done, text)
            )

        def separate_error(plan: CandidatePlan | None) -> float:
            """Return the error that a plan would have without the saving by its joint cost.

            A search compares this error with its lower bound, which is for the sum of the costs of
            all blocks.  If ``plan`` is None, the error is infinite.
            """
            return math.inf if plan is None else plan.error / plan.joint

        allowance = Allowance(memory=limits.memory_limit, deadline=started + third)
        best: CandidatePlan | None = None
        for split in self._splits(workload, between(0.0, 0.7).tell, limits, allowance):
            if not (split.centers or split.complements):
                continue
            for candidate in self._try_split(
                workload,
                budget,
                between(0.7, 0.9),
                started + 2.0 * third,
                split,
                allowance,
                separate_error(best),
            ):
                is_better = best is None or candidate.error < best.error
                if is_better and self._is_answerable(candidate):
                    best = candidate
        uniform = self.candidate_plan(
            workload, budget, between(0.9, 1.0), deadline, UNIFORM, separate_error(best)
        )
        chosen = uniform if best is None or uniform.error <= best.error else best
        return replace(
            chosen, assemble=lambda: with_stop_reasons(chosen.plan, frozenset(allowance.stopped))
        )

    def _constrained_plan(
        self,
        workload: Workload,
        budget: Budget,
        limits: Limits,
        deadline: float,
        uniform: CandidatePlan,
        best: CandidatePlan,
    ) -> CandidatePlan:
        """Return a plan that satisfies the accuracy constraints of the option ``keep``.

        The function searches group weights for several splits: weighted means of uniform centers
        and the split of ``best``, which gets the weights `TUNED_SHARES`.  It returns the first plan
        that satisfies the constraints and has a smaller error than ``uniform``.  If there is none,
        it returns ``uniform``, which satisfies the constraints.
        """
        assert self.keep is not None
        sum_limits = variance_limits(self.keep, workload, uniform.sums().tolist())
        weights = np.array([group.weight for group in workload.groups])

        def may_continue(done: float) -> bool:
            """Report progress and return whether time remains."""
            limits.tell(0.9 + 0.1 * done, "Reweighting single groups")
            return planning_time() <= deadline

        for share in TUNED_SHARES:
            split = best.split.towards_uniform(share)

            def build_plan(factors: Array, split: Split = split) -> CandidatePlan:
                """Return the plan for group weights multiplied by ``factors``."""
                return self.weighted_plan(
                    workload, budget, limits, deadline, split, weights * factors, sum_limits
                )

            plan = constrained_search(build_plan, sum_limits, may_continue)
            if plan is not None and plan.error < uniform.error:
                return plan
        return uniform

    def _table_seconds(self, workload: Workload, limits: Limits) -> float:
        """Return the expected time of searching a product strategy on the full table, in seconds.

        The result is infinite if this search does not apply or would take too long.
        """
        # The search does not support other objectives than the weighted sum, accuracy constraints
        # or public tables.
        if self.solver != "optimal" or not self.goal(workload).linear or self.keep is not None:
            return math.inf
        if workload.schema.invariants or limits.memory_limit < BASE_BYTES:
            return math.inf
        # The time for the largest attribute alone is a lower bound that is fast to compute.
        examples = [workload.groups[c.numbers[0]] for c in workload.group_classes]
        largest_size = max((n for group in examples for n in group.sizes), default=1)
        longest = max(MAX_PRODUCT_SEARCH_S, PRODUCT_SEARCH_SHARE * (limits.time_limit or 0.0))
        if unit_seconds(largest_size) > longest:
            return math.inf
        seconds = table_seconds(workload)
        return seconds if seconds <= longest else math.inf

    def _searches_product_first(
        self,
        workload: Workload,
        limits: Limits,
        unions: Mapping[Space, tuple[Space, ...]],
        uniform: CandidatePlan,
    ) -> bool:
        """Return whether a product strategy on the full table is searched before tuning.

        The result is True in two cases:

        - no union (joint strategy) has all residual spaces.  Only a strategy for all residual
          spaces could make the
          product strategy unnecessary;
        - the search for the strategies of the unions is expected to take at least ten times as long
          as the search for the product strategy.
        """
        if not _covers_all(unions, uniform.values):
            return True
        union_seconds = math.fsum(strategy_seconds(workload, *union) for union in unions.items())
        return self._table_seconds(workload, limits) <= 0.1 * union_seconds

    def _product_plan(
        self,
        workload: Workload,
        budget: Budget,
        limits: Limits,
        allowance: Allowance,
        *,
        done: float,
    ) -> Plan | None:
        """Return the plan of a product strategy on the full table.

        The result is None if the search does not apply, fails, or is expected to exceed a limit.
        ``done`` is the share of planning that is done, for progress reports.
        """
        seconds = self._table_seconds(workload, limits)
        if math.isinf(seconds) or not allowance.has_time(seconds):
            return None
        try:
            design = table_design(
                workload, allowance.deadline, lambda text: limits.tell(done, text)
            )
            return self._table_plan(workload, budget, design)
        except (NotApplicable, LimitExceeded):
            return None

    def _better_with_product(self, product: Plan, best: CandidatePlan) -> CandidatePlan:
        """Return ``product`` if it lowers the RMSE of ``best`` enough, otherwise ``best``.

        The RMSE must fall by more than the share ``gap`` and by more than `MIN_PRODUCT_SAVING`.
        """
        # The RMSE of a built plan includes the rounding of noise to a grid.  `CandidatePlan.error`
        # does not include it.
        saving = max(self.gap, MIN_PRODUCT_SAVING)
        if product.weighted_rmse >= best.plan.weighted_rmse * (1.0 - saving):
            return best
        return CandidatePlan(
            split=UNIFORM, error=product.weighted_rmse, values={}, assemble=lambda: product
        )

    def _table_plan(self, workload: Workload, budget: Budget, design: Design) -> Plan:
        return explicit_plan(self, workload, budget, replace(design, statement=TABLE_STATEMENT))

    def rebuild(self, workload: Workload, budget: Budget, solved: SolverState) -> Plan:
        if not solved.matrices:
            return super().rebuild(workload, budget, solved)
        check_request(workload, budget)
        design = replace(
            Design.from_arrays(solved.matrices, workload, budget.law), bound=solved.bound
        )
        return with_stop_reasons(self._table_plan(workload, budget, design), solved.split.stopped)

    @staticmethod
    def _is_answerable(candidate: CandidatePlan) -> bool:
        """Build the plan, and return whether it answers all queries of positive weight."""
        with contextlib.suppress(Unanswered):
            return bool(candidate.plan)
        return False

    def _candidates(
        self,
        workload: Workload,
        uniform: CandidatePlan,
        unions: Mapping[Space, tuple[Space, ...]],
        plans_of_split: Callable[[Split], list[CandidatePlan]],
        limits: Limits,
        allowance: Allowance,
    ) -> list[CandidatePlan]:
        """Return candidate plans: uniform centers, tuned splits and ``unions`` (joint strategies).

        If one strategy for all residual spaces gives a better plan than uniform centers, that plan
        is the only candidate.
        """
        unions = _affordable_unions(workload, unions, allowance)
        if _covers_all(unions, uniform.values):
            united = _plans_with_unions(uniform, unions, plans_of_split)
            # The RMSE of a built plan includes the rounding of noise to a grid, which costs more
            # for a single strategy than for several.  `CandidatePlan.error` does not include it.
            if united and united[0].plan.weighted_rmse < uniform.plan.weighted_rmse:
                return united
            unions = {}
        candidates = [uniform]
        for split in self._splits(
            workload, lambda done, text: limits.tell(0.1 + 0.7 * done, text), limits, allowance
        ):
            if split.centers or split.complements:
                candidates += plans_of_split(split)
        # Tuning took time, so the time left may allow fewer unions (joint strategies).
        unions = _affordable_unions(workload, unions, allowance)
        best = min(candidates, key=lambda plan: plan.error)
        return candidates + _plans_with_unions(best, unions, plans_of_split)

    def _choose_unions(
        self, workload: Workload, spaces: Collection[Space], limits: Limits
    ) -> dict[Space, tuple[Space, ...]]:
        """Choose unions: sets of residual spaces that one strategy measures together.

        Returns
        -------
        Mapping from the attributes of each union to its residual spaces.  It is empty unless the
        objective is the weighted sum and the solver "optimal".
        """
        # Objectives other than the weighted sum need a separate budget share for every residual
        # space, but all spaces of a union (joint strategy) have the same share.
        if self.solver != "optimal" or not self.goal(workload).linear:
            return {}

        def separate_seconds() -> float:
            """Return the expected seconds of planning without unions (joint strategies)."""
            parts = decompose(workload, forecast=True)
            allowance = Allowance(memory=limits.memory_limit, deadline=limits.deadline())
            uniform = replace(self, centers="uniform", keep=None).forecast_split(
                workload, parts, limits
            )
            tuning_seconds = split_seconds(workload, parts.subworkloads, parts.factors, allowance)
            return max(TUNING_SOLVES * (uniform.seconds - self.overhead(workload)), tuning_seconds)

        time_limit = math.inf if limits.time_limit is None else limits.time_limit
        # With accuracy constraints many plans are computed. Therefore a plan with unions (joint
        # strategies for several residual spaces) must not take longer than a plan without unions.
        if self.keep is not None:
            time_limit = min(time_limit, separate_seconds())
        return choose_unions(workload, spaces, limits.memory_limit, separate_seconds, time_limit)

    def _splits(
        self,
        workload: Workload,
        tell: Callable[[float, str], None],
        limits: Limits,
        allowance: Allowance,
    ) -> Iterator[Split]:
        """Yield the split with tuned complements of pairs, then the split with tuned centers only.

        The splits that `ways_to_split` excludes are left out.
        """
        memory = SplitMemory(workload, limits.solve_cache(), allowance, limits.window_weights)
        tunes_complements, tunes_centers = ways_to_split(workload, allowance)
        if tunes_complements:
            yield memory.complements(tell)
        if tunes_centers:
            yield memory.centers(tell)

    def space_solver(
        self, workload: Workload, parts: Decomposition, limits: Limits, deadline: float
    ) -> SpaceSolver:
        return SubworkloadSolver(
            factors=parts.factors,
            method=self.solver,
            options=Options(gap=self.gap, deadline=deadline),
            memory_limit=limits.memory_limit,
            cache=limits.solve_cache(),
            window_weights=limits.window_weights,
        )


def _covers_all(unions: Mapping[Space, tuple[Space, ...]], spaces: Collection[Space]) -> bool:
    """Return whether the first union (jointly measured spaces) consists of all residual spaces."""
    return len(next(iter(unions.values()), ())) == len(spaces)


def _affordable_unions(
    workload: Workload, unions: Mapping[Space, tuple[Space, ...]], allowance: Allowance
) -> dict[Space, tuple[Space, ...]]:
    """Return the unions (joint strategies) for which the remaining time suffices.

    The unions are tried in order.  A union is accepted if its expected time and the expected times
    of all accepted unions together do not exceed the remaining time.
    """
    accepted, seconds = dict[Space, tuple[Space, ...]](), 0.0
    for attributes, spaces in unions.items():
        total = seconds + variance_seconds(workload, attributes, spaces)
        if allowance.has_time(total):
            accepted[attributes], seconds = spaces, total
    return accepted


def _plans_with_unions(
    separate: CandidatePlan,
    unions: Mapping[Space, tuple[Space, ...]],
    plans_of_split: Callable[[Split], list[CandidatePlan]],
) -> list[CandidatePlan]:
    """Return a list with the plan that has all unions (joint strategies) that lower the error.

    A union raises the error if its search stopped early; such a union is left out.  The list is
    empty if no union remains or if planning fails.

    Parameters
    ----------
    separate : plan without unions.
    unions : mapping from the attributes of a union to its residual spaces.
    plans_of_split : function that returns a list with the plan for a split.  The list is empty if
        planning fails.
    """
    plans = plans_of_split(replace(separate.split, unions=unions)) if unions else []
    if not plans:
        return []
    # The RMSE of a plan is proportional to the sum of sqrt(value) over its blocks. A union (joint
    # strategy) replaces the blocks of its residual spaces by one block.
    retained = {
        attributes: spaces
        for attributes, spaces in unions.items()
        if math.sqrt(plans[0].values[attributes])
        < math.fsum(math.sqrt(separate.values[space]) for space in spaces)
    }
    if len(retained) == len(unions):
        return plans
    return _plans_with_unions(separate, retained, plans_of_split)
