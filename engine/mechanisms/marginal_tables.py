"""Mechanisms that choose marginal tables to measure whole."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from engine.arrays import Array
from engine.errors import NotApplicable, WorkloadError
from engine.mechanisms.base import Limits, NoiseLaw
from engine.mechanisms.explicit import Design, ExplicitMechanism, asked_attributes, identity_strategy
from engine.plans import Component
from engine.spaces import Axes, Space
from engine.workload import Workload, subsets


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
        noise: NoiseLaw = "laplace" if law == "laplace" else "gaussian"
        chosen = data_cube(workload.schema.sizes(attributes), asked, noise)
        tables = [tuple(attributes[a] for a in axes) for axes in chosen]
        return Design(
            components=tuple(marginal_component(workload, t, 1.0 / len(tables)) for t in tables), whole_tables=True
        )


def data_cube(
    sizes: Sequence[int], asked: Sequence[Axes], noise: NoiseLaw = "laplace", *, limit: int | None = None
) -> tuple[Axes, ...]:
    """Return the marginals to measure, all with the same noise, for a workload of marginals.

    A measured marginal covers every asked one that it holds and that sums at most ``limit`` of its cells; covers are
    chosen greedily, most new ones first.  With no limit given, every limit is tried and the set of the smallest error
    by least squares is kept.  The published numbers have the number of asked marginals as the limit.

    Source: Ding and others (2011), BMAX by set cover, with candidates from the workload.

    >>> data_cube((2, 3), [(), (0,), (1,), (0, 1)], limit=6)
    ((0, 1),)
    """
    wanted = list(dict.fromkeys(tuple(sorted(axes)) for axes in asked))
    if not wanted or any(not 0 <= i < len(sizes) for axes in wanted for i in axes):
        raise WorkloadError(f"A workload of {len(wanted)} marginals on {len(sizes)} axes was given. Give axes from 0.")
    sums = np.array(
        [
            [
                math.prod(sizes[i] for i in big if i not in small) if set(small) <= set(big) else math.inf
                for small in wanted
            ]
            for big in wanted
        ]
    )
    limits = np.unique(sums[np.isfinite(sums)]) if limit is None else np.array([max(limit, 1)])
    # every limit costs a cover and an error; neighbours among many limits give the same cover
    if len(limits) > 24:
        limits = np.unique(limits[np.linspace(0, len(limits) - 1, 24).astype(int)])
    best: tuple[float, tuple[Axes, ...]] = (math.inf, ())
    for bound in limits:
        covers, left, chosen = sums <= bound, np.ones(len(wanted), dtype=bool), []
        while left.any():
            # greedy set cover: within a factor of log n of the smallest one
            most = int(np.argmax(covers[:, left].sum(axis=1)))
            chosen.append(wanted[most])
            left &= ~covers[most]
        best = min(best, (marginals_error(sizes, wanted, chosen, noise), tuple(chosen)))
    return best[1]


def marginals_error(sizes: Sequence[int], asked: Sequence[Axes], measured: Sequence[Axes], noise: NoiseLaw) -> float:
    """Return the error of asked marginals by least squares on measured ones, each at weight 1, in counts^2.

    Residual spaces are eigenspaces of both: sum over B of dim(B) g_B / l_B, where g_B and l_B sum, over the asked and
    the measured sets that hold B, the number of cells outside the set.

    >>> marginals_error((2, 3), [(0,), (1,)], [(0, 1)], "gaussian")
    12.0
    """
    spaces = sorted({B for axes in asked for B in subsets(sorted(axes))})

    def eigenvalues(sets: Sequence[Axes]) -> Array:
        inside = np.array([[i in axes for i in range(len(sizes))] for axes in sets], dtype=float).reshape(len(sets), -1)
        spanned = np.array([[i in B for i in range(len(sizes))] for B in spaces], dtype=float).reshape(len(spaces), -1)
        # products of sizes as sums of logarithms, one matrix product for all sets
        outside = np.exp((1.0 - inside) @ np.log(np.asarray(sizes, dtype=float)))
        held = spanned @ (1.0 - inside).T == 0.0
        out: Array = held @ outside
        return out

    measured_values, dimensions = eigenvalues(measured), [math.prod(sizes[i] - 1 for i in B) for B in spaces]
    # a space that no measured table holds cannot be answered at all
    if not measured_values.all():
        return math.inf
    total = float(np.sum(np.array(dimensions, dtype=float) * eigenvalues(asked) / measured_values))
    # k tables at budget 1: epsilons add up and are squared in a variance, costs in zCDP add up
    return total * (len(measured) ** 2 if noise == "laplace" else len(measured))
