"""Closed-form variances of the queries of a plan.

A part of a group is one query family on some attributes of the group.  A query of the group is the
product of one query q per part.  Its variance is a sum over the residual spaces B on subsets of its
attributes.  The term of B is noise_B^2 times one number per part:

    part without attributes of B  (q . pi)^2,  pi the center of its attributes
    part with attributes of B     q N C N^T q^T,  N the basis of residual coordinates and C their
                                  covariance at noise scale 1

If one strategy measures attributes of several parts, these parts have one number together.

`GroupVariance` stores the numbers for all queries of a part as arrays.  The queries of a group, all
combinations of queries of its parts, need not be listed: the sum of all variances is a product of
sums, the largest variance needs only the Pareto front of each part, and the variances of a range of
queries are products of slices.  `VarianceBuilder` computes the arrays of a plan.

`Footprint` has the same arrays without the noise, for optimizing the budget allocation:

    Var(q_1, ..., q_K) = sum over j of s_j  prod over k of X_k[j, q_k],

with s_j the squared noise of residual space j.  There is one table X_k, shape (spaces, queries),
per set of parts that no strategy couples with other parts.  The variance is linear in s, and in
each column of a table if all others are fixed.  The largest variance is therefore attained at
vertices of the convex hull of the columns.  Equal columns are evaluated only once.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import scipy

from engine._arrays import Array, Index, unique_rows
from engine._threads import threads_for
from engine.errors import LimitExceeded
from engine.plans.blocks import Block, LazyBlocks
from engine.residuals import (
    Axes,
    Complement,
    Space,
    Split,
    Strategy,
    center,
    contract,
    digest,
    group_axes,
    residual_rows,
)
from engine.residuals.basis import pieces, positions, ungroup_axes
from engine.residuals.decomposition import reduce_rows
from engine.residuals.strategy import MAX_UNMEASURED_SHARE
from engine.workload import Group, Part, Schema, Workload, joint_part, subsets
from engine.workload.workload import groups_outside

if TYPE_CHECKING:
    import pandas as pd


# Approximate limit for the entries of one intermediate array.
SLAB_ENTRIES = 1 << 22
Parts = tuple[int, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class Summand:
    """One term of the variances of the queries of a group, due to the noise of one block.

    A query of the group consists of one query per part (query family).  Its term is
    ``coefficient`` times one entry of each array: the entry at the queries of the parts that the
    array is over.

    Attributes
    ----------
    coefficient : squared noise of the block, in counts^2, times factors that are equal for all
        queries of the group; 1 in `GroupVariance.unmeasured`.
    arrays : pairs (indices of parts, array with one axis per such part, over its queries).
    axes : positions in the group of the attributes of the residual space, in schema order; for
        jointly measured residual spaces, of all their attributes.
    """

    coefficient: float
    arrays: tuple[tuple[Parts, Array], ...]
    axes: Axes = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class GroupVariance:
    """Variances of the queries of one group, in counts^2.

    Attributes
    ----------
    counts : number of queries of each part (query family).
    summands : terms whose sum is the variance.
    unmeasured : terms whose sum is positive for queries that the plan cannot answer, and 0 for all
        other queries.
    """

    counts: tuple[int, ...]
    summands: tuple[Summand, ...]
    unmeasured: tuple[Summand, ...] = ()
    # Sums and Pareto fronts of the arrays.  They do not depend on the coefficients, so the results
    # of `at_noise` share them.
    _cache: dict[str, Any] = field(init=False, default_factory=dict)

    def at_noise(self, noise: Sequence[float]) -> GroupVariance:
        """Return the variances with the coefficient of summand i replaced by ``noise[i]`` squared.

        ``noise`` has one standard deviation per summand, in counts.
        """
        summands = tuple(
            replace(s, coefficient=n**2) for s, n in zip(self.summands, noise, strict=True)
        )
        rescaled = replace(self, summands=summands)
        object.__setattr__(rescaled, "_cache", self._cache)
        return rescaled

    def total(self) -> float:
        """Sum of the variances over all queries; infinite if the plan cannot answer a query."""
        if any(self._sum(s) > 0 for s in self.unmeasured):
            return math.inf
        if "sums" not in self._cache:
            self._cache["sums"] = [self._sum(s) for s in self.summands]
        return math.fsum(
            s.coefficient * array_sum
            for s, array_sum in zip(self.summands, self._cache["sums"], strict=True)
        )

    def _sum(self, summand: Summand) -> float:
        """Return the sum over all queries of a summand with coefficient 1."""
        covered = {p for parts, _ in summand.arrays for p in parts}
        free = math.prod(n for p, n in enumerate(self.counts) if p not in covered)
        # The arrays are on disjoint parts, so the sum of their products is the product of their
        # sums.
        return free * math.prod(float(a.sum()) for _, a in summand.arrays)

    def largest(self) -> float:
        """Largest variance of a query; infinite if the plan cannot answer a query."""
        if any(self._sum(s) > 0 for s in self.unmeasured):
            return math.inf
        if "fronts" not in self._cache:
            self._cache["fronts"] = self._fronts()
        sets, keys, fronts = self._cache["fronts"]
        lengths = [len(next(iter(f.values()))) if f else 1 for f in fronts]
        set_of_part = {p: k for k, part_set in enumerate(sets) for p in part_set}
        largest, first_length = 0.0, lengths[0] if lengths else 1
        # all combinations of points on the fronts are evaluated, in slabs along the first front
        step = max(1, SLAB_ENTRIES // max(1, math.prod(lengths[1:])))
        for start in range(0, first_length, step):
            shape = (min(step, first_length - start), *lengths[1:])
            values = np.zeros(shape if lengths else ())
            for s, summand_keys in zip(self.summands, keys, strict=True):
                product: Any = s.coefficient
                for key in summand_keys:
                    k = set_of_part[key[0][0]]
                    front = fronts[k][key]
                    product = product * broadcast_along(
                        front[start : start + step] if k == 0 else front, k, len(sets)
                    )
                values += product
            largest = max(largest, float(values.max()))
        return largest

    def _fronts(self) -> tuple[list[Parts], list[list[Any]], list[dict[Any, Array]]]:
        """Return what is needed of the arrays of all summands to find the largest variance.

        Returns
        -------
        sets : sets of parts; parts with a common array are in one set.
        keys : for each summand, the keys (parts, digest) of its arrays.
        fronts : for each set of parts, a mapping from the key of an array to some of its entries:
            those of the combinations of queries that are on the Pareto front of all arrays.
        """
        sets = coupled_sets(
            len(self.counts), [parts for s in self.summands for parts, _ in s.arrays]
        )
        keys: list[list[Any]] = [
            [(parts, digest(a)) for parts, a in s.arrays] for s in self.summands
        ]
        arrays = {
            k: a
            for summand_keys, s in zip(keys, self.summands, strict=True)
            for k, (_, a) in zip(summand_keys, s.arrays, strict=True)
        }
        # All arrays are nonnegative.  If query a of a set has smaller entries than query b in all
        # arrays, then its variance is smaller for any queries of all other sets.  The largest
        # variance is therefore attained by queries on the Pareto fronts.
        fronts: list[dict[Any, Array]] = []
        for part_set in sets:
            shape = tuple(self.counts[p] for p in part_set)
            features = {
                (parts, key): _broadcast_to_set(parts, a, part_set, shape)
                for (parts, key), a in arrays.items()
                if set(parts) <= set(part_set)
            }
            front = (
                pareto_front(list(features.values())) if features else np.zeros(1, dtype=np.int64)
            )
            fronts.append({key: values[front] for key, values in features.items()})
        return sets, keys, fronts

    def values(self, start: int, stop: int) -> Array:
        """Return the variances of queries ``start:stop``, in counts^2, shape (stop - start,).

        The queries are numbered from 0; the query of the last part varies fastest.
        """
        if stop <= start:
            return np.zeros(0)
        out = np.empty(stop - start)
        for low, high, index in index_ranges(self.counts, start, stop):
            out[low - start : high - start] = self.at(index).ravel()[
                index_window(index, self.counts, low, high)
            ]
        return out

    def at(self, index: tuple[Any, ...]) -> Array:
        """Return the variances of selected queries, in counts^2.

        The variance is infinite for queries that the plan cannot answer.

        Parameters
        ----------
        index : one range per part, to select all combinations of these queries of the parts; or one
            integer array of shape (points,) per part, to select one combination per point.

        Returns
        -------
        array of shape (len(range_1), ..., len(range_k)) for ranges, and (points,) for arrays.
        """
        by_range = not index or isinstance(index[0], range)
        shape = tuple(len(i) for i in index) if by_range else (len(index[0]),)
        values, unanswerable = np.zeros(shape), np.zeros(shape, dtype=bool)
        for summands, is_mark in ((self.summands, False), (self.unmeasured, True)):
            for s in summands:
                product: Any = s.coefficient
                for parts, a in s.arrays:
                    product = product * _pick(a, parts, index)
                if is_mark:
                    unanswerable |= np.broadcast_to(product, shape) > 0
                else:
                    values += product
        values[unanswerable] = math.inf
        return values


def index_ranges(
    counts: Sequence[int], start: int, stop: int
) -> Iterator[tuple[int, int, tuple[Any, ...]]]:
    """Divide the queries ``start:stop`` of a group into consecutive ranges of bounded size.

    Parameters
    ----------
    counts : number of queries of each part (query family) of the group.  The query of the last part
        varies fastest.

    Yields
    ------
    low, high : the range ``low:high`` of queries.
    index : argument of `GroupVariance.at` that selects these queries.  It has one range per part:
        some queries of the first part, and all queries of every other part.  It can then include
        queries outside ``low:high``; see `index_window`.  If the other parts have too many
        combinations of queries, the index has one integer array per part.
    """
    if not counts:
        yield start, stop, ()
        return
    # this many consecutive queries have the same query of the first part
    width = math.prod(counts[1:])
    if width <= SLAB_ENTRIES:
        first, last = start // width, -(-stop // width)
        step = max(1, SLAB_ENTRIES // width)
        for row in range(first, last, step):
            end = min(last, row + step)
            yield (
                max(start, row * width),
                min(stop, end * width),
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


def index_window(index: tuple[Any, ...], counts: Sequence[int], low: int, high: int) -> slice:
    """Return the slice of the raveled result of `GroupVariance.at` for the queries ``low:high``.

    ``index``, ``low`` and ``high`` are a result of `index_ranges`.
    """
    if not index or not isinstance(index[0], range):
        return slice(0, high - low)
    offset = index[0].start * math.prod(counts[1:])
    return slice(low - offset, high - offset)


def _pick(array: Array, parts: Parts, index: tuple[Any, ...]) -> Array:
    """Return the entries of an array at an ``index``, which is the argument of `GroupVariance.at`.

    The array has one axis per element of ``parts``, over the queries of that part (query family).
    If the index has ranges, the result has one axis per part of the group, with length 1 for parts
    that are not among ``parts``.  If it has arrays of shape (points,), the result has this shape.
    """
    if not isinstance(index[0], range):
        return np.asarray(array[tuple(index[p] for p in parts)])
    window = array[tuple(slice(index[p].start, index[p].stop) for p in parts)]
    shape = [1] * len(index)
    for p, n in zip(parts, window.shape, strict=True):
        shape[p] = n
    return window.reshape(shape)


def broadcast_along(values: Array, k: int, dimensions: int) -> Array:
    """Reshape a vector of length n to ``dimensions`` axes: n along axis k and 1 along all
    others."""
    shape = [1] * dimensions
    shape[k] = len(values)
    return values.reshape(shape)


def _broadcast_to_set(parts: Parts, array: Array, part_set: Parts, shape: tuple[int, ...]) -> Array:
    """Repeat an array over the queries of ``parts`` along additional parts, and ravel it.

    Parameters
    ----------
    part_set : indices of the parts of the result, which include ``parts``.
    shape : number of queries of each part of ``part_set``.
    """
    aligned_shape = [array.shape[parts.index(p)] if p in parts else 1 for p in part_set]
    return np.broadcast_to(array.reshape(aligned_shape), shape).ravel()


def parts_outside(group: Group, axes: Axes) -> list[int]:
    """Return the indices of the parts (query families) of a group on none of the ``axes``."""
    return [p for p, part in enumerate(group.parts) if not set(part.axes) & set(axes)]


def joint_summand(
    coefficient: float,
    joint_parts: Parts,
    values: Array,
    other_parts: Sequence[int],
    arrays: Sequence[Array],
    axes: Axes,
) -> Summand:
    """Return a `Summand` with a joint array over some parts, and one array for each other part.

    Parameters
    ----------
    coefficient, axes : fields of `Summand`.
    joint_parts : indices of the parts with a joint array; can be empty.
    values : the joint array.  If ``joint_parts`` is empty, a single number, which multiplies the
        first of ``arrays``, or the coefficient if there are none.
    other_parts : indices of the other parts.
    arrays : one array per other part.
    """
    other_arrays = [((p,), array) for p, array in zip(other_parts, arrays, strict=True)]
    if joint_parts:
        return Summand(
            coefficient=coefficient, arrays=((joint_parts, values), *other_arrays), axes=axes
        )
    if other_arrays:
        (parts, array), *remaining = other_arrays
        return Summand(
            coefficient=coefficient, arrays=((parts, array * float(values)), *remaining), axes=axes
        )
    return Summand(coefficient=coefficient * float(values), arrays=(), axes=axes)


def squares_of_products(
    rows: Sequence[Array],
    shape: Sequence[int],
    sets: Sequence[Axes],
    matrices: Sequence[Array | None],
    weights: Array | None,
) -> Array:
    """Return |q M / weights|^2 for all Kronecker products q of one row per factor.

    Parameters
    ----------
    rows : rows of each factor, shapes (q_i, m_i).
    shape : shape of a product q as a tensor.
    sets : set of axes of the tensor for each of ``matrices``.
    matrices : factors of M, which is their Kronecker product; None is the identity.
    weights : divisors of the entries of q M, one axis per matrix; None if all are 1.

    Returns
    -------
    array of shape (q_1, ..., q_k).
    """
    if (
        len(sets) == 1
        and matrices[0] is not None
        and prefers_forms([r.shape for r in rows], matrices[0].shape[1])
    ):
        M = matrices[0] if weights is None else matrices[0] / weights
        transposed = ungroup_axes(M.T, sets, shape, 1).reshape(M.shape[::-1])
        # Rounding can make a small square negative.
        return np.maximum(quadratic_forms(rows, transposed.T @ transposed), 0.0)
    out = np.empty(tuple(map(len, rows)))
    step = max(1, 4 * SLAB_ENTRIES // max(1, math.prod(map(len, rows[1:])) * math.prod(shape)))
    for start in range(0, len(rows[0]), step):
        tensor = rows[0][start : start + step]
        for r in rows[1:]:
            tensor = np.einsum("qa,pb->qpab", tensor.reshape(-1, tensor.shape[-1]), r).reshape(
                -1, tensor.shape[-1] * r.shape[-1]
            )
        tensor = contract(group_axes(tensor.reshape(len(tensor), *shape), sets, 1), matrices, 1)
        # Weights multiply the measured rows, so they divide the columns of the pseudoinverse M.
        tensor = tensor if weights is None else tensor / weights
        squares = np.einsum("qr,qr->q", *(tensor.reshape(len(tensor), -1),) * 2)
        out[start : start + step] = squares.reshape(-1, *out.shape[1:])
    return out


def quadratic_forms(rows: Sequence[Array], matrix: Array) -> Array:
    """Return q C q^T for all Kronecker products q of one row per factor, shape (q_1, ..., q_k).

    Parameters
    ----------
    rows : rows of each factor, shapes (q_i, m_i).
    matrix : C, shape (m_1 ... m_k, m_1 ... m_k).

    >>> quadratic_forms([np.eye(2), np.ones((1, 1))], np.diag([3.0, 4.0]))
    array([[3.],
           [4.]])
    """
    if len(rows) == 1:
        return np.asarray(np.einsum("qa,qa->q", rows[0] @ matrix, rows[0]))
    # The factor with the fewest rows is contracted first.  Each of its rows leaves one matrix that
    # is only as large as the product of the other factors.
    first = min(range(len(rows)), key=lambda k: len(rows[k]))
    lengths = [r.shape[1] for r in rows]
    first_length, rest_length = lengths[first], math.prod(lengths) // lengths[first]
    # The row and column axes of this factor are moved to the front.
    by_first = np.moveaxis(matrix.reshape(lengths * 2), (first, first + len(rows)), (0, 1)).reshape(
        first_length * first_length, -1
    )
    others = [r for k, r in enumerate(rows) if k != first]
    out = np.empty((len(rows[first]), *map(len, others)))
    step = max(1, SLAB_ENTRIES // max(first_length * first_length, rest_length * rest_length))
    for start in range(0, len(out), step):
        first_rows = rows[first][start : start + step]
        inner = (
            np.einsum("qa,qb->qab", first_rows, first_rows).reshape(len(first_rows), -1) @ by_first
        )
        for k, contracted in enumerate(inner):
            out[start + k] = quadratic_forms(others, contracted.reshape(rest_length, rest_length))
    return np.moveaxis(out, 0, first)


def prefers_forms(rows: Sequence[tuple[int, int]], rank: int) -> bool:
    """Return whether `quadratic_forms` is much cheaper than listing all Kronecker products.

    Parameters
    ----------
    rows : shape (q_i, m_i) of the rows of each factor.
    rank : number of columns of the matrix by which each listed product would be multiplied.
    """
    counts, lengths = [q for q, _ in rows], [m for _, m in rows]
    cells = math.prod(lengths)
    return (
        len(rows) > 1
        and cells**2 <= 4 * SLAB_ENTRIES
        and math.prod(counts) * rank > 8 * min(counts) * cells
    )


def norms_outside_spans(
    rows: Sequence[Array], shape: Sequence[int], spans: Sequence[tuple[Array, Axes]]
) -> list[float]:
    """Return for each subspace the sum over queries of the squared distance from the subspace.

    Parameters
    ----------
    rows : rows of each factor, shapes (q_i, m_i); the queries are the Kronecker products of one row
        per factor.
    shape : shape of a query as a tensor.
    spans : one pair (orthonormal basis, axes of the tensor on which it acts) per subspace.
    """
    first, others = rows[0], np.ones((1, 1))
    for factor_rows in rows[1:]:
        others = np.asarray(np.kron(others, factor_rows), dtype=float)
    squares = [0.0] * len(spans)
    step = max(1, SLAB_ENTRIES // max(1, others.size * first.shape[1]))
    for start in range(0, len(first), step):
        products: Array = np.asarray(
            np.kron(first[start : start + step], others), dtype=float
        ).reshape(-1, *shape)
        for k, (span, axes) in enumerate(spans):
            # With the axes of the span as rows, one matrix product projects all queries.
            other_axes = tuple(a for a in range(len(shape)) if a not in axes)
            axis_rows = group_axes(products, [other_axes, axes], 1).reshape(-1, len(span))
            squares[k] += float(np.sum((axis_rows - (axis_rows @ span) @ span.T) ** 2))
    return squares


def coupled_sets(count: int, links: Sequence[Parts]) -> list[Parts]:
    """Return the connected components of the parts 0 .. count - 1, as sorted tuples.

    ``links`` are sets of parts; the parts of a link are connected.
    """
    label = list(range(count))
    for parts in links:
        component = {label[p] for p in parts}
        label = [min(component) if x in component else x for x in label]
    return [tuple(p for p in range(count) if label[p] == k) for k in sorted(set(label))]


def pareto_front(features: Sequence[Array]) -> Any:
    """Return the indices of the points on the Pareto front (maximization of all features).

    For every point there is a point on the front that is at least as large in every feature.

    Parameters
    ----------
    features : one array of shape (points,) per feature.
    """
    remaining = _without_dominated(features)
    return remaining[_front_of_columns(np.stack([f[remaining] for f in features]))]


def _without_dominated(features: Sequence[Array]) -> Index:
    """Return the indices of points that include the Pareto front, and few other points.

    If there are few points, or not exactly two features, all indices are returned.  Otherwise the
    points are divided into bins by the first feature, and a point is left out if a point in a
    higher bin has at least the same second feature.  This is much faster than sorting.
    """
    points = len(features[0])
    if len(features) != 2 or points < MIN_BINNED_POINTS:
        return np.arange(points)
    first, second = features
    bins = (first * ((FRONT_BINS - 1) / (first.max() or 1.0))).astype(np.int64)
    highest = np.full(FRONT_BINS + 1, -np.inf)
    np.maximum.at(highest, bins, second)
    # ``highest_from`` is the largest second feature in a bin and all higher bins.
    highest_from = np.maximum.accumulate(highest[::-1])[::-1]
    return np.flatnonzero(second > highest_from[bins + 1])


def _front_of_columns(features: Array) -> Any:
    """Return the indices of columns on the Pareto front of ``features``, shape (features,
    points)."""
    if len(features) <= 2:
        # In descending order of the first feature, a column is on the front if its last feature is
        # larger than that of all columns before it.
        order = np.lexsort(-features[::-1])
        last = features[-1, order]
        best = np.maximum.accumulate(np.append(-np.inf, last[:-1]))
        return order[:1] if len(features) == 1 else order[last > best]
    order = np.argsort(-features.sum(axis=0), kind="stable")
    front = []
    while len(order):
        # No column dominates the column with the largest sum.  The columns it dominates are
        # removed.
        largest = order[0]
        front.append(largest)
        order = order[(features[:, order] > features[:, [largest]]).any(axis=0)]
    return np.array(front)


def variances_by_class(
    blocks: Mapping[Space, Block],
    split: Split,
    workload: Workload,
    variances_of: Callable[[int], GroupVariance],
) -> list[GroupVariance]:
    """Return the variances of each group, computed once per class of equivalent groups.

    Groups are equivalent if they differ only in the names of their attributes, and if the blocks
    and centers of these attributes are equal.  If there are jointly measured spaces, complements or
    public tables, or if the blocks are no `LazyBlocks`, every group is a class of its own.

    Parameters
    ----------
    variances_of : function from the index of a group to its variances.
    """
    schema = workload.schema
    if (
        not isinstance(blocks, LazyBlocks)
        or not blocks.plain
        or split.complements
        or schema.invariants
    ):
        return list(map(variances_of, range(len(workload.groups))))
    center_ids: dict[Any, int] = {}
    centers = np.array(
        [
            center_ids.setdefault(digest(pi), len(center_ids))
            for pi in split.centers_of(schema.names)
        ]
    )
    variances: dict[int, GroupVariance] = {}
    for group_class in workload.group_classes:
        names = [
            tuple(map(schema.names.__getitem__, places)) for places in group_class.places.tolist()
        ]
        inside = [
            [blocks.class_of_key.get(space, -1) + 1 for space in subsets(group_names)]
            for group_names in names
        ]
        examples, class_of = unique_rows(
            np.column_stack([centers[group_class.places], np.array(inside)])
        )
        computed = list(map(variances_of, group_class.numbers[examples].tolist()))
        variances.update(
            zip(
                group_class.numbers.tolist(),
                map(computed.__getitem__, class_of.tolist()),
                strict=True,
            )
        )
    return [variances[i] for i in range(len(workload.groups))]


def table_of_groups(
    groups: Sequence[Group], rmses: Sequence[float], largest: Sequence[float]
) -> pd.DataFrame:
    """Return a data frame with one row per group.

    The columns are attributes, family, queries (their number), rmse, and max_std (the largest
    standard error); the last two are in counts.

    Parameters
    ----------
    rmses : root of the mean variance of each group, in counts.
    largest : largest variance of each group, in counts^2.
    """
    import pandas as pd

    rows = [(g.attributes, g.family_text, g.count) for g in groups]
    out = pd.DataFrame(rows, columns=["attributes", "family", "queries"])
    return out.assign(rmse=rmses, max_std=np.sqrt(largest))


# `_without_dominated` divides at least MIN_BINNED_POINTS points into FRONT_BINS bins.
FRONT_BINS, MIN_BINNED_POINTS = 4096, 10_000
# The component of a query in a residual space counts as zero if its norm is at most this share of
# the norm of the query.
ROUNDING = 1e-9
# A residual space, as positions of its attributes in a group, and the block that measures it or
# None.
MeasuredSpace = tuple[Axes, Block | None]


@dataclass(kw_only=True, eq=False)
class VarianceBuilder:
    """Computes the variances of the groups of one plan, with caches of arrays that groups share."""

    blocks: Mapping[Space, Block]
    split: Split
    schema: Schema
    _arrays: dict[Any, Array] = field(default_factory=dict)
    _measured: dict[Any, bool] = field(default_factory=dict)
    _reduced: dict[Any, tuple[Array, float]] = field(default_factory=dict)
    _groups: dict[Any, GroupVariance] = field(default_factory=dict)
    # The form of a group is a key of its queries and of the strategies of its residual spaces.  It
    # contains neither attribute names nor noise.
    _forms: dict[Any, GroupVariance] = field(default_factory=dict)
    # Equal forms share one object, because forms use most of the memory of a plan.
    _keys: dict[Any, Any] = field(default_factory=dict)

    def share_caches(self, other: VarianceBuilder) -> None:
        """Use the caches of another builder; its blocks must be equal except for their noise."""
        self._arrays, self._measured, self._reduced = other._arrays, other._measured, other._reduced
        self._forms, self._keys = other._forms, other._keys

    @cached_property
    def _block_of_space(self) -> Mapping[Space, Block]:
        """Residual space -> block that measures it."""
        plain = isinstance(self.blocks, LazyBlocks) and self.blocks.plain
        return (
            self.blocks
            if plain
            else {space: block for block in self.blocks.values() for space in block.spaces}
        )

    def group(self, group: Group) -> GroupVariance:
        """Return the variances of the queries of one group.

        Groups whose variances differ only in the noise share the arrays.
        """
        form, complements, products, coupled = self._form(group)
        noise = [
            b.noise
            for b in (*(b for _, b in products), *dict.fromkeys(b for _, b in coupled))
            if b is not None
        ]
        key = form, tuple(noise)
        if key not in self._groups and form in self._forms:
            self._groups[key] = self._forms[form].at_noise(noise)
        if key not in self._groups:
            # The matrix products are small, so several threads would be slower than one.
            with threads_for(1):
                summands = self._products(group, products)
                unmeasured = (
                    [] if self._measured.get(form) else self._unmeasured_terms(group, products)
                )
            if coupled:
                coupled_summands, coupled_marks = self._coupled_terms(group, complements, coupled)
                summands, unmeasured = [*summands, *coupled_summands], [*unmeasured, *coupled_marks]
            self._groups[key] = GroupVariance(
                counts=tuple(p.count for p in group.parts),
                summands=tuple(summands),
                unmeasured=tuple(unmeasured),
            )
            # The coefficient of a coupled group without parts is the squared noise times a
            # constant. `at_noise` would replace it by the squared noise alone, so this form is not
            # cached.
            if group.parts or not coupled:
                self._forms[form] = self._groups[key]
        return self._groups[key]

    def partial_groups(self, workload: Workload) -> Index:
        """Return the sorted indices of the groups with a residual space that is not fully
        measured."""
        measured = (
            self.blocks.prototypes_by_space()
            if isinstance(self.blocks, LazyBlocks)
            else self._block_of_space.items()
        )
        strategies = [(space, block.factors) for space, block in measured]
        complete = {
            factors: all(s.complete for _, s in factors)
            for factors in {factors for _, factors in strategies}
        }
        rank = self.schema.order.__getitem__
        return groups_outside(
            workload.group_classes,
            [tuple(map(rank, space)) for space, factors in strategies if complete[factors]],
        )

    def measures_all(self, group: Group) -> bool:
        """Return True if a quick test proves that the plan measures all queries of a group.

        False proves nothing.  The variances decide, which are infinite for unmeasured queries.
        """
        form, _, products, coupled = self._form(group)
        if form not in self._measured:
            self._measured[form] = not coupled and not self._unmeasured_terms(group, products)
        return self._measured[form]

    def _form(
        self, group: Group
    ) -> tuple[Any, Mapping[Axes, Complement], list[MeasuredSpace], list[MeasuredSpace]]:
        """Return the form of a group (a cache key) and the residual spaces on its attributes.

        Returns
        -------
        form : key such that the variances of groups with equal forms differ only in the noise.
        complements : pair of axes -> its tuned complement (a center for a pair of attributes).
        products : residual spaces, with their blocks, in which the component of every query is a
            Kronecker product of components of its parts.
        coupled : all other residual spaces, with their blocks.
        """
        schema, ranks = self.schema, group.ranks(self.schema)
        spaces = [
            (a, self._block_of_space.get(s))
            for a in group.spaces(schema)
            if not schema.is_exact(s := group.named(a))
        ]
        centers = tuple(map(digest, self.split.centers_of(group.attributes)))
        complements = self.split.inside(group.named(ranks))
        space_keys, union_ids = [], dict[Block, int]()
        for axes, block in spaces:
            position = (
                (block.spaces.index(group.named(axes)), union_ids.setdefault(block, len(union_ids)))
                if block and block.union
                else ()
            )
            # Strategies are compared by identity.  The key contains the strategies themselves,
            # which are therefore not deleted, so no new strategy can have the same identity.
            space_keys.append(
                (axes, None if block is None else (position, digest(block.weights), block.factors))
            )
        complement_keys = tuple((p, c.key) for p, c in complements.items())
        form = (
            tuple((p.axes, p.key) for p in group.parts),
            centers,
            tuple(space_keys),
            complement_keys,
        )
        # The component of a query is not a Kronecker product in jointly measured spaces.  A tuned
        # complement of a pair also changes the components of the total and of its two attributes.
        affected = (
            {(), *((ranks[a],) for pair in complements for a in pair)} if complements else set()
        )
        coupled = [
            (axes, block)
            for axes, block in spaces
            if axes in affected or (block is not None and block.union)
        ]
        products = [(axes, block) for axes, block in spaces if (axes, block) not in coupled]
        return self._keys.setdefault(form, form), complements, products, coupled

    def _products(self, group: Group, spaces: Sequence[MeasuredSpace]) -> list[Summand]:
        """Return one summand per measured space.

        ``spaces`` are the spaces that `_form` returns as ``products``.
        """
        summands = []
        for axes, block in spaces:
            if block is not None:
                arrays: list[tuple[Parts, Array]] = [
                    ((p,), self._outside_squares(group, p)) for p in parts_outside(group, axes)
                ]
                arrays += [
                    self._inside_squares(group, factors, weights=block.weights)
                    for factors in self._components(group, axes, block)
                ]
                summands.append(
                    Summand(coefficient=block.noise**2, arrays=tuple(arrays), axes=axes)
                )
        return summands

    def _unmeasured_terms(self, group: Group, spaces: Sequence[MeasuredSpace]) -> list[Summand]:
        """Return the terms of `GroupVariance.unmeasured` for the ``products`` of `_form`.

        A term is positive for the queries whose component in one of the spaces is not measured.
        """
        unmeasured = []
        for axes, block in spaces:
            missing = self._unmeasured_marks(group, axes, block)
            outside = (
                [((p,), self._has_component(group, p, ())) for p in parts_outside(group, axes)]
                if missing
                else []
            )
            unmeasured += [Summand(coefficient=1.0, arrays=(*outside, *marks)) for marks in missing]
        return [s for s in unmeasured if all(a.any() for _, a in s.arrays)]

    def _coupled_terms(
        self, group: Group, complements: Mapping[Axes, Complement], spaces: Sequence[MeasuredSpace]
    ) -> tuple[list[Summand], list[Summand]]:
        """Return terms of `GroupVariance.summands` and `GroupVariance.unmeasured` for coupled
        spaces.

        Residual spaces are coupled if one strategy measures them jointly, or if a tuned complement
        of a pair moves coefficients of queries between them.  For the parts with attributes of
        coupled spaces, all combinations of queries are listed.  Every other part has one array, as
        in `_products`.
        """
        ranks = group.ranks(self.schema)
        # Spaces measured by the same block form one term; an unmeasured space has its own term.
        spaces_of_block = dict[Any, tuple[Block | None, list[Axes]]]()
        for axes, block in spaces:
            spaces_of_block.setdefault(axes if block is None else block, (block, []))[1].append(
                axes
            )
        pairs = [{ranks[a] for a in pair} for pair in complements]
        summands, unmeasured = [], []
        for block, block_spaces in spaces_of_block.values():
            space_axes = {a for axes in block_spaces for a in axes}
            inside = tuple(a for a in ranks if a in space_axes)
            # If a space is inside a pair with a complement, the queries on both attributes matter.
            needed_axes = space_axes.union(
                *(pair for pair in pairs if any(set(axes) < pair for axes in block_spaces))
            )
            listed_parts = tuple(
                p for p, part in enumerate(group.parts) if needed_axes & set(part.axes)
            )
            other_parts = [p for p in range(len(group.parts)) if p not in listed_parts]
            values, marks = self._coupled_variances(group, listed_parts, block, block_spaces)
            if block is not None:
                outside = [self._outside_squares(group, p) for p in other_parts]
                summands.append(
                    joint_summand(
                        block.noise**2, listed_parts, values, other_parts, outside, inside
                    )
                )
            if marks.any():
                present = [self._has_component(group, p, ()) for p in other_parts]
                if all(map(np.any, present)):
                    unmeasured.append(
                        joint_summand(1.0, listed_parts, marks, other_parts, present, inside)
                    )
        return summands, unmeasured

    def _coupled_variances(
        self, group: Group, part_numbers: Parts, block: Block | None, spaces: Sequence[Axes]
    ) -> Array:
        """Return the variances at noise 1, and the unmeasured queries, in coupled residual spaces.

        Parameters
        ----------
        part_numbers : indices of parts of the group.
        block : block that measures ``spaces``; None if no block does.
        spaces : coupled residual spaces, as axes of the group.

        Returns
        -------
        array of shape (2, counts of these parts), with one entry per combination of queries of the
        parts.  Entry 0 along the first axis is the variance of the component in ``spaces`` if the
        noise of the block is 1.  Entry 1 is 1 if the component is not measured, and 0 if it is.
        """
        parts = tuple(group.parts[p] for p in part_numbers)
        axes_of_parts = {a for part in parts for a in part.axes}
        ranks = tuple(a for a in group.ranks(self.schema) if a in axes_of_parts)
        names, sizes = group.named(ranks), tuple(group.sizes[a] for a in ranks)
        centers, complements = self.split.centers_of(names), self.split.inside(names)
        # ``columns`` are the positions of the coordinates of the spaces among the coordinates of
        # all residual spaces of the parts, ``columns_in_block`` among the coordinates of the block.
        columns = positions(sizes, [tuple(map(ranks.index, axes)) for axes in spaces])
        columns_in_block = np.concatenate(
            self._windows(block, [group.named(axes) for axes in spaces])
            or [np.arange(len(columns))]
        )
        strategy = block.factors[0][1] if block is not None and block.factors else None
        weights = None if block is None else block.weights
        key = (
            tuple((tuple(map(ranks.index, part.axes)), part.key) for part in parts),
            (tuple(map(digest, centers)), tuple((pair, c.key) for pair, c in complements.items())),
            (
                columns.tobytes(),
                columns_in_block.tobytes(),
                block is None,
                strategy,
                digest(weights),
            ),
        )
        if key in self._arrays:
            return self._arrays[key]
        reconstruction = (
            np.eye(len(columns)) if strategy is None else strategy.pinv[columns_in_block]
        )
        reconstruction = reconstruction if weights is None else reconstruction / weights
        shape, marks = tuple(part.count for part in parts), list[Array]()
        complete = block is not None and (strategy is None or strategy.complete)
        if (
            parts
            and complete
            and not complements
            and prefers_forms([(p.count, p.cells) for p in parts], reconstruction.shape[1])
        ):
            # Query rows are Kronecker products only in the coordinates of all residual spaces.  The
            # reconstruction is padded with zeros for the spaces outside the block.
            padded = np.zeros((reconstruction.shape[1], math.prod(sizes)))
            padded[:, columns] = reconstruction.T
            padded = group_axes(
                padded.reshape(-1, *sizes), [tuple(map(ranks.index, p.axes)) for p in parts], 1
            ).reshape(len(padded), -1)
            part_rows = []
            for part in parts:
                part_centers = self.split.centers_of(group.named(part.axes))
                chunks = part.family.chunks(part.sizes)
                part_rows.append(
                    np.concatenate(
                        [pieces(chunk, part.sizes, part_centers, {}) for _, chunk in chunks]
                    )
                )
            values = [np.maximum(quadratic_forms(part_rows, padded.T @ padded), 0.0).ravel()]
        else:
            values, joint_group = [], joint_part(replace(group, parts=parts))
            for _, chunk in joint_group.family.chunks(joint_group.sizes):
                tensor = chunk.reshape(len(chunk), *joint_group.sizes).transpose(
                    0, *(1 + joint_group.axes.index(a) for a in ranks)
                )
                rows = pieces(tensor.reshape(len(chunk), -1), sizes, centers, complements)[
                    :, columns
                ]
                values.append(np.sum((rows @ reconstruction) ** 2, axis=1))
                if not complete:
                    is_unmeasured = np.linalg.norm(rows, axis=1) > ROUNDING * np.linalg.norm(
                        chunk, axis=1
                    )
                    if strategy is not None:
                        rows_on_block = np.zeros((len(rows), strategy.dimension))
                        rows_on_block[:, columns_in_block] = rows
                        is_unmeasured &= strategy.leaves_span(rows_on_block)
                    marks.append(is_unmeasured)
        variances = np.concatenate(values).reshape(shape)
        unmeasured = np.concatenate(marks).reshape(shape) if marks else np.zeros(shape)
        self._arrays[key] = np.stack([variances, unmeasured])
        return self._arrays[key]

    @staticmethod
    def _windows(block: Block | None, spaces: Sequence[Space]) -> list[Index]:
        """Return the positions of the coordinates of spaces among the coordinates of a block.

        The result has one array per space.  It is empty if the block measures a single space, or if
        it is None.
        """
        if block is None or not block.union:
            return []
        size = dict(zip(block.attributes, block.sizes, strict=True))
        ends = np.cumsum(
            [0, *(math.prod(size[name] - 1 for name in space) for space in block.union)]
        )
        return [np.arange(ends[k], ends[k + 1]) for k in map(block.union.index, spaces)]

    def _has_component(self, group: Group, p: int, inside: Axes) -> Array:
        """Return 1 for queries of part p with a nonzero component in a space, 0 for all others.

        The result has shape (queries,).  ``inside`` are the positions in the part of the attributes
        of the residual space.
        """
        part = group.parts[p]
        centers = self.split.centers_of(group.named(part.axes))
        key = ("present", part.key, inside, tuple(digest(pi) for pi in centers))
        if key not in self._arrays:
            marks = []
            for _, chunk in part.family.chunks(part.sizes):
                if len(part.sizes) == len(inside) == 1:
                    # The centered row has the same norm as its coordinates in the cosine basis,
                    # which are slow to compute for a wide attribute.
                    components = chunk - chunk.mean(axis=1, keepdims=True)
                else:
                    components = residual_rows(chunk, part.sizes, inside, centers)
                norm = np.linalg.norm(components, axis=1)
                marks.append(norm > 1e-9 * np.linalg.norm(chunk, axis=1))
            self._arrays[key] = np.concatenate(marks).astype(float)
        return self._arrays[key]

    def _outside_squares(self, group: Group, p: int) -> Array:
        """Return (q . pi)^2 for all queries q of part p, with pi the product of the centers."""
        part = group.parts[p]
        centers = self.split.centers_of(group.named(part.axes))
        key = ("outside", part.key, tuple(digest(pi) for pi in centers))
        if key not in self._arrays:
            # `Family.dot` is faster than a loop over the rows of the queries.
            weights: Array = np.ones(1)
            for n, pi in zip(part.sizes, centers, strict=True):
                weights = np.kron(weights, center(n, pi)).astype(float)
            self._arrays[key] = part.family.dot(part.sizes, weights) ** 2
        return self._arrays[key]

    def _components(
        self, group: Group, axes: Axes, block: Block
    ) -> list[list[tuple[Axes, Strategy]]]:
        """Return the factors of a block as lists of factors that queries of the group connect.

        Two factors are connected if a part of the group has attributes of both, and all are if the
        block has weights.  A factor is a pair (axes in the group, strategy).
        """
        factors = [(tuple(axes[a] for a in factor_axes), s) for factor_axes, s in block.factors]
        links = [
            tuple(
                k for k, (factor_axes, _) in enumerate(factors) if set(factor_axes) & set(part.axes)
            )
            for part in group.parts
        ]
        if block.weights is not None:
            links = [tuple(range(len(factors)))]
        return [
            [factors[k] for k in component]
            for component in coupled_sets(len(factors), [x for x in links if x])
        ]

    def _inside_squares(
        self,
        group: Group,
        factors: Sequence[tuple[Axes, Strategy]],
        matrix: str | int = "pinv",
        weights: Array | None = None,
    ) -> tuple[Parts, Array]:
        """Return |q M / weights|^2 for all queries of the parts that have attributes of some
        factors.

        Here q is the component of a query in the residual space on the axes of the factors, and M
        is a Kronecker product of one matrix per factor.

        Parameters
        ----------
        factors : pairs (axes of the group, strategy).
        matrix : which matrices M consists of.  "pinv" is the pseudoinverse of each strategy, and
            "identity" the identity.  A number k is `Strategy.unmeasured` for factor k and the
            identity for all other factors.
        weights : `Block.weights`, which divide the entries of q M; None if all are 1.

        Returns
        -------
        parts : indices of the parts that share an attribute with the factors.
        squares : one axis per such part, over its queries.
        """
        covered = {a for factor_axes, _ in factors for a in factor_axes}
        parts = tuple(p for p, part in enumerate(group.parts) if set(part.axes) & covered)
        inside_parts = [
            (group.parts[p], tuple(i for i, a in enumerate(group.parts[p].axes) if a in covered))
            for p in parts
        ]
        names = [group.named(part.axes) for part, _ in inside_parts]
        centers = tuple(
            digest(pi) for part_names in names for pi in self.split.centers_of(part_names)
        )
        order = tuple(a for part, inside in inside_parts for a in (part.axes[i] for i in inside))
        key = (
            tuple((part.key, inside) for part, inside in inside_parts),
            tuple((tuple(order.index(a) for a in factor_axes), s) for factor_axes, s in factors),
            centers,
            matrix,
            digest(weights),
        )
        if key not in self._arrays:
            one_attribute = len(inside_parts) == 1 and len(inside_parts[0][0].sizes) == 1
            if (
                weights is None
                and matrix == "pinv"
                and one_attribute
                and inside_parts[0][0].sizes == factors[0][1].sizes
            ):
                part, strategy = inside_parts[0][0], factors[0][1]
                # With one part and one factor on one attribute, many families have a closed form,
                # which needs no residual rows.
                self._arrays[key] = strategy.query_variances(part)
            else:
                self._arrays[key] = self._listed_squares(
                    inside_parts, names, factors, order, matrix, weights
                )
        return parts, self._arrays[key]

    def _listed_squares(
        self,
        inside_parts: Sequence[tuple[Part, Axes]],
        names: Sequence[tuple[str, ...]],
        factors: Sequence[tuple[Axes, Strategy]],
        order: Axes,
        matrix: str | int,
        weights: Array | None,
    ) -> Array:
        """Return the array of `_inside_squares` by listing the components q of all queries.

        Parameters
        ----------
        inside_parts : pairs (part, positions in the part of its attributes that are in the
            factors).
        names : attributes of each part.
        order : axes of the group in the order of the Kronecker product of the parts.
        factors, matrix, weights : as in `_inside_squares`.
        """
        rows = []
        for (part, inside), part_names in zip(inside_parts, names, strict=True):
            centers = self.split.centers_of(part_names)
            pieces = [
                residual_rows(chunk, part.sizes, inside, centers)
                for _, chunk in part.family.chunks(part.sizes)
            ]
            rows.append(np.concatenate(pieces))
        size = {
            a: part.sizes[i] - 1
            for part, inside in inside_parts
            for i, a in ((i, part.axes[i]) for i in inside)
        }
        sets = [tuple(order.index(a) for a in axes) for axes, _ in factors]
        if matrix == "pinv":
            matrices: list[Array | None] = [s.pinv for _, s in factors]
        else:
            matrices = [s.unmeasured if matrix == k else None for k, (_, s) in enumerate(factors)]
        return squares_of_products(rows, [size[a] for a in order], sets, matrices, weights)

    def _is_surely_measured(self, group: Group, factors: Sequence[tuple[Axes, Strategy]]) -> bool:
        """Return True if a quick test proves that factors measure all queries of a group.

        False proves nothing.  The test compares the squared norms of the unmeasured components,
        summed over all queries, with the tolerance for a single query.  The sum does not change if
        the queries of a part are replaced by fewer rows with the same Gram matrix, which is fast.
        """
        part_on_axes = {part.axes: part for part in group.parts}
        unproven = {
            axes
            for axes, strategy in factors
            if not strategy.complete
            and not (axes in part_on_axes and strategy.covers(part_on_axes[axes]))
        }
        if not unproven:
            return True
        covered = {a for factor_axes, _ in factors for a in factor_axes}
        order = [a for part in group.parts for a in part.axes if a in covered]
        reduced = [
            self._reduced_rows(part, inside, group.named(part.axes))
            for part in group.parts
            if (inside := tuple(i for i, a in enumerate(part.axes) if a in covered))
        ]
        smallest = math.prod(part_smallest for _, part_smallest in reduced)
        spans = [
            (strategy.span, tuple(order.index(a) for a in axes))
            for axes, strategy in factors
            if axes in unproven
        ]
        residuals = norms_outside_spans(
            [rows for rows, _ in reduced], [group.sizes[a] - 1 for a in order], spans
        )
        return max(residuals, default=0.0) <= MAX_UNMEASURED_SHARE**2 * smallest

    def _reduced_rows(
        self, part: Part, inside: Axes, names: tuple[str, ...]
    ) -> tuple[Array, float]:
        """Replace the residual components of the queries of a part by fewer rows of equal Gram.

        Returns
        -------
        rows : shape (rows, residual coordinates), with at most as many rows as coordinates.
        smallest : smallest squared norm of the component of a query that is not 0.
        """
        centers = self.split.centers_of(names)
        key = ("reduced", part.key, inside, tuple(map(digest, centers)))
        if key not in self._reduced:
            reduced, smallest = list[Array](), math.inf
            for _, chunk in part.family.chunks(part.sizes):
                residual_part = residual_rows(chunk, part.sizes, inside, centers)
                squares = np.sum(residual_part**2, axis=1)
                present = squares > ROUNDING**2 * np.sum(chunk**2, axis=1)
                smallest = min(smallest, float(squares[present].min(initial=math.inf)))
                reduced = [reduce_rows(np.concatenate([*reduced, residual_part]))]
            self._reduced[key] = reduced[0], smallest
        return self._reduced[key]

    def _unmeasured_marks(
        self, group: Group, axes: Axes, block: Block | None
    ) -> list[list[tuple[Parts, Array]]]:
        """Return which queries have an unmeasured component in the residual space ``axes``.

        The result is a list of products.  A product is a list of pairs (indices of parts, array of
        0 and 1 over the queries of these parts).  A query has an unmeasured component if one of the
        products is 1 for it.  ``block`` measures the residual space; it is None if no block does.
        """
        if block is not None and all(s.complete for _, s in block.factors):
            return []
        inside_parts = [
            (p, tuple(i for i, a in enumerate(part.axes) if a in axes))
            for p, part in enumerate(group.parts)
            if set(part.axes) & set(axes)
        ]
        components = [] if block is None else self._components(group, axes, block)
        unproven = [
            factors for factors in components if not self._is_surely_measured(group, factors)
        ]
        if block is not None and not unproven:
            return []
        present: list[tuple[Parts, Array]] = [
            ((p,), self._has_component(group, p, inside)) for p, inside in inside_parts
        ]
        out = [present] if block is None else []
        for factors in unproven:
            parts, norms = self._inside_squares(group, factors, "identity")
            for k in (k for k, (_, s) in enumerate(factors) if not s.complete):
                # A query is unmeasured if factor k does not measure its component, and the queries
                # of all parts have nonzero components.
                _, residuals = self._inside_squares(group, factors, k)
                marks = (residuals > MAX_UNMEASURED_SHARE**2 * norms).astype(float)
                for (p,), mark in present:
                    if p in parts:
                        marks = marks * broadcast_along(mark, parts.index(p), len(parts))
                other_marks = [((p,), mark) for (p,), mark in present if p not in parts]
                out.append([(parts, marks), *other_marks])
        return out


# Limit for the entries of one table of a `Footprint`.
MAX_ENTRIES = 200_000_000
# Limit for the terms of `Footprint.expansion`.
MAX_TERMS = 20_000
# `Footprint.expansion` rescales a table if its powers would exceed 10 to this exponent.
MAX_EXPONENT = 60.0
# With at most this many terms, a power is always expanded, because groups with few terms are
# evaluated together in one batch.
MAX_BATCHED_TERMS = 500
# Columns that agree in this number of decimal digits count as equal.  Equal variances that are
# computed in different coordinates differ by about 1e-13.
EQUAL_DIGITS = 11


@dataclass(frozen=True, kw_only=True, eq=False)
class Footprint:
    """Variances of the queries of one group as a linear function of the squared noises.

    The variance of a query is the sum over residual spaces j of noises[j] times the product over
    tables k of tables[k][j, column], where the column is that of the query in table k.

    Attributes
    ----------
    sets : for each table, the indices of its parts.
    tables : for each set of parts, an array of shape (spaces, combinations of queries of the
        parts).
    noises : current squared noise of each residual space, shape (spaces,), in counts^2.
    query_weights : weight of each query, shape (queries,), if there is a single table; None if all
        weights are 1.
    """

    sets: tuple[Parts, ...]
    tables: tuple[Array, ...]
    noises: Array
    query_weights: Array | None = None

    @cached_property
    def distinct(self) -> tuple[tuple[Array, Array], ...]:
        """Distinct columns of each table, and the summed weight of the queries that have a column.

        The value has one pair per table, of shapes (spaces, columns) and (columns,).  Columns of
        queries with weight 0 are left out.
        """
        out = []
        for table in self.tables:
            weights = np.ones(table.shape[1]) if self.query_weights is None else self.query_weights
            used = weights > 0
            out.append(_distinct(table[:, used], weights[used]))
        return tuple(out)

    @cached_property
    def extreme(self) -> tuple[Array, ...]:
        """Columns of each table that can have the largest variance, shapes (spaces, columns).

        For any noises, one of these columns has the largest variance.
        """
        return tuple(_extreme(columns) for columns, _ in self.distinct)

    def largest(self, noises: Array) -> tuple[float, Array]:
        """Return the largest variance of a query with positive weight, and its derivative.

        Parameters
        ----------
        noises : squared noise of each residual space, shape (spaces,), in counts^2.

        Returns
        -------
        variance : the largest variance, in counts^2.
        derivative : derivative of the variance of this query by ``noises``, shape (spaces,).
        """
        best, row = -math.inf, np.zeros(len(noises))
        for left, right in _slabs([(t, np.ones(t.shape[1])) for t in self.extreme]):
            values = (noises[:, None] * left[0]).T @ right[0]
            a, b = np.unravel_index(int(np.argmax(values)), values.shape)
            if values[a, b] > best:
                best, row = float(values[a, b]), left[0][:, a] * right[0][:, b]
        return best, row

    def power_sum(self, noises: Array, power: float, scale: float) -> tuple[float, Array]:
        """Return the weighted sum over queries of (variance / scale)^power, and its derivative.

        Parameters
        ----------
        noises : squared noise of each residual space, shape (spaces,), in counts^2.
        scale : divisor of all variances, in counts^2.

        Returns
        -------
        total : the weighted sum.
        slopes : derivative of the sum by ``noises``, multiplied by scale / power, shape (spaces,).
        """
        scaled = noises / scale
        if self.expands(power):
            exponents, coefficients, units = self.expansion(int(power))
            terms = coefficients * np.exp(exponents @ np.log(np.maximum(scaled * units, 1e-300)))
            return float(terms.sum()), (terms @ exponents) / scaled / power
        total, slopes = 0.0, np.zeros(len(noises))
        for (left, left_weight), (right, right_weight) in _slabs(self.distinct):
            values = (scaled[:, None] * left).T @ right
            # Rounding can make a variance of 0 negative, and its fractional power would be NaN.
            powers = np.maximum(values, 0.0) ** (power - 1.0)
            powers *= left_weight[:, None]
            powers *= right_weight[None, :]
            total += float(np.sum(powers * values))
            slopes += np.einsum("ja,aj->j", left, powers @ right.T)
        return total, slopes

    def expands(self, power: float) -> bool:
        """Return whether `power_sum` uses the multinomial `expansion` of variance^power.

        It is used for integer powers if it has few terms, or if it is cheaper than computing the
        variance of every query.
        """
        if power != int(power):
            return False
        terms = math.comb(len(self.noises) + int(power) - 1, int(power))
        points = [t.shape[1] for t, _ in self.distinct]
        return terms <= MAX_BATCHED_TERMS or (
            terms <= MAX_TERMS and terms * sum(points) < 20 * math.prod(points)
        )

    def expansion(self, power: int) -> tuple[Array, Array, Array]:
        """Return the weighted sum over queries of variance^power as a polynomial.

        By the multinomial theorem, the sum is a homogeneous polynomial in the variables
        units * noises.

        Returns
        -------
        exponents : exponents of each term, shape (terms, spaces).
        coefficients : coefficient of each term, shape (terms,).
        units : factors of the squared noises, shape (spaces,); 1 unless powers of a table would
            leave the range of doubles.
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
            for table, weight in self.distinct:
                # a row whose powers would leave the range of doubles is divided by its largest
                # entry
                largest = np.abs(table).max(axis=1)
                leaves_range = np.abs(np.log10(np.maximum(largest, 1e-300))) * power > MAX_EXPONENT
                table_units = np.where(leaves_range & (largest > 0.0), largest, 1.0)
                units, table = units * table_units, table / table_units[:, None]
                powers = table[None] ** np.arange(power + 1.0)[:, None, None]
                products = np.ones((len(exponents), table.shape[1]))
                for j in range(spaces):
                    products *= powers[exponents[:, j].astype(int), j]
                coefficients *= products @ weight
            self._expansions[power] = exponents, coefficients, units
        return self._expansions[power]

    @cached_property
    def _expansions(self) -> dict[int, tuple[Array, Array, Array]]:
        return {}

    def variance_chunks(self) -> Iterator[tuple[Array, Array]]:
        """Yield pairs (variances, weights) of arrays with equal shapes, for all weighted queries.

        A weight is the summed weight of the queries with this variance.  An array has at most a few
        million entries.
        """
        for (left, left_weight), (right, right_weight) in _slabs(self.distinct):
            yield (
                (self.noises[:, None] * left).T @ right,
                np.multiply.outer(left_weight, right_weight),
            )


def footprint(group_variance: GroupVariance, query_weights: Array | None = None) -> Footprint:
    """Return the variances of a group as a linear function of the squared noises.

    Parameters
    ----------
    group_variance : variances of the queries of the group.
    query_weights : weight of each query, shape (queries,); None if all are 1.

    Raises
    ------
    LimitExceeded : if a table would have more than `MAX_ENTRIES` entries.
    """
    noises = np.array([s.coefficient for s in group_variance.summands])
    # separate query weights are not a product over parts, so they need a single table for all parts
    sets = [tuple(range(len(group_variance.counts)))]
    if query_weights is None:
        sets = coupled_sets(
            len(group_variance.counts),
            [parts for s in group_variance.summands for parts, _ in s.arrays],
        )
    tables = []
    for part_set in sets:
        shape = tuple(group_variance.counts[p] for p in part_set)
        if len(noises) * math.prod(shape) > MAX_ENTRIES:
            raise LimitExceeded(
                f"This objective needs {len(noises)} numbers for each of {math.prod(shape):,} "
                f"queries of a group, but at most {MAX_ENTRIES:,} numbers are allowed. Use fewer "
                "queries, leave out query_weights, or choose the objective 'sum'."
            )
        table = np.ones((len(noises), *shape))
        for j, summand in enumerate(group_variance.summands):
            for parts, values in summand.arrays:
                if set(parts) <= set(part_set):
                    aligned_shape = [
                        values.shape[parts.index(p)] if p in parts else 1 for p in part_set
                    ]
                    table[j] *= values.reshape(aligned_shape)
        tables.append(table.reshape(len(noises), -1))
    if not tables:
        tables, sets = [np.ones((len(noises), 1))], [()]
    return Footprint(
        sets=tuple(sets), tables=tuple(tables), noises=noises, query_weights=query_weights
    )


Weighted = tuple[Array, Array]


def _slabs(tables: Sequence[Weighted]) -> Iterator[tuple[Weighted, Weighted]]:
    """Yield factors of all products that take one column of every table.

    Parameters
    ----------
    tables : pairs (columns, weights), of shapes (spaces, columns) and (columns,).

    Yields
    ------
    left, right : two pairs (columns, weights), with at most about `SLAB_ENTRIES` pairs of a left
        and a right column.  The elementwise product of every left column with every right column,
        over all yielded values, gives each product of one column per table exactly once.
    """
    (left, left_weight), others = tables[0], list(tables[1:])
    right, right_weight = np.ones((len(left), 1)), np.ones(1)
    while others and right.shape[1] * others[-1][0].shape[1] <= SLAB_ENTRIES // 16:
        table, weight = others.pop()
        right = np.einsum("ja,jb->jab", table, right).reshape(len(left), -1)
        right_weight = np.multiply.outer(weight, right_weight).ravel()
    # If the product of all tables except the first is too wide, the second table is multiplied by
    # one column of the first at a time.
    if others:
        for a in range(left.shape[1]):
            second, *tail = others
            multiplied = (left[:, a : a + 1] * second[0], left_weight[a] * second[1])
            yield from _slabs([multiplied, *tail, (right, right_weight)])
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


def _distinct(columns: Array, weights: Array) -> tuple[Array, Array]:
    """Return the columns without repetitions, and the summed weight of each distinct column.

    Columns that differ only by rounding are replaced by their weighted mean.
    """
    if columns.shape[1] <= 1:
        return columns, weights
    rows, _ = _first_copies(
        np.round(
            columns / np.maximum(np.abs(columns).max(axis=1, keepdims=True), 1e-300), EQUAL_DIGITS
        )
    )
    inverse = _column_classes(rows.tobytes(), len(rows))
    total = np.bincount(inverse, weights)
    mean = np.stack([np.bincount(inverse, weights * row) for row in columns]) / total
    return np.asarray(mean, dtype=float), np.asarray(total, dtype=float)


def _extreme(columns: Array) -> Array:
    """Return the columns with the largest weighted sum of entries for some weights of the rows.

    ``columns`` has shape (rows, columns), and the weights are nonnegative.  The result can contain
    other columns, too.
    """
    # Repeated and constant rows do not influence which column has the largest weighted sum.
    rows, index = _first_copies(columns)
    varying = index[np.ptp(rows, axis=1) > 0]
    if not len(varying):
        return columns[:, :1]
    return columns[:, _front(columns[varying].tobytes(), len(varying))]


def _first_copies(columns: Array) -> tuple[Array, Index]:
    """Return the distinct rows of a table, and the index of the first occurrence of each row."""
    first: dict[bytes, int] = {}
    for j, row in enumerate(columns):
        first.setdefault(row.tobytes(), j)
    index = np.array(list(first.values()))
    return columns[index], index


# The result is cached, because the same table occurs in many groups.
@lru_cache(maxsize=64)
def _column_classes(packed: bytes, rows: int) -> Index:
    """Return one number per column of a table; equal columns have equal numbers.

    The table is passed as its bytes ``packed`` and its number of rows, because arrays cannot be
    keys of a cache.
    """
    columns = np.frombuffer(packed).reshape(rows, -1)
    order = np.lexsort(columns[::-1])
    ordered = columns[:, order]
    new = np.concatenate([[False], (ordered[:, 1:] != ordered[:, :-1]).any(axis=0)])
    out = np.empty(len(order), dtype=np.int64)
    out[order] = np.cumsum(new)
    return out


@lru_cache(maxsize=64)
def _front(packed: bytes, rows: int) -> Index:
    """Return the indices of the columns of a table that are on its Pareto front.

    If the table has two rows, only the vertices of the convex hull are returned, because a weighted
    sum of the rows is largest at a vertex.  The table is passed as in `_column_classes`.
    """
    features = np.frombuffer(packed).reshape(rows, -1)
    front: Index = pareto_front(list(features))
    if rows == 2:
        front = front[_upper_hull(features[0][front], features[1][front])]
    return np.sort(front)


def _upper_hull(x: Array, y: Array) -> npt.NDArray[np.int64]:
    """Return the indices of the points (x, y) that are on their upper right convex hull.

    The points must be a Pareto front.
    """
    order = np.argsort(x, kind="stable")
    hull: list[int] = []
    for i in order:
        while len(hull) >= 2:
            a, b = hull[-2], hull[-1]
            if (x[b] - x[a]) * (y[i] - y[a]) >= (y[b] - y[a]) * (x[i] - x[a]):
                hull.pop()  # point b is on or below the line from a to i
            else:
                break
        hull.append(int(i))
    return np.array(hull)
