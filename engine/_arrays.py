"""Array type aliases and small linear-algebra helpers."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Index = npt.NDArray[np.int64]


def thin_svd(matrix: Array) -> tuple[Array, Array, Array]:
    """Return the thin SVD (U, singular values, V^T) of a matrix of shape (m, n).

    With r = min(m, n) the shapes are (m, r), (r,) and (r, n).

    >>> U, sizes, Vt = thin_svd(np.array([[3.0, 0.0], [0.0, 4.0], [0.0, 0.0]]))
    >>> U.shape, sizes.tolist(), Vt.shape
    ((3, 2), [4.0, 3.0], (2, 2))
    """
    try:
        return np.linalg.svd(matrix, full_matrices=False)
    except np.linalg.LinAlgError:
        # the divide-and-conquer driver fails to converge on some matrices in some builds of LAPACK;
        # the driver gesvd is slower and converges
        import scipy.linalg

        U, sizes, Vt = scipy.linalg.svd(matrix, full_matrices=False, lapack_driver="gesvd")
        return U, sizes, Vt


def unique_rows(rows: Index) -> tuple[Index, Index]:
    """Find the distinct rows of a matrix, and for each row the distinct row that it equals.

    Parameters
    ----------
    rows : matrix of non-negative integers, shape (m, k).

    Returns
    -------
    first : position in ``rows`` of the first occurrence of each distinct row, shape (d,); the
        distinct rows are in lexicographic order.
    inverse : for each row, the index of its distinct row in ``first``, shape (m,).

    >>> first, inverse = unique_rows(np.array([[2, 1], [0, 3], [2, 1]]))
    >>> first.tolist(), inverse.tolist()
    ([1, 0], [1, 0, 1])
    """
    # each row gets an integer code from 0 to n_codes - 1; codes are ordered as the rows are
    code, n_codes = np.zeros(len(rows), dtype=np.int64), 1
    for column in rows.T if len(rows) else ():
        n_values = int(column.max()) + 1
        # codes that would exceed 64 bits are replaced by their ranks, which keep the order
        if n_codes * n_values >= 2**63:
            _, code = np.unique(code, return_inverse=True)
            n_codes = int(code.max()) + 1
        code, n_codes = code * n_values + column, n_codes * n_values
    if n_codes > 8 * len(rows) + 1_000:
        _, first, inverse = np.unique(code, return_index=True, return_inverse=True)
        return first, inverse
    # with few possible codes, an array with one entry per code is faster than sorting
    first_of_code = np.full(n_codes, -1)
    # of several rows with the same code the last assignment remains, so rows are assigned backwards
    first_of_code[code[::-1]] = np.arange(len(rows))[::-1]
    used_codes = np.flatnonzero(first_of_code >= 0)
    first = first_of_code[used_codes]
    index_of_code = first_of_code  # reuses the array, whose entries are no longer needed
    index_of_code[used_codes] = np.arange(len(used_codes))
    return first, index_of_code[code]
