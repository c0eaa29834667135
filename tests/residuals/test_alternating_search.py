"""Alternating search of coupled factors against dense optima and explicit matrices."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from engine.errors import NotApplicable
from engine.mechanisms import forecast, load_plan, plan
from engine.mechanisms.residual_base import ResidualMechanism
from engine.privacy import Budget
from engine.release import measure
from engine.residuals import Options, Split, operators, search_costs, subworkload_solver
from engine.residuals.alternating_search import AlternatingSearch
from engine.residuals.basis import UNIFORM
from engine.residuals.decomposition import decompose
from engine.residuals.subworkload_solver import SpaceSolution, SubworkloadSolver
from engine.workload import Attribute, Schema, Workload
from tests import oracles

SIZES = {"a": 9, "b": 8, "c": 3}
SCHEMA = Schema([Attribute.of_size(name, n) for name, n in SIZES.items()])
# Bytes; one dense search on both attributes of a pair needs more.
MEMORY_LIMIT = 3e5
LARGE_MEMORY_LIMIT = 4e9  # bytes; enough for all dense searches


def coupled_workload(weight: float = 30.0, order: tuple[str, str] = ("a", "b")) -> Workload:
    """Return prefixes, sums and absolute differences of a and b, and smaller groups.

    ``order`` is the order of the pair in the group of sums; the group of differences has the other
    order.  ``weight`` is the weight of the prefixes.
    """
    workload = (
        Workload(SCHEMA)
        .add(("a", "b"), "prefix", weight=weight)
        .add(order, "affine")
        .add(order[::-1], "abs")
    )
    return workload.add("a", "prefix").add(
        ("a", "b", "c"), {"a": "prefix", "b": "prefix", "c": "marginal"}
    )


def build_plan(workload: Workload, **options: object):
    return plan(workload, Budget(pcost=1.0), cache=False, workers=1, **options)


def solve_pair(
    workload: Workload,
    limit: float,
    method: str = "optimal",
    centers: dict[str, np.ndarray] | None = None,
):
    """Return the solution of the residual space of the pair (a, b).

    ``limit`` is the memory limit in bytes.
    """
    parts = decompose(workload, Split(centers=centers or {}))
    number, _ = parts.spaces["a", "b"]
    solver = SubworkloadSolver(
        factors=parts.factors,
        method=method,
        options=Options(gap=1e-9),
        memory_limit=limit,
        cache=None,
    )
    return solver.solve(parts.subworkloads[number])


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
@pytest.mark.parametrize("tuned", [False, True], ids=["uniform", "tuned"])
@pytest.mark.parametrize(("weight", "loss"), [(1.0, 0.16), (30.0, 3e-3), (1000.0, 1e-5)])
def test_alternating_value_and_bound_enclose_optimum(
    weight: float, loss: float, tuned: bool, order: tuple[str, str]
) -> None:
    centers = (
        {"a": np.linspace(0.3, 0.7, 9) / 4.5, "b": np.linspace(0.9, 0.1, 8) / 4.0} if tuned else {}
    )
    workload = coupled_workload(weight, order)
    dense = solve_pair(workload, LARGE_MEMORY_LIMIT, centers=centers)
    alternating = solve_pair(workload, MEMORY_LIMIT, centers=centers)
    assert [axes for axes, _ in dense.factors] == [(0, 1)]
    assert [axes for axes, _ in alternating.factors] == [(0,), (1,)]
    # ``loss`` is the largest loss of root mean squared error, so the value has its square.
    assert dense.value * (1.0 - 1e-6) <= alternating.value <= dense.value * (1.0 + loss) ** 2
    # The bound of the alternating search is proved by products of one weight vector per attribute.
    # It is within 2% of the optimum.
    assert dense.value * (1.0 - 0.02) <= alternating.bound <= dense.value * (1.0 + 1e-9)


def test_alternating_bound_several_products_is_valid() -> None:
    workload = coupled_workload(10.0).add(("a", "b"), "range", weight=3.0)
    dense = solve_pair(workload, LARGE_MEMORY_LIMIT)
    alternating = solve_pair(workload, MEMORY_LIMIT)
    assert [axes for axes, _ in alternating.factors] == [(0,), (1,)]
    assert dense.value * 0.9 <= alternating.bound <= dense.value <= alternating.value


SUMS_OF_PRODUCTS = {
    "two products": (("prefix", "range"), ("range", "prefix")),
    "three products": (("prefix", "range"), ("range", "marginal"), ("marginal", "prefix")),
    "three attributes": (("prefix", "range", "suffix"), ("range", "prefix", "marginal")),
}


def sum_of_products(name: str, sizes: tuple[int, ...]) -> Workload:
    """Return the queries of `SUMS_OF_PRODUCTS` on attributes a, b, c of these sizes."""
    families = SUMS_OF_PRODUCTS[name]
    names = tuple("abc"[: len(families[0])])
    workload = Workload(
        Schema([Attribute.of_size(n, size) for n, size in zip(names, sizes, strict=False)])
    )
    for families_of_group in families:
        workload = workload.add(names, dict(zip(names, families_of_group, strict=True)))
    return workload


def solve_all_attributes(
    workload: Workload, dense_limit: float, deadline: float = math.inf
) -> SpaceSolution:
    """Return the solution of the residual space of all attributes.

    Above ``dense_limit`` bytes, the search is an alternating one.
    """
    parts = decompose(workload)
    number, _ = parts.spaces[workload.schema.names]
    solver = SubworkloadSolver(
        factors=parts.factors, method="optimal", options=Options(), memory_limit=4e9
    )
    solver.dense_limit = dense_limit
    solver.options = Options(deadline=deadline)
    return solver.solve(parts.subworkloads[number])


@pytest.mark.parametrize("name", SUMS_OF_PRODUCTS)
@pytest.mark.parametrize(("max_directions", "loss"), [(600, 2e-3), (9, 0.02)])
def test_alternating_bound_of_products_is_near_optimum(
    name: str, max_directions: int, loss: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_costs, "MAX_COUPLED_DIRECTIONS", max_directions)
    workload = sum_of_products(name, (13, 10, 5))
    dense = solve_all_attributes(workload, dense_limit=4e9)
    alternating = solve_all_attributes(workload, dense_limit=0.0)
    assert alternating.status.startswith("alternating")
    # The sum of the bounds of the terms would be 5% to 9% below the optimum.
    assert dense.value * (1.0 - loss) <= alternating.bound <= dense.value


def test_alternating_bound_after_deadline_is_cheap_and_valid(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        AlternatingSearch, "_aligned_roots", lambda *_: pytest.fail("the bound was computed")
    )
    workload = sum_of_products("two products", (13, 10))
    solution = solve_all_attributes(workload, dense_limit=0.0, deadline=-math.inf)
    assert 0.0 < solution.bound < solution.value


@pytest.mark.parametrize("is_late", [False, True])
def test_load_plan_computes_the_same_bound_of_products(
    is_late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subworkload_solver, "MAX_OPTIMAL_SEARCH_S", 0.0)
    with monkeypatch.context() as patch:
        if is_late:
            patch.setattr(subworkload_solver, "planning_time", lambda: math.inf)
        workload = sum_of_products("two products", (13, 10))
        result = plan(workload, Budget(pcost=1.0), cache=False, time_limit=100.0)
    assert (result.certificate.gap > 0.01) == is_late
    assert load_plan(result.to_json()).certificate == result.certificate


def test_alternating_value_matches_explicit_error() -> None:
    """Compare with the dense covariance of the Kronecker product."""
    parts = decompose(coupled_workload())
    number, _ = parts.spaces["a", "b"]
    solution = solve_pair(coupled_workload(), MEMORY_LIMIT)
    strategy_a, strategy_b = (factor.strategy for _, factor in solution.factors)
    covariance = np.kron(strategy_a.covariance, strategy_b.covariance)
    gram = np.zeros_like(covariance)
    for term in parts.subworkloads[number].terms:
        (axes, first), *others = sorted(term.factors)
        term_gram = parts.factors[first].dense()
        for _, other in others:
            term_gram = np.kron(term_gram, parts.factors[other].dense())
        if axes == (1, 0):  # the term has the attributes in the order (b, a)
            term_gram = term_gram.reshape(7, 8, 7, 8).transpose(1, 0, 3, 2).reshape(gram.shape)
        gram += term.coefficient * term_gram
    assert solution.value == pytest.approx(float(np.sum(gram * covariance)), rel=1e-9)
    assert max(strategy_a.column_norm, strategy_b.column_norm) <= 1.0 + 1e-9


@pytest.mark.parametrize(
    "options", [{}, {"centers": "tuned"}, {"solver": "eigenbasis"}, {"solver": "fourier"}]
)
def test_alternating_plan_matches_matrices_and_measurement(options: dict[str, str]) -> None:
    workload = coupled_workload()
    result = build_plan(workload, memory_limit=MEMORY_LIMIT, **options)
    assert [axes for axes, _ in result.blocks["a", "b"].factors] == [(0,), (1,)]
    assert "alternating" in result.certificate.statement
    explicit = oracles.Explicit(result)
    assert explicit.pcost <= result.pcost <= 1.0
    assert result.pcost == pytest.approx(1.0, rel=1e-5)
    assert result.certificate.lower_bound <= result.weighted_rmse
    loaded = load_plan(result.to_json())
    assert loaded.to_json() == result.to_json()
    assert loaded.certificate == result.certificate
    rng = np.random.default_rng(5)
    records = pd.DataFrame({name: rng.integers(0, n, 300) for name, n in SIZES.items()})
    table = np.zeros(tuple(SIZES.values()))
    np.add.at(table, tuple(records[name] for name in SIZES), 1.0)
    measurement = measure(result, records, rehearsal=True)
    for i, rows in enumerate(oracles.workload_rows(workload)):
        variances = result.variances(i)
        np.testing.assert_allclose(variances, explicit.of_group(i).variances(rows), rtol=1e-7)
        errors = measurement.values(i) - rows @ table.ravel()
        # More than 12 standard deviations have a probability below 10^-30.
        assert (np.abs(errors) / np.sqrt(variances)).max() <= 12.0


def test_forecast_and_endings_state_alternating_search() -> None:
    pair = Schema([Attribute.of_size("a", 85), Attribute.of_size("b", 99)])
    workload = (
        Workload(pair).add(("a", "b"), "prefix", weight=30.0).add(("a", "b"), "affine").add("a")
    )
    for options in ({}, {"centers": "tuned"}, {"solver": "eigenbasis"}, {"solver": "fourier"}):
        prediction = forecast(workload, **options)
        assert prediction.memory < 5e8
        assert prediction.seconds < 60.0
    alternating_plan = build_plan(coupled_workload(), memory_limit=MEMORY_LIMIT)
    dense_plan = build_plan(coupled_workload())
    assert any(ending.startswith("in turns") for ending in alternating_plan.endings)
    assert not any(ending.startswith("in turns") for ending in dense_plan.endings)


@pytest.mark.parametrize("centers", ["uniform", "tuned"])
@pytest.mark.parametrize("goal", [{"objective": "max"}, {"objective": "lp", "power": 3.0}])
def test_alternating_other_objectives_are_refused(
    goal: dict[str, object], centers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without the memory limit, a dense search is possible.
    forecast(coupled_workload(), centers=centers, **goal)
    three_way_products = Workload(SCHEMA).add(tuple(SIZES), "prefix").add(tuple(SIZES), "range")
    # A search would raise a TypeError, so the refusal comes before every search.
    monkeypatch.setattr("engine.mechanisms.residual_base.ResidualMechanism._solve", None)
    for workload in (coupled_workload(), three_way_products):
        for call in (forecast, build_plan):
            with pytest.raises(NotApplicable, match="'sum'"):
                call(workload, centers=centers, memory_limit=MEMORY_LIMIT, **goal)


def test_tuned_split_not_applicable_uses_uniform_centers(monkeypatch: pytest.MonkeyPatch) -> None:
    solve_objective = ResidualMechanism._solve_objective

    def refuse_tuned_split(mechanism, workload, *args):
        split = args[3]
        if split is not UNIFORM:
            raise NotApplicable("split not applicable")
        return solve_objective(mechanism, workload, *args)

    monkeypatch.setattr(ResidualMechanism, "_solve_objective", refuse_tuned_split)
    workload = Workload(Schema([Attribute.of_size("a", 4)])).add("a", "prefix")
    tuned, uniform = (
        build_plan(workload, objective="max", centers=c) for c in ("tuned", "uniform")
    )
    assert tuned.achieved == uniform.achieved


@pytest.mark.parametrize("solver", ["fourier", "eigenbasis"])
def test_load_plan_alternating_sets_round_trips(solver):
    schema = Schema([Attribute.of_size(name, n) for name, n in (("a", 60), ("b", 40), ("c", 30))])
    workload = Workload(schema).add(("a", "b", "c"), "prefix").add(("a", "b", "c"), "range")
    result = plan(workload, Budget(1.0), cache=False, solver=solver)
    assert any(ending.startswith("set by set") for ending in result.endings)
    loaded = load_plan(result.to_json())
    assert (loaded.hash, loaded.rmse, loaded.endings) == (result.hash, result.rmse, result.endings)


@pytest.mark.parametrize(
    "families_of_a", [("prefix", "range"), ("suffix", "prefix"), ("range", "range")]
)
def test_alternating_wide_attribute_equals_matrices(
    families_of_a: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    workload = (
        Workload(Schema([Attribute.of_size("a", 20), Attribute.of_size("b", 6)]))
        .add(("a", "b"), {"a": families_of_a[0], "b": "marginal"})
        .add(("a", "b"), {"a": families_of_a[1], "b": "prefix"}, weight=0.5)
        .add(("a", "b"), {"a": "marginal", "b": "range"})
    )
    monkeypatch.setattr(subworkload_solver, "MAX_OPTIMAL_SEARCH_S", 0.0)
    matrix_plan = plan(workload, Budget(pcost=1.0), cache=False)
    monkeypatch.setattr(operators, "MIN_WIDE_CELLS", 10)
    operator_plan = plan(workload, Budget(pcost=1.0), cache=False)
    assert operator_plan.weighted_rmse == pytest.approx(matrix_plan.weighted_rmse, rel=1e-5)
    assert -1e-9 < operator_plan.certificate.gap < 1.1 * matrix_plan.certificate.gap + 1e-5
    assert forecast(workload).seconds < 1.0
    assert load_plan(operator_plan.to_json()).to_json() == operator_plan.to_json()


def test_only_a_time_limit_lets_coupled_attributes_alternate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    schema = Schema([Attribute.of_size("a", 12), Attribute.of_size("b", 12)])
    workload = Workload(schema).add(("a", "b"), "abs").add(("a", "b"), "prefix")
    first_cell = np.eye(12)[0]
    parts = decompose(workload, Split(centers={"a": first_cell, "b": first_cell}))
    (pair,) = (sub for sub in parts.subworkloads if len(sub.sizes) == 2)
    solver = SubworkloadSolver(
        factors=parts.factors, method="optimal", options=Options(), memory_limit=1e9
    )
    costs = solver.forecast(parts.subworkloads)
    monkeypatch.setattr(subworkload_solver, "MAX_TUNED_SEARCH_S", 0.0)
    solver.in_time(parts.subworkloads, costs, math.inf)
    assert solver._alternating_sets(pair) == ([], "")
    solver.in_time(parts.subworkloads, costs, 0.5 * max(cost.seconds for cost in costs))
    assert solver._alternating_sets(pair) == ([(0,), (1,)], subworkload_solver.COUPLED_PREFIX)
