"""Strategies measured on residual spaces, and their joint sensitivity.

A record in cell x changes the answers of a strategy by column x of the strategy matrix.  If the
matrix is a Kronecker product, the norm of the column is a product over its factors.  So the cost of
every strategy is a table on a few attributes.  The joint sensitivity of several strategies is the
maximum over x of the sum of these tables.  This maximum is at most the sum of the maxima of the
tables.  An upper bound on the joint sensitivity is computed in two steps.

1.  Dominated values of every attribute are removed.  A value is dominated if another value of the
    attribute has entries at least as large in every table.  Entries count as equal if they differ
    by at most the share `TIE_TOLERANCE`.  The result is multiplied by a factor that covers these
    differences.
2.  The attributes are eliminated one by one: the tables on an attribute are added up, and their sum
    is maximised over the values of the attribute.

If a product or a sum of tables would have more than `MAX_JOINT_CELLS` cells, some of the tables are
maximised separately, which increases the upper bound.

Source: Dechter and Rish 2003 (mini-bucket elimination).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import cast

import numpy as np
import numpy.typing as npt
import scipy

from engine._arrays import Array, Index, thin_svd
from engine.residuals.basis import Axes, Space, basis
from engine.residuals.operators import MIN_CHUNK_ROWS, ChunkedMatrix, PrecisionMatrix
from engine.workload import Part

# tolerance of the test that rows are in the span of a strategy's rows, relative to the largest
# entry of the strategy's rows
SPAN_TOLERANCE = 1e-9
# tolerance of the test that a matrix is orthogonal
ORTHOGONALITY_TOLERANCE = 1e-5
# a query cannot be answered if more than this share of its norm is outside the measured span
MAX_UNMEASURED_SHARE = 1e-6


@dataclass(frozen=True, kw_only=True, eq=False)
class Strategy:
    """Measured queries (strategy rows B) on some attributes, and the reconstruction from them.

    Attributes
    ----------
    sizes : domain sizes of the attributes.
    rows : B, shape (measurements, cells).
    pinv : matrix that maps the answers of B to residual coordinates, shape (residual coordinates,
        measurements).  A query with coefficients c on the residual coordinates has the estimate
        c @ pinv @ answers with variance |c @ pinv|^2 at noise scale 1.  If the strategy measures
        cells and not a residual space, cells take the place of residual coordinates.
    complete : True if all residual coordinates can be estimated, False if only their combinations
        in the span of the workload.
    measured : orthonormal basis of the column space of ``pinv``, as rows, shape (rank, residual
        coordinates); None to compute it when needed.
    """

    sizes: tuple[int, ...]
    rows: Array
    pinv: Array
    complete: bool
    measured: Array | None = None

    def by_rows(self, rows: Array) -> Strategy | None:
        """Return this strategy with other rows; None if ``rows`` are not equivalent to the old rows.

        Rows are equivalent to rows B if they are Q B with an orthogonal matrix Q.  With equivalent
        rows, all queries have the same variances at the same privacy cost.
        """
        if rows.shape != self.rows.shape or not np.isfinite(rows).all():
            return None
        if np.array_equal(rows, self.rows):
            return self
        rotation = np.linalg.lstsq(self.rows.T, rows.T)[0].T
        is_equivalent = np.allclose(
            rotation @ self.rows,
            rows,
            rtol=0.0,
            atol=SPAN_TOLERANCE * float(np.abs(self.rows).max(initial=0.0)),
        )
        if not is_equivalent or not np.allclose(
            rotation @ rotation.T, np.eye(len(rotation)), rtol=0.0, atol=ORTHOGONALITY_TOLERANCE
        ):
            return None
        # pinv Q^-1 is computed by solving a system, because Q^T differs from Q^-1 by rounding
        # errors, which would bias the estimates
        return replace(self, rows=rows, pinv=np.linalg.solve(rotation.T, self.pinv.T).T)

    @cached_property
    def column_norm(self) -> float:
        """Largest Euclidean norm of a column of B: the L2 sensitivity to one record."""
        return float(np.sqrt(np.max(np.einsum("rc,rc->c", self.rows, self.rows))))

    @cached_property
    def column_sum(self) -> float:
        """Largest L1 norm of a column of B: the L1 sensitivity to one record."""
        return float(np.max(np.abs(self.rows).sum(axis=0)))

    def column_costs(self, law: str) -> Array:
        """Return the cost of every column of B, shape (cells,).

        The cost is the L1 norm if ``law`` is "laplace", otherwise the squared Euclidean norm.
        """
        return np.asarray((np.abs(self.rows) if law == "laplace" else self.rows**2).sum(axis=0))

    def column_gram(self) -> Array:
        """Return B^T B, shape (cells, cells)."""
        return self.rows.T @ self.rows

    def column_products(self, cells: Index, other: int) -> tuple[Array, float, Array]:
        """Return squared norms and inner products of columns of B.

        Returns
        -------
        The squared norms of the k columns ``cells``, shape (k,); the squared norm of the column
        ``other``; the inner products of the columns ``cells`` with the column ``other``, shape
        (k,).
        """
        x, y = self.rows[:, cells], self.rows[:, other]
        return np.einsum("rv,rv->v", x, x), float(y @ y), y @ x

    @property
    def rounding_terms(self) -> int:
        """Number K in the bound on the floating-point error of the answers B x.

        Let u be the unit roundoff, and let s be the sum over cells c of |x_c| times the Euclidean
        norm of column c of B.  The Euclidean norm of the error is at most s K u / (1 - K u).  This
        holds if B x is computed with `answer_rows`.  The proof takes the bound of `ChunkedMatrix`
        on every answer, |B| |x| K u / (1 - K u), and the triangle inequality.
        """
        return ChunkedMatrix.summands(self.cells) + 1

    @property
    def answer_rows(self) -> Array:
        """B in the form in which the answers B x to private counts are computed.

        Only the rounding errors of products with this form are bounded by `rounding_terms`.
        """
        if self.cells <= MIN_CHUNK_ROWS:
            return self.rows
        return cast(Array, ChunkedMatrix(matrix=np.asarray(self.rows)))

    @property
    def is_finite(self) -> bool:
        """Whether all entries of ``rows`` and ``pinv`` are finite."""
        return bool(np.isfinite(self.rows).all() and np.isfinite(self.pinv).all())

    @property
    def rank(self) -> int:
        """Dimension of the measured span."""
        return self.dimension if self.complete else int(self.span.shape[1])

    def query_variances(self, part: Part) -> Array:
        """Return the variances of the queries of a family on one attribute, shape (queries,).

        Only the queries' components in this residual space count.  The noise scale is 1.
        """
        return np.maximum(part.family.quadratic(part.sizes, self.cell_covariance), 0.0)

    def covers(self, part: Part) -> bool:
        """Return True if all queries of a family on one attribute are known to be answerable.

        A query is answerable if it is in the measured span.  If the result is False, some queries
        may be unanswerable.
        """
        return self.complete

    @cached_property
    def covariance(self) -> Array:
        """Covariance of the estimated residual coordinates at noise scale 1, in counts^2.

        Shape (dimension, dimension).
        """
        return self.pinv @ self.pinv.T

    @property
    def coordinate_trace(self) -> float:
        """Summed variance of the residual coordinates at noise scale 1, in counts^2."""
        return float(np.sum(self.pinv**2))

    @property
    def has_equal_variances(self) -> bool:
        """Whether all residual coordinates are known to have equal variances.

        False means that it is not known.
        """
        return False

    @property
    def precision(self) -> PrecisionMatrix | None:
        """Precision matrix of the estimated residual table at noise scale 1, as an operator.

        None if the class has no formula for it, and for incomplete strategies, which have no
        precision matrix.
        """
        return None

    @cached_property
    def cell_covariance(self) -> Array:
        """Covariance of the estimated residual table on one attribute at noise scale 1, (n, n)."""
        N = basis(self.sizes[0])
        return N @ self.covariance @ N.T

    @property
    def dimension(self) -> int:
        """Number of residual coordinates."""
        return len(self.pinv)

    @property
    def coordinates(self) -> tuple[int, ...]:
        """Number of residual coordinates per attribute; number of cells if cells are measured.

        Not defined for a strategy that measures several residual spaces.
        """
        return self.sizes if len(self.pinv) == self.cells else tuple(n - 1 for n in self.sizes)

    @property
    def cells(self) -> int:
        """Number of cells that the rows cover."""
        return math.prod(self.sizes)

    @cached_property
    def span(self) -> Array:
        """Orthonormal basis of the measured span, as columns.

        Shape (residual coordinates, rank).
        """
        if self.measured is not None:
            return self.measured.T
        # computed from pinv, because the span does not depend on the centers, but the rows do
        U, singular, _ = thin_svd(self.pinv)
        Q: Array = U[:, singular > 1e-10 * singular.max(initial=0.0)]
        return Q

    @cached_property
    def unmeasured(self) -> Array:
        """Projection matrix onto the orthogonal complement of the measured span.

        Shape (residual coordinates, residual coordinates).
        """
        return np.eye(len(self.pinv)) - self.span @ self.span.T

    def leaves_span(self, residual_rows: Array) -> npt.NDArray[np.bool_]:
        """Return whether k residual rows have a component outside the measured span, shape (k,)."""
        # The component is computed as a vector, because the difference of two squared norms would
        # lose a small component to rounding.
        residual = residual_rows - (residual_rows @ self.span) @ self.span.T
        leaving: npt.NDArray[np.bool_] = np.linalg.norm(
            residual, axis=1
        ) > MAX_UNMEASURED_SHARE * np.maximum(np.linalg.norm(residual_rows, axis=1), 1e-300)
        return leaving


def canonical_rotation(directions: Array) -> Array:
    """Return the matrix Q that rotates ``directions`` to a canonical basis of their span.

    ``directions`` are orthonormal rows, shape (r, m).  Q is orthogonal, shape (r, r).  The basis
    Q @ directions depends on the span only: it is the Gram-Schmidt basis of the projections of
    fixed vectors to the span.

    Eigenvectors of equal eigenvalues differ between processors and libraries.  The rows of a
    strategy must not differ, because answers that are measured on one machine are read on other
    machines.
    """
    Q, R = scipy.linalg.qr(
        directions @ _fixed_pseudorandom(*directions.shape).T, check_finite=False
    )
    return np.asarray((Q * np.where(np.diagonal(R) < 0.0, -1.0, 1.0)).T)


def _fixed_pseudorandom(rows: int, columns: int) -> Array:
    """Return pseudorandom numbers in [-1, 1), the same on all machines, shape (rows, columns).

    They are the first outputs of the generator SplitMix64 with seed 0.
    """
    bits = np.arange(1, rows * columns + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits = (bits ^ (bits >> np.uint64(shift))) * np.uint64(factor)
    return ((bits ^ (bits >> np.uint64(31))) / 2.0**63 - 1.0).reshape(rows, columns)


# largest number of cells of a table that is formed as a sum or product of tables
MAX_JOINT_CELLS = 1 << 17
# largest number of comparisons of entries in the search for the dominated values of one attribute
MAX_JOINT_COMPARISONS = 1 << 28
# relative difference up to which costs count as equal
TIE_TOLERANCE = 1e-13
# Kronecker product of strategies: (attributes, factors, scale of its cost).  A factor is a pair
# (axes, strategy).
MeasuredPart = tuple[Space, tuple[tuple[Axes, Strategy], ...], float]
# (attributes of a table of costs, index of the table)
PlacedTable = tuple[Space, int]


def joint_sensitivity(parts: Iterable[MeasuredPart], law: str) -> float:
    """Return an upper bound on the joint sensitivity: the maximum over cells of summed costs.

    Parameters
    ----------
    parts : one tuple (attributes, factors, scale) per Kronecker product of strategies.  A factor is
        a pair (axes, strategy); its axes are positions in ``attributes``.  The product's cost at a
        cell is ``scale`` times the cost of the cell's column.
    law : "gaussian" for the squared Euclidean norm as cost of a column, "laplace" for the L1 norm.

    >>> rows = np.array([[1.0, 1.0], [0.0, 1.0]])
    >>> strategies = [
    ...     Strategy(sizes=(2,), rows=r, pinv=r, complete=True) for r in (rows, rows[:, ::-1])
    ... ]
    >>> joint_sensitivity([(("a",), (((0,), s),), 1.0) for s in strategies], "gaussian")
    3.0
    """
    # cost of every cell, one table per distinct strategy; strategies are compared by identity
    tables: list[Array] = []
    table_index: dict[Strategy, int] = {}
    products: list[tuple[float, list[PlacedTable]]] = []
    for attributes, factors, scale in parts:
        placed = []
        for axes, strategy in factors:
            if strategy not in table_index:
                table_index[strategy] = len(tables)
                tables.append(strategy.column_costs(law).reshape(strategy.sizes))
            placed.append((tuple(attributes[a] for a in axes), table_index[strategy]))
        products.append((scale, placed))
    distinct = dict.fromkeys(entry for _, placed in products for entry in placed)
    undominated, removal_steps = _undominated(distinct, tables)
    undominated_tables = {
        (names, k): tables[k][np.ix_(*(undominated[name] for name in names))]
        for names, k in distinct
    }
    order = {name: i for i, name in enumerate(undominated)}
    bounds: dict[Space, Array] = {}
    for scale, placed in products:
        _accumulate(
            bounds,
            *_product(scale, [(entry[0], undominated_tables[entry]) for entry in placed], order),
        )
    sizes = {name: len(values) for name, values in undominated.items()}
    # `_eliminate` bounds the maximum of the sum of all tables.  A removal step may lower the
    # maximum by the factor 1 + TIE_TOLERANCE; see `_undominated`.
    return _eliminate(bounds, sizes, order) * (1.0 + TIE_TOLERANCE) ** removal_steps


def _undominated(
    placed: Iterable[PlacedTable], tables: Sequence[Array]
) -> tuple[dict[str, Index], int]:
    """Return the undominated values of every attribute, and the number of removal steps.

    ``placed`` lists tables with the names of their axes, as pairs (names, index in ``tables``).  A
    value of an attribute is dominated if another value of the attribute has at least the same cost
    in every entry of every table with the attribute.

    Every removal step may lower the maximum of the costs by up to the factor 1 + `TIE_TOLERANCE`,
    because nearly equal costs count as equal.
    """
    tables_with: dict[str, list[PlacedTable]] = {}
    for names, k in placed:
        for name in names:
            tables_with.setdefault(name, []).append((names, k))
    candidates = {
        name: np.arange(tables[k].shape[names.index(name)])
        for name, ((names, k), *_) in tables_with.items()
    }
    steps, queue = 0, list(candidates)
    while queue:
        name = queue.pop()
        # One row per value of the attribute.  Placed tables that differ only in attribute names
        # have equal rows, so only one of them is compared.
        rows: dict[tuple[int, int, tuple[bytes, ...]], Array] = {}
        for names, k in tables_with[name]:
            axis = names.index(name)
            key = (k, axis, tuple(candidates[n].tobytes() for n in names if n != name))
            if key not in rows:
                table = tables[k][np.ix_(*(candidates[n] for n in names))]
                rows[key] = np.moveaxis(table, axis, 0).reshape(len(candidates[name]), -1)
        best = _undominated_rows(np.unique(np.concatenate(list(rows.values()), axis=1), axis=1))
        if len(best) < len(candidates[name]):
            candidates[name], steps = candidates[name][best], steps + 1
            # Fewer entries remain to be compared, so values of other attributes in these tables can
            # become dominated. These attributes are checked again.
            neighbours = {n for names, _ in tables_with[name] for n in names if n != name}
            queue += [n for n in neighbours if n not in queue and len(candidates[n]) > 1]
    return candidates, steps


def _undominated_rows(rows: Array) -> Index:
    """Return the indices of the rows that no other row dominates; one index per set of equal rows.

    If this would take more than `MAX_JOINT_COMPARISONS` comparisons, the result has all rows.
    """
    if rows.shape[0] ** 2 * rows.shape[1] > MAX_JOINT_COMPARISONS:
        return np.arange(len(rows))
    chosen: list[int] = []
    for i in np.argsort(-rows.sum(axis=1), kind="stable"):
        if not chosen or not (rows[chosen] * (1.0 + TIE_TOLERANCE) >= rows[i]).all(axis=1).any():
            chosen.append(int(i))
    return np.sort(np.array(chosen))


def _product(
    scale: float, tables: Sequence[tuple[Space, Array]], order: Mapping[str, int]
) -> tuple[Space, Array]:
    """Return ``scale`` times the outer product of tables, with the attributes of its axes.

    The tables have no attribute in common.  The attributes of the product are sorted by ``order``,
    and attributes with one value are left out.  A table that would make the product larger than
    `MAX_JOINT_CELLS` is replaced by its maximum, so that the result is an upper bound.
    """
    product, scope = np.asarray(scale), list[str]()
    for names, table in sorted(tables, key=lambda t: t[1].size):
        if product.size * table.size > MAX_JOINT_CELLS:
            product = product * table.max()
            continue
        product, scope = np.multiply.outer(product, table), [*scope, *names]
    several_values = [n for n, size in zip(scope, product.shape, strict=True) if size > 1]
    ranked = sorted(several_values, key=order.__getitem__)
    axes = [scope.index(n) for n in ranked]
    single_value_axes = [i for i in range(len(scope)) if i not in axes]
    product = product.transpose([*axes, *single_value_axes])
    return tuple(ranked), product.reshape(product.shape[: len(axes)])


def _accumulate(bounds: dict[Space, Array], scope: Space, table: Array) -> None:
    """Add ``table`` to the table of ``bounds`` on the same attributes ``scope``, or insert it."""
    bounds[scope] = bounds[scope] + table if scope in bounds else table


def _eliminate(
    bounds: dict[Space, Array], sizes: Mapping[str, int], order: Mapping[str, int]
) -> float:
    """Return an upper bound on the maximum of a sum of tables, by mini-bucket elimination.

    Parameters
    ----------
    bounds : the tables by their attributes.
    sizes : number of values of every attribute.
    order : position of every attribute in a fixed order.  The next attribute to be eliminated is
        the one for which the sum of its tables has the fewest cells; if there are several, the
        first in this order.
    """
    bounds = dict(bounds)
    while remaining := {name for scope in bounds for name in scope}:
        joint_scopes = {
            name: {n for scope in bounds if name in scope for n in scope} for name in remaining
        }
        name = min(
            remaining, key=lambda n: (math.prod(sizes[m] for m in joint_scopes[n]), order[n])
        )
        # Tables with this attribute are distributed over buckets.  The tables of a bucket are added
        # into one table on all their attributes, which has at most MAX_JOINT_CELLS cells.
        buckets: list[tuple[set[str], list[Space]]] = []
        for scope in sorted((s for s in bounds if name in s), key=lambda s: -bounds[s].size):
            for scope_union, scopes in buckets:
                if math.prod(sizes[n] for n in scope_union | set(scope)) <= MAX_JOINT_CELLS:
                    scope_union |= set(scope)
                    scopes.append(scope)
                    break
            else:
                buckets.append((set(scope), [scope]))
        for scope_union, scopes in buckets:
            names = tuple(sorted(scope_union, key=order.__getitem__))
            total = np.zeros([sizes[n] for n in names])
            for scope in scopes:
                total += bounds.pop(scope).reshape([sizes[n] if n in scope else 1 for n in names])
            other_names = tuple(n for n in names if n != name)
            _accumulate(bounds, other_names, total.max(axis=names.index(name)))
    return float(bounds.get((), np.zeros(())))
