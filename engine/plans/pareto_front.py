"""Pareto fronts and upper convex hulls of points with nonnegative coordinates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from engine._arrays import Array, Index

# With two features and at least MIN_BINNED_POINTS points, most points that are not on the front are
# found by dividing all points into FRONT_BINS bins, which is much faster than sorting them.
FRONT_BINS, MIN_BINNED_POINTS = 4096, 10_000


def pareto_front(features: Sequence[Array]) -> Any:
    """Return the indices of the points on the Pareto front, where every feature is maximized.

    For every point there is a point on the front that is at least as large in every feature.  Of
    several equal points, at most one is on the front.

    Parameters
    ----------
    features : one nonnegative array of shape (points,) per feature.

    >>> pareto_front([np.array([1.0, 2.0, 0.0]), np.array([5.0, 3.0, 4.0])]).tolist()
    [1, 0]
    """
    candidates = _front_candidates(features)
    return candidates[_front_of_columns(np.stack([f[candidates] for f in features]))]


def _front_candidates(features: Sequence[Array]) -> Index:
    """Return the indices of the points that can be on the Pareto front.

    If there are exactly two features and at least `MIN_BINNED_POINTS` points, the points are
    divided into bins by the first feature.  A point is left out if the second feature of some point
    in a higher bin is at least as large as its own.  In all other cases, no point is left out.
    """
    points = len(features[0])
    if len(features) != 2 or points < MIN_BINNED_POINTS:
        return np.arange(points)
    first, second = features
    bins = (first * ((FRONT_BINS - 1) / (first.max() or 1.0))).astype(np.int64)
    largest_in_bin = np.full(FRONT_BINS + 1, -np.inf)
    np.maximum.at(largest_in_bin, bins, second)
    largest_from_bin = np.maximum.accumulate(largest_in_bin[::-1])[::-1]
    return np.flatnonzero(second > largest_from_bin[bins + 1])


def _front_of_columns(features: Array) -> Any:
    """Return the indices of the columns of ``features`` that are on their Pareto front.

    ``features`` has one row per feature and one column per point.
    """
    if len(features) <= 2:
        # Sorted by descending first feature, a point is on the front exactly if its last feature is
        # larger than the last features of all points before it.
        order = np.lexsort(-features[::-1])
        last = features[-1, order]
        largest_before = np.maximum.accumulate(np.append(-np.inf, last[:-1]))
        return order[:1] if len(features) == 1 else order[last > largest_before]
    order = np.argsort(-features.sum(axis=0), kind="stable")
    front = []
    while len(order):
        # The remaining point with the largest sum of features is on the front, because every
        # different point is smaller in some feature.  A point is removed if it is not larger than
        # this point in any feature.
        largest = order[0]
        front.append(largest)
        order = order[(features[:, order] > features[:, [largest]]).any(axis=0)]
    return np.array(front)


def upper_hull(x: Array, y: Array) -> npt.NDArray[np.int64]:
    """Return the indices of the vertices of the upper right convex hull of the points (x, y).

    The points must be a Pareto front: no point is at least as large as another in x and in y.
    """
    order = np.argsort(x, kind="stable")
    hull: list[int] = []
    for i in order:
        while len(hull) >= 2:
            a, b = hull[-2], hull[-1]
            if (x[b] - x[a]) * (y[i] - y[a]) >= (y[b] - y[a]) * (x[i] - x[a]):
                hull.pop()  # point b is on or below the line from point a to point i
            else:
                break
        hull.append(int(i))
    return np.array(hull)
