"""Words, widgets, expanders and height of every page of the app, per window size.

    python -m benchmarks.screens                    windows of 1440 x 900, 1024 x 900 and 420 x 900
    python -m benchmarks.screens --widths 1440      one width
    python -m benchmarks.screens --pages start      some pages, by their names in the table
    python -m benchmarks.screens --pictures FOLDER  also save a picture of the window and the page
    python -m benchmarks.screens --write            print and save the table in benchmarks/screens.txt

Words are texts with a letter in the visible text of page and sidebar: on the first screen, and on
the complete page with closed and with open expanders. Widgets and height are those of the page
without sidebar and with closed expanders, open px is the height with open expanders. Wide is the
number of pixels by which the page is wider than its window, 0 if it needs no scrolling to the side.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchmarks import options, table
from tests.browser.conftest import Visit
from tests.browser.screens import MEASURE, PAGES, open_page, open_visit

WIDTHS, HEIGHT = (1440, 1024, 420), 900  # pixels
MAX_OPENED = 40  # clicks on closed expanders of a page
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
        **{key: closed[key] for key in keys}, opened=opened["all"], opened_height=opened["height"]
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


def main() -> None:
    """Print the table."""
    parser = options(__file__, __doc__)
    parser.add_argument("--widths", type=int, nargs="+", default=WIDTHS, help="of the window")
    parser.add_argument("--pages", nargs="+", choices=list(PAGES), default=list(PAGES))
    parser.add_argument("--pictures", type=Path, help="folder for pictures of the pages")
    args = parser.parse_args()
    columns = ("first", "all", "opened", "widgets", "folds", "height", "open px", "wide")
    with table(__file__, write=args.write) as show, open_visit(reduced_motion="reduce") as visit:
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
