"""Minimax plans of product queries: optimality, lower bound, plan files."""

from __future__ import annotations

import functools
import json
import math

import numpy as np
import pytest

from engine.errors import PlanError
from engine.mechanisms import forecast, load_plan, plan
from engine.mechanisms import residual_base as residual
from engine.mechanisms.minimax import (
    AdaptedStrategy,
    SortedWorkload,
    count_weighted_queries,
    forecast_minimax,
    is_applicable,
    is_symmetric_part,
)
from engine.plans.objectives import objective
from engine.privacy import Budget
from engine.residuals import Split, basis
from engine.residuals.basis import UNIFORM
from engine.residuals.decomposition import decompose
from engine.workload import Attribute, Group, Schema, Workload
from tests import oracles, shapes
from tests.plans.goals import packed, value_of

ONE = Budget(pcost=1.0)
SLACK = 1e-6


def mixed(*numeric, ways=(1, 2, 3), cells=(3,)):
    """Return product queries on each set of attributes whose size is in ``ways``.

    ``numeric`` and ``cells`` are the sizes of the numeric and of the categorical attributes.
    """
    return Workload.all_ways(
        Schema(
            [Attribute.of_size(f"n{i}", n) for i, n in enumerate(numeric)]
            + [Attribute.of_size(f"c{i}", n, "categorical") for i, n in enumerate(cells)]
        ),
        ways,
    )


def largest_error(result):
    return math.sqrt(max(result.variances(i).max() for i in range(len(result.workload.groups))))


@functools.cache
def three_attribute_plan():
    return plan(mixed(12, 12, 15, cells=(3, 5)), ONE, objective="max")


def test_max_objective_gap_is_small():
    """Weights shared by all groups would leave a gap of 5.7e-3."""
    result = three_attribute_plan()
    assert result.tradeoff.lines is not None
    assert result.achieved == pytest.approx(largest_error(result), rel=1e-8)
    assert 0.0 <= result.certificate.gap <= 1.5e-4


def test_max_objective_equals_explicit_maximum():
    result = plan(mixed(5, 4, cells=(2,)), ONE, objective="max")
    assert result.tradeoff.lines is not None
    assert result.achieved == pytest.approx(value_of(result, "max"), rel=1e-8)


@pytest.mark.parametrize(
    ("sizes", "gap"),
    [((6, 4, 3), 2e-3), pytest.param((9, 8, 7), 6e-3, marks=pytest.mark.full)],
    ids=str,
)
def test_max_objective_with_targets_has_small_gap(sizes, gap):
    workload = mixed(*sizes)
    targets = [1.0 + 0.5 * len(g.attributes) + 0.1 * i for i, g in enumerate(workload.groups)]
    result = plan(workload, ONE, objective="max", targets=targets)
    shares = [math.sqrt(result.variances(i).max()) / t for i, t in enumerate(targets)]
    assert result.achieved == pytest.approx(max(shares), rel=1e-8)
    assert 0.0 <= result.certificate.gap <= gap


@pytest.mark.parametrize(
    "sizes", [(3, 3, 2), *(pytest.param(s, marks=pytest.mark.full) for s in ((4, 3, 3), (5, 4, 3)))]
)
@pytest.mark.parametrize("family", ["prefix", "range", "circular"])
def test_minimax_bound_holds_for_dense_search(family, sizes, monkeypatch):
    """Dense searches with a weight for every query reach and bound the same optimum."""
    workload = Workload.all_ways(shapes.numeric(*sizes), (1, 2, 3), family)
    result = plan(workload, ONE, objective="max")
    monkeypatch.setattr(residual, "is_applicable", lambda *_: False)
    dense = plan(workload, ONE, objective="max", cache=False)
    assert dense.tradeoff.lines is None
    assert result.certificate.lower_bound <= dense.achieved * (1 + SLACK)
    assert dense.certificate.lower_bound <= result.achieved * (1 + SLACK)
    assert result.certificate.gap <= 2e-3


def test_small_workload_uses_query_weights_if_better(monkeypatch):
    """With many families per attribute, products of weights give a worse plan."""
    workload = Workload(shapes.numeric(6, 2, 2, 6)).add((), "total")
    for families in (
        {"a": "prefix", "c": "range"},
        {"a": "suffix", "d": "range"},
        {"c": "range", "d": "prefix"},
        {"a": "marginal", "b": "prefix", "c": "prefix"},
        {"a": "prefix", "b": "prefix", "d": "prefix"},
        {"a": "range", "c": "total", "d": "prefix"},
        {"b": "prefix", "c": "marginal", "d": "range"},
    ):
        workload = workload.add(tuple(families), families)
    by_query = plan(workload, ONE, objective="max", cache=False)
    monkeypatch.setattr(residual, "MAX_FULL_DOMAIN_QUERIES", 0)
    by_products = plan(workload, ONE, objective="max", cache=False)
    assert by_query.tradeoff.lines is None
    assert by_query.achieved == pytest.approx(value_of(by_query, "max"), rel=1e-8)
    assert by_query.achieved < by_products.achieved
    assert by_query.certificate.gap <= 3e-3 < by_products.certificate.gap


def test_minimax_bound_matches_weighted_optimum():
    """The bound is the optimum of the weighted sum divided by the sum of the weights."""
    result = plan(mixed(3, 4, cells=(2,)), ONE, objective="max")
    workload, emphasis = result.workload, result.tradeoff.emphasis
    weighted, weight_sum = Workload(workload.schema), 0.0
    for group, k in zip(workload.groups, emphasis.class_of_group, strict=True):
        query_weights = np.array([emphasis.weights[k]])
        for i in emphasis.vector_indices[k]:
            query_weights = np.multiply.outer(query_weights, emphasis.vectors[i]).ravel()
        weighted = weighted.add(group.attributes, group.family, query_weights=query_weights)
        weight_sum += query_weights.sum()
    optimum = np.array(oracles.class_optimum(weighted, 1.0, 1e-5))  # RMSE from below and above
    low, high = optimum**2 * workload.queries / weight_sum
    assert low * (1 - 2e-3) <= result.bound <= high * (1 + SLACK)


def test_load_plan_minimax_round_trip_is_equal():
    result = three_attribute_plan()
    loaded = load_plan(result.to_json())
    assert loaded.hash == result.hash
    assert loaded.certificate == result.certificate


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("weights", lambda old: old[:-1]),
        ("weights", lambda old: [packed(1.0, 2.0), *old[1:]]),
        ("weights", lambda old: [packed(-1.0), *old[1:]]),
        ("uses", lambda old: old[:-1]),
        ("uses", lambda old: [[*row, 0] for row in old]),
        ("uses", lambda old: [[99] * len(row) for row in old]),
        ("uses", lambda old: [[-1] * len(row) for row in old]),
    ],
)
def test_load_plan_damaged_lines_is_refused(field, value):
    document = json.loads(three_attribute_plan().to_json())
    lines = document["solved"]["tradeoff"]["lines"]
    lines[field] = value(lines[field])
    with pytest.raises(PlanError):
        load_plan(json.dumps(document))


def test_minimax_time_limit_returns_plan():
    result = plan(mixed(30, 25, 20, cells=(4,)), ONE, objective="max", time_limit=0.05, cache=False)
    assert result.certificate.gap < 0.5
    assert result.achieved == pytest.approx(largest_error(result), rel=1e-8)


def test_is_applicable_requires_two_products_without_weights():
    """The search needs product queries without query weights and two asymmetric attributes."""
    goal, two_asymmetric = objective("max"), mixed(5, 4)
    assert is_applicable(two_asymmetric, goal, UNIFORM)
    assert not is_applicable(two_asymmetric, objective("lp", power=3.0), UNIFORM)
    assert not is_applicable(mixed(5, cells=(3, 4)), goal, UNIFORM)
    assert is_applicable(
        mixed(5, cells=(3, 4)), goal, Split(centers={"c0": np.array([0.5, 0.25, 0.25])})
    )
    assert not is_applicable(two_asymmetric.add(("n0", "n1"), "affine"), goal, UNIFORM)
    assert not is_applicable(
        two_asymmetric.add(("n0",), query_weights=np.arange(5.0)), goal, UNIFORM
    )


def test_symmetric_part_has_equal_weights_and_no_order():
    def part(family):
        group: Group = Workload(shapes.numeric(4)).add(("a",), family).groups[0]
        return group.parts[0]

    assert is_symmetric_part(part("marginal"), None)
    assert not is_symmetric_part(part("marginal"), np.array([0.4, 0.2, 0.2, 0.2]))
    assert not is_symmetric_part(part("prefix"), None)
    assert not is_symmetric_part(part("range"), None)


def test_adapted_variances_match_planned_strategy():
    n, weights = 7, np.linspace(1.0, 2.0, 7)
    rows = np.tril(np.ones((n, n)))
    adapted = AdaptedStrategy(rows - rows.mean(axis=1, keepdims=True))
    adapted.update(weights)
    adapted.polish()
    result = plan(Workload(shapes.numeric(n)).add(("a",), "prefix", query_weights=weights), ONE)
    ((_, strategy),) = result.blocks[("a",)].factors
    expected = np.sum((rows @ basis(n) @ strategy.pinv) ** 2, axis=1)
    np.testing.assert_allclose(adapted.variances, expected, rtol=1e-3, atol=1e-9)


def forecast_seconds(workload, chosen_objective):
    return forecast(workload, objective=chosen_objective).seconds


def test_forecast_max_and_lp_are_cheaper_for_products():
    """Sums of products are searched again in every step of "max" and "lp"."""
    products = mixed(12, 15)
    marginals = Workload(products.schema).add("n0").add("n1")
    assert is_applicable(products, objective("max", 2.0, None, products), UNIFORM)
    assert not is_applicable(marginals, objective("max", 2.0, None, marginals), UNIFORM)
    sums = products.add(("n0", "n1"), "affine")
    for name in ("max", "lp"):
        assert forecast_seconds(products, name) < 0.5 * forecast_seconds(sums, name)


@pytest.mark.parametrize("chosen_objective", ["max", "lp"])
def test_forecast_of_wide_marginals_is_below_a_second(chosen_objective):
    """Only the weights of groups change, so that no strategy is searched again (0.1 s)."""
    schema = Schema([Attribute.of_size(f"x{i}", n) for i, n in enumerate((56, 53, 31, 56, 58))])
    workload = Workload.all_ways(schema, (1, 2, 3), "marginal")
    assert forecast_seconds(workload, chosen_objective) < 0.3


def test_forecast_of_max_counts_queries_and_strategies():
    """Six prefixes of 35 to 54 cells, up to 3-way, took 3.4 CPU seconds, and three took 0.5."""
    schema = Schema([Attribute.of_size(f"x{i}", n) for i, n in enumerate((38, 41, 54, 35, 46, 50))])
    workload = Workload.all_ways(schema, (1, 2, 3), "prefix")
    assert 1.7 < forecast_seconds(workload, "max") < 6.8
    schema = Schema([Attribute.of_size(f"x{i}", n) for i, n in enumerate((31, 45, 57))])
    workload = Workload.all_ways(schema, (1, 2, 3), "prefix")
    assert 0.25 < forecast_seconds(workload, "max") < 1.0


def test_forecast_minimax_of_few_queries_counts_several_plans(monkeypatch):
    workload, goal = mixed(12, 15), objective("max", 2.0, None)
    spaces = [("n0",), ("n0", "n1")]
    # the time for plans dominates the forecast
    monkeypatch.setattr("engine.mechanisms.minimax.STEPS_PER_PLAN", 10**6)
    several_plans = forecast_minimax(workload, goal, spaces)
    # with more queries than this limit, the search computes only one plan
    monkeypatch.setattr(
        "engine.mechanisms.minimax.MAX_COMPARED_QUERIES",
        count_weighted_queries(workload, goal, UNIFORM) - 1,
    )
    assert 0.0 < 2.0 * forecast_minimax(workload, goal, spaces) < several_plans
    few = Workload(shapes.numeric(2, 2)).add(("a", "b"), "prefix")
    assert count_weighted_queries(few, goal, UNIFORM) == 4
    assert forecast_minimax(few, goal, [("a", "b")]) > 0.0
    marginals = Workload(shapes.numeric(2, 2)).add(("a", "b"))
    assert forecast_minimax(marginals, goal, [("a", "b")]) == 0.0


def test_sorted_group_classes_ignore_schema_order():
    sizes = {"c": 3, "n": 9, "d": 4, "m": 9, "e": 5, "k": 9}
    kinds = {name: "categorical" if n < 9 else "numeric" for name, n in sizes.items()}
    workload = Workload.all_ways(
        Schema([Attribute.of_size(name, n, kinds[name]) for name, n in sizes.items()]), (1, 2, 3)
    )
    goal = objective("max", 2.0, None, workload)
    sorted_workload = SortedWorkload(workload, list(decompose(workload).spaces), goal, {}, UNIFORM)
    # groups of equal sizes are equivalent, whatever the order of their attributes in the schema
    group_sizes = [sorted(sizes[name] for name in group.attributes) for group in workload.groups]
    assert len(sorted_workload.classes.examples) == len(set(map(tuple, group_sizes)))
    result = plan(workload, ONE, objective="max", cache=False)
    assert result.tradeoff.lines is not None
    assert result.achieved == pytest.approx(largest_error(result), rel=1e-8)
    assert 0.0 <= result.certificate.gap <= 5e-4
    assert load_plan(result.to_json()).certificate == result.certificate


@pytest.mark.parametrize(("target_of_pairs", "gap"), [(1.0, 8e-5), (2.0, 5e-4)])
def test_minimax_equal_attributes_has_small_gap(target_of_pairs, gap):
    """A search with weights that reach zero, or without momentum, leaves gaps above these."""
    workload = Workload.all_ways(shapes.numeric(10, 10, 10, 10), (1, 2))
    targets = [target_of_pairs if len(g.attributes) == 2 else 1.0 for g in workload.groups]
    result = plan(workload, ONE, objective="max", targets=targets, cache=False)
    assert result.tradeoff.lines is not None
    assert 0.0 <= result.certificate.gap <= gap
