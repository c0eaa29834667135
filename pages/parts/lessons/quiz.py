"""Questions of a lesson with feedback, progress, and notes for instructors.

Answers are stored in the session only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import streamlit as st

from pages.parts.lessons.lesson import Choice, Lesson
from pages.parts.shell import buttons

ANSWERS, INSTRUCTOR = "learn_answers", "instructor"
UNCHOSEN = "learn_unchosen"  # session key: question that was checked without an answer


def answers() -> Mapping[tuple[str, int], Choice]:
    """Return a mapping from (lesson name, question number) to the last answer that was checked."""
    stored_answers: Mapping[tuple[str, int], Choice] = st.session_state.get(ANSWERS, {})
    return stored_answers


def progress(lessons: Sequence[Lesson]) -> None:
    """Draw a progress bar with the numbers of answered and correctly answered questions."""
    checked, n_questions = answers(), sum(len(lesson.questions) for lesson in lessons)
    correct = sum(choice.right for choice in checked.values())
    st.progress(
        len(checked) / n_questions,
        text=f"{len(checked)} of {n_questions} questions answered, {correct} correct.",
    )


def questions(lesson: Lesson) -> None:
    """Draw the questions of a lesson, with buttons that check the answers, and the feedback."""
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
                st.info("To continue, choose an answer.", icon="👆")
            answer = answers().get((lesson.name, number))
            if answer is not None and answer.right:
                st.success(f"**Correct:** {answer.text} {answer.feedback}", icon="✅")
            elif answer is not None:
                st.warning(f"**Not quite:** {answer.text} {answer.feedback}", icon="🔁")


def _check(name: str, number: int) -> None:
    """Store the selected answer of a question, or that none is selected."""
    chosen = st.session_state.get(f"question_{name}_{number}")
    st.session_state[UNCHOSEN] = (name, number) if chosen is None else None
    if chosen is not None:
        st.session_state[ANSWERS] = {**answers(), (name, number): chosen}


def sheet(lesson: Lesson) -> str:
    """Return notes for instructors as Markdown: goals, expected numbers, answers, discussion."""
    parts = ["Learning goals:", *(f"- {goal}" for goal in lesson.goals), ""]
    parts += [
        "Expected numbers:",
        *(f"- {name}: **{value}**" for name, value in lesson.expected().items()),
        "",
    ]
    for number, question in enumerate(lesson.questions, 1):
        parts += [f"Question {number}: {question.text}", ""]
        for choice in question.choices:
            mark = "✅ correct:" if choice.right else "❌ wrong:"
            parts.append(f"- {mark} **{choice.text}** {choice.feedback}")
        parts.append("")
    return "\n".join([*parts, "Discussion:", *(f"- {item}" for item in lesson.discussion)])


def overview(lessons: Sequence[Lesson]) -> None:
    """Draw an expander with the notes for instructors of all lessons."""
    with st.expander("All lessons", key="overview", on_change="rerun") as opened:
        for number, lesson in enumerate(lessons if opened.open else (), 1):
            st.markdown(f"**{number}. {lesson.title}**")
            st.markdown(sheet(lesson))
