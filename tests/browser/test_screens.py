"""Sizes and positions of pages: header, words, first button on a phone, tabs and warnings."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import expect

import demo_data
from engine.workload import Schema, Workload
from pages.parts.shell import permalink
from pages.parts.shell.history import RequestState
from tests.browser.clicks import COUNT_CLICKS, clicks
from tests.browser.conftest import NARROW, Visit
from tests.browser.screens import IS_CUT, MEASURE, PAGES, open_page

WIDTH, HEIGHT = 1440, 900  # pixels
MAX_HEADER = 140  # pixels of title and lead, from the top of the window
# Largest sizes of a page: words on the first screen, all words, height in pixels, and widgets.
START_LIMITS = {"first": 120, "all": 160, "height": HEIGHT}
SCHEMA_LIMITS = {"first": 120, "all": 300, "height": 1800}
RESULT_LIMITS = {"first": 150, "all": 350, "height": 1800}
LIMITS = {
    "start": START_LIMITS,
    "start, project": START_LIMITS,
    "schema, empty": SCHEMA_LIMITS,
    "schema": SCHEMA_LIMITS,
    "preview": {"widgets": 25},
    "compare": RESULT_LIMITS,
    "coarse": RESULT_LIMITS,
    "release": RESULT_LIMITS,
}
MAX_COMPARE_WIDGETS = 30
HEADER_BOTTOM = """() => {
  const title = document.querySelector("[data-testid=stMainBlockContainer] h1");
  return title.closest("[data-testid=stHorizontalBlock], [data-testid=stLayoutWrapper]")
    .getBoundingClientRect().bottom;
}"""
CUT_TABS = """() => [...document.querySelectorAll("[data-testid=stMain] [role=tablist]")].filter(
  (list) => list.scrollWidth > list.clientWidth + 1).map((list) => list.textContent)"""
# The first 80 characters of the HTML of each element that covers a help icon in the header of a
# page, such as the toolbar.
COVERED_HELP = """(bottom) => [...document.querySelectorAll(
    "[data-testid=stMain] [data-testid=stTooltipIcon]")].flatMap((icon) => {
  const box = icon.getBoundingClientRect();
  const top = document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2);
  return box.bottom > bottom || icon.contains(top) ? [] : [top.outerHTML.slice(0, 80)];
})"""
WARNINGS = """() => [...document.querySelectorAll("[data-testid=stMain] [data-testid=stAlert]")].filter(
  (one) => one.checkVisibility()).map((one) => one.innerText.trim())"""


CENSUS = RequestState(
    workload=Workload.all_ways(Schema.from_json(demo_data.schemas()["census"].read_bytes()), (1, 2))
)


def open_at(visit: Visit, name: str, width: int) -> None:
    visit.page.set_viewport_size({"width": width, "height": HEIGHT})
    open_page(visit, name)


@pytest.mark.parametrize("name", list(PAGES))
def test_page_is_small_and_nothing_is_cut(visit: Visit, name: str) -> None:
    open_at(visit, name, WIDTH)
    sizes = visit.page.evaluate(MEASURE, HEIGHT)
    for size, limit in LIMITS.get(name, {}).items():
        assert sizes[size] <= limit, size
    assert visit.page.evaluate(HEADER_BOTTOM) <= MAX_HEADER
    assert visit.page.evaluate(CUT_TABS) == []
    warnings = visit.page.evaluate(WARNINGS)
    assert len(set(warnings)) == len(warnings), warnings
    assert visit.page.evaluate(COVERED_HELP, MAX_HEADER) == []
    visit.page.set_viewport_size({"width": NARROW, "height": HEIGHT})
    visit.settle()
    assert visit.page.evaluate(MEASURE, HEIGHT)["wide"] == 0  # tables scroll, the page does not


def test_schema_grid_is_complete_and_open_settings_are_low(visit: Visit) -> None:
    open_at(visit, "schema", WIDTH)
    assert visit.page.get_by_test_id("stDataFrame").evaluate(IS_CUT) is False
    visit.unfold("Advanced: code list, impossible combinations, published totals, dictionary")
    visit.unfold("As Python")
    height = visit.page.evaluate(MEASURE, HEIGHT)["height"]
    assert height <= SCHEMA_LIMITS["height"]


def check_last_mechanism_is_visible(visit: Visit) -> None:
    """Check that HDMM, the last name in the field of mechanisms, is inside the field."""
    field = visit.page.get_by_test_id("stMultiSelect").first
    box, last = field.bounding_box(), field.get_by_text("HDMM", exact=True).bounding_box()
    assert box is not None
    assert last is not None
    assert last["x"] + last["width"] <= box["x"] + box["width"]
    assert last["y"] + last["height"] <= box["y"] + box["height"]


def test_compare_shows_all_mechanisms_and_few_widgets(visit: Visit) -> None:
    open_at(visit, "compare", WIDTH)
    check_last_mechanism_is_visible(visit)
    visit.page.set_viewport_size({"width": NARROW, "height": HEIGHT})
    visit.settle()
    check_last_mechanism_is_visible(visit)
    assert visit.page.evaluate(MEASURE, HEIGHT)["widgets"] <= MAX_COMPARE_WIDGETS
    visit.page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
    visit.choose("Strategies")
    visit.expect_text("Bright: both cells are counted")
    assert visit.page.evaluate(MEASURE, HEIGHT)["widgets"] <= MAX_COMPARE_WIDGETS


def test_published_tables_have_few_words(visit: Visit) -> None:
    visit.page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
    visit.open(f"release?{permalink.NAME}={permalink.packed(CENSUS)}")
    visit.press("Rehearse", exact=True)
    visit.choose("Published tables")
    visit.press("Create published tables")
    visit.expect_text("All tables sum to")
    visit.settle()
    assert visit.page.evaluate(MEASURE, HEIGHT)["first"] <= 150  # words in the window


def test_formats_of_records_file_are_not_cut(visit: Visit) -> None:
    open_at(visit, "release", WIDTH)
    visit.press("Next: File")
    for width in (WIDTH, NARROW):
        visit.page.set_viewport_size({"width": width, "height": HEIGHT})
        visit.settle()
        instructions = visit.page.get_by_test_id("stFileUploaderDropzoneInstructions")
        formats = instructions.get_by_text("ARROW")
        expect(formats).to_contain_text("ZST")
        assert formats.evaluate("(text) => text.scrollWidth <= text.clientWidth + 1")
        assert formats.evaluate("(text) => getComputedStyle(text).whiteSpace") == "normal"


@pytest.mark.parametrize(("width", "most"), [(1024, HEIGHT), (NARROW, 1200)])
def test_start_with_project_is_low(visit: Visit, width: int, most: int) -> None:
    open_at(visit, "start, project", width)
    assert visit.page.evaluate(MEASURE, HEIGHT)["height"] <= most


def test_first_start_button_is_on_phone_screen(visit: Visit) -> None:
    open_at(visit, "start", NARROW)
    box = visit.page.get_by_role("button", name="Try a demo").bounding_box()
    assert box is not None
    assert box["y"] + box["height"] <= HEIGHT


def test_sidebar_closes_on_phone_when_page_is_chosen(visit: Visit) -> None:
    open_at(visit, "schema", NARROW)
    visit.page.get_by_test_id("stExpandSidebarButton").click()
    visit.page.get_by_test_id("stSidebarNavLink").filter(has_text="Workload").click()
    visit.expect_text("Tables of the workload")
    side = visit.page.get_by_test_id("stSidebar")
    visit.page.wait_for_function(
        "(side) => side.getBoundingClientRect().right <= 0", arg=side.element_handle()
    )
    # A wide window opens with the sidebar only if no collapsed state of the sidebar is stored.
    visit.page.wait_for_function(
        "() => !Object.keys(localStorage).some((key) => key.startsWith('stSidebarCollapsed'))"
    )
    open_at(visit, "schema", WIDTH)
    assert side.bounding_box()["x"] >= 0


def test_next_opens_page_at_its_top(visit: Visit) -> None:
    open_at(visit, "schema", NARROW)
    visit.page.evaluate("document.querySelector('[data-testid=stMain]').scrollTo(0, 10000)")
    visit.press("Next: Workload")
    assert visit.page.evaluate("document.querySelector('[data-testid=stMain]').scrollTop") == 0


def test_csv_becomes_schema_in_few_clicks(visit: Visit, tmp_path: Path) -> None:
    page, records = visit.page, tmp_path / "people.csv"
    records.write_text("sex,age\nf,31\nm,4\n", encoding="utf-8")
    page.add_init_script(COUNT_CLICKS)
    open_at(visit, "start", WIDTH)
    visit.upload(records)
    visit.expect_text("only the 2 column names were read")
    assert "sex" not in page.url  # names of an uploaded file are in no address
    visit.fill_values("f | m", "0:120:20")
    visit.expect_text("2 attributes, 12 cells")
    visit.press("Next: Workload")
    assert clicks(page) <= 6
