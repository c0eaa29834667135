"""DataFrames of Dask, counted a partition at a time by its workers, and added up there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from functools import partial
from operator import add
from typing import Any

from engine.errors import EngineError
from engine.progress import Listener, Progress, listener
from engine.records.batches import check_columns, needed, tried
from engine.records.counts import Counts
from engine.records.database import POLL_INTERVAL_S

WHAT, TEXT = "the Dask frame", "counting on the workers"
TOGETHER = 64  # partitions that are counted at once; each may hold its tables in memory
_LOST = ("killed", "cancelled", "commclosed", "timeout", "connection")  # in kinds of errors of a cluster


def is_dask_frame(data: Any) -> bool:
    """Whether data are a DataFrame of Dask."""
    return hasattr(data, "npartitions") and hasattr(data, "get_partition") and hasattr(data, "dtypes")


def count_partitions(
    data: Any, names: Sequence[str], count: Callable[[Any], Counts], progress: Progress | None
) -> Counts:
    """The counts of all partitions, each taken from its columns by `count` where it is; only sums travel.

    Progress is told after each task here; on a cluster after each partition, and again and again while it works.

    Raises: DataError when a partition cannot be read, or the workers were lost or lack this library.
    """
    dask = needed("dask", WHAT)
    check_columns(list(data.columns), names)
    heard, parts = listener(progress), tried(lambda: data[list(names)].to_delayed(), WHAT)
    found: Counts | None = None
    for start in range(0, len(parts), TOGETHER):
        waiting = leaves = [dask.delayed(count)(part) for part in parts[start : start + TOGETHER]]
        while len(waiting) > 1:  # two and two, so that no worker holds the tables of many
            waiting = [dask.delayed(add)(*pair) if len(pair) == 2 else pair[0] for pair in _pairs(waiting)]
        stop = min(start + TOGETHER, len(parts))
        told = None if heard is None else partial(_tell, heard, start / len(parts), stop / len(parts))
        if told is None or (cluster := _cluster(dask)) is None:
            own = _computed(dask, waiting[0], told and partial(_after, told))
        else:
            own = _gathered(cluster, leaves, waiting[0], told)
        found = own if found is None else found + own
        if heard is not None:
            heard(stop / len(parts), TEXT)
    assert found is not None  # a frame has a partition, if an empty one
    return found


def _computed(dask: Any, waiting: Any, told: Callable[..., None] | None) -> Counts:
    """What tasks come to; an error of who hears of each stops them, and is raised as it is."""
    raised: list[Exception] = []

    def after(*task: Any) -> None:
        try:
            if told is not None:
                told(*task)
        except Exception as error:
            raised.append(error)
            raise

    try:
        with dask.callbacks.Callback(posttask=after):
            found: Counts = tried(waiting.compute, WHAT, _explained)
    except EngineError:
        if raised:
            raise raised[0] from None
        raise
    return found


def _cluster(dask: Any) -> Any:
    """The client of a cluster that computes what is asked here, if one does and may be waited for."""
    client = getattr(dask.base.get_scheduler(), "__self__", None)
    return client if hasattr(client, "gather") and not getattr(client, "asynchronous", True) else None


def _gathered(client: Any, leaves: Sequence[Any], whole: Any, told: Callable[[float], object]) -> Counts:
    """What tasks come to on a cluster; who hears of each is asked while they run, and lets go of them by an error."""
    wait: Any = needed("distributed", WHAT).wait

    # their results go from a worker as soon as they are added up, for nobody here asks for them
    *waiting, result = tried(lambda: client.compute([*leaves, whole]), WHAT, _explained)

    def some_time() -> None:
        with suppress(TimeoutError, CancelledError):  # what the cluster let go of says so below
            wait([*waiting, result], timeout=POLL_INTERVAL_S, return_when="FIRST_COMPLETED")

    try:
        while not result.done():
            tried(some_time, WHAT, _explained)
            waiting = [future for future in waiting if not future.done()]
            if not result.done():  # tasks that were lost have ended, too
                told(1.0 - len(waiting) / len(leaves))
        found: Counts = tried(result.result, WHAT, _explained)
    except BaseException:
        with suppress(Exception):  # they may be gone with their cluster
            client.cancel([*waiting, result])
        raise
    return found


def _tell(heard: Listener, low: float, high: float, share: float) -> None:
    """Tell what share of some tasks is done, between two fractions."""
    heard(low + (high - low) * min(1.0, share), TEXT)


def _after(told: Callable[[float], object], _key: Any, _result: Any, tasks: Any, state: Any, _by: Any) -> None:
    told(len(state["finished"]) / len(tasks))


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
