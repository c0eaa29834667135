"""Attributes with dates and declared missing values in all exports."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from engine.mechanisms import load_plan, plan
from engine.privacy import Budget
from engine.publish import write_answers
from engine.publish.release_package import write_package
from engine.publish.report import write_published, write_records
from engine.publish.tables_package import write_tables, write_workbook
from engine.publish.verify import verify_package
from engine.release import measure
from engine.workload import Attribute, Schema, Workload

UNKNOWN = "unknown " * 100 + "!"
SCHEMA = Schema(
    [
        Attribute.dates("day", "2023-11", "2024-03", missing=UNKNOWN, missing_values=["NA"]),
        Attribute.numeric("pay", [0, 10, 5000], decimal=",", thousands="."),
        Attribute.dates("since", "2019", "2021", "year", clip=True),
    ],
    impossible=["day < '2023-12-01' and since == '2021'"],
)
ROWS = pd.DataFrame(
    {
        "day": ["2023-11-05", "2024-01-01", "2024-03-31T12:00Z", "NA"] * 50,
        "pay": ["1.200", "3,5"] * 100,
        "since": ["2019-01-01", "2020", "2021", "1999"] * 50,
    }
)
PLAN = plan(
    Workload(SCHEMA)
    .add("day", "prefix")
    .add(("day", "since"), "marginal")
    .add(("pay", "since"), "range"),
    Budget(pcost=100.0),
)


def test_plan_with_dates_reads_back_equal() -> None:
    loaded_plan = load_plan(PLAN.to_json())
    assert loaded_plan.hash == PLAN.hash
    assert loaded_plan.schema == SCHEMA
    _, _, since = json.loads(SCHEMA.to_json())["attributes"]
    assert since["unit"] == "year"


def test_release_with_dates_is_packed_and_verified(tmp_path: Path) -> None:
    measurement = measure(PLAN, ROWS, rehearsal=True)
    days = measurement.answers(0)
    assert days["query"].tolist()[:2] == ["day <= 2023-11", "day <= 2023-12"]
    # 50 rows each in November, January and March, and 50 with an unknown day; the noise is small
    assert days["answer"].tolist() == pytest.approx([50, 50, 100, 100, 150, 200], abs=10)
    assert verify_package(write_package(measurement, tmp_path / "release.zip")) == ()
    path = write_answers(measurement, tmp_path / "answers.csv", format="csv")
    assert "2024-03" in path.read_text()


def test_published_tables_with_dates_have_labels(tmp_path: Path) -> None:
    measurement = measure(PLAN, ROWS, rehearsal=True)
    errors = measurement.publish().uncertainty(draws=2)
    assert verify_package(write_tables(errors, tmp_path / "tables.zip")) == ()
    write_workbook(errors, tmp_path / "workbook.xlsx")
    write_published(errors, tmp_path / "published.parquet")
    codes = errors.published.records(50)
    path = write_records(measurement, codes, tmp_path / "records.csv")
    records = pd.read_csv(path, dtype=str, comment="#")
    assert set(records["since"]) <= {"2019", "2020", "2021"}
    assert set(records["day"]) <= {SCHEMA["day"].label(i) for i in range(6)}
    assert np.isfinite(errors.published.table(["day"])).all()
