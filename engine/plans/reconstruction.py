"""Reconstruction of tables and query answers from the estimates of measured blocks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from engine._arrays import Array
from engine._format import set_name
from engine._threads import threads_for
from engine.errors import NotAnswerable, PlanError
from engine.plans.blocks import component_key
from engine.residuals import Axes, Complement, Space, SplitLift
from engine.residuals.basis import part_of, tables
from engine.workload import subsets

if TYPE_CHECKING:
    from engine.plans.plan import Plan
    from engine.plans.table_plan import ExplicitPlan


def finite_table(names: Space, sizes: Sequence[int], given: npt.ArrayLike) -> Array:
    """Return a query as a table of finite numbers, shape (n_1, ..., n_k).

    Raises
    ------
    PlanError : the query has another shape, or entries that are not finite numbers.
    """
    try:
        tensor = np.asarray(given, dtype=float)
    except (TypeError, ValueError, OverflowError):
        tensor = np.full((), np.nan)
    if tensor.shape != tuple(sizes) or not np.isfinite(tensor).all():
        raise PlanError(
            f"A query on {' x '.join(names) or 'nothing'} must be a table of finite numbers of shape {tuple(sizes)}; "
            f"it has shape {tensor.shape}."
        )
    return tensor


def unmeasured(attributes: Sequence[str], space: Space) -> NotAnswerable:
    """Return the exception for a query whose component in a residual space is not measured."""
    return NotAnswerable(
        f"This query on {' x '.join(attributes)} needs a part of the table on {' x '.join(space)} that the "
        "plan does not measure. Add the query, or the marginal on these attributes, to the workload."
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class SpaceAnswers:
    """Tables and answers of a plan of residual spaces.

    Attributes
    ----------
    plan : the plan.
    estimates : estimated class coordinates of every block, in counts.
    """

    plan: Plan
    estimates: Mapping[Space, Array]

    @cached_property
    def by_space(self) -> Mapping[Space, Array]:
        """Class coordinates of every residual space, one axis per attribute, shape (n_1 - 1, ...).

        Those that follow from public tables are exact.
        """
        schema, split = self.plan.schema, self.plan.split
        out = {}
        for space in schema.exact_spaces:
            table = schema.exact_table(space).astype(float)
            complement = split.complement(space)
            complements: dict[Axes, Complement] = {} if complement is None else {(0, 1): complement}
            lift = SplitLift(table.shape, split.given(space), (tuple(range(table.ndim)),), complements)
            out[space] = lift.classes(table.reshape(1, -1)).reshape([n - 1 for n in table.shape])
        for home, values in self.estimates.items():
            at = 0
            for space in self.plan.answering[home].spaces:
                shape = tuple(n - 1 for n in self.plan.schema.sizes(space))
                out[space] = values.ravel()[at : at + math.prod(shape)].reshape(shape)
                at += math.prod(shape)
        return out

    def group_table(self, group: int) -> Array:
        """Return the table that answers a group, in counts, one axis per attribute of the group."""
        return self.known_table(self.plan.workload.groups[group].attributes)

    def table(self, attributes: Space) -> Array:
        """Return the noisy table on some attributes, in counts, one axis per attribute.

        Raises
        ------
        NotAnswerable : the plan does not measure the complete table.
        """
        for space in subsets(self.plan.schema.ranked(attributes)):
            if not self._measures(space):
                raise NotAnswerable(
                    f"The plan does not measure the complete table on {set_name(attributes)}: "
                    f"{set_name(space)} is missing. Ask single queries with answer(), or plan "
                    "with the marginal on these attributes."
                )
        return self.known_table(attributes)

    def value(self, attributes: Sequence[str], query_tensor: npt.ArrayLike) -> float:
        """Return the answer to one query, in counts; unmeasured components count as 0.

        ``query_tensor`` has the shape of the marginal table on the attributes.
        """
        if self.plan.schema.is_exact(attributes):
            return float(np.sum(np.asarray(query_tensor) * self.plan.schema.exact_table(tuple(attributes))))
        return math.fsum(
            float(np.sum(piece * self.by_space[space]))
            for space, piece in self.plan.class_pieces(attributes, query_tensor).items()
            if space in self.by_space
        )

    def _measures(self, space: Space) -> bool:
        """Return whether the blocks determine all class coordinates of a residual space."""
        if math.prod(n - 1 for n in self.plan.schema.sizes(space)) == 0 or self.plan.schema.is_exact(space):
            return True
        if space not in self.plan.home:
            return False
        block = self.plan.answering[self.plan.home[space]]
        if all(s.complete for _, s in block.factors) or not block.union:
            return all(s.complete for _, s in block.factors)
        ((_, strategy),) = block.factors
        rows = self.plan.joined(block, {space: np.eye(math.prod(n - 1 for n in self.plan.schema.sizes(space)))})
        return not strategy.leaves_span(rows).any()

    def known_table(self, attributes: Sequence[str]) -> Array:
        """Return the table on ``attributes``, in counts; unmeasured components count as 0.

        The table has one axis per attribute.
        """
        schema = self.plan.schema
        if schema.is_exact(attributes):
            return schema.exact_table(tuple(attributes)).astype(float)
        ranked = schema.ranked(attributes)
        sizes = schema.sizes(ranked)
        # unmeasured spaces stay 0; `table` rejects attributes with such a space
        coordinates = np.zeros((1, *sizes))
        for inside in subsets(range(len(ranked))):
            estimate = self.by_space.get(tuple(ranked[a] for a in inside))
            if estimate is not None:
                coordinates[part_of(len(ranked), inside)] = estimate
        with threads_for(max(sizes, default=1)):
            split = self.plan.split
            table = tables(coordinates, sizes, split.given(ranked), split.inside(ranked)).reshape(sizes)
        return table.transpose([ranked.index(name) for name in attributes])


@dataclass(frozen=True, kw_only=True, eq=False)
class TableAnswers:
    """Tables and answers of a plan of components.

    Attributes
    ----------
    plan : the plan.
    estimates : estimated cells of the table of every component, in counts.
    """

    plan: ExplicitPlan
    estimates: Mapping[Space, Array]

    def group_table(self, group: int) -> Array:
        """Return the table that answers a group, in counts, one axis per attribute of the group."""
        queries, number = self.plan.workload.groups[group], self.plan.answered_by[group]
        return self._table(number, queries.attributes) if number >= 0 else np.zeros(queries.sizes)

    def table(self, attributes: Space) -> Array:
        """Return the noisy table on some attributes, in counts, one axis per attribute.

        Raises
        ------
        NotAnswerable : the plan does not measure the complete table.
        """
        return self._table(self.plan.component_of_table(attributes), attributes)

    def value(self, attributes: Sequence[str], query_tensor: npt.ArrayLike) -> float:
        """Return the answer to one query, in counts; the query has one axis per attribute."""
        names, query = self.plan.essential(attributes, query_tensor)
        return float(np.sum(query * self._table(self.plan.component_for(attributes, query_tensor), names)))

    def _table(self, number: int, attributes: Sequence[str]) -> Array:
        """Return the table on attributes, in this order, from the estimate of a component."""
        block = self.plan.components[number]
        positions = [block.attributes.index(name) for name in attributes]
        estimate = self.estimates[component_key(number)]
        # sums of the least squares estimate are the least squares estimates of the sums
        summed = estimate.sum(axis=tuple(a for a in range(estimate.ndim) if a not in positions))
        order = sorted(positions)
        return np.asarray(summed).transpose([order.index(a) for a in positions])
