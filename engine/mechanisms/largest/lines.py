"""Lines: strategies on one attribute, for weights of its queries that change from step to step.

With rows W on cells, weights w and weights mu of cells, K = diag(sqrt w) W diag(sqrt mu) = U S V^T tells everything:

    T = tr S,   diagonal of X over the cells  d = diag(V S V^T) / mu,   variance of query q  (W mu V S^-1 V^T mu W^T)_qq

at privacy cost T.  Cells that cost more than T gain weight, a step at a time, as in `engine.spaces.solvers`.
"""

from __future__ import annotations

import numpy as np

from engine.arrays import Array

FLOOR = 1e-4  # of the largest weight, added to all: light queries keep a variance
LEAST = 1e-8  # weight of a cell, in shares of the mean: lost ones would not come back
SPEED = 1.5  # power of its cost over the mean, that the weight of a cell is multiplied by
POLISH, POLISHED = 20, 1e-6  # last steps at fixed weights, and the gap that is close enough


class Line:
    """The strategy of one attribute for weights of its queries.

    Parameters
    ----------
    rows : the class part q (I - pi 1^T) of every query on cells, shape (queries, cells).

    >>> line = Line(np.array([[0.5, -0.5]]))
    >>> line.follow(np.ones(1))
    >>> line.mass, line.variances.round(6)
    (array([0.5, 0.5]), array([0.25]))
    """

    def __init__(self, rows: Array) -> None:
        self.rows = rows
        self.rank = int(np.linalg.matrix_rank(rows))
        self.weights = np.ones(len(rows))
        self.mass = np.full(rows.shape[1], 1.0 / rows.shape[1])
        self.variances = np.zeros(len(rows))

    def follow(self, weights: Array) -> None:
        """Go one step with these weights, shape (queries,).

        ``variances``, shape (queries,), are those at privacy cost 1 of a strategy that is best for them.
        """
        self.weights = weights / weights.max() + FLOOR
        self.step()

    def step(self) -> float:
        """Go one step with the same weights; return the gap of the strategy before it."""
        projected = self.rows * np.sqrt(self.mass)
        squares, V = np.linalg.eigh((projected.T * self.weights) @ projected)
        squares, V = squares[len(squares) - self.rank :], V[:, len(squares) - self.rank :]
        sizes = np.sqrt(np.maximum(squares, squares[-1] * 1e-18))
        total = float(sizes.sum())
        costs = ((V * V) @ sizes) / self.mass
        self.variances = ((projected @ V) ** 2) @ (total / sizes)
        mass = np.maximum(self.mass * (costs / total) ** SPEED, LEAST / len(self.mass))
        self.mass = mass / mass.sum()
        return float(costs.max()) / total - 1.0

    def polish(self) -> None:
        """Go on with the same weights until the strategy is best for them."""
        for _ in range(POLISH):
            if self.step() <= POLISHED:
                return
