"""Accuracy constraints of groups relative to uniform centers, enforced by reweighting.

Tuning lowers the weighted sum of variances and may raise those of single groups.  With V_g the sum of variances of a
group, w_g its weight and T_g the most that V_g may be, weights u_g >= w_g, u_g = w_g where nothing binds, stand for the
multipliers of Lagrange: the plan that is best for u is best for w among those that keep the groups, once every V_g is
T_g or u_g is w_g.  Until then its bound is honest all the same: sum of w V >= sum of u V - sum of (u - w) T.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np

from engine._arrays import Array
from engine.errors import PlanError
from engine.residuals import Space
from engine.residuals.decomposition import Decomposition
from engine.residuals.subworkload_solver import SpaceSolution
from engine.workload import Workload

STEPS = 20  # changes of weights until groups are as exact as asked
NEAR = 1e-3  # of the sum of variances that a kept group may have: this near is near enough
SLACK = 1e-6  # of it, for the rounding of noise to its grid
SLOPE = -0.5  # of the logarithm of V_g by that of u_g where a group is alone
FLATTEST, LONGEST = -0.03, 2.0  # slope that is believed, and step of the logarithm of a weight


def checked_keep(keep: Any) -> float | dict[int, float]:
    """Return shares by group, or one for all; raise PlanError when they are none. JSON has texts as keys.

    >>> checked_keep({"0": 0.05})
    {0: 0.05}
    """
    several = isinstance(keep, Mapping)
    try:
        numbers = [int(number) for number in keep] if several else []
    except (TypeError, ValueError):
        numbers = [-1]
    shares = list(keep.values()) if several else [keep]
    real = all(isinstance(v, (int, float)) and not isinstance(v, bool) and 0.0 <= v < math.inf for v in shares)
    if not real or min(numbers, default=0) < 0:
        raise PlanError(
            f"keep was {str(keep)[:60]}. Give by what share a group's error may rise, from 0: one number for all "
            "groups, or a mapping from numbers of groups to shares, such as {0: 0.05}."
        )
    return dict(sorted(zip(numbers, map(float, shares), strict=True))) if several else float(keep)


def most_allowed(keep: float | Mapping[int, float], workload: Workload, uniform: Sequence[float]) -> Array:
    """Return what the sum of variances of every group may be, infinite where any will do, from that of uniform centers.

    Shape (groups,), in the units of ``uniform``.  Raises PlanError for groups that there are not.
    """
    count = len(workload.groups)
    shares = keep if isinstance(keep, Mapping) else dict.fromkeys(range(count), keep)
    if max(shares, default=0) >= count:
        raise PlanError(f"keep names group {max(shares)}, but the workload has groups 0 to {count - 1}.")
    most = np.full(count, math.inf)
    for number, share in shares.items():
        # what exact totals answer has no error that could rise
        if workload.groups[number].weight > 0.0 and uniform[number] > 0.0:
            most[number] = uniform[number] * (1.0 + share) ** 2
    return most


class Weighed(Protocol):
    """A plan for some weights of the groups, with its error for their own."""

    @property
    def error(self) -> float:
        """Root of the weighted sum of variances at privacy cost 1."""

    def sums(self) -> Array:
        """Return the sum of variances of every group at privacy cost 1, shape (groups,)."""


M = TypeVar("M", bound=Weighed)


def search_kept(make: Callable[[Array], M], most: Array, go_on: Callable[[float], bool]) -> M | None:
    """Return the best plan that keeps the groups, if one is found.

    Parameters
    ----------
    make : takes factors of the groups' weights, shape (groups,), at least 1.
    most : what the sum of variances of every group may be, shape (groups,).
    go_on : hears the share of the work that is done, and says whether to go on.
    """
    found, before = None, None
    logs, slopes = np.zeros(len(most)), np.full(len(most), SLOPE)
    for step in range(STEPS):
        if not go_on(step / STEPS):
            break
        made = make(np.exp(logs))
        over = np.divide(made.sums(), most, out=np.zeros(len(most)), where=np.isfinite(most))
        if (over <= 1.0).all() and (found is None or made.error < found.error):
            found = made
        over = np.log(np.maximum(over, 1e-300) / (1.0 - NEAR))
        if (over <= 0.0).all() and (over[logs > 0.0] > -2.0 * NEAR).all():
            break
        # a group among many hardly feels its weight at first: how steeply it does is seen from step to step
        if before is not None:
            moved = np.abs(logs - before[0]) > 1e-6
            slopes[moved] = ((over - before[1])[moved] / (logs - before[0])[moved]).clip(-1.0, FLATTEST)
        before = logs, over
        logs = np.maximum(0.0, logs + (-over / slopes).clip(-LONGEST, LONGEST))
    return found


def noise_shares(values: Mapping[Space, float]) -> dict[Space, float]:
    """Return the squared noise of every space at privacy cost 1, in counts^2, that is best for their errors L_B.

    The least sum of L_B / pcost_B for a fixed sum of pcost_B has pcost_B in proportion to sqrt(L_B), by Cauchy and
    Schwarz.
    """
    total = math.fsum(map(math.sqrt, values.values()))
    return {space: total / math.sqrt(value) for space, value in values.items()}


def separate_bound(parts: Decomposition, solutions: Sequence[SpaceSolution]) -> float:
    """Return the lower bound on the weighted sum of variances where every block is charged for its own cells."""
    return math.fsum(math.sqrt(scale * solutions[k].bound) for k, scale in parts.spaces.values()) ** 2


def kept_bound(
    workload: Workload,
    weights: Array,
    most: Array,
    total: float,
) -> float:
    """Return the lower bound on the weighted sum of variances among plans of the class that keep the groups.

    Weights and ``most`` have shape (groups,); ``total`` is a lower bound on the weighted sum for these weights.
    """
    own = np.array([group.weight for group in workload.groups])
    more = weights > own
    return max(total - math.fsum((weights - own)[more] * most[more]), 0.0)
