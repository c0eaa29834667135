"""Block-coordinate search of Kronecker strategies on one large residual space.

With the strategies X_v of all other axes held, the error of a product of strategies is that of one Gram on these axes:
of a product the factor there times the errors of its other factors, of rows R that couple axes

    sum over rows of R (X_v^-1 on every other axis) R^T.

So every step is an exact search, and none loses.  Two lower bounds, each on the error of any strategy of the space, by
weights that are products over the axes:

    The minimum of a sum is at least the sum of the minima of its terms.
    The rows H = G^(1/2) L D^(1/2) of a product and of a few more are diagonal and those few in the product of the
    axes' own eigenvectors.  A nuclear norm is at least that of two of its diagonal blocks: the directions that the few
    rows meet most with these rows, and all others alone (the pinching inequality, Bhatia 1997, section IV.2).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import scipy

from engine._arrays import Array, thin_svd
from engine.residuals.basis import Lift, contract
from engine.residuals.decomposition import Factor
from engine.residuals.dual_solver import Solution
from engine.residuals.kronecker_sums import Merged, add_factors, assemble
from engine.residuals.split import Axes
from engine.residuals.strategy_search import MET

SWEEPS = 25
SHARE = 1e-7  # a sweep that gains less is the last
SMALLEST = 1e-12  # squared singular values below this share of the largest are rounding, and count as nothing
GUARD = 1.0 - 1e-6  # roots of rounding, of a bound from singular values
Searched = tuple[Solution, Callable[[], Array]]  # with the weights of its cells, which have sum 1


@dataclass(kw_only=True, eq=False)
class Turns:
    """One search in turns.

    Parameters
    ----------
    terms : the Gram.
    sets : a partition of the axes; factors inside a set may be anything, those that cross sets have low rank and the
        sets that they touch one axis each.
    sizes, centers : of every axis; centers have shape (n_i,), None for uniform.
    search : solves one Gram on some axes with their centers.

    >>> from engine.residuals.strategy_search import Search
    >>> one = Factor(sizes=(2,), matrix=np.eye(1))
    >>> found = Search(factor=one, centers=(None,)).run(), lambda: np.array([0.5, 0.5])
    >>> gram = [(1.0, (((0,), one), ((1,), one)))]
    >>> turns = Turns(terms=gram, sets=[(0,), (1,)], sizes=(2, 2), centers=[None, None], search=lambda *_: found)
    >>> turns.run()
    >>> round(turns.value, 6), round(turns.bound, 6)
    (0.25, 0.25)
    """

    terms: Merged
    sets: Sequence[Axes]
    sizes: tuple[int, ...]
    centers: Sequence[Array | None]
    search: Callable[[Factor, Sequence[Array | None]], Searched]
    value: float = math.inf
    bound: float = 0.0
    solved: dict[Axes, Searched] = field(default_factory=dict)

    @cached_property
    def across(self) -> list[list[tuple[Axes, Factor]]]:
        """The factors of every term that cross sets."""
        sets = [set(own) for own in self.sets]
        return [[(a, f) for a, f in factors if not any(s.issuperset(a) for s in sets)] for _, factors in self.terms]

    @cached_property
    def inside(self) -> list[list[Factor | None]]:
        """The Gram of every term on every set, None where factors that cross are all that it has there."""
        out: list[list[Factor | None]] = []
        for c in self.sets:
            own: list[Factor | None] = []
            for _, factors in self.terms:
                has = any(set(a) <= set(c) for a, _ in factors)
                own.append(assemble([(1.0, factors)], c, self.sizes) if has else None)
            out.append(own)
        return out

    def given(self, axes: Axes) -> list[Array | None]:
        """Return the centers of some axes, shape (n_i,) each, None for uniform."""
        return [self.centers[a] for a in axes]

    def run(self) -> None:
        """Search until a sweep gains nothing."""
        coefficients, shape = np.array([c for c, _ in self.terms]), (len(self.sets), len(self.terms))
        minima, costs = np.ones(shape), np.ones(shape)
        for t in range(len(self.terms)):
            for u, axes in enumerate(self.sets):
                if (own := self.inside[u][t]) is not None:
                    minima[u, t] = self.search(own, self.given(axes))[0].bound
        grams = [[None if f is None else f.dense() for f in own] for own in self.inside]
        # what couples axes needs the strategies of the others, which the first sweep finds for the rest
        joins = all(self.across)
        for _ in range(SWEEPS):
            for u, axes in enumerate(self.sets):
                weights = coefficients * np.prod(np.delete(costs, u, axis=0), axis=0)
                parts = [part for t, w in enumerate(weights) if (part := self._part(t, u, float(w), joins)) is not None]
                self.solved[axes] = self.search(add_factors(parts, parts[0][1].sizes), self.given(axes))
                covariance = self._covariance(axes)
                costs[u] = [1.0 if g is None else float(np.sum(g * covariance)) for g in grams[u]]
            joins = True
            coupled = [math.prod(self._cost(a, f) for a, f in own) for own in self.across]
            previous, self.value = self.value, float((coefficients * coupled) @ np.prod(costs, axis=0))
            if self.value > previous * (1.0 - SHARE):
                break
        self.bound = self._pinched() if any(self.across) else 0.0
        if not self.bound:
            least = [math.prod(self._least(a, f) for a, f in own) for own in self.across]
            self.bound = float((coefficients * least) @ np.prod(minima, axis=0))

    def _covariance(self, axes: Axes) -> Array:
        """Return the covariance of the class coordinates on some axes, the identity before they were searched."""
        if axes in self.solved:
            return self.solved[axes][0].strategy.covariance
        return np.eye(math.prod(self.sizes[a] - 1 for a in axes))

    def _part(self, t: int, u: int, weight: float, joins: bool) -> tuple[float, Factor] | None:
        """Return what a term adds to the Gram on one set, the other strategies held: its weight, and the Gram."""
        inside = self.inside[u][t]
        if self.across[t] and not joins:
            return None
        for axes, factor in self.across[t]:
            if self.sets[u][0] in axes:
                inside = Factor(sizes=(self.sizes[self.sets[u][0]],), matrix=self._seen(axes, factor, self.sets[u][0]))
            else:
                weight *= self._cost(axes, factor)
        assert inside is not None  # a term has every axis
        return weight, inside

    def _seen(self, axes: Axes, factor: Factor, axis: int) -> Array:
        """Return the sum over rows R of R (X^-1 on every other axis) R^T, shape (n - 1,) * 2."""
        rows = factor.table
        turned = contract(rows, [None if a == axis else self._covariance((a,)) for a in axes], 1)
        at, n = 1 + axes.index(axis), self.sizes[axis] - 1
        gram = np.zeros((n, n))
        # row by row, where both stay in the cache of a core
        for one, other in zip(*(np.moveaxis(x, at, 1).reshape(len(x), n, -1) for x in (rows, turned)), strict=True):
            gram += one @ other.T
        return 0.5 * (gram + gram.T)

    def _cost(self, axes: Axes, factor: Factor) -> float:
        """Return the error of a factor that couples axes."""
        return float(np.sum(self._seen(axes, factor, axes[0]) * self._covariance((axes[0],))))

    def _least(self, axes: Axes, factor: Factor) -> float:
        """Return a lower bound on the error of a factor that couples axes, by the weights of the axes."""
        weights: Array = np.ones(1)
        for a in axes:
            weights = np.asarray(np.kron(weights, self.solved[a,][1]()), dtype=float)
        rows = Lift(factor.sizes, self.given(axes)).rows(factor.matrix)
        squares = np.linalg.eigvalsh((rows * weights) @ rows.T)
        return float(np.sqrt(squares[squares > SMALLEST * squares[-1]]).sum()) ** 2 * GUARD

    def _pinched(self) -> float:
        """Return the second bound, for one product beside rows that couple all axes; 0 where it does not apply."""
        plain = [t for t, own in enumerate(self.across) if not own]
        coupled = [(c, own) for (c, _), own in zip(self.terms, self.across, strict=True) if own]
        if len(plain) != 1 or not all(len(own[0][0]) == len(self.sizes) for _, own in coupled):
            return 0.0
        lengths, turns = np.full((1,) * len(self.sets), math.sqrt(self.terms[plain[0]][0])), list[Array]()
        for axes, own in zip(self.sets, self.inside, strict=True):
            gram = own[plain[0]]
            assert gram is not None  # a product has every axis
            # H of the product is G^(1/2) L D^(1/2), and as long as G^(1/2) S^(1/2) for S = L D L^T
            L = Lift(gram.sizes, self.given(axes)).rows(np.eye(gram.dimension)) * np.sqrt(self.solved[axes][1]())
            U, singular, _ = thin_svd(L)
            half = (U * singular) @ U.T
            squares, V = np.linalg.eigh(half @ gram.dense() @ half)
            shape = [-1 if a == axes[0] else 1 for a in range(len(self.sets))]
            lengths = lengths * np.sqrt(np.maximum(squares, 0.0)).reshape(shape)
            turns.append(half @ V)
        order = [axes[0] for axes in self.sets]
        rows = [
            # a factor has its axes in the order in which they were asked
            math.sqrt(c) * f.table.transpose(0, *(1 + a.index(axis) for axis in range(len(self.sizes))))
            for c, ((a, f),) in coupled
        ]
        met = contract(np.concatenate(rows), [turns[order.index(a)] for a in range(len(order))], 1)
        met, alone = met.reshape(len(met), -1), lengths.ravel()
        first = np.argsort(np.sum(met**2, axis=0) / np.maximum(alone, np.finfo(float).tiny))[-MET:]
        both = np.concatenate([np.diag(alone[first]), met[:, first]])
        together = scipy.linalg.svdvals(both, overwrite_a=True).sum()
        return float(together + np.delete(alone, first).sum()) ** 2 * GUARD
