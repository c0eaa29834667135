"""Schema page: demos, attribute form, schema files and table edits."""

from __future__ import annotations

from typing import Any

import pytest

from engine.errors import SchemaError
from engine.workload import Attribute, Schema
from pages.parts.workload.schema_table import apply_edits
from tests.app.session import Session, demo_schema, open_demo


def test_demo_schema_is_loaded_and_undone() -> None:
    session = Session().set(demo="adult").press("Use this schema")
    assert session.metrics()["Attributes"] == "14"
    assert session.studio.schema == demo_schema("adult")
    session.set(demo="census").press("Use this schema")
    assert session.metrics()["Attributes"] == "2"
    assert session.press("undo").metrics()["Attributes"] == "14"
    assert session.press("redo").metrics()["Attributes"] == "2"
    assert "No schema yet" in session.press("undo").press("undo").text()


def test_attributes_are_added_and_mistakes_are_refused() -> None:
    session = Session().set(new_name="sex", new_labels="F\nM").press("Add attribute")
    session.set(new_name="age", domain="Bins", new_edges="0:100:20").press("Add attribute")
    session.set(new_name="code", domain="Codes", new_size=9, new_kind="categorical").press(
        "Add attribute"
    )
    assert session.studio.schema.sizes(["sex", "age", "code"]) == (2, 5, 9)
    before = session.studio.to_json()
    for values in (
        {"new_name": "code", "domain": "Codes"},
        {"new_name": "x", "domain": "Bins", "new_edges": "5, 4"},
        {"new_name": "x", "domain": "Bins", "new_edges": "five"},
        {"new_name": "", "domain": "Codes"},
        {"new_name": "x", "domain": "Labels", "new_labels": "a\na"},
        {"new_name": "x\u202ey", "domain": "Labels", "new_labels": "a"},
    ):
        session.set(**values).press("Add attribute")
        assert session.errors()
        assert session.studio.to_json() == before
    assert not session.set(new_name="x", new_labels="a\nb").press("Add attribute").errors()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.json", b"{"),
        ("a.json", b"[" * 200_000),
        ("a.json", b'{"age": 5, "sex": "two"}'),
        ("a.json", b"\xff\xfe\x00"),
        ("a.csv", b"name,size\n"),
        ("a.csv", b"name,kind,size\nage,numeric,-4\n"),
        ("a.csv", b""),
    ],
)
def test_invalid_schema_files_are_refused(name: str, content: bytes) -> None:
    session = Session().set(demo="cps").press("Use this schema")
    session.run(session.app.file_uploader(key="schema_file").upload(name, content, "text/plain"))
    assert session.errors()
    assert session.studio.schema == demo_schema("cps")


@pytest.mark.parametrize("name", ["mine.json", "mine.csv"])
def test_schema_file_is_loaded(name: str) -> None:
    schema = demo_schema("survey")
    content = (schema.to_json() if name.endswith("json") else schema.to_csv()).encode()
    session = Session()
    session.run(session.app.file_uploader(key="schema_file").upload(name, content, "text/plain"))
    assert session.studio.schema == schema


def test_new_schema_drops_groups_without_attributes() -> None:
    session = open_demo(page="schema").set(demo="census").press("Use this schema")
    assert "12 tables no longer fit" in session.text()
    assert len(session.studio.workload.groups) == 3
    assert len(session.press("undo").studio.workload.groups) == 15
    assert "no longer fit" not in session.text()


def test_added_attribute_leaves_nothing_to_the_next() -> None:
    session = Session().set(new_name="sex", new_labels="F\nM", new_other="else", new_missing="gone")
    session.press("Add attribute").set(new_name="job", new_labels="clerk\ncashier").press(
        "Add attribute"
    )
    session.set(
        new_name="age", domain="Bins", new_edges="0, 9, 18", new_clip=True, new_integer=True
    )
    session.press("Add attribute").set(new_name="rate", new_edges="0, 1, 2").press("Add attribute")
    session.set(new_name="code", domain="Codes", new_size=3, new_kind="categorical").press(
        "Add attribute"
    )
    session.set(new_name="rank").press("Add attribute")
    assert session.studio.schema == Schema(
        [
            Attribute.categorical("sex", ["F", "M"], other="else", missing="gone"),
            Attribute.categorical("job", ["clerk", "cashier"]),
            Attribute.numeric("age", [0, 9, 18], clip=True, integer=True),
            Attribute.numeric("rate", [0, 1, 2]),
            Attribute.of_size("code", 3, kind="categorical"),
            Attribute.of_size("rank", 10),
        ]
    )


def test_refused_attribute_stays_in_the_form() -> None:
    session = (
        Session().set(new_name="sex", new_labels="F\nF", new_missing="gone").press("Add attribute")
    )
    assert session.app.session_state["new_labels"] == "F\nF"
    assert session.app.session_state["new_missing"] == "gone"


ROWS = Schema([Attribute.of_size(name, 2) for name in ("a", "b", "c")])


@pytest.mark.parametrize(
    ("edits", "row"),
    [
        ({"edited_rows": {2: {"size": "two"}}}, "Row 3"),
        ({"edited_rows": {2: {"size": "two"}}, "deleted_rows": [0]}, "Row 2"),
        (
            {"added_rows": [{"kind": "numeric"}, {"name": "d", "kind": "numeric", "edges": "2|1"}]},
            "Row 5",
        ),
    ],
)
def test_table_errors_name_the_displayed_row(edits: dict[str, Any], row: str) -> None:
    with pytest.raises(SchemaError, match=row):
        apply_edits(ROWS, edits)


def test_form_adds_dates_and_declared_texts() -> None:
    session = Session().set(
        domain="Dates", new_name="day", new_start="2024-01-01", new_stop="2024-12-31"
    )
    session.set(
        new_unit="quarter",
        new_missing="unknown",
        new_missing_values="NA|.",
        new_date_format="%d.%m.%Y",
    )
    session.press("Add attribute")
    session.set(
        domain="Bins", new_name="pay", new_edges="0, 1000", new_decimal=",", new_thousands="."
    )
    session.set(new_missing_values="-").press("Add attribute")
    session.set(new_name="rate", new_edges="0, 1").press("Add attribute")
    session.set(domain="Dates", new_name="x", new_start="2025", new_stop="2024").press(
        "Add attribute"
    )
    assert session.errors()
    assert session.studio.schema == Schema(
        [
            Attribute.dates(
                "day",
                "2024-Q1",
                "2024-Q4",
                "quarter",
                missing="unknown",
                missing_values=["NA", "."],
                date_format="%d.%m.%Y",
            ),
            Attribute.numeric("pay", [0, 1000], decimal=",", thousands=".", missing_values=["-"]),
            Attribute.numeric("rate", [0, 1]),
        ]
    )


def test_table_edits_dates() -> None:
    schema = Schema(
        [Attribute.dates("day", "2024-01", "2024-03"), Attribute.categorical("sex", ["F", "M"])]
    )
    edits = {0: {"stop": "2024-12", "unit": "quarter"}, 1: {"missing_values": "NA|n/a"}}
    assert apply_edits(schema, {"edited_rows": edits}) == Schema(
        [
            Attribute.dates("day", "2024-Q1", "2024-Q4", "quarter"),
            Attribute.categorical("sex", ["F", "M"], missing_values=["NA", "n/a"]),
        ]
    )


def test_table_edits_integer_flag() -> None:
    schema = Schema([Attribute.numeric("age", [0, 18, 90])])
    assert apply_edits(schema, {"edited_rows": {0: {"integer": "true"}}})["age"].integer
    assert apply_edits(schema, {"edited_rows": {0: {"clip": "true"}}})["age"] == Attribute.numeric(
        "age", [0, 18, 90], clip=True
    )
