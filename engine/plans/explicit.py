"""Plans whose strategies are rows on the cells of marginal tables, answered by least squares.

A component is one Kronecker strategy on some attributes.  Every group of the workload is answered from one component
alone, by least squares in it; where a strategy is a union of components this is HDMM's local least squares.  A query
that is asked afterwards is answered from the component that gives it the smallest variance.

Source: HDMM, sections 6 and 7.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from engine.arrays import Array, thin_svd
from engine.errors import NotAnswerable, PlanError
from engine.plans.answers import TableAnswers
from engine.plans.blocks import Block, calibrate, component_key
from engine.plans.explicit_variance import (
    covariance_of,
    explicit_group_variance,
    leaves,
    leaves_table,
    presence,
    summed,
)
from engine.plans.group_variance import GroupVariance, Summand
from engine.plans.neighbours import row_pcosts
from engine.plans.plan import NamedQuery, Plan
from engine.privacy import Budget
from engine.spaces import Axes, Space, Strategy
from engine.workload import Group

SAME = 1e-6  # variances closer than this are equal but for the rounding of noise to the grid


@dataclass(frozen=True, kw_only=True, eq=False)
class Component:
    """One Kronecker strategy of a plan.

    Attributes
    ----------
    attributes : attributes of the table that is measured, in schema order.
    factors : (axes, strategy) on disjoint sets of axes; the largest column norm of every factor's rows is 1, in the
        Euclidean norm for Gaussian noise and in the L1 norm for Laplace noise.
    share : share of the budget, in pcost for Gaussian noise and in epsilon for Laplace noise; the shares add up to 1,
        or where the dearest cell is charged, what one cell costs of each adds up to 1 at most.
    groups : the groups of the workload that it answers.
    """

    attributes: Space
    factors: tuple[tuple[Axes, Strategy], ...]
    share: float
    groups: tuple[int, ...]


def explicit_strategy(rows: npt.ArrayLike, sizes: Sequence[int], law: str = "gaussian") -> Strategy:
    """Return strategy rows on the cells of some attributes, scaled to largest column norm 1, with their least squares.

    ``rows`` has shape (measurements, cells); the norm is Euclidean for Gaussian noise and L1 for Laplace noise.

    >>> made = explicit_strategy([[1.0, 1.0], [0.0, 1.0]], (2,))
    >>> round(made.column_norm, 12), made.complete
    (1.0, True)
    """
    B = np.ascontiguousarray(rows, dtype=float)
    norms = np.abs(B).sum(axis=0) if law == "laplace" else np.sqrt(np.einsum("rc,rc->c", B, B))
    B = B / (norms.max() or 1.0)
    U, singular, Vt = thin_svd(B)
    kept = singular > 1e-10 * max(singular[0], 1e-300)
    pinv = (Vt[kept].T / singular[kept]) @ U[:, kept].T
    return Strategy(sizes=tuple(sizes), rows=B, pinv=pinv, complete=int(kept.sum()) == B.shape[1])


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ExplicitPlan(Plan):
    """A plan of components; see the module's text.

    Attributes
    ----------
    answered_by : for every group of the workload, the number of its component, -1 when none measures it.

    The blocks are keyed by ("component", number); estimates of a block are least squares estimates of its table.
    """

    whole_tables: ClassVar[bool] = True

    answered_by: tuple[int, ...] = ()

    @cached_property
    def components(self) -> tuple[Block, ...]:
        """The blocks in the order of their numbers."""
        return tuple(self.blocks.values())

    @cached_property
    def _group_variances(self) -> dict[Any, GroupVariance]:
        return {}

    def group_variance(self, group: int) -> GroupVariance:
        self._check_group(group)
        asked, number = self.workload.groups[group], self.answered_by[group]
        key = (number, asked.attributes, asked.key)
        if key not in self._group_variances:
            measured = explicit_group_variance(asked, self.components[number]) if number >= 0 else _unmeasured(asked)
            self._group_variances[key] = measured
        return self._group_variances[key]

    def asking(self, groups: Iterable[Group]) -> Self:
        asked, numbers = tuple(groups), []
        for group in asked:
            best = (math.inf, -1)
            for number, block in enumerate(self.components):
                if set(group.attributes) <= set(block.attributes):
                    total = explicit_group_variance(group, block).total()
                    best = (total, number) if total < best[0] * (1.0 - SAME) else best
            numbers.append(best[1] if math.isfinite(best[0]) else -1)
        return replace(super().asking(asked), answered_by=tuple(numbers))

    def sources(self, group: int) -> list[Block]:
        return [self.components[self.answered_by[group]]]

    def answers_from(self, estimates: Mapping[Space, Array]) -> TableAnswers:
        return TableAnswers(plan=self, estimates=estimates)

    def covariance(self, queries: Sequence[NamedQuery]) -> Array:
        chosen = [(self.component_for(*query), self.essential(*query)) for query in queries]
        out = np.zeros((len(chosen), len(chosen)))
        for i, (a, left) in enumerate(chosen):
            for j, (b, right) in enumerate(chosen[: i + 1]):
                if a == b:
                    out[i, j] = out[j, i] = covariance_of(self.components[a], left, right)
        return out

    def essential(self, attributes: Sequence[str], query_tensor: npt.ArrayLike) -> tuple[Space, Array]:
        """Return a query without the attributes that it does not distinguish: (names, table).

        The table has shape (n_1, ..., n_k) of these names.
        """
        names = tuple(attributes)
        table = self.query_table(names, query_tensor)
        for axis in reversed(range(len(names))):
            first = np.take(table, [0], axis=axis)
            if (table == first).all():
                names, table = (*names[:axis], *names[axis + 1 :]), np.squeeze(first, axis=axis)
        return names, table

    def component_for(self, attributes: Sequence[str], query_tensor: npt.ArrayLike) -> int:
        """Return the component that answers a query with the smallest variance. The query has shape (n_1, ..., n_k).

        Raises
        ------
        NotAnswerable : no component measures the query.
        """
        own, best = self.essential(attributes, query_tensor), (math.inf, -1)
        for number, block in enumerate(self.components):
            if not set(own[0]) <= set(block.attributes) or leaves(block, *own):
                continue
            value = covariance_of(block, own, own)
            if value < best[0] * (1.0 - SAME):  # among equals the first one answers
                best = (value, number)
        if best[1] < 0:
            raise NotAnswerable(
                f"No part of this plan measures the query on {' x '.join(attributes) or 'nothing'}. Add the query, or "
                "the marginal on these attributes, to the workload."
            )
        return best[1]

    def component_of_table(self, attributes: Sequence[str]) -> int:
        """Return the component that gives the table on some attributes with the smallest mean variance.

        Raises
        ------
        NotAnswerable : no component measures the whole table.
        """
        self.schema.sizes(tuple(attributes))
        best = (math.inf, -1)
        for number, block in enumerate(self.components):
            if not set(attributes) <= set(block.attributes) or leaves_table(block, attributes):
                continue
            total = block.noise**2
            for axes, strategy in block.factors:
                kept = [i for i, a in enumerate(axes) if block.attributes[a] in attributes]
                total *= float(np.trace(summed(strategy.covariance, strategy.sizes, kept, kept)))
            if total < best[0] * (1.0 - SAME):
                best = (total, number)
        if best[1] < 0:
            raise NotAnswerable(
                f"No part of this plan measures the whole table on {' x '.join(attributes) or 'nothing'}. Ask single "
                "queries with answer(), or plan with the marginal on these attributes."
            )
        return best[1]


def _unmeasured(group: Group) -> GroupVariance:
    """Return the variances of a group that nothing measures: only queries that count no cell have an answer."""
    counts, marks = tuple(part.count for part in group.parts), tuple(presence(group))
    return GroupVariance(counts=counts, summands=(), unmeasured=(Summand(coefficient=1.0, arrays=marks),))


def component_blocks(
    components: Sequence[Component], budget: Budget, max_records: int, joint: bool = False
) -> Mapping[Space, Block]:
    """Return the blocks of some components, in order, with noise that spends the budget by their shares.

    ``joint`` charges the dearest cell in all of them, see `ExplicitPlan`.
    """
    noises = {}
    for number, component in enumerate(components):
        if budget.pure_epsilon is None:
            noise = 1.0 / math.sqrt(budget.row_pcost * component.share)
        else:
            noise = math.sqrt(2.0) / (budget.pure_epsilon / budget.rows_per_person * component.share)
        noises[component_key(number)] = noise
    strategies = {component_key(number): c.factors for number, c in enumerate(components)}
    attributes = {component_key(number): c.attributes for number, c in enumerate(components)}
    return calibrate(
        strategies,
        noises,
        budget.row_pcost,
        max_records,
        budget.law,
        attributes=attributes,
        pcost=row_pcosts(budget, joint),
    )


def answered_by(components: Sequence[Component], groups: int) -> tuple[int, ...]:
    """Return the component of every group, -1 where there is none; raise PlanError when a group has two."""
    found = {g: number for number, c in enumerate(components) for g in c.groups}
    if sum(len(c.groups) for c in components) != len(found) or not set(found) <= set(range(groups)):
        raise PlanError("A group of the workload has two components, or a component another's; the plan is refused.")
    return tuple(found.get(g, -1) for g in range(groups))
