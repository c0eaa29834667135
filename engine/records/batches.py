"""Batches of records, bounded by bytes, and reading that never lets a value out in an error.

Readers quote what they stumble over, and that is a record.  So no exception of a reader leaves here, not even as the
hidden context of ours: it is dropped, and a message without values is raised in its place.
"""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from engine._format import near_matches, shown
from engine.errors import DataError, EngineError, LimitExceeded
from engine.records.encoding import is_scalar
from engine.records.stored_dates import Clock

if TYPE_CHECKING:
    import pandas as pd


_T = TypeVar("_T")
LINES = 2**15  # rows of Python values converted together


@dataclass(frozen=True, kw_only=True)
class Batch:
    """A few rows: one Arrow array, or list of Python values, per needed column.

    Fields: `columns`, in the order asked for; `rows`, their common length; `fraction` of the work done after this
    batch, or None when the length is not known beforehand; `float_limits`, column -> size from which on the source
    stores equal numbers for different whole ones, where that is less than 2^53; `clocks`, of the columns whose numbers
    are dates.
    """

    columns: tuple[pa.Array | list[Any], ...]
    rows: int
    fraction: float | None
    float_limits: Mapping[str, int] = field(default_factory=dict)
    clocks: Mapping[str, Clock] = field(default_factory=dict)


def tried(action: Callable[[], _T], what: str, explain: Callable[[Exception], str] = lambda error: "") -> _T:
    """Result of reading, or a DataError that keeps nothing of the reader's own error but what `explain` takes."""
    try:
        return action()
    except (EngineError, StopIteration):
        raise
    except Exception as error:
        memory, kind, reason = isinstance(error, MemoryError), type(error).__name__, explain(error)
    if memory:
        raise LimitExceeded(f"{what} needs more memory than there is; write it in smaller row groups")
    raise DataError(
        reason or f"{what} cannot be read ({kind}); check that it is complete and of the kind its name says"
    )


def needed(library: str, what: str) -> Any:
    """Return a library that only some sources need.  Raises: DataError with the command that installs it."""
    try:
        return importlib.import_module(library)
    except ImportError:
        problem = f"{what} needs {library}, which is not installed: pip install 'dp-query-workbench[sources]'"
    raise DataError(problem)


def guarded(batches: Iterable[_T], what: str) -> Iterator[_T]:
    """The same batches, with every reader's error replaced."""
    source = tried(lambda: iter(batches), what)
    while True:
        try:
            batch = tried(lambda: next(source), what)
        except StopIteration:
            return
        yield batch


def check_columns(available: Sequence[Any], names: Sequence[str], *, quote: bool = True) -> None:
    """Raises: DataError unless each name is exactly one of the available columns."""
    times = Counter(name for name in available if isinstance(name, str))
    missing = [name for name in names if name not in times]
    if missing:
        # The first line of a headless file is a record; only a line that fits the schema may be quoted from.
        quote = quote or len(missing) < len(names)
        near = near_matches(missing[0], times) if quote else "; the first line must hold the column names"
        what = shown(missing[0]) + (f" and {len(missing) - 1:,} more" if len(missing) > 1 else "")
        raise DataError(f"no column {what} among the {len(available):,} columns of the records{near}")
    for name in names:
        if times[name] > 1:
            raise DataError(f"the column {shown(name)} is there {times[name]} times; keep one of them")


def cut_batches(batch: pa.RecordBatch, names: Sequence[str], rows: int) -> Iterator[tuple[tuple[pa.Array, ...], int]]:
    """The named columns of a batch in pieces of at most `rows` rows, with the number of rows of each."""
    place = {name: i for i, name in enumerate(batch.schema.names)}
    positions = [place[name] for name in names]
    for start in range(0, batch.num_rows, rows):
        part = batch.slice(start, rows)
        yield tuple(part.column(i) for i in positions), part.num_rows


def batches(
    source: Iterable[pa.RecordBatch], names: Sequence[str], rows: int, total: int | None, what: str
) -> Iterator[Batch]:
    """Arrow batches of any size as small ones; `total` is the number of rows of all of them, when it is known."""
    done = 0
    for batch in guarded(source, what):
        for columns, count in cut_batches(batch, names, rows):
            done += count
            yield Batch(columns=columns, rows=count, fraction=done / total if total else None)


def array_of(values: pd.Series) -> pa.Array | list[Any]:
    """A pandas column as Arrow array, or as Python values when they have no common type."""
    # Arrow would find one type for mixed objects, and change some: whole numbers to dates, booleans to numbers.
    kinds = set(map(type, values)) - {type(None)} if values.dtype == object else set()
    mixed = len(kinds) > 1 and kinds != {str, float}
    try:
        found = None if mixed else pa.array(values, from_pandas=True)
    except Exception:
        found = None
    if found is None or (values.dtype == object and not is_scalar(found.type)):
        return list(values)
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found


def batched(values: Iterator[Sequence[Any]], width: int, rows: int) -> Iterator[Batch]:
    """Rows of Python values as batches of so many columns."""
    import pandas as pd

    while held := list(islice(values, min(rows, LINES))):
        columns = tuple(array_of(pd.Series([row[i] for row in held], dtype=object)) for i in range(width))
        yield Batch(columns=columns, rows=len(held), fraction=None)
