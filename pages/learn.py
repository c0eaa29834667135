"""Learn page: lessons that can be checked, each with a picture to play with and questions."""

import streamlit as st

from pages.parts.lessons import LESSONS, quiz, url_state, view
from pages.parts.shell import figure_view, page_layout, python_script

page_layout.require()

TUTORIAL = (
    "Each lesson has a few sentences, a **picture to play with** that grows step by step, and"
    " **three questions** that you can check at once. All numbers are worked out by the engine"
    " while you look, none is typed in; *As Python* below shows how. The address of the page holds"
    " the lesson and your choices, so that you can hand it on. Your answers stay in this session"
    " and are gone when it ends; nothing leaves this machine and no budget is spent."
)

studio = page_layout.header(
    page_layout.page("Learn"), "Short lessons about what the studio does, and why it may.", TUTORIAL
)
url_state.follow([lesson.tab for lesson in LESSONS], [lesson.name for lesson in LESSONS])
left, right = st.columns([2, 1], vertical_alignment="center")
with left:
    quiz.progress(LESSONS)
instructing = right.toggle(
    "Instructor view",
    key=quiz.INSTRUCTOR,
    persist_state="session",
    help="Shows learning goals, expected numbers, all answers and points to discuss.",
)
if instructing:
    quiz.overview(LESSONS)
views = {
    lesson.tab: lambda lesson=lesson, number=number, after=after: view.draw(lesson, number, after)
    for number, (lesson, after) in enumerate(zip(LESSONS, (*LESSONS[1:], None), strict=True), 1)
}
script = figure_view.tabs(views, key=url_state.TAB)
page_layout.footer(code=script or python_script.plan_code(studio), target=None)
