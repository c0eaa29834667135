"""Mechanisms that measure residual spaces independently and share the budget in closed form.

With L_B the weighted squared error of residual space B at privacy cost 1, the best shares of a budget beta are

    noise_B^2 = (sum over B' of sqrt(L_B')) / (beta sqrt(L_B)),      objective (sum over B of sqrt(L_B))^2 / beta.

A subclass says how one subworkload is solved.  Source: QuerySmasher, section 6.4 and theorem 5; ResidualPlanner+.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

import numpy as np

from engine.blocks import calibrate
from engine.decomposition import Decomposition, Space, Subworkload, decompose
from engine.errors import LimitExceeded, PlanError
from engine.family import Array
from engine.mechanisms.base import Forecast, Limits, Mechanism, Progress, check_request
from engine.plan import Plan, Solved
from engine.privacy import Budget
from engine.solvers import Watch
from engine.subworkload import SpaceSolution
from engine.unions import unite
from engine.workload import Workload

MAX_ATTRIBUTES = 14  # of one group: 2^14 residual spaces take a few seconds
FLOPS = 4e9  # floating point operations a second in small eigenvalue problems on one core, for forecasts only


class SpaceSolver(Protocol):
    """Solves the subworkloads of one decomposition, one after the other."""

    watch: Watch | None
    duals: list[Array]
    endings: list[str]
    recorded: list[tuple[Array, str]] | None

    def forecast(self, subs: Sequence[Subworkload]) -> list[tuple[float, float]]:
        """Return (floating point operations, bytes) for each subworkload."""

    def solve(self, sub: Subworkload) -> SpaceSolution:
        """Return the strategy of one subworkload."""


@dataclass(frozen=True, kw_only=True)
class ResidualMechanism(Mechanism):
    """Base of the mechanisms of this kind; see the module's text."""

    bound_text: ClassVar[str] = (
        "No strategy that measures the residual spaces of uniform centers independently can have a smaller weighted "
        "RMSE than the bound."
    )

    def space_solver(self, workload: Workload, parts: Decomposition, limits: Limits, deadline: float) -> SpaceSolver:
        """Return what solves the subworkloads."""
        raise NotImplementedError

    def axis_labels(self, workload: Workload) -> dict[str, Hashable]:
        """Return what distinguishes attributes of equal size for this mechanism, beyond what is asked of them."""
        return {}

    def choose_split(
        self, workload: Workload, memory_limit: float, tell: Callable[[float, str], None], unions: bool = True
    ) -> Solved:
        """Return the centers, complements and unions that are not the published ones."""
        return Solved(duals=())

    def split(self, workload: Workload, split: Solved) -> Decomposition:
        """Return the decomposition of a workload with the centers, complements and unions chosen."""
        parts = decompose(workload, split.centers, self.axis_labels(workload), split.complements)
        return unite(parts, workload, split.unions, split.centers, split.complements, split.memory_limit)

    def forecast(self, workload: Workload, limits: Limits) -> Forecast:
        check_size(workload, limits.memory_limit)
        parts = decompose(workload, labels=self.axis_labels(workload))
        costs = self.space_solver(workload, parts, limits, math.inf).forecast(parts.subworkloads)
        memory = 120e6 + min(max((m for _, m in costs), default=0.0), limits.memory_limit)
        text = f"{len(parts.spaces):,} residual spaces, {len(parts.subworkloads):,} different ones"
        return Forecast(seconds=0.05 + sum(w for w, _ in costs) / FLOPS, memory=memory, text=text)

    def plan(self, workload: Workload, budget: Budget, limits: Limits) -> Plan:
        deadline = limits.deadline()
        check_request(workload, budget)
        check_size(workload, limits.memory_limit)
        limits = replace(limits, progress=_rising(limits.progress))
        limits.tell(0.0, "Decomposing the workload")
        split = self.choose_split(workload, limits.memory_limit, lambda done, text: limits.tell(0.8 * done, text))
        plan, values = self._solved(workload, budget, limits, deadline, split)
        if split.unions:
            lost = not math.isfinite(plan.weighted_rmse)  # what light queries ask drowned beside heavy ones
            kept = {} if lost else self._gaining(workload, split, limits, deadline, values)
            if len(kept) < len(split.unions):
                if len(values) == 1:  # the union of all was tried before any center was tuned
                    split = self.choose_split(workload, limits.memory_limit, limits.tell, unions=False)
                plan, _ = self._solved(workload, budget, limits, deadline, replace(split, unions=kept))
        limits.tell(1.0, "Planned")
        return plan

    def _gaining(
        self, workload: Workload, split: Solved, limits: Limits, deadline: float, values: Mapping[Space, float]
    ) -> dict[Space, tuple[Space, ...]]:
        """Return the unions that are worth more than their spaces on their own; a search that stopped early may not."""
        apart = decompose(workload, split.centers, self.axis_labels(workload), split.complements)
        solver = self.space_solver(workload, apart, limits, deadline)
        roots: dict[int, float] = {}
        kept = {}
        for attributes, together in split.unions.items():
            total = 0.0
            for number, scale in (apart.spaces[space] for space in together):
                if number not in roots:
                    roots[number] = math.sqrt(solver.solve(apart.subworkloads[number]).value)
                total += math.sqrt(scale) * roots[number]
            if math.sqrt(values[attributes]) < total:
                kept[attributes] = together
        return kept

    def _solved(
        self, workload: Workload, budget: Budget, limits: Limits, deadline: float, split: Solved
    ) -> tuple[Plan, dict[Space, float]]:
        """Return the plan for one split, and the weighted squared error of every block at privacy cost 1."""
        first = 0.8 if split.centers else 0.0
        parts = self.split(workload, split)
        if not parts.spaces:
            raise PlanError("The weighted queries count no record at all. Add a query that counts something.")
        solver = self.space_solver(workload, parts, limits, deadline)
        work = np.cumsum([0.0] + [w + 1.0 for w, _ in solver.forecast(parts.subworkloads)])
        solutions = []
        for i, sub in enumerate(parts.subworkloads):
            done = first + (1.0 - first) * float(work[i] / work[-1])
            where = " x ".join(map(str, sub.sizes)) or "the total"
            solver.watch = lambda gap, done=done, where=where: limits.tell(done, f"Solving {where}, gap {gap:.1e}")
            limits.tell(done, f"Solving {where}")
            solutions.append(solver.solve(sub))
        found = _recorded(replace(split, memory_limit=limits.memory_limit), solver)
        values = {s: scale * solutions[k].value for s, (k, scale) in parts.spaces.items()}
        return self._assemble(workload, budget, parts, solutions, found), values

    def rebuild(self, workload: Workload, budget: Budget, solved: Solved) -> Plan:
        check_request(workload, budget)
        check_size(workload, 4e9)
        parts = self.split(workload, solved)
        solver = self.space_solver(workload, parts, Limits(memory_limit=solved.memory_limit), math.inf)
        solver.recorded = list(zip(solved.duals, solved.endings, strict=True))
        solutions = [solver.solve(s) for s in parts.subworkloads]
        if solver.recorded:
            raise ValueError("more recorded weights than solves")
        return self._assemble(workload, budget, parts, solutions, _recorded(solved, solver))

    def _assemble(
        self,
        workload: Workload,
        budget: Budget,
        parts: Decomposition,
        solutions: Sequence[SpaceSolution],
        solved: Solved,
    ) -> Plan:
        values = {s: scale * solutions[k].value for s, (k, scale) in parts.spaces.items()}
        bounds = {s: scale * solutions[k].bound for s, (k, scale) in parts.spaces.items()}
        total = math.fsum(math.sqrt(v) for v in values.values())
        noises = {s: math.sqrt(total / (budget.pcost * math.sqrt(v))) for s, v in values.items()}
        strategies = {s: tuple((a, f.strategy) for a, f in solutions[k].factors) for s, (k, _) in parts.spaces.items()}
        stopped = sorted({s.status for s in solutions if s.status != "optimal"})
        return Plan(
            workload=workload,
            budget=budget,
            mechanism=self.name,
            options=self.options(),
            blocks=calibrate(strategies, noises, budget.pcost, self.max_records, solved.unions),
            bound=math.fsum(math.sqrt(b) for b in bounds.values()) ** 2,
            statement=self._class(solved, len(strategies))
            + (f" Searches ended: {'; '.join(stopped)}." if stopped else ""),
            duals=solved.duals,
            endings=solved.endings,
            memory_limit=solved.memory_limit,
            max_records=self.max_records,
            centers=solved.centers,
            complements=solved.complements,
        )

    def _class(self, solved: Solved, blocks: int) -> str:
        """Return in words what the bound holds for."""
        if solved.unions and blocks == 1:
            return "No matrix mechanism whatsoever can have a smaller weighted RMSE than the bound."
        if solved.centers or solved.unions:
            return self.bound_text.replace("uniform centers", "these tuned splits")
        return self.bound_text


def check_size(workload: Workload, memory_limit: float) -> None:
    """Raise LimitExceeded when the decomposition alone would pass the limits, before anything is built."""
    for group in workload.groups:
        if len(group.attributes) > MAX_ATTRIBUTES:
            raise LimitExceeded(
                f"A group on {len(group.attributes)} attributes has 2^{len(group.attributes)} residual spaces "
                f"inside it; at most {MAX_ATTRIBUTES} attributes are allowed. Ask for smaller groups."
            )
        for part in group.parts:
            cells, classes = math.prod(part.sizes), math.prod(n - 1 for n in part.sizes)
            entries = 6 * cells**2 if len(part.sizes) == 1 else 8 * cells + 2 * min(part.count, classes) * classes
            if 8 * entries > memory_limit:
                raise LimitExceeded(
                    f"The family '{part.family.name}' on {' x '.join(map(str, part.sizes))} cells needs about "
                    f"{8 * entries / 1e9:,.0f} GB of memory, more than the limit of {memory_limit / 1e9:g} GB. Merge "
                    "cells into coarser ones, or raise memory_limit."
                )


def _rising(progress: Progress | None) -> Progress | None:
    """Return a listener that never hears a smaller fraction than before, whatever has to be done again."""
    if progress is None:
        return None
    highest = 0.0

    def heard(fraction: float, text: str) -> object:
        nonlocal highest
        highest = max(highest, fraction)
        return progress(highest, text)

    return heard


def _recorded(solved: Solved, solver: SpaceSolver) -> Solved:
    return replace(solved, duals=tuple(solver.duals), endings=tuple(solver.endings))
