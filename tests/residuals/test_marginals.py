"""Closed form of marginals and the cosine transform."""

import numpy as np
import pytest

from engine.residuals import DualProblem, Factor, Lift, Options, contract
from engine.residuals.basis import basis
from engine.residuals.marginals import CosineMatrix, MarginalGram


@pytest.mark.parametrize("cells", [2, 3, 17, 64])
@pytest.mark.parametrize("transposed", [False, True])
def test_cosine_matrix_product_equals_dense_product(cells, transposed):
    matrix = CosineMatrix(cells=cells, scale=1.5, transposed=transposed)
    tensor = np.random.default_rng(0).standard_normal((2, 5, matrix.shape[0]))
    np.testing.assert_allclose(tensor @ matrix, tensor @ matrix.dense(), atol=1e-12)
    np.testing.assert_allclose((2.0 * matrix.T).dense(), 2.0 * matrix.dense().T)


def test_contract_accepts_cosine_matrix():
    tensor = np.random.default_rng(0).standard_normal((3, 6, 4))
    other = np.random.default_rng(1).standard_normal((4, 2))
    by_operator = contract(tensor, [CosineMatrix(cells=6), other], 1)
    np.testing.assert_allclose(by_operator, contract(tensor, [basis(6), other], 1), atol=1e-12)


def test_cosine_matrix_other_length_is_refused():
    with pytest.raises(ValueError, match="product"):
        np.ones(4) @ CosineMatrix(cells=5)


def test_cosine_transform_of_wide_table_inverts():
    table = np.random.default_rng(0).standard_normal(300_000)
    N = CosineMatrix(cells=len(table))
    np.testing.assert_allclose((table @ N) @ N.T, table - table.mean(), atol=1e-10)


@pytest.mark.parametrize("cells", [2, 7, 50])
def test_marginal_closed_form_equals_dual_solver(cells):
    gram = 3.0 * MarginalGram(cells=cells)
    problem = DualProblem(lift=Lift((cells,)), factor=Factor(sizes=(cells,), matrix=gram.dense()))
    solution = problem.solution(*problem.maximise(Options()))
    assert gram.value == pytest.approx(solution.value, rel=1e-9)
    assert gram.trace == pytest.approx(np.trace(gram.dense()))
    rows = gram.rows.dense()
    np.testing.assert_allclose((rows**2).sum(axis=0), 1.0)
    estimate = basis(cells) @ np.linalg.pinv(rows @ basis(cells))
    np.testing.assert_allclose((estimate**2).sum(axis=1), gram.cell_variance)


def test_marginal_sum_of_other_width_is_refused():
    assert (MarginalGram(cells=4) + MarginalGram(cells=4, scale=2.0)).scale == 3.0
    with pytest.raises(ValueError, match="sum"):
        MarginalGram(cells=4) + MarginalGram(cells=5)
    with pytest.raises(ValueError, match="scale"):
        MarginalGram(cells=4, scale=0.0)
