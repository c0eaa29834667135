"""Noisy residual tables and their variances.

The residual of a space in cells is t = N S y, y its class coordinates and S the projector on what is measured.  Its
noise is alike in all directions for marginals; prefix, range and other families know some directions better than
others, which `metric` tells.  Of what is measured jointly the mean variance is an approximation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from engine._arrays import Array
from engine.errors import NotAnswerable, NotApplicable
from engine.plans import Block, Plan, SpaceAnswers
from engine.postprocess.contrasts import contrast, maximal
from engine.postprocess.noise_precision import Metric, metric_of
from engine.release import Measurement
from engine.residuals import Axes, Complement, Space, SplitLift, basis, center
from engine.workload import subsets


@dataclass(frozen=True, kw_only=True, eq=False)
class Lens:
    """What is measured of one residual space.

    Attributes
    ----------
    centers : the center of every attribute, shape (n_i,).
    complement : how a pair passes coordinates down, None for a product.
    span : for (axes, basis) of every factor the measured class rows, shape (class coordinates, rank); () if all are.
    """

    centers: tuple[Array, ...]
    complement: Complement | None = None
    span: tuple[tuple[Axes, Array], ...] = ()

    @property
    def plain(self) -> bool:
        """Whether all of the residual of a product is measured."""
        return not self.span and self.complement is None

    def of(self, table: Array) -> Array:
        """Return in cells what is measured of a table's residual, of its shape."""
        if self.plain:
            out = np.array(table, dtype=float)
            for axis, pi in enumerate(self.centers):
                out -= spread_along(pi, axis, out.ndim) * out.sum(axis=axis, keepdims=True)
            return out
        axes = tuple(range(table.ndim))
        complements: dict[Axes, Complement] = {} if self.complement is None else {(0, 1): self.complement}
        lift = SplitLift(table.shape, self.centers, (axes,), complements)
        return self.cells(lift.classes(table.reshape(1, -1)).reshape([n - 1 for n in table.shape]))

    def cells(self, coordinates: Array) -> Array:
        """Return class coordinates in cells, with sum 0 along every axis, without what is not measured.

        Shapes (n_1 - 1, ...) to (n_1, ...).
        """
        out = coordinates
        for axes, columns in self.span:
            shape = [out.shape[a] for a in axes]
            moved = np.moveaxis(out, axes, range(len(axes)))
            rest = moved.shape[len(axes) :]
            kept = columns @ (columns.T @ moved.reshape(math.prod(shape), -1))
            out = np.moveaxis(kept.reshape(*shape, *rest), range(len(axes)), axes)
        for axis in range(out.ndim):
            out = np.moveaxis(np.tensordot(basis(out.shape[axis] + 1), out, axes=(1, axis)), 0, axis)
        return np.array(out, order="C")


@dataclass(frozen=True, kw_only=True, eq=False)
class Seen:
    """The estimate of one residual space.

    Attributes
    ----------
    cells : the residual in cells, in counts, one axis per attribute.
    variance : mean variance of what is measured, in counts^2, along each of ``rank`` directions.
    metric : how well every direction is known, where they differ.
    """

    cells: Array = field(repr=False)
    variance: float
    rank: int
    lens: Lens
    metric: Metric | None = None

    def surplus(self, gap: Array) -> tuple[float, float]:
        """Return a gap's square beyond its noise: in squared standard errors, and in spreads. Shape (n_1, ..., n_k)."""
        squared = float(np.sum(gap**2)) / self.variance if self.metric is None else self.metric.squared(gap)
        return squared - self.rank, (squared - self.rank) / math.sqrt(2.0 * self.rank)


@dataclass(frozen=True, kw_only=True, eq=False)
class Evidence:
    """All that a measurement says of the tables that are to be published.

    Attributes
    ----------
    names, sizes, centers : the attributes of more than one cell, and their centers.
    tables : the largest sets of attributes whose tables are published.
    total, total_variance : noisy number of records, and its variance in counts^2.
    seen : residual spaces; one that is absent was not measured.
    possible : where the rules of the schema make cells impossible, which ones are not; shape (n_1, ..., n_k).
    even : contrasts of the tables in which all possible cells of the full domain hold the same, as far as public
        tables allow, with the total 1; one that is absent is 0.
    exact : public tables, in counts, of the shape of their attributes; nothing was measured of them.
    """

    names: Space
    sizes: tuple[int, ...]
    centers: tuple[Array, ...]
    tables: tuple[Axes, ...]
    total: float
    total_variance: float
    seen: Mapping[Axes, Seen] = field(repr=False)
    possible: Mapping[Axes, npt.NDArray[np.bool_]] = field(default_factory=dict, repr=False)
    even: Mapping[Axes, Array] = field(default_factory=dict, repr=False)
    exact: Mapping[Axes, Array] = field(default_factory=dict, repr=False)

    @cached_property
    def sets(self) -> tuple[Axes, ...]:
        """Every set of attributes that has a table, small ones first, the empty one among them."""
        return tuple(sorted(all_sets(self.tables), key=lambda axes: (len(axes), axes)))

    def shape(self, axes: Axes) -> tuple[int, ...]:
        """Shape of the table on a set of attributes."""
        return tuple(self.sizes[a] for a in axes)

    def cells(self, axes: Axes) -> int:
        """Number of cells of the table on a set of attributes."""
        return math.prod(self.shape(axes))


def published_sets(plan: Plan) -> tuple[Space, tuple[Axes, ...]]:
    """Return the attributes of more than one cell, and the largest sets of their positions that groups hold.

    Raises: NotApplicable when the plan measures whole tables of their own, which residual spaces do not make up.
    """
    if plan.whole_tables:
        tuned = plan.options.get("centers") == "tuned"
        which = f"tuned plan of {plan.mechanism}" if tuned else f"mechanism {plan.mechanism}"
        instead = (
            "with centers='uniform', or with keep"
            if tuned
            else "with 'residualplanner', 'querysmasher' or another mechanism of residual spaces"
        )
        raise NotApplicable(
            f"The {which} answers every group from a table of its own, and publishing needs those of residual spaces. "
            f"Plan {instead}."
        )
    names = tuple(n for n in plan.schema.names if plan.schema[n].size > 1)
    at = {name: i for i, name in enumerate(names)}
    return names, tuple(maximal(tuple(sorted(at[n] for n in g.attributes if n in at)) for g in plan.workload.groups))


def all_sets(tables: tuple[Axes, ...]) -> set[Axes]:
    """Return all subsets of some sets of attributes, the empty one among them."""
    return {inside for axes in tables for inside in subsets(axes)} | {()}


def evidence(measurement: Measurement) -> Evidence:
    """Return what a measurement says of the tables on the attributes of its groups.

    Raises
    ------
    NotApplicable : the plan measures whole tables of their own, which residual spaces do not make up.
    NotAnswerable : the number of records does not follow from what was measured.
    """
    plan, said = measurement.plan, measurement.plan.answers_from(measurement.estimates)
    names, tables = published_sets(plan)
    assert isinstance(said, SpaceAnswers)  # what `published_sets` has seen to
    at = {name: i for i, name in enumerate(names)}
    centers = tuple(center(plan.schema[n].size, plan.split.centers.get(n)) for n in names)
    seen: dict[Axes, Seen] = {}
    wanted = all_sets(tables)
    known = {axes: tuple(names[a] for a in axes) for axes in wanted}
    exact = {a: plan.schema.exact_table(own).astype(float) for a, own in known.items() if plan.schema.is_exact(own)}
    for space, coordinates in said.by_space.items():
        axes = tuple(at[n] for n in space if n in at)
        if axes in wanted and len(axes) == len(space) and axes not in exact:
            block = plan.answering[plan.home[space]]
            found = _seen(block, space, coordinates, tuple(centers[a] for a in axes), plan.split.complement(space))
            if found is not None:
                seen[axes] = found
    if () not in seen and () not in exact:
        raise NotAnswerable(
            "The number of records does not follow from what was measured, so that no table can be made to agree with "
            "it. Add the family 'total', or a marginal, to the workload."
        )
    total = seen.pop((), None)
    shares = {axes: plan.schema.even_share(own) for axes, own in known.items() if plan.schema.facts}
    return Evidence(
        names=names,
        sizes=plan.schema.sizes(names),
        centers=centers,
        tables=tables,
        total=float(exact[()] if total is None else total.cells),
        total_variance=0.0 if total is None else total.variance,
        seen=seen,
        possible={axes: share > 0.0 for axes, share in shares.items() if not share.all()},
        even={
            axes: contrast(share)
            for axes, share in shares.items()
            if plan.schema.ruled.issuperset(names[a] for a in axes)
        },
        exact=exact,
    )


def _seen(
    block: Block, space: Space, coordinates: Array, centers: tuple[Array, ...], complement: Complement | None
) -> Seen | None:
    """Return the estimate of one space out of its block; None where only sums with other spaces are measured."""
    span: tuple[tuple[Axes, Array], ...] = ()
    if block.union:
        ((_, strategy),) = block.factors
        dimensions = [math.prod(strategy.sizes[block.attributes.index(n)] - 1 for n in s) for s in block.union]
        first = sum(dimensions[: block.union.index(space)])
        rows = slice(first, first + coordinates.size)
        if not strategy.complete and strategy.leaves_span(np.eye(strategy.dimension)[rows]).any():
            return None
        trace, rank = float(np.sum(strategy.pinv[rows] ** 2)), coordinates.size
    else:
        solved = [s.pinv for _, s in block.factors]
        rank = math.prod(s.span.shape[1] for _, s in block.factors)
        if block.weights is None:
            trace = math.prod(float(np.sum(p**2)) for p in solved)
        else:
            inverse = 1.0 / block.weights**2
            for p in solved:
                inverse = np.tensordot(inverse, np.sum(p**2, axis=0), axes=(0, 0))
            trace = float(inverse)
        if not all(s.complete for _, s in block.factors):
            span = tuple((axes, s.span) for axes, s in block.factors)
    lens = Lens(centers=centers, complement=complement, span=span)
    variance = block.noise**2 * trace / max(rank, 1)
    metric = metric_of(block, space) if lens.plain else None
    return Seen(cells=lens.cells(coordinates), variance=variance, rank=rank, lens=lens, metric=metric)


def spread_along(vector: Array, axis: int, count: int) -> Array:
    """Return a vector, shape (n,), as one that broadcasts along one axis of tables with ``count`` axes."""
    return vector.reshape([-1 if a == axis else 1 for a in range(count)])
