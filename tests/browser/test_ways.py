"""The arrows and the reload of the browser on every page, a link of an older version, a second dataset in between."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import expect

import demo_data
from engine import Schema, Workload
from engine.release import Ledger
from pages.parts.shell import link
from pages.parts.shell.state import Studio
from tests.browser.conftest import HEIGHT, NARROW, ROOT, Visit

CHOSEN = "Workload: 3 groups, 311 queries"  # stands in the sidebar of every page
# what stands on a page when it is there, beside what was chosen
WORDS = {
    "Start": "Go on where you were.",
    "Schema": "At a glance",
    "Workload": "Groups of the workload",
    "Preview": "Typical error",
    "Compare": "Done: the results are below",
    "Coarse or fine": "What every option costs",
    "Release": "Nothing rehearsed yet",
    "Learn": "A query, smashed",
    "Guide": "A census table",
}


def census() -> Workload:
    schema = Schema.from_json(demo_data.schemas()["census"].read_bytes())
    return Workload.all_ways(schema, (1, 2), "marginal")


def older(studio: Studio) -> str:
    """A link as it was written when all plans were uniform and no budget told whom it protects."""
    document = json.loads(studio.to_json())
    document["question"]["options"] = {}
    document["budget"] = {"pcost": 1.0}
    return base64.urlsafe_b64encode(zlib.compress(json.dumps(document).encode(), 9)).decode()


def moved(visit: Visit, title: str, move: Callable[[], object]) -> None:
    """Go back or forward to a page: one step, whatever pages wrote into their addresses on the way."""
    with visit.run():
        move()
    expect(visit.page.get_by_role("heading", name=title, level=1)).to_be_visible()


@pytest.mark.parametrize(
    "titles",
    [("Preview", "Release", "Guide"), pytest.param(tuple(WORDS), marks=pytest.mark.full)],
    ids=["some pages", "every page"],
)
def test_reload_and_arrows_lose_nothing(visit: Visit, titles: tuple[str, ...]) -> None:
    page = visit.page
    visit.open(f"workload?{link.NAME}={older(Studio(workload=census()))}")
    for title in titles:
        with visit.run():
            page.get_by_test_id("stSidebarNav").get_by_role("link", name=title).click()
        for again in (False, True):
            if again:
                page.reload()
                visit.settle()
            visit.sees(WORDS[title])
            visit.sees(CHOSEN)
    first, second = titles[-3:-1]
    for title, move in ((second, page.go_back), (first, page.go_back), (second, page.go_forward)):
        moved(visit, title, move)
        visit.sees(WORDS[title])
        visit.sees(CHOSEN)


def test_back_leaves_a_page_however_often_it_changed_its_address(visit: Visit) -> None:
    page = visit.page
    page.set_viewport_size({"width": NARROW, "height": HEIGHT})
    visit.open(f"workload?{link.NAME}={link.packed(Studio(workload=census()))}")
    before = page.evaluate("history.length")
    visit.press("Next: Preview")
    visit.sees(WORDS["Preview"])
    for name in ("Drop the 2-way sets", "Keep this change"):
        visit.press(name)
    visit.press("Next: Compare")
    visit.sees(WORDS["Compare"])
    assert page.evaluate("history.length") == before + 2
    moved(visit, "Preview", page.go_back)
    moved(visit, "Workload", page.go_back)
    moved(visit, "Preview", page.go_forward)


def test_a_second_dataset_between_two_steps_is_the_one_that_pays(visit: Visit, tmp_path: Path) -> None:
    page, place = visit.page, tmp_path / "office.ledger"
    schema = Schema.from_json(demo_data.schemas()["survey"].read_bytes())
    visit.open(f"release?{link.NAME}={link.packed(Studio(workload=Workload(schema).add('vote')))}")
    visit.choose("2. Release")
    visit.fill("Ledger file on this machine", str(place))
    visit.press("Create a new ledger here")
    visit.fill("Name of the dataset", "first")
    visit.press("Declare", exact=True)
    visit.fill("Path of a file of records", str(ROOT / "demo_data" / "survey.csv"))
    visit.fill("Type the name of the dataset", "first")
    release = page.get_by_role("button", name="Release: spend")
    expect(release).to_be_enabled()
    page.get_by_test_id("stExpander").get_by_text("Declare a dataset", exact=True).first.click()
    visit.settle()
    visit.fill("Name of the dataset", "second")
    visit.press("Declare", exact=True)
    expect(page.get_by_role("combobox", name="Dataset that pays")).to_have_value("second")
    expect(release).to_be_disabled()  # the first one was typed, and does not pay
    page.reload()
    visit.settle()
    expect(page.get_by_role("combobox", name="Dataset that pays")).to_have_value("second")
    expect(release).to_be_disabled()
    visit.fill("Path of a file of records", str(ROOT / "demo_data" / "survey.csv"))
    visit.fill("Type the name of the dataset", "second")
    release.click()
    visit.sees("Released for second")
    with visit.run():
        page.get_by_test_id("stSidebarNav").get_by_role("link", name="Preview").click()
    moved(visit, "Release", page.go_back)  # opens where one was
    visit.sees("Released for second")
    assert [row.dataset for row in Ledger(place).rows() if row.kind == "spend"] == ["second"]
