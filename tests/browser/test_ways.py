"""Browser history, reload and links of an older version."""

from __future__ import annotations

import base64
import json
import zlib

import pytest

import demo_data
from engine.workload import Schema, Workload
from pages.parts.shell import permalink
from pages.parts.shell.history import RequestState
from tests.browser.conftest import Visit

BUDGET_TEXT = "ε 4.887"  # in the sidebar, if there is a workload
# text that each page shows
PAGE_TEXTS = {
    "Start": "Project · Schema",
    "Schema": "cells in the full table",
    "Workload": "Tables of the workload",
    "Preview": "Typical error",
    "Compare": "Done: the results are below",
    "Coarse or fine": "What every option costs",
    "Release": "Not rehearsed yet",
    "Learn": "An attack, and why noise stops it",
    "Guide": "A census table",
}


def census_workload() -> Workload:
    schema = Schema.from_json(demo_data.schemas()["census"].read_bytes())
    return Workload.all_ways(schema, (1, 2), "marginal")


def write_older_link(studio: RequestState) -> str:
    """Return the request as the text in a link of versions without tuned centers and neighbours."""
    document = json.loads(studio.to_json())
    document["question"]["options"] = {}
    document["budget"] = {"pcost": 1.0}
    return base64.urlsafe_b64encode(zlib.compress(json.dumps(document).encode(), 9)).decode()


@pytest.mark.parametrize(
    "titles",
    [("Preview", "Release", "Guide"), pytest.param(tuple(PAGE_TEXTS), marks=pytest.mark.full)],
    ids=["some pages", "every page"],
)
def test_reload_and_history_keep_the_workload(visit: Visit, titles: tuple[str, ...]) -> None:
    page = visit.page
    visit.open(
        f"workload?{permalink.NAME}={write_older_link(RequestState(workload=census_workload()))}"
    )
    for title in titles:
        with visit.run():
            page.get_by_test_id("stSidebarNav").get_by_role("link", name=title).click()
        visit.expect_text(PAGE_TEXTS[title])
        visit.expect_text(BUDGET_TEXT)
        page.reload()
        visit.settle()
        visit.expect_text(PAGE_TEXTS[title])
        visit.expect_text(BUDGET_TEXT)
    earlier, previous = titles[-3:-1]  # the pages before the last one
    for title, move in (
        (previous, page.go_back),
        (earlier, page.go_back),
        (previous, page.go_forward),
    ):
        visit.go_in_history(title, move)
        visit.expect_text(PAGE_TEXTS[title])
