"""HDMM: the best of explicit, product, clustered and marginal strategies found by search.

Source: McKenna, Miklau, Hay and Machanavajjhala, "HDMM", 2023; the searches are in `engine.mechanisms.hdmm.operators`.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from engine.arrays import Array
from engine.checks import one_of
from engine.errors import NotApplicable, PlanError
from engine.mechanisms.base import Forecast, Limits
from engine.mechanisms.explicit import Design, ExplicitMechanism, asked_attributes
from engine.mechanisms.hdmm.operators import OPERATORS, WHOLE, best_of, foreseen
from engine.mechanisms.products import search_seconds, unit_seconds
from engine.plans import Component
from engine.workload import Workload

LISTED, GROUP_SECONDS = 1_000, 2e-2  # groups up to which a forecast lists all problems; beyond, seconds a group
STEPS = 60  # calls of a search after which the progress bar is half full


@dataclass(frozen=True, kw_only=True)
class HDMM(ExplicitMechanism):
    """The best strategy of all operators, with restarts.

    Options
    -------
    operator : "best", or one of OPT_0, OPT_kron, OPT_plus, OPT_marginals.
    restarts : restarts of the searches that can end in local optima.
    seed : of the searches; equal seeds give equal plans.  It has nothing to do with the noise of a release.
    """

    name: ClassVar[str] = "hdmm"
    title: ClassVar[str] = "HDMM"
    meaning: ClassVar[str] = "The best of product, clustered and marginal strategies on whole tables, by search."

    operator: str = "best"
    restarts: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("option operator", self.operator, ("best", *OPERATORS), error=PlanError, public=True)
        for name in ("restarts", "seed"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31:
                raise PlanError(f"{name} was {value!r}. Give a whole number from 0.")

    def forecast(self, workload: Workload, limits: Limits) -> Forecast:
        found = super().forecast(workload, limits)
        sizes = workload.schema.sizes(asked_attributes(workload))
        # the bound of all mechanisms takes an eigenvalue problem of every size
        seconds = 0.05 + 5e-4 * len(workload.groups) + math.fsum(1.5e-8 * n**3 for n in set(sizes))
        seconds += unit_seconds(cells) if (cells := math.prod(sizes)) <= WHOLE else 0.0
        if len(workload.groups) > LISTED:
            return replace(found, seconds=seconds + GROUP_SECONDS * len(workload.groups), text=self._text)
        with contextlib.suppress(NotApplicable):  # the plan then says why, or OPT_marginals remains
            problems = foreseen(workload, self.operator)
            seconds += math.fsum(search_seconds(problem, self.restarts) for problem in problems)
        return replace(found, seconds=seconds, text=self._text)

    @property
    def _text(self) -> str:
        return f"{len(OPERATORS)} operators, {self.restarts} restarts"

    def design(self, workload: Workload, law: str, limits: Limits, found: tuple[Array, ...]) -> Design:
        if not found:
            found = self._search(workload, law, limits).arrays(workload.schema)
        made = Design.from_arrays(found, workload, law)
        return replace(
            made,
            components=made.components if made.whole_tables else _all_answered(workload, made.components),
            statement=f"The strategy was found by {list(OPERATORS)[made.origin]}.",
        )

    def _search(self, workload: Workload, law: str, limits: Limits) -> Design:
        operators = tuple(OPERATORS) if self.operator == "best" else (self.operator,)
        calls = [0]

        def tell(text: str) -> None:
            calls[0] += 1
            limits.tell(1.0 - 0.5 ** (calls[0] / STEPS), f"Searching: {text}")

        deadline = limits.deadline() if limits.time_limit is None else time.monotonic() + 0.8 * limits.time_limit
        best = best_of(
            workload, law, operators=operators, restarts=self.restarts, seed=self.seed, deadline=deadline, tell=tell
        ).best
        origin = list(OPERATORS).index(best.operator.split(":")[0])
        return Design(components=best.components, whole_tables=best.joint, origin=origin)


def _all_answered(workload: Workload, components: Sequence[Component]) -> tuple[Component, ...]:
    """Give groups that no component was made for, those without weight, to the first that has their attributes."""
    answered = {g for c in components for g in c.groups}
    more: dict[int, list[int]] = {}
    for number, group in enumerate(workload.groups):
        if number not in answered:
            able = (k for k, c in enumerate(components) if set(group.attributes) <= set(c.attributes))
            if (first := next(able, None)) is not None:
                more.setdefault(first, []).append(number)
    return tuple(replace(c, groups=(*c.groups, *more.get(k, []))) for k, c in enumerate(components))
