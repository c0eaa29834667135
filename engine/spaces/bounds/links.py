"""What a workload asks, as the bound needs it: terms on attributes with free weights, and the rest in closed form.

An attribute whose Grams do not change when its cells are shifted around (marginals, circular ranges, totals) has
uniform weights at the best, by symmetry.  Then s = mu^(1/2) is an eigenvector of all its Grams, so that nothing couples
the cells' sum to the rest: it is either outside, a factor ``total``, or inside, a factor ``rest``.  Subsets of such
attributes part the problem into `Link`s, one a subset, on the free attributes alone.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import scipy

from engine.arrays import Array
from engine.spaces.bounds.norms import root_trace
from engine.spaces.split import Role, Space
from engine.spaces.splits import part_rows
from engine.workload import Part, Workload, whole_group

PROBES = 3  # random tables that tell whether a part asks the same in both orders
MOST_ENTRIES = 4_000_000  # of the rows of a joint part that is looked at; a larger one counts as nothing
Key = int  # of a part: equal numbers ask the same
Pieces = tuple[tuple[Space, Key], ...]  # attributes and key of every part


@dataclass(frozen=True, kw_only=True, eq=False)
class Link:
    """What is asked of free attributes together with some settled ones: weights by the parts of the free ones."""

    terms: dict[Pieces, float]

    @cached_property
    def names(self) -> Space:
        """Attributes that some part has."""
        return tuple(sorted({name for pieces in self.terms for names, _ in pieces for name in names}))

    def kinds(self, sizes: Mapping[str, int]) -> Counter[tuple[int, ...]]:
        """Return the sizes of the attributes of all sets inside some term, with the number of such sets."""
        seen: set[Space] = set()
        for pieces in self.terms:
            names = sorted(name for part, _ in pieces for name in part)
            for count in range(len(names) + 1):
                seen.update(itertools.combinations(names, count))
        return Counter(tuple(sorted(sizes[name] for name in inside)) for inside in seen)


@dataclass(kw_only=True, eq=False)
class Linked:
    """A workload in links over its free attributes.

    Attributes
    ----------
    links : distinct ones.
    sums : the nuclear norm is the sum over these of root(sum of squares of factor times norm of the link, by number).
    roles, sizes : of the free attributes; attributes with the same role are asked alike and share their weights.
    rows : key of a part -> rows with its Gram, shape (k, cells of the part).
    swaps : key of a part on two attributes -> whether it asks the same of them in both orders.
    singles : role -> keys of its parts on one attribute.
    joints : key of a part on several attributes -> their roles, in one of the places where it is asked.
    """

    links: list[Link]
    sums: list[tuple[float, dict[int, float]]]
    roles: dict[str, Role]
    sizes: dict[Role, int]
    rows: dict[Key, Array]
    swaps: dict[Key, bool]
    singles: dict[Role, list[Key]] = field(default_factory=dict)
    joints: dict[Key, tuple[Role, ...]] = field(default_factory=dict)


def in_links(workload: Workload) -> Linked:
    """Return what a workload asks; groups of weight 0 and joint parts that are too large are left out."""
    rows: dict[Key, Array] = {}
    shapes: dict[Key, Part] = {}
    numbers: dict[Any, Key] = {}
    groups: list[tuple[float, Pieces]] = []
    for group in workload.groups:
        own, weight = group.query_weights, group.weight
        if own is not None and not group.parts:
            weight, own = weight * float(own[0]), None
        parts: Sequence[Part] = group.parts if own is None or len(group.parts) == 1 else (whole_group(group),)
        large = any(len(p.axes) > 1 and p.count * math.prod(p.sizes) > MOST_ENTRIES for p in parts)
        if not group.is_weighted or large:
            continue
        asked: list[tuple[Space, Key]] = []
        for part in parts:
            key = numbers.setdefault((part.key, None if own is None else own.tobytes()), len(numbers))
            if key not in rows:
                rows[key], shapes[key] = part_rows(part, own), part
            asked.append((tuple(group.attributes[a] for a in part.axes), key))
        groups.append((weight, tuple(sorted(asked))))
    joint = {name for _, pieces in groups for names, _ in pieces if len(names) > 1 for name in names}
    settled = _Settled(rows)
    moved = {names[0] for _, pieces in groups for names, key in pieces if len(names) == 1 and settled.of(key) is None}
    free = joint | moved
    swaps = {key: _swaps(rows[key], p.sizes) for key, p in shapes.items() if len(p.sizes) == 2}
    roles = _roles(groups, free, swaps, workload)
    sizes = {role: workload.schema[name].size for name, role in roles.items()}
    links, sums = _sums(_links(groups, free, settled), settled)
    out = Linked(links=links, sums=sums, roles=roles, sizes=sizes, rows=rows, swaps=swaps)
    for _, pieces in groups:
        for names, key in pieces:
            if len(names) == 1 and names[0] in free and key not in out.singles.setdefault(roles[names[0]], []):
                out.singles[roles[names[0]]].append(key)
            if len(names) > 1:
                out.joints.setdefault(key, tuple(roles[name] for name in names))
    return out


def _swaps(rows: Array, sizes: Sequence[int]) -> bool:
    """Return whether a part asks the same of two attributes in both orders, by the answers to random tables."""
    if sizes[0] != sizes[1]:
        return False
    tables = np.random.default_rng(0).standard_normal((PROBES, *sizes))
    one, other = (np.sum((t.reshape(PROBES, -1) @ rows.T) ** 2, axis=1) for t in (tables, tables.transpose(0, 2, 1)))
    return bool(np.allclose(one, other, rtol=1e-12, atol=0.0))


def _roles(
    groups: list[tuple[float, Pieces]], free: set[str], swaps: Mapping[Key, bool], workload: Workload
) -> dict[str, Role]:
    seen: dict[str, list[Any]] = {name: [] for name in workload.schema.names if name in free}
    for weight, pieces in groups:
        keys = tuple(sorted(key for _, key in pieces))
        for names, key in pieces:
            for position, name in enumerate(names):
                if name in free:
                    seen[name].append((key, 0 if swaps.get(key) else position, weight, keys))
    numbers: dict[Any, Role] = {}
    return {
        name: numbers.setdefault((workload.schema[name].size, tuple(sorted(places))), len(numbers))
        for name, places in seen.items()
    }


class _Settled:
    """The two factors of parts whose best weights are uniform: what the sum over cells is worth, and the rest."""

    def __init__(self, rows: dict[Key, Array]) -> None:
        self.rows, self.known = rows, dict[Key, tuple[float, float] | None]()

    def of(self, key: Key) -> tuple[float, float] | None:
        """Return (a, tr sqrt C), or None when the Gram is no function of the distance on a circle."""
        if key not in self.known:
            gram = self.rows[key].T @ self.rows[key]
            n = len(gram)
            alike = np.allclose(gram, np.roll(gram, (1, 1), (0, 1)), rtol=0, atol=1e-12 * np.abs(gram).max())
            # a circulant has its eigenvalues in its Fourier transform, the first one for the sum
            exact = scipy.linalg.circulant(gram[0]) / n
            total = float(exact[0].sum())
            self.known[key] = (total, root_trace(exact - total / n)[0]) if alike else None
        return self.known[key]


def _links(groups: list[tuple[float, Pieces]], free: set[str], settled: _Settled) -> dict[Pieces, dict[Pieces, float]]:
    """Return the terms on free attributes for every set of settled parts that are inside."""
    out: dict[Pieces, dict[Pieces, float]] = {}
    for weight, pieces in groups:
        kept = tuple(p for p in pieces if len(p[0]) > 1 or p[0][0] in free)
        fixed = [p for p in pieces if len(p[0]) == 1 and p[0][0] not in free]
        factors = [settled.known[key] or (0.0, 0.0) for _, key in fixed]
        for inside in itertools.product((False, True), repeat=len(fixed)):
            value = weight * math.prod(f[0] for f, within in zip(factors, inside, strict=True) if not within)
            if all(f[1] > 0.0 for f, within in zip(factors, inside, strict=True) if within):
                terms = out.setdefault(tuple(itertools.compress(fixed, inside)), {})
                terms[kept] = terms.get(kept, 0.0) + value
    return out


def _sums(
    linked: dict[Pieces, dict[Pieces, float]], settled: _Settled
) -> tuple[list[Link], list[tuple[float, dict[int, float]]]]:
    """Return distinct links, and the sums over them, those with the same single link put together."""
    numbers: dict[Any, int] = {}
    links: list[Link] = []
    by_set: dict[Space, dict[int, float]] = {}
    for inside, terms in linked.items():
        key = frozenset(terms.items())
        if key not in numbers:
            numbers[key] = len(links)
            links.append(Link(terms=terms))
        factor = math.prod((settled.known[key] or (0.0, 0.0))[1] for _, key in inside)
        squares = by_set.setdefault(tuple(names[0] for names, _ in inside), {})
        # rows asked in different ways are stacked: |[X; Y]|_*^2 >= |X|_*^2 + |Y|_*^2
        squares[numbers[key]] = math.hypot(squares.get(numbers[key], 0.0), factor)
    single: dict[int, float] = {}
    out: list[tuple[float, dict[int, float]]] = []
    for squares in by_set.values():
        if len(squares) == 1:
            ((number, factor),) = squares.items()
            single[number] = single.get(number, 0.0) + factor
        else:
            out.append((1.0, squares))
    return links, out + [(factor, {number: 1.0}) for number, factor in single.items()]
