"""Preview page: error sources of a group and what-if changes."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest

from engine._format import format_number
from engine.analysis.change_effects import helpful_changes
from engine.analysis.what_if import coarser_attribute
from engine.privacy import Budget
from engine.workload import Attribute, Schema, Workload
from engine.workload.attribute import domain_text
from pages.parts.preview import table_errors_view, variance_breakdown_view
from tests.app.preview.sessions import open_preview, wait_for_changes
from tests.app.session import Session, demo_plan, demo_schema, open_demo, wait


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
    wait_for_changes(session.set(group=number)).press(
        f"what_if_{name}" if name != "coarser" else "what_if_coarser_age"
    )
    assert session.studio.to_json() == before
    assert "What if:" in session.text()
    if name == "budget":
        assert "What if: Raise ε from 4.887 to 7.287 (2 × the privacy cost)." in session.text()
        raised = next(b for b in session.app.button if b.key == "what_if_budget")
        assert "halves every variance" in raised.help
        (heading,) = (m for m in session.app.markdown if "Ways to reduce" in m.value)
        assert "Epsilons do not add up; privacy costs do." in heading.help
    tables = [d.value for d in session.app.dataframe]
    (frame,) = (t.set_index("errors in counts") for t in tables if "errors in counts" in t)
    assert frame["before"]["all tables, typical"] == pytest.approx(demo_plan().rmse)
    assert frame["after"]["this table, typical"] < frame["before"]["this table, typical"]
    after = float(frame["after"]["all tables, typical"])
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


def test_least_accurate_small_group_is_preselected(session: Session) -> None:
    reference = demo_plan()
    small = [i for i, group in enumerate(reference.workload.groups) if len(group.attributes) == 1]
    worst = max(small, key=lambda i: reference.variances(i).max())
    assert session.app.selectbox(key="group").value == worst


@pytest.mark.parametrize("attributes", [("age",), ("sex",), ("age", "sex")])
def test_changes_are_offered_with_their_effect(
    session: Session, attributes: tuple[str, ...]
) -> None:
    groups = session.studio.required_workload.groups
    number = next(i for i, group in enumerate(groups) if group.attributes == attributes)
    wait_for_changes(session.set(group=number))
    effects = helpful_changes(session.studio.request, number)
    keys = [b.key for b in session.app.button if (b.key or "").startswith("what_if_")]
    assert keys == [
        f"what_if_{e.name}_{e.attribute}" if e.attribute else f"what_if_{e.name}" for e in effects
    ]
    # By how many percent the error of another table rises is removed from the texts, because it can
    # differ in the last digit between two computations of a tuned plan.
    shown = [re.sub(r"\+\S+%", "", text) for text in (session.text(), *(e.text for e in effects))]
    assert all(text in shown[0] for text in shown[1:])
    if "age" in attributes:  # the bins that merging would give, before it is tried
        merged = coarser_attribute(session.studio.schema["age"])
        assert f"new bins: {domain_text(merged)}" in session.text()
    # Dropping the largest tables would remove a table with two attributes.
    assert ("what_if_drop" in keys) == (len(attributes) == 1)


def test_slow_plans_offer_changes_without_effects(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(variance_breakdown_view.plans, "expected_seconds", lambda _: 60.0)
    session.set(group=6)
    assert "each change is planned only when you try it" in session.text()
    keys = {b.key for b in session.app.button}
    assert {"what_if_weight", "what_if_budget"} <= keys
    assert "what_if_drop" not in keys


def test_long_table_names_differ_after_shortening() -> None:
    names = [f"household_income_{word}" for word in ("net", "gross", "capital", "transfers")]
    schema = Schema([Attribute.of_size(name, 2) for name in names])
    session = open_preview(Workload.all_ways(schema, (2,)))
    shown = list(session.app.dataframe[0].value["attributes"])
    assert len(set(shown)) == len(shown) == 6
    assert max(map(len, shown)) <= table_errors_view.MAX_NAME_CHARS
    assert all("…" in name for name in shown)


def test_tables_on_the_same_attributes_name_their_family() -> None:
    schema = Schema([Attribute.of_size("age", 5), Attribute.of_size("household_income_in_euro", 4)])
    workload = Workload(schema).add("age", "range").add("age", "marginal")
    for family in ("range", "marginal"):
        workload = workload.add(("age", "household_income_in_euro"), family)
    session = open_preview(workload)
    assert sorted(session.app.dataframe[0].value["attributes"]) == [
        "age (marginal)",
        "age (range)",
        "age × househol…_in_euro (marginal)",
        "age × househol…_in_euro (range)",
    ]


def test_selected_table_follows_workload_until_new_schema() -> None:
    session = open_demo("census")
    wait_for_changes(session.set(group=2))
    selected = session.studio.workload.groups[2].attributes
    workload = session.studio.workload
    session.app.session_state["history"] = session.app.session_state["history"].push(
        replace(session.studio, workload=Workload(workload.schema, workload.groups[1:])),
        redraw=True,
    )
    session.run(session.app)
    assert session.app.selectbox(key="group").value == 1
    assert session.studio.workload.groups[1].attributes == selected
    session.go("start").set(start_demo="cps").press("start_Try a demo").go("preview")
    fresh = open_demo("cps", options={})
    assert session.studio.schema == fresh.studio.schema
    assert session.app.selectbox(key="group").value == fresh.app.selectbox(key="group").value


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


def test_what_if_change_is_discarded_and_omitted_where_it_does_not_apply(
    session: Session,
) -> None:
    wait_for_changes(session).press("what_if_drop").press("what_if_forget")
    assert "What if:" not in session.text()
    wait_for_changes(session.press("what_if_drop").press("what_if_keep"))
    assert not any(b.key == "what_if_drop" for b in session.app.button)
    other = open_preview(
        Workload.all_ways(demo_schema("cps"), (1, 2)), mechanism="residualplanner+", options={}
    )
    assert not any(b.key == "what_if_tuned" for b in wait_for_changes(other).app.button)


def test_slow_what_if_change_runs_in_worker() -> None:
    workload = (
        Workload(Schema.from_json('{"x": 40, "y": 30}')).add(("x", "y"), "prefix").add("x", "range")
    )
    session = wait_for_changes(open_preview(workload)).press("what_if_tuned")
    session.until(lambda: any(b.key == "what_if_keep" for b in session.app.button))
    session.press("what_if_keep")
    assert session.studio.options_without_defaults == {"centers": "tuned"}
    assert not any(b.key == "what_if_tuned" for b in session.app.button)


def test_what_if_change_is_dropped_with_its_workload(session: Session) -> None:
    wait_for_changes(session).press("what_if_budget")
    session.set(budget_unit="pcost")
    session.set(**{f"budget_pcost_{session.app.session_state['history'].version}": 3.0})
    assert "What if:" not in session.text()
