"""Start page: demos, files that are opened and saved, and the way to other pages."""

from __future__ import annotations

import base64
import json
from io import BytesIO
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from engine._format import format_number
from engine.mechanisms import plan
from engine.privacy import Budget
from engine.workload import Attribute, Schema, Workload
from pages.parts.schema import grid
from pages.parts.shell import history, permalink, session_restore
from pages.parts.shell.history import RequestState
from tests.app.session import Session, demo_schema, open_demo, upload, wait


def open_file(name: str, content: bytes | str, session: Session | None = None) -> Session:
    content = content.encode() if isinstance(content, str) else content
    return upload((session or Session()).go("start"), name, content, "open_file")


def title(session: Session) -> str:
    return session.app.title[0].value.split(" ", 1)[1]


def test_demo_says_what_it_opens_and_is_resumed() -> None:
    session = Session().go("start")
    assert not any(b.key == "go_on" for b in session.app.button)
    session.set(start_demo="census")
    assert "all 3 tables of one or two attributes, at ε 1" in session.text()
    session.press("start_Try a demo")
    assert title(session) == "Preview"
    assert session.studio.workload == Workload.all_ways(demo_schema("census"), (1, 2))
    session.go("start")
    assert "2 attributes" in session.text()
    assert title(session.press("go_on")) == "Preview"


def test_buttons_open_schema_and_lessons() -> None:
    assert title(Session().go("start").press("start_Use my own schema")) == "Schema"
    assert title(Session().go("start").press("start_Take a lesson")) == "Learn"


def test_own_schema_after_demo_starts_empty_until_undo() -> None:
    session = open_demo("census").go("start").press("start_Use my own schema")
    assert title(session) == "Schema"
    assert session.studio.workload is None
    assert not any(row["name"] for row in session.app.session_state[grid.BASE])
    session.press("undo")
    assert session.studio.workload == Workload.all_ways(demo_schema("census"), (1, 2))


@pytest.mark.parametrize("way", ["demo", "file"])
def test_another_project_starts_with_defaults(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DP_WORKBENCH_SETTINGS", str(tmp_path / "settings"))
    monkeypatch.setattr(session_restore, "browser", lambda: "mine")
    session = open_demo("census", page="coarse", coarse_step="2. Rule").set(coarse_snr=9.0)
    session.go("release", step="2. File", records_how="File on the server", records_path="a.csv")
    if way == "demo":
        session.go("start").set(start_demo="survey").press("start_Try a demo")
    else:
        open_file("w.json", Workload.all_ways(demo_schema("survey"), (1,)).to_json(), session)
    for one in (session, Session(**session.app.query_params)):  # also after a reload
        assert "What will come out" in one.go("release").text()
        assert "records_path" not in one.app.session_state
        assert "Not sure whether fine tables" in one.go("coarse").text()
        assert one.set(coarse_step="2. Rule").app.number_input(key="coarse_snr").value == 5.0
        one.set(coarse_step="1. Analyses")


def test_words_are_explained_also_with_an_open_project() -> None:
    for session in (Session().go("start"), open_demo("census").go("start")):
        for word in ("Schema", "Workload", "Budget"):
            assert f"**{word}**: " in session.text()


def test_picture_has_the_errors_of_its_demo() -> None:
    session = Session().go("start")
    (chart,) = (json.loads(c.proto.spec) for c in session.app.get("plotly_chart"))
    drawn = [trace["error_y"] for trace in chart["data"] if "error_y" in trace]
    request = RequestState(
        workload=Workload.all_ways(demo_schema("survey"), (1, 2), "auto"),
        budget=history.DEFAULT_BUDGET,
    )
    demo = plan(
        request.required_workload,
        request.budget,
        request.mechanism,
        **request.options_without_defaults,
    )
    group = [group.attributes for group in demo.workload.groups].index(("tv_news_days",))
    half_widths = 1.96 * demo.variances(group) ** 0.5
    array = drawn[0]["array"]
    ends = np.frombuffer(base64.b64decode(array["bdata"]), array["dtype"])
    assert ends == pytest.approx(half_widths.tolist(), rel=1e-3)
    assert "Survey demo, ε 1: " in session.text()
    assert "the file check and the release do" in session.text()
    truth = next(trace for trace in chart["data"] if "error_y" not in trace)
    array = truth["y"]
    counts = np.frombuffer(base64.b64decode(array["bdata"]), array["dtype"])
    assert counts[-1] == 944  # every record has at most 7 days
    assert "of 8 intervals contain the truth" in session.text()


def test_ways_that_replace_the_project_say_so() -> None:
    undo = "Undo restores it."
    assert undo not in Session().go("start").text()
    session = open_demo("census").go("start")
    assert f"Replaces your project; {undo}" in session.text()
    assert "Replaces the demo." in session.text()
    before = session.studio.to_json()
    session.set(start_demo="cps").press("start_Try a demo").press("undo")
    assert session.studio.to_json() == before


def test_own_schema_is_not_replaced_by_empty_one() -> None:
    workload = Workload.all_ways(Schema([Attribute.of_size("a", 3)]), (1,))
    session = open_file("w.json", workload.to_json()).go("start")
    assert "Opens the columns of your project." in session.text()
    assert "Replaces the demo" not in session.text()
    assert session.press("start_Use my own schema").studio.workload == workload


@pytest.mark.parametrize(
    ("name", "content"), [("r.csv", "age,job\n31,F\n"), ("r.json", '[{"age": 31, "job": "F"}]')]
)
def test_records_after_demo_show_only_their_columns(name: str, content: str) -> None:
    session = open_file(name, content, open_demo("census"))
    assert title(session) == "Schema"
    assert session.studio.workload is None
    assert [row["name"] for row in session.app.session_state[grid.BASE]] == ["age", "job"]
    assert "only the 2 column names were read" in session.text()


def test_sheet_of_records_after_demo_shows_only_its_columns() -> None:
    file = BytesIO()
    with pd.ExcelWriter(file, engine="xlsxwriter") as book:
        for name in ("a", "b"):
            pd.DataFrame({"x": [1], "y": ["u"]}).to_excel(book, sheet_name=name, index=False)
    session = upload(open_demo("census").go("start"), "r.xlsx", file.getvalue(), "open_file")
    session.set(draft_sheet_name="b")
    assert title(session) == "Schema"
    assert session.studio.workload is None
    assert [row["name"] for row in session.app.session_state[grid.BASE]] == ["x", "y"]


def download_buttons(session: Session) -> dict[str, bool]:
    """Map the label of each download button to whether the button is enabled."""
    return {b.label: not b.disabled for b in session.app.get("download_button")}


def test_project_is_saved_in_all_forms() -> None:
    session = wait(open_demo("census")).go("start")
    assert download_buttons(session) == dict.fromkeys(
        ("Project (JSON)", "Schema (JSON)", "Schema (CSV)", "Workload (JSON)", "Plan (JSON)"), True
    )


def test_plan_that_was_not_computed_cannot_be_saved() -> None:
    request = RequestState(
        workload=Workload.all_ways(demo_schema("panel"), (1,)), budget=Budget(pcost=0.7123)
    )
    session = Session(plan=permalink.packed(request)).go("start")
    assert not download_buttons(session)["Plan (JSON)"]


def test_project_file_restores_the_request() -> None:
    request = RequestState(
        workload=Workload.all_ways(demo_schema("census"), (1,)), budget=Budget.approx(2.0, 1e-7)
    )
    session = open_file("project.json", request.to_json())
    assert title(session) == "Preview"
    assert session.studio.to_json() == request.to_json()


def test_plan_file_restores_workload_and_options() -> None:
    result = plan(
        Workload.all_ways(demo_schema("census"), (2,)), Budget(pcost=0.3), max_records=10**6
    )
    session = open_file("p.json", b'{"format": "plan/1"}')
    assert "must have the fields 'mechanism'" in session.errors()
    session = wait(open_file("p.json", result.to_json()))
    assert session.studio.workload == result.workload
    assert session.metrics()["Typical error (counts)"] == format_number(result.rmse)
    assert session.studio.options["max_records"] == 10**6


def test_workload_file_keeps_the_budget() -> None:
    session = open_demo("cps")
    workload = Workload.all_ways(demo_schema("census"), (1, 2))
    open_file("w.json", workload.to_json(), session)
    assert session.studio.workload == workload
    assert session.studio.budget == Budget(pcost=1.0)


def test_schema_file_opens_the_schema_page() -> None:
    session = open_file("s.csv", demo_schema("survey").to_csv())
    assert title(session) == "Schema"
    assert session.studio.schema == demo_schema("survey")


def test_records_file_fills_the_grid_with_names() -> None:
    session = open_file("records.csv", "age,sex\n31,F\n")
    assert title(session) == "Schema"
    assert [row["name"] for row in session.app.session_state[grid.INCOMPLETE]] == ["age", "sex"]
    assert "only the 2 column names were read" in session.text()


def test_dictionary_is_confirmed_on_the_schema_page() -> None:
    session = open_file("code book.csv", "name,value,label\nsex,1,Female\n,2,Male\n")
    assert title(session) == "Schema"
    assert session.studio.schema is None
    session.set(draft_agreed=True).press("use_draft")
    assert session.studio.schema is not None
    assert session.studio.schema["sex"].labels == ("Female", "Male")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.json", b"x"),
        ("x.json", b"{}"),
        ("x.json", b'{"format": "plan/1"}'),
        ("x.json", b'{"format": "workload/1", "schema": {}, "groups": []}'),
        ("x.json", b'{"budget": {}, "question": {}}'),
        ("x.csv", b"31,4\n5,6\n"),
        ("x.png", b"\x89PNG"),
    ],
)
def test_invalid_files_are_refused(name: str, content: bytes) -> None:
    session = open_file(name, content)
    assert title(session) == "Start"
    assert session.errors()
    assert session.studio.workload is None
