"""Joint non-negative projection of tables by accelerated dual gradient ascent.

Consistent tables T_A are sums of contrasts r_B, one per attribute set B (see `residual_estimates`).
Given contrasts t_B, the projection solves

    min  sum over B of |r_B - t_B|^2 / 2 g_B
    subject to  T_A = sum over B inside A of r_B / (number of cells summed out)  >= 0

for the maximal attribute sets A, with g_B = 4^|B|, and `TOTAL_WEIGHT` for the total.  The contrasts
of large sets contain most of the noise; because their g_B is large, they change most, and the total
hardly changes.  With Lagrange multipliers lambda_A >= 0 of the constraints T_A >= 0,

    r_B = t_B + g_B contrast_B(sum over A of mean of lambda_A on B).

The dual problem is maximized by projected gradient steps lambda_A <- [lambda_A - step_A T_A]_+ with
Nesterov momentum and restarts.  Possible cells whose multiplier remains 0 are not stored.  Most
rounds skip the tables whose constraints are nearly satisfied; every few rounds all tables are
updated.

Impossible cells have the constraint T_A = 0, and their multipliers may be negative.  After the
search, conjugate gradients remove the counts that remain in impossible cells.  Finally, a small
share of uniform tables is mixed in if negative cells remain.  Uniform tables are consistent and
have no counts in impossible cells.

Attribute sets with exact public tables have g_B = 0: their contrasts do not change.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy

from engine._arrays import Array, Index
from engine.postprocess.checkpoint import (
    NO_CHECKPOINTS,
    Checkpoints,
    arrays_by_axes,
    arrays_by_name,
)
from engine.postprocess.residual_estimates import (
    add_lower,
    assemble_table,
    contrast,
    largest_subsets,
    mean_over,
    proper_subsets,
)
from engine.progress import Listener
from engine.residuals import Axes

AGREEING = "Making all tables agree without negative cells"
TOTAL_WEIGHT = 1e-3  # g of the empty set
# At the optimum, every cell with a positive multiplier has the count 0 (complementary slackness).
# The search therefore ends only if the mean absolute count of these cells, weighted by their
# multipliers, is small: at most MAX_SLACKNESS times the largest negative count that is allowed in
# a cell.  After MAX_ROUNDS it ends in any case.
MAX_SLACKNESS = 10.0
MAX_ROUNDS = 250  # largest number of gradient steps
ROUNDS_PER_FULL_UPDATE = 8  # rounds from one update of all tables to the next one
SKIP_TOLERANCE = 0.5  # tables whose violation is below this share of the tolerance are skipped
CG_TOLERANCE, MAX_CG_STEPS = 1e-7, 2_000
CG_PASSES = 2  # the second pass removes the error of the first, down to rounding
ROUNDING_SHARE = 1e-14  # rounding error as a share of the total


# Maps each maximal attribute set to a mapping.  The inner mapping has one entry per proper subset:
# the multipliers of the table on the maximal set, averaged over the attributes outside the subset.
_Means = dict[Axes, dict[Axes, Array]]


@dataclass(kw_only=True, eq=False)
class _Multipliers:
    """Sparse Lagrange multipliers of the constraints on one table, and its gradient step.

    Attributes
    ----------
    axes, shape : attributes of the table, and its number of cells along each of them.
    step : step size of the gradient ascent.
    impossible : flat mask of the impossible cells; None if there are none.
    cells : flat indices of the cells that have a multiplier, shape (k,).
    values : multipliers after the last step, shape (k,).
    point : extrapolation of ``values`` by momentum, shape (k,); the next step starts here.
    new : multipliers after the step that `gradient_step` computes, shape (k,).
    """

    axes: Axes
    shape: tuple[int, ...]
    step: float
    impossible: npt.NDArray[np.bool_] | None = None
    cells: Index = field(default_factory=lambda: np.zeros(0, np.int64))
    values: Array = field(default_factory=lambda: np.zeros(0))
    point: Array = field(default_factory=lambda: np.zeros(0))
    new: Array = field(default_factory=lambda: np.zeros(0))

    def __post_init__(self) -> None:
        """Start with a multiplier of 0 in every impossible cell."""
        if self.impossible is not None:
            self.cells = np.flatnonzero(self.impossible)
            self.values = self.point = np.zeros(self.cells.size)

    @property
    def equality(self) -> npt.NDArray[np.bool_]:
        """Mask of the entries of ``cells`` that are impossible; their multipliers may be
        negative."""
        return (
            np.zeros(len(self.cells), dtype=bool)
            if self.impossible is None
            else self.impossible[self.cells]
        )

    def means(self) -> dict[Axes, Array]:
        """Return the mean tables of the multipliers ``point``, by proper subset of ``axes``.

        The table of the multipliers has the entry ``point[i]`` in cell ``cells[i]``, and 0 in all
        other cells.  Its mean table on a subset is averaged over the attributes that are not in the
        subset.  The result is empty if no cell has a multiplier.
        """
        means: dict[Axes, Array] = {}
        if not self.cells.size:
            return means
        index = np.unravel_index(self.cells, self.shape)
        for k, subset in enumerate(largest_subsets(self.axes)):
            shape = self.shape[:k] + self.shape[k + 1 :]
            margin_cells = (
                np.ravel_multi_index(index[:k] + index[k + 1 :], shape)
                if shape
                else np.zeros(len(self.cells), int)
            )
            sums = np.bincount(margin_cells, weights=self.point, minlength=math.prod(shape))
            means[subset] = sums.reshape(shape) / self.shape[k]
            for inside in proper_subsets(subset):
                if inside not in means:
                    means[inside] = mean_over(means[subset], subset, inside)
        return means

    @property
    def weight(self) -> float:
        """Weight g of the contrast of the table."""
        return _weight(self.axes)

    def mean_terms(self, means: Mapping[Axes, Array]) -> dict[Axes, Array]:
        """Return g times the contrast of ``point``, minus g times ``point``, as terms by subset.

        The contrast of a table is the table plus one term per proper subset of ``axes``: the mean
        table on the subset, with an alternating sign.  The terms in the result are multiplied by
        the number of cells per mean, because `add_lower` divides by this number.  ``means`` is the
        result of `means`.
        """
        terms = {}
        for inside, values in means.items():
            cells_per_mean = math.prod(
                n for a, n in zip(self.axes, self.shape, strict=True) if a not in inside
            )
            sign = (-1.0) ** (len(self.axes) - len(inside))
            terms[inside] = values * (self.weight * sign * cells_per_mean)
        return terms

    def violation(self, table: Array) -> float:
        """Return the largest violation of a constraint in counts, times the number of cells.

        A negative cell violates its constraint by its absolute value, an impossible cell by its
        count.
        """
        excess = np.abs(table.reshape(-1)[self.cells[self.equality]]).max(initial=0.0)
        return float(max(-table.min(initial=0.0), excess)) * table.size

    def gradient_step(self, table: Array) -> float:
        """Compute ``new`` by a projected gradient step from ``point``.

        ``table`` is the table at the multipliers ``point``.  Its negative cells get a multiplier.
        Returns the inner product of ``point - new`` and ``new - values``.  A positive product
        means that momentum and gradient have opposite directions, so that the momentum must
        restart.
        """
        flat = table.reshape(-1)
        new_cells = np.setdiff1d(np.flatnonzero(flat < 0.0), self.cells, assume_unique=True)
        if new_cells.size:
            order = np.argsort(np.concatenate([self.cells, new_cells]), kind="stable")
            zeros = np.zeros(new_cells.size)
            self.cells = np.concatenate([self.cells, new_cells])[order]
            self.values = np.concatenate([self.values, zeros])[order]
            self.point = np.concatenate([self.point, zeros])[order]
        # Multipliers of impossible cells have no lower bound; all others are at least 0.
        self.new = np.maximum(
            self.point - self.step * flat[self.cells], np.where(self.equality, -np.inf, 0.0)
        )
        return float((self.point - self.new) @ (self.new - self.values))

    def extrapolate(self, momentum: float) -> None:
        """Complete a step: set ``point`` to new + momentum * (new - values), and values to new.

        A possible cell whose multiplier is 0 both before and after the step is dropped from
        ``cells``.
        """
        retained = (self.new > 0.0) | (self.values > 0.0) | self.equality
        point = self.new + momentum * (self.new - self.values)
        self.cells, self.values, self.point = (
            self.cells[retained],
            self.new[retained],
            point[retained],
        )


def project_nonnegative(
    contrasts: dict[Axes, Array],
    tables: Sequence[Axes],
    sizes: Sequence[int],
    tolerance: float,
    report_progress: Listener,
    possible: Mapping[Axes, npt.NDArray[np.bool_]] | None = None,
    uniform: Mapping[Axes, Array] | None = None,
    exact: Collection[Axes] = (),
    *,
    checkpoints: Checkpoints = NO_CHECKPOINTS,
) -> dict[Axes, Array]:
    """Return the contrasts of the nearest consistent tables without negative cells.

    The result maps attribute sets to contrasts.  Arrays of ``contrasts`` that belong to sets in
    ``tables`` are overwritten.

    Parameters
    ----------
    contrasts : mapping from attribute sets to given contrasts, in the shapes of their tables.
    tables : the maximal attribute sets.
    sizes : number of cells of every attribute.
    tolerance : largest share of uniform tables that may be mixed in at the end.  The search ends
        when no cell is below ``-tolerance * total / cells`` and the cells with multipliers are near
        0 on average.  It also ends after `MAX_ROUNDS` rounds; in this case the share can be larger.
    possible, uniform, exact : see `Evidence`.

    Guarantee: all cells are at least 0 and impossible cells are 0, up to the rounding of sums.
    Contrasts of ``exact`` sets do not change.  The total changes little if there are non-negative
    tables with this total near the given tables.
    """
    if done := checkpoints.read("all"):
        return arrays_by_axes(done)
    total = float(contrasts[()])
    possible, uniform = possible or {}, uniform or {}
    lower = {axes: c for axes, c in contrasts.items() if axes not in tables}
    duals = _multipliers(contrasts, tables, sizes, possible, exact)
    first_round, momentum = 0, 1.0
    active = list(duals.values())  # multipliers of the tables that are updated in this round
    means: _Means = {}
    violations: dict[Axes, float] = {}
    if state := checkpoints.read("search"):
        first_round, momentum, active = _restore_search(duals, violations, state)
        means = {axes: dual.means() for axes, dual in duals.items()}
    for number in range(first_round, MAX_ROUNDS):
        if number > first_round and checkpoints.due:
            checkpoints.write("search", _search_state(duals, violations, number, momentum, active))
        for dual in active:
            means[dual.axes] = dual.means()
        projected_lower = _lower_contrasts(means, lower, exact)
        updates_all = number % ROUNDS_PER_FULL_UPDATE == 0 or number == MAX_ROUNDS - 1 or not active
        # ``slack`` is the sum over cells of |count * multiplier|, times the cells of the table.  It
        # is 0 at the optimum.  ``opposition`` is positive if the momentum opposes the gradient.
        slack = multiplier_sum = opposition = 0.0
        for dual in duals.values() if updates_all else active:
            table = _table_at(contrasts[dual.axes], dual, projected_lower, means[dual.axes])
            violations[dual.axes] = dual.violation(table)
            slack += table.size * float(np.abs(table.reshape(-1)[dual.cells]) @ np.abs(dual.point))
            multiplier_sum += float(np.abs(dual.point).sum())
            opposition += dual.gradient_step(table)
        violated = max(violations.values(), default=0.0) > tolerance * total
        is_slack_small = slack <= MAX_SLACKNESS * tolerance * total * multiplier_sum
        if number == MAX_ROUNDS - 1 or (updates_all and not violated and is_slack_small):
            break
        momentum = 1.0 if opposition > 0.0 else momentum
        previous = momentum
        momentum = (1.0 + math.sqrt(1.0 + 4.0 * momentum * momentum)) / 2.0
        # To save time, tables that nearly satisfy their constraints are skipped until the next
        # update of all tables.  After a few rounds, this is true of most tables.
        active = list(duals.values()) if updates_all else active
        for dual in active:
            skipped = violated and violations[dual.axes] <= SKIP_TOLERANCE * tolerance * total
            dual.extrapolate(0.0 if skipped else (previous - 1.0) / momentum)
            if skipped:
                means[dual.axes] = dual.means()
        active = [
            dual
            for dual in active
            if not violated or violations[dual.axes] > SKIP_TOLERANCE * tolerance * total
        ]
        report_progress(min(1.0, number / MAX_ROUNDS), AGREEING)
    _apply_multipliers(contrasts, duals, means)
    projected = {**contrasts, **projected_lower}
    if possible:
        projected = zero_impossible_cells(projected, tables, sizes, possible, exact)
    projected = mix_with_uniform(projected, tables, possible, uniform, exact)
    checkpoints.write_result("all", arrays_by_name(projected))
    return projected


def _search_state(
    duals: Mapping[Axes, _Multipliers],
    violations: Mapping[Axes, float],
    number: int,
    momentum: float,
    active: list[_Multipliers],
) -> dict[str, Array]:
    """Return the state of a search before round ``number`` as a mapping from names to arrays."""
    axes = list(duals)
    arrays = {
        "number": np.array(number),
        "momentum": np.array(momentum),
        "worst": np.array([violations[a] for a in axes]),
    }
    arrays["active"] = np.array([axes.index(dual.axes) for dual in active], dtype=np.int64)
    for k, dual in enumerate(duals.values()):
        arrays |= {f"cells {k}": dual.cells, f"values {k}": dual.values, f"point {k}": dual.point}
    return arrays


def _restore_search(
    duals: Mapping[Axes, _Multipliers], violations: dict[Axes, float], state: Mapping[str, Any]
) -> tuple[int, float, list[_Multipliers]]:
    """Restore a search from the arrays of `_search_state`.

    Changes ``duals`` and ``violations`` in place.  Returns the number of the round, the momentum
    and the multipliers of the tables that are updated in this round.
    """
    for k, (axes, dual) in enumerate(duals.items()):
        dual.cells, dual.values, dual.point = (
            state[f"{word} {k}"] for word in ("cells", "values", "point")
        )
        violations[axes] = float(state["worst"][k])
    active = [list(duals.values())[k] for k in state["active"]]
    return int(state["number"]), float(state["momentum"]), active


def zero_impossible_cells(
    contrasts: dict[Axes, Array],
    tables: Sequence[Axes],
    sizes: Sequence[int],
    possible: Mapping[Axes, npt.NDArray[np.bool_]],
    exact: Collection[Axes] = (),
) -> dict[Axes, Array]:
    """Return the contrasts of the nearest tables whose impossible cells are 0.

    Possible cells may be negative, in the given tables and in the result.  The total and the
    contrasts of ``exact`` sets do not change.  Contrasts have the shapes (n_1, ..., n_k) of their
    tables; arrays of ``contrasts`` that belong to sets in ``tables`` are overwritten.

    Guarantee: the projection is linear and does not change tables whose impossible cells are 0, so
    that unbiased tables remain unbiased.
    """
    duals = _multipliers(contrasts, tables, sizes, possible, exact)
    lower = {axes: c for axes, c in contrasts.items() if axes not in tables}
    constrained = [dual for dual in duals.values() if dual.impossible is not None]
    zeros = {axes: np.zeros_like(c) for axes, c in lower.items()}
    ends = np.cumsum([dual.cells.size for dual in constrained])[:-1]

    def change_of_impossible_cells(point: Array) -> Array:
        """Store ``point`` as multipliers; return the resulting changes of the impossible cells."""
        for dual, values in zip(constrained, np.split(point, ends), strict=True):
            dual.point = values
        means = {axes: dual.means() for axes, dual in duals.items()}
        projected_lower = _lower_contrasts(means, zeros, exact)
        projected_lower[()] = zeros[()]  # the total does not change
        parts = []
        for dual in constrained:
            table = _table_at(np.zeros(dual.shape), dual, projected_lower, means[dual.axes])
            parts.append(table.reshape(-1)[dual.cells])
        return np.concatenate(parts)

    linear = scipy.sparse.linalg
    rounding = ROUNDING_SHARE * abs(float(contrasts[()]))
    for _ in range(CG_PASSES if constrained else 0):
        counts = np.concatenate(
            [assemble_table(contrasts, dual.axes).reshape(-1)[dual.cells] for dual in constrained]
        )
        rounding = max(rounding, ROUNDING_SHARE * float(np.linalg.norm(counts)))
        # The system is singular.  Once its residual is as small as rounding errors, more steps
        # would increase the residual; `atol` ends the search before.
        operator = linear.LinearOperator((len(counts),) * 2, change_of_impossible_cells)
        solution, _ = linear.cg(
            operator, -counts, rtol=CG_TOLERANCE, atol=rounding, maxiter=MAX_CG_STEPS
        )
        # This call stores the solution as multipliers; its result is not needed.
        change_of_impossible_cells(solution)
        means = {axes: dual.means() for axes, dual in duals.items()}
        projected_lower = _lower_contrasts(means, lower, exact)
        lower = projected_lower | {(): lower[()]}
        _apply_multipliers(contrasts, duals, means)
        contrasts = {**contrasts, **lower}
    return contrasts


def _apply_multipliers(
    contrasts: dict[Axes, Array], duals: Mapping[Axes, _Multipliers], means: _Means
) -> None:
    """Add the effect of the multipliers to the contrasts of all maximal sets, in place.

    The contrast of a set grows by its weight g times the contrast of the multipliers of its table.
    """
    for axes, dual in duals.items():
        add_lower(contrasts[axes], axes, dual.mean_terms(means[axes]))
        contrasts[axes].reshape(-1)[dual.cells] += dual.weight * dual.point
        # The sums of a contrast along each axis must be 0, but the steps have accumulated rounding
        # errors.
        contrasts[axes] = contrast(contrasts[axes])


def _multipliers(
    contrasts: Mapping[Axes, Array],
    tables: Sequence[Axes],
    sizes: Sequence[int],
    possible: Mapping[Axes, npt.NDArray[np.bool_]],
    exact: Collection[Axes],
) -> dict[Axes, _Multipliers]:
    """Return initial multipliers (all 0) for each set in ``tables`` without a public table."""
    tables = [axes for axes in tables if axes not in exact]
    table_counts: dict[Axes, int] = {}
    for axes in tables:
        for inside in proper_subsets(axes):
            table_counts[inside] = table_counts.get(inside, 0) + 1
    multipliers = {}
    for axes in tables:
        impossible = ~possible[axes].reshape(-1) if axes in possible else None
        step = _step_size(axes, sizes, table_counts)
        shape = contrasts[axes].shape
        multipliers[axes] = _Multipliers(axes=axes, shape=shape, step=step, impossible=impossible)
    return multipliers


def _step_size(axes: Axes, sizes: Sequence[int], table_counts: Mapping[Axes, int]) -> float:
    """Return the step size for the multipliers of one table.

    All tables step at the same time, so the step size is the inverse of a bound on the curvature of
    the complete dual problem.  ``table_counts`` maps an attribute set to the number of maximal sets
    that contain it.
    """
    curvature = _weight(axes)
    for inside in proper_subsets(axes):
        summed_cells = math.prod(sizes[a] for a in axes if a not in inside)
        curvature = max(curvature, _weight(inside) * table_counts[inside] / summed_cells)
    return 1.0 / curvature


def _weight(axes: Axes) -> float:
    """Return the weight g of the contrast on a set of attributes."""
    return float(4 ** len(axes)) if axes else TOTAL_WEIGHT


def _lower_contrasts(
    means: _Means, lower: Mapping[Axes, Array], exact: Collection[Axes]
) -> dict[Axes, Array]:
    """Return the contrasts r_B at the present multipliers, for all sets B that are not maximal.

    ``means`` maps each maximal set to the means of its multipliers on its subsets.  ``lower`` maps
    each set B to its given contrast t_B.
    """
    sums: dict[Axes, Array] = {}
    for margins in means.values():
        for inside, values in margins.items():
            sums[inside] = sums[inside] + values if inside in sums else values
    projected_lower = {}
    for inside, values in lower.items():
        free = inside in sums and inside not in exact
        projected_lower[inside] = (
            values + _weight(inside) * contrast(sums[inside]) if free else values
        )
    return projected_lower


def _table_at(
    contrast_values: Array,
    dual: _Multipliers,
    projected_lower: Mapping[Axes, Array],
    means: Mapping[Axes, Array],
) -> Array:
    """Return the table on the set of ``dual`` at the present multipliers, in counts.

    Parameters
    ----------
    contrast_values : contrast of the table before the projection (t_A).
    projected_lower : result of `_lower_contrasts`.
    means : means of the multipliers of this table on the subsets of its attributes.
    """
    table, mean_terms = contrast_values.copy(), dual.mean_terms(means)
    lower = {subset: projected_lower[subset] for subset in proper_subsets(dual.axes)}
    for subset, term in mean_terms.items():
        lower[subset] = lower[subset] + term
    add_lower(table, dual.axes, lower)
    table.reshape(-1)[dual.cells] += dual.weight * dual.point
    return table


def mix_with_uniform(
    contrasts: dict[Axes, Array],
    tables: Sequence[Axes],
    possible: Mapping[Axes, npt.NDArray[np.bool_]],
    uniform: Mapping[Axes, Array],
    exact: Collection[Axes],
) -> dict[Axes, Array]:
    """Mix uniform tables of the same total into the tables, so that no cell is negative.

    The share of the uniform tables is the smallest one that suffices.  It is the same for all
    attribute sets.  Returns ``contrasts`` after changing its arrays in place.

    Parameters
    ----------
    contrasts : mapping from attribute sets to contrasts, in the shapes of their tables.
    tables : the maximal attribute sets.
    possible : mapping from attribute sets to masks of their possible cells; a set without an entry
        has no impossible cells.
    uniform : mapping from attribute sets to contrasts of the uniform distribution of one record on
        the possible cells; empty if all cells are possible.  Sets without an entry have contrasts
        0.
    exact : attribute sets with public tables, which do not change.
    """
    # ``added_records`` is the number of uniformly distributed records that must be added to remove
    # all negative cells.
    total = float(contrasts[()])
    added_records = 0.0
    for axes in tables:
        if axes in exact:
            continue
        table = assemble_table(contrasts, axes)
        uniform_table = (
            assemble_table({axes: np.zeros(table.shape), **uniform, (): np.array(1.0)}, axes)
            if uniform
            else 1.0 / table.size
        )
        needed = np.divide(
            -table,
            uniform_table,
            out=np.zeros_like(table),
            where=possible.get(axes, np.array(True)),
        )
        added_records = max(added_records, float(needed.max(initial=0.0)))
    if added_records > 0.0:
        # The tables with the added records are scaled back to the old total.
        old_total = max(total, 0.0)
        retained_share = old_total / (old_total + added_records)
        for axes in contrasts:
            if axes and axes not in exact:
                contrasts[axes] *= retained_share
                if axes in uniform:
                    contrasts[axes] += (1.0 - retained_share) * total * uniform[axes]
    return contrasts
