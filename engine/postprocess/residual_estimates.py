"""Noisy residuals of a measurement as tables of cells, with the variances of their noise.

**Residuals.**  The residual of a table is the component that no smaller set of attributes contains.
As a table of cells it is N S y, where y are the measured residual coordinates, N is the basis of
the residual space and S the projector on the measured subspace.

**Noise.**  For marginals, the noise of a residual has the same variance in all directions.  Prefix,
range and other query families measure some directions more precisely than others: for example, sums
over many cells more precisely than single cells.  Then the noise is described by a precision
matrix.  With D a difference of two residual tables and C_i the covariance of the residual
coordinates along axis i (N_i their basis), the squared distance in standard errors is

    sum of D * (K_1 (x) K_2 (x) ...) D / sigma^2,     K_i = N_i C_i^-1 N_i^T.

If the variances differ and `metric_of` returns no such matrix, the mean variance is used as an
approximation.

**Contrasts** decompose consistent tables into one component r_B per attribute set B, which sums to
0 along each of its axes.  The table on A is the sum over B inside A of r_B / (number of cells
summed out).  Tables that are assembled from the same contrasts agree on their common attributes.
The contrast of the empty set is the number of records.
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
from engine.residuals import Axes, Complement, Space, SplitLift, Strategy, basis, center
from engine.residuals.operators import CosineMatrix, PrecisionMatrix, is_wide
from engine.workload import subsets


def contrast(table: Array) -> Array:
    """Return the highest-order interaction of a table, which sums to 0 along every axis.

    >>> contrast(np.array([[3.0, 1.0], [1.0, 1.0]])).tolist()
    [[0.5, -0.5], [-0.5, 0.5]]
    """
    residual = np.array(table, dtype=float)
    for axis in range(residual.ndim):
        residual -= residual.mean(axis=axis, keepdims=True)
    return residual


def along_axes(values: Array, axes: Axes, all_axes: Axes) -> Array:
    """Return a table on ``axes`` with an axis of length 1 for each other axis in ``all_axes``."""
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
    """Return the subsets with one attribute fewer; entry i leaves out attribute i of ``axes``."""
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
    """Add tables on proper subsets of ``axes`` to ``table``, in place.

    ``lower`` maps attribute sets to tables; sets that are no proper subset of ``axes`` are ignored.
    The count in a cell of a smaller table is divided equally between the cells of ``table``, shape
    (n_1, ..., n_k), that have the same values of the attributes of the smaller table.
    """
    sizes = dict(zip(axes, table.shape, strict=True))
    sums: dict[Axes, Array] = {}
    for inside in proper_subsets(axes):
        if inside in lower:
            # Adding to the complete table is slow.  Each small table is therefore first added to a
            # sum with one attribute fewer than the complete table.
            subset = next((s for s in largest_subsets(axes) if set(inside) <= set(s)), ())
            if subset not in sums:
                sums[subset] = np.zeros([sizes[a] for a in subset])
            summed_cells = math.prod(sizes[a] for a in axes if a not in inside)
            sums[subset] += along_axes(lower[inside], inside, subset) / summed_cells
    for subset, values in sums.items():
        table += along_axes(values, subset, axes)


def assemble_table(contrasts: Mapping[Axes, Array], axes: Axes) -> Array:
    """Return the table on ``axes`` that has the given contrasts, in counts, shape (n_1, ..., n_k).

    ``contrasts`` maps attribute sets, among them ``axes``, to contrasts (see the module docstring).
    Proper subsets of ``axes`` without an entry have contrast 0.
    """
    table = np.array(contrasts[axes], dtype=float)
    add_lower(table, axes, contrasts)
    return table


EQUAL_VARIANCE_TOLERANCE = 1e-6  # relative difference up to which variances count as equal


@dataclass(frozen=True, kw_only=True, eq=False)
class Metric:
    """Precision matrix of the noise of a residual table: a scale times a Kronecker product.

    Attributes
    ----------
    factors : one matrix per axis of the table, shape (n_i, n_i).  A wide attribute has an operator
        in place of a dense matrix.
    scale : factor of the product, in 1 / counts^2.
    """

    factors: tuple[Array | PrecisionMatrix, ...] = field(repr=False)
    scale: float

    def of(self, gap: Array) -> Array:
        """Return the precision matrix times a difference of residual tables, in 1 / counts.

        ``gap`` is the difference in counts.  It and the result have the shape (n_1, ..., n_k).
        """
        product = gap
        for axis, factor in enumerate(self.factors):
            if isinstance(factor, PrecisionMatrix):
                product = np.moveaxis(np.moveaxis(product, axis, -1) @ factor, -1, axis)
            else:
                product = np.moveaxis(np.tensordot(factor, product, axes=(1, axis)), 0, axis)
        return np.asarray(self.scale * product)

    def squared(self, gap: Array) -> float:
        """Return the squared norm of a difference of residual tables, in squared standard errors.

        ``gap`` is the difference in counts, shape (n_1, ..., n_k).
        """
        return float(np.sum(gap * self.of(gap)))

    @cached_property
    def largest_eigenvalue(self) -> float:
        """Largest eigenvalue of the precision matrix, in 1 / counts^2."""
        return self.scale * math.prod(
            factor.largest_eigenvalue
            if isinstance(factor, PrecisionMatrix)
            else float(np.linalg.eigvalsh(factor)[-1])
            for factor in self.factors
        )

    @cached_property
    def of_cells(self) -> Array:
        """Diagonal of the precision matrix, one entry per cell, in the shape of the table."""
        diagonal = np.array(self.scale)
        for factor in self.factors:
            if isinstance(factor, PrecisionMatrix):
                diagonal = np.multiply.outer(diagonal, factor.diagonal)
            else:
                diagonal = np.multiply.outer(diagonal, np.diag(factor))
        return np.asarray(diagonal)


def metric_of(block: Block, space: Space) -> Metric | None:
    """Return the precision matrix of the noise with which a block measures one residual space.

    The result is None if all directions have the same variance, if the block does not measure the
    complete space, or if the matrix is not a Kronecker product with one factor per attribute.  If
    the space is measured jointly with other spaces, it is also None unless it has one attribute.
    """
    if block.weights is not None or not all(s.complete for _, s in block.factors):
        return None
    # For each attribute, a pair (strategy that measures it alone, covariance of its residual
    # coordinates at noise 1).  The strategy is None if it measures other residual spaces, too.
    noises: list[tuple[Strategy | None, Array]]
    if block.union:
        if len(space) != 1:
            return None
        ((_, strategy),) = block.factors
        coordinates = _coordinates_in_union(block, space)
        noises = [(None, strategy.covariance[coordinates, coordinates])]
    elif all(len(axes) == 1 for axes, _ in block.factors):
        noises = [(s, s.covariance) for _, s in sorted(block.factors, key=lambda factor: factor[0])]
    else:
        return None
    # This fast test finds most cases of equal variances.  The loop below computes eigenvalues.
    if all(
        s.has_equal_variances if s is not None and s.precision is not None else _is_scalar(c)
        for s, c in noises
    ):
        return None
    factors = list[Array | PrecisionMatrix]()
    has_unequal_variances = False
    for noise_strategy, covariance in noises:
        # On attributes with many cells, the precision matrix is an operator, not an array.
        precision = None if noise_strategy is None else noise_strategy.precision
        if noise_strategy is not None and precision is not None:
            has_unequal_variances |= not noise_strategy.has_equal_variances
            factors.append(precision)
            continue
        variances, vectors = np.linalg.eigh(covariance)
        if variances[-1] > (1.0 + EQUAL_VARIANCE_TOLERANCE) * variances[0]:
            has_unequal_variances = True
        # residual coordinates -> cells; an attribute of n cells has n - 1 residual coordinates
        vectors_of_cells = basis(len(variances) + 1) @ vectors
        factors.append((vectors_of_cells / variances) @ vectors_of_cells.T)
    if not has_unequal_variances:
        return None
    return Metric(factors=tuple(factors), scale=1.0 / block.noise**2)


def _coordinates_in_union(block: Block, space: Space) -> slice:
    """Return the positions of the coordinates of ``space`` in a block of several spaces."""
    ((_, strategy),) = block.factors
    dimensions = [
        math.prod(strategy.sizes[block.attributes.index(n)] - 1 for n in s) for s in block.union
    ]
    number = block.union.index(space)
    first = sum(dimensions[:number])
    return slice(first, first + dimensions[number])


def _is_scalar(covariance: Array) -> bool:
    """Return whether a covariance is a multiple of the identity, up to a tolerance.

    By Gershgorin's theorem its eigenvalues are then equal up to `EQUAL_VARIANCE_TOLERANCE`.
    """
    scale = float(covariance[0, 0])
    radii = np.abs(covariance - scale * np.eye(len(covariance))).sum(axis=1)
    # (1 + 0.4 t) / (1 - 0.4 t) is at most 1 + t for small tolerances t
    return bool(radii.max() <= 0.4 * EQUAL_VARIANCE_TOLERANCE * scale)


@dataclass(frozen=True, kw_only=True, eq=False)
class MeasuredProjection:
    """Projection of tables on the part of one residual space that was measured.

    Attributes
    ----------
    centers : the center of every attribute, shape (n_i,).
    complement : complement (general form of a center) if the attributes are a pair that has one;
        otherwise None, and the residual space is defined by the centers.
    span : one pair (axes, basis) per factor of the strategy.  The columns of the basis, shape
        (residual coordinates, rank), span the measured subspace.  Empty if the complete space is
        measured.
    """

    centers: tuple[Array, ...]
    complement: Complement | None = None
    span: tuple[tuple[Axes, Array], ...] = ()

    @property
    def plain(self) -> bool:
        """Whether the complete residual space is measured and is defined by centers alone."""
        return not self.span and self.complement is None

    def of(self, table: Array) -> Array:
        """Return the measured part of the residual of a table, in counts, in the table's shape."""
        if self.plain:
            residual = np.array(table, dtype=float)
            for axis, pi in enumerate(self.centers):
                residual -= spread_along(pi, axis, residual.ndim) * residual.sum(
                    axis=axis, keepdims=True
                )
            return residual
        axes = tuple(range(table.ndim))
        complements: dict[Axes, Complement] = (
            {} if self.complement is None else {(0, 1): self.complement}
        )
        lift = SplitLift(table.shape, self.centers, (axes,), complements)
        return self.cells(
            lift.table_coordinates(table.reshape(1, -1)).reshape([n - 1 for n in table.shape])
        )

    def cells(self, coordinates: Array) -> Array:
        """Project residual coordinates on the measured subspace and return them as a table.

        ``coordinates`` have the shape (n_1 - 1, ..., n_k - 1), the table (n_1, ..., n_k).  The
        table sums to 0 along every axis.
        """
        projected = coordinates
        for axes, columns in self.span:
            # The columns are orthonormal, so columns @ columns.T is the projection on their span.
            moved = np.moveaxis(projected, axes, range(len(axes)))
            product = columns @ (columns.T @ moved.reshape(len(columns), -1))
            projected = np.moveaxis(product.reshape(moved.shape), range(len(axes)), axes)
        table = projected
        for axis in range(table.ndim):
            n = table.shape[axis] + 1
            if is_wide(n):
                product = np.moveaxis(table, axis, -1) @ CosineMatrix(cells=n).T
                table = np.moveaxis(product, -1, axis)
            else:
                table = np.moveaxis(np.tensordot(basis(n), table, axes=(1, axis)), 0, axis)
        return np.array(table, order="C")


@dataclass(frozen=True, kw_only=True, eq=False)
class ResidualEstimate:
    """Noisy estimate of the residual of the true table on one set of attributes.

    Attributes
    ----------
    cells : the residual as a table, in counts, one axis per attribute.
    variance : variance of the noise in counts^2, averaged over the ``rank`` measured directions.
    rank : dimension of the measured subspace.
    projection : projection of tables on the measured subspace.
    metric : precision matrix of the noise; None if the noise is described by ``variance`` alone.
    """

    cells: Array = field(repr=False)
    variance: float
    rank: int
    projection: MeasuredProjection
    metric: Metric | None = None

    def noise_excess(self, gap: Array) -> tuple[float, float]:
        """Return by how much the squared norm of ``gap`` exceeds its expectation for pure noise.

        ``gap`` is a difference of residual tables, shape (n_1, ..., n_k).  The result is the excess
        in squared standard errors, and the same excess in standard deviations of the squared norm.
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

    Sets of attributes are tuples of positions in ``names``.

    Attributes
    ----------
    names, sizes, centers : names, numbers of cells and centers of the attributes with more than one
        cell.
    tables : the largest attribute sets whose tables are published; each subset of one of them has a
        published table, too.
    total, total_variance : noisy number of records in counts, and its variance in counts^2.
    residuals : mapping from measured attribute sets to their noisy residuals.
    possible : mapping from attribute sets that have impossible cells to masks of their possible
        cells, shape (n_1, ..., n_k).
    uniform : mapping from attribute sets to contrasts of the uniform distribution, which is mixed
        into the tables to remove negative cells.  It spreads one record evenly over the possible
        cells, in agreement with the public tables.  Absent sets have contrast 0.
    exact : mapping from attribute sets with a public table to this table, in counts, shape
        (n_1, ..., n_k).  These sets are not measured.
    """

    names: Space
    sizes: tuple[int, ...]
    centers: tuple[Array, ...]
    tables: tuple[Axes, ...]
    total: float
    total_variance: float
    residuals: Mapping[Axes, ResidualEstimate] = field(repr=False)
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
    """Return the attributes and the attribute sets for which tables are published.

    Returns
    -------
    names : the attributes with more than one cell.
    sets : attribute sets of the groups of the workload, as positions in ``names``, without sets
        that are contained in another one.

    Raises: NotApplicable if the plan measures a separate table per group instead of residual
    spaces.
    """
    if plan.full_tables:
        tuned = plan.options.get("centers") == "tuned"
        subject = f"tuned plan of '{plan.mechanism}'" if tuned else f"mechanism '{plan.mechanism}'"
        advice = (
            "with centers='uniform', or with the accuracy limits of the option keep"
            if tuned
            else "with 'residualplanner', 'querysmasher' or another mechanism of residual spaces"
        )
        raise NotApplicable(
            f"The {subject} measures a separate table for every group, but consistent tables can "
            f"only be computed from residual spaces. Plan {advice}."
        )
    names = tuple(n for n in plan.schema.names if plan.schema[n].size > 1)
    position = {name: i for i, name in enumerate(names)}
    group_sets = [
        tuple(sorted(position[n] for n in g.attributes if n in position))
        for g in plan.workload.groups
    ]
    return names, tuple(maximal_sets(group_sets))


def all_sets(tables: tuple[Axes, ...]) -> set[Axes]:
    """Return all subsets of the given attribute sets, including the empty set."""
    return {inside for axes in tables for inside in subsets(axes)} | {()}


def evidence(measurement: Measurement) -> Evidence:
    """Return the noisy residuals of a measurement and the public facts of its schema.

    There is one residual per measured attribute set that is contained in a group.  Three kinds of
    sets have no residual: sets that are measured only in sums with other residual spaces, sets with
    a public table, and the empty set, whose table is the total.

    Raises
    ------
    NotApplicable : the plan measures a separate table per group instead of residual spaces.
    NotAnswerable : the number of records is neither measured nor public.
    """
    plan = measurement.plan
    answers = measurement.plan.answers_from(measurement.estimates)
    names, tables = published_sets(plan)
    assert isinstance(answers, SpaceAnswers)  # `published_sets` checks this
    at = {name: i for i, name in enumerate(names)}
    centers = tuple(center(plan.schema[n].size, plan.split.centers.get(n)) for n in names)
    residuals: dict[Axes, ResidualEstimate] = {}
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
                residuals[axes] = estimate
    if () not in residuals and () not in exact:
        raise NotAnswerable(
            "The plan does not measure the number of records, but consistent tables need it. Add a"
            " group of the family 'total' or 'marginal' to the workload and plan again."
        )
    total = residuals.pop((), None)
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
        residuals=residuals,
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
    """Return the noisy residual of one residual space, from the block that measures it.

    The result is None if the block measures the space only in sums with other residual spaces.

    Parameters
    ----------
    coordinates : noisy residual coordinates of the space, in counts.
    centers : centers of the attributes of the space.
    complement : complement (general form of a center) of a pair of attributes, or None.
    """
    span: tuple[tuple[Axes, Array], ...] = ()
    if block.union:
        ((_, strategy),) = block.factors
        rows = _coordinates_in_union(block, space)
        if not strategy.complete and strategy.leaves_span(np.eye(strategy.dimension)[rows]).any():
            return None
        # ``trace`` is the trace of the covariance of the coordinates at noise 1.
        trace = float(np.sum(strategy.pinv[rows] ** 2))
        rank = coordinates.size
    else:
        rank = math.prod(s.rank for _, s in block.factors)
        if block.weights is None:
            # The covariance is a Kronecker product, so its trace is the product of the traces of
            # the factors.
            trace = math.prod(s.coordinate_trace for _, s in block.factors)
        else:
            # Answer k has the variance 1 / w_k^2.  The trace is the sum over k of this variance
            # times the squared norm of column k of the Kronecker product of the ``pinv``.
            sums = 1.0 / block.weights**2
            for _, s in block.factors:
                column_norms_squared = np.sum(s.pinv**2, axis=0)
                sums = np.tensordot(sums, column_norms_squared, axes=(0, 0))
            trace = float(sums)
        if not all(s.complete for _, s in block.factors):
            span = tuple((axes, s.span) for axes, s in block.factors)
    projection = MeasuredProjection(centers=centers, complement=complement, span=span)
    variance = block.noise**2 * trace / max(rank, 1)
    metric = metric_of(block, space) if projection.plain else None
    return ResidualEstimate(
        cells=projection.cells(coordinates),
        variance=variance,
        rank=rank,
        projection=projection,
        metric=metric,
    )


def spread_along(vector: Array, axis: int, count: int) -> Array:
    """Return a vector of shape (n,) with ``count`` axes: ``axis`` has length n, all others 1."""
    return vector.reshape([-1 if a == axis else 1 for a in range(count)])
