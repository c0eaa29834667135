"""Button clicks that arrive together with changed fields."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from streamlit.runtime.scriptrunner import ScriptRunner
from streamlit.testing.v1 import AppTest

from engine.ledger import Ledger
from engine.privacy import Budget
from pages.parts.shell import streamlit_internals
from pages.parts.shell.buttons import VALUES_CHANGED
from tests.app.release.sessions import SURVEY, open_release
from tests.app.session import Session, open_demo, wait


def set_and_press(session: Session, button: str, **fields: object) -> Session:
    """Change fields and press a button in one run, as on a busy server."""
    for key, value in fields.items():
        if (field := session._widget(key)) is not None:
            field.set_value(value)
        else:  # AppTest does not list tabs
            session.app.session_state[key] = value
    session.app.button(key=button).click()
    return session.run(session.app)


def test_family_set_with_click_is_used() -> None:
    session = open_demo("survey", (1,), page="workload").set(
        add_how="One table", group_names=["age"]
    )
    set_and_press(session, "add_group", same="range")
    assert session.studio.workload.groups[-1].family_text == "range"
    assert "1 table added" in session.text()
    before = len(session.studio.workload.groups)
    session.run(session.app)  # adds the group only once
    assert len(session.studio.workload.groups) == before


def test_field_below_button_is_used_on_click() -> None:
    def page() -> None:
        import streamlit as st

        from pages.parts.shell import buttons as clicks

        done = st.session_state.setdefault("done", [])
        with clicks.run_pending():
            clicks.button("Note", done.append, st.session_state.get("size", 1), key="note")
            clicks.button(
                "Note twice", done.extend, 2 * [st.session_state.get("size", 1)], key="twice"
            )
            st.number_input("Size", value=1, key="size")

    app = AppTest.from_function(page).run()
    app.number_input(key="size").set_value(5)
    assert app.button(key="note").click().run().session_state["done"] == [5]
    assert app.button(key="twice").click().run().session_state["done"] == [5, 5, 5]


@pytest.mark.parametrize("size", [1, 5], ids=["callback", "postponed action"])
def test_action_is_completed_when_another_run_is_requested(
    monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    def page() -> None:
        import streamlit as st
        from streamlit.runtime.scriptrunner import RerunData, get_script_run_ctx

        from pages.parts.shell import buttons as clicks

        def action() -> None:
            # The second click of a double click arrives now.
            get_script_run_ctx().script_requests.request_rerun(RerunData())
            st.session_state["first"] = True
            st.session_state["second"] = True

        with clicks.run_pending():
            clicks.button("Act", action, key="act")
            st.number_input("Size", value=1, key="size")

    name = "_maybe_handle_execution_control_request"
    monkeypatch.setattr(ScriptRunner, name, getattr(ScriptRunner, name))  # is restored at the end
    streamlit_internals.complete_callbacks()
    app = AppTest.from_function(page).run()
    app.number_input(key="size").set_value(size)
    app.button(key="act").click().run()
    assert app.session_state["second"]


def test_rehearsal_uses_size_set_with_click() -> None:
    session = open_demo("survey", (1,), page="release")
    set_and_press(session, "rehearse", rows=321)
    wait(session)
    assert "REHEARSAL on simulated records" in session.text()
    assert "321" in session.text()


def test_click_with_invalid_new_values_does_nothing() -> None:
    session = open_demo("survey", (1,), page="workload").set(ways=[2])
    before = session.studio.workload.groups
    set_and_press(session, "add_ways", ways=[])
    assert session.studio.workload.groups == before
    session.set(ways=[2])  # valid values do not repeat the click
    assert session.studio.workload.groups == before


def test_removed_button_forgets_its_click() -> None:
    session = open_demo("survey", (1,), page="workload").set(ways=[2])
    before = session.studio.workload.groups
    set_and_press(session, "add_ways", add_how="One table")
    session.set(add_how="All combinations")
    assert any(button.key == "add_ways" and not button.disabled for button in session.app.button)
    assert session.studio.workload.groups == before


def test_release_of_changed_records_spends_nothing(tmp_path: Path) -> None:
    book, other = Ledger.create(tmp_path / "office.ledger"), tmp_path / "other.csv"
    book.add_dataset("survey", total=Budget(pcost=2.5))
    shutil.copy(SURVEY, other)
    session = open_release(book).set(confirmation="survey")
    set_and_press(session, "release", records_path=str(other))
    assert [toast.value for toast in session.app.toast] == [VALUES_CHANGED]
    assert book.status("survey").spent == 0.0
    session.set(confirmation="survey").press("release")
    wait(session)
    assert book.status("survey").spent > 0.0
