"""Variances of all queries of a group as sums of products of arrays over the queries of its parts.

Sums need no outer product, a maximum needs the Pareto front of every part, and a stretch of values is a slice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.arrays import Array, numbered
from engine.plans.blocks import AlikeBlocks, Block
from engine.spaces import Axes, Space, Split, contract, digest, grouped, ungrouped
from engine.workload import Group, Workload, subsets

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
