"""Guide page: how to do a task, step by step in the studio and as Python; its texts are the files of `pages/guides`."""

import re
from pathlib import Path

import streamlit as st

from pages.parts.shell import figure_view, page_layout, python_script

page_layout.require()

TUTORIAL = (
    "One guide for each task. The numbers below the code are what it prints. Whoever would rather learn why it works "
    "finds ten lessons on the page *Learn*."
)
FENCED = re.compile(r"^```\w+\n(.*?)\n```$", re.DOTALL | re.MULTILINE)
TEXTS = {
    text.split("\n", 1)[0].removeprefix("# "): text.split("\n", 1)[1]
    for text in (
        file.read_text(encoding="utf-8") for file in sorted(Path(__file__).with_name("guides").glob("[0-9]*.md"))
    )
}


def draw(text: str) -> None:
    """A guide: what it says, and its code without the colours of Python, some of which are too pale to read."""
    for number, part in enumerate(FENCED.split(text)):
        if number % 2:
            st.code(part, language=None, wrap_lines=True)
        else:
            st.markdown(part)


studio = page_layout.header(page_layout.page("Guide"), "What to do, by task: in the studio and as Python.", TUTORIAL)
figure_view.tabs({title: lambda text=text: draw(text) for title, text in TEXTS.items()}, key="guide")
page_layout.footer(code=python_script.plan_code(studio), target=None)
