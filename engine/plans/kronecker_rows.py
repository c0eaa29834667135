"""Squared norms and quadratic forms of Kronecker products of query rows.

The queries of a product of query families are the Kronecker products of one query row per family.
The functions compute a number per query from the rows of the families, in steps that bound the
memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from engine._arrays import Array
from engine.residuals import Axes, contract, group_axes
from engine.residuals.basis import ungroup_axes

# Approximate limit for the number of entries of one intermediate array.
SLAB_ENTRIES = 1 << 22


def squared_norms_of_products(
    rows: Sequence[Array],
    shape: Sequence[int],
    sets: Sequence[Axes],
    matrices: Sequence[Array | None],
    weights: Array | None,
) -> Array:
    """Return |q M / weights|^2 for all Kronecker products q of one row from each array in ``rows``.

    M is the Kronecker product of ``matrices``.

    Parameters
    ----------
    rows : k arrays of shapes (queries_i, cells_i).
    shape : shape of a product q as a tensor.
    sets : for each matrix, the axes of this tensor that the matrix multiplies.
    matrices : one matrix per element of ``sets``; None is the identity.
    weights : divisors of the entries of q M, one axis per matrix; None if all are 1.

    Returns
    -------
    array of shape (queries_1, ..., queries_k).
    """
    if (
        len(sets) == 1
        and matrices[0] is not None
        and prefers_quadratic_forms([r.shape for r in rows], matrices[0].shape[1])
    ):
        M = matrices[0] if weights is None else matrices[0] / weights
        transposed = ungroup_axes(M.T, sets, shape, 1).reshape(M.shape[::-1])
        # Rounding can make a small square negative.
        return np.maximum(quadratic_forms(rows, transposed.T @ transposed), 0.0)
    squared_norms = np.empty(tuple(map(len, rows)))
    step = max(1, 4 * SLAB_ENTRIES // max(1, math.prod(map(len, rows[1:])) * math.prod(shape)))
    for start in range(0, len(rows[0]), step):
        products = rows[0][start : start + step]
        for other_rows in rows[1:]:
            products = np.einsum(
                "qa,pb->qpab", products.reshape(-1, products.shape[-1]), other_rows
            ).reshape(-1, products.shape[-1] * other_rows.shape[-1])
        tensors = group_axes(products.reshape(len(products), *shape), sets, 1)
        multiplied = contract(tensors, matrices, 1)
        multiplied = multiplied if weights is None else multiplied / weights
        flat = multiplied.reshape(len(multiplied), -1)
        squares = np.einsum("qr,qr->q", flat, flat)
        squared_norms[start : start + step] = squares.reshape(-1, *squared_norms.shape[1:])
    return squared_norms


def quadratic_forms(rows: Sequence[Array], matrix: Array) -> Array:
    """Return q C q^T for all Kronecker products q of one row from each array in ``rows``.

    Parameters
    ----------
    rows : k arrays of shapes (queries_i, cells_i).
    matrix : C, a square matrix with cells_1 * ... * cells_k rows.

    Returns
    -------
    array of shape (queries_1, ..., queries_k).

    >>> quadratic_forms([np.eye(2), np.ones((1, 1))], np.diag([3.0, 4.0]))
    array([[3.],
           [4.]])
    """
    if len(rows) == 1:
        return np.asarray(np.einsum("qa,qa->q", rows[0] @ matrix, rows[0]))
    # The matrix is first contracted with each row r of the array that has the fewest rows.  This
    # leaves one smaller matrix per row r, for the products of rows from the other arrays.
    first = min(range(len(rows)), key=lambda k: len(rows[k]))
    lengths = [r.shape[1] for r in rows]
    first_length, other_length = lengths[first], math.prod(lengths) // lengths[first]
    first_axes_in_front = np.moveaxis(
        matrix.reshape(lengths * 2), (first, first + len(rows)), (0, 1)
    ).reshape(first_length * first_length, -1)
    others = [r for k, r in enumerate(rows) if k != first]
    values = np.empty((len(rows[first]), *map(len, others)))
    step = max(1, SLAB_ENTRIES // max(first_length * first_length, other_length * other_length))
    for start in range(0, len(values), step):
        first_rows = rows[first][start : start + step]
        outer_products = np.einsum("qa,qb->qab", first_rows, first_rows)
        contracted = outer_products.reshape(len(first_rows), -1) @ first_axes_in_front
        for k, other_matrix in enumerate(contracted):
            values[start + k] = quadratic_forms(
                others, other_matrix.reshape(other_length, other_length)
            )
    return np.moveaxis(values, 0, first)


def prefers_quadratic_forms(shapes: Sequence[tuple[int, int]], columns: int) -> bool:
    """Return whether `quadratic_forms` is much cheaper than listing all Kronecker products.

    Parameters
    ----------
    shapes : shape (queries_i, cells_i) of each array of rows.
    columns : number of columns of the matrix that would multiply every listed product.
    """
    counts, lengths = [q for q, _ in shapes], [m for _, m in shapes]
    cells = math.prod(lengths)
    # Listing takes prod(counts) * cells * columns multiplications, `quadratic_forms` about
    # min(counts) * cells^2.
    return (
        len(shapes) > 1
        and cells**2 <= 4 * SLAB_ENTRIES
        and math.prod(counts) * columns > 8 * min(counts) * cells
    )


def summed_squared_distances(
    rows: Sequence[Array], shape: Sequence[int], subspaces: Sequence[tuple[Array, Axes]]
) -> list[float]:
    """Return, for each subspace, the sum over queries of the squared distance from the subspace.

    Parameters
    ----------
    rows : k arrays of shapes (queries_i, cells_i); the queries are the Kronecker products of one
        row from each array.
    shape : shape of a query as a tensor.
    subspaces : pairs (basis, axes).  The subspace contains the tensors whose vectors along ``axes``
        are in the span of the orthonormal columns of ``basis``.
    """
    first, others = rows[0], np.ones((1, 1))
    for next_rows in rows[1:]:
        others = np.asarray(np.kron(others, next_rows), dtype=float)
    sums = [0.0] * len(subspaces)
    step = max(1, SLAB_ENTRIES // max(1, others.size * first.shape[1]))
    for start in range(0, len(first), step):
        queries: Array = np.asarray(
            np.kron(first[start : start + step], others), dtype=float
        ).reshape(-1, *shape)
        for k, (basis, axes) in enumerate(subspaces):
            # One matrix product projects the vectors along ``axes`` of all queries.
            other_axes = tuple(a for a in range(len(shape)) if a not in axes)
            vectors = group_axes(queries, [other_axes, axes], 1).reshape(-1, len(basis))
            sums[k] += float(np.sum((vectors - (vectors @ basis) @ basis.T) ** 2))
    return sums
