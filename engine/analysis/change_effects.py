"""Effects of the changes in `what_if.CHANGES` on the error of one group and of the other groups."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from engine._format import format_number, pluralize
from engine.analysis.ad_hoc_queries import table_names
from engine.analysis.error_targets import options_after_change, remove_targets
from engine.analysis.variance_breakdown import errors_by_group
from engine.analysis.what_if import (
    CHANGES,
    SMALLEST_CHANGE,
    Change,
    ChangedRequest,
    Request,
    merge_obstacle,
    most_increased,
)
from engine.errors import LimitExceeded, NotApplicable, PlanError, WorkloadError
from engine.mechanisms import at_budget, plan
from engine.plans import Plan
from engine.progress import Progress, progress_reporter

MAX_MERGED_ATTRIBUTES = 3  # attributes of a group whose bins are merged


@dataclass(frozen=True, kw_only=True)
class Effect:
    """Effect of a change that lowers the error of one group.

    Attributes
    ----------
    name : name of the `Change`.
    attribute : attribute whose bins are merged; empty for all other changes.
    before, after : RMSE of the group, in counts.
    rise : largest relative increase of the RMSE of another group; 0 if none increases.
    risen : name of the group with this increase, as in `table_names`; empty if none increases.
    removed : number of groups that the change removes.
    """

    name: str
    attribute: str
    before: float
    after: float
    rise: float = 0.0
    risen: str = ""
    removed: int = 0

    @property
    def text(self) -> str:
        """Errors before and after the change, and the effect of the change on other groups.

        >>> Effect(name="weight", attribute="", before=30.0, after=20.0, rise=0.1, risen="age").text
        '30.00 → 20.00 (−33%); age +10%'
        """
        change = self.after / self.before - 1.0
        other = f"; {self.risen} +{_percent(self.rise)}" if self.risen else ""
        if self.removed:
            other += f"; removes {pluralize(self.removed, 'table')}"
        before, after = map(format_number, (self.before, self.after))
        return f"{before} → {after} (−{_percent(-change)}){other}"


def _percent(share: float) -> str:
    """Return a share as a percentage, with one decimal below 1%."""
    return f"{share:.1%}" if share < 0.01 else f"{share:.0%}"


def helpful_changes(
    request: Request, group: int, progress: Progress | None = None
) -> tuple[Effect, ...]:
    """Return the changes of a request that lower the error of a group.

    A change is returned if it lowers the RMSE of the group and does not raise the largest error of
    the group.  Changes that do not apply, remove the group or cannot be planned are left out.

    >>> from engine import Attribute, Budget, Schema, Workload
    >>> schema = Schema([Attribute.of_size("a", 4), Attribute.of_size("b", 4)])
    >>> request = Request(workload=Workload.all_ways(schema, (1, 2)), budget=Budget(pcost=1.0))
    >>> [effect.name for effect in helpful_changes(request, 0)]
    ['weight', 'coarser', 'drop', 'budget', 'tuned']
    """
    report = progress_reporter(progress, "The comparison of changes was cancelled.")
    before = _plan(request)
    candidates = list(changed_requests(request, group))
    effects = []
    for number, (change, attribute, changed_request) in enumerate(candidates, 1):
        report(number / (1 + len(candidates)), "Comparing changes")
        changed = changed_request.request
        try:
            # A plan at another budget has the same measurements, with rescaled noise.
            after = (
                at_budget(before, changed.budget)
                if change.name == "budget"
                else _plan(_with_fitting_targets(changed, request))
            )
        except (PlanError, LimitExceeded):
            continue
        effect = _effect(change.name, attribute, before, after, group, changed_request)
        if effect is not None:
            effects.append(effect)
    return tuple(effects)


def _plan(request: Request) -> Plan:
    return plan(request.workload, request.budget, request.mechanism, **request.options)


def _with_fitting_targets(changed: Request, request: Request) -> Request:
    """Return a changed request whose error targets fit its groups.

    If the targets are one per group, and some group has no target in ``request``, the result has no
    `TARGET_OPTIONS`.
    """
    options = options_after_change(
        changed.options, request.workload.groups, changed.workload.groups
    )
    return replace(changed, options=remove_targets(changed.options) if options is None else options)


def changed_requests(request: Request, group: int) -> Iterator[tuple[Change, str, ChangedRequest]]:
    """Yield (change, attribute, changed request) for the changes that apply and retain the group.

    At most `MAX_MERGED_ATTRIBUTES` attributes are tried for merging bins; the attribute is empty
    for all other changes.
    """
    names = request.workload.groups[group].attributes
    schema = request.workload.schema
    mergeable = [name for name in names if not merge_obstacle(schema[name])]
    for change in CHANGES:
        attributes = mergeable[:MAX_MERGED_ATTRIBUTES] if change.name == "coarser" else [""]
        for attribute in attributes:
            try:
                changed_request = change.apply(request, group, attribute)
            except (NotApplicable, WorkloadError):
                continue
            if changed_request.group is not None:
                yield change, attribute, changed_request


def _effect(
    name: str,
    attribute: str,
    before: Plan,
    after: Plan,
    group: int,
    changed_request: ChangedRequest,
) -> Effect | None:
    """Return the effect of a change on a group.

    The result is None if the change removes the group, does not lower the RMSE of the group, or
    raises its largest error.
    """
    errors_before, errors_after = errors_by_group(before), errors_by_group(after)
    new_index = changed_request.group  # index of the group after the change
    if new_index is None:
        return None
    rmse_before, rmse_after = errors_before["rmse"][group], errors_after["rmse"][new_index]
    max_before, max_after = errors_before["max_std"][group], errors_after["max_std"][new_index]
    is_lower = rmse_after < rmse_before * (1.0 - SMALLEST_CHANGE)
    if not is_lower or max_after > max_before * (1.0 + SMALLEST_CHANGE):
        return None
    other_group, rise, risen = most_increased(before, after, changed_request), 0.0, ""
    if other_group is not None:
        error_before = errors_before["rmse"][changed_request.numbers[other_group]]
        rise = float(errors_after["rmse"][other_group] / error_before) - 1.0
        risen = table_names(after.workload)[other_group]
    return Effect(
        name=name,
        attribute=attribute,
        before=float(rmse_before),
        after=float(rmse_after),
        rise=rise,
        risen=risen,
        removed=len(errors_before) - len(errors_after),
    )
