"""From target errors to budgets and back.

Is a plan exact enough for its purpose: from a wanted error to a budget and back, and what any mechanism could reach.

    share_within(plan, tolerance)            the share of the queries whose standard error is within a tolerance
    tolerance_for(plan, share)               the smallest tolerance that this share of the queries meets
    budget_for(workload, targets, share)     the smallest budget at which a share of the queries meets its target
    budget_for_error(plan, targets, share)   the same, with the mechanism of a plan that is there
    budget_for_query(plan, ..., error)       the same for one query

Variances are nearly in proportion to 1 / pcost: what a release adds for rounding to its grids is not.  So a budget is
never computed from a plan at another one; the plan is made at the budget, which takes no search, and looked at.

Targets for single groups, some of them locked: the budget that keeps all, or what gives way at a budget.

smallest budget     every group keeps its target at the smallest budget, with noise shaped for that
present budget      locked groups keep their targets; the targets of the others are multiplied by one factor, the
                    smallest at which the budget suffices, below 1 where there is budget to spare

What a total budget pays for, before it is declared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from engine._format import amount, how_many
from engine._validation import instance
from engine.analysis.ad_hoc_queries import certificate_text
from engine.analysis.error_distribution import spread, spread_of_ratios
from engine.analysis.variance_breakdown import errors_by_group
from engine.analysis.what_if import Request
from engine.bounds.lower_bounds import best_bound
from engine.errors import LimitExceeded, PlanError
from engine.mechanisms import at_budget, mechanism_class, plan
from engine.plans import Plan
from engine.plans.objectives import check_targets
from engine.privacy import REPLACE_ONE, Budget
from engine.progress import Progress, told
from engine.release import quantile
from engine.workload import Group, Workload

if TYPE_CHECKING:
    import pandas as pd


FITS = ("scale", "shape")
LAWS = ("gaussian", "laplace")
GUARD = 1.0 + 1e-9  # two ways to add up a variance differ by less
SURE = 3.0  # standard errors that a share from a sample is kept from what is promised
PRECISION = 1e-8  # of a budget; the noise is rounded to whole steps of 2^-30, so that a finer one would mean nothing
MAX_BUDGET_STEPS = 100  # a search takes three or four
BIASED = "Methods that allow bias can go below that where counts are smaller than the noise."


def share_within(made: Plan, tolerance: float | Sequence[float]) -> float:
    """Return the share of all queries whose standard error is at most a tolerance, from 0 to 1.

    Every query is counted, up to four million different variances; above that an even sample, as `spread` says.  A
    query that cannot be answered is within no tolerance.

    Parameters
    ----------
    tolerance : standard error in counts, above 0: one number, or one a group, shape (groups,).

    Raises
    ------
    PlanError : a tolerance that is no number above 0, or not one a group.

    >>> from engine.workload import Attribute, Schema
    >>> workload = Workload(Schema([Attribute.of_size("age", 4)])).add("age").add("age", "total", weight=0.0)
    >>> made = plan(workload, Budget(pcost=1.0))
    >>> share_within(made, 1.5), share_within(made, [1.5, 3.0])
    (0.8, 1.0)
    """
    instance("plan", made, Plan, give="a Plan, as plan() makes it", error=PlanError)
    given = _checked(made.workload, tolerance, "tolerance")
    return spread(made).within(given) if isinstance(given, float) else spread_of_ratios(made, given).within(1.0)


def tolerance_for(made: Plan, share: float = 1.0) -> float:
    """Return the smallest standard error, in counts, that at least this share of all queries is within.

    Counts as `share_within` does; where that is a sample, with a margin of three standard errors of the share.  For a
    share of 1 every query counts, always.  Infinite when too many queries of weight zero are not answerable.

    Raises
    ------
    PlanError : a share that is not above 0 and at most 1.

    >>> from engine.workload import Attribute, Schema
    >>> made = plan(Workload(Schema([Attribute.of_size("age", 4)])).add("age"), Budget(pcost=1.0))
    >>> round(tolerance_for(made, 0.5), 6), share_within(made, 0.99)
    (1.0, 0.0)
    """
    instance("plan", made, Plan, give="a Plan, as plan() makes it", error=PlanError)
    return spread(made).quantile(_checked_share(share), SURE)


def budget_for(
    workload: Workload,
    targets: float | Sequence[float],
    share: float = 1.0,
    mechanism: str = "querysmasher",
    fit: str = "scale",
    law: str | None = None,
    **options: Any,
) -> Budget:
    """Return the smallest budget at which a share of all queries has a standard error within its target.

    Parameters
    ----------
    targets : largest standard error that is fine, in counts: one number, or one a group, shape (groups,).
    share : of the queries, above 0 and at most 1.
    fit : "scale", noise in the proportions of ``plan(workload, budget, mechanism, **options)``; "shape", proportions
        made for the targets, as ``objective="max", targets=targets`` does.  A shape needs less where ``share`` is 1.
    law : "gaussian", or "laplace" for a budget of pure epsilon; left out, the first that the mechanism draws.
    options : of the mechanism, as for `plan`.

    Guarantee: ``plan(workload, budget_for(...), mechanism, **options)``, with ``objective="max", targets=targets`` for
    a shape, keeps the targets for the share, as `share_within` counts it; at a pcost smaller by a relative 1e-7 it does
    not.

    Raises
    ------
    PlanError : targets or a share that are none, or targets that no budget meets, because queries of weight zero are
        not answerable, or that every budget meets, because the queries have no noise.
    NotApplicable : the mechanism does not draw this noise.

    >>> from engine.workload import Attribute, Schema
    >>> workload = Workload(Schema([Attribute.of_size("age", 4)])).add("age")
    >>> round(budget_for(workload, 0.5).pcost, 4), round(budget_for(workload, 100.0).pcost, 8)
    (4.0, 0.0001)
    """
    if fit not in FITS:
        raise PlanError(f"fit was {fit!r}. Choose one of {', '.join(FITS)}.")
    if law is not None and law not in LAWS:
        raise PlanError(f"law was {law!r}. Choose one of {', '.join(LAWS)}, or leave it out.")
    _checked_share(share), _checked(workload, targets, "targets")
    if fit == "shape":
        taken = [name for name in ("objective", "power", "targets") if name in options]
        if taken:
            raise PlanError(f"A shape has its own objective. Leave out {', '.join(taken)}, or take fit='scale'.")
        options = options | {"objective": "max", "targets": check_targets(targets)}
    drawn = mechanism_class(mechanism).laws[0] if law is None else law
    return budget_for_error(plan(workload, _budget(drawn, 1.0), mechanism, **options), targets, share)


def budget_for_error(
    made: Plan, targets: float | Sequence[float], share: float = 1.0, *, nearly: bool = False
) -> Budget:
    """Return `budget_for` the request of a plan, whatever its own budget; of the same kind, and without searching.

    ``nearly`` takes variances as exactly in proportion to 1 / pcost: a look at the plan that is there, which promises
    nothing, in place of plans at several budgets.

    >>> from engine.workload import Attribute, Schema
    >>> workload = Workload(Schema([Attribute.of_size("age", 4)])).add("age")
    >>> budget_for_error(plan(workload, Budget(pcost=7.0)), 0.5) == budget_for(workload, 0.5)
    True
    """
    share, given = _checked_share(share), _checked(made.workload, targets, "targets")

    def ratio(found: Plan) -> float:
        if isinstance(given, float):  # what is kept of a plan that people look at serves every target
            seen, target = spread(found) if found is made else spread_of_ratios(found, (1.0,) * several), given
        else:
            seen, target = spread_of_ratios(found, given), 1.0
        reached = seen.quantile(share, SURE) / target
        if math.isfinite(reached):
            return reached
        raise PlanError(
            f"No budget meets the targets: only {down(seen.within(math.inf))} of the queries can be answered at all. "
            "The others have weight zero and are not covered by those. Give them a weight, leave them out, or ask for "
            "a smaller share."
        )

    several = len(made.workload.groups)
    return smallest_budget(made, ratio, nearly=nearly)


def budget_for_query(
    made: Plan, attributes: Sequence[str], query_tensor: npt.ArrayLike, error: float, *, nearly: bool = False
) -> Budget:
    """Return the smallest budget at which one query of one's own has a standard error of at most ``error`` counts.

    ``query_tensor`` has the shape of the marginal table on the attributes, in the order given.  Guarantee and errors
    are those of `budget_for`, or of `budget_for_error` for ``nearly``; NotAnswerable when the strategy says nothing
    about a piece of the query.

    >>> from engine.workload import Attribute, Schema
    >>> made = plan(Workload(Schema([Attribute.of_size("age", 4)])).add("age"), Budget(pcost=1.0))
    >>> round(budget_for_query(made, ["age"], [1, 1, 0, 0], 2.0).pcost, 6)
    0.5
    """
    target = _checked(made.workload, error, "error")
    if not isinstance(target, float):
        raise PlanError("error was several numbers for one query. Give one, in counts and above 0.")

    def ratio(found: Plan) -> float:
        return math.sqrt(found.variance_of(attributes, query_tensor)) / target

    return smallest_budget(made, ratio, nearly=nearly)


def smallest_budget(made: Plan, ratio: Callable[[Plan], float], *, nearly: bool = False) -> Budget:
    """Return the smallest budget, up to `PRECISION`, at which a ratio of standard error to target is at most 1.

    ``nearly`` scales the ratio of the plan that is there, which makes no other plan.

    The plan is made at every budget that is tried.  Each try aims beside where the ratio, a power of pcost between the
    last two tries, is 1: above when the last try fell short and below when it did not, until the two sides meet.
    """
    low, high, pcost, slope = 0.0, math.inf, 1.0, -0.5
    last: tuple[float, float] | None = None
    for _ in range(MAX_BUDGET_STEPS):
        found = ratio(made if nearly else at_budget(made, made.budget.at(pcost))) * GUARD
        if found == 0.0:
            raise PlanError("These queries have no noise at any budget, so every budget meets the targets.")
        if nearly:
            return made.budget.at(made.budget.pcost * found**2)
        low, high = (low, pcost) if found <= 1.0 else (pcost, high)
        if high <= low * (1.0 + PRECISION):
            return made.budget.at(high)
        if last is not None and abs(math.log(pcost / last[0])) > 1e-3:  # closer, the rounding of noise is all there is
            slope = min(max(math.log(found / last[1]) / math.log(pcost / last[0]), -1.0), -0.25)
        last = pcost, found
        aim = PRECISION / 3.0 if found > 1.0 else -PRECISION / 3.0
        pcost *= found ** (-1.0 / slope) * (1.0 + aim)
        if not low < pcost < high:
            pcost = math.sqrt(low * high)
    raise PlanError("The noise of these targets is finer than its grid. Lower max_records, or ask for less accuracy.")


def _budget(law: str, pcost: float) -> Budget:
    return Budget(pcost=pcost) if law == "gaussian" else Budget.pure(math.sqrt(pcost))


def _checked_share(share: object) -> float:
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 < share <= 1:
        raise PlanError(f"share was {share!r}. Give a number above 0 and at most 1, such as 0.95.")
    return float(share)


def _checked(workload: Workload, given: object, name: str) -> float | tuple[float, ...]:
    """Return standard errors in counts: one number for all groups, or one for each."""
    try:
        values = check_targets(given)
    except PlanError as error:
        raise PlanError(str(error).replace("targets was", f"{name} was")) from None
    if isinstance(values, tuple) and len(values) != len(workload.groups):
        raise PlanError(
            f"{name} has {len(values)} numbers for {len(workload.groups)} groups. Give one a group, or one for all."
        )
    return values


def error_for(made: Plan, half: float, confidence: float = 0.95) -> float:
    """Return the standard error, in counts, whose interval reaches ``half`` counts to each side."""
    return half / quantile(confidence, made.budget.law)


def two_digits(error: float, made: Plan) -> float:
    """Return an error to start a search from: of two digits, and that of a single count where it is not finite.

    >>> from engine.workload import Attribute, Schema
    >>> made = plan(Workload(Schema([Attribute.of_size("age", 4)])).add("age", "marginal"), Budget(pcost=0.25))
    >>> two_digits(12.345, made), two_digits(math.inf, made)
    (12.0, 2.0)
    """
    return max(0.001, float(f"{error if math.isfinite(error) else 1.0 / made.budget.mu:.2g}"))


def within_text(made: Plan, error: float) -> str:
    """Return the share of the queries within a standard error in words, rounded down."""
    asked = made.workload.queries
    return (
        f"{down(share_within(made, error))} of {how_many(asked, 'query', 'queries')} {'has' if asked == 1 else 'have'} "
        f"a standard error of {amount(error)} counts or less."
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
        if plan.budget.neighbours == REPLACE_ONE or plan.schema.invariants:
            return 0.0  # what only the number of records tells may then be exact, and so may public tables
        return math.sqrt(self.square / plan.budget.row_pcost / plan.workload.queries)


def mechanism_bound(workload: Workload, law: str = "gaussian") -> MechanismBound:
    """Return a lower bound for every matrix mechanism on a workload, whatever it measures.

    Raises
    ------
    LimitExceeded : an attribute has too many cells to search a bound in short time.
    """
    square, how = best_bound(workload, law)
    return MechanismBound(square=square, how=how)


def claim_text(plan: Plan) -> str:
    """Return the certificate of a plan in plain words: against all matrix mechanisms first, then against its class."""
    own = certificate_text(plan)
    try:
        return f"{bound_text(plan, mechanism_bound(plan.workload, plan.budget.law))} {own}"
    except LimitExceeded as error:
        return f"{own} {error}"


def above_best(plan: Plan, bound: MechanismBound) -> str:
    """Return how far a plan is at most above the best of all matrix mechanisms, as a percentage rounded up.

    Empty where no bound above 0 is known.
    """
    least = bound.rmse(plan)
    if least <= 0.0:
        return ""
    return f"{math.ceil(1000.0 * max(plan.weighted_rmse / least - 1.0, 0.0) - 1e-9) / 10.0:.1f}%"


def bound_text(plan: Plan, bound: MechanismBound) -> str:
    """Return in words how far a plan can be from the best of all matrix mechanisms."""
    least, above = bound.rmse(plan), above_best(plan, bound)
    if not above:
        return "No bound above 0 was found for all matrix mechanisms together."
    return (
        f"This plan is at most {above} above what any matrix mechanism can reach, whatever it measures: none has "
        f"a weighted RMSE below {least:.5g} counts on this workload at this budget. {BIASED}"
    )


CLOSE = 0.01  # of the budget may stay unused
LOOSEST = 1e4  # times a target, from which on a group that is not locked has no say
MAX_TARGET_STEPS = 20
OWN = ("objective", "power", "targets", "keep")  # options that targets replace


@dataclass(frozen=True, kw_only=True, eq=False)
class Fitted:
    """A request whose noise is shaped for targets, its plan, and what the targets that are not locked came to.

    Attributes
    ----------
    request : with the objective "max", the targets, and the budget.
    plan : its plan; every query of a positive weight has a standard error within the target of its group.
    factor : what the targets that are not locked were multiplied with.
    """

    request: Request
    plan: Plan
    factor: float


def fit_targets(
    request: Request,
    targets: Sequence[float],
    locked: Sequence[bool] | None = None,
    progress: Progress | None = None,
) -> Fitted:
    """Return the smallest budget for targets, or, where some may give way, what keeps the locked ones at the budget.

    Parameters
    ----------
    targets : largest standard error that is fine, in counts, shape (groups,).
    locked : whether a group keeps its target at the budget of the request, shape (groups,); left out, all groups keep
        theirs, at the smallest budget that suffices, which protects the same persons.

    Raises
    ------
    PlanError : targets that are none, that no budget meets, or of which the locked ones alone need a larger budget.

    >>> from engine.workload import Attribute, Schema, Workload
    >>> from engine.privacy.budget import Budget
    >>> asked = Workload(Schema([Attribute.of_size(name, 3) for name in "ab"])).add("a").add("b")
    >>> given = Request(workload=asked, budget=Budget(pcost=1.0))
    >>> round(fit_targets(given, [1.0, 1.0]).request.budget.pcost, 4)
    1.6285
    >>> round(fit_targets(given, [1.5, 0.5], [True, False]).factor, 1)
    2.3
    """
    given = check_targets(list(targets))
    assert isinstance(given, tuple)
    if len(given) != len(request.workload.groups):
        raise PlanError(f"There are {len(given)} targets for {len(request.workload.groups)} groups. Give one a group.")
    tell = told(progress, "Solving the targets was cancelled.")
    tell(0.0, "Solving for all targets")
    made, needed = _needed(request, given)
    if locked is None:
        return _fitted(request, given, made, needed, 1.0)
    kept = tuple(bool(one) for one in locked)
    if len(kept) != len(given):
        raise PlanError(f"There are {len(kept)} locks for {len(given)} targets. Give one a target.")
    spent, factor = request.budget.pcost, 1.0
    few, enough = (-math.inf, 0.0), (math.inf, 0.0)  # logarithms of factors too small and large enough, and of needs
    for step in range(MAX_TARGET_STEPS):
        need = math.log(needed.pcost / spent)
        if need <= 0.0 and (need >= -CLOSE or all(kept)):
            return _fitted(request, _loosened(given, kept, factor), made, request.budget, factor)
        if need > 0.0 and (all(kept) or factor >= LOOSEST):
            raise PlanError(
                f"The locked targets alone need pcost {amount(needed.pcost)}, and the budget is {amount(spent)}. "
                "Unlock one, loosen it, or let the budget be solved for."
            )
        here = math.log(factor), need
        few, enough = (here, enough) if need > 0.0 else (few, here)
        factor = min(math.exp(_next(few, enough, here, step)), LOOSEST)
        tell((step + 1.0) / MAX_TARGET_STEPS, "Loosening what is not locked")
        made, needed = _needed(request, _loosened(given, kept, factor))
    raise PlanError("These locks leave the other groups no target that the budget suffices for. Unlock one.")


def reached(made: Plan, rows: Mapping[str, Sequence[int]], targets: Sequence[float]) -> pd.DataFrame:
    """Return the largest standard error of sets of groups beside their targets, in counts.

    ``rows`` are numbers of groups by name; ``targets`` one a group, shape (groups,).
    """
    import pandas as pd

    errors = errors_by_group(made)["max_std"].to_numpy()
    found = [(name, min(targets[i] for i in those), float(errors[list(those)].max())) for name, those in rows.items()]
    return pd.DataFrame(found, columns=["groups", "target", "largest standard error"])


def largest_errors(made: Plan) -> list[float]:
    """Return the largest standard error of every group, in counts."""
    return [float(error) for error in errors_by_group(made)["max_std"]]


def targets_after(
    options: Mapping[str, Any], before: Sequence[Group], after: Sequence[Group]
) -> Mapping[str, Any] | None:
    """Return the options of a request whose groups have changed, with the target of every group that there was.

    None where a group is new: nobody gave it a target, and the noise is no longer shaped for any.
    """
    targets = options.get("targets")
    if not isinstance(targets, (list, tuple)) or len(targets) != len(before):
        return options
    known = {(group.attributes, group.key): target for group, target in zip(before, targets, strict=True)}
    kept = [known.get((group.attributes, group.key)) for group in after]
    if after and None not in kept:
        return dict(options) | {"targets": kept}
    return None


def without_targets(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options that shape the noise for no targets."""
    return {name: value for name, value in options.items() if name not in OWN}


def _needed(request: Request, targets: tuple[float, ...]) -> tuple[Plan, Budget]:
    """The plan shaped for targets, at the budget of the request, and the smallest budget at which it keeps them."""
    options = without_targets(request.options) | {"objective": "max", "targets": targets}
    made = plan(request.workload, request.budget, request.mechanism, **options)
    return made, budget_for_error(made, targets)


def _next(few: tuple[float, float], enough: tuple[float, float], here: tuple[float, float], step: int) -> float:
    """The logarithm of the factor to try next: where the line between both sides leaves a little unused."""
    if math.isinf(few[0]) or math.isinf(enough[0]):
        # without locks the budget goes with the square of the factor; with them it answers less, so go further
        return here[0] + (here[1] + math.copysign(CLOSE, here[1])) / 2.0 * 2.0**step
    if step % 4 == 3:
        return (few[0] + enough[0]) / 2.0
    return enough[0] + (few[0] - enough[0]) * (-CLOSE / 2.0 - enough[1]) / (few[1] - enough[1])


def _loosened(targets: tuple[float, ...], kept: tuple[bool, ...], factor: float) -> tuple[float, ...]:
    return tuple(target if keep else target * factor for target, keep in zip(targets, kept, strict=True))


def _fitted(request: Request, targets: tuple[float, ...], made: Plan, budget: Budget, factor: float) -> Fitted:
    options = without_targets(request.options) | {"objective": "max", "targets": list(targets)}
    changed = replace(request, budget=budget, options=options)
    return Fitted(request=changed, plan=at_budget(made, budget), factor=factor)


def releases_within(total: Budget, each: Budget) -> int | None:
    """Return how many releases at one budget a total pays for; None when the two count different things.

    >>> releases_within(Budget.zcdp(1.0), Budget(pcost=0.6)), releases_within(Budget.pure(1.0), Budget.zcdp(1.0))
    (3, None)
    """
    if (total.rows_per_person, total.neighbours) != (each.rows_per_person, each.neighbours):
        return None
    if total.pure_epsilon is not None and each.pure_epsilon is not None:
        return int(Fraction(total.pure_epsilon) // Fraction(each.pure_epsilon))
    return None if total.pure_epsilon is not None else int(Fraction(total.pcost) // Fraction(each.pcost))


def at_least(value: float) -> float:
    """Return a short number that is not below another: with four digits where that is short enough, rounded up.

    Totals begin with it, so that a total said in mu or epsilon still pays for the budget it was made from.

    >>> at_least(0.5), at_least(1.0), at_least(3.14159), at_least(0.00123456)
    (0.5, 1.0, 3.142, 0.001235)
    """
    digits = 3 - math.floor(math.log10(value))
    short = round(value, digits)
    return short if short >= value else round(value + 0.5 * 10.0**-digits, digits)
