"""Marginals on wide attributes: operators and closed-form strategies."""

import numpy as np
import pytest

from engine.errors import LimitExceeded
from engine.residuals import DualProblem, Factor, Lift, Options, contract
from engine.residuals.basis import basis
from engine.residuals.marginals import marginal_solution, marginal_strategy
from engine.residuals.operators import (
    Chain,
    ChunkedMatrix,
    CosineMatrix,
    ReflectedRows,
    ScaledIdentity,
)
from engine.workload import Part, Range

OPERATORS = {
    "identity": ScaledIdentity(order=6, scale=2.0),
    "cosine": CosineMatrix(cells=6),
    "cosine with total": CosineMatrix(cells=6, total=True),
    "rows": ReflectedRows.unit(6),
    "chunks": ChunkedMatrix(matrix=np.random.default_rng(0).standard_normal((150, 4))),
    "chain": Chain(first=CosineMatrix(cells=6).T, second=ReflectedRows.unit(6).T, scale=3.0),
}


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("name", OPERATORS)
def test_operator_acts_like_its_array(name, transposed):
    matrix, dense = OPERATORS[name], np.asarray(OPERATORS[name])
    if transposed:
        matrix, dense = matrix.T, dense.T
    rng = np.random.default_rng(0)
    tensor = rng.standard_normal((2, 5, len(dense)))
    columns = rng.standard_normal((dense.shape[1], 3))
    assert matrix.shape == dense.shape
    assert len(matrix) == len(dense)
    np.testing.assert_allclose(tensor @ matrix, tensor @ dense, atol=1e-12)
    np.testing.assert_allclose(matrix @ columns, dense @ columns, atol=1e-12)
    np.testing.assert_allclose(2.0 * matrix**2, 2.0 * dense**2)
    np.testing.assert_allclose(matrix[:, 1:3], dense[:, 1:3])
    contracted, expected = (contract(tensor, [np.ones((5, 2)), m], 1) for m in (matrix, dense))
    np.testing.assert_allclose(contracted, expected, atol=1e-12)


def test_cosine_matrix_equals_basis():
    np.testing.assert_allclose(np.asarray(CosineMatrix(cells=7)), basis(7), atol=1e-14)
    with_total = np.asarray(CosineMatrix(cells=7, total=True))
    np.testing.assert_allclose(
        with_total, np.column_stack([np.full(7, 1 / 7), basis(7)]), atol=1e-14
    )


def test_operator_product_of_other_length_is_refused():
    with pytest.raises(ValueError, match="multiplied"):
        np.ones(4) @ CosineMatrix(cells=5)


def test_wide_operator_is_applied_but_not_formed():
    table = np.random.default_rng(0).standard_normal(300_000)
    N = CosineMatrix(cells=len(table))
    np.testing.assert_allclose((table @ N) @ N.T, table - table.mean(), atol=1e-10)
    with pytest.raises(LimitExceeded, match="cells"):
        np.asarray(N)


def test_reflected_rows_take_exact_integers():
    rows = ReflectedRows(cells=5, one=3, others=-(10**30), last=7)
    dense = np.full((4, 5), -(10**30), object) + 3 * np.eye(4, 5, dtype=int).astype(object)
    dense[:, -1] = 7
    table = np.arange(10).reshape(2, 5).astype(object)
    assert (table @ rows.T).tolist() == (table @ dense.T).tolist()


@pytest.mark.parametrize("cells", [2, 7, 50])
def test_marginal_solution_equals_dual_solver(cells):
    problem = DualProblem(
        lift=Lift((cells,)), factor=Factor(sizes=(cells,), matrix=np.eye(cells - 1))
    )
    expected, solution = problem.solution(*problem.maximise(Options())), marginal_solution(cells)
    assert solution.value == pytest.approx(expected.value, rel=1e-9)
    assert solution.bound == pytest.approx(expected.bound, rel=1e-9)
    np.testing.assert_allclose(
        solution.strategy.covariance, expected.strategy.covariance, atol=1e-9
    )


@pytest.mark.parametrize("cells", [2, 3, 30])
def test_marginal_strategy_methods_equal_matrices(cells):
    strategy = marginal_strategy(cells)
    rows, pinv = np.asarray(strategy.rows), np.asarray(strategy.pinv)
    np.testing.assert_allclose(pinv @ rows, basis(cells).T, atol=1e-12)
    np.testing.assert_allclose(np.asarray(strategy.covariance), pinv @ pinv.T, atol=1e-12)
    np.testing.assert_allclose(strategy.column_costs("gaussian"), (rows**2).sum(axis=0))
    np.testing.assert_allclose(strategy.column_costs("laplace"), np.abs(rows).sum(axis=0))
    assert strategy.column_norm == pytest.approx(1.0)
    np.testing.assert_allclose(strategy.column_gram(), rows.T @ rows, atol=1e-12)
    squares, first_square, products = strategy.column_products(np.arange(cells), 0)
    np.testing.assert_allclose(squares, (rows**2).sum(axis=0))
    assert first_square == pytest.approx(squares[0])
    np.testing.assert_allclose(products, rows.T @ rows[:, 0], atol=1e-12)
    assert strategy.rank == cells - 1
    part = Part(axes=(0,), family=Range(), sizes=(cells,))
    covariance_of_cells = basis(cells) @ pinv @ pinv.T @ basis(cells).T
    expected = Range().quadratic((cells,), covariance_of_cells)
    np.testing.assert_allclose(strategy.query_variances(part), expected, atol=1e-9)


def test_rounding_error_stays_below_rounding_terms():
    """Sums in single precision have errors far above those of doubles, and below the same bound."""
    strategy, rng = marginal_strategy(4000), np.random.default_rng(0)
    table = rng.random((20, 4000)) ** 8
    rows = strategy.rows
    exact = table @ rows.T
    single_precision_rows = ReflectedRows(
        cells=4000,
        one=np.float32(rows.one),
        others=np.float32(rows.others),
        last=np.float32(rows.last),
    )
    errors = np.linalg.norm(table.astype(np.float32) @ single_precision_rows.T - exact, axis=1)
    unit_roundoff = 2.0**-24  # of single precision
    assert (errors <= strategy.rounding_terms * unit_roundoff * table.sum(axis=1)).all()
