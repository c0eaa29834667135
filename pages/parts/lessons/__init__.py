"""Lessons of the Learn page, and the paths: selections of lessons for 15 to 105 minutes."""

from pages.parts.lessons import (
    lesson_01_attack,
    lesson_02_noise,
    lesson_03_many_rows,
    lesson_04_binning,
    lesson_05_decomposition,
    lesson_06_orthogonality,
    lesson_07_strategies,
    lesson_08_bounds,
    lesson_09_centers,
    lesson_10_common_mechanism,
)

LESSONS = (
    lesson_01_attack.LESSON,
    lesson_02_noise.LESSON,
    lesson_03_many_rows.LESSON,
    lesson_04_binning.LESSON,
    lesson_05_decomposition.LESSON,
    lesson_06_orthogonality.LESSON,
    lesson_07_strategies.LESSON,
    lesson_08_bounds.LESSON,
    lesson_09_centers.LESSON,
    lesson_10_common_mechanism.LESSON,
)
# Maps the duration of a course in minutes to the names of its lessons, in order. The longest course
# has all lessons; each course leaves 8 to 15 minutes for discussion.
PATHS = {
    105: tuple(lesson.name for lesson in LESSONS),
    90: tuple(lesson.name for lesson in LESSONS if lesson is not lesson_09_centers.LESSON),
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
