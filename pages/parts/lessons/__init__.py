"""The Learn page: what a lesson is, and the lessons themselves, in order.

To touch: a lesson is one file, with its ``LESSON``, and one name in ``LESSONS``.
"""

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
