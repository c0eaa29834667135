"""A workload as weighted products of small Grams, one factor for every unit of attributes.

A unit is a set of attributes that some group couples: an affine, abs or custom group on two attributes, or weights of
single queries.  Mostly it is one attribute.  A group that leaves a unit out asks its total, whose Gram is 11^T.  The
Gram of group g on the full domain is  w_g G_{1, k_1} (x) ... (x) G_{U, k_U}  and is never built.

Source: HDMM, section 5 and theorem 6.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.arrays import Array
from engine.errors import NotApplicable
from engine.spaces import Space
from engine.workload import Group, Part, Workload, whole_group

MAX_CELLS = 2048  # of one unit: beyond, a dense solve takes minutes and more
TOTAL = ("total",)


@dataclass(frozen=True, kw_only=True, eq=False)
class Gram:
    """A Gram on the cells of one unit, shape (cells, cells), and a hashable identity."""

    key: tuple[Any, ...]
    matrix: Array


@dataclass(frozen=True, kw_only=True, eq=False)
class ProductGrams:
    """Some groups of a workload as products over units.

    Attributes
    ----------
    attributes : every attribute that the groups touch, in schema order.
    units : the attributes of every unit, in schema order; cells are in row-major order of them.
    grams : the distinct Grams of every unit.
    choice : which Gram of every unit a group asks, shape (groups, units).
    weights : weight of every group, shape (groups,).
    groups : numbers of the groups in the workload.
    """

    attributes: Space
    units: tuple[Space, ...]
    grams: tuple[tuple[Gram, ...], ...]
    choice: npt.NDArray[np.int64]
    weights: Array
    groups: tuple[int, ...]

    @property
    def key(self) -> tuple[Any, ...]:
        """Hashable identity of the problem, whatever the attributes are called."""
        grams = tuple(tuple(g.key for g in unit) for unit in self.grams)
        return (grams, self.choice.tobytes(), (self.weights / self.weights.max()).tobytes())

    def costs(self, covariances: Sequence[Array]) -> list[Array]:
        """Return tr(covariance G_k) for every Gram of every unit: its squared error under a strategy, counts^2.

        Covariances have shape (cells of the unit,) * 2, results (Grams of the unit,).
        """
        return [
            np.array([float(np.sum(c * g.matrix)) for g in unit])
            for c, unit in zip(covariances, self.grams, strict=True)
        ]

    def group_costs(self, costs: Sequence[Array]) -> Array:
        """Return the unweighted squared error of every group, shape (groups,): costs multiply over the units."""
        out = np.ones(len(self.weights))
        for u, own in enumerate(costs):
            out = out * own[self.choice[:, u]]
        return out


class GramBuilder:
    """Builds the products of one workload; equal Grams are built once.

    Parameters
    ----------
    workload : the queries.
    max_cells : most cells of a unit.

    >>> from engine import Attribute, Schema
    >>> asked = Workload(Schema([Attribute.of_size(c, 4) for c in "abc"])).add("a", "prefix").add(("c", "b"), "affine")
    >>> GramBuilder(asked).build((0, 1)).units
    (('a',), ('b', 'c'))
    """

    def __init__(self, workload: Workload, max_cells: int = MAX_CELLS) -> None:
        self.workload, self.max_cells = workload, max_cells
        self._known: dict[Any, Gram] = {}

    def build(self, groups: Iterable[int], units: Sequence[Space] | None = None) -> ProductGrams:
        """Return groups as products over the given units, or over the finest ones that they allow.

        Raises: NotApplicable if a unit has more than ``max_cells`` cells.
        """
        numbers = tuple(groups)
        chosen = [self.workload.groups[k] for k in numbers]
        names = self.workload.schema.ranked({a for g in chosen for a in g.attributes})
        sets = _units(chosen, names) if units is None else tuple(units)
        choice = np.zeros((len(chosen), len(sets)), dtype=np.int64)
        grams: list[tuple[Gram, ...]] = []
        parts = [_parts(g) for g in chosen]
        for u, unit in enumerate(sets):
            self._check(unit)
            # searches see distinct Grams, not groups: thousands of groups ask the same few things of a unit
            distinct: dict[tuple[Any, ...], int] = {}
            found: list[Gram] = []
            for row, (group, own) in enumerate(zip(chosen, parts, strict=True)):
                gram = self._gram(group, own, unit)
                if gram.key not in distinct:
                    distinct[gram.key] = len(found)
                    found.append(gram)
                choice[row, u] = distinct[gram.key]
            grams.append(tuple(found))
        # what weighs the one query on nothing is in no Gram of a unit, so it goes to the group
        single = [float(g.query_weights[0]) if not g.parts and g.query_weights is not None else 1.0 for g in chosen]
        weights = np.array([g.weight * s for g, s in zip(chosen, single, strict=True)])
        return ProductGrams(
            attributes=names, units=sets, grams=tuple(grams), choice=choice, weights=weights, groups=numbers
        )

    def _check(self, unit: Space) -> None:
        sizes = [self.workload.schema[a].size for a in unit]
        if (cells := math.prod(sizes)) > self.max_cells:
            shape = f"{' x '.join(map(str, sizes))} = {cells:,}" if len(sizes) > 1 else f"{cells:,}"
            raise NotApplicable(
                f"The queries on {' and '.join(unit)} need one dense strategy on {shape} cells; this mechanism solves "
                f"at most {self.max_cells:,}. Merge cells into coarser ones, or choose querysmasher."
            )

    def _gram(self, group: Group, parts: Sequence[Part], unit: Space) -> Gram:
        inside = [p for p in parts if group.attributes[p.axes[0]] in unit]
        sizes = tuple(self.workload.schema[a].size for a in unit)
        places = tuple(tuple(unit.index(group.attributes[a]) for a in p.axes) for p in inside)
        weights = group.query_weights if inside else None
        digest = None if weights is None else hashlib.sha256(weights.tobytes()).hexdigest()
        # the total is the same whether it was asked for or nothing was
        asked = [(place, p) for place, p in zip(places, inside, strict=True) if p.family.key != TOTAL or digest]
        key = (sizes, tuple((place, p.key) for place, p in asked), digest)
        if key not in self._known:
            self._known[key] = Gram(key=key, matrix=_unit_gram(sizes, asked, weights))
        return self._known[key]


def _parts(group: Group) -> tuple[Part, ...]:
    """Return the parts of a group; weights of single queries do not factor, so they make it one part."""
    return (whole_group(group),) if len(group.parts) > 1 and group.query_weights is not None else group.parts


def _units(groups: Sequence[Group], names: Space) -> tuple[Space, ...]:
    """Return the finest partition of the attributes that no part of any group crosses, in schema order."""
    label = {name: i for i, name in enumerate(names)}
    for group in groups:
        for part in _parts(group):
            joined = {label[group.attributes[a]] for a in part.axes}
            if len(joined) > 1:
                # all that was joined before comes along, so that the labels stay a partition
                label = {name: min(joined) if k in joined else k for name, k in label.items()}
    return tuple(tuple(n for n in names if label[n] == k) for k in sorted(set(label.values())))


def _unit_gram(sizes: tuple[int, ...], parts: Sequence[tuple[tuple[int, ...], Part]], weights: Array | None) -> Array:
    """Return the Gram on the cells of a unit; a unit is small, so the product within it may be written out."""
    out, order = np.ones((1, 1)), list[int]()
    for places, part in parts:
        out = np.asarray(np.multiply.outer(out, part.family.gram(part.sizes, weights)).swapaxes(1, 2))
        out = out.reshape(math.prod(out.shape[:2]), -1)
        order += places
    rest = [axis for axis in range(len(sizes)) if axis not in order]
    tail = math.prod(sizes[axis] for axis in rest)
    out = np.multiply.outer(out, np.ones((tail, tail))).swapaxes(1, 2).reshape(math.prod(sizes), -1)
    order += rest
    # parts stand in the order in which they were asked; cells of a unit are in schema order
    back = [order.index(axis) for axis in range(len(order))]
    shape = [sizes[axis] for axis in order]
    moved = out.reshape(*shape, *shape).transpose(*back, *(len(order) + b for b in back))
    return np.ascontiguousarray(moved.reshape(out.shape))


def weighted_groups(workload: Workload) -> tuple[int, ...]:
    """Return the numbers of the groups that the objective sees; rows of zeros and weights of zero leave no trace."""
    return tuple(k for k, g in enumerate(workload.groups) if g.weight > 0 and _asks(g))


def _asks(group: Group) -> bool:
    weights = group.query_weights
    if weights is not None and not weights.any():
        return False
    parts = (whole_group(group),) if weights is not None and len(group.parts) > 1 else group.parts
    for part in parts:
        if weights is None and part.family.arity is not None:  # rows of ones and zeros by rule, never all zero
            continue
        chunks = (
            (rows, None if weights is None else weights[i : i + len(rows)])
            for i, rows in part.family.chunks(part.sizes)
        )
        if not any(bool(np.any(rows if w is None else rows[w > 0])) for rows, w in chunks):
            return False
    return True


def by_sets(workload: Workload) -> list[tuple[int, ...]]:
    """Return one cluster for every set of attributes.

    >>> from engine import Attribute, Schema
    >>> asked = Workload.all_ways(Schema([Attribute.of_size(c, 3) for c in "ab"]), (1, 2)).add("a", "marginal")
    >>> by_sets(asked), by_maximal_sets(asked)
    ([(0, 3), (1,), (2,)], [(2, 0, 3, 1)])
    """
    found: dict[frozenset[str], list[int]] = {}
    for k in weighted_groups(workload):
        found.setdefault(frozenset(workload.groups[k].attributes), []).append(k)
    return [tuple(v) for v in found.values()]


def by_maximal_sets(workload: Workload) -> list[tuple[int, ...]]:
    """Return one cluster for every largest set, with each smaller set in one of the clusters that cover it.

    A smaller set goes where fewest groups are yet, in the order of the workload among equals.
    """
    clusters: dict[frozenset[str], list[int]] = {}
    holding: dict[str, list[frozenset[str]]] = {}
    sets = {frozenset(workload.groups[c[0]].attributes): c for c in by_sets(workload)}
    for names in sorted(sets, key=len, reverse=True):
        # what covers a set has each of its attributes, so that one list of those is all there is to look at
        able = min((holding.get(a, []) for a in names), key=len, default=list(clusters))
        covering = [clusters[held] for held in able if names <= held]
        if covering:
            min(covering, key=len).extend(sets[names])
        else:
            clusters[names] = list(sets[names])
            for a in names:
                holding.setdefault(a, []).append(names)
    return [tuple(v) for v in clusters.values()]
