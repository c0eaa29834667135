"""Named small problems for the dual solver, and checks of their solutions."""

import numpy as np
import pytest

from engine.residuals import DualProblem, Factor, Lift, Options, basis
from engine.workload import Family, Marginal, Range
from engine.workload.families import Prefix, Random, family

TIGHT = Options(gap=1e-6)


def kron(*matrices):
    """Return the Kronecker product of any number of matrices."""
    out = np.ones((1, 1))
    for m in matrices:
        out = np.kron(out, m)
    return out


def residual_basis(sizes):
    """Return an orthonormal basis of the residual space, shape (cells, residual coordinates)."""
    return kron(*(basis(n) for n in sizes))


def residual_rows(rows, sizes):
    """Return query rows in coordinates of the residual space."""
    return rows @ residual_basis(sizes)


def pair_rows(name, n, m):
    """Return the query rows of the family ``name`` on two attributes of n and m cells."""
    return family(name).rows((n, m))


def stacked(*query_rows):
    return np.concatenate(query_rows)


def product(one: Family, other: Family, n, m):
    """Return the products of the queries ``one`` on n cells and ``other`` on m cells."""
    return np.kron(one.rows((n,)), other.rows((m,)))


PROBLEMS = {  # name -> (sizes, query rows on the cells)
    "prefix": ((7,), Prefix().rows((7,))),
    "range": ((6,), Range().rows((6,))),
    "four cells": (
        (4,),
        stacked(3 * Prefix().rows((4,)), Prefix().rows((4,))[:, ::-1], Marginal().rows((4,))),
    ),
    "suffix on four": (
        (4,),
        np.cumsum(np.array([[1, 0, 0, 0.0], [0, 1, 0, 0], [0, 0, 1, 0]]), axis=1),
    ),
    "two cells": ((2,), np.array([[1.0, 0.0]])),
    "affine": ((5, 5), pair_rows("affine", 5, 5)),
    "abs": ((4, 6), pair_rows("abs", 4, 6)),
    "affine and abs": ((5, 5), stacked(pair_rows("affine", 5, 5), pair_rows("abs", 5, 5))),
    "two products": (
        (4, 5),
        stacked(product(Range(), Range(), 4, 5), product(Prefix(), Prefix(), 4, 5)),
    ),
    "random": ((3, 4), Random(count=30, seed=1).rows((3, 4))),
    "random of low rank": ((4, 4), Random(count=4, seed=2).rows((4, 4))),
    "three attributes": ((3, 3, 3), Random(p=0.4, count=50, seed=5).rows((3, 3, 3))),
    "signed": ((5,), np.random.default_rng(0).standard_normal((4, 5))),
    "one query": ((6,), np.array([[1.0, 0, 0, 1, 1, 0]])),
    "uneven": ((5,), np.diag([1e3, 1, 1, 1e-2, 5.0])),
}


def problem_of(name, cls=DualProblem, low_rank=False):
    """Return a problem of `PROBLEMS`, given by its query rows (low rank) or their Gram matrix."""
    sizes, rows = PROBLEMS[name]
    residuals = residual_rows(rows, sizes)
    matrix = residuals if low_rank else residuals.T @ residuals
    factor = Factor(sizes=sizes, matrix=matrix, low_rank=low_rank)
    return cls(lift=Lift(sizes), factor=factor)


def cell_gram(name):
    """Return the Gram matrix, on the cells, of the residual parts of the queries of a problem."""
    sizes, rows = PROBLEMS[name]
    N = residual_basis(sizes)
    pieces = residual_rows(rows, sizes) @ N.T
    return pieces.T @ pieces


def solve(problem, options=TIGHT):
    return problem.solution(*problem.maximise(options))


def check_solution(solution, gram):
    """Check a solution of the dual solver against its strategy matrix.

    The strategy has column norms of at most 1 and the stated value, which is not below the bound,
    and all queries can be reconstructed from it.
    """
    strategy = solution.strategy
    assert strategy.column_norm <= 1 + 1e-9
    assert np.sum(strategy.covariance * gram) == pytest.approx(solution.value, rel=1e-7)
    assert 0 < solution.bound <= solution.value * (1 + 1e-12)
    N = residual_basis(strategy.sizes)
    # strategy rows in residual coordinates
    measured = strategy.rows @ N
    # The strategy rows are in the residual space.
    np.testing.assert_allclose(measured @ N.T, strategy.rows, atol=1e-9)
    # projection onto the measured components
    span = strategy.pinv @ measured
    np.testing.assert_allclose(span @ span, span, atol=1e-6)
    np.testing.assert_allclose(gram @ span.T, gram, atol=1e-6 * np.abs(gram).max())
    assert strategy.complete == (np.linalg.matrix_rank(measured, tol=1e-7) == N.shape[1])
