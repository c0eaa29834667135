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
from engine.errors import Cancelled, EngineError, PlanError
from engine.mechanisms import plan
from engine.privacy import Budget
from engine.workload import Attribute, Schema, Workload

SCHEMA = Schema([Attribute.of_size(name, size) for name, size in (("a", 4), ("b", 3), ("c", 5))])
WORKLOAD = Workload.all_ways(SCHEMA, (1, 2), "marginal")
TARGETS = [{1: 2.0, 2: 5.0}[len(group.attributes)] for group in WORKLOAD.groups]
BY_SIZE = {k: [len(group.attributes) == k for group in WORKLOAD.groups] for k in (1, 2)}


def request(pcost: float, **fields: object) -> Request:
    return Request(workload=WORKLOAD, budget=Budget(pcost=pcost, **fields))


@functools.cache
def smallest() -> Budget:
    return budget_for(WORKLOAD, TARGETS, fit="shape")


def test_fit_targets_without_locks_returns_minimal_budget() -> None:
    fitted = fit_targets(request(1.0), TARGETS)
    assert fitted.request.budget == smallest()
    result = plan(WORKLOAD, fitted.request.budget, **fitted.request.options)
    assert result.hash == fitted.plan.hash
    assert all(
        error <= target * (1 + 1e-9)
        for error, target in zip(largest_errors(result), TARGETS, strict=True)
    )
    # The budget for the same errors is 9 times as large if each person has up to 3 rows.
    several = fit_targets(request(1.0, rows_per_person=3), TARGETS).request.budget
    assert several.rows_per_person == 3
    assert several.pcost == pytest.approx(9 * fitted.request.budget.pcost, rel=1e-6)


@pytest.mark.parametrize(("size", "times"), [(1, 0.97), (2, 0.8), (1, 30.0), (2, 30.0)])
def test_fit_targets_relaxes_unlocked_targets_minimally(size: int, times: float) -> None:
    least = smallest().pcost
    locked = BY_SIZE[size]
    fitted = fit_targets(request(times * least), TARGETS, locked)
    assert fitted.request.budget == Budget(pcost=times * least)
    assert (fitted.factor > 1.0) == (times < 1.0)
    targets = fitted.request.options["targets"]
    assert targets == [
        t if lock else t * fitted.factor for t, lock in zip(TARGETS, locked, strict=True)
    ]
    assert all(
        e <= t * (1 + 1e-9) for e, t in zip(largest_errors(fitted.plan), targets, strict=True)
    )
    tighter = [
        t if lock else t * fitted.factor * (1 - MAX_UNUSED_SHARE)
        for t, lock in zip(TARGETS, locked, strict=True)
    ]
    needed = budget_for(WORKLOAD, tighter, fit="shape").pcost
    assert needed > times * least * (1 - 2 * MAX_UNUSED_SHARE)


def test_fit_targets_with_infeasible_locks_is_refused() -> None:
    least = smallest().pcost
    with pytest.raises(PlanError, match="locked targets alone need pcost"):
        fit_targets(request(0.01 * least), TARGETS, BY_SIZE[1])
    with pytest.raises(PlanError, match="locked targets alone"):
        fit_targets(request(0.99 * least), TARGETS, [True] * len(TARGETS))
    assert fit_targets(request(5 * least), TARGETS, [True] * len(TARGETS)).factor == 1.0


def test_fit_targets_with_nearly_feasible_locks_states_all_digits() -> None:
    pair = Workload(SCHEMA).add("a").add("b")
    with pytest.raises(PlanError, match=r"need pcost 1\.0000\d+, more than the budget of 1\. "):
        fit_targets(Request(workload=pair, budget=Budget(pcost=1.0)), [1.0, 1.0], [True, False])


@pytest.mark.parametrize(
    ("targets", "locked"),
    [([], None), ([1.0], None), ([0.0] * 6, None), (["x"] * 6, None), (TARGETS, [True])],
)
def test_fit_targets_with_invalid_targets_is_refused(targets: list, locked: list | None) -> None:
    with pytest.raises(PlanError):
        fit_targets(request(1.0), targets, locked)


def test_fit_targets_cancelled_or_unsupported_raises() -> None:
    with pytest.raises(Cancelled):
        fit_targets(request(1.0), TARGETS, progress=lambda fraction, text: False)
    other = Request(workload=WORKLOAD, budget=Budget(pcost=1.0), mechanism="hdmm")
    with pytest.raises(EngineError):
        fit_targets(other, TARGETS)


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
