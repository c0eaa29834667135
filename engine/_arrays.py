"""Array type aliases and small linear-algebra helpers."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Index = npt.NDArray[np.int64]


def thin_svd(matrix: Array) -> tuple[Array, Array, Array]:
    """Return U, the singular values and V^T of a matrix of shape (m, n), with min(m, n) columns and
    rows.

    >>> U, sizes, Vt = thin_svd(np.array([[3.0, 0.0], [0.0, 4.0], [0.0, 0.0]]))
    >>> U.shape, sizes.tolist(), Vt.shape
    ((3, 2), [4.0, 3.0], (2, 2))
    """
    try:
        return np.linalg.svd(matrix, full_matrices=False)
    except np.linalg.LinAlgError:
        # divide and conquer gives up on some matrices in some builds of LAPACK; the older way is
        # slower and does not
        import scipy.linalg

        U, sizes, Vt = scipy.linalg.svd(matrix, full_matrices=False, lapack_driver="gesvd")
        return U, sizes, Vt


def unique_rows(rows: Index) -> tuple[Index, Index]:
    """Return the first of the rows of every kind, kinds in lexicographic order, and the number of
    every row's kind.

    Shapes: rows (m, k), of numbers from 0 on; first (kinds,), numbers (m,).

    >>> first, numbers = unique_rows(np.array([[2, 1], [0, 3], [2, 1]]))
    >>> first.tolist(), numbers.tolist()
    ([1, 0], [1, 0, 1])
    """
    code, most = np.zeros(len(rows), dtype=np.int64), 1
    for column in rows.T if len(rows) else ():
        width = int(column.max()) + 1
        if most * width >= 2**63:
            _, code = np.unique(code, return_inverse=True)
            most = int(code.max()) + 1
        code, most = code * width + column, most * width
    if most > 8 * len(rows) + 1_000:
        _, first, numbers = np.unique(code, return_index=True, return_inverse=True)
        return first, numbers
    at = np.full(most, -1)  # few enough that each has a place: nothing needs to be sorted
    at[code[::-1]] = np.arange(len(rows))[::-1]
    kinds = np.flatnonzero(at >= 0)
    first = at[kinds]
    at[kinds] = np.arange(len(kinds))
    return first, at[code]
