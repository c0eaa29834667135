"""Decomposition of a workload into one Gram matrix per residual space, as Kronecker sums.

A residual space belongs to a set B of attributes and holds the part of the table on B that no
smaller table determines. With a center pi_i (sum 1) for every attribute the identity splits as I =
(I - pi_i 1^T) + pi_i 1^T.  A query q on a set A of attributes therefore is the sum of one piece for
every subset B of A: q multiplied by pi_i on the attributes outside B and by (I - pi_i 1^T) on those
inside.

The Gram matrices are stored as sums of Kronecker products, and queries are never listed as rows.  A
product group contributes a scalar for every attribute outside B and a small residual Gram for every
attribute inside B.  Terms of such a sum that differ on one set of axes only are added up; if one
term remains, the Gram needs no matrix of its own, because a Kronecker Gram has a Kronecker optimum.
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
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import scipy

from engine._arrays import Array, Index, unique_rows
from engine._threads import threads_for
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
from engine.residuals.intervals import IntervalGram, IntervalMatrix, total_square
from engine.residuals.operators import is_wide
from engine.workload import Group, Part, Workload, joint_part, subsets


@dataclass(frozen=True, kw_only=True, eq=False)
class GroupContribution:
    """What groups of queries that are equal up to attribute names add to residual spaces.

    Attributes
    ----------
    numbers : positions of the groups in the workload, ascending, shape (groups,).
    places : positions of their attributes in the schema, in schema order, shape (groups,
        attributes).
    weights : weights of the groups, shape (groups,).
    pattern : the decomposition of one of the groups, with an entry for every residual space and
        every term of its Gram: the positions of the space's attributes in the group, the number of
        the Kronecker product, and its coefficient.
    """

    numbers: Index
    places: Index
    weights: Array
    pattern: Sequence[tuple[Axes, int, float]]


@dataclass(frozen=True, kw_only=True, eq=False)
class QueriedSpaces:
    """Residual spaces with the same number of attributes, ordered by their first group.

    Attributes
    ----------
    places : positions of their attributes in the schema, shape (spaces, attributes).
    kinds : equivalence class of every space, shape (spaces,); the spaces of a class have the same
        Gram, on attributes of equal ``attribute_classes``.
    coefficients : one mapping per class: number of a Kronecker product in the Gram -> its
        coefficient, summed over groups with their weights.
    reached : one rank per class that orders all classes, also those with other numbers of
        attributes, by the first group with a piece on them; shape (classes,).
    """

    places: Index
    kinds: Index
    coefficients: list[dict[int, float]]
    reached: Index


def queried_spaces(
    spreading: Sequence[GroupContribution],
    attribute_classes: Index,
    exact: Sequence[Sequence[int]] = (),
) -> list[QueriedSpaces]:
    """Collect the residual spaces of all groups, one `QueriedSpaces` per number of attributes.

    Coefficients are added up in the order of groups, so that sums have reproducible last digits.

    Parameters
    ----------
    spreading : what the groups add to residual spaces.
    attribute_classes : equivalence class of every attribute, numbered from 0, shape (attributes,).
    exact : sets of attributes with an exact table; the spaces inside them are left out.

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
    longest = max((len(groups.pattern) for groups in spreading), default=1)
    # groups of one size with pieces at the same positions are concatenated into one array
    by_positions: dict[tuple[int, Axes], list[tuple[GroupContribution, int, int, float]]] = {}
    for groups in spreading:
        for i, (positions, product, coefficient) in enumerate(groups.pattern):
            by_positions.setdefault((groups.places.shape[1], positions), []).append(
                (groups, i, product, coefficient)
            )
    by_size: dict[int, list[tuple[Index, Index, Index, Array]]] = {}
    for (_, positions), pieces in by_positions.items():
        members, ranks, terms, coefficients = zip(*pieces, strict=True)
        counts = [len(groups.numbers) for groups in members]
        order = np.concatenate([groups.numbers for groups in members]) * longest + np.repeat(
            ranks, counts
        )
        places = np.concatenate([groups.places for groups in members])[:, list(positions)]
        weights = np.concatenate([groups.weights for groups in members]) * np.repeat(
            coefficients, counts
        )
        products = np.repeat(terms, counts)
        for exact_axes in exact:
            remaining = ~np.isin(places, exact_axes).all(axis=1)
            order, places, weights, products = (
                order[remaining],
                places[remaining],
                weights[remaining],
                products[remaining],
            )
        if len(order):
            by_size.setdefault(len(positions), []).append((order, places, products, weights))
    return [_of_one_size(by_size[k], attribute_classes) for k in sorted(by_size)]


def _of_one_size(
    chunks: Sequence[tuple[Index, Index, Index, Array]], attribute_classes: Index
) -> QueriedSpaces:
    arrival, places, products, weights = (
        np.concatenate(terms) for terms in zip(*chunks, strict=True)
    )
    order = np.argsort(arrival, kind="stable")
    arrival, places, products = arrival[order], places[order], products[order]
    first_rows, space = unique_rows(places)
    by_time = np.argsort(
        first_rows, kind="stable"
    )  # spaces in the order in which the groups reach them
    first_rows, space = first_rows[by_time], np.argsort(by_time, kind="stable")[space]
    # (space, product) pairs, sorted, with sums in the order of the groups
    of_pair, pair = unique_rows(np.column_stack([space, products]))
    sums = np.bincount(pair, weights[order], minlength=len(of_pair))
    _, value = np.unique(sums, return_inverse=True)
    _, term_class = unique_rows(np.column_stack([products[of_pair], value]))
    counts = np.bincount(space[of_pair], minlength=len(first_rows))
    starts = np.cumsum(counts) - counts
    _, kind = unique_rows(attribute_classes[places[first_rows]])
    for r in range(int(counts.max(initial=0))):
        has_term = counts > r
        next_term = np.zeros(len(first_rows), dtype=np.int64)
        next_term[has_term] = 1 + term_class[starts[has_term] + r]
        _, kind = unique_rows(np.column_stack([kind, next_term]))
    examples, kind = unique_rows(kind[:, None])
    by_time = np.argsort(examples, kind="stable")
    examples, kind = examples[by_time], np.argsort(by_time, kind="stable")[kind]
    class_terms = []
    for k in examples.tolist():
        terms = np.arange(starts[k], starts[k] + counts[k])
        terms = terms[np.argsort(arrival[of_pair[terms]], kind="stable")]
        class_terms.append(
            dict(zip(products[of_pair[terms]].tolist(), sums[terms].tolist(), strict=True))
        )
    return QueriedSpaces(
        places=places[first_rows],
        kinds=kind,
        coefficients=class_terms,
        reached=arrival[first_rows[examples]],
    )


# a squared sum below this share of the sum of squares of the queries is the rounding of zero
ROUNDING = 1e-28
# a residual Gram with a trace below this share of the trace of the queries' Gram is the rounding of
# zero
MIN_TRACE_SHARE = 1e-13


Factors = tuple[tuple[Axes, int], ...]  # (axes of the space, number of the factor)


@dataclass(frozen=True, kw_only=True, eq=False)
class Factor:
    """Gram matrix of queries in the residual coordinates of some attributes.

    ``matrix`` is the Gram or, if ``low_rank``, a matrix R of fewer rows with R^T R = Gram.
    """

    sizes: tuple[int, ...]
    matrix: Array
    low_rank: bool = False

    @property
    def dimension(self) -> int:
        """Number of residual coordinates."""
        return int(self.matrix.shape[1])

    def dense(self) -> Array:
        """Return the residual Gram, shape (dimension, dimension)."""
        return self.matrix.T @ self.matrix if self.low_rank else self.matrix

    @property
    def table(self) -> Array:
        """Low-rank rows with one axis per attribute, shape (rows, n_1 - 1, ..., n_k - 1)."""
        return self.matrix.reshape(-1, *(n - 1 for n in self.sizes))

    @property
    def trace(self) -> float:
        """Trace of the residual Gram, in counts^2."""
        return float(np.sum(self.matrix**2) if self.low_rank else np.trace(self.matrix))

    @property
    def rank(self) -> int:
        """Largest rank that the Gram can have."""
        return min(self.dimension, len(self.matrix))


@dataclass(frozen=True, kw_only=True, eq=False)
class IntervalFactor(Factor):
    """Residual Gram of marginal, prefix, suffix or range queries on one wide attribute.

    The n x n matrix is not formed.
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


@dataclass(frozen=True, kw_only=True)
class Term:
    """Summand of a Gram: a coefficient times a Kronecker product of factors on disjoint axes."""

    coefficient: float
    factors: Factors


@dataclass(frozen=True, kw_only=True, eq=False)
class Subworkload:
    """Gram of the queries on a residual space, scaled so that its largest coefficient is 1.

    Attributes
    ----------
    sizes : domain sizes of the attributes.
    terms : summands of the Gram.
    centers : center of every attribute, None for uniform.
    labels : one label per attribute; spaces whose attributes differ in their labels have different
        subworkloads, so that a mechanism can give them different strategies.
    complements : mapping from the positions of a pair's attributes to its tuned complement.
    spaces : for several residual spaces that one strategy measures, the positions of the attributes
        of each; empty for a single residual space.
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
        """Whether the Gram is not a single product of factors on single attributes."""
        return len(self.terms) > 1 or any(
            len(axes) > 1 for term in self.terms for axes, _ in term.factors
        )


@dataclass(frozen=True, kw_only=True)
class Decomposition:
    """Distinct subworkloads, and which of them, at which scale, every residual space has.

    Attributes
    ----------
    factors : distinct residual Grams, numbered as in the terms of the subworkloads.
    subworkloads : distinct subworkloads.
    spaces : mapping from residual spaces to the number of their subworkload and the factor from its
        Gram to theirs; spaces without weighted queries are absent.
    """

    factors: tuple[Factor, ...]
    subworkloads: tuple[Subworkload, ...]
    spaces: Mapping[Space, tuple[int, float]]

    def of(self, space: Space) -> Subworkload:
        """Return the subworkload of a residual space, up to scale."""
        return self.subworkloads[self.spaces[space][0]]


class Registry:
    """Collects residual Grams of a workload; those equal up to scale are stored once."""

    def __init__(self, split: Split) -> None:
        self.split = split
        self.factors: list[Factor] = []
        self._entries: dict[Any, list[tuple[Axes, tuple[int, float] | float]]] = {}
        self._digests: dict[str, bytes | None] = {}

    def look_up(
        self, part: Part, names: tuple[str, ...], weights: Array | None
    ) -> list[tuple[Axes, tuple[int, float] | float]]:
        """Return the residual Gram of a part on every subset of its axes.

        An entry is (axes, (number of the factor, scale)); for the empty set of axes it is (axes,
        sum of squares of the queries applied to the centers).  ``weights`` of single queries have
        shape (queries,); None if all are 1.
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
            centers, sets = self.split.centers_of(names), subsets(range(len(part.axes)))
            with threads_for(math.prod(part.sizes)):
                self._entries[key] = [
                    (inside, self._build(part, inside, centers, weights, complement))
                    for inside in sets
                ]
        return self._entries[key]

    def _digest(self, name: str) -> bytes | None:
        if name not in self._digests:
            self._digests[name] = digest(self.split.centers.get(name))
        return self._digests[name]

    def _build(
        self,
        part: Part,
        inside: Axes,
        centers: list[Array | None],
        weights: Array | None,
        complement: Complement | None,
    ) -> tuple[int, float] | float:
        sizes = tuple(part.sizes[i] for i in inside)
        query_trace: float
        if len(part.sizes) == 1:
            pi = center(part.sizes[0], centers[0])
            if (interval_gram := wide_interval_gram(part, weights)) is not None:
                if inside:
                    return self._intern(interval_factor(interval_gram))
                return total_square(interval_gram, pi)
            gram = part.family.gram(part.sizes, weights)
            N, query_trace = basis(part.sizes[0]), float(np.trace(gram))
            if not inside:
                # not pi^T G pi: where terms cancel, the sum has an error of 1e-16 of its terms
                # before squaring, and pi^T G pi has one of 1e-16 of their squares
                sums = part.family.dot(part.sizes, pi)
                return _zero_if_rounding(
                    float(np.sum(sums**2 if weights is None else weights * sums**2)), query_trace
                )
            # from the family's closed-form Gram: ranges on 1,000 cells have 500,500 rows, which are
            # never listed
            factor = Factor(sizes=sizes, matrix=N.T @ gram @ N)
        else:
            factor, query_trace = self._joint(part, inside, centers, weights, sizes, complement)
        if not inside:
            return _zero_if_rounding(factor.trace, query_trace)
        # N^T removes the constant part of the rows; where the rows are constant, only rounding
        # remains
        if factor.trace <= MIN_TRACE_SHARE * query_trace or factor.dimension == 0:
            return (-1, 0.0)
        return self._intern(factor)

    @staticmethod
    def _joint(
        part: Part,
        inside: Axes,
        centers: list[Array | None],
        weights: Array | None,
        sizes: tuple[int, ...],
        complement: Complement | None,
    ) -> tuple[Factor, float]:
        query_trace, rows, dimension = 0.0, [], math.prod(n - 1 for n in sizes)
        # with fewer queries than coordinates the rows are smaller than their Gram and better
        # conditioned
        narrow = part.count < dimension
        gram = np.zeros((0 if narrow else dimension,) * 2)
        for start, chunk in part.family.chunks(part.sizes):
            if weights is not None:
                # R^T R is the weighted Gram when rows carry the root of their weight
                chunk = chunk * np.sqrt(weights[start : start + len(chunk), None])
            query_trace += float(np.sum(chunk**2))
            projected = residual_rows(chunk, part.sizes, inside, centers, complement)
            if narrow:
                rows.append(projected)
            else:
                gram += projected.T @ projected
        return (
            Factor(sizes=sizes, matrix=np.concatenate(rows) if narrow else gram, low_rank=narrow),
            query_trace,
        )

    def _intern(self, factor: Factor) -> tuple[int, float]:
        scale = factor.trace
        for number, other in enumerate(self.factors):
            if (type(other), other.sizes, other.low_rank, other.matrix.shape) != (
                type(factor),
                factor.sizes,
                factor.low_rank,
                factor.matrix.shape,
            ):
                continue
            if isinstance(factor, IntervalFactor) and isinstance(other, IntervalFactor):
                # suffixes have the Gram of prefixes on a residual space
                if residual_gram(factor.gram) == residual_gram(other.gram):
                    return number, 1.0
                continue
            ratio = scale / other.trace
            # rows of a low-rank factor scale with the square root of their Gram
            stretch = math.sqrt(ratio) if factor.low_rank else ratio
            if np.allclose(factor.matrix, other.matrix * stretch, rtol=0, atol=1e-13 * scale):
                return number, ratio
        self.factors.append(factor)
        return len(self.factors) - 1, 1.0


def wide_interval_gram(part: Part, weights: Array | None = None) -> IntervalGram | None:
    """Return the Gram of a part with interval queries on one wide attribute, in linear storage.

    None for other families, narrow attributes and parts with weights of single queries.
    """
    if len(part.sizes) > 1 or weights is not None or not is_wide(part.sizes[0]):
        return None
    kinds = {"marginal": "marginal", "prefix": "prefix", "suffix": "suffix", "range": "ranges"}
    # weighted rows have the name of their family, but another key
    kind = kinds[part.family.name] if part.family.key in [(name,) for name in kinds] else None
    return None if kind is None else IntervalGram(cells=part.sizes[0], **{kind: 1.0})


def residual_gram(gram: IntervalGram) -> IntervalGram:
    """Return a Gram that is equal on residual spaces, with suffix queries written as prefixes.

    A suffix is the total minus a prefix, and the total has no part on a residual space.
    """
    return replace(gram, prefix=gram.prefix + gram.suffix, suffix=0.0)


def has_identity_gram(part: Part, weights: Array | None = None) -> bool:
    """Return whether a part is a marginal on one wide attribute without weights of single queries."""
    gram = wide_interval_gram(part, weights)
    return gram is not None and gram.is_marginal


def _zero_if_rounding(square: float, reference: float) -> float:
    return square if square > ROUNDING * reference else 0.0


def decompose(
    workload: Workload,
    split: Split = UNIFORM,
    labels: Mapping[str, Hashable] | None = None,
) -> Decomposition:
    """Return the Gram of the workload's queries on every residual space.

    The unions of the split are not applied; see `engine.residuals.tuning.unions.unite`.

    Guarantee: for every residual space the sum of its terms equals the weighted Gram of the
    queries' pieces on it.  Spaces whose Gram is zero, or whose table is public, are left out.
    Proportional Grams on attributes of equal sizes, centers and labels are one subworkload.

    >>> from engine import Attribute, Schema
    >>> schema = Schema([Attribute.of_size(c, 4) for c in "abc"])
    >>> parts = decompose(Workload.all_ways(schema, ways=(1, 2), family="prefix"))
    >>> len(parts.spaces), len(parts.subworkloads)
    (7, 3)
    """
    registry = Registry(split)
    products: dict[Factors, int] = {}
    weights = np.array([group.weight for group in workload.groups])
    center_classes = _class_numbers(
        [digest(split.centers.get(name)) for name in workload.schema.names]
    )
    classes = []
    for group_class in workload.group_classes:
        complements = [0] * len(group_class.numbers)
        if split.complements:
            keys = [
                split.complement(workload.groups[i].attributes)
                for i in group_class.numbers.tolist()
            ]
            complements = _class_numbers([c and c.key for c in keys]).tolist()
        # groups with the same queries in the same order under the same split have the same pattern
        # of spaces
        firsts, split_class = unique_rows(
            np.column_stack([center_classes[group_class.places], complements])
        )
        for k in range(len(firsts)):
            members = (split_class == k) & (weights[group_class.numbers] > 0.0)
            if members.any():
                classes.append(
                    (group_class.numbers[members], group_class.places[members], group_class.ranks)
                )
    spreading = []
    for numbers, places, ranks in sorted(classes, key=lambda member: int(member[0][0])):
        pattern = [
            (positions, products.setdefault(factors, len(products)), coefficient)
            for positions, coefficient, factors in _pattern(
                workload.groups[numbers[0]], ranks, registry
            )
        ]
        spreading.append(
            GroupContribution(
                numbers=numbers, places=places, weights=weights[numbers], pattern=pattern
            )
        )
    return _distinct(workload, registry, spreading, tuple(products), labels or {})


def _class_numbers(keys: Sequence[Hashable]) -> Index:
    """Number the distinct keys from 0 in order of first appearance; return the number of every key."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)


def _pattern(
    group: Group, ranks: Sequence[int], registry: Registry
) -> list[tuple[Axes, float, Factors]]:
    """Return the decomposition of a group: one entry per residual space and term of its Gram.

    An entry has the positions of the space's attributes in the group, the coefficient, and the
    factors.  ``ranks`` holds the axes of the group in schema order.
    """
    parts, weights = group.parts, group.query_weights
    if len(parts) > 1 and (
        weights is not None or registry.split.complement(group.attributes) is not None
    ):
        # per-query weights and complements are not products over the parts, so all parts are
        # replaced by one part on all attributes
        parts = (joint_part(group),)
    position = {
        axis: p for p, axis in enumerate(ranks)
    }  # axis of the group -> position in schema order
    choices = []
    for part in parts:
        entries = registry.look_up(part, group.named(part.axes), weights)
        choices.append(
            [(tuple(position[part.axes[i]] for i in inside), piece) for inside, piece in entries]
        )
    out = []
    # equation 3 multiplied out: every part is inside the space on some of its attributes and
    # outside on the rest; the Gram of a product is the scalars of the parts outside times the
    # Kronecker product of the factors of those inside
    for combination in itertools.product(*choices):
        coefficient, touched = (1.0 if group.parts or weights is None else float(weights[0])), []
        for axes, piece in combination:
            if isinstance(piece, float):
                coefficient *= piece
            else:
                coefficient *= piece[1]
                touched.append((axes, piece[0]))
        if coefficient > 0.0:
            positions = tuple(sorted(a for axes, _ in touched for a in axes))
            index = {p: i for i, p in enumerate(positions)}
            factors = tuple(
                sorted((tuple(index[a] for a in axes), number) for axes, number in touched)
            )
            out.append((positions, coefficient, factors))
    return out


def _distinct(
    workload: Workload,
    registry: Registry,
    spreading: Sequence[GroupContribution],
    products: Sequence[Factors],
    labels: Mapping[str, Hashable],
) -> Decomposition:
    schema, split = workload.schema, registry.split
    attribute_classes = _class_numbers(
        [(a.size, digest(split.centers.get(a.name)), labels.get(a.name)) for a in schema.attributes]
    )
    alphabet = np.argsort(np.argsort(np.array(schema.names, dtype=object), kind="stable"))
    numbers: dict[Any, int] = {}
    subworkloads: list[Subworkload] = []
    spaces: dict[Space, tuple[int, float]] = {}
    for group in queried_spaces(spreading, attribute_classes, schema.exact_places):
        # spaces are distinct, so `unique_rows` returns all of them, sorted by attribute names
        order = unique_rows(alphabet[group.places])[0]
        columns = [
            list(map(schema.names.__getitem__, column)) for column in group.places[order].T.tolist()
        ]
        names: list[Space] = list(zip(*columns, strict=True)) if columns else [()] * len(order)
        solved: dict[Any, tuple[int, float]] = {}
        for space, space_class in zip(names, group.kinds[order].tolist(), strict=True):
            complement = split.complements.get(space) if split.complements else None
            # of tens of thousands of spaces few differ: only the first space of each class is
            # examined
            key = space_class if complement is None else (space_class, complement.key)
            if key not in solved:
                coefficients = group.coefficients[space_class]
                # proportional Grams have the same optimal strategy; the scale only affects the
                # shares of the budget
                scale = max(coefficients.values())
                # coefficients that differ in the last digits only belong to the same subworkload
                terms = tuple(
                    Term(coefficient=float(f"{c / scale:.12e}"), factors=factors)
                    for factors, c in sorted((products[k], c) for k, c in coefficients.items())
                )
                signature = tuple(
                    attribute_classes[[schema.order[name] for name in space]].tolist()
                )
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
                solved[key] = number, scale
            spaces[space] = solved[key]
    return Decomposition(
        factors=tuple(registry.factors), subworkloads=tuple(subworkloads), spaces=spaces
    )


def merge_shape(sub: Subworkload) -> list[Factors]:
    """Return the factors of every term that `merge_terms` leaves, without computing a Gram.

    Of terms that differ on one set of axes only, the first is listed.
    """
    merged: list[Factors] = []
    for term in sub.terms:
        mergeable = [
            k
            for k in merged
            if [a for a, _ in k] == [a for a, _ in term.factors]
            and sum(x != y for x, y in zip(k, term.factors, strict=True)) <= 1
        ]
        if not mergeable:
            merged.append(term.factors)
    return merged


# terms of a Gram after merging: (coefficient, ((axes, factor), ...)) each
Merged = list[tuple[float, tuple[tuple[Axes, Factor], ...]]]


def merge_terms(sub: Subworkload, factors: Sequence[Factor]) -> Merged:
    """Return the terms of a subworkload's Gram, with similar terms added up.

    Two terms with the same factors on all sets of axes but one are one term, with the weighted sum
    of their two factors there.
    """
    terms: Merged = [
        (t.coefficient, tuple((axes, factors[number]) for axes, number in t.factors))
        for t in sub.terms
    ]
    changed = True
    while changed:
        changed = False
        for i in range(len(terms)):
            for j in range(i + 1, len(terms)):
                if (together := _add_terms(terms[i], terms[j])) is not None:
                    terms[i] = together
                    del terms[j]
                    changed = True
                    break
            if changed:
                break
    return terms


def _add_terms(
    a: tuple[float, tuple[tuple[Axes, Factor], ...]],
    b: tuple[float, tuple[tuple[Axes, Factor], ...]],
) -> tuple[float, tuple[tuple[Axes, Factor], ...]] | None:
    if [axes for axes, _ in a[1]] != [axes for axes, _ in b[1]]:
        return None
    differing = [k for k, ((_, f), (_, g)) in enumerate(zip(a[1], b[1], strict=True)) if f is not g]
    if len(differing) != 1:
        return None
    (k,) = differing
    axes, f, g = a[1][k][0], a[1][k][1], b[1][k][1]
    both = add_factors([(a[0], f), (b[0], g)], f.sizes)
    return 1.0, (*a[1][:k], (axes, both), *a[1][k + 1 :])


def axis_partition(
    terms: Sequence[tuple[float, Sequence[tuple[Axes, object]]]], count: int
) -> list[Axes]:
    """Return the finest partition of the axes 0..count-1 with each factor inside one of its sets."""
    label = list(range(count))
    for _, factors in terms:
        for axes, _ in factors:
            lowest = min(label[a] for a in axes)
            joined = {label[a] for a in axes}
            label = [lowest if x in joined else x for x in label]
    return [tuple(a for a in range(count) if label[a] == k) for k in sorted(set(label))]


def assemble(terms: Merged, axes: Axes, sizes: tuple[int, ...]) -> Factor:
    """Return the Gram on some axes: the sum of all terms, restricted to factors on these axes."""
    own_sizes = tuple(sizes[a] for a in axes)
    inside = [(c, [(a, f) for a, f in factors if set(a) <= set(axes)]) for c, factors in terms]
    full_factors = [(c, f[0][1]) for c, f in inside if len(f) == 1 and f[0][0] == axes]
    if len(full_factors) == len(inside):
        return add_factors(full_factors, own_sizes)
    dimension = math.prod(n - 1 for n in own_sizes)
    gram = np.zeros((dimension, dimension))
    for c, factors in inside:
        gram += c * _kronecker(factors, axes)
    return Factor(sizes=own_sizes, matrix=gram)


def add_factors(parts: Sequence[tuple[float, Factor]], sizes: tuple[int, ...]) -> Factor:
    """Return the weighted sum of factors on the same axes.

    The sum has low rank if all factors have and its rows take less memory than its Gram.
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
    gram = np.zeros((parts[0][1].dimension,) * 2)
    for c, f in parts:
        gram += c * f.dense()
    return Factor(sizes=sizes, matrix=gram)


def _kronecker(factors: Sequence[tuple[Axes, Factor]], axes: Axes) -> Array:
    """Return the Kronecker product of factors, its coordinates in the order of ``axes``."""
    out: Array = np.ones((1, 1))
    order: list[int] = []
    shape: list[int] = []
    for factor_axes, factor in factors:
        out = np.asarray(np.kron(out, factor.dense()), dtype=float)
        order += [axes.index(a) for a in factor_axes]
        shape += [n - 1 for n in factor.sizes]
    position = [order.index(k) for k in range(len(order))]
    moved = out.reshape(*shape, *shape).transpose(*position, *(len(shape) + p for p in position))
    return moved.reshape(out.shape)


# entries of one chunk of rows
MAX_CHUNK_ENTRIES = 1 << 22


def part_rows(part: Part, weights: Array | None = None) -> Array:
    """Return rows on the cells of a part with the same Gram as its queries.

    There are at most as many rows as cells, and at most as many as queries.  ``weights`` of single
    queries have shape (queries,); None if all are 1.

    >>> from engine import Attribute, Schema, Workload
    >>> group = Workload(Schema([Attribute.of_size("age", 3)])).add("age", "range").groups[0]
    >>> group.count, part_rows(group.parts[0]).shape
    (6, (3, 3))
    """
    if len(part.sizes) == 1 and part.count > part.sizes[0]:
        eigenvalues, U = scipy.linalg.eigh(
            part.family.gram(part.sizes, weights), check_finite=False
        )
        return np.asarray((U * np.sqrt(np.maximum(eigenvalues, 0.0))).T)
    stacked: list[Array] = []
    for start, chunk in part.family.chunks(part.sizes):
        stacked.append(
            chunk if weights is None else chunk * np.sqrt(weights[start : start + len(chunk), None])
        )
        if sum(map(len, stacked)) > 2 * chunk.shape[1]:
            stacked = [reduce_rows(np.concatenate(stacked))]
    return reduce_rows(np.concatenate(stacked))


def product_rows(group: Group) -> Array:
    """Return rows with the same Gram as a group's queries, shape (rows, cells).

    Cells are in the order of the group's attributes.  Weights of single queries are not applied.
    """
    out: Array = np.ones((1, 1))
    for part in group.parts:
        out = np.asarray(np.kron(out, part_rows(part)), dtype=float)
    return out


def reduce_rows(rows: Array) -> Array:
    """Return at most as many rows as columns, with the same Gram as the given rows."""
    if len(rows) <= rows.shape[1]:
        return rows
    return np.asarray(scipy.linalg.qr(rows, mode="r", check_finite=False)[0][: rows.shape[1]])


def rows_bytes(part: Part) -> int:
    """Return an upper bound on the memory of `part_rows`, in bytes."""
    cells = part.cells
    return 8 * (
        cells * cells * 4
        if len(part.sizes) == 1
        else 3 * min(part.count * cells, 2 * cells * cells + max(MAX_CHUNK_ENTRIES, cells))
    )
