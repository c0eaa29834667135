"""Errors and answers of the areas of one level of a code list."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from engine._values import cached_on_value
from engine.plans import Plan
from engine.workload.level_queries import LevelQueries

MAX_ENTRIES = 2_000_000  # variances in memory at once


@cached_on_value
def area_errors(plan: Plan, group: int, level: LevelQueries) -> pd.DataFrame:
    """Return the standard errors of the areas of a level, the least accurate area first.

    Columns: area, label, RMSE and largest standard error of its queries, in counts.
    """
    variances, areas = plan.group_variance(group), len(level.labels)
    others = tuple(axis for axis in range(len(level.counts)) if axis != level.part)
    step = max(1, MAX_ENTRIES // level.per_area)
    mean, largest = np.zeros(areas), np.zeros(areas)
    for first in range(0, areas, step):
        end = min(first + step, areas)
        index = [range(count) for count in level.counts]
        index[level.part] = range(level.start + first, level.start + end)
        values = variances.at(tuple(index))
        mean[first:end], largest[first:end] = values.mean(axis=others), values.max(axis=others)
    table = pd.DataFrame(
        {
            "area": np.arange(areas),
            "label": level.labels,
            "RMSE": np.sqrt(mean),
            "largest standard error": np.sqrt(largest),
        }
    )
    order = ["largest standard error", "RMSE"]
    return table.sort_values(order, ascending=False, kind="stable", ignore_index=True)


def find_areas(table: pd.DataFrame, level: LevelQueries, text: str) -> pd.DataFrame:
    """Return the rows of `area_errors` whose label contains a text, ignoring case."""
    return table[table["area"].isin(level.find(text))].reset_index(drop=True)


def level_page(
    read: Callable[[int, int], pd.DataFrame],
    level: LevelQueries,
    areas: Sequence[int],
    start: int = 0,
    stop: int | None = None,
) -> pd.DataFrame:
    """Return the rows of queries ``start:stop`` on areas of a level, see `LevelQueries.numbers`.

    ``read(first, end)`` returns the rows of queries ``first:end`` of the group.
    """
    end = len(areas) * level.per_area if stop is None else stop
    runs = level.runs(areas, start, end) or [(0, 0)]
    return pd.concat([read(*run) for run in runs], ignore_index=True)
