"""Cosine basis, residual coordinates, lifts, and splits of queries into residual spaces.

A residual space belongs to a set of attributes and holds the part of its table that no smaller
table determines.  A query on a table is split into a sum of components, one for each residual
space inside its attributes.  Every attribute has a center pi_i, a vector with sum 1.  A complement
replaces the product of two centers for a pair of attributes, and can be any linear map.  Centers
and complements determine the components.

Let N_i be the cosine basis of the vectors with sum 0, and T_i = [pi_i, N_i].  The matrix U moves
coefficients of pairs to smaller spaces by the complements; without complements it is the identity.
M = (T_1 (x) ... (x) T_k) U is an invertible change of coordinates.  This module multiplies by M or
by its inverse, from either side:

    residual_coefficients    q M       a query -> its coefficients on all residual spaces
    tables                   M y       estimates on all residual spaces -> the table
    Lift.rows                s M^-1    strategy rows in residual coordinates -> rows on cells
    Lift.table_coordinates   M^-1 x    a table -> its residual coordinates

Coefficients on all residual spaces are stored as an array of the shape of the query: index 0 along
an axis means that the attribute is not in the space, index k > 0 is its residual coordinate k.
The inverse of T_i is [1^T; L_i] with L_i = N_i^T (I - pi_i 1^T): L_i pi_i = 0, L_i N_i = I and
1^T N_i = 0.  The inverse of U is 2 I - U, because coefficients that U moves from a pair to an
attribute are not moved on to the total.  A lift consists of the rows of M^-1 for the residual
spaces that one strategy measures.  For one space without complements it is the Kronecker product
of the L_i.

Source: QuerySmasher, section 6.2 (equation 3), where the pi_i are uniform and U = I.
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
from engine.residuals.operators import CosineMatrix, ScaledIdentity, is_wide

Space = tuple[str, ...]
Axes = tuple[int, ...]
# index of an equivalence class of attributes (equal sizes, equal queries); the classes are computed
# by `engine.residuals.tuning.center_objective.roles_of`
Role = int


def digest(vector: Array | None) -> bytes | None:
    """Return a hash of a center, a vector of shape (n,); None for the uniform center (None)."""
    return None if vector is None else hashlib.sha256(np.ascontiguousarray(vector).data).digest()


def swap_pair(values: Array, m: int, k: int) -> Array:
    """Reorder the first axis of ``values`` from the attribute pair (a, b) to the pair (b, a).

    The first axis has m * k entries, one per pair of a coordinate of a (m coordinates) and a
    coordinate of b (k coordinates).  In ``values`` the coordinate of b varies fastest.  In the
    result the coordinate of a varies fastest.
    """
    return np.swapaxes(values.reshape(m, k, -1), 0, 1).reshape(values.shape)


@dataclass(frozen=True, kw_only=True, eq=False)
class Complement:
    """Matrices that split queries on a pair of attributes (i, j) into residual spaces.

    Let c be the coefficients of a query on the residual space of the pair.  Then c D_i is added to
    the coefficients of the query on the residual space of i, c D_j to those on the residual space
    of j, and c D_0 to the coefficient on the total.  `engine.residuals.tuning.complements` chooses
    the matrices.

    Attributes
    ----------
    by_axis : D_i and D_j, shapes (m, n_i - 1) and (m, n_j - 1) for m = (n_i - 1) (n_j - 1).
    by_total : D_0, shape (m,).
    """

    by_axis: tuple[Array, Array]
    by_total: Array

    @cached_property
    def key(self) -> bytes:
        """Hash of the matrices."""
        return hashlib.sha256(
            b"".join(a.tobytes() for a in (*self.by_axis, self.by_total))
        ).digest()

    def reversed_pair(self) -> Complement:
        """Return the same complement for the pair (j, i) in place of (i, j)."""
        m, k = self.by_axis[0].shape[1], self.by_axis[1].shape[1]
        first, second, total = (swap_pair(D, m, k) for D in (*self.by_axis, self.by_total))
        return Complement(by_axis=(second, first), by_total=total)


@dataclass(frozen=True, kw_only=True, eq=False)
class Split:
    """How queries are split over residual spaces, and which spaces are measured jointly.

    Attributes
    ----------
    centers : mapping from an attribute to its center, a vector with sum 1.  Attributes without an
        entry have the uniform center.
    complements : mapping from a pair of attributes, in schema order, to its complement (tuned
        split). Pairs without an entry are split by the product of their centers.
    unions : mapping from the attributes of a table to the residual spaces that one strategy on this
        table measures jointly.
    stopped : names of the limits ("memory", "time", "work") that ended or prevented the search for
        the split.

    >>> Split(centers={"a": np.array([1.0, 0.0])}).centers_of(("b", "a"))
    [None, array([1., 0.])]
    """

    centers: Mapping[str, Array] = field(default_factory=dict)
    complements: Mapping[Space, Complement] = field(default_factory=dict)
    unions: Mapping[Space, tuple[Space, ...]] = field(default_factory=dict)
    stopped: frozenset[str] = frozenset()

    def towards_uniform(self, share: float) -> Split:
        """Return a split between the uniform one and this one.

        Centers and complements are interpolated linearly: ``share`` 0 gives uniform centers and
        complements of zeros, ``share`` 1 gives this split.

        >>> Split(centers={"a": np.array([1.0, 0.0])}).towards_uniform(0.5).centers["a"]
        array([0.75, 0.25])
        """
        # pairs that share a complement (tuned split of their queries) also share the interpolated
        # complement
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
        """Return one center per attribute of ``names``: shape (n_i,), or None if it is uniform."""
        return [self.centers.get(name) for name in names]

    def complement(self, names: Space) -> Complement | None:
        """Return the complement (tuned split) of the pair ``names``; None if there is none.

        A complement stored for the reverse pair is converted to the order of ``names``.
        """
        if names in self.complements or names[::-1] not in self.complements:
            return self.complements.get(names)
        return self.complements[names[::-1]].reversed_pair()

    def complements_inside(self, names: Space) -> dict[Axes, Complement]:
        """Return the complements of all pairs of attributes in ``names``, a list in schema order.

        A key of the result holds the two positions of a pair in ``names``.
        """
        position = {name: i for i, name in enumerate(names)}
        return {
            (position[a], position[b]): complement
            for (a, b), complement in self.complements.items()
            if a in position and b in position
        }


UNIFORM = Split()


@lru_cache(maxsize=512)
def basis(n: int) -> Array:
    """Return the cosine basis of the vectors with sum 0, shape (n, n - 1), orthonormal columns.

    With columns numbered from 1, reversing the cells changes the sign of columns with odd numbers.

    >>> basis(2).round(3)
    array([[ 0.707],
           [-0.707]])
    """
    k, cell = np.arange(1, n)[None, :], np.arange(n)[:, None]
    columns: Array = np.sqrt(2.0 / n) * np.cos(np.pi * (cell + 0.5) * k / n)
    columns.flags.writeable = False  # all callers share the cached array
    return columns


def center(n: int, weights: Array | None) -> Array:
    """Return ``weights``, shape (n,), or the uniform center 1/n if ``weights`` is None."""
    return np.full(n, 1.0 / n) if weights is None else weights


# tensors with at least this number of entries are multiplied slab by slab, to save memory
MIN_SLAB_TENSOR = 1 << 18
# number of entries of a slab
SLAB_ENTRIES = 1 << 16


def contract(tensor: Array, matrices: Sequence[Array | None], first: int = 0) -> Array:
    """Multiply axis ``first + i`` of a tensor by ``matrices[i]``, for every i.

    A matrix of shape (n_i, m_i) turns an axis of length n_i into one of length m_i.  A vector of
    shape (n_i,) sums the axis with these weights and so removes it.  None leaves the axis
    unchanged.

    >>> contract(np.ones((2, 3, 4)), [np.ones((3, 5)), None], first=1).shape
    (2, 5, 4)
    """
    # a product with the identity would copy the tensor
    matrices = [
        None if isinstance(matrix, ScaledIdentity) and matrix.scale == 1.0 else matrix
        for matrix in matrices
    ]
    if tensor.size >= MIN_SLAB_TENSOR and len(matrices) > 1 and tensor.shape[first] > 1:
        tensor = _contract_later_axes(tensor, matrices[1:], first)
        # Only axis ``first`` still has to be multiplied.  Vectors may have removed later axes, so
        # the remaining axes are counted anew.
        later_axes = tensor.ndim - first - 1
        matrices = [matrices[0]] + [None] * later_axes
    for matrix in reversed(matrices):
        # Every step multiplies the last axis and moves the result to axis ``first``, so that the
        # axes are in their original order after the last step.  The first product needs no copy
        # if the tensor is in row-major order.
        if matrix is not None:
            # a matrix product, because np.tensordot takes five times as long for small tensors
            *before, n = tensor.shape
            # the variable is overwritten before the product: if reshape makes a copy, the original
            # tensor is freed
            tensor = tensor.reshape((math.prod(before), n))
            tensor = (tensor @ matrix).reshape((*before, *matrix.shape[1:]))
        if matrix is None or matrix.ndim == 2:
            last = tensor.ndim - 1
            tensor = tensor.transpose((*range(first), last, *range(first, last)))
    # sums over an array depend on its memory layout in their last digit, so the layout is fixed
    return np.asarray(tensor, order="C")


def _contract_later_axes(tensor: Array, matrices: Sequence[Array | None], first: int) -> Array:
    """Multiply the axes after ``first`` by ``matrices``, in slabs along axis ``first``."""
    length = tensor.shape[first]
    step = max(1, SLAB_ENTRIES * length // tensor.size)
    product: Array | None = None
    for start in range(0, length, step):
        index = (*[slice(None)] * first, slice(start, start + step))
        slab = contract(tensor[index], [None, *matrices], first)
        if product is None:
            product = np.empty((*slab.shape[:first], length, *slab.shape[first + 1 :]), slab.dtype)
        product[index] = slab
    assert product is not None  # there is at least one slab
    return product


def _multiply_in_place(tensor: Array, matrices: Sequence[Array]) -> None:
    """Multiply axis i + 1 of a contiguous tensor by the square matrix ``matrices[i]``, in place."""
    for axis, matrix in enumerate(matrices, start=1):
        n = tensor.shape[axis]
        # the products are computed in slabs of about SLAB_ENTRIES entries, to save memory
        view = tensor.reshape(math.prod(tensor.shape[:axis]), n, -1)
        columns = min(view.shape[2], max(1, SLAB_ENTRIES // n))
        rows = max(1, SLAB_ENTRIES // (n * columns))
        for row in range(0, view.shape[0], rows):
            for column in range(0, view.shape[2], columns):
                slab = view[row : row + rows, :, column : column + columns]
                slab[...] = np.moveaxis(np.moveaxis(slab, 1, -1) @ matrix, -1, 1)


def group_axes(tensor: Array, sets: Sequence[Axes], first: int = 0) -> Array:
    """Merge axes of a tensor: the axes of every set in ``sets`` become one axis.

    ``sets`` is a partition of the axes from ``first`` on, numbered from 0.  The length of a merged
    axis is the product of the lengths of its axes.  Axes before ``first`` do not change.

    >>> group_axes(np.ones((2, 3, 4)), [(2, 0), (1,)]).shape
    (8, 3)
    """
    order = [*range(first), *(first + a for axes in sets for a in axes)]
    lengths = [math.prod(tensor.shape[first + a] for a in axes) for axes in sets]
    return tensor.transpose(order).reshape((*tensor.shape[:first], *lengths))


def ungroup_axes(
    tensor: Array, sets: Sequence[Axes], sizes: Sequence[int], first: int = 0
) -> Array:
    """Undo `group_axes`: split every merged axis into the axes of its set, in their original order.

    ``sizes`` are the lengths of the original axes.

    >>> ungroup_axes(np.ones((8, 3)), [(2, 0), (1,)], (2, 3, 4)).shape
    (2, 3, 4)
    """
    order = [a for axes in sets for a in axes]
    split = tensor.reshape((*tensor.shape[:first], *(sizes[a] for a in order)))
    return split.transpose((*range(first), *(first + order.index(a) for a in range(len(order)))))


def _by_rows(rows: Array, shape: Sequence[int], matrices: Sequence[Array | None]) -> Array:
    """Return rows @ (A_1 (x) ... (x) A_d) for rows that are flattened tables of a shape."""
    return _flat(contract(rows.reshape(len(rows), *shape), matrices, 1))


def _flat(tensor: Array) -> Array:
    """Return tables, shape (k, n_1, ..., n_d), as rows, shape (k, cells)."""
    # reshape(k, -1) fails for k = 0
    return tensor.reshape(len(tensor), math.prod(tensor.shape[1:]))


def space_index(count: int, space: Axes) -> tuple[Any, ...]:
    """Return the index that selects the coefficients of one residual space.

    The indexed array has shape (k, n_1, ..., n_count) and holds coefficients on all residual
    spaces.  Along an axis, entry 0 belongs to spaces without this attribute, and all other entries
    to spaces with it.  ``space`` lists the axes of the selected space's attributes.
    """
    return (slice(None), *(slice(1, None) if axis in space else 0 for axis in range(count)))


def coordinate_positions(sizes: Sequence[int], spaces: Sequence[Axes]) -> npt.NDArray[np.int64]:
    """Return where a row of `residual_coefficients` holds the coefficients on some spaces.

    The result lists positions in the row: first all positions of the first space, then all of the
    second space, and so on.  ``spaces`` lists for every space the axes of its attributes.

    >>> coordinate_positions((2, 3), [(0,), (0, 1)])
    array([3, 4, 5])
    """
    index = np.arange(math.prod(sizes)).reshape(1, *sizes)
    return np.concatenate([index[space_index(len(sizes), space)].ravel() for space in spaces])


def _pass_down(tensor: Array, complements: Mapping[Axes, Complement], sign: float) -> None:
    """Add coefficients of queries on attribute pairs to those on single attributes and the total.

    For every pair with a complement, the coefficients of the pair are multiplied by the matrices of
    the complement.  The products are added to the coefficients of the two attributes and of the
    total, times ``sign``: 1 for this map, -1 for its inverse.  ``tensor`` holds the coefficients of
    k queries on all residual spaces, shape (k, n_1, ..., n_d), and is changed in place.
    """
    for pair, complement in complements.items():
        pair_coefficients = sign * _flat(tensor[space_index(tensor.ndim - 1, pair)])
        for axis, D in zip(pair, complement.by_axis, strict=True):
            tensor[space_index(tensor.ndim - 1, (axis,))] += pair_coefficients @ D
        tensor[space_index(tensor.ndim - 1, ())] += pair_coefficients @ complement.by_total


def _pass_up(tensor: Array, complements: Mapping[Axes, Complement], sign: float) -> None:
    """Apply the transpose of `_pass_down` to k tables in residual coordinates, in place.

    For every pair with a complement, the coordinates of the two attributes and of the total are
    multiplied by the transposed matrices of the complement.  The products are added to the
    coordinates of the pair, times ``sign``: 1 for this map, -1 for its inverse.  ``tensor`` has
    shape (k, n_1, ..., n_d).
    """
    for pair, complement in complements.items():
        change = np.outer(tensor[space_index(tensor.ndim - 1, ())], complement.by_total)
        for axis, D in zip(pair, complement.by_axis, strict=True):
            change += tensor[space_index(tensor.ndim - 1, (axis,))] @ D.T
        index = space_index(tensor.ndim - 1, pair)
        tensor[index] += sign * change.reshape(tensor[index].shape)


def _columns(sizes: Sequence[int], centers: Sequence[Array | None]) -> list[Array]:
    """Return for every attribute its center and cosine basis as one matrix [pi_i, N_i].

    Shape (n_i, n_i) each.  A wide attribute with the uniform center gets an operator that
    multiplies by this matrix without storing it.
    """
    matrices = []
    for n, pi in zip(sizes, centers, strict=True):
        if pi is None and is_wide(n):
            matrices.append(cast(Array, CosineMatrix(cells=n, total=True)))
        else:
            matrices.append(np.column_stack([center(n, pi), basis(n)]))
    return matrices


def residual_coefficients(
    rows: Array,
    sizes: Sequence[int],
    centers: Sequence[Array | None],
    complements: Mapping[Axes, Complement],
    overwrite: bool = False,
) -> Array:
    """Split k queries into their coefficients on the residual spaces of all attribute subsets.

    ``rows`` holds the queries, shape (k, cells).  A row of the result, shape (k, cells), is a
    flattened array of the shape ``sizes``: index 0 along an axis belongs to residual spaces without
    this attribute, other indices to spaces with it.

    Parameters
    ----------
    sizes : domain sizes of the attributes.
    centers : one center of shape (n_i,) per attribute, None for a uniform one.
    complements : positions (i, j) of two attributes -> the complement of this pair of attributes.
    overwrite : whether the array ``rows`` may be overwritten.

    >>> residual_coefficients(np.array([[1.0, 0.0]]), [2], [None], {}).round(3)
    array([[0.5  , 0.707]])
    """
    tensor = rows.reshape(len(rows), *sizes)
    if overwrite and tensor.size >= MIN_SLAB_TENSOR:
        _multiply_in_place(tensor, _columns(sizes, centers))
    else:
        tensor = contract(tensor, _columns(sizes, centers), 1)
    # complements (tuned splits of pairs) change the coefficients on single attributes and on the
    # total
    _pass_down(tensor, complements, 1.0)
    return _flat(tensor)


def tables(
    coordinates: Array,
    sizes: Sequence[int],
    centers: Sequence[Array | None],
    complements: Mapping[Axes, Complement],
    overwrite: bool = False,
) -> Array:
    """Return k tables, shape (k, cells), from their coordinates on all residual spaces.

    Parameters
    ----------
    coordinates : shape (k, cells), in the order of the result of `residual_coefficients`.
    sizes : domain sizes of the attributes.
    centers : one center of shape (n_i,) per attribute, None for a uniform one.
    complements : positions (i, j) of two attributes -> the complement of this pair of attributes.
    overwrite : whether the array ``coordinates`` may be overwritten.

    >>> tables(np.array([[10.0, 0.0]]), [2], [None], {})
    array([[5., 5.]])
    """
    tensor = coordinates.reshape(len(coordinates), *sizes)
    if not overwrite:
        tensor = tensor.copy()
    # the map is the transpose of `residual_coefficients`
    _pass_up(tensor, complements, 1.0)
    matrices = [matrix.T for matrix in _columns(sizes, centers)]
    if tensor.size < MIN_SLAB_TENSOR:
        return _by_rows(tensor, sizes, matrices)
    _multiply_in_place(tensor, matrices)
    return _flat(tensor)


def residual_rows(
    rows: Array,
    sizes: Sequence[int],
    inside: Axes | None = None,
    centers: Sequence[Array | None] | None = None,
    complement: Complement | None = None,
) -> Array:
    """Return the coefficients of queries on one residual space.

    The result has shape (k, product of n_i - 1 over the attributes of the space).

    Parameters
    ----------
    rows : queries, shape (k, cells).
    sizes : domain sizes of the queries' attributes.
    inside : positions of the residual space's attributes; None for all attributes.
    centers : one center of shape (n_i,) per attribute, None for a uniform center.
    complement : complement (tuned split) of a pair, for queries on two attributes; None without
        one.

    >>> residual_rows(np.eye(2), [2]).round(3)
    array([[ 0.707],
           [-0.707]])
    """
    centers_or_uniform = centers if centers is not None else [None] * len(sizes)
    axes_inside = range(len(sizes)) if inside is None else inside
    # A complement (tuned split of queries on a pair) changes the coefficients on single attributes
    # and on the total, but not the coefficients on the pair.
    if complement is not None and len(axes_inside) < 2:
        return residual_coefficients(rows, sizes, centers_or_uniform, {(0, 1): complement})[
            :, coordinate_positions(sizes, [tuple(axes_inside)])
        ]
    # Along attributes outside the space, queries are multiplied by the center only.  So this is
    # faster than `residual_coefficients`, which also multiplies by the cosine basis.
    return _by_rows(
        rows,
        sizes,
        [
            basis(n) if a in axes_inside else center(n, centers_or_uniform[a])
            for a, n in enumerate(sizes)
        ],
    )


class Lift:
    """Linear map L from the cells of a table to the coordinates of its residual space.

    L is the Kronecker product of the L_i = N_i^T (I - pi_i 1^T), one per attribute, with the cosine
    basis N_i and the center pi_i.  ``centers`` lists the pi_i; None stands for a uniform center,
    for which L_i = N_i^T.

    >>> Lift((2, 3)).rows(np.eye(2)).shape
    (2, 6)
    """

    # Whether `dual_solver.symmetries` can test reversals and swaps of attributes.  The test needs a
    # coordinate for every product of cosines, one cosine per attribute.
    one_space = True

    def __init__(
        self, sizes: tuple[int, ...], centers: Sequence[Array | None] | None = None
    ) -> None:
        self.sizes, self.cells = sizes, math.prod(sizes)
        self.dimension = math.prod(n - 1 for n in sizes)
        centers_or_uniform = centers if centers is not None else [None] * len(sizes)
        self.matrices = [
            # N^T pi is exactly 0 for a uniform center; computing it would add rounding errors,
            # after which reversing the cells would no longer be an exact symmetry
            basis(n).T if pi is None else basis(n).T - (basis(n).T @ pi)[:, None]
            for n, pi in zip(sizes, centers_or_uniform, strict=True)
        ]

    @property
    def coordinates(self) -> tuple[int, ...]:
        """Number of residual coordinates along every attribute."""
        return tuple(len(m) for m in self.matrices)

    def degrees(self, axis: int) -> npt.NDArray[np.int64]:
        """Return the frequency of the cosine of every residual coordinate of an attribute.

        Shape (n - 1,).  Reversing the cells changes the sign of coordinates of odd frequency.
        """
        return np.arange(1, self.sizes[axis])

    def rows(self, residual_rows: Array) -> Array:
        """Return residual_rows @ L: rows of shape (k, residual coordinates) as (k, cells)."""
        return _by_rows(residual_rows, self.coordinates, self.matrices)

    def table_coordinates(self, cell_rows: Array) -> Array:
        """Return cell_rows @ L^T: the residual coordinates of k tables.

        Tables have shape (k, cells), the result (k, residual coordinates).
        """
        return _by_rows(cell_rows, self.sizes, [m.T for m in self.matrices])

    def traced(self, by_lift: Array, axis: int) -> Array:
        """Return the derivative of a function of L with respect to -N^T pi of one attribute.

        The result has shape (n_axis - 1,).  Every column of L_axis contains the summand -N^T pi, so
        the result is the derivative with respect to L_axis, summed over columns.

        Parameters
        ----------
        by_lift : derivative with respect to the entries of L.  Its first axes have length n_i - 1,
            one per attribute; its last axes have length n_i, one per attribute.
        axis : position of the attribute.
        """
        count = len(self.sizes)
        # derivative of a Kronecker product with respect to one factor: inner products with all
        # other factors
        others = [None if a == axis else L.ravel() for a, L in enumerate(self.matrices)]
        by_axis = contract(group_axes(by_lift, [(a, count + a) for a in range(count)]), others)
        return np.asarray(by_axis.reshape(self.matrices[axis].shape).sum(axis=1))


class SplitLift(Lift):
    """Linear map from the cells of a table to the coordinates of residual spaces in it.

    One strategy measures these spaces jointly.

    Parameters
    ----------
    sizes : domain sizes of the table's attributes.
    centers : one center of shape (n_i,) per attribute, None for a uniform one.
    spaces : the positions of the attributes of every space.
    complements : mapping from the positions of a pair's attributes to its complement (tuned split).

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
        self.coordinate_positions = coordinate_positions(sizes, spaces)
        self.dimension, self.complements = len(self.coordinate_positions), complements or {}
        self.one_space = len(spaces) == 1 and len(spaces[0]) == len(sizes)
        # T_i^-1 = [1^T; L_i]: coordinate 0 of every axis is the sum over its cells
        self.matrices = [np.concatenate([np.ones((1, m.shape[1])), m]) for m in self.matrices]

    @property
    def coordinates(self) -> tuple[int, ...]:
        # SplitLift.matrices also have a row for the total, which is no residual coordinate
        return tuple(n - 1 for n in self.sizes)

    def rows(self, residual_rows: Array) -> Array:
        flat = np.zeros((len(residual_rows), self.cells))
        flat[:, self.coordinate_positions] = residual_rows
        tensor = flat.reshape(len(flat), *self.sizes)
        _pass_down(tensor, self.complements, -1.0)
        return _by_rows(tensor, self.sizes, self.matrices)

    def table_coordinates(self, cell_rows: Array) -> Array:
        tensor = super().table_coordinates(cell_rows).reshape(len(cell_rows), *self.sizes)
        _pass_up(tensor, self.complements, -1.0)
        return _flat(tensor)[:, self.coordinate_positions]


class FullTable(Lift):
    """Orthonormal cosine transform of a table along all attributes, with the constant cosine.

    Reversing the cells of an attribute changes the signs of some coefficients.  Swapping two
    attributes of equal size permutes the coefficients.

    >>> FullTable((2, 3)).rows(np.eye(6)).shape
    (6, 6)
    """

    def __init__(self, sizes: tuple[int, ...]) -> None:
        self.sizes, self.cells, self.dimension = sizes, math.prod(sizes), math.prod(sizes)
        self.matrices = [np.concatenate([np.full((1, n), n**-0.5), basis(n).T]) for n in sizes]

    def degrees(self, axis: int) -> npt.NDArray[np.int64]:
        return np.arange(self.sizes[axis])


class FullDomain(Lift):
    """Identity map of the cells of one attribute, for a strategy without residual spaces."""

    one_space = False

    def __init__(self, cells: int) -> None:
        self.sizes, self.cells, self.dimension = (cells,), cells, cells
        self.matrices = [np.eye(cells)]

    def rows(self, residual_rows: Array) -> Array:
        return residual_rows

    def table_coordinates(self, cell_rows: Array) -> Array:
        return cell_rows
