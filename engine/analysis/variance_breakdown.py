"""Contribution of each residual space to a variance.

The variance of a query is a sum over the residual spaces inside its attributes, so every space has its share of it.  A
space with a large share is where more exactness has to be bought: by weight, by coarser cells, or by fewer sets.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from engine._values import kept_with
from engine.analysis.ad_hoc_queries import find_groups
from engine.errors import NotAnswerable, PlanError
from engine.plans import Plan
from engine.plans.variance import GroupVariance

if TYPE_CHECKING:
    import pandas as pd


EVEN = 1e-6  # two standard errors differ by less where only the rounding of noise to its grid sets them apart
MOST = 2_000_000  # queries of a group among which the least exact one is looked for


def breakdown(plan: Plan, group: int, query: int | None = None) -> pd.DataFrame:
    """Return how the variance of a query, or the mean variance of a group, adds up; the largest share first.

    Parameters
    ----------
    group : number of the group in the workload.
    query : number of the query in the group; the mean over all its queries when left out.

    Returns
    -------
    DataFrame with one row a residual space, or one row for the component that answers the group in an explicit plan:
    attributes (names), variance in counts^2, share of the variance, and noise, the standard deviation in counts of what
    is measured there.  The variances add up to that of the query or to the group's mean.

    Raises
    ------
    PlanError : no such group or query.
    NotAnswerable : the plan does not measure what is asked.

    >>> from engine.workload import Attribute, Schema, Workload
    >>> from engine.privacy.budget import Budget
    >>> from engine.mechanisms import plan
    >>> workload = Workload.all_ways(Schema([Attribute.of_size(c, 3) for c in "ab"]), (1, 2), "marginal")
    >>> breakdown(plan(workload, Budget(pcost=1.0)), 2)["attributes"].tolist()
    [('a', 'b'), ('a',), ('b',), ()]
    """
    import pandas as pd

    table = pd.DataFrame(_summands(plan, group, query), columns=["attributes", "variance", "share", "noise"])
    return table.sort_values("share", ascending=False, kind="stable", ignore_index=True)


@kept_with
def _summands(plan: Plan, group: int, query: int | None) -> list[tuple[tuple[str, ...], float, float, float]]:
    found = plan.group_variance(group)
    asked = plan.workload.groups[group]
    if query is not None and not 0 <= query < asked.count:
        raise PlanError(f"There is no query {query!r} in group {group}; it has queries 0 to {asked.count - 1:,}.")
    whole = _variance(found, query)
    if not math.isfinite(whole):
        raise NotAnswerable(
            f"Queries of group {group} cannot be answered from what this plan measures, so their error is unbounded. "
            "Give the group a weight above 0."
        )
    rows = []
    for summand, block in zip(found.summands, plan.sources(group), strict=True):
        variance = _variance(replace(found, summands=(summand,), unmeasured=()), query)
        rows.append((block.attributes, variance, variance / whole if whole > 0 else 0.0, block.noise))
    return rows


@kept_with
def errors_by_group(plan: Plan) -> pd.DataFrame:
    """Return `Plan.by_group`, kept with the plan."""
    return plan.by_group()


def worst_group(plan: Plan) -> int:
    """Return the number of the group that holds the query with the largest variance."""
    return int(np.argmax(errors_by_group(plan)["max_std"].to_numpy()))


@kept_with
def worst_query(plan: Plan, group: int) -> int | None:
    """Return the number of the least exact query of a group; None when the group is too large to look at each."""
    if plan.workload.groups[group].count > MOST:
        return None
    return int(np.argmax(plan.variances(group)))


def breakdown_text(plan: Plan, group: int, query: int | None = None) -> str:
    """Return the largest shares in words."""
    table = breakdown(plan, group, query)
    if plan.whole_tables:
        return f"Everything comes from one measured table, on {_name(table['attributes'][0])}."
    pieces = []
    for names, share in zip(table["attributes"].head(3), table["share"].head(3), strict=True):
        if share >= 0.005:
            beyond = f"what the table on {_name(names)} says beyond its smaller tables" if names else "the total"
            pieces.append(f"{share:.0%} comes from {beyond if len(names) != 1 else f'the distribution of {names[0]}'}")
    return f"{'; '.join(pieces)}." if pieces else "There is no noise on it."


def _name(names: tuple[str, ...]) -> str:
    return " × ".join(names) or "no attribute"


def _variance(found: GroupVariance, query: int | None) -> float:
    """Variance of a query, or the mean over the group."""
    if query is None:
        return found.total() / math.prod(found.counts)
    if not found.counts:
        return float(found.at(()))
    return float(found.at(tuple(np.array([i]) for i in np.unravel_index(query, found.counts)))[0])


@kept_with
def group_table(plan: Plan) -> pd.DataFrame:
    """Return `Plan.by_group` for reading: the group's number, attributes as text, errors in counts."""
    found = errors_by_group(plan)
    names = [" × ".join(names) or "(total)" for names in found["attributes"]]
    weights = [g.weight for g in plan.workload.groups]
    out = found.assign(attributes=names).rename(columns={"rmse": "RMSE", "max_std": "largest standard error"})
    out.insert(0, "group", range(len(out)))
    return out.assign(weight=weights)


def worst_first(plan: Plan, *, ways: int | None = None, words: str = "") -> pd.DataFrame:
    """Return `group_table` with the group of the least exact query first, and among equals the largest RMSE.

    ``ways`` keeps the groups on so many attributes, ``words`` those that `find_groups` finds.
    """
    order = ["largest standard error", "RMSE"]
    table = group_table(plan).sort_values(order, ascending=False, kind="stable", ignore_index=True)
    kept = set(find_groups(plan.workload, words))
    asked = plan.workload.groups
    inside = [g in kept and ways in (None, len(asked[g].attributes)) for g in table["group"]]
    return table[inside].reset_index(drop=True)


def even_error(plan: Plan, group: int) -> float | None:
    """Return the standard error, in counts, that all queries of a group share; None when they differ.

    >>> from engine.workload import Attribute, Schema, Workload
    >>> from engine.privacy.budget import Budget
    >>> from engine.mechanisms import plan
    >>> workload = Workload(Schema([Attribute.of_size("a", 4)])).add("a", "marginal").add("a", "prefix")
    >>> made = plan(workload, Budget(pcost=1.0))
    >>> even_error(made, 0) is None, even_error(made, 1) is None
    (False, True)
    """
    typical, largest = (float(errors_by_group(plan)[name][group]) for name in ("rmse", "max_std"))
    return largest if typical >= largest * (1.0 - EVEN) else None


def worst_error(plan: Plan) -> float:
    """Return the largest standard error of a query, in counts; as `Plan.max_variance`, from the table that is shown."""
    return float(group_table(plan)["largest standard error"].max())
