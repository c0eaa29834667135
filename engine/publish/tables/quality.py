"""Quality: which published numbers are good enough to be read one by one, told from released numbers alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.arrays import Array
from engine.checks import positive
from engine.errors import PlanError
from engine.insight import NoiseScale

PUBLISHABLE, DOUBTFUL, SUPPRESSED = FLAGS = ("publishable", "doubtful", "suppressed")
REASONS = {
    "": "nothing speaks against the number",
    "cv": "its error is a large share of it",
    "count": "it is smaller than the least count that is shown",
    "signal": "too little of it was measured: most follows from smaller tables",
}


@dataclass(frozen=True, kw_only=True)
class QualityRule:
    """When a published number is publishable, doubtful or suppressed.

    Attributes
    ----------
    doubtful_cv, suppressed_cv : the error over the number from which it is doubtful, or suppressed: by default those
        of `NoiseScale`.
    least_count : a smaller number is suppressed.
    least_signal : where a smaller share of its residual was measured, a number is doubtful.

    The rule protects readers, not the people in the records: their protection is the noise.  So a suppressed cell stays
    in all sums, and what it was can be had as a difference of them.

    >>> QualityRule(doubtful_cv=0.4)
    Traceback (most recent call last):
    engine.errors.PlanError: A number is doubtful before it is suppressed: doubtful_cv 0.4 is above suppressed_cv 0.3.
    """

    doubtful_cv: float = NoiseScale.publishable
    suppressed_cv: float = NoiseScale.doubtful
    least_count: float = 0.0
    least_signal: float = 0.0

    def __post_init__(self) -> None:
        for name in ("doubtful_cv", "suppressed_cv"):
            positive(name, getattr(self, name), error=PlanError)
        if self.doubtful_cv > self.suppressed_cv:
            raise PlanError(
                f"A number is doubtful before it is suppressed: doubtful_cv {self.doubtful_cv:g} is above "
                f"suppressed_cv {self.suppressed_cv:g}."
            )
        if not self.least_count >= 0.0 or not 0.0 <= self.least_signal <= 1.0:
            raise PlanError(
                f"The least count was {self.least_count}, the least share of signal {self.least_signal}. Give a number "
                "of at least 0, and one from 0 to 1."
            )

    def flags(self, values: Array, errors: Array, signal: Array) -> tuple[npt.NDArray[np.str_], npt.NDArray[np.str_]]:
        """Return flags and reason codes of published numbers, all of shape (queries,); the gravest reason is told.

        ``errors`` are root mean squared errors in counts, ``signal`` shares from 0 to 1.
        """
        # without a division: 0 with an error of 0 is certain, 0 with any other error is not
        grave, doubtful = errors > self.suppressed_cv * values, errors > self.doubtful_cv * values
        small, guessed = values < self.least_count, signal < self.least_signal
        reasons = np.select([small, grave, doubtful, guessed], ["count", "cv", "cv", "signal"], "")
        flags = np.select([small | grave, doubtful | guessed], [SUPPRESSED, DOUBTFUL], PUBLISHABLE)
        return flags, reasons
