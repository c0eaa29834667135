"""Content of a lesson: text, interactive picture, questions, instructor notes.

A new lesson is a `Lesson` in a separate file, listed in ``LESSONS``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from engine.figures import Picture
from pages.parts.shell import figure_view, python_script
from pages.parts.shell.history import RequestState
from pages.parts.shell.python_script import Script

UNIFORM = {"centers": "uniform"}  # plan options of lessons about the split of the paper


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
    """A formula as LaTeX for the screen and as plain text for print, with its explanation."""

    latex: str
    plain: str
    words: str


@dataclass(frozen=True, kw_only=True)
class LessonPicture:
    """Current picture of a lesson: its request, its Python code and its figures."""

    studio: RequestState
    script: Script
    pictures: tuple[Picture, ...] = ()

    @property
    def text(self) -> str:
        """Python code of the picture and of its plan."""
        return (python_script.plan_script(self.studio) + self.script).text()


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """One lesson.

    Attributes
    ----------
    name : for keys.
    tab : short title.
    title : full title.
    words : introduction, Markdown.
    steps : one sentence per step of the picture, from step 0, Markdown.
    picture : function that draws the picture up to a step and returns it.
    formulas : optional reading.
    questions : three questions.
    expected : function that computes the numbers that a class should find, by name.
    goals : learning goals.
    discussion : questions for a class, Markdown.
    """

    name: str
    tab: str
    title: str
    words: str
    steps: tuple[str, ...]
    picture: Callable[[int], LessonPicture]
    formulas: tuple[Formula, ...]
    questions: tuple[Question, ...]
    expected: Callable[[], Mapping[str, str]]
    goals: tuple[str, ...]
    discussion: tuple[str, ...]


def question(text: str, *choices: tuple[str, str]) -> Question:
    """Build a question from pairs of answer and feedback; a tick marks the correct answer."""
    parsed_choices = (
        Choice(text=t.removeprefix("✓ "), feedback=f, right=t.startswith("✓ ")) for t, f in choices
    )
    return Question(text=text, choices=tuple(parsed_choices))


def lines(text: str, **imports: str) -> Script:
    """Build a script with imports as module="Name Name", where "__" replaces dots."""
    pairs = {
        (module.replace("__", "."), name)
        for module, names in imports.items()
        for name in names.split()
    }
    return Script(imports=frozenset(pairs), lines=tuple(text.strip("\n").split("\n")))


def show_picture(picture: Picture, key: str, *, plain: bool = True) -> Picture:
    """Draw a picture, ``plain`` without a toolbar, and return it."""
    figure_view.picture(picture, key=key, config=figure_view.EXPORT if plain else None)
    return picture
