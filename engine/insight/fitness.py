"""Is a plan exact enough for its purpose: from a wanted error to a budget and back, and what any mechanism could reach.

Variances scale as 1 / pcost, so the errors of a plan tell those at every other budget.  What a release adds for
rounding to its grids does not scale, so the noise of another budget is calibrated as a plan does it; what is promised
here then holds for the plan that is made with that budget.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from engine.errors import BudgetError, LimitExceeded, PlanError
from engine.insight.breakdown import worst_error
from engine.insight.spread import spread
from engine.plans import Plan, calibrate, total_pcost
from engine.privacy import Budget
from engine.release import quantile
from engine.spaces import exact_bound, global_bound, small_domain
from engine.texts import amount, number
from engine.workload import Workload

GUARD = 1.0 + 1e-8  # covers the rounding of noise to a grid, and of sums of variances
MOST_CELLS = 2_000  # of one attribute, up to which a bound for all mechanisms is searched
MOST_RATIO = 1e12  # between the present error and the wanted one


def error_at(plan: Plan, share: float = 0.95) -> float:
    """Return the smallest standard error, in counts, that at least a share of all queries does not exceed.

    Exact up to 2 million queries; above, that of an even sample, but for a share of 1, which is always exact.

    >>> from engine import Attribute, Budget, Schema, plan
    >>> made = plan(Workload(Schema([Attribute.of_size("age", 4)])).add("age", "marginal"), Budget(pcost=0.25))
    >>> round(error_at(made, 0.5), 4)
    2.0
    """
    _check_share(share)
    found = spread(plan)
    errors, shares, exact = found.errors, found.shares, found.exact
    if share == 1.0 and not exact:
        return max(worst_error(plan), float(errors[-1]))
    return float(errors[min(int(np.searchsorted(shares, share)), len(errors) - 1)])


def share_within(plan: Plan, error: float) -> float:
    """Return the share of all queries whose standard error is at most ``error`` counts; sampled as in `error_at`."""
    return spread(plan).within(error)


def budget_for_error(plan: Plan, error: float, share: float = 0.95) -> Budget:
    """Return the smallest budget at which a share of all queries has a standard error of at most ``error`` counts.

    Guarantee: the same mechanism planned with this budget keeps the promise for every query that was looked at; a
    budget smaller by a millionth does not.

    Raises
    ------
    PlanError : an error or a share that is none, or too many queries that the plan cannot answer.
    """
    reached = error_at(plan, share)
    if not math.isfinite(reached):
        answered = share_within(plan, np.finfo(float).max)
        raise PlanError(
            f"No budget does: only {down(answered)} of the queries can be answered at all. Give every group a weight "
            "above 0."
        )
    return scaled_budget(plan, reached, error)


def scaled_budget(plan: Plan, reached: float, error: float) -> Budget:
    """Return the smallest budget that turns a standard error of this plan, ``reached``, into ``error``, in counts."""
    if not (isinstance(error, (int, float)) and math.isfinite(error) and error > 0):
        raise PlanError(f"The wanted standard error was {error!r}. Give a number of counts above 0.")
    if reached == 0.0:
        raise PlanError("This has no noise at any budget, so every budget will do.")
    if not 1.0 / MOST_RATIO < reached / error < MOST_RATIO:
        raise PlanError(
            f"The wanted standard error of {error:g} counts is too far from the present {amount(reached)}. Give one "
            "that is closer."
        )
    pcost, best = plan.budget.pcost * (reached / error) ** 2, math.inf
    for _ in range(40):
        found = reached * _noise_ratio(plan, _like(plan.budget, pcost)) * GUARD
        if found <= error:
            best = min(best, pcost)
        if error * (1.0 - 1e-7) <= found <= error:
            break
        pcost *= (found / error) ** 2 * GUARD
    if not math.isfinite(best):
        raise PlanError(f"No budget was found for a standard error of {error:g} counts. Give another one.")
    return _like(plan.budget, best)


def error_for(plan: Plan, half: float, confidence: float = 0.95) -> float:
    """Return the standard error, in counts, whose interval reaches ``half`` counts to each side."""
    return half / quantile(confidence, plan.budget.law)


def two_digits(error: float, plan: Plan) -> float:
    """Return an error to start a search from: of two digits, and that of a single count where it is not finite.

    >>> from engine import Attribute, Budget, Schema, plan
    >>> made = plan(Workload(Schema([Attribute.of_size("age", 4)])).add("age", "marginal"), Budget(pcost=0.25))
    >>> two_digits(12.345, made), two_digits(math.inf, made)
    (12.0, 2.0)
    """
    return max(0.001, float(f"{error if math.isfinite(error) else 1.0 / plan.budget.mu:.2g}"))


def how_exact(plan: Plan) -> str:
    """Return in words whether shares of queries are exact or come from a sample."""
    found = spread(plan)
    if found.exact:
        return found.how
    return f"Shares come from an evenly spread sample of {len(found.errors):,} queries; the largest error is exact."


def within_text(plan: Plan, error: float) -> str:
    """Return the share of the queries within a standard error in words, rounded down."""
    asked = number(plan.workload.queries)
    return (
        f"{down(share_within(plan, error))} of {asked} queries have a standard error of {amount(error)} counts or less."
    )


def down(share: float) -> str:
    """Return a share as a percentage that promises no more than holds.

    >>> down(0.9499999), down(1.0)
    ('94.9%', '100.0%')
    """
    return f"{math.floor(share * 1000.0 + 1e-9) / 10.0:.1f}%"


@dataclass(frozen=True, kw_only=True)
class MechanismBound:
    """What no matrix mechanism can go below.

    Attributes
    ----------
    square : weighted squared error, in counts^2 at privacy cost 1.
    how : how it was found, in words.
    """

    square: float
    how: str

    def rmse(self, plan: Plan) -> float:
        """Weighted RMSE, in counts, that no matrix mechanism goes below on this workload at this budget."""
        return math.sqrt(self.square / plan.budget.pcost / plan.workload.queries)


def mechanism_bound(workload: Workload, law: str = "gaussian") -> MechanismBound:
    """Return a lower bound for every matrix mechanism on a workload, whatever it measures.

    Raises
    ------
    LimitExceeded : an attribute has too many cells to search a bound in short time.
    """
    largest = max((n for g in workload.groups for n in g.sizes), default=1)
    if largest > MOST_CELLS:
        raise LimitExceeded(
            f"An attribute has {largest:,} cells; a bound for all mechanisms is searched up to {MOST_CELLS:,}. Use "
            "coarser cells."
        )
    if small_domain(workload):
        return MechanismBound(square=exact_bound(workload, law=law), how="the dual of the problem on all cells at once")
    how = "a product of test matrices, attribute by attribute"
    return MechanismBound(square=global_bound(workload, law), how=how)


def bound_text(plan: Plan, bound: MechanismBound) -> str:
    """Return in words how far a plan can be from the best of all matrix mechanisms."""
    least = bound.rmse(plan)
    if least <= 0.0:
        return "No bound above 0 was found for all matrix mechanisms together."
    above = math.ceil(1000.0 * max(plan.weighted_rmse / least - 1.0, 0.0) - 1e-9) / 10.0
    return (
        f"This plan is at most {above:.1f}% above what any matrix mechanism could reach: none has a weighted RMSE "
        f"below {least:.5g} counts on this workload at this budget."
    )


def _check_share(share: float) -> None:
    if not (isinstance(share, (int, float)) and 0.0 < share <= 1.0):
        raise PlanError(f"The share of the queries was {share!r}. Give a number above 0, at most 1.")


def _like(budget: Budget, pcost: float) -> Budget:
    """Return a budget of the same kind that costs ``pcost``."""
    if not math.isfinite(pcost):
        raise BudgetError("The wanted error needs a budget beyond all numbers. Give a larger error.")
    return Budget(pcost=pcost) if budget.pure_epsilon is None else Budget.pure(math.sqrt(pcost))


def _noise_ratio(plan: Plan, budget: Budget) -> float:
    """Return the largest ratio of noise at another budget to noise in the plan."""
    start = math.sqrt(plan.budget.pcost / budget.pcost)
    if plan.pcost >= plan.budget.pcost * (1.0 - 1e-8):  # it was enlarged to hold the budget with its rounding
        bare = {space: replace(block, grid=0.0) for space, block in plan.blocks.items()}
        start *= math.sqrt(total_pcost(bare, 0) / plan.budget.pcost)
    strategies = {space: block.factors for space, block in plan.blocks.items()}
    # a grid is a power of two: beside a power either of its neighbours may be the one that a plan takes
    return max(
        made.noise / plan.blocks[space].noise
        for side in (1.0 - 1e-9, 1.0 + 1e-9)
        for space, made in calibrate(
            strategies,
            {space: block.noise * start * side for space, block in plan.blocks.items()},
            budget.pcost,
            plan.max_records,
            budget.law,
        ).items()
    )
