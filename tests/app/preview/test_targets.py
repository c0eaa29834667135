"""Preview page: error targets, and the budgets, weights and locks for them."""

from __future__ import annotations

import json
import math

import pytest

from engine._format import cost, format_number
from engine.analysis import NoiseScale, budget_for_quality, budget_for_query
from engine.analysis import error_targets as fitness
from engine.analysis.error_targets import budget_for, share_within
from engine.analysis.quality import quality_shares, quality_text
from engine.mechanisms import plan
from engine.postprocess.publication_weights import publication_weights
from engine.privacy import Budget
from engine.workload import Schema, Workload
from pages.parts.jobs import publishing
from pages.parts.preview.group_targets_form import CURRENT, EACH, TITLE
from pages.parts.shell import permalink
from pages.parts.workload import publication_weights_form
from tests import working
from tests.app.preview.sessions import open_preview, wait_for_changes
from tests.app.session import UNIFORM, Session, demo_plan, demo_schema, open_demo


def pcost_on_page(session: Session) -> float:
    return session.app.number_input(
        key=f"budget_pcost_{session.app.session_state['history'].version}"
    ).value


def test_error_target_sets_budget_until_undo(session: Session) -> None:
    reference = demo_plan()
    session.set(budget_unit="pcost", fold_target=True, tolerance=4.0, tolerance_share=0.95)
    needed = budget_for(reference.workload, 4.0, 0.95)
    assert f"pcost {cost(needed.pcost)} is needed (now pcost 1)" in session.text()
    assert fitness.within_text(reference, 4.0) in session.text()
    session.press("use_budget_share")
    assert session.studio.budget == needed
    button = next(b for b in session.app.button if b.key == "use_budget_share")
    assert button.disabled
    assert button.help == "The plan already has this budget."
    assert "the current budget is enough" in session.text()
    assert pcost_on_page(session) == pytest.approx(needed.pcost)
    again = plan(reference.workload, needed)
    assert session.metrics()["Typical error (counts)"] == format_number(again.rmse)
    assert share_within(again, 4.0) >= 0.95
    assert budget_for(again.workload, 4.0, 0.95) == session.studio.budget
    assert session.app.number_input(key="tolerance").value == 4.0
    assert fitness.within_text(again, 4.0) in session.text()
    session.press("undo")
    assert session.studio.budget == Budget(pcost=1.0)
    assert session.metrics()["Typical error (counts)"] == format_number(reference.rmse)
    assert "is enough (now pcost 1)" in session.set(tolerance=400.0).text()


def test_interval_target_needs_smaller_standard_error(session: Session) -> None:
    reference = demo_plan()
    session.set(fold_target=True, tolerance=10.0, tolerance_is="95% interval", tolerance_share=1.0)
    error = fitness.error_for(reference, 10.0)
    # 1.959964 is the 97.5% quantile of the standard normal distribution
    assert error == pytest.approx(10 / 1.959964)
    assert fitness.within_text(reference, error) in session.text()
    assert "For every query" in session.text()
    session.press("use_budget_share")
    assert session.studio.budget == budget_for(reference.workload, error)
    again = plan(reference.workload, session.studio.budget)
    assert math.sqrt(again.max_variance) <= error


def test_unreachable_target_shows_error() -> None:
    workload = Workload(demo_schema("census")).add("sex").add("age", "marginal", weight=0.0)
    session = open_preview(workload).set(fold_target=True)
    assert "infinite" in session.errors()
    assert not any(b.key == "use_budget_share" for b in session.app.button)
    assert "positive weight" in session.errors()


def test_drawn_query_sets_budget_for_its_interval() -> None:
    session, reference = open_demo("survey"), demo_plan("survey")
    session.set(
        fold_target=True, target_goal="One query", probe_how="Draw a range", range_first_10="age"
    )
    session.run(session.app.select_slider(key="range_age_82_0").set_range(10, 20))
    tensor = [float(10 <= i <= 20) for i in range(82)]
    error = reference.variance_of(("age",), tensor) ** 0.5
    assert session.metrics()["Standard error"] == f"{format_number(error)} counts"
    session.set(probe_wanted=3.0).press("use_budget_probe")
    assert session.studio.budget == budget_for_query(
        reference, ["age"], tensor, fitness.error_for(reference, 3.0)
    )
    again = plan(reference.workload, session.studio.budget)
    # 1.959964 is the 97.5% quantile of the standard normal distribution
    half_width = 1.959964 * again.variance_of(("age",), tensor) ** 0.5
    assert half_width == pytest.approx(3.0, rel=1e-6)
    assert session.metrics()["95% interval"] == "answer ± 3.00 counts"
    assert session.press("undo").studio.budget == Budget(pcost=1.0)


def test_query_without_cells_needs_no_budget(session: Session) -> None:
    session.set(fold_target=True, target_goal="One query", probe_names=["sex"], probe_sex=[])
    assert "without noise" in session.text()
    assert not session.errors()


def test_record_count_of_a_demo_is_filled_in_once() -> None:
    session = open_demo("survey")
    assert session.app.number_input(key="scale_records").value == 944
    assert "Publishable" in session.metrics()
    session.set(scale_records=None).go("preview")
    assert session.app.number_input(key="scale_records").value is None
    assert "accurate enough to publish" in session.text()


def test_noise_is_shown_relative_to_record_count(session: Session) -> None:
    # the field is on the page before the form of a target is opened, and only once
    session.set(scale_records=50_000)
    scale = NoiseScale(records=50_000)
    share = f"{quality_shares(demo_plan(), scale)[0]:.0%}"
    assert session.metrics()["Publishable"] == share
    session.set(scale_records=None).set(fold_target=True, target_goal="Publishable answers")
    assert "Enter the expected" in session.text()
    session.set(scale_records=50_000)
    assert quality_text(demo_plan(), scale) in session.text()
    assert session.set(scale_publishable=40.0).errors()
    session.set(scale_publishable=15.0, usable_share=0.95).press("use_budget_usable")
    assert session.studio.budget == budget_for_quality(demo_plan(), scale, 0.95)


def test_targets_set_budget_until_table_is_added_and_return_with_undo() -> None:
    workload = Workload.all_ways(Schema.from_json('{"a": 3, "b": 4, "c": 2}'), (1, 2), "marginal")
    session, result = open_preview(workload), plan(workload, Budget(pcost=1.0))
    before = session.studio
    session.set(fold_target=True, target_goal=TITLE)
    rows = [n.label for n in session.app.number_input if (n.key or "").startswith("target_")]
    assert [row.replace("\\", "").split(" ")[0] for row in rows] == ["1-way", "2-way"]
    keys = [n.key for n in session.app.number_input if (n.key or "").startswith("target_")]
    session.set(**dict(zip(keys, (10.0, 50.0), strict=True))).press("targets_solve")
    session.until(lambda: any(b.key == "targets_use" for b in session.app.button))
    targets = [{1: 10.0, 2: 50.0}[len(group.attributes)] for group in result.workload.groups]
    needed = budget_for(result.workload, targets, fit="shape")
    assert f"Budget: ε {cost(needed.epsilon(1e-6))}" in session.text().replace("*", "")
    assert session.studio is before
    session.press("targets_use")
    assert session.studio.budget == needed
    assert session.studio.options == UNIFORM | {"objective": "max", "targets": targets}
    names: dict = {}
    exec(session.app.code[-1].value, names)
    assert (
        names["workload_plan"].hash
        == plan(result.workload, needed, objective="max", targets=targets).hash
    )
    assert session.metrics()["Typical error (counts)"] == format_number(names["workload_plan"].rmse)
    assert (
        permalink.unpacked(permalink.packed(session.studio)).to_json() == session.studio.to_json()
    )
    # Without the 2-way tables, the 1-way tables keep their targets.
    wait_for_changes(session).press("what_if_drop").press("what_if_keep")
    assert session.studio.options["targets"] == targets[:3]
    assert not session.errors()
    session.go("workload").set(add_how="One table").press("add_total").go("preview")
    assert session.studio.options == UNIFORM
    assert "removed the error targets" in session.text()
    session.press("undo")
    assert session.studio.options["targets"] == targets[:3]
    assert "removed the error targets" not in session.text()
    session.set(fold_target=True, target_goal=TITLE).press("targets_forget")
    assert session.studio.options == UNIFORM
    assert "removed the error targets" not in session.text()


def test_each_table_has_lock_for_current_budget() -> None:
    schema = Schema.from_json('{"a": 3, "b": 4, "c": 2}')
    session = open_preview(Workload.all_ways(schema, (1,), "marginal"))
    session.set(fold_target=True, target_goal=TITLE).set(targets_goal=CURRENT, targets_for=EACH)
    assert len([c for c in session.app.checkbox if (c.key or "").startswith("lock_")]) == 3


def test_weights_for_published_tables_are_set_until_undo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publication_weights_form.publishing, "weigh", working.doubled)
    workload = Workload.all_ways(Schema.from_json('{"a": 20, "b": 4, "c": 2}'), (1, 2), "marginal")
    session = open_preview(workload).go("release")
    session.set(fold_published=True, published_records=5_000).press("published_find")
    session.until(lambda: any(b.key == "published_use" for b in session.app.button))
    assert "unbiased answers" in session.text()
    assert any("expected_records=5000" in c.value for c in session.app.code)
    session.press("published_use")
    assert [g.weight for g in session.studio.required_workload.groups] == [2.0] * len(
        workload.groups
    )
    session.press("undo")
    assert session.studio.required_workload.to_json() == workload.to_json()


def test_worker_weights_equal_engine_weights() -> None:
    workload = Workload.all_ways(Schema.from_json('{"a": 40, "b": 3}'), (1, 2), "marginal")
    budget = Budget(pcost=0.01)
    request = workload.to_json(), budget.to_dict(), "residualplanner", {}, 1_000.0
    text, errors = publishing.weigh(*request, progress=lambda share, words: True)
    expected = publication_weights(workload, budget, expected_records=1_000)
    assert text == expected.to_json() != workload.to_json()
    (one_way, one_way_before, one_way_after), (two_way, two_way_before, two_way_after) = errors
    assert (one_way, two_way) == (1, 2)
    assert one_way_after < one_way_before
    assert two_way_after > two_way_before


def test_budget_ticks_state_rows_per_person_once() -> None:
    budget = Budget(pcost=1.0, rows_per_person=3)
    session = open_preview(Workload.all_ways(demo_schema("cps"), (1,)), budget=budget)
    session.set(fold_target=True, target_goal="One query", probe_names=["age"])
    figures = [chart.proto.spec for chart in session.app.get("plotly_chart")]
    (spec,) = (json.loads(text) for text in figures if '"this plan"' in text)
    ticks = spec["layout"]["xaxis"]["ticktext"]
    assert len(set(ticks)) == len(ticks)
    assert all("rows" not in tick for tick in ticks)
