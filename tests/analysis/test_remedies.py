"""Groups that make planning expensive, and their replacements."""

from __future__ import annotations

import numpy as np
import pytest

from engine.analysis import forecast_added
from engine.analysis.planning_advice import REMEDIES, costly_groups
from engine.analysis.what_if import Request
from engine.errors import NotApplicable
from engine.mechanisms import forecast, plan
from engine.privacy import Budget
from engine.workload import Attribute, Custom, Schema, Workload

SCHEMA = Schema([Attribute.of_size("a", 90), Attribute.of_size("b", 80), Attribute.of_size("c", 3)])
FEWER = Schema([Attribute.of_size("a", 34), Attribute.of_size("b", 30), Attribute.of_size("c", 3)])
PLAIN = Workload.all_ways(SCHEMA, (1, 2))
REMEDY = {remedy.name: remedy.apply for remedy in REMEDIES}


def asking(workload: Workload) -> Request:
    return Request(workload=workload, budget=Budget(pcost=1.0))


def test_every_joint_group_is_named_and_no_other() -> None:
    plain = Workload.all_ways(FEWER, (1, 2)).groups
    asked = Workload(FEWER).add(("a", "b"), "affine").add(("a", "c"), "affine")
    asked = Workload(FEWER, (*asked.groups, *plain)).add(("a", "b"), "abs")
    within = {"seconds": 60.0, "memory": 1.5e8}
    assert set(costly_groups(asking(asked), **within)) == {0, len(asked.groups) - 1}
    assert costly_groups(asking(Workload(FEWER, plain)), **within) == ()


def test_products_that_do_not_fit_together_are_planned_in_turns_and_forecast_so() -> None:
    asked = PLAIN.add(("a", "b"), "marginal")
    expected = forecast(asked, memory_limit=4e9)
    assert expected.seconds < 60.0
    assert expected.memory < 4e9
    assert "alternating" in plan(asked, Budget(pcost=1.0), memory_limit=4e9, cache=False).certificate.statement
    joint = forecast(PLAIN.add(("a", "b"), "affine"), memory_limit=4e9)
    assert joint.seconds < 60.0
    assert joint.memory < 1e9


def test_what_is_added_costs_what_the_whole_would() -> None:
    (group,) = Workload(SCHEMA).add(("a", "b"), "affine").groups
    whole = forecast(Workload(SCHEMA, (*PLAIN.groups, group)))
    assert forecast_added(asking(PLAIN), [group]).seconds == pytest.approx(whole.seconds, rel=1e-3)
    assert forecast_added(asking(PLAIN), Workload(SCHEMA).add("c", "marginal").groups).seconds < 1.0


@pytest.mark.parametrize("covered", [True, False])
def test_an_approximated_group_is_answered_by_the_tables_of_others(covered: bool) -> None:
    schema = Schema([Attribute.of_size("a", 5), Attribute.of_size("b", 4)])
    asked = Workload(schema).add(("a", "b"), "affine").add("a", "prefix")
    asked = asked.add(("b", "a"), "range") if covered else asked
    changed = REMEDY["approximate"](asking(asked), 0)
    assert len(changed.request.workload.groups) == len(asked.groups) + (not covered)
    made = plan(changed.request.workload, Budget(pcost=1.0))
    assert np.isfinite(made.variances(0)).all()
    assert (made.variances(0) > 0.0).all()


def test_a_table_takes_the_place_of_a_group() -> None:
    asked = PLAIN.add(("a", "b"), "affine", weight=2.0)
    changed = REMEDY["marginal"](asking(asked), len(PLAIN.groups))
    made = changed.request.workload.groups[-1]
    assert (made.attributes, made.family_text, made.weight) == (("a", "b"), "marginal", 2.0)
    assert changed.request.workload.groups[:-1] == PLAIN.groups


def test_remedies_that_do_not_apply_say_why() -> None:
    alone = Workload(SCHEMA).add(("a", "b"), "marginal", weight=0.0)
    for name, words in {"remove": "only group", "approximate": "already", "marginal": "already"}.items():
        with pytest.raises(NotApplicable, match=words):
            REMEDY[name](asking(alone), 0)


def test_a_group_of_conditions_does_not_cover_a_table() -> None:
    schema = Schema([Attribute.of_size("a", 5), Attribute.of_size("b", 4)])
    asked = Workload(schema).add(("a", "b"), "affine").add(("a", "b"), Custom(predicates=["a < 2"]))
    assert len(REMEDY["approximate"](asking(asked), 0).request.workload.groups) == 3
