"""The lessons of the Learn page in order; a lesson is one file and one name here."""

from pages.parts.lessons import (
    apart,
    attack,
    binning,
    bounds,
    centers,
    coarse,
    many_rows,
    noise,
    smashed,
    strategies,
)

LESSONS = (
    smashed.LESSON,
    apart.LESSON,
    strategies.LESSON,
    noise.LESSON,
    bounds.LESSON,
    coarse.LESSON,
    attack.LESSON,
    many_rows.LESSON,
    binning.LESSON,
    centers.LESSON,
)
