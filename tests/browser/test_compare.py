"""Page Compare in a browser: accessibility of all views, and use of a mechanism."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
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


def test_compare_views_are_accessible_and_set_mechanism(
    visit: Visit, tmp_path: pytest.TempPathFactory
) -> None:
    page = visit.page
    visit.open(f"compare?{permalink.NAME}={permalink.packed(census_studio())}")
    visit.expect_text("Done: the results are below")  # quick mechanisms start automatically
    visit.expect_text("is the most accurate of")
    expect(page.locator(".js-plotly-plot").first).to_be_visible()
    page.get_by_text("Estimated time and memory").click()
    visit.settle()
    visit.check_accessibility("compare_ranking_and_forecast")
    page.get_by_text("Estimated time and memory").click()
    page.set_viewport_size({"width": NARROW, "height": HEIGHT})
    visit.check_accessibility("compare_ranking_narrow")
    assert visit.find_overflows() == []
    page.locator(".js-plotly-plot .xtitle").first.evaluate(
        "one => { one.textContent = 'too long '.repeat(9); }"
    )
    assert len(visit.find_overflows()) == 1  # overflow is detected
    page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
    page.locator(".js-plotly-plot").first.hover()
    with page.expect_download() as saved:
        page.locator(".modebar-btn[data-title*=Download]").first.click(force=True)
    assert '<svg class="main-svg" xmlns="http://www.w3.org/2000/svg"' in (
        drawn := saved.value.path().read_text("utf-8")
    )
    assert f'width="{figure_view.EXPORT_WIDTH}"' in drawn  # width of a text column
    assert (
        len(ElementTree.fromstring(drawn).findall(".//{http://www.w3.org/2000/svg}text")) > 5
    )  # valid SVG
    expect(page.locator(".notifier-note")).to_have_count(
        0, timeout=60_000
    )  # Plotly's message is gone
    for view, text in {
        "Other budgets": "Error at other budgets",
        "Error distribution": "Smallest 95% quantile",
        "A and B": "Tables where A is less accurate",
        "Strategies": "Gram matrix of the strategy",
        "Two plans": "First plan",
        "Reproduce the papers": "All rows",
    }.items():
        visit.choose(view)
        visit.expect_text(text)
        visit.settle()
        if view == "Other budgets":
            with visit.run():
                page.locator(".scatterlayer .trace .point").nth(2).click(
                    force=True
                )  # the drag layer covers the point
            visit.expect_text("at this budget")
        if view == "A and B":
            visit.pick("Table", "3: age")
        if view == "Two plans":
            other = tmp_path / "plan.json"
            studio = census_studio(pcost=2.0)
            other.write_text(
                plan(studio.workload, studio.budget, "wff").to_json(), encoding="utf-8"
            )
            visit.upload(other)
            visit.pick("Second plan", "uploaded file")
            visit.expect_text("The budget differs: pcost 1 and pcost 2.")
        visit.check_accessibility(f"compare_{view.replace(' ', '_').lower()}")

    # use the best mechanism
    visit.choose("Ranking")
    visit.press("Use Weighted Fourier Factorizations")
    visit.expect_text("In use: Weighted Fourier Factorizations")
    page.get_by_role("link", name="Preview").click()
    visit.settle()
    visit.expect_text("Mechanism: Weighted Fourier Factorizations")
    visit.pick("Budget unit", "pure epsilon")
    visit.expect_text("never satisfies pure epsilon")
    visit.take_picture("compare_pure_epsilon")
