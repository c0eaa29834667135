"""Two plans of the same queries, query by query: where one is less exact than the other, and by how much.

Tuned plans are better in total than those with uniform centers, and single groups may be less exact.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from engine.arrays import Array
from engine.errors import PlanError
from engine.insight.spread import chosen_queries, is_exact, number_in_group, variances_of
from engine.mechanisms import plan
from engine.plans import GroupVariance, Plan
from engine.texts import set_name

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

    >>> from engine import Attribute, Budget, Schema, Workload
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
