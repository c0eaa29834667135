"""HDMM: search several kinds of strategies for a workload and keep the best.

    OPT_0           one explicit strategy on all cells of the asked attributes, when there are few
    OPT_kron        one product of small strategies; see `engine.mechanisms.products.kronecker`
    OPT_plus        the groups in clusters, a product strategy for each, the budget shared in closed form
    OPT_marginals   weighted marginals; see `engine.mechanisms.hdmm.marginals`

Everything here is a pure function of the workload and a seed: no data, no budget, no noise.  Squared errors are those
at unit budget: pcost 1 for Gaussian noise, epsilon 1 for Laplace noise, whose variance is 2 / epsilon^2.

Source: McKenna, Miklau, Hay and Machanavajjhala, "HDMM: Optimizing error of high-dimensional statistical queries under
differential privacy", 2023.
"""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from engine.arrays import Array
from engine.errors import LimitExceeded, NotApplicable, PlanError
from engine.mechanisms.explicit import identity_strategy
from engine.mechanisms.hdmm.marginals import MarginalStrategy, marginal_strategy
from engine.mechanisms.products import (
    GramBuilder,
    KroneckerSolver,
    ProductGrams,
    Tell,
    by_maximal_sets,
    by_sets,
    product_component,
    weighted_groups,
)
from engine.plans import Component
from engine.workload import Workload

NOISES = ("gaussian", "laplace")
VARIANCE = {"gaussian": 1.0, "laplace": 2.0}  # of noise at unit budget and sensitivity 1
WHOLE = 512  # cells of the asked attributes up to which OPT_0 is tried on all of them
TRIES = 24  # merged clusters to solve at most
MERGEABLE = 100  # clusters up to which merging is worth its time


@dataclass(frozen=True, kw_only=True, eq=False)
class HDMMStrategy:
    """What one operator found.

    Attributes
    ----------
    noise : "gaussian" or "laplace".
    operator : which operator found it, in words.
    components : what is measured; together of sensitivity 1.
    squared_error : sum over queries of weight times variance at unit budget, in counts^2.
    bound : no strategy of the operator's kind has a smaller squared error; None where nothing is proved.
    marginals : for OPT_marginals the weights on residual spaces; then every group is answered by least squares over all
        components together, and the components name no groups.
    """

    noise: str
    operator: str
    components: tuple[Component, ...]
    squared_error: float
    bound: float | None = None
    marginals: MarginalStrategy | None = None

    @property
    def joint(self) -> bool:
        """Whether answers need all components together."""
        return self.marginals is not None


@dataclass(frozen=True, kw_only=True, eq=False)
class OperatorChoice:
    """The best strategy, the squared error of every operator that applied, and why the others did not."""

    best: HDMMStrategy
    errors: Mapping[str, float]
    refused: Mapping[str, str]


def budget_shares(errors: Sequence[float], noise: str) -> tuple[Array, float]:
    """Return the best shares of the budget for components of these squared errors, and the error that results.

    Shares have shape (components,).
    Gaussian: pcost proportional to sqrt(E), (sum sqrt E)^2.  Laplace: epsilon proportional to E^(1/3), (sum E^(1/3))^3.
    Guarantee: no shares do better.  Source: HDMM, definition 19.

    >>> shares, error = budget_shares([4.0, 16.0], "gaussian")
    >>> shares.round(3), error
    (array([0.333, 0.667]), 36.0)
    """
    # errors fall as 1 / pcost for Gaussian and as 1 / epsilon^2 for Laplace noise; Lagrange gives these powers of E
    power = 2 if noise == "gaussian" else 3
    roots = np.asarray(errors, dtype=float) ** (1.0 / power)
    return roots / roots.sum(), float(roots.sum()) ** power


def plus_strategy(
    builder: GramBuilder, clusters: Sequence[Sequence[int]], solver: KroneckerSolver, operator: str
) -> HDMMStrategy:
    """Return a product strategy for every cluster of group numbers with the best shares: OPT_plus, or OPT_kron for one.

    Guarantee: every group is answered by the component of its cluster, and the error is that of the shares returned.
    Source: HDMM, definitions 18 and 19.
    """
    problems = [builder.build(c) for c in clusters]
    return _assembled(builder, problems, solver, operator)


def _assembled(
    builder: GramBuilder, problems: Sequence[ProductGrams], solver: KroneckerSolver, operator: str
) -> HDMMStrategy:
    solved = [solver.solve(p) for p in problems]
    shares, error = budget_shares([s.squared_error for s in solved], solver.noise)
    components = tuple(
        product_component(builder.workload, problem, found, share)
        for problem, found, share in zip(problems, solved, shares.tolist(), strict=True)
    )
    return HDMMStrategy(
        noise=solver.noise,
        operator=operator,
        components=components,
        squared_error=error * VARIANCE[solver.noise],
    )


def merged(
    builder: GramBuilder, clusters: Sequence[Sequence[int]], solver: KroneckerSolver, tries: int = TRIES
) -> list[tuple[int, ...]]:
    """Return clusters merged in pairs wherever that lowers the squared error.

    Pairs whose union has few cells beside the larger of the two come first; after ``tries`` solves the search ends.
    """
    present = [tuple(sorted(c)) for c in clusters]
    own = {c: solver.solve(builder.build(c)).squared_error for c in present}

    def worth(kept: Sequence[tuple[int, ...]]) -> float:
        return budget_shares([own[c] for c in kept], solver.noise)[1]

    growth = partial(_growth, builder.workload)
    # clusters that share most cells gain most, and every try is a solve
    queue = sorted(itertools.combinations(present, 2), key=growth)
    while queue and tries > 0 and time.monotonic() < solver.deadline:
        one, other = queue.pop(0)
        both, tries = tuple(sorted(one + other)), tries - 1
        own[both] = solver.solve(builder.build(both)).squared_error
        trial = [c for c in present if c not in (one, other)] + [both]
        # a gain that is rounding would merge back and forth
        if worth(trial) < worth(present) * (1.0 - 1e-9):
            left = [pair for pair in queue if one not in pair and other not in pair]
            queue = sorted(left + [(c, both) for c in trial[:-1]], key=growth)
            present = trial
    return present


def _growth(workload: Workload, pair: tuple[tuple[int, ...], tuple[int, ...]]) -> tuple[float, int]:
    """Return how many cells two clusters of group numbers have together, beside the larger of the two, and at all."""
    one, other = ({a for k in cluster for a in workload.groups[k].attributes} for cluster in pair)
    union, *alone = (math.prod(workload.schema.sizes(names)) for names in (one | other, one, other))
    return union / max(alone), union


def foreseen(workload: Workload, operator: str = "best") -> list[ProductGrams]:
    """Return the distinct problems that the product strategies of a workload lead to, without solving any.

    Of merged clusters those pairs are among them that are tried first; OPT_kron has one problem.  Raises NotApplicable
    where a unit is too large.
    """
    builder, found = GramBuilder(workload), dict[Any, ProductGrams]()

    def see(cluster: Sequence[int]) -> None:
        problem = builder.build(cluster)
        found[problem.key] = problem

    see(weighted_groups(workload))
    if operator == "OPT_kron":
        return list(found.values())
    sets, maximal = by_sets(workload), by_maximal_sets(workload)
    for cluster in (*sets, *maximal):
        see(cluster)
    if 1 < len(maximal) <= MERGEABLE:
        pairs = itertools.combinations((tuple(sorted(c)) for c in maximal), 2)
        for one, other in heapq.nsmallest(TRIES, pairs, key=partial(_growth, workload)):
            see(tuple(sorted(one + other)))
    return list(found.values())


def _explicit(builder: GramBuilder, solver: KroneckerSolver) -> HDMMStrategy:
    groups = weighted_groups(builder.workload)
    touched = {a for k in groups for a in builder.workload.groups[k].attributes}
    names = tuple(a for a in builder.workload.schema.names if a in touched)
    cells = math.prod(builder.workload.schema[a].size for a in names)
    if cells > WHOLE:
        raise NotApplicable(f"The asked attributes have {cells:,} cells together; OPT_0 takes at most {WHOLE}.")
    problem = builder.build(groups, units=(names,) if names else ())
    found = _assembled(builder, [problem], solver, "OPT_0: one explicit strategy on all cells")
    bound = None
    if solver.noise == "gaussian" and names:
        bound = min(found.squared_error, float(getattr(solver.solve(problem).factors[0], "bound", 0.0)))
    return replace(found, bound=bound)


def _kron(builder: GramBuilder, solver: KroneckerSolver) -> HDMMStrategy:
    return plus_strategy(builder, [weighted_groups(builder.workload)], solver, "OPT_kron: one product strategy")


def _plus(builder: GramBuilder, solver: KroneckerSolver) -> HDMMStrategy:
    found, reasons = list[HDMMStrategy](), list[NotApplicable]()
    sets = by_sets(builder.workload)
    trials = {"a product strategy for every set of attributes": sets}
    # small sets inside large ones: one table answers both, at the noise of the larger
    maximal = by_maximal_sets(builder.workload)
    if len(maximal) < len(sets):
        trials["a product strategy for every largest set of attributes"] = maximal
    for words, clusters in trials.items():
        if solver.deadline < time.monotonic() and found:
            break
        try:
            found.append(plus_strategy(builder, clusters, solver, f"OPT_plus: {words}"))
        except NotApplicable as refusal:
            reasons.append(refusal)
    if not found:
        raise reasons[0]
    best = min(found, key=lambda s: s.squared_error)
    if 1 < len(best.components) <= MERGEABLE:
        try:
            fewer = merged(builder, [c.groups for c in best.components], solver)
        except NotApplicable:  # a merged unit may be too large where the single ones are not
            return best
        if len(fewer) < len(best.components):
            words = f"a product strategy for each of {len(fewer)} clusters of groups, merged by search"
            return plus_strategy(builder, fewer, solver, f"OPT_plus: {words}")
    return best


def _marginals(builder: GramBuilder, solver: KroneckerSolver) -> HDMMStrategy:
    found = marginal_strategy(builder.workload, solver.noise, restarts=max(4, solver.restarts), seed=solver.seed)
    schema = builder.workload.schema
    components = tuple(
        Component(
            attributes=names,
            factors=tuple(((i,), identity_strategy(n)) for i, n in enumerate(schema.sizes(names))),
            share=share,
            groups=(),
        )
        for names, share in found.shares.items()
    )
    return HDMMStrategy(
        noise=found.noise,
        operator="OPT_marginals: weighted marginals, answered together",
        components=components,
        squared_error=found.squared_error,
        bound=found.bound,
        marginals=found,
    )


OPERATORS: Mapping[str, Callable[[GramBuilder, KroneckerSolver], HDMMStrategy]] = {
    "OPT_0": _explicit,
    "OPT_kron": _kron,
    "OPT_plus": _plus,
    "OPT_marginals": _marginals,
}


def best_of(
    workload: Workload,
    noise: str = "gaussian",
    *,
    operators: Sequence[str] = tuple(OPERATORS),
    restarts: int = 2,
    seed: int = 0,
    gap: float = 1e-5,
    max_cells: int = 2048,
    deadline: float = math.inf,
    tell: Tell | None = None,
) -> OperatorChoice:
    """Return the best strategy of several operators: OPT_HDMM.

    Parameters
    ----------
    noise : "gaussian" or "laplace".
    operators : which of ``OPERATORS`` to try.
    restarts, seed : of the searches that can end in local optima; equal seeds give equal strategies.
    gap : relative RMSE gap at which the search on one unit stops.
    max_cells : most cells of a unit that is solved densely.
    deadline : moment on the monotonic clock after which nothing is improved further.
    tell : called with a text before every search; it may raise to cancel.

    Guarantee: the components together have sensitivity 1, and ``squared_error`` is what least squares gives with them.
    Raises: NotApplicable with every operator's reason when none applies; PlanError for an unknown noise or operator, or
    when no query has a weight.
    Source: HDMM, section 9.

    >>> from engine import Attribute, Schema
    >>> found = best_of(Workload(Schema([Attribute.of_size("a", 8), Attribute.of_size("b", 9)])).add("a").add("b"))
    >>> found.best.operator
    'OPT_0: one explicit strategy on all cells'
    """
    if noise not in NOISES:
        raise PlanError(f"noise was {noise!r}. Choose one of {', '.join(NOISES)}.")
    unknown = [o for o in operators if o not in OPERATORS]
    if unknown or not operators:
        raise PlanError(f"The operators were {', '.join(map(repr, operators))}. Choose from {', '.join(OPERATORS)}.")
    if not weighted_groups(workload):
        raise PlanError("Every query has weight zero, so any noise would do. Give at least one group a weight above 0.")
    builder = GramBuilder(workload, max_cells)
    solver = KroneckerSolver(noise, restarts=restarts, seed=seed, gap=gap, deadline=deadline, tell=tell)
    found: dict[str, HDMMStrategy] = {}
    refused: dict[str, str] = {}
    for operator in operators:
        if tell is not None:
            tell(operator)
        try:
            found[operator] = OPERATORS[operator](builder, solver)
        except (NotApplicable, LimitExceeded) as refusal:
            refused[operator] = str(refusal)
    if not found:
        raise NotApplicable(" ".join(f"{operator}: {reason}" for operator, reason in refused.items()))
    best = min(found.values(), key=lambda s: s.squared_error)
    return OperatorChoice(best=best, errors={o: s.squared_error for o, s in found.items()}, refused=refused)
