"""The Schema page: demos, attributes one by one, files of schemas, without a browser."""

from __future__ import annotations

import pytest

from tests.app.session import Session, demo, with_plan


def test_a_schema_from_a_demo_and_back() -> None:
    session = Session().set(demo="adult").press("Use this schema")
    assert session.metrics()["Attributes"] == "14"
    assert session.studio.schema == demo("adult")
    session.set(demo="census").press("Use this schema")
    assert session.metrics()["Attributes"] == "2"
    assert session.press("undo").metrics()["Attributes"] == "14"
    assert session.press("redo").metrics()["Attributes"] == "2"
    assert "No schema yet" in session.press("undo").press("undo").said()


def test_attributes_are_added_one_by_one_and_mistakes_lose_nothing() -> None:
    session = Session().set(new_name="sex", new_labels="F\nM").press("Add attribute")
    session.set(new_name="age", domain="Bins", new_edges="0:100:20").press("Add attribute")
    session.set(new_name="code", domain="Codes", new_size=9, new_kind="categorical").press("Add attribute")
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
def test_files_that_are_no_schema(name: str, content: bytes) -> None:
    session = Session().set(demo="cps").press("Use this schema")
    session.run(session.app.file_uploader(key="schema_file").upload(name, content, "text/plain"))
    assert session.errors()
    assert session.studio.schema == demo("cps")


@pytest.mark.parametrize("name", ["mine.json", "mine.csv"])
def test_a_schema_file(name: str) -> None:
    schema = demo("survey")
    content = (schema.to_json() if name.endswith("json") else schema.to_csv()).encode()
    session = Session()
    session.run(session.app.file_uploader(key="schema_file").upload(name, content, "text/plain"))
    assert session.studio.schema == schema


def test_another_schema_keeps_the_groups_that_fit_and_names_the_rest() -> None:
    session = with_plan(page="schema").set(demo="census").press("Use this schema")
    assert "12 groups no longer fit" in session.said()
    assert len(session.studio.workload.groups) == 3
    assert len(session.press("undo").studio.workload.groups) == 15
    assert "no longer fit" not in session.said()
