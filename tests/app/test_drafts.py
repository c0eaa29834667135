"""Schema drafts from dictionaries, labelled files, public tables and workbooks."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import pandas as pd
import pyreadstat
import pytest
import xlsxwriter

import demo_data
from engine.workload import Attribute, Schema
from pages.parts.jobs import private_tempdir
from pages.parts.schema import grid
from tests.app.session import Session, demo_schema, open_demo_schema, upload


def test_data_dictionary_draft_is_confirmed_per_attribute() -> None:
    session = upload(
        Session(), "code book.csv", b"name,value,label\nsex,1,Female\n,2,Male\nage,0-99,\n"
    )
    assert session.studio.schema is None  # the draft has not been confirmed yet
    assert next(b for b in session.app.button if b.key == "use_draft").disabled
    session.set(draft_hold="codes", draft_0=True)
    session.press("use_draft")
    assert session.studio.schema == Schema([Attribute.categorical("sex", ["1", "2"])])
    session = upload(
        Session(), "code book.csv", b"name,value,label\nsex,1,Female\n,2,Male\nage,0-99,\n"
    )
    session.set(draft_agreed=True).press("use_draft")
    assert session.studio.schema is not None
    assert session.studio.schema.names == ("sex", "age")
    assert "Draft from" not in " ".join(s.value for s in session.app.subheader)


def test_draft_takes_chosen_missing_texts_only() -> None:
    session = upload(Session(), "code book.csv", b"name,value,label\nsex,1,F\n,2,NA\nage,0-99,\n")
    session.set(draft_agreed=True, draft_missing_values=["NA", "-"]).press("use_draft")
    schema = session.studio.schema
    assert (schema["sex"].missing_values, schema["age"].missing_values) == (("-",), ("NA", "-"))
    session = upload(session, "code book.csv", b"name,value,label\nsex,1,F\n,2,M\n")
    session.set(draft_agreed=True).press("use_draft")
    assert session.studio.schema["sex"].missing_values == ()


def test_confirmation_does_not_carry_to_next_file() -> None:
    session = upload(
        Session(), "code book.csv", b"name,value,label\nsex,1,Female\n,2,Male\nage,0-99,\n"
    ).set(draft_0=True)
    upload(session, "other.csv", b"name,value,label\nregion,1,North\n,2,South\n")
    assert next(b for b in session.app.button if b.key == "use_draft").disabled


def test_labelled_file_gives_schema_from_labels_only(tmp_path: Path) -> None:
    records = pd.DataFrame({"sex": [1.0, 1.0], "age": [31.0, 4.0]})
    pyreadstat.write_sav(
        records,
        str(tmp_path / "x.sav"),
        variable_value_labels={"sex": {1.0: "Female", 2.0: "Male"}},
    )
    session = Session()
    upload(session, "x.sav", (tmp_path / "x.sav").read_bytes())
    assert "No attribute was drafted for age" in session.text()
    assert "labels" in session.app.dataframe[0].value["Reason"][0]
    session.set(draft_agreed=True).press("use_draft")
    assert session.studio.schema == Schema([Attribute.categorical("sex", ["Female", "Male"])])
    assert not list(private_tempdir.folder().glob("draft_*"))
    upload(session, "y.sav", b"no such file")
    assert "y.sav" in session.errors()
    assert not list(private_tempdir.folder().glob("draft_*"))


def test_public_table_draft_requires_declaration() -> None:
    session = Session()
    assert not any(uploader.key == "public_file" for uploader in session.app.file_uploader)
    session.set(draft_is_public=True)
    rows = b"region,age,income\nNorth,31,10.5\nSouth,4,70000\nNorth,17,123\n"
    session.run(session.app.file_uploader(key="public_file").upload("sample.csv", rows, "text/csv"))
    assert session.studio.schema is None
    session.set(draft_0=True, draft_2=True).press("use_draft")
    assert session.studio.schema is not None
    assert [(a.name, a.size) for a in session.studio.schema.attributes] == [
        ("region", 2),
        ("income", 50),
    ]


NAMES_ONLY = "Of the records, only the"


def names_without_values(session: Session) -> list[str]:
    """Return the names in the rows of the grid that have no values yet."""
    return [row["name"] for row in session.app.session_state[grid.INCOMPLETE]]


def test_records_uploaded_as_schema_give_names_only() -> None:
    session = upload(Session(), "survey.csv", demo_data.tables()["survey"].read_bytes())
    assert session.studio.schema is None
    assert NAMES_ONLY in session.text()
    assert names_without_values(session) == list(demo_schema("survey").names)
    assert max(map(len, session.app.session_state["only_here"]["columns_of_records"])) < 30
    session = upload(session, "schema.csv", demo_schema("survey").to_csv().encode())
    assert session.studio.schema == demo_schema("survey")
    assert NAMES_ONLY not in session.text()
    assert names_without_values(session) == []


def test_records_with_semicolons_give_names_only() -> None:
    session = upload(Session(), "records.csv", "Kennung;Größe;Einkommen\n1;3;1,5\n".encode())
    assert "3 column names" in session.text()
    assert names_without_values(session) == ["Kennung", "Größe", "Einkommen"]


@pytest.mark.parametrize("name", ["x.parquet", "x.csv.gz"])
def test_records_of_any_format_give_names_only(name: str, tmp_path: Path) -> None:
    frame = pd.DataFrame({"age": [31], "sex": ["F"]})
    path = tmp_path / name
    frame.to_parquet(path) if name.endswith("parquet") else frame.to_csv(path, index=False)
    assert names_without_values(upload(Session(), name, path.read_bytes())) == ["age", "sex"]


def test_large_records_file_gives_names_only() -> None:
    content = b"age,sex\n" + b"31,F\n" * 3_000_000
    assert names_without_values(upload(Session(), "x.csv", content)) == ["age", "sex"]


def write_workbook(rows: list[list[object]]) -> bytes:
    file = BytesIO()
    with xlsxwriter.Workbook(file, {"strings_to_formulas": False}) as book:
        page = book.add_worksheet()
        for number, row in enumerate(rows):
            page.write_row(number, 0, row)
    return file.getvalue()


def test_workbooks_are_read_as_schema_and_totals() -> None:
    first = [["name", "kind", "size", "labels"], ["sex", "categorical", "", "F|M"]]
    session = upload(Session(), "Schema.XLSX", write_workbook([*first, ["code", "", 4, ""]]))
    # The file is refused, because the kind of the second attribute is missing.
    assert session.studio.schema is None
    assert "line 3" in session.errors()
    upload(session, "schema.xlsx", write_workbook([*first, ["code", "numeric", 4, ""]]))
    schema = Schema(
        [Attribute.categorical("sex", ["F", "M"]), Attribute.of_size("code", 4, kind="numeric")]
    )
    assert session.studio.schema == schema
    table = write_workbook([["sex", "people"], ["F", 31], ["M", 28]])
    uploader = next(u for u in session.app.file_uploader if str(u.key).startswith("exact_file"))
    session.run(uploader.upload("exact.xlsx", table, ""))
    assert [one.values for one in session.studio.schema.invariants] == [(31, 28)]
    upload(
        session,
        "book.xlsx",
        write_workbook([["variable", "code", "label"], ["sex", 1, "Female"], ["", 2, "Male"]]),
    )
    session.set(draft_hold="codes", draft_agreed=True).press("use_draft")
    assert session.studio.schema == Schema([Attribute.categorical("sex", ["1", "2"])])
    upload(session, "records.xlsx", write_workbook([["age", "sex"], [31, "F"]]))
    assert "2 column names" in session.text()
    upload(session, "broken.ods", b"no workbook")
    assert "'broken.ods' cannot be read" in session.errors()
    assert not list(private_tempdir.folder().glob("sheet_*"))


LABELS = b"name,value,label\nsex,1,Female\n,2,Male\n"


@pytest.mark.parametrize("key", ["schema_file", "public_file"])
def test_failed_upload_leaves_no_earlier_draft(key: str) -> None:
    session = upload(open_demo_schema("census"), "code book.csv", LABELS).set(draft_is_public=True)
    assert any(b.key == "use_draft" for b in session.app.button)
    name = {"schema_file": "x.json", "public_file": "x.parquet"}[key]
    session.run(session.app.file_uploader(key=key).upload(name, b"\x00broken", ""))
    assert session.errors()
    assert not any(b.key == "use_draft" for b in session.app.button)


def test_failed_labelled_file_leaves_no_labelled_draft(tmp_path: Path) -> None:
    records = pd.DataFrame({"sex": [1.0, 1.0]})
    pyreadstat.write_sav(
        records, str(tmp_path / "x.sav"), variable_value_labels={"sex": {1.0: "F", 2.0: "M"}}
    )
    session = Session()
    for content, is_draft in (((tmp_path / "x.sav").read_bytes(), True), (b"no such file", False)):
        upload(session, "x.sav", content)
        assert any(b.key == "use_draft" for b in session.app.button) == is_draft


def test_draft_shows_integer_attributes() -> None:
    session = upload(Session(), "code book.csv", b"name,values\nsex,F|M\nage,0-99\n")
    labels = {box.key: box.label for box in session.app.checkbox}
    assert "integers" in labels["draft_1"]
    assert "integers" not in labels["draft_0"]


def remove_upload(session: Session, key: str) -> Session:
    return session.run(session.app.file_uploader(key=key).clear())


@pytest.mark.parametrize("key", ["schema_file", "public_file"])
@pytest.mark.parametrize("content", [LABELS, b"sex,age\nF,1\nM,2\n"])
def test_removed_file_leaves_no_draft(key: str, content: bytes) -> None:
    session = open_demo_schema("census").set(draft_is_public=True)
    upload(session, "code book.csv", content, key)
    assert NAMES_ONLY in session.text() or any(b.key == "use_draft" for b in session.app.button)
    remove_upload(session, key)
    assert not any(b.key == "use_draft" for b in session.app.button)
    assert NAMES_ONLY not in session.text()


def test_draft_is_discarded_by_its_button() -> None:
    session = upload(Session(), "code book.csv", LABELS).press("discard_draft")
    assert not any(b.key == "use_draft" for b in session.app.button)


def test_removed_file_leaves_no_error_or_sheets() -> None:
    session = upload(Session(), "x.json", b"\x00broken")
    assert session.errors()
    assert not remove_upload(session, "schema_file").errors()
    file = BytesIO()
    with pd.ExcelWriter(file, engine="xlsxwriter") as book:
        for name in ("a", "b"):
            pd.DataFrame({"x": [1]}).to_excel(book, sheet_name=name, index=False)
    upload(session, "x.xlsx", file.getvalue())
    (box,) = (box for box in session.app.selectbox if box.key == "draft_sheet_name")
    assert f"in “{box.label}”" in session.errors()
    remove_upload(session, "schema_file")
    assert not any(box.key == "draft_sheet_name" for box in session.app.selectbox)


def test_removed_file_keeps_draft_of_other_file() -> None:
    session = upload(open_demo_schema("census"), "code book.csv", LABELS).set(draft_is_public=True)
    session.run(
        session.app.file_uploader(key="public_file").upload("s.csv", b"region\nN\nS\n", "text/csv")
    )
    remove_upload(session, "schema_file")
    session.set(draft_agreed=True).press("use_draft")
    assert session.studio.schema.names == ("region",)


def test_unticked_public_table_leaves_no_draft() -> None:
    session = open_demo_schema("census").set(draft_is_public=True)
    session.run(
        session.app.file_uploader(key="public_file").upload("s.csv", b"region\nN\nS\n", "text/csv")
    )
    assert any(b.key == "use_draft" for b in session.app.button)
    session.set(draft_is_public=False)
    assert not any(b.key == "use_draft" for b in session.app.button)
    assert "drafted_schema" not in session.app.session_state["only_here"]
    session.set(draft_is_public=True)
    assert not any(b.key == "use_draft" for b in session.app.button)
    assert session.app.file_uploader(key="public_file").value is None


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.json", '[{"age": 31, "sex": "F"}, {"age": 4, "sex": "M"}]'),
        ("x.json", '\ufeff [\n{"age": 31, "sex": {"code": 1}}]'),
        ("x.JSONL", '{"age": 31, "sex": "F"}\n{"age": 4, "sex": "M"}\n'),
        ("x.ndjson", '{"age": 31, "sex": "F"}\r\n{"age": 4, "sex": "M"}\r\n'),
        ("x.tsv", "age\tsex\n31\tF\n"),
        ("x.txt", "age;sex\n31;F\n"),
        ("x.dat", "age|sex\r31|F\r"),
    ],
)
def test_records_of_any_text_format_give_names_only(name: str, content: str) -> None:
    session = upload(Session(), name, content.encode())
    assert session.studio.schema is None
    assert not session.errors()
    assert NAMES_ONLY in session.text()
    assert names_without_values(session) == ["age", "sex"]


@pytest.mark.parametrize(
    "content", [b'{"age": 85, "sex": 2}', demo_schema("survey").to_json().encode()]
)
def test_json_schema_is_not_mistaken_for_records(content: bytes) -> None:
    session = upload(Session(), "schema.json", content)
    assert session.studio.schema == Schema.from_json(content)


def test_public_draft_shows_missing_texts_to_confirm() -> None:
    session = Session().set(draft_is_public=True)
    rows = b"age,day\n31,2024-01-05\nNA,2024-01-07\n4,-\n"
    session.run(session.app.file_uploader(key="public_file").upload("sample.csv", rows, "text/csv"))
    assert session.studio.schema is None
    labels = {box.key: box.label.replace("\\", "") for box in session.app.checkbox}
    assert "missing: NA" in labels["draft_0"]
    assert "missing: -" in labels["draft_1"]
    session.set(draft_agreed=True, draft_missing_values=["NA"]).press("use_draft")
    schema = session.studio.schema
    assert (schema["age"].missing_values, schema["day"].missing_values) == (("NA",), ("-", "NA"))
    assert (schema["day"].unit, schema["day"].size) == ("day", 3)
