"""Lower bounds for all mechanisms: values, figures and texts of certificates."""

from __future__ import annotations

import math
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
    result = plan(WORKLOAD, Budget(pcost=1.0), "identity")
    above = float(analysis.bound_text(result, bound).split("at most ")[1].split("%")[0])
    assert 0 <= above / 100 - (result.weighted_rmse / bound.rmse(result) - 1) < 0.001
    large = Schema([Attribute.of_size(c, 25) for c in "abc"])
    workload = Workload.all_ways(large, (1, 2))
    result = plan(workload, Budget(pcost=1.0))
    assert 0 < analysis.mechanism_bound(workload).rmse(result) < result.weighted_rmse


def test_mechanism_bound_of_too_many_cells_is_refused() -> None:
    with pytest.raises(LimitExceeded):
        analysis.mechanism_bound(
            Workload(Schema([Attribute.of_size("x", 5000)])).add("x", "circular")
        )


def test_plan_figures_show_plan_numbers() -> None:
    result = plan(WORKLOAD, Budget(pcost=1.0))
    picture = plan_figures.breakdown_picture(result, 5, 3)
    assert picture.table["variance (counts²)"].sum() == pytest.approx(result.variances(5)[3])
    assert sum(picture.figure.data[0].x) == pytest.approx(1.0)
    variance = float(result.variances(5)[3])
    curve = plan_figures.interval_picture(result, variance)
    for pcost, half in zip(
        curve.table["pcost"], curve.table["95% interval ± (counts)"], strict=True
    ):
        again = plan(WORKLOAD, Budget(pcost=pcost))
        # 1.959964 is the 97.5% quantile of the standard normal distribution
        assert half == pytest.approx(1.959964 * math.sqrt(again.variances(5)[3]), rel=1e-5)


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
    result = plan(
        Workload(Schema([Attribute.of_size("x", 31)])).add("x", "marginal"),
        Budget(pcost=1.0),
        "identity",
    )
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
    again = plan(workload, Budget(pcost=9.0))
    first = result.certificate.global_gap
    with mock.patch("engine.bounds.lower_bounds.global_bound", side_effect=AssertionError):
        assert again.certificate.global_gap == pytest.approx(first, rel=1e-6)


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
    picture = plan_figures.interval_picture(
        result, 4.0, lambda budget: f"eps {budget.epsilon(1e-6):.4g}"
    )
    assert "pcost" in picture.note
    # The text gives the larger budget instead of the factor 4, because a pcost that is 4 times as
    # large does not make epsilon 4 times as large.
    assert f"eps {Budget(pcost=4.0).epsilon(1e-6):.4g}" in picture.alt
    assert "times" not in picture.alt
