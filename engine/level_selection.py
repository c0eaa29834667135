"""Level selection: strategies built one partition of the cells at a time.

A level is a set of boxes that cover every cell once, so adding it raises the squared norm of every column by 1.  A
strategy starts with the single cells; each new level starts as one box, the whole domain, and splits boxes in two for
as long as the error of the workload falls.  Levels are added until one does not pay.

Notation
--------
Gram        G     W^T W, shape (cells, cells), in counts^2
precision   X     A^T A of the strategy so far; R = X^-1, M = R G R, error = (squared column norm) tr(G R)
level       P     0/1 rows, one box each; Z = P R, Y = P M, S = I + P R P^T, T = P M P^T

A level lowers tr(G R) by tr(S^-1 T).  Splitting a box q into q1 + q2 changes the precision by - q1 q2^T - q2 q1^T, of
rank 2, so the gains of all splits of all boxes follow from sums of R and M over corners of each box alone.  One level
costs a few products of the size of the Gram, however many splits it has.

Source: Li and Miklau, Efficient batch query answering under differential privacy, program 4.1 and section 4.3; the
sums over corners and the joint splitting of all boxes of a level are our own.
"""

from __future__ import annotations

import functools
import itertools
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy.linalg
import scipy.optimize
import scipy.sparse
import scipy.special

from engine.errors import LimitExceeded, WorkloadError
from engine.family import Array, Index

MAX_CELLS = 4096  # a Gram and its two companions take 400 MB there
ROUNDING = 1e-12  # a relative change of the error below this is no improvement
REFRESH = 8  # levels between two exact inverses; between them R and M are updated
Boxes = npt.NDArray[np.int64]  # shape (boxes, 2, axes): first cells and ends (exclusive)


@dataclass(frozen=True, kw_only=True)
class Options:
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


PUBLISHED = Options(patience=0, pays=ROUNDING)


@dataclass(frozen=True, kw_only=True, eq=False)
class LevelSelection:
    """A strategy of boxes with its error and a bound.

    Attributes
    ----------
    sizes : shape of the domain.
    boxes : first cells and ends of the distinct boxes, shape (boxes, 2, axes).
    weights : weight of every box; every column of the rows has Euclidean norm 1.
    error : sum of the variances of the workload's queries at privacy cost 1, in counts^2.
    bound : singular value bound; no matrix mechanism with Gaussian noise has a smaller error.
    levels : number of levels, the single cells included.
    status : how the search ended, in words.
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
        rows: Array = self.weights[:, None] * _indicator(self.boxes, self.sizes).toarray()
        return rows

    @functools.cached_property
    def precision(self) -> Array:
        """rows^T rows, shape (cells, cells), with ones on the diagonal."""
        return _precision(self.boxes, self.weights, self.sizes)

    @functools.cached_property
    def square_rows(self) -> Array:
        """Fewer rows with the same errors under Gaussian noise, shape (cells, cells)."""
        return scipy.linalg.cholesky(self.precision)


def svd_bound(gram: Array) -> float:
    """Return the error at privacy cost 1 that no matrix mechanism with Gaussian noise beats, in counts^2.

    Cells that every query treats alike count once, which only raises the bound.

    Source: corollary 3.1.

    >>> svd_bound(np.eye(3))
    3.0
    """
    _, small = merge_cells(_checked(gram, None))
    eigenvalues = np.linalg.eigvalsh(small)
    return float(np.sum(np.sqrt(np.maximum(eigenvalues, 0.0))) ** 2 / len(small))


def merge_cells(gram: Array) -> tuple[Index, Array]:
    """Return (label of the bucket of every cell, Gram on the buckets): cells that every query treats alike.

    A strategy on the buckets, each measured as the sum of its cells, answers the workload with the same error.

    >>> merge_cells(np.array([[1.0, 1, 0], [1, 1, 0], [0, 0, 2]]))[0]
    array([0, 0, 1])
    """
    diagonal, labels = np.diag(gram), np.full(len(gram), -1)
    first: list[int] = []
    near = ROUNDING * max(float(diagonal.max(initial=0.0)), 1e-300)
    for cell in range(len(gram)):
        if labels[cell] < 0:
            # |W e_a - W e_b|^2 = 0 exactly when every query treats a and b alike
            alike = (diagonal + diagonal[cell] - 2.0 * gram[cell] <= near) & (labels < 0)
            alike[cell] = True
            labels[alike] = len(first)
            first.append(cell)
    return labels, gram[np.ix_(first, first)]


def level_selection(gram: Array, sizes: Sequence[int] | None = None, options: Options | None = None) -> LevelSelection:
    """Return the strategy of program 4.1 for a Gram on cells of shape ``sizes``, one axis when left out.

    Guarantee: the error is never above that of the single cells, trace(gram), nor below ``bound``.

    Raises
    ------
    WorkloadError : the Gram is no symmetric matrix of finite numbers on these cells.
    LimitExceeded : more than 4,096 cells.

    >>> found = level_selection(np.array([[4.0, 3, 2], [3, 4, 3], [2, 3, 4]]))
    >>> found.bound < found.error < 12.0
    True
    """
    gram = _checked(gram, sizes)
    shape = tuple(sizes) if sizes is not None else (len(gram),)
    bound, single = svd_bound(gram), _counted(_single_cells(shape))
    part = _Part(first=0, sizes=shape, R=np.eye(len(gram)), M=gram)
    found, status = _search([part], single, float(np.trace(gram)), options or Options(), bound, gram)
    return _finished(gram, shape, found, bound, status)


@dataclass(frozen=True, kw_only=True, eq=False)
class Separation:
    """Strategies of separated workloads beside the measured total.

    Attributes
    ----------
    total : share of the budget, as a share of the privacy cost, for the total of all cells.
    shares : share of every axis; total and shares sum to 1.
    parts : strategy of every axis, to be scaled by the root of its share.
    error : sum of the variances of all queries by least squares on everything measured, at privacy cost 1, in counts^2.
    """

    total: float
    shares: tuple[float, ...]
    parts: tuple[LevelSelection, ...]
    error: float


def separated(grams: Sequence[Array], options: Options | None = None) -> Separation:
    """Return one strategy per axis for queries that each ask about one axis only, and the shares of the budget.

    One-way tables share nothing but the total, so with the total measured each axis is a problem of its own.  Least
    squares then adds to every axis what the others say about the total.  The shares minimise the exact error.

    Source: theorem 4.2; the choice of the shares is our own.

    >>> found = separated([np.eye(2), np.eye(3)])
    >>> round(found.total + sum(found.shares), 9)
    1.0
    """
    if not len(grams):
        raise WorkloadError("No workload was given to separate. Give one Gram matrix per axis.")
    parts = tuple(level_selection(gram, options=options) for gram in grams)
    covariances = [np.linalg.inv(part.precision) for part in parts]
    along = [C.sum(axis=1) for C in covariances]
    spread = np.array([u.sum() for u in along])  # variance of the total from one axis alone
    alone = np.array([part.error for part in parts])
    common = np.array([u @ gram @ u for u, gram in zip(along, grams, strict=True)])

    def error(logits: Array) -> float:
        shares = scipy.special.softmax(logits)
        precision = shares[1:] / spread
        others = shares[0] + precision.sum() - precision
        # (s X + o 11^T)^-1 = (R - o u u^T / (s + o k)) / s
        return float(np.sum((alone - others * common / (shares[1:] + others * spread)) / shares[1:]))

    start = np.concatenate([[-1.0], 0.5 * np.log(np.maximum(alone, 1e-9 * alone.max(initial=1e-300)))])
    if not alone.any():
        return Separation(total=0.0, shares=(1.0 / len(parts),) * len(parts), parts=parts, error=0.0)
    found = scipy.optimize.minimize(error, start, method="L-BFGS-B", bounds=[(-20.0, None)] * len(start))
    shares = scipy.special.softmax(found.x)
    return Separation(
        total=float(shares[0]), shares=tuple(float(s) for s in shares[1:]), parts=parts, error=error(found.x)
    )


def generalised(gram: Array, groups: int | None = None, options: Options | None = None) -> LevelSelection:
    """Return a strategy for one axis from a search on ``groups`` merged runs of cells, then one inside every run.

    Much cheaper than the full search, and modestly less accurate.  The cube root of the number of cells when
    ``groups`` is left out, as the paper advises.

    Source: section 4.3.2; a run with fewer levels than others measures its single cells more, so that columns have
    equal norms.

    >>> generalised(np.eye(8)).error
    8.0
    """
    gram = _checked(gram, None)
    n, bound = len(gram), svd_bound(gram)
    count = round(n ** (1 / 3)) if groups is None else groups
    if not 1 <= count <= n:
        raise WorkloadError(f"{count} groups were asked for on {n} cells. Give a number from 1 to the number of cells.")
    edges = np.linspace(0, n, count + 1).round().astype(np.int64)
    spread = np.zeros((n, count))
    for k, (first, end) in enumerate(itertools.pairwise(edges)):
        spread[first:end, k] = 1.0 / (end - first)  # a run is a cell whose records are spread evenly
    coarse = level_selection(spread.T @ gram @ spread, options=options)
    found = _counted(_single_cells((n,)))
    for (low, high), weight in zip(coarse.boxes[:, :, 0], coarse.weights, strict=True):
        found[(int(edges[low]),), (int(edges[high]),)] += round(coarse.levels * weight**2)
    labels = np.repeat(np.arange(count), np.diff(edges))
    R = np.linalg.inv(np.eye(n) + (coarse.precision * coarse.levels)[np.ix_(labels, labels)])
    M, runs = R @ gram @ R, [slice(first, end) for first, end in itertools.pairwise(edges)]
    parts = [_Part(first=run.start, sizes=(run.stop - run.start,), R=R[run, run], M=M[run, run]) for run in runs]
    found, _ = _search(parts, found, float(np.sum(gram * R)), options or Options(), bound)
    return _finished(gram, (n,), found, bound, f"generalised over {count} runs of cells")


Found = Counter[tuple[tuple[int, ...], tuple[int, ...]]]  # how often each box was chosen


class _Part:
    """A run of cells that is partitioned on its own, with its blocks of R and M."""

    def __init__(self, *, first: int, sizes: tuple[int, ...], R: Array, M: Array) -> None:
        self.first, self.sizes, self.R, self.M = first, sizes, R, M

    def level(self) -> _Level:
        """Return the level that splitting from the whole part leads to."""
        level = _Level(self.R, self.M, np.array([[[0] * len(self.sizes), self.sizes]]), self.sizes)
        while True:
            gains, children = level.splits(self.R, self.M)
            pays = gains > 0.0
            if not pays.any():
                return level
            boxes = np.concatenate([level.boxes[~pays], *children[pays]])
            split = _Level(self.R, self.M, boxes, self.sizes)
            if split.gain <= level.gain * (1.0 + ROUNDING):
                return level
            level = split

    def add(self, level: _Level) -> None:
        """Put the level into the strategy."""
        self.R = self.R - level.Z.T @ level.B
        change = level.B.T @ level.D
        self.M = self.M - change - change.T


def _search(
    parts: list[_Part], found: Found, trace: float, options: Options, bound: float, gram: Array | None = None
) -> tuple[Found, str]:
    """Add levels to the boxes found so far; return those of the smallest error and how the search ended.

    R and M are computed anew from the ``gram`` now and then when it is given, which keeps rounding small.
    """
    cells = sum(math.prod(part.sizes) for part in parts)
    norm = round(sum(k * math.prod(np.subtract(high, low)) for (low, high), k in found.items()) / cells)
    best, least, idle, start, found = found, norm * trace, 0, norm, found.copy()
    while norm < options.levels:
        if time.monotonic() > options.deadline:
            return best, "stopped at the time limit"
        if gram is not None and norm > start and (norm - start) % REFRESH == 0:
            weights = np.sqrt(np.array(list(found.values())))
            parts[0].R = scipy.linalg.inv(_precision(np.array(list(found)), weights, parts[0].sizes))
            parts[0].M = parts[0].R @ gram @ parts[0].R
            trace = float(np.sum(gram * parts[0].R))
        for part in parts:
            level = part.level()
            part.add(level)
            trace -= level.gain
            offset = part.first if len(part.sizes) == 1 else 0
            found.update(_counted(level.boxes + offset))
        norm += 1
        idle += 1
        if norm * trace < least * (1.0 - options.pays):
            best, least, idle = found.copy(), norm * trace, 0
        if idle > options.patience:
            return best, "finished: no further level pays"
        if options.watch is not None and bound > 0:
            options.watch(norm, math.sqrt(least / bound) - 1.0)
    return best, f"stopped after {options.levels} levels"


class _Level:
    """One level beside the strategy so far: its gain and the gains of splitting its boxes."""

    def __init__(self, R: Array, M: Array, boxes: Boxes, sizes: tuple[int, ...]) -> None:
        self.boxes, self.sizes = boxes, sizes
        self.P = _indicator(boxes, sizes)
        self.Z, self.Y = self.P @ R, self.P @ M
        self.S = scipy.linalg.cho_factor(np.eye(len(boxes)) + (self.P @ self.Z.T).T)
        self.T = (self.P @ self.Y.T).T
        self.gain = float(np.trace(scipy.linalg.cho_solve(self.S, self.T)))

    @functools.cached_property
    def B(self) -> Array:  # noqa: N802
        return scipy.linalg.cho_solve(self.S, self.Z)

    @functools.cached_property
    def D(self) -> Array:  # noqa: N802
        return self.Y - 0.5 * self.T @ self.B

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
            now_R = R[pairs] - np.swapaxes(Z, 1, 2) @ B
            now_M = M[pairs] - change - np.swapaxes(change, 1, 2)
            for axis in np.flatnonzero(shape > 1).tolist():
                r11, r12, r22 = _corners(now_R, tuple(shape), axis)
                m11, m12, m22 = _corners(now_M, tuple(shape), axis)
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


def _indicator(boxes: Boxes, sizes: tuple[int, ...]) -> scipy.sparse.csr_array:
    """Return the 0/1 rows of boxes, shape (boxes, cells)."""
    cells = np.arange(math.prod(sizes)).reshape(sizes)
    members = [cells[tuple(slice(*ends) for ends in box.T)].ravel() for box in boxes]
    starts = np.cumsum([0, *(len(m) for m in members)])
    columns = np.concatenate(members)
    return scipy.sparse.csr_array((np.ones(len(columns)), columns, starts), shape=(len(boxes), cells.size))


def _single_cells(sizes: tuple[int, ...]) -> Boxes:
    first = np.stack(np.unravel_index(np.arange(math.prod(sizes)), sizes), axis=1)
    return np.stack([first, first + 1], axis=1)


def _counted(boxes: Boxes) -> Found:
    return Counter((tuple(low), tuple(high)) for low, high in boxes.tolist())


def _precision(boxes: Boxes, weights: Array, sizes: tuple[int, ...]) -> Array:
    P = _indicator(boxes, sizes)
    return np.asarray((P.T @ P.multiply(weights[:, None] ** 2).tocsr()).todense())


def _finished(gram: Array, sizes: tuple[int, ...], found: Found, bound: float, status: str) -> LevelSelection:
    """Return the strategy of counted boxes, or the single cells when they are better, with its error computed anew."""
    cells = np.prod([np.subtract(high, low) for low, high in found], axis=1)
    levels = round(float(np.dot(cells, list(found.values()))) / len(gram))
    boxes, weights = np.array(list(found)), np.sqrt(np.array(list(found.values())) / levels)
    factor = scipy.linalg.cho_factor(_precision(boxes, weights, sizes))
    error = float(np.trace(scipy.linalg.cho_solve(factor, gram)))
    if error > float(np.trace(gram)):
        boxes, levels, error = _single_cells(sizes), 1, float(np.trace(gram))
        weights = np.ones(len(boxes))
        status += "; the single cells alone are better"
    return LevelSelection(
        sizes=sizes, boxes=boxes, weights=weights, error=error, bound=bound, levels=levels, status=status
    )


def _checked(gram: Array, sizes: Sequence[int] | None) -> Array:
    """Return the Gram as floats, or say why it is none."""
    gram = np.asarray(gram, dtype=float)
    if gram.ndim != 2 or gram.shape[0] != gram.shape[1] or not len(gram) or not np.isfinite(gram).all():
        raise WorkloadError(f"The Gram matrix has shape {gram.shape}. Give a square matrix of finite numbers.")
    if np.abs(gram - gram.T).max() > 1e-9 * np.abs(gram).max():
        raise WorkloadError("The Gram matrix is not symmetric. Give W^T W of the workload's rows W.")
    if sizes is not None and math.prod(sizes) != len(gram):
        raise WorkloadError(f"The Gram matrix has {len(gram)} cells, but the sizes {tuple(sizes)} another number.")
    if len(gram) > MAX_CELLS:
        raise LimitExceeded(
            f"Level selection was asked for {len(gram):,} cells; it takes at most {MAX_CELLS:,}. Separate the workload "
            "by attributes or merge cells."
        )
    return gram
