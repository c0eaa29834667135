"""Strategies for one small attribute side by side, and the bounds that no strategy can beat.

Every strategy is written out as rows on n cells and scaled to privacy cost 1; the errors are those of least squares.

    identity       every cell
    hierarchical   every node of the binary tree over the cells
    wavelet        the total, and left half minus right half of every node
    Fourier        waves, each as strong as the workload asks for; the best of all strategies made of waves
    optimal        the certified optimum

A weight mu >= 0 on every cell proves a bound: no strategy of privacy cost 1 has a squared error, summed over the
queries, below (tr (W diag(mu) W^T)^(1/2))^2 / sum(mu).  Equal weights give the singular value bound.

Source: Li and Miklau, section 3.2 (singular value bound); Xiao, Wang and Gehrke (wavelet); Hay et al. (hierarchical);
Weighted Fourier Factorizations; the weighted bound is our own, see `engine.spaces.solvers`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from engine.arrays import Array
from engine.choice import LinearMechanism
from engine.errors import PlanError
from engine.spaces import DualProblem, Factor, Options, WholeDomain
from engine.workload import Family, family

FAMILIES = ("range", "prefix", "circular", "marginal")
SIZES = (4, 8, 16, 32)


@dataclass(frozen=True, kw_only=True, eq=False)
class Tried:
    """One strategy on one workload at privacy cost 1.

    Attributes
    ----------
    name : of the strategy.
    rows : what is measured, shape (measurements, n); the largest column norm is 1.
    errors : standard error of every query, shape (queries,), in counts.
    """

    name: str
    rows: Array
    errors: Array

    @property
    def rmse(self) -> float:
        """Root of the mean squared error, in counts."""
        return float(np.sqrt(np.mean(self.errors**2)))


@dataclass(frozen=True, kw_only=True, eq=False)
class Contest:
    """All strategies on one workload, and what can be proved about every other one.

    Attributes
    ----------
    asked : the query family.
    cells : n.
    tried : the strategies; the optimal one last.
    weights : weights of the cells that prove the best bound, shape (n,), with sum 1.
    """

    asked: Family
    cells: int
    tried: tuple[Tried, ...]
    weights: Array

    @property
    def queries(self) -> int:
        """Number of queries."""
        return self.asked.count((self.cells,))

    def bound(self, share: float = 1.0) -> float:
        """Return an RMSE, in counts, that no strategy can beat.

        ``share`` mixes the weights: 0 takes equal ones, which is the singular value bound, 1 the best ones.
        """
        mass = (1.0 - share) / self.cells + share * self.weights
        return math.sqrt(_problem(self.asked.name, self.cells).bound(mass) / self.queries)


@lru_cache(maxsize=32)
def contest(name: str, cells: int) -> Contest:
    """Let all strategies answer one family of queries on some cells at privacy cost 1.

    Raises: PlanError for a family or a number of cells that the lessons do not have.

    >>> found = contest("range", 8)
    >>> {t.name: round(t.rmse, 3) for t in found.tried}["Identity"], found.tried[-1].rmse / found.bound() - 1 < 1e-6
    (1.826, True)
    """
    if name not in FAMILIES or cells not in SIZES:
        raise PlanError(f"The lessons have the families {FAMILIES} on {SIZES} cells, not {name!r} on {cells!r}.")
    asked, problem = family(name), _problem(name, cells)
    queries, gram = asked.rows((cells,)), asked.gram((cells,))
    mass, status = problem.maximise(Options(gap=1e-9))
    optimum = problem.solution(mass, status).strategy.rows
    strategies: dict[str, Callable[[], Array]] = {
        "Identity": lambda: np.eye(cells),
        "Hierarchical": lambda: tree_rows(cells),
        "Wavelet": lambda: wavelet_rows(cells),
        "Fourier": lambda: fourier_rows(gram),
        "Optimal": lambda: optimum,
    }
    tried = tuple(_try(label, rows(), queries) for label, rows in strategies.items())
    return Contest(asked=asked, cells=cells, tried=tried, weights=mass / mass.sum())


def tree_rows(cells: int) -> Array:
    """Return the nodes of a binary tree over the cells, a power of 2, from the root down, shape (2 n - 1, n).

    >>> tree_rows(2)
    array([[1., 1.],
           [1., 0.],
           [0., 1.]])
    """
    levels = range(cells.bit_length())
    return np.concatenate([np.repeat(np.eye(2**k), cells >> k, axis=1) for k in levels])


def wavelet_rows(cells: int) -> Array:
    """Return the Haar wavelet of the cells, a power of 2, shape (n, n): the total, then left minus right halves.

    >>> wavelet_rows(2)
    array([[ 1.,  1.],
           [ 1., -1.]])
    """
    out = [np.ones((1, cells))]
    for k in range(cells.bit_length() - 1):
        nodes, half = np.eye(2**k), cells >> (k + 1)
        out.append(np.repeat(nodes, 2 * half, axis=1) * np.tile(np.repeat([1.0, -1.0], half), 2**k))
    return np.concatenate(out)


def fourier_rows(gram: Array) -> Array:
    """Return real waves on a circle, as strong as a Gram, shape (n, n), asks for; shape (waves asked for, n).

    Guarantee: the best strategy among those with eigenvectors exp(2 pi i k c / n).  Source: Weighted Fourier
    Factorizations: strength of wave k is the fourth root of f_k^* G f_k.
    """
    n = len(gram)
    waves = np.fft.fft(np.eye(n)) / math.sqrt(n)
    asked = np.einsum("kc,cd,kd->k", waves.conj(), gram, waves).real
    rows = []
    for k in range(n // 2 + 1):
        strength = max(float(asked[k]), 0.0) ** 0.25
        if strength**4 > 1e-12 * asked.max():
            both = 1.0 if k in (0, n / 2) else math.sqrt(2.0)
            rows += [both * strength * waves[k].real]
            rows += [both * strength * waves[k].imag] if both > 1.0 else []
    return np.array(rows)


def _try(name: str, rows: Array, queries: Array) -> Tried:
    scaled = rows / math.sqrt(float(np.max(np.sum(rows**2, axis=0))))
    variances = np.diag(LinearMechanism(scaled).covariance(queries))
    return Tried(name=name, rows=scaled, errors=np.sqrt(variances))


@lru_cache(maxsize=32)
def _problem(name: str, cells: int) -> DualProblem:
    gram = family(name).gram((cells,))
    return DualProblem(lift=WholeDomain(cells), factor=Factor(sizes=(cells,), matrix=gram))
