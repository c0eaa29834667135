"""Decomposition of a workload into one Gram matrix per residual space, as Kronecker sums.

A residual space belongs to a set B of attributes and holds the part of the table on B that no
smaller table determines.  Every attribute i has a center pi_i, a vector with sum 1.  A query q on a
set A of attributes is the sum of one component for every subset B of A.  Without complements (tuned
splits of pairs), the component for B is q multiplied by (I - pi_i 1^T) for every attribute i in B,
and by pi_i 1^T for every other attribute.

The Gram matrices are stored as sums of Kronecker products.  To the Gram of B, a part (query family)
of a product group contributes its residual Gram on its attributes inside B.  A part without
attributes in B contributes a number: its total square, the sum of the squared coefficients of its
queries on the total.  Terms of such a sum that differ in one factor only are added up.  If one term
remains, each of its factors is optimised alone: the product of their optimal strategies is optimal.
Residual spaces are collected as integer arrays and grouped into equivalence classes, so that a
workload with many spaces computes each distinct Gram once.

Notation
--------
basis N_i      orthonormal basis of the vectors with sum 0, shape (n_i, n_i - 1): the cosine vectors
lift L_i       N_i^T (I - pi_i 1^T), shape (n_i - 1, n_i): takes a table to its residual coordinates
residual row   q N_i, shape (n_i - 1,): coefficients of a query on the residual coordinates
residual Gram  sum of (residual row)^T (residual row) over the queries, in counts^2

Source: QuerySmasher, section 6.2 (equation 3); the cosine basis makes reversing an attribute a
change of signs.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import math
import operator
from collections.abc import Callable, Hashable, ItemsView, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import scipy

from engine._arrays import Array, Index, unique_rows
from engine._threads import threads_for
from engine._values import cached_on_value
from engine.residuals.basis import (
    UNIFORM,
    Axes,
    Complement,
    Space,
    Split,
    basis,
    center,
    digest,
    residual_rows,
)
from engine.residuals.interval_solver import (
    IntervalGram,
    IntervalMatrix,
    gram_product,
    total_square,
)
from engine.residuals.level_solver import LevelGram, LevelMatrix
from engine.residuals.operators import CosineMatrix, is_wide
from engine.residuals.window_solver import WindowGram
from engine.workload import Circular, Group, Part, Schema, Width, Workload, joint_part, subsets
from engine.workload.families import Affine, Intervals


@dataclass(frozen=True, kw_only=True, eq=False)
class GroupContribution:
    """Groups of queries that are equal up to attribute names, with their shared decomposition.

    Attributes
    ----------
    numbers : positions of the groups in the workload, ascending, shape (groups,).
    places : positions of the attributes of every group in the schema, ascending, shape (groups,
        attributes).
    weights : weights of the groups, shape (groups,).
    pattern : what a group of weight 1 adds to the Grams of residual spaces, one tuple
        (positions, index, coefficient) per space.  The positions are those of the space's
        attributes in the group.  The group adds the coefficient times the Kronecker product with
        this index.
    """

    numbers: Index
    places: Index
    weights: Array
    pattern: Sequence[tuple[Axes, int, float]]


@dataclass(frozen=True, kw_only=True, eq=False)
class QueriedSpaces:
    """All residual spaces that have the same number of attributes, in equivalence classes.

    Spaces are ordered by the first group with queries on them.  Spaces of a class have the same
    Gram, and their attributes are of the same classes.

    Attributes
    ----------
    places : positions of the attributes of every space in the schema, shape (spaces, attributes).
    kinds : index of the equivalence class of every space, shape (spaces,).
    coefficients : for every class, its Gram as a mapping from the index of a Kronecker product to
        its coefficient, a weighted sum over groups.
    sort_keys : one sort key per class, shape (classes,).  Classes are sorted by the first group
        with queries on them, and by the order of the spaces within this group.  Keys of classes
        with different numbers of attributes can be compared.
    """

    places: Index
    kinds: Index
    coefficients: list[dict[int, float]]
    sort_keys: Index


def queried_spaces(
    contributions: Sequence[GroupContribution],
    attribute_classes: Index,
    exact: Sequence[Sequence[int]] = (),
) -> list[QueriedSpaces]:
    """Return the residual spaces with queries, one `QueriedSpaces` per number of attributes.

    Coefficients are added up in the order of groups, so that sums have reproducible last digits.

    Parameters
    ----------
    contributions : the decompositions of all groups.
    attribute_classes : index of the equivalence class of every attribute, shape (attributes,).
    exact : for every table that is public, the positions of its attributes in the schema; residual
        spaces inside such a table are left out.

    >>> one = GroupContribution(
    ...     numbers=np.array([0, 1]),
    ...     places=np.array([[0, 1], [1, 2]]),
    ...     weights=np.ones(2),
    ...     pattern=[((), 0, 4.0), ((0,), 1, 2.0), ((1,), 1, 2.0)],
    ... )
    >>> total, single = queried_spaces([one], np.array([0, 0, 0]))
    >>> total.coefficients, single.places.tolist(), single.kinds.tolist(), single.coefficients
    ([{0: 8.0}], [[0], [1], [2]], [0, 1, 0], [{1: 2.0}, {1: 4.0}])
    """
    longest_pattern = max((len(groups.pattern) for groups in contributions), default=1)
    # contributions with equal spaces in their patterns are processed together
    by_positions: dict[tuple[int, tuple[Axes, ...]], list[GroupContribution]] = {}
    for groups in contributions:
        positions = tuple(positions for positions, *_ in groups.pattern)
        by_positions.setdefault((groups.places.shape[1], positions), []).append(groups)
    by_size: dict[int, list[tuple[Index, Index, Index, Array]]] = {}
    for (_, spaces), members in by_positions.items():
        counts = [len(groups.numbers) for groups in members]
        numbers = np.concatenate([groups.numbers for groups in members])
        all_places = np.concatenate([groups.places for groups in members])
        group_weights = np.concatenate([groups.weights for groups in members])
        # index of a Kronecker product and coefficient, shape (members, spaces)
        terms = np.array([[term for _, term, _ in g.pattern] for g in members], dtype=np.int64)
        coefficients = np.array([[c for *_, c in g.pattern] for g in members], dtype=float)
        for size in sorted(set(map(len, spaces))):
            # One entry per group and space, group after group.  The sort key is by group, and
            # within a group by the index in ``pattern``.
            ranks = np.array([rank for rank, space in enumerate(spaces) if len(space) == size])
            columns = np.array([spaces[rank] for rank in ranks], dtype=np.int64).ravel()
            order = (numbers[:, None] * longest_pattern + ranks).ravel()
            places = all_places[:, columns].reshape(len(order), size)
            weights = np.repeat(coefficients[:, ranks], counts, axis=0)
            weights = (group_weights[:, None] * weights).ravel()
            products = np.repeat(terms[:, ranks], counts, axis=0).ravel()
            for exact_axes in exact:
                remaining = ~np.isin(places, exact_axes).all(axis=1)
                order, places = order[remaining], places[remaining]
                weights, products = weights[remaining], products[remaining]
            if len(order):
                by_size.setdefault(size, []).append((order, places, products, weights))
    return [_classify_spaces(by_size[k], attribute_classes) for k in sorted(by_size)]


def _sorting_permutation(keys: Index) -> Index:
    """Return the permutation that sorts distinct integers, which are 0 or more, shape (n,)."""
    largest = int(keys.max())
    if largest > 8 * len(keys) + 1_000:
        return np.argsort(keys)
    # with few possible keys, an array with one entry per key is faster than sorting
    entry_of_key = np.full(largest + 1, -1)
    entry_of_key[keys] = np.arange(len(keys))
    return entry_of_key[entry_of_key >= 0]


def _classify_spaces(
    chunks: Sequence[tuple[Index, Index, Index, Array]], attribute_classes: Index
) -> QueriedSpaces:
    """Merge entries of equal residual spaces, and sort the spaces into equivalence classes.

    An entry is one Kronecker product that one group adds to the Gram of one space.  A chunk holds
    four arrays with one row per entry: the sort key, the positions of the space's attributes, the
    index of the product, and the coefficient of the product.
    """
    keys, places, products, coefficients = (
        np.concatenate(columns) for columns in zip(*chunks, strict=True)
    )
    if (keys[1:] < keys[:-1]).any():
        order = _sorting_permutation(keys)
        keys, places = keys[order], places[order]
        products, coefficients = products[order], coefficients[order]
    # Distinct spaces, in the order of their first entries.  The second argsort inverts the
    # permutation ``by_entry``.
    first_entries, space = unique_rows(places)
    by_entry = np.argsort(first_entries, kind="stable")
    first_entries, space = first_entries[by_entry], np.argsort(by_entry, kind="stable")[space]
    # distinct (space, product) pairs, sorted; coefficients are added up in the order of the groups
    pair_entries, pair = unique_rows(np.column_stack([space, products]))
    sums = np.bincount(pair, coefficients, minlength=len(pair_entries))
    _, value = np.unique(sums, return_inverse=True)
    _, term_class = unique_rows(np.column_stack([products[pair_entries], value]))
    counts = np.bincount(space[pair_entries], minlength=len(first_entries))
    starts = np.cumsum(counts) - counts
    # Two spaces are equivalent if their attributes are equivalent and their lists of terms
    # (product, coefficient) are equal.  Round r divides the classes by term r of every space.
    _, kind = unique_rows(attribute_classes[places[first_entries]])
    for r in range(int(counts.max(initial=0))):
        if int(kind.max()) + 1 == len(kind):  # every class has one space
            break
        has_term = counts > r
        next_term = np.zeros(len(first_entries), dtype=np.int64)
        next_term[has_term] = 1 + term_class[starts[has_term] + r]
        _, kind = unique_rows(np.column_stack([kind, next_term]))
    # classes are numbered in the order of their first spaces
    examples, kind = unique_rows(kind[:, None])
    by_space = np.argsort(examples, kind="stable")
    examples, kind = examples[by_space], np.argsort(by_space, kind="stable")[kind]
    class_coefficients = []
    for k in examples.tolist():
        pairs = np.arange(starts[k], starts[k] + counts[k])
        pairs = pairs[np.argsort(keys[pair_entries[pairs]], kind="stable")]
        class_coefficients.append(
            dict(zip(products[pair_entries[pairs]].tolist(), sums[pairs].tolist(), strict=True))
        )
    return QueriedSpaces(
        places=places[first_entries],
        kinds=kind,
        coefficients=class_coefficients,
        sort_keys=keys[first_entries[examples]],
    )


# The sum of the squared coefficients of queries on the total counts as zero below this share of the
# trace of the queries' Gram, because it consists of rounding errors.
ROUNDING = 1e-28
# residual Grams of interval queries on at least this number of cells are computed at the first
# access
MIN_DEFERRED_CELLS = 100
# two Grams count as not proportional if their quadratic forms differ by more than this relative
# error
PROPORTIONAL_TOLERANCE = 1e-6
# forecasts do not compute the Gram of a product factor if it takes more multiplications than this
MAX_FORECAST_PRODUCTS = 2e6
# forecasts do not multiply interval queries by the center if the product has no closed form and
# there are more queries than this
MAX_FORECAST_QUERIES = 200_000
# for forecasts: seconds per entry of query rows, and floating-point operations per second
SECONDS_PER_ROW_ENTRY, PRODUCT_FLOPS = 1e-8, 2e10
# Forecasts count the symmetries of a Gram on an example: the Gram of the same query family on fewer
# cells.  This is the number of cells of the example's smallest attribute.
MIN_EXAMPLE_CELLS = 6
# a residual Gram counts as zero if its trace is below this share of the trace of the queries' Gram
MIN_TRACE_SHARE = 1e-13


# Kronecker product of residual Grams: for every factor, its axes in the space and its index in
# `Decomposition.factors`
Factors = tuple[tuple[Axes, int], ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class Factor:
    """Residual Gram: Gram matrix of queries in the residual coordinates of some attributes.

    Attributes
    ----------
    sizes : domain sizes of the attributes.
    matrix : the Gram.  If ``low_rank``, rows R with R^T R = Gram; R has fewer rows than columns.
    low_rank : whether ``matrix`` holds rows in place of the Gram.
    nested : whether the queries count nested sets of cells of two attributes: all sums or absolute
        differences of cell numbers up to a bound.  Forecasts expect short searches for them.
    """

    sizes: tuple[int, ...]
    matrix: Array
    low_rank: bool = False
    nested: bool = False

    @property
    def dimension(self) -> int:
        """Number of residual coordinates."""
        return int(self.matrix.shape[1])

    def dense(self) -> Array:
        """Return the residual Gram, shape (dimension, dimension)."""
        return self.matrix.T @ self.matrix if self.low_rank else self.matrix

    @property
    def table(self) -> Array:
        """``matrix`` with its columns as a table: shape (rows, n_1 - 1, ..., n_k - 1)."""
        return self.matrix.reshape(-1, *(n - 1 for n in self.sizes))

    @cached_property
    def trace(self) -> float:
        """Trace of the residual Gram, in counts^2."""
        return float(np.sum(self.matrix**2) if self.low_rank else np.trace(self.matrix))

    @property
    def n_rows(self) -> int:
        """Number of rows of ``matrix``."""
        return len(self.matrix)

    @property
    def rank(self) -> int:
        """Largest rank that the Gram can have."""
        return min(self.dimension, self.n_rows)

    @property
    def example(self) -> Factor | None:
        """A Gram with the same symmetries, for forecasts; None if the symmetries are not known."""
        return self

    @property
    def deferred_seconds(self) -> float:
        """Expected time of computing the matrix at its first access, in seconds."""
        return 0.0

    def quadratic_forms(self, vectors: Array) -> Array:
        """Return v^T Gram v, shape (k,), for the k columns v of ``vectors``, (dimension, k)."""
        products = self.matrix @ vectors
        return np.asarray(np.sum((products if self.low_rank else vectors) * products, axis=0))


class DeferredFactor(Factor):
    """Residual Gram of interval queries on one attribute; its matrix is computed when first read.

    Forecasts of the planning time read only its dimension, and need not wait for a large matrix.
    """

    def __init__(self, part: Part, weights: Array | None) -> None:
        for name, value in {"sizes": part.sizes, "part": part, "weights": weights}.items():
            object.__setattr__(self, name, value)

    part: Part
    weights: Array | None

    @cached_property
    def matrix(self) -> Array:
        (n,) = self.sizes
        with threads_for(n):
            N = basis(n)
            return np.asarray(N.T @ self.part.family.gram(self.sizes, self.weights) @ N)

    @property
    def dimension(self) -> int:
        return self.sizes[0] - 1

    @property
    def n_rows(self) -> int:
        return self.dimension

    @property
    def deferred_seconds(self) -> float:
        return 4e-8 * self.sizes[0] ** 2 + 1.6e-10 * self.sizes[0] ** 3

    @property
    def interval_gram(self) -> IntervalGram | None:
        """The Gram as weights of marginal, prefix, suffix and range queries.

        None if there are other queries.
        """
        return interval_gram(self.part, self.weights)

    @property
    def window_gram(self) -> WindowGram | None:
        """The windows of one width whose Gram this is; None for other queries."""
        return wide_window_gram(self.part, self.weights)

    def quadratic_forms(self, vectors: Array) -> Array:
        return self.table_forms(vectors.T @ CosineMatrix(cells=self.sizes[0]).T)

    def table_forms(self, tables: Array) -> Array:
        """Return for each of k tables the weighted sum of the squared answers, shape (k,).

        ``tables`` has shape (k, cells).  Every table must have sum 0, so that the sum of squares is
        a quadratic form of the residual Gram.
        """
        if self.interval_gram is not None:
            return np.asarray(np.sum(tables * gram_product(self.interval_gram, tables), axis=1))
        return weighted_sum(self.part.family.dot(self.sizes, tables.T) ** 2, self.weights)

    def is_zero(self) -> bool:
        """Return whether every query has equal coefficients on all cells, up to rounding errors.

        Such queries are multiples of the total and have the residual Gram 0.
        """
        if self.interval_gram is not None or (
            self.weights is None and isinstance(self.part.family, Circular)
        ):
            return False  # some queries contain one cell or a prefix, so they are not constant
        family, sizes, ones = self.part.family, self.sizes, np.ones(self.sizes[0])
        squares = float(weighted_sum(family.squared_norms(sizes), self.weights))
        means = float(weighted_sum(family.dot(sizes, ones) ** 2, self.weights)) / sizes[0]
        return squares - means <= MIN_TRACE_SHARE * squares


def weighted_sum(values: Array, weights: Array | None) -> Array:
    """Return the sum of ``values`` over the first axis; ``weights``, shape (n,), are 1 if None."""
    return np.asarray(values.sum(axis=0) if weights is None else weights @ values)


class PredictedFactor(Factor):
    """Residual Gram in a forecast: its size, symmetries and computing time, but not its entries."""

    def __init__(self, part: Part, inside: Axes) -> None:
        sizes = tuple(part.sizes[i] for i in inside)
        dimension = math.prod(n - 1 for n in sizes)
        low_rank = len(part.sizes) > 1 and part.count < dimension
        nested = isinstance(part.family, Affine)
        values = {
            "sizes": sizes,
            "low_rank": low_rank,
            "nested": nested,
            "part": part,
            "inside": inside,
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    part: Part
    inside: Axes

    @property
    def matrix(self) -> Array:
        raise AssertionError("a forecast has no Gram matrices")

    @property
    def dimension(self) -> int:
        return math.prod(n - 1 for n in self.sizes)

    @property
    def n_rows(self) -> int:
        return self.part.count if self.low_rank else self.dimension

    @property
    def deferred_seconds(self) -> float:
        entries = float(self.part.count) * self.part.cells
        products = 0.0 if self.low_rank else 2.0 * self.part.count * self.dimension**2
        if len(self.part.sizes) > 1:
            products += 2.0 * entries * self.sizes[0]
        return SECONDS_PER_ROW_ENTRY * entries + products / PRODUCT_FLOPS

    @cached_property
    def example(self) -> Factor | None:
        if not isinstance(self.part.family, Affine):
            return None
        # the symmetries of the Gram depend only on which attributes have equal sizes
        distinct = sorted(set(self.part.sizes))
        sizes = tuple(MIN_EXAMPLE_CELLS + distinct.index(n) for n in self.part.sizes)
        example = replace(self.part, sizes=sizes)
        centers: list[Array | None] = [None] * len(sizes)
        factors, _ = _joint_factors(example, [self.inside], centers, weights=None, complement=None)
        return factors[0]


@dataclass(frozen=True, kw_only=True, eq=False)
class IntervalFactor(Factor):
    """Residual Gram of marginal, prefix, suffix or range queries on one wide attribute.

    It is stored as the weights of these queries, without a matrix of order n - 1.
    """

    matrix: IntervalMatrix  # type: ignore[assignment]

    def dense(self) -> Array:
        return self.matrix.dense()

    @property
    def gram(self) -> IntervalGram:
        """Weights of the marginal, prefix, suffix and range queries."""
        return self.matrix.gram

    @property
    def trace(self) -> float:
        return self.matrix.trace


def interval_factor(gram: IntervalGram) -> IntervalFactor:
    """Return the residual Gram of interval queries."""
    return IntervalFactor(sizes=(gram.cells,), matrix=IntervalMatrix(gram=gram))


class WindowSumFactor(Factor):
    """Residual Gram of windows, prefixes and the marginal on one wide attribute.

    It is stored as the weights of these queries.  Its matrix is computed when first read.

    Parameters
    ----------
    gram : weights of the queries.
    parts : pairs (weight, Gram) whose sum is the Gram.
    """

    def __init__(self, gram: WindowGram, parts: Sequence[tuple[float, Factor]]) -> None:
        values = {"sizes": (gram.cells,), "gram": gram, "parts": tuple(parts)}
        for name, value in values.items():
            object.__setattr__(self, name, value)

    gram: WindowGram
    parts: tuple[tuple[float, Factor], ...]

    @cached_property
    def matrix(self) -> Array:
        return _dense_sum(self.parts)

    @property
    def dimension(self) -> int:
        return self.sizes[0] - 1

    @property
    def n_rows(self) -> int:
        return self.dimension


@dataclass(frozen=True, kw_only=True, eq=False)
class LevelFactor(Factor):
    """Residual Gram of counts of areas of nested levels on one wide attribute.

    It is stored as the weights of the areas, without a matrix of order n - 1.
    """

    matrix: LevelMatrix  # type: ignore[assignment]

    def dense(self) -> Array:
        return self.matrix.dense()

    @property
    def gram(self) -> LevelGram:
        """Weights of the areas."""
        return self.matrix.gram

    @property
    def trace(self) -> float:
        return self.matrix.trace


def level_factor(gram: LevelGram) -> LevelFactor:
    """Return the residual Gram of area counts."""
    return LevelFactor(sizes=(gram.cells,), matrix=LevelMatrix(gram=gram))


@dataclass(frozen=True, kw_only=True)
class Term:
    """Summand of a Gram: a coefficient times a Kronecker product of residual Grams.

    ``factors`` lists for every factor of the product its axes and the index of its Gram.  The sets
    of axes are disjoint.
    """

    coefficient: float
    factors: Factors


@dataclass(frozen=True, kw_only=True, eq=False)
class Subworkload:
    """Gram of the queries on one residual space, scaled so that its largest coefficient is 1.

    A subworkload also describes a union: several residual spaces that one strategy measures.

    Attributes
    ----------
    sizes : domain sizes of the attributes.
    terms : summands of the Gram.
    centers : center of every attribute, None for a uniform one.
    labels : one label per attribute.  Residual spaces with equal Grams share a subworkload only if
        the labels of their attributes are equal, so that a mechanism can treat labels differently.
    complements : mapping from the positions of two attributes to the `Complement` of this pair,
        which a tuned split of the table into residual spaces uses; empty for other splits.
    spaces : for a union, the positions of the attributes of each of its residual spaces; empty for
        a single residual space.
    """

    sizes: tuple[int, ...]
    terms: tuple[Term, ...]
    centers: tuple[Array | None, ...]
    labels: tuple[Hashable, ...]
    complements: Mapping[Axes, Complement] = field(default_factory=dict)
    spaces: tuple[Axes, ...] = ()

    @property
    def dimension(self) -> int:
        """Number of residual coordinates of the space."""
        return math.prod(n - 1 for n in self.sizes)

    @property
    def mixed(self) -> bool:
        """Whether the Gram has several terms, or a factor on several attributes.

        If False, the Gram is a Kronecker product with one factor per attribute.
        """
        return len(self.terms) > 1 or any(
            len(axes) > 1 for term in self.terms for axes, _ in term.factors
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class SpaceListing:
    """Residual spaces with the same number of attributes, sorted by the names of their attributes.

    Attributes
    ----------
    places : positions of the attributes of every space in the schema, shape (spaces, attributes).
    indices : key in ``entries`` of every space, shape (spaces,).
    entries : mapping to pairs (index of a subworkload, scale), as in `Decomposition.spaces`.
    """

    places: Index
    indices: Index
    entries: Mapping[int, tuple[int, float]]


class SpaceMapping(Mapping[Space, tuple[int, float]]):
    """`Decomposition.spaces`, which creates the names of residual spaces at the first access.

    Forecasts of workloads with tens of thousands of groups read only the number of the spaces and
    the attributes that occur in them.
    """

    def __init__(self, schema: Schema, listings: Sequence[SpaceListing]) -> None:
        self._schema, self._listings = schema, listings

    @cached_property
    def as_dict(self) -> dict[Space, tuple[int, float]]:
        """The mapping as a dictionary: small spaces first, then in the order of their names."""
        names = self._schema.names
        out: dict[Space, tuple[int, float]] = {}
        for listing in self._listings:
            columns = [[names[k] for k in column] for column in listing.places.T.tolist()]
            spaces: Iterable[Space] = (
                zip(*columns, strict=True) if columns else [()] * len(listing.places)
            )
            entries = map(listing.entries.__getitem__, listing.indices.tolist())
            out.update(zip(spaces, entries, strict=True))
        return out

    def attributes(self) -> Space:
        """Return the attributes that occur in at least one space, in schema order."""
        if not self._listings:  # all weighted queries have only zero coefficients
            return ()
        places = np.unique(np.concatenate([listing.places.ravel() for listing in self._listings]))
        return _names_at(self._schema, places.tolist())

    def __len__(self) -> int:
        return sum(len(listing.places) for listing in self._listings)

    def __iter__(self) -> Iterator[Space]:
        return iter(self.as_dict)

    def __getitem__(self, space: Space) -> tuple[int, float]:
        return self.as_dict[space]

    def items(self) -> ItemsView[Space, tuple[int, float]]:
        return self.as_dict.items()


def _names_at(schema: Schema, places: Iterable[int]) -> Space:
    """Return the names of the attributes at these positions of the schema."""
    return tuple(map(schema.names.__getitem__, places))


def attributes_in(spaces: Iterable[Space], schema: Schema) -> Space:
    """Return the attributes that occur in at least one of the spaces, in schema order."""
    if isinstance(spaces, SpaceMapping):
        return spaces.attributes()
    return schema.ranked(set().union(*spaces))


@dataclass(frozen=True, kw_only=True)
class Decomposition:
    """Distinct subworkloads of a workload, and the residual spaces on which they occur.

    Attributes
    ----------
    factors : distinct residual Grams; the terms of the subworkloads refer to them by index.
    subworkloads : distinct Grams of residual spaces, up to scale.
    spaces : mapping from a residual space to the pair (index of its subworkload, scale).  The Gram
        of the space is scale times that of the subworkload.  Spaces without queries of positive
        weight are absent.
    """

    factors: tuple[Factor, ...]
    subworkloads: tuple[Subworkload, ...]
    spaces: Mapping[Space, tuple[int, float]]

    def of(self, space: Space) -> Subworkload:
        """Return the subworkload of a residual space, without the scale of its Gram."""
        return self.subworkloads[self.spaces[space][0]]


class Registry:
    """Store of the residual Grams of a workload without duplicates.

    Proportional Grams share one stored Gram; each use has its own scale.  Grams of interval queries
    on many cells share one only if they are equal.

    Parameters
    ----------
    split : centers and complements of the attributes.
    forecast : whether query families whose Grams take long to compute get a `PredictedFactor` and
        the total square 1.  Interval queries get no `PredictedFactor`, because their residual Grams
        are computed only at the first access.
    """

    def __init__(self, split: Split, forecast: bool = False) -> None:
        self.split, self.forecast = split, forecast
        self.factors: list[Factor] = []
        # layout -> indices of the Grams in ``factors`` with which new Grams are compared
        self._by_layout: dict[tuple[Any, ...], list[int]] = {}
        self._entries: dict[Any, list[tuple[Axes, tuple[int, float] | float]]] = {}
        self._digests: dict[str, bytes | None] = {}

    def grams_of_part(
        self, part: Part, names: tuple[str, ...], weights: Array | None
    ) -> list[tuple[Axes, tuple[int, float] | float]]:
        """Return the residual Gram of one query family of a group on every subset of its axes.

        Parameters
        ----------
        part : the queries.
        names : names of the family's attributes.
        weights : one weight per query, shape (queries,); None if all are 1.

        Returns
        -------
        One pair per subset of the axes.  For a nonempty subset the pair is (axes, (index, scale)):
        the Gram is scale times the stored Gram with this index, and a zero Gram has index -1 and
        scale 0.  For the empty subset the pair is ((), total square).  The total square is the
        weighted sum of the squared coefficients of the queries on the total.
        """
        weights_key = None if weights is None else hashlib.sha256(weights.tobytes()).digest()
        complement = self.split.complement(names)
        key = (
            part.key,
            tuple(map(self._digest, names)),
            weights_key,
            complement and complement.key,
        )
        if key not in self._entries:
            centers, sets = self.split.centers_of(names), list(subsets(range(len(part.axes))))
            with threads_for(math.prod(part.sizes)):
                if len(part.sizes) > 1 and not (self.forecast and _is_large(part, weights)):
                    self._entries[key] = self._joint_grams(part, sets, centers, weights, complement)
                else:
                    self._entries[key] = [
                        (axes, self._gram(part, axes, centers, weights)) for axes in sets
                    ]
        return self._entries[key]

    def _digest(self, name: str) -> bytes | None:
        if name not in self._digests:
            self._digests[name] = digest(self.split.centers.get(name))
        return self._digests[name]

    def _joint_grams(
        self,
        part: Part,
        sets: Sequence[Axes],
        centers: list[Array | None],
        weights: Array | None,
        complement: Complement | None,
    ) -> list[tuple[Axes, tuple[int, float] | float]]:
        """Return the residual Grams of a part on several attributes, as `grams_of_part`."""
        factors, query_trace = _joint_factors(part, sets, centers, weights, complement)
        return [
            (inside, self._store_unless_zero(factor, query_trace))
            if inside
            else (inside, _zero_if_rounding(factor.trace, query_trace))
            for inside, factor in zip(sets, factors, strict=True)
        ]

    def _gram(
        self, part: Part, inside: Axes, centers: list[Array | None], weights: Array | None
    ) -> tuple[int, float] | float:
        """Return the residual Gram of a family on the axes ``inside`` as (index, scale).

        The family is on one attribute, or it is a large family in a forecast.  The Gram is scale
        times the stored Gram with this index.  A Gram that counts as zero has index -1 and scale 0.
        If ``inside`` is empty, the result is a number: the weighted sum of the squared coefficients
        of the queries on the total.  In a forecast, this number is 1 for a large family, and a
        `PredictedFactor` takes the place of the Gram of a large family that does not consist of
        intervals.
        """
        if self.forecast and _is_large(part, weights):
            if not inside:
                return 1.0
            if not isinstance(part.family, Intervals):
                self.factors.append(PredictedFactor(part, inside))
                return len(self.factors) - 1, 1.0
        if inside:
            return self._gram_on_attribute(part, weights)
        return _total_square(part, center(part.sizes[0], centers[0]), weights)

    def _gram_on_attribute(self, part: Part, weights: Array | None) -> tuple[int, float]:
        """Return the residual Gram of a family on one attribute, as an index and a scale.

        The Gram is scale times the stored Gram with this index.
        """
        (n,) = part.sizes
        if (wide_gram := wide_interval_gram(part, weights)) is not None:
            return self._store(interval_factor(wide_gram))
        if (level_gram := wide_level_gram(part, weights)) is not None:
            return self._store(level_factor(level_gram))
        if n >= MIN_DEFERRED_CELLS and isinstance(part.family, Intervals):
            deferred = DeferredFactor(part, weights)
            return (-1, 0.0) if deferred.is_zero() else self._store(deferred)
        # the closed-form Gram is used instead of the rows, because a family may have many queries,
        # such as 500,500 ranges on 1,000 cells
        gram, N = part.family.gram(part.sizes, weights), basis(n)
        return self._store_unless_zero(
            Factor(sizes=(n,), matrix=N.T @ gram @ N), float(np.trace(gram))
        )

    def _store_unless_zero(self, factor: Factor, query_trace: float) -> tuple[int, float]:
        """Store a residual Gram unless it counts as zero.

        Returns (index, scale) as `_store`, or (-1, 0) for a Gram that counts as zero.
        ``query_trace`` is the trace of the Gram of the same queries on cells.
        """
        # queries with equal coefficients on all cells have a residual Gram of rounding errors only
        if factor.trace <= MIN_TRACE_SHARE * query_trace or factor.dimension == 0:
            return (-1, 0.0)
        return self._store(factor)

    def _store(self, factor: Factor) -> tuple[int, float]:
        """Return (index, scale) so that ``scale`` times the stored Gram ``index`` is the factor.

        If no stored Gram is proportional to the factor, the factor is stored with scale 1.  Grams
        of interval queries on many cells are compared for equality only.
        """
        same_layout = self._by_layout.setdefault(_layout(factor), [])
        for number in same_layout:
            other = self.factors[number]
            if isinstance(factor, IntervalFactor) and isinstance(other, IntervalFactor):
                if residual_gram(factor.gram) == residual_gram(other.gram):
                    return number, 1.0
                continue
            if isinstance(factor, LevelFactor) and isinstance(other, LevelFactor):
                scales = factor.gram.largest_weight, other.gram.largest_weight
                if factor.gram.key(scales[0]) == other.gram.key(scales[1]):
                    return number, scales[0] / scales[1]
                continue
            # the entries of a deferred Gram are computed only if a comparison needs them
            if isinstance(factor, DeferredFactor):
                gram = factor.interval_gram
                other_gram = other.interval_gram if isinstance(other, DeferredFactor) else None
                if gram is not None and other_gram is not None:
                    if residual_gram(gram) == residual_gram(other_gram):
                        return number, 1.0
                    continue
                if not _may_be_proportional(factor, other):
                    continue
            trace = factor.trace
            scale = trace / other.trace
            # rows R are scaled by the root of the factor by which R^T R is scaled
            matrix_scale = math.sqrt(scale) if factor.low_rank else scale
            # The last rows are compared first, because most Grams differ already there.
            if all(
                np.abs(factor.matrix[rows] - other.matrix[rows] * matrix_scale).max()
                <= 1e-13 * trace
                for rows in (slice(-1, None), slice(None, -1))
                if factor.matrix[rows].size
            ):
                return number, scale
        self.factors.append(factor)
        same_layout.append(len(self.factors) - 1)
        return len(self.factors) - 1, 1.0


def _joint_factors(
    part: Part,
    sets: Sequence[Axes],
    centers: list[Array | None],
    weights: Array | None,
    complement: Complement | None,
) -> tuple[list[Factor], float]:
    """Return the Grams of a family on residual spaces, and the trace of its Gram on the cells.

    The family is on several attributes.  There is one Gram per set of axes in ``sets``.  The trace
    is the weighted sum of the squared coefficients of all queries on the cells.
    """
    sizes_of_sets = [tuple(part.sizes[i] for i in axes) for axes in sets]
    dimensions = [math.prod(n - 1 for n in sizes) for sizes in sizes_of_sets]
    # fewer rows than coordinates take less memory than their Gram and are better conditioned
    have_few_rows = [part.count < dimension for dimension in dimensions]
    rows: list[list[Array]] = [[] for _ in sets]
    grams = [
        np.zeros((0 if few_rows else dimension,) * 2)
        for few_rows, dimension in zip(have_few_rows, dimensions, strict=True)
    ]
    query_trace = 0.0
    for start, chunk in part.family.chunks(part.sizes):
        if weights is not None:
            chunk = chunk * np.sqrt(weights[start : start + len(chunk), None])
        query_trace += float(np.sum(chunk**2))
        for k, axes in enumerate(sets):
            projected = residual_rows(chunk, part.sizes, axes, centers, complement)
            if have_few_rows[k]:
                rows[k].append(projected)
            else:
                grams[k] += projected.T @ projected
    factors = [
        Factor(
            sizes=sizes,
            matrix=np.concatenate(rows[k]) if few_rows else grams[k],
            low_rank=few_rows,
            nested=isinstance(part.family, Affine),
        )
        for k, (sizes, few_rows) in enumerate(zip(sizes_of_sets, have_few_rows, strict=True))
    ]
    return factors, query_trace


def _total_square(part: Part, pi: Array, weights: Array | None) -> float:
    """Return the weighted sum of the squares of q^T pi over the queries q of a family.

    The family is on one attribute with the center ``pi``.
    """
    if (wide_gram := wide_interval_gram(part, weights)) is not None:
        return total_square(wide_gram, pi)
    if (level_gram := wide_level_gram(part, weights)) is not None:
        return level_gram.total_square(pi)
    if part.sizes[0] >= MIN_DEFERRED_CELLS and isinstance(part.family, Intervals):
        query_trace = _intervals_trace(part, weights)
    else:
        query_trace = float(np.trace(part.family.gram(part.sizes, weights)))
    # Every q^T pi is computed and squared, because pi^T G pi is less accurate if the summands of
    # q^T pi cancel.  Relative to the squared summands, the rounding error of the square is 1e-32,
    # and the rounding error of pi^T G pi is 1e-16.
    on_total = part.family.dot(part.sizes, pi)
    return _zero_if_rounding(
        float(np.sum(on_total**2 if weights is None else weights * on_total**2)), query_trace
    )


def _is_large(part: Part, weights: Array | None) -> bool:
    """Return whether a family's Grams, or its `_total_square`, take too long for a forecast."""
    if len(part.sizes) > 1:
        return part.count * part.cells * max(part.sizes) > MAX_FORECAST_PRODUCTS
    (n,) = part.sizes
    if isinstance(part.family, Intervals):
        # Interval queries have closed-form Grams. However, `_total_square` multiplies every query
        # by the center if `wide_interval_gram` returns None.
        is_wide_gram = wide_interval_gram(part, weights) is not None
        return not is_wide_gram and n >= MIN_DEFERRED_CELLS and part.count > MAX_FORECAST_QUERIES
    return not is_wide_areas(part) and part.count * n**2 > MAX_FORECAST_PRODUCTS


def _layout(factor: Factor) -> tuple[Any, ...]:
    """Return a key that proportional Grams share: class, sizes and shape of the stored matrix."""
    classes = (IntervalFactor, LevelFactor, PredictedFactor)
    factor_class = next((c for c in classes if isinstance(factor, c)), Factor)
    return factor_class, factor.sizes, factor.low_rank, factor.n_rows, factor.dimension


def _intervals_trace(part: Part, weights: Array | None) -> float:
    """Return the trace of the Gram of interval queries: the weighted sum of their squared norms."""
    if (gram := interval_gram(part, weights)) is None:
        return float(weighted_sum(part.family.squared_norms(part.sizes), weights))
    n, k = gram.cells, np.arange(1.0, gram.cells + 1.0)
    lines = (gram.prefix + gram.suffix) * k.sum()
    return float(gram.marginal * n + lines + gram.ranges * np.sum(k * (n + 1 - k)))


def _may_be_proportional(one: Factor, other: Factor) -> bool:
    """Return False if two Grams of equal order are certainly not proportional, otherwise True.

    The ratios of their quadratic forms are compared at two fixed random vectors.
    """
    if isinstance(one, DeferredFactor) and isinstance(other, DeferredFactor):
        # Tables need no transform to residual coordinates, whose module takes 50 ms to load.
        tables = np.random.default_rng(0).standard_normal((2, one.sizes[0]))
        tables -= tables.mean(axis=1, keepdims=True)
        return _have_equal_ratios(one.table_forms(tables), other.table_forms(tables))
    vectors = np.random.default_rng(0).standard_normal((one.dimension, 2))
    return _have_equal_ratios(one.quadratic_forms(vectors), other.quadratic_forms(vectors))


def _have_equal_ratios(a: Array, b: Array) -> bool:
    """Return whether a[0] / a[1] and b[0] / b[1] differ by at most `PROPORTIONAL_TOLERANCE`."""
    # compared without a division
    return bool(abs(a[0] * b[1] - a[1] * b[0]) <= PROPORTIONAL_TOLERANCE * a[0] * b[1])


def wide_interval_gram(part: Part, weights: Array | None = None) -> IntervalGram | None:
    """Return the result of `interval_gram` if the attribute is wide, None if it is narrow."""
    return interval_gram(part, weights) if is_wide(part.sizes[0]) else None


def interval_gram(part: Part, weights: Array | None = None) -> IntervalGram | None:
    """Return the Gram of marginal, prefix, suffix or range queries as weights of these four kinds.

    The result is None if the part has other queries or several attributes, or if ``weights`` (one
    weight per query) is not None.
    """
    if len(part.sizes) > 1 or weights is not None:
        return None
    kinds = {"marginal": "marginal", "prefix": "prefix", "suffix": "suffix", "range": "ranges"}
    # the name alone is not enough: a family with weighted rows has the same name but another key
    kind = kinds[part.family.name] if part.family.key in [(name,) for name in kinds] else None
    return None if kind is None else IntervalGram(cells=part.sizes[0], **{kind: 1.0})


# Windows are solved without a matrix if they have at most this share of the cells. With wider
# windows, optimal dual weights are 0 at many cells, so that the search needs hundreds of steps, and
# rounding errors near these cells become large.
MAX_WINDOW_SHARE = 1.0 / 3.0


def wide_window_gram(part: Part, weights: Array | None = None) -> WindowGram | None:
    """Return the windows of one width on one wide attribute, if they are solved without a matrix.

    The result is None if the part has other queries, if its attribute is narrow, if the windows are
    wider than the share `MAX_WINDOW_SHARE` of the cells, or if ``weights`` (one weight per query)
    is not None.
    """
    family, n = part.family, part.sizes[0]
    if len(part.sizes) > 1 or weights is not None or not is_wide(n):
        return None
    # a family with weighted rows has another key
    if not isinstance(family, Width) or family.key != Width(family.width).key:
        return None
    is_narrow = family.width <= MAX_WINDOW_SHARE * n
    return WindowGram(cells=n, width=family.width) if is_narrow else None


def is_wide_areas(part: Part) -> bool:
    """Return whether the queries count areas of hierarchy levels on one wide attribute."""
    return len(part.sizes) == 1 and is_wide(part.sizes[0]) and part.family.counts_areas


def wide_level_gram(part: Part, weights: Array | None = None) -> LevelGram | None:
    """Return the Gram of counts of areas on one wide attribute, as weights of the areas.

    The result is None if the part has other queries or its attribute is narrow.  ``weights`` holds
    one weight per query, shape (queries,); None if all are 1.
    """
    if not is_wide_areas(part):
        return None
    return LevelGram.of(part.family.area_weights(weights))


def residual_gram(gram: IntervalGram) -> IntervalGram:
    """Return an equivalent Gram without suffixes: their weight is added to that of the prefixes.

    Both Grams are equal on residual spaces, because a suffix is the total minus a prefix, and the
    total has no component in a residual space.
    """
    return replace(gram, prefix=gram.prefix + gram.suffix, suffix=0.0)


def has_identity_gram(part: Part, weights: Array | None = None) -> bool:
    """Return whether a family is the marginal of one wide attribute without query weights.

    The Gram of such a marginal is the identity.  With ``weights``, one per query, the result is
    False.
    """
    gram = wide_interval_gram(part, weights)
    return gram is not None and gram.is_marginal


def _zero_if_rounding(square: float, reference: float) -> float:
    return square if square > ROUNDING * reference else 0.0


def decompose(
    workload: Workload,
    split: Split = UNIFORM,
    labels: Mapping[str, Hashable] | None = None,
    *,
    forecast: bool = False,
) -> Decomposition:
    """Return the Gram of the workload's weighted queries on every residual space.

    Spaces with a zero Gram, and spaces inside a public table, are left out.  Spaces with
    proportional Grams share one subworkload if they have the same complement (tuned split), and if
    their attributes have equal sizes, centers and labels.  Unions (jointly measured spaces) of the
    split are ignored here; `engine.residuals.tuning.unions.unite` forms them.

    Parameters
    ----------
    workload : the queries and their weights.
    split : centers and complements of the attributes.
    labels : mapping from attribute names to labels; see `Subworkload.labels`.
    forecast : whether to leave out the entries of large Grams, which forecasts do not need.  With
        True, the coefficients of terms with such Grams are not exact.

    >>> from engine import Attribute, Schema
    >>> schema = Schema([Attribute.of_size(c, 4) for c in "abc"])
    >>> parts = decompose(Workload.all_ways(schema, ways=(1, 2), family="prefix"))
    >>> len(parts.spaces), len(parts.subworkloads)
    (7, 3)
    """
    if forecast and split is UNIFORM:
        return _forecast_decomposition(workload, tuple((labels or {}).items()))
    return _decompose(workload, split, labels or {}, forecast)


@cached_on_value
def _forecast_decomposition(
    workload: Workload, labels: tuple[tuple[str, Hashable], ...]
) -> Decomposition:
    """Return the decomposition for forecasts with uniform centers.

    The result is stored, because planning and forecasts read it several times.  ``labels`` has the
    items of the mapping from attribute names to labels.
    """
    return _decompose(workload, UNIFORM, dict(labels), forecast=True)


def _decompose(
    workload: Workload, split: Split, labels: Mapping[str, Hashable], forecast: bool
) -> Decomposition:
    """Compute the decomposition that `decompose` returns."""
    registry = Registry(split, forecast)
    products: dict[Factors, int] = {}
    weights = np.array([group.weight for group in workload.groups])
    center_classes = _class_numbers(
        [digest(split.centers.get(name)) for name in workload.schema.names]
    )
    classes = []
    for group_class in workload.group_classes:
        if not split.centers and not split.complements:
            # all groups of the class have the same decomposition
            members = weights[group_class.numbers] > 0.0
            if members.any():
                classes.append(
                    (group_class.numbers[members], group_class.places[members], group_class.ranks)
                )
            continue
        if len(group_class.numbers) == 1:
            if weights[group_class.numbers[0]] > 0.0:
                classes.append((group_class.numbers, group_class.places, group_class.ranks))
            continue
        complements = [0] * len(group_class.numbers)
        if split.complements:
            complements_of_groups = [
                split.complement(workload.groups[i].attributes)
                for i in group_class.numbers.tolist()
            ]
            complements = _class_numbers([c and c.key for c in complements_of_groups]).tolist()
        # groups of a class share one decomposition only if their centers and complements (tuned
        # splits of pairs) are equal
        firsts, split_class = unique_rows(
            np.column_stack([center_classes[group_class.places], complements])
        )
        for k in range(len(firsts)):
            members = (split_class == k) & (weights[group_class.numbers] > 0.0)
            if members.any():
                classes.append(
                    (group_class.numbers[members], group_class.places[members], group_class.ranks)
                )
    contributions = []
    for numbers, places, ranks in sorted(classes, key=lambda member: int(member[0][0])):
        pattern = [
            (positions, products.setdefault(factors, len(products)), coefficient)
            for positions, coefficient, factors in _group_terms(
                workload.groups[numbers[0]], ranks, registry
            )
        ]
        contributions.append(
            GroupContribution(
                numbers=numbers, places=places, weights=weights[numbers], pattern=pattern
            )
        )
    return _distinct_subworkloads(workload, registry, contributions, tuple(products), labels)


def _class_numbers(keys: Sequence[Hashable]) -> Index:
    """Return an index for every key; equal keys share one, counted from 0 by first appearance."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)


def _group_terms(
    group: Group, ranks: Sequence[int], registry: Registry
) -> list[tuple[Axes, float, Factors]]:
    """Return what a group of weight 1 adds to the Grams of the residual spaces inside it.

    ``ranks`` lists the axes of the group in schema order.  There is one tuple (positions,
    coefficient, factors) per residual space: the positions of its attributes in ``ranks``, and the
    coefficient and the factors of a Kronecker product.  Spaces to which the group adds nothing are
    left out.
    """
    parts, weights = group.parts, group.query_weights
    part_weights = [weights] if len(parts) == 1 else group.part_weights or [None] * len(parts)
    if len(parts) > 1 and (
        (weights is not None and group.part_weights is None)
        or registry.split.complement(group.attributes) is not None
    ):
        # The group is not a product of its parts (product factors) if its query weights are not a
        # product, or if its pair of attributes has a complement (tuned split). Such a group is
        # treated as one part on all attributes.
        parts, part_weights = (joint_part(group),), [weights]
    rank_of_axis = {axis: rank for rank, axis in enumerate(ranks)}
    # One list per part (product factor), with one pair per subset of its attributes. A pair holds
    # the ranks of these attributes and the residual Gram as (index, scale). For the empty subset it
    # holds the total square in place of the Gram.
    choices = []
    for part, weights_of_part in zip(parts, part_weights, strict=True):
        grams = registry.grams_of_part(part, group.named(part.axes), weights_of_part)
        choices.append(
            [(tuple(rank_of_axis[part.axes[i]] for i in inside), gram) for inside, gram in grams]
        )
    initial = 1.0 if group.parts or weights is None else float(weights[0])
    # Equation 3: a residual space contains a subset of the attributes of each part (product
    # factor). Its Gram is the Kronecker product of the residual Grams on these attributes, times
    # the total squares of the parts that have no attribute in the space.
    if all(len(part.axes) == 1 for part in parts):
        return _terms_of_single_axes(choices, initial)
    terms: list[tuple[Axes, float, Factors]] = []
    for combination in itertools.product(*choices):
        coefficient = initial
        residual: list[tuple[Axes, int]] = []
        for chosen, gram in combination:
            if isinstance(gram, float):
                coefficient *= gram
            else:
                index, scale = gram
                coefficient *= scale
                residual.append((chosen, index))
        if coefficient > 0.0:
            positions = tuple(sorted(rank for chosen, _ in residual for rank in chosen))
            factors = tuple(
                sorted((tuple(map(positions.index, chosen)), index) for chosen, index in residual)
            )
            terms.append((positions, coefficient, factors))
    return terms


def _terms_of_single_axes(
    choices: Sequence[Sequence[tuple[Axes, tuple[int, float] | float]]], initial: float
) -> list[tuple[Axes, float, Factors]]:
    """Return the result of `_group_terms` for query families on one attribute each.

    Parameters
    ----------
    choices : for every family a list of pairs (ranks of the chosen attributes, residual Gram as
        (index, scale) or total square), as in `_group_terms`.
    initial : factor of every coefficient.
    """
    # The parts (product factors) are added one after the other, so that every product of
    # coefficients is computed once.  Ranks and indices of Grams are in the order of the parts.
    products: list[tuple[Axes, float, tuple[int, ...]]] = [((), initial, ())]
    for choices_of_part in choices:
        longer_products = list[tuple[Axes, float, tuple[int, ...]]]()
        for ranks, coefficient, indices in products:
            for chosen, gram in choices_of_part:
                if isinstance(gram, float):
                    longer_products.append((ranks, coefficient * gram, indices))
                else:
                    index, scale = gram
                    longer_products.append((ranks + chosen, coefficient * scale, (*indices, index)))
        products = longer_products
    # The larger choice of a part (product factor) is its attribute; the smaller choice is empty.
    part_ranks = [max(chosen for chosen, _ in choices_of_part) for choices_of_part in choices]
    is_sorted = part_ranks == sorted(part_ranks)
    terms: list[tuple[Axes, float, Factors]] = []
    for ranks, coefficient, indices in products:
        if coefficient > 0.0:
            if not is_sorted:
                pairs = sorted(zip(ranks, indices, strict=True))
                ranks, indices = tuple(r for r, _ in pairs), tuple(k for _, k in pairs)
            factors = tuple([((axis,), index) for axis, index in enumerate(indices)])
            terms.append((ranks, coefficient, factors))
    return terms


def _distinct_subworkloads(
    workload: Workload,
    registry: Registry,
    contributions: Sequence[GroupContribution],
    products: Sequence[Factors],
    labels: Mapping[str, Hashable],
) -> Decomposition:
    """Return the decomposition with one subworkload per distinct Gram up to scale.

    ``contributions`` refer to the Kronecker products in ``products`` by index.
    """
    schema, split = workload.schema, registry.split
    attribute_classes = _class_numbers(
        [(a.size, digest(split.centers.get(a.name)), labels.get(a.name)) for a in schema.attributes]
    )
    alphabet = np.argsort(np.argsort(np.array(schema.names, dtype=object), kind="stable"))
    numbers: dict[Any, int] = {}
    subworkloads: list[Subworkload] = []
    listings: list[SpaceListing] = []
    for spaces_of_size in queried_spaces(contributions, attribute_classes, schema.exact_places):
        # spaces are distinct, so `unique_rows` returns all of them, sorted by attribute names
        order = unique_rows(alphabet[spaces_of_size.places])[0]
        places, kinds = spaces_of_size.places[order], spaces_of_size.kinds[order]
        # Spaces of a class share one entry (index of the subworkload, scale), unless their
        # complements (tuned splits of queries) differ.
        complements: list[Complement | None] = [None] * len(places)
        entry_indices = kinds
        if split.complements:
            complements = [split.complements.get(_names_at(schema, row)) for row in places.tolist()]
            keys = [
                (kind, complement and complement.key)
                for kind, complement in zip(kinds.tolist(), complements, strict=True)
            ]
            entry_indices = _class_numbers(keys)
        entries: dict[int, tuple[int, float]] = {}
        for first in np.sort(unique_rows(entry_indices[:, None])[0]).tolist():
            coefficients = spaces_of_size.coefficients[int(kinds[first])]
            complement, row = complements[first], places[first]
            space = _names_at(schema, row.tolist())
            # proportional Grams have the same optimal strategy; the scale only affects the shares
            # of the budget
            scale = max(coefficients.values())
            # rounded, because coefficients may differ by rounding errors
            terms = tuple(
                Term(coefficient=float(f"{c / scale:.12e}"), factors=factors)
                for factors, c in sorted((products[k], c) for k, c in coefficients.items())
            )
            signature = tuple(attribute_classes[row].tolist())
            number = numbers.setdefault(
                (signature, complement and complement.key, terms), len(subworkloads)
            )
            if number == len(subworkloads):
                subworkloads.append(
                    Subworkload(
                        sizes=schema.sizes(space),
                        terms=terms,
                        centers=tuple(split.centers_of(space)),
                        labels=tuple(map(labels.get, space)),
                        complements={} if complement is None else {(0, 1): complement},
                    )
                )
            entries[int(entry_indices[first])] = number, scale
        listings.append(SpaceListing(places=places, indices=entry_indices, entries=entries))
    spaces = SpaceMapping(schema, listings)
    return Decomposition(
        factors=tuple(registry.factors),
        subworkloads=tuple(subworkloads),
        spaces=spaces if registry.forecast else spaces.as_dict,
    )


# one term of a Gram: the coefficient of a Kronecker product, and the axes and Gram of every factor
MergedTerm = tuple[float, tuple[tuple[Axes, Factor], ...]]
# result of `merge_terms`: terms of a Gram, no two of which differ in one factor only
Merged = list[MergedTerm]
_Term = TypeVar("_Term")


def _merge(terms: list[_Term], add: Callable[[_Term, _Term], _Term | None]) -> list[_Term]:
    """Replace pairs of terms by their sums until no pair can be added.

    ``add`` returns the sum of two terms, or None if they cannot be added.
    """
    changed = True
    while changed:
        changed = False
        for i, j in itertools.combinations(range(len(terms)), 2):
            if (total := add(terms[i], terms[j])) is not None:
                terms[i] = total
                del terms[j]
                changed = True
                break
    return terms


def merge_terms(sub: Subworkload, factors: Sequence[Factor]) -> Merged:
    """Return the terms of a subworkload's Gram after merging terms that differ in one factor only.

    Two such factors are on the same axes.  The merged term contains their weighted sum.
    """
    terms = [
        (t.coefficient, tuple((axes, factors[number]) for axes, number in t.factors))
        for t in sub.terms
    ]
    return _merge(terms, _add_terms)


def merged_factors(sub: Subworkload) -> list[Factors]:
    """Return the factors of the terms that `merge_terms` returns, without adding Grams.

    Each factor is a pair of axes and the index of a Gram.  If `merge_terms` has a sum of Grams in
    this place, the index is that of the first Gram of the sum.
    """
    # Until all terms are merged, every sum of Grams has its own negative number, because it differs
    # from every other Gram.  ``first_index`` maps this number to the index of the first Gram.
    first_index: dict[int, int] = {}

    def add(a: Factors, b: Factors) -> Factors | None:
        place = _differing_factor(a, b)
        if place is None:
            return None
        axes, number = a[place]
        total = -1 - len(first_index)
        first_index[total] = first_index.get(number, number)
        return (*a[:place], (axes, total), *a[place + 1 :])

    merged = _merge([term.factors for term in sub.terms], add)
    return [tuple((axes, first_index.get(k, k)) for axes, k in term) for term in merged]


def _differing_factor(
    a: Sequence[tuple[Axes, object]], b: Sequence[tuple[Axes, object]]
) -> int | None:
    """Return the position of the only factor in which two Kronecker products differ.

    The result is None if their factors are on different axes, or if not exactly one differs.
    """
    if [axes for axes, _ in a] != [axes for axes, _ in b]:
        return None
    # numbers are compared by value and Grams by identity
    differing = [k for k, ((_, f), (_, g)) in enumerate(zip(a, b, strict=True)) if f != g]
    return differing[0] if len(differing) == 1 else None


def _add_terms(a: MergedTerm, b: MergedTerm) -> MergedTerm | None:
    """Return the sum of two terms that differ in one factor.

    The result is None if the sum is not a Kronecker product.
    """
    k = _differing_factor(a[1], b[1])
    if k is None:
        return None
    axes, f, g = a[1][k][0], a[1][k][1], b[1][k][1]
    total = add_factors([(a[0], f), (b[0], g)], f.sizes)
    return 1.0, (*a[1][:k], (axes, total), *a[1][k + 1 :])


def axis_partition(
    terms: Sequence[tuple[float, Sequence[tuple[Axes, object]]]], count: int
) -> list[Axes]:
    """Return the finest partition of the axes 0..count-1 that does not divide any factor's axes.

    ``terms`` are pairs (coefficient, factors), and a factor is a pair (axes, Gram).  Only the axes
    are read.
    """
    label = list(range(count))
    for _, factors in terms:
        for axes, _ in factors:
            lowest = min(label[a] for a in axes)
            joined = {label[a] for a in axes}
            label = [lowest if x in joined else x for x in label]
    return [tuple(a for a in range(count) if label[a] == k) for k in sorted(set(label))]


def gram_on_axes(terms: Merged, axes: Axes, sizes: tuple[int, ...]) -> Factor:
    """Return the sum of all terms as one Gram on ``axes``.

    A term contributes the product of its coefficient and of its factors on ``axes``.  Factors on
    other axes are ignored.  ``sizes`` are the domain sizes of all axes.
    """
    own_sizes = tuple(sizes[a] for a in axes)
    terms_inside = [
        (c, [(a, f) for a, f in factors if set(a) <= set(axes)]) for c, factors in terms
    ]
    full_factors = [(c, f[0][1]) for c, f in terms_inside if len(f) == 1 and f[0][0] == axes]
    if len(full_factors) == len(terms_inside):
        return add_factors(full_factors, own_sizes)
    dimension = math.prod(n - 1 for n in own_sizes)
    gram = np.zeros((dimension, dimension))
    for c, factors in terms_inside:
        gram += c * _kronecker(factors, axes)
    return Factor(sizes=own_sizes, matrix=gram)


def add_factors(parts: Sequence[tuple[float, Factor]], sizes: tuple[int, ...]) -> Factor:
    """Return the weighted sum of residual Grams on the same axes.

    ``parts`` are pairs (weight, Gram).  If all Grams are stored as rows, and all rows together are
    fewer than the coordinates, the sum is stored as rows.  The sum has no matrix if all Grams
    belong to interval queries on one wide attribute, or all to areas of one hierarchy or the
    marginal.  For windows of one width, prefixes and the marginal, the matrix of the sum is
    computed when first read.  Otherwise the sum is a dense matrix.
    """
    if (
        all(f.low_rank for _, f in parts)
        and sum(len(f.matrix) for _, f in parts) < parts[0][1].dimension
    ):
        rows = np.concatenate([math.sqrt(c) * f.matrix for c, f in parts])
        return Factor(sizes=sizes, matrix=rows, low_rank=True)
    grams = [c * f.gram for c, f in parts if isinstance(f, IntervalFactor)]
    if len(grams) == len(parts):
        return interval_factor(functools.reduce(operator.add, grams))
    if (level_gram := _sum_of_levels(parts)) is not None:
        return level_factor(level_gram)
    if (windows := window_sum(parts)) is not None:
        return WindowSumFactor(windows, parts)
    return Factor(sizes=sizes, matrix=_dense_sum(parts))


def _dense_sum(parts: Sequence[tuple[float, Factor]]) -> Array:
    """Return the weighted sum of residual Grams as a matrix; ``parts`` are pairs (weight, Gram)."""
    gram = np.zeros((parts[0][1].dimension,) * 2)
    for c, f in parts:
        gram += c * f.dense()
    return gram


def window_gram_of(factor: Factor) -> WindowGram | None:
    """Return the weights of windows and other queries of a residual Gram; None for other Grams."""
    if isinstance(factor, WindowSumFactor):
        return factor.gram
    return factor.window_gram if isinstance(factor, DeferredFactor) else None


def window_sum(parts: Sequence[tuple[float, Factor]]) -> WindowGram | None:
    """Return a weighted sum of residual Grams of windows of one width and of other queries.

    The other queries are prefixes, suffixes and the marginal.  ``parts`` are pairs (weight, Gram)
    on one axis.  The result is None if there are no windows, several widths, or other queries.
    """
    windows, others = list[tuple[float, WindowGram]](), list[tuple[float, IntervalGram]]()
    for c, factor in parts:
        if (gram := window_gram_of(factor)) is not None:
            windows.append((c, gram))
        elif isinstance(factor, IntervalFactor) and factor.gram.ranges == 0.0:
            others.append((c, residual_gram(factor.gram)))
        else:
            return None
    if len({gram.width for _, gram in windows}) != 1:
        return None
    mixes: list[tuple[float, WindowGram | IntervalGram]] = [*windows, *others]
    return replace(
        windows[0][1],
        weight=sum(c * gram.weight for c, gram in windows),
        prefix=sum(c * gram.prefix for c, gram in mixes),
        marginal=sum(c * gram.marginal for c, gram in mixes),
    )


def _sum_of_levels(parts: Sequence[tuple[float, Factor]]) -> LevelGram | None:
    """Return the weighted sum of Grams of areas of one hierarchy and of the marginal.

    The result is None if a Gram has other queries, if no Gram has areas, or if hierarchies differ.
    """
    levels = [c * f.gram for c, f in parts if isinstance(f, LevelFactor)]
    marginals = [
        c * f.gram.marginal
        for c, f in parts
        if isinstance(f, IntervalFactor) and f.gram.is_marginal
    ]
    is_complete = len(levels) + len(marginals) == len(parts) and len(levels) > 0
    if not is_complete or len({gram.tree.key for gram in levels}) > 1:
        return None
    if marginals:
        levels.append(levels[0].marginal(math.fsum(marginals)))
    return functools.reduce(operator.add, levels)


def _kronecker(factors: Sequence[tuple[Axes, Factor]], axes: Axes) -> Array:
    """Return the Kronecker product of residual Grams, with coordinates in the order of ``axes``."""
    product: Array = np.ones((1, 1))
    order: list[int] = []
    shape: list[int] = []
    for factor_axes, factor in factors:
        product = np.asarray(np.kron(product, factor.dense()), dtype=float)
        order += [axes.index(a) for a in factor_axes]
        shape += [n - 1 for n in factor.sizes]
    position = [order.index(k) for k in range(len(order))]
    sorted_axes = (*position, *(len(shape) + p for p in position))
    return product.reshape(*shape, *shape).transpose(sorted_axes).reshape(product.shape)


# largest number of entries of a chunk of query rows, if it has several rows
MAX_CHUNK_ENTRIES = 1 << 22


def part_rows(part: Part, weights: Array | None = None) -> Array:
    """Return rows with the same Gram as the queries of a family, shape (rows, cells).

    There are at most as many rows as cells and as queries.  ``weights`` holds one weight per query,
    shape (queries,); None if all are 1.

    >>> from engine import Attribute, Schema, Workload
    >>> group = Workload(Schema([Attribute.of_size("age", 3)])).add("age", "range").groups[0]
    >>> group.count, part_rows(group.parts[0]).shape
    (6, (3, 3))
    """
    if len(part.sizes) == 1 and part.count > part.sizes[0]:
        # the rows are a root of the Gram, so that the queries need not be listed
        eigenvalues, U = scipy.linalg.eigh(
            part.family.gram(part.sizes, weights), check_finite=False
        )
        return np.asarray((U * np.sqrt(np.maximum(eigenvalues, 0.0))).T)
    stacked: list[Array] = []
    for start, chunk in part.family.chunks(part.sizes):
        stacked.append(
            chunk if weights is None else chunk * np.sqrt(weights[start : start + len(chunk), None])
        )
        # the rows so far are reduced to at most one per cell, to save memory
        if sum(map(len, stacked)) > 2 * chunk.shape[1]:
            stacked = [reduce_rows(np.concatenate(stacked))]
    return reduce_rows(np.concatenate(stacked))


def product_rows(group: Group) -> Array:
    """Return rows with the same Gram as a group's queries, shape (rows, cells).

    Cells are in the order of the group's attributes.  Weights per query are not applied.
    """
    product: Array = np.ones((1, 1))
    for part in group.parts:
        product = np.asarray(np.kron(product, part_rows(part)), dtype=float)
    return product


def reduce_rows(rows: Array) -> Array:
    """Return rows with the same Gram as ``rows``, at most as many as columns."""
    if len(rows) <= rows.shape[1]:
        return rows
    return np.asarray(scipy.linalg.qr(rows, mode="r", check_finite=False)[0][: rows.shape[1]])


def rows_bytes(part: Part) -> int:
    """Return an upper bound on the memory in bytes that `part_rows` needs for a query family."""
    cells = part.cells
    if len(part.sizes) == 1:
        return 8 * 4 * cells * cells
    return 8 * 3 * min(part.count * cells, 2 * cells * cells + max(MAX_CHUNK_ENTRIES, cells))
