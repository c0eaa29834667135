"""Questions of a lesson with feedback, progress, and notes for instructors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from engine._format import pluralize
from pages.parts.lessons import answer_store
from pages.parts.lessons.lesson import Choice, Lesson
from pages.parts.shell import buttons

ANSWERS, INSTRUCTOR = "learn_answers", "instructor"
# Session key of the question whose button was clicked although no answer was chosen.
UNCHOSEN = "learn_unchosen"


def answers() -> Mapping[tuple[str, int], Choice]:
    """Return a mapping from (lesson name, question index) to the answer that was checked last."""
    stored_answers: Mapping[tuple[str, int], Choice] = st.session_state.get(ANSWERS, {})
    return stored_answers


def restore(lessons: Sequence[Lesson]) -> None:
    """Once per session, load the answers given in this browser in earlier sessions."""
    if ANSWERS in st.session_state:
        return
    numbers = answer_store.load()
    restored = {}
    for lesson in lessons:
        for number, question in enumerate(lesson.questions):
            choice_number = numbers.get(f"{lesson.name}_{number}", -1)
            if 0 <= choice_number < len(question.choices):
                choice = question.choices[choice_number]
                restored[lesson.name, number] = choice
                st.session_state.setdefault(f"question_{lesson.name}_{number}", choice)
    st.session_state[ANSWERS] = restored


def progress(lessons: Sequence[Lesson]) -> None:
    """Draw how many questions of these lessons are answered, and how many of them correctly."""
    share, text = score(lessons)
    st.progress(share, text=text)


def score(lessons: Sequence[Lesson]) -> tuple[float, str]:
    """Return the share of the questions of these lessons that are answered, and the score as text."""
    questions = {
        (lesson.name, number) for lesson in lessons for number in range(len(lesson.questions))
    }
    checked = [choice for key, choice in answers().items() if key in questions]
    correct = sum(choice.right for choice in checked)
    text = f"{len(checked)} of {len(questions)} questions answered, {correct} correct."
    return len(checked) / len(questions), text


def delete_button(place: DeltaGenerator) -> None:
    """Draw a popover with a button that deletes all answers."""
    count = len(answers())
    with place.popover("Delete answers", disabled=not count):
        st.markdown(
            f"Delete {pluralize(count, 'saved answer')} of all lessons? This cannot be undone."
        )
        st.button("Delete now", on_click=forget, key="forget_answers", disabled=not count)


def forget() -> None:
    """Delete all answers."""
    for name, number in answers():
        st.session_state[f"question_{name}_{number}"] = None
    st.session_state[ANSWERS] = {}
    answer_store.save({})


def questions(lesson: Lesson) -> None:
    """Draw the choice of a question of a lesson, this question, and feedback on the checked answer."""
    numbers = range(len(lesson.questions))
    checked = [answers().get((lesson.name, number)) for number in numbers]
    with st.container(border=True):
        number = st.radio(
            "Question",
            numbers,
            format_func=lambda number: f"Question {number + 1}{_mark(checked[number])}",
            key=f"shown_{lesson.name}",
            horizontal=True,
            persist_state="session",
            label_visibility="collapsed",
        )
        question = lesson.questions[number]
        key = f"{lesson.name}_{number}"
        # The question is drawn as text and not as the label of the radio, because a label is too
        # small for a class to read from afar.
        st.markdown(f"**{question.text}**")
        st.radio(
            question.text,
            question.choices,
            index=None,
            format_func=lambda choice: choice.text,
            key=f"question_{key}",
            persist_state="session",
            label_visibility="collapsed",
        )
        buttons.button("Check answer", _check, lesson, number, key=f"check_{key}")
        if st.session_state.get(UNCHOSEN) == (lesson.name, number):
            st.info("To continue, choose an answer.", icon="👆")
        answer = checked[number]
        if answer is not None and answer.right:
            st.success(f"**Correct:** {answer.text} {answer.feedback}", icon="✅")
        elif answer is not None:
            st.warning(
                f"**Not quite.** Your answer was “{answer.text}” {answer.feedback}", icon="🔁"
            )


def _mark(answer: Choice | None) -> str:
    """Return the mark behind the label of a question: empty if no answer was checked."""
    if answer is None:
        return ""
    return " ✓" if answer.right else " ✗"


def _check(lesson: Lesson, number: int) -> None:
    """Store the selected answer of a question; if none is selected, store that a hint is needed."""
    choice = st.session_state.get(f"question_{lesson.name}_{number}")
    st.session_state[UNCHOSEN] = (lesson.name, number) if choice is None else None
    if choice is None:
        return
    st.session_state[ANSWERS] = {**answers(), (lesson.name, number): choice}
    choice_number = lesson.questions[number].choices.index(choice)
    answer_store.save(answer_store.load() | {f"{lesson.name}_{number}": choice_number})


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
    """Draw an expander with the notes on these lessons for instructors."""
    with st.expander("All lessons of the path", key="overview", on_change="rerun") as opened:
        for number, lesson in enumerate(lessons if opened.open else (), 1):
            st.markdown(f"**{number}. {lesson.title}**")
            st.markdown(sheet(lesson))
