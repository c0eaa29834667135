"""Plans that measure whole tables.

Variances of queries that one explicit strategy answers by least squares, without listing the queries.

A component measures the rows of a Kronecker product of factors on the cells of its attributes.  With C_f the
covariance of factor f's cells at noise scale 1, a query q on some of the attributes has the variance

    noise^2 (q (x) 1) (C_1 (x) ... (x) C_k) (q (x) 1)^T,

so a factor that no part of a group touches gives the number 1^T C_f 1, and a factor that one part covers gives the
quadratic forms of that part.  Source: HDMM, section 7 (implicit error of Kronecker strategies).

Plans whose strategies are rows on the cells of marginal tables, answered by least squares.

A component is one Kronecker strategy on some attributes.  Every group of the workload is answered from one component
alone, by least squares in it; where a strategy is a union of components this is HDMM's local least squares.  A query
that is asked afterwards is answered from the component that gives it the smallest variance.

Source: HDMM, sections 6 and 7.

Plans that measure whole marginal tables and answer by least squares over all of them.

With noise_A on the table of attributes A, residual spaces are eigenspaces of everything that is measured, so least
squares is a weighted mean, space by space: the class coordinates of B are read from every measured table that holds B,
with weights 1 / (noise_A^2 times the number of cells summed), and their variance is the inverse of the sum of weights.

Source: HDMM, section 6.3 and 7.3 (marginals strategies and their algebra); the weighted mean is our own form of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from engine._arrays import Array, thin_svd
from engine.errors import NotAnswerable, PlanError
from engine.plans.blocks import Block, calibrate, component_key
from engine.plans.plan import NamedQuery, Plan
from engine.plans.reconstruction import TableAnswers
from engine.plans.replace_one import row_pcosts
from engine.plans.variance import GroupVariance, Parts, Summand
from engine.privacy import Budget
from engine.residuals import Axes, Space, Strategy, basis, contract, grouped
from engine.residuals.strategy import LEAVING
from engine.workload import Group, Part, subsets

SLAB = 1 << 24  # entries of one intermediate array


def explicit_group_variance(group: Group, block: Block) -> GroupVariance:
    """Return the variances of a group's queries when ``block`` alone answers them, in counts^2.

    The block's attributes must hold the group's.
    """
    position = {name: axis for axis, name in enumerate(block.attributes)}
    own = [tuple(position[group.attributes[a]] for a in part.axes) for part in group.parts]
    coefficient = block.noise**2
    for axes, strategy in block.factors:
        if not any(set(axes) & set(part) for part in own):
            # the query counts all cells of a factor that it does not name: 1^T C 1
            coefficient *= float(strategy.covariance.sum())
    arrays = [(parts, _forms(group, own, parts, factors)) for parts, factors in linked(own, block.factors)]
    lost = [_lost(group, own, axes, s) for axes, s in block.factors if not s.complete]
    lost = [(parts, marks) for parts, marks in lost if marks.any()]
    marks = presence(group) if lost else []  # a query that counts no cell is answered whatever is measured
    unmeasured = [
        Summand(
            coefficient=1.0, arrays=tuple(([(parts, a)] if parts else []) + [m for m in marks if m[0][0] not in parts])
        )
        for parts, a in lost
    ]
    return GroupVariance(
        counts=tuple(part.count for part in group.parts),
        summands=(Summand(coefficient=coefficient, arrays=tuple(arrays)),),
        unmeasured=tuple(unmeasured),
    )


def unmeasured_rows(strategy: Strategy, kept: Sequence[int]) -> Array:
    """Return what a factor leaves of single cells of its axes ``kept``, each summed over the other axes.

    Row (I - P) of shape (cells of the kept axes, cells), P the projector on the measured span.  A query q on the kept
    axes leaves the span by |q rows|, which is computed as it stands: as a difference of squares |q|^2 - |q P|^2 a share
    of `LEAVING` would be lost in rounding.
    """
    labels, cells = np.zeros(strategy.sizes, dtype=np.int64), 1
    for axis in kept:
        shape = [1] * len(strategy.sizes)
        shape[axis] = -1
        labels = labels * strategy.sizes[axis] + np.arange(strategy.sizes[axis]).reshape(shape)
        cells *= strategy.sizes[axis]
    dropped = tuple(a for a in range(len(strategy.sizes)) if a not in kept)
    span = strategy.span.reshape(*strategy.sizes, -1).sum(axis=dropped)
    order = sorted(kept)
    span = span.transpose(*(order.index(a) for a in kept), len(kept)).reshape(cells, -1)
    # I - Q Q^T row by row: the projector itself would be cells x cells of the whole factor
    out = -span @ strategy.span.T
    out[labels.ravel(), np.arange(strategy.cells)] += 1.0
    return np.asarray(out)


def leaves(block: Block, attributes: Sequence[str], table: Array) -> bool:
    """Return whether a query, of the shape of some attributes, asks for something that a block does not measure."""
    for axes, strategy in block.factors:
        if not strategy.complete:
            kept = [i for i, a in enumerate(axes) if block.attributes[a] in attributes]
            at = [list(attributes).index(block.attributes[axes[i]]) for i in kept]
            rows = unmeasured_rows(strategy, kept)
            others = tuple(a for a in range(table.ndim) if a not in at)
            left = contract(grouped(table, [tuple(at), others]), [rows, None])
            # the norm of a query on all cells of the factor
            if np.linalg.norm(left) > LEAVING * np.linalg.norm(table) * math.sqrt(strategy.cells / len(rows)):
                return True
    return False


def leaves_table(block: Block, attributes: Sequence[str]) -> bool:
    """Return whether a block leaves out something of the whole table on some of its attributes."""
    for axes, strategy in block.factors:
        if not strategy.complete:
            kept = [i for i, a in enumerate(axes) if block.attributes[a] in attributes]
            if np.linalg.norm(unmeasured_rows(strategy, kept)) > LEAVING * math.sqrt(strategy.cells):
                return True
    return False


def _lost(group: Group, own: Sequence[Axes], axes: Axes, strategy: Strategy) -> tuple[Parts, Array]:
    """Return which combinations of queries leave a factor's span, 1 or 0, with one axis a part that touches it."""
    parts = tuple(p for p, part in enumerate(own) if set(part) & set(axes))
    counts = tuple(group.parts[p].count for p in parts)
    inside = [[i for i, a in enumerate(own[p]) if a in axes] for p in parts]
    kept = [axes.index(own[p][i]) for p, places in zip(parts, inside, strict=True) for i in places]
    left = unmeasured_rows(strategy, kept)
    sides = strategy.cells / len(left)
    # no query leaves by more than this times its own norm, so that none need be listed
    if np.linalg.norm(left) <= LEAVING * math.sqrt(sides):  # no query can leave by more than this times its norm
        return parts, np.zeros(counts)
    if len(left) < strategy.cells:
        # only norms are asked for, and a triangle has those of the rows with fewer columns
        left = np.asarray(np.linalg.qr(left.T, mode="r")).T
    shape = [math.prod(group.parts[p].sizes[i] for i in places) for p, places in zip(parts, inside, strict=True)]
    left, squares, most = left.reshape(*shape, -1), np.zeros(counts), np.full((), LEAVING**2 * sides)
    spread = math.prod(math.prod(group.parts[p].sizes) for p in parts) // math.prod(shape)
    step = max(1, SLAB // (math.prod(counts) * spread))
    for start in range(0, left.shape[-1], step):
        table = left[..., start : start + step]
        for done, (p, places) in enumerate(zip(parts, inside, strict=True)):
            table = np.moveaxis(_applied(group.parts[p], places, np.moveaxis(table, done, 0)), 0, done)
        squares += np.sum(table**2, axis=tuple(range(len(parts), table.ndim)))
    for p in parts:
        part = group.parts[p]
        most = np.multiply.outer(most, part.family.quadratic(part.sizes, np.eye(math.prod(part.sizes))))
    return parts, (squares > most).astype(float)


def _applied(part: Part, inside: Sequence[int], table: Array) -> Array:
    """Apply the queries of a part along the first axis of a table, its cells on the positions ``inside``.

    What the queries have on other positions becomes a last axis.
    """
    if len(inside) == len(part.axes):
        return part.family.dot(part.sizes, table)
    outside = [i for i in range(len(part.axes)) if i not in inside]
    rows = part.family.rows(part.sizes).reshape(part.count, *part.sizes)
    rows = rows.transpose(0, *(1 + i for i in outside), *(1 + i for i in inside)).reshape(-1, len(table))
    made = np.tensordot(rows, table, axes=1).reshape(part.count, -1, *table.shape[1:])
    return np.moveaxis(made, 1, -1)


def presence(group: Group) -> list[tuple[Parts, Array]]:
    """Return for every part which of its queries count a cell at all, 1 or 0. Shapes (queries of the part,)."""
    return [
        ((p,), np.concatenate([rows.any(axis=1) for _, rows in part.family.chunks(part.sizes)]).astype(float))
        for p, part in enumerate(group.parts)
    ]


def linked(
    own: Sequence[Axes], factors: Sequence[tuple[Axes, Strategy]]
) -> list[tuple[Parts, list[tuple[Axes, Strategy]]]]:
    """Return the parts and factors that touch each other, set by set; factors that touch no part are left out."""
    label = list(range(len(own)))
    for axes, _ in factors:
        joined = {label[p] for p, part in enumerate(own) if set(part) & set(axes)}
        if joined:
            label = [min(joined) if x in joined else x for x in label]
    out = []
    for k in sorted(set(label)):
        parts = tuple(p for p in range(len(own)) if label[p] == k)
        covered = {a for p in parts for a in own[p]}
        out.append((parts, [(axes, s) for axes, s in factors if set(axes) & covered]))
    return out


def summed(matrix: Array, sizes: Sequence[int], rows: Sequence[int], columns: Sequence[int]) -> Array:
    """Return a matrix on cells x cells with all axes but the kept ones summed on either side.

    ``rows`` and ``columns`` hold the kept positions; the result has shape (cells of rows, cells of columns).
    """
    k = len(sizes)
    table = matrix.reshape(*sizes, *sizes)
    dropped = [a for a in range(k) if a not in rows] + [k + a for a in range(k) if a not in columns]
    return np.asarray(table.sum(axis=tuple(dropped))).reshape(
        math.prod(sizes[a] for a in rows), math.prod(sizes[a] for a in columns)
    )


def _forms(group: Group, own: Sequence[Axes], parts: Parts, factors: Sequence[tuple[Axes, Strategy]]) -> Array:
    """Return the quadratic forms of all combinations of the parts' queries, one axis a part."""
    order = [a for p in parts for a in own[p]]
    reduced = []
    for axes, strategy in factors:
        kept = [i for i, a in enumerate(axes) if a in order]
        matrix = summed(strategy.covariance, strategy.sizes, kept, kept)
        reduced.append(([axes[i] for i in kept], [strategy.sizes[i] for i in kept], matrix))
    if len(parts) == 1 and len(reduced) == 1 and reduced[0][0] == order:
        part = group.parts[parts[0]]
        return np.maximum(part.family.quadratic(part.sizes, reduced[0][2]), 0.0)
    if len(parts) == 1:
        return _by_rows(group.parts[parts[0]], order, factors)
    # one table with two axes (row, column) for every part, contracted part by part
    table, names = np.ones(()), list[tuple[int, int]]()
    for kept_axes, sizes, matrix in reduced:
        table = np.multiply.outer(table, matrix.reshape(*sizes, *sizes))
        names += [(a, 0) for a in kept_axes] + [(a, 1) for a in kept_axes]
    wanted = [(a, side) for p in parts for side in (0, 1) for a in own[p]]
    table = table.transpose([names.index(w) for w in wanted])
    shape = [math.prod(group.parts[p].sizes) for p in parts for _ in (0, 1)]
    table = table.reshape(shape)
    for done, p in enumerate(parts):
        # done leading axes hold queries already
        table = np.moveaxis(table, (done, done + 1), (0, 1))
        table = np.moveaxis(_contract(group.parts[p].family.rows(group.parts[p].sizes), table), 0, done)
    return np.maximum(table, 0.0)


def _by_rows(part: Part, order: Sequence[int], factors: Sequence[tuple[Axes, Strategy]]) -> Array:
    """Return the quadratic forms of one part that spreads over several factors, chunk by chunk of its rows."""
    sets, halves, out = [], [], []
    for axes, strategy in factors:
        dropped = tuple(i for i, a in enumerate(axes) if a not in order)
        sets.append(tuple(order.index(a) for a in axes if a in order))
        half = strategy.pinv.reshape(*strategy.sizes, -1).sum(axis=dropped)
        halves.append(half.reshape(-1, half.shape[-1]))
    for _, rows in part.family.chunks(part.sizes):
        table = contract(grouped(rows.reshape(len(rows), *part.sizes), sets, 1), halves, 1)
        out.append(np.sum(table.reshape(len(rows), -1) ** 2, axis=1))
    return np.concatenate(out)


def _contract(rows: Array, table: Array) -> Array:
    """Return sum over (c, d) of rows[q, c] table[c, d, ...] rows[q, d], shape (q, ...)."""
    rest = math.prod(table.shape[2:])
    step = max(1, SLAB // max(1, table.shape[1] * rest))
    flat = table.reshape(table.shape[0], -1)
    out = np.empty((len(rows), rest))
    for start in range(0, len(rows), step):
        own = rows[start : start + step]
        half = (own @ flat).reshape(len(own), table.shape[1], rest)
        out[start : start + step] = np.einsum("qd,qdr->qr", own, half)
    return out.reshape(len(rows), *table.shape[2:])


def covariance_of(block: Block, left: tuple[Sequence[str], Array], right: tuple[Sequence[str], Array]) -> float:
    """Return the covariance of the answers to two queries on attributes of a block, in counts^2.

    Each query is its attributes and a table of their shape.  The covariance is
    noise^2 (left (x) 1) (C_1 (x) ... (x) C_k) (right (x) 1)^T; nothing of the block's whole domain is built.
    """
    (left_names, left_table), (right_names, right_table) = left, right
    position = {name: axis for axis, name in enumerate(block.attributes)}
    left_axes, right_axes = [position[n] for n in left_names], [position[n] for n in right_names]
    own, theirs, matrices = [], [], []
    for axes, strategy in block.factors:
        # a factor that one side does not touch has an axis of length 1 there: the sum over all its cells
        rows, columns = ([i for i, a in enumerate(axes) if a in side] for side in (left_axes, right_axes))
        own.append(tuple(left_axes.index(axes[i]) for i in rows))
        theirs.append(tuple(right_axes.index(axes[i]) for i in columns))
        matrices.append(summed(strategy.covariance, strategy.sizes, rows, columns).T)
    told = contract(grouped(np.asarray(right_table, dtype=float), theirs), matrices)
    return block.noise**2 * float(np.sum(grouped(np.asarray(left_table, dtype=float), own) * told))


SAME = 1e-6  # variances closer than this are equal but for the rounding of noise to the grid


@dataclass(frozen=True, kw_only=True, eq=False)
class Component:
    """One Kronecker strategy of a plan.

    Attributes
    ----------
    attributes : attributes of the table that is measured, in schema order.
    factors : (axes, strategy) on disjoint sets of axes; the largest column norm of every factor's rows is 1, in the
        Euclidean norm for Gaussian noise and in the L1 norm for Laplace noise.
    share : share of the budget, in pcost for Gaussian noise and in epsilon for Laplace noise; the shares add up to 1,
        or where the dearest cell is charged, what one cell costs of each adds up to 1 at most.
    groups : the groups of the workload that it answers.
    """

    attributes: Space
    factors: tuple[tuple[Axes, Strategy], ...]
    share: float
    groups: tuple[int, ...]


def explicit_strategy(rows: npt.ArrayLike, sizes: Sequence[int], law: str = "gaussian") -> Strategy:
    """Return strategy rows on the cells of some attributes, scaled to largest column norm 1, with their least squares.

    ``rows`` has shape (measurements, cells); the norm is Euclidean for Gaussian noise and L1 for Laplace noise.

    >>> made = explicit_strategy([[1.0, 1.0], [0.0, 1.0]], (2,))
    >>> round(made.column_norm, 12), made.complete
    (1.0, True)
    """
    B = np.ascontiguousarray(rows, dtype=float)
    norms = np.abs(B).sum(axis=0) if law == "laplace" else np.sqrt(np.einsum("rc,rc->c", B, B))
    B = B / (norms.max() or 1.0)
    U, singular, Vt = thin_svd(B)
    kept = singular > 1e-10 * max(singular[0], 1e-300)
    pinv = (Vt[kept].T / singular[kept]) @ U[:, kept].T
    return Strategy(sizes=tuple(sizes), rows=B, pinv=pinv, complete=int(kept.sum()) == B.shape[1])


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ExplicitPlan(Plan):
    """A plan of components; see the module's text.

    Attributes
    ----------
    answered_by : for every group of the workload, the number of its component, -1 when none measures it.

    The blocks are keyed by ("component", number); estimates of a block are least squares estimates of its table.
    """

    whole_tables: ClassVar[bool] = True

    answered_by: tuple[int, ...] = ()

    @cached_property
    def components(self) -> tuple[Block, ...]:
        """The blocks in the order of their numbers."""
        return tuple(self.blocks.values())

    @cached_property
    def _group_variances(self) -> dict[Any, GroupVariance]:
        return {}

    def group_variance(self, group: int) -> GroupVariance:
        self._check_group(group)
        asked, number = self.workload.groups[group], self.answered_by[group]
        key = (number, asked.attributes, asked.key)
        if key not in self._group_variances:
            measured = explicit_group_variance(asked, self.components[number]) if number >= 0 else _unmeasured(asked)
            self._group_variances[key] = measured
        return self._group_variances[key]

    def asking(self, groups: Iterable[Group]) -> Self:
        asked, numbers = tuple(groups), []
        for group in asked:
            best = (math.inf, -1)
            for number, block in enumerate(self.components):
                if set(group.attributes) <= set(block.attributes):
                    total = explicit_group_variance(group, block).total()
                    best = (total, number) if total < best[0] * (1.0 - SAME) else best
            numbers.append(best[1] if math.isfinite(best[0]) else -1)
        return replace(super().asking(asked), answered_by=tuple(numbers))

    def sources(self, group: int) -> list[Block]:
        return [self.components[self.answered_by[group]]]

    def answers_from(self, estimates: Mapping[Space, Array]) -> TableAnswers:
        return TableAnswers(plan=self, estimates=estimates)

    def covariance(self, queries: Sequence[NamedQuery]) -> Array:
        chosen = [(self.component_for(*query), self.essential(*query)) for query in queries]
        out = np.zeros((len(chosen), len(chosen)))
        for i, (a, left) in enumerate(chosen):
            for j, (b, right) in enumerate(chosen[: i + 1]):
                if a == b:
                    out[i, j] = out[j, i] = covariance_of(self.components[a], left, right)
        return out

    def essential(self, attributes: Sequence[str], query_tensor: npt.ArrayLike) -> tuple[Space, Array]:
        """Return a query without the attributes that it does not distinguish: (names, table).

        The table has shape (n_1, ..., n_k) of these names.
        """
        names = tuple(attributes)
        table = self.query_table(names, query_tensor)
        for axis in reversed(range(len(names))):
            first = np.take(table, [0], axis=axis)
            if (table == first).all():
                names, table = (*names[:axis], *names[axis + 1 :]), np.squeeze(first, axis=axis)
        return names, table

    def component_for(self, attributes: Sequence[str], query_tensor: npt.ArrayLike) -> int:
        """Return the component that answers a query with the smallest variance. The query has shape (n_1, ..., n_k).

        Raises
        ------
        NotAnswerable : no component measures the query.
        """
        own, best = self.essential(attributes, query_tensor), (math.inf, -1)
        for number, block in enumerate(self.components):
            if not set(own[0]) <= set(block.attributes) or leaves(block, *own):
                continue
            value = covariance_of(block, own, own)
            if value < best[0] * (1.0 - SAME):  # among equals the first one answers
                best = (value, number)
        if best[1] < 0:
            raise NotAnswerable(
                f"No part of this plan measures the query on {' x '.join(attributes) or 'nothing'}. Add the query, or "
                "the marginal on these attributes, to the workload."
            )
        return best[1]

    def component_of_table(self, attributes: Sequence[str]) -> int:
        """Return the component that gives the table on some attributes with the smallest mean variance.

        Raises
        ------
        NotAnswerable : no component measures the whole table.
        """
        self.schema.sizes(tuple(attributes))
        best = (math.inf, -1)
        for number, block in enumerate(self.components):
            if not set(attributes) <= set(block.attributes) or leaves_table(block, attributes):
                continue
            total = block.noise**2
            for axes, strategy in block.factors:
                kept = [i for i, a in enumerate(axes) if block.attributes[a] in attributes]
                total *= float(np.trace(summed(strategy.covariance, strategy.sizes, kept, kept)))
            if total < best[0] * (1.0 - SAME):
                best = (total, number)
        if best[1] < 0:
            raise NotAnswerable(
                f"No part of this plan measures the whole table on {' x '.join(attributes) or 'nothing'}. Ask single "
                "queries with answer(), or plan with the marginal on these attributes."
            )
        return best[1]


def _unmeasured(group: Group) -> GroupVariance:
    """Return the variances of a group that nothing measures: only queries that count no cell have an answer."""
    counts, marks = tuple(part.count for part in group.parts), tuple(presence(group))
    return GroupVariance(counts=counts, summands=(), unmeasured=(Summand(coefficient=1.0, arrays=marks),))


def component_blocks(
    components: Sequence[Component], budget: Budget, max_records: int, joint: bool = False
) -> Mapping[Space, Block]:
    """Return the blocks of some components, in order, with noise that spends the budget by their shares.

    ``joint`` charges the dearest cell in all of them, see `ExplicitPlan`.
    """
    noises = {}
    for number, component in enumerate(components):
        if budget.pure_epsilon is None:
            noise = 1.0 / math.sqrt(budget.row_pcost * component.share)
        else:
            noise = math.sqrt(2.0) / (budget.pure_epsilon / budget.rows_per_person * component.share)
        noises[component_key(number)] = noise
    strategies = {component_key(number): c.factors for number, c in enumerate(components)}
    attributes = {component_key(number): c.attributes for number, c in enumerate(components)}
    return calibrate(
        strategies,
        noises,
        budget.row_pcost,
        max_records,
        budget.law,
        attributes=attributes,
        pcost=row_pcosts(budget, joint),
    )


def answered_by(components: Sequence[Component], groups: int) -> tuple[int, ...]:
    """Return the component of every group, -1 where there is none; raise PlanError when a group has two."""
    found = {g: number for number, c in enumerate(components) for g in c.groups}
    if sum(len(c.groups) for c in components) != len(found) or not set(found) <= set(range(groups)):
        raise PlanError("A group of the workload has two components, or a component another's; the plan is refused.")
    return tuple(found.get(g, -1) for g in range(groups))


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class MarginalsPlan(Plan):
    """A plan of whole marginal tables; see the module's text.

    The blocks are keyed by ("component", number) and measure every cell of their table; `answering` holds the residual
    spaces that follow from them.
    """

    @cached_property
    def _precisions(self) -> dict[Space, list[tuple[Space, float]]]:
        """For every residual space the measured tables that hold it, each with its precision."""
        out: dict[Space, list[tuple[Space, float]]] = {}
        for key, block in self.blocks.items():
            names = block.attributes
            sizes = dict(zip(names, self.schema.sizes(names), strict=True))
            for space in subsets(names):
                if all(sizes[n] > 1 for n in space):
                    # a coordinate of B adds up so many noisy cells of A for each that it would take on B alone
                    summed = math.prod(sizes[n] for n in names if n not in space)
                    out.setdefault(space, []).append((key, 1.0 / (block.noise**2 * summed)))
        return out

    @cached_property
    def answering(self) -> Mapping[Space, Block]:
        out = {}
        for space in sorted(self._precisions, key=lambda s: (len(s), s)):
            # independent unbiased readings of one number: by precision they have the least variance, the inverse of the
            # sum
            noise = 1.0 / math.sqrt(math.fsum(p for _, p in self._precisions[space]))
            factors = tuple(((axis,), _whole(n)) for axis, n in enumerate(self.schema.sizes(space)))
            out[space] = Block(attributes=space, factors=factors, noise=noise, grid=noise)
        return out

    def combine(self, estimates: Mapping[Space, Array]) -> Mapping[Space, Array]:
        out = {}
        for space, sources in self._precisions.items():
            total = math.fsum(p for _, p in sources)
            value: Array = np.zeros([n - 1 for n in self.schema.sizes(space)])
            for key, precision in sources:
                value = value + precision / total * self._classes(key, estimates[key], space)
            out[space] = value
        return out

    def _classes(self, key: Space, table: Array, space: Sequence[str]) -> Array:
        """Return the class coordinates of a residual space, read from a measured table that holds it."""
        names = self.blocks[key].attributes
        value = table.sum(axis=tuple(a for a, name in enumerate(names) if name not in space))
        return contract(value, [basis(self.schema[name].size) for name in names if name in space])


@lru_cache(maxsize=256)
def _whole(n: int) -> Strategy:
    """Return every class coordinate of an attribute, each with variance 1."""
    return Strategy(sizes=(n,), rows=basis(n).T, pinv=np.eye(n - 1), complete=True)
