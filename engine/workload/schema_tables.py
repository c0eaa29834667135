"""Schemas from data dictionaries, and attributes as the rows of a grid.

A draft is a schema that a person confirms. A data dictionary is a CSV file that lists the possible
values of each column of the records, in one of two layouts:

    name,value,label        one row per value; the name can be omitted after its first row
    name,values             one row per column of the records: "F|M", "1 = Female; 2 = Male" or "0-99"

An invalid line or value is reported with its line number; the other columns are drafted. The module
also chooses bins for ranges of numbers, and recognizes files of records.

**Rows of the grid.**  A person can edit the attributes as rows of texts. A row has a name, a type, and the
possible values as one text. The syntax of the values depends on the type:

    type             values
    labels           F | M                  texts, separated by |; see below
                     North, South           words, separated by commas, if no | occurs
    bins             0, 18, 65, 120         edges of bins
                     0:100:20               first edge : last edge : step; both forms can be mixed
    dates            2024-01:2024-12:month  first and last period, and the unit of a cell
    codes            10                     number of codes 0, 1, 2, ...
    ordered codes    10                     codes whose order has a meaning; only these have ranges

All other entries of a row are optional; hierarchies are JSON text. A row with a name and without
values is incomplete. Inside a label, | and backslash are written with a backslash before them, and
so are a blank at the start or end of a label, and a comma in the only label of an attribute.

A row without a type has labels if its values are separated by |, or are at least two words
separated by commas. A word starts with a letter and is not a number.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from engine._format import MAX_NAME, csv_start, header_name, quote_public, shortest_text
from engine._untrusted import parse_json
from engine._validation import check_choice
from engine.errors import SchemaError
from engine.workload.attribute import MAX_CELLS, MAX_INTEGER, Attribute
from engine.workload.schema import Schema
from engine.workload.schema_io import (
    DATE_KIND,
    HIERARCHIES_KEY,
    KEYS,
    TRUE_OR_FALSE,
    check_text,
    decoded_text,
)

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


LABELS, BINS, DATES, CODES, ORDERED_CODES = "labels", "bins", "dates", "codes", "ordered codes"
ROW_TYPES = (LABELS, BINS, DATES, CODES, ORDERED_CODES)
# Optional entries of a row. A schema CSV has columns with the same names.
COMMON_KEYS = (
    "other",
    "missing",
    "missing_values",
    "clip",
    "integer",
    "decimal",
    "thousands",
    "date_format",
)
ROW_KEYS = ("name", "type", "values", *COMMON_KEYS, HIERARCHIES_KEY)
FLAGS = ("clip", "integer")  # entries that are "true", "false" or empty
# Up to this number of equally spaced edges are written one by one instead of first:last:step.
MIN_STEPS = 3
MAX_EXAMPLE_LABELS = 5  # in an error message
MAX_EXAMPLE_VALUES = 12  # integers of an interval that an error message lists as values
_SEPARATOR = re.compile(r"[,\s|]+")
# An interval that is no list of edges, such as 18-94, 18 to 94 or 0-120:5.
_INTERVAL = re.compile(
    r"(-?\d+(?:\.\d+)?)\s*(?:-|–|—|\bto\b|\.\.)\s*(-?\d+(?:\.\d+)?)(?:\s*:\s*(\d+(?:\.\d+)?))?"
)
_SEPARATOR_OF_BINS = re.compile(r"[,;|\n]")
_TOKEN = re.compile(r"\\.|[|,]|[^|,\\]+|\\", re.DOTALL)


def attribute_row(attribute: Attribute) -> dict[str, str]:
    """Return an attribute as a row; optional entries that the attribute does not use are empty.

    >>> row = attribute_row(Attribute.numeric("age", [0, 20, 40, 60, 80, 100], clip=True))
    >>> row["type"], row["values"], row["clip"]
    ('bins', '0:100:20', 'true')
    """
    document = attribute.to_dict()
    row = dict.fromkeys(ROW_KEYS, "") | {"name": attribute.name}
    if attribute.labels is not None:
        row |= {"type": LABELS, "values": _labels_text(attribute.labels)}
    elif attribute.edges is not None:
        row |= {"type": BINS, "values": edges_text(attribute.edges)}
    elif attribute.is_dated:
        row |= {"type": DATES, "values": f"{attribute.start}:{attribute.stop}:{attribute.unit}"}
    else:
        is_ordered = attribute.kind == "numeric"
        row |= {"type": ORDERED_CODES if is_ordered else CODES, "values": str(attribute.size)}
    for key in COMMON_KEYS:
        if (value := document.get(key)) is not None:
            row[key] = _entry(value)
    if attribute.hierarchies:
        row[HIERARCHIES_KEY] = _hierarchies_text(document[HIERARCHIES_KEY], attribute.labels)
    return row


def _entry(value: object) -> str:
    """Return the value of an optional entry as text."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return _joined(value)
    return shortest_text(value) if isinstance(value, float) else str(value)


def _hierarchies_text(documents: Any, labels: Sequence[str] | None) -> str:
    """Return hierarchies as JSON text.

    With labels, the areas of the cells are a mapping from label to area, so that a person can
    reorder labels.
    """
    if labels is not None:
        documents = [
            document | {"areas": dict(zip(labels, document["areas"], strict=True))}
            for document in documents
        ]
    return json.dumps(documents, ensure_ascii=False)


_INVALID_HIERARCHIES = (
    "the hierarchies are not a JSON list of hierarchies; read the code list again"
)


def _parsed_hierarchies(text: str, labels: Sequence[str] | None) -> Any:
    """Return the descriptions of the hierarchies in a text that `_hierarchies_text` wrote.

    With labels, the mapping from label to area becomes a list: the area of each label. Raises
    SchemaError if a label has no area, or the text is not valid.
    """
    try:
        documents = parse_json(text)
        areas = [document["areas"] for document in documents]
    except (KeyError, TypeError, ValueError):
        raise SchemaError(_INVALID_HIERARCHIES) from None
    if labels is None:
        return documents
    try:
        return [
            document | {"areas": [areas_by_label[label] for label in labels]}
            for document, areas_by_label in zip(documents, areas, strict=True)
        ]
    except KeyError as error:
        raise SchemaError(
            f"the hierarchy of the attribute has no area for the label"
            f" {quote_public(error.args[0])}; correct the label, or read a code list that"
            " contains it"
        ) from None
    except TypeError:
        raise SchemaError(_INVALID_HIERARCHIES) from None


def _joined(texts: Sequence[str]) -> str:
    """Return texts as one text with separators |; `_split` is the inverse."""
    return " | ".join(map(_escaped, texts))


def _labels_text(labels: Sequence[str]) -> str:
    """Return labels as one text that `_parsed_labels` reads."""
    text = _joined(labels)
    # `_parsed_labels` splits a text without | at its commas.
    return text.replace(",", "\\,") if len(labels) == 1 else text


def _parsed_labels(values: str) -> list[str]:
    """Return the labels in a text: separated by |, or by commas if the text has no separator |."""
    separator = "|" if _has_bar(values) else ","
    return _split(values, separator)


def _has_bar(values: str) -> bool:
    """Return whether a text contains a | without a backslash before it."""
    return "|" in _TOKEN.findall(values)


def _is_word_list(values: str) -> bool:
    """Return whether a text is at least two words separated by commas.

    >>> _is_word_list("North, South"), _is_word_list("North, 3"), _is_word_list("0-17, 18-64")
    (True, False, False)
    """
    words = _split(values, ",")
    return len(words) > 1 and all(word[:1].isalpha() and not _is_number(word) for word in words)


def _escaped(text: str) -> str:
    text = text.replace("\\", "\\\\").replace("|", "\\|")
    stripped = text.strip()
    start, end = text[: len(text) - len(text.lstrip())], text[len(text.rstrip()) :]
    if not stripped:
        return "".join(f"\\{blank}" for blank in text)
    return "".join(f"\\{blank}" for blank in start) + stripped + "".join(f"\\{b}" for b in end)


def _split(text: str, separator: str = "|") -> list[str]:
    """Return the texts between the separators, | or a comma, without blanks around them.

    A backslash makes the next character part of a text, also a separator or a blank.
    """
    parts: list[list[str]] = [[]]
    for token in _TOKEN.findall(text):
        if token == separator:
            parts.append([])
        else:
            parts[-1].append(token)
    return [_unescaped(tokens) for tokens in parts]


def _unescaped(tokens: list[str]) -> str:
    """Join tokens to one text. A token is a plain text, or a backslash and one escaped character.

    The backslashes of escapes, and blanks at the ends that are not escaped, are left out.
    """
    if tokens and not tokens[0].startswith("\\"):
        tokens[0] = tokens[0].lstrip()
    if tokens and not tokens[-1].startswith("\\"):
        tokens[-1] = tokens[-1].rstrip()
    return "".join(token[1:] if len(token) == 2 and token[0] == "\\" else token for token in tokens)


def is_incomplete(row: Mapping[str, str]) -> bool:
    """Return whether a row has a name, but no values yet."""
    return bool(row.get("name", "").strip()) and not row.get("values", "").strip()


def attribute_of_row(row: Mapping[str, str]) -> Attribute:
    """Return the attribute that a row describes; raise SchemaError if an entry is not valid.

    If the row has no type, the type is inferred from the syntax of its values.

    >>> attribute_of_row({"name": "sex", "values": "F | M"}).labels
    ('F', 'M')
    >>> attribute_of_row({"name": "age", "values": "0:100:25", "integer": "true"}).edges
    (0.0, 25.0, 50.0, 75.0, 100.0)
    """
    values = row.get("values", "").strip()
    kind = row.get("type", "") or _type_of(values)
    document: dict[str, Any] = {"name": row.get("name", "")}
    for key in COMMON_KEYS:
        if text := row.get(key, ""):
            document[key] = _parsed_entry(key, text, kind)
    if kind == LABELS:
        document |= {"kind": "categorical", "labels": _parsed_labels(values)}
    elif kind == BINS:
        document |= {"kind": "numeric", "edges": parse_edges(values)}
    elif kind == DATES:
        document |= {"kind": DATE_KIND} | _date_texts(values)
    elif kind in (CODES, ORDERED_CODES):
        if not values.isdecimal():
            raise SchemaError(
                f"the number of codes is {quote_public(values)}; write a whole number, 1 or more"
            )
        document |= {
            "kind": "numeric" if kind == ORDERED_CODES else "categorical",
            "size": int(values),
        }
    else:
        raise SchemaError(
            f"the type {quote_public(kind)} is unknown; choose one of {', '.join(ROW_TYPES)}"
        )
    if text := row.get(HIERARCHIES_KEY, ""):
        document[HIERARCHIES_KEY] = _parsed_hierarchies(text, document.get("labels"))
    return Attribute.from_dict(document)


def _parsed_entry(key: str, text: str, kind: str) -> Any:
    """Return the value of an optional entry: true or false, a list of texts, a number or a text."""
    if key in FLAGS:
        if text not in ("true", "false"):
            raise SchemaError(f"{key} is {quote_public(text)}; choose true or false")
        return text == "true"
    if key == "missing_values":
        return _split(text)
    if key == "missing" and kind == BINS:
        try:
            return float(text)
        except ValueError:
            raise SchemaError(
                f"the replacement of missing values is {quote_public(text)}, but the attribute has"
                " bins; write a number. To count missing values in a separate bin, add an edge"
                " below the first one, such as -1 before 0, and write this number"
            ) from None
    return text


def _type_of(values: str) -> str:
    """Return the type of a row, inferred from the syntax of its values."""
    if _has_bar(values) or _is_word_list(values):
        return LABELS
    parts = values.split(":")
    if len(parts) == 3 and parts[2].strip().isalpha():
        return DATES
    return CODES if values.isdecimal() else BINS


def _date_texts(values: str) -> dict[str, str]:
    parts = [part.strip() for part in values.split(":")]
    if len(parts) != 3:
        raise SchemaError(
            f"the dates {quote_public(values)} are not of the form first:last:unit; write dates "
            "such as 2024-01:2024-12:month"
        )
    return dict(zip(("start", "stop", "unit"), parts, strict=True))


def parse_edges(text: str) -> list[float]:
    """Return bin edges from a text with numbers, with ranges first:last:step, or with both.

    Raises
    ------
    SchemaError : if an entry is neither a number nor a range, or if a range has no bin, too many
        bins, or steps that do not end at its last edge.

    >>> parse_edges("0, 18, 65"), parse_edges("0:100:50, 120")
    ([0.0, 18.0, 65.0], [0.0, 50.0, 100.0, 120.0])
    """
    edges: list[float] = []
    try:
        for part in filter(None, _SEPARATOR.split(text.strip())):
            numbers = [float(number) for number in part.split(":")]
            if len(numbers) not in (1, 3):
                raise ValueError
            edges += numbers if len(numbers) == 1 else _even_edges(*numbers)
    except SchemaError:  # is also a ValueError
        raise
    except ValueError:
        advice = f"write {_edges_example(text)}"
        if _INTERVAL.fullmatch(text.strip()) is None:
            advice = f"for labels, write {_labels_example(text)}; for bins, {advice}"
        raise SchemaError(f"{quote_public(text)} is not a list of bin edges; {advice}") from None
    return edges


def _edges_example(text: str) -> str:
    """Return the bins of a text such as 0-17, 18-64 as edges, as an example for error messages.

    >>> _edges_example("0-17, 18-64, 65-100")
    '0, 18, 65, 100'
    >>> _edges_example("18 to 94")
    '18:95:1 (bins of width 1) or 18, 94 (one bin)'
    >>> _edges_example("1-3")
    '1 | 2 | 3 (one value each) or 1, 3 (one bin)'
    """
    ranges = [_INTERVAL.fullmatch(entry.strip()) for entry in _SEPARATOR_OF_BINS.split(text)]
    intervals = [(float(match[1]), float(match[2])) for match in ranges if match is not None]
    edges = [*(first for first, _ in intervals), *(last for _, last in intervals[-1:])]
    is_increasing = all(low < high for low, high in itertools.pairwise(edges))
    # There is a gap unless each interval begins at the end of the previous one, or 1 above it.
    has_gap = any(
        start - end not in (0.0, 1.0) for (_, end), (start, _) in itertools.pairwise(intervals)
    )
    if len(intervals) < len(ranges) or not is_increasing or has_gap:
        return "edges such as 0, 18, 65, 120, or first edge:last edge:step such as 0:120:10"
    listed = ", ".join(map(shortest_text, edges))
    if len(intervals) > 1:
        return listed
    low, high = edges
    step = ranges[0][3] if ranges[0] is not None else None
    if step is None and low.is_integer() and high.is_integer():
        if high - low < MAX_EXAMPLE_VALUES:
            values = " | ".join(str(number) for number in range(int(low), int(high) + 1))
            return f"{values} (one value each) or {listed} (one bin)"
        # the last bin includes its upper edge, so that a last edge ``high`` would put the two
        # largest integers into one bin
        high += 1.0
    bins = f"{shortest_text(low)}:{shortest_text(high)}:{step or 1}"
    return f"{bins} (bins of width {step or 1}) or {listed} (one bin)"


def _labels_example(text: str) -> str:
    """Return the first words of a text, separated by |, as an example of labels.

    If there are fewer than two words, or all are numbers or contain a colon, the example is F | M.
    """
    separator = next((mark for mark in ",;/\n" if mark in text), None)
    words = [word.strip() for word in text.split(separator) if word.strip()]
    if len(words) < 2 or all(":" in word or _is_number(word) for word in words):
        return "F | M"
    shown = words[:MAX_EXAMPLE_LABELS]
    return _joined(shown) + (" | ..." if len(words) > len(shown) else "")


def _even_edges(first: float, last: float, step: float) -> list[float]:
    """Return the edges from ``first`` to ``last`` in steps of ``step``.

    Raises SchemaError if there is no bin, if there are more than `MAX_CELLS` bins, or if the last
    step does not end at ``last``.
    """
    if not step > 0 or not first < last:
        raise SchemaError(
            f"the bin edges {first:g}:{last:g}:{step:g} make no bins; write first edge:last"
            " edge:step with a last edge above the first one, and a step above 0"
        )
    if (last - first) / step > MAX_CELLS:
        raise SchemaError(
            f"the bin edges {first:g}:{last:g}:{step:g} make more than {MAX_CELLS:,} bins; write a"
            " larger step"
        )
    bins = round((last - first) / step)
    if abs(first + bins * step - last) > 1e-9 * max(abs(first), abs(last)):
        # ``fewer`` steps end below ``last``, and one step more ends above it.
        fewer = math.floor((last - first) / step)
        examples = [
            f"{first:.10g}:{first + steps * step:.10g}:{step:.10g}"
            for steps in (fewer, fewer + 1)
            if steps > 0
        ]
        raise SchemaError(
            f"the bin edges {first:.10g}:{last:.10g}:{step:.10g} do not reach {last:.10g} in steps"
            f" of {step:.10g}; write {' or '.join(examples)}"
        )
    return [*(first + i * step for i in range(bins)), last]


def edges_text(edges: Sequence[float]) -> str:
    """Return bin edges as a text that `parse_edges` reads.

    The text has the form first:last:step if there are at least three equally wide bins and
    `parse_edges` reads exactly these edges from it. If only the last bin has another width, its
    upper edge follows as a number. In all other cases the text lists every edge.

    >>> edges_text([0, 18, 65]), edges_text([0, 1, 2, 3, 4, 9])
    ('0, 18, 65', '0:4:1, 9')
    """
    numbers = list(map(float, edges))
    # Try all edges as one range first:last:step, then all edges except the last one.
    for n_single in (0, 1):
        even = numbers[: len(numbers) - n_single]
        if len(even) <= MIN_STEPS:
            continue
        span = ":".join(map(shortest_text, (even[0], even[-1], even[1] - even[0])))
        text = ", ".join([span, *map(shortest_text, numbers[len(even) :])])
        try:
            if parse_edges(text) == numbers:
                return text
        except SchemaError:
            pass
    return ", ".join(map(shortest_text, numbers))
