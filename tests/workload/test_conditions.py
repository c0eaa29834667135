"""Conditions on cells: their text holds for these cells and no others, and a box of them asks what it says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import WorkloadError
from engine.records import count_marginals
from engine.workload import conditions
from engine.workload.predicates import evaluate
from tests.workload.sql.given import RECORDS, SCHEMA, group_rows


@settings(max_examples=75, deadline=None)
@given(st.data())
def test_the_text_of_cells_holds_for_these_cells(data: st.DataObject) -> None:
    attribute = data.draw(st.sampled_from(SCHEMA.attributes))
    inside = np.array(data.draw(st.lists(st.booleans(), min_size=attribute.size, max_size=attribute.size)))
    found = conditions.of_cells(attribute, inside)
    np.testing.assert_array_equal(evaluate(conditions.text(found), [attribute]), inside)
    np.testing.assert_array_equal(evaluate(conditions.text(conditions.negation(found)), [attribute]), ~inside)


def test_a_box_of_cells() -> None:
    made = conditions.box_workload(SCHEMA, {"age": (2, 3), "sex": (0, 1), "code": (0, 4)}, weight=2.0)
    assert made.describe(0) == "20 <= age < 65 and sex != 'it\\'s or \"not\"'"
    assert made.groups[0].weight == 2.0
    assert made.groups[0].attributes == ("age", "sex")  # all cells of code are no condition
    expected = ((RECORDS.age >= 20) & (RECORDS.age < 65) & RECORDS.sex.isin(["F", "M"])).sum()
    table = count_marginals(RECORDS, SCHEMA, [made.groups[0].attributes])[made.groups[0].attributes]
    assert (group_rows(made.groups[0]) @ table.ravel()).tolist() == [expected]
    assert conditions.box_workload(SCHEMA, {}).describe(0) == "all records"
    for cells in ((-1, 2), (3, 2), (0, 5)):
        with pytest.raises(WorkloadError, match="cells 0 to 4"):
            conditions.box_workload(SCHEMA, {"age": cells})
