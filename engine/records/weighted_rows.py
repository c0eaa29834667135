"""Rows with a count column.

Counting each row of aggregated data once would be wrong without any error. The user must therefore
declare the role of every numeric column: it is in the schema, the count column, or ignored. Names and
types of columns are public, so an error about them reveals nothing about records. The columns of a
text file have names but no types. A column with a name that programs give to counts is refused. For
other columns, the values at the start of the file are checked; the result is shown to the curator
only, or raised as an error where errors may depend on records.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from engine._format import quote_public
from engine.errors import DataError
from engine.records.counts import LARGE_COUNT
from engine.records.encoding import FRACTION, MISSING, REASONS, Encoder
from engine.records.readers import ColumnKinds, column_kinds, read_batches
from engine.workload import Attribute, Schema

MAX_RECORDS_PER_ROW = 2**40  # sums of millions of rows then remain exact
COUNT_COLUMN_NAMES = ("n", "count", "counts", "freq", "frequency")  # of dplyr and SQL, pandas, R's tables
NOT_WEIGHTS = (
    "A count column holds numbers of records. With sampling weights instead, one person would count many times, and "
    "the privacy budget would not cover that: count each row once, without a count column."
)
MAX_LISTED_COLUMNS = 8  # in an error message
PANDAS_INDEX_PREFIX = "__index_level_"  # row index of pandas; in text files it has no name


class _Count(Attribute):
    """Pseudo-attribute for numbers of records; its size exceeds every allowed domain."""

    def __post_init__(self) -> None:
        """Skip the checks of attributes."""


_ANY_NUMBER = Encoder(attribute=Attribute.numeric("any", [-1.0, 0.0, 1.0], clip=True))


def count_encoder(column: str) -> Encoder:
    """Return an encoder of the number of records per row; it refuses other values."""
    return Encoder(attribute=_Count(name=column, kind="numeric", size=MAX_RECORDS_PER_ROW))


def check_count_column(schema: Schema, count_column: str | None, person: str | None) -> None:
    """Raise DataError if the count column has a second role; reads no record.

    A column is either a number of records or an attribute of a record. This includes attributes that
    are not counted now, because another plan on the same schema could count them.
    """
    if count_column is None:
        return
    if count_column in schema:
        raise DataError(
            f"the count column {quote_public(count_column)} is also an attribute of the schema, but a number of records is no "
            "attribute of a record; remove the attribute from the schema and plan again, or give no count column"
        )
    if person is not None:
        raise DataError(
            f"rows that are counted already tell no persons, but there is the count column {quote_public(count_column)} and "
            f"the person column {quote_public(person)}; give no count column, or take the person column out of options and "
            "schema"
        )


def count_column_doubts(
    count_column: str | None, refused: Mapping[str, Mapping[str, int]], small: int, large: int
) -> tuple[str, ...]:
    """Return questions about a count column that may hold sampling weights, for the curator only.

    Parameters
    ----------
    refused : numbers of rows that were left out, by column and reason.
    small, large : numbers of counted rows with counts below `LARGE_COUNT`, and from there on.
    """
    if count_column is None:
        return ()
    texts = []
    if REASONS[-1 - FRACTION] in refused.get(count_column, {}):
        texts.append(
            f"The count column {quote_public(count_column)} has numbers that are not whole; their rows are left out."
        )
    if large and not small:
        texts.append(f"Every number in the count column {quote_public(count_column)} is {LARGE_COUNT} or more.")
    return tuple(f"{text} {NOT_WEIGHTS}" for text in texts)


def check_columns_named(data: Any, schema: Schema, ignore: Collection[str]) -> None:
    """Raise DataError if numeric columns are neither in the schema nor ignored; reads no record."""
    unknown = [
        name
        for _, columns in _unnamed_columns(data, schema, ignore)
        for name, number in columns.items()
        if number or (number is None and name.lower() in COUNT_COLUMN_NAMES)
    ]
    if unknown:
        raise DataError(_question_text(list(dict.fromkeys(unknown))))


def numbers_text(data: Any, schema: Schema, ignore: Collection[str]) -> str:
    """Return a question about unnamed columns of text files that start with numbers only.

    The text depends on records, so it is for the curator, or for errors that may depend on records.
    Of several files, only the first one with a column is read.
    """
    checked_names: set[str] = set()
    numeric_columns = []
    for file, columns in _unnamed_columns(data, schema, ignore):
        names = [name for name, number in columns.items() if number is None and name not in checked_names]
        checked_names.update(names)
        if names and (batch := next(read_batches(data, names, file), None)) is not None:
            numeric_columns += [
                name for name, column in zip(names, batch.columns, strict=True) if _is_of_numbers(column)
            ]
    return _question_text(numeric_columns) if numeric_columns else ""


def _is_of_numbers(column: Any) -> bool:
    codes = _ANY_NUMBER.objects(column) if isinstance(column, list) else _ANY_NUMBER.array(column)
    return bool((codes >= 0).any() and (codes >= MISSING).all())


def _unnamed_columns(data: Any, schema: Schema, ignore: Collection[str]) -> Iterator[tuple[Path | None, ColumnKinds]]:
    """Yield each file with its columns that are neither in the schema nor ignored."""
    for file, columns in column_kinds(data):
        # the first line of a file without header is a record and must not be quoted
        if any(name in schema for name in columns):
            named_columns = {*schema, *ignore, ""}
            yield (
                file,
                {
                    n: number
                    for n, number in columns.items()
                    if n not in named_columns and not n.startswith(PANDAS_INDEX_PREFIX)
                },
            )


def _question_text(names: list[str]) -> str:
    listed = ", ".join(map(quote_public, names[:MAX_LISTED_COLUMNS]))
    if (n_more := len(names) - MAX_LISTED_COLUMNS) > 0:
        return (
            f"the schema does not know {len(names):,} columns that hold numbers, {listed} and {n_more:,} more; "
            "give the columns of the schema alone, or name all others in ignore=[...]"
        )
    is_single = len(names) == 1
    return (
        f"the schema does not know the column{'' if is_single else 's'} {listed}, "
        f"which hold{'s' if is_single else ''} numbers: "
        f"if {'it' if is_single else 'one of them'} tells how many records each row stands for, count them with "
        f"count_column={quote_public(names[0])}, or leave the column{'' if is_single else 's'} out with ignore=[{listed}]"
    )
