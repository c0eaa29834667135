"""The arrows and the reload of the browser on every page and a link of an older version."""

from __future__ import annotations

import base64
import json
import zlib

import pytest

import demo_data
from engine.workload import Schema, Workload
from pages.parts.shell import link
from pages.parts.shell.state import Studio
from tests.browser.conftest import Visit

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


@pytest.mark.parametrize(
    "titles",
    [("Preview", "Release", "Guide"), pytest.param(tuple(WORDS), marks=pytest.mark.full)],
    ids=["some pages", "every page"],
)
def test_reload_and_history_keep_the_workload(visit: Visit, titles: tuple[str, ...]) -> None:
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
        visit.moves(title, move)
        visit.sees(WORDS[title])
        visit.sees(CHOSEN)
