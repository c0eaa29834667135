"""Advice on rows that a release drops: what to change so that they are counted."""

from __future__ import annotations

from collections.abc import Mapping

from engine.records import MISSING, OUTSIDE, reason_of
from engine.records.contribution_bounding import NO_PERSON
from engine.records.encoding import (
    FRACTION,
    NOT_DATE,
    NOT_NUMBER,
)
from engine.records.marginals import IMPOSSIBLE
from engine.workload import Attribute, Schema

CORRECT_FILE = "correct the file"
# Possible values taken from the records would reveal that a record has them.
IF_PUBLIC = "if the code book has them"
TEXTS_AS_MISSING = (
    "correct the file, or enter these texts under “missing codes”, and fill in “missing as”"
)


def keep_rows_advice(schema: Schema, reasons: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Return what to do to keep dropped rows, one clause per remedy with the columns it is for.

    ``reasons`` maps each column to the reasons why rows were dropped and their numbers of rows.
    Names in double curved quotation marks are columns of the grid on the page Schema.
    """
    columns_by_remedy: dict[str, list[str]] = {}
    for column, rows_by_reason in reasons.items():
        for reason in rows_by_reason:
            columns = columns_by_remedy.setdefault(_remedy(schema, column, reason), [])
            columns.append(column)
    return [
        f"{', '.join(dict.fromkeys(columns))}: {remedy}"
        for remedy, columns in columns_by_remedy.items()
    ]


def _remedy(schema: Schema, column: str, reason: str) -> str:
    """Return what to do so that rows with this column are no longer dropped for this reason."""
    if reason == NO_PERSON:
        return "fill in the person ID in the file"
    if reason == IMPOSSIBLE:
        return "correct the file, or the impossible combinations on Schema"
    if column not in schema:
        return CORRECT_FILE
    attribute = schema[column]
    if reason == reason_of(MISSING):
        return _missing_remedy(attribute)
    if reason == reason_of(OUTSIDE):
        return _outside_remedy(attribute)
    if reason == reason_of(NOT_NUMBER) and attribute.edges is not None:
        return TEXTS_AS_MISSING
    if reason == reason_of(FRACTION) and attribute.edges is not None:
        return "correct the file, or untick “integers”"
    if reason == reason_of(NOT_DATE):
        return f"enter the “date format” of the file, or {TEXTS_AS_MISSING}"
    return CORRECT_FILE


def _missing_remedy(attribute: Attribute) -> str:
    if attribute.labels is not None or attribute.is_dated:
        return "enter a label for missing values under “missing as”"
    if attribute.edges is not None:
        first = attribute.edges[0]
        return (
            "enter a number under “missing as”; the bin of this number then counts missing values."
            f" For a separate bin, add the edge {first - 1:g} before {first:g} and enter"
            f" {first - 1:g}"
        )
    return "enter labels as possible values, and a label under “missing as”"


def _outside_remedy(attribute: Attribute) -> str:
    if attribute.labels is not None:
        return (
            "enter a label for them under “others as”, or add the unlisted values, but only"
            f" {IF_PUBLIC}"
        )
    if attribute.edges is not None or attribute.is_dated:
        return (
            "tick “clip” to count them in the first or last cell, or extend the possible values,"
            f" but only {IF_PUBLIC}"
        )
    return (
        "enter labels as possible values, and a label for all others under “others as”; a larger number"
        f" of codes (only {IF_PUBLIC}) adds codes from {attribute.size:,} up"
    )
