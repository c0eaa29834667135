"""Batches of records with bounded memory, and readers whose errors contain no values.

Exceptions of readers quote the text that they cannot parse, which is a record. Therefore no
exception of a reader is passed on, not even as the context of another one: it is dropped, and an
error without values is raised instead.
"""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from engine._format import near_matches, quote_public
from engine.errors import DataError, EngineError, LimitExceeded
from engine.records.encoding import Clock, is_scalar

if TYPE_CHECKING:
    import pandas as pd


_T = TypeVar("_T")
LINES = 2**15  # rows of Python values that are converted in one step


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Rows of the needed columns, as one Arrow array or list of Python values per column.

    Attributes
    ----------
    columns : the requested columns, in the requested order.
    rows : number of rows of each column.
    fraction : fraction of the source that has been read once this batch is processed; None if the
        size of the source is unknown.
    float_limits : mapping from a column to the smallest number from which its floats cannot
        represent all integers; only for columns where that is below 2^53.
    clocks : mapping from a column whose numbers are dates to their unit and epoch.
    """

    columns: tuple[pa.Array | list[Any], ...]
    rows: int
    fraction: float | None
    float_limits: Mapping[str, int] = field(default_factory=dict)
    clocks: Mapping[str, Clock] = field(default_factory=dict)


def without_values(
    action: Callable[[], _T], what: str, explain: Callable[[Exception], str] = lambda error: ""
) -> _T:
    """Return the result of an action; replace exceptions by errors without record values.

    Errors of the engine and StopIteration are raised unchanged.

    Parameters
    ----------
    action : function without arguments that reads records.
    what : name of the source in messages, such as "the file 'a.csv'".
    explain : function from the original exception to the text of the new one; if it returns an
        empty text, the message names only `what` and the type of the exception.

    Raises
    ------
    LimitExceeded
        The action raised MemoryError.
    DataError
        The action raised another exception.
    """
    try:
        return action()
    except (EngineError, StopIteration):
        raise
    except Exception as error:
        is_memory_error = isinstance(error, MemoryError)
        error_type, reason = type(error).__name__, explain(error)
    if is_memory_error:
        raise LimitExceeded(
            f"{what} needs more memory than is available; write it in smaller row groups"
        )
    raise DataError(
        reason
        or f"{what} cannot be read ({error_type}); check that it is complete, and that its ending names"
        " its format"
    )


def import_optional(library: str, what: str) -> Any:
    """Import an optional library; raise DataError with the installation command if it is missing."""
    try:
        return importlib.import_module(library)
    except ImportError:
        problem = (
            f"{what} needs {library}, which is not installed: pip install"
            " 'dp-query-workbench[sources]'"
        )
    raise DataError(problem)


def guard_batches(batches: Iterable[_T], what: str) -> Iterator[_T]:
    """Yield batches; replace exceptions of their reader as `without_values` does."""
    source = without_values(lambda: iter(batches), what)
    while True:
        try:
            batch = without_values(lambda: next(source), what)
        except StopIteration:
            return
        yield batch


def check_columns(available: Sequence[Any], names: Sequence[str], *, quote: bool = True) -> None:
    """Raise DataError unless each name matches exactly one available column.

    Parameters
    ----------
    quote : False if `available` may be values of a record, because the file may lack a header. The
        message then suggests one of them only if at least one of `names` is a column.
    """
    name_counts = Counter(name for name in available if isinstance(name, str))
    missing = [name for name in names if name not in name_counts]
    if missing:
        if quote or len(missing) < len(names):
            suggestion = near_matches(missing[0], name_counts)
        else:
            suggestion = "; the first line must hold the column names"
        what = quote_public(missing[0]) + (
            f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""
        )
        raise DataError(
            f"no column {what} among the {len(available):,} columns of the records{suggestion}"
        )
    for name in names:
        if name_counts[name] > 1:
            raise DataError(
                f"{name_counts[name]} columns have the name {quote_public(name)}; column names must be"
                " different. Rename or remove one"
            )


def cut_batches(
    batch: pa.RecordBatch, names: Sequence[str], rows: int
) -> Iterator[tuple[tuple[pa.Array, ...], int]]:
    """Yield (named columns, number of rows) for parts of at most `rows` rows of a batch."""
    position_of = {name: i for i, name in enumerate(batch.schema.names)}
    positions = [position_of[name] for name in names]
    for start in range(0, batch.num_rows, rows):
        part = batch.slice(start, rows)
        yield tuple(part.column(i) for i in positions), part.num_rows


def batches(
    source: Iterable[pa.RecordBatch], names: Sequence[str], rows: int, total: int | None, what: str
) -> Iterator[Batch]:
    """Split Arrow batches into batches of at most `rows` rows with the named columns.

    Parameters
    ----------
    total : number of rows of the source, or None if unknown; only for `Batch.fraction`.
    what : name of the source in messages.
    """
    done = 0
    for batch in guard_batches(source, what):
        for columns, count in cut_batches(batch, names, rows):
            done += count
            yield Batch(columns=columns, rows=count, fraction=done / total if total else None)


def array_of(values: pd.Series) -> pa.Array | list[Any]:
    """Return a pandas column as an Arrow array, or as a list if its values have no scalar type.

    Objects have a scalar type if Arrow converts all of them to one type of `is_scalar`.
    """
    kinds = set(map(type, values)) - {type(None)} if values.dtype == object else set()
    # Arrow would convert values of several types to one type, such as integers to dates and
    # booleans to numbers; it accepts texts and floats only if all floats are NaN, that is missing
    is_mixed = len(kinds) > 1 and kinds != {str, float}
    try:
        array = None if is_mixed else pa.array(values, from_pandas=True)
    except Exception:
        array = None
    if array is None or (values.dtype == object and not is_scalar(array.type)):
        return list(values)
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def rows_to_batches(values: Iterator[Sequence[Any]], width: int, rows: int) -> Iterator[Batch]:
    """Yield rows of `width` Python values each as batches of at most `rows` rows."""
    import pandas as pd

    while chunk := list(islice(values, min(rows, LINES))):
        columns = tuple(
            array_of(pd.Series([row[i] for row in chunk], dtype=object)) for i in range(width)
        )
        yield Batch(columns=columns, rows=len(chunk), fraction=None)
