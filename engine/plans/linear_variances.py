"""Variances of all queries of one group as a linear function of squared noises.

A group is a product of query families (`Group.parts`), and a query of the group is a product of one
query q_k per family.  Optimizing the budget allocation needs its variance for many noises:

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
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import scipy

from engine._arrays import Array, Index
from engine.errors import LimitExceeded
from engine.plans.group_variance import FamilyIndices, GroupVariance, connected_components
from engine.plans.kronecker_rows import SLAB_ENTRIES
from engine.plans.pareto_front import pareto_front, upper_hull

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
            raise LimitExceeded(
                f"This objective needs a table of {len(noises)} x {math.prod(shape):,} numbers "
                f"for the queries of one group, but at most {MAX_ENTRIES:,} are allowed. "
                "Use fewer queries, leave out query_weights, or choose the objective 'sum'."
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
