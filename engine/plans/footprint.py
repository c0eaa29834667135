"""Footprints: how the noise of every residual space reaches the queries of a group, with the noise left open.

The variance of a query is sum over the residual spaces j inside the group of s_j times a product of tables,

    Var(q_1, ..., q_K) = sum over j of s_j  prod over k of X_k[j, q_k],

with s_j the squared noise of space j and one table X_k, shape (spaces, queries of its parts), for every set of parts
that no strategy couples to another set.  It is linear in s and, point by point, in the columns of every table.  So the
largest variance lies at vertices of the convex hull of the columns, and equal columns need to be looked at once.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt
import scipy

from engine.arrays import Array, Index
from engine.errors import LimitExceeded
from engine.plans.group_variance import SLAB, GroupVariance, Parts, coupled_sets, pareto

MAX_ENTRIES = 200_000_000  # of one table
MAX_TERMS = 20_000  # of an expanded power
FARTHEST = 60.0  # decimal exponent of powers of a table beyond which it is taken in units of its own
FEW_TERMS = 500  # so few are taken for all groups at once
DIGITS = 11  # to which equal variances agree: solved in other coordinates, those of a marginal differ at 1e-13


@dataclass(frozen=True, kw_only=True, eq=False)
class Footprint:
    """The queries of one group in factored form.

    Attributes
    ----------
    sets : parts that every table runs over.
    tables : X_k, shape (spaces, queries of the parts of set k).
    noises : the present squared noise of every space, shape (spaces,), in counts^2.
    own : weights of single queries, shape (queries,), when there is one table for the whole group; else None.
    """

    sets: tuple[Parts, ...]
    tables: tuple[Array, ...]
    noises: Array
    own: Array | None = None

    @cached_property
    def distinct(self) -> tuple[tuple[Array, Array], ...]:
        """For every table its distinct columns and their total weight. Shapes (spaces, columns) and (columns,)."""
        out = []
        for table in self.tables:
            weights = np.ones(table.shape[1]) if self.own is None else self.own
            used = weights > 0
            out.append(_distinct(table[:, used], weights[used]))
        return tuple(out)

    @cached_property
    def extreme(self) -> tuple[Array, ...]:
        """For every table the columns among which the largest variance lies, whatever the noises.

        Shapes (spaces, columns).
        """
        return tuple(_extreme(columns) for columns, _ in self.distinct)

    def largest(self, noises: Array) -> tuple[float, Array]:
        """Return the largest variance of a query of positive weight, and its row, shape (spaces,)."""
        best, row = -math.inf, np.zeros(len(noises))
        for left, right in _slabs([(t, np.ones(t.shape[1])) for t in self.extreme]):
            values = (noises[:, None] * left[0]).T @ right[0]
            a, b = np.unravel_index(int(np.argmax(values)), values.shape)
            if values[a, b] > best:
                best, row = float(values[a, b]), left[0][:, a] * right[0][:, b]
        return best, row

    def power_sum(self, noises: Array, power: float, scale: float) -> tuple[float, Array]:
        """Return the sum of weight times (variance / scale)^power, and the sums of (variance / scale)^(power - 1) X_j.

        The second has shape (spaces,): it is the derivative by the noises times scale / power.
        """
        at = noises / scale
        if self.expands(power):
            exponents, coefficients, units = self.expansion(int(power))
            terms = coefficients * np.exp(exponents @ np.log(np.maximum(at * units, 1e-300)))
            return float(terms.sum()), (terms @ exponents) / at / power
        total, slopes = 0.0, np.zeros(len(noises))
        for (left, left_weight), (right, right_weight) in _slabs(self.distinct):
            values = (at[:, None] * left).T @ right
            # a variance of 0 may come out a hair below it, where a broken power is no number
            pull = np.maximum(values, 0.0) ** (power - 1.0)
            pull *= left_weight[:, None]
            pull *= right_weight[None, :]
            total += float(np.sum(pull * values))
            slopes += np.einsum("ja,aj->j", left, pull @ right.T)
        return total, slopes

    def expands(self, power: float) -> bool:
        """Return whether the power of the sum over spaces is cheaper expanded than query by query."""
        if power != int(power):
            return False
        terms = math.comb(len(self.noises) + int(power) - 1, int(power))
        points = [t.shape[1] for t, _ in self.distinct]
        return terms <= FEW_TERMS or (terms <= MAX_TERMS and terms * sum(points) < 20 * math.prod(points))

    def expansion(self, power: int) -> tuple[Array, Array, Array]:
        """Return exponents, shape (terms, spaces), and coefficients of the sum of weight times variance^power.

        It is a homogeneous polynomial in the noises times units, shape (spaces,), and every coefficient a product of
        moments of the tables over the units.  A unit is 1 unless powers of the table would leave the range of doubles.
        """
        if power not in self._expansions:
            spaces = len(self.noises)
            exponents = _exponents(spaces, power)
            # multinomial coefficients by log-gamma, as factorials of high powers overflow
            coefficients = np.exp(
                scipy.special.gammaln(power + 1.0) - scipy.special.gammaln(exponents + 1.0).sum(axis=1)
            )
            units = np.ones(spaces)
            for table, weight in self.distinct:
                largest = np.abs(table).max(axis=1)
                far = np.abs(np.log10(np.maximum(largest, 1e-300))) * power > FARTHEST
                own = np.where(far & (largest > 0.0), largest, 1.0)
                units, table = units * own, table / own[:, None]
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

    def blocks(self) -> Iterator[tuple[Array, Array]]:
        """Yield (variances, number of queries that have them) over all queries, a few million at a time.

        Both have one shape.
        """
        for (left, left_weight), (right, right_weight) in _slabs(self.distinct):
            yield (self.noises[:, None] * left).T @ right, np.multiply.outer(left_weight, right_weight)


def footprint(found: GroupVariance, own: Array | None = None) -> Footprint:
    """Return the variances of a group as a footprint.

    ``own`` holds weights of single queries, shape (queries,).
    """
    noises = np.array([s.coefficient for s in found.summands])
    sets = [tuple(range(len(found.counts)))]
    if own is None:
        sets = coupled_sets(len(found.counts), [parts for s in found.summands for parts, _ in s.arrays])
    tables = []
    for together in sets:
        shape = tuple(found.counts[p] for p in together)
        if len(noises) * math.prod(shape) > MAX_ENTRIES:
            raise LimitExceeded(
                f"A group couples {math.prod(shape):,} queries, too many to look at one by one for this objective. "
                "Ask fewer queries, leave out the weights of single queries, or choose the objective 'sum'."
            )
        table = np.ones((len(noises), *shape))
        for j, summand in enumerate(found.summands):
            for parts, values in summand.arrays:
                if set(parts) <= set(together):
                    own_shape = [values.shape[parts.index(p)] if p in parts else 1 for p in together]
                    table[j] *= values.reshape(own_shape)
        tables.append(table.reshape(len(noises), -1))
    if not tables:
        tables, sets = [np.ones((len(noises), 1))], [()]
    return Footprint(sets=tuple(sets), tables=tuple(tables), noises=noises, own=own)


Weighted = tuple[Array, Array]


def _slabs(tables: Sequence[Weighted]) -> Iterator[tuple[Weighted, Weighted]]:
    """Yield pairs of (columns, weights): stretches of some tables' product beside the product of the others."""
    (left, left_weight), others = tables[0], list(tables[1:])
    right, right_weight = np.ones((len(left), 1)), np.ones(1)
    while others and right.shape[1] * others[-1][0].shape[1] <= SLAB // 16:
        table, weight = others.pop()
        right = np.einsum("ja,jb->jab", table, right).reshape(len(left), -1)
        right_weight = np.multiply.outer(weight, right_weight).ravel()
    if others:  # the product of all but the first would be too wide: take it column by column
        for a in range(left.shape[1]):
            head, *tail = others
            narrowed = (left[:, a : a + 1] * head[0], left_weight[a] * head[1])
            yield from _slabs([narrowed, *tail, (right, right_weight)])
        return
    step = max(1, SLAB // right.shape[1])
    for start in range(0, left.shape[1], step):
        yield (left[:, start : start + step], left_weight[start : start + step]), (right, right_weight)


@lru_cache(maxsize=32)
def _exponents(spaces: int, power: int) -> Array:
    """Return all ways to write the power as a sum over spaces, shape (ways, spaces)."""
    chosen = itertools.combinations_with_replacement(range(spaces), power)
    return np.array([np.bincount(c, minlength=spaces) for c in chosen], dtype=float)


def _distinct(columns: Array, weights: Array) -> tuple[Array, Array]:
    """Return columns that differ by more than rounding, each the mean of those it stands for, and their weights."""
    if columns.shape[1] <= 1:
        return columns, weights
    rows, _ = _unlike(np.round(columns / np.maximum(np.abs(columns).max(axis=1, keepdims=True), 1e-300), DIGITS))
    inverse = _alike(rows.tobytes(), len(rows))
    total = np.bincount(inverse, weights)
    mean = np.stack([np.bincount(inverse, weights * row) for row in columns]) / total
    return np.asarray(mean, dtype=float), np.asarray(total, dtype=float)


def _extreme(columns: Array) -> Array:
    """Return the columns that can be largest under some nonnegative weights of the rows."""
    rows, index = _unlike(columns)
    varying = index[np.ptp(rows, axis=1) > 0]
    if not len(varying):
        return columns[:, :1]
    return columns[:, _front(columns[varying].tobytes(), len(varying))]


def _unlike(columns: Array) -> tuple[Array, Index]:
    """Return the rows that are not copies of an earlier one, and their numbers."""
    first: dict[bytes, int] = {}
    for j, row in enumerate(columns):
        first.setdefault(row.tobytes(), j)
    index = np.array(list(first.values()))
    return columns[index], index


@lru_cache(maxsize=64)  # attributes appear in many groups
def _alike(packed: bytes, rows: int) -> Index:
    """Return for every column the number of the distinct column that it equals."""
    columns = np.frombuffer(packed).reshape(rows, -1)
    order = np.lexsort(columns[::-1])
    ordered = columns[:, order]
    new = np.concatenate([[False], (ordered[:, 1:] != ordered[:, :-1]).any(axis=0)])
    out = np.empty(len(order), dtype=np.int64)
    out[order] = np.cumsum(new)
    return out


@lru_cache(maxsize=64)
def _front(packed: bytes, rows: int) -> Index:
    """Return the columns that are not below others; of two rows, the vertices of the hull."""
    features = np.frombuffer(packed).reshape(rows, -1)
    kept: Index = pareto(features)
    if rows == 2:
        kept = kept[_upper_hull(features[0][kept], features[1][kept])]
    return np.sort(kept)


def _upper_hull(x: Array, y: Array) -> npt.NDArray[np.int64]:
    """Return which points of a Pareto front are vertices of its upper right hull."""
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
