"""Lower bounds on the error of matrix mechanisms.

**Every matrix mechanism.**  Let mu be any probability weights on the cells of the full domain and D
= diag(mu).  Then no strategy of privacy cost 1 has a smaller weighted squared error for the queries
W than |W D^(1/2)|_*^2, the squared nuclear norm.  For a small domain, the weights of all cells are
optimized at once, and the bound is exact up to the gap of that search.  Otherwise mu is a product
of weights of the attributes, or symmetric in them, and the norm is computed from small matrices
only:

    `reduce_workload` eliminates attributes with uniform optimal weights in closed form `Frame`
    queries on one attribute, in a basis of a few functions of its cells; the orthogonal complement
    of the basis adds one number (a pinching) `DenseNormBound` any workload: dense matrices on sets
    of attributes `SymmetricPairs` permutation-symmetric workloads of single attributes and pairs:
    block
                          diagonalization by the symmetric group
    `SymmetricProducts`   permutation-symmetric products of any order, with two functions per
                          attribute
    `CompositionBound`    permutation-symmetric workloads under weights that are not products
    `root_trace`          nuclear norms, lowered by more than their rounding errors

`maximize_bound` optimizes the weights by L-BFGS on the logarithm of the bound with its exact
gradient.  A search uses few functions per attribute; at its end, the weights are evaluated with as
many functions as the time allows.  Omitting rows or blocks cannot raise a nuclear norm, so a bound
stays valid without the matrices that are too large.  Every intermediate value of the search is a
valid bound, so the search may end at any time.

Source: our own; the bound for one mu is the dual of the matrix mechanism.

**Plans that measure residual spaces independently** (`independent_bound`).  The joint cost of a
plan is the maximum over cells of the summed costs of its blocks.  For weights mu of the cells of
the full domain, with sum 1, it is at least the mean over mu of the costs of the cells.  With T_k
the nuclear norm of G_k^(1/2) L_k diag(mu_k)^(1/2), G_k the residual Gram of block k, L_k its lift
and mu_k the marginal of mu on its attributes, no plan of cost 1 has a smaller weighted squared
error than

    (sum over blocks of T_k)^2.

All blocks have the same mu here.  Different weights for every block would give a larger value, but
it would be a bound only for plans whose cost is the sum of the costs of their blocks.  mu is a
product of weights of the attributes, with equal weights for equivalent attributes.  The search
starts at uniform weights; every step moves the weights of an attribute towards the costs of its
cells under the optimal plan for mu.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections import Counter
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import scipy

from engine._arrays import Array
from engine._clock import planning_time
from engine._threads import threads_for
from engine.bounds.product_weights import (
    AttributeClass,
    DenseNormBound,
    ReducedWorkload,
    State,
    Subproblem,
    error_bound,
    lower_eigenvalues,
    reduce_workload,
    root_trace,
)
from engine.bounds.symmetric import (
    FUNCTIONS_PER_ATTRIBUTE,
    SymmetricPairs,
    SymmetricProducts,
    product_weights_by_size,
    shares_norm,
    symmetric_terms,
)
from engine.errors import LimitExceeded
from engine.residuals import (
    Axes,
    DualProblem,
    Factor,
    FullDomain,
    Lift,
    Options,
    Space,
    SplitLift,
    center,
    contract,
    digest,
)
from engine.residuals.basis import FullTable
from engine.residuals.decomposition import (
    Decomposition,
    IntervalFactor,
    LevelFactor,
    Subworkload,
    gram_on_axes,
    has_identity_gram,
    interval_gram,
    merge_terms,
)
from engine.residuals.interval_solver import (
    MIN_SHARE,
    IntervalGram,
    IntervalSpace,
    evaluate,
    total_square,
)
from engine.residuals.interval_solver import solve as solve_intervals
from engine.residuals.level_solver import MIN_SHARE as MIN_AREA_SHARE
from engine.residuals.level_solver import LevelProblem
from engine.residuals.search_costs import eigen_seconds
from engine.workload import Group, Workload

# `largest_entry_bound` leaves out a group of product queries if one of its factors has more
# coefficients than this (marginals of wide attributes excepted)
MAX_BOUND_ENTRIES = 40_000_000
# largest number of steps of the search of `independent_bound`
MAX_STEPS = 15
# largest numbers of nuclear norms and of floating-point operations that the search of
# `independent_bound` may compute; the first step is made even if it exceeds these numbers
MAX_NORMS, MAX_FLOPS = 3_000, 4e9
# a sum of Kronecker products is formed as one matrix up to this number of residual coordinates
MAX_DIMENSION = 1_000
# the search of `independent_bound` ends when a step raises the bound by less than this share
MIN_GAIN = 1e-7
# measured time to form a sum of Kronecker products, compute its root and its nuclear norm, relative
# to the expected time of one symmetric eigenvalue problem of this order
DENSE_NORM_RATIO = 5.0


@dataclass(frozen=True, kw_only=True, eq=False)
class _Norm:
    """Nuclear norm of one Kronecker factor of a Gram, as a function of the weights of its cells.

    Attributes
    ----------
    sizes : number of cells of each axis.
    rows : G^(1/2) L with the residual Gram G and the lift L of the factor, shape (rank, cells).
    """

    sizes: tuple[int, ...]
    rows: Array

    @property
    def flops(self) -> float:
        """Floating-point operations of the matrix product in `at`."""
        return float(len(self.rows) ** 2 * self.rows.shape[1])

    def at(self, weights: Sequence[Array]) -> tuple[float, list[Array]]:
        """Return a lower bound on the nuclear norm T, and the share of every cell in T.

        Parameters
        ----------
        weights : one array per axis, shape (n_i,).  The weight of a cell is the product of one
            entry of each array.

        Returns
        -------
        norm : the lower bound.
        shares : one array per axis, shape (n_i,).  The share of a cell is proportional to its
            weight times its privacy cost under the optimal strategy for the weights.  Each array
            has the sums of the shares over all other axes.  An array has sum 1.  If the norm is 0,
            all entries are 0.
        """
        mass: Array = np.ones(())
        for axis_weights in weights:
            mass = np.multiply.outer(mass, axis_weights)
        mass = mass.ravel()
        with threads_for(len(self.rows)):
            eigenvalues, U = scipy.linalg.eigh((self.rows * mass) @ self.rows.T, check_finite=False)
        if not eigenvalues[-1] > 0.0:
            return 0.0, [np.zeros(n) for n in self.sizes]
        norm = float(np.sqrt(lower_eigenvalues(eigenvalues)).sum())
        # The optimal strategy for the weights is diag(eigenvalues)^(-1/4) U^T rows.  The privacy
        # cost of a cell is the squared norm of its column.
        root = np.sqrt(np.maximum(eigenvalues, eigenvalues[-1] * 1e-18))
        strategy_rows = (U / np.sqrt(root)).T @ self.rows
        costs = np.einsum("rc,rc->c", strategy_rows, strategy_rows)
        weighted_costs = (mass * costs).reshape(self.sizes)
        axes = range(len(self.sizes))
        costs_by_axis = [
            weighted_costs.sum(axis=tuple(other for other in axes if other != axis))
            for axis in axes
        ]
        return norm, [axis_costs / axis_costs.sum() for axis_costs in costs_by_axis]


@dataclass(frozen=True, kw_only=True, eq=False)
class _IntervalNorm:
    """Nuclear norm of interval queries on one wide attribute, computed without a matrix."""

    space: IntervalSpace

    @property
    def flops(self) -> float:
        """Estimated time of one call of `at`, as the operations of a matrix product in this time."""
        return 1e4 * self.space.cells

    def at(self, weights: Sequence[Array]) -> tuple[float, list[Array]]:
        """Return a lower bound on the nuclear norm T and the shares of the cells, as `_Norm.at`.

        The bound is 0, with the weights in place of shares, if a weight is below the minimum of
        `engine.residuals.interval_solver.evaluate`.
        """
        (mass,) = weights
        # `evaluate` would raise small weights and return the norm for the raised weights, which may
        # exceed the norm for the given weights.  0 is a valid bound.
        if mass.min() < MIN_SHARE * float(mass.sum()) / len(mass):
            return 0.0, [mass]
        solution = evaluate(self.space, mass)
        costs = solution.dual * solution.norms
        return solution.trace * math.sqrt(float(mass.sum())) * (1.0 - QUADRATURE_ROUNDING), [
            costs / costs.sum()
        ]


@dataclass(frozen=True, kw_only=True, eq=False)
class _LevelNorm:
    """Nuclear norm of sums over areas of a hierarchy, on one wide attribute, without a matrix."""

    problem: LevelProblem

    @property
    def flops(self) -> float:
        """Estimated time of one call of `at`, as the operations of a matrix product in this time."""
        return 1e4 * sum(self.problem.tree.counts)

    def at(self, weights: Sequence[Array]) -> tuple[float, list[Array]]:
        """Return a lower bound on the nuclear norm T and shares of the cells, as `_Norm.at`.

        The shares returned are the weights, so that the search does not change the weights.  The
        bound is 0 if the weight of an area is below the minimum of `LevelProblem.root_bound`.
        """
        (mass,) = weights
        total = float(mass.sum())
        areas = self.problem.tree.area_sums(mass)[-1]
        # `root_bound` would raise small weights and return the norm for the raised weights, which
        # may exceed the norm for the given weights.  0 is a valid bound.
        if areas.min() < MIN_AREA_SHARE * total / len(areas):
            return 0.0, [mass / total]
        norm = self.problem.root_bound(areas / total) * math.sqrt(total)
        return norm * (1.0 - QUADRATURE_ROUNDING), [mass / total]


# Product of nuclear norms: pairs (axes of a factor in its residual space, norm of the factor).  Equal
# factors share one norm.
_Norms = list[tuple[Axes, _Norm | _IntervalNorm | _LevelNorm]]


def independent_bound(decomposition: Decomposition, deadline: float = math.inf) -> float:
    """Return a lower bound on the weighted squared error at joint privacy cost 1, in counts^2.

    The bound holds for all plans that measure the residual spaces independently.  The first step of
    the search for weights of cells is always made.  No further step begins if it is expected to end
    after ``deadline``, on the clock of `planning_time`.  A sum of Kronecker products is formed as
    one matrix only if time remains for it; without the matrix, the bound is lower.
    """
    class_of, cells = _equivalence_classes(decomposition)
    # Residual spaces with the same subworkload on equivalent attributes have nuclear norms that
    # differ by a factor only.  ``blocks`` maps (subworkload, classes) to the sum of these factors.
    blocks: dict[tuple[int, tuple[int, ...]], float] = {}
    for space, (number, scale) in decomposition.spaces.items():
        block_key = (number, tuple(class_of[name] for name in space))
        blocks[block_key] = blocks.get(block_key, 0.0) + math.sqrt(scale)
    numbers = {number for number, _ in blocks}
    as_matrix = _sums_as_matrices(decomposition, numbers, deadline - planning_time())
    shared: dict[Hashable, _Norm | _IntervalNorm | _LevelNorm] = {}
    norms = {
        number: _norms(
            decomposition.subworkloads[number], decomposition.factors, number in as_matrix, shared
        )
        for number in numbers
    }
    evaluated = [
        norm for number, _ in blocks for _, factors in norms[number] for _, norm in factors
    ]
    flops = sum(norm.flops for norm in evaluated)
    steps = min(MAX_STEPS, MAX_NORMS // max(len(evaluated), 1), int(MAX_FLOPS / max(flops, 1.0)))
    weights = [np.full(n, 1.0 / n) for n in cells]
    best = 0.0
    for _ in range(max(1, steps)):
        started = planning_time()
        total, weighted_costs = _step(blocks, norms, weights)
        if not total > best * (1.0 + MIN_GAIN):
            break
        best, now = total, planning_time()
        if 2.0 * now - started > deadline:
            break  # the next step would take as long as this one
        # Fixed-point step: every weight is multiplied by the squared privacy cost of its cell.  The
        # square is exact if the cost is inversely proportional to the root of the weight.
        weights = [
            _normalized(
                mass * np.divide(cost, mass, out=np.zeros_like(mass), where=mass > 0.0) ** 2
            )
            for mass, cost in zip(weights, weighted_costs, strict=True)
        ]
    return error_bound(best)


def _sums_as_matrices(
    decomposition: Decomposition, numbers: Collection[int], seconds: float
) -> set[int]:
    """Return the indices of the subworkloads whose terms `_norms` adds up to one matrix.

    Subworkloads with a single term are left out.  Matrices are formed up to the order
    `MAX_DIMENSION`, the smallest first, as long as their expected time is at most ``seconds`` in
    total.
    """
    as_matrix = set[int]()
    for number in sorted(numbers, key=lambda k: (decomposition.subworkloads[k].dimension, k)):
        dimension = decomposition.subworkloads[number].dimension
        if dimension > MAX_DIMENSION or len(decomposition.subworkloads[number].terms) == 1:
            continue
        seconds -= DENSE_NORM_RATIO * eigen_seconds(dimension)
        if seconds < 0.0:
            break
        as_matrix.add(number)
    return as_matrix


def _normalized(mass: Array) -> Array:
    """Return weights scaled to sum 1, or uniform weights if all are 0."""
    return mass / mass.sum() if mass.any() else np.full(len(mass), 1.0 / len(mass))


def _equivalence_classes(decomposition: Decomposition) -> tuple[dict[str, int], list[int]]:
    """Return the index of the equivalence class of every attribute, and the cells per class.

    Attributes are equivalent if they have equal numbers of cells, equal centers, and the same list
    of pairs (subworkload, axis of the attribute in it).  The second result has the number of cells
    of an attribute in each class.
    """
    usage: dict[str, list[tuple[int, int]]] = {}
    for space, (sub_number, _) in decomposition.spaces.items():
        for axis, name in enumerate(space):
            usage.setdefault(name, []).append((sub_number, axis))
    class_numbers: dict[object, int] = {}
    class_of: dict[str, int] = {}
    cells: list[int] = []
    for name, uses in usage.items():
        first_sub, axis = decomposition.subworkloads[uses[0][0]], uses[0][1]
        key = (first_sub.sizes[axis], digest(first_sub.centers[axis]), tuple(sorted(uses)))
        class_of[name] = class_numbers.setdefault(key, len(class_numbers))
        if class_of[name] == len(cells):
            cells.append(first_sub.sizes[axis])
    return class_of, cells


def _step(
    blocks: dict[tuple[int, tuple[int, ...]], float],
    norms: dict[int, list[tuple[float, _Norms]]],
    weights: list[Array],
) -> tuple[float, list[Array]]:
    """Return the sum of the nuclear norms T of all blocks, and the weighted cost of every cell.

    The weighted cost of a cell is its weight times its privacy cost under the optimal plan for the
    weights.

    Parameters
    ----------
    blocks : mapping from (index of a subworkload, equivalence classes of its attributes) to the
        factor by which the nuclear norm of the subworkload is multiplied.
    norms : result of `_norms` for every subworkload.
    weights : weights of cells, one array of shape (n,) per equivalence class.  The weighted costs
        are returned in arrays of the same shapes.
    """
    # T^2 of a block is a sum of terms.  One tuple per block: T, the share of each term in T^2, and
    # for each term the costs of the cells.
    norms_of_blocks = []
    # (`_Norms` of a factor, classes of its attributes) -> norm T and costs of cells per axis
    evaluated: dict[Hashable, tuple[float, list[Array]]] = {}
    for (number, classes), scale in blocks.items():
        squares, costs_of_terms = [], list[list[tuple[int, Array]]]()
        for coefficient, factors in norms[number]:
            square, costs_by_class = coefficient, list[tuple[int, Array]]()
            for axes, norm in factors:
                factor_classes = [classes[axis] for axis in axes]
                key = (norm, *factor_classes)
                if key not in evaluated:
                    evaluated[key] = norm.at([weights[k] for k in factor_classes])
                T, costs_by_axis = evaluated[key]
                square *= T * T
                costs_by_class += zip(factor_classes, costs_by_axis, strict=True)
            squares.append(square)
            costs_of_terms.append(costs_by_class)
        # The squared norms of the terms are added up: one strategy answers the queries of all
        # terms, and its error is at least the sum of their lower bounds.
        total_square = math.fsum(squares)
        shares = [square / total_square if total_square else 0.0 for square in squares]
        norms_of_blocks.append((scale * math.sqrt(total_square), shares, costs_of_terms))
    total = math.fsum(T for T, *_ in norms_of_blocks)
    weighted_costs = [np.zeros_like(class_weights) for class_weights in weights]
    for T, shares, costs_of_terms in norms_of_blocks:
        for share, costs_by_class in zip(shares, costs_of_terms, strict=True):
            for attribute_class, cost in costs_by_class:
                weighted_costs[attribute_class] += cost * (share * T / total)
    return total, weighted_costs


def _norms(
    sub: Subworkload,
    factors: Sequence[Factor],
    as_matrix: bool,
    shared: dict[Hashable, _Norm | _IntervalNorm | _LevelNorm],
) -> list[tuple[float, _Norms]]:
    """Return a lower bound on the squared nuclear norm of a subworkload, as a sum of products.

    The result is a list of pairs (coefficient, norms).  The bound is the sum over all pairs of the
    coefficient times the product of the squared norms.  There is one pair per Kronecker product in
    the Gram, or a single pair if the Gram is formed as one matrix.  A sum of Kronecker products is
    formed as one matrix if ``as_matrix``, or if one strategy measures several residual spaces or
    uses complements (tuned splits of pairs).  ``shared`` maps factors with their centers to norms;
    new norms are added.
    """
    terms, axes = merge_terms(sub, factors), tuple(range(len(sub.sizes)))
    if not axes:
        return [(math.fsum(coefficient for coefficient, _ in terms), [])]
    if sub.spaces or sub.complements:
        lift = SplitLift(sub.sizes, sub.centers, sub.spaces or (axes,), sub.complements)
        return [(1.0, [(axes, _norm(gram_on_axes(terms, axes, sub.sizes), lift))])]
    if len(terms) > 1 and as_matrix:
        norm = _norm(gram_on_axes(terms, axes, sub.sizes), Lift(sub.sizes, sub.centers))
        return [(1.0, [(axes, norm)])]
    sum_of_products = []
    for coefficient, product in terms:
        norms: _Norms = []
        for factor_axes, factor in product:
            centers = [sub.centers[a] for a in factor_axes]
            key = (factor, *map(digest, centers))
            if key not in shared:
                shared[key] = _norm_of(factor, centers)
            norms.append((factor_axes, shared[key]))
        sum_of_products.append((coefficient, norms))
    return sum_of_products


def _norm_of(factor: Factor, centers: Sequence[Array | None]) -> _Norm | _IntervalNorm | _LevelNorm:
    if isinstance(factor, IntervalFactor) and centers[0] is None:
        return _IntervalNorm(space=IntervalSpace(gram=factor.gram))
    if isinstance(factor, LevelFactor) and centers[0] is None:
        return _LevelNorm(problem=factor.gram.problem)
    return _norm(factor, Lift(factor.sizes, centers))


def _norm(factor: Factor, lift: Lift) -> _Norm:
    if factor.low_rank:
        root = factor.matrix
    else:
        with threads_for(len(factor.matrix)):
            eigenvalues, U = scipy.linalg.eigh(factor.dense(), check_finite=False)
        root = (U * np.sqrt(lower_eigenvalues(eigenvalues))).T
    return _Norm(sizes=lift.sizes, rows=lift.rows(root))


# The search starts from uniform weights of cells, and from one more point per number in this list:
# the weights that are optimal for the queries on one attribute and the total.  The weight of the
# total is the number times the mean entry of the Gram of the queries on one attribute.
TOTAL_WEIGHTS = (0.0, 0.1, 1.0, 3.0, 10.0, 100.0)
# The search has several stages with increasing numbers of basis functions.  In each stage the
# largest matrix has about this number of rows.
MATRIX_ORDERS = (150, 400, 1000, 2500, 6000)
# expected number of rows of the largest matrix, divided by that of the stage before; the forecast
# of the time of a stage uses it
ORDER_GROWTH = 2.6
# computing a bound with its gradient takes this many times as long as the bound alone
GRADIENT_COST = 3.0
# The first stage of the search, with the smallest matrices, may use this share of the time that
# remains after the evaluation of the starting points.
FIRST_STAGE_SHARE = 0.4
# When all stages are done, this share of the remaining time is used for a search over weights that
# are not products.
COMPOSITION_SHARE = 0.1
# largest number of search steps in each stage after the first
LATER_STAGE_STEPS = 20
# The product of the Gram and the constant function has a component orthogonal to the constant.
# This component counts as 0 if its norm is below this share of the trace of the Gram.
NEGLIGIBLE_COUPLING = 1e-12
# Starting weights are computed without matrices for attributes with at least this number of cells
# and only marginals, prefixes, suffixes and ranges.  A computation with matrices takes a hundred
# times as long.
MIN_LINEAR_CELLS = 250
# Square roots of weights are raised to at least this share of the largest root, because basis
# functions are divided by the roots.
MIN_ROOT_RATIO = 1e-5
# square roots of the weights of cells, shape (n,), for every class of equivalent attributes
Roots = Mapping[AttributeClass, Array]


class Model:
    """Lower bound on the nuclear norm of a workload, as a function of product weights.

    Parameters
    ----------
    reduced_workload : the workload, as separate subproblems.
    counts : largest number of basis functions per attribute, for every subproblem.
    """

    def __init__(self, reduced_workload: ReducedWorkload, counts: Sequence[int]) -> None:
        self.reduced_workload = reduced_workload
        self.subproblems = [
            self._subproblem_norm(subproblem, k)
            for subproblem, k in zip(reduced_workload.subproblems, counts, strict=True)
        ]

    def _subproblem_norm(
        self, subproblem: Subproblem, k: int
    ) -> SymmetricPairs | SymmetricProducts | DenseNormBound:
        """Return the object that bounds the norm of a subproblem with the smallest matrices.

        Attributes have k basis functions.  `SymmetricPairs` and `SymmetricProducts` have smaller
        matrices than `DenseNormBound`, but apply only to some workloads that are invariant under
        permutations of attributes.
        """
        functions = {
            name: min(k, self.reduced_workload.cells_of(name)) for name in subproblem.names
        }
        terms = symmetric_terms(self.reduced_workload, subproblem)
        if terms is None:
            # `SymmetricProducts` leaves out query families on several attributes.  For subproblems
            # with such families, it is used only if every attribute has one function (k = 1).
            has_joint_parts = any(
                len(names) > 1 for product in subproblem.terms for names, _ in product
            )
            few_functions = k == 1 or (k <= FUNCTIONS_PER_ATTRIBUTE and not has_joint_parts)
            weights_by_size = (
                product_weights_by_size(self.reduced_workload, subproblem)
                if few_functions
                else None
            )
            if weights_by_size is not None:
                return SymmetricProducts(
                    len(functions),
                    self.reduced_workload.class_of[subproblem.names[0]],
                    weights_by_size,
                )
            return DenseNormBound(self.reduced_workload, subproblem, functions)
        return SymmetricPairs(
            len(functions),
            self.reduced_workload.class_of[subproblem.names[0]],
            terms,
            min(functions.values()),
        )

    def value(
        self, s: Roots, basis_functions: Mapping[AttributeClass, Array], derivative: bool = True
    ) -> tuple[float, dict[AttributeClass, Array]]:
        """Return a lower bound on the nuclear norm, and its derivative with respect to ``s``.

        Parameters
        ----------
        s : square roots of the weights of cells, shape (n,), for every class of equivalent
            attributes.
        basis_functions : functions of the cells, most important first, shape (n, n), for every
            class of equivalent attributes.
        derivative : if False, the second result is empty; otherwise it maps the classes to
            derivatives of shape (n,).
        """
        state = State(self.reduced_workload, s, basis_functions, derivative)
        values = [subproblem.value(state) for subproblem in self.subproblems]
        norms = [norm for norm, _ in values]
        # the sum over ``sums`` of factor * sqrt(sum of (coefficient * norm of a subproblem)^2)
        total, by_norm = 0.0, np.zeros(len(norms))
        for factor, coefficients in self.reduced_workload.sums:
            root = math.sqrt(
                math.fsum(
                    (coefficient * norms[number]) ** 2
                    for number, coefficient in coefficients.items()
                )
            )
            total += factor * root
            for number, coefficient in coefficients.items():
                if root > 0.0:
                    # derivative of factor * root with respect to this norm
                    by_norm[number] += factor * coefficient * coefficient * norms[number] / root
        if not derivative:
            return total, {}
        for (_, backpropagate), norm_derivative in zip(values, by_norm, strict=True):
            backpropagate(norm_derivative)
        return total, state.by_s()


class FunctionCounts:
    """Chooses the number of basis functions per attribute by the size of the resulting matrices."""

    def __init__(self, reduced_workload: ReducedWorkload) -> None:
        self.sizes = [
            [reduced_workload.cells_of(name) for name in subproblem.names]
            for subproblem in reduced_workload.subproblems
        ]
        self.symmetric_terms = [
            symmetric_terms(reduced_workload, subproblem)
            for subproblem in reduced_workload.subproblems
        ]
        # For every subproblem, the number of attribute sets by the sizes of their attributes.
        # `_order` computes the order of a matrix from these numbers.
        self.subset_counts = [
            (
                subproblem.count_subsets(
                    {name: reduced_workload.cells_of(name) for name in subproblem.names}
                )
                if terms is None
                else Counter()
            )
            for subproblem, terms in zip(
                reduced_workload.subproblems, self.symmetric_terms, strict=True
            )
        ]

    def counts(self, order: int) -> list[int]:
        """Return the number of basis functions per attribute for every subproblem.

        More functions give larger matrices.  The result is the largest number for which every
        matrix has at most about ``order`` rows, but at least 1.  A subproblem gets one function per
        cell if `symmetric_terms` returns its query weights, none of them for products of two
        families.
        """
        return [self._count(i, order) for i in range(len(self.sizes))]

    def _count(self, i: int, order: int) -> int:
        terms, max_functions = self.symmetric_terms[i], max(self.sizes[i], default=1)
        if terms is not None:
            # With k basis functions per attribute, the matrix has k^2 rows for a product of two
            # families on two attributes, and at most ``order`` rows are allowed. For a family on a
            # pair the matrix has one row per query, whatever k is.
            has_products = any(len(keys) == 2 for keys in terms.pair)
            return min(max_functions, math.isqrt(order)) if has_products else max_functions
        k = 1
        while k < max_functions and self._order(i, k + 1) <= order:
            k += 1
        return k

    def _order(self, i: int, k: int) -> int:
        """Return the order of the largest matrix of subproblem i, for k functions per attribute."""
        return sum(
            count * math.prod(min(k, n) - 1 for n in sizes)
            for sizes, count in self.subset_counts[i].items()
        )


def basis_by_importance(reduced_workload: ReducedWorkload, s: Roots) -> dict[AttributeClass, Array]:
    """Return a basis of the functions on the cells of an attribute, most important ones first.

    The result has one array of shape (n, n) per class of equivalent attributes, one function per
    column.  Let H = diag(s) G diag(s), where G is the Gram of `normalized_gram` and ``s`` has the
    square roots of the weights.  Multiplied by s, the functions are these vectors:

    1. s itself, because the first function is the constant;
    2. the normalized component of H s that is orthogonal to s, unless this component is negligible;
    3. eigenvectors of H on the orthogonal complement of vectors 1 and 2, largest eigenvalue first.
    """
    out = {}
    for attribute_class, root in s.items():
        H = normalized_gram(reduced_workload, attribute_class) * root[:, None] * root
        coupled = H @ root - (root @ H @ root) * root
        length = float(np.linalg.norm(coupled))
        first = (
            [root]
            if length <= NEGLIGIBLE_COUPLING * float(np.trace(H))
            else [root, coupled / length]
        )
        fixed = np.column_stack(first)
        projector = np.eye(len(root)) - fixed @ fixed.T
        _, U = scipy.linalg.eigh(projector @ H @ projector, check_finite=False)
        # Eigenvalues ascend, so the order is reversed.  The first columns of U span the functions
        # in ``fixed``, whose eigenvalue is 0 after the projection.  These columns are left out.
        others = U[:, : len(first) - 1 : -1] if len(first) < len(root) else U[:, :0]
        out[attribute_class] = np.column_stack([fixed, others]) / root[:, None]
    return out


def normalized_gram(reduced_workload: ReducedWorkload, attribute_class: AttributeClass) -> Array:
    """Return the sum of Grams of all query families on an attribute, shape (n, n).

    Each Gram is divided by its trace.  Queries on several attributes are replaced by their means
    over the cells of the other attributes.
    """
    n = reduced_workload.cells[attribute_class]
    gram = np.zeros((n, n))
    families = [
        reduced_workload.rows[key] for key in reduced_workload.single_parts.get(attribute_class, ())
    ]
    for key, classes in reduced_workload.joint_parts.items():
        sizes = tuple(reduced_workload.cells[axis_class] for axis_class in classes)
        for axis, axis_class in enumerate(classes):
            if axis_class == attribute_class:
                # the uniform center averages over the cells of an axis
                means = [None if a == axis else center(m, None) for a, m in enumerate(sizes)]
                families.append(contract(reduced_workload.rows[key].reshape(-1, *sizes), means, 1))
    for rows in families:
        # every Gram is divided by its trace, so that families with few and with many queries have
        # the same influence
        gram += rows.T @ rows / max(float(np.sum(rows**2)), 1e-300)
    return gram


def starting_roots(
    reduced_workload: ReducedWorkload, deadline: float = math.inf
) -> Iterator[dict[AttributeClass, Array]]:
    """Yield the starting points of the search for weights of cells.

    A starting point has the square roots of the weights of cells, shape (n,), for every class of
    equivalent attributes.  The first starting point has uniform weights.  Every further starting
    point belongs to one number c in `TOTAL_WEIGHTS`.  The cells of an attribute get the weights
    that are optimal for the queries on this attribute and the total.  The weight of the total is c
    times the mean entry of the Gram of these queries.  If every query has mean 0 over the cells of
    the other attributes, the weights are uniform.  The computation of the weights ends at the
    deadline with the best weights so far.
    """
    uniform = {
        attribute_class: np.full(n, n**-0.5)
        for attribute_class, n in reduced_workload.cells.items()
    }
    yield uniform
    intervals = {
        attribute_class: single_intervals(reduced_workload, attribute_class)
        for attribute_class in reduced_workload.cells
    }
    dense = {
        attribute_class: normalized_gram(reduced_workload, attribute_class)
        for attribute_class, interval_weights in intervals.items()
        if interval_weights is None
    }
    options = Options(gap=1e-3, deadline=deadline)
    for total_weight in TOTAL_WEIGHTS:
        roots = {}
        for attribute_class, interval_weights in intervals.items():
            if interval_weights is not None:
                mass = _optimal_interval_weights(interval_weights, total_weight, options)
            elif np.trace(dense[attribute_class]) > 0.0:
                mass = _optimal_weights(dense[attribute_class], total_weight, options)
            else:  # the mean of all queries over other attributes is 0
                roots[attribute_class] = uniform[attribute_class]
                continue
            roots[attribute_class] = normalize_roots(np.sqrt(mass))
        yield roots


def _optimal_interval_weights(gram: IntervalGram, total_weight: float, options: Options) -> Array:
    """Return optimal weights of cells for interval queries and the total, shape (n,).

    The weight of the total is ``total_weight`` times the mean entry of the Gram.
    """
    n = gram.cells
    mean = total_square(gram, np.full(n, 1.0 / n))
    space = IntervalSpace(gram=replace(gram, total=total_weight * mean), whole=True)
    return solve_intervals(space, gap=options.gap, deadline=options.deadline).dual


def _optimal_weights(gram: Array, total_weight: float, options: Options) -> Array:
    """Return optimal weights of cells for queries with this Gram and the total, shape (n,).

    The weight of the total is ``total_weight`` times the mean entry of the Gram.
    """
    problem = DualProblem(
        lift=FullDomain(len(gram)),
        factor=Factor(sizes=(0,), matrix=gram + total_weight * gram.mean()),
    )
    with threads_for(len(gram)):
        mass, _ = problem.maximise(options)
    return mass


def single_intervals(
    reduced_workload: ReducedWorkload, attribute_class: AttributeClass
) -> IntervalGram | None:
    """Return the Gram of `normalized_gram` without a matrix, as weights of interval queries.

    The result is None if the attributes of this class have fewer than `MIN_LINEAR_CELLS` cells,
    occur in a query family on several attributes, or have other queries than marginals, prefixes,
    suffixes and ranges.
    """
    keys = reduced_workload.single_parts.get(attribute_class, [])
    is_joint = any(attribute_class in classes for classes in reduced_workload.joint_parts.values())
    grams = [reduced_workload.intervals[key] for key in keys if key in reduced_workload.intervals]
    if (
        reduced_workload.cells[attribute_class] < MIN_LINEAR_CELLS
        or is_joint
        or len(grams) < len(keys)
    ):
        return None
    # every Gram is divided by its trace
    scaled = [
        (1.0 / float(IntervalSpace(gram=g, whole=True).cell_traces().sum())) * g for g in grams
    ]
    return functools.reduce(operator.add, scaled) if scaled else None


def normalize_roots(s: Array) -> Array:
    """Return |s| scaled to Euclidean norm 1, without very small entries.

    Every entry is raised to at least `MIN_ROOT_RATIO` times the largest entry.
    """
    s = np.abs(s)
    # basis functions are divided by s, so no element may be 0
    s = np.maximum(s, MIN_ROOT_RATIO * float(s.max()))
    return np.asarray(s / np.linalg.norm(s))


def maximize_bound(model: Model, s: Roots, deadline: float, steps: int) -> tuple[float, Roots]:
    """Maximise the nuclear norm by L-BFGS over the square roots of weights of cells.

    Returns the largest norm of all steps and the square roots at which it occurred.  The search
    starts at ``s`` and uses the basis functions of `basis_by_importance` for ``s`` in all steps.
    """
    import scipy.optimize

    basis_functions = basis_by_importance(model.reduced_workload, s)
    ends = np.cumsum([0, *(len(root) for root in s.values())])
    # the part of the search variables ``x`` that belongs to each class
    slices = {
        attribute_class: slice(first, end)
        for attribute_class, (first, end) in zip(s, itertools.pairwise(ends), strict=True)
    }
    best: tuple[float, Roots] = (0.0, s)

    def negative_log_value(x: Array) -> tuple[float, Array]:
        """Return -log(norm) and its gradient; store the best norm."""
        nonlocal best
        # entries of x may be negative; `normalize_roots` takes absolute values
        signs = np.where(x < 0.0, -1.0, 1.0)
        roots = {name: normalize_roots(x[part]) for name, part in slices.items()}
        value, derivative = model.value(roots, basis_functions)
        if value > best[0]:
            best = (value, roots)
        if planning_time() > deadline:
            raise _DeadlineError
        # The chain rule from the roots |x| / length to x.  The derivative has no component along
        # the roots, so the derivative of the length adds nothing.
        by_absolute_x = [
            derivative[name] / float(np.linalg.norm(x[part])) for name, part in slices.items()
        ]
        gradient = np.concatenate(by_absolute_x) * signs
        return -math.log(value), -gradient / value

    with suppress(_DeadlineError):
        scipy.optimize.minimize(
            negative_log_value,
            np.concatenate(list(s.values())),
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": steps, "maxfun": steps, "maxcor": 20, "ftol": 1e-9, "gtol": 0.0},
        )
    return best


class _DeadlineError(Exception):
    """Ends a search at its deadline."""


def best_norm(reduced_workload: ReducedWorkload, deadline: float, steps: int) -> float:
    """Search for weights of cells with a large nuclear norm, and return the largest norm.

    Parameters
    ----------
    reduced_workload : the workload after the elimination of attributes with uniform weights.
    deadline : time after which no step begins, on the clock of `planning_time`.
    steps : largest number of steps of the first stage (later stages: `LATER_STAGE_STEPS`).  With 0
        only the starting points are evaluated, and the result does not depend on the clock.
    """
    deadline = deadline if steps else math.inf
    now = planning_time()
    function_counts = FunctionCounts(reduced_workload)
    counts = function_counts.counts(MATRIX_ORDERS[0])
    model = Model(reduced_workload, counts)
    if not reduced_workload.cells:
        return model.value({}, {}, derivative=False)[0]
    best: tuple[float, Roots] = (-1.0, {})
    starts = starting_roots(reduced_workload, now + 0.5 * (deadline - now))
    # Without a search, the norms of the starting points, in order of the weight of the total, rise
    # to a maximum and then fall.  On a thousand cells every starting point takes a second.
    # Therefore evaluation ends at the first lower norm on more than MAX_EXACT_CELLS cells, and only
    # the second starting point is evaluated on more than MAX_SEVERAL_STARTS_CELLS cells.
    cells = max(reduced_workload.cells.values())
    is_wide = not steps and cells > MAX_EXACT_CELLS
    if not steps and cells > MAX_SEVERAL_STARTS_CELLS:
        starts = itertools.islice(starts, 1, 2)
    # after half of the time, no further starting point is evaluated
    for s in starts:
        value = model.value(s, basis_by_importance(reduced_workload, s), derivative=False)[0]
        if is_wide and value < best[0]:
            break
        best = max(best, (value, s), key=_value)
        if planning_time() > now + 0.5 * (deadline - now):
            break
    if not steps:
        return best[0]
    # More functions per attribute raise the bound more than further search steps with few
    # functions.  Therefore the stages with larger matrices get most of the time.
    now = planning_time()
    best = max(
        best,
        maximize_bound(model, best[1], now + FIRST_STAGE_SHARE * (deadline - now), steps),
        key=_value,
    )
    for order in MATRIX_ORDERS[1:]:
        previous_counts, counts = counts, function_counts.counts(order)
        if counts == previous_counts:
            continue
        if planning_time() > deadline:
            break
        start_time = planning_time()
        model = Model(reduced_workload, counts)
        value = model.value(
            best[1], basis_by_importance(reduced_workload, best[1]), derivative=False
        )[0]
        best = max(best, (value, best[1]), key=_value)
        duration = planning_time() - start_time
        if GRADIENT_COST * duration * LATER_STAGE_STEPS <= (deadline - planning_time()) / 4:
            best = max(
                best, maximize_bound(model, best[1], deadline, LATER_STAGE_STEPS), key=_value
            )
        # The time of a stage grows with the cube of the number of rows.  The next stage begins only
        # if at least twice its expected time remains.
        if 2.0 * duration * ORDER_GROWTH**3 > deadline - planning_time():
            break
    now = planning_time()
    return max(
        best[0], shares_norm(reduced_workload, best[1], now + COMPOSITION_SHARE * (deadline - now))
    )


def _value(candidate: tuple[float, Roots]) -> float:
    return candidate[0]


# largest number of cells of a domain for which the weights of all cells are optimized
MAX_EXACT_CELLS = 512
# a bound without a search evaluates several starting points if no attribute has more cells than
# this, and otherwise only one starting point
MAX_SEVERAL_STARTS_CELLS = 1_000
# smallest number of cells of an attribute for which `single_interval_gram` returns a Gram
MIN_INTERVAL_CELLS = 100
# `interval_bound` ends its search for optimal weights at this relative gap of the RMSE
INTERVAL_GAP = 1e-5
# bound on the relative rounding error of nuclear norms that are computed by quadrature
QUADRATURE_ROUNDING = 1e-9


def exact_bound(workload: Workload, gap: float = 1e-4, law: str = "gaussian") -> float:
    """Return the best lower bound on the weighted squared error, for a small domain.

    The bound holds for every matrix mechanism at privacy cost 1 (epsilon 1 for Laplace noise), in
    counts^2.  It is optimized over the weights of all cells.  For Gaussian noise the root of the
    bound is below the root of the optimal error by at most the relative ``gap``.  The bound is 0 if
    all queries of positive weight are 0.
    """
    problem = full_domain_problem(workload)
    if not problem.projected:
        return 0.0
    with threads_for(problem.lift.cells):
        mass, _ = problem.maximise(Options(gap=gap))
        T = math.fsum(root_trace((W * mass) @ W.T, derivative=False)[0] for W in problem.projected)
    return error_bound(T, law) / float(mass.sum())


def single_interval_gram(workload: Workload) -> IntervalGram | None:
    """Return the Gram of the queries of a workload on one attribute, as weights of interval queries.

    The attribute must have at least `MIN_INTERVAL_CELLS` cells.  All queries must be marginals,
    prefixes, suffixes, ranges or totals, and not only totals.  All queries of a group must have
    equal weights.  Otherwise the result is None.
    """
    names = queried_attributes(workload)
    if len(names) != 1 or workload.schema[names[0]].size < MIN_INTERVAL_CELLS:
        return None
    grams, total = [], 0.0
    for group in workload.groups:
        if not group.is_weighted:
            continue
        if group.query_weights is not None:
            return None
        if all(part.family.key == ("total",) for part in group.parts):
            total += group.weight
        elif (gram := interval_gram(group.parts[0])) is not None:
            grams.append(group.weight * gram)
        else:
            return None
    if not grams:
        return None
    return replace(functools.reduce(operator.add, grams), total=total)


def interval_bound(gram: IntervalGram, law: str = "gaussian") -> float:
    """Return the lower bound on the weighted squared error of queries on one attribute.

    ``gram`` is the result of `single_interval_gram`.  The bound is optimized over the weights of
    all cells.  The bound holds for every matrix mechanism at privacy cost 1 (epsilon 1 for Laplace
    noise), in counts^2.
    """
    solution = solve_intervals(IntervalSpace(gram=gram, whole=True), gap=INTERVAL_GAP)
    return error_bound(solution.trace * (1.0 - QUADRATURE_ROUNDING), law)


def full_domain_problem(workload: Workload) -> DualProblem:
    """Return the problem of weighting all cells of the table on all queried attributes.

    This problem is the dual of the search for the strategy with the smallest error.
    """
    sizes = workload.schema.sizes(queried_attributes(workload))
    lift = FullTable(sizes)
    gram = lift.table_coordinates(lift.table_coordinates(domain_gram(workload)).T)
    return DualProblem(lift=lift, factor=Factor(sizes=sizes, matrix=gram))


def queried_attributes(workload: Workload) -> Space:
    """Return the attributes of all groups, in schema order."""
    names = {name for g in workload.groups for name in g.attributes}
    return tuple(name for name in workload.schema.names if name in names)


def small_domain(workload: Workload) -> bool:
    """Return whether the table on all queried attributes is small enough for `exact_bound`."""
    return math.prod(workload.schema.sizes(queried_attributes(workload))) <= MAX_EXACT_CELLS


def domain_gram(workload: Workload) -> Array:
    """Return the weighted Gram W^T diag(weights) W of all queries, shape (cells, cells).

    The cells are those of the table on all queried attributes in schema order.
    """
    names = queried_attributes(workload)
    sizes = workload.schema.sizes(names)
    cells = math.prod(sizes)
    total = np.zeros((cells, cells))
    for group in workload.groups:
        if not group.is_weighted:
            continue
        # axes of the table in the order of the group's query families, then all other axes
        group_axes = [names.index(group.attributes[a]) for part in group.parts for a in part.axes]
        other_axes = [axis for axis in range(len(sizes)) if axis not in group_axes]
        other_cells = math.prod(sizes[axis] for axis in other_axes)
        gram = np.asarray(
            np.kron(_group_gram(group), np.ones((other_cells, other_cells))), dtype=float
        )
        all_axes = group_axes + other_axes
        schema_order = [all_axes.index(axis) for axis in range(len(sizes))]
        shape = [sizes[axis] for axis in all_axes]
        ordered = gram.reshape([*shape, *shape]).transpose(
            *schema_order, *(len(sizes) + axis for axis in schema_order)
        )
        total += group.weight * ordered.reshape(cells, cells)
    return total


def _group_gram(group: Group) -> Array:
    """Return the Gram of a group on its own table, with the axes in the order of its families."""
    if group.query_weights is None:
        gram = np.ones((1, 1))
        for part in group.parts:
            gram = np.asarray(np.kron(gram, part.family.gram(part.sizes)), dtype=float)
        return gram
    rows = np.ones((1, 1))
    for part in group.parts:
        rows = np.asarray(np.kron(rows, part.family.rows(part.sizes)), dtype=float)
    return np.asarray((rows * group.query_weights[:, None]).T @ rows)


# default time limit of the search of `global_bound`, in seconds
SEARCH_LIMIT_S = 20.0
# Time limit that `best_bound` sets if an attribute has more than MAX_EXACT_CELLS cells, in seconds.
# Longer searches on 1,200 x 4 cells raise the root of the bound only slightly: a search of 20 s by
# 1e-6 for prefixes or ranges; a search of 40 s by at most 0.3% for windows, circular ranges or
# random queries, each together with prefixes.
WIDE_SEARCH_LIMIT_S = 10.0
# default largest number of steps of the search of `global_bound`
SEARCH_STEPS = 60
# largest number of cells of an attribute whose Gram is formed by `best_bound` or `quick_bound`
MAX_BOUND_CELLS = 2_000
# largest number of results in the cache of `best_bound`
MAX_CACHED_BOUNDS = 64


def global_bound(
    workload: Workload,
    law: str = "gaussian",
    *,
    seconds: float = SEARCH_LIMIT_S,
    steps: int = SEARCH_STEPS,
) -> float:
    """Return a lower bound on the weighted squared error of every matrix mechanism.

    Parameters
    ----------
    workload : the queries.
    law : law of the noise: "gaussian", or "laplace" at epsilon 1.
    seconds : time limit of the search; it may be exceeded by the time of one large matrix.
    steps : largest number of search steps; with 0 only the fixed starting points are evaluated.

    Returns
    -------
    The best bound of the search, in counts^2 at privacy cost 1.

    Notes
    -----
    The result is lowered by more than its rounding error, so the returned number is a valid bound.

    >>> from engine import Attribute, Schema
    >>> workload = Workload(Schema([Attribute.of_size("age", 3)])).add("age", "marginal")
    >>> round(global_bound(workload), 6)  # noise on every cell is optimal
    3.0
    """
    deadline = planning_time() + seconds
    with threads_for(1):  # many small products; large matrices set their own number
        return error_bound(best_norm(reduce_workload(workload), deadline, steps), law)


def largest_entry_bound(workload: Workload, law: str = "gaussian") -> float:
    """Return a lower bound on the weighted squared error from the largest query coefficients.

    At privacy cost 1 the variance of a query q is at least the square of its largest coefficient,
    because the precision matrix of a strategy has diagonal entries of at most 1.

    >>> from engine import Attribute, Schema
    >>> workload = Workload(Schema([Attribute.of_size("age", 3)])).add("age", "total")
    >>> round(largest_entry_bound(workload), 6)
    1.0
    """
    squares: dict[object, Array] = {}
    terms = []
    for group in workload.groups:
        # a group that is left out only lowers the bound
        if not group.is_weighted or any(
            p.count * p.cells > MAX_BOUND_ENTRIES and not has_identity_gram(p) for p in group.parts
        ):
            continue
        for part in group.parts:
            key = part.key, part.sizes
            if key not in squares:
                squares[key] = part.family.largest_entries(part.sizes) ** 2
        by_part = [squares[part.key, part.sizes] for part in group.parts]
        if group.query_weights is None:
            total = math.prod(float(entries.sum()) for entries in by_part)
        else:
            weights = group.query_weights.reshape([len(entries) for entries in by_part])
            # The variance of a product query is at least the product of the squared largest entries
            # of its factors. The weighted sum over all queries is computed one factor at a time.
            for entries in by_part:
                weights = np.tensordot(entries, weights, axes=1)
            total = float(weights)
        terms.append(group.weight * total)
    return error_bound(math.sqrt(math.fsum(terms)), law)


def _widest_attribute(workload: Workload) -> tuple[int, str]:
    """Return the number of cells and the name of the widest attribute whose Gram must be formed.

    The Gram of a marginal on one wide attribute is not formed, because it is the identity.  The
    result is (1, "") if no Gram must be formed.
    """
    return max(
        (
            (n, group.attributes[axis])
            for group in workload.groups
            for part in group.parts
            if not has_identity_gram(part, group.query_weights)
            for axis, n in zip(part.axes, part.sizes, strict=True)
        ),
        default=(1, ""),
    )


def quick_bound(workload: Workload, law: str = "gaussian") -> float:
    """Return a lower bound on the weighted squared error at privacy cost 1, without a long search.

    The bound holds for every matrix mechanism and is in counts^2.  Its method depends on the
    number of cells of the widest attribute whose Gram must be formed:

    - at most `MAX_EXACT_CELLS`: `global_bound` without search steps;
    - more, and `single_interval_gram` returns a Gram for the workload: `interval_bound`;
    - more than `MAX_BOUND_CELLS` otherwise: `largest_entry_bound`, which is weaker;
    - in between: the larger one of `global_bound` without steps and `largest_entry_bound`.
    """
    cells = _widest_attribute(workload)[0]
    if cells > MAX_EXACT_CELLS and (gram := single_interval_gram(workload)) is not None:
        return interval_bound(gram, law)
    if cells > MAX_BOUND_CELLS:
        return largest_entry_bound(workload, law)
    bound = global_bound(workload, law, steps=0)
    return max(bound, largest_entry_bound(workload, law)) if cells > MAX_EXACT_CELLS else bound


@lru_cache(maxsize=MAX_CACHED_BOUNDS)
def best_bound(workload: Workload, law: str = "gaussian") -> tuple[float, str]:
    """Return the best lower bound on the weighted squared error, and a text that names its method.

    The bound holds for every matrix mechanism at privacy cost 1 and is in counts^2.  Without a
    weighted query the bound is 0, and the text is the reason.  Results are cached, because a search
    takes seconds.

    Raises
    ------
    LimitExceeded : an attribute whose Gram must be formed has more than `MAX_BOUND_CELLS` cells.
        There is no such limit if `single_interval_gram` returns a Gram for the workload.
    """
    if not any(g.is_weighted for g in workload.groups):
        return 0.0, "no query has a weight"
    if (gram := single_interval_gram(workload)) is not None:
        return interval_bound(gram, law), "the dual of the problem on all cells at once"
    largest, name = _widest_attribute(workload)
    if largest > MAX_BOUND_CELLS:
        raise LimitExceeded(
            f"The attribute '{name}' has {largest:,} cells; a lower bound for all mechanisms is"
            f" computed for at most {MAX_BOUND_CELLS:,}. Merge cells of '{name}'."
        )
    if small_domain(workload):
        return exact_bound(workload, law=law), "the dual of the problem on all cells at once"
    seconds = SEARCH_LIMIT_S if largest <= MAX_EXACT_CELLS else WIDE_SEARCH_LIMIT_S
    return max(
        (
            global_bound(workload, law, seconds=seconds),
            "weights of the cells, from the dual of the problem",
        ),
        (largest_entry_bound(workload, law), "the largest coefficient of every query"),
    )
