"""QuerySmasher: smash every query into residual spaces, solve each space on its own, share the budget in closed form.

With L_B the optimal weighted squared error of residual space B at privacy cost 1, the best shares of a budget beta are

    noise_B^2 = (sum over B' of sqrt(L_B')) / (beta sqrt(L_B)),      objective (sum over B of sqrt(L_B))^2 / beta.

Source: QuerySmasher, algorithm 1 and section 6.4.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from engine.blocks import calibrate
from engine.centers import tuned_centers
from engine.decomposition import Decomposition, decompose
from engine.errors import PlanError
from engine.family import Array
from engine.mechanisms.base import Forecast, Limits, Mechanism, check_request
from engine.plan import Plan
from engine.privacy import Budget
from engine.solvers import Options
from engine.subworkload import PROBLEMS, SpaceSolution, SubworkloadSolver
from engine.workload import Workload

CENTERS = ("uniform", "tuned")
TUNING = 0.8  # share of the progress bar that tuning takes
FLOPS = 4e9  # floating point operations a second in small eigenvalue problems on one core, for forecasts only


@dataclass(frozen=True, kw_only=True)
class QuerySmasher(Mechanism):
    """Optimal strategies in every residual space, with a certificate.

    Options
    -------
    centers : "uniform", the decomposition of the paper; "tuned", never less accurate: see `engine.centers`.
    solver : "optimal"; or the approximate "fourier" (closed form) and "eigenbasis" (a fixed basis).
    gap : relative RMSE gap at which a search stops.
    """

    name: ClassVar[str] = "querysmasher"
    title: ClassVar[str] = "QuerySmasher"
    meaning: ClassVar[str] = "Optimal noise for every group of attributes, whatever the queries look like."

    centers: str = "uniform"
    solver: str = "optimal"
    gap: float = 1e-6

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.centers not in CENTERS:
            raise PlanError(f"centers was {self.centers!r}. Choose one of {', '.join(CENTERS)}.")
        if self.solver not in PROBLEMS:
            raise PlanError(f"solver was {self.solver!r}. Choose one of {', '.join(PROBLEMS)}.")
        if isinstance(self.gap, bool) or not isinstance(self.gap, (int, float)) or not 1e-9 <= self.gap <= 1:
            raise PlanError(f"gap was {self.gap!r}. Give a number from 1e-9 to 1, such as 1e-6.")

    def forecast(self, workload: Workload, limits: Limits) -> Forecast:
        parts = decompose(workload)
        solver = self._solver(parts, limits, math.inf)
        costs = solver.forecast(parts.subworkloads)
        memory = 120e6 + min(max((m for _, m in costs), default=0.0), limits.memory_limit)
        text = f"{len(parts.spaces):,} residual spaces, {len(parts.subworkloads):,} different ones"
        return Forecast(seconds=0.05 + sum(w for w, _ in costs) / FLOPS, memory=memory, text=text)

    def plan(self, workload: Workload, budget: Budget, limits: Limits) -> Plan:
        deadline = limits.deadline()
        check_request(workload, budget)
        limits.tell(0.0, "Decomposing the workload")
        share = TUNING if self.centers == "tuned" else 0.0
        centers = tuned_centers(workload, lambda done, text: limits.tell(share * done, text)) if share else {}
        parts = decompose(workload, centers)
        solver = self._solver(parts, limits, deadline)
        work = np.cumsum([w for w, _ in solver.forecast(parts.subworkloads)])
        solutions = []
        for i, sub in enumerate(parts.subworkloads):
            done = share + (1.0 - share) * float((work[i - 1] if i else 0.0) / work[-1])
            where = " x ".join(map(str, sub.sizes)) or "the total"
            solver.watch = lambda gap, done=done, where=where: limits.tell(done, f"Solving {where}, gap {gap:.1e}")
            solutions.append(solver.solve(sub))
        plan = self._assemble(workload, budget, parts, solutions, solver.duals, centers)
        limits.tell(1.0, "Planned")
        return plan

    def rebuild(self, workload: Workload, budget: Budget, duals: Sequence[Array], centers: Mapping[str, Array]) -> Plan:
        check_request(workload, budget)
        parts = decompose(workload, centers)
        solver = self._solver(parts, Limits(memory_limit=math.inf), math.inf)
        solver.recorded = list(duals)
        solutions = [solver.solve(s) for s in parts.subworkloads]
        return self._assemble(workload, budget, parts, solutions, solver.duals, centers)

    def _solver(self, parts: Decomposition, limits: Limits, deadline: float) -> SubworkloadSolver:
        return SubworkloadSolver(
            factors=parts.factors,
            method=self.solver,
            options=Options(gap=self.gap, deadline=deadline),
            memory_limit=limits.memory_limit,
        )

    def _assemble(
        self,
        workload: Workload,
        budget: Budget,
        parts: Decomposition,
        solutions: Sequence[SpaceSolution],
        duals: Sequence[Array],
        centers: Mapping[str, Array],
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
            blocks=calibrate(strategies, noises, budget.pcost, self.max_records),
            bound=math.fsum(math.sqrt(b) for b in bounds.values()) ** 2,
            statement=(
                f"No strategy that measures the residual spaces of {'these' if centers else 'uniform'} centers "
                "independently can have a smaller weighted RMSE than the bound."
                + (f" Searches ended: {'; '.join(stopped)}." if stopped else "")
            ),
            duals=tuple(duals),
            max_records=self.max_records,
            centers=centers,
        )
