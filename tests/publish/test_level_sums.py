"""Published tables by level: sums along the hierarchy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from engine.mechanisms import plan
from engine.postprocess.uncertainty import Uncertainty
from engine.privacy import Budget
from engine.publish import write_level_sums
from engine.publish.report import read_level_sums
from engine.release import measure
from engine.workload import Attribute, CodeList, Schema, Workload
from engine.workload.level_queries import at_level

CODES = CodeList.from_labels(
    {f"state {s}": [f"{s}{c}" for c in range(4)] for s in range(3)}, levels=["state"]
)
SCHEMA = Schema([Attribute.categorical("sex", ["F", "M"]), Attribute.hierarchy("county", CODES)])
WORKLOAD = Workload(SCHEMA).add(("sex", "county")).add("sex")


@pytest.fixture(scope="module")
def errors() -> Uncertainty:
    rng = np.random.default_rng(3)
    people = pd.DataFrame(
        {"sex": rng.choice(["F", "M"], 900), "county": rng.choice(CODES.codes, 900)}
    )
    measurement = measure(plan(WORKLOAD, Budget(pcost=1.0)), people, rehearsal=True, seed=2)
    return measurement.publish().uncertainty(draws=5)


def test_sums_add_cells_of_areas(errors: Uncertainty) -> None:
    states_by_sex = at_level(SCHEMA, WORKLOAD.groups[0], "county", "state")
    table = errors.published.table(("sex", "county"))
    expected = table.reshape(2, 3, 4).sum(axis=2).ravel()  # 3 states of 4 counties
    np.testing.assert_allclose(errors.published.sums(states_by_sex), expected)
    sums = errors.sums(states_by_sex)
    assert sums["query"].tolist()[:2] == [
        "sex = F and state = state 0",
        "sex = F and state = state 1",
    ]
    np.testing.assert_allclose(sums["published"], expected)
    assert (sums["published_low"] <= expected).all()
    assert (sums["error"] > 0).all()


def test_sums_of_cells_equal_answers(errors: Uncertainty) -> None:
    group = at_level(SCHEMA, WORKLOAD.groups[0], "county", "county")
    sums, answers = errors.sums(group), errors.answers(0)
    pd.testing.assert_frame_equal(sums, answers[list(sums.columns)], check_dtype=False)


def test_level_sums_are_read_by_level(errors: Uncertainty, tmp_path: Path) -> None:
    path = write_level_sums(errors, tmp_path / "sums.parquet")
    group = at_level(SCHEMA, WORKLOAD.groups[0], "county", "state")
    frame = read_level_sums(path, 0, "state")
    pd.testing.assert_frame_equal(frame, errors.sums(group), check_dtype=False)
    assert not len(read_level_sums(path, 1, "state"))
