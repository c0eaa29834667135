"""Page "Coarse or fine" in a browser: rehearsal, both measurements and the decision."""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import Path

from playwright.sync_api import expect

import demo_data
from demo_data.make_synthetic import synthetic
from engine.ledger import Ledger
from engine.privacy import Budget
from engine.workload import Attribute, Schema, Workload
from pages.parts.shell import permalink
from pages.parts.shell.history import RequestState
from tests.browser.clicks import COUNT_CLICKS, clicks
from tests.browser.conftest import Visit

SCHEMA = Schema(
    [
        Attribute.numeric("age", [0, 18, 30, 45, 65, 110]),
        Attribute.categorical("sex", ["F", "M"]),
        Attribute.categorical("region", ["north", "east", "south", "west"]),
    ]
)


def test_empty_coarse_page_shows_census_example(visit: Visit) -> None:
    # If this is the first page that the server shows, Streamlit could detect its older kind of
    # navigation, which has no links in the sidebar.
    visit.open("coarse")
    visit.expect_text("There is no schema yet")
    expect(visit.page.get_by_role("link", name="Preview")).to_be_visible()
    visit.check_accessibility("30_coarse_empty")
    visit.choose("Census example: age bins")
    visit.expect_text("Choice 3: Age9, or Age23?")
    visit.choose("3. Rehearse")
    visit.press("Rehearse the first measurement", exact=True)
    visit.expect_text("REHEARSAL on simulated records")
    visit.press("Rehearse the next measurement", exact=True)
    visit.expect_text("Measurement 2")
    visit.check_accessibility("30_coarse_census")

    # the page Compare, in a session without a schema
    with visit.run():
        visit.page.get_by_test_id("stSidebarNav").get_by_role("link", name="Compare").click()
    visit.expect_text("nothing to compare yet")
    visit.check_accessibility("compare_empty")


def test_levels_are_decided_in_few_clicks_with_reloads(visit: Visit, tmp_path: Path) -> None:
    """A decision maker needs few clicks from choosing the analyses to the final paragraph.

    The page is reloaded twice in between.
    """
    page, records = visit.page, tmp_path / "people.csv"
    states = Schema.from_json(demo_data.schemas()["states"].read_bytes())
    synthetic(states, 3000, seed=2).to_csv(records, index=False)
    request = RequestState(
        workload=Workload(states).add(("state", "sex")), budget=Budget.approx(1.0, 1e-6)
    )
    page.add_init_script(COUNT_CLICKS)
    visit.open(f"coarse?{permalink.NAME}={permalink.packed(request)}")
    visit.expect_text("Choice 1: region, or a finer one?")
    visit.press("Next: Rule")
    visit.number("Signal-to-noise ratio", "6")
    total = reload_and_count(visit)
    visit.expect_text("at least 6 standard errors")
    visit.press("Next: Rehearse")
    visit.expect_text("REHEARSAL on simulated records")
    visit.press("Next: File")
    visit.upload(records)
    visit.press("Next: Who pays")
    visit.fill("Ledger file", str(tmp_path / "office.ledger"))
    visit.fill("Dataset name", "office")
    visit.press("Create ledger and dataset")
    visit.expect_text("must reach 6 standard errors")  # the rule is beside the spend
    visit.fill("to confirm", "office")
    visit.press("Measure: spend ε")
    visit.expect_text("office was measured on")
    visit.press("Record this decision")
    total += reload_and_count(visit)
    visit.expect_text("was chosen by the rule")
    visit.choose("File on the server")
    visit.fill("Records file", str(records))
    visit.fill("to confirm", "office")
    visit.press("Next measurement: ε")
    visit.expect_text("Measurement 2")
    visit.press("Record this decision")
    visit.fill("to confirm", "office")
    visit.press("Next measurement: ε")
    visit.expect_text("For office, the decision on")
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Download this paragraph").click()
    assert "as much as this analysis alone" in waiting.value.path().read_text(encoding="utf-8")
    assert total + clicks(page) <= 12  # two decisions; with one decision there are 2 clicks less
    page.reload()
    visit.settle()
    visit.expect_text("For office, the decision on")


def reload_and_count(visit: Visit) -> int:
    """Reload the page; return the number of clicks before the reload."""
    clicks_before = clicks(visit.page)
    visit.page.reload()
    visit.settle()
    return clicks_before


def test_decision_in_other_tab_and_reload_continue_look(visit: Visit, tmp_path: Path) -> None:
    page = visit.page
    place, records = tmp_path / "office.ledger", tmp_path / "records.csv"
    synthetic(SCHEMA, 3000, seed=2).to_csv(records, index=False)
    visit.open(
        f"coarse?{permalink.NAME}={permalink.packed(RequestState(workload=Workload(SCHEMA)))}"
    )
    visit.expect_text("Cost of each option")
    visit.settle()
    visit.press("Next: Rule")
    visit.expect_text("Set the rule first")
    visit.press("Next: Rehearse")
    visit.press("Rehearse the first measurement", exact=True)
    visit.expect_text("REHEARSAL on simulated records")
    visit.expect_text("Signal-to-noise ratios on age with 2-way")
    visit.choose("Share of reliable cells")
    visit.expect_text("Share of reliable cells")
    visit.press("Rehearse the next measurement", exact=True)
    visit.expect_text("(both measurements)")
    visit.check_accessibility("30_coarse_rehearsed_rest")

    # from here on with records and a ledger
    visit.press("Next: File")
    visit.choose("File on the server")
    visit.fill("Records file", str(records))
    visit.press("Next: Who pays")
    visit.fill("Ledger file", str(place))
    visit.fill("Dataset name", "office 2026")
    visit.press("Create ledger and dataset")
    visit.expect_text("Together with the second measurement, it costs")
    expect(page.get_by_role("button", name="Measure: spend")).to_be_disabled()
    visit.fill("to confirm", "office 2026")
    visit.check_accessibility("30_coarse_look_waits")
    page.get_by_role("button", name="Measure: spend").dblclick()
    visit.expect_text("office 2026 was measured on")
    visit.expect_text("Choose 2-way: ")
    visit.check_accessibility("30_coarse_looked")

    # the decision is recorded in another tab, whose session has no analyses
    tab = page.context.new_page()
    other = Visit(page=tab, url=visit.url, pictures_folder=visit.pictures_folder)
    other.open("coarse")
    other.choose("Past measurements")
    expect(tab.get_by_role("combobox", name="First measurement")).to_have_value(
        re.compile("waits for a decision")
    )
    other.press("Show the measurement")
    other.expect_text("Rule recorded with the first measurement")
    other.choose("Choose 1-way")
    expect(tab.get_by_role("button", name="Record this decision")).to_be_disabled()
    other.fill("Name (required against the rule)", "A. Reader")
    other.fill("Reason", "totals matter most")
    tab.get_by_role("button", name="Record this decision").dblclick()
    other.expect_text("was chosen by A. Reader, against the rule")
    tab.close()

    page.reload()
    visit.settle()
    visit.expect_text("was chosen by A. Reader")
    visit.fill("to confirm", "office 2026")
    page.get_by_role("button", name="Next measurement: ε").dblclick()
    visit.expect_text("was '1-way', after a first measurement")
    visit.expect_text("as much as this analysis alone")
    visit.check_accessibility("30_coarse_finished")
    rows = Ledger(place).rows()
    expected = ["spend", "saved", "note:rule", "note:decision", "spend", "saved"]
    assert [r.kind for r in rows][2:] == expected
    assert sum(Decimal(r.pcost) for r in rows if r.kind == "spend") <= 1
