"""Closed-form variances of the queries of a plan.

A group of queries is a product of parts: a part is one query family on some attributes of the
group, and a query of the group takes one query q of every part.  The variance of a query is a sum
over the residual spaces B inside its attributes.  Each term is noise_B^2 times a product of
arrays, each over the queries of one part (or of a few parts that one strategy couples):

    part without attributes of B  (q . pi)^2
    part with attributes of B     q N C N^T q^T,  C the covariance of the residual coordinates
                                  at noise scale 1

`GroupVariance` stores these arrays and never lists the queries of a group: the sum over all
queries is a product of sums, the maximum needs only the Pareto front of every part, and the
variances of a range of queries are slices of the arrays.  `VarianceBuilder` computes the arrays
of a plan.

`Footprint` holds the same arrays without the noise, for optimizing the budget allocation:

    Var(q_1, ..., q_K) = sum over j of s_j  prod over k of X_k[j, q_k],

with s_j the squared noise of space j and one table X_k, shape (spaces, queries of its parts), for
every set of parts that no strategy couples to another set.  The variance is linear in s and, point
by point, in the columns of every table.  The largest variance therefore lies at vertices of the
convex hull of the columns, and equal columns are evaluated only once.
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


# entries of one intermediate array
SLAB_ENTRIES = 1 << 22
Parts = tuple[int, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class Summand:
    """One term of the variances of a group's queries, from the noise of one block.

    The term is a coefficient times a product of arrays.  Each array has one axis per part that it
    names, and along it one entry per query of the part.

    Attributes
    ----------
    coefficient : squared noise of the block, in counts^2, times factors that are equal for all
        queries of the group; 1 in `GroupVariance.unmeasured`.
    arrays : pairs (numbers of parts, array over the queries of these parts).
    axes : positions of the residual space's attributes in the group, in schema order; for jointly
        measured spaces, the positions of all their attributes.
    """

    coefficient: float
    arrays: tuple[tuple[Parts, Array], ...]
    axes: Axes = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class GroupVariance:
    """Variances of the queries of one group, in counts^2.

    Attributes
    ----------
    counts : number of queries of every part.
    summands : the terms of the variances.
    unmeasured : terms that are positive exactly for queries that the plan cannot answer.
    """

    counts: tuple[int, ...]
    summands: tuple[Summand, ...]
    unmeasured: tuple[Summand, ...] = ()
    # Sums and Pareto fronts of the arrays.  They do not depend on the coefficients, so the results
    # of `at_noise` share them.
    _cache: dict[str, Any] = field(init=False, default_factory=dict)

    def at_noise(self, noise: Sequence[float]) -> GroupVariance:
        """Return the variances if summand i has noise of standard deviation ``noise[i]``.

        ``noise`` is in counts.
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
        # a sum over products on disjoint parts is the product of the sums
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
        """Return what `largest` needs to evaluate only queries that can have the largest variance.

        Returns
        -------
        sets : sets of parts that share an array.
        keys : for every summand, the keys (parts, digest) of its arrays.
        fronts : for every set, a mapping from key to the array's values on the Pareto front of the
            set's queries.
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
        # All arrays are nonnegative.  If one query of a set has smaller entries than another in all
        # arrays of the set, its products are smaller, too, for any queries of the other sets.  The
        # maximum is therefore attained on the Pareto fronts.
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
        """Variances of queries ``start:stop``, in counts^2, shape (stop - start,).

        Queries are numbered with the last part varying fastest.
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
        """Variances of some queries in counts^2, infinite for queries that the plan cannot answer.

        Parameters
        ----------
        index : the queries: one range of query numbers per part, for all combinations, or one
            integer array per part, for single combinations (points).

        Returns
        -------
        Shape (len(range_1), ..., len(range_k)) for ranges and (points,) for arrays.
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
    """Split the queries ``start:stop`` of a group into pieces of bounded size.

    Parameters
    ----------
    counts : number of queries of every part; the last part varies fastest.

    Yields
    ------
    low, high : the queries of the piece.
    index : argument of `GroupVariance.at` that covers them: one range per part, full for every part
        but the first, or one integer array per part if full ranges would be too large.
    """
    if not counts:
        yield start, stop, ()
        return
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
        # a group may have more than 2^62 queries, whose positions do not fit int64
        dtype = object if math.prod(counts) >= 2**62 else np.int64
        remaining, index = np.arange(low, high, dtype=dtype), []
        for n in reversed(counts):
            remaining, position = np.divmod(remaining, n)
            index.append(position.astype(np.int64))
        yield low, high, tuple(reversed(index))


def index_window(index: tuple[Any, ...], counts: Sequence[int], low: int, high: int) -> slice:
    """Return the slice that selects queries ``low:high`` from a piece of `index_ranges`.

    The slice applies to the raveled result of `GroupVariance.at`.
    """
    if not index or not isinstance(index[0], range):
        return slice(0, high - low)
    offset = index[0].start * math.prod(counts[1:])
    return slice(low - offset, high - offset)


def _pick(array: Array, parts: Parts, index: tuple[Any, ...]) -> Array:
    """Return the entries of a summand's array at an index of `GroupVariance.at`.

    For ranges, the result has one axis per part of the group, of length 1 for parts that the array
    does not name.
    """
    if not isinstance(index[0], range):
        return np.asarray(array[tuple(index[p] for p in parts)])
    window = array[tuple(slice(index[p].start, index[p].stop) for p in parts)]
    shape = [1] * len(index)
    for p, n in zip(parts, window.shape, strict=True):
        shape[p] = n
    return window.reshape(shape)


def broadcast_along(values: Array, k: int, dimensions: int) -> Array:
    """Reshape a vector of length n to ``dimensions`` axes: n along axis k and 1 along all others."""
    shape = [1] * dimensions
    shape[k] = len(values)
    return values.reshape(shape)


def _broadcast_to_set(parts: Parts, array: Array, part_set: Parts, shape: tuple[int, ...]) -> Array:
    """Return the entries of an array over ``parts`` for all queries of a larger set of parts.

    ``shape`` holds the number of queries of every part of the set; the result is raveled.
    """
    aligned_shape = [array.shape[parts.index(p)] if p in parts else 1 for p in part_set]
    return np.broadcast_to(array.reshape(aligned_shape), shape).ravel()


def parts_outside(group: Group, axes: Axes) -> list[int]:
    """Return the numbers of the parts of a group that have none of the attributes ``axes``."""
    return [p for p, part in enumerate(group.parts) if not set(part.axes) & set(axes)]


def summand_without(
    coefficient: float,
    joint_parts: Parts,
    values: Array,
    other_parts: Sequence[int],
    arrays: Sequence[Array],
    axes: Axes,
) -> Summand:
    """Return a summand from one array over several parts and one array for each other part.

    Parameters
    ----------
    joint_parts, values : the numbers of the several parts, and the array over their queries.
        Without such parts, ``values`` is a single number that multiplies the first other array, or
        the coefficient if there is none.
    other_parts, arrays : the numbers of the other parts and their arrays.
    axes : see `Summand`.
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
    rows : one array of rows per factor, shapes (q_i, m_i).
    shape : shape of a product q as a tensor.
    sets, matrices : M is the Kronecker product of ``matrices``, each on one set of the tensor's
        axes; None is the identity.
    weights : divisors of the entries of q M, one axis per matrix; None for 1.

    Returns
    -------
    Shape (q_1, ..., q_k).
    """
    if (
        len(sets) == 1
        and matrices[0] is not None
        and prefers_forms([r.shape for r in rows], matrices[0].shape[1])
    ):
        M = matrices[0] if weights is None else matrices[0] / weights
        transposed = ungroup_axes(M.T, sets, shape, 1).reshape(M.shape[::-1])
        # a sum of terms of both signs may round to a negative number
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
        # weights multiply the measured rows, so they divide the reconstruction
        tensor = tensor if weights is None else tensor / weights
        squares = np.einsum("qr,qr->q", *(tensor.reshape(len(tensor), -1),) * 2)
        out[start : start + step] = squares.reshape(-1, *out.shape[1:])
    return out


def quadratic_forms(rows: Sequence[Array], matrix: Array) -> Array:
    """Return q C q^T for all Kronecker products q of one row per factor, shape (q_1, ..., q_k).

    ``rows`` have shapes (q_i, m_i); C is square of order m_1 ... m_k.

    >>> quadratic_forms([np.eye(2), np.ones((1, 1))], np.diag([3.0, 4.0]))
    array([[3.],
           [4.]])
    """
    if len(rows) == 1:
        return np.asarray(np.einsum("qa,qa->q", rows[0] @ matrix, rows[0]))
    # contracting the factor with fewest rows first leaves one matrix per row that is only as large
    # as the other factors; listing all products would multiply each by the full C
    first = min(range(len(rows)), key=lambda k: len(rows[k]))
    lengths = [r.shape[1] for r in rows]
    first_length, rest_length = lengths[first], math.prod(lengths) // lengths[first]
    # the two axes of the first factor come first
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
    rows : shapes (q_i, m_i) of the factors' rows.
    rank : number of columns of the matrix that every listed product would be multiplied by.
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
    """Return, for each span, the summed squared norms of the query components outside it.

    Parameters
    ----------
    rows : one array of rows per factor, shapes (q_i, m_i); the queries are the Kronecker products
        of one row of each.
    shape : shape of a product as a tensor.
    spans : pairs of an orthonormal basis and the axes on which it acts.
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
            # make rows of the axes of the span, so that one matrix product projects all of them
            other_axes = tuple(a for a in range(len(shape)) if a not in axes)
            axis_rows = group_axes(products, [other_axes, axes], 1).reshape(-1, len(span))
            squares[k] += float(np.sum((axis_rows - (axis_rows @ span) @ span.T) ** 2))
    return squares


def coupled_sets(count: int, links: Sequence[Parts]) -> list[Parts]:
    """Return the connected components of the parts 0 to count - 1.

    ``links`` are sets of parts; the parts of a link are in one component.
    """
    label = list(range(count))
    for parts in links:
        component = {label[p] for p in parts}
        label = [min(component) if x in component else x for x in label]
    return [tuple(p for p in range(count) if label[p] == k) for k in sorted(set(label))]


def pareto_front(features: Sequence[Array]) -> Any:
    """Return the indices of points on the Pareto front of ``features``, each of shape (points,).

    For every point there is one on the front that is at least as large in every feature.
    """
    remaining = _without_dominated(features)
    return remaining[_front_of_columns(np.stack([f[remaining] for f in features]))]


def _without_dominated(features: Sequence[Array]) -> Index:
    """Return the indices of the points, without most of those that another point dominates.

    Only for many points with two features are any left out.  The points are divided into bins by
    the first feature, and a point is left out if a point in a higher bin has at least the same
    second feature.  This takes much less time than sorting the points.
    """
    points = len(features[0])
    if len(features) != 2 or points < MIN_BINNED_POINTS:
        return np.arange(points)
    first, second = features
    bins = (first * ((FRONT_BINS - 1) / (first.max() or 1.0))).astype(np.int64)
    highest = np.full(FRONT_BINS + 1, -np.inf)
    np.maximum.at(highest, bins, second)
    # largest second feature in each bin and all higher ones
    highest_from = np.maximum.accumulate(highest[::-1])[::-1]
    return np.flatnonzero(second > highest_from[bins + 1])


def _front_of_columns(features: Array) -> Any:
    """Return the indices of columns on the Pareto front of ``features``, shape (features, points)."""
    if len(features) <= 2:
        # in descending order of the first feature, a column is dominated unless its last feature is
        # larger than that of all columns before it
        order = np.lexsort(-features[::-1])
        last = features[-1, order]
        best = np.maximum.accumulate(np.append(-np.inf, last[:-1]))
        return order[:1] if len(features) == 1 else order[last > best]
    order = np.argsort(-features.sum(axis=0), kind="stable")
    front = []
    while len(order):
        # no column dominates the one with the largest sum; drop the columns that it dominates
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
    """Return the variances of every group, computed once per class of equivalent groups.

    Groups are equivalent if they have equal queries on different attributes, and the blocks and
    centers of these attributes are equal.  With unions, complements or public tables, and for
    blocks that are not `LazyBlocks`, every group is a class of its own.  ``variances_of(i)``
    computes the variances of group i.
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

    The columns are attributes, family, number of queries, and rmse and largest standard error
    (max_std) in counts.  ``largest`` holds the largest variance of every group, in counts^2.
    """
    import pandas as pd

    rows = [(g.attributes, g.family_text, g.count) for g in groups]
    out = pd.DataFrame(rows, columns=["attributes", "family", "queries"])
    return out.assign(rmse=rmses, max_std=np.sqrt(largest))


# bins of `_without_dominated`; fewer points are sorted directly
FRONT_BINS, MIN_BINNED_POINTS = 4096, 10_000
# relative norm below which the component of a query in a residual space counts as zero
ROUNDING = 1e-9
# a residual space, as positions of its attributes in a group, and the block that measures it
MeasuredSpace = tuple[Axes, Block | None]


@dataclass(kw_only=True, eq=False)
class VarianceBuilder:
    """Builds the `GroupVariance` objects of one plan and caches arrays that groups share."""

    blocks: Mapping[Space, Block]
    split: Split
    schema: Schema
    _arrays: dict[Any, Array] = field(default_factory=dict)
    _measured: dict[Any, bool] = field(default_factory=dict)
    _reduced: dict[Any, tuple[Array, float]] = field(default_factory=dict)
    _groups: dict[Any, GroupVariance] = field(default_factory=dict)
    # Variances by form.  The form of a group describes its queries and the strategies of its
    # residual spaces, without names and noise.
    _forms: dict[Any, GroupVariance] = field(default_factory=dict)
    # one shared copy of every form, because forms take most of the memory of a plan
    _keys: dict[Any, Any] = field(default_factory=dict)

    def share_caches(self, other: VarianceBuilder) -> None:
        """Use the caches of another builder, whose blocks may differ only in their noise."""
        self._arrays, self._measured, self._reduced = other._arrays, other._measured, other._reduced
        self._forms, self._keys = other._forms, other._keys

    @cached_property
    def _block_of_space(self) -> Mapping[Space, Block]:
        """Mapping from residual space to the block that measures it."""
        plain = isinstance(self.blocks, LazyBlocks) and self.blocks.plain
        return (
            self.blocks
            if plain
            else {space: block for block in self.blocks.values() for space in block.spaces}
        )

    def group(self, group: Group) -> GroupVariance:
        """Return the variances of one group; groups that differ only in noise share the arrays."""
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
            with threads_for(1):  # for many small products threads cost more than they save
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
            # The coefficient of a coupled group without parts is the squared noise times a constant.
            # `at_noise` would replace it by the squared noise alone, so do not share its form.
            if group.parts or not coupled:
                self._forms[form] = self._groups[key]
        return self._groups[key]

    def partial_groups(self, workload: Workload) -> Index:
        """Return the sorted numbers of groups with a residual space that is not fully measured."""
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
        """Return True only if the plan measures all queries of a group.

        If False, queries may still all be measured; the variances decide, which are infinite for
        unmeasured queries.
        """
        form, _, products, coupled = self._form(group)
        if form not in self._measured:
            self._measured[form] = not coupled and not self._unmeasured_terms(group, products)
        return self._measured[form]

    def _form(
        self, group: Group
    ) -> tuple[Any, Mapping[Axes, Complement], list[MeasuredSpace], list[MeasuredSpace]]:
        """Return the form of a group and the residual spaces on its attributes.

        Returns
        -------
        form : cache key; groups with equal forms have variances that differ only in the noise.
        complements : mapping from a pair of axes to its tuned complement (a general center).
        products : the spaces in which the component of every query is a Kronecker product of
            components of its parts, with their blocks.
        coupled : the remaining spaces, with their blocks.
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
            # Strategies compare by identity.  The key holds a reference to each, so no new strategy
            # can take the identity of a deleted one.
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
        """Return the summands for spaces in which query components are Kronecker products."""
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
        """Return `GroupVariance.unmeasured` for the spaces whose query components are products.

        A term is positive for the queries whose component in its space is not measured.
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
        """Return `GroupVariance.summands` and `GroupVariance.unmeasured` for coupled spaces.

        Spaces are coupled if one strategy measures them jointly, or if a tuned complement moves
        coefficients between them.  The queries of all parts with attributes of the coupled spaces
        are listed; every other part contributes one array, as in `_products`.
        """
        ranks = group.ranks(self.schema)
        # the spaces of every block; an unmeasured space has an entry of its own
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
            # a complement depends on the queries on both attributes of its pair
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
                    summand_without(
                        block.noise**2, listed_parts, values, other_parts, outside, inside
                    )
                )
            if marks.any():
                present = [self._has_component(group, p, ()) for p in other_parts]
                if all(map(np.any, present)):
                    unmeasured.append(
                        summand_without(1.0, listed_parts, marks, other_parts, present, inside)
                    )
        return summands, unmeasured

    def _coupled_variances(
        self, group: Group, part_numbers: Parts, block: Block | None, spaces: Sequence[Axes]
    ) -> Array:
        """Return variances and marks of unmeasured queries in coupled spaces, without the noise.

        Parameters
        ----------
        part_numbers : numbers of the parts; the result has an entry for every combination of their
            queries.
        block : block that measures ``spaces``; None if they are unmeasured.

        Returns
        -------
        Shape (2, counts of these parts).  Entry 0 has the variances of the queries' components in
        ``spaces`` if the noise of the block is 1.  Entry 1 is 1 for queries with an unmeasured
        component and 0 for the others.
        """
        parts = tuple(group.parts[p] for p in part_numbers)
        axes_of_parts = {a for part in parts for a in part.axes}
        ranks = tuple(a for a in group.ranks(self.schema) if a in axes_of_parts)
        names, sizes = group.named(ranks), tuple(group.sizes[a] for a in ranks)
        centers, complements = self.split.centers_of(names), self.split.inside(names)
        # positions of the coordinates of the spaces: among those of all spaces on the attributes of
        # the parts, and among those of the spaces of the block
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
            # Pad the reconstruction with zeros for the coordinates of spaces outside the block: only
            # on the coordinates of all spaces are the query rows Kronecker products.
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
        """Return the positions of the coordinates of some spaces among all that a block estimates.

        One array per space; an empty list if the block measures a single space or is None.
        """
        if block is None or not block.union:
            return []
        size = dict(zip(block.attributes, block.sizes, strict=True))
        ends = np.cumsum(
            [0, *(math.prod(size[name] - 1 for name in space) for space in block.union)]
        )
        return [np.arange(ends[k], ends[k + 1]) for k in map(block.union.index, spaces)]

    def _has_component(self, group: Group, p: int, inside: Axes) -> Array:
        """Mark the queries of part p with a nonzero component in a residual space.

        Returns 1 for these queries and 0 for the others, shape (queries,).  ``inside`` are the
        positions in the part of the attributes of the space.
        """
        part = group.parts[p]
        centers = self.split.centers_of(group.named(part.axes))
        key = ("present", part.key, inside, tuple(digest(pi) for pi in centers))
        if key not in self._arrays:
            marks = []
            for _, chunk in part.family.chunks(part.sizes):
                norm = np.linalg.norm(residual_rows(chunk, part.sizes, inside, centers), axis=1)
                marks.append(norm > 1e-9 * np.linalg.norm(chunk, axis=1))
            self._arrays[key] = np.concatenate(marks).astype(float)
        return self._arrays[key]

    def _outside_squares(self, group: Group, p: int) -> Array:
        """Return (q . pi)^2 for all queries q of part p, with pi the product of the centers."""
        part = group.parts[p]
        centers = self.split.centers_of(group.named(part.axes))
        key = ("outside", part.key, tuple(digest(pi) for pi in centers))
        if key not in self._arrays:
            # `Family.dot` is faster than a loop over the query rows
            weights: Array = np.ones(1)
            for n, pi in zip(part.sizes, centers, strict=True):
                weights = np.kron(weights, center(n, pi)).astype(float)
            self._arrays[key] = part.family.dot(part.sizes, weights) ** 2
        return self._arrays[key]

    def _components(
        self, group: Group, axes: Axes, block: Block
    ) -> list[list[tuple[Axes, Strategy]]]:
        """Return the connected components of a block's factors, linked by parts of a group.

        A part links the factors with which it shares an attribute.  All factors form one component
        if the block has weights.
        """
        # renumber: axes of the group instead of axes of the block
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
        """Return |q M / weights|^2 for the queries of the parts with attributes of some factors.

        q is the component of a query in the residual space on the factors' axes, and M the
        Kronecker product of one matrix per factor.

        Parameters
        ----------
        matrix : "pinv" for the pseudoinverse of every factor, "identity", or the number of a factor
            for its `Strategy.unmeasured` (and the identity for all other factors).
        weights : `Block.weights` of the block, by which the entries of q M are divided; None for 1.

        Returns
        -------
        The parts that share an attribute with the factors, and an array over their queries.
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
                # with one part and one factor on one attribute, the quadratic form on cells has a
                # closed form for many families and needs no residual rows
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
        """Return the same array as `_inside_squares`, by listing the residual rows q of all parts.

        Parameters
        ----------
        inside_parts : pairs of a part and the positions of its attributes that are in the factors.
        names : attributes of every part.
        order : the axes in the order of the Kronecker product of residual rows.
        matrix, weights : as in `_inside_squares`.
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
        """Return True only if the factors measure all queries of a group; False proves nothing.

        The test is that the squared norm of the components outside the span, summed over all
        queries, is at most the tolerance for a single query.  It replaces the queries of a part by
        fewer rows with the same Gram matrix, which preserves sums of squares over products.
        """
        part_of = {part.axes: part for part in group.parts}
        unproven = {
            axes
            for axes, strategy in factors
            if not strategy.complete and not (axes in part_of and strategy.covers(part_of[axes]))
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
        """Reduce the residual rows of a part's queries to few rows with the same Gram matrix.

        Returns
        -------
        rows : the few rows, shape (at most coordinates, coordinates).
        smallest : smallest squared norm of a residual row that is not 0.
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
        """Return marks of the queries with an unmeasured component in the residual space ``axes``.

        The marks are a list of products of 0/1 arrays, each product a list of (parts, array) pairs;
        a query is marked if one of the products is 1.  ``block`` measures the space, or is None.
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
                # a query is unmeasured if its component outside the span of one factor is nonzero
                # and it has a nonzero component on all other parts
                _, residuals = self._inside_squares(group, factors, k)
                marks = (residuals > MAX_UNMEASURED_SHARE**2 * norms).astype(float)
                for (p,), mark in present:
                    if p in parts:
                        marks = marks * broadcast_along(mark, parts.index(p), len(parts))
                other_marks = [((p,), mark) for (p,), mark in present if p not in parts]
                out.append([(parts, marks), *other_marks])
        return out


# largest number of entries in one table of a `Footprint`
MAX_ENTRIES = 200_000_000
# largest number of terms in the expansion of a sum of variances to a power
MAX_TERMS = 20_000
# a table whose powers would exceed 10 to this exponent is rescaled before it is expanded
MAX_EXPONENT = 60.0
# with at most this many terms, a power is always expanded, because such groups are evaluated in
# one batch
MAX_BATCHED_TERMS = 500
# Decimal digits in which equal columns agree.  Equal variances that were computed in different
# coordinates differ at 1e-13.
EQUAL_DIGITS = 11


@dataclass(frozen=True, kw_only=True, eq=False)
class Footprint:
    """The variances of the queries of one group as a linear function of the squared noises.

    Attributes
    ----------
    sets : sets of parts, one per table; their queries are independent in every term.
    tables : X_k, shape (spaces, queries of the parts of set k); the variance of a query is
        sum over spaces j of noises[j] times the product over k of X_k[j, its column].
    noises : current squared noise of every space, shape (spaces,), in counts^2.
    query_weights : weights of single queries, shape (queries,), if one table covers all parts; else
        None.
    """

    sets: tuple[Parts, ...]
    tables: tuple[Array, ...]
    noises: Array
    query_weights: Array | None = None

    @cached_property
    def distinct(self) -> tuple[tuple[Array, Array], ...]:
        """For every table, its distinct columns and their summed query weights.

        Shapes (spaces, columns) and (columns,); columns of query weight 0 are omitted.
        """
        out = []
        for table in self.tables:
            weights = np.ones(table.shape[1]) if self.query_weights is None else self.query_weights
            used = weights > 0
            out.append(_distinct(table[:, used], weights[used]))
        return tuple(out)

    @cached_property
    def extreme(self) -> tuple[Array, ...]:
        """For every table, the columns that have the largest variance for some noises.

        Shape (spaces, columns) each.
        """
        return tuple(_extreme(columns) for columns, _ in self.distinct)

    def largest(self, noises: Array) -> tuple[float, Array]:
        """Return the largest variance of a query, and that query's variance per squared noise.

        Parameters
        ----------
        noises : squared noise of every space, shape (spaces,), in counts^2.

        Returns
        -------
        The variance in counts^2, and its derivative with respect to ``noises``, shape (spaces,).
        Queries of weight 0 are omitted.
        """
        best, row = -math.inf, np.zeros(len(noises))
        for left, right in _slabs([(t, np.ones(t.shape[1])) for t in self.extreme]):
            values = (noises[:, None] * left[0]).T @ right[0]
            a, b = np.unravel_index(int(np.argmax(values)), values.shape)
            if values[a, b] > best:
                best, row = float(values[a, b]), left[0][:, a] * right[0][:, b]
        return best, row

    def power_sum(self, noises: Array, power: float, scale: float) -> tuple[float, Array]:
        """Return the sum over queries of (variance / scale)^power, and its slopes.

        Each query counts with its weight.  The slopes, shape (spaces,), are the derivatives of the
        sum by the squared noises, times scale / power: the sums over queries of
        (variance / scale)^(power - 1) times the derivative of the query's variance.
        """
        scaled = noises / scale
        if self.expands(power):
            exponents, coefficients, units = self.expansion(int(power))
            terms = coefficients * np.exp(exponents @ np.log(np.maximum(scaled * units, 1e-300)))
            return float(terms.sum()), (terms @ exponents) / scaled / power
        total, slopes = 0.0, np.zeros(len(noises))
        for (left, left_weight), (right, right_weight) in _slabs(self.distinct):
            values = (scaled[:, None] * left).T @ right
            # a variance of 0 may round to a negative number, whose fractional power is NaN
            powers = np.maximum(values, 0.0) ** (power - 1.0)
            powers *= left_weight[:, None]
            powers *= right_weight[None, :]
            total += float(np.sum(powers * values))
            slopes += np.einsum("ja,aj->j", left, powers @ right.T)
        return total, slopes

    def expands(self, power: float) -> bool:
        """Return whether `power_sum` uses the multinomial `expansion` of variance^power.

        It does for integer powers if the expansion has few terms, or is cheaper than evaluating
        every query.
        """
        if power != int(power):
            return False
        terms = math.comb(len(self.noises) + int(power) - 1, int(power))
        points = [t.shape[1] for t, _ in self.distinct]
        return terms <= MAX_BATCHED_TERMS or (
            terms <= MAX_TERMS and terms * sum(points) < 20 * math.prod(points)
        )

    def expansion(self, power: int) -> tuple[Array, Array, Array]:
        """Expand the weighted sum over queries of variance^power by the multinomial theorem.

        The sum is a homogeneous polynomial in the products of squared noises and units.  Every
        coefficient is a product of moments of the tables, which are divided by the units.

        Returns
        -------
        exponents : shape (terms, spaces).
        coefficients : shape (terms,).
        units : shape (spaces,); 1 unless powers of a table would leave the range of doubles.
        """
        if power not in self._expansions:
            spaces = len(self.noises)
            exponents = _exponents(spaces, power)
            # multinomial coefficients by log-gamma, as factorials of high powers overflow
            coefficients = np.exp(
                scipy.special.gammaln(power + 1.0)
                - scipy.special.gammaln(exponents + 1.0).sum(axis=1)
            )
            units = np.ones(spaces)
            for table, weight in self.distinct:
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
        """Yield arrays of variances, and of the total weight of the queries that have each of them.

        Both arrays have the same shape.  Together the pairs cover all queries of positive weight;
        each array has at most a few million entries.
        """
        for (left, left_weight), (right, right_weight) in _slabs(self.distinct):
            yield (
                (self.noises[:, None] * left).T @ right,
                np.multiply.outer(left_weight, right_weight),
            )


def footprint(group_variance: GroupVariance, query_weights: Array | None = None) -> Footprint:
    """Return the variances of a group as a footprint.

    Parameters
    ----------
    group_variance : the variances.
    query_weights : weights of single queries, shape (queries,), or None.

    Raises
    ------
    LimitExceeded : a table would have more than `MAX_ENTRIES` entries.
    """
    noises = np.array([s.coefficient for s in group_variance.summands])
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
                f"A group has {math.prod(shape):,} queries that must be evaluated one by one for"
                f" this objective, with {len(noises)} numbers each; at most {MAX_ENTRIES:,} numbers"
                " are allowed. Use fewer queries, leave out query_weights, or choose the"
                " objective 'sum'."
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
    """Combine tables into two, in slabs of bounded size.

    Parameters
    ----------
    tables : (columns, weights) pairs.

    Yields
    ------
    Two (columns, weights) pairs, left and right.  The elementwise products of a left and a right
    column, over all yielded pairs, are the products of one column from every table.
    """
    (left, left_weight), others = tables[0], list(tables[1:])
    right, right_weight = np.ones((len(left), 1)), np.ones(1)
    while others and right.shape[1] * others[-1][0].shape[1] <= SLAB_ENTRIES // 16:
        table, weight = others.pop()
        right = np.einsum("ja,jb->jab", table, right).reshape(len(left), -1)
        right_weight = np.multiply.outer(weight, right_weight).ravel()
    # the product of all tables but the first is too wide: multiply the next table by one column of
    # the first at a time
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
    """Return the exponents of all monomials of degree ``power`` in ``spaces`` variables.

    Shape (monomials, spaces).
    """
    monomials = itertools.combinations_with_replacement(range(spaces), power)
    return np.array([np.bincount(m, minlength=spaces) for m in monomials], dtype=float)


def _distinct(columns: Array, weights: Array) -> tuple[Array, Array]:
    """Merge columns that differ only by rounding; return their means and their summed weights."""
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
    """Return the columns whose weighted sum can be the largest, for any nonnegative row weights.

    ``columns`` has shape (rows, columns).  Other columns may be returned too.
    """
    # repeated and constant rows do not change which column has the largest weighted sum
    rows, index = _first_copies(columns)
    varying = index[np.ptp(rows, axis=1) > 0]
    if not len(varying):
        return columns[:, :1]
    return columns[:, _front(columns[varying].tobytes(), len(varying))]


def _first_copies(columns: Array) -> tuple[Array, Index]:
    """Return the distinct rows of a table in order of first occurrence, and their row numbers."""
    first: dict[bytes, int] = {}
    for j, row in enumerate(columns):
        first.setdefault(row.tobytes(), j)
    index = np.array(list(first.values()))
    return columns[index], index


# cached because the same table occurs in many groups
@lru_cache(maxsize=64)
def _column_classes(packed: bytes, rows: int) -> Index:
    """Return for every column of a table the number of its class of equal columns.

    The table is given by its bytes, ``packed``, and its number of rows, because arrays cannot be
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
    """Return the indices of the columns of a table on its Pareto front.

    For two rows, only the vertices of the convex hull are returned, because a weighted sum of the
    rows is largest at a vertex.  The table is given as in `_column_classes`.
    """
    features = np.frombuffer(packed).reshape(rows, -1)
    front: Index = pareto_front(list(features))
    if rows == 2:
        front = front[_upper_hull(features[0][front], features[1][front])]
    return np.sort(front)


def _upper_hull(x: Array, y: Array) -> npt.NDArray[np.int64]:
    """Return the indices of the points (x, y) of a Pareto front on its upper right hull."""
    order = np.argsort(x, kind="stable")
    hull: list[int] = []
    for i in order:
        while len(hull) >= 2:
            a, b = hull[-2], hull[-1]
            if (x[b] - x[a]) * (y[i] - y[a]) >= (y[b] - y[a]) * (x[i] - x[a]):
                hull.pop()  # b lies on or below the line from a to i
            else:
                break
        hull.append(int(i))
    return np.array(hull)
