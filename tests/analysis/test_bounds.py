"""Lower bounds for all mechanisms: values, figures and texts of certificates."""

from __future__ import annotations

import math
from unittest import mock

import pytest

from engine import analysis
from engine.analysis import error_targets as fitness
from engine.bounds.lower_bounds import exact_bound
from engine.errors import LimitExceeded
from engine.figures import plans as plan_figures
from engine.mechanisms import plan
from engine.privacy import Budget
from engine.workload import Attribute, Schema, Workload
from tests.analysis.given import WORKLOAD


def test_the_bound_of_all_mechanisms_is_below_every_plan() -> None:
    bound = analysis.mechanism_bound(WORKLOAD)
    assert bound.square == exact_bound(WORKLOAD)
    for pcost in (0.5, 4.0):
        best = plan(WORKLOAD, Budget(pcost=pcost), "optimum")
        assert bound.rmse(best) <= best.weighted_rmse <= bound.rmse(best) * 1.001
        assert "at most 0.1% above" in analysis.bound_text(best, bound)
    made = plan(WORKLOAD, Budget(pcost=1.0), "identity")
    above = float(analysis.bound_text(made, bound).split("at most ")[1].split("%")[0])
    assert 0 <= above / 100 - (made.weighted_rmse / bound.rmse(made) - 1) < 0.001
    large = Schema([Attribute.of_size(c, 25) for c in "abc"])
    asked = Workload.all_ways(large, (1, 2))
    made = plan(asked, Budget(pcost=1.0))
    assert 0 < analysis.mechanism_bound(asked).rmse(made) < made.weighted_rmse
    with pytest.raises(LimitExceeded):
        analysis.mechanism_bound(Workload(Schema([Attribute.of_size("x", 5000)])).add("x", "prefix"))


def test_pictures_show_the_same_numbers() -> None:
    made = plan(WORKLOAD, Budget(pcost=1.0))
    picture = plan_figures.breakdown_picture(made, 5, 3)
    assert picture.table["variance (counts²)"].sum() == pytest.approx(made.variances(5)[3])
    assert sum(picture.figure.data[0].x) == pytest.approx(1.0)
    variance = float(made.variances(5)[3])
    curve = plan_figures.interval_picture(made, variance)
    for pcost, half in zip(curve.table["pcost"], curve.table["95% interval ± (counts)"], strict=True):
        again = plan(WORKLOAD, Budget(pcost=pcost))
        assert half == pytest.approx(1.959964 * math.sqrt(again.variances(5)[3]), rel=1e-5)
    bound = analysis.mechanism_bound(WORKLOAD)
    sizes = plan_figures.distance_picture(made, bound).table["weighted RMSE (counts)"].tolist()
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == made.weighted_rmse


def test_a_certificate_says_first_how_far_any_mechanism_could_be_below() -> None:
    made = plan(WORKLOAD, Budget(pcost=2.0), "identity")
    found = made.certificate
    bound = fitness.mechanism_bound(WORKLOAD)
    assert found.global_bound == pytest.approx(bound.rmse(made))
    assert found.global_gap == pytest.approx(made.weighted_rmse / bound.rmse(made) - 1)
    assert found.global_gap > 0.01
    words = fitness.claim_text(made)
    assert words.startswith(fitness.bound_text(made, bound))
    assert "what any matrix mechanism can reach, whatever it measures" in words
    assert "Methods that allow bias can go below that where counts are smaller than the noise." in words
    assert found.statement in words


def test_a_certificate_without_a_bound_for_all_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.bounds.lower_bounds.MOST_CELLS", 30)
    made = plan(Workload(Schema([Attribute.of_size("x", 31)])).add("x", "marginal"), Budget(pcost=1.0), "identity")
    assert made.certificate.global_gap == math.inf
    assert made.certificate.statement in fitness.claim_text(made)
    assert "31 cells" in fitness.claim_text(made)


def test_a_bound_for_all_is_searched_when_it_is_asked_for_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.bounds.lower_bounds.small_domain", lambda asked: False)  # as where cells are many
    asked = Workload.all_ways(Schema([Attribute.of_size(c, 5) for c in "abc"]), (1, 2))
    made = plan(asked, Budget(pcost=1.0))
    with mock.patch("engine.plans.plan.best_bound", side_effect=AssertionError):
        assert made.certificate.gap < 1e-3
        assert "global" not in repr(made.certificate)
    again = plan(asked, Budget(pcost=9.0))
    first = made.certificate.global_gap
    with mock.patch("engine.bounds.lower_bounds.global_bound", side_effect=AssertionError):
        assert again.certificate.global_gap == pytest.approx(first, rel=1e-6)


def test_no_bound_is_claimed_where_neighbours_replace_a_record() -> None:
    made = plan(WORKLOAD, Budget(pcost=2.0, neighbours="replace_one"))
    assert made.certificate.global_gap == math.inf
    assert "at most" not in fitness.bound_text(made, fitness.mechanism_bound(WORKLOAD))
    three = plan(WORKLOAD, Budget(pcost=9.0, rows_per_person=3), "optimum")
    assert three.certificate.global_gap == pytest.approx(0.0, abs=1e-3)
    assert three.certificate.global_bound == pytest.approx(fitness.mechanism_bound(WORKLOAD).rmse(three))


def test_interval_picture_names_unit_of_factor() -> None:
    made = plan(WORKLOAD, Budget(pcost=1.0))
    picture = plan_figures.interval_picture(made, 4.0, lambda budget: f"eps {budget.epsilon(1e-6):.4g}")
    assert "pcost" in picture.note
    # four times the pcost is not four times the epsilon on screen
    assert f"eps {Budget(pcost=4.0).epsilon(1e-6):.4g}" in picture.alt
    assert "times" not in picture.alt
