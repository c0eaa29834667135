"""Learn page: lessons that can be checked, each with a picture to play with and questions."""

import streamlit as st

from pages.parts.lessons import LESSONS, address, quiz, view
from pages.parts.shell import code, frame, show

frame.require()

TUTORIAL = (
    "Each lesson has a few sentences, a **picture to play with** that grows step by step, and **three questions** that "
    "you can check at once. All numbers are worked out by the engine while you look, none is typed in; *As Python* "
    "below shows how. The address of the page holds the lesson and your choices, so that you can hand it on. Your "
    "answers stay in this session and are gone when it ends; nothing leaves this machine and no budget is spent."
)

studio = frame.header(frame.page("Learn"), "Short lessons about what the studio does, and why it may.", TUTORIAL)
address.follow([lesson.tab for lesson in LESSONS], [lesson.name for lesson in LESSONS])
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
script = show.tabs(views, key=address.TAB)
frame.footer(code=script or code.plan_code(studio), target=None)
