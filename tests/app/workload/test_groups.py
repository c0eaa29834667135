"""Workload page: groups of all families, weights, files and refusals."""

from __future__ import annotations

import json

import pytest

from engine.errors import WorkloadError
from engine.workload import Attribute, Schema, Workload
from pages.parts.shell import permalink
from pages.parts.shell.history import RequestState
from pages.parts.workload import group_table
from tests.app.session import Session, demo_schema, open_demo
from tests.app.workload.sessions import SURVEY, open_workload


def test_groups_of_all_families_are_added() -> None:
    schema = Schema(
        [Attribute.of_size("age", 12), Attribute.of_size("income", 9), Attribute.of_size("sex", 2)]
    )
    session = Session(plan=permalink.packed(RequestState(workload=Workload(schema)))).go("workload")
    assert "at least one table" in session.text()
    session.set(ways=[1], special=["age"], own_age="range").press("add_ways")
    assert f"3 tables, {12 * 13 // 2 + 9 + 2} queries" in session.text()
    session.set(add_how="One table").press("add_total")
    families = {"own_age": "range", "own_income": "circular"}
    session.set(group_names=["age", "income"], group_how="One per attribute", **families)
    session.press("add_group")
    session.set(group_names=["age"], group_how="Same for all", same="width", same_width=3).press(
        "add_group"
    )
    joint = {"group_names": ["age"], "group_how": "Joint"}
    session.set(**joint, joint="random", joint_p=0.4, joint_count=11).press("add_group")
    text = "age >= 10\nage < 4 or age >= 11"
    session.set(**joint, joint="custom", joint_text=text).press("add_group")
    # The slow family affine is added last, because each run of the page forecasts all groups.
    joint["group_names"] = ["age", "income"]
    session.set(**joint, joint="affine").press("add_group")
    workload = session.studio.workload
    expected = ["total", "range × circular", "width", "random", "custom", "affine"]
    assert [g.family_text for g in workload.groups[3:]] == expected
    assert [g.count for g in workload.groups[5:8]] == [10, 11, 2]
    session.set(new_weight=4.0).press("weigh")
    assert {g.weight for g in session.studio.workload.groups} == {4.0}
    assert session.press("remove").studio.workload.groups == ()
    assert session.press("undo").studio.workload.groups[8].weight == 4.0


def test_addition_clears_chosen_attributes() -> None:
    session = open_workload(add_how="One table").set(group_names=["age"]).press("add_group")
    assert session.app.multiselect(key="group_names").value == []
    assert "add the total number of records" in session.text()
    session.press("add_total")
    assert [group.attributes for group in session.studio.workload.groups] == [("age",), ()]


def test_same_attributes_with_other_counts_are_not_highlighted() -> None:
    session = open_workload("cps")

    def button_type() -> str:
        return next(b for b in session.app.button if b.key == "add_ways").proto.type

    assert button_type() == "primary"
    session.set(ways=[1], special=["age"], own_age="range").press("add_ways")
    # After the addition, the form proposes plain counts of age. The workload has ranges of age.
    assert button_type() == "secondary"
    session.set(ways=[1, 2])
    assert button_type() == "primary"


def test_example_has_the_type_of_counts_of_its_attribute() -> None:
    schema = Schema([Attribute.of_size("age", 12), Attribute.of_size("sex", 2)])
    session = Session(plan=permalink.packed(RequestState(workload=Workload(schema)))).go("workload")
    assert "Example: records with age = 6." in session.text()
    session.set(special=["age"], own_age="prefix")
    assert "Example: records with age <= 6." in session.text()
    session.set(own_age="total")
    assert "Example: all records." in session.text()
    session.set(own_age="prefix", ways=[1]).press("add_ways").set(special=[])
    assert "1 of 2 tables is already included." in session.text()


def test_form_names_tables_with_another_type_of_counts() -> None:
    workload = Workload.all_ways(SURVEY, (1, 2))
    session = Session(plan=permalink.packed(RequestState(workload=workload))).go("workload")
    # The first choice of the form is the query type in the workload.
    assert session.app.session_state["ways_ask"] == "Cumulative tables"
    assert "Already in the workload" in session.text()
    session.set(ways_ask="Tables")
    assert "21 of 55 tables are already included." in session.text()
    assert "another query type for the same attributes, such as age" in session.text()


def test_edits_of_the_grid_set_weights_and_remove() -> None:
    workload = Workload.all_ways(SURVEY, (1,))
    edited = group_table.apply_edits(
        workload, [2, 0], {0: {"weight": 3}, "1": {"remove": True, "weight": 5.0}}
    )
    assert [g.attributes for g in edited.groups] == [g.attributes for g in workload.groups[1:]]
    assert [g.weight for g in edited.groups] == [1.0, 3.0, *[1.0] * 7]
    assert group_table.apply_edits(workload, [0], {0: {"remove": False}}) == workload


def test_invalid_weights_in_the_grid_are_refused() -> None:
    workload = Workload.all_ways(SURVEY, (1,))
    for weight in (-1.0, None, 1e300):
        with pytest.raises(WorkloadError, match="weight"):
            group_table.apply_edits(workload, [0], {0: {"weight": weight}})


def test_same_table_in_another_order_is_not_added() -> None:
    session = open_workload(add_how="One table").set(group_names=["age", "vote"])
    session.press("add_group").set(group_names=["vote", "age"])
    assert next(b for b in session.app.button if b.key == "add_group").disabled
    assert "Already in the workload" in session.text()
    session.set(group_names=["vote", "party"])
    assert "Already in the workload" not in session.text()
    assert not next(b for b in session.app.button if b.key == "add_group").disabled


def test_invalid_groups_are_refused_with_reason() -> None:
    session = open_demo(page="workload").set(add_how="One table", group_names=["sex"])
    before = session.studio.to_json()
    for values in (
        {"same": "prefix"},
        {"same": "range"},
        {"group_how": "Joint", "joint": "custom", "joint_text": "height > 3"},
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
    assert "planning takes about" in session.text()  # before a group is added
    schema = demo_schema("cps")
    families = {a.name: family for a in schema.attributes if a.kind == "numeric"}
    expected = Workload.all_ways(schema, (1, 2), families)
    assert example in session.text()
    session.press("add_ways")
    assert session.studio.workload == expected
    names: dict = {}
    exec(session.app.code[-1].value, names)
    assert names["workload"] == expected
    assert "all_ways" in session.app.code[-1].value


def test_all_ways_use_special_families() -> None:
    session = open_workload("cps").set(ways_ask="Cumulative tables", ways=[2])
    session.set(special=["age"], own_age="range").press("add_ways")
    expected = Workload.all_ways(demo_schema("cps"), (2,), {"age": "range"})
    assert [(g.attributes, dict(g.family), g.weight) for g in session.studio.workload.groups] == [
        (g.attributes, dict(g.family), 1.0) for g in expected.groups
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
    assert "Already" not in session.text()  # the message replaces the hint
    assert not session.app.toast  # toasts have no accessible name
    assert "tables added" not in session.set(ways=[2]).text()
    assert "Already in the workload" in session.text()


def test_queries_of_a_new_table_are_drawn() -> None:
    session = open_workload("cps", add_how="One table").set(group_names=["income", "age"])
    session.set(family_fold=True)
    # At first, the chart shows a query on both attributes.
    assert "Query 2,500 of 5,000" in session.text()
    session.set(family_part=0)
    assert "100 queries" in session.text()


def test_many_ranges_are_listed_instead_of_drawn() -> None:
    session = open_workload("cps", add_how="One table").set(group_names=["income", "age"])
    session.set(same="range", family_fold=True, family_part=0)
    assert not session.app.get("plotly_chart")
    examples = session.app.dataframe[0].value
    assert examples["number"].iloc[-1] == 100 * 101 // 2  # ranges of the 100 cells of income
    assert examples["query"].iloc[-1].startswith("income")
    session.set(same="prefix")
    assert session.app.get("plotly_chart")


def test_type_of_counts_on_bins_agrees_with_query_texts() -> None:
    session = open_workload("survey", add_how="One table").set(group_names=["age"])
    choice = next(box for box in session.app.selectbox if box.key == "same")
    assert "prefix: How many records are below each edge?" in choice.options
    session.set(same="prefix")
    assert "age < " in session.text()


def test_chart_of_joint_queries_has_no_choice_of_part() -> None:
    session = open_workload("cps", add_how="One table").set(group_names=["income", "age"])
    session.set(group_how="Joint", joint="affine").set(family_fold=True)
    assert not any(box.key == "family_part" for box in session.app.selectbox)
    assert session.app.get("plotly_chart")
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
    assert "280,840 groups" in session.errors()  # sets of 3 of the 120 attributes
