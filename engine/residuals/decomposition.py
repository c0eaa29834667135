"""Decomposition of a workload into one Gram matrix per residual space.

What groups ask of every residual space, as arrays: of many spaces that are asked alike, one is looked at.

Decomposition: workload -> one Gram matrix per residual space, kept in structured form.

A residual space belongs to a set B of attributes and holds what the table on B says beyond all smaller tables.  With a
center pi_i (sum 1) for every attribute the identity splits as I = (I - pi_i 1^T) + pi_i 1^T, so a query q on A splits
into one piece for every B inside A: take q . pi_i on the attributes outside B, q (I - pi_i 1^T) on those inside.

Notation
--------
basis N_i      orthonormal basis of the vectors with sum 0, shape (n_i, n_i - 1): the cosine vectors
lift L_i       N_i^T (I - pi_i 1^T), shape (n_i - 1, n_i): takes a table to its class coordinates
class row      q N_i, shape (n_i - 1,): what a query asks of the class coordinates
class Gram     sum of (class row)^T (class row) over the queries, in counts^2

Queries as rows never appear: a product group gives a scalar for every attribute outside B and a small class Gram for
every attribute inside, and the Gram of B is a sum of Kronecker products of those.

Source: QuerySmasher, section 6.2 (equation 3); the cosine basis makes reversing an attribute a change of signs.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from engine._arrays import Array, Index, numbered
from engine._threads import threads_for
from engine.residuals.basis import basis, center, class_rows
from engine.residuals.split import UNIFORM, Axes, Complement, Space, Split, digest
from engine.workload import Group, Part, Workload, subsets, whole_group


@dataclass(frozen=True, kw_only=True, eq=False)
class Spreading:
    """Groups that spread alike over the spaces inside them.

    Attributes
    ----------
    numbers : which groups of the workload, in order, shape (groups,).
    places : their attributes, as positions in the schema and in its order, shape (groups, attributes).
    weights : of the groups, shape (groups,).
    pattern : for every space inside a group the positions of its attributes, what is asked of it, by a number, and how
        often.
    """

    numbers: Index
    places: Index
    weights: Array
    pattern: Sequence[tuple[Axes, int, float]]


@dataclass(frozen=True, kw_only=True, eq=False)
class AskedSpaces:
    """All spaces on so many attributes, in the order in which the groups come to them.

    Attributes
    ----------
    places : their attributes, as positions in the schema, shape (spaces, attributes).
    kinds : the number of their kind, shape (spaces,); spaces of one kind are asked the same, of attributes alike.
    asked : for every kind what is asked, by number, with the sum of weights times how often.
    reached : for every kind a number that is smaller where the groups come to it earlier, sizes compared; (kinds,).
    """

    places: Index
    kinds: Index
    asked: list[dict[int, float]]
    reached: Index


def asked_spaces(
    spreading: Sequence[Spreading], looks: Index, exact: Sequence[Sequence[int]] = ()
) -> list[AskedSpaces]:
    """Return what the groups ask of all spaces, by the number of attributes.

    ``looks`` tells attributes apart, by numbers from 0 on, shape (attributes,).  Sums are taken in the order of groups.
    Spaces inside ``exact`` sets of attributes are left out.

    >>> one = Spreading(
    ...     numbers=np.array([0, 1]),
    ...     places=np.array([[0, 1], [1, 2]]),
    ...     weights=np.ones(2),
    ...     pattern=[((), 0, 4.0), ((0,), 1, 2.0), ((1,), 1, 2.0)],
    ... )
    >>> total, single = asked_spaces([one], np.array([0, 0, 0]))
    >>> total.asked, single.places.tolist(), single.kinds.tolist(), single.asked
    ([{0: 8.0}], [[0], [1], [2]], [0, 1, 0], [{1: 2.0}, {1: 4.0}])
    """
    longest = max((len(own.pattern) for own in spreading), default=1)
    # of many groups of one size those with pieces at the same positions are taken together
    alike: dict[tuple[int, Axes], list[tuple[Spreading, int, int, float]]] = {}
    for own in spreading:
        for i, (positions, number, often) in enumerate(own.pattern):
            alike.setdefault((own.places.shape[1], positions), []).append((own, i, number, often))
    by_size: dict[int, list[tuple[Index, Index, Index, Array]]] = {}
    for (_, positions), pieces in alike.items():
        owns, ranks, numbers, times = zip(*pieces, strict=True)
        counts = [len(own.numbers) for own in owns]
        when = np.concatenate([own.numbers for own in owns]) * longest + np.repeat(ranks, counts)
        places = np.concatenate([own.places for own in owns])[:, list(positions)]
        weights = np.concatenate([own.weights for own in owns]) * np.repeat(times, counts)
        asked = np.repeat(numbers, counts)
        for known in exact:
            left = ~np.isin(places, known).all(axis=1)
            when, places, weights, asked = when[left], places[left], weights[left], asked[left]
        if len(when):
            by_size.setdefault(len(positions), []).append((when, places, asked, weights))
    return [_of_one_size(by_size[k], looks) for k in sorted(by_size)]


def _of_one_size(found: Sequence[tuple[Index, Index, Index, Array]], looks: Index) -> AskedSpaces:
    when, places, asked, weights = (np.concatenate(own) for own in zip(*found, strict=True))
    order = np.argsort(when, kind="stable")
    when, places, asked = when[order], places[order], asked[order]
    firsts, space = numbered(places)
    by_time = np.argsort(firsts, kind="stable")  # spaces in the order in which the groups come to them
    firsts, space = firsts[by_time], np.argsort(by_time, kind="stable")[space]
    # what a space is asked, sorted by space and number, with sums in the order of the groups
    of_pair, pair = numbered(np.column_stack([space, asked]))
    sums = np.bincount(pair, weights[order], minlength=len(of_pair))
    _, value = np.unique(sums, return_inverse=True)
    _, look = numbered(np.column_stack([asked[of_pair], value]))
    counts = np.bincount(space[of_pair], minlength=len(firsts))
    starts = np.cumsum(counts) - counts
    _, kind = numbered(looks[places[firsts]])
    for r in range(int(counts.max(initial=0))):
        has = counts > r
        more = np.zeros(len(firsts), dtype=np.int64)
        more[has] = 1 + look[starts[has] + r]
        _, kind = numbered(np.column_stack([kind, more]))
    examples, kind = numbered(kind[:, None])
    by_time = np.argsort(examples, kind="stable")
    examples, kind = examples[by_time], np.argsort(by_time, kind="stable")[kind]
    told = []
    for k in examples.tolist():
        own = np.arange(starts[k], starts[k] + counts[k])
        own = own[np.argsort(when[of_pair[own]], kind="stable")]
        told.append(dict(zip(asked[of_pair[own]].tolist(), sums[own].tolist(), strict=True)))
    return AskedSpaces(places=places[firsts], kinds=kind, asked=told, reached=when[firsts[examples]])


ROUNDING = 1e-28  # the square of a sum this small against the squares of its terms is the rounding of zero
NEGLIGIBLE = 1e-13  # a class Gram this small against its Gram is the rounding of zero


Factors = tuple[tuple[Axes, int], ...]  # (axes of the space, number of the factor)


@dataclass(frozen=True, kw_only=True, eq=False)
class Factor:
    """Class Gram on some axes: ``matrix`` is the Gram or, when ``low_rank``, fewer rows R with R^T R = Gram."""

    sizes: tuple[int, ...]
    matrix: Array
    low_rank: bool = False

    @property
    def dimension(self) -> int:
        """Number of class coordinates."""
        return int(self.matrix.shape[1])

    def dense(self) -> Array:
        """Return the class Gram, shape (dimension, dimension)."""
        return self.matrix.T @ self.matrix if self.low_rank else self.matrix

    @property
    def table(self) -> Array:
        """Rows of low rank with one axis an attribute, shape (rows, n_1 - 1, ..., n_k - 1)."""
        return self.matrix.reshape(-1, *(n - 1 for n in self.sizes))

    @property
    def trace(self) -> float:
        """Trace of the class Gram, in counts^2."""
        return float(np.sum(self.matrix**2) if self.low_rank else np.trace(self.matrix))

    @property
    def rank(self) -> int:
        """Largest rank that the Gram can have."""
        return min(self.dimension, len(self.matrix))


@dataclass(frozen=True, kw_only=True)
class Term:
    """One summand of a subworkload's Gram: ``coefficient`` times the Kronecker product of factors on disjoint axes."""

    coefficient: float
    factors: Factors


@dataclass(frozen=True, kw_only=True, eq=False)
class Subworkload:
    """The Gram of a residual space up to scale, the largest coefficient being 1.

    ``centers`` holds the center of every attribute, ``labels`` what a mechanism tells attributes apart by.  For
    spaces that are measured together ``spaces`` has the positions of their attributes; so do the keys of
    ``complements``.
    """

    sizes: tuple[int, ...]
    terms: tuple[Term, ...]
    centers: tuple[Array | None, ...]
    labels: tuple[Hashable, ...]
    complements: Mapping[Axes, Complement] = field(default_factory=dict)
    spaces: tuple[Axes, ...] = ()

    @property
    def dimension(self) -> int:
        """Number of class coordinates of the space."""
        return math.prod(n - 1 for n in self.sizes)

    @property
    def mixed(self) -> bool:
        """Whether it is no product of single attributes."""
        return len(self.terms) > 1 or any(len(axes) > 1 for term in self.terms for axes, _ in term.factors)


@dataclass(frozen=True, kw_only=True)
class Decomposition:
    """What has to be solved: distinct subworkloads, and for every residual space which one at which scale.

    Attributes
    ----------
    factors : distinct class Grams that the terms refer to.
    subworkloads : distinct subworkloads.
    spaces : residual space -> (number of its subworkload, scale); spaces that no weighted query touches are absent.
    """

    factors: tuple[Factor, ...]
    subworkloads: tuple[Subworkload, ...]
    spaces: Mapping[Space, tuple[int, float]]

    def of(self, space: Space) -> Subworkload:
        """Return the subworkload of a residual space, up to scale."""
        return self.subworkloads[self.spaces[space][0]]


class Registry:
    """Distinct factors; the same matrix up to scale is kept once."""

    def __init__(self, split: Split) -> None:
        self.split = split
        self.factors: list[Factor] = []
        self._known: dict[Any, list[tuple[Axes, tuple[int, float] | float]]] = {}
        self._digests: dict[str, bytes | None] = {}

    def look_up(
        self, part: Part, names: tuple[str, ...], weights: Array | None
    ) -> list[tuple[Axes, tuple[int, float] | float]]:
        """Return every set of axes of a part with its (factor number, scale), or the scalar if it is empty.

        Weights have shape (queries,).
        """
        weights_key = None if weights is None else hashlib.sha256(weights.tobytes()).digest()
        complement = self.split.complement(names)
        key = (part.key, tuple(map(self._digest, names)), weights_key, complement and complement.key)
        if key not in self._known:
            given, sets = self.split.given(names), subsets(range(len(part.axes)))
            with threads_for(math.prod(part.sizes)):
                self._known[key] = [(inside, self._build(part, inside, given, weights, complement)) for inside in sets]
        return self._known[key]

    def _digest(self, name: str) -> bytes | None:
        if name not in self._digests:
            self._digests[name] = digest(self.split.centers.get(name))
        return self._digests[name]

    def _build(
        self,
        part: Part,
        inside: Axes,
        given: list[Array | None],
        weights: Array | None,
        complement: Complement | None,
    ) -> tuple[int, float] | float:
        sizes = tuple(part.sizes[i] for i in inside)
        whole: float
        if len(part.sizes) == 1:
            gram = part.family.gram(part.sizes, weights)
            pi = center(part.sizes[0], given[0])
            N, whole = basis(part.sizes[0]), float(np.trace(gram))
            if not inside:
                # not pi^T G pi: a sum that cancels is known to 1e-16 of its terms before it is squared, and only to
                # 1e-16 of the square after
                sums = part.family.dot(part.sizes, pi)
                return _nothing_if_rounding(float(np.sum(sums**2 if weights is None else weights * sums**2)), whole)
            # through the Gram that the family knows: ranges on 1,000 cells never list their 500,500 rows
            factor = Factor(sizes=sizes, matrix=N.T @ gram @ N)
        else:
            factor, whole = self._joint(part, inside, given, weights, sizes, complement)
        if not inside:
            return _nothing_if_rounding(factor.trace, whole)
        # N^T takes away what all cells have in common; of a Gram that is nothing else, rounding is left
        if factor.trace <= NEGLIGIBLE * whole or factor.dimension == 0:
            return (-1, 0.0)
        return self._intern(factor)

    @staticmethod
    def _joint(
        part: Part,
        inside: Axes,
        given: list[Array | None],
        weights: Array | None,
        sizes: tuple[int, ...],
        complement: Complement | None,
    ) -> tuple[Factor, float]:
        whole, rows, dimension = 0.0, [], math.prod(n - 1 for n in sizes)
        # with fewer queries than coordinates rows are smaller than their Gram, and keep the condition that squaring
        # loses
        narrow = part.count < dimension
        gram = np.zeros((0 if narrow else dimension,) * 2)
        for start, chunk in part.family.chunks(part.sizes):
            if weights is not None:
                # R^T R is the weighted Gram when rows carry the root of their weight
                chunk = chunk * np.sqrt(weights[start : start + len(chunk), None])
            whole += float(np.sum(chunk**2))
            projected = class_rows(chunk, part.sizes, inside, given, complement)
            if narrow:
                rows.append(projected)
            else:
                gram += projected.T @ projected
        return Factor(sizes=sizes, matrix=np.concatenate(rows) if narrow else gram, low_rank=narrow), whole

    def _intern(self, factor: Factor) -> tuple[int, float]:
        scale = factor.trace
        for number, known in enumerate(self.factors):
            if (known.sizes, known.low_rank, known.matrix.shape) != (
                factor.sizes,
                factor.low_rank,
                factor.matrix.shape,
            ):
                continue
            ratio = scale / known.trace
            # rows of a low-rank factor grow by the root of what their Gram grows by
            stretch = math.sqrt(ratio) if factor.low_rank else ratio
            if np.allclose(factor.matrix, known.matrix * stretch, rtol=0, atol=1e-13 * scale):
                return number, ratio
        self.factors.append(factor)
        return len(self.factors) - 1, 1.0


def _nothing_if_rounding(square: float, whole: float) -> float:
    return square if square > ROUNDING * whole else 0.0


def decompose(
    workload: Workload,
    split: Split = UNIFORM,
    labels: Mapping[str, Hashable] | None = None,
) -> Decomposition:
    """Split a workload into subworkloads, one Gram for every residual space; unions are left to `unite`.

    Guarantee: for every residual space the sum of its terms equals the weighted Gram of the projected queries; spaces
    whose Gram is zero, or that are known exactly, are left out; proportional and identical subworkloads appear once.

    >>> from engine.workload import Attribute, Schema
    >>> schema = Schema([Attribute.of_size(c, 4) for c in "abc"])
    >>> parts = decompose(Workload.all_ways(schema, ways=(1, 2), family="prefix"))
    >>> len(parts.spaces), len(parts.subworkloads)
    (7, 3)
    """
    registry = Registry(split)
    products: dict[Factors, int] = {}
    weights = np.array([group.weight for group in workload.groups])
    own_centers = _told_apart([digest(split.centers.get(name)) for name in workload.schema.names])
    kinds = []
    for alike in workload.alike:
        complements = [0] * len(alike.numbers)
        if split.complements:
            keys = [split.complement(workload.groups[i].attributes) for i in alike.numbers.tolist()]
            complements = _told_apart([c and c.key for c in keys]).tolist()
        # groups that ask the same in the same order under the same split fall into spaces alike
        firsts, kind = numbered(np.column_stack([own_centers[alike.places], complements]))
        for k in range(len(firsts)):
            own = (kind == k) & (weights[alike.numbers] > 0.0)
            if own.any():
                kinds.append((alike.numbers[own], alike.places[own], alike.ranks))
    spreading = []
    for numbers, places, ranks in sorted(kinds, key=lambda kind: int(kind[0][0])):
        pattern = [
            (positions, products.setdefault(factors, len(products)), coefficient)
            for positions, coefficient, factors in _pattern(workload.groups[numbers[0]], ranks, registry)
        ]
        spreading.append(Spreading(numbers=numbers, places=places, weights=weights[numbers], pattern=pattern))
    return _distinct(workload, registry, spreading, tuple(products), labels or {})


def _told_apart(keys: Sequence[Hashable]) -> Index:
    """Return a number for every key, equal for equal ones."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)


def _pattern(group: Group, ranks: Sequence[int], registry: Registry) -> list[tuple[Axes, float, Factors]]:
    """Return how one kind of group spreads over the spaces inside it: (positions, coefficient, factors) each."""
    parts, weights = group.parts, group.query_weights
    if len(parts) > 1 and (weights is not None or registry.split.complement(group.attributes) is not None):
        # neither weights of single queries nor complements are products of parts, so that the rows are taken as a whole
        parts = (whole_group(group),)
    position = {axis: p for p, axis in enumerate(ranks)}  # axis of the group -> position in schema order
    choices = []
    for part in parts:
        found = registry.look_up(part, group.named(part.axes), weights)
        choices.append([(tuple(position[part.axes[i]] for i in inside), piece) for inside, piece in found])
    out = []
    # equation 3 multiplied out: every part is inside the space on some of its attributes and outside on the others, and
    # the Gram of a product is the scalars of the one times the Kronecker product of the other
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
            factors = tuple(sorted((tuple(index[a] for a in axes), number) for axes, number in touched))
            out.append((positions, coefficient, factors))
    return out


def _distinct(
    workload: Workload,
    registry: Registry,
    spreading: Sequence[Spreading],
    products: Sequence[Factors],
    labels: Mapping[str, Hashable],
) -> Decomposition:
    schema, split = workload.schema, registry.split
    looks = _told_apart([(a.size, digest(split.centers.get(a.name)), labels.get(a.name)) for a in schema.attributes])
    alphabet = np.argsort(np.argsort(np.array(schema.names, dtype=object), kind="stable"))
    numbers: dict[Any, int] = {}
    subworkloads: list[Subworkload] = []
    spaces: dict[Space, tuple[int, float]] = {}
    for found in asked_spaces(spreading, looks, schema.exact_places):
        order = numbered(alphabet[found.places])[0]  # every space is there once: the first of each are all, by name
        columns = [list(map(schema.names.__getitem__, column)) for column in found.places[order].T.tolist()]
        names: list[Space] = list(zip(*columns, strict=True)) if columns else [()] * len(order)
        alike: dict[Any, tuple[int, float]] = {}
        for space, kind in zip(names, found.kinds[order].tolist(), strict=True):
            complement = split.complements.get(space) if split.complements else None
            # of ten thousands of spaces few differ: the first of a kind is looked at, the others follow it
            key = kind if complement is None else (kind, complement.key)
            if key not in alike:
                asked = found.asked[kind]
                # Grams in proportion have the same best strategy: the scale matters to the shares of the budget alone
                scale = max(asked.values())
                # coefficients that differ in the last digits only belong to the same subworkload
                terms = tuple(
                    Term(coefficient=float(f"{c / scale:.12e}"), factors=factors)
                    for factors, c in sorted((products[k], c) for k, c in asked.items())
                )
                look = tuple(looks[[schema.order[name] for name in space]].tolist())
                number = numbers.setdefault((look, complement and complement.key, terms), len(subworkloads))
                if number == len(subworkloads):
                    subworkloads.append(
                        Subworkload(
                            sizes=schema.sizes(space),
                            terms=terms,
                            centers=tuple(split.given(space)),
                            labels=tuple(map(labels.get, space)),
                            complements={} if complement is None else {(0, 1): complement},
                        )
                    )
                alike[key] = number, scale
            spaces[space] = alike[key]
    return Decomposition(factors=tuple(registry.factors), subworkloads=tuple(subworkloads), spaces=spaces)


def merge_shape(sub: Subworkload) -> list[Factors]:
    """Return the terms by factor numbers, terms that differ on one set of axes only counted once."""
    kept: list[Factors] = []
    for term in sub.terms:
        same = [
            k
            for k in kept
            if [a for a, _ in k] == [a for a, _ in term.factors]
            and sum(x != y for x, y in zip(k, term.factors, strict=True)) <= 1
        ]
        if not same:
            kept.append(term.factors)
    return kept
