"""Strategies: what is measured on a residual space, and what the answers then say."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import scipy

from engine.arrays import Array, thin_svd
from engine.spaces.coordinates import basis

APART, TURNED = 1e-9, 1e-5  # by which rows may leave the span of others, and differ from a turn of them
LEAVING = 1e-6  # a class row that leaves the measured span by more than this share cannot be answered


@dataclass(frozen=True, kw_only=True, eq=False)
class Strategy:
    """Strategy rows B on the cells of some attributes, with their reconstruction.

    Attributes
    ----------
    sizes : domain sizes of the attributes.
    rows : B, shape (measurements, cells); every column has Euclidean norm at most about 1.
    pinv : maps strategy answers to class coordinates, shape (class coordinates, measurements).  The estimate of a class
        row c is c @ pinv @ answers, its variance at noise scale 1 is |c @ pinv|^2.  In an explicit strategy the cells
        themselves take the place of the class coordinates.
    complete : whether every class coordinate is measured, or only the span of the workload.
    measured : orthonormal rows with the span of the columns of ``pinv``, shape (rank, class coordinates), where who
        made the strategy knows them; None otherwise.
    """

    sizes: tuple[int, ...]
    rows: Array
    pinv: Array
    complete: bool
    measured: Array | None = None

    def by_rows(self, rows: Array) -> Strategy | None:
        """Return the strategy with other rows that measure the same, shape (measurements, cells), or None.

        They do where they are its own rows, turned: their answers say the same of every cell, at the same cost.
        """
        if rows.shape != self.rows.shape or not np.isfinite(rows).all():
            return None
        if np.array_equal(rows, self.rows):
            return self
        turn = np.linalg.lstsq(self.rows.T, rows.T)[0].T
        same = np.allclose(turn @ self.rows, rows, rtol=0.0, atol=APART * float(np.abs(self.rows).max(initial=0.0)))
        if not same or not np.allclose(turn @ turn.T, np.eye(len(turn)), rtol=0.0, atol=TURNED):
            return None
        # not the transpose: what another machine rounds in the rows must not stay in what they say
        return replace(self, rows=rows, pinv=np.linalg.solve(turn.T, self.pinv.T).T)

    @cached_property
    def column_norm(self) -> float:
        """Largest Euclidean norm of a column of B: the sensitivity of the answers to one record."""
        return float(np.sqrt(np.max(np.einsum("rc,rc->c", self.rows, self.rows))))

    @cached_property
    def column_sum(self) -> float:
        """Largest sum of absolute values of a column of B: the L1 sensitivity of the answers to one record."""
        return float(np.max(np.abs(self.rows).sum(axis=0)))

    @cached_property
    def covariance(self) -> Array:
        """Covariance of the class coordinates at noise scale 1, shape (class coordinates,) * 2."""
        # answers are B x + z with z of covariance 1, so that estimates pinv (B x + z) have this one
        return self.pinv @ self.pinv.T

    @cached_property
    def cell_covariance(self) -> Array:
        """Covariance of the reconstructed table on one attribute at noise scale 1, shape (n, n)."""
        N = basis(self.sizes[0])
        return N @ self.covariance @ N.T

    @property
    def dimension(self) -> int:
        """Number of class coordinates."""
        return len(self.pinv)

    @property
    def coordinates(self) -> tuple[int, ...]:
        """What an estimate has along every attribute: class coordinates, or cells when rows are answered on cells."""
        return self.sizes if len(self.pinv) == self.cells else tuple(n - 1 for n in self.sizes)

    @property
    def cells(self) -> int:
        """Number of cells that the rows cover."""
        return math.prod(self.sizes)

    @cached_property
    def span(self) -> Array:
        """Orthonormal basis of the measured class rows, shape (class coordinates, rank)."""
        if self.measured is not None:
            return self.measured.T
        # of pinv, not of the rows on cells: those depend on the centers, the class rows that can be answered do not
        U, singular, _ = thin_svd(self.pinv)
        Q: Array = U[:, singular > 1e-10 * singular.max(initial=0.0)]
        return Q

    @cached_property
    def unmeasured(self) -> Array:
        """Projector on the class rows that are not measured at all, shape (class coordinates,) * 2."""
        return np.eye(len(self.pinv)) - self.span @ self.span.T

    def leaves_span(self, class_rows: Array) -> npt.NDArray[np.bool_]:
        """Return for every class row whether it asks for something that is not measured, shape (k,)."""
        left = class_rows - (class_rows @ self.span) @ self.span.T  # no difference of squares: it rounds at LEAVING^2
        leaving: npt.NDArray[np.bool_] = np.linalg.norm(left, axis=1) > LEAVING * np.maximum(
            np.linalg.norm(class_rows, axis=1), 1e-300
        )
        return leaving


def settled(directions: Array) -> Array:
    """Return the turn W of orthonormal rows, shape (r, m), for which W @ rows depends on nothing but their span.

    Where eigenvalues are equal, a processor or a library of its own takes other eigenvectors.  What is measured must
    be the same everywhere: integers that one machine drew are read on others.  So the rows become those that
    Gram-Schmidt makes of some fixed vectors, projected on the span.  Shape (r, r).
    """
    Q, R = scipy.linalg.qr(directions @ _scattered(*directions.shape).T, check_finite=False)
    return np.asarray((Q * np.where(np.diagonal(R) < 0.0, -1.0, 1.0)).T)


def _scattered(rows: int, columns: int) -> Array:
    """Return numbers in [-1, 1) without any order, the same for ever: SplitMix64 of 1, 2, 3, ..., bit by bit."""
    bits = np.arange(1, rows * columns + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits = (bits ^ (bits >> np.uint64(shift))) * np.uint64(factor)
    return ((bits ^ (bits >> np.uint64(31))) / 2.0**63 - 1.0).reshape(rows, columns)
