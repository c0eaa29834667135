"""Default options of a plan, chosen by forecast, and their reason."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from engine.errors import PlanError
from engine.mechanisms import forecast, plan, registry
from engine.mechanisms.base import Forecast
from engine.mechanisms.registry import default_options, implied_options
from engine.privacy import Budget
from engine.workload import Attribute, Schema, Workload

WORKLOAD = Workload.all_ways(Schema([Attribute.of_size(name, 4) for name in "ab"]), (1, 2))


def default_centers(options: dict[str, Any], mechanism: str = "querysmasher") -> Any:
    return default_options(WORKLOAD, mechanism, options).options.get("centers")


@pytest.mark.parametrize(
    ("tuned_seconds", "uniform_seconds", "centers"),
    [(1.0, 0.01, "tuned"), (1.01, 0.01, "uniform"), (30.0, 10.0, "tuned"), (30.1, 10.0, "uniform")],
)
def test_default_options_follow_forecast(
    monkeypatch: pytest.MonkeyPatch, tuned_seconds: float, uniform_seconds: float, centers: str
) -> None:
    seconds = {"tuned": tuned_seconds, "uniform": uniform_seconds}

    def fake_forecast(workload: Workload, mechanism: str, **options: Any) -> Forecast:
        return Forecast(seconds=seconds[options["centers"]], memory=1e6, text="")

    monkeypatch.setattr(registry, "forecast", fake_forecast)
    defaults = default_options(WORKLOAD, "querysmasher", {"max_records": 10})
    assert defaults.options == {"max_records": 10, "centers": centers}
    assert defaults.reason.startswith(f"{centers} centers")
    assert defaults.expected is not None
    assert defaults.expected.seconds == seconds[centers]
    # tuned centers that take at most a second are chosen without naming the alternative
    assert ("in place of" in defaults.reason) == (tuned_seconds > 1.0)


def test_default_options_respect_memory_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    real = registry.forecast
    monkeypatch.setattr(
        registry, "forecast", lambda *args, **options: replace(real(*args, **options), memory=2e9)
    )
    assert default_centers({}) == "tuned"
    assert default_centers({"memory_limit": 1e9}) == "uniform"


def test_default_options_do_not_override_arguments() -> None:
    assert default_centers({}) == "tuned"
    assert default_centers({"centers": "uniform"}) == "uniform"
    assert default_centers({"centers": "tuned"}) == "tuned"
    assert default_centers({}, "identity") is None
    assert default_centers({"objective": "max"}) == "uniform"
    assert default_centers({"solver": "fourier"}) == "uniform"
    assert default_options(WORKLOAD, "querysmasher", {"centers": "uniform"}).reason == ""


def test_default_options_misspelled_argument_is_refused() -> None:
    with pytest.raises(PlanError, match="center; close names"):
        default_centers({"center": "tuned"})


def test_default_options_keep_implies_tuned_centers() -> None:
    assert default_centers({"keep": 0.0}) == "tuned"
    assert implied_options({"keep": None}) == {"keep": None}
    assert implied_options({"centers": "uniform", "keep": 0.1})["centers"] == "uniform"


def test_default_options_expected_equals_forecast() -> None:
    defaults = default_options(WORKLOAD, "querysmasher", {})
    assert defaults.expected == forecast(WORKLOAD, **defaults.options)


def test_default_options_empty_workload_is_accepted() -> None:
    defaults = default_options(Workload(WORKLOAD.schema), "querysmasher", {})
    assert defaults.options == {"centers": "tuned"}


def test_tuned_plan_leaves_time_after_uniform_searches(monkeypatch):
    time_limits = []
    monkeypatch.setattr(
        "engine.residuals.subworkload_solver.SubworkloadSolver.in_time",
        lambda self, subs, costs, limit: time_limits.append(limit),
    )
    schema = Schema([Attribute.of_size(name, 5) for name in "ab"])
    workload = Workload.all_ways(schema, (1, 2), "prefix")
    plan(workload, Budget(pcost=1.0), centers="tuned", time_limit=100.0, cache=False)
    # Searches with uniform centers come first and get at most a quarter of the time.
    assert 20.0 < time_limits[0] <= 25.0 < time_limits[-1] <= 100.0
