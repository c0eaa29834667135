"""Workbooks as schemas and dictionaries: a sheet is read as its CSV."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest
import xlsxwriter

from engine.cli.arguments import schema_of
from engine.cli.main import main
from engine.errors import DataError, LimitExceeded, SchemaError
from engine.records import subprocess_readers as sheets
from engine.records.subprocess_readers import sheet_text
from engine.workload import Attribute, Schema
from engine.workload.schema_tables import draft_from_dictionary, is_dictionary

SCHEMA = Schema(
    [
        Attribute.categorical("sex", ["F", "M"], missing="M"),
        Attribute.numeric("age", [0, 18, 65.5, 120], clip=True),
        Attribute.of_size("code", 5),
        Attribute.categorical("formula", ["=1+1", "a|b", "007", "with, comma"]),
    ]
)


def workbook(
    place: Path, table: list[list[Any]], *, at: tuple[int, int] = (0, 0), pages: int = 1
) -> Path:
    """Write a workbook whose sheets all contain a table, which starts at the cell ``at``."""
    with xlsxwriter.Workbook(
        str(place), {"strings_to_formulas": False, "default_date_format": "yyyy-mm-dd"}
    ) as book:
        for _ in range(pages):
            page = book.add_worksheet()
            for number, row in enumerate(table, at[0]):
                for column, value in enumerate(row, at[1]):
                    if value is not None:
                        page.write(number, column, value)
    return place


def typed_rows(text: str) -> list[list[Any]]:
    """Return the rows of a CSV text: fields of digits as integers, empty fields as None."""
    return [
        [int(cell) if cell.isdecimal() else cell or None for cell in line.split(",")]
        for line in text.splitlines()
    ]


def test_schema_sheet_equals_its_csv(tmp_path: Path) -> None:
    schema = Schema(SCHEMA.attributes[:3])
    path = workbook(tmp_path / "schema.xlsx", typed_rows(schema.to_csv()))
    assert Schema.from_csv(sheet_text(path)) == schema
    # the table starts at another cell of the sheet, and an empty row follows each row
    with_empty_rows = [row for line in typed_rows(schema.to_csv()) for row in (line, [])]
    moved = workbook(tmp_path / "moved.xlsx", with_empty_rows, at=(4, 3))
    assert Schema.from_csv(sheet_text(moved)) == schema


def test_sheet_text_keeps_label_texts(tmp_path: Path) -> None:
    table = [
        ["variable", "value", "label"],
        *(["formula", label, None] for label in SCHEMA["formula"].labels or ()),
    ]
    text = sheet_text(workbook(tmp_path / "d.xlsx", table))
    assert is_dictionary(text)
    expected = ["formula,=1+1,", "formula,a|b,", "formula,007,", 'formula,"with, comma",']
    assert text.splitlines()[1:] == expected
    numeric_codes = workbook(tmp_path / "e.xlsx", [["variable", "code"], ["x", 1], ["x", 2]])
    assert draft_from_dictionary(sheet_text(numeric_codes)).schema["x"].size == 2


def test_sheet_text_keeps_typed_values(tmp_path: Path) -> None:
    text = sheet_text(
        workbook(tmp_path / "x.xlsx", [[1, 2.5, True, "a ", dt.date(2024, 2, 3)], [None, 1e20]])
    )
    assert text == "1,2.5,True,a,2024-02-03\n,1e+20,,,\n"


def test_sheet_text_of_invalid_workbook_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        DataError, match=r"'x.xlsx' has 2 visible sheets with values, 'Sheet1', 'Sheet2'"
    ):
        sheet_text(workbook(tmp_path / "x.xlsx", [["name"]], pages=2))
    (tmp_path / "y.ods").write_bytes(b"name,kind\n")
    with pytest.raises(DataError, match=r"'y.ods' cannot be read"):
        sheet_text(tmp_path / "y.ods")
    monkeypatch.setattr(sheets, "MOST_TEXT", 100)
    with pytest.raises(LimitExceeded, match=r"'z.xlsx' has more than 100 characters"):
        sheet_text(workbook(tmp_path / "z.xlsx", [["x" * 60], ["y" * 60]]))


def test_plan_command_reads_schema_sheet(tmp_path: Path) -> None:
    schema = Schema(SCHEMA.attributes[:3])
    path = workbook(tmp_path / "schema.xlsx", typed_rows(schema.to_csv()))
    out = tmp_path / "plan.json"
    options = ["--ways", "1", "--pcost", "1", "--out", str(out)]
    assert main(["plan", "--schema", str(path), *options]) == 0
    assert out.exists()


@pytest.mark.parametrize("first_row", [0, 4])
def test_schema_errors_name_the_row_of_the_sheet(tmp_path: Path, first_row: int) -> None:
    table = [["name", "kind", "size"], [], ["a", "numeric", 3], [], ["b", "numeric", "x"]]
    path = workbook(tmp_path / "s.xlsx", table, at=(first_row, 0))
    with pytest.raises(SchemaError, match=f"line {first_row + 5}:"):
        schema_of(path)
    table[-1] = ["b", "numeric", 2]
    assert schema_of(workbook(path, table, at=(first_row, 0))).sizes(["a", "b"]) == (3, 2)


def test_dictionary_with_empty_rows_is_read(tmp_path: Path) -> None:
    table = [["variable", "code"], [], ["sex", "F"], [], ["sex", "M"]]
    text = sheet_text(workbook(tmp_path / "d.xlsx", table, at=(2, 0)), empty_rows=True)
    assert is_dictionary(text)
    assert draft_from_dictionary(text).schema["sex"].labels == ("F", "M")
