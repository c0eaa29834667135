"""The Preview page in a real browser: a target reached, a bad group explained and mended, a probe drawn, the bound."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Visit
from tests.browser.test_workload import drag


@pytest.fixture
def previewed(visit: Visit) -> Visit:
    """A session on the Preview page of the survey."""
    visit.open()
    visit.pick("Start from a demo schema", "Election survey")
    visit.press("Use this schema")
    visit.press("Next: Workload")
    visit.press("Add all 1-way, 2-way sets")
    visit.press("Next: Preview")
    visit.sees("Typical error")
    return visit


def test_a_target_is_reached_and_taken_back(previewed: Visit) -> None:
    visit = previewed
    visit.choose("How many are good enough")
    visit.number("Tolerance: ± counts", "4")
    visit.sees("To bring 95% of the queries within it:")
    visit.look("30_target")
    before = visit.page.get_by_role("spinbutton", name="pcost").input_value()
    visit.press("Use this budget")
    box = visit.page.get_by_role("spinbutton", name="pcost")
    expect(box).not_to_have_value(before)
    expect(visit.page.get_by_role("spinbutton", name="Tolerance: ± counts")).to_have_value("4")
    visit.press("Undo")
    expect(box).to_have_value(before)


def test_a_bad_group_is_explained_and_mended(previewed: Visit) -> None:
    visit = previewed
    visit.choose("Why bad?")
    visit.sees("Where the error of this group comes from")
    visit.look("30_why")
    visit.choose("Its least exact query")
    visit.sees("Where the error of this query comes from")
    for label in ("4 × the weight", "Drop the 2-way sets", "2 × the budget", "Merge bins"):
        visit.press(label)
        visit.sees("What if:")
        visit.sees("Keep this change")
    visit.look("30_what_if")
    visit.press("Keep this change")
    expect(visit.page.get_by_text("What if:")).to_have_count(0)
    visit.press("Undo")
    visit.press("Tuned centers")
    visit.page.get_by_role("button", name="Keep this change").wait_for()
    visit.shot("31_what_if_tuned")
    visit.press("Forget it")
    expect(visit.page.get_by_text("What if:")).to_have_count(0)


def test_a_probe_is_drawn_and_the_best_is_bounded(previewed: Visit) -> None:
    visit = previewed
    visit.choose("One query of your own")
    visit.choose("Draw on the domain")
    visit.sees("The interval at other budgets")
    drag(visit, (0.2561, 0.5), (0.5, 0.6))  # 82 cells: the middles of the cells 21 to 40 lie inside
    visit.sees("39 ≤ age < 59" if visit.page.get_by_text("39 ≤ age < 59").count() else "age in [39, 59)")
    visit.sees("The interval at other budgets")
    visit.look("30_probe")
    visit.number("Wanted 95% interval: ± counts", "5")
    visit.sees("To know it within ± 5.00:")
    visit.choose("The limit")
    visit.page.get_by_text("what any matrix mechanism can reach").first.wait_for()
    visit.look("30_distance")
    visit.choose("Groups")
    visit.sees("what any matrix mechanism can reach")
