"""One column of records -> cell codes of one attribute, strictly: a value is either in the public domain or refused.

`Encoder.one` is the rule, one value at a time.  `Encoder.array` gives the same codes for a whole Arrow column; it has
fast paths for text, whole numbers and floats and falls back on the rule, once per distinct value.

    value in the records          categorical with labels            bins between edges, or codes 0 .. size - 1
    None, NaN, NaT, NA, ""        missing                            missing
    text                          equal to a label, exactly          the number it spells ("12", "1.5e3")
    whole number, 12 or 12.0      the text "12"                      that number, compared exactly
    other number, 0.5             its shortest text "0.5"            that number; refused where only whole numbers are
    decimal, 0.50                 "0.5", or else "0.50"              that number; refused where only whole numbers are
    True, False                   the text "True", "False"           1, 0
    anything else (dates, lists)  refused                            refused

Nothing is ever rounded, wrapped or clipped on the way; only an attribute that asks for it by `clip`, `other` or
`missing` collects such values.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from engine.workload import Attribute

REASONS = (
    "missing",
    "outside the public domain",
    "not a number",
    "not a whole number",
    "of a type that is neither text nor number",
)
MISSING, OUTSIDE, NOT_NUMBER, FRACTION, UNSUPPORTED = (-1 - i for i in range(len(REASONS)))

_EXACT = 2**53  # every whole number up to here is a float
_PLACES = 100  # before and after the point, of decimals that labels are compared with as numbers


def code_type(size: int) -> type[np.signedinteger]:
    """Smallest signed type that holds every number up to size, and the negative codes of refused values."""
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
    def needs_whole(self) -> bool:
        """Whether fractions are refused: of codes, and where the schema declares whole numbers."""
        return self.attribute.labels is None and (self.attribute.edges is None or self.attribute.integer)

    @cached_property
    def missing(self) -> int:
        """Code of a missing value."""
        if self.attribute.missing is None:
            return MISSING
        return self._label(self.attribute.missing) if self.attribute.labels else self._number(self.attribute.missing)

    def one(self, value: Any) -> int:
        """Code of one value: the rule that every faster path must agree with."""
        import pandas as pd

        if isinstance(value, (np.bool_, np.floating, np.integer)) and not isinstance(value, np.timedelta64):
            value = value.item() if not isinstance(value, np.longdouble) else float(value)
        if isinstance(value, bytes):
            try:
                value = value.decode()
            except UnicodeDecodeError:
                return UNSUPPORTED
        if value is None or value is pd.NA or value is pd.NaT or (isinstance(value, str) and value == ""):
            return self.missing
        if (isinstance(value, float) and math.isnan(value)) or (isinstance(value, Decimal) and value.is_nan()):
            return self.missing
        if not isinstance(value, (str, bool, int, float, Decimal)):
            return UNSUPPORTED
        if self.attribute.labels is not None:
            text = _text(value)
            # the number comes first; a label may also be a decimal as its column writes it, 0.50
            return self._label(str(value) if isinstance(value, Decimal) and text not in self._codes else text)
        if isinstance(value, str):
            number = _spelled(value)
            return NOT_NUMBER if number is None else self.missing if math.isnan(number) else self._number(number)
        return self._number(value)

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
        return np.where(values.is_null().to_numpy(zero_copy_only=False), self.missing, UNSUPPORTED).astype(self.dtype)

    @cached_property
    def _codes(self) -> dict[str, int]:
        return {label: i for i, label in enumerate(self.attribute.labels or ())}

    @cached_property
    def _outside(self) -> int:
        return OUTSIDE if self.attribute.other is None else self._codes[self.attribute.other]

    @cached_property
    def _label_array(self) -> pa.Array:
        return pa.array(self.attribute.labels, pa.large_string())

    def _label(self, text: Any) -> int:
        return self._codes.get(text, self._outside)

    def _number(self, number: Any) -> int:
        """Code of a number that is no NaN; Python compares int, float and Decimal exactly, whatever their size."""
        edges, size = self.attribute.edges, self.attribute.size
        if self.needs_whole and _is_fraction(number):
            return FRACTION
        if edges is None:
            return int(number) if 0 <= number < size else OUTSIDE
        if not self.attribute.clip and not edges[0] <= number <= edges[-1]:
            return OUTSIDE
        return min(max(bisect_right(edges, number) - 1, 0), size - 1)

    def _by_distinct(self, values: pa.Array) -> np.ndarray:
        import pyarrow.compute as pc

        try:
            found = values.dictionary_encode()
        except pa.ArrowException:
            return self.objects(values.to_pylist())
        table = np.append(self.objects(found.dictionary.to_pylist()), self.dtype(self.missing))
        return np.asarray(table[pc.fill_null(found.indices.cast(pa.int64()), len(table) - 1).to_numpy()])

    def _labels_of(self, values: pa.Array) -> np.ndarray:
        import pyarrow.compute as pc

        found = pc.index_in(values, value_set=self._label_array.cast(values.type))
        if found.null_count == 0:
            return np.array(found.to_numpy(), self.dtype)
        codes = np.array(pc.fill_null(found, self._outside).to_numpy(), self.dtype)
        empty = pc.fill_null(pc.equal(pc.binary_length(values), 0), True)
        codes[empty.to_numpy(zero_copy_only=False)] = self.missing
        return codes

    def _spelled_of(self, values: pa.Array) -> np.ndarray:
        # Arrow reads fewer spellings than `_spelled`; when it meets another one, each distinct text is read here.
        import pyarrow.compute as pc

        try:
            numbers = pc.if_else(pc.equal(pc.binary_length(values), 0), None, values).cast(pa.float64())
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
            return self._with_nulls(values, self._whole)
        extent = pc.min_max(values)
        low, high = extent["min"].as_py() or 0, extent["max"].as_py() or 0
        if max(-low, high) > _EXACT:
            return self._by_distinct(values)
        return self._with_nulls(values, self._floats)

    def _whole(self, numbers: np.ndarray) -> np.ndarray:
        inside = (numbers >= 0) & (numbers < self.attribute.size)
        codes = numbers.astype(self.dtype)
        if not inside.all():
            codes[~inside] = OUTSIDE
        return codes

    def _floats(self, numbers: np.ndarray) -> np.ndarray:
        numbers = numbers.astype(np.float64, copy=False)
        nan = np.isnan(numbers)
        if self.attribute.edges is None:
            inside = (numbers >= 0) & (numbers < self.attribute.size)
            codes = np.where(inside, numbers, OUTSIDE).astype(self.dtype)
        else:
            edges = np.asarray(self.attribute.edges)
            found = np.searchsorted(edges, numbers, side="right") - 1
            codes = np.clip(found, 0, self.attribute.size - 1).astype(self.dtype)
            if not self.attribute.clip:
                codes[(numbers < edges[0]) | (numbers > edges[-1])] = OUTSIDE
        if self.needs_whole:
            codes[np.isfinite(numbers) & (np.floor(numbers) != numbers)] = FRACTION
        codes[nan] = self.missing
        return codes


def _is_fraction(number: Any) -> bool:
    """Whether a number that is no NaN has digits after the point."""
    if number in (math.inf, -math.inf):
        return False
    return bool(number != (number.to_integral_value() if isinstance(number, Decimal) else math.floor(number)))


def is_scalar(kind: pa.DataType) -> bool:
    """Types whose Python values `Encoder.one` knows."""
    types = pa.types
    numeric = types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind) or types.is_boolean(kind)
    text = types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind) or types.is_large_binary(kind)
    return bool(numeric or text or types.is_fixed_size_binary(kind) or kind == pa.binary_view())


def _text(value: Any) -> str:
    """Text of a value that is to equal a label."""
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
    except ValueError:  # a whole number of thousands of digits has no text, and is no label
        return ""


def _spelled(text: str) -> float | None:
    """Number that a text spells; digits grouped by _ and digits of other scripts are not numbers here."""
    try:
        return float(text) if text.isascii() and "_" not in text else None
    except ValueError:
        return None
