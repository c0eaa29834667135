"""Checks of plans fail on altered plans and on planted bugs."""

import dataclasses
import sys

import numpy as np
import pytest

from engine.mechanisms import plan
from engine.plans import Plan
from engine.privacy import Budget
from engine.residuals import Strategy
from engine.workload import Family, Width, Workload
from engine.workload.families import Intervals
from tests import oracles, shapes
from tests.mechanisms import requests
from tests.mechanisms.checks import (
    check_certificate,
    check_optimal,
    check_privacy,
    check_tight,
    check_variances,
)
from tests.mechanisms.requests import (
    SETTINGS,
    check_request_of,
    optimum_of,
    planned,
    planned_once,
    rows_of,
)

pytestmark = pytest.mark.usefixtures("toy_is_registered", "few_levels")


def with_blocks(result, blocks):
    """Return a copy of a plan with other blocks but the cached figures of the original."""
    # reading a figure stores it in the plan
    for name in ("rmse", "weighted_rmse", "max_variance", "pcost", "certificate"):
        getattr(result, name)
    altered = object.__new__(Plan)
    for i in range(len(result.workload.groups)):
        result.variances(i)
    altered.__dict__.update(result.__dict__)
    object.__setattr__(altered, "blocks", blocks)
    return altered


def with_changed_block(result, space, **changes):
    return with_blocks(
        result, {**result.blocks, space: dataclasses.replace(result.blocks[space], **changes)}
    )


def less_noise(result):
    return with_changed_block(result, ("a", "b"), noise=result.blocks[("a", "b")].noise * 0.999)


def more_noise(result):
    return with_changed_block(result, ("b",), noise=result.blocks[("b",)].noise * 1.001)


def missing_block(result):
    return with_blocks(result, {s: b for s, b in result.blocks.items() if s != ("a",)})


def repeated_rows(result):
    repeated = [
        (axes, dataclasses.replace(s, rows=np.concatenate([s.rows] * 2)))
        for axes, s in result.blocks[("a",)].factors
    ]
    return with_changed_block(result, ("a",), factors=tuple(repeated))


def swapped_noise(result):
    """Return a plan in which the blocks of ``a`` and ``b`` have each other's noise."""
    a, b = result.blocks[("a",)], result.blocks[("b",)]
    return with_blocks(
        result,
        {
            **result.blocks,
            ("a",): dataclasses.replace(a, noise=b.noise),
            ("b",): dataclasses.replace(b, noise=a.noise),
        },
    )


def swapped_strategies(result):
    """Return the plan with the strategies of attributes a and b exchanged; both have 5 cells."""
    a, b = result.blocks[("a",)], result.blocks[("b",)]
    return with_blocks(
        result,
        {
            **result.blocks,
            ("a",): dataclasses.replace(a, factors=b.factors),
            ("b",): dataclasses.replace(b, factors=a.factors),
        },
    )


def swapped_axes(result):
    reversed_axes = tuple(
        (tuple(1 - axis for axis in axes), s) for axes, s in result.blocks[("a", "b")].factors
    )
    return with_changed_block(result, ("a", "b"), factors=reversed_axes)


def scaled_rows(result):
    (axes, s), *more = result.blocks[("a",)].factors
    return with_changed_block(
        result, ("a",), factors=((axes, dataclasses.replace(s, rows=s.rows * 1.01)), *more)
    )


def check_plan(result, rows, best=None):
    """Check the privacy, budget, variances and, if ``best`` is given, optimality of a plan."""
    explicit = oracles.explicit(result)
    check_privacy(result, explicit)
    check_tight(result, explicit)
    check_variances(result, explicit, rows)
    if best is not None:
        check_optimal(result, best)


ALTERATIONS = [
    less_noise,
    more_noise,
    missing_block,
    repeated_rows,
    swapped_noise,
    swapped_strategies,
    swapped_axes,
    scaled_rows,
]


@pytest.mark.parametrize("alter", ALTERATIONS)
def test_checks_plan_with_changed_blocks_fail(alter):
    result, _ = planned("querysmasher", {}, "same_size")
    check_plan(result, rows_of("same_size"), optimum_of("same_size"))
    altered = alter(result)
    with pytest.raises(AssertionError):
        check_plan(altered, rows_of("same_size"))


def test_checks_suboptimal_plan_or_bound_fail():
    best = optimum_of("same_size")
    result, _ = planned("querysmasher", {}, "same_size")
    check_optimal(result, best)
    # A plan with exchanged strategies is consistent and private, but less accurate.
    swapped = dataclasses.replace(result, blocks=swapped_strategies(result).blocks)
    check_variances(swapped, oracles.explicit(swapped), rows_of("same_size"))
    with pytest.raises(AssertionError):
        check_optimal(swapped, best)
    overstated = dataclasses.replace(result, bound=result.bound * 1.001)
    with pytest.raises(AssertionError):
        check_certificate(overstated, best)


def _half_norm(monkeypatch):
    original = Strategy.column_norm.func
    monkeypatch.setattr(Strategy, "column_norm", property(lambda self: original(self) / 2))


def _mean_norm(monkeypatch):
    norm = property(lambda self: float(np.sqrt(np.mean(np.sum(self.rows**2, axis=0)))))
    monkeypatch.setattr(Strategy, "column_norm", norm)


def _one_norm_only(monkeypatch):
    """Plant a bug: the privacy cost of a plan is the largest cost of a block, not their sum."""

    def largest_pcost(blocks, records):
        return max(b.pcost(records) for b in blocks.values())

    for module in ("engine.plans.blocks", "engine.plans.replace_one"):
        monkeypatch.setattr(sys.modules[module], "total_pcost", largest_pcost)


def _wrong_sums(monkeypatch):
    original = Intervals.dot
    monkeypatch.setattr(
        Intervals, "dot", lambda self, sizes, table: original(self, sizes, table) * 1.001
    )


def _wrong_quadratic(monkeypatch):
    original = Intervals.quadratic
    monkeypatch.setattr(
        Intervals, "quadratic", lambda self, sizes, matrix: original(self, sizes, matrix)[::-1]
    )


def _wrong_gram(monkeypatch):
    original = Intervals.gram
    monkeypatch.setattr(
        Intervals, "gram", lambda self, sizes, weights=None: original(self, sizes)[::-1, ::-1] * 2
    )


def _wrong_pinv(monkeypatch):
    original = Strategy.__init__
    monkeypatch.setattr(
        Strategy, "__init__", lambda self, **k: original(self, **(k | {"pinv": k["pinv"] * 0.999}))
    )


def _rows_in_wrong_order(monkeypatch):
    original = Family.chunks
    monkeypatch.setattr(
        Family,
        "chunks",
        lambda self, sizes: ((start, rows[::-1]) for start, rows in original(self, sizes)),
    )


BUGS = [
    _half_norm,
    _mean_norm,
    _one_norm_only,
    _wrong_sums,
    _wrong_quadratic,
    _wrong_gram,
    _wrong_pinv,
    _rows_in_wrong_order,
]


@pytest.mark.parametrize("bug", BUGS)
def test_checks_fail_with_planted_bug(bug, monkeypatch):
    workload = (
        Workload(shapes.numeric(4, 4))
        .add("a", "prefix")
        .add("b", Width(2))
        .add(("b", "a"), "affine")
    )
    rows, best = oracles.workload_rows(workload), oracles.class_optimum(workload, 1.0)
    check_plan(plan(workload, Budget(pcost=1.0)), rows, best)
    bug(monkeypatch)
    result = plan(workload, Budget(pcost=1.0), cache=False)
    with pytest.raises(AssertionError):
        check_plan(result, rows, best)


@pytest.mark.parametrize("setting", SETTINGS)
def test_check_request_planted_bug_fails_in_each_setting(setting, monkeypatch):
    monkeypatch.setattr(requests, "planned_once", planned_once.__wrapped__)
    check_request_of("querysmasher", {}, "coupled", setting)
    _half_norm(monkeypatch)
    with pytest.raises(AssertionError):
        check_request_of("querysmasher", {}, "coupled", setting)
