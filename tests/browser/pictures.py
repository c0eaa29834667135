"""Pictures and tour of the README; run by `python -m tests.browser.pictures`."""

from __future__ import annotations

import sys
from io import BytesIO

from PIL import Image

import demo_data
from engine.workload import Schema, Workload
from pages.parts.shell import permalink
from pages.parts.shell.history import DEFAULT_BUDGET, RequestState
from tests.browser.conftest import Visit
from tests.browser.screens import open_visit
from tests.browser.tour import SCROLL, Tour
from tests.server.serving import ROOT

FOLDER, TOUR_FILE = ROOT / ".readme", "walk.webp"
WINDOW, MAX_BYTES = {"width": 1440, "height": 900}, 150_000  # pixels, bytes


def build_studio(name: str) -> RequestState:
    """Return the request that the pictures show.

    Its workload has the tables of one and two attributes of the demo ``name``, and ranges of age.
    """
    schema = Schema.from_json(demo_data.schemas()[name].read_bytes())
    workload = Workload.all_ways(schema, (1, 2)).add(("age",), "range")
    return RequestState(workload=workload, budget=DEFAULT_BUDGET)


def take_picture(visit: Visit, name: str, top: str) -> str:
    """Save a picture of the window scrolled to the text ``top``; return its size as a text.

    The picture has the largest of 256, 128, 64 or 32 colours that keeps it below MAX_BYTES, or 32
    if none does.
    """
    visit.settle()
    visit.page.get_by_test_id("stMain").get_by_text(top).first.evaluate(SCROLL)
    # move the pointer away, so that no element has its hover effect
    visit.page.mouse.move(0, 0)
    visit.settle()
    seen = Image.open(BytesIO(visit.page.screenshot())).convert("RGB")
    for colors in (256, 128, 64, 32):
        file = BytesIO()
        seen.quantize(colors, dither=Image.Dither.NONE).save(file, "PNG", optimize=True)
        if file.tell() < MAX_BYTES:
            break
    (FOLDER / f"{name}.png").write_bytes(file.getvalue())
    return f"{name}: {file.tell():,} bytes, {colors} colours"


def main() -> int:
    """Save the pictures and the tour; print their sizes."""
    survey = permalink.packed(build_studio("survey"))
    census = permalink.packed(build_studio("census"))
    with open_visit(viewport=WINDOW) as visit:
        visit.open(f"workload?{permalink.NAME}={survey}")
        print(take_picture(visit, "workload", "Workload"))
        visit.open(f"preview?{permalink.NAME}={survey}")
        visit.expect_text("Typical error (counts)")
        # wait until the search for the lower bound has ended
        visit.page.get_by_text("searching…").wait_for(state="detached")
        print(take_picture(visit, "preview", "Preview"))
        visit.open(f"compare?{permalink.NAME}={census}")
        visit.expect_text("Done: the results are below")
        print(take_picture(visit, "compare", "Compare"))
        visit.open(f"release?{permalink.NAME}={survey}")
        visit.press("Rehearse", exact=True)
        visit.expect_text("REHEARSAL on simulated")
        visit.pick("Table", "1: age, prefix")
        print(take_picture(visit, "release", "1. Rehearse"))
    with open_visit(viewport=WINDOW) as visit:
        tour = Tour(visit=visit)
        tour.walk()
        print(f"walk: {tour.save(FOLDER / TOUR_FILE):,} bytes, {len(tour.frames)} frames")
    return 0


if __name__ == "__main__":
    sys.exit(main())
