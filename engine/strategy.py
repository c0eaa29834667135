"""Strategies: what is measured on a residual space, and what the answers then say."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from engine.family import Array

ROUNDING = 1e-9  # a class row that leaves the measured span by more than this share cannot be answered


@dataclass(frozen=True, kw_only=True, eq=False)
class Strategy:
    """Strategy rows B on the cells of some attributes, with their reconstruction.

    Attributes
    ----------
    sizes : domain sizes of the attributes.
    rows : B, shape (measurements, cells); every column has Euclidean norm at most about 1.
    pinv : maps strategy answers to class coordinates, shape (class coordinates, measurements).  The estimate of a class
        row c is c @ pinv @ answers, its variance at noise scale 1 is |c @ pinv|^2.
    complete : whether every class coordinate is measured, or only the span of the workload.
    """

    sizes: tuple[int, ...]
    rows: Array
    pinv: Array
    complete: bool

    @cached_property
    def column_norm(self) -> float:
        """Largest Euclidean norm of a column of B: the sensitivity of the answers to one record."""
        return float(np.sqrt(np.max(np.einsum("rc,rc->c", self.rows, self.rows))))

    @cached_property
    def covariance(self) -> Array:
        """Covariance of the class coordinates at noise scale 1, shape (class coordinates,) * 2."""
        return self.pinv @ self.pinv.T

    @property
    def cells(self) -> int:
        """Number of cells that the rows cover."""
        return math.prod(self.sizes)


def answerable(class_rows: Array, projection: Array) -> bool:
    """Return whether class rows lie in the span of the rows of ``projection``, up to rounding."""
    left = class_rows - (class_rows @ np.linalg.pinv(projection)) @ projection
    return bool(np.linalg.norm(left) <= ROUNDING * max(1.0, float(np.linalg.norm(class_rows))))
