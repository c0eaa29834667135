"""The Compare page in a real browser: every view in both themes with axe, and a mechanism taken into the studio."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from playwright.sync_api import expect

from engine.mechanisms import plan
from engine.privacy import Budget
from engine.workload import Schema, Workload
from pages.parts.shell import link, show
from pages.parts.shell.state import Studio
from tests.browser.conftest import HEIGHT, NARROW, ROOT, WIDTH, Visit


def census(pcost: float = 1.0) -> Studio:
    schema = Schema.from_json((ROOT / "demo_data" / "census.json").read_bytes())
    workload = Workload.all_ways(schema, (1, 2)).add(("age",), "range")
    return Studio(workload=workload, budget=Budget(pcost=pcost))


def test_compare_views_are_accessible_and_set_mechanism(visit: Visit, tmp_path: pytest.TempPathFactory) -> None:
    page = visit.page
    visit.open(f"compare?{link.NAME}={link.packed(census())}")
    visit.sees("Done: the results are below")  # the quick ones need no word
    visit.sees("is the most exact of")
    expect(page.locator(".js-plotly-plot").first).to_be_visible()
    page.get_by_text("What each is expected to take").click()
    visit.settle()
    visit.look("compare_ranking_and_forecast")
    page.get_by_text("What each is expected to take").click()
    page.set_viewport_size({"width": NARROW, "height": HEIGHT})
    visit.look("compare_ranking_narrow")
    assert visit.cut() == []
    page.locator(".js-plotly-plot .xtitle").first.evaluate("one => { one.textContent = 'too long '.repeat(9); }")
    assert len(visit.cut()) == 1  # it would be told
    page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
    page.locator(".js-plotly-plot").first.hover()
    with page.expect_download() as saved:
        page.locator(".modebar-btn[data-title*=Download]").first.click(force=True)
    assert '<svg class="main-svg" xmlns="http://www.w3.org/2000/svg"' in (
        drawn := saved.value.path().read_text("utf-8")
    )
    assert f'width="{show.TEXT_WIDTH}"' in drawn  # as wide as the text of a printed page
    assert len(ElementTree.fromstring(drawn).findall(".//{http://www.w3.org/2000/svg}text")) > 5  # it can be opened
    expect(page.locator(".notifier-note")).to_have_count(0, timeout=60_000)  # the library's word on it has gone
    for view, text in {
        "Other budgets": "Error at other budgets",
        "How errors spread": "95% are within",
        "A against B": "Where A loses, group by group",
        "Strategies": "Gram matrix of the strategy",
        "Two plans": "First plan",
        "Published numbers": "All rows",
    }.items():
        visit.choose(view)
        visit.sees(text)
        visit.settle()
        if view == "Other budgets":
            with visit.run():
                page.locator(".scatterlayer .trace .point").nth(2).click(force=True)  # below what is dragged
            visit.sees("at this budget")
        if view == "A against B":
            visit.pick("Group", "3: age")
        if view == "Two plans":
            other = tmp_path / "plan.json"
            studio = census(pcost=2.0)
            other.write_text(plan(studio.workload, studio.budget, "wff").to_json(), encoding="utf-8")
            visit.upload(other)
            visit.pick("Second plan", "the uploaded file")
            visit.sees("The budget differs: pcost 1 and pcost 2.")
        visit.look(f"compare_{view.replace(' ', '_').lower()}")

    # the winner goes into the studio
    visit.choose("Ranking")
    visit.press("Use Weighted Fourier Factorizations")
    visit.sees("In use: Weighted Fourier Factorizations")
    page.get_by_role("link", name="Preview").click()
    visit.settle()
    visit.sees("Mechanism: Weighted Fourier Factorizations")
    visit.pick("Say the budget as", "pure epsilon")
    visit.sees("keeps no budget of pure epsilon")
    visit.shot("compare_pure_epsilon")
