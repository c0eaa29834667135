"""Strict encoding of a column of records as cell codes of one attribute.

A value is either in the public domain or refused. `Encoder.encode` defines the code of a single
value. `Encoder.encode_array` returns the same codes for an Arrow column. It uses functions of Arrow
and NumPy if possible, and otherwise calls `Encoder.encode` once per distinct value.

    value in the records          categorical with labels            bins between edges, or codes 0 .. size - 1
    None, NaN, NaT, NA, ""        missing                            missing
    one of `missing_values`       missing                            missing; a number in any spelling and type
    text                          equal to a label, exactly          the number it spells ("12", "1.5e3"), with the
                                                                     declared signs of decimals and
                                                                     thousands
    whole number, 12 or 12.0      the text "12"                      that number, compared exactly
    other number, 0.5             its shortest text "0.5"            that number; refused if only integers are allowed
    decimal, 0.50                 "0.5", or else "0.50"              that number; refused if only integers are allowed
    True, False                   the text "True", "False"           1, 0
    anything else (dates, lists)  refused                            refused

For an attribute of dates, a value is in the domain if it is a date or time, a text that
`engine.workload.calendar` reads as a date, or a whole number whose text is such a date, for example
the year 2024. A time with a time zone belongs to its day in UTC.

Values are never rounded or wrapped around. A value outside the domain is assigned to a cell only if
an option of the attribute allows this: `clip`, `other` or `missing`.

`Clock` converts the numbers that Stata, SPSS and SAS store for dates. `Hints` collects possible
reasons why values do not fit the schema, as sentences for the curator that contain no values.
"""

from __future__ import annotations

import datetime
import math
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from functools import cache, cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from engine._format import quote_public
from engine.errors import DataError
from engine.workload import DEFAULT_MISSING_TEXTS, Attribute, only_difference, without_details
from engine.workload.calendar import UNITS, cell_label, cell_number, read_period

_STORED_PER_DAY = {"day": 1, "second": 86_400, "millisecond": 86_400_000}
_PER_YEAR = {"week": 52, "half-year": 2}
_BUSINESS_DAY = "business day"
_MS_PER_SECOND = 1_000
_MAX_DAYS = 2**31 - 1  # last day of an Arrow date32 column, in days since 1970


@dataclass(frozen=True, kw_only=True)
class Clock:
    """Unit and epoch of numbers that represent dates.

    Attributes
    ----------
    unit : unit of the numbers: "millisecond", "second", "day", "week", "month", "quarter",
        "half-year", "year" or "business day". A week is defined as in Stata: every year has 52
        weeks, so a week lies within one year, but may lie in two months.
    start : day of number 0. Not used for the unit "year", in which the numbers are the years.
    leap_seconds : whether the numbers include leap seconds.
    """

    unit: str
    start: datetime.date
    leap_seconds: bool = False

    def check(self, attribute: Attribute) -> None:
        """Raise DataError if a period of this unit may lie in several cells of ``attribute``.

        For example, numbers of quarters are refused for an attribute with one cell per month.
        Business days are refused too, because the file does not contain their calendar. An
        attribute that does not contain dates is not checked.
        """
        if not attribute.is_dated:
            return
        if self.unit == _BUSINESS_DAY:
            raise DataError(
                f"column {quote_public(attribute.name)} has dates as days of a Stata business"
                " calendar (%tb), and the file does not contain this calendar. Store calendar "
                "dates in the file"
            )
        if self.unit in _STORED_PER_DAY:
            finest = "day"
        elif self.unit in UNITS:
            finest = self.unit
        else:
            # a Stata week (52 per year) or a half-year lies within one year, but not always within
            # one month or quarter
            finest = "year"
        if UNITS.index(finest) < UNITS.index(attribute.unit or ""):
            raise DataError(
                f"column {quote_public(attribute.name)} contains a {self.unit} per row, but the"
                f" attribute has one cell per {attribute.unit}, and a {self.unit} can lie in"
                f" several cells. Declare the attribute with the unit {finest!r}, or store dates"
                " in the file"
            )

    def dates(self, column: pa.Array | list[Any]) -> pa.Array | list[Any]:
        """Convert the numbers of a column to dates, or to texts of periods such as "2024-05".

        The result has dates if the unit is at most a day, and texts for longer units. In the unit
        "year" numbers are returned unchanged. Values that are not numbers are always unchanged.

        >>> Clock(unit="day", start=datetime.date(1960, 1, 1)).dates(pa.array([0.0, None]))[0].as_py()
        datetime.date(1960, 1, 1)
        """
        # `Encoder` reads the number 2024 as the year 2024
        if self.unit == "year":
            return column
        if (
            self.unit in _STORED_PER_DAY
            and isinstance(column, pa.Array)
            and _is_number(column.type)
        ):
            is_missing = np.asarray(column.is_null(nan_is_null=True))
            numbers = column.fill_null(0).to_numpy(zero_copy_only=False).astype(np.float64)
            numbers = np.where(is_missing, 0.0, numbers)
            if self.leap_seconds:
                n_leap_seconds = np.searchsorted(_LEAP_SECOND_STARTS, numbers, side="right")
                numbers = numbers - _MS_PER_SECOND * n_leap_seconds
            days = np.floor(numbers / _STORED_PER_DAY[self.unit]) + (self.start - _EPOCH).days
            # a day before or after the dates of Arrow becomes the first or last date of Arrow,
            # which is outside the cells of every attribute too
            days = np.clip(days, -_MAX_DAYS, _MAX_DAYS).astype(np.int32)
            return pa.array(days, pa.date32(), mask=is_missing)
        values = column.to_pylist() if isinstance(column, pa.Array) else column
        return [self._date(value) if isinstance(value, (int, float)) else value for value in values]

    def _date(self, number: float) -> Any:
        """Convert one number to a date, or to the text of a period such as "2024-05".

        NaN gives None. An infinite number gives a text that is not a date. A number beyond the
        dates of Python gives the first or last date of Python.
        """
        if math.isnan(number):
            return None
        if not math.isfinite(number):
            return "beyond all dates"
        try:
            if self.unit in _STORED_PER_DAY:
                if self.leap_seconds:
                    number -= _MS_PER_SECOND * bisect_right(_LEAP_SECOND_STARTS, number)
                return self.start + datetime.timedelta(days=number // _STORED_PER_DAY[self.unit])
            if self.unit in _PER_YEAR:
                return cell_label(
                    self.start.year + math.floor(number) // _PER_YEAR[self.unit], "year"
                )
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
# start of each leap second: number of milliseconds since 1960, including earlier leap seconds
_LEAP_SECOND_STARTS = [
    ((day - _1960).days + 1) * _STORED_PER_DAY["millisecond"] + i * _MS_PER_SECOND
    for i, day in enumerate(sorted(_LEAP_DAYS))
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
    **dict.fromkeys(
        ["DATETIME", "DATEAMPM", "EDT", "BDT", "ISDT"], Clock(unit="second", start=_1960)
    ),
}


def clock_of(ending: str, display_format: str) -> Clock | None:
    """Return unit and epoch of the dates in a column of a Stata, SPSS or SAS file.

    Parameters
    ----------
    ending : ending of the file, such as ".dta".
    display_format : display format of the column in the file, such as "%td".

    Returns
    -------
    Clock, or None if the format is not a format of dates.

    >>> clock_of(".dta", "%tdDD/NN/CCYY").unit, clock_of(".sav", "DATE11").unit, clock_of(".sav", "F8.2")
    ('day', 'second', None)
    """
    if ending == ".dta":
        # in Stata, "%-" is the start of a format that aligns values to the left
        if display_format.startswith("%-"):
            display_format = display_format.replace("-", "", 1)
        return next(
            (clock for start, clock in _STATA.items() if display_format.startswith(start)), None
        )
    letters = re.sub(r"[\d.]", "", display_format.upper())
    if ending in (".sav", ".zsav", ".por"):
        return _SPSS.get(letters)
    # the last letter of a SAS format may name the separator of a date, such as N in YYMMDDN8.
    return _SAS.get(letters) or (
        _SAS.get(letters[:-1]) if letters[-1:] in tuple("BCDNPS") else None
    )


REASONS = (
    "missing",
    "outside the schema",
    "not a number",
    "not a whole number",
    "of a type that is neither text nor number",
    "not a date",
)
MISSING, OUTSIDE, NOT_NUMBER, FRACTION, UNSUPPORTED, NOT_DATE = (
    -1 - i for i in range(len(REASONS))
)


def reason_of(code: int) -> str:
    """Return the reason that the code of a refused value denotes."""
    return REASONS[-1 - code]


_MAX_EXACT_FLOAT = 2**53  # floats represent every integer up to this one
# Decimals with a smaller exponent are written without exponent before they are compared with
# labels. Decimals with a larger exponent keep it, because their text could have millions of zeros.
_MAX_EXPONENT = 100
_EPOCH = datetime.date(1970, 1, 1)
_PER_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}
_BLANKS = " \t\r\n\f\v"
_GROUPED = {".": r"\.", ",": ",", " ": "[ \u00a0\u2009\u202f]", "'": "['\u2019]"}


def code_type(size: int) -> type[np.signedinteger]:
    """Return the smallest signed integer type for the codes of an attribute with `size` cells.

    The type can represent all codes from 0 to `size` and the negative codes of refused values.
    """
    return next(
        kind for kind in (np.int8, np.int16, np.int32, np.int64) if size <= np.iinfo(kind).max
    )


@dataclass(frozen=True, kw_only=True)
class Encoder:
    """Convert values of one attribute to codes.

    The code of a value that is counted in a cell is the index of the cell, from 0 to size - 1. The
    code of a refused value is -1 - i, where REASONS[i] is the reason.

    >>> Encoder(attribute=Attribute.numeric("age", [0, 20, 120])).encode_array(pa.array([19.5, 120, None, -1])).tolist()
    [0, 1, -1, -2]
    """

    attribute: Attribute

    @cached_property
    def dtype(self) -> type[np.signedinteger]:
        """Integer type of the codes."""
        return code_type(self.attribute.size)

    @property
    def needs_integers(self) -> bool:
        """Whether numbers with a fraction are refused.

        This is true for attributes whose values are the codes 0 to size - 1, and for bins of an
        attribute that the schema declares as integer.
        """
        return self.attribute.labels is None and (
            self.attribute.edges is None or self.attribute.integer
        )

    @cached_property
    def missing(self) -> int:
        """Code of a missing value."""
        if self.attribute.missing is None:
            return MISSING
        if self.attribute.is_dated:
            return self.attribute.date_cells
        return (
            self._code_of_label(self.attribute.missing)
            if self.attribute.labels
            else self._code_of_present_number(self.attribute.missing)
        )

    def encode(self, value: Any) -> int:
        """Return the code of one value."""
        try:
            value = plain_value(value)
            if value is not None and self.attribute.is_dated:
                return self._code_of_date(value)
            # raises TypeError for values that are neither text nor number, such as dates
            value = scalar(value)
        except TypeError:
            return UNSUPPORTED
        if value is None:
            return self.missing
        if self.attribute.labels is not None:
            text = text_of(value)
            # the decimal 0.50 matches the label "0.5" if there is such a label, and otherwise the
            # label "0.50"
            return self._code_of_label(
                str(value) if isinstance(value, Decimal) and text not in self.texts else text
            )
        if isinstance(value, str):
            if value.strip(_BLANKS) in self._missing_texts:
                return self.missing
            number = _parse_number(self._with_plain_signs(value))
            if number is None:
                return NOT_NUMBER
            return self.missing if math.isnan(number) else self._code_of_number(number)
        return self._code_of_number(value)

    def encode_column(self, values: pa.Array | list[Any], clock: Clock | None = None) -> np.ndarray:
        """Return the codes of a column of a batch, shape (n,).

        Parameters
        ----------
        clock : unit and epoch if the file stores dates as numbers, otherwise None; used only for
            attributes of dates.

        Raises
        ------
        DataError
            The periods of the clock may lie in several cells of the attribute; see `Clock.check`.
        """
        if clock is not None and self.attribute.is_dated:
            clock.check(self.attribute)
            values = clock.dates(values)
        return self.encode_values(values) if isinstance(values, list) else self.encode_array(values)

    def encode_values(self, values: Iterable[Any]) -> np.ndarray:
        """Return the codes of Python values of any type, shape (n,)."""
        return np.fromiter(map(self.encode, values), self.dtype)

    def encode_array(self, values: pa.Array) -> np.ndarray:
        """Return the codes of an Arrow column, shape (n,); they equal the codes of `encode`."""
        import pyarrow.compute as pc

        kind = values.type
        if pa.types.is_run_end_encoded(kind):
            try:
                return self.encode_array(pc.run_end_decode(values))
            except pa.ArrowNotImplementedError:
                return self.encode_values(values.to_pylist())
        if pa.types.is_dictionary(kind):
            return self._codes_at(self.encode_array(values.dictionary), values.indices)
        # Arrow lacks some functions for string views and 16-bit floats, so they are converted
        for source_type, target_type in (
            (pa.string_view(), pa.large_string()),
            (pa.float16(), pa.float32()),
        ):
            if kind == source_type:
                values, kind = values.cast(target_type), target_type
        if self.attribute.is_dated and (pa.types.is_date(kind) or pa.types.is_timestamp(kind)):
            return self._with_nulls(days_of(values), self._codes_of_days)
        if self.attribute.is_dated:
            if pa.types.is_string(kind) or pa.types.is_large_string(kind):
                return self._codes_of_distinct_texts(values)
            return (
                self._codes_by_distinct_value(values)
                if is_scalar(kind)
                else self._codes_of_unsupported(values)
            )
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            return (
                self._codes_of_labels(values)
                if self.attribute.labels is not None
                else self._codes_of_number_texts(values)
            )
        if self.attribute.labels is None:
            if pa.types.is_boolean(kind):
                values = values.cast(pa.int8())
            if pa.types.is_integer(values.type):
                return self._codes_of_integers(values)
            if pa.types.is_floating(kind):
                return self._with_nulls(values, self._codes_of_floats)
        if is_scalar(kind):
            return self._codes_by_distinct_value(values)
        return self._codes_of_unsupported(values)

    @cached_property
    def texts(self) -> dict[str, int]:
        """Code of each label and of each text that means missing; for attributes with labels."""
        labels = self.attribute.labels or ()
        codes = {label: i for i, label in enumerate(labels)}
        missing = (
            MISSING
            if self.attribute.missing is None
            else codes.get(str(self.attribute.missing), MISSING)
        )
        return codes | dict.fromkeys(self.attribute.missing_values, missing)

    @cached_property
    def missing_decimals(self) -> frozenset[Decimal]:
        """Numbers that mean a missing value; empty for attributes with labels or with dates."""
        texts = (
            self.attribute.missing_values
            if self.attribute.labels is None and not self.attribute.is_dated
            else ()
        )
        return frozenset(
            Decimal(text) for text in map(self._with_plain_signs, texts) if _is_finite(text)
        )

    @cached_property
    def missing_floats(self) -> frozenset[float]:
        """The numbers of `missing_decimals` as floats."""
        return frozenset(float(number) for number in self.missing_decimals)

    @cached_property
    def missing_days(self) -> frozenset[datetime.date]:
        """Days that mean a missing value, for an attribute of dates."""
        periods = (
            read_period(text, self.attribute.date_format) for text in self.attribute.missing_values
        )
        return frozenset(
            period.day for period in periods if period is not None and period.unit == "day"
        )

    def similar_label(self, text: str) -> tuple[str, str] | None:
        """Return a label that differs from a text only in case, accents or other details.

        Returns
        -------
        Pair (label, kind of difference), or None if there is no such label. The kind is a phrase
        such as "accents"; see `engine.workload.only_difference`.
        """
        return only_difference(text, self._labels_by_text.get(without_details(text), ()))

    @cached_property
    def _labels_by_text(self) -> dict[str, list[str]]:
        """Labels by their text without case, accents and other details (`without_details`)."""
        labels: dict[str, list[str]] = {}
        for label in self.attribute.labels or ():
            labels.setdefault(without_details(label), []).append(label)
        return labels

    @cached_property
    def _missing_texts(self) -> frozenset[str]:
        texts = {text.strip(_BLANKS) for text in self.attribute.missing_values}
        return frozenset(
            {*texts, str(self.attribute.missing)}
            if self.missing >= 0 and self.attribute.is_dated
            else texts
        )

    @cached_property
    def _outside_code(self) -> int:
        return OUTSIDE if self.attribute.other is None else self.texts[self.attribute.other]

    @cached_property
    def _label_array(self) -> pa.Array:
        return pa.array(list(self.texts), pa.large_string())

    @cached_property
    def _label_codes(self) -> np.ndarray:
        return np.array([*self.texts.values(), self._outside_code], np.int64)

    def _code_of_label(self, text: Any) -> int:
        return self.texts.get(text, self._outside_code)

    def _codes_of_unsupported(self, values: pa.Array) -> np.ndarray:
        """Return the codes of a column whose type cannot be encoded, such as lists.

        Nulls are missing values, and all other values have the code UNSUPPORTED.
        """
        codes = np.where(values.is_null().to_numpy(zero_copy_only=False), self.missing, UNSUPPORTED)
        return np.asarray(codes, self.dtype)

    def _code_of_date(self, value: Any) -> int:
        """Return the code of a value other than None, for an attribute of dates."""
        attribute = self.attribute
        if isinstance(value, np.datetime64):
            value = value.astype("datetime64[D]").item()
            if value is None:
                return self.missing
            # NumPy returns an integer for a date that Python cannot represent. The date is before
            # the first cell or after the last cell.
            if isinstance(value, int):
                return self._code_of_period(-1 if value < 0 else attribute.size)
        if isinstance(value, datetime.datetime):
            try:
                value = (value if value.tzinfo is None else value.astimezone(datetime.UTC)).date()
            except OverflowError:
                return OUTSIDE
        if isinstance(value, datetime.date):
            return self._code_of_day(value)
        if not isinstance(value, (str, bool, int, float, Decimal)):
            return UNSUPPORTED
        text = text_of(value).strip(_BLANKS)
        if text in self._missing_texts:
            return self.missing
        period = read_period(text, attribute.date_format)
        # `number` is None if the period is too long, such as a year for one cell per month
        number = None if period is None else period.number(attribute.unit or "")
        if period is None or number is None:
            return NOT_DATE
        if period.unit == "day":
            return self._code_of_day(period.day)
        return self._code_of_period(number - attribute.first_cell)

    def _code_of_day(self, day: datetime.date) -> int:
        if day in self.missing_days:
            return self.missing
        first_cell, unit = self.attribute.first_cell, self.attribute.unit or ""
        return self._code_of_period(cell_number(day, unit) - first_cell)

    def _code_of_period(self, number: int) -> int:
        """Return the code of a day, month, quarter or year.

        ``number`` is the number of periods after the first cell. A period outside the cells has the
        code of the first or last cell if the attribute has the option `clip`, otherwise `OUTSIDE`.
        """
        last = self.attribute.date_cells - 1
        if 0 <= number <= last:
            return number
        return min(max(number, 0), last) if self.attribute.clip else OUTSIDE

    def _codes_of_days(self, days: np.ndarray) -> np.ndarray:
        """Return the codes of dates, given as days since 1970-01-01, shape (n,)."""
        attribute, last = self.attribute, self.attribute.date_cells - 1
        if attribute.unit == "day":
            numbers = days + _EPOCH.toordinal()
        else:
            months = (
                days.astype("datetime64[D]").astype("datetime64[M]").astype(np.int64)
                + 12 * _EPOCH.year
            )
            numbers = months // {"year": 12, "quarter": 3, "month": 1}[attribute.unit or ""]
        # number of periods after the first cell
        offsets = numbers - attribute.first_cell
        codes = np.clip(offsets, 0, last).astype(self.dtype)
        if not attribute.clip:
            codes[(offsets < 0) | (offsets > last)] = OUTSIDE
        if self.missing_days:
            codes[np.isin(days, [(day - _EPOCH).days for day in self.missing_days])] = self.missing
        return np.asarray(codes)

    def _with_plain_signs(self, text: str) -> str:
        """Rewrite a number with declared signs as Python writes it: "1.200,5" as "1200.5".

        If the schema declares no decimal and thousands signs, every text is returned unchanged.
        Texts of letters, with or without a sign, are returned without blanks around them, because
        "nan" and "-inf" are numbers for Python. Every other text that is not a number with the
        declared signs becomes empty.
        """
        decimal, thousands = self.attribute.decimal or ".", self.attribute.thousands
        if (decimal, thousands) == (".", None):
            return text
        text = text.strip(_BLANKS)
        match = _number_pattern(decimal, thousands).fullmatch(text)
        if match is None:
            # the second test is for a word with a sign, such as "-inf"
            return text if text.isalpha() or text[1:].isalpha() else ""
        sign, integer_part, places, power = (
            match[key] or "" for key in ("sign", "whole", "places", "power")
        )
        return f"{sign}{''.join(filter(str.isdigit, integer_part))}{places.replace(decimal, '.')}{power}"

    def _code_of_number(self, number: Any) -> int:
        """Return the code of a number that is not NaN."""
        # Python compares int, float and Decimal exactly
        if number in (self.missing_floats if isinstance(number, float) else self.missing_decimals):
            return self.missing
        return self._code_of_present_number(number)

    def _code_of_present_number(self, number: Any) -> int:
        """Return the code of a number that is not declared as a missing value."""
        edges, size = self.attribute.edges, self.attribute.size
        if self.needs_integers and _is_fraction(number):
            return FRACTION
        if edges is None:
            return int(number) if 0 <= number < size else OUTSIDE
        if not self.attribute.clip and not edges[0] <= number <= edges[-1]:
            return OUTSIDE
        return min(max(bisect_right(edges, number) - 1, 0), size - 1)

    def _codes_at(self, codes: np.ndarray, positions: pa.Array) -> np.ndarray:
        """Return the codes at the given positions; the code of a null position is `missing`."""
        import pyarrow.compute as pc

        with_missing = np.append(codes, self.dtype(self.missing))
        positions = pc.fill_null(positions.cast(pa.int64()), len(codes))
        return np.asarray(with_missing[positions.to_numpy()])

    def _codes_by_distinct_value(self, values: pa.Array) -> np.ndarray:
        """Return the codes of a column; each distinct value is encoded once with `encode`."""
        try:
            encoded = values.dictionary_encode()
        except pa.ArrowException:
            return self.encode_values(values.to_pylist())
        codes = self.encode_values(encoded.dictionary.to_pylist())
        return self._codes_at(codes, encoded.indices)

    def _codes_of_distinct_texts(self, values: pa.Array) -> np.ndarray:
        """Return the codes of a column of texts; each distinct text is encoded once.

        The texts are compared as bytes, so that a text that is not UTF-8 gets a code and raises no
        error.
        """
        return self._codes_by_distinct_value(values.cast(pa.large_binary()))

    def _codes_of_labels(self, values: pa.Array) -> np.ndarray:
        """Return the codes of a column of texts, for an attribute with labels."""
        import pyarrow.compute as pc

        positions = pc.index_in(values, value_set=self._label_array.cast(values.type))
        if positions.null_count == 0 and not self.attribute.missing_values:
            return np.array(positions.to_numpy(), self.dtype)
        # the last entry of `_label_codes` is the code of texts that are not in `_label_array`
        codes = self._label_codes[pc.fill_null(positions, len(self.texts)).to_numpy()].astype(
            self.dtype
        )
        empty = pc.fill_null(pc.equal(pc.binary_length(values), 0), True)
        codes[empty.to_numpy(zero_copy_only=False)] = self.missing
        return np.asarray(codes)

    def _codes_of_number_texts(self, values: pa.Array) -> np.ndarray:
        """Return the codes of a column of texts, for an attribute without labels.

        Arrow parses the texts as numbers if it can parse all of them and the attribute declares no
        decimal or thousands sign. Otherwise Python parses each distinct text, and it accepts more
        texts, such as numbers with blanks around them.
        """
        import pyarrow.compute as pc

        if self.attribute.decimal is not None or self.attribute.thousands is not None:
            return self._codes_of_distinct_texts(values)
        is_missing = pc.equal(pc.binary_length(values), 0)
        if self._missing_texts:
            is_missing = pc.or_(
                is_missing,
                pc.is_in(values, value_set=pa.array(sorted(self._missing_texts), values.type)),
            )
        try:
            numbers = pc.if_else(is_missing, None, values).cast(pa.float64())
        except pa.ArrowInvalid:
            return self._codes_of_distinct_texts(values)
        return self._with_nulls(numbers, self._codes_of_floats)

    def _with_nulls(
        self, values: pa.Array, encode: Callable[[np.ndarray], np.ndarray]
    ) -> np.ndarray:
        """Return the codes of a column that may contain nulls.

        Nulls have the code of a missing value; ``encode`` returns the codes of all other values.
        """
        import pyarrow.compute as pc

        if values.null_count == 0:
            return encode(values.to_numpy(zero_copy_only=False))
        codes = encode(pc.fill_null(values, 0).to_numpy(zero_copy_only=False))
        codes[values.is_null().to_numpy(zero_copy_only=False)] = self.missing
        return codes

    def _codes_of_integers(self, values: pa.Array) -> np.ndarray:
        """Return the codes of a column of integers, for an attribute without labels."""
        import pyarrow.compute as pc

        if self.attribute.edges is None:
            return self._with_nulls(values, self._codes_of_cell_numbers)
        min_max = pc.min_max(values)
        low, high = min_max["min"].as_py() or 0, min_max["max"].as_py() or 0
        if max(-low, high) > _MAX_EXACT_FLOAT:
            return self._codes_by_distinct_value(values)
        return self._with_nulls(values, self._codes_of_floats)

    def _codes_of_cell_numbers(self, numbers: np.ndarray) -> np.ndarray:
        """Return the codes of integers, for an attribute whose values are the codes themselves.

        The code of a number outside 0 to size - 1 is `OUTSIDE`.
        """
        is_cell = (numbers >= 0) & (numbers < self.attribute.size)
        codes = numbers.astype(self.dtype)
        if not is_cell.all():
            codes[~is_cell] = OUTSIDE
        if self.missing_floats:
            codes[
                np.isin(
                    numbers, [int(n) for n in self.missing_decimals if n == n.to_integral_value()]
                )
            ] = self.missing
        return codes

    def _codes_of_floats(self, numbers: np.ndarray) -> np.ndarray:
        """Return the codes of numbers that 64-bit floats represent exactly; NaN means missing."""
        numbers = numbers.astype(np.float64, copy=False)
        is_nan = np.isnan(numbers)
        if self.attribute.edges is None:
            is_cell = (numbers >= 0) & (numbers < self.attribute.size)
            codes = np.where(is_cell, numbers, OUTSIDE).astype(self.dtype)
        else:
            edges = np.asarray(self.attribute.edges)
            bins = np.searchsorted(edges, numbers, side="right") - 1
            codes = np.clip(bins, 0, self.attribute.size - 1).astype(self.dtype)
            if not self.attribute.clip:
                codes[(numbers < edges[0]) | (numbers > edges[-1])] = OUTSIDE
        if self.needs_integers:
            codes[np.isfinite(numbers) & (np.floor(numbers) != numbers)] = FRACTION
        codes[is_nan] = self.missing
        if self.missing_floats:
            codes[np.isin(numbers, list(self.missing_floats))] = self.missing
        return codes


def _is_fraction(number: Any) -> bool:
    """Return whether a number has a fraction; False for infinities. The number must not be NaN."""
    if number in (math.inf, -math.inf):
        return False
    return bool(
        number
        != (number.to_integral_value() if isinstance(number, Decimal) else math.floor(number))
    )


def days_of(values: pa.Array) -> pa.Array:
    """Convert dates or times to days since 1970-01-01, rounded down.

    A time with a time zone is converted to its day in UTC.
    """
    kind = values.type
    if pa.types.is_date32(kind):
        return values.cast(pa.int32()).cast(pa.int64())
    steps = _PER_DAY["ms" if pa.types.is_date64(kind) else kind.unit]
    # NumPy divides because it rounds down; Arrow rounds towards zero, which is wrong before 1970
    days = values.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False) // steps
    return pa.array(days, mask=values.is_null().to_numpy(zero_copy_only=False))


@cache
def _number_pattern(decimal: str, thousands: str | None) -> re.Pattern[str]:
    """Return a pattern for numbers with these decimal and thousands signs.

    If a number has thousands signs, exactly three digits follow each of them.
    """
    groups = "" if thousands is None else rf"|\d{{1,3}}(?:{_GROUPED[thousands]}\d{{3}})+"
    point = re.escape(decimal)
    return re.compile(
        rf"(?P<sign>[+-]?)(?=[\d{point}])(?P<whole>\d+{groups})?(?P<places>{point}\d*)?(?P<power>[eE][+-]?\d+)?",
        re.ASCII,
    )


def _is_finite(text: str) -> bool:
    """Return whether a text can be parsed as a finite number."""
    number = _parse_number(text)
    return number is not None and math.isfinite(number)


def is_scalar(kind: pa.DataType) -> bool:
    """Return whether the Python values of an Arrow type are texts, bytes, numbers or booleans."""
    types = pa.types
    numeric = (
        types.is_integer(kind)
        or types.is_floating(kind)
        or types.is_decimal(kind)
        or types.is_boolean(kind)
    )
    text = (
        types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_binary(kind)
        or types.is_large_binary(kind)
    )
    return bool(numeric or text or types.is_fixed_size_binary(kind) or kind == pa.binary_view())


def plain_value(value: Any) -> Any:
    """Convert a value of the records to a Python value.

    Bytes become text, and missing values (NaN, NA and NaT of pandas, the empty text) become None.

    Raises TypeError for bytes that are not UTF-8.
    """
    import pandas as pd

    # np.timedelta64 is a subclass of np.integer
    if isinstance(value, (np.bool_, np.floating, np.integer)) and not isinstance(
        value, np.timedelta64
    ):
        value = value.item() if not isinstance(value, np.longdouble) else float(value)
    if isinstance(value, bytes):
        try:
            return value.decode() or None
        except UnicodeDecodeError:
            value = None
        # raised outside the except block, because the UnicodeDecodeError contains the bytes and
        # would become part of the new error
        raise TypeError("a value of type bytes is not UTF-8 text")
    if (
        value is None
        or value is pd.NA
        or value is pd.NaT
        or (isinstance(value, str) and value == "")
    ):
        return None
    if (isinstance(value, float) and math.isnan(value)) or (
        isinstance(value, Decimal) and value.is_nan()
    ):
        return None
    return value


def scalar(value: Any) -> Any:
    """Convert a value of the records to text, bool, int, float or Decimal; None if it is missing.

    Raises
    ------
    TypeError
        The value has another type, such as date or list, or is bytes that are not UTF-8.
    """
    value = plain_value(value)
    if value is not None and not isinstance(value, (str, bool, int, float, Decimal)):
        raise TypeError(f"a value of type {type(value).__name__} is neither text nor number")
    return value


def number_of(value: Any) -> Any:
    """Return the number in a text, or None if the text is not a number; return numbers unchanged.

    >>> number_of("1.5e3"), number_of(True), number_of("x")
    (1500.0, True, None)
    """
    return _parse_number(value) if isinstance(value, str) else value


def text_of(value: Any) -> str:
    """Return the text of a value, which is compared with the labels of an attribute.

    A schema that is drafted from records uses this text as the label of the value.

    >>> text_of(12.0), text_of("12.0"), text_of(True), text_of(Decimal("0.50"))
    ('12', '12.0', 'True', '0.5')
    """
    if isinstance(value, float) and abs(value) < _MAX_EXACT_FLOAT and value.is_integer():
        return str(int(value))
    if (
        isinstance(value, Decimal)
        and value.is_finite()
        and abs(value) < _MAX_EXACT_FLOAT
        and value == value.to_integral_value()
    ):
        return str(int(value))
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, Decimal) and value.is_finite() and abs(value.adjusted()) < _MAX_EXPONENT:
        digits = format(value, "f")
        if "." not in digits:
            return digits
        digits = digits.rstrip("0").rstrip(".")
        # a decimal that equals a float gets the text of the float: "1e-05" for 0.00001
        float_text = repr(float(value))
        return float_text if "." in digits and Decimal(float_text) == value else digits
    try:
        return str(value)
    # Python does not convert integers of thousands of digits; they match no label
    except ValueError:
        return ""


def _parse_number(text: str) -> float | None:
    """Return the number in a text; None if the text is not a number.

    Underscores and characters other than ASCII are refused, although `float` accepts them.
    """
    try:
        return float(text) if text.isascii() and "_" not in text else None
    except ValueError:
        return None


# Largest number of distinct refused values per column that `Hints` examines.
MAX_VALUES = 1_000
# Largest number of labels of a column that one sentence of `Hints` names.
MAX_NAMED_LABELS = 5
GROUPED = r"[+-]?\d{1,3}(\.\d{3})+"
_GROUPS = re.compile(
    r"[+-]?\d{1,3}(?:([.,' ]|\u00a0|\u202f|\u2019)\d{3})(?:\1\d{3})*(?:[.,]\d+)?", re.ASCII
)
_DATE = re.compile(r"\d{1,4}[./-]\d{1,2}[./-]\d{1,4}", re.ASCII)
_MISSING = {text.casefold() for text in DEFAULT_MISSING_TEXTS}
_DECLARE = "which the schema can declare"
PHRASES = {
    "blanks": "would fit without leading and trailing blanks",
    "missing": f"is a text that usually means missing, {_DECLARE}",
    "point": "would fit without .0",
    "zero": "would fit with a leading zero",
    "zeros": "would fit without leading zeros",
    "comma": f"would fit with a decimal comma, {_DECLARE}",
    "thousands": f"would fit with a thousands sign, {_DECLARE}",
    "date": f"looks like a date in another format, {_DECLARE}",
}


class Hints:
    """Collector of possible reasons why values of the records do not fit the schema."""

    def __init__(self) -> None:
        # column -> possible reasons, as keys of PHRASES
        self._reasons: dict[str, set[str]] = {}
        # column -> refused values that were examined
        self._examined: dict[str, set[str]] = {}
        # (column, cell, kind of difference) -> labels that differ from a value only by this kind,
        # such as "accents". The cell is the label under which the value is counted, "" if it is
        # refused.
        self._similar: dict[tuple[str, str, str], list[str]] = {}
        # columns whose values in the cell `Attribute.other` were searched for similar labels
        self._with_examined_others: set[str] = set()
        # column with bins -> (has_grouped, has_others): whether a text such as 1.200 has three
        # digits after every point, and whether a text such as 1.5 has a point without three digits
        # after it
        self._points: dict[str, tuple[bool, bool]] = {}

    def add(self, encoder: Encoder, values: pa.Array | list[Any], codes: np.ndarray) -> None:
        """Examine the values of a column and collect hints.

        The hints are possible reasons for refused values, labels that are similar to a value, and
        whether points in the column may separate thousands.

        Parameters
        ----------
        values : values of some rows of the column.
        codes : codes that `encoder` returned for these values, shape (rows,).
        """
        name = encoder.attribute.name
        examined = self._examined.setdefault(name, set())
        self._record_points(encoder, values)
        refused = (codes < MISSING) & (codes != UNSUPPORTED)
        if len(examined) < MAX_VALUES and refused.any():
            for value in _distinct_values(values, refused):
                text = text_of(
                    value.decode("utf-8", "replace") if isinstance(value, bytes) else value
                )
                if text not in examined and len(examined) < MAX_VALUES:
                    examined.add(text)
                    reasons = set(refusal_reasons(encoder, text))
                    self._reasons.setdefault(name, set()).update(reasons)
                    if not reasons:
                        self._add_similar(encoder, text)
        self._examine_other_cell(encoder, values, codes)

    def add_values(self, encoder: Encoder, values: Iterable[Any]) -> None:
        """Encode values of a column, and collect possible reasons why some are refused."""
        entries = [value for value in values if value is not None]
        self.add(encoder, entries, encoder.encode_values(entries))

    def _examine_other_cell(
        self, encoder: Encoder, values: pa.Array | list[Any], codes: np.ndarray
    ) -> None:
        """Examine the values in the cell `Attribute.other`, and record labels similar to them.

        To limit the time, only the first batch of each column is examined, and at most `MAX_VALUES`
        of its values.
        """
        name, other = encoder.attribute.name, encoder.attribute.other
        if encoder.attribute.labels is None or other is None or name in self._with_examined_others:
            return
        self._with_examined_others.add(name)
        for value in _distinct_values(values, codes == encoder.texts[other])[:MAX_VALUES]:
            if isinstance(value, str) and value != other:
                self._add_similar(encoder, value, other)

    def _add_similar(self, encoder: Encoder, text: str, other: str = "") -> None:
        """Record the label that differs from a text only in case, accents or other details, if any.

        ``other`` is the label of the cell in which the text is counted, "" if it is refused.
        """
        if (similar := encoder.similar_label(text)) is not None:
            label, kind = similar
            labels = self._similar.setdefault((encoder.attribute.name, other, kind), [])
            if label not in (other, *labels):
                labels.append(label)

    @property
    def texts(self) -> tuple[str, ...]:
        """Sentences for the curator, which name columns and public labels, but no value of a record."""
        sentences = [
            f"Column {quote_public(name)}: a value that does not fit {PHRASES[reason]}."
            for name, reasons in self._reasons.items()
            for reason in PHRASES
            if reason in reasons
        ]
        sentences += [
            f"Column {quote_public(name)}: {_similar_values_text(labels, other)} only by {kind}."
            " Correct the records or the schema."
            for (name, other, kind), labels in self._similar.items()
            if labels
        ]
        sentences += [
            f"Column {quote_public(name)}: every number with a point has three digits after it,"
            " such as 1.200, which is read as 1.2. If the point separates thousands, declare the"
            " thousands sign in the schema."
            for name, (grouped, others) in self._points.items()
            if grouped and not others
        ]
        return tuple(sentences)

    def _record_points(self, encoder: Encoder, values: pa.Array | list[Any]) -> None:
        """Record in `_points` whether points in a column may separate thousands, as in 1.200.

        Only texts are examined, for an attribute with bins that declares neither a decimal nor a
        thousands separator, and only until a text has a point that cannot separate thousands.
        """
        import pyarrow.compute as pc

        attribute = encoder.attribute
        has_grouped, has_others = self._points.get(attribute.name, (False, False))
        if attribute.edges is None or attribute.decimal or attribute.thousands or has_others:
            return
        if isinstance(values, list):
            values = pa.array([value for value in values if isinstance(value, str)], pa.string())
        if pa.types.is_dictionary(values.type):
            values = values.dictionary
        if not (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
            return
        with_point = values.filter(pc.match_substring(values, ".").fill_null(False))
        if not len(with_point):
            return
        is_grouped = pc.match_substring_regex(pc.ascii_trim_whitespace(with_point), f"^{GROUPED}$")
        self._points[attribute.name] = (
            has_grouped or bool(pc.any(is_grouped).as_py()),
            not pc.all(is_grouped).as_py(),
        )


def refusal_reasons(encoder: Encoder, text: str) -> Iterator[str]:
    """Yield the keys of `PHRASES` that may explain why a text does not fit the attribute."""

    def fits(candidate: str) -> bool:
        return candidate != text and encoder.encode(candidate) >= 0

    attribute = encoder.attribute
    stripped = text.strip()
    if fits(stripped):
        yield "blanks"
    if stripped.casefold() in _MISSING:
        yield "missing"
        return
    if attribute.is_dated:
        if encoder.encode(text) == NOT_DATE and _DATE.fullmatch(stripped):
            yield "date"
        return
    if re.fullmatch(r"-?\d+\.0+", stripped) and fits(stripped.partition(".")[0]):
        yield "point"
    if attribute.labels is not None and stripped.isascii() and stripped.isdigit():
        # at most 20, to bound the time if a label is long
        max_width = min(20, max(map(len, attribute.labels)))
        if any(fits(stripped.zfill(width)) for width in range(len(stripped) + 1, max_width + 1)):
            yield "zero"
        if fits(stripped.lstrip("0") or "0"):
            yield "zeros"
    if attribute.labels is None:
        if _GROUPS.fullmatch(stripped):
            if fits(_without_groups(stripped)):
                yield "thousands"
        elif stripped.count(",") == 1 and fits(stripped.replace(",", ".")):
            yield "comma"


def _similar_values_text(labels: list[str], other: str) -> str:
    """Return a clause such as 'a value that does not fit differs from the label "north"'.

    ``other`` is the label of the cell in which the values are counted, "" if they are refused.
    """
    listed = ", ".join(map(quote_public, labels[:MAX_NAMED_LABELS]))
    if (n_more := len(labels) - MAX_NAMED_LABELS) > 0:
        listed += f" and {n_more:,} more"
    if len(labels) == 1:
        state = f"is counted as {quote_public(other)}" if other else "does not fit"
        return f"a value that {state} differs from the label {listed}"
    state = f"are counted as {quote_public(other)}" if other else "do not fit"
    return f"values that {state} differ from the labels {listed}"


def _without_groups(text: str) -> str:
    """Remove the thousands signs of a number and write its decimal comma as a point.

    For example, "1.200,5" becomes "1200.5".
    """
    sign = next(character for character in text.lstrip("+-") if not character.isdigit())
    return text.replace(sign, "").replace(",", ".")


def _distinct_values(values: pa.Array | list[Any], among: np.ndarray) -> list[Any]:
    """Return distinct values of the selected rows of a column.

    To limit the time, only the first 10 * MAX_VALUES selected rows of a list, or the first 100 *
    MAX_VALUES selected rows of an Arrow array, are examined. For an Arrow array whose type cannot
    be encoded the result is empty.

    Parameters
    ----------
    among : whether each row is selected, shape (rows,).
    """
    if isinstance(values, list):
        selected_rows = np.flatnonzero(among)[: 10 * MAX_VALUES]
        return list({str(values[i]): values[i] for i in selected_rows}.values())
    selected = values.filter(pa.array(among))[: 100 * MAX_VALUES]
    if not is_scalar(selected.type) and not pa.types.is_dictionary(selected.type):
        return []
    return list(selected.unique()[: 2 * MAX_VALUES].to_pylist())
