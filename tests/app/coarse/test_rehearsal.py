"""Page "Coarse or fine" without records: analyses, rule, rehearsal and code."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from engine.common_mechanism import NestedPlanRule
from engine.common_mechanism import selection_rule as analyses
from engine.mechanisms import plan
from engine.privacy import Budget
from engine.workload import Workload
from pages.parts.coarse import candidates_form
from pages.parts.shell import permalink, session_restore
from pages.parts.shell.history import RequestState
from pages.parts.workload.group_choice import first_group
from tests import code_lists
from tests.app.coarse.sessions import LOOK, REHEARSE, RULE, SCHEMA, build_common_plan, open_page
from tests.app.release.sessions import answers_on_page
from tests.app.session import Session, wait


def test_analyses_say_why_their_split_differs_from_compare() -> None:
    (caption,) = (c for c in open_page().app.caption if "Each analysis" in c.value)
    assert "standard (uniform) split" in caption.help
    assert "standard" not in caption.value


def test_coarse_page_without_schema_offers_example() -> None:
    session = Session().go("coarse")
    assert "There is no schema yet" in session.text()
    assert "choose at least two analyses" in session.text()
    session.set(coarse_kind=candidates_form.CENSUS)
    assert "Choice 3: Age9, or Age23?" in session.text()
    assert "schema = " in session.app.code[-1].value
    assert not session.errors()
    session.set(coarse_kind=candidates_form.FILES)
    assert "Each analysis: budget and mechanism of its plan file" in session.text()
    assert "Upload at least two plan files" in session.text()
    session.set(coarse_step=LOOK)
    assert "choose at least two analyses" in session.text()
    session.press("Back to Analyses")
    assert session.app.session_state["coarse_step"] == "1. Analyses"


def test_coarse_page_asks_one_question_per_step() -> None:
    session = open_page()
    assert "Not sure whether fine tables" in session.text()
    session.press("Next: Rule")
    assert "When are the counts large enough" in session.text()
    assert "Set the rule first" in session.text()
    assert "Not sure whether fine tables" not in session.text()


def test_coarse_page_shows_shares_and_rule() -> None:
    session, common = open_page(), build_common_plan()
    assert f"{common.saved:.2%} of the largest privacy cost" in session.text()
    session.press("Next: Rule")
    assert "at least 5 standard errors" in session.text()
    session.set(coarse_snr=20.0, coarse_share=0.3)
    assert "at least 20 standard errors" in session.text()
    assert "at least 30% of the 9 cells" in session.text()


def test_coarse_page_invalid_options_show_errors() -> None:
    session = open_page()
    key = next(m.key for m in session.app.multiselect if m.key.startswith("coarse_ways"))
    session.set(**{key: [2]})
    assert "at least two" in session.errors()
    session.set(coarse_kind=candidates_form.COARSER)
    assert "no group with an attribute" in session.errors()


def test_coarse_page_compares_workload_with_coarser_one() -> None:
    studio = RequestState(
        workload=Workload(SCHEMA).add(("a", "b"), {"a": "range", "b": "marginal"}),
        budget=Budget(0.4),
    )
    session = (
        Session(plan=permalink.packed(studio)).go("coarse").set(coarse_kind=candidates_form.COARSER)
    )
    assert "one attribute fewer" in session.press("Next: Rule").text()
    assert not session.errors()
    wait(session.set(coarse_step=REHEARSE).press("coarse_rehearse"))
    # 10 ranges of a and 3 cells of b
    assert "requires 50.0% of 13 cells" in session.text()


def test_plan_files_are_options() -> None:
    session = open_page().set(coarse_kind=candidates_form.FILES)
    texts = {
        name: plan(w, Budget(pcost=0.4)).to_json()
        for name, w in analyses.workloads_by_way(SCHEMA, (2, 1)).items()
    }
    assert "Upload at least two plan files" in session.text()
    box = session.app.file_uploader(key="coarse_files")
    for name, text in texts.items():
        box.upload(f"{name}.json", text.encode(), "application/json")
    session.run(box)
    assert f"{build_common_plan().saved:.2%} of the largest privacy cost" in session.text()
    assert "['1-way.json', '2-way.json']" in session.app.code[-1].value
    session.run(
        session.app.file_uploader(key="coarse_files").upload("bad.json", b"{}", "application/json")
    )
    assert session.errors()
    assert "Upload at least two plan files" in session.text()


def test_rehearsal_look_and_rest_spend_nothing() -> None:
    session = open_page(coarse_step=REHEARSE)
    assert "No rehearsal with these" in session.text()
    wait(session.press("coarse_rehearse"))
    assert "REHEARSAL on simulated records" in session.text()
    assert "Choose 2-way: " in session.text()
    session.set(coarse_rehearsed_0_view="Share of reliable cells")
    assert "Share of reliable cells" in session.text()
    session.set(coarse_rehearsed_0_view="Answers of this measurement")
    assert list(answers_on_page(session, -1)) == ["query", "answer", "std", "low", "high"]
    wait(session.press("coarse_rest_0"))
    assert "Rehearsed answers of 2-way" in session.text()
    table = answers_on_page(session, -1)
    assert list(table) == ["query", "answer", "std", "low", "high", "truth"]
    assert (abs(table["answer"] - table["truth"]) < 6 * table["std"]).all()
    expected = plan(Workload.all_ways(SCHEMA, ways=2, family="marginal"), Budget(pcost=0.4))
    np.testing.assert_allclose(
        table["std"], np.sqrt(expected.variances(first_group(expected))), rtol=1e-6
    )
    # With another number of records, the old rehearsal stays on the page and is labeled as former.
    assert "former rehearsal" not in session.text()
    session.set(coarse_rows=501)
    assert "former rehearsal, with 10,000 records and seed 1" in session.text()
    assert "Press “Rehearse the first measurement” for 501 records" in session.text()
    assert "Rehearsed answers of 2-way" in session.text()
    np.testing.assert_array_equal(answers_on_page(session, -1)["answer"], table["answer"])
    session.set(coarse_rows=10_000)
    assert "former rehearsal" not in session.text()
    # A new first measurement removes the previous second measurement.
    wait(session.press("coarse_rehearse"))
    assert "Choose 2-way: " in session.text()
    assert "Rehearsed answers of 2-way" not in session.text()
    # The same seed gives the same records and noise, and so the same answers.
    wait(session.press("coarse_rest_0"))
    np.testing.assert_array_equal(answers_on_page(session, -1)["answer"], table["answer"])


def test_rehearsal_below_threshold_shows_stop() -> None:
    session = open_page(coarse_step=RULE).set(coarse_snr=1e5)
    wait(session.press("Next: Rehearse"))  # starts the quick rehearsal
    assert "Stop: at most" in session.text()
    assert "The rule says stop" in session.text()


@pytest.mark.parametrize("kind", [candidates_form.SIZES, candidates_form.CENSUS])
def test_coarse_page_code_runs(kind: str, capsys: pytest.CaptureFixture) -> None:
    session = open_page().set(coarse_kind=kind).set(coarse_step=REHEARSE)
    names: dict = {}
    exec(session.app.code[-1].value, names)
    assert "the rule requires 50.0%" in capsys.readouterr().out
    if kind == candidates_form.SIZES:
        common = build_common_plan()
        assert names["common"].hash == common.hash
        assert names["rule"].rule == NestedPlanRule(common=common, share=0.5, snr=5.0).rule


def test_levels_of_code_list_are_offered_first() -> None:
    workload = code_lists.WORKLOAD
    studio = RequestState(workload=workload, budget=Budget(0.4))
    session = Session(plan=permalink.packed(studio)).go("coarse")
    assert session.app.radio(key="coarse_kind").value == candidates_form.LEVELS
    assert "Choice 1: region, or a finer one?" in session.text()
    assert "workloads_by_level(workload, 'place', ['region', 'county', 'place'])" in code(session)
    (levels,) = (m for m in session.app.multiselect if m.key.startswith("coarse_levels"))
    session.set(**{levels.key: [0]})
    assert "Choose at least two levels" in session.text()
    session.set(**{levels.key: [0, 2]})
    assert "['region', 'place']" in code(session)
    session.set(coarse_level_attribute="work")
    assert not session.errors()
    # If no table has an attribute with a code list, levels cannot be chosen.
    other = RequestState(workload=Workload(code_lists.SCHEMA).add(("sex", "age")))
    session = Session(plan=permalink.packed(other)).go("coarse")
    assert candidates_form.LEVELS not in session.app.radio(key="coarse_kind").options


def test_reload_before_look_restores_analyses_rule_and_rehearsal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DP_WORKBENCH_SETTINGS", str(tmp_path / "settings"))
    monkeypatch.setattr(session_restore, "browser", lambda: "mine")
    session = open_page()
    (ways,) = (m for m in session.app.multiselect if m.key.startswith("coarse_ways"))
    session.set(**{ways.key: [1, 3]}).press("Next: Rule")
    session.set(coarse_share=0.3, coarse_snr=7.0, coarse_sigmas=0.0).press("Next: Rehearse")
    wait(session.set(coarse_rows=700, coarse_seed=0).press("coarse_rehearse"))
    (heading,) = (m.value for m in session.app.markdown if "cells" in m.value and "**" in m.value)
    again = Session(**session.app.query_params).go("coarse")
    assert "What will come out" in again.text()
    assert any(m.value == heading for m in again.app.markdown)
    assert [w.value for w in again.app.warning] == [w.value for w in session.app.warning]
    again.set(coarse_step=RULE)
    assert "at least 7 standard errors" in again.text()
    assert "at least 30% of the 9 cells" in again.text()
    assert "No safety margin" in again.text()


def test_unknown_kind_of_analyses_is_replaced_by_default() -> None:
    session = open_page(coarse_kind="Astrology")
    assert session.app.radio(key="coarse_kind").value == candidates_form.SIZES
    assert "All options share" in session.text()
    assert not session.errors()


def code(session: Session) -> str:
    text: str = session.app.code[-1].value
    return text
