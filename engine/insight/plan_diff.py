"""Two plans side by side: what differs in what was asked, in words, and what that does to the error of every group."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from engine.plans import Plan
from engine.texts import amount
from engine.workload import Group, Schema

if TYPE_CHECKING:
    import pandas as pd

ASKED = ("what", "first", "second")
NONE = "-"


@dataclass(frozen=True, kw_only=True, eq=False)
class PlanDifference:
    """What two plans do not share.

    Attributes
    ----------
    words : one sentence for every kind of difference; empty when the requests are the same.
    request : one row a difference in what was asked: what, first, second.
    groups : one row a group of either plan: attributes, family, weights, RMSE of both in counts, and their ratio
        second / first; NaN where a plan does not have the group.
    """

    words: tuple[str, ...]
    request: pd.DataFrame
    groups: pd.DataFrame


def plan_diff(first: Plan, second: Plan) -> PlanDifference:
    """Return the differences of two plans; groups are matched by attributes, family and weights of single queries.

    >>> from engine import Attribute, Budget, Schema, Workload, plan
    >>> workload = Workload.all_ways(Schema([Attribute.of_size("a", 4)]), (1,), "marginal")
    >>> found = plan_diff(plan(workload, Budget(pcost=1.0)), plan(workload, Budget(pcost=4.0)))
    >>> found.words, float(found.groups["ratio"].round(6)[0])
    (('The budget differs: pcost 1 and pcost 4.',), 0.5)
    """
    import pandas as pd

    words, rows = [], []
    for name, one, other in _settings(first, second):
        if one != other:
            if NONE not in (one, other):  # an option that only one of two mechanisms has is told by the table
                words.append(f"The {name} differs: {one} and {other}.")
            rows.append((name, one, other))
    schema_rows = _schemas(first.schema, second.schema)
    if schema_rows:
        words.append(f"The schemas differ in {_things(len(schema_rows), 'attribute')}.")
    groups = _groups(first, second)
    for kind, sentence in (("only first", "only the first plan has"), ("only second", "only the second plan has")):
        if missing := int((groups["in"] == kind).sum()):
            words.append(f"{_things(missing, 'group')} {sentence}.".capitalize())
    reweighted = groups[(groups["in"] == "both") & (groups["weight, first"] != groups["weight, second"])]
    if len(reweighted):
        words.append(f"{_things(len(reweighted), 'group')} with another weight.")
    rows += schema_rows
    rows += [
        (f"weight of {g['attributes']} ({g['family']})", f"{g['weight, first']:g}", f"{g['weight, second']:g}")
        for _, g in reweighted.iterrows()
    ]
    rows += [
        (f"group {g['attributes']} ({g['family']})", *(("asked", NONE) if g["in"] == "only first" else (NONE, "asked")))
        for _, g in groups[groups["in"] != "both"].iterrows()
    ]
    return PlanDifference(words=tuple(words), request=pd.DataFrame(rows, columns=list(ASKED)), groups=groups)


def _settings(first: Plan, second: Plan) -> list[tuple[str, str, str]]:
    out = [
        ("mechanism", first.mechanism, second.mechanism),
        ("budget", _budget(first), _budget(second)),
        ("cap on records", f"{first.max_records:,}", f"{second.max_records:,}"),
    ]
    for name in sorted({*first.options, *second.options}):
        out.append((f"option {name}", _option(first.options, name), _option(second.options, name)))
    return out


def _budget(plan: Plan) -> str:
    pure = plan.budget.pure_epsilon
    return (
        f"pcost {plan.budget.pcost!r}".removesuffix(".0")
        if pure is None
        else f"pure epsilon {pure!r}".removesuffix(".0")
    )


def _option(options: Mapping[str, Any], name: str) -> str:
    return str(options[name]) if name in options else NONE


def _schemas(first: Schema, second: Schema) -> list[tuple[str, str, str]]:
    names = [*first.names, *(name for name in second.names if name not in first.names)]
    out = []
    for name in names:
        one, other = (schema[name] if name in schema.names else None for schema in (first, second))
        if one != other:
            left, right = (f"{a.kind}, {a.size:,} cells" if a is not None else NONE for a in (one, other))
            if left == right:
                right = f"{right}, other labels"
            out.append((f"attribute {name}", left, right))
    return out


def _groups(first: Plan, second: Plan) -> pd.DataFrame:
    """Match the groups of two plans; equal groups are paired in their order."""
    import pandas as pd

    errors = [plan.by_group()["rmse"].tolist() for plan in (first, second)]
    waiting: dict[str, list[int]] = {}
    for number, group in enumerate(second.workload.groups):
        waiting.setdefault(_key(group), []).append(number)
    rows = []
    for i, group in enumerate(first.workload.groups):
        partners = waiting.get(_key(group))
        j = partners.pop(0) if partners else None
        rows.append(_row(group, "only first" if j is None else "both", i, j, first, second, errors))
    for left in sorted(number for numbers in waiting.values() for number in numbers):
        rows.append(_row(second.workload.groups[left], "only second", None, left, first, second, errors))
    names = ["in", "attributes", "family", "queries", "weight, first", "weight, second", "RMSE, first", "RMSE, second"]
    frame = pd.DataFrame(rows, columns=names)
    return frame.assign(ratio=frame["RMSE, second"] / frame["RMSE, first"])


def _row(
    group: Group, where: str, i: int | None, j: int | None, first: Plan, second: Plan, errors: list[list[float]]
) -> tuple[Any, ...]:
    weights = [math.nan if k is None else plan.workload.groups[k].weight for k, plan in ((i, first), (j, second))]
    rmse = [math.nan if k is None else own[k] for k, own in zip((i, j), errors, strict=True)]
    return (where, " × ".join(group.attributes) or "(total)", group.family_text, group.count, *weights, *rmse)


def _key(group: Group) -> str:
    content = {k: v for k, v in group.to_dict().items() if k != "weight"}
    return json.dumps(content, sort_keys=True)


def _things(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def summary(found: PlanDifference, first: Plan, second: Plan) -> str:
    """Return one sentence about what the differences do to the typical error."""
    change = second.rmse / first.rmse - 1.0
    if abs(change) < 1e-6:
        return f"Both plans have the same typical error, {amount(first.rmse)} counts."
    more = "larger" if change > 0 else "smaller"
    return (
        f"The typical error of the second plan is {abs(change):.2%} {more}: {amount(second.rmse)} counts instead of "
        f"{amount(first.rmse)}."
    )
