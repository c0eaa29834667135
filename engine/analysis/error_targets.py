"""Error targets: budgets that meet them, shares of queries within them, and lower bounds.

Four groups of functions:

`share_within`, `tolerance_for`
    The share of the queries whose standard error is within a tolerance, and its inverse.
`budget_for`, `budget_for_error`, `budget_for_query`
    The smallest budget at which a share of the queries, or one query, meets its target.
`fit_targets`
    Targets per group.  Without locks: the smallest budget at which every group meets its target,
    with noise shaped for the targets.  With locks: the locked groups meet their targets at the
    budget of the request, and the other targets are multiplied by the smallest common factor for
    which that budget suffices.  The factor is below 1 if there is budget to spare.
`mechanism_bound`, `releases_within`
    The lower bound on the error of every matrix mechanism, and the number of releases that a total
    budget covers.

Notes
-----
Variances are only nearly proportional to 1 / pcost, because rounding to the noise grid adds a term
that is not.  A budget is therefore verified on a plan at that budget, which needs no new search.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from engine._format import format_number, pluralize
from engine._validation import check_type
from engine.analysis.error_distribution import error_distribution, ratio_distribution
from engine.analysis.variance_breakdown import errors_by_group
from engine.analysis.what_if import Request
from engine.bounds.lower_bounds import best_bound
from engine.errors import LimitExceeded, PlanError
from engine.mechanisms import at_budget, mechanism_class, plan
from engine.plans import Plan
from engine.plans.objectives import check_targets
from engine.privacy import REPLACE_ONE, Budget
from engine.progress import Progress, progress_reporter
from engine.release import quantile
from engine.workload import Group, Workload

if TYPE_CHECKING:
    import pandas as pd


FITS = ("scale", "shape")
NOISE_LAWS = ("gaussian", "laplace")
ROUNDING_MARGIN = 1.0 + 1e-9  # bounds the difference between two summation orders of a variance
SHARE_MARGIN_SDS = 3.0  # safety margin of a sampled share, in standard errors of the share
# The noise is rounded to multiples of 2^-30, so a finer precision would have no effect.
BUDGET_RELATIVE_PRECISION = 1e-8
MAX_BUDGET_STEPS = 100  # a search typically takes three or four
BIAS_NOTE = "Biased methods can be more accurate where counts are smaller than the noise."


def share_within(plan: Plan, tolerance: float | Sequence[float]) -> float:
    """Return the share of all queries whose standard error is at most a tolerance, from 0 to 1.

    All queries are evaluated if there are at most four million distinct variances; otherwise groups
    with many of them are sampled, see `ErrorDistribution`.  A query that is not answerable exceeds
    every tolerance.

    Parameters
    ----------
    tolerance : standard error in counts, above 0: one number, or one per group, shape (groups,).

    Raises
    ------
    PlanError : a tolerance is not a number above 0, or the number of tolerances differs from the
        number of groups.

    >>> from engine import Attribute, Schema
    >>> workload = Workload(Schema([Attribute.of_size("age", 4)])).add("age")
    >>> workload = workload.add("age", "total", weight=0.0)
    >>> example = plan(workload, Budget(pcost=1.0))
    >>> share_within(example, 1.5), share_within(example, [1.5, 3.0])
    (0.8, 1.0)
    """
    check_type("plan", plan, Plan, give="a Plan, the result of plan()", error=PlanError)
    tolerances = _checked_errors(plan.workload, tolerance, "tolerance")
    return (
        error_distribution(plan).within(tolerances)
        if isinstance(tolerances, float)
        else ratio_distribution(plan, tolerances).within(1.0)
    )


def tolerance_for(plan: Plan, share: float = 1.0) -> float:
    """Return the smallest standard error, in counts, that a share of all queries does not exceed.

    Shares are computed as in `share_within`.  A sampled share has a margin of three standard
    errors.  A share of 1 always takes the maximum over all queries.  The result is infinite if too
    many queries of weight zero are not answerable.

    Raises
    ------
    PlanError : ``share`` is not above 0 and at most 1.

    >>> from engine import Attribute, Schema
    >>> example = plan(Workload(Schema([Attribute.of_size("age", 4)])).add("age"), Budget(pcost=1.0))
    >>> round(tolerance_for(example, 0.5), 6), share_within(example, 0.99)
    (1.0, 0.0)
    """
    check_type("plan", plan, Plan, give="a Plan, the result of plan()", error=PlanError)
    return error_distribution(plan).quantile(_checked_share(share), SHARE_MARGIN_SDS)


def budget_for(
    workload: Workload,
    targets: float | Sequence[float],
    share: float = 1.0,
    mechanism: str = "querysmasher",
    fit: str = "scale",
    law: str | None = None,
    **options: Any,
) -> Budget:
    """Return the smallest budget at which a share of all queries meets its error targets.

    Parameters
    ----------
    targets : largest acceptable standard error, in counts: one number, or one per group, shape
        (groups,).
    share : share of the queries that must meet their targets, above 0 and at most 1.
    fit : "scale" scales the noise of ``plan(workload, budget, mechanism, **options)``; "shape"
        optimizes the strategy for the targets, as ``objective="max", targets=targets`` does, and
        needs a smaller budget for ``share=1``.
    law : noise distribution: "gaussian", or "laplace" for a budget of pure epsilon; by default the
        first one that the mechanism supports.
    options : options of the mechanism, as for `plan`.

    Raises
    ------
    PlanError : an argument is invalid; or no budget meets the targets, because queries of weight
        zero are not answerable; or as for `smallest_budget`.
    NotApplicable : the mechanism does not support this noise distribution.

    Notes
    -----
    Guarantee: ``plan(workload, budget_for(...), mechanism, **options)`` meets the targets for the
    share, as computed by `share_within`.  With ``fit="shape"`` the options of this plan are
    completed by ``objective="max", targets=targets``.  At a pcost smaller by a relative 1e-7 the
    plan does not meet the targets, unless the share is that of a sample.

    >>> from engine import Attribute, Schema
    >>> workload = Workload(Schema([Attribute.of_size("age", 4)])).add("age")
    >>> round(budget_for(workload, 0.5).pcost, 4), round(budget_for(workload, 100.0).pcost, 8)
    (4.0, 0.0001)
    """
    if fit not in FITS:
        raise PlanError(f"fit was {fit!r}. Choose one of {', '.join(FITS)}.")
    if law is not None and law not in NOISE_LAWS:
        raise PlanError(f"law was {law!r}. Choose one of {', '.join(NOISE_LAWS)}, or leave it out.")
    _checked_share(share), _checked_errors(workload, targets, "targets")
    if fit == "shape":
        conflicting = [name for name in ("objective", "power", "targets") if name in options]
        if conflicting:
            raise PlanError(
                f"fit='shape' sets the objective. Leave out {', '.join(conflicting)}, or take"
                " fit='scale'."
            )
        options = options | {"objective": "max", "targets": check_targets(targets)}
    noise_law = mechanism_class(mechanism).laws[0] if law is None else law
    return budget_for_error(
        plan(workload, _budget(noise_law, 1.0), mechanism, **options), targets, share
    )


def budget_for_error(
    plan: Plan, targets: float | Sequence[float], share: float = 1.0, *, nearly: bool = False
) -> Budget:
    """Return the smallest budget at which the strategy of a plan meets error targets.

    The budget of the plan does not matter, except that the result is of the same kind and has the
    same privacy unit.

    Parameters
    ----------
    targets, share : as for `budget_for`.
    nearly : assume that variances are proportional to 1 / pcost, which is faster and only
        approximately true; otherwise the result is verified by plans at other budgets.

    Raises: PlanError as for `budget_for`.

    >>> from engine import Attribute, Schema
    >>> workload = Workload(Schema([Attribute.of_size("age", 4)])).add("age")
    >>> budget_for_error(plan(workload, Budget(pcost=7.0)), 0.5) == budget_for(workload, 0.5)
    True
    """
    share, limits = _checked_share(share), _checked_errors(plan.workload, targets, "targets")

    def ratio(candidate: Plan) -> float:
        """Return the quantile of standard error over target at the share."""
        # One target for all groups only scales the distribution, which is cached for unit targets.
        if isinstance(limits, float):
            target = limits
            distribution = (
                error_distribution(candidate)
                if candidate is plan
                else ratio_distribution(candidate, (1.0,) * n_groups)
            )
        else:
            target, distribution = 1.0, ratio_distribution(candidate, limits)
        error_ratio = distribution.quantile(share, SHARE_MARGIN_SDS) / target
        if math.isfinite(error_ratio):
            return error_ratio
        raise PlanError(
            "No budget meets the targets: only"
            f" {percent_rounded_down(distribution.within(math.inf))} of the queries can be answered"
            " at all. The others have weight zero, and the measurements do not determine them."
            " Give them a weight, remove them, or choose a smaller share."
        )

    n_groups = len(plan.workload.groups)
    return smallest_budget(plan, ratio, nearly=nearly)


def budget_for_query(
    plan: Plan,
    attributes: Sequence[str],
    query_tensor: npt.ArrayLike,
    error: float,
    *,
    nearly: bool = False,
) -> Budget:
    """Return the smallest budget at which an ad hoc query meets an error target.

    Parameters
    ----------
    query_tensor : coefficients of the query, in the shape of the marginal on ``attributes``.
    error : largest acceptable standard error, in counts.
    nearly : as for `budget_for_error`.

    Raises
    ------
    PlanError : as for `budget_for`.
    NotAnswerable : the strategy does not measure a component of the query.

    >>> from engine import Attribute, Schema
    >>> example = plan(Workload(Schema([Attribute.of_size("age", 4)])).add("age"), Budget(pcost=1.0))
    >>> round(budget_for_query(example, ["age"], [1, 1, 0, 0], 2.0).pcost, 6)
    0.5
    """
    target = _checked_errors(plan.workload, error, "error")
    if not isinstance(target, float):
        raise PlanError(
            "error has several numbers, but there is one query. Give one number above 0, in counts."
        )

    def ratio(candidate: Plan) -> float:
        """Return the standard error of the query divided by its target."""
        return math.sqrt(candidate.variance_of(attributes, query_tensor)) / target

    return smallest_budget(plan, ratio, nearly=nearly)


def smallest_budget(plan: Plan, ratio: Callable[[Plan], float], *, nearly: bool = False) -> Budget:
    """Return the smallest budget at which a plan has a ratio of at most 1.

    Parameters
    ----------
    ratio : function from a plan to the ratio of a standard error to its target.
    nearly : as for `budget_for_error`.

    Raises
    ------
    PlanError : the ratio is 0, because the queries have no noise, or the target needs less noise
        than the step to which answers are rounded.

    Notes
    -----
    A bracketing secant iteration in log pcost, to a relative `BUDGET_RELATIVE_PRECISION`.  The plan
    is rebuilt at every trial budget.  The ratio is modelled as a power of pcost through the last
    two trials; each step slightly overshoots the root of this model, so that the bracket closes.
    """
    low, high, pcost, slope = 0.0, math.inf, 1.0, -0.5
    previous: tuple[float, float] | None = None
    for _ in range(MAX_BUDGET_STEPS):
        error_ratio = (
            ratio(plan if nearly else at_budget(plan, plan.budget.at(pcost))) * ROUNDING_MARGIN
        )
        if error_ratio == 0.0:
            raise PlanError(
                "These queries have no noise at any budget, so every budget meets the targets."
            )
        if nearly:
            return plan.budget.at(plan.budget.pcost * error_ratio**2)
        low, high = (low, pcost) if error_ratio <= 1.0 else (pcost, high)
        if high <= low * (1.0 + BUDGET_RELATIVE_PRECISION):
            return plan.budget.at(high)
        # Over shorter steps the rounding of the noise would dominate the slope.
        if previous is not None and abs(math.log(pcost / previous[0])) > 1e-3:
            slope = min(
                max(math.log(error_ratio / previous[1]) / math.log(pcost / previous[0]), -1.0),
                -0.25,
            )
        previous = pcost, error_ratio
        overshoot = (
            BUDGET_RELATIVE_PRECISION / 3.0
            if error_ratio > 1.0
            else -BUDGET_RELATIVE_PRECISION / 3.0
        )
        pcost *= error_ratio ** (-1.0 / slope) * (1.0 + overshoot)
        if not low < pcost < high:
            pcost = math.sqrt(low * high)
    raise PlanError(
        "The targets need less noise than the step to which answers are rounded. Choose larger"
        " targets, or a smaller max_records."
    )


def _budget(law: str, pcost: float) -> Budget:
    return Budget(pcost=pcost) if law == "gaussian" else Budget.pure(math.sqrt(pcost))


def _checked_share(share: object) -> float:
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 < share <= 1:
        raise PlanError(f"share was {share!r}. Give a number above 0 and at most 1, such as 0.95.")
    return float(share)


def _checked_errors(workload: Workload, errors: object, name: str) -> float | tuple[float, ...]:
    """Return validated standard errors in counts: one for all groups, or one per group.

    ``name`` is the argument in the message of the PlanError.
    """
    values = check_targets(errors, name)
    if isinstance(values, tuple) and len(values) != len(workload.groups):
        raise PlanError(
            f"{name} has {len(values)} numbers for {len(workload.groups)} groups. Give one per"
            " group, or one for all groups."
        )
    return values


def error_for(plan: Plan, half: float) -> float:
    """Return the standard error, in counts, of a 95% interval with half-width ``half``."""
    return half / quantile(0.95, plan.budget.law)


def two_digits(error: float, plan: Plan) -> float:
    """Return a standard error rounded to two digits, in counts, at least 0.001.

    If ``error`` is infinite, it is replaced by the standard error of a count that is measured alone
    at the budget of the plan.

    >>> from engine import Attribute, Schema
    >>> workload = Workload(Schema([Attribute.of_size("age", 4)])).add("age", "marginal")
    >>> example = plan(workload, Budget(pcost=0.25))
    >>> two_digits(12.345, example), two_digits(math.inf, example)
    (12.0, 2.0)
    """
    return max(0.001, float(f"{error if math.isfinite(error) else 1.0 / plan.budget.mu:.2g}"))


def within_text(plan: Plan, error: float) -> str:
    """Return a sentence with the share of the queries within a standard error, rounded down."""
    n_queries = plan.workload.queries
    return (
        f"{percent_rounded_down(share_within(plan, error))} of"
        f" {pluralize(n_queries, 'query', 'queries')} {'has' if n_queries == 1 else 'have'} a"
        f" standard error of {format_number(error)} counts or less."
    )


def percent_rounded_down(share: float) -> str:
    """Return a share as a percentage, rounded down.

    >>> percent_rounded_down(0.9499999), percent_rounded_down(1.0)
    ('94.9%', '100.0%')
    """
    return f"{math.floor(share * 1000.0 + 1e-9) / 10.0:.1f}%"


@dataclass(frozen=True, kw_only=True)
class MechanismBound:
    """Lower bound on the error of every matrix mechanism.

    Attributes
    ----------
    square : weighted squared error, in counts^2 at privacy cost 1.
    how : method that computed the bound, as text.
    """

    square: float
    how: str

    def rmse(self, plan: Plan) -> float:
        """Lower bound on the weighted RMSE, in counts, at the budget of a plan; 0 if none holds."""
        if plan.budget.neighbours == REPLACE_ONE or plan.schema.invariants:
            # The bound does not cover exact answers from the record count or from public tables.
            return 0.0
        return math.sqrt(self.square / plan.budget.row_pcost / plan.workload.queries)


def mechanism_bound(workload: Workload, law: str = "gaussian") -> MechanismBound:
    """Return a lower bound on the weighted squared error of every matrix mechanism on a workload.

    ``law`` is the distribution of the noise: "gaussian" or "laplace".

    Raises
    ------
    LimitExceeded : an attribute has too many cells to compute a bound quickly.
    """
    square, how = best_bound(workload, law)
    return MechanismBound(square=square, how=how)


def claim_text(plan: Plan) -> str:
    """Return sentences with the gaps of a plan to two lower bounds on its weighted RMSE.

    One bound is for all matrix mechanisms, the other one for the plans of the same class.
    """
    class_text = certificate_text(plan)
    try:
        return f"{bound_text(plan, mechanism_bound(plan.workload, plan.budget.law))} {class_text}"
    except LimitExceeded as error:
        return f"{class_text} {error}"


def certificate_text(plan: Plan) -> str:
    """Return the lower bound of a plan's certificate, and its gap above the bound, as sentences."""
    certificate = plan.certificate
    return (
        f"{certificate.statement} The bound is {certificate.lower_bound:.6g} counts, this plan has "
        f"{plan.achieved:.6g}: {gap_text(plan)} more."
    )


def gap_text(plan: Plan) -> str:
    """Return how much a plan exceeds the lower bound of its certificate, as a percentage."""
    gap = max(plan.certificate.gap, 0.0)
    return f"{gap:.2%}" if gap >= 1e-4 else "less than 0.01%"


def above_best(plan: Plan, bound: MechanismBound) -> str:
    """Return by how many percent, at most, a plan exceeds the best matrix mechanism, as text.

    The percentage refers to the weighted RMSE and is rounded up.  The text is empty if the lower
    bound is 0.
    """
    bound_rmse = bound.rmse(plan)
    if bound_rmse <= 0.0:
        return ""
    return (
        f"{math.ceil(1000.0 * max(plan.weighted_rmse / bound_rmse - 1.0, 0.0) - 1e-9) / 10.0:.1f}%"
    )


def bound_text(plan: Plan, bound: MechanismBound) -> str:
    """Return a sentence with a plan's excess over the lower bound for all matrix mechanisms."""
    bound_rmse, above = bound.rmse(plan), above_best(plan, bound)
    if not above:
        return "No lower bound above 0 was found for all matrix mechanisms."
    return (
        f"This plan is at most {above} above the theoretical limit for any matrix mechanism, a"
        f" weighted RMSE of {bound_rmse:.5g} counts. {BIAS_NOTE}"
    )


# `fit_targets` stops if at most this share of the budget is unused.
MAX_UNUSED_SHARE = 0.01
# At this multiple of its target an unlocked group no longer constrains the plan.
MAX_TARGET_FACTOR = 1e4
MAX_TARGET_STEPS = 20
TARGET_OPTIONS = ("objective", "power", "targets", "keep")  # options that `fit_targets` replaces


@dataclass(frozen=True, kw_only=True, eq=False)
class FittedTargets:
    """A request fitted to error targets, and its plan.

    Attributes
    ----------
    request : request with the objective "max", the final targets and the budget.
    plan : plan of the request.  The standard error of every query is within the target of its
        group.
    factor : multiplier of the unlocked targets.
    """

    request: Request
    plan: Plan
    factor: float


def fit_targets(
    request: Request,
    targets: Sequence[float],
    locked: Sequence[bool] | None = None,
    progress: Progress | None = None,
) -> FittedTargets:
    """Fit a request to error targets, by changing the budget or by loosening unlocked targets.

    Parameters
    ----------
    targets : largest acceptable standard error, in counts, shape (groups,).
    locked : whether a group must meet its target at the budget of the request, shape (groups,).
        By default all groups meet their targets at the smallest sufficient budget, with the same
        privacy unit.

    Raises
    ------
    PlanError : an argument is invalid, no budget meets the targets, or the locked targets alone
        need a larger budget or take all of it.
    Cancelled : ``progress`` returned False.

    >>> from engine import Attribute, Budget, Schema, Workload
    >>> workload = Workload(Schema([Attribute.of_size(name, 3) for name in "ab"])).add("a").add("b")
    >>> request = Request(workload=workload, budget=Budget(pcost=1.0))
    >>> round(fit_targets(request, [1.0, 1.0]).request.budget.pcost, 4)
    1.6285
    >>> round(fit_targets(request, [1.5, 0.5], [True, False]).factor, 1)
    2.3
    """
    checked_targets = check_targets(list(targets))
    assert isinstance(checked_targets, tuple)
    if len(checked_targets) != len(request.workload.groups):
        raise PlanError(
            f"There are {len(checked_targets)} targets for {len(request.workload.groups)} groups."
            " Give one per group."
        )
    report = progress_reporter(progress, "Solving the targets was cancelled.")
    report(0.0, "Solving for all targets")
    fitted_plan, min_budget = _plan_and_budget(request, checked_targets)
    if locked is None:
        return _fitted_request(request, checked_targets, fitted_plan, min_budget, 1.0)
    is_locked = tuple(bool(lock) for lock in locked)
    if len(is_locked) != len(checked_targets):
        raise PlanError(
            f"There are {len(is_locked)} locks for {len(checked_targets)} targets. Give one per"
            " target."
        )
    pcost, factor = request.budget.pcost, 1.0
    # Bracket of (log factor, log of required over available pcost): too small, and sufficient.
    lower, upper = (-math.inf, 0.0), (math.inf, 0.0)
    for step in range(MAX_TARGET_STEPS):
        excess = math.log(min_budget.pcost / pcost)
        if excess <= 0.0 and (excess >= -MAX_UNUSED_SHARE or all(is_locked)):
            return _fitted_request(
                request,
                _loosen(checked_targets, is_locked, factor),
                fitted_plan,
                request.budget,
                factor,
            )
        if excess > 0.0 and (all(is_locked) or factor >= MAX_TARGET_FACTOR):
            raise PlanError(
                f"The locked targets alone need pcost {format_number(min_budget.pcost)}, and the"
                f" budget is {format_number(pcost)}. Unlock a target, increase a locked target, or"
                " solve for the budget."
            )
        current = math.log(factor), excess
        lower, upper = (current, upper) if excess > 0.0 else (lower, current)
        factor = min(math.exp(_next_log_factor(lower, upper, current, step)), MAX_TARGET_FACTOR)
        report((step + 1.0) / MAX_TARGET_STEPS, "Increasing the targets that are not locked")
        fitted_plan, min_budget = _plan_and_budget(
            request, _loosen(checked_targets, is_locked, factor)
        )
    raise PlanError(
        "The locked targets take the whole budget, so the other groups can have no targets. Unlock"
        " a group, or increase a locked target."
    )


def errors_against_targets(
    plan: Plan, rows: Mapping[str, Sequence[int]], targets: Sequence[float]
) -> pd.DataFrame:
    """Return the smallest target and the largest standard error of each set of groups, in counts.

    Parameters
    ----------
    rows : maps the name of a set to the numbers of its groups.
    targets : one per group, shape (groups,).
    """
    import pandas as pd

    errors = errors_by_group(plan)["max_std"].to_numpy()
    table_rows = [
        (name, min(targets[i] for i in numbers), float(errors[list(numbers)].max()))
        for name, numbers in rows.items()
    ]
    return pd.DataFrame(table_rows, columns=["groups", "target", "largest standard error"])


def largest_errors(plan: Plan) -> list[float]:
    """Return the largest standard error of every group, in counts."""
    return [float(error) for error in errors_by_group(plan)["max_std"]]


def options_after_change(
    options: Mapping[str, Any], before: Sequence[Group], after: Sequence[Group]
) -> Mapping[str, Any] | None:
    """Return the options after a change of groups, with the targets of the retained groups.

    Options without one target per group are returned unchanged.  Returns None if a group is new,
    because it has no target, or if no group remains.
    """
    targets = options.get("targets")
    if not isinstance(targets, (list, tuple)) or len(targets) != len(before):
        return options
    previous_targets = {
        (group.attributes, group.key): target for group, target in zip(before, targets, strict=True)
    }
    new_targets = [previous_targets.get((group.attributes, group.key)) for group in after]
    if after and None not in new_targets:
        return dict(options) | {"targets": new_targets}
    return None


def remove_targets(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a mechanism without those that `fit_targets` sets."""
    return {name: value for name, value in options.items() if name not in TARGET_OPTIONS}


def _plan_and_budget(request: Request, targets: tuple[float, ...]) -> tuple[Plan, Budget]:
    """Return the plan whose largest ratio of error to target is minimal, and a budget.

    The budget is the smallest one at which the strategy of the plan meets all targets.
    """
    options = remove_targets(request.options) | {"objective": "max", "targets": targets}
    shaped_plan = plan(request.workload, request.budget, request.mechanism, **options)
    return shaped_plan, budget_for_error(shaped_plan, targets)


def _next_log_factor(
    lower: tuple[float, float], upper: tuple[float, float], current: tuple[float, float], step: int
) -> float:
    """Return the next trial value of the logarithm of the factor on the unlocked targets.

    A trial is a pair: log factor, log of required over available pcost.  The method is regula
    falsi.  Its goal is that half of `MAX_UNUSED_SHARE` of the budget is unused.

    Parameters
    ----------
    lower, upper : trials that bracket the solution; infinite while unknown.
    current : last trial.
    step : number of previous steps.
    """
    if math.isinf(lower[0]) or math.isinf(upper[0]):
        # Without locked targets pcost is proportional to factor^-2.  With locked targets it changes
        # less, so the steps double until there is a bracket.
        excess = current[1] + math.copysign(MAX_UNUSED_SHARE, current[1])
        return current[0] + excess / 2.0 * 2.0**step
    # bisect in every fourth step, because regula falsi may move only one end of the bracket
    if step % 4 == 3:
        return (lower[0] + upper[0]) / 2.0
    goal = -MAX_UNUSED_SHARE / 2.0
    return upper[0] + (lower[0] - upper[0]) * (goal - upper[1]) / (lower[1] - upper[1])


def _loosen(
    targets: tuple[float, ...], is_locked: tuple[bool, ...], factor: float
) -> tuple[float, ...]:
    """Return the targets, with those that are not locked multiplied by a factor."""
    return tuple(
        target if locked else target * factor
        for target, locked in zip(targets, is_locked, strict=True)
    )


def _fitted_request(
    request: Request, targets: tuple[float, ...], shaped_plan: Plan, budget: Budget, factor: float
) -> FittedTargets:
    """Return a request with targets and budget, and its plan, without a new strategy search."""
    options = remove_targets(request.options) | {"objective": "max", "targets": list(targets)}
    changed = replace(request, budget=budget, options=options)
    return FittedTargets(request=changed, plan=at_budget(shaped_plan, budget), factor=factor)


def releases_within(total: Budget, each: Budget) -> int | None:
    """Return how many releases at one budget a total budget covers; None if not comparable.

    >>> releases_within(Budget.zcdp(1.0), Budget(pcost=0.6))
    3
    >>> releases_within(Budget.pure(1.0), Budget.zcdp(1.0)) is None
    True
    """
    if (total.rows_per_person, total.neighbours) != (each.rows_per_person, each.neighbours):
        return None
    if total.pure_epsilon is not None and each.pure_epsilon is not None:
        return int(Fraction(total.pure_epsilon) // Fraction(each.pure_epsilon))
    return (
        None
        if total.pure_epsilon is not None
        else int(Fraction(total.pcost) // Fraction(each.pcost))
    )


def round_up(value: float) -> float:
    """Return a number rounded up to four significant digits.

    Initial totals use it, so that a total displayed in mu or epsilon still covers its budget.

    >>> round_up(0.5), round_up(1.0), round_up(3.14159), round_up(0.00123456)
    (0.5, 1.0, 3.142, 0.001235)
    """
    digits = 3 - math.floor(math.log10(value))
    rounded = round(value, digits)
    return rounded if rounded >= value else round(value + 0.5 * 10.0**-digits, digits)
