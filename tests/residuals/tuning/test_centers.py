"""Tuned centers and complements: gradients, accuracy against uniform centers and optimum."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from engine.errors import Cancelled, PlanError
from engine.mechanisms import load_plan, plan
from engine.privacy import Budget
from engine.residuals import Options, basis, operators, window_strategy
from engine.residuals.tuning.center_objective import Allowance, CenterProblem, Evaluation
from engine.residuals.tuning.complements import ComplementProblem
from engine.residuals.tuning.tune import (
    CenterBalance,
    separable_projections,
    tuned_centers,
    ways_to_split,
)
from engine.residuals.window_solver import WindowSpace
from engine.workload import Attribute, Custom, Schema, Width, Workload
from tests.oracles import block_rows, workload_rows
from tests.residuals.tuning.full_domain import full_domain_optimum, limit_unions


def sizes(*numbers: int) -> Schema:
    return Schema([Attribute.of_size(f"n{i}", n) for i, n in enumerate(numbers)])


def ignore_progress(fraction: float, text: str) -> None:
    """Ignore progress reports."""


def mixed_workload() -> Workload:
    schema = Schema([Attribute.of_size("c", 3, "categorical"), *sizes(5, 5, 4).attributes])
    workload = (
        Workload.all_ways(schema, ways=(1, 2))
        .add(("n0", "n1"), "affine")
        .add(("n2",), "range", weight=3.0)
    )
    return workload.add(("n2", "n0", "c"), {"n2": "prefix", "n0": "range", "c": "marginal"}).add(
        ("n1",), "range"
    )


def triple_workload() -> Workload:
    """Return custom joint queries on three attributes."""
    rows = np.random.default_rng(1).normal(size=(7, 18))
    return Workload(sizes(3, 3, 2)).add(("n0", "n1", "n2"), Custom(rows))


@pytest.mark.parametrize("family", ["prefix", "range", "marginal"])
@pytest.mark.parametrize("solver", ["optimal", "eigenbasis", "fourier"])
def test_tuned_centers_every_solver_is_not_worse(solver: str, family: str) -> None:
    workload = Workload.all_ways(sizes(8, 5, 4), (1, 2), family=family)
    uniform, tuned = (
        plan(workload, Budget(pcost=1.0), solver=solver, centers=centers, cache=False)
        for centers in ("uniform", "tuned")
    )
    assert tuned.rmse <= uniform.rmse * (1.0 + 1e-9)


@pytest.mark.parametrize("workload", [mixed_workload, triple_workload])
def test_center_gradient_matches_finite_differences(workload: Callable[[], Workload]) -> None:
    problem = CenterProblem(workload(), ignore_progress)
    problem.options = Options(gap=1e-9, evaluations=500)
    rng = np.random.default_rng(0)
    # coordinates of the centers of each role, and 0 for uniform centers
    coordinates = {r: 0.05 * rng.normal(size=problem.sizes[r] - 1) for r in problem.tuned}

    def evaluate(coordinates: dict[int, np.ndarray]) -> tuple[float, dict[int, np.ndarray]]:
        centers = {}
        for role, values in coordinates.items():
            size = problem.sizes[role]
            centers[role] = 1.0 / size + basis(size) @ values
        return problem.evaluate(centers)

    _, gradient = evaluate(coordinates)
    for role in problem.tuned:
        for k in range(problem.sizes[role] - 1):
            step = np.zeros(problem.sizes[role] - 1)
            step[k] = 1e-5
            above, _ = evaluate(coordinates | {role: coordinates[role] + step})
            below, _ = evaluate(coordinates | {role: coordinates[role] - step})
            assert gradient[role][k] == pytest.approx((above - below) / 2e-5, rel=1e-4, abs=1e-5)


def test_tuned_centers_symmetric_attributes_stay_uniform() -> None:
    schema = Schema(
        [
            Attribute.of_size("day", 7),
            Attribute.of_size("kind", 4, "categorical"),
            Attribute.of_size("x", 5),
        ]
    )
    workload = (
        Workload(schema)
        .add(("day", "kind"), {"day": "circular", "kind": "marginal"})
        .add(("day", "x"), "prefix")
    )
    symmetric_workload = Workload(schema, workload.groups[:1])
    assert not tuned_centers(symmetric_workload, ignore_progress)
    assert "kind" not in tuned_centers(workload, ignore_progress)


@pytest.mark.parametrize(
    ("schema", "ways", "uniform_rmse", "tuned_rmse"),
    [
        (sizes(10, 10), (1, 2), 2.6123, 2.4491),
        (sizes(8, 8, 8), (1, 2, 3), 3.7183, 3.4069),
        (sizes(*[10] * 40), (1, 2), 33.693, 32.69),
    ],
    ids=["[10]^2", "[8]^3", "[10]^40"],
)
def test_tuned_centers_reach_stored_rmse(
    schema: Schema, ways: tuple[int, ...], uniform_rmse: float, tuned_rmse: float
) -> None:
    workload = Workload.all_ways(schema, ways=ways)
    assert plan(workload, Budget(pcost=1.0)).rmse == pytest.approx(uniform_rmse, rel=2e-4)
    assert plan(workload, Budget(pcost=1.0), centers="tuned").rmse <= tuned_rmse * (1.0 + 2e-4)


def test_tuned_centers_one_attribute_reaches_optimum() -> None:
    workload = Workload(sizes(9)).add(("n0",), "prefix").add(("n0",), "range", weight=0.3)
    result = plan(workload, Budget(pcost=1.0), centers="tuned")
    assert result.weighted_rmse == pytest.approx(full_domain_optimum(workload), rel=2e-4)


@pytest.mark.parametrize("family", ["prefix", "range"])
def test_center_balance_matches_gradient_search(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = Schema([Attribute.of_size("c", 3, "categorical"), *sizes(9, 6).attributes])
    workload = Workload.all_ways(schema, (1, 2, 3))
    if family == "range":
        workload = (
            Workload(schema)
            .add(("n0", "c"), {"n0": "range", "c": "marginal"})
            .add("n0", "range")
            .add("n1", "range")
        )
    calls = []
    evaluate = CenterProblem.evaluate

    def record_call(problem, centers):
        calls.append(centers)
        return evaluate(problem, centers)

    monkeypatch.setattr(CenterProblem, "evaluate", record_call)
    balanced = tuned_centers(workload, ignore_progress)
    assert balanced
    assert not calls
    monkeypatch.setattr("engine.residuals.tuning.tune.separable_projections", lambda problem: {})
    searched = tuned_centers(workload, ignore_progress)
    assert calls
    problem = CenterProblem(workload, ignore_progress)
    problem.options = Options(gap=1e-7, evaluations=400)
    uniform_value, balanced_value, searched_value = (
        problem.evaluate({problem.roles[name]: pi for name, pi in centers.items()})[0]
        for centers in ({}, balanced, searched)
    )
    assert balanced_value <= searched_value * (1.0 + 2e-6)
    assert balanced_value < 0.999 * uniform_value


def test_center_balance_weights_match_derivatives() -> None:
    schema = Schema([Attribute.of_size("c", 3, "categorical"), *sizes(9, 6).attributes])
    problem = CenterProblem(
        Workload.all_ways(schema, (0, 1, 2, 3)).add("n0", "prefix", weight=2.0), ignore_progress
    )
    problem.options = Options(gap=1e-9, evaluations=600)
    balance = CenterBalance(problem, separable_projections(problem))
    rng = np.random.default_rng(5)

    def objective(evaluation: Evaluation) -> float:
        return sum(kind.count * evaluation.space(kind) for kind in problem.kinds)

    for _ in range(2):
        centers = {
            role: rng.dirichlet(np.full(problem.sizes[role], 5.0))
            for role in balance.tuned_projections
        }
        value, weights = balance.total_weights(centers)
        assert problem.evaluate(centers)[0] == pytest.approx(value, rel=1e-7)
        for role, (inside, outside) in balance.tuned_projections.items():
            evaluation = Evaluation(problem=problem, centers=centers)
            optimum, *derivatives = evaluation.optimum(inside)
            total_square = evaluation.total_square(outside)
            # Finite differences of the objective, relative to changes of the smallest error on the
            # residual space of the attribute, and to changes of its total square.
            objectives = {}
            for factor in (1.0 - 1e-4, 1.0 + 1e-4):
                changed = Evaluation(problem=problem, centers=centers)
                changed.optima[inside] = (optimum * factor, *derivatives)
                objectives["optimum", factor > 1.0] = objective(changed)
                changed = Evaluation(problem=problem, centers=centers)
                changed.total_squares[outside] = total_square * factor
                objectives["square", factor > 1.0] = objective(changed)
            optimum_slope = (objectives["optimum", True] - objectives["optimum", False]) / optimum
            square_slope = (objectives["square", True] - objectives["square", False]) / total_square
            expected = optimum * (optimum_slope / square_slope) ** 2
            assert weights[role] + total_square == pytest.approx(expected, rel=1e-4)


def test_tuned_centers_random_workloads_are_near_optimum() -> None:
    rng = np.random.default_rng(3)
    excesses = []
    for _ in range(12):
        schema = sizes(*rng.integers(3, 6, size=3))
        workload = Workload(schema)
        for _ in range(int(rng.integers(2, 5))):
            names = rng.permutation(schema.names)[: int(rng.integers(1, 4))]
            families = {
                str(n): str(rng.choice(["prefix", "range", "marginal", "total"])) for n in names
            }
            workload = workload.add(
                tuple(families), families, weight=float(rng.choice([0.5, 1.0, 4.0]))
            )
        uniform_rmse = plan(workload, Budget(pcost=1.0)).weighted_rmse
        tuned_rmse = plan(workload, Budget(pcost=1.0), centers="tuned").weighted_rmse
        assert tuned_rmse <= uniform_rmse * (1.0 + 1e-5)
        excesses.append(tuned_rmse / full_domain_optimum(workload) - 1.0)
    assert min(excesses) >= -1e-4
    assert np.median(excesses) <= 0.005


def joint_workload() -> Workload:
    schema = Schema([*sizes(4, 5, 4).attributes, Attribute.of_size("c", 3, "categorical")])
    workload = (
        Workload(schema)
        .add(("n0", "n1"), "affine")
        .add(("n2", "n0"), "abs")
        .add(("n0",), "prefix")
        .add(("c",))
    )
    return workload.add(("n0", "n2"), "prefix", weight=0.3).add(("n1",), "range")


def all_pairs(n: int, d: int, family: str) -> Workload:
    schema = sizes(*[n] * d)
    ones, twos = Workload.all_ways(schema, (1,), "prefix"), Workload.all_ways(schema, (2,), family)
    return Workload(schema, ones.groups + twos.groups)


@pytest.mark.parametrize(
    "workload", [joint_workload(), all_pairs(4, 3, "affine")], ids=["mixed", "symmetric"]
)
def test_complement_gradient_matches_finite_differences(workload: Workload) -> None:
    tunes_complements, _ = ways_to_split(workload, Allowance())
    assert tunes_complements
    problem = ComplementProblem(workload, ignore_progress)
    problem.power = 20.0
    rng = np.random.default_rng(0)
    parameters = 0.03 * rng.normal(size=problem.length)
    _, gradient = problem.evaluate(parameters)
    for k in rng.choice(problem.length, 12, replace=False):
        step = np.zeros(problem.length)
        step[k] = 1e-5
        above, _ = problem.evaluate(parameters + step)
        below, _ = problem.evaluate(parameters - step)
        assert gradient[k] == pytest.approx((above - below) / 2e-5, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize(
    ("family", "uniform_rmse", "tuned_rmse"),
    [pytest.param("affine", 28.010, 26.10, marks=pytest.mark.full), ("abs", 30.103, 27.78)],
)
def test_complements_reach_stored_rmse(family: str, uniform_rmse: float, tuned_rmse: float) -> None:
    workload = all_pairs(10, 40, family)
    assert plan(workload, Budget(pcost=1.0)).rmse == pytest.approx(uniform_rmse, rel=2e-4)
    result = plan(workload, Budget(pcost=1.0), centers="tuned")
    assert result.rmse <= tuned_rmse
    assert load_plan(result.to_json()).to_json() == result.to_json()


def test_complements_of_absolute_differences_reach_stored_rmse(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("engine.residuals.tuning.unions.MAX_STEP_MULTIPLICATIONS", 0)
    workload = Workload.all_ways(sizes(*[10] * 10), (2,), "abs")
    result = plan(workload, Budget(pcost=1.0), centers="tuned")
    assert result.split.complements
    assert result.rmse <= 7.23  # counts, the RMSE when this test was written


def test_complements_variances_match_explicit_mechanism(monkeypatch: pytest.MonkeyPatch) -> None:
    limit_unions(monkeypatch)
    workload = joint_workload()
    result = plan(workload, Budget(pcost=1.0), centers="tuned")
    assert result.split.complements
    blocks = [(block_rows(result.schema, b), b.noise) for b in result.blocks.values()]
    precision = sum(B.T @ B / noise**2 for B, noise in blocks)
    assert 1.0 - 1e-6 <= float(np.diag(precision).max()) <= result.pcost
    for number, rows in enumerate(workload_rows(workload)):
        expected = np.einsum("qc,cd,qd->q", rows, np.linalg.pinv(precision, rcond=1e-12), rows)
        np.testing.assert_allclose(result.variances(number), expected, rtol=1e-6)
    uniform = plan(workload, Budget(pcost=1.0)).weighted_rmse
    assert full_domain_optimum(workload) * (1.0 - 1e-6) <= result.weighted_rmse < uniform


def test_complements_slow_pairs_need_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    limit_unions(monkeypatch)
    monkeypatch.setattr("engine.residuals.tuning.center_objective.MAX_STEP_S", 0.0)
    without_limit, with_long_limit = (
        plan(joint_workload(), Budget(pcost=1.0), centers="tuned", time_limit=seconds)
        for seconds in (None, 3600.0)
    )
    assert not without_limit.split.complements
    assert without_limit.split.stopped == {"work"}
    assert "would take long" in without_limit.certificate.statement
    assert with_long_limit.split.complements
    assert with_long_limit.weighted_rmse < without_limit.weighted_rmse


def test_tuned_centers_progress_false_cancels(monkeypatch: pytest.MonkeyPatch) -> None:
    limit_unions(monkeypatch)
    with pytest.raises(Cancelled):
        plan(
            mixed_workload(),
            Budget(pcost=1.0),
            centers="tuned",
            progress=lambda done, text: "centers" not in text,
        )


@pytest.mark.parametrize("family", ["prefix", "suffix", "range"])
def test_tuned_centers_wide_attribute_equal_dense_ones(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    workload = (
        Workload(sizes(40, 3, 4))
        .add(("n0",), family)
        .add(("n0", "n1"), {"n0": family, "n1": "marginal"})
        .add(("n0", "n2"), {"n0": family, "n2": "marginal"}, weight=2.0)
    )
    dense = tuned_centers(workload, ignore_progress)["n0"]
    problem = CenterProblem(workload, ignore_progress)
    problem.options = Options(gap=1e-7, evaluations=300)
    role = problem.roles["n0"]
    monkeypatch.setattr(operators, "MIN_WIDE_CELLS", 30)
    matrix_free = tuned_centers(workload, ignore_progress)["n0"]
    monkeypatch.undo()
    uniform_value, dense_value, matrix_free_value = (
        problem.evaluate(centers)[0] for centers in ({}, {role: dense}, {role: matrix_free})
    )
    np.testing.assert_allclose(matrix_free, dense, atol=1e-4)
    assert matrix_free_value == pytest.approx(dense_value, rel=1e-8)
    assert matrix_free_value < 0.99 * uniform_value


def test_centers_of_wide_attribute_with_marginals_are_uniform(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(operators, "MIN_WIDE_CELLS", 30)
    workload = (
        Workload(sizes(30, 5)).add("n0", "prefix").add("n0").add(("n0", "n1"), "prefix").add("n1")
    )
    centers = tuned_centers(workload, ignore_progress)
    assert "n0" not in centers
    assert "n1" in centers


def test_plan_tuned_wide_attribute_is_certified_and_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operators, "MIN_WIDE_CELLS", 30)
    limit_unions(monkeypatch)
    monkeypatch.setattr("engine.mechanisms.querysmasher.MAX_PRODUCT_SEARCH_S", 0)
    workload = Workload(sizes(30, 3)).add("n0", "prefix")
    workload = workload.add(("n0", "n1"), {"n0": "prefix", "n1": "marginal"})
    result = plan(workload, Budget(pcost=1.0), centers="tuned", cache=False)
    assert "n0" in result.split.centers
    assert result.weighted_rmse < 0.99 * plan(workload, Budget(pcost=1.0)).weighted_rmse
    assert result.certificate.gap < 1e-4
    assert load_plan(result.to_json()).certificate == result.certificate
    blocks = [(block_rows(result.schema, b), b.noise) for b in result.blocks.values()]
    precision = sum(B.T @ B / noise**2 for B, noise in blocks)
    assert np.diagonal(precision).max() <= 1.0 + 1e-9
    covariance = np.linalg.inv(precision)
    for number, rows in enumerate(workload_rows(workload)):
        expected = np.einsum("qc,cd,qd->q", rows, covariance, rows)
        np.testing.assert_allclose(result.variances(number), expected, rtol=1e-6)


def test_fixed_point_iteration_computes_no_derivatives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "engine.residuals.dual_solver.DualProblem.sensitivities",
        lambda *_: pytest.fail("derivatives were computed"),
    )
    workload = Workload.all_ways(sizes(8, 5, 4), (1, 2), family="prefix")
    assert tuned_centers(workload, ignore_progress)


def test_error_without_sensitivities_has_equal_digits() -> None:
    problem = CenterProblem(Workload(sizes(9)).add("n0", "prefix"), ignore_progress)
    evaluation = Evaluation(problem=problem, centers={})
    (index,) = (i for i, p in enumerate(problem.projections) if p.inside)
    error = evaluation.error(index)
    assert not evaluation.optima  # `error` has computed no sensitivities
    problem._last_weights.clear()
    error_with_sensitivities, *_ = evaluation.optimum(index)
    assert error == error_with_sensitivities


def test_window_searches_share_weights_within_planning_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    starts = []
    search = window_strategy.solve

    def record_start(space: WindowSpace, **options: Any) -> Any:
        starts.append(options["start"])
        return search(space, **options)

    monkeypatch.setattr(window_strategy, "solve", record_start)
    workload = Workload(sizes(1_000)).add("n0", Width(7))
    for _ in range(2):
        starts.clear()
        plan(workload, Budget(pcost=1.0), centers="tuned", cache=False)
        first_start, *later_starts = starts
        assert first_start is None
        assert later_starts
        assert all(start is not None for start in later_starts)
    with pytest.raises(PlanError, match="window_weights"):
        plan(workload, Budget(pcost=1.0), window_weights={})  # type: ignore[call-arg]
