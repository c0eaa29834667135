"""Declared missing texts, number formats and dates, checked in every file format."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pyreadstat
import pytest
import xlsxwriter

from engine.errors import DataError
from engine.records import MISSING, OUTSIDE, Encoder, count_marginals
from engine.records.encoding import FRACTION, NOT_DATE, NOT_NUMBER, UNSUPPORTED, clock_of
from engine.release.ingest import records_fit
from engine.workload import Attribute, Schema

pytestmark = pytest.mark.usefixtures("in_process_readers")
UTC, BERLIN = datetime.UTC, datetime.timezone(datetime.timedelta(hours=1))


def codes(attribute: Attribute, *values: Any) -> list[int]:
    """Return codes of single values, after checking that an Arrow column has equal codes."""
    encoder = Encoder(attribute=attribute)
    one = [encoder.encode(value) for value in values]
    try:
        column = pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return one
    assert encoder.encode_array(column).tolist() == one
    assert encoder.encode_array(column.dictionary_encode()).tolist() == one
    return one


def test_encoder_missing_text_is_missing() -> None:
    bins = Attribute.numeric("x", [0, 10, 100], missing_values=("NA", ".", "-9", "99"))
    assert codes(bins, "5", "NA", ".", "-9", "-9.0", " NA ", "99", "n/a") == [
        0,
        *[MISSING] * 6,
        NOT_NUMBER,
    ]
    assert codes(bins, -9, 5, 99, -8) == [MISSING, 0, MISSING, OUTSIDE]
    assert codes(bins, -9.0, 5.0, float("nan")) == [MISSING, 0, MISSING]
    assert codes(bins, Decimal("-9.00"), Decimal("9.5")) == [MISSING, 0]
    assert codes(Attribute.of_size("x", 100, missing_values=["99", "NA"]), 99, 3) == [MISSING, 3]
    assert codes(Attribute.of_size("x", 100, missing_values=["99", "NA"]), "NA", "99", "3") == [
        MISSING,
        MISSING,
        3,
    ]
    filled = Attribute.numeric("x", [-1, 0, 10], missing=-1, missing_values=["NA"])
    assert codes(filled, "NA", "", "5", None) == [0, 0, 1, 0]


def test_encoder_missing_number_may_equal_missing_text() -> None:
    marked = Attribute.numeric(
        "x", [-1, 0, 10], missing=-1, missing_values=["-1", "0.5"], integer=True
    )
    assert codes(marked, -1, 5, None) == [0, 1, 0]
    assert codes(marked, "-1", "0.5", "5.5", "5") == [0, 0, FRACTION, 1]
    assert codes(marked, 0.5, 5.5) == [0, FRACTION]


def test_encoder_missing_text_of_labels_is_exact() -> None:
    labels = Attribute.categorical(
        "x", ["F", "rest", "gone"], other="rest", missing="gone", missing_values=("NA", "9")
    )
    assert codes(labels, "F", "NA", "9", "na", " NA", "", None) == [0, 2, 2, 1, 1, 2, 2]
    assert codes(labels, 9, 8) == [2, 1]
    assert codes(labels, 9.0, 9.5) == [2, 1]
    strict = Attribute.categorical("x", ["F", "M"], missing_values=["NA"])
    assert codes(strict, "F", "NA", "M", "x") == [0, MISSING, 1, OUTSIDE]


def test_encoder_reads_declared_signs_only() -> None:
    german = Attribute.numeric("x", [0, 10, 5000], decimal=",", thousands=".")
    expected = [1, 1, 1, 0, 0, 0, 0]
    assert codes(german, "1.200", "1.200,5", "4999,99", "7", "3,5", ",5", "+2") == expected
    wrong = (
        "1.20",
        "12.00",
        "1.2000",
        "1,200.5",
        "1.200.5",
        ".200",
        "1..200",
        "1,2,3",
        "x",
        "1 200",
        "",
        ".",
    )
    assert codes(german, *wrong) == [MISSING if text == "" else NOT_NUMBER for text in wrong]
    assert codes(german, 1.2, 1200.0) == [0, 1]
    assert codes(german, "nan", "inf", "-1") == [MISSING, OUTSIDE, OUTSIDE]
    comma = Attribute.numeric("x", [0, 10, 5000], decimal=",")
    assert codes(comma, "1.200", "1,5", "1200") == [NOT_NUMBER, 0, 1]
    english = Attribute.numeric("x", [0, 10, 5000], decimal=".", thousands=",")
    assert codes(english, "1,200", "1,200.5", "1.5", "1,20") == [1, 1, 0, NOT_NUMBER]
    french = Attribute.numeric("x", [0, 10, 5000], decimal=",", thousands=" ")
    assert codes(french, "1 200", "1\u202f200,5", "1\u00a0200") == [1, 1, 1]
    swiss = Attribute.numeric("x", [0, 10, 5000], decimal=".", thousands="'")
    assert codes(swiss, "1'200", "1\u2019200.5") == [1, 1]


MONTHS = Attribute.dates("x", "2024-01", "2024-03")


def test_encoder_reads_dates_of_every_type() -> None:
    assert codes(MONTHS, "2024-01", "2024-02-29", "2024-03-31T23:59", "2024-01-05 00:00:00") == [
        0,
        1,
        2,
        0,
    ]
    assert codes(MONTHS, datetime.date(2024, 1, 1), datetime.date(2023, 12, 31), None) == [
        0,
        OUTSIDE,
        MISSING,
    ]
    assert codes(MONTHS, datetime.datetime(2024, 2, 1), datetime.datetime(2024, 1, 31, 23, 59)) == [
        1,
        0,
    ]
    assert codes(MONTHS, np.datetime64("2024-03-01"), pd.Timestamp("2024-02-01")) == [2, 1]


def test_encoder_of_months_refuses_values_without_date() -> None:
    wrong = (
        "2024",
        "2024-Q1",
        "01.02.2024",
        "2024-2-1",
        "20240201",
        "2024-02-30",
        "2024-02-01T25:00",
        "x",
    )
    assert codes(MONTHS, *wrong) == [NOT_DATE] * len(wrong)
    assert codes(MONTHS, 2024, 202401) == [NOT_DATE] * 2
    assert codes(MONTHS, datetime.time(3), datetime.timedelta(3)) == [UNSUPPORTED] * 2


def test_encoder_reads_numbers_of_years_and_quarters() -> None:
    years = Attribute.dates("x", "2023", "2025", "year")
    assert codes(years, 2024, 2022, 24) == [1, OUTSIDE, NOT_DATE]
    assert codes(years, 2024.0, 2024.5) == [1, NOT_DATE]
    quarters = Attribute.dates("x", "2024-Q1", "2025-Q1", "quarter")
    assert codes(quarters, "2024-Q2", "2024-12", "2024") == [1, 3, NOT_DATE]


def test_encoder_counts_zoned_times_in_utc() -> None:
    instants = [
        "2024-02-01T00:30:00+01:00",
        "2024-01-31 23:30:00-0100",
        "2024-02-01T00:30Z",
        "2024-02-01T00:30+01",
    ]
    assert codes(MONTHS, *instants) == [0, 1, 1, 0]
    assert codes(MONTHS, datetime.datetime(2024, 2, 1, 0, 30, tzinfo=BERLIN)) == [0]
    column = pa.array(
        [datetime.datetime(2024, 2, 1, 0, 30, tzinfo=UTC)], pa.timestamp("ns", "Europe/Berlin")
    )
    assert Encoder(attribute=MONTHS).encode_array(column).tolist() == [1]


def test_encoder_reads_declared_date_format_and_iso() -> None:
    german = Attribute.dates("x", "2024-01", "2024-03", date_format="%d.%m.%Y")
    assert codes(german, "01.02.2024", "1.3.2024", "2024-01-05", "02/01/2024", "32.1.2024") == [
        1,
        2,
        0,
        NOT_DATE,
        NOT_DATE,
    ]
    packed = Attribute.dates("x", "2024-01", "2024-03", date_format="%Y%m%d")
    assert codes(packed, 20240203, 2024020) == [1, NOT_DATE]
    assert codes(packed, "20240203", "2024023") == [1, NOT_DATE]
    timed = Attribute.dates("x", "2024-01", "2024-03", date_format="%m/%d/%Y %H:%M:%S")
    assert codes(timed, "2/13/2024 23:59:59", "13/2/2024 23:59:59") == [1, NOT_DATE]


def test_encoder_clips_and_collects_dates() -> None:
    dates = Attribute.dates(
        "x", "2024-01", "2024-03", clip=True, missing="gone", missing_values=["1900-01-01", "NA"]
    )
    gone = 3
    assert codes(dates, "1900-01-01", "NA", "", "gone", None) == [gone] * 5
    assert codes(dates, "1899-01-01", "2030-01-01") == [0, 2]
    assert codes(dates, datetime.date(1900, 1, 1)) == [gone]
    assert codes(dates, datetime.date(1900, 1, 2), datetime.date.max) == [0, 2]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("cell", ["year", "quarter", "month", "day"])
def test_encoder_column_of_times_agrees_with_single_values(unit: Any, cell: str) -> None:
    rng = np.random.default_rng(3)
    seconds = rng.integers(-3_000_000_000, 3_000_000_000, 300)  # 1874 to 2065
    times = seconds.astype("datetime64[s]").astype(f"datetime64[{unit}]")
    attribute = Attribute.dates(
        "x", "1930-01-01", "2020-12-31", cell, missing_values=["1999-01-01"]
    )
    encoder = Encoder(attribute=attribute)
    for kind in (pa.timestamp(unit), pa.timestamp(unit, "Asia/Tokyo"), pa.date32(), pa.date64()):
        column = pa.array(times, pa.timestamp(unit)).cast(kind, safe=False)
        expected = [encoder.encode(value) for value in column.to_pylist()]
        assert encoder.encode_array(column).tolist() == expected


SCHEMA = Schema(
    [
        Attribute.categorical("sex", ["F", "M", "gone"], missing="gone", missing_values=["NA"]),
        Attribute.numeric("age", [0, 20, 65, 120], missing_values=["NA", ".", "999"]),
        Attribute.numeric("pay", [0, 10, 5000], decimal=",", thousands=".", missing_values=["-"]),
        Attribute.dates(
            "day", "2024-01", "2024-03", missing="none", missing_values=["NA", "1900-01-01"]
        ),
    ]
)
SETS = [("sex",), ("age",), ("pay",), ("day",), ("sex", "day")]
ROWS = [  # values as texts, and their codes, or None if the row is refused
    (("F", "19", "1.200", "2024-01-05"), (0, 0, 1, 0)),
    (("NA", "20", "3,5", "2024-02-29"), (2, 1, 0, 1)),
    (("M", "20.5", "4999,99", "NA"), (1, 1, 1, 3)),
    (("M", "NA", "7", "2024-03-01"), None),
    (("M", "999", "7", "2024-03-01"), None),
    (("F", "30", "-", "2024-03-01"), None),
    (("F", "30", "1.20", "2024-03-01"), None),
    (("F", "30", "7", "2024-04-01"), None),
    (("F", "119", "7", "1900-01-01"), (0, 2, 0, 3)),
    (("M", "64", "1.200.5", "2024-01-01"), None),
]
FRAME = pd.DataFrame([values for values, _ in ROWS], columns=list(SCHEMA))


def frame_with_dates() -> pd.DataFrame:
    """Return the records `FRAME` with values of the type date in place of texts."""
    days = [None if day == "NA" else datetime.date.fromisoformat(day) for day in FRAME["day"]]
    return FRAME.assign(day=pd.Series(days, dtype=object))


def writer(write: Callable[[Path], object], name: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        write(folder / name)
        return folder / name

    return make


def excel(frame: pd.DataFrame, path: Path) -> None:
    with xlsxwriter.Workbook(str(path), {"default_date_format": "dd.mm.yyyy"}) as book:
        page = book.add_worksheet()
        for number, row in enumerate([list(frame), *frame.to_numpy(object).tolist()]):
            page.write_row(number, 0, row)


def stata(path: Path) -> None:
    pyreadstat.write_dta(frame_with_dates(), str(path))


def spss(path: Path) -> None:
    pyreadstat.write_sav(frame_with_dates(), str(path))


def sas(path: Path) -> None:
    pyreadstat.write_xport(frame_with_dates(), str(path))


SOURCES: dict[str, Callable[[Path], Any]] = {
    "frame": lambda _: FRAME,
    "frame with dates": lambda _: frame_with_dates(),
    "frame of objects": lambda _: FRAME.astype(object),
    "csv": writer(lambda path: FRAME.to_csv(path, index=False, sep=";"), "a.csv"),
    "json": writer(
        lambda path: path.write_text(
            "\n".join(json.dumps(row) for row in FRAME.to_dict("records"))
        ),
        "a.jsonl",
    ),
    "parquet": writer(lambda path: FRAME.to_parquet(path), "a.parquet"),
    "parquet with dates": writer(lambda path: frame_with_dates().to_parquet(path), "b.parquet"),
    "arrow": writer(
        lambda path: pa.feather.write_feather(pa.Table.from_pandas(frame_with_dates()), path),
        "a.arrow",
    ),
    "stata": writer(stata, "a.dta"),
    "spss": writer(spss, "a.sav"),
    "sas": writer(sas, "a.xpt"),
    "excel": writer(lambda path: excel(FRAME, path), "a.xlsx"),
    "excel with dates": writer(lambda path: excel(frame_with_dates(), path), "b.xlsx"),
}


@pytest.mark.parametrize("source", SOURCES)
def test_declared_schema_counts_are_equal_in_every_format(source: str, tmp_path: Path) -> None:
    data = SOURCES[source](tmp_path)
    counts = count_marginals(data, SCHEMA, SETS, on_refused="drop")
    accepted = [cells for _, cells in ROWS if cells is not None]
    assert counts.records == len(accepted)
    assert counts.rows_refused == len(ROWS) - len(accepted)
    for names in SETS:
        expected = np.zeros(SCHEMA.sizes(names), int)
        for cells in accepted:
            expected[tuple(cells[SCHEMA.order[name]] for name in names)] += 1
        assert (counts[names] == expected).all(), names
    assert counts.refused == {
        "age": {"missing": 2},
        "pay": {"missing": 1, "not a number": 2},
        "day": {"outside the schema": 1},
    }
    fits = {fit.column: (fit.missing, fit.refused) for fit in records_fit(SCHEMA, data)}
    assert fits["age"] == (2, 2)
    assert fits["day"] == (2, 1)


@pytest.mark.parametrize(
    ("ending", "write"),
    [
        (".dta", pyreadstat.write_dta),
        (".sav", pyreadstat.write_sav),
        (".xpt", pyreadstat.write_xport),
    ],
    ids=["dta", "sav", "xpt"],
)
def test_labelled_file_times_count_on_their_day(ending: str, write: Any, tmp_path: Path) -> None:
    times = pd.to_datetime(
        ["2024-01-31 23:59:59", "2024-02-01", "1959-12-31 12:00", None], format="mixed"
    )
    path = tmp_path / f"a{ending}"
    write(pd.DataFrame({"x": times, "n": [1.0, 2.0, 3.0, 4.0]}), str(path))
    options: dict[str, Any] = {"on_refused": "drop", "ignore": ["n"]}
    days = Attribute.dates("x", "1959-12-31", "2024-02-01", "day")
    counts = count_marginals(path, Schema([days]), [("x",)], **options)
    first, before_last, last = 0, days.size - 2, days.size - 1
    assert np.flatnonzero(counts["x",]).tolist() == [first, before_last, last]
    numbers = Attribute.numeric("x", [-1e15, 0, 1e15])
    assert count_marginals(path, Schema([numbers]), [("x",)], **options).records == 3


def test_clock_of_stata_months_has_no_days() -> None:
    # Stata counts the months since 1960-01, hence 2024-01 is month 64 * 12 = 768.
    clock = clock_of(".dta", "%tm")
    assert clock is not None
    expected = ["1960-01", "1959-12", "2024-03", None, "x"]
    assert clock.dates([0.0, -1.0, 770.0, None, "x", float("inf")])[:5] == expected
    column = pa.array([768.0, 770.0, None])
    assert Encoder(attribute=MONTHS).encode_column(column, clock).tolist() == [0, 2, MISSING]
    days = Attribute.dates("x", "2024-01-01", "2024-03-01", "day")
    with pytest.raises(DataError, match="month"):
        Encoder(attribute=days).encode_column(column, clock)


def test_stata_leap_seconds_count_on_their_day() -> None:
    clock = clock_of(".dta", "%tC")
    assert clock is not None
    day_ms = 86_400_000
    leap_seconds_until_end_of = {"1972-06-30": 1, "1972-12-31": 2, "2016-12-31": 27}
    for text, leap_seconds in leap_seconds_until_end_of.items():
        day = pd.Timestamp(text)
        midnight_ms = ((day - pd.Timestamp("1960-01-01")).days + 1) * day_ms
        last_leap_second_ms = midnight_ms + 1000 * (leap_seconds - 1)
        numbers = [
            float(last_leap_second_ms),
            float(last_leap_second_ms + 999),
            float(last_leap_second_ms + 1000),  # the next day
        ]
        dates = [day.date(), day.date(), (day + pd.Timedelta(days=1)).date()]
        assert clock.dates(pa.array(numbers)).to_pylist() == dates
        assert clock.dates(numbers) == dates


@pytest.mark.parametrize(
    ("form", "numbers"),
    [
        ("%tw", [-1.0, 0.0, 51.0, 52.0]),
        ("%th", [-1.0, 0.0, 1.0, 2.0]),
        ("%ty", [1959.0, 1960.0, 1960.0, 1961.0]),
    ],
)
def test_stata_period_counts_in_its_year_only(
    form: str, numbers: list[float], tmp_path: Path
) -> None:
    path = tmp_path / "a.dta"
    pyreadstat.write_dta(pd.DataFrame({"x": numbers}), str(path), variable_format={"x": form})
    years = Schema([Attribute.dates("x", "1959", "1961", "year")])
    assert count_marginals(path, years, [("x",)])["x",].tolist() == [1, 2, 1]
    months = Schema([Attribute.dates("x", "1959-01", "1961-12", "month")])
    for on_refused in ("drop", "error"):
        with pytest.raises(DataError, match="'year'"):
            count_marginals(path, months, [("x",)], on_refused=on_refused)
    with pytest.raises(DataError, match="'year'"):
        records_fit(months, path)


def test_stata_business_days_are_refused_by_name() -> None:
    clock = clock_of(".dta", "%tbnyse")
    assert clock is not None
    with pytest.raises(DataError, match="business"):
        Encoder(attribute=MONTHS).encode_column(pa.array([1.0]), clock)
    assert Encoder(attribute=Attribute.of_size("x", 3)).encode_column(
        pa.array([1.0]), clock
    ).tolist() == [1]


@pytest.mark.parametrize(
    ("ending", "form", "unit"),
    [
        (".dta", "%tdCY-N-D", "day"),
        (".dta", "%-tdnn/dd/CCYY", "day"),
        (".dta", "%tcHH:MM", "millisecond"),
        (".dta", "%tC", "millisecond"),
        (".dta", "%9.0g", None),
        (".dta", "%tw", "week"),
        (".dta", "%-thCCYY!hh", "half-year"),
        (".dta", "%ty", "year"),
        (".sav", "DATETIME23.2", "second"),
        (".sav", "TIME8", None),
        (".sav", "F8", None),
        (".xpt", "YYMMDDN8", "day"),
        (".sas7bdat", "DATETIME", "second"),
        (".sas7bdat", "E8601DA10", "day"),
        (".sas7bdat", "BEST12", None),
        (".sas7bdat", "TIME8", None),
        (".sas7bdat", "", None),
    ],
)
def test_clock_of_display_format_has_unit_or_none(ending: str, form: str, unit: str | None) -> None:
    clock = clock_of(ending, form)
    assert (None if clock is None else clock.unit) == unit
