"""What is done to noisy counts afterwards: negative ones put up to zero, and cells put together.

Closed forms for a count t with normal noise of standard deviation s, a = t / s:

    mean of max(t + noise, 0)             t Phi(a) + s phi(a)
    mean square of max(t + noise, 0) - t  s^2 (Phi(a) - a phi(a)) + t^2 Phi(-a)

The counts are invented: many cells with little or nothing in them, as with incomes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy

from engine.arrays import Array
from engine.checks import positive
from engine.errors import PlanError

SPARSE = (0, 2, 9, 24, 41, 38, 22, 13, 8, 5, 3, 2, 1, 1, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1)
WIDTHS = (1, 2, 4, 8)  # cells put together


@dataclass(frozen=True, kw_only=True, eq=False)
class Clipped:
    """Expected values of a table before and after negative counts are put up to zero.

    Attributes
    ----------
    counts : the true counts, shape (bins,).
    std : standard error of a measured count, in counts.
    means : expected published counts when negative ones become 0, shape (bins,).
    errors : root mean squared error of each of them, shape (bins,).
    """

    counts: Array
    std: float
    means: Array
    errors: Array

    @property
    def bias(self) -> float:
        """Expected error of the sum of all published counts, in counts; without clipping it is 0."""
        return float(np.sum(self.means - self.counts))

    @property
    def std_of_sum(self) -> float:
        """Standard error of the sum of the measured counts, nothing put up to zero."""
        return self.std * math.sqrt(len(self.counts))

    @property
    def rmse(self) -> float:
        """Root mean squared error of a cell after clipping; before it is the standard error."""
        return float(np.sqrt(np.mean(self.errors**2)))


def clipped(counts: npt.ArrayLike, std: float) -> Clipped:
    """Return what clipping at zero does to counts, shape (bins,), with normal noise of standard deviation ``std``.

    Raises: PlanError unless ``std`` is positive.

    >>> round(clipped([0.0], 1.0).bias, 4), round(clipped([50.0], 1.0).bias, 4)
    (0.3989, 0.0)
    """
    positive("std", std, error=PlanError)
    true = np.asarray(counts, dtype=float)
    a = true / std
    upper, density = scipy.special.ndtr(a), np.exp(-(a**2) / 2) / math.sqrt(2 * math.pi)
    means = true * upper + std * density
    squares = std**2 * (upper - a * density) + true**2 * scipy.special.ndtr(-a)
    return Clipped(counts=true, std=float(std), means=means, errors=np.sqrt(squares))


def binned(width: int) -> Array:
    """Return the invented counts with ``width`` neighbouring cells put together, shape (cells / width,).

    >>> binned(8).tolist()
    [149.0, 21.0, 1.0, 1.0]
    """
    if width not in WIDTHS:
        raise PlanError(f"The width was {width!r}. Give one of {WIDTHS}.")
    return np.asarray(np.reshape(SPARSE, (-1, width)).sum(axis=1), dtype=float)
