"""OPT_0 and OPT_kron: the best strategy for one Gram, and the best product of small strategies for a workload.

The squared error of a product strategy is a sum over groups of products over units, so with all units but one held
fixed it is that of an explicit workload on the one: its Gram is the sum of the unit's Grams, each weighted by what its
groups cost elsewhere.  Units are improved in turn until nothing moves.

Source: HDMM, sections 4.2, 4.3, 6.1 and 6.2 (definition 18, equation 6.2).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from engine.arrays import Array
from engine.mechanisms.products.grams import ProductGrams
from engine.mechanisms.products.p_identity import PIdentity, default_p, p_identity_strategy
from engine.plans import Component
from engine.spaces import DualProblem, Factor, Options, Solution, WholeDomain
from engine.threads import threads_for
from engine.workload import Workload

SWEEPS = 50
MIXTURE = 0.4  # of the identity beside the total: with more, product searches stay where no total is measured
SWEPT = 5.0  # sweeps over units that wait for each other, for forecasts only
SETTLED = 1e-7  # a sweep that lowers the squared error by less ends the search
Tell = Callable[[str], object]


def gaussian_strategy(gram: Array, options: Options | None = None, start: Array | None = None) -> Solution:
    """Return the optimal strategy for Gaussian noise on one Gram: OPT_0, certified.

    Parameters
    ----------
    gram : W^T W, shape (cells, cells), in counts^2; W itself is not needed.
    options : when to stop.
    start : weights of an earlier solution to begin from.

    Guarantee: value / bound - 1 is a proved gap against every matrix mechanism with Gaussian noise.
    Source: HDMM, definition 12; the dual is that of `engine.spaces.solvers`.

    >>> found = gaussian_strategy(np.eye(3))
    >>> round(found.value, 9), round(found.bound, 9)
    (3.0, 3.0)
    """
    n = len(gram)
    with threads_for(n):
        problem = DualProblem(lift=WholeDomain(n), factor=Factor(sizes=(n,), matrix=gram))
        mass, status = problem.maximise(options or Options(), start)
        return problem.solution(mass, status)


@dataclass(frozen=True, kw_only=True, eq=False)
class KroneckerStrategy:
    """A product strategy: one small strategy for every unit, of sensitivity 1 each and hence together.

    ``squared_error`` is weighted, in counts^2, for noise of variance 1.
    """

    factors: tuple[Solution | PIdentity, ...]
    squared_error: float


class KroneckerSolver:
    """OPT_kron for one kind of noise; equal problems, whatever their attributes are called, are solved once.

    Parameters
    ----------
    noise : "gaussian" or "laplace".
    restarts : starts: a mixture of identity and total, the identity, then random mixtures.
    seed : of the random starts.
    gap : relative RMSE gap at which the search on one unit stops.
    deadline : moment on the monotonic clock after which nothing is improved further.
    tell : called with a text before every search; it may raise to cancel.
    """

    def __init__(
        self,
        noise: str,
        *,
        restarts: int = 1,
        seed: int = 0,
        gap: float = 1e-6,
        deadline: float = math.inf,
        tell: Tell | None = None,
    ) -> None:
        self.noise, self.restarts, self.seed, self.deadline = noise, restarts, seed, deadline
        self.options = Options(gap=gap, deadline=deadline)
        self.tell = tell
        self._known: dict[Any, KroneckerStrategy] = {}

    def solve(self, problem: ProductGrams) -> KroneckerStrategy:
        """Return the best product strategy found.

        Guarantee: the sensitivity of every factor is 1, and the error is that of the factors.  The same problem and
        seed give the same strategy, whatever was solved before.
        """
        if problem.key not in self._known:
            rng = np.random.default_rng(self.seed)
            # with one Gram a unit the units do not meet, and for Gaussian noise each problem is convex: any start will
            # do
            alone = all(len(unit) == 1 for unit in problem.grams)
            found: list[KroneckerStrategy] = []
            for attempt in range(1 if alone and self.noise == "gaussian" else max(1, self.restarts)):
                if attempt == 0 or time.monotonic() < self.deadline:
                    found.append(self._descend(problem, self._mixtures(problem, attempt, rng), rng, low=attempt > 0))
            best = min(found, key=lambda k: k.squared_error)
            self._known[problem.key] = KroneckerStrategy(
                factors=best.factors, squared_error=best.squared_error / problem.weights.max()
            )
        kept = self._known[problem.key]
        return KroneckerStrategy(factors=kept.factors, squared_error=kept.squared_error * float(problem.weights.max()))

    @staticmethod
    def _mixtures(problem: ProductGrams, attempt: int, rng: np.random.Generator) -> list[Array]:
        """Return the costs under a I and (1 - a) 1^T on every unit: equal, identity alone, then at random."""
        if attempt < 2:
            mixtures = np.full(len(problem.grams), (MIXTURE, 1.0)[attempt])
        else:
            mixtures = rng.uniform(0.05, 1.0, len(problem.grams))
        out = []
        for a, unit in zip(mixtures.tolist(), problem.grams, strict=True):
            n = len(unit[0].matrix)
            known = (1 - a) ** 2 / (a * a + n * (1 - a) ** 2)  # by Sherman and Morrison
            out.append(
                np.array([max(np.trace(g.matrix) - known * g.matrix.sum(), np.trace(g.matrix) / n**2) for g in unit])
                / (a * a)
            )
        return out

    def _descend(
        self, problem: ProductGrams, costs: list[Array], rng: np.random.Generator, *, low: bool
    ) -> KroneckerStrategy:
        """Improve one unit after the other, from the costs that a first strategy has; ``low`` totals to begin with."""
        weights, grams = problem.weights, problem.grams
        solved: dict[int, Solution | PIdentity] = {}
        error = math.inf
        alone = all(len(unit) == 1 for unit in grams)
        for _ in range(1 if alone else SWEEPS):
            for u, unit in enumerate(grams):
                if self.tell is not None:
                    self.tell(f"Strategy for {' x '.join(problem.units[u])}")
                # with the other units held, the error is a weighted sum of this unit's Grams: one problem with one Gram
                coefficients = _elsewhere(problem, costs, u)
                found = solved[u] = self._improve([g.matrix for g in unit], coefficients, solved.get(u), rng, low)
                costs[u] = np.array([float(np.sum(_covariance(found) * g.matrix)) for g in unit])
            previous, error = error, float(weights @ problem.group_costs(costs))
            if error > previous * (1.0 - SETTLED) or time.monotonic() > self.deadline:
                break
        error = float(weights @ problem.group_costs(costs))
        return KroneckerStrategy(factors=tuple(solved[u] for u in range(len(grams))), squared_error=error)

    def _improve(
        self,
        grams: Sequence[Array],
        coefficients: Array,
        present: Solution | PIdentity | None,
        rng: np.random.Generator,
        low: bool,
    ) -> Solution | PIdentity:
        total = sum(c * g for c, g in zip(coefficients, grams, strict=True)) + np.zeros_like(grams[0])
        if self.noise == "gaussian":
            start = present.dual if isinstance(present, Solution) else None
            return gaussian_strategy(total, self.options, start)
        warm = present.theta if isinstance(present, PIdentity) else None
        if warm is None and low:  # small totals fade where the identity suffices, large ones stay
            warm = rng.random((default_p(total), len(total)))
        found = p_identity_strategy(total, restarts=1, seed=rng, start=warm)
        # a start from elsewhere may end above what is there, and a sweep must not go up
        if present is not None and float(np.sum(_covariance(present) * total)) <= found.error:
            return present
        return found


def _covariance(found: Solution | PIdentity) -> Array:
    """Return the covariance of the cells at noise variance 1, shape (cells, cells)."""
    return found.strategy.covariance if isinstance(found, Solution) else found.inverse


def _elsewhere(problem: ProductGrams, costs: Sequence[Array], u: int) -> Array:
    """Return the weight of every Gram of unit u: what its groups cost on the other units, largest 1."""
    # costs on forty units multiply to more than a double holds
    logs = np.log(problem.weights)
    for other, own in enumerate(costs):
        if other != u:
            logs = logs + np.log(np.maximum(own[problem.choice[:, other]], 1e-300))  # a group of zeros costs nothing
    terms = np.exp(logs - logs.max())
    return np.bincount(problem.choice[:, u], weights=terms, minlength=len(problem.grams[u])).astype(float)


def product_component(workload: Workload, problem: ProductGrams, found: KroneckerStrategy, share: float) -> Component:
    """Return what a plan measures for a product strategy, at a share of the budget."""
    place = {name: i for i, name in enumerate(problem.attributes)}
    factors = tuple(
        (tuple(place[a] for a in unit), replace(f.strategy, sizes=workload.schema.sizes(unit)))
        for unit, f in zip(problem.units, found.factors, strict=True)
    )
    return Component(attributes=problem.attributes, factors=factors, share=share, groups=problem.groups)


def search_seconds(problem: ProductGrams, restarts: int) -> float:
    """Return what the search for a product strategy takes, in seconds on one idle core, for forecasts."""
    alone = all(len(unit) == 1 for unit in problem.grams)
    turns = 1.0 if alone else SWEPT * max(1, restarts)
    return turns * math.fsum(unit_seconds(len(unit[0].matrix)) for unit in problem.grams)


def unit_seconds(cells: int) -> float:
    """Return what the search on one unit takes, in seconds on one idle core, for forecasts."""
    return 4e-4 + 5e-7 * cells**2 + 3e-9 * cells**3
