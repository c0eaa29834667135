"""Workload page in a browser: escaped names, SQL and ranges."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import expect

import demo_data
from engine.workload import Attribute, Schema, Workload
from pages.parts.shell import permalink
from pages.parts.shell.history import RequestState
from tests.browser.conftest import Visit

# Elements that the page would have if the names below were read as Markdown or HTML.
MARKUP_SELECTOR = (
    "img[src*=example], a[href*=example], a[href^=javascript], main b:text-is('c'), main"
    " i:text-is('code')"
)
SQL = (
    "SELECT vote, COUNT(*) FROM survey WHERE age BETWEEN 20 AND 39 GROUP BY vote; SELECT COUNT(*)"
    " FROM survey"
)


def test_names_and_labels_are_not_rendered_as_markup(visit: Visit, tmp_path: Path) -> None:
    markup = (
        "![x](http://example.com/a.png) <img src=http://example.com/b.png onerror=alert(1)>"
        " :red[y] $z$"
    )
    labels = [markup, "[k](http://example.com)", "<b>c</b>", "=1+1"]
    code = Attribute.of_size("<i>code</i>", 3)
    script = Attribute.of_size("[k](javascript:alert(1))", 3)
    schema = Schema([Attribute.categorical(markup, labels), code, script])
    file = tmp_path / "schema.json"
    file.write_text(schema.to_json(), encoding="utf-8")
    visit.open()
    visit.upload(file)
    visit.expect_text("cells in the full table")
    visit.press("Next: Workload")
    visit.press("Add ")
    visit.choose("Pick a range")
    visit.pick("Second attribute", "![x]")
    visit.drag((0.1, 0.1), (0.6, 0.9))
    visit.press("Add this range")
    visit.expect_text("1 table added")
    visit.take_picture("21_hostile_range")
    visit.choose("One table")
    visit.pick("Attributes", "![x]", "<i>")
    assert visit.page.locator(MARKUP_SELECTOR).count() == 0
    visit.choose("One per attribute")
    visit.choose("Write SQL")
    visit.press("Insert an example")
    visit.expect_text("The SQL describes 2 tables")
    visit.press("from SQL")
    visit.fill("SQL (statements separated by ;)", f"SELECT COUNT(*) FROM t WHERE x = '{markup}'")
    visit.expect_text("There is no attribute")
    visit.take_picture("22_hostile_sql")
    assert visit.page.locator(MARKUP_SELECTOR).count() == 0
    visit.press("Next: Preview")
    visit.unfold("Find the budget for a target error")
    visit.choose("One query")
    visit.pick("Attributes", "![x]", "<i>")
    visit.take_picture("23_hostile_query")
    assert visit.page.locator(MARKUP_SELECTOR).count() == 0
    visit.press("Next: Compare")
    visit.press("Next: Release")
    visit.press("Rehearse", exact=True)
    visit.expect_text("REHEARSAL on simulated records")
    assert visit.page.locator(MARKUP_SELECTOR).count() == 0


def test_workload_page_adds_groups_from_sql_and_ranges(visit: Visit) -> None:
    schema = Schema.from_json(demo_data.schemas()["survey"].read_bytes())
    visit.open(
        f"workload?{permalink.NAME}={permalink.packed(RequestState(workload=Workload(schema)))}"
    )
    visit.expect_text("No table yet")
    visit.choose("Write SQL")
    visit.take_picture("20_sql_empty")
    visit.fill("SQL (statements separated by ;)", "SELECT AVG(age) FROM survey")
    visit.expect_text("all queries are counts")
    visit.check_accessibility("20_sql_refused")
    expect(visit.page.get_by_role("button", name="from SQL")).to_have_count(0)
    visit.fill("SQL (statements separated by ;)", SQL)
    visit.expect_text("The SQL describes 2 tables with 3 queries")
    visit.expect_text("20 ≤ age < 40")
    visit.check_accessibility("20_sql")
    visit.press("from SQL")
    visit.expect_text("2 tables, 3 queries")

    # choose a range of values with the mouse
    visit.choose("Pick a range")
    visit.expect_text("Range: ")
    visit.drag((0.2561, 0.5), (0.5, 0.6))  # 82 cells: the middles of the cells 21 to 40 lie inside
    visit.expect_text("Range: 39 ≤ age < 59")
    visit.check_accessibility("20_range")
    visit.press("Add this range")
    visit.expect_text("3 tables, 4 queries")

    # choose a range of values with the keyboard
    last = visit.page.get_by_role("slider").nth(1)
    last.focus()
    with visit.run():
        visit.page.keyboard.press("ArrowRight")
    visit.expect_text("Range: 39 ≤ age < 60")

    # a second box, and a rectangle on two attributes
    visit.drag((0.9, 0.2), (0.99, 0.6))
    visit.expect_text("Range: 92 ≤ age < 99")
    visit.pick("Second attribute", "party")
    visit.drag((0.05, 0.05), (0.45, 0.4))
    visit.expect_text("party in [")
    visit.check_accessibility("20_rectangle")
    visit.press("Add this range")
    visit.page.get_by_text("As Python", exact=True).click()
    expect(visit.page.get_by_text("Custom(predicates=['39 <= age < 59'])")).to_be_visible()
    visit.press("Next: Preview")
    visit.expect_text("Typical error")


def test_delta_is_shown_without_trailing_zeros(visit: Visit) -> None:
    workload = Workload(Schema([Attribute.of_size("age", 3)]))
    visit.open(f"workload?{permalink.NAME}={permalink.packed(RequestState(workload=workload))}")
    visit.page.get_by_role("button", name="Budget details").click()
    expect(visit.page.get_by_role("spinbutton", name="delta")).to_have_value("0.000001")
