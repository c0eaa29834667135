"""Every check of plans can fail: on plans that release something else, and on planted bugs."""

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
from tests.mechanisms.checks import check_certificate, check_optimal, check_privacy, check_tight, check_variances
from tests.mechanisms.requests import SETTINGS, check_request_of, optimum_of, planned, planned_once, rows_of

pytestmark = pytest.mark.usefixtures("toy_is_known", "few_levels")


def with_blocks(made, blocks):
    """A plan that says what it said before but releases other blocks."""
    for name in ("rmse", "weighted_rmse", "max_variance", "pcost", "certificate"):
        getattr(made, name)
    liar = object.__new__(Plan)
    for i in range(len(made.workload.groups)):
        made.variances(i)
    liar.__dict__.update(made.__dict__)
    object.__setattr__(liar, "blocks", blocks)
    return liar


def changed(made, space, **changes):
    return with_blocks(made, {**made.blocks, space: dataclasses.replace(made.blocks[space], **changes)})


def less_noise(made):
    return changed(made, ("a", "b"), noise=made.blocks[("a", "b")].noise * 0.999)


def more_noise(made):
    return changed(made, ("b",), noise=made.blocks[("b",)].noise * 1.001)


def forgotten_block(made):
    return with_blocks(made, {s: b for s, b in made.blocks.items() if s != ("a",)})


def released_twice(made):
    twice = [
        (axes, dataclasses.replace(s, rows=np.concatenate([s.rows] * 2))) for axes, s in made.blocks[("a",)].factors
    ]
    return changed(made, ("a",), factors=tuple(twice))


def swapped_noise(made):
    a, b = made.blocks[("a",)], made.blocks[("b",)]
    return with_blocks(
        made,
        {**made.blocks, ("a",): dataclasses.replace(a, noise=b.noise), ("b",): dataclasses.replace(b, noise=a.noise)},
    )


def swapped_strategies(made):
    """Strategies kept by size: the two attributes of five cells get each other's."""
    a, b = made.blocks[("a",)], made.blocks[("b",)]
    return with_blocks(
        made,
        {
            **made.blocks,
            ("a",): dataclasses.replace(a, factors=b.factors),
            ("b",): dataclasses.replace(b, factors=a.factors),
        },
    )


def swapped_axes(made):
    turned = tuple((tuple(1 - axis for axis in axes), s) for axes, s in made.blocks[("a", "b")].factors)
    return changed(made, ("a", "b"), factors=turned)


def scaled_rows(made):
    (axes, s), *more = made.blocks[("a",)].factors
    return changed(made, ("a",), factors=((axes, dataclasses.replace(s, rows=s.rows * 1.01)), *more))


def check_claims(made, rows, best=None):
    """The checks that every plan of the suite passes."""
    explicit = oracles.explicit(made)
    check_privacy(made, explicit)
    check_tight(made, explicit)
    check_variances(made, explicit, rows)
    if best is not None:
        check_optimal(made, best)


LIES = [
    less_noise,
    more_noise,
    forgotten_block,
    released_twice,
    swapped_noise,
    swapped_strategies,
    swapped_axes,
    scaled_rows,
]


@pytest.mark.parametrize("lie", LIES)
def test_a_plan_that_releases_something_else_is_caught(lie):
    made, _ = planned("querysmasher", {}, "same_size")
    check_claims(made, rows_of("same_size"), optimum_of("same_size"))
    liar = lie(made)
    with pytest.raises(AssertionError):
        check_claims(liar, rows_of("same_size"))


def test_a_plan_for_other_weights_or_with_swapped_strategies_is_not_called_optimal():
    best = optimum_of("same_size")
    made, _ = planned("querysmasher", {}, "same_size")
    check_optimal(made, best)
    swapped = dataclasses.replace(made, blocks=swapped_strategies(made).blocks)  # consistent and private, but worse
    check_variances(swapped, oracles.explicit(swapped), rows_of("same_size"))
    with pytest.raises(AssertionError):
        check_optimal(swapped, best)
    boast = dataclasses.replace(made, bound=made.bound * 1.001)
    with pytest.raises(AssertionError):
        check_certificate(boast, best)


def _half_norm(monkeypatch):
    honest = Strategy.column_norm.func
    monkeypatch.setattr(Strategy, "column_norm", property(lambda self: honest(self) / 2))


def _mean_norm(monkeypatch):
    norm = property(lambda self: float(np.sqrt(np.mean(np.sum(self.rows**2, axis=0)))))
    monkeypatch.setattr(Strategy, "column_norm", norm)


def _one_norm_only(monkeypatch):
    """The cost of the costliest block in place of the sum over blocks."""
    dearest = lambda blocks, records: max(b.pcost(records) for b in blocks.values())  # noqa: E731
    for module in ("engine.plans.blocks", "engine.plans.replace_one"):
        monkeypatch.setattr(sys.modules[module], "total_pcost", dearest)


def _wrong_sums(monkeypatch):
    honest = Intervals.dot
    monkeypatch.setattr(Intervals, "dot", lambda self, sizes, table: honest(self, sizes, table) * 1.001)


def _wrong_quadratic(monkeypatch):
    honest = Intervals.quadratic
    monkeypatch.setattr(Intervals, "quadratic", lambda self, sizes, matrix: honest(self, sizes, matrix)[::-1])


def _wrong_gram(monkeypatch):
    honest = Intervals.gram
    monkeypatch.setattr(Intervals, "gram", lambda self, sizes, weights=None: honest(self, sizes)[::-1, ::-1] * 2)


def _wrong_pinv(monkeypatch):
    honest = Strategy.__init__
    monkeypatch.setattr(Strategy, "__init__", lambda self, **k: honest(self, **(k | {"pinv": k["pinv"] * 0.999})))


def _rows_in_wrong_order(monkeypatch):
    honest = Family.chunks
    monkeypatch.setattr(
        Family, "chunks", lambda self, sizes: ((start, rows[::-1]) for start, rows in honest(self, sizes))
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
def test_planted_bugs_are_caught(bug, monkeypatch):
    workload = Workload(shapes.numeric(4, 4)).add("a", "prefix").add("b", Width(2)).add(("b", "a"), "affine")
    rows, best = oracles.workload_rows(workload), oracles.class_optimum(workload, 1.0)
    check_claims(plan(workload, Budget(pcost=1.0)), rows, best)
    bug(monkeypatch)
    made = plan(workload, Budget(pcost=1.0), cache=False)
    with pytest.raises(AssertionError):
        check_claims(made, rows, best)


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_planted_bug_is_caught_in_every_setting(setting, monkeypatch):
    monkeypatch.setattr(requests, "planned_once", planned_once.__wrapped__)
    check_request_of("querysmasher", {}, "coupled", setting)
    _half_norm(monkeypatch)
    with pytest.raises(AssertionError):
        check_request_of("querysmasher", {}, "coupled", setting)
