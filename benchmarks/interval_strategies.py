"""Strategies for intervals on thousands of cells, searched without the Gram matrix.

`p_identity_search` is OPT_0 of HDMM for Laplace noise. Its strategy has the rows of the identity and p
further rows, divided by the L1 norms of the columns. An evaluation takes O(p^2 n) operations, because
products with the Gram matrix G = W^T W are cumulative sums. The search is coarse to fine: it solves one
quarter of the cells, copies the rows to all four quarters, adds rows on long blocks, and continues on
all cells.

`circulant_error` is the error for Gaussian noise of the best strategy whose rows are the cyclic shifts
of one row. For windows of a fixed width it is close to the optimum, because only the windows at the
ends are not cyclic shifts of each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import scipy.linalg
import scipy.optimize

Array = npt.NDArray[np.float64]
# The first search is for a quarter of the cells. The second search starts from one copy of the
# resulting rows per quarter, and from rows on these numbers of blocks of equal length.
QUARTERS, LONG_BLOCKS = 4, {"range": (4, 8), "prefix": (4, 8), "width32": ()}
WINDOW = 32
# largest number of iterations on a quarter of the cells and on all cells
FIRST_ITERATIONS, ITERATIONS = 1_000, 400
START_VALUE, START_NOISE = 0.5, 0.02


@dataclass(frozen=True, kw_only=True)
class IntervalQueries:
    """All ranges ("range"), all prefixes ("prefix") or all windows of 32 cells ("width32")."""

    name: str
    cells: int

    @property
    def count(self) -> int:
        """Number of queries."""
        n = self.cells
        return {"range": n * (n + 1) // 2, "prefix": n, "width32": n - WINDOW + 1}[self.name]

    @cached_property
    def diagonal(self) -> Array:
        """Diagonal of the Gram matrix: the number of queries that count each cell."""
        n, cell = self.cells, np.arange(self.cells, dtype=float)
        if self.name == "range":
            return (cell + 1.0) * (n - cell)
        if self.name == "prefix":
            return n - cell
        largest = min(WINDOW, self.count)
        return np.asarray(np.minimum(np.minimum(cell + 1.0, n - cell), largest), dtype=float)

    def times_gram(self, rows: Array) -> Array:
        """Return rows @ G, shape (rows, cells)."""
        n, cell = self.cells, np.arange(self.cells, dtype=float)
        if self.name == "width32":
            windows = _sums_of_windows(rows, WINDOW)
            padding = ((0, 0), (WINDOW - 1, WINDOW - 1))
            return _sums_of_windows(np.pad(windows, padding), WINDOW)
        # G[i, j] is the product of a factor of min(i, j) and the factor n - max(i, j)
        first_factor = cell + 1.0 if self.name == "range" else np.ones(n)
        up_to = np.cumsum(rows * first_factor, axis=1)
        after = rows * (n - cell)
        after = np.cumsum(after[:, ::-1], axis=1)[:, ::-1] - after
        return up_to * (n - cell) + after * first_factor


def _sums_of_windows(rows: Array, width: int) -> Array:
    """Return the sums of all windows of consecutive entries of each row."""
    total = np.cumsum(np.pad(rows, ((0, 0), (1, 0))), axis=1)
    return np.asarray(total[:, width:] - total[:, :-width])


def p_identity_error(theta: Array, queries: IntervalQueries) -> tuple[float, Array]:
    """Return the squared error of a p-Identity strategy and its derivative by ``theta``, (p, n).

    The formula is that of `engine.mechanisms.kronecker.p_identity_error`.
    """
    s = 1.0 + theta.sum(axis=0)
    inner = scipy.linalg.cho_factor(np.eye(len(theta)) + theta @ theta.T, check_finite=False)
    solved = scipy.linalg.cho_solve(inner, theta, check_finite=False)
    product = queries.times_gram(solved * s)
    by_s = 2.0 * (queries.diagonal * s - np.einsum("pn,pn->n", theta, product))
    scaled = product * s
    return float(s @ by_s) / 2.0, by_s - 2.0 * (scaled - (scaled @ theta.T) @ solved)


def p_identity_search(queries: IntervalQueries) -> float:
    """Return the squared error of the p-Identity strategy with n / 16 rows that the search finds."""
    n, rng = queries.cells, np.random.default_rng(0)
    p, n_quarter = n // 16, n // QUARTERS
    long_blocks = LONG_BLOCKS[queries.name]
    p_quarter = (p - sum(long_blocks)) // QUARTERS
    quarter = IntervalQueries(name=queries.name, cells=n_quarter)
    counts = (4, n_quarter // 64, p_quarter - 4 - n_quarter // 64)
    start = _blocks(n_quarter, counts) + START_NOISE * rng.random((p_quarter, n_quarter))
    theta_quarter = _minimize(start, quarter, FIRST_ITERATIONS)
    theta = np.concatenate(
        [np.kron(np.eye(QUARTERS), theta_quarter), _blocks(n, long_blocks)]
    ) + 0.5 * START_NOISE * rng.random((QUARTERS * p_quarter + sum(long_blocks), n))
    return p_identity_error(_minimize(theta, queries, ITERATIONS), queries)[0]


def _blocks(cells: int, counts: Sequence[int]) -> Array:
    """Return one row per block of the partitions of the cells into ``counts`` equal blocks."""
    rows: list[Array] = [np.zeros((0, cells))]
    for count in counts:
        edges = np.linspace(0, cells, count + 1).round().astype(int)
        cell = np.arange(cells)
        inside = (edges[:-1, None] <= cell) & (cell < edges[1:, None])
        rows.append(np.where(inside, START_VALUE, 0.0))
    return np.concatenate(rows)


def _minimize(start: Array, queries: IntervalQueries, iterations: int) -> Array:
    """Return the parameters of a p-Identity strategy that L-BFGS reaches from ``start``, (p, n)."""
    scale = float(queries.diagonal.sum())

    def evaluate(x: Array) -> tuple[float, Array]:
        error, gradient = p_identity_error(x.reshape(start.shape), queries)
        return error / scale, gradient.ravel() / scale

    result = scipy.optimize.minimize(
        evaluate,
        start.ravel(),
        jac=True,
        method="L-BFGS-B",
        bounds=[(0.0, 1e3)] * start.size,
        options={
            "maxiter": iterations,
            "maxfun": 2 * iterations,
            "maxcor": 10,
            "ftol": 1e-9,
            "gtol": 0.0,
        },
    )
    return np.asarray(result.x).reshape(start.shape)


def circulant_error(queries: IntervalQueries) -> float:
    """Return the squared error for Gaussian noise of the best strategy of cyclic shifts of one row.

    With F the discrete Fourier basis and g the diagonal of F* G F, the error of the strategy with
    eigenvalues b is sum(g / b^2) at the squared sensitivity sum(b^2) / n. The best product of the two
    is sum(sqrt(g))^2 / n.
    """
    n = queries.cells
    shifted = np.zeros(n)
    step = 256
    for first in range(0, n, step):
        rows = queries.times_gram(np.eye(min(step, n - first), n, first))
        for i, row in enumerate(rows):
            shifted += np.roll(row, -(first + i))
    # ``shifted[d]`` is the sum over i of G[i, i + d], whose Fourier transform is n g
    g = np.maximum(np.real(np.fft.fft(shifted)) / n, 0.0)
    return float(np.sqrt(g).sum() ** 2 / n)
