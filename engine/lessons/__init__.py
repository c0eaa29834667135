"""Worked examples and figures of the lessons."""

from engine.lessons.examples import group_questions, left_text
from engine.lessons.figures import (
    attack_picture,
    caps_picture,
    centered_picture,
    centers_picture,
    clipped_picture,
    contest_picture,
    cost_picture,
    guess_text,
    neighbours_picture,
    outcomes_picture,
    overlap_picture,
    proof_text,
    range_errors_picture,
    smashed_picture,
    spends_picture,
    strategy_picture,
)

__all__ = [
    "attack_picture",
    "caps_picture",
    "centered_picture",
    "centers_picture",
    "clipped_picture",
    "contest_picture",
    "cost_picture",
    "group_questions",
    "guess_text",
    "left_text",
    "neighbours_picture",
    "outcomes_picture",
    "overlap_picture",
    "proof_text",
    "range_errors_picture",
    "smashed_picture",
    "spends_picture",
    "strategy_picture",
]
