"""Rows with a count column.

To count each of its rows once would be wrong without a word.  So whoever brings such a column says what it is: names
and types of columns are public, and a refusal by them tells nothing of records.  The columns of a text file have names
only; one that programs give to counts is refused, too, and what others hold, at the start of the file, is told to the
curator alone, or refused where an error may depend on records.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from engine._format import shown
from engine.errors import DataError
from engine.records.counts import LARGE_COUNT
from engine.records.encoding import FRACTION, MISSING, REASONS, Encoder
from engine.records.readers import ColumnKinds, column_kinds, read_batches
from engine.workload import Attribute, Schema

LARGEST = 2**40  # records that one row may stand for, so that sums of millions of rows stay exact
NAMES = ("n", "count", "counts", "freq", "frequency")  # of dplyr and SQL, pandas, R's tables
NOT_WEIGHTS = (
    "A count column holds numbers of records. With sampling weights instead, one person would count many times, and "
    "the privacy budget would not cover that: count each row once, without a count column."
)
LISTED = 8  # columns that an error names
INDEX = "__index_level_"  # pandas numbers rows so; it and R leave the name out in text files


class _Count(Attribute):
    """Whole numbers from 0, more than any domain may have cells; no table is made of them."""

    def __post_init__(self) -> None:
        """Check nothing: the name is one of the records, and the size is ours."""


_ANY_NUMBER = Encoder(attribute=Attribute.numeric("any", [-1.0, 0.0, 1.0], clip=True))


def count_encoder(column: str) -> Encoder:
    """Return what reads how many records each row stands for; other values are refused."""
    return Encoder(attribute=_Count(name=column, kind="numeric", size=LARGEST))


def check_count_column(schema: Schema, count_column: str | None, person: str | None) -> None:
    """Raise DataError if the count column has another role, too; reads nothing.

    A column gives a number of records, or an attribute of a record.  This is also checked for attributes that are not
    counted: the schema says that each record has the attribute, and another plan on it would count that.
    """
    if count_column is None:
        return
    if count_column in schema:
        raise DataError(
            f"the count column {shown(count_column)} is also an attribute of the schema, but a number of records is no "
            "attribute of a record; remove the attribute from the schema and plan again, or give no count column"
        )
    if person is not None:
        raise DataError(
            f"rows that are counted already tell no persons, but there is the count column {shown(count_column)} and "
            f"the person column {shown(person)}; give no count column, or take the person column out of options and "
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
        texts.append(f"The count column {shown(count_column)} has numbers that are not whole; their rows are left out.")
    if large and not small:
        texts.append(f"Every number in the count column {shown(count_column)} is {LARGE_COUNT} or more.")
    return tuple(f"{text} {NOT_WEIGHTS}" for text in texts)


def check_columns_named(data: Any, schema: Schema, ignore: Collection[str]) -> None:
    """Raise DataError when columns of numbers are neither the schema's nor named; reads no record."""
    unknown = [
        name
        for _, columns in _unknown(data, schema, ignore)
        for name, number in columns.items()
        if number or (number is None and name.lower() in NAMES)
    ]
    if unknown:
        raise DataError(_question(list(dict.fromkeys(unknown))))


def numbers_text(data: Any, schema: Schema, ignore: Collection[str]) -> str:
    """Say which unknown columns of a text file begin with numbers alone; this depends on records.

    It is for the curator, and for errors that may tell of records.  Of many files the first with a column is read.
    """
    seen: set[str] = set()
    found = []
    for file, columns in _unknown(data, schema, ignore):
        names = [name for name, number in columns.items() if number is None and name not in seen]
        seen.update(names)
        if names and (batch := next(read_batches(data, names, file), None)) is not None:
            found += [name for name, column in zip(names, batch.columns, strict=True) if _is_of_numbers(column)]
    return _question(found) if found else ""


def _is_of_numbers(column: Any) -> bool:
    codes = _ANY_NUMBER.objects(column) if isinstance(column, list) else _ANY_NUMBER.array(column)
    return bool((codes >= 0).any() and (codes >= MISSING).all())


def _unknown(data: Any, schema: Schema, ignore: Collection[str]) -> Iterator[tuple[Path | None, ColumnKinds]]:
    """The columns of each file that neither the schema nor the caller names, and whether they hold numbers."""
    for file, columns in column_kinds(data):
        # the first line of a headless file is a record, and must not be quoted
        if any(name in schema for name in columns):
            known = {*schema, *ignore, ""}
            yield file, {n: number for n, number in columns.items() if n not in known and not n.startswith(INDEX)}


def _question(names: list[str]) -> str:
    listed = ", ".join(map(shown, names[:LISTED]))
    if (more := len(names) - LISTED) > 0:
        return (
            f"the schema does not know {len(names):,} columns that hold numbers, {listed} and {more:,} more; give the "
            "columns of the schema alone, or name all others in ignore=[...]"
        )
    one = len(names) == 1
    return (
        f"the schema does not know the column{'' if one else 's'} {listed}, which hold{'s' if one else ''} numbers: "
        f"if {'it' if one else 'one of them'} tells how many records each row stands for, count them with "
        f"count_column={shown(names[0])}, or leave the column{'' if one else 's'} out with ignore=[{listed}]"
    )
