"""Dates that Stata, SPSS and SAS store as numbers since an epoch."""

from __future__ import annotations

import datetime
import math
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from engine.workload.calendar import cell_label, cell_number

_PER_DAY = {"day": 1, "second": 86_400, "millisecond": 86_400_000}
_EPOCH = datetime.date(1970, 1, 1)
_DAYS = 2**31 - 1  # last day of an Arrow date32 column


@dataclass(frozen=True, kw_only=True)
class Clock:
    """Unit and epoch of numbers that represent dates.

    Attributes
    ----------
    unit : "millisecond", "second", "day", "month" or "quarter".
    start : day of number 0.
    """

    unit: str
    start: datetime.date

    def dates(self, column: pa.Array | list[Any]) -> pa.Array | list[Any]:
        """Convert the numbers of a column to dates; other values are unchanged.

        >>> Clock(unit="day", start=datetime.date(1960, 1, 1)).dates(pa.array([0.0, None]))[0].as_py()
        datetime.date(1960, 1, 1)
        """
        if self.unit in _PER_DAY and isinstance(column, pa.Array) and _is_number(column.type):
            gaps = np.asarray(column.is_null(nan_is_null=True))
            numbers = column.fill_null(0).to_numpy(zero_copy_only=False).astype(np.float64)
            shift = (self.start - _EPOCH).days
            days = np.floor(np.where(gaps, 0.0, numbers) / _PER_DAY[self.unit]) + shift
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
                return self.start + datetime.timedelta(days=number // _PER_DAY[self.unit])
            return cell_label(cell_number(self.start, self.unit) + math.floor(number), self.unit)
        except (OverflowError, ValueError):
            return datetime.date.min if number < 0 else datetime.date.max


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


_1960 = datetime.date(1960, 1, 1)
_STATA = {
    "%td": Clock(unit="day", start=_1960),
    "%d": Clock(unit="day", start=_1960),
    "%tc": Clock(unit="millisecond", start=_1960),
    "%tm": Clock(unit="month", start=_1960),
    "%tq": Clock(unit="quarter", start=_1960),
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
