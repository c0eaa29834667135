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
# page -> largest number of words on the first screen, of all words, and of pixels
LIMITS = {
    "start": (120, 160, HEIGHT),
    "start, project": (120, 160, HEIGHT),
    "schema, empty": (120, 300, 1800),
    "schema": (120, 300, 1800),
    "compare": (150, 350, 1800),
    "coarse": (150, 350, 1800),
    "release": (150, 350, 1800),
}
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


@pytest.mark.parametrize("name", list(LIMITS))
def test_page_has_few_words_and_low_height(visit: Visit, name: str) -> None:
    open_at(visit, name, WIDTH)
    sizes = visit.page.evaluate(MEASURE, HEIGHT)
    assert all(
        size <= limit
        for size, limit in zip(
            (sizes["first"], sizes["all"], sizes["height"]), LIMITS[name], strict=True
        )
    ), sizes


@pytest.mark.parametrize("name", list(PAGES))
def test_page_header_is_low_and_nothing_is_cut(visit: Visit, name: str) -> None:
    open_at(visit, name, WIDTH)
    assert visit.page.evaluate(HEADER_BOTTOM) <= MAX_HEADER
    assert visit.page.evaluate(CUT_TABS) == []
    warnings = visit.page.evaluate(WARNINGS)
    assert len(set(warnings)) == len(warnings), warnings
    assert visit.page.evaluate(COVERED_HELP, MAX_HEADER) == []
    visit.page.set_viewport_size({"width": NARROW, "height": HEIGHT})
    visit.settle()
    assert visit.page.evaluate(MEASURE, HEIGHT)["wide"] == 0  # tables scroll, the page does not


def test_schema_with_open_settings_is_low(visit: Visit) -> None:
    open_at(visit, "schema", WIDTH)
    visit.unfold("Advanced: code list, impossible combinations, published totals, dictionary")
    visit.unfold("As Python")
    _, _, max_height = LIMITS["schema"]
    assert visit.page.evaluate(MEASURE, HEIGHT)["height"] <= max_height


@pytest.mark.parametrize("width", [WIDTH, NARROW])
def test_last_name_of_compared_mechanisms_is_visible(visit: Visit, width: int) -> None:
    open_at(visit, "compare", width)
    field = visit.page.get_by_test_id("stMultiSelect").first
    # HDMM is the last name in the field
    box, last = field.bounding_box(), field.get_by_text("HDMM", exact=True).bounding_box()
    assert box is not None
    assert last is not None
    assert last["x"] + last["width"] <= box["x"] + box["width"]
    assert last["y"] + last["height"] <= box["y"] + box["height"]


def test_preview_and_strategies_have_few_widgets(visit: Visit) -> None:
    open_at(visit, "preview", WIDTH)
    assert visit.page.evaluate(MEASURE, HEIGHT)["widgets"] <= 25
    open_at(visit, "compare", WIDTH)
    visit.page.set_viewport_size({"width": NARROW, "height": HEIGHT})
    visit.settle()
    assert visit.page.evaluate(MEASURE, HEIGHT)["widgets"] <= 30
    visit.page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
    visit.choose("Strategies")
    visit.expect_text("Bright: both cells are counted")
    assert visit.page.evaluate(MEASURE, HEIGHT)["widgets"] <= 30


def test_published_tables_have_few_words(visit: Visit) -> None:
    visit.page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
    visit.open(f"release?{permalink.NAME}={permalink.packed(CENSUS)}")
    visit.press("Rehearse", exact=True)
    visit.choose("Published tables")
    visit.press("Create published tables")
    visit.expect_text("All tables sum to")
    visit.settle()
    assert visit.page.evaluate(MEASURE, HEIGHT)["first"] <= 150  # words in the window


def test_schema_grid_shows_all_columns(visit: Visit) -> None:
    open_at(visit, "schema", WIDTH)
    assert visit.page.get_by_test_id("stDataFrame").evaluate(IS_CUT) is False


@pytest.mark.parametrize("width", [WIDTH, NARROW])
def test_formats_of_records_file_are_not_cut(visit: Visit, width: int) -> None:
    open_at(visit, "release", width)
    visit.press("Next: File")
    formats = visit.page.get_by_test_id("stFileUploaderDropzoneInstructions").get_by_text("ARROW")
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
