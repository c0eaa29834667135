"""HDMM: the strategy searches OPT_0, OPT_kron, OPT_plus and OPT_marginals.

The mechanism runs several operators on a workload and uses the strategy with the smallest error.

    OPT_0           one strategy matrix on all cells of the workload's attributes, for few cells
    OPT_kron        one Kronecker product of strategies on small sets of attributes (units)
    OPT_plus        one Kronecker product per cluster of groups
    OPT_marginals   weighted marginals

An operator is a strategy search whose result depends only on the workload and a seed.  Squared
errors are sums of variances at unit budget.  Unit budget is pcost 1 for Gaussian noise, and epsilon
1 for Laplace noise.  At unit budget and sensitivity 1, the noise has variance 1 (Gaussian) or 2
(Laplace). See `engine.mechanisms.kronecker` for the search of OPT_kron.

OPT_marginals
-------------
The strategy M measures weighted marginals.  A is the attribute set of a marginal, B is that of a
residual space, and n_i is the number of cells of attribute i.

    weight      theta_A  weight of the marginal on A
    share       v_A      theta_A^2
    trace       t_B      trace of the residual Gram matrix of the workload on B, in counts^2
    precision   f_B      sum over A containing B of v_A / (product of n_i over A without B)

The squared L2 sensitivity of M is the sum of theta_A^2.  Its L1 sensitivity is the sum of theta_A.
The squared error is E = sum_B t_B / f_B at sensitivity 1 and noise of variance 1.

For Gaussian noise, E is a convex function of v.  For every v with sum 1, the quotient
E(v)^2 / (max over A of -dE/dv_A) is a lower bound on the squared error.

Source: McKenna, Miklau, Hay and Machanavajjhala, "HDMM: Optimizing error of high-dimensional
statistical queries under differential privacy", 2023; sections 7 and 8 for marginals.  The form by
residual spaces and the lower bound are extensions of this project.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np

from engine._arrays import Array
from engine._clock import planning_time
from engine._validation import check_choice
from engine.bounds.lower_bounds import MAX_EXACT_CELLS
from engine.errors import LimitExceeded, NotApplicable, PlanError
from engine.mechanisms.base import (
    MIN_REFUSED_SECONDS,
    Design,
    ExplicitMechanism,
    Forecast,
    Limits,
    dense_start_seconds,
    is_integer,
    used_attributes,
)
from engine.mechanisms.kronecker import (
    EXPECTED_SWEEPS,
    GramBuilder,
    KroneckerSolver,
    ProductGrams,
    Tell,
    by_maximal_sets,
    by_sets,
    product_component,
    search_seconds,
    unit_seconds,
    weighted_groups,
)
from engine.plans.blocks import MAX_RECORDS, MIN_JOINT_SAVING, component_key, joint_share
from engine.plans.table_plan import Component, component_blocks
from engine.privacy import Budget
from engine.residuals import Space
from engine.residuals.decomposition import decompose
from engine.residuals.marginals import identity_strategy
from engine.residuals.operators import is_wide
from engine.workload import Workload, subsets

# With at most this number of attributes, OPT_marginals considers the marginals on all subsets of
# the attributes.
MAX_FULL_LATTICE_AXES = 14
# largest number of marginals that OPT_marginals considers
MAX_SETS = 50_000
MARGINALS_MAX_ITERATIONS = 3000
# Marginals with less than this share of the largest budget of a marginal are not measured, unless
# leaving them out would increase the error.  Larger shares are tried first.
MIN_SHARE = 1e-9
NO_WEIGHTED_QUERY = (
    "No query of positive weight has a coefficient other than 0. Give at least one group with such"
    " a query a weight above 0."
)


@dataclass(frozen=True, kw_only=True, eq=False)
class MarginalStrategy:
    """Weighted marginals, from which least squares estimates all queries.

    Attributes
    ----------
    noise : "gaussian" or "laplace".
    shares : mapping from the attributes of each measured marginal to its share of the budget.  The
        share is theta^2 for Gaussian noise, and theta for Laplace noise.
    precision : mapping from each measured residual space B to f_B at unit budget.
    squared_error : weighted sum of the variances of all queries, in counts^2, at unit budget.
    bound : lower bound on the squared error of all marginal strategies; None for Laplace noise.
    status : "closed form", or the number of steps of the search.
    """

    noise: str
    shares: Mapping[Space, float]
    precision: Mapping[Space, float]
    squared_error: float
    bound: float | None
    status: str


def residual_traces(workload: Workload) -> dict[Space, float]:
    """Return the trace t_B of every residual space B, in counts^2.

    t_B is a sum over all queries.  The term of a query is its weight times the squared norm of its
    component in B.  The component is taken as a table on the attributes B, and is not repeated over
    the other attributes.  The error of a marginal strategy depends on the workload only through
    t_B.

    Source: HDMM, theorem 10.

    >>> from engine import Attribute, Schema
    >>> traces = residual_traces(Workload(Schema([Attribute.of_size("a", 4)])).add("a", "marginal"))
    >>> {space: round(t, 9) for space, t in traces.items()}
    {(): 0.25, ('a',): 3.0}
    """
    decomposition = decompose(workload)
    traces = {}
    for space, (number, scale) in decomposition.spaces.items():
        total = math.fsum(
            term.coefficient
            * math.prod(decomposition.factors[factor].trace for _, factor in term.factors)
            for term in decomposition.subworkloads[number].terms
        )
        traces[space] = scale * total
    return traces


class Lattice:
    """Candidate marginals of OPT_marginals, and the linear map from their weights to precisions.

    The module docstring defines the weights v_A and the precisions f_B.

    Parameters
    ----------
    sizes : mapping from attribute to domain size, in the order of the schema.
    sets : attribute sets, which include all subsets of each set.
    """

    def __init__(self, sizes: Mapping[str, int], sets: Sequence[Space]) -> None:
        import scipy.sparse

        self.sets, self.sizes = tuple(sets), dict(sizes)
        self.full = len(self.sets) == 2 ** len(self.sizes)
        if self.full:
            # `_by_attribute` uses an array with one axis of length 2 per attribute.  The index of a
            # set is 1 on the axes of its attributes, and 0 on all other axes.  `position` is this
            # index in the flattened array.
            bits = [[int(name in members) for name in self.sizes] for members in self.sets]
            self.position = np.array([int("".join(map(str, b)) or "0", 2) for b in bits])
            return
        # The matrix maps the weights v_A to the precisions f_B.  The entry in row B and column A is
        # 1 / (number of cells of the attributes of A outside B) if B is a subset of A, otherwise 0.
        number_of_set = {members: i for i, members in enumerate(self.sets)}
        rows, columns, values = [], [], []
        for column, members in enumerate(self.sets):
            for subset in subsets(members):
                cells_outside = math.prod(self.sizes[x] for x in members if x not in subset)
                rows.append(number_of_set[subset])
                columns.append(column)
                values.append(1.0 / cells_outside)
        self.matrix = scipy.sparse.csr_matrix(
            (values, (rows, columns)), shape=(len(self.sets),) * 2
        )

    def precision(self, v: Array) -> Array:
        """Return the precision f_B of every set B for marginal weights v, both of shape (sets,)."""
        return self._by_attribute(v, forward=True) if self.full else np.asarray(self.matrix @ v)

    def apply_transpose(self, by_precision: Array) -> Array:
        """Multiply with the transposed matrix of `precision`.

        This maps a derivative with respect to f to one with respect to v, both of shape (sets,).
        """
        if self.full:
            return self._by_attribute(by_precision, forward=False)
        return np.asarray(self.matrix.T @ by_precision)

    def inverse(self, f: Array) -> Array:
        """Return the marginal weights v for which `precision` returns f.  Entries may be negative.

        v and f have the shape (sets,).
        """
        import scipy.sparse.linalg

        if not self.full:
            return np.asarray(scipy.sparse.linalg.spsolve(self.matrix.tocsc(), f))
        return self._by_attribute(f, forward=True, sign=-1.0)

    def _by_attribute(self, values: Array, *, forward: bool, sign: float = 1.0) -> Array:
        """Apply the linear map of `precision`, its transpose or its inverse, without a matrix.

        The map is f_B = sum over A containing B of v_A / (product of n_i over A without B).  The
        sets must be all subsets of the attributes.

        Parameters
        ----------
        values : argument of the map, shape (sets,).
        forward : False for the transposed map.
        sign : -1 for the inverse map, otherwise 1.

        Returns
        -------
        The value of the map, shape (sets,).
        """
        table = np.zeros(len(self.sets))
        table[self.position] = values
        table = table.reshape((2,) * len(self.sizes))
        # The map is a Kronecker product of 2 x 2 matrices, one per attribute.  Applying them in
        # turn takes d 2^d operations for d attributes; the sparse matrix would have 3^d entries.
        for axis, n in enumerate(self.sizes.values()):
            # entries of sets without the attribute of this axis, and entries of sets with it
            without, included = (np.take(table, side, axis=axis) for side in (0, 1))
            pair = (
                (without + sign * included / n, included)
                if forward
                else (without, included + sign * without / n)
            )
            table = np.stack(pair, axis=axis)
        return np.asarray(table.ravel()[self.position])


def lattice_of(workload: Workload, spaces: Sequence[Space]) -> Lattice:
    """Return the candidate marginals of OPT_marginals.

    If ``spaces`` together have at most `MAX_FULL_LATTICE_AXES` attributes, there is one candidate
    per subset of these attributes.  Otherwise there is one per subset of each set in ``spaces``.

    Raises
    ------
    NotApplicable
        If there are more than `MAX_SETS` candidates, or a set has more than `MAX_FULL_LATTICE_AXES`
        attributes.
    """
    group_attributes = {a for s in spaces for a in s}
    sizes = {a.name: a.size for a in workload.schema.attributes if a.name in group_attributes}
    if len(sizes) <= MAX_FULL_LATTICE_AXES:
        names = list(sizes)
        return Lattice(sizes, list(subsets(names)))
    closed: set[Space] = {()}
    # Large sets come first, so that small sets are usually included already as their subsets.
    for space in sorted(spaces, key=len, reverse=True):
        members = workload.schema.ranked(space)
        if members in closed:
            continue
        if len(members) <= MAX_FULL_LATTICE_AXES:
            closed.update(subsets(members))
        if len(members) > MAX_FULL_LATTICE_AXES or len(closed) > MAX_SETS:
            raise NotApplicable(
                "The groups have too many attributes for OPT_marginals, which allows at most"
                f" {MAX_FULL_LATTICE_AXES} attributes per group and {MAX_SETS:,} different subsets of"
                " attributes of all groups. Use groups on fewer attributes, or choose"
                " 'querysmasher'."
            )
    return Lattice(sizes, sorted(closed, key=lambda s: (len(s), s)))


def closed_form(lattice: Lattice, traces: Array) -> Array | None:
    """Return the optimal marginal weights v for Gaussian noise in closed form.

    The result is None if an entry of the closed form is negative.  Otherwise its squared error
    equals the lower bound `marginal_svd_bound`.

    Parameters
    ----------
    traces : t_B of every set B, shape (sets,).

    Returns
    -------
    v with sum 1, shape (sets,), or None.

    Source: HDMM, theorem 13.
    """
    v = _unconstrained_shares(lattice, traces)
    if (v < -1e-12 * np.abs(v).max()).any():
        return None
    v = np.maximum(v, 0.0)
    return np.asarray(v / v.sum())


def _unconstrained_shares(lattice: Lattice, traces: Array) -> Array:
    """Return the marginal weights v that are optimal without the constraint v >= 0, up to scale."""
    dimensions, cells = _dimensions(lattice)
    return lattice.inverse(np.sqrt(traces * cells / dimensions))


def _dimensions(lattice: Lattice) -> tuple[Array, Array]:
    """Return two arrays of shape (sets,), with one entry per attribute set.

    Returns
    -------
    dimensions : dimension of the residual space on the set, the product of n - 1.
    cells : number of cells of the marginal on the set, the product of n.
    """
    dimensions = [math.prod(float(lattice.sizes[a] - 1) for a in s) for s in lattice.sets]
    cells = [math.prod(float(lattice.sizes[a]) for a in s) for s in lattice.sets]
    return np.array(dimensions), np.array(cells)


def marginal_svd_bound(lattice: Lattice, traces: Array) -> float:
    """Return a lower bound on the squared error of marginal strategies, in counts^2 at pcost 1.

    The result is the singular value bound of a workload of weighted marginals with the same
    ``traces`` t_B, shape (sets,).  If all queries of the workload are marginals, no matrix
    mechanism has a smaller squared error.

    Source: HDMM, theorem 12.

    >>> marginal_svd_bound(Lattice({"a": 4}, [(), ("a",)]), np.array([0.25, 3.0]))
    4.0
    """
    dimensions, cells = _dimensions(lattice)
    return float(np.sum(np.sqrt(traces * dimensions / cells)) ** 2)


def marginal_objective(
    theta: Array, lattice: Lattice, traces: Array, noise: str
) -> tuple[float, Array]:
    """Return log(sensitivity^2 sum_B t_B / f_B) and its derivative with respect to theta.

    f_B is the precision of residual space B for the marginal weights v = theta^2, and t_B is the
    entry of ``traces`` for B.

    The argument of the logarithm is the squared error at unit budget for Gaussian noise, and half
    of the squared error for Laplace noise.  ``theta`` and the derivative have shape (sets,).
    """
    f = lattice.precision(theta**2)
    has_queries = traces > 0
    # The error is infinite if a residual space of the workload is not measured.  L-BFGS needs a
    # finite value instead.
    if not (f[has_queries] > 0).all():
        return 1e10, np.zeros_like(theta)
    errors = np.divide(traces, f, out=np.zeros_like(f), where=has_queries)
    error = float(errors.sum())
    # derivative of the logarithm of ``error`` with respect to v
    by_v = (
        -lattice.apply_transpose(np.divide(errors, f, out=np.zeros_like(f), where=has_queries))
        / error
    )
    if noise == "gaussian":
        total = float(theta @ theta)
        return math.log(total) + math.log(error), 2.0 * theta * (1.0 / total + by_v)
    total = float(theta.sum())
    return 2.0 * math.log(total) + math.log(error), 2.0 / total + 2.0 * theta * by_v


def marginal_strategy(
    workload: Workload,
    noise: str = "gaussian",
    restarts: int = 4,
    seed: int | np.random.Generator = 0,
) -> MarginalStrategy:
    """Search for the weighted marginals with the smallest squared error (OPT_marginals).

    The weights of the returned strategy are scaled to sensitivity 1.

    Raises
    ------
    NotApplicable
        If there are too many candidate sets.
    PlanError
        For an unknown noise, or if no query of positive weight has a coefficient other than 0.

    Source: HDMM, problem 2.

    >>> from engine import Attribute, Schema
    >>> schema = Schema([Attribute.of_size(c, 10) for c in "ab"])
    >>> strategy = marginal_strategy(Workload.all_ways(schema, (0, 1, 2), "marginal"))
    >>> strategy.status, round(strategy.squared_error / strategy.bound, 9)
    ('closed form', 1.0)
    """
    if noise not in ("gaussian", "laplace"):
        raise PlanError(f"noise is {noise!r}. Choose 'gaussian' or 'laplace'.")
    by_space = {s: t for s, t in residual_traces(workload).items() if t > 0}
    if not by_space:
        raise PlanError(NO_WEIGHTED_QUERY)
    lattice = lattice_of(workload, list(by_space))
    sorted_space = {workload.schema.ranked(s): t for s, t in by_space.items()}
    traces = np.array([sorted_space.get(s, 0.0) for s in lattice.sets])
    # The traces are scaled to sum 1 for the search; ``scale`` restores the unit of the results.
    traces /= (scale := float(traces.sum()))
    v = closed_form(lattice, traces) if noise == "gaussian" else None
    status = "closed form"
    if v is None:
        v, status = _search_shares(lattice, traces, noise, restarts, np.random.default_rng(seed))
    v = _without_negligible(lattice, traces, v, noise)
    f = lattice.precision(v)
    has_queries = traces > 0
    error, bound = float(np.sum(traces[has_queries] / f[has_queries])), None
    if noise == "gaussian":
        # With the error E(v), a convex function, E^2 / max(-dE/dv) is a lower bound for every v
        # with sum 1.  ``slopes`` are the -dE/dv.
        slopes = lattice.apply_transpose(
            np.divide(traces, f**2, out=np.zeros_like(f), where=has_queries)
        )
        bound = scale * error**2 / float(slopes.max())
    shares = v if noise == "gaussian" else np.sqrt(v)
    return MarginalStrategy(
        noise=noise,
        shares={s: float(x) for s, x in zip(lattice.sets, shares, strict=True) if x > 0},
        precision={s: float(x) for s, x in zip(lattice.sets, f, strict=True) if x > 0},
        squared_error=scale * error * (1.0 if noise == "gaussian" else 2.0),
        bound=bound,
        status=status,
    )


def _search_shares(
    lattice: Lattice, traces: Array, noise: str, restarts: int, rng: np.random.Generator
) -> tuple[Array, str]:
    """Search for the marginal weights v with the smallest error.

    Gaussian noise needs one start, because the problem is convex.  Laplace noise has several
    starts.

    Returns
    -------
    v : shape (sets,), not scaled.
    status : number of steps of the best search, as text such as "12 steps".
    """
    import scipy.optimize

    count = len(traces)
    guess = np.maximum(_unconstrained_shares(lattice, traces), 0.0)
    # The variables of the search are theta = sqrt(v), so that v is at least 0.
    starts = [np.sqrt(guess / guess.sum() + 1e-4 / count)]
    if noise == "laplace":
        # All entries of a start are positive. At theta_A = 0 the derivative of the error with
        # respect to theta_A is positive, so the search would never raise theta_A.
        random_starts = [rng.random(count) for _ in range(max(1, restarts))]
        starts.append((traces > 0) + 1e-2)
        # every second random start is scaled to sum 1
        starts += [s if k % 2 else s / s.sum() for k, s in enumerate(random_starts)]
    best, value, status = starts[0], math.inf, ""
    for theta in starts:
        result = scipy.optimize.minimize(
            marginal_objective,
            theta,
            args=(lattice, traces, noise),
            jac=True,
            method="L-BFGS-B",
            # For Gaussian noise the error does not depend on the sign of theta.  A bound
            # theta >= 0 could keep entries at 0.
            bounds=[(0.0, None)] * count if noise == "laplace" else None,
            options={
                "maxcor": 15,
                "maxiter": MARGINALS_MAX_ITERATIONS,
                "maxfun": 2 * MARGINALS_MAX_ITERATIONS,
                "ftol": 1e-13,
                "gtol": 0.0,
            },
        )
        if result.fun < value:
            best, value, status = result.x, float(result.fun), f"{result.nit} steps"
    return best**2, status


def _without_negligible(lattice: Lattice, traces: Array, v: Array, noise: str) -> Array:
    """Set negligible marginal weights v to 0, and return the weights scaled to sensitivity 1.

    No weight is set to 0 if that would increase the error by more than a rounding error.
    """
    is_gaussian = noise == "gaussian"

    def normalize(weights: Array) -> Array:
        """Return the weights scaled to sensitivity 1."""
        squared_sensitivity = weights.sum() if is_gaussian else np.sqrt(weights).sum() ** 2
        return np.asarray(weights / squared_sensitivity)

    def error(weights: Array) -> float:
        """Return the sum over residual spaces B of t_B / f_B."""
        f = lattice.precision(weights)[traces > 0]
        return float(np.sum(traces[traces > 0] / f)) if (f > 0).all() else math.inf

    all_weights = normalize(v)
    budget_of_marginals = v if is_gaussian else np.sqrt(v)
    # Marginals with less than ``threshold`` times the largest budget are left out. The largest
    # threshold is tried first, because it leaves out the most marginals.
    for threshold in (1e-4, 1e-6, MIN_SHARE):
        is_measured = budget_of_marginals >= threshold * budget_of_marginals.max()
        weights = normalize(np.where(is_measured, v, 0.0))
        if error(weights) <= error(all_weights) * (1.0 + 1e-9):
            return weights
    return all_weights


NOISES = ("gaussian", "laplace")
# Variance of the noise at unit budget and sensitivity 1.
UNIT_VARIANCE = {"gaussian": 1.0, "laplace": 2.0}
# OPT_0 applies if the table on all attributes of the workload has at most this number of cells.
MAX_EXPLICIT_CELLS = 512
# OPT_plus tries to merge at most this number of pairs of clusters.
MAX_MERGE_TRIALS = 24
# OPT_plus merges no clusters if there are more than this number of clusters.
MAX_MERGE_CLUSTERS = 100


@dataclass(frozen=True, kw_only=True, eq=False)
class HDMMStrategy:
    """Strategy that one operator (strategy search) returns.

    Attributes
    ----------
    noise : "gaussian" or "laplace".
    operator : name of the operator, a colon and a description of the strategy.
    components : strategies on tables, with shares of the budget for which the total sensitivity is
        1.
    squared_error : sum over queries of weight times variance at unit budget, in counts^2.
    bound : lower bound on the squared error of all strategies of the operator; None if unknown.
    marginals : result of OPT_marginals; None for other operators.  OPT_marginals estimates every
        group from all components, so its components list no groups.
    joint : if True, the joint privacy cost of the components is charged, see `Plan.joint`.  If
        False, the sum of their costs is charged.
    """

    noise: str
    operator: str
    components: tuple[Component, ...]
    squared_error: float
    bound: float | None = None
    marginals: MarginalStrategy | None = None
    joint: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class OperatorChoice:
    """Result of `best_of`.

    Attributes
    ----------
    best : strategy with the smallest squared error.  On more than `MAX_FREE_CELLS` cells, the
        compared error includes the rounding of answers to a grid.
    errors : mapping from operator to squared error, for the operators that returned a strategy.
    refused : mapping from operator to the reason, for all other operators.
    """

    best: HDMMStrategy
    errors: Mapping[str, float]
    refused: Mapping[str, str]


def budget_shares(errors: Sequence[float], noise: str) -> tuple[Array, float]:
    """Return the optimal budget shares of components, shape (components,), and the total error.

    ``errors`` are the squared errors E of the components, each at unit budget.

    - Gaussian noise: shares are proportional to E^(1/2); the total error is (sum of E^(1/2))^2.
    - Laplace noise: shares are proportional to E^(1/3); the total error is (sum of E^(1/3))^3.

    Source: HDMM, definition 19.

    >>> shares, error = budget_shares([4.0, 16.0], "gaussian")
    >>> shares.round(3), error
    (array([0.333, 0.667]), 36.0)
    """
    # The error of a component is E / share (Gaussian) or E / share^2 (Laplace).  At the smallest
    # sum of errors, the derivatives with respect to all shares are equal.
    power = 2 if noise == "gaussian" else 3
    roots = np.asarray(errors, dtype=float) ** (1.0 / power)
    return roots / roots.sum(), float(roots.sum()) ** power


def plus_strategy(
    builder: GramBuilder, clusters: Sequence[Sequence[int]], solver: KroneckerSolver, operator: str
) -> HDMMStrategy:
    """Return one product strategy per cluster of groups, with optimal budget shares (OPT_plus).

    The product strategy of a cluster answers its groups.  With one cluster, the result is that of
    OPT_kron.

    Parameters
    ----------
    clusters : group numbers of every cluster.
    operator : name and description of the operator, for the result.

    Raises
    ------
    NotApplicable
        If a unit (set of attributes with one strategy matrix) has too many cells.

    Source: HDMM, definitions 18 and 19.
    """
    problems = [builder.build(c) for c in clusters]
    return _solve_problems(builder, problems, solver, operator)


def _solve_problems(
    builder: GramBuilder, problems: Sequence[ProductGrams], solver: KroneckerSolver, operator: str
) -> HDMMStrategy:
    """Return one product strategy per problem, with optimal shares of the budget.

    All shares are raised by one factor if the joint privacy cost of the strategies is smaller than
    the sum of their costs.
    """
    solved = [solver.solve(p) for p in problems]
    shares, error = budget_shares([s.squared_error for s in solved], solver.noise)
    components = tuple(
        product_component(builder.workload, problem, strategy, share)
        for problem, strategy, share in zip(problems, solved, shares.tolist(), strict=True)
    )
    # the joint privacy cost of the components, divided by the sum of their separate costs
    ratio = joint_share([(c.attributes, c.factors, c.share) for c in components], solver.noise)
    joint = ratio < 1.0 - MIN_JOINT_SAVING
    if joint:
        components = tuple(replace(c, share=c.share / ratio) for c in components)
        # All shares were divided by ``ratio``. Variances are proportional to 1 / pcost (Gaussian)
        # or 1 / epsilon^2 (Laplace).
        error *= ratio if solver.noise == "gaussian" else ratio**2
    return HDMMStrategy(
        noise=solver.noise,
        operator=operator,
        components=components,
        squared_error=error * UNIT_VARIANCE[solver.noise],
        joint=joint,
    )


def merge_clusters(
    builder: GramBuilder, clusters: Sequence[Sequence[int]], solver: KroneckerSolver
) -> list[tuple[int, ...]]:
    """Return the clusters of groups after merging pairs whose merger lowers the squared error.

    Pairs are tried in ascending order of `_table_growth`.  At most `MAX_MERGE_TRIALS` pairs are
    tried, and none after the deadline of the solver.

    Raises
    ------
    NotApplicable
        If a unit (set of attributes with one strategy matrix) of a merged cluster has too many
        cells.
    """
    trials_left = MAX_MERGE_TRIALS
    current = [tuple(sorted(cluster)) for cluster in clusters]
    errors = {cluster: solver.solve(builder.build(cluster)).squared_error for cluster in current}

    def total_error(candidate: Sequence[tuple[int, ...]]) -> float:
        """Return the squared error of clusters at the optimal budget shares."""
        return budget_shares([errors[cluster] for cluster in candidate], solver.noise)[1]

    growth = partial(_table_growth, builder.workload)
    # A search on a small table is fast, so pairs that enlarge their tables least are tried first.
    queue = sorted(itertools.combinations(current, 2), key=growth)
    while queue and trials_left > 0 and planning_time() < solver.deadline:
        first, second = queue.pop(0)
        merged, trials_left = tuple(sorted(first + second)), trials_left - 1
        errors[merged] = solver.solve(builder.build(merged)).squared_error
        others = [cluster for cluster in current if cluster not in (first, second)]
        # a relative decrease of less than 1e-9 could be a rounding error
        if total_error([*others, merged]) < total_error(current) * (1.0 - 1e-9):
            remaining = [pair for pair in queue if first not in pair and second not in pair]
            queue = sorted(remaining + [(cluster, merged) for cluster in others], key=growth)
            current = [*others, merged]
    return current


def _table_growth(
    workload: Workload, pair: tuple[tuple[int, ...], tuple[int, ...]]
) -> tuple[float, int]:
    """Return by how much merging two clusters enlarges their tables, as a sort key.

    Returns
    -------
    growth : number of cells of the merged table divided by the number of cells of the larger of
        the two tables.
    cells : number of cells of the merged table, which has the attributes of both clusters.
    """
    first, second = (
        {name for number in cluster for name in workload.groups[number].attributes}
        for cluster in pair
    )
    first_cells = math.prod(workload.schema.sizes(first))
    second_cells = math.prod(workload.schema.sizes(second))
    merged_cells = math.prod(workload.schema.sizes(first | second))
    return merged_cells / max(first_cells, second_cells), merged_cells


def planned_problems(workload: Workload, operator: str = "best") -> list[ProductGrams]:
    """Return the product strategy problems that HDMM is expected to solve, for forecasts.

    The result has the problem of all groups.  Unless ``operator`` is "OPT_kron", it also has one
    problem per cluster of OPT_plus, and one per pair of clusters that OPT_plus would first try to
    merge, for `MAX_MERGE_TRIALS` pairs.

    Raises
    ------
    NotApplicable
        If a unit (set of attributes with one strategy matrix) has too many cells.
    """
    builder, problems = GramBuilder(workload), dict[Any, ProductGrams]()
    class_of_group = {
        int(number): index
        for index, group_class in enumerate(workload.group_classes)
        for number in group_class.numbers
    }
    cluster_keys = set[Any]()

    def add(cluster: Sequence[int]) -> None:
        """Add the problem of a cluster of groups, unless an equal problem is listed."""
        # Clusters that differ only in the names of attributes have equal problems.  Numbers in
        # order of occurrence replace the names, so that each problem is built once.
        attribute_numbers: dict[str, int] = {}
        cluster_key = []
        for number in cluster:
            attributes = tuple(
                attribute_numbers.setdefault(name, len(attribute_numbers))
                for name in workload.groups[number].attributes
            )
            cluster_key.append((class_of_group[number], attributes))
        if tuple(cluster_key) not in cluster_keys:
            cluster_keys.add(tuple(cluster_key))
            problem = builder.build(cluster)
            problems[problem.key] = problem

    add(weighted_groups(workload))
    if operator == "OPT_kron":
        return list(problems.values())
    sets, maximal = by_sets(workload), by_maximal_sets(workload)
    for cluster in (*sets, *maximal):
        add(cluster)
    if 1 < len(maximal) <= MAX_MERGE_CLUSTERS:
        pairs = itertools.combinations((tuple(sorted(c)) for c in maximal), 2)
        for first, second in heapq.nsmallest(
            MAX_MERGE_TRIALS, pairs, key=partial(_table_growth, workload)
        ):
            add(tuple(sorted(first + second)))
    return list(problems.values())


def _explicit(builder: GramBuilder, solver: KroneckerSolver) -> HDMMStrategy:
    """Return the strategy of OPT_0: one dense matrix on all cells."""
    workload = builder.workload
    groups = weighted_groups(workload)
    names = workload.schema.ranked(
        {name for number in groups for name in workload.groups[number].attributes}
    )
    cells = math.prod(workload.schema.sizes(names))
    if cells > MAX_EXPLICIT_CELLS:
        raise NotApplicable(
            f"The attributes of the workload have {cells:,} cells together, but OPT_0 allows at"
            f" most {MAX_EXPLICIT_CELLS}. Choose another operator, or coarser attributes."
        )
    problem = builder.build(groups, units=(names,) if names else ())
    strategy = _solve_problems(
        builder, [problem], solver, "OPT_0: one explicit strategy on all cells"
    )
    bound = None
    if solver.noise == "gaussian" and names:
        # The result of `solve` is cached.  Rounding errors could raise the bound above the error.
        bound = min(
            strategy.squared_error, float(getattr(solver.solve(problem).factors[0], "bound", 0.0))
        )
    return replace(strategy, bound=bound)


def _kron(builder: GramBuilder, solver: KroneckerSolver) -> HDMMStrategy:
    """Return the strategy of OPT_kron: one product strategy for all groups."""
    return plus_strategy(
        builder, [weighted_groups(builder.workload)], solver, "OPT_kron: one product strategy"
    )


def _plus(builder: GramBuilder, solver: KroneckerSolver) -> HDMMStrategy:
    """Return the strategy of OPT_plus: one product strategy per cluster of groups.

    Of several clusterings, the one with the smallest squared error is returned.
    """
    strategies, reasons = list[HDMMStrategy](), list[NotApplicable]()
    sets = by_sets(builder.workload)
    trials = {"a product strategy for every set of attributes": sets}
    # The first clustering has one cluster per attribute set.  The second clustering has one cluster
    # per set that no other set contains; groups on smaller sets are put into these clusters.
    maximal = by_maximal_sets(builder.workload)
    if len(maximal) < len(sets):
        trials["a product strategy for every largest set of attributes"] = maximal
    for description, clusters in trials.items():
        if solver.deadline < planning_time() and strategies:
            break
        try:
            strategies.append(plus_strategy(builder, clusters, solver, f"OPT_plus: {description}"))
        except NotApplicable as refusal:
            reasons.append(refusal)
    if not strategies:
        raise reasons[0]
    best = min(strategies, key=lambda s: s.squared_error)
    if 1 < len(best.components) <= MAX_MERGE_CLUSTERS:
        try:
            fewer = merge_clusters(builder, [c.groups for c in best.components], solver)
        # A merged cluster may need a dense strategy on too many cells.
        except NotApplicable:
            return best
        if len(fewer) < len(best.components):
            description = (
                f"a product strategy for each of {len(fewer)} clusters of groups, merged by search"
            )
            # `merge_clusters` assumes that the privacy costs of clusters add up.  The joint cost of
            # all clusters can be lower than the sum.  So merging may increase the error.
            best = min(
                plus_strategy(builder, fewer, solver, f"OPT_plus: {description}"),
                best,
                key=lambda s: s.squared_error,
            )
    return best


def _marginals(builder: GramBuilder, solver: KroneckerSolver) -> HDMMStrategy:
    """Return the strategy of OPT_marginals: weighted marginals."""
    strategy = marginal_strategy(
        builder.workload, solver.noise, restarts=max(4, solver.restarts), seed=solver.seed
    )
    schema = builder.workload.schema
    components = tuple(
        Component(
            attributes=names,
            factors=tuple(((i,), identity_strategy(n)) for i, n in enumerate(schema.sizes(names))),
            share=share,
            groups=(),
        )
        for names, share in strategy.shares.items()
    )
    return HDMMStrategy(
        noise=strategy.noise,
        operator="OPT_marginals: weighted marginals, answered together",
        components=components,
        squared_error=strategy.squared_error,
        bound=strategy.bound,
        marginals=strategy,
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
    max_records: int = MAX_RECORDS,
) -> OperatorChoice:
    """Return the strategy with the smallest squared error of several operators (OPT_HDMM).

    The components of each strategy have total sensitivity 1.

    Parameters
    ----------
    noise : "gaussian" or "laplace".
    operators : names of ``OPERATORS``.
    restarts : number of starts of searches that may end in local optima.
    seed : seed of the random starts; equal seeds give equal strategies, unless the deadline ends a
        search.
    gap : relative RMSE gap at which the search on one unit (see ``max_cells``) stops.
    max_cells : largest number of cells of a unit (set of attributes with one strategy matrix).
    deadline : time at which the search stops, on the clock of `planning_time`.
    tell : progress callback with a text, called before every search; it may raise to cancel.  None
        for no reports.
    max_records : public upper bound on the number of records.  On tables of more than
        `MAX_FREE_CELLS` cells, the compared errors include the rounding of answers to a grid, which
        depends on this number.

    Raises
    ------
    NotApplicable
        If no operator returns a strategy, with the reason of every operator.
    PlanError
        For an unknown noise or operator, for no operator, or if no query of positive weight has a
        coefficient other than 0.

    Source: HDMM, section 9.

    >>> from engine import Attribute, Schema
    >>> schema = Schema([Attribute.of_size("a", 8), Attribute.of_size("b", 9)])
    >>> choice = best_of(Workload(schema).add("a").add("b"))
    >>> choice.best.operator
    'OPT_0: one explicit strategy on all cells'
    """
    if noise not in NOISES:
        raise PlanError(f"noise is {noise!r}. Choose one of {', '.join(NOISES)}.")
    unknown = [o for o in operators if o not in OPERATORS]
    if unknown or not operators:
        raise PlanError(
            f"operators has {', '.join(map(repr, unknown)) or 'no entry'}. Give one or more of"
            f" {', '.join(OPERATORS)}."
        )
    if not weighted_groups(workload):
        raise PlanError(NO_WEIGHTED_QUERY)
    builder = GramBuilder(workload, max_cells)
    solver = KroneckerSolver(
        noise, restarts=restarts, seed=seed, gap=gap, deadline=deadline, tell=tell
    )
    strategies: dict[str, HDMMStrategy] = {}
    refused: dict[str, str] = {}
    for operator in operators:
        if tell is not None:
            tell(operator)
        # The deadline cannot stop the computation of the first strategy of an operator.  So the
        # operator is skipped if this computation is expected to exceed the remaining time.
        seconds = _start_seconds(builder) if operator in ("OPT_kron", "OPT_plus") else 0.0
        if seconds > max(MIN_REFUSED_SECONDS, deadline - planning_time()):
            refused[operator] = (
                f"A strategy takes about {math.ceil(seconds):,} s even without a search, more than"
                " the time limit leaves. Raise time_limit, or merge cells into coarser ones."
            )
            continue
        # After the deadline OPT_plus would still search a first strategy for every cluster.
        if operator == "OPT_plus" and strategies and planning_time() > deadline:
            refused[operator] = "The time limit ended the search before this operator."
            continue
        try:
            strategies[operator] = OPERATORS[operator](builder, solver)
        except (NotApplicable, LimitExceeded) as refusal:
            refused[operator] = str(refusal)
    if not strategies:
        raise NotApplicable(
            " ".join(f"{operator}: {reason}" for operator, reason in refused.items())
        )
    best = min(strategies.values(), key=lambda s: s.squared_error * _rounding_ratio(s, max_records))
    return OperatorChoice(
        best=best, errors={o: s.squared_error for o, s in strategies.items()}, refused=refused
    )


# Answers are rounded to a grid, which adds noise.  The added noise grows with the square root of
# the number of cells.  Up to this number of cells it is ignored, because it changes the RMSE by
# less than 0.01%.
MAX_FREE_CELLS = 2**30


def _rounding_ratio(strategy: HDMMStrategy, max_records: int) -> float:
    """Return the factor by which rounding answers to a grid raises the error at unit budget.

    The result is 1 if no component has more than `MAX_FREE_CELLS` cells.  It is infinite if no
    noise scale on a grid satisfies the budget.
    """
    cells = max(math.prod(f.cells for _, f in c.factors) for c in strategy.components)
    if cells <= MAX_FREE_CELLS:
        return 1.0
    is_gaussian = strategy.noise == "gaussian"
    budget = Budget(pcost=1.0) if is_gaussian else Budget.pure(1.0)
    try:
        blocks = component_blocks(strategy.components, budget, max_records, strategy.joint)
    except PlanError:
        return math.inf
    # `calibrate` raises the noise of all components by one factor, which is read off the first.
    share = strategy.components[0].share
    without_rounding = UNIT_VARIANCE[strategy.noise] / (share if is_gaussian else share**2)
    return blocks[component_key(0)].noise ** 2 / without_rounding


def _start_seconds(builder: GramBuilder) -> float:
    """Return the expected time of computing a first product strategy for all groups, in seconds.

    The time of search steps is not included.  The result is 0 if product strategies do not apply.
    """
    try:
        problem = builder.build(weighted_groups(builder.workload))
    except NotApplicable:
        return 0.0
    return math.fsum(
        dense_start_seconds(unit[0].cells, sum(part.count for g in unit for _, part in g.parts))
        for unit in problem.grams
    )


# For forecasts: planning time per group without strategy searches, in seconds; and the largest
# number of groups for which the searches of all clusters are forecast one by one.
SECONDS_PER_GROUP, MAX_LISTED_GROUPS = 5.5e-4, 2_000
# The reported progress approaches 1 and is 0.5 after this number of searches, because their total
# number is unknown until the end.
PROGRESS_HALF_CALLS = 60


@dataclass(frozen=True, kw_only=True)
class HDMM(ExplicitMechanism):
    """HDMM: the strategy with the smallest squared error of several searches (operators).

    Options
    -------
    operator : "best" for all, or one of OPT_0, OPT_kron, OPT_plus, OPT_marginals.
    restarts : number of starts of searches that may end in local optima.
    seed : seed of the searches; without a time limit, equal seeds give equal plans.  The seed is
        unrelated to the noise of a release.
    """

    name: ClassVar[str] = "hdmm"
    title: ClassVar[str] = "HDMM"
    meaning: ClassVar[str] = (
        "The best of product, clustered and marginal strategies on whole tables, by search."
    )
    closed_form: ClassVar[bool] = True

    operator: str = "best"
    restarts: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(
            "option operator", self.operator, ("best", *OPERATORS), error=PlanError, public=True
        )
        for name in ("restarts", "seed"):
            value = getattr(self, name)
            if not is_integer(value) or not 0 <= value < 2**31:
                raise PlanError(f"{name} is {value!r}. Give an integer from 0 to 2^31 - 1.")

    def forecast(self, workload: Workload, limits: Limits) -> Forecast:
        """Predict the time of the searches, and the memory."""
        base = super().forecast(workload, limits)
        sizes = workload.schema.sizes(used_attributes(workload))
        # Time of the eigenvalue problems of `quick_bound` on attributes that are not wide.
        # Attributes of equal size are counted once, because attributes with equal queries share the
        # problems. `quick_bound` solves fewer problems on more than `MAX_EXACT_CELLS` cells. The
        # factors of n^3 are measured seconds.
        narrow = {n for n in sizes if not is_wide(n)}
        seconds = (
            0.05
            + SECONDS_PER_GROUP * len(workload.groups)
            + math.fsum((1.5e-8 if n <= MAX_EXACT_CELLS else 1e-9) * n**3 for n in narrow)
        )
        seconds += unit_seconds(cells) if (cells := math.prod(sizes)) <= MAX_EXPLICIT_CELLS else 0.0
        if len(workload.groups) > MAX_LISTED_GROUPS:
            # For many groups the forecast counts one OPT_kron search per attribute, because these
            # searches take most of the time.
            sweeps = EXPECTED_SWEEPS * max(1, self.restarts)
            seconds += sweeps * math.fsum(map(unit_seconds, sizes))
            return replace(base, seconds=seconds, text=self._text)
        # If product strategies do not apply, only the other operators take time.
        with contextlib.suppress(NotApplicable):
            problems = planned_problems(workload, self.operator)
            seconds += math.fsum(search_seconds(problem, self.restarts) for problem in problems)
        return replace(base, seconds=seconds, text=self._text)

    @property
    def _text(self) -> str:
        return f"{len(OPERATORS)} operators, {self.restarts} restarts"

    def design(
        self, workload: Workload, law: str, limits: Limits, bases: tuple[Array, ...]
    ) -> Design:
        """Return the components of the best strategy, from a search or from stored arrays."""
        if not bases:
            bases = self._run_operators(workload, law, limits).arrays(workload.schema)
        design = Design.from_arrays(bases, workload, law)
        return replace(
            design,
            components=(
                design.components
                if design.full_tables
                else _assign_unweighted(workload, design.components)
            ),
            statement=f"The strategy is the result of {list(OPERATORS)[design.origin]}.",
        )

    def _run_operators(self, workload: Workload, law: str, limits: Limits) -> Design:
        """Run all selected operators, and return the components of the best strategy."""
        operators = tuple(OPERATORS) if self.operator == "best" else (self.operator,)
        n_calls = 0

        def tell(text: str) -> None:
            nonlocal n_calls
            n_calls += 1
            limits.tell(1.0 - 0.5 ** (n_calls / PROGRESS_HALF_CALLS), f"Searching: {text}")

        # The search gets four fifths of the time limit, because the plan is assembled after it.
        deadline = (
            limits.deadline()
            if limits.time_limit is None
            else planning_time() + 0.8 * limits.time_limit
        )
        best = best_of(
            workload,
            law,
            operators=operators,
            restarts=self.restarts,
            seed=self.seed,
            deadline=deadline,
            tell=tell,
            max_records=self.max_records,
        ).best
        return Design(
            components=best.components,
            full_tables=best.marginals is not None,
            # the index of the operator, for the statement about the search
            origin=list(OPERATORS).index(best.operator.split(":")[0]),
            joint=best.joint,
        )


def _assign_unweighted(
    workload: Workload, components: Sequence[Component]
) -> tuple[Component, ...]:
    """Assign every group of weight 0 to the first component that has all of its attributes.

    The search ignored these groups.  If no component has all attributes of a group, the group
    remains without a component.
    """
    answered = {number for component in components for number in component.groups}
    extra_groups: list[list[int]] = [[] for _ in components]
    for number, group in enumerate(workload.groups):
        if number in answered:
            continue
        for component, extra in zip(components, extra_groups, strict=True):
            if set(group.attributes) <= set(component.attributes):
                extra.append(number)
                break
    return tuple(
        replace(component, groups=(*component.groups, *extra))
        for component, extra in zip(components, extra_groups, strict=True)
    )
