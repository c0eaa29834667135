"""Words, widgets, expanders and height of every page of the app, per window size.

    python -m benchmarks.screens                    windows of 1440 x 900, 1024 x 900 and 420 x 900
    python -m benchmarks.screens --widths 1440      one width
    python -m benchmarks.screens --pages start      some pages, by their names in the table
    python -m benchmarks.screens --pictures FOLDER  also save a picture of the window and the page
    python -m benchmarks.screens --write            print and save the table in benchmarks/screens.txt

Words are texts with a letter in the visible text of page and sidebar: on the first screen, and on
the complete page with closed and with open expanders. Widgets and height are those of the page
without sidebar and with closed expanders; expanders are those of the closed page. Wide is the
number of pixels by which the page is wider than its window, 0 if it needs no scrolling to the side.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import TimeoutError as PageTimeout
from playwright.sync_api import sync_playwright

import demo_data
from benchmarks import options, table
from engine.workload import Schema, Workload
from pages.parts.shell import permalink
from pages.parts.shell.history import DEFAULT_BUDGET
from pages.parts.shell.request_state import RequestState
from tests.browser.conftest import CHROMIUM, FLAGS, Visit
from tests.server.serving import run_server

# name in the table -> page, and the demo whose tables of one and two attributes are its workload
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
WIDTHS, HEIGHT = (1440, 1024, 420), 900  # pixels
MAX_OPENED = 40  # clicks on closed expanders of a page
# words and heights are those of visible text; a table on a canvas has its text in a hidden table,
# which is not counted
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
# no progress bar, spinner or message of a running job
IS_DONE = """() => ![...document.querySelectorAll(
  "[data-testid=stMain] [data-testid=stProgress], [data-testid=stMain] [data-testid=stSpinner]")].length"""
MAX_WAIT = 60_000  # milliseconds
TO_TOP = "document.querySelector('[data-testid=stMain]').scrollTo(0, 0)"
CLOSED = "[data-testid=stMain] [data-testid=stExpander] details:not([open]) > summary"


@dataclass(frozen=True, kw_only=True)
class Screen:
    """Sizes of a page in a window; the fields are the columns of the table."""

    first: int
    all: int
    opened: int
    widgets: int
    folds: int
    height: int
    opened_height: int
    wide: int


def open_page(visit: Visit, name: str) -> None:
    """Open a page, rehearse on Release, and wait until no computation is running."""
    page, demo = PAGES[name]
    query = ""
    if demo:
        schema = Schema.from_json(demo_data.schemas()[demo].read_bytes())
        request = RequestState(workload=Workload.all_ways(schema, (1, 2)), budget=DEFAULT_BUDGET)
        query = f"?{permalink.NAME}={permalink.packed(request)}"
    visit.open(page + query)
    if name == "release":
        visit.press("Rehearse", exact=True)
    with suppress(PageTimeout):  # such a page is measured as it is
        visit.page.wait_for_function(IS_DONE, timeout=MAX_WAIT)
    visit.settle()


def measure(visit: Visit, width: int, pictures: Path | None, name: str) -> Screen:
    """Measure the page that is open, with closed and then with open expanders."""
    visit.page.set_viewport_size({"width": width, "height": HEIGHT})
    visit.settle()
    visit.page.evaluate(TO_TOP)
    closed = visit.page.evaluate(MEASURE, HEIGHT)
    if pictures is not None:
        visit.page.screenshot(path=pictures / f"{name}_{width}.png")
        visit.page.set_viewport_size({"width": width, "height": closed["height"] + 100})
        visit.settle()
        visit.page.screenshot(path=pictures / f"{name}_{width}_all.png")
    opened = _open_expanders(visit)
    keys = ("first", "all", "widgets", "folds", "height", "wide")
    return Screen(
        **{key: closed[key] for key in keys},
        opened=opened["all"],
        opened_height=opened["height"],
    )


def _open_expanders(visit: Visit) -> dict[str, int]:
    """Open all expanders of the page and return its sizes."""
    for _ in range(MAX_OPENED):
        closed = visit.page.locator(CLOSED)
        if not closed.count():
            break
        closed.first.click()
        visit.settle()
    sizes: dict[str, int] = visit.page.evaluate(MEASURE, HEIGHT)
    return sizes


@contextmanager
def open_visit() -> Iterator[Visit]:
    """Start the app and open a browser for it."""
    place = tempfile.TemporaryDirectory(prefix="screens-")
    with place as folder, run_server(Path(folder)) as server, sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        context = running.new_context(color_scheme="light", reduced_motion="reduce")
        context.request.get(server.address)
        yield Visit(page=context.new_page(), url=server.url, pictures_folder=Path(folder))
        running.close()


def main() -> None:
    """Print the table."""
    parser = options(__file__, __doc__)
    parser.add_argument("--widths", type=int, nargs="+", default=WIDTHS, help="of the window")
    parser.add_argument("--pages", nargs="+", choices=list(PAGES), default=list(PAGES))
    parser.add_argument("--pictures", type=Path, help="folder for pictures of the pages")
    args = parser.parse_args()
    columns = ("first", "all", "opened", "widgets", "folds", "height", "opened", "wide")
    with table(__file__, write=args.write) as show, open_visit() as visit:
        for width in args.widths:
            show(f"Window of {width} x {HEIGHT} pixels", "")
            show(f"{'page':<16}" + "".join(f"{column:>9}" for column in columns))
            for name in args.pages:
                open_page(visit, name)
                screen = measure(visit, width, args.pictures, name)
                show(
                    f"{name:<16}"
                    f"{screen.first:>9}{screen.all:>9}{screen.opened:>9}{screen.widgets:>9}"
                    f"{screen.folds:>9}{screen.height:>9}{screen.opened_height:>9}{screen.wide:>9}"
                )
            show("")


if __name__ == "__main__":
    main()
