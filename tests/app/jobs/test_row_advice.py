"""Advice on dropped rows: each remedy keeps the rows when it is applied to the schema."""

from __future__ import annotations

import pandas as pd
import pytest

from engine.mechanisms import plan
from engine.privacy import Budget
from engine.release.ingest import Intake, check_records
from engine.workload import Attribute, Schema, Workload
from pages.parts.jobs.row_advice import keep_rows_advice

AGE = [0, 20, 100]


def intake_of(attribute: Attribute, values: list[object]) -> Intake:
    """Return the report of a check of one column of records."""
    schema = Schema([attribute])
    one_column = plan(Workload(schema).add(attribute.name, "marginal"), Budget(pcost=1.0))
    return check_records(one_column, pd.DataFrame({attribute.name: values}))


@pytest.mark.parametrize(
    ("attribute", "values", "words", "corrected"),
    [
        (
            Attribute.categorical("sex", ["F", "M"]),
            ["F", None],
            "a label for missing values under “missing as”",
            Attribute.categorical("sex", ["F", "M"], missing="none"),
        ),
        (
            Attribute.categorical("sex", ["F", "M"]),
            ["F", "X"],
            "a label for them under “others as”",
            Attribute.categorical("sex", ["F", "M"], other="others"),
        ),
        (
            Attribute.numeric("age", AGE),
            [5.0, None],
            "enter a number under “missing as”",
            Attribute.numeric("age", AGE, missing=30),
        ),
        (
            Attribute.numeric("age", AGE),
            [5.0, None],
            f"add the edge {AGE[0] - 1:g} before {AGE[0]:g} and enter {AGE[0] - 1:g}",
            Attribute.numeric("age", [AGE[0] - 1, *AGE], missing=AGE[0] - 1),
        ),
        (
            Attribute.numeric("age", AGE),
            [5, 140],
            "extend the possible values, but only if the code book has them",
            Attribute.numeric("age", [*AGE, 150]),
        ),
        (
            Attribute.numeric("age", AGE),
            [5, 140],
            "tick “clip”",
            Attribute.numeric("age", AGE, clip=True),
        ),
        (
            Attribute.numeric("age", AGE),
            ["5", "abc"],
            "enter these texts under “missing codes”, and fill in “missing as”",
            Attribute.numeric("age", AGE, missing=30, missing_values=["abc"]),
        ),
        (
            Attribute.dates("day", "2024-01", "2024-03", "month"),
            ["2024-02", "early"],
            "“missing codes”, and fill in “missing as”",
            Attribute.dates(
                "day", "2024-01", "2024-03", "month", missing="none", missing_values=["early"]
            ),
        ),
        (
            Attribute.of_size("code", 3, "categorical"),
            [1, 7],
            "a larger number of codes",
            Attribute.of_size("code", 8, "categorical"),
        ),
        (
            Attribute.of_size("code", 3, "categorical"),
            [1, -1],
            "enter labels as possible values, and a label for all others under “others as”",
            Attribute.categorical("code", ["0", "1", "2"], other="others"),
        ),
    ],
)
def test_advice_keeps_the_rows(
    attribute: Attribute, values: list[object], words: str, corrected: Attribute
) -> None:
    intake = intake_of(attribute, values)
    assert intake.refused == 1
    (text,) = keep_rows_advice(Schema([attribute]), intake.reasons)
    assert text.startswith(f"{attribute.name}: ")
    assert words in text
    if attribute.edges is not None:
        assert "label" not in text  # bins have no labels
    assert intake_of(corrected, values).refused == 0


def test_advice_on_person_column_names_the_file() -> None:
    schema = Schema([Attribute.numeric("age", AGE)])
    reasons = {"id": {"without a person": 2}, "age": {"missing": 1}}
    texts = keep_rows_advice(schema, reasons)
    assert texts[0] == "id: fill in the person ID in the file"
    assert "number under" in texts[1]
