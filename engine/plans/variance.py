"""Variances of every query of a group in closed form, without listing the queries.

The variance of a query is a sum over the residual spaces B inside its attributes.  For each B it is noise_B^2 times a
product of arrays, each over the queries of one part of the group (or of a few parts that one strategy couples):

    part outside B                (q . pi)^2
    part inside B                 q N C N^T q^T,  C the covariance of the class coordinates at noise scale 1
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from engine.arrays import Array, Index
from engine.plans.blocks import AlikeBlocks, Block
from engine.plans.group_variance import (
    GroupVariance,
    Parts,
    Summand,
    along,
    coupled_sets,
    left_of_spans,
    parts_outside,
    quadratic_forms,
    squares_of_products,
    summand_beside,
    worth_forms,
)
from engine.spaces import (
    LEAVING,
    Axes,
    Complement,
    Space,
    Split,
    Strategy,
    center,
    class_rows,
    digest,
    fewer,
    grouped,
    pieces,
    positions,
)
from engine.threads import threads_for
from engine.workload import Group, Part, Schema, Workload, outside, whole_group

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
