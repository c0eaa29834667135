"""Level selection: strategies built one partition of the cells at a time.

A level is a set of boxes that cover every cell once, so adding it raises the squared norm of every column by 1.  A
strategy starts with the single cells; each new level starts as one box, the whole domain, and splits boxes in two for
as long as the error of the workload falls.  Levels are added until one does not pay.

`engine.mechanisms.trees.levels` has the search itself.

Source: Li and Miklau, Efficient batch query answering under differential privacy, program 4.1 and section 4.3.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy

from engine.arrays import Array, Index
from engine.errors import LimitExceeded, WorkloadError
from engine.mechanisms.trees.levels import (
    ROUNDING,
    Boxes,
    Found,
    LevelOptions,
    LevelPart,
    counted,
    indicator,
    precision_of,
    search,
    single_cells,
)
from engine.threads import threads_for

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
