"""Tour of the app as an animated picture for the README."""

from __future__ import annotations

from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from tests.browser.conftest import Visit

WIDTH, HEIGHT, CAPTION_HEIGHT = 1080, 675, 45  # pixels of a frame and of its caption
SECONDS, MAX_BYTES = 120, 2_000_000  # duration and file size of the tour
INK, PAPER = "#ffffff", "#004b75"
# position below the fixed header of the app
SCROLL = """element => {
  element.scrollIntoView();
  document.querySelector('[data-testid=stMain]').scrollBy(0, -80);
}"""


@dataclass(kw_only=True)
class Tour:
    """Frames of the animated picture, each with a caption."""

    visit: Visit
    frames: list[Image.Image] = field(default_factory=list)

    def add_frame(self, words: str, top: str = "") -> None:
        """Add the window, scrolled to a text, as a frame."""
        self.visit.settle()
        if top:
            self.visit.page.get_by_test_id("stMain").get_by_text(top).first.evaluate(SCROLL)
            self.visit.page.mouse.move(0, 0)
            self.visit.settle()
        seen = (
            Image.open(BytesIO(self.visit.page.screenshot()))
            .convert("RGB")
            .resize((WIDTH, HEIGHT), Image.LANCZOS)
        )
        image = Image.new("RGB", (WIDTH, HEIGHT + CAPTION_HEIGHT), PAPER)
        image.paste(seen, (0, 0))
        ImageDraw.Draw(image).text((16, HEIGHT + 10), words, INK, ImageFont.load_default(size=21))
        self.frames.append(image)

    def go(self, page: str) -> None:
        """Open another page through the sidebar, in the same session."""
        with self.visit.run():
            self.visit.page.get_by_test_id("stSidebarNav").get_by_role("link", name=page).click()

    def walk(self) -> None:
        """Visit the pages from Start to Guide."""
        self.visit.open("")
        self.add_frame("Start: open or save a project; try a demo, or take a lesson.")
        self.visit.press("Try a demo")
        self.visit.expect_text("Typical error")
        self.add_frame("Preview: how accurate every answer will be, before a record is read.")
        self.visit.choose("Map")
        self.visit.expect_text("per pair")
        self.add_frame("All pairs as a map, least accurate first.")
        self.go("Schema")
        self.add_frame("Schema: each column with its possible values, from public sources.")
        self.go("Workload")
        self.add_frame("Workload: tables, ranges, conditions or SQL become the counts to publish.")
        self.add_frame(
            "The tables of the workload, each with its weight and error.", "Tables of the workload"
        )
        self.go("Compare")
        self.add_frame("Compare: every mechanism on your own workload.")
        self.visit.expect_text("Done: the results are below")
        self.add_frame(
            "The gap of each mechanism to a bound that none can pass.", "Gap to the bound"
        )
        self.go("Coarse or fine")
        self.add_frame("Coarse or fine: measure what two analyses share, then decide.")
        self.go("Release")
        self.add_frame("Release: rehearse on simulated records first.")
        self.visit.press("Rehearse", exact=True)
        self.visit.expect_text("REHEARSAL on simulated")
        self.add_frame("Truth and noisy answers side by side: only in a rehearsal.")
        self.visit.press("Next: File")
        self.add_frame("Then one question per step: the file, the dataset that pays, the spend.")
        self.go("Learn")
        self.add_frame("Learn: ten lessons. Sixteen exact counts give sixteen replies away.")
        self.visit.press("Next step")
        self.visit.press("Next step")
        self.add_frame("The same counts with noise: the same attack fails.")
        self.visit.pick("Lesson", "Pieces")
        self.visit.expect_text("Decomposition of a query")
        self.add_frame("How a query is decomposed into pieces.")
        self.visit.press("Next step")
        self.add_frame("First the piece for the total, then one for each set of attributes.")
        self.go("Guide")
        self.add_frame("Guide: what to do, by task, in the app and as Python.")

    def save(self, file: Path) -> int:
        """Write the frames as one picture, and return its size in bytes.

        The quality is the highest one at which the picture has less than MAX_BYTES, or else 35.
        """
        for quality in (80, 65, 50, 35):
            target = BytesIO()
            each = 1000 * SECONDS // len(self.frames)
            first, *rest = self.frames
            first.save(
                target,
                "WEBP",
                save_all=True,
                append_images=rest,
                duration=each,
                loop=0,
                quality=quality,
                method=4,
            )
            if target.tell() < MAX_BYTES:
                break
        file.write_bytes(target.getvalue())
        return target.tell()
