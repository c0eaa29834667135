"""Columns added to files never have the name of an attribute."""

from __future__ import annotations

import csv
import functools
import io
import json
import subprocess
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest
import python_calamine

from engine.errors import PlanError
from engine.mechanisms import plan
from engine.postprocess import publish, uncertainty
from engine.privacy import Budget
from engine.publish import write_answers
from engine.publish.output_path import added_columns, check_target, is_added_name
from engine.publish.release_package import write_package
from engine.publish.report import TABLE_SCHEMA as ANSWERS
from engine.publish.report import TABLE_SCHEMA as PUBLISHED
from engine.publish.report import write_published, write_records
from engine.publish.tables_package import COLUMNS, SHOWN, write_tables, write_workbook
from engine.publish.verify import verify_package
from engine.release import measure
from engine.workload import Attribute, Schema, Workload

ADDED = sorted(
    {
        "status",
        "group",
        "dataset",
        "query_id",
        "truth",
        "quality",
        "count",
        "cell",
        "row",
        "added_status",
    }
    | {*ANSWERS.names, *PUBLISHED.names, *COLUMNS, *SHOWN.values()}
)
NAMES = [
    *ADDED,
    *(name.upper() for name in ("status", "query", "flag", "answer", "published count")),
]
LABELS = ["married", "single"]


@functools.cache
def measurement_of_attribute(name: str) -> Any:
    """Return a rehearsal on the attributes ``name`` and sex."""
    schema = Schema([Attribute.categorical(name, LABELS), Attribute.categorical("sex", ["F", "M"])])
    records = pd.DataFrame({name: [LABELS[i % 3 == 0] for i in range(40)], "sex": ["F", "M"] * 20})
    chosen_plan = plan(Workload.all_ways(schema, (1, 2)), Budget(pcost=50.0))
    return measure(chosen_plan, records, rehearsal=True)


def has_distinct_columns(columns: Iterable[str]) -> bool:
    """Return whether the column names differ by more than upper and lower case."""
    names = [column.casefold() for column in columns]
    return len(set(names)) == len(names)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_write_records_keeps_mark_and_attribute(tmp_path: Path, name: str, kind: str) -> None:
    measurement = measurement_of_attribute(name)
    codes = pd.DataFrame({name: [0, 1, 0], "sex": [1, 0, 0]})
    path = write_records(measurement, codes, tmp_path / f"records.{kind}", format=kind)
    frame = pd.read_csv(path) if kind == "csv" else pd.read_parquet(path)
    mark, *attributes = frame.columns
    assert is_added_name(mark, "status")
    assert set(frame[mark]) == {"REHEARSAL"}
    assert attributes == [name, "sex"]
    assert frame[name].tolist() == ["married", "single", "married"]
    assert has_distinct_columns(frame)
    assert check_target(path, overwrite=True) == path
    write_records(measurement, codes, path, format=kind, overwrite=True)


def test_write_records_without_rows_is_recognised(tmp_path: Path) -> None:
    for name in ("status", "region"):
        no_records = pd.DataFrame({name: [], "sex": []})
        path = write_records(measurement_of_attribute(name), no_records, tmp_path / f"{name}.csv")
        assert check_target(path, overwrite=True) == path


@pytest.mark.parametrize(
    "content",
    [
        "status,query\nmarried,a\n",
        "added_status,status\nx,y\n",
        "status,query\n\nmarried,a\n",
        "status\n",
        "",
    ],
)
def test_other_file_with_status_column_is_not_overwritten(tmp_path: Path, content: str) -> None:
    path = tmp_path / "other.csv"
    path.write_text(content)
    with pytest.raises(PlanError, match="overwritten"):
        check_target(path, overwrite=True)


def test_answer_files_have_distinct_columns(tmp_path: Path) -> None:
    # One attribute is enough for this test, because no column of these files is named after an
    # attribute.
    measurement = measurement_of_attribute("status")
    errors = uncertainty(publish(measurement), draws=2)
    for kind in ("csv", "parquet"):
        for path in (
            write_answers(measurement, tmp_path / f"answers.{kind}", format=kind),
            write_published(errors, tmp_path / f"published.{kind}", format=kind),
        ):
            frame = pd.read_csv(path) if kind == "csv" else pq.read_table(path).to_pandas()
            assert has_distinct_columns(frame)
            assert set(frame["status"]) == {"REHEARSAL"}
            assert check_target(path, overwrite=True) == path
    tables = write_tables(errors, tmp_path / "tables.zip")
    assert verify_package(tables) == ()
    package = write_package(measurement, tmp_path / "package.zip")
    for path in (tables, package):
        assert check_target(path, overwrite=True) == path


@pytest.mark.parametrize("name", NAMES)
def test_tables_have_distinct_columns_and_labels(tmp_path: Path, name: str) -> None:
    errors = uncertainty(publish(measurement_of_attribute(name)), draws=2)
    with zipfile.ZipFile(write_tables(errors, tmp_path / "tables.zip")) as archive:
        for table in json.loads(archive.read("tables.csv-metadata.json"))["tables"]:
            header, *rows = csv.reader(io.StringIO(archive.read(table["url"]).decode()))
            assert has_distinct_columns(header)
            assert header == [column["titles"] for column in table["tableSchema"]["columns"]]
            assert {row[header.index("status")] for row in rows} == {"REHEARSAL"}
            if f"{name}_label" in header:
                assert {row[header.index(f"{name}_label")] for row in rows} == set(LABELS)

    path = write_workbook(errors, tmp_path / "workbook.xlsx")
    book = python_calamine.load_workbook(path)
    rows = book.get_sheet_by_name("Table 1").to_python()
    header = next(row for row in rows if row[0] == name)
    assert has_distinct_columns(header)
    # the cover explains columns that are renamed because of an attribute
    is_reserved = name.casefold() in {title.casefold() for title in SHOWN.values()}
    assert ("added_" in str(book.get_sheet_by_name("Cover").to_python())) == is_reserved
    assert check_target(path, overwrite=True) == path


@pytest.mark.parametrize("name", NAMES)
def test_answer_frames_have_distinct_columns(name: str) -> None:
    measurement = measurement_of_attribute(name)
    published = publish(measurement)
    for frame in (
        measurement.answers(0),
        uncertainty(published, draws=2).answers(0),
        publish(measurement, integer=True).records(),
    ):
        assert has_distinct_columns(frame)
    assert measurement.marginal([name]).shape == published.table([name]).shape == (len(LABELS),)


@pytest.mark.needs("R")
@pytest.mark.parametrize("name", ["status", "query", "estimate", "id"])
def test_recompute_script_reads_reserved_names(tmp_path: Path, name: str) -> None:
    errors = uncertainty(publish(measurement_of_attribute(name)), draws=2)
    folder = tmp_path / "tables"
    with zipfile.ZipFile(write_tables(errors, tmp_path / "tables.zip")) as archive:
        archive.extractall(folder)
    subprocess.run(["Rscript", "recompute.R"], cwd=folder, check=True, timeout=120)


def test_added_columns_are_distinct_ignoring_case() -> None:
    names = added_columns(["status", "flag"], ["STATUS", "added_status", "Added_Flag"])
    assert names == {"status": "added_added_status", "flag": "flag"}
