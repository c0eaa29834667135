"""Noisy residual tables and their variances.

The residual of a space, as a table of cells, is t = N S y, where y are its residual coordinates, N
is the basis of the residual space and S the projector on the measured subspace.  The noise of
marginals has the same variance in all directions.  Prefix, range and other query families measure
some directions more precisely than others, which is stored as a precision matrix, see
`engine.postprocess.residual_estimates`.  For spaces that are measured jointly, the mean variance is
an approximation.

Precision matrices of the noise of residual tables.

The noise of a prefix strategy has smaller variance in sums over many cells than in single cells.
With D a difference of residual tables and C_i the covariance of the residual coordinates along axis
i (N_i their basis), the squared distance in standard errors is

    sum of D * (K_1 (x) K_2 (x) ...) D / sigma^2,     K_i = N_i C_i^-1 N_i^T.

Contrasts: decomposition of consistent tables with one component per set of attributes.

The table on a set A is the sum over B inside A of r_B / (number of cells summed out), where r_B has
the sum 0 along each of its axes.  Tables that are assembled from the same contrasts r_B agree on
their common attributes.  The contrast of the empty set is the number of records.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from engine._arrays import Array
from engine.errors import NotAnswerable, NotApplicable
from engine.plans import Block, Plan, SpaceAnswers
from engine.release import Measurement
from engine.residuals import Axes, Complement, Space, SplitLift, basis, center
from engine.workload import subsets


def contrast(table: Array) -> Array:
    """Return the highest-order interaction of a table, which sums to 0 along every axis.

    >>> contrast(np.array([[3.0, 1.0], [1.0, 1.0]])).tolist()
    [[0.5, -0.5], [-0.5, 0.5]]
    """
    out = np.array(table, dtype=float)
    for axis in range(out.ndim):
        out -= out.mean(axis=axis, keepdims=True)
    return out


def along_axes(values: Array, axes: Axes, all_axes: Axes) -> Array:
    """Return a table on ``axes`` with length-1 axes inserted, to broadcast with tables on ``all_axes``."""
    sizes = dict(zip(axes, values.shape, strict=True))
    return values.reshape([sizes.get(a, 1) for a in all_axes])


def mean_over(table: Array, all_axes: Axes, axes: Axes) -> Array:
    """Return the mean of a table on ``all_axes`` over the attributes that are not in ``axes``."""
    return np.asarray(table.mean(axis=tuple(i for i, a in enumerate(all_axes) if a not in axes)))


def proper_subsets(axes: Axes) -> list[Axes]:
    """Return the proper subsets of a set of attributes, smallest first.

    >>> proper_subsets((0, 2))
    [(), (0,), (2,)]
    """
    return [inside for inside in subsets(axes) if inside != axes]


def largest_subsets(axes: Axes) -> list[Axes]:
    """Return the subsets of a set of attributes that have one attribute fewer."""
    return [axes[:i] + axes[i + 1 :] for i in range(len(axes))]


def maximal_sets(family: Iterable[Axes]) -> list[Axes]:
    """Return the attribute sets that are not contained in another one of ``family``, sorted.

    >>> maximal_sets([(0,), (0, 1), (2,)])
    [(0, 1), (2,)]
    """
    largest: list[Axes] = []
    for axes in sorted(set(family), key=lambda a: (-len(a), a)):
        if not any(set(axes) <= set(larger) for larger in largest):
            largest.append(axes)
    return sorted(largest)


def add_lower(table: Array, axes: Axes, lower: Mapping[Axes, Array]) -> None:
    """Add tables on proper subsets to a table in place; each cell is divided evenly.

    ``lower`` maps proper subsets of ``axes`` to tables; a count in a cell of a subset is divided
    equally between the cells of ``table``, shape (n_1, ..., n_k), that sum to it.
    """
    sizes = dict(zip(axes, table.shape, strict=True))
    sums: dict[Axes, Array] = {}
    for inside in proper_subsets(axes):
        if inside in lower:
            # sum small tables on a subset first: passes over the complete table dominate the time
            subset = next((f for f in largest_subsets(axes) if set(inside) <= set(f)), ())
            if subset not in sums:
                sums[subset] = np.zeros([sizes[a] for a in subset])
            summed_cells = math.prod(sizes[a] for a in axes if a not in inside)
            sums[subset] += along_axes(lower[inside], inside, subset) / summed_cells
    for subset, values in sums.items():
        table += along_axes(values, subset, axes)


def assemble_table(contrasts: Mapping[Axes, Array], axes: Axes) -> Array:
    """Return the table on ``axes`` that belongs to contrasts, shape (n_1, ..., n_k), in counts."""
    out = np.array(contrasts[axes], dtype=float)
    add_lower(out, axes, contrasts)
    return out


EQUAL_VARIANCE_TOLERANCE = 1e-6  # relative difference up to which variances count as equal


@dataclass(frozen=True, kw_only=True, eq=False)
class Metric:
    """Precision matrix of the noise of a residual table: a Kronecker product times a scale.

    Attributes
    ----------
    factors : one matrix per axis of the table, shape (n_i, n_i).
    scale : in 1 / counts^2.
    """

    factors: tuple[Array, ...] = field(repr=False)
    scale: float

    def of(self, gap: Array) -> Array:
        """Return the precision matrix times a difference of residual tables, in their shape."""
        out = gap
        for axis, factor in enumerate(self.factors):
            out = np.moveaxis(np.tensordot(factor, out, axes=(1, axis)), 0, axis)
        return np.asarray(self.scale * out)

    def squared(self, gap: Array) -> float:
        """Return the squared norm of a difference, shape (n_1, ..., n_k), in squared standard errors."""
        return float(np.sum(gap * self.of(gap)))

    @cached_property
    def steepest(self) -> float:
        """Largest eigenvalue of the precision matrix, in 1 / counts^2."""
        return self.scale * math.prod(
            float(np.linalg.eigvalsh(factor)[-1]) for factor in self.factors
        )

    @cached_property
    def of_cells(self) -> Array:
        """Diagonal of the precision matrix, one entry per cell, in the shape of the table."""
        out = np.array(self.scale)
        for factor in self.factors:
            out = np.multiply.outer(out, np.diag(factor))
        return np.asarray(out)


def metric_of(block: Block, space: Space) -> Metric | None:
    """Return the precision matrix of the noise of a residual space that a block measures.

    None if all directions have the same variance, or if no Kronecker product with one factor per
    attribute represents the matrix.
    """
    if block.weights is not None or not all(s.complete for _, s in block.factors):
        return None
    if block.union:
        ((_, strategy),) = block.factors
        if len(space) != 1:
            return None
        dimensions = [
            math.prod(strategy.sizes[block.attributes.index(n)] - 1 for n in s) for s in block.union
        ]
        first = sum(dimensions[: block.union.index(space)])
        rows = slice(first, first + dimensions[block.union.index(space)])
        covariances = [strategy.covariance[rows, rows]]
    elif all(len(axes) == 1 for axes, _ in block.factors):
        covariances = [s.covariance for _, s in sorted(block.factors, key=lambda factor: factor[0])]
    else:
        return None
    if all(map(_is_scalar, covariances)):
        return None
    factors, uneven = [], False
    for covariance in covariances:
        values, vectors = np.linalg.eigh(covariance)
        uneven |= bool(values[-1] > (1.0 + EQUAL_VARIANCE_TOLERANCE) * values[0])
        lifted = basis(len(values) + 1) @ vectors
        factors.append((lifted / values) @ lifted.T)
    return Metric(factors=tuple(factors), scale=1.0 / block.noise**2) if uneven else None


def _is_scalar(covariance: Array) -> bool:
    """Return whether Gershgorin's theorem proves that all eigenvalues are equal."""
    scale = float(covariance[0, 0])
    radii = np.abs(covariance - scale * np.eye(len(covariance))).sum(axis=1)
    return bool(radii.max() <= 0.4 * EQUAL_VARIANCE_TOLERANCE * scale)


@dataclass(frozen=True, kw_only=True, eq=False)
class MeasuredProjection:
    """Projection of tables on the measured subspace of one residual space.

    Attributes
    ----------
    centers : the center of every attribute, shape (n_i,).
    complement : complement of a tuned pair, None for a product of centers.
    span : pairs (axes, basis of the measured subspace), one per factor of the strategy; bases have
        the shape (residual coordinates, rank).  Empty if the complete space is measured.
    """

    centers: tuple[Array, ...]
    complement: Complement | None = None
    span: tuple[tuple[Axes, Array], ...] = ()

    @property
    def plain(self) -> bool:
        """Whether the complete residual space of a product of centers is measured."""
        return not self.span and self.complement is None

    def of(self, table: Array) -> Array:
        """Return the measured part of the residual of a table, in the shape of the table."""
        if self.plain:
            out = np.array(table, dtype=float)
            for axis, pi in enumerate(self.centers):
                out -= spread_along(pi, axis, out.ndim) * out.sum(axis=axis, keepdims=True)
            return out
        axes = tuple(range(table.ndim))
        complements: dict[Axes, Complement] = (
            {} if self.complement is None else {(0, 1): self.complement}
        )
        lift = SplitLift(table.shape, self.centers, (axes,), complements)
        return self.cells(
            lift.table_coordinates(table.reshape(1, -1)).reshape([n - 1 for n in table.shape])
        )

    def cells(self, coordinates: Array) -> Array:
        """Project residual coordinates on the measured subspace and return them as a table of cells.

        ``coordinates`` have the shape (n_1 - 1, ..., n_k - 1), the table (n_1, ..., n_k); it sums to
        0 along every axis.
        """
        out = coordinates
        for axes, columns in self.span:
            shape = [out.shape[a] for a in axes]
            moved = np.moveaxis(out, axes, range(len(axes)))
            rest = moved.shape[len(axes) :]
            projected = columns @ (columns.T @ moved.reshape(math.prod(shape), -1))
            out = np.moveaxis(projected.reshape(*shape, *rest), range(len(axes)), axes)
        for axis in range(out.ndim):
            out = np.moveaxis(
                np.tensordot(basis(out.shape[axis] + 1), out, axes=(1, axis)), 0, axis
            )
        return np.array(out, order="C")


@dataclass(frozen=True, kw_only=True, eq=False)
class ResidualEstimate:
    """Noisy estimate of the residual of one residual space.

    Attributes
    ----------
    cells : the residual as a table, in counts, one axis per attribute.
    variance : variance of the noise, as mean of the ``rank`` measured directions, in counts^2.
    rank : dimension of the measured subspace.
    lens : projection on the measured subspace.
    metric : precision matrix of the noise; None if all directions have the same variance.
    """

    cells: Array = field(repr=False)
    variance: float
    rank: int
    lens: MeasuredProjection
    metric: Metric | None = None

    def surplus(self, gap: Array) -> tuple[float, float]:
        """Return by how much the squared norm of a difference exceeds the expectation of pure noise.

        The first value is in squared standard errors, the second in standard deviations of the
        squared norm.  ``gap`` is a table of shape (n_1, ..., n_k).
        """
        squared = (
            float(np.sum(gap**2)) / self.variance
            if self.metric is None
            else self.metric.squared(gap)
        )
        return squared - self.rank, (squared - self.rank) / math.sqrt(2.0 * self.rank)


@dataclass(frozen=True, kw_only=True, eq=False)
class Evidence:
    """Noisy residuals and public facts from which tables are fitted.

    Attributes
    ----------
    names, sizes, centers : the attributes with more than one cell, their numbers of cells and their
        centers.
    tables : the maximal sets of attributes whose tables are published.
    total, total_variance : noisy number of records in counts and its variance in counts^2.
    seen : mapping from attribute sets to their noisy residuals; sets without a measurement are
        absent.
    possible : mapping from attribute sets that have impossible cells to masks of their possible
        cells, shape (n_1, ..., n_k).
    uniform : mapping from attribute sets to contrasts of the uniform distribution, whose tables are
        mixed in to remove negative cells.  It spreads the records evenly over the possible cells
        and agrees with the public tables.  Absent sets have contrast 0.
    exact : mapping from attribute sets with a public table to this table, in counts, shape
        (n_1, ..., n_k); these sets are not measured.
    """

    names: Space
    sizes: tuple[int, ...]
    centers: tuple[Array, ...]
    tables: tuple[Axes, ...]
    total: float
    total_variance: float
    seen: Mapping[Axes, ResidualEstimate] = field(repr=False)
    possible: Mapping[Axes, npt.NDArray[np.bool_]] = field(default_factory=dict, repr=False)
    uniform: Mapping[Axes, Array] = field(default_factory=dict, repr=False)
    exact: Mapping[Axes, Array] = field(default_factory=dict, repr=False)

    @cached_property
    def sets(self) -> tuple[Axes, ...]:
        """All sets of attributes with a table, including the empty set, smallest first."""
        return tuple(sorted(all_sets(self.tables), key=lambda axes: (len(axes), axes)))

    def shape(self, axes: Axes) -> tuple[int, ...]:
        """Shape of the table on a set of attributes."""
        return tuple(self.sizes[a] for a in axes)

    def cells(self, axes: Axes) -> int:
        """Number of cells of the table on a set of attributes."""
        return math.prod(self.shape(axes))


def published_sets(plan: Plan) -> tuple[Space, tuple[Axes, ...]]:
    """Return the attributes with more than one cell, and the maximal sets that are published.

    Sets are given by positions in the attributes.

    Raises: NotApplicable if the plan measures a separate table per group instead of residual
    spaces.
    """
    if plan.full_tables:
        tuned = plan.options.get("centers") == "tuned"
        which = f"tuned plan of {plan.mechanism}" if tuned else f"mechanism {plan.mechanism}"
        instead = (
            "with centers='uniform', or with keep"
            if tuned
            else "with 'residualplanner', 'querysmasher' or another mechanism of residual spaces"
        )
        raise NotApplicable(
            f"The {which} measures a separate table for every group, but publishing needs residual"
            f" spaces. Plan {instead}."
        )
    names = tuple(n for n in plan.schema.names if plan.schema[n].size > 1)
    at = {name: i for i, name in enumerate(names)}
    return names, tuple(
        maximal_sets(
            tuple(sorted(at[n] for n in g.attributes if n in at)) for g in plan.workload.groups
        )
    )


def all_sets(tables: tuple[Axes, ...]) -> set[Axes]:
    """Return all subsets of the given attribute sets, including the empty set."""
    return {inside for axes in tables for inside in subsets(axes)} | {()}


def evidence(measurement: Measurement) -> Evidence:
    """Return the noisy residuals of a measurement, on all attribute subsets of its groups.

    Raises
    ------
    NotApplicable : the plan measures a separate table per group instead of residual spaces.
    NotAnswerable : the number of records was not measured.
    """
    plan, answers = measurement.plan, measurement.plan.answers_from(measurement.estimates)
    names, tables = published_sets(plan)
    assert isinstance(answers, SpaceAnswers)  # `published_sets` checks this
    at = {name: i for i, name in enumerate(names)}
    centers = tuple(center(plan.schema[n].size, plan.split.centers.get(n)) for n in names)
    seen: dict[Axes, ResidualEstimate] = {}
    sets = all_sets(tables)
    names_of = {axes: tuple(names[a] for a in axes) for axes in sets}
    exact = {
        a: plan.schema.exact_table(attributes).astype(float)
        for a, attributes in names_of.items()
        if plan.schema.is_exact(attributes)
    }
    for space, coordinates in answers.by_space.items():
        axes = tuple(at[n] for n in space if n in at)
        if axes in sets and len(axes) == len(space) and axes not in exact:
            block = plan.estimate_blocks[plan.block_key_of_space[space]]
            estimate = _estimate(
                block,
                space,
                coordinates,
                tuple(centers[a] for a in axes),
                plan.split.complement(space),
            )
            if estimate is not None:
                seen[axes] = estimate
    if () not in seen and () not in exact:
        raise NotAnswerable(
            "The number of records was not measured, but consistent tables need it. Add the family"
            " 'total', or a marginal, to the workload."
        )
    total = seen.pop((), None)
    shares = {
        axes: plan.schema.even_share(attributes)
        for axes, attributes in names_of.items()
        if plan.schema.facts
    }
    return Evidence(
        names=names,
        sizes=plan.schema.sizes(names),
        centers=centers,
        tables=tables,
        total=float(exact[()] if total is None else total.cells),
        total_variance=0.0 if total is None else total.variance,
        seen=seen,
        possible={axes: share > 0.0 for axes, share in shares.items() if not share.all()},
        uniform={
            axes: contrast(share)
            for axes, share in shares.items()
            if plan.schema.ruled.issuperset(names[a] for a in axes)
        },
        exact=exact,
    )


def _estimate(
    block: Block,
    space: Space,
    coordinates: Array,
    centers: tuple[Array, ...],
    complement: Complement | None,
) -> ResidualEstimate | None:
    """Return the estimate of one residual space from the block that measures it.

    None if the block measures only sums of this space and other residual spaces.
    """
    span: tuple[tuple[Axes, Array], ...] = ()
    if block.union:
        ((_, strategy),) = block.factors
        dimensions = [
            math.prod(strategy.sizes[block.attributes.index(n)] - 1 for n in s) for s in block.union
        ]
        first = sum(dimensions[: block.union.index(space)])
        rows = slice(first, first + coordinates.size)
        if not strategy.complete and strategy.leaves_span(np.eye(strategy.dimension)[rows]).any():
            return None
        trace, rank = float(np.sum(strategy.pinv[rows] ** 2)), coordinates.size
    else:
        solved = [s.pinv for _, s in block.factors]
        rank = math.prod(s.rank for _, s in block.factors)
        if block.weights is None:
            trace = math.prod(float(np.sum(p**2)) for p in solved)
        else:
            inverse = 1.0 / block.weights**2
            for p in solved:
                inverse = np.tensordot(inverse, np.sum(p**2, axis=0), axes=(0, 0))
            trace = float(inverse)
        if not all(s.complete for _, s in block.factors):
            span = tuple((axes, s.span) for axes, s in block.factors)
    lens = MeasuredProjection(centers=centers, complement=complement, span=span)
    variance = block.noise**2 * trace / max(rank, 1)
    metric = metric_of(block, space) if lens.plain else None
    return ResidualEstimate(
        cells=lens.cells(coordinates), variance=variance, rank=rank, lens=lens, metric=metric
    )


def spread_along(vector: Array, axis: int, count: int) -> Array:
    """Return a vector, shape (n,), as a table with ``count`` axes, all but ``axis`` of length 1."""
    return vector.reshape([-1 if a == axis else 1 for a in range(count)])
