"""Curator's report: how the columns of records fit the schema."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from engine.progress import Progress, progress_reporter
from engine.records import MISSING, OUTSIDE, REASONS, Encoder, column_names, read_batches
from engine.records.database import fit_in_database, is_table
from engine.workload import Attribute, Schema

# Number of the most frequent unknown values that are shown.
FEW = 5
# Limit of distinct unknown values per column in memory.
HELD = 10_000
# Limit of characters of a shown value.
LETTERS = 40


@dataclass(frozen=True, kw_only=True, repr=False)
class ColumnFit:
    """Numbers of rows by how one column fits its attribute; private, each row by this column alone.

    Attributes
    ----------
    column : name of the column.
    there : whether the records have the column.
    in_domain : rows with a value in the domain.
    missing : rows without a value.
    unknown : all other rows.
    refused : missing and unknown rows that would be left out, because the attribute has no cell
        that collects them.
    values : the most frequent unknown values, with their numbers of rows.
    """

    column: str
    there: bool = True
    in_domain: int = 0
    missing: int = 0
    unknown: int = 0
    refused: int = 0
    values: Mapping[str, int] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<ColumnFit of {self.column!r}>"


def records_fit(schema: Schema, data: Any, *, progress: Progress | None = None) -> tuple[ColumnFit, ...]:
    """Return how the column of each attribute fits; spends nothing and is not a release.

    Ibis tables are counted in their database, other records are read once.  The numbers are exact
    and the values are those of records, so the report is for the curator only.

    Raises
    ------
    DataError
        The records cannot be read.
    """
    tell = progress_reporter(progress, "The look at columns and values was cancelled; it spent nothing.")
    columns = column_names(data)
    names = [name for name in schema if not columns or name in columns]
    strict_encoders = [Encoder(attribute=_strict(schema[name])) for name in names]
    column_counts = fit_in_database(data, strict_encoders, FEW, tell) if is_table(data) else None
    if column_counts is None:
        column_counts = _fit_here(data, names, strict_encoders, tell)
    fits = {name: _fit(schema[name], *counts) for name, counts in zip(names, column_counts, strict=True)}
    return tuple(fits.get(name) or ColumnFit(column=name, there=False) for name in schema)


def _strict(attribute: Attribute) -> Attribute:
    """Return the attribute without collecting cells, so that codes show what would be collected."""
    return replace(
        attribute,
        other=None,
        missing=None,
        clip=False,
        size=attribute.date_cells if attribute.is_dated else attribute.size,
    )


def _fit(attribute: Attribute, rows: Mapping[int, int], values: Mapping[Any, int]) -> ColumnFit:
    """Return the fit of a column from its rows by strict code (cells as one) and unknown values."""
    missing, unknown = rows.get(MISSING, 0), sum(number for code, number in rows.items() if code < MISSING)
    collected = missing if attribute.missing is not None else 0
    if attribute.other is not None or attribute.clip:
        collected += rows.get(OUTSIDE, 0)
    return ColumnFit(
        column=attribute.name,
        in_domain=sum(number for code, number in rows.items() if code >= 0),
        missing=missing,
        unknown=unknown,
        refused=missing + unknown - collected,
        values={_text(value): number for value, number in Counter(values).most_common(FEW)},
    )


def _fit_here(data: Any, names: list[str], encoders: list[Encoder], tell: Any) -> list[tuple[Any, Any]]:
    rows: list[Counter[int]] = [Counter() for _ in names]
    values: list[Counter[Any]] = [Counter() for _ in names]
    read = 0
    for batch in read_batches(data, names):
        for i, (encoder, column, row_counts) in enumerate(zip(encoders, batch.columns, rows, strict=True)):
            unknown_values = values[i]
            codes = encoder.column(column, batch.clocks.get(encoder.attribute.name))
            numbers = np.bincount(-np.minimum(codes, 0).astype(np.int64), minlength=1 + len(REASONS))
            row_counts.update({-code: int(number) for code, number in enumerate(numbers) if number})
            unknown_values.update(_unknown(column, codes < MISSING))
            if len(unknown_values) > HELD:
                values[i] = Counter(dict(unknown_values.most_common(HELD // 2)))
        read += batch.rows
        tell(read / (read + 1e6) if batch.fraction is None else batch.fraction, "looking at columns and values")
    return list(zip(rows, values, strict=True))


def _unknown(column: Any, selection: np.ndarray) -> dict[Any, int]:
    """Return the selected values of a column as texts, with their numbers of rows."""
    if not selection.any():
        return {}
    if isinstance(column, list):
        return Counter(_text(column[i]) for i in np.flatnonzero(selection))
    selected = column.filter(pa.array(selection))
    try:
        pairs = selected.value_counts().to_pylist()
    # nested types have no value counts
    except pa.ArrowNotImplementedError:
        return Counter(map(_text, selected.to_pylist()))
    return {_text(pair["values"]): pair["counts"] for pair in pairs}


def _text(value: Any) -> str:
    """Return a value as it is shown, cut to `LETTERS` characters."""
    text = str(value)
    return text if len(text) <= LETTERS else f"{text[: LETTERS - 1]}…"
