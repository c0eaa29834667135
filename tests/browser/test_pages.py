"""Every page on wide and narrow screens, in both themes: axe, nothing beside the screen, no text of a picture cut."""

from __future__ import annotations

import itertools

import pytest

import demo_data
from engine.privacy import Budget
from engine.workload import Schema, Workload
from pages.parts.shell import link
from pages.parts.shell.state import Studio
from tests.browser.conftest import HEIGHT, NARROW, Visit

WIDTHS = NARROW, 1100, 1440  # pixels


def address(page: str, demo: str) -> str:
    """A page with all tables of one and two attributes of a demo."""
    schema = Schema.from_json(demo_data.schemas()[demo].read_bytes())
    studio = Studio(workload=Workload.all_ways(schema, (1, 2)), budget=Budget(pcost=1.0))
    return f"{page}?{link.NAME}={link.packed(studio)}"


# a page, with nothing chosen or with something, and the words that it is there with
PAGES = {
    "start": ("", "Try a demo"),
    "schema_empty": ("schema", "No schema yet"),
    "schema": (address("schema", "survey"), "At a glance"),
    "workload_empty": ("workload", "There is no schema yet"),
    "workload": (address("workload", "survey"), "Groups of the workload"),
    "preview_empty": ("preview", "There is nothing to plan yet"),
    "preview": (address("preview", "survey"), "Where the error of this group comes from"),
    "compare_empty": ("compare", "There is nothing to compare yet"),
    "compare": (address("compare", "census"), "Done: the results are below"),
    "coarse_empty": ("coarse", "There is no schema yet"),
    "coarse": (address("coarse", "survey"), "What every option costs"),
    "release_empty": ("release", "There is nothing to plan yet"),
    "release": (address("release", "survey"), "REHEARSAL on simulated records"),
    "learn": ("learn", "A query, smashed"),
    "guide": ("guide", "A census table"),
}


def shown(visit: Visit, name: str) -> None:
    """Open a page and wait for what it is there with."""
    path, words = PAGES[name]
    visit.open(path)
    if name == "release":
        visit.press("Rehearse", exact=True)
    visit.sees(words)
    visit.settle()


def looked_at(visit: Visit, name: str, width: int) -> None:
    """Look at a page in both themes on a screen of some width."""
    visit.page.set_viewport_size({"width": width, "height": HEIGHT})
    visit.settle()
    for _ in range(2):
        visit.look(f"{name}_{width}")
    assert visit.cut() == [], (name, width)


@pytest.mark.full
@pytest.mark.parametrize(("name", "width"), list(itertools.product(PAGES, WIDTHS)))
def test_pages_are_accessible_at_each_width(visit: Visit, name: str, width: int) -> None:
    shown(visit, name)
    looked_at(visit, name, width)
