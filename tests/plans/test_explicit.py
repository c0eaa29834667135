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
from scipy.special import ndtr, ndtri

from demo_data.make_synthetic import synthetic
from engine._arrays import thin_svd
from engine.bounds.lower_bounds import exact_bound, global_bound
from engine.errors import BudgetError, LimitExceeded, NotApplicable, PlanError
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
from tests.mechanisms.checks import (
    check_certificate,
    check_privacy,
    check_round_trip,
    check_summary,
    check_variances,
)
from tests.shapes import SHAPES

measure = sys.modules["engine.release.measure"].measure
SCHEMA = Schema(
    [
        Attribute.categorical("sex", ["F", "M"]),
        Attribute.of_size("age", 6),
        Attribute.of_size("hours", 5),
    ]
)
LAPLACE = [m.name for m in MECHANISMS if "laplace" in m.laws]
EXPLICIT = [m.name for m in MECHANISMS if hasattr(m, "design")]
# This number of rehearsals detects a bias of half a standard error per query and a change of the
# total variance by a fifth.
REHEARSALS = 300


def mixed_workload(mechanism: str = "") -> Workload:
    if mechanism == "datacube":
        return Workload.all_ways(SCHEMA, ways=(0, 1, 2), family="marginal")
    workload = Workload.all_ways(SCHEMA, ways=(1, 2))
    return workload.add(("hours", "age"), "affine").add("age", "range", weight=2.0)


def budget_for(name: str, pcost: float) -> Budget:
    gaussian = "gaussian" in {m.name: m.laws for m in MECHANISMS}[name]
    return Budget(pcost=pcost) if gaussian else Budget.pure(math.sqrt(pcost))


@functools.cache
def planned(mechanism: str, budget: Budget) -> Plan:
    return plan(mixed_workload(mechanism), budget, mechanism)


@pytest.mark.parametrize(
    "shape", ["nested", "mixed_three", "query_weighted", "coupled", "zero_weight_uncovered"]
)
@pytest.mark.parametrize("mechanism", LAPLACE)
def test_laplace_plan_matches_explicit_matrices(mechanism: str, shape: str) -> None:
    workload = SHAPES[shape]()
    try:
        result = plan(workload, Budget.pure(0.7), mechanism)
    except NotApplicable as error:
        # the data cube algorithm needs marginals, and none of these workloads has only marginals
        assert mechanism == "datacube", error  # noqa: PT017
        return
    explicit, rows = oracles.explicit(result), oracles.workload_rows(workload)
    assert result.budget.law == "laplace"
    assert {b.law for b in result.blocks.values()} == {"laplace"}
    check_privacy(result, explicit)
    check_summary(result, check_variances(result, explicit, rows))
    check_certificate(result)
    check_round_trip(result)


def every_law() -> Iterator[Any]:
    """Yield the cases (mechanism, noise law).

    Ordinary runs test each mechanism with one of the two laws in turn, full runs with both.
    """
    for k, m in enumerate(m for m in MECHANISMS if m.name in EXPLICIT):
        for i, law in enumerate(m.laws):
            yield pytest.param(m.name, law, marks=[pytest.mark.full] * ((k + i) % len(m.laws)))


@pytest.mark.parametrize(("mechanism", "law"), list(every_law()))
def test_rehearsals_are_unbiased_with_predicted_variances(mechanism: str, law: str) -> None:
    budget = Budget(pcost=0.5) if law == "gaussian" else Budget.pure(math.sqrt(0.5))
    result = planned(mechanism, budget)
    groups = result.workload.groups
    sets = {part.attributes for part in (*result.blocks.values(), *groups)}
    tables = count_marginals(synthetic(SCHEMA, 500, seed=3), SCHEMA, sorted(sets))
    truth = np.concatenate(
        [apply_group(g, tables[g.attributes].astype(float), 0, g.count) for g in groups]
    )
    predicted = np.concatenate([result.variances(i) for i in range(len(groups))])
    errors = []
    for _ in range(REHEARSALS):
        release = measure(result, tables, rehearsal=True)
        answers = np.concatenate([release.values(i) for i in range(len(groups))])
        errors.append(answers - truth)
    # every mean error differs from 0 by at most 5.5 standard errors
    assert np.abs(np.mean(errors, axis=0) / np.sqrt(predicted / REHEARSALS)).max() <= 5.5
    variances = np.mean(np.square(errors), axis=0)
    assert variances.sum() / predicted.sum() == pytest.approx(1.0, abs=0.2)
    # variance of the square of noise with variance 1
    square_variance = 2.0 if law == "gaussian" else 5.0
    ratios = variances / predicted
    assert np.abs(ratios - 1.0).max() <= 7.0 * math.sqrt(square_variance / REHEARSALS)
    assert ratios.min() >= 0.2


@pytest.mark.parametrize("mechanism", EXPLICIT)
def test_release_loaded_answers_and_marginals_match_groups(mechanism: str, tmp_path) -> None:
    ledger = Ledger.create(tmp_path / "office.ledger")
    ledger.add_dataset("survey", total=Budget(pcost=1.0))
    result = planned(mechanism, budget_for(mechanism, 0.5))
    release = measure(result, synthetic(SCHEMA, 500, seed=3), dataset="survey", ledger=ledger)
    assert ledger.status("survey").spent == pytest.approx(result.pcost)
    loaded = load_measurement(ledger, release.key)
    for i, group in enumerate(result.workload.groups):
        np.testing.assert_array_equal(loaded.values(i), release.values(i))
        # the answers equal those from the marginal only if the same blocks measure both
        component = result.component_of_table(group.attributes) if result.full_tables else None
        if component is None or component == result.answered_by[i]:
            answers = apply_group(group, release.marginal(group.attributes), 0, group.count)
            np.testing.assert_allclose(answers, release.values(i), atol=1e-7)
    query = np.zeros((5, 6))
    query[1:3, 2:] = 1.0
    answer = release.answer(("hours", "age"), query)
    assert answer.std == pytest.approx(math.sqrt(result.variance_of(("hours", "age"), query)))
    transposed = release.answer(("age", "hours"), query.T)
    assert transposed.answer == pytest.approx(answer.answer)


@pytest.mark.parametrize(
    "query",
    [(("age", "age"), np.ones((3, 3))), (3, [1.0]), 5],
    ids=["repeated attribute", "attribute is a number", "query is a number"],
)
@pytest.mark.parametrize("mechanism", ["querysmasher", "identity"])
def test_covariance_invalid_query_is_refused(mechanism: str, query: Any) -> None:
    workload = Workload(Schema([Attribute.of_size("age", 3)])).add("age")
    with pytest.raises(PlanError):
        plan(workload, Budget(pcost=1.0), mechanism).covariance([query])


@pytest.mark.parametrize("mechanism", ["querysmasher", "gaussian", "hdmm"])
def test_sources_match_terms_of_group(mechanism: str) -> None:
    schema = Schema([Attribute.of_size("a", 600), Attribute.of_size("b", 2)])
    workload = Workload(schema).add("a", "prefix").add("b", weight=0.0)
    result = plan(workload, Budget(pcost=1.0), mechanism)
    for group in (0, 1):
        assert len(result.sources(group)) == len(result.group_variance(group).terms)
    for no_group in (-1, 2):
        with pytest.raises(PlanError):
            result.sources(no_group)


def test_plan_other_noise_law_is_refused() -> None:
    for name in ("querysmasher", "residualplanner", "wff", "gaussian"):
        with pytest.raises(NotApplicable, match="pure epsilon"):
            plan(mixed_workload(), Budget.pure(1.0), name)
    with pytest.raises(NotApplicable, match=r"Budget\.pure"):
        plan(mixed_workload(), Budget(pcost=1.0), "laplace")


def test_pure_budget_round_trips_and_differs_from_pcost() -> None:
    budget = Budget.pure(0.1)
    assert Budget.from_dict(budget.to_dict()) == budget
    assert budget != Budget(pcost=budget.pcost)
    result = plan(mixed_workload(), budget, "identity")
    assert load_plan(result.to_json()).budget == budget
    assert result.hash != plan(mixed_workload(), Budget(pcost=budget.pcost), "identity").hash
    assert budget.epsilon(1e-9) <= 0.1
    assert budget.epsilon_zcdp(1e-9) <= 0.1
    assert budget.delta(0.1) == 0.0


def test_pure_budget_with_invalid_epsilon_is_refused() -> None:
    for wrong in (0, -1, math.inf, math.nan, "1", 1e200):
        with pytest.raises(BudgetError):
            Budget.pure(wrong)
    with pytest.raises(BudgetError):
        Budget(pcost=1.0, pure_epsilon=2.0)


@pytest.mark.parametrize("epsilon", [0.01, 0.5, 1.0, 3.0, 30.0])
def test_pure_budget_mu_matches_randomised_response(epsilon: float) -> None:
    # epsilon-DP with delta 0 and mu-GDP have equal trade-off curves at both errors
    # 1 / (1 + e^epsilon)
    mu = Budget.pure(epsilon).mu
    assert ndtr(-mu / 2) <= 1 / (1 + math.exp(epsilon))
    assert ndtr(-mu / 2) == pytest.approx(1 / (1 + math.exp(epsilon)), rel=1e-9)
    for alpha in np.linspace(1e-6, 1 - 1e-6, 200):
        gaussian = ndtr(-ndtri(alpha) - mu)
        assert (
            gaussian <= max(1 - math.exp(epsilon) * alpha, math.exp(-epsilon) * (1 - alpha)) + 1e-12
        )


def test_measure_huge_domain_is_refused_before_spending(tmp_path) -> None:
    schema = Schema([Attribute.of_size(f"a{i}", 100) for i in range(6)])
    result = plan(Workload.all_ways(schema, ways=(1, 2)), Budget(pcost=1.0), "identity")
    assert math.isfinite(result.rmse)
    ledger = Ledger.create(tmp_path / "office.ledger")
    ledger.add_dataset("survey", total=Budget(pcost=1.0))
    with pytest.raises(LimitExceeded, match=r"1\.00e\+12 cells"):
        measure(result, synthetic(schema, 10, seed=1), dataset="survey", ledger=ledger)
    assert ledger.status("survey").spent == 0.0


def test_quantile_laplace_covers_single_answer() -> None:
    # a single Laplace answer: P(|noise| > b log(1 / (1 - confidence))) is 1 - confidence
    for confidence in (0.9, 0.95, 0.99):
        reach = quantile(confidence, "laplace") * math.sqrt(2)
        assert math.exp(-reach) <= 1 - confidence + 1e-12
        assert quantile(confidence, "laplace") >= quantile(confidence, "gaussian")


SMALL = [s for s in SHAPES if s != "wide"]


@pytest.mark.parametrize(
    "shape", [*SMALL[::2], *(pytest.param(s, marks=pytest.mark.full) for s in SMALL[1::2])]
)
def test_global_bound_is_below_optimum(shape: str) -> None:
    workload = SHAPES[shape]()
    low, high = oracles.optimum(oracles.weighted_gram(workload), 1e-4)
    bound = global_bound(workload)
    assert 0.0 < bound <= high * (1 + 1e-9)
    assert low * (1 - 1e-3) <= exact_bound(workload) <= high * (1 + 1e-9)
    assert global_bound(workload, "laplace") == pytest.approx(2 * bound)


def test_global_bound_is_tight_for_symmetric_workloads() -> None:
    schema = Schema([Attribute.of_size(c, 6) for c in "abcd"])
    for family in ("marginal", "circular"):
        workload = Workload.all_ways(schema, ways=(1, 2), family=family)
        result = plan(workload, Budget(pcost=1.0))
        assert global_bound(workload) == pytest.approx(result.bound, rel=1e-6)
    prefixes = Workload.all_ways(schema, ways=(1, 2), family="prefix")
    result = plan(prefixes, Budget(pcost=1.0), centers="tuned")
    assert 0.8 * result.bound < global_bound(prefixes) <= result.weighted_rmse**2 * prefixes.queries


def test_exact_bound_small_domain_is_above_svd_bound() -> None:
    for shape in itertools.islice(SHAPES, 12):
        workload = SHAPES[shape]()
        svd_bound = oracles.svd_bound(workload, 1.0) ** 2 * workload.queries
        assert exact_bound(workload) >= svd_bound * (1 - 1e-3) > 0.0
        assert global_bound(workload) > 0.0


def test_thin_svd_without_convergence_uses_other_method(monkeypatch):
    def raise_not_converged(*arguments, **options):
        raise np.linalg.LinAlgError("SVD did not converge")

    matrix = np.random.default_rng(1).normal(size=(7, 4))
    expected = thin_svd(matrix)[1]
    monkeypatch.setattr(np.linalg, "svd", raise_not_converged)
    U, sizes, Vt = thin_svd(matrix)
    np.testing.assert_allclose(sizes, expected, rtol=1e-12)
    np.testing.assert_allclose((U * sizes) @ Vt, matrix, atol=1e-12)
    assert (U.shape, Vt.shape) == ((7, 4), (4, 4))
