"""Variances of queries that one explicit strategy answers by least squares, without listing the queries.

A component measures the rows of a Kronecker product of factors on the cells of its attributes.  With C_f the
covariance of factor f's cells at noise scale 1, a query q on some of the attributes has the variance

    noise^2 (q (x) 1) (C_1 (x) ... (x) C_k) (q (x) 1)^T,

so a factor that no part of a group touches gives the number 1^T C_f 1, and a factor that one part covers gives the
quadratic forms of that part.  Source: HDMM, section 7 (implicit error of Kronecker strategies).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from engine.arrays import Array
from engine.plans.blocks import Block
from engine.plans.group_variance import GroupVariance, Parts, Summand
from engine.spaces import LEAVING, Axes, Strategy, contract, grouped
from engine.workload import Group, Part

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
