"""Several rows per person in a browser: budget, total, release and look."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import expect

import demo_data
from engine.ledger import Ledger
from tests.browser.conftest import ROOT, Visit

PROMISE = "up to 3 rows, is protected together"


def test_panel_release_and_look_cap_rows(visit: Visit, tmp_path: Path) -> None:
    visit.open()
    visit.upload(demo_data.schemas()["panel"])
    visit.expect_text("Person ID column")
    visit.check_accessibility("people_0_schema")
    visit.press("Next: Workload")
    visit.press("Add ")
    visit.press("Next: Preview")
    visit.page.get_by_role("button", name="Budget details").click()
    visit.expect_text(PROMISE)
    visit.check_accessibility("people_1_budget")
    with visit.run():
        visit.page.get_by_test_id("stSidebarNav").get_by_role("link", name="Release").click()
    visit.choose("2. File")
    visit.choose("File on the server")
    visit.fill("Records file", str(ROOT / "demo_data" / "panel.csv"))
    visit.expect_text("by the column person")
    visit.press("Check the file")
    visit.expect_text("of 800 persons)")
    visit.press("Next: Who pays")
    ledger = tmp_path / "panel.ledger"
    visit.fill("Ledger file", str(ledger))
    visit.fill("Dataset name", "panel")
    visit.page.get_by_role("button", name="More options").click()
    visit.settle()
    visit.choose("rho")
    visit.number("Maximum rows per person", "3")
    visit.page.keyboard.press("Escape")
    visit.number("Total budget (rho)", "2")
    visit.take_picture("people_2_declare")
    visit.press("Create ledger and dataset")
    visit.choose("3. Who pays")
    visit.expect_text("a person of at most 3 rows")
    visit.press("Next: Confirm")
    visit.fill("to confirm", "panel")
    visit.expect_text(PROMISE)
    visit.check_accessibility("people_3_confirm")
    visit.press("Release: spend")
    visit.expect_text("Released for panel")
    visit.expect_text("of 800 persons)")
    visit.take_picture("people_4_released")

    visit.page.get_by_role("link", name="Coarse or fine").click()
    visit.settle()
    visit.choose("5. Who pays")
    # the dataset of this schema is still chosen
    expect(visit.page.get_by_role("combobox", name="Charge budget to")).to_have_value("panel")
    visit.press("Next: Measure")
    visit.fill("to confirm", "panel")
    visit.press("Measure: spend")
    visit.expect_text("panel was measured on")
    visit.expect_text("of 800 persons)")
    visit.press("Record this decision")
    visit.expect_text("charge this step separately")
    visit.take_picture("people_5_look")
    assert [row.kind for row in Ledger(ledger).rows()].count("spend") == 2
