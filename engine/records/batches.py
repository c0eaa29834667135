"""Batches of records with bounded memory, and readers whose errors contain no values.

The exceptions of readers quote the text that they cannot parse, and this text may contain records.
Therefore an exception of a reader is never passed on, not even as the context of another exception.
An error that contains no values is raised in its place.
"""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from engine._format import near_matches, pluralize, quote_public
from engine.errors import DataError, EngineError, LimitExceeded
from engine.records.encoding import Clock, is_scalar

if TYPE_CHECKING:
    import pandas as pd


_T = TypeVar("_T")
LINES = 2**15  # largest number of rows of Python values that are converted in one step


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Some rows of the requested columns.

    Attributes
    ----------
    columns : one Arrow array or list of Python values per requested column, in this order.
    rows : number of rows of each column.
    fraction : fraction of the source that has been read, including this batch; None if the size of
        the source is unknown.
    float_limits : column -> absolute value from which floats of the column may have been rounded
        by the source. A column that is not in the mapping has the limit 2^53.
    clocks : column -> unit and epoch of its numbers. It contains the columns whose numbers
        represent dates.
    """

    columns: tuple[pa.Array | list[Any], ...]
    rows: int
    fraction: float | None
    float_limits: Mapping[str, int] = field(default_factory=dict)
    clocks: Mapping[str, Clock] = field(default_factory=dict)


def without_values(
    action: Callable[[], _T], what: str, explain: Callable[[Exception], str] = lambda error: ""
) -> _T:
    """Call ``action`` and return its result; replace its exceptions by errors without values.

    Errors of the engine and StopIteration are raised unchanged.

    Parameters
    ----------
    action : function without arguments that reads records.
    what : name of the source in messages, such as "the file 'a.csv'".
    explain : function that returns the message of the new error for an exception; "" for the
        general message, which names `what` and the type of the exception.

    Raises
    ------
    LimitExceeded
        ``action`` raised MemoryError.
    DataError
        ``action`` raised another exception.
    """
    try:
        return action()
    except (EngineError, StopIteration):
        raise
    except Exception as error:
        is_memory_error = isinstance(error, MemoryError)
        error_type = type(error).__name__
        reason = explain(error)
    # The errors are raised outside of the `except` block: inside, Python attaches the first
    # exception to them, and its message can contain values.
    if is_memory_error:
        raise LimitExceeded(
            f"{what} needs more memory than is available; divide it into smaller row groups or"
            " files"
        )
    raise DataError(
        reason
        or f"{what} cannot be read ({error_type}); check that it is complete, and that its ending names"
        " its format"
    )


def import_optional(library: str, what: str) -> Any:
    """Import and return an optional library.

    If the library is missing, raise DataError with the command that installs it.

    Parameters
    ----------
    what : subject of the message, such as "the file 'a.xlsx'".
    """
    try:
        return importlib.import_module(library)
    except ImportError:
        problem = (
            f"{what} needs {library}, which is not installed: pip install"
            " 'dp-query-workbench[sources]'"
        )
    raise DataError(problem)


def guard_batches(batches: Iterable[_T], what: str) -> Iterator[_T]:
    """Yield the batches unchanged.

    An exception raised while reading is replaced by an error that shows no value of the records.
    The error names the source by the text ``what``.
    """
    source = without_values(lambda: iter(batches), what)
    while True:
        try:
            batch = without_values(lambda: next(source), what)
        except StopIteration:
            return
        yield batch


def check_columns(available: Sequence[Any], names: Sequence[str], *, quote: bool = True) -> None:
    """Raise DataError unless each name is the name of exactly one available column.

    Parameters
    ----------
    available : names in the header of the records.
    names : names of the requested columns.
    quote : False if `available` may be a record, as in a file without a header. In this case the
        message quotes nothing from `available` if no requested name is available.
    """
    name_counts = Counter(name for name in available if isinstance(name, str))
    missing = [name for name in names if name not in name_counts]
    if missing:
        others = len(missing) - 1
        if quote or len(missing) < len(names):
            correction = f"; correct the name, or add the column{'s' if others else ''}"
            advice = near_matches(missing[0], name_counts) or correction
        else:
            advice = "; the first line must hold the column names"
        also_missing = f" and lack {pluralize(others, 'more required column')}" if others else ""
        raise DataError(
            f"the records have no column {quote_public(missing[0])}{also_missing}{advice}"
        )
    for name in names:
        if name_counts[name] > 1:
            raise DataError(
                f"{name_counts[name]} columns have the name {quote_public(name)}; column names "
                "must be different. Rename or remove one"
            )


def cut_batches(
    batch: pa.RecordBatch, names: Sequence[str], rows: int
) -> Iterator[tuple[tuple[pa.Array, ...], int]]:
    """Divide an Arrow batch into parts of at most `rows` rows; yield (columns, number of rows)."""
    position_of = {name: i for i, name in enumerate(batch.schema.names)}
    positions = [position_of[name] for name in names]
    for start in range(0, batch.num_rows, rows):
        part = batch.slice(start, rows)
        yield tuple(part.column(i) for i in positions), part.num_rows


def batches(
    source: Iterable[pa.RecordBatch], names: Sequence[str], rows: int, total: int | None, what: str
) -> Iterator[Batch]:
    """Yield Arrow batches as `Batch` objects of at most `rows` rows with the named columns.

    Parameters
    ----------
    total : number of rows of the source, from which `Batch.fraction` is computed; None if unknown.
    what : name of the source in messages.
    """
    done = 0
    for batch in guard_batches(source, what):
        for columns, count in cut_batches(batch, names, rows):
            done += count
            yield Batch(columns=columns, rows=count, fraction=done / total if total else None)


def array_of(values: pd.Series) -> pa.Array | list[Any]:
    """Convert a pandas column to an Arrow array, or to a list if Arrow could change its values.

    A column of Python objects becomes an Arrow array only if all objects have the same type. This
    type must be text, bytes, a number or a boolean. Objects that are None are allowed in every such
    column, and NaN is allowed in a column of texts.
    """
    kinds = set(map(type, values)) - {type(None)} if values.dtype == object else set()
    # Arrow must not convert objects of several types, because it would for example convert integers
    # to dates or booleans to numbers. Texts together with floats are safe: Arrow accepts them only
    # if every float is NaN, that is missing.
    is_mixed = len(kinds) > 1 and kinds != {str, float}
    try:
        array = None if is_mixed else pa.array(values, from_pandas=True)
    except Exception:
        array = None
    if array is None or (values.dtype == object and not is_scalar(array.type)):
        return list(values)
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def rows_to_batches(values: Iterator[Sequence[Any]], width: int, rows: int) -> Iterator[Batch]:
    """Yield rows of Python values as batches of at most `rows` rows.

    ``width`` is the number of values per row.
    """
    import pandas as pd

    while chunk := list(islice(values, min(rows, LINES))):
        columns = tuple(
            array_of(pd.Series([row[i] for row in chunk], dtype=object)) for i in range(width)
        )
        yield Batch(columns=columns, rows=len(chunk), fraction=None)
