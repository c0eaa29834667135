"""Parts of schema drafts: what a draft holds, bins for a range of numbers, and an empty schema to fill in."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from engine.errors import SchemaError
from engine.texts import shown
from engine.workload.attribute import MAX_INTEGER, Attribute
from engine.workload.schema import Schema
from engine.workload.schema_text import KEYS

FINEST = 200  # cells of whole numbers; longer ranges begin with bins
BINS = 50
DECIMAL_BINS = 20  # about as many bins a range of decimals has
MAX_REASONS = 5  # that an error lists


@dataclass(frozen=True, kw_only=True)
class DraftSchema:
    """A schema to be confirmed by a person, and what is left to the person.

    Fields: `schema`, one attribute per column that makes one; `unlabelled`, names of the other columns; `reasons`, why
    they make none, by name; `notes`, what the draft leaves out of the attributes that it has.
    """

    schema: Schema
    unlabelled: tuple[str, ...]
    reasons: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def no_attribute(what: str, reasons: Mapping[str, str]) -> SchemaError:
    """Return the error of a public file of which no column makes an attribute.

    >>> str(no_attribute("these records", {"id": "it has one value only"}))
    "No column of these records makes an attribute: 'id': it has one value only. Write the schema by hand."
    """
    listed = "; ".join(f"{shown(name)}: {reason}" for name, reason in list(reasons.items())[:MAX_REASONS])
    more = f"; and {len(reasons) - MAX_REASONS:,} more" if len(reasons) > MAX_REASONS else ""
    return SchemaError(f"No column of {what} makes an attribute: {listed}{more}. Write the schema by hand.")


def schema_template(names: Sequence[str]) -> str:
    """Return a schema file, CSV, with the names filled in; the rest is for somebody who knows the values.

    >>> schema_template(["age"]).splitlines()[1]
    'age,,,,,,,'
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(KEYS)
    writer.writerows([name, *[""] * (len(KEYS) - 1)] for name in names)
    return out.getvalue()


def spanned(name: str, low: int, high: int, *, integer: bool = True) -> Attribute:
    """Return a numeric attribute from ``low`` to ``high``: a cell per whole number, or 50 even bins if more than 200.

    With ``integer`` the values are declared to be whole numbers, as far as floats tell whole numbers apart.

    >>> spanned("age", 0, 99).size, spanned("income", 0, 99_999).size
    (100, 50)
    """
    step = 1 if high - low < FINEST else -(-(high + 1 - low) // BINS)
    edges = [float(edge) for edge in range(low, high + 1 + step, step)]
    exact = max(map(abs, edges)) <= MAX_INTEGER
    return Attribute.numeric(name, edges, integer=integer and exact)


def decimal_bins(name: str, low: float, high: float) -> Attribute:
    """Return a numeric attribute with about 20 bins, whose edges are multiples of 1, 2 or 5 times a power of ten.

    >>> decimal_bins("share", 0.03, 0.98).edges[:3], decimal_bins("temperature", 10.0, 60.0).size
    ((0.0, 0.05, 0.1), 10)
    """
    finest = (Fraction(high) - Fraction(low)) / DECIMAL_BINS
    if float(finest) <= 0.0:
        raise SchemaError(f"the range of {shown(name)} is empty. Write a lower and a higher number")
    power = Fraction(10) ** math.floor(math.log10(finest))
    step = next(step for factor in (1, 2, 5, 10) if (step := factor * power) >= finest)
    first, last = math.floor(Fraction(low) / step), math.ceil(Fraction(high) / step)
    return Attribute.numeric(name, [float(place * step) for place in range(first, last + 1)])
