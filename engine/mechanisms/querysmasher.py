"""QuerySmasher: smash every query into residual spaces and solve each space optimally.

Source: QuerySmasher, algorithm 1; the tuned centers are this project's own.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from engine._arrays import Array
from engine._validation import one_of
from engine.errors import LimitExceeded, NotApplicable, PlanError, Unanswered
from engine.mechanisms.base import Forecast, Limits, check_request, check_size
from engine.mechanisms.candidate import Made, noted
from engine.mechanisms.group_constraints import checked_keep, most_allowed, search_kept
from engine.mechanisms.kronecker import table_design, table_seconds
from engine.mechanisms.residual_base import BASE_BYTES, ResidualMechanism, SpaceSolver
from engine.mechanisms.table_mechanism import Design, explicit_plan
from engine.plans import Plan
from engine.plans.solver_state import Solved
from engine.privacy import Budget
from engine.residuals import Options, Space, Split
from engine.residuals.decomposition import Decomposition, decompose
from engine.residuals.split import UNIFORM
from engine.residuals.strategy_search import PROBLEMS
from engine.residuals.subworkload_solver import SubworkloadSolver
from engine.residuals.tuning.limits import Allowance
from engine.residuals.tuning.tune import SplitMemory, split_seconds, ways_to_split
from engine.residuals.tuning.unions import choose_unions, strategy_seconds, union_bytes, union_seconds
from engine.workload import Workload

TUNING = 40.0  # times that tuning may solve every subworkload again before one union of all is the better way
TUNED_SECONDS = 1e-3  # what tuning takes a subworkload whatever is asked of it, for forecasts only
CENTERS = ("uniform", "tuned")
PRODUCT = 1.0  # seconds that the search for a product on the whole table may take
WORTH = 1e-4  # share of the error that it must save: such a plan makes no published tables
OF_TABLE = "One product of strategies on the whole table is better here than residual spaces are."
KEPT_STEPS = 10  # plans that are made until all groups are kept, for forecasts only
TOWARDS = (1.0, 0.5, 0.25)  # shares of a tuned split that are tried where groups are kept


@dataclass(frozen=True, kw_only=True)
class QuerySmasher(ResidualMechanism):
    """Optimal strategies in every residual space, with a certificate.

    Options
    -------
    centers : "uniform", the decomposition of the paper; "tuned", at least as accurate up to ``gap``: see
        `centers`, `complements` for pairs asked by sums, differences or conditions of one's own, and
        `unions` for spaces that one strategy measures together, up to the whole domain where that is small.  Where
        one product of strategies on the whole table is better still, that is the plan.
        Other objectives than the sum measure every space on its own.
    keep : for tuned centers, by what share the RMSE of a group may be above that with uniform centers: one number for
        all groups, or a mapping from the numbers of groups to shares, such as {0: 0.0, 3: 0.05}.  Tuning makes the
        total better and may make single groups less exact; weights of groups are found that keep these.
    solver : "optimal"; or the approximate "fourier" (closed form) and "eigenbasis" (a fixed basis).
    gap : relative RMSE gap at which a search stops.
    """

    name: ClassVar[str] = "querysmasher"
    title: ClassVar[str] = "QuerySmasher"
    meaning: ClassVar[str] = "Optimal noise for every group of attributes, whatever the queries look like."
    variants: ClassVar[tuple[Mapping[str, Any], ...]] = ({}, {"centers": "tuned"})
    choices: ClassVar[Mapping[str, tuple[Any, ...]]] = {"centers": CENTERS, "solver": tuple(PROBLEMS)}

    unsaid: ClassVar[Mapping[str, Any]] = {"keep": None}

    centers: str = "uniform"
    keep: float | Mapping[int, float] | None = None
    solver: str = "optimal"
    gap: float = 1e-6

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("option centers", self.centers, CENTERS, error=PlanError, public=True)
        if self.keep is not None:
            object.__setattr__(self, "keep", checked_keep(self.keep))
            if self.centers != "tuned" or self.objective != "sum":
                raise PlanError('keep limits what tuning does to single groups. Give it with centers="tuned" alone.')
        one_of("option solver", self.solver, PROBLEMS, error=PlanError, public=True)
        if isinstance(self.gap, bool) or not isinstance(self.gap, (int, float)) or not 1e-9 <= self.gap <= 1:
            raise PlanError(f"gap was {self.gap!r}. Give a number from 1e-9 to 1, such as 1e-6.")

    @property
    def by_lines(self) -> bool:  # type: ignore[override]
        return self.solver == "optimal"

    def nearing(self, gap: float) -> QuerySmasher:
        return replace(self, gap=max(self.gap, gap))

    def forecast(self, workload: Workload, limits: Limits) -> Forecast:
        check_size(workload, limits.memory_limit)
        parts = decompose(workload)
        found = self.expected(workload, parts, limits)
        found = replace(found, seconds=found.seconds + self.joint_seconds(workload, parts))
        if self.centers != "tuned":
            return found
        unions = self._chosen(workload, parts.spaces, limits)
        more = max((union_bytes(workload, a, spaces) for a, spaces in unions.items()), default=0.0)
        whole, own = _holds_all(unions, parts.spaces), TUNED_SECONDS * len(parts.subworkloads)
        # all spaces are searched again beside unions, and once more beside those that are worth it
        seconds, step = found.seconds * (3.0 if unions and not whole else 1.0) + own, own + found.seconds
        for attributes, spaces in unions.items():
            searched = strategy_seconds(workload, attributes, spaces) + union_seconds(workload, attributes, spaces)
            seconds, step = seconds + searched, step + searched
        seconds += 0.0 if self.keep is None else KEPT_STEPS * step
        if not whole:
            allowance = Allowance(memory=limits.memory_limit, deadline=limits.deadline())
            seconds += split_seconds(workload, parts.subworkloads, parts.factors, allowance)
            table = self._table_seconds(workload, limits)
            seconds += table if math.isfinite(table) else 0.0
            # other objectives are searched for at tuned centers as long as at uniform ones
            seconds += 0.0 if self.goal(workload).linear else found.seconds
        return replace(found, seconds=seconds, memory=found.memory + min(more, limits.memory_limit))

    def best(self, workload: Workload, budget: Budget, limits: Limits, deadline: float) -> Made:
        if self.centers != "tuned":
            return super().best(workload, budget, limits, deadline)
        if not self.goal(workload).linear:
            return self._uniform_last(workload, budget, limits, deadline)
        started = time.monotonic()
        uniform = self.made(workload, budget, limits, deadline, UNIFORM)
        took = time.monotonic() - started
        allowance = Allowance(memory=limits.memory_limit, deadline=deadline - 2.0 * took)
        late = Allowance(deadline=deadline, stopped=allowance.stopped)

        def in_time(done: float, text: str) -> None:
            late.check()
            limits.tell(0.8 + 0.2 * done, text)

        def make(split: Split) -> list[Made]:
            return self._tried(workload, budget, replace(limits, progress=in_time), deadline, split, allowance)

        found = sorted(self._found(workload, uniform, make, limits, allowance), key=lambda made: made.error)
        # light queries may be lost in the best of them; what uniform centers lose is said
        best = next((made for made in found if made is uniform or self._answers(made)), uniform)
        if not _holds_all(best.split.unions, uniform.values):
            best = self._or_product(workload, budget, limits, allowance, best)
        if self.keep is not None and best is not uniform:
            best = self._keeping(workload, budget, limits, deadline, uniform, best)
        return replace(best, assemble=lambda: noted(best.plan, frozenset(allowance.stopped)))

    def _tried(
        self,
        workload: Workload,
        budget: Budget,
        limits: Limits,
        deadline: float,
        split: Split,
        allowance: Allowance,
        known: float = math.inf,
    ) -> list[Made]:
        """Return the plan for a split, if there is one."""
        try:
            made = self.made(workload, budget, limits, deadline, split, known)
            # what a union of all spaces replaces is not searched for, so that it must be known to answer
            return [made] if not split.unions or made.plan else []
        # out of time, light queries drowned beside heavy ones, or this split alone is too large for its objective
        except (TimeoutError, NotApplicable):
            return []
        except LimitExceeded:
            allowance.stopped.add("memory")
            return []

    def _uniform_last(self, workload: Workload, budget: Budget, limits: Limits, deadline: float) -> Made:
        """Return the best plan found for another objective than the sum.

        A search for weights ends where its bound says that nothing better than what is known can come of it: with
        uniform centers mostly after a few steps, once it is known what tuned ones lead to.
        """
        self.expected(workload, decompose(workload), limits)  # refuses what steps cannot weigh
        started = time.monotonic()
        third = (deadline - started) / 3.0  # searches use all the time there is

        def between(low: float, high: float) -> Limits:
            return replace(limits, progress=lambda done, text: limits.tell(low + (high - low) * done, text))

        allowance, best = Allowance(memory=limits.memory_limit, deadline=started + third), None
        for split in self._splits(workload, between(0.0, 0.7).tell, limits, allowance):
            known, until = math.inf if best is None else best.error / best.joint, started + 2.0 * third
            if split.centers or split.complements:
                for made in self._tried(workload, budget, between(0.7, 0.9), until, split, allowance, known):
                    better = best is None or made.error < best.error
                    best = made if better and self._answers(made) else best
        known = math.inf if best is None else best.error / best.joint
        uniform = self.made(workload, budget, between(0.9, 1.0), deadline, UNIFORM, known)
        found = uniform if best is None or uniform.error <= best.error else best
        return replace(found, assemble=lambda: noted(found.plan, frozenset(allowance.stopped)))

    def _keeping(
        self, workload: Workload, budget: Budget, limits: Limits, deadline: float, uniform: Made, best: Made
    ) -> Made:
        """Return the best plan found whose groups are as exact as asked; that with uniform centers is one.

        Where weights alone do not do, splits half way and three quarters of the way to uniform ones may.
        """
        assert self.keep is not None
        most = most_allowed(self.keep, workload, uniform.sums().tolist())
        own = np.array([group.weight for group in workload.groups])

        def go_on(done: float) -> bool:
            limits.tell(0.9 + 0.1 * done, "Keeping groups exact")
            return time.monotonic() <= deadline

        for share in TOWARDS:
            split = best.split.towards_uniform(share)

            def make(factors: Array, split: Split = split) -> Made:
                return self.weighed(workload, budget, limits, deadline, split, own * factors, most)

            found = search_kept(make, most, go_on)
            if found is not None and found.error < uniform.error:
                return found
        return uniform

    def _table_seconds(self, workload: Workload, limits: Limits) -> float:
        """Return what a product on the whole table takes; infinite where it is not looked for."""
        # one strategy for all leaves no shares between spaces to trade, and keeps neither groups nor exact totals
        if self.solver != "optimal" or not self.goal(workload).linear or self.keep is not None:
            return math.inf
        if workload.schema.invariants or limits.memory_limit < BASE_BYTES:
            return math.inf
        return seconds if (seconds := table_seconds(workload)) <= PRODUCT else math.inf

    def _or_product(self, workload: Workload, budget: Budget, limits: Limits, allowance: Allowance, best: Made) -> Made:
        """Return the product on the whole table where it is better than what was made."""
        seconds = self._table_seconds(workload, limits)
        if math.isinf(seconds) or not allowance.lasts(seconds):
            return best
        try:
            design = table_design(workload, allowance.deadline, lambda text: limits.tell(0.95, text))
            plan = self._of_table(workload, budget, design)
        except (NotApplicable, LimitExceeded):
            return best
        # both as they are released
        if plan.weighted_rmse >= best.plan.weighted_rmse * (1.0 - max(self.gap, WORTH)):
            return best
        return Made(split=UNIFORM, error=plan.weighted_rmse, values={}, assemble=lambda: plan)

    def _of_table(self, workload: Workload, budget: Budget, design: Design) -> Plan:
        return explicit_plan(self, workload, budget, replace(design, statement=OF_TABLE))

    def rebuild(self, workload: Workload, budget: Budget, solved: Solved) -> Plan:
        if not solved.matrices:
            return super().rebuild(workload, budget, solved)
        check_request(workload, budget)
        design = replace(Design.from_arrays(solved.matrices, workload, budget.law), bound=solved.bound)
        return noted(self._of_table(workload, budget, design), solved.split.stopped)

    @staticmethod
    def _answers(made: Made) -> bool:
        with contextlib.suppress(Unanswered):
            return bool(made.plan)
        return False

    def _found(
        self,
        workload: Workload,
        uniform: Made,
        make: Callable[[Split], list[Made]],
        limits: Limits,
        allowance: Allowance,
    ) -> list[Made]:
        """Return the plan with uniform centers and every other one that was made."""
        limits.tell(0.1, "Looking for spaces to measure together")
        unions = _in_time(workload, self._chosen(workload, uniform.values, limits), allowance)
        if _holds_all(unions, uniform.values):
            united = _united(uniform, unions, make)
            # noise on a grid costs one strategy for all a little more than it costs several
            if united and united[0].plan.weighted_rmse < uniform.plan.weighted_rmse:
                return united
            unions = {}
        found = [uniform]
        for split in self._splits(workload, lambda done, text: limits.tell(0.1 + 0.7 * done, text), limits, allowance):
            found += make(split) if split.centers or split.complements else []
        unions = _in_time(workload, unions, allowance)
        return found + _united(min(found, key=lambda made: made.error), unions, make)

    def _chosen(self, workload: Workload, spaces: Collection[Space], limits: Limits) -> dict[Space, tuple[Space, ...]]:
        """Return the spaces to measure together."""
        # one strategy for several spaces leaves no shares between them to trade, so unions are for the sum alone
        if self.solver != "optimal" or not self.goal(workload).linear:
            return {}

        def apart() -> float:
            parts, allowance = decompose(workload), Allowance(memory=limits.memory_limit, deadline=limits.deadline())
            uniform = replace(self, centers="uniform", keep=None).expected(workload, parts, limits)
            searched = split_seconds(workload, parts.subworkloads, parts.factors, allowance)
            return max(TUNING * (uniform.seconds - self.overhead(workload)), searched)

        left = math.inf if limits.time_limit is None else limits.time_limit
        if self.keep is not None:  # weights that keep groups exact are found in many searches, not in one
            left = min(left, apart())
        return choose_unions(workload, tuple(spaces), limits.memory_limit, apart, left)

    def _splits(
        self, workload: Workload, tell: Callable[[float, str], None], limits: Limits, allowance: Allowance
    ) -> Iterator[Split]:
        memory = SplitMemory(workload, limits.solve_cache(), allowance)
        joint, products = ways_to_split(workload, allowance)
        if joint:
            yield memory.complements(tell)
        if products:
            yield memory.centers(tell)

    def space_solver(self, workload: Workload, parts: Decomposition, limits: Limits, deadline: float) -> SpaceSolver:
        return SubworkloadSolver(
            factors=parts.factors,
            method=self.solver,
            options=Options(gap=self.gap, deadline=deadline),
            memory_limit=limits.memory_limit,
            cache=limits.solve_cache(),
        )


def _holds_all(unions: Mapping[Space, tuple[Space, ...]], spaces: Collection[Space]) -> bool:
    return len(next(iter(unions.values()), ())) == len(spaces)


def _in_time(
    workload: Workload, unions: Mapping[Space, tuple[Space, ...]], allowance: Allowance
) -> dict[Space, tuple[Space, ...]]:
    """Return the first unions whose queries can be gone through, all together, in the time that is left."""
    out, seconds = dict[Space, tuple[Space, ...]](), 0.0
    for attributes, spaces in unions.items():
        more = seconds + union_seconds(workload, attributes, spaces)
        if allowance.lasts(more):
            out[attributes], seconds = spaces, more
    return out


def _united(apart: Made, unions: Mapping[Space, tuple[Space, ...]], make: Callable[[Split], list[Made]]) -> list[Made]:
    """Return the plan with those unions that are worth more than their spaces on their own, if there are any.

    A search that stopped early may not be; where light queries drown beside heavy ones no plan is made.
    """
    for made in make(replace(apart.split, unions=unions)) if unions else []:
        kept = {
            attributes: together
            for attributes, together in unions.items()
            if math.sqrt(made.values[attributes]) < math.fsum(math.sqrt(apart.values[space]) for space in together)
        }
        return [made] if len(kept) == len(unions) else _united(apart, kept, make)
    return []
