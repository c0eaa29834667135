"""Figures of standard errors: positions of queries and of pairs of attributes."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from engine.figures import areas_picture, error_picture, has_map, pairs_picture
from engine.figures.base import log_ticks
from engine.figures.plans import error_grid, spread_axes
from engine.mechanisms import plan
from engine.privacy import Budget
from engine.workload import Attribute, Custom, Schema, Workload
from tests.figures.example import check_picture, example_workload


def test_error_grid_contains_every_query_once() -> None:
    workload = example_workload()
    for i, group in enumerate(workload.groups):
        if len(group.parts) > 2:
            continue
        grid = error_grid(workload, i)
        counts = [part.count for part in group.parts]
        queries = np.ravel_multi_index(grid.index, counts) if counts else np.zeros(1)
        assert sorted(queries) == list(range(group.count))
        assert all(len(texts) == group.count for texts in grid.columns().values())


def test_pairs_picture_is_symmetric_and_sorted() -> None:
    schema = Schema(
        [Attribute.of_size(name, n) for name, n in zip("abcd", (2, 9, 3, 5), strict=True)]
    )
    workload = Workload.all_ways(schema, (1, 2), family="prefix").add(("a", "b", "c"))
    result = plan(workload, Budget(pcost=1.0))
    picture = check_picture(pairs_picture(result))
    heatmap, dots = picture.figure.data
    grid = pd.DataFrame(np.asarray(heatmap.z, float), index=heatmap.y, columns=heatmap.x)
    for column, row, (group, _) in zip(dots.x, dots.y, dots.customdata, strict=True):
        assert set(workload.groups[group].attributes) == {column, row}
    # four single attributes, and six pairs in both orders
    assert len(dots.x) == 4 + 2 * 6
    for group, max_std in zip(workload.groups[:-1], result.by_group()["max_std"], strict=False):
        first, last = group.attributes[0], group.attributes[-1]
        assert grid.loc[first, last] == grid.loc[last, first] == pytest.approx(max_std)
    assert grid.iloc[0].max() == grid.max(axis=None)
    assert not has_map(Workload(schema).add(("a", "b")))
    assert not has_map(
        Workload.all_ways(Schema([Attribute.of_size(f"x{i}", 2) for i in range(61)]), (2,))
    )


def test_log_axes_have_ticks_at_1_2_5() -> None:
    assert log_ticks(0.4, 12.0) == [0.5, 1.0, 2.0, 5.0, 10.0]
    assert len(log_ticks(1e-3, 1e6)) <= 10
    # a narrow range has equidistant ticks inside it
    for low, high in ((10.2, 11.1), (0.031, 0.039), (990.0, 1010.0)):
        ticks = log_ticks(low, high)
        assert 3 <= len(ticks) <= 10
        assert low <= ticks[0] < ticks[-1] <= high
        assert np.diff(ticks) == pytest.approx(ticks[1] - ticks[0])
    axis = spread_axes((0.5, 40.0))["xaxis"]
    assert axis["ticktext"] == ["0.5", "1", "2", "5", "10", "20"]
    assert "tickvals" not in spread_axes(None)["xaxis"]


def test_areas_picture_has_area_names_and_errors() -> None:
    table = pd.DataFrame(
        {
            "area": [1, 0],
            "label": ["<b>South</b>", "North"],
            "RMSE": [2.0, 1.0],
            "largest standard error": [3.0, 1.5],
        }
    )
    picture = areas_picture(table, "region")
    assert list(picture.table) == ["region", "RMSE", "largest standard error"]
    assert picture.figure.data[0].x == ("&lt;b&gt;South&lt;/b&gt;", "North")
    assert "from 1.5" in picture.alt
    assert "region" in picture.alt


def test_error_grid_of_ranges_proposes_single_axis() -> None:
    schema = Schema([Attribute.of_size("day", 3), Attribute.of_size("age", 4)])
    workload = Workload(schema).add(("day", "age"), {"day": "prefix", "age": "range"})
    assert error_grid(workload, 0).note == (
        "To see the ranges as a triangle, choose age as the only axis."
    )
    assert not error_grid(workload, 0, across=[1]).note


def test_picture_of_one_query_is_in_the_singular() -> None:
    schema = Schema([Attribute.of_size("age", 3)])
    workload = Workload(schema).add("age", Custom(predicates=["age < 1"]))
    picture = error_picture(plan(workload, Budget(pcost=1.0)), 0)
    assert picture.title == "Standard error of 1 query on age"
    assert picture.alt.startswith("1 query on age: standard error ")
