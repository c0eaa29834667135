"""Mechanisms as dense matrices, their costs, and a test of maximality."""

import itertools
from fractions import Fraction

import numpy as np

from engine.common_mechanism.common_mechanism import LinearMechanism


def marginals(sizes, ways):
    """Return all k-way marginals on a small domain, one row per cell."""
    tables = []
    for axes in itertools.combinations(range(len(sizes)), ways):
        rows = np.ones((1, 1))
        for i, size in enumerate(sizes):
            rows = np.kron(rows, np.eye(size) if i in axes else np.ones((1, size)))
        tables.append(rows)
    return np.vstack(tables)


def mechanism(rows, variance=1.0):
    return LinearMechanism(rows, np.eye(len(rows)) * variance)


def random_mechanism(rng, cells, *, rank=None):
    """Return a mechanism with correlated noise on rank + 1 rows, which are linearly dependent."""
    rank = rank or cells
    # The directions are orthogonal.  The expected results are computed by inverting matrices, which
    # would lose all digits for nearly parallel directions.
    directions = np.linalg.qr(rng.standard_normal((cells, rank)))[0] * np.exp(
        rng.standard_normal(rank)
    )
    rows = rng.standard_normal((rank + 1, rank)) @ directions.T
    half = rng.standard_normal((rank + 1, rank + 3)) * np.exp(rng.standard_normal((rank + 1, 1)))
    return LinearMechanism(rows, half @ half.T)


TOTAL, IDENTITY = mechanism(np.ones((1, 3))), mechanism(np.eye(3))
BINARY = (2,) * 7
PAIRS = {
    "1-way vs 2-way on 2^7": (
        mechanism(marginals(BINARY, 1), 7),
        mechanism(marginals(BINARY, 2), 21),
    ),
    "1-way vs identity on 2^7": (mechanism(marginals(BINARY, 1), 7), mechanism(np.eye(128))),
    "1-way vs 2-way on 101 x 2": (
        mechanism(marginals((101, 2), 1), 2),
        mechanism(marginals((101, 2), 2)),
    ),
}


def cost_of(M):
    """Return the privacy cost matrix B^T Sigma^-1 B."""
    return M.B.T @ np.linalg.inv(M.Sigma) @ M.B


def assert_close(actual, expected, *, share=1e-9):
    np.testing.assert_allclose(
        actual, expected, rtol=0, atol=share * np.abs(expected).max(initial=1e-300)
    )


def assert_maximal(B, mechanisms):
    """Assert that B x + N(0, I) is a maximal common mechanism of ``mechanisms``.

    Let C_i be the covariance with which mechanism i answers B.  The mechanism is not maximal only
    if the noise I can be reduced: there is a positive semidefinite D, not 0, with I - D >= C_i
    for all i.  The range of D then lies in the range of every I - C_i.  This function asserts that
    the null spaces of all I - C_i together span the space, which implies D = 0.
    """
    null = np.zeros((len(B), len(B)))
    for M in mechanisms:
        sizes, P = np.linalg.eigh(
            np.eye(len(B)) - B @ np.linalg.pinv(cost_of(M), rcond=1e-11, hermitian=True) @ B.T
        )
        assert sizes[0] > -1e-6
        null += P[:, sizes < 1e-6] @ P[:, sizes < 1e-6].T
    assert np.linalg.eigvalsh(null)[0] > 1e-3


def exact(spend):
    """Return a spend as the fraction that equals its shortest decimal text, as the ledger does."""
    return Fraction(repr(spend))
