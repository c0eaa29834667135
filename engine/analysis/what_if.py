"""Changes of a planning request: `CHANGES` lower an error, `REMEDIES` shorten the planning time.

Every change is a pure function: it returns a changed request, and the request itself remains.

Notes
-----
A product group combines one query family per attribute.  It takes little time to plan, because
every attribute is optimized separately.  A joint family such as 'affine' compares two attributes.
It takes little time alone, but much time if another group has different queries on the same
attributes, because then all cells of their table are optimized together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from engine._format import cost, format_number, number, pluralize
from engine.analysis.ad_hoc_queries import table_names
from engine.analysis.variance_breakdown import errors_by_group
from engine.errors import NotApplicable, SchemaError, WorkloadError
from engine.mechanisms import forecast, mechanism_class
from engine.mechanisms.base import Forecast
from engine.plans import Plan
from engine.privacy import Budget
from engine.workload import (
    Attribute,
    Circular,
    Family,
    Group,
    Marginal,
    Range,
    Schema,
    Suffix,
    Width,
    Workload,
)
from engine.workload.calendar import UNITS
from engine.workload.families import Intervals, Prefix
from engine.workload.workload import SMALLEST_WEIGHT, make_group

if TYPE_CHECKING:
    import pandas as pd

# Smallest relative change of an error that is reported; smaller ones are rounding errors of plans.
SMALLEST_CHANGE = 5e-4


@dataclass(frozen=True, kw_only=True, eq=False)
class Request:
    """Arguments of `engine.plan`: workload, budget, mechanism and its options."""

    workload: Workload
    budget: Budget
    mechanism: str = "querysmasher"
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, eq=False)
class ChangedRequest:
    """Result of a `Change` that was applied to one group of a request.

    Attributes
    ----------
    request : request after the change.
    group : index of this group in the changed request; None if the change removed the group.
    text : sentence that describes the change.
    retained : if one of `CHANGES` removed groups, the index before the change of every group of the
        changed request; otherwise None.
    """

    request: Request
    group: int | None
    text: str
    retained: tuple[int, ...] | None = None

    @property
    def numbers(self) -> list[int]:
        """Index before the change of every group of the changed request.

        The indices are correct only for the changes in `CHANGES`.
        """
        groups = self.request.workload.groups
        return list(range(len(groups)) if self.retained is None else self.retained)


@dataclass(frozen=True, kw_only=True)
class Change:
    """One way to change a request, which the user can choose for a group.

    Attributes
    ----------
    name : identifier.
    label : function from the request to the text of the button.
    apply : function that applies the change, called as ``apply(request, group, attribute)`` with
        the index of the group.  Only `merge_bins` uses the attribute.  ``apply`` raises
        NotApplicable or WorkloadError if the change is not possible.
    """

    name: str
    label: Callable[[Request], str]
    apply: Callable[[Request, int, str], ChangedRequest]


def raise_weight(
    request: Request, group: int, attribute: str = "", factor: float = 4.0
) -> ChangedRequest:
    """Multiply the weight of a group by a factor; ``attribute`` is not used."""
    groups = request.workload.groups
    queries = groups[group]
    if queries.weight == 0.0:
        raise NotApplicable(
            "The group has weight 0, which no factor can raise. Set its weight on the page"
            " Workload."
        )
    if not any(g.weight > 0.0 for i, g in enumerate(groups) if i != group):
        raise NotApplicable(
            "No other group has a positive weight, so a larger weight has no effect. Spend a larger"
            " budget to lower the error."
        )
    if queries.weight * factor > 1.0 / SMALLEST_WEIGHT:
        raise NotApplicable(
            f"The weight {queries.weight:g} cannot be raised further. Lower the weights of the"
            " other groups."
        )
    raised = tuple(
        replace(g, weight=g.weight * factor) if i == group else g for i, g in enumerate(groups)
    )
    name = table_names(request.workload)[group]
    text = f"Weight of {name} raised from {queries.weight:g} to {queries.weight * factor:g}."
    workload = Workload(request.workload.schema, raised)
    return ChangedRequest(request=replace(request, workload=workload), group=group, text=text)


def merge_bins(request: Request, group: int, attribute: str, factor: int = 2) -> ChangedRequest:
    """Merge every ``factor`` adjacent cells of a numeric attribute into one cell."""
    before = request.workload.schema[attribute]
    workload = coarser(request.workload, attribute, factor)
    size = workload.schema[attribute].size
    text = f"{attribute} with {pluralize(size, 'cell')} instead of {before.size:,}."
    return ChangedRequest(request=replace(request, workload=workload), group=group, text=text)


def drop_largest(request: Request, group: int, attribute: str = "") -> ChangedRequest:
    """Remove all groups with the largest number of attributes; ``attribute`` is not used."""
    groups, dimension = request.workload.groups, _max_dimension(request)
    retained = [i for i, g in enumerate(groups) if len(g.attributes) < dimension]
    if not any(groups[i].weight > 0.0 for i in retained):
        raise NotApplicable(
            f"Without its {dimension}-way tables the workload would have no table of positive weight."
            " Add groups on fewer attributes first."
        )
    workload = Workload(request.workload.schema, tuple(groups[i] for i in retained))
    text = (
        f"Without the {dimension}-way tables:"
        f" {pluralize(len(groups) - len(retained), 'table')} fewer."
    )
    number = retained.index(group) if group in retained else None
    return ChangedRequest(
        request=replace(request, workload=workload),
        group=number,
        text=text,
        retained=tuple(retained),
    )


def twice_budget(request: Request, group: int, attribute: str = "") -> ChangedRequest:
    """Double the privacy cost, or the epsilon of a pure budget; ``attribute`` is not used."""
    old = request.budget
    new = old.at((2.0 if old.pure_epsilon is None else 4.0) * old.pcost)
    texts = [
        f"pcost {cost(b.pcost)}" if b.pure_epsilon is None else f"epsilon {cost(b.pure_epsilon)}"
        for b in (new, old)
    ]
    text = f"Budget of {texts[0]} instead of {texts[1]}."
    return ChangedRequest(request=replace(request, budget=new), group=group, text=text)


def tune_centers(request: Request, group: int, attribute: str = "") -> ChangedRequest:
    """Tune the centers of the residual spaces to the workload; ``attribute`` is not used."""
    mechanism = mechanism_class(request.mechanism)
    if "centers" not in mechanism.__dataclass_fields__:
        raise NotApplicable(
            f"{mechanism.title} has no centers, so they cannot be tuned. Choose the mechanism"
            " QuerySmasher."
        )
    if request.options.get("centers") == "tuned":
        raise NotApplicable("The centers are tuned already. Choose another change.")
    options = dict(request.options) | {"centers": "tuned"}
    # The constructor raises an error if tuned centers do not fit the other options.
    mechanism(**options)
    text = "Centers tuned to this workload."
    return ChangedRequest(request=replace(request, options=options), group=group, text=text)


def _max_dimension(request: Request) -> int:
    return max((len(g.attributes) for g in request.workload.groups), default=0)


CHANGES: tuple[Change, ...] = (
    Change(name="weight", label=lambda _: "Use 4 × the weight", apply=raise_weight),
    Change(name="coarser", label=lambda _: "Merge bins", apply=merge_bins),
    Change(
        name="drop",
        label=lambda request: f"Drop {_max_dimension(request)}-way tables",
        apply=drop_largest,
    ),
    Change(
        name="budget",
        label=lambda request: (
            "Use 2 × the privacy cost" if request.budget.pure_epsilon is None else "Use 2 × epsilon"
        ),
        apply=twice_budget,
    ),
    Change(name="tuned", label=lambda _: "Tune the split", apply=tune_centers),
)


def merge_obstacle(attribute: Attribute, factor: int = 2) -> str:
    """Return the reason why ``factor`` adjacent cells of an attribute cannot be merged; "" if they
    can.

    >>> merge_obstacle(Attribute.dates("day", "2024-01-01", "2024-12-31", "day"))  # doctest: +NORMALIZE_WHITESPACE
    'The cells of day are dates, which are not merged. Choose a longer unit for them in the schema,
    such as month.'
    """
    if attribute.kind != "numeric":
        return (
            f"The cells of {attribute.name} have no order, so they cannot be merged. Choose"
            " a numeric attribute."
        )
    if attribute.is_dated:
        longer = UNITS[: UNITS.index(attribute.unit or "")]
        if not longer:
            return (
                f"The cells of {attribute.name} are years, the longest unit of dates, so they"
                " cannot be merged."
            )
        return (
            f"The cells of {attribute.name} are dates, which are not merged. Choose a longer unit"
            f" for them in the schema, such as {longer[-1]}."
        )
    if attribute.size < 2 * factor:
        return (
            f"{attribute.name} has {pluralize(attribute.size, 'cell')}, too few to merge every"
            f" {factor} of them. Choose an attribute with at least {2 * factor} cells."
        )
    return ""


def coarser_attribute(attribute: Attribute, factor: int = 2) -> Attribute:
    """Return a numeric attribute with every ``factor`` adjacent cells merged into one.

    If the number of cells is not a multiple of ``factor``, the last cell is larger.  An attribute
    of integer codes becomes one with bins, so records with these codes remain valid.

    Raises
    ------
    NotApplicable : the cells cannot be merged, see `merge_obstacle`.

    >>> coarser_attribute(Attribute.of_size("code", 7)).edges
    (0.0, 2.0, 4.0, 6.0)
    >>> coarser_attribute(Attribute.numeric("age", [0, 5, 10, 15, 20, 25])).edges
    (0.0, 10.0, 25.0)
    """
    if obstacle := merge_obstacle(attribute, factor):
        raise NotApplicable(obstacle)
    # Bin i of integer codes starts at code i.  The last bin includes its upper edge, so this edge
    # is the last code.
    fine = attribute.edges
    if fine is None:
        fine = (*range(attribute.size), attribute.size - 1)
    edges = [fine[i] for i in range(0, attribute.size - factor + 1, factor)]
    missing = attribute.missing if isinstance(attribute.missing, float) else None
    return Attribute.numeric(
        attribute.name,
        [*edges, fine[-1]],
        missing=missing,
        clip=attribute.clip,
        integer=attribute.edges is None or attribute.integer,  # codes are integers
        missing_values=attribute.missing_values,
        decimal=attribute.decimal,
        thousands=attribute.thousands,
    )


def coarser(workload: Workload, attribute: str, factor: int = 2) -> Workload:
    """Return a workload with the same query families, on merged cells of a numeric attribute.

    Every ``factor`` adjacent cells are merged.

    Raises
    ------
    NotApplicable : the cells of the attribute cannot be merged, or a group of the workload, or a
        rule or exact total of the schema, cannot be expressed by the merged cells.
    """
    # If the attribute does not exist, this access raises an error that lists the names.
    workload.schema[attribute]
    attributes = tuple(
        coarser_attribute(a, factor) if a.name == attribute else a
        for a in workload.schema.attributes
    )
    try:
        schema = replace(workload.schema, attributes=attributes)
    except SchemaError as error:
        raise NotApplicable(
            f"The schema has rules or exact totals that the merged cells of '{attribute}' cannot"
            f" express: {error}"
        ) from None
    groups = [_coarsened_group(schema, group, attribute, factor) for group in workload.groups]
    return Workload(schema, tuple(groups))


def _coarsened_group(schema: Schema, group: Group, attribute: str, factor: int) -> Group:
    """Return a group with the same query family on merged cells of an attribute.

    ``schema`` has the merged cells.  Raises NotApplicable if they cannot express the queries.
    """
    if attribute not in group.attributes:
        return group
    subject = f"The group on {' × '.join(group.attributes)}"
    if group.query_weights is not None and group.part_weights is None:
        raise NotApplicable(
            f"{subject} has one weight per query, and merged cells have fewer queries. Remove the"
            " weights of the queries."
        )
    windows: dict[str, Family] = {}  # attribute -> the same windows on merged cells
    for part in group.parts:
        names = [group.attributes[axis] for axis in part.axes]
        if attribute not in names:
            continue
        if isinstance(part.family, Width):
            if part.family.width % factor:
                raise NotApplicable(
                    f"{subject} has windows of {part.family.width} cells, but their width must be a"
                    f" multiple of {factor} to merge cells. Change the width of the windows."
                )
            windows[names[0]] = Width(part.family.width // factor)
        # Intervals and predicates are defined on any cells.
        elif (
            not isinstance(part.family, Intervals)
            and getattr(part.family, "predicates", None) is None
        ):
            raise NotApplicable(
                f"{subject} has '{part.family.name}' queries, which are not defined on merged"
                " cells. Choose another family for these queries."
            )
    spec = group.family
    # Only the family Width has a parameter that depends on the cells; all other families remain.
    if windows:
        spec = {
            name: spec[name] if isinstance(spec, Mapping) else spec for name in group.attributes
        } | windows
    try:
        return make_group(schema, group.attributes, spec, group.weight)
    except WorkloadError as error:
        raise NotApplicable(f"{subject} cannot be expressed by merged cells: {error}") from None


def cumulative_workload(workload: Workload) -> Workload | None:
    """Return a workload of marginals with prefixes in place of the cells of numeric attributes.

    The weights remain.  Returns None if a group is not a marginal, or if no group has a numeric
    attribute.

    >>> from engine import Attribute
    >>> sex = Attribute.of_size("sex", 2, kind="categorical")
    >>> plain = Workload.all_ways(Schema([Attribute.of_size("age", 4), sex]), (1,), "marginal")
    >>> [group.family_text for group in cumulative_workload(plain).groups]
    ['prefix', 'marginal']
    """
    schema, groups = workload.schema, []
    for group in workload.groups:
        if not all(isinstance(part.family, Marginal) for part in group.parts):
            return None
        families = {
            name: Prefix() if schema[name].kind == "numeric" else Marginal()
            for name in group.attributes
        }
        weights = group.weight, group.query_weights
        groups.append(make_group(schema, group.attributes, families or "total", *weights))
    has_numeric = any(
        schema[name].kind == "numeric" for group in groups for name in group.attributes
    )
    return Workload(schema, tuple(groups)) if has_numeric else None


def error_table(
    before: Plan, after: Plan, group: int, changed_request: ChangedRequest
) -> pd.DataFrame:
    """Return a table of errors before and after a change that lowers the error of one group.

    Parameters
    ----------
    before, after : plans before and after the change.
    group : index of the group before the change.
    changed_request : the change.

    Returns
    -------
    DataFrame with one row per kind of error.  If the RMSE of another group rises, the last row has
    the RMSE of the group from `most_increased`.  Columns: errors in counts (name of the error),
    before, after, and change (relative, as text).  If the change removes the group, the errors of
    the group after the change are NaN.
    """
    import pandas as pd

    errors_before, errors_after = errors_by_group(before), errors_by_group(after)
    rmse_after = max_std_after = math.nan
    group_after = changed_request.group
    if group_after is not None:
        rmse_after = float(errors_after["rmse"][group_after])
        max_std_after = float(errors_after["max_std"][group_after])
    rows = [
        ("this table, typical", errors_before["rmse"][group], rmse_after),
        ("this table, largest", errors_before["max_std"][group], max_std_after),
        ("all tables, typical", before.rmse, after.rmse),
        ("all tables, largest", errors_before["max_std"].max(), errors_after["max_std"].max()),
    ]
    if (other := most_increased(before, after, changed_request)) is not None:
        name = table_names(after.workload)[other]
        error_before = errors_before["rmse"][changed_request.numbers[other]]
        rows.append((f"{name}, typical", error_before, errors_after["rmse"][other]))
    table = pd.DataFrame(rows, columns=["errors in counts", "before", "after"])
    return table.assign(
        change=[_change_text(a, b) for a, b in zip(table["before"], table["after"], strict=True)]
    )


def most_increased(before: Plan, after: Plan, changed_request: ChangedRequest) -> int | None:
    """Return the index of the group whose RMSE rises by the largest factor.

    The group for which the request was changed is left out.  The index is that after the change.
    None is returned if no RMSE rises by more than `SMALLEST_CHANGE`.
    """
    errors_before = errors_by_group(before)["rmse"].to_numpy()[changed_request.numbers]
    errors_after = errors_by_group(after)["rmse"].to_numpy()
    # a relative change needs finite errors, and an error before the change that is not 0
    comparable = np.isfinite(errors_after) & np.isfinite(errors_before) & (errors_before > 0.0)
    if changed_request.group is not None:
        comparable[changed_request.group] = False
    ratios = np.divide(
        errors_after, errors_before, out=np.zeros(len(errors_after)), where=comparable
    )
    other = int(ratios.argmax())
    return other if ratios[other] > 1.0 + SMALLEST_CHANGE else None


def query_count_text(before: Plan, after: Plan) -> str:
    """Return a sentence with the numbers of queries of the plans before and after a change."""
    queries_before, queries_after = before.workload.queries, after.workload.queries
    return (
        f"Both answer {pluralize(queries_before, 'query', 'queries')}."
        if queries_before == queries_after
        else f"{pluralize(queries_after, 'query', 'queries')} instead of {number(queries_before)}."
    )


def added_text(after: Plan, new: int, before: Plan | None = None) -> str:
    """Return sentences with the errors of added groups, and the change of the RMSE of other groups.

    If an added query cannot be answered, the text is only a sentence that states this.

    Parameters
    ----------
    after : plan with the added groups.
    new : number of added groups, which are the last groups of the workload.
    before : plan without the added groups; if it is None, the text does not contain the change.

    >>> from engine import Attribute, Budget, plan, Schema, Workload
    >>> workload = Workload(Schema([Attribute.of_size("age", 4)])).add("age")
    >>> added_text(plan(workload, Budget(pcost=1.0)), 1)
    '4 new queries: typical error of 1.00 counts, largest 1.00.'
    """
    errors, n_previous = errors_by_group(after), len(after.workload.groups) - new
    new_errors = errors[n_previous:]
    typical, largest = _combined_rmse(new_errors), float(new_errors["max_std"].max())
    if not math.isfinite(largest):
        return (
            "Some of these queries cannot be answered: they have weight 0, and no other measurement"
            " determines them."
        )
    text = (
        f"{pluralize(int(new_errors['queries'].sum()), 'new query', 'new queries')}: typical error"
        f" of {format_number(typical)} counts, largest {format_number(largest)}."
    )
    if before is None or not n_previous:
        return text
    rmse = _combined_rmse(errors[:n_previous])
    old_text, new_text = format_number(before.rmse), format_number(rmse)
    if old_text == new_text:
        return f"{text} The typical error of the existing queries remains {old_text}."
    verb = "rises" if rmse > before.rmse else "falls"
    return f"{text} The typical error of the existing queries {verb} from {old_text} to {new_text}."


def _combined_rmse(errors: pd.DataFrame) -> float:
    """Return the RMSE over all queries of groups; ``errors`` has their rows of `Plan.by_group`."""
    return math.sqrt(np.average(errors["rmse"] ** 2, weights=errors["queries"]))


def _change_text(before: float, after: float) -> str:
    """Return the relative change of an error as text.

    The text is "removed" if ``after`` is NaN, and empty if ``before`` is 0 or an error is infinite.
    """
    if math.isnan(after):
        return "removed"
    if not np.isfinite([before, after]).all() or before == 0.0:
        return ""
    change = after / before - 1.0
    return "none" if abs(change) < 5e-5 else f"{change:+.1%}".replace("-", "−")


MAX_COSTLY_GROUPS = 5  # largest number of groups that are proposed for removal
# Query families whose answers determine the count of every cell of the attribute.
COMPLETE_FAMILIES = (Marginal, Prefix, Suffix, Range, Circular)


def forecast_added(request: Request, groups: Sequence[Group]) -> Forecast:
    """Return the planning forecast for new groups and all groups that share their attributes."""
    # New groups hardly change the planning time of groups on other attributes.
    names = {name for group in groups for name in group.attributes}
    overlapping = (g for g in request.workload.groups if names.intersection(g.attributes))
    return forecast(
        Workload(request.workload.schema, (*overlapping, *groups)),
        request.mechanism,
        **request.options,
    )


def costly_groups(request: Request, *, seconds: float, memory: float) -> tuple[int, ...]:
    """Return the indices of the groups to remove so that planning is within limits.

    At most five groups are returned, even if planning exceeds the limits without these groups.
    Groups with a joint family are removed before product groups on the same attributes, because the
    measurements of product groups also answer other queries.

    Parameters
    ----------
    seconds : limit of the predicted planning time.
    memory : limit of the predicted memory, in bytes.

    >>> from engine import Attribute, Budget, Schema
    >>> schema = Schema([Attribute.of_size("age", 34), Attribute.of_size("hours", 30)])
    >>> workload = Workload(schema).add(("age", "hours"), "affine").add(("age", "hours"), "prefix")
    >>> request = Request(workload=workload.add("age", "range"), budget=Budget(pcost=1.0))
    >>> costly_groups(request, seconds=60.0, memory=1.5e8)
    (0,)
    """
    groups = request.workload.groups
    remaining = sorted(
        range(len(groups)), key=lambda i: any(len(part.axes) > 1 for part in groups[i].parts)
    )
    removed: list[int] = []
    options = {
        name: value for name, value in request.options.items() if name not in ("centers", "keep")
    }

    def fits(numbers: Sequence[int]) -> bool:
        """Return whether planning these groups is within the limits."""
        workload = Workload(request.workload.schema, tuple(groups[i] for i in numbers))
        estimate = forecast(workload, request.mechanism, **options)
        return estimate.seconds <= seconds and estimate.memory <= memory

    # Bisection needs forecasts that increase with every group.  Forecasts with tuned centers may
    # decrease, so tuned centers are omitted unless all groups fit without them.
    if fits(remaining):
        options = dict(request.options)
    while remaining and len(removed) < MAX_COSTLY_GROUPS and not fits(remaining):
        feasible, infeasible = 0, len(remaining)
        # Bisection finds a k for which the first k of the ``remaining`` groups exceed the limits
        # and the first k - 1 do not.  The last of these k groups is removed.
        while infeasible - feasible > 1:
            middle = (feasible + infeasible) // 2
            if fits(remaining[:middle]):
                feasible = middle
            else:
                infeasible = middle
        removed.append(remaining.pop(infeasible - 1))
    return tuple(removed)


def remove(request: Request, group: int, attribute: str = "") -> ChangedRequest:
    """Remove the group from the workload; ``attribute`` is not used."""
    groups = request.workload.groups
    if len(groups) == 1:
        raise NotApplicable(
            "This is the only group, and a workload needs at least one. Add another group first."
        )
    workload = Workload(request.workload.schema, (*groups[:group], *groups[group + 1 :]))
    text = f"Without the group on {_name(groups[group])}."
    return ChangedRequest(request=replace(request, workload=workload), group=None, text=text)


def set_weight_zero(request: Request, group: int, attribute: str = "") -> ChangedRequest:
    """Set the weight of the group to 0, so that measurements for other groups answer its queries.

    If no single other group is known to determine its queries, the marginal on its attributes is
    added.  ``attribute`` is not used.
    """
    groups, target = request.workload.groups, request.workload.groups[group]
    if target.weight == 0.0:
        raise NotApplicable(
            "The group has weight 0 already, so no budget is spent on it. Choose another change."
        )
    changed = (*groups[:group], replace(target, weight=0.0), *groups[group + 1 :])
    text = f"{_name(target)} is answered from what is measured for other groups (weight 0)"
    if not any(_covers(other, target) for i, other in enumerate(groups) if i != group):
        changed = (*changed, make_group(request.workload.schema, target.attributes, "marginal"))
        text += ", its marginal table among them"
    workload = Workload(request.workload.schema, changed)
    return ChangedRequest(request=replace(request, workload=workload), group=group, text=f"{text}.")


def replace_by_marginal(request: Request, group: int, attribute: str = "") -> ChangedRequest:
    """Replace the group by the marginal on its attributes, which determines all its queries.

    ``attribute`` is not used.
    """
    groups, target = request.workload.groups, request.workload.groups[group]
    if all(isinstance(part.family, Marginal) for part in target.parts):
        raise NotApplicable("The group is a marginal table already. Choose another change.")
    marginal = make_group(request.workload.schema, target.attributes, "marginal", target.weight)
    workload = Workload(request.workload.schema, (*groups[:group], marginal, *groups[group + 1 :]))
    text = f"The marginal table of {_name(target)} instead of its '{target.family_text}' queries."
    return ChangedRequest(request=replace(request, workload=workload), group=group, text=text)


REMEDIES: tuple[Change, ...] = (
    Change(name="remove", label=lambda _: "Remove it", apply=remove),
    Change(name="approximate", label=lambda _: "Approximate it", apply=set_weight_zero),
    Change(
        name="marginal", label=lambda _: "Its marginal table instead", apply=replace_by_marginal
    ),
)


def _covers(other: Group, group: Group) -> bool:
    """Return whether the measurements for ``other`` determine all queries on ``group.attributes``.

    False can also mean that the families of ``other`` are not known to determine them.
    """
    is_complete = all(
        len(part.axes) == 1 and isinstance(part.family, COMPLETE_FAMILIES) for part in other.parts
    )
    return (
        is_complete
        and other.weight > 0.0
        and other.query_weights is None
        and set(group.attributes) <= {*other.attributes}
    )


def _name(group: Group) -> str:
    return " × ".join(group.attributes) or "no attribute"
