"""Curator's report: how records fit the schema."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from engine.progress import Progress, told
from engine.records import MISSING, OUTSIDE, REASONS, Encoder, column_names, read_batches
from engine.records.database import fit_there, is_table
from engine.workload import Attribute, Schema

FEW = 5  # values that do not fit and are shown, the most frequent ones
HELD = 10_000  # distinct ones of a column that are held while it is read
LETTERS = 40  # of a value that are shown


@dataclass(frozen=True, kw_only=True, repr=False)
class ColumnFit:
    """How one column fits its attribute: private numbers of rows, each row judged by this column alone.

    Fields: `column`; `there`, whether the records have it; `known`, rows with a value that the domain names; `missing`,
    rows without a value; `unknown`, all others; `refused`, those of the missing and unknown ones that would be left
    out, because the attribute collects them nowhere; `values`, the most frequent unknown values and their rows.
    """

    column: str
    there: bool = True
    known: int = 0
    missing: int = 0
    unknown: int = 0
    refused: int = 0
    values: Mapping[str, int] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<ColumnFit of {self.column!r}>"


def records_fit(schema: Schema, data: Any, *, progress: Progress | None = None) -> tuple[ColumnFit, ...]:
    """Return how each attribute's column fits; tables of Ibis are asked where they are, other records are read once.

    Spends nothing and is no release: the numbers are exact and the values are those of records.  For the curator alone.

    Raises: DataError when the records cannot be read.
    """
    tell = told(progress, "The look at columns and values was cancelled; it spent nothing.")
    columns = column_names(data)
    names = [name for name in schema if not columns or name in columns]
    strict = [Encoder(attribute=_strict(schema[name])) for name in names]
    found = fit_there(data, strict, FEW, tell) if is_table(data) else None
    if found is None:
        found = _fit_here(data, names, strict, tell)
    fits = {name: _fit(schema[name], *own) for name, own in zip(names, found, strict=True)}
    return tuple(fits.get(name) or ColumnFit(column=name, there=False) for name in schema)


def _strict(attribute: Attribute) -> Attribute:
    """The attribute that collects nothing, so that codes tell what is collected."""
    return replace(
        attribute,
        other=None,
        missing=None,
        clip=False,
        size=attribute.date_cells if attribute.is_dated else attribute.size,
    )


def _fit(attribute: Attribute, rows: Mapping[int, int], values: Mapping[Any, int]) -> ColumnFit:
    """The fit of a column from its rows by strict code, all cells as one, and its unknown values."""
    missing, unknown = rows.get(MISSING, 0), sum(number for code, number in rows.items() if code < MISSING)
    collected = missing if attribute.missing is not None else 0
    if attribute.other is not None or attribute.clip:
        collected += rows.get(OUTSIDE, 0)
    return ColumnFit(
        column=attribute.name,
        known=sum(number for code, number in rows.items() if code >= 0),
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
        for i, (encoder, column, own) in enumerate(zip(encoders, batch.columns, rows, strict=True)):
            odd = values[i]
            codes = encoder.column(column, batch.clocks.get(encoder.attribute.name))
            numbers = np.bincount(-np.minimum(codes, 0).astype(np.int64), minlength=1 + len(REASONS))
            own.update({-code: int(number) for code, number in enumerate(numbers) if number})
            odd.update(_unknown(column, codes < MISSING))
            if len(odd) > HELD:
                values[i] = Counter(dict(odd.most_common(HELD // 2)))
        read += batch.rows
        tell(read / (read + 1e6) if batch.fraction is None else batch.fraction, "looking at columns and values")
    return list(zip(rows, values, strict=True))


def _unknown(column: Any, among: np.ndarray) -> dict[Any, int]:
    """Some values of a column, as texts, and how often each is there."""
    if not among.any():
        return {}
    if isinstance(column, list):
        return Counter(_text(column[i]) for i in np.flatnonzero(among))
    found = column.filter(pa.array(among))
    try:
        pairs = found.value_counts().to_pylist()
    except pa.ArrowNotImplementedError:  # lists and the like
        return Counter(map(_text, found.to_pylist()))
    return {_text(pair["values"]): pair["counts"] for pair in pairs}


def _text(value: Any) -> str:
    """A value as it is shown."""
    text = str(value)
    return text if len(text) <= LETTERS else f"{text[: LETTERS - 1]}…"
