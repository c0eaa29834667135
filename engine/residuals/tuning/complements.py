"""Tuned complements of pairs of attributes, optimised jointly with the strategies.

A query on a pair of attributes is split between the residual spaces of the pair, of its two
attributes and of the total.  The product of the two centers determines one way to split the query.
A complement of the pair can describe every linear way.  In residual coordinates a query q on the
pair (i, j) has the coefficients

    c    on the pair,   c = q (N_i (x) N_j)
    a_i  on i,          a_i = q (N_i (x) pi_j) + c D_i         (likewise j)
    a_0  on the total,  a_0 = q (pi_i (x) pi_j) + c D_0

The matrices D = (D_i, D_j, D_0) are the complement and can be chosen freely.  The strategy of the
pair measures residual coordinates with the lift

    L_B = L_i (x) L_j - D_i (L_i (x) 1^T) - D_j (1^T (x) L_j) - D_0 (1^T (x) 1^T).

The estimates on the four spaces still add up to the query, so a release is unbiased.  Every block
is measured independently, so privacy costs add up and the optimal shares of the budget keep their
closed form.  D = 0 is the split by products of centers.

Tuning works in coordinates relative to uniform centers.  There Z_i, Z_j and z_0 of a pair take the
place of D_i, D_j and D_0, and an attribute has the parameter zeta = N^T pi.  Z only occurs in
products with the coefficients c of queries, so Z = V Y with an orthonormal basis V of these c.  Y
(Y_i, Y_j and y_0) and zeta are optimised.

The objective S is the sum over spaces of the smallest RMSE at privacy cost 1.  A strategy with rows
R in residual coordinates, for a space with Gram G and lift M, has the weighted squared error f and
the squared sensitivity d:

    f = tr(G (R^T R)^-1),      d = largest squared norm of a column of R M.

Its RMSE at privacy cost 1 is sqrt(f d).  The maximum in d is replaced by a p-norm over the cells.
This makes sqrt(f d) smooth and at most (cells)^(1/(2p)) times as large.  L-BFGS minimises the sum
over the complements, the centers and the strategies of all spaces at once.  The search starts from
the published split Z = 0, zeta = 0 and increases p.  Separate searches for the optimal strategies
of every intermediate split would take ten times as long.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from engine._arrays import Array, thin_svd
from engine._threads import threads_for
from engine.progress import Listener
from engine.residuals.basis import Complement, Lift, Space, basis, residual_rows, swap_pair
from engine.residuals.decomposition import MIN_TRACE_SHARE, product_rows, reduce_rows, rows_bytes
from engine.residuals.search_costs import step_seconds
from engine.residuals.tuning.center_objective import Allowance
from engine.workload import Group, Workload

# The square roots of a Gram's eigenvalues are raised to at least this share of the largest root,
# because initial strategies must be invertible.
MIN_ROOT_SHARE = 1e-4


@dataclass(frozen=True, kw_only=True, eq=False)
class StrategyRmse:
    """RMSE of a strategy at privacy cost 1, with its derivatives.

    Attributes
    ----------
    value : sqrt(f d), where f is the weighted squared error and d the squared sensitivity.
    by_strategy, by_gram, by_lift : derivative of ``value`` with respect to strategy, Gram and lift;
        each has the shape of that matrix.
    """

    value: float
    by_strategy: Array
    by_gram: Array
    by_lift: Array


def strategy_rmse(gram: Array, strategy: Array, lift: Array, power: float) -> StrategyRmse:
    """Return the RMSE sqrt(f d) of a strategy at privacy cost 1, and its derivatives.

    f is the weighted squared error.  d is the squared sensitivity, but with the p-norm over cells
    for p = ``power`` in place of the maximum.  Gram and strategy have shape (r, r), the lift has
    shape (r, cells).  Raises LinAlgError if the strategy is singular.

    >>> identity = np.eye(2)
    >>> round(strategy_rmse(identity, 2.0 * identity, identity, 1e6).value, 4)  # f = 2 / 4, d = 4
    1.4142
    """
    inverse = np.linalg.inv(strategy)
    error_matrix = inverse.T @ gram @ inverse
    rows = strategy @ lift
    norms = np.einsum("rc,rc->c", rows, rows)
    largest = float(norms.max())
    # The p-norm is computed from norms divided by the largest one, so that high powers cannot
    # overflow.
    powers = (norms / largest) ** (power - 1.0)
    total = float(powers @ norms) / largest
    f, d = float(np.trace(error_matrix)), largest * total ** (1.0 / power)
    value = math.sqrt(f * d)
    by_rows = rows * (powers * total ** (1.0 / power - 1.0) * value / d)
    return StrategyRmse(
        value=value,
        by_strategy=by_rows @ lift.T - (value / f) * error_matrix @ inverse.T,
        by_gram=(0.5 * value / f) * inverse @ inverse.T,
        by_lift=strategy.T @ by_rows,
    )


def initial_strategy(gram: Array) -> Array:
    """Return the fourth root of a Gram, scaled to spectral norm 1, shape (r, r).

    The result is the initial strategy of the search.  If all cells have the same privacy cost under
    this strategy, it is optimal up to scale.
    """
    eigenvalues, U = np.linalg.eigh(gram)
    root = np.sqrt(np.maximum(eigenvalues, MIN_ROOT_SHARE**2 * eigenvalues[-1]))
    return np.asarray((U * np.sqrt(root / root[-1])) @ U.T)


# complements (see the module docstring) are tuned only if every queried table of two attributes has
# at most this number of cells
MAX_CELLS = 2_600
# complements (see the module docstring) are tuned only if the query rows of every group on a pair
# of attributes have at most this number of entries, because the variances of a plan with
# complements are computed query by query
MAX_QUERY_ENTRIES = 1e9
# number of vectors with one entry per parameter that L-BFGS holds in memory
OPTIMISER_VECTORS = 60
# complements and the objective S are defined in the module docstring; complements are tuned only if
# this number of evaluations of S fits into the time limit
MIN_EVALUATIONS = 200
# measured time to prepare the search, per class of pairs, in seconds; used by forecasts
PAIR_CLASS_SECONDS = 0.8
# expected number of evaluations of the objective S; used by forecasts
FORECAST_EVALUATIONS = 900
# names of the families that are invariant under a cyclic shift of the cells
CYCLIC = ("marginal", "circular", "total")
# singular values of the residual rows below this share of the largest count as zero
MIN_SINGULAR_SHARE = 1e-6
# the groups on one pair of attributes, each with True if the group has the attributes in reverse
# schema order
PairGroups = list[tuple[Group, bool]]


def can_tune(workload: Workload) -> bool:
    """Return whether complements (splits of pairs) of this workload can be tuned.

    Conditions on all groups: at most two attributes, and one weight for all queries of a group.
    Conditions on the groups of positive weight on two attributes: at least two cells per attribute,
    at most `MAX_CELLS` cells per table, and at most `MAX_QUERY_ENTRIES` entries of query rows.  At
    least one of these groups must not be a product.
    """
    firsts = [workload.groups[group_class.numbers[0]] for group_class in workload.group_classes]
    if any(len(g.attributes) > 2 or g.query_weights is not None for g in firsts):
        return False
    has_weight = [
        any(workload.groups[i].weight > 0 for i in group_class.numbers)
        for group_class in workload.group_classes
    ]
    # the first group of every class of groups on pairs of attributes, if some group of the class
    # has positive weight
    on_pairs = [g for g in itertools.compress(firsts, has_weight) if len(g.attributes) == 2]
    if any(min(g.sizes) == 1 or math.prod(g.sizes) > MAX_CELLS for g in on_pairs):
        return False
    if any(g.count * math.prod(g.sizes) > MAX_QUERY_ENTRIES for g in on_pairs):
        return False
    return any(len(g.parts) == 1 for g in on_pairs)


def cyclic(workload: Workload) -> bool:
    """Return whether the workload is invariant under a cyclic shift of the cells of any attribute.

    For such a workload, uniform centers are optimal, and the best of all matrix mechanisms measures
    every residual space separately.
    """
    firsts = [workload.groups[group_class.numbers[0]] for group_class in workload.group_classes]
    return all(g.query_weights is None and p.family.name in CYCLIC for g in firsts for p in g.parts)


def affordable(workload: Workload, allowance: Allowance) -> bool:
    """Return whether the search for complements (of pairs) is expected to fit into the limits."""
    # memory that is in use during the whole search and additional memory of one step, in bytes;
    # time of one evaluation of the objective S, in seconds
    retained, peak, seconds = 0, 0, 0.0
    parameters = sum(a.size**2 for a in workload.schema.attributes)
    for sizes, groups in _class_representatives(workload):
        cells, d = math.prod(sizes), math.prod(n - 1 for n in sizes)
        rows = _row_counts(groups)
        row_count = min(sum(rows), cells)
        rank = min(row_count, d)
        parameters += rank * (rank + sum(sizes))
        retained += 8 * (row_count * (rank + sum(sizes)) + 2 * rank * cells + 3 * d * sum(sizes))
        row_bytes = max(sum(map(rows_bytes, g.parts)) for g, _ in groups) + 40 * sum(rows) * cells
        preparation = row_bytes + 24 * rank * (row_count + d)
        peak = max(peak, preparation, 8 * rank * (8 * cells + 10 * rank))
        seconds += step_seconds(rank, cells)
    fits = allowance.fits(8 * OPTIMISER_VECTORS * parameters + retained + peak)
    return fits and allowance.is_short(seconds) and allowance.has_time(MIN_EVALUATIONS * seconds)


def pair_kinds(workload: Workload) -> dict[Any, dict[Space, PairGroups]]:
    """Return the classes of attribute pairs with queries, and the groups on every pair.

    Pairs of one class have equal sizes and equal groups.  The result maps the key of a class, a
    tuple (sizes, groups), to a mapping from each pair of the class to its groups.  Attributes of a
    pair are in schema order.  Groups of weight 0 are left out.
    """
    on_pair: dict[Space, PairGroups] = {}
    for group in workload.groups:
        if group.weight > 0.0 and len(group.attributes) == 2:
            pair = workload.schema.ranked(group.attributes)
            on_pair.setdefault(pair, []).append((group, group.attributes != pair))
    classes: dict[Any, dict[Space, PairGroups]] = {}
    for pair, pair_groups in on_pair.items():
        group_counts = Counter((g.key, g.weight, is_reversed) for g, is_reversed in pair_groups)
        key = (workload.schema.sizes(pair), frozenset(group_counts.items()))
        classes.setdefault(key, {})[pair] = pair_groups
    return classes


def complement_seconds(workload: Workload) -> float:
    """Return the expected time of the search for complements (of pairs), in core seconds."""
    seconds = 0.0
    for sizes, groups in _class_representatives(workload):
        rank = min(sum(_row_counts(groups)), math.prod(n - 1 for n in sizes))
        seconds += PAIR_CLASS_SECONDS + FORECAST_EVALUATIONS * step_seconds(rank, math.prod(sizes))
    return seconds


def _class_representatives(workload: Workload) -> list[tuple[tuple[int, int], PairGroups]]:
    """Return one tuple (sizes, groups on one pair of the class) for each class of `pair_kinds`.

    The pairs of a class have equal domain sizes and equal groups.
    """
    return [(key[0], pairs[next(iter(pairs))]) for key, pairs in pair_kinds(workload).items()]


def _row_counts(groups: PairGroups) -> list[int]:
    """Return an upper bound on the number of rows of `product_rows` for each group."""
    return [math.prod(min(p.count, p.cells) for p in g.parts) for g, _ in groups]


def has_product_only_pair(workload: Workload) -> bool:
    """Return whether there is a pair of attributes on which all groups are products.

    If there is one, tuned centers may be more accurate than complements (tuned splits of pairs).
    """
    pairs: dict[frozenset[str], bool] = {}
    for group in workload.groups:
        if group.weight > 0 and len(group.attributes) == 2:
            pair = frozenset(group.attributes)
            pairs[pair] = pairs.get(pair, False) or len(group.parts) == 1
    return not all(pairs.values())


@dataclass(kw_only=True, eq=False)
class PairKind:
    """Equivalence class of pairs, with the coefficients of their queries at uniform centers.

    Attributes
    ----------
    sizes : sizes of the two attributes.
    query_rows : coefficients of the queries on the residual space of the pair, in the basis V;
        shape (queries, r).  All queries on a pair are replaced by rows with the same Gram.
    pair_basis : the basis V: orthonormal columns, shape (residual coordinates, r).
    A : coefficients of the queries on the residual space of each attribute, shapes (queries,
        n_i - 1).
    a0 : coefficients of the queries on the total, shape (queries,).
    is_swap_invariant : whether the Gram does not change when the two attributes are swapped; in
        this case Y_j follows from Y_i.
    count : number of pairs in the class.
    """

    sizes: tuple[int, int]
    query_rows: Array
    pair_basis: Array
    A: tuple[Array, Array]
    a0: Array
    is_swap_invariant: bool
    count: int = 0

    @cached_property
    def gram(self) -> Array:
        """Gram of the queries on the residual space of the pair, in the basis V, shape (r, r)."""
        return self.query_rows.T @ self.query_rows

    @cached_property
    def lift(self) -> Array:
        """Lift V^T (L_i (x) L_j) of the pair at uniform centers, shape (r, n_i, n_j)."""
        return (
            Lift(self.sizes).rows(np.ascontiguousarray(self.pair_basis.T)).reshape(-1, *self.sizes)
        )

    @cached_property
    def swap_matrix(self) -> Array:
        """Matrix of the swap of the two attributes in the basis V, shape (r, r)."""
        return self.pair_basis.T @ swap_pair(self.pair_basis, *(n - 1 for n in self.sizes))


def pair_kind_of(sizes: tuple[int, ...], groups: PairGroups) -> PairKind:
    """Return the class of pairs with these domain sizes and groups; its ``count`` is still 0.

    The queries are replaced by rows with the same Gram, at most as many as cells.

    Parameters
    ----------
    sizes : cells of the two attributes.
    groups : pairs (group, True if the group has the two attributes in reverse order).
    """
    blocks = []
    for group, is_reversed in groups:
        rows = math.sqrt(group.weight) * product_rows(group)
        if is_reversed:
            rows = np.swapaxes(rows.reshape(len(rows), sizes[1], sizes[0]), 1, 2).reshape(
                len(rows), -1
            )
        blocks.append(rows)
    stacked = reduce_rows(np.concatenate(blocks))
    is_swap_invariant = False
    if sizes[0] == sizes[1]:
        # The Grams before and after a swap of the two attributes are compared by their images of a
        # random vector.
        probe = np.random.default_rng(3).standard_normal(sizes)
        image = (stacked.T @ (stacked @ probe.ravel())).reshape(sizes)
        swapped_image = (stacked.T @ (stacked @ probe.T.ravel())).reshape(sizes).T
        is_swap_invariant = bool(
            np.allclose(image, swapped_image, rtol=0, atol=1e-9 * np.abs(image).max())
        )
    on_total = residual_rows(stacked, sizes, ())
    on_attributes = residual_rows(stacked, sizes, (0,)), residual_rows(stacked, sizes, (1,))
    U, singular_values, Vt = thin_svd(residual_rows(stacked, sizes, (0, 1)))
    is_nonzero = singular_values > max(
        MIN_SINGULAR_SHARE * singular_values.max(initial=0.0),
        math.sqrt(MIN_TRACE_SHARE * np.sum(stacked**2)),
    )
    return PairKind(
        sizes=(sizes[0], sizes[1]),
        query_rows=U[:, is_nonzero] * singular_values[is_nonzero],
        pair_basis=Vt[is_nonzero].T,
        A=on_attributes,
        a0=on_total[:, 0],
        is_swap_invariant=is_swap_invariant,
    )


# powers p of the norm over cells, in the order of their use, with the largest number of steps of
# L-BFGS for each
STEPS_BY_POWER = {16.0: 100, 64.0: 150, 256.0: 250, 1024.0: 150, 4096.0: 80}
# the search with one power ends if a step lowers the logarithm of the objective S by less than this
MIN_DECREASE = 1e-8
# If an evaluation is expected to take t < QUICK_STEP_S seconds, the numbers of steps are multiplied
# by QUICK_STEP_S / t, but at most by MAX_STEP_FACTOR.
MAX_STEP_FACTOR, QUICK_STEP_S = 6.0, 3e-4


@dataclass(kw_only=True, eq=False)
class SingleKind:
    """Equivalence class of attributes, with the coefficients of the queries on the attribute alone.

    Attributes
    ----------
    n : domain size of the attribute.
    query_rows : coefficients of the queries on the residual space, shape (queries, n - 1).
    total : coefficients of the queries on the total, shape (queries,).
    pair_counts : number of pairs that contain one attribute of the class.  The key is (index of the
        class of the pair, position of the attribute in the pair).  If the class of the pair is
        invariant under a swap, the position is 0 for both attributes.
    count : number of attributes in the class.
    """

    n: int
    query_rows: Array
    total: Array
    pair_counts: Counter[tuple[int, int]] = field(default_factory=Counter)
    count: int = 0


class ComplementProblem:
    """Objective S as a function of strategies, complements (of pairs) and centers, with gradient.

    Complements are given by Y and y_0 of every class of pairs, centers by zeta of every class of
    attributes, and strategies by parameters E: a strategy is (I + E) times its initial value.  If
    all parameters are 0, centers are uniform and there are no complements.

    Let p be the index of a class of pairs and s that of a class of attributes.  The parameters are
    named ("pair", p) and ("single", s) for E, ("Y", p, 0) for Y_i, ("Y", p, 1) for Y_j, ("y", p)
    for y_0, and ("zeta", s) for zeta.
    """

    def __init__(
        self, workload: Workload, watch: Listener, allowance: Allowance | None = None
    ) -> None:
        self.workload, self.watch, self.allowance = workload, watch, allowance or Allowance()
        self.power = max(STEPS_BY_POWER)
        # classes of pairs and of attributes
        self.pairs: list[PairKind] = []
        self.singles: list[SingleKind] = []
        # index of the class of every pair and of every attribute
        self.pair_kind: dict[Space, int] = {}
        self.single_kind: dict[str, int] = {}
        self._find_pair_kinds()
        self._find_single_kinds()
        # Number of pairs by three indices: class of the pair, class of its first attribute, class
        # of its second attribute.
        self.pair_counts = Counter(
            (p, self.single_kind[a], self.single_kind[b]) for (a, b), p in self.pair_kind.items()
        )
        self.total_query_weight = math.fsum(g.weight for g in workload.groups if not g.attributes)
        self._layout()

    def _find_pair_kinds(self) -> None:
        for p, ((sizes, _), pairs) in enumerate(pair_kinds(self.workload).items()):
            self.pairs.append(pair_kind_of(sizes, pairs[next(iter(pairs))]))
            self.pairs[p].count = len(pairs)
            self.pair_kind |= dict.fromkeys(pairs, p)

    def _find_single_kinds(self) -> None:
        """Set the classes of attributes that have queries, alone or in a pair."""
        groups_on: dict[str, list[Group]] = {}
        for group in self.workload.groups:
            if group.weight > 0.0 and len(group.attributes) == 1:
                groups_on.setdefault(group.attributes[0], []).append(group)
        pair_counts_of = self._pair_counts_by_attribute()
        kind_indices: dict[Any, int] = {}
        for name in self.workload.schema.names:
            groups = groups_on.get(name, [])
            pair_counts = pair_counts_of.get(name, Counter())
            if not groups and not pair_counts:
                continue
            n = self.workload.schema[name].size
            # attributes of one class share their parameters, so that the search has fewer
            # parameters
            kind_key = (
                n,
                frozenset(Counter((g.key, g.weight) for g in groups).items()),
                frozenset(pair_counts.items()),
            )
            if kind_key not in kind_indices:
                kind_indices[kind_key] = len(self.singles)
                rows = [math.sqrt(g.weight) * product_rows(g) for g in groups]
                stacked = np.concatenate(rows or [np.zeros((0, n))])
                self.singles.append(
                    SingleKind(
                        n=n,
                        query_rows=stacked @ basis(n),
                        total=stacked.mean(axis=1),
                        pair_counts=pair_counts,
                    )
                )
            self.single_kind[name] = kind_indices[kind_key]
            self.singles[kind_indices[kind_key]].count += 1

    def _pair_counts_by_attribute(self) -> dict[str, Counter[tuple[int, int]]]:
        """Return for every attribute how many pairs contain it, by class of the pair and position.

        The keys of a counter are those of `SingleKind.pair_counts`.
        """
        pair_counts_of: dict[str, Counter[tuple[int, int]]] = {}
        for pair, p in self.pair_kind.items():
            for slot, name in enumerate(pair):
                position = 0 if self.pairs[p].is_swap_invariant else slot
                pair_counts_of.setdefault(name, Counter())[p, position] += 1
        return pair_counts_of

    def _layout(self) -> None:
        """Set the names and shapes of all parameters, and the initial strategies.

        The parameters are a strategy for every pair and every attribute with queries, Y_i, Y_j and
        y_0 of the complement of every class of pairs, and the center zeta of every class of
        attributes; see the module's docstring.
        """
        self.shapes: list[tuple[Any, tuple[int, ...]]] = []
        self.initial_strategies: dict[Any, Array] = {}
        for p, kind in enumerate(self.pairs):
            r = len(kind.gram)
            if r:
                self._add_strategy(("pair", p), kind.gram)
            self.shapes.append((("Y", p, 0), (r, kind.sizes[0] - 1)))
            if not kind.is_swap_invariant:
                self.shapes.append((("Y", p, 1), (r, kind.sizes[1] - 1)))
            self.shapes.append((("y", p), (r,)))
        for s, single in enumerate(self.singles):
            gram = self._gram_on_attribute(
                single, {key: self.pairs[key[0]].A[key[1]] for key in single.pair_counts}
            )
            if np.trace(gram) > 0.0:
                self._add_strategy(("single", s), gram)
            self.shapes.append((("zeta", s), (single.n - 1,)))
        self.length = sum(math.prod(shape) for _, shape in self.shapes)

    def _add_strategy(self, name: Any, gram: Array) -> None:
        self.initial_strategies[name] = initial_strategy(gram)
        self.shapes.append((name, gram.shape))

    @staticmethod
    def _gram_on_attribute(kind: SingleKind, on_attribute: Mapping[Any, Array]) -> Array:
        """Return the Gram of all queries on the residual space of one attribute, (n - 1, n - 1).

        It is the sum of the Grams of the queries on the attribute alone and on its pairs.
        ``on_attribute`` maps the keys of ``kind.pair_counts`` to the coefficients that the queries
        on these pairs have on the residual space of the attribute.
        """
        gram = kind.query_rows.T @ kind.query_rows
        for key, count in kind.pair_counts.items():
            gram = gram + count * on_attribute[key].T @ on_attribute[key]
        return gram

    def parameters(self, x: Array) -> dict[Any, Array]:
        """Return the parameters by name, with the shapes in ``shapes``, from one vector (length,).

        If a class of pairs is invariant under swapping the attributes, Y_j is not in the vector but
        computed from Y_i, and y_0 is made symmetric.
        """
        values, start = {}, 0
        for name, shape in self.shapes:
            values[name] = x[start : start + math.prod(shape)].reshape(shape)
            start += math.prod(shape)
        for p, kind in enumerate(self.pairs):
            if kind.is_swap_invariant:
                values["Y", p, 1] = kind.swap_matrix @ values["Y", p, 0]
                values["y", p] = (values["y", p] + kind.swap_matrix @ values["y", p]) / 2.0
        return values

    def vector(self, gradient: dict[Any, Array]) -> Array:
        """Return the gradient with respect to the vector of all parameters, shape (length,).

        ``gradient`` maps the name of every value that `parameters` returns to the derivative with
        respect to this value.
        """
        for p, kind in enumerate(self.pairs):
            if kind.is_swap_invariant:
                gradient["Y", p, 0] = gradient["Y", p, 0] + kind.swap_matrix.T @ gradient["Y", p, 1]
                gradient["y", p] = (gradient["y", p] + kind.swap_matrix.T @ gradient["y", p]) / 2.0
        return np.concatenate([gradient[name].ravel() for name, _ in self.shapes])

    def even_part(self, x: Array) -> Array:
        """Remove from centers and complements (of pairs) what a reversal of all attributes changes.

        Coefficients that change sign under reversal become 0, and strategies stay as they are.
        ``x`` and the result have shape (length,).
        """
        values = {name: value.copy() for name, value in self.parameters(x).items()}
        for name in values:
            if name[0] == "zeta":
                values[name][::2] = 0.0  # entry 0 is cosine 1, which is odd
            elif name[0] in ("Y", "y"):
                kind = self.pairs[name[1]]
                # A product of two cosines is odd if one of them is odd and the other is even.
                is_odd = np.add.outer(*(np.arange(1, n) % 2 for n in kind.sizes)).ravel() % 2 == 1
                Z = (kind.pair_basis @ values[name]).reshape(len(is_odd), -1)
                # Parameters that couple an odd coordinate to an even one are set to 0.  The total
                # is even.
                if name[0] == "Y":
                    is_odd_on_attribute = np.arange(1, kind.sizes[name[2]]) % 2 == 1
                    Z[is_odd[:, None] != is_odd_on_attribute] = 0.0
                else:
                    Z[is_odd] = 0.0
                values[name] = kind.pair_basis.T @ Z.reshape(len(is_odd), *values[name].shape[1:])
        return np.concatenate([values[name].ravel() for name, _ in self.shapes])

    def evaluate(self, x: Array) -> tuple[float, Array]:
        """Return the error S with the p-norm of the current ``power``, and its gradient.

        The parameters ``x`` and the gradient have shape (length,).

        Raises
        ------
        TimeoutError : the deadline has passed.
        LinAlgError : a strategy is singular.
        """
        values = self.parameters(x)
        gradient = {name: np.zeros_like(value) for name, value in values.items()}
        # coefficients that the queries on a pair have on the residual space of one of its
        # attributes, by (class of the pair, position of the attribute in the pair)
        on_attribute = {
            (p, slot): kind.A[slot] + kind.query_rows @ values["Y", p, slot]
            for p, kind in enumerate(self.pairs)
            for slot in (0, 1)
        }
        S = math.fsum(
            self._pair_term(p, kind, values, gradient) for p, kind in enumerate(self.pairs)
        )
        S += math.fsum(
            self._single_term(s, kind, values, on_attribute, gradient)
            for s, kind in enumerate(self.singles)
        )
        S += self._total_term(values, on_attribute, gradient)
        return S, self.vector(gradient)

    def _strategy_rmse(
        self,
        name: Any,
        count: int,
        gram: Array,
        lift: Array,
        values: Mapping[Any, Array],
        gradient: dict[Any, Array],
    ) -> StrategyRmse:
        """Return the RMSE of the strategy (I + E) B_0, with its derivatives.

        E is the parameter ``name`` in ``values``, and B_0 its initial strategy.  The derivative
        with respect to E, times ``count``, is added to ``gradient``.
        """
        self.allowance.check()
        initial = self.initial_strategies[name]
        with threads_for(len(gram)):
            result = strategy_rmse(gram, initial + values[name] @ initial, lift, self.power)
            gradient[name] += count * result.by_strategy @ initial.T
        return result

    def _pair_term(
        self, p: int, kind: PairKind, values: Mapping[Any, Array], gradient: dict[Any, Array]
    ) -> float:
        """Return what a class of attribute pairs adds to the objective S: count times RMSE.

        The derivatives of this summand with respect to all parameters are added to ``gradient``.
        """
        if ("pair", p) not in self.initial_strategies:
            return 0.0
        N = [basis(n) for n in kind.sizes]
        # The lift of the pair in the basis V is
        # V^T (N_0^T (x) N_1^T) - Y_0 (N_0^T (x) 1^T) - Y_1 (1^T (x) N_1^T) - y (1^T (x) 1^T).
        lift = kind.lift - (values["Y", p, 0] @ N[0].T)[:, :, None]
        lift -= (values["Y", p, 1] @ N[1].T)[:, None, :]
        lift -= values["y", p][:, None, None]
        result = self._strategy_rmse(
            ("pair", p), kind.count, kind.gram, lift.reshape(len(lift), -1), values, gradient
        )
        by_lift = kind.count * result.by_lift.reshape(lift.shape)
        for slot in (0, 1):
            gradient["Y", p, slot] -= by_lift.sum(axis=2 - slot) @ N[slot]
        gradient["y", p] -= by_lift.sum(axis=(1, 2))
        return kind.count * result.value

    def _single_term(
        self,
        s: int,
        kind: SingleKind,
        values: Mapping[Any, Array],
        on_attribute: Mapping[Any, Array],
        gradient: dict[Any, Array],
    ) -> float:
        """Return what a class of attributes adds to the objective S: count times RMSE.

        The derivatives of this summand with respect to all parameters are added to ``gradient``.
        """
        if ("single", s) not in self.initial_strategies:
            return 0.0
        # In coordinates relative to the uniform center, the lift is N^T - zeta 1^T with zeta = N^T
        # pi.
        lift = basis(kind.n).T - values["zeta", s][:, None]
        result = self._strategy_rmse(
            ("single", s),
            kind.count,
            self._gram_on_attribute(kind, on_attribute),
            lift,
            values,
            gradient,
        )
        gradient["zeta", s] -= kind.count * result.by_lift.sum(axis=1)
        for (p, slot), count in kind.pair_counts.items():
            by_coefficients = on_attribute[p, slot] @ result.by_gram
            gradient["Y", p, slot] += (
                2.0 * kind.count * count * self.pairs[p].query_rows.T @ by_coefficients
            )
        return kind.count * result.value

    def _total_term(
        self,
        values: Mapping[Any, Array],
        on_attribute: Mapping[Any, Array],
        gradient: dict[Any, Array],
    ) -> float:
        """Return what the total adds to the objective S; add its derivatives to ``gradient``.

        The summand is the root of the sum of the squared coefficients of all queries on the total.
        ``values`` has the parameters by name.  ``on_attribute`` maps (class of pairs, 0 or 1) to
        the coefficients of the pair's queries on its first or second attribute.
        """
        square, derivatives = self.total_query_weight, list[tuple[Any, Array]]()
        for s, single in enumerate(self.singles):
            on_total = single.total + single.query_rows @ values["zeta", s]
            square += single.count * float(on_total @ on_total)
            derivatives.append((("zeta", s), 2.0 * single.count * single.query_rows.T @ on_total))
        for (p, *attribute_classes), count in self.pair_counts.items():
            kind = self.pairs[p]
            on_total = kind.a0 + kind.query_rows @ values["y", p]
            for slot, s in enumerate(attribute_classes):
                on_total = on_total + on_attribute[p, slot] @ values["zeta", s]
            square += count * float(on_total @ on_total)
            by_y = 2.0 * count * kind.query_rows.T @ on_total
            derivatives.append((("y", p), by_y))
            for slot, s in enumerate(attribute_classes):
                derivatives.append((("Y", p, slot), np.outer(by_y, values["zeta", s])))
                derivatives.append((("zeta", s), 2.0 * count * on_attribute[p, slot].T @ on_total))
        if square <= 0.0:  # the root has no derivative at 0
            return 0.0
        for name, derivative in derivatives:
            gradient[name] += 0.5 / math.sqrt(square) * derivative
        return math.sqrt(square)


def tuned_complements(
    workload: Workload,
    watch: Listener,
    start: Callable[[int], Array | None] = lambda _: None,
    allowance: Allowance | None = None,
) -> tuple[dict[str, Array], dict[Space, Complement], Array]:
    """Search for centers and complements (splits of pairs) with a small error S.

    S is the RMSE for strategies that are not quite optimal.  So the caller compares the error of
    the plan with that of uniform centers.

    Parameters
    ----------
    workload : the queries.
    watch : called with the fraction completed and a text; may raise to cancel.
    start : function that gets the number of parameters and returns initial values, or None to start
        at uniform centers.
    allowance : limits of memory and time; None for the defaults of `Allowance`.

    Returns
    -------
    The centers, a mapping from attributes to vectors of shape (n_i,); the complements, a mapping
    from pairs in schema order; the vector of all parameters.  If the time limit ends the search,
    these are the best values so far.  Both mappings are empty if all parameters are 0.
    """
    problem = ComplementProblem(workload, watch, allowance)
    search = _Search(problem)
    with contextlib.suppress(TimeoutError):
        search.run(start(problem.length))
    if search.x.any():
        return *split_of(problem, search.x), search.x
    return {}, {}, search.x


class _Search:
    """Minimisation of the objective S by L-BFGS, with increasing powers p of the norm over cells.

    ``x`` holds the best parameters for the current power.
    """

    def __init__(self, problem: ComplementProblem) -> None:
        self.problem, self.x, self.done = problem, np.zeros(problem.length), 0

    def run(self, initial: Array | None) -> None:
        """Minimise the error S with increasing powers p of the norm over cells.

        The search starts at the parameters ``initial`` and leaves out the two smallest powers.  If
        ``initial`` is None, it starts at uniform centers with the smallest power.
        """
        self.x = self.x if initial is None else initial.copy()
        seconds = math.fsum(
            step_seconds(len(k.gram), math.prod(k.sizes)) for k in self.problem.pairs
        )
        # quick steps are repeated more often
        step_factor = min(MAX_STEP_FACTOR, max(1.0, QUICK_STEP_S / max(seconds, 1e-9)))
        powers = list(STEPS_BY_POWER.items())
        for power, steps in powers if initial is None else powers[2:]:
            self.problem.power = power
            self._descend(math.ceil(step_factor * steps))
        # If the workload is invariant under reversal of all attributes, coefficients that change
        # sign under reversal are rounding errors. Such small coefficients would give some queries
        # components that are too small to measure. The coefficients are set to 0, unless this
        # increases the objective S.
        even = self.problem.even_part(self.x)
        if even.any() and self.problem.evaluate(even)[0] <= self.problem.evaluate(self.x)[0] * (
            1.0 + MIN_DECREASE
        ):
            self.x = even

    def _descend(self, steps: int) -> None:
        """Minimise the error S for the current power by ``steps`` steps of L-BFGS or fewer."""
        import scipy.optimize

        lowest, total_steps = math.inf, sum(STEPS_BY_POWER.values())

        def log_value(x: Array) -> tuple[float, Array]:
            """Return log S and its gradient.  The ``x`` with the smallest S is stored."""
            nonlocal lowest
            self.done += 1
            self.problem.watch(
                min(1.0, self.done / total_steps), f"Tuning complements, step {self.done}"
            )
            try:
                S, gradient = self.problem.evaluate(x)
            except np.linalg.LinAlgError:
                S, gradient = math.inf, x
            if not math.isfinite(S):
                # The objective S is infinite if the step was too long. The large value makes the
                # line search try a shorter step.
                return 1e3, np.zeros_like(x)
            if lowest > S:
                lowest, self.x = S, x.copy()
            return math.log(S), gradient / S

        limits: Any = {
            "maxiter": steps,
            "maxfun": steps,
            "ftol": MIN_DECREASE,
            "gtol": 0.0,
            "maxcor": 20,
        }
        scipy.optimize.minimize(log_value, self.x, jac=True, method="L-BFGS-B", options=limits)


def split_of(
    problem: ComplementProblem, x: Array
) -> tuple[dict[str, Array], dict[Space, Complement]]:
    """Return the centers and the complements for a vector ``x`` of parameters, shape (length,).

    The parameters are zeta = N^T pi for the center pi of every class of attributes, and (Y_a, Y_b,
    y_0) for the complement (D_a, D_b, D_0) of every class of pairs (a, b), which splits the queries
    on a pair.  For uniform centers D = V Y with the orthonormal basis V of the pair; see the
    module's docstring.

    Returns
    -------
    centers : attribute -> its center, shape (n_i,).
    complements : pair of attributes -> its complement.
    """
    values = problem.parameters(x)
    zeta = {name: values["zeta", s] for name, s in problem.single_kind.items()}
    sizes = {name: problem.workload.schema[name].size for name in zeta}
    by_class: dict[Any, Complement] = {}
    complements = {}
    for pair, p in problem.pair_kind.items():
        a, b = pair
        key = (p, problem.single_kind[a], problem.single_kind[b])
        if key not in by_class:
            V = problem.pairs[p].pair_basis
            # V Y is relative to uniform centers, and the complement D is relative to the tuned
            # centers. The terms with zeta account for the difference between these centers.
            D_a = V @ values["Y", p, 0] - np.kron(np.eye(sizes[a] - 1), zeta[b][:, None])
            D_b = V @ values["Y", p, 1] - np.kron(zeta[a][:, None], np.eye(sizes[b] - 1))
            D_0 = V @ values["y", p] + np.kron(zeta[a], zeta[b]) + D_a @ zeta[a] + D_b @ zeta[b]
            by_class[key] = Complement(by_axis=(D_a, D_b), by_total=D_0)
        complements[pair] = by_class[key]
    centers = {name: 1.0 / sizes[name] + basis(sizes[name]) @ z for name, z in zeta.items()}
    return centers, complements
