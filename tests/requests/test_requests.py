"""Random planning requests, and requests that once failed."""

from __future__ import annotations

import numpy as np
import pytest

from engine.errors import EngineError, PlanError
from engine.mechanisms import load_plan, plan
from engine.privacy import Budget
from engine.workload import Attribute, Custom, Schema, Workload
from tests.requests import campaign

ONE = Schema([Attribute.of_size("a", 6)])
THREE = Schema([Attribute.of_size("a", 3), Attribute.of_size("b", 3), Attribute.of_size("c", 2)])
ROWS = np.array([[1.0, 3.0, 3.0, -3.0, -1.0, 3.0], [-2.0, 2.0, -3.0, 1.0, -1.0, 1.0]])


def test_forty_random_requests_do_not_fail() -> None:
    outcomes = list(campaign.requests(40, seed=100))
    assert [o for o in outcomes if o.failure] == []
    assert sum(not o.refusal for o in outcomes) > 10


def test_campaign_plan_changed_by_loading_is_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    other_plan = plan(Workload(ONE).add(["a"], "prefix"), Budget(1.0))
    monkeypatch.setattr(campaign, "load_plan", lambda text: other_plan)
    outcomes = list(campaign.requests(6, seed=100))
    planned = [o for o in outcomes if not o.refusal]
    assert planned
    assert all("the same file" in o.failure for o in planned)


def test_crash_in_campaign_is_reported_as_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "load_plan", lambda text: 1 / 0)
    assert any("ZeroDivisionError" in o.failure for o in campaign.requests(6, seed=100))


def test_command_prints_requests_and_failures(capsys: pytest.CaptureFixture[str]) -> None:
    assert campaign.main(["--count", "3", "--seed", "7"]) == 0
    assert "3 requests: 0 failures" in capsys.readouterr().out


def test_tuned_plan_with_exact_total_is_within_budget() -> None:
    schema = Schema([Attribute.of_size("a", 6)], invariants=[([], [40])])
    exact_plan = plan(
        Workload(schema).add(["a"], Custom(matrix=ROWS)),
        Budget(1.0),
        centers="tuned",
        solver="fourier",
    )
    assert exact_plan.pcost <= 1.0


@pytest.mark.parametrize("centers", ["uniform", "tuned"])
@pytest.mark.parametrize("objective", ["max", "lp"])
def test_plan_group_without_weighted_query_is_ignored(objective: str, centers: str) -> None:
    workload = Workload(ONE).add(["a"], Custom(matrix=ROWS))
    with_zero_weight = workload.add(["a"], Custom(matrix=ROWS[:1]), query_weights=[0.0])
    options = {"cache": False, "objective": objective, "centers": centers}
    expected = plan(workload, Budget(1.0), **options)
    result = plan(with_zero_weight, Budget(1.0), **options)
    assert result.totals[0] == pytest.approx(expected.totals[0], rel=1e-3)
    assert load_plan(result.to_json()).to_json() == result.to_json()


@pytest.mark.parametrize("mechanism", ["gaussian", "identity", "wavelet"])
def test_bound_with_zero_weight_rows_is_positive(mechanism: str) -> None:
    workload = Workload(THREE).add((), "total").add(["a", "c"], "marginal")
    workload = workload.add(["a", "b"], Custom(matrix=np.full((1, 9), 2e3)), query_weights=[0.0])
    assert plan(workload, Budget(1.0), mechanism).certificate.lower_bound > 0.0


def test_bound_of_rows_with_mean_zero_is_positive() -> None:
    rows = 1e-3 * np.outer([1.0, -1.0, 0.0], [1.0, 0.0, -1.0]).reshape(1, 9)
    workload = Workload(THREE).add(["a", "b"], Custom(matrix=rows)).add(["c"], "prefix")
    assert plan(workload, Budget(1.0), "identity").certificate.lower_bound > 0.0


def test_global_bound_without_weights_is_zero() -> None:
    workload = Workload(ONE).add(["a"], "prefix")
    weighted_plan = plan(workload, Budget(1.0))
    unweighted_plan = weighted_plan.with_groups(workload.groups)
    assert unweighted_plan.certificate.global_bound == 0.0


def test_bound_with_one_cell_attributes_is_positive() -> None:
    schema = Schema([Attribute.of_size("a", 1), Attribute.of_size("b", 1)])
    workload = Workload.all_ways(schema, (1, 2), "prefix").add((), "total")
    assert plan(workload, Budget(1.0), "gaussian").certificate.lower_bound > 0.0


def test_total_groups_have_separate_weights() -> None:
    workload = Workload(ONE).add((), "total", query_weights=[1e6]).add((), "total")
    candidate = plan(workload, Budget(1.0))
    assert candidate.certificate.lower_bound <= candidate.weighted_rmse * (1.0 + 1e-9)
    assert len(workload.group_classes) == 2


def test_plan_of_exact_totals_alone_is_refused() -> None:
    schema = Schema(
        [Attribute.of_size("a", 2), Attribute.of_size("b", 2)],
        invariants=[(["a", "b"], [1, 2, 3, 4])],
    )
    with pytest.raises(PlanError, match="exact"):
        plan(Workload(schema).add(["a", "b"], "prefix"), Budget(1.0), objective="max")


def test_lp_plan_high_power_tiny_rows_is_finite() -> None:
    workload = Workload(ONE).add(["a"], Custom(matrix=1e-6 * ROWS)).add(["a"], "prefix")
    candidate = plan(workload, Budget(0.02), objective="lp", power=100.0, cache=False)
    assert np.isfinite(candidate.achieved)


@pytest.mark.parametrize("objective", ["max", "lp"])
def test_plan_of_extreme_scales_is_finite_or_refused(objective: str) -> None:
    workload = Workload(ONE).add(["a"], Custom(matrix=1e-12 * ROWS), weight=1e-6)
    workload = workload.add(
        ["a"], Custom(matrix=1e12 * ROWS), weight=1e6, query_weights=[1e6, 1e-6]
    )
    try:
        candidate = plan(workload, Budget(1.0), objective=objective, cache=False, time_limit=1e-9)
    except EngineError:
        return
    assert np.isfinite(candidate.achieved)
