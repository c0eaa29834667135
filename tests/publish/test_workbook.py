"""Workbook of published tables, read by another library."""

from __future__ import annotations

import itertools
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import python_calamine

from engine.errors import Cancelled, LimitExceeded, PlanError
from engine.postprocess import QualityRule, publish
from engine.privacy import Budget
from engine.publish import tables_package as workbook
from engine.publish.output_path import check_target
from engine.publish.tables_package import write_tables, write_workbook
from engine.publish.verify import verify_package
from engine.workload import Attribute, Schema, Workload
from engine.workload.attribute import IN_FILES, cell_text
from tests.publish.measured import measured_on

REGIONS = ["=1+1", "http://north.example", "-5", "007", 'Süd "West"', "{=A1}"]
SCHEMA = Schema(
    [
        Attribute.categorical("=region", REGIONS),
        Attribute.numeric("age in years", [0, 18, 65, 120], integer=True),
        Attribute.categorical("sex", ["F", "M"]),
    ]
)
WORKLOAD = (
    Workload.all_ways(SCHEMA, (0, 1, 2), family="marginal")
    .add("age in years", "prefix")
    .add(SCHEMA.names, "marginal", weight=0.5)
)
RULE = QualityRule(least_count=8.0)
HEADS = ["published count", "lower end", "upper end", "error to be expected", "flag", "reason"]
HEADS.append("share measured")


@pytest.fixture(scope="module")
def errors():
    return measured_on(WORKLOAD, Budget(pcost=0.5), records=300)[0].publish().uncertainty(draws=3)


@pytest.fixture(scope="module")
def book(errors, tmp_path_factory) -> Path:
    return write_workbook(
        errors, tmp_path_factory.mktemp("book") / "tables.xlsx", rule=RULE, confidence=0.9
    )


def rows_of(path: Path, sheet: str, head: str) -> pd.DataFrame:
    """Table of a sheet, from the row whose first cell is `head`."""
    rows = (
        python_calamine.load_workbook(path)
        .get_sheet_by_name(sheet)
        .to_python(skip_empty_area=False)
    )
    first = next(i for i, row in enumerate(rows) if row[0] == head)
    return pd.DataFrame(rows[first + 1 :], columns=rows[first])


def test_workbook_numbers_match_their_labels(errors, book):
    columns = {
        "published": "published count",
        "error": "error to be expected",
        "answer": "unbiased estimate",
    }
    for i, group in enumerate(WORKLOAD.groups):
        answers = errors.answers(i, confidence=0.9, rule=RULE).reset_index(drop=True)
        attributes = group.attributes if group.family_text == "marginal" else ()
        rows = rows_of(book, f"Table {i + 1}", attributes[0] if attributes else "query")
        assert len(rows) == group.count
        for name, column in columns.items():
            written = pd.to_numeric(rows[column], errors="coerce")  # suppressed cells are empty
            np.testing.assert_allclose(written, answers[name], rtol=1e-13, equal_nan=True)
        # intervals have the requested confidence
        low = rows["lower end of the estimate"].astype(float)
        np.testing.assert_allclose(low, answers["low"], rtol=1e-13)
        assert rows["flag"].tolist() == answers["flag"].tolist()
        if not attributes:
            assert rows["query"].tolist() == answers["query"].tolist()
        codes = itertools.product(*(range(n) for n in SCHEMA.sizes(attributes)))
        for name, codes_of_attribute in zip(attributes, zip(*codes, strict=True), strict=True):
            labels = [cell_text(SCHEMA[name], code, IN_FILES) for code in codes_of_attribute]
            assert rows[name].tolist() == labels


def test_suppressed_counts_are_empty_with_reason(errors, book):
    last_group = len(WORKLOAD.groups) - 1
    sheet_name = f"Table {last_group + 1}"
    flags = errors.answers(last_group, confidence=0.9, rule=RULE)["flag"].to_numpy()
    rows = rows_of(book, sheet_name, "=region")
    is_suppressed = flags == "suppressed"
    assert is_suppressed.any()
    assert not is_suppressed.all()
    assert [value == "" for value in rows["published count"]] == is_suppressed.tolist()
    assert [value != "" for value in rows["reason"]] == (flags != "publishable").tolist()
    sheet = python_calamine.load_workbook(book).get_sheet_by_name(sheet_name)
    heading = [row[0] for row in sheet.to_python()[:6]]
    sentence = f"{is_suppressed.sum()} of {len(is_suppressed)} counts are"
    assert any(text.startswith(sentence) for text in heading)


def test_pair_tables_have_crosstab_sheets(errors, book):
    pair = ("=region", "age in years")
    group = [g.attributes for g in WORKLOAD.groups].index(pair)
    expected = errors.answers(group, rule=RULE)["published"].to_numpy().reshape(6, 3)
    rows = rows_of(book, f"Table {group + 1} crossed", "=region \\ age in years")
    corner, *ages = rows
    assert rows[corner].tolist() == REGIONS
    assert ages == ["0 to 17", "18 to 64", "65 to 120"]
    written = rows[ages].apply(pd.to_numeric, errors="coerce").to_numpy()
    np.testing.assert_allclose(written, expected, rtol=1e-13, equal_nan=True)


def test_workbook_texts_are_never_formulas_or_links(book):
    with zipfile.ZipFile(book) as archive:
        for name in archive.namelist():
            if name.startswith("xl/worksheets/"):
                text = archive.read(name).decode()
                assert "<f>" not in text
                if name.endswith(".rels"):
                    assert "http" not in text
    labels = rows_of(book, "Codebook", "attribute")["label"].tolist()
    assert labels[:9] == [*REGIONS, "0 to 17", "18 to 64", "65 to 120"]


def test_cover_and_contents_describe_the_sheets(errors, book):
    workbook_file = python_calamine.load_workbook(book)
    contents = rows_of(book, "Contents", "table")
    assert contents["table"].tolist() == [f"Table {i + 1}" for i in range(len(WORKLOAD.groups))]
    sheets = {*contents["table"], "Cover", "Contents", "Codebook"}
    assert sheets <= set(workbook_file.sheet_names)
    assert contents["numbers"].tolist() == [group.count for group in WORKLOAD.groups]
    for flag in ("publishable", "doubtful", "suppressed"):
        np.testing.assert_allclose(contents[flag].astype(float), errors.summary(RULE)[flag])
    cover = workbook_file.get_sheet_by_name("Cover").to_python()
    cover_text = "\n".join(str(row[0]) for row in cover)
    result = errors.published.measurement.plan
    assert result.schema.promise(result.budget) in cover_text
    assert "Intervals are at 90%" in cover_text
    assert all(column in cover_text for column in HEADS)


def test_workbook_sheets_of_rehearsal_are_marked(errors, book):
    assert errors.published.measurement.rehearsal
    workbook_file = python_calamine.load_workbook(book)
    for name in workbook_file.sheet_names:
        assert workbook_file.get_sheet_by_name(name).to_python()[0][0].startswith("REHEARSAL"), name


def test_integer_tables_are_written_as_integers(tmp_path):
    workload = Workload(SCHEMA).add(("=region", "sex"), "marginal")
    measurement, _ = measured_on(workload, Budget(pcost=0.5), records=300)
    errors = publish(measurement, integer=True).uncertainty(draws=2)
    path = write_workbook(errors, tmp_path / "workbook.xlsx")
    counts = rows_of(path, "Table 1", "=region")["published count"]
    shown = [count for count in counts if count != ""]
    assert shown
    assert all(count == round(count) for count in shown)


def test_unmeasured_answers_have_infinite_errors_as_text(tmp_path):
    workload = Workload(SCHEMA).add(SCHEMA.names[1:], "marginal", weight=0.0)
    workload = workload.add(SCHEMA.names[1], "marginal").add(SCHEMA.names[2], "marginal")
    measurement, _ = measured_on(workload, Budget(pcost=0.5), records=300)
    errors = measurement.publish().uncertainty(draws=2)
    path = write_workbook(errors, tmp_path / "tables.xlsx")
    rows = rows_of(path, "Table 1", SCHEMA.names[1])
    assert set(rows["standard error"]) == {"inf"}
    assert set(rows["lower end of the estimate"]) == {"-inf"}
    assert np.isfinite(rows["unbiased estimate"].astype(float)).all()


def test_write_workbook_is_deterministic_and_leaves_no_parts(errors, book, tmp_path):
    same = write_workbook(errors, tmp_path / "same.xlsx", rule=RULE, confidence=0.9)
    assert same.read_bytes() == book.read_bytes()
    with pytest.raises(Cancelled):
        write_workbook(errors, tmp_path / "cancelled.xlsx", progress=lambda *_: False)
    with pytest.raises(PlanError, match="not overwritten"):
        write_workbook(errors, same)
    write_workbook(errors, same, overwrite=True)
    assert list(tmp_path.iterdir()) == [same]


def test_write_workbook_never_replaces_other_workbooks(errors, tmp_path):
    import xlsxwriter

    other = tmp_path / "budget.xlsx"
    with xlsxwriter.Workbook(str(other)) as other_book:
        other_book.add_worksheet().write(0, 0, "ours alone")
        other_book.set_custom_property("owner", "office")
    before = other.read_bytes()
    with pytest.raises(PlanError, match="earlier output"):
        write_workbook(errors, other, overwrite=True)
    assert other.read_bytes() == before
    tables = write_tables(errors, tmp_path / "tables.zip")
    assert check_target(tables, overwrite=True) == tables


def test_write_workbook_with_many_rows_is_refused(errors, tmp_path, monkeypatch):
    monkeypatch.setattr(workbook, "MAX_WORKBOOK_ROWS", WORKLOAD.queries - 1)
    with pytest.raises(LimitExceeded, match="Parquet"):
        write_workbook(errors, tmp_path / "w.xlsx")
    assert not list(tmp_path.iterdir())


def test_wide_pairs_have_no_crosstab_sheet(errors, tmp_path, monkeypatch):
    monkeypatch.setattr(workbook, "MAX_SHEET_COLUMNS", 3)
    path = write_workbook(errors, tmp_path / "workbook.xlsx")
    crossed = [
        name for name in python_calamine.load_workbook(path).sheet_names if name.endswith("crossed")
    ]
    assert len(crossed) == 2  # the pairs with the two categories of sex as columns


def test_verify_workbook_or_missing_file_reports_problem(book, tmp_path):
    (problem,) = verify_package(book)
    assert "Give the zip of the same tables" in problem
    (problem,) = verify_package(tmp_path / "none.zip")
    assert problem.startswith(f"There is no file or folder {tmp_path / 'none.zip'}.")
