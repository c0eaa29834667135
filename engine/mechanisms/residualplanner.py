"""ResidualPlanner and ResidualPlanner+: one strategy per attribute, combined by Kronecker products.

A strategy with rows A is described by its precision V = A^T A, and C_i = I - 1 1^T / n_i is the
centering matrix of attribute i.  ResidualPlanner measures the residual space on a set of attributes
with the Kronecker product of the C_i of these attributes as V.  ResidualPlanner+ has a base
workload W for every attribute.  Its strategy S is optimal for the rows of 1^T and W C_i together,
scaled so that S^T S has diagonal 1, and replaces C_i by V_i = C_i S^T S C_i.  The noise scale of
every residual space has a closed form.

`WeightedFourier` has closed-form strategies in the Fourier basis.  With f_k the Fourier vectors of
a residual space and G the Gram matrix of the queries, the optimal variances of the coefficients are
proportional to (f_k^* G f_k)^(-1/2).  The strategy is optimal for marginals and circular ranges.
Prefixes and suffixes on n cells can be treated as half circles on a circle of 2 n cells (extended
marginals), which is more accurate if n is at least about twenty.

Source: Weighted Fourier Factorizations, sections 3 and 4; QuerySmasher, appendix C and theorem 5.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import scipy

from engine._arrays import Array
from engine._threads import threads_for
from engine._validation import check_choice
from engine.errors import LimitExceeded, PlanError
from engine.mechanisms.base import Limits
from engine.mechanisms.residual_base import CandidatePlan, ResidualMechanism, SpaceSolver
from engine.privacy import Budget
from engine.residuals import (
    DualProblem,
    Factor,
    FullDomain,
    Options,
    Split,
    Strategy,
    basis,
    contract,
)
from engine.residuals.basis import UNIFORM
from engine.residuals.decomposition import (
    Decomposition,
    IntervalFactor,
    LevelFactor,
    Subworkload,
)
from engine.residuals.dual_solver import Solution, Watch
from engine.residuals.interval_solver import root_trace_bound
from engine.residuals.marginals import MarginalStrategy, marginal_strategy
from engine.residuals.operators import is_wide
from engine.residuals.search_costs import Cost, dense_bytes, eigen_seconds
from engine.residuals.subworkload_solver import SpaceSolution, SubworkloadSolver
from engine.workload import Family, Workload
from engine.workload.families import family

EMBEDDINGS = ("cells", "circle")


@dataclass(frozen=True, kw_only=True)
class WeightedFourier(ResidualMechanism):
    """Weighted Fourier Factorizations.

    Options
    -------
    embedding : "cells" uses the Fourier basis on the cells of every attribute.  "circle" uses half
        circles for attributes with no other queries than prefixes and suffixes, and the cells of
        all other attributes.
    """

    name: ClassVar[str] = "wff"
    title: ClassVar[str] = "Weighted Fourier Factorizations"
    meaning: ClassVar[str] = (
        "Noise on Fourier coefficients: instant, and optimal for marginals and circular ranges."
    )

    variants: ClassVar[tuple[Mapping[str, Any], ...]] = ({}, {"embedding": "circle"})

    embedding: str = "cells"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("option embedding", self.embedding, EMBEDDINGS, error=PlanError, public=True)

    def best(
        self, workload: Workload, budget: Budget, limits: Limits, deadline: float
    ) -> CandidatePlan:
        return self.candidate_plan(workload, budget, limits, deadline, self.split(workload))

    def split(self, workload: Workload) -> Split:
        """Return the split of queries into residual spaces that the embedding selects.

        The embedding "circle" gives the center (1/2, 0, ..., 0, 1/2) to attributes of at least 3
        cells with no other queries than prefixes and suffixes.  All other centers are uniform.
        """
        if self.embedding == "cells":
            return UNIFORM
        half, other = set[str](), set[str]()
        for group in workload.groups:
            for part in group.parts if group.weight > 0 else ():
                one_sided = part.family.name in ("prefix", "suffix") and min(part.sizes) > 2
                (half if one_sided else other).update(group.attributes[a] for a in part.axes)
        centers = {}
        for name in workload.schema.ranked(half - other):
            centers[name] = np.zeros(workload.schema[name].size)
            centers[name][[0, -1]] = 0.5
        return Split(centers=centers)

    def space_solver(
        self, workload: Workload, decomposition: Decomposition, limits: Limits, deadline: float
    ) -> SpaceSolver:
        return SubworkloadSolver(
            factors=decomposition.factors,
            method="fourier",
            options=Options(deadline=deadline),
            memory_limit=limits.memory_limit,
        )


# For forecasts: time of factorising a strategy, and time of computing the lower bound of a residual
# Gram.  Both are multiples of the time of an eigenvalue problem of the same order.
ROOT_STEPS, BOUND_STEPS = 0.5, 0.5
# For forecasts: time of the strategy search for a base workload, for the marginal and for all other
# families.  Both are multiples of the time of an eigenvalue problem of the same order.
MARGINAL_BASE_STEPS, BASE_STEPS = 11.0, 22.0
# For forecasts: time of computing the lower bound of all ranges on a wide attribute, in seconds per
# cell.
INTERVAL_BOUND_SECONDS = 3.5e-5


class AxisSolver:
    """Solver of subworkloads by products of one fixed strategy per attribute.

    Parameters
    ----------
    factors : distinct residual Grams of the decomposition.
    axis : function of (label, number of cells n) of an attribute.  It returns the precision of the
        strategy of the attribute in residual coordinates, shape (n - 1, n - 1).
    is_equal_noise : function of a label.  It returns whether the result of ``axis`` is a multiple
        of the identity.
    memory_limit : largest memory of one strategy, in bytes.
    axis_steps : function of a label.  It returns the expected time of ``axis``, as a multiple of
        the time of an eigenvalue problem of order n.
    """

    def __init__(
        self,
        factors: Sequence[Factor],
        axis: Callable[[Hashable, int], Array],
        is_equal_noise: Callable[[Any], bool],
        memory_limit: float,
        axis_steps: Callable[[Any], float] = lambda _: 0.0,
    ) -> None:
        self.factors, self.axis, self.is_equal_noise = factors, axis, is_equal_noise
        self.axis_steps = axis_steps
        self.memory_limit = memory_limit
        self.watch: Watch | None = None
        self.dense_limit = math.inf
        self.duals: list[Array] = []
        self.endings: list[str] = []
        self.recorded: list[tuple[Array, str]] | None = None
        self.warm: tuple[Array, ...] = ()
        self._strategies: dict[Any, Strategy] = {}
        self._spectra: dict[int, float] = {}

    def forecast(self, subs: Sequence[Subworkload]) -> list[Cost]:
        """Return the expected time and memory of `solve` for each subworkload."""
        # Several subworkloads may need the same strategy or the same lower bound.  Each of these is
        # computed once, so its time is counted for the first subworkload.  ``counted`` has the
        # pairs (label, cells) of counted strategies, and the indices of factors with counted
        # bounds.
        counted = set[Any]()
        costs = []
        for sub in subs:
            axes = list(zip(sub.labels, sub.sizes, strict=True))
            dense_sizes = [n for label, n in axes if not self._has_closed_form(label, n)]
            strategies = {(label, n) for label, n in axes if n in dense_sizes}
            factor_numbers = {number for term in sub.terms for _, number in term.factors}
            new_factors = [self.factors[number] for number in factor_numbers - counted]
            seconds = 2.5e-4  # time of a subworkload without a new strategy or bound
            seconds += math.fsum(
                (self.axis_steps(label) + ROOT_STEPS) * eigen_seconds(n)
                for label, n in strategies - counted
            )
            seconds += math.fsum(
                BOUND_STEPS * eigen_seconds(factor.rank) + factor.deferred_seconds
                for factor in new_factors
                if not isinstance(factor, IntervalFactor | LevelFactor)
            )
            seconds += math.fsum(
                INTERVAL_BOUND_SECONDS * factor.sizes[0]
                for factor in new_factors
                if _has_ranges(factor)
            )
            counted |= strategies | factor_numbers
            largest = max(dense_sizes, default=1)
            peak = dense_bytes(largest, largest, largest)
            costs.append(Cost(seconds=seconds, peak=peak, saved=0.0))
        return costs

    def _has_closed_form(self, label: Hashable, n: int) -> bool:
        """Return whether the strategy of an attribute with n cells needs no matrix."""
        return is_wide(n) and self.is_equal_noise(label)

    def reserve(self, seconds: float) -> None:
        """Do nothing, because strategies in closed form have no search."""

    def in_time(self, subs: Sequence[Subworkload], costs: Sequence[Cost], seconds: float) -> None:
        """Do nothing, because no search has to end within a time limit."""

    def ahead(
        self,
        subs: Sequence[Subworkload],
        costs: Sequence[Cost],
        workers: int | None,
        tell: Callable[[float], object],
    ) -> None:
        """Do nothing, because no search is worth starting in a worker process."""

    def solve(self, sub: Subworkload) -> SpaceSolution:
        """Return the product strategy with its squared error and a lower bound.

        The Gram matrix of a subworkload is a sum of Kronecker products.  The lower bound is the sum
        of the singular value bounds of these products.
        """
        if self.watch is not None:
            self.watch(0.0)
        strategies = [
            self._strategy(label, n) for label, n in zip(sub.labels, sub.sizes, strict=True)
        ]
        value = bound = 0.0
        for term in sub.terms:
            cost = floor = term.coefficient
            for axes, number in term.factors:
                # tr((G_1 (x) G_2) (X_1 (x) X_2)^-1) is the product of the traces.
                cost *= _trace(self.factors[number], [strategies[a] for a in axes])
                # The singular value bound of a Kronecker product is the product of the bounds of
                # its factors.
                floor *= self._svd_bound(number)
            value, bound = value + cost, bound + floor
        # The fields ``value``, ``bound`` and ``dual`` of the single factors are not used.  The
        # returned solution has the value and the bound of the product.
        solved = tuple(
            (
                (a,),
                Solution(strategy=s, value=1.0, bound=0.0, dual=np.ones(1), status="closed form"),
            )
            for a, s in enumerate(strategies)
        )
        return SpaceSolution(factors=solved, value=value, bound=bound, status="optimal")

    def _strategy(self, label: Hashable, n: int) -> Strategy:
        """Return the strategy of an attribute with a label and n cells.

        Raises LimitExceeded if it needs more memory than the limit.
        """
        if (label, n) not in self._strategies:
            self._strategies[label, n] = (
                marginal_strategy(n)
                if self._has_closed_form(label, n)
                else self._dense_strategy(label, n)
            )
        return self._strategies[label, n]

    def _dense_strategy(self, label: Hashable, n: int) -> Strategy:
        """Return the strategy of an attribute as a matrix; see `_strategy`."""
        if (needed := dense_bytes(n, n, n)) > self.memory_limit:
            raise LimitExceeded(
                f"A strategy for an attribute with {n} cells needs about {needed / 1e9:.1f} GB,"
                f" more than the limit of {self.memory_limit / 1e9:.1f} GB. Choose the base"
                " family 'marginal', merge cells, or raise memory_limit."
            )
        with threads_for(n):
            precision = self.axis(label, n)
            root = scipy.linalg.cholesky(precision)
            rows = root @ basis(n).T
            norm = math.sqrt(float(np.max(np.sum(rows**2, axis=0))))
            # Solving with the triangular root is more accurate than inverting the precision.
            pinv = scipy.linalg.solve_triangular(root, np.eye(n - 1)) * norm
        return Strategy(sizes=(n,), rows=rows / norm, pinv=pinv, complete=True)

    def _svd_bound(self, number: int) -> float:
        """Return a lower bound on the squared error of the queries of ``factors[number]``.

        The bound is (sum of singular values)^2 / cells.  For intervals, or areas of a hierarchy, on
        a wide attribute the result can be smaller, because it is computed without a matrix.
        """
        if number not in self._spectra:
            factor = self.factors[number]
            if isinstance(factor, LevelFactor):
                problem = factor.gram.problem
                areas = problem.tree.counts[-1]
                norm = problem.root_bound(np.full(areas, 1.0 / areas))
                # `root_bound` is for cell weights with sum 1.  The sum of singular values is for a
                # weight of 1 per cell.
                norm *= math.sqrt(math.prod(factor.sizes))
            elif isinstance(factor, IntervalFactor):
                norm = root_trace_bound(factor.gram)
            else:
                # The factor stores its Gram matrix, or if it has low rank, a matrix R with the
                # Gram matrix R^T R.  R R^T is smaller and has the same nonzero eigenvalues.
                small = factor.matrix @ factor.matrix.T if factor.low_rank else factor.matrix
                norm = float(np.sqrt(np.maximum(scipy.linalg.eigvalsh(small), 0.0)).sum())
            self._spectra[number] = norm**2 / math.prod(factor.sizes)
        return self._spectra[number]


def _has_ranges(factor: Factor) -> bool:
    """Return whether the queries of a Gram on a wide attribute include all ranges."""
    return isinstance(factor, IntervalFactor) and factor.gram.ranges > 0.0


def _trace(factor: Factor, strategies: Sequence[Strategy]) -> float:
    """Return tr(G X^-1): the summed variance of the queries of ``factor`` for noise of variance 1.

    G is the residual Gram matrix ``factor``.  X is the Kronecker product of the precision matrices
    of the strategies.
    """
    shape = [n - 1 for n in factor.sizes]
    if len(shape) == 1 and isinstance(strategies[0], MarginalStrategy):
        return factor.trace * strategies[0].coordinate_variance
    if len(shape) == 1:
        return float(np.sum(factor.dense() * strategies[0].covariance))
    if factor.low_rank:
        return float(
            np.sum(
                contract(factor.matrix.reshape(-1, *shape), [s.pinv for s in strategies], 1) ** 2
            )
        )
    out = contract(factor.matrix.reshape(-1, *shape), [s.covariance for s in strategies], 1)
    return float(np.trace(out.reshape(factor.dimension, factor.dimension)))


@dataclass(frozen=True, kw_only=True)
class ResidualPlanner(ResidualMechanism):
    """ResidualPlanner: equal noise within each residual space; optimal for marginals."""

    name: ClassVar[str] = "residualplanner"
    title: ClassVar[str] = "ResidualPlanner"
    meaning: ClassVar[str] = (
        "Equal noise within every group of attributes: designed for marginals, where it is optimal."
    )

    def note(self, workload: Workload) -> str:
        families = {
            part.family.name
            for group in workload.groups
            if group.weight > 0
            for part in group.parts
        }
        if families <= {"marginal", "total"}:
            return ""
        return (
            " ResidualPlanner was designed for marginals, so its noise is not adapted to the other"
            " queries of this workload."
        )

    @property
    def has_wide_intervals(self) -> bool:
        return True

    def space_solver(
        self, workload: Workload, decomposition: Decomposition, limits: Limits, deadline: float
    ) -> SpaceSolver:
        return AxisSolver(
            decomposition.factors, lambda _, n: np.eye(n - 1), lambda _: True, limits.memory_limit
        )


@dataclass(frozen=True, kw_only=True)
class ResidualPlannerPlus(ResidualMechanism):
    """ResidualPlanner+: the optimal strategy of a base workload on every attribute.

    Options
    -------
    base : mapping from attribute to the query family of its base workload.  Other attributes get
        the most frequent of the families "prefix", "range", "circular" and "marginal" among their
        queries.  Without such queries, a numeric attribute gets "prefix", and a categorical
        attribute gets "marginal".
    """

    name: ClassVar[str] = "residualplanner+"
    title: ClassVar[str] = "ResidualPlanner+"
    meaning: ClassVar[str] = (
        "A good strategy for each attribute, combined by products; the user may choose it."
    )
    choices: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "base": ("prefix", "range", "circular", "marginal")
    }

    base: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.base, Mapping):
            raise PlanError(
                f"base is {self.base!r}. Give a mapping from attribute to family, such as"
                " {'age': 'range'}."
            )
        for value in self.base.values():
            if family(value).arity != 1:
                raise PlanError(
                    f"base contains the family {value!r}, which does not take exactly one"
                    " attribute. Choose 'prefix', 'range', 'circular' or 'marginal'."
                )
        object.__setattr__(self, "base", dict(self.base))

    def axis_labels(self, workload: Workload) -> dict[str, Hashable]:
        """Return the base family of every attribute.

        The option ``base`` takes precedence.  For all other attributes, the base family is the most
        frequent one of the prefix, range, circular and marginal families that groups have on the
        attribute.  If groups have none of these families on it, the base family is the prefix
        family for a numeric attribute, and otherwise the marginal.
        """
        family_counts: dict[str, dict[Family, int]] = {name: {} for name in workload.schema.names}
        for group in workload.groups:
            for part in group.parts:
                if len(part.axes) == 1 and part.family.name in (
                    "prefix",
                    "range",
                    "circular",
                    "marginal",
                ):
                    counts = family_counts[group.attributes[part.axes[0]]]
                    counts[part.family] = counts.get(part.family, 0) + 1
        out: dict[str, Hashable] = {}
        for name, counts in family_counts.items():
            default = family("prefix" if workload.schema[name].kind == "numeric" else "marginal")
            out[name] = max(counts, key=lambda f: counts[f], default=default)
        for name, value in self.base.items():
            out[name] = family(value).bind([workload.schema[name]])
        return out

    def space_solver(
        self, workload: Workload, decomposition: Decomposition, limits: Limits, deadline: float
    ) -> SpaceSolver:
        return AxisSolver(
            decomposition.factors,
            base_strategy,
            lambda base: base.name == "marginal",
            limits.memory_limit,
            lambda base: MARGINAL_BASE_STEPS if base.name == "marginal" else BASE_STEPS,
        )


@lru_cache(maxsize=64)
def base_strategy(base: Any, n: int) -> Array:
    """Return the precision of the strategy for a base family, shape (n - 1, n - 1).

    The rows S of the strategy are optimal for the total and the centered queries of the family on n
    cells.  The result is N^T S^T S N, where N is the cosine basis of the residual space.
    """
    N = basis(n)
    centered = N @ (N.T @ base.gram((n,)) @ N) @ N.T
    problem = DualProblem(
        lift=FullDomain(n), factor=Factor(sizes=(n,), matrix=centered + np.ones((n, n)))
    )
    solution = problem.solution(*problem.maximise(Options(gap=1e-7)))
    X: Array = N.T @ (solution.strategy.rows.T @ solution.strategy.rows) @ N
    return X
