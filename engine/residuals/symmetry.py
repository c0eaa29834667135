"""Symmetries of a subworkload: reversals and swaps of attributes.

In the cosine basis they are signed permutations.  They block-diagonalise the problem, with one
block per character (a choice of +1 or -1 for each), and the optimal dual weights are constant on
their orbits because the problem is convex.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from engine._arrays import Array
from engine.residuals.basis import Lift
from engine.residuals.decomposition import Factor

Signed = tuple[npt.NDArray[np.int64], Array]  # v -> sign * v[permutation]


def count_symmetries(factor: Factor, lift: Lift) -> tuple[int, int]:
    """Return the number of independent reversals and of swaps under which the problem is invariant."""
    is_swap = [bool((sign == 1.0).all()) for (_, sign), _ in symmetries(factor, lift)]
    return is_swap.count(False), is_swap.count(True)


def symmetries(factor: Factor, lift: Lift) -> list[tuple[Signed, Signed]]:
    """Return commuting involutions: (action on class coordinates, action on cells) each.

    Candidates are reversals of sets of attributes and swaps of two attributes of equal size.  A
    candidate is accepted if the Gram and the lift are invariant on random vectors and it commutes
    with the involutions accepted before.
    """

    def gram(vector: Array) -> Array:
        image: Array = factor.matrix @ vector
        return factor.matrix.T @ image if factor.low_rank else image

    # random vectors miss an asymmetry with probability 0 and need no permuted copy of the Gram; the
    # fixed seed makes searches reproducible
    rng, sizes, dimension = np.random.default_rng(7), lift.sizes, factor.dimension
    class_sizes = lift.coordinates
    probe, cell_probe = rng.standard_normal(dimension), rng.standard_normal(lift.cells)
    image, lifted = gram(probe), lift.classes(cell_probe[None])[0]
    class_index, cell_index = np.arange(dimension).reshape(class_sizes), np.arange(lift.cells).reshape(sizes)
    accepted: list[tuple[Signed, Signed]] = []
    axes = range(len(sizes))
    reversals = [axis_set for k in range(1, len(sizes) + 1) for axis_set in itertools.combinations(axes, k)]
    candidates: list[tuple[Signed, Signed]] = []
    for axis_set in reversals:
        # cosine k is even under reversal if k is even, odd otherwise, so a reversal only changes
        # signs
        sign = np.ones(class_sizes)
        for axis in axis_set:
            along = [1] * len(sizes)
            along[axis] = class_sizes[axis]
            sign = sign * ((-1.0) ** lift.degrees(axis)).reshape(along)
        candidates.append(
            ((class_index.ravel(), sign.ravel()), (np.flip(cell_index, axis_set).ravel(), np.ones(lift.cells)))
        )
    for a, b in itertools.combinations(axes, 2):
        if sizes[a] == sizes[b]:
            moved = tuple(np.swapaxes(t, a, b).ravel() for t in (class_index, cell_index))
            candidates.append(((moved[0], np.ones(dimension)), (moved[1], np.ones(lift.cells))))
    for on_class, on_cells in candidates:
        independent = not any(
            np.array_equal(on_class[0], k[0]) and np.array_equal(on_class[1], k[1]) for k in _products(accepted)
        )
        invariant = np.allclose(
            gram(_act(on_class, probe)), _act(on_class, image), rtol=0, atol=1e-9 * np.abs(image).max()
        )
        moved_probe = lift.classes(_act(on_cells, cell_probe)[None])[0]
        lift_invariant = np.allclose(moved_probe, _act(on_class, lifted), rtol=0, atol=1e-9)
        # only commuting involutions have common characters, and therefore a common block
        # decomposition
        commuting = all(
            np.allclose(_act(on_class, _act(k, probe)), _act(k, _act(on_class, probe)), rtol=0, atol=1e-12)
            for k, _ in accepted
        )
        if independent and invariant and lift_invariant and commuting:
            accepted.append((on_class, on_cells))
    return accepted


def _act(action: Signed, vector: Array) -> Array:
    return action[1] * vector[action[0]]


def _products(actions: Sequence[tuple[Signed, Signed]]) -> list[Signed]:
    """Return all products of one or more commuting class actions."""
    out: list[Signed] = []
    for (permutation, sign), _ in actions:
        out += [(p[permutation], sign * s[permutation]) for p, s in out] + [(permutation, sign)]
    return out


def character_bases(actions: Sequence[Signed], dimension: int) -> list[Any]:
    """Return orthonormal bases of the subspaces on which every action is +1 or -1.

    Sparse, shape (dimension, k) each: a column has one entry per coordinate of one orbit.
    """
    import scipy.sparse

    eye = scipy.sparse.eye_array(dimension, format="csr")
    bases: list[Any] = [eye]
    for permutation, sign in actions:
        moving = scipy.sparse.csr_array((sign, (np.arange(dimension), permutation)), shape=(dimension, dimension))
        # (1 + c g) / 2 projects on the vectors that g multiplies by c; these projections commute,
        # so their product is the projection on the intersection
        bases = [projected @ (eye + c * moving) / 2.0 for projected in bases for c in (1.0, -1.0)]
    out = []
    for projected in bases:
        projected.eliminate_zeros()
        projected.sort_indices()
        # rows of one orbit are equal up to sign: select the one whose first coordinate is its row
        # number
        nonempty = np.flatnonzero(np.diff(projected.indptr))
        rows = projected[nonempty[projected.indices[projected.indptr[nonempty]] == nonempty]]
        out.append((scipy.sparse.diags_array(1.0 / np.sqrt((rows * rows).sum(axis=1))) @ rows).T.tocsr())
    return out


def character_rows(actions: Sequence[Signed], rows: Array) -> list[Array]:
    """Return the rows projected to the subspaces on which every action is +1 or -1.

    Shape (k, cells) each.

    The Grams of the projected rows add up to the Gram of the rows.
    """
    pieces = [rows]
    for permutation, sign in actions:
        # the Grams of the even and the odd part add up to the mean of those of a row and its image;
        # summed over all rows this is the Gram, because it is invariant
        moved = [piece[:, permutation] * sign for piece in pieces]
        pieces = [(p + c * m) / 2.0 for p, m in zip(pieces, moved, strict=True) for c in (1.0, -1.0)]
    return pieces


def orbits(actions: Sequence[Signed], cells: int) -> tuple[npt.NDArray[np.int64], Array, npt.NDArray[np.int64]]:
    """Return the orbit of every cell, and size and representative of every orbit.

    Shapes (cells,), (orbits,), (orbits,).
    """
    lowest = np.arange(cells)
    for _ in range(2):  # commuting involutions: two rounds reach the least cell of every orbit
        for permutation, _sign in actions:
            lowest = np.minimum(lowest, lowest[permutation])
    representatives, orbit, count = np.unique(lowest, return_inverse=True, return_counts=True)
    return orbit, count.astype(float), representatives
