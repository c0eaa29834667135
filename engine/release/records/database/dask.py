"""DataFrames of Dask, counted a partition at a time by its workers, and added up there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import add
from typing import Any

from engine.progress import Progress, listener
from engine.release.records.batches import check_columns, needed, tried
from engine.release.records.counts import Counts

WHAT = "the Dask frame"
TOGETHER = 64  # partitions that are counted between two signs of progress; each may hold its tables in memory
_LOST = ("killed", "cancelled", "commclosed", "timeout", "connection")  # in kinds of errors of a cluster


def is_dask_frame(data: Any) -> bool:
    """Whether data are a DataFrame of Dask."""
    return hasattr(data, "npartitions") and hasattr(data, "get_partition") and hasattr(data, "dtypes")


def count_partitions(
    data: Any, names: Sequence[str], count: Callable[[Any], Counts], progress: Progress | None
) -> Counts:
    """The counts of all partitions, each taken from its columns by `count` where it is; only sums travel.

    Raises: DataError when a partition cannot be read, or the workers were lost or lack this library.
    """
    dask = needed("dask", WHAT)
    check_columns(list(data.columns), names)
    heard, parts = listener(progress), tried(lambda: data[list(names)].to_delayed(), WHAT)
    found: Counts | None = None
    for start in range(0, len(parts), TOGETHER):
        waiting = [dask.delayed(count)(part) for part in parts[start : start + TOGETHER]]
        while len(waiting) > 1:  # two and two, so that no worker holds the tables of many
            waiting = [dask.delayed(add)(*pair) if len(pair) == 2 else pair[0] for pair in _pairs(waiting)]
        (own,) = tried(lambda some=waiting: dask.compute(*some), WHAT, _explained)  # type: ignore[misc]
        found = own if found is None else found + own
        if heard is not None:
            heard(min(1.0, (start + TOGETHER) / len(parts)), "counting on the workers")
    assert found is not None  # a frame has a partition, if an empty one
    return found


def _pairs(parts: Sequence[Any]) -> list[Sequence[Any]]:
    return [parts[i : i + 2] for i in range(0, len(parts), 2)]


def _explained(error: Exception) -> str:
    """What is wrong, from the kind of an error alone: its text may hold values."""
    if isinstance(error, ImportError):
        return "the workers of Dask lack this library or another one that it needs: install it there, in one version"
    kinds = " ".join(kind.__name__.lower() for kind in type(error).__mro__)
    if any(word in kinds for word in _LOST):
        return "the workers of Dask were lost before the counts were complete; ask again"
    return ""
