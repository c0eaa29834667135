"""Comparison of two plans, by group and by query.

`losses` compares two plans for the same workload, query by query.  `single_groups_text` compares a
plan with tuned centers and a plan with uniform centers; tuning decreases the total error, but can
increase the error of single groups.  `plan_diff` compares plans for different requests: it returns
the differences between the requests, and the RMSE of every group under both plans.
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
from engine._format import cost, format_number, pluralize, set_name, shortest_text
from engine.analysis.ad_hoc_queries import condition_name, table_names
from engine.analysis.error_distribution import (
    chosen_queries,
    is_exact,
    number_in_group,
    variances_of,
)
from engine.errors import PlanError
from engine.mechanisms import plan
from engine.plans import Plan
from engine.plans.group_variance import GroupVariance
from engine.workload import Group, Schema

if TYPE_CHECKING:
    import pandas as pd


SAMPLED = (
    "Computed on an even sample of the queries of each group and on its first and last queries;"
    " other queries may be worse."
)
# Products of the first and last queries of this many query families are added to a sample.
MAX_CORNER_PARTS = 10
MIN_SHOWN_GAIN = 5e-4  # smallest relative decrease of the total error that is reported
EQUAL_ERROR_TOLERANCE = 1e-6  # relative; more than the effect of rounding noise to its grid


@dataclass(frozen=True, kw_only=True, eq=False)
class Losses:
    """Comparison of the standard errors of two plans for the same queries.

    All ratios are the standard error under the first plan divided by that under the second plan.
    A ratio counts as above or below 1 if it differs by more than `EQUAL_ERROR_TOLERANCE`.

    Attributes
    ----------
    groups : one row per group, the largest ratio first.  Columns: group (its index), attributes
        and family as text, queries (their number), worse and better (shares of its queries with a
        ratio above and below 1), worst ratio (the largest), worst query (its text).
    worse, better : shares of all queries with a ratio above and below 1.
    worst : largest ratio of a query.
    query : text of the query with this ratio.
    exact : True if every query was evaluated; False if large groups may have been sampled.
    """

    groups: pd.DataFrame
    worse: float
    better: float
    worst: float
    query: str
    exact: bool


def ratios(first: Array, second: Array) -> Array:
    """Return ``first / second`` elementwise, and 1 where the two are equal, also for 0 or infinity.

    The arrays contain standard errors and have the same shape.

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
            "The two plans answer different queries. Give two plans with the same schema and the"
            " same groups of queries in the same order."
        )


def losses(first: Plan, second: Plan) -> Losses:
    """Compare the standard errors of two plans for the same workload, query by query.

    If the workload has more than four million queries, only some queries of each large group are
    evaluated: a sample, and products of the first and last queries of its query families.  In this
    case the worst ratio is a lower bound.

    Raises
    ------
    PlanError : the schemas or the groups of queries of the plans differ.
    """
    import pandas as pd

    check_same_queries(first, second)
    workload, rows = first.workload, []
    # Groups with equal variances under both plans are compared once.
    results = dict[tuple[GroupVariance, GroupVariance], tuple[float, float, float, int]]()
    for i, group in enumerate(workload.groups):
        key = (first.group_variance(i), second.group_variance(i))
        if key not in results:
            results[key] = _group_losses(first, second, i)
        worse, better, worst, number = results[key]
        attributes = set_name(group.attributes)
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
    """Compare the standard errors of a group's queries, or of a sample of them, under two plans.

    Returns
    -------
    worse, better : shares of the queries with a larger and with a smaller standard error under the
        first plan than under the second.
    worst : largest ratio of standard errors, first plan divided by second plan.
    number : index within the group of a query with this ratio.
    """
    queries, sample = first.workload.groups[group], chosen_queries(first.workload, group)
    error_ratios = _ratios_at(first, second, group, sample)
    worse = float(np.mean(error_ratios > 1.0 + EQUAL_ERROR_TOLERANCE))
    better = float(np.mean(error_ratios < 1.0 - EQUAL_ERROR_TOLERANCE))
    # The largest ratio is often that of a product of first and last queries of the query families,
    # which a sample rarely contains.  These products are added after the shares are computed,
    # because shares need an evenly spread sample.
    if sample is not None:
        corner_parts = queries.parts[:MAX_CORNER_PARTS]
        corners = list(itertools.product(*(sorted({0, p.count - 1}) for p in corner_parts)))
        # All families after the first MAX_CORNER_PARTS contribute their first query to each
        # product.
        zeros = [np.zeros(len(corners), dtype=np.int64) for _ in queries.parts[MAX_CORNER_PARTS:]]
        corner_positions = [*np.array(corners).T, *zeros]
        sample = [
            np.concatenate([sampled_positions, corners_of_family])
            for sampled_positions, corners_of_family in zip(sample, corner_positions, strict=True)
        ]
        error_ratios = _ratios_at(first, second, group, sample)
    # Rounding must not decide between equal ratios, so ``worst`` is the first evaluated query whose
    # ratio is the largest up to the tolerance.
    worst = int(np.argmax(error_ratios >= error_ratios.max() * (1.0 - EQUAL_ERROR_TOLERANCE)))
    return worse, better, float(error_ratios[worst]), number_in_group(queries, sample, worst)


def _ratios_at(
    first: Plan, second: Plan, group: int, sample: list[npt.NDArray[np.int64]] | None
) -> Array:
    """Return the ratios of standard errors of two plans for the queries of a group.

    ``sample`` is the result of `chosen_queries`; None stands for all queries of the group.
    """
    return ratios(*(np.sqrt(variances_of(plan, group, sample)) for plan in (first, second)))


def single_groups_text(tuned_plan: Plan, uniform_plan: Plan | None = None) -> str:
    """Return a sentence about the errors of a plan with tuned centers and one with uniform centers.

    The sentence states the decrease of the total error and, if the error of some groups increases,
    their number and the largest increase.  If no error differs noticeably, the sentence states only
    this.  The text is empty if the centers of the first plan are not tuned, or its objective is
    not the sum of the variances.

    Parameters
    ----------
    uniform_plan : plan for the same request with uniform centers; by default it is computed.

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
    worst_name = table_names(tuned_plan.workload)[worst]
    number = sum(rise > EQUAL_ERROR_TOLERANCE for rise in rises)
    return (
        f"{text}{number:,} of {pluralize(len(rises), 'table')} {'is' if number == 1 else 'are'} "
        f"less accurate, {worst_name} by {rises[worst]:.1%}."
    )


REQUEST_COLUMNS = ("what", "first", "second")
ABSENT = "-"


@dataclass(frozen=True, kw_only=True, eq=False)
class PlanDifference:
    """Differences between two plans.

    Attributes
    ----------
    words : sentences on the differences between the requests.  Options that only one of the plans
        has are in ``request`` only.
    request : one row per difference between the requests.  Columns: what (name of the setting,
        attribute or group), first, second (texts of its values in the two plans).
    groups : one row per group of either plan.  Columns: in ("both", "only first" or "only second"),
        attributes (or the condition of a group with a single query) and family as text, queries
        (their number), the weights and the RMSEs in counts under the first and the second plan, and
        ratio (second RMSE divided by first).  A weight or RMSE is NaN if the plan does not contain
        the group.
    """

    words: tuple[str, ...]
    request: pd.DataFrame
    groups: pd.DataFrame


def plan_diff(first: Plan, second: Plan) -> PlanDifference:
    """Return the differences between two plans, which can have different schemas and workloads.

    A group of the first plan and a group of the second plan are the same group if attributes,
    family and query weights are equal.

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
            # An option of only one of the plans gets a row of the table, but no sentence.
            if ABSENT not in (value, other_value):
                sentences.append(f"The {name} differs: {value} and {other_value}.")
            rows.append((name, value, other_value))
    schema_rows = _schema_rows(first.schema, second.schema)
    if schema_rows:
        sentences.append(f"The schemas differ in {pluralize(len(schema_rows), 'attribute')}.")
    groups = _matched_groups(first, second)
    for kind, owner in (("only first", "first"), ("only second", "second")):
        if n_groups := int((groups["in"] == kind).sum()):
            verb = "is" if n_groups == 1 else "are"
            sentences.append(f"{pluralize(n_groups, 'table')} {verb} only in the {owner} plan.")
    reweighted = groups[
        (groups["in"] == "both") & (groups["weight, first"] != groups["weight, second"])
    ]
    if len(reweighted):
        verb = "has" if len(reweighted) == 1 else "have"
        weights = "another weight" if len(reweighted) == 1 else "other weights"
        sentences.append(f"{pluralize(len(reweighted), 'table')} {verb} {weights}.")
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
        ("budget", *_budget_texts(first, second)),
        (
            "number of rows per person",
            f"{first.budget.rows_per_person:,}",
            f"{second.budget.rows_per_person:,}",
        ),
        ("definition of neighbours", first.budget.neighbours, second.budget.neighbours),
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


def _budget_texts(first: Plan, second: Plan) -> tuple[str, str]:
    """Return the budgets of two plans as rounded texts.

    Different budgets whose rounded texts are equal are written with all digits.
    """
    names, amounts = [], []
    for budget in (first.budget, second.budget):
        if budget.pure_epsilon is None:
            names.append("pcost")
            amounts.append(budget.pcost)
        else:
            names.append("pure epsilon")
            amounts.append(budget.pure_epsilon)
    first_text, second_text = (
        f"{name} {cost(amount)}" for name, amount in zip(names, amounts, strict=True)
    )
    if first_text == second_text and amounts[0] != amounts[1]:
        first_text, second_text = (
            f"{name} {shortest_text(amount)}" for name, amount in zip(names, amounts, strict=True)
        )
    return first_text, second_text


def _option_text(options: Mapping[str, Any], name: str) -> str:
    return str(options[name]) if name in options else ABSENT


def _schema_rows(first: Schema, second: Schema) -> list[tuple[str, str, str]]:
    """Return one row per attribute that differs between two schemas.

    A row contains the name, and the kind and size of the attribute in each schema, as texts.  The
    second text has a remark if kind and size are equal.
    """
    names = [*first.names, *(name for name in second.names if name not in first.names)]
    rows = []
    for name in names:
        attributes = [schema[name] if name in schema.names else None for schema in (first, second)]
        if attributes[0] == attributes[1]:
            continue
        first_text, second_text = (
            ABSENT if a is None else f"{a.kind}, {pluralize(a.size, 'cell')}" for a in attributes
        )
        if first_text == second_text:
            second_text = f"{second_text}, other details"
        rows.append((f"attribute {name}", first_text, second_text))
    return rows


def _matched_groups(first: Plan, second: Plan) -> pd.DataFrame:
    """Return the table ``groups`` of `PlanDifference`."""
    import pandas as pd

    plans = (first, second)
    errors = [plan.by_group()["rmse"].tolist() for plan in plans]
    rows = []
    for numbers in _matched_numbers(first, second):
        groups = [
            None if number is None else plan.workload.groups[number]
            for plan, number in zip(plans, numbers, strict=True)
        ]
        presence = "both"
        if None in groups:
            presence = "only first" if groups[1] is None else "only second"
        group = next(group for group in groups if group is not None)
        # A group of a single condition is named by the condition, because several groups can have
        # conditions on the same attributes.
        name = next(
            condition_name(plan.workload, number)
            for plan, number in zip(plans, numbers, strict=True)
            if number is not None
        ) or set_name(group.attributes)
        weights = [math.nan if group is None else group.weight for group in groups]
        rmses = [
            math.nan if number is None else rmses_of_plan[number]
            for number, rmses_of_plan in zip(numbers, errors, strict=True)
        ]
        rows.append((presence, name, group.family_text, group.count, *weights, *rmses))
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


def _matched_numbers(first: Plan, second: Plan) -> list[tuple[int | None, int | None]]:
    """Return the numbers of each group in the two plans; None for a plan without the group.

    Groups that occur several times in both plans are matched in order of occurrence.
    """
    unmatched: dict[str, list[int]] = {}
    for number, group in enumerate(second.workload.groups):
        unmatched.setdefault(_match_key(group), []).append(number)
    pairs: list[tuple[int | None, int | None]] = []
    for number, group in enumerate(first.workload.groups):
        candidates = unmatched.get(_match_key(group))
        pairs.append((number, candidates.pop(0) if candidates else None))
    return pairs + [(None, number) for number in sorted(itertools.chain(*unmatched.values()))]


def _match_key(group: Group) -> str:
    """Return a text that is equal for two groups if only their weights differ."""
    content = {name: value for name, value in group.to_dict().items() if name != "weight"}
    return json.dumps(content, sort_keys=True)


def summary(first: Plan, second: Plan) -> str:
    """Return a sentence that compares the RMSEs of two plans."""
    if math.isclose(first.rmse, second.rmse, rel_tol=1e-6):
        return f"Both plans have the same typical error, {format_number(first.rmse)} counts."
    more = "larger" if second.rmse > first.rmse else "smaller"
    if 0.0 < first.rmse < math.inf and second.rmse < math.inf:
        more = f"{abs(second.rmse / first.rmse - 1.0):.2%} {more}"
    return (
        f"The typical error of the second plan is {more}:"
        f" {format_number(second.rmse)} counts instead of {format_number(first.rmse)}."
    )
