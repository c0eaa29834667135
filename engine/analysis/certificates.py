"""Texts of the optimality certificate of a plan and of the bound for all matrix mechanisms."""

from __future__ import annotations

import math
from dataclasses import dataclass

from engine._format import format_number, percent_rounded_up
from engine.bounds.lower_bounds import best_bound
from engine.errors import LimitExceeded
from engine.plans import Plan
from engine.privacy import REPLACE_ONE
from engine.workload import Workload

# Maps an objective of a plan to the error that it minimizes.
MEASURES = {
    "sum": "weighted RMSE",
    "max": "largest standard error",
    "lp": "power mean of variances",
}
BIAS_NOTE = "Biased methods can be more accurate where counts are smaller than the noise."


@dataclass(frozen=True, kw_only=True)
class MechanismBound:
    """Lower bound on the error of every matrix mechanism.

    Attributes
    ----------
    square : bound on the weighted sum of squared errors at privacy cost 1, in counts^2.
    how : method that computed the bound, as text.
    """

    square: float
    how: str

    def rmse(self, plan: Plan) -> float:
        """Return the lower bound on the weighted RMSE at the budget of a plan, in counts.

        It is 0 for replace-one neighbours and for schemas with public tables (invariants), because
        the bound does not apply there.
        """
        # With replace-one neighbours or invariants, some queries can be answered without noise.
        if plan.budget.neighbours == REPLACE_ONE or plan.schema.invariants:
            return 0.0
        return math.sqrt(self.square / plan.budget.row_pcost / plan.workload.queries)


def mechanism_bound(workload: Workload, law: str = "gaussian") -> MechanismBound:
    """Return a lower bound on the error of every matrix mechanism for a workload.

    ``law`` is the distribution of the noise: "gaussian" or "laplace".

    Raises
    ------
    LimitExceeded : an attribute has too many cells to compute a bound quickly.
    """
    square, how = best_bound(workload, law)
    return MechanismBound(square=square, how=how)


def claim_text(plan: Plan) -> str:
    """Return sentences with the gaps of a plan to two lower bounds.

    The first bound is on the weighted RMSE of all matrix mechanisms.  The second bound is that of
    the plan's certificate.  If the first bound cannot be computed, the text ends with the reason.
    """
    class_text = certificate_text(plan)
    try:
        return f"{bound_text(plan, mechanism_bound(plan.workload, plan.budget.law))} {class_text}"
    except LimitExceeded as error:
        return f"{class_text} {error}"


def certificate_text(plan: Plan) -> str:
    """Return sentences with the lower bound of a plan's certificate, and the gap of the plan."""
    certificate = plan.certificate
    return (
        f"{certificate.statement} The bound is {format_number(certificate.lower_bound)} counts, "
        f"this plan has {format_number(plan.achieved)}: {gap_text(plan)} more."
    )


def short_certificate_text(plan: Plan) -> str:
    """Return one sentence with the bound of a plan's certificate, and the gap of the plan.

    Without a bound above 0, the result is that of `certificate_text`.
    """
    certificate, objective = plan.certificate, str(plan.options.get("objective", "sum"))
    if not 0.0 < certificate.lower_bound < math.inf:
        return certificate_text(plan)
    measure = MEASURES[objective]
    if objective == "max" and plan.options.get("targets") is not None:
        measure = "largest ratio of standard error to target"
    return (
        f"Lower bound on the {measure} of plans of this kind:"
        f" {format_number(certificate.lower_bound)}; this plan: {format_number(plan.achieved)},"
        f" {gap_text(plan)} more."
    )


def gap_text(plan: Plan) -> str:
    """Return the gap of a plan in percent, rounded up; "less than 0.01%" for smaller gaps."""
    gap = plan.certificate.gap
    return percent_rounded_up(gap, 2) if gap >= 1e-4 else "less than 0.01%"


def above_best(plan: Plan, bound: MechanismBound) -> str:
    """Return by how many percent, at most, a plan exceeds the best matrix mechanism, as text.

    The percentage refers to the weighted RMSE and is rounded up.  The text is empty if the lower
    bound is 0.
    """
    bound_rmse = bound.rmse(plan)
    if bound_rmse <= 0.0:
        return ""
    return percent_rounded_up(plan.weighted_rmse / bound_rmse - 1.0)


def bound_text(plan: Plan, bound: MechanismBound) -> str:
    """Return the text of `short_bound_text`, followed by a sentence on biased methods.

    If the lower bound is 0, the sentence on biased methods is left out.
    """
    text = short_bound_text(plan, bound)
    return f"{text} {BIAS_NOTE}" if above_best(plan, bound) else text


def short_bound_text(plan: Plan, bound: MechanismBound) -> str:
    """Return a sentence with the result of `above_best` and the lower bound on the weighted RMSE.

    If the lower bound is 0, the sentence states this instead.
    """
    bound_rmse, above = bound.rmse(plan), above_best(plan, bound)
    if not above:
        return "No lower bound above 0 was found for all matrix mechanisms."
    return (
        f"This plan is at most {above} above the theoretical limit for any matrix mechanism, a"
        f" weighted RMSE of {format_number(bound_rmse)} counts."
    )
