"""Kronecker strategies for tables: product Gram matrices, p-Identity, OPT_0 and OPT_kron.

Product Grams
-------------
A unit is a set of attributes with one common strategy matrix.  Most units are single attributes.  A
unit has several attributes if the queries of some group on them are not products over attributes.
Examples are affine, absolute-difference and custom queries, and queries with separate weights.

G_{u, g} is the Gram matrix of the queries of group g on unit u.  A group without queries on the
unit has G_{u, g} = 11^T, the Gram matrix of the total.  The Gram matrix of group g on the full
domain is

    w_g G_{1, g} (x) ... (x) G_{U, g}

for the weight w_g of the group and U units.  This matrix is never formed.  Source: HDMM, section 5
and theorem 6.

p-Identity
----------
A strategy for one Gram matrix and Laplace noise: a weighted identity with p additional rows.

    parameters      Theta  (p, n), nonnegative
    strategy rows   A      [I; Theta] D with D = diag(1 + 1^T Theta)^-1, shape (n + p, n): every
                           column has L1 norm 1
    Gram            G      W^T W, shape (n, n)
    error                  tr((A^T A)^-1 G), in counts^2 for noise of variance 1 and sensitivity 1

With s = 1 + 1^T Theta and Y = (I + Theta Theta^T)^-1 Theta, the inverse of A^T A is
diag(s) (I - Theta^T Y) diag(s).  The error and its gradient therefore take only products of p x n
with n x n matrices.  Source: HDMM, definitions 13 and 14.

OPT_0 and OPT_kron
------------------
OPT_0 is the optimal strategy for one Gram matrix.  OPT_kron is a product of strategies on units.
Block-coordinate descent optimises the strategy of one unit u at a time, for fixed strategies of all
other units.  This is OPT_0 for a weighted sum of the matrices G_{u, g}.  The weight of G_{u, g} is
w_g times the product of the squared errors of group g on all other units.  Source: HDMM, sections
4.2, 4.3, 6.1 and 6.2 (definition 18, equation 6.2).

Table product
-------------
`table_design` returns one product of strategies on the table of all attributes with queries.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy

from engine._arrays import Array
from engine._clock import planning_time
from engine._threads import threads_for
from engine.errors import NotApplicable
from engine.mechanisms.base import Design
from engine.plans.table_plan import Component
from engine.residuals import DualProblem, Factor, FullDomain, Options, Space, Strategy
from engine.residuals.dual_solver import Solution
from engine.workload import Group, Part, Workload, joint_part

# Largest number of cells of a unit, because a search on more cells takes minutes or longer.
MAX_CELLS = 2048
TOTAL = ("total",)


@dataclass(frozen=True, kw_only=True, eq=False)
class Gram:
    """Gram matrix of a group's queries on a unit.  The matrix is computed on first access.

    Attributes
    ----------
    key : hashable key.  Gram matrices with equal keys are equal.
    sizes : domain sizes of the attributes of the unit.
    parts : pairs (axes, part), one per query family of the group on attributes of the unit.  The
        axes are indices of the part's attributes in the unit.
    weights : weights of the queries, or None if all are 1; only a single part can have weights.
    """

    key: tuple[Any, ...]
    sizes: tuple[int, ...]
    parts: Sequence[tuple[tuple[int, ...], Part]]
    weights: Array | None

    @property
    def cells(self) -> int:
        """Number of cells of the unit."""
        return math.prod(self.sizes)

    @cached_property
    def matrix(self) -> Array:
        """The Gram matrix, shape (cells, cells)."""
        return _unit_gram(self.sizes, self.parts, self.weights)


@dataclass(frozen=True, kw_only=True, eq=False)
class ProductGrams:
    """Gram matrices of groups, as Kronecker products of one matrix per unit.

    A unit is a set of attributes with one strategy matrix.

    Attributes
    ----------
    attributes : all attributes of the groups, in schema order.
    units : attributes of every unit, in schema order.  Cells of a unit are in row-major order.
    grams : distinct Gram matrices of all groups on a unit, one tuple per unit.
    choice : index array, shape (groups, units).  The Gram matrix of group g on unit u is
        ``grams[u][choice[g, u]]``.
    weights : weight of every group, shape (groups,).
    groups : indices of the groups in the workload.
    """

    attributes: Space
    units: tuple[Space, ...]
    grams: tuple[tuple[Gram, ...], ...]
    choice: npt.NDArray[np.int64]
    weights: Array
    groups: tuple[int, ...]

    @property
    def key(self) -> tuple[Any, ...]:
        """Hashable key.  Attribute names and a common factor of all weights do not change it."""
        grams = tuple(tuple(g.key for g in unit) for unit in self.grams)
        return (grams, self.choice.tobytes(), (self.weights / self.weights.max()).tobytes())

    def costs(self, covariances: Sequence[Array]) -> list[Array]:
        """Return the squared error tr(C G) for every Gram matrix G of every unit, in counts^2.

        Parameters
        ----------
        covariances : one covariance C of the estimated cells per unit, shape (cells, cells).

        Returns
        -------
        One array per unit with one error per Gram matrix of the unit.
        """
        return [
            np.array([float(np.sum(c * g.matrix)) for g in unit])
            for c, unit in zip(covariances, self.grams, strict=True)
        ]

    def group_costs(self, costs: Sequence[Array]) -> Array:
        """Return the unweighted squared error of every group, shape (groups,).

        The error of a group is the product of its errors on all units.

        Parameters
        ----------
        costs : result of the method `costs`.
        """
        out = np.ones(len(self.weights))
        for u, unit_costs in enumerate(costs):
            out = out * unit_costs[self.choice[:, u]]
        return out


class GramBuilder:
    """Builder of the product Grams of a workload; equal Grams are computed once.

    Parameters
    ----------
    workload : queries.
    max_cells : largest number of cells of a unit.

    >>> from engine import Attribute, Schema
    >>> schema = Schema([Attribute.of_size(c, 4) for c in "abc"])
    >>> workload = Workload(schema).add("a", "prefix").add(("c", "b"), "affine")
    >>> GramBuilder(workload).build((0, 1)).units
    (('a',), ('b', 'c'))
    """

    def __init__(self, workload: Workload, max_cells: int = MAX_CELLS) -> None:
        self.workload, self.max_cells = workload, max_cells
        self._cache: dict[Any, Gram] = {}

    def build(self, groups: Iterable[int], units: Sequence[Space] | None = None) -> ProductGrams:
        """Return the product Grams of groups.

        Parameters
        ----------
        groups : indices of the groups.
        units : sets of attributes with one dense strategy each.  The default is the smallest sets
            for which the queries are products over units.

        Raises
        ------
        NotApplicable
            If a unit has more than ``max_cells`` cells.
        """
        numbers = tuple(groups)
        selected_groups = [self.workload.groups[k] for k in numbers]
        names = self.workload.schema.ranked({a for g in selected_groups for a in g.attributes})
        sets = _units(selected_groups, names) if units is None else tuple(units)
        choice = np.zeros((len(selected_groups), len(sets)), dtype=np.int64)
        grams: list[tuple[Gram, ...]] = []
        parts = [_parts(g) for g in selected_groups]
        unit_of = {name: u for u, unit in enumerate(sets) for name in unit}
        # rows_of_unit[u] has the rows of ``choice`` that belong to groups with queries on unit u,
        # in ascending order.
        rows_of_unit: list[list[int]] = [[] for _ in sets]
        for row, group in enumerate(selected_groups):
            for u in {unit_of[name] for name in group.attributes}:
                rows_of_unit[u].append(row)
        for u, (unit, rows) in enumerate(zip(sets, rows_of_unit, strict=True)):
            self._check(unit)
            # All groups without queries on the unit have the Gram of the total.  There may be
            # thousands of these groups, so the Gram is built only for the first one.  Its row is
            # the smallest number that is missing in ``rows``.
            without = next((i for i, row in enumerate(rows) if row != i), len(rows))
            if without < len(selected_groups):
                rows = sorted([*rows, without])
            # Equal Grams of different groups are stored once.
            distinct: dict[tuple[Any, ...], int] = {}
            unit_grams: list[Gram] = []
            numbers_of_rows = []
            for row in rows:
                gram = self._gram(selected_groups[row], parts[row], unit)
                if gram.key not in distinct:
                    distinct[gram.key] = len(unit_grams)
                    unit_grams.append(gram)
                numbers_of_rows.append(distinct[gram.key])
            if without < len(selected_groups):
                choice[:, u] = numbers_of_rows[rows.index(without)]
            choice[rows, u] = numbers_of_rows
            grams.append(tuple(unit_grams))
        # Gram matrices contain the weights of single queries.  A group without attributes has no
        # Gram matrix, so the weight of its only query (the total) multiplies the group's weight.
        query_weights = [
            float(g.query_weights[0]) if not g.parts and g.query_weights is not None else 1.0
            for g in selected_groups
        ]
        weights = np.array(
            [g.weight * w for g, w in zip(selected_groups, query_weights, strict=True)]
        )
        return ProductGrams(
            attributes=names,
            units=sets,
            grams=tuple(grams),
            choice=choice,
            weights=weights,
            groups=numbers,
        )

    def _check(self, unit: Space) -> None:
        """Raise NotApplicable if a unit has too many cells."""
        sizes = [self.workload.schema[a].size for a in unit]
        if (cells := math.prod(sizes)) > self.max_cells:
            shape = f"{' x '.join(map(str, sizes))} = {cells:,}" if len(sizes) > 1 else f"{cells:,}"
            raise NotApplicable(
                f"The queries on {' and '.join(unit)} need one dense strategy on {shape} cells, but"
                f" at most {self.max_cells:,} are allowed. Merge cells into coarser ones,"
                " or choose 'querysmasher'."
            )

    def _gram(self, group: Group, parts: Sequence[Part], unit: Space) -> Gram:
        """Return the Gram matrix of a group's queries on the cells of a unit."""
        inside = [p for p in parts if group.attributes[p.axes[0]] in unit]
        sizes = tuple(self.workload.schema[a].size for a in unit)
        positions = tuple(tuple(unit.index(group.attributes[a]) for a in p.axes) for p in inside)
        weights = group.query_weights if inside else None
        digest = None if weights is None else hashlib.sha256(weights.tobytes()).hexdigest()
        # The total on an attribute has the same Gram as no query on the attribute.  So the key
        # leaves out totals, unless the queries have separate weights.
        placed_parts = [
            (position, p)
            for position, p in zip(positions, inside, strict=True)
            if p.family.key != TOTAL or digest
        ]
        key = (sizes, tuple((position, p.key) for position, p in placed_parts), digest)
        if key not in self._cache:
            self._cache[key] = Gram(key=key, sizes=sizes, parts=placed_parts, weights=weights)
        return self._cache[key]


def _parts(group: Group) -> tuple[Part, ...]:
    """Return query families whose Grams have the Gram of the group as Kronecker product.

    If queries have separate weights, the families of the group do not have this property.  In this
    case all families are joined into one.
    """
    return (
        (joint_part(group),)
        if len(group.parts) > 1 and group.query_weights is not None
        else group.parts
    )


def _units(groups: Sequence[Group], names: Space) -> tuple[Space, ...]:
    """Return the smallest sets of attributes that contain every query family of a group in one set.

    The sets and their attributes are in schema order.
    """
    # The attributes of a unit have equal labels.
    label = {name: i for i, name in enumerate(names)}
    for group in groups:
        for part in _parts(group):
            labels = {label[group.attributes[a]] for a in part.axes}
            if len(labels) > 1:
                # The units that contain attributes of this part (product factor) are merged: the
                # smallest of their labels replaces the other labels.
                label = {name: min(labels) if k in labels else k for name, k in label.items()}
    return tuple(tuple(n for n in names if label[n] == k) for k in sorted(set(label.values())))


def _unit_gram(
    sizes: tuple[int, ...], parts: Sequence[tuple[tuple[int, ...], Part]], weights: Array | None
) -> Array:
    """Return the Gram matrix of a group's queries on a unit, shape (cells, cells).

    Parameters
    ----------
    sizes : number of cells of every attribute of the unit.
    parts : pairs (axes of the unit, query family on these axes).  Queries sum over all axes that no
        part has.
    weights : weights of the queries, or None if all are 1; only a single part can have weights.
    """
    gram, order = np.ones((1, 1)), list[int]()
    for axes, part in parts:
        gram = _kron(gram, part.family.gram(part.sizes, weights))
        order += axes
    other_axes = [axis for axis in range(len(sizes)) if axis not in order]
    other_cells = math.prod(sizes[axis] for axis in other_axes)
    gram = _kron(gram, np.ones((other_cells, other_cells)))
    order += other_axes
    # The axes of ``gram`` are in the order ``order``.  They are transposed to the unit's order.
    inverse_order = [order.index(axis) for axis in range(len(order))]
    shape = [sizes[axis] for axis in order]
    reordered = gram.reshape(*shape, *shape).transpose(
        *inverse_order, *(len(order) + b for b in inverse_order)
    )
    return np.ascontiguousarray(reordered.reshape(gram.shape))


def _kron(first: Array, second: Array) -> Array:
    product = np.multiply.outer(first, second).swapaxes(1, 2)
    return np.asarray(product.reshape(len(first) * len(second), -1))


def weighted_groups(workload: Workload) -> tuple[int, ...]:
    """Return the indices of the groups that have a nonzero query of positive weight."""
    return tuple(k for k, g in enumerate(workload.groups) if g.weight > 0 and _has_nonzero_row(g))


def _has_nonzero_row(group: Group) -> bool:
    """Return whether a query of positive weight has a coefficient other than 0."""
    weights = group.query_weights
    if weights is not None and not weights.any():
        return False
    parts = (joint_part(group),) if weights is not None and len(group.parts) > 1 else group.parts
    for part in parts:
        # Without weights, only the queries of a custom family can all be 0.  A family with a fixed
        # number of attributes (arity) is no custom family.
        if weights is None and part.family.arity is not None:
            continue
        chunks = (
            (rows, None if weights is None else weights[i : i + len(rows)])
            for i, rows in part.family.chunks(part.sizes)
        )
        if not any(bool(np.any(rows if w is None else rows[w > 0])) for rows, w in chunks):
            return False
    return True


def by_sets(workload: Workload) -> list[tuple[int, ...]]:
    """Return one cluster per set of attributes: the indices of all groups on this set.

    No cluster contains groups of weight 0, or groups whose queries are all 0.

    >>> from engine import Attribute, Schema
    >>> schema = Schema([Attribute.of_size(c, 3) for c in "ab"])
    >>> workload = Workload.all_ways(schema, (1, 2)).add("a", "marginal")
    >>> by_sets(workload), by_maximal_sets(workload)
    ([(0, 3), (1,), (2,)], [(2, 0, 3, 1)])
    """
    clusters: dict[frozenset[str], list[int]] = {}
    for k in weighted_groups(workload):
        clusters.setdefault(frozenset(workload.groups[k].attributes), []).append(k)
    return [tuple(v) for v in clusters.values()]


def by_maximal_sets(workload: Workload) -> list[tuple[int, ...]]:
    """Return one cluster of groups per maximal attribute set, as tuples of group indices.

    An attribute set of a group is maximal if no other group has a larger set that contains it.  A
    group on a smaller set is put into the cluster with the fewest groups, among the clusters whose
    sets contain its attributes.  No cluster contains groups of weight 0, or groups whose queries
    are all 0.
    """
    clusters: dict[frozenset[str], list[int]] = {}
    maximal_sets_with: dict[str, list[frozenset[str]]] = {}
    groups_of_set = {frozenset(workload.groups[c[0]].attributes): c for c in by_sets(workload)}
    for names in sorted(groups_of_set, key=len, reverse=True):
        # ``maximal_sets_with[name]`` has all maximal sets that contain ``name``.  A set that
        # contains ``names`` is in the list of each of these names, so the shortest list is
        # searched.
        candidates = min(
            (maximal_sets_with.get(name, []) for name in names), key=len, default=list(clusters)
        )
        covering = [clusters[other] for other in candidates if names <= other]
        if covering:
            min(covering, key=len).extend(groups_of_set[names])
            continue
        clusters[names] = list(groups_of_set[names])
        for name in names:
            maximal_sets_with.setdefault(name, []).append(names)
    return [tuple(groups) for groups in clusters.values()]


MAX_LBFGS_ITERATIONS = 1000  # per start of a search
# Largest entry of Theta.  With larger entries, rounding leaves less than eight correct digits of
# (A^T A)^-1.
MAX_THETA = 1e4
# A Gram matrix counts as that of a single query if it differs from a matrix of rank one by at most
# this share of its largest entry.
RANK_ONE_TOLERANCE = 1e-12


@dataclass(frozen=True, kw_only=True, eq=False)
class PIdentity:
    """A p-Identity strategy for Laplace noise.

    Attributes
    ----------
    rows : strategy rows A, shape (measurements, cells).  The largest L1 norm of a column is 1.
    inverse : covariance (A^T A)^+ of the cells for noise of variance 1, shape (cells, cells).
    error : tr((A^T A)^+ G) for the Gram matrix G of the search, in counts^2.
    theta : parameters Theta, shape (p, cells), from which a similar search may start.  For a single
        query, p is 0.
    """

    rows: Array
    inverse: Array
    error: float
    theta: Array

    @property
    def strategy(self) -> Strategy:
        """The rows with their pseudoinverse."""
        cells = self.rows.shape[1]
        pinv = self.inverse @ self.rows.T
        return Strategy(sizes=(cells,), rows=self.rows, pinv=pinv, complete=len(self.rows) >= cells)


def p_identity_error(theta: Array, gram: Array) -> tuple[float, Array]:
    """Return tr((A^T A)^-1 G) and its derivative with respect to Theta, shape (p, n).

    A is the matrix of the p-Identity strategy for ``theta``, shape (p, n).  G is ``gram``, shape
    (n, n).  The computation forms neither A^T A nor its inverse.

    Source: HDMM, section 4.3 and the appendix.

    >>> p_identity_error(np.zeros((1, 3)), np.eye(3))[0]
    3.0
    """
    # The L1 norms of the columns of [I; Theta]; A is [I; Theta] diag(s)^-1.
    s = 1.0 + theta.sum(axis=0)
    # The Woodbury formula (I + Theta^T Theta)^-1 = I - Theta^T (I + Theta Theta^T)^-1 Theta needs
    # the inverse of a matrix of order p instead of n.
    inner = scipy.linalg.cho_factor(np.eye(len(theta)) + theta @ theta.T, check_finite=False)
    Y = scipy.linalg.cho_solve(inner, theta, check_finite=False)
    Z = (Y * s) @ gram
    # The error is a quadratic form in s.  Its derivative with respect to s is ``by_s``, so the
    # error is s . by_s / 2.
    by_s = 2.0 * (np.diag(gram) * s - np.einsum("pn,pn->n", theta, Z))
    W = Z * s
    return float(s @ by_s) / 2.0, by_s - 2.0 * (W - (W @ theta.T) @ Y)


def p_identity_rows(theta: Array) -> Array:
    """Return the rows A of a p-Identity strategy, shape (n + p, n), for ``theta``, shape (p, n).

    >>> p_identity_rows(np.array([[1.0, 2, 3], [1, 1, 1]])).round(2)[3:]
    array([[0.33, 0.5 , 0.6 ],
           [0.33, 0.25, 0.2 ]])
    """
    return np.asarray(np.concatenate([np.eye(theta.shape[1]), theta]) / (1.0 + theta.sum(axis=0)))


def default_p(gram: Array) -> int:
    """Return the number p of additional rows of a p-Identity strategy for a Gram matrix.

    If ``gram``, shape (n, n), is a I + b 11^T for numbers a and b, then p = 1.  Otherwise p is the
    larger of n // 16 and min(n, 8).

    Source: HDMM, section 9, with n / 16 for every n; small attributes benefit from more rows.

    >>> default_p(np.eye(5) + 1.0), default_p(np.diag(np.arange(256.0)))
    (1, 16)
    """
    n = len(gram)
    off_diagonal = gram - np.diag(np.diag(gram))
    mean = off_diagonal.sum() / max(1, n * (n - 1))
    has_equal_pairs = np.allclose(
        off_diagonal, mean * (1 - np.eye(n)), rtol=0, atol=1e-9 * np.abs(gram).max(initial=0.0)
    )
    if has_equal_pairs and np.allclose(np.diag(gram), gram[0, 0], rtol=1e-9, atol=0):
        return 1
    return max(n // 16, min(n, 8))


def p_identity_strategy(
    gram: Array,
    restarts: int = 1,
    seed: int | np.random.Generator = 0,
    start: Array | None = None,
) -> PIdentity:
    """Search for the p-Identity strategy with the smallest error, from several random starts.

    The strategy has `default_p` additional rows.  For the Gram matrix of a single query the
    strategy is this query alone.

    Parameters
    ----------
    gram : W^T W, shape (n, n), in counts^2.
    restarts : number of random starts.
    seed : seed of the starts, which determines the result.  It is unrelated to the noise of a
        release.
    start : Theta that replaces the first random start, if its shape is (p, n).  Otherwise it is
        ignored.

    >>> result = p_identity_strategy(np.ones((4, 4)))
    >>> result.rows, result.error
    (array([[1., 1., 1., 1.]]), 1.0)
    """
    import scipy.optimize

    n, rng = len(gram), np.random.default_rng(seed)
    # A single query is measured alone: every strategy that contains the identity is worse.
    if (single := _single_query(gram)) is not None:
        inverse = np.outer(single, single) / float(single @ single) ** 2
        error = float(np.sum(inverse * gram))
        return PIdentity(rows=single[None], inverse=inverse, error=error, theta=np.zeros((0, n)))
    scale, p = float(np.trace(gram)), default_p(gram)
    best, best_error = np.zeros((p, n)), np.inf
    for attempt in range(max(1, restarts)):
        if start is not None and attempt == 0 and start.shape == (p, n):
            initial = start
        else:
            initial = rng.random((p, n))
            # If p is 1, searches reach the row of equal entries (the total) only from a start with
            # entries well above 0.
            if p == 1 and attempt == 0:
                initial += 1.0
        result = scipy.optimize.minimize(
            _scaled_error,
            initial.ravel(),
            args=(gram, scale, n),
            jac=True,
            method="L-BFGS-B",
            # Without negative entries the L1 norm of a column is its sum, which is a smooth
            # function.
            bounds=[(0.0, MAX_THETA)] * initial.size,
            options={
                "maxcor": 20,
                "maxiter": MAX_LBFGS_ITERATIONS,
                "maxfun": 2 * MAX_LBFGS_ITERATIONS,
                "ftol": 1e-9,
                "gtol": 0.0,
            },
        )
        if result.fun < best_error:
            best, best_error = np.maximum(result.x, 0.0).reshape(p, n), float(result.fun)
    s = 1.0 + best.sum(axis=0)
    Y = np.linalg.solve(np.eye(p) + best @ best.T, best)
    inverse = (np.eye(n) - best.T @ Y) * np.outer(s, s)
    return PIdentity(
        rows=p_identity_rows(best),
        inverse=inverse,
        error=p_identity_error(best, gram)[0],
        theta=best,
    )


def _scaled_error(x: Array, gram: Array, scale: float, n: int) -> tuple[float, Array]:
    """Return the error divided by ``scale``, and its gradient, shape (p n,), for Theta = x."""
    error, gradient = p_identity_error(x.reshape(-1, n), gram)
    # The stopping rule of L-BFGS suits objectives of about 1, so the error is divided by ``scale``.
    return error / scale, gradient.ravel() / scale


def _single_query(gram: Array) -> Array | None:
    """Return the query q with gram = c q q^T for a number c, scaled to largest absolute entry 1.

    The result is None if the rank of ``gram`` is above 1.
    """
    pivot = int(np.argmax(np.diag(gram)))
    query = gram[pivot] / np.sqrt(gram[pivot, pivot])
    if np.abs(gram - np.outer(query, query)).max() > RANK_ONE_TOLERANCE * gram[pivot, pivot]:
        return None
    return np.asarray(query / np.abs(query).max())


# Block-coordinate descent improves the strategies of all units in turn, at most this many times.
MAX_SWEEPS = 50
# The initial strategy of a unit has the rows a I and (1 - a) 1^T.  This is the weight a of the
# first start.  From a larger weight, searches may end in local minima that do not measure the
# total.
INITIAL_IDENTITY_SHARE = 0.4
# For forecasts: number of passes over all units if some unit has several Gram matrices.
EXPECTED_SWEEPS = 5.0
# Block-coordinate descent stops if a pass over all units lowers the squared error by a smaller
# share.
MIN_SWEEP_GAIN = 1e-7
Tell = Callable[[str], object]


def gaussian_strategy(
    gram: Array, options: Options | None = None, start: Array | None = None
) -> Solution:
    """Return the optimal strategy for Gaussian noise and one Gram (OPT_0), with a certificate.

    Parameters
    ----------
    gram : W^T W, shape (cells, cells), in counts^2; W itself is not needed.
    options : stopping rules.
    start : dual weights of a similar solution, from which the search starts; None for uniform.

    Notes
    -----
    The field ``value`` of the result is the squared error of the strategy.  No matrix mechanism
    with Gaussian noise has a smaller squared error than the field ``bound``.

    Source: HDMM, definition 12.  `engine.residuals.dual_solver` describes the dual problem.

    >>> solution = gaussian_strategy(np.eye(3))
    >>> round(solution.value, 9), round(solution.bound, 9)
    (3.0, 3.0)
    """
    n = len(gram)
    with threads_for(n):
        problem = DualProblem(lift=FullDomain(n), factor=Factor(sizes=(n,), matrix=gram))
        mass, status = problem.maximise(options or Options(), start)
        return problem.solution(mass, status)


@dataclass(frozen=True, kw_only=True, eq=False)
class KroneckerStrategy:
    """A Kronecker product of strategies, one per unit, each with sensitivity 1.

    ``squared_error`` is the weighted sum of the variances of all queries, in counts^2, for noise of
    variance 1.
    """

    factors: tuple[Solution | PIdentity, ...]
    squared_error: float


class KroneckerSolver:
    """Solver of OPT_kron for one noise distribution; equal problems are solved once.

    Parameters
    ----------
    noise : "gaussian" or "laplace".
    restarts : number of initial strategies; see `_initial_errors`.
    seed : seed of the random starts.
    gap : relative RMSE gap at which the search on one unit (set of attributes) stops.
    deadline : time at which the search stops, on the clock of `planning_time`.
    tell : progress callback with a text, called before every search; it may raise to cancel.
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
        self._cache: dict[Any, KroneckerStrategy] = {}

    def solve(self, problem: ProductGrams) -> KroneckerStrategy:
        """Return the product strategy with the smallest squared error of several starts.

        The result depends only on the problem and the seed, unless the deadline ends the search.
        """
        # Problems whose weights differ by a common factor have the same key.  So the cache contains
        # the squared error divided by the largest weight.
        largest_weight = problem.weights.max()
        if problem.key not in self._cache:
            best = self._best_of_starts(problem)
            self._cache[problem.key] = KroneckerStrategy(
                factors=best.factors, squared_error=best.squared_error / largest_weight
            )
        strategy = self._cache[problem.key]
        return KroneckerStrategy(
            factors=strategy.factors, squared_error=strategy.squared_error * float(largest_weight)
        )

    def _best_of_starts(self, problem: ProductGrams) -> KroneckerStrategy:
        """Return the best strategy of several starts.

        No start except the first begins after the deadline.
        """
        rng = np.random.default_rng(self.seed)
        # If every unit has a single Gram, the strategies of the units do not depend on each other.
        # The strategy of a unit for Gaussian noise is a convex problem, so one start is enough.
        independent = all(len(unit) == 1 for unit in problem.grams)
        starts = 1 if independent and self.noise == "gaussian" else max(1, self.restarts)
        strategies: list[KroneckerStrategy] = []
        for attempt in range(starts):
            if attempt > 0 and planning_time() >= self.deadline:
                break
            errors = self._initial_errors(problem, attempt, rng)
            strategies.append(self._descend(problem, errors, rng, small_start=attempt > 0))
        return min(strategies, key=lambda strategy: strategy.squared_error)

    @staticmethod
    def _initial_errors(
        problem: ProductGrams, attempt: int, rng: np.random.Generator
    ) -> list[Array]:
        """Return the squared errors of the initial strategies of all units.

        The strategy of a unit has the rows a I and (1 - a) 1^T.  The weight a is
        `INITIAL_IDENTITY_SHARE` in the first start (``attempt`` 0), 1 in the second start, and
        random in later starts.

        Returns
        -------
        One array per unit with one error per Gram matrix of the unit.
        """
        if attempt < 2:
            identity_weights = np.full(len(problem.grams), (INITIAL_IDENTITY_SHARE, 1.0)[attempt])
        else:
            identity_weights = rng.uniform(0.05, 1.0, len(problem.grams))
        errors = []
        for a, unit in zip(identity_weights.tolist(), problem.grams, strict=True):
            n = len(unit[0].matrix)
            # By the formula of Sherman and Morrison, the covariance of the cells is
            # (I - correction 11^T) / a^2.
            correction = (1 - a) ** 2 / (a * a + n * (1 - a) ** 2)
            traces = np.array([np.trace(g.matrix) for g in unit])
            totals = np.array([g.matrix.sum() for g in unit])
            # For small a the error of the total is almost 0.  A group with only the total on this
            # unit would then have almost no weight in the searches on other units.  So errors are
            # raised to a lower limit.
            errors.append(np.maximum(traces - correction * totals, traces / n**2) / (a * a))
        return errors

    def _descend(
        self,
        problem: ProductGrams,
        costs: list[Array],
        rng: np.random.Generator,
        *,
        small_start: bool,
    ) -> KroneckerStrategy:
        """Run block-coordinate descent over the units, and return the strategy at its end.

        Parameters
        ----------
        costs : squared errors of the initial strategy, from `_initial_errors`.  The function
            replaces the entries of this list by the squared errors of the result.
        small_start : whether the first p-Identity search on each unit starts with entries of Theta
            below 1.
        """
        strategies: dict[int, Solution | PIdentity] = {}
        error = math.inf
        independent = all(len(unit) == 1 for unit in problem.grams)
        for _ in range(1 if independent else MAX_SWEEPS):
            for u, unit in enumerate(problem.grams):
                if self.tell is not None:
                    self.tell(f"Strategy for {' x '.join(problem.units[u])}")
                # For fixed strategies of all other units, the problem has one Gram: a weighted sum
                # of the Grams of this unit.
                matrices = [gram.matrix for gram in unit]
                gram_weights = _gram_weights(problem, costs, u)
                strategies[u] = self._improve(
                    matrices, gram_weights, strategies.get(u), rng, small_start
                )
                covariance = _covariance(strategies[u])
                costs[u] = np.array([float(np.sum(covariance * matrix)) for matrix in matrices])
            previous_error = error
            error = float(problem.weights @ problem.group_costs(costs))
            if error > previous_error * (1.0 - MIN_SWEEP_GAIN) or planning_time() > self.deadline:
                break
        return KroneckerStrategy(
            factors=tuple(strategies[u] for u in range(len(problem.grams))), squared_error=error
        )

    def _improve(
        self,
        grams: Sequence[Array],
        gram_weights: Array,
        current: Solution | PIdentity | None,
        rng: np.random.Generator,
        small_start: bool,
    ) -> Solution | PIdentity:
        """Return a strategy for a weighted sum of Gram matrices.

        Parameters
        ----------
        grams : Gram matrices.
        gram_weights : weight of every matrix in the sum, shape (matrices,).
        current : strategy of the previous pass; None in the first pass.  For Laplace noise the
            result is no worse than this strategy.
        small_start : whether a p-Identity search in the first pass starts with entries of Theta
            below 1.
        """
        # the zeros make sure that the sum is an array
        total = sum(w * gram for w, gram in zip(gram_weights, grams, strict=True)) + np.zeros_like(
            grams[0]
        )
        if self.noise == "gaussian":
            start = current.dual if isinstance(current, Solution) else None
            return gaussian_strategy(total, self.options, start)
        theta = current.theta if isinstance(current, PIdentity) else None
        # If Theta has one row, a search may end in a local minimum, from a start with entries above
        # 1 as well as from a start with entries below 1.  `p_identity_strategy` has entries above 1
        # by default.  With several starts, `_best_of_starts` tries both.
        if theta is None and small_start:
            theta = rng.random((default_p(total), len(total)))
        result = p_identity_strategy(total, restarts=1, seed=rng, start=theta)
        # The search may end in a local minimum that is worse than the current strategy.
        if current is not None and float(np.sum(_covariance(current) * total)) <= result.error:
            return current
        return result


def _covariance(strategy: Solution | PIdentity) -> Array:
    """Return the covariance of the estimated cells at noise variance 1, shape (cells, cells)."""
    return strategy.strategy.covariance if isinstance(strategy, Solution) else strategy.inverse


def _gram_weights(problem: ProductGrams, costs: Sequence[Array], u: int) -> Array:
    """Return the weight of every Gram matrix of unit u in the squared error, up to a factor.

    The term of a group is its weight times the product of its squared errors (``costs``) on all
    other units.  The weight of a matrix is the sum of the terms of all groups that have this matrix
    on unit u.
    """
    # Products over many units could overflow, so their logarithms are added.
    logs = np.log(problem.weights)
    for other, unit_costs in enumerate(costs):
        if other != u:
            # The logarithm of an error of 0 would be infinite.
            logs = logs + np.log(np.maximum(unit_costs[problem.choice[:, other]], 1e-300))
    terms = np.exp(logs - logs.max())
    return np.bincount(problem.choice[:, u], weights=terms, minlength=len(problem.grams[u])).astype(
        float
    )


def product_component(
    workload: Workload, problem: ProductGrams, strategy: KroneckerStrategy, share: float
) -> Component:
    """Return a `Component` that measures a product strategy.

    ``share`` is its share of the budget.
    """
    axis_of = {name: axis for axis, name in enumerate(problem.attributes)}
    factors = tuple(
        (
            tuple(axis_of[name] for name in unit),
            replace(factor.strategy, sizes=workload.schema.sizes(unit)),
        )
        for unit, factor in zip(problem.units, strategy.factors, strict=True)
    )
    return Component(
        attributes=problem.attributes, factors=factors, share=share, groups=problem.groups
    )


def search_seconds(problem: ProductGrams, restarts: int) -> float:
    """Return the expected time of `KroneckerSolver.solve` in seconds on one idle core."""
    independent = all(len(unit) == 1 for unit in problem.grams)
    sweeps = 1.0 if independent else EXPECTED_SWEEPS * max(1, restarts)
    return sweeps * math.fsum(unit_seconds(unit[0].cells) for unit in problem.grams)


def unit_seconds(cells: int) -> float:
    """Return the expected time of the search on one unit, in seconds on one idle core."""
    # seconds per search, per entry of a matrix of shape (cells, cells), and per cubed number of cells
    return 4e-4 + 5e-7 * cells**2 + 3e-9 * cells**3


# Number of starts of `table_design`, and relative RMSE gap at which its search on a unit stops.
# Both are the defaults of HDMM.
RESTARTS, GAP = 2, 1e-5
# largest number of cells of a table for which `table_seconds` is finite
MAX_TABLE_CELLS = 100_000


def table_seconds(workload: Workload) -> float:
    """Return the expected time of `table_design`, in seconds on one idle core.

    A unit is a set of attributes with one strategy matrix.  The time is infinite if the table has
    more than `MAX_TABLE_CELLS` cells, if a unit has too many cells, or if there is only one unit.

    >>> from engine import Attribute, Schema
    >>> pair = Workload(Schema([Attribute.of_size(c, 4) for c in "ab"])).add(("a", "b"), "affine")
    >>> table_seconds(pair), table_seconds(Workload(pair.schema).add(("a", "b"), "prefix")) < 0.1
    (inf, True)
    """
    attributes = {
        index
        for group_class in workload.group_classes
        for index in np.unique(group_class.places).tolist()
    }
    if math.prod(workload.schema.attributes[index].size for index in attributes) > MAX_TABLE_CELLS:
        return math.inf
    try:
        problem = GramBuilder(workload).build(weighted_groups(workload))
    except NotApplicable:
        return math.inf
    return search_seconds(problem, RESTARTS) if len(problem.units) > 1 else math.inf


def table_design(workload: Workload, deadline: float, tell: Tell) -> Design:
    """Return the design that measures one product strategy on one table, with Gaussian noise.

    The table has the attributes of all groups that have a nonzero query of positive weight.

    Parameters
    ----------
    deadline : time at which the search stops, on the clock of `planning_time`.
    tell : progress callback with a text, called before every search; it may raise to cancel.

    Raises
    ------
    NotApplicable
        If a unit (set of attributes with one strategy matrix) has too many cells.
    """
    solver = KroneckerSolver("gaussian", restarts=RESTARTS, gap=GAP, deadline=deadline, tell=tell)
    problem = GramBuilder(workload).build(weighted_groups(workload))
    component = product_component(workload, problem, solver.solve(problem), 1.0)
    # The search ignores groups of weight 0.  The table answers every group whose attributes are
    # attributes of the table.
    answered = (
        k for k, g in enumerate(workload.groups) if set(g.attributes) <= set(problem.attributes)
    )
    component = replace(component, groups=tuple(answered))
    # A plan file contains these arrays.  The design is built from the arrays here, too, so that
    # this plan equals the plan of the file.
    arrays = Design(components=(component,)).arrays(workload.schema)
    return Design.from_arrays(arrays, workload, "gaussian")
