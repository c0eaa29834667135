"""Decomposition of variances into the contributions of residual spaces; errors of areas.

A residual space is the part of a table that no smaller attribute set contains.  The variance of a
query is a sum over the residual spaces of all subsets of its attributes.  To lower the term of a
subset, raise the weight of the group on this subset, or use coarser cells or fewer attribute sets.

`area_errors` returns the standard errors of the areas at one level of a hierarchy, such as all
states.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from engine._values import cached_on_value
from engine.analysis.ad_hoc_queries import find_groups, table_names
from engine.errors import NotAnswerable, PlanError
from engine.plans import Plan
from engine.plans.group_variance import GroupVariance
from engine.workload.level_queries import LevelQueries

if TYPE_CHECKING:
    import pandas as pd

EQUAL_ERROR_TOLERANCE = 1e-6  # relative; more than the effect of rounding noise to its grid
MAX_QUERIES_SEARCHED = 2_000_000  # largest group that `worst_query` searches


def breakdown(plan: Plan, group: int, query: int | None = None) -> pd.DataFrame:
    """Decompose the variance of a query, or the mean variance of a group, by residual space.

    Parameters
    ----------
    group : index of the group in the workload.
    query : index of the query in the group; by default the mean over all queries of the group.

    Returns
    -------
    DataFrame with one row per residual space, the largest share first.  If the plan measures the
    rows of strategy matrices instead of residual spaces, it has one row, for the matrix that
    answers the group.  Columns:

    - attributes: attribute names of the space.
    - variance: its contribution to the variance, in counts^2.
    - share: its share of the variance.
    - noise: standard deviation of the noise of its measurements, in counts.

    Raises
    ------
    PlanError : the group or query does not exist.
    NotAnswerable : the plan does not answer the query or, without ``query``, all queries of the
        group.

    >>> from engine import Attribute, Budget, plan, Schema, Workload
    >>> schema = Schema([Attribute.of_size(c, 3) for c in "ab"])
    >>> workload = Workload.all_ways(schema, (1, 2), "marginal")
    >>> breakdown(plan(workload, Budget(pcost=1.0)), 2)["attributes"].tolist()
    [('a', 'b'), ('a',), ('b',), ()]
    """
    import pandas as pd

    table = pd.DataFrame(
        _variance_terms(plan, group, query), columns=["attributes", "variance", "share", "noise"]
    )
    return table.sort_values("share", ascending=False, kind="stable", ignore_index=True)


@cached_on_value
def _variance_terms(
    plan: Plan, group: int, query: int | None
) -> list[tuple[tuple[str, ...], float, float, float]]:
    """Return the rows of `breakdown` in the order of the residual spaces of the plan."""
    group_variance = plan.group_variance(group)
    queries = plan.workload.groups[group]
    if query is not None and not 0 <= query < queries.count:
        raise PlanError(
            f"There is no query {query!r} in group {group}. Give a number from 0 to"
            f" {queries.count - 1:,}."
        )
    total = _variance(group_variance, query)
    if not math.isfinite(total):
        raise NotAnswerable(
            f"The measurements of this plan do not determine all queries of group {group}, so their"
            " variance is infinite. Give the group a weight above 0."
        )
    rows = []
    for term, block in zip(group_variance.terms, plan.sources(group), strict=True):
        variance = _variance(replace(group_variance, terms=(term,), unmeasured=()), query)
        rows.append(
            (block.attributes, variance, variance / total if total > 0 else 0.0, block.noise)
        )
    return rows


@cached_on_value
def errors_by_group(plan: Plan) -> pd.DataFrame:
    """Return `Plan.by_group`, cached per plan."""
    return plan.by_group()


@cached_on_value
def worst_query(plan: Plan, group: int) -> int | None:
    """Return the index of the query with the largest variance in a group.

    None is returned for a group of more than `MAX_QUERIES_SEARCHED` queries.
    """
    if plan.workload.groups[group].count > MAX_QUERIES_SEARCHED:
        return None
    return int(np.argmax(plan.variances(group)))


def least_accurate_queries(plan: Plan, group: int) -> list[int]:
    """Return indices of queries, one per query family, whose product is the least accurate query.

    If the product with the first query of a family is equally inaccurate, the index for this
    family is 0.  All indices are 0 if the group has too many queries to search; see `worst_query`.
    """
    counts = tuple(part.count for part in plan.workload.groups[group].parts)
    worst = worst_query(plan, group)
    if worst is None:
        return [0] * len(counts)
    variance = plan.group_variance(group)
    queries = [int(i) for i in np.unravel_index(worst, counts)]
    for p in range(len(queries)):
        candidate = [*queries[:p], 0, *queries[p + 1 :]]
        points = tuple(np.array(pair) for pair in zip(candidate, queries, strict=True))
        candidate_variance, largest = variance.at(points)
        if candidate_variance >= largest * (1.0 - EQUAL_ERROR_TOLERANCE):
            queries = candidate
    return queries


def breakdown_text(plan: Plan, group: int, query: int | None = None) -> str:
    """Return a sentence with the residual spaces that contribute most to the variance of a query.

    If ``query`` is None, the mean variance of the group takes its place.  The sentence names at
    most three spaces, each with a share of at least 0.5%.  If the plan answers the group from one
    measured table, the sentence names this table instead.  If a named contribution comes from a
    joint measurement on more attributes than the group has, a second sentence explains this.
    """
    table = breakdown(plan, group, query)
    attributes = set(plan.workload.groups[group].attributes)
    if plan.full_tables:
        measured = table["attributes"][0]
        computed = "" if attributes == {*measured} else ", from which this table is computed"
        return f"All error comes from one measured table, {_name(measured)}{computed}."
    contributions: list[str] = []
    larger_tables: list[str] = []  # sources with more attributes than the group
    for names, share in zip(table["attributes"].head(3), table["share"].head(3), strict=True):
        # A smaller share would be shown as 0%.
        if share >= 0.005:
            source = names[0] if names else "the total"
            if not attributes.issuperset(names):
                source = _name(names)
                larger_tables.append(source)
            elif len(names) > 1:
                source = f"the {_name(names)} interaction"
            start = "on" if contributions else "of the variance comes from noise on"
            contributions.append(f"{share:.0%} {start} {source}")
    if contributions:
        joint_text = _joint_text(larger_tables, is_all=len(larger_tables) == len(contributions))
        return f"{', '.join(contributions)}.{joint_text}"
    return "Every term contributes less than 0.5%." if table["variance"].any() else "No noise."


def _joint_text(larger_tables: list[str], *, is_all: bool) -> str:
    """Return a sentence about joint measurements from which a table is computed; may be empty.

    ``is_all`` is whether the table has no other source of error.
    """
    if not larger_tables:
        return ""
    return (
        f" {'This table' if is_all else 'Part of this table'} is computed from counts by"
        f" {' and '.join(larger_tables)}: measuring them together lowers the error of the workload."
    )


def _name(names: tuple[str, ...]) -> str:
    """Return the text of an attribute set."""
    return " × ".join(names) or "no attribute"


def _variance(variance: GroupVariance, query: int | None) -> float:
    """Return the variance of a query, or the mean variance of the group if ``query`` is None."""
    if query is None:
        return variance.total() / math.prod(variance.counts)
    if not variance.counts:
        return float(variance.at(()))
    return float(
        variance.at(tuple(np.array([i]) for i in np.unravel_index(query, variance.counts)))[0]
    )


@cached_on_value
def group_table(plan: Plan) -> pd.DataFrame:
    """Return a table of the groups of a plan for display.

    Columns: group (its index), attributes and family as text, queries (their number), RMSE and
    largest standard error in counts, weight.
    """
    errors = errors_by_group(plan)
    names = [" × ".join(names) or "(total)" for names in errors["attributes"]]
    weights = [g.weight for g in plan.workload.groups]
    table = errors.assign(attributes=names).rename(
        columns={"rmse": "RMSE", "max_std": "largest standard error"}
    )
    table.insert(0, "group", range(len(table)))
    return table.assign(weight=weights)


def sorted_by_error(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of a table in descending order of the largest standard error, then the RMSE.

    Errors that differ only by rounding count as equal.  Rows with equal errors keep their order.
    """
    with np.errstate(divide="ignore"):
        return table.sort_values(
            ["largest standard error", "RMSE"],
            ascending=False,
            kind="stable",
            ignore_index=True,
            key=lambda errors: np.log(errors).round(9),
        )


@cached_on_value
def names_in_plan(plan: Plan) -> list[str]:
    """Return the names of all groups of a plan, as from `table_names`."""
    return table_names(plan.workload)


def worst_first(plan: Plan, *, ways: int | None = None, words: str = "") -> pd.DataFrame:
    """Return `group_table` in descending order of the largest standard error, then of the RMSE.

    Parameters
    ----------
    ways : number of attributes of the groups to return; by default any.
    words : search text for `find_groups`, which selects the groups to return; by default all.
    """
    table = sorted_by_error(group_table(plan))
    matching = set(find_groups(plan.workload, words))
    groups = plan.workload.groups
    selected = [g in matching and ways in (None, len(groups[g].attributes)) for g in table["group"]]
    return table[selected].reset_index(drop=True)


@cached_on_value
def worst_tables(plan: Plan, count: int = 5) -> pd.DataFrame:
    """Return a table of the ``count`` groups with the largest RMSE, the largest first.

    Columns: attributes (the name of the group, as from `table_names`) and typical error (the RMSE,
    in counts).  The index of the DataFrame has the indices of the groups in the workload.
    """
    import pandas as pd

    errors = np.array(plan.rmses)
    # A workload can have 100,000 groups, so only the largest errors are sorted.
    last = min(count, len(errors))
    candidates = np.argpartition(-errors, last - 1)[:last]
    numbers = candidates[np.argsort(-errors[candidates], kind="stable")]
    names = table_names(plan.workload)
    return pd.DataFrame(
        {"attributes": [names[i] for i in numbers], "typical error": errors[numbers]},
        index=numbers,
    )


def even_error(plan: Plan, group: int) -> float | None:
    """Return the standard error, in counts, of every query of a group; None if they differ.

    >>> from engine import Attribute, Budget, plan, Schema, Workload
    >>> workload = Workload(Schema([Attribute.of_size("a", 4)]))
    >>> workload = workload.add("a", "marginal").add("a", "prefix")
    >>> example = plan(workload, Budget(pcost=1.0))
    >>> even_error(example, 0) is None, even_error(example, 1) is None
    (False, True)
    """
    typical, largest = (float(errors_by_group(plan)[name][group]) for name in ("rmse", "max_std"))
    return largest if typical >= largest * (1.0 - EQUAL_ERROR_TOLERANCE) else None


def worst_error(plan: Plan) -> float:
    """Return the largest standard error of a query, in counts, as in `group_table`."""
    return math.sqrt(max(plan.largest))


MAX_ENTRIES = 2_000_000  # variances that are computed at once, at least those of one area


@cached_on_value
def area_errors(plan: Plan, group: int, level: LevelQueries) -> pd.DataFrame:
    """Return a table of the standard errors of the areas at one level of a hierarchy.

    There is one row per area, the least accurate area first.  Columns: area (its index), label,
    RMSE and largest standard error over the queries on this area, in counts.
    """
    import pandas as pd

    variances, areas = plan.group_variance(group), len(level.labels)
    other_axes = tuple(axis for axis in range(len(level.counts)) if axis != level.part)
    # The areas are evaluated in steps that limit the memory.
    step = max(1, MAX_ENTRIES // level.per_area)
    mean, largest = np.zeros(areas), np.zeros(areas)
    for first in range(0, areas, step):
        end = min(first + step, areas)
        index = [range(count) for count in level.counts]
        index[level.part] = range(level.start + first, level.start + end)
        values = variances.at(tuple(index))
        mean[first:end] = values.mean(axis=other_axes)
        largest[first:end] = values.max(axis=other_axes)
    table = pd.DataFrame(
        {
            "area": np.arange(areas),
            "label": level.labels,
            "RMSE": np.sqrt(mean),
            "largest standard error": np.sqrt(largest),
        }
    )
    return sorted_by_error(table)


def find_areas(table: pd.DataFrame, level: LevelQueries, text: str) -> pd.DataFrame:
    """Return the rows of a table of `area_errors` whose label contains a text, ignoring case."""
    return table[table["area"].isin(level.find(text))].reset_index(drop=True)


def level_page(
    read: Callable[[int, int], pd.DataFrame],
    level: LevelQueries,
    areas: Sequence[int],
    start: int = 0,
    stop: int | None = None,
) -> pd.DataFrame:
    """Return a table of some of the queries on chosen areas of a level.

    Parameters
    ----------
    read : function that returns the rows of the queries ``first:end`` of the group.
    areas : indices of the chosen areas.
    start, stop : slice of the queries on the chosen areas, in the order of `LevelQueries.numbers`;
        by default all of these queries.
    """
    end = len(areas) * level.per_area if stop is None else stop
    return read_runs(read, level.runs(areas, start, end))


def read_runs(
    read: Callable[[int, int], pd.DataFrame], runs: Sequence[tuple[int, int]]
) -> pd.DataFrame:
    """Return one table of the queries of a group in several ranges (first, exclusive end).

    ``read`` is a function that returns the rows of the queries ``first:end`` of the group.
    """
    import pandas as pd

    return pd.concat([read(*run) for run in runs or [(0, 0)]], ignore_index=True)
