"""Lessons of the Learn page, in the order of learning, and paths through them."""

from pages.parts.lessons import (
    attack,
    binning,
    bounds,
    centers,
    common_mechanism,
    decomposition,
    many_rows,
    noise,
    orthogonality,
    strategies,
)

LESSONS = (
    attack.LESSON,
    noise.LESSON,
    many_rows.LESSON,
    binning.LESSON,
    decomposition.LESSON,
    orthogonality.LESSON,
    strategies.LESSON,
    bounds.LESSON,
    centers.LESSON,
    common_mechanism.LESSON,
)
# Minutes of a path -> names of its lessons; the longest path has all of them.
PATHS = {
    90: tuple(lesson.name for lesson in LESSONS),
    45: ("attack", "noise", "rows", "binning", "pieces", "strategies"),
    15: ("attack", "noise"),
}
# Names in the order in which older addresses numbered the lessons.
NUMBERED = (
    "pieces",
    "overlap",
    "strategies",
    "noise",
    "bounds",
    "coarse",
    "attack",
    "rows",
    "binning",
    "centers",
)
