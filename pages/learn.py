"""Learn page: lessons that can be checked, each with a picture to play with and a question."""

import streamlit as st

from pages.parts.lessons.known import LESSONS
from pages.parts.lessons.lesson import INSTRUCTOR, draw, overview, progress
from pages.parts.shell import code, frame, show

frame.require()

TUTORIAL = (
    "Each lesson has a few sentences, a **picture to play with**, and a **question** that you can check at once. All "
    "numbers are worked out by the engine while you look, none is typed in; *As Python* below shows how. Your answers "
    "stay in this session and are gone when it ends; nothing leaves this machine and no budget is spent."
)

studio = frame.header(frame.page("Learn"), "Short lessons about what the studio does, and why it may.", TUTORIAL)
left, right = st.columns([3, 1], vertical_alignment="center")
with left:
    progress(LESSONS)
instructing = right.toggle(
    "Instructor view",
    key=INSTRUCTOR,
    persist_state="session",
    help="Shows learning goals, all answers and points to discuss.",
)
if instructing:
    overview(LESSONS)
views = {
    lesson.tab: lambda lesson=lesson, after=after: draw(lesson, after)
    for lesson, after in zip(LESSONS, (*LESSONS[1:], None), strict=True)
}
script = show.tabs(views, key="lesson")
frame.footer(code=script or code.plan_code(studio), target=None)
