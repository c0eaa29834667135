"""Common parts of all pages: frame, explanations, address and undo."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from streamlit.runtime.pages_manager import PagesManager

from engine._format import format_number
from engine.privacy import Budget, mu_of_guess
from engine.workload import Workload
from pages.parts.shell import history, page_layout, permalink
from pages.parts.shell.history import History, RequestState
from tests.app.session import Session, demo_plan, demo_schema, open_demo, open_demo_schema


def test_pages_without_schema_show_instructions() -> None:
    session = Session()
    assert "Enter the values of at least one column" in session.text()
    assert next(b for b in session.app.button if b.key == "next").disabled
    for page in ("workload", "preview", "release"):
        session.go(page)
        words = session.text()
        assert "no schema yet" in words.lower() or "enter a schema on Schema" in words
        assert not session.errors()
        assert "Privacy budget" not in session.metrics()


def test_page_opened_directly_has_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PagesManager, "uses_pages_directory", None)
    session = Session()
    assert [t.value for t in session.app.title] == ["📋 Schema"]
    assert PagesManager.uses_pages_directory is False  # set by the frame


def test_completed_steps_are_those_of_the_request() -> None:
    empty = RequestState()
    schema = replace(empty, workload=Workload(demo_schema("census")))
    tables = replace(empty, workload=Workload.all_ways(demo_schema("census"), (1,)))
    assert page_layout.completed_steps(empty) == frozenset()
    assert page_layout.completed_steps(schema) == {"Schema"}
    assert page_layout.completed_steps(tables) == {"Schema", "Workload"}


def test_step_schema_is_open_while_an_edit_is_invalid(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = RequestState(workload=Workload.all_ways(demo_schema("census"), (1,)))
    state: dict[str, object] = {}
    monkeypatch.setattr(page_layout.st, "session_state", state)
    state[page_layout.REJECTED_EDIT] = history.version(), []
    assert page_layout.completed_steps(tables) == {"Workload"}
    state[page_layout.REJECTED_EDIT] = history.version() + 1, []  # discarded by undo
    assert page_layout.completed_steps(tables) == {"Schema", "Workload"}
    state[page_layout.RELEASED] = tables.key
    assert "Release" in page_layout.completed_steps(tables)


def test_budget_unit_applies_to_all_pages() -> None:
    session = Session().go("start").set(start_demo="census").press("start_Try a demo")
    session.set(budget_unit="attacker's success rate")
    for page in ("start", "workload", "preview", "compare", "release"):
        session.go(page)
        assert session.metrics()["Privacy budget"] == "success rate 54.8%", page
        assert not session.errors()
    session.go("preview").set(**{"budget_attacker's success rate (%)_1": 60.0})
    assert session.studio.budget == Budget.gdp(mu_of_guess(60.0))
    assert session.go("start").metrics()["Privacy budget"] == "success rate 60%"
    session.go("preview").set(budget_unit="pure epsilon")  # another kind of budget
    assert session.studio.budget.pure_epsilon
    session.set(budget_unit="epsilon, delta")


def test_default_budget_is_a_round_epsilon() -> None:
    session = Session().go("start").set(start_demo="census").press("start_Try a demo")
    assert session.go("start").metrics()["Privacy budget"] == "ε 1"


def test_pages_have_title_budget_and_code() -> None:
    session = open_demo()
    for page in page_layout.PAGES:
        session.go(Path(page.file).stem)
        assert session.app.title[0].value == f"{page.icon} {page.title}"
        metrics = {metric.label: metric for metric in session.app.metric}
        assert "5 attributes" in metrics["Privacy budget"].help
        assert "schema = " in session.app.code[-1].value


def test_explanation_of_page_is_a_tooltip() -> None:
    session = Session()
    (lead,) = (one for one in session.app.markdown if "Describe each column" in one.value)
    assert "public knowledge" in lead.help
    assert "public knowledge" not in session.text()


def test_address_restores_the_request() -> None:
    session = open_demo()
    session.run(session.app)
    text = session.app.query_params[permalink.NAME]
    text = text[0] if isinstance(text, list) else text
    again = Session(plan=text).go("preview")
    assert again.studio.to_json() == session.studio.to_json()
    assert again.metrics()["Typical error (counts)"] == format_number(demo_plan().rmse)
    assert "damaged" in Session(plan="rubbish").errors()


def test_twenty_edits_are_undone_and_redone() -> None:
    # one edit opens the schema, 9 add tables, and 10 change the budget
    session = open_demo_schema("survey").press("next")
    for k in range(9):
        session.set(add_how="One table", group_names=[session.studio.schema.names[k % 10]])
        session.press("add_group")
    session.go("preview").set(budget_unit="pcost")
    key = f"budget_pcost_{session.app.session_state['history'].version}"
    for k in range(10):
        session.set(**{key: 1.5 + k})
    after = session.studio.to_json()
    session.go("guide")  # a page that is drawn quickly
    for _ in range(20):
        session.press("undo")
    assert session.studio.to_json() == History().present.to_json()
    for _ in range(20):
        session.press("redo")
    assert session.studio.to_json() == after
