"""Lower bounds for all mechanisms: values, figures and texts of certificates."""

from __future__ import annotations

import math
import re
from unittest import mock

import pytest

from engine import analysis
from engine.analysis import certificates as texts
from engine.bounds.lower_bounds import exact_bound
from engine.errors import LimitExceeded
from engine.figures import plans as plan_figures
from engine.mechanisms import plan
from engine.privacy import Budget
from engine.workload import Attribute, Schema, Workload
from tests.analysis.brute_force import WORKLOAD


def test_mechanism_bound_is_below_every_plan() -> None:
    bound = analysis.mechanism_bound(WORKLOAD)
    assert bound.square == exact_bound(WORKLOAD)
    for pcost in (0.5, 4.0):
        best = plan(WORKLOAD, Budget(pcost=pcost), "optimum")
        assert bound.rmse(best) <= best.weighted_rmse <= bound.rmse(best) * 1.001
        assert "at most 0.01% above" in analysis.bound_text(best, bound)
    identity = plan(WORKLOAD, Budget(pcost=1.0), "identity")
    (stated_percent,) = re.findall(r"at most (\S+)% above", analysis.bound_text(identity, bound))
    gap = identity.weighted_rmse / bound.rmse(identity) - 1
    # the stated percentage is rounded up
    assert 0 <= float(stated_percent) / 100 - gap < 0.001
    large = Workload.all_ways(Schema([Attribute.of_size(name, 25) for name in "abc"]), (1, 2))
    large_plan = plan(large, Budget(pcost=1.0))
    assert 0 < analysis.mechanism_bound(large).rmse(large_plan) < large_plan.weighted_rmse


def test_mechanism_bound_of_too_many_cells_is_refused() -> None:
    workload = Workload(Schema([Attribute.of_size("x", 5000)])).add("x", "circular")
    with pytest.raises(LimitExceeded):
        analysis.mechanism_bound(workload)


def test_plan_figures_show_plan_numbers() -> None:
    result = plan(WORKLOAD, Budget(pcost=1.0))
    group, query = 5, 3
    variance = float(result.variances(group)[query])
    picture = plan_figures.breakdown_picture(result, group, query)
    assert picture.table["variance (counts²)"].sum() == pytest.approx(variance)
    shares = picture.figure.data[0].x
    assert sum(shares) == pytest.approx(1.0)
    curve = plan_figures.interval_picture(result, variance).table
    for pcost, half_width in zip(curve["pcost"], curve["95% interval ± (counts)"], strict=True):
        planned = plan(WORKLOAD, Budget(pcost=pcost))
        # 1.959964 is the 97.5% quantile of the standard normal distribution
        expected = 1.959964 * math.sqrt(planned.variances(group)[query])
        assert half_width == pytest.approx(expected, rel=1e-5)


def test_distance_picture_draws_gaps_to_bounds() -> None:
    result = plan(WORKLOAD, Budget(pcost=2.0), "identity")
    bound = analysis.mechanism_bound(WORKLOAD)
    picture = plan_figures.distance_picture(result, bound)
    limits = [result.certificate.lower_bound, bound.rmse(result)]
    gaps = [result.weighted_rmse / limit - 1.0 for limit in limits]
    assert picture.table["gap"].tolist() == pytest.approx(gaps)
    assert list(picture.figure.data[0].x) == pytest.approx(gaps)
    nothing = texts.MechanismBound(square=0.0, how="none")
    assert "any matrix mechanism" not in plan_figures.distance_picture(result, nothing).alt


def test_claim_text_starts_with_global_bound() -> None:
    result = plan(WORKLOAD, Budget(pcost=2.0), "identity")
    certificate = result.certificate
    bound = texts.mechanism_bound(WORKLOAD)
    assert certificate.global_bound == pytest.approx(bound.rmse(result))
    assert certificate.global_gap == pytest.approx(result.weighted_rmse / bound.rmse(result) - 1)
    assert certificate.global_gap > 0.01
    words = texts.claim_text(result)
    assert words.startswith(texts.bound_text(result, bound))

    assert "any matrix mechanism" in words
    assert "biased" in words.lower()
    assert certificate.statement in words


def test_claim_text_without_global_bound_gives_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.bounds.lower_bounds.MAX_BOUND_CELLS", 30)
    workload = Workload(Schema([Attribute.of_size("x", 31)])).add("x", "marginal")
    result = plan(workload, Budget(pcost=1.0), "identity")
    assert result.certificate.global_gap == math.inf
    assert result.certificate.statement in texts.claim_text(result)
    assert "31 cells" in texts.claim_text(result)


def test_global_bound_is_lazy_and_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.bounds.lower_bounds.small_domain", lambda workload: False)
    workload = Workload.all_ways(Schema([Attribute.of_size(c, 5) for c in "abc"]), (1, 2))
    result = plan(workload, Budget(pcost=1.0))
    with mock.patch("engine.plans.plan.best_bound", side_effect=AssertionError):
        assert result.certificate.gap < 1e-3
        assert "global" not in repr(result.certificate)
    gap = result.certificate.global_gap
    # The gap does not depend on the budget, so the bound is computed once for all budgets.
    other_budget = plan(workload, Budget(pcost=9.0))
    with mock.patch("engine.bounds.lower_bounds.global_bound", side_effect=AssertionError):
        assert other_budget.certificate.global_gap == pytest.approx(gap, rel=1e-6)


def test_bound_text_for_replace_one_claims_nothing() -> None:
    result = plan(WORKLOAD, Budget(pcost=2.0, neighbours="replace_one"))
    assert result.certificate.global_gap == math.inf
    assert "at most" not in texts.bound_text(result, texts.mechanism_bound(WORKLOAD))


def test_global_bound_holds_for_several_rows_per_person() -> None:
    result = plan(WORKLOAD, Budget(pcost=9.0, rows_per_person=3), "optimum")
    assert result.certificate.global_gap == pytest.approx(0.0, abs=1e-3)
    assert result.certificate.global_bound == pytest.approx(
        texts.mechanism_bound(WORKLOAD).rmse(result)
    )


def test_interval_picture_names_unit_of_factor() -> None:
    result = plan(WORKLOAD, Budget(pcost=1.0))

    def epsilon_text(budget: Budget) -> str:
        return f"eps {budget.epsilon(delta=1e-6):.4g}"

    variance = 4.0
    picture = plan_figures.interval_picture(result, variance, epsilon_text)
    assert "pcost" in picture.note
    # The text gives the larger budget instead of the factor 4, because a pcost that is 4 times as
    # large does not make epsilon 4 times as large.
    assert epsilon_text(Budget(pcost=4.0)) in picture.alt
    assert "times" not in picture.alt
