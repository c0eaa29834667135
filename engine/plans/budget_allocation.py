"""Optimal shares of the budget over blocks.

With s the squared noise of every kind of residual space at unit sensitivity and m the number of spaces of the kind,
minimise the norm of the variances, linear in s, times the privacy cost  sum of m / s.  For weights u on the queries,
a_j the sum of u times what space j adds to each query's variance,

    sum of u Var  times the cost  is at least  (sum over kinds of sqrt(m_j a_j))^2,

so the weights at hand prove how close the shares are.  For the largest variance:  minimise the cost subject to
Var / target <= 1  by a primal-dual interior point method on few queries; the most violated query of every group joins
until none is violated.  For finite powers: L-BFGS on log of norm times cost in the logarithms of s, a convex function.
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
from engine.plans.objectives import Asked, Objective

GAP = 1e-7  # of the variance
ROUNDS = 60
STEPS = 120


@dataclass(frozen=True, kw_only=True, eq=False)
class Shares:
    """Squared noise of every kind of residual space at privacy cost 1, and what it achieves.

    Attributes
    ----------
    noises : shape (space kinds,), in counts^2; the sum of counts / noises is 1.
    value : norm of the variances.
    bound : no shares for the same strategies have a smaller norm.
    mass : total weight u of the queries of every kind of group, for all its groups, shape (kinds,).
    """

    noises: Array
    value: float
    bound: float
    mass: Array


def best_shares(asked: Sequence[Asked], counts: Array, goal: Objective, start: Array, gap: float = GAP) -> Shares:
    """Return the best shares for the strategies whose footprints are given.

    Parameters
    ----------
    asked : queries by kind of group.
    counts : number of residual spaces of each kind.
    start : squared noises to begin with, shape (space kinds,).
    gap : relative gap of the variance at which to stop.
    """
    # norm times cost is the same for every multiple, so that the start may be brought to cost 1
    start = start * float(np.sum(counts / start))
    if math.isinf(goal.power):
        return _largest(asked, counts, start, gap)
    return _powers(asked, counts, goal.power, start, gap)


def _spread(kind: Asked, row: Array, spaces: int) -> Array:
    """Return a row of a footprint by kind of space, as a share of the target."""
    return np.bincount(kind.spaces, row, minlength=spaces) / kind.target


def _largest(asked: Sequence[Asked], counts: Array, start: Array, gap: float) -> Shares:
    spaces = len(counts)
    rows: list[Array] = []
    owner: list[int] = []
    known: set[tuple[int, bytes]] = set()

    def join(k: int, row: Array) -> None:
        spread = _spread(asked[k], row, spaces)
        # a row twice would split one multiplier at random and leave the method without a unique answer
        if (k, spread.tobytes()) not in known:
            known.add((k, spread.tobytes()))
            rows.append(spread)
            owner.append(k)

    for k, kind in enumerate(asked):
        join(k, kind.queries.largest(start[list(kind.spaces)])[1])
    seen = np.sum(rows, axis=0) * start
    for k, kind in enumerate(asked):
        for j, space in enumerate(kind.spaces):
            if seen[space] <= 1e-6 * seen.max():  # a space that no query sees could be as noisy as one likes
                alone = 1e-6 * start[list(kind.spaces)]
                alone[j] = start[space]
                join(k, kind.queries.largest(alone)[1])
    best = Shares(noises=start, value=math.inf, bound=0.0, mass=np.ones(len(asked)))
    for _ in range(ROUNDS):
        # few of millions of queries decide the largest variance: solve for those, then look who else passes it
        s, lam = _interior(np.array(rows), counts, start, gap)
        s = s * float(np.sum(counts / s))
        found = [kind.queries.largest(s[list(kind.spaces)]) for kind in asked]
        worst = np.array([v / kind.target for (v, _), kind in zip(found, asked, strict=True)])
        pulled = np.maximum(np.array(rows).T @ lam, 0.0)
        # any weights prove a bound, so multipliers of an unfinished problem are as honest as the best
        bound = float(np.sum(np.sqrt(counts * pulled))) ** 2 / float(lam.sum())
        # multipliers of rows are the weights of the queries that they stand for
        mass = np.asarray(np.bincount(owner, lam, minlength=len(asked)), dtype=float)
        value = float(worst.max())
        if value < best.value:
            best = Shares(noises=s, value=value, bound=max(bound, best.bound), mass=mass)
        else:
            best = Shares(noises=best.noises, value=best.value, bound=max(bound, best.bound), mass=best.mass)
        if best.value <= best.bound * (1.0 + gap):
            break
        # what lies below the bound cannot be what holds the value up
        before, level = len(rows), bound * (1.0 + 0.1 * gap)
        for k in [k for k, w in enumerate(worst) if w > level]:
            join(k, found[k][1])
        if len(rows) == before:
            break
        start = s
    return best


def _interior(rows: Array, counts: Array, start: Array, gap: float) -> tuple[Array, Array]:
    """Minimise sum of counts / s subject to rows s <= 1; return s and the multipliers of the rows.

    Primal-dual interior point: s stays strictly feasible, the multipliers positive.
    """
    # in units of the start, which is near the answer: all unknowns are then near 1
    scaled = rows * start
    # half way to the first constraint, where every slack is well above 0
    z = np.full(len(start), 0.5 / float(scaled.sum(axis=1).max()))
    cost = counts / start
    slack = 1.0 - scaled @ z
    lam = np.full(len(rows), float(np.sum(cost / z)) / len(rows)) / slack
    # at the optimum z times the stationarity condition says that the multipliers add up to the cost
    lam *= float(np.sum(cost / z)) / float(lam.sum())
    lapack = scipy.linalg.lapack
    for _ in range(STEPS):
        residual = -cost / z**2 + scaled.T @ lam
        centered = float(lam @ slack) / len(rows)
        value = float(np.sum(cost / z))
        if centered * len(rows) <= 0.02 * gap * value and float(np.max(np.abs(residual) * z)) <= 0.02 * gap * value:
            break
        # going for 0 at once would run into a wall; each step aims at a seventh of what is left
        aim = 0.15 * centered
        hessian = np.diag(2.0 * cost / z**3) + (scaled.T * (lam / slack)) @ scaled
        right = -residual - scaled.T @ ((aim - slack * lam) / slack)
        # scipy's cho_factor and cho_solve, without what they check: of so few unknowns that takes longer than solving
        factor, failed = lapack.dpotrf(hessian, clean=False)
        if failed:
            break
        step = lapack.dpotrs(factor, right)[0]
        change = -(scaled @ step)
        lam_step = (aim - slack * lam - lam * change) / slack
        if not np.isfinite(step).all() or not np.isfinite(lam_step).all():
            break
        alpha = 1.0
        for vector, move, keep in ((z, step, 0.8), (slack, change, 0.97), (lam, lam_step, 0.97)):
            down = move < 0
            if down.any():
                alpha = min(alpha, keep * float(np.min(-vector[down] / move[down])))
        z, lam = z + alpha * step, lam + alpha * lam_step
        slack = 1.0 - scaled @ z
        # rounding took the step over a wall: the point before it is the best there is
        if not (slack > 0).all():
            z, lam = z - alpha * step, lam - alpha * lam_step
            break
    return z * start, lam


@dataclass(frozen=True, kw_only=True, eq=False)
class _Batch:
    """Kinds of groups with equally many spaces, their power sums expanded: exponents are the same for all."""

    members: list[int]
    spaces: npt.NDArray[np.int64]
    exponents: Array
    coefficients: Array
    units: Array


def _batches(asked: Sequence[Asked], power: float) -> tuple[list[_Batch], list[int]]:
    """Return kinds that are cheaper expanded, in batches, and the others."""
    by_spaces: dict[int, list[int]] = {}
    others = []
    for k, kind in enumerate(asked):
        if kind.queries.expands(power):
            by_spaces.setdefault(len(kind.spaces), []).append(k)
        else:
            others.append(k)
    out = []
    for members in by_spaces.values():
        expanded = [asked[k].queries.expansion(int(power)) for k in members]
        out.append(
            _Batch(
                members=members,
                spaces=np.array([asked[k].spaces for k in members]),
                exponents=expanded[0][0],
                coefficients=np.array([c for _, c, _ in expanded]),
                units=np.array([u for *_, u in expanded]),
            )
        )
    return out, others


def _powers(asked: Sequence[Asked], counts: Array, p: float, start: Array, gap: float) -> Shares:
    import scipy.optimize

    spaces, share = len(counts), np.array([kind.groups * kind.weight for kind in asked])
    best = Shares(noises=start, value=math.inf, bound=0.0, mass=np.ones(len(asked)))
    batches, others = _batches(asked, p)
    # powers up to 100 of plain variances would leave the range of doubles
    scale = max(kind.queries.largest(start[list(kind.spaces)])[0] for kind in asked)

    def sums(s: Array) -> tuple[Array, Array]:
        """Return the power sum of every kind, and the weighted slopes by space."""
        own, pulled = np.zeros(len(asked)), np.zeros(spaces)
        for b in batches:
            at = s[b.spaces] / scale
            # powers of many noises at once, as sums of logarithms
            terms = b.coefficients * np.exp(np.log(at * b.units) @ b.exponents.T)
            own[b.members] = terms.sum(axis=1)
            slopes = share[b.members, None] * (terms @ b.exponents) / at / p
            pulled += np.bincount(b.spaces.ravel(), slopes.ravel(), minlength=spaces)
        for k in others:
            own[k], slopes = asked[k].queries.power_sum(s[list(asked[k].spaces)], p, scale)
            pulled += share[k] * np.bincount(asked[k].spaces, slopes, minlength=spaces)
        return own, pulled

    def evaluate(x: Array) -> tuple[float, Array]:
        nonlocal best
        # noises are positive whatever the step, and a step is a factor
        s = np.exp(x)
        cost = float(np.sum(counts / s))
        s = s * cost
        own, pulled = sums(s)
        mass = share * own
        total = float(mass.sum())
        # u = w (Var / scale)^(p - 1) has dual norm total^(1 - 1/p)
        bound = float(np.sum(np.sqrt(counts * pulled))) ** 2 / total ** (1.0 - 1.0 / p)
        value, low = scale * total ** (1.0 / p), max(bound, best.bound)
        if value < best.value:
            best = Shares(noises=s, value=value, bound=low, mass=mass)
        else:
            best = Shares(noises=best.noises, value=best.value, bound=low, mass=best.mass)
        if best.value <= best.bound * (1.0 + gap):
            raise StopIteration
        return math.log(value), pulled * s / float(pulled @ s) - counts / s

    with contextlib.suppress(StopIteration):
        scipy.optimize.minimize(
            evaluate,
            np.log(start),
            jac=True,
            method="L-BFGS-B",
            options={"maxcor": 30, "maxfun": 200, "maxiter": 200, "ftol": 0.0, "gtol": 1e-12},
        )
    return best
