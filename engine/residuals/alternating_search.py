"""Alternating search for the best Kronecker product of strategies.

The strategy is restricted to Kronecker products, and block-coordinate descent optimises one factor
at a time.  While the strategies X_v of all other axes are fixed, the error depends on the remaining
axes through one Gram only.  To this Gram, a term that is a product adds its factor on the remaining
axes, times the errors of its other factors.  Query rows that couple axes are written as matrices R,
one per row, with the remaining axes first.  These rows add

    sum over rows of R (Kronecker product of X_v^-1 over the other axes) R^T.

Every step is therefore one search for one Gram.  The first sweep over the axes leaves out terms
with rows that couple axes, unless all terms have such rows.  Later steps increase the error at most
by the gap of their search.

**Lower bounds.**  An alternating search proves a lower bound on the error of every strategy: the
second if the Gram has the form described there, otherwise the larger one of the first and, if all
terms are products, the third.

1.  The minimum of a sum is at least the sum of the minima of its terms.
2.  Let the Gram G be the sum of a product and of a few rows that couple all axes.  Let the dual
    weight of a cell, a diagonal entry of D, be a product of one weight per axis.  In the basis of
    products of the axes' eigenvectors, H = G^(1/2) L D^(1/2) consists of a diagonal matrix and the
    few rows.  The first block of H contains the few rows, and the diagonal entries in the
    directions in which these rows are largest.  The second block contains the other diagonal
    entries.  The nuclear norm of H is at least the sum of the nuclear norms of both blocks
    (pinching inequality, Bhatia 1997, section IV.2).
3.  Let the Gram be a sum of products, and let the dual weights be products as above.  With S = L D
    L^T on the axes of one set, let A_t = S^(1/2) G_t S^(1/2) for every term t.  H consists of one
    row block per term.  Rotations of its rows and columns do not change its nuclear norm, and turn
    the block of term t into the product over the sets of Q_t = (U^T A_t U)^(1/2).  The basis U of a
    set consists of the eigenvectors of the sum of all A_t / trace(A_t), so that every Q_t is almost
    diagonal outside its first rows and columns.  H is divided into blocks that contain the first
    directions of some sets and one direction of each other set.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import scipy

from engine._arrays import Array, thin_svd
from engine.residuals.basis import Axes, Lift, contract
from engine.residuals.decomposition import (
    Factor,
    IntervalFactor,
    LevelFactor,
    Merged,
    add_factors,
    gram_on_axes,
    window_sum,
)
from engine.residuals.dual_solver import Solution
from engine.residuals.level_strategy import LevelStrategy
from engine.residuals.marginals import IntervalStrategy, MarginalStrategy
from engine.residuals.search_costs import (
    MAX_COUPLED_DIRECTIONS,
    MAX_PRODUCT_BOUND_S,
    leading_directions,
    product_bound_seconds,
)
from engine.residuals.strategy import Strategy
from engine.residuals.window_strategy import WindowMixStrategy

# largest number of sweeps of an alternating search over all axes
MAX_SWEEPS = 25
# an alternating search ends when a sweep lowers the error by less than this share
MIN_RELATIVE_GAIN = 1e-7
# squared singular values below this share of the largest count as zero
MIN_SQUARED_SINGULAR_SHARE = 1e-12
# a computed lower bound is multiplied by this factor, which lowers it by more than rounding errors
ROUNDING_MARGIN = 1.0 - 1e-6
# largest number of entries of the matrices whose eigenvalues are computed together
MAX_BATCH_ENTRIES = 1 << 22
# a solution, and a function that returns the dual weights of all cells, shape (cells,) with sum 1
Searched = tuple[Solution, Callable[[], Array]]


@dataclass(kw_only=True, eq=False)
class AlternatingSearch:
    """Search for the best Kronecker product of strategies, one strategy per set of axes.

    After `run`, ``value`` is the weighted squared error of the product at privacy cost 1, ``bound``
    a lower bound on the error of every strategy, and ``solved`` maps sets of axes to solutions.

    Parameters
    ----------
    terms : the Gram as a sum of Kronecker products.
    sets : a partition of the axes.  If a factor of the Gram has axes in several sets, each of these
        sets must consist of one axis, and the factor must have low rank.
    sizes, centers : size and center of every axis; centers have shape (n_i,), None for a uniform
        one.
    search : function (Gram on some axes, centers of these axes) that returns a solution and a
        function that computes its dual weights on cells.
    lower_bound : function with the same arguments that returns a lower bound on the error of every
        strategy for the Gram.

    has_time : function of an expected time in seconds that returns whether it is within the time
        limit.  Otherwise the third bound is left out.

    >>> from engine.residuals.search_cache import Search
    >>> one = Factor(sizes=(2,), matrix=np.eye(1))
    >>> solution = Search(factor=one, centers=(None,)).run(), lambda: np.array([0.5, 0.5])
    >>> gram = [(1.0, (((0,), one), ((1,), one)))]
    >>> alternation = AlternatingSearch(
    ...     terms=gram,
    ...     sets=[(0,), (1,)],
    ...     sizes=(2, 2),
    ...     centers=[None, None],
    ...     search=lambda *_: solution,
    ...     lower_bound=lambda *_: solution[0].bound,
    ... )
    >>> alternation.run()
    >>> round(alternation.value, 6), round(alternation.bound, 6)
    (0.25, 0.25)
    """

    terms: Merged
    sets: Sequence[Axes]
    sizes: tuple[int, ...]
    centers: Sequence[Array | None]
    search: Callable[[Factor, Sequence[Array | None]], Searched]
    lower_bound: Callable[[Factor, Sequence[Array | None]], float]
    has_time: Callable[[float], bool] = lambda seconds: True
    value: float = math.inf
    bound: float = 0.0
    solved: dict[Axes, Searched] = field(default_factory=dict)

    @cached_property
    def coupled_factors(self) -> list[list[tuple[Axes, Factor]]]:
        """For every term, the pairs (axes, Gram) of the factors that have axes in several sets."""
        sets = [set(axes) for axes in self.sets]
        return [
            [(a, f) for a, f in factors if not any(s.issuperset(a) for s in sets)]
            for _, factors in self.terms
        ]

    @cached_property
    def inner_grams(self) -> list[list[Factor | None]]:
        """For every set of axes, one Gram per term: the product of the term's factors on this set.

        The entry is None if the term has no factor whose axes are all in the set.
        """
        grams_by_set: list[list[Factor | None]] = []
        for axes in self.sets:
            grams: list[Factor | None] = []
            for _, factors in self.terms:
                has_factor = any(set(a) <= set(axes) for a, _ in factors)
                grams.append(
                    gram_on_axes([(1.0, factors)], axes, self.sizes) if has_factor else None
                )
            grams_by_set.append(grams)
        return grams_by_set

    def centers_of(self, axes: Axes) -> list[Array | None]:
        """Return one center per axis of ``axes``: shape (n_i,), or None if it is uniform."""
        return [self.centers[a] for a in axes]

    def run(self) -> None:
        """Optimise the strategies of the sets of axes in turn, and compute the lower bound.

        A sweep updates the strategies of all sets.  The last sweep is the first one that lowers the
        error by less than the share `MIN_RELATIVE_GAIN`, or sweep `MAX_SWEEPS`.
        """
        coefficients = np.array([c for c, _ in self.terms])
        inner_bounds = self._inner_bounds()
        # entry (u, t): error of the current strategy of set u for the Gram of term t on this set
        errors = np.ones((len(self.sets), len(self.terms)))
        # In the Gram of a set, a factor with axes in several sets depends on the strategies of the
        # other sets, which do not exist in the first sweep.  So the first sweep leaves out terms
        # with such factors, unless every term has such a factor.
        include_coupled = all(self.coupled_factors)
        for _ in range(MAX_SWEEPS):
            for u, axes in enumerate(self.sets):
                weights = coefficients * np.prod(np.delete(errors, u, axis=0), axis=0)
                parts = [
                    part
                    for t, w in enumerate(weights)
                    if (part := self._contribution(t, u, float(w), include_coupled)) is not None
                ]
                self.solved[axes] = self.search(
                    add_factors(parts, parts[0][1].sizes), self.centers_of(axes)
                )
                strategy = self.solved[axes][0].strategy
                errors[u] = [
                    1.0 if f is None else _squared_error(strategy, f) for f in self.inner_grams[u]
                ]
            include_coupled = True
            coupled = [
                math.prod(self._error(a, f) for a, f in factors) for factors in self.coupled_factors
            ]
            previous = self.value
            self.value = float((coefficients * coupled) @ np.prod(errors, axis=0))
            if self.value > previous * (1.0 - MIN_RELATIVE_GAIN):
                break
        self.bound = self._pinching_bound() if any(self.coupled_factors) else 0.0
        if not self.bound:
            coupled_bounds = [
                math.prod(self._lower_bound(a, f) for a, f in factors)
                for factors in self.coupled_factors
            ]
            self.bound = float((coefficients * coupled_bounds) @ np.prod(inner_bounds, axis=0))
        if not any(self.coupled_factors):
            self.bound = max(self.bound, self._product_bound())

    def _inner_bounds(self) -> Array:
        """Return lower bounds on the errors for the Grams of `inner_grams`, shape (sets, terms).

        A bound holds for every strategy on the set.  If `inner_grams` has no Gram for a term on a
        set, the entry is 1.
        """
        bounds = np.ones((len(self.sets), len(self.terms)))
        for t in range(len(self.terms)):
            for u, axes in enumerate(self.sets):
                if (gram := self.inner_grams[u][t]) is not None:
                    bounds[u, t] = self.lower_bound(gram, self.centers_of(axes))
        return bounds

    def _covariance(self, axes: Axes) -> Array:
        """Return the covariance of the estimates on a set of axes at noise scale 1.

        The estimates are those of the current strategy.  Before the first search on this set, the
        result is the identity.
        """
        if axes in self.solved:
            return self.solved[axes][0].strategy.covariance
        return np.eye(math.prod(self.sizes[a] - 1 for a in axes))

    def _contribution(
        self, term: int, axis_set: int, weight: float, include_coupled: bool
    ) -> tuple[float, Factor] | None:
        """Return (weight, Gram): what a term adds to the Gram for which a set of axes is solved.

        The strategies of all other sets are fixed.  With any strategy on this set, the error of the
        term is the returned weight times the error of this strategy for the Gram.  The result is
        None if ``include_coupled`` is False and the term has factors with axes in several sets.

        Parameters
        ----------
        term : index of the term.
        axis_set : index of the set of axes.
        weight : coefficient of the term, times the errors of its factors inside other sets.
        include_coupled : whether terms with factors in several sets contribute.
        """
        gram = self.inner_grams[axis_set][term]
        if self.coupled_factors[term] and not include_coupled:
            return None
        # a set that shares a factor with other sets consists of one axis
        axis = self.sets[axis_set][0]
        for axes, factor in self.coupled_factors[term]:
            if axis in axes:
                gram = Factor(
                    sizes=(self.sizes[axis],), matrix=self._gram_on_axis(axes, factor, axis)
                )
            else:
                weight *= self._error(axes, factor)
        assert gram is not None  # a term has every axis
        return weight, gram

    def _gram_on_axis(self, axes: Axes, factor: Factor, axis: int) -> Array:
        """Reduce a factor on several ``axes`` to a Gram on one of them, shape (n - 1, n - 1).

        Combine a strategy of ``axis`` with the current strategies of all other axes.  The error of
        this product for the factor is the error of the strategy of ``axis`` for the reduced Gram.
        """
        rows = factor.table
        weighted = contract(rows, [None if a == axis else self._covariance((a,)) for a in axes], 1)
        position, n = 1 + axes.index(axis), self.sizes[axis] - 1
        gram = np.zeros((n, n))
        # one row at a time, which fits in the processor's cache
        for row, weighted_row in zip(
            *(np.moveaxis(x, position, 1).reshape(len(x), n, -1) for x in (rows, weighted)),
            strict=True,
        ):
            gram += row @ weighted_row.T
        return 0.5 * (gram + gram.T)

    def _error(self, axes: Axes, factor: Factor) -> float:
        """Return the weighted squared error for a factor on several axes, in counts^2.

        The current strategy of each axis is used at noise scale 1.
        """
        return float(
            np.sum(self._gram_on_axis(axes, factor, axes[0]) * self._covariance((axes[0],)))
        )

    def _lower_bound(self, axes: Axes, factor: Factor) -> float:
        """Return a lower bound on the error of every strategy for a factor on several axes.

        The dual weights of its proof are products of the dual weights of the single axes.
        """
        weights: Array = np.ones(1)
        for a in axes:
            weights = np.asarray(np.kron(weights, self.solved[a,][1]()), dtype=float)
        rows = Lift(factor.sizes, self.centers_of(axes)).rows(factor.matrix)
        squares = np.linalg.eigvalsh((rows * weights) @ rows.T)
        return (
            float(np.sqrt(squares[squares > MIN_SQUARED_SINGULAR_SHARE * squares[-1]]).sum()) ** 2
            * ROUNDING_MARGIN
        )

    def _pinching_bound(self) -> float:
        """Return the lower bound from the pinching inequality.

        The nuclear norm of a matrix is at least the sum of the nuclear norms of its diagonal
        blocks. The bound requires a Gram with one term whose factors have axes in one set each.
        All other terms must consist of one factor on all axes.  For other Grams the result is 0.
        """
        products = [t for t, factors in enumerate(self.coupled_factors) if not factors]
        coupled_terms = [
            (c, factors)
            for (c, _), factors in zip(self.terms, self.coupled_factors, strict=True)
            if factors
        ]
        if len(products) != 1 or not all(
            len(factors[0][0]) == len(self.sizes) for _, factors in coupled_terms
        ):
            return 0.0
        # ``singular_values`` are those of H = G^(1/2) L D^(1/2), where G is the Gram of the only
        # term that is a product; the array has one axis per set of axes.  ``transforms`` has one
        # matrix per set: it converts the coordinates of this set to the basis of singular vectors.
        singular_values = np.full((1,) * len(self.sets), math.sqrt(self.terms[products[0]][0]))
        transforms: list[Array] = []
        for axes, factors in zip(self.sets, self.inner_grams, strict=True):
            gram = factors[products[0]]
            assert gram is not None  # a product has every axis
            # H has the singular values of G^(1/2) S^(1/2)
            half = self._weighted_root(axes, gram)
            squares, V = np.linalg.eigh(half @ gram.dense() @ half)
            shape = [-1 if a == axes[0] else 1 for a in range(len(self.sets))]
            singular_values = singular_values * np.sqrt(np.maximum(squares, 0.0)).reshape(shape)
            transforms.append(half @ V)
        order = [axes[0] for axes in self.sets]
        rows = [
            # the axes of a factor may be in another order than those of the space
            math.sqrt(c)
            * f.table.transpose(0, *(1 + a.index(axis) for axis in range(len(self.sizes))))
            for c, ((a, f),) in coupled_terms
        ]
        components = contract(
            np.concatenate(rows), [transforms[order.index(a)] for a in range(len(order))], 1
        )
        components, diagonal = components.reshape(len(components), -1), singular_values.ravel()
        relative_squares = np.sum(components**2, axis=0) / np.maximum(
            diagonal, np.finfo(float).tiny
        )
        coupled = np.argsort(relative_squares)[-MAX_COUPLED_DIRECTIONS:]
        block = np.concatenate([np.diag(diagonal[coupled]), components[:, coupled]])
        block_norm = scipy.linalg.svdvals(block, overwrite_a=True).sum()
        return float(block_norm + np.delete(diagonal, coupled).sum()) ** 2 * ROUNDING_MARGIN

    def _weighted_root(self, axes: Axes, gram: Factor) -> Array:
        """Return S^(1/2) for S = L D L^T, shape (coordinates, coordinates).

        L is the lift of ``axes``, and D has the dual weights of the current strategy.  ``gram`` is
        a Gram on these axes.
        """
        L = Lift(gram.sizes, self.centers_of(axes)).rows(np.eye(gram.dimension)) * np.sqrt(
            self.solved[axes][1]()
        )
        U, singular, _ = thin_svd(L)
        return np.asarray((U * singular) @ U.T)

    def _product_bound(self) -> float:
        """Return the third lower bound, which requires that all terms are products.

        The result is 0 for a single term, and if the bound would take too long.
        """
        dimensions = [math.prod(self.sizes[a] - 1 for a in axes) for axes in self.sets]
        seconds = product_bound_seconds(dimensions, len(self.terms))
        if len(self.terms) < 2 or seconds > MAX_PRODUCT_BOUND_S or not self.has_time(seconds):
            return 0.0
        leading = leading_directions(dimensions)
        # For every set: squared diagonal entries of Q_t, shape (terms, other directions), and
        # Q_t^T Q_t on the leading directions, shape (terms, leading, leading).
        squares, leading_grams = [], []
        for axes, grams, k in zip(self.sets, self.inner_grams, leading, strict=True):
            roots = self._aligned_roots(axes, [gram for gram in grams if gram is not None])
            squares.append(np.array([np.diagonal(Q)[k:] ** 2 for Q in roots]))
            leading_grams.append(np.array([Q[:k, :k].T @ Q[:k, :k] for Q in roots]))
        norm = 0.0
        # A block has the leading directions of some sets, and one direction of each other set.
        for is_leading in itertools.product((True, False), repeat=len(self.sets)):
            # squared scale of every term in every block, shape (terms, blocks)
            scales = np.array([[c] for c, _ in self.terms])
            # H^T H of a block without these scales, shape (terms, directions, directions)
            grams_of_terms = np.ones((len(self.terms), 1, 1))
            for u, takes_leading in enumerate(is_leading):
                if takes_leading:
                    grams_of_terms = np.array(list(map(np.kron, grams_of_terms, leading_grams[u])))
                else:
                    products = scales[:, :, None] * squares[u][:, None, :]
                    scales = products.reshape(len(self.terms), -1)
            if not any(is_leading):  # blocks of one direction
                norm += float(np.sqrt(scales.sum(axis=0)).sum())
                continue
            step = max(1, MAX_BATCH_ENTRIES // grams_of_terms[0].size)
            for start in range(0, scales.shape[1], step):
                blocks = np.tensordot(scales[:, start : start + step].T, grams_of_terms, axes=1)
                eigenvalues = np.linalg.eigvalsh(blocks)
                is_positive = eigenvalues > MIN_SQUARED_SINGULAR_SHARE * eigenvalues[:, -1:]
                norm += float(np.sqrt(eigenvalues[is_positive]).sum())
        return norm**2 * ROUNDING_MARGIN

    def _aligned_roots(self, axes: Axes, grams: Sequence[Factor]) -> list[Array]:
        """Return Q_t of the third lower bound for the Grams of all terms on a set of axes.

        The directions are sorted by the sum of all A_t / trace(A_t), the largest first.
        """
        half = self._weighted_root(axes, grams[0])
        weighted = [half @ gram.dense() @ half for gram in grams]
        _, U = np.linalg.eigh(sum(A / np.trace(A) for A in weighted))
        roots = []
        for A in weighted:
            eigenvalues, V = np.linalg.eigh(U[:, ::-1].T @ A @ U[:, ::-1])
            roots.append((V * np.sqrt(np.maximum(eigenvalues, 0.0))) @ V.T)
        return roots


def _squared_error(strategy: Strategy, factor: Factor) -> float:
    """Return the weighted variance of the queries with this Gram at noise scale 1, in counts^2."""
    if isinstance(factor, IntervalFactor) and isinstance(
        strategy, MarginalStrategy | IntervalStrategy
    ):
        return strategy.total_variance(factor.gram)
    if isinstance(factor, LevelFactor) and isinstance(strategy, LevelStrategy):
        return strategy.total_variance(factor.gram)
    if isinstance(strategy, WindowMixStrategy):
        gram = factor.gram if isinstance(factor, IntervalFactor) else window_sum([(1.0, factor)])
        if gram is not None and strategy.solves(gram):
            return strategy.solution.total_variance(gram)
    return float(np.sum(factor.dense() * strategy.covariance))
