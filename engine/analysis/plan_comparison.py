"""Comparison of two plans, by group and by query.

Two plans of the same queries, query by query: where one is less exact than the other, and by how much.

Tuned plans are better in total than those with uniform centers, and single groups may be less exact.

Two plans side by side: what differs in what was asked, in words, and what that does to the error of every group.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from engine._arrays import Array
from engine._format import amount, set_name
from engine.analysis.error_distribution import chosen_queries, is_exact, number_in_group, variances_of
from engine.errors import PlanError
from engine.mechanisms import plan
from engine.plans import Plan
from engine.plans.variance import GroupVariance
from engine.workload import Group, Schema

if TYPE_CHECKING:
    import pandas as pd


SAMPLED = "Computed on an even sample of the queries of each group and on its corners; other queries may be worse."
MAX_CORNERS = 10  # parts of a group whose first and last queries join the sample
LEAST = 5e-4  # share of the errors below which nothing was gained that anybody sees
SAME = 1e-6  # standard errors closer than this are equal but for the rounding of noise to its grid


@dataclass(frozen=True, kw_only=True, eq=False)
class Losses:
    """Where the first of two plans loses against the second.

    Attributes
    ----------
    groups : one row a group, the worst first: group, attributes, family, queries, worse (share of its queries with a
        larger standard error under the first plan), better, worst ratio, worst query as text.
    worse, better : shares of all queries.
    worst, query : the largest ratio of standard errors, first over second, and the query that has it.
    exact : whether every query was computed; an even sample otherwise.
    """

    groups: pd.DataFrame
    worse: float
    better: float
    worst: float
    query: str
    exact: bool


def ratios(first: Array, second: Array) -> Array:
    """Return standard errors of one plan over those of another; 1 where both are infinite. All have one shape.

    >>> ratios(np.array([2.0, np.inf, 1.0]), np.array([1.0, np.inf, np.inf])).tolist()
    [2.0, 1.0, 0.0]
    """
    both = np.isinf(first) & np.isinf(second)
    return np.where(both, 1.0, np.where(both, 1.0, first) / np.where(both, 1.0, second))


def check_same_queries(first: Plan, second: Plan) -> None:
    """Raise PlanError unless two plans answer the same queries in the same order."""
    one, other = first.workload, second.workload
    alike = len(one.groups) == len(other.groups) and all(
        a.attributes == b.attributes and a.key == b.key for a, b in zip(one.groups, other.groups, strict=True)
    )
    if one.schema != other.schema or not alike:
        raise PlanError("The two plans answer different queries. Give two plans of the same schema and workload.")


def losses(first: Plan, second: Plan) -> Losses:
    """Return where the first plan is less exact than the second.

    Every query is computed up to a few million; above that an even sample of each group and its corners, so that the
    worst ratio is then a lower bound.

    Raises
    ------
    PlanError : the plans answer different queries.
    """
    import pandas as pd

    check_same_queries(first, second)
    workload, done = first.workload, dict[tuple[GroupVariance, GroupVariance], tuple[float, float, float, int]]()
    rows = []
    for i, group in enumerate(workload.groups):
        key = (first.group_variance(i), second.group_variance(i))
        if key not in done:
            done[key] = _counted(first, second, i)
        worse, better, worst, number = done[key]
        attributes = " × ".join(group.attributes) or "(total)"
        text = workload.describe_in_group(i, number)
        rows.append((i, attributes, group.family_text, group.count, worse, better, worst, text))
    names = ["group", "attributes", "family", "queries", "worse", "better", "worst ratio", "worst query"]
    frame = pd.DataFrame(rows, columns=names).sort_values("worst ratio", ascending=False, kind="stable")
    sizes = [float(n) / float(workload.queries) for n in frame["queries"]]
    return Losses(
        groups=frame.reset_index(drop=True),
        worse=math.fsum(s * w for s, w in zip(sizes, frame["worse"], strict=True)),
        better=math.fsum(s * b for s, b in zip(sizes, frame["better"], strict=True)),
        worst=float(frame["worst ratio"].iloc[0]),
        query=str(frame["worst query"].iloc[0]),
        exact=is_exact(workload),
    )


def _counted(first: Plan, second: Plan, group: int) -> tuple[float, float, float, int]:
    """Return for one group the shares of worse and better queries, the worst ratio and the number of its query."""
    asked, index = first.workload.groups[group], chosen_queries(first.workload, group)
    found = _ratios_at(first, second, group, index)
    worse, better = float(np.mean(found > 1.0 + SAME)), float(np.mean(found < 1.0 - SAME))
    if index is not None:  # extremes lie at corners more often than not, and a sample has few of them
        corners = list(itertools.product(*(sorted({0, p.count - 1}) for p in asked.parts[:MAX_CORNERS])))
        rest = [np.zeros(len(corners), dtype=np.int64) for _ in asked.parts[MAX_CORNERS:]]
        index = [
            np.concatenate([positions, ends])
            for positions, ends in zip(index, [*np.array(corners).T, *rest], strict=True)
        ]
        found = _ratios_at(first, second, group, index)
    worst = int(np.argmax(found >= found.max() * (1.0 - SAME)))  # the first of equals
    return worse, better, float(found[worst]), number_in_group(asked, index, worst)


def _ratios_at(first: Plan, second: Plan, group: int, index: list[npt.NDArray[np.int64]] | None) -> Array:
    return ratios(*(np.sqrt(variances_of(plan, group, index)) for plan in (first, second)))


def single_groups_text(made: Plan, even: Plan | None = None) -> str:
    """Return how a tuned plan compares with uniform centers in total and group by group; nothing for other plans.

    ``even`` is the plan with uniform centers; left out, it is made for it, which tuning has done before.

    >>> from engine.workload import Attribute, Schema, Workload
    >>> from engine.privacy.budget import Budget
    >>> asked = Workload.all_ways(Schema([Attribute.of_size(name, 20) for name in ("age", "wage", "rent")]))
    >>> print(single_groups_text(plan(asked, Budget(pcost=1.0), centers="tuned", keep=0.05)))
    10.6% smaller errors in total than with uniform centers; 3 of 7 groups are less exact, age by 5.0%.
    """
    if made.options.get("centers") != "tuned" or made.options.get("objective") != "sum":
        return ""
    options = {name: value for name, value in made.options.items() if name != "keep"} | {"centers": "uniform"}
    even = even or plan(made.workload, made.budget, made.mechanism, max_records=made.max_records, **options)
    rises = [
        math.sqrt(own / other) - 1.0 if 0.0 < other < math.inf else 0.0
        for own, other in zip(made.totals, even.totals, strict=True)
    ]
    less = 1.0 - made.weighted_rmse / even.weighted_rmse
    worst = max(range(len(rises)), key=rises.__getitem__)
    if less < LEAST and rises[worst] <= SAME:
        return "With uniform centers errors would be the same."
    text = f"{max(less, 0.0):.1%} smaller errors in total than with uniform centers; "
    if rises[worst] <= SAME:
        return text + "no group is less exact."
    which = set_name(made.workload.groups[worst].attributes)
    number = sum(rise > SAME for rise in rises)
    return text + f"{number:,} of {len(rises):,} groups are less exact, {which} by {rises[worst]:.1%}."


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

    >>> from engine.workload import Attribute, Schema, Workload
    >>> from engine.privacy.budget import Budget
    >>> from engine.mechanisms import plan
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
