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
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from engine._arrays import Array
from engine.plans.kronecker_rows import SLAB_ENTRIES
from engine.plans.pareto_front import pareto_front
from engine.residuals import Axes, digest

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
