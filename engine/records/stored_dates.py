"""Dates that Stata, SPSS and SAS store as numbers since an epoch."""

from __future__ import annotations

import datetime
import math
import re
from bisect import bisect_right
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from engine._format import quote_public
from engine.errors import DataError
from engine.workload import Attribute
from engine.workload.calendar import UNITS, cell_label, cell_number

_PER_DAY = {"day": 1, "second": 86_400, "millisecond": 86_400_000}
_PER_YEAR = {"week": 52, "half-year": 2}
_BUSINESS_DAY = "business day"
_SECOND = 1_000  # milliseconds
_EPOCH = datetime.date(1970, 1, 1)
_DAYS = 2**31 - 1  # last day of an Arrow date32 column


@dataclass(frozen=True, kw_only=True)
class Clock:
    """Unit and epoch of numbers that represent dates.

    Attributes
    ----------
    unit : "millisecond", "second", "day", "week", "month", "quarter", "half-year", "year" or "business day".
        Weeks are those of Stata, 52 in each year, so that a week is in one year but in one or two
        months.
    start : day of number 0; years are not counted from it.
    leap_seconds : whether the numbers count leap seconds.
    """

    unit: str
    start: datetime.date
    leap_seconds: bool = False

    def check(self, attribute: Attribute) -> None:
        """Raise DataError if the numbers have no date, or one that is longer than the attribute's cells."""
        if not attribute.is_dated:
            return
        if self.unit == _BUSINESS_DAY:
            raise DataError(
                f"column {quote_public(attribute.name)} holds days of a business calendar, which the file does not contain. "
                "Write dates in the file"
            )
        finest = "day" if self.unit in _PER_DAY else self.unit if self.unit in UNITS else "year"
        if UNITS.index(finest) < UNITS.index(attribute.unit or ""):
            raise DataError(
                f"column {quote_public(attribute.name)} holds a {self.unit} in each row, which is not inside one "
                f"{attribute.unit}. Declare the attribute with the unit {finest!r}, or write dates in the file"
            )

    def dates(self, column: pa.Array | list[Any]) -> pa.Array | list[Any]:
        """Convert the numbers of a column to dates; other values are unchanged.

        >>> Clock(unit="day", start=datetime.date(1960, 1, 1)).dates(pa.array([0.0, None]))[0].as_py()
        datetime.date(1960, 1, 1)
        """
        # a number that is a year is read as such without a conversion
        if self.unit == "year":
            return column
        if self.unit in _PER_DAY and isinstance(column, pa.Array) and _is_number(column.type):
            gaps = np.asarray(column.is_null(nan_is_null=True))
            numbers = column.fill_null(0).to_numpy(zero_copy_only=False).astype(np.float64)
            shift = (self.start - _EPOCH).days
            numbers = np.where(gaps, 0.0, numbers)
            if self.leap_seconds:
                numbers = numbers - _SECOND * np.searchsorted(_LEAP_SECONDS, numbers, side="right")
            days = np.floor(numbers / _PER_DAY[self.unit]) + shift
            return pa.array(np.clip(days, -_DAYS, _DAYS).astype(np.int32), pa.date32(), mask=gaps)
        values = column.to_pylist() if isinstance(column, pa.Array) else column
        return [self._date(value) if isinstance(value, (int, float)) else value for value in values]

    def _date(self, number: float) -> Any:
        if math.isnan(number):
            return None
        if not math.isfinite(number):
            return "beyond all dates"
        try:
            if self.unit in _PER_DAY:
                if self.leap_seconds:
                    number -= _SECOND * bisect_right(_LEAP_SECONDS, number)
                return self.start + datetime.timedelta(days=number // _PER_DAY[self.unit])
            if self.unit in _PER_YEAR:
                return cell_label(self.start.year + math.floor(number) // _PER_YEAR[self.unit], "year")
            return cell_label(cell_number(self.start, self.unit) + math.floor(number), self.unit)
        except (OverflowError, ValueError):
            return datetime.date.min if number < 0 else datetime.date.max


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


_1960 = datetime.date(1960, 1, 1)
# days that end with a leap second
_LEAP_DAYS = [
    datetime.date(year, month, day)
    for month, day, years in (
        (6, 30, (1972, 1981, 1982, 1983, 1985, 1992, 1993, 1994, 1997, 2012, 2015)),
        (12, 31, (*range(1972, 1980), 1987, 1989, 1990, 1995, 1998, 2005, 2008, 2016)),
    )
    for year in years
]
# first milliseconds of the leap seconds since 1960, in numbers that count the leap seconds before
_LEAP_SECONDS = [
    ((day - _1960).days + 1) * _PER_DAY["millisecond"] + i * _SECOND for i, day in enumerate(sorted(_LEAP_DAYS))
]
_STATA = {
    "%td": Clock(unit="day", start=_1960),
    "%d": Clock(unit="day", start=_1960),
    "%tc": Clock(unit="millisecond", start=_1960),
    "%tC": Clock(unit="millisecond", start=_1960, leap_seconds=True),
    "%tw": Clock(unit="week", start=_1960),
    "%tm": Clock(unit="month", start=_1960),
    "%tq": Clock(unit="quarter", start=_1960),
    "%tb": Clock(unit=_BUSINESS_DAY, start=_1960),
    "%th": Clock(unit="half-year", start=_1960),
    "%ty": Clock(unit="year", start=_1960),
}
_SPSS = dict.fromkeys(
    ("ADATE", "DATE", "DATETIME", "EDATE", "JDATE", "MOYR", "QYR", "SDATE", "WKYR", "YMDHMS"),
    Clock(unit="second", start=datetime.date(1582, 10, 14)),
)
_SAS_DAYS = ("DATE", "DAY", "DDMMYY", "MMDDYY", "MONYY", "YYMM", "YYMMDD", "YYMON", "YYQ", "YEAR", "JULIAN", "WEEKDATE",
             "WORDDATE")  # fmt: skip
_SAS = {
    **dict.fromkeys([*_SAS_DAYS, "EDA", "BDA", "ISDA"], Clock(unit="day", start=_1960)),
    **dict.fromkeys(["DATETIME", "DATEAMPM", "EDT", "BDT", "ISDT"], Clock(unit="second", start=_1960)),
}


def clock_of(ending: str, form: str) -> Clock | None:
    """Return the clock of a column by file ending and display format; None if it has no dates.

    >>> clock_of(".dta", "%tdDD/NN/CCYY").unit, clock_of(".sav", "DATE11").unit, clock_of(".sav", "F8.2")
    ('day', 'second', None)
    """
    if ending == ".dta":
        form = form.replace("-", "", 1) if form.startswith("%-") else form
        return next((clock for key, clock in _STATA.items() if form.startswith(key)), None)
    letters = re.sub(r"[\d.]", "", form.upper())
    if ending in (".sav", ".zsav", ".por"):
        return _SPSS.get(letters)
    # a further letter of a SAS format names the separator of a date, as in YYMMDDN8.
    return _SAS.get(letters) or (_SAS.get(letters[:-1]) if letters[-1:] in tuple("BCDNPS") else None)
