"""Guide page: how to do a task, step by step in the studio and as Python; its texts are the files of `pages/guides`."""

from pathlib import Path

import streamlit as st

from pages.parts.shell import code, frame, show

frame.require()

TUTORIAL = (
    "One guide for each task. The numbers below the code are what it prints. Whoever would rather learn why it works "
    "finds ten lessons on the page *Learn*."
)
TEXTS = {
    text.split("\n", 1)[0].removeprefix("# "): text.split("\n", 1)[1]
    for text in (file.read_text(encoding="utf-8") for file in sorted(Path(__file__).with_name("guides").glob("*.md")))
}

studio = frame.header(frame.page("Guide"), "What to do, by task: in the studio and as Python.", TUTORIAL)
# without the colours of Python, some of which are too pale to read
show.tabs(
    {title: lambda text=text: st.markdown(text.replace("```python", "```text")) for title, text in TEXTS.items()},
    key="guide",
)
frame.footer(code=code.plan_code(studio), target=None)
