"""A panel with several rows a person in a real browser: budget, total of another kind, cap, release, look."""

from __future__ import annotations

from pathlib import Path

from engine.ledger import Ledger
from tests.browser.conftest import ROOT, Visit

PROMISE = "up to 3 rows, is protected together"


def test_panel_release_and_look_cap_rows(visit: Visit, tmp_path: Path) -> None:
    visit.open()
    visit.pick("Start from a demo schema", "Panel")
    visit.press("Use this schema")
    visit.sees("Whose rows")
    visit.look("people_0_schema")
    visit.press("Next: Workload")
    visit.press("Add all 1-way, 2-way sets")
    visit.press("Next: Preview")
    visit.unfold("What the budget promises, and whom it protects")
    visit.sees(PROMISE)
    visit.look("people_1_budget")
    with visit.run():
        visit.page.get_by_test_id("stSidebarNav").get_by_role("link", name="Release").click()
    visit.choose("2. Release")
    ledger = tmp_path / "panel.ledger"
    visit.fill("Ledger file on this machine", str(ledger))
    visit.press("Create a new ledger here")
    visit.fill("Name of the dataset", "panel")
    visit.choose("rho")
    visit.number("Total budget (rho)", "2")
    visit.number("Most rows of one person", "3")
    visit.shot("people_2_declare")
    visit.press("Declare", exact=True)
    visit.sees("a person of at most 3 rows")
    visit.fill("Path of a file of records", str(ROOT / "demo_data" / "panel.csv"))
    visit.sees("the column person tells whose it is")
    visit.press("Check the records first")
    visit.sees("of 800 persons some of their rows")
    visit.fill("Type the name of the dataset", "panel")
    visit.sees(PROMISE)
    visit.look("people_3_confirm")
    visit.press("Release: spend")
    visit.sees("Released for panel")
    visit.sees("of 800 persons some of their rows")
    visit.shot("people_4_released")

    visit.page.get_by_role("link", name="Coarse or fine").click()
    visit.settle()
    visit.choose("Look for real")
    visit.sees("the column person tells whose it is")
    visit.fill("Type the name of the dataset", "panel")
    visit.press("Look: spend")
    visit.sees("Looked at panel")
    visit.sees("of 800 persons some of their rows")
    visit.press("Record this decision")
    visit.sees("charge this step alone")
    visit.shot("people_5_look")
    assert [row.kind for row in Ledger(ledger).rows()].count("spend") == 2
