"""Grams as sums of Kronecker products.

Terms are merged, restricted to some axes, or expanded into one matrix.  A sum of products is a
single product if its terms differ on one set of axes only; a product needs no matrix of its own,
because a Kronecker Gram has a Kronecker optimum.

`part_rows` and `product_rows` return few rows with the Gram of a part's queries, in place of all
query rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import scipy

from engine._arrays import Array
from engine.residuals.decomposition import Factor, Subworkload
from engine.residuals.split import Axes
from engine.workload import Group, Part

Merged = list[tuple[float, tuple[tuple[Axes, Factor], ...]]]


def merge_terms(sub: Subworkload, factors: Sequence[Factor]) -> Merged:
    """Return the terms of a subworkload after merging.

    Terms that differ on one set of axes only are added up.
    """
    terms: Merged = [(t.coefficient, tuple((axes, factors[number]) for axes, number in t.factors)) for t in sub.terms]
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
    a: tuple[float, tuple[tuple[Axes, Factor], ...]], b: tuple[float, tuple[tuple[Axes, Factor], ...]]
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


def axis_partition(terms: Sequence[tuple[float, Sequence[tuple[Axes, object]]]], count: int) -> list[Axes]:
    """Return the finest partition of the axes 0..count-1 that no factor of any term crosses."""
    label = list(range(count))
    for _, factors in terms:
        for axes, _ in factors:
            lowest = min(label[a] for a in axes)
            joined = {label[a] for a in axes}
            label = [lowest if x in joined else x for x in label]
    return [tuple(a for a in range(count) if label[a] == k) for k in sorted(set(label))]


def assemble(terms: Merged, axes: Axes, sizes: tuple[int, ...]) -> Factor:
    """Return one Gram on ``axes`` from the factors of the terms that lie inside them."""
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
    if all(f.low_rank for _, f in parts) and sum(len(f.matrix) for _, f in parts) < parts[0][1].dimension:
        rows = np.concatenate([math.sqrt(c) * f.matrix for c, f in parts])
        return Factor(sizes=sizes, matrix=rows, low_rank=True)
    gram = np.zeros((parts[0][1].dimension,) * 2)
    for c, f in parts:
        gram += c * f.dense()
    return Factor(sizes=sizes, matrix=gram)


def _kronecker(factors: Sequence[tuple[Axes, Factor]], axes: Axes) -> Array:
    """Return the Kronecker product of factors with its class coordinates in the order of ``axes``."""
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

    There are at most as many rows as cells or queries.

    >>> from engine import Attribute, Schema, Workload
    >>> group = Workload(Schema([Attribute.of_size("age", 3)])).add("age", "range").groups[0]
    >>> group.count, part_rows(group.parts[0]).shape
    (6, (3, 3))
    """
    if len(part.sizes) == 1 and part.count > part.sizes[0]:
        eigenvalues, U = scipy.linalg.eigh(part.family.gram(part.sizes, weights), check_finite=False)
        return np.asarray((U * np.sqrt(np.maximum(eigenvalues, 0.0))).T)
    stacked: list[Array] = []
    for start, chunk in part.family.chunks(part.sizes):
        stacked.append(chunk if weights is None else chunk * np.sqrt(weights[start : start + len(chunk), None]))
        if sum(map(len, stacked)) > 2 * chunk.shape[1]:
            stacked = [reduce_rows(np.concatenate(stacked))]
    return reduce_rows(np.concatenate(stacked))


def product_rows(group: Group) -> Array:
    """Return rows with the Gram of a group's queries.

    Shape (rows, cells), with cells in the group's attribute order.

    The group has no per-query weights.
    """
    out: Array = np.ones((1, 1))
    for part in group.parts:
        out = np.asarray(np.kron(out, part_rows(part)), dtype=float)
    return out


def reduce_rows(rows: Array) -> Array:
    """Return rows with the same Gram, at most as many as columns, shape (rows, columns)."""
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
