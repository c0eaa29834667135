"""Groups that make planning expensive, and their replacements."""

from __future__ import annotations

import numpy as np
import pytest

from engine.analysis import forecast_added
from engine.analysis.what_if import REMEDIES, Request, costly_groups
from engine.errors import NotApplicable
from engine.mechanisms import forecast, plan
from engine.privacy import Budget
from engine.workload import Attribute, Custom, Schema, Workload

SCHEMA = Schema([Attribute.of_size("a", 90), Attribute.of_size("b", 80), Attribute.of_size("c", 3)])
FEWER = Schema([Attribute.of_size("a", 34), Attribute.of_size("b", 30), Attribute.of_size("c", 3)])
PLAIN = Workload.all_ways(SCHEMA, (1, 2))
REMEDY = {remedy.name: remedy.apply for remedy in REMEDIES}


def request_of(workload: Workload) -> Request:
    return Request(workload=workload, budget=Budget(pcost=1.0))


def test_costly_groups_are_joint_groups_of_large_table() -> None:
    affordable = Workload.all_ways(FEWER, (1, 2)).add(("a", "c"), "affine")
    costly = Workload(FEWER).add(("a", "b"), "affine").add(("a", "b"), "abs")
    workload = Workload(FEWER, (*costly.groups, *affordable.groups))
    limits = {"seconds": 60.0, "memory": 1.5e8}
    # only the table of a and b exceeds the limits, so the joint group on a and c remains
    assert set(costly_groups(request_of(workload), **limits)) == {0, 1}
    assert costly_groups(request_of(affordable), **limits) == ()


def test_large_product_forecast_uses_alternating_search() -> None:
    workload = PLAIN.add(("a", "b"), "marginal")
    expected = forecast(workload, memory_limit=4e9)
    assert expected.seconds < 60.0
    assert expected.memory < 4e9
    result = plan(workload, Budget(pcost=1.0), memory_limit=4e9, cache=False)
    assert "alternating" in result.certificate.statement
    joint = forecast(PLAIN.add(("a", "b"), "affine"), memory_limit=4e9)
    assert joint.seconds < 60.0
    assert joint.memory < 1e9


def test_forecast_added_matches_full_forecast() -> None:
    joint_group = Workload(SCHEMA).add(("a", "b"), "affine").groups
    added = forecast_added(request_of(PLAIN), joint_group)
    full = forecast(Workload(SCHEMA, (*PLAIN.groups, *joint_group)))
    assert added.seconds == pytest.approx(full.seconds, rel=1e-3)
    small_group = Workload(SCHEMA).add("c", "marginal").groups
    assert forecast_added(request_of(PLAIN), small_group).seconds < 1.0


@pytest.mark.parametrize("covered", [True, False])
def test_approximated_group_is_answered_by_other_tables(covered: bool) -> None:
    schema = Schema([Attribute.of_size("a", 5), Attribute.of_size("b", 4)])
    workload = Workload(schema).add(("a", "b"), "affine").add("a", "prefix")
    if covered:
        workload = workload.add(("b", "a"), "range")
    changed = REMEDY["approximate"](request_of(workload), 0).request.workload
    # a table that covers the group is added if the workload has none
    added_groups = 0 if covered else 1
    assert len(changed.groups) == len(workload.groups) + added_groups
    variances = plan(changed, Budget(pcost=1.0)).variances(0)
    assert np.isfinite(variances).all()
    assert (variances > 0.0).all()


def test_marginal_remedy_replaces_group() -> None:
    workload = PLAIN.add(("a", "b"), "affine", weight=2.0)
    changed = REMEDY["marginal"](request_of(workload), len(PLAIN.groups))
    group = changed.request.workload.groups[-1]
    assert (group.attributes, group.family_text, group.weight) == (("a", "b"), "marginal", 2.0)
    assert changed.request.workload.groups[:-1] == PLAIN.groups


def test_inapplicable_remedies_are_refused() -> None:
    single = Workload(SCHEMA).add(("a", "b"), "marginal", weight=0.0)
    for name, words in {
        "remove": "the only group",
        "approximate": "already",
        "marginal": "already",
    }.items():
        with pytest.raises(NotApplicable, match=words):
            REMEDY[name](request_of(single), 0)


def test_approximate_remedy_ignores_custom_group() -> None:
    schema = Schema([Attribute.of_size("a", 5), Attribute.of_size("b", 4)])
    workload = (
        Workload(schema).add(("a", "b"), "affine").add(("a", "b"), Custom(predicates=["a < 2"]))
    )
    changed = REMEDY["approximate"](request_of(workload), 0).request.workload
    # The custom group is no table that covers the joint group, so one is added.
    assert len(changed.groups) == 3
