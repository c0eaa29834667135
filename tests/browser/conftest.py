"""A real server on a free port and a page of Debian's Chromium that notes whatever leaves the machine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlparse

import pytest
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

from tests.serving import ROOT, Served, serving

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
]
WIDTH, HEIGHT = 1360, 2600  # tall, so that a picture of a page needs no scrolling
# what a browser without a graphics card says, and Streamlit's own search for its server below the address of a page
PAGES = ("workload", "preview", "compare", "coarse", "release", "learn")
HARMLESS = ("WebGL", "GPU stall", *(f"/{page}/_stcore/" for page in PAGES))


@dataclass(kw_only=True)
class Visit:
    """A page with what went wrong on it."""

    page: Page
    url: str
    shots: Path
    console: list[str] = field(default_factory=list)
    strangers: list[str] = field(default_factory=list)

    def open(self, path: str = "") -> None:
        """Go to an address of the app and wait for the page."""
        self.page.goto(f"{self.url}/{path}")
        self.settle()

    def settle(self) -> None:
        """Wait until the server has nothing more to say."""
        self.page.wait_for_function(
            "() => { const a = document.querySelector('[data-testid=stApp]');"
            " return a && a.getAttribute('data-test-script-state') === 'notRunning'; }",
            timeout=60_000,
        )

    def press(self, name: str, *, exact: bool = False) -> None:
        """Press a button by its name."""
        self.page.get_by_role("button", name=name, exact=exact).first.click()
        self.page.wait_for_timeout(120)
        self.settle()

    def choose(self, name: str) -> None:
        """Open a tab, or choose one of a few options."""
        tab = self.page.get_by_role("tab", name=name, exact=True)
        tab.or_(self.page.get_by_test_id("stRadio").get_by_text(name, exact=True)).first.click()
        self.page.wait_for_timeout(120)
        self.settle()

    def fill(self, label: str, text: str) -> None:
        """Type into a field and leave it."""
        box = self.page.get_by_role("textbox", name=label).first
        box.fill(text)
        box.press("Tab")
        self.page.wait_for_timeout(150)
        self.settle()

    def pick(self, label: str, *options: str) -> None:
        """Choose options of a list by typing them."""
        box: Locator = self.page.get_by_role("combobox", name=label).first
        for option in options:
            box.click()
            box.fill(option)
            self.page.get_by_role("option", name=option).first.click()
        self.page.keyboard.press("Escape")
        self.page.wait_for_timeout(120)
        self.settle()

    def shot(self, name: str) -> None:
        """Keep a screenshot of the page as far as it goes."""
        self.settle()
        self.page.wait_for_timeout(400)
        low = self.page.get_by_test_id("stMainBlockContainer").bounding_box()["height"]
        frame = {"x": 0, "y": 0, "width": WIDTH, "height": max(700, min(low - 100, HEIGHT))}
        self.page.screenshot(path=self.shots / f"{name}.png", clip=frame)

    def sees(self, text: str) -> None:
        """Expect a text on the page."""
        expect(self.page.get_by_text(text).first).to_be_visible(timeout=30_000)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The app, started as a person would start it; nothing outside this machine may have been asked for at the end."""
    with serving(tmp_path_factory.mktemp("server")) as found:
        yield found
    assert found.strangers() == []


@pytest.fixture(scope="module")
def browser(server: Served) -> Iterator[BrowserContext]:
    """One browser for the tests of a module, with the key of the server, so that it loads the app's scripts once."""
    if not Path(CHROMIUM).exists():
        pytest.fail(f"{CHROMIUM} is not installed; run: apt-get install chromium")
    with sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        context = running.new_context(viewport={"width": WIDTH, "height": HEIGHT}, accept_downloads=True)
        assert context.request.get(server.address).ok
        yield context
        running.close()


@pytest.fixture
def visit(server: Served, browser: BrowserContext) -> Iterator[Visit]:
    """A fresh session; at the end nothing may have been complained about or asked of another host."""
    shots = ROOT / "screenshots"
    shots.mkdir(exist_ok=True)
    page = browser.new_page()
    found = Visit(page=page, url=server.url, shots=shots)

    def heard(message: ConsoleMessage) -> None:
        place = message.location.get("url", "")
        if message.type == "error" and not any(word in message.text + place for word in HARMLESS):
            found.console.append(f"{message.text} ({place})")

    def asked(request: Request | WebSocket) -> None:
        host = urlparse(request.url)
        if host.scheme in ("http", "https", "ws", "wss") and host.hostname != "127.0.0.1":
            found.strangers.append(request.url)

    page.on("console", heard)
    page.on("pageerror", lambda error: found.console.append(str(error)))
    page.on("request", asked)
    page.on("websocket", asked)
    yield found
    page.close()
    assert found.console == []
    assert found.strangers == []
