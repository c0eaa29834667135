"""The questions of a lesson with feedback, how far one has come, and the sheet for instructors.

Answers stay in the state of the session; nothing is written anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import streamlit as st

from pages.parts.lessons.lesson import Choice, Lesson
from pages.parts.shell import buttons

ANSWERS, INSTRUCTOR = "learn_answers", "instructor"
UNCHOSEN = "learn_unchosen"  # the question that was checked before an answer was chosen


def answers() -> Mapping[tuple[str, int], Choice]:
    """The last checked answer of every question that has one, by name of the lesson and number of
    the question.
    """
    stored_answers: Mapping[tuple[str, int], Choice] = st.session_state.get(ANSWERS, {})
    return stored_answers


def progress(lessons: Sequence[Lesson]) -> None:
    """One line about the questions answered so far."""
    n_answers, every = answers(), sum(len(lesson.questions) for lesson in lessons)
    right = sum(choice.right for choice in n_answers.values())
    st.progress(
        len(n_answers) / every,
        text=f"Answered {len(n_answers)} of {every} questions, {right} of them right.",
    )


def questions(lesson: Lesson) -> None:
    """Draw the questions of a lesson."""
    with st.container(border=True):
        st.subheader("Questions")
        for number, question in enumerate(lesson.questions):
            key = f"{lesson.name}_{number}"
            st.radio(
                f"{number + 1}. {question.text}",
                question.choices,
                index=None,
                format_func=lambda choice: choice.text,
                key=f"question_{key}",
                persist_state="session",
            )
            buttons.button(
                f"Check answer {number + 1}", _check, lesson.name, number, key=f"check_{key}"
            )
            if st.session_state.get(UNCHOSEN) == (lesson.name, number):
                st.info("Choose one of the answers first.", icon="👆")
            answer = answers().get((lesson.name, number))
            if answer is not None and answer.right:
                st.success(f"**Right:** {answer.text} {answer.feedback}", icon="✅")
            elif answer is not None:
                st.warning(f"**Not this one:** {answer.text} {answer.feedback}", icon="🔁")


def _check(name: str, number: int) -> None:
    chosen = st.session_state.get(f"question_{name}_{number}")
    st.session_state[UNCHOSEN] = (name, number) if chosen is None else None
    if chosen is not None:
        st.session_state[ANSWERS] = {**answers(), (name, number): chosen}


def sheet(lesson: Lesson) -> str:
    """Goals, expected numbers, answers and points to discuss of a lesson as Markdown."""
    parts = ["Learning goals:", *(f"- {goal}" for goal in lesson.goals), ""]
    parts += [
        "Numbers to expect:",
        *(f"- {name}: **{value}**" for name, value in lesson.expected().items()),
        "",
    ]
    for number, question in enumerate(lesson.questions, 1):
        parts += [f"Question {number}: {question.text}", ""]
        for choice in question.choices:
            mark = "✅ right:" if choice.right else "❌ wrong:"
            parts.append(f"- {mark} **{choice.text}** {choice.feedback}")
        parts.append("")
    return "\n".join([*parts, "To discuss:", *(f"- {item}" for item in lesson.discussion)])


def overview(lessons: Sequence[Lesson]) -> None:
    """All goals, numbers, answers and discussions on one sheet, worked out when it is opened."""
    with st.expander("All lessons at a glance", key="overview", on_change="rerun") as opened:
        for number, lesson in enumerate(lessons if opened.open else (), 1):
            st.markdown(f"**{number}. {lesson.title}**")
            st.markdown(sheet(lesson))
