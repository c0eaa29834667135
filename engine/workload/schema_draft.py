"""Schema drafts from data dictionaries.

A draft is a schema that a person confirms. A data dictionary is a CSV file that lists the possible
values of each column of the records, in one of two layouts:

    name,value,label        one row per value; the name can be omitted after its first row
    name,values             one row per column of the records: "F|M", "1 = Female; 2 = Male" or "0-99"

An invalid line or value is reported with its line number; the other columns are drafted. The module
also chooses bins for ranges of numbers, and recognizes files of records.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from engine._format import MAX_NAME, csv_start, header_name, quote_public
from engine._validation import check_choice
from engine.errors import SchemaError
from engine.workload.attribute import MAX_INTEGER, Attribute
from engine.workload.schema import Schema
from engine.workload.schema_io import KEYS, TRUE_OR_FALSE, check_text, decoded_text

# A range of more integers than this is divided into about _INTEGER_BINS bins.
_MAX_INTEGER_CELLS = 200
_INTEGER_BINS = 50
# A range of decimal numbers is divided into about this number of bins.
_DECIMAL_BINS = 20
_MAX_LISTED_REASONS = 5


@dataclass(frozen=True, kw_only=True)
class DraftSchema:
    """Drafted schema that a person must confirm, and the columns for which the draft failed.

    Attributes
    ----------
    schema : drafted attributes.
    unlabelled : names of the columns without an attribute in ``schema``.
    reasons : name of a column without an attribute -> reason why it has none.
    notes : sentences about decisions that the person must check, such as values that were left out.
    """

    schema: Schema
    unlabelled: tuple[str, ...]
    reasons: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def no_attribute(what: str, reasons: Mapping[str, str]) -> SchemaError:
    """Return the error for a public file from which no attribute can be drafted.

    ``what`` is the text for the file in the message. ``reasons`` maps the name of each column to
    the reason why it has no attribute.

    >>> str(no_attribute("these records", {"id": "it has one value only"}))  # doctest: +NORMALIZE_WHITESPACE
    "No attribute can be drafted from these records: 'id': it has one value only. Write the schema
    by hand."
    """
    listed = "; ".join(
        f"{quote_public(name)}: {reason}"
        for name, reason in list(reasons.items())[:_MAX_LISTED_REASONS]
    )
    remainder = (
        f"; and {len(reasons) - _MAX_LISTED_REASONS:,} more"
        if len(reasons) > _MAX_LISTED_REASONS
        else ""
    )
    return SchemaError(
        f"No attribute can be drafted from {what}: {listed}{remainder}. Write the schema by hand."
    )


def integer_range(name: str, low: int, high: int, *, integer: bool = True) -> Attribute:
    """Return a numeric attribute for the integers ``low`` .. ``high``.

    The attribute has one cell per integer or, for more than 200 integers, at most 50 bins of equal
    width. The last bin can be narrower.

    Parameters
    ----------
    integer : whether the attribute declares that all values are integers. If True, the last edge is
        ``high``; if False, the last edge is above ``high``. Treated as False if ``low`` or ``high``
        is beyond the integers that floats represent exactly.

    >>> integer_range("age", 0, 99).size, integer_range("income", 0, 99_999).size
    (100, 50)
    >>> integer_range("age", 0, 99).edges[-3:]
    (98.0, 99.0, 99.0)
    """
    # -(-a // b) is a / b, rounded up.
    step = 1 if high - low < _MAX_INTEGER_CELLS else -(-(high + 1 - low) // _INTEGER_BINS)
    if integer and max(-low, high) <= MAX_INTEGER:
        return Attribute.numeric(name, [*range(low, high + 1, step), high], integer=True)
    return Attribute.numeric(name, [float(edge) for edge in range(low, high + 1 + step, step)])


def decimal_bins(name: str, low: float, high: float) -> Attribute:
    """Return a numeric attribute with 8 to 21 bins for a range of decimal numbers.

    All edges are multiples of the step, which is 1, 2 or 5 times a power of ten. Raises SchemaError
    unless ``low`` < ``high``.

    >>> decimal_bins("share", 0.03, 0.98).edges[:3], decimal_bins("temperature", 10.0, 60.0).size
    ((0.0, 0.05, 0.1), 10)
    """
    smallest_step = (Fraction(high) - Fraction(low)) / _DECIMAL_BINS
    if float(smallest_step) <= 0.0:
        raise SchemaError(
            f"the range of {quote_public(name)} is empty. Write two different numbers, the smaller"
            " one first"
        )
    power = Fraction(10) ** math.floor(math.log10(smallest_step))
    step = next(step for factor in (1, 2, 5, 10) if (step := factor * power) >= smallest_step)
    first, last = math.floor(Fraction(low) / step), math.ceil(Fraction(high) / step)
    return Attribute.numeric(name, [float(multiple * step) for multiple in range(first, last + 1)])


_NAME_HEADERS = ("name", "variable", "variable name", "column", "column name", "field", "attribute")
_VALUE_HEADERS = ("value", "code", "values", "codes", "categories", "labels", "range", "value code")
_LABEL_HEADERS = ("label", "value label", "meaning", "description", "category", "text")
# Limit for the first record of a JSON file, in characters.
_MAX_JSON_RECORD = 1_000_000
# Allowed values of ``hold``: what the records contain if a dictionary has both codes and labels.
HOLD = ("labels", "codes")
# A field is split at the first of these separators that it contains.
_SEPARATORS = ("\n", "|", ";")
_MISSING_LABEL = re.compile(
    r"missing|unknown|no answer|not applicable|not available|n/?a|refus\w*|don'?t know|dk|not"
    r" stated|no response",
    re.IGNORECASE,
)

_NUMBER = r"[-+]?\d+(?:,\d{3})*(?:\.\d+)?"
_RANGE = re.compile(rf"({_NUMBER})\s*(?:-|–|—|\.\.|to)\s*({_NUMBER})")
_OPEN_RANGE = re.compile(
    rf"({_NUMBER})\s*(?:-|–|—|\.\.|to)\s*({_NUMBER})?\s*\+|[<>≤≥].*|{_NUMBER}\s*\+"
)
_INTEGER = re.compile(r"[-+]?\d+")


def draft_from_dictionary(text: str | bytes, *, hold: str = "labels") -> DraftSchema:
    """Draft a schema from a data dictionary, to be confirmed by a person who knows the data.

    A range of at most 200 integers becomes a numeric attribute with one cell per integer. A longer
    range, or a range of decimal numbers, is divided into bins of equal width; the last bin can be
    narrower.

    Parameters
    ----------
    text : data dictionary as CSV text.
    hold : whether the records contain "labels" or "codes", for values that have both.

    Returns
    -------
    draft whose `reasons` and `notes` refer to line numbers of the dictionary.

    Raises
    ------
    SchemaError : if the text is not a data dictionary, or no attribute can be drafted from it.

    >>> draft = draft_from_dictionary("name,value,label\\nsex,1,Female\\n,2,Male\\nage,0-99,\\njob,free text,")
    >>> [(a.name, a.labels, a.size) for a in draft.schema.attributes]
    [('sex', ('Female', 'Male'), 2), ('age', None, 100)]
    >>> draft.reasons
    {'job': 'line 5: the column has fewer than two values. Write all its values, or a range such as 0-99'}
    """
    check_choice("content of the records", hold, HOLD, error=SchemaError)
    reader = _Rows(text)
    positions = _header_positions(reader.header)
    if positions is None:
        raise SchemaError(
            "The file is not a data dictionary: it has no column"
            f" {' or '.join(map(repr, _NAME_HEADERS[:3]))}, or no column"
            f" {' or '.join(map(repr, _VALUE_HEADERS[:3]))}. Rename its columns."
        )
    columns: dict[str, _Column] = {}
    notes: list[str] = []
    name = ""
    for line, row, problem in reader:
        name = (row[positions[0]].strip() if len(row) > positions[0] else "") or name
        if not row or not name:
            notes.append(
                f"line {line}: "
                + (problem or "it has no name. Write the name of the column before its values")
            )
            continue
        column = columns.setdefault(name, _Column(line))
        if problem:
            column.reason = column.reason or f"line {line}: {problem}"
            continue
        value, label = (row[i].strip() if i >= 0 else "" for i in positions[1:])
        column.add(line, value, label)
    attributes, reasons = [], {}
    for name, column in columns.items():
        try:
            attributes.append(column.attribute(name, hold))
            notes += [f"{name}, {note}" for note in column.notes]
        except SchemaError as error:
            reasons[name] = str(error)
    # The file may contain private records, so the error does not quote it.
    if not attributes:
        raise SchemaError(
            "No attribute can be drafted from the dictionary: no column has valid values. Write all"
            " values of a column, at least two, or a range such as 0-99."
        )
    return DraftSchema(
        schema=Schema(attributes), unlabelled=tuple(reasons), reasons=reasons, notes=tuple(notes)
    )


def is_dictionary(text: str | bytes) -> bool:
    """Return whether the first line is the header of a data dictionary.

    >>> is_dictionary("variable,code,label\\n"), is_dictionary("age,sex\\n31,F\\n")
    (True, False)
    """
    try:
        return _header_positions(_Rows(text).header) is not None
    except SchemaError:
        return False


def columns_of_records(text: str | bytes) -> tuple[str, ...]:
    """Return the column names of a CSV file of records; an empty tuple for any other text.

    Only the first line is read. A first line with numbers could be a record, so the result is then
    empty. Columns without a name, such as the row numbers of R and pandas, are omitted.

    >>> columns_of_records("age,sex\\n31,F\\n"), columns_of_records("31,F\\n"), columns_of_records("name,kind\\n")
    (('age', 'sex'), (), ())
    """
    try:
        return _record_columns(_Rows(text).header)
    except SchemaError:
        return ()


def columns_of_json_records(text: str | bytes) -> tuple[str, ...]:
    """Return the keys of the first record in a JSON array or in JSON lines.

    Only the first object is read. The result is empty for any other text, also for a single object
    outside an array, which could be a schema.

    >>> columns_of_json_records('[{"age": 31, "sex": "F"}]'), columns_of_json_records('{"age": 85, "sex": 2}')
    (('age', 'sex'), ())
    """
    try:
        content = decoded_text(text).lstrip()
        is_array = content.startswith("[")
        content = content[is_array:_MAX_JSON_RECORD].lstrip()
        record, end = json.JSONDecoder().raw_decode(content)
    except (SchemaError, ValueError, RecursionError):
        return ()
    if not isinstance(record, dict) or not (is_array or content[end:].lstrip().startswith("{")):
        return ()
    return _record_columns([header_name(key.strip()) for key in record])


def _record_columns(cells: Sequence[str]) -> tuple[str, ...]:
    """Return the names in the header of a file of records; an empty tuple for any other header."""
    header = [cell for cell in cells if cell]
    lower = {cell.lower() for cell in header}
    # A first line with mostly empty cells is a title above the table.
    is_header = len(lower) == len(header) >= len(cells) / 2 and not any(map(_is_number, header))
    is_own_format = (
        lower <= {*KEYS, *TRUE_OR_FALSE}
        or {"name", "kind"} <= lower
        or _header_positions(header) is not None
    )
    return tuple(header) if is_header and not is_own_format else ()


def _header_positions(header: Sequence[str]) -> tuple[int, int, int] | None:
    """Return the positions of the name, value and label columns in the header of a dictionary.

    The position of the label column is -1 if there is none. The result is None if the header is not
    that of a data dictionary.
    """
    lower = [cell.lower() for cell in header]
    if "kind" in lower:
        return None
    name, value, label = (
        next((lower.index(w) for w in words if w in lower), -1)
        for words in (_NAME_HEADERS, _VALUE_HEADERS, _LABEL_HEADERS)
    )
    return None if min(name, value) < 0 else (name, value, label)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


class _Rows:
    """Iterable of the rows of a CSV text: line number, fields, and why the row is invalid.

    The constructor raises SchemaError if the header is not valid CSV.
    """

    def __init__(self, text: str | bytes) -> None:
        decoded = decoded_text(text)
        content, delimiter = csv_start(decoded)
        # csv_start removes a first line such as "sep=;", which only declares the delimiter.
        self.skipped = int(len(content) < len(decoded))
        self.reader = csv.reader(io.StringIO(content, newline=""), delimiter=delimiter, strict=True)
        try:
            self.header = [
                header_name(cell.strip()) for cell in next(filter(None, self.reader), [])
            ]
        except csv.Error:
            raise SchemaError(
                "The file is not valid CSV. Check its quotes, and save it as CSV."
            ) from None

    def __iter__(self) -> Iterator[tuple[int, list[str], str]]:
        """Yield (line number, fields, problem) of each row that is not empty.

        The problem is the reason why the row is invalid; it is empty for a valid row.
        """
        while True:
            line = self.reader.line_num + self.skipped + 1
            row = list[str]()
            problem = ""
            try:
                row = next(self.reader)
            except StopIteration:
                return
            except csv.Error:
                problem = (
                    "its quotes are not closed, or a field is too long; lines after it may be lost"
                )
            if not problem and not any(cell.strip() for cell in row):
                continue
            if not problem and len(row) != len(self.header):
                problem = (
                    f"it has {len(row)} fields under {len(self.header)} columns. Put texts with"
                    " commas or semicolons in quotes"
                )
            yield line, row, problem


@dataclass
class _Column:
    """Values of one column of the records, as listed in a data dictionary.

    Attributes
    ----------
    line : number of the first line about the column.
    values : (line number, code, label) of each value.
    notes : sentences for the person who confirms the draft.
    reason : why no attribute can be drafted; empty if no problem was found.
    """

    line: int
    values: list[tuple[int, str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    reason: str = ""

    def add(self, line: int, value: str, label: str) -> None:
        """Add the values in one row of the dictionary; store the first problem in ``reason``.

        ``value`` is one value, or several with separators, such as "1 = Female; 2 = Male".
        """
        separator = next((mark for mark in _SEPARATORS if mark in value), None)
        parts = [part.strip() for part in value.split(separator)] if separator else [value]
        pairs = [part.partition("=") for part in parts if part]  # (code, "=" or "", meaning)
        with_meaning = [
            (code.strip(), meaning.strip()) for code, equals, meaning in pairs if equals
        ]
        # Only on a line that starts with a range, such as "0-99; -9 = unknown", can some values
        # have a code and others none.
        starts_with_range = bool(pairs) and _RANGE.fullmatch(pairs[0][0].strip()) is not None
        problem = ""
        if 0 < len(with_meaning) < len(pairs) and not starts_with_range:
            without_code = next(text for text, equals, _ in pairs if not equals)
            problem = (
                f"line {line}: {quote_public(without_code)} has no code, but other values on the"
                " line have one. Separate values by | or line breaks"
            )
        elif any("=" in meaning for _, meaning in with_meaning):
            problem = f"line {line}: a value contains the sign = twice. Separate values by |"
        self.reason = self.reason or problem
        self.values += [
            (line, code.strip(), meaning.strip() or label)
            for code, _, meaning in pairs
            if code.strip()
        ]

    def attribute(self, name: str, hold: str) -> Attribute:
        """Return the attribute with these values; raise SchemaError if they do not define one.

        ``hold`` is "labels" or "codes": what the records contain for values that have both.
        """
        if self.reason:
            raise SchemaError(self.reason)
        ranges = [match for _, code, _ in self.values if (match := _RANGE.fullmatch(code))]
        others = [
            (line, code, meaning)
            for line, code, meaning in self.values
            if not _RANGE.fullmatch(code)
        ]
        if len(ranges) == 1 and all(_INTEGER.fullmatch(code) for _, code, _ in others):
            return self._range(name, ranges[0], others)
        line = self.values[0][0] if self.values else self.line
        if len(self.values) == 1 and _OPEN_RANGE.fullmatch(self.values[0][1]):
            code = quote_public(self.values[0][1])
            raise SchemaError(
                f"line {line}: {code} is an open range. Write its last value, as in 0-85, or add"
                " the attribute by hand with bins"
            )
        # A file of records whose header looks like that of a dictionary also fails here, because
        # each of its lines is read as a column with one value.
        if len(self.values) < 2:
            raise SchemaError(
                f"line {line}: the column has fewer than two values. Write all its values, or a"
                " range such as 0-99"
            )
        labels = [
            meaning if hold == "labels" and meaning else code for _, code, meaning in self.values
        ]
        try:
            return Attribute.categorical(name, labels)
        except SchemaError as error:
            raise SchemaError(f"line {line}: {error}") from None

    def _range(
        self, name: str, match: re.Match[str], others: Sequence[tuple[int, str, str]]
    ) -> Attribute:
        """Return the numeric attribute of a range such as 0-99, which ``match`` contains.

        ``others`` are the other values of the column, as (line number, code, label). Each must be
        outside the range and denote a missing value; it gets no cell, and a note is added.
        """
        line = next(line for line, code, _ in self.values if code == match[0])
        texts = [text.replace(",", "") for text in match.groups()]
        low, high = sorted(map(float, texts))
        check_text(name, f"line {line}: the name of the column", MAX_NAME)
        for other_line, code, meaning in others:
            number = int(code)
            if low <= number <= high:
                raise SchemaError(
                    f"line {other_line}: {quote_public(code)} is inside the range"
                    f" {quote_public(match[0])}. Add the attribute by hand with bins"
                )
            if not _MISSING_LABEL.search(meaning):
                raise SchemaError(
                    f"line {other_line}: {quote_public(code)} is outside the range"
                    f" {quote_public(match[0])}, and its label does not denote a missing value."
                    " Add the attribute by hand with bins"
                )
            self.notes.append(
                f"line {other_line}: {code} = {meaning} has no cell, so rows with this value are"
                " dropped"
            )
        if "," in match[0]:
            self.notes.append(f"line {line}: {match[0]} is read as {' to '.join(texts)}")
        try:
            if any("." in text for text in texts):
                return decimal_bins(name, low, high)
            return integer_range(name, *sorted(map(int, texts)))
        except (SchemaError, OverflowError):
            raise SchemaError(
                f"line {line}: the range {quote_public(match[0])} is empty, or its numbers are too"
                " large. Correct it, or add the attribute by hand with bins"
            ) from None
