"""The lessons of the Learn page in order; a lesson is one file and one name here."""

from pages.parts.lessons import apart, bounds, coarse, noise, smashed, strategies

LESSONS = (
    smashed.LESSON,
    apart.LESSON,
    strategies.LESSON,
    noise.LESSON,
    bounds.LESSON,
    coarse.LESSON,
)
