"""Block-coordinate descent over Kronecker strategies of one large residual space.

While the strategies X_v of all other axes are fixed, the error of a Kronecker strategy is that of
one Gram on the remaining axes.  A product term contributes its factor there times the errors of its
other factors; rows R that couple axes contribute

    sum over rows of R (X_v^-1 on every other axis) R^T.

Every step is therefore an exact search, and no step increases the error.  Two lower bounds on the
error of every strategy of the space, each from weights that are products over the axes:

    The minimum of a sum is at least the sum of the minima of its terms. For the sum of a product
    and a few rows that couple all axes, the rows H = G^(1/2) L D^(1/2) are a diagonal matrix and
    those few rows, in the product of the axes' eigenvectors.  A nuclear norm is at least that of
    two diagonal blocks: the few rows with the directions in which they are largest, and the other
    directions alone (the pinching inequality, Bhatia 1997, section IV.2).
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

MAX_SWEEPS = 25
# relative decrease of the error in one sweep below which the search ends
MIN_RELATIVE_GAIN = 1e-7
# squared singular values below this share of the largest are rounding and count as zero
MIN_SQUARED_SINGULAR_SHARE = 1e-12
# factor on a bound from singular values, against the rounding of their roots
ROUNDING_MARGIN = 1.0 - 1e-6
# a solution, and a function that returns the weights of its cells, with sum 1
Searched = tuple[Solution, Callable[[], Array]]


@dataclass(kw_only=True, eq=False)
class AlternatingSearch:
    """One alternating search.

    Parameters
    ----------
    terms : the Gram.
    sets : a partition of the axes.  Factors inside a set are arbitrary; factors that cross sets
        have low rank and only touch sets of one axis.
    sizes, centers : size and center of every axis; centers have shape (n_i,), None for uniform.
    search : solves one Gram on some axes with their centers.

    >>> from engine.residuals.strategy_search import Search
    >>> one = Factor(sizes=(2,), matrix=np.eye(1))
    >>> solution = Search(factor=one, centers=(None,)).run(), lambda: np.array([0.5, 0.5])
    >>> gram = [(1.0, (((0,), one), ((1,), one)))]
    >>> turns = Turns(terms=gram, sets=[(0,), (1,)], sizes=(2, 2), centers=[None, None], search=lambda *_: solution)
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
        sets = [set(axes) for axes in self.sets]
        return [[(a, f) for a, f in factors if not any(s.issuperset(a) for s in sets)] for _, factors in self.terms]

    @cached_property
    def inside(self) -> list[list[Factor | None]]:
        """The Gram of every term on every set; None for terms with crossing factors only."""
        out: list[list[Factor | None]] = []
        for axes in self.sets:
            grams: list[Factor | None] = []
            for _, factors in self.terms:
                has = any(set(a) <= set(axes) for a, _ in factors)
                grams.append(assemble([(1.0, factors)], axes, self.sizes) if has else None)
            out.append(grams)
        return out

    def centers_of(self, axes: Axes) -> list[Array | None]:
        """Return the centers of some axes, shape (n_i,) each, None for uniform."""
        return [self.centers[a] for a in axes]

    def run(self) -> None:
        """Sweep over the sets until a sweep no longer lowers the error."""
        coefficients, shape = np.array([c for c, _ in self.terms]), (len(self.sets), len(self.terms))
        minima, costs = np.ones(shape), np.ones(shape)
        for t in range(len(self.terms)):
            for u, axes in enumerate(self.sets):
                if (factors := self.inside[u][t]) is not None:
                    minima[u, t] = self.search(factors, self.centers_of(axes))[0].bound
        grams = [[None if f is None else f.dense() for f in factors] for factors in self.inside]
        # factors that couple axes need the strategies of the other axes, so the first sweep leaves
        # them out if possible
        include_coupled = all(self.across)
        for _ in range(MAX_SWEEPS):
            for u, axes in enumerate(self.sets):
                weights = coefficients * np.prod(np.delete(costs, u, axis=0), axis=0)
                parts = [
                    part
                    for t, w in enumerate(weights)
                    if (part := self._contribution(t, u, float(w), include_coupled)) is not None
                ]
                self.solved[axes] = self.search(add_factors(parts, parts[0][1].sizes), self.centers_of(axes))
                covariance = self._covariance(axes)
                costs[u] = [1.0 if g is None else float(np.sum(g * covariance)) for g in grams[u]]
            include_coupled = True
            coupled = [math.prod(self._error(a, f) for a, f in factors) for factors in self.across]
            previous, self.value = self.value, float((coefficients * coupled) @ np.prod(costs, axis=0))
            if self.value > previous * (1.0 - MIN_RELATIVE_GAIN):
                break
        self.bound = self._pinching_bound() if any(self.across) else 0.0
        if not self.bound:
            least = [math.prod(self._lower_bound(a, f) for a, f in factors) for factors in self.across]
            self.bound = float((coefficients * least) @ np.prod(minima, axis=0))

    def _covariance(self, axes: Axes) -> Array:
        """Return the covariance of class coordinates on some axes; initially the identity."""
        if axes in self.solved:
            return self.solved[axes][0].strategy.covariance
        return np.eye(math.prod(self.sizes[a] - 1 for a in axes))

    def _contribution(self, t: int, u: int, weight: float, include_coupled: bool) -> tuple[float, Factor] | None:
        """Return the weight and Gram of a term on one set, while the other strategies are fixed."""
        gram = self.inside[u][t]
        if self.across[t] and not include_coupled:
            return None
        for axes, factor in self.across[t]:
            if self.sets[u][0] in axes:
                gram = Factor(
                    sizes=(self.sizes[self.sets[u][0]],), matrix=self._gram_on_axis(axes, factor, self.sets[u][0])
                )
            else:
                weight *= self._error(axes, factor)
        assert gram is not None  # a term has every axis
        return weight, gram

    def _gram_on_axis(self, axes: Axes, factor: Factor, axis: int) -> Array:
        """Return the sum over rows R of R (X^-1 on every other axis) R^T, shape (n - 1,) * 2."""
        rows = factor.table
        weighted = contract(rows, [None if a == axis else self._covariance((a,)) for a in axes], 1)
        at, n = 1 + axes.index(axis), self.sizes[axis] - 1
        gram = np.zeros((n, n))
        # row by row, so that both fit into the cache of a core
        for row, weighted_row in zip(
            *(np.moveaxis(x, at, 1).reshape(len(x), n, -1) for x in (rows, weighted)), strict=True
        ):
            gram += row @ weighted_row.T
        return 0.5 * (gram + gram.T)

    def _error(self, axes: Axes, factor: Factor) -> float:
        """Return the error of a factor that couples axes."""
        return float(np.sum(self._gram_on_axis(axes, factor, axes[0]) * self._covariance((axes[0],))))

    def _lower_bound(self, axes: Axes, factor: Factor) -> float:
        """Return a lower bound on the error of a coupling factor, from the weights of the axes."""
        weights: Array = np.ones(1)
        for a in axes:
            weights = np.asarray(np.kron(weights, self.solved[a,][1]()), dtype=float)
        rows = Lift(factor.sizes, self.centers_of(axes)).rows(factor.matrix)
        squares = np.linalg.eigvalsh((rows * weights) @ rows.T)
        return float(np.sqrt(squares[squares > MIN_SQUARED_SINGULAR_SHARE * squares[-1]]).sum()) ** 2 * ROUNDING_MARGIN

    def _pinching_bound(self) -> float:
        """Return the pinching bound, for one product and rows that couple all axes.

        It is 0 for other sums.
        """
        products = [t for t, factors in enumerate(self.across) if not factors]
        coupled_terms = [(c, factors) for (c, _), factors in zip(self.terms, self.across, strict=True) if factors]
        if len(products) != 1 or not all(len(factors[0][0]) == len(self.sizes) for _, factors in coupled_terms):
            return 0.0
        lengths, transforms = np.full((1,) * len(self.sets), math.sqrt(self.terms[products[0]][0])), list[Array]()
        for axes, factors in zip(self.sets, self.inside, strict=True):
            gram = factors[products[0]]
            assert gram is not None  # a product has every axis
            # H of the product is G^(1/2) L D^(1/2), with the singular values of G^(1/2) S^(1/2) for
            # S = L D L^T
            L = Lift(gram.sizes, self.centers_of(axes)).rows(np.eye(gram.dimension)) * np.sqrt(self.solved[axes][1]())
            U, singular, _ = thin_svd(L)
            half = (U * singular) @ U.T
            squares, V = np.linalg.eigh(half @ gram.dense() @ half)
            shape = [-1 if a == axes[0] else 1 for a in range(len(self.sets))]
            lengths = lengths * np.sqrt(np.maximum(squares, 0.0)).reshape(shape)
            transforms.append(half @ V)
        order = [axes[0] for axes in self.sets]
        rows = [
            # a factor has its axes in the order of the query, not of the space
            math.sqrt(c) * f.table.transpose(0, *(1 + a.index(axis) for axis in range(len(self.sizes))))
            for c, ((a, f),) in coupled_terms
        ]
        components = contract(np.concatenate(rows), [transforms[order.index(a)] for a in range(len(order))], 1)
        components, diagonal = components.reshape(len(components), -1), lengths.ravel()
        first = np.argsort(np.sum(components**2, axis=0) / np.maximum(diagonal, np.finfo(float).tiny))[-MET:]
        block = np.concatenate([np.diag(diagonal[first]), components[:, first]])
        block_norm = scipy.linalg.svdvals(block, overwrite_a=True).sum()
        return float(block_norm + np.delete(diagonal, first).sum()) ** 2 * ROUNDING_MARGIN
