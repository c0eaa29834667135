"""Workload page: groups of all families, weights, files and refusals."""

from __future__ import annotations

import json

import pytest

from engine.workload import Attribute, Schema, Workload
from pages.parts.shell import permalink
from pages.parts.shell.history import RequestState
from tests.app.session import Session, demo_schema, open_demo
from tests.app.workload.sessions import SURVEY, open_workload


def test_groups_of_all_families_are_added() -> None:
    schema = Schema(
        [Attribute.of_size("age", 12), Attribute.of_size("income", 9), Attribute.of_size("sex", 2)]
    )
    session = Session(plan=permalink.packed(RequestState(workload=Workload(schema)))).go("workload")
    assert "at least one table" in session.text()
    session.set(ways=[1], special=["age"], own_age="range").press("add_ways")
    assert session.metrics()["Tables"] == "3"
    assert session.metrics()["Queries"] == str(12 * 13 // 2 + 9 + 2)
    session.set(add_how="One table").press("add_total")
    families = {"own_age": "range", "own_income": "circular"}
    session.set(
        group_names=["age", "income"], group_how="One per attribute", **families, group_weight=2.5
    )
    session.press("add_group")
    session.set(group_names=["age"], group_how="Same for all", same="width", same_width=3).press(
        "add_group"
    )
    session.set(group_how="Joint", joint="random", joint_p=0.4, joint_count=11).press("add_group")
    session.set(joint="custom", joint_text="age >= 10\nage < 4 or age >= 11").press("add_group")
    # last, because each run of the page forecasts the workload, and this family is slow
    session.set(group_names=["age", "income"], joint="affine").press("add_group")
    workload = session.studio.workload
    assert [g.family_text for g in workload.groups[3:]] == [
        "total",
        "range × circular",
        "width",
        "random",
        "custom",
        "affine",
    ]
    assert [g.count for g in workload.groups[5:8]] == [10, 11, 2]
    assert workload.groups[4].weight == 2.5
    chosen = f"chosen_{session.app.session_state['history'].version}"
    session.set(**{chosen: [3, 4, 8]}).press("remove")
    assert [g.family_text for g in session.studio.workload.groups[3:]] == [
        "width",
        "random",
        "custom",
    ]
    session.set(
        new_weight=4.0, **{f"chosen_{session.app.session_state['history'].version}": [0]}
    ).press("weigh")
    assert session.studio.workload.groups[0].weight == 4.0
    assert session.press("clear").studio.workload.groups == ()
    assert len(session.press("undo").studio.workload.groups) == 6


def test_invalid_groups_are_refused_with_reason() -> None:
    session = open_demo(page="workload").set(add_how="One table", group_names=["sex"])
    before = session.studio.to_json()
    for values in (
        {"same": "prefix"},
        {"same": "range"},
        {"group_how": "Joint", "joint": "affine"},
        {"joint": "custom", "joint_text": "height > 3"},
        {"joint_text": "__import__('os').system('true')"},
        {"joint_text": "("},
        {"joint_text": ""},
        {"joint": "random", "joint_p": 1.5},
    ):
        session.set(**values)
        assert session.errors(), values
        assert not any(b.key == "add_group" for b in session.app.button)
    session.set(group_names=["age"], group_how="Same for all", same="width", same_width=51)
    assert "width 51 is more than the 50 cells" in session.errors()
    assert session.studio.to_json() == before


@pytest.mark.parametrize(
    ("query_type", "family", "example"),
    [
        ("Tables", "marginal", "records with income = "),
        ("Cumulative tables", "prefix", "records with income < "),
        ("Ranges", "range", " <= income < "),
    ],
)
def test_query_types_have_examples_and_tables_first(
    query_type: str, family: str, example: str
) -> None:
    session = open_workload("cps")
    choice = session.app.radio(key="ways_ask")
    assert choice.value == "Tables" == choice.options[0]
    session.set(ways_ask=query_type, ways=[1, 2])
    assert "Planning takes about" in session.text()  # before a group is added
    schema = demo_schema("cps")
    of = {a.name: family for a in schema.attributes if a.kind == "numeric"}
    wanted = Workload.all_ways(schema, (1, 2), of)
    captions = session.app.radio(key="ways_ask").proto.captions
    assert example in captions[["Tables", "Cumulative tables", "Ranges"].index(query_type)].replace(
        "\\", ""
    )
    session.press("add_ways")
    assert session.studio.workload == wanted
    names: dict = {}
    exec(session.app.code[-1].value, names)
    assert names["workload"] == wanted
    assert "all_ways" in session.app.code[-1].value


def test_all_ways_use_weight_and_special_families() -> None:
    session = open_workload("cps").set(ways_ask="Cumulative tables", ways=[2])
    session.set(special=["age"], own_age="range", ways_weight=0.5).press("add_ways")
    expected = Workload.all_ways(demo_schema("cps"), (2,), {"age": "range"})
    assert [(g.attributes, dict(g.family), g.weight) for g in session.studio.workload.groups] == [
        (g.attributes, dict(g.family), 0.5) for g in expected.groups
    ]


def test_duplicate_groups_are_not_added() -> None:
    session = open_workload().set(ways_ask="Cumulative tables", ways=[1]).press("add_ways")
    before = session.studio.required_workload
    session.set(ways=[1])
    assert next(b for b in session.app.button if b.key == "add_ways").disabled
    assert "Already in the workload" in session.text()
    assert session.studio.required_workload == before
    session.set(ways=[1, 2]).press("add_ways")
    assert session.studio.required_workload == Workload.all_ways(SURVEY, (1, 2))
    assert not session.errors()
    assert "45 tables added." in session.text()
    assert not session.app.toast  # toasts have no accessible name
    assert "tables added" not in session.set(ways_weight=2.0).text()


def test_selected_group_is_drawn() -> None:
    session = open_workload("cps").set(ways=[2]).press("add_ways")
    version = session.app.session_state["history"].version
    session.set(**{f"chosen_{version}": [0]})
    assert "100 queries" in session.text()
    session.set(group_picture_part=-1)
    assert "Query 2,500 of 5,000" in session.text()


def test_workload_file_is_loaded_or_refused() -> None:
    workload = Workload.all_ways(demo_schema("census"), (1, 2))
    session = Session().go("workload")
    for content in (
        b"{}",
        b"x",
        json.dumps({"format": "workload/1", "schema": {}, "groups": []}).encode(),
    ):
        session.run(
            session.app.file_uploader(key="workload_file").upload(
                "w.json", content, "application/json"
            )
        )
        assert session.errors()
        assert session.studio.workload is None
    content = workload.to_json().encode()
    session.run(
        session.app.file_uploader(key="workload_file").upload("w.json", content, "application/json")
    )
    assert session.studio.workload == workload
    assert not session.errors()


def test_too_many_groups_are_refused() -> None:
    names = {f"a{i}": 2 for i in range(120)}
    session = Session()
    session.run(
        session.app.file_uploader(key="schema_file").upload(
            "s.json", json.dumps(names).encode(), "text/plain"
        )
    )
    session.press("next").set(ways=[3])
    assert "280,840 groups" in session.errors()
