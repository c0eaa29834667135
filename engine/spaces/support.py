"""Newton steps on the few cells that hold weight, where steps on the weights of all cells converge slowly.

What few queries ask of many cells is measured best with weight on few cells, about as many as the rank: sums of two
attributes of 40 and 41 cells put weight on 43 of 820 orbits, and L-BFGS takes 190 evaluations to find out that all
others hold none.  Once it is near, the same problem on these alone,

    minimise  phi(mu) = sum(mu) - 2 T(mu)   over mu >= 0,

is convex, small, and smooth where weights are positive: two or three Newton steps solve it to rounding, each to the
least of the second order model within mu >= 0 (non-negative least squares).  The gradient is 1 - d for the diagonal d
of L^T X L; cells outside join where d > 1, and the certificate is the one of the whole problem.

Source: our own.
"""

from __future__ import annotations

import math
import time
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from engine.arrays import Array

Places: TypeAlias = npt.NDArray[np.intp]

LIGHT = 1e-3  # weights below this share of the largest are taken for none; the gradient calls back whom they miss
ROUNDS, STEPS = 8, 20  # how often cells join, and steps on one set of them; one and three are usual
WORTH = 5  # a step may cost as much as so many evaluations on all cells
FLAT = 1e-13  # added to the curvature in shares of its trace, where cells exchange weight at no loss


class Weights(Protocol):
    """A problem whose dual depends on a weight for every orbit of cells."""

    projected: list[Array]

    def evaluate(self, mass: Array, on: Places | None = None) -> tuple[float, Array]:
        """Return T and the diagonal d, for weights on some orbits (on all) and there. Shapes (orbits,)."""

    def curvature(self, mass: Array, on: Places) -> Array:
        """Return the second derivative of -2 T by the weights on some orbits. Shape (orbits, orbits)."""


def concentrated(problem: Weights, mass: Array, gap: float, deadline: float) -> tuple[Array, float] | None:
    """Return weights that prove the gap, and what they prove; None where Newton steps do not get there.

    Parameters
    ----------
    mass : weights to start from, near the best ones. Shape (orbits,).
    gap : relative RMSE gap that is asked for.
    deadline : when to give up, on the clock of `time.monotonic`.
    """
    T, d = problem.evaluate(mass)
    # the length at which phi is least has T = sum(mu): then d is 1 wherever the best weights are positive
    d, mass = d * (mass.sum() / T), mass * (T / mass.sum()) ** 2
    for _ in range(ROUNDS):
        on = np.flatnonzero((mass > LIGHT * mass.max()) | (d > 1.0 - (d.max() - 1.0)))
        if not _worth(problem, len(on), len(mass)):
            return None
        try:
            mass[on] = _least(problem, mass[on], on, gap, deadline)
        except (np.linalg.LinAlgError, RuntimeError):  # no second order model here, or none that was solved
            return None
        mass = np.where(np.isin(np.arange(len(mass)), on), mass, 0.0)
        T, d = problem.evaluate(mass)
        d = d * (mass.sum() / T)
        reached = math.sqrt(max(float(d.max()), 1.0)) - 1.0
        if reached <= gap:
            return mass / mass.sum(), reached
        if time.monotonic() > deadline:
            return None
    return None


def _worth(problem: Weights, count: int, orbits: int) -> bool:
    """Return whether few cells hold weight, and Newton steps on them cost little beside evaluations on all."""
    ranks = [len(W) for W in problem.projected]
    step = sum(r * r * count * count for r in ranks)
    return 2 * count <= orbits and step <= WORTH * sum(4 * r * r * orbits + 20 * r**3 for r in ranks)


def _least(problem: Weights, mass: Array, on: Places, gap: float, deadline: float) -> Array:
    """Return the weights on some orbits where phi is least, by Newton steps within mu >= 0. Shapes (orbits,)."""
    import scipy.linalg
    import scipy.optimize

    T, d = problem.evaluate(mass, on)
    for _ in range(STEPS):
        slope = 1.0 - d
        unmet = np.where(mass > 0.0, slope, np.minimum(slope, 0.0))
        if np.abs(unmet).max() <= 0.3 * gap or time.monotonic() > deadline:
            break
        curvature = problem.curvature(mass, on)
        curvature[np.diag_indices_from(curvature)] += FLAT * np.trace(curvature)
        # the least of the second order model over mu >= 0, not along a line: it finds at once who holds no weight
        root = scipy.linalg.cholesky(curvature, check_finite=False)
        wanted = root @ mass - scipy.linalg.solve_triangular(root, slope, trans="T", check_finite=False)
        step = scipy.optimize.nnls(root, wanted)[0] - mass
        now, length = mass.sum() - 2.0 * T, 1.0
        while True:
            tried = mass + length * step
            T, d = problem.evaluate(tried, on)
            if tried.sum() - 2.0 * T <= now + 1e-4 * length * float(slope @ step):
                break
            length /= 2.0
            if length < 1e-6:
                return mass
        mass = tried
    return mass
