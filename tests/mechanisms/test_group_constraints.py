"""Constraints on the error increase of groups under tuned centers."""

from __future__ import annotations

import base64
import functools
import json

import numpy as np
import pytest

from engine.errors import PlanError
from engine.mechanisms import forecast, load_plan, plan
from engine.plans import Plan
from engine.plans.objectives import Emphasis
from engine.privacy import Budget
from engine.workload import Attribute, Schema, Workload

BUDGET = Budget(pcost=2.0)


def products() -> Workload:
    """Return queries on all sets of up to three of four attributes.

    They are prefixes for numeric and cells for categorical attributes.  Tuning raises some errors
    by a third.
    """
    sizes = {
        "a": (50, "numeric"),
        "b": (100, "numeric"),
        "c": (7, "categorical"),
        "d": (2, "categorical"),
    }
    return Workload.all_ways(
        Schema([Attribute.of_size(name, n, kind) for name, (n, kind) in sizes.items()])
    )


def pairs() -> Workload:
    schema = Schema([Attribute.of_size(name, 6) for name in "abcdef"])
    ones = Workload.all_ways(schema, (1,), "prefix")
    return Workload(schema, ones.groups + Workload.all_ways(schema, (2,), "affine").groups)


@functools.cache
def cached_plan(workload: Workload, **options: object) -> Plan:
    return plan(workload, BUDGET, **options)  # type: ignore[arg-type]


def build_plan(workload: Workload, **options: object) -> Plan:
    """Return a plan; plans without the option ``keep`` are cached."""
    if "keep" in options:
        return plan(workload, BUDGET, **options)  # type: ignore[arg-type]
    return cached_plan(workload, **options)


def error_increases(constrained: Plan, uniform: Plan) -> np.ndarray:
    return np.sqrt(np.array(constrained.totals) / uniform.totals) - 1.0


@pytest.mark.parametrize("share", [0.0, 0.05])
@pytest.mark.parametrize("workload", [products(), pairs()], ids=["products", "pairs"])
def test_keep_limits_error_increase_of_each_group(workload: Workload, share: float) -> None:
    uniform, free = build_plan(workload), build_plan(workload, centers="tuned")
    constrained = build_plan(workload, centers="tuned", keep=share)
    assert error_increases(constrained, uniform).max() <= share + 1e-6
    assert constrained.weighted_rmse >= free.weighted_rmse * (1.0 - 1e-6)
    assert constrained.weighted_rmse < 0.98 * uniform.weighted_rmse
    assert constrained.pcost <= BUDGET.pcost
    assert 0.0 <= constrained.certificate.gap < 1e-3
    loaded = load_plan(constrained.to_json())
    assert loaded.to_json() == constrained.to_json()
    assert loaded.certificate.gap == constrained.certificate.gap


def test_tuned_centers_statement_mentions_less_accurate_groups() -> None:
    free = build_plan(products(), centers="tuned")
    assert error_increases(free, build_plan(products())).max() > 0.1
    assert "less accurate" in free.certificate.statement


def test_forecast_keep_counts_repeated_planning() -> None:
    free, constrained = (
        forecast(products(), centers="tuned", keep=share).seconds for share in (None, 0.05)
    )
    assert 2.0 * free < constrained < 50.0 * free


def test_keep_mapping_limits_only_listed_groups() -> None:
    workload = products()
    uniform = build_plan(workload)
    constrained = build_plan(workload, centers="tuned", keep={"1": 0.02})
    assert error_increases(constrained, uniform)[1] <= 0.02 + 1e-6
    assert error_increases(constrained, uniform).max() > 0.1
    assert constrained.options["keep"] == {1: 0.02}
    assert load_plan(constrained.to_json()).hash == constrained.hash


def test_keep_bound_is_below_stricter_plan() -> None:
    """A plan with stricter limits also obeys the wider limits, so its error is above their bound."""
    wide, narrow = (build_plan(pairs(), centers="tuned", keep=share) for share in (0.02, 0.01))
    assert np.array_equal(wide.split.centers["a"], narrow.split.centers["a"])
    assert wide.certificate.lower_bound <= narrow.weighted_rmse
    assert wide.weighted_rmse <= narrow.weighted_rmse * (1.0 + 1e-6)


def test_emphasis_of_groups_preserves_query_weights() -> None:
    workload = (
        pairs()
        .add("a", "range", weight=2.0, query_weights=np.linspace(0.0, 1.0, 21))
        .add("b", weight=0.0)
    )
    weights = np.arange(1.0, len(workload.groups) + 1.0)
    emphasis = Emphasis.of_groups(workload, weights.tolist())
    emphasis.check(workload)
    groups = emphasis.apply(workload).groups  # without the last one, which has the weight 0
    assert [group.weight for group in groups] == weights[:-1].tolist()
    assert [group.key for group in groups] == [group.key for group in workload.groups[:-1]]


def test_load_plan_exceeded_limits_is_refused() -> None:
    document = json.loads(build_plan(pairs(), centers="tuned", keep=0.0).to_json())
    lower = np.full(len(pairs().groups), 1e-3)
    document["solved"]["tradeoff"]["limits"] = base64.b64encode(lower.tobytes()).decode()
    with pytest.raises(PlanError, match="fit"):
        load_plan(json.dumps(document))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"keep": -0.1}, "0 or more"),
        ({"keep": "much"}, "0 or more"),
        ({"keep": {"a": 0.1}}, "0 or more"),
        ({"keep": {0.5: 0.1}}, "0 or more"),
        ({"keep": {99: 0.1}}, "groups 0 to"),
        ({"keep": 0.1, "centers": "uniform"}, 'centers="tuned"'),
        ({"keep": 0.1, "objective": "max"}, 'centers="tuned"'),
    ],
)
def test_keep_invalid_value_is_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises(PlanError, match=words):
        build_plan(pairs(), **{"centers": "tuned", **options})


@pytest.mark.parametrize("keep", [0.0, {2: 0.0}])
def test_keep_group_answered_by_invariants_has_zero_error(keep: object) -> None:
    """`keep` limits the relative increase of a group's error, which is 0 / 0 for these groups."""
    schema = Schema([Attribute.of_size(name, n) for name, n in (("a", 5), ("b", 8), ("c", 12))])
    schema_with_totals = schema.with_facts(invariants=[(["a"], [10] * 5)])
    workload = (
        Workload(schema_with_totals)
        .add(("b", "c"), "prefix")
        .add(("a", "b"), "affine")
        .add("a", "prefix")
    )
    constrained = build_plan(workload, centers="tuned", keep=keep)
    assert constrained.totals[2] == 0.0
    assert constrained.weighted_rmse <= build_plan(workload).weighted_rmse
