"""Figures of standard errors: positions of queries and of pairs of attributes."""

from __future__ import annotations

import numpy as np
import pytest

from engine.figures import has_map, pairs_picture
from engine.figures.errors import error_grid
from engine.mechanisms import plan
from engine.privacy import Budget
from engine.workload import Attribute, Schema, Workload
from tests.figures.given import checked, workload


def test_grids_hold_every_query_once() -> None:
    asked = workload()
    for i, group in enumerate(asked.groups):
        if len(group.parts) > 2:
            continue
        grid = error_grid(asked, i)
        counts = [p.count for p in group.parts]
        numbers = np.ravel_multi_index(grid.index, counts) if counts else np.zeros(1)
        assert sorted(numbers) == list(range(group.count))
        assert all(len(texts) == group.count for texts in grid.columns().values())


def test_a_map_of_pairs_has_every_pair_twice_the_least_exact_first() -> None:
    schema = Schema([Attribute.of_size(name, n) for name, n in zip("abcd", (2, 9, 3, 5), strict=True)])
    asked = Workload.all_ways(schema, (1, 2), family="prefix").add(("a", "b", "c"))
    made = plan(asked, Budget(pcost=1.0))
    picture = checked(pairs_picture(made))
    drawn, dots = picture.figure.data
    grid, names = np.asarray(drawn.z, float), list(drawn.x)
    for column, row, (chosen, _) in zip(dots.x, dots.y, dots.customdata, strict=True):
        assert set(asked.groups[chosen].attributes) == {column, row}
    assert len(dots.x) == 16  # four attributes alone, and six pairs twice
    for number, group in enumerate(asked.groups[:-1]):
        places = [names.index(name) for name in group.attributes] * 2
        largest = made.by_group()["max_std"][number]
        assert grid[places[0], places[1]] == grid[places[1], places[0]] == pytest.approx(largest)
    assert grid[0].max() == np.nanmax(grid)
    assert not has_map(Workload(schema).add(("a", "b")))
    assert not has_map(Workload.all_ways(Schema([Attribute.of_size(f"x{i}", 2) for i in range(61)]), (2,)))
