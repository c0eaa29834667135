"""Accuracy panel of the Workload page: budget slider, errors and slow plans."""

from __future__ import annotations

import json

import pytest

from engine import analysis
from engine._format import format_number
from engine.mechanisms import plan
from engine.privacy import Budget
from engine.workload import Attribute, Schema, Workload
from pages.parts.jobs import job_queue, plans
from pages.parts.shell import permalink
from pages.parts.shell.history import RequestState
from tests.app.session import UNIFORM, Session, demo_plan, demo_schema

CPS = Workload.all_ways(demo_schema("cps"), (1, 2))


def open_panel(budget: Budget, **fields: object) -> Session:
    state = RequestState(workload=CPS, budget=budget, options=UNIFORM)
    return Session(plan=permalink.packed(state)).go("workload", **fields)


def test_panel_shows_errors_of_the_plan() -> None:
    session, reference = open_panel(Budget(pcost=1.0)), demo_plan()
    assert session.metrics()["Typical error"] == format_number(reference.rmse)
    assert session.metrics()["Largest error"] == format_number(analysis.worst_error(reference))
    grid, worst = session.app.dataframe[0].value, session.app.dataframe[-1].value
    # Both plans are within 1e-6 of the optimum, but not equal: their searches can start from
    # different cached results.
    errors = reference.by_group()["rmse"]
    assert grid["typical error"].tolist() == pytest.approx(errors.tolist(), rel=2e-6)
    assert worst["typical error"].iloc[0] == pytest.approx(errors.max(), rel=2e-6)


def test_panel_shows_typical_errors_without_plus_minus() -> None:
    session = open_panel(Budget(pcost=1.0))
    column = json.loads(session.app.dataframe[-1].proto.columns)["typical error"]
    assert column["label"] == "Typical error"
    assert "Tables by typical error: 5 of" in session.text()
    assert "±" not in column["type_config"]["format"]


@pytest.mark.parametrize(
    ("budget", "unit", "step", "expected"),
    [
        (Budget.approx(1.0, 1e-9), "epsilon, delta", 2.0, Budget.approx(2.0, 1e-9)),
        (Budget(pcost=1.0, rows_per_person=3), "pcost", 5.0, Budget(5.0, rows_per_person=3)),
        (Budget.pure(1.0), "pure epsilon", 0.5, Budget.pure(0.5)),
    ],
)
def test_budget_slider_sets_budget_until_undo(
    budget: Budget, unit: str, step: float, expected: Budget
) -> None:
    session = open_panel(budget, budget_unit=unit)
    session.run(session.app.select_slider(key="budget_slider").set_value(step))
    assert session.studio.budget == expected
    assert session.app.select_slider(key="budget_slider").value == step
    assert session.press("undo").studio.budget == budget


def test_slider_states_success_rate_of_attacker() -> None:
    session = open_panel(Budget(pcost=1.0))
    for _ in range(2):
        assert "guesses right at most 69.2% of the time (chance: 50%)." in session.text()
        assert Budget(pcost=1.0).promise in session.text()
        session.go("preview")
    exact = Schema([Attribute.of_size("age", 2)], invariants=[("age", [3, 4])])
    state = RequestState(workload=Workload(exact).add("age"), budget=Budget(pcost=1.0))
    session = Session(plan=permalink.packed(state)).go("workload")
    # twice the sensitivity: the attacker tells two contributions apart
    assert f"at most {Budget(pcost=4.0).guess:g}% of the time" in session.text()
    assert "Published totals are not protected" in session.text()


def test_slider_includes_budget_between_its_steps() -> None:
    session = open_panel(Budget(pcost=1.0))
    slider = session.app.select_slider(key="budget_slider")
    assert "ε 4.887" in [option.replace("\\", "") for option in slider.options]
    session.set(budget_unit="pcost")
    key = f"budget_pcost_{session.app.session_state['history'].version}"
    session.set(**{key: 0.3})
    assert session.app.select_slider(key="budget_slider").value == 0.3
    session.run(session.app.select_slider(key="budget_slider").set_value(2.0))
    version = session.app.session_state["history"].version
    assert session.app.number_input(key=f"budget_pcost_{version}").value == 2.0


def test_slow_plan_is_started_without_a_button(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "LIVE_S", -1.0)
    workload = Workload.all_ways(demo_schema("census"), (1,), {"age": "range"})
    state = RequestState(workload=workload, budget=Budget(pcost=0.37), options=UNIFORM)
    session = Session(plan=permalink.packed(state)).go("workload")
    assert session.app.dataframe[0].value["typical error"].isna().all()
    session.until(lambda: "Typical error" in session.metrics())
    assert session.metrics()["Typical error"] == format_number(plan(workload, state.budget).rmse)
    first = session.app.session_state[plans.LIVE_PLAN]
    session.set(add_how="One table").press("add_total")
    second = session.app.session_state[plans.LIVE_PLAN]
    assert second != first
    assert job_queue.find(first) is None  # the edit releases the job of the previous plan
    assert job_queue.find(second) is not None


def test_long_plan_of_panel_waits_for_button(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "LIVE_S", -1.0)
    monkeypatch.setattr(plans, "STARTED_S", -1.0)
    workload = Workload.all_ways(demo_schema("census"), (1,), {"age": "circular"})
    session = Session(plan=permalink.packed(RequestState(workload=workload))).go("workload")
    assert "planning takes about" in session.text()
    assert any(b.key == "plan_now" for b in session.app.button)
    session.press("plan_now").until(lambda: "Typical error" in session.metrics())
