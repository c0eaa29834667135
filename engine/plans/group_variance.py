"""Variances of all queries of one group, stored as products of small arrays.

A group is a product of query families (`Group.parts`), each on some attributes of the group.  A
query of the group is the product of one query per family.  Its variance is a sum of terms, one per
measured residual space (or set of jointly measured residual spaces).  A term is the squared noise
of the space times one number per family.

`VarianceTerm` stores these numbers as one array per family, over the queries of the family.  A
strategy that measures attributes of several families gives these families one common array.  So the
queries of the group, all combinations of queries of the families, need not be listed:

    sum of all variances     a product of sums of arrays per term
    largest variance         only queries on the Pareto front of each family are compared
    variances of a range     products of slices of the arrays

The queries of a product of families are the Kronecker products of one query row per family.  Their
squared norms and quadratic forms are computed from the rows of the families, in steps that bound
the memory.

**Variances of all queries of one group as a linear function of squared noises.**  A group is a
product of query families (`Group.parts`), and a query of the group is a product of one query q_k
per family.  Optimizing the budget allocation needs its variance for many noises:

    Var(q_1, ..., q_K) = sum over j of s_j  prod over k of X_k[j, q_k].

Here s_j is the squared noise of residual space j, and the table X_k has one row per residual space
and one column per query of family k.  Families that a strategy measures jointly have one common
table, with a column per combination of their queries.

The variance is linear in s, and linear in each column of a table if the other columns are fixed.
The largest variance is therefore attained at vertices of the convex hulls of the columns.  Equal
columns are evaluated only once.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy

from engine._arrays import Array, Index
from engine.errors import LimitExceeded
from engine.residuals import Axes, contract, digest, group_axes
from engine.residuals.basis import ungroup_axes

# Approximate limit for the number of entries of one intermediate array.
SLAB_ENTRIES = 1 << 22


def squared_norms_of_products(
    rows: Sequence[Array],
    shape: Sequence[int],
    sets: Sequence[Axes],
    matrices: Sequence[Array | None],
    weights: Array | None,
) -> Array:
    """Return |q M / weights|^2 for all Kronecker products q of one row from each array in ``rows``.

    M is the Kronecker product of ``matrices``.

    Parameters
    ----------
    rows : k arrays of shapes (queries_i, cells_i).
    shape : shape of a product q as a tensor.
    sets : for each matrix, the axes of this tensor that the matrix multiplies.
    matrices : one matrix per element of ``sets``; None is the identity.
    weights : divisors of the entries of q M, one axis per matrix; None if all are 1.

    Returns
    -------
    array of shape (queries_1, ..., queries_k).
    """
    if (
        len(sets) == 1
        and matrices[0] is not None
        and prefers_quadratic_forms([r.shape for r in rows], matrices[0].shape[1])
    ):
        M = matrices[0] if weights is None else matrices[0] / weights
        transposed = ungroup_axes(M.T, sets, shape, 1).reshape(M.shape[::-1])
        # Rounding can make a small square negative.
        return np.maximum(quadratic_forms(rows, transposed.T @ transposed), 0.0)
    squared_norms = np.empty(tuple(map(len, rows)))
    step = max(1, 4 * SLAB_ENTRIES // max(1, math.prod(map(len, rows[1:])) * math.prod(shape)))
    for start in range(0, len(rows[0]), step):
        products = rows[0][start : start + step]
        for other_rows in rows[1:]:
            products = np.einsum(
                "qa,pb->qpab", products.reshape(-1, products.shape[-1]), other_rows
            ).reshape(-1, products.shape[-1] * other_rows.shape[-1])
        tensors = group_axes(products.reshape(len(products), *shape), sets, 1)
        multiplied = contract(tensors, matrices, 1)
        multiplied = multiplied if weights is None else multiplied / weights
        flat = multiplied.reshape(len(multiplied), -1)
        squares = np.einsum("qr,qr->q", flat, flat)
        squared_norms[start : start + step] = squares.reshape(-1, *squared_norms.shape[1:])
    return squared_norms


def quadratic_forms(rows: Sequence[Array], matrix: Array) -> Array:
    """Return q C q^T for all Kronecker products q of one row from each array in ``rows``.

    Parameters
    ----------
    rows : k arrays of shapes (queries_i, cells_i).
    matrix : C, a square matrix with cells_1 * ... * cells_k rows.

    Returns
    -------
    array of shape (queries_1, ..., queries_k).

    >>> quadratic_forms([np.eye(2), np.ones((1, 1))], np.diag([3.0, 4.0]))
    array([[3.],
           [4.]])
    """
    if len(rows) == 1:
        return np.asarray(np.einsum("qa,qa->q", rows[0] @ matrix, rows[0]))
    # The matrix is first contracted with each row r of the array that has the fewest rows.  This
    # leaves one smaller matrix per row r, for the products of rows from the other arrays.
    first = min(range(len(rows)), key=lambda k: len(rows[k]))
    lengths = [r.shape[1] for r in rows]
    first_length, other_length = lengths[first], math.prod(lengths) // lengths[first]
    first_axes_in_front = np.moveaxis(
        matrix.reshape(lengths * 2), (first, first + len(rows)), (0, 1)
    ).reshape(first_length * first_length, -1)
    others = [r for k, r in enumerate(rows) if k != first]
    values = np.empty((len(rows[first]), *map(len, others)))
    step = max(1, SLAB_ENTRIES // max(first_length * first_length, other_length * other_length))
    for start in range(0, len(values), step):
        first_rows = rows[first][start : start + step]
        outer_products = np.einsum("qa,qb->qab", first_rows, first_rows)
        contracted = outer_products.reshape(len(first_rows), -1) @ first_axes_in_front
        for k, other_matrix in enumerate(contracted):
            values[start + k] = quadratic_forms(
                others, other_matrix.reshape(other_length, other_length)
            )
    return np.moveaxis(values, 0, first)


def prefers_quadratic_forms(shapes: Sequence[tuple[int, int]], columns: int) -> bool:
    """Return whether `quadratic_forms` is much cheaper than listing all Kronecker products.

    Parameters
    ----------
    shapes : shape (queries_i, cells_i) of each array of rows.
    columns : number of columns of the matrix that would multiply every listed product.
    """
    counts, lengths = [q for q, _ in shapes], [m for _, m in shapes]
    cells = math.prod(lengths)
    # Listing takes prod(counts) * cells * columns multiplications, `quadratic_forms` about
    # min(counts) * cells^2.
    return (
        len(shapes) > 1
        and cells**2 <= 4 * SLAB_ENTRIES
        and math.prod(counts) * columns > 8 * min(counts) * cells
    )


def summed_squared_distances(
    rows: Sequence[Array], shape: Sequence[int], subspaces: Sequence[tuple[Array, Axes]]
) -> list[float]:
    """Return, for each subspace, the sum over queries of the squared distance from the subspace.

    Parameters
    ----------
    rows : k arrays of shapes (queries_i, cells_i); the queries are the Kronecker products of one
        row from each array.
    shape : shape of a query as a tensor.
    subspaces : pairs (basis, axes).  The subspace contains the tensors whose vectors along ``axes``
        are in the span of the orthonormal columns of ``basis``.
    """
    first, others = rows[0], np.ones((1, 1))
    for next_rows in rows[1:]:
        others = np.asarray(np.kron(others, next_rows), dtype=float)
    sums = [0.0] * len(subspaces)
    step = max(1, SLAB_ENTRIES // max(1, others.size * first.shape[1]))
    for start in range(0, len(first), step):
        queries: Array = np.asarray(
            np.kron(first[start : start + step], others), dtype=float
        ).reshape(-1, *shape)
        for k, (basis, axes) in enumerate(subspaces):
            # One matrix product projects the vectors along ``axes`` of all queries.
            other_axes = tuple(a for a in range(len(shape)) if a not in axes)
            vectors = group_axes(queries, [other_axes, axes], 1).reshape(-1, len(basis))
            sums[k] += float(np.sum((vectors - (vectors @ basis) @ basis.T) ** 2))
    return sums


# With two features and at least MIN_BINNED_POINTS points, most points that are not on the front are
# found by dividing all points into FRONT_BINS bins, which is much faster than sorting them.
FRONT_BINS, MIN_BINNED_POINTS = 4096, 10_000


def pareto_front(features: Sequence[Array]) -> Any:
    """Return the indices of the points on the Pareto front, where every feature is maximized.

    For every point there is a point on the front that is at least as large in every feature.  Of
    several equal points, at most one is on the front.

    Parameters
    ----------
    features : one nonnegative array of shape (points,) per feature.

    >>> pareto_front([np.array([1.0, 2.0, 0.0]), np.array([5.0, 3.0, 4.0])]).tolist()
    [1, 0]
    """
    candidates = _front_candidates(features)
    return candidates[_front_of_columns(np.stack([f[candidates] for f in features]))]


def _front_candidates(features: Sequence[Array]) -> Index:
    """Return the indices of the points that can be on the Pareto front.

    If there are exactly two features and at least `MIN_BINNED_POINTS` points, the points are
    divided into bins by the first feature.  A point is left out if the second feature of some point
    in a higher bin is at least as large as its own.  In all other cases, no point is left out.
    """
    points = len(features[0])
    if len(features) != 2 or points < MIN_BINNED_POINTS:
        return np.arange(points)
    first, second = features
    bins = (first * ((FRONT_BINS - 1) / (first.max() or 1.0))).astype(np.int64)
    largest_in_bin = np.full(FRONT_BINS + 1, -np.inf)
    np.maximum.at(largest_in_bin, bins, second)
    largest_from_bin = np.maximum.accumulate(largest_in_bin[::-1])[::-1]
    return np.flatnonzero(second > largest_from_bin[bins + 1])


def _front_of_columns(features: Array) -> Any:
    """Return the indices of the columns of ``features`` that are on their Pareto front.

    ``features`` has one row per feature and one column per point.
    """
    if len(features) <= 2:
        # Sorted by descending first feature, a point is on the front exactly if its last feature is
        # larger than the last features of all points before it.
        order = np.lexsort(-features[::-1])
        last = features[-1, order]
        largest_before = np.maximum.accumulate(np.append(-np.inf, last[:-1]))
        return order[:1] if len(features) == 1 else order[last > largest_before]
    order = np.argsort(-features.sum(axis=0), kind="stable")
    front = []
    while len(order):
        # The remaining point with the largest sum of features is on the front, because every
        # different point is smaller in some feature.  A point is removed if it is not larger than
        # this point in any feature.
        largest = order[0]
        front.append(largest)
        order = order[(features[:, order] > features[:, [largest]]).any(axis=0)]
    return np.array(front)


def upper_hull(x: Array, y: Array) -> npt.NDArray[np.int64]:
    """Return the indices of the vertices of the upper right convex hull of the points (x, y).

    The points must be a Pareto front: no point is at least as large as another in x and in y.
    """
    order = np.argsort(x, kind="stable")
    hull: list[int] = []
    for i in order:
        while len(hull) >= 2:
            a, b = hull[-2], hull[-1]
            if (x[b] - x[a]) * (y[i] - y[a]) >= (y[b] - y[a]) * (x[i] - x[a]):
                hull.pop()  # point b is on or below the line from point a to point i
            else:
                break
        hull.append(int(i))
    return np.array(hull)


# The search for a Pareto front of more than two features can compare every point with every point
# of the front.  With at least this number of points, the search counts as slow.
MIN_SLOW_FRONT_POINTS = 20_000
# A slow search is left out if at most this number of combinations of queries are compared instead.
MAX_COMPARED_COMBINATIONS = 300_000_000

# Indices of some query families of a group in `Group.parts`.
FamilyIndices = tuple[int, ...]
# For each query family of a group, some of its queries; see `GroupVariance.at`.
QueryIndex = tuple[Any, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class VarianceTerm:
    """The variance that the noise of one block adds to each query of a group.

    A query of the group is a product of one query per query family.  Each array has one axis per
    family in its set of families.  The index on this axis is the index of the family's query.  The
    variance is ``coefficient`` times the product of one entry of each array.

    Attributes
    ----------
    coefficient : squared noise of the block, in counts^2, times factors that are equal for all
        queries of the group; 1 in `GroupVariance.unmeasured`.
    arrays : pairs (indices of query families, array with one axis per such family).  No family is
        in two pairs.
    axes : positions in the group of the attributes of the residual space, in schema order; for
        jointly measured residual spaces, of all their attributes.
    """

    coefficient: float
    arrays: tuple[tuple[FamilyIndices, Array], ...]
    axes: Axes = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class GroupVariance:
    """Variances of the queries of one group, in counts^2.

    Attributes
    ----------
    counts : number of queries of each query family of the group.
    terms : terms whose sum is the variance.
    unmeasured : terms whose sum is positive for queries that the plan cannot answer, and 0 for all
        other queries.
    """

    counts: tuple[int, ...]
    terms: tuple[VarianceTerm, ...]
    unmeasured: tuple[VarianceTerm, ...] = ()
    # The sums and the Pareto fronts of `VarianceTerm.arrays`.  They do not depend on the
    # coefficients of the terms, so the variances that `at_noise` returns use the same cache.
    _cache: dict[str, Any] = field(init=False, default_factory=dict)

    def at_noise(self, noise: Sequence[float]) -> GroupVariance:
        """Return the variances with the coefficient of term i replaced by ``noise[i]`` squared.

        ``noise`` has one standard deviation per term, in counts.
        """
        terms = tuple(replace(t, coefficient=n**2) for t, n in zip(self.terms, noise, strict=True))
        rescaled = replace(self, terms=terms)
        object.__setattr__(rescaled, "_cache", self._cache)
        return rescaled

    def total(self) -> float:
        """Return the sum of the variances of all queries, in counts^2.

        It is infinite if the plan cannot answer a query.
        """
        if any(self._sum_of_products(t) > 0 for t in self.unmeasured):
            return math.inf
        if "sums" not in self._cache:
            self._cache["sums"] = [self._sum_of_products(t) for t in self.terms]
        return math.fsum(
            t.coefficient * term_sum
            for t, term_sum in zip(self.terms, self._cache["sums"], strict=True)
        )

    def _sum_of_products(self, term: VarianceTerm) -> float:
        """Return the sum of a term over all queries, with 1 in place of its coefficient."""
        families = {p for indices, _ in term.arrays for p in indices}
        # The term does not depend on queries of families without an array.
        repetitions = math.prod(n for p, n in enumerate(self.counts) if p not in families)
        # No two arrays are over the same family, so the sum over all combinations of queries is the
        # product of the sums of the arrays.
        return repetitions * math.prod(float(array.sum()) for _, array in term.arrays)

    def largest(self) -> float:
        """Return the largest variance of a query, in counts^2.

        It is infinite if the plan cannot answer a query.
        """
        if any(self._sum_of_products(t) > 0 for t in self.unmeasured):
            return math.inf
        family_sets = self._family_sets()
        if len(family_sets) == 1 and sum(len(term.arrays) for term in self.terms) > 2:
            # The search for a Pareto front would compare all queries.  With more than two arrays
            # this takes longer than computing the variances of all queries.
            ranges = index_ranges(self.counts, 0, math.prod(self.counts))
            return max(float(self.at(index).max()) for _, _, index in ranges)
        if "fronts" not in self._cache:
            self._cache["fronts"] = self._arrays_on_fronts(family_sets)
        lengths, arrays_by_term = self._cache["fronts"]
        largest, first_length = 0.0, lengths[0] if lengths else 1
        # All combinations of queries on the fronts are compared.  To save memory, only some queries
        # of the first front are taken at a time.
        step = max(1, SLAB_ENTRIES // max(1, math.prod(lengths[1:])))
        for start in range(0, first_length, step):
            shape = (min(step, first_length - start), *lengths[1:])
            variances = np.zeros(shape if lengths else ())
            for term, arrays_on_front in zip(self.terms, arrays_by_term, strict=True):
                product: Any = term.coefficient
                for k, array in arrays_on_front:
                    product = product * broadcast_along(
                        array[start : start + step] if k == 0 else array, k, len(lengths)
                    )
                variances += product
            largest = max(largest, float(variances.max()))
        return largest

    def _family_sets(self) -> list[FamilyIndices]:
        """Divide the query families into sets; families with a common array are in one set."""
        return connected_components(
            len(self.counts), [indices for t in self.terms for indices, _ in t.arrays]
        )

    def _arrays_on_fronts(
        self, family_sets: Sequence[FamilyIndices]
    ) -> tuple[list[int], list[list[tuple[int, Array]]]]:
        """Return the entries of all arrays at queries on the Pareto fronts.

        The front of a set k contains combinations of queries of its families: for every other
        combination, the front has one with entries at least as large in all arrays over families of
        the set.  All arrays are nonnegative, so a query with the largest variance is a product of
        combinations on the fronts.  If the search for the front of a set is slow, the result has
        all combinations of the set instead.

        Parameters
        ----------
        family_sets : result of `_family_sets`.

        Returns
        -------
        lengths : number of combinations on the front of each set.
        arrays_by_term : for each term, one pair (k, entries of the array at the front of set k) per
            array of the term.
        """
        # Terms often contain equal arrays, which are compared and stored once.
        keys_by_term = [
            [(indices, digest(array)) for indices, array in t.arrays] for t in self.terms
        ]
        arrays = {
            key: array
            for keys, t in zip(keys_by_term, self.terms, strict=True)
            for key, (_, array) in zip(keys, t.arrays, strict=True)
        }
        features_of_sets = []
        for families in family_sets:
            shape = tuple(self.counts[p] for p in families)
            features_of_sets.append(
                {
                    (indices, array_digest): _repeat_over_families(indices, array, families, shape)
                    for (indices, array_digest), array in arrays.items()
                    if set(indices) <= set(families)
                }
            )
        # If the terms do not depend on the queries of a set, one query of the set is enough.
        points = [math.prod(self.counts[p] for p in families) for families in family_sets]
        lengths = [n if f else 1 for n, f in zip(points, features_of_sets, strict=True)]
        on_front: dict[tuple[FamilyIndices, Any], tuple[int, Array]] = {}
        # The sets are in ascending order of their combinations.  Therefore the lengths of all other
        # fronts are known when the front of the largest set is searched or left out.
        for k in sorted(range(len(family_sets)), key=lambda k: points[k]):
            features = features_of_sets[k]
            has_slow_front = len(features) > 2 and points[k] >= MIN_SLOW_FRONT_POINTS
            if has_slow_front and math.prod(lengths) <= MAX_COMPARED_COMBINATIONS:
                on_front |= {key: (k, values) for key, values in features.items()}
            elif features:
                front = pareto_front(list(features.values()))
                on_front |= {key: (k, values[front]) for key, values in features.items()}
                lengths[k] = len(front)
        return lengths, [[on_front[key] for key in keys] for keys in keys_by_term]

    def values(self, start: int, stop: int) -> Array:
        """Return the variances of queries ``start:stop``, in counts^2, shape (stop - start,).

        The queries are numbered from 0; the query of the last family varies fastest.
        """
        if stop <= start:
            return np.zeros(0)
        variances = np.empty(stop - start)
        for low, high, index in index_ranges(self.counts, start, stop):
            variances[low - start : high - start] = self.at(index).ravel()[
                slice_of_range(index, self.counts, low, high)
            ]
        return variances

    def at(self, index: QueryIndex) -> Array:
        """Return the variances of selected queries, in counts^2.

        The variance is infinite for queries that the plan cannot answer.

        Parameters
        ----------
        index : either one range per query family of the group, to select all combinations of
            queries in these ranges; or one integer array of shape (points,) per family, to select
            one combination of queries per point.

        Returns
        -------
        array of shape (len(range_1), ..., len(range_k)) for ranges, and (points,) for arrays.
        """
        by_range = not index or isinstance(index[0], range)
        shape = tuple(len(i) for i in index) if by_range else (len(index[0]),)
        variances, unanswerable = np.zeros(shape), np.zeros(shape, dtype=bool)
        for term in self.terms:
            variances += _term_at(term, index)
        for term in self.unmeasured:
            unanswerable |= np.broadcast_to(_term_at(term, index), shape) > 0
        variances[unanswerable] = math.inf
        return variances


def _term_at(term: VarianceTerm, index: QueryIndex) -> Any:
    """Return a term at the queries that ``index`` selects, as an array that can be broadcast."""
    product: Any = term.coefficient
    for indices, array in term.arrays:
        product = product * _entries_at(array, indices, index)
    return product


def _entries_at(array: Array, indices: FamilyIndices, index: QueryIndex) -> Array:
    """Return the entries of one array of `VarianceTerm` at the queries that ``index`` selects.

    If ``index`` has ranges, the result has one axis per query family of the group, of length 1 for
    families that are not in ``indices``.  If ``index`` has arrays of shape (points,), the result
    has this shape.
    """
    if not isinstance(index[0], range):
        return np.asarray(array[tuple(index[p] for p in indices)])
    window = array[tuple(slice(index[p].start, index[p].stop) for p in indices)]
    shape = [1] * len(index)
    for p, n in zip(indices, window.shape, strict=True):
        shape[p] = n
    return window.reshape(shape)


def index_ranges(
    counts: Sequence[int], start: int, stop: int
) -> Iterator[tuple[int, int, QueryIndex]]:
    """Divide the queries ``start:stop`` of a group into consecutive ranges of bounded size.

    Parameters
    ----------
    counts : number of queries of each query family of the group.  The query of the last family
        varies fastest.

    Yields
    ------
    low, high : bounds of one range ``low:high`` of queries.
    index : argument of `GroupVariance.at` that selects the queries ``low:high``.  It has one range
        per family if each query of the first family belongs to at most `SLAB_ENTRIES` queries of
        the group.  These ranges can also select queries before ``low`` and after ``high``, which
        `slice_of_range` leaves out.  Otherwise the index has one integer array per family, and
        selects the queries ``low:high`` only.
    """
    if not counts:
        yield start, stop, ()
        return
    queries_per_first = math.prod(counts[1:])
    if queries_per_first <= SLAB_ENTRIES:
        first, last = start // queries_per_first, -(-stop // queries_per_first)
        step = max(1, SLAB_ENTRIES // queries_per_first)
        for row in range(first, last, step):
            end = min(last, row + step)
            yield (
                max(start, row * queries_per_first),
                min(stop, end * queries_per_first),
                (range(row, end), *(range(n) for n in counts[1:])),
            )
        return
    for low in range(start, stop, SLAB_ENTRIES // 4):
        high = min(stop, low + SLAB_ENTRIES // 4)
        # A group can have more than 2^62 queries, whose numbers do not fit an int64.
        dtype = object if math.prod(counts) >= 2**62 else np.int64
        remaining, index = np.arange(low, high, dtype=dtype), []
        for n in reversed(counts):
            remaining, position = np.divmod(remaining, n)
            index.append(position.astype(np.int64))
        yield low, high, tuple(reversed(index))


def slice_of_range(index: QueryIndex, counts: Sequence[int], low: int, high: int) -> slice:
    """Return where the queries ``low:high`` are in the raveled result of `GroupVariance.at`.

    ``low``, ``high`` and ``index``, the argument of `GroupVariance.at`, are from `index_ranges`.
    """
    if not index or not isinstance(index[0], range):
        return slice(0, high - low)
    offset = index[0].start * math.prod(counts[1:])
    return slice(low - offset, high - offset)


def joint_term(
    coefficient: float,
    joint_families: FamilyIndices,
    joint_array: Array,
    other_arrays: Sequence[tuple[FamilyIndices, Array]],
    axes: Axes,
) -> VarianceTerm:
    """Return a `VarianceTerm` with ``joint_array`` and ``other_arrays``.

    Parameters
    ----------
    coefficient, axes : fields of `VarianceTerm`.
    joint_families : indices of the query families that ``joint_array`` is over; can be empty.
    joint_array : array with one axis per joint family; a single number if there are none.
    other_arrays : pairs (indices of other families, array), as in `VarianceTerm.arrays`.
    """
    if joint_families:
        arrays = ((joint_families, joint_array), *other_arrays)
        return VarianceTerm(coefficient=coefficient, arrays=arrays, axes=axes)
    number = float(joint_array)
    if not other_arrays:
        return VarianceTerm(coefficient=coefficient * number, arrays=(), axes=axes)
    (families, first_array), *further_arrays = other_arrays
    arrays = ((families, first_array * number), *further_arrays)
    return VarianceTerm(coefficient=coefficient, arrays=arrays, axes=axes)


def connected_components(count: int, connected: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Return the connected components of a graph with the vertices 0 .. count - 1.

    Each tuple in ``connected`` has vertices that are connected with each other.  The components are
    sorted tuples in the order of their smallest vertices.

    >>> connected_components(4, [(3, 1), (2,)])
    [(0,), (1, 3), (2,)]
    """
    label = list(range(count))
    for vertices in connected:
        labels = {label[v] for v in vertices}
        label = [min(labels) if x in labels else x for x in label]
    return [tuple(v for v in range(count) if label[v] == k) for k in sorted(set(label))]


def broadcast_along(vector: Array, k: int, dimensions: int) -> Array:
    """Return a vector as an array with its entries along axis k and ``dimensions`` axes in all.

    >>> broadcast_along(np.ones(5), 1, 3).shape
    (1, 5, 1)
    """
    shape = [1] * dimensions
    shape[k] = len(vector)
    return vector.reshape(shape)


def _repeat_over_families(
    indices: FamilyIndices, array: Array, families: FamilyIndices, shape: tuple[int, ...]
) -> Array:
    """Return an array as a vector, repeated for all combinations of queries of ``families``.

    Parameters
    ----------
    indices : indices of the query families that ``array`` is over.
    families : indices of all families to combine, which include ``indices``.
    shape : number of queries of each of ``families``.
    """
    aligned_shape = [array.shape[indices.index(p)] if p in indices else 1 for p in families]
    return np.broadcast_to(array.reshape(aligned_shape), shape).ravel()


# Limit for the number of entries of one table of `LinearVariances`.
MAX_ENTRIES = 200_000_000
# Limit for the number of monomials of `LinearVariances.expansion`.
MAX_MONOMIALS = 20_000
# `LinearVariances.expansion` divides a row of a table by its largest entry if the power of this
# entry would be above 10^60 or below 10^-60.
MAX_EXPONENT = 60.0
# A power with at most this many monomials is always expanded, because all groups with so few
# monomials are evaluated together in one batch.
MAX_BATCHED_MONOMIALS = 500
# Each row of a table is divided by its largest entry.  Two columns count as equal if they agree in
# this number of decimals after the division.  Equal variances that are computed in different
# coordinates have a relative difference of about 1e-13.
EQUAL_DIGITS = 11
# Columns of a table, shape (spaces, columns), and the weight of each column.
WeightedColumns = tuple[Array, Array]


@dataclass(frozen=True, kw_only=True, eq=False)
class LinearVariances:
    """Variances of the queries of one group as a linear function of the squared noises.

    A query of the group has one column in every table.  Its variance is the sum over residual
    spaces j of noises[j] times the product over tables k of tables[k][j, column in table k].

    Attributes
    ----------
    family_sets : for each table, the indices of the query families that the table is over.
    tables : for each of these sets, an array of shape (spaces, combinations of queries of the
        families).
    noises : current squared noise of each residual space, shape (spaces,), in counts^2.
    query_weights : weight of each query of the group, shape (queries,), if there is a single table;
        None if all weights are 1.
    """

    family_sets: tuple[FamilyIndices, ...]
    tables: tuple[Array, ...]
    noises: Array
    query_weights: Array | None = None

    @cached_property
    def distinct_columns(self) -> tuple[WeightedColumns, ...]:
        """For each table, a pair (distinct columns, summed weight of the equal columns).

        The shapes are (spaces, columns) and (columns,).  A column has the weight of its query;
        columns with weight 0 are left out.
        """
        columns_by_table = []
        for table in self.tables:
            weights = np.ones(table.shape[1]) if self.query_weights is None else self.query_weights
            weighted = weights > 0
            columns_by_table.append(_merge_equal_columns(table[:, weighted], weights[weighted]))
        return tuple(columns_by_table)

    @cached_property
    def extreme_columns(self) -> tuple[Array, ...]:
        """For each table, columns that suffice to find the largest variance.

        Their shape is (spaces, columns).  For any noises, some query with the largest variance
        among the queries with positive weight has only such columns.
        """
        return tuple(_maximal_columns(columns) for columns, _ in self.distinct_columns)

    def largest(self, noises: Array) -> tuple[float, Array]:
        """Return the largest variance of a query with positive weight, and its derivative.

        Parameters
        ----------
        noises : squared noise of each residual space, shape (spaces,), in counts^2.

        Returns
        -------
        variance : the largest variance, in counts^2.
        derivative : derivative of the variance of this query with respect to ``noises``, shape
            (spaces,).
        """
        largest, derivative = -math.inf, np.zeros(len(noises))
        weighted_tables = [(columns, np.ones(columns.shape[1])) for columns in self.extreme_columns]
        for (left, _), (right, _) in _column_pairs(weighted_tables):
            variances = (noises[:, None] * left).T @ right
            a, b = np.unravel_index(int(np.argmax(variances)), variances.shape)
            if variances[a, b] > largest:
                largest, derivative = float(variances[a, b]), left[:, a] * right[:, b]
        return largest, derivative

    def power_sum(self, noises: Array, power: float, scale: float) -> tuple[float, Array]:
        """Return the sum over queries of weight * (variance / scale)^power, and its derivative.

        Parameters
        ----------
        noises : squared noise of each residual space, shape (spaces,), in counts^2.
        scale : divisor of all variances, in counts^2.

        Returns
        -------
        total : the sum.
        slopes : derivative of the sum with respect to ``noises``, multiplied by scale / power,
            shape (spaces,).
        """
        scaled = noises / scale
        if self.expands(power):
            exponents, coefficients, units = self.expansion(int(power))
            monomials = coefficients * np.exp(
                exponents @ np.log(np.maximum(scaled * units, 1e-300))
            )
            # The derivative of a monomial with respect to s_j is its exponent of s_j times the
            # monomial / s_j.
            return float(monomials.sum()), (monomials @ exponents) / scaled / power
        total, slopes = 0.0, np.zeros(len(noises))
        for (left, left_weight), (right, right_weight) in _column_pairs(self.distinct_columns):
            variances = (scaled[:, None] * left).T @ right
            # Rounding can make a variance of 0 negative, and its fractional power would be NaN.
            powers = np.maximum(variances, 0.0) ** (power - 1.0)
            powers *= left_weight[:, None]
            powers *= right_weight[None, :]
            total += float(np.sum(powers * variances))
            slopes += np.einsum("ja,aj->j", left, powers @ right.T)
        return total, slopes

    def expands(self, power: float) -> bool:
        """Return whether `power_sum` evaluates the polynomial of `expansion`.

        This requires an integer power.  The polynomial must have few monomials, or be cheaper than
        computing the variance of every query.
        """
        if power != int(power):
            return False
        monomials = math.comb(len(self.noises) + int(power) - 1, int(power))
        widths = [columns.shape[1] for columns, _ in self.distinct_columns]
        return monomials <= MAX_BATCHED_MONOMIALS or (
            monomials <= MAX_MONOMIALS and monomials * sum(widths) < 20 * math.prod(widths)
        )

    def expansion(self, power: int) -> tuple[Array, Array, Array]:
        """Return the sum over queries of weight * variance^power as a polynomial.

        The variables of the polynomial are units * (squared noises of the residual spaces).

        Returns
        -------
        exponents : exponents of each monomial, shape (monomials, spaces).
        coefficients : coefficient of each monomial, shape (monomials,).
        units : scale of every variable, shape (spaces,); 1 unless powers of a table could leave the
            range of doubles.
        """
        if power not in self._expansions:
            spaces = len(self.noises)
            exponents = _exponents(spaces, power)
            # The multinomial coefficients are computed by log-gamma, because factorials overflow.
            coefficients = np.exp(
                scipy.special.gammaln(power + 1.0)
                - scipy.special.gammaln(exponents + 1.0).sum(axis=1)
            )
            units = np.ones(spaces)
            for table, weight in self.distinct_columns:
                # A row of the table is divided by its largest entry if powers of this entry could
                # leave the range of doubles.
                largest = np.abs(table).max(axis=1)
                leaves_range = np.abs(np.log10(np.maximum(largest, 1e-300))) * power > MAX_EXPONENT
                table_units = np.where(leaves_range & (largest > 0.0), largest, 1.0)
                units, table = units * table_units, table / table_units[:, None]
                powers = table[None] ** np.arange(power + 1.0)[:, None, None]
                products = np.ones((len(exponents), table.shape[1]))
                for j in range(spaces):
                    products *= powers[exponents[:, j].astype(int), j]
                # A query is a combination of one column per table, and its variance terms are products
                # over the tables.  So the sum over queries is a product of one sum per table.
                coefficients *= products @ weight
            self._expansions[power] = exponents, coefficients, units
        return self._expansions[power]

    @cached_property
    def _expansions(self) -> dict[int, tuple[Array, Array, Array]]:
        return {}

    def variance_chunks(self) -> Iterator[tuple[Array, Array]]:
        """Yield the variances of all queries with positive weight, at the stored noises.

        Each chunk is a pair of arrays of equal shape: variances in counts^2, and weights.  Queries
        with the same columns have one entry, with their summed weight.  An array has at most a few
        million entries.
        """
        for (left, left_weight), (right, right_weight) in _column_pairs(self.distinct_columns):
            yield (
                (self.noises[:, None] * left).T @ right,
                np.multiply.outer(left_weight, right_weight),
            )


def linear_variances(
    group_variance: GroupVariance, query_weights: Array | None = None
) -> LinearVariances:
    """Return the variances of a group as a linear function of the squared noises.

    Parameters
    ----------
    group_variance : variances of the queries of the group.
    query_weights : weight of each query, shape (queries,); None if all are 1.

    Raises
    ------
    LimitExceeded : if a table would have more than `MAX_ENTRIES` entries.
    """
    noises = np.array([term.coefficient for term in group_variance.terms])
    if query_weights is None:
        family_sets = connected_components(
            len(group_variance.counts),
            [indices for term in group_variance.terms for indices, _ in term.arrays],
        )
    else:
        # The weights of queries are not products of weights of the families' queries, so a single
        # table needs one column per query of the group.
        family_sets = [tuple(range(len(group_variance.counts)))]
    tables = []
    for families in family_sets:
        shape = tuple(group_variance.counts[p] for p in families)
        if len(noises) * math.prod(shape) > MAX_ENTRIES:
            advice = "" if query_weights is None else "leave out query_weights, "
            raise LimitExceeded(
                f"This objective needs a table of {len(noises)} x {math.prod(shape):,} numbers "
                f"for the queries of one group, but at most {MAX_ENTRIES:,} are allowed. "
                f"Use fewer queries, {advice}or choose the objective 'sum'."
            )
        table = np.ones((len(noises), *shape))
        for j, term in enumerate(group_variance.terms):
            for indices, array in term.arrays:
                if set(indices) <= set(families):
                    aligned_shape = [
                        array.shape[indices.index(p)] if p in indices else 1 for p in families
                    ]
                    table[j] *= array.reshape(aligned_shape)
        tables.append(table.reshape(len(noises), -1))
    if not tables:
        tables, family_sets = [np.ones((len(noises), 1))], [()]
    return LinearVariances(
        family_sets=tuple(family_sets),
        tables=tuple(tables),
        noises=noises,
        query_weights=query_weights,
    )


def _column_pairs(
    tables: Sequence[WeightedColumns],
) -> Iterator[tuple[WeightedColumns, WeightedColumns]]:
    """Combine several tables into two, a left and a right table, in pieces of bounded size.

    Each choice of one column from each table has one elementwise product.  In exactly one of the
    yielded pieces, one left and one right column have this product.

    Parameters
    ----------
    tables : pairs (columns, weights), of shapes (spaces, columns) and (columns,).

    Yields
    ------
    left, right : two pairs (columns, weights) as in ``tables``.  There are at most about
        `SLAB_ENTRIES` pairs of a left and a right column.
    """
    (left, left_weight), others = tables[0], list(tables[1:])
    right, right_weight = np.ones((len(left), 1)), np.ones(1)
    # The right table is kept small, so that each yielded pair has many columns of the left table.
    while others and right.shape[1] * others[-1][0].shape[1] <= SLAB_ENTRIES // 16:
        table, weight = others.pop()
        right = np.einsum("ja,jb->jab", table, right).reshape(len(left), -1)
        right_weight = np.multiply.outer(weight, right_weight).ravel()
    if others:
        # The products of all tables except the first are too many.  The first two tables are merged
        # instead, one column of the first table at a time.
        (second, second_weight), *remaining = others
        for a in range(left.shape[1]):
            merged = (left[:, a : a + 1] * second, left_weight[a] * second_weight)
            yield from _column_pairs([merged, *remaining, (right, right_weight)])
        return
    step = max(1, SLAB_ENTRIES // right.shape[1])
    for start in range(0, left.shape[1], step):
        yield (
            (left[:, start : start + step], left_weight[start : start + step]),
            (right, right_weight),
        )


@lru_cache(maxsize=32)
def _exponents(spaces: int, power: int) -> Array:
    """Return the exponents of all monomials of degree ``power``, shape (monomials, spaces)."""
    monomials = itertools.combinations_with_replacement(range(spaces), power)
    return np.array([np.bincount(m, minlength=spaces) for m in monomials], dtype=float)


def _merge_equal_columns(columns: Array, weights: Array) -> tuple[Array, Array]:
    """Return the distinct columns of a table, and the summed weight of the copies of each.

    Columns that are equal up to rounding (see `EQUAL_DIGITS`) count as copies; their weighted mean
    replaces them.
    """
    if columns.shape[1] <= 1:
        return columns, weights
    rows, _ = _distinct_rows(
        np.round(
            columns / np.maximum(np.abs(columns).max(axis=1, keepdims=True), 1e-300), EQUAL_DIGITS
        )
    )
    inverse = _column_numbers(rows.tobytes(), len(rows))
    total = np.bincount(inverse, weights)
    mean = np.stack([np.bincount(inverse, weights * row) for row in columns]) / total
    return np.asarray(mean, dtype=float), np.asarray(total, dtype=float)


def _maximal_columns(columns: Array) -> Array:
    """Return columns of a table that maximize weighted sums of their entries.

    For any nonnegative weights of the rows, one of the returned columns has the largest weighted
    sum of entries among all columns.
    """
    # A constant row changes all weighted sums equally.  A repeated row only changes the weight of
    # an equal row.
    rows, index = _distinct_rows(columns)
    varying = index[np.ptp(rows, axis=1) > 0]
    if not len(varying):
        return columns[:, :1]
    return columns[:, _columns_on_front(columns[varying].tobytes(), len(varying))]


def _distinct_rows(table: Array) -> tuple[Array, Index]:
    """Return the distinct rows of a table, and the index of the first occurrence of each row."""
    first: dict[bytes, int] = {}
    for j, row in enumerate(table):
        first.setdefault(row.tobytes(), j)
    index = np.array(list(first.values()))
    return table[index], index


# The results are cached, because many groups have equal tables.
@lru_cache(maxsize=64)
def _column_numbers(packed: bytes, rows: int) -> Index:
    """Return one integer per column of a table, shape (columns,).

    Equal columns have equal integers, and different columns have different ones.  The table is
    passed as bytes and its number of rows, because an array cannot be the key of a cache.
    """
    columns = np.frombuffer(packed).reshape(rows, -1)
    order = np.lexsort(columns[::-1])
    ordered = columns[:, order]
    is_new = np.concatenate([[False], (ordered[:, 1:] != ordered[:, :-1]).any(axis=0)])
    numbers = np.empty(len(order), dtype=np.int64)
    numbers[order] = np.cumsum(is_new)
    return numbers


@lru_cache(maxsize=64)
def _columns_on_front(packed: bytes, rows: int) -> Index:
    """Return the indices of the columns of a table that are on the Pareto front of its columns.

    If the table has two rows, only the vertices of the convex hull of this front are returned: a
    weighted sum of the two rows is largest at a vertex.  The table is passed as bytes and its
    number of rows, because an array cannot be the key of a cache.
    """
    features = np.frombuffer(packed).reshape(rows, -1)
    front: Index = pareto_front(list(features))
    if rows == 2:
        front = front[upper_hull(features[0][front], features[1][front])]
    return np.sort(front)
