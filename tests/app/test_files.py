"""Files that the app is told to write or read: nothing is lost, nothing outside its folders is touched."""

from __future__ import annotations

import logging
import os
import shutil
import threading
import weakref
from collections.abc import Callable
from io import BytesIO, StringIO
from pathlib import Path

import pandas as pd
import pyreadstat
import pytest
import xlsxwriter

import demo_data
from engine import Attribute, Budget, Schema, measure
from engine.errors import DataError, EngineError
from engine.release import Ledger
from pages.parts.jobs import private, serve, tasks, work
from pages.parts.release import download_view
from tests.app.test_pages import Session, demo, expected
from tests.app.test_release import releasing, wait

SURVEY = demo_data.tables()["survey"]


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    """The download view of a release whose ledger and records stand in a folder that the app may touch."""
    folder = tmp_path / "office"
    folder.mkdir()
    monkeypatch.setenv("DP_WORKBENCH_FOLDERS", str(folder))
    shutil.copy(SURVEY, folder / "records.csv")
    book = Ledger.create(folder / "budget.csv")
    book.add_dataset("survey", total=Budget(pcost=2.0))
    measure(expected("survey", (1,)), folder / "records.csv", dataset="survey", ledger=book)
    records = str(folder / "records.csv")
    return releasing(book.path, records_path=records, release_result_view="Download")


def folder_of(session: Session) -> Path:
    return Path(session.app.text_input(key="ledger_path").value).parent


def can_write(session: Session) -> bool:
    return not next(b for b in session.app.button if b.key == "release_result_write").disabled


def plant(folder: Path) -> dict[str, Path]:
    """Everything that must not be written over, by a word."""
    shutil.copy(SURVEY, folder / "others.csv")
    (folder / ".hidden.csv").write_text("mine")
    (folder / ".config").mkdir()
    outside = folder.parent / "outside.csv"
    outside.write_text("mine")
    (folder / "link.csv").symlink_to(outside)
    (folder / "way").symlink_to(folder.parent)
    (folder / "notes.txt").write_text("mine")
    (folder / "answers.csv.part").write_text("mine")
    (folder / "broken.parquet").write_text("mine")
    return {
        "ledger": folder / "budget.csv",
        "records": folder / "records.csv",
        "other records": folder / "others.csv",
        "result": next((folder / "budget.csv.results").iterdir()),
        "new in results": folder / "budget.csv.results" / "new.csv",
        "dot file": folder / ".hidden.csv",
        "in a dot folder": folder / ".config" / "new.csv",
        "link": folder / "link.csv",
        "behind a link": folder / "way" / "new.csv",
        "outside": outside,
        "outside by dots": folder / ".." / "outside.csv",
        "no data file": folder / "notes.txt",
        "part": folder / "answers.csv.part",
        "folder": folder / "budget.csv.results",
        "not answers": folder / "broken.parquet",
        "no folder": folder / "missing" / "new.csv",
    }


def contents(folder: Path) -> dict[str, bytes]:
    return {str(f.relative_to(folder)): f.read_bytes() for f in sorted(folder.rglob("*")) if f.is_file()}


def test_nothing_that_is_there_can_be_written_over(session: Session) -> None:
    folder = folder_of(session)
    planted = plant(folder)
    before = contents(folder.parent)
    (release,) = (row for row in Ledger(folder / "budget.csv").rows() if row.kind == "spend")
    for word, place in planted.items():
        session.set(release_result_path=str(place))
        assert not can_write(session), word
        assert "Writing has to wait" in session.said(), word
        # whoever gets past the page is refused by the work itself; outside is the page's rule alone
        if word not in ("dot file", "in a dot folder", "behind a link", "outside", "no data file", "part"):
            with pytest.raises((EngineError, OSError)):
                tasks.export(
                    str(folder / "budget.csv"),
                    release.key,
                    str(place),
                    [str(planted["records"])],
                    True,
                    0.95,
                    progress=lambda *_: True,
                )
    assert contents(folder.parent) == before


def test_answers_are_replaced_only_by_a_typed_name(session: Session) -> None:
    target = folder_of(session) / "answers.csv"
    (target.parent / "answers.csv.part").write_text("mine")
    session.set(release_result_path=str(target))
    wait(session.press("release_result_write"))
    assert "Written" in session.said()
    # whoever closes the page has asked for the file all the same
    assert [job.stays for key, job in work._JOBS.items() if key.startswith("export|") and str(target) in key] == [True]
    queries = expected("survey", (1,)).workload.queries
    assert len(pd.read_csv(target)) == queries
    target.write_text(target.read_text().splitlines()[0] + "\n")
    for typed in ("", "answers", "Answers.csv"):
        session.set(release_result_replace=typed)
        assert not can_write(session)
    assert can_write(session.set(release_result_replace="answers.csv"))
    wait(session.press("release_result_write"))
    assert len(pd.read_csv(target)) == queries
    assert (target.parent / "answers.csv.part").read_text() == "mine"
    assert {f.name for f in target.parent.iterdir()} == {
        "answers.csv",
        "answers.csv.part",
        "budget.csv",
        "budget.csv.key",
        "budget.csv.results",
        "records.csv",
    }


@pytest.mark.parametrize("word", ["outside", "dot file", "link", "behind a link", "no data file"])
def test_records_are_read_below_the_folders_alone(session: Session, word: str) -> None:
    place = plant(folder_of(session))[word]
    session.set(again_1=True, records_path=str(place), confirmation="survey").press("release")
    assert "The app may touch" in session.errors() or "Hidden" in session.errors() or "kind" in session.errors()
    assert len([r for r in Ledger(folder_of(session) / "budget.csv").rows() if r.kind == "spend"]) == 1


@pytest.mark.parametrize("name", ["../new.ledger", ".new.ledger", "way/new.ledger", "/dev/shm/new.ledger"])
def test_ledgers_are_made_below_the_folders_alone(session: Session, name: str) -> None:
    plant(folder_of(session))
    place = folder_of(session) / name
    session.set(ledger_path=str(place))
    assert session.errors()
    assert not any(b.key == "create_ledger" for b in session.app.button)
    assert not os.path.lexists(place)


def test_a_download_that_fails_says_so_without_a_path(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*_: object, **__: object) -> Callable:
        raise OSError(28, "No space left on device", "/a/secret/path")

    monkeypatch.setattr(download_view, "write_answers", full)
    monkeypatch.setattr(download_view, "write_package", full)
    for make in (lambda: download_view._content(None, "csv"), lambda: download_view._package(None, "")):
        with pytest.raises(DataError, match="No space left") as caught:
            make()
        assert "secret" not in str(caught.value)


def test_logs_name_the_kind_and_the_place_of_an_error_and_no_value(monkeypatch: pytest.MonkeyPatch) -> None:
    made, log = logging.getLogRecordFactory(), StringIO()
    monkeypatch.setattr(logging.getLogger(), "handlers", [logging.StreamHandler(log)])
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)  # as it is now, when this test is over
    try:
        serve.keep_values_out_of_logs()
        try:
            raise ValueError("a value of a record")
        except ValueError:
            logging.getLogger("streamlit.any").exception("Uncaught %s", "app execution")
        beside = threading.Thread(target=int, args=("a value of another record",))
        beside.start()
        beside.join()
    finally:
        logging.setLogRecordFactory(made)
    assert "Uncaught app execution (ValueError at test_files.py, line" in log.getvalue()
    assert "A thread ended (ValueError" in log.getvalue()
    assert "a value" not in log.getvalue()


def give(session: Session, name: str, content: bytes) -> Session:
    return session.run(session.app.file_uploader(key="schema_file").upload(name, content, "text/csv"))


def test_a_data_dictionary_is_drafted_and_confirmed_line_by_line() -> None:
    session = give(Session(), "code book.csv", b"name,value,label\nsex,1,Female\n,2,Male\nage,0-99,\n")
    assert session.studio.schema is None  # nothing is taken before it was looked at
    assert next(b for b in session.app.button if b.key == "use_draft").disabled
    session.set(draft_hold="codes", draft_0=True)
    session.press("use_draft")
    assert session.studio.schema == Schema([Attribute.categorical("sex", ["1", "2"])])
    session = give(Session(), "code book.csv", b"name,value,label\nsex,1,Female\n,2,Male\nage,0-99,\n")
    session.set(draft_agreed=True).press("use_draft")
    assert session.studio.schema is not None
    assert session.studio.schema.names == ("sex", "age")
    assert "Drafted from" not in " ".join(s.value for s in session.app.subheader)


def test_what_was_ticked_for_one_file_is_not_agreed_for_the_next() -> None:
    session = give(Session(), "code book.csv", b"name,value,label\nsex,1,Female\n,2,Male\nage,0-99,\n").set(
        draft_0=True
    )
    give(session, "other.csv", b"name,value,label\nregion,1,North\n,2,South\n")
    assert next(b for b in session.app.button if b.key == "use_draft").disabled


def test_the_labels_of_a_file_make_a_schema_and_its_records_none(tmp_path: Path) -> None:
    records = pd.DataFrame({"sex": [1.0, 1.0], "age": [31.0, 4.0]})
    pyreadstat.write_sav(records, str(tmp_path / "x.sav"), variable_value_labels={"sex": {1.0: "Female", 2.0: "Male"}})
    session = Session()
    given = session.app.file_uploader(key="labelled_file").upload("x.sav", (tmp_path / "x.sav").read_bytes(), "")
    session.run(given)
    assert "these columns may have: age" in session.said()
    session.set(draft_agreed=True).press("use_draft")
    assert session.studio.schema == Schema([Attribute.categorical("sex", ["Female", "Male"])])
    assert not list(private.folder().glob("draft_*"))
    session.run(session.app.file_uploader(key="labelled_file").upload("y.sav", b"no such file", ""))
    assert "y.sav" in session.errors()
    assert not list(private.folder().glob("draft_*"))


def test_a_public_table_makes_a_schema_once_somebody_says_that_it_is_public() -> None:
    session = Session()
    assert session.app.file_uploader(key="public_file").disabled
    session.set(draft_is_public=True)
    rows = b"region,age,income\nNorth,31,10.5\nSouth,4,70000\nNorth,17,123\n"
    session.run(session.app.file_uploader(key="public_file").upload("sample.csv", rows, "text/csv"))
    assert session.studio.schema is None
    session.set(draft_0=True, draft_2=True).press("use_draft")
    assert session.studio.schema is not None
    assert [(a.name, a.size) for a in session.studio.schema.attributes] == [("region", 2), ("income", 50)]


def test_records_given_as_a_schema_are_told_apart_with_a_way_out() -> None:
    session = give(Session(), "survey.csv", demo_data.tables()["survey"].read_bytes())
    assert session.studio.schema is None
    assert "looks like a file of records" in session.said()
    assert any(b.label == "Template with these columns" for b in session.app.get("download_button"))
    kept = session.app.session_state["only_here"]

    assert max(map(len, kept["columns_of_records"])) < 30  # names, no values
    session = give(session, "schema.csv", demo("survey").to_csv().encode())
    assert session.studio.schema == demo("survey")
    assert "looks like a file of records" not in session.said()


def test_columns_of_records_are_told_apart_whatever_separates_them() -> None:
    session = give(Session(), "records.csv", "Kennung;Größe;Einkommen\n1;3;1,5\n".encode())
    assert "its first line names 3 columns" in session.said()
    assert list(session.app.session_state["only_here"]["columns_of_records"]) == ["Kennung", "Größe", "Einkommen"]


def test_what_nobody_reaches_goes_back_to_the_machine_where_its_allocator_can() -> None:
    assert not serve.allocator("no_such_function", 0)
    ring: list[object] = []
    ring.append(ring)
    gone = weakref.ref(made := type("Held", (), {})())
    ring.append(made)
    del ring, made
    serve.give_back()
    assert gone() is None


def as_workbook(rows: list[list[object]]) -> bytes:
    file = BytesIO()
    with xlsxwriter.Workbook(file, {"strings_to_formulas": False}) as book:
        page = book.add_worksheet()
        for number, row in enumerate(rows):
            page.write_row(number, 0, row)
    return file.getvalue()


def test_schemas_dictionaries_and_exact_totals_come_as_workbooks() -> None:
    first = [["name", "kind", "size", "labels"], ["sex", "categorical", "", "F|M"]]
    session = give(Session(), "Schema.XLSX", as_workbook([*first, ["code", "", 4, ""]]))
    assert session.studio.schema is None  # a kind is missing
    assert "line 3" in session.errors()
    give(session, "schema.xlsx", as_workbook([*first, ["code", "numeric", 4, ""]]))
    asked = Schema([Attribute.categorical("sex", ["F", "M"]), Attribute.of_size("code", 4, kind="numeric")])
    assert session.studio.schema == asked
    table = as_workbook([["sex", "people"], ["F", 31], ["M", 28]])
    uploader = next(u for u in session.app.file_uploader if str(u.key).startswith("exact_file"))
    session.run(uploader.upload("exact.xlsx", table, ""))
    assert [one.values for one in session.studio.schema.invariants] == [(31, 28)]
    give(session, "book.xlsx", as_workbook([["variable", "code", "label"], ["sex", 1, "Female"], ["", 2, "Male"]]))
    session.set(draft_hold="codes", draft_agreed=True).press("use_draft")
    assert session.studio.schema == Schema([Attribute.categorical("sex", ["1", "2"])])
    give(session, "records.xlsx", as_workbook([["age", "sex"], [31, "F"]]))
    assert "looks like a file of records: its first line names 2 columns" in session.said()
    give(session, "broken.ods", b"no workbook")
    assert "'broken.ods' cannot be read" in session.errors()
    assert not list(private.folder().glob("sheet_*"))
