"""Linear mechanisms: cost, estimates, covariance and row space."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.common_mechanism.common_mechanism import LinearMechanism, recreation, residual, round_up
from engine.errors import NotAnswerable, PlanError
from tests.common_mechanism.matrices import (
    IDENTITY,
    TOTAL,
    assert_close,
    cost_of,
    mechanism,
    random_mechanism,
)

SEEDS = st.integers(0, 2**32 - 1)


@pytest.mark.parametrize(
    ("B", "Sigma", "words"),
    [
        ([1, 2], None, "shape"),
        ([[1, 2], [3]], None, "same length"),
        ([[1, math.nan]], None, "finite"),
        (np.zeros((2, 0)), None, "at least one column"),
        ([[1, 2]], np.eye(2), r"shape \(1, 1\)"),
        ([[1, 2]], [[0.0]], "not positive"),
        (np.eye(2), [[1, 0.5], [0.4, 1]], "not symmetric"),
        (np.eye(2), [[1, 1], [1, 1]], "positive definite"),
        (np.eye(2), [[1, 2], [2, 1]], "positive definite"),
    ],
)
def test_linear_mechanism_with_bad_matrices_is_refused(B, Sigma, words):
    with pytest.raises(PlanError, match=words):
        LinearMechanism(B, Sigma)


def test_linear_mechanism_copies_its_matrices():
    B = np.eye(2)
    M = LinearMechanism(B)
    B[0, 0] = 9
    assert M.pcost == 1.0
    with pytest.raises(ValueError, match="read-only"):
        M.B[0, 0] = 9


@settings(max_examples=25, deadline=None)
@given(SEEDS, st.integers(1, 6), st.data())
def test_cost_estimates_and_covariance_match_least_squares(seed, cells, data):
    rng = np.random.default_rng(seed)
    M = random_mechanism(rng, cells, rank=data.draw(st.integers(1, cells)))
    assert_close(M.privacy_cost_matrix(), cost_of(M), share=1e-8)
    assert M.pcost == pytest.approx(cost_of(M).max(), rel=1e-8)
    queries = rng.standard_normal((2, len(M.B))) @ M.B
    A = M.estimates(queries)
    assert_close(A @ M.B, queries, share=1e-8)
    assert_close(M.covariance(queries), A @ M.Sigma @ A.T, share=1e-8)
    inverse = np.linalg.pinv(cost_of(M), rcond=1e-11, hermitian=True)
    assert_close(M.covariance(queries), queries @ inverse @ queries.T, share=1e-6)


def test_answers_requires_row_space_and_precision():
    assert IDENTITY.answers(mechanism(TOTAL.B, 3))
    assert not IDENTITY.answers(mechanism(TOTAL.B, 3 - 1e-6))
    assert not TOTAL.answers(mechanism([[1, 1, 1 + 1e-5]], 1e9))
    with pytest.raises(NotAnswerable, match="Row 1"):
        TOTAL.covariance([[2, 2, 2], [1, 1, 1 + 1e-6]])
    with pytest.raises(PlanError, match="columns"):
        TOTAL.estimates([[1, 1]])
    with pytest.raises(PlanError, match="3 and 2 cells"):
        TOTAL.answers(mechanism(np.eye(2)))


def test_residual_or_recreation_of_wrong_parts_is_refused():
    total = mechanism(TOTAL.B, 3)
    rest = residual(IDENTITY, total)
    with pytest.raises(PlanError, match="no residual"):
        residual(IDENTITY, TOTAL)
    for parts in ((), (total,), (rest,), (total, rest, total), (TOTAL, rest)):
        with pytest.raises(PlanError, match="privacy cost matrices"):
            recreation(IDENTITY, *parts)
    with pytest.raises(PlanError, match="privacy cost matrices"):
        recreation(total, total, mechanism([[1, -1, 0]]))


@pytest.mark.parametrize(
    ("cost", "rounded"),
    [(1.0000000000000002, 1.0), (2 / 3, 0.666666666667), (1.00000000000101, 1.00000000001), (0, 0)],
)
def test_round_up_ignores_rounding_errors(cost, rounded):
    assert round_up(cost) == rounded
