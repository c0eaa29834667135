"""Workload page: forecast of time, memory and errors of new groups."""

from __future__ import annotations

from functools import partial

import pytest

from engine import analysis
from engine._format import format_number
from engine.mechanisms import forecast, plan
from engine.privacy import Budget
from engine.workload import Workload
from pages.parts.jobs import cost_warnings, plans
from pages.parts.shell import permalink
from pages.parts.shell.history import RequestState
from tests.app.session import UNIFORM, Session, demo_schema
from tests.app.workload.sessions import open_workload

JOINT = {"add_how": "One table", "group_names": ["age", "hours-per-week"], "group_how": "Joint"}


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("cost_warnings", "plans"):
        monkeypatch.setattr(f"pages.parts.jobs.{module}.MEMORY_LIMIT", 1.8e8)


def test_sums_of_two_large_attributes_are_planned() -> None:
    workload = Workload.all_ways(demo_schema("adult"), (1, 2)).add(
        ("age", "hours-per-week"), "affine"
    )
    session = Session(plan=permalink.packed(RequestState(workload=workload))).go("preview")
    assert "the memory limit is" not in session.text()
    assert not session.errors()


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("remedy", ["Remove it", "Approximate it", "Its marginal table instead"])
def test_most_expensive_group_is_named_and_replaced(remedy: str) -> None:
    workload = (
        Workload.all_ways(demo_schema("adult"), (1, 2))
        .add(("age", "hours-per-week"), "affine")
        .add("sex", "marginal")
    )
    session = Session(plan=permalink.packed(RequestState(workload=workload))).go("preview")
    assert "the memory limit is" in session.text()
    assert "table 106: age × hours-per-week, affine" in session.text()
    session.press(remedy)
    assert not session.errors()
    assert "Typical error (counts)" in session.metrics()
    now = session.studio.required_workload.groups
    assert [g.attributes for g in now if g.family_text == "affine" and g.weight] == []
    assert len(now) == len(workload.groups) - (remedy == "Remove it")
    assert session.press("undo").studio.required_workload == workload


@pytest.mark.usefixtures("little_memory", "keeps_forecasts")
def test_group_forecast_is_shown_before_adding() -> None:
    workload = Workload.all_ways(demo_schema("adult"), (1, 2))
    session = Session(plan=permalink.packed(RequestState(workload=workload, options=UNIFORM))).go(
        "workload"
    )
    session.set(**JOINT)
    assert "Most of the planning time comes from age × hours-per-week, affine." in session.text()
    # The form proposes this table, so there is no button that removes it.
    assert not any(b.label.startswith("Add: Remove it") for b in session.app.button)
    session.press("Add: Approximate it")
    (added,) = session.studio.required_workload.groups[len(workload.groups) :]
    assert added.weight == 0.0
    session.set(group_names=["sex", "race"], group_how="Same for all")
    assert not session.errors()
    session.set(group_names=["sex", "race", "relationship"])
    assert "planning takes about 1 second." in session.text()


def test_forecast_equals_the_forecast_of_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = Workload.all_ways(demo_schema("survey"), (1, 2))
    # Tuned centers are the default for this workload. They are not for the workload with the added
    # tables, because tuning would take too long.
    assert RequestState(workload=workload).options_without_defaults
    session = (
        Session(plan=permalink.packed(RequestState(workload=workload)))
        .go("workload")
        .set(ways_ask="Tables", ways=[1, 2])
    )
    tables = Workload.all_ways(
        demo_schema("survey"), (1, 2), dict.fromkeys(demo_schema("survey").names, "marginal")
    )
    both = Workload(workload.schema, (*workload.groups, *tables.groups))
    text = f"planning takes about {cost_warnings.duration(forecast(both).seconds)}."
    assert text in session.text()
    monkeypatch.setattr(analysis, "forecast_added", None)  # a rerun uses the cached forecast
    session.app.run()
    assert not session.app.exception
    assert text in session.text()


@pytest.mark.usefixtures("keeps_forecasts")
def test_errors_of_new_groups_are_forecast(monkeypatch: pytest.MonkeyPatch) -> None:
    session = open_workload("cps", add_how="One table").set(group_names=["income", "sex"])
    tuned = partial(plan, budget=Budget(pcost=1.0), centers="tuned")
    first = Workload(demo_schema("cps")).add(("income", "sex"), "marginal")
    assert analysis.added_text(tuned(first), 1) in session.set(same="marginal").text()
    session.press("add_group").set(group_names=["age"], same="range")
    both = first.add("age", "range")
    text = analysis.added_text(tuned(both), 1, tuned(first))
    assert "existing queries rises from" in text
    assert "If you add 1 table" in session.text()
    assert text in session.text()
    session.press("add_group").go("preview")
    row = tuned(both).by_group().iloc[1]
    assert (
        f"typical error of {format_number(row['rmse'])} counts, largest"
        f" {format_number(row['max_std'])}." in text
    )
    assert session.studio.required_workload == both
    monkeypatch.setattr(plans, "QUICK_S", -1.0)  # slow forecasts run in a worker
    session.go("workload").set(group_names=["income"], same="prefix")
    assert "new queries" not in session.text()
    session.until(lambda: "new queries" in session.text())
    assert session.studio.required_workload == both
