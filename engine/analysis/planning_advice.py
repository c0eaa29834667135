"""Groups that make planning expensive, and cheaper replacements.

Product groups stay cheap together, one attribute at a time.  A joint family such as 'affine' is cheap alone, and
dearer once its attributes are asked in another way too: then all their cells are planned together, where they are few.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from engine.analysis.what_if import Change, Changed, Request
from engine.errors import NotApplicable
from engine.mechanisms import forecast
from engine.mechanisms.base import Forecast
from engine.workload import Circular, Group, Marginal, Range, Suffix, Workload
from engine.workload.families import Prefix
from engine.workload.workload import make_group

MOST = 5  # groups that are named
TABLES = (Marginal, Prefix, Suffix, Range, Circular)  # whatever is asked of an attribute follows from any of these


def forecast_added(request: Request, groups: Sequence[Group]) -> Forecast:
    """Return what planning would take with new groups, for the groups on any of their attributes alone.

    The others are planned in residual spaces of their own, which new groups leave as they are.
    """
    names = {name for group in groups for name in group.attributes}
    near = (g for g in request.workload.groups if names.intersection(g.attributes))
    return forecast(Workload(request.workload.schema, (*near, *groups)), request.mechanism, **request.options)


def dear_groups(request: Request, *, seconds: float, memory: float) -> tuple[int, ...]:
    """Return the numbers of at most ``MOST`` groups without which planning keeps to a time and a memory.

    Parameters
    ----------
    seconds, memory : the most that planning may take, in bytes.

    Joint groups are named before the product groups that they meet: those pay for everything else as well.

    >>> from engine.workload import Attribute, Schema
    >>> from engine.privacy.budget import Budget
    >>> schema = Schema([Attribute.of_size("age", 34), Attribute.of_size("hours", 30)])
    >>> workload = Workload(schema).add(("age", "hours"), "affine").add(("age", "hours"), "prefix").add("age", "range")
    >>> dear_groups(Request(workload=workload, budget=Budget(pcost=1.0)), seconds=60.0, memory=1.5e8)
    (0,)
    """
    groups = request.workload.groups
    kept = sorted(range(len(groups)), key=lambda i: any(len(part.axes) > 1 for part in groups[i].parts))
    found: list[int] = []
    options = {name: value for name, value in request.options.items() if name not in ("centers", "keep")}

    def fits(numbers: Sequence[int]) -> bool:
        asked = Workload(request.workload.schema, tuple(groups[i] for i in numbers))
        takes = forecast(asked, request.mechanism, **options)
        return takes.seconds <= seconds and takes.memory <= memory

    # tuning may take more for a part of the groups than for all, so it is looked at where it alone is too much
    options = dict(request.options) if fits(kept) else options
    while kept and len(found) < MOST and not fits(kept):
        fitting, low = 0, len(kept)  # more groups never take less, so the first that is too much is found by halving
        while low - fitting > 1:
            middle = (fitting + low) // 2
            fitting, low = (middle, low) if fits(kept[:middle]) else (fitting, middle)
        found.append(kept.pop(low - 1))
    return tuple(found)


def remove(request: Request, group: int, attribute: str = "") -> Changed:
    """Ask everything but the group."""
    groups = request.workload.groups
    if len(groups) == 1:
        raise NotApplicable("It is the only group, so nothing would be asked. Add another group first.")
    workload = Workload(request.workload.schema, (*groups[:group], *groups[group + 1 :]))
    text = f"Without the group on {_name(groups[group])}."
    return Changed(request=replace(request, workload=workload), group=None, text=text)


def approximate(request: Request, group: int, attribute: str = "") -> Changed:
    """Answer the group from the tables of other groups, without shaping any noise for it."""
    groups, asked = request.workload.groups, request.workload.groups[group]
    if asked.weight == 0.0:
        raise NotApplicable("The group is answered from the other tables already; its weight is 0.")
    changed = (*groups[:group], replace(asked, weight=0.0), *groups[group + 1 :])
    text = f"{_name(asked)} is answered from what is measured for other groups (weight 0)"
    if not any(_covers(other, asked) for i, other in enumerate(groups) if i != group):
        changed = (*changed, make_group(request.workload.schema, asked.attributes, "marginal"))
        text += ", its marginal table among them"
    workload = Workload(request.workload.schema, changed)
    return Changed(request=replace(request, workload=workload), group=group, text=f"{text}.")


def marginal_instead(request: Request, group: int, attribute: str = "") -> Changed:
    """Ask every cell of the group's attributes in its place; any query on them follows from that."""
    groups, asked = request.workload.groups, request.workload.groups[group]
    if all(isinstance(part.family, Marginal) for part in asked.parts):
        raise NotApplicable("The group asks its marginal table already.")
    made = make_group(request.workload.schema, asked.attributes, "marginal", asked.weight)
    workload = Workload(request.workload.schema, (*groups[:group], made, *groups[group + 1 :]))
    text = f"The marginal table of {_name(asked)} instead of its '{asked.family_text}' queries."
    return Changed(request=replace(request, workload=workload), group=group, text=text)


REMEDIES: tuple[Change, ...] = (
    Change(name="remove", label=lambda _: "Remove it", apply=remove),
    Change(name="approximate", label=lambda _: "Approximate it", apply=approximate),
    Change(name="marginal", label=lambda _: "Its marginal table instead", apply=marginal_instead),
)


def _covers(other: Group, asked: Group) -> bool:
    """Whether every query on the attributes of a group follows from what is measured for another one."""
    whole = all(len(part.axes) == 1 and isinstance(part.family, TABLES) for part in other.parts)
    return whole and other.weight > 0.0 and other.query_weights is None and set(asked.attributes) <= {*other.attributes}


def _name(group: Group) -> str:
    return " × ".join(group.attributes) or "no attribute"
