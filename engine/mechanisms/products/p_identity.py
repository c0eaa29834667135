"""p-Identity strategies: a weighted identity and p rows more, for Laplace noise on one Gram matrix.

Notation
--------
parameters      Theta  (p, n), 0 or more
strategy rows   A      [I; Theta] D with D = diag(1 + 1^T Theta)^-1, shape (n + p, n): every column has L1 norm 1
Gram            G      W^T W, shape (n, n)
error           tr((A^T A)^-1 G), in counts^2 for noise of variance 1 and sensitivity 1

With s = 1 + 1^T Theta and Y = (I + Theta Theta^T)^-1 Theta the inverse is diag(s) (I - Theta^T Y) diag(s), so error and
gradient need products of p x n with n x n matrices only.

Source: HDMM, definitions 13 and 14.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy

from engine.arrays import Array
from engine.spaces import Strategy

STEPS = 1000
LARGEST = 1e4  # of Theta: the identity may fade to 1e-4, and (A^T A)^-1 keeps eight digits
RANK_ONE = 1e-12  # a Gram whose other eigenvalues are below this share of the largest asks a single query


@dataclass(frozen=True, kw_only=True, eq=False)
class PIdentity:
    """A strategy for Laplace noise.

    Attributes
    ----------
    rows : A, shape (measurements, cells); the largest L1 norm of a column is 1.
    inverse : (A^T A)^+, shape (cells, cells): covariance of the cells for noise of variance 1.
    error : tr((A^T A)^+ G) for the Gram that was given, in counts^2.
    theta : the parameters, for a warm start; without rows when a single query is measured as it is.
    """

    rows: Array
    inverse: Array
    error: float
    theta: Array

    @property
    def strategy(self) -> Strategy:
        """The rows with their least squares."""
        cells = self.rows.shape[1]
        pinv = self.inverse @ self.rows.T
        return Strategy(sizes=(cells,), rows=self.rows, pinv=pinv, complete=len(self.rows) >= cells)


def p_identity_error(theta: Array, gram: Array) -> tuple[float, Array]:
    """Return tr((A^T A)^-1 G) and its derivative by Theta, shape (p, n).

    Guarantee: exact for every Theta; no matrix larger than (n, n) is built, and none of that size but G is.
    Source: HDMM, section 4.3 and the appendix.

    >>> p_identity_error(np.zeros((1, 3)), np.eye(3))[0]
    3.0
    """
    s = 1.0 + theta.sum(axis=0)
    # Woodbury: (I + Theta^T Theta)^-1 = I - Theta^T (I + Theta Theta^T)^-1 Theta, of order p instead of n
    inner = scipy.linalg.cho_factor(np.eye(len(theta)) + theta @ theta.T, check_finite=False)
    Y = scipy.linalg.cho_solve(inner, theta, check_finite=False)
    Z = (Y * s) @ gram
    # the error is a quadratic form in s, so that its derivative by s gives its value, too
    by_s = 2.0 * (np.diag(gram) * s - np.einsum("pn,pn->n", theta, Z))
    W = Z * s
    return float(s @ by_s) / 2.0, by_s - 2.0 * (W - (W @ theta.T) @ Y)


def p_identity_rows(theta: Array) -> Array:
    """Return A, shape (n + p, n), for parameters of shape (p, n).

    >>> p_identity_rows(np.array([[1.0, 2, 3], [1, 1, 1]])).round(2)[3:]
    array([[0.33, 0.5 , 0.6 ],
           [0.33, 0.25, 0.2 ]])
    """
    return np.asarray(np.concatenate([np.eye(theta.shape[1]), theta]) / (1.0 + theta.sum(axis=0)))


def default_p(gram: Array) -> int:
    """Return how many rows to add: 1 where identity and total are all that is asked, else n / 16 and at least 8.

    ``gram`` has shape (cells, cells).

    Source: HDMM, section 9, which takes n / 16 throughout; small attributes gain from a few more.

    >>> default_p(np.eye(5) + 1.0), default_p(np.diag(np.arange(256.0)))
    (1, 16)
    """
    n = len(gram)
    off = gram - np.diag(np.diag(gram))
    mean = off.sum() / max(1, n * (n - 1))
    plain = np.allclose(off, mean * (1 - np.eye(n)), rtol=0, atol=1e-9 * np.abs(gram).max(initial=0.0))
    if plain and np.allclose(np.diag(gram), gram[0, 0], rtol=1e-9, atol=0):
        return 1
    return max(n // 16, min(n, 8))


def p_identity_strategy(
    gram: Array,
    p: int | None = None,
    restarts: int = 1,
    seed: int | np.random.Generator = 0,
    start: Array | None = None,
) -> PIdentity:
    """Return the best p-Identity strategy found from random starts.

    Parameters
    ----------
    gram : W^T W, shape (n, n), in counts^2.
    p : rows on top of the identity; `default_p` when left out.
    restarts : number of random starts.
    seed : of the starts; the result does not depend on anything else.  This is a search, not the noise of a release.
    start : parameters to improve instead of the first random ones.

    Guarantee: the largest L1 norm of a column is 1, and the error is that of the rows returned.

    >>> found = p_identity_strategy(np.ones((4, 4)))
    >>> found.rows, found.error
    (array([[1., 1., 1., 1.]]), 1.0)
    """
    import scipy.optimize

    n, rng = len(gram), np.random.default_rng(seed)
    # a single query is best measured as it is, which no matrix with an identity in it can do
    if (single := _single_query(gram)) is not None:
        inverse = np.outer(single, single) / float(single @ single) ** 2
        error = float(np.sum(inverse * gram))
        return PIdentity(rows=single[None], inverse=inverse, error=error, theta=np.zeros((0, n)))
    scale, p = float(np.trace(gram)), default_p(gram) if p is None else p
    best, best_error = np.zeros((p, n)), np.inf  # with p = 1 the row becomes the total only from well above 0
    for attempt in range(max(1, restarts)):
        first = (
            start
            if start is not None and attempt == 0 and start.shape == (p, n)
            else rng.random((p, n)) + (p == 1 and attempt == 0)
        )
        found = scipy.optimize.minimize(
            _scaled,
            first.ravel(),
            args=(gram, scale, n),
            jac=True,
            method="L-BFGS-B",
            # with entries at least 0 the L1 norm of a column is its sum, which is smooth
            bounds=[(0.0, LARGEST)] * first.size,
            options={"maxcor": 20, "maxiter": STEPS, "maxfun": 2 * STEPS, "ftol": 1e-9, "gtol": 0.0},
        )
        if found.fun < best_error:
            best, best_error = np.maximum(found.x, 0.0).reshape(p, n), float(found.fun)
    s = 1.0 + best.sum(axis=0)
    Y = np.linalg.solve(np.eye(p) + best @ best.T, best)
    inverse = (np.eye(n) - best.T @ Y) * np.outer(s, s)
    return PIdentity(rows=p_identity_rows(best), inverse=inverse, error=p_identity_error(best, gram)[0], theta=best)


def _scaled(x: Array, gram: Array, scale: float, n: int) -> tuple[float, Array]:
    error, gradient = p_identity_error(x.reshape(-1, n), gram)
    # L-BFGS stops at changes that are small beside 1
    return error / scale, gradient.ravel() / scale


def _single_query(gram: Array) -> Array | None:
    """Return the query, largest entry 1, when the Gram is that of a single one."""
    pivot = int(np.argmax(np.diag(gram)))
    query = gram[pivot] / np.sqrt(gram[pivot, pivot])
    if np.abs(gram - np.outer(query, query)).max() > RANK_ONE * gram[pivot, pivot]:
        return None
    return np.asarray(query / np.abs(query).max())
