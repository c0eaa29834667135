"""Tuned centers by gradient search or fixed-point iteration, and a cache of tuned splits.

**Centers.**  The center of attribute i is any vector pi_i with sum 1.  The identity I = P_i + pi_i
1^T with P_i = I - pi_i 1^T splits every query exactly between a residual space and the smaller
spaces.  The spaces are linearly independent for all centers.  So every component of a query has an
unbiased estimate from the noisy answers of its space, and the sum of these estimates is an unbiased
estimate of the query.  Blocks have independent noise.  So the privacy cost is the sum of the costs
of the blocks, and the optimal shares of the budget have the same closed form for all centers
(Cauchy-Schwarz).  Let L_B be the smallest weighted squared error on the residual space B at privacy
cost 1.  The RMSE of the plan is proportional to

    S(pi) = sum over B of sqrt(L_B(pi)).

pi_i = 1 / n_i is the published choice.  If the workload is not separable (see below), S is
minimised in two steps.  The first step tries uniform centers and centers with one parameter c: pi_i
is proportional to V_i^-1 1, where V_i is the optimal privacy cost matrix (B^T B for strategy rows
B) for the Gram G_i + c 1 1^T.  (For a workload on one attribute, some c gives the best matrix
mechanism.)  The second step is L-BFGS on all centers, with the gradient from the envelope theorem.
The centers with the smallest S are returned, so that S is not larger than for uniform centers.

Proof that such a c exists for one attribute: let V be the optimal privacy cost matrix on the cells
of one attribute, c = 1 / (1^T V^-1 1) and pi = c V^-1 1.  Then V pi = c 1 and pi^T V pi = c, so
P^T V P = V - c 1 1^T.  Measure the total with precision c and the block with P^T V P.  The privacy
cost matrix of both together is V, and mechanisms with equal privacy cost matrices are equally
accurate.

**Separable workloads.**  A workload is separable if it has product groups only and each attribute
occurs with one query family.  The total square of an attribute is the sum of the squared
coefficients of its queries on the total.  L_B is the product of two numbers.  The first is the
product of the errors L of the attributes inside B.  The second is a sum of products of total
squares of the attributes outside B.  So S is computed from a few numbers per attribute, for any
number of spaces.  The best centers are among the centers with one parameter c per attribute, and c
is computed from the derivatives of S.  A fixed-point iteration (`CenterBalance`) of a few rounds
replaces the search.

Attributes of the same role in the workload share a center.  If the Gram of an attribute is
invariant under a cyclic shift of its cells (marginals, circular ranges, totals), the uniform center
is optimal by symmetry and is not tuned.

**Cache.**  If the same workload was tuned before in this process, its centers and complements are
read from the cache.  Otherwise cached values of an earlier process, or of another workload on the
same attributes, are the initial values of a new search.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np

from engine._arrays import Array, Index
from engine.progress import Listener
from engine.residuals.basis import UNIFORM, Role, Split, basis
from engine.residuals.decomposition import (
    DeferredFactor,
    Factor,
    IntervalFactor,
    LevelFactor,
    Subworkload,
)
from engine.residuals.dual_solver import Options
from engine.residuals.search_cache import SolveCache
from engine.residuals.search_costs import eigen_seconds, step_seconds
from engine.residuals.tuning.center_objective import (
    FORECAST_EVALUATIONS,
    INTERVAL_SECONDS_PER_CELL,
    Allowance,
    CenterProblem,
    Evaluation,
    too_slow,
)
from engine.residuals.tuning.complements import (
    ComplementProblem,
    affordable,
    can_tune,
    complement_seconds,
    cyclic,
    has_product_only_pair,
    split_of,
    tuned_complements,
)
from engine.residuals.window_solver import window_evaluation_seconds
from engine.residuals.window_strategy import WindowWeights
from engine.workload import Workload


class CenterBalance:
    """Objective S of a separable workload, and the weights c from which better centers follow.

    Parameters
    ----------
    problem : objective of the workload; the Gram of every residual space has one term.
    tuned_projections : result of `separable_projections`.
    """

    def __init__(
        self, problem: CenterProblem, tuned_projections: Mapping[Role, tuple[int, int]]
    ) -> None:
        self.problem, self.tuned_projections = problem, tuned_projections
        # factors of the only term of every class of spaces
        factors_by_kind = [factors for kind in problem.kinds for factors in kind.terms]
        # tuples (index of a class of spaces, monomial of its only term, weight of the monomial)
        monomials = [
            (k, indices, weight)
            for k, kind in enumerate(problem.kinds)
            for polynomial in kind.terms.values()
            for indices, weight in polynomial.items()
        ]
        # Rows of projection indices have different lengths.  Shorter rows are filled up with an
        # index after the last projection, whose error and total square are set to 1.
        self._padding = len(problem.projections)
        self._error_indices = _padded(
            [[index for _, index in factors] for factors in factors_by_kind], self._padding
        )
        self._square_indices = _padded([indices for _, indices, _ in monomials], self._padding)
        self._kind_of_monomial = np.array([k for k, *_ in monomials], dtype=np.int64)
        self._monomial_weights = np.array([weight for *_, weight in monomials])
        self._counts = np.array([kind.count for kind in problem.kinds], dtype=float)
        # smallest error L by the index of a projection, for attributes whose center is not tuned
        self._fixed_errors: dict[int, float] = {}

    def total_weights(self, centers: Mapping[Role, Array]) -> tuple[float, dict[Role, float]]:
        """Return the objective S at some centers, and for every tuned role a weight c of the total.

        A role is a class of equivalent attributes.  The center from `CenterProblem.optimal_center`
        for c is best for the linear approximation of S at ``centers``, which maps roles to vectors
        of shape (n,).

        Notes
        -----
        Let L be the smallest error on the residual space of an attribute of the role, and s its
        total square.  While all other centers are fixed, dS = a dL + b ds.  The center of the
        optimal strategy for the Gram G + c 1 1^T on cells minimises sqrt(L) + sqrt(s + c).  So it
        minimises a L + b s if b / a = sqrt(L / (s + c)), an equation that is solved for c.  Roles
        with a = 0 or b = 0 are left out.
        """
        state = Evaluation(problem=self.problem, centers=centers)
        errors, squares = np.ones(self._padding + 1), np.ones(self._padding + 1)
        for index in self._used(self._error_indices):
            errors[index] = self._error(state, index)
        for index in self._used(self._square_indices):
            squares[index] = state.total_square(index)
        S, by_error, by_square = self._objective(errors, squares)
        weights = {}
        for role, (on_attribute, on_total) in self.tuned_projections.items():
            a, b = float(by_error[on_attribute]), float(by_square[on_total])
            if a > 0.0 and b > 0.0:
                L, s = float(errors[on_attribute]), float(squares[on_total])
                weights[role] = L * (a / b) ** 2 - s
        return S, weights

    def _used(self, indices: Index) -> list[int]:
        used: list[int] = np.unique(indices[indices < self._padding]).tolist()
        return used

    def _objective(self, errors: Array, squares: Array) -> tuple[float, Array, Array]:
        """Return the objective S and its derivatives with respect to errors and total squares.

        ``errors`` has the smallest error of every projection and ``squares`` its total square.
        Both arrays and both derivatives have shape (projections + 1,), with a last entry for
        padding.
        """
        error_factors, square_factors = errors[self._error_indices], squares[self._square_indices]
        # for every class of spaces, L = (product of errors) * (polynomial in total squares)
        error_products = error_factors.prod(axis=1)
        coefficients = np.bincount(
            self._kind_of_monomial,
            self._monomial_weights * square_factors.prod(axis=1),
            len(error_products),
        )
        roots = np.sqrt(error_products * coefficients)
        by_L = np.divide(0.5 * self._counts, roots, out=np.zeros_like(roots), where=roots > 0.0)
        by_error = _sums_by_projection(
            self._error_indices,
            (by_L * coefficients)[:, None] * _products_of_others(error_factors),
            self._padding,
        )
        by_monomial = (by_L * error_products)[self._kind_of_monomial] * self._monomial_weights
        by_square = _sums_by_projection(
            self._square_indices,
            by_monomial[:, None] * _products_of_others(square_factors),
            self._padding,
        )
        return float(self._counts @ roots), by_error, by_square

    def _error(self, state: Evaluation, index: int) -> float:
        """Return the smallest error for a projection's residual Gram; 0 if the Gram is zero."""
        if index in self._fixed_errors:
            return self._fixed_errors[index]
        error = state.error(index) if state.is_nonzero(index) else 0.0
        if not set(self.problem.projections[index].roles) & set(self.tuned_projections):
            self._fixed_errors[index] = error
        return error


def separable_projections(problem: CenterProblem) -> dict[Role, tuple[int, int]]:
    """Return two projections for every tuned role: to its residual space, and to the total.

    A role is a class of equivalent attributes.  The result maps roles to pairs of indices in
    ``problem.projections``.  It is empty if the workload is not separable: if a tuned role has
    several query families or is in a family on several attributes, or if the Gram of some residual
    space has several terms.
    """
    if any(len(kind.terms) > 1 for kind in problem.kinds):
        return {}
    indices_of: dict[Role, list[int]] = {role: [] for role in problem.tuned}
    for index, projection in enumerate(problem.projections):
        for role in projection.roles:
            indices_of.get(role, []).append(index)
    pairs = {}
    for role, indices in indices_of.items():
        if len(indices) != 2 or any(len(problem.projections[i].roles) > 1 for i in indices):
            return {}
        first, second = indices
        pairs[role] = (first, second) if problem.projections[first].inside else (second, first)
    return pairs


def _padded(rows: Sequence[Sequence[int]], filling: int) -> Index:
    """Return rows of different lengths as one array, filled up with ``filling`` at their ends."""
    longest = max(map(len, rows), default=0)
    padded = np.full((len(rows), longest), filling, dtype=np.int64)
    for padded_row, row in zip(padded, rows, strict=True):
        padded_row[: len(row)] = row
    return padded


def _products_of_others(values: Array) -> Array:
    """Return for every entry the product of all other entries in its row, shape of ``values``."""
    if not values.shape[1]:
        return values
    return np.column_stack(
        [np.delete(values, k, axis=1).prod(axis=1) for k in range(values.shape[1])]
    )


def _sums_by_projection(indices: Index, summands: Array, padding: int) -> Array:
    """Return for every projection the sum of its summands, shape (padding + 1,).

    ``indices`` has the shape of ``summands`` and holds the index of the projection of each summand,
    at most ``padding``.
    """
    return np.bincount(indices.ravel(), summands.ravel(), padding + 1).astype(float)


# stopping rule of every strategy search in a step of L-BFGS
FINE_OPTIONS = Options(gap=2e-6, evaluations=200)
# stopping rule of every strategy search in a round of the fixed-point iteration
BALANCE_OPTIONS = Options(gap=1e-5, evaluations=100)
# largest number of steps of L-BFGS
LBFGS_STEPS = 60
# largest number of rounds of the fixed-point iteration
MAX_BALANCE_ROUNDS = 12
# the fixed-point iteration ends if the next round is expected to lower the objective S by less than
# this share
MIN_RELATIVE_GAIN = 1e-6
# values of the parameter c of `CenterProblem.one_parameter_center`, whose centers are tried as
# initial centers
INITIAL_TOTAL_WEIGHTS = (0.01, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0)


def tuned_centers(
    workload: Workload,
    watch: Listener,
    start: Mapping[str, Array] | None = None,
    allowance: Allowance | None = None,
    window_weights: WindowWeights | None = None,
) -> dict[str, Array]:
    """Return tuned centers: a mapping from attributes to vectors of shape (n_i,) with sum 1.

    Attributes whose centers stay uniform are absent.  The mapping is empty if a group has
    one weight per query.  At the time limit the best centers so far are returned.

    Guarantee: the error S of the groups that fit into the allowance is at most its value at the
    initial centers, up to the gap of the strategy searches.  The initial centers are ``start`` for
    a separable workload with ``start``, otherwise uniform.

    Parameters
    ----------
    workload : the queries.
    watch : called with the fraction completed and a text; may raise to cancel.
    start : centers of a similar workload.  They are the initial centers of a separable workload;
        for a workload that is not separable they are used if they are better than uniform centers.
    allowance : limits of memory and time; None for the defaults of `Allowance`.
    window_weights : dual weights of windows, see `CenterProblem`.
    """
    problem = CenterProblem(workload, watch, allowance, window_weights=window_weights)
    if not separable_projections(problem):
        if problem.window_roles:
            problem = CenterProblem(workload, watch, allowance, solves_windows=False)
        # The gradient search needs Gram matrices.  Wide attributes with interval queries are solved
        # without a matrix, so these attributes keep uniform centers.
        matrix_free_roles = problem.matrix_free_roles
        problem.tuned = [role for role in problem.tuned if role not in matrix_free_roles]
    if not problem.tuned or any(g.query_weights is not None for g in workload.groups):
        return {}
    search = _Search(problem)
    with contextlib.suppress(TimeoutError):
        search.run(
            {role: start[name] for name, role in problem.roles.items() if start and name in start}
        )
    return {name: search.best[role] for name, role in problem.roles.items() if role in search.best}


class _Search:
    """Search for centers with a small error S; ``best`` maps roles to the best centers so far."""

    def __init__(self, problem: CenterProblem) -> None:
        self.problem = problem
        self.best: dict[Role, Array] = {}
        self.lowest, self.done = math.inf, 0

    def evaluate(self, centers: dict[Role, Array]) -> tuple[float, dict[Role, Array]]:
        """Return the objective S and its derivatives.

        The centers with the smallest S so far are stored.
        """
        S, by_role = self.problem.evaluate(centers)
        if self.lowest > S:
            self.lowest, self.best = S, centers
        return S, by_role

    def run(self, initial: Mapping[Role, Array]) -> None:
        """Run the fixed-point iteration for a separable workload, otherwise the gradient search.

        The gradient search starts at the centers ``initial`` if they are better than uniform ones,
        otherwise at the best of uniform centers and `CenterProblem.one_parameter_center` for
        several c.
        """
        start = {role: pi for role, pi in initial.items() if role in self.problem.tuned}
        if tuned_projections := separable_projections(self.problem):
            self._balance(CenterBalance(self.problem, tuned_projections), start)
            return
        uniform, _ = self.evaluate({})
        if not uniform > 0.0:
            return
        if not (start and self.evaluate(start)[0] < uniform):
            for c in INITIAL_TOTAL_WEIGHTS:
                self.evaluate(
                    {
                        role: self.problem.one_parameter_center(role, c)
                        for role in self.problem.tuned
                    }
                )
                self.problem.watch(0.1, f"Tuning centers with c = {c:g}")
        # from here on the objective S is computed with a smaller gap and cannot be compared with
        # earlier values
        self.problem.options, self.lowest = FINE_OPTIONS, math.inf
        self._descend(self.best)

    def _balance(self, balance: CenterBalance, start: dict[Role, Array]) -> None:
        """Run the fixed-point iteration for the centers of a separable workload, from ``start``.

        Every round replaces the centers of all roles by the best ones for the derivatives of the
        error S at the centers of the previous round.  The iteration ends when the next round is
        expected to lower S by less than `MIN_RELATIVE_GAIN` * S, when no center influences S, or
        after `MAX_BALANCE_ROUNDS` rounds.
        """
        self.problem.options, self.lowest = BALANCE_OPTIONS, math.inf
        centers, previous_gain = start, math.inf
        for step in range(MAX_BALANCE_ROUNDS):
            S, total_weights = balance.total_weights(centers)
            gain = self.lowest - S
            if gain > 0.0:
                self.lowest, self.best = S, centers
            # the expected gain of the next round is the last gain times the ratio of the last two
            # gains
            ratio = min(1.0, gain / previous_gain) if math.isfinite(previous_gain) else 1.0
            if gain * ratio < MIN_RELATIVE_GAIN * S or not total_weights:
                return
            previous_gain = gain
            self.problem.watch(
                0.1 + 0.9 * step / MAX_BALANCE_ROUNDS, f"Balancing centers, round {step + 1}"
            )
            updated = {
                role: self.problem.optimal_center(role, balance.tuned_projections[role][0], c)
                for role, c in total_weights.items()
            }
            centers = {
                **centers,
                **{role: pi for role, pi in updated.items() if np.isfinite(pi).all()},
            }

    def _descend(self, start: Mapping[Role, Array]) -> None:
        """Minimise the error S by L-BFGS over all tuned centers, from ``start``."""
        import scipy.optimize

        sizes = [self.problem.sizes[r] for r in self.problem.tuned]
        cuts = np.cumsum([n - 1 for n in sizes])[:-1]

        def log_value(x: Array) -> tuple[float, Array]:
            """Return the log of the objective S and its gradient in N^T pi of all tuned centers."""
            blocks = zip(self.problem.tuned, sizes, np.split(x, cuts), strict=True)
            S, by_role = self.evaluate({r: 1.0 / n + basis(n) @ part for r, n, part in blocks})
            self.done += 1
            self.problem.watch(
                0.1 + 0.9 * min(1.0, self.done / LBFGS_STEPS), f"Tuning centers, step {self.done}"
            )
            gradients = [
                by_role.get(r, np.zeros(n - 1))
                for r, n in zip(self.problem.tuned, sizes, strict=True)
            ]
            return math.log(S), np.concatenate(gradients) / S

        first = [
            basis(n).T @ start.get(r, np.full(n, 1.0 / n))
            for r, n in zip(self.problem.tuned, sizes, strict=True)
        ]
        scipy.optimize.minimize(
            log_value,
            np.concatenate(first),
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": LBFGS_STEPS, "maxfun": LBFGS_STEPS, "ftol": 1e-7, "gtol": 0.0},
        )


# version of the cached numbers, part of every cache key
FORMAT = "split/2"
# Forecasts of the search for centers, per residual space whose Gram is a sum of several products or
# has a factor on several attributes: time in seconds without strategy searches, and number of
# steps.
MIXED_SPACE_SECONDS, MIXED_SPACE_STEPS = 0.2, 60
# additional time in seconds per residual space whose Gram has a factor on several attributes,
# because the query rows of this factor are computed again in every step
JOINT_ROWS_SECONDS = 0.4
# expected number of steps of the search for centers per residual space whose Gram has a factor on
# several attributes, if complements (tuned splits of pairs) could be tuned but would exceed the
# limits
UNTUNED_PAIR_STEPS = 2_500
# expected number of steps for the center of an attribute of a separable workload
SEPARABLE_STEPS = 40
# expected number of steps for the center of a wide attribute with interval queries, whose searches
# start from the last weights
INTERVAL_STEPS = 3
# expected number of steps for the center of a wide attribute with windows of one width
WINDOW_STEPS = 2


class SplitMemory:
    """Returns tuned centers and complements (splits of pairs), from a cache or a new search.

    Parameters
    ----------
    workload : the workload.
    cache : store of tuned centers and complements; None for no store.
    allowance : limits of memory and time of a search.
    window_weights : dual weights of windows, see `CenterProblem`.
    """

    def __init__(
        self,
        workload: Workload,
        cache: SolveCache | None,
        allowance: Allowance,
        window_weights: WindowWeights,
    ) -> None:
        self.workload, self.cache, self.allowance = workload, cache, allowance
        self.window_weights = window_weights
        self.sizes = [a.size for a in workload.schema.attributes]

    @cached_property
    def similar(self) -> str:
        """Cache key of all workloads on the same attributes with the same public tables."""
        exact = tuple(one.attributes for one in self.workload.schema.invariants)
        return _key("similar", (FORMAT, self.workload.schema.names, tuple(self.sizes), *exact))

    @cached_property
    def exact(self) -> str:
        """Cache key of this workload."""
        return _key(
            "exact", self.similar, [(g.attributes, g.key, g.weight) for g in self.workload.groups]
        )

    def centers(self, watch: Listener) -> Split:
        """Return the split with tuned centers, or uniform ones if the workload is cyclic."""
        # Uniform centers are optimal for cyclic workloads.  These workloads are not looked up in
        # the cache, because the hash of up to 100,000 groups would take longer than planning.
        if cyclic(self.workload):
            return UNIFORM
        cuts = np.cumsum(self.sizes)
        cached_values, is_final = self._recall(int(cuts[-1]) if len(cuts) else 0, "centers")
        start: dict[str, Array] = {}
        if cached_values is not None:
            for name, pi in zip(
                self.workload.schema.names, np.split(cached_values, cuts[:-1]), strict=True
            ):
                # NaN marks a uniform center
                if np.isfinite(pi).all() and abs(float(pi.sum()) - 1.0) < 1e-9:
                    start[name] = pi
        if is_final:
            return Split(centers=start)
        tuned = tuned_centers(self.workload, watch, start, self.allowance, self.window_weights)
        vectors = [
            tuned.get(a.name, np.full(a.size, np.nan)) for a in self.workload.schema.attributes
        ]
        self._store(np.concatenate(vectors), "centers")
        return Split(centers=tuned)

    def complements(self, watch: Listener) -> Split:
        """Return the split with tuned complements of pairs; see the module `complements`."""
        cached_values, is_final = self._recall(length=None, kind="complements")
        if is_final and cached_values is not None:
            if not cached_values.any():
                return UNIFORM  # all parameters are 0 for uniform centers
            centers, complements = split_of(ComplementProblem(self.workload, watch), cached_values)
            return Split(centers=centers, complements=complements)

        def start(length: int) -> Array | None:
            """Return the cached values if they are ``length`` finite numbers, None if not."""
            fits = (
                cached_values is not None
                and len(cached_values) == length
                and np.isfinite(cached_values).all()
            )
            return cached_values if fits else None

        centers, complements, x = tuned_complements(self.workload, watch, start, self.allowance)
        self._store(x, "complements")
        return Split(centers=centers, complements=complements)

    def _recall(self, length: int | None, kind: str) -> tuple[Array | None, bool]:
        """Return the cached values of a split, and whether they can be used without a search.

        The values are those of this workload.  If there are none, they are those of another
        workload on the same attributes, or None.  Cached values can be used without a search only
        if this process computed them for this workload.

        Parameters
        ----------
        length : required number of values; None for any number.
        kind : "centers" or "complements".
        """
        if self.cache is None:
            return None, False
        for key, is_same_workload in ((self.exact, True), (self.similar, False)):
            values, is_from_process = self.cache.numbers(key + kind)
            if values is not None and (length is None or len(values) == length):
                return values, is_from_process and is_same_workload
        return None, False

    def _store(self, values: Array, kind: str) -> None:
        # the result is not stored if a limit ended the search, because a later call may have more
        # time or memory
        if self.cache is not None and not self.allowance.stopped:
            self.cache.keep_numbers(self.exact + kind, values)
            self.cache.keep_numbers(self.similar + kind, values)


def ways_to_split(workload: Workload, allowance: Allowance) -> tuple[bool, bool]:
    """Return whether complements of pairs are tuned, and whether centers are tuned.

    Complements are tuned if the workload and the limits allow it.  Centers are tuned if complements
    are not, or if some pair has product groups only: tuned centers may be more accurate for it.
    """
    tunes_complements = can_tune(workload) and affordable(workload, allowance)
    return tunes_complements, not tunes_complements or has_product_only_pair(workload)


def split_seconds(
    workload: Workload, subs: Sequence[Subworkload], factors: Sequence[Factor], allowance: Allowance
) -> float:
    """Return the expected time of tuning a split, in seconds on one idle core.

    ``subs`` and ``factors`` are those of the decomposition with uniform centers.
    """
    tunes_complements, tunes_centers = ways_to_split(workload, allowance)
    seconds = complement_seconds(workload) if tunes_complements else 0.0
    has_untuned_pairs = not tunes_complements and can_tune(workload)
    if not tunes_centers:
        return seconds
    for sub in subs:
        has_joint_factor = any(len(axes) > 1 for term in sub.terms for axes, _ in term.factors)
        if sub.mixed:
            seconds += MIXED_SPACE_SECONDS + (JOINT_ROWS_SECONDS if has_joint_factor else 0.0)
            if has_untuned_pairs and has_joint_factor:
                seconds += UNTUNED_PAIR_STEPS * _evaluation_seconds(sub, factors)
            elif not too_slow(sub.sizes):
                seconds += MIXED_SPACE_STEPS * _evaluation_seconds(sub, factors)
        elif len(sub.sizes) == 1:
            factor = factors[sub.terms[0].factors[0][1]]
            if isinstance(factor, LevelFactor):
                continue
            windows = factor.window_gram if isinstance(factor, DeferredFactor) else None
            if windows is not None:
                step = FORECAST_EVALUATIONS * window_evaluation_seconds(windows)
                seconds += WINDOW_STEPS * step
            elif not isinstance(factor, IntervalFactor):
                seconds += SEPARABLE_STEPS * eigen_seconds(sub.dimension)
            elif not factor.gram.is_marginal:
                step = FORECAST_EVALUATIONS * INTERVAL_SECONDS_PER_CELL * sub.sizes[0]
                seconds += INTERVAL_STEPS * step
    return seconds


def _evaluation_seconds(sub: Subworkload, factors: Sequence[Factor]) -> float:
    """Return the expected time of one evaluation of the dual of a subworkload, in seconds.

    A Gram that is one product is solved factor by factor.  A Gram with several terms is solved as
    one matrix.  If all factors are stored as rows, the order of this matrix is the number of rows.
    """
    used = [(axes, factors[k]) for term in sub.terms for axes, k in term.factors]
    if len(sub.terms) == 1:
        return math.fsum(
            step_seconds(f.rank, math.prod(sub.sizes[a] for a in axes)) for axes, f in used
        )
    rank = sum(f.rank for _, f in used) if all(f.low_rank for _, f in used) else sub.dimension
    return step_seconds(min(rank, sub.dimension), math.prod(sub.sizes))


def _key(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()
