"""Conditions on cells: their texts select exactly these cells; box workloads."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import WorkloadError
from engine.records import count_marginals
from engine.workload import conditions
from engine.workload.predicates import evaluate
from tests.workload.sql.example import RECORDS, SCHEMA, group_rows


@settings(max_examples=75, deadline=None)
@given(st.data())
def test_condition_text_selects_same_cells(data: st.DataObject) -> None:
    attribute = data.draw(st.sampled_from(SCHEMA.attributes))
    size = attribute.size
    cells = np.array(data.draw(st.lists(st.booleans(), min_size=size, max_size=size)))
    condition = conditions.of_cells(attribute, cells)
    negation = conditions.negation(condition)
    np.testing.assert_array_equal(evaluate(conditions.text(condition), [attribute]), cells)
    np.testing.assert_array_equal(evaluate(conditions.text(negation), [attribute]), ~cells)


def test_box_workload_counts_records_in_box() -> None:
    workload = conditions.box_workload(
        SCHEMA, {"age": (2, 3), "sex": (0, 1), "code": (0, 4)}, weight=2.0
    )
    assert workload.describe(0) == "20 <= age < 65 and sex != 'it\\'s or \"not\"'"
    (group,) = workload.groups
    assert group.weight == 2.0
    # The box contains all cells of the attribute "code", so the query omits this attribute.
    assert group.attributes == ("age", "sex")
    in_box = (RECORDS.age >= 20) & (RECORDS.age < 65) & RECORDS.sex.isin(["F", "M"])
    table = count_marginals(RECORDS, SCHEMA, [group.attributes])[group.attributes]
    assert (group_rows(group) @ table.ravel()).tolist() == [in_box.sum()]
    assert conditions.box_workload(SCHEMA, {}).describe(0) == "all records"


def test_box_workload_of_invalid_cells_is_refused() -> None:
    for cells in ((-1, 2), (3, 2), (0, 5)):
        with pytest.raises(WorkloadError, match="cells 0 to 4"):
            conditions.box_workload(SCHEMA, {"age": cells})
