"""Searches in turns where factors couple attributes: against dense optima, explicit matrices, files and releases."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from engine.errors import NotApplicable
from engine.mechanisms import forecast, load_plan, plan
from engine.mechanisms.residual_base import ResidualMechanism
from engine.privacy import Budget
from engine.release import measure
from engine.residuals import Options, Split
from engine.residuals.basis import UNIFORM
from engine.residuals.decomposition import decompose
from engine.residuals.subworkload_solver import SubworkloadSolver
from engine.workload import Attribute, Schema, Workload
from tests import oracles

SIZES = {"a": 9, "b": 8, "c": 3}
SCHEMA = Schema([Attribute.of_size(name, n) for name, n in SIZES.items()])
LITTLE = 3e5  # bytes: neither pairs nor triples fit into one search


def asked(weight: float = 30.0, order: tuple[str, str] = ("a", "b")) -> Workload:
    """Prefixes of pairs, heavy as many triples make them, beside sums and differences in either order."""
    workload = Workload(SCHEMA).add(("a", "b"), "prefix", weight=weight).add(order, "affine").add(order[::-1], "abs")
    return workload.add("a", "prefix").add(("a", "b", "c"), {"a": "prefix", "b": "prefix", "c": "marginal"})


def made(workload: Workload, **options: object):
    return plan(workload, Budget(pcost=1.0), cache=False, workers=1, **options)


def solved(workload: Workload, limit: float, method: str = "optimal", centers: dict[str, np.ndarray] | None = None):
    """Value and bound of the space on the first two attributes."""
    parts = decompose(workload, Split(centers=centers or {}))
    number, _ = parts.spaces["a", "b"]
    solver = SubworkloadSolver(
        factors=parts.factors, method=method, options=Options(gap=1e-9), memory_limit=limit, cache=None
    )
    return solver.solve(parts.subworkloads[number])


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
@pytest.mark.parametrize("tuned", [False, True])
@pytest.mark.parametrize(("weight", "share"), [(1.0, 0.16), (30.0, 3e-3), (1000.0, 1e-5)])
def test_turns_are_between_the_dense_optimum_and_their_own_bound(
    weight: float, share: float, tuned: bool, order: tuple[str, str]
) -> None:
    centers = {"a": np.linspace(0.3, 0.7, 9) / 4.5, "b": np.linspace(0.9, 0.1, 8) / 4.0} if tuned else {}
    dense, turned = (solved(asked(weight, order), limit, centers=centers) for limit in (4e9, LITTLE))
    assert [axes for axes, _ in dense.factors] == [(0, 1)]
    assert [axes for axes, _ in turned.factors] == [(0,), (1,)]
    assert dense.value * (1.0 - 1e-6) <= turned.value <= dense.value * (1.0 + share) ** 2
    # in a space so small nothing is left out of the bound but what weights that are no product would add
    assert dense.value * (1.0 - 0.02) <= turned.bound <= dense.value * (1.0 + 1e-9)


def test_the_bound_by_minima_holds_for_several_products() -> None:
    several = asked(10.0).add(("a", "b"), "range", weight=3.0)
    dense, turned = (solved(several, limit) for limit in (4e9, LITTLE))
    assert [axes for axes, _ in turned.factors] == [(0,), (1,)]
    assert dense.value * 0.9 <= turned.bound <= dense.value <= turned.value


def test_the_value_is_what_the_strategy_has_on_the_gram() -> None:
    """By dense matrices: the errors of all class rows under the Kronecker product that is released."""
    parts = decompose(asked())
    number, _ = parts.spaces["a", "b"]
    found, sub = solved(asked(), LITTLE), parts.subworkloads[number]
    one, other = (solution.strategy for _, solution in found.factors)
    covariance = np.kron(one.covariance, other.covariance)
    gram = np.zeros_like(covariance)
    for term in sub.terms:
        own = [(axes, parts.factors[k].dense()) for axes, k in sorted(term.factors)]
        whole = own[0][1] if len(own) == 1 else np.kron(own[0][1], own[1][1])
        if own[0][0] == (1, 0):  # asked in the other order
            whole = whole.reshape(7, 8, 7, 8).transpose(1, 0, 3, 2).reshape(gram.shape)
        gram += term.coefficient * whole
    assert found.value == pytest.approx(float(np.sum(gram * covariance)), rel=1e-9)
    assert max(one.column_norm, other.column_norm) <= 1.0 + 1e-9


@pytest.mark.parametrize("options", [{}, {"centers": "tuned"}, {"solver": "eigenbasis"}, {"solver": "fourier"}])
def test_plans_in_turns_keep_their_promises_in_a_file_and_in_a_release(options: dict[str, str]) -> None:
    workload = asked()
    found = made(workload, memory_limit=LITTLE, **options)
    assert [axes for axes, _ in found.blocks["a", "b"].factors] == [(0,), (1,)]
    assert "alternating" in found.certificate.statement
    explicit, rows = oracles.Explicit(found), oracles.workload_rows(workload)
    assert explicit.pcost <= found.pcost <= 1.0
    assert found.pcost == pytest.approx(1.0, rel=1e-5)
    for number, queries in enumerate(rows):
        np.testing.assert_allclose(found.variances(number), explicit.of_group(number).variances(queries), rtol=1e-7)
    assert found.certificate.lower_bound <= found.weighted_rmse
    again = load_plan(found.to_json())
    assert again.to_json() == found.to_json()
    assert again.certificate == found.certificate
    draw = np.random.default_rng(5)
    cells = {name: draw.integers(0, n, 300) for name, n in SIZES.items()}
    told = measure(found, pd.DataFrame(cells), rehearsal=True)
    table = np.zeros(tuple(SIZES.values()))
    np.add.at(table, tuple(cells.values()), 1.0)
    for number, queries in enumerate(rows):
        # twelve standard errors are left less than once in 10^30
        away = np.abs(told.values(number) - queries @ table.ravel()) / np.sqrt(found.variances(number))
        assert away.max() <= 12.0


def test_the_forecast_is_of_turns_and_a_file_says_which_searches_were_parts() -> None:
    pair = Schema([Attribute.of_size("a", 85), Attribute.of_size("b", 99)])
    workload = Workload(pair).add(("a", "b"), "prefix", weight=30.0).add(("a", "b"), "affine").add("a")
    for options in ({}, {"centers": "tuned"}, {"solver": "eigenbasis"}, {"solver": "fourier"}):
        expected = forecast(workload, **options)
        assert expected.memory < 5e8
        assert expected.seconds < 60.0
    parted, dense = made(asked(), memory_limit=LITTLE), made(asked())
    assert any(ending.startswith("in turns") for ending in parted.endings)
    assert not any(ending.startswith("in turns") for ending in dense.endings)


@pytest.mark.parametrize("centers", ["uniform", "tuned"])
@pytest.mark.parametrize("goal", [{"objective": "max"}, {"objective": "lp", "power": 3.0}])
def test_objectives_that_are_no_sum_refuse_turns_before_planning(
    goal: dict[str, object], centers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    forecast(asked(), centers=centers, **goal)  # what fits into one search is searched
    products = Workload(SCHEMA).add(tuple(SIZES), "prefix").add(tuple(SIZES), "range")
    monkeypatch.setattr("engine.mechanisms.residual_base.ResidualMechanism._solve", None)
    for workload in (asked(), products):
        for begin in (forecast, made):
            with pytest.raises(NotApplicable, match="'sum', merge cells"):
                begin(workload, centers=centers, memory_limit=LITTLE, **goal)


def test_a_tuned_split_that_needs_turns_leaves_the_plan_with_uniform_centers(monkeypatch: pytest.MonkeyPatch) -> None:
    def only_uniform(mechanism, workload, *given):
        split = given[3]
        if split is not UNIFORM:
            raise NotApplicable("this split needs turns")
        return emphasised(mechanism, workload, *given)

    emphasised = ResidualMechanism._emphasised
    monkeypatch.setattr(ResidualMechanism, "_emphasised", only_uniform)
    workload = Workload(Schema([Attribute.of_size("a", 4)])).add("a", "prefix")
    found, uniform = (made(workload, objective="max", centers=c) for c in ("tuned", "uniform"))
    assert found.achieved == uniform.achieved


@pytest.mark.parametrize("solver", ["fourier", "eigenbasis"])
def test_sets_that_were_searched_in_turns_to_save_time_are_read_again(solver):
    schema = Schema([Attribute.of_size(name, n) for name, n in (("a", 60), ("b", 40), ("c", 30))])
    asked = Workload(schema).add(("a", "b", "c"), "prefix").add(("a", "b", "c"), "range")
    made = plan(asked, Budget(1.0), cache=False, solver=solver)
    assert any(ending.startswith("set by set") for ending in made.endings)
    again = load_plan(made.to_json())
    assert (again.hash, again.rmse, again.endings) == (made.hash, made.rmse, made.endings)
