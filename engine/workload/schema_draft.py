"""Schema drafts from data dictionaries.

Parts of schema drafts: what a draft holds, bins for a range of numbers, and an empty schema to fill in.

Schemas drafted from data dictionaries, to be confirmed by people.

A dictionary is a CSV with a column of names and, in one of two ways, their values:

    name,value,label        one row per value; the name may stand in the first of its rows only
    name,values             one row per column of the records: "F|M", "1 = Female; 2 = Male" or "0-99"

A line or value that cannot be read is named with its line number, and stops no other column.
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

from engine._format import csv_start, header_name, shown
from engine._validation import one_of
from engine.errors import SchemaError
from engine.workload.attribute import MAX_INTEGER, Attribute
from engine.workload.schema import Schema
from engine.workload.schema_io import KEYS, TRUE_OR_FALSE, decoded_text

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


NAMES = ("name", "variable", "variable name", "column", "column name", "field", "attribute")
VALUES = ("value", "code", "values", "codes", "categories", "labels", "range", "value code")
MEANINGS = ("label", "value label", "meaning", "description", "category", "text")
MAX_JSON_RECORD = 1_000_000  # characters in which the first record of a JSON file must end
HOLD = ("labels", "codes")
SEPARATORS = ("\n", "|", ";")  # of values in one field: the first of these that is there
MISSING_WORDS = re.compile(
    r"missing|unknown|no answer|not applicable|not available|n/?a|refus\w*|don'?t know|dk|not stated|no response",
    re.IGNORECASE,
)

_NUMBER = r"[-+]?\d+(?:,\d{3})*(?:\.\d+)?"
_RANGE = re.compile(rf"({_NUMBER})\s*(?:-|–|—|\.\.|to)\s*({_NUMBER})")
_OPEN_RANGE = re.compile(rf"({_NUMBER})\s*(?:-|–|—|\.\.|to)\s*({_NUMBER})?\s*\+|[<>≤≥].*|{_NUMBER}\s*\+")
_WHOLE = re.compile(r"[-+]?\d+")


def draft_from_dictionary(text: str | bytes, *, hold: str = "labels") -> DraftSchema:
    """Draft a schema from a data dictionary; a person who knows the values confirms every attribute.

    ``hold`` says what the records hold where a value has a code and a label.  A range of whole numbers becomes a
    numeric attribute with one cell per number, or with even bins where that would be more than 200.  `reasons` name
    the columns without an attribute, and `notes` what was left out of the others, with the line of the dictionary.

    Raises: SchemaError for a text that is not a dictionary, or of which no column makes an attribute.

    >>> draft = draft_from_dictionary("name,value,label\\nsex,1,Female\\n,2,Male\\nage,0-99,\\njob,free text,")
    >>> [(a.name, a.labels, a.size) for a in draft.schema.attributes]
    [('sex', ('Female', 'Male'), 2), ('age', None, 100)]
    >>> draft.reasons
    {'job': 'line 5: fewer than two values. Write them all, or a range as 0-99'}
    """
    one_of("content of the records", hold, HOLD, error=SchemaError)
    reader = _Rows(text)
    places = _places(reader.header)
    if places is None:
        raise SchemaError(
            f"This is no data dictionary: it needs a column {' or '.join(NAMES[:3])} and a column "
            f"{' or '.join(VALUES[:3])}. Name them so, or fill in the template."
        )
    columns: dict[str, _Column] = {}
    notes: list[str] = []
    name = ""
    for line, row, problem in reader:
        name = (row[places[0]].strip() if len(row) > places[0] else "") or name
        if not row or not name:
            notes.append(f"line {line}: " + (problem or "it has no name. Write the column's name before its values"))
            continue
        column = columns.setdefault(name, _Column(line))
        if problem:
            column.reason = column.reason or f"line {line}: {problem}"
            continue
        value, label = (row[i].strip() if i >= 0 else "" for i in places[1:])
        column.add(line, value, label)
    attributes, reasons = [], {}
    for name, column in columns.items():
        try:
            attributes.append(column.attribute(name, hold))
            notes += [f"{name}, {note}" for note in column.notes]
        except SchemaError as error:
            reasons[name] = str(error)
    if not attributes:  # this may be a file of records, so that nothing of it is quoted
        raise SchemaError(
            f"No column of the dictionary makes an attribute: {len(reasons):,} of them have fewer than two values or "
            "lines that cannot be read. Write all values, or a range as 0-99."
        )
    return DraftSchema(schema=Schema(attributes), unlabelled=tuple(reasons), reasons=reasons, notes=tuple(notes))


def is_dictionary(text: str | bytes) -> bool:
    """Whether the first line is that of a data dictionary.

    >>> is_dictionary("variable,code,label\\n"), is_dictionary("age,sex\\n31,F\\n")
    (True, False)
    """
    try:
        return _places(_Rows(text).header) is not None
    except SchemaError:
        return False


def columns_of_records(text: str | bytes) -> tuple[str, ...]:
    """Return the column names of a CSV that holds records, not a schema; none when it holds something else.

    Only the first line is read.  One with numbers in it may be a record, and gives none either.  Columns without a
    name, as R and pandas write row numbers, are left out.

    >>> columns_of_records("age,sex\\n31,F\\n"), columns_of_records("31,F\\n"), columns_of_records("name,kind\\n")
    (('age', 'sex'), (), ())
    """
    try:
        return _record_columns(_Rows(text).header)
    except SchemaError:
        return ()


def columns_of_json_records(text: str | bytes) -> tuple[str, ...]:
    """Return the keys of the first record of an array of JSON objects, or of JSON lines; none for other JSON.

    Only the first object is read.  A single object without an array around it may be a schema, and gives none.

    >>> columns_of_json_records('[{"age": 31, "sex": "F"}]'), columns_of_json_records('{"age": 85, "sex": 2}')
    (('age', 'sex'), ())
    """
    try:
        content = decoded_text(text).lstrip()
        is_array = content.startswith("[")
        content = content[is_array:MAX_JSON_RECORD].lstrip()
        record, end = json.JSONDecoder().raw_decode(content)
    except (SchemaError, ValueError, RecursionError):
        return ()
    if not isinstance(record, dict) or not (is_array or content[end:].lstrip().startswith("{")):
        return ()
    return _record_columns([header_name(key.strip()) for key in record])


def _record_columns(cells: Sequence[str]) -> tuple[str, ...]:
    """Return the names in the header of records; none for the header of a schema, a dictionary or another file."""
    header = [cell for cell in cells if cell]
    lower = {cell.lower() for cell in header}
    # a title above a table leaves most cells empty
    named = len(lower) == len(header) >= len(cells) / 2 and not any(map(_is_number, header))
    ours = lower <= {*KEYS, *TRUE_OR_FALSE} or {"name", "kind"} <= lower or _places(header) is not None
    return tuple(header) if named and not ours else ()


def _places(header: Sequence[str]) -> tuple[int, int, int] | None:
    """Places of names, values and meanings, -1 for no meanings; None for the header of another file."""
    lower = [cell.lower() for cell in header]
    if "kind" in lower:
        return None
    name, value, label = (
        next((lower.index(w) for w in words if w in lower), -1) for words in (NAMES, VALUES, MEANINGS)
    )
    return None if min(name, value) < 0 else (name, value, label)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


class _Rows:
    """Rows of a CSV text with their line numbers and problems.  Raises: SchemaError for a header that is no CSV."""

    def __init__(self, text: str | bytes) -> None:
        decoded = decoded_text(text)
        content, delimiter = csv_start(decoded)
        self.skipped = int(len(content) < len(decoded))  # a line that names the delimiter
        self.reader = csv.reader(io.StringIO(content, newline=""), delimiter=delimiter, strict=True)
        try:
            self.header = [header_name(cell.strip()) for cell in next(filter(None, self.reader), [])]
        except csv.Error:
            raise SchemaError("This is no CSV. Check its quotes, and save it so.") from None

    def __iter__(self) -> Iterator[tuple[int, list[str], str]]:
        """Line number, fields and problem of each row that is not empty."""
        while True:
            line, row, problem = self.reader.line_num + self.skipped + 1, list[str](), ""
            try:
                row = next(self.reader)
            except StopIteration:
                return
            except csv.Error:
                problem = "its quotes are not closed, or a field is too long; lines after it may be lost"
            if not problem and not any(cell.strip() for cell in row):
                continue
            if not problem and len(row) != len(self.header):
                problem = (
                    f"it has {len(row)} fields under {len(self.header)} columns. Put texts with commas or semicolons "
                    "in quotes"
                )
            yield line, row, problem


@dataclass
class _Column:
    """Values of one column of the records, as a dictionary lists them."""

    line: int
    values: list[tuple[int, str, str]] = field(default_factory=list)  # line, code, meaning
    notes: list[str] = field(default_factory=list)
    reason: str = ""

    def add(self, line: int, value: str, label: str) -> None:
        """Take the values of a row: a single one, or several with a separator between them."""
        separator = next((one for one in SEPARATORS if one in value), None)
        parts = [part.strip() for part in value.split(separator)] if separator else [value]
        pairs = [part.partition("=") for part in parts if part]
        with_meaning = [(code.strip(), meaning.strip()) for code, equals, meaning in pairs if equals]
        if with_meaning and len(with_meaning) < len(pairs) and not _RANGE.fullmatch(pairs[0][0].strip()):
            part = next(code for code, equals, _ in pairs if not equals)
            self.reason = self.reason or (
                f"line {line}: {shown(part)} has no code, unlike other values. Separate values by | or line breaks"
            )
        if any("=" in meaning for _, meaning in with_meaning):
            self.reason = self.reason or f"line {line}: a value has two signs =. Separate values by |"
        self.values += [(line, code.strip(), meaning.strip() or label) for code, _, meaning in pairs if code.strip()]

    def attribute(self, name: str, hold: str) -> Attribute:
        """Return the attribute that the values make.  Raises: SchemaError with the line of the problem."""
        if self.reason:
            raise SchemaError(self.reason)
        ranges = [span for _, code, _ in self.values if (span := _RANGE.fullmatch(code))]
        others = [value for value in self.values if not _RANGE.fullmatch(value[1])]
        if len(ranges) == 1 and all(_WHOLE.fullmatch(code) for _, code, _ in others):
            return self._range(name, ranges[0], others)
        line = self.values[0][0] if self.values else self.line
        if len(self.values) == 1 and _OPEN_RANGE.fullmatch(self.values[0][1]):
            code = shown(self.values[0][1])
            raise SchemaError(
                f"line {line}: {code} is an open range. Write its last value, as in 0-85, or bins by hand"
            )
        if len(self.values) < 2:  # so that records whose columns have such names are not a dictionary
            raise SchemaError(f"line {line}: fewer than two values. Write them all, or a range as 0-99")
        labels = [meaning if hold == "labels" and meaning else code for _, code, meaning in self.values]
        try:
            return Attribute.categorical(name, labels)
        except SchemaError as error:
            raise SchemaError(f"line {line}: {error}") from None

    def _range(self, name: str, span: re.Match[str], others: Sequence[tuple[int, str, str]]) -> Attribute:
        """Return the attribute of a range; a code of missing values behind it is left out, and noted."""
        line = next(line for line, code, _ in self.values if code == span[0])
        texts = [text.replace(",", "") for text in span.groups()]
        low, high = sorted(map(float, texts))
        for place, code, meaning in others:
            number = int(code)
            if low <= number <= high:
                raise SchemaError(
                    f"line {place}: {shown(code)} is inside the range {shown(span[0])}. Write bins by hand"
                )
            if not MISSING_WORDS.search(meaning):
                raise SchemaError(
                    f"line {place}: {shown(code)} is beside the range {shown(span[0])}, and its meaning is not that it "
                    "is missing. Write bins by hand"
                )
            self.notes.append(f"line {place}: {code} = {meaning} is left out, so that rows with it are refused")
        if "," in span[0]:
            self.notes.append(f"line {line}: {span[0]} is read as {' to '.join(texts)}")
        try:
            if any("." in text for text in texts):
                return decimal_bins(name, low, high)
            return spanned(name, *sorted(map(int, texts)))
        except (SchemaError, OverflowError):
            raise SchemaError(f"line {line}: {shown(span[0])} is no range of numbers. Write bins by hand") from None
