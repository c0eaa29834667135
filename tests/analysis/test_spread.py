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
from engine.plans.variance import footprint
from engine.workload import Custom, Workload
from tests import shapes
from tests.analysis.given import ONE, check_counts, stds

SHAPES = ("nested", "mixed_three", "query_weighted", "zero_weight_covered", "zero_weight_uncovered", "duplicate_groups")


@pytest.mark.parametrize("shape", [*SHAPES, "total_only"])
def test_shares_and_tolerances_of_many_shapes(shape: str) -> None:
    made = plan(shapes.SHAPES[shape](), ONE)
    check_counts(made)
    assert tolerance_for(made) == pytest.approx(math.sqrt(made.max_variance), rel=1e-12)


@pytest.mark.parametrize("family", ["marginal", "prefix", "range", "total"])
def test_groups_that_nothing_measures_are_told_apart(family: str) -> None:
    """The variances are new objects at every call, so a cache by identity would be wrong."""
    asked = Workload(shapes.numeric(3, 4, 5, 6, 2)).add("a", "marginal")
    for name in "bcde":
        asked = asked.add(name, family, weight=0.0)
    made = plan(asked, ONE, "hdmm")
    check_counts(made)
    assert share_within(made, 2.0) == 3 / asked.queries
    assert share_within(made, [2.0, 1e9, 1e9, 1e9, 1e9]) == 3 / asked.queries
    assert made.by_group()["max_std"].tolist()[1:] == [math.inf] * 4
    lost = analysis.losses(made, plan(asked, ONE, "gaussian"))
    assert lost.worse == pytest.approx(1 - 3 / asked.queries)
    assert lost.groups.set_index("group")["queries"].to_dict() == {i: g.count for i, g in enumerate(asked.groups)}


def test_queries_without_noise_are_within_every_tolerance() -> None:
    asked = Workload(shapes.numeric(3, 2)).add("a", Custom([[1, -1, 0], [0, 1, -1]]))
    made = plan(asked.add("b", Custom([[0.0, 0.0]]), weight=0.0), ONE)
    assert share_within(made, 1e-6) == 1 / 3
    assert tolerance_for(made, 0.3) == 0.0
    with pytest.raises(PlanError, match="no noise"):
        budget_for_error(made, 1.0, 0.3)
    assert budget_for_error(made, 1.0, 0.4).pcost > 0


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Distinct variances are counted without enumeration, up to 500."""
    module = importlib.import_module("engine.analysis.error_distribution")
    monkeypatch.setattr(module, "EXACT_QUERIES", 500)
    monkeypatch.setattr(module, "SAMPLE", 3000)
    error_distribution.cache_clear()
    yield
    error_distribution.cache_clear()


@pytest.mark.usefixtures("small")
def test_more_queries_than_can_be_listed_are_counted() -> None:
    for family, schema in (("marginal", shapes.numeric(9, 8, 7)), ("range", shapes.numeric(9, 5))):
        made = plan(Workload.all_ways(schema, (1, 2, 3)[: len(schema.names)], family), ONE)
        assert error_distribution(made).exact
        assert len(error_distribution(made).errors) <= 500 < made.workload.queries
        check_counts(made)
    asked = Workload(shapes.numeric(30, 20)).add("a", "prefix").add(("a", "b"), "marginal", weight=0.0)
    lost = plan(asked, ONE, "hdmm")
    assert error_distribution(lost).exact
    assert len(error_distribution(lost).errors) < lost.workload.queries
    check_counts(lost)


def test_millions_of_queries_are_counted_exactly() -> None:
    asked = Workload(shapes.numeric(40, 40, 17)).add(("a", "b", "c"), {"a": "range", "b": "marginal", "c": "range"})
    made = plan(asked, ONE)
    assert len(error_distribution(made).errors) < 300_000 < 5_000_000 < asked.queries
    tolerance = tolerance_for(made, 0.95)
    within = int(np.sum(made.variances(0) <= tolerance**2 * (1 + 1e-11)))
    assert within / asked.queries == pytest.approx(0.95, abs=1e-4)  # there are ties
    assert share_within(made, tolerance * (1 + 1e-11)) == within / asked.queries


def test_variances_that_differ_by_rounding_are_counted_once() -> None:
    made = plan(Workload(shapes.numeric(40, 6)).add(("a", "b"), {"a": "marginal", "b": "range"}), ONE)
    found, rng = made.group_variance(0), np.random.default_rng(1)
    noisy = replace(
        found,
        summands=tuple(
            replace(s, arrays=tuple((axes, v * (1.0 + 1e-13 * rng.uniform(-1, 1, v.shape))) for axes, v in s.arrays))
            for s in found.summands
        ),
    )
    assert [len(n) for _, n in footprint(noisy).distinct] == [len(n) for _, n in footprint(found).distinct]


@pytest.mark.usefixtures("small")
def test_a_sample_says_so_and_keeps_a_margin() -> None:
    made = plan(Workload.all_ways(shapes.numeric(12, 10, 8), (1, 2, 3), "range"), ONE)
    found, errors = error_distribution(made), stds(made)
    assert not found.exact
    assert "sample" in found.how
    assert tolerance_for(made) == pytest.approx(errors[-1], rel=1e-12)
    for share in (0.5, 0.95):
        assert found.quantile(share) == pytest.approx(np.quantile(errors, share), rel=0.03)
        assert (errors <= tolerance_for(made, share)).mean() >= share
        assert share_within(made, tolerance_for(made, share)) == pytest.approx(share, abs=0.05)
    budget = budget_for_error(made, 4.0, 0.5)
    assert 0.5 <= (stds(plan(made.workload, budget)) <= 4.0).mean() < 0.55


@pytest.mark.usefixtures("small")
def test_a_thinned_distribution_keeps_its_percents_and_its_words() -> None:
    made = plan(Workload.all_ways(shapes.numeric(12, 10, 8), (1, 2, 3), "range"), ONE)
    found = error_distribution(made)
    drawn = found.thinned()
    assert len(drawn.errors) < 1000 < len(found.errors)
    assert drawn.how == found.how
    assert drawn.thinned() is drawn
    for percent in range(1, 101):
        assert drawn.quantile(percent / 100) == found.quantile(percent / 100)
    for tolerance in found.errors[::97]:
        assert found.within(tolerance) - 0.002 <= drawn.within(tolerance) <= found.within(tolerance)
