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
    low, high = oracles.optimum(cell_gram(name), tolerance=1e-6)
    solution = solve(problem_of(name))
    N = residual_basis(PROBLEMS[name][0])
    check_solution(solution, N.T @ cell_gram(name) @ N)
    assert solution.status == "optimal"
    assert solution.gap <= 1e-5
    assert solution.bound <= high * (1 + 1e-9)
    assert solution.value >= low * (1 - 1e-8)
    assert solution.value <= high * (1 + 1e-5)


@pytest.mark.parametrize("seed", range(25))
def test_solve_random_gram_is_optimal(seed):
    """Many Gram matrices have symmetric starts, zero weights or null directions."""
    rng = np.random.default_rng(seed)
    sizes = tuple(rng.integers(2, 5, rng.integers(1, 3)))
    rows = rng.integers(-1, 3, (rng.integers(1, 6), math.prod(sizes))).astype(float)
    c = residual_rows(rows, sizes)
    solution = solve(DualProblem(lift=Lift(sizes), factor=Factor(sizes=sizes, matrix=c.T @ c)))
    check_solution(solution, c.T @ c)
    low, high = oracles.optimum(
        (c @ residual_basis(sizes).T).T @ (c @ residual_basis(sizes).T), tolerance=1e-5
    )
    assert solution.gap <= 1e-4
    assert low * (1 - 1e-8) <= solution.value <= high * (1 + 1e-4)


@pytest.mark.parametrize("pattern", list(itertools.product([1.0, 4.0], repeat=3)))
def test_solve_symmetric_start_is_optimal(pattern):
    """On four cells the first step may make two weights and their gradients zero."""
    N = basis(4)
    gram = N.T @ (Prefix().gram((4,)) + np.diag([*pattern, pattern[0]])) @ N
    for g in (gram, np.diag(pattern), np.diag(pattern[::-1]) + 0.1):
        solution = solve(DualProblem(lift=Lift((4,)), factor=Factor(sizes=(4,), matrix=g)))
        low, high = oracles.optimum(N @ g @ N.T, tolerance=1e-6)
        assert solution.status == "optimal"
        assert low * (1 - 1e-8) <= solution.value <= high * (1 + 1e-5)


@pytest.mark.parametrize("name", PROBLEMS)
def test_bound_random_weights_is_below_all_strategies(name):
    """Every weight vector gives a lower bound on the value of every feasible strategy."""
    rng, problem, gram = np.random.default_rng(7), problem_of(name), cell_gram(name)
    N = residual_basis(problem.sizes)
    values = [solve(problem).value]
    for _ in range(20):
        half = rng.standard_normal((len(gram), len(gram))) + 3 * rng.random() * np.eye(len(gram))
        X = N.T @ half.T @ half @ N
        # scale X so that it is feasible: the largest diagonal entry of N X N^T becomes 1
        X = X / np.max(np.einsum("cr,rs,cs->c", N, X, N))
        values.append(float(np.trace(np.linalg.solve(X, N.T @ gram @ N))))
    assert min(values) == pytest.approx(values[0], rel=1e-9)
    for k in range(30):
        mass = rng.dirichlet(
            np.full(problem.variables, 0.05 if k % 2 else 3.0)
        ) * 10.0 ** rng.integers(-3, 4)
        assert 0 <= problem.bound(mass) <= min(values) * (1 + 1e-9)


@pytest.mark.parametrize("name", PROBLEMS)
def test_solve_low_rank_rows_has_equal_optimum(name):
    dense, low = solve(problem_of(name)), solve(problem_of(name, low_rank=True))
    assert low.value == pytest.approx(dense.value, rel=1e-5)
    assert len(low.strategy.rows) == len(dense.strategy.rows)
    assert low.strategy.complete == dense.strategy.complete


def test_solve_null_directions_are_not_measured():
    solution = solve(problem_of("random of low rank"))
    # 4 queries on a residual space with 9 dimensions
    assert len(solution.strategy.rows) <= 4 < 9
    assert not solution.strategy.complete
    one = solve(problem_of("one query"))
    assert one.strategy.rows.shape == (1, 6)
    rows = PROBLEMS["one query"][1]
    piece = rows - rows.mean()
    assert one.value == pytest.approx(np.max(np.abs(piece)) ** 2, rel=1e-6)


@pytest.mark.parametrize("low_rank", [False, True])
# With 1.0 the queries are symmetric, and the problem is solved in blocks. With 1e-4 they are not.
@pytest.mark.parametrize("least", [1.0, 1e-4])
def test_strategy_measured_span_matches_decomposition(least, low_rank):
    sizes = (9, 11)
    c = residual_rows(pair_rows("affine", *sizes), sizes)
    c[:3] *= least
    factor = Factor(sizes=sizes, matrix=c if low_rank else c.T @ c, low_rank=low_rank)
    strategy = solve(DualProblem(lift=Lift(sizes), factor=factor)).strategy
    assert len(strategy.rows) == np.linalg.matrix_rank(c) < strategy.dimension
    span = replace(strategy, measured=None).span
    assert strategy.span.shape == span.shape
    np.testing.assert_allclose(strategy.span @ strategy.span.T, span @ span.T, atol=1e-9)
    # The last query counts all records, so its residual row is zero and left out.
    nonzero_rows = c[np.linalg.norm(c, axis=1) > 1e-9]
    assert not strategy.leaves_span(nonzero_rows).any()
    assert strategy.leaves_span(np.eye(strategy.dimension)).all()


@pytest.mark.parametrize(
    ("one", "other"),
    list(itertools.combinations(["prefix", "range", "signed", "affine", "one query"], 2)),
)
def test_solve_kronecker_gram_is_product_of_optima(one, other):
    (first, rows), (second, more) = PROBLEMS[one], PROBLEMS[other]
    sizes, c = first + second, np.kron(residual_rows(rows, first), residual_rows(more, second))
    full = solve(DualProblem(lift=Lift(sizes), factor=Factor(sizes=sizes, matrix=c.T @ c)))
    parts = [solve(problem_of(one)), solve(problem_of(other))]
    assert math.prod(p.value for p in parts) == pytest.approx(full.value, rel=2e-5)
    assert math.prod(p.bound for p in parts) <= full.value * (1 + 1e-9)


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
    solved = solver.solve(sub)
    assert [len(axes) for axes, _ in solved.factors] == [1, 1, 1]
    assert len(solver.duals) == 3
    gram = gram_on_axes(merge_terms(sub, parts.factors), (0, 1, 2), sub.sizes)
    full = solve(DualProblem(lift=Lift(sub.sizes), factor=gram))
    assert solved.value == pytest.approx(full.value, rel=1e-5)
    for other in parts.subworkloads:
        solver.solve(other)
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
    c = residual_rows(rows, sizes)
    small = solve(
        DualProblem(lift=Lift(sizes), factor=Factor(sizes=sizes, matrix=scale * (c.T @ c)))
    )
    assert small.value == pytest.approx(scale * solve(problem_of("affine and abs")).value, rel=1e-5)
    assert small.strategy.column_norm <= 1 + 1e-9


def test_solve_stopped_search_has_valid_bound():
    problem = problem_of("affine and abs")
    stopped = solve(problem, Options(gap=1e-12, deadline=planning_time() - 1))
    exact = solve(problem)
    assert "time limit" in stopped.status
    assert stopped.gap > 1e-3
    assert stopped.bound <= exact.value <= stopped.value * (1 + 1e-9)
    N = residual_basis((5, 5))
    check_solution(stopped, N.T @ cell_gram("affine and abs") @ N)
    few = solve(problem, Options(gap=1e-12, evaluations=3))
    assert few.status not in ("optimal", "")
    assert few.bound <= exact.value


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
    mass, status = problem.maximise(TIGHT)
    one, other = problem.solution(mass, status), problem_of(name).solution(mass.copy(), status)
    np.testing.assert_array_equal(one.strategy.rows, other.strategy.rows)
    assert one.value == other.value
    np.testing.assert_allclose(
        problem.solution(mass * 1e3, status).strategy.rows, one.strategy.rows, atol=1e-6
    )


def test_lift_matches_explicit_matrix():
    rng = np.random.default_rng(0)
    for centers in (None, [None, rng.dirichlet(np.ones(4))]):
        lift = Lift((3, 4), centers)
        pis = [np.full(3, 1 / 3), np.full(4, 1 / 4) if centers is None else centers[1]]
        L = kron(
            *(
                basis(n).T @ (np.eye(n) - np.outer(pi, np.ones(n)))
                for n, pi in zip((3, 4), pis, strict=True)
            )
        )
        np.testing.assert_allclose(lift.rows(np.eye(6)), L, atol=1e-12)
        np.testing.assert_allclose(lift.table_coordinates(np.eye(12)), L.T, atol=1e-12)


def sums_problem(n, m, kind=DualProblem):
    """Return the problem of the queries a + b <= k on n x m cells: few queries on many cells."""
    rows = residual_rows(pair_rows("affine", n, m), (n, m))
    return kind(lift=Lift((n, m)), factor=Factor(sizes=(n, m), matrix=rows, low_rank=True))


@pytest.mark.parametrize("kind", [DualProblem, FixedBasisProblem])
def test_curvature_matches_finite_differences(kind):
    problem = sums_problem(5, 6, kind)
    active = np.arange(0, problem.variables, 2)
    mass = np.random.default_rng(3).uniform(0.5, 1.5, len(active))
    step = 1e-6
    by_difference = [
        (problem.evaluate(mass - e, active)[1] - problem.evaluate(mass + e, active)[1]) / (2 * step)
        for e in step * np.eye(len(active))
    ]
    assert np.allclose(problem.curvature(mass, active), by_difference, rtol=1e-5, atol=1e-7)


def test_maximise_newton_steps_save_evaluations(monkeypatch):
    problem = sums_problem(20, 21)
    gaps: list[float] = []
    mass, status = problem.maximise(TIGHT, watch=gaps.append)
    assert status == "optimal"
    assert np.count_nonzero(mass) <= sum(len(root) for root in problem.roots)
    with monkeypatch.context() as patch:
        patch.setattr(solvers, "MIN_NEWTON_EVALUATIONS", 10**9)
        slow: list[float] = []
        other, _ = problem.maximise(TIGHT, watch=slow.append)
    assert len(gaps) < len(slow) / 2
    assert problem.bound(mass) == pytest.approx(problem.bound(other), rel=1e-5)
    assert problem.bound(mass) >= problem.bound(other) * (1 - 1e-9)
    assert problem.solution(mass, status).gap <= TIGHT.gap * 1.001


def test_maximise_failed_newton_steps_is_optimal(monkeypatch):
    problem = sums_problem(9, 10)

    def refused(*_):
        raise np.linalg.LinAlgError("planted")

    monkeypatch.setattr(solvers, "MIN_NEWTON_EVALUATIONS", 1)
    monkeypatch.setattr(DualProblem, "curvature", refused)
    mass, status = problem.maximise(TIGHT)
    assert status == "optimal"
    assert problem.solution(mass, status).gap <= TIGHT.gap * 1.001
