"""Interval queries on one attribute against dense eigendecompositions and published figures."""

import numpy as np
import pytest

from engine._clock import planning_time
from engine.errors import LimitExceeded
from engine.residuals import DualProblem, Factor, Lift, Options, basis
from engine.residuals.decomposition import DeferredFactor
from engine.residuals.interval_solver import (
    MAX_STRATEGY_CELLS,
    IntervalGram,
    IntervalSpace,
    evaluate,
    inverse_root_quadrature,
    solve,
)
from engine.residuals.search_cache import Search
from engine.workload import Marginal, Range, Workload
from engine.workload.families import Prefix
from tests.shapes import numeric

MIXES = {
    "prefix": {"prefix": 1.0},
    "suffix": {"suffix": 2.0},
    "range": {"ranges": 1.0},
    "marginal": {"marginal": 3.0},
    "prefix and suffix": {"prefix": 1.0, "suffix": 0.5},
    "all four": {"marginal": 0.7, "prefix": 1.0, "suffix": 2.0, "ranges": 0.1},
    "prefix and total": {"prefix": 1.0, "total": 5.0},
    "prefix without total": {"prefix": 1.0, "total": -0.7},
    "suffix and total": {"suffix": 1.0, "total": 3.0},
    "range and total": {"ranges": 1.0, "total": 40.0},
    "mostly marginal": {"marginal": 1e6, "prefix": 1e-6},
    "mostly range": {"marginal": 1e-6, "ranges": 1e6},
}


def space_of(cells, mix, with_total=False, seed=None):
    """Return the residual space of interval queries on one attribute.

    Parameters
    ----------
    mix : key of `MIXES`, or the name of a family of interval queries.
    with_total : include the total in the space.
    seed : seed of a random center; without a seed or with the total, the center is uniform.
    """
    center = None
    if seed is not None and not with_total:
        center = np.random.default_rng(seed).dirichlet(np.ones(cells))
    gram = IntervalGram(cells=cells, **MIXES.get(mix, {mix: 1.0}))
    return IntervalSpace(gram=gram, center=center, whole=with_total)


def random_weights(cells, seed=0):
    weights = np.random.default_rng(seed).random(cells) + 0.05
    return weights / weights.sum()


def dense_root(space, weights):
    """Return tr A^(1/2), and the diagonal of A^(1/2) divided by the weights.

    A = M^(1/2) H M^(1/2) with the weights on the diagonal of M and the Gram matrix H.
    """
    root = np.sqrt(weights)
    values, vectors = np.linalg.eigh(root[:, None] * space.dense() * root)
    values = np.where(values > 1e-14 * values[-1], values, 0.0)
    return np.sqrt(values).sum(), (vectors**2) @ np.sqrt(values) / weights


def prefix_rows(space):
    """Return the prefixes in the space as rows: entry (k, i) is 1[k >= i] - Pi_k.

    Pi is the cumulative center.
    """
    return np.tri(space.dimension, space.cells) - space.cumulative[:, None]


def differences(space, first, last):
    """Return the coefficients of ranges as differences of two prefixes, shape (ranges, dimension).

    Range i contains the cells ``first[i]`` to ``last[i]``.
    """
    rows = np.zeros((len(first), space.dimension))
    for row, a, b in zip(rows, first, last, strict=True):
        if b < space.dimension:
            row[b] += 1.0
        if a > 0:
            row[a - 1] -= 1.0
    return rows


@pytest.mark.parametrize("ratio", [1.0, 2.0, 1e6, 1e18, 1e26])
def test_quadrature_gives_inverse_square_root(ratio):
    """The sum of w / (x + s) over nodes s with weights w is nearly 1 / sqrt(x)."""
    smallest, largest = 1e-3, 1e-3 * ratio
    nodes, weights = inverse_root_quadrature(smallest, largest)
    x = np.geomspace(smallest, largest, 500)
    sums = (weights / (x[:, None] + nodes)).sum(axis=1)
    np.testing.assert_allclose(sums * np.sqrt(x), 1.0, rtol=1e-10)


def test_interval_gram_equals_sum_of_families():
    gram = IntervalGram(cells=6, marginal=0.5, prefix=1.0, suffix=2.0, ranges=3.0)
    suffix = Prefix().gram((6,))[::-1, ::-1]
    rows = Range().rows((6,))
    marginal = Marginal().gram((6,))
    expected = 0.5 * marginal + Prefix().gram((6,)) + 2.0 * suffix + 3.0 * rows.T @ rows
    np.testing.assert_allclose(gram.dense(), expected)
    np.testing.assert_allclose((gram + 2.0 * gram).dense(), 3.0 * expected)


@pytest.mark.parametrize("weights", [{}, {"prefix": -1.0}, {"ranges": np.inf}])
def test_interval_gram_of_bad_weights_is_refused(weights):
    with pytest.raises(ValueError, match="weights"):
        IntervalGram(cells=4, **weights)


def test_interval_space_of_bad_input_is_refused():
    gram = IntervalGram(cells=4, prefix=1.0)
    with pytest.raises(ValueError, match="sum"):
        gram + IntervalGram(cells=5, prefix=1.0)
    with pytest.raises(ValueError, match="2"):
        IntervalGram(cells=1, prefix=1.0)
    sum_of_4, three_cells, with_nan = np.ones(4), np.ones(3) / 3, np.array([np.nan, 1, 0, 0])
    for center in (sum_of_4, three_cells, with_nan):
        with pytest.raises(ValueError, match="center"):
            IntervalSpace(gram=gram, center=center)
    with pytest.raises(ValueError, match="center"):
        IntervalSpace(gram=gram, center=np.ones(4) / 4, whole=True)


@pytest.mark.parametrize("with_total", [False, True])
@pytest.mark.parametrize("mix", MIXES)
def test_difference_gram_equals_cell_gram(mix, with_total):
    space = space_of(7, mix, with_total, seed=1)
    C = prefix_rows(space)
    G = np.stack([space.apply(z) for z in np.eye(space.dimension)], axis=1)
    np.testing.assert_allclose(C.T @ G @ C, space.dense(), rtol=1e-10, atol=1e-9)
    np.testing.assert_allclose(space.cell_traces(), np.diag(space.dense()), rtol=1e-10)


@pytest.mark.parametrize("cells", [2, 3, 90, 200])
@pytest.mark.parametrize("with_total", [False, True])
@pytest.mark.parametrize("mix", MIXES)
def test_evaluation_equals_dense_eigendecomposition(mix, with_total, cells):
    space, weights = space_of(cells, mix, with_total, seed=cells), random_weights(cells)
    trace, norms = dense_root(space, weights)
    solution = evaluate(space, weights)
    assert solution.trace == pytest.approx(trace, rel=1e-9)
    np.testing.assert_allclose(solution.norms, norms, rtol=1e-9, atol=1e-9 * trace)


@pytest.mark.parametrize("with_total", [False, True])
@pytest.mark.parametrize("mix", MIXES)
def test_norms_are_twice_derivative_of_trace(mix, with_total):
    space, weights = space_of(30, mix, with_total, seed=2), random_weights(30)
    direction = np.random.default_rng(3).standard_normal(30)
    direction -= direction.mean()
    step = 1e-5 * direction / np.abs(direction).max() / 30
    above, below = evaluate(space, weights + step).trace, evaluate(space, weights - step).trace
    # The traces are two steps apart, and the derivative is half the norms.
    expected = evaluate(space, weights).norms @ step
    assert above - below == pytest.approx(expected, rel=1e-6, abs=1e-9 * above)


@pytest.mark.parametrize("mix", MIXES)
def test_center_gradient_equals_finite_differences(mix):
    space, weights = space_of(30, mix, seed=4), random_weights(30)
    direction = np.random.default_rng(5).standard_normal(30)
    direction -= direction.mean()
    step = 1e-6 * direction

    def trace(center):
        return evaluate(IntervalSpace(gram=space.gram, center=center), weights).trace

    above, below = trace(space.pi + step), trace(space.pi - step)
    slope = evaluate(space, weights).center_gradient() @ direction
    assert (above - below) / 2e-6 == pytest.approx(slope, rel=1e-6, abs=1e-7 * above)


@pytest.mark.parametrize("with_total", [False, True])
def test_cells_of_weight_zero_keep_accuracy(with_total):
    space, weights = space_of(60, "range", with_total, seed=6), random_weights(60)
    weights[[0, 17, 18, 59]] = 0.0
    solution = evaluate(space, weights)
    assert 0.0 < solution.dual.min() < 1e-10
    P = np.eye(60) - (0.0 if with_total else np.outer(space.pi, np.ones(60)))
    # The trace is the sum of the singular values of the weighted query rows. Eigenvalues of their
    # Gram matrix would be less precise: small ones are only rounding errors.
    weighted_rows = Range().rows((60,)) @ P * np.sqrt(solution.dual)
    _, singular_values, V = np.linalg.svd(weighted_rows, full_matrices=False)
    assert solution.trace == pytest.approx(singular_values.sum(), rel=1e-10)
    positive_cells = np.flatnonzero(weights)
    norms = (singular_values @ V**2 / solution.dual)[positive_cells]
    np.testing.assert_allclose(solution.norms[positive_cells], norms, rtol=1e-9)


@pytest.mark.parametrize(
    ("cells", "mix", "rmse"),
    [
        (64, "prefix", 2.09986),
        (256, "prefix", 2.52441),
        (1000, "prefix", 2.94804),
        (3650, "prefix", 3.35357),
        (256, "ranges", 2.90144),
        (1000, "ranges", 3.50453),
        (3650, "ranges", 4.08237),
    ],
)
def test_solve_with_total_reproduces_published_rmse(cells, mix, rmse):
    solution = solve(space_of(cells, mix, with_total=True))
    queries = cells if mix == "prefix" else cells * (cells + 1) / 2
    assert np.sqrt(solution.value / queries) == pytest.approx(rmse, abs=1.5e-5)
    assert solution.gap <= 5e-7


@pytest.mark.parametrize(
    ("cells", "weights", "trace"),
    [
        (1000, {"prefix": 1.0}, 78.4158),
        (3650, {"prefix": 1.0}, 174.529),
        (256, {"ranges": 1.0}, 463.825),
        (1000, {"ranges": 1.0}, 2240.956),
        (3650, {"ranges": 1.0}, 9678.434),
        (3650, {"marginal": 1.0, "prefix": 0.05}, 85.562),
        (3650, {"marginal": 1.0, "prefix": 1.0, "ranges": 0.001}, 372.440),
    ],
)
def test_residual_space_reproduces_published_trace(cells, weights, trace):
    solution = solve(IntervalSpace(gram=IntervalGram(cells=cells, **weights)))
    assert solution.trace == pytest.approx(trace, rel=4e-6)
    assert solution.gap <= 5e-7
    assert solution.evaluations <= 40


@pytest.mark.parametrize("mix", ["prefix", "range", "all four"])
def test_optimum_equals_dual_solver(mix):
    space = space_of(24, mix, seed=7)
    N = basis(24)
    gram = N.T @ space.gram.dense() @ N
    problem = DualProblem(lift=Lift((24,), [space.pi]), factor=Factor(sizes=(24,), matrix=gram))
    reference = problem.solution(*problem.maximise(Options(gap=1e-7)))
    solution = solve(space, gap=1e-7)
    assert solution.value == pytest.approx(reference.value, rel=5e-7)
    assert solution.bound <= reference.value * (1.0 + 1e-12)


@pytest.mark.parametrize("seed", range(30))
def test_search_of_extreme_problem_proves_gap(seed):
    """Families have weights from 1e-6 to 1e6; centers are extreme, some with negative cells."""
    rng = np.random.default_rng(seed)
    cells = int(rng.choice([2, 3, 4, 7, 20, 100, 400]))
    families = [k for k in ("marginal", "prefix", "suffix", "ranges") if rng.random() < 0.5]
    weights = {family: 10.0 ** rng.uniform(-6, 6) for family in families or ["prefix"]}
    two_ends = np.zeros(cells)
    two_ends[[0, -1]] = 0.5
    signed = rng.standard_normal(cells)
    centers = [
        None,
        np.eye(cells)[rng.integers(cells)],
        two_ends,
        signed + (1.0 - signed.sum()) / cells,
        rng.dirichlet(np.full(cells, 0.1)),
    ]
    gram = IntervalGram(cells=cells, **weights)
    # Every tenth space includes the total; its center is uniform.
    space = IntervalSpace(gram=gram, center=centers[seed % 5], whole=seed % 10 == 5)
    solution = solve(space)
    assert solution.gap <= 5e-7
    assert solution.evaluations <= 200


def test_search_stops_at_limits():
    space = space_of(500, "prefix")
    assert solve(space, evaluations=3).evaluations == 3
    late = solve(space, deadline=planning_time() - 1.0)
    assert late.evaluations == 1
    solution = solve(space)
    assert late.value >= solution.value
    assert solve(space, start=solution.dual).evaluations == 1


@pytest.mark.parametrize("with_total", [False, True])
@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("cells", [2, 3, 40])
def test_variances_equal_dense_covariance(cells, mix, with_total, monkeypatch):
    monkeypatch.setattr("engine.residuals.interval_solver.BLOCK_ROWS", 16)
    space = space_of(cells, mix, with_total, seed=8)
    solution = evaluate(space, random_weights(cells))
    covariance = solution.covariance()
    G = np.stack([space.apply(z) for z in np.eye(space.dimension)], axis=1)
    assert np.trace(G @ covariance) == pytest.approx(solution.value, rel=1e-9)
    first, last = np.triu_indices(cells)
    cell, first_cell = np.arange(cells), np.zeros(cells, int)
    for variances, rows in (
        (solution.cell_variances(), differences(space, cell, cell)),
        (solution.prefix_variances(), differences(space, first_cell, cell)),
        (solution.range_variances(first, last), differences(space, first, last)),
    ):
        expected = np.einsum("rk,kl,rl->r", rows, covariance, rows)
        np.testing.assert_allclose(variances, expected, rtol=1e-8, atol=1e-9 * expected.max())


@pytest.mark.parametrize("with_total", [False, True])
@pytest.mark.parametrize("mix", MIXES)
def test_strategy_has_unit_sensitivity_and_inverts(mix, with_total):
    space = space_of(40, mix, with_total, seed=9)
    solution = evaluate(space, random_weights(40))
    rows, reconstruction = solution.strategy()
    assert (rows**2).sum(axis=0).max() == pytest.approx(1.0, rel=1e-9)
    np.testing.assert_allclose(reconstruction @ rows, prefix_rows(space), atol=1e-8)
    covariance = solution.covariance()
    np.testing.assert_allclose(
        reconstruction @ reconstruction.T, covariance, atol=1e-9 * covariance.max()
    )


def test_strategy_of_too_many_cells_is_refused():
    space = space_of(MAX_STRATEGY_CELLS + 1, "marginal")
    with pytest.raises(LimitExceeded, match="bins"):
        evaluate(space, np.ones(space.cells)).strategy()


@pytest.mark.parametrize("mix", ["prefix and total", "range and total", "all four"])
def test_total_covariances_equal_dense_covariance(mix):
    solution = evaluate(space_of(9, mix, with_total=True), random_weights(9))
    # a cell is the difference of two prefixes; the last prefix is the total
    cells_from_prefixes = np.eye(9) - np.eye(9, k=-1)
    expected = cells_from_prefixes @ solution.covariance()[:, -1]
    np.testing.assert_allclose(solution.total_covariances(), expected, rtol=1e-8, atol=1e-10)


def test_total_covariances_on_residual_space_are_refused():
    with pytest.raises(ValueError, match="total"):
        solve(space_of(5, "prefix")).total_covariances()


@pytest.mark.parametrize("center", ["uniform", "first cell"])
@pytest.mark.parametrize("family", ["prefix", "range"])
def test_narrow_intervals_start_from_weights_without_matrices(monkeypatch, family, center):
    part = Workload(numeric(40)).add("a", family).groups[0].parts[0]
    pi = None if center == "uniform" else np.eye(40)[0] * 0.5 + 0.5 / 40
    search = Search(factor=DeferredFactor(part, None), centers=(pi,), options=Options(gap=1e-6))
    gaps = []
    expected = search.run(watch=gaps.append)
    assert len(gaps) > 1
    monkeypatch.setattr("engine.residuals.search_cache.MIN_LINEAR_CELLS", 2)
    gaps.clear()
    result = search.run(watch=gaps.append)
    assert not gaps  # the weights prove the gap, so there is no search with matrices
    assert result.status == "optimal"
    assert len(result.dual) == len(expected.dual)
    assert result.value == pytest.approx(expected.value, rel=4e-6)
    assert result.gap <= 1e-6
