"""The worked examples of the lessons: small numbers that a reader can check, and their pictures.

To touch: a lesson is its numbers here and one file among the parts of the page.
"""

from engine.lessons.attack import PERSONS, answers_given, group_questions, reconstruct_replies, spread_of_answers
from engine.lessons.binning import WIDTHS, binned, clipped
from engine.lessons.centers import ASKED, CELLS, NAMES, Centered, centered, centered_pairs, left_text, pairs_workload
from engine.lessons.contest_pictures import contest_picture, proof_text, range_errors_picture, strategy_picture
from engine.lessons.further_pictures import (
    attack_picture,
    caps_picture,
    centered_picture,
    centers_picture,
    clipped_picture,
)
from engine.lessons.handout import handout_html
from engine.lessons.many_rows import CAPS, best_cap, caps_table, of_a_person, rows_in_all
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
    guess_text,
    neighbours_picture,
    outcomes_picture,
    overlap_picture,
    smashed_picture,
    spends_picture,
)
from engine.lessons.strategies import FAMILIES, SIZES, contest

__all__ = [
    "ASKED",
    "CAPS",
    "CELLS",
    "FAMILIES",
    "INVENTED",
    "NAMES",
    "PERSONS",
    "SIZES",
    "WIDTHS",
    "Centered",
    "answers_given",
    "attack_picture",
    "best_cap",
    "binned",
    "caps_picture",
    "caps_table",
    "centered",
    "centered_pairs",
    "centered_picture",
    "centers_picture",
    "clipped",
    "clipped_picture",
    "contest",
    "contest_picture",
    "cost_picture",
    "group_questions",
    "guess_text",
    "handout_html",
    "left_text",
    "meanings",
    "neighbours",
    "neighbours_picture",
    "of_a_person",
    "outcomes",
    "outcomes_picture",
    "overlap_picture",
    "overlaps",
    "pairs_workload",
    "proof_text",
    "range_errors_picture",
    "reconstruct_replies",
    "rows_in_all",
    "smash",
    "smashed_picture",
    "spends_picture",
    "spread_of_answers",
    "strategy_picture",
    "two_analyses",
    "yes_or_no",
]
