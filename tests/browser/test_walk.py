"""Full workflow in a browser, from schema to download, and page history."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from playwright.sync_api import expect

import demo_data
from engine.ledger import Ledger
from engine.privacy import Budget
from engine.publish import verify_package
from tests.browser.clicks import COUNT_CLICKS, clicks
from tests.browser.conftest import HEIGHT, NARROW, ROOT, WIDTH, Visit
from tests.browser.screens import open_page


def test_full_workflow_releases_for_second_dataset(visit: Visit, tmp_path: Path) -> None:
    page = visit.page
    visit.open("")
    visit.expect_text("Try a demo")
    visit.check_accessibility("0_start")
    visit.press("Describe my own data")
    visit.expect_text("Fill the grid from a file")
    visit.take_picture("1_schema_empty")
    visit.upload(demo_data.schemas()["survey"])
    visit.expect_text("cells in the full table")
    visit.check_accessibility("2_schema")

    visit.press("Next: Workload")
    visit.expect_text("No table yet")
    visit.choose("Cumulative tables")
    visit.press("Add ")
    visit.choose("One table")
    visit.pick("Attributes", "age")
    visit.pick("Query type on each attribute", "range")
    visit.check_accessibility("3_workload")
    visit.press("Add this table")
    visit.expect_text("56")  # the number of tables

    visit.press("Next: Preview")
    visit.expect_text("Typical error")
    visit.take_picture("4_preview")
    visit.pick("Table", "56: age")
    visit.take_picture("5_preview_triangle")
    visit.pick("Table", "21: ")
    visit.take_picture("5_preview_heat_map")
    cells = page.get_by_test_id("stPlotlyChart").locator(".nsewdrag").first
    cells.hover()
    bar = page.get_by_test_id("stPlotlyChart").locator(".modebar").first.bounding_box()
    # the buttons of the figure do not cover its cells
    assert bar["y"] + bar["height"] <= cells.bounding_box()["y"] + 1
    visit.unfold("Find the budget for a target error")
    visit.choose("Publishable answers")
    visit.number("Expected record count (public)", "944")
    # all cumulative tables of one and two attributes, and the ranges of 82 ages
    visit.expect_text(f"{9417 + 82 * 83 // 2:,} answers,")
    visit.expect_text("With 944 records, spread evenly")
    visit.take_picture("5_preview_publishable")
    visit.unfold("How close to optimal")
    visit.check_accessibility("7_preview_budget")

    with visit.run():
        page.get_by_test_id("stSidebarNav").get_by_role("link", name="Release").click()
    visit.press("Rehearse", exact=True)
    visit.expect_text("REHEARSAL on simulated records")
    visit.check_accessibility("9_rehearsal")

    visit.press("Next: File")
    visit.choose("File on the server")
    visit.fill("Records file", str(ROOT / "demo_data" / "survey.csv"))
    visit.press("Next: Who pays")
    ledger = tmp_path / "budget.ledger"
    visit.fill("Ledger file", str(ledger))
    visit.check_accessibility("10_release_ledger")
    visit.fill("Dataset name", "survey 1995")
    visit.press("Create ledger and dataset")
    visit.check_accessibility("10_release_waits")
    release = page.get_by_role("button", name="Release: spend")
    expect(release).to_be_disabled()
    visit.fill("to confirm", "survey 1995")
    expect(release).to_be_enabled()
    visit.choose("3. Who pays")
    page.get_by_test_id("stExpander").get_by_text("New dataset", exact=True).first.click()
    visit.settle()
    visit.fill("Dataset name", "survey 1996")
    visit.press("Register dataset", exact=True)
    expect(page.get_by_role("combobox", name="Charge budget to")).to_have_value("survey 1996")
    visit.press("Next: Confirm")
    expect(release).to_be_disabled()  # the typed name is another dataset
    page.reload()
    visit.settle()
    visit.expect_text("from survey.csv, for survey 1996")
    expect(release).to_be_disabled()
    visit.fill("to confirm", "survey 1996")
    release.dblclick()
    visit.expect_text("Released for survey 1996")
    visit.expect_text("Rows read 944")
    page.reload()
    visit.settle()
    visit.expect_text("Rows read 944")
    visit.take_picture("11_released")
    visit.choose("Ask a question")
    visit.pick("Attributes", "age", "vote")
    page.set_viewport_size({"width": 1100, "height": HEIGHT})
    visit.take_picture("12_ask")
    cut = (
        "boxes => boxes.filter(one => one.scrollWidth > one.clientWidth).map(one =>"
        " one.textContent)"
    )
    assert page.get_by_test_id("stMetricValue").locator("div").evaluate_all(cut) == []
    page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
    visit.choose("Download")
    visit.take_picture("13_download")
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Answers (CSV)").click()
    answers = pd.read_csv(waiting.value.path())
    assert len(answers) == 9417 + 82 * 83 // 2
    assert list(answers) == ["attributes", "family", "query", "answer", "std", "low", "high"]

    # back button, reload and second tab show the same plan and result
    with visit.run():
        page.get_by_test_id("stSidebarNav").get_by_role("link", name="Guide").click()
    # going back shows the same step of the page
    visit.go_in_history("Release", page.go_back)
    visit.expect_text("Released for survey 1996")
    address, tab = page.url, page.context.new_page()
    for opened in (page, tab):
        opened_visit = Visit(page=opened, url=visit.url, pictures_folder=visit.pictures_folder)
        opened.goto(address)
        opened_visit.settle()
        opened_visit.expect_text("Released for survey 1996")
    tab.close()
    rows = Ledger(ledger).rows()
    assert [row.kind for row in rows] == ["ledger", "dataset", "dataset", "spend", "saved"]
    assert [row.dataset for row in rows if row.kind == "spend"] == ["survey 1996"]


def test_short_workflow_history_and_grid_edits_work(visit: Visit) -> None:
    page = visit.page
    page.add_init_script(COUNT_CLICKS)
    page.set_viewport_size({"width": NARROW, "height": HEIGHT})
    visit.open("")
    before = page.evaluate("history.length")
    # walk through all pages by their main buttons
    visit.press("Describe my own data")
    visit.upload(demo_data.schemas()["census"])
    visit.press("Next: Workload")
    visit.press("Add ")
    visit.press("Next: Preview")
    visit.expect_text("Typical error (counts)")
    visit.press("2 × the privacy cost")
    visit.press("Apply this change")
    visit.press("Next: Compare")
    visit.expect_text("equally accurate")
    visit.press("Next: Release")
    visit.press("Rehearse", exact=True)
    visit.expect_text("REHEARSAL on simulated records")
    assert clicks(page) <= 15

    # one history entry per page, although pages change their addresses
    visit.settle()
    assert page.evaluate("history.length") == before + 5
    for title in ("Compare", "Preview", "Workload"):
        visit.go_in_history(title, page.go_back)
    visit.go_in_history("Preview", page.go_forward)
    for title in ("Workload", "Schema"):
        visit.go_in_history(title, page.go_back)

    # edit the grid of attributes on the Schema page
    page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
    visit.settle()
    visit.unfold("As Python")
    rows = {"first": 50, "second": 85}  # y position in pixels; names are at x = 80
    for row, name, expected_names in (
        ("first", "years", ("years", "sex")),
        ("second", "gender", ("years", "gender")),
        ("first", "age_in_years", ("age_in_years", "gender")),
    ):
        table = page.get_by_test_id("stDataFrame").first
        # select another cell: a click on the selected cell opens it
        other_row = "second" if row == "first" else "first"
        table.click(position={"x": 160, "y": rows[other_row]})
        page.keyboard.press("Escape")
        table.click(position={"x": 80, "y": rows[row]})
        page.keyboard.press("Enter")
        editor = page.locator("#portal textarea, #portal input").first
        editor.fill(name)  # typed letters could reach the grid before its editor opens
        expect(editor).to_have_value(name)
        with visit.run():
            editor.press("Enter")
        for expected_name in expected_names:
            visit.expect_text(f"('{expected_name}', ")
    visit.press("Undo")
    visit.expect_text("('years', ")
    visit.expect_text("('gender', ")


def test_curator_publishes_package_in_few_clicks(visit: Visit, tmp_path: Path) -> None:
    """A curator needs few clicks from a file of records to a package with published tables."""
    page, records = visit.page, tmp_path / "people.csv"
    rows = [f"{sex},{region}" for sex in ("f", "m") for region in ("north", "south")] * 250
    records.write_text("\n".join(["sex,region", *rows]) + "\n", encoding="utf-8")
    page.add_init_script(COUNT_CLICKS)
    visit.open("")
    visit.upload(records)
    visit.expect_text("only the 2 column names were read")
    visit.fill_values("f | m", "north | south")
    visit.expect_text("2 attributes, 4 cells")
    visit.press("Next: Workload")
    visit.press("Add ")
    visit.press("Next: Preview")
    visit.expect_text("Typical error")
    with visit.run():
        page.get_by_test_id("stSidebarNav").get_by_role("link", name="Release").click()
    visit.press("Rehearse", exact=True)
    visit.expect_text("REHEARSAL on simulated records")
    visit.press("Next: File")
    visit.upload(records)
    visit.expect_text("counted 1,000")
    visit.press("Next: Who pays")
    visit.fill("Ledger file", str(tmp_path / "people.ledger"))
    visit.fill("Dataset name", "people")
    visit.press("Create ledger and dataset")
    visit.fill("to confirm", "people")
    visit.press("Release: spend")
    visit.expect_text("Released for people")
    visit.choose("Published tables")
    visit.expect_text("All tables sum to")
    with page.expect_download() as download:
        page.get_by_role("button", name="Package with tables (zip)").click()
    package = tmp_path / "release.zip"
    download.value.save_as(package)
    assert verify_package(package, ledger=tmp_path / "people.ledger") == ()
    # 5 fields and 2 file choosers are counted as clicks, too
    assert clicks(page) + 7 <= 23

    page.reload()
    visit.settle()
    visit.expect_text("Released for people")
    visit.choose("Download")
    assert clicks(page) <= 2


def test_ledger_form_keeps_total_and_clears_dataset(visit: Visit, tmp_path: Path) -> None:
    """The typed total and the name of a dataset on the form of a ledger.

    Opening the popover with further options does not change the total. The name of the dataset
    disappears when another ledger is opened.
    """
    open_page(visit, "release")
    visit.choose("3. Who pays")
    ledger = tmp_path / "people.ledger"
    visit.fill("Ledger file", str(ledger))
    visit.fill("Dataset name", "people")
    visit.number("Total budget (epsilon)", "2")
    visit.page.get_by_role("button", name="More options").click()
    visit.settle()
    visit.page.keyboard.press("Escape")
    visit.press("Create ledger and dataset")
    visit.expect_text("to confirm")
    total = Ledger(ledger).status("people").total
    assert Budget(pcost=total).epsilon(1e-6) == pytest.approx(2.0, rel=1e-6)

    other_ledger = tmp_path / "other.ledger"
    Ledger.create(other_ledger).add_dataset("survey", total=Budget(pcost=1.0))
    visit.choose("3. Who pays")
    field = visit.page.get_by_role("combobox", name="Charge budget to")
    expect(field).to_have_value("people")
    visit.fill("Ledger file", str(other_ledger))
    expect(field).to_have_value("")
