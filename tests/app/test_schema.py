"""Schema page: files, grid, person column and constraints."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping

import pytest

from pages.parts.schema import grid
from pages.parts.shell import history
from tests.app.session import Session, demo_schema, open_demo, open_demo_schema, upload


class State(MutableMapping[str, object]):
    """Session state of a test session; unlike AppTest's, it has all methods of a mapping."""

    def __init__(self, session: Session) -> None:
        self._state = session.app.session_state

    def __getitem__(self, key: str) -> object:
        return self._state[key]

    def __setitem__(self, key: str, value: object) -> None:
        self._state[key] = value

    def __delitem__(self, key: str) -> None:
        del self._state[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._state.filtered_state)

    def __len__(self) -> int:
        return len(self._state.filtered_state)


def set_edits(session: Session, edits: dict) -> None:
    """Apply edits of the grid, which AppTest cannot make, to the session."""
    state = State(session)
    state["edits"] = edits
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grid.st, "session_state", state)
        grid._use_edits("edits")
    session.run(session.app)


def test_schemas_are_opened_and_undone() -> None:
    session = open_demo_schema("adult")
    assert "14 attributes" in session.text()
    assert session.studio.schema == demo_schema("adult")
    assert "2 attributes" in open_demo_schema("census", session).text()
    assert "14 attributes" in session.press("undo").text()
    assert "2 attributes" in session.press("redo").text()
    session.press("undo").press("undo")
    assert session.studio.schema is None


def test_grid_edit_changes_schema_and_is_undone() -> None:
    session = open_demo_schema("census")
    before = session.studio.schema
    set_edits(session, {"edited_rows": {0: {"name": "years"}}, "added_rows": [{"name": "job"}]})
    assert session.studio.schema.names == ("years", "sex")
    assert "1 column without values, not used: job" in session.text()
    session.press("undo")
    assert session.studio.schema == before


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
        ("a.pdf", b"%PDF"),
    ],
)
def test_invalid_schema_files_are_refused(name: str, content: bytes) -> None:
    session = upload(open_demo_schema("cps"), name, content)
    assert session.errors()
    assert session.studio.schema == demo_schema("cps")


@pytest.mark.parametrize("name", ["mine.json", "mine.csv"])
def test_schema_file_is_loaded(name: str) -> None:
    schema = demo_schema("survey")
    content = (schema.to_json() if name.endswith("json") else schema.to_csv()).encode()
    session = upload(Session(), name, content)
    assert session.studio.schema == schema


def test_new_schema_drops_groups_without_attributes() -> None:
    # the five attributes have 15 tables; those of age and sex remain
    session = open_demo_schema("census", open_demo(page="schema"))
    assert "12 tables no longer fit" in session.text()
    assert len(session.studio.workload.groups) == 3
    assert len(session.press("undo").studio.workload.groups) == 15
    assert "no longer fit" not in session.text()


def test_rows_keep_their_order_and_undo_keeps_names() -> None:
    session = upload(Session(), "records.csv", b"age,sex,job\n31,F,a\n")
    state = session.app.session_state
    rows = lambda: [(row["name"], row["values"]) for row in state[grid.BASE]]  # noqa: E731
    set_edits(session, {"edited_rows": {2: {"values": "a | b"}}})
    set_edits(session, {"edited_rows": {2: {"values": "a | b"}, 1: {"values": "F | M"}}})
    assert session.studio.schema.names == ("sex", "job")
    session.go("start").go("schema")
    assert rows() == [("age", ""), ("sex", "F | M"), ("job", "a | b")]
    session.press("undo")
    assert rows() == [("age", ""), ("sex", ""), ("job", "a | b")]
    session.press("undo")
    assert rows() == [("age", ""), ("sex", ""), ("job", "")]
    assert session.studio.schema is None


def test_empty_grid_removes_schema_until_undo() -> None:
    session = open_demo("census", page="schema")
    tables = len(session.studio.workload.groups)
    set_edits(session, {"deleted_rows": [0, 1]})
    assert not session.errors()
    assert session.studio.workload is None
    assert f"{tables} tables no longer fit" in session.text()
    assert len(session.press("undo").studio.workload.groups) == tables
    assert [row["name"] for row in session.app.session_state[grid.BASE]] == ["age", "sex"]


def test_names_in_grid_survive_a_change_of_page() -> None:
    session = upload(Session(), "records.csv", b"age,sex\n31,F\n")
    names = ["age", "sex"]
    assert [row["name"] for row in session.app.session_state[grid.INCOMPLETE]] == names
    session.go("start").go("schema")
    assert [row["name"] for row in session.app.session_state[grid.BASE]] == names
    upload(session, "schema.json", b'{"age": 9}')
    assert session.app.session_state[grid.INCOMPLETE] == []


def test_undo_first_discards_invalid_edit() -> None:
    session = open_demo_schema("census")
    before, state = session.studio, session.app.session_state
    rows = [*state[grid.BASE], dict.fromkeys(grid.ROW_KEYS, "") | {"values": "F | M"}]
    state[grid.REJECTED] = state[history.KEY].version, rows
    state["trouble"] = {grid.PLACE: "Row 3: the column name is missing"}
    state[grid.BASE] = None
    session.run(session.app)
    assert "Row 3" in session.errors()
    assert next(b for b in session.app.button if b.key == "next").disabled
    assert len(state[grid.BASE]) == 3
    session.press("undo")
    assert not session.errors()
    assert session.studio is before
    assert [row["name"] for row in state[grid.BASE]] == ["age", "sex"]
    assert session.press("undo").studio.schema is None
    assert session.press("redo").studio is before


def test_person_column_is_not_listed_without_values() -> None:
    session = open_demo_schema("census")
    set_edits(session, {"added_rows": [{"name": "id"}, {"name": "job"}]})
    assert "2 columns without values, not used: id, job" in session.text()
    person = next(f for f in session.app.text_input if f.label.startswith("Person ID column"))
    session.run(person.set_value("id"))
    assert session.studio.schema.person == "id"
    assert "1 column without values, not used: job" in session.text()


def test_row_without_name_asks_for_column_name() -> None:
    rows = [{"name": "age", "values": "0, 18, 120"}, {"name": " ", "values": "F | M"}]
    schema, _, error = grid.schema_of_rows(None, rows)
    assert schema is not None
    assert schema.names == ("age",)
    assert str(error) == "Row 2: the column name is missing. Enter it, or clear the row"


def test_error_of_a_row_lists_the_other_invalid_rows() -> None:
    rows = [
        {"name": "age", "values": "16:100:5"},
        {"name": "sex", "values": "F | M"},
        {"name": "region", "values": "North, South, 3"},
    ]
    _, _, error = grid.schema_of_rows(None, rows)
    assert str(error).startswith("Row 1 (age): ")
    assert str(error).endswith("write 16:96:5 or 16:101:5. Also not valid: Row 3 (region).")


def test_invalid_row_withholds_no_valid_row() -> None:
    session = open_demo_schema("census")
    before = session.studio.schema
    edits = {
        "edited_rows": {0: {"values": "0, 18, 5"}},
        "added_rows": [{"values": "F | M"}, {"name": "job", "values": "a | b"}],
    }
    set_edits(session, edits)
    assert "Row 1 (age)" in session.errors()
    assert "Correct row 1 to continue." in session.text()
    # The attribute of the invalid row is unchanged.
    assert session.studio.schema.attributes[:2] == before.attributes
    assert session.studio.schema.names == ("age", "sex", "job")
    assert not session.press("undo").errors()
    assert session.studio.schema.names == ("age", "sex", "job")
    assert session.press("undo").studio.schema == before


def test_page_shows_how_entries_were_read() -> None:
    session = upload(Session(), "records.csv", b"age,region,day\n31,N,4\n")
    values = {0: "16:101:5", 1: "North, South, East, West", 2: "1:366:1"}
    edits = {row: {"values": text} for row, text in values.items()}
    edits[0]["integer"] = True
    set_edits(session, {"edited_rows": edits})
    text = session.text()
    assert "**age**: 16–20, 21–25, … 96–101 (17 bins)" in text
    assert "**region**: North, South, … West (4 values)" in text
    assert "**day**: [1, 2), [2, 3), … [365, 366] (365 bins)" in text
    assert "Tick **integers** for day: “[1, 2)” → “1”." in text
    assert " cannot be 101, write 16:96:5, 100." in text
    edits[2]["integer"] = True
    set_edits(session, {"edited_rows": edits})
    assert "**day**: 1, 2, … 365–366 (365 bins)" in session.text()
    assert "Tick **integers**" not in session.text()


def test_fractional_edges_are_not_suggested_as_integers() -> None:
    session = upload(Session(), "records.csv", b"pay\n3.5\n")
    set_edits(session, {"edited_rows": {0: {"values": "0, 0.5, 1"}}})
    assert "[0.5, 1]" in session.text()
    assert "Tick **integers**" not in session.text()


def test_attribute_with_one_value_is_warned_of() -> None:
    session = upload(Session(), "records.csv", b"age,day\n31,4\n")
    set_edits(session, {"edited_rows": {0: {"values": "0, 20"}, 1: {"values": "1"}}})
    assert "Only one possible value: age, day." in session.text()
    set_edits(session, {"edited_rows": {0: {"values": "0, 20, 99"}, 1: {"values": "7"}}})
    assert "Only one possible value" not in session.text()


def test_page_says_when_rows_will_be_dropped() -> None:
    session = upload(Session(), "records.csv", b"sex\nF\n")
    edits = {"values": "F | M | else", "other": "else"}
    set_edits(session, {"edited_rows": {0: edits}})
    assert "Rows with other values are dropped" in session.text()
    set_edits(session, {"edited_rows": {0: edits | {"missing": "else"}}})
    assert "are dropped, unless" not in session.text()


def test_all_attributes_are_read_back_below_grid() -> None:
    text = open_demo_schema("survey").text().replace("*", "")
    assert "Read as: age: 18, 19, … " in text
    assert "· party: 7 values · " in text  # its labels are listed in the grid


def test_schema_of_survey_demo_needs_no_advice() -> None:
    text = open_demo_schema("survey").text()
    assert "Read as: " in text
    assert "Whole numbers only?" not in text
    assert " cannot be " not in text


def test_workload_names_columns_without_values() -> None:
    session = upload(Session(), "records.csv", b"age,sex\n31,F\n")
    set_edits(session, {"edited_rows": {1: {"values": "F | M"}}})
    note = "1 column without values, not used: age. Nothing is to be done, unless a table needs it."
    assert note in session.text()
    assert note in session.go("workload").text()


def test_fields_for_constraints_are_in_advanced_fold() -> None:
    session = open_demo_schema("census")
    (fold,) = (one for one in session.app.expander if one.label.startswith("Advanced"))
    labels = [area.label for area in fold.text_area]
    assert any("Impossible" in label for label in labels)
    assert any("Totals" in label for label in labels)
