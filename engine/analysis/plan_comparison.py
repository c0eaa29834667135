"""Comparison of two plans, by group and by query.

`losses` compares the standard errors of two plans for the same workload query by query.
`single_groups_text` compares a tuned plan with uniform centers: tuning reduces the total error, but
the error of single groups may increase.  `plan_diff` compares plans of different requests: the
differences of the requests, and the RMSE of every group under both plans.
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
from engine._format import format_number, set_name
from engine.analysis.error_distribution import (
    chosen_queries,
    is_exact,
    number_in_group,
    variances_of,
)
from engine.errors import PlanError
from engine.mechanisms import plan
from engine.plans import Plan
from engine.plans.variance import GroupVariance
from engine.workload import Group, Schema

if TYPE_CHECKING:
    import pandas as pd


SAMPLED = (
    "Computed on an even sample of the queries of each group and on its corners; other queries may"
    " be worse."
)
MAX_CORNERS = 10  # number of parts of a group whose extreme queries are added to the sample
MIN_SHOWN_GAIN = 5e-4  # smallest relative decrease of the total error that is reported
EQUAL_ERROR_TOLERANCE = 1e-6  # bounds the relative effect of rounding noise to its grid


@dataclass(frozen=True, kw_only=True, eq=False)
class Losses:
    """Queries for which the first of two plans has larger errors than the second.

    Attributes
    ----------
    groups : one row per group, sorted by worst ratio, descending.  Columns: group, attributes,
        family, queries, worse (share of its queries with a larger standard error under the first
        plan), better, worst ratio, worst query as text.
    worse, better : shares of all queries.
    worst, query : largest ratio of standard errors, first over second, and its query.
    exact : whether the workload is small enough to evaluate every query; otherwise large groups are
        sampled.
    """

    groups: pd.DataFrame
    worse: float
    better: float
    worst: float
    query: str
    exact: bool


def ratios(first: Array, second: Array) -> Array:
    """Return elementwise ratios of standard errors; 1 where both are 0 or infinite.

    All arrays have the same shape.

    >>> ratios(np.array([2.0, 0.0, np.inf, 1.0]), np.array([1.0, 0.0, np.inf, np.inf])).tolist()
    [2.0, 1.0, 1.0, 0.0]
    """
    equal = first == second
    return np.where(equal, 1.0, first) / np.where(equal, 1.0, second)


def check_same_queries(first: Plan, second: Plan) -> None:
    """Raise PlanError unless two plans answer the same queries in the same order."""
    workload, second_workload = first.workload, second.workload
    same_groups = len(workload.groups) == len(second_workload.groups) and all(
        a.attributes == b.attributes and a.key == b.key
        for a, b in zip(workload.groups, second_workload.groups, strict=True)
    )
    if workload.schema != second_workload.schema or not same_groups:
        raise PlanError(
            "The two plans answer different queries. Give two plans of the same schema and"
            " workload."
        )


def losses(first: Plan, second: Plan) -> Losses:
    """Return the queries for which the first of two plans has larger standard errors.

    Above a few million queries, an evenly spread sample of each large group and its corners are
    evaluated; the worst ratio is then a lower bound.

    Raises
    ------
    PlanError : the workloads differ.
    """
    import pandas as pd

    check_same_queries(first, second)
    workload, rows = first.workload, []
    # the result of `_group_losses` for every pair of variances
    results = dict[tuple[GroupVariance, GroupVariance], tuple[float, float, float, int]]()
    for i, group in enumerate(workload.groups):
        key = (first.group_variance(i), second.group_variance(i))
        if key not in results:
            results[key] = _group_losses(first, second, i)
        worse, better, worst, number = results[key]
        attributes = " × ".join(group.attributes) or "(total)"
        text = workload.describe_in_group(i, number)
        rows.append((i, attributes, group.family_text, group.count, worse, better, worst, text))
    names = [
        "group",
        "attributes",
        "family",
        "queries",
        "worse",
        "better",
        "worst ratio",
        "worst query",
    ]
    frame = pd.DataFrame(rows, columns=names).sort_values(
        "worst ratio", ascending=False, kind="stable"
    )
    sizes = [float(n) / float(workload.queries) for n in frame["queries"]]
    return Losses(
        groups=frame.reset_index(drop=True),
        worse=math.fsum(s * w for s, w in zip(sizes, frame["worse"], strict=True)),
        better=math.fsum(s * b for s, b in zip(sizes, frame["better"], strict=True)),
        worst=float(frame["worst ratio"].iloc[0]),
        query=str(frame["worst query"].iloc[0]),
        exact=is_exact(workload),
    )


def _group_losses(first: Plan, second: Plan, group: int) -> tuple[float, float, float, int]:
    """Compare the standard errors of a group's queries under two plans.

    Returns
    -------
    worse, better : shares of the queries with a larger and with a smaller standard error under the
        first plan.
    worst : largest ratio of standard errors, first over second.
    number : number of the query with this ratio.
    """
    queries, sample = first.workload.groups[group], chosen_queries(first.workload, group)
    error_ratios = _ratios_at(first, second, group, sample)
    worse = float(np.mean(error_ratios > 1.0 + EQUAL_ERROR_TOLERANCE))
    better = float(np.mean(error_ratios < 1.0 - EQUAL_ERROR_TOLERANCE))
    # Extreme ratios often lie at corners, of which a sample contains few.
    if sample is not None:
        corners = list(
            itertools.product(*(sorted({0, p.count - 1}) for p in queries.parts[:MAX_CORNERS]))
        )
        zeros = [np.zeros(len(corners), dtype=np.int64) for _ in queries.parts[MAX_CORNERS:]]
        sample = [
            np.concatenate([positions, ends])
            for positions, ends in zip(sample, [*np.array(corners).T, *zeros], strict=True)
        ]
        error_ratios = _ratios_at(first, second, group, sample)
    # The first of the tied queries.
    worst = int(np.argmax(error_ratios >= error_ratios.max() * (1.0 - EQUAL_ERROR_TOLERANCE)))
    return worse, better, float(error_ratios[worst]), number_in_group(queries, sample, worst)


def _ratios_at(
    first: Plan, second: Plan, group: int, sample: list[npt.NDArray[np.int64]] | None
) -> Array:
    """Return ratios of standard errors of two plans for all queries of a group, or for a sample."""
    return ratios(*(np.sqrt(variances_of(plan, group, sample)) for plan in (first, second)))


def single_groups_text(tuned_plan: Plan, uniform_plan: Plan | None = None) -> str:
    """Return a sentence that compares a tuned plan with uniform centers, in total and by group.

    The sentence is empty for plans that are not tuned, or have another objective than the sum.
    ``uniform_plan`` is the plan with uniform centers; by default it is computed here.

    >>> from engine import Attribute, Budget, Schema, Workload
    >>> schema = Schema([Attribute.of_size(name, 20) for name in ("age", "wage", "rent")])
    >>> workload = Workload.all_ways(schema)
    >>> tuned = plan(workload, Budget(pcost=1.0), centers="tuned", keep=0.05)
    >>> print(single_groups_text(tuned))  # doctest: +NORMALIZE_WHITESPACE
    10.6% smaller errors in total than with uniform centers; 3 of 7 tables are less accurate,
    age by 5.0%.
    """
    if tuned_plan.options.get("centers") != "tuned" or tuned_plan.options.get("objective") != "sum":
        return ""
    options = {name: value for name, value in tuned_plan.options.items() if name != "keep"} | {
        "centers": "uniform"
    }
    uniform_plan = uniform_plan or plan(
        tuned_plan.workload,
        tuned_plan.budget,
        tuned_plan.mechanism,
        max_records=tuned_plan.max_records,
        **options,
    )
    rises = [
        math.sqrt(tuned / uniform) - 1.0 if 0.0 < uniform < math.inf else 0.0
        for tuned, uniform in zip(tuned_plan.totals, uniform_plan.totals, strict=True)
    ]
    gain = 1.0 - tuned_plan.weighted_rmse / uniform_plan.weighted_rmse
    worst = max(range(len(rises)), key=rises.__getitem__)
    if gain < MIN_SHOWN_GAIN and rises[worst] <= EQUAL_ERROR_TOLERANCE:
        return "Uniform centers give the same errors."
    text = f"{max(gain, 0.0):.1%} smaller errors in total than with uniform centers; "
    if rises[worst] <= EQUAL_ERROR_TOLERANCE:
        return text + "no table is less accurate."
    worst_name = set_name(tuned_plan.workload.groups[worst].attributes)
    number = sum(rise > EQUAL_ERROR_TOLERANCE for rise in rises)
    return (
        text
        + f"{number:,} of {len(rises):,} tables are less accurate, {worst_name} by {rises[worst]:.1%}."
    )


REQUEST_COLUMNS = ("what", "first", "second")
ABSENT = "-"


@dataclass(frozen=True, kw_only=True, eq=False)
class PlanDifference:
    """Differences between two plans.

    Attributes
    ----------
    words : one sentence per kind of difference; empty if the requests are equal.
    request : one row per difference between the requests: what, first, second.
    groups : one row per group of either plan: in (which plans contain the group), attributes,
        family, queries, weights, RMSE of both plans in counts, and the ratio second / first; NaN if
        one plan does not contain the group.
    """

    words: tuple[str, ...]
    request: pd.DataFrame
    groups: pd.DataFrame


def plan_diff(first: Plan, second: Plan) -> PlanDifference:
    """Return the differences between two plans.

    Groups are matched by attributes, family and query weights.

    >>> from engine import Attribute, Budget, plan, Schema, Workload
    >>> workload = Workload.all_ways(Schema([Attribute.of_size("a", 4)]), (1,), "marginal")
    >>> difference = plan_diff(plan(workload, Budget(pcost=1.0)), plan(workload, Budget(pcost=4.0)))
    >>> difference.words, float(difference.groups["ratio"].round(6)[0])
    (('The budget differs: pcost 1 and pcost 4.',), 0.5)
    """
    import pandas as pd

    sentences, rows = [], []
    for name, value, other_value in _setting_rows(first, second):
        if value != other_value:
            # Options that only one of the mechanisms has appear in the table only.
            if ABSENT not in (value, other_value):
                sentences.append(f"The {name} differs: {value} and {other_value}.")
            rows.append((name, value, other_value))
    schema_rows = _schema_rows(first.schema, second.schema)
    if schema_rows:
        sentences.append(f"The schemas differ in {_plural(len(schema_rows), 'attribute')}.")
    groups = _matched_groups(first, second)
    for kind, subject in (
        ("only first", "only the first plan has"),
        ("only second", "only the second plan has"),
    ):
        if missing := int((groups["in"] == kind).sum()):
            sentences.append(f"{_plural(missing, 'table')} {subject}.".capitalize())
    reweighted = groups[
        (groups["in"] == "both") & (groups["weight, first"] != groups["weight, second"])
    ]
    if len(reweighted):
        sentences.append(f"{_plural(len(reweighted), 'table')} with another weight.")
    rows += schema_rows
    rows += [
        (
            f"weight of {g['attributes']} ({g['family']})",
            f"{g['weight, first']:g}",
            f"{g['weight, second']:g}",
        )
        for _, g in reweighted.iterrows()
    ]
    rows += [
        (
            f"table {g['attributes']} ({g['family']})",
            *(("yes", ABSENT) if g["in"] == "only first" else (ABSENT, "yes")),
        )
        for _, g in groups[groups["in"] != "both"].iterrows()
    ]
    return PlanDifference(
        words=tuple(sentences),
        request=pd.DataFrame(rows, columns=list(REQUEST_COLUMNS)),
        groups=groups,
    )


def _setting_rows(first: Plan, second: Plan) -> list[tuple[str, str, str]]:
    """Return the settings of two plans as rows of name, first value and second value."""
    rows = [
        ("mechanism", first.mechanism, second.mechanism),
        ("budget", _budget_text(first), _budget_text(second)),
        ("cap on records", f"{first.max_records:,}", f"{second.max_records:,}"),
    ]
    for name in sorted({*first.options, *second.options}):
        rows.append(
            (
                f"option {name}",
                _option_text(first.options, name),
                _option_text(second.options, name),
            )
        )
    return rows


def _budget_text(plan: Plan) -> str:
    pure = plan.budget.pure_epsilon
    return (
        f"pcost {plan.budget.pcost!r}".removesuffix(".0")
        if pure is None
        else f"pure epsilon {pure!r}".removesuffix(".0")
    )


def _option_text(options: Mapping[str, Any], name: str) -> str:
    return str(options[name]) if name in options else ABSENT


def _schema_rows(first: Schema, second: Schema) -> list[tuple[str, str, str]]:
    """Return the attributes that differ between two schemas, as rows of name and descriptions."""
    names = [*first.names, *(name for name in second.names if name not in first.names)]
    out = []
    for name in names:
        one, other = (schema[name] if name in schema.names else None for schema in (first, second))
        if one != other:
            left, right = (
                f"{a.kind}, {a.size:,} cells" if a is not None else ABSENT for a in (one, other)
            )
            if left == right:
                right = f"{right}, other labels"
            out.append((f"attribute {name}", left, right))
    return out


def _matched_groups(first: Plan, second: Plan) -> pd.DataFrame:
    """Return one row per group of either plan, with its weights and RMSE under both plans.

    Equal groups of the two plans share a row; duplicates are paired in order of occurrence.
    """
    import pandas as pd

    errors = [plan.by_group()["rmse"].tolist() for plan in (first, second)]
    unmatched: dict[str, list[int]] = {}
    for number, group in enumerate(second.workload.groups):
        unmatched.setdefault(_match_key(group), []).append(number)
    rows = []
    for i, group in enumerate(first.workload.groups):
        candidates = unmatched.get(_match_key(group))
        j = candidates.pop(0) if candidates else None
        rows.append(
            _group_row(group, "only first" if j is None else "both", i, j, first, second, errors)
        )
    for remaining in sorted(number for numbers in unmatched.values() for number in numbers):
        rows.append(
            _group_row(
                second.workload.groups[remaining],
                "only second",
                None,
                remaining,
                first,
                second,
                errors,
            )
        )
    names = [
        "in",
        "attributes",
        "family",
        "queries",
        "weight, first",
        "weight, second",
        "RMSE, first",
        "RMSE, second",
    ]
    frame = pd.DataFrame(rows, columns=names)
    return frame.assign(ratio=frame["RMSE, second"] / frame["RMSE, first"])


def _group_row(
    group: Group,
    where: str,
    i: int | None,
    j: int | None,
    first: Plan,
    second: Plan,
    errors: list[list[float]],
) -> tuple[Any, ...]:
    """Return a row of `_matched_groups`.

    i and j are the numbers of the group in the two plans; None if the plan does not contain it.
    """
    weights = [
        math.nan if k is None else plan.workload.groups[k].weight
        for k, plan in ((i, first), (j, second))
    ]
    rmse = [
        math.nan if k is None else group_errors[k]
        for k, group_errors in zip((i, j), errors, strict=True)
    ]
    return (
        where,
        " × ".join(group.attributes) or "(total)",
        group.family_text,
        group.count,
        *weights,
        *rmse,
    )


def _match_key(group: Group) -> str:
    """Return a text that is equal for groups that differ only in their weight."""
    content = {k: v for k, v in group.to_dict().items() if k != "weight"}
    return json.dumps(content, sort_keys=True)


def _plural(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def summary(first: Plan, second: Plan) -> str:
    """Return a sentence with the change of the typical error."""
    change = second.rmse / first.rmse - 1.0
    if abs(change) < 1e-6:
        return f"Both plans have the same typical error, {format_number(first.rmse)} counts."
    more = "larger" if change > 0 else "smaller"
    return (
        f"The typical error of the second plan is {abs(change):.2%} {more}:"
        f" {format_number(second.rmse)} counts instead of {format_number(first.rmse)}."
    )
