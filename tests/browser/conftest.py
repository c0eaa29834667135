"""Fixtures: a server on a free port, and pages of Debian's Chromium."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import urlparse

import pytest
from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import (
    BrowserContext,
    ConsoleMessage,
    Locator,
    Page,
    Request,
    WebSocket,
    expect,
    sync_playwright,
)
from playwright.sync_api import TimeoutError as PageTimeout
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg

from tests import waiting
from tests.server.serving import ROOT, RunningServer, run_server

CHROMIUM = "/usr/bin/chromium"
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--process-per-site",  # pages share compiled scripts
    "--disable-features=ScriptStreaming",  # streaming would parse scripts once more per page
]
WIDTH, HEIGHT = 1360, 2600  # tall enough for pictures without scrolling
NARROW = 420  # pixels, the width of a phone
# Without a graphics card, animations take as long as the responses of the app, so they are reduced.
MOTION: Literal["reduce"] = "reduce"
PICTURES = "TEST_PICTURES"  # environment variable: folder for pictures of the pages
PAGES = ("schema", "workload", "preview", "compare", "coarse", "release", "learn", "guide")
# Texts in messages about the missing graphics card, and in requests that Streamlit sends to a path
# below that of a page instead of the path of the server.
IGNORED_ERRORS = ("WebGL", "GPU stall", *(f"/{page}/_stcore/" for page in PAGES))
CEILING = 1000 * waiting.CEILING  # milliseconds
POLLING = 30  # milliseconds
APPEARANCE = 5_000  # milliseconds in which the editor of a cell of a grid appears
FIRST_ROW, ROW_HEIGHT = 54, 35  # pixels from the top of a grid to its first row, and of a row
expect.set_options(timeout=CEILING)
# Counts changes of the page, and requested and finished script runs from WebSocket messages (by the
# field numbers of BackMsg and ForwardMsg). `waiting` is true if the page runs again on its own when
# a job ends: its last whole run, which begins with the message `navigation`, sent `auto_rerun`.
COUNT_RUNS = """(() => {
  if (window.top !== window || window.watched) return;
  const seen = window.watched = {
    requested: 0, ended: 0, open: false, waiting: false, changes: 0, calm: 0, last: ""};
  const has = (message, wanted) => {
    const bytes = new Uint8Array(message);
    let at = 0;
    const number = () => {
      let value = 0, scale = 1, byte;
      do { byte = bytes[at++]; value += (byte & 127) * scale; scale *= 128; } while (byte & 128);
      return value;
    };
    while (at < bytes.length) {
      const key = number(), kind = key & 7;
      if (key >> 3 === wanted) return true;
      if (kind === 0) number();
      else if (kind === 2) { const size = number(); at += size; }
      else return false;
    }
    return false;
  };
  const send = WebSocket.prototype.send, sockets = new WeakSet();
  WebSocket.prototype.send = function (message) {
    if (!sockets.has(this)) {
      sockets.add(this);
      this.addEventListener("message", async (event) => {
        const data = event.data instanceof Blob ? await event.data.arrayBuffer() : event.data;
        if (typeof data === "string") return;
        if (has(data, NAVIGATION)) seen.waiting = false;
        if (has(data, AUTO_RERUN)) seen.waiting = true;
        if (has(data, SCRIPT_FINISHED)) { seen.ended += 1; seen.open = false; }
      });
    }
    if (typeof message !== "string" && has(message, RERUN_SCRIPT)) {
      seen.requested += 1;
      seen.open = true;
    }
    return send.call(this, message);
  };
  new MutationObserver((records) => { seen.changes += records.length; }).observe(
    document, {subtree: true, childList: true, attributes: true, characterData: true});
})()"""
# Whether no script and no job runs, nothing is animated, and five successive polls saw no change.
IS_IDLE = """(runs) => {
  const seen = window.watched, app = document.querySelector("[data-testid=stApp]");
  if (!seen || !app || seen.ended === 0 || seen.requested < runs) return false;
  const moving = document.getAnimations().some(
    (a) => a.playState === "running" && a.effect.getTiming().iterations !== Infinity);
  const busy = seen.open || seen.waiting || moving || app.getAttribute("data-test-script-state") !== "notRunning";
  const now = `${seen.requested} ${seen.changes}`;
  seen.calm = busy || now !== seen.last ? 0 : seen.calm + 1;
  seen.last = now;
  if (seen.calm < 5) return false;
  seen.calm = 0;
  return true;
}"""
# serious and critical findings of axe; rules with a milder fixed impact are disabled
RUN_AXE = """async () => {
  const mild = axe._audit.rules.filter((rule) => ["minor", "moderate"].includes(rule.impact));
  const rules = Object.fromEntries(mild.map((rule) => [rule.id, {enabled: false}]));
  const result = await axe.run({resultTypes: ["violations"], selectors: false, rules});
  return result.violations.filter((one) => ["serious", "critical"].includes(one.impact)).map(
    (one) => [one.id, one.nodes.map((node) => node.html.slice(0, 200))]);
}"""
# elements that overflow the page to the side, a figure, or a box that hides overflow
FIND_OVERFLOWS = """() => {
  const main = document.querySelector("[data-testid=stMain]"), overflows = [];
  if (main.scrollWidth > main.clientWidth + 1) overflows.push(["the page", main.scrollWidth, main.clientWidth]);
  for (const text of document.querySelectorAll(".js-plotly-plot .main-svg text")) {
    if (text.textContent === "REHEARSAL") continue;  // intended overlap
    const all = text.closest(".js-plotly-plot").getBoundingClientRect(), box = text.getBoundingClientRect();
    const out = Math.max(all.left - box.left, box.right - all.right, all.top - box.top, box.bottom - all.bottom);
    if (box.width && text.textContent.trim() && out > 2) overflows.push([text.textContent, Math.round(out)]);
  }
  const words = "button p, [data-testid=stMetricValue] > div, [data-testid=stMetricLabel] p, h1, h2, h3, label p";
  for (const box of main.querySelectorAll(words)) {
    const hides = box.checkVisibility() && getComputedStyle(box).overflowX !== "visible";
    if (hides && box.clientWidth && box.scrollWidth > box.clientWidth + 1) overflows.push([box.textContent]);
  }
  return overflows;
}"""
THEME_APPLIED = """(scheme) => {
  const app = document.querySelector("[data-testid=stApp]");
  const [red, green, blue] = getComputedStyle(app).backgroundColor.match(/[0-9.]+/g).map(Number);
  return (red + green + blue < 384) === (scheme === "dark");
}"""


@dataclass(kw_only=True)
class Visit:
    """A page of the app, and the problems that occurred on it.

    The object is created before the page opens an address, so that no message is missed.
    Pictures are saved only if ``saves_pictures`` is true, except the picture of a page that still
    changes at the time limit.
    """

    page: Page
    url: str
    pictures_folder: Path
    saves_pictures: bool = False
    scheme: str = "light"
    checks: list[tuple[str, str]] = field(default_factory=list)
    console: list[str] = field(default_factory=list)
    outside_requests: list[str] = field(default_factory=list)
    violations: list[tuple[str, str, str, list[str]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        script = COUNT_RUNS.replace("RERUN_SCRIPT", str(BackMsg.RERUN_SCRIPT_FIELD_NUMBER))
        script = script.replace("SCRIPT_FINISHED", str(ForwardMsg.SCRIPT_FINISHED_FIELD_NUMBER))
        script = script.replace("NAVIGATION", str(ForwardMsg.NAVIGATION_FIELD_NUMBER))
        script = script.replace("AUTO_RERUN", str(ForwardMsg.AUTO_RERUN_FIELD_NUMBER))
        self.page.add_init_script(script)
        self.page.set_default_timeout(CEILING)

    def open(self, path: str = "schema") -> None:
        """Go to an address of the app and wait for the page."""
        self.page.goto(f"{self.url}/{path}")
        self.settle()

    def settle(self, runs: int = 0) -> None:
        """Wait until all script runs and all jobs shown have ended and the page no longer changes.

        At least ``runs`` runs must have been requested since the page was loaded.
        """
        try:
            self.page.wait_for_function(IS_IDLE, arg=runs, timeout=CEILING, polling=POLLING)
        except PageTimeout as error:
            self.page.screenshot(path=self.pictures_folder / "never_calm.png")
            state = self.page.evaluate(
                "[JSON.stringify(window.watched), document.activeElement.outerHTML]"
            )
            raise AssertionError(
                f"the page did not come to rest after {runs} runs: {state}"
            ) from error

    @contextmanager
    def run(self) -> Iterator[None]:
        """Wait for the end of a run that the body of the `with` statement causes."""
        before = self.page.evaluate("window.watched.requested")
        yield
        self.settle(before + 1)

    def fill_values(self, *texts: str) -> None:
        """Type one text per row into the possible values in the grid of the Schema page."""
        self.settle()  # a run that still redraws the grid would drop the selection
        grid = self.page.get_by_test_id("stDataFrame").first
        grid.click(position={"x": 400, "y": FIRST_ROW})  # the possible values of the first column
        for row, text in enumerate(texts):  # the key Enter selects the cell below
            editor = self._cell_editor(grid, row)
            editor.fill(text)
            with self.run():
                editor.press("Enter")

    def _cell_editor(self, grid: Locator, row: int) -> Locator:
        """Open the selected cell of a grid by the key Enter; return the field for its text.

        If the grid was drawn again, the cell may have lost the focus or the selection. A click then
        opens the cell, or selects it so that Enter opens it.
        """
        editor = self.page.locator("#portal textarea, #portal input").first
        self.page.keyboard.press("Enter")
        if not self._appears(editor):
            grid.click(position={"x": 400, "y": FIRST_ROW + ROW_HEIGHT * row})
            if not self._appears(editor):
                self.page.keyboard.press("Enter")
        return editor

    def _appears(self, element: Locator) -> bool:
        """Return whether an element becomes visible within `APPEARANCE` milliseconds."""
        try:
            element.wait_for(timeout=APPEARANCE)
        except PageTimeout:
            return False
        return True

    def press(self, name: str, *, exact: bool = False) -> None:
        """Press a button by its name."""
        with self.run():
            self.page.get_by_role("button", name=name, exact=exact).first.click()

    def choose(self, name: str) -> None:
        """Open a tab or choose a radio option."""
        tab = self.page.get_by_role("tab", name=name, exact=True)
        tab.or_(self.page.get_by_test_id("stRadio").get_by_text(name, exact=True)).first.click()
        self.settle()

    def unfold(self, name: str) -> None:
        """Open or close an expander; only some expanders cause a run."""
        self.page.get_by_test_id("stExpander").get_by_text(name, exact=True).first.click()
        self.settle()

    def fill(self, label: str, text: str) -> None:
        """Type into a field and leave it."""
        self._type(self.page.get_by_role("textbox", name=label).first, text)

    def number(self, label: str, text: str) -> None:
        """Type into a field for a number and leave it."""
        self._type(self.page.get_by_role("spinbutton", name=label).first, text)

    def drag(self, start: tuple[float, float], end: tuple[float, float], *, chart: int = 0) -> None:
        """Draw a box on a figure; points are shares of its width and height."""
        plot = self.page.get_by_test_id("stPlotlyChart").nth(chart).locator(".nsewdrag")
        plot.evaluate("picture => picture.scrollIntoView({block: 'nearest'})")
        place = plot.bounding_box()
        points = [
            (place["x"] + x * place["width"], place["y"] + y * place["height"])
            for x, y in (start, end)
        ]
        self.page.mouse.move(*points[0])
        self.page.mouse.down()
        self.page.mouse.move(*points[1], steps=8)
        with self.run():
            self.page.mouse.up()

    def go_in_history(self, title: str, move: Callable[[], object]) -> None:
        """Go back or forward by one page and expect its title."""
        with self.run():
            move()
        expect(self.page.get_by_role("heading", name=title, level=1)).to_be_visible()

    def _type(self, box: Locator, text: str) -> None:
        box.fill(text)
        box.press("Tab")
        self.settle()

    def pick(self, label: str, *options: str) -> None:
        """Choose options of a list by typing them."""
        self.settle()  # a run that redraws the page would close the list
        box: Locator = self.page.get_by_role("combobox", name=label).first
        for option in options:
            box.click()
            box.fill(option)
            self.page.get_by_role("option", name=option).first.click()
        if self.page.get_by_role("listbox").count():  # without a list, Escape clears the choice
            self.page.keyboard.press("Escape")
        self.settle()

    def upload(self, file: Path) -> None:
        """Upload a file in the first uploader of the page."""
        with self.run():
            self.page.get_by_test_id("stFileUploader").locator("input").first.set_input_files(file)

    def take_picture(self, name: str) -> None:
        """Wait for the page, and save a picture of it if pictures are requested."""
        self.settle()
        if not self.saves_pictures:
            return
        low = self.page.get_by_test_id("stMainBlockContainer").bounding_box()["height"]
        frame = {"x": 0, "y": 0, "width": WIDTH, "height": max(700, min(low - 100, HEIGHT))}
        self.page.screenshot(path=self.pictures_folder / f"{name}.png", clip=frame)

    def check_accessibility(self, name: str) -> None:
        """Add the serious and critical findings of axe on this page to `violations`.

        The second check of the same name uses the other theme; a third check is an error.
        """
        # The theme also changes before the checks 2, 4, 8, 16, ... In this way both themes are used
        # with few changes.
        changes_theme = len(self.checks) > 0 and (len(self.checks) + 1).bit_count() == 1
        if changes_theme or (name, self.scheme) in self.checks:
            self._switch_theme()
        assert (name, self.scheme) not in self.checks, "a name can be checked once per theme"
        self.checks.append((name, self.scheme))
        self.take_picture(f"{name}_{self.scheme}")
        if not self.page.evaluate("'axe' in window"):
            self.page.evaluate(AXE_SCRIPT)
        self.violations += [
            (name, self.scheme, *finding) for finding in self.page.evaluate(RUN_AXE)
        ]

    def find_overflows(self) -> list[list[object]]:
        """Return one list per text that overflows its container.

        It is ["the page", width of the content, width of the page] for the page, [text, pixels of
        the overflow] for a text in a figure, and [text] for a button, heading, label or number.
        """
        overflows: list[list[object]] = self.page.evaluate(FIND_OVERFLOWS)
        return overflows

    def _switch_theme(self) -> None:
        """Switch to the other theme and wait until the page has its colors."""
        scheme = "light" if self.scheme == "dark" else "dark"
        self.page.emulate_media(color_scheme=scheme)
        self.page.wait_for_function(THEME_APPLIED, arg=scheme, timeout=CEILING)
        self.scheme = scheme

    def expect_text(self, text: str) -> None:
        expect(self.page.get_by_text(text).first).to_be_visible()


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Run the app; fail at the end if it connected to another machine."""
    with run_server(tmp_path_factory.mktemp("server")) as running:
        yield running
    assert running.outside_hosts() == []


@pytest.fixture(scope="package")
def browser(server: RunningServer) -> Iterator[BrowserContext]:
    """Yield a browser that has the access cookie of the server and has compiled its scripts."""
    if not Path(CHROMIUM).exists():
        pytest.fail(f"{CHROMIUM} is not installed; run: apt-get install chromium")
    with sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        window = {"width": WIDTH, "height": HEIGHT}
        context = running.new_context(viewport=window, reduced_motion=MOTION, accept_downloads=True)
        assert context.request.get(server.address).ok
        # an open page keeps the renderer process that all pages share
        context.new_page().goto(f"{server.url}/_stcore/health")
        yield context
        running.close()


@pytest.fixture
def visit(server: RunningServer, browser: BrowserContext) -> Iterator[Visit]:
    """Open a new session; fail at the end on violations, errors or outside requests."""
    requested_folder = os.environ.get(PICTURES)
    pictures = Path(requested_folder) if requested_folder else ROOT / "screenshots"
    page = browser.new_page()
    new_visit = Visit(
        page=page,
        url=server.url,
        pictures_folder=pictures,
        saves_pictures=requested_folder is not None,
    )

    def add_error(message: ConsoleMessage) -> None:
        place = message.location.get("url", "")
        if message.type == "error" and not any(
            word in message.text + place for word in IGNORED_ERRORS
        ):
            new_visit.console.append(f"{message.text} ({place})")

    def add_request(request: Request | WebSocket) -> None:
        host = urlparse(request.url)
        if host.scheme in ("http", "https", "ws", "wss") and host.hostname != "127.0.0.1":
            new_visit.outside_requests.append(request.url)

    page.on("console", add_error)
    page.on("pageerror", lambda error: new_visit.console.append(str(error)))
    page.on("request", add_request)
    page.on("websocket", add_request)
    yield new_visit
    page.close()
    assert new_visit.violations == []
    assert new_visit.console == []
    assert new_visit.outside_requests == []
