"""Plans that measure marginal tables instead of residual spaces.

`ExplicitPlan` measures components.  A component is one Kronecker strategy on the cells of some
attributes.  Every group of the workload is answered by least squares from a single component, even
if several components measure its attributes (local least squares of HDMM).  A query that is not in
the workload is answered from the component that gives it the smallest variance.

`MarginalsPlan` measures complete marginal tables and answers by least squares over all of them.
The residual spaces are eigenspaces of the Gram matrix of these measurements, so least squares is a
weighted mean in each residual space.  Every measured table on attributes A that include B gives one
estimate of the residual coordinates of B.  Its weight is 1 / (noise_A^2 c), where noise_A is the
noise of the table and c the number of its cells per cell of the table on B.  The variance of the
mean is the inverse of the sum of the weights.

Notes
-----
**Variances of a component.**  With C_f the covariance of the cells of factor f at noise scale 1, a
query q on some of the attributes has the variance

    noise^2 (q (x) 1) (C_1 (x) ... (x) C_k) (q (x) 1)^T.

A factor without attributes of the group contributes the number 1^T C_f 1.  A factor on attributes
of one query family of the group contributes one quadratic form per query of this family.  The
queries of the group, all products of one query per family, are never listed.

Source: HDMM, sections 6 and 7 (marginal strategies, union strategies and the implicit error of
Kronecker strategies); the weighted mean replaces the algebra in sections 6.3 and 7.3.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, ClassVar, Self, cast

import numpy as np
import numpy.typing as npt

from engine._arrays import Array, thin_svd
from engine.errors import NotAnswerable, PlanError
from engine.plans.blocks import Block, calibrate, component_key
from engine.plans.group_variance import (
    FamilyIndices,
    GroupVariance,
    VarianceTerm,
    connected_components,
)
from engine.plans.plan import NamedQuery, Plan
from engine.plans.replace_one import row_pcosts
from engine.privacy import Budget
from engine.residuals import Axes, Space, Strategy, basis, contract, group_axes
from engine.residuals.basis import residual_coefficients, space_index
from engine.residuals.marginals import IdentityStrategy, marginal_strategy
from engine.residuals.operators import is_wide
from engine.residuals.strategy import MAX_UNMEASURED_SHARE
from engine.workload import Group, Part, subsets

# Approximate limit for the number of entries of one intermediate array.
SLAB_ENTRIES = 1 << 24


def explicit_group_variance(group: Group, block: Block) -> GroupVariance:
    """Return the variances of the queries of a group, answered from one block, in counts^2.

    The table of the block must have all attributes of the group.
    """
    position = {name: axis for axis, name in enumerate(block.attributes)}
    part_axes = [tuple(position[group.attributes[a]] for a in part.axes) for part in group.parts]
    coefficient = block.noise**2
    for axes, strategy in block.factors:
        if not any(set(axes) & set(part) for part in part_axes):
            # The queries of the group have no attribute of this factor, so they sum over all cells
            # of its table.  The sum has the variance 1^T C 1, with C the covariance of the cells.
            coefficient *= float(_marginal_covariance(strategy, (), ()).item())
    arrays = [
        (families, _quadratic_forms(group, part_axes, families, factors))
        for families, factors in factors_of_families(part_axes, block.factors)
    ]
    unmeasured_marks = [
        _outside_span(group, part_axes, axes, s) for axes, s in block.factors if not s.complete
    ]
    unmeasured_marks = [(families, marks) for families, marks in unmeasured_marks if marks.any()]
    # A query of the group is 0, and so needs no measurement, if the query of one of its families is
    # 0.
    nonzero_marks = nonzero_query_marks(group) if unmeasured_marks else []
    unmeasured_terms = []
    for families, marks in unmeasured_marks:
        arrays_of_families = [(families, marks)] if families else []
        other_marks = [((p,), mark) for (p,), mark in nonzero_marks if p not in families]
        unmeasured_terms.append(
            VarianceTerm(coefficient=1.0, arrays=(*arrays_of_families, *other_marks))
        )
    return GroupVariance(
        counts=tuple(part.count for part in group.parts),
        terms=(VarianceTerm(coefficient=coefficient, arrays=tuple(arrays)),),
        unmeasured=tuple(unmeasured_terms),
    )


def unmeasured_rows(strategy: Strategy, axes: Sequence[int]) -> Array:
    """Return the unmeasured component of each cell of a marginal, as a row over all cells.

    Parameters
    ----------
    axes : axes of the strategy's table that the marginal keeps; a cell of the marginal is a sum
        over all other axes.

    Returns
    -------
    rows : one row per marginal cell, shape (marginal cells, cells).  A row is the 0/1 row that sums
        the cells of the marginal cell, minus the projection of this 0/1 row on the span of the
        strategy rows.

    Notes
    -----
    The unmeasured component of a query q on the marginal has the norm |q rows|.  With the projector
    P, the norm is also the root of |q|^2 - |q P|^2, but the rounding error of this difference
    exceeds the tolerance `MAX_UNMEASURED_SHARE`.
    """
    # ``marginal_cell`` has the number of the marginal cell that contains each cell of the table.
    marginal_cell, n_marginal_cells = np.zeros(strategy.sizes, dtype=np.int64), 1
    for axis in axes:
        shape = [1] * len(strategy.sizes)
        shape[axis] = -1
        coordinate = np.arange(strategy.sizes[axis]).reshape(shape)
        marginal_cell = marginal_cell * strategy.sizes[axis] + coordinate
        n_marginal_cells *= strategy.sizes[axis]
    dropped = tuple(a for a in range(len(strategy.sizes)) if a not in axes)
    span = strategy.span.reshape(*strategy.sizes, -1).sum(axis=dropped)
    order = sorted(axes)
    span = span.transpose(*(order.index(a) for a in axes), len(axes)).reshape(n_marginal_cells, -1)
    # With Q = ``strategy.span``, the projector Q Q^T would have shape (cells, cells).  It is not
    # computed: only its sums over marginal cells, shape (marginal cells, cells), are needed.
    residual_rows = -span @ strategy.span.T
    residual_rows[marginal_cell.ravel(), np.arange(strategy.cells)] += 1.0
    return np.asarray(residual_rows)


def is_unmeasured(block: Block, attributes: Sequence[str], table: Array) -> bool:
    """Return whether a query has a component that a block does not measure.

    ``table`` has the coefficients of the query, one axis per entry of ``attributes``.
    """
    for axes, strategy in block.factors:
        if not strategy.complete:
            common_axes = [i for i, a in enumerate(axes) if block.attributes[a] in attributes]
            table_axes = [list(attributes).index(block.attributes[axes[i]]) for i in common_axes]
            rows = unmeasured_rows(strategy, common_axes)
            others = tuple(a for a in range(table.ndim) if a not in table_axes)
            residual = contract(group_axes(table, [tuple(table_axes), others]), [rows, None])
            # On the full table of the factor, each coefficient of the query is repeated for
            # strategy.cells / len(rows) cells, so the norm grows by the root of this number.
            if np.linalg.norm(residual) > MAX_UNMEASURED_SHARE * np.linalg.norm(table) * math.sqrt(
                strategy.cells / len(rows)
            ):
                return True
    return False


def is_table_unmeasured(block: Block, attributes: Sequence[str]) -> bool:
    """Return whether a block does not determine the marginal table on ``attributes``."""
    for axes, strategy in block.factors:
        if not strategy.complete:
            common_axes = [i for i, a in enumerate(axes) if block.attributes[a] in attributes]
            if np.linalg.norm(
                unmeasured_rows(strategy, common_axes)
            ) > MAX_UNMEASURED_SHARE * math.sqrt(strategy.cells):
                return True
    return False


def _outside_span(
    group: Group, part_axes: Sequence[Axes], axes: Axes, strategy: Strategy
) -> tuple[FamilyIndices, Array]:
    """Mark the queries of a group that one factor of a block does not measure.

    Parameters
    ----------
    part_axes : axes, in the table of the block, of the attributes of each query family.
    axes, strategy : the factor.

    Returns
    -------
    families : indices of the families that have an attribute of the factor.
    marks : array with one axis per such family, over its queries: 1 if the factor does not measure
        the product of the queries, 0 if it does.
    """
    families = tuple(p for p, part in enumerate(part_axes) if set(part) & set(axes))
    counts = tuple(group.parts[p].count for p in families)
    positions_inside = [[i for i, a in enumerate(part_axes[p]) if a in axes] for p in families]
    common_axes = [
        axes.index(part_axes[p][i])
        for p, places in zip(families, positions_inside, strict=True)
        for i in places
    ]
    residual_rows = unmeasured_rows(strategy, common_axes)
    # On the full table of the factor, each coefficient of a query on the marginal is repeated for
    # this number of cells, which multiplies the squared norm of the query by this number.
    cells_per_marginal_cell = strategy.cells / len(residual_rows)
    # |q rows| <= |q| |rows|, so all queries q on the marginal are measured if |rows| is small.
    if np.linalg.norm(residual_rows) <= MAX_UNMEASURED_SHARE * math.sqrt(cells_per_marginal_cell):
        return families, np.zeros(counts)
    if len(residual_rows) < strategy.cells:
        # Only the norms |q rows| are needed.  Replacing the rows by the triangular factor of their
        # QR decomposition does not change the norms, and leaves fewer columns.
        residual_rows = np.asarray(np.linalg.qr(residual_rows.T, mode="r")).T
    shape = [
        math.prod(group.parts[p].sizes[i] for i in places)
        for p, places in zip(families, positions_inside, strict=True)
    ]
    residual_rows = residual_rows.reshape(*shape, -1)
    # ``squares`` has the squared norm of the unmeasured component of each product of queries.  A
    # product counts as measured if this norm is at most ``tolerance``.
    squares = np.zeros(counts)
    tolerance = np.full((), MAX_UNMEASURED_SHARE**2 * cells_per_marginal_cell)
    # The number of cells of the table on the attributes that are in a family but not in the factor.
    outside_cells = math.prod(math.prod(group.parts[p].sizes) for p in families) // math.prod(shape)
    step = max(1, SLAB_ENTRIES // (math.prod(counts) * outside_cells))
    for start in range(0, residual_rows.shape[-1], step):
        table = residual_rows[..., start : start + step]
        for k, (p, places) in enumerate(zip(families, positions_inside, strict=True)):
            product = _contract_queries(group.parts[p], places, np.moveaxis(table, k, 0))
            table = np.moveaxis(product, 0, k)
        squares += np.sum(table**2, axis=tuple(range(len(families), table.ndim)))
    for p in families:
        part = group.parts[p]
        tolerance = np.multiply.outer(
            tolerance, part.family.quadratic(part.sizes, np.eye(math.prod(part.sizes)))
        )
    return families, (squares > tolerance).astype(float)


def _contract_queries(part: Part, inside: Sequence[int], table: Array) -> Array:
    """Multiply a table by the query matrix of a query family, along its first axis.

    Parameters
    ----------
    inside : positions of some attributes in the list of the family's attributes.
    table : array of shape (cells of these attributes, ...).

    Returns
    -------
    array of shape (queries, ...).  If the family has further attributes, their cells are an
    additional last axis.
    """
    if len(inside) == len(part.axes):
        return part.family.dot(part.sizes, table)
    outside = [i for i in range(len(part.axes)) if i not in inside]
    rows = part.family.rows(part.sizes).reshape(part.count, *part.sizes)
    rows = rows.transpose(0, *(1 + i for i in outside), *(1 + i for i in inside)).reshape(
        -1, len(table)
    )
    product = np.tensordot(rows, table, axes=1).reshape(part.count, -1, *table.shape[1:])
    return np.moveaxis(product, 1, -1)


def nonzero_query_marks(group: Group) -> list[tuple[FamilyIndices, Array]]:
    """Mark the queries of each query family of a group that have a nonzero coefficient.

    The result has one pair ((p,), marks) per family p, as in `VarianceTerm.arrays`.  The marks have
    shape (queries of family p,): 1 for a query with a nonzero coefficient, 0 for a query without.
    """
    return [
        (
            (p,),
            np.concatenate([rows.any(axis=1) for _, rows in part.family.chunks(part.sizes)]).astype(
                float
            ),
        )
        for p, part in enumerate(group.parts)
    ]


def factors_of_families(
    part_axes: Sequence[Axes], factors: Sequence[tuple[Axes, Strategy]]
) -> list[tuple[FamilyIndices, list[tuple[Axes, Strategy]]]]:
    """Divide the query families of a group into sets, each with the factors on its attributes.

    Two families are in one set if a factor has attributes of both.

    Parameters
    ----------
    part_axes : axes, in the table of the block, of the attributes of each family of the group.
    factors : pairs (axes, strategy) of the block.

    Returns
    -------
    one pair (indices of families, factors) per set.  Factors without an attribute of a family are
    in no set.
    """
    families_of_factor = [
        tuple(p for p, family_axes in enumerate(part_axes) if set(family_axes) & set(axes))
        for axes, _ in factors
    ]
    factors_by_set = []
    for families in connected_components(len(part_axes), [p for p in families_of_factor if p]):
        axes_of_set = {a for p in families for a in part_axes[p]}
        factors_by_set.append(
            (families, [(axes, s) for axes, s in factors if set(axes) & axes_of_set])
        )
    return factors_by_set


def sum_axes(
    matrix: Array, sizes: Sequence[int], rows: Sequence[int], columns: Sequence[int]
) -> Array:
    """Return a matrix on the cells of a table, with its rows and columns summed to marginal cells.

    Parameters
    ----------
    matrix : shape (cells, cells).
    sizes : lengths of the axes of the table.
    rows, columns : axes of the table that the marginals of the rows and of the columns keep.

    Returns
    -------
    array of shape (cells of the marginal on ``rows``, cells of the marginal on ``columns``).
    """
    k = len(sizes)
    table = matrix.reshape(*sizes, *sizes)
    dropped = [a for a in range(k) if a not in rows] + [k + a for a in range(k) if a not in columns]
    return np.asarray(table.sum(axis=tuple(dropped))).reshape(
        math.prod(sizes[a] for a in rows), math.prod(sizes[a] for a in columns)
    )


def _marginal_covariance(strategy: Strategy, rows: Sequence[int], columns: Sequence[int]) -> Array:
    """Return the covariances between two marginals of the table of a factor, at noise scale 1.

    Parameters
    ----------
    rows, columns : axes of the first and of the second marginal.

    Returns
    -------
    array of shape (cells of the first marginal, cells of the second marginal).
    """
    if isinstance(strategy, IdentityStrategy):
        if rows and columns:
            return cast(Array, strategy.covariance)
        n = strategy.cells
        return np.ones((n if rows else 1, n if columns else 1)) * (1 if rows or columns else n)
    return sum_axes(strategy.covariance, strategy.sizes, rows, columns)


def _quadratic_forms(
    group: Group,
    part_axes: Sequence[Axes],
    families: FamilyIndices,
    factors: Sequence[tuple[Axes, Strategy]],
) -> Array:
    """Return q C q^T for all products q of queries of some families, with one axis per family.

    C is the covariance of the cells of the block's table at noise scale 1: a Kronecker product over
    the factors.

    Parameters
    ----------
    part_axes : axes, in the table of the block, of the attributes of each query family.
    families : indices of the families.
    factors : pairs (axes, strategy): the factors that have an attribute of these families.
    """
    order = [a for p in families for a in part_axes[p]]
    # For each factor: the axes that it has in common with the families, the lengths of these axes,
    # and the covariance of the marginal on them.
    marginals = []
    for axes, strategy in factors:
        common_axes = [i for i, a in enumerate(axes) if a in order]
        matrix = _marginal_covariance(strategy, common_axes, common_axes)
        marginals.append(
            ([axes[i] for i in common_axes], [strategy.sizes[i] for i in common_axes], matrix)
        )
    if len(families) == 1 and len(factors) == 1 and isinstance(factors[0][1], IdentityStrategy):
        return factors[0][1].query_variances(group.parts[families[0]])
    if len(families) == 1 and len(marginals) == 1 and marginals[0][0] == order:
        part = group.parts[families[0]]
        return np.maximum(part.family.quadratic(part.sizes, marginals[0][2]), 0.0)
    if len(families) == 1:
        return _quadratic_forms_by_chunk(group.parts[families[0]], order, factors)
    # ``table`` becomes the covariance with two axes per family, for the rows and the columns of the
    # matrix.  In ``table``, each axis of the block's table is identified by (axis, 0 for rows or 1
    # for columns).
    table, axis_ids = np.ones(()), list[tuple[int, int]]()
    for table_axes, sizes, matrix in marginals:
        table = np.multiply.outer(table, np.asarray(matrix).reshape(*sizes, *sizes))
        axis_ids += [(a, 0) for a in table_axes] + [(a, 1) for a in table_axes]
    ids_by_family = [(a, side) for p in families for side in (0, 1) for a in part_axes[p]]
    table = table.transpose([axis_ids.index(axis_id) for axis_id in ids_by_family])
    shape = [math.prod(group.parts[p].sizes) for p in families for _ in (0, 1)]
    table = table.reshape(shape)
    for k, p in enumerate(families):
        # The two axes of family p follow the query axes of the k families before it.  They are
        # replaced by one axis over the queries of family p.
        table = np.moveaxis(table, (k, k + 1), (0, 1))
        table = np.moveaxis(
            _contract_twice(group.parts[p].family.rows(group.parts[p].sizes), table), 0, k
        )
    return np.maximum(table, 0.0)


def _quadratic_forms_by_chunk(
    part: Part, order: Sequence[int], factors: Sequence[tuple[Axes, Strategy]]
) -> Array:
    """Return q C q^T for all queries q of one family, shape (queries,), from its query rows.

    C is the covariance of the cells of the block's table at noise scale 1.  ``order`` has the axes,
    in this table, of the attributes of the family.
    """
    # On each factor, the covariance of the marginal is A A^T with a matrix A. Hence q C q^T is the
    # squared norm of q (A_1 (x) A_2 (x) ...), with one matrix per factor.
    sets, roots, values = [], [], []
    for axes, strategy in factors:
        dropped = tuple(i for i, a in enumerate(axes) if a not in order)
        sets.append(tuple(order.index(a) for a in axes if a in order))
        root = strategy.pinv.reshape(*strategy.sizes, -1).sum(axis=dropped)
        roots.append(root.reshape(-1, root.shape[-1]))
    for _, rows in part.family.chunks(part.sizes):
        table = contract(group_axes(rows.reshape(len(rows), *part.sizes), sets, 1), roots, 1)
        values.append(np.sum(table.reshape(len(rows), -1) ** 2, axis=1))
    return np.concatenate(values)


def _contract_twice(rows: Array, table: Array) -> Array:
    """Return sum over (c, d) of rows[q, c] table[c, d, ...] rows[q, d], shape (q, ...)."""
    n_rest = math.prod(table.shape[2:])
    step = max(1, SLAB_ENTRIES // max(1, table.shape[1] * n_rest))
    flat = table.reshape(table.shape[0], -1)
    sums = np.empty((len(rows), n_rest))
    for start in range(0, len(rows), step):
        row_chunk = rows[start : start + step]
        sums_over_c = (row_chunk @ flat).reshape(len(row_chunk), table.shape[1], n_rest)
        sums[start : start + step] = np.einsum("qd,qdr->qr", row_chunk, sums_over_c)
    return sums.reshape(len(rows), *table.shape[2:])


def covariance_of(
    block: Block, left: tuple[Sequence[str], Array], right: tuple[Sequence[str], Array]
) -> float:
    """Return the covariance in counts^2 of two queries that are answered from one block.

    Parameters
    ----------
    left, right : the two queries, each a pair (attributes, coefficients with one axis per
        attribute).

    Notes
    -----
    The covariance is noise^2 (left (x) 1) (C_1 (x) ... (x) C_k) (right (x) 1)^T, with C_f the
    covariance of the cells of factor f at noise 1.  It is computed without an array on all cells of
    the block.
    """
    (left_names, left_table), (right_names, right_table) = left, right
    position = {name: axis for axis, name in enumerate(block.attributes)}
    left_axes, right_axes = [position[n] for n in left_names], [position[n] for n in right_names]
    left_sets, right_sets, matrices = [], [], []
    for axes, strategy in block.factors:
        # A query without an attribute of this factor sums over the cells of the factor.  So the
        # matrix has a single row or column for such a query.
        rows, columns = (
            [i for i, a in enumerate(axes) if a in side] for side in (left_axes, right_axes)
        )
        left_sets.append(tuple(left_axes.index(axes[i]) for i in rows))
        right_sets.append(tuple(right_axes.index(axes[i]) for i in columns))
        matrices.append(_marginal_covariance(strategy, rows, columns).T)
    right_image = contract(group_axes(np.asarray(right_table, dtype=float), right_sets), matrices)
    return block.noise**2 * float(
        np.sum(group_axes(np.asarray(left_table, dtype=float), left_sets) * right_image)
    )


# Two variances count as equal up to this relative difference, because rounding to the grid changes
# the noise of equal components differently.
VARIANCE_TOLERANCE = 1e-6


@dataclass(frozen=True, kw_only=True, eq=False)
class Component:
    """One Kronecker strategy of a plan, with its share of the budget.

    Attributes
    ----------
    attributes : attributes of the measured table, in schema order.
    factors : pairs (axes, strategy) on disjoint sets of axes.  The largest column norm of each
        strategy is 1, in the Euclidean norm for Gaussian noise and in the L1 norm for Laplace
        noise.
    share : share of the budget: of pcost for Gaussian noise, of epsilon for Laplace noise.  If the
        cost of a plan is the sum of the costs of its components, their shares sum to 1.  If it is
        the joint privacy cost, the shares can sum to more than 1, but the summed costs for a record
        in any cell are within the budget.
    groups : indices of the groups of the workload that the component answers.
    """

    attributes: Space
    factors: tuple[tuple[Axes, Strategy], ...]
    share: float
    groups: tuple[int, ...]


def explicit_strategy(rows: npt.ArrayLike, sizes: Sequence[int], law: str = "gaussian") -> Strategy:
    """Return the strategy with these rows, scaled so that the largest column norm is 1.

    Parameters
    ----------
    rows : strategy matrix, shape (measurements, cells).
    sizes : number of cells of each attribute.
    law : "gaussian" for the Euclidean norm of columns, "laplace" for the L1 norm.

    >>> strategy = explicit_strategy([[1.0, 1.0], [0.0, 1.0]], (2,))
    >>> round(strategy.column_norm, 12), strategy.complete
    (1.0, True)
    """
    B = np.ascontiguousarray(rows, dtype=float)
    norms = np.abs(B).sum(axis=0) if law == "laplace" else np.sqrt(np.einsum("rc,rc->c", B, B))
    # A strategy of zeros only is not scaled.
    B = B / (norms.max() or 1.0)
    U, singular, Vt = thin_svd(B)
    nonzero = singular > 1e-10 * max(singular[0], 1e-300)
    pinv = (Vt[nonzero].T / singular[nonzero]) @ U[:, nonzero].T
    return Strategy(
        sizes=tuple(sizes), rows=B, pinv=pinv, complete=int(nonzero.sum()) == B.shape[1]
    )


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ExplicitPlan(Plan):
    """A plan that measures tables by Kronecker strategies and answers each query from one table.

    Attributes
    ----------
    answered_by : index of the component that answers each group of the workload; -1 if no component
        does.

    Notes
    -----
    The key of the block of component i is ("component", "i").  The estimates of a block are least
    squares estimates of the cells of its table.
    """

    full_tables: ClassVar[bool] = True

    answered_by: tuple[int, ...] = ()

    @cached_property
    def components(self) -> tuple[Block, ...]:
        """Blocks of the plan, in the order of the components."""
        return tuple(self.blocks.values())

    @cached_property
    def _group_variances(self) -> dict[Any, GroupVariance]:
        return {}

    def group_variance(self, group: int) -> GroupVariance:
        self._check_group(group)
        queries, component = self.workload.groups[group], self.answered_by[group]
        key = (component, queries.attributes, queries.key)
        if key not in self._group_variances:
            if component >= 0:
                variances = explicit_group_variance(queries, self.components[component])
            else:
                variances = _infinite_variances(queries)
            self._group_variances[key] = variances
        return self._group_variances[key]

    def with_groups(self, groups: Iterable[Group]) -> Self:
        new_groups, numbers = tuple(groups), []
        for group in new_groups:
            best = (math.inf, -1)
            for number, block in enumerate(self.components):
                if set(group.attributes) <= set(block.attributes):
                    total = explicit_group_variance(group, block).total()
                    best = (total, number) if total < best[0] * (1.0 - VARIANCE_TOLERANCE) else best
            numbers.append(best[1] if math.isfinite(best[0]) else -1)
        return replace(super().with_groups(new_groups), answered_by=tuple(numbers))

    def sources(self, group: int) -> list[Block]:
        self._check_group(group)
        number = self.answered_by[group]
        return [self.components[number]] if number >= 0 else []

    def answers_from(self, estimates: Mapping[Space, Array]) -> TableAnswers:
        return TableAnswers(plan=self, estimates=estimates)

    def covariance(self, queries: Sequence[NamedQuery]) -> Array:
        checked = [self.check_query(query) for query in queries]
        chosen = [(self.component_for(*query), self.essential(*query)) for query in checked]
        covariances = np.zeros((len(chosen), len(chosen)))
        for i, (a, left) in enumerate(chosen):
            for j, (b, right) in enumerate(chosen[: i + 1]):
                if a == b:
                    covariances[i, j] = covariances[j, i] = covariance_of(
                        self.components[a], left, right
                    )
        return covariances

    def essential(
        self, attributes: Sequence[str], query_tensor: npt.ArrayLike
    ) -> tuple[Space, Array]:
        """Drop the attributes of a query that its coefficients do not depend on.

        Returns
        -------
        attributes : the remaining attributes.
        table : coefficients of the query, one axis per remaining attribute.
        """
        names = tuple(attributes)
        table = self.query_table(names, query_tensor)
        # The last axis comes first, because removing an axis changes the numbers of the axes after
        # it.
        for axis in reversed(range(len(names))):
            first = np.take(table, [0], axis=axis)
            if (table == first).all():
                names, table = (*names[:axis], *names[axis + 1 :]), np.squeeze(first, axis=axis)
        return names, table

    def component_for(self, attributes: Sequence[str], query_tensor: npt.ArrayLike) -> int:
        """Return the index of the component that answers a query with the smallest variance.

        ``query_tensor`` has the coefficients of the query, one axis per attribute.

        Raises
        ------
        PlanError : if ``query_tensor`` has another shape, or entries that are not finite numbers.
        NotAnswerable : if no component measures the query.
        """
        query = self.essential(attributes, query_tensor)
        smallest_variance, chosen = math.inf, -1
        for number, block in enumerate(self.components):
            if not set(query[0]) <= set(block.attributes) or is_unmeasured(block, *query):
                continue
            variance = covariance_of(block, query, query)
            # If variances are equal, the first component answers.
            if variance < smallest_variance * (1.0 - VARIANCE_TOLERANCE):
                smallest_variance, chosen = variance, number
        if chosen < 0:
            raise NotAnswerable(
                "The plan does not measure the query on"
                f" {' x '.join(attributes) or 'no attribute'}. Only queries that a"
                " single measured table determines can be answered. Add the query, or the marginal"
                " on these attributes, to the workload."
            )
        return chosen

    def component_of_table(self, attributes: Sequence[str]) -> int:
        """Return the index of the component that answers a table with the smallest mean variance.

        Raises
        ------
        SchemaError : if an attribute does not exist.
        NotAnswerable : if no component measures the complete table.
        """
        self.schema.sizes(tuple(attributes))  # raises SchemaError if an attribute does not exist
        smallest_sum, chosen = math.inf, -1
        for number, block in enumerate(self.components):
            if not set(attributes) <= set(block.attributes) or is_table_unmeasured(
                block, attributes
            ):
                continue
            variance_sum = block.noise**2
            for axes, strategy in block.factors:
                common_axes = [i for i, a in enumerate(axes) if block.attributes[a] in attributes]
                if isinstance(strategy, IdentityStrategy):
                    # Every cell has variance 1 and is in one cell of the marginal, so the variances
                    # of the marginal cells sum to the number of cells.
                    variance_sum *= strategy.cells
                    continue
                variance_sum *= float(
                    np.trace(
                        sum_axes(strategy.covariance, strategy.sizes, common_axes, common_axes)
                    )
                )
            if variance_sum < smallest_sum * (1.0 - VARIANCE_TOLERANCE):
                smallest_sum, chosen = variance_sum, number
        if chosen < 0:
            raise NotAnswerable(
                "The plan does not measure the complete table on"
                f" {' x '.join(attributes) or 'no attribute'}. Compute single queries with answer(),"
                " or add the marginal on these attributes to the workload."
            )
        return chosen


@dataclass(frozen=True, kw_only=True, eq=False)
class TableAnswers:
    """Tables and answers of an `ExplicitPlan` after its release.

    Attributes
    ----------
    plan : the released plan.
    estimates : key of a component -> estimated cells of its table, in counts.
    """

    plan: ExplicitPlan
    estimates: Mapping[Space, Array]

    def group_table(self, group: int) -> Array:
        """Return the table from which a group is answered, in counts, one axis per attribute.

        All cells are 0 if no component answers the group.
        """
        queries, number = self.plan.workload.groups[group], self.plan.answered_by[group]
        return self._table(number, queries.attributes) if number >= 0 else np.zeros(queries.sizes)

    def table(self, attributes: Space) -> Array:
        """Return the noisy table on some attributes, in counts, one axis per attribute.

        Raises
        ------
        NotAnswerable : if no component measures the complete table.
        """
        return self._table(self.plan.component_of_table(attributes), attributes)

    def value(self, attributes: Sequence[str], query_tensor: npt.ArrayLike) -> float:
        """Return the answer to one query, in counts; ``query_tensor`` has one axis per attribute.

        Raises
        ------
        NotAnswerable : if no component measures the query.
        """
        names, query = self.plan.essential(attributes, query_tensor)
        return float(
            np.sum(query * self._table(self.plan.component_for(attributes, query_tensor), names))
        )

    def _table(self, number: int, attributes: Sequence[str]) -> Array:
        """Return the table on ``attributes`` from the estimate of component ``number``."""
        block = self.plan.components[number]
        positions = [block.attributes.index(name) for name in attributes]
        estimate = self.estimates[component_key(number)]
        # The sum of least squares estimates is the least squares estimate of the sum.
        summed = estimate.sum(axis=tuple(a for a in range(estimate.ndim) if a not in positions))
        order = sorted(positions)
        return np.asarray(summed).transpose([order.index(a) for a in positions])


def _infinite_variances(group: Group) -> GroupVariance:
    """Return the variances of a group that no component answers: infinite unless a query is 0."""
    counts, marks = tuple(part.count for part in group.parts), tuple(nonzero_query_marks(group))
    return GroupVariance(
        counts=counts, terms=(), unmeasured=(VarianceTerm(coefficient=1.0, arrays=marks),)
    )


def component_blocks(
    components: Sequence[Component], budget: Budget, max_records: int, joint: bool = False
) -> Mapping[Space, Block]:
    """Return the blocks of components, with noise according to their shares of the budget.

    Parameters
    ----------
    joint : whether the privacy cost is the maximum over cells of the summed costs of the
        components, instead of the sum of their costs.

    Returns
    -------
    mapping from `component_key` to block.
    """
    noises = {}
    for number, component in enumerate(components):
        # Strategies have the sensitivity 1.  Gaussian noise of standard deviation s has the pcost
        # 1 / s^2.  Laplace noise of standard deviation s has the epsilon sqrt(2) / s.
        if budget.pure_epsilon is None:
            noise = 1.0 / math.sqrt(budget.row_pcost * component.share)
        else:
            noise = math.sqrt(2.0) / (
                budget.pure_epsilon / budget.rows_per_person * component.share
            )
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
        cost_of=row_pcosts(budget, joint),
    )


def component_of_group(components: Sequence[Component], groups: int) -> tuple[int, ...]:
    """Return the index of the component that answers each group; -1 if no component does.

    Parameters
    ----------
    groups : number of groups of the workload.

    Raises
    ------
    PlanError : if two components list the same group, or a component lists a group that does not
        exist.
    """
    component_of = {g: number for number, c in enumerate(components) for g in c.groups}
    has_duplicates = sum(len(c.groups) for c in components) != len(component_of)
    if has_duplicates or not set(component_of) <= set(range(groups)):
        raise PlanError(
            "Two components of the plan list the same group, or a component lists a group that the"
            " workload does not have. List every group in at most one component."
        )
    return tuple(component_of.get(g, -1) for g in range(groups))


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class MarginalsPlan(Plan):
    """A plan that measures complete marginal tables and answers by least squares over all of them.

    The key of block i is ("component", "i"), and every block measures every cell of its table.
    Tables that contain the same residual space give independent estimates of its coordinates, which
    are averaged.  `estimate_blocks` has the noise of these averages.
    """

    @cached_property
    def _precisions(self) -> dict[Space, list[tuple[Space, float]]]:
        """Residual space -> pairs (key, precision), one per measured table that contains it.

        The precision is the inverse variance of the residual coordinates estimated from this table.
        """
        precisions: dict[Space, list[tuple[Space, float]]] = {}
        for key, block in self.blocks.items():
            names = block.attributes
            sizes = dict(zip(names, self.schema.sizes(names), strict=True))
            for space in subsets(names):
                if all(sizes[n] > 1 for n in space):
                    # A cell of the table on ``space`` is the sum of this many noisy cells.
                    summed_cells = math.prod(sizes[n] for n in names if n not in space)
                    precisions.setdefault(space, []).append(
                        (key, 1.0 / (block.noise**2 * summed_cells))
                    )
        return precisions

    @cached_property
    def estimate_blocks(self) -> Mapping[Space, Block]:
        """Residual space -> block with the noise of the averaged estimate of its coordinates."""
        blocks = {}
        for space in sorted(self._precisions, key=lambda s: (len(s), s)):
            # The estimates are averaged with inverse-variance weights, so the precision of the mean
            # is the sum of their precisions.
            noise = 1.0 / math.sqrt(math.fsum(p for _, p in self._precisions[space]))
            sizes = self.schema.sizes(space)
            factors = tuple(
                ((axis,), marginal_strategy(n) if is_wide(n) else _all_coordinates(n))
                for axis, n in enumerate(sizes)
            )
            # At noise 1, the coordinates of `marginal_strategy` have the variance 1 - 1/n, not 1.
            noise /= math.sqrt(math.prod(1.0 - 1.0 / n for n in sizes if is_wide(n)))
            blocks[space] = Block(attributes=space, factors=factors, noise=noise, grid=noise)
        return blocks

    def combine(self, estimates: Mapping[Space, Array]) -> Mapping[Space, Array]:
        """Return the coordinates of every residual space, averaged over all tables that contain it.

        The tables are weighted by the precisions of their estimates.  ``estimates`` has the noisy
        cells of every table, which the function may overwrite.
        """
        averages: dict[Space, Array] = {}
        # The estimate of each block is read once, because it may be computed at every access.
        for key, block in self.blocks.items():
            sizes = self.schema.sizes(block.attributes)
            table = np.require(estimates[key], float, ["C", "W"])
            centers = [None] * len(sizes)  # uniform
            row = residual_coefficients(table.reshape(1, -1), sizes, centers, {}, overwrite=True)
            coordinates = row.reshape(1, *sizes)
            for axes in subsets(range(len(sizes))):
                space = tuple(block.attributes[a] for a in axes)
                precisions = dict(self._precisions.get(space, ()))
                if key not in precisions:
                    continue
                weighted = coordinates[space_index(len(sizes), axes)][0]
                # With uniform centers, `residual_coefficients` averages the table over all other
                # attributes.  The marginal is the sum, so it is larger by the number of cells.
                summed_cells = math.prod(n for a, n in enumerate(sizes) if a not in axes)
                weighted *= summed_cells * precisions[key] / math.fsum(precisions.values())
                if space in averages:
                    averages[space] += weighted
                else:
                    averages[space] = weighted.copy()
        return averages


@lru_cache(maxsize=256)
def _all_coordinates(n: int) -> Strategy:
    """Return a strategy that measures the n - 1 residual coordinates of an attribute of n cells.

    With noise 1 on the measurements, the estimates of the coordinates have variance 1.
    """
    return Strategy(sizes=(n,), rows=basis(n).T, pinv=np.eye(n - 1), complete=True)
