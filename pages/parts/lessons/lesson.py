"""A lesson: plain words, an interactive picture, a question with feedback, and what an instructor wants to see.

Answers stay in the state of the session; nothing is written anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import streamlit as st

from engine.errors import EngineError
from pages.parts.jobs import plans
from pages.parts.shell import code, frame, state
from pages.parts.shell.code import Script
from pages.parts.shell.state import Studio
from pages.parts.shell.words import trouble, words_of

ANSWERS, INSTRUCTOR = "learn_answers", "instructor"


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One possible answer and what to say to those who give it."""

    text: str
    feedback: str
    right: bool = False


@dataclass(frozen=True, kw_only=True)
class Question:
    """A question with exactly one right choice."""

    text: str
    choices: tuple[Choice, ...]

    @property
    def answer(self) -> Choice:
        """The right choice."""
        return next(c for c in self.choices if c.right)


@dataclass(frozen=True, kw_only=True)
class Shown:
    """What the picture of a lesson shows now: the request that it belongs to, and Python lines for the same."""

    studio: Studio
    script: Script

    @property
    def text(self) -> str:
        """The Python code of the picture and of the plan behind it."""
        return (code.plan_script(self.studio) + self.script).text()


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """One lesson.

    Attributes
    ----------
    name : a word for keys.
    tab : its short title.
    title : its title.
    words : a few plain sentences, Markdown.
    picture : draws the interactive part and returns what it shows.
    question : the question about it.
    goals : what one can do after the lesson.
    discussion : questions for a class, Markdown.
    """

    name: str
    tab: str
    title: str
    words: str
    picture: Callable[[], Shown]
    question: Question
    goals: tuple[str, ...]
    discussion: tuple[str, ...]


def lines(text: str, **imports: str) -> Script:
    """Python lines with their imports as module="Name Name"; "__" in a module stands for a dot."""
    pairs = {(module.replace("__", "."), name) for module, names in imports.items() for name in names.split()}
    return Script(imports=frozenset(pairs), lines=tuple(text.strip("\n").split("\n")))


def answers() -> Mapping[str, Choice]:
    """The last checked answer of every lesson that has one."""
    found: Mapping[str, Choice] = st.session_state.get(ANSWERS, {})
    return found


def progress(lessons: Sequence[Lesson]) -> None:
    """One line about the questions answered so far."""
    given = answers()
    right = [lesson for lesson in lessons if lesson.name in given and given[lesson.name].right]
    st.progress(len(given) / len(lessons), text=f"Answered {len(given)} of {len(lessons)}, {len(right)} of them right.")


def draw(lesson: Lesson, after: Lesson | None) -> str:
    """Draw a lesson and return its Python code; empty while there is nothing to show."""
    st.header(lesson.title)
    st.markdown(lesson.words)
    shown = None
    try:
        shown = lesson.picture()
    except (EngineError, MemoryError) as error:
        trouble(words_of(error))
    _question(lesson)
    if st.session_state.get(INSTRUCTOR, False):
        _for_instructors(lesson)
    _onwards(lesson, shown, after)
    return shown.text if shown is not None else ""


def overview(lessons: Sequence[Lesson]) -> None:
    """All goals, answers and discussions on one sheet."""
    with st.expander("All lessons at a glance"):
        for number, lesson in enumerate(lessons, 1):
            st.markdown(f"**{number}. {lesson.title}**")
            st.markdown(_sheet(lesson))


def _question(lesson: Lesson) -> None:
    with st.container(border=True):
        st.subheader("Question")
        st.radio(
            lesson.question.text,
            lesson.question.choices,
            index=None,
            format_func=lambda choice: choice.text,
            key=f"question_{lesson.name}",
            persist_state="session",
        )
        st.button("Check my answer", on_click=_check, args=(lesson,), key=f"check_{lesson.name}")
        given = answers().get(lesson.name)
        if given is None:
            st.caption("Choose an answer and check it. You may try as often as you like.")
        elif given.right:
            st.success(f"**Right:** {given.text} {given.feedback}", icon="✅")
        else:
            st.warning(f"**Not this one:** {given.text} {given.feedback}", icon="🔁")


def _check(lesson: Lesson) -> None:
    chosen = st.session_state.get(f"question_{lesson.name}")
    if chosen is not None:
        st.session_state[ANSWERS] = {**answers(), lesson.name: chosen}


def _for_instructors(lesson: Lesson) -> None:
    with st.container(border=True):
        st.subheader("For instructors")
        st.markdown(_sheet(lesson))


def _sheet(lesson: Lesson) -> str:
    parts = ["Learning goals:", *(f"- {goal}" for goal in lesson.goals), ""]
    parts += [f"Question: {lesson.question.text}", ""]
    for choice in lesson.question.choices:
        mark = "✅ right:" if choice.right else "❌ wrong:"
        parts.append(f"- {mark} **{choice.text}** {choice.feedback}")
    parts += ["", "To discuss:", *(f"- {item}" for item in lesson.discussion)]
    return "\n".join(parts)


def _onwards(lesson: Lesson, shown: Shown | None, after: Lesson | None) -> None:
    left, right, _ = st.columns([2, 2, 1])
    reason = None if shown is not None else "There is no plan to open yet; see above."
    opened = left.button(
        "Open this plan in the studio",
        key=f"open_{lesson.name}",
        on_click=_take,
        args=(shown,),
        disabled=shown is None,
        help=reason or "Replaces what you chose so far; Undo brings it back.",
        width="stretch",
    )
    if opened:
        st.switch_page(frame.page("Preview").file)
    if reason:
        st.caption(f"Opening has to wait: {reason}")
    if after is not None:
        right.button(f"Next lesson: {after.tab} →", key=f"after_{lesson.name}", on_click=_turn, args=(after.tab,))


def _take(shown: Shown) -> None:
    state.note_lost(())
    state.commit(shown.studio, redraw=True)
    plans.begin(shown.studio)


def _turn(tab: str) -> None:
    st.session_state["lesson"] = tab
