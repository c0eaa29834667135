"""Guide page: tasks step by step in the app and as Python, from the files of `pages/guides`."""

import re
from pathlib import Path

import streamlit as st

from pages.parts.shell import page_layout, python_script

page_layout.require()

TUTORIAL = (
    "One guide per task. The numbers below the code are its output. For the theory, see Learn."
)
FENCED = re.compile(r"^```\w+\n(.*?)\n```$", re.DOTALL | re.MULTILINE)
TEXTS = {
    text.split("\n", 1)[0].removeprefix("# "): text.split("\n", 1)[1]
    for text in (
        file.read_text(encoding="utf-8")
        for file in sorted(Path(__file__).with_name("guides").glob("[0-9]*.md"))
    )
}


def draw(text: str) -> None:
    """Draw a guide. Code is drawn without syntax colours, because some are too pale to read."""
    for number, part in enumerate(FENCED.split(text)):
        if number % 2:
            st.code(part, language=None, wrap_lines=True)
        else:
            st.markdown(part)


request_state = page_layout.header(
    page_layout.page("Guide"), "How to do a task, in the app and as Python.", TUTORIAL
)
title = st.selectbox("Task", list(TEXTS), key="guide", persist_state="session")
st.subheader(title)
draw(TEXTS[title])
page_layout.footer(code=python_script.plan_code(request_state), target=None)
