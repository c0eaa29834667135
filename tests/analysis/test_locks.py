"""Error targets per group: the smallest budget for all targets, and targets that must not change."""

from __future__ import annotations

import functools

import pytest

from engine.analysis import largest_errors
from engine.analysis.error_targets import (
    MAX_UNUSED_SHARE,
    budget_for,
    fit_targets,
    options_after_change,
)
from engine.analysis.what_if import Request
from engine.errors import Cancelled, PlanError
from engine.mechanisms import plan
from engine.plans import Plan
from engine.privacy import Budget
from engine.workload import Attribute, Schema, Workload

SCHEMA = Schema([Attribute.of_size(name, size) for name, size in (("a", 4), ("b", 3), ("c", 5))])
WORKLOAD = Workload.all_ways(SCHEMA, (1, 2), "marginal")
TARGETS = [{1: 2.0, 2: 5.0}[len(group.attributes)] for group in WORKLOAD.groups]
LOCKS_BY_WAYS = {
    ways: [len(group.attributes) == ways for group in WORKLOAD.groups] for ways in (1, 2)
}


def request(pcost: float, **fields: object) -> Request:
    return Request(workload=WORKLOAD, budget=Budget(pcost=pcost, **fields))


@functools.cache
def smallest_budget() -> Budget:
    return budget_for(WORKLOAD, TARGETS, fit="shape")


def test_fit_targets_without_locks_returns_minimal_budget() -> None:
    fitted = fit_targets(request(1.0), TARGETS)
    assert fitted.request.budget == smallest_budget()
    result = plan(WORKLOAD, fitted.request.budget, **fitted.request.options)
    assert result.hash == fitted.plan.hash
    assert_errors_within(result, TARGETS)
    # The budget for the same errors is 9 times as large if each person has up to 3 rows.
    of_three_rows = fit_targets(request(1.0, rows_per_person=3), TARGETS).request.budget
    assert of_three_rows.rows_per_person == 3
    assert of_three_rows.pcost == pytest.approx(9 * fitted.request.budget.pcost, rel=1e-6)


def assert_errors_within(result: Plan, targets: list[float]) -> None:
    for error, target in zip(largest_errors(result), targets, strict=True):
        assert error <= target * (1 + 1e-9)


def relaxed_targets(factor: float, locked: list[bool]) -> list[float]:
    return [t if lock else t * factor for t, lock in zip(TARGETS, locked, strict=True)]


@pytest.mark.parametrize(
    ("locked_ways", "budget_factor"), [(1, 0.97), (2, 0.8), (1, 30.0), (2, 30.0)]
)
def test_fit_targets_relaxes_unlocked_targets_minimally(
    locked_ways: int, budget_factor: float
) -> None:
    pcost = budget_factor * smallest_budget().pcost
    locked = LOCKS_BY_WAYS[locked_ways]
    fitted = fit_targets(request(pcost), TARGETS, locked)
    assert fitted.request.budget == Budget(pcost=pcost)
    assert (fitted.factor > 1.0) == (budget_factor < 1.0)
    targets = fitted.request.options["targets"]
    assert targets == relaxed_targets(fitted.factor, locked)
    assert_errors_within(fitted.plan, targets)
    tighter = relaxed_targets(fitted.factor * (1 - MAX_UNUSED_SHARE), locked)
    needed = budget_for(WORKLOAD, tighter, fit="shape").pcost
    assert needed > pcost * (1 - 2 * MAX_UNUSED_SHARE)


def test_fit_targets_with_infeasible_locks_is_refused() -> None:
    pcost = smallest_budget().pcost
    with pytest.raises(PlanError, match="locked targets alone need pcost"):
        fit_targets(request(0.01 * pcost), TARGETS, LOCKS_BY_WAYS[1])
    all_locked = [True] * len(TARGETS)
    with pytest.raises(PlanError, match="locked targets alone"):
        fit_targets(request(0.99 * pcost), TARGETS, all_locked)
    assert fit_targets(request(5 * pcost), TARGETS, all_locked).factor == 1.0


def test_fit_targets_with_nearly_feasible_locks_states_all_digits() -> None:
    pair = Workload(SCHEMA).add("a").add("b")
    with pytest.raises(PlanError, match=r"need pcost 1\.0000\d+, more than the budget of 1\. "):
        fit_targets(Request(workload=pair, budget=Budget(pcost=1.0)), [1.0, 1.0], [True, False])


@pytest.mark.parametrize(
    ("targets", "locked", "words"),
    [
        ([], None, "0 targets, but 6 groups"),
        ([1.0], None, "1 targets, but 6 groups"),
        ([0.0] * 6, None, "must be a number"),
        (["x"] * 6, None, "must be a number"),
        (TARGETS, [True], "1 locks, but 6 groups"),
    ],
)
def test_fit_targets_with_invalid_targets_is_refused(
    targets: list, locked: list | None, words: str
) -> None:
    with pytest.raises(PlanError, match=words):
        fit_targets(request(1.0), targets, locked)


def test_fit_targets_cancelled_or_unsupported_raises() -> None:
    with pytest.raises(Cancelled):
        fit_targets(request(1.0), TARGETS, progress=lambda fraction, text: False)
    hdmm = Request(workload=WORKLOAD, budget=Budget(pcost=1.0), mechanism="hdmm")
    with pytest.raises(PlanError, match="'hdmm' has only the objective 'sum'"):
        fit_targets(hdmm, TARGETS)


def test_options_after_change_reorder_targets_with_groups() -> None:
    options = {"objective": "max", "targets": TARGETS, "centers": "tuned"}
    groups = WORKLOAD.groups
    fewer = options_after_change(options, groups, groups[2:])
    assert fewer is not None
    assert fewer["targets"] == TARGETS[2:]
    assert options_after_change(options, groups, groups[::-1])["targets"] == TARGETS[::-1]
    # These options have one target more than the old workload has groups.  They are not changed.
    assert options_after_change(options, groups[1:], groups) == options
    new = WORKLOAD.add(("a", "b"), "prefix").groups
    assert options_after_change(options, groups, new) is None
    assert options_after_change({"centers": "tuned"}, groups, new) == {"centers": "tuned"}
    assert options_after_change({"objective": "max", "targets": 3.0}, groups, new) == {
        "objective": "max",
        "targets": 3.0,
    }
