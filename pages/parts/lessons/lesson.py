"""Content of a lesson: text, interactive picture, questions, instructor notes.

To add a lesson, write a module ``lesson_NN_name`` with a `Lesson` and list it in ``LESSONS`` of
this package.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from engine.figures import Picture, enlarge
from pages.parts.shell import figure_view, python_script
from pages.parts.shell.history import RequestState
from pages.parts.shell.python_script import Script

UNIFORM = {"centers": "uniform"}  # plan options of lessons that use the centers of the paper
COURSE = "course"  # session state key: whether the course mode is on
COURSE_FONT_PX = 16  # font size of figures in the course mode


@dataclass(frozen=True, kw_only=True)
class Choice:
    """An answer to a question, with its feedback."""

    text: str
    feedback: str
    right: bool = False


@dataclass(frozen=True, kw_only=True)
class Question:
    """A question with exactly one correct choice."""

    text: str
    choices: tuple[Choice, ...]

    @property
    def answer(self) -> Choice:
        """Correct choice."""
        return next(c for c in self.choices if c.right)


@dataclass(frozen=True, kw_only=True)
class Formula:
    """A formula as LaTeX for the screen and as text for the handout, with its explanation."""

    latex: str
    plain: str
    words: str


@dataclass(frozen=True, kw_only=True)
class LessonPicture:
    """Figures of a lesson at the present choices, with the request and the code of their numbers.

    Attributes
    ----------
    request_state : request of the plan that the lesson is about.
    script : code that prints the numbers of the figures; it can use the variable workload_plan.
    pictures : the figures.
    """

    request_state: RequestState
    script: Script
    pictures: tuple[Picture, ...] = ()

    @property
    def text(self) -> str:
        """Python code that builds the plan and prints the numbers of the figures."""
        return (python_script.plan_script(self.request_state) + self.script).text()


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """One lesson.

    Attributes
    ----------
    name : identifier in widget keys and file names.
    tab : short title.
    minutes : time that the lesson takes.
    title : full title.
    words : introduction, Markdown.
    steps : one text per step of the picture, from step 0, Markdown.
    picture : function that draws the figures of a step and returns them with their request and code.
    step_pictures : function that returns the figures of the handout, as pairs (step, figure).  A
        step has no figure, one or several.  The argument maps URL parameters of widgets to the
        user's choices; without a choice, the default is used.
    formulas : formulas behind the lesson, shown on request.
    questions : three questions.
    expected : function that returns a mapping from descriptions to the numbers that a class should
        find.
    goals : learning goals.
    discussion : questions for a class, Markdown.
    """

    name: str
    tab: str
    minutes: int
    title: str
    words: str
    steps: tuple[str, ...]
    picture: Callable[[int], LessonPicture]
    step_pictures: Callable[[Mapping[str, Any]], tuple[tuple[int, Picture], ...]]
    formulas: tuple[Formula, ...]
    questions: tuple[Question, ...]
    expected: Callable[[], Mapping[str, str]]
    goals: tuple[str, ...]
    discussion: tuple[str, ...]


def question(text: str, *choices: tuple[str, str]) -> Question:
    """Return a question; ``choices`` are pairs of an answer and its feedback.

    The correct answer begins with "✓ ", which is removed.
    """
    parsed_choices = (
        Choice(text=answer.removeprefix("✓ "), feedback=feedback, right=answer.startswith("✓ "))
        for answer, feedback in choices
    )
    return Question(text=text, choices=tuple(parsed_choices))


def lines(text: str, **imports: str) -> Script:
    """Return lines of code with their imports.

    An import is passed as a keyword argument, such as engine__lessons="contest draw_releases" for
    two names of `engine.lessons`.
    """
    pairs = {
        (module.replace("__", "."), name)
        for module, names in imports.items()
        for name in names.split()
    }
    return Script(imports=frozenset(pairs), lines=tuple(text.strip("\n").split("\n")))


def newest_first(count: int) -> list[DeltaGenerator]:
    """Return containers for the parts that the steps of a lesson add, one after the other.

    A later container is above the earlier ones, so that a new part is visible without scrolling.
    """
    containers = [st.container() for _ in range(count)]
    return containers[::-1]


def show_picture(picture: Picture, key: str, *, plain: bool = True) -> Picture:
    """Draw a picture and return it. In the course mode it is as high as the window allows.

    A ``plain`` picture has only an export button.
    """
    config = figure_view.EXPORT if plain else None
    if not st.session_state.get(COURSE, False):
        figure_view.picture(picture, key=key, config=config)
        return picture
    # The style sheet in `browser_history` sets the height of figures in a container of this key.
    with st.container(key=f"course_{key}"):
        drawn = enlarge(picture, COURSE_FONT_PX, 1.0)
        figure_view.picture(drawn, key=key, config=config, height="stretch")
    return picture
