"""Base class of mechanisms with independent noise on residual spaces.

With L_B the weighted squared error of residual space B at privacy cost 1, the best shares of a budget beta are

    noise_B^2 = (sum over B' of sqrt(L_B')) / (beta sqrt(L_B)),      objective (sum over B of sqrt(L_B))^2 / beta.

A subclass says how one subworkload is solved.  Source: QuerySmasher, section 6.4 and theorem 5; ResidualPlanner+.
"""

from __future__ import annotations

import contextlib
import math
import time
from abc import abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol, Self

import numpy as np

from engine._arrays import Array
from engine.bounds.independent_blocks import independent_bound
from engine.errors import PlanError, Unanswered
from engine.mechanisms.base import Forecast, Limits, Mechanism, check_request, check_size, check_tight
from engine.mechanisms.candidate import Made, noted
from engine.mechanisms.group_constraints import SLACK, kept_bound, noise_shares, separate_bound
from engine.mechanisms.minimax import Balanced, balanced, fits, rebuilt, rounds
from engine.mechanisms.reweighting import (
    APART,
    EVALUATIONS,
    WHOLE_QUERIES,
    Candidate,
    Step,
    TradeoffSearch,
    dual_norm,
    proven,
)
from engine.plans import Block, Plan
from engine.plans.blocks import MAX_JOINT, calibrate, joint_share, strategies_of
from engine.plans.objectives import Emphasis
from engine.plans.replace_one import row_pcosts
from engine.plans.solver_state import Solved, Tradeoff
from engine.privacy import Budget
from engine.progress import rising
from engine.residuals import Axes, Space, Split, Strategy
from engine.residuals.decomposition import Decomposition, Subworkload, decompose
from engine.residuals.dual_solver import Watch
from engine.residuals.split import UNIFORM
from engine.residuals.strategy_search import Cost
from engine.residuals.subworkload_solver import SpaceSolution
from engine.residuals.tuning.unions import unite
from engine.workload import Workload

BASE_BYTES = 120e6  # of the process before it plans, for forecasts only
BASE_SECONDS, GROUP_SECONDS = 0.003, 1e-5  # of everything but searches, a plan and a group, for forecasts only
JOINT_SECONDS = 6e-3  # of the costliest cell of all blocks and of its bound, a space, for forecasts only
BY_LINES, BY_POWER = EVALUATIONS / 34.0, EVALUATIONS / 15.0  # steps as long as searches took, for forecasts only
WORTH = 1e-5  # share of the cost that charging one cell for all spaces must save; searches stop that far from the best
Factored = tuple[tuple[Axes, Strategy], ...]  # strategies on disjoint axes of a space, whose product measures it
IN_TOTAL = " Tuned splits are better in total; single groups may be less exact than with uniform centers."
JOINT = " The cost is that of the costliest cell in all spaces together."
KEPT = " That is among plans that keep single groups as exact as this one was asked to."


class SpaceSolver(Protocol):
    """Solves the subworkloads of one decomposition, one after the other."""

    watch: Watch | None
    duals: list[Array]
    endings: list[str]
    dense_limit: float
    recorded: list[tuple[Array, str]] | None
    warm: tuple[Array, ...]

    def forecast(self, subs: Sequence[Subworkload]) -> list[Cost]:
        """Return what each subworkload will take."""

    def in_time(self, subs: Sequence[Subworkload], costs: Sequence[Cost], seconds: float) -> None:
        """Lower ``dense_limit`` to what fits into so many seconds; see `SubworkloadSolver.in_time`."""

    def ahead(
        self,
        subs: Sequence[Subworkload],
        costs: Sequence[Cost],
        workers: int | None,
        tell: Callable[[float], object],
    ) -> None:
        """Search side by side what is worth it; see `SubworkloadSolver.ahead`."""

    def solve(self, sub: Subworkload) -> SpaceSolution:
        """Return the strategy of one subworkload."""


@dataclass(frozen=True, kw_only=True)
class ResidualMechanism(Mechanism):
    """Base of the mechanisms of this kind; see the module's text."""

    keeps_invariants: ClassVar[bool] = True
    bound_text: ClassVar[str] = (
        "No strategy that measures the residual spaces of uniform centers independently can have a smaller weighted "
        "RMSE than the bound."
    )

    by_lines: ClassVar[bool] = False  # whether strategies are the best for any weights of single queries

    @abstractmethod
    def space_solver(self, workload: Workload, parts: Decomposition, limits: Limits, deadline: float) -> SpaceSolver:
        """Return what solves the subworkloads."""

    def nearing(self, gap: float) -> Self:
        """Return the mechanism for steps on the way, whose strategies need be no closer to the best than this."""
        return self

    def axis_labels(self, workload: Workload) -> dict[str, Hashable]:
        """Return what distinguishes attributes of equal size for this mechanism, beyond what is asked of them."""
        return {}

    def overhead(self, workload: Workload) -> float:
        """Return the seconds of everything but searches, for forecasts."""
        return BASE_SECONDS + GROUP_SECONDS * len(workload.groups)

    def forecast(self, workload: Workload, limits: Limits) -> Forecast:
        check_size(workload, limits.memory_limit)
        parts = decompose(workload, labels=self.axis_labels(workload))
        found = self.expected(workload, parts, limits)
        return replace(found, seconds=found.seconds + self.joint_seconds(workload, parts))

    def joint_seconds(self, workload: Workload, parts: Decomposition) -> float:
        """Return the seconds of the costliest cell of all blocks and of its bound, for forecasts.

        Cells cost differently where strategies measure less than a whole space, or for other objectives than the sum.
        """
        uneven = any(f.low_rank for f in parts.factors) or not self.goal(workload).linear
        return JOINT_SECONDS * len(parts.spaces) if uneven and len(parts.spaces) <= MAX_JOINT else 0.0

    def expected(self, workload: Workload, parts: Decomposition, limits: Limits) -> Forecast:
        """Return what planning takes with one split, whose decomposition is known."""
        costs = (solver := self.space_solver(workload, parts, limits, math.inf)).forecast(parts.subworkloads)
        peak = min(max((c.peak for c in costs), default=0.0), limits.memory_limit)
        seconds, memory = math.fsum(c.seconds for c in costs), BASE_BYTES + math.fsum(c.kept for c in costs) + peak
        if not self.goal(workload).linear:  # weights of every step leave no space like another
            check_tight(parts.subworkloads, costs)
            apart = math.fsum(solver.forecast([sub])[0].seconds for sub in parts.subworkloads)
            plans = rounds(workload, self.goal(workload), UNIFORM) if self.by_lines else 0
            steps = BY_LINES * (1 + plans) if plans else EVALUATIONS
            if math.isfinite(self.goal(workload).power) and all(len(sub.terms) == 1 for sub in parts.subworkloads):
                steps = BY_POWER
            seconds = 0.1 + steps * (APART * apart + 2e-4 * len(parts.spaces))
        text = f"{len(parts.spaces):,} residual spaces, {len(parts.subworkloads):,} different ones"
        return Forecast(seconds=self.overhead(workload) + seconds, memory=memory, text=text)

    def plan(self, workload: Workload, budget: Budget, limits: Limits) -> Plan:
        deadline = limits.deadline()
        check_request(workload, budget)
        check_size(workload, limits.memory_limit)
        limits = replace(limits, progress=rising(limits.progress))
        limits.tell(0.0, "Decomposing the workload")
        made = self.best(workload, budget, limits, deadline)
        limits.tell(1.0, "Planned")
        return made.plan

    def best(self, workload: Workload, budget: Budget, limits: Limits, deadline: float) -> Made:
        """Return the best plan that the mechanism knows how to find: here, with the split of the paper."""
        return self.made(workload, budget, limits, deadline, UNIFORM)

    def made(
        self, workload: Workload, budget: Budget, limits: Limits, deadline: float, split: Split, known: float = math.inf
    ) -> Made:
        """Return the plan for one split; a search for weights ends where no error below ``known`` can come of it."""
        if self.goal(workload).linear:
            return self._solved(workload, budget, limits, deadline, split)
        return self._emphasised(workload, budget, limits, deadline, split, known)

    def _solved(self, workload: Workload, budget: Budget, limits: Limits, deadline: float, split: Split) -> Made:
        """Return the plan for the weighted sum."""
        labels = self.axis_labels(workload)
        parts, solutions, solver = self._solve(workload, split, labels, limits, deadline, 0.0, hurry=True)
        found = Solved(
            split=split,
            memory_limit=min(solver.dense_limit, limits.memory_limit),
            duals=tuple(solver.duals),
            endings=tuple(solver.endings),
        )
        values = {s: scale * solutions[k].value for s, (k, scale) in parts.spaces.items()}
        joint = _joint_share(parts, solutions, np.array(list(noise_shares(values).values())))
        return Made(
            split=split,
            error=math.sqrt(joint) * math.fsum(map(math.sqrt, values.values())),
            values=values,
            assemble=lambda: self._assemble(workload, budget, parts, solutions, found),
            joint=joint,
        )

    def weighed(
        self,
        workload: Workload,
        budget: Budget,
        limits: Limits,
        deadline: float,
        split: Split,
        weights: Array,
        most: Array,
    ) -> Made:
        """Return the plan that is best for other weights of the groups; its error is that for their own.

        ``weights``, none below a group's own, and ``most``, what the sum of variances of every group may be at privacy
        cost 1, have shape (groups,); see `kept`.
        """
        emphasis = Emphasis.of_groups(workload, weights.tolist())
        labels = self.axis_labels(workload)
        parts, solutions, solver = self._solve(emphasis.apply(workload), split, labels, limits, deadline, 0.9)
        shares = noise_shares({s: scale * solutions[k].value for s, (k, scale) in parts.spaces.items()})
        found = Solved(
            split=split,
            memory_limit=min(solver.dense_limit, limits.memory_limit),
            duals=tuple(solver.duals),
            endings=tuple(solver.endings),
            tradeoff=Tradeoff(shares=np.array(list(shares.values())), emphasis=emphasis, limits=most),
        )
        bound = kept_bound(workload, weights, most, separate_bound(parts, solutions))
        plan = self._assemble(workload, budget, parts, solutions, found, bound)
        own = np.array([g.weight for g in workload.groups])
        error = math.sqrt(float(own @ plan.totals) * budget.row_pcost)
        return Made(split=split, error=error, values={}, assemble=lambda: plan)

    def _emphasised(
        self, workload: Workload, budget: Budget, limits: Limits, deadline: float, split: Split, known: float
    ) -> Made:
        """Return the plan for an objective that is no weighted sum."""
        labels = self.axis_labels(workload)
        parts = decompose(workload, split, labels)
        _check_spaces(workload, parts)
        self.expected(workload, parts, limits)  # refuses what steps cannot weigh

        def solve(asked: Workload, warm: tuple[Array, ...], gap: float) -> Step:
            parts, solutions, solver = self.nearing(gap)._solve(asked, split, labels, quiet, deadline, 0.0, warm=warm)
            return parts, solutions, tuple(solver.duals), tuple(solver.endings)

        told = lambda done, text: limits.tell(min(done, 1.0), text)  # noqa: E731
        # within a step the search only asks whether to go on
        quiet = replace(
            limits,
            progress=limits.progress and (lambda _, text: limits.tell(0.0, text)),
            workers=1,
            cache=False,  # steps on the way are asked for once
        )
        kept: Sequence[Candidate | Balanced] = []
        if self.by_lines and fits(workload, self.goal(workload), split):
            with contextlib.suppress(Unanswered):  # other weights may not lose what these do
                kept = [made := balanced(workload, self.goal(workload), split, labels, told, deadline)]
                bound, tradeoff = made.proof.bound, made.tradeoff
        # where every query may have a weight of its own, that may prove more than products do
        few = sum(g.count for g in workload.groups) <= WHOLE_QUERIES
        if not kept or (made.far and few and time.monotonic() < deadline):
            steps = TradeoffSearch(workload, self.goal(workload), split, labels, solve, told, deadline, known)
            single = steps.run()
            if not kept or single.value < kept[0].value:
                witness = single if steps.witness is None else steps.witness
                kept = [single] if witness is single else [single, witness]
                bound, tradeoff = witness.bound, steps.tradeoff()
        best = kept[0]
        found = Solved(
            split=split,
            memory_limit=limits.memory_limit,
            duals=tuple(dual for one in kept for dual in one.duals),
            endings=tuple(ending for one in kept for ending in one.endings),
            tradeoff=tradeoff,
        )
        joint = _joint_share(best.parts, best.solutions, tradeoff.shares)
        return Made(
            split=split,
            error=joint * best.value,
            values={},
            assemble=lambda: self._assemble(workload, budget, best.parts, best.solutions, found, bound),
            joint=joint,
        )

    def _solve(
        self,
        workload: Workload,
        split: Split,
        labels: Mapping[str, Hashable],
        limits: Limits,
        deadline: float,
        first: float,
        recorded: list[tuple[Array, str]] | None = None,
        warm: tuple[Array, ...] = (),
        hurry: bool = False,
    ) -> tuple[Decomposition, list[SpaceSolution], SpaceSolver]:
        # the limit in a file may be one of time, which says nothing about unions
        held = limits.memory_limit if recorded is None else max(limits.memory_limit, Limits().memory_limit)
        parts = unite(decompose(workload, split, labels), workload, split, held)
        _check_spaces(workload, parts)
        solver = self.space_solver(workload, parts, limits, deadline)
        # recorded weights are taken however good they are: their certificate is computed anew
        solver.recorded, solver.warm = recorded, warm
        costs = solver.forecast(parts.subworkloads)
        if hurry:
            solver.in_time(parts.subworkloads, costs, deadline - time.monotonic())
        # a little for every solve: progress moves even where a forecast says 0
        work = np.cumsum([0.0] + [c.seconds + 1e-9 for c in costs])
        if recorded is None and not warm:
            late, words = (1.0 - first) * 0.9, "Solving side by side"
            watch = lambda ended: limits.tell(first + late * ended, f"{words}, {ended:.0%} done")  # noqa: E731
            solver.ahead(parts.subworkloads, costs, limits.workers, watch)
        solutions = []
        for i, sub in enumerate(parts.subworkloads):
            done = first + (1.0 - first) * float(work[i] / work[-1])
            where = " x ".join(map(str, sub.sizes)) or "the total"
            solver.watch = lambda gap, done=done, where=where: limits.tell(done, f"Solving {where}, gap {gap:.1e}")
            limits.tell(done, f"Solving {where}")
            solutions.append(solver.solve(sub))
        return parts, solutions, solver

    def rebuild(self, workload: Workload, budget: Budget, solved: Solved) -> Plan:
        check_request(workload, budget)
        check_size(workload, 4e9)
        goal, labels, tradeoff = self.goal(workload), self.axis_labels(workload), solved.tradeoff
        limits = Limits(memory_limit=solved.memory_limit)
        recorded = list(zip(solved.duals, solved.endings, strict=True))
        kept = None if tradeoff is None else tradeoff.limits
        if goal.linear != (tradeoff is None or kept is not None):
            raise ValueError("an objective without its search, or a search without its objective")
        if solved.split.unions and not goal.linear:
            raise ValueError("unions under an objective that is no weighted sum")
        if tradeoff is None:
            parts, solutions, _ = self._solve(workload, solved.split, labels, limits, math.inf, 0.0, recorded)
            bound = None
        elif tradeoff.lines is not None and self.by_lines:
            parts, solutions, bound = rebuilt(workload, goal, solved.split, labels, tradeoff, recorded)
        else:
            # a search for another objective ends in weights for a weighted sum, and with those the plan is solved as
            # any other
            asked = tradeoff.emphasis.apply(tradeoff.emphasis.check(workload))
            parts, solutions, _ = self._solve(asked, solved.split, labels, limits, math.inf, 0.0, recorded)
            if kept is None:
                bound = proven(workload, goal, tradeoff.emphasis, parts, solutions)
            else:
                weights = np.array([tradeoff.emphasis.weights[k] if k >= 0 else 0.0 for k in tradeoff.emphasis.kinds])
                bound = kept_bound(workload, weights, kept, separate_bound(parts, solutions))
            # the best bound may have been proven at other weights than the best plan was found at
            if tradeoff.witness is not None:
                asked = tradeoff.witness.apply(tradeoff.witness.check(workload))
                other, better, _ = self._solve(asked, solved.split, labels, limits, math.inf, 0.0, recorded)
                bound = proven(workload, goal, tradeoff.witness, other, better)
        if tradeoff is not None and len(tradeoff.shares) != len(parts.spaces):
            raise ValueError("recorded shares do not fit")
        if recorded:  # a file with more weights than it needs was not written by this search
            raise ValueError("more recorded weights than solves")
        plan = self._assemble(workload, budget, parts, solutions, solved, bound)
        if kept is not None and (np.array(plan.totals) * budget.row_pcost > kept * (1.0 + SLACK)).any():
            raise ValueError("a plan that does not keep its groups")
        return noted(plan, solved.split.stopped)

    def _assemble(
        self,
        workload: Workload,
        budget: Budget,
        parts: Decomposition,
        solutions: Sequence[SpaceSolution],
        solved: Solved,
        bound: float | None = None,
    ) -> Plan:
        tradeoff = solved.tradeoff
        if tradeoff is None or bound is None:
            values = {s: scale * solutions[k].value for s, (k, scale) in parts.spaces.items()}
            ideal = np.array(list(noise_shares(values).values()))
            # the same inequality with the proven bounds in place of the values
            bound = separate_bound(parts, solutions)
        else:
            ideal = tradeoff.shares
        share = 1.0 if solved.joint is False else _joint_share(parts, solutions, ideal, always=solved.joint is True)
        joint = share < 1.0
        if joint:
            ideal, bound = share * ideal, self._joint_bound(workload, solved)
        own = [tuple((a, f.strategy) for a, f in solution.factors) for solution in solutions]
        strategies = {s: own[k] for s, (k, _) in parts.spaces.items()}
        stopped = sorted({s.status for s in solutions if s.status != "optimal"})
        return Plan(
            workload=workload,
            budget=budget,
            mechanism=self.name,
            options=self.options(),
            blocks=self._calibrated(strategies, ideal, budget, solved.split, joint),
            bound=bound,
            statement=self._statement(solved.split, len(strategies) == 1 and not workload.schema.invariants, stopped)
            + (JOINT if joint else "")
            + (KEPT if tradeoff is not None and tradeoff.limits is not None else ""),
            duals=solved.duals,
            endings=solved.endings,
            memory_limit=solved.memory_limit,
            max_records=self.max_records,
            split=solved.split,
            tradeoff=tradeoff,
            joint=joint,
            ideal=ideal,
        )

    def _joint_bound(self, workload: Workload, solved: Solved) -> float:
        """Return the lower bound on the objective at privacy cost 1 where one cell is charged for all blocks."""
        tradeoff, asked = solved.tradeoff, workload
        if tradeoff is not None:
            emphasis = tradeoff.emphasis if tradeoff.witness is None else tradeoff.witness
            asked = emphasis.apply(workload)
        parts = decompose(asked, solved.split, self.axis_labels(workload))
        total = independent_bound(unite(parts, asked, solved.split))
        if tradeoff is None:
            return total
        if tradeoff.limits is None:
            return total / dual_norm(workload, self.goal(workload), emphasis)[0]
        weights = np.array([emphasis.weights[k] if k >= 0 else 0.0 for k in emphasis.kinds])
        return kept_bound(workload, weights, tradeoff.limits, total)

    def _calibrated(
        self, strategies: Mapping[Space, Factored], ideal: Array, budget: Budget, split: Split, joint: bool
    ) -> Mapping[Space, Block]:
        """Return blocks whose noise is the ideal one for the budget, rounded to grids that keep it."""
        pcost = budget.row_pcost
        noises = {s: math.sqrt(v / pcost) for s, v in zip(strategies, ideal.tolist(), strict=True)}
        return calibrate(
            strategies, noises, pcost, self.max_records, unions=split.unions, pcost=row_pcosts(budget, joint)
        )

    def at_budget(self, made: Plan, budget: Budget) -> Plan:
        if made.ideal is None or (made.tradeoff is not None and made.tradeoff.limits is not None):
            return super().at_budget(made, budget)  # groups that are kept have to be seen to be kept
        check_request(made.workload, budget)
        noisy = self._calibrated(strategies_of(made.blocks), made.ideal, budget, made.split, made.joint)
        return made.renoised(budget, noisy)

    def _statement(self, split: Split, whole: bool, stopped: Sequence[str]) -> str:
        """Return what the bound bounds, and for which plans."""
        measure = {
            "sum": "weighted RMSE",
            "max": "largest standard error",
            "lp": f"power mean of variances (power {self.power:g})",
        }[self.objective]
        if self.targets is not None:
            measure = "largest ratio of standard error to target"
        text = self.bound_text
        if split.unions and whole:
            text = "No matrix mechanism whatsoever can have a smaller weighted RMSE than the bound."
        elif split.centers or split.unions:
            text = text.replace("uniform centers", "these tuned splits") + IN_TOTAL
        text = text.replace("weighted RMSE", measure)
        return text + (f" Searches ended: {'; '.join(stopped)}." if stopped else "")


def _check_spaces(workload: Workload, parts: Decomposition) -> None:
    """Raise PlanError when there is nothing to measure."""
    if parts.spaces:
        return
    if exact := workload.schema.exact_text:
        raise PlanError(f"All that has a weight follows from {exact}; there is nothing to spend on. Ask more.")
    raise PlanError("The weighted queries count no record at all. Add a query that counts something.")


def _joint_share(
    parts: Decomposition, solutions: Sequence[SpaceSolution], ideal: Array, *, always: bool = False
) -> float:
    """Return the cost of the costliest cell of all blocks over the sum of the costliest of each.

    ``ideal`` are the squared noises of the blocks, shape (blocks,).  It is 1 where less than `WORTH` is saved, unless
    it is taken ``always``.
    """
    own = [tuple((a, f.strategy) for a, f in solution.factors) for solution in solutions]
    strategies = {space: own[k] for space, (k, _) in parts.spaces.items()}
    share = joint_share(strategies, dict(zip(strategies, np.sqrt(ideal).tolist(), strict=True)))
    return share if always or share < 1.0 - WORTH else 1.0
