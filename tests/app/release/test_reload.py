"""Release page after a reload, in another browser and in a new session."""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

import engine
from engine.common_mechanism import stepwise
from engine.ledger import Ledger
from engine.privacy import Budget
from engine.release import measure
from pages.parts.jobs import plan_cache, plans
from pages.parts.schema import grid
from pages.parts.shell import session_restore
from pages.parts.workload import record_count_form
from tests.app.release.sessions import (
    CONFIRM,
    SURVEY,
    answers_of_first_group,
    answers_on_page,
    open_release,
    row_kinds,
)
from tests.app.session import Session, demo_plan, upload, wait


@pytest.fixture
def browser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return a function that sets the name by which the app identifies the browser of a session."""
    monkeypatch.setenv("DP_WORKBENCH_SETTINGS", str(tmp_path / "settings"))

    def use_browser(name: str) -> None:
        monkeypatch.setattr(session_restore, "browser", lambda: name)

    return use_browser


def reload_page(session: Session, page: str = "release") -> Session:
    """Open a page in a new session, with the query parameters of another session."""
    return Session(**session.app.query_params).go(page)


def test_reload_shows_same_dataset_tab_and_result(
    ledger: Ledger, browser: Callable[[str], None]
) -> None:
    browser("mine")
    ledger.add_dataset("other", total=Budget(pcost=1.0))
    session = open_release(ledger, dataset="other")
    wait(session.set(confirmation="other").press("release"))
    again = reload_page(session)
    assert "Released for other" in again.text()
    pd.testing.assert_frame_equal(answers_on_page(again), answers_on_page(session))
    assert row_kinds(ledger) == ["ledger", "dataset", "dataset", "spend", "saved"]
    for word in (str(ledger.path), "other"):
        assert word not in str(session.app.query_params)


def test_reload_shows_result_without_planning(
    ledger: Ledger, browser: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    browser("mine")
    session = open_release(ledger)
    wait(session.set(confirmation="survey").press("release"))
    plan_cache._plans.clear()  # a restart of the server
    monkeypatch.setattr(plans, "QUICK_S", -1.0)  # slow planning
    again = reload_page(session)
    assert "Released for survey" in again.text()
    assert not any(b.key == "plan_now" for b in again.app.button)


def test_table_options_survive_page_change_and_reload(
    ledger: Ledger, browser: Callable[[str], None]
) -> None:
    """Otherwise the same clicks would make two different packages with one name."""
    browser("mine")
    session = open_release(ledger)
    wait(session.set(confirmation="survey").press("release"))
    key = next(row.key for row in Ledger(ledger.path).rows() if row.kind == "spend")
    session.set(release_result_view="Published tables")
    session.set(release_result_whole=True, release_result_least=3.0)
    session.set(**{record_count_form.PUBLISHABLE: 12.0})
    session.go("preview").go("release").set(release_result_view="Published tables")
    again = reload_page(session).set(release_result_view="Published tables")
    reopened = reload_page(session).press("Past releases").set(past_release=key)
    reopened.press("open_result").set(release_result_view="Published tables")
    for shown in (session, again, reopened):
        assert shown.app.checkbox(key="release_result_whole").value
        assert shown.app.number_input(key="release_result_least").value == 3.0
        assert shown.app.number_input(key=record_count_form.PUBLISHABLE).value == 12.0
        assert not shown.app.warning


def test_other_browser_sees_no_release_at_address(
    ledger: Ledger, browser: Callable[[str], None]
) -> None:
    browser("mine")
    session = open_release(ledger)
    wait(session.set(confirmation="survey").press("release"))
    for name in ("theirs", ""):
        browser(name)
        for other in (reload_page(session), reload_page(session).set(step=CONFIRM)):
            assert other.studio.to_json() == session.studio.to_json()
            shown = str(other.app.main) + str(other.app.sidebar)
            for word in (str(ledger.path), "Released for", "Rows read", "2.5 pcost", "'survey'"):
                assert word not in shown


def test_report_on_rows_survives_reload_only(
    ledger: Ledger, browser: Callable[[str], None]
) -> None:
    browser("mine")
    session = open_release(ledger)
    wait(session.set(confirmation="survey").press("release"))
    again = reload_page(reload_page(session))
    assert "Rows read 944 = counted 944 + dropped 0" in again.text()
    places = (ledger.path.parent / "settings" / "places.json").read_text()
    # The number of rows, 944, must not be stored. Random keys and digests can contain these digits
    # between other letters and digits.
    assert not re.search(r"(?<!\w)944(?!\w)", places + str(again.app.query_params))
    browser("theirs")
    assert "Rows read" not in reload_page(session).text()
    browser("mine")
    again.go("preview").go("release")
    assert "Released for survey" in again.text()
    for shown in (again, reload_page(again)):
        assert "Rows read" not in shown.text()


def test_report_on_rows_is_the_same_after_reload(
    ledger: Ledger, tmp_path: Path, browser: Callable[[str], None]
) -> None:
    """Neither text has the warning that the check of the records showed."""
    browser("mine")
    place = tmp_path / "records.csv"
    records = pd.read_csv(SURVEY).assign(id=lambda frame: range(len(frame)))
    records.loc[:99, "age"] = 500
    records.to_csv(place, index=False)
    session = open_release(ledger, records=str(place))
    wait(session.press("check_records"))
    assert "id" in " ".join(box.value for box in session.app.warning)
    wait(session.set(confirmation="survey").press("release"))
    boxes = [box.value for box in session.app.warning]
    assert "100 of 944 rows" in boxes[0]
    assert [box.value for box in reload_page(session).app.warning] == boxes


def test_report_survives_reload_during_release(
    ledger: Ledger, browser: Callable[[str], None]
) -> None:
    browser("mine")
    session = open_release(ledger).set(confirmation="survey").press("release")
    assert "Rows read 944" in wait(reload_page(session)).text()


def test_names_without_values_survive_reload(browser: Callable[[str], None]) -> None:
    browser("mine")
    session = upload(Session(), "records.csv", b"age,sex\n31,F\n")
    again = reload_page(session, "schema")
    assert [row["name"] for row in again.app.session_state[grid.BASE]] == ["age", "sex"]
    assert "sex" not in str(again.app.query_params)
    upload(again, "schema.json", b'{"age": 9}')
    assert reload_page(again, "schema").app.session_state[grid.BASE][-1]["name"] == "age"
    browser("theirs")
    assert not reload_page(session, "schema").app.session_state[grid.BASE][0]["name"]


def test_ledger_lists_releases_without_a_plan(
    ledger: Ledger, browser: Callable[[str], None]
) -> None:
    browser("mine")
    ledger.add_dataset("other", total=Budget(pcost=9.0))
    measurements = [
        measure(demo_plan("survey", ways, pcost), SURVEY, dataset=dataset, ledger=ledger)
        for dataset, ways, pcost in (
            ("survey", (1,), 1.0),
            ("other", (1, 2), 2.0),
            ("other", (1,), 0.5),
        )
    ]
    common = engine.coarse_or_fine(demo_plan("survey", (1,)), demo_plan("survey", (1, 2)))
    stepwise.look(common, SURVEY, dataset="other", ledger=ledger)
    session = Session().go("release")
    assert not any(b.key == "release" for b in session.app.button)
    session.set(ledger_path=str(ledger.path))
    for again in (session, Session().go("release")):  # the new session reopens the ledger
        assert "1 release of survey" in " ".join(s.value for s in again.app.subheader)
        again.press("open_result")
        pd.testing.assert_frame_equal(
            answers_on_page(again), answers_of_first_group(measurements[0])
        )
        again.press("Past releases").set(dataset="other")
        assert len(again.app.selectbox(key="past_release").options) == 2
        assert "First measurement 1 of" in again.text()
        assert "waits for a decision" in again.text()
        again.press("open_result")
        pd.testing.assert_frame_equal(
            answers_on_page(again), answers_of_first_group(measurements[2])
        )
        again.press("Past releases").set(past_release=measurements[1].key).press("open_result")
        pd.testing.assert_frame_equal(
            answers_on_page(again), answers_of_first_group(measurements[1])
        )
    pd.testing.assert_frame_equal(
        answers_on_page(reload_page(session)), answers_of_first_group(measurements[1])
    )
    session.press("Past releases").press("past_look_1")
    session.app.switch_page("pages/coarse.py")
    assert "Result of the first measurement" in " ".join(
        s.value for s in session.run(session.app).app.subheader
    )
    assert len([k for k in row_kinds(ledger) if k == "spend"]) == 4


def test_settings_hold_paths_and_are_private(
    ledger: Ledger, browser: Callable[[str], None]
) -> None:
    browser("mine")
    session = open_release(ledger)
    file = ledger.path.parent / "settings" / "places.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert set(json.loads(file.read_text())["mine"]) == {"pages", "ledgers", "used"}
    for content in ("", "[]", "{", "[" * 100_000):
        file.write_text(content)
        assert "Privacy budget" in reload_page(session).metrics()


def test_duplicated_tab_does_not_change_what_other_tab_restores(
    ledger: Ledger, browser: Callable[[str], None]
) -> None:
    browser("mine")
    ledger.add_dataset("other", total=Budget(pcost=1.0))
    first = open_release(ledger, dataset="survey")
    second = Session(**first.app.query_params).go("release")
    assert second.app.query_params["at"] == first.app.query_params["at"]
    second.set(dataset="other")
    assert second.app.query_params["at"] != first.app.query_params["at"]
    assert reload_page(first).app.session_state["dataset"] == "survey"
    assert reload_page(second).app.session_state["dataset"] == "other"


def test_options_of_published_tables_stay_with_their_release(ledger: Ledger) -> None:
    keys = [
        measure(plan, SURVEY, dataset="survey", ledger=ledger).key
        for plan in (demo_plan("survey", (1,)), demo_plan("survey", (1, 2)))
    ]
    session = Session().go("release").set(ledger_path=str(ledger.path))
    session.set(past_release=keys[0]).press("open_result")
    session.set(release_result_view="Published tables", release_result_whole=True)
    wait(session.press("release_result_publish"))
    assert "All tables sum to" in session.text()
    session.press("Past releases").set(past_release=keys[0]).press("open_result")
    assert session.app.checkbox(key="release_result_whole").value
    assert "All tables sum to" in session.text()
    session.press("Past releases").set(past_release=keys[1]).press("open_result")
    assert not session.app.checkbox(key="release_result_whole").value
    assert "All tables sum to" not in session.text()
    session.press("Past releases").set(past_release=keys[0]).press("open_result")
    assert session.app.checkbox(key="release_result_whole").value
    assert "All tables sum to" in session.text()
