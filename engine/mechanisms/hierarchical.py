"""Hierarchical and wavelet strategies: H2, HB, GreedyH, Privelet and level selection.

Classic strategies: trees of intervals and wavelets, as rows on the cells.

Each function takes the size of one attribute and returns strategy rows, shape (rows, cells), with full column rank.  A
strategy for several attributes is the Kronecker product of rows for each, and its column norm the product of theirs.

Notation
--------
sensitivity of rows   largest L1 norm of a column under Laplace noise, largest Euclidean norm under Gaussian noise
error                 sensitivity^2 tr(G (A^T A)^-1), in counts^2, G the Gram of the workload, A the rows

Laplace noise of scale sensitivity / epsilon has variance 2 error / epsilon^2, Gaussian noise at privacy cost 1 the
error itself.

The search for levels: partitions of the cells that lower the error of a workload most.

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

Level selection: strategies built one partition of the cells at a time.

A level is a set of boxes that cover every cell once, so adding it raises the squared norm of every column by 1.  A
strategy starts with the single cells; each new level starts as one box, the whole domain, and splits boxes in two for
as long as the error of the workload falls.  Levels are added until one does not pay.

`engine.mechanisms.hierarchical` has the search itself.

Source: Li and Miklau, Efficient batch query answering under differential privacy, program 4.1 and section 4.3.

Classic strategies: a fixed set of rows for every attribute, their Kronecker product measured on the whole table.

Source: HDMM, section 8 (the strategies it is compared with), and the papers named in `hierarchies`.
"""

from __future__ import annotations

import functools
import itertools
import math
import time
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
from engine._threads import threads_for
from engine._validation import whole
from engine.bounds.lower_bounds import domain_gram
from engine.errors import LimitExceeded, PlanError, WorkloadError
from engine.mechanisms import hierarchical as hierarchies
from engine.mechanisms.base import Forecast, Limits, NoiseLaw
from engine.mechanisms.table_mechanism import (
    Design,
    ExplicitMechanism,
    asked_attributes,
    check_dense,
    identity_strategy,
    one_component,
)
from engine.plans.table_plan import explicit_strategy
from engine.residuals import Strategy
from engine.workload import Marginal, Workload
from engine.workload.families import Total

GRAIN = 100  # shares of a node that are tried
DISCOUNTS = (1.0, 0.5**0.5, 0.5)


def sensitivity(rows: Array, noise: NoiseLaw) -> float:
    """Return the largest column norm: L1 for Laplace noise, Euclidean for Gaussian noise.

    ``rows`` has shape (rows, cells).

    >>> sensitivity(hierarchy(4), "laplace")
    3.0
    """
    _known(noise)
    norms = np.abs(rows).sum(axis=0) if noise == "laplace" else np.sqrt(np.sum(rows**2, axis=0))
    return float(norms.max())


def error(rows: Array, gram: Array, noise: NoiseLaw) -> float:
    """Return sensitivity^2 tr(G (A^T A)^-1), in counts^2. ``rows`` has shape (rows, cells), ``gram`` (cells, cells).

    Source: Li and Miklau, proposition 2.4.

    >>> error(np.eye(3), np.eye(3), "gaussian")
    3.0
    """
    inverse = scipy.linalg.cho_solve(scipy.linalg.cho_factor(rows.T @ rows), gram)
    return sensitivity(rows, noise) ** 2 * float(np.trace(inverse))


def identity(n: int) -> Array:
    """Return one row per cell, shape (n, n); L1 and Euclidean column norms are 1.

    >>> identity(2)
    array([[1., 0.],
           [0., 1.]])
    """
    whole("number of cells", n)
    return np.eye(n)


def hierarchy(n: int, branching: int = 2, *, root: bool = True) -> Array:
    """Return a tree of intervals that ends in single cells; parts of a node differ in size by at most one cell.

    Shape (nodes, n).
    Columns have between floor and ceil of log_branching(n) levels, one more with the root.  Without the root the total
    of all cells is not measured on its own.

    Source: Hay and others (2010), H2 for two branches; Qardaji and others (2013) leave the root out.

    >>> hierarchy(3)
    array([[1., 1., 1.],
           [1., 0., 0.],
           [0., 1., 1.],
           [0., 1., 0.],
           [0., 0., 1.]])
    """
    whole("number of cells", n)
    if branching < 2:
        raise PlanError(f"A tree of branching factor {branching} was asked for. Give a whole number from 2.")
    nodes = list(_nodes(0, n, branching))
    rows = np.zeros((len(nodes), n))
    for row, (first, end) in zip(rows, nodes, strict=True):
        row[first:end] = 1.0
    return rows if root or n == 1 else rows[1:]


def branching_factor(n: int, noise: NoiseLaw = "laplace") -> int:
    """Return the branching factor whose tree without root has the smallest average variance of a range.

    The average over all ranges is proportional to (b - 1) h - 2 (b + 1) / 3 for a tree of height h at noise of variance
    1, and the noise grows with h^2 (Laplace) or h (Gaussian).

    Source: Qardaji and others (2013), equation 3, for Laplace noise; Gaussian noise in the same way.

    >>> branching_factor(256), branching_factor(256, "gaussian")
    (16, 4)
    """
    whole("number of cells", n)
    _known(noise)
    power = 2 if noise == "laplace" else 1

    def variance(b: int) -> float:
        height = 1
        while b**height < n:  # exact, where a logarithm would round
            height += 1
        return float(((b - 1) * height - 2 * (b + 1) / 3) * height**power)

    return min(range(2, max(n, 2) + 1), key=variance)


def hb(n: int, noise: NoiseLaw = "laplace") -> Array:
    """Return the tree without root of the best branching factor.

    >>> hb(5).shape
    (5, 5)
    """
    return hierarchy(n, branching_factor(n, noise), root=False)


def wavelet(n: int) -> Array:
    """Return the Haar wavelet for any n, shape (n, n): the total, and for every node its first half less its second.

    L1 column norms are at most 1 + ceil(log2 n), the Euclidean norms their roots.

    Source: Xiao and others (2011), Privelet; halves that differ by one cell take the place of padding.

    >>> wavelet(3)
    array([[ 1.,  1.,  1.],
           [ 1., -1., -1.],
           [ 0.,  1., -1.]])
    """
    whole("number of cells", n)
    rows = [np.ones(n)]
    for first, end in _nodes(0, n, 2):
        if end - first > 1:
            row = np.zeros(n)
            row[first:end] = -1.0
            row[first : first + (end - first) // 2] = 1.0
            rows.append(row)
    return np.array(rows)


def quadtree(sizes: Sequence[int]) -> Array:
    """Return a tree of boxes that halves every axis at once, shape (boxes, cells), down to single cells.

    >>> quadtree((2, 2)).shape
    (5, 4)
    """
    for n in sizes:
        whole("number of cells", n)
    cells = np.arange(math.prod(sizes)).reshape(sizes)
    rows, waiting = [], [tuple((0, n) for n in sizes)]
    while waiting:
        box = waiting.pop(0)
        row = np.zeros(cells.size)
        row[cells[tuple(slice(*ends) for ends in box)].ravel()] = 1.0
        rows.append(row)
        halves = [_parts(first, end, 2) if end - first > 1 else [(first, end)] for first, end in box]
        if any(len(h) > 1 for h in halves):
            waiting.extend(itertools.product(*halves))
    return np.array(rows)


def greedy_hierarchy(
    gram: Array, noise: NoiseLaw = "laplace", *, squared: bool | None = None, discount: float | None = None
) -> Array:
    """Return a binary tree whose nodes are weighted for the workload, bottom up; every column has norm 1.

    ``gram`` has shape (cells, cells), the result (nodes, cells).
    A node takes a share of the budget of its cells, the tree below it the rest; the share minimises the error of the
    workload on these cells.  What deeper nodes do for queries across their halves is discounted by ``discount`` to the
    power of the depth.  ``squared`` puts G^2 in place of G when shares are chosen.  The published numbers have squared
    and the discount sqrt(1/2); what is left out is chosen by the error that results.

    Source: Li and others (2014), GreedyH of DAWA, extended to Gaussian noise.

    >>> rows = greedy_hierarchy(np.ones((4, 4)))
    >>> round(sensitivity(rows, "laplace"), 9)
    1.0
    """
    _known(noise)
    gram = np.asarray(gram, dtype=float)
    if gram.ndim != 2 or gram.shape[0] != gram.shape[1] or not len(gram) or not np.isfinite(gram).all():
        raise WorkloadError(f"The Gram matrix has shape {gram.shape}. Give a square matrix of finite numbers.")
    powers = (False, True) if squared is None else (squared,)
    found = [
        _weighted(gram @ gram if power else gram, 0, len(gram), noise, chosen, 0)[0]
        for power in powers
        for chosen in (DISCOUNTS if discount is None else (discount,))
    ]
    return found[0] if len(found) == 1 else min(found, key=lambda rows: error(rows, gram, noise))


def _weighted(
    gram: Array, first: int, end: int, noise: NoiseLaw, discount: float, depth: int
) -> tuple[Array, Array, float]:
    """Return (rows, their inverse Gram, discounted error) of the tree on cells first to end."""
    if end - first == 1:
        return np.ones((1, 1)), np.ones((1, 1)), float(gram[first, first])
    (_, middle), _ = _parts(first, end, 2)
    m = middle - first
    above, C1, error1 = _weighted(gram, first, middle, noise, discount, depth + 1)
    below, C2, error2 = _weighted(gram, middle, end, noise, discount, depth + 1)
    C = scipy.linalg.block_diag(C1, C2)
    u, own = C.sum(axis=1), gram[first:end, first:end]
    apart = u[:m] @ own[:m, :m] @ u[:m] + u[m:] @ own[m:, m:] @ u[m:]
    fade = discount**depth
    # what queries ask across the two halves is what deeper nodes do less for
    asked, spread = (u @ own @ u - apart) * fade + apart, float(u.sum())
    share = np.arange(GRAIN) / GRAIN
    rest = (1.0 - share) ** 2 if noise == "laplace" else 1.0 - share**2
    ratio = share**2 / rest
    # (rest C^-1 + share^2 11^T)^-1 = (C - ratio u u^T / (1 + ratio 1^T u)) / rest
    errors = (error1 + error2 - asked * fade * ratio / (1.0 + fade * ratio * spread)) / rest
    best = int(np.argmin(errors))
    C = (C - ratio[best] / (1.0 + ratio[best] * spread) * np.outer(u, u)) / rest[best]
    rows = math.sqrt(rest[best]) * scipy.linalg.block_diag(above, below)
    if best:
        rows = np.concatenate([np.full((1, end - first), share[best]), rows])
    return rows, C, float(errors[best])


def _parts(first: int, end: int, branching: int) -> list[tuple[int, int]]:
    """Return the run of cells in parts that differ by at most one cell."""
    count = min(branching, end - first)
    # whole numbers, so that no rounding moves a cut
    cuts = [first + (end - first) * k // count for k in range(count + 1)]
    return list(itertools.pairwise(cuts))


def _nodes(first: int, end: int, branching: int) -> Iterator[tuple[int, int]]:
    """Yield the runs of a tree, each before its parts."""
    yield first, end
    if end - first > 1:
        for part in _parts(first, end, branching):
            yield from _nodes(*part, branching)


def _known(noise: str) -> None:
    if noise not in ("gaussian", "laplace"):
        raise PlanError(f"There is no noise {noise!r}. Choose 'gaussian' or 'laplace'.")


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


MAX_CELLS = 4096  # a Gram and its two companions take 400 MB there


@dataclass(frozen=True, kw_only=True, eq=False)
class SelectedLevels:
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
        rows: Array = self.weights[:, None] * indicator(self.boxes, self.sizes).toarray()
        return rows

    @functools.cached_property
    def precision(self) -> Array:
        """rows^T rows, shape (cells, cells), with ones on the diagonal."""
        return precision_of(self.boxes, self.weights, self.sizes)

    @functools.cached_property
    def square_rows(self) -> Array:
        """Fewer rows with the same errors under Gaussian noise, shape (cells, cells)."""
        return scipy.linalg.cholesky(self.precision)


def svd_bound(*grams: Array) -> float:
    """Return the error at privacy cost 1 that no matrix mechanism beats, in counts^2, for a product of Grams.

    (sum of the singular values of W)^2 / cells, where cells that every query treats alike count once, which only raises
    the bound.  The bounds of factors multiply, and the total of an attribute has 1.

    Source: Li and Miklau, corollary 3.1; HDMM, definition 11, proposition 5 and theorem 5.

    >>> svd_bound(np.eye(3)), round(svd_bound(np.eye(3), np.ones((4, 4))), 9)
    (3.0, 3.0)
    """
    out = 1.0
    for gram in grams:
        _, small = merge_cells(_checked(gram, None))
        eigenvalues = np.linalg.eigvalsh(small)
        kept = eigenvalues > 1e-14 * len(small) * eigenvalues[-1]  # the root of rounding is no rounding
        out *= float(np.sum(np.sqrt(eigenvalues[kept]))) ** 2 / len(small)
    return out


def merge_cells(gram: Array) -> tuple[Index, Array]:
    """Return (label of the bucket of every cell, Gram on the buckets): cells that every query treats alike.

    Shapes (cells,) and (buckets, buckets).
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


def level_selection(
    gram: Array, sizes: Sequence[int] | None = None, options: LevelOptions | None = None
) -> SelectedLevels:
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
    bound, single = svd_bound(gram), counted(single_cells(shape))
    part = LevelPart(first=0, sizes=shape, R=np.eye(len(gram)), M=gram)
    with threads_for(len(gram)):
        found, status = search([part], single, float(np.trace(gram)), options or LevelOptions(), bound, gram)
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
    parts: tuple[SelectedLevels, ...]
    error: float


def separated(grams: Sequence[Array], options: LevelOptions | None = None) -> Separation:
    """Return one strategy per axis for queries that each ask about one axis only, and the shares of the budget.

    Grams have shape (n_i, n_i).
    One-way tables share nothing but the total, so with the total measured each axis is a problem of its own.  Least
    squares then adds to every axis what the others say about the total.  The shares minimise the exact error.

    Source: theorem 4.2; the choice of the shares is our own.

    >>> found = separated([np.eye(2), np.eye(3)])
    >>> round(found.total + sum(found.shares), 9)
    1.0
    """
    import scipy.optimize

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


def generalised(gram: Array, groups: int | None = None, options: LevelOptions | None = None) -> SelectedLevels:
    """Return a strategy for one axis from a search on ``groups`` merged runs of cells, then one inside every run.

    ``gram`` has shape (cells, cells).
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
    found = counted(single_cells((n,)))
    for (low, high), weight in zip(coarse.boxes[:, :, 0], coarse.weights, strict=True):
        found[(int(edges[low]),), (int(edges[high]),)] += round(coarse.levels * weight**2)
    labels = np.repeat(np.arange(count), np.diff(edges))
    R = np.linalg.inv(np.eye(n) + (coarse.precision * coarse.levels)[np.ix_(labels, labels)])
    M, runs = R @ gram @ R, [slice(first, end) for first, end in itertools.pairwise(edges)]
    parts = [LevelPart(first=run.start, sizes=(run.stop - run.start,), R=R[run, run], M=M[run, run]) for run in runs]
    found, _ = search(parts, found, float(np.sum(gram * R)), options or LevelOptions(), bound)
    return _finished(gram, (n,), found, bound, f"generalised over {count} runs of cells")


def _finished(gram: Array, sizes: tuple[int, ...], found: Found, bound: float, status: str) -> SelectedLevels:
    """Return the strategy of counted boxes, or the single cells when they are better, with its error computed anew."""
    cells = np.prod([np.subtract(high, low) for low, high in found], axis=1)
    levels = round(float(np.dot(cells, list(found.values()))) / len(gram))
    boxes, weights = np.array(list(found)), np.sqrt(np.array(list(found.values())) / levels)
    factor = scipy.linalg.cho_factor(precision_of(boxes, weights, sizes))
    error = float(np.trace(scipy.linalg.cho_solve(factor, gram)))
    if error > float(np.trace(gram)):
        boxes, levels, error = single_cells(sizes), 1, float(np.trace(gram))
        weights = np.ones(len(boxes))
        status += "; the single cells alone are better"
    return SelectedLevels(
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


LOOKS = 600  # at splits, in a search by levels on one attribute
MARGINALS = 1 / 15  # share of these where only marginals are asked
PER_AXIS, PER_PAIR = 8e-4, 3e-8  # seconds that a look takes, for every attribute and every pair of cells
SMALL = 4  # attributes with fewer cells are measured cell by cell, as categorical ones are


@dataclass(frozen=True, kw_only=True)
class PerAttribute(ExplicitMechanism):
    """Base of the strategies that are a product of rows for each attribute."""

    @abstractmethod
    def strategy(self, n: int, gram: Array, law: str) -> Strategy:
        """Return the strategy of a numeric attribute with n cells; ``gram`` is what is asked of it alone.

        Its shape is (n, n).
        """

    def design(self, workload: Workload, law: str, limits: Limits, found: tuple[Array, ...]) -> Design:
        attributes = asked_attributes(workload)
        factors = []
        for axis, name in enumerate(attributes):
            n = workload.schema[name].size
            whole = workload.schema[name].kind == "categorical" or n < SMALL
            factors.append(((axis,), identity_strategy(n) if whole else self.strategy(n, _asked(workload, name), law)))
        return one_component(workload, attributes, tuple(factors))


@dataclass(frozen=True, kw_only=True)
class Hierarchical(PerAttribute):
    """A tree of intervals on every numeric attribute.

    LevelOptions
    -------
    branching : parts of a node, from 2; "best" takes the number with the smallest mean variance (HB).
    """

    name: ClassVar[str] = "hierarchical"
    title: ClassVar[str] = "Hierarchical"
    meaning: ClassVar[str] = "Measures a tree of intervals; a range is then a sum of few noisy numbers."
    variants: ClassVar[tuple[dict[str, Any], ...]] = ({}, {"branching": "best"})
    choices: ClassVar[Mapping[str, tuple[Any, ...]]] = {"branching": (2, 4, 8, 16, "best")}

    branching: int | str = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        given = self.branching
        if given != "best" and (isinstance(given, bool) or not isinstance(given, int) or given < 2):
            raise PlanError(f"branching was {given!r}. Give a whole number from 2, or 'best'.")

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
    """A binary tree on every numeric attribute, its nodes weighted for what is asked of the attribute."""

    name: ClassVar[str] = "greedyh"
    title: ClassVar[str] = "GreedyH"
    meaning: ClassVar[str] = "A binary tree of intervals whose nodes are weighted for the workload."

    def strategy(self, n: int, gram: Array, law: str) -> Strategy:
        noise = "laplace" if law == "laplace" else "gaussian"
        return explicit_strategy(hierarchies.greedy_hierarchy(gram, noise), (n,), law)  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class LevelSelection(ExplicitMechanism):
    """Boxes of cells added level by level while that pays, on all cells at once."""

    name: ClassVar[str] = "lsa"
    title: ClassVar[str] = "Level selection (LSA)"
    meaning: ClassVar[str] = "Adds levels of boxes greedily while they pay, for domains of a few thousand cells."
    laws: ClassVar[tuple[str, ...]] = ("gaussian",)

    def forecast(self, workload: Workload, limits: Limits) -> Forecast:
        attributes = asked_attributes(workload)
        cells = check_dense(workload, attributes, "Level selection")
        text = f"one problem on {cells:,} cells"
        seconds = 0.1 + looks_at_splits(workload, cells) * (PER_AXIS * len(attributes) + PER_PAIR * cells**2)
        return Forecast(seconds=seconds, memory=120e6 + 80.0 * cells**2, text=text)

    def design(self, workload: Workload, law: str, limits: Limits, found: tuple[Array, ...]) -> Design:
        attributes = asked_attributes(workload)
        cells, sizes = check_dense(workload, attributes, "Level selection"), workload.schema.sizes(attributes)
        if found:
            rows = found[0]
            if rows.ndim != 2 or rows.shape[1] != cells:
                raise ValueError("the recorded rows do not fit")
        else:

            def watch(levels: int, gap: float) -> None:
                limits.tell(1.0 - 1.0 / (1.0 + levels / 10.0), f"Level {levels}, {gap:.0%} above the bound")

            options = LevelOptions(deadline=limits.deadline(), watch=watch)
            rows = level_selection(domain_gram(workload), sizes or (1,), options).square_rows
        factors = ((tuple(range(len(sizes))), explicit_strategy(rows, sizes)),) if sizes else ()
        design = one_component(workload, attributes, factors)
        return Design(components=design.components, matrices=(rows,))


def looks_at_splits(workload: Workload, cells: int) -> float:
    """Return about how often level selection looks at all splits of a level, as counted on a dozen workloads.

    Few queries leave little to split for, and marginals next to nothing.
    """
    asked = [group for group in workload.groups if group.weight > 0.0]
    families = {type(part.family) for group in asked for part in group.parts}
    queries = sum(group.count for group in asked)
    share = MARGINALS if families <= {Marginal, Total} else min(1.0, math.sqrt(queries / cells))
    return LOOKS * share * math.sqrt(max((len(group.attributes) for group in asked), default=1))


def _asked(workload: Workload, name: str) -> Array:
    """Return what is asked of one attribute, whatever the others: its Grams, each with its group's weight, added up."""
    n = workload.schema[name].size
    total = np.zeros((n, n))
    for group in workload.groups:
        for part in group.parts:
            if len(part.axes) == 1 and group.attributes[part.axes[0]] == name and group.weight > 0:
                total += group.weight * part.family.gram(part.sizes)
    return total if total.any() else np.eye(n)


@lru_cache(maxsize=64)
def _tree(n: int, branching: int | str, law: str) -> Strategy:
    if branching == "best":
        rows = hierarchies.hb(n, "laplace" if law == "laplace" else "gaussian")
    else:
        rows = hierarchies.hierarchy(n, int(branching))
    return explicit_strategy(rows, (n,), law)


@lru_cache(maxsize=64)
def _wavelet(n: int, law: str) -> Strategy:
    return explicit_strategy(hierarchies.wavelet(n), (n,), law)
