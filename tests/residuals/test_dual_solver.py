"""Dual solver, compared with an independent solver; bounds by weak duality; shortcuts."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

import engine.residuals.dual_solver as solvers
from engine._clock import planning_time
from engine.residuals import DualProblem, Factor, Lift, Options, basis
from engine.residuals.decomposition import decompose, gram_on_axes, merge_terms
from engine.residuals.dual_solver import FixedBasisProblem, FourierProblem
from engine.residuals.subworkload_solver import SubworkloadSolver
from engine.workload import Circular, Marginal, Workload
from engine.workload.families import Prefix
from tests import oracles, shapes
from tests.residuals.problems import (
    PROBLEMS,
    TIGHT,
    cell_gram,
    check_solution,
    kron,
    pair_rows,
    problem_of,
    residual_basis,
    residual_rows,
    solve,
)


@pytest.mark.parametrize("name", PROBLEMS)
def test_solution_matches_independent_solver(name):
    lower_bound, upper_bound = oracles.optimum(cell_gram(name), tolerance=1e-6)
    solution = solve(problem_of(name))
    N = residual_basis(PROBLEMS[name][0])
    check_solution(solution, N.T @ cell_gram(name) @ N)
    assert solution.status == "optimal"
    assert solution.gap <= 1e-5
    assert solution.bound <= upper_bound * (1 + 1e-9)
    assert solution.value >= lower_bound * (1 - 1e-8)
    assert solution.value <= upper_bound * (1 + 1e-5)


@pytest.mark.parametrize("seed", range(25))
def test_solve_random_gram_is_optimal(seed):
    """Many Gram matrices have symmetric starts, zero weights or null directions."""
    rng = np.random.default_rng(seed)
    sizes = tuple(rng.integers(2, 5, rng.integers(1, 3)))
    query_rows = rng.integers(-1, 3, (rng.integers(1, 6), math.prod(sizes))).astype(float)
    residuals = residual_rows(query_rows, sizes)
    gram = residuals.T @ residuals
    solution = solve(DualProblem(lift=Lift(sizes), factor=Factor(sizes=sizes, matrix=gram)))
    check_solution(solution, gram)
    N = residual_basis(sizes)
    lower_bound, upper_bound = oracles.optimum(N @ gram @ N.T, tolerance=1e-5)
    assert solution.gap <= 1e-4
    assert lower_bound * (1 - 1e-8) <= solution.value <= upper_bound * (1 + 1e-4)


@pytest.mark.parametrize("pattern", list(itertools.product([1.0, 4.0], repeat=3)), ids=str)
def test_solve_symmetric_start_is_optimal(pattern):
    """On four cells the first step may make two weights and their gradients zero."""
    N = basis(4)
    prefix_gram = N.T @ (Prefix().gram((4,)) + np.diag([*pattern, pattern[0]])) @ N
    for gram in (prefix_gram, np.diag(pattern), np.diag(pattern[::-1]) + 0.1):
        solution = solve(DualProblem(lift=Lift((4,)), factor=Factor(sizes=(4,), matrix=gram)))
        lower_bound, upper_bound = oracles.optimum(N @ gram @ N.T, tolerance=1e-6)
        assert solution.status == "optimal"
        assert lower_bound * (1 - 1e-8) <= solution.value <= upper_bound * (1 + 1e-5)


@pytest.mark.parametrize("name", PROBLEMS)
def test_bound_random_weights_is_below_all_strategies(name):
    """Every weight vector gives a lower bound on the value of every feasible strategy."""
    rng, problem, gram = np.random.default_rng(7), problem_of(name), cell_gram(name)
    N = residual_basis(problem.sizes)
    optimum = solve(problem).value
    for _ in range(20):
        half = rng.standard_normal((len(gram), len(gram))) + 3 * rng.random() * np.eye(len(gram))
        X = N.T @ half.T @ half @ N
        # scale X so that it is feasible: the largest diagonal entry of N X N^T becomes 1
        X = X / np.max(np.einsum("cr,rs,cs->c", N, X, N))
        random_value = float(np.trace(np.linalg.solve(X, N.T @ gram @ N)))
        assert optimum <= random_value * (1 + 1e-9)
    for concentration in [3.0, 0.05] * 15:
        weights = rng.dirichlet(np.full(problem.variables, concentration))
        scale = 10.0 ** rng.integers(-3, 4)
        assert 0 <= problem.bound(scale * weights) <= optimum * (1 + 1e-9)


@pytest.mark.parametrize("name", PROBLEMS)
def test_solve_low_rank_rows_has_equal_optimum(name):
    dense, low = solve(problem_of(name)), solve(problem_of(name, low_rank=True))
    assert low.value == pytest.approx(dense.value, rel=1e-5)
    assert len(low.strategy.rows) == len(dense.strategy.rows)
    assert low.strategy.complete == dense.strategy.complete


def test_solve_null_directions_are_not_measured():
    solution = solve(problem_of("random of low rank"))
    # 4 queries on a residual space with 9 dimensions
    assert len(solution.strategy.rows) <= 4
    assert not solution.strategy.complete
    one_query_solution = solve(problem_of("one query"))
    assert one_query_solution.strategy.rows.shape == (1, 6)
    _, query = PROBLEMS["one query"]
    residual_query = query - query.mean()
    expected = np.max(np.abs(residual_query)) ** 2
    assert one_query_solution.value == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("low_rank", [False, True], ids=["gram", "rows"])
# With 1.0 the queries are symmetric, and the problem is solved in blocks. With 1e-4 they are not.
@pytest.mark.parametrize("scale", [1.0, 1e-4], ids=["symmetric", "asymmetric"])
def test_strategy_measured_span_matches_decomposition(scale, low_rank):
    sizes = (9, 11)
    residuals = residual_rows(pair_rows("affine", *sizes), sizes)
    residuals[:3] *= scale
    factor = Factor(
        sizes=sizes, matrix=residuals if low_rank else residuals.T @ residuals, low_rank=low_rank
    )
    strategy = solve(DualProblem(lift=Lift(sizes), factor=factor)).strategy
    assert len(strategy.rows) == np.linalg.matrix_rank(residuals) < strategy.dimension
    expected_span = replace(strategy, measured=None).span
    assert strategy.span.shape == expected_span.shape
    np.testing.assert_allclose(
        strategy.span @ strategy.span.T, expected_span @ expected_span.T, atol=1e-9
    )
    # The last query counts all records, so its residual row is zero and left out.
    nonzero_rows = residuals[np.linalg.norm(residuals, axis=1) > 1e-9]
    assert not strategy.leaves_span(nonzero_rows).any()
    assert strategy.leaves_span(np.eye(strategy.dimension)).all()


@pytest.mark.parametrize(
    ("first", "second"),
    list(itertools.combinations(["prefix", "range", "signed", "affine", "one query"], 2)),
)
def test_solve_kronecker_gram_is_product_of_optima(first, second):
    (first_sizes, first_rows), (second_sizes, second_rows) = PROBLEMS[first], PROBLEMS[second]
    sizes = first_sizes + second_sizes
    residuals = np.kron(
        residual_rows(first_rows, first_sizes), residual_rows(second_rows, second_sizes)
    )
    factor = Factor(sizes=sizes, matrix=residuals.T @ residuals)
    product = solve(DualProblem(lift=Lift(sizes), factor=factor))
    factors = [solve(problem_of(first)), solve(problem_of(second))]
    assert math.prod(f.value for f in factors) == pytest.approx(product.value, rel=2e-5)
    assert math.prod(f.bound for f in factors) <= product.value * (1 + 1e-9)


def test_subworkload_solver_products_solve_each_factor_once():
    workload = Workload(shapes.numeric(5, 4, 6)).add(
        ("a", "b", "c"), {"a": "prefix", "b": "range", "c": "circular"}
    )
    parts = decompose(workload)
    solver = SubworkloadSolver(
        factors=parts.factors, method="optimal", options=TIGHT, memory_limit=1e9
    )
    number, _ = parts.spaces[("a", "b", "c")]
    sub = parts.subworkloads[number]
    solution = solver.solve(sub)
    assert [len(axes) for axes, _ in solution.factors] == [1, 1, 1]
    assert len(solver.duals) == 3
    gram = gram_on_axes(merge_terms(sub, parts.factors), (0, 1, 2), sub.sizes)
    dense_solution = solve(DualProblem(lift=Lift(sub.sizes), factor=gram))
    assert solution.value == pytest.approx(dense_solution.value, rel=1e-5)
    for subworkload in parts.subworkloads:
        solver.solve(subworkload)
    assert len(solver.duals) == 3  # one search per factor


@pytest.mark.parametrize("cls", [FixedBasisProblem, FourierProblem])
@pytest.mark.parametrize("name", PROBLEMS)
def test_approximate_solutions_are_feasible_with_valid_bound(name, cls):
    solution, exact = solve(problem_of(name, cls)), solve(problem_of(name))
    N = residual_basis(PROBLEMS[name][0])
    check_solution(solution, N.T @ cell_gram(name) @ N)
    assert solution.value >= exact.bound * (1 - 1e-9)
    assert solution.bound <= exact.value * (1 + 1e-9)
    assert solution.status != "optimal"


@pytest.mark.parametrize("cls", [DualProblem, FixedBasisProblem, FourierProblem])
@pytest.mark.parametrize("family", [Circular(), Marginal()], ids=lambda f: f.name)
def test_solve_circulant_gram_is_exact(family, cls):
    N = basis(8)
    factor = Factor(sizes=(8,), matrix=N.T @ family.gram((8,)) @ N)
    solution = solve(cls(lift=Lift((8,)), factor=factor))
    eigenvalues = np.linalg.eigvalsh(factor.matrix)
    assert solution.value == pytest.approx(np.sqrt(eigenvalues).sum() ** 2 / 8, rel=1e-6)
    assert solution.gap <= 1e-6


@pytest.mark.parametrize("scale", [1e-12, 1e-3, 1e12])
def test_solve_scaled_gram_scales_value(scale):
    sizes, rows = PROBLEMS["affine and abs"]
    residuals = residual_rows(rows, sizes)
    factor = Factor(sizes=sizes, matrix=scale * (residuals.T @ residuals))
    solution = solve(DualProblem(lift=Lift(sizes), factor=factor))
    unscaled_value = solve(problem_of("affine and abs")).value
    assert solution.value == pytest.approx(scale * unscaled_value, rel=1e-5)
    assert solution.strategy.column_norm <= 1 + 1e-9


def test_solve_stopped_search_has_valid_bound():
    problem = problem_of("affine and abs")
    stopped = solve(problem, Options(gap=1e-12, deadline=planning_time() - 1))
    exact = solve(problem)
    assert "time limit" in stopped.status
    assert stopped.gap > 1e-3
    assert stopped.bound <= exact.value <= stopped.value * (1 + 1e-9)
    N = residual_basis((5, 5))
    check_solution(stopped, N.T @ cell_gram("affine and abs") @ N)
    after_three_evaluations = solve(problem, Options(gap=1e-12, evaluations=3))
    assert after_three_evaluations.status not in ("optimal", "")
    assert after_three_evaluations.bound <= exact.value


def test_maximise_watch_receives_decreasing_gap():
    gaps = []
    problem = problem_of("affine and abs")
    problem.maximise(TIGHT, watch=gaps.append)
    assert len(gaps) > 5
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[-1] <= TIGHT.gap


def test_maximise_passes_on_exception_of_watch():
    def stop(gap):
        raise KeyError(gap)

    with pytest.raises(KeyError):
        problem_of("affine and abs").maximise(TIGHT, watch=stop)


@pytest.mark.parametrize("name", ["affine", "two products", "random of low rank", "signed"])
def test_solution_is_determined_by_weights(name):
    problem = problem_of(name)
    weights, status = problem.maximise(TIGHT)
    solution = problem.solution(weights, status)
    repeated = problem_of(name).solution(weights.copy(), status)
    np.testing.assert_array_equal(solution.strategy.rows, repeated.strategy.rows)
    assert solution.value == repeated.value
    scaled = problem.solution(weights * 1e3, status)
    np.testing.assert_allclose(scaled.strategy.rows, solution.strategy.rows, atol=1e-6)


def test_lift_matches_explicit_matrix():
    random_center = np.random.default_rng(0).dirichlet(np.ones(4))
    uniform_centers = [np.full(3, 1 / 3), np.full(4, 1 / 4)]
    for centers, explicit_centers in (
        (None, uniform_centers),
        ([None, random_center], [uniform_centers[0], random_center]),
    ):
        lift = Lift((3, 4), centers)
        # basis(n)^T times the projection that subtracts the center
        factors = [basis(len(pi)).T @ (np.eye(len(pi)) - pi[:, None]) for pi in explicit_centers]
        expected = kron(*factors)
        np.testing.assert_allclose(lift.rows(np.eye(6)), expected, atol=1e-12)
        np.testing.assert_allclose(lift.table_coordinates(np.eye(12)), expected.T, atol=1e-12)


def sums_problem(n, m, kind=DualProblem):
    """Return the problem of the queries a + b <= k on n x m cells: few queries on many cells."""
    rows = residual_rows(pair_rows("affine", n, m), (n, m))
    return kind(lift=Lift((n, m)), factor=Factor(sizes=(n, m), matrix=rows, low_rank=True))


@pytest.mark.parametrize("problem_class", [DualProblem, FixedBasisProblem])
def test_curvature_matches_finite_differences(problem_class):
    problem = sums_problem(5, 6, problem_class)
    active = np.arange(0, problem.variables, 2)
    weights = np.random.default_rng(3).uniform(0.5, 1.5, len(active))
    step = 1e-6

    def gradient(active_weights):
        return problem.evaluate(active_weights, active)[1]

    differences = [
        gradient(weights - unit_step) - gradient(weights + unit_step)
        for unit_step in step * np.eye(len(active))
    ]
    expected = np.array(differences) / (2 * step)
    np.testing.assert_allclose(problem.curvature(weights, active), expected, rtol=1e-5, atol=1e-7)


def test_maximise_newton_steps_save_evaluations(monkeypatch):
    problem = sums_problem(20, 21)
    newton_gaps: list[float] = []
    weights, status = problem.maximise(TIGHT, watch=newton_gaps.append)
    assert status == "optimal"
    assert np.count_nonzero(weights) <= sum(len(root) for root in problem.roots)
    with monkeypatch.context() as patch:
        patch.setattr(solvers, "MIN_NEWTON_EVALUATIONS", 10**9)
        first_order_gaps: list[float] = []
        first_order_weights, _ = problem.maximise(TIGHT, watch=first_order_gaps.append)
    assert len(newton_gaps) < len(first_order_gaps) / 2
    assert problem.bound(weights) == pytest.approx(problem.bound(first_order_weights), rel=1e-5)
    assert problem.bound(weights) >= problem.bound(first_order_weights) * (1 - 1e-9)
    assert problem.solution(weights, status).gap <= TIGHT.gap * 1.001


def test_maximise_failed_newton_steps_is_optimal(monkeypatch):
    problem = sums_problem(9, 10)

    def fail(*_):
        raise np.linalg.LinAlgError("singular")

    monkeypatch.setattr(solvers, "MIN_NEWTON_EVALUATIONS", 1)
    monkeypatch.setattr(DualProblem, "curvature", fail)
    weights, status = problem.maximise(TIGHT)
    assert status == "optimal"
    assert problem.solution(weights, status).gap <= TIGHT.gap * 1.001
