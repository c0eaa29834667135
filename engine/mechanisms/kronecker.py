"""Kronecker strategies on whole tables.

A workload as weighted products of small Grams, one factor for every unit of attributes.

A unit is a set of attributes that some group couples: an affine, abs or custom group on two attributes, or weights of
single queries.  Mostly it is one attribute.  A group that leaves a unit out asks its total, whose Gram is 11^T.  The
Gram of group g on the full domain is  w_g G_{1, k_1} (x) ... (x) G_{U, k_U}  and is never built.

Source: HDMM, section 5 and theorem 6.

p-Identity strategies: a weighted identity and p rows more, for Laplace noise on one Gram matrix.

Notation
--------
parameters      Theta  (p, n), 0 or more
strategy rows   A      [I; Theta] D with D = diag(1 + 1^T Theta)^-1, shape (n + p, n): every column has L1 norm 1
Gram            G      W^T W, shape (n, n)
error           tr((A^T A)^-1 G), in counts^2 for noise of variance 1 and sensitivity 1

With s = 1 + 1^T Theta and Y = (I + Theta Theta^T)^-1 Theta the inverse is diag(s) (I - Theta^T Y) diag(s), so error and
gradient need products of p x n with n x n matrices only.

Source: HDMM, definitions 13 and 14.

OPT_0 and OPT_kron: the best strategy for one Gram, and the best product of small strategies for a workload.

The squared error of a product strategy is a sum over groups of products over units, so with all units but one held
fixed it is that of an explicit workload on the one: its Gram is the sum of the unit's Grams, each weighted by what its
groups cost elsewhere.  Units are improved in turn until nothing moves.

Source: HDMM, sections 4.2, 4.3, 6.1 and 6.2 (definition 18, equation 6.2).

One product of strategies on the table of all asked attributes.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy

from engine._arrays import Array
from engine._threads import threads_for
from engine.errors import NotApplicable
from engine.mechanisms.table_mechanism import Design
from engine.plans.table_plan import Component
from engine.residuals import DualProblem, Factor, Options, Space, Strategy, WholeDomain
from engine.residuals.dual_solver import Solution
from engine.workload import Group, Part, Workload, whole_group

MAX_CELLS = 2048  # of one unit: beyond, a dense solve takes minutes and more
TOTAL = ("total",)


@dataclass(frozen=True, kw_only=True, eq=False)
class Gram:
    """A Gram on the cells of one unit, shape (cells, cells), and a hashable identity."""

    key: tuple[Any, ...]
    matrix: Array


@dataclass(frozen=True, kw_only=True, eq=False)
class ProductGrams:
    """Some groups of a workload as products over units.

    Attributes
    ----------
    attributes : every attribute that the groups touch, in schema order.
    units : the attributes of every unit, in schema order; cells are in row-major order of them.
    grams : the distinct Grams of every unit.
    choice : which Gram of every unit a group asks, shape (groups, units).
    weights : weight of every group, shape (groups,).
    groups : numbers of the groups in the workload.
    """

    attributes: Space
    units: tuple[Space, ...]
    grams: tuple[tuple[Gram, ...], ...]
    choice: npt.NDArray[np.int64]
    weights: Array
    groups: tuple[int, ...]

    @property
    def key(self) -> tuple[Any, ...]:
        """Hashable identity of the problem, whatever the attributes are called."""
        grams = tuple(tuple(g.key for g in unit) for unit in self.grams)
        return (grams, self.choice.tobytes(), (self.weights / self.weights.max()).tobytes())

    def costs(self, covariances: Sequence[Array]) -> list[Array]:
        """Return tr(covariance G_k) for every Gram of every unit: its squared error under a strategy, counts^2.

        Covariances have shape (cells of the unit,) * 2, results (Grams of the unit,).
        """
        return [
            np.array([float(np.sum(c * g.matrix)) for g in unit])
            for c, unit in zip(covariances, self.grams, strict=True)
        ]

    def group_costs(self, costs: Sequence[Array]) -> Array:
        """Return the unweighted squared error of every group, shape (groups,): costs multiply over the units."""
        out = np.ones(len(self.weights))
        for u, own in enumerate(costs):
            out = out * own[self.choice[:, u]]
        return out


class GramBuilder:
    """Builds the products of one workload; equal Grams are built once.

    Parameters
    ----------
    workload : the queries.
    max_cells : most cells of a unit.

    >>> from engine.workload import Attribute, Schema
    >>> asked = Workload(Schema([Attribute.of_size(c, 4) for c in "abc"])).add("a", "prefix").add(("c", "b"), "affine")
    >>> GramBuilder(asked).build((0, 1)).units
    (('a',), ('b', 'c'))
    """

    def __init__(self, workload: Workload, max_cells: int = MAX_CELLS) -> None:
        self.workload, self.max_cells = workload, max_cells
        self._known: dict[Any, Gram] = {}

    def build(self, groups: Iterable[int], units: Sequence[Space] | None = None) -> ProductGrams:
        """Return groups as products over the given units, or over the finest ones that they allow.

        Raises: NotApplicable if a unit has more than ``max_cells`` cells.
        """
        numbers = tuple(groups)
        chosen = [self.workload.groups[k] for k in numbers]
        names = self.workload.schema.ranked({a for g in chosen for a in g.attributes})
        sets = _units(chosen, names) if units is None else tuple(units)
        choice = np.zeros((len(chosen), len(sets)), dtype=np.int64)
        grams: list[tuple[Gram, ...]] = []
        parts = [_parts(g) for g in chosen]
        for u, unit in enumerate(sets):
            self._check(unit)
            # searches see distinct Grams, not groups: thousands of groups ask the same few things of a unit
            distinct: dict[tuple[Any, ...], int] = {}
            found: list[Gram] = []
            for row, (group, own) in enumerate(zip(chosen, parts, strict=True)):
                gram = self._gram(group, own, unit)
                if gram.key not in distinct:
                    distinct[gram.key] = len(found)
                    found.append(gram)
                choice[row, u] = distinct[gram.key]
            grams.append(tuple(found))
        # what weighs the one query on nothing is in no Gram of a unit, so it goes to the group
        single = [float(g.query_weights[0]) if not g.parts and g.query_weights is not None else 1.0 for g in chosen]
        weights = np.array([g.weight * s for g, s in zip(chosen, single, strict=True)])
        return ProductGrams(
            attributes=names, units=sets, grams=tuple(grams), choice=choice, weights=weights, groups=numbers
        )

    def _check(self, unit: Space) -> None:
        sizes = [self.workload.schema[a].size for a in unit]
        if (cells := math.prod(sizes)) > self.max_cells:
            shape = f"{' x '.join(map(str, sizes))} = {cells:,}" if len(sizes) > 1 else f"{cells:,}"
            raise NotApplicable(
                f"The queries on {' and '.join(unit)} need one dense strategy on {shape} cells; this mechanism solves "
                f"at most {self.max_cells:,}. Merge cells into coarser ones, or choose querysmasher."
            )

    def _gram(self, group: Group, parts: Sequence[Part], unit: Space) -> Gram:
        inside = [p for p in parts if group.attributes[p.axes[0]] in unit]
        sizes = tuple(self.workload.schema[a].size for a in unit)
        places = tuple(tuple(unit.index(group.attributes[a]) for a in p.axes) for p in inside)
        weights = group.query_weights if inside else None
        digest = None if weights is None else hashlib.sha256(weights.tobytes()).hexdigest()
        # the total is the same whether it was asked for or nothing was
        asked = [(place, p) for place, p in zip(places, inside, strict=True) if p.family.key != TOTAL or digest]
        key = (sizes, tuple((place, p.key) for place, p in asked), digest)
        if key not in self._known:
            self._known[key] = Gram(key=key, matrix=_unit_gram(sizes, asked, weights))
        return self._known[key]


def _parts(group: Group) -> tuple[Part, ...]:
    """Return the parts of a group; weights of single queries do not factor, so they make it one part."""
    return (whole_group(group),) if len(group.parts) > 1 and group.query_weights is not None else group.parts


def _units(groups: Sequence[Group], names: Space) -> tuple[Space, ...]:
    """Return the finest partition of the attributes that no part of any group crosses, in schema order."""
    label = {name: i for i, name in enumerate(names)}
    for group in groups:
        for part in _parts(group):
            joined = {label[group.attributes[a]] for a in part.axes}
            if len(joined) > 1:
                # all that was joined before comes along, so that the labels stay a partition
                label = {name: min(joined) if k in joined else k for name, k in label.items()}
    return tuple(tuple(n for n in names if label[n] == k) for k in sorted(set(label.values())))


def _unit_gram(sizes: tuple[int, ...], parts: Sequence[tuple[tuple[int, ...], Part]], weights: Array | None) -> Array:
    """Return the Gram on the cells of a unit; a unit is small, so the product within it may be written out."""
    out, order = np.ones((1, 1)), list[int]()
    for places, part in parts:
        out = np.asarray(np.multiply.outer(out, part.family.gram(part.sizes, weights)).swapaxes(1, 2))
        out = out.reshape(math.prod(out.shape[:2]), -1)
        order += places
    rest = [axis for axis in range(len(sizes)) if axis not in order]
    tail = math.prod(sizes[axis] for axis in rest)
    out = np.multiply.outer(out, np.ones((tail, tail))).swapaxes(1, 2).reshape(math.prod(sizes), -1)
    order += rest
    # parts stand in the order in which they were asked; cells of a unit are in schema order
    back = [order.index(axis) for axis in range(len(order))]
    shape = [sizes[axis] for axis in order]
    moved = out.reshape(*shape, *shape).transpose(*back, *(len(order) + b for b in back))
    return np.ascontiguousarray(moved.reshape(out.shape))


def weighted_groups(workload: Workload) -> tuple[int, ...]:
    """Return the numbers of the groups that the objective sees; rows of zeros and weights of zero leave no trace."""
    return tuple(k for k, g in enumerate(workload.groups) if g.weight > 0 and _asks(g))


def _asks(group: Group) -> bool:
    weights = group.query_weights
    if weights is not None and not weights.any():
        return False
    parts = (whole_group(group),) if weights is not None and len(group.parts) > 1 else group.parts
    for part in parts:
        if weights is None and part.family.arity is not None:  # rows of ones and zeros by rule, never all zero
            continue
        chunks = (
            (rows, None if weights is None else weights[i : i + len(rows)])
            for i, rows in part.family.chunks(part.sizes)
        )
        if not any(bool(np.any(rows if w is None else rows[w > 0])) for rows, w in chunks):
            return False
    return True


def by_sets(workload: Workload) -> list[tuple[int, ...]]:
    """Return one cluster for every set of attributes.

    >>> from engine.workload import Attribute, Schema
    >>> asked = Workload.all_ways(Schema([Attribute.of_size(c, 3) for c in "ab"]), (1, 2)).add("a", "marginal")
    >>> by_sets(asked), by_maximal_sets(asked)
    ([(0, 3), (1,), (2,)], [(2, 0, 3, 1)])
    """
    found: dict[frozenset[str], list[int]] = {}
    for k in weighted_groups(workload):
        found.setdefault(frozenset(workload.groups[k].attributes), []).append(k)
    return [tuple(v) for v in found.values()]


def by_maximal_sets(workload: Workload) -> list[tuple[int, ...]]:
    """Return one cluster for every largest set, with each smaller set in one of the clusters that cover it.

    A smaller set goes where fewest groups are yet, in the order of the workload among equals.
    """
    clusters: dict[frozenset[str], list[int]] = {}
    holding: dict[str, list[frozenset[str]]] = {}
    sets = {frozenset(workload.groups[c[0]].attributes): c for c in by_sets(workload)}
    for names in sorted(sets, key=len, reverse=True):
        # what covers a set has each of its attributes, so that one list of those is all there is to look at
        able = min((holding.get(a, []) for a in names), key=len, default=list(clusters))
        covering = [clusters[held] for held in able if names <= held]
        if covering:
            min(covering, key=len).extend(sets[names])
        else:
            clusters[names] = list(sets[names])
            for a in names:
                holding.setdefault(a, []).append(names)
    return [tuple(v) for v in clusters.values()]


STEPS = 1000
LARGEST = 1e4  # of Theta: the identity may fade to 1e-4, and (A^T A)^-1 keeps eight digits
RANK_ONE = 1e-12  # a Gram whose other eigenvalues are below this share of the largest asks a single query


@dataclass(frozen=True, kw_only=True, eq=False)
class PIdentity:
    """A strategy for Laplace noise.

    Attributes
    ----------
    rows : A, shape (measurements, cells); the largest L1 norm of a column is 1.
    inverse : (A^T A)^+, shape (cells, cells): covariance of the cells for noise of variance 1.
    error : tr((A^T A)^+ G) for the Gram that was given, in counts^2.
    theta : the parameters, for a warm start; without rows when a single query is measured as it is.
    """

    rows: Array
    inverse: Array
    error: float
    theta: Array

    @property
    def strategy(self) -> Strategy:
        """The rows with their least squares."""
        cells = self.rows.shape[1]
        pinv = self.inverse @ self.rows.T
        return Strategy(sizes=(cells,), rows=self.rows, pinv=pinv, complete=len(self.rows) >= cells)


def p_identity_error(theta: Array, gram: Array) -> tuple[float, Array]:
    """Return tr((A^T A)^-1 G) and its derivative by Theta, shape (p, n).

    Guarantee: exact for every Theta; no matrix larger than (n, n) is built, and none of that size but G is.
    Source: HDMM, section 4.3 and the appendix.

    >>> p_identity_error(np.zeros((1, 3)), np.eye(3))[0]
    3.0
    """
    s = 1.0 + theta.sum(axis=0)
    # Woodbury: (I + Theta^T Theta)^-1 = I - Theta^T (I + Theta Theta^T)^-1 Theta, of order p instead of n
    inner = scipy.linalg.cho_factor(np.eye(len(theta)) + theta @ theta.T, check_finite=False)
    Y = scipy.linalg.cho_solve(inner, theta, check_finite=False)
    Z = (Y * s) @ gram
    # the error is a quadratic form in s, so that its derivative by s gives its value, too
    by_s = 2.0 * (np.diag(gram) * s - np.einsum("pn,pn->n", theta, Z))
    W = Z * s
    return float(s @ by_s) / 2.0, by_s - 2.0 * (W - (W @ theta.T) @ Y)


def p_identity_rows(theta: Array) -> Array:
    """Return A, shape (n + p, n), for parameters of shape (p, n).

    >>> p_identity_rows(np.array([[1.0, 2, 3], [1, 1, 1]])).round(2)[3:]
    array([[0.33, 0.5 , 0.6 ],
           [0.33, 0.25, 0.2 ]])
    """
    return np.asarray(np.concatenate([np.eye(theta.shape[1]), theta]) / (1.0 + theta.sum(axis=0)))


def default_p(gram: Array) -> int:
    """Return how many rows to add: 1 where identity and total are all that is asked, else n / 16 and at least 8.

    ``gram`` has shape (cells, cells).

    Source: HDMM, section 9, which takes n / 16 throughout; small attributes gain from a few more.

    >>> default_p(np.eye(5) + 1.0), default_p(np.diag(np.arange(256.0)))
    (1, 16)
    """
    n = len(gram)
    off = gram - np.diag(np.diag(gram))
    mean = off.sum() / max(1, n * (n - 1))
    plain = np.allclose(off, mean * (1 - np.eye(n)), rtol=0, atol=1e-9 * np.abs(gram).max(initial=0.0))
    if plain and np.allclose(np.diag(gram), gram[0, 0], rtol=1e-9, atol=0):
        return 1
    return max(n // 16, min(n, 8))


def p_identity_strategy(
    gram: Array,
    p: int | None = None,
    restarts: int = 1,
    seed: int | np.random.Generator = 0,
    start: Array | None = None,
) -> PIdentity:
    """Return the best p-Identity strategy found from random starts.

    Parameters
    ----------
    gram : W^T W, shape (n, n), in counts^2.
    p : rows on top of the identity; `default_p` when left out.
    restarts : number of random starts.
    seed : of the starts; the result does not depend on anything else.  This is a search, not the noise of a release.
    start : parameters to improve instead of the first random ones.

    Guarantee: the largest L1 norm of a column is 1, and the error is that of the rows returned.

    >>> found = p_identity_strategy(np.ones((4, 4)))
    >>> found.rows, found.error
    (array([[1., 1., 1., 1.]]), 1.0)
    """
    import scipy.optimize

    n, rng = len(gram), np.random.default_rng(seed)
    # a single query is best measured as it is, which no matrix with an identity in it can do
    if (single := _single_query(gram)) is not None:
        inverse = np.outer(single, single) / float(single @ single) ** 2
        error = float(np.sum(inverse * gram))
        return PIdentity(rows=single[None], inverse=inverse, error=error, theta=np.zeros((0, n)))
    scale, p = float(np.trace(gram)), default_p(gram) if p is None else p
    best, best_error = np.zeros((p, n)), np.inf  # with p = 1 the row becomes the total only from well above 0
    for attempt in range(max(1, restarts)):
        first = (
            start
            if start is not None and attempt == 0 and start.shape == (p, n)
            else rng.random((p, n)) + (p == 1 and attempt == 0)
        )
        found = scipy.optimize.minimize(
            _scaled,
            first.ravel(),
            args=(gram, scale, n),
            jac=True,
            method="L-BFGS-B",
            # with entries at least 0 the L1 norm of a column is its sum, which is smooth
            bounds=[(0.0, LARGEST)] * first.size,
            options={"maxcor": 20, "maxiter": STEPS, "maxfun": 2 * STEPS, "ftol": 1e-9, "gtol": 0.0},
        )
        if found.fun < best_error:
            best, best_error = np.maximum(found.x, 0.0).reshape(p, n), float(found.fun)
    s = 1.0 + best.sum(axis=0)
    Y = np.linalg.solve(np.eye(p) + best @ best.T, best)
    inverse = (np.eye(n) - best.T @ Y) * np.outer(s, s)
    return PIdentity(rows=p_identity_rows(best), inverse=inverse, error=p_identity_error(best, gram)[0], theta=best)


def _scaled(x: Array, gram: Array, scale: float, n: int) -> tuple[float, Array]:
    error, gradient = p_identity_error(x.reshape(-1, n), gram)
    # L-BFGS stops at changes that are small beside 1
    return error / scale, gradient.ravel() / scale


def _single_query(gram: Array) -> Array | None:
    """Return the query, largest entry 1, when the Gram is that of a single one."""
    pivot = int(np.argmax(np.diag(gram)))
    query = gram[pivot] / np.sqrt(gram[pivot, pivot])
    if np.abs(gram - np.outer(query, query)).max() > RANK_ONE * gram[pivot, pivot]:
        return None
    return np.asarray(query / np.abs(query).max())


SWEEPS = 50
MIXTURE = 0.4  # of the identity beside the total: with more, product searches stay where no total is measured
SWEPT = 5.0  # sweeps over units that wait for each other, for forecasts only
SETTLED = 1e-7  # a sweep that lowers the squared error by less ends the search
Tell = Callable[[str], object]


def gaussian_strategy(gram: Array, options: Options | None = None, start: Array | None = None) -> Solution:
    """Return the optimal strategy for Gaussian noise on one Gram: OPT_0, certified.

    Parameters
    ----------
    gram : W^T W, shape (cells, cells), in counts^2; W itself is not needed.
    options : when to stop.
    start : weights of an earlier solution to begin from.

    Guarantee: value / bound - 1 is a proved gap against every matrix mechanism with Gaussian noise.
    Source: HDMM, definition 12; the dual is that of `engine.residuals.dual_solver`.

    >>> found = gaussian_strategy(np.eye(3))
    >>> round(found.value, 9), round(found.bound, 9)
    (3.0, 3.0)
    """
    n = len(gram)
    with threads_for(n):
        problem = DualProblem(lift=WholeDomain(n), factor=Factor(sizes=(n,), matrix=gram))
        mass, status = problem.maximise(options or Options(), start)
        return problem.solution(mass, status)


@dataclass(frozen=True, kw_only=True, eq=False)
class KroneckerStrategy:
    """A product strategy: one small strategy for every unit, of sensitivity 1 each and hence together.

    ``squared_error`` is weighted, in counts^2, for noise of variance 1.
    """

    factors: tuple[Solution | PIdentity, ...]
    squared_error: float


class KroneckerSolver:
    """OPT_kron for one kind of noise; equal problems, whatever their attributes are called, are solved once.

    Parameters
    ----------
    noise : "gaussian" or "laplace".
    restarts : starts: a mixture of identity and total, the identity, then random mixtures.
    seed : of the random starts.
    gap : relative RMSE gap at which the search on one unit stops.
    deadline : moment on the monotonic clock after which nothing is improved further.
    tell : called with a text before every search; it may raise to cancel.
    """

    def __init__(
        self,
        noise: str,
        *,
        restarts: int = 1,
        seed: int = 0,
        gap: float = 1e-6,
        deadline: float = math.inf,
        tell: Tell | None = None,
    ) -> None:
        self.noise, self.restarts, self.seed, self.deadline = noise, restarts, seed, deadline
        self.options = Options(gap=gap, deadline=deadline)
        self.tell = tell
        self._known: dict[Any, KroneckerStrategy] = {}

    def solve(self, problem: ProductGrams) -> KroneckerStrategy:
        """Return the best product strategy found.

        Guarantee: the sensitivity of every factor is 1, and the error is that of the factors.  The same problem and
        seed give the same strategy, whatever was solved before.
        """
        if problem.key not in self._known:
            rng = np.random.default_rng(self.seed)
            # with one Gram a unit the units do not meet, and for Gaussian noise each problem is convex: any start will
            # do
            alone = all(len(unit) == 1 for unit in problem.grams)
            found: list[KroneckerStrategy] = []
            for attempt in range(1 if alone and self.noise == "gaussian" else max(1, self.restarts)):
                if attempt == 0 or time.monotonic() < self.deadline:
                    found.append(self._descend(problem, self._mixtures(problem, attempt, rng), rng, low=attempt > 0))
            best = min(found, key=lambda k: k.squared_error)
            self._known[problem.key] = KroneckerStrategy(
                factors=best.factors, squared_error=best.squared_error / problem.weights.max()
            )
        kept = self._known[problem.key]
        return KroneckerStrategy(factors=kept.factors, squared_error=kept.squared_error * float(problem.weights.max()))

    @staticmethod
    def _mixtures(problem: ProductGrams, attempt: int, rng: np.random.Generator) -> list[Array]:
        """Return the costs under a I and (1 - a) 1^T on every unit: equal, identity alone, then at random."""
        if attempt < 2:
            mixtures = np.full(len(problem.grams), (MIXTURE, 1.0)[attempt])
        else:
            mixtures = rng.uniform(0.05, 1.0, len(problem.grams))
        out = []
        for a, unit in zip(mixtures.tolist(), problem.grams, strict=True):
            n = len(unit[0].matrix)
            known = (1 - a) ** 2 / (a * a + n * (1 - a) ** 2)  # by Sherman and Morrison
            out.append(
                np.array([max(np.trace(g.matrix) - known * g.matrix.sum(), np.trace(g.matrix) / n**2) for g in unit])
                / (a * a)
            )
        return out

    def _descend(
        self, problem: ProductGrams, costs: list[Array], rng: np.random.Generator, *, low: bool
    ) -> KroneckerStrategy:
        """Improve one unit after the other, from the costs that a first strategy has; ``low`` totals to begin with."""
        weights, grams = problem.weights, problem.grams
        solved: dict[int, Solution | PIdentity] = {}
        error = math.inf
        alone = all(len(unit) == 1 for unit in grams)
        for _ in range(1 if alone else SWEEPS):
            for u, unit in enumerate(grams):
                if self.tell is not None:
                    self.tell(f"Strategy for {' x '.join(problem.units[u])}")
                # with the other units held, the error is a weighted sum of this unit's Grams: one problem with one Gram
                coefficients = _elsewhere(problem, costs, u)
                found = solved[u] = self._improve([g.matrix for g in unit], coefficients, solved.get(u), rng, low)
                costs[u] = np.array([float(np.sum(_covariance(found) * g.matrix)) for g in unit])
            previous, error = error, float(weights @ problem.group_costs(costs))
            if error > previous * (1.0 - SETTLED) or time.monotonic() > self.deadline:
                break
        error = float(weights @ problem.group_costs(costs))
        return KroneckerStrategy(factors=tuple(solved[u] for u in range(len(grams))), squared_error=error)

    def _improve(
        self,
        grams: Sequence[Array],
        coefficients: Array,
        present: Solution | PIdentity | None,
        rng: np.random.Generator,
        low: bool,
    ) -> Solution | PIdentity:
        total = sum(c * g for c, g in zip(coefficients, grams, strict=True)) + np.zeros_like(grams[0])
        if self.noise == "gaussian":
            start = present.dual if isinstance(present, Solution) else None
            return gaussian_strategy(total, self.options, start)
        warm = present.theta if isinstance(present, PIdentity) else None
        if warm is None and low:  # small totals fade where the identity suffices, large ones stay
            warm = rng.random((default_p(total), len(total)))
        found = p_identity_strategy(total, restarts=1, seed=rng, start=warm)
        # a start from elsewhere may end above what is there, and a sweep must not go up
        if present is not None and float(np.sum(_covariance(present) * total)) <= found.error:
            return present
        return found


def _covariance(found: Solution | PIdentity) -> Array:
    """Return the covariance of the cells at noise variance 1, shape (cells, cells)."""
    return found.strategy.covariance if isinstance(found, Solution) else found.inverse


def _elsewhere(problem: ProductGrams, costs: Sequence[Array], u: int) -> Array:
    """Return the weight of every Gram of unit u: what its groups cost on the other units, largest 1."""
    # costs on forty units multiply to more than a double holds
    logs = np.log(problem.weights)
    for other, own in enumerate(costs):
        if other != u:
            logs = logs + np.log(np.maximum(own[problem.choice[:, other]], 1e-300))  # a group of zeros costs nothing
    terms = np.exp(logs - logs.max())
    return np.bincount(problem.choice[:, u], weights=terms, minlength=len(problem.grams[u])).astype(float)


def product_component(workload: Workload, problem: ProductGrams, found: KroneckerStrategy, share: float) -> Component:
    """Return what a plan measures for a product strategy, at a share of the budget."""
    place = {name: i for i, name in enumerate(problem.attributes)}
    factors = tuple(
        (tuple(place[a] for a in unit), replace(f.strategy, sizes=workload.schema.sizes(unit)))
        for unit, f in zip(problem.units, found.factors, strict=True)
    )
    return Component(attributes=problem.attributes, factors=factors, share=share, groups=problem.groups)


def search_seconds(problem: ProductGrams, restarts: int) -> float:
    """Return what the search for a product strategy takes, in seconds on one idle core, for forecasts."""
    alone = all(len(unit) == 1 for unit in problem.grams)
    turns = 1.0 if alone else SWEPT * max(1, restarts)
    return turns * math.fsum(unit_seconds(len(unit[0].matrix)) for unit in problem.grams)


def unit_seconds(cells: int) -> float:
    """Return what the search on one unit takes, in seconds on one idle core, for forecasts."""
    return 4e-4 + 5e-7 * cells**2 + 3e-9 * cells**3


RESTARTS, GAP = 2, 1e-5  # as HDMM takes them where nothing is said
CELLS = 100_000  # most cells of the table


def table_seconds(workload: Workload) -> float:
    """Return what the search for the product takes, in seconds on one idle core; infinite where there is none.

    There is none where all attributes are coupled, or where the table or a factor is too large.

    >>> from engine.workload import Attribute, Schema
    >>> pair = Workload(Schema([Attribute.of_size(c, 4) for c in "ab"])).add(("a", "b"), "affine")
    >>> table_seconds(pair), table_seconds(Workload(pair.schema).add(("a", "b"), "prefix")) < 0.1
    (inf, True)
    """
    asked = {place for alike in workload.alike for place in np.unique(alike.places).tolist()}
    if math.prod(workload.schema.attributes[place].size for place in asked) > CELLS:
        return math.inf
    try:
        problem = GramBuilder(workload).build(weighted_groups(workload))
    except NotApplicable:
        return math.inf
    return search_seconds(problem, RESTARTS) if len(problem.units) > 1 else math.inf


def table_design(workload: Workload, deadline: float, tell: Tell) -> Design:
    """Return the design of the product, for Gaussian noise; ``tell`` hears of every search, and may raise to cancel."""
    solver = KroneckerSolver("gaussian", restarts=RESTARTS, gap=GAP, deadline=deadline, tell=tell)
    problem = GramBuilder(workload).build(weighted_groups(workload))
    component = product_component(workload, problem, solver.solve(problem), 1.0)
    # groups without weight are asked, too
    able = (k for k, g in enumerate(workload.groups) if set(g.attributes) <= set(problem.attributes))
    component = replace(component, groups=tuple(able))
    arrays = Design(components=(component,)).arrays(workload.schema)
    return Design.from_arrays(arrays, workload, "gaussian")
