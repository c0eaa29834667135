"""Time from an edit to the new headline numbers of the Preview page, in a real browser on the real
app.

    python -m benchmarks.latency           print
    python -m benchmarks.latency --write   print and save the result in benchmarks/latency.txt

An edit is a click or a key in the page; it ends when the line under the headline shows the weighted
RMSE of the new plan. A weight or a family is changed on the Workload page, so these times include
the change to the Preview page. Every edit needs a new plan.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from tests.browser.conftest import CHROMIUM, FLAGS, Visit
from tests.server.serving import run_server

ROOT = Path(__file__).resolve().parents[1]
EDITS = 20
LIMIT = 60_000  # milliseconds to wait for one edit
CASES = {
    "CPS, all 1-way and 2-way": ("Current Population", ()),
    "Adult, all up to 3-way": ("Adult", ("3-way",)),
}
# the number at the end of "..., this plan has 45.4653: ..." under the headline
NUMBER = "(document.body.innerText.match(/this plan has ([0-9.e+-]+):/) || [])[1]"


def seconds(page: Page, edit: Callable[[], None], old: str) -> float:
    """Seconds from the start of an edit to a headline that shows another number."""
    start = time.perf_counter()
    edit()
    page.wait_for_function(
        f"old => {{ const now = {NUMBER}; return now && now !== old; }}", arg=old, timeout=LIMIT
    )
    return time.perf_counter() - start


def budgets(visit: Visit, edits: int) -> list[float]:
    """Another budget typed on the Preview page."""
    out = []
    for k in range(edits):
        box = visit.page.get_by_role("spinbutton", name="epsilon")
        box.fill(f"{1.5 + 0.25 * k}")
        out.append(
            seconds(visit.page, lambda box=box: box.press("Enter"), visit.page.evaluate(NUMBER))
        )
        visit.settle()
    return out


def weights(visit: Visit, edits: int) -> list[float]:
    """Another weight of one group, set on the Workload page."""
    out = []
    for k in range(edits):
        old = visit.page.evaluate(NUMBER)
        to_workload(visit)
        visit.pick("Tables to change", "0: ")
        visit.number("New weight", f"{1000 + 500 * k}")
        out.append(seconds(visit.page, lambda: edit_and_preview(visit, "Set this weight"), old))
        visit.settle()
    return out


def families(visit: Visit, edits: int) -> list[float]:
    """One more group, of ranges or circular ranges in turn, added on the Workload page."""
    out = []
    to_workload(visit)
    visit.choose("One table")
    names = ("range", "circular")  # large enough to show among millions of queries
    for k in range(edits):
        old = visit.page.evaluate(NUMBER) or ""
        if k:
            to_workload(visit)
            visit.choose("One table")
        visit.pick("Attributes", "age")
        visit.pick("Query type on each attribute", names[k % len(names)])
        visit.number("Weight", f"{1000 + 500 * k}")
        out.append(seconds(visit.page, lambda: edit_and_preview(visit, "Add this table"), old))
        visit.settle()
    return out


def to_workload(visit: Visit) -> None:
    """Go to the Workload page by its link, which keeps the session."""
    visit.page.get_by_role("link", name="Workload").click()
    visit.expect_text("Tables of the workload")
    visit.settle()


def edit_and_preview(visit: Visit, button: str) -> None:
    """Press the button of an edit and go to the Preview page at once."""
    visit.page.get_by_role("button", name=button, exact=True).first.click()
    visit.page.get_by_role("link", name="Preview").click()


def start(visit: Visit, demo: str, more: tuple[str, ...]) -> None:
    """A fresh session on the Preview page."""
    visit.open()
    visit.pick("Demo schema", demo)
    visit.press("Use this schema")
    visit.press("Next: Workload")
    if more:
        visit.pick("Sets of how many attributes", *more)
    visit.press("Add ")
    visit.press("Next: Preview")
    visit.page.wait_for_function(NUMBER, timeout=LIMIT)
    visit.settle()


def report(edits: int) -> str:
    """Run everything and return the table as text."""
    kinds = {"budget": budgets, "weight, then Preview": weights, "family, then Preview": families}
    load = (
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the start, Python"
        f" {platform.python_version()}"
    )
    lines = [f"Edit to preview in headless Chromium, {edits} edits each, seconds ({load})", ""]
    lines.append(
        f"{'workload':<26}{'queries':>12}  {'edit':<22}{'median':>8}{'p95':>8}{'largest':>9}"
    )
    with (
        tempfile.TemporaryDirectory() as place,
        run_server(Path(place)) as server,
        sync_playwright() as driver,
    ):
        running = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        browser = running.new_context(viewport={"width": 1360, "height": 2000})
        browser.request.get(server.address)
        for title, (demo, more) in CASES.items():
            for edit, run in kinds.items():
                page = browser.new_page()
                visit = Visit(page=page, url=server.url, pictures_folder=ROOT / "screenshots")
                start(visit, demo, more)
                queries = page.get_by_test_id("stMetricValue").last.inner_text()
                edit_seconds = run(visit, edits)
                high = statistics.quantiles(edit_seconds, n=20, method="inclusive")[-1]
                row = (
                    f"{title:<26}{queries:>12} "
                    f" {edit:<22}{statistics.median(edit_seconds):>8.2f}{high:>8.2f}"
                )
                lines.append(f"{row}{max(edit_seconds):>9.2f}")
                print(lines[-1], file=sys.stderr, flush=True)
                page.close()
        running.close()
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--write", action="store_true", help="save the result in benchmarks/latency.txt"
    )
    parser.add_argument(
        "--edits", type=int, default=EDITS, help=f"edits of every kind, {EDITS} when left out"
    )
    options = parser.parse_args()
    text = report(options.edits)
    print(text)
    if options.write:
        Path(__file__).with_suffix(".txt").write_text(text, encoding="utf-8")
