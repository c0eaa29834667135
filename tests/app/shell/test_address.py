"""Requests written as page addresses, as short names of stored requests, and as Python code."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from engine.mechanisms import plan
from engine.privacy import Budget
from engine.workload import Attribute, Custom, Schema, Workload
from engine.workload.conditions import box_workload
from engine.workload.sql import example, workload_from_sql
from pages.parts.shell import long_url_store, permalink, python_script, session_restore
from pages.parts.shell.history import History, RequestState
from tests.app.session import Session, upload
from tests.app.workload.sessions import SURVEY, build_large_workload, open_workload


def build_studio() -> RequestState:
    workload = Workload.all_ways(SURVEY, (1,))
    sql = (
        "SELECT vote, COUNT(*) FROM t WHERE age < 40 OR party = 'Independent' GROUP BY vote; SELECT"
        " COUNT(*) FROM t"
    )
    sql = sql.replace("Independent", SURVEY["party"].labels[3].replace("'", "''"))
    for more in (
        workload_from_sql(SURVEY, sql),
        box_workload(SURVEY, {"age": (2, 21), "tv_news_days": (0, 3)}, 2.0),
        Workload(SURVEY).add("vote", Custom(matrix=[[1, -1]], labels=["difference"])),
        Workload(SURVEY).add(
            ("age", "vote"), {"age": Custom(predicates=["age < 30"]), "vote": "marginal"}, 0.5
        ),
    ):
        workload = Workload(SURVEY, (*workload.groups, *more.groups))
    return RequestState(workload=workload, budget=Budget(pcost=0.7))


def test_plan_code_rebuilds_all_groups() -> None:
    here, names = build_studio(), {}
    exec(python_script.plan_code(here), names)
    assert names["workload"] == here.workload
    assert names["workload_plan"].hash == plan(here.workload, here.budget).hash


def test_page_code_rebuilds_added_groups() -> None:
    session = open_workload(add_how="Write SQL").set(sql_text=example(SURVEY)).press("add_sql")
    session.set(add_how="Pick a range").press("add_range")
    names: dict = {}
    exec(session.app.code[-1].value, names)
    assert names["workload"] == session.studio.workload


@pytest.mark.parametrize("kind", ["query weights", "large matrix"])
def test_long_workload_code_reads_file(
    kind: str, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = Schema([Attribute.of_size("age", 60)])
    family = Custom(matrix=np.eye(60)) if kind == "large matrix" else "marginal"
    weights = None if kind == "large matrix" else np.arange(60)
    workload = Workload(schema).add("age", family, 1.0, weights)
    text = python_script.workload_script(RequestState(workload=workload)).text()
    assert len(text) < 2_000
    monkeypatch.chdir(tmp_path)
    (tmp_path / "workload.json").write_text(workload.to_json(), encoding="utf-8")
    names: dict = {}
    exec(text, names)
    assert names["workload"] == workload


def test_address_and_plan_file_restore_all_groups() -> None:
    here = build_studio()
    assert len(permalink.packed(here)) < permalink.MAX_LENGTH
    session = Session(plan=permalink.packed(here)).go("workload")
    assert session.studio.to_json() == here.to_json()
    result = plan(here.workload, here.budget)
    upload(session.go("start"), "p.json", result.to_json().encode(), "open_file")
    assert session.studio.workload == here.workload


def test_long_request_is_stored_under_short_name() -> None:
    here = RequestState(workload=build_large_workload(), budget=Budget(pcost=0.7))
    session = Session()
    session.app.session_state["history"] = History(present=here)
    name = session.run(session.app).app.query_params[permalink.NAME]
    name = name[0] if isinstance(name, list) else name
    assert name.startswith(permalink.NAMED)
    assert len(name) < 30
    assert Session(plan=name).studio.to_json() == here.to_json()
    (file,) = (
        f
        for f in (session_restore.folder() / "designs").iterdir()
        if f.stem == name.removeprefix(permalink.NAMED)
    )
    assert file.stat().st_mode & 0o077 == 0  # readable by its owner only
    assert set(json.loads(long_url_store.find(file.stem))) == {"question", "budget"}
    for wrong in ("~AAAAAAAAAAAAAAAA", "~", f"~../designs/{file.stem}", f"~{file.stem[:-1]}"):
        again = Session(plan=wrong)
        assert again.studio.workload is None
        assert "does not have the plan to which" in again.errors()


def test_stored_requests_are_limited_in_number(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(session_restore.VARIABLE, str(tmp_path))
    monkeypatch.setattr(long_url_store, "MAX_REQUESTS", 3)
    names = [long_url_store.keep(f"text {i}") for i in range(5)]
    left = {file.stem for file in (tmp_path / "designs").iterdir()}
    assert len(left) == 3
    assert names[-1] in left
    assert long_url_store.find(names[-1]) == b"text 4"
    monkeypatch.setattr(long_url_store, "MAX_TEXT", 3)
    assert long_url_store.keep("text") == ""
