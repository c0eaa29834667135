"""Objective of tuned centers and its gradient, and the limits of the search.

The objective is S, the sum of sqrt(L_B) over the residual spaces B, as a function of the centers.
L_B is the smallest weighted squared error on B at privacy cost 1; see
`engine.residuals.tuning.tune`.  Residual spaces that are equal up to attribute names form one class
(`SpaceKind`).  A part of a query group, together with a choice of which of its attributes are
inside a residual space, is called a piece (`Piece`).  If some attributes are inside, the piece
contributes a factor, a residual Gram, to the Gram of the space.  If none is, it contributes a
scalar, which is quadratic in the centers.  The Gram of a class of spaces is a sum of products of
scalars and factors.  Derivatives are computed in reverse mode: from S to the L_B, from the L_B to
scalars and factors, and from scalars and factors to the centers.

Attributes with equal sizes and equal queries have the same role and share one center.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
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
    Factor,
    GroupContribution,
    add_factors,
    assemble,
    has_identity_gram,
    interval_factor,
    is_wide_areas,
    level_factor,
    part_rows,
    queried_spaces,
    rows_bytes,
    wide_interval_gram,
    wide_level_gram,
)
from engine.residuals.dual_solver import DualProblem, Options
from engine.residuals.intervals import (
    IntervalGram,
    IntervalSolution,
    IntervalSpace,
    solve,
    total_square,
)
from engine.residuals.level_strategy import level_solution
from engine.residuals.levels import LevelGram
from engine.residuals.marginals import marginal_solution
from engine.residuals.operators import is_wide
from engine.residuals.strategy_search import dense_bytes, step_seconds
from engine.workload import Group, Part, Workload, subsets
from engine.workload.workload import GroupClass

MEMORY, TIME, WORK = "memory", "time", "work"
# largest expected time of one step of a search, if there is no time limit, in seconds
MAX_STEP_S = 0.25


@dataclass(kw_only=True)
class Allowance:
    """Limits of memory and time of the search for centers, complements and unions.

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
        """Return whether ``needed`` bytes are within the memory limit; record "memory" if not."""
        if needed > self.memory:
            self.stopped.add(MEMORY)
        return needed <= self.memory

    def is_short(self, seconds: float) -> bool:
        """Return whether a step may take ``seconds``; record "work" if not.

        Without a time limit the longest step is `MAX_STEP_S`; with a time limit, any step is
        allowed.
        """
        if math.isinf(self.deadline) and seconds > MAX_STEP_S:
            self.stopped.add(WORK)
            return False
        return True

    def has_time(self, seconds: float) -> bool:
        """Return whether ``seconds`` remain before the deadline; record "time" if not."""
        if math.isinf(self.deadline) or seconds <= self.deadline - planning_time():
            return True
        self.stopped.add(TIME)
        return False

    def check(self) -> None:
        """Record "time" and raise TimeoutError if the deadline has passed."""
        if planning_time() > self.deadline:
            self.stopped.add(TIME)
            raise TimeoutError


def _center_square(gram: IntervalGram | LevelGram, pi: Array) -> float:
    """Return the weighted sum of the squared answers of the queries to a center, shape (n,)."""
    return gram.total_square(pi) if isinstance(gram, LevelGram) else total_square(gram, pi)


def _structured_factor(gram: IntervalGram | LevelGram) -> Factor:
    """Return the residual Gram of interval queries or areas, stored as weights of the queries."""
    return level_factor(gram) if isinstance(gram, LevelGram) else interval_factor(gram)


@dataclass(kw_only=True, eq=False)
class Evaluation:
    """Intermediate values and derivatives of one evaluation of the objective S at some centers.

    All attributes except the first two are filled during the evaluation.  Keys of the mappings
    are indices of pieces (parts of query groups, see `Piece`), except for ``by_role``.

    Attributes
    ----------
    problem : the objective.
    centers : mapping from roles to centers, shape (n,); roles without an entry have uniform
        centers.
    scalars, by_scalar : scalar of a piece, and the derivative of S with respect to it.
    factors, by_factor : residual Gram of a piece, and the derivative of S with respect to it.
    nonzero : result of `is_nonzero` for a piece.
    by_role : mapping from a role (class of equivalent attributes) to the derivative of S with
        respect to N^T pi, shape (n - 1,).
    solved : result of `optimum` for a piece.
    """

    problem: CenterProblem
    centers: Mapping[Role, Array]
    scalars: dict[int, float] = field(default_factory=dict)
    by_scalar: dict[int, float] = field(default_factory=dict)
    factors: dict[int, Factor] = field(default_factory=dict)
    nonzero: dict[int, bool] = field(default_factory=dict)
    by_factor: dict[int, Array] = field(default_factory=dict)
    by_role: dict[Role, Array] = field(default_factory=dict)
    solved: dict[int, tuple[float, Array, list[Array]]] = field(default_factory=dict)

    def center(self, role: Role) -> Array:
        """Return the center that all attributes of a role share, shape (n,)."""
        n = self.problem.sizes[role]
        return self.centers.get(role, np.full(n, 1.0 / n))

    def scalar(self, number: int) -> float:
        """Return the sum of the squared answers of a piece's queries to the centers, counts^2."""
        if number not in self.scalars:
            piece = self.problem.pieces[number]
            if (wide_gram := self.problem.structured_gram(piece)) is not None:
                square = _center_square(wide_gram, self.center(piece.roles[0]))
            elif len(piece.roles) == 1:
                pi = self.center(piece.roles[0])
                square = float(pi @ self.problem.gram(piece.part) @ pi)
            else:
                square = float(np.sum(self._contracted(piece, ()) ** 2))
            self.scalars[number] = (
                square if square > MIN_TRACE_SHARE * self.problem.gram_trace(piece.part) else 0.0
            )
        return self.scalars[number]

    def _contracted(self, piece: Piece, keep: Axes) -> Array:
        """Apply the query rows of a piece's part to the centers of all its axes except ``keep``.

        The result has shape (rows, *sizes of the axes ``keep``).
        """
        vectors = [None if i in keep else self.center(role) for i, role in enumerate(piece.roles)]
        return contract(self.problem.rows(piece.part), vectors, 1)

    def factor(self, number: int) -> Factor:
        """Return the residual Gram of a piece, on its attributes inside the residual space."""
        if number not in self.factors:
            piece = self.problem.pieces[number]
            sizes = tuple(piece.part.sizes[i] for i in piece.inside)
            if (wide_gram := self.problem.structured_gram(piece)) is not None:
                residual_gram: Factor = _structured_factor(wide_gram)
            elif len(piece.roles) == 1:
                N = basis(sizes[0])
                residual_gram = Factor(sizes=sizes, matrix=N.T @ self.problem.gram(piece.part) @ N)
            else:
                centers = [self.center(r) for r in piece.roles]
                rows = residual_rows(
                    self._flat(piece.part), piece.part.sizes, piece.inside, centers
                )
                has_few_rows = len(rows) < rows.shape[1]
                residual_gram = Factor(
                    sizes=sizes,
                    matrix=rows if has_few_rows else rows.T @ rows,
                    low_rank=has_few_rows,
                )
            self.factors[number] = residual_gram
        return self.factors[number]

    def space(self, kind: SpaceKind) -> float:
        """Return sqrt(L) for one space of a class, where L is the smallest error on the space.

        The derivatives of the sum of sqrt(L) over all spaces of the class are added to those of S.
        """
        coefficients = {
            factors: math.fsum(
                w * math.prod(map(self.scalar, numbers)) for numbers, w in monomials.items()
            )
            for factors, monomials in kind.terms.items()
        }
        used = [
            f
            for f, c in coefficients.items()
            if c > 0 and all(self.is_nonzero(number) for _, number in f)
        ]
        if not used:
            return 0.0
        if len(used) == 1 or kind.separate:
            # derivative of L with respect to a coefficient: the smallest error of the Kronecker
            # product, which is the product of the smallest errors of its factors
            by_coefficient = {
                f: math.prod(self.optimum(number)[0] for _, number in f) for f in used
            }
            value = math.fsum(coefficients[f] * optimum for f, optimum in by_coefficient.items())
            by_L = 0.5 * kind.count / math.sqrt(value)
            for f in used:
                for axes, number in f:
                    optimum, by_gram, by_center = self.optimum(number)
                    by_optimum = by_L * coefficients[f] * by_coefficient[f] / optimum
                    self._add_by_centers([kind.roles[a] for a in axes], by_center, by_optimum)
                    self._add_by_factor(number, by_optimum * by_gram)
        else:
            sizes = tuple(self.problem.sizes[r] for r in kind.roles)
            axes = tuple(range(len(kind.roles)))
            products = {
                f: assemble([(1.0, tuple((a, self.factor(k)) for a, k in f))], axes, sizes)
                for f in used
            }
            gram = add_factors([(coefficients[f], products[f]) for f in used], sizes)
            centers = [self.centers.get(r) for r in kind.roles]
            value, by_gram, by_center = self.problem.dual(kind, gram, centers)
            by_L = 0.5 * kind.count / math.sqrt(value)
            # derivative of L with respect to a coefficient, at fixed dual weights (envelope
            # theorem)
            by_coefficient = {f: float(np.sum(products[f].dense() * by_gram)) for f in used}
            self._add_by_centers(kind.roles, by_center, by_L)
            for f in used:
                if len(f) == 1:
                    self._add_by_factor(f[0][1], by_L * coefficients[f] * by_gram)
        for factors in used:
            for numbers, w in kind.terms[factors].items():
                for k in set(numbers):
                    other_scalars = math.prod(self.scalar(x) for x in numbers if x != k)
                    power = numbers.count(k)
                    change = (
                        by_L
                        * by_coefficient[factors]
                        * w
                        * power
                        * other_scalars
                        * self.scalar(k) ** (power - 1)
                    )
                    self.by_scalar[k] = self.by_scalar.get(k, 0.0) + change
        return math.sqrt(value)

    def _flat(self, part: Part) -> Array:
        rows = self.problem.rows(part)
        return rows.reshape(len(rows), -1)

    def is_nonzero(self, number: int) -> bool:
        """Return whether the residual Gram of a piece is larger than rounding errors."""
        if number not in self.nonzero:
            query_trace = self.problem.gram_trace(self.problem.pieces[number].part)
            self.nonzero[number] = self.factor(number).trace > MIN_TRACE_SHARE * query_trace
        return self.nonzero[number]

    def optimum(self, number: int) -> tuple[float, Array, list[Array]]:
        """Return the smallest error L for the residual Gram of one piece, and its derivatives.

        The result is (L, its derivative with respect to the Gram, its derivatives with respect to
        N^T pi of the attributes inside the space).  For wide attributes without a matrix the
        derivatives are 0.
        """
        if number not in self.solved:
            piece = self.problem.pieces[number]
            if self.problem.structured_gram(piece) is not None:
                # derivatives are not needed, because wide attributes keep the uniform center or get
                # one from a fixed-point iteration without derivatives
                value = self.problem.structured_value(number, self.centers.get(piece.roles[0]))
                self.solved[number] = value, np.zeros(()), [np.zeros(piece.part.sizes[0] - 1)]
                return self.solved[number]
            centers = [self.centers.get(piece.roles[i]) for i in piece.inside]
            self.solved[number] = self.problem.dual(number, self.factor(number), centers)
        return self.solved[number]

    def _add_by_centers(
        self, roles: Sequence[Role], by_center: Sequence[Array], weight: float
    ) -> None:
        """Add to ``self.by_role`` derivatives of S with respect to the centers of some roles.

        They are ``weight``, the derivative of S with respect to the error L of a space, times
        ``by_center``, the derivatives of L with respect to the centers.
        """
        for role, gradient in zip(roles, by_center, strict=True):
            self._add(role, weight * gradient)

    def _add_by_factor(self, number: int, by_gram: Array) -> None:
        """Add to ``self.by_factor`` the derivative of S with respect to a piece's residual Gram.

        Nothing is added if all attributes of the piece are inside the space, because the Gram then
        does not depend on the centers.
        """
        if len(self.problem.pieces[number].inside) < len(self.problem.pieces[number].roles):
            self.by_factor[number] = self.by_factor.get(number, 0.0) + by_gram

    def _add(self, role: Role, gradient: Array) -> None:
        """Add to ``self.by_role`` a derivative with respect to N^T pi of a role, shape (n - 1,)."""
        self.by_role[role] = self.by_role.get(role, 0.0) + gradient

    def finish(self) -> dict[Role, Array]:
        """Return the derivatives of the objective S with respect to N^T pi of each role, (n - 1,).

        Call it after `space` for all classes: it adds the derivatives through scalars and through
        residual Grams, which are collected until then.
        """
        for number, derivative in self.by_scalar.items():
            piece = self.problem.pieces[number]
            if self.problem.structured_gram(piece) is not None:
                continue
            if len(piece.roles) == 1:
                role = piece.roles[0]
                gradient = 2.0 * self.problem.gram(piece.part) @ self.center(role)
                self._add(role, derivative * basis(self.problem.sizes[role]).T @ gradient)
                continue
            # the scalar is the squared norm of the answers, which are linear in every center
            answers = self._contracted(piece, ())
            for position, role in enumerate(piece.roles):
                gradient = 2.0 * answers @ self._contracted(piece, (position,))
                self._add(role, derivative * basis(self.problem.sizes[role]).T @ gradient)
        for number, by_gram in self.by_factor.items():
            self._through_factor(self.problem.pieces[number], by_gram)
        return self.by_role

    def _through_factor(self, piece: Piece, by_gram: Array) -> None:
        """Add to ``self.by_role`` the derivatives of S through a piece's residual Gram.

        The residual Gram depends on the centers of those attributes of the piece that are outside
        the space, so S depends on them, too.  ``by_gram`` is the derivative of S with respect to the Gram.
        """
        centers = [self.center(r) for r in piece.roles]
        # The Gram is R^T R.  This is the derivative of S with respect to R, which is linear in the
        # center of every attribute outside the space.
        by_rows = (
            2.0
            * residual_rows(self._flat(piece.part), piece.part.sizes, piece.inside, centers)
            @ by_gram
        )
        for position, role in enumerate(piece.roles):
            if position in piece.inside:
                continue
            keep = tuple(sorted((*piece.inside, position)))
            bases = [None if i == position else basis(piece.part.sizes[i]) for i in keep]
            rows = contract(self._contracted(piece, keep), bases, 1)
            axis = keep.index(position)
            # shape (rows, residual coordinates, cells of the attribute)
            rows = group_axes(rows, [tuple(i for i in range(len(keep)) if i != axis), (axis,)], 1)
            gradient = np.einsum("qm,qmn->n", by_rows, rows)
            self._add(role, basis(self.problem.sizes[role]).T @ gradient)


# the sum of a vector counts as zero below this share of the sum of its absolute values
ROUNDING = 1e-9
# largest number of entries of the query rows of a part on several attributes; groups with a larger
# part are left out of the objective
MAX_JOINT_ENTRIES = 40_000_000
# expected number of evaluations of the dual in one strategy search, for forecasts
FORECAST_EVALUATIONS = 30
# expected number of evaluations of the dual of a part on several attributes per evaluation of S,
# beginning with the weights of the previous evaluation
FORECAST_JOINT_STEPS = 20
# the terms of a space's Gram are solved separately if one evaluation of the dual of their sum would
# take longer than this, in seconds
MAX_SPACE_STEP_S = 2.0
# expected time of one evaluation of the dual of interval queries, in seconds per cell
INTERVAL_SECONDS_PER_CELL = 3e-6
# stopping rule of strategy searches until `CenterProblem.options` is replaced
COARSE_OPTIONS = Options(gap=1e-4, evaluations=60)


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Part of a query group, with a choice of its attributes that are inside a residual space.

    Attributes
    ----------
    part : queries of one family on some attributes.
    roles : role of every attribute of the part.
    inside : positions, within the part, of the attributes inside the residual space.
    """

    part: Part
    roles: tuple[Role, ...]
    inside: Axes


@dataclass(kw_only=True, eq=False)
class SpaceKind:
    """Equivalence class of residual spaces, with their common Gram as a function of the centers.

    Attributes
    ----------
    count : number of spaces in the class.
    roles : roles of the attributes of one space.
    terms : the Gram as a sum of Kronecker products, a mapping from the factors of a product to its
        coefficient.  A factor is a pair (axes, index of a piece).  A coefficient is a sum of
        monomials in the scalars of pieces: a mapping from the indices of the pieces of a monomial
        to its weight.
    separate : whether every term is solved on its own.  The sum of the smallest errors of the terms
        then replaces the smallest error for the Gram; it is a lower bound.
    """

    count: int
    roles: tuple[Role, ...]
    terms: dict[tuple[tuple[Axes, int], ...], dict[tuple[int, ...], float]]
    separate: bool = False


def roles_of(workload: Workload) -> dict[str, Role]:
    """Return the role of every attribute: the index of its equivalence class, from 0.

    Two attributes are equivalent if they have the same size and occur equally often, with the same
    weights, at the same positions of the same parts of query groups.
    """
    # Two kinds of keys get an index: keys of parts, and places where an attribute occurs.  A place
    # is (index of the part, position of the attribute in it, indices of all parts of the group).
    numbers: dict[Any, int] = {}
    _, weights = np.unique([group.weight for group in workload.groups], return_inverse=True)
    occurrences: list[Index] = [np.zeros((0, 3), dtype=np.int64)]  # attribute, place, weight
    for group_class in workload.group_classes:
        parts = [
            (numbers.setdefault(p.key, len(numbers)), p.axes)
            for p in workload.groups[group_class.numbers[0]].parts
        ]
        part_numbers = tuple(sorted(number for number, _ in parts))
        for number, axes in parts:
            for position, axis in enumerate(axes):
                place = numbers.setdefault((number, position, part_numbers), len(numbers))
                columns = [
                    group_class.places[:, group_class.ranks.index(axis)],
                    np.full(len(group_class.numbers), place),
                ]
                occurrences.append(np.column_stack([*columns, weights[group_class.numbers]]))
    rows = np.concatenate(occurrences)
    firsts, row_class = unique_rows(rows)
    by_attribute: dict[int, list[tuple[int, ...]]] = {}
    for (attribute, *place_and_weight), multiplicity in zip(
        rows[firsts].tolist(), np.bincount(row_class).tolist(), strict=True
    ):
        by_attribute.setdefault(attribute, []).append((*place_and_weight, multiplicity))
    roles: dict[Any, Role] = {}
    return {
        a.name: roles.setdefault((a.size, tuple(by_attribute.get(i, ()))), len(roles))
        for i, a in enumerate(workload.schema.attributes)
    }


def too_slow(sizes: Sequence[int]) -> bool:
    """Return whether one evaluation of the dual of a space takes longer than `MAX_SPACE_STEP_S`.

    ``sizes`` are the domain sizes of the space's attributes.
    """
    return step_seconds(math.prod(n - 1 for n in sizes), math.prod(sizes)) > MAX_SPACE_STEP_S


class CenterProblem:
    """Objective S as a function of the centers, with its gradient.

    S is the sum of the roots of the smallest errors of all residual spaces.

    Parameters
    ----------
    workload : query groups, each with one weight for all its queries.
    watch : called with the fraction completed and a text; may raise to cancel.
    allowance : limits of memory and time.  Groups with a part that exceeds them are left out of S,
        and attributes that occur only in such groups keep uniform centers.
    """

    def __init__(
        self, workload: Workload, watch: Listener, allowance: Allowance | None = None
    ) -> None:
        self.workload, self.watch, self.allowance = workload, watch, allowance or Allowance()
        self.roles = roles_of(workload)
        self.sizes = {role: workload.schema[name].size for name, role in self.roles.items()}
        self.pieces: list[Piece] = []
        self._numbers: dict[Any, int] = {}
        self._rows: dict[Any, Array] = {}
        self._last_weights: dict[Any, Array] = {}
        self._level_grams: dict[Any, LevelGram | None] = {}
        self._level_values: dict[int, float] = {}
        self._grams: dict[Any, Array] = {}
        self._zero_pieces: dict[int, bool] = {}
        self._bytes, self._seconds = 0, 0.0
        self._roles = np.array([self.roles[name] for name in workload.schema.names], dtype=np.int64)
        candidates = self._classes_of_groups()
        fits = self._fitting([group for group, *_ in candidates])
        self._group_classes = list(itertools.compress(candidates, fits))
        # Groups that exceed the limits have no influence on the centers, although the plan answers
        # them.  So the caller compares the plan with that of uniform centers and keeps the better.
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
        """Return for each class of groups whether memory and time suffice for its parts.

        ``firsts`` holds the first group of each class.  Memory and time are reserved one group
        after the other; groups with small parts come first.
        """
        fitting: dict[Any, bool] = {}
        # Roles with a query that needs a matrix.  Interval queries on a wide attribute need none,
        # unless another query on the attribute does.
        dense = {
            self.roles[group.attributes[a]]
            for group in firsts
            for part in group.parts
            if wide_interval_gram(part) is None and not is_wide_areas(part)
            for a in part.axes
        }
        self._dense_roles = dense
        for group in sorted(firsts, key=lambda g: max((p.cells for p in g.parts), default=0)):
            for part in group.parts:
                key, n = self._part_key(group, part), part.cells
                rank = min(part.count, n)
                is_structured = is_wide_areas(part) or wide_interval_gram(part) is not None
                if key not in fitting and is_structured and key[1][0] not in dense:
                    fitting[key] = self._reserve(0, 0, INTERVAL_SECONDS_PER_CELL * n)
                elif key not in fitting:
                    peak = rows_bytes(part) + dense_bytes(rank, n, n) + 32 * n * n
                    step = step_seconds(rank, n)
                    is_too_large = len(part.sizes) > 1 and (
                        part.count * n > MAX_JOINT_ENTRIES
                        or not self.allowance.is_short(FORECAST_JOINT_STEPS * step)
                    )
                    fitting[key] = not is_too_large and self._reserve(32 * n * n, peak, step)
        return [
            all(fitting[self._part_key(first, part)] for part in first.parts) for first in firsts
        ]

    def _part_key(self, group: Group, part: Part) -> Any:
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
        # index of every distinct pair (factors, scalars)
        products: dict[Any, int] = {}
        contributions = []
        for group, groups, weights in self._group_classes:
            pattern = [
                (positions, products.setdefault((factors, scalars), len(products)), 1.0)
                for positions, factors, scalars in self._pattern(group, groups.ranks)
            ]
            contributions.append(
                GroupContribution(
                    numbers=groups.numbers, places=groups.places, weights=weights, pattern=pattern
                )
            )
        product_list, ordered = list(products), list[tuple[int, SpaceKind]]()
        for spaces in queried_spaces(contributions, self._roles, self.workload.schema.exact_places):
            counts = np.bincount(spaces.kinds).tolist()
            _, examples = np.unique(spaces.kinds, return_index=True)
            for k, coefficients in enumerate(spaces.coefficients):
                terms: dict[Any, dict[tuple[int, ...], float]] = {}
                for number, weight in coefficients.items():
                    factors, scalars = product_list[number]
                    terms.setdefault(factors, {})[scalars] = weight
                roles = tuple(self._roles[spaces.places[examples[k]]].tolist())
                ordered.append(
                    (int(spaces.reached[k]), SpaceKind(count=counts[k], roles=roles, terms=terms))
                )
        # a fixed order, because the last digits of sums depend on it
        kinds = [kind for _, kind in sorted(ordered, key=lambda entry: entry[0])]
        for kind in sorted(kinds, key=lambda k: math.prod(self.sizes[r] for r in k.roles)):
            if len(kind.terms) > 1:
                sizes = [self.sizes[r] for r in kind.roles]
                dimension, cells = math.prod(n - 1 for n in sizes), math.prod(sizes)
                peak = dense_bytes(dimension, dimension, cells)
                peak += 8 * dimension * ((len(kind.terms) + 4) * dimension + 3 * cells)
                has_structured_role = any(self._is_structured(r) for r in kind.roles)
                kind.separate = (
                    has_structured_role
                    or not self._reserve(0, peak, step_seconds(dimension, cells))
                    or too_slow(sizes)
                )
        return kinds

    def _pattern(self, group: Group, ranks: Sequence[int]) -> list[Any]:
        """Return tuples (positions, factors, scalars), one per residual space of a group.

        Residual spaces on which the Gram of the group is 0 are left out.  ``positions`` are those
        of the space's attributes in the group.  ``factors`` are pairs (axes in the space, index of a
        piece), and ``scalars`` are indices of pieces.  The Gram of the group on the space is the
        product of the Grams of all factors and of all scalars.  ``ranks`` lists the axes of the
        group in schema order.
        """
        position = {axis: p for p, axis in enumerate(ranks)}
        choices = []  # for every part, its pieces
        for part in group.parts:
            roles = tuple(self.roles[group.attributes[a]] for a in part.axes)
            choices.append(
                [
                    (
                        tuple(position[part.axes[i]] for i in inside),
                        self._number(part, roles, inside),
                    )
                    for inside in subsets(range(len(part.axes)))
                ]
            )
        pattern = []
        for combination in itertools.product(*choices):
            pieces_inside = [(axes, number) for axes, number in combination if axes]
            if any(self._is_zero(number) for _, number in pieces_inside):
                continue
            positions = tuple(sorted(a for axes, _ in pieces_inside for a in axes))
            index = {p: i for i, p in enumerate(positions)}
            factors = tuple(
                sorted((tuple(index[a] for a in axes), number) for axes, number in pieces_inside)
            )
            scalars = tuple(sorted(number for axes, number in combination if not axes))
            pattern.append((positions, factors, scalars))
        return pattern

    def _number(self, part: Part, roles: tuple[Role, ...], inside: Axes) -> int:
        """Return the index of a piece in ``pieces``, and add the piece if it is new."""
        key = (part.key, roles, inside)
        if key not in self._numbers:
            self._numbers[key] = len(self.pieces)
            self.pieces.append(Piece(part=part, roles=roles, inside=inside))
        return self._numbers[key]

    def _is_zero(self, number: int) -> bool:
        """Return whether the residual Gram of a piece is zero for all centers."""
        if number not in self._zero_pieces:
            self._zero_pieces[number] = self._compute_is_zero(self.pieces[number])
        return self._zero_pieces[number]

    def _compute_is_zero(self, piece: Piece) -> bool:
        if any(piece.part.sizes[i] == 1 for i in piece.inside):
            return True
        part = piece.part
        if len(part.sizes) > 1 or is_wide_areas(part) or wide_interval_gram(part) is not None:
            return False
        gram = self.gram(piece.part)
        N = basis(piece.part.sizes[0])
        return bool(np.trace(N.T @ gram @ N) <= 1e-13 * np.trace(gram))

    def _is_uniform_optimal(self, role: Role) -> bool:
        """Return whether the uniform center of a role is optimal, or the only one supported.

        It is optimal if all Grams on attributes of this role are invariant under a cyclic shift of
        the cells.  It is the only one supported for wide attributes with areas of levels.
        """
        parts = [piece.part for piece in self.pieces if role in piece.roles]
        if any(is_wide_areas(part) for part in parts):
            return True  # the search for precisions of areas has the uniform center
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

    def _is_structured(self, role: Role) -> bool:
        """Return whether the role is a wide attribute with interval queries and areas only."""
        return is_wide(self.sizes[role]) and role not in self._dense_roles

    @property
    def structured_roles(self) -> set[Role]:
        """Tuned roles that are wide attributes with interval queries only."""
        return {role for role in self.tuned if self._is_structured(role)}

    def structured_gram(self, piece: Piece) -> IntervalGram | LevelGram | None:
        """Return the Gram of a piece as weights of its queries; None if it is solved with a matrix.

        A piece on a wide attribute is solved without a matrix if all queries on the attribute are
        intervals or areas of levels.  Marginals with a uniform center always are.
        """
        role = piece.roles[0]
        if is_wide_areas(piece.part):
            if piece.part.key not in self._level_grams:
                self._level_grams[piece.part.key] = wide_level_gram(piece.part)
            return self._level_grams[piece.part.key] if self._is_structured(role) else None
        gram = wide_interval_gram(piece.part)
        if gram is None or (gram.is_marginal and role not in self.tuned):
            return gram
        return gram if self._is_structured(role) else None

    def structured_value(self, number: int, pi: Array | None) -> float:
        """Return the smallest error for a piece with interval queries or areas, in counts^2.

        ``pi`` is the center, shape (n,), None for a uniform one.
        """
        gram = self.structured_gram(self.pieces[number])
        assert gram is not None
        if isinstance(gram, LevelGram):
            # the center is always uniform, so the value is computed once
            if number not in self._level_values:
                self._level_values[number] = level_solution(gram, self.options).bound
            return self._level_values[number]
        if gram.is_marginal and pi is None:
            return marginal_solution(gram.cells, gram.marginal).value
        return self._solve_interval(number, IntervalSpace(gram=gram, center=pi)).bound

    def _solve_interval(self, key: Any, space: IntervalSpace) -> IntervalSolution:
        """Solve interval queries; the search starts at the last dual weights stored for ``key``."""
        self.allowance.check()
        solution = solve(
            space,
            gap=self.options.gap,
            evaluations=self.options.evaluations,
            deadline=self.allowance.deadline,
            start=self._last_weights.get(key),
        )
        self.allowance.check()
        self._last_weights[key] = solution.dual
        return solution

    def rows(self, part: Part) -> Array:
        """Return rows with the same Gram as a part on several attributes, shape (rows, *sizes)."""
        if part.key not in self._rows:
            self._rows[part.key] = part_rows(part).reshape(-1, *part.sizes)
        return self._rows[part.key]

    def gram_trace(self, part: Part) -> float:
        """Return the trace of a part's Gram on cells; rounding errors are proportional to it."""
        if (gram := wide_interval_gram(part)) is not None:
            return float(IntervalSpace(gram=gram, whole=True).cell_traces().sum())
        if is_wide_areas(part):
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

        Sigma is the covariance of the optimal strategy on all cells for the Gram G + c 1 1^T.  G is
        the Gram of the piece with the index ``inside``.  For interval queries, c is raised if the sum
        would not be positive definite.
        """
        self.allowance.check()
        n = self.sizes[role]
        gram = self.structured_gram(self.pieces[inside])
        if isinstance(gram, IntervalGram):
            # The weight c of the total may be negative, but the sum must stay positive definite.
            # ``floor`` is a lower bound on the eigenvalues of G in the coordinates of differences.
            floor = gram.prefix + gram.ranges + gram.suffix / (2.0 * n)
            whole = IntervalSpace(gram=replace(gram, total=max(c, -0.9 * floor)), whole=True)
            covariances = self._solve_interval(("whole", role), whole).total_covariances()
            return np.asarray(covariances / covariances.sum())
        factor = Factor(sizes=(n,), matrix=self.gram(self.pieces[inside].part) + c)
        with threads_for(n):
            problem = DualProblem(lift=FullDomain(n), factor=factor)
            options = replace(self.options, deadline=self.allowance.deadline)
            mass, status = problem.maximise(options, self._last_weights.get(("whole", role)))
            self._last_weights["whole", role] = 0.99 * mass + 0.01 / n
            self._last_weights[inside] = mass  # also near the optimum for G alone
            pi = problem.solution(mass, status).strategy.covariance.sum(axis=1)
        return np.asarray(pi / pi.sum())

    def dual(
        self, key: Any, factor: Factor, centers: Sequence[Array | None]
    ) -> tuple[float, Array, list[Array]]:
        """Return the smallest error for a residual Gram, and its derivatives.

        The result has the form of `DualProblem.sensitivities`.  The search starts at the dual
        weights of the last search with the same ``key``.
        """
        self.allowance.check()
        with threads_for(factor.rank):
            problem = DualProblem(lift=Lift(factor.sizes, centers), factor=factor)
            start = self._last_weights.get(key)
            if start is not None and len(start) == problem.variables:
                start = 0.99 * start + 0.01 * problem.multiplicity / problem.multiplicity.sum()
            else:
                start = None
            mass, _ = problem.maximise(
                replace(self.options, deadline=self.allowance.deadline), start
            )
            self.allowance.check()
            self._last_weights[key] = mass
            return problem.sensitivities(mass)

    def gram(self, part: Part) -> Array:
        """Return the Gram of a part on one attribute, shape (n, n)."""
        if part.key not in self._grams:
            self._grams[part.key] = part.family.gram(part.sizes)
        return self._grams[part.key]

    def scalar_center(self, role: Role, c: float) -> Array:
        """Return the center Sigma 1 / (1^T Sigma 1) of an attribute, shape (n,).

        Sigma is the covariance of the optimal strategy on all cells for the Gram
        G + c mean(G) 1 1^T.  G is a sum over the pieces that have only this attribute inside the
        space; every piece adds its Gram divided by the trace.  If no query depends on the total,
        the center is uniform.
        """
        n = self.sizes[role]
        gram = np.zeros((n, n))
        for piece in self.pieces:
            for position in piece.inside:
                if piece.roles[position] == role and len(piece.inside) == 1:
                    piece_gram = self._averaged_gram(piece.part, position)
                    gram += piece_gram / max(float(np.trace(piece_gram)), 1e-300)
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
            # no query depends on the total, so every center is equally good
            return np.full(n, 1.0 / n)
        return covariances / total_variance

    def _averaged_gram(self, part: Part, position: int) -> Array:
        """Return the Gram of a part on one of its attributes, averaged over all other
        attributes."""
        if len(part.sizes) == 1:
            return self.gram(part)
        means = [None if i == position else center(n, None) for i, n in enumerate(part.sizes)]
        rows = contract(self.rows(part), means, 1)
        return rows.T @ rows
