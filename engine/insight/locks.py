"""Targets for single groups, some of them locked: the budget that keeps all, or what gives way at a budget.

smallest budget     every group keeps its target at the smallest budget, with noise shaped for that
present budget      locked groups keep their targets; the targets of the others are multiplied by one factor, the
                    smallest at which the budget suffices, below 1 where there is budget to spare
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from engine.errors import PlanError
from engine.insight.breakdown import errors_by_group
from engine.insight.fitness import budget_for_error
from engine.insight.what_if import Request
from engine.mechanisms import at_budget, plan
from engine.plans import Plan, check_targets
from engine.privacy import Budget
from engine.progress import Progress, told
from engine.texts import amount
from engine.workload import Group

if TYPE_CHECKING:
    import pandas as pd

CLOSE = 0.01  # of the budget may stay unused
LOOSEST = 1e4  # times a target, from which on a group that is not locked has no say
STEPS = 20
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

    >>> from engine import Attribute, Budget, Schema, Workload
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
    for step in range(STEPS):
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
        tell((step + 1.0) / STEPS, "Loosening what is not locked")
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
