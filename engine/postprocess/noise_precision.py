"""Precision matrices of the noise of residual tables.

The noise of a prefix strategy has smaller variance in sums over many cells than in single cells.
With D a difference of residual tables and C_i the covariance of the class coordinates along axis i
(N_i their basis), the squared distance in standard errors is

    sum of D * (K_1 (x) K_2 (x) ...) D / sigma^2,     K_i = N_i C_i^-1 N_i^T.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from engine._arrays import Array
from engine.plans import Block
from engine.residuals import Space, basis

EQUAL_VARIANCE_TOLERANCE = 1e-6  # relative difference up to which variances count as equal


@dataclass(frozen=True, kw_only=True, eq=False)
class Metric:
    """Precision matrix of a residual table: a Kronecker product times a scale.

    Attributes
    ----------
    factors : one matrix per axis, shape (n_i, n_i).
    scale : in 1 / counts^2.
    """

    factors: tuple[Array, ...] = field(repr=False)
    scale: float

    def of(self, gap: Array) -> Array:
        """Return the precision matrix times a difference of residuals, of the same shape."""
        out = gap
        for axis, factor in enumerate(self.factors):
            out = np.moveaxis(np.tensordot(factor, out, axes=(1, axis)), 0, axis)
        return np.asarray(self.scale * out)

    def squared(self, gap: Array) -> float:
        """Return the squared norm of a difference, shape (n_1, ..., n_k), in standard errors."""
        return float(np.sum(gap * self.of(gap)))

    @cached_property
    def steepest(self) -> float:
        """Largest eigenvalue: the precision of the most precise direction."""
        return self.scale * math.prod(float(np.linalg.eigvalsh(factor)[-1]) for factor in self.factors)

    @cached_property
    def of_cells(self) -> Array:
        """Diagonal, in the shape of the table."""
        out = np.array(self.scale)
        for factor in self.factors:
            out = np.multiply.outer(out, np.diag(factor))
        return np.asarray(out)


def metric_of(block: Block, space: Space) -> Metric | None:
    """Return the precision of a space; None for equal variances or factors of several axes."""
    if block.weights is not None or not all(s.complete for _, s in block.factors):
        return None
    if block.union:
        ((_, strategy),) = block.factors
        if len(space) != 1:
            return None
        dimensions = [math.prod(strategy.sizes[block.attributes.index(n)] - 1 for n in s) for s in block.union]
        first = sum(dimensions[: block.union.index(space)])
        rows = slice(first, first + dimensions[block.union.index(space)])
        covariances = [strategy.covariance[rows, rows]]
    elif all(len(axes) == 1 for axes, _ in block.factors):
        covariances = [s.covariance for _, s in sorted(block.factors, key=lambda factor: factor[0])]
    else:
        return None
    factors, uneven = [], False
    for covariance in covariances:
        values, vectors = np.linalg.eigh(covariance)
        uneven |= bool(values[-1] > (1.0 + EQUAL_VARIANCE_TOLERANCE) * values[0])
        lifted = basis(len(values) + 1) @ vectors
        factors.append((lifted / values) @ lifted.T)
    return Metric(factors=tuple(factors), scale=1.0 / block.noise**2) if uneven else None
