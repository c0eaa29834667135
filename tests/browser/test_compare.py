"""Page Compare in a browser: accessibility of all views, and use of a mechanism."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from playwright.sync_api import expect

from engine.mechanisms import plan
from engine.privacy import Budget
from engine.workload import Schema, Workload
from pages.parts.shell import figure_view, permalink
from pages.parts.shell.history import RequestState
from tests.browser.conftest import HEIGHT, NARROW, ROOT, WIDTH, Visit


def census_studio(pcost: float = 1.0) -> RequestState:
    schema = Schema.from_json((ROOT / "demo_data" / "census.json").read_bytes())
    workload = Workload.all_ways(schema, (1, 2)).add(("age",), "range")
    return RequestState(workload=workload, budget=Budget(pcost=pcost))


def test_compare_exports_views_and_mechanism_choice_work(visit: Visit, tmp_path: Path) -> None:
    page = visit.page
    visit.open(f"compare?{permalink.NAME}={permalink.packed(census_studio())}")
    # the comparison of quick mechanisms starts without a click
    visit.expect_text("Done: the results are below")
    # the quick comparison has 6 mechanisms
    visit.expect_text("of 6 mechanisms are the most accurate")
    expect(page.locator(".js-plotly-plot").first).to_be_visible()
    visit.unfold("Time limit and forecast")
    visit.check_accessibility("compare_ranking_and_forecast")
    visit.unfold("Time limit and forecast")
    page.set_viewport_size({"width": NARROW, "height": HEIGHT})
    visit.check_accessibility("compare_ranking_narrow")
    assert visit.find_overflows() == []
    page.locator(".js-plotly-plot .xtitle").first.evaluate(
        "one => { one.textContent = 'too long '.repeat(9); }"
    )
    # the text that is too long is reported as overflow
    assert len(visit.find_overflows()) == 1
    page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
    page.get_by_role("button", name="Export").click()
    menu = page.get_by_test_id("stPopoverBody")
    for name, start in {
        "Download CSV": "mechanism,",
        "LaTeX": "\\begin",
        "HTML report": "<!doctype",
    }.items():
        with page.expect_download() as saved:
            menu.get_by_role("button", name=name, exact=True).first.click()
        assert saved.value.path().read_text("utf-8-sig").lstrip().startswith(start), name
    with page.expect_download() as saved:
        page.get_by_role("button", name="SVG", exact=True).first.click()
    svg = saved.value.path().read_text("utf-8")
    assert '<svg class="main-svg" xmlns="http://www.w3.org/2000/svg"' in svg
    # the saved figure is as wide as a text column
    assert f'width="{figure_view.EXPORT_WIDTH}"' in svg
    # the saved file can be parsed
    assert len(ElementTree.fromstring(svg).findall(".//{http://www.w3.org/2000/svg}text")) > 5
    # wait until Plotly's message is gone
    expect(page.locator(".notifier-note")).to_have_count(0, timeout=60_000)
    for view, text in {
        "Differences": "Relative error by table",
        "By query": "Smallest 95% quantile",
        "Two mechanisms": "Tables where A is less accurate",
        "Other budgets": "Four times the privacy cost (pcost) halves every error",
        "Strategies": "The diagonal entry of a cell",
        "Strategy matrix": "One row is one noisy number",
        "Plans": "First plan",
        "Published results": "All rows",
    }.items():
        if page.get_by_role("tab", name=view, exact=True).count():
            visit.choose(view)
        else:
            if view == "Strategy matrix":
                page.get_by_role("button", name="Choose strategies").click()
            with visit.run():
                page.get_by_test_id("stRadio").get_by_text(view, exact=True).click()
            page.keyboard.press("Escape")
        visit.expect_text(text)
        visit.settle()
        if view == "Other budgets":
            with visit.run():
                # without force the click fails, as the drag layer covers the point
                page.locator(".scatterlayer .trace .point").nth(2).click(force=True)
            visit.expect_text("at this budget")
        if view == "Two mechanisms":
            visit.pick("Table", "4: age")
        if view == "Plans":
            other = tmp_path / "plan.json"
            studio = census_studio(pcost=2.0)
            other.write_text(
                plan(studio.workload, studio.budget, "wff").to_json(), encoding="utf-8"
            )
            visit.upload(other)
            visit.pick("Second plan", "uploaded file")
            visit.expect_text("The budget differs: pcost 1 and pcost 2.")
        visit.check_accessibility(f"compare_{view.replace(' ', '_').lower()}")

    # choose another mechanism for the plan
    visit.choose("Ranking")
    visit.pick("Mechanism of your plan", "Weighted Fourier Factorizations")
    visit.unfold("Options of Weighted Fourier Factorizations")
    visit.expect_text("Maximum number of records (public)")
    visit.check_accessibility("compare_options")
    page.get_by_role("link", name="Preview").click()
    visit.settle()
    visit.expect_text("Typical error")
    page.get_by_role("button", name="Budget details").click()
    visit.settle()
    visit.pick("Budget unit", "pure epsilon")
    visit.expect_text("never satisfies pure epsilon")
    visit.take_picture("compare_pure_epsilon")
