"""Hierarchical and wavelet strategies: H2, HB, GreedyH, Privelet and level selection.

Fixed trees and wavelets
------------------------
The functions `identity`, `hierarchy`, `hb`, `wavelet`, `quadtree` and `greedy_hierarchy` return a
strategy as a matrix, shape (rows, cells), with full column rank.  The mechanisms compute such a
matrix for every numeric attribute and measure the Kronecker product of these matrices.

    rows          A   shape (rows, cells)
    Gram matrix   G   W^T W of the workload W, shape (cells, cells)
    sensitivity       largest norm of a column of A: L1 (Laplace noise), Euclidean (Gaussian noise)
    error             sensitivity^2 tr(G (A^T A)^-1), in counts^2

The summed variance of all queries is the error at privacy cost 1 for Gaussian noise, and twice the
error at epsilon 1 for Laplace noise.

Source: HDMM, section 8 (baselines), and the papers cited in the functions.

Level selection
---------------
A strategy is a sum of levels, and a level is a partition of the cells into boxes.  Every cell is in
one box of a level, so each level adds 1 to the squared norm of every column.  The first level has
the single cells.  Each new level starts as one box with all cells, and its boxes are split in two
while that lowers the error of the workload.  Levels are added until a level no longer lowers the
error.

    Gram        G     W^T W, shape (cells, cells), in counts^2
    precision   X     A^T A of the current strategy; R = X^-1, M = R G R,
                      error = (squared column norm) tr(G R)
    level       P     0/1 rows, one per box; Z = P R, Y = P M, S = I + P R P^T, T = P M P^T

A level lowers tr(G R) by tr(S^-1 T).  Splitting a box q into q1 + q2 subtracts q1 q2^T + q2 q1^T
from the precision.  This matrix has rank 2, so the gains of all splits of all boxes follow from
partial sums of R and M over each box.  One level costs a few matrix products of the size of the
Gram, regardless of the number of splits.

Source: Li and Miklau, Efficient batch query answering under differential privacy, program 4.1 and
section 4.3; the partial sums and the joint splitting of all boxes of a level are extensions of this
project.
"""

from __future__ import annotations

import functools
import itertools
import math
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import scipy

from engine._arrays import Array, Index
from engine._clock import planning_time
from engine._threads import threads_for
from engine._validation import check_int
from engine.bounds.lower_bounds import domain_gram
from engine.errors import LimitExceeded, PlanError, WorkloadError
from engine.mechanisms.base import (
    Design,
    ExplicitMechanism,
    Forecast,
    Limits,
    NoiseLaw,
    check_dense,
    check_start,
    is_integer,
    one_component,
    used_attributes,
)
from engine.plans.table_plan import explicit_strategy
from engine.residuals import Strategy
from engine.residuals.marginals import identity_strategy
from engine.workload import Marginal, Workload
from engine.workload.families import Total

# GreedyH chooses for every node of the tree a share of the budget that measures the sum of its
# cells.  This is the number of shares that GreedyH compares.
CANDIDATE_SHARES = 100
# `greedy_hierarchy` compares these values if its parameter ``discount`` is None.
DISCOUNTS = (1.0, 0.5**0.5, 0.5)


def sensitivity(rows: Array, noise: NoiseLaw) -> float:
    """Return the largest column norm: L1 for Laplace noise, Euclidean for Gaussian noise.

    ``rows`` has shape (rows, cells).

    >>> sensitivity(hierarchy(4), "laplace")
    3.0
    """
    _check_noise(noise)
    norms = np.abs(rows).sum(axis=0) if noise == "laplace" else np.sqrt(np.sum(rows**2, axis=0))
    return float(norms.max())


def error(rows: Array, gram: Array, noise: NoiseLaw) -> float:
    """Return sensitivity^2 tr(G (A^T A)^-1), in counts^2.

    The result is the summed variance of all queries at privacy cost 1 for Gaussian noise.  For
    Laplace noise it is half of the summed variance at epsilon 1.

    Parameters
    ----------
    rows : strategy rows A, shape (rows, cells).
    gram : Gram matrix G of the queries, shape (cells, cells).

    Source: Li and Miklau, proposition 2.4.

    >>> error(np.eye(3), np.eye(3), "gaussian")
    3.0
    """
    inverse = scipy.linalg.cho_solve(scipy.linalg.cho_factor(rows.T @ rows), gram)
    return sensitivity(rows, noise) ** 2 * float(np.trace(inverse))


def identity(n: int) -> Array:
    """Return the strategy rows that measure each of n cells, shape (n, n).

    >>> identity(2)
    array([[1., 0.],
           [0., 1.]])
    """
    check_int("number of cells", n)
    return np.eye(n)


def hierarchy(n: int, branching: int = 2, *, root: bool = True) -> Array:
    """Return the 0/1 rows of a tree of intervals with the single cells as leaves, shape (nodes, n).

    Children of a node differ in size by at most one cell.  Without the root, no row measures the
    total of all cells, unless n is 1.

    Source: Hay and others (2010), H2 for two branches; Qardaji and others (2013) leave the root
    out.

    >>> hierarchy(3)
    array([[1., 1., 1.],
           [1., 0., 0.],
           [0., 1., 1.],
           [0., 1., 0.],
           [0., 0., 1.]])
    """
    check_int("number of cells", n)
    if branching < 2:
        raise PlanError(f"branching is {branching}. Give an integer of at least 2.")
    nodes = list(_nodes(0, n, branching))
    rows = np.zeros((len(nodes), n))
    for row, (first, end) in zip(rows, nodes, strict=True):
        row[first:end] = 1.0
    return rows if root or n == 1 else rows[1:]


def branching_factor(n: int, noise: NoiseLaw = "laplace") -> int:
    """Return the branching factor for which a tree without root answers ranges best on average.

    Let h be the height of the tree and b its branching factor.  For noise of variance 1, the mean
    variance over all ranges is proportional to (b - 1) h - 2 (b + 1) / 3.  The variance of the
    noise is proportional to h^2 (Laplace) or h (Gaussian).  The result minimizes the product of
    both.

    Source: Qardaji and others (2013), equation 3, for Laplace noise; adapted to Gaussian noise.

    >>> branching_factor(256), branching_factor(256, "gaussian")
    (16, 4)
    """
    check_int("number of cells", n)
    _check_noise(noise)
    power = 2 if noise == "laplace" else 1

    def variance(b: int) -> float:
        """Return the mean variance of a range, up to a constant factor."""
        height = 1
        # The height is log_b(n), rounded up.  A floating-point logarithm could be off by one.
        while b**height < n:
            height += 1
        return float(((b - 1) * height - 2 * (b + 1) / 3) * height**power)

    return min(range(2, max(n, 2) + 1), key=variance)


def hb(n: int, noise: NoiseLaw = "laplace") -> Array:
    """Return the tree of intervals without root for the optimal branching factor (HB).

    The rows are those of `hierarchy`, shape (nodes, n).

    >>> hb(5).shape
    (5, 5)
    """
    return hierarchy(n, branching_factor(n, noise), root=False)


def wavelet(n: int) -> Array:
    """Return the Haar wavelet for any n, shape (n, n).

    The first row is the total.  Every other row belongs to an interval of the binary tree on the
    cells: it is the difference of the two halves of the interval.  The L1 norm of a column is at
    most 1 + ceil(log2 n).  Its Euclidean norm is the square root of its L1 norm.

    Source: Xiao and others (2011), Privelet; instead of padding, halves may differ by one cell.

    >>> wavelet(3)
    array([[ 1.,  1.,  1.],
           [ 1., -1., -1.],
           [ 0.,  1., -1.]])
    """
    check_int("number of cells", n)
    rows = [np.ones(n)]
    for first, end in _nodes(0, n, 2):
        if end - first > 1:
            row = np.zeros(n)
            row[first:end] = -1.0
            row[first : first + (end - first) // 2] = 1.0
            rows.append(row)
    return np.array(rows)


def quadtree(sizes: Sequence[int]) -> Array:
    """Return the 0/1 rows of a tree of boxes, shape (boxes, cells).

    The root has all cells.  Halving a box along all of its axes gives its children.

    >>> quadtree((2, 2)).shape
    (5, 4)
    """
    for n in sizes:
        check_int("number of cells", n)
    cells = np.arange(math.prod(sizes)).reshape(sizes)
    rows, pending = [], [tuple((0, n) for n in sizes)]
    while pending:
        box = pending.pop(0)
        row = np.zeros(cells.size)
        row[cells[tuple(slice(*ends) for ends in box)].ravel()] = 1.0
        rows.append(row)
        halves = [
            _parts(first, end, 2) if end - first > 1 else [(first, end)] for first, end in box
        ]
        if any(len(h) > 1 for h in halves):
            pending.extend(itertools.product(*halves))
    return np.array(rows)


def greedy_hierarchy(
    gram: Array,
    noise: NoiseLaw = "laplace",
    *,
    squared: bool | None = None,
    discount: float | None = None,
) -> Array:
    """Return the rows of a binary tree with nodes weighted for the workload, shape (nodes, cells).

    Every column has norm 1.  Weights are chosen bottom up.  A node spends a share of its budget on
    the sum of its cells and the remainder on its subtrees.  The share minimizes the error of the
    workload on the cells of the node.

    Parameters
    ----------
    gram : Gram matrix G of the workload, shape (cells, cells).
    squared : whether budget shares are optimized for G^2 instead of G.
    discount : factor for the decrease of the error by measuring a node, for queries that have cells
        in both halves of the node.  At depth d the factor is ``discount``^d.

    If a parameter is None, the function tries several values and returns the tree with the smallest
    error.  The experiments of the paper use ``squared=True`` and the discount sqrt(1/2).

    Source: Li and others (2014), GreedyH of DAWA, extended to Gaussian noise.

    >>> rows = greedy_hierarchy(np.ones((4, 4)))
    >>> round(sensitivity(rows, "laplace"), 9)
    1.0
    """
    _check_noise(noise)
    gram = _square_matrix(gram)
    squares = (False, True) if squared is None else (squared,)
    trees = [
        _greedy_tree(gram @ gram if use_square else gram, 0, len(gram), noise, factor, 0)[0]
        for use_square in squares
        for factor in (DISCOUNTS if discount is None else (discount,))
    ]
    return trees[0] if len(trees) == 1 else min(trees, key=lambda rows: error(rows, gram, noise))


def _greedy_tree(
    gram: Array, first: int, end: int, noise: NoiseLaw, discount: float, depth: int
) -> tuple[Array, Array, float]:
    """Return the weighted subtree of `greedy_hierarchy` on the cells ``first`` to ``end`` - 1.

    ``depth`` is the number of nodes above the subtree.

    Returns
    -------
    rows : strategy rows, one per node of the subtree with a weight above 0, shape (nodes, cells).
    C : covariance (rows^T rows)^-1 of the estimated cells, shape (cells, cells).
    error : sum of the discounted variances of the queries on these cells.
    """
    if end - first == 1:
        return np.ones((1, 1)), np.ones((1, 1)), float(gram[first, first])
    (_, middle), _ = _parts(first, end, 2)
    m = middle - first
    left_rows, left_C, left_error = _greedy_tree(gram, first, middle, noise, discount, depth + 1)
    right_rows, right_C, right_error = _greedy_tree(gram, middle, end, noise, discount, depth + 1)
    C = scipy.linalg.block_diag(left_C, right_C)
    # covariances of the estimated cells with their estimated sum
    u = C.sum(axis=1)
    G = gram[first:end, first:end]
    # Measuring the sum exactly would lower the error by u^T G u / (1^T u).  The discounted saving
    # is the numerator with a discount: products of a cell of the left half with a cell of the right
    # half are multiplied by discount^depth.
    within_halves = u[:m] @ G[:m, :m] @ u[:m] + u[m:] @ G[m:, m:] @ u[m:]
    discount_at_depth = discount**depth
    discounted_saving = (u @ G @ u - within_halves) * discount_at_depth + within_halves
    total_variance = float(u.sum())
    share = np.arange(CANDIDATE_SHARES) / CANDIDATE_SHARES
    remainder = (1.0 - share) ** 2 if noise == "laplace" else 1.0 - share**2
    ratio = share**2 / remainder
    # The covariance after measuring the sum is (remainder C^-1 + share^2 11^T)^-1.  By the formula
    # of Sherman and Morrison it is (C - ratio u u^T / (1 + ratio 1^T u)) / remainder.  For the
    # choice of the share the ratio is discounted, too, so that deep nodes get small shares.
    discounted_ratio = discount_at_depth * ratio
    errors = (
        left_error
        + right_error
        - discounted_saving * discounted_ratio / (1.0 + discounted_ratio * total_variance)
    ) / remainder
    best = int(np.argmin(errors))
    C = (C - ratio[best] / (1.0 + ratio[best] * total_variance) * np.outer(u, u)) / remainder[best]
    rows = math.sqrt(remainder[best]) * scipy.linalg.block_diag(left_rows, right_rows)
    if best:  # share 0 does not measure the sum
        rows = np.concatenate([np.full((1, end - first), share[best]), rows])
    return rows, C, float(errors[best])


def _parts(first: int, end: int, branching: int) -> list[tuple[int, int]]:
    """Return (first, end) of ``branching`` subintervals whose sizes differ by at most one cell.

    An interval of fewer cells than ``branching`` is split into its single cells.
    """
    count = min(branching, end - first)
    # With floating-point division, rounding errors could make a subinterval empty or too long.
    edges = [first + (end - first) * k // count for k in range(count + 1)]
    return list(itertools.pairwise(edges))


def _nodes(first: int, end: int, branching: int) -> Iterator[tuple[int, int]]:
    """Yield (first, end) of every node of the tree on an interval, parents before children."""
    yield first, end
    if end - first > 1:
        for part in _parts(first, end, branching):
            yield from _nodes(*part, branching)


def _check_noise(noise: str) -> None:
    if noise not in ("gaussian", "laplace"):
        raise PlanError(f"noise is {noise!r}. Choose 'gaussian' or 'laplace'.")


# A smaller relative change of an error counts as a rounding error.
ROUNDING = 1e-12
# The matrices R and M are updated for each new level, which accumulates rounding errors.  After
# this number of levels they are computed from the strategy.
LEVELS_PER_INVERSE = 8
# Boxes of cells, shape (boxes, 2, axes).  Entry [box, 0] is the first cell on every axis, and entry
# [box, 1] is the end (exclusive).
Boxes = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class LevelOptions:
    """Stopping rules of level selection, which adds levels (partitions of the cells) one by one.

    Attributes
    ----------
    levels : largest number of levels, including the single cells.
    deadline : time at which the search stops, on the clock of `planning_time`.
    patience : number of levels that are tried after the first one without improvement.
    min_gain : smallest relative decrease of the error that counts as an improvement.
    watch : progress callback of (number of levels, gap), with the gap sqrt(error / bound) - 1.
    """

    levels: int = 10_000
    deadline: float = math.inf
    patience: int = 1
    min_gain: float = 1e-4
    watch: Callable[[int, float], None] | None = None


# Stopping rule of the paper: the first level that does not lower the error ends level selection.
PUBLISHED = LevelOptions(patience=0, min_gain=ROUNDING)


# Number of levels that contain each box.  A key is (first cell per axis, end per axis).
BoxCounts = Counter[tuple[tuple[int, ...], tuple[int, ...]]]


class LevelPart:
    """Cells whose levels (partitions into boxes) are searched separately.

    The cells are an interval of a domain with one axis, or a complete domain.

    Attributes
    ----------
    first : index of the first cell.
    sizes : number of cells along every axis.
    R : block of (A^T A)^-1 for these cells.  A has the rows of the strategy.
    M : block of (A^T A)^-1 G (A^T A)^-1 for these cells.  G is the Gram matrix of the workload.
    """

    def __init__(self, *, first: int, sizes: tuple[int, ...], R: Array, M: Array) -> None:
        self.first, self.sizes, self.R, self.M = first, sizes, R, M

    def level(self, deadline: float = math.inf) -> Level:
        """Return the next level: a box of all cells, repeatedly split while this lowers the error.

        After the deadline, on the clock of `planning_time`, boxes are not split further.
        """
        level = Level(self.R, self.M, np.array([[[0] * len(self.sizes), self.sizes]]), self.sizes)
        while planning_time() <= deadline:
            gains, children = level.splits(self.R, self.M)
            has_gain = gains > 0.0
            if not has_gain.any():
                return level
            boxes = np.concatenate([level.boxes[~has_gain], *children[has_gain]])
            split = Level(self.R, self.M, boxes, self.sizes)
            # A gain is for splitting one box alone.  Here all boxes with a gain were split, so the
            # error may be larger than before.
            if split.gain <= level.gain * (1.0 + ROUNDING):
                return level
            level = split
        return level

    def add(self, level: Level) -> None:
        """Update the matrices ``R`` and ``M`` after ``level`` was added to the strategy."""
        # The rows P of the level change R to (R^-1 + P^T P)^-1.  By the Woodbury formula this is
        # R - Z^T B with the matrices Z and B of `Level`.  A matrix and its transpose are subtracted
        # from M, so M remains exactly symmetric.
        self.R = self.R - level.Z.T @ level.B
        change = level.B.T @ level.D
        self.M = self.M - change - change.T


def search(
    parts: list[LevelPart],
    boxes: BoxCounts,
    trace: float,
    options: LevelOptions,
    bound: float,
    gram: Array | None = None,
) -> tuple[BoxCounts, str]:
    """Add levels to a strategy until its error no longer decreases.

    Parameters
    ----------
    parts : intervals of cells whose levels are searched separately.
    boxes : mapping from each box of the initial strategy to the number of levels that contain it.
    trace : tr(G (A^T A)^-1) for the rows A of the initial strategy.
    bound : lower bound on the error, for progress reports.
    gram : Gram matrix G of the workload, shape (cells, cells).  It limits rounding errors: with it,
        R and M are computed anew every `LEVELS_PER_INVERSE` levels.  ``gram`` must be None if there
        are several query families.

    Returns
    -------
    boxes : mapping from each box to the number of levels that contain it, for the strategy with the
        smallest error.
    status : reason for the end of the search.
    """
    cells = sum(math.prod(part.sizes) for part in parts)
    # ``norm`` is the squared norm of each column.  It equals the number of levels, because every
    # level contains each cell once.
    norm = round(
        sum(k * math.prod(np.subtract(high, low)) for (low, high), k in boxes.items()) / cells
    )
    # The error of a strategy is ``norm`` times ``trace``, which is tr(G R).
    best, best_error = boxes, norm * trace
    initial_norm, levels_without_gain, boxes = norm, 0, boxes.copy()
    while norm < options.levels:
        if planning_time() > options.deadline:
            return best, "stopped at the time limit"
        if (
            gram is not None
            and norm > initial_norm
            and (norm - initial_norm) % LEVELS_PER_INVERSE == 0
        ):
            weights = np.sqrt(np.array(list(boxes.values())))
            parts[0].R = scipy.linalg.inv(
                precision_of(np.array(list(boxes)), weights, parts[0].sizes)
            )
            parts[0].M = parts[0].R @ gram @ parts[0].R
            trace = float(np.sum(gram * parts[0].R))
        for part in parts:
            level = part.level(options.deadline)
            part.add(level)
            trace -= level.gain
            offset = part.first if len(part.sizes) == 1 else 0
            boxes.update(count_boxes(level.boxes + offset))
        norm += 1
        levels_without_gain += 1
        if norm * trace < best_error * (1.0 - options.min_gain):
            best, best_error, levels_without_gain = boxes.copy(), norm * trace, 0
        if levels_without_gain > options.patience:
            return best, "finished: no further level lowers the error"
        if options.watch is not None and bound > 0:
            options.watch(norm, math.sqrt(best_error / bound) - 1.0)
    return best, f"stopped after {options.levels} levels"


class Level:
    """A candidate level (partition of the cells into boxes) for the current strategy.

    ``gain`` is the decrease of tr(G R) if the level is added.  P has one 0/1 row per box, Z = P R,
    Y = P M, S = I + P R P^T, T = P M P^T, B = S^-1 Z and D = Y - T B / 2, with the covariance R of
    the cells and M = R G R.
    """

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
        """Return the best split of every box into two boxes.

        Parameters
        ----------
        R, M : R = (A^T A)^-1 and M = R G R for the strategy rows A without this level and the
            Gram G of the workload, shape (cells, cells).

        Returns
        -------
        gains : decrease of tr(G R) by the best split of each box alone, shape (boxes,).  A gain is
            0 if no split decreases tr(G R).
        halves : the two boxes of the best split, shape (boxes, 2, 2, axes).  If the gain is 0, they
            are two copies of the box.
        """
        gains = np.zeros(len(self.boxes))
        halves = np.repeat(self.boxes[:, None], 2, axis=1)
        strides = np.cumprod((1, *self.sizes[:0:-1]))[::-1]
        shapes = self.boxes[:, 1] - self.boxes[:, 0]
        # Boxes of equal shape are evaluated in one batch.
        for shape in np.unique(shapes[np.prod(shapes, axis=1) > 1], axis=0):
            batch = np.flatnonzero((shapes == shape).all(axis=1))
            # ``offsets`` are the indices of the cells of a box, relative to its first cell.
            steps = [np.arange(m) * s for m, s in zip(shape, strides, strict=True)]
            offsets = functools.reduce(np.add.outer, steps)
            cells = (self.boxes[batch, 0] @ strides)[:, None] + offsets.ravel()
            level_R, level_M = self._blocks_with_level(R, M, cells)
            for axis in np.flatnonzero(shape > 1).tolist():
                split_gains = _split_gains(level_R, level_M, tuple(shape), axis)
                cut = np.argmax(split_gains, axis=1)
                best = split_gains[np.arange(len(batch)), cut]
                is_better = best > gains[batch]
                improved = batch[is_better]
                gains[improved] = best[is_better]
                halves[improved] = self.boxes[improved, None]
                # The cut is both the end of the first half and the start of the second half.
                boundary = self.boxes[improved, 0, axis] + cut[is_better] + 1
                halves[improved, 0, 1, axis] = halves[improved, 1, 0, axis] = boundary
        return gains, halves

    def _blocks_with_level(self, R: Array, M: Array, cells: Index) -> tuple[Array, Array]:
        """Return the diagonal blocks of R and M on boxes, after this level is added.

        ``cells`` has the indices of the cells of each box, shape (boxes, cells per box).  ``R`` and
        ``M`` are the matrices before the level is added.  Both results have shape (boxes, cells per
        box, cells per box).
        """
        pairs = (cells[:, :, None], cells[:, None, :])
        Z, B, D = (np.moveaxis(A[:, cells], 0, 1) for A in (self.Z, self.B, self.D))
        change = np.swapaxes(B, 1, 2) @ D
        level_R = R[pairs] - np.swapaxes(Z, 1, 2) @ B
        level_M = M[pairs] - change - np.swapaxes(change, 1, 2)
        return level_R, level_M


def _split_gains(R: Array, M: Array, shape: tuple[int, ...], axis: int) -> Array:
    """Return the gain of every split of boxes along an axis, shape (boxes, cuts).

    The boxes are those of a level, and have equal shape.  ``R`` and ``M`` have the diagonal blocks
    of the matrices R and M on the boxes, for the strategy with the level.
    """
    # p1 and p2 are the indicators of the two halves.  r12 is p1^T R p2, and m12 is p1^T M p2.
    r11, r12, r22 = _half_sums(R, shape, axis)
    m11, m12, m22 = _half_sums(M, shape, axis)
    # Splitting a box p into p1 + p2 subtracts the matrix p1 p2^T + p2 p1^T of rank 2 from P^T P.
    # The Woodbury formula gives the gain: the decrease of tr(G R).
    gains: Array = (r22 * m11 + 2.0 * (1.0 - r12) * m12 + r11 * m22) / (
        r11 * r22 - (1.0 - r12) ** 2
    )
    return gains


def _half_sums(blocks: Array, shape: tuple[int, ...], axis: int) -> tuple[Array, Array, Array]:
    """Return sums of matrix entries over two halves of boxes, for every cut along an axis.

    Parameters
    ----------
    blocks : one symmetric matrix per box, shape (boxes, cells, cells).
    shape : number of cells of each box along every axis.
    axis : axis along which the boxes are cut in two.

    Returns
    -------
    Three arrays of shape (boxes, cuts):

    - sums of the entries with row and column in the first half;
    - sums of the entries with the row in the first half and the column in the second half;
    - sums of the entries with row and column in the second half.
    """
    m = shape[axis]
    before, after = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    # sums over the cells with equal positions on the axis, shape (boxes, m, m)
    table = blocks.reshape(len(blocks), before, m, after, before, m, after).sum(axis=(1, 3, 4, 6))
    # entry [box, i, j] is the sum over the rows up to i and the columns up to j
    partial_sums = np.cumsum(np.cumsum(table, axis=1), axis=2)
    first_half = np.diagonal(partial_sums, axis1=1, axis2=2)[:, :-1]
    first_rows, block_sum = partial_sums[:, :-1, -1], partial_sums[:, -1:, -1]
    # Both off-diagonal blocks have the sum ``first_rows - first_half``, because the matrix is
    # symmetric.
    return first_half, first_rows - first_half, block_sum - 2.0 * first_rows + first_half


def indicator(boxes: Boxes, sizes: tuple[int, ...]) -> scipy.sparse.csr_array:
    """Return one row per box, with 1 in the cells of the box and 0 elsewhere, shape (boxes, cells)."""
    import scipy.sparse

    cells = np.arange(math.prod(sizes)).reshape(sizes)
    members = [cells[tuple(slice(*ends) for ends in box.T)].ravel() for box in boxes]
    starts = np.cumsum([0, *(len(m) for m in members)])
    columns = np.concatenate(members)
    return scipy.sparse.csr_array(
        (np.ones(len(columns)), columns, starts), shape=(len(boxes), cells.size)
    )


def single_cells(sizes: tuple[int, ...]) -> Boxes:
    """Return one box per cell of a domain, shape (cells, 2, axes)."""
    first = np.stack(np.unravel_index(np.arange(math.prod(sizes)), sizes), axis=1)
    return np.stack([first, first + 1], axis=1)


def count_boxes(boxes: Boxes) -> BoxCounts:
    """Return how often each box occurs in ``boxes``, shape (boxes, 2, axes)."""
    return Counter((tuple(low), tuple(high)) for low, high in boxes.tolist())


def precision_of(boxes: Boxes, weights: Array, sizes: tuple[int, ...]) -> Array:
    """Return A^T A, shape (cells, cells), for strategy rows A that are weighted boxes."""
    P = indicator(boxes, sizes)
    return np.asarray((P.T @ P.multiply(weights[:, None] ** 2).tocsr()).todense())


# Largest number of cells for level selection.  At this number the matrices G, R and M take 400 MB.
MAX_CELLS = 4096


@dataclass(frozen=True, kw_only=True, eq=False)
class SelectedLevels:
    """A strategy of weighted boxes with its error and a lower bound.

    Attributes
    ----------
    sizes : shape of the domain.
    boxes : first cells and ends of the distinct boxes, shape (boxes, 2, axes).
    weights : weight of every box; every column of the rows has Euclidean norm 1.
    error : sum of the variances of the workload's queries at privacy cost 1, in counts^2.
    bound : singular value bound; no matrix mechanism with Gaussian noise has a smaller error.
    levels : number of levels, the single cells included.
    status : reason for the end of the search.
    """

    sizes: tuple[int, ...]
    boxes: Boxes
    weights: Array
    error: float
    bound: float
    levels: int
    status: str

    @functools.cached_property
    def rows(self) -> Array:
        """Strategy rows, shape (boxes, cells), with full column rank."""
        rows: Array = self.weights[:, None] * indicator(self.boxes, self.sizes).toarray()
        return rows

    @functools.cached_property
    def precision(self) -> Array:
        """Precision A^T A of the strategy rows A, shape (cells, cells), with diagonal 1."""
        return precision_of(self.boxes, self.weights, self.sizes)

    @functools.cached_property
    def square_rows(self) -> Array:
        """Square strategy matrix B with B^T B = A^T A, for the strategy rows A.

        Shape (cells, cells).  With Gaussian noise, B has the same error and privacy cost as A.
        """
        return scipy.linalg.cholesky(self.precision)


def svd_bound(*grams: Array) -> float:
    """Return the singular value bound of a product workload, in counts^2 at privacy cost 1.

    No matrix mechanism with Gaussian noise has a smaller error.  The bound of a workload W is (sum
    of the singular values of W)^2 / cells.  It is computed after cells with equal columns of W are
    merged; it remains valid, and may be larger or smaller than without merging.  The bound of a
    product is the product of the bounds of its factors.

    ``grams`` are the Gram matrices W^T W of the factors.

    Source: Li and Miklau, corollary 3.1; HDMM, definition 11, proposition 5 and theorem 5.

    >>> svd_bound(np.eye(3)), round(svd_bound(np.eye(3), np.ones((4, 4))), 9)
    (3.0, 3.0)
    """
    bound = 1.0
    for gram in grams:
        _, small = merge_cells(_checked_gram(gram, sizes=None))
        eigenvalues = np.linalg.eigvalsh(small)
        # Eigenvalues near 0 are left out.  They may be rounding errors, and their square roots
        # would be much larger.
        nonzero = eigenvalues > 1e-14 * len(small) * eigenvalues[-1]
        bound *= float(np.sum(np.sqrt(eigenvalues[nonzero]))) ** 2 / len(small)
    return bound


def merge_cells(gram: Array) -> tuple[Index, Array]:
    """Merge cells on which every query has equal coefficients into buckets.

    Returns
    -------
    labels : index of the bucket of every cell, shape (cells,).
    gram : Gram matrix of the queries as functions of bucket counts, shape (buckets, buckets).

    >>> merge_cells(np.array([[1.0, 1, 0], [1, 1, 0], [0, 0, 2]]))[0]
    array([0, 0, 1])
    """
    diagonal, labels = np.diag(gram), np.full(len(gram), -1)
    first: list[int] = []
    tolerance = ROUNDING * max(float(diagonal.max(initial=0.0)), 1e-300)
    for cell in range(len(gram)):
        if labels[cell] < 0:
            # The sum is the squared distance of two columns of W.  It is 0 if and only if all
            # queries have equal coefficients on both cells.
            same_bucket = (diagonal + diagonal[cell] - 2.0 * gram[cell] <= tolerance) & (labels < 0)
            same_bucket[cell] = True
            labels[same_bucket] = len(first)
            first.append(cell)
    return labels, gram[np.ix_(first, first)]


def level_selection(
    gram: Array, sizes: Sequence[int] | None = None, options: LevelOptions | None = None
) -> SelectedLevels:
    """Search for a strategy by level selection (Li and Miklau, program 4.1).

    The error of the result is at most trace(gram), the error of measuring every cell.

    Parameters
    ----------
    gram : Gram matrix of the workload, shape (cells, cells).
    sizes : shape of the domain; one axis by default.
    options : stopping rules; None for the defaults of `LevelOptions`.

    Raises
    ------
    WorkloadError
        If the Gram is not a symmetric matrix of finite numbers on these cells.
    LimitExceeded
        For more than 4,096 cells.

    >>> strategy = level_selection(np.array([[4.0, 3, 2], [3, 4, 3], [2, 3, 4]]))
    >>> strategy.bound < strategy.error < 12.0
    True
    """
    gram = _checked_gram(gram, sizes)
    shape = tuple(sizes) if sizes is not None else (len(gram),)
    bound, single = svd_bound(gram), count_boxes(single_cells(shape))
    # the search starts with the strategy that measures the single cells, whose covariance R is I
    part = LevelPart(first=0, sizes=shape, R=np.eye(len(gram)), M=gram)
    with threads_for(len(gram)):
        boxes, status = search(
            [part], single, float(np.trace(gram)), options or LevelOptions(), bound, gram
        )
    return _strategy_of(gram, shape, boxes, bound, status)


@dataclass(frozen=True, kw_only=True, eq=False)
class SeparateAxes:
    """One strategy per axis and the total, for queries that are each on a single axis.

    Attributes
    ----------
    total : share of the privacy cost for measuring the total of all cells.
    shares : share of the privacy cost for every axis.  ``total`` and ``shares`` sum to 1.
    parts : strategy of every axis at privacy cost 1.  Its rows are measured after multiplication by
        the square root of the axis's share.
    error : sum of the variances of all queries at privacy cost 1, in counts^2.  Least squares
        estimates the queries from all measurements.
    """

    total: float
    shares: tuple[float, ...]
    parts: tuple[SelectedLevels, ...]
    error: float


def separate_axes(grams: Sequence[Array], options: LevelOptions | None = None) -> SeparateAxes:
    """Return one strategy per axis and the budget shares, for queries on single axes.

    One-way tables have only the total in common.  If the total is measured, each axis is a separate
    problem.  Least squares over all measurements estimates the cells of each axis.  The shares
    minimize the summed variance of all queries.

    Parameters
    ----------
    grams : Gram matrix of every axis, shape (n_i, n_i) each; at least one.
    options : stopping rules of each search; None for the defaults of `LevelOptions`.

    Source: Li and Miklau, theorem 4.2; the choice of the shares is an extension of this project.

    >>> separation = separate_axes([np.eye(2), np.eye(3)])
    >>> round(separation.total + sum(separation.shares), 9)
    1.0
    """
    import scipy.optimize

    if not len(grams):
        raise WorkloadError("grams is empty. Give one Gram matrix per axis.")
    parts = tuple(level_selection(gram, options=options) for gram in grams)
    covariances = [np.linalg.inv(part.precision) for part in parts]
    # These arrays are for the complete budget on one axis i: the covariances of the cells with
    # their sum, shape (n_i,), and the variance of the sum.
    total_covariances = [C.sum(axis=1) for C in covariances]
    total_variance = np.array([u.sum() for u in total_covariances])
    separate_errors = np.array([part.error for part in parts])
    total_errors = np.array(
        [u @ gram @ u for u, gram in zip(total_covariances, grams, strict=True)]
    )

    def error(logits: Array) -> float:
        """Return the summed variance of all queries for the shares softmax(logits)."""
        shares = scipy.special.softmax(logits)
        precision = shares[1:] / total_variance
        # for every axis, the precision of the total from all other measurements
        other_precision = shares[0] + precision.sum() - precision
        # The covariance of the cells of an axis is (s X + o 11^T)^-1.  X is the precision of its
        # strategy, s is its share, and o is the precision of the total from other measurements.  By
        # the formula of Sherman and Morrison it is (C - o u u^T / (s + o 1^T u)) / s, with C = X^-1
        # and u = C 1.
        savings = other_precision * total_errors / (shares[1:] + other_precision * total_variance)
        return float(np.sum((separate_errors - savings) / shares[1:]))

    # At the start, the share of an axis is proportional to the square root of its error, and the
    # share of the total is arbitrary.  The smallest factors keep the logarithms finite.
    start = np.concatenate(
        [
            [-1.0],
            0.5 * np.log(np.maximum(separate_errors, 1e-9 * separate_errors.max(initial=1e-300))),
        ]
    )
    if not separate_errors.any():
        return SeparateAxes(
            total=0.0, shares=(1.0 / len(parts),) * len(parts), parts=parts, error=0.0
        )
    # the bound keeps the search from shares that are too small to divide by
    optimum = scipy.optimize.minimize(
        error, start, method="L-BFGS-B", bounds=[(-20.0, None)] * len(start)
    )
    shares = scipy.special.softmax(optimum.x)
    return SeparateAxes(
        total=float(shares[0]),
        shares=tuple(float(s) for s in shares[1:]),
        parts=parts,
        error=error(optimum.x),
    )


def interval_strategy(
    gram: Array, groups: int | None = None, options: LevelOptions | None = None
) -> SelectedLevels:
    """Return a strategy for one axis by level selection in two stages.

    The axis is divided into intervals.  The first stage selects levels whose boxes are unions of
    intervals.  The second stage selects levels inside every interval.  The search is much faster
    than `level_selection`, and the result is slightly less accurate.

    Parameters
    ----------
    gram : Gram matrix of the workload, shape (cells, cells).
    groups : number of intervals.  The default is the cube root of the number of cells, as in the
        paper.
    options : stopping rules of both stages; None for the defaults of `LevelOptions`.

    Source: Li and Miklau, section 4.3.2.

    >>> interval_strategy(np.eye(8)).error
    8.0
    """
    gram = _checked_gram(gram, sizes=None)
    n, bound = len(gram), svd_bound(gram)
    count = round(n ** (1 / 3)) if groups is None else groups
    if not 1 <= count <= n:
        raise WorkloadError(
            f"groups, the number of intervals, is {count}, but there are {n} cells. Give a number"
            f" from 1 to {n}."
        )
    edges = np.linspace(0, n, count + 1).round().astype(np.int64)
    # The matrix ``even_shares``, shape (cells, intervals), distributes the count of every interval
    # evenly over its cells.
    even_shares = np.zeros((n, count))
    for k, (first, end) in enumerate(itertools.pairwise(edges)):
        even_shares[first:end, k] = 1.0 / (end - first)
    coarse = level_selection(even_shares.T @ gram @ even_shares, options=options)
    boxes = count_boxes(single_cells((n,)))
    # The number of levels that contain a box is its squared weight times the number of all levels.
    for (low, high), weight in zip(coarse.boxes[:, :, 0], coarse.weights, strict=True):
        boxes[(int(edges[low]),), (int(edges[high]),)] += round(coarse.levels * weight**2)
    labels = np.repeat(np.arange(count), np.diff(edges))
    # R is the covariance of the cells if two things are measured: the single cells (precision
    # matrix I), and the levels of the first stage.
    R = np.linalg.inv(np.eye(n) + (coarse.precision * coarse.levels)[np.ix_(labels, labels)])
    M = R @ gram @ R
    intervals = [slice(first, end) for first, end in itertools.pairwise(edges)]
    parts = [
        LevelPart(
            first=interval.start,
            sizes=(interval.stop - interval.start,),
            R=R[interval, interval],
            M=M[interval, interval],
        )
        for interval in intervals
    ]
    boxes, _ = search(parts, boxes, float(np.sum(gram * R)), options or LevelOptions(), bound)
    return _strategy_of(gram, (n,), boxes, bound, f"searched in {count} intervals of cells")


def _strategy_of(
    gram: Array, sizes: tuple[int, ...], counts: BoxCounts, bound: float, status: str
) -> SelectedLevels:
    """Return the strategy in which the squared weight of a box is proportional to its levels.

    ``counts`` maps each box to the number of levels that contain it; each box is one row.  If
    measuring only the single cells has a smaller error, that strategy is returned instead.
    """
    # Every level contains each cell once, which gives the number of levels.
    box_cells = np.prod([np.subtract(high, low) for low, high in counts], axis=1)
    levels = round(float(np.dot(box_cells, list(counts.values()))) / len(gram))
    boxes = np.array(list(counts))
    weights = np.sqrt(np.array(list(counts.values())) / levels)
    factor = scipy.linalg.cho_factor(precision_of(boxes, weights, sizes))
    error = float(np.trace(scipy.linalg.cho_solve(factor, gram)))
    if error > float(np.trace(gram)):
        boxes, levels, error = single_cells(sizes), 1, float(np.trace(gram))
        weights = np.ones(len(boxes))
        status += "; the single cells alone are better"
    return SelectedLevels(
        sizes=sizes,
        boxes=boxes,
        weights=weights,
        error=error,
        bound=bound,
        levels=levels,
        status=status,
    )


def _square_matrix(gram: Array) -> Array:
    """Return a Gram matrix as floats; raise WorkloadError unless it is square and finite."""
    gram = np.asarray(gram, dtype=float)
    if (
        gram.ndim != 2
        or gram.shape[0] != gram.shape[1]
        or not len(gram)
        or not np.isfinite(gram).all()
    ):
        raise WorkloadError(
            f"The Gram matrix has shape {gram.shape}. Give a square matrix of finite numbers."
        )
    return gram


def _checked_gram(gram: Array, sizes: Sequence[int] | None) -> Array:
    """Return the Gram matrix as an array of floats.

    Raises
    ------
    WorkloadError
        If it is not a symmetric matrix of finite numbers, or does not fit ``sizes``.
    LimitExceeded
        If it is for more than `MAX_CELLS` cells.
    """
    gram = _square_matrix(gram)
    if np.abs(gram - gram.T).max() > 1e-9 * np.abs(gram).max():
        raise WorkloadError(
            "The Gram matrix is not symmetric. Give W^T W, with one row of W per query."
        )
    if sizes is not None and math.prod(sizes) != len(gram):
        raise WorkloadError(
            f"The Gram matrix has {len(gram)} rows, but the sizes {tuple(sizes)} have"
            f" {math.prod(sizes)} cells. Give sizes whose product is the number of rows."
        )
    if len(gram) > MAX_CELLS:
        raise LimitExceeded(
            f"The Gram matrix is for {len(gram):,} cells, but at most {MAX_CELLS:,} are allowed."
            " Plan the attributes separately, or merge cells."
        )
    return gram


# For forecasts: number of times that level selection on one attribute evaluates the splits of all
# boxes.
EXPECTED_EVALUATIONS = 520
# For forecasts: share of EXPECTED_EVALUATIONS that is needed if all queries are marginals.
MARGINALS_EVALUATION_SHARE = 1 / 15
# For forecasts: evaluating the splits of all boxes once takes SECONDS_PER_AXIS per attribute plus
# SECONDS_PER_PAIR per pair of cells.
SECONDS_PER_AXIS, SECONDS_PER_PAIR = 8e-4, 3e-8
# For forecasts: seconds of computing a strategy from selected levels, divided by cells^3.
START_SECONDS_PER_CUBE = 6e-10
# A numeric attribute with fewer cells than this is measured cell by cell, like a categorical one.
MIN_NUMERIC_CELLS = 4


@dataclass(frozen=True, kw_only=True)
class PerAttribute(ExplicitMechanism):
    """Base class of mechanisms whose strategy is a product over attributes."""

    @abstractmethod
    def strategy(self, n: int, gram: Array, law: str) -> Strategy:
        """Return the strategy of a numeric attribute with n cells.

        ``gram`` is the Gram matrix of the queries on the attribute, shape (n, n).
        """

    def design(
        self, workload: Workload, law: str, limits: Limits, bases: tuple[Array, ...]
    ) -> Design:
        attributes = used_attributes(workload)
        factors = []
        for axis, name in enumerate(attributes):
            n = workload.schema[name].size
            if workload.schema[name].kind == "categorical" or n < MIN_NUMERIC_CELLS:
                strategy: Strategy = identity_strategy(n)
            else:
                strategy = self.strategy(n, _attribute_gram(workload, name), law)
            factors.append(((axis,), strategy))
        return one_component(workload, attributes, tuple(factors))


@dataclass(frozen=True, kw_only=True)
class Hierarchical(PerAttribute):
    """A tree of intervals on every numeric attribute.

    Options
    -------
    branching : number of children of a node, at least 2.  "best" is the number with the smallest
        mean variance of ranges (HB).
    """

    name: ClassVar[str] = "hierarchical"
    title: ClassVar[str] = "Hierarchical"
    meaning: ClassVar[str] = (
        "Measures a tree of intervals; a range is then a sum of few noisy numbers."
    )
    variants: ClassVar[tuple[dict[str, Any], ...]] = ({}, {"branching": "best"})
    choices: ClassVar[Mapping[str, tuple[Any, ...]]] = {"branching": (2, 4, 8, 16, "best")}

    branching: int | str = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        branching: Any = self.branching
        if branching != "best" and (not is_integer(branching) or branching < 2):
            raise PlanError(
                f"branching is {branching!r}. Give an integer of at least 2, or 'best'."
            )

    def strategy(self, n: int, gram: Array, law: str) -> Strategy:
        return _tree(n, self.branching, law)


@dataclass(frozen=True, kw_only=True)
class Wavelet(PerAttribute):
    """Haar wavelets on every numeric attribute."""

    name: ClassVar[str] = "wavelet"
    title: ClassVar[str] = "Wavelet (Privelet)"
    meaning: ClassVar[str] = "Measures differences between halves at every scale."

    def strategy(self, n: int, gram: Array, law: str) -> Strategy:
        return _wavelet(n, law)


@dataclass(frozen=True, kw_only=True)
class GreedyHierarchical(PerAttribute):
    """A binary tree on every numeric attribute with nodes weighted for the workload (GreedyH)."""

    name: ClassVar[str] = "greedyh"
    title: ClassVar[str] = "GreedyH"
    meaning: ClassVar[str] = "A binary tree of intervals whose nodes are weighted for the workload."

    def strategy(self, n: int, gram: Array, law: str) -> Strategy:
        noise: NoiseLaw = "laplace" if law == "laplace" else "gaussian"
        return explicit_strategy(greedy_hierarchy(gram, noise), (n,), law)


@dataclass(frozen=True, kw_only=True)
class LevelSelection(ExplicitMechanism):
    """Levels of boxes on the full domain, added greedily while they lower the error."""

    name: ClassVar[str] = "lsa"
    title: ClassVar[str] = "Level selection (LSA)"
    meaning: ClassVar[str] = (
        "Adds levels of boxes while they lower the error, for domains of a few thousand cells."
    )
    laws: ClassVar[tuple[str, ...]] = ("gaussian",)

    def forecast(self, workload: Workload, limits: Limits) -> Forecast:
        attributes = used_attributes(workload)
        cells = check_dense(workload, attributes, "Level selection")
        text = f"one problem on {cells:,} cells"
        seconds = 0.1 + count_split_evaluations(workload, cells) * (
            SECONDS_PER_AXIS * len(attributes) + SECONDS_PER_PAIR * cells**2
        )
        return Forecast(seconds=seconds, memory=120e6 + 80.0 * cells**2, text=text)

    def design(
        self, workload: Workload, law: str, limits: Limits, bases: tuple[Array, ...]
    ) -> Design:
        """Return a strategy on the full table, from level selection or from stored rows."""
        attributes = used_attributes(workload)
        cells = check_dense(workload, attributes, "Level selection")
        sizes = workload.schema.sizes(attributes)
        if bases:
            rows = bases[0]
            if rows.ndim != 2 or rows.shape[1] != cells:
                raise ValueError("the stored strategy rows do not have one column per cell")
        else:

            def watch(levels: int, gap: float) -> None:
                limits.tell(
                    1.0 - 1.0 / (1.0 + levels / 10.0), f"Level {levels}, {gap:.0%} above the bound"
                )

            start_seconds = START_SECONDS_PER_CUBE * cells**3
            check_start(f"Level selection on {cells:,} cells", start_seconds, limits)
            # The rows and their pseudoinverse are computed after the search, so the search ends
            # before the deadline.
            reserve = min(start_seconds, 0.5 * (limits.time_limit or math.inf))
            options = LevelOptions(deadline=limits.deadline() - reserve, watch=watch)
            rows = level_selection(domain_gram(workload), sizes or (1,), options).square_rows
        factors = ((tuple(range(len(sizes))), explicit_strategy(rows, sizes)),) if sizes else ()
        design = one_component(workload, attributes, factors)
        return Design(components=design.components, matrices=(rows,))


def count_split_evaluations(workload: Workload, cells: int) -> float:
    """Estimate the number of evaluations of level selection, for forecasts.

    An evaluation computes the gains of all splits of the boxes of a level.  The formula was fitted
    to twelve workloads.  The number of evaluations grows with the root of the largest number of
    attributes of a group.  The number is smaller if there are fewer queries than cells, or if all
    queries are marginals and totals.
    """
    groups = [group for group in workload.groups if group.weight > 0.0]
    families = {type(part.family) for group in groups for part in group.parts}
    queries = sum(group.count for group in groups)
    share = (
        MARGINALS_EVALUATION_SHARE
        if families <= {Marginal, Total}
        else min(1.0, math.sqrt(queries / cells))
    )
    return (
        EXPECTED_EVALUATIONS
        * share
        * math.sqrt(max((len(group.attributes) for group in groups), default=1))
    )


def _attribute_gram(workload: Workload, name: str) -> Array:
    """Return the sum of the Gram matrices of all query families on an attribute, shape (n, n).

    The weight of a group multiplies its Gram matrices.  Families on several attributes, such as
    affine queries, are left out.  If the sum is 0, the identity is returned.
    """
    n = workload.schema[name].size
    total = np.zeros((n, n))
    for group in workload.groups:
        for part in group.parts:
            if len(part.axes) == 1 and group.attributes[part.axes[0]] == name and group.weight > 0:
                total += group.weight * part.family.gram(part.sizes)
    return total if total.any() else np.eye(n)


@lru_cache(maxsize=64)
def _tree(n: int, branching: int | str, law: str) -> Strategy:
    noise: NoiseLaw = "laplace" if law == "laplace" else "gaussian"
    rows = hb(n, noise) if branching == "best" else hierarchy(n, int(branching))
    return explicit_strategy(rows, (n,), law)


@lru_cache(maxsize=64)
def _wavelet(n: int, law: str) -> Strategy:
    return explicit_strategy(wavelet(n), (n,), law)
