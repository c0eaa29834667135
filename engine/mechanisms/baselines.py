"""The simplest mechanisms: noise on every cell, or on every query."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

from engine.arrays import Array
from engine.checks import one_of
from engine.errors import NotApplicable, PlanError
from engine.mechanisms.base import Limits
from engine.mechanisms.explicit import Design, ExplicitMechanism, asked_attributes, identity_strategy, one_component
from engine.plans import Component, explicit_strategy
from engine.spaces import Strategy, dearest_cell
from engine.workload import Part, Workload

MOST_ENTRIES = 4_000_000  # of the rows of one part


@dataclass(frozen=True, kw_only=True)
class Identity(ExplicitMechanism):
    """Equal noise on every cell of the table of all attributes that are asked about."""

    name: ClassVar[str] = "identity"
    title: ClassVar[str] = "Identity"
    meaning: ClassVar[str] = "Noise on every cell of the whole table; sums of many cells become very noisy."

    def design(self, workload: Workload, law: str, limits: Limits, found: tuple[Array, ...]) -> Design:
        attributes = asked_attributes(workload)
        factors = tuple(((axis,), identity_strategy(n)) for axis, n in enumerate(workload.schema.sizes(attributes)))
        return one_component(workload, attributes, factors)


@dataclass(frozen=True, kw_only=True)
class GaussianQueries(ExplicitMechanism):
    """Equal noise on every query, whatever its weight; each group is answered by least squares among its own.

    Options
    -------
    charge : "cell", what a record costs in the dearest cell of all; "groups", the sum of what it costs in the dearest
        cell of every group, which is no less.  Plan files that do not say are of the second kind.
    """

    name: ClassVar[str] = "gaussian"
    title: ClassVar[str] = "Gaussian mechanism"
    meaning: ClassVar[str] = "Gaussian noise on every query that is asked, then least squares within each group."
    laws: ClassVar[tuple[str, ...]] = ("gaussian",)
    unsaid: ClassVar[Mapping[str, Any]] = {"charge": "groups"}

    charge: str = "cell"

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("option charge", self.charge, ("cell", "groups"), error=PlanError, public=True)

    def design(self, workload: Workload, law: str, limits: Limits, found: tuple[Array, ...]) -> Design:
        components, sensitivities = [], []
        for number, group in enumerate(workload.groups):
            order = group.ranks(workload.schema)
            factors, sensitivity = [], 1.0
            for part in group.parts:
                if part.count * math.prod(part.sizes) > MOST_ENTRIES:
                    raise NotApplicable(
                        f"The {part.count:,} queries of a group on {math.prod(part.sizes):,} cells are too many to be "
                        "measured one by one. Use 'querysmasher', or coarser attributes."
                    )
                strategy, norm = _rows(part, law)
                factors.append((tuple(order.index(a) for a in part.axes), strategy))
                sensitivity *= norm
            attributes = group.named(order)
            components.append((attributes, tuple(factors), number))
            sensitivities.append(sensitivity)
        most = max(sensitivities)  # queries that count no cell need no noise; a sliver keeps theirs finite
        shares = [max(s, 1e-6 * most) if law == "laplace" else max(s, 1e-6 * most) ** 2 for s in sensitivities]
        total, joint = math.fsum(shares), self.charge == "cell"
        if joint:
            total = dearest_cell(((a, f, share) for (a, f, _), share in zip(components, shares, strict=True)), law)
        return Design(
            components=tuple(
                Component(attributes=a, factors=f, share=share / total, groups=(number,))
                for (a, f, number), share in zip(components, shares, strict=True)
            ),
            joint=joint,
        )


@dataclass(frozen=True, kw_only=True)
class LaplaceQueries(GaussianQueries):
    """The same with Laplace noise, for a budget of pure epsilon."""

    name: ClassVar[str] = "laplace"
    title: ClassVar[str] = "Laplace mechanism"
    meaning: ClassVar[str] = "Laplace noise on every query that is asked, then least squares within each group."
    laws: ClassVar[tuple[str, ...]] = ("laplace",)


@lru_cache(maxsize=64)
def _rows(part: Part, law: str) -> tuple[Strategy, float]:
    """Return the rows of a part scaled to column norm 1, and their norm before."""
    rows = part.family.rows(part.sizes)
    norm = float(abs(rows).sum(axis=0).max() if law == "laplace" else (rows**2).sum(axis=0).max() ** 0.5)
    return explicit_strategy(rows, part.sizes, law), norm
