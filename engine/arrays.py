"""The arrays that everything else is made of, and what their library does not always do."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Index = npt.NDArray[np.int64]


def thin_svd(matrix: Array) -> tuple[Array, Array, Array]:
    """Return U, the singular values and V^T of a matrix of shape (m, n), with min(m, n) columns and rows.

    >>> U, sizes, Vt = thin_svd(np.array([[3.0, 0.0], [0.0, 4.0], [0.0, 0.0]]))
    >>> U.shape, sizes.tolist(), Vt.shape
    ((3, 2), [4.0, 3.0], (2, 2))
    """
    try:
        return np.linalg.svd(matrix, full_matrices=False)
    except np.linalg.LinAlgError:
        # divide and conquer gives up on some matrices in some builds of LAPACK; the older way is slower and does not
        import scipy.linalg

        U, sizes, Vt = scipy.linalg.svd(matrix, full_matrices=False, lapack_driver="gesvd")
        return U, sizes, Vt
