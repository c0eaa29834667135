"""Learn page: lessons with interactive pictures and questions."""

import streamlit as st

from pages.parts import glossary
from pages.parts.lessons import LESSONS, NUMBERED, PATHS, quiz, url_state, view
from pages.parts.lessons.lesson import COURSE
from pages.parts.shell import history, page_layout, python_script

page_layout.require()

TUTORIAL = (
    "Each lesson has a picture in steps and three questions. The address of this page contains the"
    " lesson and your settings, so you can share it. Your answers are kept in this browser. Nothing"
    " is spent."
)
BY_NAME = {lesson.name: lesson for lesson in LESSONS}
LONGEST = max(PATHS)


def lesson_label(name: str) -> str:
    """Return number, short title and duration of a lesson."""
    lesson = BY_NAME[name]
    return f"{LESSONS.index(lesson) + 1}. {lesson.tab} · {lesson.minutes} min"


changes = url_state.follow(list(BY_NAME), numbered=NUMBERED, paths=PATHS)
quiz.restore(LESSONS)
request_state = history.current()
is_course = st.session_state.get(COURSE, False)
if not is_course:
    page_layout.header(
        page_layout.page("Learn"), "Short lessons on the theory behind this app.", TUTORIAL
    )
if changes:
    st.info(" ".join(changes), icon="🔗")
# The style sheet in `browser_history` enlarges the text of a page that has a container of this key.
place = st.container(key="for_a_class" if is_course else None)
chosen, path, course = place.columns([3, 2, 2], vertical_alignment="bottom")
minutes = path.selectbox(
    "Time you have",
    list(PATHS),
    format_func="{} minutes".format,
    key=url_state.MINUTES_KEY,
    persist_state="session",
    label_visibility="collapsed" if is_course else "visible",
    help=None if is_course else "With 8 to 15 minutes for discussion.",
)
names = PATHS[minutes]
if st.session_state.get(url_state.TAB) not in names:
    st.session_state[url_state.TAB] = names[0]
name = chosen.selectbox(
    "Lesson",
    names,
    format_func=lesson_label,
    key=url_state.TAB,
    persist_state="session",
    label_visibility="collapsed" if is_course else "visible",
)
switches = course.container(horizontal=True)
switches.toggle(
    "Course mode",
    key=COURSE,
    persist_state="session",
    help="For a class: large type without the sidebar. Press F11 for the full screen.",
)
position, path_lessons = names.index(name), [BY_NAME[one] for one in names]
lesson = path_lessons[position]
is_instructor = not is_course and switches.toggle(
    "Instructor view",
    key=quiz.INSTRUCTOR,
    persist_state="session",
    help="Shows learning goals, expected numbers, answers, discussion questions and handouts.",
)
notes_place = st.container()
after = path_lessons[position + 1] if position + 1 < len(names) else None
script = view.draw(lesson, after, path_lessons, default_minutes=LONGEST)
if is_instructor:
    with notes_place:
        view.instructor_notes(lesson, path_lessons)
with st.expander("Glossary"):
    terms = sorted(glossary.TERMS.items(), key=lambda item: item[0].casefold())
    st.markdown("\n".join(f"- **{term}**: {text}" for term, text in terms))
if not is_course:
    left, right = st.columns([4, 1], vertical_alignment="center")
    with left:
        quiz.progress(path_lessons)
    quiz.delete_button(right)
    page_layout.footer(code=script or python_script.plan_code(request_state), target=None)
