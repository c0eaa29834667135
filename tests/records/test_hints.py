"""Hints for the curator about refused values, without the values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ibis
import pandas as pd
import pyarrow as pa
import pytest

from engine.mechanisms import plan
from engine.privacy import Budget
from engine.records import Encoder, count_marginals
from engine.records.encoding import PHRASES, Hints, refusal_reasons
from engine.release.ingest import check_records
from engine.workload import Attribute, Schema, Workload

CODES = Attribute.categorical("x", ["01", "02", "10", "7"])
PAY = Attribute.numeric("x", [0, 10, 5000])
DAY = Attribute.dates("x", "2024-01", "2024-12")
DIGIT = Attribute.of_size("x", 10)


@pytest.mark.parametrize(
    ("attribute", "text", "expected"),
    [
        (CODES, "1", ["zero"]),
        (CODES, "10.0", ["point"]),
        (CODES, "007", ["zeros"]),
        (CODES, " 01", ["blanks"]),
        (CODES, "3", []),
        (CODES, "NA", ["missing"]),
        (PAY, "NA", ["missing"]),
        (PAY, " - ", ["missing"]),
        (PAY, "3,5", ["comma"]),
        (PAY, "1,200", ["thousands"]),
        (PAY, "1.200,50", ["thousands"]),
        (PAY, "1 200", ["thousands"]),
        (PAY, "9000", []),
        (PAY, "x", []),
        (DIGIT, "3,0", ["comma"]),
        (DAY, "1.2.2024", ["date"]),
        (DAY, "02/01/2024", ["date"]),
        (DAY, "2025-01-01", []),
        (DAY, "N/A", ["missing"]),
    ],
)
def test_refusal_reasons_name_fitting_change(
    attribute: Attribute, text: str, expected: list[str]
) -> None:
    assert Encoder(attribute=attribute).encode(text) < 0
    assert list(refusal_reasons(Encoder(attribute=attribute), text)) == expected


def has_point_hint(attribute: Attribute, *texts: Any) -> bool:
    """Return whether values cause a hint that shows 1.200 as an example.

    An array, an array with a dictionary and a list of the values must give the same answer.
    """
    encoder, answers = Encoder(attribute=attribute), set()
    for column in (pa.array(texts), pa.array(texts).dictionary_encode(), list(texts)):
        hints = Hints()
        hints.add(encoder, column, encoder.encode_column(column))
        answers.add(bool(hints.texts))
        assert bool(hints.texts) == any("1.200" in text for text in hints.texts)
    (answer,) = answers
    return answer


def test_hints_warn_of_points_before_three_digits() -> None:
    assert has_point_hint(PAY, "1.200", "7", None, "3.500")
    assert not has_point_hint(PAY, "1.200", "1.25")
    assert not has_point_hint(PAY, "1", "2")
    assert not has_point_hint(PAY, "1.5")
    assert not has_point_hint(Attribute.numeric("x", [0, 10, 5000], decimal=","), "7")
    assert not has_point_hint(
        Attribute.numeric("x", [0, 10, 5000], decimal=",", thousands="."), "1.200"
    )
    assert not has_point_hint(Attribute.numeric("x", [0, 10, 5000], decimal="."), "1.200")


FRAME = pd.DataFrame(
    {"x": ["1", "01", "02", " 02", "10"], "pay": ["2.700", "3.500", "7", "-", "8"]}
)
SCHEMA = Schema([CODES, Attribute.numeric("pay", [0, 10, 5000])])


def duckdb_table(frame: pd.DataFrame) -> Any:
    connection = ibis.duckdb.connect()
    connection.con.register("source", frame)
    connection.raw_sql("CREATE TABLE records AS SELECT * FROM source")
    return connection.table("records")


@pytest.mark.parametrize("source", ["frame", "csv", "duckdb"])
def test_check_records_reports_hints_without_values(source: str, tmp_path: Path) -> None:
    data: Any = FRAME
    if source == "csv":
        data = tmp_path / "a.csv"
        FRAME.to_csv(data, index=False)
    if source == "duckdb":
        data = duckdb_table(FRAME)
    workload = Workload(SCHEMA).add("x", "marginal").add("pay", "marginal")
    warnings = check_records(plan(workload, Budget(pcost=1.0)), data).warnings
    assert len(warnings) == 4
    for reason, column in (("zero", "x"), ("blanks", "x"), ("missing", "pay")):
        assert any(PHRASES[reason] in text and f"'{column}'" in text for text in warnings)
    assert any("thousands" in text for text in warnings)
    for value in ("2.700", "3.500"):
        assert value not in " ".join(warnings)


def test_hint_failure_does_not_stop_counting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hints, "add", None)
    assert count_marginals(FRAME, SCHEMA, [("x",)], on_refused="drop").records == 3


CITIES = Attribute.categorical("x", ["León", "Zürich", "Bern"])


@pytest.mark.parametrize(
    ("text", "label", "difference"),
    [
        ("Leon", "León", "accents"),
        ("Be\u200brn", "Bern", "characters that are not visible"),
        ("Leo\u0301n", "León", "characters that are not visible"),
        ("bern", "Bern", "upper and lower case"),
        ("ZURICH", "Zürich", "blanks, case, accents or leading zeros"),
    ],
)
@pytest.mark.parametrize("source", ["frame", "duckdb"])
def test_check_records_names_label_that_differs_in_details(
    text: str, label: str, difference: str, source: str
) -> None:
    frame = pd.DataFrame({"x": [text, "Bern"]})
    data: Any = duckdb_table(frame) if source == "duckdb" else frame
    cities_plan = plan(Workload(Schema([CITIES])).add("x", "marginal"), Budget(pcost=1.0))
    (warning,) = check_records(cities_plan, data).warnings
    assert f"from the label '{label}' only by {difference}" in warning
    assert text not in warning


def test_hints_name_at_most_five_labels() -> None:
    labels, similar_texts = [f"é{i}" for i in range(20)], [f"e{i}" for i in range(20)]
    encoder, hints = Encoder(attribute=Attribute.categorical("x", labels)), Hints()
    hints.add_values(encoder, similar_texts)
    (sentence,) = hints.texts
    assert "'é4' and 15 more only by accents" in sentence
    assert "'é5'" not in sentence


@pytest.mark.parametrize("as_list", [False, True], ids=["array", "list"])
def test_hints_name_labels_similar_to_other_values(as_list: bool) -> None:
    attribute = Attribute.categorical("x", ["León", "Bern", "rest"], other="rest")
    encoder, hints = Encoder(attribute=attribute), Hints()
    texts = ["Leon", "Bern", "rest", "Rest", "Rome", None]
    column = texts if as_list else pa.array(texts)
    hints.add(encoder, column, encoder.encode_column(column))
    assert hints.texts == (
        "Column 'x': a value that is counted as 'rest' differs from the label 'León' only by"
        " accents. Correct the records or the schema.",
    )
