"""Sizes of the pages of the app: words, widgets, expanders and height."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from playwright.sync_api import TimeoutError as PageTimeout
from playwright.sync_api import sync_playwright

import demo_data
from engine.workload import Schema, Workload
from pages.parts.shell import permalink
from pages.parts.shell.history import DEFAULT_BUDGET
from pages.parts.shell.request_state import RequestState
from tests.browser.conftest import CHROMIUM, FLAGS, Visit
from tests.server.serving import run_server

# Maps a name in the table to (page, demo).  The workload has the 1-way and 2-way tables of the
# demo.
PAGES = {
    "start": ("", ""),
    "start, project": ("", "cps"),
    "schema, empty": ("schema", ""),
    "schema": ("schema", "survey"),
    "workload, empty": ("workload", ""),
    "workload": ("workload", "survey"),
    "preview": ("preview", "survey"),
    "compare": ("compare", "census"),
    "coarse": ("coarse", "survey"),
    "release": ("release", "survey"),
    "learn": ("learn", ""),
    "guide": ("guide", ""),
}
# Only visible text is measured.  The hidden copy of a table that is drawn on a canvas is not
# counted.
MEASURE = """(low) => {
  const main = document.querySelector("[data-testid=stMain]");
  const side = document.querySelector("[data-testid=stSidebar]");
  let first = 0, all = 0;
  for (const root of [side, main]) {
    if (!root) continue;
    const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      const node = walker.currentNode, parent = node.parentElement;
      if (!parent.checkVisibility({opacityProperty: true, visibilityProperty: true})) continue;
      if (parent.closest("style, script, canvas, .sr-only")) continue;
      const words = node.textContent.split(/\\s+/).filter((word) => /\\p{L}/u.test(word));
      if (!words.length) continue;
      const range = document.createRange();
      range.selectNodeContents(node);
      const box = range.getBoundingClientRect();
      if (!box.width || !box.height || box.right <= 0) continue;
      all += words.length;
      if (box.top < low && box.bottom > 0) first += words.length;
    }
  }
  const kinds = "button, input:not([type=hidden]), textarea, [role=slider], [role=tab], a[href], " +
    "[data-testid=stDataFrame], summary";
  const seen = [...main.querySelectorAll(kinds)].filter((one) => one.checkVisibility() &&
    !one.closest("[data-testid=stElementToolbar], .modebar, [data-testid=stHeader]") &&
    one.getBoundingClientRect().width);
  const block = document.querySelector("[data-testid=stMainBlockContainer]");
  return {
    first, all, widgets: seen.length,
    folds: [...main.querySelectorAll("[data-testid=stExpander]")].filter(
      (one) => one.checkVisibility()).length,
    height: Math.round(block.getBoundingClientRect().height),
    wide: Math.max(0, main.scrollWidth - main.clientWidth),
    top: Math.round((block.querySelector(WIDGET) ?? block).getBoundingClientRect().top),
  };
}""".replace("WIDGET", '"[data-testid=stMarkdown], [data-testid=stButton]"')
# whether a table has to be scrolled to the side
IS_CUT = """grid => [...grid.querySelectorAll("*")].some(
  (one) => getComputedStyle(one).overflowX !== "visible" && one.scrollWidth > one.clientWidth + 1)"""
# no progress bar, spinner or message of a running job
IS_DONE = """() => ![...document.querySelectorAll(
  "[data-testid=stMain] [data-testid=stProgress], [data-testid=stMain] [data-testid=stSpinner]")].length"""
MAX_WAIT = 60_000  # milliseconds


@contextmanager
def open_visit(**options: Any) -> Iterator[Visit]:
    """Start the app and yield a page of it in a new browser with the light theme.

    ``options`` are further arguments of Playwright's `Browser.new_context`.
    """
    place = tempfile.TemporaryDirectory(prefix="visit-")
    with place as folder, run_server(Path(folder)) as server, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        context = browser.new_context(color_scheme="light", **options)
        context.request.get(server.address)
        yield Visit(page=context.new_page(), url=server.url, pictures_folder=Path(folder))
        browser.close()


def open_page(visit: Visit, name: str) -> None:
    """Open a page and wait for its computations, at most MAX_WAIT (not on the page Learn).

    On the Release page, a rehearsal is started first.
    """
    page, demo = PAGES[name]
    query = ""
    if demo:
        schema = Schema.from_json(demo_data.schemas()[demo].read_bytes())
        request = RequestState(workload=Workload.all_ways(schema, (1, 2)), budget=DEFAULT_BUDGET)
        query = f"?{permalink.NAME}={permalink.packed(request)}"
    visit.open(page + query)
    if name == "release":
        visit.press("Rehearse", exact=True)
    # the page Learn is never done: its progress bar counts answered questions
    if name != "learn":
        # a page that is not done within MAX_WAIT is measured as it is
        with suppress(PageTimeout):
            visit.page.wait_for_function(IS_DONE, timeout=MAX_WAIT)
    visit.settle()
