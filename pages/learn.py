"""Learn page: lessons with interactive pictures and questions."""

import streamlit as st

from pages.parts.lessons import LESSONS, quiz, url_state, view
from pages.parts.shell import figure_view, page_layout, python_script

page_layout.require()

TUTORIAL = (
    "Each lesson has an **interactive picture** in steps and **three questions**. To share a lesson"
    " with your settings, copy the address of this page. Your answers are deleted when the session"
    " ends. No budget is spent."
)

studio = page_layout.header(
    page_layout.page("Learn"), "Ten short lessons on the theory behind this app.", TUTORIAL
)
url_state.follow([lesson.tab for lesson in LESSONS], [lesson.name for lesson in LESSONS])
left, right = st.columns([2, 1], vertical_alignment="center")
with left:
    quiz.progress(LESSONS)
instructing = right.toggle(
    "Instructor view",
    key=quiz.INSTRUCTOR,
    persist_state="session",
    help="Shows learning goals, expected numbers, answers and discussion questions.",
)
if instructing:
    quiz.overview(LESSONS)
views = {
    lesson.tab: lambda lesson=lesson, number=number, after=after: view.draw(lesson, number, after)
    for number, (lesson, after) in enumerate(zip(LESSONS, (*LESSONS[1:], None), strict=True), 1)
}
script = figure_view.tabs(views, key=url_state.TAB)
page_layout.footer(code=script or python_script.plan_code(studio), target=None)
