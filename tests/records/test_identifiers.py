"""Person identifiers in all formats and number types."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.ipc
import pyreadstat
import pytest
import xlsxwriter

from engine.errors import DataError
from engine.mechanisms import plan
from engine.plans import Plan
from engine.privacy import Budget
from engine.records import count_marginals
from engine.records.contribution_bounding import identities
from engine.records.subprocess_readers import _float_limit
from engine.release.ingest import counts_for
from engine.workload import Attribute, Schema, Workload
from tests.replay.campaign import cost, no_noise, released

pytestmark = pytest.mark.usefixtures("in_process_readers")
SCHEMA = Schema([Attribute.of_size("a", 4)])
PEOPLE = list(range(1, 41))
INTEGERS = [
    kind()
    for kind in (pa.int8, pa.int16, pa.int32, pa.int64, pa.uint8, pa.uint16, pa.uint32, pa.uint64)
]
FLOATS = [pa.float16(), pa.float32(), pa.float64()]
DECIMALS = [
    pa.decimal32(9, 2),
    pa.decimal64(18, 0),
    pa.decimal128(38, 0),
    pa.decimal128(30, 8),
    pa.decimal256(76, 3),
]
NUMBERS = [
    *INTEGERS,
    *FLOATS,
    *DECIMALS,
    pa.dictionary(pa.int8(), pa.int64()),
    pa.run_end_encoded(pa.int16(), pa.int32()),
]
TEXTS = [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())]


def array(people: list[Any], kind: pa.DataType) -> pa.Array:
    """Return an Arrow array of identifiers of any type."""
    if pa.types.is_run_end_encoded(kind):
        return pa.RunEndEncodedArray.from_arrays(
            list(range(1, len(people) + 1)), pa.array(people, kind.value_type)
        )
    if pa.types.is_dictionary(kind):
        return array(people, kind.value_type).dictionary_encode()
    if pa.types.is_decimal(kind):
        return pa.array(list(map(Decimal, people)), kind)
    return pa.array(list(map(np.float16, people)) if kind == pa.float16() else people, kind)


def arrow(path: Path, people: list[Any], kind: pa.DataType, cell: int = 0) -> None:
    table = pa.table({"a": pa.array([cell] * len(people)), "pid": array(people, kind)})
    with pa.ipc.new_file(path, table.schema) as file:
        file.write_table(table)


def people_counted(data: Any) -> tuple[int | None, int]:
    counts = count_marginals(data, SCHEMA, [("a",)], person="pid", rows_per_person=1)
    return counts.people, counts.records


@pytest.mark.parametrize(
    ("types", "people"),
    [(NUMBERS, PEOPLE), (TEXTS, list(map(str, PEOPLE)))],
    ids=["numbers", "texts"],
)
def test_identifier_of_several_types_is_one_person(
    types: list[pa.DataType], people: list[Any], tmp_path: Path
) -> None:
    # Each file has the same persons, with identifiers of another type.
    for i, kind in enumerate(types):
        arrow(tmp_path / f"{i:02}.arrow", people, kind)
    assert people_counted(tmp_path) == (len(PEOPLE), len(PEOPLE))


@pytest.mark.parametrize(("number", "text"), list(itertools.product(NUMBERS, TEXTS)), ids=str)
def test_identifier_as_number_and_text_is_refused(number: Any, text: Any, tmp_path: Path) -> None:
    arrow(tmp_path / "a.arrow", PEOPLE, number)
    arrow(tmp_path / "b.arrow", list(map(str, PEOPLE)), text)
    with pytest.raises(DataError, match="numbers and texts"):
        people_counted(tmp_path)


def sheet(path: Path, frame: pd.DataFrame) -> None:
    """Write a frame as an Excel workbook with empty cells for missing values."""
    with xlsxwriter.Workbook(str(path)) as book:
        page = book.add_worksheet()
        for number, row in enumerate(
            [list(frame), *frame.astype(object).where(frame.notna(), None).to_numpy().tolist()]
        ):
            page.write_row(number, 0, row)


def json_lines(path: Path, frame: pd.DataFrame) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in frame.to_dict("records")))


NUMBER_FORMATS: dict[str, Callable[[Path, pd.DataFrame], Any]] = {
    "a.parquet": lambda path, f: f.to_parquet(path),
    "b.parquet": lambda path, f: f.astype({"pid": "uint64"}).to_parquet(path),
    "c.parquet": lambda path, f: f.astype({"pid": float}).to_parquet(path),
    "d.feather": lambda path, f: f.astype({"pid": "Float64"}).to_feather(path),
    "e.jsonl": json_lines,
    "f.jsonl": lambda path, f: json_lines(path, f.astype({"pid": float})),
    "g.xlsx": sheet,
    "h.dta": lambda path, f: f.astype({"pid": "int8"}).to_stata(path, write_index=False),
    "i.dta": lambda path, f: f.astype({"pid": "float32"}).to_stata(path, write_index=False),
    "j.dta": lambda path, f: f.astype({"pid": float}).to_stata(path, write_index=False),
    "k.sav": lambda path, f: pyreadstat.write_sav(f, path),
    "l.xpt": lambda path, f: pyreadstat.write_xport(f, path, file_format_version=8),
}
TEXT_FORMATS: dict[str, Callable[[Path, pd.DataFrame], Any]] = {
    "a.csv": lambda path, f: f.to_csv(path, index=False),
    "b.csv": lambda path, f: f.astype({"pid": float}).to_csv(path, index=False),
    "c.parquet": lambda path, f: f.astype({"pid": str}).to_parquet(path),
    "d.jsonl": lambda path, f: json_lines(path, f.astype({"pid": str})),
    "e.sav": lambda path, f: pyreadstat.write_sav(f.astype({"pid": str}), path),
    "f.xlsx": lambda path, f: sheet(path, f.astype({"pid": str})),
}


@pytest.mark.parametrize("formats", [NUMBER_FORMATS, TEXT_FORMATS], ids=["numbers", "texts"])
def test_identifier_in_all_file_formats_is_one_person(
    formats: dict[str, Any], tmp_path: Path
) -> None:
    frame = pd.DataFrame({"a": 0, "pid": PEOPLE})
    for name, write in formats.items():
        write(tmp_path / name, frame)
    assert people_counted(tmp_path) == (len(PEOPLE), len(PEOPLE))


@pytest.mark.parametrize(
    "people",
    [
        [7, 7.0, Decimal(7), np.int8(7), np.float32(7), np.uint64(7), None, math.nan],
        [2**70, Decimal(2**70), 2**70],
        [2**63, Decimal(2**63), np.uint64(2**63)],
    ],
    ids=["small", "large", "unsigned"],
)
def test_identifier_of_mixed_objects_is_one_person(people: list[Any]) -> None:
    *words, has_person, kind = identities(people, "pid")
    persons = np.array(words)[:, has_person]
    assert len(np.unique(persons, axis=1).T) == 1
    assert kind == "numbers"


def test_identifier_above_64_bits_has_one_identity() -> None:
    numbers = [2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, -1, 0]

    def identity_of(numbers: list[int], kind: pa.DataType) -> dict[int, tuple[Any, Any]]:
        first_words, second_words, _, _ = identities(array(numbers, kind), "pid")
        return dict(zip(numbers, zip(first_words, second_words, strict=True), strict=True))

    expected = identity_of(numbers, pa.decimal256(76, 0))
    assert len(set(expected.values())) == len(numbers)
    for kind, fitting_numbers in (
        (pa.int64(), [n for n in numbers if -(2**63) <= n < 2**63]),
        (pa.uint64(), [n for n in numbers if 0 <= n < 2**64]),
        (pa.decimal128(38, 4), numbers),
    ):
        for number, identity in identity_of(fitting_numbers, kind).items():
            assert identity == expected[number]


@pytest.mark.parametrize(
    "text", ["1.2E+11", "1,23457E+11", "1e+05", "9007199254740992.0", "1" * 5_000 + ".0"]
)
def test_identifier_text_that_lost_digits_is_refused(text: str) -> None:
    with pytest.raises(DataError, match="give identifiers as text") as caught:
        identities(pa.array(["x", text]), "pid")
    assert caught.value.__context__ is None


def test_identifier_texts_differ_except_in_zero_decimals() -> None:
    def distinct_persons(texts: list[str]) -> int:
        *words, has_person, _ = identities(pa.array(texts), "pid")
        assert has_person.all()
        return len(np.unique(np.array(words), axis=1).T)

    distinct = ["7", "07", "7.5", " 7", "1e5", "12e4", "00", "0", "-1", "1", "7.00x", "x7.0"]
    assert distinct_persons(distinct) == len(distinct)
    # a program may have written 7 as 7.0
    assert distinct_persons(["7", "7.0", "7.00"]) == 1
    assert distinct_persons(["0", "-0.0", "0.0"]) == 1


def test_files_without_identifiers_fit_text_identifiers(tmp_path: Path) -> None:
    for name, people in (("texts", ["x", "y"]), ("no identifiers", [math.nan, math.nan])):
        frame = pd.DataFrame({"a": [0, 1], "pid": people})
        frame.to_parquet(tmp_path / f"{name}.parquet")
    counts = count_marginals(tmp_path, SCHEMA, [()], person="pid", on_refused="drop")
    assert counts.people == 2
    assert counts.rows_refused == 2


def doubles(number: int) -> pd.DataFrame:
    return pd.DataFrame({"a": [0, 1, 2], "pid": [float(number), 1.0, math.nan]})


LOSSY: dict[str, Callable[[Path, pd.DataFrame], Any]] = {
    "a.parquet": lambda path, f: f.to_parquet(path),
    "a.csv": lambda path, f: f.to_csv(path, index=False),
    "a.jsonl": json_lines,
    "a.xlsx": sheet,
    "a.dta": lambda path, f: f.to_stata(path, write_index=False),
    "a.sav": lambda path, f: pyreadstat.write_sav(f, path),
    "a.zsav": lambda path, f: pyreadstat.write_sav(f, path, compress=True),
    "a.por": lambda path, f: pyreadstat.write_por(f.rename(columns=str.upper), path),
    "a.xpt": lambda path, f: pyreadstat.write_xport(f, path, file_format_version=8),
}


@pytest.mark.parametrize("name", LOSSY)
def test_float_identifier_above_exact_range_is_refused(name: str, tmp_path: Path) -> None:
    limit = 10**15 if name == "a.xlsx" else 2**53
    is_upper_case = name == "a.por"  # these files have no names in lower case
    schema = Schema([Attribute.of_size("A" if is_upper_case else "a", 4)])
    options: dict[str, Any] = {"person": "PID" if is_upper_case else "pid", "on_refused": "drop"}
    path = tmp_path / name
    for number in (limit, 10**17):
        LOSSY[name](path, doubles(number))
        with pytest.raises(DataError, match="give identifiers as text"):
            count_marginals(path, schema, [()], **options)
    LOSSY[name](path, doubles(limit - 1))
    assert count_marginals(path, schema, [()], **options).people == 2


@pytest.mark.parametrize(
    ("kind", "limit"), [("float16", 2**11), ("float32", 2**24), ("float64", 2**53)]
)
def test_narrow_float_identifier_has_smaller_range(kind: str, limit: int, tmp_path: Path) -> None:
    def sources(number: int) -> list[Any]:
        frame = pd.DataFrame({"a": [0, 1], "pid": np.array([number, 1], kind)})
        data = [frame, pa.Table.from_pandas(frame)]
        if kind != "float16":  # Stata has no such type
            frame.to_stata(tmp_path / "a.dta", write_index=False)
            data.append(tmp_path / "a.dta")
        return data

    for number in (limit, 2 * limit, -limit):
        for data in sources(number):
            with pytest.raises(DataError, match="floating-point"):
                people_counted(data)
    for data in sources(limit - 1):
        assert people_counted(data) == (2, 2)


@pytest.mark.parametrize(("width", "exact"), [(3, 2**13), (4, 2**21), (7, 2**45), (8, 2**53)])
def test_sas_column_length_limits_identifiers(width: int, exact: int) -> None:
    meta = SimpleNamespace(
        readstat_variable_types={"pid": "double"}, variable_storage_width={"pid": width}
    )
    assert _float_limit(meta, "pid") == exact


def test_read_csv_with_a_gap_is_refused(tmp_path: Path) -> None:
    """If an integer is missing, pandas reads the column as floats, and large integers lose digits."""
    path = tmp_path / "a.csv"
    path.write_text("a,pid\n0,9007199254740992\n1,9007199254740993\n2,\n")
    with pytest.raises(DataError, match="give identifiers as text"):
        count_marginals(pd.read_csv(path), SCHEMA, [()], person="pid", on_refused="drop")
    assert count_marginals(path, SCHEMA, [()], person="pid", on_refused="drop").people == 2


def joint_plan() -> Plan:
    schema = Schema([Attribute.of_size("a", 4), Attribute.of_size("b", 3)])
    return plan(Workload.all_ways(schema, (1, 2)), Budget(pcost=1.0, rows_per_person=2))


@pytest.mark.parametrize(
    ("first", "second"), [("int64", "uint64"), ("int64", "float64"), ("int8", "float32")]
)
def test_person_in_two_types_costs_at_most_charge(first: str, second: str, tmp_path: Path) -> None:
    pairs_plan = joint_plan()
    rng = np.random.default_rng(3)
    frame = pd.DataFrame(
        {"a": rng.integers(0, 4, 60), "b": rng.integers(0, 3, 60), "pid": rng.integers(1, 7, 60)}
    )
    # A person costs most if all of the person's rows are in one cell.
    frame.loc[frame["pid"] == 1, ["a", "b"]] = 3, 2

    def exact_answers(rows: pd.DataFrame) -> Any:
        rows[::2].astype({"pid": first}).to_parquet(tmp_path / "a.parquet")
        rows[1::2].astype({"pid": second}).to_parquet(tmp_path / "b.parquet")
        return released([pairs_plan], counts_for(pairs_plan, tmp_path, person="pid"))

    with no_noise():
        all_persons = exact_answers(frame)
        costs = [
            cost([pairs_plan], all_persons, exact_answers(frame[frame["pid"] != person]))
            for person in (1, 2)
        ]
    assert 0.99 * pairs_plan.pcost < max(costs) <= pairs_plan.pcost
