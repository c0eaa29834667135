"""Variances of all queries of a plan in closed form.

Variances of all queries of a group as sums of products of arrays over the queries of its parts.

Sums need no outer product, a maximum needs the Pareto front of every part, and a stretch of values is a slice.

Variances of every query of a group in closed form, without listing the queries.

The variance of a query is a sum over the residual spaces B inside its attributes.  For each B it is noise_B^2 times a
product of arrays, each over the queries of one part of the group (or of a few parts that one strategy couples):

    part outside B                (q . pi)^2
    part inside B                 q N C N^T q^T,  C the covariance of the class coordinates at noise scale 1

Footprints: how the noise of every residual space reaches the queries of a group, with the noise left open.

The variance of a query is sum over the residual spaces j inside the group of s_j times a product of tables,

    Var(q_1, ..., q_K) = sum over j of s_j  prod over k of X_k[j, q_k],

with s_j the squared noise of space j and one table X_k, shape (spaces, queries of its parts), for every set of parts
that no strategy couples to another set.  It is linear in s and, point by point, in the columns of every table.  So the
largest variance lies at vertices of the convex hull of the columns, and equal columns need to be looked at once.
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

from engine._arrays import Array, Index, numbered
from engine._threads import threads_for
from engine.errors import LimitExceeded
from engine.plans.blocks import AlikeBlocks, Block
from engine.residuals import Axes, Complement, Space, Split, Strategy, center, class_rows, contract, digest, grouped
from engine.residuals.basis import pieces, positions, ungrouped
from engine.residuals.kronecker_sums import fewer
from engine.residuals.strategy import LEAVING
from engine.workload import Group, Part, Schema, Workload, subsets, whole_group
from engine.workload.workload import outside

if TYPE_CHECKING:
    import pandas as pd


SLAB = 1 << 22  # values computed at once
Parts = tuple[int, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class Summand:
    """``coefficient`` times a product of arrays, each over the queries of the parts that it names.

    ``axes`` are the positions of the residual space's attributes in the group, in schema order; for spaces that are
    measured together those of all of them.
    """

    coefficient: float
    arrays: tuple[tuple[Parts, Array], ...]
    axes: Axes = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class GroupVariance:
    """Variances of a group's queries, in counts^2; ``unmeasured`` marks queries that cannot be answered."""

    counts: tuple[int, ...]
    summands: tuple[Summand, ...]
    unmeasured: tuple[Summand, ...] = ()
    _known: dict[str, Any] = field(init=False, default_factory=dict)  # what does not depend on coefficients

    def at_noise(self, noise: Sequence[float]) -> GroupVariance:
        """Return the variances with other noise behind the summands, whose coefficients are its squares; in counts."""
        summands = tuple(replace(s, coefficient=n**2) for s, n in zip(self.summands, noise, strict=True))
        made = replace(self, summands=summands)
        object.__setattr__(made, "_known", self._known)
        return made

    def total(self) -> float:
        """Sum of the variances over all queries; infinite when one cannot be answered."""
        if any(self._sum(s) > 0 for s in self.unmeasured):
            return math.inf
        if "sums" not in self._known:
            self._known["sums"] = [self._sum(s) for s in self.summands]
        return math.fsum(s.coefficient * own for s, own in zip(self.summands, self._known["sums"], strict=True))

    def _sum(self, summand: Summand) -> float:
        covered = {p for parts, _ in summand.arrays for p in parts}
        free = math.prod(n for p, n in enumerate(self.counts) if p not in covered)
        # a sum over products on disjoint parts is the product of the sums
        return free * math.prod(float(a.sum()) for _, a in summand.arrays)

    def largest(self) -> float:
        """Largest variance of a query."""
        if any(self._sum(s) > 0 for s in self.unmeasured):
            return math.inf
        if "fronts" not in self._known:
            self._known["fronts"] = self._fronts()
        sets, keys, fronts = self._known["fronts"]
        lengths = [len(next(iter(f.values()))) if f else 1 for f in fronts]
        owner = {p: k for k, together in enumerate(sets) for p in together}
        best, head = 0.0, lengths[0] if lengths else 1
        step = max(1, SLAB // max(1, math.prod(lengths[1:])))
        for start in range(0, head, step):
            shape = (min(step, head - start), *lengths[1:])
            values = np.zeros(shape if lengths else ())
            for s, used in zip(self.summands, keys, strict=True):
                product: Any = s.coefficient
                for key in used:
                    k = owner[key[0][0]]
                    own = fronts[k][key]
                    product = product * along(own[start : start + step] if k == 0 else own, k, len(sets))
                values += product
            best = max(best, float(values.max()))
        return best

    def _fronts(self) -> tuple[list[Parts], list[list[Any]], list[dict[Any, Array]]]:
        """Return sets of parts that arrays couple, keys of the arrays by summand, and the Pareto front of each set."""
        sets = coupled_sets(len(self.counts), [parts for s in self.summands for parts, _ in s.arrays])
        keys: list[list[Any]] = [[(parts, digest(a)) for parts, a in s.arrays] for s in self.summands]
        arrays = {
            k: a for own, s in zip(keys, self.summands, strict=True) for k, (_, a) in zip(own, s.arrays, strict=True)
        }
        # all arrays are at least 0: a choice that is below another in every array of its parts is below it in every
        # product, whatever the other parts say, so that a maximum needs the Pareto fronts alone
        fronts: list[dict[Any, Array]] = []
        for together in sets:
            shape = tuple(self.counts[p] for p in together)
            features = {
                (parts, key): _spread(parts, a, together, shape)
                for (parts, key), a in arrays.items()
                if set(parts) <= set(together)
            }
            kept = pareto(np.stack(list(features.values()))) if features else np.zeros(1, dtype=np.int64)
            fronts.append({key: values[kept] for key, values in features.items()})
        return sets, keys, fronts

    def values(self, start: int, stop: int) -> Array:
        """Variances of queries ``start:stop``, the last part varying fastest. Shape (stop - start,), in counts^2."""
        if stop <= start:
            return np.zeros(0)
        out = np.empty(stop - start)
        for low, high, index in slabs(self.counts, start, stop):
            out[low - start : high - start] = self.at(index).ravel()[index_window(index, self.counts, low, high)]
        return out

    def at(self, index: tuple[Any, ...]) -> Array:
        """Variances of chosen queries: one range a part for a slab, or one integer array a part for points.

        A slab has shape (len(range_1), ..., len(range_k)), points have (points,).
        """
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
        # a group may have 2^62 queries and more, and a position among them is then no int64
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
        return np.asarray(array[tuple(index[p] for p in parts)])
    window = array[tuple(slice(index[p].start, index[p].stop) for p in parts)]
    shape = [1] * len(index)
    for p, n in zip(parts, window.shape, strict=True):
        shape[p] = n
    return window.reshape(shape)


def along(values: Array, k: int, dimensions: int) -> Array:
    """Return values along axis k of so many dimensions. Shape (1, ..., n, ..., 1)."""
    shape = [1] * dimensions
    shape[k] = len(values)
    return values.reshape(shape)


def _spread(parts: Parts, array: Array, together: Parts, shape: tuple[int, ...]) -> Array:
    own = [array.shape[parts.index(p)] if p in parts else 1 for p in together]
    return np.broadcast_to(array.reshape(own), shape).ravel()


def parts_outside(group: Group, axes: Axes) -> list[int]:
    """Return the parts of a group without an attribute of a space."""
    return [p for p, part in enumerate(group.parts) if not set(part.axes) & set(axes)]


def summand_beside(
    coefficient: float, together: Parts, values: Array, rest: Sequence[int], arrays: Sequence[Array], axes: Axes
) -> Summand:
    """Return a summand of values over the queries of some parts, shape their counts, and an array for each of the rest.

    Without parts the values are one number; it then goes into what there is.
    """
    own = [((p,), array) for p, array in zip(rest, arrays, strict=True)]
    if together:
        return Summand(coefficient=coefficient, arrays=((together, values), *own), axes=axes)
    if own:
        return Summand(coefficient=coefficient, arrays=((own[0][0], own[0][1] * float(values)), *own[1:]), axes=axes)
    return Summand(coefficient=coefficient * float(values), arrays=(), axes=axes)


def squares_of_products(
    rows: Sequence[Array],
    shape: Sequence[int],
    sets: Sequence[Axes],
    matrices: Sequence[Array | None],
    weights: Array | None,
) -> Array:
    """Return |q M / weights|^2 for all products q of one row from every set, shape (q_1, ..., q_k).

    ``rows`` have shape (q_i, m_i); products have the shape ``shape``, and M is the product of one matrix on each of the
    ``sets`` of their axes, None for the identity.
    """
    if len(sets) == 1 and matrices[0] is not None and worth_forms([r.shape for r in rows], matrices[0].shape[1]):
        M = matrices[0] if weights is None else matrices[0] / weights
        turned = ungrouped(M.T, sets, shape, 1).reshape(M.shape[::-1])
        # rounding may leave less than nothing of a sum of both signs
        return np.maximum(quadratic_forms(rows, turned.T @ turned), 0.0)
    out = np.empty(tuple(map(len, rows)))
    step = max(1, 4 * SLAB // max(1, math.prod(map(len, rows[1:])) * math.prod(shape)))
    for start in range(0, len(rows[0]), step):
        tensor = rows[0][start : start + step]
        for r in rows[1:]:
            tensor = np.einsum("qa,pb->qpab", tensor.reshape(-1, tensor.shape[-1]), r).reshape(
                -1, tensor.shape[-1] * r.shape[-1]
            )
        tensor = contract(grouped(tensor.reshape(len(tensor), *shape), sets, 1), matrices, 1)
        # weights multiply what is measured, and so divide what comes back
        tensor = tensor if weights is None else tensor / weights
        squares = np.einsum("qr,qr->q", *(tensor.reshape(len(tensor), -1),) * 2)
        out[start : start + step] = squares.reshape(-1, *out.shape[1:])
    return out


def quadratic_forms(rows: Sequence[Array], matrix: Array) -> Array:
    """Return q C q^T for all products q of one row from every set, shape (q_1, ..., q_k).

    ``rows`` have shape (q_i, m_i), C shape (m_1 ... m_k,) * 2.

    >>> quadratic_forms([np.eye(2), np.ones((1, 1))], np.diag([3.0, 4.0]))
    array([[3.],
           [4.]])
    """
    if len(rows) == 1:
        return np.asarray(np.einsum("qa,qa->q", rows[0] @ matrix, rows[0]))
    # with one set taken out of C what is left is as small as the other sets: all products together would meet all of C
    first = min(range(len(rows)), key=lambda k: len(rows[k]))
    lengths = [r.shape[1] for r in rows]
    own, rest = lengths[first], math.prod(lengths) // lengths[first]
    moved = np.moveaxis(matrix.reshape(lengths * 2), (first, first + len(rows)), (0, 1)).reshape(own * own, -1)
    others = [r for k, r in enumerate(rows) if k != first]
    out = np.empty((len(rows[first]), *map(len, others)))
    step = max(1, SLAB // max(own * own, rest * rest))
    for start in range(0, len(out), step):
        some = rows[first][start : start + step]
        inner = np.einsum("qa,qb->qab", some, some).reshape(len(some), -1) @ moved
        for k, left in enumerate(inner):
            out[start + k] = quadratic_forms(others, left.reshape(rest, rest))
    return np.moveaxis(out, 0, first)


def worth_forms(rows: Sequence[tuple[int, int]], rank: int) -> bool:
    """Return whether `quadratic_forms` takes much less than products of rows, shapes (q_i, m_i), times (m, rank)."""
    counts, lengths = [q for q, _ in rows], [m for _, m in rows]
    cells = math.prod(lengths)
    return len(rows) > 1 and cells**2 <= 4 * SLAB and math.prod(counts) * rank > 8 * min(counts) * cells


def left_of_spans(rows: Sequence[Array], shape: Sequence[int], spans: Sequence[tuple[Array, Axes]]) -> list[float]:
    """Return the sum of squares that all products of one row from every set leave of each span, on its axes.

    ``rows`` have shape (q_i, m_i); products have the shape ``shape``.
    """
    first, others = rows[0], np.ones((1, 1))
    for own in rows[1:]:
        others = np.asarray(np.kron(others, own), dtype=float)
    left = [0.0] * len(spans)
    step = max(1, SLAB // max(1, others.size * first.shape[1]))
    for start in range(0, len(first), step):
        made: Array = np.asarray(np.kron(first[start : start + step], others), dtype=float).reshape(-1, *shape)
        for k, (span, at) in enumerate(spans):
            # all tables at once, as rows on the axes of the span: one product instead of one for every table
            rest = tuple(a for a in range(len(shape)) if a not in at)
            held = grouped(made, [rest, at], 1).reshape(-1, len(span))
            left[k] += float(np.sum((held - (held @ span) @ span.T) ** 2))
    return left


def coupled_sets(count: int, links: Sequence[Parts]) -> list[Parts]:
    """Return the finest partition of the parts 0..count-1 that no link crosses."""
    label = list(range(count))
    for parts in links:
        joined = {label[p] for p in parts}
        label = [min(joined) if x in joined else x for x in label]
    return [tuple(p for p in range(count) if label[p] == k) for k in sorted(set(label))]


def pareto(features: Array) -> Any:
    """Return columns of ``features`` (features x points) such that every point is dominated by one of them.

    Shape (kept,).
    """
    order = np.argsort(-features.sum(axis=0), kind="stable")
    kept = []
    while len(order):
        # nothing beats the largest sum in every feature; what it dominates goes at once
        head = order[0]
        kept.append(head)
        order = order[(features[:, order] > features[:, [head]]).any(axis=0)]
    return np.array(kept)


def by_kind(
    blocks: Mapping[Space, Block], split: Split, workload: Workload, look: Callable[[int], GroupVariance]
) -> list[GroupVariance]:
    """Return what is found of the variances of every group; of groups that differ in names alone, one is looked at."""
    schema = workload.schema
    if not isinstance(blocks, AlikeBlocks) or not blocks.plain or split.complements or schema.invariants:
        return list(map(look, range(len(workload.groups))))
    known: dict[Any, int] = {}
    centers = np.array([known.setdefault(digest(pi), len(known)) for pi in split.given(schema.names)])
    found: dict[int, GroupVariance] = {}
    for alike in workload.alike:
        names = [tuple(map(schema.names.__getitem__, places)) for places in alike.places.tolist()]
        inside = [[blocks.numbers.get(space, -1) + 1 for space in subsets(own)] for own in names]
        first, kind = numbered(np.column_stack([centers[alike.places], np.array(inside)]))
        looked = list(map(look, alike.numbers[first].tolist()))
        found.update(zip(alike.numbers.tolist(), map(looked.__getitem__, kind.tolist()), strict=True))
    return [found[i] for i in range(len(workload.groups))]


def table_of_groups(groups: Sequence[Group], rmses: Sequence[float], largest: Sequence[float]) -> pd.DataFrame:
    """Return one row a group: attributes, family, queries, rmse and max_std in counts."""
    import pandas as pd

    asked = [(g.attributes, g.family_text, g.count) for g in groups]
    out = pd.DataFrame(asked, columns=["attributes", "family", "queries"])
    return out.assign(rmse=rmses, max_std=np.sqrt(largest))


ROUNDING = 1e-9  # a piece this small against its query is the rounding of zero
AskedSpace = tuple[Axes, Block | None]  # a residual space inside a group, by positions, and what measures it


@dataclass(kw_only=True, eq=False)
class VarianceBuilder:
    """Builds `GroupVariance` objects for one plan; arrays and groups that are alike are computed once."""

    blocks: Mapping[Space, Block]
    split: Split
    schema: Schema
    _arrays: dict[Any, Array] = field(default_factory=dict)
    _measured: dict[Any, bool] = field(default_factory=dict)
    _few: dict[Any, tuple[Array, float]] = field(default_factory=dict)
    _groups: dict[Any, GroupVariance] = field(default_factory=dict)
    _forms: dict[Any, GroupVariance] = field(default_factory=dict)  # at some noise
    _keys: dict[Any, Any] = field(default_factory=dict)  # every form once: they are most of what plans hold

    def learn(self, other: VarianceBuilder) -> None:
        """Share what a builder for the same strategies and split knows but for the noise."""
        self._arrays, self._measured, self._few = other._arrays, other._measured, other._few
        self._forms, self._keys = other._forms, other._keys

    @cached_property
    def _home(self) -> Mapping[Space, Block]:
        plain = isinstance(self.blocks, AlikeBlocks) and self.blocks.plain
        return self.blocks if plain else {space: block for block in self.blocks.values() for space in block.spaces}

    def group(self, group: Group) -> GroupVariance:
        """Return the variances of one group."""
        form, tuned, alone, whole = self._kind(group)
        noise = [b.noise for b in (*(b for _, b in alone), *dict.fromkeys(b for _, b in whole)) if b is not None]
        key = form, tuple(noise)
        if key not in self._groups and form in self._forms:
            self._groups[key] = self._forms[form].at_noise(noise)
        if key not in self._groups:
            with threads_for(1):  # many small products: on a busy machine threads would wait for each other
                summands = self._products(group, alone)
                unmeasured = [] if self._measured.get(form) else self._marks(group, alone)
            more, lost = self._wholes(group, tuned, whole) if whole else ([], [])
            counts, unmeasured = tuple(p.count for p in group.parts), [*unmeasured, *lost]
            self._groups[key] = GroupVariance(counts=counts, summands=(*summands, *more), unmeasured=tuple(unmeasured))
            if group.parts or not whole:  # without parts, coefficients are no squares of noise alone
                self._forms[form] = self._groups[key]
        return self._groups[key]

    def not_whole(self, workload: Workload) -> Index:
        """Return the numbers of groups of which some space is not measured as a whole, in order, shape (numbers,)."""
        found = self.blocks.measured() if isinstance(self.blocks, AlikeBlocks) else self._home.items()
        held = [(space, block.factors) for space, block in found]
        complete = {own: all(s.complete for _, s in own) for own in {own for _, own in held}}
        at = self.schema.order.__getitem__
        return outside(workload.alike, [tuple(map(at, space)) for space, own in held if complete[own]])

    def all_measured(self, group: Group) -> bool:
        """Return whether all queries of a group are seen to be measured; where it is False their variances tell."""
        form, _, alone, whole = self._kind(group)
        if form not in self._measured:
            self._measured[form] = not whole and not self._marks(group, alone)
        return self._measured[form]

    def _kind(self, group: Group) -> tuple[Any, Mapping[Axes, Complement], list[AskedSpace], list[AskedSpace]]:
        """Return what groups share that differ in noise alone, and the spaces inside: of product pieces, and others."""
        schema, ranks = self.schema, group.ranks(self.schema)
        inside = [(a, self._home.get(s)) for a in group.spaces(schema) if not schema.is_exact(s := group.named(a))]
        centers = tuple(map(digest, self.split.given(group.attributes)))
        tuned = self.split.inside(group.named(ranks))
        made, unions = [], dict[Block, int]()
        for axes, b in inside:
            at = (b.spaces.index(group.named(axes)), unions.setdefault(b, len(unions))) if b and b.union else ()
            # a strategy is equal to itself alone, and a key that holds it keeps it alive
            made.append((axes, None if b is None else (at, digest(b.weights), b.factors)))
        passed = tuple((p, c.key) for p, c in tuned.items())
        form = tuple((p.axes, p.key) for p in group.parts), centers, tuple(made), passed
        # pairs with a complement pass down what is no product, and unions couple several spaces
        fed = {(), *((ranks[a],) for pair in tuned for a in pair)} if tuned else set()
        whole = [(axes, b) for axes, b in inside if axes in fed or (b is not None and b.union)]
        alone = [(axes, b) for axes, b in inside if (axes, b) not in whole]
        return self._keys.setdefault(form, form), tuned, alone, whole

    def _products(self, group: Group, inside: Sequence[AskedSpace]) -> list[Summand]:
        """Return the summands for spaces whose pieces are products."""
        summands = []
        for axes, block in inside:
            if block is not None:
                arrays: list[tuple[Parts, Array]] = [
                    ((p,), self._outside(group, p)) for p in parts_outside(group, axes)
                ]
                arrays += [
                    self._inside(group, axes, factors, weights=block.weights)
                    for factors in self._components(group, axes, block)
                ]
                summands.append(Summand(coefficient=block.noise**2, arrays=tuple(arrays), axes=axes))
        return summands

    def _marks(self, group: Group, inside: Sequence[AskedSpace]) -> list[Summand]:
        """Return marks of what is not measured for spaces whose pieces are products."""
        unmeasured = []
        for axes, block in inside:
            missing = self._missing(group, axes, block)
            asked = [((p,), self._present(group, p, ())) for p in parts_outside(group, axes)] if missing else []
            unmeasured += [Summand(coefficient=1.0, arrays=(*asked, *marks)) for marks in missing]
        return [s for s in unmeasured if all(a.any() for _, a in s.arrays)]

    def _wholes(
        self, group: Group, tuned: Mapping[Axes, Complement], asked: Sequence[AskedSpace]
    ) -> tuple[list[Summand], list[Summand]]:
        """Return the same for spaces that a union couples, or that complements pass down to.

        They need every query row, but only of the parts that they touch: what the others say is a factor, as it is
        where all pieces are products.
        """
        ranks, targets = group.ranks(self.schema), dict[Any, tuple[Block | None, list[Axes]]]()
        for axes, block in asked:
            targets.setdefault(axes if block is None else block, (block, []))[1].append(axes)
        pairs = [{ranks[a] for a in pair} for pair in tuned]
        summands, unmeasured = [], []
        for block, spaces in targets.values():
            touched = {a for axes in spaces for a in axes}
            inside = tuple(a for a in ranks if a in touched)
            # a complement passes on what it is asked of its whole pair
            touched.update(*(pair for pair in pairs if any(set(axes) < pair for axes in spaces)))
            together = tuple(p for p, part in enumerate(group.parts) if touched & set(part.axes))
            values, marks = self._coupled(group, together, block, spaces)
            rest = [p for p in range(len(group.parts)) if p not in together]
            if block is not None:
                outside = [self._outside(group, p) for p in rest]
                summands.append(summand_beside(block.noise**2, together, values, rest, outside, inside))
            present = [self._present(group, p, ()) for p in rest] if marks.any() else []
            if marks.any() and all(map(np.any, present)):
                unmeasured.append(summand_beside(1.0, together, marks, rest, present, inside))
        return summands, unmeasured

    def _coupled(self, group: Group, together: Parts, block: Block | None, spaces: Sequence[Axes]) -> Array:
        """Return variances at noise 1 over the queries of some parts, and 1 where they are not measured, else 0.

        Shape (2, counts of these parts).
        """
        parts = tuple(group.parts[p] for p in together)
        held = {a for part in parts for a in part.axes}
        ranks = tuple(a for a in group.ranks(self.schema) if a in held)
        names, sizes = group.named(ranks), tuple(group.sizes[a] for a in ranks)
        given, tuned = self.split.given(names), self.split.inside(names)
        at = positions(sizes, [tuple(map(ranks.index, axes)) for axes in spaces])
        to = np.concatenate(self._windows(block, [group.named(axes) for axes in spaces]) or [np.arange(len(at))])
        strategy = block.factors[0][1] if block is not None and block.factors else None
        weights = None if block is None else block.weights
        key = (
            tuple((tuple(map(ranks.index, part.axes)), part.key) for part in parts),
            (tuple(map(digest, given)), tuple((pair, c.key) for pair, c in tuned.items())),
            (at.tobytes(), to.tobytes(), block is None, strategy, digest(weights)),
        )
        if key in self._arrays:
            return self._arrays[key]
        back = np.eye(len(at)) if strategy is None else strategy.pinv[to]
        back = back if weights is None else back / weights
        shape, marks = tuple(part.count for part in parts), list[Array]()
        complete = block is not None and (strategy is None or strategy.complete)
        if parts and complete and not tuned and worth_forms([(p.count, p.cells) for p in parts], back.shape[1]):
            # what the block says of every piece of a query, nothing of the pieces that it does not hold
            every = np.zeros((back.shape[1], math.prod(sizes)))
            every[:, at] = back.T
            every = grouped(every.reshape(-1, *sizes), [tuple(map(ranks.index, p.axes)) for p in parts], 1)
            every, own = every.reshape(back.shape[1], -1), []
            for part in parts:
                ours = self.split.given(group.named(part.axes))
                chunks = part.family.chunks(part.sizes)
                own.append(np.concatenate([pieces(chunk, part.sizes, ours, {}) for _, chunk in chunks]))
            values = [np.maximum(quadratic_forms(own, every.T @ every), 0.0).ravel()]
        else:
            values, whole = [], whole_group(replace(group, parts=parts))
            for _, chunk in whole.family.chunks(whole.sizes):
                tensor = chunk.reshape(len(chunk), *whole.sizes).transpose(0, *(1 + whole.axes.index(a) for a in ranks))
                rows = pieces(tensor.reshape(len(chunk), -1), sizes, given, tuned)[:, at]
                values.append(np.sum((rows @ back) ** 2, axis=1))
                if not complete:
                    present = np.linalg.norm(rows, axis=1) > ROUNDING * np.linalg.norm(chunk, axis=1)
                    if strategy is not None:
                        filled = np.zeros((len(rows), strategy.dimension))
                        filled[:, to] = rows
                        present &= strategy.leaves_span(filled)
                    marks.append(present)
        found = np.concatenate(values).reshape(shape)
        lost = np.concatenate(marks).reshape(shape) if marks else np.zeros(shape)
        self._arrays[key] = np.stack([found, lost])
        return self._arrays[key]

    @staticmethod
    def _windows(block: Block | None, spaces: Sequence[Space]) -> list[Index]:
        """Return where the class coordinates of some spaces are among those of a union; nothing for other blocks."""
        if block is None or not block.union:
            return []
        size = dict(zip(block.attributes, block.sizes, strict=True))
        ends = np.cumsum([0, *(math.prod(size[name] - 1 for name in space) for space in block.union)])
        return [np.arange(ends[k], ends[k + 1]) for k in map(block.union.index, spaces)]

    def _present(self, group: Group, p: int, inside: Axes) -> Array:
        """Return 1 for queries of a part with a piece on the positions ``inside`` of it, 0 where that is rounding."""
        part = group.parts[p]
        given = self.split.given(group.named(part.axes))
        key = ("present", part.key, inside, tuple(digest(g) for g in given))
        if key not in self._arrays:
            marks = []
            for _, chunk in part.family.chunks(part.sizes):
                norm = np.linalg.norm(class_rows(chunk, part.sizes, inside, given), axis=1)
                marks.append(norm > 1e-9 * np.linalg.norm(chunk, axis=1))
            self._arrays[key] = np.concatenate(marks).astype(float)
        return self._arrays[key]

    def _outside(self, group: Group, p: int) -> Array:
        part = group.parts[p]
        given = self.split.given(group.named(part.axes))
        key = ("outside", part.key, tuple(digest(g) for g in given))
        if key not in self._arrays:
            # (q . pi)^2 for all queries at once: a family sums a table of centers faster than row by row
            weights: Array = np.ones(1)
            for n, g in zip(part.sizes, given, strict=True):
                weights = np.kron(weights, center(n, g)).astype(float)
            self._arrays[key] = part.family.dot(part.sizes, weights) ** 2
        return self._arrays[key]

    def _components(self, group: Group, axes: Axes, block: Block) -> list[list[tuple[Axes, Strategy]]]:
        """Return the block's factors, grouped when a part of the group touches several of them."""
        factors = [(tuple(axes[a] for a in own), s) for own, s in block.factors]  # axes of the group
        links = [tuple(k for k, (own, _) in enumerate(factors) if set(own) & set(part.axes)) for part in group.parts]
        if block.weights is not None:
            links = [tuple(range(len(factors)))]
        return [[factors[k] for k in joined] for joined in coupled_sets(len(factors), [x for x in links if x])]

    def _inside(
        self,
        group: Group,
        axes: Axes,
        factors: Sequence[tuple[Axes, Strategy]],
        matrix: str | int = "pinv",
        weights: Array | None = None,
    ) -> tuple[Parts, Array]:
        """Return squared norms of (class rows) matrix / weights over the queries of the parts that factors touch.

        ``matrix`` is "pinv", "whole" for the identity, or the number of the factor whose `Strategy.unmeasured` it is.
        """
        covered = {a for own, _ in factors for a in own}
        parts = tuple(p for p, part in enumerate(group.parts) if set(part.axes) & covered)
        touched = [(group.parts[p], tuple(i for i, a in enumerate(group.parts[p].axes) if a in covered)) for p in parts]
        names = [group.named(part.axes) for part, _ in touched]
        centers = tuple(digest(pi) for own in names for pi in self.split.given(own))
        order = tuple(a for part, inside in touched for a in (part.axes[i] for i in inside))
        key = (
            tuple((part.key, inside) for part, inside in touched),
            tuple((tuple(order.index(a) for a in own), s) for own, s in factors),
            centers,
            matrix,
            digest(weights),
        )
        if key not in self._arrays:
            alone = len(touched) == 1 and len(touched[0][0].sizes) == 1
            if weights is None and matrix == "pinv" and alone and touched[0][0].sizes == factors[0][1].sizes:
                part, strategy = touched[0][0], factors[0][1]
                # one part and one factor on one attribute: the quadratic form on cells needs no class row, so that the
                # closed forms of families apply
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
        matrix: str | int,
        weights: Array | None,
    ) -> Array:
        """Return squared norms of (class rows) matrix / weights over all queries of the touched parts."""
        rows = []
        for (part, inside), own in zip(touched, names, strict=True):
            given = self.split.given(own)
            pieces = [class_rows(chunk, part.sizes, inside, given) for _, chunk in part.family.chunks(part.sizes)]
            rows.append(np.concatenate(pieces))
        size = {a: part.sizes[i] - 1 for part, inside in touched for i, a in ((i, part.axes[i]) for i in inside)}
        sets = [tuple(order.index(a) for a in axes) for axes, _ in factors]
        applied = [
            s.pinv if matrix == "pinv" else s.unmeasured if matrix == k else None for k, (_, s) in enumerate(factors)
        ]
        return squares_of_products(rows, [size[a] for a in order], sets, applied, weights)

    def _surely_measured(self, group: Group, factors: Sequence[tuple[Axes, Strategy]]) -> bool:
        """Return whether what all queries together leave of the span is less than one of them may leave.

        Rows with the same Gram as the queries of a part say so, and there are fewer of them: products of them stand for
        all products of queries.
        """
        covered = {a for own, _ in factors for a in own}
        order = [a for part in group.parts for a in part.axes if a in covered]
        found = [
            self._few_rows(part, inside, group.named(part.axes))
            for part in group.parts
            if (inside := tuple(i for i, a in enumerate(part.axes) if a in covered))
        ]
        least = math.prod(shortest for _, shortest in found)
        spans = [
            (strategy.span, tuple(order.index(a) for a in axes)) for axes, strategy in factors if not strategy.complete
        ]
        left = left_of_spans([rows for rows, _ in found], [group.sizes[a] - 1 for a in order], spans)
        return max(left, default=0.0) <= LEAVING**2 * least

    def _few_rows(self, part: Part, inside: Axes, names: tuple[str, ...]) -> tuple[Array, float]:
        """Return rows with the Gram of a part's class rows, and the smallest square of one that is not rounding."""
        given = self.split.given(names)
        key = ("few", part.key, inside, tuple(map(digest, given)))
        if key not in self._few:
            waiting, least = list[Array](), math.inf
            for _, chunk in part.family.chunks(part.sizes):
                own = class_rows(chunk, part.sizes, inside, given)
                squares = np.sum(own**2, axis=1)
                present = squares > ROUNDING**2 * np.sum(chunk**2, axis=1)
                least = min(least, float(squares[present].min(initial=math.inf)))
                waiting = [fewer(np.concatenate([*waiting, own]))]
            self._few[key] = waiting[0], least
        return self._few[key]

    def _missing(self, group: Group, axes: Axes, block: Block | None) -> list[list[tuple[Parts, Array]]]:
        """Return products of 0/1 arrays; each marks queries with a piece that the block does not measure."""
        if block is not None and all(s.complete for _, s in block.factors):
            return []
        touched = [
            (p, tuple(i for i, a in enumerate(part.axes) if a in axes))
            for p, part in enumerate(group.parts)
            if set(part.axes) & set(axes)
        ]
        held = [] if block is None else self._components(group, axes, block)
        unsure = [factors for factors in held if not self._surely_measured(group, factors)]
        if block is not None and not unsure:
            return []
        present: list[tuple[Parts, Array]] = [((p,), self._present(group, p, inside)) for p, inside in touched]
        out = [present] if block is None else []
        for factors in unsure:
            parts, whole = self._inside(group, axes, factors, "whole")
            for k in (k for k, (_, s) in enumerate(factors) if not s.complete):
                # a query leaves a product when it leaves the span of one factor, and asks something of all others
                _, left = self._inside(group, axes, factors, k)
                marks = (left > LEAVING**2 * whole).astype(float)
                for (p,), mark in present:
                    if p in parts:
                        marks = marks * along(mark, parts.index(p), len(parts))
                out.append([(parts, marks), *(asked for asked in present if asked[0][0] not in parts)])
        return out


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
