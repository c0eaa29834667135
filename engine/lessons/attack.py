"""An attack on a small table: exact answers give every person away, noisy ones do not.

Sixteen invented persons each said yes or no in confidence.  The attacker knows who they are, not what they said, and
reads how many of certain groups of eight said yes.  With exact answers that is a system of linear equations.

Source: Dinur and Nissim 2003 (reconstruction); the groups are the rows of Sylvester's Hadamard matrix.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import scipy

from engine.arrays import Array
from engine.checks import whole
from engine.errors import PlanError
from engine.lessons.numbers import GRID
from engine.privacy import Budget
from engine.release import discrete_gaussian

SECRETS = (1, 0, 0, 1, 0, 1, 1, 0, 0, 0, 1, 0, 1, 0, 0, 1)
PERSONS = len(SECRETS)


@dataclass(frozen=True, kw_only=True, eq=False)
class Attack:
    """What an attacker makes of answers.

    Attributes
    ----------
    answers : the published numbers, shape (questions,), in counts.
    estimate : best guess of what every person said by least squares, shape (persons,); 1 is yes.
    """

    answers: Array
    estimate: Array

    @property
    def guesses(self) -> tuple[int, ...]:
        """What the attacker takes every person to have said."""
        return tuple(int(value > 0.5 + 1e-9) for value in self.estimate)

    @property
    def right(self) -> int:
        """Number of persons whose reply the attacker has right."""
        return sum(guess == secret for guess, secret in zip(self.guesses, SECRETS, strict=True))


def group_questions(count: int) -> Array:
    """Return which persons the first ``count`` questions are about, shape (count, persons), 0 or 1.

    Raises: PlanError unless 1 <= count <= 16.

    >>> group_questions(16).sum(axis=1).astype(int).tolist()[:3], int(np.linalg.matrix_rank(group_questions(16)))
    ([16, 8, 8], 16)
    """
    count = whole("count", count, 1, PERSONS, error=PlanError)
    return np.asarray((1.0 + scipy.linalg.hadamard(PERSONS)) / 2.0)[:count]


def spread_of_answers(count: int, budget: Budget) -> float:
    """Return the standard error, in counts, of each of ``count`` answers that together cost the budget.

    One person more among those who said yes moves every question that the person belongs to by one.
    """
    return float(np.sqrt(_questions_of_one(count) / budget.row_pcost))


def answers_given(count: int, budget: Budget | None = None) -> Array:
    """Return what is published, shape (count,), in counts: the truth, or with a budget a fresh noisy release of it.

    The noise is the exact discrete Gaussian on a grid of 1/1024 count, drawn with the operating system's entropy.
    """
    truth = group_questions(count) @ np.asarray(SECRETS, dtype=float)
    if budget is None:
        return np.asarray(truth)
    variance = Fraction(GRID) ** 2 * _questions_of_one(count) / Fraction(budget.row_pcost)
    return np.asarray(truth + discrete_gaussian(variance=variance, size=count) / GRID)


def reconstruct_replies(answers: Sequence[float] | Array) -> Attack:
    """Attack published answers, shape (questions,), by least squares, nearest to half yes, half no.

    >>> reconstruct_replies(answers_given(16)).right
    16
    """
    given = np.asarray(answers, dtype=float)
    asked = group_questions(len(given))
    middle = np.full(PERSONS, 0.5)
    found = middle + scipy.linalg.lstsq(asked, given - asked @ middle)[0]
    return Attack(answers=given, estimate=found)


def _questions_of_one(count: int) -> int:
    """Most questions that one person belongs to: the square of how far one reply moves all answers together."""
    return int(group_questions(count).sum(axis=0).max())
