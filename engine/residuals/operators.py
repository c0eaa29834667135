"""Matrices of wide attributes as operators: cosine basis, reflected rows, sums in chunks.

An operator is a matrix whose products are computed by a formula; most operators do not store their
entries.  An operator has the shape, the transpose and the product ``tensor @ matrix`` of an array,
so that `engine.residuals.contract` accepts it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Self, cast

import numpy as np
import numpy.typing as npt
from numpy.lib.mixins import NDArrayOperatorsMixin

from engine._arrays import Array
from engine.errors import LimitExceeded

# attributes with at least this number of cells are wide: operators replace their matrices
MIN_WIDE_CELLS = 1_000
# largest size in bytes of an array to which an operator is converted
MAX_DENSE_BYTES = 1e9
# a matrix with at most this number of rows is one chunk of `ChunkedMatrix`
MIN_CHUNK_ROWS = 64


def is_wide(cells: int) -> bool:
    """Return whether operators replace the matrices of an attribute with this number of cells."""
    return cells >= MIN_WIDE_CELLS


class Operator(NDArrayOperatorsMixin, ABC):
    """Matrix whose products are computed by a method of its class.

    The method computes ``array @ matrix``, and ``matrix @ array`` for arrays of at most two axes.
    Other arithmetic and indexing convert the matrix to an array (see `dense`).
    """

    ndim = 2

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""

    @abstractmethod
    def transpose(self) -> Operator:
        """Return the transposed matrix."""

    @abstractmethod
    def _apply(self, tensor: Array) -> Array:
        """Return ``tensor @ matrix``, the product along the last axis of the tensor."""

    @property
    def T(self) -> Self:  # noqa: N802 - the name that arrays have
        """The transposed matrix."""
        return cast(Self, self.transpose())

    @property
    def nbytes(self) -> int:
        """Size of the matrix as an array, in bytes."""
        return 8 * math.prod(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> Any:
        return self.dense()[index]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.asarray(self.dense(), dtype=dtype)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        # products with arrays do not compute the entries; all other functions use the dense matrix
        if ufunc is np.matmul and method == "__call__" and not options:
            left, right = inputs
            if right is self and isinstance(left, np.ndarray):
                if left.shape[-1] != self.shape[0]:
                    raise ValueError(
                        f"An array of shape {left.shape} cannot be multiplied by a matrix of shape"
                        f" {self.shape}. Its last axis must have length {self.shape[0]}."
                    )
                return self._apply(left)
            if left is self and isinstance(right, np.ndarray) and right.ndim <= 2:
                return (right.T @ self.T).T
        return getattr(ufunc, method)(
            *(np.asarray(x) if isinstance(x, Operator) else x for x in inputs), **options
        )

    def dense(self) -> Array:
        """Return the matrix as an array.

        Raises
        ------
        LimitExceeded : the matrix has more than `MAX_DENSE_BYTES`.
        """
        if self.nbytes > MAX_DENSE_BYTES:
            raise LimitExceeded(
                f"A matrix of {self.shape[0]:,} x {self.shape[1]:,} numbers needs"
                f" {self.nbytes / 1e9:.1f} GB, more than {MAX_DENSE_BYTES / 1e9:g} GB. Merge"
                " cells of attributes with many cells."
            )
        return self._apply(np.eye(len(self)))


class PrecisionMatrix(Operator):
    """Symmetric precision matrix of a table on one wide attribute, without its total."""

    @property
    @abstractmethod
    def diagonal(self) -> Array:
        """Diagonal of the matrix, shape (n,)."""

    @cached_property
    def largest_eigenvalue(self) -> float:
        """Upper bound that exceeds the largest eigenvalue by at most 1%."""
        import scipy.sparse.linalg

        matrix = scipy.sparse.linalg.LinearOperator(
            self.shape, matvec=lambda x: np.ravel(x) @ self, dtype=float
        )
        # a fixed start vector makes the result reproducible
        start = np.random.default_rng(0).random(len(self))
        (value,) = scipy.sparse.linalg.eigsh(
            matrix, k=1, which="LA", v0=start, tol=5e-3, return_eigenvectors=False
        )
        return 1.005 * float(value)  # ``tol`` is the relative error of the value

    def transpose(self) -> PrecisionMatrix:
        return self


@dataclass(frozen=True, kw_only=True)
class CenteredIdentity(PrecisionMatrix):
    """``scale`` times the projection on the vectors with sum 0, shape (cells, cells)."""

    cells: int
    scale: float

    @property
    def shape(self) -> tuple[int, int]:
        return self.cells, self.cells

    @property
    def diagonal(self) -> Array:
        return np.full(self.cells, self.scale * (1.0 - 1.0 / self.cells))

    @property
    def largest_eigenvalue(self) -> float:
        return self.scale

    def _apply(self, tensor: Array) -> Array:
        return np.asarray(self.scale * (tensor - tensor.mean(axis=-1, keepdims=True)))


class EntryRows(Operator):
    """Strategy rows on one wide attribute that are given by a formula with a few numbers.

    Attributes
    ----------
    form : name of the formula in measurement files.
    """

    form: ClassVar[str]

    @property
    @abstractmethod
    def entries(self) -> Array:
        """The numbers in the formula of the rows."""

    @abstractmethod
    def with_entries(self, entries: npt.NDArray[Any]) -> Self:
        """Return rows with the same formula and other numbers, which may be Python integers."""

    @property
    def layout(self) -> Mapping[str, npt.NDArray[np.int64]]:
        """Named arrays that determine the cells to which each of the ``entries`` applies.

        The mapping is empty if the formula needs no arrays.
        """
        return {}


@dataclass(frozen=True, kw_only=True)
class ScaledIdentity(EntryRows):
    """``scale`` times the identity, shape (order, order)."""

    form: ClassVar[str] = "identity"

    order: int
    scale: float = 1.0

    @property
    def shape(self) -> tuple[int, int]:
        return self.order, self.order

    @property
    def entries(self) -> Array:
        """The number on the diagonal, shape (1,)."""
        return np.array([self.scale])

    def with_entries(self, entries: npt.NDArray[Any]) -> ScaledIdentity:
        return replace(self, scale=entries.item())

    def transpose(self) -> ScaledIdentity:
        return self

    def _apply(self, tensor: Array) -> Array:
        return tensor * self.scale


@dataclass(frozen=True, kw_only=True)
class CosineMatrix(Operator):
    """The cosine basis N of the vectors with sum 0, shape (n, n - 1), as an operator.

    If ``total``, the matrix is [pi, N], shape (n, n), with the uniform center pi as first column.
    If ``transposed``, it is the transpose of this matrix.  A product is a discrete cosine transform
    and takes O(n log n) time per vector.

    >>> (np.eye(2) @ CosineMatrix(cells=2)).round(3)
    array([[ 0.707],
           [-0.707]])
    """

    cells: int
    total: bool = False
    transposed: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        columns = self.cells if self.total else self.cells - 1
        return (columns, self.cells) if self.transposed else (self.cells, columns)

    def transpose(self) -> CosineMatrix:
        return replace(self, transposed=not self.transposed)

    def _apply(self, tensor: Array) -> Array:
        import scipy.fft

        # The first column of the orthonormal transform has entries 1 / sqrt(n), but that of this
        # matrix, the uniform center, has entries 1 / n.  So coefficient 0 is divided by sqrt(n).
        if not self.transposed:
            product = scipy.fft.dct(tensor, norm="ortho")
            if not self.total:
                return np.asarray(product[..., 1:])
            product[..., 0] /= np.sqrt(self.cells)
            return np.asarray(product)
        padded = np.zeros((*tensor.shape[:-1], self.cells))
        padded[..., self.cells - tensor.shape[-1] :] = tensor
        padded[..., 0] /= np.sqrt(self.cells)
        return np.asarray(scipy.fft.idct(padded, norm="ortho", overwrite_x=True))


@dataclass(frozen=True, kw_only=True)
class ReflectedRows(EntryRows):
    """n - 1 rows of equal norm on n cells, or the transpose of these rows if ``transposed``.

    Row k has the entry ``one`` + ``others`` on cell k, ``last`` on the last cell, and ``others`` on
    all other cells.  These three numbers may be integers.  The rows of `unit` are orthogonal and
    span the vectors with sum 0: up to scale, they are rows of the Householder reflection that maps
    the constant vector to the last unit vector.
    A product with a vector takes O(n) time.
    """

    form: ClassVar[str] = "reflection"

    cells: int
    one: Any
    others: Any
    last: Any
    transposed: bool = False

    @classmethod
    def unit(cls, cells: int) -> ReflectedRows:
        """Return the orthogonal rows whose columns have norm 1."""
        scale, root = (1.0 - 1.0 / cells) ** -0.5, cells**0.5
        return cls(cells=cells, one=scale, others=-scale / (cells - root), last=scale / root)

    @property
    def entries(self) -> Array:
        """The three numbers that determine the rows, shape (3,)."""
        return np.array([self.one, self.others, self.last])

    def with_entries(self, entries: npt.NDArray[Any]) -> ReflectedRows:
        one, others, last = entries.tolist()
        return replace(self, one=one, others=others, last=last)

    @property
    def shape(self) -> tuple[int, int]:
        n = self.cells
        return (n, n - 1) if self.transposed else (n - 1, n)

    def transpose(self) -> ReflectedRows:
        return replace(self, transposed=not self.transposed)

    def column_costs(self, power: int) -> Array:
        """Return for every cell the sum of |entry|^power over the rows, shape (n,)."""
        n = self.cells
        costs = np.full(
            n, abs(self.one + self.others) ** power + (n - 2) * abs(self.others) ** power
        )
        costs[-1] = (n - 1) * abs(self.last) ** power
        return costs

    def products(self) -> Array:
        """Return two inner products of different columns, shape (2,).

        The first is the inner product of any two columns except the last.  The second is the inner
        product of any other column with the last column.
        """
        equal_columns = 2.0 * self.one * self.others + (self.cells - 1) * self.others**2
        return np.array([equal_columns, self.last * (self.one + (self.cells - 1) * self.others)])

    def _apply(self, tensor: Array) -> Array:
        if tensor.dtype != object:  # sums of large integers could overflow
            tensor = np.asarray(tensor, float)
        if self.transposed:  # the product tensor @ B^T maps tables to answers
            total = tensor[..., :-1].sum(axis=-1, keepdims=True)
            product = tensor[..., :-1] * self.one
            product += total * self.others + tensor[..., -1:] * self.last
            return np.asarray(product)
        total = tensor.sum(axis=-1, keepdims=True)
        product = np.empty((*tensor.shape[:-1], self.cells), dtype=tensor.dtype)
        np.multiply(tensor, self.one, out=product[..., :-1])
        product[..., :-1] += total * self.others
        product[..., -1:] = total * self.last
        return product


@dataclass(frozen=True, kw_only=True)
class Chain(Operator):
    """The matrix ``scale * first @ second``, applied as two products without being formed."""

    first: Operator
    second: Operator
    scale: float = 1.0

    @property
    def shape(self) -> tuple[int, int]:
        return self.first.shape[0], self.second.shape[1]

    def transpose(self) -> Chain:
        return Chain(first=self.second.T, second=self.first.T, scale=self.scale)

    def _apply(self, tensor: Array) -> Array:
        product = (tensor @ self.first) @ self.second
        product *= self.scale
        return product


@dataclass(frozen=True, kw_only=True, eq=False)
class ChunkedMatrix(Operator):
    """Matrix whose products are summed in chunks, which lowers the error bound for many rows.

    An entry of ``tensor @ matrix`` is a sum of n terms, one per row of the matrix.  The rows are
    divided into chunks of `chunk_rows` rows.  A library for matrix products adds the terms of one
    chunk, in any order, and the sums of the chunks are added one after the other.

    Attributes
    ----------
    matrix : array of shape (n, m).

    Notes
    -----
    The error of an entry is at most K u / (1 - K u) times the sum of the absolute values of its
    terms, where u is the unit roundoff and K is `summands`.  Proof: a term has one rounding as a
    product, at most c - 1 roundings in the sum of a chunk with c terms (any order of the additions,
    with or without fused multiply-add), and at most q - 1 roundings in the sum of the q chunks.
    The computed entry is therefore the sum of the terms, each multiplied by at most
    c + q - 1 factors 1 + d with |d| <= u, and the product of K such factors differs from 1 by at
    most K u / (1 - K u).

    Source: Higham 2002, Accuracy and Stability of Numerical Algorithms, lemma 3.1 (products of
    rounding factors) and section 3.1 (any order of summation, and sums of pieces).
    """

    matrix: Array

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self.matrix.shape
        return rows, columns

    @staticmethod
    def chunk_rows(rows: int) -> int:
        """Return the number of rows of a chunk of a matrix with this number of rows.

        For many rows it is the square root of their number, which nearly minimises `summands`.
        """
        return max(MIN_CHUNK_ROWS, math.isqrt(rows))

    @staticmethod
    def summands(rows: int) -> int:
        """Return K in the bound on the rounding errors, for a matrix with this number of rows."""
        chunk_rows = ChunkedMatrix.chunk_rows(rows)
        return min(rows, chunk_rows) + max(1, -(-rows // chunk_rows)) - 1

    def transpose(self) -> ChunkedMatrix:
        return ChunkedMatrix(matrix=self.matrix.T)

    def _apply(self, tensor: Array) -> Array:
        rows = len(self.matrix)
        step = self.chunk_rows(rows)
        out: Array = tensor[..., :step] @ self.matrix[:step]
        for start in range(step, rows, step):
            out += tensor[..., start : start + step] @ self.matrix[start : start + step]
        return out
