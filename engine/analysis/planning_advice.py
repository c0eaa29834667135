"""Groups that make planning expensive, and cheaper replacements.

Product groups are optimized one attribute at a time.  A joint family such as 'affine' is cheap on
its own, but becomes expensive if another group has different queries on the same attributes: then
all cells of these attributes are optimized jointly, provided that they are few.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from engine.analysis.what_if import Change, ChangedRequest, Request
from engine.errors import NotApplicable
from engine.mechanisms import forecast
from engine.mechanisms.base import Forecast
from engine.workload import Circular, Group, Marginal, Range, Suffix, Workload
from engine.workload.families import Prefix
from engine.workload.workload import make_group

MAX_COSTLY_GROUPS = 5
# Families whose answers determine every query on their attribute.
COMPLETE_FAMILIES = (Marginal, Prefix, Suffix, Range, Circular)


def forecast_added(request: Request, groups: Sequence[Group]) -> Forecast:
    """Return the planning forecast of new groups and of the groups that share attributes with them.

    The new groups do not change the residual spaces of the other groups.
    """
    names = {name for group in groups for name in group.attributes}
    overlapping = (g for g in request.workload.groups if names.intersection(g.attributes))
    return forecast(Workload(request.workload.schema, (*overlapping, *groups)), request.mechanism, **request.options)


def costly_groups(request: Request, *, seconds: float, memory: float) -> tuple[int, ...]:
    """Return at most five group numbers whose removal brings planning within its limits.

    Joint groups are removed before the product groups on the same attributes, because product
    groups also serve other queries.

    Parameters
    ----------
    seconds, memory : limits on the planning time in seconds and the memory in bytes.

    >>> from engine import Attribute, Budget, Schema
    >>> schema = Schema([Attribute.of_size("age", 34), Attribute.of_size("hours", 30)])
    >>> workload = Workload(schema).add(("age", "hours"), "affine").add(("age", "hours"), "prefix")
    >>> request = Request(workload=workload.add("age", "range"), budget=Budget(pcost=1.0))
    >>> dear_groups(request, seconds=60.0, memory=1.5e8)
    (0,)
    """
    groups = request.workload.groups
    remaining = sorted(range(len(groups)), key=lambda i: any(len(part.axes) > 1 for part in groups[i].parts))
    removed: list[int] = []
    options = {name: value for name, value in request.options.items() if name not in ("centers", "keep")}

    def fits(numbers: Sequence[int]) -> bool:
        workload = Workload(request.workload.schema, tuple(groups[i] for i in numbers))
        estimate = forecast(workload, request.mechanism, **options)
        return estimate.seconds <= seconds and estimate.memory <= memory

    # Tuning can cost more for a subset of the groups than for all of them, so the forecast includes
    # tuning only if tuning is what exceeds the limits.
    options = dict(request.options) if fits(remaining) else options
    while remaining and len(removed) < MAX_COSTLY_GROUPS and not fits(remaining):
        feasible, infeasible = 0, len(remaining)
        # The forecast is monotone in the groups, so bisection finds the first infeasible group.
        while infeasible - feasible > 1:
            middle = (feasible + infeasible) // 2
            feasible, infeasible = (middle, infeasible) if fits(remaining[:middle]) else (feasible, middle)
        removed.append(remaining.pop(infeasible - 1))
    return tuple(removed)


def remove(request: Request, group: int, attribute: str = "") -> ChangedRequest:
    """Remove the group from the workload."""
    groups = request.workload.groups
    if len(groups) == 1:
        raise NotApplicable("It is the only group, and a workload needs at least one. Add another group first.")
    workload = Workload(request.workload.schema, (*groups[:group], *groups[group + 1 :]))
    text = f"Without the group on {_name(groups[group])}."
    return ChangedRequest(request=replace(request, workload=workload), group=None, text=text)


def set_weight_zero(request: Request, group: int, attribute: str = "") -> ChangedRequest:
    """Set the weight of the group to 0, so that other measurements answer it."""
    groups, target = request.workload.groups, request.workload.groups[group]
    if target.weight == 0.0:
        raise NotApplicable("The group has weight 0, so it is answered from other measurements already.")
    changed = (*groups[:group], replace(target, weight=0.0), *groups[group + 1 :])
    text = f"{_name(target)} is answered from what is measured for other groups (weight 0)"
    if not any(_covers(other, target) for i, other in enumerate(groups) if i != group):
        changed = (*changed, make_group(request.workload.schema, target.attributes, "marginal"))
        text += ", its marginal table among them"
    workload = Workload(request.workload.schema, changed)
    return ChangedRequest(request=replace(request, workload=workload), group=group, text=f"{text}.")


def replace_by_marginal(request: Request, group: int, attribute: str = "") -> ChangedRequest:
    """Replace the group by the marginal on its attributes, from which all its queries follow."""
    groups, target = request.workload.groups, request.workload.groups[group]
    if all(isinstance(part.family, Marginal) for part in target.parts):
        raise NotApplicable("The group is a marginal table already.")
    marginal = make_group(request.workload.schema, target.attributes, "marginal", target.weight)
    workload = Workload(request.workload.schema, (*groups[:group], marginal, *groups[group + 1 :]))
    text = f"The marginal table of {_name(target)} instead of its '{target.family_text}' queries."
    return ChangedRequest(request=replace(request, workload=workload), group=group, text=text)


REMEDIES: tuple[Change, ...] = (
    Change(name="remove", label=lambda _: "Remove it", apply=remove),
    Change(name="approximate", label=lambda _: "Approximate it", apply=set_weight_zero),
    Change(name="marginal", label=lambda _: "Its marginal table instead", apply=replace_by_marginal),
)


def _covers(other: Group, group: Group) -> bool:
    """Whether the measurements of one group determine every query on the attributes of another."""
    is_complete = all(len(part.axes) == 1 and isinstance(part.family, COMPLETE_FAMILIES) for part in other.parts)
    return (
        is_complete
        and other.weight > 0.0
        and other.query_weights is None
        and set(group.attributes) <= {*other.attributes}
    )


def _name(group: Group) -> str:
    return " × ".join(group.attributes) or "no attribute"
