"""Marginals on one attribute of any width: closed form and fast cosine transform.

With the uniform center the marginal's piece on a residual space has the Gram ``scale`` times the
identity in class coordinates, and every cell the same cost: the optimal strategy is the projection
with equal noise, B = N^T / (1 - 1/n)^(1/2), for the cosine basis N of `engine.residuals.basis`.
Nothing of size n x n is formed; N is applied by a discrete cosine transform in O(n log n).

Source: QuerySmasher, section 6.3; Makhoul 1980 for the transform.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from engine._arrays import Array
from engine.residuals.basis import basis


@dataclass(frozen=True, kw_only=True)
class CosineMatrix:
    """The cosine basis N times ``scale``, shape (n, n - 1), or its transpose, as an operator.

    It has the shape, transpose and product ``table @ matrix`` of an array, so that
    `engine.residuals.contract` accepts it.

    >>> (np.eye(2) @ CosineMatrix(cells=2)).round(3)
    array([[ 0.707],
           [-0.707]])
    """

    cells: int
    scale: float = 1.0
    transposed: bool = False

    # numpy passes ``array @ self`` to `__rmatmul__`
    __array_ufunc__ = None
    ndim = 2

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        n = self.cells
        return (n - 1, n) if self.transposed else (n, n - 1)

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def T(self) -> CosineMatrix:  # noqa: N802 - the name that arrays have
        """The transposed matrix."""
        return replace(self, transposed=not self.transposed)

    def __mul__(self, scale: float) -> CosineMatrix:
        return replace(self, scale=self.scale * scale)

    __rmul__ = __mul__

    def __rmatmul__(self, tensor: Array) -> Array:
        """Return the last axis of a tensor, shape (..., rows), times the matrix."""
        import scipy.fft

        if tensor.shape[-1] != self.shape[0]:
            raise ValueError(f"A tensor of shape {tensor.shape} has no product with {self.shape}.")
        if not self.transposed:
            return np.asarray(scipy.fft.dct(tensor, norm="ortho")[..., 1:] * self.scale)
        padded = np.zeros((*tensor.shape[:-1], self.cells))
        np.multiply(tensor, self.scale, out=padded[..., 1:])
        return np.asarray(scipy.fft.idct(padded, norm="ortho", overwrite_x=True))

    def dense(self) -> Array:
        """Return the matrix as an array; for tests."""
        N = self.scale * basis(self.cells)
        return N.T if self.transposed else N


@dataclass(frozen=True, kw_only=True)
class MarginalGram:
    """Gram of a marginal on a residual space with the uniform center, ``scale`` times identity.

    >>> MarginalGram(cells=4).value
    2.25
    """

    cells: int
    scale: float = 1.0

    def __post_init__(self) -> None:
        if self.cells < 2 or not 0.0 < self.scale < math.inf:
            raise ValueError(
                f"A marginal has {self.cells} cells and scale {self.scale}. Use at least 2 cells and a positive scale."
            )

    def __add__(self, other: MarginalGram) -> MarginalGram:
        if other.cells != self.cells:
            raise ValueError(f"Grams on {self.cells} and {other.cells} cells have no sum.")
        return replace(self, scale=self.scale + other.scale)

    def __mul__(self, scale: float) -> MarginalGram:
        return replace(self, scale=self.scale * scale)

    __rmul__ = __mul__

    @property
    def trace(self) -> float:
        """Trace of the Gram."""
        return self.scale * (self.cells - 1)

    @property
    def value(self) -> float:
        """Optimal total weighted variance at privacy cost 1, also its lower bound, in counts^2."""
        return self.trace * self.coordinate_variance

    @property
    def coordinate_variance(self) -> float:
        """Variance of every class coordinate at privacy cost 1, in counts^2."""
        return 1.0 - 1.0 / self.cells

    @property
    def cell_variance(self) -> float:
        """Variance of the piece of every cell at privacy cost 1, in counts^2."""
        return self.coordinate_variance**2

    @property
    def rows(self) -> CosineMatrix:
        """Strategy rows B, shape (n - 1, n), every column of norm 1."""
        return CosineMatrix(cells=self.cells, scale=self.coordinate_variance**-0.5, transposed=True)

    def dense(self) -> Array:
        """Return the Gram in class coordinates, shape (n - 1, n - 1); for tests."""
        return self.scale * np.eye(self.cells - 1)
