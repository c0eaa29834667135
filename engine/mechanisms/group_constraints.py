"""Accuracy constraints of groups relative to uniform centers, enforced by reweighting.

Tuning lowers the weighted sum of variances and may raise the variances of single groups.  Let V_g
be the sum of variances of group g, w_g its weight and T_g the largest allowed V_g.  Modified
weights u_g >= w_g act as Lagrange multipliers, with u_g = w_g for inactive constraints: the optimal
plan for u is optimal for w among plans that satisfy the constraints if, for every group,
V_g = T_g or u_g = w_g.  Before convergence the bound remains valid:

    sum of w V >= sum of u V - sum of (u - w) T
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

# Largest number of updates of the weights.
MAX_WEIGHT_UPDATES = 20
# Relative distance of V_g to T_g at which an active constraint counts as satisfied with equality.
ACTIVE_TOLERANCE = 1e-3
# Relative tolerance for rounding the noise to its grid.
SLACK = 1e-6
# Slope of log V_g in log u_g for a workload of one group, the initial value of the secant method.
INITIAL_SLOPE = -0.5
# Largest (flattest) slope that is used, and largest change of the logarithm of a weight.
MAX_SLOPE, MAX_LOG_STEP = -0.03, 2.0


def checked_keep(keep: Any) -> float | dict[int, float]:
    """Validate the option ``keep``: one share for all groups, or shares by group number.

    Keys may be strings, as in JSON.

    Raises
    ------
    PlanError
        If a share or a group number is invalid.

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
            f"keep was {str(keep)[:60]}. Give the share by which the error of a group may rise, from 0: one "
            "number for all groups, or a mapping from group numbers to shares, such as {0: 0.05}."
        )
    return dict(sorted(zip(numbers, map(float, shares), strict=True))) if several else float(keep)


def most_allowed(keep: float | Mapping[int, float], workload: Workload, uniform: Sequence[float]) -> Array:
    """Return the largest allowed sum of variances of every group, infinity without constraint.

    Parameters
    ----------
    keep : relative increase of the RMSE, for all groups or by group number.
    uniform : sum of variances of every group with uniform centers, shape (groups,).

    Returns
    -------
    Limits in the units of ``uniform``, shape (groups,).

    Raises
    ------
    PlanError
        If ``keep`` names a group that does not exist.
    """
    count = len(workload.groups)
    shares = keep if isinstance(keep, Mapping) else dict.fromkeys(range(count), keep)
    if max(shares, default=0) >= count:
        raise PlanError(f"keep names group {max(shares)}, but the workload has groups 0 to {count - 1}.")
    most = np.full(count, math.inf)
    for number, share in shares.items():
        # Groups answered by exact totals have no error.
        if workload.groups[number].weight > 0.0 and uniform[number] > 0.0:
            most[number] = uniform[number] * (1.0 + share) ** 2
    return most


class WeightedPlan(Protocol):
    """A plan for modified group weights, with its error for the original weights."""

    @property
    def error(self) -> float:
        """Root of the weighted sum of variances at privacy cost 1."""

    def sums(self) -> Array:
        """Return the sum of variances of every group at privacy cost 1, shape (groups,)."""


M = TypeVar("M", bound=WeightedPlan)


def constrained_search(make: Callable[[Array], M], most: Array, go_on: Callable[[float], bool]) -> M | None:
    """Search for the best plan that satisfies the constraints; None if there is no such plan.

    Parameters
    ----------
    make : returns the plan for factors of the group weights, shape (groups,), at least 1.
    most : largest allowed sum of variances of every group, shape (groups,).
    go_on : called with the completed share of the work; returns whether to continue.
    """
    best, previous = None, None
    logs, slopes = np.zeros(len(most)), np.full(len(most), INITIAL_SLOPE)
    for step in range(MAX_WEIGHT_UPDATES):
        if not go_on(step / MAX_WEIGHT_UPDATES):
            break
        plan = make(np.exp(logs))
        excess = np.divide(plan.sums(), most, out=np.zeros(len(most)), where=np.isfinite(most))
        if (excess <= 1.0).all() and (best is None or plan.error < best.error):
            best = plan
        excess = np.log(np.maximum(excess, 1e-300) / (1.0 - ACTIVE_TOLERANCE))
        if (excess <= 0.0).all() and (excess[logs > 0.0] > -2.0 * ACTIVE_TOLERANCE).all():
            break
        # One group among many responds weakly to its weight: update the slopes by the secant
        # method.
        if previous is not None:
            moved = np.abs(logs - previous[0]) > 1e-6
            slopes[moved] = ((excess - previous[1])[moved] / (logs - previous[0])[moved]).clip(-1.0, MAX_SLOPE)
        previous = logs, excess
        logs = np.maximum(0.0, logs + (-excess / slopes).clip(-MAX_LOG_STEP, MAX_LOG_STEP))
    return best


def noise_shares(values: Mapping[Space, float]) -> dict[Space, float]:
    """Return the optimal squared noise of every space at privacy cost 1, in counts^2.

    By Cauchy and Schwarz, the sum of L_B / pcost_B over spaces with errors L_B and a fixed sum of
    pcost_B is smallest for pcost_B proportional to sqrt(L_B).
    """
    total = math.fsum(map(math.sqrt, values.values()))
    return {space: total / math.sqrt(value) for space, value in values.items()}


def separate_bound(parts: Decomposition, solutions: Sequence[SpaceSolution]) -> float:
    """Return the lower bound on the weighted sum of variances with separate sensitivities.

    The privacy cost is the sum of the costs of the blocks.
    """
    return math.fsum(math.sqrt(scale * solutions[k].bound) for k, scale in parts.spaces.values()) ** 2


def constrained_bound(
    workload: Workload,
    weights: Array,
    most: Array,
    total: float,
) -> float:
    """Return the lower bound on the weighted sum of variances under the accuracy constraints.

    Parameters
    ----------
    weights : modified group weights, shape (groups,).
    most : largest allowed sum of variances of every group, shape (groups,).
    total : lower bound on the sum of variances weighted by ``weights``.
    """
    group_weights = np.array([group.weight for group in workload.groups])
    raised = weights > group_weights
    return max(total - math.fsum((weights - group_weights)[raised] * most[raised]), 0.0)
