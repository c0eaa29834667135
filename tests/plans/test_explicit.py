"""Explicit strategies end to end: Laplace noise, releases, errors and global bounds."""

from __future__ import annotations

import functools
import itertools
import math
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from demo_data.make_synthetic import synthetic
from engine._arrays import thin_svd
from engine.bounds.lower_bounds import exact_bound, global_bound
from engine.errors import BudgetError, LimitExceeded, NotApplicable
from engine.ledger import Ledger
from engine.mechanisms import load_plan, plan
from engine.mechanisms.registry import MECHANISMS
from engine.plans import Plan
from engine.privacy import Budget
from engine.records import count_marginals
from engine.release import apply_group, quantile
from engine.release.measure import load_measurement
from engine.workload import Attribute, Schema, Workload
from tests import oracles
from tests.mechanisms.checks import check_certificate, check_privacy, check_round_trip, check_summary, check_variances
from tests.shapes import SHAPES

measure = sys.modules["engine.release.measure"].measure
SCHEMA = Schema([Attribute.categorical("sex", ["F", "M"]), Attribute.of_size("age", 6), Attribute.of_size("hours", 5)])
LAPLACE = [m.name for m in MECHANISMS if "laplace" in m.laws]
EXPLICIT = [m.name for m in MECHANISMS if hasattr(m, "design")]
REHEARSALS = 300  # half a standard error off shows in every query, and a fifth more or less variance in all of them


def asked(mechanism: str = "") -> Workload:
    if mechanism == "datacube":
        return Workload.all_ways(SCHEMA, ways=(0, 1, 2), family="marginal")
    workload = Workload.all_ways(SCHEMA, ways=(1, 2))
    return workload.add(("hours", "age"), "affine").add("age", "range", weight=2.0)


def budget_for(name: str, pcost: float) -> Budget:
    gaussian = "gaussian" in {m.name: m.laws for m in MECHANISMS}[name]
    return Budget(pcost=pcost) if gaussian else Budget.pure(math.sqrt(pcost))


@functools.cache
def planned(mechanism: str, budget: Budget) -> Plan:
    return plan(asked(mechanism), budget, mechanism)


@pytest.mark.parametrize("shape", ["nested", "mixed_three", "query_weighted", "coupled", "zero_weight_uncovered"])
@pytest.mark.parametrize("mechanism", LAPLACE)
def test_laplace_plans_are_what_their_matrices_do(mechanism: str, shape: str) -> None:
    workload = SHAPES[shape]()
    try:
        made = plan(workload, Budget.pure(0.7), mechanism)
    except NotApplicable as reason:
        assert len(str(reason)) > 20  # noqa: PT017  (the plan may also be made)
        return
    explicit, rows = oracles.explicit(made), oracles.workload_rows(workload)
    assert made.budget.law == "laplace"
    assert {b.law for b in made.blocks.values()} == {"laplace"}
    check_privacy(made, explicit)
    check_summary(made, check_variances(made, explicit, rows))
    check_certificate(made)
    check_round_trip(made)


def every_law() -> Iterator[Any]:
    """Yield every mechanism with one noise, alternating between two; full runs have both."""
    for k, m in enumerate(m for m in MECHANISMS if m.name in EXPLICIT):
        for i, law in enumerate(m.laws):
            yield pytest.param(m.name, law, marks=[pytest.mark.full] * ((k + i) % len(m.laws)))


@pytest.mark.parametrize(("mechanism", "law"), list(every_law()))
def test_rehearsals_are_unbiased_with_the_predicted_variances(mechanism: str, law: str) -> None:
    made = planned(mechanism, Budget(pcost=0.5) if law == "gaussian" else Budget.pure(math.sqrt(0.5)))
    groups = range(len(made.workload.groups))
    sets = {part.attributes for part in (*made.blocks.values(), *made.workload.groups)}
    tables = count_marginals(synthetic(SCHEMA, 500, seed=3), SCHEMA, sorted(sets))
    truth = np.concatenate(
        [apply_group(g, tables[g.attributes].astype(float), 0, g.count) for g in made.workload.groups]
    )
    predicted = np.concatenate([made.variances(i) for i in groups])
    errors = []
    for _ in range(REHEARSALS):
        drawn = measure(made, tables, rehearsal=True)
        errors.append(np.concatenate([drawn.values(i) for i in groups]) - truth)
    assert np.abs(np.mean(errors, axis=0) / np.sqrt(predicted / REHEARSALS)).max() <= 5.5
    spread = np.mean(np.square(errors), axis=0)
    assert spread.sum() / predicted.sum() == pytest.approx(1.0, abs=0.2)
    kurtosis = 2.0 if law == "gaussian" else 5.0
    assert np.abs(spread / predicted - 1.0).max() <= 7.0 * math.sqrt(kurtosis / REHEARSALS)
    assert (spread / predicted).min() >= 0.2


@pytest.mark.parametrize("mechanism", EXPLICIT)
def test_releases_are_stored_and_free_queries_agree_with_their_groups(mechanism: str, tmp_path) -> None:
    ledger = Ledger.create(tmp_path / "office.ledger")
    ledger.add_dataset("survey", total=Budget(pcost=1.0))
    made = planned(mechanism, budget_for(mechanism, 0.5))
    first = measure(made, synthetic(SCHEMA, 500, seed=3), dataset="survey", ledger=ledger)
    assert ledger.status("survey").spent == pytest.approx(made.pcost)
    again = load_measurement(ledger, first.key)
    for i, group in enumerate(made.workload.groups):
        np.testing.assert_array_equal(again.values(i), first.values(i))
        table = first.marginal(group.attributes)
        if not made.full_tables or made.component_of_table(group.attributes) == made.answered_by[i]:
            np.testing.assert_allclose(apply_group(group, table, 0, group.count), first.values(i), atol=1e-7)
    query = np.zeros((5, 6))
    query[1:3, 2:] = 1.0
    asked_once = first.answer(("hours", "age"), query)
    assert asked_once.std == pytest.approx(math.sqrt(made.variance_of(("hours", "age"), query)))
    turned = first.answer(("age", "hours"), query.T)
    assert turned.answer == pytest.approx(asked_once.answer)


def test_a_budget_of_one_kind_is_refused_by_mechanisms_of_the_other() -> None:
    for name in ("querysmasher", "residualplanner", "wff", "gaussian"):
        with pytest.raises(NotApplicable, match="pure epsilon"):
            plan(asked(), Budget.pure(1.0), name)
    with pytest.raises(NotApplicable, match=r"Budget\.pure"):
        plan(asked(), Budget(pcost=1.0), "laplace")


def test_pure_budgets_survive_files_and_are_never_other_budgets() -> None:
    budget = Budget.pure(0.1)
    assert Budget.from_dict(budget.to_dict()) == budget
    assert budget != Budget(pcost=budget.pcost)
    made = plan(asked(), budget, "identity")
    assert load_plan(made.to_json()).budget == budget
    assert made.hash != plan(asked(), Budget(pcost=budget.pcost), "identity").hash
    assert budget.epsilon(1e-9) <= 0.1
    assert budget.epsilon_zcdp(1e-9) <= 0.1
    assert budget.delta(0.1) == 0.0
    for wrong in (0, -1, math.inf, math.nan, "1", 1e200):
        with pytest.raises(BudgetError):
            Budget.pure(wrong)
    with pytest.raises(BudgetError):
        Budget(pcost=1.0, pure_epsilon=2.0)


@pytest.mark.parametrize("epsilon", [0.01, 0.5, 1.0, 3.0, 30.0])
def test_mu_of_a_pure_budget_is_what_randomised_response_needs(epsilon: float) -> None:
    # epsilon-DP with delta 0 and mu-GDP have equal trade-off curves at both errors
    # 1 / (1 + e^epsilon)
    from scipy.special import ndtr

    mu = Budget.pure(epsilon).mu
    assert ndtr(-mu / 2) <= 1 / (1 + math.exp(epsilon))
    assert ndtr(-mu / 2) == pytest.approx(1 / (1 + math.exp(epsilon)), rel=1e-9)
    for alpha in np.linspace(1e-6, 1 - 1e-6, 200):
        from scipy.special import ndtri

        gaussian = ndtr(-ndtri(alpha) - mu)
        assert gaussian <= max(1 - math.exp(epsilon) * alpha, math.exp(-epsilon) * (1 - alpha)) + 1e-12


def test_a_domain_that_no_release_can_hold_is_refused_before_anything_is_spent(tmp_path) -> None:
    schema = Schema([Attribute.of_size(f"a{i}", 100) for i in range(6)])
    made = plan(Workload.all_ways(schema, ways=(1, 2)), Budget(pcost=1.0), "identity")
    assert math.isfinite(made.rmse)
    ledger = Ledger.create(tmp_path / "office.ledger")
    ledger.add_dataset("survey", total=Budget(pcost=1.0))
    with pytest.raises(LimitExceeded, match=r"1\.00e\+12 cells"):
        measure(made, synthetic(schema, 10, seed=1), dataset="survey", ledger=ledger)
    assert ledger.status("survey").spent == 0.0


def test_intervals_of_laplace_noise_cover() -> None:
    # a single Laplace answer: P(|noise| > b log(1 / (1 - confidence))) is 1 - confidence
    for confidence in (0.9, 0.95, 0.99):
        reach = quantile(confidence, "laplace") * math.sqrt(2)
        assert math.exp(-reach) <= 1 - confidence + 1e-12
        assert quantile(confidence, "laplace") >= quantile(confidence, "gaussian")


SMALL = [s for s in SHAPES if s != "wide"]


@pytest.mark.parametrize("shape", [*SMALL[::2], *(pytest.param(s, marks=pytest.mark.full) for s in SMALL[1::2])])
def test_the_bound_is_below_the_optimum_of_all_mechanisms(shape: str) -> None:
    workload = SHAPES[shape]()
    low, high = oracles.optimum(oracles.weighted_gram(workload), 1e-4)
    bound = global_bound(workload)
    assert 0.0 < bound <= high * (1 + 1e-9)
    assert low * (1 - 1e-3) <= exact_bound(workload) <= high * (1 + 1e-9)
    assert global_bound(workload, "laplace") == pytest.approx(2 * bound)


def test_the_bound_is_tight_where_the_optimum_is_known_and_useful_elsewhere() -> None:
    schema = Schema([Attribute.of_size(c, 6) for c in "abcd"])
    for family in ("marginal", "circular"):
        workload = Workload.all_ways(schema, ways=(1, 2), family=family)
        made = plan(workload, Budget(pcost=1.0))
        assert global_bound(workload) == pytest.approx(made.bound, rel=1e-6)
    prefixes = Workload.all_ways(schema, ways=(1, 2), family="prefix")
    made = plan(prefixes, Budget(pcost=1.0), centers="tuned")
    assert 0.8 * made.bound < global_bound(prefixes) <= made.weighted_rmse**2 * prefixes.queries


def test_small_domains_have_no_query_left_out_of_the_gram() -> None:
    for shape in itertools.islice(SHAPES, 12):
        workload = SHAPES[shape]()
        found = global_bound(workload)
        singular = oracles.svd_bound(workload, 1.0) ** 2 * workload.queries
        assert exact_bound(workload) >= singular * (1 - 1e-3)
        assert found > 0


def test_a_matrix_that_divide_and_conquer_gives_up_on_is_taken_apart(monkeypatch):
    def given_up(*arguments, **options):
        raise np.linalg.LinAlgError("SVD did not converge")

    matrix = np.random.default_rng(1).normal(size=(7, 4))
    expected = thin_svd(matrix)[1]
    monkeypatch.setattr(np.linalg, "svd", given_up)
    U, sizes, Vt = thin_svd(matrix)
    np.testing.assert_allclose(sizes, expected, rtol=1e-12)
    np.testing.assert_allclose((U * sizes) @ Vt, matrix, atol=1e-12)
    assert (U.shape, Vt.shape) == ((7, 4), (4, 4))
