"""Schema draft from records that are declared public.

Each column becomes an attribute whose cells contain all of its values except the missing ones, or
is left to the user, with the reason.  There are two passes: the first summarizes the distinct
values, the second encodes all rows with the draft.

Public tables for invariants and schema drafts.
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
    REASONS,
    Encoder,
    as_source,
    column_names,
    count_marginals,
    days_of,
    number_of,
    read_batches,
    scalar,
    text_of,
)
from engine.records.subprocess_readers import DATES, column_problems
from engine.workload import DEFAULT_MISSING_TEXTS, Attribute, DraftSchema, Schema
from engine.workload.calendar import cell_number, read_period
from engine.workload.schema_draft import decimal_bins, integer_range, no_attribute
from engine.workload.schema_io import MAX_FILE

PublicTable = tuple[tuple[str, ...], Index]


def public_table(data: Any, schema: Schema) -> PublicTable:
    """Return attributes and exact counts of a public table, for `Schema.with_facts`.

    ``data`` is anything with column names that `count_marginals` accepts, such as the path of a CSV
    file: columns of attributes, with values as in records, and one column of counts.  Cells without
    a row have the count 0.

    Raises
    ------
    DataError
        There are other columns, or a value is outside the domain.

    >>> import pandas as pd
    >>> schema = Schema([Attribute.categorical("region", ["north", "south"])])
    >>> public_table(pd.DataFrame({"region": ["south", "north"], "people": [242, 310]}), schema)[1].tolist()
    [310, 242]
    """
    columns = list(column_names(data))
    names, others = (
        tuple(c for c in columns if c in schema),
        [c for c in columns if c not in schema],
    )
    if len(others) != 1:
        raise DataError(
            f"the public table has {len(columns):,} columns, of which {len(names)} are attributes"
            " of the schema; give those of its attributes, and one of exact counts"
        )
    plain_schema = replace(schema, person=None, rows_per_person=None, impossible=(), invariants=())
    return names, count_marginals(data, plain_schema, [names], count_column=others[0])[names]


def public_tables(text: str, schema: Schema) -> list[PublicTable]:
    """Return the public tables in a text: CSV tables with headers, separated by empty lines.

    Raises
    ------
    DataError
        The text is too long, or does not contain such tables.
    """
    if len(text) > MAX_FILE:
        raise DataError(f"public tables of {len(text):,} characters; at most {MAX_FILE:,} are read")
    return [
        public_table(_columns(block), schema)
        for block in re.split(r"\n[ \t]*\n", text.replace("\r\n", "\n").replace("\r", "\n").strip())
        if block
    ]


def _columns(block: str) -> pa.Table:
    text, delimiter = csv_start(block)
    rows = [row for row in csv.reader(io.StringIO(text), delimiter=delimiter) if row]
    header = [cell.strip() for cell in rows[0]]
    if len(set(header)) < len(header) or any(len(row) != len(header) for row in rows):
        raise DataError(
            f"the public table that begins with {quote_public(block.splitlines()[0])} has rows of"
            " different lengths, or a column twice; give a header, and one field for every column"
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
        counts = next(
            name
            for name in itertools.accumulate(itertools.repeat("exact"), "{} {}".format)
            if name not in schema
        )
        writer.writerow([*invariant.attributes, counts])
        cells = itertools.product(*(_values(schema[name]) for name in invariant.attributes))
        writer.writerows(
            [*cell, count] for cell, count in zip(cells, invariant.values, strict=True)
        )
    return text.getvalue()


def _values(attribute: Attribute) -> Sequence[str]:
    """Return one value of every cell, as in records."""
    if attribute.labels is not None:
        return attribute.labels
    if attribute.edges is not None:
        return [_written(edge, attribute) for edge in attribute.edges[:-1]]
    return [attribute.label(i) for i in range(attribute.size)]


def _written(number: float, attribute: Attribute) -> str:
    """Return a number as text, with the decimal sign of the schema."""
    return shortest_text(number).replace(".", attribute.decimal or ".")


# Limit of distinct texts of a column.
MAX_LABELS = 200
# Limit of distinct integers of a column with one cell each.
MAX_INTEGER_LABELS = 12
MAX_EXAMPLES = 3
# Floats, and so edges, represent every integer up to this value.
MAX_EXACT = 2**53
# A range of fractions with fewer integers has decimal bins.
FEW_INTEGER_CELLS = 10
# Limit of days from the first to the last date with one cell each.
MAX_DAYS = 60
# Limit of months from the first to the last date with one cell each.
MAX_MONTHS = 36
# pandas names a column of row numbers like the last two.
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

SEPARATORS = (
    "it holds numbers with a decimal comma or thousands separators, such as {}. Say by hand how"
    " they are read"
)
MAYBE_MISSING = (
    "it holds texts that may mean missing, such as {}. Say by hand which texts mean missing, "
    "or write them as empty fields"
)


def draft_of_public(data: Any) -> DraftSchema:
    """Return a schema draft from public records, such as a published sample.

    The user confirms every attribute.  Up to 200 texts, or up to 12 integers, have one cell each;
    other numbers have bins.  Dates (ISO dates in texts) have one cell per day, month or year, from
    the first to the last.  Texts such as NA among numbers or dates mean missing;
    `DraftSchema.notes` lists them, and the range of dates.  A column without an attribute that
    contains all of its values is left to the user; `DraftSchema.reasons` has the reason.  Use this
    function for public records only: in confidential ones, a value that occurs once identifies a
    person.

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
    if isinstance(
        data, pa.RecordBatchReader
    ):  # which gives its rows once, and two passes are needed
        data = data.read_all()
    columns = list(column_names(data))
    reasons = {
        name: "row number or column without a name, left out"
        for name in columns
        if UNNAMED.fullmatch(name)
    }
    names = [name for name in columns if name not in reasons]
    if isinstance(data, (str, Path)):
        reasons |= column_problems(Path(data))
    reasons = _unreadable(data, names) | reasons
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
    reasons |= _misfits(data, list(attributes.values()))
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


def _unreadable(data: Any, names: Sequence[str]) -> dict[str, str]:
    """Return the columns that cannot be read, such as nested or duplicate ones, with the reasons.

    Raises
    ------
    DataError
        The file cannot be read at all.
    """

    def problem(some: Sequence[str]) -> str:
        try:
            next(read_batches(data, some), None)
        except DataError as error:
            return str(error)
        return ""

    def search(some: Sequence[str]) -> dict[str, str]:
        text = problem(some)
        if not text or len(some) == 1:
            return {some[0]: text} if text else {}
        half = len(some) // 2
        return search(some[:half]) | search(some[half:])

    if not names or not problem(names):
        return {}
    next(read_batches(data, []), None)  # raises where the problem is not one of single columns
    return search(names)


class _Summary:
    """Distinct values of a column, in the forms that the encoder compares with labels and edges."""

    def __init__(self) -> None:
        self.labels: dict[
            str, Any
        ] = {}  # text of a label, with its number or None; at most MAX_LABELS + 1
        self.kinds: Counter[str] = Counter()  # distinct values by kind
        self.examples: dict[str, list[str]] = {}
        self.reason = ""  # of a column that no attribute can take
        self.low: Any = math.inf
        self.high: Any = -math.inf
        self.is_integer = True
        self.missing: set[str] = set()  # those of the texts in USUAL_MISSING that occur
        self.days: set[datetime.date] = set()  # the first and the last one
        self.only_usual_missing = self.only_iso_dates = True
        self.leading_zeros = self.ends_blank = self.points = self.decimals = False

    def add(self, column: pa.Array | list[Any]) -> None:
        """Take the values of one batch."""
        if self.reason:
            return
        if not isinstance(column, list) and (reason := _type_reason(column.type)):
            self.reason = reason if column.null_count < len(column) else ""
            return
        if not isinstance(column, list) and _is_dated(column.type):
            self._take_days(column)
            return
        for value in _distinct(column):
            try:
                value = scalar(value)
            except TypeError:
                dated = hasattr(value, "year") or hasattr(value, "hour")
                self.reason = (
                    DATES if dated else "it holds values that are neither text nor numbers"
                )
                return
            if value is not None:
                self._take(value)

    def _take_days(self, column: pa.Array) -> None:
        """Take a batch of dates or times."""
        import pyarrow.compute as pc

        if column.null_count == len(column):
            return
        self.kinds["date"] += 1
        extent = pc.min_max(days_of(column))
        try:
            self._extend(
                *(_EPOCH + datetime.timedelta(extent[end].as_py()) for end in ("min", "max"))
            )
        except OverflowError:
            self.reason = "it holds dates beyond the years 1 to 9999. Correct them"

    def _extend(self, *days: datetime.date) -> None:
        self.days = (
            {min(*self.days, *days), max(*self.days, *days)}
            if self.days
            else {min(days), max(days)}
        )

    def _take(self, value: Any) -> None:
        text, is_text = text_of(value), isinstance(value, str)
        if text in self.labels:
            return
        number = (
            None
            if isinstance(value, bool) or (is_text and _means_missing(text))
            else number_of(value)
        )
        kind = _kind(text, number) if is_text else "text" if number is None else "number"
        self.kinds[kind] += 1
        if len(self.labels) <= MAX_LABELS:
            self.labels[text] = number
        if len(self.examples.setdefault(kind, [])) < MAX_EXAMPLES:
            self.examples[kind].append(text)
        if kind == "missing":
            self.only_usual_missing &= text in DEFAULT_MISSING_TEXTS
            self.missing |= {text} & set(DEFAULT_MISSING_TEXTS)
        elif kind == "date":
            period = read_period(text)
            if period is None or period.unit != "day":
                self.only_iso_dates = False
            else:
                self._extend(period.day)
        self.ends_blank |= text != text.strip()
        if number is None:
            return
        self.low, self.high = min(self.low, number), max(self.high, number)
        self.is_integer &= _is_finite(number) and number == math.floor(number)
        if is_text:
            self.leading_zeros |= _LEADING_ZERO.match(text.strip()) is not None
            by_points = _GROUPED_BY_POINTS.fullmatch(text.strip()) is not None
            self.points |= by_points
            self.decimals |= "." in text and not by_points

    def attribute(self, name: str) -> Attribute:
        """Return the attribute for the values; raise SchemaError with the reason if there is none."""
        if self.reason:
            raise SchemaError(self.reason)
        kinds = set(self.kinds)
        if not kinds:
            raise SchemaError("it has no value")
        if kinds <= {"date", "missing"} and "date" in kinds:
            return self._dates(name)
        if kinds <= {"number", "missing", "grouped"} and "grouped" in kinds:
            raise SchemaError(SEPARATORS.format(self._listed("grouped")))
        if self.points and not self.decimals and kinds <= {"number", "missing"}:
            raise SchemaError(SEPARATORS.format(self._listed("number")))
        if (
            "number" in kinds <= {"number", "missing"}
            and self.only_usual_missing
            and not self.leading_zeros
        ):
            return self._numeric(name)
        if "missing" in kinds and kinds <= {"number", "missing"}:
            raise SchemaError(MAYBE_MISSING.format(self._listed("missing")))
        return self._categorical(name, list(self.labels))

    def _dates(self, name: str) -> Attribute:
        if not self.only_iso_dates:
            raise SchemaError(DATES)
        if not self.only_usual_missing:
            raise SchemaError(MAYBE_MISSING.format(self._listed("missing")))
        first, last = min(self.days), max(self.days)
        if first == last:
            raise SchemaError("it has one date only")
        is_short = (last - first).days < MAX_DAYS
        months = cell_number(last, "month") - cell_number(first, "month") + 1
        unit = "day" if is_short else "month" if months <= MAX_MONTHS else "year"
        return Attribute.dates(name, first, last, unit, missing_values=sorted(self.missing))

    def _numeric(self, name: str) -> Attribute:
        labels = [text for text, number in self.labels.items() if number is not None]
        if len(labels) < 2:
            raise SchemaError("it has one value only")
        if not (_is_finite(self.low) and _is_finite(self.high)):
            raise SchemaError(
                "it holds numbers that are not finite. Correct them, or declare bins by hand"
            )
        if self.low == self.high:
            raise SchemaError("it has one number only, spelled in several ways")
        missing = tuple(sorted(self.missing))
        if (
            self.is_integer
            and len({self.labels[text] for text in labels}) == len(labels) <= MAX_INTEGER_LABELS
        ):
            return replace(self._categorical(name, labels), missing_values=missing)
        if max(-self.low, self.high) > MAX_EXACT:
            raise SchemaError(
                f"it holds numbers beyond {MAX_EXACT:,}. Declare bins by hand, or give codes as"
                " text"
            )
        low, high = math.floor(self.low), math.ceil(self.high)
        if self.is_integer or high - low >= FEW_INTEGER_CELLS:
            return replace(
                integer_range(name, low, high, integer=self.is_integer), missing_values=missing
            )
        return replace(
            decimal_bins(name, float(self.low), float(self.high)), missing_values=missing
        )

    def _categorical(self, name: str, labels: Sequence[str]) -> Attribute:
        if len(labels) < 2:
            raise SchemaError("it has one value only")
        if len(labels) > MAX_LABELS:
            what = "codes with leading zeros" if self.leading_zeros else "texts"
            raise SchemaError(
                f"it has more than {MAX_LABELS} {what}. Write by hand those that have a cell"
            )
        if any(text.isspace() for text in labels):
            raise SchemaError(
                "it has a value that consists of blanks. Write it as an empty field, or correct it"
            )
        if len({text.strip() for text in labels}) < len(labels):
            raise SchemaError(
                "some values differ only in leading or trailing blanks. Make them equal"
            )
        return Attribute.categorical(name, sorted(labels, key=self._order))

    def _order(self, text: str) -> tuple[bool, Any, str]:
        number = self.labels[text]
        return (True, 0, text) if number is None else (False, number, text)

    def _listed(self, kind: str) -> str:
        return ", ".join(map(quote_public, self.examples[kind]))

    def notes(self, attribute: Attribute | None) -> Iterator[str]:
        """Yield notes on the values, and on the attribute if one was drafted."""
        if self.ends_blank and not self.reason:
            yield "values begin or end with blanks, which count"
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


def _distinct(column: pa.Array | list[Any]) -> Iterable[Any]:
    if isinstance(column, list):
        return column
    with suppress(pa.ArrowException):  # of some types Arrow finds no distinct values
        column = column.unique()
    values: list[Any] = column.to_pylist()
    return values


def _type_reason(kind: pa.DataType) -> str:
    """Return why no attribute can have values of an Arrow type, or "" for text, number and date
    types.
    """
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return DATES if pa.types.is_temporal(kind.value_type) else _type_reason(kind.value_type)
    if pa.types.is_temporal(kind):
        return "" if _is_dated(kind) else DATES
    return (
        f"it is of type {kind}. Give one text or number per row" if pa.types.is_nested(kind) else ""
    )


def _is_dated(kind: pa.DataType) -> bool:
    """Whether an Arrow type is one of dates, or of dates with times."""
    return bool(pa.types.is_date(kind) or pa.types.is_timestamp(kind))


def _is_finite(number: Any) -> bool:
    """Whether a number of any type and size is finite."""
    return bool(-math.inf < number < math.inf)


def _means_missing(text: str) -> bool:
    return text.strip().lower() in MISSING_TEXTS


def _kind(text: str, number: Any) -> str:
    """Return the kind of a text: "missing", "number", "date", "grouped" (separators), or "text"."""
    if _means_missing(text):
        return "missing"
    if number is not None:
        return "number"
    stripped = text.strip()
    return (
        "date"
        if _DATE.fullmatch(stripped)
        else "grouped"
        if _GROUPED.fullmatch(stripped)
        else "text"
    )


def _misfits(data: Any, attributes: Sequence[Attribute]) -> dict[str, str]:
    """Return the columns of drafted attributes with values that do not fit and are not missing."""
    encoders = [Encoder(attribute=attribute) for attribute in attributes]
    refused: dict[str, Counter[int]] = {attribute.name: Counter() for attribute in attributes}
    for batch in read_batches(data, list(refused)) if attributes else ():
        for encoder, column in zip(encoders, batch.columns, strict=True):
            codes = encoder.column(column)
            values, rows = np.unique(codes[codes < MISSING], return_counts=True)
            refused[encoder.attribute.name].update(
                dict(zip(values.tolist(), rows.tolist(), strict=True))
            )
    return {
        name: (
            "the draft does not take "
            + ", ".join(
                f"{pluralize(rows, 'value')} {REASONS[-1 - code]}" for code, rows in counts.items()
            )
        )
        for name, counts in refused.items()
        if counts
    }
