"""Schema drafts from public records, and public tables as invariants.

`draft_of_public` drafts one attribute per column of public records, such that every value of the
column has a cell or is missing.  If this is not possible, it reports the reason.  After a check
that every column can be read, it passes over the records twice: the first pass collects the
distinct values, the second checks that the drafted attributes encode all rows.

`public_table` and `public_tables` read tables of exact counts that are public already.  They become
the invariants of a schema.
"""

from __future__ import annotations

import csv
import datetime
import io
import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from engine._arrays import Index
from engine._format import csv_start, pluralize, quote_public, shortest_text
from engine.errors import DataError, SchemaError
from engine.records import (
    MISSING,
    Encoder,
    as_source,
    column_names,
    count_marginals,
    days_of,
    number_of,
    read_batches,
    reason_of,
    scalar,
    text_of,
)
from engine.records.subprocess_readers import DATES, column_problems
from engine.workload import DEFAULT_MISSING_TEXTS, Attribute, DraftSchema, Schema
from engine.workload.calendar import cell_number, read_period
from engine.workload.schema_io import MAX_FILE
from engine.workload.schema_tables import decimal_bins, integer_range, no_attribute

# Pair: names of the attributes of a public table, exact counts with one axis per attribute.
PublicTable = tuple[tuple[str, ...], Index]


def public_table(data: Any, schema: Schema) -> PublicTable:
    """Return the attributes and exact counts of a public table, for `Schema.with_facts`.

    Parameters
    ----------
    data : anything with column names that `count_marginals` accepts, such as the path of a CSV
        file.  Some columns are attributes of the schema, with values as in records, and one further
        column contains counts.  Cells without a row have the count 0.

    Raises
    ------
    DataError
        The data cannot be read; or the number of columns that are not attributes is not 1; or a
        value is outside the domain of its attribute; or a count is not a nonnegative integer.

    >>> import pandas as pd
    >>> schema = Schema([Attribute.categorical("region", ["north", "south"])])
    >>> public_table(pd.DataFrame({"region": ["south", "north"], "people": [242, 310]}), schema)[1].tolist()
    [310, 242]
    """
    columns = list(column_names(data))
    names = tuple(c for c in columns if c in schema)
    count_columns = [c for c in columns if c not in schema]
    if len(count_columns) != 1:
        raise DataError(
            f"the public table has {len(columns):,} columns, of which {len(names)} are attributes"
            " of the schema; give columns of attributes, and exactly one column of exact counts"
        )
    plain_schema = replace(schema, person=None, rows_per_person=None, impossible=(), invariants=())
    counts = count_marginals(data, plain_schema, [names], count_column=count_columns[0])
    return names, counts[names]


def public_tables(text: str, schema: Schema) -> list[PublicTable]:
    """Return the public tables in a text: CSV tables with headers, separated by empty lines.

    Raises
    ------
    DataError
        The text is too long; or a table has rows of different lengths or two columns with one name;
        or `public_table` refuses a table.
    """
    if len(text) > MAX_FILE:
        raise DataError(
            f"the public tables have {len(text):,} characters; at most {MAX_FILE:,} are allowed;"
            " give smaller tables"
        )
    return [
        public_table(_parse_table(block), schema)
        for block in re.split(r"\n[ \t]*\n", text.replace("\r\n", "\n").replace("\r", "\n").strip())
        if block
    ]


def _parse_table(block: str) -> pa.Table:
    """Return the columns of a CSV text with a header as an Arrow table of texts."""
    text, delimiter = csv_start(block)
    rows = [row for row in csv.reader(io.StringIO(text), delimiter=delimiter) if row]
    header = [cell.strip() for cell in rows[0]]
    if len(set(header)) < len(header) or any(len(row) != len(header) for row in rows):
        has_duplicates = len(set(header)) < len(header)
        fault = "two columns of the same name" if has_duplicates else "rows of different lengths"
        raise DataError(
            f"the public table that begins with {quote_public(block.splitlines()[0])} has {fault};"
            " give a header with distinct names, and one field per column in every row"
        )
    columns = zip(*rows[1:], strict=True) if len(rows) > 1 else [()] * len(header)
    return pa.table(
        {
            name: pa.array([v.strip() for v in values], pa.string())
            for name, values in zip(header, columns, strict=True)
        }
    )


def public_text(schema: Schema) -> str:
    """Return the invariants of a schema as a text that `public_tables` reads."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for number, invariant in enumerate(schema.invariants):
        if number:
            text.write("\n")
        # name of the count column: "exact", or "exact exact" and so on if an attribute has this
        # name
        count_column = "exact"
        while count_column in schema:
            count_column += " exact"
        writer.writerow([*invariant.attributes, count_column])
        cells = itertools.product(
            *(_values_in_cells(schema[name]) for name in invariant.attributes)
        )
        writer.writerows(
            [*cell, count] for cell, count in zip(cells, invariant.values, strict=True)
        )
    return text.getvalue()


def _values_in_cells(attribute: Attribute) -> Sequence[str]:
    """Return one value per cell: a value that a record in this cell can have."""
    if attribute.labels is not None:
        return attribute.labels
    if attribute.edges is not None:
        return [_number_text(edge, attribute) for edge in attribute.edges[:-1]]
    return [attribute.label(i) for i in range(attribute.size)]


def _number_text(number: float, attribute: Attribute) -> str:
    """Return a number as text, with the decimal sign of the attribute."""
    return shortest_text(number).replace(".", attribute.decimal or ".")


# Largest number of distinct texts in a column for which an attribute is drafted.
MAX_LABELS = 200
# An integer column with at most this number of distinct integers gets one cell per integer; an
# integer column with more gets bins.
MAX_INTEGER_LABELS = 12
# Number of values of a column that a reason quotes as examples.
MAX_EXAMPLES = 3
# Largest integer up to which floats represent every integer; bin edges are floats.
MAX_EXACT = 2**53
# Bins of a column with fractions have integer edges if the range of the column is at least this,
# after its ends are rounded outwards; otherwise the edges have decimals.
MIN_RANGE_WITH_INTEGER_EDGES = 10
# A column of dates has one cell per day if the last date is less than this number of days after the
# first.
MAX_DAYS = 60
# A column of dates over more than `MAX_DAYS` days has one cell per month if the dates are in at
# most this number of months, and otherwise one cell per year.
MAX_MONTHS = 36
# Names of columns that contain row numbers; pandas writes the last two.
UNNAMED = re.compile(r"\s*|Unnamed: 0|__index_level_\d+__")

MISSING_TEXTS = frozenset(
    [
        *("na", "n/a", "n.a.", "#n/a", "<na>", "nan", "null", "none", "nil", "missing", "unknown"),
        *"-–—.?*:",
        "..",
        "--",
    ]
)
_EPOCH = datetime.date(1970, 1, 1)
_DATE = re.compile(
    r"\d{4}([-/.])\d{1,2}\1\d{1,2}([T ].*)?|\d{1,2}([-/.])\d{1,2}\3(\d{4}|\d\d)( .*)?"
)
_GROUPED = re.compile(r"[-+−]?(\d+,\d+|\d{1,3}([.,'’ \u00a0\u202f])\d{3}(\2\d{3})*([.,]\d+)?)")
_GROUPED_BY_POINTS = re.compile(r"[-+]?[1-9]\d{0,2}(\.\d{3})+")
_LEADING_ZERO = re.compile(r"[-+]?0\d")


def draft_of_public(data: Any) -> DraftSchema:
    """Return a schema draft from public records, such as a published sample.

    Use this function for public records only: a schema is public, and in confidential records a
    value that occurs once may identify a person.

    A column becomes an attribute with one cell per value if it has at most 200 distinct texts or at
    most 12 distinct integers.  Other numbers have bins.  Dates, and texts that are ISO dates, have
    one cell per day, month or year, from the first to the last date.  Texts such as NA among
    numbers or dates count as missing values; `DraftSchema.notes` lists these texts and the range of
    dates.  If no attribute is drafted for a column, `DraftSchema.reasons` has the reason.

    Raises
    ------
    DataError
        The data cannot be read.
    SchemaError
        No column gives an attribute.

    >>> import pandas as pd
    >>> draft = draft_of_public(pd.DataFrame({"sex": ["M", "F", "F"], "age": [31, 4, 17], "name": ["Li", "Li", "Li"]}))
    >>> [(a.name, a.size) for a in draft.schema.attributes], draft.reasons
    ([('sex', 2), ('age', 3)], {'name': 'it has one value only'})
    """
    data = as_source(data)
    # a RecordBatchReader yields its rows only once, but the rows are needed twice
    if isinstance(data, pa.RecordBatchReader):
        data = data.read_all()
    columns = list(column_names(data))
    reasons = {
        name: "it contains row numbers or has no name, and is left out"
        for name in columns
        if UNNAMED.fullmatch(name)
    }
    names = [name for name in columns if name not in reasons]
    if isinstance(data, (str, Path)):
        reasons |= column_problems(Path(data))
    reasons = _read_errors(data, names) | reasons
    names = [name for name in names if name not in reasons]
    summaries = {name: _Summary() for name in names}
    for batch in read_batches(data, names):
        for summary, column in zip(summaries.values(), batch.columns, strict=True):
            summary.add(column)
    attributes: dict[str, Attribute] = {}
    for name, summary in summaries.items():
        try:
            attributes[name] = summary.attribute(name)
        except SchemaError as error:
            reasons[name] = str(error)
    reasons |= _values_outside(data, list(attributes.values()))
    drafted = [attribute for name, attribute in attributes.items() if name not in reasons]
    if not drafted:
        raise no_attribute("these records", reasons)
    return DraftSchema(
        schema=Schema(drafted),
        unlabelled=tuple(name for name in columns if name in reasons),
        reasons={name: reasons[name] for name in columns if name in reasons},
        notes=tuple(
            f"{name}: {note}"
            for name, summary in summaries.items()
            for note in summary.notes(None if name in reasons else attributes[name])
        ),
    )


def _read_errors(data: Any, names: Sequence[str]) -> dict[str, str]:
    """Return a mapping from each column that cannot be read to the reason.

    The columns are found by bisection of ``names``.

    Raises
    ------
    DataError
        The file cannot be read even without any column.
    """

    def read_error(columns: Sequence[str]) -> str:
        try:
            next(read_batches(data, columns), None)
        except DataError as error:
            return str(error)
        return ""

    def search(columns: Sequence[str]) -> dict[str, str]:
        text = read_error(columns)
        if not text or len(columns) == 1:
            return {columns[0]: text} if text else {}
        half = len(columns) // 2
        return search(columns[:half]) | search(columns[half:])

    if not names or not read_error(names):
        return {}
    # if the file cannot be read even without columns, this call raises DataError
    next(read_batches(data, []), None)
    return search(names)


class _Summary:
    """Summary of the values of one column, collected batch by batch, to draft its attribute.

    Attributes
    ----------
    labels : text of a value -> its number, or None if the value is not a number; at most
        ``MAX_LABELS + 1`` entries.
    kinds : kinds of values that occur (see `_kind`), as keys of a counter.
    examples : kind -> a few texts of this kind; "points" has numbers such as 1.234, whose points
        may separate thousands.
    reason : reason why no attribute can be drafted; "" if there is none so far.
    low, high : smallest and largest number.
    is_integer : whether all numbers are integers.
    missing : texts in `DEFAULT_MISSING_TEXTS` that occur.
    days : set of the first and the last date; empty if no date occurs.
    only_usual_missing : whether all texts that may mean missing are in `DEFAULT_MISSING_TEXTS`.
    only_iso_dates : whether all dates are ISO dates.
    has_leading_zeros : whether a number is written with leading zeros.
    has_outer_blanks : whether a text begins or ends with a blank.
    has_decimal_points : whether a number has a point that can only be a decimal point.
    """

    def __init__(self) -> None:
        self.labels: dict[str, Any] = {}
        self.kinds: Counter[str] = Counter()
        self.examples: dict[str, list[str]] = {}
        self.reason = ""
        self.low: Any = math.inf
        self.high: Any = -math.inf
        self.is_integer = True
        self.missing: set[str] = set()
        self.days: set[datetime.date] = set()
        self.only_usual_missing = self.only_iso_dates = True
        self.has_leading_zeros = self.has_outer_blanks = self.has_decimal_points = False

    def add(self, column: pa.Array | list[Any]) -> None:
        """Add the values of one batch of rows to the summary.

        If no attribute can be drafted from a value, `reason` is set, and all later values are
        ignored.
        """
        if self.reason:
            return
        if not isinstance(column, list) and (reason := _type_reason(column.type)):
            # a batch without values says nothing about the column
            self.reason = reason if column.null_count < len(column) else ""
            return
        if not isinstance(column, list) and _is_dated(column.type):
            self._add_days(column)
            return
        for value in _distinct_values(column):
            try:
                value = scalar(value)
            except TypeError:
                dated = hasattr(value, "year") or hasattr(value, "hour")
                self.reason = (
                    DATES if dated else "it contains values that are neither text nor numbers"
                )
                return
            if value is not None:
                self._add_value(value)

    def _add_days(self, column: pa.Array) -> None:
        """Add the first and last date of a batch to the summary.

        If one is outside the years 1 to 9999, `reason` is set instead.
        """
        import pyarrow.compute as pc

        if column.null_count == len(column):
            return
        self.kinds["date"] += 1
        extent = pc.min_max(days_of(column))
        try:
            self._extend_days(
                *(_EPOCH + datetime.timedelta(extent[end].as_py()) for end in ("min", "max"))
            )
        except OverflowError:
            self.reason = "it contains dates outside the years 1 to 9999. Correct them"

    def _extend_days(self, *days: datetime.date) -> None:
        """Extend the range from first to last date by ``days``."""
        self.days = (
            {min(*self.days, *days), max(*self.days, *days)}
            if self.days
            else {min(days), max(days)}
        )

    def _add_value(self, value: Any) -> None:
        """Add one value that is not null; do nothing if its text is in `labels` already."""
        text, is_text = text_of(value), isinstance(value, str)
        if text in self.labels:
            return
        number = (
            None
            if isinstance(value, bool) or (is_text and _means_missing(text))
            else number_of(value)
        )
        if is_text:
            kind = _kind(text, number)
        elif number is None:
            kind = "text"
        else:
            kind = "number"
        self.kinds[kind] += 1
        # One label more than MAX_LABELS is stored: it shows that there are too many.
        if len(self.labels) <= MAX_LABELS:
            self.labels[text] = number
        self._add_example(kind, text)
        if kind == "missing":
            self.only_usual_missing &= text in DEFAULT_MISSING_TEXTS
            self.missing |= {text} & set(DEFAULT_MISSING_TEXTS)
        elif kind == "date":
            period = read_period(text)
            if period is None or period.unit != "day":
                self.only_iso_dates = False
            else:
                self._extend_days(period.day)
        self.has_outer_blanks |= text != text.strip()
        if number is None:
            return
        self.low, self.high = min(self.low, number), max(self.high, number)
        self.is_integer &= _is_finite(number) and number == math.floor(number)
        if is_text:
            self._add_number_text(text)

    def _add_number_text(self, text: str) -> None:
        """Record how a number is written as text: leading zeros, and the meaning of its point."""
        self.has_leading_zeros |= _LEADING_ZERO.match(text.strip()) is not None
        may_separate_thousands = _GROUPED_BY_POINTS.fullmatch(text.strip()) is not None
        if may_separate_thousands:
            self._add_example("points", text)
        self.has_decimal_points |= "." in text and not may_separate_thousands

    def _add_example(self, kind: str, text: str) -> None:
        """Store a text as an example of its kind, up to `MAX_EXAMPLES` texts per kind."""
        examples = self.examples.setdefault(kind, [])
        if len(examples) < MAX_EXAMPLES:
            examples.append(text)

    def attribute(self, name: str) -> Attribute:
        """Return the drafted attribute; raise SchemaError with the reason if there is none."""
        if self.reason:
            raise SchemaError(self.reason)
        kinds = set(self.kinds)
        if not kinds:
            raise SchemaError("it has no value")
        if "date" in kinds and kinds <= {"date", "missing"}:
            return self._dates(name)
        if "grouped" in kinds and kinds <= {"number", "missing", "grouped"}:
            raise SchemaError(
                "it contains numbers with a decimal comma or thousands separators, such as"
                f" {self._quoted_examples('grouped')}. Add the attribute by hand and declare its"
                " decimal sign"
            )
        # The point in a text such as 1.234 may separate thousands.  It is a decimal point if the
        # column has a text such as 0.5, whose point cannot separate thousands.
        only_numbers_or_missing = kinds <= {"number", "missing"}
        if "points" in self.examples and not self.has_decimal_points and only_numbers_or_missing:
            raise SchemaError(
                "it contains numbers whose point may be a decimal point or a thousands separator,"
                f" such as {self._quoted_examples('points')}. Add the attribute by hand and declare"
                " its decimal sign"
            )
        # Numbers with leading zeros are codes. They become labels, unless a text may mean a missing
        # value: such a column is refused.
        if (
            "number" in kinds
            and only_numbers_or_missing
            and self.only_usual_missing
            and not self.has_leading_zeros
        ):
            return self._numeric(name)
        if "missing" in kinds and only_numbers_or_missing:
            raise self._missing_error()
        return self._categorical(name, list(self.labels))

    def _missing_error(self) -> SchemaError:
        return SchemaError(
            "it contains texts that may mean a missing value, such as"
            f" {self._quoted_examples('missing')}. Add the attribute by hand and declare which texts"
            " mean missing, or replace these texts by empty fields"
        )

    def _dates(self, name: str) -> Attribute:
        """Return an attribute with one cell per day, month or year, depending on the dates."""
        if not self.only_iso_dates:
            raise SchemaError(DATES)
        if not self.only_usual_missing:
            raise self._missing_error()
        first, last = min(self.days), max(self.days)
        if first == last:
            raise SchemaError("it has only one date")
        months = cell_number(last, "month") - cell_number(first, "month") + 1
        if (last - first).days < MAX_DAYS:
            unit = "day"
        elif months <= MAX_MONTHS:
            unit = "month"
        else:
            unit = "year"
        return Attribute.dates(name, first, last, unit, missing_values=sorted(self.missing))

    def _numeric(self, name: str) -> Attribute:
        """Return an attribute of numbers: one cell per integer for few integers, otherwise bins."""
        labels = [text for text, number in self.labels.items() if number is not None]
        if len(labels) < 2:
            raise SchemaError("it has one value only")
        if not (_is_finite(self.low) and _is_finite(self.high)):
            raise SchemaError(
                "it contains infinite or undefined numbers. Correct them, or add the attribute by"
                " hand with bins"
            )
        if self.low == self.high:
            raise SchemaError("it has only one number, written in several ways such as 1 and 1.0")
        missing = tuple(sorted(self.missing))
        # one cell per integer if there are few integers and each one is always written in one way
        if (
            self.is_integer
            and len({self.labels[text] for text in labels}) == len(labels) <= MAX_INTEGER_LABELS
        ):
            return replace(self._categorical(name, labels), missing_values=missing)
        if max(-self.low, self.high) > MAX_EXACT:
            raise SchemaError(
                f"it contains numbers beyond {MAX_EXACT:,}. Add the attribute by hand, with bins,"
                " or with labels if the numbers are codes"
            )
        low, high = math.floor(self.low), math.ceil(self.high)
        if self.is_integer or high - low >= MIN_RANGE_WITH_INTEGER_EDGES:
            return replace(
                integer_range(name, low, high, integer=self.is_integer), missing_values=missing
            )
        return replace(
            decimal_bins(name, float(self.low), float(self.high)), missing_values=missing
        )

    def _categorical(self, name: str, labels: Sequence[str]) -> Attribute:
        """Return an attribute with one cell per label: numbers in increasing order, then texts."""
        if len(labels) < 2:
            raise SchemaError("it has one value only")
        if len(labels) > MAX_LABELS:
            noun = "codes with leading zeros" if self.has_leading_zeros else "texts"
            raise SchemaError(
                f"it has more than {MAX_LABELS} {noun}. Add the attribute by hand and list its"
                " labels"
            )
        if any(text.isspace() for text in labels):
            raise SchemaError(
                "it has a value that consists of blanks only. Replace it by an empty field, or"
                " correct it"
            )
        if len({text.strip() for text in labels}) < len(labels):
            raise SchemaError(
                "some values differ only in leading or trailing blanks. Remove these blanks"
            )
        return Attribute.categorical(name, sorted(labels, key=self._sort_key))

    def _sort_key(self, text: str) -> tuple[bool, Any, str]:
        """Return the sort key of a label: numbers come in increasing order, then other texts."""
        number = self.labels[text]
        return (True, 0, text) if number is None else (False, number, text)

    def _quoted_examples(self, kind: str) -> str:
        """Return the example texts of a kind, quoted and separated by commas."""
        return ", ".join(map(quote_public, self.examples[kind]))

    def notes(self, attribute: Attribute | None) -> Iterator[str]:
        """Yield sentences for the user about the values and the drafted attribute.

        ``attribute`` is None if no attribute was drafted.
        """
        if self.has_outer_blanks and not self.reason:
            yield "values begin or end with blanks, which are part of the labels"
        if attribute is None:
            return
        if attribute.missing_values:
            yield (
                f"the texts {', '.join(map(quote_public, attribute.missing_values))} count as"
                " missing values"
            )
        if attribute.is_dated:
            yield (
                f"the cells run from {attribute.start} to {attribute.stop}, the first and last"
                " dates in the table"
            )


def _distinct_values(column: pa.Array | list[Any]) -> Iterable[Any]:
    """Return the distinct values of a column.

    The result can contain equal values repeatedly if the column is a list, or has an Arrow type for
    which distinct values cannot be computed.
    """
    if isinstance(column, list):
        return column
    with suppress(pa.ArrowException):
        column = column.unique()
    values: list[Any] = column.to_pylist()
    return values


def _type_reason(kind: pa.DataType) -> str:
    """Return why no attribute can have values of an Arrow type; "" if it can.

    The types with a reason are nested types, times and durations, and dates with dictionary or
    run-end encoding.
    """
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return DATES if pa.types.is_temporal(kind.value_type) else _type_reason(kind.value_type)
    if pa.types.is_temporal(kind):
        return "" if _is_dated(kind) else DATES
    return (
        f"it is of type {kind}. Give one text or number per row" if pa.types.is_nested(kind) else ""
    )


def _is_dated(kind: pa.DataType) -> bool:
    """Return whether an Arrow type is a date, or a date with a time."""
    return bool(pa.types.is_date(kind) or pa.types.is_timestamp(kind))


def _is_finite(number: Any) -> bool:
    """Return whether a number is neither infinite nor nan, without overflow for large integers."""
    return bool(-math.inf < number < math.inf)


def _means_missing(text: str) -> bool:
    return text.strip().lower() in MISSING_TEXTS


def _kind(text: str, number: Any) -> str:
    """Return the kind of a text: "missing", "number", "date", "grouped" or "text".

    "grouped" means a number with thousands separators or a decimal comma.  ``number`` is the number
    in the text, or None if the text is not a number.
    """
    if _means_missing(text):
        return "missing"
    if number is not None:
        return "number"
    stripped = text.strip()
    if _DATE.fullmatch(stripped):
        return "date"
    return "grouped" if _GROUPED.fullmatch(stripped) else "text"


def _values_outside(data: Any, attributes: Sequence[Attribute]) -> dict[str, str]:
    """Check that every value of the records has a cell of the drafted attributes.

    Missing values are allowed.

    Returns
    -------
    dict
        Column -> reason, for each column that has a value without a cell.
    """
    encoders = [Encoder(attribute=attribute) for attribute in attributes]
    refused: dict[str, Counter[int]] = {attribute.name: Counter() for attribute in attributes}
    for batch in read_batches(data, list(refused)) if attributes else ():
        for encoder, column in zip(encoders, batch.columns, strict=True):
            codes = encoder.encode_column(column)
            values, rows = np.unique(codes[codes < MISSING], return_counts=True)
            refused[encoder.attribute.name].update(
                dict(zip(values.tolist(), rows.tolist(), strict=True))
            )
    return {
        name: (
            "the drafted attribute has no cell for "
            + ", ".join(
                f"{pluralize(rows, 'value')} {reason_of(code)}" for code, rows in counts.items()
            )
        )
        for name, counts in refused.items()
        if counts
    }
