"""Error targets: budgets that meet the targets, and shares of queries within a tolerance.

Four groups of functions:

`share_within`, `tolerance_for`
    The share of the queries whose standard error is at most a tolerance; and the tolerance for a
    given share.
`budget_for`, `budget_for_error`, `budget_for_query`
    The smallest budget at which a share of the queries, or one query, meets its target.
`fit_targets`
    Plan for one target per group.  Without locked groups it finds the smallest budget at which
    every group meets its target.  With locked groups the budget is fixed: locked groups meet their
    targets, and the targets of all other groups are multiplied by the smallest common factor for
    which the budget suffices.  This factor is below 1 if the budget suffices for smaller targets.
`releases_within`
    The number of releases that a total budget covers.

Notes
-----
Variances are only nearly proportional to 1 / pcost, because answers are rounded to a grid, which
adds a constant.  Unless ``nearly`` is True, a budget is therefore verified on a plan at that
budget. This plan reuses the strategy, without a new search.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from engine._format import format_number, pluralize, shortest_text
from engine._validation import check_type
from engine.analysis.error_distribution import error_distribution, ratio_distribution
from engine.analysis.variance_breakdown import errors_by_group
from engine.analysis.what_if import Request
from engine.errors import PlanError
from engine.mechanisms import at_budget, mechanism_class, plan
from engine.plans import Plan
from engine.plans.objectives import check_targets
from engine.privacy import Budget
from engine.progress import Progress, progress_reporter
from engine.release import quantile
from engine.workload import Group, Workload

if TYPE_CHECKING:
    import pandas as pd


FITS = ("scale", "shape")
NOISE_LAWS = ("gaussian", "laplace")
ROUNDING_MARGIN = 1.0 + 1e-9  # more than the rounding error of a standard error
SHARE_MARGIN_SDS = 3.0  # safety margin of a sampled share, in standard errors of the share
# Noise is rounded to a grid of about 2^-30 times its scale, so a higher precision has no effect.
BUDGET_RELATIVE_PRECISION = 1e-8
MAX_BUDGET_STEPS = 100  # a search typically takes three or four


def share_within(plan: Plan, tolerance: float | Sequence[float]) -> float:
    """Return the share of all queries whose standard error is at most a tolerance, from 0 to 1.

    If the queries can have more than four million distinct variances, the share is estimated from a
    sample, see `error_distribution`.  A query that cannot be answered exceeds every tolerance.

    Parameters
    ----------
    tolerance : standard error in counts, above 0: one for all groups, or an array of shape
        (groups,).

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

    Queries are sampled as in `share_within`.  For a sample, ``share`` is increased by three times
    its standard error.  For a share of 1 the result is the maximum over all queries.  The result is
    infinite if the answerable queries are fewer than this share.

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
    targets : largest acceptable standard error, in counts: one for all groups, or an array of shape
        (groups,).
    share : share of the queries that must meet their targets, above 0 and at most 1.
    fit : "scale" keeps the strategy of ``plan(workload, budget, mechanism, **options)`` and changes
        the noise only; "shape" optimizes the strategy for the targets, by the options
        ``objective="max", targets=targets``, which saves budget if ``share`` is 1.
    law : noise distribution: "gaussian", or "laplace" for a budget of pure epsilon; by default the
        first one that the mechanism supports.
    options : options of the mechanism, as for `plan`.

    Raises
    ------
    PlanError : an argument is invalid; or too few queries can be answered; or the targets are below
        the rounding error of the answers; or the queries have no noise at any budget.
    NotApplicable : the mechanism does not support this noise distribution.

    Notes
    -----
    Guarantee: a plan at the returned budget, with the same mechanism and options, meets the targets
    for the share, as computed by `share_within`.  With ``fit="shape"`` this plan needs the options
    ``objective="max", targets=targets``, too.  If no queries are sampled, a plan at (1 - 1e-7)
    times the pcost does not meet the targets.

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

    The result has the noise distribution and the privacy unit of the budget of the plan.

    Parameters
    ----------
    targets : largest acceptable standard error, in counts: one for all groups, or an array of shape
        (groups,).
    share : share of the queries that must meet their targets, above 0 and at most 1.
    nearly : if True, variances are assumed to be proportional to 1 / pcost, which is faster but
        only approximately true; if False, the result is verified by plans at trial budgets.

    Raises
    ------
    PlanError : an argument is invalid; or too few queries can be answered; or `smallest_budget`
        raises it.

    >>> from engine import Attribute, Schema
    >>> workload = Workload(Schema([Attribute.of_size("age", 4)])).add("age")
    >>> budget_for_error(plan(workload, Budget(pcost=7.0)), 0.5) == budget_for(workload, 0.5)
    True
    """
    share, limits = _checked_share(share), _checked_errors(plan.workload, targets, "targets")

    def ratio(candidate: Plan) -> float:
        """Return the quantile at ``share`` of error divided by target, over all queries.

        If the quantile is infinite, PlanError is raised.
        """
        # One target for all groups divides the quantile instead of every error, because the
        # distribution of the errors of ``plan`` is cached.
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
            "No budget meets the targets: the measurements determine only"
            f" {percent_rounded_down(distribution.within(math.inf))} of the queries. The other"
            " queries have weight zero. Give them a positive weight, remove their groups, or choose a"
            " smaller share."
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
    nearly : whether variances are assumed to be proportional to 1 / pcost, see `budget_for_error`.

    Raises
    ------
    PlanError : ``error`` is not one number above 0, or `smallest_budget` raises it.
    NotAnswerable : the measurements of the plan do not determine the query.

    >>> from engine import Attribute, Schema
    >>> example = plan(Workload(Schema([Attribute.of_size("age", 4)])).add("age"), Budget(pcost=1.0))
    >>> round(budget_for_query(example, ["age"], [1, 1, 0, 0], 2.0).pcost, 6)
    0.5
    """
    target = _checked_errors(plan.workload, error, "error")
    if not isinstance(target, float):
        raise PlanError(
            "The argument error has several numbers, but there is only one query. Give one number"
            " above 0, in counts."
        )

    def ratio(candidate: Plan) -> float:
        """Return the standard error of the query divided by its target."""
        return math.sqrt(candidate.variance_of(attributes, query_tensor)) / target

    return smallest_budget(plan, ratio, nearly=nearly)


def smallest_budget(plan: Plan, ratio: Callable[[Plan], float], *, nearly: bool = False) -> Budget:
    """Return the smallest budget at which the strategy of a plan meets an error target.

    Parameters
    ----------
    ratio : function from a plan to standard error divided by target, which must be at most 1.
    nearly : whether variances are assumed to be proportional to 1 / pcost, see `budget_for_error`.

    Raises
    ------
    PlanError : the ratio is 0, because the queries have no noise; or ``nearly`` is False and the
        target needs less noise than the step to which answers are rounded.

    Notes
    -----
    With ``nearly`` the ratio is evaluated once, and the budget follows from the proportionality.
    Otherwise the search makes secant steps in log pcost inside a bracket, until the relative error
    of pcost is at most `BUDGET_RELATIVE_PRECISION`.  Every trial evaluates the ratio on a plan at
    the trial budget, and models it as a power of pcost.  The next trial is slightly beyond the
    pcost at which this power is 1, so it is probably on the other side of the solution, which makes
    the bracket small.
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
                " Choose any budget."
            )
        if nearly:
            return plan.budget.at(plan.budget.pcost * error_ratio**2)
        low, high = (low, pcost) if error_ratio <= 1.0 else (pcost, high)
        if high <= low * (1.0 + BUDGET_RELATIVE_PRECISION):
            return plan.budget.at(high)
        # The slope is computed only from trials that are far enough apart.  Otherwise the rounding
        # of the noise scales would dominate it.
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
        "No budget meets the error limits, because the error from rounding the answers to the noise"
        " grid is already larger. Give larger error limits, or a smaller max_records."
    )


def _budget(law: str, pcost: float) -> Budget:
    return Budget(pcost=pcost) if law == "gaussian" else Budget.pure(math.sqrt(pcost))


def _checked_share(share: object) -> float:
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 < share <= 1:
        raise PlanError(f"share was {share!r}. Give a number above 0 and at most 1, such as 0.95.")
    return float(share)


def _checked_errors(workload: Workload, errors: object, name: str) -> float | tuple[float, ...]:
    """Check the standard errors in an argument, and return one number or one number per group.

    ``name`` is the name of the argument in the message of a PlanError.
    """
    values = check_targets(errors, name)
    if isinstance(values, tuple) and len(values) != len(workload.groups):
        raise PlanError(
            f"The argument {name} has {len(values)} numbers, but the workload has"
            f" {len(workload.groups)} groups. Give one number per group, or one for all groups."
        )
    return values


def error_for(plan: Plan, half: float) -> float:
    """Return the standard error whose 95% interval has the half-width ``half``, both in counts."""
    return half / quantile(0.95, plan.budget.law)


def two_digits(error: float, plan: Plan) -> float:
    """Return a standard error in counts, rounded to two significant digits; at least 0.001.

    For an infinite error the result is 1 / mu of the budget, rounded.  With Gaussian noise this is
    the standard error of a single count that takes the complete budget.

    >>> from engine import Attribute, Schema
    >>> workload = Workload(Schema([Attribute.of_size("age", 4)])).add("age", "marginal")
    >>> example = plan(workload, Budget(pcost=0.25))
    >>> two_digits(12.345, example), two_digits(math.inf, example)
    (12.0, 2.0)
    """
    return max(0.001, float(f"{error if math.isfinite(error) else 1.0 / plan.budget.mu:.2g}"))


def within_text(plan: Plan, error: float) -> str:
    """Return a sentence with the share of the queries whose standard error is at most ``error``."""
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


MAX_UNUSED_SHARE = 0.01  # `fit_targets` stops if it leaves at most this share of the budget
MAX_TARGET_FACTOR = 1e4  # targets multiplied by this factor do not constrain the plan
MAX_TARGET_STEPS = 20
TARGET_OPTIONS = ("objective", "power", "targets", "keep")  # `fit_targets` sets or removes them


@dataclass(frozen=True, kw_only=True, eq=False)
class FittedTargets:
    """Result of `fit_targets`.

    Attributes
    ----------
    request : request with the resulting budget, the objective "max" and the resulting targets.
    plan : plan of this request.  The standard error of every query is at most the target of its
        group in this request.
    factor : number by which the targets of the groups without a lock were multiplied.
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
    """Plan a request for one error target per group.

    Without ``locked`` all groups meet their targets, at the smallest sufficient budget.  With
    ``locked`` the budget of the request is fixed: locked groups meet their targets, and the targets
    of all other groups are multiplied by a common factor.  The factor is so small that at most
    `MAX_UNUSED_SHARE` of the budget would remain unused.

    Parameters
    ----------
    targets : largest acceptable standard error, in counts, shape (groups,).
    locked : whether a group is locked, shape (groups,).

    Raises
    ------
    PlanError : an argument is invalid; or no budget meets the targets; or the budget does not
        suffice for the locked targets and any targets of all other groups.
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
            f"There are {len(checked_targets)} targets, but {len(request.workload.groups)} groups."
            " Give one target per group."
        )
    report = progress_reporter(progress, "Solving the targets was cancelled.")
    report(0.0, "Solving for all targets")
    fitted_plan, min_budget = _plan_and_budget(request, checked_targets)
    if locked is None:
        return _fitted_request(request, checked_targets, fitted_plan, min_budget, 1.0)
    is_locked = tuple(bool(lock) for lock in locked)
    if len(is_locked) != len(checked_targets):
        raise PlanError(
            f"There are {len(is_locked)} locks, but {len(checked_targets)} groups. Give one lock"
            " (True or False) per group."
        )
    pcost, factor = request.budget.pcost, 1.0
    # The common factor lies between two trials.  Each trial is a pair: log of the factor, and log
    # of required over available pcost.  The budget suffices for ``upper``, but not for ``lower``.
    lower, upper = (-math.inf, 0.0), (math.inf, 0.0)
    for step in range(MAX_TARGET_STEPS):
        excess = math.log(min_budget.pcost / pcost)
        # no factor changes locked targets, so the rest of the budget stays unused if all are locked
        if excess <= 0.0 and (excess >= -MAX_UNUSED_SHARE or all(is_locked)):
            return _fitted_request(
                request,
                _loosen(checked_targets, is_locked, factor),
                fitted_plan,
                request.budget,
                factor,
            )
        if excess > 0.0 and (all(is_locked) or factor >= MAX_TARGET_FACTOR):
            needed, available = format_number(min_budget.pcost), format_number(pcost)
            if needed == available:
                needed, available = shortest_text(min_budget.pcost), shortest_text(pcost)
            raise PlanError(
                f"The locked targets alone need pcost {needed}, more than the budget of {available}."
                " Unlock a target, increase a locked target, or solve without locks for the smallest"
                " budget."
            )
        current = math.log(factor), excess
        lower, upper = (current, upper) if excess > 0.0 else (lower, current)
        factor = min(math.exp(_next_log_factor(lower, upper, current, step)), MAX_TARGET_FACTOR)
        report((step + 1.0) / MAX_TARGET_STEPS, "Adjusting the targets that are not locked")
        fitted_plan, min_budget = _plan_and_budget(
            request, _loosen(checked_targets, is_locked, factor)
        )
    raise PlanError(
        "The locked targets use the complete budget, so no targets of the other groups can be met."
        " Unlock a group, or increase a locked target."
    )


def errors_against_targets(
    plan: Plan, rows: Mapping[str, Sequence[int]], targets: Sequence[float]
) -> pd.DataFrame:
    """Return a table with the smallest target and the largest standard error of sets of groups.

    Parameters
    ----------
    rows : maps the name of each set to the indices of its groups.
    targets : one per group of the plan, in counts, shape (groups,).

    Returns
    -------
    DataFrame with one row per set: groups (its name), target and largest standard error, in counts.
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
    """Return the options of a mechanism after groups of the workload were removed or reordered.

    If the options have one target per group of ``before``, the result has the targets of the groups
    ``after``.  It is None if ``after`` is empty or has a group that is not in ``before``.  Options
    without one target per group are returned unchanged.
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
    """Return the options of a mechanism without those in `TARGET_OPTIONS`."""
    return {name: value for name, value in options.items() if name not in TARGET_OPTIONS}


def _plan_and_budget(request: Request, targets: tuple[float, ...]) -> tuple[Plan, Budget]:
    """Return a plan optimized for targets, and the smallest budget at which it meets the targets.

    The plan is at the budget of the request, and minimizes the largest ratio of error to target.
    """
    options = remove_targets(request.options) | {"objective": "max", "targets": targets}
    shaped_plan = plan(request.workload, request.budget, request.mechanism, **options)
    return shaped_plan, budget_for_error(shaped_plan, targets)


def _next_log_factor(
    lower: tuple[float, float], upper: tuple[float, float], current: tuple[float, float], step: int
) -> float:
    """Return the next value to try of the logarithm of the common factor of targets.

    The steps grow until the solution is bracketed, and continue by regula falsi.  The solution is
    the factor at which the unused share of the budget is half of `MAX_UNUSED_SHARE`.

    Parameters
    ----------
    lower, upper : trials that bracket the solution; their log factors are infinite while unknown.
        A trial is the pair (log factor, log of required over available pcost).
    current : last trial.
    step : 0 after the first trial, 1 after the second trial, and so on.
    """
    if math.isinf(lower[0]) or math.isinf(upper[0]):
        # Without locked targets the required pcost is proportional to factor^-2, so the log factor
        # changes by half the excess.  With locked targets the factor changes the required pcost
        # less, so the steps double until the solution is between two trials.  Adding the tolerance
        # lets a step pass the solution.
        excess = current[1] + math.copysign(MAX_UNUSED_SHARE, current[1])
        return current[0] + excess / 2.0 * 2.0**step
    # Every fourth step is a bisection, because regula falsi may move only one end of the bracket.
    if step % 4 == 3:
        return (lower[0] + upper[0]) / 2.0
    goal = -MAX_UNUSED_SHARE / 2.0
    return upper[0] + (lower[0] - upper[0]) * (goal - upper[1]) / (lower[1] - upper[1])


def _loosen(
    targets: tuple[float, ...], is_locked: tuple[bool, ...], factor: float
) -> tuple[float, ...]:
    """Multiply the targets of all groups that are not locked by a factor; return all targets."""
    return tuple(
        target if locked else target * factor
        for target, locked in zip(targets, is_locked, strict=True)
    )


def _fitted_request(
    request: Request, targets: tuple[float, ...], shaped_plan: Plan, budget: Budget, factor: float
) -> FittedTargets:
    """Return the result of `fit_targets`, with the strategy of ``shaped_plan`` at ``budget``.

    ``shaped_plan`` is optimized for ``targets``.
    """
    options = remove_targets(request.options) | {"objective": "max", "targets": list(targets)}
    changed = replace(request, budget=budget, options=options)
    return FittedTargets(request=changed, plan=at_budget(shaped_plan, budget), factor=factor)


def releases_within(total: Budget, each: Budget) -> int | None:
    """Return how many releases at the budget ``each`` a total budget covers.

    The result is None if the two cannot be compared, because their privacy units differ, or the
    total is a pure epsilon and ``each`` is not.

    >>> releases_within(Budget.zcdp(1.0), Budget(pcost=0.6))
    3
    >>> releases_within(Budget.pure(1.0), Budget.zcdp(1.0)) is None
    True
    """
    if (total.rows_per_person, total.neighbours) != (each.rows_per_person, each.neighbours):
        return None
    if total.pure_epsilon is None:
        return int(Fraction(total.pcost) // Fraction(each.pcost))
    if each.pure_epsilon is None:
        return None
    return int(Fraction(total.pure_epsilon) // Fraction(each.pure_epsilon))


def round_up(value: float) -> float:
    """Return a positive number rounded up to four significant digits.

    >>> round_up(0.5), round_up(1.0), round_up(3.14159), round_up(0.00123456)
    (0.5, 1.0, 3.142, 0.001235)
    """
    digits = 3 - math.floor(math.log10(value))
    rounded = round(value, digits)
    return rounded if rounded >= value else round(value + 0.5 * 10.0**-digits, digits)
