"""A lesson: plain words, an interactive picture in steps, questions with feedback, and what an
instructor wants to see.

To write one: a `Lesson` in a file of its own, and its name in ``LESSONS``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from engine.figures import Picture
from pages.parts.shell import figure_view, python_script
from pages.parts.shell.history import RequestState
from pages.parts.shell.python_script import Script

EVENLY = {"centers": "uniform"}  # options of a lesson about the split of the paper


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
class Formula:
    """A formula for the screen (LaTeX), the same in plain signs for paper, and what it says."""

    latex: str
    plain: str
    words: str


@dataclass(frozen=True, kw_only=True)
class LessonPicture:
    """What the picture of a lesson shows now: the request that it belongs to, Python lines for the
    same, pictures.
    """

    studio: RequestState
    script: Script
    pictures: tuple[Picture, ...] = ()

    @property
    def text(self) -> str:
        """The Python code of the picture and of the plan behind it."""
        return (python_script.plan_script(self.studio) + self.script).text()


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """One lesson.

    Attributes
    ----------
    name : a word for keys.
    tab : its short title.
    title : its title.
    words : a few plain sentences, Markdown.
    steps : what each step of the picture shows, in a sentence, Markdown; the first is step 0.
    picture : draws the interactive part up to a step and returns what it shows.
    formulas : for those who want them.
    questions : three about it.
    expected : names of numbers that a class should find, and the numbers, worked out when asked
        for.
    goals : what one can do after the lesson.
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
    """A question with its choices as pairs of answer and feedback; the right answer begins with a
    tick.
    """
    parsed_choices = (
        Choice(text=t.removeprefix("✓ "), feedback=f, right=t.startswith("✓ ")) for t, f in choices
    )
    return Question(text=text, choices=tuple(parsed_choices))


def lines(text: str, **imports: str) -> Script:
    """Python lines with their imports as module="Name Name"; "__" in a module stands for a dot."""
    pairs = {
        (module.replace("__", "."), name)
        for module, names in imports.items()
        for name in names.split()
    }
    return Script(imports=frozenset(pairs), lines=tuple(text.strip("\n").split("\n")))


def show_picture(picture: Picture, key: str, *, plain: bool = True) -> Picture:
    """Draw a picture and return it; ``plain`` ones have no toolbar."""
    figure_view.picture(picture, key=key, config=figure_view.EXPORT if plain else None)
    return picture
