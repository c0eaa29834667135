"""HDMM: the strategy searches OPT_0, OPT_kron, OPT_plus and OPT_marginals.

OPT_marginals: strategies that measure weighted marginals on sets of attributes.

Notation
--------
weights         theta   theta_A on the marginal on A, with L2 sensitivity^2 sum theta_A^2, L1 sensitivity sum theta_A
share           v       v_A = theta_A^2
traces          t_B     squared norm of what the workload asks of residual space B: trace of its class Gram, counts^2
precision       f_B     sum over A containing B of v_A / (product of n_i over A less B)

M^T M has the eigenvalue f_B * (product of n_i outside B) on residual space B, and a query's piece on B is constant
along the attributes outside, so the squared error is sum_B t_B / f_B whatever the size of the domain.  With v as
variables the Gaussian problem is convex, and a derivative gives a lower bound: E(v)^2 / max_A of -dE/dv_A, sum v = 1.

Source: HDMM, sections 7 and 8; the form by residual spaces and the bound are our own.

HDMM: search several kinds of strategies for a workload and keep the best.

    OPT_0           one explicit strategy on all cells of the asked attributes, when there are few
    OPT_kron        one product of small strategies; see `engine.mechanisms.kronecker`
    OPT_plus        the groups in clusters, a product strategy for each, the budget shared in closed form
    OPT_marginals   weighted marginals; see `engine.mechanisms.hdmm`

Everything here is a pure function of the workload and a seed: no data, no budget, no noise.  Squared errors are those
at unit budget: pcost 1 for Gaussian noise, epsilon 1 for Laplace noise, whose variance is 2 / epsilon^2.

Source: McKenna, Miklau, Hay and Machanavajjhala, "HDMM: Optimizing error of high-dimensional statistical queries under
differential privacy", 2023.

HDMM: the best of explicit, product, clustered and marginal strategies found by search.

Source: McKenna, Miklau, Hay and Machanavajjhala, "HDMM", 2023; the searches are in `engine.mechanisms.hdmm`.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np

from engine._arrays import Array
from engine._validation import one_of
from engine.errors import LimitExceeded, NotApplicable, PlanError
from engine.mechanisms.base import Forecast, Limits
from engine.mechanisms.kronecker import (
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
from engine.mechanisms.table_mechanism import Design, ExplicitMechanism, asked_attributes, identity_strategy
from engine.plans.table_plan import Component
from engine.residuals import Space
from engine.residuals.decomposition import decompose
from engine.workload import Workload, subsets

FULL = 14  # with this many attributes and fewer all subsets may be measured
MAX_SETS = 50_000
MARGINALS_MAX_ITERATIONS = 3000
NEGLIGIBLE = 1e-9  # shares below this part of the whole are not measured


@dataclass(frozen=True, kw_only=True, eq=False)
class MarginalStrategy:
    """Weighted marginals, answered by least squares over all of them together.

    Attributes
    ----------
    noise : "gaussian" or "laplace".
    shares : set of attributes -> share of the budget: theta^2 of the pcost (Gaussian), theta of epsilon (Laplace).
    precision : residual space -> f_B at budget 1; a class row c of space B has variance |c|^2 / f_B (twice that for
        Laplace noise).
    squared_error : weighted, in counts^2, at pcost 1 or epsilon 1.
    bound : no marginal strategy has a smaller squared error; None for Laplace noise.
    status : how the search ended, in words.
    """

    noise: str
    shares: Mapping[Space, float]
    precision: Mapping[Space, float]
    squared_error: float
    bound: float | None
    status: str


def residual_traces(workload: Workload) -> dict[Space, float]:
    """Return t_B for every residual space that a weighted query touches, in counts^2.

    Every workload is equivalent to one of weighted marginals as far as marginal strategies go.
    Source: HDMM, theorem 10.

    >>> from engine.workload import Attribute, Schema
    >>> found = residual_traces(Workload(Schema([Attribute.of_size("a", 4)])).add("a", "marginal"))
    >>> {space: round(t, 9) for space, t in found.items()}
    {(): 0.25, ('a',): 3.0}
    """
    parts, out = decompose(workload), {}
    for space, (number, scale) in parts.spaces.items():
        total = math.fsum(
            term.coefficient * math.prod(parts.factors[k].trace for _, k in term.factors)
            for term in parts.subworkloads[number].terms
        )
        out[space] = scale * total
    return out


class Lattice:
    """Sets of attributes, and the sums over the sets that contain another.

    Parameters
    ----------
    sizes : attribute -> domain size, in the order of the schema.
    sets : the sets; they must hold every subset of each of them.
    """

    def __init__(self, sizes: Mapping[str, int], sets: Sequence[Space]) -> None:
        import scipy.sparse

        self.sets, self.sizes = tuple(sets), dict(sizes)
        number = {s: i for i, s in enumerate(self.sets)}
        self.full = len(self.sets) == 2 ** len(self.sizes)
        if self.full:  # along one attribute at a time
            names = list(self.sizes)
            bits = [[int(name in s) for name in names] for s in self.sets]
            self.position = np.array([int("".join(map(str, b)) or "0", 2) for b in bits])
            return
        rows, columns, values = [], [], []
        for a, s in enumerate(self.sets):
            for inner in subsets(s):
                rows.append(number[inner])
                columns.append(a)
                values.append(1.0 / math.prod(self.sizes[x] for x in s if x not in inner))
        self.matrix = scipy.sparse.csr_matrix((values, (rows, columns)), shape=(len(self.sets),) * 2)

    def precision(self, v: Array) -> Array:
        """Return f, shape (sets,)."""
        return self._along(v, forward=True) if self.full else np.asarray(self.matrix @ v)

    def transposed(self, by_precision: Array) -> Array:
        """Return the derivative by v of what has this derivative by f. Shape (sets,), as given."""
        return self._along(by_precision, forward=False) if self.full else np.asarray(self.matrix.T @ by_precision)

    def inverse(self, f: Array) -> Array:
        """Return v with precision(v) = f; it may be negative. Shape (sets,), as given."""
        import scipy.sparse.linalg

        if not self.full:
            return np.asarray(scipy.sparse.linalg.spsolve(self.matrix.tocsc(), f))
        return self._along(f, forward=True, sign=-1.0)

    def _along(self, values: Array, *, forward: bool, sign: float = 1.0) -> Array:
        table = np.zeros(len(self.sets))
        table[self.position] = values
        table = table.reshape((2,) * len(self.sizes))
        # sums over all sets that hold a set are a Kronecker product of 2 x 2 matrices: d 2^d steps in place of 3^d
        for axis, n in enumerate(self.sizes.values()):
            out, inn = (np.take(table, side, axis=axis) for side in (0, 1))
            pair = (out + sign * inn / n, inn) if forward else (out, inn + sign * out / n)
            table = np.stack(pair, axis=axis)
        return np.asarray(table.ravel()[self.position])


def lattice_of(workload: Workload, spaces: Sequence[Space]) -> Lattice:
    """Return the sets that may be measured: all subsets of few attributes, else the subsets of the groups' sets.

    Raises: NotApplicable if there are more than 50,000.
    """
    touched = {a for s in spaces for a in s}
    sizes = {a.name: a.size for a in workload.schema.attributes if a.name in touched}
    if len(sizes) <= FULL:
        names = list(sizes)
        return Lattice(sizes, list(subsets(names)))
    closed: set[Space] = {()}
    # the largest first: what it holds needs no look
    for space in sorted(spaces, key=len, reverse=True):
        members = workload.schema.ranked(space)
        if members in closed:
            continue
        if len(members) <= FULL:
            closed.update(subsets(members))
        if len(members) > FULL or len(closed) > MAX_SETS:
            raise NotApplicable(
                f"The subsets of the asked attribute sets are more than {MAX_SETS:,}, too many to weigh one by one. "
                "Ask for smaller groups, or choose querysmasher."
            )
    return Lattice(sizes, sorted(closed, key=lambda s: (len(s), s)))


def closed_form(lattice: Lattice, traces: Array) -> Array | None:
    """Return the optimal v for Gaussian noise, sum 1, or None where it would be negative.

    Traces and result have shape (sets,).

    Guarantee: if it is given, its squared error is `marginal_svd_bound`.  Source: HDMM, theorem 13.
    """
    v = _formula(lattice, traces)
    if (v < -1e-12 * np.abs(v).max()).any():
        return None
    v = np.maximum(v, 0.0)
    return np.asarray(v / v.sum())


def _formula(lattice: Lattice, traces: Array) -> Array:
    freedom, cells = _counts(lattice)
    return lattice.inverse(np.sqrt(traces * cells / freedom))


def _counts(lattice: Lattice) -> tuple[Array, Array]:
    """Return for every set the product of n - 1 and the product of n."""
    freedom = [math.prod(float(lattice.sizes[a] - 1) for a in s) for s in lattice.sets]
    cells = [math.prod(float(lattice.sizes[a]) for a in s) for s in lattice.sets]
    return np.array(freedom), np.array(cells)


def marginal_svd_bound(lattice: Lattice, traces: Array) -> float:
    """Return the SVD bound of the marginal approximation of a workload, in counts^2 at pcost 1.

    ``traces`` has shape (sets,).
    For a workload of marginals it bounds every matrix mechanism, otherwise every marginal strategy.  An eigenvalue has
    the multiplicity product of n - 1 over its space.
    Source: HDMM, theorem 12.

    >>> marginal_svd_bound(Lattice({"a": 4}, [(), ("a",)]), np.array([0.25, 3.0]))
    4.0
    """
    freedom, cells = _counts(lattice)
    return float(np.sum(np.sqrt(traces * freedom / cells)) ** 2)


def marginal_objective(theta: Array, lattice: Lattice, traces: Array, noise: str) -> tuple[float, Array]:
    """Return log of sensitivity^2 times sum t / f, and its derivative by theta, shape (sets,), theta >= 0."""
    f = lattice.precision(theta**2)
    asked = traces > 0
    if not (f[asked] > 0).all():  # something that is asked would not be measured
        return 1e10, np.zeros_like(theta)
    pieces = np.divide(traces, f, out=np.zeros_like(f), where=asked)
    error = float(pieces.sum())
    by_v = -lattice.transposed(np.divide(pieces, f, out=np.zeros_like(f), where=asked)) / error
    if noise == "gaussian":
        total = float(theta @ theta)
        return math.log(total) + math.log(error), 2.0 * theta * (1.0 / total + by_v)
    total = float(theta.sum())
    return 2.0 * math.log(total) + math.log(error), 2.0 / total + 2.0 * theta * by_v


def marginal_strategy(
    workload: Workload, noise: str = "gaussian", restarts: int = 4, seed: int | np.random.Generator = 0
) -> MarginalStrategy:
    """Return the best weighted marginals for a workload: OPT_marginals.

    Guarantee: the sensitivity at the shares returned is 1, and the error is that of these shares; for Gaussian noise it
    comes with a lower bound.
    Raises: NotApplicable if there are too many sets to measure; PlanError for an unknown noise.
    Source: HDMM, problem 2.

    >>> from engine.workload import Attribute, Schema
    >>> asked = Workload.all_ways(Schema([Attribute.of_size(c, 10) for c in "ab"]), (0, 1, 2), "marginal")
    >>> found = marginal_strategy(asked)
    >>> found.status, round(found.squared_error / found.bound, 9)
    ('closed form', 1.0)
    """
    if noise not in ("gaussian", "laplace"):
        raise PlanError(f"noise was {noise!r}. Choose gaussian or laplace.")
    by_space = {s: t for s, t in residual_traces(workload).items() if t > 0}
    lattice = lattice_of(workload, list(by_space))
    sorted_space = {workload.schema.ranked(s): t for s, t in by_space.items()}
    traces = np.array([sorted_space.get(s, 0.0) for s in lattice.sets])
    traces /= (scale := float(traces.sum()))
    v = closed_form(lattice, traces) if noise == "gaussian" else None
    status = "closed form"
    if v is None:
        v, status = _search(lattice, traces, noise, restarts, np.random.default_rng(seed))
    v = _trimmed(lattice, traces, v, noise)
    f = lattice.precision(v)
    asked = traces > 0
    error, bound = float(np.sum(traces[asked] / f[asked])), None
    if noise == "gaussian":
        slopes = lattice.transposed(np.divide(traces, f**2, out=np.zeros_like(f), where=asked))
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


def _search(lattice: Lattice, traces: Array, noise: str, restarts: int, rng: np.random.Generator) -> tuple[Array, str]:
    """Return the best v of several searches; the Gaussian problem is convex and needs one."""
    import scipy.optimize

    count, asked = len(traces), traces > 0
    guess = np.maximum(_formula(lattice, traces), 0.0)
    starts = [np.sqrt(guess / guess.sum() + 1e-4 / count)]
    if noise == "laplace":
        # theta = 0 is a trap for every single set, so starts that measure everything find more than sparse ones
        dense = [rng.random(count) for _ in range(max(1, restarts))]
        starts += [asked + 1e-2] + [d if k % 2 else d / d.sum() for k, d in enumerate(dense)]
    best, value, status = starts[0], math.inf, ""
    for theta in starts:
        found = scipy.optimize.minimize(
            marginal_objective,
            theta,
            args=(lattice, traces, noise),
            jac=True,
            method="L-BFGS-B",
            # the sign of theta means nothing for Gaussian noise, and a bound would hold a set at 0 for good
            bounds=[(0.0, None)] * count if noise == "laplace" else None,
            options={
                "maxcor": 15,
                "maxiter": MARGINALS_MAX_ITERATIONS,
                "maxfun": 2 * MARGINALS_MAX_ITERATIONS,
                "ftol": 1e-13,
                "gtol": 0.0,
            },
        )
        if found.fun < value:
            best, value, status = found.x, float(found.fun), f"{found.nit} steps"
    return best**2, status


def _trimmed(lattice: Lattice, traces: Array, v: Array, noise: str) -> Array:
    """Return v without negligible shares at sensitivity 1, unless the error would grow."""

    def at_one(values: Array) -> Array:
        return np.asarray(values / (values.sum() if noise == "gaussian" else np.sqrt(values).sum() ** 2))

    def error(values: Array) -> float:
        f = lattice.precision(values)[traces > 0]
        return float(np.sum(traces[traces > 0] / f)) if (f > 0).all() else math.inf

    whole, share = at_one(v), (v if noise == "gaussian" else np.sqrt(v))
    for threshold in (1e-4, 1e-6, NEGLIGIBLE):
        kept = at_one(np.where(share >= threshold * share.max(), v, 0.0))
        if error(kept) <= error(whole) * (1.0 + 1e-9):
            return np.asarray(kept)
    return np.asarray(whole)


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

    >>> from engine.workload import Attribute, Schema
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


LISTED, GROUP_SECONDS = 1_000, 2e-2  # groups up to which a forecast lists all problems; beyond, seconds a group
PROGRESS_HALF_CALLS = 60  # calls of a search after which the progress bar is half full


@dataclass(frozen=True, kw_only=True)
class HDMM(ExplicitMechanism):
    """The best strategy of all operators, with restarts.

    Options
    -------
    operator : "best", or one of OPT_0, OPT_kron, OPT_plus, OPT_marginals.
    restarts : restarts of the searches that can end in local optima.
    seed : of the searches; equal seeds give equal plans.  It has nothing to do with the noise of a release.
    """

    name: ClassVar[str] = "hdmm"
    title: ClassVar[str] = "HDMM"
    meaning: ClassVar[str] = "The best of product, clustered and marginal strategies on whole tables, by search."

    operator: str = "best"
    restarts: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("option operator", self.operator, ("best", *OPERATORS), error=PlanError, public=True)
        for name in ("restarts", "seed"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31:
                raise PlanError(f"{name} was {value!r}. Give a whole number from 0.")

    def forecast(self, workload: Workload, limits: Limits) -> Forecast:
        found = super().forecast(workload, limits)
        sizes = workload.schema.sizes(asked_attributes(workload))
        # the bound of all mechanisms takes an eigenvalue problem of every size
        seconds = 0.05 + 5e-4 * len(workload.groups) + math.fsum(1.5e-8 * n**3 for n in set(sizes))
        seconds += unit_seconds(cells) if (cells := math.prod(sizes)) <= WHOLE else 0.0
        if len(workload.groups) > LISTED:
            return replace(found, seconds=seconds + GROUP_SECONDS * len(workload.groups), text=self._text)
        with contextlib.suppress(NotApplicable):  # the plan then says why, or OPT_marginals remains
            problems = foreseen(workload, self.operator)
            seconds += math.fsum(search_seconds(problem, self.restarts) for problem in problems)
        return replace(found, seconds=seconds, text=self._text)

    @property
    def _text(self) -> str:
        return f"{len(OPERATORS)} operators, {self.restarts} restarts"

    def design(self, workload: Workload, law: str, limits: Limits, found: tuple[Array, ...]) -> Design:
        if not found:
            found = self._search(workload, law, limits).arrays(workload.schema)
        made = Design.from_arrays(found, workload, law)
        return replace(
            made,
            components=made.components if made.whole_tables else _all_answered(workload, made.components),
            statement=f"The strategy was found by {list(OPERATORS)[made.origin]}.",
        )

    def _search(self, workload: Workload, law: str, limits: Limits) -> Design:
        operators = tuple(OPERATORS) if self.operator == "best" else (self.operator,)
        calls = [0]

        def tell(text: str) -> None:
            calls[0] += 1
            limits.tell(1.0 - 0.5 ** (calls[0] / PROGRESS_HALF_CALLS), f"Searching: {text}")

        deadline = limits.deadline() if limits.time_limit is None else time.monotonic() + 0.8 * limits.time_limit
        best = best_of(
            workload, law, operators=operators, restarts=self.restarts, seed=self.seed, deadline=deadline, tell=tell
        ).best
        origin = list(OPERATORS).index(best.operator.split(":")[0])
        return Design(components=best.components, whole_tables=best.joint, origin=origin)


def _all_answered(workload: Workload, components: Sequence[Component]) -> tuple[Component, ...]:
    """Give groups that no component was made for, those without weight, to the first that has their attributes."""
    answered = {g for c in components for g in c.groups}
    more: dict[int, list[int]] = {}
    for number, group in enumerate(workload.groups):
        if number not in answered:
            able = (k for k, c in enumerate(components) if set(group.attributes) <= set(c.attributes))
            if (first := next(able, None)) is not None:
                more.setdefault(first, []).append(number)
    return tuple(replace(c, groups=(*c.groups, *more.get(k, []))) for k, c in enumerate(components))
