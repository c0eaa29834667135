"""Strict encoding of a column of records as cell codes of one attribute.

A value is either in the public domain or refused. `Encoder.one` defines the code of a single value.
`Encoder.array` returns the same codes for an Arrow column; it has fast paths for texts, integers and
floats and otherwise encodes every distinct value by `Encoder.one`.

    value in the records          categorical with labels            bins between edges, or codes 0 .. size - 1
    None, NaN, NaT, NA, ""        missing                            missing
    one of `missing_values`       missing                            missing; a number in any spelling and type
    text                          equal to a label, exactly          the number it spells ("12", "1.5e3"), with the
                                                                     declared signs of decimals and thousands
    whole number, 12 or 12.0      the text "12"                      that number, compared exactly
    other number, 0.5             its shortest text "0.5"            that number; refused where only whole numbers are
    decimal, 0.50                 "0.5", or else "0.50"              that number; refused where only whole numbers are
    True, False                   the text "True", "False"           1, 0
    anything else (dates, lists)  refused                            refused

An attribute of dates takes dates and times (one with a zone on its day in UTC), texts as `engine.workload.calendar`
reads them, and whole numbers with the text of such a date: 2024 for a year.

Values are never rounded, wrapped or clipped; only the options `clip`, `other` and `missing` of an
attribute assign values outside the domain to a cell.
"""

from __future__ import annotations

import datetime
import math
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Decimal
from functools import cache, cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from engine.records.stored_dates import Clock
from engine.workload import Attribute
from engine.workload.calendar import cell_number, read_period

REASONS = (
    "missing",
    "outside the public domain",
    "not a number",
    "not a whole number",
    "of a type that is neither text nor number",
    "not a date",
)
MISSING, OUTSIDE, NOT_NUMBER, FRACTION, UNSUPPORTED, NOT_DATE = (-1 - i for i in range(len(REASONS)))

_EXACT = 2**53  # every integer up to here is a float
_PLACES = 100  # maximum exponent of decimals that are compared with labels as numbers
_EPOCH = datetime.date(1970, 1, 1)
_PER_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}
_BLANKS = " \t\r\n\f\v"
_GROUPED = {".": r"\.", ",": ",", " ": "[ \u00a0\u2009\u202f]", "'": "['\u2019]"}


def code_type(size: int) -> type[np.signedinteger]:
    """Return the smallest signed type for numbers up to `size` and the codes of refused values."""
    return next(kind for kind in (np.int8, np.int16, np.int32, np.int64) if size <= np.iinfo(kind).max)


@dataclass(frozen=True, kw_only=True)
class Encoder:
    """Codes of the values of one attribute: 0 .. size - 1, or -1 - i for a value refused for REASONS[i].

    >>> Encoder(attribute=Attribute.numeric("age", [0, 20, 120])).array(pa.array([19.5, 120, None, -1])).tolist()
    [0, 1, -1, -2]
    """

    attribute: Attribute

    @cached_property
    def dtype(self) -> type[np.signedinteger]:
        """Integer type of the codes."""
        return code_type(self.attribute.size)

    @property
    def needs_integers(self) -> bool:
        """Whether fractions are refused: of codes, and where the schema declares whole numbers."""
        return self.attribute.labels is None and (self.attribute.edges is None or self.attribute.integer)

    @cached_property
    def missing(self) -> int:
        """Code of a missing value."""
        if self.attribute.missing is None:
            return MISSING
        if self.attribute.is_dated:
            return self.attribute.date_cells
        return self._label(self.attribute.missing) if self.attribute.labels else self._bin(self.attribute.missing)

    def one(self, value: Any) -> int:
        """Return the code of one value; every faster path must agree with this method."""
        try:
            value = plain_value(value)
            if value is not None and self.attribute.is_dated:
                return self._dated(value)
            value = scalar(value)
        except TypeError:
            return UNSUPPORTED
        if value is None:
            return self.missing
        if self.attribute.labels is not None:
            text = text_of(value)
            # the text of the number has priority; a label may also be the text of the decimal, 0.50
            return self._label(str(value) if isinstance(value, Decimal) and text not in self.texts else text)
        if isinstance(value, str):
            if value.strip(_BLANKS) in self._missing_texts:
                return self.missing
            number = self._spelled(value)
            return NOT_NUMBER if number is None else self.missing if math.isnan(number) else self._number(number)
        return self._number(value)

    def column(self, values: pa.Array | list[Any], clock: Clock | None = None) -> np.ndarray:
        """Codes of a column of a batch, shape (n,); `clock` says which dates its numbers are."""
        if clock is not None and self.attribute.is_dated:
            clock.check(self.attribute)
            values = clock.dates(values)
        return self.objects(values) if isinstance(values, list) else self.array(values)

    def objects(self, values: Iterable[Any]) -> np.ndarray:
        """Codes of any Python values, shape (n,)."""
        return np.fromiter(map(self.one, values), self.dtype)

    def array(self, values: pa.Array) -> np.ndarray:
        """Codes of an Arrow column, shape (n,)."""
        import pyarrow.compute as pc

        kind = values.type
        if pa.types.is_run_end_encoded(kind):
            try:
                return self.array(pc.run_end_decode(values))
            except pa.ArrowNotImplementedError:
                return self.objects(values.to_pylist())
        if pa.types.is_dictionary(kind):
            table = np.append(self.array(values.dictionary), self.dtype(self.missing))
            positions = pc.fill_null(values.indices.cast(pa.int64()), len(table) - 1)
            return np.asarray(table[positions.to_numpy()])
        for narrow, wide in ((pa.string_view(), pa.large_string()), (pa.float16(), pa.float32())):  # Arrow can do less
            if kind == narrow:
                values, kind = values.cast(wide), wide
        if self.attribute.is_dated and (pa.types.is_date(kind) or pa.types.is_timestamp(kind)):
            return self._with_nulls(days_of(values), self._dates)
        if self.attribute.is_dated:
            text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
            values = values.cast(pa.large_binary()) if text else values
            return self._by_distinct(values) if is_scalar(kind) else self._unsupported(values)
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            return self._labels_of(values) if self.attribute.labels is not None else self._spelled_of(values)
        if self.attribute.labels is None:
            if pa.types.is_boolean(kind):
                values = values.cast(pa.int8())
            if pa.types.is_integer(values.type):
                return self._integers(values)
            if pa.types.is_floating(kind):
                return self._with_nulls(values, self._floats)
        if is_scalar(kind):
            return self._by_distinct(values)
        return self._unsupported(values)

    @cached_property
    def texts(self) -> dict[str, int]:
        """Code of every text that the schema names for an attribute with labels."""
        labels = self.attribute.labels or ()
        codes = {label: i for i, label in enumerate(labels)}
        missing = MISSING if self.attribute.missing is None else codes.get(str(self.attribute.missing), MISSING)
        return codes | dict.fromkeys(self.attribute.missing_values, missing)

    @cached_property
    def missing_decimals(self) -> frozenset[Decimal]:
        """The numbers that mean that a value is missing, for an attribute without labels."""
        texts = self.attribute.missing_values if self.attribute.labels is None and not self.attribute.is_dated else ()
        return frozenset(Decimal(text) for text in map(self._plain, texts) if _is_finite(text))

    @cached_property
    def missing_floats(self) -> frozenset[float]:
        """The same numbers as floats, as texts are read."""
        return frozenset(float(number) for number in self.missing_decimals)

    @cached_property
    def missing_days(self) -> frozenset[datetime.date]:
        """The days that mean that a value is missing, for an attribute of dates."""
        periods = (read_period(text, self.attribute.date_format) for text in self.attribute.missing_values)
        return frozenset(period.day for period in periods if period is not None and period.unit == "day")

    @cached_property
    def _missing_texts(self) -> frozenset[str]:
        texts = {text.strip(_BLANKS) for text in self.attribute.missing_values}
        return frozenset(
            {*texts, str(self.attribute.missing)} if self.missing >= 0 and self.attribute.is_dated else texts
        )

    @cached_property
    def _outside(self) -> int:
        return OUTSIDE if self.attribute.other is None else self.texts[self.attribute.other]

    @cached_property
    def _label_array(self) -> pa.Array:
        return pa.array(list(self.texts), pa.large_string())

    @cached_property
    def _label_codes(self) -> np.ndarray:
        return np.array([*self.texts.values(), self._outside], np.int64)

    def _label(self, text: Any) -> int:
        return self.texts.get(text, self._outside)

    def _unsupported(self, values: pa.Array) -> np.ndarray:
        codes = np.where(values.is_null().to_numpy(zero_copy_only=False), self.missing, UNSUPPORTED)
        return np.asarray(codes, self.dtype)

    def _dated(self, value: Any) -> int:
        """Code of a value of a column of dates that is not missing."""
        attribute = self.attribute
        if isinstance(value, np.datetime64):
            value = value.astype("datetime64[D]").item()
            if value is None:
                return self.missing
            if isinstance(value, int):  # a year outside the range of Python
                return self._cell(-1 if value < 0 else attribute.size)
        if isinstance(value, datetime.datetime):
            try:
                value = (value if value.tzinfo is None else value.astimezone(datetime.UTC)).date()
            except OverflowError:
                return OUTSIDE
        if isinstance(value, datetime.date):
            day = value
        else:
            if not isinstance(value, (str, bool, int, float, Decimal)):
                return UNSUPPORTED
            text = text_of(value).strip(_BLANKS)
            if text in self._missing_texts:
                return self.missing
            period = read_period(text, attribute.date_format)
            number = None if period is None else period.number(attribute.unit or "")
            if period is None or number is None:
                return NOT_DATE
            if period.unit != "day":
                return self._cell(number - attribute.first_cell)
            day = period.day
        if day in self.missing_days:
            return self.missing
        return self._cell(cell_number(day, attribute.unit or "") - attribute.first_cell)

    def _cell(self, place: int) -> int:
        """Code of a calendar cell by its place after the first one."""
        last = self.attribute.date_cells - 1
        return place if 0 <= place <= last else min(max(place, 0), last) if self.attribute.clip else OUTSIDE

    def _dates(self, days: np.ndarray) -> np.ndarray:
        """Codes of days since 1970-01-01."""
        attribute, last = self.attribute, self.attribute.date_cells - 1
        if attribute.unit == "day":
            numbers = days + _EPOCH.toordinal()
        else:
            months = days.astype("datetime64[D]").astype("datetime64[M]").astype(np.int64) + 12 * _EPOCH.year
            numbers = months // {"year": 12, "quarter": 3, "month": 1}[attribute.unit or ""]
        places = numbers - attribute.first_cell
        codes = np.clip(places, 0, last).astype(self.dtype)
        if not attribute.clip:
            codes[(places < 0) | (places > last)] = OUTSIDE
        if self.missing_days:
            codes[np.isin(days, [(day - _EPOCH).days for day in self.missing_days])] = self.missing
        return np.asarray(codes)

    def _spelled(self, text: str) -> float | None:
        return _spelled(self._plain(text))

    def _plain(self, text: str) -> str:
        """A text of a number with the declared signs as one with a decimal point; others become no number."""
        decimal, thousands = self.attribute.decimal or ".", self.attribute.thousands
        if (decimal, thousands) == (".", None):
            return text
        text = text.strip(_BLANKS)
        match = _number_pattern(decimal, thousands).fullmatch(text)
        if match is None:
            return text if text.isalpha() or text[1:].isalpha() else ""  # nan and inf
        sign, integer_part, places, power = (match[key] or "" for key in ("sign", "whole", "places", "power"))
        return f"{sign}{''.join(filter(str.isdigit, integer_part))}{places.replace(decimal, '.')}{power}"

    def _number(self, number: Any) -> int:
        """Code of a number that is no NaN; Python compares int, float and Decimal exactly, whatever their size."""
        if number in (self.missing_floats if isinstance(number, float) else self.missing_decimals):
            return self.missing
        return self._bin(number)

    def _bin(self, number: Any) -> int:
        """Code of a number that does not mean missing."""
        edges, size = self.attribute.edges, self.attribute.size
        if self.needs_integers and _is_fraction(number):
            return FRACTION
        if edges is None:
            return int(number) if 0 <= number < size else OUTSIDE
        if not self.attribute.clip and not edges[0] <= number <= edges[-1]:
            return OUTSIDE
        return min(max(bisect_right(edges, number) - 1, 0), size - 1)

    def _by_distinct(self, values: pa.Array) -> np.ndarray:
        import pyarrow.compute as pc

        try:
            encoded = values.dictionary_encode()
        except pa.ArrowException:
            return self.objects(values.to_pylist())
        table = np.append(self.objects(encoded.dictionary.to_pylist()), self.dtype(self.missing))
        return np.asarray(table[pc.fill_null(encoded.indices.cast(pa.int64()), len(table) - 1).to_numpy()])

    def _labels_of(self, values: pa.Array) -> np.ndarray:
        import pyarrow.compute as pc

        positions = pc.index_in(values, value_set=self._label_array.cast(values.type))
        if positions.null_count == 0 and not self.attribute.missing_values:
            return np.array(positions.to_numpy(), self.dtype)
        codes = self._label_codes[pc.fill_null(positions, len(self.texts)).to_numpy()].astype(self.dtype)
        empty = pc.fill_null(pc.equal(pc.binary_length(values), 0), True)
        codes[empty.to_numpy(zero_copy_only=False)] = self.missing
        return np.asarray(codes)

    def _spelled_of(self, values: pa.Array) -> np.ndarray:
        # Arrow parses fewer spellings than `_spelled`; for others, each distinct text is parsed here
        import pyarrow.compute as pc

        if self.attribute.decimal is not None or self.attribute.thousands is not None:
            return self._by_distinct(values.cast(pa.large_binary()))
        empty = pc.equal(pc.binary_length(values), 0)
        if self._missing_texts:
            empty = pc.or_(empty, pc.is_in(values, value_set=pa.array(sorted(self._missing_texts), values.type)))
        try:
            numbers = pc.if_else(empty, None, values).cast(pa.float64())
        except pa.ArrowInvalid:
            return self._by_distinct(values.cast(pa.large_binary()))
        return self._with_nulls(numbers, self._floats)

    def _with_nulls(self, values: pa.Array, encode: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        import pyarrow.compute as pc

        if values.null_count == 0:
            return encode(values.to_numpy(zero_copy_only=False))
        codes = encode(pc.fill_null(values, 0).to_numpy(zero_copy_only=False))
        codes[values.is_null().to_numpy(zero_copy_only=False)] = self.missing
        return codes

    def _integers(self, values: pa.Array) -> np.ndarray:
        import pyarrow.compute as pc

        if self.attribute.edges is None:
            return self._with_nulls(values, self._as_integers)
        extent = pc.min_max(values)
        low, high = extent["min"].as_py() or 0, extent["max"].as_py() or 0
        if max(-low, high) > _EXACT:
            return self._by_distinct(values)
        return self._with_nulls(values, self._floats)

    def _as_integers(self, numbers: np.ndarray) -> np.ndarray:
        inside = (numbers >= 0) & (numbers < self.attribute.size)
        codes = numbers.astype(self.dtype)
        if not inside.all():
            codes[~inside] = OUTSIDE
        if self.missing_floats:
            codes[np.isin(numbers, [int(n) for n in self.missing_decimals if n == n.to_integral_value()])] = (
                self.missing
            )
        return codes

    def _floats(self, numbers: np.ndarray) -> np.ndarray:
        numbers = numbers.astype(np.float64, copy=False)
        nan = np.isnan(numbers)
        if self.attribute.edges is None:
            inside = (numbers >= 0) & (numbers < self.attribute.size)
            codes = np.where(inside, numbers, OUTSIDE).astype(self.dtype)
        else:
            edges = np.asarray(self.attribute.edges)
            bins = np.searchsorted(edges, numbers, side="right") - 1
            codes = np.clip(bins, 0, self.attribute.size - 1).astype(self.dtype)
            if not self.attribute.clip:
                codes[(numbers < edges[0]) | (numbers > edges[-1])] = OUTSIDE
        if self.needs_integers:
            codes[np.isfinite(numbers) & (np.floor(numbers) != numbers)] = FRACTION
        codes[nan] = self.missing
        if self.missing_floats:
            codes[np.isin(numbers, list(self.missing_floats))] = self.missing
        return codes


def _is_fraction(number: Any) -> bool:
    """Whether a number that is no NaN has digits after the point."""
    if number in (math.inf, -math.inf):
        return False
    return bool(number != (number.to_integral_value() if isinstance(number, Decimal) else math.floor(number)))


def days_of(values: pa.Array) -> pa.Array:
    """Dates or times as whole days since 1970-01-01; a time with a zone is stored as one in UTC."""
    kind = values.type
    if pa.types.is_date32(kind):
        return values.cast(pa.int32()).cast(pa.int64())
    steps = _PER_DAY["ms" if pa.types.is_date64(kind) else kind.unit]
    # Arrow's division rounds towards zero, NumPy's rounds down
    days = values.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False) // steps
    return pa.array(days, mask=values.is_null().to_numpy(zero_copy_only=False))


@cache
def _number_pattern(decimal: str, thousands: str | None) -> re.Pattern[str]:
    """Return a pattern of numbers with these signs; groups after the first have three digits."""
    groups = "" if thousands is None else rf"|\d{{1,3}}(?:{_GROUPED[thousands]}\d{{3}})+"
    point = re.escape(decimal)
    return re.compile(
        rf"(?P<sign>[+-]?)(?=[\d{point}])(?P<whole>\d+{groups})?(?P<places>{point}\d*)?(?P<power>[eE][+-]?\d+)?",
        re.ASCII,
    )


def _is_finite(text: str) -> bool:
    """Whether a text spells a finite number."""
    number = _spelled(text)
    return number is not None and math.isfinite(number)


def is_scalar(kind: pa.DataType) -> bool:
    """Whether `Encoder.one` supports the Python values of an Arrow type."""
    types = pa.types
    numeric = types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind) or types.is_boolean(kind)
    text = types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind) or types.is_large_binary(kind)
    return bool(numeric or text or types.is_fixed_size_binary(kind) or kind == pa.binary_view())


def plain_value(value: Any) -> Any:
    """Return a value of the records as Python value, bytes as text, and None if it is missing.

    Raises TypeError for bytes that are not UTF-8.
    """
    import pandas as pd

    if isinstance(value, (np.bool_, np.floating, np.integer)) and not isinstance(value, np.timedelta64):
        value = value.item() if not isinstance(value, np.longdouble) else float(value)
    if isinstance(value, bytes):
        try:
            return value.decode() or None
        except UnicodeDecodeError:
            value = None
        raise TypeError("bytes that are not UTF-8 are neither text nor number")  # not in the block that holds them
    if value is None or value is pd.NA or value is pd.NaT or (isinstance(value, str) and value == ""):
        return None
    if (isinstance(value, float) and math.isnan(value)) or (isinstance(value, Decimal) and value.is_nan()):
        return None
    return value


def scalar(value: Any) -> Any:
    """Return a value of the records as text, bool, int, float or Decimal, or None if it is missing.

    Raises: TypeError for other types, such as dates and lists, and for bytes that are not UTF-8.
    """
    value = plain_value(value)
    if value is not None and not isinstance(value, (str, bool, int, float, Decimal)):
        raise TypeError(f"a value of type {type(value).__name__} is neither text nor number")
    return value


def number_of(value: Any) -> Any:
    """Return the number that a `scalar` is or spells; None for a text that spells no number.

    >>> number_of("1.5e3"), number_of(True), number_of("x")
    (1500.0, True, None)
    """
    return _spelled(value) if isinstance(value, str) else value


def text_of(value: Any) -> str:
    """Return the text of a `scalar` that is compared with labels; drafts write labels with it, too.

    >>> text_of(12.0), text_of("12.0"), text_of(True), text_of(Decimal("0.50"))
    ('12', '12.0', 'True', '0.5')
    """
    if isinstance(value, float) and abs(value) < _EXACT and value.is_integer():
        return str(int(value))
    if isinstance(value, Decimal) and value.is_finite() and abs(value) < _EXACT and value == value.to_integral_value():
        return str(int(value))
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, Decimal) and value.is_finite() and abs(value.adjusted()) < _PLACES:
        digits, shortest = format(value, "f"), repr(float(value))
        digits = digits.rstrip("0").rstrip(".") if "." in digits else digits
        return shortest if "." in digits and Decimal(shortest) == value else digits
    try:
        return str(value)
    except ValueError:  # an integer of thousands of digits has no text and is no label
        return ""


def _spelled(text: str) -> float | None:
    """Return the number of a text; digits grouped by _ and non-ASCII digits are refused."""
    try:
        return float(text) if text.isascii() and "_" not in text else None
    except ValueError:
        return None
