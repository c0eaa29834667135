"""Reconstruction of tables and query answers from the estimates of measured blocks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt

from engine._arrays import Array
from engine._format import set_name
from engine._threads import threads_for
from engine.errors import NotAnswerable, PlanError
from engine.plans.blocks import Block, block_of_space
from engine.residuals import Axes, Complement, Space, Split, SplitLift
from engine.residuals.basis import residual_coefficients, space_index, tables
from engine.workload import Schema, Workload, subsets


def finite_table(names: Space, sizes: Sequence[int], values: npt.ArrayLike) -> Array:
    """Return the coefficients of a query as an array of finite numbers, shape ``sizes``.

    Parameters
    ----------
    names : attributes of the query, for the error message.
    sizes : number of cells of each attribute.

    Raises
    ------
    PlanError : if the query has another shape, or entries that are not finite numbers.
    """
    try:
        tensor = np.asarray(values, dtype=float)
    except (TypeError, ValueError, OverflowError):
        tensor = np.full(tuple(sizes), np.nan)
    is_finite = np.isfinite(tensor).all()
    if tensor.shape != tuple(sizes) or not is_finite:
        fault = f"the shape {tensor.shape}" if is_finite else "entries that are not finite numbers"
        raise PlanError(
            f"The table of a query on {set_name(names) if names else 'no attribute'} has {fault}."
            f" Give finite numbers of shape {tuple(sizes)}."
        )
    return tensor


def unmeasured_error(attributes: Sequence[str], space: Space) -> NotAnswerable:
    """Return the exception that a plan does not measure a query's component in ``space``."""
    counts = f"counts by {' x '.join(space)}" if space else "the total"
    return NotAnswerable(
        f"The query on {' x '.join(attributes) or 'no attribute'} depends on {counts}, which the"
        " plan does not measure. Add this query, or the marginal on these attributes, to the"
        " workload."
    )


def query_pieces(
    schema: Schema, split: Split, attributes: Sequence[str], query_tensor: npt.ArrayLike
) -> dict[Space, Array]:
    """Return the components of a query: residual space -> array of shape (n_1 - 1, ...).

    The attributes of every residual space are in schema order.

    Parameters
    ----------
    query_tensor : coefficients of the query, one axis per entry of ``attributes``.
    """
    names = schema.named(attributes)
    tensor = finite_table(names, schema.sizes(names), query_tensor)
    ranked = schema.ranked(names)
    shape = schema.sizes(ranked)
    order = [names.index(name) for name in ranked]
    row = np.ascontiguousarray(tensor.transpose(order)).reshape(1, -1)
    # coefficients on all residual spaces; `space_index` selects those on one space
    coefficients = residual_coefficients(
        row, shape, split.centers_of(ranked), split.complements_inside(ranked)
    ).reshape(1, *shape)
    return {
        tuple(ranked[a] for a in axes): coefficients[space_index(len(ranked), axes)][0]
        for axes in subsets(range(len(ranked)))
    }


def union_rows(schema: Schema, block: Block, rows_by_space: Mapping[Space, Array]) -> Array:
    """Return k queries as rows in the residual coordinates of all spaces that a block measures.

    Parameters
    ----------
    rows_by_space : residual space -> components of the k queries in this space, shape
        (k, n_1 - 1, ...).  The components in all other spaces of the block are 0.

    Returns
    -------
    array of shape (k, sum over the spaces of prod(n_i - 1)).
    """
    count = len(next(iter(rows_by_space.values())))
    dimensions = {s: math.prod(n - 1 for n in schema.sizes(s)) for s in block.spaces}
    rows = [
        rows_by_space[s].reshape(count, -1) if s in rows_by_space else np.zeros((count, n))
        for s, n in dimensions.items()
    ]
    return np.concatenate(rows, axis=1)


class Answers(Protocol):
    """Interface of objects that compute tables and answers from the estimates of a plan."""

    def group_table(self, group: int) -> Array:
        """Return the table from which a group is answered, in counts, one axis per attribute."""
        ...

    def table(self, attributes: Space) -> Array:
        """Return the noisy table on some attributes, in counts, one axis per attribute.

        Raises
        ------
        NotAnswerable : if the plan does not measure the complete table.
        """
        ...

    def value(self, attributes: Sequence[str], query_tensor: npt.ArrayLike) -> float:
        """Return the answer to one query, in counts.

        ``query_tensor`` has one axis per attribute.
        """
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class SpaceAnswers:
    """Tables and answers of a plan that measures residual spaces.

    Attributes
    ----------
    workload : queries of the plan.
    split : decomposition of queries into residual spaces (centers and complements).
    blocks : key -> block, which measures one or more residual spaces.
    estimates : key of a block -> estimated residual coordinates of its spaces, in counts.
    """

    workload: Workload
    split: Split
    blocks: Mapping[Space, Block]
    estimates: Mapping[Space, Array]

    @property
    def schema(self) -> Schema:
        """Schema of the queries."""
        return self.workload.schema

    @cached_property
    def block_key_of_space(self) -> Mapping[Space, Space]:
        """Residual space -> key of the block that measures it."""
        return block_of_space(self.blocks)

    @cached_property
    def by_space(self) -> Mapping[Space, Array]:
        """Residual space -> its estimated coordinates in counts, shape (n_1 - 1, ...).

        If an invariant determines the space, the coordinates are exact.
        """
        schema, split = self.schema, self.split
        coordinates = {}
        for space in schema.exact_spaces:
            table = schema.exact_table(space).astype(float)
            # Only a residual space of two attributes can have a complement (tuned split of its
            # queries). The key (0, 1) stands for the two axes of the space.
            complement = split.complement(space)
            complements: dict[Axes, Complement] = {} if complement is None else {(0, 1): complement}
            lift = SplitLift(
                table.shape, split.centers_of(space), (tuple(range(table.ndim)),), complements
            )
            coordinates[space] = lift.table_coordinates(table.reshape(1, -1)).reshape(
                [n - 1 for n in table.shape]
            )
        # the estimates of a block are the coordinates in its spaces, one space after the other
        for key, values in self.estimates.items():
            start = 0
            for space in self.blocks[key].spaces:
                shape = tuple(n - 1 for n in self.schema.sizes(space))
                coordinates[space] = values.ravel()[start : start + math.prod(shape)].reshape(shape)
                start += math.prod(shape)
        return coordinates

    def group_table(self, group: int) -> Array:
        """Return the table from which a group is answered, in counts, one axis per attribute."""
        return self.partial_table(self.workload.groups[group].attributes)

    def table(self, attributes: Space) -> Array:
        """Return the noisy table on some attributes, in counts, one axis per attribute.

        Raises
        ------
        NotAnswerable : if the plan does not measure the complete table.
        """
        for space in subsets(self.schema.ranked(attributes)):
            if not self._measures(space):
                counts = f"the counts by {set_name(space)}" if space else "the total"
                raise NotAnswerable(
                    f"The plan does not measure the complete table on {set_name(attributes)}: it"
                    f" does not determine {counts}. Compute single queries with answer(), or add"
                    " the marginal on these attributes to the workload."
                )
        return self.partial_table(attributes)

    def value(self, attributes: Sequence[str], query_tensor: npt.ArrayLike) -> float:
        """Return the answer to one query, in counts, with unmeasured components taken as 0.

        ``query_tensor`` has the shape of the marginal table on the attributes.
        """
        if self.schema.is_exact(attributes):
            return float(
                np.sum(np.asarray(query_tensor) * self.schema.exact_table(tuple(attributes)))
            )
        return math.fsum(
            float(np.sum(piece * self.by_space[space]))
            for space, piece in query_pieces(
                self.schema, self.split, attributes, query_tensor
            ).items()
            if space in self.by_space
        )

    def _measures(self, space: Space) -> bool:
        """Return whether all residual coordinates of a space are measured or known.

        This includes spaces without coordinates and spaces that an invariant determines.
        """
        if math.prod(n - 1 for n in self.schema.sizes(space)) == 0 or self.schema.is_exact(space):
            return True
        if space not in self.block_key_of_space:
            return False
        block = self.blocks[self.block_key_of_space[space]]
        is_complete = all(s.complete for _, s in block.factors)
        if is_complete or not block.union:
            return is_complete
        ((_, strategy),) = block.factors
        identity = np.eye(math.prod(n - 1 for n in self.schema.sizes(space)))
        rows = union_rows(self.schema, block, {space: identity})
        return not strategy.leaves_span(rows).any()

    def partial_table(self, attributes: Sequence[str]) -> Array:
        """Return the table on ``attributes``, in counts, with unmeasured components taken as 0.

        The table has one axis per attribute.
        """
        schema = self.schema
        if schema.is_exact(attributes):
            return schema.exact_table(tuple(attributes)).astype(float)
        ranked = schema.ranked(attributes)
        sizes = schema.sizes(ranked)
        # The coordinates in unmeasured residual spaces remain 0.
        coordinates = np.zeros((1, *sizes))
        for inside in subsets(range(len(ranked))):
            estimate = self.by_space.get(tuple(ranked[a] for a in inside))
            if estimate is not None:
                coordinates[space_index(len(ranked), inside)] = estimate
        with threads_for(max(sizes, default=1)):
            split = self.split
            table = tables(
                coordinates,
                sizes,
                split.centers_of(ranked),
                split.complements_inside(ranked),
                overwrite=True,
            ).reshape(sizes)
        return table.transpose([ranked.index(name) for name in attributes])
