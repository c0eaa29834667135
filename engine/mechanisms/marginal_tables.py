"""Mechanisms that choose marginal tables to measure whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from engine.decomposition import Space
from engine.errors import NotApplicable
from engine.explicit_plan import Component
from engine.family import Array
from engine.hierarchies import data_cube
from engine.mechanisms.base import Limits
from engine.mechanisms.explicit import Design, ExplicitMechanism, asked_attributes, identity_strategy
from engine.workload import Workload


def marginal_component(workload: Workload, attributes: Space, share: float, groups: Sequence[int] = ()) -> Component:
    """Return the component that measures every cell of a marginal table."""
    factors = tuple(((axis,), identity_strategy(n)) for axis, n in enumerate(workload.schema.sizes(attributes)))
    return Component(attributes=attributes, factors=factors, share=share, groups=tuple(groups))


@dataclass(frozen=True, kw_only=True)
class DataCube(ExplicitMechanism):
    """Marginals chosen greedily so that every asked one is a sum of few cells of a measured one."""

    name: ClassVar[str] = "datacube"
    title: ClassVar[str] = "DataCube"
    meaning: ClassVar[str] = "Measures a few large marginals from which all asked ones are summed; marginals only."

    def design(self, workload: Workload, law: str, limits: Limits, found: tuple[Array, ...]) -> Design:
        attributes = asked_attributes(workload)
        for group in workload.groups:
            for part in group.parts:
                if part.family.name not in ("marginal", "total"):
                    raise NotApplicable(
                        f"DataCube measures marginals, but a group asks '{part.family.name}' queries on "
                        f"{' x '.join(group.attributes)}. Use 'querysmasher', or ask marginals only."
                    )
        asked = [
            tuple(
                sorted(
                    attributes.index(group.attributes[a])
                    for part in group.parts
                    if part.family.name == "marginal"
                    for a in part.axes
                )
            )
            for group in workload.groups
        ]
        noise = "laplace" if law == "laplace" else "gaussian"
        chosen = data_cube(workload.schema.sizes(attributes), asked, noise)  # type: ignore[arg-type]
        tables = [tuple(attributes[a] for a in axes) for axes in chosen]
        return Design(
            components=tuple(marginal_component(workload, t, 1.0 / len(tables)) for t in tables), whole_tables=True
        )
