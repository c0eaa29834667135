"""Schemas drafted from a data dictionary, to be confirmed by people, and what to do with records given as a schema.

A dictionary is a CSV with a column of names and, in one of two ways, their values:

    name,value,label        one row a value; the name may stand in the first of its rows only
    name,values             one row a column of the records: "F|M", "1 = Female; 2 = Male" or "0-99"

Nothing is guessed from records: of a file of records only the first line is looked at, for its column names.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence

from engine.checks import one_of
from engine.errors import SchemaError
from engine.texts import delimiter
from engine.workload.attribute import MAX_INTEGER, Attribute
from engine.workload.schema import Schema
from engine.workload.schema_text import KEYS, TRUE_OR_FALSE, decoded_text

NAMES = ("name", "variable", "variable name", "column", "column name", "field", "attribute")
VALUES = ("value", "code", "values", "codes", "categories", "labels", "range", "value code")
MEANINGS = ("label", "value label", "meaning", "description", "category", "text")
HOLD = ("labels", "codes")
FINEST = 200  # cells of whole numbers; longer ranges begin with bins
BINS = 50
_SPAN = re.compile(r"\s*(-?\d+)\s*(?:-|–|\.\.|to)\s*(-?\d+)\s*")


def schema_from_dictionary(text: str | bytes, *, hold: str = "labels") -> Schema:
    """Draft a schema from a data dictionary; every value of it is to be confirmed by somebody who knows them.

    ``hold`` says what the records hold where a value has a code and a label.  A range of whole numbers becomes a
    numeric attribute with a cell for each, or with even bins where that would be more than 200.

    Raises: SchemaError for a text that is no dictionary.

    >>> found = schema_from_dictionary("name,value,label\\nsex,1,Female\\n,2,Male\\nage,0-99,")
    >>> [(a.name, a.labels, a.size) for a in found.attributes]
    [('sex', ('Female', 'Male'), 2), ('age', None, 100)]
    """
    one_of("content of the records", hold, HOLD, error=SchemaError)
    header, rows = _table(text)
    places = _columns(header)
    if places is None:
        raise SchemaError(
            f"This is no data dictionary: it needs a column {' or '.join(NAMES[:3])} and a column "
            f"{' or '.join(VALUES[:3])}. Name them so, or fill in the template."
        )
    found: dict[str, list[tuple[str, str]]] = {}
    name = ""
    for row in rows:
        cells = dict(zip(("name", "value", "label"), (row[i].strip() if i >= 0 else "" for i in places), strict=True))
        name = cells["name"] or name
        if not name:
            raise SchemaError("The first row of the dictionary has no name. Write the column's name beside its values.")
        pairs = found.setdefault(name, [])
        for part in re.split(r"[;|\n]", cells["value"]):
            code, _, meaning = (piece.strip() for piece in part.partition("="))
            if code:
                pairs.append((code, meaning or cells["label"]))
    return Schema([_drafted(name, pairs, hold) for name, pairs in found.items()])


def is_dictionary(text: str | bytes) -> bool:
    """Whether the first line is that of a data dictionary.

    >>> is_dictionary("variable,code,label\\n"), is_dictionary("age,sex\\n31,F\\n")
    (True, False)
    """
    try:
        return _columns(_table(text, rows=False)[0]) is not None
    except SchemaError:
        return False


def columns_of_records(text: str | bytes) -> tuple[str, ...]:
    """Return the column names of a CSV that holds records, not a schema; none when it holds something else.

    Only the first line is looked at.  One with numbers or empty texts in it is no line of names, but may be a record,
    and gives none either.

    >>> columns_of_records("age,sex\\n31,F\\n"), columns_of_records("31,F\\n"), columns_of_records("name,kind\\n")
    (('age', 'sex'), (), ())
    """
    try:
        header = _table(text, rows=False)[0]
    except SchemaError:
        return ()
    lower = {cell.lower() for cell in header}
    named = all(header) and len(lower) == len(header) and not any(map(_is_number, header))
    ours = lower <= {*KEYS, *TRUE_OR_FALSE} or {"name", "kind"} <= lower or _columns(header) is not None
    return tuple(header) if named and not ours else ()


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


def _table(text: str | bytes, *, rows: bool = True) -> tuple[list[str], list[list[str]]]:
    decoded = decoded_text(text)
    try:
        reader = csv.reader(io.StringIO(decoded, newline=""), delimiter=delimiter(decoded), strict=True)
        header = [cell.strip() for cell in next(filter(None, reader), [])]
        found = [row for row in reader if any(cell.strip() for cell in row)] if rows else []
    except csv.Error:
        raise SchemaError("This is no CSV. Check its quotes, and save it so.") from None
    if any(len(row) != len(header) for row in found):
        raise SchemaError(
            "A row has another number of fields than the first line. Put texts with commas or semicolons in quotes."
        )
    return header, found


def _columns(header: Sequence[str]) -> tuple[int, int, int] | None:
    """Places of names, values and meanings, -1 for no meanings; None for a header that is no dictionary's."""
    lower = [cell.lower() for cell in header]
    if "kind" in lower:
        return None
    name, value, label = (
        next((lower.index(w) for w in words if w in lower), -1) for words in (NAMES, VALUES, MEANINGS)
    )
    return None if min(name, value) < 0 else (name, value, label)


def _drafted(name: str, pairs: Sequence[tuple[str, str]], hold: str) -> Attribute:
    span = _SPAN.fullmatch(pairs[0][0]) if len(pairs) == 1 else None
    if span is not None:
        return spanned(name, *sorted(map(int, span.groups())))
    if len(pairs) < 2:
        # so that records whose columns have such names are no dictionary
        raise SchemaError("A column of the dictionary has fewer than two values. Write them all, or a range as 0-99.")
    return Attribute.categorical(name, [meaning if hold == "labels" and meaning else code for code, meaning in pairs])


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


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
