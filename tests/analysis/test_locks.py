"""Error targets per group: the smallest budget for all targets, and locked targets."""

from __future__ import annotations

import functools

import pytest

from engine.analysis import largest_errors
from engine.analysis.error_targets import CLOSE, budget_for, fit_targets, options_after_change
from engine.analysis.what_if import Request
from engine.errors import Cancelled, EngineError, PlanError
from engine.mechanisms import plan
from engine.privacy import Budget
from engine.workload import Attribute, Schema, Workload

SCHEMA = Schema([Attribute.of_size(name, size) for name, size in (("a", 4), ("b", 3), ("c", 5))])
ASKED = Workload.all_ways(SCHEMA, (1, 2), "marginal")
TARGETS = [{1: 2.0, 2: 5.0}[len(group.attributes)] for group in ASKED.groups]
BY_SIZE = {k: [len(group.attributes) == k for group in ASKED.groups] for k in (1, 2)}


def request(pcost: float, **fields: object) -> Request:
    return Request(workload=ASKED, budget=Budget(pcost=pcost, **fields))


@functools.cache
def smallest() -> Budget:
    return budget_for(ASKED, TARGETS, fit="shape")


def test_without_locks_the_budget_is_the_smallest_that_keeps_all_targets() -> None:
    found = fit_targets(request(1.0), TARGETS)
    assert found.request.budget == smallest()
    made = plan(ASKED, found.request.budget, **found.request.options)
    assert made.hash == found.plan.hash
    assert all(error <= target * (1 + 1e-9) for error, target in zip(largest_errors(made), TARGETS, strict=True))
    # whoever protects several rows of a person pays for them
    several = fit_targets(request(1.0, rows_per_person=3), TARGETS).request.budget
    assert several.rows_per_person == 3
    assert several.pcost == pytest.approx(9 * found.request.budget.pcost, rel=1e-6)


@pytest.mark.parametrize(("size", "times"), [(1, 0.97), (2, 0.8), (1, 30.0), (2, 30.0)])
def test_at_a_budget_only_what_is_not_locked_gives_way_and_no_more_than_it_must(size: int, times: float) -> None:
    least = smallest().pcost
    locked = BY_SIZE[size]
    found = fit_targets(request(times * least), TARGETS, locked)
    assert found.request.budget == Budget(pcost=times * least)
    assert (found.factor > 1.0) == (times < 1.0)
    kept = found.request.options["targets"]
    assert kept == [t if lock else t * found.factor for t, lock in zip(TARGETS, locked, strict=True)]
    assert all(e <= t * (1 + 1e-9) for e, t in zip(largest_errors(found.plan), kept, strict=True))
    tighter = [t if lock else t * found.factor * (1 - CLOSE) for t, lock in zip(TARGETS, locked, strict=True)]
    needed = budget_for(ASKED, tighter, fit="shape").pcost
    assert needed > times * least * (1 - 2 * CLOSE)


def test_locks_that_no_budget_of_this_size_keeps_are_refused() -> None:
    least = smallest().pcost
    with pytest.raises(PlanError, match="locked targets alone need pcost"):
        fit_targets(request(0.01 * least), TARGETS, BY_SIZE[1])
    with pytest.raises(PlanError, match="locked targets alone"):
        fit_targets(request(0.99 * least), TARGETS, [True] * len(TARGETS))
    assert fit_targets(request(5 * least), TARGETS, [True] * len(TARGETS)).factor == 1.0


@pytest.mark.parametrize(
    ("targets", "locked"), [([], None), ([1.0], None), ([0.0] * 6, None), (["x"] * 6, None), (TARGETS, [True])]
)
def test_what_is_no_target_is_refused(targets: list, locked: list | None) -> None:
    with pytest.raises(PlanError):
        fit_targets(request(1.0), targets, locked)


def test_it_can_be_cancelled_and_other_mechanisms_say_why_they_cannot() -> None:
    with pytest.raises(Cancelled):
        fit_targets(request(1.0), TARGETS, progress=lambda fraction, text: False)
    asked = Request(workload=ASKED, budget=Budget(pcost=1.0), mechanism="hdmm")
    with pytest.raises(EngineError):
        fit_targets(asked, TARGETS)


def test_targets_stay_with_their_groups() -> None:
    options = {"objective": "max", "targets": TARGETS, "centers": "tuned"}
    groups = ASKED.groups
    fewer = options_after_change(options, groups, groups[2:])
    assert fewer is not None
    assert fewer["targets"] == TARGETS[2:]
    assert options_after_change(options, groups, groups[::-1])["targets"] == TARGETS[::-1]
    assert options_after_change(options, groups[1:], groups) == options  # targets of other groups are left to the plan
    new = ASKED.add(("a", "b"), "prefix").groups
    assert options_after_change(options, groups, new) is None
    assert options_after_change({"centers": "tuned"}, groups, new) == {"centers": "tuned"}
    assert options_after_change({"objective": "max", "targets": 3.0}, groups, new) == {
        "objective": "max",
        "targets": 3.0,
    }
