"""Fitness for use: shares of queries within a tolerance, tolerances, and the budgets that targets need."""

import math

import numpy as np
import pytest

from engine import Attribute, Budget, Schema, Workload, budget_for, plan, share_within, tolerance_for
from engine.errors import PlanError
from engine.insight import targets
from tests import shapes

ONE = Budget(pcost=1.0)
SHAPES = ("nested", "mixed_three", "query_weighted", "zero_weight_covered", "duplicate_groups", "total_only")


def errors_of(made, per_group=None):
    """Standard errors of all queries, as shares of one number a group."""
    per_group = per_group or [1.0] * len(made.workload.groups)
    return np.concatenate([np.sqrt(made.variances(i)) / t for i, t in enumerate(per_group)])


@pytest.mark.parametrize("shape", SHAPES)
def test_shares_and_tolerances_are_those_of_all_queries(shape):
    made = plan(shapes.SHAPES[shape](), ONE)
    errors = np.sort(errors_of(made))
    for share in (1e-9, 0.1, 0.5, 0.9, 0.95, 1.0):
        expected = errors[math.ceil(share * len(errors)) - 1]
        found = tolerance_for(made, share)
        assert found == pytest.approx(expected, rel=1e-10)
        assert share_within(made, found * (1 + 1e-12)) >= share
    for tolerance in (errors[0] / 2, np.median(errors) * 1.001, errors[-1] * 2):
        assert share_within(made, float(tolerance)) == pytest.approx(np.mean(errors <= tolerance), abs=1e-12)
    assert tolerance_for(made) == pytest.approx(math.sqrt(made.max_variance), rel=1e-10)
    several = [1.0 + i for i in range(len(made.workload.groups))]
    assert share_within(made, several) == pytest.approx(np.mean(errors_of(made, several) <= 1), abs=1e-12)


def test_narrowing_by_histograms_finds_the_same(monkeypatch):
    made = plan(Workload.all_ways(shapes.numeric(9, 8, 7), (1, 2, 3), "prefix"), ONE)
    shares = (0.01, 0.3, 0.5, 0.77, 0.95, 1.0)
    expected = [tolerance_for(made, s) for s in shares]
    errors = np.sort(errors_of(made))
    monkeypatch.setattr(targets, "KEPT", 3)
    monkeypatch.setattr(targets, "BINS", 16)
    for share, value in zip(shares, expected, strict=True):
        assert tolerance_for(made, share) == pytest.approx(value, rel=1e-10)
        assert value == pytest.approx(errors[math.ceil(share * len(errors)) - 1], rel=1e-10)


def test_millions_of_queries_are_counted_exactly():
    schema = Schema([Attribute.of_size(c, n) for c, n in zip("abcd", (60, 50, 40, 30), strict=True)])
    made = plan(Workload(schema).add(("a", "b", "c", "d"), "prefix"), ONE)
    tolerance = tolerance_for(made, 0.95)
    within = 0
    for start in range(0, 3_600_000, 1_000_000):
        stop = min(start + 1_000_000, 3_600_000)
        within += int(np.sum(made.variances(0, start, stop) <= tolerance**2 * (1 + 1e-11)))
    assert within / 3_600_000 == pytest.approx(0.95, abs=1e-6)
    assert share_within(made, tolerance * (1 + 1e-11)) == pytest.approx(within / 3_600_000, abs=1e-12)


@pytest.mark.parametrize("share", [1.0, 0.8])
@pytest.mark.parametrize("mechanism", ["querysmasher", "residualplanner+", "wff"])
def test_budgets_keep_the_targets_and_hardly_more(mechanism, share):
    workload = Workload.all_ways(shapes.numeric(7, 5), (1, 2), "prefix")
    several = [0.3, 1.5, 0.7]
    for given in (0.8, several):
        budget = budget_for(workload, given, share, mechanism)
        assert share_within(plan(workload, budget, mechanism), given) >= share
        less = Budget(pcost=budget.pcost * (1 - 1e-6))
        assert share_within(plan(workload, less, mechanism), given) < share


def test_a_budget_is_one_division_away():
    workload = shapes.mixed_three()
    made = plan(workload, ONE)
    assert budget_for(workload, 0.25).pcost == pytest.approx(made.max_variance / 0.25**2, rel=1e-6)
    assert budget_for(workload, 0.5, 0.6).pcost == pytest.approx(tolerance_for(made, 0.6) ** 2 / 0.5**2, rel=1e-6)


def test_a_shape_for_the_targets_needs_less():
    workload = Workload(shapes.numeric(8, 4)).add("a", "prefix").add(("a", "b"), "marginal").add("b", "range")
    several = [0.5, 3.0, 1.0]
    scaled, shaped = (budget_for(workload, several, fit=fit) for fit in ("scale", "shape"))
    assert shaped.pcost < 0.9 * scaled.pcost
    made = plan(workload, shaped, objective="max", targets=several)
    assert share_within(made, several) == 1.0
    assert made.achieved == pytest.approx(1.0, rel=1e-6)
    # no shares and strategies of the class need much less: the certificate says so
    assert made.certificate.lower_bound > 0.99


def test_queries_that_nobody_measures_cannot_be_promised():
    workload = Workload(shapes.numeric(4, 3)).add("a", "prefix").add("b", "marginal", weight=0.0)
    made = plan(workload, ONE)
    assert tolerance_for(made) == math.inf
    assert share_within(made, 1e9) == pytest.approx(4 / 7)
    assert math.isfinite(tolerance_for(made, 0.5))
    with pytest.raises(PlanError, match="weight zero"):
        budget_for(workload, 1.0)
    assert share_within(plan(workload, budget_for(workload, 1.0, 0.5)), 1.0) >= 0.5


@pytest.mark.parametrize(
    ("asked", "word"),
    [
        ({"targets": 0.0}, "targets"),
        ({"targets": -1}, "targets"),
        ({"targets": "low"}, "targets"),
        ({"targets": [1.0]}, "targets"),
        ({"targets": math.nan}, "targets"),
        ({"share": 0.0}, "share"),
        ({"share": 1.5}, "share"),
        ({"share": True}, "share"),
        ({"share": "most"}, "share"),
        ({"fit": "loose"}, "fit"),
        ({"fit": "shape", "objective": "sum"}, "objective"),
    ],
    ids=str,
)
def test_requests_that_make_no_sense(asked, word):
    workload = shapes.mixed_three()
    with pytest.raises(PlanError, match=word):
        budget_for(workload, **({"targets": 1.0} | asked))


def test_tolerances_that_make_no_sense():
    made = plan(shapes.total_only(), ONE)
    for given in (0, -1.0, math.nan, "x", [1.0, 2.0]):
        with pytest.raises(PlanError, match="tolerance"):
            share_within(made, given)
    for given in (0, 1.01, None):
        with pytest.raises(PlanError, match="share"):
            tolerance_for(made, given)


@pytest.mark.parametrize(
    ("mechanism", "options", "family"),
    [
        ("querysmasher", {"centers": "tuned"}, "affine"),
        ("identity", {}, "marginal"),
        ("hdmm", {}, "marginal"),
        ("datacube", {}, "marginal"),
    ],
)
def test_budgets_for_plans_that_do_not_measure_space_by_space(mechanism, options, family):
    schema = Schema([Attribute.of_size("a", 4), Attribute.of_size("b", 3)])
    workload = Workload(schema).add(("a", "b"), family).add("a", "prefix" if family == "affine" else "marginal")
    made = plan(workload, budget_for(workload, 0.5, mechanism=mechanism, **options), mechanism, **options)
    assert bool(made.split.unions) == (mechanism == "querysmasher")
    assert 0.5 * (1.0 - 1e-6) <= math.sqrt(made.max_variance) <= 0.5
