"""One lesson on the page Learn, and its handout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from urllib.parse import urlencode

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from engine._format import pluralize
from engine.errors import EngineError
from engine.lessons.figures import HandoutChapter, chapters_html
from pages.parts.jobs import plans
from pages.parts.lessons import quiz, url_state, user_workload
from pages.parts.lessons.lesson import COURSE, Lesson, LessonPicture, Question
from pages.parts.shell import buttons, history, page_layout, permalink
from pages.parts.shell.error_text import error_text, show_error

OPENED = "lesson_opened"  # page state of Preview: short title of the lesson whose plan was opened


def draw(
    lesson: Lesson, after: Lesson | None, path: Sequence[Lesson], *, default_minutes: int
) -> str:
    """Draw a lesson; return the Python code of its picture, empty if the picture failed.

    Parameters
    ----------
    after : the next lesson of the path; None for the last one.
    path : all lessons of the path.
    """
    is_course = st.session_state.get(COURSE, False)
    if is_course:
        # The text is beside the picture, so that a class sees both without scrolling.
        text_column, picture_column = st.columns([3, 7], gap="medium")
        with text_column:
            st.header(lesson.title)
            step = steps(lesson, is_narrow=True)
            st.markdown(lesson.words)
        with picture_column:
            lesson_picture = _picture(lesson, step)
    else:
        st.header(lesson.title)
        st.markdown(lesson.words)
        lesson_picture = _picture(lesson, steps(lesson))
    with st.expander("Formulas"):
        for formula in lesson.formulas:
            st.latex(formula.latex)
            st.caption(formula.words)
    quiz.questions(lesson)
    link = _link(lesson, default_minutes)
    _actions(lesson, lesson_picture, after, link="" if is_course else link)
    if after is None:
        st.markdown(f"🏁 **Last lesson of this path.** {quiz.score(path)[1]}")
    # The plan of the user is in the address only while the lesson is about its tables.
    is_plan_used = user_workload.is_used(lesson.name)
    if is_plan_used != st.session_state.get(page_layout.PLAN_IN_LESSON, False):
        st.session_state[page_layout.PLAN_IN_LESSON] = is_plan_used
        permalink.keep(hidden=not is_plan_used)
    url_state.keep(lesson.name, default_minutes=default_minutes)
    return lesson_picture.text if lesson_picture is not None else ""


def _picture(lesson: Lesson, step: int) -> LessonPicture | None:
    """Draw the picture of a lesson at a step; if this fails, draw the error and return None."""
    try:
        return lesson.picture(step)
    except (EngineError, MemoryError) as error:
        show_error(error_text(error))
        return None


def steps(lesson: Lesson, *, is_narrow: bool = False) -> int:
    """Draw the slider and buttons that choose the step of the picture; return the step.

    The buttons are beside the slider, or below it if the column is narrow.
    """
    left = st.container()
    if is_narrow:
        back, right = st.columns(2)
    else:
        left, back, right = st.columns([3, 1, 1], vertical_alignment="bottom")
    numbers = tuple(range(len(lesson.steps)))
    step: int = url_state.dial(
        left.select_slider, "Step", numbers, of=lesson.name, name="step", default=0
    )
    first, last = step == 0, step == numbers[-1]
    buttons.button(
        "Previous step",
        url_state.set_dial,
        lesson.name,
        "step",
        step - 1,
        key=f"back_{lesson.name}",
        place=back,
        disabled=first,
        help="First step" if first else None,
        width="stretch",
    )
    buttons.button(
        "Next step",
        url_state.set_dial,
        lesson.name,
        "step",
        step + 1,
        key=f"step_{lesson.name}",
        place=right,
        disabled=last,
        help="Last step" if last else None,
        width="stretch",
    )
    st.markdown(f"**Step {step}.** {lesson.steps[step]}")
    return step


def _actions(
    lesson: Lesson, lesson_picture: LessonPicture | None, after: Lesson | None, *, link: str
) -> None:
    """Draw the buttons that open the plan in Preview, save the handout and open the next lesson.

    ``link`` is the address for students. If it is empty (course mode), only the button for the next
    lesson is drawn.
    """
    row = st.container(horizontal=True)
    if link:
        _plan_and_handout(row, lesson, lesson_picture, link)
    if after is not None:
        buttons.button(
            f"Next lesson: {after.tab} →",
            _open_lesson,
            after.name,
            key=f"after_{lesson.name}",
            place=row,
        )


def _plan_and_handout(
    row: DeltaGenerator, lesson: Lesson, lesson_picture: LessonPicture | None, link: str
) -> None:
    """Draw the buttons that open the plan in Preview, save the handout and show the link."""
    reason = None if lesson_picture is not None else "To continue, fix the error above."
    opened = row.button(
        "Open plan in Preview",
        key=f"open_{lesson.name}",
        disabled=lesson_picture is None,
        help=reason or "Replaces your current plan; Undo restores it.",
    )
    if opened and lesson_picture is not None:
        _open(lesson_picture)
        history.page_state()[OPENED] = lesson.tab
        history.carry([OPENED])
        st.switch_page(page_layout.page("Preview").file)
    readers = ["Student"]
    if st.session_state.get(quiz.INSTRUCTOR, False):
        readers.append("Instructor")
    for reader in readers:
        is_instructor = reader == "Instructor"
        row.download_button(
            f"{reader} handout",
            data=partial(handout, [lesson], url_state.all_choices(), answered=is_instructor),
            file_name=f"lesson_{lesson.name}_{reader.lower()}.html",
            mime="text/html",
            on_click="ignore",
            key=f"handout_{reader.lower()}_{lesson.name}",
            help="Lesson with the pictures of all steps"
            + (", with the answers." if is_instructor else "."),
        )
    with row.popover("Link for students"):
        st.code(link, language=None, wrap_lines=True)
        st.caption(
            "Opens this lesson at this step with your settings and noise,"
            f" {'with' if user_workload.is_used(lesson.name) else 'without'} your plan."
            " Students need your server or this app on their computers. For your server, give them "
            "the address with the key that was printed when the app was started; they open it "
            "first. On their computers, they replace the part before “learn”. An address with "
            "127.0.0.1 works on your computer only; see Behind a proxy in the Guide."
        )
    if reason:
        st.caption(reason)


def instructor_notes(lesson: Lesson, path: Sequence[Lesson]) -> None:
    """Draw the notes on a lesson, and on all lessons of its path, with the handouts of the path."""
    with st.container(border=True):
        with st.expander("For instructors: this lesson", key="notes", on_change="rerun") as opened:
            if opened.open:
                st.markdown(quiz.sheet(lesson))
        quiz.overview(path)
        row = st.container(horizontal=True)
        for reader, is_instructor in (("Student", False), ("Instructor", True)):
            row.download_button(
                f"{reader} handout of the path ({pluralize(len(path), 'lesson')})",
                data=partial(handout, path, url_state.all_choices(), answered=is_instructor),
                file_name=f"lessons_{reader.lower()}.html",
                mime="text/html",
                on_click="ignore",
                key=f"path_handout_{reader.lower()}",
                help="Pictures of all steps" + (", with the answers." if is_instructor else "."),
            )


def _link(lesson: Lesson, default_minutes: int) -> str:
    """Return the address of the lesson with its settings.

    It has the plan of the session only if the lesson is about the tables of that plan.
    """
    address = (st.context.url or "").partition("?")[0]
    parameters = url_state.shared_parameters(lesson.name, default_minutes=default_minutes)
    plan_text = permalink.address_text()
    if user_workload.is_used(lesson.name) and plan_text:
        parameters[permalink.NAME] = plan_text
    return f"{address}?{urlencode(parameters)}"


def handout(
    lessons: Sequence[Lesson], choices: Mapping[str, Mapping[str, Any]], *, answered: bool
) -> bytes:
    """Return lessons as an HTML file for printing.

    Parameters
    ----------
    choices : choices of the user by lesson and widget; the defaults are used for all others.
    answered : whether the file has the answers and notes for instructors.
    """
    chapters = [
        _chapter(lesson, choices.get(lesson.name, {}), answered=answered) for lesson in lessons
    ]
    title = lessons[0].title if len(lessons) == 1 else "Lessons"
    return chapters_html(title, chapters).encode()


def _chapter(lesson: Lesson, choices: Mapping[str, Any], *, answered: bool) -> HandoutChapter:
    """Return a lesson of a handout; `handout` describes the parameters."""
    step_list = "\n".join(f"- Step {number}: {words}" for number, words in enumerate(lesson.steps))
    formulas = "\n".join(f"- `{formula.plain}` {formula.words}" for formula in lesson.formulas)
    questions = [
        (f"Question {number}", _question_text(question))
        for number, question in enumerate(lesson.questions, 1)
    ]
    discussion = ("Discussion", "\n".join(f"- {item}" for item in lesson.discussion))
    # The notes for instructors contain the discussion. Only a handout without these notes therefore
    # has a section for the discussion.
    last = ("For instructors", quiz.sheet(lesson)) if answered else discussion
    try:
        pictures = lesson.step_pictures(choices)
    except EngineError:  # such as a query without cells
        pictures = lesson.step_pictures({})
    return HandoutChapter(
        title=lesson.title,
        words=[lesson.words],
        pictures=[
            replace(picture, title=f"Step {step}: {picture.title}") for step, picture in pictures
        ],
        sections=[("Steps", step_list), ("Formulas", formulas), *questions, last],
    )


def _question_text(question: Question) -> str:
    return "\n".join([f"**{question.text}**", *(f"- {choice.text}" for choice in question.choices)])


def _open(lesson_picture: LessonPicture) -> None:
    """Replace the user's request by the one of the picture, and start planning it."""
    history.note_dropped_groups(())
    history.commit(lesson_picture.request_state, redraw=True)
    plans.begin(lesson_picture.request_state)


def _open_lesson(name: str) -> None:
    st.session_state[url_state.TAB] = name
