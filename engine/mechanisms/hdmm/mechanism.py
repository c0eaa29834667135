"""HDMM: the best of explicit, product, clustered and marginal strategies found by search.

Source: McKenna, Miklau, Hay and Machanavajjhala, "HDMM", 2023; the searches are in `engine.mechanisms.hdmm.operators`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from engine.arrays import Array
from engine.errors import PlanError
from engine.mechanisms.base import Forecast, Limits
from engine.mechanisms.explicit import Design, ExplicitMechanism, asked_attributes
from engine.mechanisms.hdmm import operators as hdmm
from engine.mechanisms.hdmm.operators import OPERATORS, best_of
from engine.plans import Component, explicit_strategy
from engine.workload import Workload

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
        if self.operator != "best" and self.operator not in OPERATORS:
            raise PlanError(f"operator was {self.operator!r}. Choose best, {', '.join(OPERATORS)}.")
        for name in ("restarts", "seed"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31:
                raise PlanError(f"{name} was {value!r}. Give a whole number from 0.")

    def forecast(self, workload: Workload, limits: Limits) -> Forecast:
        found = super().forecast(workload, limits)
        sizes = workload.schema.sizes(asked_attributes(workload))
        seconds = 0.5 + 2e-7 * sum(n**3 for n in sizes) * 60 + 2e-3 * len(workload.groups)
        return Forecast(
            seconds=seconds, memory=found.memory, text=f"{len(OPERATORS)} operators, {self.restarts} restarts"
        )

    def design(self, workload: Workload, law: str, limits: Limits, found: tuple[Array, ...]) -> Design:
        if found:
            return _decoded(workload, law, found)
        operators = tuple(OPERATORS) if self.operator == "best" else (self.operator,)
        calls = [0]

        def tell(text: str) -> None:
            calls[0] += 1
            limits.tell(1.0 - 0.5 ** (calls[0] / STEPS), f"Searching: {text}")

        deadline = limits.deadline() if limits.time_limit is None else time.monotonic() + 0.8 * limits.time_limit
        choice = best_of(
            workload, law, operators=operators, restarts=self.restarts, seed=self.seed, deadline=deadline, tell=tell
        )
        return _decoded(workload, law, _encoded(workload, choice.best))


def _encoded(workload: Workload, found: hdmm.HDMMStrategy) -> tuple[Array, ...]:
    """Return a strategy as plain arrays, so that a file can hold it."""
    names = list(workload.schema.names)
    operator = list(OPERATORS).index(found.operator.split(":")[0])
    out: list[Any] = [[operator, len(found.components), float(found.joint)]]
    for c in found.components:
        out += [[c.share, len(c.factors)], c.groups, [names.index(a) for a in c.attributes]]
        for axes, rows in c.factors:
            out += [axes, rows]
    return tuple(np.ascontiguousarray(a, dtype=float) for a in out)


def _decoded(workload: Workload, law: str, matrices: tuple[Array, ...]) -> Design:
    """Return the design that `_encoded` wrote down; raise ValueError when the arrays are none."""
    left = list(matrices)

    def take() -> Array:
        if not left:
            raise ValueError("the recorded strategy ends too early")
        return left.pop(0)

    def whole(values: Array, below: int) -> tuple[int, ...]:
        numbers = tuple(int(v) for v in values.ravel())
        if not all(0 <= n < below for n in numbers):
            raise ValueError("the recorded strategy has numbers out of range")
        return numbers

    known: dict[bytes, Any] = {}
    operator, count, joint = whole(take(), 10**6)
    names, components = workload.schema.names, []
    for _ in range(count):
        share, factors = take().ravel()
        groups = whole(take(), len(workload.groups))
        attributes = tuple(names[i] for i in whole(take(), len(names)))
        sizes, made = workload.schema.sizes(attributes), []
        for _ in range(int(factors)):
            axes, rows = whole(take(), len(attributes)), take()
            own = tuple(sizes[a] for a in axes)
            if rows.ndim != 2 or rows.shape[1] != math.prod(own):
                raise ValueError("the recorded rows do not fit")
            key = repr(own).encode() + rows.tobytes()
            if key not in known:
                known[key] = explicit_strategy(rows, own, law)
            made.append((axes, known[key]))
        components.append(Component(attributes=attributes, factors=tuple(made), share=float(share), groups=groups))
    return Design(
        components=tuple(components) if joint else _all_answered(workload, components),
        whole_tables=bool(joint),
        statement=f"The strategy was found by {list(OPERATORS)[operator]}.",
        matrices=matrices,
    )


def _all_answered(workload: Workload, components: Sequence[Component]) -> tuple[Component, ...]:
    """Give groups that no component was made for, those without weight, to the first that has their attributes."""
    answered = {g for c in components for g in c.groups}
    more: dict[int, list[int]] = {}
    for number, group in enumerate(workload.groups):
        if number not in answered:
            able = (k for k, c in enumerate(components) if set(group.attributes) <= set(c.attributes))
            if (first := next(able, None)) is not None:
                more.setdefault(first, []).append(number)
    return tuple(
        Component(attributes=c.attributes, factors=c.factors, share=c.share, groups=(*c.groups, *more.get(k, [])))
        for k, c in enumerate(components)
    )
