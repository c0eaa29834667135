"""Objective of tuned centers and its gradient, and the limits of the search.

The objective is S, the sum of sqrt(L_B) over the residual spaces B, as a function of the centers.
L_B is the smallest weighted squared error on B at privacy cost 1; see
`engine.residuals.tuning.tune`.  Residual spaces that are equal up to attribute names form one class
(`SpaceKind`).

The Gram of a residual space is computed from projections (`PartProjection`): the queries of one
part (query family) of a group are projected to the residual space of some of its attributes.  The
total is the space of no attributes.  The Gram of a projection to the total is a single number,
called the total square; it is quadratic in the centers.  The Gram of a space is a sum of terms.  A
term is a product of total squares, times a Kronecker product of residual Grams of projections.
Derivatives are computed in reverse mode: first of S with respect to every L_B, then with respect to
total squares and residual Grams, and last with respect to the centers.

Attributes with equal sizes and equal queries have the same role and share one center.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from engine._arrays import Array, Index, unique_rows
from engine._clock import planning_time
from engine._threads import threads_for
from engine.progress import Listener
from engine.residuals.basis import (
    Axes,
    FullDomain,
    Lift,
    Role,
    basis,
    center,
    contract,
    group_axes,
    residual_rows,
)
from engine.residuals.decomposition import (
    MIN_TRACE_SHARE,
    DeferredFactor,
    Factor,
    GroupContribution,
    add_factors,
    gram_on_axes,
    has_identity_gram,
    interval_factor,
    is_wide_areas,
    level_factor,
    part_rows,
    queried_spaces,
    rows_bytes,
    wide_interval_gram,
    wide_level_gram,
    wide_window_gram,
)
from engine.residuals.dual_solver import DualProblem, Options
from engine.residuals.interval_solver import (
    IntervalGram,
    IntervalSolution,
    IntervalSpace,
    SolutionT,
    solve,
    total_square,
)
from engine.residuals.level_solver import LevelGram
from engine.residuals.level_strategy import level_solution
from engine.residuals.marginals import marginal_solution
from engine.residuals.operators import is_wide
from engine.residuals.search_costs import dense_bytes, step_seconds
from engine.residuals.window_solver import (
    WindowGram,
    WindowSolution,
    WindowSpace,
    window_bytes,
    window_evaluation_seconds,
)
from engine.residuals.window_solver import evaluate as evaluate_windows
from engine.residuals.window_solver import solve as solve_windows
from engine.residuals.window_strategy import WindowWeights
from engine.workload import Group, Part, Workload, subsets
from engine.workload.workload import GroupClass

MEMORY, TIME, WORK = "memory", "time", "work"
# relative RMSE gap of searches for windows on residual spaces; the gap that plans require by
# default
WINDOW_GAP = 1e-6
# if there is no time limit, searches whose steps take longer than this are left out, in seconds
MAX_STEP_S = 0.25


@dataclass(kw_only=True)
class Allowance:
    """Limits of memory and time of the search for a split (centers, complements and unions).

    Attributes
    ----------
    memory : largest memory in bytes.
    deadline : time limit on the clock of `planning_time`.
    stopped : names of the limits that were exceeded: "memory"; "time"; "work" if there is no time
        limit and one step would take too long.
    """

    memory: float = math.inf
    deadline: float = math.inf
    stopped: set[str] = field(default_factory=set)

    def fits(self, needed: int) -> bool:
        """Return whether ``needed`` bytes fit the limit; if not, record the limit "memory"."""
        if needed > self.memory:
            self.stopped.add(MEMORY)
        return needed <= self.memory

    def is_short(self, seconds: float) -> bool:
        """Return whether a step may take ``seconds``; if not, record the exceeded limit "work".

        Without a time limit the longest step is `MAX_STEP_S`; with a time limit, any step is
        allowed.
        """
        if math.isinf(self.deadline) and seconds > MAX_STEP_S:
            self.stopped.add(WORK)
            return False
        return True

    def has_time(self, seconds: float) -> bool:
        """Return whether ``seconds`` remain until the deadline; if not, record the limit "time"."""
        if math.isinf(self.deadline) or seconds <= self.deadline - planning_time():
            return True
        self.stopped.add(TIME)
        return False

    def check(self) -> None:
        """Record "time" and raise TimeoutError if the deadline has passed."""
        # the clock is read only if there is a deadline, because this can take milliseconds
        if self.deadline < math.inf and planning_time() > self.deadline:
            self.stopped.add(TIME)
            raise TimeoutError


def _total_square(gram: IntervalGram | LevelGram | WindowGram, pi: Array) -> float:
    """Return the weighted sum of the squares of q^T pi over the queries q; pi has shape (n,)."""
    return total_square(gram, pi) if isinstance(gram, IntervalGram) else gram.total_square(pi)


def _matrix_free_factor(gram: IntervalGram | LevelGram) -> Factor:
    """Return the residual Gram of interval queries or of areas, stored without a matrix."""
    return level_factor(gram) if isinstance(gram, LevelGram) else interval_factor(gram)


@dataclass(kw_only=True, eq=False)
class Evaluation:
    """Intermediate values and derivatives of one evaluation of the objective S at some centers.

    The evaluation fills all mappings except ``centers``.  Their keys are indices of projections in
    ``problem.projections``; only ``by_role`` has roles (classes of equivalent attributes) as keys.

    Attributes
    ----------
    problem : the objective.
    centers : mapping from roles to centers, shape (n,); roles without an entry have uniform
        centers.
    total_squares, by_total_square : result of `total_square`, and the derivative of S with respect
        to it.
    residual_grams, by_residual_gram : result of `residual_gram`, and the derivative of S with
        respect to it.
    nonzero : result of `is_nonzero`.
    optima : result of `optimum`.
    by_role : derivative of S with respect to N^T pi of a role, shape (n - 1,).
    """

    problem: CenterProblem
    centers: Mapping[Role, Array]
    total_squares: dict[int, float] = field(default_factory=dict)
    by_total_square: dict[int, float] = field(default_factory=dict)
    residual_grams: dict[int, Factor] = field(default_factory=dict)
    by_residual_gram: dict[int, Array] = field(default_factory=dict)
    nonzero: dict[int, bool] = field(default_factory=dict)
    optima: dict[int, tuple[float, Array, list[Array]]] = field(default_factory=dict)
    by_role: dict[Role, Array] = field(default_factory=dict)

    def center(self, role: Role) -> Array:
        """Return the center that all attributes of a role (class) share, shape (n,)."""
        n = self.problem.sizes[role]
        return self.centers.get(role, np.full(n, 1.0 / n))

    def total_square(self, index: int) -> float:
        """Return the sum of the squared coefficients of a family on the total, in counts^2.

        ``index`` is the index of a projection of the family.  If the sum is as small as rounding
        errors, the result is 0.
        """
        if index not in self.total_squares:
            projection = self.problem.projections[index]
            if (wide_gram := self.problem.matrix_free_gram(projection)) is not None:
                square = _total_square(wide_gram, self.center(projection.roles[0]))
            elif len(projection.roles) == 1:
                pi = self.center(projection.roles[0])
                square = float(pi @ self.problem.gram(projection.part) @ pi)
            else:
                square = float(np.sum(self._contracted(projection, ()) ** 2))
            query_trace = self.problem.gram_trace(projection.part)
            self.total_squares[index] = square if square > MIN_TRACE_SHARE * query_trace else 0.0
        return self.total_squares[index]

    def _contracted(self, projection: PartProjection, keep: Axes) -> Array:
        """Return the query rows of a family, multiplied by the centers of some of its attributes.

        ``keep`` holds the positions, within the family, of the attributes whose centers are not
        applied.  The result has shape (rows, *sizes of these attributes).
        """
        vectors = [
            None if i in keep else self.center(role) for i, role in enumerate(projection.roles)
        ]
        return contract(self.problem.rows(projection.part), vectors, 1)

    def residual_gram(self, index: int) -> Factor:
        """Return the residual Gram of a projection."""
        if index not in self.residual_grams:
            self.residual_grams[index] = self._compute_residual_gram(
                self.problem.projections[index]
            )
        return self.residual_grams[index]

    def _compute_residual_gram(self, projection: PartProjection) -> Factor:
        wide_gram = self.problem.matrix_free_gram(projection)
        if isinstance(wide_gram, WindowGram):
            return DeferredFactor(projection.part, None)
        if wide_gram is not None:
            return _matrix_free_factor(wide_gram)
        sizes = tuple(projection.part.sizes[i] for i in projection.inside)
        if len(projection.roles) == 1:
            N = basis(sizes[0])
            return Factor(sizes=sizes, matrix=N.T @ self.problem.gram(projection.part) @ N)
        rows = self._residual_rows(projection)
        if len(rows) < rows.shape[1]:
            return Factor(sizes=sizes, matrix=rows, low_rank=True)
        return Factor(sizes=sizes, matrix=rows.T @ rows)

    def _residual_rows(self, projection: PartProjection) -> Array:
        """Return the projected query rows of one family, shape (rows, residual coordinates)."""
        part = projection.part
        rows = self.problem.rows(part)
        centers = [self.center(role) for role in projection.roles]
        return residual_rows(rows.reshape(len(rows), -1), part.sizes, projection.inside, centers)

    def space(self, kind: SpaceKind) -> float:
        """Return sqrt(L) for one residual space of a class; 0 if the space has no queries.

        L is the smallest error on the space, or the lower bound of `SpaceKind.separate`.  The
        objective S is the sum of sqrt(L) over all spaces.  The derivatives of S through the spaces
        of this class are added to ``by_role``, ``by_total_square`` and ``by_residual_gram``.
        """
        coefficients = {
            factors: math.fsum(
                weight * math.prod(map(self.total_square, indices))
                for indices, weight in monomials.items()
            )
            for factors, monomials in kind.terms.items()
        }
        nonzero_terms = {
            factors: coefficient
            for factors, coefficient in coefficients.items()
            if coefficient > 0 and all(self.is_nonzero(index) for _, index in factors)
        }
        if not nonzero_terms:
            return 0.0
        if len(nonzero_terms) == 1 or kind.separate:
            L, by_coefficient = self._solve_terms(kind, nonzero_terms)
        else:
            L, by_coefficient = self._solve_sum(kind, nonzero_terms)
        # derivative of S = count * sqrt(L) + (sum over other classes)
        by_L = 0.5 * kind.count / math.sqrt(L)
        for factors in nonzero_terms:
            self._add_by_total_squares(kind.terms[factors], by_L * by_coefficient[factors])
        return math.sqrt(L)

    def _solve_terms(
        self, kind: SpaceKind, coefficients: Mapping[KroneckerProduct, float]
    ) -> tuple[float, dict[KroneckerProduct, float]]:
        """Return the sum of the smallest errors of the terms of a Gram, and its derivatives.

        ``coefficients`` maps the Kronecker product of every term to its coefficient.  The result is
        (sum, mapping from each product to the derivative with respect to its coefficient).
        Derivatives of the objective S, the sum of sqrt(L) over all spaces, with respect to residual
        Grams and centers are added to ``by_residual_gram`` and ``by_role``.
        """
        # The smallest error of a Kronecker product is the product of the smallest errors of its
        # factors.  The error of a term is its coefficient times this product.
        by_coefficient = {
            factors: math.prod(self.optimum(index)[0] for _, index in factors)
            for factors in coefficients
        }
        L = math.fsum(coefficients[factors] * error for factors, error in by_coefficient.items())
        # derivative of count * sqrt(L), a summand of the objective S, with respect to L
        by_L = 0.5 * kind.count / math.sqrt(L)
        for factors, coefficient in coefficients.items():
            for axes, index in factors:
                optimum, by_gram, by_center = self.optimum(index)
                by_optimum = by_L * coefficient * by_coefficient[factors] / optimum
                self._add_by_centers([kind.roles[a] for a in axes], by_center, by_optimum)
                self._add_by_residual_gram(index, by_optimum * by_gram)
        return L, by_coefficient

    def _solve_sum(
        self, kind: SpaceKind, coefficients: Mapping[KroneckerProduct, float]
    ) -> tuple[float, dict[KroneckerProduct, float]]:
        """Return the smallest error for the sum of the terms of a Gram, and its derivatives.

        ``coefficients`` maps the Kronecker product of every term to its coefficient.  The result is
        (error, mapping from each product to the derivative with respect to its coefficient).  As in
        `_solve_terms`, derivatives of the objective S are added to ``by_residual_gram`` and
        ``by_role``.
        """
        sizes = tuple(self.problem.sizes[role] for role in kind.roles)
        space_axes = tuple(range(len(kind.roles)))
        products = {
            factors: gram_on_axes(
                [(1.0, tuple((axes, self.residual_gram(index)) for axes, index in factors))],
                space_axes,
                sizes,
            )
            for factors in coefficients
        }
        gram = add_factors([(coefficients[f], products[f]) for f in coefficients], sizes)
        centers = [self.centers.get(role) for role in kind.roles]
        L, by_gram, by_center = self.problem.dual(kind, gram, centers)
        # derivative of count * sqrt(L), a summand of the objective S, with respect to L
        by_L = 0.5 * kind.count / math.sqrt(L)
        # The derivative of L with respect to the coefficient of a term is the inner product of
        # dL/dGram and the Kronecker product of the term.  Dual weights are fixed (envelope
        # theorem).
        by_coefficient = {f: float(np.sum(products[f].dense() * by_gram)) for f in coefficients}
        self._add_by_centers(kind.roles, by_center, by_L)
        for factors, coefficient in coefficients.items():
            # derivatives through a residual Gram that is multiplied by another one are neglected
            if len(factors) == 1:
                self._add_by_residual_gram(factors[0][1], by_L * coefficient * by_gram)
        return L, by_coefficient

    def _add_by_total_squares(self, monomials: Polynomial, by_coefficient: float) -> None:
        """Add to ``by_total_square`` the derivatives of the objective S through a coefficient.

        The coefficient of a term is the polynomial ``monomials`` in total squares, and
        ``by_coefficient`` is the derivative of S with respect to it.
        """
        for indices, weight in monomials.items():
            for index in set(indices):
                other_squares = math.prod(self.total_square(i) for i in indices if i != index)
                power = indices.count(index)
                change = (
                    by_coefficient
                    * weight
                    * power
                    * other_squares
                    * self.total_square(index) ** (power - 1)
                )
                self.by_total_square[index] = self.by_total_square.get(index, 0.0) + change

    def is_nonzero(self, index: int) -> bool:
        """Return whether the residual Gram of a projection is larger than rounding errors."""
        if index not in self.nonzero and isinstance(
            self.problem.matrix_free_gram(self.problem.projections[index]), WindowGram
        ):
            self.nonzero[index] = True  # no window contains all cells
        if index not in self.nonzero:
            query_trace = self.problem.gram_trace(self.problem.projections[index].part)
            self.nonzero[index] = self.residual_gram(index).trace > MIN_TRACE_SHARE * query_trace
        return self.nonzero[index]

    def optimum(self, index: int) -> tuple[float, Array, list[Array]]:
        """Return the smallest error L for the residual Gram of a projection, and its derivatives.

        The result is (L, its derivative with respect to the Gram, its derivatives with respect to
        N^T pi of the attributes inside the space).  For wide attributes that are solved without a
        matrix the derivatives are 0.
        """
        if index not in self.optima:
            projection = self.problem.projections[index]
            if self.problem.matrix_free_gram(projection) is not None:
                # derivatives are not needed, because wide attributes keep the uniform center or get
                # one from a fixed-point iteration without derivatives
                L = self.problem.matrix_free_error(index, self.centers.get(projection.roles[0]))
                self.optima[index] = L, np.zeros(()), [np.zeros(projection.part.sizes[0] - 1)]
                return self.optima[index]
            centers = [self.centers.get(projection.roles[i]) for i in projection.inside]
            self.optima[index] = self.problem.dual(index, self.residual_gram(index), centers)
        return self.optima[index]

    def error(self, index: int) -> float:
        """Return the smallest error L for the residual Gram of a projection, without derivatives."""
        projection = self.problem.projections[index]
        if index in self.optima or self.problem.matrix_free_gram(projection) is not None:
            return self.optimum(index)[0]
        centers = [self.centers.get(projection.roles[i]) for i in projection.inside]
        return self.problem.dual_value(index, self.residual_gram(index), centers)

    def _add_by_centers(
        self, roles: Sequence[Role], by_center: Sequence[Array], weight: float
    ) -> None:
        """Add ``weight`` times ``by_center`` to ``self.by_role``, for every role of ``roles``.

        ``by_center`` holds the derivatives of an error with respect to N^T pi of the roles, and
        ``weight`` is the derivative of the objective S with respect to this error.
        """
        for role, gradient in zip(roles, by_center, strict=True):
            self._add(role, weight * gradient)

    def _add_by_residual_gram(self, index: int, by_gram: Array) -> None:
        """Add to ``by_residual_gram`` a derivative of the objective S by the Gram of a projection.

        Nothing is added if the projection is to the space of all attributes of the query family,
        whose Gram does not depend on the centers.
        """
        projection = self.problem.projections[index]
        if len(projection.inside) < len(projection.roles):
            self.by_residual_gram[index] = self.by_residual_gram.get(index, 0.0) + by_gram

    def _add(self, role: Role, gradient: Array) -> None:
        """Add to ``self.by_role`` a derivative with respect to N^T pi of a role, shape (n - 1,)."""
        self.by_role[role] = self.by_role.get(role, 0.0) + gradient

    def finish(self) -> dict[Role, Array]:
        """Return the derivatives of the objective S with respect to N^T pi of each role, (n - 1,).

        Call this method after `space` was called for all classes.  `space` collects the derivatives
        with respect to total squares and residual Grams; this method adds their effect on the
        centers.
        """
        for index, derivative in self.by_total_square.items():
            projection = self.problem.projections[index]
            # wide attributes that are solved without a matrix are tuned without derivatives
            if self.problem.matrix_free_gram(projection) is None:
                self._add_through_total_square(projection, derivative)
        for index, by_gram in self.by_residual_gram.items():
            self._add_through_residual_gram(self.problem.projections[index], by_gram)
        return self.by_role

    def _add_through_total_square(self, projection: PartProjection, derivative: float) -> None:
        """Add to ``by_role`` the derivatives of the objective S through a total square.

        The total square is the sum of the squared coefficients of the queries of ``projection`` on
        the total.  ``derivative`` is the derivative of S with respect to it.
        """
        if len(projection.roles) == 1:
            role = projection.roles[0]
            gradient = 2.0 * self.problem.gram(projection.part) @ self.center(role)
            self._add(role, derivative * basis(self.problem.sizes[role]).T @ gradient)
            return
        # the total square is the squared norm of this vector, which is linear in every center
        on_total = self._contracted(projection, ())
        for position, role in enumerate(projection.roles):
            gradient = 2.0 * on_total @ self._contracted(projection, (position,))
            self._add(role, derivative * basis(self.problem.sizes[role]).T @ gradient)

    def _add_through_residual_gram(self, projection: PartProjection, by_gram: Array) -> None:
        """Add to ``by_role`` the derivatives of the objective S through a projection's residual Gram.

        The residual Gram depends on the centers of the attributes that are not in the residual
        space.  ``by_gram`` is the derivative of S with respect to the Gram.
        """
        # The Gram is R^T R with the projected query rows R, which are linear in the center of every
        # attribute outside the space.  This is the derivative of S with respect to R.
        by_rows = 2.0 * self._residual_rows(projection) @ by_gram
        for position, role in enumerate(projection.roles):
            if position in projection.inside:
                continue
            keep = tuple(sorted((*projection.inside, position)))
            bases = [None if i == position else basis(projection.part.sizes[i]) for i in keep]
            rows = contract(self._contracted(projection, keep), bases, 1)
            axis = keep.index(position)
            other_axes = tuple(i for i in range(len(keep)) if i != axis)
            # dR / d pi for the center pi of this attribute, with the shape (rows, residual
            # coordinates of the space, cells of the attribute)
            by_center = group_axes(rows, [other_axes, (axis,)], 1)
            gradient = np.einsum("qm,qmn->n", by_rows, by_center)
            self._add(role, basis(self.problem.sizes[role]).T @ gradient)


# the sum of the entries of a vector counts as zero if it is at most this share of the sum of their
# absolute values
ROUNDING = 1e-9
# largest number of entries of the query rows of one query family of a group, if the family is on
# several attributes; groups with a larger family are left out of the objective
MAX_JOINT_ENTRIES = 40_000_000
# expected number of evaluations of the dual in one strategy search, for forecasts
FORECAST_EVALUATIONS = 30
# expected number of evaluations of the dual in a strategy search that starts at the dual weights of
# the last search, for a query family on several attributes
FORECAST_JOINT_STEPS = 20
# If one evaluation of the dual for the Gram of a residual space would take longer than this, in
# seconds, a separate strategy is searched for every term of the Gram.
MAX_SPACE_STEP_S = 2.0
# expected time of one evaluation of the dual of interval queries, in seconds per cell
INTERVAL_SECONDS_PER_CELL = 3e-6
# initial `CenterProblem.options`: stopping rule of strategy searches
COARSE_OPTIONS = Options(gap=1e-4, evaluations=60)


@dataclass(frozen=True, kw_only=True)
class PartProjection:
    """Queries of one part of a group, projected to the residual space of some of its attributes.

    Attributes
    ----------
    part : queries of one family on some attributes.
    roles : role (class of equivalent attributes) of every attribute of the part.
    inside : positions, within the part, of the attributes of the residual space; empty for the
        total.
    """

    part: Part
    roles: tuple[Role, ...]
    inside: Axes


# Kronecker product of residual Grams: for every factor, its axes of the residual space and the
# index of the projection with this residual Gram
KroneckerProduct = tuple[tuple[Axes, int], ...]
# Polynomial in total squares: a mapping from monomials to their weights.  A monomial is given by
# the sorted indices of the projections whose total squares are multiplied.
Polynomial = dict[tuple[int, ...], float]


@dataclass(kw_only=True, eq=False)
class SpaceKind:
    """Equivalence class of residual spaces, with their common Gram as a function of the centers.

    Attributes
    ----------
    count : number of spaces in the class.
    roles : roles of the attributes of one space.
    terms : the Gram as a weighted sum of Kronecker products: a mapping from the products to their
        coefficients, which are polynomials in total squares.
    separate : whether every term is solved on its own.  If so, the smallest error for the Gram is
        replaced by a lower bound on it: the sum of the smallest errors for the terms.
    """

    count: int
    roles: tuple[Role, ...]
    terms: dict[KroneckerProduct, Polynomial]
    separate: bool = False


def roles_of(workload: Workload) -> dict[str, Role]:
    """Return the role of every attribute: the index of its equivalence class, from 0.

    Two attributes are equivalent if they have the same size and occur equally often, with the same
    weights, at the same positions of the same parts (product factors) of query groups.
    """
    occurrences = _attribute_occurrences(workload)
    firsts, row_class = unique_rows(occurrences)
    counts = np.bincount(row_class).tolist()
    by_attribute: dict[int, list[tuple[int, ...]]] = {}
    for (attribute, *occurrence), count in zip(occurrences[firsts].tolist(), counts, strict=True):
        by_attribute.setdefault(attribute, []).append((*occurrence, count))
    roles: dict[Any, Role] = {}
    return {
        a.name: roles.setdefault((a.size, tuple(by_attribute.get(i, ()))), len(roles))
        for i, a in enumerate(workload.schema.attributes)
    }


def _attribute_occurrences(workload: Workload) -> Index:
    """Return one row (attribute, slot, weight) per attribute of every query group, shape (rows, 3).

    ``attribute`` is an index in the schema.  ``slot`` is the index of a combination of three
    things: the part (product factor) with the attribute, the position of the attribute in this
    part, and all parts of the group.  ``weight`` is the index of the group's weight among the
    distinct weights.
    """
    part_indices: dict[Any, int] = {}
    slot_indices: dict[Any, int] = {}
    _, weights = np.unique([group.weight for group in workload.groups], return_inverse=True)
    attributes: list[Index] = [np.zeros(0, dtype=np.int64)]
    groups: list[Index] = [np.zeros(0, dtype=np.int64)]
    slots: list[int] = [0]
    for group_class in workload.group_classes:
        parts = [
            (part_indices.setdefault(part.key, len(part_indices)), part.axes)
            for part in workload.groups[group_class.numbers[0]].parts
        ]
        all_parts = tuple(sorted(part_index for part_index, _ in parts))
        for part_index, axes in parts:
            for position, axis in enumerate(axes):
                key = part_index, position, all_parts
                slots.append(slot_indices.setdefault(key, len(slot_indices)))
                attributes.append(group_class.places[:, group_class.ranks.index(axis)])
                groups.append(group_class.numbers)
    slot_column = np.repeat(slots, [len(numbers) for numbers in groups])
    weight_column = weights[np.concatenate(groups)]
    return np.column_stack([np.concatenate(attributes), slot_column, weight_column])


def too_slow(sizes: Sequence[int]) -> bool:
    """Return whether one evaluation of the dual of a space takes longer than `MAX_SPACE_STEP_S`.

    ``sizes`` are the domain sizes of the space's attributes.
    """
    return step_seconds(math.prod(n - 1 for n in sizes), math.prod(sizes)) > MAX_SPACE_STEP_S


def _has_matrix_free_form(part: Part) -> bool:
    """Return whether a query family has only intervals or areas of levels on a wide attribute.

    The result is False for windows (intervals of one width), see `CenterProblem.window_roles`.
    """
    return is_wide_areas(part) or wide_interval_gram(part) is not None


class CenterProblem:
    """Objective S as a function of the centers, with its gradient.

    S is the sum of the roots of the smallest errors of all residual spaces.

    Parameters
    ----------
    workload : query groups, each with one weight for all its queries.
    watch : called with the fraction completed and a text; may raise to cancel.
    allowance : limits of memory and time.  Groups with a query family that exceeds a limit are left
        out of S, and attributes that occur only in such groups keep uniform centers.
    window_weights : dual weights of windows, by `WindowSpace.key`, from which first searches start
        and to which all searches add their own; None for no weights.
    solves_windows : whether wide attributes that have only windows of one width are solved without
        a matrix.  The gradient search needs their matrices.
    """

    def __init__(
        self,
        workload: Workload,
        watch: Listener,
        allowance: Allowance | None = None,
        *,
        window_weights: WindowWeights | None = None,
        solves_windows: bool = True,
    ) -> None:
        self.workload, self.watch, self.allowance = workload, watch, allowance or Allowance()
        self.window_weights = {} if window_weights is None else window_weights
        self.roles = roles_of(workload)
        self.sizes = {role: workload.schema[name].size for name, role in self.roles.items()}
        self.projections: list[PartProjection] = []
        self._projection_indices: dict[Any, int] = {}
        self._rows: dict[Any, Array] = {}
        self._last_weights: dict[Any, Array] = {}
        self._level_grams: dict[Any, LevelGram | None] = {}
        self._level_values: dict[int, float] = {}
        self._grams: dict[Any, Array] = {}
        self._zero_projections: dict[int, bool] = {}
        self._bytes, self._seconds = 0, 0.0
        self._roles = np.array([self.roles[name] for name in workload.schema.names], dtype=np.int64)
        candidates = self._classes_of_groups()
        firsts = [group for group, *_ in candidates]
        parts_of_role: dict[Role, list[Part]] = {}
        for group in firsts:
            for part in group.parts:
                for axis in part.axes:
                    parts_of_role.setdefault(self.roles[group.attributes[axis]], []).append(part)
        # roles (classes of equivalent attributes) with only windows of one width
        self.window_roles = {
            role
            for role, parts in parts_of_role.items()
            if solves_windows
            and len({part.key for part in parts}) == 1
            and wide_window_gram(parts[0]) is not None
        }
        # roles (classes of equivalent attributes) that need matrices, because some query on the
        # attributes has no matrix-free form
        self._matrix_roles = {
            role
            for role, parts in parts_of_role.items()
            if role not in self.window_roles and not all(map(_has_matrix_free_form, parts))
        }
        fits = self._fitting(firsts)
        self._group_classes = list(itertools.compress(candidates, fits))
        # Groups that exceed the limits have no influence on the centers, although the plan answers
        # them.  So the caller also plans with uniform centers and chooses the better plan.
        roles_present = {
            role
            for _, groups, _ in self._group_classes
            for role in self._roles[groups.places[0]].tolist()
        }
        self.kinds = self._kinds()
        self.tuned = [
            r
            for r in sorted(roles_present)
            if self.sizes[r] > 1 and not self._is_uniform_optimal(r)
        ]
        self.options = COARSE_OPTIONS

    def _classes_of_groups(self) -> list[tuple[Group, GroupClass, Array]]:
        """Return one tuple (first group, all groups, their weights) per class of groups.

        Groups of one class have the same queries on equivalent attributes.  Groups of weight 0
        are left out.  Classes are in the order of their first groups.
        """
        weights = np.array([group.weight for group in self.workload.groups])
        classes = []
        for group_class in self.workload.group_classes:
            if len(group_class.numbers) == 1:
                number = int(group_class.numbers[0])
                if weights[number] > 0.0:
                    group = self.workload.groups[number]
                    classes.append((group, group_class, weights[group_class.numbers]))
                continue
            # one row per group with the roles (classes) of its attributes; groups with equal rows
            # form one class
            _, role_class = unique_rows(self._roles[group_class.places])
            for k in range(int(role_class.max()) + 1):
                members = (role_class == k) & (weights[group_class.numbers] > 0.0)
                if members.any():
                    member_class = replace(
                        group_class,
                        numbers=group_class.numbers[members],
                        places=group_class.places[members],
                    )
                    first = self.workload.groups[member_class.numbers[0]]
                    classes.append((first, member_class, weights[member_class.numbers]))
        return sorted(classes, key=lambda entry: int(entry[1].numbers[0]))

    def _fitting(self, firsts: Sequence[Group]) -> list[bool]:
        """Return for each class of groups whether memory and time suffice for its query families.

        ``firsts`` holds the first group of each class.  Memory and time are reserved one group
        after the other; groups with small families come first.
        """
        fitting: dict[Any, bool] = {}
        for group in sorted(firsts, key=lambda g: max((p.cells for p in g.parts), default=0)):
            for part in group.parts:
                key = self._part_key(group, part)
                if key not in fitting:
                    fitting[key] = self._reserve_part(part, key[1])
        return [
            all(fitting[self._part_key(first, part)] for part in first.parts) for first in firsts
        ]

    def _reserve_part(self, part: Part, roles: tuple[Role, ...]) -> bool:
        """Reserve memory and time for a query family; return False if a limit forbids it.

        ``roles`` are the classes of the family's attributes.
        """
        n = part.cells
        if roles[0] in self.window_roles and (windows := wide_window_gram(part)) is not None:
            return self._reserve(0, int(window_bytes(windows)), window_evaluation_seconds(windows))
        if _has_matrix_free_form(part) and roles[0] not in self._matrix_roles:
            return self._reserve(0, 0, INTERVAL_SECONDS_PER_CELL * n)
        rank = min(part.count, n)
        step = step_seconds(rank, n)
        if len(part.sizes) > 1 and (
            part.count * n > MAX_JOINT_ENTRIES
            or not self.allowance.is_short(FORECAST_JOINT_STEPS * step)
        ):
            return False
        peak = rows_bytes(part) + dense_bytes(rank, n, n) + 32 * n * n
        return self._reserve(32 * n * n, peak, step)

    def _part_key(self, group: Group, part: Part) -> tuple[Any, tuple[Role, ...]]:
        return part.key, tuple(self.roles[group.attributes[a]] for a in part.axes)

    def _reserve(self, retained: int, peak: int, step: float) -> bool:
        """Reserve memory and time within the limits; return False if a limit does not allow it.

        Parameters
        ----------
        retained : memory that is in use during the whole search, in bytes.
        peak : additional memory that is in use during one step, in bytes.
        step : time of one evaluation of the dual, in seconds.
        """
        seconds = self._seconds + FORECAST_EVALUATIONS * step
        if not (
            self.allowance.fits(self._bytes + retained + peak) and self.allowance.has_time(seconds)
        ):
            return False
        self._bytes, self._seconds = self._bytes + retained, seconds
        return True

    def _kinds(self) -> list[SpaceKind]:
        """Return the classes of residual spaces, in the order of the first groups on them."""
        # index of each distinct pair (Kronecker product, monomial of its coefficient)
        product_indices: dict[tuple[KroneckerProduct, tuple[int, ...]], int] = {}
        contributions = []
        for group, groups, weights in self._group_classes:
            # tuples (positions of the space's attributes, index of the product, coefficient)
            pattern = [
                (
                    positions,
                    product_indices.setdefault((factors, monomial), len(product_indices)),
                    1.0,
                )
                for positions, factors, monomial in self._group_terms(group, groups.ranks)
            ]
            contributions.append(
                GroupContribution(
                    numbers=groups.numbers, places=groups.places, weights=weights, pattern=pattern
                )
            )
        products = list(product_indices)
        kinds_by_sort_key = list[tuple[int, SpaceKind]]()
        for spaces in queried_spaces(contributions, self._roles, self.workload.schema.exact_places):
            counts = np.bincount(spaces.kinds).tolist()
            _, examples = np.unique(spaces.kinds, return_index=True)
            for k, coefficients in enumerate(spaces.coefficients):
                terms: dict[KroneckerProduct, Polynomial] = {}
                for index, weight in coefficients.items():
                    factors, monomial = products[index]
                    terms.setdefault(factors, {})[monomial] = weight
                roles = tuple(self._roles[spaces.places[examples[k]]].tolist())
                kind = SpaceKind(count=counts[k], roles=roles, terms=terms)
                kinds_by_sort_key.append((int(spaces.sort_keys[k]), kind))
        # a fixed order, because the last digits of sums depend on it
        kinds = [kind for _, kind in sorted(kinds_by_sort_key, key=lambda entry: entry[0])]
        # `_can_solve_sum` reserves memory and time, so small spaces come first
        for kind in sorted(kinds, key=lambda k: math.prod(self.sizes[r] for r in k.roles)):
            kind.separate = len(kind.terms) > 1 and not self._can_solve_sum(kind)
        return kinds

    def _can_solve_sum(self, kind: SpaceKind) -> bool:
        """Return whether a single search solves the sum of all terms; reserve memory and time.

        The result is False if a limit forbids the search, or if an attribute is solved without a
        matrix.
        """
        sizes = [self.sizes[role] for role in kind.roles]
        dimension, cells = math.prod(n - 1 for n in sizes), math.prod(sizes)
        peak = dense_bytes(dimension, dimension, cells)
        peak += 8 * dimension * ((len(kind.terms) + 4) * dimension + 3 * cells)
        return (
            not any(self._is_matrix_free_role(role) for role in kind.roles)
            and self._reserve(0, peak, step_seconds(dimension, cells))
            and not too_slow(sizes)
        )

    def _group_terms(
        self, group: Group, sorted_axes: Sequence[int]
    ) -> list[tuple[Axes, KroneckerProduct, tuple[int, ...]]]:
        """Return what a group of weight 1 adds to the Gram of every residual space.

        Parameters
        ----------
        group : the queries.
        sorted_axes : the axes of the group in schema order.

        Returns
        -------
        One tuple (positions, factors, monomial) per residual space to which the group adds
        something.  ``positions`` are the positions in ``sorted_axes`` of the axes of the space. The
        group adds the Kronecker product ``factors`` times a number.  This number is a product of
        total squares (sums of squared coefficients on the total), one per part (product factor) of
        the group without an attribute of the space.  ``monomial`` has the indices of the
        projections of these parts to the total.
        """
        position_of_axis = {axis: position for position, axis in enumerate(sorted_axes)}
        # One list per part (product factor), with one pair per subset of its attributes. A pair
        # holds the positions of these attributes and the index of the projection to their residual
        # space.
        choices = []
        for part in group.parts:
            roles = tuple(self.roles[group.attributes[a]] for a in part.axes)
            choices.append(
                [
                    (
                        tuple(position_of_axis[part.axes[i]] for i in inside),
                        self._projection_index(part, roles, inside),
                    )
                    for inside in subsets(range(len(part.axes)))
                ]
            )
        # One entry per product of queries on the space: positions of the space's attributes,
        # positions and index of every factor, indices of the projections to the total. The loop
        # adds one part (product factor) of the group after the other.
        products: list[tuple[Axes, KroneckerProduct, tuple[int, ...]]] = [((), (), ())]
        for choices_of_part in choices:
            products = [
                (positions + chosen, (*factors, (chosen, index)), totals)
                if chosen
                else (positions, factors, (*totals, index))
                for positions, factors, totals in products
                for chosen, index in choices_of_part
                if not (chosen and self._is_zero(index))
            ]
        terms = []
        for unsorted_positions, factors, totals in products:
            positions = tuple(sorted(unsorted_positions))
            axes_of_factors = [
                (tuple(map(positions.index, chosen)), index) for chosen, index in factors
            ]
            terms.append((positions, tuple(sorted(axes_of_factors)), tuple(sorted(totals))))
        return terms

    def _projection_index(self, part: Part, roles: tuple[Role, ...], inside: Axes) -> int:
        """Return the index of a projection in ``projections``; add the projection if it is new."""
        key = (part.key, roles, inside)
        if key not in self._projection_indices:
            self._projection_indices[key] = len(self.projections)
            self.projections.append(PartProjection(part=part, roles=roles, inside=inside))
        return self._projection_indices[key]

    def _is_zero(self, index: int) -> bool:
        """Return whether the residual Gram of a projection is zero for all centers."""
        if index not in self._zero_projections:
            self._zero_projections[index] = self._compute_is_zero(self.projections[index])
        return self._zero_projections[index]

    def _compute_is_zero(self, projection: PartProjection) -> bool:
        part = projection.part
        if any(part.sizes[i] == 1 for i in projection.inside):
            return True
        if len(part.sizes) > 1 or _has_matrix_free_form(part):
            return False
        if projection.roles[0] in self.window_roles:
            return False
        gram = self.gram(part)
        N = basis(part.sizes[0])
        return bool(np.trace(N.T @ gram @ N) <= 1e-13 * np.trace(gram))

    def _is_uniform_optimal(self, role: Role) -> bool:
        """Return whether the uniform center of a role is optimal, or the only one supported.

        A role is a class of equivalent attributes.  The uniform center is optimal if all Grams on
        attributes of this role are invariant under a cyclic shift of the cells.  Three cases are
        decided without a test of Grams.  The result is False if an attribute of the role has only
        windows of one width.  Otherwise it is True if a wide attribute of the role has areas of
        levels.  Otherwise it is False if a query family is on several attributes, or has prefixes,
        suffixes or ranges on a wide attribute.
        """
        if role in self.window_roles:
            return False
        parts = [projection.part for projection in self.projections if role in projection.roles]
        if any(is_wide_areas(part) for part in parts):
            return True  # the search for strategies of areas supports no other center
        for part in parts:
            if has_identity_gram(part):
                continue
            if len(part.sizes) > 1 or wide_interval_gram(part) is not None:
                return False
            gram = self.gram(part)
            if not np.allclose(
                gram, np.roll(gram, (1, 1), (0, 1)), rtol=0, atol=1e-12 * np.abs(gram).max()
            ):
                return False
        return True

    def _is_matrix_free_role(self, role: Role) -> bool:
        """Return whether no query on a class of equivalent attributes (a role) needs a matrix."""
        return is_wide(self.sizes[role]) and role not in self._matrix_roles

    @property
    def matrix_free_roles(self) -> set[Role]:
        """Tuned roles that are wide attributes with interval queries or windows only."""
        return {role for role in self.tuned if self._is_matrix_free_role(role)}

    def matrix_free_gram(
        self, projection: PartProjection
    ) -> IntervalGram | LevelGram | WindowGram | None:
        """Return the Gram of a query family on cells as weights of intervals, areas or windows.

        The result is None if the Gram of ``projection`` is computed as a matrix.  Matrices are
        avoided if the family is on a wide attribute and all queries of the workload on this
        attribute are intervals or areas of levels, or all are windows of one width.  Matrices are
        also avoided for the marginal of a wide attribute that keeps the uniform center.
        """
        role = projection.roles[0]
        if role in self.window_roles:
            return wide_window_gram(projection.part)
        if is_wide_areas(projection.part):
            if projection.part.key not in self._level_grams:
                self._level_grams[projection.part.key] = wide_level_gram(projection.part)
            return (
                self._level_grams[projection.part.key] if self._is_matrix_free_role(role) else None
            )
        gram = wide_interval_gram(projection.part)
        if gram is None or (gram.is_marginal and role not in self.tuned):
            return gram
        return gram if self._is_matrix_free_role(role) else None

    def matrix_free_error(self, index: int, pi: Array | None) -> float:
        """Return the smallest error for a projection with a `matrix_free_gram`, in counts^2.

        ``index`` is that of the projection.  ``pi`` is the center of its attribute, shape (n,), or
        None for the uniform center.
        """
        gram = self.matrix_free_gram(self.projections[index])
        assert gram is not None
        if isinstance(gram, LevelGram):
            # computed once, because attributes with areas of levels keep the uniform center
            if index not in self._level_values:
                self._level_values[index] = level_solution(gram, self.options).bound
            return self._level_values[index]
        if isinstance(gram, WindowGram):
            return self._solve_windows(index, WindowSpace(gram=gram, center=pi)).bound
        if gram.is_marginal and pi is None:
            return marginal_solution(gram.cells, gram.marginal).value
        return self._solve_interval(index, IntervalSpace(gram=gram, center=pi)).bound

    def _solve_interval(self, key: Any, space: IntervalSpace) -> IntervalSolution:
        """Solve interval queries; the search starts at the last dual weights stored for ``key``."""
        return self._solve(solve, key, space, self.options.gap)

    def _solve_windows(self, key: Any, space: WindowSpace) -> WindowSolution:
        """Solve windows; the search starts at the last dual weights stored for ``key``.

        The first search starts at the ``window_weights`` of these windows.
        """
        if space.key in self.window_weights:
            self._last_weights.setdefault(key, self.window_weights[space.key])
        # The plan starts its search on a residual space at these weights. This search would take
        # about as many steps near the optimum as far from it, so the weights are computed with the
        # gap of the plan.
        gap = self.options.gap if space.whole else min(self.options.gap, WINDOW_GAP)
        solution = self._solve(solve_windows, key, space, gap)
        self.window_weights[space.key] = solution.dual
        return solution

    def _solve(
        self, search: Callable[..., SolutionT], key: Any, space: object, gap: float
    ) -> SolutionT:
        self.allowance.check()
        solution = search(
            space,
            gap=gap,
            evaluations=self.options.evaluations,
            deadline=self.allowance.deadline,
            start=self._last_weights.get(key),
        )
        self.allowance.check()
        self._last_weights[key] = solution.dual
        return solution

    def rows(self, part: Part) -> Array:
        """Return rows with the Gram of a family on several attributes, shape (rows, *sizes)."""
        if part.key not in self._rows:
            self._rows[part.key] = part_rows(part).reshape(-1, *part.sizes)
        return self._rows[part.key]

    def gram_trace(self, part: Part) -> float:
        """Return the sum of the squared entries of a part's query rows.

        Rounding errors of the part's Gram are proportional to this sum.
        """
        if (gram := wide_interval_gram(part)) is not None:
            return float(IntervalSpace(gram=gram, whole=True).cell_traces().sum())
        if is_wide_areas(part) or wide_window_gram(part) is not None:
            return float(part.family.squared_norms(part.sizes).sum())
        if len(part.sizes) == 1:
            return float(np.trace(self.gram(part)))
        return float(np.sum(self.rows(part) ** 2))

    def evaluate(self, centers: Mapping[Role, Array]) -> tuple[float, dict[Role, Array]]:
        """Return the objective S and its derivatives with respect to centers.

        The second result maps roles to derivatives with respect to N^T pi, shape (n - 1,).
        ``centers`` maps roles to centers, shape (n,); roles without an entry have uniform centers.

        Raises
        ------
        TimeoutError : the deadline has passed.
        """
        state = Evaluation(problem=self, centers=centers)
        total = 0.0
        for kind in self.kinds:
            total += kind.count * state.space(kind)
        return total, state.finish()

    def optimal_center(self, role: Role, inside: int, c: float) -> Array:
        """Return the center Sigma 1 / (1^T Sigma 1) of an attribute, shape (n,).

        Sigma is the covariance of the cell counts under the optimal strategy for the Gram G + c 1
        1^T on cells.  G is the Gram of the query family whose projection to the residual space of
        the attribute has the index ``inside``.  For interval queries solved without a matrix, c is
        raised if G + c 1 1^T would not be positive definite.  For windows, c is raised to 0.
        """
        self.allowance.check()
        n = self.sizes[role]
        gram = self.matrix_free_gram(self.projections[inside])
        if isinstance(gram, IntervalGram):
            # c is the weight of the total.  It may be negative, but G + c 1 1^T must stay positive
            # definite.  ``floor`` is a lower bound on the eigenvalues of G in the coordinates
            # z_k = q_k - q_(k+1) of queries q.
            floor = gram.prefix + gram.ranges + gram.suffix / (2.0 * n)
            whole = IntervalSpace(gram=replace(gram, total=max(c, -0.9 * floor)), whole=True)
            covariances = self._solve_interval(("whole", role), whole).total_covariances()
            return np.asarray(covariances / covariances.sum())
        if isinstance(gram, WindowGram):
            windows = WindowSpace(gram=replace(gram, total=max(c, 0.0)), whole=True)
            if not windows.gram.spans_total:
                # the center does not depend on the strategy
                return evaluate_windows(windows, np.ones(n)).total_center()
            solution = self._solve_windows(("whole", role), windows)
            if solution.evaluations > 1:
                # The weights and the center have changed.  The new weights are also near the
                # optimum for the residual space of the new center.
                self._last_weights[inside] = solution.dual
            return solution.total_center()
        factor = Factor(sizes=(n,), matrix=self.gram(self.projections[inside].part) + c)
        with threads_for(n):
            problem = DualProblem(lift=FullDomain(n), factor=factor)
            options = replace(self.options, deadline=self.allowance.deadline)
            mass, status = problem.maximise(options, self._last_weights.get(("whole", role)))
            # the next search cannot raise a weight of 0, so all weights are made positive
            self._last_weights["whole", role] = 0.99 * mass + 0.01 / n
            self._last_weights[inside] = mass  # also near the optimum for G alone
            pi = problem.solution(mass, status).strategy.covariance.sum(axis=1)
        return np.asarray(pi / pi.sum())

    def dual(
        self, key: Any, factor: Factor, centers: Sequence[Array | None]
    ) -> tuple[float, Array, list[Array]]:
        """Return the smallest error L for a residual Gram ``factor``, and its derivatives.

        The result is (L, its derivative with respect to the Gram, list of its derivatives with
        respect to N^T pi of the attributes).  The search starts at the dual weights of the last
        search with the same ``key``.
        """
        with threads_for(factor.rank):
            problem, mass = self._search_weights(key, factor, centers)
            return problem.sensitivities(mass)

    def dual_value(self, key: Any, factor: Factor, centers: Sequence[Array | None]) -> float:
        """Return the smallest error L of `dual` without its derivatives."""
        with threads_for(factor.rank):
            problem, mass = self._search_weights(key, factor, centers)
            return problem.value(mass)

    def _search_weights(
        self, key: Any, factor: Factor, centers: Sequence[Array | None]
    ) -> tuple[DualProblem, Array]:
        """Return the dual problem of a residual Gram, and its optimal weights, shape (orbits,)."""
        self.allowance.check()
        problem = DualProblem(lift=Lift(factor.sizes, centers), factor=factor)
        start = self._last_weights.get(key)
        if start is not None and len(start) == problem.variables:
            # The search cannot raise a weight of 0, so all weights are made positive.
            start = 0.99 * start + 0.01 * problem.multiplicity / problem.multiplicity.sum()
        else:
            start = None
        mass, _ = problem.maximise(replace(self.options, deadline=self.allowance.deadline), start)
        self.allowance.check()
        self._last_weights[key] = mass
        return problem, mass

    def gram(self, part: Part) -> Array:
        """Return the Gram of a query family on one attribute, shape (n, n)."""
        if part.key not in self._grams:
            self._grams[part.key] = part.family.gram(part.sizes)
        return self._grams[part.key]

    def one_parameter_center(self, role: Role, c: float) -> Array:
        """Return the center Sigma 1 / (1^T Sigma 1) of an attribute, shape (n,).

        Sigma is the covariance of the cell counts under the optimal strategy for the Gram G + c m 1
        1^T on cells, where m is the mean entry of G.  G is the sum of the Grams of all query
        families with a projection to the residual space of only this attribute.  Each Gram is that
        of `_averaged_gram`, divided by its trace.  The center is uniform if G is 0, or if no query
        depends on the total.
        """
        n = self.sizes[role]
        gram = np.zeros((n, n))
        for projection in self.projections:
            for position in projection.inside:
                if projection.roles[position] == role and len(projection.inside) == 1:
                    summand = self._averaged_gram(projection.part, position)
                    gram += summand / max(float(np.trace(summand)), 1e-300)
        if not gram.any():
            return np.full(n, 1.0 / n)
        gram_with_total = gram + c * gram.mean() * np.ones((n, n))
        with threads_for(n):
            problem = DualProblem(
                lift=FullDomain(n), factor=Factor(sizes=(n,), matrix=gram_with_total)
            )
            strategy = problem.solution(*problem.maximise(COARSE_OPTIONS)).strategy
            covariances = strategy.covariance @ np.ones(n)
        total_variance = float(covariances.sum())
        if abs(total_variance) <= ROUNDING * float(np.abs(covariances).sum()):
            # every center is equally good, because no query depends on the total
            return np.full(n, 1.0 / n)
        return covariances / total_variance

    def _averaged_gram(self, part: Part, position: int) -> Array:
        """Return the Gram of a family on one of its attributes, shape (n, n).

        ``position`` is that of the attribute in the family.  The query rows are averaged over the
        cells of the other attributes.
        """
        if len(part.sizes) == 1:
            return self.gram(part)
        means = [None if i == position else center(n, None) for i, n in enumerate(part.sizes)]
        rows = contract(self.rows(part), means, 1)
        return rows.T @ rows
