"""Optimal allocation of the privacy budget over residual spaces.

With s the squared noise of every class of residual spaces at unit sensitivity and m the number of
spaces per class, minimize the norm of the variances, which are linear in s, times the privacy cost
sum of m / s.  For weights u of the queries, with a_j the sum of u times the term of space j in each
query's variance,

    sum of u Var  times the cost  is at least  (sum over classes of sqrt(m_j a_j))^2,

so any weights give a lower bound, which certifies the gap of the allocation.

For the largest variance, a primal-dual interior point method minimizes the cost subject to
Var / target <= 1 on a few queries; the most violated query of every class of groups is added until
no constraint is violated.  For finite powers, L-BFGS minimizes log(norm times cost) as a function
of log s, which is convex.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy

from engine._arrays import Array
from engine.plans.objectives import ClassQueries, Objective

# relative gap of the variance at which the search stops
GAP = 1e-7
# rounds of adding violated queries, and interior point steps per round
MAX_ROUNDS = 60
MAX_STEPS = 120


@dataclass(frozen=True, kw_only=True, eq=False)
class Shares:
    """Squared noise of every class of residual spaces at privacy cost 1, with its value and bound.

    Attributes
    ----------
    noises : shape (space classes,), in counts^2; the sum of counts / noises is 1.
    value : norm of the variances.
    bound : lower bound on the norm of the variances over all allocations for these strategies.
    mass : total weight u of the queries of every class of groups, shape (classes,).
    """

    noises: Array
    value: float
    bound: float
    mass: Array


def best_shares(
    queries: Sequence[ClassQueries], counts: Array, goal: Objective, start: Array, gap: float = GAP
) -> Shares:
    """Return the optimal allocation for strategies, given by the footprints of the queries.

    Parameters
    ----------
    asked : queries of every class of groups.
    counts : number of residual spaces in each class, shape (space classes,).
    start : initial squared noises, shape (space classes,).
    gap : relative gap of the variance at which the search stops.
    """
    # the norm times the cost is invariant to scaling, so scale the start to cost 1
    start = start * float(np.sum(counts / start))
    if math.isinf(goal.power):
        return _largest(queries, counts, start, gap)
    return _powers(queries, counts, goal.power, start, gap)


def _spread(group_class: ClassQueries, row: Array, spaces: int) -> Array:
    """Return a row of a footprint by class of space, relative to the target."""
    return np.bincount(group_class.spaces, row, minlength=spaces) / group_class.target


def _largest(classes: Sequence[ClassQueries], counts: Array, start: Array, gap: float) -> Shares:
    spaces = len(counts)
    rows: list[Array] = []
    owner: list[int] = []
    row_keys: set[tuple[int, bytes]] = set()

    def add_row(k: int, row: Array) -> None:
        spread = _spread(classes[k], row, spaces)
        # with a repeated row the multipliers would not be unique
        if (k, spread.tobytes()) not in row_keys:
            row_keys.add((k, spread.tobytes()))
            rows.append(spread)
            owner.append(k)

    for k, group_class in enumerate(classes):
        add_row(k, group_class.queries.largest(start[list(group_class.spaces)])[1])
    terms = np.sum(rows, axis=0) * start
    for k, group_class in enumerate(classes):
        for j, space in enumerate(group_class.spaces):
            if terms[space] <= 1e-6 * terms.max():  # else its noise would be unbounded
                single_noise = 1e-6 * start[list(group_class.spaces)]
                single_noise[j] = start[space]
                add_row(k, group_class.queries.largest(single_noise)[1])
    best = Shares(noises=start, value=math.inf, bound=0.0, mass=np.ones(len(classes)))
    for _ in range(MAX_ROUNDS):
        # only a few queries attain the largest variance: solve for these, then add violated ones
        s, lam = _interior(np.array(rows), counts, start, gap)
        s = s * float(np.sum(counts / s))
        maxima = [group_class.queries.largest(s[list(group_class.spaces)]) for group_class in classes]
        worst = np.array([v / group_class.target for (v, _), group_class in zip(maxima, classes, strict=True)])
        slopes = np.maximum(np.array(rows).T @ lam, 0.0)
        # the multipliers give a valid bound, as any nonnegative weights do
        bound = float(np.sum(np.sqrt(counts * slopes))) ** 2 / float(lam.sum())
        # the multiplier of a row is the weight of its query
        mass = np.asarray(np.bincount(owner, lam, minlength=len(classes)), dtype=float)
        value = float(worst.max())
        if value < best.value:
            best = Shares(noises=s, value=value, bound=max(bound, best.bound), mass=mass)
        else:
            best = Shares(noises=best.noises, value=best.value, bound=max(bound, best.bound), mass=best.mass)
        if best.value <= best.bound * (1.0 + gap):
            break
        # queries below the bound are not active at the optimum
        before, level = len(rows), bound * (1.0 + 0.1 * gap)
        for k in [k for k, w in enumerate(worst) if w > level]:
            add_row(k, maxima[k][1])
        if len(rows) == before:
            break
        start = s
    return best


def _interior(rows: Array, counts: Array, start: Array, gap: float) -> tuple[Array, Array]:
    """Minimise sum of counts / s subject to rows s <= 1; return s and the multipliers of the rows.

    Primal-dual interior point method: s stays strictly feasible and the multipliers positive.
    """
    # in units of the start, which is near the solution, all unknowns are near 1
    scaled = rows * start
    # halfway to the first constraint, every slack is well above 0
    z = np.full(len(start), 0.5 / float(scaled.sum(axis=1).max()))
    cost = counts / start
    slack = 1.0 - scaled @ z
    lam = np.full(len(rows), float(np.sum(cost / z)) / len(rows)) / slack
    # at the optimum, z times the stationarity condition makes the multipliers sum to the cost
    lam *= float(np.sum(cost / z)) / float(lam.sum())
    lapack = scipy.linalg.lapack
    for _ in range(MAX_STEPS):
        residual = -cost / z**2 + scaled.T @ lam
        centered = float(lam @ slack) / len(rows)
        value = float(np.sum(cost / z))
        if centered * len(rows) <= 0.02 * gap * value and float(np.max(np.abs(residual) * z)) <= 0.02 * gap * value:
            break
        # a target of 0 would step outside the feasible region; reduce the complementarity to 15%
        target = 0.15 * centered
        hessian = np.diag(2.0 * cost / z**3) + (scaled.T * (lam / slack)) @ scaled
        right = -residual - scaled.T @ ((target - slack * lam) / slack)
        # LAPACK directly: the checks of scipy's cho_factor cost more than solving so few unknowns
        factor, failed = lapack.dpotrf(hessian, clean=False)
        if failed:
            break
        step = lapack.dpotrs(factor, right)[0]
        change = -(scaled @ step)
        lam_step = (target - slack * lam - lam * change) / slack
        if not np.isfinite(step).all() or not np.isfinite(lam_step).all():
            break
        alpha = 1.0
        for vector, move, fraction in ((z, step, 0.8), (slack, change, 0.97), (lam, lam_step, 0.97)):
            down = move < 0
            if down.any():
                alpha = min(alpha, fraction * float(np.min(-vector[down] / move[down])))
        z, lam = z + alpha * step, lam + alpha * lam_step
        slack = 1.0 - scaled @ z
        # rounding made the step infeasible: return the previous point
        if not (slack > 0).all():
            z, lam = z - alpha * step, lam - alpha * lam_step
            break
    return z * start, lam


@dataclass(frozen=True, kw_only=True, eq=False)
class _Batch:
    """Classes of groups with equal numbers of spaces, whose power sums have equal exponents."""

    members: list[int]
    spaces: npt.NDArray[np.int64]
    exponents: Array
    coefficients: Array
    units: Array


def _batches(classes: Sequence[ClassQueries], power: float) -> tuple[list[_Batch], list[int]]:
    """Return the classes for which expansion is cheaper, in batches, and the remaining classes."""
    by_spaces: dict[int, list[int]] = {}
    unexpanded = []
    for k, group_class in enumerate(classes):
        if group_class.queries.expands(power):
            by_spaces.setdefault(len(group_class.spaces), []).append(k)
        else:
            unexpanded.append(k)
    out = []
    for members in by_spaces.values():
        expanded = [classes[k].queries.expansion(int(power)) for k in members]
        out.append(
            _Batch(
                members=members,
                spaces=np.array([classes[k].spaces for k in members]),
                exponents=expanded[0][0],
                coefficients=np.array([c for _, c, _ in expanded]),
                units=np.array([u for *_, u in expanded]),
            )
        )
    return out, unexpanded


def _powers(classes: Sequence[ClassQueries], counts: Array, p: float, start: Array, gap: float) -> Shares:
    import scipy.optimize

    spaces, weights = len(counts), np.array([group_class.groups * group_class.weight for group_class in classes])
    best = Shares(noises=start, value=math.inf, bound=0.0, mass=np.ones(len(classes)))
    batches, unexpanded = _batches(classes, p)
    # powers up to 100 of unscaled variances would leave the range of doubles
    scale = max(group_class.queries.largest(start[list(group_class.spaces)])[0] for group_class in classes)

    def sums(s: Array) -> tuple[Array, Array]:
        """Return the power sum of every class, and the weighted slopes by class of spaces."""
        power_sums, space_slopes = np.zeros(len(classes)), np.zeros(spaces)
        for b in batches:
            at = s[b.spaces] / scale
            # products of powers as exponentials of sums of logarithms
            terms = b.coefficients * np.exp(np.log(at * b.units) @ b.exponents.T)
            power_sums[b.members] = terms.sum(axis=1)
            slopes = weights[b.members, None] * (terms @ b.exponents) / at / p
            space_slopes += np.bincount(b.spaces.ravel(), slopes.ravel(), minlength=spaces)
        for k in unexpanded:
            power_sums[k], slopes = classes[k].queries.power_sum(s[list(classes[k].spaces)], p, scale)
            space_slopes += weights[k] * np.bincount(classes[k].spaces, slopes, minlength=spaces)
        return power_sums, space_slopes

    def evaluate(x: Array) -> tuple[float, Array]:
        nonlocal best
        # in logarithms the noises stay positive for any step
        s = np.exp(x)
        cost = float(np.sum(counts / s))
        s = s * cost
        power_sums, space_slopes = sums(s)
        mass = weights * power_sums
        total = float(mass.sum())
        # u = w (Var / scale)^(p - 1) has dual norm total^(1 - 1/p)
        bound = float(np.sum(np.sqrt(counts * space_slopes))) ** 2 / total ** (1.0 - 1.0 / p)
        value, lower_bound = scale * total ** (1.0 / p), max(bound, best.bound)
        if value < best.value:
            best = Shares(noises=s, value=value, bound=lower_bound, mass=mass)
        else:
            best = Shares(noises=best.noises, value=best.value, bound=lower_bound, mass=best.mass)
        if best.value <= best.bound * (1.0 + gap):
            raise StopIteration
        return math.log(value), space_slopes * s / float(space_slopes @ s) - counts / s

    with contextlib.suppress(StopIteration):
        scipy.optimize.minimize(
            evaluate,
            np.log(start),
            jac=True,
            method="L-BFGS-B",
            options={"maxcor": 30, "maxfun": 200, "maxiter": 200, "ftol": 0.0, "gtol": 1e-12},
        )
    return best
