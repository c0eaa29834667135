"""The search for levels: partitions of the cells that lower the error of a workload most.

Notation
--------
Gram        G     W^T W, shape (cells, cells), in counts^2
precision   X     A^T A of the strategy so far; R = X^-1, M = R G R, error = (squared column norm) tr(G R)
level       P     0/1 rows, one box each; Z = P R, Y = P M, S = I + P R P^T, T = P M P^T

A level lowers tr(G R) by tr(S^-1 T).  Splitting a box q into q1 + q2 changes the precision by - q1 q2^T - q2 q1^T, of
rank 2, so the gains of all splits of all boxes follow from sums of R and M over corners of each box alone.  One level
costs a few products of the size of the Gram, however many splits it has.

Source: Li and Miklau, Efficient batch query answering under differential privacy, program 4.1; the sums over corners
and the joint splitting of all boxes of a level are our own.
"""

from __future__ import annotations

import functools
import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy

from engine.arrays import Array

ROUNDING = 1e-12  # a relative change of the error below this is no improvement
REFRESH = 8  # levels between two exact inverses; between them R and M are updated
Boxes = npt.NDArray[np.int64]  # shape (boxes, 2, axes): first cells and ends (exclusive)


@dataclass(frozen=True, kw_only=True)
class LevelOptions:
    """When to stop: after ``levels`` levels, the single cells included, or at the ``deadline`` of time.monotonic.

    A level pays when it lowers the error by more than the share ``pays``; ``patience`` is the number of further levels
    that are tried after one that does not.  The paper's rule is `PUBLISHED`: any gain pays, and the first level that
    has none ends the search.
    ``watch`` is called after every level with the number of levels and sqrt(error / bound) - 1.
    """

    levels: int = 10_000
    deadline: float = math.inf
    patience: int = 1
    pays: float = 1e-4
    watch: Callable[[int, float], None] | None = None


PUBLISHED = LevelOptions(patience=0, pays=ROUNDING)


Found = Counter[tuple[tuple[int, ...], tuple[int, ...]]]  # how often each box was chosen


class LevelPart:
    """A run of cells that is partitioned on its own, with its blocks of R and M."""

    def __init__(self, *, first: int, sizes: tuple[int, ...], R: Array, M: Array) -> None:
        self.first, self.sizes, self.R, self.M = first, sizes, R, M

    def level(self) -> Level:
        """Return the level that splitting from the whole part leads to."""
        level = Level(self.R, self.M, np.array([[[0] * len(self.sizes), self.sizes]]), self.sizes)
        while True:
            gains, children = level.splits(self.R, self.M)
            pays = gains > 0.0
            if not pays.any():
                return level
            boxes = np.concatenate([level.boxes[~pays], *children[pays]])
            split = Level(self.R, self.M, boxes, self.sizes)
            # each split gains when it is made alone; all of them together may still lose
            if split.gain <= level.gain * (1.0 + ROUNDING):
                return level
            level = split

    def add(self, level: Level) -> None:
        """Put the level into the strategy."""
        # Woodbury: R was the inverse without P^T P.  Half of the quadratic term of M = R gram R stands on either side,
        # so that M stays symmetric to the last digit
        self.R = self.R - level.Z.T @ level.B
        change = level.B.T @ level.D
        self.M = self.M - change - change.T


def search(
    parts: list[LevelPart], found: Found, trace: float, options: LevelOptions, bound: float, gram: Array | None = None
) -> tuple[Found, str]:
    """Add levels to the boxes found so far; return those of the smallest error and how the search ended.

    ``gram`` has shape (cells, cells).
    R and M are computed anew from the ``gram`` now and then when it is given, which keeps rounding small.
    """
    cells = sum(math.prod(part.sizes) for part in parts)
    # a level holds every cell once, so that the squared column norm is the number of levels, and the error norm * trace
    norm = round(sum(k * math.prod(np.subtract(high, low)) for (low, high), k in found.items()) / cells)
    best, least, idle, start, found = found, norm * trace, 0, norm, found.copy()
    while norm < options.levels:
        if time.monotonic() > options.deadline:
            return best, "stopped at the time limit"
        if gram is not None and norm > start and (norm - start) % REFRESH == 0:
            weights = np.sqrt(np.array(list(found.values())))
            parts[0].R = scipy.linalg.inv(precision_of(np.array(list(found)), weights, parts[0].sizes))
            parts[0].M = parts[0].R @ gram @ parts[0].R
            trace = float(np.sum(gram * parts[0].R))
        for part in parts:
            level = part.level()
            part.add(level)
            trace -= level.gain
            offset = part.first if len(part.sizes) == 1 else 0
            found.update(counted(level.boxes + offset))
        norm += 1
        idle += 1
        if norm * trace < least * (1.0 - options.pays):
            best, least, idle = found.copy(), norm * trace, 0
        if idle > options.patience:
            return best, "finished: no further level pays"
        if options.watch is not None and bound > 0:
            options.watch(norm, math.sqrt(least / bound) - 1.0)
    return best, f"stopped after {options.levels} levels"


class Level:
    """One level beside the strategy so far: its gain and the gains of splitting its boxes."""

    def __init__(self, R: Array, M: Array, boxes: Boxes, sizes: tuple[int, ...]) -> None:
        self.boxes, self.sizes = boxes, sizes
        self.P = indicator(boxes, sizes)
        self.Z, self.Y = self.P @ R, self.P @ M
        self.S = scipy.linalg.cho_factor(np.eye(len(boxes)) + (self.P @ self.Z.T).T)
        self.T = (self.P @ self.Y.T).T
        self.gain = float(np.trace(scipy.linalg.cho_solve(self.S, self.T)))

    @functools.cached_property
    def B(self) -> Array:  # noqa: N802
        return np.asarray(scipy.linalg.cho_solve(self.S, self.Z))

    @functools.cached_property
    def D(self) -> Array:  # noqa: N802
        return np.asarray(self.Y - 0.5 * self.T @ self.B)

    def splits(self, R: Array, M: Array) -> tuple[Array, Boxes]:
        """Return the gain of the best split of every box, and its two halves, shape (boxes, 2, 2, axes)."""
        gains = np.zeros(len(self.boxes))
        children = np.repeat(self.boxes[:, None], 2, axis=1)
        strides = np.cumprod((1, *self.sizes[:0:-1]))[::-1]
        shapes = self.boxes[:, 1] - self.boxes[:, 0]
        for shape in np.unique(shapes[np.prod(shapes, axis=1) > 1], axis=0):
            chosen = np.flatnonzero((shapes == shape).all(axis=1))  # boxes of one shape are done together
            steps = [np.arange(m) * s for m, s in zip(shape, strides, strict=True)]
            offsets = functools.reduce(np.add.outer, steps)
            cells = (self.boxes[chosen, 0] @ strides)[:, None] + offsets.ravel()
            pairs = (cells[:, :, None], cells[:, None, :])
            Z, B, D = (np.moveaxis(A[:, cells], 0, 1) for A in (self.Z, self.B, self.D))
            change = np.swapaxes(B, 1, 2) @ D
            # the blocks as they would stand with this level added: a split is worth what it gains beyond that
            now_R = R[pairs] - np.swapaxes(Z, 1, 2) @ B
            now_M = M[pairs] - change - np.swapaxes(change, 1, 2)
            for axis in np.flatnonzero(shape > 1).tolist():
                r11, r12, r22 = _corners(now_R, tuple(shape), axis)
                m11, m12, m22 = _corners(now_M, tuple(shape), axis)
                # p = p1 + p2 in two takes p1 p2^T + p2 p1^T out of P^T P: Woodbury with a 2 x 2 system, at every cut
                found = (r22 * m11 + 2.0 * (1.0 - r12) * m12 + r11 * m22) / (r11 * r22 - (1.0 - r12) ** 2)
                cut = np.argmax(found, axis=1)
                best = found[np.arange(len(chosen)), cut]
                better = best > gains[chosen]
                which = chosen[better]
                gains[which] = best[better]
                children[which] = self.boxes[which, None]
                at = self.boxes[which, 0, axis] + cut[better] + 1
                children[which, 0, 1, axis] = children[which, 1, 0, axis] = at
        return gains, children


def _corners(blocks: Array, shape: tuple[int, ...], axis: int) -> tuple[Array, Array, Array]:
    """Return the sums of every block over (first, first), (first, second), (second, second) halves, at every cut."""
    m = shape[axis]
    before, after = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    table = blocks.reshape(len(blocks), before, m, after, before, m, after).sum(axis=(1, 3, 4, 6))
    total = np.cumsum(np.cumsum(table, axis=1), axis=2)
    inner = np.diagonal(total, axis1=1, axis2=2)[:, :-1]
    edge, whole = total[:, :-1, -1], total[:, -1:, -1]
    return inner, edge - inner, whole - 2.0 * edge + inner


def indicator(boxes: Boxes, sizes: tuple[int, ...]) -> scipy.sparse.csr_array:
    """Return the 0/1 rows of boxes, shape (boxes, cells)."""
    import scipy.sparse

    cells = np.arange(math.prod(sizes)).reshape(sizes)
    members = [cells[tuple(slice(*ends) for ends in box.T)].ravel() for box in boxes]
    starts = np.cumsum([0, *(len(m) for m in members)])
    columns = np.concatenate(members)
    return scipy.sparse.csr_array((np.ones(len(columns)), columns, starts), shape=(len(boxes), cells.size))


def single_cells(sizes: tuple[int, ...]) -> Boxes:
    """Return every cell as a box."""
    first = np.stack(np.unravel_index(np.arange(math.prod(sizes)), sizes), axis=1)
    return np.stack([first, first + 1], axis=1)


def counted(boxes: Boxes) -> Found:
    """How often each box is in the list."""
    return Counter((tuple(low), tuple(high)) for low, high in boxes.tolist())


def precision_of(boxes: Boxes, weights: Array, sizes: tuple[int, ...]) -> Array:
    """Return the sum of weight^2 times row^T row over boxes, shape (cells, cells)."""
    P = indicator(boxes, sizes)
    return np.asarray((P.T @ P.multiply(weights[:, None] ** 2).tocsr()).todense())
