"""Drafts from public records accept all non-missing values of their columns."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pyreadstat
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import DataError, SchemaError
from engine.records import MISSING, Encoder, count_marginals, scalar, text_of
from engine.records.csv_reader import TextFile
from engine.records.subprocess_readers import SheetFile, draft_schema
from engine.release.public_draft import draft_of_public
from engine.workload import Attribute

pytestmark = pytest.mark.usefixtures("in_process_readers")
BIG = 2**53


def refused_rows(data: Any) -> dict[str, dict[str, int]]:
    """Return counts of rows that a draft refuses, except for missing values."""
    schema = draft_of_public(data).schema
    counts = count_marginals(
        data,
        schema,
        [(name,) for name in schema],
        on_refused="drop",
        ignore={"n", "x", "y"} - {*schema},
    )
    reasons = {
        name: {why: n for why, n in some.items() if why != "missing"}
        for name, some in counts.refused.items()
    }
    return {name: some for name, some in reasons.items() if some}


COLUMNS: dict[str, tuple[pa.Array, str]] = {
    "leading zeros": (pa.array(["01", "02", "01"]), "labels"),
    "dictionary": (pa.array(["01", "02", "01"]).dictionary_encode(), "labels"),
    "1.0": (pa.array(["1.0", "2.0", None]), "labels"),
    "blanks at the ends": (pa.array(["F ", "M", None]), "labels"),
    "big": (pa.array([BIG + 1, BIG + 3, None]), "labels"),
    "unsigned": (pa.array([2**64 - 1, 2**64 - 3, 1], pa.uint64()), "labels"),
    "many big": (pa.array([BIG * 3 + i for i in range(20)]), "beyond"),
    "date": (pa.array([dt.date(2020, 1, 2), dt.date(2021, 1, 2), None]), "unit"),
    "date as text": (pa.array(["2020-01-02", "2021-01-02", ""]), "unit"),
    "german date": (pa.array(["2.1.2020", "31.12.2021", None]), "dates"),
    "timestamp": (pa.array([dt.datetime(2020, 1, 2), None, dt.datetime(2021, 1, 2)]), "unit"),
    "time": (pa.array([dt.time(1), dt.time(2), None]), "dates"),
    "binary": (pa.array([b"F", b"M", None]), "labels"),
    "bytes": (pa.array([b"\xff", b"\xfe", None]), "neither"),
    "-0.0": (pa.array([-0.0, 0.0, 1.0]), "labels"),
    "-0": (pa.array(["-0", "0", "1"]), "edges"),
    "decimal": (pa.array([Decimal("1.50"), Decimal("2.00"), None]), "edges"),
    "whole decimal": (pa.array([Decimal("1.00"), Decimal("2.00"), None]), "labels"),
    "boolean": (pa.array([True, False, None]), "labels"),
    "NaN": (pa.array([1.0, 2.0, float("nan")]), "labels"),
    "infinite": (pa.array([1.0, 2.0, float("inf")]), "finite"),
    "small": (pa.array([0.1, 0.4, 0.9], pa.float32()), "edges"),
    "half": (pa.array(np.array([0.5, 1.5, 2.5], np.float16)), "edges"),
    "nulls": (pa.nulls(3), "no value"),
    "list": (pa.array([[1], [2], None]), "nested|type"),
    "NA": (pa.array(["31", "NA", "4"]), "labels"),
    "point": (pa.array(["31.5", ".", "4"]), "edges"),
    "unknown": (pa.array(["31", "unknown", "4"]), "missing"),
    "NA among codes": (pa.array(["01", "NA", "02"]), "missing"),
    "date or NA": (pa.array(["2020-01-02", "NA", "2021-01-02T23:30-05:00"]), "unit"),
    "date or unknown": (pa.array(["2020-01-02", "unknown", "2021-01-02"]), "missing"),
    "date or number": (pa.array(["2020-01-02", "7", "2021-01-02"]), "labels"),
    "ambiguous date": (pa.array(["2020-01-02", "02/03/2020", None]), "dates"),
    "one date": (pa.array(["2020-01-02", "2020-01-02", None]), "one date"),
    "late": (pa.array([10**9, 0], pa.int32()).cast(pa.date32()), "9999"),
    "zone": (pa.array([0, 10**9], pa.timestamp("s", "Asia/Tokyo")), "unit"),
    "decimal comma": (pa.array(["1,5", "2,25", "3"]), "separators"),
    "thousands": (pa.array(["1.200", "800", "31.000"]), "thousands separator"),
    "thousands and cents": (pa.array(["1.200,50", "800", "31.000"]), "separators"),
    "line break": (pa.array(["a\nb", "c", None]), "control"),
    "long": (pa.array(["a" * 1_001, "c", None]), "characters"),
    "blanks": (pa.array([" ", "c", None]), "blanks"),
    "differ in blanks": (pa.array(["c ", "c", "d"]), "blanks"),
    "one value": (pa.array(["c", "c", None]), "one value"),
    "many texts": (pa.array([f"t{i}" for i in range(201)]), "more than 200"),
    "many codes": (pa.array([f"{i:05}" for i in range(201)]), "leading zeros"),
    "numbers": (pa.array([str(i / 3) for i in range(300)]), "edges"),
    "fixed": (pa.array([b"ab", b"cd", None], pa.binary(2)), "labels"),
    "view": (pa.array(["a", "b", None], pa.string_view()), "labels"),
    "runs": (pa.RunEndEncodedArray.from_arrays([1, 3], ["01", "02"]), "labels"),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_draft_accepts_drafted_rows_or_gives_reason(name: str) -> None:
    column, outcome = COLUMNS[name]
    rows = pa.table({"x": column, "y": pa.array([str(i % 2) for i in range(len(column))])})
    draft = draft_of_public(rows)
    if outcome in ("labels", "edges", "unit"):
        attribute = draft.schema["x"]
        assert getattr(attribute, outcome) is not None
        codes = Encoder(attribute=attribute).encode_array(column)
        assert codes.min() >= MISSING
        if outcome == "labels":
            assert set(codes[codes >= 0]) == set(range(attribute.size))
    else:
        assert "x" not in draft.schema
        assert any(reason in draft.reasons["x"] for reason in outcome.split("|"))
    assert refused_rows(rows) == {}


texts = st.sampled_from(
    [
        "",
        "0",
        "1",
        "01",
        "1.0",
        "-0",
        "NA",
        ".",
        "1e5",
        "TRUE",
        " a",
        "a",
        "2020-01-02",
        "1,5",
        "1.200",
        "nan",
        "inf",
    ]
)
values = st.one_of(
    texts, st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.decimals()
)


@settings(max_examples=80)
@given(st.lists(st.one_of(st.none(), values), min_size=2, max_size=8))
def test_draft_of_mixed_values_accepts_drafted_rows(column: list[Any]) -> None:
    other_column = [str(i % 2) for i in range(len(column))]
    rows = pd.DataFrame({"x": pd.Series(column, dtype=object), "y": other_column})
    assert refused_rows(rows) == {}


def test_draft_labels_are_texts_compared_in_counting() -> None:
    for value in (
        1.0,
        -0.0,
        2.5,
        1e16,
        "01",
        True,
        BIG + 1,
        Decimal("0.50"),
        b"x",
        np.float32(0.1),
        np.int8(3),
    ):
        rows = pd.DataFrame({"x": pd.Series([value, "other"], dtype=object)})
        assert text_of(scalar(value)) in (draft_of_public(rows).schema["x"].labels or ())


FILES = {
    "r.csv": ('"","sex","age"\n"1","F",31\n"2","M",4\n', "sex|age"),
    "pandas.csv": (",sex\n0,F\n1,M\n", "sex"),
    "again.csv": ("Unnamed: 0,sex\n0,F\n1,M\n", "sex"),
    "blanks.csv": ("sex,,age,\nF,1,31,x\nM,2,4,y\n", "sex|age"),
    "break.csv": ('"age\n(years)";sex\n31;F\n4;M\n', "age (years)|sex"),
    "mac.csv": ("sex;age\rF;31\rM;4\r", "sex|age"),
    "sep.csv": ("sep=;\nsex;age\nF;31\nM;4\n", "sex|age"),
    "quoted.csv": ('"sep=\t"\r\nsex\tage\r\nF\t31\r\nM\t4\r\n', "sex|age"),
    "semicolon.tsv": ("sex;age\nF;31\nM;4\n", "sex|age"),
    "tab.tsv": ("sex, or none, or both\tage\nF\t31\nM\t4\n", "sex, or none, or both|age"),
    "comma.txt": ("sex,age\nF,31\nM,4\n", "sex|age"),
    "tab.dat": ("sex\tage\nF\t31\nM\t4\n", "sex|age"),
    "array.json": ('[{"sex": "F", "age": 31},\n {"sex": "M", "age": 4}]\n', "sex|age"),
    "lines.json": ('{"sex": "F", "age": 31}\n{"sex": "M", "age": 4}\n', "sex|age"),
}


@pytest.mark.parametrize("name", FILES)
def test_text_file_is_drafted_and_counted(tmp_path: Path, name: str) -> None:
    text, columns = FILES[name]
    path = tmp_path / name
    path.write_bytes(text.encode())
    draft = draft_of_public(path)
    names = draft.schema.names
    assert names == tuple(columns.split("|"))
    assert count_marginals(path, draft.schema, [names], ignore=draft.unlabelled).records == 2


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ('"sex","age"\n"1","F",31\n', "row.names"),
        ('"sex" "age"\n"1" "F" 31\n', "row.names"),
        ("sex,age\nF,31,\n", "ends in a delimiter"),
        ("sex,age,\nF,31\n", "header ends"),
        ("# a title\nsex,age\nF,31\n", "title"),
    ],
)
def test_ragged_csv_message_names_cause(tmp_path: Path, text: str, word: str) -> None:
    (tmp_path / "x.csv").write_text(text)
    with pytest.raises(DataError, match=word) as caught:
        draft_of_public(tmp_path / "x.csv")
    assert "31" not in str(caught.value).replace(str(tmp_path), "")


def test_explicit_blank_delimiter_is_used(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_text('"sex" "age"\n"F" 31\n"M" 4\n')
    draft = draft_of_public(TextFile(path=path, delimiter=" "))
    assert draft.schema.names == ("sex", "age")


@pytest.mark.parametrize(
    "text",
    [
        '[{"x": 1}',
        '[{"x": 1},',
        '[{"x": 1} {"x": 2}]',
        "[1, 2]",
        '[{"x": 1}] {}',
        '[{"x": 1}, {"x"}]',
        "[" * 99_999,
        "[",
    ],
)
def test_broken_json_array_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(DataError, match=r"x\.json"):
        draft_of_public(tmp_path / "x.json")


def test_long_json_array_is_read_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.records.readers.BLOCK", 7)
    # texts with the characters that end an array, and a character of two bytes
    rows = [{"sex": "FMü"[i % 3], "note": '],{"' * (i % 4)} for i in range(50)]
    path = tmp_path / "x.json"
    pd.DataFrame(rows).to_json(path, orient="records", force_ascii=False, indent=1)
    draft = draft_of_public(path)
    assert count_marginals(path, draft.schema, [("sex",)])["sex",].tolist() == [17, 17, 16]


def workbook(path: Path, sheets: dict[str, list[list[Any]]], hidden: str = "") -> Path:
    """Write an Excel workbook; the sheet ``hidden`` is hidden."""
    xlsxwriter = pytest.importorskip("xlsxwriter")
    with xlsxwriter.Workbook(str(path)) as book:
        for name, rows in sheets.items():
            page = book.add_worksheet(name)
            for number, row in enumerate(rows):
                page.write_row(number, 0, row)
            if name == hidden:
                page.hide()
    return path


ROWS: list[list[Any]] = [[2019, "sex"], ["01", "F"], ["02", "M"]]


def test_numbers_in_sheet_header_are_names(tmp_path: Path) -> None:
    path = workbook(tmp_path / "x.xlsx", {"a": ROWS})
    assert draft_of_public(path).schema.names == ("2019", "sex")


def test_sheet_is_chosen_by_name(tmp_path: Path) -> None:
    path = workbook(tmp_path / "x.xlsx", {"a": ROWS, "b": [["x"], [1], [2]], "empty": []})
    with pytest.raises(DataError, match="'a', 'b'"):
        draft_of_public(path)
    sheet = SheetFile(path=path, sheet="b")
    draft = draft_of_public(sheet)
    assert draft.schema.names == ("x",)
    assert count_marginals(sheet, draft.schema, [("x",)])["x",].tolist() == [1, 1]
    with pytest.raises(DataError, match="no sheet 'c'"):
        draft_of_public(SheetFile(path=path, sheet="c"))


def test_empty_and_hidden_sheets_are_ignored(tmp_path: Path) -> None:
    path = workbook(tmp_path / "x.xlsx", {"a": ROWS, "empty": [], "lists": [["x"]]}, hidden="lists")
    assert draft_of_public(path).schema.names == ("2019", "sex")


LABELLED_WRITERS: dict[str, Any] = {
    "sav": pyreadstat.write_sav,
    "dta": pyreadstat.write_dta,
    "xpt": pyreadstat.write_xport,
}


LABELS: dict[str, tuple[dict[float, str], list[float], str]] = {
    "missing": ({99999.0: "refused"}, [99999.0], "missing"),
    "undeclared": ({98.0: "unknown", 99.0: "refused"}, [], "missing"),
    "ends": ({0.0: "none", 10.0: "10 or more"}, [], "between"),
    "middle": ({0.0: "none", 5.0: "half", 10.0: "all"}, [], "between"),
    "twice": ({1.0: "Other", 2.0: "Other", 3.0: "Farmer"}, [], "same label"),
    "code": ({1.0: "2", 3.0: "x"}, [], "also be a value"),
    "one": ({1.0: "yes"}, [], "only one"),
}


@pytest.mark.parametrize("case", LABELS)
def test_unsuitable_labels_are_omitted_with_reason(tmp_path: Path, case: str) -> None:
    labels, missing, reason = LABELS[case]
    path = tmp_path / "x.sav"
    sex_labels = {1.0: "F", 2.0: "M", 8.0: "unknown", 9.0: "refused"}
    pyreadstat.write_sav(
        pd.DataFrame({"x": [1.0, 2.0, 3.0], "sex": [1.0, 2.0, 1.0]}),
        path,
        variable_value_labels={"x": labels, "sex": sex_labels},
        missing_ranges={"x": missing},
    )
    draft = draft_schema(path)
    assert draft.schema.names == ("sex",)
    assert reason in draft.reasons["x"]
    if case in ("twice", "code"):  # a draft of public records drafts the other cases from values
        assert reason in draft_of_public(path).reasons["x"]


@pytest.mark.parametrize("form", ["sav", "dta"])
def test_value_with_empty_label_counts_as_itself(tmp_path: Path, form: str) -> None:
    rows, labels = pd.DataFrame({"x": [1.0, 2.0, 3.0]}), {"x": {1.0: "yes", 2.0: "no", 3.0: ""}}
    path = tmp_path / f"x.{form}"
    LABELLED_WRITERS[form](rows, path, variable_value_labels=labels)
    for draft in (draft_schema(path), draft_of_public(path)):
        assert set(draft.schema["x"].labels or ()) >= {"yes", "no"}
        assert count_marginals(path, draft.schema, [("x",)])["x",].tolist() == [1, 1, 1]


@pytest.mark.parametrize("form", ["sav", "dta", "xpt"])
def test_dates_of_labelled_files_are_omitted(tmp_path: Path, form: str) -> None:
    path = tmp_path / f"x.{form}"
    rows = pd.DataFrame({"born": [dt.date(2020, 1, 2), dt.date(2021, 1, 2)], "z": ["01", "02"]})
    LABELLED_WRITERS[form](rows, path)
    draft = draft_of_public(path)
    assert draft.schema.names == ("z",)
    assert "dates" in draft.reasons["born"]


def test_data_read_once_is_drafted() -> None:
    rows = pa.table({"x": ["01", "02"]})
    for data in (
        iter(rows.to_batches()),
        pa.RecordBatchReader.from_batches(rows.schema, rows.to_batches()),
    ):
        assert draft_of_public(data).schema["x"].labels == ("01", "02")


def test_unreadable_column_does_not_stop_draft(tmp_path: Path) -> None:
    parquet, text = tmp_path / "x.parquet", tmp_path / "x.csv"
    table = pa.table({"list": [[1], [2]], "struct": [{"a": 1}, None], "y": ["a", "b"]})
    pq.write_table(table, parquet)
    text.write_text("twice,twice,b\n1,2,3\n4,5,6\n")
    for path, names, unlabelled in (
        (parquet, ("y",), ("list", "struct")),
        (text, ("b",), ("twice",)),
    ):
        draft = draft_of_public(path)
        assert draft.schema.names == names
        assert draft.unlabelled == unlabelled


def test_draft_without_attributes_error_lists_reasons() -> None:
    with pytest.raises(SchemaError, match="one value"):
        draft_of_public(pd.DataFrame({"x": ["a", "a"]}))


def test_missing_texts_among_numbers_are_declared() -> None:
    rows = pd.DataFrame({"x": ["1", "2", "NA", "."], "pay": ["0.5", "70000", "-", ""]})
    draft = draft_of_public(rows)
    assert draft.schema["x"] == Attribute.categorical("x", ["1", "2"], missing_values=(".", "NA"))
    assert draft.schema["pay"].edges is not None
    assert draft.schema["pay"].missing_values == ("-",)
    assert [note.partition(":")[0] for note in draft.notes] == ["x", "pay"]
    counts = count_marginals(rows, draft.schema, [("x",), ("pay",)], on_refused="drop")
    assert counts.refused == {"x": {"missing": 2}, "pay": {"missing": 2}}


@pytest.mark.parametrize(
    ("first", "last", "unit", "cells"),
    [
        ("2020-01-30", "2020-01-31", "day", 2),
        ("2020-01-30", "2020-03-29", "day", 60),
        ("2020-01-30", "2020-03-30", "month", 3),
        ("2020-01-30", "2022-12-31", "month", 36),
        ("2020-01-30", "2023-01-01", "year", 4),
    ],
)
def test_dates_have_days_months_or_years(first: str, last: str, unit: str, cells: int) -> None:
    days = [first, last]
    for column in (pa.array(days), pa.array(map(dt.date.fromisoformat, days))):
        attribute = draft_of_public(pa.table({"x": column})).schema["x"]
        assert (attribute.unit, attribute.size) == (unit, cells)


def test_dates_of_files_are_drafted_and_counted(tmp_path: Path) -> None:
    texts = pd.DataFrame({"x": ["2020-02-28", "2020-02-29", "2021-03-01"], "sex": ["F", "M", "F"]})
    dates = texts.assign(x=pd.to_datetime(texts["x"]))
    texts.to_csv(tmp_path / "x.csv", index=False)
    texts.to_json(tmp_path / "x.json", orient="records")
    dates.to_parquet(tmp_path / "x.parquet")
    dates.to_feather(tmp_path / "x.feather")
    workbook(tmp_path / "x.xlsx", {"a": [list(texts.columns), *texts.to_numpy(object).tolist()]})
    for path in sorted(tmp_path.iterdir()):
        draft = draft_of_public(path)
        assert draft.schema["x"] == Attribute.dates("x", "2020-02", "2021-03", "month")
        assert "2020-02" in draft.notes[0]
        assert count_marginals(path, draft.schema, [("x",)])["x",].tolist() == [2, *[0] * 12, 1]
