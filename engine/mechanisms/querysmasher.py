"""QuerySmasher: smash every query into residual spaces and solve each space optimally.

Source: QuerySmasher, algorithm 1; the tuned centers are this project's own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from engine.errors import PlanError
from engine.mechanisms.base import Forecast, Limits
from engine.mechanisms.residual import ResidualMechanism, SpaceSolver
from engine.spaces import (
    PROBLEMS,
    UNIFORM,
    Decomposition,
    Options,
    Space,
    Split,
    SplitMemory,
    SubworkloadSolver,
    asks_products,
    can_tune,
    choose_unions,
    decompose,
    union_bytes,
)
from engine.workload import Workload

UNION_SECONDS = 2.0  # what the search for the strategy of a union takes, for forecasts only
CENTERS = ("uniform", "tuned")


@dataclass(frozen=True, kw_only=True)
class QuerySmasher(ResidualMechanism):
    """Optimal strategies in every residual space, with a certificate.

    Options
    -------
    centers : "uniform", the decomposition of the paper; "tuned", at least as accurate up to ``gap``: see
        `centers`, `complements` for pairs asked by sums, differences or conditions of one's own, and
        `unions` for spaces that one strategy measures together, up to the whole domain where that is small.
        Other objectives than the sum measure every space on its own.
    solver : "optimal"; or the approximate "fourier" (closed form) and "eigenbasis" (a fixed basis).
    gap : relative RMSE gap at which a search stops.
    """

    name: ClassVar[str] = "querysmasher"
    title: ClassVar[str] = "QuerySmasher"
    meaning: ClassVar[str] = "Optimal noise for every group of attributes, whatever the queries look like."
    variants: ClassVar[tuple[Mapping[str, Any], ...]] = ({}, {"centers": "tuned"})
    choices: ClassVar[Mapping[str, tuple[Any, ...]]] = {"centers": CENTERS, "solver": tuple(PROBLEMS)}

    centers: str = "uniform"
    solver: str = "optimal"
    gap: float = 1e-6

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.centers not in CENTERS:
            raise PlanError(f"centers was {self.centers!r}. Choose one of {', '.join(CENTERS)}.")
        if not isinstance(self.solver, str) or self.solver not in PROBLEMS:
            raise PlanError(f"solver was {self.solver!r}. Choose one of {', '.join(PROBLEMS)}.")
        if isinstance(self.gap, bool) or not isinstance(self.gap, (int, float)) or not 1e-9 <= self.gap <= 1:
            raise PlanError(f"gap was {self.gap!r}. Give a number from 1e-9 to 1, such as 1e-6.")

    def forecast(self, workload: Workload, limits: Limits) -> Forecast:
        found = super().forecast(workload, limits)
        if self.centers != "tuned":
            return found
        unions: dict[Space, tuple[Space, ...]] = {}
        if self.solver == "optimal" and self.goal(workload).linear:
            unions = choose_unions(workload, tuple(decompose(workload).spaces), limits.memory_limit)
        more = max((union_bytes(workload, a, spaces) for a, spaces in unions.items()), default=0.0)
        # tuning solves every subworkload again some dozens of times, from a good start
        seconds = 40.0 * found.seconds + len(unions) * UNION_SECONDS
        return replace(found, seconds=seconds, memory=found.memory + min(more, limits.memory_limit))

    def choose_split(
        self, workload: Workload, tell: Callable[[float, str], None], limits: Limits, unions: bool = True
    ) -> Split:
        if self.centers != "tuned":
            return UNIFORM
        together: dict[Space, tuple[Space, ...]] = {}
        if unions and self.solver == "optimal":
            tell(0.0, "Looking for spaces to measure together")
            spaces = tuple(decompose(workload).spaces)
            together = choose_unions(workload, spaces, limits.memory_limit)
            if together and len(next(iter(together.values()))) == len(spaces):
                return Split(unions=together)
        memory = SplitMemory(workload, limits.solve_cache())
        if not can_tune(workload):
            found = memory.centers(tell)
            return replace(found, unions=together)
        tried = [memory.complements(tell)]
        if asks_products(workload):
            tried.append(memory.centers(tell))
        best = tried[0] if len(tried) == 1 else min(tried, key=lambda split: self._error(workload, split, limits))
        return replace(best, unions=together)

    def _error(self, workload: Workload, split: Split, limits: Limits) -> float:
        """Return the sum of sqrt(L_B) of a split without unions."""
        parts = decompose(workload, split, self.axis_labels(workload))
        solver = self.space_solver(workload, parts, limits, math.inf)
        roots = [math.sqrt(solver.solve(sub).value) for sub in parts.subworkloads]
        return math.fsum(math.sqrt(scale) * roots[number] for number, scale in parts.spaces.values())

    def space_solver(self, workload: Workload, parts: Decomposition, limits: Limits, deadline: float) -> SpaceSolver:
        return SubworkloadSolver(
            factors=parts.factors,
            method=self.solver,
            options=Options(gap=self.gap, deadline=deadline),
            memory_limit=limits.memory_limit,
            cache=limits.solve_cache(),
        )
