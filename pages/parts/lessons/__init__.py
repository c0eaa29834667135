"""Lessons of the Learn page, in order."""

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
    decomposition.LESSON,
    orthogonality.LESSON,
    strategies.LESSON,
    noise.LESSON,
    bounds.LESSON,
    common_mechanism.LESSON,
    attack.LESSON,
    many_rows.LESSON,
    binning.LESSON,
    centers.LESSON,
)
