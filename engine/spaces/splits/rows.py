"""Rows with the Gram of a part's queries, as few as can be: what tuning and unions compute with in place of queries."""

from __future__ import annotations

import numpy as np
import scipy

from engine.arrays import Array
from engine.workload import Group, Part

CHUNKS = 1 << 22  # entries of rows that come at a time


def part_rows(part: Part, weights: Array | None = None) -> Array:
    """Return rows on the cells of a part with the same Gram as its queries, at most as many as cells or queries.

    >>> from engine import Attribute, Schema, Workload
    >>> group = Workload(Schema([Attribute.of_size("age", 3)])).add("age", "range").groups[0]
    >>> group.count, part_rows(group.parts[0]).shape
    (6, (3, 3))
    """
    if len(part.sizes) == 1 and part.count > part.sizes[0]:
        eigenvalues, U = scipy.linalg.eigh(part.family.gram(part.sizes, weights), check_finite=False)
        return np.asarray((U * np.sqrt(np.maximum(eigenvalues, 0.0))).T)
    waiting: list[Array] = []
    for start, chunk in part.family.chunks(part.sizes):
        waiting.append(chunk if weights is None else chunk * np.sqrt(weights[start : start + len(chunk), None]))
        if sum(map(len, waiting)) > 2 * chunk.shape[1]:
            waiting = [fewer(np.concatenate(waiting))]
    return fewer(np.concatenate(waiting))


def product_rows(group: Group) -> Array:
    """Return the same, shape (rows, cells), for a group without weights of single queries, in the order given."""
    out: Array = np.ones((1, 1))
    for part in group.parts:
        out = np.asarray(np.kron(out, part_rows(part)), dtype=float)
    return out


def fewer(rows: Array) -> Array:
    """Return at most as many rows as columns with the same Gram, shape (rows, columns)."""
    if len(rows) <= rows.shape[1]:
        return rows
    return np.asarray(scipy.linalg.qr(rows, mode="r", check_finite=False)[0][: rows.shape[1]])


def rows_bytes(part: Part) -> int:
    """Return an upper bound on the memory of `part_rows`, in bytes."""
    cells = part.cells
    return 8 * (
        cells * cells * 4
        if len(part.sizes) == 1
        else 3 * min(part.count * cells, 2 * cells * cells + max(CHUNKS, cells))
    )
