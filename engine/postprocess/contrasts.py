"""Contrasts: consistent tables as a sum with one summand for every set of attributes.

The table on a set A is  sum over B inside A of r_B / (number of cells summed out), r_B having the sum 0 along each of
its axes.  Whatever the r_B are, all tables made of them agree; r of no attribute is the number of records.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np

from engine._arrays import Array
from engine.residuals import Axes
from engine.workload import subsets


def contrast(table: Array) -> Array:
    """Return what a table says beyond all tables on fewer of its attributes, of the same shape.

    >>> contrast(np.array([[3.0, 1.0], [1.0, 1.0]])).tolist()
    [[0.5, -0.5], [-0.5, 0.5]]
    """
    out = np.array(table, dtype=float)
    for axis in range(out.ndim):
        out -= out.mean(axis=axis, keepdims=True)
    return out


def along_axes(values: Array, own: Axes, whole: Axes) -> Array:
    """Return a table on the attributes ``own`` in a shape that broadcasts along those of ``whole``."""
    sizes = dict(zip(own, values.shape, strict=True))
    return values.reshape([sizes.get(a, 1) for a in whole])


def mean_over(table: Array, whole: Axes, kept: Axes) -> Array:
    """Return the mean of a table over the attributes that are not kept, in the shape of the others."""
    return np.asarray(table.mean(axis=tuple(i for i, a in enumerate(whole) if a not in kept)))


def below(axes: Axes) -> list[Axes]:
    """Return the proper subsets of a set of attributes, small ones first.

    >>> below((0, 2))
    [(), (0,), (2,)]
    """
    return [inside for inside in subsets(axes) if inside != axes]


def faces(axes: Axes) -> list[Axes]:
    """Return the subsets with one attribute less."""
    return [axes[:i] + axes[i + 1 :] for i in range(len(axes))]


def maximal(family: Iterable[Axes]) -> list[Axes]:
    """Return the sets that no other set of a family contains.

    >>> maximal([(0,), (0, 1), (2,)])
    [(0, 1), (2,)]
    """
    largest: list[Axes] = []
    for axes in sorted(set(family), key=lambda a: (-len(a), a)):
        if not any(set(axes) <= set(kept) for kept in largest):
            largest.append(axes)
    return sorted(largest)


def add_lower(table: Array, axes: Axes, lower: Mapping[Axes, Array]) -> None:
    """Add tables on proper subsets, spread evenly, to a table of shape (n_1, ..., n_k) in place."""
    sizes = dict(zip(axes, table.shape, strict=True))
    folded: dict[Axes, Array] = {}
    for inside in below(axes):
        if inside in lower:
            # what is small is summed on a face first: each pass over the whole table costs as much as all of these
            home = next((f for f in faces(axes) if set(inside) <= set(f)), ())
            if home not in folded:
                folded[home] = np.zeros([sizes[a] for a in home])
            shares = math.prod(sizes[a] for a in axes if a not in inside)
            folded[home] += along_axes(lower[inside], inside, home) / shares
    for home, values in folded.items():
        table += along_axes(values, home, axes)


def assembled(contrasts: Mapping[Axes, Array], axes: Axes) -> Array:
    """Return the table on a set of attributes, shape (n_1, ..., n_k), in counts."""
    out = np.array(contrasts[axes], dtype=float)
    add_lower(out, axes, contrasts)
    return out
