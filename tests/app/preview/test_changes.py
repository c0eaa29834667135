"""Preview page: error sources of a group and what-if changes."""

from __future__ import annotations

import math

import pytest

from engine._format import format_number
from engine.privacy import Budget
from engine.workload import Attribute, Schema, Workload
from tests.app.preview.sessions import open_preview
from tests.app.session import Session, demo_plan, demo_schema, wait


def test_error_sources_of_a_group_are_shown(session: Session) -> None:
    reference = demo_plan()
    session.set(group=3, why_what="Least accurate query")
    variances = reference.variances(3)
    assert f"Query {variances.argmax()}:" in session.text()
    assert f"Standard error {format_number(math.sqrt(variances.max()))} counts" in session.text()
    session.set(why_what="Query by number", why_query_3=2)
    assert reference.workload.describe_in_group(3, 2) in session.text()
    assert not session.errors()


@pytest.mark.parametrize("name", ["weight", "coarser", "drop", "budget"])
def test_what_if_change_can_be_applied_and_undone(session: Session, name: str) -> None:
    before = session.studio.to_json()
    number = next(
        i for i, g in enumerate(session.studio.required_workload.groups) if g.attributes == ("age",)
    )
    session.set(group=number).press(
        f"what_if_{name}" if name != "coarser" else "what_if_coarser_age"
    )
    assert session.studio.to_json() == before
    assert "What if:" in session.text()
    if name == "budget":
        assert "Budget of ε 7.287 instead of ε 4.887." in session.text()
    tables = [d.value for d in session.app.dataframe]
    (frame,) = (t.set_index("errors in counts") for t in tables if "errors in counts" in t)
    assert frame["before"].iloc[0] == pytest.approx(demo_plan().rmse)
    after = float(frame["after"].iloc[0])
    session.press("what_if_keep")
    assert session.metrics()["Typical error (counts)"] == format_number(after)
    assert not any(b.key == "what_if_keep" for b in session.app.button)
    studio = session.studio
    weights = [g.weight for g in studio.workload.groups]
    assert {
        "weight": weights[number] == 4.0,
        "coarser": studio.schema["age"].size == 25,
        "drop": len(weights) == 5,
        "budget": studio.budget == Budget(pcost=2.0),
    }[name]
    session.press("undo")
    assert session.studio.to_json() == before


def test_least_accurate_small_group_and_its_bins_are_preselected(session: Session) -> None:
    reference = demo_plan()
    small = [i for i, group in enumerate(reference.workload.groups) if len(group.attributes) == 1]
    worst = max(small, key=lambda i: reference.variances(i).max())
    assert session.app.selectbox(key="group").value == worst
    for number, group in enumerate(reference.workload.groups):
        numeric = [name for name in group.attributes if reference.schema[name].kind == "numeric"]
        session.set(group=number)
        merges = [b for b in session.app.button if b.key.startswith("what_if_coarser")]
        assert [b.label.replace("\\", "") for b in merges] == (
            [f"Merge bins of {name}" for name in numeric] or ["Merge bins"]
        )
        assert all(b.disabled == (not numeric) for b in merges)
        if number and not numeric:
            break


def test_long_table_names_differ_after_shortening() -> None:
    names = [f"household_income_{word}" for word in ("net", "gross", "capital", "transfers")]
    schema = Schema([Attribute.of_size(name, 2) for name in names])
    session = open_preview(Workload.all_ways(schema, (2,)))
    shown = list(session.app.dataframe[0].value["attributes"])
    assert len(set(shown)) == len(shown) == 6
    assert max(map(len, shown)) <= 23
    assert all("…" in name for name in shown)


def test_rehearsal_opens_from_preview() -> None:
    session = open_preview(Workload(demo_schema("survey")).add("vote"), options={})
    session.app.session_state["step"] = "3. Who pays"
    wait(session.press("to_rehearsal"))
    assert "What will come out?" in session.text()
    assert "REHEARSAL on simulated records" in session.text()


def test_rehearsal_of_a_million_queries_starts_from_preview() -> None:
    schema = Schema.from_json('{"day": 300, "age": 100}')
    workload = Workload(schema).add(("day", "age"), {"day": "prefix", "age": "range"})
    assert workload.queries > 1_000_000
    session = wait(open_preview(workload))
    wait(session.press("to_rehearsal"))
    assert "REHEARSAL on simulated records" in session.text()


def test_inapplicable_what_if_change_shows_error(session: Session) -> None:
    session.press("what_if_drop").press("what_if_forget")
    assert "What if:" not in session.text()
    session.press("what_if_drop").press("what_if_keep").press("what_if_drop")
    assert "no table of positive weight" in session.errors()
    assert "What if:" not in session.text()
    other = open_preview(
        Workload.all_ways(demo_schema("cps"), (1, 2)), mechanism="residualplanner+", options={}
    )
    assert "no centers" in other.press("what_if_tuned").errors()


@pytest.mark.parametrize("names", [("day",), ("day", "age")])
def test_what_if_of_dates_names_reason(names: tuple[str, ...]) -> None:
    days = Attribute.dates("day", "2024-01-01", "2024-01-31", "day")
    session = open_preview(
        Workload(Schema([days, Attribute.of_size("age", 8)])).add(names, "marginal")
    )
    (button,) = (b for b in session.app.button if b.key.startswith("what_if_coarser"))
    assert button.disabled == (names == ("day",))
    if button.disabled:
        assert "The cells of day are dates" in button.help
        assert "such as month" in button.help


def test_slow_what_if_change_runs_in_worker() -> None:
    workload = (
        Workload(Schema.from_json('{"x": 40, "y": 30}')).add(("x", "y"), "prefix").add("x", "range")
    )
    session = open_preview(workload).press("what_if_tuned")
    session.until(lambda: any(b.key == "what_if_keep" for b in session.app.button))
    session.press("what_if_keep")
    assert session.studio.options_without_defaults == {"centers": "tuned"}
    assert not any(b.key == "what_if_tuned" for b in session.app.button)


def test_what_if_change_is_dropped_with_its_workload(session: Session) -> None:
    session.press("what_if_budget")
    session.set(budget_unit="pcost")
    session.set(**{f"budget_pcost_{session.app.session_state['history'].version}": 3.0})
    assert "What if:" not in session.text()
