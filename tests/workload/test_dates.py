"""Attributes of dates: cells, conditions, SQL, words and files."""

from __future__ import annotations

import datetime
import itertools
import json

import numpy as np
import pytest

from engine.errors import SchemaError, WorkloadError
from engine.workload import Attribute, Schema, Workload
from engine.workload.calendar import UNITS
from engine.workload.conditions import cells_text
from engine.workload.predicates import evaluate
from engine.workload.sql import workload_from_sql

MONTHS = Attribute.dates("day", "2023-11", "2024-03", missing="unknown")
QUARTERS = Attribute.dates("day", "2023-10-01", datetime.date(2024, 12, 31), "quarter")


def matching_cells(text: str, attribute: Attribute = MONTHS) -> list[int]:
    return np.flatnonzero(evaluate(text, [attribute])).tolist()


def sql_cells(where: str, attribute: Attribute = MONTHS) -> list[int]:
    text = f"SELECT COUNT(*) FROM records WHERE {where}"
    workload = workload_from_sql(Schema([attribute, Attribute.of_size("x", 2)]), text)
    return matching_cells(workload.describe(0), attribute)


@pytest.mark.parametrize("unit", UNITS)
def test_dates_every_unit_has_ordered_cells(unit: str) -> None:
    attribute = Attribute.dates("day", "1999-12-31", "2001-03-01", unit)
    cells = [attribute.days(i) for i in range(attribute.size)]
    one_day = datetime.timedelta(days=1)
    for (_, last_day), (next_first_day, _) in itertools.pairwise(cells):
        assert last_day + one_day == next_first_day
    (first_day, last_day), (first_day_of_end, last_day_of_end) = cells[0], cells[-1]
    assert first_day <= datetime.date(1999, 12, 31) <= last_day
    assert first_day_of_end <= datetime.date(2001, 3, 1) <= last_day_of_end
    first_label, last_label = attribute.label(0), attribute.label(attribute.size - 1)
    assert Attribute.dates("day", first_label, last_label, unit) == attribute


def test_dates_labels_are_iso() -> None:
    assert [MONTHS.label(i) for i in (0, 2, 5)] == ["2023-11", "2024-01", "unknown"]
    assert (QUARTERS.label(1), QUARTERS.size) == ("2024-Q1", 5)
    assert Attribute.dates("d", "2024-02-28", "2024-03-01", "day").size == 3


@pytest.mark.parametrize("attribute", [MONTHS, QUARTERS])
def test_dates_cell_conditions_read_back_equal(attribute: Attribute) -> None:
    for selected in itertools.product([False, True], repeat=attribute.size):
        condition = cells_text(attribute, np.array(selected))
        assert matching_cells(condition, attribute) == np.flatnonzero(selected).tolist()


def test_dates_conditions_select_complete_cells() -> None:
    assert matching_cells("day >= '2024-01-01'") == [2, 3, 4]
    assert matching_cells("'2024-Q1' > day") == [0, 1]
    assert matching_cells("day != '2024-02'") == [0, 1, 2, 4, 5]
    assert matching_cells("day == 'unknown'") == [5]


def test_dates_invalid_conditions_are_refused() -> None:
    for condition in (
        # these cut a month
        "day >= '2024-01-02'",
        "day == '2024-01-01'",
        # these compare with no date
        "day < 'x'",
        "day > 3",
        "day > 'unknown'",
        "day + 1 < 3",
    ):
        with pytest.raises(WorkloadError):
            matching_cells(condition)


def test_dates_sql_where_selects_cells() -> None:
    assert sql_cells("day >= DATE '2024-01-01'") == [2, 3, 4]
    assert sql_cells("day BETWEEN DATE '2023-12-01' AND DATE '2024-02-29'") == [1, 2, 3]
    assert sql_cells("day < CAST('2023-12-01' AS DATE) OR day = 'unknown'") == [0, 5]
    assert sql_cells("day IN ('2024-01', '2024-03')") == [2, 4]
    clipped = Attribute.dates("day", "2024-01", "2024-03", clip=True)
    assert sql_cells("day >= DATE '2024-02-01'", clipped) == [1, 2]


def test_dates_sql_where_that_cuts_cells_is_refused() -> None:
    with pytest.raises(WorkloadError, match="cuts"):
        sql_cells("day > DATE '2024-01-01'")
    clipped = Attribute.dates("day", "2024-01", "2024-03", clip=True)
    with pytest.raises(WorkloadError, match="2024-01-31 and the days outside; compare"):
        sql_cells("day >= DATE '2024-01-01'", clipped)


@pytest.mark.parametrize("family", ["marginal", "prefix", "range", "suffix", "circular", "total"])
def test_dates_family_describes_cells(family: str) -> None:
    workload = Workload(Schema([QUARTERS])).add("day", family)
    assert all(workload.describe(i) for i in range(len(workload)))
    assert family == "total" or "2024-Q1" in workload.describe(1)


def test_dates_text_names_missing_cell() -> None:
    schema = Schema([MONTHS])
    prefix, suffix = (Workload(schema).add("day", family) for family in ("prefix", "suffix"))
    assert prefix.describe(5) == "day <= 2024-03 or day = unknown"
    assert suffix.describe(2) == "day >= 2024-01 or day = unknown"
    assert suffix.describe(5) == "day = unknown"
    assert MONTHS.condition(3, 5) == "day in 2024-02..2024-03 or unknown"


DECLARED = [
    MONTHS,
    QUARTERS,
    Attribute.dates(
        "a",
        "2024",
        "2025",
        "year",
        clip=True,
        missing_values=["1900-01-01"],
        date_format="%d.%m.%Y",
    ),
    Attribute.numeric("b", [0, 1000, 5000], decimal=",", thousands=".", missing_values=["-", "=1"]),
    Attribute.numeric("c", [0, 1], thousands="space", clip=True),
    Attribute.categorical("d", ["F", "NA"], missing="NA", missing_values=("NA", "a|b", "\\")),
    Attribute.of_size("e", 4, missing_values=["-1"]),
]


@pytest.mark.parametrize("attribute", DECLARED)
def test_declared_attribute_reads_back_from_files(attribute: Attribute) -> None:
    schema = Schema([attribute, Attribute.of_size("z", 2)])
    assert Schema.from_json(schema.to_json()) == Schema.from_csv(schema.to_csv()) == schema


def test_schema_files_without_dates_omit_date_columns() -> None:
    schema = Schema([Attribute.numeric("b", [0, 1]), Attribute.of_size("e", 4)])
    assert schema.to_csv().splitlines()[0] == "name,kind,size,labels,edges,other,missing,clip"
    numeric, codes = json.loads(schema.to_json())["attributes"]
    assert set(numeric) == {"edges", "kind", "name"}
    assert set(codes) == {"kind", "name", "size"}


WRONG = {
    "stop first": lambda: Attribute.dates("a", "2025", "2024", "year"),
    "unit": lambda: Attribute.dates("a", "2024", "2025", "week"),
    "start coarse": lambda: Attribute.dates("a", "2024", "2025", "month"),
    "no date": lambda: Attribute.dates("a", "2024-02-30", "2025-01-01", "day"),
    "far": lambda: Attribute.dates("a", "2024", "9999", "year"),
    "format year": lambda: Attribute.dates("a", "2024", "2025", "year", date_format="%d.%m.%y"),
    "format day": lambda: Attribute.dates("a", "2024-01", "2025-01", "day", date_format="%d/%Y"),
    "format month": lambda: Attribute.dates(
        "a", "2024-01-01", "2025-01-01", "day", date_format="%d/%Y"
    ),
    "format like ISO": lambda: Attribute.dates(
        "a", "2024-01-01", "2025-01-01", "day", date_format="%Y-%d-%m"
    ),
    "missing a date": lambda: Attribute.dates("a", "2024", "2025", "year", missing="2023"),
    "thousands without decimal": lambda: Attribute.numeric("a", [0, 1], thousands="."),
    "decimal": lambda: Attribute.numeric("a", [0, 1], decimal=";"),
    "one sign": lambda: Attribute.numeric("a", [0, 1], decimal=",", thousands=","),
    "missing a label": lambda: Attribute.categorical("a", ["NA"], missing_values=["NA"]),
    "missing a text": lambda: Attribute.categorical("a", ["F"], missing_values="NA"),
    "missing a number": lambda: Attribute.categorical("a", ["F"], missing_values=[9]),
    "missing empty": lambda: Attribute.categorical("a", ["F"], missing_values=[""]),
    "missing twice": lambda: Attribute.numeric("a", [0, 1], missing_values=["NA", "NA"]),
    "dates with edges": lambda: Attribute.from_dict(
        {
            "name": "a",
            "kind": "dates",
            "start": "2024",
            "stop": "2025",
            "unit": "year",
            "edges": [0, 1],
        }
    ),
    "dates without unit": lambda: Attribute.from_dict(
        {"name": "a", "kind": "dates", "start": "2024", "stop": "2025"}
    ),
    "numeric with unit": lambda: Attribute.from_dict(
        {"name": "a", "kind": "numeric", "edges": [0, 1], "unit": "day"}
    ),
    "start a number": lambda: Attribute.from_dict(
        {"name": "a", "kind": "dates", "start": 2024, "stop": 2025, "unit": "year"}
    ),
    "labels with decimal": lambda: Attribute.from_dict(
        {"name": "a", "kind": "categorical", "labels": ["x"], "decimal": ","}
    ),
    "size with thousands": lambda: Attribute.from_dict(
        {"name": "a", "kind": "numeric", "size": 3, "thousands": ","}
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_contradicting_declaration_is_refused(case: str) -> None:
    with pytest.raises(SchemaError, match="'a'"):
        WRONG[case]()


def test_wide_dates_work_in_schema_and_marginal() -> None:
    attribute = Attribute.dates("day", "2015-01-01", "2024-12-31", "day")
    workload = Workload(Schema([attribute])).add("day", "marginal")
    assert (attribute.size, len(workload)) == (3653, 3653)
    # 2015 to 2024 have three leap days, and the first half of a leap year has 182 days
    assert len(matching_cells("day >= '2024-01-01' and day < '2024-07-01'", attribute)) == 182
