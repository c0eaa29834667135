"""Distributions of standard errors: exact for millions of queries, or sampled."""

from __future__ import annotations

import importlib
import math
from dataclasses import replace

import numpy as np
import pytest

from engine import analysis
from engine.analysis import budget_for_error, tolerance_for
from engine.analysis.error_distribution import error_distribution
from engine.analysis.error_targets import share_within
from engine.errors import PlanError
from engine.mechanisms import plan
from engine.plans.group_variance import linear_variances
from engine.workload import Custom, Workload
from tests import shapes
from tests.analysis.brute_force import ONE, check_shares_and_tolerances, sorted_errors

SHAPES = (
    "nested",
    "mixed_three",
    "query_weighted",
    "zero_weight_covered",
    "zero_weight_uncovered",
    "duplicate_groups",
)


@pytest.mark.parametrize("shape", [*SHAPES, "total_only"])
def test_shares_and_tolerances_match_enumeration(shape: str) -> None:
    result = plan(shapes.SHAPES[shape](), ONE)
    check_shares_and_tolerances(result)
    assert tolerance_for(result) == pytest.approx(math.sqrt(result.max_variance), rel=1e-12)


@pytest.mark.parametrize("family", ["marginal", "prefix", "range", "total"])
def test_unmeasured_groups_are_counted_separately(family: str) -> None:
    """Each call returns new variance objects, so a cache by identity would be wrong."""
    workload = Workload(shapes.numeric(3, 4, 5, 6, 2)).add("a", "marginal")
    for name in "bcde":
        workload = workload.add(name, family, weight=0.0)
    result = plan(workload, ONE, "hdmm")
    check_shares_and_tolerances(result)
    # only the marginal of a, which has 3 queries, is measured
    measured_share = 3 / workload.queries
    assert share_within(result, 2.0) == measured_share
    assert share_within(result, [2.0, 1e9, 1e9, 1e9, 1e9]) == measured_share
    assert result.by_group()["max_std"].tolist()[1:] == [math.inf] * 4
    losses = analysis.losses(result, plan(workload, ONE, "gaussian"))
    assert losses.worse == pytest.approx(1 - measured_share)
    queries_by_group = losses.groups.set_index("group")["queries"].to_dict()
    assert queries_by_group == {i: group.count for i, group in enumerate(workload.groups)}


def test_queries_without_noise_are_within_every_tolerance() -> None:
    workload = Workload(shapes.numeric(3, 2)).add("a", Custom([[1, -1, 0], [0, 1, -1]]))
    result = plan(workload.add("b", Custom([[0.0, 0.0]]), weight=0.0), ONE)
    # one of the three queries, the empty one, has no noise
    assert share_within(result, 1e-6) == 1 / 3
    assert tolerance_for(result, 0.3) == 0.0
    with pytest.raises(PlanError, match="no noise"):
        budget_for_error(result, 1.0, 0.3)
    assert budget_for_error(result, 1.0, 0.4).pcost > 0


@pytest.fixture
def low_sampling_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sample distributions that can have more than 500 distinct variances."""
    module = importlib.import_module("engine.analysis.error_distribution")
    monkeypatch.setattr(module, "MAX_UNSAMPLED_QUERIES", 500)
    monkeypatch.setattr(module, "SAMPLED_QUERIES", 3000)
    error_distribution.cache_clear()
    yield
    error_distribution.cache_clear()


@pytest.mark.usefixtures("low_sampling_limit")
def test_error_distribution_above_limit_is_exact() -> None:
    for family, schema in (("marginal", shapes.numeric(9, 8, 7)), ("range", shapes.numeric(9, 5))):
        result = plan(Workload.all_ways(schema, (1, 2, 3)[: len(schema.names)], family), ONE)
        assert error_distribution(result).exact
        assert len(error_distribution(result).errors) <= 500 < result.workload.queries
        check_shares_and_tolerances(result)
    workload = (
        Workload(shapes.numeric(30, 20)).add("a", "prefix").add(("a", "b"), "marginal", weight=0.0)
    )
    partly_measured = plan(workload, ONE, "hdmm")
    assert error_distribution(partly_measured).exact
    assert len(error_distribution(partly_measured).errors) < workload.queries
    check_shares_and_tolerances(partly_measured)


def test_error_distribution_of_millions_is_exact() -> None:
    workload = Workload(shapes.numeric(40, 40, 17)).add(
        ("a", "b", "c"), {"a": "range", "b": "marginal", "c": "range"}
    )
    result = plan(workload, ONE)
    assert len(error_distribution(result).errors) < 300_000 < 5_000_000 < workload.queries
    tolerance = tolerance_for(result, 0.95)
    within = int(np.sum(result.variances(0) <= tolerance**2 * (1 + 1e-11)))
    # Some queries have equal standard errors, so the share can exceed 0.95 slightly.
    assert within / workload.queries == pytest.approx(0.95, abs=1e-4)
    assert share_within(result, tolerance * (1 + 1e-11)) == within / workload.queries


def test_variances_equal_up_to_rounding_are_merged() -> None:
    result = plan(
        Workload(shapes.numeric(40, 6)).add(("a", "b"), {"a": "marginal", "b": "range"}), ONE
    )
    variance = result.group_variance(0)
    rng = np.random.default_rng(1)

    def with_rounding_errors(values: np.ndarray) -> np.ndarray:
        return values * (1.0 + 1e-13 * rng.uniform(-1, 1, values.shape))

    rounded_terms = [
        replace(
            term,
            arrays=tuple((axes, with_rounding_errors(values)) for axes, values in term.arrays),
        )
        for term in variance.terms
    ]
    rounded = replace(variance, terms=tuple(rounded_terms))

    def distinct_counts(group_variance: object) -> list[int]:
        columns = linear_variances(group_variance).distinct_columns
        return [len(counts) for _, counts in columns]

    assert distinct_counts(rounded) == distinct_counts(variance)


@pytest.mark.usefixtures("low_sampling_limit")
def test_sampled_distribution_is_labelled_and_conservative() -> None:
    result = plan(Workload.all_ways(shapes.numeric(12, 10, 8), (1, 2, 3), "range"), ONE)
    distribution = error_distribution(result)
    errors = sorted_errors(result)
    assert not distribution.exact
    assert "sample" in distribution.how
    assert tolerance_for(result) == pytest.approx(errors[-1], rel=1e-12)
    for share in (0.5, 0.95):
        assert distribution.quantile(share) == pytest.approx(np.quantile(errors, share), rel=0.03)
        assert (errors <= tolerance_for(result, share)).mean() >= share
        assert share_within(result, tolerance_for(result, share)) == pytest.approx(share, abs=0.05)
    budget = budget_for_error(result, 4.0, 0.5)
    assert 0.5 <= (sorted_errors(plan(result.workload, budget)) <= 4.0).mean() < 0.55


@pytest.mark.usefixtures("low_sampling_limit")
def test_thinned_distribution_keeps_percentiles() -> None:
    result = plan(Workload.all_ways(shapes.numeric(12, 10, 8), (1, 2, 3), "range"), ONE)
    distribution = error_distribution(result)
    thinned = distribution.thin()
    assert len(thinned.errors) < 1000 < len(distribution.errors)
    assert thinned.how == distribution.how
    assert thinned.thin() is thinned
    for percent in range(1, 101):
        assert thinned.quantile(percent / 100) == distribution.quantile(percent / 100)
    for tolerance in distribution.errors[::97]:
        assert (
            distribution.within(tolerance) - 0.002
            <= thinned.within(tolerance)
            <= distribution.within(tolerance)
        )
