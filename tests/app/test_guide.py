"""Guides: code and its output, names of pages, and tabs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pages.parts.shell import page_layout
from tests.app.session import ROOT, Session

FILES = sorted((ROOT / "pages" / "guides").glob("[0-9]*.md"))
PARTS = re.compile(r"```python\n(.*?)```\n\n```text\n(.*?)```", flags=re.DOTALL)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_guide_code_prints_shown_output(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    text = file.read_text(encoding="utf-8")
    ((block, printed),) = PARTS.findall(text)
    assert text.count("```") == 4  # one code block and one output block
    monkeypatch.chdir(tmp_path)
    for _ in range(2 if "Ledger" in block else 1):  # a second run spends nothing
        exec(compile(block, file.name, "exec"), {})
        assert capsys.readouterr().out == printed


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_guide_text_contains_no_decimal_numbers(file: Path) -> None:
    # Lines with eight spaces of indentation are configuration files, which can have decimals.
    words = re.sub(r"(?m)^ {8}.*$", "", PARTS.sub("", file.read_text(encoding="utf-8")))
    # measured numbers belong in the output block
    assert re.findall(r"(?<![\d.])\d+\.\d+(?![\d.])", words) == []


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_guide_names_existing_pages_and_labels(file: Path) -> None:
    words = file.read_text(encoding="utf-8")
    named = set(re.findall(r"\*\*([A-Z].*?)\*\*", words)) - {"In the app", "The same as Python"}
    assert named
    assert named <= {page.title for page in page_layout.PAGES}
    # Text in italics is a label of a button, a tab or a query family of the app.
    sources = [
        f.read_text(encoding="utf-8")
        for folder in ("pages", "demo_data")
        for f in (ROOT / folder).rglob("*.py")
    ]
    screen = " ".join(sources).lower()
    for label in re.findall(r"(?<!\*)\*([A-Z][^*\n?]*)\*(?!\*)", words):
        assert label.lower() in screen, label


def test_guide_page_shows_every_guide() -> None:
    texts = dict(file.read_text(encoding="utf-8").split("\n", 1) for file in FILES)
    texts = {title.removeprefix("# "): text for title, text in texts.items()}
    titles, session = list(texts), Session().go("guide")
    for title in titles:
        session.set(guide=title)
        assert session.app.subheader[0].value == title
        shown = " ".join(e.value for kind in (session.app.markdown, session.app.code) for e in kind)
        pieces = re.split(r"```\w*", texts[title])
        assert len(pieces) >= 5  # text, code, output
        assert all(piece.strip() in shown for piece in pieces)
    assert len(titles) == 15  # the number of guides
