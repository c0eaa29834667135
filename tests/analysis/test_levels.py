"""Errors and answers for the areas of one level of a code list, for example all counties."""

from __future__ import annotations

import numpy as np
import pandas as pd

from engine.analysis import levels
from engine.analysis.variance_breakdown import sorted_by_error
from engine.mechanisms import plan
from engine.privacy import Budget
from engine.release import measure
from engine.workload.level_queries import levels_of_group
from tests.code_lists import SCHEMA, WORKLOAD

PLAN = plan(WORKLOAD, Budget(pcost=1.0))
LEVELS = levels_of_group(SCHEMA, WORKLOAD.groups[0])


def test_area_errors_are_those_of_queries() -> None:
    variances = PLAN.variances(0)
    for level in LEVELS:
        table = levels.area_errors(PLAN, 0, level)
        assert sorted(table["area"]) == list(range(len(level.labels)))
        assert table["largest standard error"].round(9).is_monotonic_decreasing
        for row in table.itertuples(index=False):
            of_area = variances[level.numbers([row.area], 0, 10**6)]
            np.testing.assert_allclose(row.RMSE**2, of_area.mean())
            np.testing.assert_allclose(row[3] ** 2, of_area.max())


def test_area_errors_in_pieces_are_equal(monkeypatch) -> None:
    expected = levels.area_errors(PLAN, 0, LEVELS[2])
    monkeypatch.setattr(levels, "MAX_ENTRIES", 13)
    other_plan = plan(WORKLOAD, Budget(pcost=1.0))
    pd.testing.assert_frame_equal(levels.area_errors(other_plan, 0, LEVELS[2]), expected)


def test_areas_with_errors_equal_up_to_rounding_keep_their_order() -> None:
    errors = pd.DataFrame({"area": [0, 1, 2], "largest standard error": [2.0, 2.0 + 4e-16, 3.0]})
    table = sorted_by_error(errors.assign(RMSE=[1.0, 1.0, 0.0]))
    assert table["area"].tolist() == [2, 0, 1]


def test_areas_are_found_by_text() -> None:
    table = levels.area_errors(PLAN, 0, LEVELS[2])
    assert set(levels.find_areas(table, LEVELS[2], "C")["label"]) == {"c1", "c2", "c3"}
    assert not len(levels.find_areas(table, LEVELS[2], "nowhere"))


def test_page_of_level_has_its_answers() -> None:
    people = pd.DataFrame({"sex": ["F"], "place": ["c2"], "age": [1], "work": ["a1"]})
    measurement = measure(PLAN, people, rehearsal=True, seed=1)

    def read(first: int, end: int) -> pd.DataFrame:
        return measurement.answers(0, first, end)

    county = LEVELS[1]
    every = levels.level_page(read, county, range(3))
    assert len(every) == 2 * 3 * 3  # sexes, counties and ages
    assert every["query"].str.contains("county = ").all()
    page = levels.level_page(read, county, range(3), 5, 9)
    pd.testing.assert_frame_equal(page, every.iloc[5:9].reset_index(drop=True))
    assert len(levels.level_page(read, county, [])) == 0
