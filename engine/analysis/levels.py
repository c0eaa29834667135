"""Standard errors and answers of the areas at one level of a hierarchy, such as all states."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from engine._values import cached_on_value
from engine.analysis.variance_breakdown import sorted_by_error
from engine.plans import Plan
from engine.workload.level_queries import LevelQueries

MAX_ENTRIES = 2_000_000  # variances that are computed at once, at least those of one area


@cached_on_value
def area_errors(plan: Plan, group: int, level: LevelQueries) -> pd.DataFrame:
    """Return a table of the standard errors of the areas at one level of a hierarchy.

    There is one row per area, the least accurate area first.  Columns: area (its index), label,
    RMSE and largest standard error over the queries on this area, in counts.
    """
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
    return pd.concat([read(*run) for run in runs or [(0, 0)]], ignore_index=True)
