"""Contrasts: decomposition of consistent tables with one component per set of attributes.

The table on a set A is the sum over B inside A of r_B / (number of cells summed out), where r_B has
the sum 0 along each of its axes.  Tables that are assembled from the same contrasts r_B agree on
their common attributes.  The contrast of the empty set is the number of records.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np

from engine._arrays import Array
from engine.residuals import Axes
from engine.workload import subsets


def contrast(table: Array) -> Array:
    """Return the highest-order interaction of a table, of the same shape.

    >>> contrast(np.array([[3.0, 1.0], [1.0, 1.0]])).tolist()
    [[0.5, -0.5], [-0.5, 0.5]]
    """
    out = np.array(table, dtype=float)
    for axis in range(out.ndim):
        out -= out.mean(axis=axis, keepdims=True)
    return out


def along_axes(values: Array, axes: Axes, all_axes: Axes) -> Array:
    """Reshape a table on some attributes to broadcast against tables on more attributes."""
    sizes = dict(zip(axes, values.shape, strict=True))
    return values.reshape([sizes.get(a, 1) for a in all_axes])


def mean_over(table: Array, all_axes: Axes, axes: Axes) -> Array:
    """Return the mean of a table over the attributes that are not in ``kept``."""
    return np.asarray(table.mean(axis=tuple(i for i, a in enumerate(all_axes) if a not in axes)))


def proper_subsets(axes: Axes) -> list[Axes]:
    """Return the proper subsets of a set of attributes, smallest first.

    >>> below((0, 2))
    [(), (0,), (2,)]
    """
    return [inside for inside in subsets(axes) if inside != axes]


def faces(axes: Axes) -> list[Axes]:
    """Return the subsets with one attribute fewer."""
    return [axes[:i] + axes[i + 1 :] for i in range(len(axes))]


def maximal_sets(family: Iterable[Axes]) -> list[Axes]:
    """Return the sets that no other set of a family contains.

    >>> maximal([(0,), (0, 1), (2,)])
    [(0, 1), (2,)]
    """
    largest: list[Axes] = []
    for axes in sorted(set(family), key=lambda a: (-len(a), a)):
        if not any(set(axes) <= set(larger) for larger in largest):
            largest.append(axes)
    return sorted(largest)


def add_lower(table: Array, axes: Axes, lower: Mapping[Axes, Array]) -> None:
    """Add tables on proper subsets, spread evenly, to a table, shape (n_1, ..., n_k), in place."""
    sizes = dict(zip(axes, table.shape, strict=True))
    folded: dict[Axes, Array] = {}
    for inside in proper_subsets(axes):
        if inside in lower:
            # sum small tables on a face first: passes over the complete table dominate the time
            home = next((f for f in faces(axes) if set(inside) <= set(f)), ())
            if home not in folded:
                folded[home] = np.zeros([sizes[a] for a in home])
            shares = math.prod(sizes[a] for a in axes if a not in inside)
            folded[home] += along_axes(lower[inside], inside, home) / shares
    for home, values in folded.items():
        table += along_axes(values, home, axes)


def assemble_table(contrasts: Mapping[Axes, Array], axes: Axes) -> Array:
    """Return the table on a set of attributes, shape (n_1, ..., n_k), in counts."""
    out = np.array(contrasts[axes], dtype=float)
    add_lower(out, axes, contrasts)
    return out
