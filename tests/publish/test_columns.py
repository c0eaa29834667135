"""Columns added to files never have the name of an attribute."""

from __future__ import annotations

import csv
import functools
import io
import json
import subprocess
import zipfile
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
def measured(name: str) -> Any:
    schema = Schema([Attribute.categorical(name, LABELS), Attribute.categorical("sex", ["F", "M"])])
    records = pd.DataFrame({name: [LABELS[i % 3 == 0] for i in range(40)], "sex": ["F", "M"] * 20})
    chosen_plan = plan(Workload.all_ways(schema, (1, 2)), Budget(pcost=50.0))
    return measure(chosen_plan, records, rehearsal=True)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_write_records_keeps_mark_and_attribute(tmp_path: Path, name: str, kind: str) -> None:
    measurement, codes = measured(name), pd.DataFrame({name: [0, 1, 0], "sex": [1, 0, 0]})
    place = write_records(measurement, codes, tmp_path / f"r.{kind}", format=kind)
    frame = pd.read_csv(place) if kind == "csv" else pd.read_parquet(place)
    assert is_added_name(frame.columns[0], "status")
    assert set(frame.iloc[:, 0]) == {"REHEARSAL"}
    assert list(frame.columns[1:]) == [name, "sex"]
    assert frame[name].tolist() == ["married", "single", "married"]
    assert len({column.casefold() for column in frame}) == 3
    assert check_target(place, overwrite=True) == place
    write_records(measurement, codes, place, format=kind, overwrite=True)


def test_write_records_without_rows_is_recognised(tmp_path: Path) -> None:
    for name in ("status", "region"):
        place = write_records(
            measured(name), pd.DataFrame({name: [], "sex": []}), tmp_path / f"{name}.csv"
        )
        assert check_target(place, overwrite=True) == place


@pytest.mark.parametrize(
    "head",
    [
        "status,query\nmarried,a\n",
        "added_status,status\nx,y\n",
        "status,query\n\nmarried,a\n",
        "status\n",
        "",
    ],
)
def test_other_file_with_status_column_is_not_overwritten(tmp_path: Path, head: str) -> None:
    place = tmp_path / "other.csv"
    place.write_text(head)
    with pytest.raises(PlanError, match="overwritten"):
        check_target(place, overwrite=True)


def test_answer_files_have_distinct_columns(tmp_path: Path) -> None:
    # One attribute is enough for this test, because no column of these files is named after an
    # attribute.
    measurement = measured("status")
    errors = uncertainty(publish(measurement), draws=2)
    for kind in ("csv", "parquet"):
        for place in (
            write_answers(measurement, tmp_path / f"a.{kind}", format=kind),
            write_published(errors, tmp_path / f"p.{kind}", format=kind),
        ):
            frame = pd.read_csv(place) if kind == "csv" else pq.read_table(place).to_pandas()
            assert len({column.casefold() for column in frame}) == len(frame.columns)
            assert set(frame["status"]) == {"REHEARSAL"}
            assert check_target(place, overwrite=True) == place
    tables = write_tables(errors, tmp_path / "t.zip")
    assert not verify_package(tables)
    for place in (tables, write_package(measurement, tmp_path / "p.zip")):
        assert check_target(place, overwrite=True) == place


@pytest.mark.parametrize("name", NAMES)
def test_tables_have_distinct_columns_and_labels(tmp_path: Path, name: str) -> None:
    errors = uncertainty(publish(measured(name)), draws=2)
    tables = write_tables(errors, tmp_path / "t.zip")
    with zipfile.ZipFile(tables) as archive:
        described = json.loads(archive.read("tables.csv-metadata.json"))["tables"]
        for table in described:
            head, *rows = csv.reader(io.StringIO(archive.read(table["url"]).decode()))
            assert len({column.casefold() for column in head}) == len(head)
            assert head == [column["titles"] for column in table["tableSchema"]["columns"]]
            assert {row[head.index("status")] for row in rows} == {"REHEARSAL"}
            if f"{name}_label" in head:
                assert {row[head.index(f"{name}_label")] for row in rows} == set(LABELS)

    place = write_workbook(errors, tmp_path / "w.xlsx")
    book = python_calamine.load_workbook(place)
    (head,) = (row for row in book.get_sheet_by_name("Table 1").to_python() if row[0] == name)
    assert len({column.casefold() for column in head}) == len(head)
    assert ("added_" in str(book.get_sheet_by_name("Cover").to_python())) == (
        name.casefold() in {shown.casefold() for shown in SHOWN.values()}
    )
    assert check_target(place, overwrite=True) == place


@pytest.mark.parametrize("name", NAMES)
def test_answer_frames_have_distinct_columns(name: str) -> None:
    measurement = measured(name)
    published = publish(measurement)
    for frame in (
        measurement.answers(0),
        uncertainty(published, draws=2).answers(0),
        publish(measurement, integer=True).records(),
    ):
        assert len({column.casefold() for column in frame}) == len(frame.columns)
    assert measurement.marginal([name]).shape == published.table([name]).shape == (2,)


@pytest.mark.needs("R")
@pytest.mark.parametrize("name", ["status", "query", "estimate", "id"])
def test_recompute_script_reads_reserved_names(tmp_path: Path, name: str) -> None:
    place = write_tables(uncertainty(publish(measured(name)), draws=2), tmp_path / "t.zip")
    with zipfile.ZipFile(place) as archive:
        archive.extractall(tmp_path / "t")
    subprocess.run(["Rscript", "recompute.R"], cwd=tmp_path / "t", check=True, timeout=120)


def test_added_columns_are_distinct_ignoring_case() -> None:
    names = added_columns(["status", "flag"], ["STATUS", "added_status", "Added_Flag"])
    assert names == {"status": "added_added_status", "flag": "flag"}
