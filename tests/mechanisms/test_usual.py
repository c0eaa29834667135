"""What a plan is made with where nobody said: by the forecast, and told in words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from engine.errors import PlanError
from engine.mechanisms import forecast
from engine.mechanisms import registry as known
from engine.mechanisms import registry as usual
from engine.mechanisms.base import Forecast
from engine.mechanisms.registry import default_options, implied_options
from engine.workload import Attribute, Schema, Workload

ASKED = Workload.all_ways(Schema([Attribute.of_size(name, 4) for name in "ab"]), (1, 2))


def taken(options: dict[str, Any], mechanism: str = "querysmasher") -> Any:
    return default_options(ASKED, mechanism, options).options.get("centers")


@pytest.mark.parametrize(
    ("tuned", "uniform", "centers"),
    [(1.0, 0.01, "tuned"), (1.01, 0.01, "uniform"), (30.0, 10.0, "tuned"), (30.1, 10.0, "uniform")],
)
def test_the_forecast_decides(monkeypatch: pytest.MonkeyPatch, tuned: float, uniform: float, centers: str) -> None:
    seconds = {"tuned": tuned, "uniform": uniform}

    def told(workload: Workload, mechanism: str, **options: Any) -> Forecast:
        return Forecast(seconds=seconds[options["centers"]], memory=1e6, text="")

    monkeypatch.setattr(usual, "forecast", told)
    found = default_options(ASKED, "querysmasher", {"max_records": 10})
    assert found.options == {"max_records": 10, "centers": centers}
    assert found.reason.startswith(f"{centers} centers")
    assert found.expected is not None
    assert found.expected.seconds == seconds[centers]
    assert ("in place of" in found.reason) == (tuned > 1.0)


def test_tuning_beyond_the_memory_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    real = known.forecast
    monkeypatch.setattr(usual, "forecast", lambda *given, **options: replace(real(*given, **options), memory=2e9))
    assert taken({}) == "tuned"
    assert taken({"memory_limit": 1e9}) == "uniform"


def test_what_was_said_stays_as_it_was_said() -> None:
    assert taken({}) == "tuned"
    assert [taken({"centers": centers}) for centers in ("uniform", "tuned")] == ["uniform", "tuned"]
    assert taken({}, "identity") is None
    assert [taken({"objective": "max"}), taken({"solver": "fourier"})] == ["uniform", "uniform"]
    assert default_options(ASKED, "querysmasher", {"centers": "uniform"}).reason == ""
    with pytest.raises(PlanError, match="center; close names"):
        taken({"center": "tuned"})


def test_to_keep_groups_is_to_tune() -> None:
    assert taken({"keep": 0.0}) == "tuned"
    assert implied_options({"keep": None}) == {"keep": None}
    assert implied_options({"centers": "uniform", "keep": 0.1})["centers"] == "uniform"


def test_the_forecast_is_that_of_the_plan() -> None:
    found = default_options(ASKED, "querysmasher", {})
    assert found.expected == forecast(ASKED, **found.options)


def test_a_workload_that_asks_nothing_is_left_to_planning() -> None:
    assert default_options(Workload(ASKED.schema), "querysmasher", {}).options["centers"] in ("uniform", "tuned")
