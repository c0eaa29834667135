"""Variances of every query of a group in closed form, without listing the queries.

The variance of a query is a sum over the residual spaces B inside its attributes.  For each B it is noise_B^2 times a
product of arrays, each over the queries of one part of the group (or of a few parts that one strategy couples):

    part outside B                (q . pi)^2
    part inside B                 q N C N^T q^T,  C the covariance of the class coordinates at noise scale 1

So sums need no outer product, a maximum needs the Pareto front of every part, and a stretch of values is a slice.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from engine.blocks import Block
from engine.decomposition import Axes, Complement, Space, class_rows, digest, whole_group
from engine.family import Array
from engine.strategy import Strategy
from engine.workload import Group, Part

SLAB = 1 << 22  # values computed at once
LEAVING = 1e-6  # largest share of a piece that may leave the measured span through rounding
Parts = tuple[int, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class Summand:
    """``coefficient`` times a product of arrays, each over the queries of the parts that it names.

    ``axes`` are the attributes of the group, by position, whose residual space it belongs to; None where it has none.
    """

    coefficient: float
    arrays: tuple[tuple[Parts, Array], ...]
    axes: Axes | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class GroupVariance:
    """Variances of a group's queries, in counts^2; ``unmeasured`` marks queries that cannot be answered."""

    counts: tuple[int, ...]
    summands: tuple[Summand, ...]
    unmeasured: tuple[Summand, ...] = ()

    def total(self) -> float:
        """Sum of the variances over all queries; infinite when one cannot be answered."""
        if any(self._sum(s) > 0 for s in self.unmeasured):
            return math.inf
        return math.fsum(s.coefficient * self._sum(s) for s in self.summands)

    def _sum(self, summand: Summand) -> float:
        covered = {p for parts, _ in summand.arrays for p in parts}
        free = math.prod(n for p, n in enumerate(self.counts) if p not in covered)
        return free * math.prod(float(a.sum()) for _, a in summand.arrays)

    def largest(self) -> float:
        """Largest variance of a query."""
        if any(self._sum(s) > 0 for s in self.unmeasured):
            return math.inf
        sets = _coupled(len(self.counts), [parts for s in self.summands for parts, _ in s.arrays])
        fronts = []
        for together in sets:
            shape = tuple(self.counts[p] for p in together)
            features = {
                (parts, id(a)): _spread(parts, a, together, shape)
                for s in self.summands
                for parts, a in s.arrays
                if set(parts) <= set(together)
            }
            kept = _pareto(np.stack(list(features.values()))) if features else np.zeros(1, dtype=np.int64)
            fronts.append({key: values[kept] for key, values in features.items()})
        lengths = [len(next(iter(f.values()))) if f else 1 for f in fronts]
        owner = {p: k for k, together in enumerate(sets) for p in together}
        best = 0.0
        head = lengths[0] if lengths else 1
        step = max(1, SLAB // max(1, math.prod(lengths[1:])))
        for start in range(0, head, step):
            shape = (min(step, head - start), *lengths[1:])
            values = np.zeros(shape if lengths else ())
            for s in self.summands:
                product: Any = s.coefficient
                for parts, a in s.arrays:
                    k = owner[parts[0]]
                    own = fronts[k][parts, id(a)]
                    product = product * _axis(own[start : start + step] if k == 0 else own, k, len(sets))
                values += product
            best = max(best, float(values.max()))
        return best

    def values(self, start: int, stop: int) -> Array:
        """Variances of queries ``start:stop``, the last part varying fastest."""
        if stop <= start:
            return np.zeros(0)
        out = np.empty(stop - start)
        for low, high, index in slabs(self.counts, start, stop):
            out[low - start : high - start] = self.at(index).ravel()[index_window(index, self.counts, low, high)]
        return out

    def at(self, index: tuple[Any, ...]) -> Array:
        """Variances of chosen queries: one range a part for a slab, or one integer array a part for points."""
        by_range = not index or isinstance(index[0], range)
        shape = tuple(len(i) for i in index) if by_range else (len(index[0]),)
        values, unanswerable = np.zeros(shape), np.zeros(shape, dtype=bool)
        for summands, marks in ((self.summands, False), (self.unmeasured, True)):
            for s in summands:
                product: Any = s.coefficient
                for parts, a in s.arrays:
                    product = product * _pick(a, parts, index)
                if marks:
                    unanswerable |= np.broadcast_to(product, shape) > 0
                else:
                    values += product
        values[unanswerable] = math.inf
        return values


def slabs(counts: Sequence[int], start: int, stop: int) -> Iterator[tuple[int, int, tuple[Any, ...]]]:
    """Yield (low, high, index) pieces of a stretch of row-major indices.

    ``index`` is one range per part, whole in all but the leading parts, when the piece is a slab; or one integer array
    per part when slabs would be too wide.
    """
    if not counts:
        yield start, stop, ()
        return
    width = math.prod(counts[1:])
    if width <= SLAB:
        first, last = start // width, -(-stop // width)
        step = max(1, SLAB // width)
        for row in range(first, last, step):
            end = min(last, row + step)
            yield max(start, row * width), min(stop, end * width), (range(row, end), *(range(n) for n in counts[1:]))
        return
    for low in range(start, stop, SLAB // 4):
        high = min(stop, low + SLAB // 4)
        remaining, index = np.arange(low, high, dtype=object if math.prod(counts) >= 2**62 else np.int64), []
        for n in reversed(counts):
            remaining, position = np.divmod(remaining, n)
            index.append(position.astype(np.int64))
        yield low, high, tuple(reversed(index))


def index_window(index: tuple[Any, ...], counts: Sequence[int], low: int, high: int) -> slice:
    """Return the part of a raveled piece of `slabs` that holds the indices ``low:high``."""
    if not index or not isinstance(index[0], range):
        return slice(0, high - low)
    offset = index[0].start * math.prod(counts[1:])
    return slice(low - offset, high - offset)


def _pick(array: Array, parts: Parts, index: tuple[Any, ...]) -> Array:
    if not isinstance(index[0], range):
        return array[tuple(index[p] for p in parts)]
    window = array[tuple(slice(index[p].start, index[p].stop) for p in parts)]
    shape = [1] * len(index)
    for p, n in zip(parts, window.shape, strict=True):
        shape[p] = n
    return window.reshape(shape)


def _axis(values: Array, k: int, dimensions: int) -> Array:
    shape = [1] * dimensions
    shape[k] = len(values)
    return values.reshape(shape)


def _spread(parts: Parts, array: Array, together: Parts, shape: tuple[int, ...]) -> Array:
    own = [array.shape[parts.index(p)] if p in parts else 1 for p in together]
    return np.broadcast_to(array.reshape(own), shape).ravel()


def _coupled(count: int, links: Sequence[Parts]) -> list[Parts]:
    label = list(range(count))
    for parts in links:
        joined = {label[p] for p in parts}
        label = [min(joined) if x in joined else x for x in label]
    return [tuple(p for p in range(count) if label[p] == k) for k in sorted(set(label))]


def _pareto(features: Array) -> Any:
    """Return columns of ``features`` (features x points) such that every point is dominated by one of them."""
    order = np.argsort(-features.sum(axis=0), kind="stable")
    kept = []
    while len(order):
        head = order[0]
        kept.append(head)
        order = order[(features[:, order] > features[:, [head]]).any(axis=0)]
    return np.array(kept)


@dataclass(kw_only=True, eq=False)
class VarianceBuilder:
    """Builds `GroupVariance` objects for one plan; arrays and groups that are alike are computed once."""

    blocks: Mapping[Space, Block]
    centers: Mapping[str, Array]
    complements: Mapping[Space, Complement]
    order: Mapping[str, int]
    _arrays: dict[Any, Array] = field(default_factory=dict)
    _groups: dict[Any, GroupVariance] = field(default_factory=dict)

    def group(self, group: Group) -> GroupVariance:
        """Return the variances of one group."""
        subsets = []
        for k in range(len(group.attributes) + 1):
            for axes in itertools.combinations(range(len(group.attributes)), k):
                ranked = tuple(sorted(axes, key=lambda a: self.order[group.attributes[a]]))
                subsets.append((ranked, self.blocks.get(tuple(group.attributes[a] for a in ranked))))
        centers = tuple(digest(self.centers.get(name)) for name in group.attributes)
        pair = tuple(sorted(group.attributes, key=self.order.__getitem__))
        complement = self.complements.get(pair)
        if complement is not None and pair != group.attributes:
            complement = complement.turned()
        made = tuple(
            (axes, None if b is None else (b.noise, id(b.weights), *((a, id(s)) for a, s in b.factors)))
            for axes, b in subsets
        )
        key = (tuple((p.axes, p.key) for p in group.parts), centers, made, complement and complement.key)
        if key not in self._groups:
            if complement is None:
                self._groups[key] = self._build(group, subsets)
            else:
                self._groups[key] = self._build_pair(group, subsets, complement)
        return self._groups[key]

    def _build(self, group: Group, subsets: Sequence[tuple[Axes, Block | None]]) -> GroupVariance:
        summands, unmeasured = [], []
        for axes, block in subsets:
            outside = tuple(p for p, part in enumerate(group.parts) if not set(part.axes) & set(axes))
            asked: list[tuple[Parts, Array]] = [((p,), self._present(group, p, ())) for p in outside]
            for marks in self._missing(group, axes, block):
                unmeasured.append(Summand(coefficient=1.0, arrays=(*asked, *marks)))
            if block is not None:
                arrays: list[tuple[Parts, Array]] = [((p,), self._outside(group, p)) for p in outside]
                arrays += [
                    self._inside(group, axes, factors, weights=block.weights)
                    for factors in self._components(group, axes, block)
                ]
                summands.append(Summand(coefficient=block.noise**2, arrays=tuple(arrays), axes=axes))
        unmeasured = [s for s in unmeasured if all(a.any() for _, a in s.arrays)]
        return GroupVariance(
            counts=tuple(p.count for p in group.parts), summands=tuple(summands), unmeasured=tuple(unmeasured)
        )

    def _build_pair(
        self, group: Group, subsets: Sequence[tuple[Axes, Block | None]], complement: Complement
    ) -> GroupVariance:
        """Return the variances of a group on a pair with a tuned complement, whose pieces are no products."""
        part = group.parts[0] if len(group.parts) == 1 else whole_group(group)
        given = [self.centers.get(group.attributes[a]) for a in part.axes]
        own = complement if part.axes == (0, 1) else complement.turned()
        counts, everything = tuple(p.count for p in group.parts), tuple(range(len(group.parts)))
        summands, unmeasured = [], []
        for axes, block in subsets:
            inside = tuple(sorted(part.axes.index(a) for a in axes))
            rows = np.concatenate([class_rows(part, inside, given, c, own) for _, c in part.family.chunks(part.sizes)])
            if not rows.shape[1]:
                continue
            present = np.linalg.norm(rows, axis=1) > 1e-9 * max(1.0, float(np.abs(rows).max(initial=0.0)))
            if block is None:
                unmeasured.append(
                    Summand(coefficient=1.0, arrays=((everything, present.astype(float).reshape(counts)),))
                )
                continue
            (strategy,) = (s for _, s in block.factors) if block.factors else (None,)
            squares = np.sum(rows**2, axis=1)
            if strategy is not None:
                turned = rows.reshape(len(rows), *(part.sizes[i] - 1 for i in inside))
                if [part.axes[i] for i in inside] != list(axes):
                    turned = np.swapaxes(turned, 1, 2)
                flat = turned.reshape(len(rows), -1)
                squares = np.sum((flat @ strategy.pinv) ** 2, axis=1)
                if not strategy.complete:
                    lost = (present & strategy.leaves_span(flat)).astype(float).reshape(counts)
                    unmeasured.append(Summand(coefficient=1.0, arrays=((everything, lost),)))
            arrays = ((everything, squares.reshape(counts)),)
            summands.append(Summand(coefficient=block.noise**2, arrays=arrays, axes=axes))
        return GroupVariance(counts=counts, summands=tuple(summands), unmeasured=tuple(unmeasured))

    def _present(self, group: Group, p: int, inside: Axes) -> Array:
        """Return 1 for queries of a part with a piece on the positions ``inside`` of it, 0 where that is rounding."""
        part = group.parts[p]
        given = [self.centers.get(group.attributes[a]) for a in part.axes]
        key = ("present", part.key, inside, tuple(digest(g) for g in given))
        if key not in self._arrays:
            marks = []
            for _, chunk in part.family.chunks(part.sizes):
                norm = np.linalg.norm(class_rows(part, inside, given, chunk), axis=1)
                marks.append(norm > 1e-9 * np.linalg.norm(chunk, axis=1))
            self._arrays[key] = np.concatenate(marks).astype(float)
        return self._arrays[key]

    def _outside(self, group: Group, p: int) -> Array:
        part = group.parts[p]
        given = [self.centers.get(group.attributes[a]) for a in part.axes]
        key = ("outside", part.key, tuple(digest(g) for g in given))
        if key not in self._arrays:
            weights = np.ones(1)
            for n, g in zip(part.sizes, given, strict=True):
                weights = np.kron(weights, np.full(n, 1.0 / n) if g is None else g)
            self._arrays[key] = part.family.dot(part.sizes, weights) ** 2
        return self._arrays[key]

    def _components(self, group: Group, axes: Axes, block: Block) -> list[list[tuple[Axes, Strategy]]]:
        """Return the block's factors, grouped when a part of the group touches several of them."""
        factors = [(tuple(axes[a] for a in own), s) for own, s in block.factors]  # axes of the group
        links = [tuple(k for k, (own, _) in enumerate(factors) if set(own) & set(part.axes)) for part in group.parts]
        if block.weights is not None:
            links = [tuple(range(len(factors)))]
        return [[factors[k] for k in joined] for joined in _coupled(len(factors), [x for x in links if x])]

    def _inside(
        self,
        group: Group,
        axes: Axes,
        factors: Sequence[tuple[Axes, Strategy]],
        matrix: str = "pinv",
        weights: Array | None = None,
    ) -> tuple[Parts, Array]:
        """Return squared norms of (class rows) matrix / weights over the queries of the parts that factors touch."""
        covered = {a for own, _ in factors for a in own}
        parts = tuple(p for p, part in enumerate(group.parts) if set(part.axes) & covered)
        touched = [(group.parts[p], tuple(i for i, a in enumerate(group.parts[p].axes) if a in covered)) for p in parts]
        names = [tuple(group.attributes[a] for a in part.axes) for part, _ in touched]
        centers = tuple(digest(self.centers.get(n)) for own in names for n in own)
        order = tuple(a for part, inside in touched for a in (part.axes[i] for i in inside))
        key = (
            tuple((part.key, inside) for part, inside in touched),
            tuple((_ranks(own, order), id(s)) for own, s in factors),
            centers,
            matrix,
            id(weights),
        )
        if key not in self._arrays:
            alone = len(touched) == 1 and len(touched[0][0].sizes) == 1
            if weights is None and matrix == "pinv" and alone and touched[0][0].sizes == factors[0][1].sizes:
                part, strategy = touched[0][0], factors[0][1]
                self._arrays[key] = np.maximum(part.family.quadratic(part.sizes, strategy.cell_covariance), 0.0)
            else:
                self._arrays[key] = self._coupled_array(touched, names, factors, order, matrix, weights)
        return parts, self._arrays[key]

    def _coupled_array(
        self,
        touched: Sequence[tuple[Part, Axes]],
        names: Sequence[tuple[str, ...]],
        factors: Sequence[tuple[Axes, Strategy]],
        order: Axes,
        matrix: str,
        weights: Array | None,
    ) -> Array:
        """Return squared norms of (class rows) matrix / weights over all queries of the touched parts."""
        rows = []
        for (part, inside), own in zip(touched, names, strict=True):
            given = [self.centers.get(n) for n in own]
            pieces = [class_rows(part, inside, given, chunk) for _, chunk in part.family.chunks(part.sizes)]
            rows.append(np.concatenate(pieces))
        size = {a: part.sizes[i] - 1 for part, inside in touched for i, a in ((i, part.axes[i]) for i in inside)}
        out = np.empty(tuple(len(r) for r in rows))
        width = math.prod(len(r) for r in rows[1:]) * max(math.prod(size.values()), 1)
        step = max(1, 4 * SLAB // width)
        for start in range(0, len(rows[0]), step):
            tensor = rows[0][start : start + step]
            for r in rows[1:]:
                tensor = np.einsum("qa,pb->qpab", tensor.reshape(-1, tensor.shape[-1]), r).reshape(
                    -1, tensor.shape[-1] * r.shape[-1]
                )
            tensor = tensor.reshape(len(tensor), *(size[a] for a in order))
            remaining = list(order)
            for axes, strategy in factors:
                positions = [1 + remaining.index(a) for a in axes]
                shaped = np.eye(strategy.dimension) if matrix == "whole" else getattr(strategy, matrix)
                shaped = shaped.reshape(*(size[a] for a in axes), -1)
                tensor = np.tensordot(tensor, shaped, axes=(positions, list(range(len(axes)))))
                remaining = [a for a in remaining if a not in axes]
            tensor = tensor if weights is None else tensor / weights
            squares = np.einsum("qr,qr->q", *(tensor.reshape(len(tensor), -1),) * 2)
            out[start : start + step] = squares.reshape(-1, *out.shape[1:])
        return out

    def _missing(self, group: Group, axes: Axes, block: Block | None) -> list[list[tuple[Parts, Array]]]:
        """Return products of 0/1 arrays; each marks queries with a piece that the block does not measure."""
        if block is not None and all(s.complete for _, s in block.factors):
            return []
        touched = [
            (p, tuple(i for i, a in enumerate(part.axes) if a in axes))
            for p, part in enumerate(group.parts)
            if set(part.axes) & set(axes)
        ]
        present: list[tuple[Parts, Array]] = [((p,), self._present(group, p, inside)) for p, inside in touched]
        if block is None:
            return [present]
        out = []
        for factors in self._components(group, axes, block):
            if all(s.complete for _, s in factors):
                continue
            parts, measured = self._inside(group, axes, factors, "span")
            _, whole = self._inside(group, axes, factors, "whole")
            leaves = (whole - measured > LEAVING**2 * whole).astype(float)
            for (p,), mark in present:
                if p in parts:
                    leaves = leaves * _axis(mark, parts.index(p), len(parts))
            out.append([(parts, leaves), *(asked for asked in present if asked[0][0] not in parts)])
        return out


def _ranks(own: Axes, order: Axes) -> Axes:
    return tuple(order.index(a) for a in own)
