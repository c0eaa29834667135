"""Release page: records from files, uploads, workbooks and databases."""

from __future__ import annotations

from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import pytest

from engine.ledger import Ledger
from engine.privacy import Budget
from engine.release.measure import load_measurement
from engine.workload import Attribute, Schema, Workload
from pages.parts.jobs import private_tempdir, tasks
from pages.parts.release.records_form import Source
from pages.parts.shell import permalink
from pages.parts.shell.history import RequestState
from tests.app.release.sessions import (
    FILE,
    SURVEY,
    is_release_disabled,
    open_confirmation,
    open_release,
    open_step,
    row_kinds,
)
from tests.app.session import Session, demo_plan, wait
from tests.waiting import until


@pytest.mark.parametrize("how", ["File on the server", "Upload"])
def test_records_with_declared_encoding_are_released(tmp_path: Path, how: str) -> None:
    schema = Schema([Attribute.categorical("city", ["Köln", "Łódź"])])
    rows = "city;n\n" + "Köln;1\n" * 600 + "Łódź;1\n" * 400
    place = tmp_path / "records.csv"
    place.write_bytes(rows.encode("cp1250"))
    book = Ledger.create(tmp_path / "budget.ledger")
    book.add_dataset("cities", total=Budget(pcost=1.0))
    studio = RequestState(
        workload=Workload(schema).add("city", "marginal"), budget=Budget(pcost=1.0)
    )
    session = Session(plan=permalink.packed(studio)).go("preview")
    session.go("release", step=FILE, ledger_path=str(book.path), records_how=how)
    if how == "Upload":
        session.run(
            session.app.file_uploader(key="records_file").upload(
                "s.csv", place.read_bytes(), "text/csv"
            )
        )
    else:
        session.set(records_path=str(place))
    assert (
        "city is also an attribute"
        in session.set(rows_are="ignored", number_column="n, city").text()
    )
    wait(session.set(rows_are="ignored", number_column="n").press("check_records"))
    assert any(
        "save the file as UTF-8 (spreadsheets offer" in e.value.replace("\\", "")
        for e in session.app.error
    )
    open_confirmation(session.set(records_encoding="cp1250"), "cities")
    wait(session.set(confirmation="cities").press("release"))
    assert "Released for cities" in session.text()
    (spend,) = (row for row in Ledger(book.path).rows() if row.kind == "spend")
    answers = load_measurement(book, spend.key).answers(0)
    assert np.abs(answers["answer"].to_numpy() - [600, 400]).max() < 40


def test_uploaded_records_are_read_and_removed(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = ledger.path.parent / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    session = open_step(ledger.path, FILE).set(records_how="Upload")
    content = Path(SURVEY).read_bytes()
    session.run(session.app.file_uploader(key="records_file").upload("s.csv", content, "text/csv"))
    # a small upload is checked without a click
    assert "Rows read 944 = counted 944 + dropped 0" in wait(session).text()
    open_confirmation(session)
    wait(session.set(confirmation="survey").press("release"))
    assert "Released for survey" in session.text()
    assert not list(folder.rglob("records*"))


def test_configured_database_table_is_counted_in_place(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with duckdb.connect(str(tmp_path / "held.duckdb")) as database:
        database.execute(f"create table people as from read_csv('{SURVEY}')")
    settings = tmp_path / "sources.toml"
    settings.write_text(
        f'[census]\naddress = "duckdb://{tmp_path / "held.duckdb"}"\ntable = "people"\n'
    )
    assert "Database" not in open_step(ledger.path, FILE).app.radio(key="records_how").options
    monkeypatch.setenv("DP_WORKBENCH_SOURCES", str(settings))
    session = open_step(ledger.path, FILE).set(records_how="Database")
    assert session.app.selectbox(key="records_table").value == "census"
    open_confirmation(session).set(confirmation="survey")
    assert not is_release_disabled(session)
    plan_json = demo_plan("survey", (1,)).to_json()
    by_file, by_name = (
        tasks.check(plan_json, data, "survey", str(ledger.path), {}, progress=lambda *_: True)
        for data in (SURVEY, Source(name="census").to_file()[0])
    )
    assert by_name == by_file
    monkeypatch.chdir(ledger.path.parent)
    exec(session.app.code[0].value, {})
    assert row_kinds(ledger) == ["ledger", "dataset", "spend", "saved"]
    settings.write_text("[census]\n")
    assert "is malformed" in session.set(step=FILE).app.error[0].value


@pytest.mark.parametrize(
    ("content", "words"), [("age\n36\n", "education"), ("", "records"), (None, "records")]
)
def test_records_that_cannot_be_read_spend_nothing(
    ledger: Ledger, content: str | None, words: str
) -> None:
    place = ledger.path.parent / "records.csv"
    if content is not None:
        place.write_text(content, encoding="utf-8")
    session = open_release(ledger, records=str(place)).set(confirmation="survey")
    wait(session.press("release"))
    assert "Release:" in session.errors()
    assert words in session.errors()
    assert row_kinds(ledger) == ["ledger", "dataset"]
    place.write_bytes(Path(SURVEY).read_bytes())
    wait(session.set(confirmation="survey").press("release"))
    assert row_kinds(ledger) == ["ledger", "dataset", "spend", "saved"]


def test_rows_outside_domain_are_left_out(ledger: Ledger) -> None:
    place = ledger.path.parent / "records.csv"
    lines = Path(SURVEY).read_text(encoding="utf-8").splitlines()
    invalid = lines[1].replace("36", "136", 1)  # the age is not in the schema
    place.write_text("\n".join([*lines, invalid]) + "\n", encoding="utf-8")
    session = open_step(ledger.path, FILE, records_path=str(place))
    wait(session.press("check_records"))
    assert "dropped 1" in session.text()
    assert "age: 1 outside the schema" in session.text()
    fits = session.app.dataframe[-1].value.set_index("Column")
    assert fits.loc["age"].tolist() == [944, 0, 1, 0, 1, "136 (1)"]
    assert (fits["Listed"] + fits["Missing"] + fits["Unlisted"] == 944 + 1).all()
    assert row_kinds(ledger) == ["ledger", "dataset"]
    session.set(records_path=SURVEY)
    assert "dropped 1" not in session.text()
    assert all("Unlisted" not in frame.value for frame in session.app.dataframe)
    wait(session.press("check_records"))
    assert "dropped 0" in session.text()
    session.set(records_path=str(place))
    assert "dropped 1" in session.text()
    place.write_text("\n".join(lines) + "\n", encoding="utf-8")
    wait(session.press("check_records"))
    assert "dropped 0" in session.text()  # the corrected file
    place.write_text("\n".join([*lines, invalid]) + "\n", encoding="utf-8")
    wait(open_confirmation(session).set(confirmation="survey").press("release"))
    assert "Rows read 945 = counted 944 + dropped 1" in session.text()


@pytest.mark.parametrize("how", ["File on the server", "Upload"])
def test_sheet_of_workbook_is_chosen_and_released(ledger: Ledger, how: str) -> None:
    place, rows = ledger.path.parent / "records.xlsx", pd.read_csv(SURVEY)
    with pd.ExcelWriter(place, engine="xlsxwriter") as book:
        rows.iloc[:10].to_excel(book, sheet_name="first 10%", index=False)
        rows.to_excel(book, sheet_name="all rows", index=False)
    session = open_step(ledger.path, FILE).set(records_how=how)
    if how == "Upload":
        session.run(
            session.app.file_uploader(key="records_file").upload("r.xlsx", place.read_bytes(), "")
        )
    else:
        session.set(records_path=str(place))
    assert "choose the sheet" in session.text()
    assert is_release_disabled(open_confirmation(session).set(confirmation="survey"))
    assert "choose the sheet" in session.text()
    session.set(step=FILE)
    wait(session.set(records_sheet="first 10%").press("check_records"))
    assert "Rows read 10 =" in session.text()
    session.set(records_sheet="all rows")
    assert "Rows read 10 =" not in session.text()
    assert "SheetFile(path=" in session.app.code[0].value
    wait(open_confirmation(session).set(confirmation="survey").press("release"))
    assert "Released for survey" in session.text()
    assert f"Rows read {len(rows):,} =" in session.text()
    until(lambda: not list(private_tempdir.folder().glob("records_*")))


def test_sheet_choice_is_absent_for_single_sheets(ledger: Ledger) -> None:
    place = ledger.path.parent / "records.xlsx"
    pd.read_csv(SURVEY).to_excel(place, engine="xlsxwriter", index=False)
    session = open_release(ledger, records=str(place)).set(confirmation="survey")
    assert not is_release_disabled(session)
    session.set(step=FILE)
    assert all(box.key != "records_sheet" for box in session.app.selectbox)
    place.write_bytes(b"no workbook")
    session.run(session.app)
    assert all(box.key != "records_sheet" for box in session.app.selectbox)


def test_missing_or_forbidden_file_is_named_at_once(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = open_step(ledger.path, FILE, records_path=str(ledger.path.parent / "none.csv"))
    assert "there is none at this path" in session.text()
    assert next(b for b in session.app.button if b.key == "step_next").disabled
    monkeypatch.setenv("DP_WORKBENCH_FOLDERS", "")
    assert "outside the folders" in session.set(records_path="/etc/none.csv").text()
    assert "there is none" not in session.set(records_path=SURVEY).text()


def test_missing_upload_before_release_leads_to_file_step(ledger: Ledger) -> None:
    session = open_release(ledger, records="")
    assert "removes uploaded files" not in session.set(records_how="File on the server").text()
    session.set(records_how="Upload")
    assert (
        "A reload or change of page removes uploaded files; choose the file again."
        in session.text()
    )
    session.press("Back to File")
    assert "Which file has the records?" in session.text()
