"""Accessibility and overflow of all pages at three widths, in both themes."""

from __future__ import annotations

import itertools

import pytest

import demo_data
from engine.privacy import Budget
from engine.workload import Schema, Workload
from pages.parts.shell import permalink
from pages.parts.shell.history import RequestState
from tests.browser.conftest import HEIGHT, NARROW, Visit

WIDTHS = NARROW, 1100, 1440  # pixels


def page_path(page: str, demo: str) -> str:
    """Return the path of a page with all 1-way and 2-way groups of a demo."""
    schema = Schema.from_json(demo_data.schemas()[demo].read_bytes())
    studio = RequestState(workload=Workload.all_ways(schema, (1, 2)), budget=Budget(pcost=1.0))
    return f"{page}?{permalink.NAME}={permalink.packed(studio)}"


# path of each page and a text that it shows
PAGES = {
    "start": ("", "Try a demo"),
    "schema_empty": ("schema", "Fill the grid from a file"),
    "schema": (page_path("schema", "survey"), "cells in the full table"),
    "workload_empty": ("workload", "No schema yet"),
    "workload": (page_path("workload", "survey"), "Tables of the workload"),
    "preview_empty": ("preview", "choose a schema and add queries"),
    "preview": (page_path("preview", "survey"), "Ways to reduce this error"),
    "compare_empty": ("compare", "There is nothing to compare yet"),
    "compare": (page_path("compare", "census"), "Done: the results are below"),
    "coarse_empty": ("coarse", "There is no schema yet"),
    "coarse": (page_path("coarse", "survey"), "What every option costs"),
    "release_empty": ("release", "choose a schema and add queries"),
    "release": (page_path("release", "survey"), "REHEARSAL on simulated records"),
    "learn": ("learn", "An attack, and why noise stops it"),
    "guide": ("guide", "A census table"),
}


def open_page(visit: Visit, name: str) -> None:
    """Open a page of `PAGES`, with a rehearsal on the release page, and wait for its text."""
    path, words = PAGES[name]
    visit.open(path)
    if name == "release":
        visit.press("Rehearse", exact=True)
    visit.expect_text(words)
    visit.settle()


def check_page(visit: Visit, name: str, width: int) -> None:
    """Check accessibility in both themes, and overflow, at a width."""
    visit.page.set_viewport_size({"width": width, "height": HEIGHT})
    visit.settle()
    for _ in range(2):
        visit.check_accessibility(f"{name}_{width}")
    assert visit.find_overflows() == [], (name, width)


@pytest.mark.full
@pytest.mark.parametrize(("name", "width"), list(itertools.product(PAGES, WIDTHS)))
def test_pages_are_accessible_at_each_width(visit: Visit, name: str, width: int) -> None:
    open_page(visit, name)
    check_page(visit, name, width)
