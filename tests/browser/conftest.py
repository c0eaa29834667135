"""A real server on a free port and a page of Debian's Chromium that notes whatever leaves the machine."""

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
from playwright.sync_api import TimeoutError as NeverCalm
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg

from tests import waiting
from tests.server.serving import ROOT, Served, serving

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
    "--process-per-site",  # all pages run what one of them has compiled, which is half of what a page costs
    "--disable-features=ScriptStreaming",  # or it is parsed anew beside that for every page
]
WIDTH, HEIGHT = 1360, 2600  # tall, so that a picture of a page needs no scrolling
NARROW = 420  # pixels, as a telephone has
# Without a graphics card every frame of Streamlit's spinners and fades costs as much as the answer that is waited for.
MOTION: Literal["reduce"] = "reduce"
PICTURES = "TEST_PICTURES"  # a variable of the environment: the folder where pictures of the pages are kept
# what a browser without a graphics card says, and Streamlit's own search for its server below the address of a page
PAGES = ("schema", "workload", "preview", "compare", "coarse", "release", "learn", "guide")
HARMLESS = ("WebGL", "GPU stall", *(f"/{page}/_stcore/" for page in PAGES))
CEILING = 1000 * waiting.CEILING  # milliseconds
POLLING = 30  # milliseconds, in which nothing is drawn for the look alone
expect.set_options(timeout=CEILING)
# Runs of the script asked for and ended, read from the messages of the page to the server and back (the numbers of
# their fields are those of Streamlit's BackMsg.rerun_script and ForwardMsg.script_finished), and changes of the page.
WATCH = """(() => {
  if (window.top !== window || window.watched) return;
  const seen = window.watched = {asked: 0, ended: 0, open: false, changes: 0, calm: 0, last: ""};
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
  const send = WebSocket.prototype.send, heard = new WeakSet();
  WebSocket.prototype.send = function (message) {
    if (!heard.has(this)) {
      heard.add(this);
      this.addEventListener("message", async (event) => {
        const data = event.data instanceof Blob ? await event.data.arrayBuffer() : event.data;
        if (typeof data !== "string" && has(data, SCRIPT_FINISHED)) { seen.ended += 1; seen.open = false; }
      });
    }
    if (typeof message !== "string" && has(message, RERUN_SCRIPT)) {
      seen.asked += 1;
      seen.open = true;
    }
    return send.call(this, message);
  };
  new MutationObserver((found) => { seen.changes += found.length; }).observe(
    document, {subtree: true, childList: true, attributes: true, characterData: true});
})()"""
# Nothing asked and unanswered, nothing moving, and no change between some looks in a row.
CALM = """(runs) => {
  const seen = window.watched, app = document.querySelector("[data-testid=stApp]");
  if (!seen || !app || seen.ended === 0 || seen.asked < runs) return false;
  const moving = document.getAnimations().some(
    (a) => a.playState === "running" && a.effect.getTiming().iterations !== Infinity);
  const busy = seen.open || moving || app.getAttribute("data-test-script-state") !== "notRunning";
  const now = `${seen.asked} ${seen.changes}`;
  seen.calm = busy || now !== seen.last ? 0 : seen.calm + 1;
  seen.last = now;
  if (seen.calm < 5) return false;
  seen.calm = 0;
  return true;
}"""
# Serious and critical findings of axe; a rule that says how bad its findings are is left out where none can be.
AXE = """async () => {
  const mild = axe._audit.rules.filter((rule) => ["minor", "moderate"].includes(rule.impact));
  const rules = Object.fromEntries(mild.map((rule) => [rule.id, {enabled: false}]));
  const found = await axe.run({resultTypes: ["violations"], selectors: false, rules});
  return found.violations.filter((one) => ["serious", "critical"].includes(one.impact)).map(
    (one) => [one.id, one.nodes.map((node) => node.html.slice(0, 200))]);
}"""
# What sticks out: of the page to the side, of a picture, or of its own box where that hides the rest.
CUT = """() => {
  const main = document.querySelector("[data-testid=stMain]"), found = [];
  if (main.scrollWidth > main.clientWidth + 1) found.push(["the page", main.scrollWidth, main.clientWidth]);
  for (const text of document.querySelectorAll(".js-plotly-plot .main-svg text")) {
    if (text.textContent === "REHEARSAL") continue;  // lies on the picture on purpose
    const all = text.closest(".js-plotly-plot").getBoundingClientRect(), own = text.getBoundingClientRect();
    const out = Math.max(all.left - own.left, own.right - all.right, all.top - own.top, own.bottom - all.bottom);
    if (own.width && text.textContent.trim() && out > 2) found.push([text.textContent, Math.round(out)]);
  }
  const words = "button p, [data-testid=stMetricValue] > div, [data-testid=stMetricLabel] p, h1, h2, h3, label p";
  for (const box of main.querySelectorAll(words)) {
    const hides = box.checkVisibility() && getComputedStyle(box).overflowX !== "visible";
    if (hides && box.clientWidth && box.scrollWidth > box.clientWidth + 1) found.push([box.textContent]);
  }
  return found;
}"""
WORN = """(scheme) => {
  const app = document.querySelector("[data-testid=stApp]");
  const [red, green, blue] = getComputedStyle(app).backgroundColor.match(/[0-9.]+/g).map(Number);
  return (red + green + blue < 384) === (scheme === "dark");
}"""


@dataclass(kw_only=True)
class Visit:
    """A page with what went wrong on it; made before its page goes anywhere, so that it hears every message.

    Pictures are kept when `pictures` says so; that of a page that never comes to rest always is.
    """

    page: Page
    url: str
    shots: Path
    pictures: bool = False
    scheme: str = "light"
    looks: list[tuple[str, str]] = field(default_factory=list)
    console: list[str] = field(default_factory=list)
    strangers: list[str] = field(default_factory=list)
    barriers: list[tuple[str, str, str, list[str]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        script = WATCH.replace("RERUN_SCRIPT", str(BackMsg.RERUN_SCRIPT_FIELD_NUMBER))
        script = script.replace("SCRIPT_FINISHED", str(ForwardMsg.SCRIPT_FINISHED_FIELD_NUMBER))
        self.page.add_init_script(script)
        self.page.set_default_timeout(CEILING)

    def open(self, path: str = "schema") -> None:
        """Go to an address of the app and wait for the page."""
        self.page.goto(f"{self.url}/{path}")
        self.settle()

    def settle(self, runs: int = 0) -> None:
        """Wait until at least so many runs were asked for, the server has answered all and the page stands still."""
        try:
            self.page.wait_for_function(CALM, arg=runs, timeout=CEILING, polling=POLLING)
        except NeverCalm as error:
            self.page.screenshot(path=self.shots / "never_calm.png")
            state = self.page.evaluate("[JSON.stringify(window.watched), document.activeElement.outerHTML]")
            raise AssertionError(f"the page never came to rest after {runs} runs: {state}") from error

    @contextmanager
    def run(self) -> Iterator[None]:
        """Do what makes the page ask for a run, sooner or later, and wait for the end of the run."""
        before = self.page.evaluate("window.watched.asked")
        yield
        self.settle(before + 1)

    def press(self, name: str, *, exact: bool = False) -> None:
        """Press a button by its name."""
        with self.run():
            self.page.get_by_role("button", name=name, exact=exact).first.click()

    def choose(self, name: str) -> None:
        """Open a tab, or choose one of a few options."""
        tab = self.page.get_by_role("tab", name=name, exact=True)
        tab.or_(self.page.get_by_test_id("stRadio").get_by_text(name, exact=True)).first.click()
        self.settle()

    def unfold(self, name: str) -> None:
        """Open what is folded under a name, or fold it again."""
        with self.run():
            self.page.get_by_test_id("stExpander").get_by_text(name, exact=True).first.click()

    def fill(self, label: str, text: str) -> None:
        """Type into a field and leave it."""
        self._type(self.page.get_by_role("textbox", name=label).first, text)

    def number(self, label: str, text: str) -> None:
        """Type into a field for a number and leave it."""
        self._type(self.page.get_by_role("spinbutton", name=label).first, text)

    def drag(self, start: tuple[float, float], end: tuple[float, float], *, chart: int = 0) -> None:
        """Draw a box on a picture of the cells, from one point to another in shares of its width and height."""
        plot = self.page.get_by_test_id("stPlotlyChart").nth(chart).locator(".nsewdrag")
        plot.evaluate("picture => picture.scrollIntoView({block: 'nearest'})")
        place = plot.bounding_box()
        points = [(place["x"] + x * place["width"], place["y"] + y * place["height"]) for x, y in (start, end)]
        self.page.mouse.move(*points[0])
        self.page.mouse.down()
        self.page.mouse.move(*points[1], steps=8)
        with self.run():
            self.page.mouse.up()

    def moves(self, title: str, move: Callable[[], object]) -> None:
        """Go back or forward to a page: one step, whatever pages wrote into their addresses on the way."""
        with self.run():
            move()
        expect(self.page.get_by_role("heading", name=title, level=1)).to_be_visible()

    def _type(self, box: Locator, text: str) -> None:
        box.fill(text)
        box.press("Tab")
        self.settle()

    def pick(self, label: str, *options: str) -> None:
        """Choose options of a list by typing them."""
        box: Locator = self.page.get_by_role("combobox", name=label).first
        for option in options:
            box.click()
            box.fill(option)
            self.page.get_by_role("option", name=option).first.click()
        self.page.keyboard.press("Escape")
        self.settle()

    def upload(self, file: Path) -> None:
        """Give a file to the first place that takes one."""
        with self.run():
            self.page.get_by_test_id("stFileUploader").locator("input").first.set_input_files(file)

    def shot(self, name: str) -> None:
        """Wait for the page, and keep a picture of it as far as it goes where pictures are wanted."""
        self.settle()
        if not self.pictures:
            return
        low = self.page.get_by_test_id("stMainBlockContainer").bounding_box()["height"]
        frame = {"x": 0, "y": 0, "width": WIDTH, "height": max(700, min(low - 100, HEIGHT))}
        self.page.screenshot(path=self.shots / f"{name}.png", clip=frame)

    def look(self, name: str) -> None:
        """Note serious and critical findings of axe; a second look at the same is in the other theme.

        Another theme draws a page anew, and half of all looks are in each all the same when the theme changes before
        the second, the fourth, the eighth, and so on.
        """
        turn = len(self.looks) > 0 and (len(self.looks) + 1).bit_count() == 1
        if turn or (name, self.scheme) in self.looks:
            self._change()
        assert (name, self.scheme) not in self.looks, "there are two themes"
        self.looks.append((name, self.scheme))
        self.shot(f"{name}_{self.scheme}")
        if not self.page.evaluate("'axe' in window"):
            self.page.evaluate(AXE_SCRIPT)
        self.barriers += [(name, self.scheme, *finding) for finding in self.page.evaluate(AXE)]

    def cut(self) -> list[list[object]]:
        """Return what sticks out of the screen, of a picture or of its box."""
        overflows: list[list[object]] = self.page.evaluate(CUT)
        return overflows

    def _change(self) -> None:
        """Prefer the other theme until the page has it: on a busy machine the change comes after some calm frames."""
        scheme = "light" if self.scheme == "dark" else "dark"
        self.page.emulate_media(color_scheme=scheme)
        self.page.wait_for_function(WORN, arg=scheme, timeout=CEILING)
        self.scheme = scheme

    def sees(self, text: str) -> None:
        """Expect a text on the page."""
        expect(self.page.get_by_text(text).first).to_be_visible()


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The app, started as a person would start it; nothing outside this machine may have been asked for at the end."""
    with serving(tmp_path_factory.mktemp("server")) as running:
        yield running
    assert running.strangers() == []


@pytest.fixture(scope="package")
def browser(server: Served) -> Iterator[BrowserContext]:
    """One browser for all tests, with the key of the server, so that it loads and compiles the app's scripts once."""
    if not Path(CHROMIUM).exists():
        pytest.fail(f"{CHROMIUM} is not installed; run: apt-get install chromium")
    with sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        window = {"width": WIDTH, "height": HEIGHT}
        context = running.new_context(viewport=window, reduced_motion=MOTION, accept_downloads=True)
        assert context.request.get(server.address).ok
        context.new_page().goto(f"{server.url}/_stcore/health")  # stays open, and with it the process of all pages
        yield context
        running.close()


@pytest.fixture
def visit(server: Served, browser: BrowserContext) -> Iterator[Visit]:
    """A fresh session; at the end nothing may have been complained about or asked of another host."""
    wanted = os.environ.get(PICTURES)
    shots = Path(wanted) if wanted else ROOT / "screenshots"
    page = browser.new_page()
    new_visit = Visit(page=page, url=server.url, shots=shots, pictures=wanted is not None)

    def heard(message: ConsoleMessage) -> None:
        place = message.location.get("url", "")
        if message.type == "error" and not any(word in message.text + place for word in HARMLESS):
            new_visit.console.append(f"{message.text} ({place})")

    def asked(request: Request | WebSocket) -> None:
        host = urlparse(request.url)
        if host.scheme in ("http", "https", "ws", "wss") and host.hostname != "127.0.0.1":
            new_visit.strangers.append(request.url)

    page.on("console", heard)
    page.on("pageerror", lambda error: new_visit.console.append(str(error)))
    page.on("request", asked)
    page.on("websocket", asked)
    yield new_visit
    page.close()
    assert new_visit.barriers == []
    assert new_visit.console == []
    assert new_visit.strangers == []
