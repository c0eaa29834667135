"""A column of a database -> cell codes of one attribute, as an expression: what `encoding` says, value for value.

Numbers are compared with constants that no reader of SQL can round: whole numbers, and fractions as a quotient of two
of them.  Columns of few distinct values that no rule fits, such as decimals, and texts that spell numbers, are recoded
by the rule for one value.  What none of this serves is not recoded there, and its rows travel.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from engine.release.records.encoding import OUTSIDE, UNSUPPORTED, Encoder

MOST_CASES = 1_000  # of one expression, and distinct values that are looked at one by one
_EXACT, _LARGE = 2**53, 2**63


class NotThereError(Exception):
    """The database cannot tell which cell a value belongs to; the rows have to travel."""


def code_of(column: Any, encoder: Encoder, distinct: Callable[[Any, int], list[Any]]) -> Any:
    """Return an expression of the codes of a column, or raise NotThereError.

    `distinct` returns the distinct values of a column if they are at most so many, or more than that.
    """
    import ibis

    attribute, kind = encoder.attribute, column.type()
    cases: list[tuple[Any, int]] = [(column.isnull(), encoder.missing)]
    rest = OUTSIDE if attribute.other is None else encoder.one(attribute.other)
    if kind.is_uint64():
        column = column.cast("decimal(20, 0)")  # which can be compared with numbers below 0
    if kind.is_null():
        return _integer(encoder.missing).cast(np.dtype(encoder.dtype).name)
    if kind.is_temporal() or kind.is_interval() or kind.is_array() or kind.is_struct() or kind.is_map():
        rest = UNSUPPORTED
    elif kind.is_string() and attribute.labels is not None:
        cases += [(column == label, code) for code, label in enumerate(attribute.labels)]
        cases.append((column == "", encoder.missing))
    elif kind.is_boolean():
        cases.append((column, encoder.one(True)))
        rest = encoder.one(False)
    elif kind.is_integer() and attribute.labels is not None:
        whole = {label: int(label) for label in attribute.labels if _is_whole(label)}
        cases += [(column == number, encoder.one(number)) for number in whole.values()]
    elif kind.is_integer():
        cases += _cells(column, encoder, [_up(edge) for edge in attribute.edges or ()], math.floor)
        rest = _last(column, encoder)
    elif kind.is_floating() and attribute.labels is not None:
        column = column.cast("float64")
        cases.append((column.isnan(), encoder.missing))
        cases += [(column == _exact(number), code) for number, code in _spelled(encoder)]
    elif kind.is_floating():
        column = column.cast("float64")
        cases.append((column.isnan(), encoder.missing))
        if attribute.edges is None:
            # an infinite number is outside, and only a finite one may be no whole number
            finite = (column > -_exact(2.0**62)) & (column < _exact(2.0**62))
            cases.append((finite & (column.floor() != column), encoder.one(0.5)))
        cases += _cells(column, encoder, [_exact(edge) for edge in attribute.edges or ()], lambda edge: edge)
        rest = _last(column, encoder)
    elif kind.is_decimal() or kind.is_string():
        cases += _by_distinct(column, encoder, distinct)
    else:
        raise NotThereError
    if len(cases) > MOST_CASES + 4:
        raise NotThereError
    found = ibis.cases(*((test, _integer(code)) for test, code in cases), else_=_integer(rest))
    return found.cast(np.dtype(encoder.dtype).name)


def _integer(code: Any) -> Any:
    import ibis

    return ibis.literal(code, "int64") if isinstance(code, int) else code


def _cells(column: Any, encoder: Encoder, edges: list[Any], down: Callable[[float], Any]) -> list[tuple[Any, Any]]:
    """What a number must be to lie in each cell but the last, the ones outside first."""
    attribute = encoder.attribute
    if attribute.edges is None:
        return [((column < 0) | (column >= attribute.size), OUTSIDE)]
    top = attribute.edges[-1]
    last = edges[-1] if isinstance(down(top), float) else down(top)
    outside = [] if attribute.clip else [((column < edges[0]) | (column > last), OUTSIDE)]
    return [*outside, *((column < edge, cell) for cell, edge in enumerate(edges[1:-1]))]


def _last(column: Any, encoder: Encoder) -> Any:
    """The code of a number that lies in no cell before: the last cell, or the number itself."""
    return column.cast("int64") if encoder.attribute.edges is None else encoder.attribute.size - 1


def _up(edge: float) -> int:
    """The least whole number from an edge on: a whole number is below the one if it is below the other."""
    if abs(edge) >= _LARGE:
        raise NotThereError
    return math.ceil(edge)


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
    for code, label in enumerate(encoder.attribute.labels or ()):
        try:
            number = float(label)
        except ValueError:
            continue
        if math.isinf(number):
            raise NotThereError
        if not math.isnan(number) and encoder.one(number) == code:
            found.append((number, code))
    return found


def _by_distinct(column: Any, encoder: Encoder, distinct: Callable[[Any, int], list[Any]]) -> list[tuple[Any, int]]:
    """Each distinct value by the rule for one."""
    values = distinct(column, MOST_CASES)
    if len(values) > MOST_CASES or any(value != value for value in values):
        raise NotThereError
    codes: dict[int, list[Any]] = {}
    for value in values:
        if value is not None:
            codes.setdefault(encoder.one(value), []).append(value)
    return [(column.isin(some), code) for code, some in codes.items()]
