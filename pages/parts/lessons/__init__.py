"""The Learn page: what a lesson is, and the lessons themselves, in order.

To touch: a lesson is one file, with its ``LESSON``, and one name in ``LESSONS``.
"""

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
