"""The README's pictures: `python -m tests.browser.pictures` takes them and a walk anew, with demo data."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

import demo_data
from engine.privacy import Budget
from engine.workload import Schema, Workload
from pages.parts.shell import link
from pages.parts.shell.state import Studio
from tests.browser.conftest import CHROMIUM, FLAGS, Visit
from tests.browser.tour import Tour
from tests.server.serving import ROOT, serving

FOLDER, WALK = ROOT / ".readme", "walk.webp"
WIDTH, HEIGHT, LARGEST = 1440, 900, 150_000  # pixels, pixels, bytes
# below the header of the app, which stays where it is
SCROLL = "found => { found.scrollIntoView(); document.querySelector('[data-testid=stMain]').scrollBy(0, -80); }"


def studio(name: str) -> Studio:
    """What is chosen on the pictures: single attributes, pairs and ranges of age."""
    schema = Schema.from_json(demo_data.schemas()[name].read_bytes())
    workload = Workload.all_ways(schema, (1, 2)).add(("age",), "range")
    return Studio(workload=workload, budget=Budget(pcost=1.0))


@contextmanager
def visiting() -> Iterator[Visit]:
    """A page of the app as it is started by people, in a window of the size of a picture."""
    place = tempfile.TemporaryDirectory(prefix="pictures-")
    with place as folder, serving(Path(folder)) as server, sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        context = running.new_context(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
        context.request.get(server.address)
        yield Visit(page=context.new_page(), url=server.url, shots=Path(folder))
        running.close()


def taken(visit: Visit, name: str, top: str) -> str:
    """Keep what is in the window once a text stands at its top, in as many colours as fit; return a line on it."""
    visit.settle()
    visit.page.get_by_test_id("stMain").get_by_text(top).first.evaluate(SCROLL)
    visit.page.mouse.move(0, 0)  # where nothing shows that it is pointed at
    visit.settle()
    seen = Image.open(BytesIO(visit.page.screenshot())).convert("RGB")
    for colors in (256, 128, 64, 32):
        file = BytesIO()
        seen.quantize(colors, dither=Image.Dither.NONE).save(file, "PNG", optimize=True)
        if file.tell() < LARGEST:
            break
    (FOLDER / f"{name}.png").write_bytes(file.getvalue())
    return f"{name}: {file.tell():,} bytes, {colors} colours"


def main() -> int:
    """Take all of them."""
    survey, census = link.packed(studio("survey")), link.packed(studio("census"))
    with visiting() as visit:
        visit.open(f"workload?{link.NAME}={survey}")
        visit.page.get_by_text("Explain each step").click()
        print(taken(visit, "workload", "Workload"))
        visit.open(f"preview?{link.NAME}={survey}")
        visit.sees("≤ ")
        print(taken(visit, "preview", "Preview"))
        visit.open(f"compare?{link.NAME}={census}")
        visit.sees("Done: the results are below")
        print(taken(visit, "compare", "Compare"))
        visit.open(f"release?{link.NAME}={survey}")
        visit.press("Rehearse", exact=True)
        visit.sees("REHEARSAL on simulated")
        visit.pick("Group", "0: age, prefix")
        print(taken(visit, "release", "1. Rehearse"))
    with visiting() as visit:
        tour = Tour(visit=visit)
        tour.walk()
        print(f"walk: {tour.save(FOLDER / WALK):,} bytes, {len(tour.frames)} frames")
    return 0


if __name__ == "__main__":
    sys.exit(main())
