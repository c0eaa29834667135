"""Lessons of the Learn page, and the paths: selections of lessons for 15 to 105 minutes."""

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
# Maps the duration of a course in minutes to the names of its lessons, in order. The longest course
# has all lessons; each course leaves 8 to 15 minutes for discussion.
PATHS = {
    105: tuple(lesson.name for lesson in LESSONS),
    90: tuple(lesson.name for lesson in LESSONS if lesson is not centers.LESSON),
    45: ("attack", "noise", "rows", "binning", "strategies"),
    15: ("attack",),
}
# Names of the lessons that older addresses call 1, 2, ..., in this order.
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
