"""A column of a database -> cell codes of one attribute, as an expression: what `encoding` says, value for value.

Numbers are compared with constants that no reader of SQL can round: whole numbers, and fractions as a quotient of two
of them; decimals are whole numbers of their last place.  Texts are compared by their bytes, because a database may take
"f" for "F".  Columns of few distinct values that no rule fits, and texts that spell numbers, are recoded by the rule
for one value.  What none of this serves is not recoded there, and its rows travel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import date, timedelta
from decimal import Decimal
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np

from engine.release.records.encoding import FRACTION, OUTSIDE, REASONS, UNSUPPORTED, Encoder
from engine.workload import MAX_YEAR

MOST_CASES = 1_000  # of one expression, and distinct values that are looked at one by one
MOST_PLACES = 18  # of decimals, so that whole numbers of their last place have 64 bits
WITH_HEX = ("duckdb", "pyspark")  # where hex(text) gives the bytes of a text
WITH_DATES = ("duckdb", "postgres", "pyspark")  # where a column of dates holds dates only
ANY_TYPE = ("sqlite",)  # where a column holds values of other types than its own
WITH_ZONES = ("duckdb", "postgres")  # where timezone('UTC', moment) gives the time in UTC
CHANGED = -1 - len(REASONS)  # code of a value that was not there yet when distinct values were looked up
_LARGE = 2**63


class NotThereError(Exception):
    """The database cannot tell which cell a value belongs to; the rows have to travel."""


def code_of(column: Any, encoder: Encoder, distinct: Callable[[Any, int], list[str | None]]) -> Any:
    """Return an expression of the codes of a column, or raise NotThereError.

    `distinct` returns the distinct values of a column of texts if they are at most so many, or more than that.
    """
    import ibis

    attribute, kind = encoder.attribute, column.type()
    if column.get_backend().name in ANY_TYPE:
        raise NotThereError
    cases: list[tuple[Any, int]] = [(column.isnull(), encoder.missing)]
    rest = OUTSIDE if attribute.other is None else encoder.one(attribute.other)
    if kind.is_uint64():
        column = column.cast("decimal(20, 0)")  # which can be compared with numbers below 0
    if kind.is_null():
        return _integer(encoder.missing).cast(np.dtype(encoder.dtype).name)
    if attribute.is_dated:
        added, rest = _date_cases(column, encoder, distinct)
        cases += added
    elif kind.is_temporal() or kind.is_interval() or kind.is_array() or kind.is_struct() or kind.is_map():
        rest = UNSUPPORTED
    elif kind.is_string() and attribute.labels is not None:
        known = {"": encoder.missing} | encoder.texts
        rest = _chosen(in_bytes(column), {text.encode().hex().upper(): code for text, code in known.items()}, rest)
    elif kind.is_boolean():
        cases.append((column, encoder.one(True)))
        rest = encoder.one(False)
    elif kind.is_integer() and attribute.labels is not None:
        whole = {label: int(label) for label in encoder.texts if _is_whole(label)}
        cases += [(column == number, encoder.one(number)) for number in whole.values()]
    elif kind.is_integer():
        missing = [int(number) for number in encoder.missing_decimals if number == number.to_integral_value()]
        cases += [(column == number, encoder.missing) for number in missing if abs(number) < _LARGE]
        cases += _cells(column, encoder, *_steps([Fraction(edge) for edge in attribute.edges or ()]))
        rest = _last(column, encoder)
    elif kind.is_floating() and attribute.labels is not None:
        column = column.cast("float64")
        cases.append((column.isnan(), encoder.missing))
        cases += [(column == _exact(number), code) for number, code in _spelled(encoder)]
    elif kind.is_floating():
        column = column.cast("float64")
        cases.append((column.isnan(), encoder.missing))
        cases += [(column == _exact(number), encoder.missing) for number in encoder.missing_floats]
        if encoder.needs_whole:
            # an infinite number is outside, and only a finite one may be no whole number
            finite = (column > -_exact(2.0**62)) & (column < _exact(2.0**62))
            cases.append((finite & (column.floor() != column), FRACTION))
        edges = [_exact(edge) for edge in attribute.edges or ()]
        cases += _cells(column, encoder, edges, *edges[-1:])
        rest = _last(column, encoder)
    elif kind.is_decimal() and attribute.labels is None and _is_exact(column):
        cases += _decimal_cases(column, encoder)
        rest = _last(column, encoder)
    elif kind.is_decimal():
        texts = column.cast("string")
        rest = _chosen(texts, _by_distinct(texts, lambda text: encoder.one(Decimal(text)), distinct), CHANGED)
    elif kind.is_string():
        texts = in_bytes(column)
        rest = _chosen(texts, _by_distinct(texts, lambda text: encoder.one(bytes.fromhex(text)), distinct), CHANGED)
    else:
        raise NotThereError
    if len(cases) > MOST_CASES + 4:
        raise NotThereError
    found = ibis.cases(*((test, _integer(code)) for test, code in cases), else_=_integer(rest))
    return found.cast(np.dtype(encoder.dtype).name)


def _date_cases(
    column: Any, encoder: Encoder, distinct: Callable[[Any, int], list[Any]]
) -> tuple[list[tuple[Any, Any]], Any]:
    """What a value must be to lie in a cell of dates, or in none, and the code of every other value."""
    import ibis

    attribute, kind, name = encoder.attribute, column.type(), column.get_backend().name
    if kind.is_string():
        texts = in_bytes(column)
        codes = _by_distinct(texts, lambda text: encoder.one(bytes.fromhex(text)), distinct)
        return [], _chosen(texts, codes, CHANGED)
    if kind.is_integer():
        values = [value for value in _few(column, distinct) if value is not None]
        return [(column == value, encoder.one(value)) for value in values], CHANGED
    if kind.is_boolean():
        return [], encoder.one(True)
    if not (kind.is_date() or kind.is_timestamp()):
        if kind.is_numeric() or kind.is_binary():
            raise NotThereError
        return [], UNSUPPORTED
    if name not in WITH_DATES:
        raise NotThereError
    if kind.is_timestamp() and kind.timezone is not None:
        if name not in WITH_ZONES:
            raise NotThereError
        column = _functions()["timezone"]("UTC", column)  # the time in UTC, without a zone
    # comparisons come first: there are dates that have no year, such as infinity
    literal = ibis.date if kind.is_date() else lambda day: ibis.timestamp(f"{day}T00:00:00")
    first, last = attribute.days(0)[0], attribute.days(attribute.date_cells - 1)[1]
    step = timedelta(days=1)
    cases = [
        ((column >= literal(day)) & (column < literal(day + step)), encoder.missing)
        for day in encoder.missing_days
        if day.year <= MAX_YEAR
    ]
    if len(cases) < len(encoder.missing_days):
        raise NotThereError
    cases.append((column < literal(first), encoder.one(first - step) if first > date.min else OUTSIDE))
    cases.append((column >= literal(last + step), encoder.one(last + step)))
    day = column if kind.is_date() else column.date()
    if attribute.unit == "day":
        return cases, day.delta(ibis.date(first), unit="day").cast("int64")
    year, month = day.year().cast("int64"), day.month().cast("int64")
    number = {
        "year": year,
        "quarter": year * 4 + ibis.cases((month < 4, 0), (month < 7, 1), (month < 10, 2), else_=3),
        "month": year * 12 + month - 1,
    }[attribute.unit or ""]
    return cases, number - attribute.first_cell


def _few(column: Any, distinct: Callable[[Any, int], list[Any]]) -> list[Any]:
    """The distinct values of a column of few."""
    values = distinct(column, MOST_CASES)
    if len(values) > MOST_CASES:
        raise NotThereError
    return values


def _integer(code: Any) -> Any:
    import ibis

    return ibis.literal(code, "int64") if isinstance(code, int) else code


def in_bytes(column: Any) -> Any:
    """A column of texts as the hexadecimal digits of their bytes, which no collation takes for others."""
    name, call = column.get_backend().name, _functions()
    if name in WITH_HEX:
        return call["hex"](column)
    if name != "postgres":
        raise NotThereError
    return call["encode"](call["convert_to"](as_text(column), "UTF8"), "hex").upper()


def as_text(column: Any) -> Any:
    """Texts of PostgreSQL as type text: char(n) without the blanks that fill it up, enumerations as written."""
    return _functions()["text"](column)


@cache
def _functions() -> dict[str, Callable[..., Any]]:
    """Functions that databases have and Ibis does not name."""
    import ibis

    def hex(text: str) -> str: ...  # type: ignore[empty-body]
    def text(value: str) -> str: ...  # type: ignore[empty-body]
    def convert_to(text: str, encoding: str) -> bytes: ...  # type: ignore[empty-body]
    def encode(content: bytes, form: str) -> str: ...  # type: ignore[empty-body]
    def timezone(zone: str, moment): ...  # type: ignore[no-untyped-def]

    functions = {made.__name__: ibis.udf.scalar.builtin(made) for made in (hex, text, convert_to, encode)}
    functions["timezone"] = ibis.udf.scalar.builtin(timezone, signature=((str, None), "timestamp"))
    return functions


def _chosen(column: Any, codes: dict[str, int], rest: Any) -> Any:
    """The code of each of some texts, and what all others have."""
    if len(codes) > MOST_CASES + 1:
        raise NotThereError
    return column.cases(*((text, _integer(code)) for text, code in codes.items()), else_=_integer(rest))


def _cells(column: Any, encoder: Encoder, edges: list[Any], last: Any = None) -> list[tuple[Any, Any]]:
    """What a number must be to lie in each cell but the last, the ones outside first; `last` is the largest inside."""
    attribute = encoder.attribute
    if attribute.edges is None:
        return [((column < 0) | (column >= attribute.size), OUTSIDE)]
    outside = [] if attribute.clip else [((column < edges[0]) | (column > last), OUTSIDE)]
    return [*outside, *((column < edge, cell) for cell, edge in enumerate(edges[1:-1]))]


def _last(column: Any, encoder: Encoder) -> Any:
    """The code of a number that lies in no cell before: the last cell, or the number itself."""
    return column.cast("int64") if encoder.attribute.edges is None else encoder.attribute.size - 1


def _steps(edges: Sequence[Fraction]) -> tuple[list[int], int | None]:
    """The least whole number from each edge on, and the largest that is not past the last one.

    A whole number is below the one if it is below the other.
    """
    if any(abs(edge) >= _LARGE for edge in edges):
        raise NotThereError
    return [math.ceil(edge) for edge in edges], math.floor(edges[-1]) if edges else None


def _is_exact(column: Any) -> bool:
    """Whether a column of decimals can be compared with any number: where it is as long as it has to be, or short."""
    return column.get_backend().name == "postgres" or (column.type().precision or 99) <= MOST_PLACES


def _decimal_cases(column: Any, encoder: Encoder) -> list[tuple[Any, Any]]:
    """What a decimal must be to lie in each cell but the last."""
    import ibis

    edges, cases = encoder.attribute.edges, []
    if column.get_backend().name == "postgres":  # where decimals may be no number
        cases.append((column == ibis.literal("NaN").cast("decimal"), encoder.missing))
    cases += [(found, encoder.missing) for found in _missing_decimals(column, encoder)]
    if encoder.needs_whole:
        cases.append((column.floor() != column, FRACTION))
    if edges is None:
        return cases + _cells(column, encoder, [])
    if column.get_backend().name == "postgres":
        exact = [ibis.literal(format(Decimal(edge), "f")).cast("decimal") for edge in edges]
        return cases + _cells(column, encoder, exact, exact[-1])
    places = 10 ** column.type().scale
    # beyond every number of so many places it is all one where an edge lies
    far = Fraction(10**MOST_PLACES)
    steps, last = _steps([max(-far, min(far, Fraction(edge) * places)) for edge in edges])
    return cases + _cells((column * places).cast("int64"), encoder, steps, last)


def _missing_decimals(column: Any, encoder: Encoder) -> list[Any]:
    """Tests whether a decimal is one of the numbers that mean missing."""
    import ibis

    numbers = encoder.missing_decimals
    if column.get_backend().name == "postgres":
        return [column == ibis.literal(format(number, "f")).cast("decimal") for number in numbers]
    places = 10 ** column.type().scale
    whole = [int(number * places) for number in numbers if (number * places) == (number * places).to_integral_value()]
    return [(column * places).cast("int64") == number for number in whole if abs(number) < _LARGE]


def _exact(number: float) -> Any:
    """A number as the quotient of two whole ones, which no reader rounds."""
    import ibis

    over, under = float(number).as_integer_ratio()
    if max(abs(over), under) >= _LARGE:
        raise NotThereError
    whole = ibis.literal(over, "int64").cast("float64")
    return whole if under == 1 else whole / ibis.literal(under, "int64").cast("float64")


def _is_whole(label: str) -> bool:
    """Whether a label is the text of a whole number of 64 bits."""
    if not label.removeprefix("-").isdecimal() or not label.isascii() or len(label) > 20:
        return False
    return str(int(label)) == label and -_LARGE <= int(label) < _LARGE


def _spelled(encoder: Encoder) -> list[tuple[float, int]]:
    """The numbers whose texts are labels, with their codes."""
    found = []
    for label, code in encoder.texts.items():
        try:
            number = float(label)
        except ValueError:
            continue
        if math.isinf(number):
            raise NotThereError
        if not math.isnan(number) and encoder.one(number) == code:
            found.append((number, code))
    return found


def _by_distinct(
    texts: Any, one: Callable[[str], int], distinct: Callable[[Any, int], list[str | None]]
) -> dict[str, int]:
    """The code of each distinct text, by the rule for one."""
    return {value: one(value) for value in _few(texts, distinct) if value is not None}
