"""The grid of the Schema page: an invalid edit stays until it is corrected."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.browser.conftest import Visit

VALUES = {"x": 350, "y": 53}  # pixels: the values of the first attribute


def type_values(visit: Visit, text: str) -> None:
    """Type a text into the cell of the column "values" in the first row of the grid."""
    grid = visit.page.get_by_test_id("stDataFrame").first
    with visit.run():
        grid.dblclick(position=VALUES)
        # keys that are typed before the editor of the cell is there would be lost
        editor = visit.page.locator("#portal textarea, #portal input").first
        editor.fill(text)
        editor.press("Enter")


def test_invalid_edit_stays_until_it_is_corrected(visit: Visit) -> None:
    visit.page.set_viewport_size({"width": 1440, "height": 900})
    visit.open("")
    visit.press("Try a demo")
    visit.page.get_by_role("link", name="Schema").click()
    visit.settle()
    advance = visit.page.get_by_role("button", name="Next: Workload")
    expect(advance).to_be_enabled()
    type_values(visit, "3, 2, 1")
    for _ in range(2):
        visit.expect_text("Row 1 (age)")
        expect(advance).to_be_disabled()
        visit.page.get_by_role("link", name="Workload").click()
        visit.settle()
        visit.page.get_by_role("link", name="Schema").click()
        visit.settle()
    type_values(visit, "0, 50, 100")
    expect(visit.page.get_by_text("Row 1 (age)")).to_have_count(0)
    expect(advance).to_be_enabled()
    visit.page.get_by_role("link", name="Workload").click()
    visit.expect_text("age")
