"""ResidualPlanner and ResidualPlanner+: one strategy per attribute, combined by Kronecker products.

A strategy with rows A is described by V = A^T A.  ResidualPlanner measures the residual space on
the attributes B with V_B the Kronecker product of C_i = I - 1 1^T / n_i over B.  ResidualPlanner+
has a base workload W for every attribute.  It computes the optimal strategy S (S^T S has diagonal
1) for the rows 1^T and W C_i stacked, and measures V_i = C_i S^T S C_i.  The noise of every space
has a closed form.

`WeightedFourier` has closed-form strategies in the Fourier basis.  With f_k the Fourier vectors of
a residual space and G the Gram matrix of the queries, the optimal variances of the coefficients are
proportional to (f_k^* G f_k)^(-1/2).  The strategy is optimal for marginals and circular ranges.
Prefixes and suffixes can be embedded as half circles on twice as many cells (extended marginals),
which is more accurate from about twenty cells.

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
from engine.residuals.intervals import root_trace_bound
from engine.residuals.marginals import MarginalStrategy, marginal_strategy
from engine.residuals.operators import is_wide
from engine.residuals.strategy_search import Cost, dense_bytes, eigen_seconds
from engine.residuals.subworkload_solver import SpaceSolution, SubworkloadSolver
from engine.workload import Family, Workload
from engine.workload.families import family

EMBEDDINGS = ("cells", "circle")


@dataclass(frozen=True, kw_only=True)
class WeightedFourier(ResidualMechanism):
    """Weighted Fourier Factorizations.

    Options
    -------
    embedding : "cells" uses the Fourier basis on the cells of every attribute; "circle" embeds the
        attributes that have only prefixes and suffixes as half circles.
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
        """Return the split: half-circle centers for attributes with only prefixes and suffixes.

        Other attributes, attributes with fewer than 3 cells, and all attributes without the
        embedding "circle" have uniform centers.
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
        self, workload: Workload, parts: Decomposition, limits: Limits, deadline: float
    ) -> SpaceSolver:
        return SubworkloadSolver(
            factors=parts.factors,
            method="fourier",
            options=Options(deadline=deadline),
            memory_limit=limits.memory_limit,
        )


# For forecasts: times of the factorisation of a strategy, of the bound of a residual Gram, and of the
# search for a base strategy, in eigenvalue problems of the same order.
ROOT_STEPS, BOUND_STEPS = 0.5, 0.5
MARGINAL_BASE_STEPS, BASE_STEPS = 14.0, 30.0


class AxisSolver:
    """Solver of subworkloads whose strategy is a product of fixed strategies of attributes.

    Parameters
    ----------
    factors : distinct residual Grams of the decomposition.
    axis : for a label and a size n of an attribute, returns the precision of its strategy in
        residual coordinates, shape (n - 1, n - 1).
    memory_limit : largest memory of one strategy, in bytes.
    axis_steps : for a label, the expected time of ``axis`` in eigenvalue problems of n cells.
    is_equal_noise : for a label, returns whether that precision is a multiple of the identity.
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
        """Return the expected time and memory of solving each subworkload."""
        # marginals on wide attributes have a closed form
        dense = [
            [
                n
                for n, label in zip(s.sizes, s.labels, strict=True)
                if not is_wide(n) or not self.is_equal_noise(label)
            ]
            for s in subs
        ]
        # a strategy or bound that several subworkloads need is computed once
        computed = set[Any]()
        costs = []
        for sub, widths in zip(subs, dense, strict=True):
            axes = {pair for pair in zip(sub.labels, sub.sizes, strict=True) if pair[1] in widths}
            numbers = {number for term in sub.terms for _, number in term.factors}
            seconds = 2.5e-4
            seconds += math.fsum(
                (self.axis_steps(label) + ROOT_STEPS) * eigen_seconds(n)
                for label, n in axes - computed
            )
            seconds += math.fsum(
                BOUND_STEPS * eigen_seconds(factor.rank) + factor.deferred_seconds
                for factor in (self.factors[number] for number in numbers - computed)
                if not isinstance(factor, IntervalFactor | LevelFactor)
            )
            computed |= axes | numbers
            n = max(widths, default=1)
            costs.append(Cost(seconds=seconds, peak=dense_bytes(n, n, n), saved=0.0))
        return costs

    def in_time(self, subs: Sequence[Subworkload], costs: Sequence[Cost], seconds: float) -> None:
        """Do nothing: every strategy is a formula."""

    def ahead(
        self,
        subs: Sequence[Subworkload],
        costs: Sequence[Cost],
        workers: int | None,
        tell: Callable[[float], object],
    ) -> None:
        """Do nothing: every strategy is a formula."""

    def solve(self, sub: Subworkload) -> SpaceSolution:
        """Return the product strategy with its squared error and a lower bound on any error.

        The bound is the sum of the singular value bounds of the terms of the subworkload.
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
                # bounds of factors multiply; bounds of terms add up, as one strategy serves all
                floor *= self._svd_bound(number)
            value, bound = value + cost, bound + floor
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
        if (label, n) not in self._strategies and is_wide(n) and self.is_equal_noise(label):
            self._strategies[label, n] = marginal_strategy(n)
        if (label, n) not in self._strategies:
            if (needed := dense_bytes(n, n, n)) > self.memory_limit:
                raise LimitExceeded(
                    f"A strategy for an attribute with {n} cells needs about {needed / 1e9:.1f} GB,"
                    f" more than the limit of {self.memory_limit / 1e9:.1f} GB. Choose the base"
                    " family 'marginal', merge cells, or raise memory_limit."
                )
            with threads_for(n):
                X = self.axis(label, n)
                root = scipy.linalg.cholesky(X)
                rows = root @ basis(n).T
                norm = math.sqrt(float(np.max(np.sum(rows**2, axis=0))))
                # A triangular solve is more accurate than an inversion of X.
                pinv = scipy.linalg.solve_triangular(root, np.eye(n - 1)) * norm
                self._strategies[label, n] = Strategy(
                    sizes=(n,), rows=rows / norm, pinv=pinv, complete=True
                )
        return self._strategies[label, n]

    def _svd_bound(self, number: int) -> float:
        """Return (sum of singular values)^2 / cells, a lower bound on the value of a factor."""
        if number not in self._spectra:
            factor = self.factors[number]
            if isinstance(factor, LevelFactor):
                problem = factor.gram.problem
                areas = problem.tree.counts[-1]
                norm = problem.root_bound(np.full(areas, 1.0 / areas))
                norm *= math.sqrt(math.prod(factor.sizes))
            elif isinstance(factor, IntervalFactor):
                norm = root_trace_bound(factor.gram)
            else:
                # R R^T has the same nonzero eigenvalues as R^T R
                small = factor.matrix @ factor.matrix.T if factor.low_rank else factor.matrix
                norm = float(np.sqrt(np.maximum(scipy.linalg.eigvalsh(small), 0.0)).sum())
            self._spectra[number] = norm**2 / math.prod(factor.sizes)
        return self._spectra[number]


def _trace(factor: Factor, strategies: Sequence[Strategy]) -> float:
    """Return tr(G X^-1), with X the Kronecker product of the precisions of the strategies.

    G is the residual Gram ``factor``; the trace is the squared error of its queries at noise 1.
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
    meaning: ClassVar[str] = "Equal noise within every group of attributes: optimal for marginals."

    @property
    def has_wide_intervals(self) -> bool:
        return True

    def space_solver(
        self, workload: Workload, parts: Decomposition, limits: Limits, deadline: float
    ) -> SpaceSolver:
        return AxisSolver(
            parts.factors, lambda _, n: np.eye(n - 1), lambda _: True, limits.memory_limit
        )


@dataclass(frozen=True, kw_only=True)
class ResidualPlannerPlus(ResidualMechanism):
    """ResidualPlanner+: the optimal strategy of a base workload on every attribute.

    Options
    -------
    base : mapping from attribute to the query family of its base workload.  For other attributes it
        is the most frequent of the families prefix, range, circular and marginal in the groups with
        the attribute; without any, "prefix" for numeric and "marginal" for categorical attributes.
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
        self, workload: Workload, parts: Decomposition, limits: Limits, deadline: float
    ) -> SpaceSolver:
        return AxisSolver(
            parts.factors,
            base_strategy,
            lambda base: base.name == "marginal",
            limits.memory_limit,
            lambda base: MARGINAL_BASE_STEPS if base.name == "marginal" else BASE_STEPS,
        )


@lru_cache(maxsize=64)
def base_strategy(base: Any, n: int) -> Array:
    """Return the precision of the strategy for a base family, shape (n - 1, n - 1).

    It is N^T V N, in residual coordinates, with V = S^T S of the strategy S that is optimal for the
    total and the centered rows of the family on n cells.
    """
    N = basis(n)
    centered = N @ (N.T @ base.gram((n,)) @ N) @ N.T
    problem = DualProblem(
        lift=FullDomain(n), factor=Factor(sizes=(n,), matrix=centered + np.ones((n, n)))
    )
    solution = problem.solution(*problem.maximise(Options(gap=1e-7)))
    X: Array = N.T @ (solution.strategy.rows.T @ solution.strategy.rows) @ N
    return X
