"""Preview page: numbers, views, budget, mechanism and plan file."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from engine._format import format_number
from engine.analysis import certificates as texts
from engine.mechanisms import plan
from engine.privacy import Budget
from engine.workload import Attribute, Custom, Schema, Workload
from pages.parts.shell import history, permalink
from pages.parts.shell.history import RequestState
from tests.app.preview.sessions import open_preview
from tests.app.session import Session, demo_plan, demo_schema, open_demo, open_demo_schema, wait


def test_preview_shows_numbers_of_the_plan() -> None:
    session = open_demo_schema("cps").press("next")
    reference = demo_plan(pcost=history.DEFAULT_BUDGET.pcost, centers="tuned")
    wait(session.set(ways_ask="Cumulative tables", ways=[1, 2]).press("add_ways").press("next"))
    assert session.metrics()["Typical error (counts)"] == format_number(reference.rmse)
    assert session.metrics()["Largest error (counts)"] == format_number(reference.max_variance**0.5)
    for unit, value in (("rho", 2.0), ("mu", 2.0), ("pcost", 4.0)):
        session.set(budget_unit=unit)
        key = f"budget_{unit}_{session.app.session_state['history'].version}"
        session.set(**{key: value})
        assert session.studio.budget.pcost == 4.0
        assert session.metrics()["Typical error (counts)"] == format_number(
            demo_plan(pcost=4.0, centers="tuned").rmse
        )
    ratio = (4.0 / history.DEFAULT_BUDGET.pcost) ** 0.5
    expected = ratio * demo_plan(pcost=4.0, centers="tuned").rmse
    assert reference.rmse == pytest.approx(expected, rel=1e-6)
    version = session.app.session_state["history"].version
    session.set(budget_unit="epsilon, delta").set(**{f"budget_epsilon_{version}": 1.0})
    assert session.studio.budget == Budget.approx(1.0, 1e-6)
    assert session.press("undo").metrics()["Typical error (counts)"] == format_number(
        demo_plan(pcost=4.0, centers="tuned").rmse
    )


def test_preview_states_epsilon_at_requested_delta() -> None:
    requested = Budget.approx(1.0, 1e-9)
    session = open_preview(Workload.all_ways(demo_schema("cps"), (1,)), budget=requested)
    assert session.studio.budget == requested
    assert "epsilon 1 at delta 10^-9" in session.text()
    assert "delta 10^-6" not in session.text()
    version = session.app.session_state["history"].version
    session.set(**{f"budget_epsilon_{version}": 2.0})
    assert session.studio.budget == Budget.approx(2.0, 1e-9)
    version = session.set(budget_unit="rho").app.session_state["history"].version
    session.set(**{f"budget_rho_{version}": 0.5})
    assert session.studio.budget == Budget(1.0, report_delta=1e-9)
    assert "at delta 10^-9" in session.text()
    version = session.set(budget_unit="epsilon, delta").app.session_state["history"].version
    session.set(**{f"budget_delta_{version}": 1e-7})
    assert session.studio.budget.report_delta == 1e-7


@pytest.mark.parametrize(
    ("unit", "key", "value"),
    [
        ("pcost", "pcost", -1.0),
        ("pcost", "pcost", 0.0),
        ("rho", "rho", -1e-9),
        ("mu", "mu", 0.0),
        ("epsilon, delta", "delta", 2.0),
        ("epsilon, delta", "epsilon", 0.0),
        ("attacker's success rate", "attacker's success rate (%)", 50.0),
    ],
)
def test_invalid_budget_is_refused(unit: str, key: str, value: float) -> None:
    session = open_demo().set(budget_unit=unit)
    before = session.studio.to_json()
    session.set(**{f"budget_{key}_{session.app.session_state['history'].version}": value})
    assert session.errors()
    assert session.studio.to_json() == before
    assert session.metrics()["Typical error (counts)"] == format_number(demo_plan().rmse)


def test_preview_views_show_numbers_of_the_plan() -> None:
    session, reference = open_demo("survey"), demo_plan("survey")
    for fold in ("target", "limit", "promise", "mechanism"):
        session.set(**{f"fold_{fold}": True})
        assert not session.errors()
    for goal in ("Publishable answers", "Each table size or table", "A share of all queries"):
        session.set(target_goal=goal)
        assert not session.errors()
    # Group 12 has two attributes; the last choice leaves its chart without an axis.
    session.set(group=12).set(across_12=[1], fixed_12_0=3).set(across_12=[])
    assert "Choose one or two" in session.text()
    session.set(tolerance=1000.0)
    assert "100.0% of 9,417 queries" in session.text()
    session.set(target_goal="One query", probe_names=["age", "vote"], probe_vote=[1])
    tensor = [[0.0, 1.0]] * 82
    assert (
        session.metrics()["Standard error"]
        == f"{format_number(reference.variance_of(('age', 'vote'), tensor) ** 0.5)} counts"
    )
    session.set(probe_how="Write a condition", probe_text="age >= 30 and vote == 'Nobody'")
    assert "Nobody" in session.errors()
    session.set(probe_names=["education", "vote", "party"], probe_how="Choose cells")
    assert "does not measure" in session.errors()


def test_chart_of_a_pair_starts_at_least_accurate_slice() -> None:
    schema = Schema.from_json('{"day": 12, "age": 6}')
    workload = Workload(schema).add(("day", "age"), {"day": "prefix", "age": "range"})
    session = open_preview(workload)
    table = next(f.value for f in session.app.dataframe if "standard error" in f.value)
    # The columns that name the query come first.
    assert list(table)[-1] == "standard error"
    largest = session.metrics()["Largest error (counts)"]
    assert format_number(table["standard error"].max()) == largest
    slice_text = session.app.selectbox(key="fixed_0_0").value
    assert f"with day <= {slice_text}" in session.text()


def test_column_that_orders_the_tables_comes_first(session: Session) -> None:
    shown = session.app.dataframe[0].value
    assert list(shown)[:2] == ["attributes", "largest standard error"]
    assert shown["largest standard error"].round(9).is_monotonic_decreasing
    assert any(radio.label == "Tables by largest error" for radio in session.app.radio)


def test_long_planning_waits_for_button_and_cancels() -> None:
    schema = Schema.from_json('{"x": 120, "y": 100}')
    workload = Workload(schema).add(("x", "y"), "affine").add(("x", "y"), "range")
    studio = RequestState(workload=workload)
    session = Session(plan=permalink.packed(studio)).go("preview")
    assert "Planning takes about" in session.text()
    assert "Typical error (counts)" not in session.metrics()
    assert "no plan yet" in session.text()
    session.press("plan_now")
    session.press("Cancel")
    for _ in range(100):
        if "cancelled" in session.text():
            break
        session.run(session.app)
    assert "cancelled" in session.text()
    assert any(b.key == "plan_now" for b in session.app.button)


def test_pairs_of_groups_are_drawn_as_map(session: Session) -> None:
    session.set(ways_shown_2="Map")
    assert "Largest standard error per pair" in session.text()
    assert "Choose a cell to see its" in session.text()
    one_way = open_preview(Workload.all_ways(demo_schema("cps"), (1,)))
    assert "Map" not in next(r for r in one_way.app.radio if r.label.startswith("Tables")).options


@pytest.mark.usefixtures("keeps_bound_search")
def test_distance_to_bound_is_computed_and_shown() -> None:
    workload = (
        Workload(demo_schema("survey")).add("vote").add("education").add(("vote", "education"))
    )
    session = open_preview(workload)
    assert "Gap to its bound" not in session.metrics()  # not shown during the search for the bound
    session.until(lambda: session.metrics()["Gap to the best possible"] != "searching…")
    result, bound = plan(workload, Budget(pcost=1.0)), texts.mechanism_bound(workload)
    assert session.metrics()["Gap to the best possible"] == f"≤ {texts.above_best(result, bound)}"
    assert "Gap to its bound" not in session.metrics()  # the bound for all mechanisms replaces it
    assert texts.short_bound_text(result, bound) in session.set(fold_limit=True).text()
    assert not session.errors()


def test_latex_of_errors_has_caption_and_digits_of_screen(
    downloads: dict[str, Callable[[], bytes]],
) -> None:
    workload = Workload(Schema([Attribute.of_size("day", 50)])).add("day", "prefix")
    session = Session(plan=permalink.packed(RequestState(workload=workload)))
    wait(session.go("preview"))
    text = downloads["errors.tex"]().decode()
    assert r"\begin{longtable}" in text
    assert "{Standard error of all queries on day, in counts. QuerySmasher" in text
    assert "50 queries in 1 table. " in text  # the privacy parameters follow
    table = next(d.value for d in session.app.dataframe if "standard error" in d.value)
    first = f"{table['standard error'].iloc[0]:,.2f}"
    assert re.search(rf"& {re.escape(first)} ", text)  # two decimals, as on screen
    assert f"{float(downloads['errors.csv']().decode().split()[-1].split(',')[-1]):.2f}" in text


def test_conditions_on_one_attribute_have_different_names() -> None:
    workload = Workload(demo_schema("survey")).add("vote")
    for condition in ("20 <= age < 40", "age >= 60"):
        workload = workload.add("age", Custom(predicates=[condition]))
    session = open_preview(workload)
    tables = session.app.selectbox(key="group").options
    assert tables[1:] == ["2: 20 <= age < 40 (1 query)", "3: age >= 60 (1 query)"]
    listed = next(d.value for d in session.app.dataframe if "RMSE" in d.value)["attributes"]
    assert sorted(listed) == ["20 <= age < 40", "age >= 60", "vote"]
    session.go("workload")
    listed = next(d.value for d in session.app.dataframe if "remove" in d.value)["attributes"]
    assert listed.tolist() == ["vote", "20 <= age < 40", "age >= 60"]
    session.go("preview", group=1)
    assert "1 query with a standard error of" in session.text()
    session.set(group=0)
    assert "2 queries, each with a standard error of" in session.text()
