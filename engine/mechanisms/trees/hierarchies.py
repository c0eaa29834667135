"""Classic strategies: trees of intervals and wavelets, as rows on the cells.

Each function takes the size of one attribute and returns strategy rows, shape (rows, cells), with full column rank.  A
strategy for several attributes is the Kronecker product of rows for each, and its column norm the product of theirs.

Notation
--------
sensitivity of rows   largest L1 norm of a column under Laplace noise, largest Euclidean norm under Gaussian noise
error                 sensitivity^2 tr(G (A^T A)^-1), in counts^2, G the Gram of the workload, A the rows

Laplace noise of scale sensitivity / epsilon has variance 2 error / epsilon^2, Gaussian noise at privacy cost 1 the
error itself.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np
import scipy

from engine.arrays import Array
from engine.checks import whole
from engine.errors import PlanError, WorkloadError
from engine.mechanisms.base import NoiseLaw

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
