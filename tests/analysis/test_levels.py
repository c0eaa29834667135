"""Errors and answers for the areas of one level of a code list, for example all counties."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from engine.analysis import variance_breakdown
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
        table = variance_breakdown.area_errors(PLAN, 0, level)
        assert sorted(table["area"]) == list(range(len(level.labels)))
        assert table["largest standard error"].round(9).is_monotonic_decreasing
        for row in table.to_dict("records"):
            queries = level.numbers([row["area"]], 0, len(variances))
            np.testing.assert_allclose(row["RMSE"] ** 2, variances[queries].mean())
            np.testing.assert_allclose(row["largest standard error"] ** 2, variances[queries].max())


def test_area_errors_in_pieces_are_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    place = LEVELS[2]
    expected = variance_breakdown.area_errors(PLAN, 0, place)
    monkeypatch.setattr(variance_breakdown, "MAX_ENTRIES", 13)
    # a new plan has no cached errors
    new_plan = plan(WORKLOAD, Budget(pcost=1.0))
    pd.testing.assert_frame_equal(variance_breakdown.area_errors(new_plan, 0, place), expected)


def test_areas_with_equal_errors_keep_their_order() -> None:
    errors = pd.DataFrame({"area": [0, 1, 2], "largest standard error": [2.0, 2.0 + 4e-16, 3.0]})
    table = sorted_by_error(errors.assign(RMSE=[1.0, 1.0, 0.0]))
    assert table["area"].tolist() == [2, 0, 1]


def test_areas_are_found_by_text() -> None:
    place = LEVELS[2]
    table = variance_breakdown.area_errors(PLAN, 0, place)
    assert set(variance_breakdown.find_areas(table, place, "C")["label"]) == {"c1", "c2", "c3"}
    assert variance_breakdown.find_areas(table, place, "nowhere").empty


def test_page_of_level_is_slice_of_answers() -> None:
    people = pd.DataFrame({"sex": ["F"], "place": ["c2"], "age": [1], "work": ["a1"]})
    measurement = measure(PLAN, people, rehearsal=True, seed=1)

    def read_answers(first: int, end: int) -> pd.DataFrame:
        return measurement.answers(0, first, end)

    county = LEVELS[1]
    counties = range(3)
    answers = variance_breakdown.level_page(read_answers, county, counties)
    assert len(answers) == 2 * 3 * 3  # sexes, counties and ages
    assert answers["query"].str.contains("county = ").all()
    page = variance_breakdown.level_page(read_answers, county, counties, 5, 9)
    pd.testing.assert_frame_equal(page, answers.iloc[5:9].reset_index(drop=True))
    assert len(variance_breakdown.level_page(read_answers, county, [])) == 0
