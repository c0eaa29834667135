"""The best of all matrix mechanisms, on domains that can be held whole."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from engine.arrays import Array
from engine.errors import PlanError
from engine.mechanisms.base import Forecast, Limits
from engine.mechanisms.explicit import Design, ExplicitMechanism, asked_attributes, check_dense, one_component
from engine.plans import explicit_strategy
from engine.spaces import Options, whole_problem
from engine.threads import threads_for
from engine.workload import Workload

FLOPS = 1e10  # floating point operations a second in large eigenvalue problems, for forecasts only


@dataclass(frozen=True, kw_only=True)
class Optimum(ExplicitMechanism):
    """The optimal strategy on all cells at once, certified.

    Options
    -------
    gap : relative RMSE gap at which the search may stop.
    """

    name: ClassVar[str] = "optimum"
    title: ClassVar[str] = "Global optimum"
    meaning: ClassVar[str] = "The best any matrix mechanism can do, for domains of a few thousand cells."
    laws: ClassVar[tuple[str, ...]] = ("gaussian",)

    gap: float = 1e-5

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.gap, bool) or not isinstance(self.gap, (int, float)) or not 0 < self.gap < 1:
            raise PlanError(f"gap was {self.gap!r}. Give a number between 0 and 1, such as 1e-5.")

    def forecast(self, workload: Workload, limits: Limits) -> Forecast:
        cells = check_dense(workload, asked_attributes(workload), "The global optimum")
        text = f"one problem on {cells:,} cells"
        return Forecast(seconds=0.1 + 60 * 5.0 * cells**3 / FLOPS, memory=120e6 + 100.0 * cells**2, text=text)

    def design(self, workload: Workload, law: str, limits: Limits, found: tuple[Array, ...]) -> Design:
        attributes = asked_attributes(workload)
        cells = check_dense(workload, attributes, "The global optimum")
        sizes = workload.schema.sizes(attributes)
        with threads_for(cells):
            problem = whole_problem(workload)
            if found:
                mass = found[0]
                if len(mass) != problem.variables:
                    raise ValueError("recorded weights do not fit")
            else:
                options = Options(gap=self.gap, deadline=limits.deadline())
                done = [0]

                def watch(gap: float) -> None:
                    done[0] += 1
                    limits.tell(1.0 - math.exp(-done[0] / 40.0), f"Solving {cells:,} cells, gap {gap:.1e}")

                mass, _ = problem.maximise(options, watch=watch)
            solution = problem.solution(mass, "")
            strategy = explicit_strategy(solution.strategy.rows, sizes)
        factors = ((tuple(range(len(sizes))), strategy),) if sizes else ()
        design = one_component(workload, attributes, factors)
        statement = "" if solution.gap <= 1.01 * self.gap else "The search stopped before the gap that was asked for."
        return Design(components=design.components, statement=statement, bound=solution.bound, matrices=(mass,))
