"""Nuclear norms that floating point cannot lift: every eigenvalue is lowered by more than its error before the root.

By Weyl's inequality an eigenvalue moves by at most the spectral norm of what rounding added, in the matrix and inside
LAPACK; both stay far below ``SLACK`` times the order of the matrix times the machine's epsilon times the largest
eigenvalue.  Null directions, whose computed eigenvalues are rounding alone, then count as nothing.
"""

from __future__ import annotations

import numpy as np
import scipy

from engine.arrays import Array
from engine.threads import threads_for

SLACK = 16.0  # the error bounds of sums and of LAPACK have constants of about 1
GUARD = 1.0 - 1e-7  # covers every rounding that is not an eigenvalue's: sums, products, functions that are orthonormal
RANK = 1e-11  # below this share of the largest, an eigenvalue gives the derivative nothing but noise


def root_trace(matrix: Array, derivative: bool = True, size: float = 0.0) -> tuple[float, Array | None]:
    """Return a lower bound on tr sqrt(M) of a symmetric M >= 0, and its derivative by M, shape as M.

    ``size`` is that of the terms of M, where some were subtracted: their rounding may be more than that of M.

    >>> round(root_trace(np.diag([4.0, 9.0]))[0], 9)
    5.0
    """
    if len(matrix) == 1:
        value = _roots(matrix[0], size) if size else float(np.sqrt(max(matrix[0, 0], 0.0)))
        return value, np.full((1, 1), 0.5 / value if value > 0.0 else 0.0)
    with threads_for(len(matrix)):
        if not derivative:
            return _roots(np.asarray(scipy.linalg.eigvalsh(matrix, check_finite=False), dtype=float), size), None
        eigenvalues, U = scipy.linalg.eigh(matrix, check_finite=False)
        kept = eigenvalues > max(RANK * eigenvalues[-1], 1e-300)
        U = U[:, kept]
        return _roots(eigenvalues, size), (U * (0.5 / np.sqrt(eigenvalues[kept]))) @ U.T


def nuclear(matrix: Array, derivative: bool = True) -> tuple[float, Array]:
    """Return a lower bound on the nuclear norm of a matrix of any shape, and its derivative, shape as the matrix.

    >>> round(nuclear(np.array([[3.0, 4.0]]))[0], 9)
    5.0
    """
    if not matrix.size:
        return 0.0, np.zeros_like(matrix)
    wide = matrix.shape[0] <= matrix.shape[1]
    value, half = root_trace(matrix @ matrix.T if wide else matrix.T @ matrix, derivative)
    if half is None:
        return value, np.zeros((0, 0))
    return value, 2.0 * (half @ matrix if wide else matrix @ half)


def lowered(eigenvalues: Array, size: float = 0.0) -> Array:
    """Return ascending eigenvalues, shape (n,), each lowered by more than its error, none below 0.

    ``size`` is that of what the matrix was made of, where it is more than the largest eigenvalue.

    >>> lowered(np.array([-1e-16, 1e-16, 4.0])).round(9)
    array([0., 0., 4.])
    """
    slack = SLACK * (len(eigenvalues) + 100) * np.finfo(float).eps * max(float(eigenvalues[-1]), size, 0.0)
    return np.maximum(eigenvalues - slack, 0.0)


def _roots(eigenvalues: Array, size: float) -> float:
    return float(np.sqrt(lowered(eigenvalues, size)).sum())


def proved(norm: float, law: str = "gaussian") -> float:
    """Return the bound that a lower bound on a nuclear norm proves, in counts^2 at privacy cost 1.

    For Laplace noise it is twice that, at epsilon 1: an L1 sensitivity is never below the Euclidean one, and Laplace
    noise of scale 1 has variance 2.
    """
    return norm * norm * GUARD * (2.0 if law == "laplace" else 1.0)
