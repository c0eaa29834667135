"""The worked examples of the lessons: small numbers that a reader can check, and their pictures.

To touch: a lesson is its numbers here and one file among the parts of the page.
"""

from engine.lessons.contest_pictures import contest_picture, proof_text, range_errors_picture, strategy_picture
from engine.lessons.numbers import (
    INVENTED,
    meanings,
    neighbours,
    outcomes,
    overlaps,
    smash,
    two_analyses,
    yes_or_no,
)
from engine.lessons.pictures import (
    cost_picture,
    neighbours_picture,
    outcomes_picture,
    overlap_picture,
    smashed_picture,
    spends_picture,
)
from engine.lessons.strategies import FAMILIES, SIZES, contest

__all__ = [
    "FAMILIES",
    "INVENTED",
    "SIZES",
    "contest",
    "contest_picture",
    "cost_picture",
    "meanings",
    "neighbours",
    "neighbours_picture",
    "outcomes",
    "outcomes_picture",
    "overlap_picture",
    "overlaps",
    "proof_text",
    "range_errors_picture",
    "smash",
    "smashed_picture",
    "spends_picture",
    "strategy_picture",
    "two_analyses",
    "yes_or_no",
]
