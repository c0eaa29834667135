"""Cosine basis, residual coordinates and lifts of residual spaces.

With T_i = [pi_i, N_i] along every attribute and U for the pieces that tuned complements pass down,
M = (T_1 (x) ... (x) T_k) U is one invertible change of coordinates, and this module applies M or
its inverse from either side:

    pieces     q M         a query -> its coefficients on every residual space inside its attributes
    tables     M y         estimates of all those spaces -> the table
    rows       s M^-1      strategy rows on residual coordinates -> rows on cells
    classes    M^-1 x      a table -> its residual coordinates

A table of pieces has the shape of the query: index 0 along an axis means that the attribute is not
in the space, index k > 0 is its residual coordinate k.  T_i^-1 = [1^T; L_i] with L_i = N_i^T (I -
pi_i 1^T), because the second term removes N_i^T pi_i, and 1^T N_i = 0.  U^-1 = 2 I - U, because
pieces passed down to an attribute are not passed on.  A lift is M^-1 restricted to the spaces that
are measured together; for one space it is the Kronecker product of the L_i.

Source: QuerySmasher, section 6.2 (equation 3), where the pi_i are uniform and U = I.

Splits of queries into residual spaces: centers and complements.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from engine._arrays import Array
from engine.residuals.operators import CosineMatrix, is_wide

Space = tuple[str, ...]
Axes = tuple[int, ...]
# attributes with the same role occur in the same way in the workload
Role = int


def digest(vector: Array | None) -> bytes | None:
    """Return a hashable identity of a center vector, shape (n,); None for uniform."""
    return None if vector is None else hashlib.sha256(vector.tobytes()).digest()


def swap_pair(values: Array, m: int, k: int) -> Array:
    """Return values by residual coordinates of a pair for the pair in reverse order.

    Shape (m k, ...).
    """
    return np.swapaxes(values.reshape(m, k, -1), 0, 1).reshape(values.shape)


@dataclass(frozen=True, kw_only=True, eq=False)
class Complement:
    """Matrices that pass a pair's residual coordinates down to its attributes and the total.

    Coordinates c become c D_i and c D_j on the attributes and c D_0 on the total.

    Shapes (residual coordinates of the pair, n_i - 1), (..., n_j - 1) and (...,); see
    `engine.residuals.tuning.complements`.
    """

    by_axis: tuple[Array, Array]
    by_total: Array

    @cached_property
    def key(self) -> bytes:
        """Hashable identity."""
        return hashlib.sha256(
            b"".join(a.tobytes() for a in (*self.by_axis, self.by_total))
        ).digest()

    def turned(self) -> Complement:
        """Return the complement of the pair in reverse order."""
        m, k = self.by_axis[0].shape[1], self.by_axis[1].shape[1]
        first, second, total = (swap_pair(D, m, k) for D in (*self.by_axis, self.by_total))
        return Complement(by_axis=(second, first), by_total=total)


@dataclass(frozen=True, kw_only=True, eq=False)
class Split:
    """Split of queries over residual spaces; without entries, the published split.

    Attributes
    ----------
    centers : vector with sum 1 for every attribute with a non-uniform center.
    complements : tuned complement of every pair, attributes in schema order, that is not split as a
        product.
    unions : the attributes of one table -> the residual spaces that one strategy measures together.
    stopped : the limits, of "memory", "time" and "work", that ended or prevented the search for the
        split.

    >>> Split(centers={"a": np.array([1.0, 0.0])}).centers_of(("b", "a"))
    [None, array([1., 0.])]
    """

    centers: Mapping[str, Array] = field(default_factory=dict)
    complements: Mapping[Space, Complement] = field(default_factory=dict)
    unions: Mapping[Space, tuple[Space, ...]] = field(default_factory=dict)
    stopped: frozenset[str] = frozenset()

    def towards_uniform(self, share: float) -> Split:
        """Return the interpolation between the uniform split (share 0) and this one (share 1).

        >>> Split(centers={"a": np.array([1.0, 0.0])}).towards_uniform(0.5).centers["a"]
        array([0.75, 0.25])
        """
        complements = {
            key: Complement(
                by_axis=(share * c.by_axis[0], share * c.by_axis[1]), by_total=share * c.by_total
            )
            for key, c in {c.key: c for c in self.complements.values()}.items()
        }
        return replace(
            self,
            centers={
                name: share * pi + (1.0 - share) / len(pi) for name, pi in self.centers.items()
            },
            complements={pair: complements[c.key] for pair, c in self.complements.items()},
        )

    def centers_of(self, names: Sequence[str]) -> list[Array | None]:
        """Return the centers of some attributes, shape (n_i,) each, None for uniform ones."""
        return [self.centers.get(name) for name in names]

    def complement(self, names: Space) -> Complement | None:
        """Return the complement of a pair in the order of ``names``, or None."""
        if names in self.complements or names[::-1] not in self.complements:
            return self.complements.get(names)
        return self.complements[names[::-1]].turned()

    def inside(self, names: Space) -> dict[Axes, Complement]:
        """Return the complements of pairs inside ``names``, in schema order, by positions."""
        at = {name: i for i, name in enumerate(names)}
        return {(at[a], at[b]): c for (a, b), c in self.complements.items() if a in at and b in at}


UNIFORM = Split()


@lru_cache(maxsize=512)
def basis(n: int) -> Array:
    """Return the cosine basis of the vectors with sum 0, shape (n, n - 1), orthonormal columns.

    Column k is even or odd under reversal as k is even or odd (k from 1).

    >>> basis(2).round(3)
    array([[ 0.707],
           [-0.707]])
    """
    k, cell = np.arange(1, n)[None, :], np.arange(n)[:, None]
    out: Array = np.sqrt(2.0 / n) * np.cos(np.pi * (cell + 0.5) * k / n)
    out.flags.writeable = False  # all callers share the cached array
    return out


def center(n: int, weights: Array | None) -> Array:
    """Return the center vector, uniform for None. Shape (n,)."""
    return np.full(n, 1.0 / n) if weights is None else weights


def contract(tensor: Array, matrices: Sequence[Array | None], first: int = 0) -> Array:
    """Return a tensor with its axes from ``first`` on multiplied by one matrix each.

    Matrices have shape (n_i, m_i), or (n_i,) to sum an axis out; None leaves its axis alone.

    >>> contract(np.ones((2, 3, 4)), [np.ones((3, 5)), None], first=1).shape
    (2, 5, 4)
    """
    for matrix in reversed(matrices):
        # always contract the last axis and move the result to the front: then the axis before is
        # last, and after all contractions the axes are in order; the last axis is contiguous, so
        # the first product needs no copy
        if matrix is not None:
            # np.tensordot takes five times as long for small tensors
            *before, n = tensor.shape
            tensor = (tensor.reshape((math.prod(before), n)) @ matrix).reshape(
                (*before, *matrix.shape[1:])
            )
        if matrix is None or matrix.ndim == 2:
            last = tensor.ndim - 1
            tensor = tensor.transpose((*range(first), last, *range(first, last)))
    # one memory layout for all matrices, so that sums over the result have the same last digit for
    # all callers
    return np.asarray(tensor, order="C")


def group_axes(tensor: Array, sets: Sequence[Axes], first: int = 0) -> Array:
    """Return a tensor with one axis for each set of its axes from ``first`` on.

    Every axis is in one set.

    From shape (n_1, ..., n_k) to (product of n over the first set, ...).

    >>> group_axes(np.ones((2, 3, 4)), [(2, 0), (1,)]).shape
    (8, 3)
    """
    order = [*range(first), *(first + a for axes in sets for a in axes)]
    joined = [math.prod(tensor.shape[first + a] for a in axes) for axes in sets]
    return tensor.transpose(order).reshape((*tensor.shape[:first], *joined))


def ungroup_axes(
    tensor: Array, sets: Sequence[Axes], sizes: Sequence[int], first: int = 0
) -> Array:
    """Return the reverse of `group_axes`, shape (..., n_1, ..., n_k), ``sizes`` being n_1 to n_k.

    >>> ungroup_axes(np.ones((8, 3)), [(2, 0), (1,)], (2, 3, 4)).shape
    (2, 3, 4)
    """
    order = [a for axes in sets for a in axes]
    shaped = tensor.reshape((*tensor.shape[:first], *(sizes[a] for a in order)))
    return shaped.transpose((*range(first), *(first + order.index(a) for a in range(len(order)))))


def _by_rows(rows: Array, shape: Sequence[int], matrices: Sequence[Array | None]) -> Array:
    """Return rows (A_1 (x) ... (x) A_k), where every row is a flattened table of the shape."""
    return _flat(contract(rows.reshape(len(rows), *shape), matrices, 1))


def _flat(tensor: Array) -> Array:
    """Return tables, shape (k, n_1, ..., n_d), as rows; reshape(k, -1) fails for k = 0."""
    return tensor.reshape(len(tensor), math.prod(tensor.shape[1:]))


def part_of(count: int, space: Axes) -> tuple[Any, ...]:
    """Return the index of a space within tables of pieces, shape (k, n_1, ..., n_count)."""
    return (slice(None), *(slice(1, None) if axis in space else 0 for axis in range(count)))


def positions(sizes: Sequence[int], spaces: Sequence[Axes]) -> npt.NDArray[np.int64]:
    """Return the positions of spaces' residual coordinates in a flat table of pieces.

    Spaces follow one another; shape (coordinates of all spaces,).

    >>> positions((2, 3), [(0,), (0, 1)])
    array([3, 4, 5])
    """
    index = np.arange(math.prod(sizes)).reshape(1, *sizes)
    return np.concatenate([index[part_of(len(sizes), space)].ravel() for space in spaces])


def _pass_down(tensor: Array, complements: Mapping[Axes, Complement], sign: float) -> None:
    """Multiply tables of pieces by U (sign 1) or its inverse (sign -1) from the right, in place.

    Tables have shape (k, n_1, ..., n_d).

    A pair's piece is passed to its attributes and to the total.
    """
    for pair, complement in complements.items():
        passing = sign * _flat(tensor[part_of(tensor.ndim - 1, pair)])
        for axis, D in zip(pair, complement.by_axis, strict=True):
            tensor[part_of(tensor.ndim - 1, (axis,))] += passing @ D
        tensor[part_of(tensor.ndim - 1, ())] += passing @ complement.by_total


def _pass_up(tensor: Array, complements: Mapping[Axes, Complement], sign: float) -> None:
    """Multiply tables of coordinates by U from the left; the transpose of `_pass_down`."""
    for pair, complement in complements.items():
        passed = np.outer(tensor[part_of(tensor.ndim - 1, ())], complement.by_total)
        for axis, D in zip(pair, complement.by_axis, strict=True):
            passed += tensor[part_of(tensor.ndim - 1, (axis,))] @ D.T
        at = part_of(tensor.ndim - 1, pair)
        tensor[at] += sign * passed.reshape(tensor[at].shape)


def _columns(sizes: Sequence[int], centers: Sequence[Array | None]) -> list[Array]:
    """Return T_i = [pi_i, N_i] of every attribute; an operator for a wide one with uniform center."""
    return [
        (
            cast(Array, CosineMatrix(cells=n, total=True))
            if pi is None and is_wide(n)
            else np.column_stack([center(n, pi), basis(n)])
        )
        for n, pi in zip(sizes, centers, strict=True)
    ]


def pieces(
    rows: Array,
    sizes: Sequence[int],
    centers: Sequence[Array | None],
    complements: Mapping[Axes, Complement],
) -> Array:
    """Return all pieces q M of query rows, shape (k, cells) to (k, cells).

    >>> pieces(np.array([[1.0, 0.0]]), [2], [None], {}).round(3)
    array([[0.5  , 0.707]])
    """
    tensor = _by_rows(rows, sizes, _columns(sizes, centers)).reshape(len(rows), *sizes)
    _pass_down(tensor, complements, 1.0)
    return _flat(tensor)


def tables(
    coordinates: Array,
    sizes: Sequence[int],
    centers: Sequence[Array | None],
    complements: Mapping[Axes, Complement],
) -> Array:
    """Return tables M y from the coordinates of all spaces inside, shape (k, cells) to (k, cells).

    >>> tables(np.array([[10.0, 0.0]]), [2], [None], {})
    array([[5., 5.]])
    """
    tensor = coordinates.reshape(len(coordinates), *sizes).copy()
    _pass_up(tensor, complements, 1.0)
    return _by_rows(tensor, sizes, [T.T for T in _columns(sizes, centers)])


def residual_rows(
    rows: Array,
    sizes: Sequence[int],
    inside: Axes | None = None,
    centers: Sequence[Array | None] | None = None,
    complement: Complement | None = None,
) -> Array:
    """Return the pieces of query rows on one space.

    Shape (k, cells) to (k, product of (n - 1) over inside).

    Parameters
    ----------
    rows : query rows.
    sizes : sizes of the rows' attributes.
    inside : positions of the space's attributes; None for all attributes.
    centers : centers of shape (n_i,), None for uniform.
    complement : complement of the two attributes of the rows.

    >>> residual_rows(np.eye(2), [2]).round(3)
    array([[ 0.707],
           [-0.707]])
    """
    centers_or_uniform = centers if centers is not None else [None] * len(sizes)
    axes_inside = range(len(sizes)) if inside is None else inside
    if (
        complement is not None and len(axes_inside) < 2
    ):  # the piece on the pair itself does not change
        return pieces(rows, sizes, centers_or_uniform, {(0, 1): complement})[
            :, positions(sizes, [tuple(axes_inside)])
        ]
    # for a single space, attributes outside need one vector instead of a matrix
    return _by_rows(
        rows,
        sizes,
        [
            basis(n) if a in axes_inside else center(n, centers_or_uniform[a])
            for a, n in enumerate(sizes)
        ],
    )


class Lift:
    """L = L_1 (x) ... (x) L_k with L_i = N_i^T (I - pi_i 1^T), applied attribute by attribute.

    ``centers`` contains the pi_i, None for uniform, where L_i = N_i^T.

    >>> Lift((2, 3)).rows(np.eye(2)).shape
    (2, 6)
    """

    # whether the residual coordinates are one table, so that reversals and swaps permute them
    one_space = True

    def __init__(
        self, sizes: tuple[int, ...], centers: Sequence[Array | None] | None = None
    ) -> None:
        self.sizes, self.cells = sizes, math.prod(sizes)
        self.dimension = math.prod(n - 1 for n in sizes)
        centers_or_uniform = centers if centers is not None else [None] * len(sizes)
        self.matrices = [
            # N^T 1 = 0, so uniform centers subtract zero; skipping the subtraction keeps reversals
            # exact
            basis(n).T if pi is None else basis(n).T - (basis(n).T @ pi)[:, None]
            for n, pi in zip(sizes, centers_or_uniform, strict=True)
        ]

    @property
    def coordinates(self) -> tuple[int, ...]:
        """Number of residual coordinates along every attribute."""
        return tuple(len(m) for m in self.matrices)

    def degrees(self, axis: int) -> npt.NDArray[np.int64]:
        """Return the frequency of every residual coordinate's cosine.

        Odd ones change sign on reversal. Shape (n - 1,).
        """
        return np.arange(1, self.sizes[axis])

    def rows(self, residual_rows: Array) -> Array:
        """Return residual_rows @ L, shape (k, residual coordinates) to (k, cells)."""
        return _by_rows(residual_rows, self.coordinates, self.matrices)

    def table_coordinates(self, cell_rows: Array) -> Array:
        """Return cell_rows @ L^T, the residual coordinates of tables.

        Shape (k, cells) to (k, residual coordinates).
        """
        return _by_rows(cell_rows, self.sizes, [m.T for m in self.matrices])

    def traced(self, by_lift: Array, axis: int) -> Array:
        """Contract a derivative by L to one by L_axis, summed over its cells.

        Shape (class sizes..., sizes...) to (n_axis - 1,): a center changes all columns of L_axis by
        the same vector.
        """
        count = len(self.sizes)
        # derivative of a Kronecker product by one factor: the trace with each of the other factors
        others = [None if a == axis else L.ravel() for a, L in enumerate(self.matrices)]
        by_axis = contract(group_axes(by_lift, [(a, count + a) for a in range(count)]), others)
        return np.asarray(by_axis.reshape(self.matrices[axis].shape).sum(axis=1))


class SplitLift(Lift):
    """Lift of residual spaces that are measured together, on the table of all their attributes.

    ``spaces`` has the positions of every space's attributes, ``complements`` the tuned complements
    by positions of their pair.  One space on all attributes is a single residual space with
    complements.

    >>> SplitLift((2, 3), None, ((), (0,), (0, 1))).rows(np.eye(4)).shape
    (4, 6)
    """

    def __init__(
        self,
        sizes: tuple[int, ...],
        centers: Sequence[Array | None] | None,
        spaces: Sequence[Axes],
        complements: Mapping[Axes, Complement] | None = None,
    ) -> None:
        super().__init__(sizes, centers)
        self.kept = positions(sizes, spaces)
        self.dimension, self.complements = len(self.kept), complements or {}
        self.one_space = len(spaces) == 1 and len(spaces[0]) == len(sizes)
        # T_i^-1: one more coordinate along every axis, the sum over its cells
        self.matrices = [np.concatenate([np.ones((1, m.shape[1])), m]) for m in self.matrices]

    @property
    def coordinates(self) -> tuple[int, ...]:
        return tuple(n - 1 for n in self.sizes)  # of the space on all attributes

    def rows(self, residual_rows: Array) -> Array:
        flat = np.zeros((len(residual_rows), self.cells))
        flat[:, self.kept] = residual_rows
        tensor = flat.reshape(len(flat), *self.sizes)
        _pass_down(tensor, self.complements, -1.0)
        return _by_rows(tensor, self.sizes, self.matrices)

    def table_coordinates(self, cell_rows: Array) -> Array:
        tensor = super().table_coordinates(cell_rows).reshape(len(cell_rows), *self.sizes)
        _pass_up(tensor, self.complements, -1.0)
        return _flat(tensor)[:, self.kept]


class FullTable(Lift):
    """Lift of a problem on the cells of a table in the full cosine basis, constants included.

    This is an orthogonal change of coordinates in which reversals and swaps are signed
    permutations.

    >>> FullTable((2, 3)).rows(np.eye(6)).shape
    (6, 6)
    """

    def __init__(self, sizes: tuple[int, ...]) -> None:
        self.sizes, self.cells, self.dimension = sizes, math.prod(sizes), math.prod(sizes)
        self.matrices = [np.concatenate([np.full((1, n), n**-0.5), basis(n).T]) for n in sizes]

    def degrees(self, axis: int) -> npt.NDArray[np.int64]:
        return np.arange(self.sizes[axis])


class FullDomain(Lift):
    """Identity lift, for a problem on the cells without residual spaces."""

    one_space = False

    def __init__(self, cells: int) -> None:
        self.sizes, self.cells, self.dimension = (cells,), cells, cells
        self.matrices = [np.eye(cells)]

    def rows(self, residual_rows: Array) -> Array:
        return residual_rows

    def table_coordinates(self, cell_rows: Array) -> Array:
        return cell_rows
