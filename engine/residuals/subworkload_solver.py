"""Strategies of subworkloads: Kronecker, dense or alternating searches.

**Kronecker.**  A Kronecker Gram has an exact Kronecker optimum: if V_i is optimal for G_i, the
product of the V_i satisfies the optimality conditions for the product of the G_i, and errors and
lower bounds multiply.  Other Grams are solved by one dense search on all axes if it fits into the
limits.

**Alternating.**  Otherwise the strategy is restricted to Kronecker products, and block-coordinate
descent optimises one factor at a time.  While the strategies X_v of all other axes are fixed, the
error of a Kronecker strategy is that of one Gram on the remaining axes.  A product term adds its
factor on these axes times the errors of its other factors to this Gram.  Query rows R that couple
axes, each as a matrix with the remaining axes first, add

    sum over rows of R (Kronecker product of X_v^-1 over the other axes) R^T.

Every step is therefore an exact search, and no step increases the error.

**Lower bounds** on the error of every strategy of a space with an alternating search; the better of
two is used, and both take dual weights that are products over the axes:

1.  The minimum of a sum is at least the sum of the minima of its terms.
2.  For the sum of a product and a few rows that couple all axes, the rows H = G^(1/2) L D^(1/2) are
    a diagonal matrix and those few rows, in the product of the axes' eigenvectors.  A nuclear norm
    is at least that of two diagonal blocks: the few rows with the directions in which they are
    largest, and the other directions without them (pinching inequality, Bhatia 1997, section IV.2).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import scipy

from engine._arrays import Array, thin_svd
from engine._threads import MAX_SINGLE_THREAD_ORDER, threads_for
from engine.errors import LimitExceeded
from engine.residuals.basis import Axes, Complement, Lift, contract, digest
from engine.residuals.cache import Hints, SolveCache, most_similar
from engine.residuals.decomposition import (
    Factor,
    IntervalFactor,
    LevelFactor,
    Merged,
    Subworkload,
    add_factors,
    assemble,
    axis_partition,
    merge_shape,
    merge_terms,
)
from engine.residuals.dual_solver import Options, Solution, Watch
from engine.residuals.intervals import IntervalGram
from engine.residuals.level_strategy import LevelStrategy, level_solution, level_weights
from engine.residuals.levels import LevelGram
from engine.residuals.marginals import IntervalStrategy, MarginalStrategy, interval_solution
from engine.residuals.operators import Operator
from engine.residuals.parallel import MIN_PARALLEL_S, Task, is_configured, search_all, workers_for
from engine.residuals.strategy import Strategy
from engine.residuals.strategy_search import (
    ALTERNATING_SWEEPS,
    MAX_COUPLED_DIRECTIONS,
    Cost,
    Search,
    alternating_cost,
    dense_bytes,
    full_rank_cost,
    low_rank_cost,
)

# an alternating search ends after this number of sweeps over all axes, or if a sweep lowers the
# error by less than this share
MAX_SWEEPS, MIN_RELATIVE_GAIN = 25, 1e-7
# squared singular values below this share of the largest count as zero
MIN_SQUARED_SINGULAR_SHARE = 1e-12
# factor that makes a computed lower bound smaller by more than its rounding errors
ROUNDING_MARGIN = 1.0 - 1e-6
# a solution, and a function that returns its dual weights on cells, shape (cells,), sum 1
Searched = tuple[Solution, Callable[[], Array]]


@dataclass(kw_only=True, eq=False)
class AlternatingSearch:
    """Search for the best product of strategies, one per set of axes, for a sum of products.

    After `run`, ``value`` is the weighted squared error of the product at privacy cost 1, ``bound``
    a lower bound on that of every strategy, and ``solved`` maps sets of axes to their solutions.

    Parameters
    ----------
    terms : the Gram as a sum of Kronecker products.
    sets : a partition of the axes.  A factor of the Gram with axes in several sets must have low
        rank, and each of these sets must consist of a single axis; other factors are arbitrary.
    sizes, centers : size and center of every axis; centers have shape (n_i,), None for uniform.
    search : function that solves one Gram on some axes with their centers; returns the solution and
        a function that computes its dual weights on cells.

    >>> from engine.residuals.strategy_search import Search
    >>> one = Factor(sizes=(2,), matrix=np.eye(1))
    >>> solution = Search(factor=one, centers=(None,)).run(), lambda: np.array([0.5, 0.5])
    >>> gram = [(1.0, (((0,), one), ((1,), one)))]
    >>> alternation = AlternatingSearch(
    ...     terms=gram,
    ...     sets=[(0,), (1,)],
    ...     sizes=(2, 2),
    ...     centers=[None, None],
    ...     search=lambda *_: solution,
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
    value: float = math.inf
    bound: float = 0.0
    solved: dict[Axes, Searched] = field(default_factory=dict)

    @cached_property
    def coupled_factors(self) -> list[list[tuple[Axes, Factor]]]:
        """For every term, its (axes, Gram) factors with axes in several sets."""
        sets = [set(axes) for axes in self.sets]
        return [
            [(a, f) for a, f in factors if not any(s.issuperset(a) for s in sets)]
            for _, factors in self.terms
        ]

    @cached_property
    def inner_grams(self) -> list[list[Factor | None]]:
        """For every set and every term, the Gram of the term's factors with all axes in the set.

        It is None if the term has no such factor.
        """
        out: list[list[Factor | None]] = []
        for axes in self.sets:
            grams: list[Factor | None] = []
            for _, factors in self.terms:
                has_factor = any(set(a) <= set(axes) for a, _ in factors)
                grams.append(assemble([(1.0, factors)], axes, self.sizes) if has_factor else None)
            out.append(grams)
        return out

    def centers_of(self, axes: Axes) -> list[Array | None]:
        """Return the centers of some axes, shape (n_i,) each, None for uniform."""
        return [self.centers[a] for a in axes]

    def run(self) -> None:
        """Search on one set of axes after the other, until a sweep no longer lowers the error."""
        coefficients = np.array([c for c, _ in self.terms])
        # for the Gram of every term on every set of axes: a lower bound on the error of all
        # strategies, and the error of the current strategy
        minima = np.ones((len(self.sets), len(self.terms)))
        errors = np.ones_like(minima)
        for t in range(len(self.terms)):
            for u, axes in enumerate(self.sets):
                if (gram := self.inner_grams[u][t]) is not None:
                    minima[u, t] = self.search(gram, self.centers_of(axes))[0].bound
        # factors with axes in several sets need the strategies of other axes, which do not exist in
        # the first sweep: it leaves out terms with such factors, unless all terms have some
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
            self.bound = float((coefficients * coupled_bounds) @ np.prod(minima, axis=0))

    def _covariance(self, axes: Axes) -> Array:
        """Return the covariance of the residual coordinates on a set of axes, at noise scale 1.

        It is the identity before the first search on this set.
        """
        if axes in self.solved:
            return self.solved[axes][0].strategy.covariance
        return np.eye(math.prod(self.sizes[a] - 1 for a in axes))

    def _contribution(
        self, t: int, u: int, weight: float, include_coupled: bool
    ) -> tuple[float, Factor] | None:
        """Return a weight and a Gram: the error of term t as a function of the strategy of set u.

        ``weight`` is the term's coefficient times the errors of its factors within other sets.
        None if the term has factors with axes in several sets and ``include_coupled`` is False.
        """
        gram = self.inner_grams[u][t]
        if self.coupled_factors[t] and not include_coupled:
            return None
        for axes, factor in self.coupled_factors[t]:
            if self.sets[u][0] in axes:
                gram = Factor(
                    sizes=(self.sizes[self.sets[u][0]],),
                    matrix=self._gram_on_axis(axes, factor, self.sets[u][0]),
                )
            else:
                weight *= self._error(axes, factor)
        assert gram is not None  # a term has every axis
        return weight, gram

    def _gram_on_axis(self, axes: Axes, factor: Factor, axis: int) -> Array:
        """Return the Gram on one axis of a factor that couples ``axes``, shape (n - 1, n - 1).

        The strategies of the other axes are fixed, see the module.
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
        """Return the weighted squared error of a factor that couples axes, in counts^2.

        The strategies of the axes are the current ones, with noise scale 1.
        """
        return float(
            np.sum(self._gram_on_axis(axes, factor, axes[0]) * self._covariance((axes[0],)))
        )

    def _lower_bound(self, axes: Axes, factor: Factor) -> float:
        """Return a lower bound on the error of every strategy for a factor that couples axes.

        The dual weights that prove it are products of those of the single axes.
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
        """Return the lower bound from the pinching inequality, see the module; 0 if not applicable.

        It applies to sums of one product and factors that couple all axes.
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
        # singular values of the product's H, one axis per set, and bases of the singular vectors
        singular_values = np.full((1,) * len(self.sets), math.sqrt(self.terms[products[0]][0]))
        transforms: list[Array] = []
        for axes, factors in zip(self.sets, self.inner_grams, strict=True):
            gram = factors[products[0]]
            assert gram is not None  # a product has every axis
            # G^(1/2) L D^(1/2) has the singular values of G^(1/2) S^(1/2) for S = L D L^T
            L = Lift(gram.sizes, self.centers_of(axes)).rows(np.eye(gram.dimension)) * np.sqrt(
                self.solved[axes][1]()
            )
            U, singular, _ = thin_svd(L)
            half = (U * singular) @ U.T
            squares, V = np.linalg.eigh(half @ gram.dense() @ half)
            shape = [-1 if a == axes[0] else 1 for a in range(len(self.sets))]
            singular_values = singular_values * np.sqrt(np.maximum(squares, 0.0)).reshape(shape)
            transforms.append(half @ V)
        order = [axes[0] for axes in self.sets]
        rows = [
            # the factor's axes are in the order of the query: sort them as in the space
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


def _squared_error(strategy: Strategy, factor: Factor) -> float:
    """Return the weighted variance of the queries with this Gram at noise scale 1, in counts^2."""
    if isinstance(factor, IntervalFactor) and isinstance(
        strategy, MarginalStrategy | IntervalStrategy
    ):
        return strategy.total_variance(factor.gram)
    if isinstance(factor, LevelFactor) and isinstance(strategy, LevelStrategy):
        return strategy.total_variance(factor.gram)
    return float(np.sum(factor.dense() * strategy.covariance))


# A plan records the status of its searches.  Prefix of this status if the search alternates over
# single axes, because some factors couple axes:
COUPLED_PREFIX = "in turns"
# prefix if it alternates over sets of axes that no factor couples, although one dense search on all
# axes would fit in memory:
UNCOUPLED_PREFIX = "set by set"
# largest expected time of a dense search, in seconds: for optimal strategies, and for approximate
# constructions
MAX_OPTIMAL_SEARCH_S, MAX_APPROXIMATE_SEARCH_S = 45.0, 0.35
# largest expected time of all dense searches with tuned centers together, in seconds
MAX_TUNED_SEARCH_S = 5.0


@dataclass(frozen=True, kw_only=True, eq=False)
class SpaceSolution:
    """Strategy of a subworkload as a Kronecker product, with a lower bound on the error.

    Attributes
    ----------
    factors : (axes, solution) pairs: the strategy on each set of axes; empty for the total.
    value : weighted squared error at privacy cost 1 for the subworkload's Gram, in counts^2.
    bound : lower bound on the value of every strategy, in counts^2.
    status : "optimal", or the reason why a search stopped early.
    """

    factors: tuple[tuple[Axes, Solution], ...]
    value: float
    bound: float
    status: str


# Numbers of residual Grams on the same axes, with the coefficients of their sum.
MergedKey = tuple[tuple[int, float], ...]


def _merged_key(sub: Subworkload, axes: Axes) -> MergedKey:
    """Return a key for the sum of a subworkload's residual Grams on ``axes``.

    A single Gram has the coefficient 1, because its scale does not change the search.
    """
    numbers = [(k, t.coefficient) for t in sub.terms for a, k in t.factors if a == axes]
    if len({k for k, _ in numbers}) == 1:
        return ((numbers[0][0], 1.0),)
    return tuple(sorted(set(numbers)))


class SubworkloadSolver:
    """Solver for the subworkloads of one decomposition.  Equal factors are solved once.

    Parameters
    ----------
    factors : the factors of the decomposition.
    method : "optimal", "eigenbasis" or "fourier".
    options : stopping rule.
    memory_limit : largest memory of one search, in bytes.
    cache : storage of solutions, None for no storage.

    Attributes
    ----------
    dense_limit : largest memory of a dense search, in bytes; subworkloads that need more are solved
        by an alternating search, if that applies to them.
    watch : called with the relative RMSE gap after every evaluation; may raise to cancel.
    recorded : dual weights and status of every search of a stored plan, in the order of solving,
        from which its strategies are rebuilt without a search; None to search.
    warm : initial dual weights of the searches, in the order of solving, from a similar plan.
    duals, endings : dual weights and status of the searches so far, in the order of solving.
    """

    def __init__(
        self,
        *,
        factors: Sequence[Factor],
        method: str,
        options: Options,
        memory_limit: float,
        cache: SolveCache | None = None,
    ) -> None:
        self.factors, self.options, self.memory_limit = factors, options, memory_limit
        self.dense_limit = memory_limit
        self.method, self.cache = method, cache
        # a snapshot, so that results do not depend on the order of solving
        self.hints: Hints = cache.hints() if cache is not None else {}
        self.duals: list[Array] = []
        self.endings: list[str] = []
        self.watch: Watch | None = None
        self.recorded: list[tuple[Array, str]] | None = None
        self.warm: tuple[Array, ...] = ()
        self._solved: dict[Any, Solution] = {}
        # (cells, ratios of the query weights, center) -> largest weight, and solution for it
        self._structured: dict[Any, tuple[float, Solution]] = {}
        self._parallel_results: dict[str, Solution] = {}

    def forecast(self, subs: Sequence[Subworkload]) -> list[Cost]:
        """Return the expected cost of each subworkload, before anything is computed.

        Each sum of factors is counted for the first subworkload with it only, because it is solved
        once.
        """
        counted: set[MergedKey] = set()
        costs, computed = [self._forecast(sub, counted) for sub in subs], set[int]()
        for i, sub in enumerate(subs):
            numbers = {number for term in sub.terms for _, number in term.factors} - computed
            seconds = math.fsum(self.factors[number].deferred_seconds for number in numbers)
            costs[i] = replace(costs[i], seconds=costs[i].seconds + seconds)
            computed |= numbers
        return costs

    def in_time(self, subs: Sequence[Subworkload], costs: Sequence[Cost], seconds: float) -> None:
        """Lower ``dense_limit`` until dense searches are expected to take at most ``seconds``.

        ``costs`` are the forecasts of the subworkloads.  With tuned centers the time is limited to
        ``MAX_TUNED_SEARCH_S`` as well, because without the symmetries of uniform centers a search
        may take a hundred times as long.
        """
        if any(pi is not None for sub in subs for pi in sub.centers):
            seconds = min(seconds, MAX_TUNED_SEARCH_S)
        # (memory of a dense search, number) of each subworkload that an alternating search may solve
        dense_searches = [
            (dense_bytes(s.dimension, s.dimension, math.prod(s.sizes)), k)
            for k, s in enumerate(subs)
            if len(s.terms) > 1 and not s.spaces and not s.complements
        ]
        for needed, k in sorted(dense_searches):
            seconds -= costs[k].seconds
            if seconds < 0.0:
                self.dense_limit = min(self.dense_limit, needed - 1)
                return

    def _forecast(self, sub: Subworkload, counted: set[MergedKey]) -> Cost:
        """Return the expected cost of a subworkload.

        Sums of factors in ``counted`` cost nothing, because an earlier subworkload includes them.
        If the Gram of this subworkload is one product, its sums are added to ``counted``.
        """
        terms, costs = merge_shape(sub), list[Cost]()
        if len(terms) == 1:
            merged_terms = [_merged_key(sub, axes) for axes, _ in terms[0]]
            factors_on = [
                (axes, [number])
                for (axes, number), merged in zip(terms[0], merged_terms, strict=True)
                if merged not in counted
            ]
            counted.update(merged_terms)
        else:
            factors_on = [
                (tuple(range(len(sub.sizes))), [number for t in terms for _, number in t])
            ]
        searches = 1
        sets, prefix = self._sets(sub) if len(terms) > 1 else ([], "")
        if prefix == COUPLED_PREFIX:
            rows = [self.factors[k].n_rows for t in sub.terms for a, k in t.factors if len(a) > 1]
            return alternating_cost(sub.sizes, rows, self.options.gap, sub.centers)
        if sets:
            # on every set of axes: one search per term for the bound, then one per sweep
            searches = len(terms) + ALTERNATING_SWEEPS
            factors_on = [
                (axes, [n for t in terms for a, n in t if set(a) <= set(axes)]) for axes in sets
            ]
        for axes, numbers in factors_on:
            sizes = tuple(sub.sizes[a] for a in axes)
            centers = [sub.centers[a] for a in axes]
            # factors of terms that differ on these axes only are added up
            merged = {k for t in sub.terms for a, k in t.factors if a == axes}
            grams = [self._structured_gram(self.factors[k], centers) for k in merged]
            has_structured_sum = _has_structured_sum(grams)
            has_areas = any(isinstance(gram, LevelGram) for gram in grams)
            if has_areas and not has_structured_sum and sizes[0] > MAX_MIXED_AREA_CELLS:
                raise LimitExceeded(
                    f"An attribute has {sizes[0]:,} cells. With more than {MAX_MIXED_AREA_CELLS:,},"
                    " areas of a hierarchy are planned with its other areas and the marginal only. Leave out the"
                    " areas of a second hierarchy and the other queries on this attribute, which"
                    " follow from its cells; or choose 'residualplanner'."
                )
            if len(axes) == 1 and has_structured_sum:
                wide = [structured_cost(gram) for gram in grams if gram is not None]
                costs.append(max(wide, key=lambda cost: (cost.peak, cost.seconds)))
                continue
            joint_dimension = self.factors[numbers[0]].dimension if sub.spaces else None
            if all(self.factors[k].low_rank for k in numbers):
                dimension = (
                    math.prod(n - 1 for n in sizes) if joint_dimension is None else joint_dimension
                )
                rank = min(dimension, sum(self.factors[k].rank for k in numbers))
                is_single = len(numbers) == 1 and not sub.complements and not sub.spaces
                single_factor = self.factors[numbers[0]] if is_single else None
                costs.append(
                    low_rank_cost(sizes, rank, single_factor, self.options.gap, joint_dimension)
                )
            else:
                joint = [
                    self.factors[t[0][1]]
                    for t in terms
                    if len(t) == 1 and len(sizes) > 1 and not sub.complements
                ]
                costs.append(
                    full_rank_cost(
                        sizes,
                        joint,
                        self.options.gap,
                        joint_dimension,
                        [sub.centers[a] for a in axes],
                    )
                )
        return Cost(
            seconds=searches * math.fsum(c.seconds for c in costs) + 1e-4,
            peak=max((c.peak for c in costs), default=0.0),
            saved=math.fsum(c.saved for c in costs),
            alternates=bool(sets),
        )

    def solve(self, sub: Subworkload) -> SpaceSolution:
        """Return the strategy of a subworkload, optimal if a dense search fits into the limits.

        Raises
        ------
        LimitExceeded : a search needs more memory than the limit, and no other search applies.
        """
        terms = merge_terms(sub, self.factors)
        axes = tuple(range(len(sub.sizes)))
        is_joint = bool(sub.spaces or sub.complements)
        if len(terms) == 1 and not is_joint:
            # errors, lower bounds and privacy costs of Kronecker products are products
            coefficient, factors = terms[0]
            solved = [
                (axes, self._factor_solution(factor, [sub.centers[a] for a in axes]))
                for axes, factor in factors
            ]
            value = coefficient * math.prod(s.value for _, s in solved)
            bound = coefficient * math.prod(s.bound for _, s in solved)
            return SpaceSolution(
                factors=tuple(solved), value=value, bound=bound, status=_first_status(solved)
            )
        sets, prefix = ([], "") if is_joint else self._sets(sub)
        if sets:
            return self._alternate(terms, sub, sets, prefix)
        needed = dense_bytes(sub.dimension, sub.dimension, math.prod(sub.sizes))
        if not is_joint and needed > self.memory_limit and self.recorded is None:
            raise LimitExceeded(
                f"Queries on a table of {' x '.join(map(str, sub.sizes))} cells couple all its"
                f" attributes; their strategy needs {needed / 1e9:.1f} GB, more than the limit of"
                f" {self.memory_limit / 1e9:.1f} GB. Raise memory_limit, or merge cells of these"
                " attributes."
            )
        solution = self._solution(
            assemble(terms, axes, sub.sizes), sub.centers, sub.complements, sub.spaces
        )
        return SpaceSolution(
            factors=((axes, solution),),
            value=solution.value,
            bound=solution.bound,
            status=solution.status,
        )

    def _sets(self, sub: Subworkload) -> tuple[list[Axes], str]:
        """Return the sets of axes of an alternating search, and the prefix of its recorded status.

        There are no sets if one dense search on all axes is used.
        """
        if sub.spaces or sub.complements:
            return [], ""
        uncoupled = axis_partition([(1.0, t.factors) for t in sub.terms], len(sub.sizes))
        single_axes: list[Axes] = [(a,) for a in range(len(sub.sizes))]
        needed = dense_bytes(sub.dimension, sub.dimension, math.prod(sub.sizes))
        if self.recorded is not None:  # a stored plan is rebuilt by the same kind of search
            ending = self.recorded[0][1] if self.recorded else ""
            if ending.startswith(COUPLED_PREFIX):
                return single_axes, COUPLED_PREFIX
            if ending.startswith(UNCOUPLED_PREFIX):
                return uncoupled, UNCOUPLED_PREFIX
            # without a prefix the search was dense, or alternating because the Gram was too large
            return (uncoupled if len(uncoupled) > 1 and needed > self.dense_limit else []), ""
        coupling = [self.factors[k] for t in sub.terms for a, k in t.factors if len(a) > 1]
        # an alternating search over single axes needs the rows of Grams that couple axes, which are
        # stored only if they are fewer than the coordinates
        has_few_rows = (
            all(f.low_rank for f in coupling) and sum(f.n_rows for f in coupling) < sub.dimension
        )
        full_factors = [self.factors[t.factors[0][1]] for t in sub.terms if len(t.factors) == 1]
        seconds = full_rank_cost(
            sub.sizes, full_factors, self.options.gap, None, sub.centers
        ).seconds
        is_slow = seconds > (
            MAX_OPTIMAL_SEARCH_S if self.method == "optimal" else MAX_APPROXIMATE_SEARCH_S
        )
        if len(uncoupled) == 1:
            if has_few_rows and (is_slow or needed > self.memory_limit):
                return single_axes, COUPLED_PREFIX
            return [], ""
        if needed <= self.dense_limit and not is_slow:
            return [], ""
        sizes = [tuple(sub.sizes[a] for a in axes) for axes in uncoupled]
        bytes_needed = [
            dense_bytes(math.prod(n - 1 for n in s), math.prod(n - 1 for n in s), math.prod(s))
            for s in sizes
        ]
        if has_few_rows and max(bytes_needed) > self.memory_limit:
            return single_axes, COUPLED_PREFIX
        prefix = UNCOUPLED_PREFIX if needed <= self.dense_limit else ""
        return uncoupled, prefix

    def _factor_solution(self, factor: Factor, centers: Sequence[Array | None]) -> Solution:
        """Return the solution for one residual Gram; each is solved once."""
        key = (factor, *map(digest, centers))
        if key not in self._solved:
            gram = self._structured_gram(factor, centers)
            if gram is None:
                self._solved[key] = self._solution(factor, centers)
            else:
                self._solved[key] = self._structured_solution(gram, centers[0])
        return self._solved[key]

    def _structured_gram(
        self, factor: Factor, centers: Sequence[Array | None]
    ) -> IntervalGram | LevelGram | None:
        """Return the Gram of a factor that is solved without a matrix; None for other factors.

        Areas and marginals are solved without a matrix if the center is uniform.  Other intervals,
        and marginals with a tuned center, are if the method is "optimal", unless a stored plan is
        rebuilt whose weights come from a search with a matrix.
        """
        if isinstance(factor, LevelFactor) and centers[0] is None:
            return factor.gram
        if not isinstance(factor, IntervalFactor):
            return None
        if factor.gram.is_marginal and centers[0] is None:
            return factor.gram
        # a search with a matrix has one weight per orbit, this one has one per cell
        recorded = self.recorded or []
        used_matrix = len(recorded) > 0 and len(recorded[0][0]) != factor.sizes[0]
        return None if self.method != "optimal" or used_matrix else factor.gram

    def _structured_solution(self, gram: IntervalGram | LevelGram, pi: Array | None) -> Solution:
        """Return the solution for intervals or areas with the center ``pi``, None for uniform."""
        record = None if self.recorded is None else self.recorded.pop(0)
        dual = None if record is None else record[0]
        # Grams that are equal up to scale and rounding errors have the same strategy
        key: Any
        if isinstance(gram, LevelGram):
            scale = gram.largest_weight
            key = gram.key(scale)
            if key not in self._structured:
                self._structured[key] = scale, level_solution(gram, self.options, dual)
        else:
            weights = (gram.marginal, gram.prefix + gram.suffix, gram.ranges)
            scale = max(weights)
            ratios = tuple(float(f"{weight / scale:.12e}") for weight in weights)
            key = (gram.cells, ratios, digest(pi))
            if key not in self._structured:
                self._structured[key] = scale, interval_solution(gram, self.options, dual, pi)
        first_scale, solution = self._structured[key]
        factor = scale / first_scale
        solution = replace(solution, value=factor * solution.value, bound=factor * solution.bound)
        if record is not None:
            solution = replace(solution, dual=record[0], status=record[1])
        self.duals.append(solution.dual)
        self.endings.append(solution.ending)
        return solution

    def _solution(
        self,
        factor: Factor,
        centers: Sequence[Array | None],
        complements: Mapping[Axes, Complement] | None = None,
        spaces: tuple[Axes, ...] = (),
    ) -> Solution:
        """Return the solution of a dense search, and record its dual weights and status."""
        if isinstance(factor.matrix, Operator):
            factor = Factor(sizes=factor.sizes, matrix=factor.dense())
        needed = dense_bytes(factor.rank, factor.dimension, math.prod(factor.sizes))
        if needed > self.memory_limit and self.recorded is None:
            raise LimitExceeded(
                f"The strategy for a table of {' x '.join(map(str, factor.sizes))} cells needs about"
                f" {needed / 1e9:.1f} GB, more than the limit of {self.memory_limit / 1e9:.1f} GB."
                " Raise memory_limit, or merge cells of these attributes."
            )
        search = self._search(factor, centers, complements, spaces)
        if self.recorded is not None:
            solution = search.replay(*self.recorded.pop(0))
        else:
            number = len(self.duals)
            similar_weights = self.warm[number] if number < len(self.warm) else None
            solution = self._parallel_results.get(search.key) or self._recall_or_run(
                search, similar_weights
            )
        self.duals.append(solution.dual)
        self.endings.append(solution.ending)
        return solution

    def _search(
        self,
        factor: Factor,
        centers: Sequence[Array | None],
        complements: Mapping[Axes, Complement] | None = None,
        spaces: tuple[Axes, ...] = (),
    ) -> Search:
        """Return the inputs of a dense search with the solver's method and stopping rule."""
        return Search(
            factor=factor,
            centers=tuple(centers),
            complements=complements or {},
            spaces=spaces,
            method=self.method,
            options=self.options,
        )

    def _recall_or_run(self, search: Search, similar_weights: Array | None) -> Solution:
        """Return the solution of a search from the cache, or run it.

        Without a cache, ``similar_weights`` are initial dual weights from a similar plan.
        """
        if self.cache is None:
            return search.run(near=similar_weights, watch=self.watch)
        solution = self.cache.recall(search)
        if solution is None:
            # stored weights of the same search may prove the gap without further evaluations; those
            # of a similar search are initial weights
            solution = search.run(
                self.cache.weights(search), most_similar(self.hints, search), self.watch
            )
            self._store(search, solution)
        return solution

    def _store(self, search: Search, solution: Solution) -> None:
        """Store a solution in the cache, and its weights as initial ones for similar searches."""
        if self.cache is not None:
            self.cache.keep(search, solution)
            self.cache.suggest(search, solution)

    def ahead(
        self,
        subs: Sequence[Subworkload],
        costs: Sequence[Cost],
        workers: int | None,
        report: Callable[[float], object],
    ) -> None:
        """Run searches in worker processes, if that saves time, before `solve` uses their results.

        Parameters
        ----------
        costs : forecasts of the subworkloads.
        workers : number of processes that the user set, or None.
        report : called with the finished share of the searches; may raise to cancel.
        """
        order = sorted(range(len(subs)), key=lambda i: -costs[i].seconds)
        if (
            math.fsum(c.seconds for c in costs) <= MIN_PARALLEL_S
            and workers is None
            and not is_configured()
        ):
            return
        outstanding = [i for i in order if self._worker_searches(subs[i])]
        seconds = sum(costs[i].seconds for i in outstanding)
        peak_bytes = max((costs[i].peak for i in outstanding), default=0.0)
        # the longest search takes the same time in parallel, so only the time of the others is
        # saved
        seconds -= max((costs[i].seconds for i in outstanding), default=0.0)
        number = workers_for(seconds, len(outstanding), peak_bytes, self.memory_limit, workers)
        if number == 0:
            return
        searches, seen = dict[str, Search](), set[str]()
        count = max(len(outstanding), 1)

        def tasks() -> Iterator[Task]:
            """Yield every distinct search, those of the most expensive subworkloads first."""
            for i in outstanding:
                for search in self._worker_searches(subs[i]):
                    if search.key not in seen:
                        searches[search.key] = search
                        seen.add(search.key)
                        stored_weights = (
                            self.cache.weights(search) if self.cache is not None else None
                        )
                        yield Task(
                            search=search,
                            warm_start=stored_weights,
                            near=most_similar(self.hints, search),
                        )

        for key, solution in search_all(
            tasks(), number, self.options.deadline, lambda done: report(min(done / count, 1.0))
        ):
            self._parallel_results[key] = solution
            self._store(searches.pop(key), solution)

    def _worker_searches(self, sub: Subworkload) -> list[Search]:
        """Return the searches of a subworkload that a worker process with one core may run.

        Left out are searches with a result in the cache, searches that NumPy runs on all cores,
        searches that exceed the memory limit, and alternating searches, which depend on each other.
        """
        terms = merge_terms(sub, self.factors)
        axes = tuple(range(len(sub.sizes)))
        if sub.spaces or sub.complements:
            searches = [
                self._search(
                    assemble(terms, axes, sub.sizes), sub.centers, sub.complements, sub.spaces
                )
            ]
        elif len(terms) == 1:
            searches = [
                self._search(factor, [sub.centers[a] for a in factor_axes])
                for factor_axes, factor in terms[0][1]
                if self._structured_gram(factor, [sub.centers[a] for a in factor_axes]) is None
            ]
        elif not self._sets(sub)[0]:
            searches = [self._search(assemble(terms, axes, sub.sizes), sub.centers)]
        else:
            return []
        fitting = [
            s
            for s in searches
            if dense_bytes(s.factor.rank, s.factor.dimension, s.cells) <= self.memory_limit
        ]
        small = [s for s in fitting if s.factor.rank <= MAX_SINGLE_THREAD_ORDER]
        return [s for s in small if self.cache is None or self.cache.recall(s) is None]

    def _alternate(
        self, terms: Merged, sub: Subworkload, sets: Sequence[Axes], prefix: str
    ) -> SpaceSolution:
        """Return the strategy of an alternating search over sets of axes.

        ``prefix`` is put before the recorded status of each of its searches, so that a stored plan
        is rebuilt by the same kind of search.
        """

        def search(factor: Factor, centers: Sequence[Array | None]) -> Searched:
            gram = self._structured_gram(factor, centers)
            if gram is not None:
                solution = self._structured_solution(gram, centers[0])
                if isinstance(gram, LevelGram):
                    weights = level_weights(gram, solution.dual)
                else:
                    weights = np.broadcast_to(solution.dual, gram.cells)
                solved = solution, lambda: weights / weights.sum()
            else:
                solution = self._solution(factor, centers)
                solved = solution, lambda: self._search(factor, centers).cell_weights(solution.dual)
            if prefix and not self.endings[-1].startswith(prefix):
                self.endings[-1] = f"{prefix}: {self.endings[-1]}"
            return solved

        alternation = AlternatingSearch(
            terms=terms, sets=sets, sizes=sub.sizes, centers=sub.centers, search=search
        )
        with threads_for(max(sub.sizes)):
            alternation.run()
        return SpaceSolution(
            factors=tuple((axes, solution) for axes, (solution, _) in alternation.solved.items()),
            value=alternation.value,
            bound=alternation.bound,
            status="alternating over attributes: a local optimum among products",
        )


def _has_structured_sum(grams: Sequence[IntervalGram | LevelGram | None]) -> bool:
    """Return whether a sum of Grams on one wide attribute is solved without a matrix.

    Areas of one hierarchy can be added up with each other and with marginals.
    """
    trees = {gram.tree.key for gram in grams if isinstance(gram, LevelGram)}
    if not trees:
        return all(gram is not None for gram in grams)
    is_area_sum = [
        isinstance(gram, LevelGram) or (gram is not None and gram.is_marginal) for gram in grams
    ]
    return len(trees) == 1 and all(is_area_sum)


# largest number of cells on which a dense search combines areas of a hierarchy with other queries
MAX_MIXED_AREA_CELLS = 2_000
# expected number of steps of the search for the precisions of areas, seconds per step and area, and
# seconds per area to find equal areas
LEVEL_STEPS, SECONDS_PER_AREA, CLASS_SECONDS = 200, 3e-7, 3e-6


def structured_cost(gram: IntervalGram | LevelGram) -> Cost:
    """Return the expected cost of the search for intervals or areas on one wide attribute."""
    n = gram.cells
    if isinstance(gram, LevelGram):
        areas = sum(gram.tree.counts)
        classes = sum(gram.problem.quotient.tree.counts)
        seconds = LEVEL_STEPS * (SECONDS_PER_AREA * classes + 1e-4 * gram.tree.depth)
        seconds += CLASS_SECONDS * areas
        return Cost(seconds=seconds, peak=8.0 * 60.0 * areas, saved=8.0 * 2.0 * areas)
    if gram.is_marginal:
        return Cost(seconds=1e-4, peak=0.0, saved=0.0)
    # the search takes linear memory; the variances of all ranges need their covariance matrix
    peak_entries = 4.5 * n * n if gram.ranges else 100.0 * n
    return Cost(seconds=7e-5 * n, peak=8.0 * peak_entries, saved=8.0 * 2.0 * n)


def _first_status(solved: Sequence[tuple[Axes, Solution]]) -> str:
    """Return the first status that is not "optimal"; "optimal" if all are."""
    return next((s.status for _, s in solved if s.status != "optimal"), "optimal")
