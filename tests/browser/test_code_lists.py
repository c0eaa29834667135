"""Code lists with levels in the browser: the form on Schema, and a walk through the demo."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.browser.conftest import NARROW, Visit
from tests.browser.screens import IS_CUT

FOLD = "Advanced: code list, impossible combinations, published totals, dictionary"
CSV = "code,label,parent,level\nN,North,,region\nS,South,,region\n01,Ayle,N,\n02,Borne,N,\n03,Cray,{},"


def test_code_list_is_pasted_corrected_and_added(visit: Visit) -> None:
    visit.page.set_viewport_size({"width": 1440, "height": 900})
    visit.open("schema")
    visit.unfold(FOLD)
    visit.fill("Name of the new column", "place")
    visit.fill("Or paste the list", CSV.format("X"))
    visit.expect_text("unknown parent")
    box = visit.page.get_by_role("textbox", name="Or paste the list")
    expect(box).to_have_value(CSV.format("X"))
    visit.check_accessibility("code_list_refused")
    visit.fill("Or paste the list", CSV.format("S"))
    visit.expect_text("Levels: region (2 areas). 3 cells: 01, 02, 03.")
    visit.press("Add the code list")
    visit.expect_text("place, areas: region (2 areas), 3 cells.")
    assert visit.page.get_by_test_id("stDataFrame").first.evaluate(IS_CUT) is False
    visit.expect_text("1 attribute, 3 cells in the full table")
    visit.check_accessibility("code_list_added")
    # the address contains the schema, so a reload keeps it
    visit.page.reload()
    visit.settle()
    visit.expect_text("1 attribute, 3 cells in the full table")
    visit.page.set_viewport_size({"width": NARROW, "height": 900})
    visit.settle()
    assert visit.find_overflows() == []


def test_demo_with_levels_is_walked(visit: Visit) -> None:
    visit.open("")
    visit.pick("Demo", "States in regions")
    visit.expect_text("3,000 simulated persons")
    visit.press("Try a demo")
    visit.expect_text("Typical error (counts)")
    visit.pick("Table", "7: state")
    visit.choose("state")
    visit.expect_text("Areas 1 to 51 of 51, least accurate first.")
    visit.fill("Find an area of state", "new")
    visit.expect_text("No area has this text")
    visit.fill("Find an area of state", "NY")
    visit.expect_text("Areas 1 to 1 of 1")
    visit.check_accessibility("levels_preview")
    visit.press("Next: Compare")
    visit.page.get_by_role("link", name="Release").click()
    visit.settle()
    visit.press("Rehearse", exact=True)
    visit.expect_text("REHEARSAL on simulated")
    visit.pick("Table", "7: state")
    visit.choose("region")
    # 4 regions, 2 sexes and 23 age groups
    visit.expect_text("Answers 1 to 100 of 184.")
    visit.check_accessibility("levels_answers")
    visit.choose("Published tables")
    visit.press("Create published tables")
    visit.expect_text("All tables sum to")
    visit.pick("Table", "7: state")
    visit.choose("division")
    # 9 divisions, 2 sexes and 23 age groups
    visit.expect_text("Answers 1 to 100 of 414.")
    visit.check_accessibility("levels_published")
    visit.page.set_viewport_size({"width": NARROW, "height": 900})
    visit.settle()
    assert visit.find_overflows() == []
