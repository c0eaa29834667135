"""Sheets of workbooks, and the message about a missing library."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import xlsxwriter

from engine.errors import DataError, LimitExceeded
from engine.records import count_marginals
from engine.release.public_draft import draft_of_public
from tests.records.mixed import FRAME, SCHEMA, SETS, check


def sheet(path: Path, rows: list[list[Any]], sheets: int = 1, merged: str = "") -> Path:
    """Write a minimal workbook as XML, without a library; return ``path``.

    Every one of its ``sheets`` sheets contains ``rows``. ``merged`` is a range of merged cells such
    as "A1:B1".
    """

    def cell(value: Any) -> str:
        if value is None:
            return "<c/>"
        if isinstance(value, str):
            return f'<c t="inlineStr"><is><t>{value}</t></is></c>'
        return f"<c><v>{value}</v></c>"

    namespace = 'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"'
    office = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    relations = "http://schemas.openxmlformats.org/package/2006/relationships"
    body = "".join(f"<row>{''.join(map(cell, row))}</row>" for row in rows)
    sheet_tags = "".join(
        f'<sheet name="S{i}" sheetId="{i + 1}" r:id="r{i}"/>' for i in range(sheets)
    )
    links = "".join(
        f'<Relationship Id="r{i}" Type="{office}/worksheet" Target="s.xml"/>' for i in range(sheets)
    )
    merge = f'<mergeCells count="1"><mergeCell ref="{merged}"/></mergeCells>' if merged else ""
    root = f'<Relationship Id="r" Type="{office}/officeDocument" Target="xl/workbook.xml"/>'
    with zipfile.ZipFile(path, "w") as book:
        book.writestr("_rels/.rels", f'<Relationships xmlns="{relations}">{root}</Relationships>')
        book.writestr(
            "xl/workbook.xml",
            f'<workbook {namespace} xmlns:r="{office}"><sheets>{sheet_tags}</sheets></workbook>',
        )
        book.writestr(
            "xl/_rels/workbook.xml.rels",
            f'<Relationships xmlns="{relations}">{links}</Relationships>',
        )
        book.writestr(
            "xl/s.xml", f"<worksheet {namespace}><sheetData>{body}</sheetData>{merge}</worksheet>"
        )
    return path


def test_sheet_of_workbook_is_counted(tmp_path: Path) -> None:
    empty_rows = [[None]] * 4
    rows = [list(FRAME.columns), *FRAME.to_numpy(object).tolist(), *empty_rows]
    check(sheet(tmp_path / "one sheet.xlsx", rows))
    two_sheets = sheet(tmp_path / "two sheets.xlsx", rows, 2)
    with pytest.raises(DataError, match="2 visible sheets"):
        count_marginals(two_sheets, SCHEMA, SETS)
    damaged = tmp_path / "damaged.xlsx"
    damaged.write_bytes(b"no workbook")
    with pytest.raises(DataError, match="cannot be read"):
        count_marginals(damaged, SCHEMA, SETS)


def test_distant_cell_in_sheet_raises_limit_error(tmp_path: Path) -> None:
    path = tmp_path / "x.xlsx"
    last_row, last_column = 2**20 - 1, 2**14 - 1  # of a sheet
    with xlsxwriter.Workbook(str(path)) as workbook:
        worksheet = workbook.add_worksheet()
        worksheet.write_row(0, 0, list(FRAME.columns))
        worksheet.write(last_row, last_column, " ")
    for read in (lambda: count_marginals(path, SCHEMA, SETS), lambda: draft_of_public(path)):
        with pytest.raises(LimitExceeded, match=r"'x.xlsx' needs more memory .* single cell"):
            read()


@pytest.mark.parametrize(
    ("merged", "where"), [("A1:B1", "in its header"), ("A2:A4", "in its rows")]
)
def test_merged_cells_are_refused(tmp_path: Path, merged: str, where: str) -> None:
    rows = [list(FRAME.columns), *FRAME.to_numpy(object).tolist()]
    path = sheet(tmp_path / "x.xlsx", rows, merged=merged)
    with pytest.raises(DataError, match=f"'x.xlsx' has merged cells {where}; unmerge them"):
        count_marginals(path, SCHEMA, SETS, on_refused="drop")


@pytest.mark.parametrize("library", ["pyreadstat", "python_calamine"])
def test_missing_library_error_names_install_command(
    tmp_path: Path, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    path = tmp_path / ("x.sav" if library == "pyreadstat" else "x.xlsx")
    path.write_bytes(b"")
    with pytest.raises(
        DataError, match=rf"needs {library}.*pip install 'dp-query-workbench\[sources\]'"
    ):
        count_marginals(path, SCHEMA, SETS)
