"""Groups that tuning must leave as exact as they are with uniform centers, up to a share."""

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
    """Numeric and categorical attributes by all ways: tuned, single attributes are up to a third less exact."""
    sizes = {"a": (50, "numeric"), "b": (100, "numeric"), "c": (7, "categorical"), "d": (2, "categorical")}
    return Workload.all_ways(Schema([Attribute.of_size(name, n, kind) for name, (n, kind) in sizes.items()]))


def pairs() -> Workload:
    schema = Schema([Attribute.of_size(name, 6) for name in "abcdef"])
    ones = Workload.all_ways(schema, (1,), "prefix")
    return Workload(schema, ones.groups + Workload.all_ways(schema, (2,), "affine").groups)


@functools.cache
def planned(asked: Workload, **options: object) -> Plan:
    return plan(asked, BUDGET, **options)  # type: ignore[arg-type]


def made(asked: Workload, **options: object) -> Plan:
    """A plan, which those that keep nothing share."""
    return plan(asked, BUDGET, **options) if "keep" in options else planned(asked, **options)  # type: ignore[arg-type]


def rises(found: Plan, uniform: Plan) -> np.ndarray:
    return np.sqrt(np.array(found.totals) / uniform.totals) - 1.0


@pytest.mark.parametrize("share", [0.0, 0.05])
@pytest.mark.parametrize("asked", [products(), pairs()], ids=["products", "pairs"])
def test_no_group_rises_above_its_share_and_the_total_stays_better(asked: Workload, share: float) -> None:
    uniform, free = made(asked), made(asked, centers="tuned")
    found = made(asked, centers="tuned", keep=share)
    assert rises(found, uniform).max() <= share + 1e-6
    assert free.weighted_rmse * (1.0 - 1e-6) <= found.weighted_rmse < 0.98 * uniform.weighted_rmse
    assert found.pcost <= BUDGET.pcost
    assert 0.0 <= found.certificate.gap < 1e-3
    again = load_plan(found.to_json())
    assert again.to_json() == found.to_json()
    assert again.certificate.gap == found.certificate.gap


def test_tuning_alone_makes_single_groups_less_exact_and_says_so() -> None:
    free = made(products(), centers="tuned")
    assert rises(free, made(products())).max() > 0.1
    assert "single groups may be less exact" in free.certificate.statement


def test_forecasts_count_the_plans_that_keep_groups() -> None:
    """Every change of weights is planned anew."""
    free, kept = (forecast(products(), centers="tuned", keep=share).seconds for share in (None, 0.05))
    assert 2.0 * free < kept < 50.0 * free


def test_single_groups_are_kept_by_their_numbers() -> None:
    asked = products()
    uniform = made(asked)
    found = made(asked, centers="tuned", keep={"1": 0.02})
    assert rises(found, uniform)[1] <= 0.02 + 1e-6
    assert rises(found, uniform).max() > 0.1
    assert found.options["keep"] == {1: 0.02}
    assert load_plan(found.to_json()).hash == found.hash


def test_the_bound_holds_for_plans_that_keep_more() -> None:
    """A plan of the same class that obeys stricter limits obeys these, so that it cannot pass their bound."""
    wide, narrow = (made(pairs(), centers="tuned", keep=share) for share in (0.02, 0.01))
    assert np.array_equal(wide.split.centers["a"], narrow.split.centers["a"])
    assert wide.certificate.lower_bound <= narrow.weighted_rmse
    assert wide.weighted_rmse <= narrow.weighted_rmse * (1.0 + 1e-6)


def test_weights_of_groups_leave_those_of_queries_alone() -> None:
    asked = pairs().add("a", "range", weight=2.0, query_weights=np.linspace(0.0, 1.0, 21)).add("b", weight=0.0)
    weights = np.arange(1.0, len(asked.groups) + 1.0)
    emphasis = Emphasis.of_groups(asked, weights.tolist())
    emphasis.check(asked)
    heavier = emphasis.apply(asked).groups
    assert [g.weight for g in heavier] == weights[:-1].tolist()
    assert [g.key for g in heavier] == [g.key for g in asked.groups[:-1]]


def test_a_file_whose_plan_does_not_keep_its_limits_is_refused() -> None:
    document = json.loads(made(pairs(), centers="tuned", keep=0.0).to_json())
    lower = np.full(len(pairs().groups), 1e-3)
    document["solved"]["tradeoff"]["limits"] = base64.b64encode(lower.tobytes()).decode()
    with pytest.raises(PlanError, match="do not fit"):
        load_plan(json.dumps(document))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"keep": -0.1}, "from 0"),
        ({"keep": "much"}, "from 0"),
        ({"keep": {"a": 0.1}}, "from 0"),
        ({"keep": {99: 0.1}}, "groups 0 to"),
        ({"keep": 0.1, "centers": "uniform"}, 'centers="tuned"'),
        ({"keep": 0.1, "objective": "max"}, 'centers="tuned"'),
    ],
)
def test_what_cannot_be_kept_is_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises(PlanError, match=words):
        made(pairs(), **{"centers": "tuned", **options})


@pytest.mark.parametrize("keep", [0.0, {2: 0.0}])
def test_a_group_that_exact_totals_answer_is_kept_whatever_is_planned(keep: object) -> None:
    """Its error is 0 with every split: by which share it rises is no number."""
    schema = Schema([Attribute.of_size(name, n) for name, n in (("a", 5), ("b", 8), ("c", 12))])
    known = schema.with_facts(invariants=[(["a"], [10] * 5)])
    asked = Workload(known).add(("b", "c"), "prefix").add(("a", "b"), "affine").add("a", "prefix")
    found = made(asked, centers="tuned", keep=keep)
    assert found.totals[2] == 0.0
    assert found.weighted_rmse <= made(asked).weighted_rmse
